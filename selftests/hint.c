// SPDX-License-Identifier: GPL-2.0
/*
 * Hints: a slot is vacant before the announced job arrives, and is given back. Hints that are
 * used, withdrawn, wasted or refused, hints of dead processes, and floods of hints.
 */
#include "kselftest_harness.h"
#include "lib/sched.h"

FM_FIXTURE_CARD(hint);

/* Limit of attempts in which the machine is too slow to start the work in time. */
#define TRIES	16
#define MANY	4000
#define SAVE_US	5000
/* The time of a save that the driver has learned: it vacates the slot this much earlier. */
#define LEARNED_US	12000
/* Half a minute at speed 1. */
#define STEPS	30000000

/* Gives a hint, valid unless the machine takes too long for the call; returns its time. */
static u64 give(struct fm_ctx *c, u64 ahead)
{
	u64 at;
	int rc;

	do {
		at = fm_now() + ahead;
		rc = fm_hint(c->fd, at);
	} while (rc == -ERANGE);
	if (rc)
		fm_die("HINT: %s", strerror(-rc));
	return at;
}

/* Waits until the hint was wasted. */
static void until_vain(struct fm_ctx *c, struct fermata_status *st)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;

	do {
		if (fm_now() > end)
			fm_die("a hint does not end");
		fm_sleep_us(1000);
		fm_status(c->fd, st);
	} while (st->hints_wasted < st->hints);
}

/* After wasted hints those of the group are refused for a while, so each test has its own group. */
static void enter_new_group(void)
{
	if (fm_has_cgroups())
		fm_enter(0);
}

/* Makes a best-effort job that runs, and a latency-critical context without a job. */
static void begin(struct fm_ctx *be, struct fm_ctx *lc)
{
	enter_new_group();
	fm_policy(FERMATA_POLICY_FAIR, 0);
	fm_tenant(be, FM_LONG_SLICE);
	fm_tenant(lc, FM_LONG_SLICE);
	fm_param(lc->fd, FERMATA_PARAM_LATENCY_CRITICAL, 1);
	card_speed(be->slot, 1);
	fm_job_endless(be);
	fm_must_start(be);
	card_until_runs(be->slot, be->token);
	/* An engine ignores PAUSE during a restore. */
	fm_sleep_us(2000);
}

/* Waits until its job was put on a slot this often; for the card, a job in a save still runs. */
static void until_turns(int fd, u64 turns)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;
	struct fermata_status st;

	do {
		if (fm_now() > end)
			fm_die("it does not come back");
		fm_sleep_us(1000);
		fm_status(fd, &st);
	} while (st.slices < turns);
}

/* No work arrives: the slot was vacated in vain, and is given back when the hint expires. */
FM_TEST(hint, made_vacant_and_given_back)
{
	u64 from, end = fm_now() + FM_GUARD_MS * FM_MS;
	struct fermata_status st;
	struct fm_ctx be, lc;
	int rc;

	begin(&be, &lc);
	from = card_history_end();
	/* If the machine handles its timer too late, nothing happens. */
	do {
		ASSERT_LT(fm_now(), end);
		give(&lc, 20 * FM_MS);
		until_vain(&lc, &st);
	} while (card_history_end() == from);
	until_turns(be.fd, 2);
	/* The card may handle writes later. */
	card_until_runs(be.slot, be.token);
	EXPECT_LE(1, st.hints_wasted);
	EXPECT_EQ(0, st.slices);
	ASSERT_GOOD(fm_turns_wrong(from, (struct fm_turn[]) {
		{ 0, CARD_PAUSE, &be }, { 0, CARD_PAUSED, &be }, { 0, CARD_RESUME, &be } }, 3));
	/*
	 * The group's hints are refused once unused ones have cost too much. A hint less than
	 * 100 us after another one is refused, too.
	 */
	do {
		ASSERT_LT(fm_now(), end);
		fm_sleep_us(500);
		rc = fm_hint(lc.fd, fm_now() + FM_MS / 4);
	} while (rc != -EAGAIN);
	fm_status(lc.fd, &st);
	EXPECT_EQ(0, st.hints_used);
	fm_end_endless(&be);
}

/* Work that arrives early wastes nothing. A hint that is taken back has no effect. */
FM_TEST(hint, used_and_taken_back)
{
	struct fermata_status st;
	struct fm_ctx be, lc;
	struct fm_expect e;

	begin(&be, &lc);
	fm_job_list(&lc, 64, 2000, 1, &e);
	ASSERT_EQ(0, fm_hint(lc.fd, fm_now() + 9000 * FM_MS));
	ASSERT_GOOD(fm_job_run(&lc, &e));
	ASSERT_EQ(0, fm_hint(lc.fd, fm_now() + 9000 * FM_MS));
	ASSERT_EQ(0, fm_hint(lc.fd, 0));
	ASSERT_EQ(0, fm_hint(lc.fd, 0));
	ASSERT_GOOD(fm_job_run(&lc, &e));
	fm_status(lc.fd, &st);
	EXPECT_EQ(2, st.hints);
	EXPECT_EQ(1, st.hints_used);
	EXPECT_EQ(0, st.hints_wasted);
	EXPECT_EQ(2, st.finished);
	fm_end_endless(&be);
}

/* Best-effort work does not preempt at once, so neither does its hint. */
FM_TEST(hint, of_best_effort_work_disturbs_nobody)
{
	struct fermata_status st;
	struct fm_ctx be, other;
	u64 from;

	begin(&be, &other);
	fm_param(other.fd, FERMATA_PARAM_LATENCY_CRITICAL, 0);
	from = card_history_end();
	give(&other, 20 * FM_MS);
	until_vain(&other, &st);
	ASSERT_GOOD(fm_turns_wrong(from, NULL, 0));
	fm_end_endless(&be);
}

/* A flood from one thread. */
struct flood {
	pthread_t thread;
	int fd;
	int accepted, strange;
	volatile int *refused;
};

static void *pour(void *arg)
{
	struct flood *f = arg;
	int rc, i, calls = fm_is_slow() ? 1000 : 20000;

	for (i = 0; i < calls && !*f->refused; i++) {
		rc = fm_hint(f->fd, fm_now() + 9000 * FM_MS);
		if (!rc)
			f->accepted++;
		else if (rc == -EAGAIN)
			*f->refused = 1;
		else
			f->strange = rc;
	}
	return NULL;
}

FM_TEST(hint, bad_input)
{
	struct fermata_status before, after;
	volatile int refused = 0;
	struct fm_ctx be, lc;
	struct flood f[2];
	int i;

	begin(&be, &lc);
	fm_status(lc.fd, &before);
	EXPECT_EQ(-ERANGE, fm_hint(lc.fd, 1));
	EXPECT_EQ(-ERANGE, fm_hint(lc.fd, fm_now() - FM_MS));
	EXPECT_EQ(-ERANGE, fm_hint(lc.fd, fm_now() + 20000 * FM_MS));
	EXPECT_EQ(-ERANGE, fm_hint(lc.fd, 1ULL << 63));
	EXPECT_EQ(-ERANGE, fm_hint(lc.fd, UINT64_MAX));
	EXPECT_EQ(-EBUSY, fm_hint(be.fd, fm_now() + FM_MS));
	EXPECT_EQ(-EBUSY, fm_hint(be.fd, 0));
	fm_status(lc.fd, &after);
	EXPECT_EQ(0, memcmp(&before, &after, sizeof(before)));
	/* A machine may be too slow for a flood from one thread. */
	for (i = 0; i < 2; i++) {
		f[i] = (struct flood){ .fd = lc.fd, .refused = &refused };
		ASSERT_EQ(0, pthread_create(&f[i].thread, NULL, pour, &f[i]));
	}
	for (i = 0; i < 2; i++) {
		pthread_join(f[i].thread, NULL);
		EXPECT_EQ(0, f[i].strange);
		before.hints += f[i].accepted;
	}
	EXPECT_TRUE(refused || fm_is_slow());
	fm_status(lc.fd, &after);
	EXPECT_EQ(before.hints, after.hints);
	EXPECT_EQ(0, fm_hint(lc.fd, 0));
	fm_end_endless(&be);
}

/*
 * Best-effort work that runs, and urgent work that will come. Saves take milliseconds and the
 * driver knows it, so that there is some time between PAUSED and the end of the hint.
 */
struct pair {
	struct fm_ctx be, lc;
	struct fm_expect eb, el;
};

static void begin_slow(struct pair *p)
{
	char text[32];
	int i;

	enter_new_group();
	fm_tenant_list(&p->be, FM_LONG_SLICE, STEPS, 1, &p->eb);
	fm_list_expect(&p->be, STEPS, 1, &p->eb);
	fm_tenant_list(&p->lc, FM_LONG_SLICE, 1000, 2, &p->el);
	fm_param(p->lc.fd, FERMATA_PARAM_LATENCY_CRITICAL, 1);
	snprintf(text, sizeof(text), "speed=1 save_us=%d", LEARNED_US);
	card_set(p->be.slot, text);
	fm_must_start(&p->be);
	for (i = 0; i <= 12; i++) {
		card_until_runs(p->be.slot, p->be.token);
		/* An engine ignores PAUSE during a restore. */
		fm_sleep_us(2000);
		fm_until_state(p->be.fd, FERMATA_STATE_RUNNING);
		if (i == 12)
			break;
		fm_hold(&p->be);
		fm_must_resume(&p->be);
	}
	snprintf(text, sizeof(text), "save_us=%d", SAVE_US);
	card_set(p->be.slot, text);
}

static const char *end_slow(struct pair *p)
{
	card_speed(p->be.slot, 0);
	fm_wait(p->be.fd, FERMATA_EVENT_DONE);
	return fm_job_wrong(&p->be, &p->eb);
}

static u64 hints_used(struct fm_ctx *c)
{
	struct fermata_status st;

	fm_status(c->fd, &st);
	return st.hints_used;
}

/* Waits until the job of `be` has left its slot; false: not in time. */
static bool until_vacant(struct fm_ctx *be, u64 before, u64 until)
{
	while (fm_preemptions(be->fd) == before)
		if (fm_now() > until)
			return false;
	return true;
}

/*
 * Announces the work of p->lc, and starts that of `work` when the slot is vacant. Repeats this
 * until it was in time and, if the announced work was started, the hint was used. Returns the
 * number of the first event, or 0.
 */
static u64 play(struct pair *p, struct fm_ctx *work, const struct fm_expect *e)
{
	static struct card_turn turns[MANY];
	const char *wrong;
	u64 from, at, used;
	bool in_time;
	int i;

	for (i = 0; i < TRIES; i++) {
		/* After a wasted hint, hints may be refused for a while. */
		if (i)
			fm_sleep_us(2000000);
		card_until_runs(p->be.slot, p->be.token);
		fm_until_state(p->be.fd, FERMATA_STATE_RUNNING);
		from = card_history_end();
		used = hints_used(&p->lc);
		at = give(&p->lc, 30 * FM_MS);
		in_time = until_vacant(&p->be, fm_preemptions(p->be.fd), at + 100 * FM_MS);
		wrong = fm_job_run(work, e);
		if (wrong)
			fm_die("%s", wrong);
		if (work == &p->lc)
			in_time = in_time && hints_used(&p->lc) > used;
		/* Otherwise it was too late: the other job had returned. */
		if (in_time && card_history(from, turns, MANY) >= 3 && turns[2].what == CARD_START)
			return from;
	}
	return 0;
}

/* PAUSE and PAUSED precede the work, which then finds the slot vacant. */
FM_TEST(hint, slot_is_vacant_when_the_work_comes)
{
	struct fermata_status st;
	struct pair p;
	u64 from;

	begin_slow(&p);
	from = play(&p, &p.lc, &p.el);
	if (!from && fm_is_slow())
		SKIP(return, "the work was always late");
	ASSERT_NE(0, from);
	card_until_runs(p.be.slot, p.be.token);
	ASSERT_GOOD(fm_turns_wrong(from, (struct fm_turn[]) {
		{ p.be.slot, CARD_PAUSE, &p.be }, { p.be.slot, CARD_PAUSED, &p.be },
		{ p.be.slot, CARD_START, &p.lc }, { p.be.slot, CARD_FINISHED, &p.lc },
		{ p.be.slot, CARD_RESUME, &p.be } }, 5));
	fm_status(p.lc.fd, &st);
	EXPECT_LE(1, st.hints_used);
	EXPECT_EQ(0, st.preemptions);
	fm_status(p.be.fd, &st);
	EXPECT_EQ(0, st.hints);
	ASSERT_GOOD(end_slow(&p));
}

/* A higher priority preempts, so its hint does, too. */
FM_TEST(hint, of_a_higher_priority)
{
	struct pair p;

	begin_slow(&p);
	fm_param(p.lc.fd, FERMATA_PARAM_LATENCY_CRITICAL, 0);
	fm_param(p.lc.fd, FERMATA_PARAM_PRIORITY, 17);
	fm_policy(FERMATA_POLICY_PRIORITY, 0);
	EXPECT_TRUE(play(&p, &p.lc, &p.el) || fm_is_slow());
	ASSERT_GOOD(end_slow(&p));
}

/* Existing urgent work precedes announced work: the slot is kept only from best-effort work. */
FM_TEST(hint, urgent_work_takes_the_slot_that_is_kept)
{
	struct fermata_status st;
	struct fm_ctx other;
	struct fm_expect e;
	struct pair p;

	begin_slow(&p);
	fm_tenant_list(&other, FM_LONG_SLICE, 1000, 3, &e);
	fm_param(other.fd, FERMATA_PARAM_LATENCY_CRITICAL, 1);
	EXPECT_TRUE(play(&p, &other, &e) || fm_is_slow());
	fm_status(p.lc.fd, &st);
	EXPECT_EQ(0, st.hints_used);
	EXPECT_EQ(0, st.slices);
	ASSERT_GOOD(end_slow(&p));
}

/* A hint of urgent work does not preempt urgent work. */
FM_TEST(hint, of_urgent_work_disturbs_no_other)
{
	struct fm_ctx be, lc;
	u64 from;

	begin(&be, &lc);
	fm_param(be.fd, FERMATA_PARAM_LATENCY_CRITICAL, 1);
	from = card_history_end();
	give(&lc, 20 * FM_MS);
	fm_sleep_us(60000);
	EXPECT_EQ(from, card_history_end());
	fm_end_endless(&be);
}

/* Shortly before its time, a hint that is taken back, or of a closed context, has no effect. */
FM_TEST(hint, of_one_that_is_gone)
{
	struct fermata_status st;
	struct fm_ctx be, lc;
	struct fm_child ch;
	u64 from;
	int i;

	begin(&be, &lc);
	from = card_history_end();
	ASSERT_EQ(0, fm_hint(lc.fd, fm_now() + 2000 * FM_MS));
	ASSERT_EQ(0, fm_hint(lc.fd, 0));
	for (i = 0; i < 2; i++) {
		fm_fork(&ch);
		if (!ch.pid) {
			struct fm_ctx c;

			fm_tenant(&c, FM_MS);
			fm_param(c.fd, FERMATA_PARAM_LATENCY_CRITICAL, 1);
			if (fm_hint(c.fd, fm_now() + 2000 * FM_MS))
				_exit(1);
			fm_say(&ch, c.token);
			if (!i)
				fm_hear(&ch);
			_exit(0);
		}
		fm_agent_gone(fm_hear(&ch));
		if (!i)
			fm_kill(&ch);
		else if (fm_reap(&ch))
			fm_die("the other process did not end well");
	}
	fm_sleep_us(2500000);
	EXPECT_EQ(from, card_history_end());
	fm_status(lc.fd, &st);
	EXPECT_EQ(0, st.hints_wasted);
	fm_end_endless(&be);
}

/* A context with a job, even a held one, cannot announce another. */
FM_TEST(hint, refused_while_a_job_has_not_ended)
{
	struct fermata_status st;
	struct fm_ctx be, lc;
	int bare = fm_open_dev(0);

	EXPECT_EQ(-ENXIO, fm_hint(bare, fm_now() + 1000 * FM_MS));
	close(bare);
	begin(&be, &lc);
	fm_job_endless(&lc);
	fm_must_start(&lc);
	EXPECT_EQ(-EBUSY, fm_hint(lc.fd, fm_now() + 1000 * FM_MS));
	EXPECT_EQ(-EBUSY, fm_hint(be.fd, fm_now() + 1000 * FM_MS));
	ASSERT_EQ(0, fm_preempt(lc.fd, FERMATA_PREEMPT_HOLD));
	fm_wait(lc.fd, FERMATA_EVENT_HELD);
	EXPECT_EQ(-EBUSY, fm_hint(lc.fd, fm_now() + 1000 * FM_MS));
	ASSERT_EQ(0, fm_resume(lc.fd));
	fm_end_endless(&lc);
	fm_status(lc.fd, &st);
	EXPECT_EQ(0, st.hints);
	EXPECT_EQ(0, fm_hint(lc.fd, fm_now() + 9000 * FM_MS));
	EXPECT_EQ(0, fm_hint(lc.fd, 0));
	fm_end_endless(&be);
}

TEST_HARNESS_MAIN
