/* SPDX-License-Identifier: GPL-2.0 */
/* Memory of the tests' own, what the kernel says of it, and page faults that are answered when the test likes. */
#ifndef _FM_MEM_H
#define _FM_MEM_H

#include "fm.h"

#define FM_HUGE	(2UL << 20)

/* The number behind key in a file of /proc or the like. */
u64 fm_number_in(const char *path, const char *key);
/* Pins that were taken and not given back, of the whole machine. */
u64 fm_pins(void);
/* Bytes charged to this address space. */
u64 fm_charged(void);
/* The card is behind an IOMMU. */
bool fm_translated(void);

enum fm_kind {
	FM_PRIVATE, FM_SHARED, FM_MEMFD, FM_MEMFD_PRIVATE,
	/* Contiguous up to FM_HUGE bytes. */
	FM_THP, FM_HUGETLB, FM_HUGETLB_SHARED, FM_MEMFD_HUGETLB, FM_KINDS
};

extern const char * const fm_kind_names[];
int fm_memfd(size_t len, unsigned int flags);
void *fm_map(void *at, size_t len, int flags, int fd, off_t off);
/* Aligned to huge pages, which are asked for. */
void *fm_map_huge(size_t len);
/* fd: filled where there is one. */
void *fm_map_kind(enum fm_kind kind, size_t len, int *fd);
/* So many pages of hugetlb are there. */
void fm_huge_pages(int n);

/* --- page faults that are answered when the test likes: userfaultfd and FUSE ---- */

/* A userfaultfd, or -1 where the kernel has none. */
int fm_uffd_open(void);
/* An access to this page, which must be untouched, blocks until fm_uffd_fill(). */
void fm_uffd_missing(int uffd, void *page);
/* A write to this page, which must be filled, blocks until fm_uffd_unprotect(). */
void fm_uffd_protect(int uffd, void *page);
/* Waits until n accesses are blocked; dies when they do not come. */
void fm_uffd_until_blocked(int uffd, int n);
/* How many accesses have been blocked since the last question. */
int fm_uffd_blocked(int uffd);
/* Ends the wait for a page that is missing: it gets these bytes, and zeros behind them. */
void fm_uffd_fill(int uffd, void *page, const void *data, size_t len);
void fm_uffd_unprotect(int uffd, void *page);

/* A file whose every read blocks until fm_fuse_answer(); -1: there is no FUSE. */
int fm_fuse_open(size_t len);
/* Waits until n reads of the file are blocked; false: they are not, and will not be. */
bool fm_fuse_until_blocked(int n);
/* Answers all reads with zeros, from now on at once. */
void fm_fuse_answer(void);
/* Unmounts it; reads that were not answered fail. */
void fm_fuse_close(void);

#endif /* _FM_MEM_H */
