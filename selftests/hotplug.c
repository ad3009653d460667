// SPDX-License-Identifier: GPL-2.0
/* The card is removed from the machine while tenants use it, and plugged in again. */
#include "kselftest_harness.h"
#include "lib/sched.h"
#include "lib/calls.h"
#include "lib/mem.h"

FM_FIXTURE_CARD(hotplug);

#define ROUNDS	5

/* A job that runs, in the program's own memory, one that waits, one that is held, and none. */
enum { RUNS, WAITS, HELD, IDLE, ALL };

static void begin(struct fm_ctx *c)
{
	int i;

	for (i = 0; i < ALL; i++) {
		if (i != RUNS)
			fm_ctx_new(&c[i], FM_LIST, 64 * 1024);
		else if (fm_ctx_own(&c[i], FM_LIST, fm_map_huge(FM_HUGE), FM_HUGE))
			fm_die("an arena of its own memory");
		fm_param(c[i].fd, FERMATA_PARAM_TIMESLICE, FM_LONG_SLICE);
		fm_job_endless(&c[i]);
	}
	card_speed(c[RUNS].slot, 1);
	fm_must_start(&c[HELD]);
	card_until_runs(c[HELD].slot, c[HELD].token);
	if (fm_preempt(c[HELD].fd, FERMATA_PREEMPT_HOLD))
		fm_die("PREEMPT");
	fm_wait(c[HELD].fd, FERMATA_EVENT_HELD);
	fm_must_start(&c[RUNS]);
	card_until_runs(c[RUNS].slot, c[RUNS].token);
	fm_must_start(&c[WAITS]);
}

FM_TEST(hotplug, point_17_unplugged_under_jobs)
{
	u64 pins = fm_pins(), charged = fm_charged(), errors;
	struct fm_gone_waiter w;
	struct fm_ctx c[ALL], again;
	struct fm_expect e;
	int round, i, slot;
	const char *why;

	if (!host_present())
		SKIP(return, "nobody who could take the card out");
	ASSERT_NE(NULL, fm_pci());
	slot = fm_slot_of(FM_LIST);
	for (round = 0; round < ROUNDS; round++) {
		begin(c);
		fm_gone_waiter_start(&w, c[RUNS].fd);
		errors = card_counter(slot, "dma_errors");
		why = host_ask("unplug", 0);
		ASSERT_GOOD(why);
		/* Its DMA had ended when memory was unmapped. */
		EXPECT_EQ(errors, card_counter(slot, "dma_errors"));
		pthread_join(w.t.thread, NULL);
		EXPECT_EQ(-ENODEV, w.rc);
		EXPECT_NE(0, access(fm_dev(), F_OK));
		for (i = 0; i < ALL; i++) {
			EXPECT_EQ(0, fm_calls_not_gone(c[i].fd));
			EXPECT_EQ(POLLERR | POLLHUP, fm_poll_gone(c[i].fd));
			EXPECT_EQ(i == RUNS ? 0 : SIGBUS, fm_access_signal(c[i].mem));
		}
		/* Nothing of the contexts is kept for a missing card. */
		EXPECT_EQ(pins, fm_pins());
		EXPECT_EQ(charged, fm_charged());
		why = host_ask("plug", 0);
		ASSERT_GOOD(why);
		fm_until_node();
		card_cmd("enforce on");
		card_speed(slot, 0);
		fm_ctx_new(&again, FM_LIST, 64 * 1024);
		fm_job_list(&again, 100, 1000, round, &e);
		ASSERT_GOOD(fm_job_run(&again, &e));
		/* Another device of the same name: the old files stay dead. */
		for (i = 0; i < ALL; i++) {
			EXPECT_EQ(0, fm_calls_not_gone(c[i].fd));
			fm_ctx_close(&c[i]);
		}
		ASSERT_GOOD(fm_job_run(&again, &e));
		fm_ctx_close(&again);
	}
	fm_tally("cards unplugged", ROUNDS);
}

TEST_HARNESS_MAIN
