/* SPDX-License-Identifier: GPL-2.0 */
/* Memory of the tests' own, and what the kernel says of it. */
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

#endif /* _FM_MEM_H */
