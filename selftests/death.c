// SPDX-License-Identifier: GPL-2.0
/*
 * A tenant dies in every state that a job can have. As soon as the process is
 * reaped its pages have no owner: a later access of an engine is a violation,
 * which the teardown finds. The other tenants are not affected.
 */
#include "kselftest_harness.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include "lib/sched.h"

FM_FIXTURE_CARD(death);
FM_FIXTURE_ANY(mapping);

enum when {
	BARE, IDLE, QUEUED, RUNNING, SAVING, RESTORING, HELD, DONE, HUNG, WAITING
};

static void die_when(enum when when, struct fm_child *ch)
{
	struct fm_expect e;
	struct fm_ctx c;

	if (when == BARE) {
		c.fd = fm_open_dev(0);
		fm_say(ch, fm_token());
		pause();
	}
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	if (when == DONE)
		fm_job_list(&c, 100, 1000, 1, &e);
	else
		fm_job_endless(&c);
	if (fm_param_set(c.fd, FERMATA_PARAM_TIMESLICE, FM_MS))
		fm_die("PARAM");
	if (when != IDLE && fm_start(c.fd))
		fm_die("START");
	switch (when) {
	case DONE:
		fm_wait(c.fd, FERMATA_EVENT_DONE);
		break;
	case HELD:
	case RESTORING:
	case SAVING:
		card_until_runs(c.slot, c.token);
		if (fm_preempt(c.fd, FERMATA_PREEMPT_HOLD))
			fm_die("PREEMPT");
		if (when != SAVING)
			fm_wait(c.fd, FERMATA_EVENT_HELD);
		if (when == RESTORING && fm_resume(c.fd))
			fm_die("RESUME");
		break;
	default:
		break;
	}
	fm_say(ch, c.token);
	if (when == WAITING)
		fm_wait_until(c.fd, FERMATA_EVENT_DONE, UINT64_MAX, NULL);
	pause();
	_exit(1);
}

static void dies(struct __test_metadata *_metadata, enum when when)
{
	int slot = fm_slot_of(FM_LIST);
	struct fermata_card_info info;
	struct fm_ctx gate, other;
	struct fm_expect e;
	struct fm_child ch;
	u64 token, errors;

	card_speed(slot, 1);
	if (when == QUEUED) {
		fm_ctx_new(&gate, FM_LIST, 64 * 1024);
		ASSERT_EQ(0, fm_param_set(gate.fd, FERMATA_PARAM_TIMESLICE, 10000 * FM_MS));
		fm_job_endless(&gate);
		ASSERT_EQ(0, fm_start(gate.fd));
		card_until_runs(slot, gate.token);
	}
	fm_ctx_new(&other, FM_LIST, 64 * 1024);
	fm_job_list(&other, 100, 10000, 9, &e);
	if (when == SAVING)
		card_fault(slot, "save_takes_us=400000");
	if (when == RESTORING)
		card_set(slot, "restore_us=400000");

	fm_fork(&ch);
	if (!ch.pid)
		die_when(when, &ch);
	token = fm_hear(&ch);
	if (when == RUNNING || when == HUNG || when == WAITING)
		card_until_runs(slot, token);
	if (when == HUNG)
		card_fault(slot, "hang=1");
	/* If the victim has the slot, another job waits for it. */
	if (when == RUNNING || when == SAVING || when == RESTORING)
		ASSERT_EQ(0, fm_start(other.fd));
	errors = card_counter(slot, "dma_errors");
	fm_kill(&ch);
	fm_agent_gone(token);
	/* Behind an IOMMU this counts accesses to memory that was unmapped too soon. */
	EXPECT_EQ(errors, card_counter(slot, "dma_errors"));
	if (when == RESTORING)
		card_set(slot, "restore_us=0");
	if (when == HUNG)
		card_fault(slot, "clear");

	if (when == QUEUED) {
		EXPECT_TRUE(card_runs(slot, gate.token));
		fm_list_cut(&gate, FM_ENDLESS_NODES);
		fm_wait(gate.fd, FERMATA_EVENT_DONE);
		fm_ctx_close(&gate);
	}
	if (when != RUNNING && when != SAVING && when != RESTORING)
		ASSERT_EQ(0, fm_start(other.fd));
	fm_wait(other.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&other, &e));
	EXPECT_EQ(FERMATA_STATE_DONE, fm_state(other.fd));
	fm_card_info(&info);
	EXPECT_EQ(1, info.contexts);
}

FM_TEST(death, point_06_kill_before_setup)
{
	dies(_metadata, BARE);
}

FM_TEST(death, point_06_kill_while_idle)
{
	dies(_metadata, IDLE);
}

FM_TEST(death, point_06_kill_while_queued)
{
	dies(_metadata, QUEUED);
}

FM_TEST(death, point_06_kill_while_running)
{
	dies(_metadata, RUNNING);
}

FM_TEST(death, point_06_kill_while_saving)
{
	dies(_metadata, SAVING);
}

FM_TEST(death, point_06_kill_while_restoring)
{
	dies(_metadata, RESTORING);
}

FM_TEST(death, point_06_kill_while_held)
{
	dies(_metadata, HELD);
}

FM_TEST(death, point_06_kill_when_done)
{
	dies(_metadata, DONE);
}

FM_TEST(death, point_06_kill_while_hung)
{
	dies(_metadata, HUNG);
}

FM_TEST(death, point_06_kill_while_waiting)
{
	dies(_metadata, WAITING);
}

/* Was the job stopped without a save, by a reset or, on a relay, by an order to drop it? */
static bool was_cut_off(int slot, u64 token, u64 from, u64 resets)
{
	if (!card_relay())
		return resets < card_counter(slot, "resets");
	return card_had(from, CARD_DROPPED, token) && resets == card_counter(slot, "resets");
}

/* The slot is reset when a running job dies, and only then. */
FM_TEST(death, point_05_running_job_is_reset_before_its_memory_goes)
{
	int slot = fm_slot_of(FM_LIST);
	u64 resets, token, reads, from;
	struct fm_child ch;

	card_speed(slot, 1);
	fm_fork(&ch);
	if (!ch.pid)
		die_when(RUNNING, &ch);
	token = fm_hear(&ch);
	card_until_runs(slot, token);
	resets = card_counter(slot, "resets");
	from = card_history_end();
	fm_kill(&ch);
	fm_agent_gone(token);
	EXPECT_FALSE(card_runs(slot, token));
	EXPECT_TRUE(was_cut_off(slot, token, from, resets));
	reads = card_counter(slot, "dma_reads");
	fm_sleep_us(20000);
	EXPECT_EQ(reads, card_counter(slot, "dma_reads"));
}

/* Many tenants die at once, in whatever state they are; one survives. */
FM_TEST(death, point_06_many_die_at_once)
{
	int slot = fm_slot_of(FM_LIST), i, round;
	struct fm_child ch[6];
	struct fm_ctx other;
	struct fm_expect e;
	u64 token[6];

	fm_ctx_new(&other, FM_LIST, 64 * 1024);
	ASSERT_EQ(0, fm_param_set(other.fd, FERMATA_PARAM_TIMESLICE, FM_MS));
	for (round = 0; round < 3; round++) {
		card_speed(slot, 1);
		fm_job_list(&other, 100, 3000000, round, &e);
		for (i = 0; i < 6; i++) {
			fm_fork(&ch[i]);
			if (!ch[i].pid)
				die_when(RUNNING, &ch[i]);
		}
		for (i = 0; i < 6; i++)
			token[i] = fm_hear(&ch[i]);
		ASSERT_EQ(0, fm_start(other.fd));
		card_until_runs(slot, other.token);
		for (i = 0; i < 6; i++)
			kill(ch[i].pid, SIGKILL);
		fm_tally("kills", 6);
		for (i = 0; i < 6; i++) {
			fm_reap(&ch[i]);
			fm_agent_gone(token[i]);
		}
		card_speed(slot, 0);
		fm_wait(other.fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&other, &e));
	}
}

/* Closing and exiting are deaths as well. */
FM_TEST(death, point_06_close_while_running)
{
	struct fm_ctx c;
	int slot = fm_slot_of(FM_LIST), i;
	u64 resets, from, token, errors = card_counter(slot, "dma_errors");

	for (i = 0; i < 5; i++) {
		fm_ctx_new(&c, FM_LIST, 64 * 1024);
		card_speed(c.slot, 1);
		fm_job_endless(&c);
		ASSERT_EQ(0, fm_start(c.fd));
		card_until_runs(c.slot, c.token);
		resets = card_counter(slot, "resets");
		from = card_history_end();
		token = c.token;
		fm_ctx_close(&c);
		EXPECT_TRUE(was_cut_off(slot, token, from, resets));
		/* Base: close() waits until the settle time is over. */
		EXPECT_EQ(0, card_key(card_cmd("state slot=%d", slot), "reset"));
	}
	EXPECT_EQ(errors, card_counter(slot, "dma_errors"));
}

FM_TEST(death, point_06_exit_with_mapped_arena)
{
	struct fermata_card_info info;
	struct fm_child ch;
	u64 token;

	card_speed(fm_slot_of(FM_LIST), 1);
	fm_fork(&ch);
	if (!ch.pid) {
		struct fm_ctx c;

		fm_ctx_new(&c, FM_LIST, 64 * 1024);
		fm_job_endless(&c);
		fm_say(&ch, c.token);
		_exit(fm_start(c.fd) ? 1 : 0);
	}
	token = fm_hear(&ch);
	EXPECT_EQ(0, fm_reap(&ch));
	fm_agent_gone(token);
	fm_card_info(&info);
	EXPECT_EQ(0, info.contexts);
}

/* The mapping keeps the context after the descriptor is closed. */
FM_TEST(death, mapping_keeps_the_context)
{
	struct fermata_card_info info;
	struct fm_ctx c;

	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	card_speed(c.slot, 1);
	fm_job_endless(&c);
	ASSERT_EQ(0, fm_start(c.fd));
	card_until_runs(c.slot, c.token);
	close(c.fd);
	fm_sleep_us(5000);
	EXPECT_TRUE(card_runs(c.slot, c.token));
	fm_card_info(&info);
	EXPECT_EQ(1, info.contexts);
	munmap(c.mem, c.len);
	fm_agent_gone(c.token);
	fm_card_info(&info);
	EXPECT_EQ(0, info.contexts);
	EXPECT_FALSE(card_runs(c.slot, c.token));
}

/* A child inherits the descriptor, but not the mapping. */
FM_TEST(mapping, not_inherited_over_fork)
{
	struct fm_child ch;
	struct fm_expect e;
	struct fm_ctx c;
	int status;

	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	fm_fork(&ch);
	if (!ch.pid) {
		u8 vec[16];

		/* The range is not mapped at all. */
		if (!mincore(c.mem, c.len, vec) || errno != ENOMEM)
			_exit(1);
		signal(SIGSEGV, SIG_DFL);
		*(volatile u8 *)c.mem = 1;
		_exit(2);
	}
	status = fm_reap(&ch);
	EXPECT_TRUE(WIFSIGNALED(status));
	EXPECT_EQ(SIGSEGV, WTERMSIG(status));
	/* The context has outlived the child. */
	fm_job_list(&c, 100, 1000, 1, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
}

/* The mapping is not dumped, and cannot grow. */
FM_TEST(mapping, flags)
{
	char line[512], want[40];
	bool inside = false, found = false;
	struct fm_ctx c;
	FILE *f;

	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	EXPECT_EQ(MAP_FAILED, mremap(c.mem, c.len, 2 * c.len, MREMAP_MAYMOVE));
	snprintf(want, sizeof(want), "%lx-", (unsigned long)c.mem);
	f = fopen("/proc/self/smaps", "r");
	ASSERT_NE(NULL, f);
	while (fgets(line, sizeof(line), f)) {
		if (strchr(line, '-') && line[0] != 'V' && strstr(line, "fermata"))
			inside = !strncmp(line, want, strlen(want));
		if (inside && !strncmp(line, "VmFlags:", 8)) {
			found = true;
			EXPECT_NE(NULL, strstr(line, " dc"));
			EXPECT_NE(NULL, strstr(line, " dd"));
			EXPECT_NE(NULL, strstr(line, " sh"));
			break;
		}
	}
	EXPECT_TRUE(found);
	fclose(f);
}

TEST_HARNESS_MAIN
