// SPDX-License-Identifier: GPL-2.0
/* Latency-critical (LC) work before best-effort (BE) work, as the card sees it. */
#include "kselftest_harness.h"
#include <sys/wait.h>
#include "lib/sched.h"

FM_FIXTURE_CARD(urgent);

#define ARRIVALS	5

static void urgent(struct fm_ctx *c)
{
	fm_param(c->fd, FERMATA_PARAM_LATENCY_CRITICAL, 1);
}

/* LC work that arrives takes the slot at once; BE work goes on afterwards, with nothing lost. */
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
		/* An engine that restores does not hear. */
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

/* Of LC work nobody goes before another; BE work waits for all of it. */
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

/* Made LC while it waits, it does not wait any longer; made BE again, it makes way. */
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
	ASSERT_EQ(0, fm_control(be.fd, FERMATA_CONTROL_PARAM, fm_number(other.fd),
				FERMATA_PARAM_LATENCY_CRITICAL, 1));
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

/* LC that never ends: the guard keeps BE alive, without it BE waits. */
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

/* To be LC takes CAP_SYS_NICE; to be BE again takes nothing. */
FM_TEST(urgent, point_16_takes_cap_sys_nice)
{
	struct fermata_param param = {
		.size = sizeof(param), .param = FERMATA_PARAM_LATENCY_CRITICAL
	};
	struct fm_child ch;
	struct fm_ctx c;
	int status;

	fm_tenant(&c, FM_MS);
	fm_must(c.fd, FERMATA_IOC_PARAM_GET, &param, "PARAM_GET");
	EXPECT_EQ(1, param.max);
	fm_fork(&ch);
	if (!ch.pid) {
		fm_drop_privileges();
		if (fm_param_set(c.fd, FERMATA_PARAM_LATENCY_CRITICAL, 1) != -EPERM)
			_exit(1);
		fm_must(c.fd, FERMATA_IOC_PARAM_GET, &param, "PARAM_GET");
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

TEST_HARNESS_MAIN
