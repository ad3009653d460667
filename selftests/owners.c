// SPDX-License-Identifier: GPL-2.0
/*
 * A user without privileges changes everything that an owner may change, at random, most often at
 * the worst moment: while a job is saved, restored or held, while the card is reset or the machine
 * falls asleep. Another group on the same slots keeps its share of them, and a sibling in the same
 * group keeps its own; no timer fires again and again in one interrupt, nor does the scheduler
 * decide again and again in one; and nobody waits for more than some slices.
 */
#include "kselftest_harness.h"
#include "lib/sched.h"

FM_FIXTURE_CARD(owners);

/* Contexts of the attacker on the contended slots, and its members of gangs on another slot. */
#define OWN	5
#define MATES	2
/* Its contexts without a job, which announce one. */
#define IDLE	64
#define SLOTS	8
/* Another group's jobs have at least this part of the slots, where half would be fair. */
#define SHARE_MIN	35
/* The sibling has at least this part of what a context of its group would have. */
#define SIBLING_MIN	50
/* Turns of others on a slot between two of a job that wants the slot. */
#define TURNS_MAX	64
/* How often one timer may fire in one interrupt. */
#define EXPIRIES_MAX	4
/* PAUSEs, STARTs, resets and reservations in one interrupt: two for each slot. */
#define DECISIONS_MAX	(2 * SLOTS)
#define SLICE	(20 * FM_MS)

/* --- the attacker ----------------------------------------------------------------- */

struct owner {
	struct fm_ctx own[OWN], mates[MATES];
	int idle[IDLE];
	u64 dice, n;
};

static u64 roll(struct owner *o, u64 sides)
{
	return fm_splitmix(o->dice + o->n++) % sides;
}

/* One of the values that a parameter may have for this caller, the ends most often. */
static u64 any_value(struct owner *o, int fd, u32 param)
{
	struct fermata_param arg = { .size = sizeof(arg), .param = param };

	fm_must(fd, FERMATA_IOC_PARAM, &arg, "PARAM");
	switch (roll(o, 4)) {
	case 0:
		return arg.min;
	case 1:
		return arg.max;
	default:
		return arg.min + roll(o, arg.max - arg.min + 1);
	}
}

/* Many hints for the same instant. */
static void hint_all(struct owner *o)
{
	u64 at = fm_now() + (5 + roll(o, 5)) * FM_MS;
	int i;

	for (i = 0; i < IDLE; i++)
		fm_hint(o->idle[i], at);
}

/* Joins or leaves a gang with a context on another slot. */
static void change_gang(struct owner *o, const struct fm_ctx *c)
{
	struct fermata_gang gang = { .size = sizeof(gang), .flags = FERMATA_GANG_LEAVE };

	if (roll(o, 2)) {
		gang.flags = FERMATA_GANG_JOIN;
		gang.context = fm_number(o->mates[roll(o, MATES)].fd);
	}
	fm_ioctl(c->fd, FERMATA_IOC_GANG, &gang);
}

/* A call may be refused: the job is held, the value is out of range, a gang is too large. */
static void act(struct owner *o, const struct fm_ctx *c)
{
	static const u32 params[] = {
		FERMATA_PARAM_TIMESLICE, FERMATA_PARAM_PREEMPT_TIMEOUT, FERMATA_PARAM_PRIORITY,
		FERMATA_PARAM_WEIGHT, FERMATA_PARAM_CAP, FERMATA_PARAM_SLOT_MASK,
		FERMATA_PARAM_COOPERATIVE
	};
	u32 param;
	u64 value;

	switch (roll(o, 12)) {
	case 0:
		fm_preempt(c->fd, 0);
		return;
	case 1:
		fm_preempt(c->fd, FERMATA_PREEMPT_HOLD);
		return;
	case 2:
	case 3:
		fm_resume(c->fd);
		return;
	case 4:
		change_gang(o, c);
		return;
	case 5:
		hint_all(o);
		return;
	default:
		param = params[roll(o, sizeof(params) / sizeof(params[0]))];
		value = any_value(o, c->fd, param);
		/* The engine gets the time that it needs to pause. */
		if (param == FERMATA_PARAM_PREEMPT_TIMEOUT && value < 50 * FM_MS)
			value = 50 * FM_MS;
		fm_param_set(c->fd, param, value);
	}
}

/* A reply of the card is lost if the machine sleeps meanwhile, so whoever asks or sleeps locks this. */
static pthread_mutex_t *asking;

static void lock_begin(void)
{
	pthread_mutexattr_t shared;

	asking = mmap(NULL, sizeof(*asking), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (asking == MAP_FAILED)
		fm_die("no memory");
	pthread_mutexattr_init(&shared);
	pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(asking, &shared);
}

static bool is_in_phase(int slot, const char *phase)
{
	bool is;

	pthread_mutex_lock(asking);
	is = strstr(card_cmd("state slot=%d", slot), phase);
	pthread_mutex_unlock(asking);
	return is;
}

/* Waits, not for long, until the slot is in a phase that is chosen at random. */
static void aim(struct owner *o, int slot)
{
	static const char *const phases[] = { "saving", "restoring", "running", "paused" };
	const char *phase = phases[roll(o, 4)];
	int tries;

	for (tries = 0; tries < 100; tries++)
		if (is_in_phase(slot, phase))
			return;
}

/* All jobs want slots again. */
static void revive(struct owner *o)
{
	int i;

	for (i = 0; i < OWN; i++) {
		fm_param_set(o->own[i].fd, FERMATA_PARAM_CAP, 0);
		if (fm_resume(o->own[i].fd))
			fm_start(o->own[i].fd);
	}
}

static void attack(struct owner *o, u64 end)
{
	u64 burst, revival = 0;
	const struct fm_ctx *c;

	while (fm_now() < end) {
		if (fm_now() >= revival) {
			revive(o);
			revival = fm_now() + 200 * FM_MS;
		}
		c = &o->own[roll(o, OWN)];
		aim(o, c->slot);
		for (burst = 1 + roll(o, 4); burst; burst--)
			act(o, roll(o, 4) ? c : &o->mates[roll(o, MATES)]);
	}
}

static void run_owner(struct owner *o, struct fm_child *ch, u64 end)
{
	fm_drop_privileges();
	attack(o, end);
	revive(o);
	fm_say(ch, o->n);
	fm_hear(ch);
	_exit(0);
}

/* --- what is judged ------------------------------------------------------------------ */

struct victims {
	struct fm_ctx others[SLOTS], sibling, urgent;
	/* Turns of others on each slot since the last one of the victim, and the most of these. */
	int n, waits[SLOTS], longest;
};

/* The time that a context had on the contended slots, by the card's clock. */
static u64 time_of(const struct fm_ctx *c, u32 slots)
{
	struct card_run run;
	u64 sum = 0;
	int slot;

	for (slot = 0; slot < SLOTS; slot++) {
		if (!(slots & 1U << slot))
			continue;
		card_run_of(slot, c->token, &run);
		sum += run.run_ns;
	}
	return sum;
}

/* Counts the turns of others on a victim's slot since its own, and the most of them. */
static void note_turns(struct victims *v, u64 *from)
{
	static struct card_turn turns[CARD_HISTORY];
	int n = card_order_next(from, turns, CARD_HISTORY), i, k;

	for (i = 0; i < n; i++) {
		for (k = 0; k < v->n; k++) {
			if (turns[i].slot != v->others[k].slot)
				continue;
			v->waits[k] = turns[i].token == v->others[k].token ? 0 : v->waits[k] + 1;
			if (v->waits[k] > v->longest)
				v->longest = v->waits[k];
		}
	}
}

/* Lets the machine sleep, or resets the card, in turn. */
static void freeze(int n)
{
	if (n % 2 && !fm_cannot_sleep(FM_SHORT_REHEARSAL)) {
		pthread_mutex_lock(asking);
		if (fm_sleep_and_wake(FM_SHORT_REHEARSAL))
			fm_die("the machine cannot sleep");
		pthread_mutex_unlock(asking);
	} else if (fm_reset_by("flr") && fm_reset()) {
		fm_die("the card cannot be reset");
	}
}

/* Runs short urgent jobs, which preempt those of the attacker, and freezes the card now and then. */
static void disturb(struct __test_metadata *_metadata, struct victims *v, u64 *from, u64 end)
{
	u64 next = fm_now() + 1500 * FM_MS;
	struct fm_ctx *urgent = &v->urgent;
	int n = 0;

	while (fm_now() + 500 * FM_MS < end) {
		fm_must_start(urgent);
		fm_wait(urgent->fd, FERMATA_EVENT_DONE);
		fm_sleep_us(20000);
		note_turns(v, from);
		if (fm_now() < next)
			continue;
		freeze(++n);
		next = fm_now() + 1500 * FM_MS;
	}
	TH_LOG("%d resets and sleeps", n);
}

/* --- the test ---------------------------------------------------------------------------- */

/* A context of the lists' engine on one slot of many, with an endless job. */
static void occupy(struct fm_ctx *c, enum fm_engine engine, int slot)
{
	fm_ctx_new_on(c, engine, 2 * FM_PAGE, slot);
	fm_job_endless(c);
	fm_must_start(c);
}

static void begin(struct victims *v, struct owner *o, u32 slots)
{
	struct fm_ctx idle;
	int i, slot;

	lock_begin();
	fm_enter(0);
	for (v->n = 0, slot = 0; slot < SLOTS; slot++) {
		if (!(slots & 1U << slot))
			continue;
		card_set(slot, "speed=1 save_us=2000 restore_us=1000");
		occupy(&v->others[v->n], FM_LIST, slot);
		fm_param(v->others[v->n++].fd, FERMATA_PARAM_TIMESLICE, SLICE);
	}
	fm_tenant_list(&v->urgent, SLICE, 500, 1, &(struct fm_expect) { });
	fm_param(v->urgent.fd, FERMATA_PARAM_LATENCY_CRITICAL, 1);
	fm_enter(1);
	occupy(&v->sibling, FM_LIST, v->others[0].slot);
	fm_param(v->sibling.fd, FERMATA_PARAM_TIMESLICE, SLICE);
	for (i = 0; i < OWN; i++)
		occupy(&o->own[i], FM_LIST, v->others[i % v->n].slot);
	for (i = 0; i < MATES; i++)
		occupy(&o->mates[i], FM_MEM, -1);
	for (i = 0; i < IDLE; i++) {
		fm_ctx_setup(&idle, FM_LIST, -1);
		o->idle[i] = idle.fd;
	}
	fm_enter(FM_ROOT);
}

static void judge(struct __test_metadata *_metadata, const struct fm_interrupts *seen)
{
	TH_LOG("%llu expiries of timers, at most %llu of one timer in an interrupt",
	       (unsigned long long)seen->expiries, (unsigned long long)seen->most_expiries);
	TH_LOG("%llu decisions in interrupts, at most %llu in one",
	       (unsigned long long)seen->decisions, (unsigned long long)seen->most_decisions);
	EXPECT_LT(0, seen->expiries);
	EXPECT_GE(EXPIRIES_MAX, seen->most_expiries);
	EXPECT_LT(0, seen->decisions);
	EXPECT_GE(DECISIONS_MAX, seen->most_decisions);
}

SLOW_TEST(owners, random_changes_take_nothing_from_others)
{
	u64 from, end, others = 0, group, sibling;
	u32 seed = fm_number_from("FERMATA_SEED", fm_now());
	u32 slots = fm_slots_of(FM_LIST);
	struct owner o = { .dice = seed };
	struct fm_child ch;
	struct fm_interrupts interrupts;
	struct victims v = { };
	const char *why;
	int i;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	if (fm_slot_of(FM_MEM) < 0)
		SKIP(return, "no slot with membench");
	why = fm_trace_open();
	if (why)
		SKIP(return, "%s", why);
	TH_LOG("FERMATA_SEED=%u", seed);
	begin(&v, &o, slots);
	fm_trace_interrupts();
	fm_trace_begin();
	from = card_history_end();
	end = fm_now() + fm_number_from("FERMATA_OWNERS", 10) * 1000 * FM_MS;
	fm_fork(&ch);
	if (!ch.pid)
		run_owner(&o, &ch, end);
	disturb(_metadata, &v, &from, end);
	TH_LOG("%llu random numbers", (unsigned long long)fm_hear(&ch));
	note_turns(&v, &from);
	for (i = 0; i < v.n; i++)
		others += time_of(&v.others[i], slots);
	sibling = time_of(&v.sibling, slots);
	for (group = sibling, i = 0; i < OWN; i++)
		group += time_of(&o.own[i], slots);
	TH_LOG("the others %llu ms, the attacker's group %llu ms, its sibling %llu ms",
	       (unsigned long long)(others / FM_MS), (unsigned long long)(group / FM_MS),
	       (unsigned long long)(sibling / FM_MS));
	TH_LOG("at most %d turns of others in a row", v.longest);
	EXPECT_GE(TURNS_MAX, v.longest);
	interrupts = fm_trace_read_interrupts();
	fm_trace_close();
	judge(_metadata, &interrupts);
	EXPECT_LE(SHARE_MIN * (others + group), 100 * others);
	EXPECT_LE(SIBLING_MIN * group, 100 * (OWN + 1) * sibling);
	fm_say(&ch, 1);
	fm_reap(&ch);
}

TEST_HARNESS_MAIN
