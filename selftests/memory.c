// SPDX-License-Identifier: GPL-2.0
/*
 * The memory that contexts use, measured by the kernel's free pages. On a kernel that keeps freed
 * memory to check it (KASAN), kmemleak reports leaks instead.
 */
#include "kselftest_harness.h"
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include "lib/mem.h"
#include "lib/sched.h"
#include "lib/calls.h"

#define CONTEXTS	1000
#define SLACK		(2LL << 20)	/* other changes in a machine */

FM_FIXTURE_ANY(memory);

/* The free pages in processors' lists, tens of MiB, which are not in MemFree. */
static u64 pages_at_hand(void)
{
	FILE *zones = fopen("/proc/zoneinfo", "r");
	unsigned long long pages;
	bool any = false;
	char line[256];
	u64 sum = 0;

	while (zones && fgets(line, sizeof(line), zones)) {
		if (sscanf(line, " count: %llu", &pages) == 1) {
			sum += pages;
			any = true;
		}
	}
	if (zones)
		fclose(zones);
	if (!any)
		fm_die("/proc/zoneinfo tells no count");
	return sum;
}

/* Free bytes. */
static u64 free_now(void)
{
	int rc = fm_put("/proc/sys/vm/drop_caches", "3");

	if (rc)
		fm_die("drop_caches: %s", strerror(-rc));
	return fm_number_in("/proc/meminfo", "MemFree:") * 1024 + pages_at_hand() * FM_PAGE;
}

/* Free bytes after pending frees are done: RCU first handles bulk frees after 5 seconds. */
static u64 free_at_rest(void)
{
	u64 most = free_now(), now;
	int quiet = 0;

	while (quiet < 70) {
		fm_sleep_us(100000);
		now = free_now();
		quiet = now > most + 64 * 1024 ? 0 : quiet + 1;
		most = now > most ? now : most;
	}
	return most;
}

/* How much less than before is free, once nothing is missing or no more is freed. */
static int64_t gone_since(u64 before)
{
	u64 end = fm_now() + 20000 * FM_MS;
	int64_t gone;

	do {
		fm_sleep_us(100000);
		gone = before - free_now();
	} while (gone > SLACK && fm_now() < end);
	return gone > 0 ? gone : 0;
}

static const char *cannot_measure(void)
{
	if (!access("/sys/kernel/debug/kmemleak", F_OK))
		return "this kernel keeps freed memory";
	if (geteuid())
		return "not root";
	return NULL;
}

static int set_up(void)
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
		.afu_id_hi = fm_afu[FM_LIST][1]
	};
	int fd = fm_open_dev(0);

	if (fd < 0)
		fm_die("open: %s", strerror(-fd));
	fm_must(fd, FERMATA_IOC_SETUP, &setup, "SETUP");
	return fd;
}

/* Makes the arena and the snapshot buffer of a context; returns their size in bytes. */
static u64 give_memory(int fd)
{
	struct fermata_arena_create arena = { .size = sizeof(arena), .length = FM_PAGE };
	struct fermata_snapshot_create snap = { .size = sizeof(snap) };

	fm_must(fd, FERMATA_IOC_ARENA_CREATE, &arena, "ARENA_CREATE");
	fm_must(fd, FERMATA_IOC_SNAPSHOT_CREATE, &snap, "SNAPSHOT_CREATE");
	return arena.length + snap.length;
}

static void run_one(u64 seed)
{
	struct fm_expect e;
	struct fm_ctx c;
	const char *wrong;

	fm_ctx_new(&c, FM_LIST, 2 * FM_PAGE);
	fm_job_list(&c, 16, 100, seed, &e);
	wrong = fm_job_run(&c, &e);
	if (wrong)
		fm_die("job %llu: %s", (unsigned long long)seed, wrong);
	fm_ctx_close(&c);
}

/* Opens and closes n contexts, one after the other, some with a job. */
static void cycle(u32 n)
{
	u32 i;
	int fd;

	for (i = 0; i < n; i++) {
		if (i % 20 == 0) {
			run_one(i);
			continue;
		}
		fd = set_up();
		give_memory(fd);
		close(fd);
	}
}

TEST_F_TIMEOUT(memory, per_open_context, 600)
{
	const char *why = cannot_measure();
	struct rlimit files = { CONTEXTS + 64, CONTEXTS + 64 };
	u64 at_first, with_setup, ready, asked = 0;
	int *fds, i;

	if (why)
		SKIP(return, "%s", why);
	ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &files));
	fds = calloc(CONTEXTS, sizeof(*fds));
	cycle(100);
	at_first = free_at_rest();
	for (i = 0; i < CONTEXTS; i++)
		fds[i] = set_up();
	with_setup = free_now();
	for (i = 0; i < CONTEXTS; i++)
		asked += give_memory(fds[i]);
	ready = free_now();
	fm_figure("bytes of a context that is set up", (at_first - with_setup) / CONTEXTS);
	fm_figure("bytes of a context with arena and snapshot, without these",
		  (at_first - ready - asked) / CONTEXTS);
	TH_LOG("set up: %llu bytes each; ready: %llu, and %llu of arena and snapshot",
	       (unsigned long long)(at_first - with_setup) / CONTEXTS,
	       (unsigned long long)(at_first - ready - asked) / CONTEXTS,
	       (unsigned long long)asked / CONTEXTS);
	/* With a page for the histograms and, for a relay, two for registers and results. */
	EXPECT_GT(12288, (at_first - with_setup) / CONTEXTS);
	EXPECT_GT(12288 + (card_relay() ? 2 * FM_PAGE : 0), (at_first - ready - asked) / CONTEXTS);
	for (i = 0; i < CONTEXTS; i++)
		close(fds[i]);
	EXPECT_GE(SLACK, gone_since(at_first));
}

/* The test detects a leak of as little as 210 bytes per context. */
TEST_F_TIMEOUT(memory, point_06_of_many_that_came_and_went, 24 * 3600)
{
	u32 n = fm_number_from("FERMATA_CYCLES", 10000);
	const char *why = cannot_measure();
	int64_t gone;
	u64 before;

	if (why)
		SKIP(return, "%s", why);
	if (card_present())
		card_speed(fm_slot_of(FM_LIST), 0);
	cycle(500);
	before = free_at_rest();
	cycle(n);
	gone = gone_since(before);
	fm_tally("contexts opened and closed", n);
	fm_figure("bytes gone after these contexts were closed", gone);
	TH_LOG("%u contexts: %lld bytes gone", n, (long long)gone);
	EXPECT_GE(SLACK, gone);
}

/*
 * The memory cgroup's limit holds for every call, and memory that does not fit is refused to the
 * caller instead of being taken from a bystander.
 */

#define CGROUP		FM_CGROUP "memory"
#define LIMIT		(64ULL << 20)
#define CGROUP_SLACK		(24LL << 20)	/* other changes in a machine */
#define BUFFER		(16UL << 20)	/* the largest state */
#define THREADS		32	/* for each call */
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

/* Makes the argument as large as the call allows, from or to the buffer. */
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
 * In a separate process, in the cgroup: makes every call in many threads, with the last page of
 * what it copies missing. Tells the parent when all calls are under way, or have returned.
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
			/* Also on a context on which the call must fail. */
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
	fm_foreign_memory();
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
	EXPECT_GT(charged + CGROUP_SLACK, gone);
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

/* Asks for more than the limit at once, if an IOMMU allows such an arena; then in pieces. */
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

/* Takes an eighth of the machine's memory twice, and then a little more: 0 if only that is refused. */
static int take_a_quarter(u64 eighth)
{
	struct rlimit none = { RLIM_INFINITY, RLIM_INFINITY };
	int i;

	if (setrlimit(RLIMIT_MEMLOCK, &none))
		return 1;
	fm_drop_privileges();
	for (i = 0; i < 2; i++)
		if (arena(set_up(), eighth))
			return 2;
	return arena(set_up(), 1 << 20) == -ENOMEM ? 0 : 3;
}

FM_TEST(memcg, a_user_pins_a_quarter_of_the_memory)
{
	u64 eighth = (fm_number_in("/proc/meminfo", "MemTotal:") * 1024 / 8) & -FM_PAGE;
	struct fermata_card_info info;
	struct fm_child ch;

	fm_card_info(&info);
	if (!fm_translated() || eighth > info.max_arena)
		SKIP(return, "no IOMMU, or an arena cannot be as large as an eighth of the machine's memory");
	ASSERT_EQ(0, chmod(fm_dev(), 0666));
	fm_fork(&ch);
	if (!ch.pid)
		_exit(take_a_quarter(eighth));
	EXPECT_EQ(0, WEXITSTATUS(fm_reap(&ch)));
	ASSERT_EQ(0, chmod(fm_dev(), 0600));
}

/* Memory that is not charged to a memory cgroup is bounded, for each user and each group. */
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
	/* Another group has its own bound, but the user is the same. */
	fm_fork(&ch);
	if (!ch.pid) {
		if (fm_has_cgroups())
			fm_enter(0);
		_exit(arena(set_up(), 8 << 20) == -ENOMEM ? 0 : 1);
	}
	EXPECT_EQ(0, fm_reap(&ch));
	/* Pieces that the kernel can charge do not count. */
	EXPECT_EQ(0, arena(fds[2], 4 << 20));
	/* Freed memory does not count. */
	close(fds[0]);
	fds[0] = set_up();
	EXPECT_EQ(0, arena(fds[0], 8 << 20));
	close(fds[0]);
	close(fds[1]);
	close(fds[2]);
	fm_module_reload(getenv("FERMATA_MODULE_ARGS"));
}

TEST_HARNESS_MAIN
