// SPDX-License-Identifier: GPL-2.0
/*
 * Arenas of the program's own memory: the kinds of memory, what is refused, who
 * is charged, and what happens to a job when the program changes its mappings.
 */
#include "kselftest_harness.h"
#include <glob.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "lib/mem.h"
#include "lib/sched.h"
#include "lib/calls.h"

FM_FIXTURE_CARD(own);
FM_FIXTURE_ANY(charge);

/* Runs jobs that use the arena, before and after a hold: NULL or what is wrong. */
static const char *use(struct fm_ctx *c, u64 seed)
{
	struct fm_expect e;
	const char *wrong;

	fm_job_any(c, 20000, seed, &e);
	wrong = fm_job_run(c, &e);
	if (wrong)
		return wrong;
	card_speed(c->slot, 1);
	/* A second at this speed: any machine can hold the job before its end. */
	fm_job_any(c, 1000000, seed + 1, &e);
	wrong = fm_job_hold(c);
	if (wrong)
		return wrong;
	return fm_job_finish(c, &e);
}

/* One huge page is contiguous, so the card can access it even without an IOMMU. */
FM_TEST(own, every_kind_of_memory)
{
	bool iommu = fm_translated();
	u64 before = fm_pins();
	struct fm_ctx c;
	enum fm_kind kind;
	size_t len;
	void *mem;
	int rc, fd;

	fm_huge_pages(4);
	for (kind = FM_PRIVATE; kind <= FM_MEMFD_HUGETLB; kind++) {
		len = iommu ? 2 * FM_HUGE : kind >= FM_THP ? FM_HUGE : 2 * FM_PAGE;
		fd = -1;
		mem = fm_map_kind(kind, len, &fd);
		rc = fm_ctx_own(&c, FM_MEM, mem, len);
		/* Two pages may be adjacent by chance. */
		if (!iommu && kind < FM_THP && rc == -EOPNOTSUPP) {
			munmap(mem, len);
			close(fd);
			continue;
		}
		ASSERT_EQ(0, rc) {
			TH_LOG("%s: %s", fm_kind_names[kind], strerror(-rc));
		}
		EXPECT_EQ(before + len / FM_PAGE, fm_pins()) {
			TH_LOG("%s", fm_kind_names[kind]);
		}
		EXPECT_EQ(NULL, use(&c, kind)) {
			TH_LOG("%s", fm_kind_names[kind]);
		}
		fm_ctx_close(&c);
		close(fd);
		EXPECT_EQ(before, fm_pins());
		EXPECT_EQ(0, fm_charged());
	}
	fm_huge_pages(0);
}

/* Several mappings of several kinds make one arena. */
FM_TEST(own, several_mappings_are_one_arena)
{
	const size_t part = 64 * 1024;
	struct fm_ctx c;
	u8 *mem;

	if (!fm_translated())
		SKIP(return, "not contiguous without an IOMMU");
	mem = fm_map(NULL, 3 * part, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	fm_map(mem + part, part, MAP_SHARED, fm_memfd(part, 0), 0);
	fm_map(mem + 2 * part, part, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_EQ(0, fm_ctx_own(&c, FM_MEM, mem, 3 * part));
	ASSERT_GOOD(use(&c, 1));
	fm_ctx_close(&c);
}

/* Two pages in both orders: in at least one order they are not contiguous. */
FM_TEST(own, only_contiguous_without_an_iommu)
{
	bool iommu = fm_translated();
	int fd = fm_memfd(2 * FM_PAGE, 0), order, refused = 0, rc;
	u64 before = fm_pins();
	struct fm_ctx c;
	u8 *mem;

	for (order = 0; order < 2; order++) {
		mem = fm_map(NULL, 2 * FM_PAGE, MAP_SHARED, fd, 0);
		fm_map(mem, FM_PAGE, MAP_SHARED, fd, order * FM_PAGE);
		fm_map(mem + FM_PAGE, FM_PAGE, MAP_SHARED, fd, !order * FM_PAGE);
		rc = fm_ctx_own(&c, FM_MEM, mem, 2 * FM_PAGE);
		if (rc) {
			EXPECT_EQ(-EOPNOTSUPP, rc);
			EXPECT_EQ(before, fm_pins());
			EXPECT_EQ(0, fm_charged());
			refused++;
			continue;
		}
		ASSERT_GOOD(use(&c, order));
		fm_ctx_close(&c);
	}
	EXPECT_LE(!iommu, refused);
	EXPECT_GE(iommu ? 0 : 2, refused);
	/* One page is contiguous. */
	mem = fm_map(NULL, FM_PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	fm_ctx_setup(&c, FM_LIST, -1);
	EXPECT_EQ(0, fm_arena_own(&c, mem, FM_PAGE));
	fm_ctx_close(&c);
}

/* The engine uses the addresses that the program chose. */
FM_TEST(own, fixed_device_base)
{
	struct fermata_arena_create arena = {
		.size = sizeof(arena), .flags = FERMATA_ARENA_USER | FERMATA_ARENA_FIXED_BASE,
		.length = FM_HUGE, .device_base = 0x40000000
	};
	struct fermata_status st;
	struct fm_ctx c;

	c.mem = fm_map_huge(FM_HUGE);
	arena.user_addr = (uintptr_t)c.mem;
	fm_ctx_setup(&c, FM_LIST, -1);
	c.mem = (u8 *)(uintptr_t)arena.user_addr;
	c.len = FM_HUGE;
	ASSERT_EQ(0, fm_ioctl(c.fd, FERMATA_IOC_ARENA_CREATE, &arena));
	EXPECT_EQ(0, arena.mmap_offset);
	fm_agent_add(getpid(), c.mem, c.len, c.token);
	fm_ctx_snapshot(&c);
	fm_status(c.fd, &st);
	EXPECT_EQ(0x40000000, st.device_base);
	EXPECT_EQ(FM_HUGE, st.arena_length);
	c.base = st.device_base;
	ASSERT_GOOD(use(&c, 3));
	/* The driver has no memory to map. */
	EXPECT_EQ(MAP_FAILED, mmap(NULL, FM_HUGE, PROT_READ | PROT_WRITE, MAP_SHARED, c.fd, 0));
	EXPECT_EQ(EINVAL, errno);
	fm_ctx_close(&c);
}

/*
 * A mapping of more than 4 GiB has several segments, which follow each other. Its memory is one huge
 * page that is mapped many times.
 */
FM_TEST(own, more_than_4_gib)
{
	const size_t part = FM_HUGE, len = (4UL << 30) + 6 * part;
	struct fermata_arena_create arena = {
		.size = sizeof(arena), .flags = FERMATA_ARENA_USER, .length = len
	};
	struct fermata_card_info info;
	u64 before = fm_pins();
	struct fm_ctx c;
	size_t at;
	u8 *mem;
	int fd;

	fm_ctx_setup(&c, FM_MEM, -1);
	fm_card_info(&info);
	if (!fm_translated() || info.max_arena < len)
		SKIP(return, "needs an IOMMU, and max_arena_mib of %zu", len >> 20);
	fm_huge_pages(1);
	fd = fm_memfd(part, MFD_HUGETLB);
	/* With room to align the start to huge pages. */
	mem = fm_map(NULL, len + part, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	mem += -(uintptr_t)mem % part;
	for (at = 0; at < len; at += part)
		fm_map(mem + at, part, MAP_SHARED, fd, 0);
	arena.user_addr = (uintptr_t)mem;
	ASSERT_EQ(0, fm_ioctl(c.fd, FERMATA_IOC_ARENA_CREATE, &arena));
	EXPECT_EQ(before + len / FM_PAGE, fm_pins());
	fm_agent_add(getpid(), mem, part, c.token);
	fm_ctx_snapshot(&c);
	/* Jobs before, across and after 4 GiB. */
	for (at = 0; at < len; at += (2UL << 30) - part / 2) {
		c.mem = mem + at;
		c.base = arena.user_addr + at;
		c.len = part;
		ASSERT_GOOD(use(&c, at));
	}
	c.mem = mem;
	c.len = len;
	fm_ctx_close(&c);
	close(fd);
	fm_huge_pages(0);
	EXPECT_EQ(before, fm_pins());
	EXPECT_EQ(0, fm_charged());
}

/* The argument of a program that is older than this flag. */
FM_TEST(own, older_argument_is_an_allocated_arena)
{
	struct fermata_arena_create arena = { .size = 32, .length = 16384, .user_addr = ~0ULL };
	struct fm_ctx c;

	fm_ctx_setup(&c, FM_LIST, -1);
	ASSERT_EQ(0, fm_ioctl(c.fd, FERMATA_IOC_ARENA_CREATE, &arena));
	EXPECT_EQ(~0ULL, arena.user_addr);
	c.mem = fm_map(NULL, 16384, MAP_SHARED, c.fd, arena.mmap_offset);
	c.len = 16384;
	fm_ctx_close(&c);
}

/* --- memory of another process ---------------------------------------------------- */

/* Forks a process that maps fd at the returned address, where the caller has no mapping. */
static u64 fork_with_memory(struct fm_child *ch, int fd, void *mem, size_t len)
{
	fm_fork(ch);
	if (!ch->pid) {
		void *at = fm_map(NULL, len, MAP_SHARED, fd, 0);

		if (munmap(mem, len))
			_exit(1);
		fm_say(ch, (uintptr_t)at);
		fm_hear(ch);
		_exit(0);
	}
	return fm_hear(ch);
}

/* Does the process still have the context's memory at the same place? A flag, or an errno. */
static int place_in(int fd, pid_t pid)
{
	struct fermata_config config = { .size = sizeof(config), .fd = -1, .pid = pid };
	int rc = fm_ioctl(fd, FERMATA_IOC_CONFIG, &config);

	return rc ? rc : config.flags;
}

#define NEED_FOREIGN_MEMORY()							\
do {										\
	if (!fm_foreign_memory())						\
		SKIP(return, "FERMATA_MODULE does not name the module");	\
} while (0)

/* An arena and, if the card supports it, a snapshot buffer after the arena. */
FM_TEST(own, memory_of_another_process)
{
	const size_t len = FM_HUGE / 2;
	struct fermata_arena_create arena = {
		.size = sizeof(arena), .flags = FERMATA_ARENA_USER | FERMATA_ARENA_FIXED_BASE, .length = len
	};
	struct fermata_snapshot_create snap = {
		.size = sizeof(snap), .flags = FERMATA_SNAPSHOT_USER, .length = FM_PAGE
	};
	u64 before = fm_pins();
	struct fm_child ch;
	struct fm_ctx c;
	char path[64];
	int fd = -1;
	u8 *mem;
	u64 at;

	NEED_FOREIGN_MEMORY();
	fm_huge_pages(1);
	mem = fm_map_kind(FM_MEMFD_HUGETLB, FM_HUGE, &fd);
	at = fork_with_memory(&ch, fd, mem, FM_HUGE);
	fm_ctx_setup(&c, FM_LIST, -1);
	c.mem = mem;
	c.len = len;
	c.base = arena.device_base = 0x40000000;
	arena.user_addr = at;
	arena.pid = snap.pid = ch.pid;
	snap.user_addr = at + len;
	ASSERT_EQ(0, fm_ioctl(c.fd, FERMATA_IOC_ARENA_CREATE, &arena));
	fm_agent_add(getpid(), c.mem, c.len, c.token);
	if (!fm_confines())
		fm_ctx_snapshot(&c);
	else
		ASSERT_EQ(0, fm_ioctl(c.fd, FERMATA_IOC_SNAPSHOT_CREATE, &snap));
	EXPECT_LE(before + len / FM_PAGE, fm_pins());
	/* The pinned pages are charged to the process that has the memory. */
	snprintf(path, sizeof(path), "/proc/%d/status", ch.pid);
	EXPECT_LE(len, fm_number_in(path, "VmPin:") * 1024);
	EXPECT_EQ(FERMATA_CONFIG_IN_PLACE, place_in(c.fd, ch.pid));
	EXPECT_EQ(0, place_in(c.fd, getpid()));
	ASSERT_GOOD(use(&c, 5));
	fm_kill(&ch);
	EXPECT_EQ(-ESRCH, place_in(c.fd, ch.pid));
	ASSERT_GOOD(use(&c, 6));
	fm_ctx_close(&c);
	close(fd);
	fm_huge_pages(0);
	EXPECT_EQ(before, fm_pins());
	EXPECT_EQ(0, fm_charged());
}

/* The check is for the pages of the arena, not for any memory at their address. */
FM_TEST(own, pages_that_are_not_in_place)
{
	u8 *mem = fm_map(NULL, FM_HUGE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t len = fm_translated() ? FM_HUGE : FM_PAGE;
	struct fm_ctx c;

	NEED_FOREIGN_MEMORY();
	fm_ctx_setup(&c, FM_LIST, -1);
	EXPECT_EQ(0, place_in(c.fd, getpid()));
	ASSERT_EQ(0, fm_arena_own(&c, mem, len));
	EXPECT_EQ(0, place_in(c.fd, 0));
	EXPECT_EQ(FERMATA_CONFIG_IN_PLACE, place_in(c.fd, getpid()));
	/* Another page, and a missing page. */
	ASSERT_EQ(0, madvise(mem + len - FM_PAGE, FM_PAGE, MADV_DONTNEED));
	EXPECT_EQ(0, place_in(c.fd, getpid()));
	ASSERT_EQ(0, munmap(mem + len - FM_PAGE, FM_PAGE));
	EXPECT_EQ(0, place_in(c.fd, getpid()));
	fm_ctx_close(&c);
	/* A page that was moved. */
	mem = fm_map(NULL, 2 * FM_PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	fm_ctx_setup(&c, FM_LIST, -1);
	ASSERT_EQ(0, fm_arena_own(&c, mem, FM_PAGE));
	EXPECT_EQ(FERMATA_CONFIG_IN_PLACE, place_in(c.fd, getpid()));
	ASSERT_NE(MAP_FAILED, mremap(mem, FM_PAGE, FM_PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, mem + FM_PAGE));
	EXPECT_EQ(0, place_in(c.fd, getpid()));
	fm_ctx_close(&c);
}

static int take_of(int fd, pid_t pid, void *mem)
{
	struct fermata_arena_create arena = {
		.size = sizeof(arena), .flags = FERMATA_ARENA_USER, .length = FM_PAGE,
		.user_addr = (uintptr_t)mem, .pid = pid
	};

	return fm_ioctl(fd, FERMATA_IOC_ARENA_CREATE, &arena);
}

FM_TEST(own, processes_without_memory)
{
	void *page = fm_map(NULL, FM_PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct fm_child ch;
	struct fm_ctx c;

	NEED_FOREIGN_MEMORY();
	fm_ctx_setup(&c, FM_LIST, -1);
	/* A kernel thread, and a process that has ended: before and after its parent reaps it. */
	EXPECT_EQ(-ESRCH, take_of(c.fd, 2, page));
	fm_fork(&ch);
	if (!ch.pid)
		_exit(0);
	EXPECT_EQ(0, waitid(P_PID, ch.pid, NULL, WEXITED | WNOWAIT));
	EXPECT_EQ(-ESRCH, take_of(c.fd, ch.pid, page));
	fm_reap(&ch);
	EXPECT_EQ(-ESRCH, take_of(c.fd, ch.pid, page));
	close(c.fd);
}

#define CAP(cap)	(1ULL << (cap))

/* What a function returns in a process with these capabilities only. */
static int with_caps(u64 caps, int (*run)(int fd, pid_t pid, void *page), int fd, void *page)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2] = {
		{ .effective = (u32)caps, .permitted = (u32)caps },
		{ .effective = caps >> 32, .permitted = caps >> 32 },
	};
	struct fm_child ch;
	int rc;

	fm_fork(&ch);
	if (!ch.pid) {
		if (syscall(SYS_capset, &head, data))
			fm_die("capset: %s", strerror(errno));
		rc = run(fd, getppid(), page);
		fm_say(&ch, rc);
		_exit(0);
	}
	rc = fm_hear(&ch);
	fm_reap(&ch);
	return rc;
}

static int take_with(u64 caps, int fd, void *page)
{
	return with_caps(caps, take_of, fd, page);
}

FM_TEST(own, memory_of_another_process_needs_capabilities)
{
	void *page = fm_map(NULL, FM_PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	u64 before = fm_pins();
	struct fm_ctx c;

	NEED_FOREIGN_MEMORY();
	fm_ctx_setup(&c, FM_LIST, -1);
	EXPECT_EQ(-EPERM, take_with(0, c.fd, page));
	EXPECT_EQ(-EPERM, take_with(CAP(CAP_CHECKPOINT_RESTORE) | CAP(CAP_SYS_NICE), c.fd, page));
	EXPECT_EQ(-EPERM, take_with(CAP(CAP_SYS_PTRACE) | CAP(CAP_SYS_RESOURCE), c.fd, page));
	EXPECT_EQ(before, fm_pins());
	EXPECT_EQ(0, take_with(CAP(CAP_CHECKPOINT_RESTORE) | CAP(CAP_SYS_PTRACE), c.fd, page));
	EXPECT_EQ(before + 1, fm_pins());
	EXPECT_EQ(FM_PAGE, fm_charged());
	close(c.fd);
	fm_ctx_setup(&c, FM_LIST, -1);
	EXPECT_EQ(0, take_with(CAP(CAP_SYS_ADMIN), c.fd, page));
	close(c.fd);
	EXPECT_EQ(before, fm_pins());
	EXPECT_EQ(0, fm_charged());
}

static int compare_of(int fd, pid_t pid, void *unused)
{
	return place_in(fd, pid);
}

static int compare_with_bad_fd_of(int fd, pid_t pid, void *unused)
{
	struct fermata_config config = { .size = sizeof(config), .fd = 9999, .pid = pid };

	return fm_ioctl(fd, FERMATA_IOC_CONFIG, &config);
}

/* Capability and process are checked although there is nothing to compare. */
FM_TEST(own, comparison_without_own_memory)
{
	struct fm_child ch;
	struct fm_ctx c;

	NEED_FOREIGN_MEMORY();
	fm_ctx_setup(&c, FM_LIST, -1);
	EXPECT_EQ(0, place_in(c.fd, getpid()));
	EXPECT_EQ(-EPERM, with_caps(0, compare_of, c.fd, NULL));
	EXPECT_EQ(-EPERM, with_caps(0, compare_with_bad_fd_of, c.fd, NULL));
	EXPECT_EQ(-EBADF, with_caps(CAP(CAP_SYS_ADMIN), compare_with_bad_fd_of, c.fd, NULL));
	fm_fork(&ch);
	if (!ch.pid)
		_exit(0);
	fm_reap(&ch);
	EXPECT_EQ(-ESRCH, place_in(c.fd, ch.pid));
	close(c.fd);
}

FM_TEST(own, memory_of_another_process_is_off_by_default)
{
	void *page = fm_map(NULL, FM_PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct fermata_snapshot_create snap = {
		.size = sizeof(snap), .flags = FERMATA_SNAPSHOT_USER, .length = FM_PAGE,
		.user_addr = (uintptr_t)page, .pid = getpid()
	};
	struct fermata_card_info info;
	u64 before;
	struct fm_ctx c;

	if (!fm_module_known())
		SKIP(return, "FERMATA_MODULE does not name the module");
	fm_module_reload("");
	fm_card_info(&info);
	EXPECT_EQ(0, info.features & FERMATA_FEATURE_FOREIGN_MEMORY);
	before = fm_pins();
	fm_ctx_setup(&c, FM_LIST, -1);
	EXPECT_EQ(-EPERM, take_of(c.fd, getpid(), page));
	EXPECT_EQ(-EPERM, take_of(c.fd, 0x7fffffff, page));
	EXPECT_EQ(-EPERM, fm_ioctl(c.fd, FERMATA_IOC_SNAPSHOT_CREATE, &snap));
	EXPECT_EQ(-EPERM, place_in(c.fd, getpid()));
	EXPECT_EQ(before, fm_pins());
	/* A program's own memory needs no permission. */
	EXPECT_EQ(0, fm_arena_own(&c, page, FM_PAGE));
	close(c.fd);
	ASSERT_TRUE(fm_foreign_memory());
	fm_card_info(&info);
	EXPECT_NE(0, info.features & FERMATA_FEATURE_FOREIGN_MEMORY);
	fm_module_reload(getenv("FERMATA_MODULE_ARGS"));
}

/* --- own memory as snapshot buffer ------------------------------------------------ */

static int snapshot_own(struct fm_ctx *c, void *mem, size_t len)
{
	struct fermata_snapshot_create snap = {
		.size = sizeof(snap), .flags = FERMATA_SNAPSHOT_USER, .length = len,
		.user_addr = (uintptr_t)mem
	};

	return fm_ioctl(c->fd, FERMATA_IOC_SNAPSHOT_CREATE, &snap);
}

/* A list that can be held, with its snapshot in mem. */
static int list_with_snapshot(struct fm_ctx *c, void *mem, size_t len)
{
	struct fermata_arena_create arena = { .size = sizeof(arena), .length = 64 * 1024 };

	fm_ctx_setup(c, FM_LIST, -1);
	fm_must(c->fd, FERMATA_IOC_ARENA_CREATE, &arena, "ARENA_CREATE");
	c->len = arena.length;
	c->mem = fm_map(NULL, c->len, MAP_SHARED, c->fd, arena.mmap_offset);
	c->base = (uintptr_t)c->mem;
	fm_agent_add(getpid(), c->mem, c->len, c->token);
	fm_param_set(c->fd, FERMATA_PARAM_PREEMPT_TIMEOUT, 10000 * FM_MS);
	return snapshot_own(c, mem, len);
}

static void hold(struct fm_ctx *c)
{
	const char *wrong;

	card_speed(c->slot, 1);
	wrong = fm_job_hold(c);
	if (wrong)
		fm_die("%s", wrong);
	card_speed(c->slot, 0);
}

/* The state is in the program's memory, and the job resumes from there. */
FM_TEST(own, snapshot)
{
	u8 *mem = fm_map(NULL, FM_PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), copy[64];
	u64 before = fm_pins();
	struct fm_expect e;
	struct fm_ctx c;
	int rc;

	rc = list_with_snapshot(&c, mem, FM_PAGE);
	if (!fm_confines()) {
		EXPECT_EQ(-EOPNOTSUPP, rc);
		EXPECT_EQ(before, fm_pins());
		return;
	}
	ASSERT_EQ(0, rc);
	EXPECT_EQ(before + 1, fm_pins());
	EXPECT_EQ(c.len + FM_PAGE, fm_charged());
	fm_job_list(&c, 500, 3000000, 3, &e);
	hold(&c);
	ASSERT_EQ(0, fm_snapshot_read(c.fd, copy, 0, sizeof(copy)));
	EXPECT_EQ(0, memcmp(mem, copy, sizeof(copy)));
	/* This word is the engine's count of nodes, which may be 0 on a busy host. */
	card_speed(c.slot, 1);
	while (!((u64 *)mem)[3]) {
		ASSERT_EQ(0, fm_resume(c.fd));
		card_until_runs(c.slot, c.token);
		fm_hold(&c);
	}
	card_speed(c.slot, 0);
	ASSERT_EQ(0, fm_resume(c.fd));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
	fm_ctx_close(&c);
	EXPECT_EQ(before, fm_pins());
	EXPECT_EQ(0, fm_charged());
}

/* With a forged state the engine can access nothing but its own arena. */
FM_TEST(own, snapshot_that_is_forged)
{
	u64 *mem = fm_map(NULL, FM_PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct fm_ctx c, other;
	struct fermata_status st;
	struct fm_expect e, eo;
	const char *reply;

	if (!fm_confines())
		SKIP(return, "the card does not confine such an engine");
	fm_ctx_new(&other, FM_LIST, 64 * 1024);
	ASSERT_EQ(0, list_with_snapshot(&c, mem, FM_PAGE));
	fm_job_list(&c, 500, 3000000, 3, &e);
	hold(&c);
	/* The next node is in the arena of a neighbour. */
	mem[1] = other.base + FM_DATA;
	ASSERT_EQ(0, fm_resume(c.fd));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	fm_status(c.fd, &st);
	EXPECT_EQ(EFAULT, st.error);
	EXPECT_EQ(other.base + FM_DATA, st.fault_addr);
	/* The card has noticed this, and no other violation. */
	reply = card_cmd("violations");
	EXPECT_EQ(1, card_key(reply, "total"));
	EXPECT_EQ(1, card_key(reply, "resume_forged"));
	card_cmd("violations clear");
	fm_job_list(&other, 100, 1000, 4, &eo);
	ASSERT_GOOD(fm_job_run(&other, &eo));
	fm_job_list(&c, 100, 1000, 5, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
}

FM_TEST(own, snapshot_bad_input)
{
	u8 *mem = fm_map(NULL, 2 * FM_PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct fermata_snapshot_create snap = { .size = sizeof(snap), .user_addr = (uintptr_t)mem };
	struct fm_ctx c;

	fm_ctx_setup(&c, FM_LIST, -1);
	EXPECT_EQ(-EINVAL, fm_ioctl(c.fd, FERMATA_IOC_SNAPSHOT_CREATE, &snap));
	EXPECT_EQ(-EINVAL, snapshot_own(&c, mem + 8, FM_PAGE));
	EXPECT_EQ(-EINVAL, snapshot_own(&c, mem, 0));
	EXPECT_EQ(-EINVAL, snapshot_own(&c, mem, FM_PAGE + 8));
	EXPECT_EQ(-EINVAL, snapshot_own(&c, mem, 4097 * FM_PAGE));
	if (fm_confines()) {
		ASSERT_EQ(0, mprotect(mem, FM_PAGE, PROT_READ));
		EXPECT_EQ(-EFAULT, snapshot_own(&c, mem, FM_PAGE));
		EXPECT_EQ(0, fm_charged());
		EXPECT_EQ(0, snapshot_own(&c, mem + FM_PAGE, FM_PAGE));
		EXPECT_EQ(-EEXIST, snapshot_own(&c, mem + FM_PAGE, FM_PAGE));
	}
	close(c.fd);
}

/* --- refusals, which leave nothing behind ---------------------------------------- */

/* Maps a page of some PCI device that no driver has claimed. */
static void *device_memory(void)
{
	void *mem = MAP_FAILED;
	glob_t found;
	size_t i;
	int fd;

	if (glob("/sys/bus/pci/devices/*/resource[0-5]", 0, NULL, &found))
		return NULL;
	for (i = 0; i < found.gl_pathc && mem == MAP_FAILED; i++) {
		fd = open(found.gl_pathv[i], O_RDWR | O_CLOEXEC);
		mem = mmap(NULL, FM_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		close(fd);
	}
	globfree(&found);
	return mem == MAP_FAILED ? NULL : mem;
}

/* The ring of asynchronous I/O: pages of a file whose writes the kernel tracks. */
static void *tracked_file(void)
{
	unsigned long ring = 0;

	if (syscall(SYS_io_setup, 500, &ring))
		return NULL;
	return (void *)ring;
}

/* Checks that an arena is refused: nothing is pinned or charged, and the context is unchanged. */
static const char *refused(struct fm_ctx *c, void *mem, size_t len, int want)
{
	u64 before = fm_pins();
	struct fermata_status st;
	int rc = fm_arena_own(c, mem, len);

	if (rc != -want)
		return rc ? strerror(-rc) : "success";
	fm_status(c->fd, &st);
	if (fm_pins() != before)
		return "pages stay pinned";
	if (fm_charged())
		return "pages stay charged";
	return st.arena_length ? "there is an arena" : NULL;
}

FM_TEST(own, kinds_that_are_refused)
{
	const size_t len = 4 * FM_PAGE;
	u8 *mem, *page = fm_map(NULL, FM_PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int prot, fd;
	struct fm_ctx c;

	fm_ctx_setup(&c, FM_LIST, -1);
	for (prot = PROT_NONE; prot <= PROT_READ; prot++) {
		mem = fm_map(NULL, len, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		ASSERT_EQ(0, mprotect(mem, len, prot));
		ASSERT_GOOD(refused(&c, mem, len, EFAULT));
		munmap(mem, len);
	}
	/* A memfd that may be read only. */
	fd = fm_memfd(len, 0);
	mem = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
	ASSERT_GOOD(refused(&c, mem, len, EFAULT));
	/* An unmapped range, and kernel memory. */
	munmap(mem, len);
	ASSERT_GOOD(refused(&c, mem, len, EFAULT));
	ASSERT_GOOD(refused(&c, (void *)0x10000, len, EFAULT));
	/* Beyond the end of a memfd. */
	mem = fm_map(NULL, 2 * len, MAP_SHARED, fd, 0);
	ASSERT_GOOD(refused(&c, mem, 2 * len, EFAULT));
	mem = tracked_file();
	if (mem)
		ASSERT_GOOD(refused(&c, mem, FM_PAGE, EFAULT));
	else
		TH_LOG("no asynchronous I/O: not tried");
	mem = device_memory();
	if (mem)
		ASSERT_GOOD(refused(&c, mem, FM_PAGE, EFAULT));
	else
		TH_LOG("no memory of a device to map: not tried");
	fd = syscall(SYS_memfd_secret, 0);
	if (fd >= 0 && !ftruncate(fd, len)) {
		mem = fm_map(NULL, len, MAP_SHARED, fd, 0);
		ASSERT_GOOD(refused(&c, mem, len, EFAULT));
	} else {
		TH_LOG("no memfd_secret: not tried");
	}
	/* After all refusals the context accepts an arena. */
	EXPECT_EQ(0, fm_arena_own(&c, page, FM_PAGE));
	fm_ctx_close(&c);
}

/* A hole after many pages: the pages before it are pinned, and unpinned again. */
FM_TEST(own, hole_unpins_what_was_pinned)
{
	const size_t len = 8 << 20;
	struct fm_ctx c;
	size_t hole;
	u8 *mem;

	fm_ctx_setup(&c, FM_LIST, -1);
	for (hole = 0; hole < len; hole = hole * 3 + FM_PAGE) {
		mem = fm_map(NULL, len, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		munmap(mem + hole, FM_PAGE);
		ASSERT_GOOD(refused(&c, mem, len, EFAULT));
		munmap(mem, len);
	}
	fm_ctx_close(&c);
}

/* Two threads make the arena at once: one succeeds, and the other leaves nothing behind. */
struct maker {
	pthread_t thread;
	pthread_barrier_t *go;
	int fd;
	void *mem;
	int rc;
};

static void *make_arena(void *arg)
{
	struct maker *m = arg;
	struct fermata_arena_create arena = {
		.size = sizeof(arena), .flags = FERMATA_ARENA_USER, .length = FM_HUGE,
		.user_addr = (uintptr_t)m->mem
	};

	pthread_barrier_wait(m->go);
	m->rc = fm_ioctl(m->fd, FERMATA_IOC_ARENA_CREATE, &arena);
	return NULL;
}

FM_TEST(own, two_at_once_make_one)
{
	struct maker maker[2] = {};
	pthread_barrier_t go;
	u64 before = fm_pins();
	struct fm_ctx c;
	int round, i;

	for (i = 0; i < 2; i++) {
		maker[i].mem = fm_map_huge(FM_HUGE);
		memset(maker[i].mem, 1, FM_HUGE);
	}
	for (round = 0; round < 50; round++) {
		fm_ctx_setup(&c, FM_LIST, -1);
		pthread_barrier_init(&go, NULL, 2);
		for (i = 0; i < 2; i++) {
			maker[i].fd = c.fd;
			maker[i].go = &go;
			ASSERT_EQ(0, pthread_create(&maker[i].thread, NULL, make_arena, &maker[i]));
		}
		for (i = 0; i < 2; i++)
			pthread_join(maker[i].thread, NULL);
		EXPECT_EQ(-EEXIST, maker[0].rc + maker[1].rc);
		EXPECT_EQ(before + FM_HUGE / FM_PAGE, fm_pins());
		EXPECT_EQ(FM_HUGE, fm_charged());
		close(c.fd);
		ASSERT_EQ(before, fm_pins());
	}
}

/* --- charges ------------------------------------------------------------------------- */

/* Becomes user uid, and can change the user again. */
static void become(uid_t uid)
{
	if (setresuid(0, 0, 0) || setresuid(uid, uid, 0))
		fm_die("setresuid: %s", strerror(errno));
}

/* Opens a context as this user, without memory. */
static int context_of(uid_t uid)
{
	struct fm_ctx c;

	become(uid);
	fm_ctx_setup(&c, FM_LIST, -1);
	return c.fd;
}

static int allocate(int fd, size_t len)
{
	struct fermata_arena_create arena = { .size = sizeof(arena), .length = len };

	return fm_ioctl(fd, FERMATA_IOC_ARENA_CREATE, &arena);
}

static int take(int fd, void *mem, size_t len)
{
	struct fermata_arena_create arena = {
		.size = sizeof(arena), .flags = FERMATA_ARENA_USER, .length = len,
		.user_addr = (uintptr_t)mem
	};

	return fm_ioctl(fd, FERMATA_IOC_ARENA_CREATE, &arena);
}

static int snapshot(int fd)
{
	struct fermata_snapshot_create snap = { .size = sizeof(snap) };

	return fm_ioctl(fd, FERMATA_IOC_SNAPSHOT_CREATE, &snap);
}

static void limit_memlock(size_t bytes)
{
	struct rlimit limit = { bytes, bytes };

	become(0);
	if (setrlimit(RLIMIT_MEMLOCK, &limit))
		fm_die("RLIMIT_MEMLOCK: %s", strerror(errno));
}

#define SOMEBODY	4711
#define ANOTHER		4712

/* Everything that is pinned for a user is charged once, and uncharged again. */
FM_TEST(charge, opener_against_the_callers_limit)
{
	void *page = fm_map(NULL, FM_PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int first, second;

	if (!fm_has_window())
		SKIP(return, "contexts of one user at a time");
	ASSERT_EQ(0, chmod(fm_dev(), 0666));
	limit_memlock(4 * FM_PAGE);
	first = context_of(SOMEBODY);
	EXPECT_EQ(-ENOMEM, allocate(first, 5 * FM_PAGE));
	EXPECT_EQ(0, fm_charged());
	EXPECT_EQ(0, allocate(first, 2 * FM_PAGE));
	EXPECT_EQ(2 * FM_PAGE, fm_charged());
	EXPECT_EQ(0, snapshot(first));
	EXPECT_EQ(3 * FM_PAGE, fm_charged());
	/* Another context of the same user. */
	second = context_of(SOMEBODY);
	EXPECT_EQ(-ENOMEM, allocate(second, 2 * FM_PAGE));
	EXPECT_EQ(0, take(second, page, FM_PAGE));
	EXPECT_EQ(4 * FM_PAGE, fm_charged());
	EXPECT_EQ(-ENOMEM, snapshot(second));
	/* The opener's limit applies, whoever calls; another user has another limit. */
	become(ANOTHER);
	EXPECT_EQ(-ENOMEM, snapshot(second));
	close(second);
	EXPECT_EQ(3 * FM_PAGE, fm_charged());
	second = context_of(ANOTHER);
	EXPECT_EQ(0, allocate(second, 4 * FM_PAGE));
	EXPECT_EQ(-ENOMEM, snapshot(second));
	close(second);
	second = context_of(SOMEBODY);
	EXPECT_EQ(-ENOMEM, allocate(second, 2 * FM_PAGE));
	close(first);
	EXPECT_EQ(0, fm_charged());
	EXPECT_EQ(0, allocate(second, 4 * FM_PAGE));
	close(second);
	EXPECT_EQ(0, fm_charged());
	become(0);
	ASSERT_EQ(0, chmod(fm_dev(), 0600));
}

/* A caller with CAP_IPC_LOCK is exempt, but the pages still count for the address space. */
FM_TEST(charge, cap_ipc_lock_is_exempt)
{
	int fd;

	if (!fm_has_window())
		SKIP(return, "contexts of one user at a time");
	ASSERT_EQ(0, chmod(fm_dev(), 0666));
	limit_memlock(0);
	fd = context_of(SOMEBODY);
	EXPECT_EQ(-ENOMEM, allocate(fd, FM_PAGE));
	EXPECT_EQ(-ENOMEM, snapshot(fd));
	become(0);
	EXPECT_EQ(0, allocate(fd, FM_PAGE));
	EXPECT_EQ(FM_PAGE, fm_charged());
	close(fd);
	EXPECT_EQ(0, fm_charged());
	/* Pages that were not charged were not uncharged either. */
	limit_memlock(FM_PAGE);
	fd = context_of(SOMEBODY);
	EXPECT_EQ(-ENOMEM, allocate(fd, 2 * FM_PAGE));
	EXPECT_EQ(0, allocate(fd, FM_PAGE));
	close(fd);
	become(0);
	ASSERT_EQ(0, chmod(fm_dev(), 0600));
}

/* Memory that the driver allocates for a context is charged to its cgroup. */
FM_TEST(charge, memory_cgroup)
{
	const char *current = "/sys/fs/cgroup/fermata-test-0/memory.current";
	const size_t len = 3 << 20;
	u64 before;
	int fd, rc;

	rc = fm_put("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
	if (rc)
		SKIP(return, "no memory cgroups: %s", strerror(-rc));
	fm_enter(0);
	fd = context_of(0);
	before = fm_number_in(current, "");
	ASSERT_EQ(0, allocate(fd, len));
	/* Each processor counts a part of it locally. */
	EXPECT_LE(before + len / 2, fm_number_in(current, ""));
	close(fd);
	EXPECT_GT(before + len / 2, fm_number_in(current, ""));
	fm_enter(FM_ROOT);
	fm_cgroups_remove();
}

TEST_HARNESS_MAIN
