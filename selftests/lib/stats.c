// SPDX-License-Identifier: GPL-2.0
/* What the driver measures. */
#include "stats.h"

void fm_slot_info(int slot, struct fermata_slot_info *info)
{
	int fd = fm_open_dev(0);

	memset(info, 0, sizeof(*info));
	info->size = sizeof(*info);
	info->slot = slot;
	fm_must(fd, FERMATA_IOC_SLOT_INFO, info, "SLOT_INFO");
	close(fd);
}

void fm_histogram(int fd, u32 kind, u32 number, struct fm_histogram *h)
{
	struct fermata_histogram arg = {
		.size = sizeof(arg), .kind = kind, .number = number,
		.buckets = FERMATA_HISTOGRAM_BUCKETS, .counts = (uintptr_t)h->buckets
	};

	fm_must(fd, FERMATA_IOC_HISTOGRAM, &arg, "HISTOGRAM");
	h->count = arg.count;
	h->sum = arg.sum_ns;
	h->min = arg.min_ns;
	h->max = arg.max_ns;
}

const char *fm_histogram_wrong(const struct fm_histogram *h)
{
	/* What the times in the buckets come to at least, and where the shortest and the longest are. */
	u64 count = 0, least = 0;
	int i, first = -1, last = -1;

	for (i = 0; i < FERMATA_HISTOGRAM_BUCKETS; i++) {
		if (!h->buckets[i])
			continue;
		if (first < 0)
			first = i;
		last = i;
		count += h->buckets[i];
		least += h->buckets[i] * fermata_histogram_lower(i);
	}
	if (count != h->count)
		return "the buckets together are not the count";
	if (!count)
		return h->sum | h->min | h->max ? "times of nothing" : NULL;
	if (h->min < fermata_histogram_lower(first) || h->min >= fermata_histogram_lower(first + 1))
		return "the shortest is not in the first bucket";
	if (h->max < fermata_histogram_lower(last) ||
	    (last + 1 < FERMATA_HISTOGRAM_BUCKETS && h->max >= fermata_histogram_lower(last + 1)))
		return "the longest is not in the last bucket";
	if (h->sum < least || h->sum < h->max || h->sum / count > h->max)
		return "the sum is not that of such times";
	return NULL;
}
