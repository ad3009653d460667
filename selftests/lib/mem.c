// SPDX-License-Identifier: GPL-2.0
/* Memory of test programs, and the kernel's counters for it. */
#include <linux/fuse.h>
#include <linux/memfd.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

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

u64 fm_pins(void)
{
	int rc = fm_put("/proc/sys/vm/stat_refresh", "1");
	u64 released;

	/* This folds in the counters of each processor. */
	if (rc)
		fm_die("stat_refresh: %s", strerror(-rc));
	released = fm_number_in("/proc/vmstat", "nr_foll_pin_released ");
	return fm_number_in("/proc/vmstat", "nr_foll_pin_acquired ") - released;
}

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
	/* A kernel with PREEMPT_RT has no huge pages: the memory is ordinary memory then. */
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

/* --- userfaultfd ------------------------------------------------------------ */

int fm_uffd_open(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	if (fd >= 0 && ioctl(fd, UFFDIO_API, &api))
		fm_die("UFFDIO_API: %s", strerror(errno));
	return fd;
}

static void register_page(int uffd, void *page, u64 mode)
{
	struct uffdio_register range = {
		.range = { .start = (uintptr_t)page, .len = FM_PAGE }, .mode = mode
	};

	if (ioctl(uffd, UFFDIO_REGISTER, &range))
		fm_die("UFFDIO_REGISTER: %s", strerror(errno));
}

void fm_uffd_missing(int uffd, void *page)
{
	register_page(uffd, page, UFFDIO_REGISTER_MODE_MISSING);
}

static void set_protection(int uffd, void *page, u64 mode)
{
	struct uffdio_writeprotect wp = {
		.range = { .start = (uintptr_t)page, .len = FM_PAGE }, .mode = mode
	};

	if (ioctl(uffd, UFFDIO_WRITEPROTECT, &wp))
		fm_die("UFFDIO_WRITEPROTECT: %s", strerror(errno));
}

void fm_uffd_protect(int uffd, void *page)
{
	register_page(uffd, page, UFFDIO_REGISTER_MODE_WP);
	set_protection(uffd, page, UFFDIO_WRITEPROTECT_MODE_WP);
}

void fm_uffd_unprotect(int uffd, void *page)
{
	set_protection(uffd, page, 0);
}

int fm_uffd_blocked(int uffd)
{
	struct uffd_msg msg;
	int n = 0;

	while (read(uffd, &msg, sizeof(msg)) == sizeof(msg))
		n += msg.event == UFFD_EVENT_PAGEFAULT;
	return n;
}

void fm_uffd_until_blocked(int uffd, int n)
{
	struct pollfd p = { .fd = uffd, .events = POLLIN };

	while (n > 0) {
		if (poll(&p, 1, FM_GUARD_MS) != 1)
			fm_die("%d accesses do not block", n);
		n -= fm_uffd_blocked(uffd);
	}
}

void fm_uffd_fill(int uffd, void *page, const void *data, size_t len)
{
	u8 bytes[FM_PAGE] __attribute__((aligned(FM_PAGE))) = {};
	struct uffdio_copy copy = {
		.dst = (uintptr_t)page, .src = (uintptr_t)bytes, .len = FM_PAGE
	};

	if (len)
		memcpy(bytes, data, len);
	if (ioctl(uffd, UFFDIO_COPY, &copy))
		fm_die("UFFDIO_COPY: %s", strerror(errno));
}

/* --- FUSE ------------------------------------------------------------------- */

#define FUSE_MAX	(256 << 10)
#define FUSE_BLOCKED	16
#define FUSE_DIR	"/tmp/fm-fuse"

static struct {
	int fd;
	size_t len;
	pthread_t thread;
	pthread_mutex_t lock;
	bool answers;
	struct fuse_in_header blocked[FUSE_BLOCKED];
	u32 sizes[FUSE_BLOCKED];
	int nblocked;
} fuse = { .fd = -1, .lock = PTHREAD_MUTEX_INITIALIZER };

static void reply(const struct fuse_in_header *in, int error, const void *data, size_t len)
{
	static u8 out[sizeof(struct fuse_out_header) + FUSE_MAX];
	struct fuse_out_header *head = (void *)out;

	*head = (struct fuse_out_header){
		.len = sizeof(*head) + len, .error = error, .unique = in->unique
	};
	if (data)
		memcpy(head + 1, data, len);
	else
		memset(head + 1, 0, len);
	/* The request may have been interrupted. */
	if (write(fuse.fd, out, head->len) < 0 && errno != ENOENT && errno != ENODEV)
		fm_die("write to /dev/fuse: %s", strerror(errno));
}

static struct fuse_attr attr(u64 node)
{
	return (struct fuse_attr){
		.ino = node, .size = node == 1 ? 0 : fuse.len, .nlink = 1,
		.mode = node == 1 ? S_IFDIR | 0755 : S_IFREG | 0600
	};
}

static void serve_read(const struct fuse_in_header *in, const struct fuse_read_in *read)
{
	pthread_mutex_lock(&fuse.lock);
	if (fuse.answers) {
		reply(in, 0, NULL, read->size);
	} else if (fuse.nblocked < FUSE_BLOCKED) {
		fuse.blocked[fuse.nblocked] = *in;
		fuse.sizes[fuse.nblocked++] = read->size;
	}
	pthread_mutex_unlock(&fuse.lock);
}

/* The file is node 2, the only entry of the root, which is node 1. */
static void serve(const struct fuse_in_header *in, const void *arg)
{
	struct fuse_init_out init = {
		.major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION,
		.max_readahead = FM_PAGE, .max_write = FM_PAGE
	};
	struct fuse_entry_out entry = { .nodeid = 2, .attr = attr(2), .entry_valid = 3600 };
	struct fuse_attr_out attributes = { .attr_valid = 3600, .attr = attr(in->nodeid) };
	struct fuse_open_out open = {};

	switch (in->opcode) {
	case FUSE_INIT:
		reply(in, 0, &init, sizeof(init));
		break;
	case FUSE_LOOKUP:
		reply(in, 0, &entry, sizeof(entry));
		break;
	case FUSE_GETATTR:
		reply(in, 0, &attributes, sizeof(attributes));
		break;
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		reply(in, 0, &open, sizeof(open));
		break;
	case FUSE_READ:
		serve_read(in, arg);
		break;
	case FUSE_FLUSH:
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
		reply(in, 0, NULL, 0);
		break;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		break;
	default:
		reply(in, -ENOSYS, NULL, 0);
	}
}

static void *server(void *unused)
{
	static u8 in[FUSE_MAX];
	struct fuse_in_header *head = (void *)in;

	while (read(fuse.fd, in, sizeof(in)) >= (ssize_t)sizeof(*head) || errno == EINTR)
		serve(head, head + 1);
	return NULL;
}

int fm_fuse_open(size_t len)
{
	char options[128];
	int fd;

	fuse.fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (fuse.fd < 0)
		return -1;
	fuse.len = len;
	fuse.answers = false;
	fuse.nblocked = 0;
	mkdir(FUSE_DIR, 0700);
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse.fd);
	if (mount("fermata", FUSE_DIR, "fuse", MS_NOSUID | MS_NODEV, options))
		fm_die("mounting FUSE: %s", strerror(errno));
	if (pthread_create(&fuse.thread, NULL, server, NULL))
		fm_die("pthread_create");
	fd = open(FUSE_DIR "/file", O_RDWR | O_CLOEXEC);
	if (fd < 0)
		fm_die("a file of FUSE: %s", strerror(errno));
	return fd;
}

bool fm_fuse_until_blocked(int n)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS / 2;
	int blocked;

	do {
		pthread_mutex_lock(&fuse.lock);
		blocked = fuse.nblocked;
		pthread_mutex_unlock(&fuse.lock);
		fm_sleep_us(1000);
	} while (blocked < n && fm_now() < end);
	return blocked == n;
}

void fm_fuse_answer(void)
{
	int i;

	pthread_mutex_lock(&fuse.lock);
	fuse.answers = true;
	for (i = 0; i < fuse.nblocked; i++)
		reply(&fuse.blocked[i], 0, NULL, fuse.sizes[i]);
	fuse.nblocked = 0;
	pthread_mutex_unlock(&fuse.lock);
}

void fm_fuse_close(void)
{
	umount2(FUSE_DIR, MNT_FORCE | MNT_DETACH);
	pthread_join(fuse.thread, NULL);
	close(fuse.fd);
	rmdir(FUSE_DIR);
}
