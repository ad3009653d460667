// SPDX-License-Identifier: GPL-2.0
/* Jobs that are announced: a slot is vacant for them in time, and what is announced in vain costs. */
#include "kselftest_harness.h"
#include "lib/sched.h"

FM_FIXTURE_CARD(hint);

static int hint(int fd, u64 at)
{
	struct fermata_hint h = { .size = sizeof(h), .at = at };

	return fm_ioctl(fd, FERMATA_IOC_HINT, &h);
}

/* A hint that is right but for the time that the machine may take over the call. */
static void give(struct fm_ctx *c, u64 ahead)
{
	int rc;

	do {
		rc = hint(c->fd, fm_now() + ahead);
	} while (rc == -ERANGE);
	if (rc)
		fm_die("HINT: %s", strerror(-rc));
}

/* Waits until it has come to nothing. */
static void until_vain(struct fm_ctx *c, struct fermata_status *st)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;

	do {
		if (fm_now() > end)
			fm_die("a hint does not end");
		fm_sleep_us(1000);
		fm_status(c->fd, st);
	} while (st->hints_wasted + st->hints_ignored < st->hints);
}

/* A best-effort job that runs, and a latency-critical context without one. */
static void begin(struct fm_ctx *be, struct fm_ctx *lc)
{
	fm_policy(FERMATA_POLICY_FAIR, 0);
	fm_tenant(be, FM_LONG_SLICE);
	fm_tenant(lc, FM_LONG_SLICE);
	fm_param(lc->fd, FERMATA_PARAM_LATENCY_CRITICAL, 1);
	card_speed(be->slot, 1);
	fm_job_endless(be);
	fm_must_start(be);
	card_until_runs(be->slot, be->token);
	/* An engine that restores does not hear. */
	fm_sleep_us(2000);
}

/* Nobody comes: the slot was made vacant for nothing, and is given back when the hint expires. */
FM_TEST(hint, made_vacant_and_given_back)
{
	u64 from, end = fm_now() + FM_GUARD_MS * FM_MS;
	struct fermata_status st;
	struct fm_ctx be, lc;

	begin(&be, &lc);
	from = card_history_end();
	/* If the machine is too slow to hear its timer in time, nothing happens. */
	do {
		ASSERT_LT(fm_now(), end);
		give(&lc, 20 * FM_MS);
		until_vain(&lc, &st);
	} while (card_history_end() == from);
	card_until_runs(be.slot, be.token);
	EXPECT_EQ(st.hints, st.hints_wasted);
	EXPECT_EQ(0, st.slices);
	ASSERT_GOOD(fm_turns_wrong(from, (struct fm_turn[]) {
		{ 0, CARD_PAUSE, &be }, { 0, CARD_PAUSED, &be }, { 0, CARD_RESUME, &be } }, 3));
	/* Whoever wastes is not listened to for a while. */
	while (!st.hints_ignored) {
		ASSERT_LT(fm_now(), end);
		give(&lc, 5 * FM_MS);
		until_vain(&lc, &st);
	}
	EXPECT_EQ(0, st.hints_used);
	fm_end_endless(&be);
}

/* Comes sooner than announced: nothing was wasted. Taken back: as if it had not been given. */
FM_TEST(hint, used_and_taken_back)
{
	struct fermata_status st;
	struct fm_ctx be, lc;
	struct fm_expect e;

	begin(&be, &lc);
	fm_job_list(&lc, 64, 2000, 1, &e);
	ASSERT_EQ(0, hint(lc.fd, fm_now() + 9000 * FM_MS));
	ASSERT_GOOD(fm_job_run(&lc, &e));
	ASSERT_EQ(0, hint(lc.fd, fm_now() + 9000 * FM_MS));
	ASSERT_EQ(0, hint(lc.fd, 0));
	ASSERT_EQ(0, hint(lc.fd, 0));
	ASSERT_GOOD(fm_job_run(&lc, &e));
	fm_status(lc.fd, &st);
	EXPECT_EQ(2, st.hints);
	EXPECT_EQ(1, st.hints_used);
	EXPECT_EQ(0, st.hints_wasted);
	EXPECT_EQ(0, st.hints_ignored);
	EXPECT_EQ(2, st.finished);
	fm_end_endless(&be);
}

/* Best-effort work takes no slot at once, so neither does its hint. */
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
	EXPECT_EQ(1, st.hints_wasted);
	ASSERT_GOOD(fm_turns_wrong(from, NULL, 0));
	fm_end_endless(&be);
}

FM_TEST(hint, bad_input)
{
	struct fermata_status before, after;
	struct fm_ctx be, lc;
	int refused = 0, i;

	begin(&be, &lc);
	fm_status(lc.fd, &before);
	EXPECT_EQ(-ERANGE, hint(lc.fd, 1));
	EXPECT_EQ(-ERANGE, hint(lc.fd, fm_now() - FM_MS));
	EXPECT_EQ(-ERANGE, hint(lc.fd, fm_now() + 11000 * FM_MS));
	EXPECT_EQ(-ERANGE, hint(lc.fd, 1ULL << 63));
	EXPECT_EQ(-ERANGE, hint(lc.fd, UINT64_MAX));
	EXPECT_EQ(-EBUSY, hint(be.fd, fm_now() + FM_MS));
	EXPECT_EQ(-EBUSY, hint(be.fd, 0));
	fm_status(lc.fd, &after);
	EXPECT_EQ(0, memcmp(&before, &after, sizeof(before)));
	/* A flood. The machine may be too slow for one, but not always. */
	for (i = 0; i < 100000 && !refused; i++) {
		int rc = hint(lc.fd, fm_now() + 9000 * FM_MS);

		ASSERT_TRUE(rc == 0 || rc == -EAGAIN);
		refused = rc == -EAGAIN;
		before = after;
		fm_status(lc.fd, &after);
		if (!refused)
			EXPECT_EQ(before.hints + 1, after.hints);
	}
	EXPECT_EQ(before.hints, after.hints);
	EXPECT_EQ(1, refused);
	EXPECT_EQ(0, hint(lc.fd, 0));
	fm_end_endless(&be);
}

TEST_HARNESS_MAIN
