// SPDX-License-Identifier: GPL-2.0
/*
 * Contexts that the administrator disables and enables, at any moment of a job and together with
 * holding: the effect is immediate, as the card sees it, and no job is preempted for a disabled
 * context.
 */
#include "kselftest_harness.h"
#include <signal.h>
#include <sys/wait.h>
#include "lib/sched.h"

FM_FIXTURE_CARD(enable);

static int enable(struct fm_ctx *c, bool on)
{
	int fd = fm_open_dev(0), rc;

	rc = fm_param_set_of(fd, fm_number(c->fd), FERMATA_PARAM_ENABLED, on);
	close(fd);
	return rc;
}

/* Enables or disables a context; dies if the call fails. */
static void must_enable(struct fm_ctx *c, bool on)
{
	int rc = enable(c, on);

	if (rc)
		fm_die("%s: %s", on ? "enable" : "disable", strerror(-rc));
}

static u32 attributes(struct fm_ctx *c)
{
	struct fermata_status st;

	fm_status(c->fd, &st);
	return st.attributes;
}

/* The job of a disabled context leaves its slot at once, and others may use the slot. */
FM_TEST(enable, job_leaves_its_slot_at_once)
{
	struct fermata_status st;
	struct fm_expect e, eo;
	struct fm_ctx c, other;
	u64 from;

	fm_tenant_list(&c, FM_LONG_SLICE, 4000000, 1, &e);
	fm_tenant_list(&other, FM_LONG_SLICE, 2000, 2, &eo);
	card_speed(c.slot, 1);
	from = card_history_end();
	fm_must_start(&c);
	card_until_runs(c.slot, c.token);
	must_enable(&c, false);
	fm_until_state(c.fd, FERMATA_STATE_QUEUED);
	EXPECT_EQ(FERMATA_STATUS_DISABLED, attributes(&c));
	ASSERT_GOOD(fm_job_run(&other, &eo));
	fm_status(c.fd, &st);
	EXPECT_EQ(FERMATA_STATE_QUEUED, st.state);
	EXPECT_EQ(1, st.preemptions);
	EXPECT_EQ(1, st.slices);
	must_enable(&c, true);
	EXPECT_EQ(0, attributes(&c));
	card_until_runs(c.slot, c.token);
	card_speed(c.slot, 0);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
	ASSERT_GOOD(fm_turns_wrong(from, (struct fm_turn[]) {
		{ c.slot, CARD_START, &c }, { c.slot, CARD_PAUSE, &c },
		{ c.slot, CARD_PAUSED, &c }, { c.slot, CARD_START, &other },
		{ c.slot, CARD_FINISHED, &other }, { c.slot, CARD_RESUME, &c },
		{ c.slot, CARD_FINISHED, &c } }, 7));
}

/* Jobs of a disabled context are accepted, and begin only when it is enabled. */
FM_TEST(enable, start_is_accepted_and_waits)
{
	struct fm_expect e[3];
	struct fm_ctx c[3];
	struct fermata_status st;
	u64 from;
	int i;

	for (i = 0; i < 3; i++) {
		fm_tenant_list(&c[i], FM_LONG_SLICE, 1000, i + 1, &e[i]);
		must_enable(&c[i], false);
		EXPECT_EQ(FERMATA_STATUS_DISABLED, attributes(&c[i]));
	}
	from = card_history_end();
	for (i = 0; i < 3; i++) {
		ASSERT_EQ(0, fm_start(c[i].fd));
		EXPECT_EQ(-EBUSY, fm_start(c[i].fd));
		EXPECT_EQ(-ETIMEDOUT, fm_wait_until(c[i].fd, FERMATA_EVENT_DONE, 0, NULL));
	}
	fm_sleep_us(20000);
	EXPECT_EQ(from, card_history_end());
	for (i = 2; i >= 0; i--) {
		fm_status(c[i].fd, &st);
		EXPECT_EQ(FERMATA_STATE_QUEUED, st.state);
		EXPECT_EQ(0, st.slices);
		must_enable(&c[i], true);
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c[i], &e[i]));
	}
	ASSERT_GOOD(fm_turns_wrong(from, (struct fm_turn[]) {
		{ c[0].slot, CARD_START, &c[2] }, { c[0].slot, CARD_FINISHED, &c[2] },
		{ c[0].slot, CARD_START, &c[1] }, { c[0].slot, CARD_FINISHED, &c[1] },
		{ c[0].slot, CARD_START, &c[0] }, { c[0].slot, CARD_FINISHED, &c[0] } }, 6));
}

/* A job that is held and disabled waits until both have ended, in any order. */
FM_TEST(enable, holding_is_another_matter)
{
	struct fm_expect e;
	struct fm_ctx c;
	u64 from;
	int i;

	fm_tenant_list(&c, FM_LONG_SLICE, 4000000, 1, &e);
	card_speed(c.slot, 1);
	fm_must_start(&c);
	for (i = 0; i < 4; i++) {
		card_until_runs(c.slot, c.token);
		/* In both orders. */
		if (i & 1)
			fm_must_hold(&c);
		else
			must_enable(&c, false);
		if (i & 1)
			must_enable(&c, false);
		else
			fm_must_hold(&c);
		fm_wait(c.fd, FERMATA_EVENT_HELD);
		EXPECT_EQ(FERMATA_STATUS_DISABLED, attributes(&c));
		from = card_history_end();
		if (i & 2)
			must_enable(&c, true);
		else
			fm_must_resume(&c);
		fm_sleep_us(10000);
		EXPECT_EQ(i & 2 ? FERMATA_STATE_HELD : FERMATA_STATE_QUEUED, fm_state(c.fd));
		EXPECT_EQ(from, card_history_end());
		if (i & 2)
			fm_must_resume(&c);
		else
			must_enable(&c, true);
	}
	card_until_runs(c.slot, c.token);
	card_speed(c.slot, 0);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
}

/* Under no policy does a disabled job end the slice of another. */
FM_TEST(enable, nobody_makes_way_for_it)
{
	static const char * const policies[] = {
		FERMATA_POLICY_FAIR, FERMATA_POLICY_ROUND_ROBIN, FERMATA_POLICY_PRIORITY,
		FERMATA_POLICY_DEADLINE
	};
	struct fm_ctx c, waits;
	u64 from;
	int i;

	fm_tenant(&c, FM_MS);
	fm_tenant(&waits, FM_MS);
	fm_param(waits.fd, FERMATA_PARAM_LATENCY_CRITICAL, 1);
	fm_param(waits.fd, FERMATA_PARAM_PRIORITY, 31);
	must_enable(&waits, false);
	card_speed(c.slot, 1);
	fm_job_endless(&waits);
	fm_must_start(&waits);
	for (i = 0; i < 4; i++) {
		/* Nor does the starvation boost help the context. */
		fm_policy(policies[i], 10 * FM_MS);
		fm_job_endless(&c);
		from = card_history_end();
		fm_must_start(&c);
		card_until_runs(c.slot, c.token);
		fm_sleep_us(50000);
		fm_end_endless(&c);
		ASSERT_GOOD(fm_turns_wrong(from, (struct fm_turn[]) {
			{ c.slot, CARD_START, &c }, { c.slot, CARD_FINISHED, &c } }, 2));
	}
	must_enable(&waits, true);
	fm_end_endless(&waits);
}

/* A context is disabled at any moment of a job, again and again: no work is lost or done twice. */
FM_TEST(enable, at_any_moment)
{
	struct fm_expect e[3];
	struct fm_ctx c[3];
	int i, round;

	for (i = 0; i < 3; i++) {
		fm_tenant_list(&c[i], FM_MS, 60000, i + 1, &e[i]);
		card_speed(c[i].slot, 1);
		fm_must_start(&c[i]);
	}
	for (round = 0; round < 300; round++) {
		must_enable(&c[round % 2], round & 2);
		fm_sleep_us(round * 37 % 1000);
	}
	for (i = 0; i < 2; i++)
		must_enable(&c[i], true);
	for (i = 0; i < 3; i++) {
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c[i], &e[i]));
	}
	ASSERT_GOOD(fm_runs_wrong(c, 3));
}

/* Parameters that are set meanwhile apply afterwards. */
FM_TEST(enable, parameters_are_set_meanwhile)
{
	struct fermata_param param = { .size = sizeof(param), .param = FERMATA_PARAM_SLOT_MASK };
	struct fm_expect e;
	struct fm_ctx c;
	u64 from, mask;
	int other;

	fm_tenant_list(&c, FM_LONG_SLICE, 4000000, 1, &e);
	fm_must(c.fd, FERMATA_IOC_PARAM, &param, "PARAM");
	mask = param.max & ~(1ULL << c.slot);
	if (!mask)
		SKIP(return, "no two slots with one engine");
	other = __builtin_ctzll(mask);
	card_speed(c.slot, 1);
	card_speed(other, 1);
	from = card_history_end();
	fm_must_start(&c);
	card_until_runs(c.slot, c.token);
	must_enable(&c, false);
	fm_until_state(c.fd, FERMATA_STATE_QUEUED);
	fm_param(c.fd, FERMATA_PARAM_SLOT_MASK, mask);
	EXPECT_EQ(mask, fm_param_get(c.fd, FERMATA_PARAM_SLOT_MASK));
	fm_sleep_us(10000);
	EXPECT_EQ(FERMATA_STATE_QUEUED, fm_state(c.fd));
	must_enable(&c, true);
	card_until_runs(other, c.token);
	card_speed(other, 0);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
	ASSERT_GOOD(fm_turns_wrong(from, (struct fm_turn[]) {
		{ c.slot, CARD_START, &c }, { c.slot, CARD_PAUSE, &c },
		{ c.slot, CARD_PAUSED, &c }, { other, CARD_RESUME, &c },
		{ other, CARD_FINISHED, &c } }, 5));
}

/* A disabled context can be closed, and its process can die, like any other. */
FM_TEST(enable, dies_disabled)
{
	struct fm_child ch;
	struct fm_expect e;
	struct fm_ctx c, next;
	int i;

	for (i = 0; i < 4; i++) {
		fm_fork(&ch);
		if (!ch.pid) {
			fm_tenant(&c, FM_LONG_SLICE);
			card_speed(c.slot, 1);
			fm_job_endless(&c);
			if (i & 1) {
				fm_must_start(&c);
				card_until_runs(c.slot, c.token);
			}
			must_enable(&c, false);
			if (!(i & 1))
				fm_must_start(&c);
			if (i & 2)
				fm_until_state(c.fd, FERMATA_STATE_QUEUED);
			fm_say(&ch, c.token);
			fm_hear(&ch);
		}
		c.token = fm_hear(&ch);
		fm_kill(&ch);
		fm_agent_gone(c.token);
		fm_tenant_list(&next, FM_MS, 1000, i, &e);
		ASSERT_GOOD(fm_job_run(&next, &e));
		fm_ctx_close(&next);
	}
}

FM_TEST(enable, point_16_takes_cap_sys_admin)
{
	struct fm_child ch;
	struct fm_expect e;
	struct fm_ctx c;
	u32 number;
	int status;

	fm_tenant_list(&c, FM_MS, 1000, 1, &e);
	number = fm_number(c.fd);
	fm_fork(&ch);
	if (!ch.pid) {
		fm_drop_privileges();
		/* Not even of the caller's own context. */
		if (fm_param_set(c.fd, FERMATA_PARAM_ENABLED, 0) != -EPERM)
			_exit(5);
		if (fm_param_set_of(c.fd, number, FERMATA_PARAM_ENABLED, 0) != -EPERM)
			_exit(1);
		if (attributes(&c))
			_exit(2);
		fm_say(&ch, 1);
		fm_hear(&ch);
		if (fm_param_set_of(c.fd, number, FERMATA_PARAM_ENABLED, 1) != -EPERM)
			_exit(3);
		/* Nor does it learn whether there is such a context. */
		if (fm_param_set_of(c.fd, number + 1, FERMATA_PARAM_ENABLED, 1) != -EPERM)
			_exit(4);
		_exit(0);
	}
	fm_hear(&ch);
	ASSERT_EQ(0, fm_param_set_of(c.fd, number, FERMATA_PARAM_ENABLED, 0));
	fm_say(&ch, 1);
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	EXPECT_EQ(FERMATA_STATUS_DISABLED, attributes(&c));
	ASSERT_EQ(0, fm_param_set_of(c.fd, number, FERMATA_PARAM_ENABLED, 1));
	ASSERT_GOOD(fm_job_run(&c, &e));
}

FM_TEST(enable, contexts_that_are_not_there)
{
	struct fm_ctx c;
	u32 number;
	int fd = fm_open_dev(0), on;

	fm_tenant(&c, FM_MS);
	number = fm_number(c.fd);
	fm_ctx_close(&c);
	for (on = 0; on < 2; on++) {
		EXPECT_EQ(-ESRCH, fm_param_set_of(fd, number, FERMATA_PARAM_ENABLED, on));
		EXPECT_EQ(-ESRCH, fm_param_set_of(fd, UINT32_MAX, FERMATA_PARAM_ENABLED, on));
		/* The caller's own, which is not set up. */
		EXPECT_EQ(-ENXIO, fm_param_set(fd, FERMATA_PARAM_ENABLED, on));
	}
	close(fd);
}

TEST_HARNESS_MAIN
