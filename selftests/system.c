// SPDX-License-Identifier: GPL-2.0
/*
 * Actions of the system while tenants run: removal and rescan of the device, a processor that goes
 * offline, and many loads and unloads of the module (FERMATA_LOADS).
 */
#include "kselftest_harness.h"
#include <dirent.h>
#include <sched.h>
#include "lib/sched.h"
#include "lib/calls.h"

FM_FIXTURE_CARD(system);

static void start_endless(struct fm_ctx *c)
{
	fm_ctx_new(c, FM_LIST, 4 * FM_PAGE);
	fm_param(c->fd, FERMATA_PARAM_TIMESLICE, FM_MS);
	fm_job_endless(c);
	fm_must_start(c);
}

/* --- remove and rescan ----------------------------------------------------------- */

FM_TEST(system, point_17_removed_and_found_again)
{
	struct fm_ctx running, queued, again;
	struct fm_gone_waiter w;
	struct fm_expect e;
	char path[128];
	u64 errors;
	int round;

	ASSERT_NE(NULL, fm_pci());
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/remove", fm_pci());
	for (round = 0; round < 5; round++) {
		card_speed(fm_slot_of(FM_LIST), 1);
		start_endless(&running);
		start_endless(&queued);
		card_until_runs(running.slot, running.token);
		card_until_runs(queued.slot, queued.token);
		fm_gone_waiter_start(&w, running.fd);
		errors = card_counter(running.slot, "dma_errors");
		ASSERT_EQ(0, fm_put(path, "1"));
		fm_tally("removals", 1);
		/* No engine has accessed their unmapped memory, or may do so from now on. */
		EXPECT_EQ(errors, card_counter(running.slot, "dma_errors"));
		fm_agent_gone(running.token);
		fm_agent_gone(queued.token);
		pthread_join(w.t.thread, NULL);
		EXPECT_EQ(-ENODEV, w.rc);
		EXPECT_EQ(0, fm_calls_not_gone(running.fd));
		EXPECT_EQ(0, fm_calls_not_gone(queued.fd));
		EXPECT_EQ(POLLERR | POLLHUP, fm_poll_gone(running.fd));
		EXPECT_EQ(SIGBUS, fm_access_signal(queued.mem));
		EXPECT_NE(0, access(path, F_OK));
		ASSERT_EQ(0, fm_put("/sys/bus/pci/rescan", "1"));
		fm_until_node();
		/* Another device of the same name: the old files stay dead. */
		fm_ctx_new(&again, FM_LIST, 64 * 1024);
		card_speed(again.slot, 0);
		fm_job_list(&again, 100, 1000, round, &e);
		ASSERT_GOOD(fm_job_run(&again, &e));
		EXPECT_EQ(0, fm_calls_not_gone(running.fd));
		fm_ctx_close(&running);
		fm_ctx_close(&queued);
		ASSERT_GOOD(fm_job_run(&again, &e));
		fm_ctx_close(&again);
	}
}

/* --- a processor goes --------------------------------------------------------------- */

#define CPU1	"/sys/devices/system/cpu/cpu1/online"

static void on_processor(int cpu)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	if (sched_setaffinity(0, sizeof(one), &one))
		fm_die("sched_setaffinity: %s", strerror(errno));
}

/* Directs the card's vectors to this processor; returns their number. */
static int vectors_to(int cpu)
{
	char path[300], number[16];
	struct dirent *entry;
	int n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/msi_irqs", fm_pci());
	dir = opendir(path);
	if (!dir)
		return 0;
	snprintf(number, sizeof(number), "%d", cpu);
	while ((entry = readdir(dir))) {
		if (*entry->d_name == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/irq/%.16s/smp_affinity_list", entry->d_name);
		n += !fm_put(path, number);
	}
	closedir(dir);
	return n;
}

/* Timers that the processor had armed, and its vectors, move to another processor. */
FM_TEST(system, processor_goes_offline_under_load)
{
	static struct card_turn turns[256];
	struct fm_expect e[2];
	struct fm_ctx c[2];
	int round, i;
	u64 from;

	if (access(CPU1, W_OK))
		SKIP(return, "there is no processor to take away");
	ASSERT_NE(NULL, fm_pci());
	card_speed(fm_slot_of(FM_LIST), 1);
	for (round = 0; round < 5; round++) {
		/* Calls and interrupts, and so timers, are on the processor that goes offline. */
		on_processor(1);
		if (!card_base())
			EXPECT_LT(0, vectors_to(1));
		for (i = 0; i < 2; i++) {
			fm_ctx_new(&c[i], FM_LIST, 64 * 1024);
			fm_param(c[i].fd, FERMATA_PARAM_TIMESLICE, FM_MS);
			/* The job is cut when all checks are done. */
			fm_job_endless(&c[i]);
			fm_must_start(&c[i]);
		}
		card_until_turns(card_history_end(), turns, 256, 6);
		from = card_history_end();
		ASSERT_EQ(0, fm_put(CPU1, "0"));
		fm_tally("processors taken offline", 1);
		card_until_turns(from, turns, 256, 20);
		ASSERT_EQ(0, fm_put(CPU1, "1"));
		from = card_history_end();
		card_until_turns(from, turns, 256, 6);
		for (i = 0; i < 2; i++)
			fm_end_endless(&c[i]);
		for (i = 0; i < 2; i++) {
			EXPECT_EQ(FERMATA_STATE_DONE, fm_state(c[i].fd));
			fm_job_list(&c[i], 100, 5000, round, &e[i]);
			ASSERT_GOOD(fm_job_run(&c[i], &e[i]));
			fm_ctx_close(&c[i]);
		}
	}
}

/* --- loaded and unloaded --------------------------------------------------------------- */

TEST_F_TIMEOUT(system, point_17_loaded_and_unloaded_many_times, 24 * 3600)
{
	u32 loads = fm_number_from("FERMATA_LOADS", 20), i;
	struct fermata_card_info info;
	struct fm_expect e;
	struct fm_ctx c;

	if (!fm_module_known())
		SKIP(return, "FERMATA_MODULE does not name the module");
	for (i = 0; i < loads; i++) {
		ASSERT_EQ(0, fm_module_remove());
		ASSERT_NE(0, access(fm_dev(), F_OK));
		fm_module_load(getenv("FERMATA_MODULE_ARGS"));
		fm_until_node();
		fm_card_info(&info);
		ASSERT_EQ(0, info.contexts);
		/* Run a job now and then, which needs registers, interrupts and memory. */
		if (i % 10)
			continue;
		fm_ctx_new(&c, FM_LIST, 64 * 1024);
		fm_job_list(&c, 100, 1000, i, &e);
		ASSERT_GOOD(fm_job_run(&c, &e));
		fm_ctx_close(&c);
	}
	TH_LOG("%u times", loads);
}

TEST_HARNESS_MAIN
