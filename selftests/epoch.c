// SPDX-License-Identifier: GPL-2.0
/*
 * The first figure of EPOCH: three tenants on two slots. At t1 and t2 tenants 1 and 2 start; at t3
 * tenant 3 arrives, which has a higher priority: tenant 2 is paused and saved, and at t4 tenant 3
 * has its slot; at t5 tenant 3 is done; at t6 tenant 2 is restored and goes on with nothing lost.
 */
#include "kselftest_harness.h"
#include "lib/sched.h"

FM_FIXTURE_CARD(epoch);

#define TENANTS	3
/* So often the machine may be too slow for the driver to count on the slot that it has paused. */
#define TRIES	10

struct figure {
	struct fm_ctx t[TENANTS];
	struct fm_expect e[TENANTS];
	int a, b;	/* the slots */
	u64 from;	/* where its events begin */
};

/* Three contexts that may use both slots; false: there are not two. */
static bool prepare(struct figure *f)
{
	/* The first one, once it is let loose, ends long before the second does, which is not. */
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
	/* t6; where, is seen by the card's log: after a try that was too slow they may have changed. */
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
