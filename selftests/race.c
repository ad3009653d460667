// SPDX-License-Identifier: GPL-2.0
/*
 * Threads race every call against close(), dup() and the passing of descriptors, while signals
 * arrive all the time; the maximum number of contexts; signals in every wait. A neighbour is not
 * affected.
 */
#include "kselftest_harness.h"
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include "lib/calls.h"
#include "lib/sched.h"

FM_FIXTURE_CARD(race);
FM_FIXTURE_CARD(many);
FM_FIXTURE_CARD(signals);

static volatile u32 signals_seen;

static void on_signal(int sig)
{
	signals_seen++;
}

static void handle_signals(int flags)
{
	struct sigaction sa = { .sa_handler = on_signal, .sa_flags = flags };

	signals_seen = 0;
	sigaction(SIGUSR1, &sa, NULL);
}

/* --- every call against every end of a descriptor ------------------------------------ */

#define DESCRIPTORS	8
#define RACERS		4
#define ARENA		(2 * FM_PAGE)
/* All contexts of the race are tenant 0 (no TAG is written), and own no memory, see enforce. */

/*
 * Descriptors that all threads use. The thread that takes a descriptor out closes it. A thread that
 * has read it before may find it closed, or reused for another file, of this table or not.
 */
static int table[DESCRIPTORS];
/* The root, and cgroups within each other, more than registered groups may nest. */
#define NESTED	6
static int pair[2], mem_slot, cgroups[NESTED];

static int look(u64 dice)
{
	return __atomic_load_n(&table[dice % DESCRIPTORS], __ATOMIC_RELAXED);
}

/* Puts a descriptor into the table and closes the previous one there; -1: only closes. */
static void replace(u64 dice, int fd)
{
	fd = __atomic_exchange_n(&table[dice % DESCRIPTORS], fd, __ATOMIC_RELAXED);
	if (fd >= 0)
		close(fd);
}

/* Sends a descriptor over the socket; the first thread to receive puts it into the table. */
static void pass(int fd, u64 dice)
{
	union {
		struct cmsghdr h;
		char space[CMSG_SPACE(sizeof(int))];
	} u = { };
	char byte = 0;
	struct iovec iov = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &u, .msg_controllen = sizeof(u)
	};

	u.h.cmsg_level = SOL_SOCKET;
	u.h.cmsg_type = SCM_RIGHTS;
	u.h.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&u.h), &fd, sizeof(fd));
	if (sendmsg(pair[0], &m, MSG_DONTWAIT) != 1)
		return;
	m.msg_controllen = sizeof(u);
	if (recvmsg(pair[1], &m, MSG_DONTWAIT) != 1 || !CMSG_FIRSTHDR(&m))
		return;
	memcpy(&fd, CMSG_DATA(&u.h), sizeof(fd));
	replace(dice, fd);
}

static int call_mmap(int fd)
{
	void *mem = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (mem == MAP_FAILED)
		return -errno;
	/* The memory exists as long as it is mapped, whatever other threads close. */
	(void)((volatile u8 *)mem)[FM_PAGE];
	munmap(mem, ARENA);
	return 0;
}

/*
 * Writes the registers of a job of some milliseconds over the whole arena. The descriptor is
 * duplicated, so that both calls are for one context: without windows, the engine of another one
 * would go astray.
 */
static int call_regs_write(int number, u64 dice)
{
	struct fermata_status st = { .size = sizeof(st) };
	int fd = dup(number), rc = fm_ioctl(fd, FERMATA_IOC_STATUS, &st);
	struct fermata_reg regs[] = {
		{ .offset = 0x30, .value = st.device_base },
		{ .offset = 0x38, .value = ARENA },
		{ .offset = 0x40, .value = dice % 5000 },
		{ .offset = 0x48, .value = dice },
		{ .offset = 0x58, .value = 6 },
	};

	if (!rc && !st.device_base)
		rc = -EDESTADDRREQ;
	if (!rc)
		rc = fm_regs_write(fd, regs, sizeof(regs) / sizeof(regs[0]));
	if (fd >= 0)
		close(fd);
	return rc;
}

static int call_eventfd(int fd, u64 dice)
{
	struct fermata_eventfd arg = { .size = sizeof(arg), .fd = -1 };
	int rc;

	if (dice & 1) {
		arg.fd = eventfd(0, 0);
		arg.events = FERMATA_EVENT_DONE;
	}
	rc = fm_ioctl(fd, FERMATA_IOC_EVENTFD, &arg);
	if (arg.fd >= 0)
		close(arg.fd);
	return rc;
}

/* The hold ends at once, or a little later. */
static int call_hold(int fd, u64 dice)
{
	int hold = fm_hold_fd(fd);

	if (hold < 0)
		return hold;
	if (dice & 1)
		fm_sleep_us(dice % 1000);
	close(hold);
	return 0;
}

static int call_poll(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN | POLLPRI };

	return poll(&p, 1, 1) < 0 ? -errno : 0;
}

enum call {
	CARD_INFO, SLOT_INFO, SETUP, ARENA_CREATE, SNAPSHOT_CREATE, SNAPSHOT_READ,
	SNAPSHOT_WRITE, REGS_WRITE, REGS_READ, RESULTS, REGS_LIST, START, PREEMPT, HOLD, HOLD_FD, RESUME, STATUS, WAIT, EVENTFD, HINT, PARAM,
	PARAM_TO_SET, RESERVE_TO_SET, RESERVE, CONTEXT_INFO, HISTOGRAM, PREEMPT_OTHER, RESUME_OTHER,
	ENABLE_OTHER, POLICY, GROUP,
	GANG, GROUP_SET, CONFIG, OUTCOME, MMAP, POLL, CALLS
};

static const char * const call_names[CALLS] = {
	"CARD_INFO", "SLOT_INFO", "SETUP", "ARENA_CREATE", "SNAPSHOT_CREATE", "SNAPSHOT_READ",
	"SNAPSHOT_WRITE", "REGS_WRITE", "REGS_READ", "RESULTS", "REGS_LIST", "START", "PREEMPT", "PREEMPT to hold", "HOLD", "RESUME", "STATUS", "WAIT",
	"EVENTFD", "HINT", "PARAM", "PARAM to set", "RESERVE to set", "RESERVE", "CONTEXT_INFO", "HISTOGRAM",
	"PREEMPT of another", "RESUME of another", "PARAM_ENABLED of another", "policy", "GROUP", "GANG", "GROUP_SET", "CONFIG", "OUTCOME", "mmap", "poll"
};

static u8 own[ARENA] __attribute__((aligned(FM_PAGE)));

static int call(enum call call, int fd, u64 dice)
{
	u8 buf[64] = { };
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_MEM][0],
		.afu_id_hi = fm_afu[FM_MEM][1]
	};
	struct fermata_arena_create arena = { .size = sizeof(arena), .length = ARENA };
	struct fermata_snapshot_create snap = { .size = sizeof(snap) };
	struct fermata_snapshot_read read = {
		.size = sizeof(read), .length = sizeof(buf), .buffer = (uintptr_t)buf
	};
	struct fermata_snapshot_write write = {
		.size = sizeof(write), .length = sizeof(buf), .buffer = (uintptr_t)buf
	};
	struct fermata_config config = { .size = sizeof(config) };
	struct fermata_reg result = { .offset = 0x48 };
	struct fermata_outcome outcome = {
		.size = sizeof(outcome), .state = dice & 1 ? FERMATA_STATE_DONE : FERMATA_STATE_HELD,
		.finished = dice & 1, .count = 1, .regs = (uintptr_t)&result
	};
	struct fermata_reg listed[4];
	struct fermata_regs regs = {
		.size = sizeof(regs), .count = 4, .regs = (uintptr_t)listed
	};
	struct fermata_card_info card = { .size = sizeof(card) };
	struct fermata_slot_info slot = { .size = sizeof(slot) };
	struct fermata_hint hint = { .size = sizeof(hint), .at = dice & 1 ? fm_now() + 3 * FM_MS : 0 };
	struct fermata_param param = {
		.size = sizeof(param), .param = FERMATA_PARAM_TIMESLICE,
		.value = 200000 + dice % FM_MS
	};
	struct fermata_reserve reserve = { .size = sizeof(reserve) };
	struct fermata_context_info info = { .size = sizeof(info) };
	u64 counts[4];
	struct fermata_histogram histogram = {
		.size = sizeof(histogram), .kind = FERMATA_HISTOGRAM_WAIT + dice % 3,
		.buckets = 4, .counts = (uintptr_t)counts
	};
	struct fermata_group group = { .size = sizeof(group) };
	struct fermata_group_set group_set = {
		.size = sizeof(group_set), .slot_mask = 1U << mem_slot, .cgroup = cgroups[dice / 8 % NESTED],
		.cap = 50 + dice % 100, .max_priority = dice % 32,
		.flags = dice & 1 ? FERMATA_GROUP_REMOVE :
			 FERMATA_GROUP_EXCLUSIVE | (dice & 2 ? FERMATA_GROUP_CAP : 0) |
			 (dice & 4 ? FERMATA_GROUP_MAX_PRIORITY : 0)
	};
	struct fermata_gang gang = {
		.size = sizeof(gang), .flags = dice & 1 ? FERMATA_GANG_JOIN : dice & 2 ? FERMATA_GANG_LEAVE : 0
	};
	const u32 results[] = { 0x48, 0x60 };
	u64 value;
	int rc;

	switch (call) {
	case CARD_INFO:
		return fm_ioctl(fd, FERMATA_IOC_CARD_INFO, &card);
	case SLOT_INFO:
		return fm_ioctl(fd, FERMATA_IOC_SLOT_INFO, &slot);
	case SETUP:
		return fm_ioctl(fd, FERMATA_IOC_SETUP, &setup);
	case ARENA_CREATE:
		if (dice & 1) {
			arena.flags = FERMATA_ARENA_SHARED;
			arena.fd = look(dice >> 8);
		} else if (dice & 2) {
			arena.flags = FERMATA_ARENA_USER;
			arena.user_addr = (uintptr_t)own;
			arena.pid = dice & 4 ? getpid() : 0;
		}
		return fm_ioctl(fd, FERMATA_IOC_ARENA_CREATE, &arena);
	case SNAPSHOT_CREATE:
		return fm_ioctl(fd, FERMATA_IOC_SNAPSHOT_CREATE, &snap);
	case SNAPSHOT_READ:
		return fm_ioctl(fd, FERMATA_IOC_SNAPSHOT_READ, &read);
	case SNAPSHOT_WRITE:
		return fm_ioctl(fd, FERMATA_IOC_SNAPSHOT_WRITE, &write);
	case REGS_WRITE:
		return call_regs_write(fd, dice);
	case REGS_READ:
		return fm_reg_read(fd, 0x48, &value);
	case RESULTS:
		return fm_results(fd, results, 2);
	case REGS_LIST:
		return fm_ioctl(fd, FERMATA_IOC_REGS_LIST, &regs);
	case START:
		return fm_start_as(fd, dice & 3 ? 0 : FERMATA_START_HELD);
	case PREEMPT:
		return fm_preempt(fd, 0);
	case HOLD:
		return fm_preempt(fd, FERMATA_PREEMPT_HOLD);
	case HOLD_FD:
		return call_hold(fd, dice);
	case RESUME:
		return fm_resume(fd);
	case STATUS: {
		struct fermata_status st = { .size = sizeof(st) };

		return fm_ioctl(fd, FERMATA_IOC_STATUS, &st);
	}
	case WAIT:
		return fm_wait_until(fd, FERMATA_EVENT_DONE, fm_now() + 2 * FM_MS, NULL);
	case EVENTFD:
		return call_eventfd(fd, dice);
	case HINT:
		return fm_ioctl(fd, FERMATA_IOC_HINT, &hint);
	case PARAM_TO_SET:
		param.flags = FERMATA_SET;
		return fm_ioctl(fd, FERMATA_IOC_PARAM, &param);
	case PARAM:
		return fm_ioctl(fd, FERMATA_IOC_PARAM, &param);
	case RESERVE_TO_SET:
		reserve.flags = FERMATA_SET;
		return fm_ioctl(fd, FERMATA_IOC_RESERVE, &reserve);
	case RESERVE:
		return fm_ioctl(fd, FERMATA_IOC_RESERVE, &reserve);
	case CONTEXT_INFO:
		return fm_ioctl(fd, FERMATA_IOC_CONTEXT_INFO, &info);
	case HISTOGRAM:
		return fm_ioctl(fd, FERMATA_IOC_HISTOGRAM, &histogram);
	case PREEMPT_OTHER:
	case RESUME_OTHER:
	case ENABLE_OTHER: {
		struct fermata_status st = { .size = sizeof(st) };

		/* By the time of the call the number may be gone, or another context's. */
		rc = fm_ioctl(look(dice >> 8), FERMATA_IOC_STATUS, &st);
		if (rc)
			return rc;
		if (call == PREEMPT_OTHER)
			return fm_preempt_of(fd, st.context, 0);
		if (call == RESUME_OTHER)
			return fm_resume_of(fd, st.context);
		return fm_param_set_of(fd, st.context, FERMATA_PARAM_ENABLED, 1);
	}
	case POLICY:
		return dice & 2 ? fm_boost_set(dice & 1 ? 10 : 1000) :
			fm_policy_set(dice & 1 ? FERMATA_POLICY_FAIR : FERMATA_POLICY_ROUND_ROBIN);
	case GROUP:
		return fm_ioctl(fd, FERMATA_IOC_GROUP, &group);
	case GANG: {
		struct fermata_status st = { .size = sizeof(st) };

		rc = fm_ioctl(look(dice >> 8), FERMATA_IOC_STATUS, &st);
		gang.context = dice & 1 ? st.context : 0;
		return rc ?: fm_ioctl(fd, FERMATA_IOC_GANG, &gang);
	}
	case GROUP_SET:
		/* All contexts, including the neighbour, are of the innermost cgroup. */
		return fm_ioctl(fd, FERMATA_IOC_GROUP_SET, &group_set);
	case CONFIG:
		config.fd = dice & 1 ? -1 : look(dice >> 8);
		return fm_ioctl(fd, FERMATA_IOC_CONFIG, &config);
	case OUTCOME:
		return fm_ioctl(fd, FERMATA_IOC_OUTCOME, &outcome);
	case MMAP:
		return call_mmap(fd);
	default:
		return call_poll(fd);
	}
}

struct racer {
	pthread_t thread;
	u64 seed;
	u32 rounds;
	u32 closed, duplicated, passed;
	int strange;		/* errno that no call may give here */
	enum call what;
};

/* Is this an errno for a descriptor of another file, or of a call on a context in any state? */
static bool known(int rc)
{
	static const int may[] = {
		0, EBADF, ENOTTY, EINVAL, ENODEV, ESPIPE, EACCES, ENXIO, EEXIST, EBUSY, ENOENT, EAGAIN,
		ENODATA, ETIMEDOUT, EINTR, ESRCH, EDESTADDRREQ, EOPNOTSUPP, EPERM, ENOSPC, ERANGE,
		E2BIG
	};
	size_t i;

	for (i = 0; i < sizeof(may) / sizeof(may[0]); i++)
		if (rc == -may[i])
			return true;
	return false;
}

/* Calls that have succeeded, in any thread. */
static bool succeeded[CALLS];

static bool all_raced(void)
{
	int what;

	for (what = 0; what < CALLS; what++)
		if (!__atomic_load_n(&succeeded[what], __ATOMIC_RELAXED))
			return false;
	return true;
}

/*
 * Races for the requested time and, if time permits, until each call was raced (READ of a snapshot
 * needs a job that is held in time).
 */
static void *race(void *arg)
{
	u64 end = fm_now() + 30000 * FM_MS;
	struct racer *me = arg;
	u32 n;

	for (n = 0; n < me->rounds || (fm_now() < end && !all_raced()); n++) {
		u64 dice = fm_splitmix(me->seed + n), other = fm_splitmix(dice);
		enum call what = dice % CALLS;
		int fd, rc;

		switch (other % 64) {
		case 0:
			replace(dice >> 32, -1);
			me->closed++;
			break;
		case 1:
			fd = dup(look(other >> 32));
			if (fd >= 0)
				me->duplicated++;
			replace(dice >> 32, fd);
			break;
		case 2:
			pass(look(other >> 32), dice >> 32);
			me->passed++;
			break;
		default:
			if (look(dice >> 32) < 0)
				replace(dice >> 32, fm_open_dev(0));
			rc = call(what, look(dice >> 32), other >> 8);
			if (!rc)
				__atomic_store_n(&succeeded[what], true, __ATOMIC_RELAXED);
			if (!known(rc)) {
				me->strange = rc;
				me->what = what;
			}
		}
	}
	return NULL;
}

/* Sends a signal to an arbitrary thread each millisecond. */
static timer_t signals_start(void)
{
	struct sigevent ev = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	struct itimerspec each = { .it_interval.tv_nsec = FM_MS, .it_value.tv_nsec = FM_MS };
	timer_t timer;

	handle_signals(SA_RESTART);
	if (timer_create(CLOCK_MONOTONIC, &ev, &timer) || timer_settime(timer, 0, &each, NULL))
		fm_die("timer: %s", strerror(errno));
	return timer;
}

static void live_on(struct fm_child *ch, volatile bool *stop)
{
	const char *wrong;
	struct fm_expect e;
	struct fm_ctx c;
	u64 jobs = 0;

	fm_ctx_new(&c, FM_MEM, 4 * FM_PAGE);
	fm_param(c.fd, FERMATA_PARAM_TIMESLICE, FM_MS);
	fm_say(ch, 0);
	while (!*stop) {
		fm_job_any(&c, 20000, jobs++, &e);
		wrong = fm_job_run(&c, &e);
		if (wrong)
			fm_die("job %llu of the neighbour: %s", (unsigned long long)jobs, wrong);
	}
	fm_say(ch, jobs);
	_exit(0);
}

/* Makes nested cgroups: contexts that are opened from now on belong to the innermost. */
static void nest(void)
{
	char path[64] = FM_CGROUP "0";
	int i;

	cgroups[0] = fm_cgroup_open("");
	for (i = 1; i < NESTED; i++) {
		fm_cgroup_make(path);
		cgroups[i] = fm_cgroup_open(path);
		fm_enter_path(path);
		strcat(path, "/a");
	}
}

FM_TEST(race, point_10_every_call_against_every_end)
{
	u32 rounds = fm_number_from("FERMATA_RACES", 4000);
	struct racer r[RACERS] = { };
	struct fermata_card_info info;
	int slot = fm_slot_of(FM_MEM), i, what;
	u64 seed = fm_now(), errors;
	volatile bool *stop;
	struct fm_child ch;
	timer_t timer;

	if (slot < 0)
		SKIP(return, "no slot with membench");
	TH_LOG("seed %llu", (unsigned long long)seed);
	/* The end of a context is unknown in a race; the neighbour's memory is still guarded. */
	card_cmd("enforce off");
	mem_slot = slot;
	nest();
	card_speed(slot, 50);
	errors = card_counter(slot, "dma_errors");
	stop = mmap(NULL, FM_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	fm_fork(&ch);
	if (!ch.pid)
		live_on(&ch, stop);
	fm_hear(&ch);
	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	for (i = 0; i < DESCRIPTORS; i++)
		table[i] = -1;
	timer = signals_start();
	for (i = 0; i < RACERS; i++) {
		r[i].seed = seed + i * 1000000;
		r[i].rounds = rounds;
		ASSERT_EQ(0, pthread_create(&r[i].thread, NULL, race, &r[i]));
	}
	for (i = 0; i < RACERS; i++) {
		pthread_join(r[i].thread, NULL);
		EXPECT_EQ(0, r[i].strange) {
			TH_LOG("%s: %s", call_names[r[i].what], strerror(-r[i].strange));
		}
		EXPECT_LT(0, r[i].closed);
		EXPECT_LT(0, r[i].duplicated);
		EXPECT_LT(0, r[i].passed);
	}
	timer_delete(timer);
	EXPECT_LT(0, signals_seen);
	for (what = 0; what < CALLS; what++) {
		/* Otherwise the call was not raced. */
		EXPECT_TRUE(succeeded[what] || fm_is_slow()) {
			TH_LOG("%s never succeeded", call_names[what]);
		}
	}
	for (i = 0; i < DESCRIPTORS; i++)
		replace(i, -1);
	/* Descriptors that are still in the socket are closed with it. */
	close(pair[0]);
	close(pair[1]);
	fm_card_info(&info);
	EXPECT_EQ(1, info.contexts);
	*stop = true;
	EXPECT_LT(0, fm_hear(&ch));
	EXPECT_EQ(0, fm_reap(&ch));
	EXPECT_EQ(errors, card_counter(slot, "dma_errors"));
}

/* --- thousands ------------------------------------------------------------------------ */

/* As many as the module's parameter allows, each with a job; then one more. */
FM_TEST(many, point_06_as_many_contexts_as_allowed)
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
		.afu_id_hi = fm_afu[FM_LIST][1]
	};
	u32 most = fm_number_from("FERMATA_CONTEXTS", 2048), i, n;
	int slot = fm_slot_of(FM_LIST), one_more;
	struct fermata_card_info info;
	struct rlimit files;
	struct fm_expect *e;
	struct fm_ctx *c;

	fm_card_info(&info);
	n = info.max_contexts < most ? info.max_contexts : most;
	files.rlim_cur = n + 64;
	files.rlim_max = n + 64;
	ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &files));
	c = calloc(n, sizeof(*c));
	e = calloc(n, sizeof(*e));
	card_speed(slot, 0);
	for (i = 0; i < n; i++) {
		fm_ctx_new_on(&c[i], FM_LIST, 2 * FM_PAGE, slot);
		fm_job_list(&c[i], 16, 100 + i, i, &e[i]);
		ASSERT_EQ(0, fm_start(c[i].fd));
	}
	fm_card_info(&info);
	EXPECT_EQ(n, info.contexts);
	if (n == info.max_contexts) {
		one_more = fm_open_dev(0);
		EXPECT_EQ(-ENOSPC, fm_ioctl(one_more, FERMATA_IOC_SETUP, &setup));
		close(one_more);
	}
	for (i = 0; i < n; i++) {
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c[i], &e[i]));
	}
	/* Every second context is closed, and opened again. */
	for (i = 0; i < n; i += 2)
		fm_ctx_close(&c[i]);
	fm_card_info(&info);
	EXPECT_EQ(n / 2, info.contexts);
	for (i = 0; i < n; i += 2) {
		fm_ctx_new_on(&c[i], FM_LIST, 2 * FM_PAGE, slot);
		fm_job_list(&c[i], 16, 100 + i, i, &e[i]);
		ASSERT_EQ(0, fm_start(c[i].fd));
	}
	for (i = 0; i < n; i += 2) {
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c[i], &e[i]));
	}
	for (i = 0; i < n; i++)
		fm_ctx_close(&c[i]);
	fm_card_info(&info);
	EXPECT_EQ(0, info.contexts);
}

/* --- signals in every wait ---------------------------------------------------------------- */

struct sleeper {
	struct fm_thread t;
	int fd;
	long call;
	int rc;
};

static void sleeps(void *arg)
{
	struct sleeper *me = arg;
	struct pollfd p = { .fd = me->fd, .events = POLLIN };
	u64 n;

	if (me->call == SYS_ioctl)
		me->rc = fm_wait_until(me->fd, FERMATA_EVENT_DONE, UINT64_MAX, NULL);
	else if (me->call == SYS_poll)
		me->rc = poll(&p, 1, -1) < 0 ? -errno : 0;
	else
		me->rc = read(me->fd, &n, 8) < 0 ? -errno : 0;
}

static void sleep_in(struct sleeper *me, int fd, long call)
{
	me->fd = fd;
	me->call = call;
	fm_thread_asleep(&me->t, sleeps, me, call);
}

/* The wait ends with EINTR, and the job continues undisturbed. */
FM_TEST(signals, end_every_wait_and_no_job)
{
	static const long calls[] = { SYS_ioctl, SYS_poll, SYS_poll, SYS_read };
	struct sleeper me;
	struct fm_ctx c;
	int fds[4], i;

	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	card_speed(c.slot, 1);
	fm_job_endless(&c);
	fds[0] = c.fd;
	fds[1] = c.fd;
	fds[2] = fm_eventfd(c.fd);
	fds[3] = fds[2];
	ASSERT_EQ(0, fm_start(c.fd));
	card_until_runs(c.slot, c.token);
	for (i = 0; i < 4; i++) {
		handle_signals(0);
		sleep_in(&me, fds[i], calls[i]);
		pthread_kill(me.t.thread, SIGUSR1);
		pthread_join(me.t.thread, NULL);
		EXPECT_EQ(-EINTR, me.rc);
		EXPECT_EQ(1, signals_seen);
		EXPECT_TRUE(card_runs(c.slot, c.token));
	}
	/* Calls that restart sleep again; poll() never restarts. */
	for (i = 0; i < 4; i++) {
		if (calls[i] == SYS_poll)
			continue;
		handle_signals(SA_RESTART);
		sleep_in(&me, fds[i], calls[i]);
		pthread_kill(me.t.thread, SIGUSR1);
		while (!signals_seen)
			fm_sleep_us(100);
		fm_until_blocked(me.t.tid, calls[i]);
		if (i == 0) {
			fm_list_cut(&c, FM_ENDLESS_NODES);
			pthread_join(me.t.thread, NULL);
			EXPECT_EQ(0, me.rc);
			/* Consume the previous end, for which the next wait is not meant. */
			EXPECT_EQ(8, read(fds[2], &(u64){ 0 }, 8));
			fm_job_endless(&c);
			ASSERT_EQ(0, fm_start(c.fd));
		}
	}
	fm_list_cut(&c, FM_ENDLESS_NODES);
	pthread_join(me.t.thread, NULL);
	EXPECT_EQ(0, me.rc);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	EXPECT_EQ(FERMATA_STATE_DONE, fm_state(c.fd));
}

TEST_HARNESS_MAIN
