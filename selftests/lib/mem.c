// SPDX-License-Identifier: GPL-2.0
/* Memory of the tests' own, and what the kernel says of it. */
#include <linux/memfd.h>

#include "mem.h"

u64 fm_number_in(const char *path, const char *key)
{
	char line[256];
	u64 value = UINT64_MAX;
	FILE *f = fopen(path, "r");

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, key, strlen(key)))
			value = strtoull(line + strlen(key), NULL, 10);
	if (f)
		fclose(f);
	if (value == UINT64_MAX)
		fm_die("%s has no %s", path, key);
	return value;
}

/* Pins that were taken and not given back, of the whole machine. */
u64 fm_pins(void)
{
	int rc = fm_put("/proc/sys/vm/stat_refresh", "1");
	u64 released;

	/* What each processor counted for itself. */
	if (rc)
		fm_die("stat_refresh: %s", strerror(-rc));
	released = fm_number_in("/proc/vmstat", "nr_foll_pin_released ");
	return fm_number_in("/proc/vmstat", "nr_foll_pin_acquired ") - released;
}

/* Bytes charged to this address space. */
u64 fm_charged(void)
{
	return fm_number_in("/proc/self/status", "VmPin:") * 1024;
}

bool fm_translated(void)
{
	struct fermata_card_info info;

	fm_card_info(&info);
	return info.features & FERMATA_FEATURE_IOMMU;
}

const char * const fm_kind_names[] = {
	"private anonymous", "shared anonymous", "memfd", "private mapping of a memfd",
	"transparent huge pages", "hugetlb", "shared hugetlb", "memfd of hugetlb"
};

int fm_memfd(size_t len, unsigned int flags)
{
	int fd = memfd_create("ownmem", MFD_CLOEXEC | flags);

	if (fd < 0 || ftruncate(fd, len))
		fm_die("memfd: %s", strerror(errno));
	return fd;
}

void *fm_map(void *at, size_t len, int flags, int fd, off_t off)
{
	void *mem = mmap(at, len, PROT_READ | PROT_WRITE, flags | (at ? MAP_FIXED : 0), fd, off);

	if (mem == MAP_FAILED)
		fm_die("mmap: %s", strerror(errno));
	return mem;
}

void *fm_map_huge(size_t len)
{
	u8 *mem = fm_map(NULL, len + FM_HUGE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *from;

	from = (u8 *)(((uintptr_t)mem + FM_HUGE - 1) & ~(FM_HUGE - 1));
	if (from != mem)
		munmap(mem, from - mem);
	munmap(from + len, mem + FM_HUGE - from);
	/* A kernel with PREEMPT_RT has none: it is memory like other then. */
	if (madvise(from, len, MADV_HUGEPAGE) &&
	    !access("/sys/kernel/mm/transparent_hugepage", F_OK))
		fm_die("MADV_HUGEPAGE: %s", strerror(errno));
	return from;
}

void *fm_map_kind(enum fm_kind kind, size_t len, int *fd)
{
	int flags = MAP_PRIVATE;

	if (kind == FM_THP)
		return fm_map_huge(len);
	if (kind == FM_SHARED || kind == FM_MEMFD || kind >= FM_HUGETLB_SHARED)
		flags = MAP_SHARED;
	if (kind == FM_MEMFD || kind == FM_MEMFD_PRIVATE || kind == FM_MEMFD_HUGETLB) {
		*fd = fm_memfd(len, kind == FM_MEMFD_HUGETLB ? MFD_HUGETLB : 0);
		return fm_map(NULL, len, flags, *fd, 0);
	}
	if (kind >= FM_HUGETLB)
		flags |= MAP_HUGETLB;
	return fm_map(NULL, len, flags | MAP_ANONYMOUS, -1, 0);
}

void fm_huge_pages(int n)
{
	char text[16];
	int rc;

	snprintf(text, sizeof(text), "%d", n);
	rc = fm_put("/proc/sys/vm/nr_hugepages", text);
	if (rc)
		fm_die("nr_hugepages: %s", strerror(-rc));
}
