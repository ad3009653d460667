// SPDX-License-Identifier: GPL-2.0
/*
 * The first figure of EPOCH: three tenants on two slots. At t1 and t2 tenants 1 and 2 start; at t3
 * tenant 3 arrives, which has a higher priority: tenant 2 is paused and saved, and at t4 tenant 3
 * has its slot; at t5 tenant 3 is done; at t6 tenant 2 is restored and goes on with nothing lost.
 */
#include "kselftest_harness.h"
#include "lib/sched.h"

FM_FIXTURE_CARD(epoch);

FM_TEST(epoch, three_tenants_on_two_slots)
{
	static const u64 steps[] = { 4000000, 3000000, 5000 };
	static const u32 priority[] = { 17, 16, 20 };
	struct fermata_status st;
	struct fm_expect e[3];
	struct fm_ctx t[3];
	u64 from, mask;
	int a, b, i;

	fm_policy(FERMATA_POLICY_PRIORITY, 0);
	for (i = 0; i < 3; i++) {
		struct fermata_param param = {
			.size = sizeof(param), .param = FERMATA_PARAM_SLOT_MASK
		};

		fm_tenant_list(&t[i], FM_LONG_SLICE, steps[i], i + 1, &e[i]);
		fm_must(t[i].fd, FERMATA_IOC_PARAM_GET, &param, "PARAM_GET");
		mask = param.max;
		if (__builtin_popcountll(mask) != 2)
			SKIP(return, "not two slots with one engine");
		fm_param(t[i].fd, FERMATA_PARAM_SLOT_MASK, mask);
		fm_param(t[i].fd, FERMATA_PARAM_PRIORITY, priority[i]);
	}
	a = __builtin_ctzll(mask);
	b = 63 - __builtin_clzll(mask);
	card_speed(a, 1);
	card_speed(b, 1);
	from = card_history_end();

	fm_must_start(&t[0]);				/* t1 */
	card_until_runs(a, t[0].token);
	fm_must_start(&t[1]);				/* t2 */
	card_until_runs(b, t[1].token);
	fm_sleep_us(2000);
	ASSERT_GOOD(fm_job_run(&t[2], &e[2]));		/* t3 to t5 */
	card_until_runs(b, t[1].token);			/* t6 */
	card_speed(a, 0);
	fm_wait(t[0].fd, FERMATA_EVENT_DONE);
	card_speed(b, 0);
	fm_wait(t[1].fd, FERMATA_EVENT_DONE);

	for (i = 0; i < 3; i++) {
		ASSERT_GOOD(fm_job_wrong(&t[i], &e[i]));
		fm_status(t[i].fd, &st);
		EXPECT_EQ(i == 1, st.preemptions);
	}
	ASSERT_GOOD(fm_turns_wrong(from, (struct fm_turn[]) {
		{ a, CARD_START, &t[0] },
		{ b, CARD_START, &t[1] },
		{ b, CARD_PAUSE, &t[1] }, { b, CARD_PAUSED, &t[1] },
		{ b, CARD_START, &t[2] }, { b, CARD_FINISHED, &t[2] },
		{ b, CARD_RESUME, &t[1] },
		{ a, CARD_FINISHED, &t[0] },
		{ b, CARD_FINISHED, &t[1] } }, 9));
}

TEST_HARNESS_MAIN
