// SPDX-License-Identifier: GPL-2.0
/*
 * Gangs: jobs start together, and are preempted, held and resumed together by a request to any
 * member, as the card sees it. Members without a job; members that join, leave or die; other
 * groups and users.
 */
#include "kselftest_harness.h"
#include <signal.h>
#include <sys/wait.h>
#include "lib/sched.h"

FM_FIXTURE_CARD(gang);

#define MANY	4000

/* A gang of two on two engines, and a context beside it. */
enum { LIST, SHA, BESIDE, ALL };
static const enum fm_engine engine[ALL] = { FM_LIST, FM_SHA, FM_MEM };

struct gang {
	struct fm_ctx c[ALL];
	struct fm_expect e[ALL];
};

/* Calls GANG: the number of members, or a negative errno. */
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
 * Makes jobs that take seconds until the engine runs at full speed; the one beside the gang is of
 * this cgroup. False: there is no such engine.
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

/* The same, with the context beside the gang in the same group. */
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

/* Ends all jobs at full speed; NULL or whose result is wrong. */
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

/* Compares the events of one slot: NULL or how they differ from the expected ones. */
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

/* --- together on slots, by the card's log ---------------------------------------------------- */

/* Is this the START of a member? Or, below, was a member told to leave? */
static bool comes(const struct card_turn *turn)
{
	return turn->what == CARD_START || turn->what == CARD_RESUME;
}

static bool leaves(const struct card_turn *turn)
{
	/* An order that arrives during a restore aborts the restore. */
	return turn->what == CARD_PAUSE || turn->what == CARD_NOT_RUN;
}

static int place_in(const struct fm_ctx *c, int n, u64 token)
{
	int i;

	for (i = 0; i < n; i++)
		if (c[i].token == token)
			return i;
	return -1;
}

/*
 * How often all n members of a gang had such an event since then, in immediate succession on these
 * slots; or -1 if a member had it alone. An event at the end of the log may be the first of
 * several.
 */
static int times_together(u64 from, const struct fm_ctx *c, int n, u32 slots,
			  bool (*is_such)(const struct card_turn *))
{
	static struct card_turn turns[CARD_HISTORY];
	int have = card_history(from, turns, CARD_HISTORY), kept = 0, times = 0, i, k;

	for (i = 0; i < have; i++)
		if (is_such(&turns[i]) && slots & 1U << turns[i].slot)
			turns[kept++] = turns[i];
	for (i = 0; i < kept; i += n, times++) {
		u32 seen = 0;

		while (i < kept && place_in(c, n, turns[i].token) < 0)
			i++;
		for (k = 0; k < n && i + k < kept; k++) {
			int place = place_in(c, n, turns[i + k].token);

			if (place < 0 || seen & 1U << place) {
				printf("# event %d of %d: %d members of %d together\n", i, kept, k, n);
				return -1;
			}
			seen |= 1U << place;
		}
		if (k < n)
			break;
	}
	return times;
}

/* How often the members got their slots together, and left them together; or -1. */
static int comes_and_leaves(u64 from, const struct fm_ctx *c, int n, u32 slots)
{
	int came = times_together(from, c, n, slots, comes);
	int left = times_together(from, c, n, slots, leaves);

	printf("# %d times on slots together, %d times off\n", came, left);
	return came < left ? came : left;
}

/* Waits until the jobs run, then holds all; none gets a slot after the event that it returns. */
static u64 hold_all(struct fm_ctx *c, int n)
{
	int i;

	for (i = 0; i < n; i++)
		card_until_runs(c[i].slot, c[i].token);
	fm_must_hold(&c[0]);
	for (i = 0; i < n; i++)
		fm_wait(c[i].fd, FERMATA_EVENT_HELD);
	return card_history_end();
}

/*
 * On two engines that others want, too: again and again the members get their slots in immediate
 * succession, and are told to leave at the same time.
 */
FM_TEST(gang, started_together)
{
	static struct card_turn turns[MANY];
	struct fm_expect e[SHA + 1];
	struct fm_ctx other[SHA + 1];
	struct gang g;
	u32 slots = 0;
	u64 from;
	int i;

	/* The starvation boost would put a member on a slot alone. */
	fm_policy(FERMATA_POLICY_FAIR, 0);
	if (!gang_new(&g))
		SKIP(return, "not three engines");
	for (i = LIST; i <= SHA; i++) {
		fm_param(g.c[i].fd, FERMATA_PARAM_TIMESLICE, 2 * FM_MS);
		fm_must_start(&g.c[i]);
		slots |= 1U << g.c[i].slot;
	}
	from = hold_all(g.c, SHA + 1);
	for (i = LIST; i <= SHA; i++) {
		fm_ctx_new(&other[i], engine[i], 4 << 20);
		fm_param(other[i].fd, FERMATA_PARAM_TIMESLICE, i == LIST ? FM_MS : 3 * FM_MS);
		fm_job_any(&other[i], 4000000, i + 7, &e[i]);
		fm_must_start(&other[i]);
		card_until_runs(other[i].slot, other[i].token);
	}
	fm_must_resume(&g.c[LIST]);
	card_until_turns(from, turns, MANY, 100);
	EXPECT_LT(card_relay() ? 3 : 5, comes_and_leaves(from, g.c, SHA + 1, slots));
	fm_must_start(&g.c[BESIDE]);
	ASSERT_GOOD(finish_all(&g));
	for (i = LIST; i <= SHA; i++) {
		fm_wait(other[i].fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&other[i], &e[i]));
	}
}

/* --- on equal slots -------------------------------------------------------------------------- */

#define TEAM	4
/* Duration of a member's job at speed 1: longer than any test. */
#define JOB_US	4900000

/* A gang of n on n equal slots (one bit for each), and two contexts that want the slots, too. */
struct team {
	struct fm_ctx c[TEAM], rival[2];
	struct fm_expect e[TEAM];
	u32 slots;
	int n;
};

static void team_speed(const struct team *t, unsigned int speed)
{
	u32 slots;

	for (slots = t->slots; slots; slots &= slots - 1)
		card_speed(__builtin_ctz(slots), speed);
}

/* Opens a context for any slot of the team. */
static void team_tenant(const struct team *t, struct fm_ctx *c, u64 slice_ns)
{
	fm_tenant(c, slice_ns);
	fm_param(c->fd, FERMATA_PARAM_SLOT_MASK, t->slots);
}

/* Makes jobs that take seconds until the engines run fast; false: there are too few equal slots. */
static bool team_new(struct team *t, int n, u64 slice_ns)
{
	int i;

	t->n = n;
	t->slots = fm_slots_of(FM_LIST);
	if (__builtin_popcount(t->slots) < n)
		return false;
	while (__builtin_popcount(t->slots) > n)
		t->slots &= t->slots - 1;
	/* The starvation boost would put a member on a slot alone. */
	fm_policy(FERMATA_POLICY_FAIR, 0);
	team_speed(t, 1);
	for (i = 0; i < n; i++) {
		team_tenant(t, &t->c[i], slice_ns);
		fm_job_list(&t->c[i], 64, JOB_US, i + 1, &t->e[i]);
		if (i)
			join(&t->c[i], fm_number(t->c[i / 2].fd));
	}
	for (i = 0; i < 2; i++) {
		team_tenant(t, &t->rival[i], slice_ns);
		fm_job_endless(&t->rival[i]);
	}
	return true;
}

static bool runs_anywhere(const struct team *t, const struct fm_ctx *c)
{
	u32 slots;

	for (slots = t->slots; slots; slots &= slots - 1)
		if (card_runs(__builtin_ctz(slots), c->token))
			return true;
	return false;
}

static void until_runs_anywhere(const struct team *t, const struct fm_ctx *c)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;

	while (!runs_anywhere(t, c)) {
		if (fm_now() > end)
			fm_die("it does not run");
		fm_sleep_us(200);
	}
}

static void team_until_all_run(const struct team *t)
{
	int i;

	for (i = 0; i < t->n; i++)
		until_runs_anywhere(t, &t->c[i]);
}

/* Waits until all run, then holds all; returns the number of the next event. */
static u64 team_hold(struct team *t)
{
	int i;

	for (i = 0; i < t->n; i++)
		fm_must_start(&t->c[i]);
	team_until_all_run(t);
	fm_must_hold(&t->c[0]);
	for (i = 0; i < t->n; i++)
		fm_wait(t->c[i].fd, FERMATA_EVENT_HELD);
	return card_history_end();
}

/* Starts rivals: they would fill the slots even if one member were missing. */
static void rivals_start(struct team *t)
{
	fm_must_start(&t->rival[0]);
	fm_must_start(&t->rival[1]);
}

static void rivals_end(struct team *t)
{
	fm_end_endless(&t->rival[0]);
	fm_end_endless(&t->rival[1]);
}

static void describe(const char *what, const struct fm_ctx *c)
{
	struct fermata_status st;

	fm_status(c->fd, &st);
	printf("# %s: state %u, attributes %#x, %llu slices, %llu preemptions, %llu ms on slots\n", what,
	       st.state, st.attributes, (unsigned long long)st.slices,
	       (unsigned long long)st.preemptions, (unsigned long long)(st.run_ns / FM_MS));
}

/* Waits until each member was preempted this many times more. */
static void team_go_on(const struct team *t, u64 times)
{
	u64 wanted[TEAM], end = fm_now() + FM_GUARD_MS * FM_MS;
	int i;

	for (i = 0; i < t->n; i++)
		wanted[i] = fm_preemptions(t->c[i].fd) + times;
	for (i = 0; i < t->n; i++) {
		while (fm_preemptions(t->c[i].fd) < wanted[i]) {
			if (fm_now() < end) {
				fm_sleep_us(1000);
				continue;
			}
			for (i = 0; i < t->n; i++)
				describe("member", &t->c[i]);
			for (i = 0; i < 2; i++)
				describe("rival", &t->rival[i]);
			fm_die("not preempted %d times more", (int)times);
		}
	}
}

/* Ends all jobs at full speed; NULL or whose result is wrong. */
static const char *team_finish(struct team *t)
{
	const char *wrong;
	int i;

	team_speed(t, 0);
	for (i = 0; i < t->n; i++) {
		fm_wait(t->c[i].fd, FERMATA_EVENT_DONE);
		wrong = fm_job_wrong(&t->c[i], &t->e[i]);
		if (wrong)
			return wrong;
	}
	return NULL;
}

#define ARRIVALS	30

/*
 * Beside a job that wants one slot, and latency-critical jobs that preempt one: all members have
 * their slots, or none has.
 */
static void beside_a_stream(struct __test_metadata *_metadata, int n)
{
	struct fermata_status st;
	struct fm_expect e;
	struct fm_ctx lc;
	struct team t;
	u64 from;
	int i;

	if (!team_new(&t, n, 2 * FM_MS))
		SKIP(return, "not so many equal slots");
	team_tenant(&t, &lc, FM_LONG_SLICE);
	fm_param(lc.fd, FERMATA_PARAM_LATENCY_CRITICAL, 1);
	from = team_hold(&t);
	fm_must_start(&t.rival[0]);
	until_runs_anywhere(&t, &t.rival[0]);
	fm_must_resume(&t.c[n - 1]);
	for (i = 0; i < ARRIVALS; i++) {
		fm_job_list(&lc, 64, 500 + 50 * i, i, &e);
		ASSERT_GOOD(fm_job_run(&lc, &e));
		fm_sleep_us(i * 337 % 5000);
	}
	team_go_on(&t, 5);
	EXPECT_LT(10, comes_and_leaves(from, t.c, n, t.slots));
	fm_status(lc.fd, &st);
	EXPECT_EQ(0, st.preemptions);
	fm_end_endless(&t.rival[0]);
	ASSERT_GOOD(team_finish(&t));
}

FM_TEST(gang, two_beside_a_stream)
{
	beside_a_stream(_metadata, 2);
}

FM_TEST(gang, four_beside_a_stream)
{
	beside_a_stream(_metadata, 4);
}

/*
 * A latency-critical job takes one slot: all members leave theirs, and none returns before all can,
 * although a slot is vacant.
 */
FM_TEST(gang, makes_way_together)
{
	static struct card_turn turns[MANY];
	struct fm_expect e;
	struct fm_ctx lc;
	struct team t;
	int i, n;
	bool urgent = false;
	u64 from;

	if (!team_new(&t, 2, FM_LONG_SLICE))
		SKIP(return, "no two equal slots");
	team_tenant(&t, &lc, FM_LONG_SLICE);
	fm_param(lc.fd, FERMATA_PARAM_LATENCY_CRITICAL, 1);
	for (i = 0; i < 2; i++)
		fm_must_start(&t.c[i]);
	team_until_all_run(&t);
	from = card_history_end();
	for (i = 0; i < 5; i++) {
		/* An engine ignores PAUSE during a restore. */
		fm_sleep_us(2000);
		fm_job_list(&lc, 64, 3000, i, &e);
		ASSERT_GOOD(fm_job_run(&lc, &e));
		team_until_all_run(&t);
	}
	for (i = 0; i < 2; i++)
		EXPECT_EQ(5, fm_preemptions(t.c[i].fd));
	EXPECT_EQ(5, comes_and_leaves(from, t.c, 2, t.slots));
	n = card_history(from, turns, MANY);
	for (i = 0; i < n; i++) {
		if (turns[i].token == lc.token)
			urgent = turns[i].what != CARD_FINISHED;
		else if (comes(&turns[i]))
			EXPECT_FALSE(urgent) {
				TH_LOG("a member comes while the latency-critical job runs");
			}
	}
	ASSERT_GOOD(team_finish(&t));
}

/* The others do not wait for a member that has no job. */
FM_TEST(gang, member_that_ends_its_job)
{
	struct fm_expect e;
	struct team t;
	int i, n;

	n = __builtin_popcount(fm_slots_of(FM_LIST)) < 4 ? 2 : 4;
	if (!team_new(&t, n, 2 * FM_MS))
		SKIP(return, "no two equal slots");
	for (i = 1; i < n; i++)
		fm_must_start(&t.c[i]);
	rivals_start(&t);
	for (i = 0; i < 8; i++) {
		fm_job_list(&t.c[0], 64, 1000, i, &e);
		ASSERT_GOOD(fm_job_run(&t.c[0], &e));
		/* The others continue without it. */
		fm_until_preempted(t.c[1].fd, fm_preemptions(t.c[1].fd) + 2);
	}
	fm_job_list(&t.c[0], 64, JOB_US, 1, &t.e[0]);
	fm_must_start(&t.c[0]);
	team_go_on(&t, 2);
	rivals_end(&t);
	ASSERT_GOOD(team_finish(&t));
}

/* A disabled member does not stall the others, and runs with them again when it is enabled. */
FM_TEST(gang, member_that_is_disabled)
{
	struct fermata_status st;
	struct team t;
	u64 from, had;
	int i, n;

	n = __builtin_popcount(fm_slots_of(FM_LIST)) < 4 ? 2 : 4;
	if (!team_new(&t, n, 2 * FM_MS))
		SKIP(return, "no two equal slots");
	for (i = 0; i < n; i++)
		fm_must_start(&t.c[i]);
	rivals_start(&t);
	team_go_on(&t, 2);
	ASSERT_EQ(0, fm_param_set_of(t.c[0].fd, fm_number(t.c[1].fd), FERMATA_PARAM_ENABLED, 0));
	fm_until_state(t.c[1].fd, FERMATA_STATE_QUEUED);
	from = card_history_end();
	had = card_turns_of(from, t.c[1].token);
	for (i = 0; i < n; i++)
		if (i != 1)
			fm_until_preempted(t.c[i].fd, fm_preemptions(t.c[i].fd) + 4);
	EXPECT_EQ(had, card_turns_of(from, t.c[1].token));
	fm_status(t.c[1].fd, &st);
	EXPECT_EQ(FERMATA_STATE_QUEUED, st.state);
	EXPECT_TRUE(st.attributes & FERMATA_STATUS_DISABLED);
	ASSERT_EQ(0, fm_param_set_of(t.c[0].fd, fm_number(t.c[1].fd), FERMATA_PARAM_ENABLED, 1));
	until_runs_anywhere(&t, &t.c[1]);
	/* After one common stop the members run together. */
	fm_must_hold(&t.c[0]);
	for (i = 0; i < n; i++)
		fm_wait(t.c[i].fd, FERMATA_EVENT_HELD);
	from = card_history_end();
	fm_must_resume(&t.c[1]);
	team_go_on(&t, 4);
	EXPECT_LT(2, comes_and_leaves(from, t.c, n, t.slots));
	rivals_end(&t);
	ASSERT_GOOD(team_finish(&t));
}

#define ROUNDS	40

/*
 * Around the gang, the next job of a member is started when the job of its neighbour has ended,
 * while one member's job waits for all others. No job stalls.
 */
FM_TEST(gang, one_waits_for_another)
{
	struct fm_expect e;
	struct team t;
	int i, n;

	n = __builtin_popcount(fm_slots_of(FM_LIST)) < 4 ? 2 : 4;
	if (!team_new(&t, n, FM_MS))
		SKIP(return, "no two equal slots");
	rivals_start(&t);
	/* Ends when the program has seen the end of the others' jobs. */
	fm_job_endless(&t.c[0]);
	fm_must_start(&t.c[0]);
	for (i = 0; i < ROUNDS; i++) {
		struct fm_ctx *c = &t.c[1 + i % (n - 1)];

		/* Longer than a slice, so that the whole gang is preempted meanwhile. */
		fm_job_list(c, 64, 2500, i, &e);
		ASSERT_GOOD(fm_job_run(c, &e));
	}
	EXPECT_NE(FERMATA_STATE_DONE, fm_state(t.c[0].fd));
	fm_end_endless(&t.c[0]);
	rivals_end(&t);
}

/* A member for which there are not enough slots is refused, whatever is on the slots now. */
FM_TEST(gang, more_members_than_slots)
{
	struct fm_ctx late;
	struct team t;
	u32 first;
	int i, n;

	n = __builtin_popcount(fm_slots_of(FM_LIST));
	if (n < 2 || !team_new(&t, n > TEAM ? TEAM : n, 2 * FM_MS))
		SKIP(return, "no two equal slots");
	n = t.n;
	first = t.slots & -t.slots;
	EXPECT_EQ(n, members(t.c[0].fd));
	team_tenant(&t, &late, 2 * FM_MS);
	for (i = 0; i < n; i++)
		EXPECT_EQ(-ENOSPC, gang(late.fd, FERMATA_GANG_JOIN, fm_number(t.c[i].fd)));
	EXPECT_EQ(1, members(late.fd));
	EXPECT_EQ(n, members(t.c[0].fd));
	leave(&t.c[0]);
	EXPECT_EQ(n, gang(late.fd, FERMATA_GANG_JOIN, fm_number(t.c[1].fd)));
	/* Both want the same slot. */
	leave(&late);
	fm_param(late.fd, FERMATA_PARAM_SLOT_MASK, first);
	fm_param(t.c[0].fd, FERMATA_PARAM_SLOT_MASK, first);
	EXPECT_EQ(-ENOSPC, gang(late.fd, FERMATA_GANG_JOIN, fm_number(t.c[0].fd)));
	EXPECT_EQ(1, members(late.fd));
	EXPECT_EQ(1, members(t.c[0].fd));
	/* If one member may also use another slot, it makes room. */
	fm_param(t.c[0].fd, FERMATA_PARAM_SLOT_MASK, t.slots);
	EXPECT_EQ(2, gang(late.fd, FERMATA_GANG_JOIN, fm_number(t.c[0].fd)));
	fm_ctx_close(&late);
}

/* If masks leave fewer slots than members, the members run one by one, and together afterwards. */
FM_TEST(gang, masks_that_leave_too_few_slots)
{
	struct team t;
	u64 from;
	int i;

	if (!team_new(&t, 2, 2 * FM_MS))
		SKIP(return, "no two equal slots");
	for (i = 0; i < 2; i++)
		fm_must_start(&t.c[i]);
	team_until_all_run(&t);
	for (i = 0; i < 2; i++)
		fm_param(t.c[i].fd, FERMATA_PARAM_SLOT_MASK, t.slots & -t.slots);
	EXPECT_EQ(2, members(t.c[0].fd));
	/* In turn, on one slot. */
	team_go_on(&t, 4);
	for (i = 0; i < 2; i++)
		fm_param(t.c[i].fd, FERMATA_PARAM_SLOT_MASK, t.slots);
	team_until_all_run(&t);
	fm_must_hold(&t.c[0]);
	for (i = 0; i < 2; i++)
		fm_wait(t.c[i].fd, FERMATA_EVENT_HELD);
	from = card_history_end();
	rivals_start(&t);
	fm_must_resume(&t.c[0]);
	team_go_on(&t, 4);
	EXPECT_LT(2, comes_and_leaves(from, t.c, 2, t.slots));
	rivals_end(&t);
	ASSERT_GOOD(team_finish(&t));
}

/* Two gangs want the same slots: each runs as a whole, and each gets its time. */
FM_TEST(gang, two_gangs)
{
	struct team t;
	struct fm_expect e[2];
	struct fm_ctx c[2];
	struct card_run run;
	u64 had[2] = { 0 };
	u32 slots;
	u64 from;
	int i;

	if (!team_new(&t, 2, 2 * FM_MS))
		SKIP(return, "no two equal slots");
	from = team_hold(&t);
	for (i = 0; i < 2; i++) {
		team_tenant(&t, &c[i], 2 * FM_MS);
		fm_job_list(&c[i], 64, JOB_US, i + 9, &e[i]);
	}
	join(&c[1], fm_number(c[0].fd));
	for (i = 0; i < 2; i++) {
		fm_must_start(&c[i]);
		until_runs_anywhere(&t, &c[i]);
	}
	fm_hold(&c[0]);
	fm_wait(c[1].fd, FERMATA_EVENT_HELD);
	from = card_history_end();
	fm_must_resume(&c[0]);
	fm_must_resume(&t.c[0]);
	team_go_on(&t, 12);
	for (slots = t.slots; slots; slots &= slots - 1) {
		for (i = 0; i < 2; i++) {
			card_run_of(__builtin_ctz(slots), i ? c[0].token : t.c[0].token, &run);
			had[i] += run.run_ns;
		}
	}
	EXPECT_LT(10, comes_and_leaves(from, t.c, 2, t.slots));
	EXPECT_LT(10, comes_and_leaves(from, c, 2, t.slots));
	TH_LOG("one has %d %%", (int)(had[0] * 100 / (had[0] + had[1])));
	EXPECT_TRUE(fm_percent_within(had[0], had[0] + had[1], 25, 75));
	ASSERT_GOOD(team_finish(&t));
	for (i = 0; i < 2; i++) {
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c[i], &e[i]));
	}
}

/* Two rivals want the slots of the gang: under each policy all get their turns. */
FM_TEST(gang, under_every_policy)
{
	static const char * const policies[] = {
		FERMATA_POLICY_ROUND_ROBIN, FERMATA_POLICY_PRIORITY, FERMATA_POLICY_DEADLINE,
		FERMATA_POLICY_FAIR
	};
	struct team t;
	u64 from, had;
	int i;

	if (!team_new(&t, 2, 2 * FM_MS))
		SKIP(return, "no two equal slots");
	from = team_hold(&t);
	rivals_start(&t);
	until_runs_anywhere(&t, &t.rival[0]);
	until_runs_anywhere(&t, &t.rival[1]);
	fm_must_resume(&t.c[0]);
	for (i = 0; i < 4; i++) {
		fm_policy(policies[i], 0);
		team_go_on(&t, 4);
		had = fm_preemptions(t.rival[0].fd);
		fm_until_preempted(t.rival[0].fd, had + 2);
	}
	EXPECT_LT(10, comes_and_leaves(from, t.c, 2, t.slots));
	rivals_end(&t);
	ASSERT_GOOD(team_finish(&t));
}

#define CROWD	6

/* Gangs, and the masks of members, change at any moment: no work is lost, and no job stalls. */
FM_TEST(gang, changed_again_and_again)
{
	struct fm_expect e[CROWD];
	struct fm_ctx c[CROWD];
	struct team t;
	int i, round, rc;

	/* Its contexts have no jobs. */
	if (!team_new(&t, __builtin_popcount(fm_slots_of(FM_LIST)) < 4 ? 2 : 4, FM_MS))
		SKIP(return, "no two equal slots");
	for (i = 0; i < CROWD; i++) {
		team_tenant(&t, &c[i], FM_MS);
		fm_job_list(&c[i], 64, 150000, i, &e[i]);
		fm_must_start(&c[i]);
	}
	for (round = 0; round < 400; round++) {
		u64 dice = fm_splitmix(round);
		struct fm_ctx *one = &c[dice % CROWD], *other = &c[dice / CROWD % CROWD];

		switch (dice / 64 % 8) {
		case 0: case 1: case 2:
			rc = one == other ? 0 : gang(one->fd, FERMATA_GANG_JOIN, fm_number(other->fd));
			ASSERT_TRUE(rc >= 0 || rc == -ENOSPC);
			break;
		case 3:
			leave(one);
			break;
		case 4:
			ASSERT_EQ(0, fm_param_set_of(one->fd, fm_number(one->fd), FERMATA_PARAM_ENABLED, 0));
			ASSERT_EQ(0, fm_param_set_of(one->fd, fm_number(other->fd), FERMATA_PARAM_ENABLED, 1));
			break;
		case 5:
			fm_param(one->fd, FERMATA_PARAM_SLOT_MASK, t.slots & -t.slots);
			fm_param(other->fd, FERMATA_PARAM_SLOT_MASK, t.slots);
			break;
		case 6:
			fm_param(one->fd, FERMATA_PARAM_LATENCY_CRITICAL, 1);
			fm_param(other->fd, FERMATA_PARAM_LATENCY_CRITICAL, 0);
			break;
		default:
			/* Its job may have ended. */
			fm_preempt(one->fd, dice & 1 << 20 ? FERMATA_PREEMPT_HOLD : 0);
			fm_resume(other->fd);
		}
		fm_sleep_us(dice / 1024 % 2000);
	}
	/* Held jobs are resumed; a RESUME of one resumes its gang. */
	for (i = 0; i < CROWD; i++) {
		ASSERT_EQ(0, fm_param_set_of(c[i].fd, fm_number(c[i].fd), FERMATA_PARAM_ENABLED, 1));
		fm_resume(c[i].fd);
	}
	for (i = 0; i < CROWD; i++) {
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c[i], &e[i]));
	}
}

/* --- held and resumed ------------------------------------------------------------------------ */

/* Members are held and resumed together, by either of them or by the administrator. */
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
			ASSERT_EQ(0, fm_preempt_of(fd, fm_number(one->fd), FERMATA_PREEMPT_HOLD));
		until_held(&g);
		if (i < 3)
			fm_must_resume(another);
		else
			ASSERT_EQ(0, fm_resume_of(fd, fm_number(another->fd)));
	}
	close(fd);
	EXPECT_EQ(4, fm_preemptions(g.c[LIST].fd));
	EXPECT_EQ(4, fm_preemptions(g.c[SHA].fd));
	EXPECT_EQ(0, fm_preemptions(g.c[BESIDE].fd));
	EXPECT_EQ(FERMATA_STATE_RUNNING, fm_state(g.c[BESIDE].fd));
	ASSERT_GOOD(finish_all(&g));
}

/* A yield applies to all, too: on each slot the next context gets its turn. */
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

/* A member without a job is not affected by a hold, and the job that it starts then is not held. */
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
	/* It has no job that could be held. */
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

/* A context that joins or leaves keeps its state. */
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
	/* After leaving the gang its job stays held until it is resumed itself. */
	leave(&g.c[SHA]);
	fm_must_resume(&g.c[LIST]);
	card_until_runs(g.c[LIST].slot, g.c[LIST].token);
	EXPECT_EQ(FERMATA_STATE_HELD, fm_state(g.c[SHA].fd));
	fm_must_resume(&g.c[SHA]);
	card_until_runs(g.c[SHA].slot, g.c[SHA].token);
	/* A context outside the gang does not affect it. */
	fm_must_hold(&g.c[BESIDE]);
	fm_wait(g.c[BESIDE].fd, FERMATA_EVENT_HELD);
	fm_sleep_us(10000);
	EXPECT_EQ(FERMATA_STATE_RUNNING, fm_state(g.c[LIST].fd));
	fm_must_resume(&g.c[BESIDE]);
	ASSERT_GOOD(finish_all(&g));
}

/* A gang belongs to one group, and other contexts of the group can have their own gangs. */
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

/* A member dies while all are held, and while all run: the others remain a gang. */
FM_TEST(gang, one_of_them_dies)
{
	struct fm_child ch;
	struct gang g;
	u64 token;
	int i;

	if (!gang_new(&g))
		SKIP(return, "not three engines");
	start_all(&g);
	/* Its slot is for the member that dies. */
	fm_must_hold(&g.c[BESIDE]);
	fm_wait(g.c[BESIDE].fd, FERMATA_EVENT_HELD);
	for (i = 0; i < 2; i++) {
		fm_fork(&ch);
		if (!ch.pid) {
			struct fm_expect e;
			struct fm_ctx c;

			fm_ctx_new(&c, FM_MEM, 64 * 1024);
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
	fm_must_resume(&g.c[BESIDE]);
	ASSERT_GOOD(finish_all(&g));
}

/* Opens a context of an engine, with SETUP and nothing more. */
static int plain(enum fm_engine engine)
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[engine][0],
		.afu_id_hi = fm_afu[engine][1]
	};
	int fd = fm_open_dev(0), rc = fm_ioctl(fd, FERMATA_IOC_SETUP, &setup);

	if (rc)
		fm_die("SETUP: %s", strerror(-rc));
	return fd;
}

/* Two gangs: a context that changes its gang, or is closed, does not affect the others. */
FM_TEST(gang, members_are_counted)
{
	static const enum fm_engine engines[] = { FM_LIST, FM_SHA, FM_MEM, FM_LIST, FM_MEM };
	int fd[5], i;

	for (i = 0; i < 5; i++) {
		if (fm_slot_of(engines[i]) < 0)
			SKIP(return, "not three engines");
		fd[i] = plain(engines[i]);
		EXPECT_EQ(1, members(fd[i]));
	}
	EXPECT_EQ(2, gang(fd[1], FERMATA_GANG_JOIN, fm_number(fd[0])));
	EXPECT_EQ(3, gang(fd[2], FERMATA_GANG_JOIN, fm_number(fd[1])));
	EXPECT_EQ(2, gang(fd[4], FERMATA_GANG_JOIN, fm_number(fd[3])));
	/* Joining its own gang again changes nothing. */
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

/* Bad requests are refused, and change nothing. */
FM_TEST(gang, bad_requests)
{
	int fd = plain(FM_LIST), fresh = fm_open_dev(0), gone = plain(FM_LIST), other;
	u32 number, closed = fm_number(gone);

	close(gone);
	if (fm_slot_of(FM_SHA) < 0)
		SKIP(return, "not two engines");
	other = plain(FM_SHA);
	number = fm_number(other);
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

/* A member for which there are not enough slots is refused, whatever is on the slots now. */
FM_TEST(gang, full)
{
	int list = plain(FM_LIST), late = plain(FM_LIST), sha, two;

	if (fm_slot_of(FM_SHA) < 0 || __builtin_popcount(fm_slots_of(FM_LIST)) != 1)
		SKIP(return, "not two engines, or several slots with one engine");
	sha = plain(FM_SHA);
	two = plain(FM_SHA);
	EXPECT_EQ(2, gang(sha, FERMATA_GANG_JOIN, fm_number(list)));
	EXPECT_EQ(2, gang(late, FERMATA_GANG_JOIN, fm_number(two)));
	EXPECT_EQ(-ENOSPC, gang(late, FERMATA_GANG_JOIN, fm_number(sha)));
	EXPECT_EQ(2, members(two));
	EXPECT_EQ(2, members(sha));
	close(list);
	EXPECT_EQ(2, gang(late, FERMATA_GANG_JOIN, fm_number(sha)));
	EXPECT_EQ(1, members(two));
	close(sha);
	EXPECT_EQ(1, members(late));
	close(late);
	close(two);
}

/* A context of another user cannot be joined: its owner did not agree to holds by others. */
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
	if (fm_slot_of(FM_SHA) < 0)
		SKIP(return, "not two engines");
	fm_enter(0);
	fd = plain(FM_LIST);
	number = fm_number(fd);
	fm_fork(&ch);
	if (!ch.pid) {
		int own;

		/* The file belongs to the real user; the effective user decides who may open it. */
		if (setreuid(65534, -1))
			_exit(4);
		own = plain(FM_SHA);
		fm_drop_privileges();
		if (gang(own, FERMATA_GANG_JOIN, number) != -EPERM)
			_exit(1);
		if (members(own) != 1)
			_exit(2);
		/* With a descriptor that was passed on, joining is allowed. */
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
