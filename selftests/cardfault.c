// SPDX-License-Identifier: GPL-2.0
/*
 * The card misbehaves, and the driver copes with the misbehaviour and reports it: lost and
 * spurious interrupts, wrong state sizes, late answers and writes, long drains (base), a dead
 * card.
 */
#include "kselftest_harness.h"
#include <sys/syscall.h>
#include "lib/calls.h"

FM_FIXTURE_CARD(fault);

/* Lets two tenants share the slot, in spite of the fault. */
static void two_share(struct __test_metadata *_metadata)
{
	struct fm_expect e[2];
	struct fm_ctx c[2];
	int i;

	for (i = 0; i < 2; i++) {
		fm_ctx_new(&c[i], FM_LIST, 64 * 1024);
		card_speed(c[i].slot, 1);
		ASSERT_EQ(0, fm_param_set(c[i].fd, FERMATA_PARAM_TIMESLICE, 2 * FM_MS));
		fm_job_list(&c[i], 200, 15000, i, &e[i]);
	}
	for (i = 0; i < 2; i++)
		ASSERT_EQ(0, fm_start(c[i].fd));
	for (i = 0; i < 2; i++) {
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c[i], &e[i]));
		EXPECT_EQ(FERMATA_STATE_DONE, fm_state(c[i].fd));
	}
	for (i = 0; i < 2; i++)
		fm_ctx_close(&c[i]);
}

FM_TEST(fault, lost_interrupts)
{
	int slot = fm_slot_of(FM_LIST);
	struct fm_expect e;
	struct fm_ctx c;

	if (card_base())
		SKIP(return, "the base profile has no interrupts");
	card_fault(slot, "lose_irq=1");
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	fm_job_list(&c, 100, 1000, 1, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
	card_fault(slot, "lose_irq=all");
	ASSERT_GOOD(fm_job_run(&c, &e));
	fm_ctx_close(&c);
	two_share(_metadata);
	EXPECT_LT(0, card_counter(slot, "irqs_lost"));
}

/* Registers that read all-ones while the status does not: their value, or the card may be gone. */
FM_TEST(fault, registers_that_read_ones)
{
	int slot = fm_slot_of(FM_LIST);
	struct fermata_status st;
	struct fm_expect e;
	struct fm_ctx c;
	u64 reads;

	if (!fm_has_window())
		SKIP(return, "the card has no window check");
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	fm_job_list(&c, 100, 1000, 1, &e);
	/* The list begins outside of the window. */
	ASSERT_EQ(0, fm_reg_write(c.fd, 0x30, c.base + (1ULL << 40)));
	card_fault(slot, "ones=1");
	reads = card_counter(slot, "reads_status");
	ASSERT_EQ(0, fm_start(c.fd));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	fm_status(c.fd, &st);
	EXPECT_EQ(FERMATA_STATE_FAILED, st.state);
	EXPECT_EQ(EFAULT, st.error);
	EXPECT_GE(reads + 10, card_counter(slot, "reads_status"));
	card_fault(slot, "ones=0");
	fm_ctx_close(&c);
	two_share(_metadata);
}

FM_TEST(fault, point_13_spurious_interrupts)
{
	int slot = fm_slot_of(FM_LIST), i;
	struct fm_expect e;
	struct fm_ctx c;

	if (card_base())
		SKIP(return, "the base profile has no interrupts");
	card_fault(slot, "spurious_irq=20");
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	for (i = 0; i < 5; i++) {
		/* The status still shows the FINISH of the previous job. */
		card_fault(slot, "spurious_irq=5");
		card_speed(slot, 1);
		fm_job_list(&c, 100, 3000000, i, &e);
		ASSERT_EQ(0, fm_start(c.fd));
		card_until_runs(slot, c.token);
		card_fault(slot, "spurious_irq=5");
		card_speed(slot, 0);
		fm_wait(c.fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c, &e));
	}
	fm_ctx_close(&c);
	two_share(_metadata);
}

static u32 slot_info_of(int slot, u64 *storms)
{
	struct fermata_slot_info info = { .size = sizeof(info), .slot = slot };
	int fd = fm_open_dev(0);

	fm_must(fd, FERMATA_IOC_SLOT_INFO, &info, "SLOT_INFO");
	close(fd);
	*storms = info.storms;
	return info.flags;
}

static u64 storms_of(int slot)
{
	u64 storms;

	slot_info_of(slot, &storms);
	return storms;
}

static bool is_polled(int slot)
{
	u64 storms;

	return slot_info_of(slot, &storms) & FERMATA_SLOT_POLLED;
}

/* The vector is switched off, on, and off again; the slot and the others continue to work. */
FM_TEST(fault, point_13_interrupt_storm)
{
	int slot = fm_slot_of(FM_LIST), other = fm_slot_of(FM_SHA);
	u64 end, storms = storms_of(slot), others;
	struct fm_expect e, eo;
	struct fm_ctx c, co;
	int i;

	if (card_base())
		SKIP(return, "the base profile has no interrupts");
	if (other < 0)
		SKIP(return, "no slot with sha256");
	others = storms_of(other);
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	fm_ctx_new(&co, FM_SHA, 64 * 1024);
	card_speed(slot, 1);
	card_speed(other, 1);
	card_fault(slot, "irq_storm=20");
	end = fm_now() + FM_GUARD_MS * FM_MS;
	for (i = 0; storms_of(slot) < storms + 4; i++) {
		ASSERT_GT(end, fm_now()) {
			TH_LOG("%llu storms", (unsigned long long)(storms_of(slot) - storms));
		}
		fm_job_list(&c, 100, 20000, i, &e);
		fm_job_any(&co, 20000, i, &eo);
		ASSERT_EQ(0, fm_start(co.fd));
		ASSERT_GOOD(fm_job_run(&c, &e));
		fm_wait(co.fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&co, &eo));
	}
	/* Slots that share a vector are polled together. */
	EXPECT_TRUE(storms_of(other) == others || storms_of(other) >= others + 4);
	fm_ctx_close(&co);
	fm_ctx_close(&c);
	two_share(_metadata);
	card_fault(slot, "irq_storm=0");
	/* Wait for interrupts on their way, one of which may exceed the limit. */
	fm_sleep_us(20000);
	end = fm_now() + FM_GUARD_MS * FM_MS;
	while (is_polled(slot)) {
		ASSERT_GT(end, fm_now());
		fm_sleep_us(1000);
	}
	/* On for good. */
	storms = storms_of(slot);
	two_share(_metadata);
	EXPECT_EQ(storms, storms_of(slot));
	EXPECT_FALSE(is_polled(slot));
}

/* Rebinds the driver, which then reads the size of a state. */
static void bind_anew(void)
{
	if (fm_unbind() || fm_bind())
		fm_die("the driver is not bound again");
}

static int snapshot_with(const char *size)
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
		.afu_id_hi = fm_afu[FM_LIST][1]
	};
	struct fermata_snapshot_create snap = { .size = sizeof(snap) };
	int slot = fm_slot_of(FM_LIST), fd, rc;
	char fault[40];

	snprintf(fault, sizeof(fault), "state_size=%s", size);
	setup.slot_mask = 1U << slot;
	card_fault(slot, fault);
	bind_anew();
	fd = fm_open_dev(0);
	fm_must(fd, FERMATA_IOC_SETUP, &setup, "SETUP");
	rc = fm_ioctl(fd, FERMATA_IOC_SNAPSHOT_CREATE, &snap);
	close(fd);
	card_fault(slot, "clear");
	return rc;
}

FM_TEST(fault, point_08_state_size_is_bounded)
{
	ASSERT_NE(NULL, fm_pci());
	EXPECT_EQ(-EPROTO, snapshot_with("0"));
	fm_log_clear();
	EXPECT_EQ(-EPROTO, snapshot_with("4097"));
	/* The probe has said so before. */
	EXPECT_TRUE(fm_log_has("states of 4097 pages, not of 1 to 4096"));
	EXPECT_EQ(-EPROTO, snapshot_with("0x100000001"));
	EXPECT_EQ(-EPROTO, snapshot_with("0xffffffffffffffff"));
	fm_log_clear();
	EXPECT_EQ(0, snapshot_with("1"));
	EXPECT_EQ(0, snapshot_with("64"));
	EXPECT_FALSE(fm_log_has("not of 1 to 4096"));
	bind_anew();
}

/* Later values of the register are not read, neither during a job nor between jobs. */
FM_TEST(fault, point_08_state_size_changes_later)
{
	static const char * const sizes[] = { "0", "2", "4097", "0xffffffffffffffff" };
	struct fm_expect e;
	struct fm_ctx c;
	char fault[40];
	size_t i;

	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		card_speed(c.slot, 1);
		fm_job_list(&c, 100, 3000000, i, &e);
		ASSERT_EQ(0, fm_start(c.fd));
		card_until_runs(c.slot, c.token);
		snprintf(fault, sizeof(fault), "state_size=%s", sizes[i]);
		card_fault(c.slot, fault);
		ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
		fm_wait(c.fd, FERMATA_EVENT_HELD);
		ASSERT_GOOD(fm_job_finish(&c, &e));
		ASSERT_GOOD(fm_job_run(&c, &e));
		card_fault(c.slot, "clear");
	}
}

/* A reset that changes or loses an engine ends the card: what probe checked is no longer valid. */
static void change_by_a_reset(struct __test_metadata *_metadata, const char *change)
{
	struct fm_expect e;
	struct fm_ctx c;

	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	fm_job_list(&c, 100, 1000, 1, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
	card_fault(c.slot, change);
	ASSERT_EQ(0, fm_reset());
	EXPECT_EQ(-ENODEV, fm_start(c.fd));
	card_fault(c.slot, "clear");
	fm_ctx_close(&c);
	bind_anew();
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	fm_job_list(&c, 100, 1000, 1, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
	fm_ctx_close(&c);
}

FM_TEST(fault, point_08_state_size_changes_by_a_reset)
{
	if (!fm_pci() || !fm_reset_by("flr"))
		SKIP(return, "the function cannot be reset");
	change_by_a_reset(_metadata, "state_size=2");
}

FM_TEST(fault, an_engine_is_lost_by_a_reset)
{
	if (!fm_pci() || !fm_reset_by("flr"))
		SKIP(return, "the function cannot be reset");
	change_by_a_reset(_metadata, "no_engine=1");
}

FM_TEST(fault, larger_state)
{
	struct fm_expect e;
	struct fm_ctx c;

	ASSERT_NE(NULL, fm_pci());
	card_set(fm_slot_of(FM_LIST), "state_pages=5");
	bind_anew();
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	card_speed(c.slot, 1);
	fm_job_list(&c, 100, 3000000, 1, &e);
	ASSERT_GOOD(fm_job_hold(&c));
	ASSERT_GOOD(fm_job_finish(&c, &e));
	fm_ctx_close(&c);
	card_set(fm_slot_of(FM_LIST), "state_pages=1");
	bind_anew();
}

/* Base: the engine still writes after PAUSED; it must not reach memory of others by then. */
FM_TEST(fault, point_05_write_after_paused)
{
	struct fm_expect e[2];
	struct fm_ctx c[2];
	int i, round;

	if (!card_base())
		SKIP(return, "irq and relay cards promise that there is none");
	for (i = 0; i < 2; i++) {
		fm_ctx_new(&c[i], FM_LIST, 64 * 1024);
		card_speed(c[i].slot, 1);
		ASSERT_EQ(0, fm_param_set(c[i].fd, FERMATA_PARAM_TIMESLICE, 10000 * FM_MS));
		fm_job_list(&c[i], 200, 3000000, i, &e[i]);
		ASSERT_EQ(0, fm_start(c[i].fd));
	}
	for (round = 0; round < 4; round++) {
		i = round % 2;
		card_until_runs(c[i].slot, c[i].token);
		card_fault(c[i].slot, "write_after_paused=100");
		ASSERT_EQ(0, fm_preempt(c[i].fd, 0));
	}
	card_speed(c[0].slot, 0);
	for (i = 0; i < 2; i++) {
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
		EXPECT_EQ(FERMATA_STATE_DONE, fm_state(c[i].fd));
	}
	fm_ctx_close(&c[0]);
	fm_ctx_close(&c[1]);
	two_share(_metadata);
}

FM_TEST(fault, point_05_long_drain)
{
	if (!card_base())
		SKIP(return, "irq and relay cards have drained at PAUSED");
	card_set(fm_slot_of(FM_LIST), "drain_us=450");
	two_share(_metadata);
	card_set(fm_slot_of(FM_LIST), "drain_us=200");
}

/* The response of a job that was given up is late: it must not be taken for that of another job. */
static void paused_after_the_timeout(struct __test_metadata *_metadata, unsigned int late_us)
{
	struct fm_expect eb, ec;
	struct fermata_status st;
	struct fm_ctx c, b;
	char fault[40];
	u64 resets, end;
	bool lost;

	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	fm_ctx_new(&b, FM_LIST, 64 * 1024);
	card_speed(c.slot, 1);
	/* The engine has begun to save by then, and only the test has it paused. */
	ASSERT_EQ(0, fm_param_set(c.fd, FERMATA_PARAM_PREEMPT_TIMEOUT, 1000 * FM_MS));
	ASSERT_EQ(0, fm_param_set(c.fd, FERMATA_PARAM_TIMESLICE, 10000 * FM_MS));
	ASSERT_EQ(0, fm_param_set(b.fd, FERMATA_PARAM_TIMESLICE, 10000 * FM_MS));
	resets = fm_slot_resets(c.slot);
	card_fault(c.slot, "save_takes_us=60000000");
	snprintf(fault, sizeof(fault), "late_paused=%u", late_us);
	card_fault(c.slot, fault);
	fm_job_endless(&c);
	fm_job_endless(&b);
	ASSERT_EQ(0, fm_start(c.fd));
	card_until_runs(c.slot, c.token);
	ASSERT_EQ(0, fm_start(b.fd));
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	fm_status(c.fd, &st);
	EXPECT_EQ(FERMATA_STATE_FAILED, st.state);
	EXPECT_EQ(ETIME, st.error);
	if (!card_base())
		EXPECT_EQ(resets + 1, fm_slot_resets(c.slot));
	/* The job stays failed when the response arrives. */
	end = fm_now() + FM_GUARD_MS * FM_MS;
	while (card_key(card_cmd("state slot=%d", c.slot), "pending_faults")) {
		ASSERT_GT(end, fm_now());
		fm_sleep_us(1000);
	}
	/* Without a count in the status it looks like a wrong response of the job that runs now. */
	lost = card_base() && late_us;
	if (!lost)
		fm_list_cut(&b, FM_ENDLESS_NODES);
	fm_wait(b.fd, FERMATA_EVENT_DONE);
	fm_status(b.fd, &st);
	EXPECT_EQ(lost ? FERMATA_STATE_FAILED : FERMATA_STATE_DONE, st.state);
	EXPECT_EQ(lost ? EPROTO : 0, st.error);
	fm_status(c.fd, &st);
	EXPECT_EQ(FERMATA_STATE_FAILED, st.state);
	EXPECT_EQ(ETIME, st.error);
	fm_job_list(&b, 100, 1000, 3, &eb);
	ASSERT_GOOD(fm_job_run(&b, &eb));
	fm_job_list(&c, 100, 1000, 4, &ec);
	ASSERT_GOOD(fm_job_run(&c, &ec));
	fm_ctx_close(&b);
	fm_ctx_close(&c);
	two_share(_metadata);
}

FM_TEST(fault, point_04_paused_while_the_slot_is_reset)
{
	paused_after_the_timeout(_metadata, 0);
}

FM_TEST(fault, point_04_paused_while_the_next_job_runs)
{
	/* On a slow machine the slot may be in reset for a long time. */
	paused_after_the_timeout(_metadata, 1000000);
}

static u64 refused(int slot)
{
	return card_key(card_cmd("state slot=%d", slot), "fault_info");
}

/* irq and relay: a late write meets the window of the next job, and is no fault of that job. */
FM_TEST(fault, point_05_write_after_paused_in_another_window)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;
	struct fm_expect e[2];
	struct fermata_status st;
	struct fm_ctx c[2];
	int i, slot;

	if (card_base())
		SKIP(return, "the base profile has no window");
	for (i = 0; i < 2; i++) {
		fm_ctx_new(&c[i], FM_LIST, 64 * 1024);
		card_speed(c[i].slot, 1);
		ASSERT_EQ(0, fm_param_set(c[i].fd, FERMATA_PARAM_TIMESLICE, 10000 * FM_MS));
		fm_job_list(&c[i], 200, 3000000, i, &e[i]);
	}
	slot = c[0].slot;
	ASSERT_EQ(0, fm_start(c[0].fd));
	card_until_runs(slot, c[0].token);
	ASSERT_EQ(0, fm_start(c[1].fd));
	card_fault(slot, "write_after_paused=1000000");
	ASSERT_EQ(0, fm_preempt(c[0].fd, FERMATA_PREEMPT_HOLD));
	card_until_runs(slot, c[1].token);
	while (!refused(slot)) {
		ASSERT_GT(end, fm_now());
		fm_sleep_us(1000);
	}
	card_speed(slot, 0);
	fm_wait(c[1].fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c[1], &e[1]));
	/* A later fault of the other job reports its own address. */
	fm_job_list(&c[1], 16, 0, 3, &e[1]);
	ASSERT_EQ(0, fm_reg_write(c[1].fd, 0x30, c[1].base + c[1].len));
	ASSERT_EQ(0, fm_start(c[1].fd));
	fm_wait(c[1].fd, FERMATA_EVENT_DONE);
	fm_status(c[1].fd, &st);
	EXPECT_EQ(EFAULT, st.error);
	EXPECT_EQ(c[1].base + c[1].len, st.fault_addr);
	EXPECT_EQ(0, st.fault_flags);
	ASSERT_EQ(0, fm_resume(c[0].fd));
	fm_wait(c[0].fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c[0], &e[0]));
}

/* All-ones: the card is gone, and stays gone for all open files. */
static void is_dead(struct __test_metadata *_metadata, bool wait_first)
{
	struct fm_ctx running, idle;
	struct fm_gone_waiter w;
	struct fm_expect e;
	int bare = fm_open_dev(0), rc;
	struct fm_gone_poller pollers[2];
	int i;

	ASSERT_NE(NULL, fm_pci());
	fm_ctx_new(&running, FM_LIST, 64 * 1024);
	fm_ctx_new(&idle, FM_LIST, 64 * 1024);
	card_speed(running.slot, 1);
	fm_job_endless(&running);
	fm_job_list(&idle, 100, 1000, 1, &e);
	/* A context without a job can wait for the end of the card, too, set up or not. */
	fm_gone_poller_start(&pollers[0], idle.fd);
	fm_gone_poller_start(&pollers[1], bare);
	if (wait_first) {
		ASSERT_EQ(0, fm_start(running.fd));
		card_until_runs(running.slot, running.token);
		fm_gone_waiter_start(&w, running.fd);
		card_fault(running.slot, "dead=1");
		pthread_join(w.t.thread, NULL);
	} else {
		card_fault(running.slot, "dead=1");
		rc = fm_start(running.fd);
		EXPECT_TRUE(!rc || rc == -ENODEV) {
			TH_LOG("START: %s", strerror(-rc));
		}
		/* The card may already be gone: then the call does not sleep. */
		w.rc = fm_wait_until(running.fd, FERMATA_EVENT_DONE, UINT64_MAX, NULL);
	}
	EXPECT_EQ(-ENODEV, w.rc);
	for (i = 0; i < 2; i++) {
		pthread_join(pollers[i].t.thread, NULL);
		EXPECT_EQ(POLLERR | POLLHUP, pollers[i].revents);
	}
	EXPECT_EQ(0, fm_calls_not_gone(running.fd));
	EXPECT_EQ(0, fm_calls_not_gone(idle.fd));
	EXPECT_EQ(0, fm_calls_not_gone(bare));
	EXPECT_EQ(POLLERR | POLLHUP, fm_poll_gone(running.fd));
	card_fault(running.slot, "dead=0");
	EXPECT_EQ(0, fm_unbind());
	fm_agent_gone(running.token);
	fm_agent_gone(idle.token);
	EXPECT_EQ(0, fm_bind());
	fm_ctx_close(&running);
	fm_ctx_close(&idle);
	close(bare);
	two_share(_metadata);
}

/*
 * An engine that still shows a result of the previous job after START_NEW shows it to the next
 * tenant, and no driver can clear a register that cannot be written. The card's checker finds such
 * an engine.
 */
FM_TEST(fault, defect_15_results_of_the_job_before)
{
	/* A relay resets linkedlist inside the card when it loads a context, and so clears them. */
	enum fm_engine engine = card_relay() ? FM_SHA : FM_LIST;
	struct fm_expect e;
	struct fm_ctx c;

	if (card_base())
		SKIP(return, "on the base profile a reset follows each job, and clears them");
	if (fm_slot_of(engine) < 0)
		SKIP(return, "no slot with sha256");
	fm_ctx_new(&c, engine, 64 * 1024);
	card_speed(c.slot, 0);
	fm_job_any(&c, 100, 3, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
	ASSERT_GOOD(fm_job_run(&c, &e));
	EXPECT_EQ(0, card_violations());
	card_fault(c.slot, "results_kept=1");
	ASSERT_GOOD(fm_job_run(&c, &e));
	card_fault(c.slot, "clear");
	EXPECT_EQ(1, card_key(card_cmd("violations"), "result_residue"));
	card_cmd("violations clear");
}

FM_TEST(fault, point_01_card_dies_while_a_job_runs)
{
	is_dead(_metadata, true);
}

FM_TEST(fault, card_dies_while_idle)
{
	is_dead(_metadata, false);
}

TEST_HARNESS_MAIN
