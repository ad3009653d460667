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
/* Path of a file of the card below /sys, or of one of its slots (else -1). */
const char *fm_sysfs_path(int slot, const char *name);
/* What stands there, a number. */
u64 fm_sysfs_number(int slot, const char *name);
/* A number of /proc/self/fdinfo of a file; dies if it is not there. */
u64 fm_fdinfo_number(int fd, const char *key);
/* NULL, or what cannot be. */
const char *fm_histogram_wrong(const struct fm_histogram *h);

#endif
