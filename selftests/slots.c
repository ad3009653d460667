// SPDX-License-Identifier: GPL-2.0
/*
 * Equal slots serve one queue: contexts move between them; masks; one arrival takes one slot;
 * the first figure of EPOCH, event by event.
 */
#include "kselftest_harness.h"
#include "lib/sched.h"

FM_FIXTURE_CARD(slots);

/* Finds two slots with the list engine; false: there are none. */
static bool two_slots(int slot[2])
{
	u32 mask = fm_slots_of(FM_LIST);
	int n;

	if (__builtin_popcount(mask) < 2)
		return false;
	for (n = 0; n < 2; n++, mask &= mask - 1) {
		slot[n] = __builtin_ctz(mask);
		card_speed(slot[n], 1);
	}
	return true;
}

static void both_fast(const int slot[2])
{
	card_speed(slot[0], 0);
	card_speed(slot[1], 0);
}

static void allow(struct fm_ctx *c, u32 mask)
{
	fm_param(c->fd, FERMATA_PARAM_SLOT_MASK, mask);
}

static u32 both(const int slot[2])
{
	return 1U << slot[0] | 1U << slot[1];
}

/* Three jobs take turns on two slots: each runs on both, and its result is right. */
FM_TEST(slots, moves_between_slices)
{
	struct fm_ctx c[3];
	struct fm_expect e[3];
	struct card_run a, b;
	int slot[2], i, moved = 0;

	if (!two_slots(slot))
		SKIP(return, "no two slots with one engine");
	for (i = 0; i < 3; i++) {
		fm_tenant_list(&c[i], FM_MS, 4000000, i + 1, &e[i]);
		allow(&c[i], both(slot));
	}
	for (i = 0; i < 3; i++)
		fm_must_start(&c[i]);
	/* However late the ends of slices are. */
	for (i = 0; i < 3; i++)
		fm_until_preempted(c[i].fd, 5);
	both_fast(slot);
	for (i = 0; i < 3; i++) {
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c[i], &e[i]));
		card_run_of(slot[0], c[i].token, &a);
		card_run_of(slot[1], c[i].token, &b);
		TH_LOG("tenant %d: %d turns on slot %d, %d on slot %d", i,
		       (int)(a.starts + a.resumes), slot[0], (int)(b.starts + b.resumes), slot[1]);
		EXPECT_EQ(1, a.starts + b.starts);
		EXPECT_EQ(a.pauses + b.pauses, a.resumes + b.resumes);
		moved += a.starts + a.resumes && b.starts + b.resumes;
	}
	EXPECT_LT(0, moved);
}

/* A mask without the job's current slot moves the job at once, not at the end of its slice. */
FM_TEST(slots, mask_moves_it_at_once)
{
	struct fm_turn want[2 + 3 * 4];
	struct fm_expect e;
	struct fm_ctx c;
	int slot[2], i, n = 0;
	u64 from;

	if (!two_slots(slot))
		SKIP(return, "no two slots with one engine");
	fm_tenant_list(&c, FM_LONG_SLICE, 4000000, 3, &e);
	from = card_history_end();
	fm_must_start(&c);
	want[n++] = (struct fm_turn){ slot[0], CARD_START, &c };
	for (i = 0; i < 4; i++) {
		card_until_runs(slot[i % 2], c.token);
		fm_sleep_us(2000);
		allow(&c, 1U << slot[(i + 1) % 2]);
		want[n++] = (struct fm_turn){ slot[i % 2], CARD_PAUSE, &c };
		want[n++] = (struct fm_turn){ slot[i % 2], CARD_PAUSED, &c };
		want[n++] = (struct fm_turn){ slot[(i + 1) % 2], CARD_RESUME, &c };
	}
	card_until_runs(slot[0], c.token);
	both_fast(slot);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	want[n++] = (struct fm_turn){ slot[0], CARD_FINISHED, &c };
	ASSERT_GOOD(fm_job_wrong(&c, &e));
	ASSERT_GOOD(fm_turns_wrong(from, want, n));
}

/* A mask that still has the slot does not preempt the job. */
FM_TEST(slots, wider_mask_disturbs_nobody)
{
	struct fm_expect e;
	struct fm_ctx c;
	int slot[2];
	u64 from;

	if (!two_slots(slot))
		SKIP(return, "no two slots with one engine");
	fm_tenant_list(&c, FM_LONG_SLICE, 4000000, 3, &e);
	from = card_history_end();
	fm_must_start(&c);
	card_until_runs(slot[0], c.token);
	allow(&c, both(slot));
	allow(&c, 1U << slot[0]);
	both_fast(slot);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
	ASSERT_GOOD(fm_turns_wrong(from, (struct fm_turn[]) {
		{ slot[0], CARD_START, &c }, { slot[0], CARD_FINISHED, &c } }, 2));
}

/* A job that may not use the vacant slot waits for the other; once it may, it starts at once. */
FM_TEST(slots, restricted_by_mask)
{
	struct fm_expect e;
	struct fm_ctx holder, c;
	int slot[2];
	u64 from;

	if (!two_slots(slot))
		SKIP(return, "no two slots with one engine");
	fm_policy(FERMATA_POLICY_FAIR, 0);
	fm_tenant(&holder, FM_LONG_SLICE);
	fm_job_endless(&holder);
	fm_tenant_list(&c, FM_LONG_SLICE, 2000, 3, &e);
	from = card_history_end();
	fm_must_start(&holder);
	card_until_runs(slot[0], holder.token);
	fm_must_start(&c);
	fm_sleep_us(20000);
	EXPECT_EQ(FERMATA_STATE_QUEUED, fm_state(c.fd));
	EXPECT_EQ(0, card_turns_of(from, c.token));
	allow(&c, both(slot));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
	fm_end_endless(&holder);
	ASSERT_GOOD(fm_turns_wrong(from, (struct fm_turn[]) {
		{ slot[0], CARD_START, &holder },
		{ slot[1], CARD_START, &c }, { slot[1], CARD_FINISHED, &c },
		{ slot[0], CARD_FINISHED, &holder } }, 4));
}

/* One arrival takes one slot: the job on the other one is left alone. */
FM_TEST(slots, one_arrival_takes_one_slot)
{
	struct fm_expect e;
	struct fm_ctx be[2], lc;
	int slot[2], i, tries = 0;
	u64 from;

	if (!two_slots(slot))
		SKIP(return, "no two slots with one engine");
	for (i = 0; i < 2; i++) {
		fm_tenant(&be[i], FM_LONG_SLICE);
		allow(&be[i], both(slot));
		fm_job_endless(&be[i]);
	}
	fm_tenant_list(&lc, FM_LONG_SLICE, 2000, 3, &e);
	allow(&lc, both(slot));
	fm_param(lc.fd, FERMATA_PARAM_LATENCY_CRITICAL, 1);
	for (i = 0; i < 2; i++) {
		fm_must_start(&be[i]);
		card_until_runs(slot[i], be[i].token);
	}
	do {
		ASSERT_GT(10, tries++);
		for (i = 0; i < 2; i++)
			fm_until_state(be[i].fd, FERMATA_STATE_RUNNING);
		fm_sleep_us(2000);
		from = card_history_end();
		ASSERT_GOOD(fm_job_run(&lc, &e));
		for (i = 0; i < 2; i++)
			fm_until_state(be[i].fd, FERMATA_STATE_RUNNING);
	} while (card_pause_repeated(from));
	/* One of the two returned. */
	EXPECT_EQ(1, card_turns_of(from, be[0].token) + card_turns_of(from, be[1].token));
	EXPECT_EQ(1, card_turns_of(from, lc.token));
	for (i = 0; i < 2; i++)
		fm_end_endless(&be[i]);
}

FM_TEST(slots, bad_masks)
{
	struct fm_ctx c;
	u64 before;
	int other;

	fm_tenant(&c, FM_MS);
	before = fm_param_get(c.fd, FERMATA_PARAM_SLOT_MASK);
	EXPECT_EQ(1ULL << c.slot, before);
	EXPECT_EQ(-EINVAL, fm_param_set(c.fd, FERMATA_PARAM_SLOT_MASK, 0));
	EXPECT_EQ(-EINVAL, fm_param_set(c.fd, FERMATA_PARAM_SLOT_MASK, 1ULL << 63));
	EXPECT_EQ(-EINVAL, fm_param_set(c.fd, FERMATA_PARAM_SLOT_MASK, UINT64_MAX));
	other = fm_slot_of(FM_SHA);
	if (other >= 0)
		EXPECT_EQ(-EINVAL, fm_param_set(c.fd, FERMATA_PARAM_SLOT_MASK,
						before | 1ULL << other));
	EXPECT_EQ(before, fm_param_get(c.fd, FERMATA_PARAM_SLOT_MASK));
}

/*
 * The first figure of EPOCH: three tenants on two slots. At t1 and t2 tenants 1 and 2 start; at t3
 * tenant 3 arrives, which has a higher priority: tenant 2 is paused and saved, and at t4 tenant 3
 * has its slot; at t5 tenant 3 is done; at t6 tenant 2 is restored and resumes without loss.
 */

FM_FIXTURE_CARD(epoch);

#define TENANTS	3
/* Limit of attempts: on a slow machine the driver does not count on a slot that it has paused. */
#define TRIES	10

struct figure {
	struct fm_ctx t[TENANTS];
	struct fm_expect e[TENANTS];
	int a, b;	/* the slots */
	u64 from;	/* number of its first event */
};

/* Opens three contexts that may use both slots; false: there are not two. */
static bool prepare(struct figure *f)
{
	/* The first job, at full speed, ends long before the second, which is slow. */
	static const u64 steps[] = { 1500000, 4900000, 5000 };
	static const u32 priority[] = { 17, 16, 20 };
	int i;

	for (i = 0; i < TENANTS; i++) {
		struct fermata_param param = {
			.size = sizeof(param), .param = FERMATA_PARAM_SLOT_MASK
		};

		fm_tenant_list(&f->t[i], FM_LONG_SLICE, steps[i], i + 1, &f->e[i]);
		fm_must(f->t[i].fd, FERMATA_IOC_PARAM, &param, "PARAM");
		if (__builtin_popcountll(param.max) != 2)
			return false;
		fm_param(f->t[i].fd, FERMATA_PARAM_SLOT_MASK, param.max);
		fm_param(f->t[i].fd, FERMATA_PARAM_PRIORITY, priority[i]);
		f->a = __builtin_ctzll(param.max);
		f->b = 63 - __builtin_clzll(param.max);
	}
	return true;
}

static const char *play(struct figure *f)
{
	const char *wrong;

	card_speed(f->a, 1);
	card_speed(f->b, 1);
	f->from = card_history_end();
	fm_must_start(&f->t[0]);			/* t1 */
	card_until_runs(f->a, f->t[0].token);
	fm_must_start(&f->t[1]);			/* t2 */
	card_until_runs(f->b, f->t[1].token);
	fm_sleep_us(2000);
	wrong = fm_job_run(&f->t[2], &f->e[2]);		/* t3 to t5 */
	/* t6; the card's log shows the slots, which may have changed in a slow attempt. */
	fm_until_state(f->t[1].fd, FERMATA_STATE_RUNNING);
	fm_until_state(f->t[0].fd, FERMATA_STATE_RUNNING);
	card_speed(f->a, 0);
	fm_wait(f->t[0].fd, FERMATA_EVENT_DONE);
	card_speed(f->b, 0);
	fm_wait(f->t[1].fd, FERMATA_EVENT_DONE);
	return wrong;
}

FM_TEST(epoch, three_tenants_on_two_slots)
{
	struct fermata_status before[TENANTS], after;
	struct figure f;
	int i, tries = 0;

	fm_policy(FERMATA_POLICY_PRIORITY, 0);
	if (!prepare(&f))
		SKIP(return, "not two slots with one engine");
	do {
		ASSERT_GT(TRIES, tries++);
		for (i = 0; i < TENANTS; i++)
			fm_status(f.t[i].fd, &before[i]);
		ASSERT_GOOD(play(&f));
		for (i = 0; i < TENANTS; i++)
			ASSERT_GOOD(fm_job_wrong(&f.t[i], &f.e[i]));
	} while (card_pause_repeated(f.from));

	for (i = 0; i < TENANTS; i++) {
		fm_status(f.t[i].fd, &after);
		EXPECT_EQ(i == 1, after.preemptions - before[i].preemptions);
	}
	ASSERT_GOOD(fm_turns_wrong(f.from, (struct fm_turn[]) {
		{ f.a, CARD_START, &f.t[0] },
		{ f.b, CARD_START, &f.t[1] },
		{ f.b, CARD_PAUSE, &f.t[1] }, { f.b, CARD_PAUSED, &f.t[1] },
		{ f.b, CARD_START, &f.t[2] }, { f.b, CARD_FINISHED, &f.t[2] },
		{ f.b, CARD_RESUME, &f.t[1] },
		{ f.a, CARD_FINISHED, &f.t[0] },
		{ f.b, CARD_FINISHED, &f.t[1] } }, 9));
}

TEST_HARNESS_MAIN
