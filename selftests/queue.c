// SPDX-License-Identifier: GPL-2.0
/*
 * Job queues in user memory: posting needs no call, a job with an empty queue leaves the slot, a
 * doorbell makes it return, and queue jobs are preempted, held and preferred like other jobs.
 */
#include "kselftest_harness.h"
#include <poll.h>
#include "lib/sched.h"
#include "lib/calls.h"

#define ENTRIES	16
#define DATA	(1024 * 1024)

FM_FIXTURE_CARD(queue);

static bool no_queues(void)
{
	return fm_slot_of(FM_QUEUE) < 0;
}

/* A queue engine of the base profile stays on its slot, and polls its queue. */
static bool never_leaves(void)
{
	return no_queues() || card_base();
}

/* --- jobs that can be checked ------------------------------------------------------ */

#define PIECE	1024U		/* bytes that a job works on */
#define PLACES	(DATA / PIECE / 2)

static u8 *from(struct fm_queue *q, u64 n)
{
	return q->c.mem + q->data + n % PLACES * PIECE;
}

static u8 *to(struct fm_queue *q, u64 n)
{
	return q->c.mem + q->data + (PLACES + n % PLACES) * PIECE;
}

static u64 on_card(struct fm_queue *q, const u8 *p)
{
	return q->c.base + (p - q->c.mem);
}

static u32 op_of(u64 n)
{
	return FERMATA_QUEUE_OP_COPY + n % 4;
}

/* Posts the job with number q->tail, and its data. */
static void post_next(struct fm_queue *q)
{
	u64 n = q->tail;

	fm_fill(from(q, n), PIECE, n);
	memset(to(q, n), 0, PIECE);
	fm_queue_post(q, op_of(n), on_card(q, from(q, n)), on_card(q, to(q, n)), PIECE, n * 3);
}

/* NULL, or what is wrong with the next job to be reaped. */
static const char *reap_next(struct fm_queue *q)
{
	u64 n = q->reaped, filled[PIECE / 8];
	struct fermata_queue_status status = fm_queue_reap(q);
	u8 digest[32];
	u32 i;

	if (status.error || status.tag != n)
		return "a status";
	switch (op_of(n)) {
	case FERMATA_QUEUE_OP_COPY:
		return memcmp(from(q, n), to(q, n), PIECE) ? "a copy" : NULL;
	case FERMATA_QUEUE_OP_FILL:
		for (i = 0; i < PIECE / 8; i++)
			filled[i] = n * 3;
		return memcmp(filled, to(q, n), PIECE) ? "a fill" : NULL;
	case FERMATA_QUEUE_OP_SHA256:
		fm_sha256(from(q, n), PIECE, digest);
		return memcmp(digest, to(q, n), sizeof(digest)) ? "a digest" : NULL;
	default:
		return status.result != fm_crc32c(n * 3, from(q, n), PIECE) ? "a CRC" : NULL;
	}
}

/* Posts jobs as long as there is room, and checks them. */
static const char *run_jobs(struct fm_queue *q, u64 jobs)
{
	u64 end = q->tail + jobs;
	const char *wrong = NULL;

	while (!wrong && q->reaped < end) {
		while (q->tail < end && fm_queue_has_room(q))
			post_next(q);
		fm_queue_tell(q);
		wrong = reap_next(q);
	}
	return wrong;
}

static void until_empty(struct fm_queue *q)
{
	fm_wait(q->c.fd, FERMATA_EVENT_EMPTY);
}

/* Posts a job that does not end until the card is fast: a second of work. */
static void post_long(struct fm_queue *q)
{
	u8 *data = q->c.mem + q->data;

	fm_queue_post(q, FERMATA_QUEUE_OP_CRC32C, on_card(q, data), 0, DATA, 0);
}

/* --- tests -------------------------------------------------------------------------- */

FM_TEST(queue, jobs_are_done)
{
	struct fm_queue q;

	if (no_queues())
		SKIP(return, "no slot with a queue engine");
	fm_queue_new(&q, ENTRIES, DATA, 0, 0);
	ASSERT_GOOD(run_jobs(&q, 300));
	EXPECT_EQ(300, fm_queue_counted(&q, 300));
	fm_queue_post(&q, FERMATA_QUEUE_OP_END, 0, 0, 0, 0);
	fm_queue_tell(&q);
	fm_wait(q.c.fd, FERMATA_EVENT_DONE);
	EXPECT_EQ(FERMATA_STATE_DONE, fm_state(q.c.fd));
	EXPECT_EQ(-ENOENT, fm_ring(q.c.fd));
}

FM_TEST(queue, empty_leaves_the_slot)
{
	struct fermata_status before, after;
	struct pollfd p = { .events = POLLOUT };
	struct fm_queue q;
	u64 from;

	if (never_leaves())
		SKIP(return, "no engine leaves by itself");
	fm_queue_new(&q, ENTRIES, DATA, 0, 0);
	until_empty(&q);
	p.fd = q.c.fd;
	EXPECT_EQ(1, poll(&p, 1, 0));
	EXPECT_EQ(POLLOUT, p.revents);
	fm_status(q.c.fd, &before);
	EXPECT_EQ(FERMATA_STATE_EMPTY, before.state);
	EXPECT_EQ(FERMATA_NO_SLOT, before.slot);
	EXPECT_EQ(-EBUSY, fm_start(q.c.fd));
	from = card_history_end();
	fm_sleep_us(50000);
	EXPECT_EQ(from, card_history_end());
	fm_status(q.c.fd, &after);
	EXPECT_EQ(before.run_ns, after.run_ns);
	ASSERT_GOOD(run_jobs(&q, 5));
	EXPECT_LE(1, q.rings);
	until_empty(&q);
	/* A needless doorbell: the engine finds no job, and leaves. */
	fm_status(q.c.fd, &before);
	EXPECT_EQ(0, fm_ring(q.c.fd));
	until_empty(&q);
	fm_status(q.c.fd, &after);
	EXPECT_EQ(before.slices + 1, after.slices);
}

/* Jobs one at a time, when the engine may be about to leave; reap dies if a job is never done. */
FM_TEST(queue, no_doorbell_is_lost)
{
	u32 jobs = fm_is_slow() ? 300 : 3000, i;
	struct fm_queue q;

	if (no_queues())
		SKIP(return, "no slot with a queue engine");
	fm_queue_new(&q, ENTRIES, DATA, 0, 0);
	for (i = 0; i < jobs; i++) {
		fm_sleep_us(fm_splitmix(i) % 150);
		post_next(&q);
		fm_queue_tell(&q);
		ASSERT_GOOD(reap_next(&q));
	}
	TH_LOG("%llu of %u jobs rang", (unsigned long long)q.rings, jobs);
}

/*
 * The engine reports its last completion, and then leaves. The driver may read both at once; the
 * interrupt that follows is not spurious.
 */
FM_TEST(queue, leaving_is_no_storm)
{
	u64 storms, spurious;
	struct fm_queue q;
	u32 i;

	if (never_leaves())
		SKIP(return, "no engine leaves by itself");
	fm_queue_new(&q, ENTRIES, DATA, 1, 0);
	until_empty(&q);
	storms = fm_sysfs_number(q.c.slot, "storms");
	spurious = fm_sysfs_number(q.c.slot, "spurious_interrupts");
	for (i = 0; i < 300; i++) {
		post_next(&q);
		fm_queue_tell(&q);
		ASSERT_GOOD(reap_next(&q));
		until_empty(&q);
	}
	EXPECT_EQ(storms, fm_sysfs_number(q.c.slot, "storms"));
	EXPECT_GT(spurious + 30, fm_sysfs_number(q.c.slot, "spurious_interrupts"));
}

/* Two tenants' queues, and the jobs that their engines have taken, survive each other's slices. */
FM_TEST(queue, preempted)
{
	struct fermata_status st;
	struct fm_queue q[2];
	int i, round;

	if (no_queues())
		SKIP(return, "no slot with a queue engine");
	for (i = 0; i < 2; i++) {
		fm_queue_make(&q[i], ENTRIES, DATA, 0, 0);
		ASSERT_EQ(0, fm_param_set(q[i].c.fd, FERMATA_PARAM_TIMESLICE, FM_MS));
	}
	card_speed(q[0].c.slot, 1);
	for (i = 0; i < 2; i++) {
		post_long(&q[i]);
		while (fm_queue_has_room(&q[i]))
			post_next(&q[i]);
		ASSERT_EQ(0, fm_start(q[i].c.fd));
	}
	for (i = 0; i < 2; i++)
		fm_until_preempted(q[i].c.fd, 3);
	card_speed(q[0].c.slot, 0);
	for (i = 0; i < 2; i++) {
		EXPECT_EQ(0, fm_queue_reap(&q[i]).error);
		while (q[i].reaped < q[i].tail)
			ASSERT_GOOD(reap_next(&q[i]));
	}
	card_speed(q[0].c.slot, 1);
	for (i = 0; i < 2; i++) {
		while (fm_queue_has_room(&q[i]))
			post_next(&q[i]);
		fm_queue_tell(&q[i]);
	}
	for (round = 0; round < 60; round++) {
		for (i = 0; i < 2; i++) {
			ASSERT_GOOD(reap_next(&q[i]));
			post_next(&q[i]);
			fm_queue_tell(&q[i]);
		}
	}
	card_speed(q[0].c.slot, 0);
	for (i = 0; i < 2; i++) {
		while (q[i].reaped < q[i].tail)
			ASSERT_GOOD(reap_next(&q[i]));
		fm_status(q[i].c.fd, &st);
		TH_LOG("queue %d: %d preemptions", i, (int)st.preemptions);
	}
}

FM_TEST(queue, held)
{
	struct fm_queue q;

	if (no_queues())
		SKIP(return, "no slot with a queue engine");
	fm_queue_new(&q, ENTRIES, DATA, 0, 0);
	card_speed(q.c.slot, 1);
	post_long(&q);
	while (fm_queue_has_room(&q))
		post_next(&q);
	fm_queue_tell(&q);
	card_until_runs(q.c.slot, q.c.token);
	fm_hold(&q.c);
	/* A doorbell does not end a hold. */
	EXPECT_EQ(0, fm_ring(q.c.fd));
	EXPECT_EQ(FERMATA_STATE_HELD, fm_state(q.c.fd));
	card_speed(q.c.slot, 0);
	ASSERT_EQ(0, fm_resume(q.c.fd));
	EXPECT_EQ(0, fm_queue_reap(&q).error);
	while (q.reaped < q.tail)
		ASSERT_GOOD(reap_next(&q));
	if (card_base())
		return;
	until_empty(&q);
	fm_hold(&q.c);
	post_next(&q);
	fm_queue_tell(&q);
	EXPECT_LT(0, q.rings);
	EXPECT_EQ(FERMATA_STATE_HELD, fm_state(q.c.fd));
	ASSERT_EQ(0, fm_resume(q.c.fd));
	ASSERT_GOOD(reap_next(&q));
}

/* Completions are reported in batches while the engine continues to work. */
FM_TEST(queue, completions_are_told)
{
	struct pollfd p = { .events = POLLRDBAND };
	int i, efd;
	struct fm_queue q;
	u64 count, emptied;

	if (never_leaves())
		SKIP(return, "no engine tells");
	fm_queue_new(&q, ENTRIES, DATA, 4, 1000000);
	until_empty(&q);
	/* When it left, the engine may have reported complete jobs. */
	fm_wait_until(q.c.fd, FERMATA_EVENT_COMPLETED, 0, NULL);
	efd = fm_eventfd_of(q.c.fd, FERMATA_EVENT_COMPLETED);
	p.fd = q.c.fd;
	emptied = card_counter(q.c.slot, "emptied");
	EXPECT_EQ(0, poll(&p, 1, 0));
	EXPECT_EQ(-ETIMEDOUT, fm_wait_until(q.c.fd, FERMATA_EVENT_COMPLETED, 0, NULL));
	card_speed(q.c.slot, 1);
	for (i = 0; i < 4; i++)
		post_next(&q);
	/* This job keeps the engine on its slot. */
	post_long(&q);
	fm_queue_tell(&q);
	fm_wait(q.c.fd, FERMATA_EVENT_COMPLETED);
	EXPECT_EQ(FERMATA_STATE_RUNNING, fm_state(q.c.fd));
	for (i = 0; i < 4; i++)
		EXPECT_TRUE(fm_queue_is_complete(&q, i));
	EXPECT_EQ(8, read(efd, &count, sizeof(count)));
	EXPECT_LE(1, count);
	/* It has not left. */
	EXPECT_EQ(emptied, card_counter(q.c.slot, "emptied"));
	card_speed(q.c.slot, 0);
	until_empty(&q);
	EXPECT_EQ(1, poll(&p, 1, 0));
	EXPECT_EQ(POLLRDBAND, p.revents);
	fm_wait(q.c.fd, FERMATA_EVENT_COMPLETED);
	EXPECT_EQ(-ETIMEDOUT, fm_wait_until(q.c.fd, FERMATA_EVENT_COMPLETED, 0, NULL));
	close(efd);
}

/* A few completions are reported when the first of them has waited long enough. */
FM_TEST(queue, completions_are_told_in_time)
{
	struct fm_queue q;

	if (never_leaves())
		SKIP(return, "no engine tells");
	fm_queue_new(&q, ENTRIES, DATA, 1000, 2000);
	until_empty(&q);
	fm_wait_until(q.c.fd, FERMATA_EVENT_COMPLETED, 0, NULL);
	card_speed(q.c.slot, 1);
	post_next(&q);
	post_long(&q);
	fm_queue_tell(&q);
	fm_wait(q.c.fd, FERMATA_EVENT_COMPLETED);
	EXPECT_TRUE(fm_queue_is_complete(&q, 0));
	EXPECT_FALSE(fm_queue_is_complete(&q, 1));
}

/* How many interrupts the driver's handler was called for, and how many vectors there are. */
static u64 handled_irqs(int *vectors)
{
	FILE *file = fopen("/proc/interrupts", "r");
	char line[1024], *at, *end;
	u64 sum = 0, n;

	if (!file)
		fm_die("/proc/interrupts: %s", strerror(errno));
	*vectors = 0;
	while (fgets(line, sizeof(line), file)) {
		at = strchr(line, ':');
		if (!at || !strstr(line, "fermata"))
			continue;
		++*vectors;
		for (at++; n = strtoull(at, &end, 10), end != at; at = end)
			sum += n;
	}
	fclose(file);
	return sum;
}

/* Whether the driver polls the slots of a card that could interrupt (pci=nomsi). */
static bool is_polled(void)
{
	int vectors;

	handled_irqs(&vectors);
	return !vectors;
}

/* The counter of completion events reads all-ones: another read of the status shows a live card. */
FM_TEST(queue, an_event_counter_that_reads_ones)
{
	struct fm_queue q;
	u64 reads;
	int i;

	if (never_leaves() || is_polled())
		SKIP(return, "no engine tells, or slots are polled");
	fm_queue_new(&q, ENTRIES, DATA, 1, 0);
	until_empty(&q);
	card_speed(q.c.slot, 1);
	card_fault(q.c.slot, "ones=1");
	reads = card_counter(q.c.slot, "reads_status");
	for (i = 0; i < 4; i++)
		post_next(&q);
	post_long(&q);
	fm_queue_tell(&q);
	fm_sleep_us(50000);
	/* A few reads for each event, and for each poll of the slot. */
	EXPECT_GE(reads + 100, card_counter(q.c.slot, "reads_status"));
	EXPECT_EQ(FERMATA_STATE_RUNNING, fm_state(q.c.fd));
	card_fault(q.c.slot, "ones=0");
	card_speed(q.c.slot, 0);
	until_empty(&q);
	for (i = 0; i < 4; i++)
		EXPECT_TRUE(fm_queue_is_complete(&q, i));
}

#define RATE	100	/* completion interrupts in a second, the lowest that can be set */
#define AT_ONCE	32	/* after a quiet time */

/* Makes a ring that is always full: the engine goes round, and reports each job. */
static void make_endless(struct fm_queue *q)
{
	u32 i;

	fm_queue_make(q, ENTRIES, DATA, 1, 0);
	for (i = 0; i < ENTRIES; i++) {
		q->jobs[i].op = FERMATA_QUEUE_OP_FILL;
		q->jobs[i].dst = on_card(q, q->c.mem + q->data);
		q->jobs[i].length = 64;
		q->jobs[i].header = FERMATA_QUEUE_VALID;
	}
}

/*
 * A ring is always full, with an event for each job: the card reports all, and the driver reads
 * them as often as the rate allows, and every 10 ms. No program misses completions, and PAUSE still
 * works.
 */
FM_TEST(queue, defect_14_completion_interrupts_are_bounded)
{
	u64 begin, reads, events, looks, allowed, end = fm_now() + FM_GUARD_MS * FM_MS;
	struct fm_queue ring, q;
	u32 i;

	if (never_leaves() || is_polled())
		SKIP(return, "no engine tells, or slots are polled");
	if (!fm_module_known())
		SKIP(return, "FERMATA_MODULE does not name the module");
	fm_module_reload("completion_rate=100");
	make_endless(&ring);
	fm_param(ring.c.fd, FERMATA_PARAM_TIMESLICE, FM_LONG_SLICE);
	begin = fm_now();
	reads = card_counter(ring.c.slot, "reads_status");
	events = card_counter(ring.c.slot, "events");
	ASSERT_EQ(0, fm_start(ring.c.fd));
	/* Until handling each event would have exceeded the limit by far. */
	do {
		ASSERT_GT(end, fm_now());
		fm_sleep_us(100000);
		looks = card_counter(ring.c.slot, "reads_status") - reads;
		allowed = AT_ONCE + (RATE + 100) * (fm_now() - begin) / (1000 * FM_MS) + 8;
	} while (fm_sysfs_number(ring.c.slot, "throttled_interrupts") < 50 ||
		 card_counter(ring.c.slot, "events") - events < 4 * allowed);
	TH_LOG("%llu looks, at most %llu are allowed", (unsigned long long)looks,
	       (unsigned long long)allowed);
	EXPECT_LE(looks, allowed);
	/* A PAUSE works even while the vector is off. */
	for (i = 0; i < 20; i++) {
		fm_hold(&ring.c);
		ASSERT_EQ(0, fm_resume(ring.c.fd));
		card_until_runs(ring.c.slot, ring.c.token);
	}
	fm_ctx_close(&ring.c);
	/* Every job is reported, even jobs that complete while the vector is off. */
	fm_queue_new(&q, 256, DATA, 1, 0);
	for (i = 0; i < 200; i++)
		post_next(&q);
	post_long(&q);
	card_speed(q.c.slot, 20);
	fm_queue_tell(&q);
	while (__atomic_load_n(&q.control->completed, __ATOMIC_ACQUIRE) < 200)
		fm_wait(q.c.fd, FERMATA_EVENT_COMPLETED);
	card_speed(q.c.slot, 0);
	fm_ctx_close(&q.c);
	fm_module_reload(getenv("FERMATA_MODULE_ARGS"));
}

/*
 * Two such rings take turns: the card knows in advance when each is to be saved, and the driver
 * still switches completion interrupts off until then.
 */
FM_TEST(queue, completion_interrupts_are_bounded_in_turns)
{
	u64 begin, count, events, seen, allowed, end = fm_now() + FM_GUARD_MS * FM_MS;
	struct fermata_status s;
	struct fm_queue rings[2];
	u64 slices = 0, before = 0;
	int i, vectors;

	if (never_leaves() || is_polled())
		SKIP(return, "no engine tells, or slots are polled");
	if (!fm_module_known())
		SKIP(return, "FERMATA_MODULE does not name the module");
	fm_module_reload("completion_rate=100");
	for (i = 0; i < 2; i++) {
		make_endless(&rings[i]);
		/* Long turns, so that many events occur in each, even on a slow machine. */
		fm_param(rings[i].c.fd, FERMATA_PARAM_TIMESLICE, 10 * FM_MS);
		ASSERT_EQ(0, fm_start(rings[i].c.fd));
	}
	for (i = 0; i < 2; i++) {
		fm_status(rings[i].c.fd, &s);
		before += s.slices;
	}
	begin = fm_now();
	count = handled_irqs(&vectors);
	events = card_counter(rings[0].c.slot, "events");
	/* Three interrupts for each turn: its end, and those before the vector is off again. */
	do {
		ASSERT_GT(end, fm_now());
		fm_sleep_us(100000);
		seen = handled_irqs(&vectors) - count;
		for (slices = 0, i = 0; i < 2; i++) {
			fm_status(rings[i].c.fd, &s);
			slices += s.slices;
		}
		allowed = AT_ONCE + 3 * (slices - before) +
			  (RATE + 100) * (fm_now() - begin) / (1000 * FM_MS) + 8;
	} while (fm_now() < begin + 2000 * FM_MS ||
		 card_counter(rings[0].c.slot, "events") - events < 2 * allowed);
	TH_LOG("%llu interrupts, at most %llu are allowed in %llu turns",
	       (unsigned long long)seen, (unsigned long long)allowed,
	       (unsigned long long)(slices - before));
	EXPECT_LE(seen, allowed);
	for (i = 0; i < 2; i++)
		fm_ctx_close(&rings[i].c);
	fm_module_reload(getenv("FERMATA_MODULE_ARGS"));
}

/* Whether one vector serves all slots of a card that has interrupts. */
static bool shares_vector(void)
{
	int vectors;

	handled_irqs(&vectors);
	return vectors == 1;
}

/* Starts a ring that is always full, on a module that allows it few interrupts. */
static void start_limited(struct fm_queue *ring)
{
	fm_module_reload("completion_rate=100");
	make_endless(ring);
	fm_param(ring->c.fd, FERMATA_PARAM_TIMESLICE, FM_LONG_SLICE);
	fm_must_start(&ring->c);
}

/* A neighbour on the vector of a queue whose job is saved again and again does not lift the limit. */
FM_TEST(queue, saves_of_a_neighbour_keep_the_limit)
{
	u64 begin, count, events, saves, seen, allowed, end = fm_now() + FM_GUARD_MS * FM_MS;
	struct fm_queue ring;
	struct fm_ctx c;
	int vectors;

	if (never_leaves() || !shares_vector())
		SKIP(return, "no engine tells, or each slot has a vector");
	if (!fm_module_known())
		SKIP(return, "FERMATA_MODULE does not name the module");
	start_limited(&ring);
	fm_tenant(&c, FM_LONG_SLICE);
	fm_job_endless(&c);
	card_set(c.slot, "save_us=20000");
	fm_must_start(&c);
	begin = fm_now();
	count = handled_irqs(&vectors);
	events = card_counter(ring.c.slot, "events");
	/* A save and a restore may each raise an interrupt. */
	do {
		ASSERT_GT(end, fm_now());
		fm_preempt(c.fd, 0);
		fm_sleep_us(1000);
		seen = handled_irqs(&vectors) - count;
		saves = fm_preemptions(c.fd);
		allowed = AT_ONCE + 2 * saves +
			  (RATE + 100) * (fm_now() - begin) / (1000 * FM_MS) + 8;
	} while (fm_now() < begin + 2000 * FM_MS || saves < 20 ||
		 card_counter(ring.c.slot, "events") - events < 2 * allowed);
	TH_LOG("%llu interrupts beside %llu saves, at most %llu are allowed",
	       (unsigned long long)seen, (unsigned long long)saves, (unsigned long long)allowed);
	EXPECT_LE(seen, allowed);
	card_set(c.slot, "save_us=0");
	fm_ctx_close(&c);
	fm_ctx_close(&ring.c);
	fm_module_reload(getenv("FERMATA_MODULE_ARGS"));
}

/*
 * The limit of a queue's interrupts does not delay the ends of a neighbour's jobs, for which the
 * neighbour would pay: while the vector is off, for 10 ms each time, jobs begin and end.
 */
FM_TEST(queue, a_neighbour_does_not_pay_for_the_limit)
{
	u64 before, after, all = 0, within = 0, end = fm_now() + FM_GUARD_MS * FM_MS;
	struct fm_expect e;
	struct fm_queue ring;
	struct fm_ctx c;

	if (never_leaves() || !shares_vector())
		SKIP(return, "no engine tells, or each slot has a vector");
	if (!fm_module_known())
		SKIP(return, "FERMATA_MODULE does not name the module");
	start_limited(&ring);
	fm_tenant_list(&c, FM_LONG_SLICE, 20, 1, &e);
	/* The bucket is empty: the vector is off, but for one interrupt in 10 ms. */
	while (fm_sysfs_number(ring.c.slot, "throttled_interrupts") < 8)
		ASSERT_GT(end, fm_now());
	after = fm_sysfs_number(ring.c.slot, "throttled_interrupts");
	while (all < 100) {
		ASSERT_GT(end, fm_now());
		before = after;
		ASSERT_EQ(0, fm_start(c.fd));
		fm_wait(c.fd, FERMATA_EVENT_DONE);
		after = fm_sysfs_number(ring.c.slot, "throttled_interrupts");
		within += before == after;
		all++;
	}
	TH_LOG("%llu of %llu jobs ended while the vector was off", (unsigned long long)within,
	       (unsigned long long)all);
	EXPECT_LE(10, within);
	fm_ctx_close(&c);
	fm_ctx_close(&ring.c);
	fm_module_reload(getenv("FERMATA_MODULE_ARGS"));
}

/* Work that an urgent tenant posts preempts another tenant's queue, which is saved. */
FM_TEST(queue, urgent_work_first)
{
	struct fm_queue be, lc;
	int i;

	if (never_leaves())
		SKIP(return, "no engine leaves by itself");
	fm_queue_make(&lc, ENTRIES, DATA, 0, 0);
	fm_param(lc.c.fd, FERMATA_PARAM_LATENCY_CRITICAL, 1);
	ASSERT_EQ(0, fm_start(lc.c.fd));
	until_empty(&lc);
	fm_queue_make(&be, ENTRIES, DATA, 0, 0);
	fm_param(be.c.fd, FERMATA_PARAM_TIMESLICE, FM_LONG_SLICE);
	card_speed(be.c.slot, 1);
	for (i = 0; i < 10; i++)
		post_long(&be);
	fm_must_start(&be.c);
	card_until_runs(be.c.slot, be.c.token);
	post_next(&lc);
	fm_queue_tell(&lc);
	ASSERT_GOOD(reap_next(&lc));
	EXPECT_FALSE(fm_queue_is_complete(&be, 9));
	/* On a relay card the urgent job can be complete before the driver reads the record of the save. */
	fm_until_preempted(be.c.fd, 1);
	card_speed(be.c.slot, 0);
	for (i = 0; i < 10; i++)
		EXPECT_EQ(0, fm_queue_reap(&be).error);
}

/* A hint announces the work, and the slot is vacant when the doorbell rings. */
FM_TEST(queue, hint_before_a_doorbell)
{
	struct fermata_status st;
	struct fm_queue q;

	if (never_leaves())
		SKIP(return, "no engine leaves by itself");
	fm_queue_make(&q, ENTRIES, DATA, 0, 0);
	fm_param(q.c.fd, FERMATA_PARAM_LATENCY_CRITICAL, 1);
	ASSERT_EQ(0, fm_start(q.c.fd));
	until_empty(&q);
	ASSERT_EQ(0, fm_hint(q.c.fd, fm_now() + 9000 * FM_MS));
	ASSERT_GOOD(run_jobs(&q, 1));
	fm_status(q.c.fd, &st);
	EXPECT_EQ(1, st.hints_used);
	EXPECT_EQ(0, st.hints_wasted);
}

/* --- memory that violates the format ------------------------------------------------------ */

static void scribble(struct fm_queue *q, u64 seed)
{
	u64 *words = (u64 *)q->c.mem, n;

	/* All addresses are within the window, so most of these words make a job. */
	for (n = 0; n < q->data / 8; n++)
		words[n] = fm_splitmix(seed + n) & (n % 3 ? ~0ULL : 0xffff0007);
}

/* Bad contents of a queue affect only its owner. */
FM_TEST(queue, hostile_memory)
{
	struct fermata_status st;
	struct fm_queue bad, good;
	u32 round;

	if (no_queues())
		SKIP(return, "no slot with a queue engine");
	fm_queue_new(&good, ENTRIES, DATA, 0, 0);
	for (round = 0; round < 20; round++) {
		fm_queue_make(&bad, round % 5 ? ENTRIES : 2, DATA, round % 3, round);
		scribble(&bad, round * 1000003);
		ASSERT_EQ(0, fm_start(bad.c.fd));
		ASSERT_GOOD(run_jobs(&good, 20));
		scribble(&bad, round);
		fm_ring(bad.c.fd);
		ASSERT_GOOD(run_jobs(&good, 20));
		fm_status(bad.c.fd, &st);
		EXPECT_TRUE(st.state != FERMATA_STATE_FAILED || st.error == EFAULT);
		fm_ctx_close(&bad.c);
	}
	ASSERT_GOOD(run_jobs(&good, 20));
}

FM_TEST(queue, bad_input)
{
	struct fm_queue q;

	if (no_queues())
		SKIP(return, "no slot with a queue engine");
	fm_queue_make(&q, ENTRIES, DATA, 0, 0);
	EXPECT_EQ(-ENOENT, fm_ring(q.c.fd));
	/* Its progress would be unknown; the driver does not know queues of a base card. */
	if (!card_base())
		EXPECT_EQ(-EINVAL, fm_start_replayable(q.c.fd));
	fm_ctx_close(&q.c);
	/* Not a power of two. */
	fm_queue_make(&q, 3, DATA, 0, 0);
	ASSERT_EQ(0, fm_start(q.c.fd));
	fm_wait(q.c.fd, FERMATA_EVENT_DONE);
}

FM_TEST(queue, dies_in_every_state)
{
	struct fm_queue q, other;
	int state;

	if (never_leaves())
		SKIP(return, "no engine leaves by itself");
	fm_queue_new(&other, ENTRIES, DATA, 0, 0);
	for (state = 0; state < 4; state++) {
		fm_queue_new(&q, ENTRIES, DATA, 1, 0);
		until_empty(&q);
		if (state) {
			card_speed(q.c.slot, 1);
			post_long(&q);
			fm_queue_tell(&q);
		}
		if (state > 1)
			card_until_runs(q.c.slot, q.c.token);
		if (state > 2)
			fm_must_hold(&q.c);
		fm_ctx_close(&q.c);
		card_speed(other.c.slot, 0);
		ASSERT_GOOD(run_jobs(&other, 20));
	}
}

/* --- snapshots that are moved ------------------------------------------------------------ */

static void *moved(const struct fm_queue *to, const struct fm_queue *from, const void *p)
{
	return to->c.mem + ((const u8 *)p - from->c.mem);
}

/* Continues the held queue in another context, and closes the first: 0 or an errno. */
static int move(struct fm_queue *there, struct fm_queue *here)
{
	struct fm_parcel parcel;
	int rc;

	fm_pack(&here->c, &parcel);
	*there = *here;
	fm_twin(&there->c, &here->c, -1);
	memcpy(there->c.mem, here->c.mem, here->c.len);
	there->control = moved(there, here, here->control);
	there->jobs = moved(there, here, here->jobs);
	there->statuses = moved(there, here, here->statuses);
	fm_ctx_close(&here->c);
	rc = fm_unpack(&there->c, &parcel, 0);
	free(parcel.state);
	return rc;
}

/* With jobs that the engine has taken and others that wait; none is lost or done twice. */
FM_TEST(queue, point_07_travels_with_its_jobs)
{
	struct fermata_queue_status status;
	struct fm_queue here, there;
	u32 crc;

	if (no_queues())
		SKIP(return, "no slot with a queue engine");
	fm_queue_make(&here, ENTRIES, DATA, 0, 0);
	fm_fill(here.c.mem + here.data, DATA, 1);
	crc = fm_crc32c(0, here.c.mem + here.data, DATA);
	card_speed(here.c.slot, 1);
	while (fm_queue_has_room(&here))
		post_long(&here);
	ASSERT_EQ(0, fm_start(here.c.fd));
	/* Wait until the engine has taken jobs. */
	while (!__atomic_load_n(&here.control->head, __ATOMIC_ACQUIRE))
		fm_sleep_us(1000);
	fm_hold(&here.c);
	EXPECT_LT(here.control->completed, here.tail);
	ASSERT_EQ(0, move(&there, &here));
	card_speed(there.c.slot, 0);
	while (there.reaped < there.tail) {
		status = fm_queue_reap(&there);
		EXPECT_EQ(there.reaped - 1, status.tag);
		EXPECT_EQ(crc, status.result);
	}
	EXPECT_EQ(there.tail, fm_queue_counted(&there, there.tail));
	ASSERT_GOOD(run_jobs(&there, 100));
	fm_queue_post(&there, FERMATA_QUEUE_OP_END, 0, 0, 0, 0);
	fm_queue_tell(&there);
	fm_wait(there.c.fd, FERMATA_EVENT_DONE);
}

/* After the move the engine checks its queue, and leaves again. */
FM_TEST(queue, point_07_travels_while_it_is_empty)
{
	struct fm_queue here, there;

	if (never_leaves())
		SKIP(return, "no engine leaves by itself");
	fm_queue_new(&here, ENTRIES, DATA, 0, 0);
	ASSERT_GOOD(run_jobs(&here, 5));
	until_empty(&here);
	fm_hold(&here.c);
	ASSERT_EQ(0, move(&there, &here));
	until_empty(&there);
	ASSERT_GOOD(run_jobs(&there, 20));
	EXPECT_LE(1, there.rings);
}

TEST_HARNESS_MAIN
