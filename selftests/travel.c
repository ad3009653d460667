// SPDX-License-Identifier: GPL-2.0
/*
 * Moving a job: registers, arena and state are read from a context whose job is held, and a job of
 * another context continues from them. An imported state is the program's claim, and is not
 * trusted.
 */
#include <sys/eventfd.h>

#include "kselftest_harness.h"
#include "lib/mem.h"
#include "lib/sched.h"
#include "lib/calls.h"

FM_FIXTURE_CARD(travel);

#define ARENA	(1024 * 1024)
/* Longer than any machine takes to hold the job. */
#define LONG_US	1000000

/* --- jobs continue ---------------------------------------------------------------------- */

/* Makes a context with a job that is half done, and held. */
static void half_done(struct fm_ctx *c, enum fm_engine engine, struct fm_expect *e)
{
	fm_ctx_new(c, engine, ARENA);
	card_speed(c->slot, 1);
	fm_job_any(c, LONG_US, 7, e);
	fm_must_start(c);
	card_until_runs(c->slot, c->token);
	fm_sleep_us(2000);
	fm_must_hold(c);
	fm_wait(c->fd, FERMATA_EVENT_HELD);
}

FM_TEST(travel, point_07_goes_on_in_another_context)
{
	struct fm_ctx here, there;
	struct card_run run;
	struct fm_expect e;
	struct fm_parcel p;
	int engine;

	for (engine = 0; engine < FM_ENGINES; engine++) {
		if (fm_slot_of(engine) < 0 || engine == FM_MIX)
			continue;
		half_done(&here, engine, &e);
		fm_pack(&here, &p);
		/* On the last slot of the engine, which may be another one. */
		fm_twin(&there, &here, 31 - __builtin_clz(fm_slots_of(engine)));
		memcpy(there.mem, here.mem, here.len);
		close(here.fd);
		munmap(here.mem, here.len);
		fm_agent_gone(here.token);
		card_speed(there.slot, 0);
		ASSERT_EQ(0, fm_unpack(&there, &p, 0));
		fm_wait(there.fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&there, &e));
		card_run_of(there.slot, there.token, &run);
		EXPECT_EQ(0, run.starts);
		EXPECT_LE(1, run.resumes);
		/* The imported state is used up: the next job starts from its beginning. */
		EXPECT_EQ(-ENODATA, fm_start_saved(there.fd));
		fm_job_any(&there, 200, 8, &e);
		ASSERT_GOOD(fm_job_run(&there, &e));
		fm_ctx_close(&there);
		free(p.state);
	}
}

/* A card with a relay aborts a restore: the job has not worked, and has no results. */
FM_TEST(travel, no_results_of_a_restore_that_is_broken_off)
{
	struct fm_ctx here, there;
	struct fm_expect e;
	struct fm_parcel p;
	u64 value;

	if (!card_relay())
		SKIP(return, "the card has no relay");
	half_done(&here, FM_LIST, &e);
	fm_pack(&here, &p);
	fm_twin(&there, &here, here.slot);
	memcpy(there.mem, here.mem, here.len);
	close(here.fd);
	munmap(here.mem, here.len);
	fm_agent_gone(here.token);
	card_speed(there.slot, 0);
	card_set(there.slot, "restore_us=10000000");
	ASSERT_EQ(0, fm_unpack(&there, &p, 0));
	fm_until_state(there.fd, FERMATA_STATE_RUNNING);
	fm_must_hold(&there);
	fm_wait(there.fd, FERMATA_EVENT_HELD);
	EXPECT_EQ(-EAGAIN, fm_reg_read(there.fd, p.results[0].offset, &value));
	card_set(there.slot, "restore_us=0");
	ASSERT_EQ(0, fm_resume(there.fd));
	fm_wait(there.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&there, &e));
	fm_ctx_close(&there);
	free(p.state);
}

/* A job that is held before it was ever on a slot does not run until the RESUME. */
FM_TEST(travel, starts_held)
{
	struct fm_ctx c;
	struct card_run run;
	struct fm_expect e;
	u8 state[FM_PAGE];

	fm_ctx_new(&c, FM_LIST, ARENA);
	fm_job_any(&c, 20000, 3, &e);
	ASSERT_EQ(0, fm_start_as(c.fd, FERMATA_START_HELD));
	EXPECT_EQ(FERMATA_STATE_HELD, fm_state(c.fd));
	fm_wait(c.fd, FERMATA_EVENT_HELD);
	EXPECT_EQ(-EBUSY, fm_start(c.fd));
	EXPECT_EQ(-ENODATA, fm_snapshot_read(c.fd, state, 0, sizeof(state)));
	fm_sleep_us(20000);
	card_run_of(c.slot, c.token, &run);
	EXPECT_EQ(0, run.starts);
	fm_must_resume(&c);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
	card_run_of(c.slot, c.token, &run);
	EXPECT_EQ(1, run.starts);
	EXPECT_EQ(0, run.resumes);
	/* The next job is not held, and a held job ends with its context. */
	fm_job_any(&c, 200, 4, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
	ASSERT_EQ(0, fm_start_as(c.fd, FERMATA_START_HELD));
	fm_ctx_close(&c);
	EXPECT_EQ(0, fm_contexts());
}

/* A job is held with an imported state, which can be read again, and moved on. */
FM_TEST(travel, starts_held_from_a_state)
{
	struct fm_ctx here, there;
	struct card_run run;
	struct fm_parcel p, q;
	struct fm_expect e;

	half_done(&here, FM_LIST, &e);
	fm_pack(&here, &p);
	fm_twin(&there, &here, -1);
	memcpy(there.mem, here.mem, here.len);
	ASSERT_EQ(0, fm_unpack(&there, &p, FERMATA_START_HELD));
	EXPECT_EQ(FERMATA_STATE_HELD, fm_state(there.fd));
	EXPECT_EQ(-EBUSY, fm_snapshot_write(there.fd, p.state, 0, 8));
	q.state = malloc(p.state_len);
	ASSERT_EQ(0, fm_snapshot_read(there.fd, q.state, 0, p.state_len));
	EXPECT_EQ(0, memcmp(p.state, q.state, p.state_len));
	card_run_of(there.slot, there.token, &run);
	EXPECT_EQ(0, run.resumes);
	card_speed(there.slot, 0);
	ASSERT_GOOD(fm_job_finish(&there, &e));
	card_run_of(there.slot, there.token, &run);
	EXPECT_EQ(0, run.starts);
	EXPECT_LE(1, run.resumes);
	free(p.state);
	free(q.state);
	fm_ctx_close(&there);
	fm_ctx_close(&here);
}

/* A job goes back to an earlier state, in the same context. */
FM_TEST(travel, point_07_goes_on_again_after_its_end)
{
	struct fm_expect e;
	struct fm_ctx c;
	struct fm_parcel p;
	u8 *before;
	int i;

	half_done(&c, FM_LIST, &e);
	fm_pack(&c, &p);
	before = malloc(c.len);
	ASSERT_NE(NULL, before);
	memcpy(before, c.mem, c.len);
	ASSERT_GOOD(fm_job_finish(&c, &e));
	for (i = 0; i < 3; i++) {
		memcpy(c.mem, before, c.len);
		ASSERT_EQ(0, fm_unpack(&c, &p, 0));
		fm_wait(c.fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&c, &e));
	}
	free(before);
	free(p.state);
}

/* An imported job is like any other: it shares a slot in slices, and can be held. */
FM_TEST(travel, point_07_is_preempted_as_any_other)
{
	struct fm_ctx here, there, other;
	struct fm_expect e, eo;
	struct fm_parcel p;

	half_done(&here, FM_LIST, &e);
	fm_pack(&here, &p);
	fm_twin(&there, &here, here.slot);
	memcpy(there.mem, here.mem, here.len);
	fm_tenant_list(&other, FM_MS, LONG_US, 9, &eo);
	fm_param(there.fd, FERMATA_PARAM_TIMESLICE, FM_MS);
	fm_must_start(&other);
	ASSERT_EQ(0, fm_unpack(&there, &p, 0));
	card_until_runs(there.slot, there.token);
	fm_must_hold(&there);
	fm_wait(there.fd, FERMATA_EVENT_HELD);
	EXPECT_LE(1, fm_preemptions(there.fd));
	ASSERT_GOOD(fm_job_finish(&there, &e));
	fm_wait(other.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&other, &eo));
	/* The original job is not affected. */
	ASSERT_GOOD(fm_job_finish(&here, &e));
	free(p.state);
}

/* --- nothing is trusted ------------------------------------------------------------------ */

FM_TEST(travel, point_07_forged_state_stays_in_its_arena)
{
	struct fm_ctx here, there, other;
	struct fermata_status st;
	struct fm_expect e, eo;
	struct fm_parcel p;
	u64 *words;

	if (!fm_confines())
		SKIP(return, "the card does not confine such an engine");
	fm_ctx_new(&other, FM_LIST, ARENA);
	half_done(&here, FM_LIST, &e);
	fm_pack(&here, &p);
	fm_twin(&there, &here, -1);
	/* The next node is in the arena of a neighbour. */
	words = (u64 *)p.state;
	words[1] = other.base + FM_DATA;
	ASSERT_EQ(0, fm_unpack(&there, &p, 0));
	fm_wait(there.fd, FERMATA_EVENT_DONE);
	fm_status(there.fd, &st);
	EXPECT_EQ(FERMATA_STATE_FAILED, st.state);
	EXPECT_EQ(EFAULT, st.error);
	EXPECT_EQ(other.base + FM_DATA, st.fault_addr);
	/* The state differs from what the card has saved. */
	EXPECT_EQ(1, card_key(card_cmd("violations"), "total"));
	EXPECT_EQ(1, card_key(card_cmd("violations"), "resume_forged"));
	card_cmd("violations clear");
	fm_job_list(&other, 100, 1000, 4, &eo);
	ASSERT_GOOD(fm_job_run(&other, &eo));
	ASSERT_GOOD(fm_job_finish(&here, &e));
	free(p.state);
}

/* With arbitrary bytes as state the job ends somehow or is stopped, and the neighbours work. */
FM_TEST(travel, point_07_any_bytes_are_a_state)
{
	struct fm_ctx c, other;
	struct fm_expect e;
	u8 state[FM_PAGE];
	int i;

	if (!fm_confines())
		SKIP(return, "the card does not confine such an engine");
	fm_ctx_new(&c, FM_LIST, ARENA);
	fm_ctx_new(&other, FM_MEM, ARENA);
	fm_param(c.fd, FERMATA_PARAM_TIMESLICE, FM_MS);
	for (i = 0; i < 20; i++) {
		fm_job_list(&c, 100, 1000, i, &e);
		fm_fill(state, sizeof(state), i);
		ASSERT_EQ(0, fm_snapshot_write(c.fd, state, 0, sizeof(state)));
		card_cmd("import token=%llu", (unsigned long long)c.token);
		ASSERT_EQ(0, fm_start_saved(c.fd));
		fm_wait(c.fd, FERMATA_EVENT_DONE);
		fm_job_any(&other, 200, i, &e);
		ASSERT_GOOD(fm_job_run(&other, &e));
	}
	fm_job_list(&c, 100, 1000, 3, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
}

/* If nothing confines an engine, only a program that may touch all memory may import a state. */
FM_TEST(travel, point_07_takes_a_capability_where_nothing_confines)
{
	struct fm_expect e;
	struct fm_child ch;
	struct fm_ctx c;
	u64 word = 0;

	fm_ctx_new(&c, FM_LIST, ARENA);
	fm_fork(&ch);
	if (!ch.pid) {
		fm_drop_privileges();
		fm_say(&ch, -fm_snapshot_write(c.fd, &word, 0, 8));
		_exit(0);
	}
	EXPECT_EQ(fm_confines() ? 0 : EPERM, fm_hear(&ch));
	fm_reap(&ch);
	if (!fm_confines()) {
		EXPECT_EQ(-ENODATA, fm_start_saved(c.fd));
		ASSERT_EQ(0, fm_snapshot_write(c.fd, &word, 0, 8));
	}
	/* A list of no nodes. */
	fm_job_list(&c, 100, 1000, 1, &e);
	card_cmd("import token=%llu", (unsigned long long)c.token);
	ASSERT_EQ(0, fm_start_saved(c.fd));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
}

/* --- calls --------------------------------------------------------------------------------- */

FM_TEST(travel, snapshot_write_bad_input)
{
	struct fermata_snapshot_write arg = { .size = sizeof(arg), .flags = 1, .length = 8 };
	struct fm_ctx c, bare;
	struct fm_expect e;
	u8 page[FM_PAGE];
	u64 len;

	fm_ctx_setup(&bare, FM_LIST, -1);
	EXPECT_EQ(-ENXIO, fm_snapshot_write(bare.fd, page, 0, 8));
	close(bare.fd);
	fm_ctx_new(&c, FM_LIST, ARENA);
	len = fm_snapshot_size(c.fd);
	arg.buffer = (uintptr_t)page;
	EXPECT_EQ(-EINVAL, fm_ioctl(c.fd, FERMATA_IOC_SNAPSHOT_WRITE, &arg));
	EXPECT_EQ(-EINVAL, fm_snapshot_write(c.fd, page, len, 1));
	EXPECT_EQ(-EINVAL, fm_snapshot_write(c.fd, page, len - 7, 8));
	EXPECT_EQ(-EINVAL, fm_snapshot_write(c.fd, page, ~0ULL - 3, 8));
	EXPECT_EQ(-EINVAL, fm_snapshot_write(c.fd, page, 0, 4097 * FM_PAGE));
	EXPECT_EQ(-EFAULT, fm_snapshot_write(c.fd, (void *)8, 0, 8));
	/* None of these calls has imported anything. */
	EXPECT_EQ(-ENODATA, fm_start_saved(c.fd));
	EXPECT_EQ(0, fm_snapshot_write(c.fd, page, len - 8, 8));
	EXPECT_EQ(0, fm_snapshot_write(c.fd, page, len, 0));
	/* Not while there is a job. */
	fm_job_endless(&c);
	fm_must_start(&c);
	EXPECT_EQ(-EBUSY, fm_snapshot_write(c.fd, page, 0, 8));
	fm_hold(&c);
	EXPECT_EQ(-EBUSY, fm_snapshot_write(c.fd, page, 0, 8));
	EXPECT_EQ(-EBUSY, fm_start_saved(c.fd));
	fm_must_resume(&c);
	fm_end_endless(&c);
	/* The START has used up the state that was imported before it. */
	EXPECT_EQ(-ENODATA, fm_start_saved(c.fd));
	fm_job_list(&c, 100, 100, 1, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
}

FM_TEST(travel, lists_registers)
{
	struct fermata_reg regs[FERMATA_MAX_REGS] = { };
	struct fermata_regs arg = { .size = sizeof(arg) };
	const u32 results[] = { 0x58, 0x30, 0x48 };
	struct fm_ctx c;
	int fd, i;

	fd = fm_open_dev(O_RDWR | O_CLOEXEC);
	EXPECT_EQ(-ENXIO, fm_regs_list(fd, 0, regs, 1));
	close(fd);
	fm_ctx_setup(&c, FM_LIST, -1);
	EXPECT_EQ(0, fm_regs_list(c.fd, 0, regs, FERMATA_MAX_REGS));
	EXPECT_EQ(0, fm_regs_list(c.fd, FERMATA_REGS_RESULTS, regs, FERMATA_MAX_REGS));
	EXPECT_EQ(0, fm_reg_write(c.fd, 0xff8, 1));
	EXPECT_EQ(0, fm_reg_write(c.fd, 0x30, 2));
	EXPECT_EQ(0, fm_reg_write(c.fd, 0x1f8, 3));
	/* A register that was set to zero counts as written, too, and the last value counts. */
	EXPECT_EQ(0, fm_reg_write(c.fd, 0x30, 0));
	ASSERT_EQ(3, fm_regs_list(c.fd, 0, regs, FERMATA_MAX_REGS));
	EXPECT_EQ(0x30, regs[0].offset);
	EXPECT_EQ(0, regs[0].value);
	EXPECT_EQ(0x1f8, regs[1].offset);
	EXPECT_EQ(3, regs[1].value);
	EXPECT_EQ(0xff8, regs[2].offset);
	EXPECT_EQ(1, regs[2].value);
	/* As many as there is room for. */
	memset(regs, 0xff, sizeof(regs));
	ASSERT_EQ(3, fm_regs_list(c.fd, 0, regs, 2));
	EXPECT_EQ(0x1f8, regs[1].offset);
	EXPECT_EQ(~0U, regs[2].offset);
	EXPECT_EQ(3, fm_regs_list(c.fd, 0, NULL, 0));
	ASSERT_EQ(0, fm_results(c.fd, results, 3));
	ASSERT_EQ(3, fm_regs_list(c.fd, FERMATA_REGS_RESULTS, regs, FERMATA_MAX_REGS));
	for (i = 0; i < 3; i++) {
		EXPECT_EQ(results[i], regs[i].offset);
		EXPECT_EQ(0, regs[i].value);
	}
	for (i = FERMATA_REG_FIRST; i <= FERMATA_REG_LAST; i += 8)
		ASSERT_EQ(0, fm_reg_write(c.fd, i, i));
	i = (FERMATA_REG_LAST - FERMATA_REG_FIRST) / 8 + 1;
	EXPECT_EQ(i, fm_regs_list(c.fd, 0, regs, FERMATA_MAX_REGS));
	EXPECT_EQ(FERMATA_REG_LAST, regs[i - 1].value);
	EXPECT_EQ(-EINVAL, fm_regs_list(c.fd, 2, regs, 1));
	EXPECT_EQ(-EINVAL, fm_regs_list(c.fd, 0, regs, FERMATA_MAX_REGS + 1));
	EXPECT_EQ(-EFAULT, fm_regs_list(c.fd, 0, (void *)8, 1));
	arg.reserved = 1;
	EXPECT_EQ(-EINVAL, fm_ioctl(c.fd, FERMATA_IOC_REGS_LIST, &arg));
	close(c.fd);
}

FM_TEST(travel, own_memory_is_a_state)
{
	u8 *mem = fm_map(NULL, FM_PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct fermata_snapshot_create snap = {
		.size = sizeof(snap), .flags = FERMATA_SNAPSHOT_USER, .length = FM_PAGE,
		.user_addr = (uintptr_t)mem
	};
	struct fm_ctx here, there;
	struct fm_expect e;
	struct fm_parcel p;

	if (!fm_confines())
		SKIP(return, "the card does not confine such an engine");
	half_done(&here, FM_LIST, &e);
	fm_pack(&here, &p);
	memcpy(mem, p.state, FM_PAGE);
	fm_ctx_setup(&there, FM_LIST, -1);
	ASSERT_EQ(0, fm_ioctl(there.fd, FERMATA_IOC_SNAPSHOT_CREATE, &snap));
	/* The state is already there. Without an arena the first access of the job is a fault. */
	ASSERT_EQ(0, fm_regs_write(there.fd, p.regs, p.nregs));
	ASSERT_EQ(0, fm_reg_write(there.fd, FM_REG_TAG, there.token));
	card_cmd("import token=%llu hash=%llu", (unsigned long long)there.token,
		 (unsigned long long)p.digest);
	ASSERT_EQ(0, fm_start_saved(there.fd));
	fm_wait(there.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_finish(&here, &e));
	close(there.fd);
	free(p.state);
}

/* --- outcomes of jobs in other contexts -------------------------------------------------- */

static int tell_outcome(struct fm_ctx *c, u32 state, u32 error, u64 finished, u64 failed,
			struct fermata_reg *regs, u32 count)
{
	struct fermata_outcome arg = {
		.size = sizeof(arg), .state = state, .error = error, .finished = finished, .failed = failed,
		.count = count, .regs = (uintptr_t)regs
	};

	return fm_ioctl(c->fd, FERMATA_IOC_OUTCOME, &arg);
}

FM_TEST(travel, outcome_of_a_finished_job)
{
	struct fermata_reg result = { .offset = 0x38, .value = 77 };
	struct fermata_status st;
	struct pollfd poller;
	struct fm_expect e;
	struct fm_ctx c;
	u64 value;

	fm_ctx_new(&c, FM_LIST, ARENA);
	fm_job_any(&c, 100, 7, &e);
	ASSERT_EQ(0, tell_outcome(&c, FERMATA_STATE_DONE, 0, 3, 1, &result, 1));
	fm_status(c.fd, &st);
	EXPECT_EQ(FERMATA_STATE_DONE, st.state);
	EXPECT_EQ(0, st.error);
	EXPECT_EQ(4, st.job);
	EXPECT_EQ(3, st.finished);
	EXPECT_EQ(1, st.failed);
	EXPECT_EQ(0, st.run_ns);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	poller = (struct pollfd){ .fd = c.fd, .events = POLLIN };
	EXPECT_EQ(1, poll(&poller, 1, 0));
	ASSERT_EQ(0, fm_reg_read(c.fd, 0x38, &value));
	EXPECT_EQ(77, value);
	/* Only once, and the next job has the next number. */
	EXPECT_EQ(-EBUSY, tell_outcome(&c, FERMATA_STATE_DONE, 0, 1, 0, NULL, 0));
	ASSERT_GOOD(fm_job_run(&c, &e));
	fm_status(c.fd, &st);
	EXPECT_EQ(5, st.job);
	EXPECT_EQ(4, st.finished);
	EXPECT_EQ(-EBUSY, tell_outcome(&c, FERMATA_STATE_DONE, 0, 1, 0, NULL, 0));
}

FM_TEST(travel, outcome_of_a_failed_job)
{
	static const int errors[] = { ETIME, EFAULT, EIO, EPROTO };
	struct fermata_outcome arg = { .size = sizeof(arg), .state = FERMATA_STATE_FAILED, .failed = 1 };
	struct fermata_status st;
	struct fm_expect e;
	struct fm_ctx c;
	size_t i;

	for (i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		fm_ctx_new(&c, FM_LIST, ARENA);
		fm_job_any(&c, 100, 7, &e);
		arg.error = errors[i];
		arg.fault_addr = errors[i] == EFAULT ? 0x123000 : 0;
		arg.fault_flags = errors[i] == EFAULT ? FERMATA_FAULT_WRITE : 0;
		ASSERT_EQ(0, fm_ioctl(c.fd, FERMATA_IOC_OUTCOME, &arg));
		fm_status(c.fd, &st);
		EXPECT_EQ(FERMATA_STATE_FAILED, st.state);
		EXPECT_EQ(errors[i], st.error);
		EXPECT_EQ(arg.fault_addr, st.fault_addr);
		EXPECT_EQ(arg.fault_flags, st.fault_flags);
		EXPECT_EQ(0, st.faults);
		EXPECT_EQ(0, fm_wait_until(c.fd, FERMATA_EVENT_DONE, 0, NULL));
		ASSERT_GOOD(fm_job_run(&c, &e));
		fm_status(c.fd, &st);
		EXPECT_EQ(2, st.job);
		EXPECT_EQ(0, st.error);
		EXPECT_EQ(0, st.fault_addr);
		close(c.fd);
	}
}

FM_TEST(travel, outcome_results_of_a_held_job)
{
	struct fermata_reg result = { .offset = 0x38, .value = 77 };
	struct fm_expect e;
	struct fm_ctx c;
	u64 value;

	fm_ctx_new(&c, FM_LIST, ARENA);
	fm_job_any(&c, 100, 7, &e);
	EXPECT_EQ(-EBUSY, tell_outcome(&c, FERMATA_STATE_HELD, 0, 0, 0, &result, 1));
	ASSERT_EQ(0, fm_start_as(c.fd, FERMATA_START_HELD));
	EXPECT_EQ(-EAGAIN, fm_reg_read(c.fd, 0x38, &value));
	ASSERT_EQ(0, tell_outcome(&c, FERMATA_STATE_HELD, 0, 0, 0, &result, 1));
	ASSERT_EQ(0, fm_reg_read(c.fd, 0x38, &value));
	EXPECT_EQ(77, value);
	ASSERT_EQ(0, fm_resume(c.fd));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&c, &e));
}

FM_TEST(travel, outcome_bad_input)
{
	struct fermata_reg twice[2] = { { .offset = 0x38 }, { .offset = 0x38 } };
	struct fermata_reg strange = { .offset = 0x400 };
	const struct {
		u32 state, error;
		u64 finished, failed;
	} wrong[] = {
		{ FERMATA_STATE_IDLE, 0, 0, 0 }, { FERMATA_STATE_RUNNING, 0, 1, 0 }, { 8, 0, 1, 1 },
		{ FERMATA_STATE_DONE, 0, 0, 1 }, { FERMATA_STATE_DONE, EIO, 1, 1 },
		{ FERMATA_STATE_FAILED, EIO, 1, 0 }, { FERMATA_STATE_FAILED, 0, 1, 1 },
		{ FERMATA_STATE_FAILED, ENODEV, 0, 1 }, { FERMATA_STATE_HELD, 0, 1, 0 },
		{ FERMATA_STATE_HELD, EIO, 0, 0 }, { FERMATA_STATE_DONE, 0, (1ULL << 62) + 1, 0 },
		{ FERMATA_STATE_DONE, 0, 1, UINT64_MAX },
	};
	struct fermata_outcome arg = {
		.size = sizeof(arg), .state = FERMATA_STATE_DONE, .finished = 1, .fault_addr = 8
	};
	struct fermata_status st;
	struct fm_expect e;
	struct fm_ctx c;
	size_t i;

	fm_ctx_new(&c, FM_LIST, ARENA);
	fm_job_any(&c, 100, 7, &e);
	for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		EXPECT_EQ(-EINVAL, tell_outcome(&c, wrong[i].state, wrong[i].error, wrong[i].finished,
						wrong[i].failed, NULL, 0));
	EXPECT_EQ(-EINVAL, tell_outcome(&c, FERMATA_STATE_DONE, 0, 1, 0, twice, 2));
	EXPECT_EQ(-EINVAL, tell_outcome(&c, FERMATA_STATE_DONE, 0, 1, 0, &strange, 1));
	EXPECT_EQ(-EINVAL, tell_outcome(&c, FERMATA_STATE_DONE, 0, 1, 0, twice, FERMATA_MAX_RESULTS + 1));
	EXPECT_EQ(-EFAULT, tell_outcome(&c, FERMATA_STATE_DONE, 0, 1, 0, (void *)8, 1));
	EXPECT_EQ(-EINVAL, fm_ioctl(c.fd, FERMATA_IOC_OUTCOME, &arg));
	arg.fault_addr = 0;
	arg.fault_flags = FERMATA_FAULT_WRITE;
	EXPECT_EQ(-EINVAL, fm_ioctl(c.fd, FERMATA_IOC_OUTCOME, &arg));
	arg.fault_flags = 2;
	EXPECT_EQ(-EINVAL, fm_ioctl(c.fd, FERMATA_IOC_OUTCOME, &arg));
	/* Nothing was changed. */
	fm_status(c.fd, &st);
	EXPECT_EQ(FERMATA_STATE_IDLE, st.state);
	EXPECT_EQ(0, st.job);
	EXPECT_EQ(0, tell_outcome(&c, FERMATA_STATE_DONE, 0, 1ULL << 62, 0, NULL, 0));
}

/* --- how a context was configured -------------------------------------------------------- */

static struct fermata_config config_of(int fd, int efd)
{
	struct fermata_config arg = { .size = sizeof(arg), .fd = efd };

	fm_must(fd, FERMATA_IOC_CONFIG, &arg, "CONFIG");
	return arg;
}

FM_TEST(travel, config_of_memory)
{
	u8 *mem = fm_map(NULL, 4 * FM_PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct fermata_arena_create arena = {
		.size = sizeof(arena), .flags = FERMATA_ARENA_USER, .length = FM_PAGE, .user_addr = (uintptr_t)mem
	};
	struct fermata_snapshot_create snap = {
		.size = sizeof(snap), .flags = FERMATA_SNAPSHOT_USER, .length = FM_PAGE,
		.user_addr = (uintptr_t)mem + 2 * FM_PAGE
	};
	struct fm_ctx allocated, own, shared;
	struct fermata_config config;
	struct fermata_status st;

	fm_ctx_new(&allocated, FM_LIST, ARENA);
	config = config_of(allocated.fd, -1);
	EXPECT_EQ(0, config.arena_flags);
	EXPECT_EQ(0, config.snapshot_flags);
	EXPECT_EQ(0, config.events);
	EXPECT_EQ(0, config.gang);
	EXPECT_EQ(0, config.start_flags);

	fm_ctx_setup(&own, FM_LIST, -1);
	ASSERT_EQ(0, fm_ioctl(own.fd, FERMATA_IOC_ARENA_CREATE, &arena));
	if (fm_confines())
		ASSERT_EQ(0, fm_ioctl(own.fd, FERMATA_IOC_SNAPSHOT_CREATE, &snap));
	config = config_of(own.fd, -1);
	EXPECT_EQ(FERMATA_ARENA_USER, config.arena_flags);
	EXPECT_EQ((uintptr_t)mem, config.arena_addr);
	if (fm_confines()) {
		EXPECT_EQ(FERMATA_SNAPSHOT_USER, config.snapshot_flags);
		EXPECT_EQ(snap.user_addr, config.snapshot_addr);
	}

	fm_ctx_setup(&shared, FM_LIST, -1);
	arena = (struct fermata_arena_create){
		.size = sizeof(arena), .flags = FERMATA_ARENA_SHARED, .length = FM_PAGE, .offset = 2 * FM_PAGE,
		.fd = allocated.fd
	};
	ASSERT_EQ(0, fm_ioctl(shared.fd, FERMATA_IOC_ARENA_CREATE, &arena));
	fm_status(allocated.fd, &st);
	config = config_of(shared.fd, -1);
	EXPECT_EQ(FERMATA_ARENA_SHARED, config.arena_flags);
	EXPECT_EQ(st.context, config.lender);
	EXPECT_EQ(2 * FM_PAGE, config.arena_offset);
}

FM_TEST(travel, config_of_eventfd_and_job)
{
	int efd = eventfd(0, EFD_CLOEXEC), other = eventfd(0, EFD_CLOEXEC), same = dup(efd);
	struct fermata_eventfd arg = {
		.size = sizeof(arg), .events = FERMATA_EVENT_DONE | FERMATA_EVENT_HELD, .fd = efd
	};
	struct fermata_config bad = { .size = sizeof(bad), .fd = STDIN_FILENO };
	struct fermata_config config;
	struct fm_expect e;
	struct fm_ctx c;

	fm_ctx_new(&c, FM_LIST, ARENA);
	EXPECT_EQ(0, config_of(c.fd, efd).flags);
	ASSERT_EQ(0, fm_ioctl(c.fd, FERMATA_IOC_EVENTFD, &arg));
	config = config_of(c.fd, same);
	EXPECT_EQ(FERMATA_CONFIG_EVENTFD, config.flags);
	EXPECT_EQ(arg.events, config.events);
	EXPECT_EQ(0, config_of(c.fd, other).flags);
	EXPECT_EQ(arg.events, config_of(c.fd, -1).events);
	EXPECT_EQ(-EINVAL, fm_ioctl(c.fd, FERMATA_IOC_CONFIG, &bad));
	bad.fd = 999;
	EXPECT_EQ(-EBADF, fm_ioctl(c.fd, FERMATA_IOC_CONFIG, &bad));

	fm_job_any(&c, 100, 7, &e);
	ASSERT_EQ(0, fm_start_as(c.fd, FERMATA_START_REPLAYABLE | FERMATA_START_HELD));
	EXPECT_EQ(FERMATA_START_REPLAYABLE, config_of(c.fd, -1).start_flags);
	ASSERT_EQ(0, fm_resume(c.fd));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_run(&c, &e));
	EXPECT_EQ(0, config_of(c.fd, -1).start_flags);
}

FM_TEST(travel, config_of_hints)
{
	const u64 ahead = 9000 * FM_MS;
	struct fm_ctx c;
	u64 left;

	fm_ctx_new(&c, FM_LIST, ARENA);
	EXPECT_EQ(0, config_of(c.fd, -1).hint_ns);
	ASSERT_EQ(0, fm_hint(c.fd, fm_now() + ahead));
	left = config_of(c.fd, -1).hint_ns;
	EXPECT_GE(ahead, left);
	EXPECT_LT(0, left);
	ASSERT_EQ(0, fm_hint(c.fd, 0));
	EXPECT_EQ(0, config_of(c.fd, -1).hint_ns);
}

FM_TEST(travel, config_of_gangs)
{
	struct fermata_gang join = { .size = sizeof(join), .flags = FERMATA_GANG_JOIN };
	struct fm_ctx a, b, c;
	struct fermata_status st;
	u32 gang;

	if (fm_slot_of(FM_MEM) < 0)
		SKIP(return, "a gang needs two slots");
	fm_ctx_new(&a, FM_LIST, ARENA);
	fm_ctx_new(&b, FM_MEM, ARENA);
	fm_ctx_new(&c, FM_LIST, ARENA);
	fm_status(a.fd, &st);
	join.context = st.context;
	ASSERT_EQ(0, fm_ioctl(b.fd, FERMATA_IOC_GANG, &join));
	gang = config_of(a.fd, -1).gang;
	EXPECT_NE(0, gang);
	EXPECT_EQ(gang, config_of(b.fd, -1).gang);
	EXPECT_EQ(0, config_of(c.fd, -1).gang);
	close(a.fd);
	munmap(a.mem, a.len);
	EXPECT_EQ(0, config_of(b.fd, -1).gang);
}

TEST_HARNESS_MAIN
