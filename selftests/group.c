// SPDX-License-Identifier: GPL-2.0
/*
 * Groups: which contexts belong together, the time that the weight of a group gives, and slots
 * that serve only one group, reserved and shared again at any moment. Groups of one context
 * beside many, of members that sleep in turn, and of contexts that are opened anew.
 */
#include "kselftest_harness.h"
#include <grp.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include "lib/sched.h"

FM_FIXTURE_CARD(group);

#define USER		65534
#define MANY		4000
/* Cgroups number 0 and 1. */
#define FIRST		FM_CGROUP "0"
#define SECOND		FM_CGROUP "1"

/* Opens a context of another group than that of this process. */
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

/* Returns what CONTEXT_INFO reports of a context. */
static struct fermata_context_info context_info(int fd, u32 context)
{
	struct fermata_context_info info = { .size = sizeof(info) };
	int rc;

	do {
		rc = fm_ioctl(fd, FERMATA_IOC_CONTEXT_INFO, &info);
		if (rc)
			fm_die("context %u is not listed: %s", context, strerror(-rc));
	} while (info.context != context);
	return info;
}

/* Waits until a limit keeps the job of a context off slots. */
static struct fermata_context_info until_throttled(int fd)
{
	struct fermata_context_info info;

	do {
		fm_sleep_us(10000);
		info = context_info(fd, fm_number(fd));
	} while (!(info.attributes & FERMATA_STATUS_THROTTLED));
	return info;
}

static int reserve_slots(const char *path, u32 slots)
{
	struct fermata_group_set g = { .flags = FERMATA_GROUP_EXCLUSIVE, .slot_mask = slots };

	return fm_group_set(path, &g);
}

static int weigh(const char *path, u32 weight)
{
	struct fermata_group_set g = { .flags = FERMATA_GROUP_WEIGHT, .weight = weight };

	return fm_group_set(path, &g);
}

static u64 slot_group(int fd, u32 slot, bool *is_exclusive)
{
	struct fermata_slot_info info = { .size = sizeof(info), .slot = slot };

	fm_must(fd, FERMATA_IOC_SLOT_INFO, &info, "SLOT_INFO");
	*is_exclusive = info.flags & FERMATA_SLOT_EXCLUSIVE;
	return info.group;
}

static int group_call(int fd, u32 flags, u32 context, struct fermata_group *g)
{
	*g = (struct fermata_group) { .size = sizeof(*g), .flags = flags, .context = context };
	return fm_ioctl(fd, FERMATA_IOC_GROUP, g);
}

static void look(int fd, u32 context, struct fermata_group *g)
{
	int rc = group_call(fd, 0, context, g);

	if (rc)
		fm_die("GROUP: %s", strerror(-rc));
}

/* Opens the card as a user, and returns the number of the group. */
static u64 group_of_user(uid_t uid)
{
	u64 group;
	int fd;

	if (setresuid(uid, 0, 0))
		fm_die("setresuid: %s", strerror(errno));
	fd = fm_open_dev(0);
	if (setresuid(0, 0, 0) || fd < 0)
		fm_die("open as user %d: %s", (int)uid, strerror(fd < 0 ? -fd : errno));
	group = group_of(fd);
	close(fd);
	return group;
}

/* Without registrations users are groups, in whatever cgroups they are. */
FM_TEST(group, users_are_groups)
{
	if (fm_has_cgroups()) {
		fm_enter(0);
		fm_group_remove("");
	}
	EXPECT_EQ(FERMATA_USER_GROUP, group_of_user(0));
	EXPECT_EQ(FERMATA_USER_GROUP | USER, group_of_user(USER));
	if (fm_has_cgroups()) {
		fm_enter(FM_ROOT);
		EXPECT_EQ(FERMATA_USER_GROUP | USER, group_of_user(USER));
	}
}

/*
 * Subordinate users, also of a namespace within a namespace, are the group of the user who has made
 * the outer one.
 */
FM_TEST(group, subordinate_users_do_not_multiply)
{
	struct fm_child ch;
	int level, status;
	char map[64];

	ASSERT_EQ(0, chmod(fm_dev(), 0666));
	fm_fork(&ch);
	if (!ch.pid) {
		int fd;

		if (setgroups(0, NULL) || setresgid(USER, USER, USER) || setresuid(USER, USER, USER))
			fm_die("users: %s", strerror(errno));
		for (level = 0; level < 2; level++) {
			if (unshare(CLONE_NEWUSER))
				fm_die("namespace: %s", strerror(errno));
			if (level == 0) {
				fm_say(&ch, 1);
				fm_hear(&ch);
				if (setresgid(3, 3, 3) || setresuid(3, 3, 3))
					fm_die("user 3: %s", strerror(errno));
			}
			fd = fm_open_dev(0);
			if (fd < 0)
				fm_die("open: %s", strerror(-fd));
			fm_say(&ch, group_of(fd));
			close(fd);
		}
		_exit(0);
	}
	EXPECT_EQ(1, fm_hear(&ch));
	/* As newuidmap and newgidmap do. */
	snprintf(map, sizeof(map), "/proc/%d/uid_map", ch.pid);
	ASSERT_EQ(0, fm_put(map, "0 100000 10"));
	snprintf(map, sizeof(map), "/proc/%d/gid_map", ch.pid);
	ASSERT_EQ(0, fm_put(map, "0 100000 10"));
	fm_say(&ch, 0);
	for (level = 0; level < 2; level++)
		EXPECT_EQ(FERMATA_USER_GROUP | USER, fm_hear(&ch));
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	ASSERT_EQ(0, chmod(fm_dev(), 0600));
}

static int user_set(uid_t uid, struct fermata_group_set *g)
{
	int fd = fm_open_dev(0), rc;

	g->size = sizeof(*g);
	g->flags |= FERMATA_GROUP_USER;
	g->uid = uid;
	rc = fm_ioctl(fd, FERMATA_IOC_GROUP_SET, g);
	close(fd);
	return rc;
}

/* What is set for a user holds before and after it has contexts, and in no registered cgroup. */
FM_TEST(group, a_user_is_registered)
{
	struct fermata_group_set g = { .flags = FERMATA_GROUP_WEIGHT | FERMATA_GROUP_MAX_CONTEXTS,
				       .weight = 300, .max_contexts = 1 };
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0], .afu_id_hi = fm_afu[FM_LIST][1]
	};
	struct fm_child ch;
	int status;

	ASSERT_EQ(0, user_set(USER, &g));
	EXPECT_EQ(FERMATA_USER_GROUP | USER, g.number);
	ASSERT_EQ(0, chmod(fm_dev(), 0666));
	fm_fork(&ch);
	if (!ch.pid) {
		struct fermata_group seen;
		int fd[2];

		fm_drop_privileges();
		fd[0] = fm_open_dev(0);
		fd[1] = fm_open_dev(0);
		if (fm_ioctl(fd[0], FERMATA_IOC_SETUP, &setup))
			_exit(1);
		look(fd[0], 0, &seen);
		if (seen.weight != 300 || seen.number != (FERMATA_USER_GROUP | USER))
			_exit(2);
		if (fm_ioctl(fd[1], FERMATA_IOC_SETUP, &setup) != -EDQUOT)
			_exit(3);
		_exit(0);
	}
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	if (fm_has_window())
		EXPECT_EQ(0, WEXITSTATUS(status));
	ASSERT_EQ(0, chmod(fm_dev(), 0600));
	g = (struct fermata_group_set) { 0 };
	EXPECT_EQ(0, user_set(USER, &g));
	EXPECT_EQ(300, g.weight);
	EXPECT_EQ(1, g.max_contexts);
	g = (struct fermata_group_set) { .flags = FERMATA_GROUP_CHILDREN, .children = 1 };
	EXPECT_EQ(-EINVAL, user_set(USER, &g));
	g = (struct fermata_group_set) { .flags = FERMATA_GROUP_WEIGHT, .weight = 1 };
	EXPECT_EQ(-ERANGE, user_set((uid_t)-1, &g));
	g = (struct fermata_group_set) { .flags = FERMATA_GROUP_REMOVE };
	EXPECT_EQ(0, user_set(USER, &g));
	EXPECT_EQ(300, g.weight);
	g = (struct fermata_group_set) { .flags = FERMATA_GROUP_REMOVE };
	EXPECT_EQ(-ENOENT, user_set(USER, &g));
}

/* The group is determined at open(): later moves of the opener do not matter. */
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
	/* The group keeps its number when the cgroup is gone. */
	fm_cgroup_remove(FIRST);
	number = fm_number(other.fd);
	EXPECT_EQ(group, context_info(own.fd, number).group);
	/* Others do not learn it without the capability. */
	fm_fork(&ch);
	if (!ch.pid) {
		fm_drop_privileges();
		if (context_info(own.fd, number).group != 0)
			_exit(1);
		if (context_info(other.fd, number).group != group || group_of(other.fd) != group)
			_exit(2);
		_exit(0);
	}
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
}

/* The slot goes to its group at once; the others' job waits until the reservation ends. */
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
	fm_enter(1);
	fm_tenant_list(&own, FM_LONG_SLICE, 2000, 1, &e);
	fm_enter(FM_ROOT);
	fm_job_endless(&other);
	card_speed(own.slot, 1);
	from = card_history_end();
	fm_must_start(&other);
	card_until_runs(other.slot, other.token);
	ASSERT_EQ(0, reserve_slots(SECOND, 1U << own.slot));
	fm_until_state(other.fd, FERMATA_STATE_QUEUED);
	ASSERT_GOOD(fm_job_run(&own, &e));
	fm_sleep_us(20000);
	fm_status(other.fd, &st);
	EXPECT_EQ(FERMATA_STATE_QUEUED, st.state);
	EXPECT_EQ(FERMATA_STATUS_NO_SLOT, st.attributes);
	EXPECT_EQ(FERMATA_WAITS_NO_SLOT, context_info(own.fd, fm_number(other.fd)).waits);
	EXPECT_EQ(group_of(own.fd), slot_group(own.fd, own.slot, &is_exclusive));
	EXPECT_TRUE(is_exclusive);
	/* The slot is already reserved; the same group may reserve it again. */
	EXPECT_EQ(-EBUSY, reserve_slots(FIRST, 1U << own.slot));
	EXPECT_EQ(0, reserve_slots(SECOND, 1U << own.slot));
	ASSERT_EQ(0, reserve_slots(SECOND, 0));
	EXPECT_EQ(0, slot_group(own.fd, own.slot, &is_exclusive));
	EXPECT_FALSE(is_exclusive);
	card_until_runs(other.slot, other.token);
	fm_end_endless(&other);
	ASSERT_GOOD(fm_turns_wrong(from, (struct fm_turn[]) {
		{ 0, CARD_START, &other }, { 0, CARD_PAUSE, &other }, { 0, CARD_PAUSED, &other },
		{ 0, CARD_START, &own }, { 0, CARD_FINISHED, &own },
		{ 0, CARD_RESUME, &other }, { 0, CARD_FINISHED, &other } }, 7));
}

/*
 * The reservation ends with the cgroup, not with the last context: jobs that wait then resume. A
 * new cgroup of the same name is another group.
 */
FM_TEST(group, defect_03_slot_of_a_cgroup_that_goes)
{
	struct fm_ctx own, other;
	struct fm_expect e;
	bool is_exclusive;
	u64 number;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	other_group(&other);
	number = group_of(other.fd);
	fm_tenant_list(&own, FM_LONG_SLICE, 2000, 1, &e);
	ASSERT_EQ(0, reserve_slots(FIRST, 1U << own.slot));
	fm_must_start(&own);
	fm_ctx_close(&other);
	fm_sleep_us(20000);
	EXPECT_EQ(FERMATA_STATE_QUEUED, fm_state(own.fd));
	EXPECT_EQ(number, slot_group(own.fd, own.slot, &is_exclusive));
	fm_cgroup_remove(FIRST);
	fm_wait(own.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&own, &e));
	EXPECT_EQ(0, slot_group(own.fd, own.slot, &is_exclusive));
	EXPECT_FALSE(is_exclusive);
	other_group(&other);
	EXPECT_NE(number, group_of(other.fd));
	slot_group(own.fd, own.slot, &is_exclusive);
	EXPECT_FALSE(is_exclusive);
}

/* A group has one weight for all its contexts, and keeps it when they are closed. */
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
	ASSERT_EQ(0, weigh(SECOND, 10000));
	ASSERT_EQ(0, weigh(FIRST, 1));
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

FM_TEST(group, readout_bad_input)
{
	struct fermata_group before, after;
	struct fm_child ch;
	struct fm_ctx own;
	int bare = fm_open_dev(0), status;

	fm_tenant(&own, FM_MS);
	look(own.fd, 0, &before);
	EXPECT_EQ(-EINVAL, group_call(own.fd, 1, 0, &after));
	EXPECT_EQ(-ESRCH, group_call(own.fd, 0, 0xfffffff0, &after));
	EXPECT_EQ(-ENXIO, group_call(bare, 0, 0, &after));
	fm_fork(&ch);
	if (!ch.pid) {
		fm_drop_privileges();
		/* Nor does it learn whether there is such a context. */
		if (group_call(own.fd, 0, 0xfffffff0, &after) != -EPERM)
			_exit(2);
		if (group_call(own.fd, 0, 0, &after) || after.number != before.number)
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

/* Neither the process that uses a context matters, nor its user within a cgroup. */
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

/* One of two slots is reserved: its group may use both, and other groups only the other slot. */
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
		fm_enter(1);
		fm_tenant(&own[i], FM_MS);
		fm_enter(FM_ROOT);
		other_group(&other[i]);
		fm_param(other[i].fd, FERMATA_PARAM_TIMESLICE, FM_MS);
	}
	fm_must(own[0].fd, FERMATA_IOC_PARAM, &param, "PARAM");
	param.value = param.max & ~(1ULL << own[0].slot);
	if (!param.value)
		SKIP(return, "no two slots with one engine");
	free = __builtin_ctzll(param.value);
	card_speed(own[0].slot, 1);
	card_speed(free, 1);
	from = card_history_end();
	ASSERT_EQ(0, reserve_slots(SECOND, 1U << own[0].slot));
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

/* A slot is reserved and shared again, at any moment of jobs: no work is lost or done twice. */
FM_TEST(group, slot_reserved_again_and_again)
{
	struct fermata_status st;
	struct fm_expect e[3];
	struct fm_ctx c[3];
	int i, round;

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
		/* Alternates between the groups, without a reservation in between. */
		ASSERT_EQ(0, reserve_slots(round / 2 % 2 ? SECOND : FIRST,
					   round & 1 ? 0 : 1U << c[0].slot));
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

/* --- the time that groups get -------------------------------------------------------- */

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

/* Reads the runs of each context before and after the next turns. */
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

/* A part of the time of all contexts, in percent. */
struct part {
	u64 low, high;
};

/* Does each context get its part of the time in the next turns? */
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
 * Measures until each context gets its part. If a timer was late, the others are compensated, but
 * perhaps only in the next turns. A context that gets a wrong part gets it in each measurement.
 */
static bool come_to(const struct fm_ctx *c, const struct part *parts, int turns_wanted)
{
	int i;

	for (i = 0; i < 8; i++)
		if (have_parts(c, parts, turns_wanted))
			return true;
	return false;
}

/* No group gains by opening more contexts, unless all contexts are equal. */
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

/* Nor by letting several contexts sleep in turn, so that two of them have always just slept. */
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

/* Opens a context in the other group, runs one job of 60 ms, and closes it: its run time. */
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
 * Nor by closing all contexts and opening new ones. The jobs are long, so that the time that the
 * test takes to open a context is small compared with the time that the other group gets for a job.
 * A slow machine opens fewer contexts, which is no gain.
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

/* Time is shared by weight between groups, and within each; also by weights set while jobs run. */
FM_TEST(group, time_by_weight)
{
	static const struct part first[EACH] = { { 62, 88 }, { 3, 12 }, { 3, 12 }, { 3, 12 }, { 3, 12 } };
	/* A quarter; one half of the rest for the next context, and a sixth for each other one. */
	static const struct part then[EACH] = { { 16, 34 }, { 27, 48 }, { 7, 19 }, { 7, 19 }, { 7, 19 } };
	struct crowd crowd;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_policy(FERMATA_POLICY_FAIR, 0);
	crowd_begin(&crowd);
	ASSERT_EQ(0, weigh(FIRST, 300));
	fm_gate_open(&crowd.gate);
	EXPECT_TRUE(come_to(crowd.c, first, 300));
	ASSERT_EQ(0, weigh(FIRST, 50));
	ASSERT_EQ(0, weigh(SECOND, 150));
	fm_param(crowd.c[1].fd, FERMATA_PARAM_WEIGHT, 300);
	EXPECT_TRUE(come_to(crowd.c, then, 400));
	crowd_end(&crowd);
}

/* --- registered groups --------------------------------------------------------------- */

/* Are these contexts in one group? No group may change during the check. */
static bool one_group(const struct fm_ctx *c, int n)
{
	int i;

	for (i = 1; i < n; i++)
		if (group_of(c[i].fd) != group_of(c[0].fd))
			return false;
	return true;
}

/* Opens context 0 in one cgroup, and each other one in its own; the paths have a number in them. */
static void spread_begin(struct crowd *crowd, const char *first, const char *others, uid_t uid)
{
	char path[64];
	int i;

	fm_gate_close(&crowd->gate);
	for (i = 0; i < EACH; i++) {
		snprintf(path, sizeof(path), i ? others : first, i);
		fm_cgroup_make(path);
		if (i && uid)
			fm_cgroup_delegate(path, uid);
		fm_enter_path(path);
		fm_tenant(&crowd->c[i], SLICE);
		fm_enter(FM_ROOT);
		fm_job_endless(&crowd->c[i]);
		fm_must_start(&crowd->c[i]);
	}
}

static const struct part even[EACH] = { { 38, 62 }, { 7, 19 }, { 7, 19 }, { 7, 19 }, { 7, 19 } };

/* A user who has a subtree gains nothing by making cgroups in it. */
FM_TEST(group, defect_03_cgroups_of_a_delegated_subtree)
{
	struct crowd crowd;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_policy(FERMATA_POLICY_FAIR, 0);
	fm_cgroup_make(SECOND);
	fm_cgroup_delegate(SECOND, USER);
	fm_cgroup_make(SECOND "/own");
	fm_cgroup_delegate(SECOND "/own", USER);
	spread_begin(&crowd, FIRST, SECOND "/own/%d", USER);
	EXPECT_TRUE(one_group(&crowd.c[1], CROWD));
	EXPECT_NE(group_of(crowd.c[0].fd), group_of(crowd.c[1].fd));
	EXPECT_EQ(fm_cgroup_number(1), group_of(crowd.c[1].fd));
	fm_gate_open(&crowd.gate);
	EXPECT_TRUE(come_to(crowd.c, even, 300));
	crowd_end(&crowd);
}

/* Like the steps of a job, or the containers of a pod: root's cgroups below a registered one. */
FM_TEST(group, defect_03_nested_cgroups_of_a_registered_one)
{
	struct crowd crowd;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_policy(FERMATA_POLICY_FAIR, 0);
	fm_cgroup_make(SECOND);
	fm_cgroup_make(SECOND "/step");
	ASSERT_EQ(0, weigh(SECOND, 100));
	spread_begin(&crowd, FIRST, SECOND "/step/%d", 0);
	EXPECT_TRUE(one_group(&crowd.c[1], CROWD));
	EXPECT_EQ(fm_cgroup_number(1), group_of(crowd.c[1].fd));
	fm_gate_open(&crowd.gate);
	EXPECT_TRUE(come_to(crowd.c, even, 300));
	/* Open contexts, too, follow a registration in between. */
	ASSERT_EQ(0, weigh(SECOND "/step", 100));
	EXPECT_TRUE(one_group(&crowd.c[1], CROWD));
	EXPECT_NE(fm_cgroup_number(1), group_of(crowd.c[1].fd));
	ASSERT_EQ(0, fm_group_remove(SECOND "/step"));
	EXPECT_EQ(fm_cgroup_number(1), group_of(crowd.c[1].fd));
	EXPECT_TRUE(come_to(crowd.c, even, 300));
	crowd_end(&crowd);
}

/*
 * Like services below a slice: each child is a group. They compete beside others until the slice
 * has a weight, and share what it gets from then on.
 */
FM_TEST(group, children_are_groups)
{
	static const struct part equal[EACH] = {
		{ 13, 27 }, { 13, 27 }, { 13, 27 }, { 13, 27 }, { 13, 27 }
	};
	struct crowd crowd;
	int i;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_policy(FERMATA_POLICY_FAIR, 0);
	fm_cgroup_make(SECOND);
	fm_group_children(SECOND, true);
	for (i = 1; i < EACH; i++) {
		char path[64];

		snprintf(path, sizeof(path), SECOND "/%d", i);
		fm_cgroup_make(path);
	}
	spread_begin(&crowd, FIRST, SECOND "/%d/inside", 0);
	for (i = 1; i < EACH; i++) {
		char path[64];

		snprintf(path, sizeof(path), SECOND "/%d", i);
		EXPECT_EQ(fm_cgroup_number_of(path), group_of(crowd.c[i].fd));
	}
	fm_gate_open(&crowd.gate);
	EXPECT_TRUE(come_to(crowd.c, equal, 300));
	ASSERT_EQ(0, weigh(SECOND, 100));
	EXPECT_FALSE(one_group(&crowd.c[1], CROWD));
	EXPECT_TRUE(come_to(crowd.c, even, 300));
	/* Of the cgroup itself. */
	fm_enter(1);
	EXPECT_EQ(fm_cgroup_number(1), group_of_user(0));
	fm_enter(FM_ROOT);
	fm_group_children(SECOND, false);
	EXPECT_TRUE(one_group(&crowd.c[1], CROWD));
	EXPECT_TRUE(come_to(crowd.c, even, 300));
	crowd_end(&crowd);
}

/* Two containers of one user, whose cgroups the container manager has made, are two groups. */
FM_TEST(group, defect_03_one_user_in_two_containers)
{
	struct fm_ctx a, b;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_cgroup_make(FIRST);
	fm_cgroup_delegate(FIRST, 0);
	fm_enter(0);
	ASSERT_EQ(0, setresuid(USER, 0, 0));
	a.fd = fm_open_dev(0);
	ASSERT_EQ(0, setresuid(0, 0, 0));
	fm_enter(1);
	ASSERT_EQ(0, setresuid(USER, 0, 0));
	b.fd = fm_open_dev(0);
	ASSERT_EQ(0, setresuid(0, 0, 0));
	fm_enter(FM_ROOT);
	EXPECT_EQ(fm_cgroup_number(0), group_of(a.fd));
	EXPECT_EQ(fm_cgroup_number(1), group_of(b.fd));
	close(a.fd);
	close(b.fd);
}

/* As a user of a user namespace: the root of the namespace is not that of the machine. */
FM_TEST(group, defect_03_subordinate_users_in_a_namespace)
{
	struct fm_child ch;
	u64 group = 0;
	uid_t uid;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	ASSERT_EQ(0, chmod(fm_dev(), 0666));
	fm_cgroup_make(SECOND);
	fm_cgroup_make(SECOND "/inside");
	fm_cgroup_delegate(SECOND "/inside", 100000);
	for (uid = 0; uid < 3; uid++) {
		fm_fork(&ch);
		if (!ch.pid) {
			char path[64];
			int fd;

			/* The root of the namespace makes a cgroup for one of its users. */
			snprintf(path, sizeof(path), SECOND "/inside/%d", (int)uid);
			fm_cgroup_make(path);
			fm_cgroup_delegate(path, 100000 + uid);
			fm_enter_path(path);
			if (setgroups(0, NULL) || setresgid(100000, 100000, 100000) ||
			    setresuid(100000 + uid, 100000 + uid, 100000 + uid) ||
			    unshare(CLONE_NEWUSER | CLONE_NEWCGROUP))
				fm_die("namespace: %s", strerror(errno));
			fd = fm_open_dev(0);
			if (fd < 0)
				fm_die("open: %s", strerror(-fd));
			/* Without the capability a process learns only its own group. */
			fm_say(&ch, group_of(fd));
			fm_hear(&ch);
		}
		group = fm_hear(&ch);
		EXPECT_EQ(fm_cgroup_number(1), group);
		fm_kill(&ch);
	}
	ASSERT_EQ(0, chmod(fm_dev(), 0600));
}

/* A prolog sets the weight before the first context; it lasts until the cgroup is removed. */
FM_TEST(group, defect_03_registered_before_and_after)
{
	struct fermata_group_set g = {
		.flags = FERMATA_GROUP_WEIGHT | FERMATA_GROUP_MAX_PRIORITY | FERMATA_GROUP_CAP |
			 FERMATA_GROUP_MAX_CONTEXTS | FERMATA_GROUP_MAX_BYTES,
		.weight = 700, .max_priority = 9, .cap = 150, .max_contexts = 5, .max_bytes = 1 << 20
	};
	struct fermata_group_set again = { 0 };
	struct fermata_group seen;
	struct fm_ctx c;
	u64 end;
	int i;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_cgroup_make(FIRST);
	EXPECT_EQ(-ENOENT, fm_group_set(FIRST, &again));
	EXPECT_EQ(-ENOENT, fm_group_remove(FIRST));
	fm_group(FIRST, &g);
	EXPECT_EQ(fm_cgroup_number(0), g.number);
	for (i = 0; i < 3; i++) {
		fm_enter(0);
		fm_tenant(&c, FM_MS);
		fm_enter(FM_ROOT);
		look(c.fd, 0, &seen);
		EXPECT_EQ(700, seen.weight);
		EXPECT_EQ(fm_cgroup_number(0), seen.number);
		fm_ctx_close(&c);
		fm_group(FIRST, &again);
		EXPECT_EQ(700, again.weight);
		EXPECT_EQ(9, again.max_priority);
		EXPECT_EQ(150, again.cap);
		EXPECT_EQ(5, again.max_contexts);
		EXPECT_EQ(1 << 20, again.max_bytes);
		EXPECT_EQ(0, again.contexts);
		EXPECT_EQ(0, again.bytes);
		again = (struct fermata_group_set) { 0 };
	}
	/* Only the named setting changes. */
	g = (struct fermata_group_set) { .flags = FERMATA_GROUP_CAP, .cap = 0 };
	fm_group(FIRST, &g);
	EXPECT_EQ(700, g.weight);
	EXPECT_EQ(0, g.cap);
	/* A context outlives the cgroup, but the registration does not. */
	fm_enter(0);
	fm_tenant(&c, FM_MS);
	fm_enter(FM_ROOT);
	look(c.fd, 0, &seen);
	EXPECT_EQ(700, seen.weight);
	fm_cgroup_remove(FIRST);
	end = fm_now() + FM_GUARD_MS * FM_MS;
	do {
		look(c.fd, 0, &seen);
		fm_sleep_us(10000);
	} while (seen.weight == 700 && fm_now() < end);
	EXPECT_EQ(100, seen.weight);
	fm_ctx_close(&c);
	fm_cgroup_make(FIRST);
	EXPECT_EQ(-ENOENT, fm_group_set(FIRST, &again));
}

static int group_set_of(int fd, int cgroup, u32 flags)
{
	struct fermata_group_set g = {
		.size = sizeof(g), .flags = flags, .cgroup = cgroup, .weight = 1
	};

	return fm_ioctl(fd, FERMATA_IOC_GROUP_SET, &g);
}

FM_TEST(group, defect_03_what_cannot_be_registered)
{
	static const struct {
		int error;
		struct fermata_group_set g;
	} bad[] = {
		{ -EINVAL, { .flags = FERMATA_GROUP_USER << 1 } },
		{ -EINVAL, { .flags = FERMATA_GROUP_USER } },
		{ -ERANGE, { .flags = FERMATA_GROUP_CHILDREN, .children = 2 } },
		{ -EINVAL, { .flags = FERMATA_GROUP_REMOVE | FERMATA_GROUP_WEIGHT, .weight = 1 } },
		{ -EINVAL, { .flags = FERMATA_GROUP_WEIGHT, .weight = 1, .reserved = 1 } },
		{ -EINVAL, { .flags = FERMATA_GROUP_EXCLUSIVE, .slot_mask = 1U << 31 } },
		{ -EINVAL, { .flags = FERMATA_GROUP_EXCLUSIVE, .slot_mask = 1U << FERMATA_MAX_SLOTS } },
		{ -ERANGE, { .flags = FERMATA_GROUP_WEIGHT } },
		{ -ERANGE, { .flags = FERMATA_GROUP_WEIGHT, .weight = 10001 } },
		{ -ERANGE, { .flags = FERMATA_GROUP_WEIGHT, .weight = (1U << 16) + 1 } },
		{ -ERANGE, { .flags = FERMATA_GROUP_MAX_PRIORITY, .max_priority = 32 } },
		{ -ERANGE, { .flags = FERMATA_GROUP_MAX_PRIORITY, .max_priority = 256 } },
		{ -ERANGE, { .flags = FERMATA_GROUP_CAP, .cap = 801 } },
		{ -ERANGE, { .flags = FERMATA_GROUP_CAP, .cap = 65536 + 1 } },
		{ -ERANGE, { .flags = FERMATA_GROUP_MAX_CONTEXTS, .max_contexts = 65537 } },
	};
	struct fermata_group_set g;
	struct fm_child ch;
	int fd = fm_open_dev(0), dirs[5], status;
	size_t i;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_cgroup_make(FIRST);
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		g = bad[i].g;
		EXPECT_EQ(bad[i].error, fm_group_set(FIRST, &g));
	}
	g = (struct fermata_group_set) { 0 };
	EXPECT_EQ(-ENOENT, fm_group_set(FIRST, &g));
	dirs[0] = -1;
	dirs[1] = fd;
	dirs[2] = open("/", O_RDONLY | O_DIRECTORY);
	dirs[3] = open("/sys/fs/cgroup/cgroup.procs", O_RDONLY);
	dirs[4] = open("/sys/fs", O_RDONLY | O_DIRECTORY);
	for (i = 0; i < 5; i++) {
		EXPECT_EQ(-EBADF, group_set_of(fd, dirs[i], FERMATA_GROUP_WEIGHT));
		EXPECT_EQ(-EBADF, group_set_of(fd, dirs[i], 0));
	}
	dirs[0] = fm_cgroup_open(FIRST);
	fm_fork(&ch);
	if (!ch.pid) {
		fm_drop_privileges();
		if (group_set_of(fd, dirs[0], FERMATA_GROUP_WEIGHT) != -EPERM ||
		    group_set_of(fd, dirs[0], FERMATA_GROUP_REMOVE) != -EPERM ||
		    group_set_of(fd, dirs[0], 0) != -EPERM || group_set_of(fd, -1, 0) != -EPERM)
			_exit(1);
		_exit(0);
	}
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	EXPECT_EQ(0, group_set_of(fd, dirs[0], FERMATA_GROUP_WEIGHT));
	EXPECT_EQ(0, fm_group_remove(FIRST));
	fm_cgroup_remove(FIRST);
	EXPECT_EQ(-ENOENT, group_set_of(fd, dirs[0], FERMATA_GROUP_WEIGHT));
	close(fd);
}

/* Registrations are bounded; removal of a cgroup makes room at once. */
FM_TEST(group, defect_03_registrations_are_bounded)
{
	char path[64];
	int i;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_cgroup_make(FIRST);
	for (i = 0; i < FERMATA_MAX_GROUPS; i++) {
		snprintf(path, sizeof(path), FIRST "/%d", i);
		fm_cgroup_make(path);
		ASSERT_EQ(i < FERMATA_MAX_GROUPS - 1 ? 0 : -ENOSPC, weigh(path, 1 + i));
	}
	/* One of these is the root. A registered group can be changed; for a new one another has to go. */
	EXPECT_EQ(0, weigh(FIRST "/7", 9));
	EXPECT_EQ(-ENOSPC, weigh(path, 1));
	fm_cgroup_remove(FIRST "/7");
	EXPECT_EQ(0, weigh(path, 1));
	EXPECT_EQ(-ENOSPC, weigh(FIRST, 1));
	EXPECT_EQ(0, fm_group_remove(path));
	EXPECT_EQ(0, weigh(FIRST, 1));
}

/* Priorities above the ceiling are lowered, and cannot be raised again. */
FM_TEST(group, defect_03_priority_ceiling)
{
	struct fermata_group_set g = { .flags = FERMATA_GROUP_MAX_PRIORITY, .max_priority = 5 };
	struct fermata_param param = { .size = sizeof(param), .param = FERMATA_PARAM_PRIORITY };
	struct fm_ctx c[2], other;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_enter(0);
	fm_tenant(&c[0], FM_MS);
	fm_enter(FM_ROOT);
	fm_tenant(&other, FM_MS);
	fm_param(c[0].fd, FERMATA_PARAM_PRIORITY, 31);
	fm_group(FIRST, &g);
	fm_enter(0);
	fm_tenant(&c[1], FM_MS);
	fm_enter(FM_ROOT);
	EXPECT_EQ(5, fm_param_get(c[0].fd, FERMATA_PARAM_PRIORITY));
	EXPECT_EQ(5, fm_param_get(c[1].fd, FERMATA_PARAM_PRIORITY));
	EXPECT_EQ(16, fm_param_get(other.fd, FERMATA_PARAM_PRIORITY));
	fm_must(c[0].fd, FERMATA_IOC_PARAM, &param, "PARAM");
	EXPECT_EQ(5, param.max);
	EXPECT_EQ(-EPERM, fm_param_set(c[0].fd, FERMATA_PARAM_PRIORITY, 6));
	EXPECT_EQ(-EPERM, fm_param_set_of(other.fd, fm_number(c[0].fd), FERMATA_PARAM_PRIORITY, 6));
	EXPECT_EQ(-ERANGE, fm_param_set(c[0].fd, FERMATA_PARAM_PRIORITY, 32));
	EXPECT_EQ(0, fm_param_set(c[0].fd, FERMATA_PARAM_PRIORITY, 4));
	EXPECT_EQ(0, fm_param_set(c[0].fd, FERMATA_PARAM_PRIORITY, 5));
	ASSERT_EQ(0, fm_group_remove(FIRST));
	EXPECT_EQ(0, fm_param_set(c[0].fd, FERMATA_PARAM_PRIORITY, 31));
}

/* The cap holds although the slot is otherwise vacant. */
FM_TEST(group, defect_03_cap_of_a_group)
{
	struct fermata_group_set g = { .flags = FERMATA_GROUP_CAP, .cap = 20 };
	struct card_run before[3], after[3];
	struct fermata_context_info info;
	u64 begin, time, had = 0;
	struct fm_ctx c[3];
	int i, tries, ran;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_policy(FERMATA_POLICY_FAIR, 0);
	for (i = 0; i < 3; i++) {
		fm_enter(0);
		fm_tenant(&c[i], SLICE);
		fm_enter(FM_ROOT);
		fm_job_endless(&c[i]);
		fm_must_start(&c[i]);
	}
	fm_group(FIRST, &g);
	for (tries = 0; tries < 8; tries++) {
		fm_sleep_us(300000);
		begin = fm_now();
		card_runs_of(c[0].slot, c, before, 3);
		fm_sleep_us(1500000);
		card_runs_of(c[0].slot, c, after, 3);
		time = fm_now() - begin;
		for (i = 0, had = 0, ran = 0; i < 3; i++) {
			had += after[i].run_ns - before[i].run_ns;
			ran += after[i].run_ns > before[i].run_ns;
		}
		TH_LOG("a group with a cap of 20 %% has %d %%, %d run", (int)(had * 100 / time), ran);
		/* If the machine stalls, one run may use up the time of all. */
		if (ran == 3 && fm_percent_within(had, time, 10, 24))
			break;
	}
	EXPECT_GT(8, tries);
	for (i = 0; i < 3; i++)
		EXPECT_LT(before[i].run_ns, after[i].run_ns);
	/* Contexts that wait for the cap are shown as throttled, and resume when it ends. */
	g.cap = 1;
	fm_group(FIRST, &g);
	info = until_throttled(c[0].fd);
	EXPECT_EQ(FERMATA_WAITS_GROUP_CAP, info.waits);
	EXPECT_EQ(group_of(c[0].fd), info.waits_group);
	ASSERT_EQ(0, fm_group_remove(FIRST));
	card_until_runs(c[0].slot, c[0].token);
	for (i = 0; i < 3; i++)
		fm_end_endless(&c[i]);
}

/* Limits of contexts and bytes of a group, whichever process has them. */
FM_TEST(group, defect_03_limits_of_a_group)
{
	struct fermata_group_set g = {
		.flags = FERMATA_GROUP_MAX_CONTEXTS | FERMATA_GROUP_MAX_BYTES,
		.max_contexts = 3, .max_bytes = 8 * FM_PAGE
	};
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0], .afu_id_hi = fm_afu[FM_LIST][1]
	};
	struct fm_child ch;
	int status;

	if (!fm_has_cgroups() || !fm_has_window())
		SKIP(return, "no cgroups (version 2), or one user only");
	ASSERT_EQ(0, chmod(fm_dev(), 0666));
	fm_cgroup_make(FIRST);
	fm_group(FIRST, &g);
	fm_fork(&ch);
	if (!ch.pid) {
		struct fermata_arena_create arena = { .size = sizeof(arena), .length = 4 * FM_PAGE };
		int fd[5], i, rc;

		fm_enter(0);
		for (i = 0; i < 4; i++) {
			if (setresuid(0, 0, 0) || setresuid(100000 + i, 100000 + i, 0))
				_exit(1);
			fd[i] = fm_open_dev(0);
			rc = fm_ioctl(fd[i], FERMATA_IOC_SETUP, &setup);
			if (rc != (i < 3 ? 0 : -EDQUOT))
				_exit(10 + i);
		}
		for (i = 0; i < 3; i++) {
			rc = fm_ioctl(fd[i], FERMATA_IOC_ARENA_CREATE, &arena);
			if (rc != (i < 2 ? 0 : -ENOMEM))
				_exit(20 + i);
		}
		/* Refused requests do not count, nor do closed contexts. */
		close(fd[0]);
		if (fm_ioctl(fd[2], FERMATA_IOC_ARENA_CREATE, &arena))
			_exit(30);
		if (fm_ioctl(fd[3], FERMATA_IOC_SETUP, &setup))
			_exit(31);
		/* An administrator may exceed the limit. */
		if (setresuid(0, 0, 0))
			_exit(1);
		fd[4] = fm_open_dev(0);
		if (fm_ioctl(fd[4], FERMATA_IOC_SETUP, &setup) ||
		    fm_ioctl(fd[4], FERMATA_IOC_ARENA_CREATE, &arena))
			_exit(32);
		g = (struct fermata_group_set) { 0 };
		fm_group(FIRST, &g);
		if (g.contexts != 4 || g.bytes != 12 * FM_PAGE)
			_exit(33);
		_exit(0);
	}
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	ASSERT_EQ(0, chmod(fm_dev(), 0600));
}

/* All contexts of a full card move, whatever happens to jobs meanwhile. */
FM_TEST(group, defect_03_many_move)
{
	struct rlimit files = { 8300, 8300 };
	struct fermata_card_info info;
	struct fermata_group seen;
	static int fd[8200];
	struct fm_expect e[2];
	struct fm_ctx c[2];
	int n = 0, i, round;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_card_info(&info);
	if (info.max_contexts > 8192 || setrlimit(RLIMIT_NOFILE, &files))
		SKIP(return, "too many contexts");
	fm_cgroup_make(FIRST);
	fm_cgroup_make(FIRST "/a");
	fm_cgroup_make(FIRST "/b");
	fm_enter_path(FIRST "/a");
	fm_tenant_list(&c[0], FM_MS, 60000, 1, &e[0]);
	fm_enter_path(FIRST "/b");
	fm_tenant_list(&c[1], FM_MS, 60000, 2, &e[1]);
	for (n = 0; n < (int)info.max_contexts - 4; n++) {
		struct fermata_setup setup = {
			.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
			.afu_id_hi = fm_afu[FM_LIST][1]
		};

		fd[n] = fm_open_dev(0);
		ASSERT_LE(0, fd[n]);
		ASSERT_EQ(0, fm_ioctl(fd[n], FERMATA_IOC_SETUP, &setup));
	}
	fm_enter(FM_ROOT);
	for (i = 0; i < 2; i++) {
		card_speed(c[i].slot, 1);
		fm_must_start(&c[i]);
	}
	for (round = 0; round < 6; round++) {
		fm_group_children(FIRST, round & 1);
		look(c[1].fd, 0, &seen);
		EXPECT_EQ(n + (round & 1 ? 1 : 2), seen.contexts);
	}
	for (i = 0; i < 2; i++) {
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c[i], &e[i]));
	}
	ASSERT_GOOD(fm_runs_wrong(c, 2));
	for (i = 0; i < n; i++)
		close(fd[i]);
}

/* A gang belongs to one group: a registration that separates its members splits it. */
FM_TEST(group, defect_03_a_gang_is_split)
{
	struct fermata_gang gang = { .size = sizeof(gang), .flags = FERMATA_GANG_JOIN };
	struct fm_ctx c[2];

	if (!fm_has_cgroups() || fm_slot_of(FM_SHA) < 0)
		SKIP(return, "no cgroups (version 2), or not two engines");
	fm_cgroup_make(FIRST);
	fm_cgroup_make(FIRST "/a");
	fm_cgroup_delegate(FIRST "/a", USER);
	fm_enter(0);
	fm_tenant(&c[0], FM_MS);
	fm_enter_path(FIRST "/a");
	fm_ctx_new(&c[1], FM_SHA, 64 * 1024);
	fm_enter(FM_ROOT);
	gang.context = fm_number(c[0].fd);
	fm_must(c[1].fd, FERMATA_IOC_GANG, &gang, "GANG");
	EXPECT_EQ(2, gang.members);
	/* Both move: they stay together. */
	ASSERT_EQ(0, weigh(FIRST, 7));
	gang = (struct fermata_gang) { .size = sizeof(gang) };
	fm_must(c[1].fd, FERMATA_IOC_GANG, &gang, "GANG");
	EXPECT_EQ(2, gang.members);
	ASSERT_EQ(0, weigh(FIRST "/a", 7));
	fm_must(c[1].fd, FERMATA_IOC_GANG, &gang, "GANG");
	EXPECT_EQ(1, gang.members);
}

/* --- groups within groups ------------------------------------------------------------ */

/* Groups within FIRST: each is in the one before. */
#define INNER	FIRST "/a"
#define THIRD	INNER "/b"
#define FOURTH	THIRD "/c"
#define FIFTH	FOURTH "/d"
/* A sibling of INNER. */
#define SIBLING	FIRST "/s"

static const char * const chain[] = { FIRST, INNER, THIRD, FOURTH, FIFTH };
#define CHAIN	5

static void make_chain(int n)
{
	int i;

	for (i = 0; i < n; i++)
		fm_cgroup_make(chain[i]);
}

/* Opens a context whose opener is in the cgroup at a path. */
static void tenant_in(const char *path, struct fm_ctx *c, u64 slice_ns)
{
	fm_cgroup_make(path);
	fm_enter_path(path);
	fm_tenant(c, slice_ns);
	fm_enter(FM_ROOT);
}

/* Opens one context in each of these cgroups; their jobs wait behind the gate. */
static void nested_begin(struct crowd *crowd, const char * const paths[EACH])
{
	int i;

	fm_gate_close(&crowd->gate);
	for (i = 0; i < EACH; i++) {
		tenant_in(paths[i], &crowd->c[i], SLICE);
		fm_job_endless(&crowd->c[i]);
		fm_must_start(&crowd->c[i]);
	}
}

/* Returns the number of contexts of the group and of the groups below it. */
static u32 contexts_of(const char *path)
{
	struct fermata_group_set g = { 0 };

	fm_group(path, &g);
	return g.contexts;
}

static u32 weight_of(const char *path)
{
	struct fermata_group_set g = { 0 };

	fm_group(path, &g);
	return g.weight;
}

static bool is_registered(const char *path)
{
	struct fermata_group_set g = { 0 };
	int rc = fm_group_set(path, &g);

	if (rc && rc != -ENOENT)
		fm_die("GROUP_SET of %s: %s", path, strerror(-rc));
	return !rc;
}

/*
 * Weights compete only among siblings: the weights of the inner groups, which are higher than those
 * of the outer ones, only divide the time of the outer group.
 */
FM_TEST(group, weights_compete_among_siblings)
{
	static const char * const paths[EACH] = { INNER, SIBLING, SIBLING, SECOND, SECOND };
	/* Three quarters, of which one third goes to the first, and two thirds to the next two. */
	static const struct part first[EACH] = { { 17, 33 }, { 17, 33 }, { 17, 33 }, { 6, 19 }, { 6, 19 } };
	/* One half, of which one half goes to the first. */
	static const struct part then[EACH] = { { 17, 33 }, { 6, 19 }, { 6, 19 }, { 17, 33 }, { 17, 33 } };
	struct crowd crowd;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_policy(FERMATA_POLICY_FAIR, 0);
	fm_cgroup_make(FIRST);
	nested_begin(&crowd, paths);
	ASSERT_EQ(0, weigh(FIRST, 300));
	ASSERT_EQ(0, weigh(SECOND, 100));
	ASSERT_EQ(0, weigh(INNER, 1000));
	ASSERT_EQ(0, weigh(SIBLING, 2000));
	fm_gate_open(&crowd.gate);
	EXPECT_TRUE(come_to(crowd.c, first, 300));
	ASSERT_EQ(0, weigh(FIRST, 100));
	ASSERT_EQ(0, weigh(SIBLING, 1000));
	EXPECT_TRUE(come_to(crowd.c, then, 300));
	crowd_end(&crowd);
}

/* A context of the outer group itself competes with the groups within, by its own weight. */
FM_TEST(group, contexts_beside_inner_groups)
{
	static const char * const paths[EACH] = { FIRST, INNER, INNER, SECOND, SECOND };
	static const struct part parts[EACH] = { { 17, 33 }, { 6, 19 }, { 6, 19 }, { 17, 33 }, { 17, 33 } };
	/* One quarter of a half; one half of the rest for each of the next two. */
	static const struct part then[EACH] = { { 6, 19 }, { 11, 27 }, { 11, 27 }, { 17, 33 }, { 17, 33 } };
	struct crowd crowd;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_policy(FERMATA_POLICY_FAIR, 0);
	nested_begin(&crowd, paths);
	ASSERT_EQ(0, weigh(FIRST, 100));
	ASSERT_EQ(0, weigh(INNER, 100));
	fm_gate_open(&crowd.gate);
	EXPECT_TRUE(come_to(crowd.c, parts, 300));
	ASSERT_EQ(0, weigh(INNER, 300));
	EXPECT_TRUE(come_to(crowd.c, then, 300));
	crowd_end(&crowd);
}

/*
 * Outer, middle and inner group nest as their cgroups do, in whatever order they are registered,
 * and also after the middle one was removed and registered again.
 */
FM_TEST(group, nested_in_any_order)
{
	static const char * const paths[EACH] = { THIRD, INNER, FIRST, SECOND, SECOND };
	static const char * const orders[][3] = {
		{ FIRST, INNER, THIRD }, { THIRD, INNER, FIRST }, { FIRST, THIRD, INNER }
	};
	/* A tenth of one half for the third, and one half of the rest for each of the first two. */
	static const struct part nested[EACH] = { { 14, 31 }, { 14, 31 }, { 1, 9 }, { 17, 33 }, { 17, 33 } };
	/* One third of the half for each. */
	static const struct part removed[EACH] = { { 10, 24 }, { 10, 24 }, { 10, 24 }, { 17, 33 }, { 17, 33 } };
	struct crowd crowd;
	int order, i;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_policy(FERMATA_POLICY_FAIR, 0);
	make_chain(3);
	nested_begin(&crowd, paths);
	ASSERT_EQ(0, weigh(SECOND, 100));
	fm_gate_open(&crowd.gate);
	for (order = 0; order < 3; order++) {
		for (i = 0; i < 3; i++)
			ASSERT_EQ(0, weigh(orders[order][i], !strcmp(orders[order][i], INNER) ? 900 : 100));
		for (i = 0; i < 3; i++)
			EXPECT_EQ(fm_cgroup_number_of(paths[i]), group_of(crowd.c[i].fd));
		EXPECT_EQ(3, contexts_of(FIRST));
		EXPECT_EQ(2, contexts_of(INNER));
		EXPECT_EQ(1, contexts_of(THIRD));
		EXPECT_TRUE(come_to(crowd.c, nested, 300)) {
			TH_LOG("order %d", order);
		}
		ASSERT_EQ(0, fm_group_remove(INNER));
		EXPECT_EQ(fm_cgroup_number_of(THIRD), group_of(crowd.c[0].fd));
		EXPECT_EQ(fm_cgroup_number_of(FIRST), group_of(crowd.c[1].fd));
		EXPECT_EQ(3, contexts_of(FIRST));
		EXPECT_EQ(1, contexts_of(THIRD));
		EXPECT_TRUE(come_to(crowd.c, removed, 300)) {
			TH_LOG("order %d, without the middle one", order);
		}
		ASSERT_EQ(0, fm_group_remove(FIRST));
		ASSERT_EQ(0, fm_group_remove(THIRD));
	}
	crowd_end(&crowd);
}

/* Time on slots and contexts of a group are those of its subtree, closed contexts included. */
FM_TEST(group, time_of_the_subtree)
{
	struct fermata_group_set outer = { 0 }, inner = { 0 };
	struct fermata_status st[2];
	struct fm_expect e[2];
	struct fm_ctx c[2];
	int i;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	make_chain(2);
	ASSERT_EQ(0, weigh(FIRST, 100));
	ASSERT_EQ(0, weigh(INNER, 100));
	for (i = 0; i < 2; i++) {
		tenant_in(i ? INNER : FIRST, &c[i], FM_LONG_SLICE);
		fm_job_list(&c[i], 64, 20000, i, &e[i]);
		card_speed(c[i].slot, 1);
		ASSERT_GOOD(fm_job_run(&c[i], &e[i]));
		fm_status(c[i].fd, &st[i]);
	}
	fm_group(FIRST, &outer);
	fm_group(INNER, &inner);
	EXPECT_EQ(2, outer.contexts);
	EXPECT_EQ(1, inner.contexts);
	EXPECT_LT(inner.bytes, outer.bytes);
	EXPECT_EQ(st[0].run_ns + st[1].run_ns, outer.run_ns);
	EXPECT_EQ(st[1].run_ns, inner.run_ns);
	fm_ctx_close(&c[1]);
	outer = inner = (struct fermata_group_set) { 0 };
	fm_group(FIRST, &outer);
	fm_group(INNER, &inner);
	EXPECT_EQ(1, outer.contexts);
	EXPECT_EQ(0, inner.contexts);
	EXPECT_EQ(0, inner.bytes);
	EXPECT_EQ(st[0].run_ns + st[1].run_ns, outer.run_ns);
	EXPECT_EQ(st[1].run_ns, inner.run_ns);
}

/* Groups nest at most four deep, in any order of registration; a refusal changes nothing. */
FM_TEST(group, nested_too_deep)
{
	static const int orders[][CHAIN] = {
		{ 0, 1, 2, 3, 4 }, { 4, 3, 2, 1, 0 }, { 0, 1, 3, 4, 2 }
	};
	struct fm_ctx c[CHAIN];
	int order, i, last;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	make_chain(CHAIN);
	fm_cgroup_make(SIBLING);
	for (i = 0; i < CHAIN; i++)
		tenant_in(chain[i], &c[i], FM_MS);
	for (order = 0; order < 3; order++) {
		last = orders[order][CHAIN - 1];
		for (i = 0; i < CHAIN - 1; i++)
			ASSERT_EQ(0, weigh(chain[orders[order][i]], 10 + i));
		for (i = 0; i < 2; i++)
			EXPECT_EQ(-E2BIG, weigh(chain[last], 7));
		EXPECT_EQ(-E2BIG, reserve_slots(chain[last], 1U << c[0].slot));
		EXPECT_FALSE(is_registered(chain[last]));
		EXPECT_EQ(-ENOENT, fm_group_remove(chain[last]));
		for (i = 0; i < CHAIN - 1; i++)
			EXPECT_EQ(10 + i, weight_of(chain[orders[order][i]]));
		/* Outside of all registered groups each cgroup is its own group. */
		for (i = 0; i < CHAIN; i++)
			EXPECT_EQ(fm_cgroup_number_of(chain[i - (i == last && i > 0)]),
				  group_of(c[i].fd));
		/* Existing registrations can be changed, and siblings can be added. */
		EXPECT_EQ(0, weigh(chain[orders[order][0]], 99));
		EXPECT_EQ(0, weigh(SIBLING, 5));
		/* With one registration less there is room for the last one. */
		ASSERT_EQ(0, fm_group_remove(chain[orders[order][1]]));
		EXPECT_EQ(0, weigh(chain[last], 7));
		EXPECT_EQ(-E2BIG, weigh(chain[orders[order][1]], 7));
		EXPECT_EQ(fm_cgroup_number_of(chain[last]), group_of(c[last].fd));
		for (i = 0; i < CHAIN; i++)
			fm_group_remove(chain[i]);
		ASSERT_EQ(0, fm_group_remove(SIBLING));
	}
}

/* Is the contexts' time, in percent of a slot, together and for each, within these limits? */
static bool has_of_the_time(const struct fm_ctx *c, int n, const struct part *parts, struct part all)
{
	struct card_run before[EACH], after[EACH];
	u64 begin, time, had, sum = 0;
	bool good = true;
	int i;

	fm_sleep_us(300000);
	begin = fm_now();
	card_runs_of(c[0].slot, c, before, n);
	fm_sleep_us(1500000);
	card_runs_of(c[0].slot, c, after, n);
	time = fm_now() - begin;
	for (i = 0; i < n; i++) {
		had = after[i].run_ns - before[i].run_ns;
		sum += had;
		printf("# context %d: %d %%\n", i, (int)(had * 100 / time));
		good &= fm_percent_within(had, time, parts[i].low, parts[i].high);
	}
	return good && fm_percent_within(sum, time, all.low, all.high);
}

static bool comes_to_have(const struct fm_ctx *c, int n, const struct part *parts, struct part all)
{
	int i;

	for (i = 0; i < 8; i++)
		if (has_of_the_time(c, n, parts, all))
			return true;
	return false;
}

/* The cap of a group applies to all groups below it together; their own caps apply to each. */
FM_TEST(group, cap_of_the_subtree)
{
	static const char * const paths[] = { FIRST, INNER, SIBLING };
	static const struct part any[3] = { { 1, 24 }, { 1, 24 }, { 1, 24 } };
	static const struct part inner[3] = { { 1, 48 }, { 2, 8 }, { 1, 48 } };
	struct fermata_group_set g = { .flags = FERMATA_GROUP_CAP, .cap = 20 };
	struct fermata_context_info info;
	struct fm_ctx c[3];
	int i;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_policy(FERMATA_POLICY_FAIR, 0);
	for (i = 0; i < 3; i++) {
		tenant_in(paths[i], &c[i], SLICE);
		card_speed(c[i].slot, 1);
		fm_job_endless(&c[i]);
		fm_must_start(&c[i]);
	}
	fm_group(FIRST, &g);
	ASSERT_EQ(0, weigh(INNER, 100));
	ASSERT_EQ(0, weigh(SIBLING, 100));
	/* A slow kernel saves for most of the time, and the saves are charged. */
	EXPECT_TRUE(comes_to_have(c, 3, any, (struct part) { fm_is_slow() ? 3 : 10, 24 }));
	/* The inner cap is tighter, but only for its group. */
	g.cap = 40;
	fm_group(FIRST, &g);
	g.cap = 6;
	fm_group(INNER, &g);
	EXPECT_TRUE(comes_to_have(c, 3, inner, (struct part) { fm_is_slow() ? 3 : 24, 47 }));
	/* The outer group's cap throttles contexts of the inner group, until the cap ends. */
	ASSERT_EQ(0, fm_group_remove(INNER));
	ASSERT_EQ(0, weigh(INNER, 100));
	g.cap = 1;
	fm_group(FIRST, &g);
	info = until_throttled(c[1].fd);
	EXPECT_EQ(FERMATA_WAITS_GROUP_CAP, info.waits);
	EXPECT_EQ(group_of(c[0].fd), info.waits_group);
	ASSERT_EQ(0, fm_group_remove(FIRST));
	card_until_runs(c[1].slot, c[1].token);
	for (i = 0; i < 3; i++)
		fm_end_endless(&c[i]);
}

static void set_ceiling(const char *path, u32 ceiling)
{
	struct fermata_group_set g = { .flags = FERMATA_GROUP_MAX_PRIORITY, .max_priority = ceiling };

	fm_group(path, &g);
}

/* The lowest ceiling of a group and its ancestors applies, in any order of registration. */
FM_TEST(group, priority_ceiling_of_the_subtree)
{
	struct fermata_param param = { .size = sizeof(param), .param = FERMATA_PARAM_PRIORITY };
	struct fm_ctx c[3];
	int i;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	make_chain(3);
	for (i = 0; i < 3; i++) {
		tenant_in(chain[i], &c[i], FM_MS);
		fm_param(c[i].fd, FERMATA_PARAM_PRIORITY, 31);
	}
	/* First the innermost group, and a group in between without a ceiling. */
	set_ceiling(THIRD, 9);
	EXPECT_EQ(9, fm_param_get(c[2].fd, FERMATA_PARAM_PRIORITY));
	ASSERT_EQ(0, weigh(INNER, 100));
	set_ceiling(FIRST, 5);
	for (i = 0; i < 3; i++) {
		EXPECT_EQ(5, fm_param_get(c[i].fd, FERMATA_PARAM_PRIORITY));
		EXPECT_EQ(-EPERM, fm_param_set(c[i].fd, FERMATA_PARAM_PRIORITY, 6));
		EXPECT_EQ(0, fm_param_set(c[i].fd, FERMATA_PARAM_PRIORITY, 5));
		fm_must(c[i].fd, FERMATA_IOC_PARAM, &param, "PARAM");
		EXPECT_EQ(5, param.max);
	}
	/* A lower ceiling within; a higher one within the higher. */
	set_ceiling(INNER, 3);
	EXPECT_EQ(5, fm_param_get(c[0].fd, FERMATA_PARAM_PRIORITY));
	EXPECT_EQ(3, fm_param_get(c[1].fd, FERMATA_PARAM_PRIORITY));
	EXPECT_EQ(3, fm_param_get(c[2].fd, FERMATA_PARAM_PRIORITY));
	set_ceiling(FIRST, 31);
	EXPECT_EQ(0, fm_param_set(c[0].fd, FERMATA_PARAM_PRIORITY, 31));
	EXPECT_EQ(-EPERM, fm_param_set(c[1].fd, FERMATA_PARAM_PRIORITY, 4));
	EXPECT_EQ(-EPERM, fm_param_set(c[2].fd, FERMATA_PARAM_PRIORITY, 4));
	/* Without the group in between, the inner group has its own ceiling. */
	ASSERT_EQ(0, fm_group_remove(INNER));
	EXPECT_EQ(0, fm_param_set(c[1].fd, FERMATA_PARAM_PRIORITY, 31));
	EXPECT_EQ(0, fm_param_set(c[2].fd, FERMATA_PARAM_PRIORITY, 9));
	EXPECT_EQ(-EPERM, fm_param_set(c[2].fd, FERMATA_PARAM_PRIORITY, 10));
}

/* SETUP of a context as another user, in a cgroup; returns its descriptor or a negative errno. */
static int setup_in(const char *path, uid_t uid)
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0], .afu_id_hi = fm_afu[FM_LIST][1]
	};
	int fd, rc;

	if (setresuid(0, 0, 0))
		_exit(1);
	fm_enter_path(path);
	if (setresuid(uid, uid, 0))
		_exit(1);
	fd = fm_open_dev(0);
	rc = fm_ioctl(fd, FERMATA_IOC_SETUP, &setup);
	if (!rc)
		return fd;
	close(fd);
	return rc;
}

/* Limits of a group count the contexts and bytes of all groups below it. */
FM_TEST(group, limits_of_the_subtree)
{
	struct fermata_group_set g = {
		.flags = FERMATA_GROUP_MAX_CONTEXTS | FERMATA_GROUP_MAX_BYTES,
		.max_contexts = 3, .max_bytes = 8 * FM_PAGE
	};
	struct fm_child ch;
	int status;

	if (!fm_has_cgroups() || !fm_has_window())
		SKIP(return, "no cgroups (version 2), or one user only");
	ASSERT_EQ(0, chmod(fm_dev(), 0666));
	make_chain(2);
	fm_cgroup_make(SIBLING);
	fm_group(FIRST, &g);
	g.max_contexts = 2;
	g.max_bytes = 64 * FM_PAGE;
	fm_group(INNER, &g);
	ASSERT_EQ(0, weigh(SIBLING, 100));
	fm_fork(&ch);
	if (!ch.pid) {
		struct fermata_arena_create arena = { .size = sizeof(arena), .length = 4 * FM_PAGE };
		int a, b, c;

		a = setup_in(INNER, 100000);
		b = setup_in(INNER, 100001);
		if (a < 0 || b < 0)
			_exit(10);
		/* The inner limit, while the outer group has room. */
		if (setup_in(INNER, 100002) != -EDQUOT)
			_exit(11);
		c = setup_in(SIBLING, 100003);
		if (c < 0)
			_exit(12);
		/* The outer limit, for the group itself and for the groups below. */
		if (setup_in(FIRST, 100004) != -EDQUOT || setup_in(SIBLING, 100004) != -EDQUOT)
			_exit(13);
		if (fm_ioctl(a, FERMATA_IOC_ARENA_CREATE, &arena) ||
		    fm_ioctl(c, FERMATA_IOC_ARENA_CREATE, &arena))
			_exit(20);
		/* The inner group uses only 4 of its own 64 pages. */
		if (fm_ioctl(b, FERMATA_IOC_ARENA_CREATE, &arena) != -ENOMEM)
			_exit(21);
		/* Memory that a sibling frees is available to all groups below. */
		close(c);
		if (fm_ioctl(b, FERMATA_IOC_ARENA_CREATE, &arena))
			_exit(22);
		c = setup_in(FIRST, 100005);
		if (c < 0)
			_exit(23);
		if (fm_ioctl(c, FERMATA_IOC_ARENA_CREATE, &arena) != -ENOMEM)
			_exit(24);
		if (setresuid(0, 0, 0))
			_exit(1);
		/* There is no limit above that of the outer group. */
		if (fm_group_remove(FIRST))
			_exit(25);
		if (setup_in(INNER, 100006) != -EDQUOT || setup_in(SIBLING, 100006) < 0)
			_exit(26);
		_exit(0);
	}
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	ASSERT_EQ(0, chmod(fm_dev(), 0600));
}

/* What is set for a cgroup with children holds for them together. */
FM_TEST(group, limits_of_children_together)
{
	struct fermata_group_set g = {
		.flags = FERMATA_GROUP_CHILDREN | FERMATA_GROUP_MAX_CONTEXTS, .children = 1,
		.max_contexts = 3
	};
	struct fm_child ch;
	int status;

	if (!fm_has_cgroups() || !fm_has_window())
		SKIP(return, "no cgroups (version 2), or one user only");
	ASSERT_EQ(0, chmod(fm_dev(), 0666));
	make_chain(2);
	fm_cgroup_make(SIBLING);
	fm_cgroup_make(SECOND);
	fm_group(FIRST, &g);
	fm_fork(&ch);
	if (!ch.pid) {
		if (setup_in(INNER, USER) < 0 || setup_in(INNER, USER) < 0 ||
		    setup_in(SIBLING, USER) < 0)
			_exit(1);
		if (setup_in(INNER, USER) != -EDQUOT || setup_in(SIBLING, USER) != -EDQUOT)
			_exit(2);
		if (setup_in(SECOND, USER) < 0)
			_exit(3);
		_exit(0);
	}
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	ASSERT_EQ(0, chmod(fm_dev(), 0600));
}

/* An exclusive slot of the outer group serves the groups below it, and no others. */
FM_TEST(group, slot_for_a_subtree)
{
	struct fm_ctx outer, inner, other;
	struct fermata_status st;
	struct fm_expect e[3];
	bool is_exclusive;
	u64 from;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_policy(FERMATA_POLICY_FAIR, 0);
	make_chain(2);
	tenant_in(FIRST, &outer, FM_LONG_SLICE);
	tenant_in(INNER, &inner, FM_LONG_SLICE);
	tenant_in(SECOND, &other, FM_LONG_SLICE);
	fm_job_list(&outer, 64, 2000, 1, &e[0]);
	fm_job_list(&inner, 64, 2000, 2, &e[1]);
	fm_job_endless(&other);
	card_speed(outer.slot, 1);
	from = card_history_end();
	fm_must_start(&other);
	card_until_runs(other.slot, other.token);
	ASSERT_EQ(0, weigh(INNER, 100));
	ASSERT_EQ(0, reserve_slots(FIRST, 1U << outer.slot));
	fm_until_state(other.fd, FERMATA_STATE_QUEUED);
	ASSERT_GOOD(fm_job_run(&outer, &e[0]));
	ASSERT_GOOD(fm_job_run(&inner, &e[1]));
	fm_status(other.fd, &st);
	EXPECT_EQ(FERMATA_STATE_QUEUED, st.state);
	EXPECT_EQ(FERMATA_STATUS_NO_SLOT, st.attributes);
	EXPECT_EQ(fm_cgroup_number_of(FIRST), slot_group(outer.fd, outer.slot, &is_exclusive));
	EXPECT_TRUE(is_exclusive);
	/* The slot is the outer group's: not even a group below can reserve it. */
	EXPECT_EQ(-EBUSY, reserve_slots(INNER, 1U << outer.slot));
	EXPECT_EQ(-EBUSY, reserve_slots(SECOND, 1U << outer.slot));
	/* An exclusive slot of the inner group does not serve groups above it. */
	ASSERT_EQ(0, reserve_slots(FIRST, 0));
	card_until_runs(other.slot, other.token);
	ASSERT_EQ(0, reserve_slots(INNER, 1U << outer.slot));
	fm_until_state(other.fd, FERMATA_STATE_QUEUED);
	fm_job_list(&outer, 64, 2000, 3, &e[2]);
	fm_must_start(&outer);
	fm_job_list(&inner, 64, 2000, 4, &e[1]);
	ASSERT_GOOD(fm_job_run(&inner, &e[1]));
	fm_status(outer.fd, &st);
	EXPECT_EQ(FERMATA_STATE_QUEUED, st.state);
	EXPECT_EQ(FERMATA_STATUS_NO_SLOT, st.attributes);
	ASSERT_GOOD(fm_turns_wrong(from, (struct fm_turn[]) {
		{ 0, CARD_START, &other }, { 0, CARD_PAUSE, &other }, { 0, CARD_PAUSED, &other },
		{ 0, CARD_START, &outer }, { 0, CARD_FINISHED, &outer },
		{ 0, CARD_START, &inner }, { 0, CARD_FINISHED, &inner },
		{ 0, CARD_RESUME, &other }, { 0, CARD_PAUSE, &other }, { 0, CARD_PAUSED, &other },
		{ 0, CARD_START, &inner }, { 0, CARD_FINISHED, &inner } }, 12));
	/* The first one now depends on how long the other one has run. */
	ASSERT_EQ(0, reserve_slots(INNER, 0));
	card_until_runs(other.slot, other.token);
	fm_end_endless(&other);
	fm_wait(outer.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&outer, &e[2]));
}

/* Waits until the driver has noticed that the cgroup of a context is gone. */
static bool comes_to_be_of(int fd, u64 group)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;

	while (group_of(fd) != group) {
		if (fm_now() > end)
			return false;
		fm_sleep_us(10000);
	}
	return true;
}

/*
 * Cgroups of registered groups are removed while their contexts are open, innermost first as the
 * kernel demands. The registrations end, contexts belong to the next group above, and other jobs
 * continue.
 */
FM_TEST(group, nested_cgroups_that_go)
{
	struct fermata_group_set g = {
		.flags = FERMATA_GROUP_MAX_PRIORITY | FERMATA_GROUP_WEIGHT, .max_priority = 7, .weight = 70
	};
	struct fermata_group seen;
	struct fm_expect e[4];
	struct fm_ctx c[4];
	u64 number[3];
	bool exclusive;
	int i;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_policy(FERMATA_POLICY_FAIR, 0);
	make_chain(3);
	for (i = 0; i < 3; i++) {
		tenant_in(chain[i], &c[i], SLICE);
		number[i] = fm_cgroup_number_of(chain[i]);
		fm_group(chain[i], &g);
	}
	tenant_in(SIBLING, &c[3], SLICE);
	ASSERT_EQ(0, weigh(SIBLING, 30));
	for (i = 0; i < 4; i++) {
		card_speed(c[i].slot, 1);
		fm_job_list(&c[i], 64, 4000000, i, &e[i]);
		fm_must_start(&c[i]);
	}
	fm_until_preempted(c[2].fd, 2);
	/* The innermost group with a registered group above it. */
	ASSERT_EQ(0, reserve_slots(THIRD, 1U << c[0].slot));
	EXPECT_EQ(number[2], slot_group(c[0].fd, c[0].slot, &exclusive));
	fm_cgroup_remove(THIRD);
	EXPECT_TRUE(comes_to_be_of(c[2].fd, number[1]));
	EXPECT_EQ(0, slot_group(c[0].fd, c[0].slot, &exclusive));
	EXPECT_FALSE(exclusive);
	EXPECT_EQ(2, contexts_of(INNER));
	EXPECT_EQ(4, contexts_of(FIRST));
	EXPECT_EQ(-EPERM, fm_param_set(c[2].fd, FERMATA_PARAM_PRIORITY, 8));
	/* A new cgroup of the same name is another group. */
	fm_cgroup_make(THIRD);
	EXPECT_FALSE(is_registered(THIRD));
	EXPECT_EQ(0, weigh(THIRD, 40));
	EXPECT_EQ(number[1], group_of(c[2].fd));
	/* Two groups at once, one within the other. */
	fm_cgroup_remove(THIRD);
	fm_cgroup_remove(INNER);
	EXPECT_TRUE(comes_to_be_of(c[1].fd, number[0]));
	EXPECT_TRUE(comes_to_be_of(c[2].fd, number[0]));
	EXPECT_EQ(4, contexts_of(FIRST));
	EXPECT_EQ(70, weight_of(FIRST));
	EXPECT_EQ(30, weight_of(SIBLING));
	EXPECT_EQ(fm_cgroup_number_of(SIBLING), group_of(c[3].fd));
	for (i = 0; i < 4; i++)
		fm_until_preempted(c[i].fd, fm_preemptions(c[i].fd) + 2);
	/* The outermost group, and the group below it. */
	fm_cgroup_remove(SIBLING);
	fm_cgroup_remove(FIRST);
	for (i = 0; i < 4; i++) {
		u64 end = fm_now() + FM_GUARD_MS * FM_MS;

		do {
			look(c[i].fd, 0, &seen);
			fm_sleep_us(10000);
		} while (seen.weight != 100 && fm_now() < end);
		EXPECT_EQ(100, seen.weight);
		EXPECT_EQ(0, fm_param_set(c[i].fd, FERMATA_PARAM_PRIORITY, 31));
	}
	card_speed(c[0].slot, 0);
	for (i = 0; i < 4; i++) {
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c[i], &e[i]));
	}
	ASSERT_GOOD(fm_runs_wrong(c, 4));
}

/* Groups are nested, separated and nested again at any moment: no work is lost or done twice. */
FM_TEST(group, nested_again_and_again)
{
	struct fm_expect e[4];
	struct fm_ctx c[4];
	int i, round;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_policy(FERMATA_POLICY_FAIR, 0);
	make_chain(4);
	for (i = 0; i < 4; i++) {
		tenant_in(chain[i], &c[i], FM_MS);
		fm_job_list(&c[i], 64, 60000, i, &e[i]);
		card_speed(c[i].slot, 1);
		fm_must_start(&c[i]);
	}
	for (round = 0; round < 300; round++) {
		/* This covers all sets of registrations in all orders, sooner or later. */
		const char *path = chain[round * 7 % 4];
		bool sets = round * 11 / 4 % 3;
		int rc = sets ? weigh(path, 1 + round) : fm_group_remove(path);

		ASSERT_TRUE(!sets || !rc);
		fm_sleep_us(round * 37 % 1000);
	}
	for (i = 0; i < 4; i++) {
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c[i], &e[i]));
	}
	ASSERT_GOOD(fm_runs_wrong(c, 4));
}

TEST_HARNESS_MAIN
