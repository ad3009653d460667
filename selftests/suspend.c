// SPDX-License-Identifier: GPL-2.0
/*
 * The machine sleeps: contexts keep their state, and jobs resume, across S3, the kernel's test
 * of S3 (pm_test) and hibernation. A job that hangs.
 */
#include "kselftest_harness.h"
#include "lib/sched.h"
#include "lib/calls.h"

FM_FIXTURE_CARD(suspend);

/* Longer than any machine takes to fall asleep. */
#define ENDLESS	(1ULL << 40)

/* Changes a held job of ENDLESS nodes so that it ends 200 nodes after its current one. */
static void end_soon(struct fm_ctx *c, u64 seed, struct fm_expect *e)
{
	u64 count;

	if (fm_reg_read(c->fd, 0x38, &count) || fm_reg_write(c->fd, 0x38, count + 200) ||
	    fm_resume(c->fd))
		fm_die("the job cannot be given another end");
	fm_wait(c->fd, FERMATA_EVENT_DONE);
	fm_list_expect(c, count + 200, seed, e);
}

static void idle_contexts_go_on(struct __test_metadata *_metadata, enum fm_sleep how)
{
	struct fm_ctx done, written, again;
	struct fm_expect e[3];
	const char *why = fm_cannot_sleep(how);
	int i, slot;

	if (why)
		SKIP(return, "%s", why);
	fm_ctx_new(&done, FM_LIST, 64 * 1024);
	fm_ctx_new(&written, FM_LIST, 64 * 1024);
	fm_ctx_new(&again, FM_LIST, 64 * 1024);
	slot = done.slot;
	for (i = 0; i < 3; i++) {
		fm_job_list(&done, 100, 1000, 3 + i, &e[0]);
		ASSERT_GOOD(fm_job_run(&done, &e[0]));
	}
	fm_job_list(&written, 100, 1000, 7, &e[1]);
	for (i = 0; i < 2; i++) {
		ASSERT_LE(3, card_key(card_cmd("state slot=%d", slot), "start_count"));
		ASSERT_EQ(0, fm_sleep_and_wake(how));
		/* The card lost its power. */
		if (how == FM_S3 || how == FM_DISK_REBOOT)
			ASSERT_EQ(0, card_key(card_cmd("state slot=%d", slot), "start_count"));
		/* The arena and the results are as before. */
		ASSERT_GOOD(fm_job_wrong(&done, &e[0]));
		EXPECT_EQ(FERMATA_STATE_DONE, fm_state(done.fd));
		/* Registers that were written before the sleep apply. */
		ASSERT_GOOD(fm_job_run(&written, &e[1]));
		/* Its STARTs, PAUSEs and snapshots count as before. */
		card_speed(slot, 1);
		fm_job_list(&again, 200, ENDLESS, 9, &e[2]);
		ASSERT_EQ(0, fm_start(again.fd));
		card_until_runs(slot, again.token);
		ASSERT_EQ(0, fm_preempt(again.fd, FERMATA_PREEMPT_HOLD));
		fm_wait(again.fd, FERMATA_EVENT_HELD);
		card_speed(slot, 0);
		fm_job_list(&done, 100, 1000, 11 + i, &e[0]);
		ASSERT_GOOD(fm_job_run(&done, &e[0]));
		end_soon(&again, 9, &e[2]);
		ASSERT_GOOD(fm_job_wrong(&again, &e[2]));
	}
}

FM_TEST(suspend, point_17_idle_contexts_go_on_after_suspend_to_idle)
{
	idle_contexts_go_on(_metadata, FM_TO_IDLE);
}

FM_TEST(suspend, point_17_idle_contexts_go_on_after_a_rehearsal)
{
	idle_contexts_go_on(_metadata, FM_REHEARSAL);
}

/* The driver forgets the shadow registers, so it clears registers even if S3 has not. */
FM_TEST(suspend, point_09_nothing_is_left_on_the_card)
{
	const char *why = fm_cannot_sleep(FM_REHEARSAL);
	struct fm_ctx before, after;
	struct fm_expect e;

	if (why)
		SKIP(return, "%s", why);
	if (fm_slot_of(FM_MEM) < 0)
		SKIP(return, "no slot with membench");
	fm_ctx_new(&before, FM_MEM, 64 * 1024);
	fm_job_mem(&before, 4096, 100, 5, 2, &e);
	ASSERT_GOOD(fm_job_run(&before, &e));
	ASSERT_EQ(0, fm_sleep_and_wake(FM_REHEARSAL));
	/* The job reads in order, although it does not set the mode. */
	fm_ctx_new(&after, FM_MEM, 64 * 1024);
	fm_job_mem(&after, 4096, 100, 6, FM_NO_MODE, &e);
	ASSERT_GOOD(fm_job_run(&after, &e));
}

/* Jobs that run, wait or are held are saved before the machine sleeps, and resume afterwards. */
static void jobs_go_on(struct __test_metadata *_metadata, enum fm_sleep how)
{
	enum { RUNS, WAITS, HELD, ALL };
	const char *why = fm_cannot_sleep(how);
	struct fm_gone_waiter w;
	struct fm_expect e[ALL];
	struct fermata_status st;
	struct fm_ctx c[ALL];
	int i;

	if (why)
		SKIP(return, "%s", why);
	for (i = 0; i < ALL; i++) {
		fm_ctx_new(&c[i], FM_LIST, 64 * 1024);
		fm_param(c[i].fd, FERMATA_PARAM_TIMESLICE, FM_LONG_SLICE);
		fm_job_list(&c[i], 200, ENDLESS, 3 + i, &e[i]);
	}
	card_speed(c[RUNS].slot, 1);
	fm_must_start(&c[HELD]);
	card_until_runs(c[HELD].slot, c[HELD].token);
	ASSERT_EQ(0, fm_preempt(c[HELD].fd, FERMATA_PREEMPT_HOLD));
	fm_wait(c[HELD].fd, FERMATA_EVENT_HELD);
	fm_must_start(&c[RUNS]);
	card_until_runs(c[RUNS].slot, c[RUNS].token);
	fm_must_start(&c[WAITS]);
	/* Memory returns to the moment of the image, after which the jobs have continued. */
	if (how >= FM_DISK_TEST_RESUME)
		card_cmd("imports on");
	/* A thread that waits for a job is frozen, and continues to wait. */
	fm_gone_waiter_start(&w, c[RUNS].fd);
	ASSERT_EQ(0, fm_sleep_and_wake(how));
	fm_status(c[RUNS].fd, &st);
	EXPECT_LE(1, st.preemptions);
	EXPECT_EQ(FERMATA_STATE_HELD, fm_state(c[HELD].fd));

	for (i = 0; i < ALL; i++)
		fm_param(c[i].fd, FERMATA_PARAM_TIMESLICE, 10 * FM_MS);
	for (i = 0; i < ALL; i++) {
		if (i != HELD) {
			card_until_runs(c[i].slot, c[i].token);
			ASSERT_EQ(0, fm_preempt(c[i].fd, FERMATA_PREEMPT_HOLD));
			fm_wait(c[i].fd, FERMATA_EVENT_HELD);
		}
		end_soon(&c[i], 3 + i, &e[i]);
		ASSERT_GOOD(fm_job_wrong(&c[i], &e[i]));
	}
	pthread_join(w.t.thread, NULL);
	EXPECT_EQ(0, w.rc);
	card_speed(c[RUNS].slot, 0);
	if (how >= FM_DISK_TEST_RESUME)
		card_cmd("imports off");
}

FM_TEST(suspend, point_17_jobs_go_on_after_suspend_to_idle)
{
	jobs_go_on(_metadata, FM_TO_IDLE);
}

FM_TEST(suspend, point_17_jobs_go_on_after_a_rehearsal)
{
	jobs_go_on(_metadata, FM_REHEARSAL);
}

/* A job that cannot be saved fails, and does not keep the machine awake. */
FM_TEST(suspend, point_04_a_job_that_hangs)
{
	const char *why = fm_cannot_sleep(FM_REHEARSAL);
	struct fermata_status st;
	struct fm_expect e;
	struct fm_ctx c;

	if (why)
		SKIP(return, "%s", why);
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	card_speed(c.slot, 1);
	fm_job_list(&c, 200, ENDLESS, 3, &e);
	fm_param(c.fd, FERMATA_PARAM_PREEMPT_TIMEOUT, 500 * FM_MS);
	fm_must_start(&c);
	card_until_runs(c.slot, c.token);
	card_fault(c.slot, "hang=1");
	ASSERT_EQ(0, fm_sleep_and_wake(FM_REHEARSAL));
	fm_status(c.fd, &st);
	EXPECT_EQ(FERMATA_STATE_FAILED, st.state);
	EXPECT_EQ(ETIME, st.error);
	card_fault(c.slot, "clear");
	card_speed(c.slot, 0);
	fm_job_list(&c, 200, 1000, 5, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
}

/* On a slow kernel the machine needs a minute to sleep and wake twice. */
#define SLOW_TEST(fixture, name)	TEST_F_TIMEOUT(fixture, name, 300)

SLOW_TEST(suspend, defect_02_jobs_go_on_after_a_rehearsal_of_hibernation)
{
	jobs_go_on(_metadata, FM_DISK_REHEARSAL);
}

SLOW_TEST(suspend, defect_02_jobs_go_on_after_test_resume)
{
	jobs_go_on(_metadata, FM_DISK_TEST_RESUME);
}

SLOW_TEST(suspend, defect_02_idle_contexts_go_on_after_hibernation)
{
	idle_contexts_go_on(_metadata, FM_DISK_REBOOT);
}

SLOW_TEST(suspend, defect_02_jobs_go_on_after_hibernation)
{
	jobs_go_on(_metadata, FM_DISK_REBOOT);
}

SLOW_TEST(suspend, defect_02_jobs_go_on_after_hibernation_with_acpi)
{
	jobs_go_on(_metadata, FM_DISK_PLATFORM);
}

/* Last, because after S3 on QEMU the power button cannot wake the machine without pm_base. */

SLOW_TEST(suspend, point_17_idle_contexts_go_on_after_s3)
{
	idle_contexts_go_on(_metadata, FM_S3);
}

SLOW_TEST(suspend, point_17_jobs_go_on_after_s3)
{
	jobs_go_on(_metadata, FM_S3);
}

TEST_HARNESS_MAIN
