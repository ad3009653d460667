// SPDX-License-Identifier: GPL-2.0
/*
 * Behaviour of a card with a relay (docs/registers.md): it switches by itself, following orders
 * that name the context that runs next, and reports each run by a record. Also what happens to
 * programs when the card does this wrongly.
 */
#include "kselftest_harness.h"
#include "lib/sched.h"

FM_FIXTURE_CARD(relay);

#define SLICE	(2 * FM_MS)
/* Duration of a job at speed 1: longer than any test, which holds the job or lets it run fast. */
#define LONG	4000000

/* Skips the test on other cards. */
#define NEED_RELAY()							\
({									\
	if (!card_relay())						\
		SKIP(return, "the card has no relay");			\
})

static u64 counter(const struct fm_ctx *c, const char *name)
{
	return card_counter(c->slot, name);
}

/* --- two jobs that share a slot -------------------------------------------------------- */

struct pair {
	struct fm_ctx c[2];
	struct fm_expect e[2];
};

/* Starts two jobs of some seconds, which take turns as soon as the second is started. */
static void pair_start(struct pair *p)
{
	int i;

	for (i = 0; i < 2; i++) {
		fm_tenant_list(&p->c[i], SLICE, LONG, i + 1, &p->e[i]);
		card_speed(p->c[i].slot, 1);
		fm_must_start(&p->c[i]);
		if (!i)
			card_until_runs(p->c[i].slot, p->c[i].token);
	}
}

/* Lets a job end at full speed: NULL, or what is wrong with it. */
static const char *end_well(struct fm_ctx *c, struct fm_expect *e)
{
	card_speed(c->slot, 0);
	fm_wait(c->fd, FERMATA_EVENT_DONE);
	return fm_job_wrong(c, e);
}

/* Waits for the end of a job: 0, or the errno with which it has failed. */
static int error_of(struct fm_ctx *c)
{
	struct fermata_status st;

	fm_wait(c->fd, FERMATA_EVENT_DONE);
	fm_status(c->fd, &st);
	return st.error;
}

/* Checks that the slot and the context accept a job: NULL, or what is wrong. */
static const char *serves(struct fm_ctx *c)
{
	struct fm_expect e;

	card_speed(c->slot, 0);
	fm_job_list(c, 100, 1000, 9, &e);
	return fm_job_run(c, &e);
}

/* --- a switch --------------------------------------------------------------------------- */

/* Counters of a slot at one time. */
struct counts {
	u64 orders, dropped, taken, records, status, registers;
};

static struct counts counts_of(const struct fm_ctx *c)
{
	const char *reply = card_cmd("counters slot=%d", c->slot);

	return (struct counts) {
		.orders = card_key(reply, "orders"),
		.dropped = card_key(reply, "orders_dropped"),
		.taken = card_key(reply, "orders_taken"),
		.records = card_key(reply, "records"),
		.status = card_key(reply, "reads_status"),
		.registers = card_key(reply, "reads") + card_key(reply, "writes") -
			     card_key(reply, "orders") - card_key(reply, "reads_status"),
	};
}

/*
 * One order for each switch, and no other access to the slot. If the host delays the machine, the
 * driver may look for a record, a job may end before its order arrives, or the slot may become
 * vacant: one run without that is enough.
 */
static bool one_order_per_switch(struct __test_metadata *_metadata)
{
	struct counts before, after;
	struct fermata_status st;
	struct pair p;
	u64 switches;

	pair_start(&p);
	fm_until_preempted(p.c[1].fd, 2);
	before = counts_of(&p.c[0]);
	fm_until_preempted(p.c[1].fd, 12);
	after = counts_of(&p.c[0]);
	switches = after.taken - before.taken;
	TH_LOG("%d switches: %d orders, %d reads of the status", (int)switches,
	       (int)(after.orders - before.orders), (int)(after.status - before.status));
	EXPECT_EQ(before.registers, after.registers);
	ASSERT_GOOD(end_well(&p.c[0], &p.e[0]));
	ASSERT_GOOD(end_well(&p.c[1], &p.e[1]));
	fm_status(p.c[0].fd, &st);
	EXPECT_EQ(0, st.failed);
	ASSERT_GOOD(fm_runs_wrong(p.c, 2));
	fm_ctx_close(&p.c[0]);
	fm_ctx_close(&p.c[1]);
	/*
	 * Each preemption makes two switches. The counters are read while the jobs continue, so
	 * there may be one more order, which is held or was just taken.
	 */
	return switches >= 18 && after.orders - before.orders <= switches + 1 && after.dropped == before.dropped &&
	       after.status == before.status;
}

FM_TEST(relay, one_order_per_switch_and_no_read)
{
	int i;

	NEED_RELAY();
	for (i = 0; i < 10 && !one_order_per_switch(_metadata); i++)
		;
	EXPECT_GT(10, i);
}

/* A job that runs alone takes one order to start, and has one record at its end. */
FM_TEST(relay, lone_job_takes_one_order)
{
	struct counts before, after;
	struct fm_expect e;
	struct fm_ctx c;

	NEED_RELAY();
	fm_tenant_list(&c, SLICE, 1000, 1, &e);
	before = counts_of(&c);
	ASSERT_GOOD(fm_job_run(&c, &e));
	after = counts_of(&c);
	EXPECT_EQ(before.orders + 1, after.orders);
	EXPECT_EQ(before.taken + 1, after.taken);
	EXPECT_EQ(before.records + 1, after.records);
	EXPECT_EQ(before.registers, after.registers);
}

/* A waiting job also runs with one order when the previous job has ended by itself. */
FM_TEST(relay, next_job_after_a_job_that_ends)
{
	struct fm_expect e;
	struct fm_ctx first, next;
	u64 from, orders;

	NEED_RELAY();
	fm_tenant(&first, FM_LONG_SLICE);
	fm_tenant_list(&next, FM_LONG_SLICE, 1000, 1, &e);
	card_speed(first.slot, 1);
	fm_job_endless(&first);
	from = card_history_end();
	orders = counter(&first, "orders");
	fm_must_start(&first);
	card_until_runs(first.slot, first.token);
	fm_must_start(&next);
	fm_end_endless(&first);
	fm_wait(next.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&next, &e));
	ASSERT_GOOD(fm_turns_wrong(from, (struct fm_turn[]) {
		{ first.slot, CARD_START, &first }, { first.slot, CARD_FINISHED, &first },
		{ first.slot, CARD_START, &next }, { first.slot, CARD_FINISHED, &next } }, 4));
	EXPECT_EQ(orders + 2, counter(&first, "orders"));
}

/* An owner that holds or closes a job does not wait for urgent work that preempted the job. */
FM_TEST(relay, job_that_made_way_is_held_and_closed_at_once)
{
	struct fm_ctx c[2], urgent;
	struct fm_expect e;
	int i;

	NEED_RELAY();
	fm_tenant(&urgent, FM_LONG_SLICE);
	fm_param(urgent.fd, FERMATA_PARAM_LATENCY_CRITICAL, 1);
	card_speed(urgent.slot, 1);
	for (i = 0; i < 2; i++) {
		fm_tenant_list(&c[i], FM_LONG_SLICE, LONG, i + 1, &e);
		fm_must_start(&c[i]);
		card_until_runs(c[i].slot, c[i].token);
		fm_job_endless(&urgent);
		fm_must_start(&urgent);
		card_until_runs(urgent.slot, urgent.token);
		if (i) {
			fm_ctx_close(&c[i]);
		} else {
			ASSERT_EQ(0, fm_preempt(c[i].fd, FERMATA_PREEMPT_HOLD));
			fm_until_state(c[i].fd, FERMATA_STATE_HELD);
		}
		EXPECT_EQ(FERMATA_STATE_RUNNING, fm_state(urgent.fd));
		fm_end_endless(&urgent);
		fm_wait(urgent.fd, FERMATA_EVENT_DONE);
	}
	EXPECT_EQ(FERMATA_STATE_HELD, fm_state(c[0].fd));
}

/* --- records that go wrong ---------------------------------------------------------------- */

/*
 * A context of the list engine with a job that runs and does not end, and a context on another slot
 * with a job that must not be affected.
 */
struct scene {
	struct fm_ctx c, beside;
	struct fm_expect e, beside_e;
};

static void scene_begin(struct scene *s)
{
	fm_tenant_list(&s->c, FM_LONG_SLICE, LONG, 1, &s->e);
	fm_ctx_new(&s->beside, FM_SHA, 1 << 20);
	fm_job_any(&s->beside, 300000, 2, &s->beside_e);
	card_speed(s->c.slot, 1);
	card_speed(s->beside.slot, 1);
	fm_must_start(&s->beside);
	fm_must_start(&s->c);
	card_until_works(s->c.slot, s->c.token);
}

/* Checks that the other job ends well, and that both slots work: NULL, or what is wrong. */
static const char *scene_end(struct scene *s)
{
	const char *wrong = end_well(&s->beside, &s->beside_e);

	card_fault(s->c.slot, "clear");
	if (!wrong)
		wrong = serves(&s->c);
	fm_ctx_close(&s->beside);
	fm_ctx_close(&s->c);
	return wrong;
}

/* How many violations of a kind a reply to `violations` has; it lists only kinds that occurred. */
static u64 of_kind(const char *reply, const char *kind)
{
	return strstr(reply, kind) ? card_key(reply, kind) : 0;
}

/*
 * Are there violations of the first kind, which the card itself causes on purpose, and only these
 * and violations of the second kind (unless NULL)?
 */
static bool only_with(const char *kind, const char *other)
{
	const char *reply = card_cmd("violations");
	u64 wanted = of_kind(reply, kind);
	bool good = wanted && card_key(reply, "total") == wanted + (other ? of_kind(reply, other) : 0);

	if (!good)
		printf("# violations:%s; %s\n", reply, card_why());
	card_cmd("violations clear");
	return good;
}

static bool only(const char *kind)
{
	return only_with(kind, NULL);
}

/* Are there no violations, or only of this kind? */
static bool none_or_only(const char *kind)
{
	return !card_violations() || only(kind);
}

/* How many injected misbehaviours of a slot are still pending. */
static u64 pending(const struct fm_ctx *c)
{
	return card_key(card_cmd("state slot=%d", c->slot), "pending_faults");
}

/* Waits until only this many are pending. */
static void until_pending(const struct fm_ctx *c, u64 left)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;

	while (pending(c) > left) {
		if (fm_now() > end)
			fm_die("a misbehaviour of slot %d did not come", c->slot);
	}
}

/* Checks that the job ends well, or fails because the driver rejected a record. */
static void end_well_or_fail(struct __test_metadata *_metadata, struct fm_ctx *c, struct fm_expect *e)
{
	int error;

	card_speed(c->slot, 0);
	error = error_of(c);
	EXPECT_TRUE(!error || error == EPROTO);
	if (!error)
		EXPECT_EQ(NULL, fm_job_wrong(c, e));
}

#define NEED_RELAY_AND_TWO_SLOTS()					\
({									\
	NEED_RELAY();							\
	if (fm_slot_of(FM_SHA) < 0)					\
		SKIP(return, "no slot with sha256");			\
})

/* The job fails, because it is unknown whether it was saved. */
FM_TEST(relay, lose_record)
{
	struct scene s;

	NEED_RELAY_AND_TWO_SLOTS();
	scene_begin(&s);
	card_fault(s.c.slot, "lose_record=1");
	fm_must_hold(&s.c);
	EXPECT_EQ(EPROTO, error_of(&s.c));
	ASSERT_GOOD(scene_end(&s));
	EXPECT_TRUE(only("record_missing"));
}

/* Makes the record of the first switch from the scene's job to the next one go wrong. */
static void fault_at_switch(struct scene *s, struct fm_ctx *next, struct fm_expect *e, const char *fault)
{
	fm_tenant_list(next, SLICE, LONG, 5, e);
	scene_begin(s);
	fm_param(s->c.fd, FERMATA_PARAM_TIMESLICE, SLICE);
	card_fault(s->c.slot, fault);
	fm_must_start(next);
	until_pending(&s->c, 0);
}

/* The slot has switched to the next job, whose state is unknown now: that job restarts or fails. */
FM_TEST(relay, lose_record_of_a_switch)
{
	struct scene s;
	struct fm_ctx next;
	struct fm_expect e;

	NEED_RELAY_AND_TWO_SLOTS();
	fault_at_switch(&s, &next, &e, "lose_record=1");
	EXPECT_EQ(EPROTO, error_of(&s.c));
	end_well_or_fail(_metadata, &next, &e);
	ASSERT_GOOD(scene_end(&s));
	ASSERT_GOOD(serves(&next));
	EXPECT_TRUE(only("record_missing"));
}

/* Holds the job, which ends well, or fails because the driver rejected its record. */
static void hold_or_fail(struct __test_metadata *_metadata, struct scene *s)
{
	fm_must_hold(&s->c);
	fm_wait(s->c.fd, FERMATA_EVENT_HELD | FERMATA_EVENT_DONE);
	if (fm_state(s->c.fd) == FERMATA_STATE_HELD) {
		fm_must_resume(&s->c);
		ASSERT_GOOD(end_well(&s->c, &s->e));
	} else {
		EXPECT_EQ(EPROTO, error_of(&s->c));
	}
}

/* A record whose word 7 is not written last is rejected, unless the rest is in time. */
FM_TEST(relay, tear_record)
{
	struct scene s;

	NEED_RELAY_AND_TWO_SLOTS();
	scene_begin(&s);
	card_fault(s.c.slot, "tear_record=1");
	hold_or_fail(_metadata, &s);
	EXPECT_EQ(0, pending(&s.c));
	ASSERT_GOOD(scene_end(&s));
	EXPECT_EQ(0, card_violations());
}

/* The slot has switched to the next job, which the driver learns only from the record. */
FM_TEST(relay, tear_record_of_a_switch)
{
	struct scene s;
	struct fm_ctx next;
	struct fm_expect e;

	NEED_RELAY_AND_TWO_SLOTS();
	fault_at_switch(&s, &next, &e, "tear_record=1");
	end_well_or_fail(_metadata, &s.c, &s.e);
	end_well_or_fail(_metadata, &next, &e);
	ASSERT_GOOD(scene_end(&s));
	ASSERT_GOOD(serves(&next));
	EXPECT_TRUE(none_or_only("early_load"));
}

/*
 * The same if the place of the torn record has an older record of the same job, which names the
 * other job as next: that job is held, and the slot is vacant.
 */
FM_TEST(relay, tear_record_over_an_older_one)
{
	struct pair p;
	int i;

	NEED_RELAY();
	pair_start(&p);
	/* In some rounds the older record is the other job's, as a job runs again after a hold. */
	for (i = 1; i <= 4; i++) {
		fm_until_preempted(p.c[1].fd, 12 * i);
		fm_hold(&p.c[1]);
		card_until_runs(p.c[0].slot, p.c[0].token);
		card_fault(p.c[0].slot, "tear_record=1");
		fm_hold(&p.c[0]);
		EXPECT_EQ(0, pending(&p.c[0]));
		fm_must_resume(&p.c[0]);
		fm_must_resume(&p.c[1]);
	}
	ASSERT_GOOD(end_well(&p.c[0], &p.e[0]));
	ASSERT_GOOD(end_well(&p.c[1], &p.e[1]));
	EXPECT_EQ(0, card_violations());
}

/* The status shows the end of a run before the record does: the driver waits, or the job fails. */
FM_TEST(relay, delay_record)
{
	struct scene s;

	NEED_RELAY_AND_TWO_SLOTS();
	scene_begin(&s);
	card_fault(s.c.slot, "delay_record=30000");
	hold_or_fail(_metadata, &s);
	EXPECT_EQ(0, pending(&s.c));
	/* The record still arrives, and is ignored. */
	fm_sleep_us(40000);
	ASSERT_GOOD(scene_end(&s));
	EXPECT_TRUE(none_or_only("early_load"));
}

/* The status shows the next run, which the driver does not know of yet. */
FM_TEST(relay, delay_record_of_a_switch)
{
	struct scene s;
	struct fm_ctx next;
	struct fm_expect e;

	NEED_RELAY_AND_TWO_SLOTS();
	fault_at_switch(&s, &next, &e, "delay_record=30000");
	fm_sleep_us(40000);
	end_well_or_fail(_metadata, &s.c, &s.e);
	end_well_or_fail(_metadata, &next, &e);
	ASSERT_GOOD(scene_end(&s));
	ASSERT_GOOD(serves(&next));
	EXPECT_TRUE(none_or_only("early_load"));
}

/* --- orders that go wrong ------------------------------------------------------------------ */

/* A slot ignores the order that starts a job: the job fails, and the next one runs. */
FM_TEST(relay, ignore_order)
{
	struct fm_expect e;
	struct fm_ctx c;

	NEED_RELAY();
	fm_tenant_list(&c, FM_LONG_SLICE, 1000, 1, &e);
	card_fault(c.slot, "ignore_order=1");
	fm_must_start(&c);
	EXPECT_EQ(EPROTO, error_of(&c));
	ASSERT_GOOD(serves(&c));
	EXPECT_EQ(0, card_violations());
}

/* A slot ignores the order to stop a job: this is handled like an engine that hangs. */
FM_TEST(relay, ignore_order_to_stop)
{
	struct scene s;
	u64 resets;

	NEED_RELAY_AND_TWO_SLOTS();
	scene_begin(&s);
	resets = fm_slot_resets(s.c.slot);
	fm_param(s.c.fd, FERMATA_PARAM_PREEMPT_TIMEOUT, 50 * FM_MS);
	card_fault(s.c.slot, "ignore_order=100");
	fm_must_hold(&s.c);
	EXPECT_EQ(ETIME, error_of(&s.c));
	EXPECT_EQ(resets + 1, fm_slot_resets(s.c.slot));
	ASSERT_GOOD(scene_end(&s));
	EXPECT_EQ(0, card_violations());
}

/*
 * The record of a run is late, and the driver orders urgent work after that run: the card takes the
 * order in the next run. Returns whether that happened, which depends on the card's clock.
 */
static bool stale_order_taken(struct __test_metadata *_metadata)
{
	struct fm_expect urgent_e;
	struct fm_ctx urgent;
	struct pair p;
	bool taken;
	int i;

	fm_tenant_list(&urgent, FM_LONG_SLICE, 100, 3, &urgent_e);
	fm_param(urgent.fd, FERMATA_PARAM_LATENCY_CRITICAL, 1);
	pair_start(&p);
	fm_until_preempted(p.c[1].fd, 2);
	card_fault(urgent.slot, "stale_order=1");
	card_fault(urgent.slot, "delay_record=5000");
	until_pending(&urgent, 1);
	fm_must_start(&urgent);
	end_well_or_fail(_metadata, &urgent, &urgent_e);
	for (i = 0; i < 2; i++)
		end_well_or_fail(_metadata, &p.c[i], &p.e[i]);
	taken = !pending(&urgent);
	card_fault(urgent.slot, "clear");
	ASSERT_GOOD(serves(&urgent));
	EXPECT_TRUE(taken ? only_with("stale_order_taken", "early_load") : none_or_only("early_load"));
	fm_ctx_close(&p.c[0]);
	fm_ctx_close(&p.c[1]);
	fm_ctx_close(&urgent);
	return taken;
}

/* The driver gives up jobs whose state it does not know; other programs are not affected. */
FM_TEST(relay, stale_order)
{
	int i;

	NEED_RELAY();
	for (i = 0; i < 20 && !stale_order_taken(_metadata); i++)
		;
	TH_LOG("taken in attempt %d", i + 1);
	EXPECT_GT(20, i);
}

/* A slot stops a job too late, which does no harm within the preempt timeout. */
FM_TEST(relay, late_at)
{
	struct scene s;
	u64 since;

	NEED_RELAY_AND_TWO_SLOTS();
	/* AT counts from the moment at which the job began to work. */
	since = fm_now();
	scene_begin(&s);
	card_fault(s.c.slot, "late_at=200000");
	fm_hold(&s.c);
	EXPECT_LE(200 * FM_MS, fm_now() - since);
	EXPECT_EQ(0, pending(&s.c));
	fm_must_resume(&s.c);
	ASSERT_GOOD(end_well(&s.c, &s.e));
	ASSERT_GOOD(scene_end(&s));
	EXPECT_EQ(0, card_violations());
}

/* Beyond the preempt timeout the job fails, as with an engine that hangs. */
FM_TEST(relay, late_at_beyond_the_timeout)
{
	struct scene s;

	NEED_RELAY_AND_TWO_SLOTS();
	scene_begin(&s);
	fm_param(s.c.fd, FERMATA_PARAM_PREEMPT_TIMEOUT, 50 * FM_MS);
	card_fault(s.c.slot, "late_at=2000000");
	fm_must_hold(&s.c);
	EXPECT_EQ(ETIME, error_of(&s.c));
	ASSERT_GOOD(scene_end(&s));
	EXPECT_EQ(0, card_violations());
}

/* The card cannot read the entry of a context: its job is not started, and fails. */
FM_TEST(relay, entry_error)
{
	struct fm_expect e;
	struct fm_ctx c;
	u64 from;

	NEED_RELAY();
	fm_tenant_list(&c, FM_LONG_SLICE, 1000, 1, &e);
	card_fault(c.slot, "entry_error=1");
	from = card_history_end();
	fm_must_start(&c);
	EXPECT_EQ(EPROTO, error_of(&c));
	EXPECT_EQ(0, card_turns_of(from, c.token));
	ASSERT_GOOD(serves(&c));
	EXPECT_EQ(0, card_violations());
}

/* The same at a switch: the job that was named fails; the job that was saved for it resumes. */
FM_TEST(relay, entry_error_of_a_switch)
{
	struct scene s;
	struct fm_ctx next;
	struct fm_expect e;

	NEED_RELAY_AND_TWO_SLOTS();
	fm_tenant_list(&next, SLICE, LONG, 5, &e);
	scene_begin(&s);
	fm_param(s.c.fd, FERMATA_PARAM_TIMESLICE, SLICE);
	card_fault(s.c.slot, "entry_error=1");
	fm_must_start(&next);
	EXPECT_EQ(EPROTO, error_of(&next));
	ASSERT_GOOD(end_well(&s.c, &s.e));
	EXPECT_EQ(FERMATA_STATE_DONE, fm_state(s.c.fd));
	ASSERT_GOOD(serves(&next));
	ASSERT_GOOD(scene_end(&s));
	EXPECT_EQ(0, card_violations());
}

TEST_HARNESS_MAIN
