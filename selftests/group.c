// SPDX-License-Identifier: GPL-2.0
/* Groups: who belongs together, and slots that serve one group only. */
#include "kselftest_harness.h"
#include <sys/wait.h>
#include "lib/sched.h"

FM_FIXTURE_CARD(group);

#define USER		65534
#define MANY		4000

/* A context of another group than this process's. */
static void other_group(struct fm_ctx *c)
{
	fm_enter(0);
	fm_tenant(c, FM_LONG_SLICE);
	fm_enter(FM_ROOT);
}

static u64 group_of(int fd)
{
	struct fermata_status st;

	fm_status(fd, &st);
	return st.group;
}

/* What the list says of the group of a context. */
static u64 listed_group(int fd, u32 context)
{
	struct fermata_context_info info = { .size = sizeof(info) };
	int rc;

	do {
		rc = fm_ioctl(fd, FERMATA_IOC_CONTEXT_INFO, &info);
		if (rc)
			fm_die("context %u is not listed: %s", context, strerror(-rc));
	} while (info.context != context);
	return info.group;
}

static int exclusive(int fd, u32 flags, u32 context, u32 slots)
{
	struct fermata_exclusive e = {
		.size = sizeof(e), .flags = flags, .context = context, .slot_mask = slots
	};

	return fm_ioctl(fd, FERMATA_IOC_EXCLUSIVE, &e);
}

static u64 slot_group(int fd, u32 slot, bool *is_exclusive)
{
	struct fermata_slot_info info = { .size = sizeof(info), .slot = slot };

	fm_must(fd, FERMATA_IOC_SLOT_INFO, &info, "SLOT_INFO");
	*is_exclusive = info.flags & FERMATA_SLOT_EXCLUSIVE;
	return info.group;
}

FM_TEST(group, is_the_user_in_the_root_cgroup)
{
	int fds[2], other;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fds[0] = fm_open_dev(0);
	fds[1] = fm_open_dev(0);
	ASSERT_EQ(0, setresuid(USER, 0, 0));
	other = fm_open_dev(0);
	ASSERT_EQ(0, setresuid(0, 0, 0));
	ASSERT_LE(0, other);
	EXPECT_EQ(1ULL << 63, group_of(fds[0]));
	EXPECT_EQ(1ULL << 63, group_of(fds[1]));
	EXPECT_EQ(1ULL << 63 | USER, group_of(other));
}

/* Taken at open(): where its opener goes afterwards does not matter. */
FM_TEST(group, is_the_cgroup)
{
	struct fm_child ch;
	struct fm_ctx own, other;
	u64 number, group;
	int status;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_enter(0);
	group = fm_cgroup_number(0);
	fm_tenant(&other, FM_MS);
	fm_enter(FM_ROOT);
	fm_tenant(&own, FM_MS);
	EXPECT_EQ(group, group_of(other.fd));
	EXPECT_NE(group, group_of(own.fd));
	/* Its number stays its own when it is gone. */
	fm_cgroups_remove();
	number = fm_number(other.fd);
	EXPECT_EQ(group, listed_group(own.fd, number));
	/* Not told to others without the capability. */
	fm_fork(&ch);
	if (!ch.pid) {
		fm_drop_privileges();
		if (listed_group(own.fd, number) != 0)
			_exit(1);
		if (listed_group(other.fd, number) != group || group_of(other.fd) != group)
			_exit(2);
		_exit(0);
	}
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
}

/* The slot goes to its group at once; the others' job waits, and goes on when it is lifted. */
FM_TEST(group, slot_for_one_group)
{
	struct fm_ctx own, other;
	struct fermata_status st;
	struct fm_expect e;
	bool is_exclusive;
	u64 from;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	other_group(&other);
	fm_policy(FERMATA_POLICY_FAIR, 0);
	fm_tenant_list(&own, FM_LONG_SLICE, 2000, 1, &e);
	fm_job_endless(&other);
	card_speed(own.slot, 1);
	from = card_history_end();
	fm_must_start(&other);
	card_until_runs(other.slot, other.token);
	ASSERT_EQ(0, exclusive(own.fd, 0, 0, 1U << own.slot));
	fm_until_state(other.fd, FERMATA_STATE_QUEUED);
	ASSERT_GOOD(fm_job_run(&own, &e));
	fm_sleep_us(20000);
	fm_status(other.fd, &st);
	EXPECT_EQ(FERMATA_STATE_QUEUED, st.state);
	EXPECT_EQ(FERMATA_STATUS_NO_SLOT, st.attributes);
	EXPECT_EQ(group_of(own.fd), slot_group(own.fd, own.slot, &is_exclusive));
	EXPECT_TRUE(is_exclusive);
	/* Reserved already; for its own group it may be said again. */
	EXPECT_EQ(-EBUSY, exclusive(own.fd, 0, fm_number(other.fd), 1U << own.slot));
	EXPECT_EQ(0, exclusive(own.fd, 0, fm_number(own.fd), 1U << own.slot));
	ASSERT_EQ(0, exclusive(own.fd, FERMATA_EXCLUSIVE_RELEASE, 0, 1U << own.slot));
	EXPECT_EQ(0, slot_group(own.fd, own.slot, &is_exclusive));
	EXPECT_FALSE(is_exclusive);
	card_until_runs(other.slot, other.token);
	fm_end_endless(&other);
	ASSERT_GOOD(fm_turns_wrong(from, (struct fm_turn[]) {
		{ 0, CARD_START, &other }, { 0, CARD_PAUSE, &other }, { 0, CARD_PAUSED, &other },
		{ 0, CARD_START, &own }, { 0, CARD_FINISHED, &own },
		{ 0, CARD_RESUME, &other }, { 0, CARD_FINISHED, &other } }, 7));
}

/* It ends with the last context of the group, whoever waits then goes on. */
FM_TEST(group, slot_of_a_group_that_goes)
{
	struct fm_ctx own, other[2];
	struct fm_expect e;
	bool is_exclusive;
	int i;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	for (i = 0; i < 2; i++) {
		other_group(&other[i]);
		fm_cgroups_remove();
	}
	fm_tenant_list(&own, FM_LONG_SLICE, 2000, 1, &e);
	ASSERT_EQ(0, exclusive(own.fd, 0, fm_number(other[0].fd), 1U << own.slot));
	fm_must_start(&own);
	fm_sleep_us(20000);
	EXPECT_EQ(FERMATA_STATE_QUEUED, fm_state(own.fd));
	/* Their cgroups had one name, but are two. */
	EXPECT_NE(group_of(other[0].fd), group_of(other[1].fd));
	fm_ctx_close(&other[1]);
	EXPECT_EQ(FERMATA_STATE_QUEUED, fm_state(own.fd));
	fm_ctx_close(&other[0]);
	fm_wait(own.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&own, &e));
	EXPECT_EQ(0, slot_group(own.fd, own.slot, &is_exclusive));
	EXPECT_FALSE(is_exclusive);
}

static int group_call(int fd, u32 flags, u32 context, u32 weight, struct fermata_group *g)
{
	*g = (struct fermata_group) {
		.size = sizeof(*g), .flags = flags, .context = context, .weight = weight
	};
	return fm_ioctl(fd, FERMATA_IOC_GROUP, g);
}

static int set_weight(int fd, u32 context, u32 weight)
{
	struct fermata_group g;

	return group_call(fd, FERMATA_GROUP_SET_WEIGHT, context, weight, &g);
}

static void look(int fd, u32 context, struct fermata_group *g)
{
	int rc = group_call(fd, 0, context, 0, g);

	if (rc)
		fm_die("GROUP: %s", strerror(-rc));
}

/* One for all its contexts, which outlasts them. */
FM_TEST(group, weight_contexts_and_time)
{
	struct fermata_status st;
	struct fermata_group g;
	struct fm_ctx own[2], other;
	struct fm_expect e;
	u64 number, run;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	other_group(&other);
	fm_enter(1);
	fm_tenant(&own[0], FM_LONG_SLICE);
	fm_tenant(&own[1], FM_LONG_SLICE);
	number = group_of(own[0].fd);
	look(own[0].fd, 0, &g);
	EXPECT_EQ(100, g.weight);
	EXPECT_EQ(2, g.contexts);
	EXPECT_EQ(number, g.number);
	EXPECT_EQ(0, g.run_ns);
	ASSERT_EQ(0, set_weight(own[1].fd, 0, 10000));
	ASSERT_EQ(0, set_weight(own[1].fd, fm_number(other.fd), 1));
	look(own[0].fd, fm_number(other.fd), &g);
	EXPECT_EQ(1, g.weight);
	EXPECT_EQ(1, g.contexts);
	EXPECT_EQ(group_of(other.fd), g.number);
	EXPECT_EQ(0, g.run_ns);
	fm_job_list(&own[1], 64, 2000, 1, &e);
	ASSERT_GOOD(fm_job_run(&own[1], &e));
	fm_status(own[1].fd, &st);
	look(own[0].fd, 0, &g);
	EXPECT_EQ(10000, g.weight);
	EXPECT_EQ(st.run_ns, g.run_ns);
	run = g.run_ns;
	fm_ctx_close(&own[1]);
	look(own[0].fd, 0, &g);
	EXPECT_EQ(1, g.contexts);
	EXPECT_EQ(run, g.run_ns);
	fm_ctx_close(&own[0]);
	fm_tenant(&own[0], FM_LONG_SLICE);
	look(own[0].fd, 0, &g);
	EXPECT_EQ(10000, g.weight);
	EXPECT_EQ(1, g.contexts);
	EXPECT_EQ(number, g.number);
	EXPECT_EQ(run, g.run_ns);
	fm_ctx_close(&own[0]);
	fm_enter(FM_ROOT);
}

FM_TEST(group, weight_bad_input)
{
	struct fermata_group before, after;
	struct fm_child ch;
	struct fm_ctx own;
	int bare = fm_open_dev(0), status;

	fm_tenant(&own, FM_MS);
	look(own.fd, 0, &before);
	EXPECT_EQ(-ERANGE, set_weight(own.fd, 0, 0));
	EXPECT_EQ(-ERANGE, set_weight(own.fd, 0, 10001));
	EXPECT_EQ(-ERANGE, set_weight(own.fd, 0, (1U << 16) + 1));
	EXPECT_EQ(-ERANGE, set_weight(own.fd, fm_number(own.fd), UINT32_MAX));
	EXPECT_EQ(-ESRCH, set_weight(own.fd, 0xfffffff0, 1));
	EXPECT_EQ(-ESRCH, group_call(own.fd, 0, 0xfffffff0, 0, &after));
	EXPECT_EQ(-ENXIO, set_weight(bare, 0, 1));
	EXPECT_EQ(-ENXIO, group_call(bare, 0, 0, 0, &after));
	fm_fork(&ch);
	if (!ch.pid) {
		fm_drop_privileges();
		if (set_weight(own.fd, 0, 1) != -EPERM || set_weight(own.fd, 0, 0) != -EPERM)
			_exit(1);
		/* Nor whether there is such a context. */
		if (group_call(own.fd, 0, 0xfffffff0, 0, &after) != -EPERM)
			_exit(2);
		if (group_call(own.fd, 0, 0, 0, &after) || after.number != before.number)
			_exit(3);
		_exit(0);
	}
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	look(own.fd, 0, &after);
	EXPECT_EQ(0, memcmp(&before, &after, sizeof(before)));
	close(bare);
}

FM_TEST(group, exclusive_bad_input)
{
	struct fermata_card_info card;
	struct fm_child ch;
	struct fm_ctx own;
	bool is_exclusive;
	int bare = fm_open_dev(0), status;
	u32 slot;

	fm_card_info(&card);
	fm_tenant(&own, FM_MS);
	slot = 1U << own.slot;
	EXPECT_EQ(-EINVAL, exclusive(own.fd, 0, 0, 0));
	EXPECT_EQ(-EINVAL, exclusive(own.fd, 0, 0, slot | 1U << 31));
	EXPECT_EQ(-EINVAL, exclusive(own.fd, 0, 0, slot | 1U << card.slots));
	EXPECT_EQ(-EINVAL, exclusive(own.fd, 0, 0, slot << FERMATA_MAX_SLOTS));
	EXPECT_EQ(-EINVAL, exclusive(own.fd, FERMATA_EXCLUSIVE_RELEASE, fm_number(own.fd), slot));
	EXPECT_EQ(-EINVAL, exclusive(own.fd, FERMATA_EXCLUSIVE_RELEASE, 0, 0));
	EXPECT_EQ(-ESRCH, exclusive(own.fd, 0, 0xfffffff0, slot));
	EXPECT_EQ(-ENXIO, exclusive(bare, 0, 0, slot));
	fm_fork(&ch);
	if (!ch.pid) {
		fm_drop_privileges();
		if (exclusive(own.fd, 0, 0, slot) != -EPERM)
			_exit(1);
		/* Nor whether there is such a context. */
		if (exclusive(own.fd, 0, 0xfffffff0, slot) != -EPERM)
			_exit(2);
		if (exclusive(own.fd, FERMATA_EXCLUSIVE_RELEASE, 0, slot) != -EPERM)
			_exit(3);
		_exit(0);
	}
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	slot_group(own.fd, own.slot, &is_exclusive);
	EXPECT_FALSE(is_exclusive);
	/* Of slots that nobody has: no error, from any descriptor. */
	EXPECT_EQ(0, exclusive(bare, FERMATA_EXCLUSIVE_RELEASE, 0, slot));
}

/* Who uses a context does not matter, nor its user within a cgroup. */
FM_TEST(group, is_the_openers)
{
	struct fm_child ch;
	struct fm_ctx a, b;
	int as_user;
	u64 word;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_enter(0);
	fm_tenant(&a, FM_MS);
	ASSERT_EQ(0, setresuid(USER, 0, 0));
	as_user = fm_open_dev(0);
	ASSERT_EQ(0, setresuid(0, 0, 0));
	ASSERT_LE(0, as_user);
	fm_enter(1);
	fm_tenant(&b, FM_MS);
	EXPECT_EQ(group_of(a.fd), group_of(as_user));
	EXPECT_NE(group_of(a.fd), group_of(b.fd));
	fm_fork(&ch);
	if (!ch.pid) {
		fm_say(&ch, group_of(a.fd));
		_exit(0);
	}
	word = fm_hear(&ch);
	EXPECT_EQ(fm_cgroup_number(0), word);
	EXPECT_EQ(0, fm_reap(&ch));
	fm_enter(FM_ROOT);
	EXPECT_EQ(fm_cgroup_number(0), group_of(a.fd));
	EXPECT_EQ(fm_cgroup_number(1), group_of(b.fd));
}

/* Of two slots one is the group's: that does not keep it from the other, but others from this. */
FM_TEST(group, one_slot_of_two)
{
	static struct card_turn turns[MANY];
	struct fermata_param param = { .size = sizeof(param), .param = FERMATA_PARAM_SLOT_MASK };
	struct fm_ctx own[2], other[2];
	struct card_run run;
	int i, free;
	u64 from;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	for (i = 0; i < 2; i++) {
		fm_tenant(&own[i], FM_MS);
		other_group(&other[i]);
		fm_param(other[i].fd, FERMATA_PARAM_TIMESLICE, FM_MS);
	}
	fm_must(own[0].fd, FERMATA_IOC_PARAM_GET, &param, "PARAM_GET");
	param.value = param.max & ~(1ULL << own[0].slot);
	if (!param.value)
		SKIP(return, "no two slots with one engine");
	free = __builtin_ctzll(param.value);
	card_speed(own[0].slot, 1);
	card_speed(free, 1);
	from = card_history_end();
	ASSERT_EQ(0, exclusive(own[0].fd, 0, 0, 1U << own[0].slot));
	for (i = 0; i < 2; i++) {
		fm_param(other[i].fd, FERMATA_PARAM_SLOT_MASK, param.max);
		fm_param(own[i].fd, FERMATA_PARAM_SLOT_MASK, param.max);
		fm_job_endless(&other[i]);
		fm_job_endless(&own[i]);
		fm_must_start(&other[i]);
		fm_must_start(&own[i]);
	}
	card_until_turns(from, turns, MANY, 200);
	for (i = 0; i < 2; i++) {
		card_run_of(own[0].slot, other[i].token, &run);
		EXPECT_EQ(0, run.starts + run.resumes);
		card_run_of(free, other[i].token, &run);
		EXPECT_LT(0, run.starts + run.resumes);
		card_run_of(own[0].slot, own[i].token, &run);
		EXPECT_LT(0, run.starts + run.resumes);
	}
	for (i = 0; i < 2; i++) {
		fm_end_endless(&other[i]);
		fm_end_endless(&own[i]);
	}
}

/* Reserved and shared again, at any moment of jobs: nothing is lost, nothing is done twice. */
FM_TEST(group, slot_reserved_again_and_again)
{
	struct fermata_status st;
	struct fm_expect e[3];
	struct fm_ctx c[3];
	int i, round, rc;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	for (i = 0; i < 3; i++) {
		fm_enter(i % 2);
		fm_tenant_list(&c[i], FM_MS, 60000, i + 1, &e[i]);
		fm_enter(FM_ROOT);
		card_speed(c[i].slot, 1);
		fm_must_start(&c[i]);
	}
	for (round = 0; round < 300; round++) {
		/* For the one group and for the other, and for nobody in between. */
		rc = exclusive(c[round / 2 % 2].fd, round & 1 ? FERMATA_EXCLUSIVE_RELEASE : 0, 0,
			       1U << c[0].slot);
		ASSERT_EQ(0, rc);
		fm_sleep_us(round * 37 % 1000);
	}
	for (i = 0; i < 3; i++) {
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c[i], &e[i]));
	}
	ASSERT_GOOD(fm_runs_wrong(c, 3));
	for (i = 0; i < 3; i++) {
		fm_status(c[i].fd, &st);
		EXPECT_EQ(0, st.attributes);
	}
}

/* It ends with its group also when that is killed while its job runs. */
FM_TEST(group, slot_of_a_group_that_is_killed)
{
	struct fm_child ch;
	struct fm_expect e;
	struct fm_ctx c, own;
	bool is_exclusive;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_tenant_list(&own, FM_LONG_SLICE, 2000, 1, &e);
	card_speed(own.slot, 1);
	fm_fork(&ch);
	if (!ch.pid) {
		other_group(&c);
		fm_job_endless(&c);
		if (exclusive(c.fd, 0, 0, 1U << c.slot))
			_exit(1);
		fm_must_start(&c);
		card_until_runs(c.slot, c.token);
		fm_say(&ch, c.token);
		fm_hear(&ch);
	}
	c.token = fm_hear(&ch);
	fm_must_start(&own);
	fm_sleep_us(10000);
	EXPECT_EQ(FERMATA_STATE_QUEUED, fm_state(own.fd));
	fm_kill(&ch);
	fm_agent_gone(c.token);
	fm_wait(own.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&own, &e));
	EXPECT_EQ(0, slot_group(own.fd, own.slot, &is_exclusive));
	EXPECT_FALSE(is_exclusive);
}

/* --- what groups have of the time ---------------------------------------------------- */

#define SLICE	(2 * FM_MS)
#define CROWD	4
#define EACH	(1 + CROWD)

/* One context in a group, four in another. */
struct crowd {
	struct fm_ctx gate;
	struct fm_ctx c[EACH];
};

static void crowd_begin(struct crowd *crowd)
{
	int i;

	fm_gate_close(&crowd->gate);
	for (i = 0; i < EACH; i++) {
		fm_enter(i ? 1 : 0);
		fm_tenant(&crowd->c[i], SLICE);
		fm_enter(FM_ROOT);
		fm_job_endless(&crowd->c[i]);
		fm_must_start(&crowd->c[i]);
	}
}

static void crowd_end(struct crowd *crowd)
{
	int i;

	for (i = 0; i < EACH; i++)
		fm_end_endless(&crowd->c[i]);
}

/* What each has before and after the next turns. */
static void measure(const struct fm_ctx *c, struct card_run *before, struct card_run *after, int turns_wanted)
{
	static struct card_turn turns[MANY];
	u64 from = card_history_end();

	card_runs_of(c[0].slot, c, before, EACH);
	card_until_turns(from, turns, MANY, turns_wanted);
	card_runs_of(c[0].slot, c, after, EACH);
}

static u64 turns_of(const struct card_run *run)
{
	return run->starts + run->resumes;
}

/* Of the time of all, in percent. */
struct part {
	u64 low, high;
};

/* Has each its part of the next turns' time? */
static bool have_parts(const struct fm_ctx *c, const struct part *parts, int turns_wanted)
{
	struct card_run before[EACH], after[EACH];
	u64 had[EACH], whole = 0;
	bool good = true;
	int i;

	measure(c, before, after, turns_wanted);
	for (i = 0; i < EACH; i++) {
		had[i] = after[i].run_ns - before[i].run_ns;
		whole += had[i];
	}
	for (i = 0; i < EACH; i++) {
		printf("# context %d: %d %%\n", i, (int)(had[i] * 100 / whole));
		good &= fm_percent_within(had[i], whole, parts[i].low, parts[i].high);
	}
	return good;
}

/*
 * Measures until each has its part: where a timer was late, the others get what one had too much, but that
 * may be in the next turns. Who gets another part than that gets it each time.
 */
static bool come_to(const struct fm_ctx *c, const struct part *parts, int turns_wanted)
{
	int i;

	for (i = 0; i < 8; i++)
		if (have_parts(c, parts, turns_wanted))
			return true;
	return false;
}

/* Nobody gains by opening more contexts, except where all contexts are equal. */
FM_TEST(group, one_against_a_crowd)
{
	struct crowd crowd;
	static const struct part parts[EACH] = { { 38, 62 }, { 7, 19 }, { 7, 19 }, { 7, 19 }, { 7, 19 } };
	struct card_run before[EACH], after[EACH];
	u64 had, least = UINT64_MAX, most = 0;
	int i;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_policy(FERMATA_POLICY_FAIR, 0);
	crowd_begin(&crowd);
	fm_gate_open(&crowd.gate);
	EXPECT_TRUE(come_to(crowd.c, parts, 300));
	fm_policy(FERMATA_POLICY_ROUND_ROBIN, 0);
	measure(crowd.c, before, after, 300);
	for (i = 0; i < EACH; i++) {
		had = turns_of(&after[i]) - turns_of(&before[i]);
		least = had < least ? had : least;
		most = had > most ? had : most;
	}
	TH_LOG("in turn: %d to %d turns", (int)least, (int)most);
	EXPECT_GE(least + 2, most);
	crowd_end(&crowd);
}

#define JOBS	150

static void one_job(struct fm_ctx *c, u64 seed, struct fm_expect *e)
{
	fm_job_list(c, 64, 2000, seed, e);
	fm_must_start(c);
}

/* Nor by letting several contexts sleep in turn: there are always two that have slept. */
FM_TEST(group, sleeping_in_turn_gains_nothing)
{
	struct crowd crowd;
	struct fm_expect e[EACH];
	struct card_run run[EACH];
	struct fm_ctx *c = crowd.c;
	u64 whole = 0;
	int i;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_policy(FERMATA_POLICY_FAIR, 0);
	crowd_begin(&crowd);
	fm_gate_open(&crowd.gate);
	for (i = 1; i < EACH; i++)
		fm_end_endless(&c[i]);
	card_cmd("counters clear slot=%d", c[0].slot);
	for (i = 0; i < JOBS; i++) {
		int next = 1 + i % CROWD, last = 1 + (i + 2) % CROWD;

		one_job(&c[next], i, &e[next]);
		if (i < 2)
			continue;
		fm_wait(c[last].fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c[last], &e[last]));
	}
	card_runs_of(c[0].slot, c, run, EACH);
	for (i = 0; i < EACH; i++)
		whole += run[i].run_ns;
	TH_LOG("the one that runs has %d %%", (int)(run[0].run_ns * 100 / whole));
	EXPECT_TRUE(fm_percent_within(run[0].run_ns, whole, 40, 100));
	for (i = 1; i < EACH; i++)
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
	fm_end_endless(&c[0]);
}

#define COMINGS	40

/* Opens a context in the other group, runs one job of 60 ms, and closes it; returns what it ran. */
static u64 come_and_go(struct __test_metadata *_metadata, u64 seed)
{
	struct card_run run;
	struct fm_expect e;
	struct fm_ctx c;

	fm_enter(1);
	fm_tenant_list(&c, FM_LONG_SLICE, 60000, seed, &e);
	fm_enter(FM_ROOT);
	fm_must_start(&c);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
	card_run_of(c.slot, c.token, &run);
	fm_ctx_close(&c);
	return run.run_ns;
}

/*
 * Nor by closing all contexts and opening again. The jobs are long, so that what the test itself
 * takes to open a context is little of the time that the other group is owed for one. A slow
 * machine opens fewer contexts: that is no gain.
 */
FM_TEST(group, opening_again_gains_nothing)
{
	struct card_run before, after;
	struct fm_ctx stays;
	u64 comes = 0, whole;
	int i;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_policy(FERMATA_POLICY_FAIR, 0);
	fm_enter(0);
	fm_tenant(&stays, SLICE);
	fm_enter(FM_ROOT);
	card_speed(stays.slot, 1);
	fm_job_endless(&stays);
	fm_must_start(&stays);
	card_until_runs(stays.slot, stays.token);
	card_run_of(stays.slot, stays.token, &before);
	for (i = 0; i < COMINGS; i++)
		comes += come_and_go(_metadata, i);
	card_run_of(stays.slot, stays.token, &after);
	whole = comes + after.run_ns - before.run_ns;
	TH_LOG("the one that comes and goes has %d %%", (int)(comes * 100 / whole));
	EXPECT_TRUE(fm_percent_within(comes, whole, 1, 56));
	fm_end_endless(&stays);
}

/* By weight between groups, and in each between its contexts; also when set while they run. */
FM_TEST(group, time_by_weight)
{
	static const struct part first[EACH] = { { 62, 88 }, { 3, 12 }, { 3, 12 }, { 3, 12 }, { 3, 12 } };
	/* A quarter; of the rest one half to the first, and a sixth to each other one. */
	static const struct part then[EACH] = { { 16, 34 }, { 27, 48 }, { 7, 19 }, { 7, 19 }, { 7, 19 } };
	struct crowd crowd;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_policy(FERMATA_POLICY_FAIR, 0);
	crowd_begin(&crowd);
	ASSERT_EQ(0, set_weight(crowd.c[0].fd, 0, 300));
	fm_gate_open(&crowd.gate);
	EXPECT_TRUE(come_to(crowd.c, first, 300));
	ASSERT_EQ(0, set_weight(crowd.c[0].fd, 0, 50));
	ASSERT_EQ(0, set_weight(crowd.c[0].fd, fm_number(crowd.c[3].fd), 150));
	fm_param(crowd.c[1].fd, FERMATA_PARAM_WEIGHT, 300);
	EXPECT_TRUE(come_to(crowd.c, then, 400));
	crowd_end(&crowd);
}

TEST_HARNESS_MAIN
