// SPDX-License-Identifier: GPL-2.0
/*
 * Latency-critical (LC) work preempts best-effort (BE) work at once, but never other latency-
 * critical work, as the card sees it; the starvation boost; CAP_SYS_NICE.
 */
#include "kselftest_harness.h"
#include <sys/wait.h>
#include "lib/sched.h"

FM_FIXTURE_CARD(urgent);

#define ARRIVALS	5

static void urgent(struct fm_ctx *c)
{
	fm_param(c->fd, FERMATA_PARAM_LATENCY_CRITICAL, 1);
}

/* LC work that arrives takes the slot at once; BE work resumes afterwards, and loses nothing. */
FM_TEST(urgent, arrival_preempts_at_once)
{
	struct fermata_status st;
	struct card_run run;
	struct fm_expect eb, el;
	struct fm_turn want[2 + 5 * ARRIVALS];
	struct fm_ctx be, lc;
	int i, n = 0;
	u64 from;

	fm_tenant_list(&be, FM_LONG_SLICE, 4000000, 1, &eb);
	fm_tenant_list(&lc, FM_LONG_SLICE, 2000, 2, &el);
	urgent(&lc);
	card_speed(be.slot, 1);
	from = card_history_end();
	fm_must_start(&be);
	want[n++] = (struct fm_turn){ be.slot, CARD_START, &be };
	for (i = 0; i < ARRIVALS; i++) {
		card_until_runs(be.slot, be.token);
		/* An engine ignores PAUSE during a restore. */
		fm_sleep_us(2000);
		ASSERT_GOOD(fm_job_run(&lc, &el));
		fm_status(be.fd, &st);
		EXPECT_NE(FERMATA_STATE_DONE, st.state);
		want[n++] = (struct fm_turn){ be.slot, CARD_PAUSE, &be };
		want[n++] = (struct fm_turn){ be.slot, CARD_PAUSED, &be };
		want[n++] = (struct fm_turn){ be.slot, CARD_START, &lc };
		want[n++] = (struct fm_turn){ be.slot, CARD_FINISHED, &lc };
		want[n++] = (struct fm_turn){ be.slot, CARD_RESUME, &be };
	}
	card_until_runs(be.slot, be.token);
	card_speed(be.slot, 0);
	fm_wait(be.fd, FERMATA_EVENT_DONE);
	want[n++] = (struct fm_turn){ be.slot, CARD_FINISHED, &be };
	ASSERT_GOOD(fm_job_wrong(&be, &eb));
	ASSERT_GOOD(fm_turns_wrong(from, want, n));
	fm_status(be.fd, &st);
	card_run_of(be.slot, be.token, &run);
	EXPECT_EQ(ARRIVALS, st.preemptions);
	EXPECT_EQ(ARRIVALS, run.pauses);
	EXPECT_EQ(1, run.starts);
	fm_status(lc.fd, &st);
	EXPECT_EQ(0, st.preemptions);
	EXPECT_EQ(ARRIVALS, st.slices);
}

/* LC work does not preempt other LC work; BE work waits for all of it. */
FM_TEST(urgent, never_before_its_like)
{
	struct fm_expect e, eb;
	struct fm_ctx first, second, be;
	u64 from;

	fm_policy(FERMATA_POLICY_FAIR, 0);
	fm_tenant(&first, FM_LONG_SLICE);
	fm_tenant_list(&second, FM_LONG_SLICE, 2000, 2, &e);
	fm_tenant_list(&be, FM_LONG_SLICE, 2000, 3, &eb);
	fm_job_endless(&first);
	urgent(&first);
	urgent(&second);
	card_speed(first.slot, 1);
	from = card_history_end();
	fm_must_start(&first);
	card_until_runs(first.slot, first.token);
	fm_must_start(&be);
	fm_must_start(&second);
	EXPECT_EQ(FERMATA_STATE_QUEUED, fm_state(second.fd));
	fm_sleep_us(20000);
	EXPECT_EQ(FERMATA_STATE_QUEUED, fm_state(second.fd));
	EXPECT_EQ(FERMATA_STATE_RUNNING, fm_state(first.fd));
	fm_end_endless(&first);
	fm_wait(second.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&second, &e));
	fm_wait(be.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&be, &eb));
	ASSERT_GOOD(fm_turns_wrong(from, (struct fm_turn[]) {
		{ 0, CARD_START, &first }, { 0, CARD_FINISHED, &first },
		{ 0, CARD_START, &second }, { 0, CARD_FINISHED, &second },
		{ 0, CARD_START, &be }, { 0, CARD_FINISHED, &be } }, 6));
}

/* A waiting job that becomes LC runs at once; when it becomes BE again, it is preempted. */
FM_TEST(urgent, changes_while_it_waits)
{
	struct fm_expect e;
	struct fm_ctx be, other;
	u64 from;

	fm_policy(FERMATA_POLICY_FAIR, 0);
	fm_tenant(&be, FM_LONG_SLICE);
	fm_tenant_list(&other, FM_LONG_SLICE, 4000000, 2, &e);
	fm_job_endless(&be);
	card_speed(be.slot, 1);
	from = card_history_end();
	fm_must_start(&be);
	card_until_runs(be.slot, be.token);
	fm_must_start(&other);
	EXPECT_EQ(FERMATA_STATE_QUEUED, fm_state(other.fd));
	/* By the administrator, from another descriptor. */
	ASSERT_EQ(0, fm_param_set_of(be.fd, fm_number(other.fd), FERMATA_PARAM_LATENCY_CRITICAL, 1));
	card_until_runs(other.slot, other.token);
	fm_sleep_us(2000);
	urgent(&be);
	fm_param(other.fd, FERMATA_PARAM_LATENCY_CRITICAL, 0);
	card_until_runs(be.slot, be.token);
	fm_end_endless(&be);
	card_speed(be.slot, 0);
	fm_wait(other.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&other, &e));
	ASSERT_GOOD(fm_turns_wrong(from, (struct fm_turn[]) {
		{ 0, CARD_START, &be }, { 0, CARD_PAUSE, &be }, { 0, CARD_PAUSED, &be },
		{ 0, CARD_START, &other }, { 0, CARD_PAUSE, &other }, { 0, CARD_PAUSED, &other },
		{ 0, CARD_RESUME, &be }, { 0, CARD_FINISHED, &be },
		{ 0, CARD_RESUME, &other }, { 0, CARD_FINISHED, &other } }, 10));
}

/* With LC work that never ends, BE work runs with the starvation boost, and waits without it. */
FM_TEST(urgent, guard_keeps_be_alive)
{
	struct fm_ctx lc, be;
	u64 from, end = fm_now() + FM_GUARD_MS * FM_MS;

	fm_policy(FERMATA_POLICY_FAIR, 0);
	fm_tenant(&lc, 2 * FM_MS);
	fm_tenant(&be, 2 * FM_MS);
	urgent(&lc);
	card_speed(lc.slot, 1);
	fm_job_endless(&lc);
	fm_job_endless(&be);
	from = card_history_end();
	fm_must_start(&lc);
	card_until_runs(lc.slot, lc.token);
	fm_must_start(&be);
	fm_sleep_us(100000);
	EXPECT_EQ(0, card_turns_of(from, be.token));
	fm_policy(FERMATA_POLICY_FAIR, 20 * FM_MS);
	while (card_turns_of(from, be.token) < 4) {
		ASSERT_LT(fm_now(), end);
		fm_sleep_us(5000);
	}
	fm_end_endless(&lc);
	fm_end_endless(&be);
}

/* Becoming LC takes CAP_SYS_NICE; becoming BE again does not. */
FM_TEST(urgent, point_16_takes_cap_sys_nice)
{
	struct fermata_param param = {
		.size = sizeof(param), .param = FERMATA_PARAM_LATENCY_CRITICAL
	};
	struct fm_child ch;
	struct fm_ctx c;
	int status;

	fm_tenant(&c, FM_MS);
	fm_must(c.fd, FERMATA_IOC_PARAM, &param, "PARAM");
	EXPECT_EQ(1, param.max);
	fm_fork(&ch);
	if (!ch.pid) {
		fm_drop_privileges();
		if (fm_param_set(c.fd, FERMATA_PARAM_LATENCY_CRITICAL, 1) != -EPERM)
			_exit(1);
		fm_must(c.fd, FERMATA_IOC_PARAM, &param, "PARAM");
		if (param.value || param.max)
			_exit(2);
		fm_say(&ch, 1);
		fm_hear(&ch);
		if (fm_param_set(c.fd, FERMATA_PARAM_LATENCY_CRITICAL, 0))
			_exit(3);
		_exit(0);
	}
	fm_hear(&ch);
	EXPECT_EQ(0, fm_param_get(c.fd, FERMATA_PARAM_LATENCY_CRITICAL));
	urgent(&c);
	fm_say(&ch, 1);
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	EXPECT_EQ(0, fm_param_get(c.fd, FERMATA_PARAM_LATENCY_CRITICAL));
}

/* --- jobs that stop at boundaries ------------------------------------------------- */

#define WAIT	"boundary_wait_us"
#define MANY	512
/* Limit of attempts in which the boundary comes first, because the machine is slow. */
#define TRIES	200

static bool stops_at_boundaries(enum fm_engine engine)
{
	struct fermata_slot_info info;
	int slot = fm_slot_of(engine);

	if (slot < 0)
		return false;
	fm_slot_info(slot, &info);
	return info.flags & FERMATA_SLOT_BOUNDARY;
}

static void set_wait(u64 us)
{
	char text[24];
	int rc;

	snprintf(text, sizeof(text), "%llu", (unsigned long long)us);
	rc = fm_put(fm_sysfs_path(-1, WAIT), text);
	if (rc)
		fm_die(WAIT ": %s", strerror(-rc));
}

/* Whether jobs that were preempted for urgent work were stopped at once, not at a boundary. */
static bool were_stopped(u64 from)
{
	static struct card_turn turns[MANY];
	int n = card_history(from, turns, MANY), i;

	for (i = 0; i < n; i++)
		if (turns[i].what == CARD_PAUSE)
			return true;
	return false;
}

/*
 * The boundary is at most 4 ms away. Urgent work waits for the boundary with a bound of 10 s, but
 * not with a bound of 1 ms, the default, or of 0: the card sees the plain PAUSE.
 */
FM_TEST(urgent, defect_13_far_boundary_is_not_waited_for)
{
	static const u64 waits[] = { 10000000, 1000, 0 };
	u64 from, before = 0, overruns, told;
	struct fm_expect eb, el;
	struct fm_ctx be, lc;
	int i, tries;
	bool stopped;

	if (!stops_at_boundaries(FM_SHA))
		SKIP(return, "no boundaries");
	before = fm_sysfs_number(-1, WAIT);
	fm_ctx_new(&be, FM_SHA, 4 << 20);
	fm_ctx_new(&lc, FM_SHA, 64 * 1024);
	fm_param(be.fd, FERMATA_PARAM_TIMESLICE, FM_LONG_SLICE);
	fm_param(be.fd, FERMATA_PARAM_COOPERATIVE, 1);
	urgent(&lc);
	fm_job_sha(&be, 3 << 20, 1, &eb);
	fm_job_sha(&lc, 64, 2, &el);
	card_speed(be.slot, 1);
	fm_must_start(&be);
	for (i = 0; i < 3; i++) {
		set_wait(waits[i]);
		overruns = fm_sysfs_number(be.slot, "overruns");
		told = fm_fdinfo_number(be.fd, "fermata-overruns");
		tries = 0;
		do {
			ASSERT_GT(TRIES, tries++);
			card_until_runs(be.slot, be.token);
			from = card_history_end();
			ASSERT_GOOD(fm_job_run(&lc, &el));
			stopped = were_stopped(from);
			overruns += stopped;
			told += stopped;
		} while (!stopped && waits[i] <= 1000);
		/* A PAUSE may arrive in a save at the boundary: it counts, too, but is dropped. */
		EXPECT_LE(overruns, fm_sysfs_number(be.slot, "overruns"));
		EXPECT_LE(told, fm_fdinfo_number(be.fd, "fermata-overruns"));
		if (waits[i] > 1000)
			EXPECT_EQ(told, fm_fdinfo_number(be.fd, "fermata-overruns"));
		EXPECT_EQ(waits[i] <= 1000, stopped);
	}
	EXPECT_EQ(0, fm_fdinfo_number(lc.fd, "fermata-overruns"));
	/* The job could be stopped at once, so no time is beyond the bound. */
	EXPECT_EQ(0, fm_fdinfo_number(be.fd, "fermata-overrun"));
	card_speed(be.slot, 0);
	fm_wait(be.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&be, &eb));
	set_wait(before);
}

/* Urgent work waits for an engine that stops only at boundaries; its job pays for the overrun. */
FM_TEST(urgent, defect_13_what_is_over_the_bound_is_counted)
{
	struct fermata_status st;
	struct fm_expect eb, el;
	u64 from, slot_ns, ns;
	struct fm_ctx be, lc;

	if (!stops_at_boundaries(FM_MIX))
		SKIP(return, "no engine that stops at boundaries only");
	fm_ctx_new(&be, FM_MIX, 1 << 20);
	fm_ctx_new(&lc, FM_MIX, 64 * 1024);
	fm_param(be.fd, FERMATA_PARAM_TIMESLICE, FM_LONG_SLICE);
	fm_param(be.fd, FERMATA_PARAM_PREEMPT_TIMEOUT, 10000 * FM_MS);
	urgent(&lc);
	/* Blocks of 65 ms. */
	fm_job_mix(&be, 512 * 1024, 65536, 1, &eb);
	slot_ns = fm_sysfs_number(be.slot, "overrun_ns");
	card_speed(be.slot, 1);
	fm_must_start(&be);
	do {
		/* The job mixes its buffer in place. */
		fm_job_mix(&lc, 4096, 64, 2, &el);
		card_until_runs(be.slot, be.token);
		from = card_history_end();
		ASSERT_GOOD(fm_job_run(&lc, &el));
		EXPECT_FALSE(were_stopped(from));
		fm_status(be.fd, &st);
		ASSERT_NE(FERMATA_STATE_DONE, st.state);
		ns = fm_fdinfo_number(be.fd, "fermata-overrun");
	} while (!ns);
	EXPECT_LE(1, fm_fdinfo_number(be.fd, "fermata-overruns"));
	EXPECT_EQ(slot_ns + ns, fm_sysfs_number(be.slot, "overrun_ns"));
	/* The overrun is a part of the charged time. */
	EXPECT_LT(ns, st.run_ns);
	EXPECT_EQ(0, fm_fdinfo_number(lc.fd, "fermata-overruns"));
	card_speed(be.slot, 0);
	fm_wait(be.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&be, &eb));
}

TEST_HARNESS_MAIN
