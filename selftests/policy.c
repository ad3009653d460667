// SPDX-License-Identifier: GPL-2.0
/*
 * Policies, chosen by name while jobs run, checked by the card's log: order, percentages by
 * weights, budgets, caps, the starvation boost.
 */
#include "kselftest_harness.h"
#include <sys/wait.h>
#include "lib/sched.h"

FM_FIXTURE_CARD(policy);

static const char * const names[] = {
	FERMATA_POLICY_FAIR, FERMATA_POLICY_ROUND_ROBIN, FERMATA_POLICY_PRIORITY,
	FERMATA_POLICY_DEADLINE
};

#define NAMES	(sizeof(names) / sizeof(names[0]))
#define MANY	20000
#define SLICE	(2 * FM_MS)
#define NO_BOOST	0
#define TENANTS	4

static struct card_turn turns[MANY];

/* Waits for this many turns on the slot, then reads each tenant's time. */
static void measure(int slot, const struct fm_ctx *c, struct card_run *runs, int n, int turns_wanted)
{
	u64 from = card_history_end();

	card_until_turns(from, turns, MANY, turns_wanted);
	card_runs_of(slot, c, runs, n);
}

/* A tenant's part of the time, in percent. */
struct part {
	u64 low, high;
};

/* Has each its part of the time of all since `since` (NULL: the beginning)? */
static bool are_within(const struct card_run *runs, const struct card_run *since,
		       const struct part *parts, int n)
{
	u64 had[TENANTS], whole = 0;
	int i;

	for (i = 0; i < n; i++) {
		had[i] = runs[i].run_ns - (since ? since[i].run_ns : 0);
		whole += had[i];
	}
	for (i = 0; i < n; i++)
		if (!fm_percent_within(had[i], whole, parts[i].low, parts[i].high))
			return false;
	return true;
}

/*
 * Measures after each turns_wanted turns until each has its part: if a timer was late, the others
 * are compensated, but this takes some turns. Returns whether each got its part.
 */
static bool measure_until(const struct fm_ctx *c, struct card_run *runs, const struct card_run *since,
			  const struct part *parts, int n, int turns_wanted)
{
	u64 end = fm_now() + FM_GUARD_MS / 2 * FM_MS;

	do
		measure(c[0].slot, c, runs, n, turns_wanted);
	while (!are_within(runs, since, parts, n) && fm_now() < end);
	return are_within(runs, since, parts, n);
}

FM_TEST(policy, names_are_those_chosen)
{
	struct fm_policy before, after;
	size_t i;

	for (i = 0; i < NAMES; i++) {
		ASSERT_EQ(0, fm_policy_set(names[i]));
		ASSERT_EQ(0, fm_boost_set((i + 10) * 10));
		fm_policy_get(&before);
		EXPECT_STREQ(names[i], before.name);
		EXPECT_EQ((i + 10) * 10, before.boost_ms);
	}
	ASSERT_EQ(0, fm_policy_set(names[0]));
	fm_policy_get(&after);
	EXPECT_STREQ(names[0], after.name);
	EXPECT_EQ(before.boost_ms, after.boost_ms);
	EXPECT_EQ(-ENOENT, fm_policy_set("lottery"));
	EXPECT_EQ(-ENOENT, fm_policy_set("\n"));
	EXPECT_EQ(-ERANGE, fm_boost_set(9));
	EXPECT_EQ(-ERANGE, fm_boost_set(60001));
	fm_policy_get(&before);
	EXPECT_EQ(0, memcmp(&before, &after, sizeof(before)));
}

FM_TEST(policy, choosing_takes_cap_sys_admin)
{
	struct fm_policy before, after;
	struct fm_child ch;
	struct fm_ctx c;
	int status;

	fm_tenant(&c, SLICE);
	fm_policy_get(&before);
	fm_fork(&ch);
	if (!ch.pid) {
		fm_drop_privileges();
		_exit(fm_policy_set(FERMATA_POLICY_PRIORITY) == -EACCES ? 0 : 1);
	}
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	fm_policy_get(&after);
	EXPECT_EQ(0, memcmp(&before, &after, sizeof(before)));
}

/* All contexts run once each, in the order of their STARTs, again and again. */
FM_TEST(policy, round_robin_is_cyclic)
{
	struct fm_ctx gate, c[TENANTS];
	u64 from;
	int i, n;

	fm_policy(FERMATA_POLICY_ROUND_ROBIN, NO_BOOST);
	fm_gate_close(&gate);
	from = card_history_end();
	for (i = 0; i < TENANTS; i++) {
		fm_tenant(&c[i], SLICE);
		/* Parameters of other policies do not count. */
		fm_param(c[i].fd, FERMATA_PARAM_WEIGHT, i ? 100 : 1000);
		fm_param(c[i].fd, FERMATA_PARAM_PRIORITY, 16 + i);
		fm_job_endless(&c[i]);
		fm_must_start(&c[i]);
	}
	fm_gate_open(&gate);
	n = card_until_turns(from, turns, 100, 40);
	for (i = 0; i < n; i++) {
		EXPECT_EQ(c[i % TENANTS].token, turns[i].token)
			TH_LOG("turn %d of %d", i, n);
		EXPECT_EQ(i < TENANTS ? CARD_START : CARD_RESUME, turns[i].what);
	}
	for (i = 0; i < TENANTS; i++)
		fm_end_endless(&c[i]);
}

/* Time on the slot, as the card measures it, is in proportion to the weights. */
FM_TEST(policy, fair_by_weight)
{
	/* 14, 28 and 57 % by weight. */
	static const struct part parts[] = { { 10, 18 }, { 21, 36 }, { 42, 72 } };
	struct fm_ctx gate, c[3];
	struct card_run run[3];
	int i;

	fm_policy(FERMATA_POLICY_FAIR, NO_BOOST);
	fm_gate_close(&gate);
	for (i = 0; i < 3; i++) {
		fm_tenant(&c[i], SLICE);
		fm_param(c[i].fd, FERMATA_PARAM_WEIGHT, 100 << i);
		fm_job_endless(&c[i]);
		fm_must_start(&c[i]);
	}
	fm_gate_open(&gate);
	EXPECT_TRUE(measure_until(c, run, NULL, parts, 3, 300));
	for (i = 0; i < 3; i++)
		TH_LOG("weight %d: %d turns, %d us", 100 << i,
		       (int)(run[i].starts + run[i].resumes), (int)(run[i].run_ns / 1000));
	for (i = 0; i < 3; i++)
		fm_end_endless(&c[i]);
}

/* Runs a short job of c after one of before: duration of the START, and the time charged. */
static void run_after(struct fm_ctx *before, struct fm_ctx *c, u64 *took, u64 *charged)
{
	struct fermata_status st;
	struct fm_expect e;
	const char *why;
	u64 since;

	fm_job_list(before, 10, 100, 1, &e);
	why = fm_job_run(before, &e);
	fm_job_list(c, 10, 100, 1, &e);
	fm_status(c->fd, &st);
	since = st.run_ns;
	*took = fm_now();
	if (!why && !fm_start(c->fd)) {
		*took = fm_now() - *took;
		fm_wait(c->fd, FERMATA_EVENT_DONE);
		why = fm_job_wrong(c, &e);
	}
	if (why)
		fm_die("%s", why);
	fm_status(c->fd, &st);
	*charged = st.run_ns - since;
}

/* A relay loads all registers of a context: the driver writes none to the slot. */
static void writes_no_registers(struct __test_metadata *_metadata, struct fm_ctx *before, struct fm_ctx *c)
{
	u64 writes = card_register_writes(c->slot), ignored[2];

	run_after(before, c, &ignored[0], &ignored[1]);
	EXPECT_EQ(writes, card_register_writes(c->slot));
}

/*
 * The tenant after one that wrote all registers waits until they are cleared, but is not charged
 * for that. The shortest of several times is not distorted by other work of the machine.
 */
FM_TEST(policy, defect_05_registers_of_a_neighbour)
{
	const int all = (FERMATA_REG_LAST - FERMATA_REG_FIRST) / 8 + 1;
	struct fermata_reg regs[(FERMATA_REG_LAST - FERMATA_REG_FIRST) / 8 + 1];
	u64 took[2] = { -1ULL, -1ULL }, charged[2] = { -1ULL, -1ULL };
	struct fm_ctx c, before[2];
	int i, k, rounds = 0;

	for (i = 0; i < all; i++)
		regs[i] = (struct fermata_reg){ .offset = FERMATA_REG_FIRST + 8 * i, .value = 1 };
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	for (k = 0; k < 2; k++)
		fm_ctx_new(&before[k], FM_LIST, 64 * 1024);
	ASSERT_EQ(0, fm_regs_write(before[1].fd, regs, all));
	card_speed(c.slot, 0);
	if (card_relay()) {
		writes_no_registers(_metadata, &before[1], &c);
		return;
	}
	do {
		for (k = 0; k < 2; k++) {
			u64 t, ns;

			run_after(&before[k], &c, &t, &ns);
			took[k] = t < took[k] ? t : took[k];
			charged[k] = ns < charged[k] ? ns : charged[k];
		}
	} while (++rounds < 10 || (rounds < 200 && charged[1] >= charged[0] + (took[1] - took[0]) / 4));
	TH_LOG("after few registers %d us, %d us are charged; after all %d us, %d us; of %d rounds",
	       (int)(took[0] / 1000), (int)(charged[0] / 1000),
	       (int)(took[1] / 1000), (int)(charged[1] / 1000), rounds);
	ASSERT_LT(2 * took[0], took[1]);
	EXPECT_LT(charged[1], charged[0] + (took[1] - took[0]) / 4);
}

/* A weight takes effect at the moment at which it is set. */
FM_TEST(policy, weight_changes_while_it_runs)
{
	static const struct part alike[] = { { 35, 65 }, { 35, 65 } };
	static const struct part unlike[] = { { 75, 97 }, { 3, 25 } };
	struct card_run first[2], then[2];
	struct fm_ctx gate, c[2];
	int i;

	fm_policy(FERMATA_POLICY_FAIR, NO_BOOST);
	fm_gate_close(&gate);
	for (i = 0; i < 2; i++) {
		fm_tenant(&c[i], SLICE);
		fm_job_endless(&c[i]);
		fm_must_start(&c[i]);
	}
	fm_gate_open(&gate);
	EXPECT_TRUE(measure_until(c, first, NULL, alike, 2, 100));
	ASSERT_EQ(0, fm_param_set_of(c[0].fd, fm_number(c[0].fd), FERMATA_PARAM_WEIGHT, 900));
	card_runs_of(c[0].slot, c, first, 2);
	EXPECT_TRUE(measure_until(c, then, first, unlike, 2, 60));
	TH_LOG("at 900 to 100: %d us to %d us", (int)((then[0].run_ns - first[0].run_ns) / 1000),
	       (int)((then[1].run_ns - first[1].run_ns) / 1000));
	for (i = 0; i < 2; i++)
		fm_end_endless(&c[i]);
}

/* The highest priority runs first, until it is done; equals take turns; the lowest runs last. */
FM_TEST(policy, priority_order)
{
	enum { LOW, A, B, HIGH, ALL };
	static const u32 priority[ALL] = { 5, 16, 16, 20 };
	struct fm_expect e[ALL];
	struct fm_ctx gate, c[ALL];
	u64 from;
	int i, n, equals, highs;

	fm_policy(FERMATA_POLICY_PRIORITY, NO_BOOST);
	fm_gate_close(&gate);
	from = card_history_end();
	for (i = 0; i < ALL; i++) {
		/* Jobs of equals are long enough for their turns, however slow the host is. */
		fm_tenant_list(&c[i], SLICE, i == A || i == B ? 4000000 : 40000, i + 1, &e[i]);
		fm_param(c[i].fd, FERMATA_PARAM_PRIORITY, priority[i]);
		fm_must_start(&c[i]);
	}
	fm_gate_open(&gate);
	/* The first turn is that of HIGH. */
	card_until_turns(from, turns, MANY, 1 + 6);
	card_speed(c[A].slot, 0);
	for (i = 0; i < ALL; i++) {
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c[i], &e[i]));
	}
	n = card_order(from, turns, MANY);
	/* No slice ends while no job of the same or a higher priority waits. */
	EXPECT_EQ(c[HIGH].token, turns[0].token);
	EXPECT_EQ(c[LOW].token, turns[n - 1].token);
	highs = card_turns_of(from, c[HIGH].token);
	EXPECT_EQ(1, highs);
	EXPECT_EQ(1, card_turns_of(from, c[LOW].token));
	equals = n - 2;
	EXPECT_LT(4, equals);
	/* Two jobs alternate; the last turns are those of the remaining one. */
	for (i = 0; i < equals && i < 6; i++)
		EXPECT_EQ(c[i % 2 ? B : A].token, turns[1 + i].token);
}

/* A higher priority does not wait for the end of a slice. */
FM_TEST(policy, priority_at_once)
{
	struct fm_expect el, eh;
	struct fm_ctx low, high;
	u64 from;

	fm_policy(FERMATA_POLICY_PRIORITY, NO_BOOST);
	from = card_history_end();
	fm_tenant_list(&low, FM_LONG_SLICE, 4000000, 1, &el);
	fm_tenant_list(&high, FM_LONG_SLICE, 5000, 2, &eh);
	fm_param(high.fd, FERMATA_PARAM_PRIORITY, 17);
	card_speed(low.slot, 1);
	fm_must_start(&low);
	card_until_runs(low.slot, low.token);
	ASSERT_GOOD(fm_job_run(&high, &eh));
	card_speed(low.slot, 0);
	fm_wait(low.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&low, &el));
	ASSERT_GOOD(fm_turns_wrong(from, (struct fm_turn[]) {
		{ 0, CARD_START, &low }, { 0, CARD_PAUSE, &low }, { 0, CARD_PAUSED, &low },
		{ 0, CARD_START, &high }, { 0, CARD_FINISHED, &high },
		{ 0, CARD_RESUME, &low }, { 0, CARD_FINISHED, &low } }, 7));
}

/* Without the starvation boost the lower priority gets nothing; with the boost it gets turns. */
FM_TEST(policy, boost_keeps_low_priority_alive)
{
	struct fm_ctx low, high;
	u64 from;

	fm_policy(FERMATA_POLICY_PRIORITY, NO_BOOST);
	fm_tenant(&high, SLICE);
	fm_tenant(&low, SLICE);
	fm_param(high.fd, FERMATA_PARAM_PRIORITY, 17);
	card_speed(high.slot, 1);
	fm_job_endless(&high);
	fm_job_endless(&low);
	from = card_history_end();
	fm_must_start(&high);
	card_until_runs(high.slot, high.token);
	fm_must_start(&low);
	fm_sleep_us(200000);
	EXPECT_EQ(0, card_turns_of(from, low.token));
	EXPECT_EQ(FERMATA_STATE_QUEUED, fm_state(low.fd));
	fm_policy(FERMATA_POLICY_PRIORITY, 20 * FM_MS);
	card_until_turns(from, turns, MANY, 11);
	EXPECT_NE(FERMATA_STATE_DONE, fm_state(high.fd));
	/* Turns of both priorities alternate. */
	EXPECT_LE(5, card_turns_of(from, low.token));
	fm_end_endless(&high);
	fm_end_endless(&low);
}

/* Admission counts all slots of an engine: the numbers below are those of one slot. */
static bool one_slot(int fd)
{
	struct fermata_param param = { .size = sizeof(param), .param = FERMATA_PARAM_SLOT_MASK };

	fm_must(fd, FERMATA_IOC_PARAM, &param, "PARAM");
	return __builtin_popcountll(param.max) == 1;
}

static int reserve(int fd, u64 budget, u64 deadline, u64 period)
{
	struct fermata_reserve r = {
		.size = sizeof(r), .flags = FERMATA_SET, .budget_ns = budget, .deadline_ns = deadline,
		.period_ns = period
	};

	return fm_ioctl(fd, FERMATA_IOC_RESERVE, &r);
}

/* A budget is kept, and not exceeded, whatever the others weigh. */
FM_TEST(policy, deadline_keeps_budgets)
{
	enum { SHORT, WIDE, OTHER, ANOTHER, ALL };
	struct card_run run[ALL];
	/*
	 * A quarter of all time each, less what a busy machine takes; by weight they would get a
	 * ten-thousandth.
	 */
	static const struct part parts[] = { { 4, 100 }, { 4, 100 }, { 0, 100 }, { 0, 100 } };
	struct fm_ctx gate, c[ALL];
	u64 begin, end, elapsed;
	bool kept;
	int i;

	fm_policy(FERMATA_POLICY_DEADLINE, NO_BOOST);
	fm_gate_close(&gate);
	for (i = 0; i < ALL; i++) {
		fm_tenant(&c[i], SLICE);
		fm_param(c[i].fd, FERMATA_PARAM_WEIGHT, i < OTHER ? 1 : 10000);
		fm_job_endless(&c[i]);
	}
	if (!one_slot(c[0].fd))
		SKIP(return, "several slots with one engine");
	ASSERT_EQ(0, reserve(c[SHORT].fd, 10 * FM_MS, 40 * FM_MS, 40 * FM_MS));
	ASSERT_EQ(0, reserve(c[WIDE].fd, 50 * FM_MS, 200 * FM_MS, 200 * FM_MS));
	/* More than nine tenths together. */
	EXPECT_EQ(-EBUSY, reserve(c[OTHER].fd, 45 * FM_MS, 100 * FM_MS, 100 * FM_MS));
	for (i = 0; i < ALL; i++)
		fm_must_start(&c[i]);
	begin = fm_now();
	fm_gate_open(&gate);
	/* Time beyond a budget, because of a late timer, is a debt that is paid back later. */
	end = begin + FM_GUARD_MS / 2 * FM_MS;
	do {
		measure(c[0].slot, c, run, ALL, 400);
		elapsed = fm_now() - begin;
		kept = are_within(run, NULL, parts, ALL);
		for (i = 0; i < OTHER; i++)
			kept &= fm_percent_within(run[i].run_ns, elapsed, 0, 32);
	} while (!kept && fm_now() < end);
	EXPECT_TRUE(kept);
	for (i = 0; i < ALL; i++)
		TH_LOG("tenant %d: %d turns, %d %%", i, (int)(run[i].starts + run[i].resumes),
		       (int)(run[i].run_ns * 100 / elapsed));
	EXPECT_LT(0, run[OTHER].resumes);
	EXPECT_LT(0, run[ANOTHER].resumes);
	for (i = 0; i < ALL; i++)
		fm_end_endless(&c[i]);
}

/* The earlier deadline preempts at once. */
FM_TEST(policy, deadline_earliest_first)
{
	struct fm_expect el, es;
	struct fm_ctx late, soon;
	u64 from;

	fm_policy(FERMATA_POLICY_DEADLINE, NO_BOOST);
	from = card_history_end();
	fm_tenant_list(&late, FM_LONG_SLICE, 4000000, 1, &el);
	fm_tenant_list(&soon, FM_LONG_SLICE, 3000, 2, &es);
	if (!one_slot(late.fd))
		SKIP(return, "several slots with one engine");
	ASSERT_EQ(0, reserve(late.fd, 4000 * FM_MS, 10000 * FM_MS, 10000 * FM_MS));
	/* Far more than its job takes, however long its engine is delayed. */
	ASSERT_EQ(0, reserve(soon.fd, 1600 * FM_MS, 4000 * FM_MS, 4000 * FM_MS));
	card_speed(late.slot, 1);
	fm_must_start(&late);
	card_until_runs(late.slot, late.token);
	ASSERT_GOOD(fm_job_run(&soon, &es));
	card_speed(late.slot, 0);
	fm_wait(late.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&late, &el));
	ASSERT_GOOD(fm_turns_wrong(from, (struct fm_turn[]) {
		{ 0, CARD_START, &late }, { 0, CARD_PAUSE, &late }, { 0, CARD_PAUSED, &late },
		{ 0, CARD_START, &soon }, { 0, CARD_FINISHED, &soon },
		{ 0, CARD_RESUME, &late }, { 0, CARD_FINISHED, &late } }, 7));
}

/* A cap holds although the slot is vacant, under any policy. */
FM_TEST(policy, cap_while_the_slot_is_free)
{
	struct fermata_status st;
	struct card_run run;
	struct fm_ctx c;
	u64 from, begin, elapsed;
	bool throttled = false;

	fm_policy(FERMATA_POLICY_FAIR, NO_BOOST);
	fm_tenant(&c, SLICE);
	fm_param(c.fd, FERMATA_PARAM_CAP, 20);
	card_speed(c.slot, 1);
	fm_job_endless(&c);
	from = card_history_end();
	begin = fm_now();
	fm_must_start(&c);
	while (fm_now() - begin < 2000 * FM_MS || card_turns_of(from, c.token) < 5) {
		fm_status(c.fd, &st);
		throttled |= st.attributes & FERMATA_STATUS_THROTTLED;
		fm_sleep_us(1000);
	}
	card_run_of(c.slot, c.token, &run);
	elapsed = fm_now() - begin;
	TH_LOG("%d turns, %d ms of %d", (int)(run.starts + run.resumes),
	       (int)(run.run_ns / FM_MS), (int)(elapsed / FM_MS));
	EXPECT_TRUE(throttled);
	/* 20 %, and at most 100 ms that were saved up. */
	EXPECT_GE(40, run.run_ns * 100 / elapsed);
	EXPECT_LT(0, run.resumes);
	fm_param(c.fd, FERMATA_PARAM_CAP, 0);
	card_until_runs(c.slot, c.token);
	fm_end_endless(&c);
}

/* All policies in turn while jobs run: no work is lost or done twice. */
FM_TEST(policy, switched_while_jobs_run)
{
	struct fm_ctx gate, c[TENANTS];
	struct fm_expect e[TENANTS];
	int i, round;

	fm_gate_close(&gate);
	for (i = 0; i < TENANTS; i++) {
		fm_tenant_list(&c[i], FM_MS, 150000, i + 1, &e[i]);
		fm_param(c[i].fd, FERMATA_PARAM_PRIORITY, 14 + i);
		fm_param(c[i].fd, FERMATA_PARAM_WEIGHT, 50 * (i + 1));
		fm_must_start(&c[i]);
	}
	fm_gate_open(&gate);
	for (round = 0; round < 40; round++) {
		fm_policy(names[round % NAMES], 10 * FM_MS);
		fm_sleep_us(5000);
	}
	for (i = 0; i < TENANTS; i++) {
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c[i], &e[i]));
	}
	ASSERT_GOOD(fm_runs_wrong(c, TENANTS));
}

TEST_HARNESS_MAIN
