// SPDX-License-Identifier: GPL-2.0
/*
 * Taking a job off its slot: hold, resume, snapshots; PAUSE and FINISH in both orders; lost,
 * dropped and ignored PAUSEs; hangs; torn saves.
 */
#include "kselftest_harness.h"
#include "lib/sched.h"
#include "lib/calls.h"

FM_FIXTURE_ANY(any);
FM_FIXTURE_CARD(preempt);

static void slow_list(struct fm_ctx *c, u64 us, u64 seed, struct fm_expect *e)
{
	fm_ctx_new(c, FM_LIST, 64 * 1024);
	if (card_present())
		card_speed(c->slot, 1);
	fm_job_list(c, 500, us, seed, e);
}

/*
 * A job that must not end before it is held has seconds of work.  The emulated card can then end it
 * at once; a card without a control socket, as in a nested virtual machine, cannot.
 */
#define LONG	(card_present() ? 3000000 : 10000000)

static void fast(struct fm_ctx *c)
{
	if (card_present())
		card_speed(c->slot, 0);
}

FM_TEST(any, hold_and_resume)
{
	struct fermata_status st;
	struct fm_expect e;
	struct fm_ctx c;
	int i;

	slow_list(&c, LONG, 3, &e);
	ASSERT_EQ(0, fm_start(c.fd));
	for (i = 0; i < 5; i++) {
		fm_until_state(c.fd, FERMATA_STATE_RUNNING);
		ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
		fm_wait(c.fd, FERMATA_EVENT_HELD);
		fm_status(c.fd, &st);
		ASSERT_EQ(FERMATA_STATE_HELD, st.state);
		EXPECT_EQ(FERMATA_NO_SLOT, st.slot);
		EXPECT_EQ(i + 1, st.preemptions);
		/* Holding a held job is no error, and no second preemption. */
		EXPECT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
		ASSERT_EQ(0, fm_resume(c.fd));
		/* Nor is resuming a job that is not held. */
		EXPECT_EQ(0, fm_resume(c.fd));
	}
	fast(&c);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
	fm_status(c.fd, &st);
	EXPECT_EQ(6, st.slices);
	EXPECT_EQ(5, st.preemptions);
}

/* A held job stays off the slot, even if the slot is vacant. */
FM_TEST(any, held_stays_held)
{
	struct fermata_status a, b;
	struct fm_expect e, eo;
	struct fm_ctx c, other;

	slow_list(&c, LONG, 3, &e);
	slow_list(&other, 3000, 4, &eo);
	ASSERT_EQ(0, fm_start(c.fd));
	fm_until_state(c.fd, FERMATA_STATE_RUNNING);
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	fm_wait(c.fd, FERMATA_EVENT_HELD);
	fm_status(c.fd, &a);
	ASSERT_GOOD(fm_job_run(&other, &eo));
	fm_sleep_us(20000);
	fm_status(c.fd, &b);
	EXPECT_EQ(0, memcmp(&a, &b, sizeof(a)));
	EXPECT_EQ(-ETIMEDOUT, fm_wait_until(c.fd, FERMATA_EVENT_DONE, 0, NULL));
	fast(&c);
	ASSERT_EQ(0, fm_resume(c.fd));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
}

/* Declared results are also read when the job is preempted. */
FM_TEST(any, point_09_results_captured_at_preemption)
{
	struct fm_expect e, eo;
	struct fm_ctx c, other;
	u64 count, again;

	slow_list(&c, LONG, 3, &e);
	slow_list(&other, 100, 4, &eo);
	ASSERT_EQ(0, fm_start(c.fd));
	fm_until_state(c.fd, FERMATA_STATE_RUNNING);
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	fm_wait(c.fd, FERMATA_EVENT_HELD);
	ASSERT_EQ(0, fm_reg_read(c.fd, 0x38, &count));
	EXPECT_GT(LONG, count);
	ASSERT_GOOD(fm_job_run(&other, &eo));
	ASSERT_EQ(0, fm_reg_read(c.fd, 0x38, &again));
	EXPECT_EQ(count, again);
	fast(&c);
	ASSERT_EQ(0, fm_resume(c.fd));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
}

/* During a restore the slot's registers are not the job's: results are those of the hold. */
FM_TEST(preempt, results_while_it_is_restored)
{
	struct fermata_status st;
	struct fm_expect e;
	struct fm_ctx c;
	u64 count, again, other;
	bool restores;
	int declared, undeclared;

	if (fm_is_polled())
		SKIP(return, "the driver is not told when a restore is over");
	slow_list(&c, LONG, 3, &e);
	ASSERT_EQ(0, fm_start(c.fd));
	card_until_works(c.slot, c.token);
	fm_sleep_us(20000);
	card_set(c.slot, "restore_us=1000000");
	do {
		ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
		fm_wait(c.fd, FERMATA_EVENT_HELD);
		ASSERT_EQ(0, fm_reg_read(c.fd, 0x38, &count));
		ASSERT_LT(0, count);
		ASSERT_EQ(0, fm_resume(c.fd));
		fm_until_state(c.fd, FERMATA_STATE_RUNNING);
		declared = fm_reg_read(c.fd, 0x38, &again);
		undeclared = fm_reg_read(c.fd, FM_REG_TAG, &other);
		/* Try again if the machine was too slow. */
		restores = strstr(card_cmd("state slot=%d", c.slot), "phase=restoring");
	} while (!restores);
	EXPECT_EQ(0, declared);
	EXPECT_EQ(count, again);
	EXPECT_EQ(-EAGAIN, undeclared);
	card_until_works(c.slot, c.token);
	EXPECT_EQ(0, fm_reg_read(c.fd, FM_REG_TAG, &other));
	EXPECT_EQ(c.token, other);
	card_set(c.slot, "restore_us=0");
	fast(&c);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
	fm_status(c.fd, &st);
	EXPECT_EQ(0, st.failed);
}

FM_TEST(any, snapshot_read)
{
	u8 whole[4096], again[4096], part[16], zero[4096] = {};
	struct fm_expect e;
	struct fm_ctx c;

	slow_list(&c, LONG, 3, &e);
	EXPECT_EQ(-EBUSY, fm_snapshot_read(c.fd, whole, 0, 16));
	ASSERT_EQ(0, fm_start(c.fd));
	fm_until_state(c.fd, FERMATA_STATE_RUNNING);
	EXPECT_EQ(-EBUSY, fm_snapshot_read(c.fd, whole, 0, 16));
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	fm_wait(c.fd, FERMATA_EVENT_HELD);
	memset(whole, 0xa5, sizeof(whole));
	ASSERT_EQ(0, fm_snapshot_read(c.fd, whole, 0, sizeof(whole)));
	EXPECT_NE(0, memcmp(whole, zero, sizeof(whole)));
	ASSERT_EQ(0, fm_snapshot_read(c.fd, part, 8, sizeof(part)));
	EXPECT_EQ(0, memcmp(whole + 8, part, sizeof(part)));
	ASSERT_EQ(0, fm_snapshot_read(c.fd, part, 4095, 1));
	EXPECT_EQ(whole[4095], part[0]);
	EXPECT_EQ(0, fm_snapshot_read(c.fd, NULL, 0, 0));
	fm_sleep_us(3000);
	ASSERT_EQ(0, fm_snapshot_read(c.fd, again, 0, sizeof(again)));
	EXPECT_EQ(0, memcmp(whole, again, sizeof(whole)));
	fast(&c);
	ASSERT_EQ(0, fm_resume(c.fd));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
	EXPECT_EQ(-EBUSY, fm_snapshot_read(c.fd, whole, 0, 16));
}

/* Held before its first slice: there is no state; it starts when resumed. */
FM_TEST(preempt, hold_while_queued)
{
	struct fermata_status st;
	struct card_run run;
	struct fm_ctx a, b;
	struct fm_expect e;
	u8 buf[16];

	slow_list(&b, 1000, 3, &e);
	fm_ctx_new(&a, FM_LIST, 64 * 1024);
	ASSERT_EQ(0, fm_param_set(a.fd, FERMATA_PARAM_TIMESLICE, 10000 * FM_MS));
	fm_job_endless(&a);
	ASSERT_EQ(0, fm_start(a.fd));
	card_until_runs(a.slot, a.token);
	ASSERT_EQ(0, fm_start(b.fd));
	EXPECT_EQ(FERMATA_STATE_QUEUED, fm_state(b.fd));
	/* To the end of a queue in which it is alone. */
	ASSERT_EQ(0, fm_preempt(b.fd, 0));
	EXPECT_EQ(FERMATA_STATE_QUEUED, fm_state(b.fd));
	ASSERT_EQ(0, fm_preempt(b.fd, FERMATA_PREEMPT_HOLD));
	fm_wait(b.fd, FERMATA_EVENT_HELD);
	EXPECT_EQ(-ENODATA, fm_snapshot_read(b.fd, buf, 0, sizeof(buf)));
	fm_list_cut(&a, FM_ENDLESS_NODES);
	fm_wait(a.fd, FERMATA_EVENT_DONE);
	EXPECT_EQ(FERMATA_STATE_HELD, fm_state(b.fd));
	fm_status(b.fd, &st);
	EXPECT_EQ(0, st.slices);
	EXPECT_EQ(0, st.preemptions);
	card_run_of(b.slot, b.token, &run);
	EXPECT_EQ(0, run.starts);
	ASSERT_EQ(0, fm_resume(b.fd));
	fm_wait(b.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&b, &e));
}

/* A job that is preempted without hold, with no other waiting, continues at once. */
FM_TEST(preempt, preempt_alone_runs_on)
{
	struct fermata_status st;
	struct card_run run;
	struct fm_expect e;
	struct fm_ctx c;
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;

	slow_list(&c, LONG, 3, &e);
	ASSERT_EQ(0, fm_start(c.fd));
	card_until_runs(c.slot, c.token);
	ASSERT_EQ(0, fm_preempt(c.fd, 0));
	do {
		fm_status(c.fd, &st);
		ASSERT_LT(fm_now(), end);
	} while (st.slices < 2 && st.state != FERMATA_STATE_DONE);
	fast(&c);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
	fm_status(c.fd, &st);
	card_run_of(c.slot, c.token, &run);
	EXPECT_EQ(2, st.slices);
	EXPECT_EQ(1, st.preemptions);
	EXPECT_EQ(1, run.pauses);
	EXPECT_EQ(1, run.resumes);
}

/* PAUSE came first: the job is paused, and the rest of its work is done after the resume. */
FM_TEST(preempt, point_02_pause_before_finish)
{
	struct card_run run;
	struct fm_expect e;
	struct fm_ctx c;

	slow_list(&c, LONG, 3, &e);
	ASSERT_EQ(0, fm_start(c.fd));
	card_until_runs(c.slot, c.token);
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	fm_wait(c.fd, FERMATA_EVENT_HELD);
	card_run_of(c.slot, c.token, &run);
	EXPECT_EQ(1, run.pauses);
	EXPECT_EQ(0, run.finishes);
	fast(&c);
	ASSERT_EQ(0, fm_resume(c.fd));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
}

/* FINISH came first: the job is done, is not held and is never resumed. */
FM_TEST(preempt, point_02_finish_beats_pause)
{
	struct fermata_status st;
	struct card_run run;
	struct fm_expect e, eb;
	struct fm_ctx c, b;
	int hold;

	for (hold = 0; hold < 2; hold++) {
		slow_list(&b, 2000, 3, &eb);
		/* At the end of its work the job waits for the PAUSE, to finish just then. */
		slow_list(&c, 3000, 4, &e);
		card_fault(c.slot, "finish_on_pause=1");
		ASSERT_EQ(0, fm_start(c.fd));
		card_until_runs(c.slot, c.token);
		ASSERT_EQ(0, fm_preempt(c.fd, hold ? FERMATA_PREEMPT_HOLD : 0));
		fm_wait(c.fd, FERMATA_EVENT_DONE);
		fm_status(c.fd, &st);
		EXPECT_EQ(FERMATA_STATE_DONE, st.state);
		EXPECT_EQ(1, st.slices);
		EXPECT_EQ(0, st.preemptions);
		EXPECT_EQ(1, st.finished);
		EXPECT_EQ(-ETIMEDOUT, fm_wait_until(c.fd, FERMATA_EVENT_HELD, 0, NULL));
		EXPECT_EQ(-ENOENT, fm_resume(c.fd));
		ASSERT_GOOD(fm_job_wrong(&c, &e));
		card_run_of(c.slot, c.token, &run);
		EXPECT_EQ(1, run.finishes);
		EXPECT_EQ(0, run.pauses);
		EXPECT_EQ(0, run.resumes);
		ASSERT_GOOD(fm_job_run(&b, &eb));
		fm_ctx_close(&b);
		fm_ctx_close(&c);
	}
}

/* The same at the end of a slice, while another job waits. */
FM_TEST(preempt, point_02_finish_beats_pause_of_a_slice)
{
	struct fm_expect e, eb;
	struct fm_ctx c, b;

	slow_list(&b, 5000, 3, &eb);
	slow_list(&c, 3000, 4, &e);
	ASSERT_EQ(0, fm_param_set(c.fd, FERMATA_PARAM_TIMESLICE, FM_MS));
	card_fault(c.slot, "finish_on_pause=1");
	ASSERT_EQ(0, fm_start(c.fd));
	card_until_runs(c.slot, c.token);
	ASSERT_GOOD(fm_job_run(&b, &eb));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	EXPECT_EQ(FERMATA_STATE_DONE, fm_state(c.fd));
	ASSERT_GOOD(fm_job_wrong(&c, &e));
}

/* PAUSE is a pulse: a lost PAUSE is written again. */
FM_TEST(preempt, point_01_lost_pause_is_reissued)
{
	struct fm_expect e;
	struct fm_ctx c;
	u64 written;

	if (card_relay())
		SKIP(return, "an order is no pulse: order_is_not_repeated");
	slow_list(&c, LONG, 3, &e);
	written = card_counter(c.slot, "pauses_written");
	card_fault(c.slot, "ignore_pause=3");
	ASSERT_EQ(0, fm_start(c.fd));
	card_until_runs(c.slot, c.token);
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	fm_wait(c.fd, FERMATA_EVENT_HELD);
	EXPECT_LE(written + 4, card_counter(c.slot, "pauses_written"));
	fast(&c);
	ASSERT_EQ(0, fm_resume(c.fd));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
}

/*
 * The slot keeps an order until the run that it refers to ends. So an order is written once,
 * however early, even while the job is loaded or restored.
 */
FM_TEST(preempt, order_is_not_repeated)
{
	u64 orders, dropped, pauses;
	struct fm_expect e;
	struct fm_ctx c;
	int i;

	if (!card_relay())
		SKIP(return, "PAUSE is a pulse: point_01_lost_pause_is_reissued");
	slow_list(&c, LONG, 3, &e);
	card_set(c.slot, "restore_us=2000");
	orders = card_counter(c.slot, "orders");
	dropped = card_counter(c.slot, "orders_dropped");
	pauses = card_counter(c.slot, "pauses_dropped");
	ASSERT_EQ(0, fm_start(c.fd));
	for (i = 1; i <= 20; i++) {
		ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
		fm_wait(c.fd, FERMATA_EVENT_HELD);
		/* One order to start, and one to stop. */
		EXPECT_EQ(orders + 2 * i, card_counter(c.slot, "orders"));
		ASSERT_EQ(0, fm_resume(c.fd));
	}
	fast(&c);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
	EXPECT_EQ(orders + 2 * i - 1, card_counter(c.slot, "orders"));
	EXPECT_EQ(dropped, card_counter(c.slot, "orders_dropped"));
	EXPECT_EQ(pauses, card_counter(c.slot, "pauses_dropped"));
}

/* A restoring engine ignores PAUSE; an order aborts the restore. Both jobs still progress. */
FM_TEST(preempt, point_12_pause_during_restore)
{
	struct fermata_status st;
	struct fm_expect e[2];
	struct fm_ctx c[2];
	u64 dropped, from;
	int i;

	for (i = 0; i < 2; i++) {
		slow_list(&c[i], 30000, 3 + i, &e[i]);
		/* A slice shorter than the restore. */
		ASSERT_EQ(0, fm_param_set(c[i].fd, FERMATA_PARAM_TIMESLICE, FM_MS));
	}
	card_set(c[0].slot, "restore_us=4000");
	for (i = 0; i < 2; i++)
		ASSERT_EQ(0, fm_start(c[i].fd));
	for (i = 0; i < 2; i++) {
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c[i], &e[i]));
		fm_status(c[i].fd, &st);
		EXPECT_EQ(FERMATA_STATE_DONE, st.state);
		EXPECT_EQ(0, st.failed);
	}
	/* The driver knows by now how long a restore takes, and waits. Not this one. */
	fm_param(c[0].fd, FERMATA_PARAM_PREEMPT_TIMEOUT, 10000 * FM_MS);
	fm_job_list(&c[0], 500, LONG, 9, &e[0]);
	ASSERT_EQ(0, fm_start(c[0].fd));
	fm_until_state(c[0].fd, FERMATA_STATE_RUNNING);
	ASSERT_EQ(0, fm_preempt(c[0].fd, FERMATA_PREEMPT_HOLD));
	fm_wait(c[0].fd, FERMATA_EVENT_HELD);
	card_set(c[0].slot, "restore_us=1000000");
	dropped = card_counter(c[0].slot, "pauses_dropped");
	from = card_history_end();
	ASSERT_EQ(0, fm_resume(c[0].fd));
	ASSERT_EQ(0, fm_preempt(c[0].fd, FERMATA_PREEMPT_HOLD));
	fm_wait(c[0].fd, FERMATA_EVENT_HELD);
	EXPECT_TRUE(card_relay() ? card_had(from, CARD_NOT_RUN, c[0].token) :
				   dropped < card_counter(c[0].slot, "pauses_dropped"));
	card_set(c[0].slot, "restore_us=0");
	fast(&c[0]);
	ASSERT_EQ(0, fm_resume(c[0].fd));
	fm_wait(c[0].fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c[0], &e[0]));
}

/* A job that is preempted right after its resume, again and again, makes progress. */
FM_TEST(preempt, point_12_preempt_right_after_resume)
{
	struct fm_expect e;
	struct fm_ctx c;
	int i;

	slow_list(&c, 60000, 3, &e);
	card_set(c.slot, "restore_us=2000 save_us=100");
	ASSERT_EQ(0, fm_start(c.fd));
	for (i = 0; i < 20; i++) {
		int rc = fm_preempt(c.fd, FERMATA_PREEMPT_HOLD);

		if (rc == -ENOENT)
			break;
		ASSERT_EQ(0, rc);
		fm_wait(c.fd, FERMATA_EVENT_HELD | FERMATA_EVENT_DONE);
		rc = fm_resume(c.fd);
		if (rc == -ENOENT)
			break;
		ASSERT_EQ(0, rc);
	}
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
}

/* The guilty job fails with ETIME; the slot is reset and runs the other job. */
static void does_not_pause(struct __test_metadata *_metadata, const char *fault)
{
	struct fermata_status st;
	struct fm_expect eb, ec;
	struct fm_ctx c, b;
	u64 resets;

	slow_list(&b, 5000, 3, &eb);
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	ASSERT_EQ(0, fm_param_set(c.fd, FERMATA_PARAM_PREEMPT_TIMEOUT, 50 * FM_MS));
	ASSERT_EQ(0, fm_param_set(c.fd, FERMATA_PARAM_TIMESLICE, FM_MS));
	resets = fm_slot_resets(c.slot);
	fm_job_endless(&c);
	ASSERT_EQ(0, fm_start(c.fd));
	card_until_runs(c.slot, c.token);
	card_fault(c.slot, fault);
	ASSERT_EQ(0, fm_start(b.fd));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	fm_status(c.fd, &st);
	EXPECT_EQ(FERMATA_STATE_FAILED, st.state);
	EXPECT_EQ(ETIME, st.error);
	EXPECT_EQ(1, st.failed);
	EXPECT_EQ(0, st.finished);
	card_fault(c.slot, "clear");
	fm_wait(b.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&b, &eb));
	EXPECT_EQ(FERMATA_STATE_DONE, fm_state(b.fd));
	EXPECT_EQ(resets + 1, fm_slot_resets(c.slot));
	/* The context may try again. */
	fm_job_list(&c, 100, 1000, 8, &ec);
	ASSERT_GOOD(fm_job_run(&c, &ec));
	fm_status(c.fd, &st);
	EXPECT_EQ(0, st.error);
	EXPECT_EQ(2, st.job);
}

FM_TEST(preempt, point_04_ignores_every_pause)
{
	does_not_pause(_metadata, "ignore_pause=all");
}

FM_TEST(preempt, point_04_hung_engine)
{
	does_not_pause(_metadata, "hang=1");
}

/* A hung slot does not affect other slots. */
FM_TEST(preempt, point_04_other_slots_go_on_while_one_hangs)
{
	struct fermata_status st;
	struct fm_expect e;
	struct fm_ctx c, b, m;
	int i;

	if (fm_slot_of(FM_MEM) < 0)
		SKIP(return, "one slot only");
	fm_ctx_new(&m, FM_MEM, 64 * 1024);
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	fm_ctx_new(&b, FM_LIST, 64 * 1024);
	ASSERT_EQ(0, fm_param_set(c.fd, FERMATA_PARAM_PREEMPT_TIMEOUT, 1000 * FM_MS));
	ASSERT_EQ(0, fm_param_set(c.fd, FERMATA_PARAM_TIMESLICE, FM_MS));
	card_speed(c.slot, 1);
	fm_job_endless(&c);
	fm_job_endless(&b);
	ASSERT_EQ(0, fm_start(c.fd));
	card_until_runs(c.slot, c.token);
	card_fault(c.slot, "hang=1");
	ASSERT_EQ(0, fm_start(b.fd));
	for (i = 0; i < 5; i++) {
		fm_job_mem(&m, 4096, 100, i, 2, &e);
		ASSERT_GOOD(fm_job_run(&m, &e));
	}
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	fm_status(c.fd, &st);
	EXPECT_EQ(ETIME, st.error);
	card_until_runs(b.slot, b.token);
	fm_list_cut(&b, FM_ENDLESS_NODES);
	fm_wait(b.fd, FERMATA_EVENT_DONE);
}

/* A slow save is no hang while the timeout lasts. */
FM_TEST(preempt, slow_save_within_the_timeout)
{
	struct fm_expect e;
	struct fm_ctx c;

	slow_list(&c, LONG, 3, &e);
	card_fault(c.slot, "save_takes_us=300000");
	ASSERT_EQ(0, fm_start(c.fd));
	card_until_runs(c.slot, c.token);
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	fm_wait(c.fd, FERMATA_EVENT_HELD);
	fast(&c);
	ASSERT_EQ(0, fm_resume(c.fd));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
}

/* A base card cannot report a torn save: it does not respond, and the timeout should be short. */
static void until_torn(struct fm_ctx *c)
{
	if (card_base())
		fm_param(c->fd, FERMATA_PARAM_PREEMPT_TIMEOUT, 50 * FM_MS);
}

/* A save that was not completed is never restored. */
FM_TEST(preempt, point_03_torn_save_fails_the_job)
{
	struct fermata_status st;
	struct card_run run;
	struct fm_expect e;
	struct fm_ctx c;

	slow_list(&c, LONG, 3, &e);
	until_torn(&c);
	card_fault(c.slot, "save_torn=8");
	ASSERT_EQ(0, fm_start(c.fd));
	card_until_runs(c.slot, c.token);
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	fm_status(c.fd, &st);
	EXPECT_EQ(FERMATA_STATE_FAILED, st.state);
	EXPECT_EQ(card_base() ? ETIME : EIO, st.error);
	EXPECT_EQ(0, st.replays);
	EXPECT_EQ(-ENOENT, fm_resume(c.fd));
	card_run_of(c.slot, c.token, &run);
	EXPECT_EQ(0, run.resumes);
	card_fault(c.slot, "clear");
	fm_job_list(&c, 100, 1000, 8, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
}

/* Tears the save of a job after this many bytes, over a complete snapshot: NULL or an error. */
static const char *torn_after(struct fm_ctx *c, unsigned int bytes)
{
	struct fermata_status st;
	struct card_run before, run;
	const char *wrong;
	char kind[32];
	u8 buf[16];

	card_run_of(c->slot, c->token, &before);
	fm_param(c->fd, FERMATA_PARAM_PREEMPT_TIMEOUT, 10000 * FM_MS);
	wrong = fm_job_hold(c);
	if (wrong)
		return wrong;
	until_torn(c);
	snprintf(kind, sizeof(kind), "save_torn=%u", bytes);
	card_fault(c->slot, kind);
	if (fm_resume(c->fd))
		return "RESUME";
	card_until_works(c->slot, c->token);
	if (fm_preempt(c->fd, FERMATA_PREEMPT_HOLD))
		return "PREEMPT";
	fm_wait(c->fd, FERMATA_EVENT_DONE | FERMATA_EVENT_HELD);
	fm_status(c->fd, &st);
	if (st.state != FERMATA_STATE_FAILED)
		return "the job did not fail";
	if (st.error != (card_base() ? ETIME : EIO))
		return strerror(st.error);
	if (fm_resume(c->fd) != -ENOENT)
		return "the job can be resumed";
	if (fm_snapshot_read(c->fd, buf, 0, sizeof(buf)) != -EBUSY)
		return "there is a snapshot to be read";
	card_run_of(c->slot, c->token, &run);
	return run.resumes == before.resumes + 1 ? NULL : "it was resumed from the snapshot before";
}

/* At any byte, and despite an older complete snapshot; other jobs are not affected. */
FM_TEST(preempt, point_03_save_torn_at_any_byte)
{
	unsigned int bytes, all = 4096, next;
	struct fm_ctx c, other;
	struct fm_expect e, eo;

	slow_list(&c, LONG, 3, &e);
	fm_ctx_new(&other, FM_LIST, 64 * 1024);
	/* Every byte of the engine's state, some of the zeros after it, and a complete save. */
	for (bytes = 0; bytes <= all; bytes = next) {
		next = bytes < 33 ? bytes + (card_base() ? 7 : 1) : bytes < all ? bytes * 2 : all + 1;
		if (next > all && bytes < all)
			next = all;
		EXPECT_EQ(NULL, torn_after(&c, bytes)) {
			TH_LOG("after %u bytes", bytes);
		}
		fm_job_list(&other, 100, 1000, bytes, &eo);
		ASSERT_GOOD(fm_job_run(&other, &eo));
	}
	card_fault(c.slot, "clear");
	fm_job_list(&c, 100, 1000, 8, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
}

/* Preempts the running job, and tears its save; reads the status at once. */
static void tear(struct fm_ctx *c, u32 flags, struct fermata_status *st)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;
	struct fermata_status before;
	int rc;

	card_until_works(c->slot, c->token);
	fm_status(c->fd, &before);
	card_fault(c->slot, "save_torn=8");
	rc = fm_preempt(c->fd, flags);
	if (rc)
		fm_die("PREEMPT: %s", strerror(-rc));
	do {
		fm_status(c->fd, st);
		if (fm_now() > end)
			fm_die("neither replayed nor failed");
	} while (st->replays == before.replays && st->state != FERMATA_STATE_FAILED);
}

/* A replayable job restarts without any snapshot, and the result is right to the byte. */
FM_TEST(preempt, point_03_replayable_job_begins_anew)
{
	struct fermata_status st;
	struct card_run run;
	struct fm_expect e;
	struct fm_ctx c;

	if (card_base())
		SKIP(return, "the card does not tell of a save that breaks off");
	slow_list(&c, LONG, 3, &e);
	/* A later torn save has overwritten a complete snapshot. */
	ASSERT_EQ(0, fm_start_replayable(c.fd));
	card_until_runs(c.slot, c.token);
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	fm_wait(c.fd, FERMATA_EVENT_HELD);
	ASSERT_EQ(0, fm_resume(c.fd));
	tear(&c, 0, &st);
	EXPECT_EQ(1, st.replays);
	fast(&c);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
	fm_status(c.fd, &st);
	EXPECT_EQ(FERMATA_STATE_DONE, st.state);
	EXPECT_EQ(1, st.job);
	EXPECT_EQ(1, st.replays);
	EXPECT_EQ(1, st.finished);
	EXPECT_EQ(0, st.failed);
	EXPECT_EQ(1, st.preemptions);
	EXPECT_EQ(3, st.slices);
	card_run_of(c.slot, c.token, &run);
	EXPECT_EQ(2, run.starts);
	EXPECT_EQ(1, run.resumes);
	/* The next job has its own count. */
	fm_job_list(&c, 100, 1000, 8, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
	fm_status(c.fd, &st);
	EXPECT_EQ(0, st.replays);
}

/* Replays are limited, even if the card tears every save. */
FM_TEST(preempt, point_03_replays_come_to_an_end)
{
	struct fermata_status st;
	struct card_run run;
	struct fm_expect e;
	struct fm_ctx c;
	int i;

	if (card_base())
		SKIP(return, "the card does not tell of a save that breaks off");
	slow_list(&c, LONG, 3, &e);
	ASSERT_EQ(0, fm_start_replayable(c.fd));
	for (i = 1; i <= FERMATA_MAX_REPLAYS; i++) {
		tear(&c, 0, &st);
		ASSERT_EQ(i, st.replays);
		EXPECT_EQ(0, st.error);
		EXPECT_EQ(-ETIMEDOUT, fm_wait_until(c.fd, FERMATA_EVENT_DONE, 0, NULL));
	}
	tear(&c, 0, &st);
	EXPECT_EQ(FERMATA_STATE_FAILED, st.state);
	EXPECT_EQ(EIO, st.error);
	EXPECT_EQ(3, st.replays);
	EXPECT_EQ(1, st.failed);
	EXPECT_EQ(-ENOENT, fm_resume(c.fd));
	card_run_of(c.slot, c.token, &run);
	EXPECT_EQ(4, run.starts);
	EXPECT_EQ(0, run.resumes);
	fm_job_list(&c, 100, 1000, 8, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
}

/* A job with a torn save is held, as requested, at its beginning; register writes take effect. */
FM_TEST(preempt, point_03_replayable_job_is_held_at_its_beginning)
{
	struct fermata_status st;
	struct fm_expect e;
	struct fm_ctx c;
	u8 buf[16];

	if (card_base())
		SKIP(return, "the card does not tell of a save that breaks off");
	slow_list(&c, LONG, 3, &e);
	ASSERT_EQ(0, fm_start_replayable(c.fd));
	tear(&c, FERMATA_PREEMPT_HOLD, &st);
	fm_wait(c.fd, FERMATA_EVENT_HELD);
	fm_status(c.fd, &st);
	EXPECT_EQ(FERMATA_STATE_HELD, st.state);
	EXPECT_EQ(FERMATA_NO_SLOT, st.slot);
	EXPECT_EQ(1, st.replays);
	EXPECT_EQ(1, st.slices);
	EXPECT_EQ(-ENODATA, fm_snapshot_read(c.fd, buf, 0, sizeof(buf)));
	fm_list_expect(&c, 5000, 3, &e);
	ASSERT_EQ(0, fm_reg_write(c.fd, 0x38, 5000));
	fast(&c);
	ASSERT_EQ(0, fm_resume(c.fd));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
	fm_status(c.fd, &st);
	EXPECT_EQ(2, st.slices);
	EXPECT_EQ(1, st.replays);
}

/* Two jobs share a slot in slices: the job whose save is torn restarts, the other one continues. */
FM_TEST(preempt, point_03_replays_beside_another_job)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;
	struct fermata_status st[2];
	struct fm_expect e[2];
	struct fm_ctx c[2];
	u64 torn;
	int i;

	if (card_base())
		SKIP(return, "the card does not tell of a save that breaks off");
	for (i = 0; i < 2; i++) {
		slow_list(&c[i], LONG, 3 + i, &e[i]);
		ASSERT_EQ(0, fm_param_set(c[i].fd, FERMATA_PARAM_TIMESLICE, FM_MS));
		ASSERT_EQ(0, fm_start_replayable(c[i].fd));
	}
	for (torn = 1; torn <= 3; torn++) {
		card_fault(c[0].slot, "save_torn=8");
		do {
			for (i = 0; i < 2; i++)
				fm_status(c[i].fd, &st[i]);
			ASSERT_LT(fm_now(), end);
		} while (st[0].replays + st[1].replays < torn);
	}
	fast(&c[0]);
	for (i = 0; i < 2; i++) {
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c[i], &e[i]));
		fm_status(c[i].fd, &st[i]);
		EXPECT_EQ(FERMATA_STATE_DONE, st[i].state);
	}
	EXPECT_EQ(3, st[0].replays + st[1].replays);
}

/* An engine that hangs would hang again; a torn save of a base card looks the same. */
FM_TEST(preempt, point_03_no_replay_after_a_timeout)
{
	static const char *const faults[] = { "hang=1", "ignore_pause=all", "save_torn=8" };
	struct fermata_status st;
	struct fm_expect e;
	struct fm_ctx c;
	size_t i;

	slow_list(&c, LONG, 3, &e);
	ASSERT_EQ(0, fm_param_set(c.fd, FERMATA_PARAM_PREEMPT_TIMEOUT, 50 * FM_MS));
	for (i = 0; i < (card_base() ? 3 : 2); i++) {
		ASSERT_EQ(0, fm_start_replayable(c.fd));
		card_until_runs(c.slot, c.token);
		card_fault(c.slot, faults[i]);
		ASSERT_EQ(0, fm_preempt(c.fd, 0));
		fm_wait(c.fd, FERMATA_EVENT_DONE);
		fm_status(c.fd, &st);
		EXPECT_EQ(FERMATA_STATE_FAILED, st.state);
		EXPECT_EQ(ETIME, st.error);
		EXPECT_EQ(0, st.replays);
		card_fault(c.slot, "clear");
	}
	fm_job_list(&c, 100, 1000, 8, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
}

/* The snapshot that a job left in the buffer is not restored for the next job. */
FM_TEST(preempt, point_03_new_job_does_not_start_from_an_old_snapshot)
{
	struct card_run run;
	struct fm_expect e;
	struct fm_ctx c;
	u8 buf[16];

	slow_list(&c, LONG, 3, &e);
	ASSERT_EQ(0, fm_start(c.fd));
	card_until_runs(c.slot, c.token);
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	fm_wait(c.fd, FERMATA_EVENT_HELD);
	ASSERT_EQ(0, fm_snapshot_read(c.fd, buf, 0, sizeof(buf)));
	fast(&c);
	ASSERT_EQ(0, fm_resume(c.fd));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
	fm_job_list(&c, 100, 2000, 5, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
	card_run_of(c.slot, c.token, &run);
	EXPECT_EQ(2, run.starts);
	EXPECT_EQ(1, run.resumes);
}

/* No tenant and no engine can access a snapshot: the checker watches the pages of the buffers. */
FM_TEST(preempt, point_07_snapshot_is_outside_of_every_arena)
{
	struct fm_expect e[2];
	struct fm_ctx c[2];
	int i, round;

	for (i = 0; i < 2; i++) {
		slow_list(&c[i], 20000, 3 + i, &e[i]);
		ASSERT_EQ(0, fm_param_set(c[i].fd, FERMATA_PARAM_TIMESLICE, FM_MS));
	}
	for (round = 0; round < 2; round++) {
		for (i = 0; i < 2; i++)
			ASSERT_EQ(0, fm_start(c[i].fd));
		for (i = 0; i < 2; i++) {
			fm_wait(c[i].fd, FERMATA_EVENT_DONE);
			ASSERT_GOOD(fm_job_wrong(&c[i], &e[i]));
		}
	}
	/* resume_forged and snapshot_in_arena count against the test in its teardown. */
}

/* A register that is written while the job is held takes effect when the job is resumed. */
FM_TEST(preempt, deferred_write_while_held)
{
	struct fm_expect e;
	struct fm_ctx c;
	u64 v;

	slow_list(&c, 10000000, 3, &e);
	ASSERT_EQ(0, fm_start(c.fd));
	card_until_runs(c.slot, c.token);
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	fm_wait(c.fd, FERMATA_EVENT_HELD);
	ASSERT_EQ(0, fm_reg_read(c.fd, 0x38, &v));
	/* The same walk, with a nearer end. */
	ASSERT_EQ(0, fm_reg_write(c.fd, 0x38, v + 5000));
	fast(&c);
	ASSERT_EQ(0, fm_resume(c.fd));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	fm_list_expect(&c, v + 5000, 3, &e);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
}

TEST_HARNESS_MAIN
