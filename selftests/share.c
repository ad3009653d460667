// SPDX-License-Identifier: GPL-2.0
/*
 * Several processes share a slot, with slices of 1 and 2 ms: the same results as alone, the
 * card's count of slices, the order of turns, no idle slot while one waits, and the time of members
 * of a group under each policy.
 */
#include "kselftest_harness.h"
#include <sys/wait.h>
#include "lib/sched.h"

FM_FIXTURE_CARD(share);

#define TENANTS	4

/*
 * A context that occupies the slot while the jobs of others are started, and
 * then releases it, so that their order does not depend on timing.
 */
struct gate {
	struct fm_ctx c;
};

static void gate_close(struct gate *g, enum fm_engine engine)
{
	int rc;

	fm_ctx_new(&g->c, engine, engine == FM_SHA ? 4 << 20 : 2 * FM_PAGE);
	rc = fm_param_set(g->c.fd, FERMATA_PARAM_TIMESLICE, 10000 * FM_MS);
	if (rc)
		fm_die("timeslice of the gate: %s", strerror(-rc));
	card_speed(g->c.slot, 1);
	fm_job_endless(&g->c);
	rc = fm_start(g->c.fd);
	if (rc)
		fm_die("START of the gate: %s", strerror(-rc));
	card_until_runs(g->c.slot, g->c.token);
}

static void gate_open(struct gate *g)
{
	if (g->c.engine == FM_LIST)
		fm_list_cut(&g->c, FM_ENDLESS_NODES);
	else
		fm_preempt(g->c.fd, FERMATA_PREEMPT_HOLD);
}

/* Waits for this many pauses, as the card counts them: the job belongs to another process. */
static void until_paused(int slot, u64 token, u64 times)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;
	struct card_run run;

	do {
		if (fm_now() > end)
			fm_die("not paused %d times", (int)times);
		fm_sleep_us(1000);
		card_run_of(slot, token, &run);
	} while (run.pauses < times);
}

static void share_in_processes(struct __test_metadata *_metadata, enum fm_engine engine,
			       u64 slice_ns)
{
	struct fm_child ch[TENANTS];
	struct fm_ctx probe;
	struct card_run run;
	struct gate gate;
	int slot, i;

	if (fm_slot_of(engine) < 0)
		return;
	fm_ctx_new(&probe, engine, FM_PAGE);
	slot = probe.slot;
	fm_ctx_close(&probe);
	gate_close(&gate, engine);
	card_speed(slot, 1);
	for (i = 0; i < TENANTS; i++) {
		struct fm_ctx c;
		struct fermata_status st;
		struct fm_expect e;
		const char *wrong;

		fm_fork(&ch[i]);
		if (ch[i].pid)
			continue;
		fm_ctx_new(&c, engine, 1 << 20);
		fm_job_any(&c, 900000, i * 1001, &e);
		if (fm_param_set(c.fd, FERMATA_PARAM_TIMESLICE, slice_ns))
			_exit(1);
		fm_say(&ch[i], c.token);
		fm_hear(&ch[i]);
		if (fm_start(c.fd))
			_exit(2);
		fm_say(&ch[i], 1);
		fm_wait(c.fd, FERMATA_EVENT_DONE);
		wrong = fm_job_wrong(&c, &e);
		if (wrong) {
			printf("# tenant %d: %s\n", i, wrong);
			fflush(stdout);
		}
		fm_status(c.fd, &st);
		fm_say(&ch[i], !wrong && st.state == FERMATA_STATE_DONE);
		fm_say(&ch[i], st.slices);
		fm_say(&ch[i], st.preemptions);
		/* Keep the context until the parent has asked the card. */
		fm_hear(&ch[i]);
		fm_ctx_close(&c);
		_exit(0);
	}
	{
		u64 token[TENANTS], slices, preemptions;

		for (i = 0; i < TENANTS; i++)
			token[i] = fm_hear(&ch[i]);
		for (i = 0; i < TENANTS; i++)
			fm_say(&ch[i], 1);
		for (i = 0; i < TENANTS; i++)
			fm_hear(&ch[i]);
		gate_open(&gate);
		for (i = 0; i < TENANTS; i++)
			until_paused(slot, token[i], 8);
		card_speed(slot, 0);
		for (i = 0; i < TENANTS; i++) {
			EXPECT_EQ(1, fm_hear(&ch[i]));
			slices = fm_hear(&ch[i]);
			preemptions = fm_hear(&ch[i]);
			card_run_of(slot, token[i], &run);
			TH_LOG("tenant %d: %d slices, %d preemptions; card: %d pauses", i,
			       (int)slices, (int)preemptions, (int)run.pauses);
			EXPECT_EQ(slices, preemptions + 1);
			EXPECT_EQ(slices, run.starts + run.resumes);
			EXPECT_EQ(1, run.starts);
			EXPECT_EQ(preemptions, run.pauses);
			EXPECT_EQ(1, run.finishes);
		}
		for (i = 0; i < TENANTS; i++) {
			fm_say(&ch[i], 1);
			EXPECT_EQ(0, fm_reap(&ch[i]));
		}
	}
	fm_ctx_close(&gate.c);
}

FM_TEST(share, point_11_linkedlist_2ms)
{
	share_in_processes(_metadata, FM_LIST, 2 * FM_MS);
}

FM_TEST(share, point_11_linkedlist_1ms)
{
	share_in_processes(_metadata, FM_LIST, FM_MS);
}

FM_TEST(share, point_11_membench_2ms)
{
	share_in_processes(_metadata, FM_MEM, 2 * FM_MS);
}

FM_TEST(share, point_11_sha256_2ms)
{
	share_in_processes(_metadata, FM_SHA, 2 * FM_MS);
}

/* One process with several contexts, each slot with its own. */
FM_TEST(share, slots_are_independent)
{
	struct fm_ctx c[FM_ENGINES][2];
	struct fm_expect e[FM_ENGINES][2];
	int engine, i;

	for (engine = 0; engine < FM_ENGINES; engine++) {
		if (fm_slot_of(engine) < 0)
			continue;
		for (i = 0; i < 2; i++) {
			fm_ctx_new(&c[engine][i], engine, 64 * 1024);
			fm_job_any(&c[engine][i], 30000, engine * 10 + i, &e[engine][i]);
			card_speed(c[engine][i].slot, 1);
		}
	}
	for (i = 0; i < 2; i++)
		for (engine = 0; engine < FM_ENGINES; engine++)
			if (fm_slot_of(engine) >= 0)
				ASSERT_EQ(0, fm_start(c[engine][i].fd));
	for (engine = 0; engine < FM_ENGINES; engine++) {
		if (fm_slot_of(engine) < 0)
			continue;
		for (i = 0; i < 2; i++) {
			fm_wait(c[engine][i].fd, FERMATA_EVENT_DONE);
			ASSERT_GOOD(fm_job_wrong(&c[engine][i], &e[engine][i]));
		}
	}
}

/* A job is not preempted while no other waits, however long it runs. */
FM_TEST(share, point_11_lone_tenant_is_not_preempted)
{
	u64 pauses, starts;
	struct fermata_status st;
	struct fm_expect e;
	struct fm_ctx c, idle;

	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	/* A context without a job does not count. */
	fm_ctx_new(&idle, FM_LIST, 4096);
	ASSERT_EQ(0, fm_param_set(c.fd, FERMATA_PARAM_TIMESLICE, FM_MS));
	card_speed(c.slot, 1);
	pauses = card_counter(c.slot, "pauses_written");
	starts = card_counter(c.slot, "starts");
	fm_job_list(&c, 64, 100000, 5, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
	fm_status(c.fd, &st);
	EXPECT_EQ(1, st.slices);
	EXPECT_EQ(0, st.preemptions);
	EXPECT_EQ(pauses, card_counter(c.slot, "pauses_written"));
	EXPECT_EQ(starts + 1, card_counter(c.slot, "starts"));
}

/* When the others have ended, the last one is left alone. */
FM_TEST(share, point_11_work_conserving)
{
	struct fermata_status before, after;
	struct fm_ctx a, b;
	struct fm_expect eb;

	fm_ctx_new(&a, FM_LIST, 64 * 1024);
	fm_ctx_new(&b, FM_LIST, 64 * 1024);
	ASSERT_EQ(0, fm_param_set(a.fd, FERMATA_PARAM_TIMESLICE, FM_MS));
	ASSERT_EQ(0, fm_param_set(b.fd, FERMATA_PARAM_TIMESLICE, FM_MS));
	card_speed(a.slot, 1);
	fm_job_endless(&a);
	ASSERT_EQ(0, fm_start(a.fd));
	card_until_runs(a.slot, a.token);
	fm_job_list(&b, 64, 4000000, 5, &eb);
	ASSERT_EQ(0, fm_start(b.fd));
	fm_until_preempted(b.fd, 1);
	card_speed(a.slot, 0);
	fm_wait(b.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&b, &eb));
	card_speed(a.slot, 1);
	card_until_runs(a.slot, a.token);
	fm_until_state(a.fd, FERMATA_STATE_RUNNING);
	fm_status(a.fd, &before);
	fm_sleep_us(50000);
	fm_status(a.fd, &after);
	EXPECT_EQ(before.slices, after.slices);
	EXPECT_EQ(before.preemptions, after.preemptions);
	EXPECT_EQ(FERMATA_STATE_RUNNING, after.state);
	fm_list_cut(&a, FM_ENDLESS_NODES);
	fm_wait(a.fd, FERMATA_EVENT_DONE);
}

/* A job that yields waits behind the next one, however little it ran, until that one yields. */
FM_TEST(share, point_11_yield_goes_behind_the_next)
{
	struct fm_ctx c[2];
	int i, round;

	for (i = 0; i < 2; i++) {
		fm_ctx_new(&c[i], FM_LIST, 64 * 1024);
		ASSERT_EQ(0, fm_param_set(c[i].fd, FERMATA_PARAM_TIMESLICE, 10000 * FM_MS));
		fm_job_endless(&c[i]);
	}
	card_speed(c[0].slot, 1);
	for (i = 0; i < 2; i++)
		ASSERT_EQ(0, fm_start(c[i].fd));
	for (round = 0; round < 9; round++) {
		i = round % 2;
		card_until_runs(c[0].slot, c[i].token);
		fm_until_state(c[i].fd, FERMATA_STATE_RUNNING);
		/* A relay switches before the driver knows of it. */
		fm_until_state(c[1 - i].fd, FERMATA_STATE_QUEUED);
		/* The running job has had little time, the other one much. */
		fm_sleep_us(round == 0 ? 20000 : 0);
		ASSERT_EQ(0, fm_preempt(c[i].fd, 0));
	}
	for (i = 0; i < 2; i++)
		fm_list_cut(&c[i], FM_ENDLESS_NODES);
	for (i = 0; i < 2; i++)
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
}

/* By timer: all get the same number of turns. */
FM_TEST(share, point_11_nobody_starves)
{
	struct card_run run[3];
	struct fm_ctx c[3];
	u64 least, most, turns;
	struct gate gate;
	int i;

	/* Jobs take turns, whatever time a late timer gives to one of them. */
	fm_policy(FERMATA_POLICY_ROUND_ROBIN, 0);
	gate_close(&gate, FM_LIST);
	for (i = 0; i < 3; i++) {
		fm_ctx_new(&c[i], FM_LIST, 64 * 1024);
		ASSERT_EQ(0, fm_param_set(c[i].fd, FERMATA_PARAM_TIMESLICE, 2 * FM_MS));
		fm_job_endless(&c[i]);
	}
	for (i = 0; i < 3; i++)
		ASSERT_EQ(0, fm_start(c[i].fd));
	gate_open(&gate);
	/* Until each has had ten; counts increase while they are read. */
	for (i = 0; i < 3; i++) {
		do {
			fm_sleep_us(2000);
			card_run_of(c[i].slot, c[i].token, &run[i]);
		} while (run[i].starts + run[i].resumes < 10);
	}
	card_runs_of(c[0].slot, c, run, 3);
	least = UINT64_MAX;
	most = 0;
	for (i = 0; i < 3; i++) {
		turns = run[i].starts + run[i].resumes;
		least = turns < least ? turns : least;
		most = turns > most ? turns : most;
	}
	TH_LOG("turns: %d to %d", (int)least, (int)most);
	EXPECT_GE(least + 1, most);
	EXPECT_LE(10, least);
	for (i = 0; i < 3; i++)
		fm_end_endless(&c[i]);
	fm_ctx_close(&gate.c);
}

/* Each context's own timeslice: a long one is not cut to a short one's. */
FM_TEST(share, timeslice_of_each_context)
{
	struct fermata_status sa, sb;
	struct fm_expect ea, eb;
	struct fm_ctx a, b;
	struct gate gate;

	gate_close(&gate, FM_LIST);
	fm_ctx_new(&a, FM_LIST, 64 * 1024);
	fm_ctx_new(&b, FM_LIST, 64 * 1024);
	ASSERT_EQ(0, fm_param_set(a.fd, FERMATA_PARAM_TIMESLICE, 10000 * FM_MS));
	ASSERT_EQ(0, fm_param_set(b.fd, FERMATA_PARAM_TIMESLICE, FM_MS));
	EXPECT_EQ(10000 * FM_MS, fm_param_get(a.fd, FERMATA_PARAM_TIMESLICE));
	EXPECT_EQ(FM_MS, fm_param_get(b.fd, FERMATA_PARAM_TIMESLICE));
	fm_job_list(&a, 64, 50000, 1, &ea);
	fm_job_list(&b, 64, 4000000, 2, &eb);
	ASSERT_EQ(0, fm_start(b.fd));
	ASSERT_EQ(0, fm_start(a.fd));
	gate_open(&gate);
	fm_wait(a.fd, FERMATA_EVENT_DONE);
	card_speed(a.slot, 0);
	fm_wait(b.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&a, &ea));
	ASSERT_GOOD(fm_job_wrong(&b, &eb));
	fm_status(a.fd, &sa);
	fm_status(b.fd, &sb);
	/* a never used up its slice; b was preempted for a in the middle. */
	EXPECT_EQ(1, sa.slices);
	EXPECT_EQ(0, sa.preemptions);
	EXPECT_LT(1, sb.slices);
	fm_ctx_close(&gate.c);
}

/* Jobs are saved and restored many times, with costs: no work is lost or done twice. */
FM_TEST(share, point_03_many_switches_of_two)
{
	struct fermata_status st;
	struct fm_expect e[2];
	struct fm_ctx c[2];
	struct gate gate;
	int i;

	gate_close(&gate, FM_LIST);
	for (i = 0; i < 2; i++) {
		fm_ctx_new(&c[i], FM_LIST, 64 * 1024);
		ASSERT_EQ(0, fm_param_set(c[i].fd, FERMATA_PARAM_TIMESLICE, 300000));
		fm_job_list(&c[i], 2000, 4000000, 7 + i, &e[i]);
		ASSERT_EQ(0, fm_start(c[i].fd));
	}
	card_set(c[0].slot, "save_us=50 restore_us=50");
	gate_open(&gate);
	for (i = 0; i < 2; i++)
		fm_until_preempted(c[i].fd, 20);
	card_speed(c[0].slot, 0);
	for (i = 0; i < 2; i++) {
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c[i], &e[i]));
		fm_status(c[i].fd, &st);
		EXPECT_LE(20, st.preemptions);
	}
	fm_ctx_close(&gate.c);
}

/* --- two members of a group, under each policy --------------------------------------------- */

/* Groups that compete with the one of the members, at its level and at that above. */
#define BESIDE	2
#define GROUP	FM_CGROUP "0"
#define INNER	GROUP "/i"

/* The first member is A; B's part of what both have, in percent. */
struct shares {
	const char *what;
	u64 weight[2], slice[2];
	u64 low, high;
};

#define CASES	2

static const struct shares by_time[CASES] = {
	{ "weights of 1 and 3", { 100, 300 }, { 4 * FM_MS, 4 * FM_MS }, 66, 84 },
	{ "slices of 0.5 and 8 ms", { 100, 100 }, { FM_MS / 2, 8 * FM_MS }, 38, 62 },
};

/* Turns, which last as long as a busy machine lets them. */
static const struct shares in_turn[CASES] = {
	{ "weights of 1 and 3", { 100, 300 }, { 2 * FM_MS, 2 * FM_MS }, 42, 58 },
	{ "slices of 0.5 and 8 ms", { 100, 100 }, { FM_MS / 2, 8 * FM_MS }, 42, 58 },
};

/* Opens a context in a cgroup, and gives it an endless job. */
static void member_of(const char *path, struct fm_ctx *c)
{
	fm_cgroup_make(path);
	fm_enter_path(path);
	fm_tenant(c, 2 * FM_MS);
	fm_enter(FM_ROOT);
	fm_job_endless(c);
}

static u64 run_of(const struct card_run *runs)
{
	return runs[0].run_ns + runs[1].run_ns;
}

/* Returns B's part of the next time that both have together, or of the turns in it, in percent. */
static u64 part_of_b(const struct fm_ctx *c, u64 time, bool turns)
{
	struct card_run before[2], after[2];
	u64 end = fm_now() + FM_GUARD_MS * FM_MS, had[2];
	int i;

	card_runs_of(c->slot, c, before, 2);
	do {
		if (fm_now() > end)
			fm_die("the members have not had %d ms", (int)(time / FM_MS));
		fm_sleep_us(5000);
		card_runs_of(c->slot, c, after, 2);
	} while (run_of(after) - run_of(before) < time);
	for (i = 0; i < 2; i++)
		had[i] = turns ? after[i].resumes - before[i].resumes :
				 after[i].run_ns - before[i].run_ns;
	return had[1] * 100 / (had[0] + had[1] ?: 1);
}

/*
 * Does B get its part? After a late timer, or a change, the time is right only later: each time is
 * twice as long as the one before. A wrong part is the same in each of them.
 */
static bool has_part(const struct fm_ctx *c, const struct shares *s, bool turns)
{
	u64 time = (fm_is_slow() ? 400 : 100) * FM_MS, part;
	int i;

	for (i = 0; i < 2; i++) {
		fm_param(c[i].fd, FERMATA_PARAM_WEIGHT, s->weight[i]);
		fm_param(c[i].fd, FERMATA_PARAM_TIMESLICE, s->slice[i]);
	}
	for (i = 0; i < 6; i++, time *= 2) {
		part = part_of_b(c, time, turns);
		if (part >= s->low && part <= s->high)
			return true;
		printf("# in %d ms: %d %%\n", (int)(time / FM_MS), (int)part);
	}
	return false;
}

/* Members of a group, or of one below it, alone, and beside one group and two. */
static void share_in_group(struct __test_metadata *_metadata, bool turns, bool nested)
{
	/* With a weight it is a level of its own, and each child is a group below it. */
	struct fermata_group_set level = {
		.flags = FERMATA_GROUP_WEIGHT | FERMATA_GROUP_CHILDREN, .weight = 100, .children = 1
	};
	const char *const paths[BESIDE] = { nested ? GROUP "/s" : FM_CGROUP "1", FM_CGROUP "2" };
	const struct shares *shares = turns ? in_turn : by_time;
	struct fm_ctx c[2 + BESIDE];
	int i, beside;

	fm_cgroup_make(GROUP);
	if (nested)
		fm_group(GROUP, &level);
	for (i = 0; i < 2; i++) {
		member_of(nested ? INNER : GROUP, &c[i]);
		fm_must_start(&c[i]);
	}
	card_speed(c[0].slot, 1);
	for (beside = 0; beside <= BESIDE; beside++) {
		if (beside) {
			member_of(paths[beside - 1], &c[1 + beside]);
			fm_must_start(&c[1 + beside]);
		}
		for (i = 0; i < CASES; i++) {
			ASSERT_TRUE(has_part(c, &shares[i], turns))
				TH_LOG("%s%s beside %d groups", nested ? "nested, " : "",
				       shares[i].what, beside);
		}
	}
	for (i = 0; i < 2 + BESIDE; i++) {
		fm_end_endless(&c[i]);
		fm_ctx_close(&c[i]);
	}
	fm_cgroups_remove();
}

static void share_under(struct __test_metadata *_metadata, const char *policy, bool turns)
{
	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	/* Without the boost, which gives slices besides. */
	fm_policy(policy, 0);
	share_in_group(_metadata, turns, false);
	share_in_group(_metadata, turns, true);
}

FM_TEST(share, members_of_a_group_under_fair)
{
	share_under(_metadata, FERMATA_POLICY_FAIR, false);
}

FM_TEST(share, members_of_a_group_under_deadline)
{
	share_under(_metadata, FERMATA_POLICY_DEADLINE, false);
}

FM_TEST(share, members_of_a_group_under_round_robin)
{
	share_under(_metadata, FERMATA_POLICY_ROUND_ROBIN, true);
}

FM_TEST(share, members_of_a_group_under_priority)
{
	share_under(_metadata, FERMATA_POLICY_PRIORITY, true);
}

TEST_HARNESS_MAIN
