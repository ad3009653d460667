/* SPDX-License-Identifier: GPL-2.0 */
/* What the driver measures. */
#ifndef _FM_STATS_H
#define _FM_STATS_H

#include "fm.h"

struct fm_histogram {
	u64 count, sum, min, max;
	u64 buckets[FERMATA_HISTOGRAM_BUCKETS];
};

void fm_slot_info(int slot, struct fermata_slot_info *info);
/* Of a slot, or of a context (0: that of the file). */
void fm_histogram(int fd, u32 kind, u32 number, struct fm_histogram *h);
/* What stands there, a number. */
u64 fm_sysfs_number(int slot, const char *name);
/* A number of /proc/self/fdinfo of a file; dies if it is not there. */
u64 fm_fdinfo_number(int fd, const char *key);
/* NULL, or what cannot be. */
const char *fm_histogram_wrong(const struct fm_histogram *h);

/* The driver's tracepoints, through a tracing instance of the test's own. */

/* NULL, or why there are none to be had. The end of each test closes it. */
const char *fm_trace_open(void);
void fm_trace_close(void);
/* Forgets what was recorded. */
void fm_trace_begin(void);
/* Switches one of the events, or all ("enable" of the folder): "start/enable", "enable". */
void fm_trace_switch(const char *which, bool on);
/* Events recorded. */
int fm_trace_count(void);
/*
 * NULL, or the first of the n wanted events that was not recorded behind the one before it. One is
 * written "start ctx=%u resume=1": its name without "fermata_", and of its fields those that matter.
 */
const char *fm_trace_wrong(const char *const *want, int n);
/* Waits until they were. */
void fm_trace_until(const char *const *want, int n);

#endif
