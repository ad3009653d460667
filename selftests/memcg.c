// SPDX-License-Identifier: GPL-2.0
/*
 * The memory cgroup's limit holds for every call, and memory that does not fit is refused to the
 * caller instead of being taken from a bystander.
 */
#include "kselftest_harness.h"
#include <sys/wait.h>
#include "lib/calls.h"
#include "lib/sched.h"
#include "lib/mem.h"

#define CGROUP		FM_CGROUP "memory"
#define LIMIT		(64ULL << 20)
#define SLACK		(24LL << 20)	/* what else comes and goes in a machine */
#define BUFFER		(16UL << 20)	/* the largest state */
#define THREADS		32	/* that make each call */
#define MATES		2

FM_FIXTURE_ANY(memcg);

/* NULL, or why there is no cgroup with a limit. */
static const char *make_cgroup(void)
{
	if (!fm_has_cgroups())
		return "no cgroups (version 2)";
	if (fm_put("/sys/fs/cgroup/cgroup.subtree_control", "+memory"))
		return "no memory controller";
	fm_cgroup_make(CGROUP);
	fm_cgroup_put(CGROUP, "memory.max", "64M");
	return NULL;
}

static int64_t free_bytes(void)
{
	return fm_number_in("/proc/meminfo", "MemFree:") * 1024;
}

/* --- point 6 ------------------------------------------------------------------------ */

struct caller {
	pthread_t thread;
	unsigned long cmd;
	union fm_arg arg;
	int fd;
};

static int returned;

static void *make_call(void *arg)
{
	struct caller *c = arg;

	fm_ioctl(c->fd, c->cmd, &c->arg);
	__atomic_add_fetch(&returned, 1, __ATOMIC_RELAXED);
	return NULL;
}

/* As much as the call takes, from or to the buffer. */
static void enlarge(unsigned long cmd, union fm_arg *a, u64 *pointer, u8 *buffer)
{
	u64 length = BUFFER;

	switch (cmd) {
	case FERMATA_IOC_SNAPSHOT_READ:
	case FERMATA_IOC_SNAPSHOT_WRITE:
		a->read.length = length;
		break;
	case FERMATA_IOC_REGS_WRITE:
	case FERMATA_IOC_REGS_READ:
	case FERMATA_IOC_REGS_LIST:
		a->regs.count = FERMATA_MAX_REGS;
		length = sizeof(struct fermata_reg) * FERMATA_MAX_REGS;
		break;
	case FERMATA_IOC_RESULTS:
		a->regs.count = FERMATA_MAX_RESULTS;
		length = sizeof(struct fermata_reg) * FERMATA_MAX_RESULTS;
		break;
	case FERMATA_IOC_HISTOGRAM:
		a->histogram.buckets = FERMATA_HISTOGRAM_BUCKETS;
		length = 8 * FERMATA_HISTOGRAM_BUCKETS;
		break;
	default:
		length = FM_PAGE;
	}
	*pointer = (uintptr_t)buffer + BUFFER - length;
}

/*
 * In a process of its own, in the cgroup: every call in many threads, with the last page of what it
 * copies missing. Says so when all are under way, or have returned.
 */
static void block_in_calls(struct fm_child *ch)
{
	static struct caller callers[FM_CALLS][THREADS];
	int uffd, fds[FM_STAGES], waiting = 0, i, j;
	bool in, out;
	u64 *pointer;
	u8 *buffer;

	fm_enter_path(CGROUP);
	uffd = fm_uffd_open();
	fm_stages_make(fds);
	buffer = fm_map(NULL, BUFFER, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	/* First, so that no huge page covers it. */
	fm_uffd_missing(uffd, buffer + BUFFER - FM_PAGE);
	memset(buffer, 0, BUFFER - FM_PAGE);
	fm_say(ch, 1);
	fm_hear(ch);
	for (i = 0; i < FM_CALLS; i++) {
		for (j = 0; j < THREADS; j++) {
			struct caller *c = &callers[i][j];

			c->cmd = fm_calls[i].cmd;
			/* Also of a context on which the call must fail. */
			c->fd = fds[j % 2 ? FM_FRESH : fm_calls[i].stage];
			fm_call_fill(&fm_calls[i], &c->arg);
			pointer = fm_call_pointer(c->cmd, &c->arg, &in, &out);
			if (!pointer)
				break;
			enlarge(c->cmd, &c->arg, pointer, buffer);
			if (pthread_create(&c->thread, NULL, make_call, c))
				fm_die("pthread_create: %s", strerror(errno));
			waiting++;
		}
	}
	while ((waiting -= fm_uffd_blocked(uffd)) > __atomic_load_n(&returned, __ATOMIC_RELAXED))
		fm_sleep_us(1000);
	fm_say(ch, 2);
	fm_hear(ch);
	_exit(0);
}

FM_TEST(memcg, defect_06_limit_holds_for_every_call)
{
	const char *why = make_cgroup();
	int64_t before, gone, charged;
	struct fm_child ch;
	int uffd = fm_uffd_open();

	if (why || uffd < 0)
		SKIP(return, "%s", why ? why : "this kernel has no userfaultfd");
	close(uffd);
	fm_fork(&ch);
	if (!ch.pid)
		block_in_calls(&ch);
	fm_hear(&ch);
	charged = -fm_cgroup_get(CGROUP, "memory.current", "");
	before = free_bytes();
	fm_say(&ch, 1);
	fm_hear(&ch);
	charged += fm_cgroup_get(CGROUP, "memory.current", "");
	gone = before - free_bytes();
	TH_LOG("%lld KiB gone, %lld KiB charged", (long long)gone >> 10, (long long)charged >> 10);
	EXPECT_GT(charged + SLACK, gone);
	EXPECT_EQ(0, fm_cgroup_get(CGROUP, "memory.events", "oom_kill"));
	fm_say(&ch, 1);
	EXPECT_EQ(0, fm_reap(&ch));
}

/* --- point 17 ------------------------------------------------------------------------ */

/* A process that has some memory, and does nothing. */
static void be_a_mate(struct fm_child *ch)
{
	size_t len = 8 << 20;

	fm_enter_path(CGROUP);
	memset(fm_map(NULL, len, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, len);
	fm_say(ch, 1);
	fm_hear(ch);
	_exit(0);
}

static int arena(int fd, u64 length)
{
	struct fermata_arena_create arena = { .size = sizeof(arena), .length = length };

	return fm_ioctl(fd, FERMATA_IOC_ARENA_CREATE, &arena);
}

static int set_up(void)
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
		.afu_id_hi = fm_afu[FM_LIST][1]
	};
	int fd = fm_open_dev(0);

	fm_must(fd, FERMATA_IOC_SETUP, &setup, "SETUP");
	return fd;
}

/* More than the limit at once, where an IOMMU makes one arena of it; then in pieces. */
static void ask_for_too_much(void)
{
	int i, rc = 0;

	fm_enter_path(CGROUP);
	if (fm_translated() && arena(set_up(), 2 * LIMIT) != -ENOMEM)
		_exit(1);
	for (i = 0; !rc && i < 2 * LIMIT / (4 << 20); i++)
		rc = arena(set_up(), 4 << 20);
	_exit(rc == -ENOMEM ? 0 : 2);
}

FM_TEST(memcg, defect_17_nobody_is_killed_in_the_cgroup)
{
	struct fm_child mates[MATES], ch;
	const char *why = make_cgroup();
	int i;

	if (why)
		SKIP(return, "%s", why);
	for (i = 0; i < MATES; i++) {
		fm_fork(&mates[i]);
		if (!mates[i].pid)
			be_a_mate(&mates[i]);
		fm_hear(&mates[i]);
	}
	fm_fork(&ch);
	if (!ch.pid)
		ask_for_too_much();
	EXPECT_EQ(0, fm_reap(&ch));
	EXPECT_EQ(0, fm_cgroup_get(CGROUP, "memory.events", "oom_kill"));
	for (i = 0; i < MATES; i++) {
		fm_say(&mates[i], 1);
		EXPECT_EQ(0, fm_reap(&mates[i]));
	}
}

FM_TEST(memcg, defect_17_nobody_is_killed_in_the_machine)
{
	u64 total = fm_number_in("/proc/meminfo", "MemTotal:") * 1024 & -(4ULL << 20);
	u64 killed = fm_number_in("/proc/vmstat", "oom_kill");
	struct fermata_card_info info;
	struct fm_expect e;
	struct fm_ctx c;

	fm_card_info(&info);
	if (total > info.max_arena)
		SKIP(return, "an arena cannot be as large as the machine's memory");
	EXPECT_EQ(-ENOMEM, arena(set_up(), total));
	EXPECT_EQ(killed, fm_number_in("/proc/vmstat", "oom_kill"));
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	fm_job_list(&c, 100, 1000, 5, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
}

/* What no memory cgroup is charged for is bounded, for each user and each group. */
FM_TEST(memcg, defect_17_contiguous_memory_is_bounded)
{
	struct fm_child ch;
	int fds[3];

	if (fm_translated())
		SKIP(return, "behind an IOMMU all memory is charged");
	if (!fm_module_known())
		SKIP(return, "FERMATA_MODULE does not name the module");
	fm_module_reload("max_contiguous_mib=16");
	fds[0] = set_up();
	fds[1] = set_up();
	fds[2] = set_up();
	EXPECT_EQ(-ENOMEM, arena(fds[0], 20 << 20));
	EXPECT_EQ(0, arena(fds[0], 8 << 20));
	EXPECT_EQ(0, arena(fds[1], 8 << 20));
	EXPECT_EQ(-ENOMEM, arena(fds[2], 8 << 20));
	/* Another group has a bound of its own, but the user is the same. */
	fm_fork(&ch);
	if (!ch.pid) {
		if (fm_has_cgroups())
			fm_enter(0);
		_exit(arena(set_up(), 8 << 20) == -ENOMEM ? 0 : 1);
	}
	EXPECT_EQ(0, fm_reap(&ch));
	/* Pieces that the kernel can charge do not count. */
	EXPECT_EQ(0, arena(fds[2], 4 << 20));
	/* What is gone counts no more. */
	close(fds[0]);
	fds[0] = set_up();
	EXPECT_EQ(0, arena(fds[0], 8 << 20));
	close(fds[0]);
	close(fds[1]);
	close(fds[2]);
	fm_module_reload(getenv("FERMATA_MODULE_ARGS"));
}

TEST_HARNESS_MAIN
