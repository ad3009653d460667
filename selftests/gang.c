// SPDX-License-Identifier: GPL-2.0
/* Gangs: what is asked of one context's job happens to the jobs of all, as the card sees it. */
#include "kselftest_harness.h"
#include <signal.h>
#include <sys/wait.h>
#include "lib/sched.h"

FM_FIXTURE_CARD(gang);

#define MANY	4000

/* Two of a gang on two engines; one beside it. */
enum { LIST, SHA, BESIDE, ALL };
static const enum fm_engine engine[ALL] = { FM_LIST, FM_SHA, FM_MEM };

struct gang {
	struct fm_ctx c[ALL];
	struct fm_expect e[ALL];
};

/* Members, or a negative errno. */
static int gang(int fd, u32 flags, u32 context)
{
	struct fermata_gang gang = { .size = sizeof(gang), .flags = flags, .context = context };
	int rc = fm_ioctl(fd, FERMATA_IOC_GANG, &gang);

	return rc ? rc : (int)gang.members;
}

static int members(int fd)
{
	return gang(fd, 0, 0);
}

static void join(struct fm_ctx *c, u32 other)
{
	int rc = gang(c->fd, FERMATA_GANG_JOIN, other);

	if (rc < 0)
		fm_die("GANG_JOIN: %s", strerror(-rc));
}

static void leave(struct fm_ctx *c)
{
	int rc = gang(c->fd, FERMATA_GANG_LEAVE, 0);

	if (rc != 1)
		fm_die("GANG_LEAVE: %d", rc);
}

/*
 * Jobs that take seconds unless the engine is let loose; the one beside the gang is of this cgroup.
 * False: there is no such engine.
 */
static bool gang_beside(struct gang *g, int cgroup)
{
	int i;

	for (i = 0; i < ALL; i++) {
		if (fm_slot_of(engine[i]) < 0)
			return false;
		if (cgroup != FM_ROOT && i == BESIDE)
			fm_enter(cgroup);
		fm_ctx_new(&g->c[i], engine[i], 4 << 20);
		fm_param(g->c[i].fd, FERMATA_PARAM_TIMESLICE, FM_LONG_SLICE);
		fm_job_any(&g->c[i], 4000000, i, &g->e[i]);
		card_speed(g->c[i].slot, 1);
	}
	if (cgroup != FM_ROOT)
		fm_enter(FM_ROOT);
	join(&g->c[SHA], fm_number(g->c[LIST].fd));
	return true;
}

/* The one beside it is of the same group. */
static bool gang_new(struct gang *g)
{
	return gang_beside(g, FM_ROOT);
}

static void start_all(struct gang *g)
{
	int i;

	for (i = 0; i < ALL; i++)
		fm_must_start(&g->c[i]);
	for (i = 0; i < ALL; i++)
		card_until_runs(g->c[i].slot, g->c[i].token);
}

/* Lets the engines loose; NULL or whose result is wrong. */
static const char *finish_all(struct gang *g)
{
	const char *wrong;
	int i;

	for (i = 0; i < ALL; i++)
		card_speed(g->c[i].slot, 0);
	for (i = 0; i < ALL; i++) {
		fm_wait(g->c[i].fd, FERMATA_EVENT_DONE);
		wrong = fm_job_wrong(&g->c[i], &g->e[i]);
		if (wrong)
			return wrong;
	}
	return NULL;
}

static void until_held(struct gang *g)
{
	fm_wait(g->c[LIST].fd, FERMATA_EVENT_HELD);
	fm_wait(g->c[SHA].fd, FERMATA_EVENT_HELD);
}

static void until_both_run(struct gang *g)
{
	card_until_runs(g->c[LIST].slot, g->c[LIST].token);
	card_until_runs(g->c[SHA].slot, g->c[SHA].token);
}

/* What came on one slot: NULL or how it differs from what is wanted. */
static const char *slot_turns_wrong(u64 from, const struct fm_turn *want, int n)
{
	static struct card_turn turns[MANY];
	static char text[64];
	int have = card_history(from, turns, MANY), i, found = 0;

	for (i = 0; i < have; i++) {
		if (turns[i].slot != want[0].slot)
			continue;
		if (found < n && turns[i].what == want[found].what &&
		    turns[i].token == want[found].c->token) {
			found++;
			continue;
		}
		snprintf(text, sizeof(text), "slot %d: event %d is another", want[0].slot, found);
		return text;
	}
	if (found == n)
		return NULL;
	snprintf(text, sizeof(text), "slot %d: %d events, not %d", want[0].slot, found, n);
	return text;
}

/* Held and resumed together, whoever asks: either of them, or the administrator. */
FM_TEST(gang, held_and_resumed_together)
{
	struct gang g;
	int fd, i;

	if (!gang_new(&g))
		SKIP(return, "not three engines");
	start_all(&g);
	fd = fm_open_dev(0);
	for (i = 0; i < 4; i++) {
		struct fm_ctx *one = &g.c[i & 1 ? SHA : LIST];
		struct fm_ctx *another = &g.c[i & 2 ? SHA : LIST];

		until_both_run(&g);
		if (i < 3)
			fm_must_hold(one);
		else
			ASSERT_EQ(0, fm_control(fd, FERMATA_CONTROL_HOLD, fm_number(one->fd),
						0, 0));
		until_held(&g);
		if (i < 3)
			fm_must_resume(another);
		else
			ASSERT_EQ(0, fm_control(fd, FERMATA_CONTROL_RESUME,
						fm_number(another->fd), 0, 0));
	}
	close(fd);
	EXPECT_EQ(4, fm_preemptions(g.c[LIST].fd));
	EXPECT_EQ(4, fm_preemptions(g.c[SHA].fd));
	EXPECT_EQ(0, fm_preemptions(g.c[BESIDE].fd));
	EXPECT_EQ(FERMATA_STATE_RUNNING, fm_state(g.c[BESIDE].fd));
	ASSERT_GOOD(finish_all(&g));
}

/* A yield, too: on each slot the next one has its turn. */
FM_TEST(gang, yield_together)
{
	struct fm_expect e[SHA + 1];
	struct fm_ctx next[SHA + 1];
	struct gang g;
	u64 from;
	int i;

	if (!gang_new(&g))
		SKIP(return, "not three engines");
	from = card_history_end();
	start_all(&g);
	for (i = LIST; i <= SHA; i++) {
		fm_ctx_new(&next[i], engine[i], 64 * 1024);
		fm_param(next[i].fd, FERMATA_PARAM_TIMESLICE, FM_LONG_SLICE);
		fm_job_any(&next[i], 2000, i + 7, &e[i]);
		fm_must_start(&next[i]);
	}
	fm_sleep_us(20000);
	EXPECT_EQ(0, fm_preemptions(g.c[LIST].fd));
	ASSERT_EQ(0, fm_preempt(g.c[SHA].fd, 0));
	for (i = LIST; i <= SHA; i++) {
		fm_wait(next[i].fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&next[i], &e[i]));
	}
	until_both_run(&g);
	ASSERT_GOOD(finish_all(&g));
	for (i = LIST; i <= SHA; i++)
		ASSERT_GOOD(slot_turns_wrong(from, (struct fm_turn[]) {
			{ g.c[i].slot, CARD_START, &g.c[i] },
			{ g.c[i].slot, CARD_PAUSE, &g.c[i] },
			{ g.c[i].slot, CARD_PAUSED, &g.c[i] },
			{ g.c[i].slot, CARD_START, &next[i] },
			{ g.c[i].slot, CARD_FINISHED, &next[i] },
			{ g.c[i].slot, CARD_RESUME, &g.c[i] },
			{ g.c[i].slot, CARD_FINISHED, &g.c[i] } }, 7));
	ASSERT_GOOD(slot_turns_wrong(from, (struct fm_turn[]) {
		{ g.c[BESIDE].slot, CARD_START, &g.c[BESIDE] },
		{ g.c[BESIDE].slot, CARD_FINISHED, &g.c[BESIDE] } }, 2));
}

/* One that has no job takes no part; what it starts then is not held. */
FM_TEST(gang, member_without_a_job)
{
	struct gang g;

	if (!gang_new(&g))
		SKIP(return, "not three engines");
	fm_must_start(&g.c[LIST]);
	fm_must_start(&g.c[BESIDE]);
	card_until_runs(g.c[LIST].slot, g.c[LIST].token);
	fm_must_hold(&g.c[LIST]);
	fm_wait(g.c[LIST].fd, FERMATA_EVENT_HELD);
	EXPECT_EQ(FERMATA_STATE_IDLE, fm_state(g.c[SHA].fd));
	/* It has no job of its own that could be held. */
	EXPECT_EQ(-ENOENT, fm_preempt(g.c[SHA].fd, FERMATA_PREEMPT_HOLD));
	fm_must_start(&g.c[SHA]);
	card_until_runs(g.c[SHA].slot, g.c[SHA].token);
	EXPECT_EQ(FERMATA_STATE_HELD, fm_state(g.c[LIST].fd));
	fm_must_hold(&g.c[LIST]);
	until_held(&g);
	fm_must_resume(&g.c[LIST]);
	until_both_run(&g);
	ASSERT_GOOD(finish_all(&g));
	EXPECT_EQ(1, fm_preemptions(g.c[LIST].fd));
	EXPECT_EQ(1, fm_preemptions(g.c[SHA].fd));
}

/* Whoever joins or leaves keeps the state that it is in. */
FM_TEST(gang, joining_and_leaving)
{
	struct gang g;

	if (!gang_new(&g))
		SKIP(return, "not three engines");
	leave(&g.c[SHA]);
	start_all(&g);
	fm_must_hold(&g.c[LIST]);
	fm_wait(g.c[LIST].fd, FERMATA_EVENT_HELD);
	join(&g.c[SHA], fm_number(g.c[LIST].fd));
	fm_sleep_us(10000);
	EXPECT_EQ(FERMATA_STATE_RUNNING, fm_state(g.c[SHA].fd));
	fm_must_hold(&g.c[SHA]);
	until_held(&g);
	/* It left: it stays held until it is resumed itself. */
	leave(&g.c[SHA]);
	fm_must_resume(&g.c[LIST]);
	card_until_runs(g.c[LIST].slot, g.c[LIST].token);
	EXPECT_EQ(FERMATA_STATE_HELD, fm_state(g.c[SHA].fd));
	fm_must_resume(&g.c[SHA]);
	card_until_runs(g.c[SHA].slot, g.c[SHA].token);
	/* Of whoever is not in it the gang takes no notice. */
	fm_must_hold(&g.c[BESIDE]);
	fm_wait(g.c[BESIDE].fd, FERMATA_EVENT_HELD);
	fm_sleep_us(10000);
	EXPECT_EQ(FERMATA_STATE_RUNNING, fm_state(g.c[LIST].fd));
	fm_must_resume(&g.c[BESIDE]);
	ASSERT_GOOD(finish_all(&g));
}

/* A gang is of one group, and others of the group have their own. */
FM_TEST(gang, not_of_another_group)
{
	struct gang g;
	struct fm_ctx *other = &g.c[BESIDE];

	if (!fm_has_cgroups() || !gang_beside(&g, 0))
		SKIP(return, "no cgroups, or not three engines");
	EXPECT_EQ(-EINVAL, gang(other->fd, FERMATA_GANG_JOIN, fm_number(g.c[LIST].fd)));
	EXPECT_EQ(-EINVAL, gang(g.c[SHA].fd, FERMATA_GANG_JOIN, fm_number(other->fd)));
	EXPECT_EQ(1, members(other->fd));
	EXPECT_EQ(2, members(g.c[SHA].fd));
	start_all(&g);
	fm_must_hold(&g.c[LIST]);
	until_held(&g);
	EXPECT_EQ(FERMATA_STATE_RUNNING, fm_state(other->fd));
	EXPECT_EQ(0, fm_preemptions(other->fd));
	fm_must_hold(other);
	fm_wait(other->fd, FERMATA_EVENT_HELD);
	fm_must_resume(&g.c[SHA]);
	until_both_run(&g);
	EXPECT_EQ(FERMATA_STATE_HELD, fm_state(other->fd));
	fm_must_resume(other);
	ASSERT_GOOD(finish_all(&g));
}

/* One dies while all are held, and while all run: the others are theirs as before. */
FM_TEST(gang, one_of_them_dies)
{
	struct fm_child ch;
	struct gang g;
	u64 token;
	int i;

	if (!gang_new(&g))
		SKIP(return, "not three engines");
	start_all(&g);
	for (i = 0; i < 2; i++) {
		fm_fork(&ch);
		if (!ch.pid) {
			struct fm_expect e;
			struct fm_ctx c;

			fm_ctx_new(&c, FM_LIST, 64 * 1024);
			join(&c, fm_number(g.c[SHA].fd));
			fm_job_any(&c, 1000, 1, &e);
			fm_must_start(&c);
			fm_say(&ch, c.token);
			fm_hear(&ch);
		}
		token = fm_hear(&ch);
		EXPECT_EQ(3, members(g.c[LIST].fd));
		until_both_run(&g);
		fm_must_hold(&g.c[SHA]);
		until_held(&g);
		if (i) {
			fm_must_resume(&g.c[SHA]);
			fm_kill(&ch);
		} else {
			fm_kill(&ch);
			fm_must_resume(&g.c[SHA]);
		}
		fm_agent_gone(token);
		EXPECT_EQ(2, members(g.c[LIST].fd));
	}
	until_both_run(&g);
	ASSERT_GOOD(finish_all(&g));
}

/* A context that is set up, and nothing more. */
static int plain(void)
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
		.afu_id_hi = fm_afu[FM_LIST][1]
	};
	int fd = fm_open_dev(0), rc = fm_ioctl(fd, FERMATA_IOC_SETUP, &setup);

	if (rc)
		fm_die("SETUP: %s", strerror(-rc));
	return fd;
}

/* Two gangs; whoever goes over, or is closed, leaves the others as they were. */
FM_TEST(gang, members_are_counted)
{
	int fd[5], i;

	for (i = 0; i < 5; i++) {
		fd[i] = plain();
		EXPECT_EQ(1, members(fd[i]));
	}
	EXPECT_EQ(2, gang(fd[1], FERMATA_GANG_JOIN, fm_number(fd[0])));
	EXPECT_EQ(3, gang(fd[2], FERMATA_GANG_JOIN, fm_number(fd[1])));
	EXPECT_EQ(2, gang(fd[4], FERMATA_GANG_JOIN, fm_number(fd[3])));
	/* It is in it. */
	EXPECT_EQ(3, gang(fd[0], FERMATA_GANG_JOIN, fm_number(fd[2])));
	EXPECT_EQ(3, gang(fd[1], FERMATA_GANG_JOIN, fm_number(fd[4])));
	EXPECT_EQ(2, members(fd[0]));
	EXPECT_EQ(2, members(fd[2]));
	EXPECT_EQ(3, members(fd[3]));
	close(fd[4]);
	EXPECT_EQ(2, members(fd[3]));
	EXPECT_EQ(2, members(fd[1]));
	close(fd[1]);
	EXPECT_EQ(1, members(fd[3]));
	EXPECT_EQ(1, gang(fd[0], FERMATA_GANG_LEAVE, 0));
	EXPECT_EQ(1, members(fd[2]));
	EXPECT_EQ(1, gang(fd[2], FERMATA_GANG_LEAVE, 0));
	close(fd[0]);
	close(fd[2]);
	close(fd[3]);
}

/* Refused, and nothing is changed. */
FM_TEST(gang, bad_requests)
{
	int fd = plain(), other = plain(), fresh = fm_open_dev(0), gone = plain();
	u32 number = fm_number(other), closed = fm_number(gone);

	close(gone);
	EXPECT_EQ(2, gang(fd, FERMATA_GANG_JOIN, number));
	EXPECT_EQ(-ENXIO, gang(fresh, 0, 0));
	EXPECT_EQ(-ENXIO, gang(fresh, FERMATA_GANG_JOIN, number));
	EXPECT_EQ(-EINVAL, gang(fd, FERMATA_GANG_JOIN, 0));
	EXPECT_EQ(-EINVAL, gang(fd, FERMATA_GANG_JOIN, fm_number(fd)));
	EXPECT_EQ(-EINVAL, gang(fd, FERMATA_GANG_LEAVE, number));
	EXPECT_EQ(-EINVAL, gang(fd, 0, number));
	EXPECT_EQ(-EINVAL, gang(fd, FERMATA_GANG_JOIN | FERMATA_GANG_LEAVE, number));
	EXPECT_EQ(-EINVAL, gang(fd, FERMATA_GANG_JOIN | FERMATA_GANG_LEAVE, 0));
	EXPECT_EQ(-EINVAL, gang(fd, 4, 0));
	EXPECT_EQ(-ESRCH, gang(fd, FERMATA_GANG_JOIN, closed));
	EXPECT_EQ(-ESRCH, gang(fd, FERMATA_GANG_JOIN, UINT32_MAX));
	EXPECT_EQ(2, members(fd));
	EXPECT_EQ(2, members(other));
	close(fresh);
	close(fd);
	close(other);
}

FM_TEST(gang, full)
{
	int fd[FERMATA_MAX_GANG], late = plain(), two = plain(), i;

	for (i = 0; i < FERMATA_MAX_GANG; i++) {
		fd[i] = plain();
		if (i)
			EXPECT_EQ(i + 1, gang(fd[i], FERMATA_GANG_JOIN, fm_number(fd[i / 2])));
	}
	EXPECT_EQ(2, gang(late, FERMATA_GANG_JOIN, fm_number(two)));
	EXPECT_EQ(-ENOSPC, gang(late, FERMATA_GANG_JOIN, fm_number(fd[7])));
	EXPECT_EQ(2, members(two));
	close(fd[3]);
	EXPECT_EQ(FERMATA_MAX_GANG, gang(late, FERMATA_GANG_JOIN, fm_number(fd[7])));
	EXPECT_EQ(1, members(two));
	for (i = 0; i < FERMATA_MAX_GANG; i++)
		if (i != 3)
			close(fd[i]);
	EXPECT_EQ(1, members(late));
	close(late);
	close(two);
}

/* Whose job another user could hold by it has not asked for that. */
FM_TEST(gang, of_another_user)
{
	struct fm_child ch;
	int fd, status;
	u32 number;

	if (!fm_has_cgroups())
		SKIP(return, "no cgroups");
	if (!fm_has_window())
		SKIP(return, "a card without window check has contexts of one user at a time");
	/* One group of two users. */
	fm_enter(0);
	fd = plain();
	number = fm_number(fd);
	fm_fork(&ch);
	if (!ch.pid) {
		int own;

		/* The user of the file is the real one; who may open it, the effective one. */
		if (setreuid(65534, -1))
			_exit(4);
		own = plain();
		fm_drop_privileges();
		if (gang(own, FERMATA_GANG_JOIN, number) != -EPERM)
			_exit(1);
		if (members(own) != 1)
			_exit(2);
		/* A descriptor that was handed on is another matter. */
		_exit(gang(fd, FERMATA_GANG_JOIN, fm_number(own)) == 2 ? 0 : 3);
	}
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	fm_enter(FM_ROOT);
	EXPECT_EQ(1, members(fd));
	close(fd);
}

TEST_HARNESS_MAIN
