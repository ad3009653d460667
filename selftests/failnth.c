// SPDX-License-Identifier: GPL-2.0
/*
 * Every allocation and every copy of every call fails once, one after the other
 * (the kernel's fail-nth): the call reports the failure, leaves nothing behind,
 * and the context still works. Only on a kernel that injects faults.
 */
#include "kselftest_harness.h"
#include <glob.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include "lib/sched.h"

#define FAIL_NTH	"/proc/self/fail-nth"
#define DEBUG		"/sys/kernel/debug"
/* Upper limit of the points at which a call can fail. */
#define POINTS_MAX	3000
/* More points than any call has. */
#define FAR		1000000
/* The module's own initialization has about thirty; the kernel's steps around it count, too. */
#define OWN_POINTS	60

FM_FIXTURE_CARD(failnth);

/* --- one fault ------------------------------------------------------------ */

static int control = -1;

/* With their default values, these settings would skip most allocations. */
static const char *make_all_fail(void)
{
	control = open(FAIL_NTH, O_RDWR | O_CLOEXEC);
	if (control < 0)
		return "this kernel injects no faults";
	if (fm_put(DEBUG "/failslab/ignore-gfp-wait", "N") ||
	    fm_put(DEBUG "/failslab/cache-filter", "N") ||
	    fm_put(DEBUG "/fail_page_alloc/ignore-gfp-wait", "N") ||
	    fm_put(DEBUG "/fail_page_alloc/ignore-gfp-highmem", "N") ||
	    fm_put(DEBUG "/fail_page_alloc/min-order", "0"))
		return "faults cannot be set up";
	return NULL;
}

/*
 * Until make_all_fail(), only allocations by kmalloc(), or none, count as points.
 * Returns NULL, or what cannot be set up.
 */
static const char *make_only_fail(bool kmalloc)
{
	glob_t caches;
	size_t i;
	int rc = 0;

	if (glob("/sys/kernel/slab/kmalloc-*/failslab", 0, NULL, &caches))
		return "no cache of kmalloc() can be chosen";
	for (i = 0; i < caches.gl_pathc && !rc; i++)
		rc = fm_put(caches.gl_pathv[i], kmalloc ? "1" : "0");
	globfree(&caches);
	if (rc || fm_put(DEBUG "/failslab/cache-filter", "Y") || fm_put(DEBUG "/fail_page_alloc/min-order", "20"))
		return "faults cannot be set up";
	return NULL;
}

static void arm(unsigned int nth)
{
	char text[16];
	int n = snprintf(text, sizeof(text), "%u", nth);

	/* Switching it off involves a copy, which can fail, too. */
	while (pwrite(control, text, n, 0) != n)
		if (errno != EFAULT)
			fm_die("%s: %s", FAIL_NTH, strerror(errno));
}

/* Ends fault injection; returns whether the fault occurred. */
static bool disarm(void)
{
	char text[16] = "";
	bool came = pread(control, text, sizeof(text) - 1, 0) > 0 && atoi(text) == 0;

	arm(0);
	if (came)
		fm_tally("injected faults", 1);
	return came;
}

/* --- the state before a call ------------------------------------------------ */

struct scene {
	struct fm_ctx c;
	struct fm_expect e;
	u32 number;
	struct fermata_reg regs[2];
	u64 counts[2];
	u64 snapshot;	/* bytes that are read of it */
	u8 buffer[2 * FM_PAGE];
	void *own;	/* a page of the program */
	int efd;
	int cgroup;
	int histograms;	/* the card's file */
	int lender;	/* a context with an arena that others can share */
	void *mapped;
};

enum stage {
	NOTHING,
	FRESH,		/* a card that was just bound, and an open file */
	OPEN,		/* an open file */
	SET_UP,		/* with an engine */
	ARENA,		/* and an arena that is not mapped */
	OWN,		/* with an engine, and memory of the program as the arena */
	READY,		/* a job can be started */
	ENDED,		/* one has run */
	RUNNING,	/* one runs, for long */
	HELD		/* one is held, half done */
};

#define LENGTH	(4 * FM_PAGE)
#define STEPS	100

static void set_up(struct scene *s, enum stage stage)
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
		.afu_id_hi = fm_afu[FM_LIST][1]
	};
	struct fermata_arena_create create = { .size = sizeof(create), .length = LENGTH };

	if (stage == OWN) {
		create.flags = FERMATA_ARENA_USER;
		create.length = FM_PAGE;
		create.user_addr = (uintptr_t)s->own;
	}
	fm_must(s->c.fd, FERMATA_IOC_SETUP, &setup, "SETUP");
	if (stage != SET_UP) {
		fm_must(s->c.fd, FERMATA_IOC_ARENA_CREATE, &create, "ARENA_CREATE");
		s->c.off = create.mmap_offset;
	}
}

static int lender(void)
{
	static struct fm_ctx c = { .fd = -1 };

	if (c.fd < 0)
		fm_ctx_new(&c, FM_LIST, LENGTH);
	return c.fd;
}

static void prepare(struct scene *s, enum stage stage)
{
	static const u32 offsets[] = { 0x38 };
	struct fermata_status st;

	memset(s, 0, sizeof(*s));
	s->c.fd = -1;
	s->efd = eventfd(0, EFD_CLOEXEC);
	s->cgroup = fm_cgroup_open("");
	s->own = mmap(NULL, FM_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	s->regs[0].offset = 0x38;
	s->regs[1].offset = 0x40;
	if (stage == FRESH && (fm_unbind() || fm_bind()))
		fm_die("the card cannot be bound anew");
	if (stage >= FRESH && stage < READY)
		s->c.fd = fm_open_dev(0);
	if (stage >= SET_UP && stage < READY)
		set_up(s, stage);
	if (stage == SET_UP)
		s->lender = lender();
	if (stage < READY)
		return;
	s->histograms = open(fm_sysfs_path(-1, "histograms"), O_RDONLY | O_CLOEXEC);
	fm_ctx_new(&s->c, FM_LIST, LENGTH);
	s->number = fm_number(s->c.fd);
	fm_status(s->c.fd, &st);
	s->snapshot = st.snapshot_length < sizeof(s->buffer) ? st.snapshot_length : sizeof(s->buffer);
	if (fm_results(s->c.fd, offsets, 1))
		fm_die("RESULTS");
	if (stage >= RUNNING) {
		card_speed(s->c.slot, 1);
		fm_job_endless(&s->c);
		fm_must_start(&s->c);
		card_until_runs(s->c.slot, s->c.token);
	} else {
		fm_job_list(&s->c, 16, STEPS, 7, &s->e);
	}
	if (stage == ENDED) {
		fm_must_start(&s->c);
		fm_wait(s->c.fd, FERMATA_EVENT_DONE);
	}
	if (stage == HELD)
		fm_hold(&s->c);
}

/* Ends the job, and runs another one: NULL, or what is wrong with it. */
static const char *still_works(struct scene *s, enum stage stage)
{
	if (stage < READY)
		return NULL;
	if (fm_state(s->c.fd) == FERMATA_STATE_HELD)
		fm_resume(s->c.fd);
	if (stage >= RUNNING)
		fm_end_endless(&s->c);
	else if (fm_state(s->c.fd) != FERMATA_STATE_IDLE)
		fm_wait(s->c.fd, FERMATA_EVENT_DONE);
	card_speed(s->c.slot, 0);
	fm_job_list(&s->c, 16, STEPS, 8, &s->e);
	return fm_job_run(&s->c, &s->e);
}

static void end(struct scene *s, enum stage stage)
{
	close(s->efd);
	close(s->cgroup);
	munmap(s->own, FM_PAGE);
	if (s->mapped)
		munmap(s->mapped, LENGTH);
	if (stage >= READY) {
		close(s->histograms);
		fm_ctx_close(&s->c);
	} else if (s->c.fd >= 0) {
		close(s->c.fd);
	}
}

/* --- the walk --------------------------------------------------------------- */

/* 0 or a negative errno. */
typedef int (*call_fn)(struct scene *s);

/*
 * Makes the call with a fault at the first point, then at the second, until no point is left.
 * Repeated without a fault the call works; or it returns done because it has taken effect, if only
 * its answer could not be written. Returns the number of faults in spite of which the call
 * succeeded.
 */
static unsigned int walk_points(struct __test_metadata *_metadata, enum stage stage, call_fn call,
				int done)
{
	unsigned int nth, failed = 0;
	bool came = true;
	int rc, again;
	struct scene s;

	for (nth = 1; came && nth < POINTS_MAX; nth++) {
		prepare(&s, stage);
		arm(nth);
		rc = call(&s);
		came = disarm();
		again = rc && came ? call(&s) : rc;
		if (rc)
			TH_LOG("point %u: %s, again: %s", nth, strerror(-rc), strerror(-again));
		if (rc)
			ASSERT_TRUE(came && (rc == -ENOMEM || rc == -EFAULT));
		if (again)
			ASSERT_TRUE(rc == -EFAULT && again == done);
		failed += !!rc;
		ASSERT_GOOD(still_works(&s, stage));
		end(&s, stage);
	}
	ASSERT_FALSE(came);
	TH_LOG("%u points, %u of them failed the call", nth - 2, failed);
	return nth - 2 - failed;
}

/*
 * If a call succeeds in spite of a fault, the fault may be in something that the kernel does not
 * need each time, like a new slab. Later points then have other numbers, and are skipped. Copies
 * occur every time, and are walked through once more, alone.
 */
static void walk(struct __test_metadata *_metadata, enum stage stage, call_fn call, int done)
{
	if (!walk_points(_metadata, stage, call, done))
		return;
	ASSERT_GOOD(make_only_fail(false));
	walk_points(_metadata, stage, call, done);
}

#define WALK(name, stage, call, done)						\
TEST_F_TIMEOUT(failnth, name, 300)						\
{										\
	const char *why = make_all_fail();					\
										\
	if (!why && !fm_foreign_memory())					\
		why = "FERMATA_MODULE does not name the module";		\
	if (why)								\
		SKIP(return, "%s", why);					\
	walk(_metadata, stage, call, done);					\
}

/* --- the calls ------------------------------------------------------------- */

/* A test of the call with this number and argument, which is a byte larger than the driver's. */
#define WALK_IOCTL(name, stage, number, done, type, ...)			\
static int call_##name(struct scene *s)						\
{										\
	struct {								\
		struct fermata_##type arg;					\
		u8 tail;							\
	} larger = { .arg = { .size = sizeof(larger.arg) + 1, ##__VA_ARGS__ } };	\
										\
	return fm_ioctl(s->c.fd, FERMATA_IOC_##number, &larger);		\
}										\
WALK(name, stage, call_##name, done)

WALK_IOCTL(card_info, OPEN, CARD_INFO, 0, card_info)
WALK_IOCTL(slot_info, OPEN, SLOT_INFO, 0, slot_info)
WALK_IOCTL(set_up, OPEN, SETUP, -EEXIST, setup, .afu_id_lo = fm_afu[FM_LIST][0],
	   .afu_id_hi = fm_afu[FM_LIST][1])
/* Room for contexts is made with the first one. */
WALK_IOCTL(set_up_the_first, FRESH, SETUP, -EEXIST, setup, .afu_id_lo = fm_afu[FM_LIST][0],
	   .afu_id_hi = fm_afu[FM_LIST][1])
WALK_IOCTL(arena_create, SET_UP, ARENA_CREATE, -EEXIST, arena_create, .length = LENGTH)
WALK_IOCTL(arena_create_of_own_memory, SET_UP, ARENA_CREATE, -EEXIST, arena_create,
	   .flags = FERMATA_ARENA_USER, .length = FM_PAGE, .user_addr = (uintptr_t)s->own)
WALK_IOCTL(arena_create_of_a_process, SET_UP, ARENA_CREATE, -EEXIST, arena_create,
	   .flags = FERMATA_ARENA_USER, .length = FM_PAGE, .user_addr = (uintptr_t)s->own, .pid = getpid())
WALK_IOCTL(arena_create_of_another_context, SET_UP, ARENA_CREATE, -EEXIST, arena_create,
	   .flags = FERMATA_ARENA_SHARED, .length = FM_PAGE, .fd = s->lender)
WALK_IOCTL(snapshot_create, SET_UP, SNAPSHOT_CREATE, -EEXIST, snapshot_create)
WALK_IOCTL(snapshot_create_of_own_memory, SET_UP, SNAPSHOT_CREATE, -EEXIST, snapshot_create,
	   .flags = FERMATA_SNAPSHOT_USER, .length = FM_PAGE, .user_addr = (uintptr_t)s->own)
WALK_IOCTL(start, READY, START, -EBUSY, start)
WALK_IOCTL(start_held, READY, START, -EBUSY, start, .flags = FERMATA_START_HELD)
WALK_IOCTL(status, READY, STATUS, 0, status)
WALK_IOCTL(context_info, READY, CONTEXT_INFO, 0, context_info)
WALK_IOCTL(hint, READY, HINT, 0, hint, .at = fm_now() + 9000 * FM_MS)
WALK_IOCTL(doorbell, HELD, DOORBELL, 0, doorbell)
WALK_IOCTL(eventfd, READY, EVENTFD, 0, eventfd, .events = FERMATA_EVENT_DONE, .fd = s->efd)
WALK_IOCTL(param_get, READY, PARAM, 0, param, .param = FERMATA_PARAM_TIMESLICE)
WALK_IOCTL(param_set, READY, PARAM, 0, param, .flags = FERMATA_SET,
	   .param = FERMATA_PARAM_TIMESLICE,
	   .value = FM_MS)
WALK_IOCTL(param_set_of_slots, READY, PARAM, 0, param, .flags = FERMATA_SET,
	   .param = FERMATA_PARAM_SLOT_MASK,
	   .value = 1U << s->c.slot)
WALK_IOCTL(reserve, READY, RESERVE, 0, reserve, .flags = FERMATA_SET, .budget_ns = FM_MS, .deadline_ns = 10 * FM_MS,
	   .period_ns = 10 * FM_MS)
WALK_IOCTL(reserve_get, READY, RESERVE, 0, reserve)
WALK_IOCTL(histogram, READY, HISTOGRAM, 0, histogram, .kind = FERMATA_HISTOGRAM_WAIT,
	   .buckets = 2, .counts = (uintptr_t)s->counts)
WALK_IOCTL(param_set_of_another, READY, PARAM, 0, param, .flags = FERMATA_SET,
	   .context = s->number, .param = FERMATA_PARAM_ENABLED, .value = 1)
WALK_IOCTL(group, READY, GROUP, 0, group)
WALK_IOCTL(group_set, READY, GROUP_SET, 0, group_set, .flags = FERMATA_GROUP_EXCLUSIVE,
	   .cgroup = s->cgroup, .slot_mask = 1U << s->c.slot)
WALK_IOCTL(gang, READY, GANG, 0, gang)
WALK_IOCTL(wait, ENDED, WAIT, 0, wait, .events = FERMATA_EVENT_DONE, .deadline = UINT64_MAX)
WALK_IOCTL(regs_write, READY, REGS_WRITE, 0, regs, .count = 2, .regs = (uintptr_t)s->regs)
WALK_IOCTL(regs_write_of_a_running_job, RUNNING, REGS_WRITE, 0, regs, .count = 2,
	   .regs = (uintptr_t)s->regs)
WALK_IOCTL(regs_read, ENDED, REGS_READ, 0, regs, .count = 1, .regs = (uintptr_t)s->regs)
WALK_IOCTL(regs_read_of_a_running_job, RUNNING, REGS_READ, 0, regs, .count = 2,
	   .regs = (uintptr_t)s->regs)
WALK_IOCTL(results, READY, RESULTS, 0, regs, .count = 2, .regs = (uintptr_t)s->regs)
WALK_IOCTL(snapshot_read, HELD, SNAPSHOT_READ, 0, snapshot_read, .length = s->snapshot,
	   .buffer = (uintptr_t)s->buffer)
WALK_IOCTL(snapshot_write, READY, SNAPSHOT_WRITE, 0, snapshot_write, .length = s->snapshot,
	   .buffer = (uintptr_t)s->buffer)
WALK_IOCTL(regs_list, READY, REGS_LIST, 0, regs, .count = 2, .regs = (uintptr_t)s->regs)
WALK_IOCTL(config, READY, CONFIG, 0, config, .fd = -1)
WALK_IOCTL(config_of_own_memory, OWN, CONFIG, 0, config, .fd = -1, .pid = getpid())
WALK_IOCTL(outcome, HELD, OUTCOME, 0, outcome, .state = FERMATA_STATE_HELD, .count = 1,
	   .regs = (uintptr_t)s->regs)
WALK_IOCTL(preempt, RUNNING, PREEMPT, 0, preempt)

static int begin_and_end_hold(struct scene *s)
{
	int hold = fm_hold_fd(s->c.fd);

	return hold < 0 ? hold : close(hold);
}

WALK(hold, RUNNING, begin_and_end_hold, 0)

WALK_IOCTL(resume, HELD, RESUME, -EBUSY, resume)

static int open_node(struct scene *s)
{
	s->c.fd = fm_open_dev(0);
	return s->c.fd < 0 ? s->c.fd : 0;
}

WALK(open, NOTHING, open_node, 0)

/* Maps the arena far from other mappings, so that page tables are missing, too. */
static int map(struct scene *s)
{
	void *there = (void *)0x123400000000;
	void *at = mmap(there, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, s->c.fd, s->c.off);

	if (at == MAP_FAILED)
		return -errno;
	s->mapped = at;
	/* The page fault may fail for lack of memory; the access is then repeated. */
	*(volatile u8 *)at = 1;
	return 0;
}

WALK(map, ARENA, map, 0)

static int poll_done(struct scene *s)
{
	struct pollfd p = { .fd = s->c.fd, .events = POLLIN };

	return poll(&p, 1, 0) < 0 ? -errno : 0;
}

WALK(poll, ENDED, poll_done, 0)

static int read_histograms(struct scene *s)
{
	return pread(s->histograms, s->buffer, FM_PAGE, 0) < 0 ? -errno : 0;
}

WALK(read_histograms, ENDED, read_histograms, 0)

/* Closing cannot fail, but its allocations can. */
static int close_node(struct scene *s)
{
	int rc = close(s->c.fd) ? -errno : 0;

	s->c.fd = fm_open_dev(0);
	return rc;
}

WALK(close, ARENA, close_node, 0)

/* --- probe and removal ----------------------------------------------------------- */

static int tell_driver(int fd)
{
	return pwrite(fd, fm_pci(), strlen(fm_pci()), 0) < 0 ? -errno : 0;
}

static int driver_file(const char *name)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/sys/bus/pci/drivers/fermata/%s", name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		fm_die("%s: %s", path, strerror(errno));
	return fd;
}

static void any_job(struct __test_metadata *_metadata)
{
	struct scene s;

	prepare(&s, READY);
	ASSERT_GOOD(still_works(&s, READY));
	end(&s, READY);
}

/*
 * Errors of the kernel without memory: for a resource it reports that the resource is taken; for
 * vectors of one kind it tries the other kind, and reports that the card has none; for a driver's
 * folder it returns EINVAL.
 */
static bool is_of_kernel(int rc)
{
	return rc == -ENOMEM || rc == -EFAULT || rc == -EBUSY || rc == -ENOSPC || rc == -EINVAL;
}

/* Walks through probe or removal, by all points or kmalloc()'s: the card works after each fault. */
static void walk_driver(struct __test_metadata *_metadata, bool bind, bool only_kmalloc)
{
	const char *why = make_all_fail();
	unsigned int nth, failed = 0;
	bool came = true;
	int fd, rc;

	if (why)
		SKIP(return, "%s", why);
	if (only_kmalloc)
		ASSERT_GOOD(make_only_fail(true));
	ASSERT_NE(NULL, fm_pci());
	fd = driver_file(bind ? "bind" : "unbind");
	for (nth = 1; came && nth < POINTS_MAX; nth++) {
		if (bind)
			ASSERT_EQ(0, fm_unbind());
		arm(nth);
		rc = tell_driver(fd);
		came = disarm();
		if (rc)
			TH_LOG("point %u: %s", nth, strerror(-rc));
		failed += !!rc;
		/* Complete what failed. */
		if (!bind && rc)
			ASSERT_EQ(0, fm_unbind());
		if (!bind || rc)
			ASSERT_EQ(0, fm_bind());
		any_job(_metadata);
		if (rc)
			ASSERT_TRUE(came && is_of_kernel(rc));
	}
	close(fd);
	ASSERT_FALSE(came);
	TH_LOG("%u points, %u of them failed the call", nth - 2, failed);
}

TEST_F_TIMEOUT(failnth, probe, 2400)
{
	walk_driver(_metadata, true, false);
}

/*
 * Files in /proc and /sys and the kernel's trees need new nodes only in some probes, so that points
 * get other numbers, and the walk skips some. The points of kmalloc() alone keep their numbers.
 */
TEST_F_TIMEOUT(failnth, probe_by_kmalloc, 2400)
{
	walk_driver(_metadata, true, true);
}

TEST_F_TIMEOUT(failnth, removal, 600)
{
	walk_driver(_metadata, false, false);
}

static void probe_by_itself(bool on)
{
	int rc = fm_put("/sys/bus/pci/drivers_autoprobe", on ? "1" : "0");

	if (rc)
		fm_die("drivers_autoprobe: %s", strerror(-rc));
}

/* Loads the module with a fault at point nth, and unloads it. Was the point reached? */
static bool load_and_unload(struct __test_metadata *_metadata, int fd, unsigned int nth,
			    unsigned int *failed)
{
	bool came;
	int rc;

	arm(nth);
	rc = syscall(SYS_finit_module, fd, "", 0) ? -errno : 0;
	came = disarm();
	if (rc && !(came && is_of_kernel(rc))) {
		TH_LOG("point %u: %s", nth, strerror(-rc));
		ASSERT_EQ(0, rc);
	}
	*failed += !!rc;
	if (!rc)
		ASSERT_EQ(0, fm_module_remove());
	return came;
}

/* How many points there are in a load. */
static unsigned int points_of_load(struct __test_metadata *_metadata, int fd)
{
	char text[16] = "";
	int left;

	arm(FAR);
	ASSERT_EQ(0, syscall(SYS_finit_module, fd, "", 0));
	ASSERT_LT(0, pread(control, text, sizeof(text) - 1, 0));
	arm(0);
	ASSERT_EQ(0, fm_module_remove());
	left = atoi(text);
	ASSERT_LT(0, left);
	ASSERT_GT(FAR, left);
	return FAR - left;
}

/*
 * The module is loaded without a card. The walk is through its own initialization, which has the
 * last points, and is repeated, because objects that a load leaves in caches save the next load
 * some allocations. The kernel's steps before have hundreds of points, and the kernel itself warns
 * if it cannot register tracepoints (event_define_fields()).
 */
TEST_F_TIMEOUT(failnth, load, 2400)
{
	const char *why = make_all_fail(), *file = getenv("FERMATA_MODULE");
	unsigned int from = 0, nth, walks, failed = 0;
	int fd;

	if (why || !file || !*file)
		SKIP(return, "%s", why ? why : "FERMATA_MODULE does not name the module");
	ASSERT_NE(NULL, fm_pci());
	fd = open(file, O_RDONLY | O_CLOEXEC);
	ASSERT_LE(0, fd);
	ASSERT_EQ(0, fm_module_remove());
	probe_by_itself(false);
	for (walks = 0; walks < 2; walks++) {
		nth = points_of_load(_metadata, fd);
		ASSERT_LT(OWN_POINTS, nth);
		nth -= OWN_POINTS;
		from = nth;
		while (load_and_unload(_metadata, fd, nth, &failed) && nth < from + POINTS_MAX)
			nth++;
		EXPECT_GT(from + POINTS_MAX, nth);
		EXPECT_LT(from + 1, nth);
	}
	probe_by_itself(true);
	EXPECT_EQ(0, syscall(SYS_finit_module, fd, "", 0));
	any_job(_metadata);
	TH_LOG("points %u to %u, %u times the load failed", from, nth - 1, failed);
	close(fd);
}

TEST_HARNESS_MAIN
