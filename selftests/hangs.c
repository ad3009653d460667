// SPDX-License-Identifier: GPL-2.0
/* A test that takes too long, on purpose, and one after it: ./harness checks their results. */
#include "kselftest_harness.h"

#include "lib/sched.h"

FM_FIXTURE_CARD(hangs);

#define BOOST_NS	(777 * FM_MS)

static u64 boost_interval(void)
{
	struct fm_policy policy;

	fm_policy_get(&policy);
	return policy.boost_ms * FM_MS;
}

TEST_F_TIMEOUT(hangs, with_a_context_and_its_own_policy, 16)
{
	struct fm_ctx c;

	fm_policy(FERMATA_POLICY_PRIORITY, BOOST_NS);
	ASSERT_EQ(BOOST_NS, boost_interval());
	fm_ctx_new(&c, FM_LIST, FM_PAGE);
	for (;;)
		pause();
}

FM_TEST(hangs, next_one_finds_nothing_of_it)
{
	struct fermata_card_info info;

	fm_card_info(&info);
	EXPECT_EQ(0, info.contexts);
	EXPECT_NE(BOOST_NS, boost_interval());
}

TEST_HARNESS_MAIN
