// SPDX-License-Identifier: GPL-2.0
/*
 * Cooperative contexts: their jobs stop at a boundary of the engine's work, as the card sees it:
 * the place, the cause, the time limit, and results of blockmix that are correct to the byte
 * after each stop.
 */
#include "kselftest_harness.h"
#include "lib/sched.h"
#include "lib/calls.h"

FM_FIXTURE_CARD(cooperative);

#define REG_DONE	0x38	/* nodes, bytes or blocks done */
#define REG_DIGEST	0x40
#define REG_STOPPED_AT	0x58

#define HOLDS	5
#define MANY	4000
/* Limit of attempts in which the machine may be too slow. */
#define TRIES	100

static void slot_info(int slot, struct fermata_slot_info *info)
{
	int fd = fm_open_dev(0);

	memset(info, 0, sizeof(*info));
	info->size = sizeof(*info);
	info->slot = slot;
	fm_must(fd, FERMATA_IOC_SLOT_INFO, info, "SLOT_INFO");
	close(fd);
}

/* Whether the card has this engine, and can tell it to stop at a boundary. */
static bool has_boundaries(enum fm_engine engine)
{
	struct fermata_slot_info info;
	int slot = fm_slot_of(engine);

	if (slot < 0)
		return false;
	slot_info(slot, &info);
	return info.flags & FERMATA_SLOT_BOUNDARY;
}

/* Waits until the engine runs, and has done more than this. */
static void until_done(struct fm_ctx *c, u64 more_than)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;

	card_until_runs(c->slot, c->token);
	while (fm_reg_get(c->fd, REG_DONE) <= more_than)
		if (fm_now() > end)
			fm_die("the engine makes no progress");
}

/* Waits until the engine has just passed a boundary. */
static void until_behind_boundary(struct fm_ctx *c, u64 boundary)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;

	while (fm_reg_get(c->fd, REG_DONE) % boundary >= boundary / 4)
		if (fm_now() > end)
			fm_die("the engine makes no progress");
}

/* A job of blockmix, and the buffer as it was before. */
struct mix {
	struct fm_ctx c;
	struct fm_expect e;
	size_t len, block;
	u64 seed;
	u8 *before;
};

static void mix_job(struct mix *m, u64 seed)
{
	m->seed = seed;
	fm_job_mix(&m->c, m->len, m->block, seed, &m->e);
	memcpy(m->before, m->c.mem + FM_DATA, m->len);
}

static void mix_new(struct mix *m, size_t len, size_t block, u64 seed)
{
	m->len = len;
	m->block = block;
	m->before = malloc(len);
	if (!m->before)
		fm_die("no memory");
	fm_ctx_new(&m->c, FM_MIX, FM_DATA + len);
	fm_param(m->c.fd, FERMATA_PARAM_TIMESLICE, FM_LONG_SLICE);
	mix_job(m, seed);
}

/* Checks a held job: NULL, or what differs from the state after this many whole blocks. */
static const char *stopped_wrong(struct mix *m, u64 blocks)
{
	u64 state[2] = {}, digest;
	u8 *model = malloc(m->len);
	const char *wrong = NULL;

	if (!model)
		fm_die("no memory");
	memcpy(model, m->before, m->len);
	digest = fm_mix(model, m->len, m->block, blocks, m->seed);
	if (memcmp(model, m->c.mem + FM_DATA, m->len))
		wrong = "the buffer is not as after the blocks done";
	free(model);
	if (fm_reg_get(m->c.fd, REG_DONE) != blocks)
		wrong = "it did not stop where it says";
	if (fm_reg_get(m->c.fd, REG_DIGEST) != digest)
		wrong = "the digest is not that of the last block done";
	if (fm_snapshot_read(m->c.fd, state, 0, sizeof(state)))
		wrong = "the snapshot cannot be read";
	if (state[0] != blocks || state[1] != digest)
		wrong = "the snapshot is not of the end of a block";
	return wrong;
}

/* Wherever the job is held, blocks are complete: the buffer equals the model's to the byte. */
FM_TEST(cooperative, held_between_blocks)
{
	struct fermata_slot_info before, after;
	struct fm_turn want[2 + 3 * HOLDS];
	u64 from, blocks = 0;
	struct mix m;
	int i, n = 0;

	if (!has_boundaries(FM_MIX))
		SKIP(return, "no engine that stops at boundaries only");
	mix_new(&m, 1024 * 1024 + 192, 4096, 7);
	EXPECT_EQ(1, fm_param_get(m.c.fd, FERMATA_PARAM_COOPERATIVE));
	card_speed(m.c.slot, 1);
	slot_info(m.c.slot, &before);
	from = card_history_end();
	fm_must_start(&m.c);
	want[n++] = (struct fm_turn){ m.c.slot, CARD_START, &m.c };
	for (i = 0; i < HOLDS; i++) {
		until_done(&m.c, blocks);
		fm_hold(&m.c);
		EXPECT_LT(blocks, fm_reg_get(m.c.fd, REG_STOPPED_AT));
		blocks = fm_reg_get(m.c.fd, REG_STOPPED_AT);
		ASSERT_GOOD(stopped_wrong(&m, blocks));
		fm_must_resume(&m.c);
		want[n++] = (struct fm_turn){ m.c.slot, CARD_BOUNDARY, &m.c };
		want[n++] = (struct fm_turn){ m.c.slot, CARD_PAUSED, &m.c };
		want[n++] = (struct fm_turn){ m.c.slot, CARD_RESUME, &m.c };
	}
	card_until_runs(m.c.slot, m.c.token);
	card_speed(m.c.slot, 0);
	fm_wait(m.c.fd, FERMATA_EVENT_DONE);
	want[n++] = (struct fm_turn){ m.c.slot, CARD_FINISHED, &m.c };
	ASSERT_GOOD(fm_job_wrong(&m.c, &m.e));
	ASSERT_GOOD(fm_turns_wrong(from, want, n));
	slot_info(m.c.slot, &after);
	EXPECT_EQ(before.switches + 1 + HOLDS, after.switches);
}

/* Slices end between blocks, too: two jobs that take turns have the same results as alone. */
FM_TEST(cooperative, slices_end_between_blocks)
{
	static struct card_turn turns[MANY];
	struct fermata_status st;
	struct mix gate, m[2];
	struct card_run run[2];
	struct fm_ctx both[2];
	int i, n;
	u64 from;

	if (!has_boundaries(FM_MIX))
		SKIP(return, "no engine that stops at boundaries only");
	mix_new(&gate, 1024 * 1024, 4096, 1);
	for (i = 0; i < 2; i++) {
		mix_new(&m[i], 1024 * 1024 + 64, i ? 4096 : 2048 + 64, i + 2);
		fm_param(m[i].c.fd, FERMATA_PARAM_TIMESLICE, FM_MS);
		both[i] = m[i].c;
	}
	card_speed(gate.c.slot, 1);
	fm_must_start(&gate.c);
	card_until_runs(gate.c.slot, gate.c.token);
	for (i = 0; i < 2; i++)
		fm_must_start(&m[i].c);
	from = card_history_end();
	fm_hold(&gate.c);
	for (i = 0; i < 2; i++)
		fm_until_preempted(m[i].c.fd, 4);
	card_speed(gate.c.slot, 0);
	for (i = 0; i < 2; i++) {
		fm_wait(m[i].c.fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&m[i].c, &m[i].e));
	}
	n = card_history(from, turns, MANY);
	for (i = 0; i < n; i++)
		EXPECT_NE(CARD_PAUSE, turns[i].what);
	card_runs_of(gate.c.slot, both, run, 2);
	for (i = 0; i < 2; i++) {
		fm_status(m[i].c.fd, &st);
		TH_LOG("tenant %d: %d slices", i, (int)st.slices);
		EXPECT_EQ(st.preemptions, run[i].pauses);
		EXPECT_EQ(st.slices, st.preemptions + 1);
	}
}

/* Engines that can be saved anywhere stop at a boundary only if the context is cooperative. */
static void held_where_told(struct __test_metadata *_metadata, enum fm_engine engine, u64 boundary)
{
	struct fm_turn want[2 + 6 * HOLDS];
	struct fm_expect e;
	struct fm_ctx c;
	u64 from, done = 0;
	int i, n = 0;

	fm_ctx_new(&c, engine, 4 << 20);
	fm_param(c.fd, FERMATA_PARAM_TIMESLICE, FM_LONG_SLICE);
	fm_job_any(&c, 4 << 20, 3, &e);
	EXPECT_EQ(0, fm_param_get(c.fd, FERMATA_PARAM_COOPERATIVE));
	card_speed(c.slot, 1);
	from = card_history_end();
	fm_must_start(&c);
	want[n++] = (struct fm_turn){ c.slot, CARD_START, &c };
	for (i = 0; i < 2 * HOLDS; i++) {
		bool at_boundary = i % 2 == 0;

		/* A change while the job runs takes effect at once, and does not preempt. */
		until_done(&c, done);
		fm_param(c.fd, FERMATA_PARAM_COOPERATIVE, at_boundary);
		fm_hold(&c);
		EXPECT_LT(done, fm_reg_get(c.fd, REG_DONE));
		done = fm_reg_get(c.fd, REG_DONE);
		if (at_boundary)
			EXPECT_EQ(0, done % boundary) TH_LOG("stopped at %d", (int)done);
		fm_must_resume(&c);
		want[n++] = (struct fm_turn){
			c.slot, at_boundary ? CARD_BOUNDARY : CARD_PAUSE, &c
		};
		want[n++] = (struct fm_turn){ c.slot, CARD_PAUSED, &c };
		want[n++] = (struct fm_turn){ c.slot, CARD_RESUME, &c };
	}
	card_until_runs(c.slot, c.token);
	card_speed(c.slot, 0);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	want[n++] = (struct fm_turn){ c.slot, CARD_FINISHED, &c };
	ASSERT_GOOD(fm_job_wrong(&c, &e));
	ASSERT_GOOD(fm_turns_wrong(from, want, n));
}

FM_TEST(cooperative, list_is_held_where_told)
{
	if (!has_boundaries(FM_LIST))
		SKIP(return, "no boundaries");
	held_where_told(_metadata, FM_LIST, 1024);
}

FM_TEST(cooperative, sha256_is_held_where_told)
{
	if (!has_boundaries(FM_SHA))
		SKIP(return, "no boundaries");
	held_where_told(_metadata, FM_SHA, 4096);
}

/* An administrator may make any context cooperative, which preempts no job. */
FM_TEST(cooperative, set_by_number_while_it_runs)
{
	struct fm_expect e;
	struct fm_ctx c;
	u32 number;
	u64 from;
	int fd, i;

	if (!has_boundaries(FM_LIST))
		SKIP(return, "no boundaries");
	fm_tenant_list(&c, FM_LONG_SLICE, 4000000, 3, &e);
	card_speed(c.slot, 1);
	from = card_history_end();
	fm_must_start(&c);
	card_until_runs(c.slot, c.token);
	fd = fm_open_dev(0);
	number = fm_number(c.fd);
	for (i = 0; i < 20; i++)
		ASSERT_EQ(0, fm_param_set_of(fd, number, FERMATA_PARAM_COOPERATIVE, i % 2 == 0));
	ASSERT_EQ(0, fm_param_set_of(fd, number, FERMATA_PARAM_COOPERATIVE, 1));
	EXPECT_EQ(1, fm_param_get(c.fd, FERMATA_PARAM_COOPERATIVE));
	EXPECT_EQ(-ERANGE, fm_param_set_of(fd, number, FERMATA_PARAM_COOPERATIVE, 2));
	close(fd);
	fm_hold(&c);
	EXPECT_EQ(0, fm_reg_get(c.fd, REG_DONE) % 1024);
	card_speed(c.slot, 0);
	fm_must_resume(&c);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
	ASSERT_GOOD(fm_turns_wrong(from, (struct fm_turn[]) {
		{ c.slot, CARD_START, &c }, { c.slot, CARD_BOUNDARY, &c },
		{ c.slot, CARD_PAUSED, &c }, { c.slot, CARD_RESUME, &c },
		{ c.slot, CARD_FINISHED, &c } }, 5));
}

/* The work of a job until its boundary does not count for the measured time of saves. */
FM_TEST(cooperative, way_to_the_boundary_is_no_save)
{
	struct fermata_slot_info before, after;
	struct fm_expect e;
	struct fm_ctx c;
	int i;

	if (!has_boundaries(FM_LIST))
		SKIP(return, "no boundaries");
	fm_tenant_list(&c, FM_LONG_SLICE, 4000000, 3, &e);
	card_speed(c.slot, 1);
	fm_must_start(&c);
	card_until_runs(c.slot, c.token);
	fm_hold(&c);
	slot_info(c.slot, &before);
	EXPECT_LT(0, before.save_ns);
	fm_param(c.fd, FERMATA_PARAM_COOPERATIVE, 1);
	for (i = 0; i < HOLDS; i++) {
		fm_must_resume(&c);
		card_until_runs(c.slot, c.token);
		fm_hold(&c);
	}
	slot_info(c.slot, &after);
	EXPECT_EQ(before.switches + HOLDS, after.switches);
	EXPECT_EQ(before.save_ns, after.save_ns);
	card_speed(c.slot, 0);
	fm_must_resume(&c);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
}

/* A job on its way to a boundary stops at once when its context is no longer cooperative. */
FM_TEST(cooperative, not_any_more_on_the_way)
{
	static struct card_turn turns[MANY];
	struct fm_expect e;
	struct fm_ctx c;
	int tries = 0, n;
	u64 from;

	if (!has_boundaries(FM_SHA))
		SKIP(return, "no boundaries");
	fm_ctx_new(&c, FM_SHA, 4 << 20);
	fm_param(c.fd, FERMATA_PARAM_TIMESLICE, FM_LONG_SLICE);
	fm_job_any(&c, 4 << 20, 3, &e);
	do {
		/* The boundary, 4 ms away, may come first. Each attempt has its own job, of 4 s. */
		card_speed(c.slot, 1);
		fm_must_start(&c);
		until_done(&c, 0);
		fm_param(c.fd, FERMATA_PARAM_COOPERATIVE, 1);
		from = card_history_end();
		until_behind_boundary(&c, 4096);
		ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
		fm_param(c.fd, FERMATA_PARAM_COOPERATIVE, 0);
		fm_wait(c.fd, FERMATA_EVENT_HELD);
		n = card_history(from, turns, MANY);
		fm_must_resume(&c);
		card_speed(c.slot, 0);
		fm_wait(c.fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c, &e));
	} while (n == 2 && ++tries < TRIES);
	if (n == 2 && fm_is_slow())
		SKIP(return, "the boundary always comes first");
	ASSERT_EQ(3, n);
	EXPECT_EQ(CARD_BOUNDARY, turns[0].what);
	EXPECT_EQ(CARD_PAUSE, turns[1].what);
	EXPECT_EQ(CARD_PAUSED, turns[2].what);
}

/* Urgent work waits for a boundary that is near enough: jobs are cooperative for all others. */
FM_TEST(cooperative, urgent_work_waits_for_the_boundary)
{
	struct fm_expect eb, el;
	struct fm_ctx be, lc;
	char text[24];
	u64 from, wait;

	if (!has_boundaries(FM_LIST))
		SKIP(return, "no boundaries");
	fm_tenant_list(&be, FM_LONG_SLICE, 4000000, 1, &eb);
	fm_tenant_list(&lc, FM_LONG_SLICE, 2000, 2, &el);
	fm_param(be.fd, FERMATA_PARAM_COOPERATIVE, 1);
	fm_param(lc.fd, FERMATA_PARAM_LATENCY_CRITICAL, 1);
	/* A bound that late timers do not exceed. */
	wait = fm_sysfs_number(-1, "boundary_wait_us");
	ASSERT_EQ(0, fm_put(fm_sysfs_path(-1, "boundary_wait_us"), "10000000"));
	card_speed(be.slot, 1);
	from = card_history_end();
	fm_must_start(&be);
	until_done(&be, 0);
	ASSERT_GOOD(fm_job_run(&lc, &el));
	card_until_runs(be.slot, be.token);
	card_speed(be.slot, 0);
	fm_wait(be.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&be, &eb));
	ASSERT_GOOD(fm_turns_wrong(from, (struct fm_turn[]) {
		{ be.slot, CARD_START, &be }, { be.slot, CARD_BOUNDARY, &be },
		{ be.slot, CARD_PAUSED, &be }, { be.slot, CARD_START, &lc },
		{ be.slot, CARD_FINISHED, &lc }, { be.slot, CARD_RESUME, &be },
		{ be.slot, CARD_FINISHED, &be } }, 7));
	snprintf(text, sizeof(text), "%llu", (unsigned long long)wait);
	ASSERT_EQ(0, fm_put(fm_sysfs_path(-1, "boundary_wait_us"), text));
}

/* Waits until the engine works within a block: the buffer has changed. */
static void until_mixing(struct mix *m)
{
	const volatile u8 *mem = m->c.mem + FM_DATA;
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;

	while (*(const volatile u64 *)mem == *(const u64 *)m->before)
		if (fm_now() > end)
			fm_die("the engine makes no progress");
}

/* Starts a job, and another during the first block of 65 ms of the first; waits for both. */
static void one_makes_way(struct mix *slow, struct mix *waits)
{
	card_speed(slow->c.slot, 1);
	fm_must_start(&slow->c);
	until_mixing(slow);
	fm_must_start(&waits->c);
	fm_wait(waits->c.fd, FERMATA_EVENT_DONE);
	card_speed(slow->c.slot, 0);
	fm_wait(slow->c.fd, FERMATA_EVENT_DONE);
}

/* The preempt timeout limits the way to the boundary: the slot is reset, and others continue. */
FM_TEST(cooperative, point_04_boundary_not_reached_in_time)
{
	struct fermata_status st;
	struct mix slow, waits;
	struct fm_ctx other;
	int tries = 0;
	u64 resets, from;

	if (!has_boundaries(FM_MIX))
		SKIP(return, "no engine that stops at boundaries only");
	fm_tenant(&other, FM_MS);
	card_speed(other.slot, 1);
	fm_job_endless(&other);
	fm_must_start(&other);
	mix_new(&slow, 1024 * 1024, 65536, 1);
	mix_new(&waits, 32 * 1024, 4096, 2);
	fm_param(slow.c.fd, FERMATA_PARAM_TIMESLICE, FM_MS);
	fm_param(slow.c.fd, FERMATA_PARAM_PREEMPT_TIMEOUT, 2 * FM_MS);
	do {
		/* On a machine on which 2 ms take 60 ms, the boundary comes first. */
		ASSERT_GT(TRIES, tries++);
		mix_job(&slow, tries);
		mix_job(&waits, tries);
		resets = fm_slot_resets(slow.c.slot);
		one_makes_way(&slow, &waits);
		ASSERT_GOOD(fm_job_wrong(&waits.c, &waits.e));
		fm_status(slow.c.fd, &st);
	} while (st.state == FERMATA_STATE_DONE);
	EXPECT_EQ(FERMATA_STATE_FAILED, st.state);
	EXPECT_EQ(ETIME, st.error);
	EXPECT_EQ(resets + 1, fm_slot_resets(slow.c.slot));

	/* With enough time the same job ends well. */
	fm_param(slow.c.fd, FERMATA_PARAM_PREEMPT_TIMEOUT, 10000 * FM_MS);
	mix_job(&slow, 77);
	mix_job(&waits, 78);
	from = card_history_end();
	one_makes_way(&slow, &waits);
	ASSERT_GOOD(fm_job_wrong(&slow.c, &slow.e));
	ASSERT_GOOD(fm_job_wrong(&waits.c, &waits.e));
	EXPECT_EQ(resets + 1, fm_slot_resets(slow.c.slot));
	EXPECT_EQ(FERMATA_STATE_RUNNING, fm_state(other.fd));
	ASSERT_GOOD(fm_turns_wrong(from, (struct fm_turn[]) {
		{ slow.c.slot, CARD_START, &slow.c }, { slow.c.slot, CARD_BOUNDARY, &slow.c },
		{ slow.c.slot, CARD_PAUSED, &slow.c }, { slow.c.slot, CARD_START, &waits.c },
		{ slow.c.slot, CARD_FINISHED, &waits.c }, { slow.c.slot, CARD_RESUME, &slow.c },
		{ slow.c.slot, CARD_FINISHED, &slow.c } }, 7));
	fm_end_endless(&other);
}

TEST_HARNESS_MAIN
