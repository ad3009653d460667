// SPDX-License-Identifier: GPL-2.0
/*
 * A slot that does not come out of reset: neither it nor memory that it can reach is used, and
 * the other slots continue, until a reset of the card or another bind brings it back.
 */
#include "kselftest_harness.h"
#include "lib/mem.h"
#include "lib/sched.h"

FM_FIXTURE_CARD(quarantine);

static u32 slot_flags(int slot)
{
	struct fermata_slot_info info = { .size = sizeof(info), .slot = slot };
	int fd = fm_open_dev(0);

	fm_must(fd, FERMATA_IOC_SLOT_INFO, &info, "SLOT_INFO");
	close(fd);
	return info.flags;
}

static int setup_on(int slot, enum fm_engine engine)
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[engine][0],
		.afu_id_hi = fm_afu[engine][1], .slot_mask = 1U << slot
	};
	int fd = fm_open_dev(0), rc;

	rc = fm_ioctl(fd, FERMATA_IOC_SETUP, &setup);
	close(fd);
	return rc;
}

/* Makes the engine hang, so that it does not pause and cannot be reset: the slot is quarantined. */
static void quarantine_slot_of(struct fm_ctx *guilty, struct fm_ctx *waits)
{
	if (fm_param_set(guilty->fd, FERMATA_PARAM_PREEMPT_TIMEOUT, 50 * FM_MS) ||
	    fm_param_set(guilty->fd, FERMATA_PARAM_TIMESLICE, FM_MS))
		fm_die("parameters");
	fm_job_endless(guilty);
	if (fm_start(guilty->fd))
		fm_die("START");
	card_until_runs(guilty->slot, guilty->token);
	card_fault(guilty->slot, "reset_fails=1");
	card_fault(guilty->slot, "hang=1");
	if (fm_start(waits->fd))
		fm_die("START of who waits");
	fm_wait(guilty->fd, FERMATA_EVENT_DONE);
	fm_wait(waits->fd, FERMATA_EVENT_DONE);
}

/* Does the engine still read its context's memory, without faults? */
static bool reads_on(int slot)
{
	u64 errors = card_counter(slot, "dma_errors"), before = card_counter(slot, "dma_reads");
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;

	while (card_counter(slot, "dma_reads") < before + 1000)
		if (fm_now() > end)
			return false;
	return card_counter(slot, "dma_errors") == errors && !card_violations();
}

static void cannot_be_reset(struct __test_metadata *_metadata, bool own)
{
	u64 pins = fm_pins();
	struct fm_ctx guilty, waits, idle, other[2], again;
	struct fm_expect e, eo[2];
	struct fermata_status st;
	int slot = fm_slot_of(FM_LIST), i;

	if (fm_slot_of(FM_MEM) < 0 || fm_slot_of(FM_SHA) < 0)
		SKIP(return, "no slots with membench and sha256");
	ASSERT_NE(NULL, fm_pci());
	for (i = 0; i < 2; i++) {
		fm_ctx_new(&other[i], i ? FM_SHA : FM_MEM, 512 * 1024);
		card_speed(other[i].slot, 1);
		fm_job_any(&other[i], 400000, i, &eo[i]);
		ASSERT_EQ(0, fm_start(other[i].fd));
	}
	if (!own)
		fm_ctx_new(&guilty, FM_LIST, 64 * 1024);
	else
		ASSERT_EQ(0, fm_ctx_own(&guilty, FM_LIST, fm_map_huge(FM_HUGE), FM_HUGE));
	fm_ctx_new(&waits, FM_LIST, 64 * 1024);
	fm_ctx_new(&idle, FM_LIST, 64 * 1024);
	fm_job_list(&waits, 100, 1000, 1, &e);
	fm_job_list(&idle, 100, 1000, 2, &e);
	quarantine_slot_of(&guilty, &waits);

	fm_status(guilty.fd, &st);
	EXPECT_EQ(FERMATA_STATE_FAILED, st.state);
	EXPECT_EQ(ETIME, st.error);
	/* A job that waited and may use no other slot fails, too. */
	fm_status(waits.fd, &st);
	EXPECT_EQ(FERMATA_STATE_FAILED, st.state);
	EXPECT_EQ(EPROTO, st.error);
	EXPECT_EQ(FERMATA_SLOT_QUARANTINED, slot_flags(slot) & FERMATA_SLOT_QUARANTINED);
	EXPECT_EQ(-EIO, fm_start(guilty.fd));
	EXPECT_EQ(-EIO, fm_start(waits.fd));
	EXPECT_EQ(-EIO, fm_start(idle.fd));
	EXPECT_EQ(-EIO, setup_on(slot, FM_LIST));

	/* The others are not affected. */
	for (i = 0; i < 2; i++) {
		EXPECT_EQ(0, slot_flags(other[i].slot) & FERMATA_SLOT_QUARANTINED);
		fm_wait(other[i].fd, FERMATA_EVENT_DONE);
		ASSERT_GOOD(fm_job_wrong(&other[i], &eo[i]));
		card_speed(other[i].slot, 0);
		fm_job_any(&other[i], 10000, i + 7, &eo[i]);
		ASSERT_GOOD(fm_job_run(&other[i], &eo[i]));
	}

	/* The engine may still be alive: its memory stays, even when its context is closed. */
	card_fault(slot, "hang=0");
	EXPECT_TRUE(reads_on(slot));
	munmap(guilty.mem, guilty.len);
	close(guilty.fd);
	EXPECT_TRUE(reads_on(slot));
	fm_ctx_new(&again, FM_MEM, 512 * 1024);
	fm_job_any(&again, 100000, 3, &e);
	ASSERT_GOOD(fm_job_run(&again, &e));
	EXPECT_TRUE(reads_on(slot));
	fm_ctx_close(&again);
	EXPECT_EQ(pins + own * FM_HUGE / FM_PAGE, fm_pins());

	card_fault(slot, "clear");
	ASSERT_EQ(0, fm_unbind());
	EXPECT_EQ(pins, fm_pins());
	EXPECT_EQ(0, fm_charged());
	fm_agent_gone(guilty.token);
	ASSERT_EQ(0, fm_bind());
	EXPECT_EQ(0, slot_flags(slot) & FERMATA_SLOT_QUARANTINED);
	fm_ctx_new(&again, FM_LIST, 64 * 1024);
	fm_job_list(&again, 100, 1000, 4, &e);
	ASSERT_GOOD(fm_job_run(&again, &e));
	fm_ctx_close(&again);
	fm_ctx_close(&waits);
	fm_ctx_close(&idle);
	fm_ctx_close(&other[0]);
	fm_ctx_close(&other[1]);
}

FM_TEST(quarantine, point_04_slot_that_cannot_be_reset)
{
	cannot_be_reset(_metadata, false);
}

FM_TEST(quarantine, point_04_own_memory_stays_pinned)
{
	cannot_be_reset(_metadata, true);
}


#define GROUP	"lending"

static u64 bytes_of_group(void)
{
	struct fermata_group_set group = { .flags = FERMATA_GROUP_MAX_CONTEXTS, .max_contexts = 100 };

	fm_group(GROUP, &group);
	return group.bytes;
}

/* Memory that a slot may reach stays and counts, but the context that shares it does not. */
FM_TEST(quarantine, lender_of_memory_that_stays)
{
	struct fm_ctx lender, guilty, waits;
	u64 charged = fm_charged(), pages, bytes;
	int slot = fm_slot_of(FM_LIST);

	ASSERT_NE(NULL, fm_pci());
	if (!fm_has_cgroups())
		SKIP(return, "no cgroups (version 2)");
	fm_cgroup_make(GROUP);
	bytes_of_group();
	fm_cgroup_put(GROUP, "cgroup.procs", "0");
	fm_ctx_new(&lender, FM_LIST, 64 * 1024);
	pages = fm_charged() - charged;
	fm_ctx_new(&waits, FM_LIST, 64 * 1024);
	/* A part keeps all pages of the lender. */
	ASSERT_EQ(0, fm_ctx_share(&guilty, &lender, 0, 32 * 1024, 0));
	quarantine_slot_of(&guilty, &waits);
	EXPECT_EQ(3, fm_contexts());
	bytes = bytes_of_group();
	fm_ctx_unshare(&guilty);
	EXPECT_EQ(3, fm_contexts());
	fm_ctx_unshare(&lender);
	EXPECT_EQ(2, fm_contexts());
	/* All but the snapshot buffer of the lender. */
	EXPECT_EQ(bytes - (pages - 64 * 1024), bytes_of_group());
	fm_ctx_close(&waits);
	EXPECT_GE(fm_charged(), charged + pages);
	card_fault(slot, "hang=0");
	EXPECT_TRUE(reads_on(slot));
	card_fault(slot, "clear");
	ASSERT_EQ(0, fm_unbind());
	EXPECT_EQ(charged, fm_charged());
	fm_agent_gone(lender.token);
	ASSERT_EQ(0, fm_bind());
	fm_cgroup_put("", "cgroup.procs", "0");
	fm_cgroup_remove(GROUP);
}

/* Large enough to be visible in the free memory of the machine. */
#define ARENA_KIB	(24 * 1024)

/* Free memory, including processors' lists, which may contain a whole arena. */
static long free_kib(void)
{
	FILE *f = fopen("/proc/zoneinfo", "re");
	long pages, free = 0;
	char line[128];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, " pages free %ld", &pages) == 1 || sscanf(line, " count: %ld", &pages) == 1)
			free += pages;
	if (f)
		fclose(f);
	return free * (long)(FM_PAGE / 1024);
}

/* Waits until the arena is free again. */
static bool comes_back(long kib)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;

	while (free_kib() < kib + ARENA_KIB / 2) {
		if (fm_now() > end)
			return false;
		fm_sleep_us(10000);
	}
	return true;
}

/* A reset of the whole card ends quarantine: the slot is used again, and kept memory is freed. */
FM_TEST(quarantine, point_04_ends_with_a_reset_of_the_card)
{
	struct fm_ctx guilty, waits, other;
	struct fm_expect e, eo;
	int slot = fm_slot_of(FM_LIST), i;
	long kept = 0;

	if (fm_slot_of(FM_MEM) < 0)
		SKIP(return, "no slot with membench");
	if (!fm_reset_by("flr"))
		SKIP(return, "no function reset");
	fm_ctx_new(&other, FM_MEM, 512 * 1024);
	card_speed(other.slot, 1);
	fm_job_any(&other, 4000000, 1, &eo);
	fm_must_start(&other);
	fm_ctx_new(&waits, FM_LIST, 64 * 1024);
	for (i = 0; i < 2; i++) {
		fm_ctx_new(&guilty, FM_LIST, i ? 64 * 1024 : ARENA_KIB * 1024L);
		fm_job_list(&waits, 100, 1000, i, &e);
		quarantine_slot_of(&guilty, &waits);
		EXPECT_EQ(-EIO, fm_start(waits.fd));
		if (!i) {
			/* The owner closes the context, and the memory stays. */
			munmap(guilty.mem, guilty.len);
			close(guilty.fd);
			EXPECT_EQ(3, fm_contexts());
			kept = free_kib();
		}
		card_fault(slot, "clear");
		ASSERT_EQ(0, fm_reset());
		EXPECT_EQ(0, slot_flags(slot) & FERMATA_SLOT_QUARANTINED);
		if (i) {
			fm_ctx_close(&guilty);
		} else {
			EXPECT_TRUE(comes_back(kept)) {
				TH_LOG("%ld KiB were free, and %ld are", kept, free_kib());
			}
			fm_agent_gone(guilty.token);
		}
		EXPECT_EQ(2, fm_contexts());
		ASSERT_GOOD(fm_job_run(&waits, &e));
	}
	card_speed(other.slot, 0);
	fm_wait(other.fd, FERMATA_EVENT_DONE);
	ASSERT_GOOD(fm_job_wrong(&other, &eo));
}

/* After quarantine a slot is like any other: memory is freed when its context is closed. */
FM_TEST(quarantine, defect_08_memory_is_freed_after_the_slot_came_back)
{
	struct fm_ctx guilty, waits;
	struct fm_expect e;
	u64 charged;

	if (!fm_reset_by("flr"))
		SKIP(return, "no function reset");
	fm_ctx_new(&waits, FM_LIST, 64 * 1024);
	fm_job_list(&waits, 100, 1000, 1, &e);
	charged = fm_charged();
	fm_ctx_new(&guilty, FM_LIST, 1024 * 1024);
	quarantine_slot_of(&guilty, &waits);
	card_fault(guilty.slot, "clear");
	ASSERT_EQ(0, fm_reset());
	fm_job_endless(&guilty);
	fm_must_start(&guilty);
	card_until_runs(guilty.slot, guilty.token);
	munmap(guilty.mem, guilty.len);
	close(guilty.fd);
	EXPECT_EQ(charged, fm_charged());
	EXPECT_EQ(1, fm_contexts());
	fm_agent_gone(guilty.token);
	ASSERT_GOOD(fm_job_run(&waits, &e));
}

/* A refused START keeps the results of the last job. */
FM_TEST(quarantine, defect_12_refused_start_keeps_the_results)
{
	struct fm_ctx guilty, waits, done;
	struct fm_expect e, ed;

	if (!fm_reset_by("flr"))
		SKIP(return, "no function reset");
	fm_ctx_new(&done, FM_LIST, 64 * 1024);
	fm_job_list(&done, 100, 1000, 5, &ed);
	ASSERT_GOOD(fm_job_run(&done, &ed));
	fm_ctx_new(&waits, FM_LIST, 64 * 1024);
	fm_job_list(&waits, 100, 1000, 1, &e);
	fm_ctx_new(&guilty, FM_LIST, 64 * 1024);
	quarantine_slot_of(&guilty, &waits);
	EXPECT_EQ(-EIO, fm_start(done.fd));
	ASSERT_GOOD(fm_job_wrong(&done, &ed));
	card_fault(guilty.slot, "clear");
	ASSERT_EQ(0, fm_reset());
	ASSERT_GOOD(fm_job_wrong(&done, &ed));
	ASSERT_GOOD(fm_job_run(&done, &ed));
}

/* The members of a gang that does not fit on the remaining slots run one at a time. */
FM_TEST(quarantine, gang_that_does_not_fit_any_more)
{
	struct fermata_gang gang = { .size = sizeof(gang), .flags = FERMATA_GANG_JOIN };
	u32 mask = fm_slots_of(FM_LIST), first, both;
	struct fm_expect e[2];
	struct fm_ctx guilty, c[2];
	struct fermata_status st;
	int slot, i;

	if (__builtin_popcount(mask) < 2)
		SKIP(return, "no two equal slots");
	ASSERT_NE(NULL, fm_pci());
	fm_policy(FERMATA_POLICY_FAIR, 0);
	first = mask & -mask;
	mask -= first;
	slot = __builtin_ctz(mask);
	both = first | 1U << slot;
	for (i = 0; i < 2; i++) {
		fm_tenant_list(&c[i], 2 * FM_MS, 4000000, i + 1, &e[i]);
		fm_param(c[i].fd, FERMATA_PARAM_SLOT_MASK, both);
	}
	card_speed(c[0].slot, 1);
	card_speed(slot, 1);
	gang.context = fm_number(c[0].fd);
	fm_must(c[1].fd, FERMATA_IOC_GANG, &gang, "GANG");
	EXPECT_EQ(2, gang.members);
	for (i = 0; i < 2; i++)
		fm_must_start(&c[i]);
	fm_ctx_new_on(&guilty, FM_LIST, 64 * 1024, slot);
	fm_param(guilty.fd, FERMATA_PARAM_TIMESLICE, FM_LONG_SLICE);
	fm_param(guilty.fd, FERMATA_PARAM_PREEMPT_TIMEOUT, 50 * FM_MS);
	fm_job_endless(&guilty);
	fm_must_start(&guilty);
	card_until_runs(slot, guilty.token);
	card_fault(slot, "reset_fails=1");
	card_fault(slot, "hang=1");
	fm_must_hold(&guilty);
	fm_wait(guilty.fd, FERMATA_EVENT_DONE);
	EXPECT_EQ(FERMATA_SLOT_QUARANTINED, slot_flags(slot) & FERMATA_SLOT_QUARANTINED);
	/* In turn on the remaining slot. */
	for (i = 0; i < 2; i++)
		fm_until_preempted(c[i].fd, fm_preemptions(c[i].fd) + 4);
	gang = (struct fermata_gang) { .size = sizeof(gang) };
	fm_must(c[1].fd, FERMATA_IOC_GANG, &gang, "GANG");
	EXPECT_EQ(2, gang.members);
	card_speed(c[0].slot, 0);
	for (i = 0; i < 2; i++) {
		fm_wait(c[i].fd, FERMATA_EVENT_DONE);
		fm_status(c[i].fd, &st);
		EXPECT_EQ(0, st.error);
		ASSERT_GOOD(fm_job_wrong(&c[i], &e[i]));
		fm_ctx_close(&c[i]);
	}
	munmap(guilty.mem, guilty.len);
	close(guilty.fd);
	card_fault(slot, "clear");
	ASSERT_EQ(0, fm_unbind());
	fm_agent_gone(guilty.token);
	ASSERT_EQ(0, fm_bind());
	EXPECT_EQ(0, slot_flags(slot) & FERMATA_SLOT_QUARANTINED);
}

TEST_HARNESS_MAIN
