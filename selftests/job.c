// SPDX-License-Identifier: GPL-2.0
/*
 * One tenant, one job: each engine's result; registers on and off the slot, deferred and
 * forwarded; windows; reads of registers per switch.
 */
#include "kselftest_harness.h"
#include <sched.h>
#include "lib/fm.h"

FM_FIXTURE_ANY(job);
FM_FIXTURE_CARD(card);

FM_TEST(job, linkedlist)
{
	static const u32 nodes[] = { 1, 2, 3, 255, 256, 257, 3000 };
	struct fm_expect e;
	struct fm_ctx c;
	size_t i;

	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	for (i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++) {
		/* To the end of a list, and a number of steps round a ring. */
		fm_job_list(&c, nodes[i], 0, i * 77, &e);
		ASSERT_GOOD(fm_job_run(&c, &e));
		fm_job_list(&c, nodes[i], 5000 + i, i * 78, &e);
		ASSERT_GOOD(fm_job_run(&c, &e));
	}
}

FM_TEST(job, membench)
{
	struct fm_expect e;
	struct fm_ctx c;
	u64 mode;

	if (fm_slot_of(FM_MEM) < 0)
		SKIP(return, "no slot with membench");
	fm_ctx_new(&c, FM_MEM, 64 * 1024);
	for (mode = 0; mode < 8; mode++) {
		if ((mode & 5) == 5)
			continue;
		fm_job_mem(&c, 60 * 1024, 3000, mode * 12345, mode, &e);
		TH_LOG("mode %d", (int)mode);
		ASSERT_GOOD(fm_job_run(&c, &e));
	}
	fm_job_mem(&c, 64, 10, 1, 4, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
}

FM_TEST(job, sha256)
{
	static const size_t sizes[] = {
		0, 1, 55, 56, 63, 64, 65, 119, 120, 128, 4095, 4096, 4097, 60000
	};
	struct fm_expect e;
	struct fm_ctx c;
	size_t i;

	if (fm_slot_of(FM_SHA) < 0)
		SKIP(return, "no slot with sha256");
	fm_ctx_new(&c, FM_SHA, 64 * 1024);
	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		fm_job_sha(&c, sizes[i], i, &e);
		TH_LOG("%zu bytes", sizes[i]);
		ASSERT_GOOD(fm_job_run(&c, &e));
	}
	/* "abc", the example of the standard. */
	fm_job_sha(&c, 3, 0, &e);
	memcpy(c.mem + FM_DATA, "abc", 3);
	fm_sha256("abc", 3, e.digest);
	EXPECT_EQ(0xba, e.digest[0]);
	EXPECT_EQ(0xad, e.digest[31]);
	ASSERT_GOOD(fm_job_run(&c, &e));
}

FM_TEST(job, blockmix)
{
	static const size_t sizes[] = { 0, 64, 4096, 4160, 60032 };
	static const size_t blocks[] = { 64, 960, 4096, 65536 };
	struct fm_expect e;
	struct fm_ctx c;
	int i, k;

	if (fm_slot_of(FM_MIX) < 0)
		SKIP(return, "no slot with blockmix");
	fm_ctx_new(&c, FM_MIX, 64 * 1024);
	for (i = 0; i < 5; i++) {
		for (k = 0; k < 4; k++) {
			TH_LOG("%zu bytes in blocks of %zu", sizes[i], blocks[k]);
			fm_job_mix(&c, sizes[i], blocks[k], i + k, &e);
			ASSERT_GOOD(fm_job_run(&c, &e));
		}
	}
}

/* The end of a job would be visible before its data only if a read back were missing. */
FM_TEST(job, point_14_data_is_there_when_done_is)
{
	struct fm_expect e;
	struct fm_ctx c;
	int i;

	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	for (i = 0; i < 200; i++) {
		fm_job_list(&c, 16, 0, i, &e);
		ASSERT_EQ(0, fm_start(c.fd));
		/* No call in between that could take its time. */
		fm_wait(c.fd, FERMATA_EVENT_DONE);
		ASSERT_EQ(e.r.count, __atomic_load_n((u64 *)c.mem, __ATOMIC_ACQUIRE));
		ASSERT_EQ(e.r.checksum, __atomic_load_n((u64 *)c.mem + 1, __ATOMIC_ACQUIRE));
	}
}

/* A stale status of the previous job is not taken for the end of this one. */
FM_TEST(job, point_13_stale_status)
{
	struct fermata_start start;
	struct fermata_status st;
	struct fm_expect e;
	struct fm_ctx c;
	int i;

	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	if (card_present())
		card_speed(c.slot, 2);
	for (i = 1; i <= 30; i++) {
		fm_job_list(&c, 64, 2000, i, &e);
		start = (struct fermata_start) { .size = sizeof(start) };
		ASSERT_EQ(0, fm_ioctl(c.fd, FERMATA_IOC_START, &start));
		EXPECT_EQ(i, start.job);
		fm_wait(c.fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c, &e));
		fm_status(c.fd, &st);
		EXPECT_EQ(i, st.job);
		EXPECT_EQ(i, st.finished);
	}
}

/* Base: the status still reads the old FINISH for a while after START. */
FM_TEST(card, point_13_stale_status_with_start_lag)
{
	struct fm_expect e;
	struct fm_ctx c;
	int i;

	if (!card_base())
		SKIP(return, "irq and relay cards have no start lag");
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	card_set(c.slot, "start_lag_us=3000 speed=1");
	for (i = 1; i <= 20; i++) {
		fm_job_list(&c, 64, 3000, i, &e);
		ASSERT_GOOD(fm_job_run(&c, &e));
	}
}

FM_TEST(job, start_while_busy_is_ebusy)
{
	struct fermata_status st;
	struct fm_ctx c;

	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	if (card_present())
		card_speed(c.slot, 1);
	fm_job_endless(&c);
	ASSERT_EQ(0, fm_start(c.fd));
	EXPECT_EQ(-EBUSY, fm_start(c.fd));
	fm_until_state(c.fd, FERMATA_STATE_RUNNING);
	EXPECT_EQ(-EBUSY, fm_start(c.fd));
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	fm_wait(c.fd, FERMATA_EVENT_HELD);
	EXPECT_EQ(-EBUSY, fm_start(c.fd));
	ASSERT_EQ(0, fm_resume(c.fd));
	fm_list_cut(&c, FM_ENDLESS_NODES);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	fm_status(c.fd, &st);
	EXPECT_EQ(1, st.job);
	EXPECT_EQ(1, st.finished);
}

/* Off the slot only declared results can be read, with their values at the end of the job. */
FM_TEST(job, registers_off_the_slot)
{
	const u32 both[] = { 0x38, 0x40 }, one[] = { 0x40 };
	const int unnamed = card_base() ? -EACCES : -EAGAIN;
	struct fm_expect e;
	struct fm_ctx c;
	u64 v = 77;

	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	fm_job_list(&c, 16, 0, 3, &e);
	/* Declared, but no job has produced a value yet. */
	EXPECT_EQ(-EAGAIN, fm_reg_read(c.fd, 0x38, &v));
	EXPECT_EQ(unnamed, fm_reg_read(c.fd, 0x80, &v));
	EXPECT_EQ(77, v);
	ASSERT_GOOD(fm_job_run(&c, &e));
	EXPECT_EQ(0, fm_reg_read(c.fd, 0x38, &v));
	EXPECT_EQ(e.r.count, v);
	EXPECT_EQ(-EAGAIN, fm_reg_read(c.fd, 0x30, &v));
	EXPECT_EQ(-EAGAIN, fm_reg_read(c.fd, FM_REG_TAG, &v));
	/* Registers that are no longer declared cannot be read. */
	ASSERT_EQ(0, fm_results(c.fd, one, 1));
	EXPECT_EQ(-EAGAIN, fm_reg_read(c.fd, 0x38, &v));
	ASSERT_EQ(0, fm_results(c.fd, NULL, 0));
	EXPECT_EQ(-EAGAIN, fm_reg_read(c.fd, 0x40, &v));
	/* The maximum number of results. */
	{
		u32 many[FERMATA_MAX_RESULTS], i;

		for (i = 0; i < FERMATA_MAX_RESULTS; i++)
			many[i] = i < 2 ? both[i] : 0x800 + 8 * i;
		ASSERT_EQ(0, fm_results(c.fd, many, FERMATA_MAX_RESULTS));
		ASSERT_EQ(0, fm_start(c.fd));
		fm_wait(c.fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c, &e));
	}
}

/* Registers are written in parts: the job does not start before the last of them. */
FM_TEST(card, each_of_many_registers_is_written)
{
	enum { MANY = (FERMATA_REG_LAST - 0x100) / 8 + 1 };
	struct fermata_reg regs[MANY];
	struct fm_ctx c;
	u64 writes;
	u32 i;

	if (card_relay())
		SKIP(return, "a relay reads registers from memory");
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	card_speed(c.slot, 1);
	for (i = 0; i < MANY; i++)
		regs[i] = (struct fermata_reg) { .offset = 0x100 + 8 * i, .value = 1000 + i };
	ASSERT_EQ(0, fm_regs_write(c.fd, regs, MANY));
	fm_job_endless(&c);
	writes = card_register_writes(c.slot);
	ASSERT_EQ(0, fm_start(c.fd));
	card_until_runs(c.slot, c.token);
	EXPECT_LE(writes + MANY, card_register_writes(c.slot));
	fm_list_cut(&c, FM_ENDLESS_NODES);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
}

/* On a base card a program reads only registers that it has named: others may give no answer. */
FM_TEST(card, registers_of_a_base_card)
{
	const u32 both[] = { 0x38, 0xff8 };
	struct fermata_reg pair[] = { { .offset = FM_REG_TAG }, { .offset = 0xf80 } };
	struct fermata_regs arg = { .size = sizeof(arg), .count = 2, .regs = (uintptr_t)pair };
	u64 unanswered, v = 77;
	struct fm_ctx c;

	if (!card_base())
		SKIP(return, "on irq and relay cards each register answers");
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	card_speed(c.slot, 1);
	fm_job_endless(&c);
	EXPECT_EQ(-EACCES, fm_reg_read(c.fd, 0xf80, &v));
	ASSERT_EQ(0, fm_results(c.fd, both, 2));
	ASSERT_EQ(0, fm_start(c.fd));
	card_until_runs(c.slot, c.token);
	fm_until_state(c.fd, FERMATA_STATE_RUNNING);
	unanswered = card_counter(c.slot, "reads_unanswered");
	EXPECT_EQ(-EACCES, fm_reg_read(c.fd, 0xf80, &v));
	EXPECT_EQ(-EACCES, fm_ioctl(c.fd, FERMATA_IOC_REGS_READ, &arg));
	EXPECT_EQ(77, v);
	EXPECT_EQ(0, pair[0].value);
	EXPECT_EQ(unanswered, card_counter(c.slot, "reads_unanswered"));
	EXPECT_EQ(0, fm_reg_read(c.fd, FM_REG_TAG, &v));
	EXPECT_EQ(c.token, v);
	/* An offset that gives no answer costs its own program the value, and nobody anything else. */
	EXPECT_EQ(0, fm_reg_read(c.fd, 0xff8, &v));
	EXPECT_EQ(UINT64_MAX, v);
	/* All-ones is read twice. */
	EXPECT_EQ(unanswered + 2, card_counter(c.slot, "reads_unanswered"));
	fm_list_cut(&c, FM_ENDLESS_NODES);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	EXPECT_EQ(0, fm_reg_read(c.fd, 0xff8, &v));
	EXPECT_EQ(UINT64_MAX, v);
	EXPECT_EQ(FERMATA_STATE_DONE, fm_state(c.fd));
}

/*
 * Each read of an offset that gives no answer lasts for a time-out of the link, with interrupts off.
 * A program names as many as it can: after the first, it has the error, and its job fails.
 */
FM_TEST(card, registers_that_give_no_answer_end_the_job)
{
	u32 silent[FERMATA_MAX_RESULTS], i;
	struct fermata_reg reads[FERMATA_MAX_RESULTS];
	struct fermata_regs arg = { .size = sizeof(arg), .count = FERMATA_MAX_RESULTS, .regs = (uintptr_t)reads };
	struct fermata_status end;
	struct fm_expect e;
	struct fm_ctx c;
	u64 before;

	if (!card_base())
		SKIP(return, "on irq and relay cards each register answers");
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	card_set(c.slot, "unanswered_us=30000");
	card_speed(c.slot, 1);
	fm_job_endless(&c);
	for (i = 0; i < FERMATA_MAX_RESULTS; i++) {
		silent[i] = 0xf80 + 8 * i;
		reads[i] = (struct fermata_reg) { .offset = silent[i] };
	}
	ASSERT_EQ(0, fm_results(c.fd, silent, FERMATA_MAX_RESULTS));
	ASSERT_EQ(0, fm_start(c.fd));
	card_until_runs(c.slot, c.token);
	fm_until_state(c.fd, FERMATA_STATE_RUNNING);
	before = card_counter(c.slot, "reads_unanswered");
	EXPECT_EQ(-EIO, fm_ioctl(c.fd, FERMATA_IOC_REGS_READ, &arg));
	EXPECT_EQ(before + 2, card_counter(c.slot, "reads_unanswered"));
	fm_list_cut(&c, FM_ENDLESS_NODES);
	fm_until_state(c.fd, FERMATA_STATE_FAILED);
	EXPECT_EQ(before + 4, card_counter(c.slot, "reads_unanswered"));
	fm_status(c.fd, &end);
	EXPECT_EQ(EPROTO, end.error);
	card_set(c.slot, "unanswered_us=0");
	fm_job_list(&c, 100, 5000, 1, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
}

/* On the slot every register can be read, from the card. */
FM_TEST(job, registers_on_the_slot)
{
	u64 first, later, v, end = fm_now() + FM_GUARD_MS * FM_MS;
	struct fm_ctx c;

	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	if (card_present())
		card_speed(c.slot, 1);
	fm_job_endless(&c);
	ASSERT_EQ(0, fm_start(c.fd));
	fm_until_state(c.fd, FERMATA_STATE_RUNNING);
	/* A relay loads the registers a moment later. Until then they read 0. */
	do {
		ASSERT_EQ(0, fm_reg_read(c.fd, FM_REG_TAG, &v));
		ASSERT_LT(fm_now(), end);
	} while (!v && (card_relay() || !card_present()));
	EXPECT_EQ(c.token, v);
	/* A register that is not declared, and that changes: the count of reads. */
	ASSERT_EQ(0, fm_reg_read(c.fd, 0x38, &first));
	do {
		ASSERT_EQ(0, fm_reg_read(c.fd, 0x38, &later));
		ASSERT_LT(fm_now(), end);
	} while (later == first);
	EXPECT_LT(first, later);
	fm_list_cut(&c, FM_ENDLESS_NODES);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
}

/* A write while the job runs is forwarded at once, and causes no other writes. */
FM_TEST(card, forwarded_write)
{
	u64 writes, v;
	struct fm_ctx c;
	int i;

	if (card_relay())
		SKIP(return, "a relay loads registers for the next start only: write_for_the_next_start");
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	card_speed(c.slot, 1);
	fm_job_endless(&c);
	ASSERT_EQ(0, fm_start(c.fd));
	card_until_runs(c.slot, c.token);
	fm_until_state(c.fd, FERMATA_STATE_RUNNING);
	writes = card_counter(c.slot, "writes");
	for (i = 1; i <= 3; i++) {
		ASSERT_EQ(0, fm_reg_write(c.fd, 0x80, i));
		/* The write is posted, and the control socket could overtake it: flush it. */
		ASSERT_EQ(0, fm_reg_read(c.fd, FM_REG_TAG, &v));
		EXPECT_EQ(writes + i, card_counter(c.slot, "writes"));
	}
	fm_list_cut(&c, FM_ENDLESS_NODES);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
}

/* A relay loads registers at a START: writes while a job runs are for the next job. */
FM_TEST(card, write_for_the_next_start)
{
	const u64 limit = 3000000, sooner = limit / 2;
	struct fm_expect e;
	struct fm_ctx c;
	u64 writes, v;

	if (!card_relay())
		SKIP(return, "the card has no relay, and writes are forwarded: forwarded_write");
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	card_speed(c.slot, 1);
	fm_job_list(&c, 100, limit, 3, &e);
	ASSERT_EQ(0, fm_start(c.fd));
	card_until_runs(c.slot, c.token);
	writes = card_register_writes(c.slot);
	ASSERT_EQ(0, fm_reg_write(c.fd, 0x38, sooner));
	/* The slot still answers reads. */
	ASSERT_EQ(0, fm_reg_read(c.fd, FM_REG_TAG, &v));
	EXPECT_EQ(c.token, v);
	EXPECT_EQ(writes, card_register_writes(c.slot));
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	fm_wait(c.fd, FERMATA_EVENT_HELD);
	card_speed(c.slot, 0);
	ASSERT_EQ(0, fm_resume(c.fd));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	fm_list_expect(&c, sooner, 3, &e);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
	EXPECT_EQ(writes, card_register_writes(c.slot));
}

/* A write while another job runs is kept until the next START, and does not touch its registers. */
FM_TEST(card, deferred_write)
{
	struct fm_expect e;
	struct fm_ctx a, b;
	u64 writes, v;

	fm_ctx_new(&a, FM_LIST, 64 * 1024);
	fm_ctx_new(&b, FM_LIST, 64 * 1024);
	card_speed(a.slot, 1);
	ASSERT_EQ(0, fm_param_set(a.fd, FERMATA_PARAM_TIMESLICE, 10000 * FM_MS));
	fm_job_endless(&a);
	fm_job_list(&b, 100, 1000000, 3, &e);
	ASSERT_EQ(0, fm_start(a.fd));
	card_until_runs(a.slot, a.token);
	ASSERT_EQ(0, fm_start(b.fd));
	writes = card_counter(a.slot, "writes");
	ASSERT_EQ(0, fm_reg_write(b.fd, 0x38, 1234));
	EXPECT_EQ(card_base() ? -EACCES : -EAGAIN, fm_reg_read(b.fd, 0x80, &v));
	EXPECT_EQ(writes, card_counter(a.slot, "writes"));
	EXPECT_TRUE(card_runs(a.slot, a.token));
	fm_list_cut(&a, FM_ENDLESS_NODES);
	fm_wait(a.fd, FERMATA_EVENT_DONE);
	fm_wait(b.fd, FERMATA_EVENT_DONE);
	fm_list_expect(&b, 1234, 3, &e);
	ASSERT_GOOD(fm_job_wrong(&b, &e));
}

/*
 * A zero is a value. MODE survives a reset of the slot: the second tenant sets it to 0,
 * and its job reads, where the first tenant's mode would write.
 */
FM_TEST(job, point_09_zero_written_registers_replayed)
{
	struct fm_expect ea, eb;
	struct fm_ctx a, b;
	int i;

	if (fm_slot_of(FM_MEM) < 0)
		SKIP(return, "no slot with membench");
	fm_ctx_new(&a, FM_MEM, 64 * 1024);
	fm_ctx_new(&b, FM_MEM, 64 * 1024);
	for (i = 0; i < 3; i++) {
		fm_job_mem(&a, 4096, 100, 5 + i, 3, &ea);
		ASSERT_GOOD(fm_job_run(&a, &ea));
		fm_job_mem(&b, 4096, 100, 6 + i, 0, &eb);
		ASSERT_GOOD(fm_job_run(&b, &eb));
	}
}

/* Registers that were never written are zero as well, without values of an earlier tenant. */
FM_TEST(job, point_09_no_registers_of_another_tenant)
{
	struct fm_expect e;
	struct fm_ctx a, b;
	u32 offset;
	u64 v;

	fm_ctx_new(&a, FM_LIST, 64 * 1024);
	fm_ctx_new(&b, FM_LIST, 64 * 1024);
	if (card_present())
		card_speed(a.slot, 1);
	fm_job_list(&a, 16, 0, 3, &e);
	for (offset = 0x80; offset <= FERMATA_REG_LAST; offset += 0x78)
		ASSERT_EQ(0, fm_reg_write(a.fd, offset, 0xdeadbeef00000000 | offset));
	ASSERT_GOOD(fm_job_run(&a, &e));
	fm_job_endless(&b);
	ASSERT_EQ(0, fm_start(b.fd));
	fm_until_state(b.fd, FERMATA_STATE_RUNNING);
	for (offset = 0x80; offset <= FERMATA_REG_LAST; offset += 0x78) {
		v = 0;
		ASSERT_EQ(card_base() ? -EACCES : 0, fm_reg_read(b.fd, offset, &v));
		ASSERT_EQ(0, v);
	}
	/* The card's checker (register_residue) also covers registers that cannot be read. */
	fm_list_cut(&b, FM_ENDLESS_NODES);
	fm_wait(b.fd, FERMATA_EVENT_DONE);
}

/*
 * MODE again, which survives resets: the second tenant never writes it, and its job reads in
 * order, where the first tenant's mode would not.
 */
FM_TEST(job, point_09_unwritten_registers_are_zero)
{
	struct fm_expect ea, eb;
	struct fm_ctx a, b;
	int i;

	if (fm_slot_of(FM_MEM) < 0)
		SKIP(return, "no slot with membench");
	fm_ctx_new(&a, FM_MEM, 64 * 1024);
	fm_ctx_new(&b, FM_MEM, 64 * 1024);
	for (i = 0; i < 3; i++) {
		fm_job_mem(&a, 4096, 100, 5 + i, 1 + i, &ea);
		ASSERT_GOOD(fm_job_run(&a, &ea));
		fm_job_mem(&b, 4096, 100, 6 + i, FM_NO_MODE, &eb);
		ASSERT_GOOD(fm_job_run(&b, &eb));
	}
}

/* Nor do they have values that the first tenant wrote while its job ran, directly to the slot. */
FM_TEST(card, point_09_forwarded_write_leaves_no_residue)
{
	struct fm_expect ea, eb;
	struct fm_ctx a, b;

	if (fm_slot_of(FM_MEM) < 0)
		SKIP(return, "no slot with membench");
	fm_ctx_new(&a, FM_MEM, 64 * 1024);
	fm_ctx_new(&b, FM_MEM, 64 * 1024);
	card_speed(a.slot, 1);
	fm_job_mem(&a, 4096, 100000, 5, FM_NO_MODE, &ea);
	ASSERT_EQ(0, fm_start(a.fd));
	card_until_runs(a.slot, a.token);
	/* The write takes effect at the next START, on a base card at once. */
	ASSERT_EQ(0, fm_reg_write(a.fd, 0x58, 2));
	EXPECT_TRUE(card_runs(a.slot, a.token));
	card_speed(a.slot, 0);
	fm_wait(a.fd, FERMATA_EVENT_DONE);
	if (!card_base())
		ASSERT_GOOD(fm_job_wrong(&a, &ea));
	fm_job_mem(&b, 4096, 100, 6, FM_NO_MODE, &eb);
	ASSERT_GOOD(fm_job_run(&b, &eb));
}

/* A job that was not on a slot yet has no results, although the previous job had. */
FM_TEST(card, point_09_results_are_those_of_this_job)
{
	struct fm_ctx gate, c;
	struct fm_expect e;
	u64 v;

	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	fm_job_list(&c, 16, 0, 3, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
	ASSERT_EQ(0, fm_reg_read(c.fd, 0x38, &v));
	fm_ctx_new(&gate, FM_LIST, 64 * 1024);
	card_speed(gate.slot, 1);
	ASSERT_EQ(0, fm_param_set(gate.fd, FERMATA_PARAM_TIMESLICE, 10000 * FM_MS));
	fm_job_endless(&gate);
	ASSERT_EQ(0, fm_start(gate.fd));
	card_until_runs(gate.slot, gate.token);
	/* The same job, because another declaration of results would discard the earlier ones. */
	ASSERT_EQ(0, fm_start(c.fd));
	EXPECT_EQ(-EAGAIN, fm_reg_read(c.fd, 0x38, &v));
	EXPECT_EQ(-EAGAIN, fm_reg_read(c.fd, 0x40, &v));
	EXPECT_TRUE(card_runs(gate.slot, gate.token));
	fm_list_cut(&gate, FM_ENDLESS_NODES);
	fm_wait(gate.fd, FERMATA_EVENT_DONE);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
}

/* Reads from the function's configuration space, which flushes writes to registers. */
static void push_writes(void)
{
	int fd = fm_pci_config(O_RDONLY);
	u32 value;

	if (pread(fd, &value, sizeof(value), 4) != sizeof(value))
		fm_die("reading the command register: %s", strerror(errno));
	close(fd);
}

static u64 window_size(struct fm_ctx *c)
{
	/* The control socket could overtake posted writes. */
	push_writes();
	return card_key(card_cmd("state slot=%d", c->slot), "window_size");
}

/* A vacant slot can access no memory. */
FM_TEST(card, point_05_window_is_closed_when_nobody_is_on)
{
	struct fm_ctx c;

	if (card_base())
		SKIP(return, "the base profile has no window");
	ASSERT_NE(NULL, fm_pci());
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	card_speed(c.slot, 1);
	EXPECT_EQ(0, window_size(&c));
	fm_job_endless(&c);
	ASSERT_EQ(0, fm_start(c.fd));
	card_until_runs(c.slot, c.token);
	EXPECT_EQ(c.len, window_size(&c));
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	fm_wait(c.fd, FERMATA_EVENT_HELD);
	EXPECT_EQ(0, window_size(&c));
	ASSERT_EQ(0, fm_resume(c.fd));
	fm_list_cut(&c, FM_ENDLESS_NODES);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	EXPECT_EQ(0, window_size(&c));
}

/*
 * Base: a slot is held in reset until the settle time is over, whatever the others do; its
 * owner is notified just when the reset ends. A long base_settle_us makes sure that the resets
 * overlap. Without it the test may miss a bug, but never reports a false one.
 */
FM_TEST(card, point_04_reset_of_one_slot_leaves_the_others)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;
	struct fm_expect ea, eb;
	struct fm_ctx a, b;
	int i;

	if (!card_base())
		SKIP(return, "irq and relay cards are reset only where they must be");
	if (fm_slot_of(FM_MEM) < 0)
		SKIP(return, "no slot with membench");
	fm_ctx_new(&a, FM_LIST, 64 * 1024);
	fm_ctx_new(&b, FM_MEM, 64 * 1024);
	for (i = 0; i < 5; i++) {
		fm_job_list(&a, 16, 0, i, &ea);
		fm_job_mem(&b, 4096, 100, i, 0, &eb);
		ASSERT_EQ(0, fm_start(a.fd));
		while (!card_key(card_cmd("state slot=%d", a.slot), "reset") &&
		       fm_state(a.fd) != FERMATA_STATE_DONE)
			ASSERT_LT(fm_now(), end);
		ASSERT_EQ(0, fm_start(b.fd));
		while (card_key(card_cmd("state slot=%d", a.slot), "reset"))
			ASSERT_LT(fm_now(), end);
		EXPECT_EQ(FERMATA_STATE_DONE, fm_state(a.fd));
		fm_wait(a.fd, FERMATA_EVENT_DONE);
		fm_wait(b.fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&a, &ea));
		ASSERT_GOOD(fm_job_wrong(&b, &eb));
	}
}

/*
 * A job that shares its slot is paused 8 ms after its START, and the slot of a job that is started
 * later is polled 10 ms after its START. So if the second job is known to be over before a PAUSE
 * was written, an interrupt has reported its end. Once is enough. (The end of the first job itself
 * would prove nothing: if slots share a vector, an interrupt of one makes the driver read all.)
 */
static bool told_by_interrupt(enum fm_engine ends, enum fm_engine stays)
{
	struct fm_ctx stay[2], end;
	struct fm_expect e;
	const char *wrong;
	bool told;
	u64 before;
	int i, rc;

	for (i = 0; i < 2; i++) {
		fm_ctx_new(&stay[i], stays, 64 * 1024);
		card_speed(stay[i].slot, 1);
		rc = fm_param_set(stay[i].fd, FERMATA_PARAM_TIMESLICE, 8 * FM_MS);
		if (rc)
			fm_die("TIMESLICE: %s", strerror(-rc));
		fm_job_endless(&stay[i]);
	}
	fm_ctx_new(&end, ends, 64 * 1024);
	card_speed(end.slot, 0);
	fm_job_any(&end, 100, 1, &e);
	before = card_counter(stay[0].slot, "pauses_written");
	if (fm_start(stay[0].fd) || fm_start(stay[1].fd) || fm_start(end.fd))
		fm_die("START fails");
	fm_wait(end.fd, FERMATA_EVENT_DONE);
	told = card_counter(stay[0].slot, "pauses_written") == before;
	wrong = fm_job_wrong(&end, &e);
	if (wrong)
		fm_die("%s", wrong);
	fm_ctx_close(&end);
	fm_ctx_close(&stay[0]);
	fm_ctx_close(&stay[1]);
	return told;
}

FM_TEST(card, interrupt_tells_before_the_watchdog)
{
	enum fm_engine ends, stays;
	cpu_set_t one;
	int i;

	if (card_base())
		SKIP(return, "the base profile has no interrupts");
	/* Both timers are on one processor, and fire in order. */
	CPU_ZERO(&one);
	CPU_SET(0, &one);
	ASSERT_EQ(0, sched_setaffinity(0, sizeof(one), &one));
	for (ends = FM_LIST; ends <= FM_SHA; ends++) {
		stays = ends == FM_LIST ? FM_MEM : FM_LIST;
		if (fm_slot_of(ends) < 0 || fm_slot_of(stays) < 0)
			continue;
		for (i = 0; i < 40 && !told_by_interrupt(ends, stays); i++)
			;
		EXPECT_GT(40, i) {
			TH_LOG("engine %d: not once in %d rounds", ends, i);
		}
	}
}

/* Two jobs share a slot. Is there at most one read for each switch? */
static bool reads_once_per_switch(struct __test_metadata *_metadata)
{
	u64 reads, status, ends;
	struct fm_expect e[2];
	struct fm_ctx c[2];
	int i;

	for (i = 0; i < 2; i++) {
		fm_ctx_new(&c[i], FM_LIST, 64 * 1024);
		card_speed(c[i].slot, 1);
		fm_job_list(&c[i], 64, 100000, i, &e[i]);
		ASSERT_EQ(0, fm_results(c[i].fd, NULL, 0));
		ASSERT_EQ(0, fm_param_set(c[i].fd, FERMATA_PARAM_TIMESLICE, 2 * FM_MS));
	}
	reads = card_counter(c[0].slot, "reads");
	status = card_counter(c[0].slot, "reads_status");
	ends = card_counter(c[0].slot, "paused") + card_counter(c[0].slot, "finished");
	for (i = 0; i < 2; i++)
		ASSERT_EQ(0, fm_start(c[i].fd));
	for (i = 0; i < 2; i++)
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
	reads = card_counter(c[0].slot, "reads") - reads;
	status = card_counter(c[0].slot, "reads_status") - status;
	ends = card_counter(c[0].slot, "paused") + card_counter(c[0].slot, "finished") - ends;
	TH_LOG("%d reads, of them %d of the status, for %d switches", (int)reads, (int)status,
	       (int)ends);
	for (i = 0; i < 2; i++)
		fm_ctx_close(&c[i]);
	/* The slowest kernel does few switches. */
	return ends >= (fm_is_slow() ? 2 : 10) && status <= ends + 4 && reads <= status + 2;
}

/*
 * At most one trapped read for a switch without faults; a START may also read the state size. If
 * the host delays the card, the driver polls it again and again: one run without that is enough.
 */
FM_TEST(card, reads_per_switch)
{
	int i;

	if (fm_is_polled())
		SKIP(return, "the driver polls the card");
	for (i = 0; i < 20 && !reads_once_per_switch(_metadata); i++)
		;
	EXPECT_GT(20, i);
}

/* An engine can access only its own arena. */
FM_TEST(card, point_18_access_outside_the_window)
{
	struct fermata_reg head[] = { { .offset = 0x30 } };
	struct fermata_status st;
	struct fm_expect e;
	struct fm_ctx c, other;
	u64 addr[3];
	u8 *canary;
	int i;

	if (card_base())
		SKIP(return, "the base profile has no window");
	canary = mmap(NULL, FM_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED,
		      -1, 0);
	ASSERT_NE(MAP_FAILED, canary);
	memset(canary, 0x11, FM_PAGE);
	card_cmd("canary gpa=0x%llx len=4096", (unsigned long long)fm_gpa(canary));
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	fm_ctx_new(&other, FM_LIST, 64 * 1024);
	addr[0] = other.base + FM_DATA;
	addr[1] = c.base + c.len;
	addr[2] = c.base - 16;
	for (i = 0; i < 3; i++) {
		fm_job_list(&c, 16, 0, 3, &e);
		head[0].value = addr[i];
		ASSERT_EQ(0, fm_regs_write(c.fd, head, 1));
		ASSERT_EQ(0, fm_start(c.fd));
		fm_wait(c.fd, FERMATA_EVENT_DONE);
		fm_status(c.fd, &st);
		EXPECT_EQ(FERMATA_STATE_FAILED, st.state);
		EXPECT_EQ(EFAULT, st.error);
		EXPECT_EQ(addr[i], st.fault_addr);
		EXPECT_EQ(i + 1, st.failed);
		/* The context and the slot still work. */
		fm_job_list(&other, 16, 0, 3, &e);
		ASSERT_GOOD(fm_job_run(&other, &e));
		fm_job_list(&c, 16, 0, 3, &e);
		ASSERT_GOOD(fm_job_run(&c, &e));
		fm_status(c.fd, &st);
		EXPECT_EQ(0, st.error);
		EXPECT_EQ(0, st.fault_addr);
	}
	card_cmd("canary gpa=0x%llx gone", (unsigned long long)fm_gpa(canary));
}

TEST_HARNESS_MAIN
