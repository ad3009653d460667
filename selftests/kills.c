// SPDX-License-Identifier: GPL-2.0
/*
 * A thousand deaths (FERMATA_KILLS: how many). On each slot that can have a job without end
 * tenants are killed one after another, each in a state that the card, or the driver, has reported.
 * As soon as a tenant is reaped its pages have no owner. A neighbour on the same slot continues,
 * and each of its results is right to the byte.
 */
#include "kselftest_harness.h"
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include "lib/sched.h"

FM_FIXTURE_CARD(kills);

enum when {
	BARE, IDLE, QUEUED, RUNNING, SAVING, RESTORING, HELD, DONE, HUNG, WAITING, POLLING, READING,
	BUSY, MAPPED, STATES
};

static const char * const when_names[STATES] = {
	"bare", "idle", "queued", "running", "saving", "restoring", "held", "done", "hung", "waiting",
	"polling", "reading", "busy", "mapped"
};

/* Data that the processes of one slot share with the others. */
struct lane {
	int slot;
	enum fm_engine engine;
	u64 neighbour;			/* its token */
	u64 calls;			/* of the victim that is BUSY */
	u32 kills[STATES];
	u32 jobs;			/* of the neighbour, all right */
	bool stop;
};

#define LANES	8
#define ARENA	(2 * FM_PAGE)
/* No test waits this long: the victim dies before. */
#define LONG_US	"5000000"

struct shared {
	/*
	 * Held while a context is made, and from a death until the card knows of it. In between,
	 * memory of the victim can be reused for the next tenant, which must not be announced to
	 * the card first.
	 */
	pthread_mutex_t memory;
	struct lane lanes[LANES];
};

static struct shared *shared_new(void)
{
	struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_mutexattr_t attributes;

	if (shared == MAP_FAILED)
		fm_die("mmap: %s", strerror(errno));
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(&shared->memory, &attributes);
	return shared;
}

/* A lane for each slot with linkedlist or membench: their jobs need not end. */
static int lanes_of_card(struct lane *lanes)
{
	static const enum fm_engine endless[] = { FM_LIST, FM_MEM };
	struct fermata_slot_info info = { .size = sizeof(info) };
	int fd = fm_open_dev(0), n = 0;
	size_t i;

	for (; !fm_ioctl(fd, FERMATA_IOC_SLOT_INFO, &info); info.slot++) {
		for (i = 0; i < sizeof(endless) / sizeof(endless[0]); i++)
			if (info.afu_id_lo == fm_afu[endless[i]][0] &&
			    info.afu_id_hi == fm_afu[endless[i]][1] && n < LANES)
				lanes[n++] = (struct lane){ .slot = info.slot, .engine = endless[i] };
		info.size = sizeof(info);
	}
	close(fd);
	return n;
}

/* --- who dies ---------------------------------------------------------------------- */

/* Makes all calls that a context allows, in any order, for ever. */
static void be_busy(struct fm_ctx *c, u64 seed, u64 *calls)
{
	struct fermata_param param = {
		.size = sizeof(param), .flags = FERMATA_SET, .param = FERMATA_PARAM_TIMESLICE
	};
	struct fermata_status st;
	u64 value, n;

	for (n = 0;; n++) {
		u64 dice = fm_splitmix(seed + n);

		switch (dice % 8) {
		case 0:
			fm_start(c->fd);
			break;
		case 1:
			fm_preempt(c->fd, 0);
			break;
		case 2:
			fm_preempt(c->fd, FERMATA_PREEMPT_HOLD);
			break;
		case 3:
			fm_resume(c->fd);
			break;
		case 4:
			fm_status(c->fd, &st);
			break;
		case 5:
			fm_reg_read(c->fd, 0x38, &value);
			break;
		case 6:
			fm_wait_until(c->fd, FERMATA_EVENT_DONE, 0, NULL);
			break;
		default:
			param.value = 200000 + dice % FM_MS;
			fm_ioctl(c->fd, FERMATA_IOC_PARAM, &param);
			break;
		}
		__atomic_add_fetch(calls, 1, __ATOMIC_RELAXED);
	}
}

/* Reaches the state, as far as the victim can by itself, and stays there. */
static void victim(struct fm_child *ch, enum when when, struct lane *lane, u64 seed)
{
	struct pollfd p = { .events = POLLIN };
	struct fm_expect e;
	struct fm_ctx c;
	u64 n;

	if (when == BARE) {
		c.fd = fm_open_dev(0);
		fm_say(ch, fm_token());
		pause();
	}
	fm_ctx_new_on(&c, lane->engine, ARENA, lane->slot);
	if (when == DONE)
		fm_job_any(&c, 200, seed, &e);
	else
		fm_job_endless(&c);
	/* It leaves the slot only on its own request: the next save and restore are its own. */
	if (when != BUSY)
		fm_param(c.fd, FERMATA_PARAM_TIMESLICE, FM_LONG_SLICE);
	if (when == POLLING || when == READING)
		p.fd = fm_eventfd(c.fd);
	fm_say(ch, c.token);
	/* QUEUED: it starts on the parent's word, behind a job that stays on the slot. */
	if (when == QUEUED)
		fm_hear(ch);
	if (when == BUSY)
		be_busy(&c, seed, &lane->calls);
	if (when != IDLE)
		fm_must_start(&c);
	switch (when) {
	case DONE:
		fm_wait(c.fd, FERMATA_EVENT_DONE);
		break;
	case QUEUED:
		fm_until_state(c.fd, FERMATA_STATE_QUEUED);
		break;
	case SAVING:
	case RESTORING:
	case HELD:
		fm_hear(ch);
		if (fm_preempt(c.fd, FERMATA_PREEMPT_HOLD))
			fm_die("PREEMPT");
		if (when == SAVING)
			break;
		fm_wait(c.fd, FERMATA_EVENT_HELD);
		if (when == RESTORING) {
			fm_say(ch, 0);
			fm_hear(ch);
			if (fm_resume(c.fd))
				fm_die("RESUME");
		}
		break;
	case MAPPED:
		close(c.fd);
		break;
	default:
		break;
	}
	fm_say(ch, 0);
	if (when == WAITING)
		fm_wait_until(c.fd, FERMATA_EVENT_DONE, UINT64_MAX, NULL);
	if (when == POLLING)
		poll(&p, 1, -1);
	if (when == READING && read(p.fd, &n, 8) == 8)
		fm_die("a job without end is done");
	pause();
	_exit(1);
}

/* --- who kills --------------------------------------------------------------------- */

static void until_phase(int slot, u64 token, const char *phase)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;
	const char *reply;

	for (;;) {
		reply = card_cmd("state slot=%d", slot);
		if (card_key(reply, "tag") == token && strstr(reply, phase))
			return;
		if (fm_now() > end)
			fm_die("tenant %llx is never seen in %s: %s", (unsigned long long)token,
			       phase, reply);
		fm_sleep_us(100);
	}
}

/* Waits until the state is reached. */
static void lead_to(struct fm_child *ch, enum when when, struct lane *lane, u64 token, u64 seed)
{
	u64 calls = lane->calls + seed % 64;

	switch (when) {
	case BARE:
		return;
	case SAVING:
	case RESTORING:
	case HELD:
		until_phase(lane->slot, token, "phase=running");
		if (when == SAVING)
			card_fault(lane->slot, "save_takes_us=" LONG_US);
		fm_say(ch, 0);
		fm_hear(ch);
		if (when == SAVING)
			until_phase(lane->slot, token, "phase=saving");
		if (when != RESTORING)
			return;
		/* The next restore is the victim's, because the neighbour is on the slot. */
		until_phase(lane->slot, lane->neighbour, "phase=running");
		card_set(lane->slot, "restore_us=" LONG_US);
		fm_say(ch, 0);
		fm_hear(ch);
		until_phase(lane->slot, token, "phase=restoring");
		return;
	case BUSY:
		while (__atomic_load_n(&lane->calls, __ATOMIC_RELAXED) < calls)
			sched_yield();
		return;
	default:
		fm_hear(ch);
	}
	if (when == IDLE || when == DONE || when == QUEUED)
		return;
	until_phase(lane->slot, token, "phase=running");
	if (when == HUNG)
		card_fault(lane->slot, "hang=1");
	if (when == WAITING)
		fm_until_blocked(ch->pid, SYS_ioctl);
	if (when == POLLING)
		fm_until_blocked(ch->pid, SYS_poll);
	if (when == READING)
		fm_until_blocked(ch->pid, SYS_read);
}

/* NULL, or how the card's counters contradict the state in which the victim died. */
static const char *not_so(enum when when, const struct card_run *run)
{
	switch (when) {
	case BARE:
	case IDLE:
	case QUEUED:
		return run->starts ? "it was on the slot" : NULL;
	case DONE:
		return run->starts == 1 && run->finishes == 1 ? NULL : "it has not finished once";
	case BUSY:
		return run->finishes ? "a job without end has finished" : NULL;
	case HELD:
		return run->starts == 1 && run->pauses == 1 && !run->resumes ? NULL :
			"it was not saved once";
	case RESTORING:
		/* On a relay its death aborts the restore, which counts as a pause. */
		return run->pauses == 1 + card_relay() && run->resumes == 1 ? NULL :
			"it was not resumed once";
	default:
		return run->starts == 1 && !run->pauses && !run->finishes ? NULL :
			"it was not on the slot without a break";
	}
}

/* Forks a victim; returns its token once it has its memory. */
static u64 victim_new(struct fm_child *ch, enum when when, struct lane *lane,
		      pthread_mutex_t *memory, u64 seed)
{
	u64 token;

	pthread_mutex_lock(memory);
	fm_fork(ch);
	if (!ch->pid)
		victim(ch, when, lane, seed);
	token = fm_hear(ch);
	pthread_mutex_unlock(memory);
	return token;
}

static void victim_killed(struct fm_child *ch, u64 token, pthread_mutex_t *memory)
{
	pthread_mutex_lock(memory);
	fm_kill(ch);
	fm_agent_gone(token);
	pthread_mutex_unlock(memory);
}

static void kill_one(struct lane *lane, enum when when, pthread_mutex_t *memory, u64 seed)
{
	struct fm_child ch, first = { };
	u64 token, first_token = 0;
	struct card_run run;
	const char *why;

	token = victim_new(&ch, when, lane, memory, seed);
	if (when == QUEUED) {
		first_token = victim_new(&first, RUNNING, lane, memory, seed);
		lead_to(&first, RUNNING, lane, first_token, seed);
		fm_say(&ch, 0);
	}
	lead_to(&ch, when, lane, token, seed);
	victim_killed(&ch, token, memory);
	card_run_of(lane->slot, token, &run);
	why = not_so(when, &run);
	if (why)
		fm_die("killed when %s: %s (%d starts, %d resumes, %d pauses, %d ends)",
		       when_names[when], why, (int)run.starts, (int)run.resumes,
		       (int)run.pauses, (int)run.finishes);
	lane->kills[when]++;
	if (when == RESTORING)
		card_set(lane->slot, "restore_us=0");
	/* A pending fault of a save must not hit another job. */
	if (when == SAVING)
		card_fault(lane->slot, "clear");
	if (first.pid) {
		victim_killed(&first, first_token, memory);
		lane->kills[RUNNING]++;
	}
	/* Behind an IOMMU these are accesses to memory that was unmapped too soon. */
	if (card_counter(lane->slot, "dma_errors"))
		fm_die("killed when %s: the engine touched unmapped memory", when_names[when]);
	card_cmd("counters clear slot=%d", lane->slot);
}

static u32 kills_of(const struct lane *lane)
{
	u32 n = 0, i;

	for (i = 0; i < STATES; i++)
		n += lane->kills[i];
	return n;
}

/* Kills in each state in turn, beginning with an arbitrary one. */
static void killer(struct lane *lane, pthread_mutex_t *memory, u32 wanted, u64 seed)
{
	u64 n;

	for (n = 0; kills_of(lane) < wanted; n++)
		kill_one(lane, (seed + n) % STATES, memory, fm_splitmix(seed + n));
}

/* --- who lives ---------------------------------------------------------------------- */

static void live_on(struct fm_child *ch, struct lane *lane)
{
	const char *wrong;
	struct fm_expect e;
	struct fm_ctx c;
	u64 seed = 0;

	fm_ctx_new_on(&c, lane->engine, 4 * FM_PAGE, lane->slot);
	fm_param(c.fd, FERMATA_PARAM_TIMESLICE, FM_MS);
	lane->neighbour = c.token;
	fm_say(ch, 0);
	while (!__atomic_load_n(&lane->stop, __ATOMIC_RELAXED)) {
		fm_job_any(&c, 20000, seed++, &e);
		wrong = fm_job_run(&c, &e);
		if (wrong)
			fm_die("slot %d, job %u of the neighbour: %s", lane->slot, lane->jobs, wrong);
		lane->jobs++;
	}
	_exit(0);
}

/* Each wait has its own guard; all of them together take as long as there are kills. */
TEST_F_TIMEOUT(kills, point_06_in_every_state, 24 * 3600)
{
	u32 wanted = fm_number_from("FERMATA_KILLS", 1000), kills = 0, jobs = 0;
	struct fm_child lives[LANES], kill[LANES];
	struct shared *shared = shared_new();
	struct lane *lanes = shared->lanes;
	int n = lanes_of_card(lanes), i, when;
	struct fermata_card_info info;
	u64 seed = fm_now();

	ASSERT_LT(0, n);
	TH_LOG("seed %llu", (unsigned long long)seed);
	for (i = 0; i < n; i++) {
		card_speed(lanes[i].slot, 1);
		card_cmd("counters clear slot=%d", lanes[i].slot);
		fm_fork(&lives[i]);
		if (!lives[i].pid)
			live_on(&lives[i], &lanes[i]);
		fm_hear(&lives[i]);
	}
	for (i = 0; i < n; i++) {
		fm_fork(&kill[i]);
		if (!kill[i].pid) {
			killer(&lanes[i], &shared->memory, (wanted + n - 1) / n, seed + i);
			_exit(0);
		}
	}
	for (i = 0; i < n; i++)
		EXPECT_EQ(0, fm_reap_within(&kill[i], UINT64_MAX));
	fm_card_info(&info);
	EXPECT_EQ(n, info.contexts);
	for (i = 0; i < n; i++) {
		__atomic_store_n(&lanes[i].stop, true, __ATOMIC_RELAXED);
		EXPECT_EQ(0, fm_reap(&lives[i]));
		EXPECT_LT(0, lanes[i].jobs);
		kills += kills_of(&lanes[i]);
		jobs += lanes[i].jobs;
	}
	for (when = 0; when < STATES; when++) {
		u32 of = 0;

		for (i = 0; i < n; i++)
			of += lanes[i].kills[when];
		EXPECT_LE(wanted / STATES / 2, of) {
			TH_LOG("killed when %s: %u times", when_names[when], of);
		}
	}
	EXPECT_LE(wanted, kills);
	TH_LOG("%u kills on %d slots, %u jobs of the neighbours right", kills, n, jobs);
	fm_card_info(&info);
	EXPECT_EQ(0, info.contexts);
}

TEST_HARNESS_MAIN
