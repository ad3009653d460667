/* SPDX-License-Identifier: GPL-2.0 */
/* Memory whose page faults are answered when the test likes: userfaultfd and FUSE. */
#ifndef _FM_FAULT_H
#define _FM_FAULT_H

#include "fm.h"

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

#endif /* _FM_FAULT_H */
