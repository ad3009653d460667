// SPDX-License-Identifier: GPL-2.0
/* What the driver measures. */
#include <sys/stat.h>
#include <sys/sysmacros.h>
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

const char *fm_sysfs_path(int slot, const char *name)
{
	static char path[512];
	struct stat st;
	int len;

	if (stat(fm_dev(), &st))
		fm_die("%s: %s", fm_dev(), strerror(errno));
	len = snprintf(path, sizeof(path), "/sys/dev/char/%u:%u/", major(st.st_rdev),
		       minor(st.st_rdev));
	if (slot >= 0)
		len += snprintf(path + len, sizeof(path) - len, "slot%d/", slot);
	snprintf(path + len, sizeof(path) - len, "%s", name);
	return path;
}

u64 fm_sysfs_number(int slot, const char *name)
{
	const char *path = fm_sysfs_path(slot, name);
	unsigned long long n;
	FILE *file = fopen(path, "re");

	if (!file || fscanf(file, "%llu", &n) != 1)
		fm_die("%s cannot be read", path);
	fclose(file);
	return n;
}

u64 fm_fdinfo_number(int fd, const char *key)
{
	char path[64], line[256];
	unsigned long long n;
	size_t len = strlen(key);
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	file = fopen(path, "re");
	if (!file)
		fm_die("%s: %s", path, strerror(errno));
	while (fgets(line, sizeof(line), file)) {
		if (!strncmp(line, key, len) && line[len] == ':') {
			n = strtoull(line + len + 1, NULL, 10);
			fclose(file);
			return n;
		}
	}
	fm_die("%s has no %s", path, key);
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

/* What was done to the module, and what came of it: figures of a whole boot. */

/* One write() for each line: processes that tell at the same time do not mix. */
static void tell(const char *kind, const char *what, u64 n)
{
	const char *path = getenv("FERMATA_TALLY");
	char line[128];
	int fd, length;

	if (!path || !*path)
		return;
	length = snprintf(line, sizeof(line), "%s %llu %s\n", kind, (unsigned long long)n, what);
	fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0 || write(fd, line, length) != length)
		fm_die("%s: %s", path, strerror(errno));
	close(fd);
}

void fm_tally(const char *what, u64 n)
{
	tell("+", what, n);
}

void fm_figure(const char *what, u64 value)
{
	tell("=", what, value);
}
