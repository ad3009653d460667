/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Memory of test programs, the kernel's counters for it, and page faults that a test answers when
 * it chooses.
 */
#ifndef _FM_MEM_H
#define _FM_MEM_H

#include "fm.h"

#define FM_HUGE	(2UL << 20)

/* The number behind key in a file of /proc or the like. */
u64 fm_number_in(const char *path, const char *key);
/* Pages that are pinned now, in the whole machine. */
u64 fm_pins(void);
/* Pinned bytes that are charged to this address space. */
u64 fm_charged(void);
/* Whether the card is behind an IOMMU. */
bool fm_translated(void);

enum fm_kind {
	FM_PRIVATE, FM_SHARED, FM_MEMFD, FM_MEMFD_PRIVATE,
	/* Contiguous up to FM_HUGE bytes. */
	FM_THP, FM_HUGETLB, FM_HUGETLB_SHARED, FM_MEMFD_HUGETLB, FM_KINDS
};

extern const char * const fm_kind_names[];
int fm_memfd(size_t len, unsigned int flags);
void *fm_map(void *at, size_t len, int flags, int fd, off_t off);
/* Memory aligned to huge pages, with MADV_HUGEPAGE. */
void *fm_map_huge(size_t len);
/* fd: set if this kind of memory has a file. */
void *fm_map_kind(enum fm_kind kind, size_t len, int *fd);
/* Sets the number of hugetlb pages. */
void fm_huge_pages(int n);

/* --- page faults that a test answers when it chooses: userfaultfd and FUSE ---- */

/* A userfaultfd, or -1 if the kernel has none. */
int fm_uffd_open(void);
/* Makes accesses to this page, which must be untouched, block until fm_uffd_fill(). */
void fm_uffd_missing(int uffd, void *page);
/* Makes writes to this page, which must be filled, block until fm_uffd_unprotect(). */
void fm_uffd_protect(int uffd, void *page);
/* Waits until n accesses are blocked; dies after the guard time. */
void fm_uffd_until_blocked(int uffd, int n);
/* How many accesses have blocked since the last call. */
int fm_uffd_blocked(int uffd);
/* Ends the wait for a missing page: fills the page with these bytes, and zeros after them. */
void fm_uffd_fill(int uffd, void *page, const void *data, size_t len);
void fm_uffd_unprotect(int uffd, void *page);

/* A file of which every read blocks until fm_fuse_answer(); -1: there is no FUSE. */
int fm_fuse_open(size_t len);
/* Waits until n reads of the file are blocked; false if that does not happen in time. */
bool fm_fuse_until_blocked(int n);
/* Answers all blocked reads with zeros, and later reads at once. */
void fm_fuse_answer(void);
/* Unmounts the file; unanswered reads fail. */
void fm_fuse_close(void);

#endif /* _FM_MEM_H */
