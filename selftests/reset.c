// SPDX-License-Identifier: GPL-2.0
/*
 * The function or its bus is reset under load: jobs are saved before, and resume afterwards. A
 * job that cannot be saved, calls that race with resets, and errors of the link (AER), behind a
 * root port.
 */
#include "kselftest_harness.h"
#include "lib/sched.h"
#include "lib/mem.h"
#include <linux/pci_regs.h>

FM_FIXTURE_CARD(reset);

#define RESETS	5

/* A job that runs, one that waits for its slot, one that is held, and one on another slot. */
enum { RUNS, WAITS, HELD, ELSEWHERE, ALL };

struct tenants {
	struct fm_ctx c[ALL];
	struct fm_expect e[ALL];
};

/* Starts the jobs; lost: the jobs on slots will not end. */
static void begin(struct tenants *t, bool lost)
{
	int i;

	for (i = 0; i < ALL; i++) {
		fm_ctx_new(&t->c[i], i == ELSEWHERE ? FM_MEM : FM_LIST, 4 << 20);
		fm_param(t->c[i].fd, FERMATA_PARAM_TIMESLICE, FM_LONG_SLICE);
		if (lost && (i == RUNS || i == ELSEWHERE))
			fm_job_endless(&t->c[i]);
		else
			fm_job_any(&t->c[i], 4000000, i, &t->e[i]);
		card_speed(t->c[i].slot, 1);
	}
	fm_must_start(&t->c[HELD]);
	card_until_runs(t->c[HELD].slot, t->c[HELD].token);
	if (fm_preempt(t->c[HELD].fd, FERMATA_PREEMPT_HOLD))
		fm_die("PREEMPT");
	fm_wait(t->c[HELD].fd, FERMATA_EVENT_HELD);
	/* It has begun, and waits with a snapshot. */
	fm_must_start(&t->c[WAITS]);
	card_until_works(t->c[WAITS].slot, t->c[WAITS].token);
	fm_must_start(&t->c[RUNS]);
	if (fm_preempt(t->c[WAITS].fd, 0))
		fm_die("PREEMPT");
	card_until_runs(t->c[RUNS].slot, t->c[RUNS].token);
	fm_must_start(&t->c[ELSEWHERE]);
}

/* Waits until one of the two runs on their slot, and the job on the other slot runs. */
static void until_at_work(struct tenants *t)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;
	int slot = t->c[RUNS].slot;

	card_until_runs(t->c[ELSEWHERE].slot, t->c[ELSEWHERE].token);
	while (!card_runs(slot, t->c[RUNS].token) && !card_runs(slot, t->c[WAITS].token))
		if (fm_now() > end)
			fm_die("nobody runs");
}

static const char *finish(struct tenants *t)
{
	const char *wrong;
	int i;

	if (fm_state(t->c[HELD].fd) != FERMATA_STATE_HELD)
		return "not held any more";
	if (fm_resume(t->c[HELD].fd))
		return "RESUME";
	for (i = 0; i < ALL; i++)
		card_speed(t->c[i].slot, 0);
	for (i = 0; i < ALL; i++) {
		fm_wait(t->c[i].fd, FERMATA_EVENT_DONE);
		wrong = fm_job_wrong(&t->c[i], &t->e[i]);
		if (wrong)
			return wrong;
	}
	return NULL;
}

static u64 start_count(int slot)
{
	return card_key(card_cmd("state slot=%d", slot), "start_count");
}

static void jobs_go_on(struct __test_metadata *_metadata, const char *method)
{
	struct tenants t;
	int i;

	if (fm_slot_of(FM_MEM) < 0)
		SKIP(return, "no slot with membench");
	if (!fm_reset_by(method))
		SKIP(return, "the function cannot be reset by %s", method);
	begin(&t, false);
	for (i = 0; i < RESETS; i++) {
		until_at_work(&t);
		ASSERT_EQ(0, fm_reset());
		/* The card lost its state, including the counts of STARTs. */
		EXPECT_GE(1, start_count(t.c[RUNS].slot));
		EXPECT_GE(1, start_count(t.c[ELSEWHERE].slot));
	}
	until_at_work(&t);
	EXPECT_EQ(RESETS, fm_preemptions(t.c[ELSEWHERE].fd));
	EXPECT_LE(RESETS, fm_preemptions(t.c[RUNS].fd) + fm_preemptions(t.c[WAITS].fd));
	ASSERT_GOOD(finish(&t));
}

FM_TEST(reset, point_17_jobs_go_on_after_a_function_reset)
{
	jobs_go_on(_metadata, "flr");
}

FM_TEST(reset, point_17_jobs_go_on_after_a_bus_reset)
{
	jobs_go_on(_metadata, "bus");
}

/* A job whose engine hangs fails after its timeout; the others are saved. */
FM_TEST(reset, point_04_one_cannot_be_saved)
{
	struct fermata_status st;
	struct fm_expect e;
	struct tenants t;
	struct fm_ctx hung;

	if (fm_slot_of(FM_MEM) < 0 || fm_slot_of(FM_SHA) < 0)
		SKIP(return, "no slots with membench and sha256");
	if (!fm_reset_by("flr"))
		SKIP(return, "no function reset");
	fm_ctx_new(&hung, FM_SHA, 4 << 20);
	fm_param(hung.fd, FERMATA_PARAM_PREEMPT_TIMEOUT, 50 * FM_MS);
	card_speed(hung.slot, 1);
	fm_job_any(&hung, 4000000, 9, &e);
	/* These jobs must not end before the reset, so slow setup is done before. */
	begin(&t, false);
	fm_must_start(&hung);
	card_until_runs(hung.slot, hung.token);
	card_fault(hung.slot, "hang=1");
	until_at_work(&t);
	ASSERT_EQ(0, fm_reset());
	card_fault(hung.slot, "clear");
	card_speed(hung.slot, 0);
	fm_status(hung.fd, &st);
	EXPECT_EQ(FERMATA_STATE_FAILED, st.state);
	EXPECT_EQ(ETIME, st.error);
	fm_job_any(&hung, 1000, 10, &e);
	ASSERT_GOOD(fm_job_run(&hung, &e));
	ASSERT_GOOD(finish(&t));
}

/* Calls of all kinds race with resets: none reports that the card is gone, and no job is lost. */
FM_TEST(reset, point_17_calls_race_with_resets)
{
	struct fm_child ch[4];
	int i, n, status;

	if (!fm_reset_by("flr"))
		SKIP(return, "no function reset");
	for (i = 0; i < 4; i++) {
		struct fm_expect e;
		struct fm_ctx c;

		fm_fork(&ch[i]);
		if (ch[i].pid)
			continue;
		fm_ctx_new(&c, FM_LIST, 64 * 1024);
		fm_param(c.fd, FERMATA_PARAM_TIMESLICE, FM_MS);
		fm_hear(&ch[i]);
		for (n = 0; n < 40; n++) {
			fm_job_any(&c, 500, n, &e);
			fm_must_start(&c);
			/* The job may have ended. */
			if (!fm_preempt(c.fd, FERMATA_PREEMPT_HOLD))
				fm_resume(c.fd);
			fm_wait(c.fd, FERMATA_EVENT_DONE);
			if (fm_job_wrong(&c, &e))
				_exit(1);
		}
		_exit(0);
	}
	for (i = 0; i < 4; i++)
		fm_say(&ch[i], 0);
	for (n = 0; n < 3 * RESETS; n++)
		ASSERT_EQ(0, fm_reset());
	for (i = 0; i < 4; i++) {
		status = fm_reap(&ch[i]);
		EXPECT_TRUE(WIFEXITED(status));
		EXPECT_EQ(0, WEXITSTATUS(status));
	}
}

/* --- errors of the link ------------------------------------------------------------ */

struct link_error {
	bool by_port;
	u32 uncorrectable;
};

/*
 * Injects an error until the job is saved for it. An error that occurs before the kernel has
 * handled the last one is cleared with that one, and is injected again.
 */
static void inject_until_preempted(struct fm_ctx *c, const struct link_error *error)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS, before = fm_preemptions(c->fd), again = 0;
	int rc;

	while (fm_preemptions(c->fd) == before) {
		if (fm_now() > end)
			fm_die("not preempted");
		if (fm_now() > again) {
			rc = fm_link_error(error->by_port, 0, error->uncorrectable);
			if (rc)
				fm_die("an error of the link: %s", strerror(-rc));
			/* Within the duration of the job, some seconds. */
			again = fm_now() + 500 * FM_MS;
		}
		fm_sleep_us(1000);
	}
}

/* Each is the report of a read that is lost at the same time. */
FM_TEST(reset, point_17_jobs_go_on_after_an_error_that_is_not_fatal)
{
	static const struct link_error errors[RESETS] = {
		{ false, FM_UNC_COMPLETER }, { false, FM_UNC_UNSUPPORTED }, { false, FM_UNC_TIMEOUT },
		{ true, FM_UNC_TIMEOUT }, { true, FM_UNC_UNSUPPORTED },
	};
	struct tenants t;
	u64 lost;
	int i;

	if (fm_no_link_errors() || fm_slot_of(FM_MEM) < 0)
		SKIP(return, "no aer_inject, or no slot with membench");
	begin(&t, false);
	until_at_work(&t);
	/* Correctable: the hardware has corrected it. */
	ASSERT_EQ(0, fm_link_error(false, FM_COR_RECEIVER, 0));
	lost = card_key(card_cmd("state slot=0"), "lost_reads");
	for (i = 0; i < RESETS; i++) {
		until_at_work(&t);
		card_fault(0, "lose_read_at=1");
		inject_until_preempted(&t.c[ELSEWHERE], &errors[i]);
	}
	until_at_work(&t);
	EXPECT_EQ(lost + RESETS, card_key(card_cmd("state slot=0"), "lost_reads"));
	EXPECT_LE(RESETS, fm_preemptions(t.c[ELSEWHERE].fd));
	ASSERT_GOOD(finish(&t));
}

/* The card does not answer, and the driver notices it before the kernel handles the error. */
static void fall_silent(struct __test_metadata *_metadata, struct fm_ctx *c)
{
	u64 tag;

	card_fault(0, "dead=1");
	EXPECT_EQ(-EAGAIN, fm_reg_read(c->fd, FM_REG_TAG, &tag));
}

/*
 * The link is reset while jobs run, or was down for a moment: these jobs are lost, but other jobs
 * are in memory.
 */
static void error_with_loss(struct __test_metadata *_metadata, bool by_port, u32 uncorrectable,
			    bool silent)
{
	struct fermata_status st;
	struct card_run run;
	struct tenants t;
	int i, failed = 0;

	begin(&t, true);
	until_at_work(&t);
	if (silent)
		fall_silent(_metadata, &t.c[RUNS]);
	if (silent && uncorrectable != FM_UNC_DATA_LINK)
		card_fault(0, "dead=0");
	ASSERT_EQ(0, fm_link_error(by_port, 0, uncorrectable));
	fm_wait(t.c[ELSEWHERE].fd, FERMATA_EVENT_DONE);
	fm_wait(t.c[RUNS].fd, FERMATA_EVENT_DONE);
	for (i = 0; i < ALL; i++) {
		fm_status(t.c[i].fd, &st);
		failed += st.state == FERMATA_STATE_FAILED && st.error == EIO;
		if (i == WAITS || i == HELD)
			EXPECT_NE(FERMATA_STATE_FAILED, st.state);
	}
	EXPECT_EQ(2, failed);
	/* It continues from its snapshot. */
	card_until_works(t.c[WAITS].slot, t.c[WAITS].token);
	card_run_of(t.c[WAITS].slot, t.c[WAITS].token, &run);
	EXPECT_EQ(1, run.starts);
	EXPECT_LE(1, run.resumes);
	/* The slots work as before. */
	fm_job_any(&t.c[RUNS], 1000, 7, &t.e[RUNS]);
	fm_must_start(&t.c[RUNS]);
	fm_job_any(&t.c[ELSEWHERE], 1000, 8, &t.e[ELSEWHERE]);
	fm_must_start(&t.c[ELSEWHERE]);
	ASSERT_GOOD(finish(&t));
}

FM_TEST(reset, point_17_a_fatal_error_costs_what_is_on_the_card)
{
	if (fm_no_link_errors() || fm_slot_of(FM_MEM) < 0)
		SKIP(return, "no aer_inject, or no slot with membench");
	error_with_loss(_metadata, false, FM_UNC_DATA_LINK, false);
}

FM_TEST(reset, a_fatal_error_of_the_port)
{
	if (fm_no_link_errors() || fm_slot_of(FM_MEM) < 0)
		SKIP(return, "no aer_inject, or no slot with membench");
	error_with_loss(_metadata, true, FM_UNC_DATA_LINK, false);
}

FM_TEST(reset, a_fatal_error_after_the_card_has_fallen_silent)
{
	if (fm_no_link_errors() || fm_slot_of(FM_MEM) < 0)
		SKIP(return, "no aer_inject, or no slot with membench");
	error_with_loss(_metadata, true, FM_UNC_DATA_LINK, true);
}

FM_TEST(reset, an_error_that_is_not_fatal_after_the_card_has_fallen_silent)
{
	if (fm_no_link_errors() || fm_slot_of(FM_MEM) < 0)
		SKIP(return, "no aer_inject, or no slot with membench");
	error_with_loss(_metadata, true, FM_UNC_TIMEOUT, true);
}

/* The kernel has found the function with its memory disabled, as without firmware to enable it. */
FM_TEST(reset, point_17_a_fatal_error_of_a_function_that_the_driver_has_enabled)
{
	const __u16 command = 0;
	char path[128];
	int fd;

	if (fm_no_link_errors() || fm_slot_of(FM_MEM) < 0)
		SKIP(return, "no aer_inject, or no slot with membench");
	ASSERT_EQ(0, fm_unbind());
	fd = fm_pci_config(O_WRONLY);
	ASSERT_EQ(sizeof(command), pwrite(fd, &command, sizeof(command), PCI_COMMAND));
	close(fd);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/remove", fm_pci());
	ASSERT_EQ(0, fm_put(path, "1"));
	ASSERT_EQ(0, fm_put("/sys/bus/pci/rescan", "1"));
	fm_until_node();
	error_with_loss(_metadata, false, FM_UNC_DATA_LINK, false);
}

/* The card does not answer any more, is removed, and found again after a reset of its bus. */
FM_TEST(reset, a_card_that_has_dropped_off_is_found_again)
{
	u64 pins = fm_pins(), charged = fm_charged();
	char path[128], port[4096 + 64];
	struct fm_expect e;
	struct tenants t;
	int i;

	if (!fm_port_file("") || fm_slot_of(FM_MEM) < 0)
		SKIP(return, "no port above the card, or no slot with membench");
	begin(&t, true);
	until_at_work(&t);
	card_fault(0, "dead=1");
	for (i = 0; i < ALL; i++) {
		EXPECT_EQ(-ENODEV, fm_wait_until(t.c[i].fd, FERMATA_EVENT_DONE, UINT64_MAX, NULL));
		fm_ctx_close(&t.c[i]);
	}
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/remove", fm_pci());
	/* Its files go away with the card. */
	snprintf(port, sizeof(port), "%s", fm_port_file("/reset_subordinate"));
	ASSERT_EQ(0, fm_put(path, "1"));
	EXPECT_NE(0, access(fm_dev(), F_OK));
	EXPECT_EQ(pins, fm_pins());
	EXPECT_EQ(charged, fm_charged());
	ASSERT_EQ(0, fm_put(port, "1"));
	ASSERT_EQ(0, fm_put("/sys/bus/pci/rescan", "1"));
	fm_until_node();
	fm_ctx_new(&t.c[RUNS], FM_LIST, 64 * 1024);
	card_speed(t.c[RUNS].slot, 0);
	fm_job_list(&t.c[RUNS], 100, 1000, 1, &e);
	ASSERT_GOOD(fm_job_run(&t.c[RUNS], &e));
}

TEST_HARNESS_MAIN
