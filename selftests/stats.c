// SPDX-License-Identifier: GPL-2.0
/*
 * Histograms and counters of slots and contexts, compared with those of the card, and who may
 * see them.
 */
#include "kselftest_harness.h"
#include <sys/wait.h>
#include "lib/sched.h"

FM_FIXTURE_CARD(card);
FM_FIXTURE_ANY(any);

#define USER	1234

/* What the card and the driver have counted on a slot. */
struct seen {
	u64 starts, paused, finished;
	struct fermata_slot_info info;
	struct fm_histogram gap, save, restore, overrun, latency;
};

static void look(int fd, int slot, struct seen *s)
{
	s->starts = card_counter(slot, "starts") + card_counter(slot, "resumes");
	s->paused = card_counter(slot, "paused");
	s->finished = card_counter(slot, "finished");
	fm_slot_info(slot, &s->info);
	fm_histogram(fd, FERMATA_HISTOGRAM_GAP, slot, &s->gap);
	fm_histogram(fd, FERMATA_HISTOGRAM_SAVE, slot, &s->save);
	fm_histogram(fd, FERMATA_HISTOGRAM_RESTORE, slot, &s->restore);
	fm_histogram(fd, FERMATA_HISTOGRAM_OVERRUN, slot, &s->overrun);
	fm_histogram(fd, FERMATA_HISTOGRAM_LATENCY, slot, &s->latency);
}

/* Lets two jobs share a slot for some turns each, and ends both. */
static void share_slot(struct fm_ctx c[2], u64 slice)
{
	int i;

	fm_policy(FERMATA_POLICY_ROUND_ROBIN, 0);
	for (i = 0; i < 2; i++) {
		fm_tenant(&c[i], slice);
		fm_job_endless(&c[i]);
	}
	card_speed(c[0].slot, 1);
	fm_must_start(&c[0]);
	fm_must_start(&c[1]);
	for (i = 0; i < 2; i++)
		while (fm_preemptions(c[i].fd) < 5)
			fm_sleep_us(1000);
	/* The slot is not vacant before the end of the last job. */
	for (i = 0; i < 2; i++)
		fm_end_endless(&c[i]);
}

/* A counter of a slot in the file `monitor` of the card, which has a line of a KiB for each slot. */
static u64 monitored(int slot, const char *name)
{
	char text[1024 + 1] = "", word[64];
	int fd = open(fm_sysfs_path(-1, "monitor"), O_RDONLY | O_CLOEXEC);
	const char *at;

	if (pread(fd, text, 1024, slot * 1024) != 1024)
		fm_die("monitor: %s", strerror(errno));
	close(fd);
	snprintf(word, sizeof(word), " %s=", name);
	at = strstr(text, word);
	if (!at)
		fm_die("monitor: no %s", name);
	return strtoull(at + strlen(word), NULL, 10);
}

/*
 * A timer that fires without end, and a job that waits for ten seconds beside a vacant slot, are
 * counted and reported. Both are faults of the scheduler, which mutations cause.
 */
FM_TEST(card, no_slot_stands_still)
{
	u64 end = fm_now() + 15000 * FM_MS, storms = 0, standstills = 0;
	struct fermata_card_info card;
	struct fm_expect e;
	struct fm_ctx c;
	u32 slot;

	fm_tenant_list(&c, FM_LONG_SLICE, 100, 1, &e);
	fm_must_start(&c);
	while (fm_state(c.fd) != FERMATA_STATE_DONE && fm_now() < end)
		fm_sleep_us(10000);
	fm_card_info(&card);
	for (slot = 0; slot < card.slots; slot++) {
		storms += monitored(slot, "timer_storms");
		standstills += monitored(slot, "standstills");
	}
	EXPECT_EQ(storms != 0, fm_log_has("the timer fires more than 100 times in a millisecond"));
	EXPECT_EQ(standstills != 0, fm_log_has("waited for ten seconds beside the vacant slot"));
	EXPECT_EQ(0, storms);
	EXPECT_EQ(0, standstills);
}

FM_TEST(card, slots_agree_with_what_the_card_saw)
{
	struct seen before, after;
	struct fm_ctx c[2], first;
	int fd = fm_open_dev(0), slot = fm_slot_of(FM_LIST);
	struct fm_expect e;
	u64 starts;

	ASSERT_LE(0, fd);
	/* A job has left the slot, which is vacant. */
	fm_tenant_list(&first, FM_LONG_SLICE, 100, 1, &e);
	ASSERT_GOOD(fm_job_run(&first, &e));
	look(fd, slot, &before);
	/* A card with a relay ends shorter slices by itself. */
	share_slot(c, card_relay() ? 20 * FM_MS : 2 * FM_MS);
	look(fd, slot, &after);
	starts = after.starts - before.starts;
	ASSERT_LE(11, starts);
	EXPECT_EQ(starts, after.info.switches - before.info.switches);
	/* No run precedes the first START. */
	EXPECT_EQ(starts - 1, after.gap.count - before.gap.count);
	EXPECT_EQ(2, after.info.finished - before.info.finished);
	EXPECT_EQ(2, after.finished - before.finished);
	EXPECT_EQ(after.paused - before.paused, after.info.preemptions - before.info.preemptions);
	EXPECT_EQ(after.paused - before.paused, after.save.count - before.save.count);
	EXPECT_EQ(after.paused - before.paused, after.info.resumes - before.info.resumes);
	EXPECT_EQ(card_base() ? 0 : after.info.resumes - before.info.resumes,
		  after.restore.count - before.restore.count);
	/* The timer ends slices, and a job may end before it is paused. */
	EXPECT_LT(before.overrun.count, after.overrun.count);
	EXPECT_GE(after.paused - before.paused + after.finished - before.finished,
		  after.overrun.count - before.overrun.count);
	EXPECT_EQ(before.latency.count, after.latency.count);
	EXPECT_EQ(before.info.faults, after.info.faults);
	EXPECT_EQ(before.info.timeouts, after.info.timeouts);
	ASSERT_GOOD(fm_histogram_wrong(&after.gap));
	ASSERT_GOOD(fm_histogram_wrong(&after.save));
	ASSERT_GOOD(fm_histogram_wrong(&after.restore));
	ASSERT_GOOD(fm_histogram_wrong(&after.overrun));
	/* Gaps and the runs before and after them do not overlap. */
	EXPECT_LE(after.gap.sum - before.gap.sum + after.info.busy_ns - before.info.busy_ns, fm_now());
}

FM_TEST(card, contexts_agree_with_their_status)
{
	struct fermata_status st;
	struct fm_histogram h;
	struct fm_ctx c[2];
	int i;

	share_slot(c, 2 * FM_MS);
	for (i = 0; i < 2; i++) {
		fm_status(c[i].fd, &st);
		fm_histogram(c[i].fd, FERMATA_HISTOGRAM_WAIT, 0, &h);
		ASSERT_GOOD(fm_histogram_wrong(&h));
		EXPECT_EQ(st.slices, h.count);
		EXPECT_EQ(st.wait_ns, h.sum);
		fm_histogram(c[i].fd, FERMATA_HISTOGRAM_RUN, 0, &h);
		ASSERT_GOOD(fm_histogram_wrong(&h));
		EXPECT_EQ(st.slices, h.count);
		EXPECT_EQ(st.run_ns, h.sum);
		fm_histogram(c[i].fd, FERMATA_HISTOGRAM_ARRIVAL, 0, &h);
		EXPECT_EQ(1, h.count);
	}
}

/* Each arrival counts, for the slot, too, if the job is latency-critical. */
FM_TEST(card, latency_critical_arrivals)
{
	struct fm_histogram slot[2], own;
	struct fm_expect e;
	struct fm_ctx be, lc;
	int i;

	fm_tenant(&be, FM_LONG_SLICE);
	fm_job_endless(&be);
	fm_tenant_list(&lc, FM_LONG_SLICE, 500, 2, &e);
	fm_param(lc.fd, FERMATA_PARAM_LATENCY_CRITICAL, 1);
	card_speed(be.slot, 1);
	fm_must_start(&be);
	fm_histogram(be.fd, FERMATA_HISTOGRAM_LATENCY, be.slot, &slot[0]);
	for (i = 0; i < 3; i++) {
		card_until_runs(be.slot, be.token);
		ASSERT_GOOD(fm_job_run(&lc, &e));
	}
	fm_histogram(be.fd, FERMATA_HISTOGRAM_LATENCY, be.slot, &slot[1]);
	fm_histogram(lc.fd, FERMATA_HISTOGRAM_ARRIVAL, 0, &own);
	EXPECT_EQ(3, slot[1].count - slot[0].count);
	EXPECT_EQ(3, own.count);
	EXPECT_EQ(own.sum, slot[1].sum - slot[0].sum);
	ASSERT_GOOD(fm_histogram_wrong(&own));
	/* The PAUSE is written when it arrives, so its START is later than the save took. */
	fm_histogram(be.fd, FERMATA_HISTOGRAM_SAVE, be.slot, &slot[0]);
	EXPECT_LT(0, slot[0].count);
	fm_end_endless(&be);
}

/* A refused access is counted at the slot, and no finished job. */
FM_TEST(card, faults_are_no_finishes)
{
	struct fermata_slot_info before, after;
	struct fm_expect e;
	struct fm_ctx c;

	if (card_base())
		SKIP(return, "the base profile refuses no access");
	fm_ctx_new(&c, FM_LIST, 65536);
	fm_slot_info(c.slot, &before);
	fm_job_list(&c, 16, 1, 3, &e);
	ASSERT_EQ(0, fm_reg_write(c.fd, 0x30, c.base + c.len));
	fm_must_start(&c);
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	EXPECT_EQ(FERMATA_STATE_FAILED, fm_state(c.fd));
	fm_slot_info(c.slot, &after);
	EXPECT_EQ(1, after.faults - before.faults);
	EXPECT_EQ(0, after.finished - before.finished);
	EXPECT_EQ(1, after.switches - before.switches);
}

FM_TEST(any, no_more_is_written_than_there_is_room_for)
{
	u64 counts[FERMATA_HISTOGRAM_BUCKETS + 8];
	struct fermata_histogram h = {
		.size = sizeof(h), .kind = FERMATA_HISTOGRAM_GAP, .counts = (uintptr_t)counts
	};
	static const u32 rooms[] = {
		0, 1, 7, FERMATA_HISTOGRAM_BUCKETS, FERMATA_HISTOGRAM_BUCKETS + 8, UINT32_MAX
	};
	int fd = fm_open_dev(0);
	size_t i, j, n;

	ASSERT_LE(0, fd);
	for (i = 0; i < sizeof(rooms) / sizeof(rooms[0]); i++) {
		memset(counts, 0xa5, sizeof(counts));
		h.buckets = rooms[i];
		ASSERT_EQ(0, fm_ioctl(fd, FERMATA_IOC_HISTOGRAM, &h));
		EXPECT_EQ(FERMATA_HISTOGRAM_BUCKETS, h.buckets);
		n = rooms[i] < FERMATA_HISTOGRAM_BUCKETS ? rooms[i] : FERMATA_HISTOGRAM_BUCKETS;
		for (j = 0; j < n; j++)
			EXPECT_NE(0xa5a5a5a5a5a5a5a5, counts[j]);
		for (; j < FERMATA_HISTOGRAM_BUCKETS + 8; j++)
			EXPECT_EQ(0xa5a5a5a5a5a5a5a5, counts[j]);
	}
	/* There is no room, so the array is not accessed. */
	h.buckets = 0;
	h.counts = 0;
	EXPECT_EQ(0, fm_ioctl(fd, FERMATA_IOC_HISTOGRAM, &h));
	h.buckets = 1;
	EXPECT_EQ(-EFAULT, fm_ioctl(fd, FERMATA_IOC_HISTOGRAM, &h));
}

FM_TEST(any, what_is_not_there)
{
	struct fermata_histogram h = { .size = sizeof(h) };
	struct fermata_card_info card;
	int fd = fm_open_dev(0);

	ASSERT_LE(0, fd);
	fm_card_info(&card);
	for (h.kind = 0; h.kind < 40; h.kind++) {
		bool of_slot = h.kind >= FERMATA_HISTOGRAM_GAP && h.kind <= FERMATA_HISTOGRAM_LATENCY;
		bool of_context = h.kind >= FERMATA_HISTOGRAM_WAIT && h.kind <= FERMATA_HISTOGRAM_RUN;

		h.number = 0;
		h.buckets = 0;
		EXPECT_EQ(of_slot ? 0 : of_context ? -ENXIO : -EINVAL,
			  fm_ioctl(fd, FERMATA_IOC_HISTOGRAM, &h));
		h.number = of_slot ? card.slots : 0xffffffff;
		h.buckets = 0;
		EXPECT_EQ(of_context ? -ESRCH : -EINVAL, fm_ioctl(fd, FERMATA_IOC_HISTOGRAM, &h));
	}
}

static int open_as(uid_t user)
{
	int fd;

	if (setresuid(user, 0, 0))
		fm_die("setresuid: %s", strerror(errno));
	fd = fm_open_dev(0);
	if (setresuid(0, 0, 0))
		fm_die("setresuid: %s", strerror(errno));
	return fd;
}

static int ask(int fd, u32 kind, u32 number)
{
	struct fermata_histogram h = { .size = sizeof(h), .kind = kind, .number = number };

	return fm_ioctl(fd, FERMATA_IOC_HISTOGRAM, &h);
}

/* Like its pid, the histograms of a context are for its user and the administrator. */
FM_TEST(any, contexts_of_other_users)
{
	struct fermata_setup setup = {
		.size = sizeof(setup), .afu_id_lo = fm_afu[FM_LIST][0],
		.afu_id_hi = fm_afu[FM_LIST][1]
	};
	int mine, other, status;
	u32 number, own;
	pid_t pid;

	if (!fm_has_window())
		SKIP(return, "users come one at a time");
	other = open_as(USER + 1);
	mine = open_as(USER);
	ASSERT_LE(0, other);
	ASSERT_LE(0, mine);
	fm_must(other, FERMATA_IOC_SETUP, &setup, "SETUP");
	number = setup.context;
	fm_must(mine, FERMATA_IOC_SETUP, &setup, "SETUP");
	own = setup.context;
	/* The administrator. */
	EXPECT_EQ(0, ask(mine, FERMATA_HISTOGRAM_RUN, number));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		if (setresuid(USER, USER, USER))
			_exit(10);
		if (ask(mine, FERMATA_HISTOGRAM_RUN, number) != -EPERM)
			_exit(1);
		/* By number or not, through any file. */
		if (ask(mine, FERMATA_HISTOGRAM_RUN, own) || ask(mine, FERMATA_HISTOGRAM_WAIT, 0) ||
		    ask(other, FERMATA_HISTOGRAM_RUN, own))
			_exit(2);
		/* A holder of the descriptor has the context. */
		if (ask(other, FERMATA_HISTOGRAM_ARRIVAL, 0))
			_exit(3);
		if (ask(mine, FERMATA_HISTOGRAM_RUN, number + 0x10000) != -ESRCH)
			_exit(4);
		/* Histograms of a slot, which are of all users. */
		if (ask(mine, FERMATA_HISTOGRAM_GAP, 0) != -EPERM)
			_exit(5);
		_exit(0);
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
	close(other);
	EXPECT_EQ(-ESRCH, ask(mine, FERMATA_HISTOGRAM_RUN, number));
}

TEST_HARNESS_MAIN
