// SPDX-License-Identifier: GPL-2.0
/* Tracepoints (docs/tracing.md): each fires, with the right fields, in the order of events. */
#include "kselftest_harness.h"
#include "lib/sched.h"

FM_FIXTURE_CARD(trace);

#define MOST	24

/* Expected events, with the numbers of the contexts in them. */
struct wanted {
	char text[MOST][160];
	const char *list[MOST];
	int n;
};

__attribute__((format(printf, 2, 3)))
static void want(struct wanted *w, const char *fmt, ...)
{
	va_list ap;

	if (w->n == MOST)
		fm_die("too many events");
	va_start(ap, fmt);
	vsnprintf(w->text[w->n], sizeof(w->text[0]), fmt, ap);
	va_end(ap);
	w->list[w->n] = w->text[w->n];
	w->n++;
}

#define ASSERT_RECORDED(w)	ASSERT_GOOD(fm_trace_wrong((w)->list, (w)->n))

/* Begins to record, or skips the test. */
#define RECORD()							\
({									\
	const char *why_ = fm_trace_open();				\
									\
	if (why_)							\
		SKIP(return, "%s", why_);				\
})

FM_TEST(trace, life_of_a_job)
{
	struct wanted w = { .n = 0 };
	struct fm_expect e;
	struct fm_ctx c;
	u32 ctx;

	RECORD();
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	ctx = fm_number(c.fd);
	fm_job_list(&c, 64, 2000, 1, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
	fm_ctx_close(&c);
	want(&w, "context_open slot=-1 ctx=0 pid=%d", getpid());
	want(&w, "context_setup slot=-1 ctx=%u pid=%d slots=0x%x", ctx, getpid(), 1U << c.slot);
	want(&w, "registers slot=-1 ctx=%u pid=%d", ctx, getpid());
	want(&w, "job_start slot=-1 ctx=%u pid=%d job=1 replayable=0 saved=0 held=0", ctx, getpid());
	want(&w, "arrival ctx=%u urgency=best-effort cause=start", ctx);
	want(&w, "load slot=%d ctx=%u pid=%d cleared=0 length=65536", c.slot, ctx, getpid());
	want(&w, "start slot=%d ctx=%u pid=%d resume=0 why=turn", c.slot, ctx, getpid());
	/* A relay reports by a record. */
	if (!card_relay())
		want(&w, "status slot=%d ctx=%u phase=finish restore=0", c.slot, ctx);
	/* A relay has a clock of its own, whose times only a record has. */
	if (card_relay())
		want(&w, "stop slot=%d ctx=%u why=finished", c.slot, ctx);
	else
		want(&w, "stop slot=%d ctx=%u why=finished began=0 worked=0 stopped=0 left=0", c.slot, ctx);
	if (card_base())
		want(&w, "reset slot=%d hold=1", c.slot);
	want(&w, "job_end slot=-1 ctx=%u pid=%d job=1 result=done", ctx, getpid());
	want(&w, "context_close ctx=%u pid=%d", ctx, getpid());
	want(&w, "context_released ctx=%u pid=%d", ctx, getpid());
	ASSERT_RECORDED(&w);
	/* A relay closes the window by itself. */
	if (!card_relay()) {
		w.n = 0;
		want(&w, "load slot=%d ctx=%u", c.slot, ctx);
		want(&w, "unload slot=%d ctx=%u", c.slot, ctx);
		want(&w, "context_released ctx=%u", ctx);
		ASSERT_RECORDED(&w);
	}
	if (card_base())
		return;
	/*
	 * The event is recorded at the end of the handler, perhaps after the program was woken. On
	 * a busy host a poll of the driver may have been first; then the interrupt is spurious.
	 */
	w.n = 0;
	want(&w, "stop slot=%d ctx=%u", c.slot, ctx);
	want(&w, "interrupt slots=0x%x", 1U << c.slot);
	fm_trace_until(w.list, w.n);
}

/* Two jobs take turns: which job leaves, for which context, and which one returns. */
FM_TEST(trace, slices)
{
	struct wanted w = { .n = 0 };
	struct fm_ctx c[2];
	u32 ctx[2];
	int i, slot;

	RECORD();
	for (i = 0; i < 2; i++) {
		fm_tenant(&c[i], 2 * FM_MS);
		fm_job_endless(&c[i]);
		ctx[i] = fm_number(c[i].fd);
	}
	slot = c[0].slot;
	card_speed(slot, 1);
	for (i = 0; i < 2; i++)
		fm_must_start(&c[i]);
	for (i = 0; i < 2; i++)
		want(&w, "arrival slot=-1 ctx=%u urgency=best-effort cause=start", ctx[i]);
	for (i = 0; i < 2; i++) {
		want(&w, "pause slot=%d ctx=%u why=slice waiter=%u boundary=0", slot, ctx[i], ctx[!i]);
		/* A relay is told by an order what runs next, and reports by a record. */
		if (card_relay())
			want(&w, "load slot=%d ctx=%u length=%zu", slot, ctx[!i], c[!i].len);
		else
			want(&w, "status slot=%d ctx=%u phase=paused", slot, ctx[i]);
		want(&w, "stop slot=%d ctx=%u why=paused", slot, ctx[i]);
		if (!card_relay())
			want(&w, "load slot=%d ctx=%u length=%zu", slot, ctx[!i], c[!i].len);
		want(&w, "start slot=%d ctx=%u resume=%d why=turn", slot, ctx[!i], i);
	}
	fm_trace_until(w.list, w.n);
	for (i = 0; i < 2; i++)
		fm_end_endless(&c[i]);
}

#define SAVE_US		700
#define RESTORE_US	900

/* The event of a stop has the times of the run's record, which are those of the card's clock. */
FM_TEST(trace, times_of_a_record)
{
	u64 began, worked, stopped, left, before = 0;
	struct wanted w = { .n = 0 };
	struct fm_ctx c[2];
	char text[64];
	int i, slot;

	if (!card_relay())
		SKIP(return, "only a relay keeps records");
	RECORD();
	for (i = 0; i < 2; i++) {
		fm_tenant(&c[i], 2 * FM_MS);
		fm_job_endless(&c[i]);
	}
	slot = c[0].slot;
	snprintf(text, sizeof(text), "speed=1 save_us=%d restore_us=%d", SAVE_US, RESTORE_US);
	card_set(slot, text);
	for (i = 0; i < 2; i++)
		fm_must_start(&c[i]);
	for (i = 0; i < 4; i++)
		want(&w, "stop slot=%d ctx=%u why=paused", slot, fm_number(c[i % 2].fd));
	fm_trace_until(w.list, w.n);
	snprintf(text, sizeof(text), "stop slot=%d", slot);
	for (i = 0; i < 4; i++) {
		ASSERT_TRUE(fm_trace_number(text, i, "began", &began));
		ASSERT_TRUE(fm_trace_number(text, i, "worked", &worked));
		ASSERT_TRUE(fm_trace_number(text, i, "stopped", &stopped));
		ASSERT_TRUE(fm_trace_number(text, i, "left", &left));
		/* A slot takes the next order when the last run has left. */
		ASSERT_LE(before, began);
		before = left;
		ASSERT_LE(worked, stopped);
		ASSERT_LE(stopped + SAVE_US * 1000, left);
		/* The first two runs restore nothing. */
		ASSERT_LE(began + (i < 2 ? 0 : RESTORE_US * 1000), worked);
	}
	card_set(slot, "save_us=0 restore_us=0");
	for (i = 0; i < 2; i++)
		fm_end_endless(&c[i]);
}

FM_TEST(trace, work_that_cannot_wait)
{
	struct wanted w = { .n = 0 };
	struct fm_ctx be, lc;
	struct fm_expect e;
	int slot;

	RECORD();
	fm_tenant(&be, FM_LONG_SLICE);
	fm_tenant_list(&lc, FM_LONG_SLICE, 2000, 1, &e);
	fm_param(lc.fd, FERMATA_PARAM_LATENCY_CRITICAL, 1);
	slot = be.slot;
	card_speed(slot, 1);
	fm_job_endless(&be);
	fm_must_start(&be);
	card_until_runs(slot, be.token);
	ASSERT_GOOD(fm_job_run(&lc, &e));
	card_until_runs(slot, be.token);
	want(&w, "arrival ctx=%u urgency=latency-critical cause=start", fm_number(lc.fd));
	want(&w, "pause slot=%d ctx=%u why=outranked waiter=%u", slot, fm_number(be.fd), fm_number(lc.fd));
	want(&w, "stop slot=%d ctx=%u why=paused", slot, fm_number(be.fd));
	want(&w, "start slot=%d ctx=%u resume=0", slot, fm_number(lc.fd));
	want(&w, "stop slot=%d ctx=%u why=finished", slot, fm_number(lc.fd));
	want(&w, "start slot=%d ctx=%u resume=1", slot, fm_number(be.fd));
	ASSERT_RECORDED(&w);
	fm_end_endless(&be);
}

/* Each request of an owner, and refusals. */
FM_TEST(trace, requests)
{
	struct wanted w = { .n = 0 };
	struct fm_ctx c;
	u32 ctx;

	RECORD();
	fm_tenant(&c, FM_LONG_SLICE);
	ctx = fm_number(c.fd);
	ASSERT_NE(0, fm_resume(c.fd));
	card_speed(c.slot, 1);
	fm_job_endless(&c);
	fm_must_start(&c);
	card_until_runs(c.slot, c.token);
	fm_hold(&c);
	fm_must_resume(&c);
	card_until_runs(c.slot, c.token);
	ASSERT_EQ(0, fm_preempt(c.fd, 0));
	want(&w, "request slot=-1 ctx=%u request=resume", ctx);
	want(&w, "refused slot=-1 ctx=%u request=resume reason=no-job", ctx);
	want(&w, "request slot=%d ctx=%u request=hold", c.slot, ctx);
	want(&w, "pause slot=%d ctx=%u why=request waiter=0", c.slot, ctx);
	want(&w, "held slot=-1 ctx=%u", ctx);
	want(&w, "request slot=-1 ctx=%u request=resume", ctx);
	want(&w, "arrival ctx=%u cause=resume", ctx);
	want(&w, "start slot=%d ctx=%u resume=1", c.slot, ctx);
	want(&w, "request slot=%d ctx=%u request=preempt", c.slot, ctx);
	want(&w, "pause slot=%d ctx=%u why=request", c.slot, ctx);
	ASSERT_RECORDED(&w);
	fm_end_endless(&c);
}

/* Outcomes of jobs in other contexts. */
FM_TEST(trace, outcome)
{
	struct fermata_outcome arg = {
		.size = sizeof(arg), .state = FERMATA_STATE_FAILED, .error = EIO, .finished = 3, .failed = 1
	};
	struct wanted w = { .n = 0 };
	struct fm_ctx c;

	RECORD();
	fm_tenant(&c, FM_LONG_SLICE);
	ASSERT_EQ(0, fm_ioctl(c.fd, FERMATA_IOC_OUTCOME, &arg));
	want(&w, "outcome slot=-1 ctx=%u pid=%d job=4 result=snapshot", fm_number(c.fd), getpid());
	ASSERT_RECORDED(&w);
	close(c.fd);
}

/* A slot is vacated and kept for announced work. */
FM_TEST(trace, hint)
{
	u64 end = fm_now() + FM_GUARD_MS * FM_MS;
	struct wanted w = { .n = 0 };
	struct fermata_status st;
	struct fm_ctx be, lc;

	RECORD();
	if (fm_has_cgroups())
		fm_enter(0);
	fm_policy(FERMATA_POLICY_FAIR, 0);
	fm_tenant(&be, FM_LONG_SLICE);
	fm_tenant(&lc, FM_LONG_SLICE);
	fm_param(lc.fd, FERMATA_PARAM_LATENCY_CRITICAL, 1);
	card_speed(be.slot, 1);
	fm_job_endless(&be);
	fm_must_start(&be);
	card_until_runs(be.slot, be.token);
	want(&w, "hint slot=-1 ctx=%u", fm_number(lc.fd));
	want(&w, "keep slot=%d ctx=%u", be.slot, fm_number(lc.fd));
	want(&w, "pause slot=%d ctx=%u why=hint waiter=%u", be.slot, fm_number(be.fd), fm_number(lc.fd));
	/* A slow machine may handle its timer too late. */
	do {
		ASSERT_LT(fm_now(), end);
		if (fm_hint(lc.fd, fm_now() + 20 * FM_MS) == -ERANGE)
			continue;
		do {
			fm_sleep_us(1000);
			fm_status(lc.fd, &st);
		} while (st.hints_wasted < st.hints && fm_now() < end);
	} while (fm_trace_wrong(w.list, w.n));
	fm_end_endless(&be);
}

FM_TEST(trace, refused_access)
{
	struct fermata_reg head = { .offset = 0x30 };
	struct wanted w = { .n = 0 };
	struct fm_expect e;
	struct fm_ctx c;

	if (card_base())
		SKIP(return, "the base profile has no window");
	RECORD();
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	fm_job_list(&c, 16, 0, 3, &e);
	head.value = c.base + c.len;
	ASSERT_EQ(0, fm_regs_write(c.fd, &head, 1));
	ASSERT_EQ(0, fm_start(c.fd));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	want(&w, "registers ctx=%u count=1", fm_number(c.fd));
	if (!card_relay())
		want(&w, "status slot=%d ctx=%u flags=fault", c.slot, fm_number(c.fd));
	want(&w, "fault slot=%d ctx=%u address=0x%llx write=0", c.slot, fm_number(c.fd),
	     (unsigned long long)head.value);
	want(&w, "stop slot=%d ctx=%u why=fault", c.slot, fm_number(c.fd));
	want(&w, "job_end ctx=%u job=1 result=fault", fm_number(c.fd));
	ASSERT_RECORDED(&w);
}

/* An engine that hangs: PAUSE again, a reset, and after a failed reset the slot is quarantined. */
FM_TEST(trace, hung_engine_and_quarantine)
{
	struct wanted w = { .n = 0 };
	struct fm_ctx c;
	u32 ctx;

	RECORD();
	fm_tenant(&c, FM_MS);
	ctx = fm_number(c.fd);
	fm_param(c.fd, FERMATA_PARAM_PREEMPT_TIMEOUT, 50 * FM_MS);
	card_speed(c.slot, 1);
	fm_job_endless(&c);
	fm_must_start(&c);
	card_until_runs(c.slot, c.token);
	card_fault(c.slot, "reset_fails=1");
	card_fault(c.slot, "hang=1");
	ASSERT_EQ(0, fm_preempt(c.fd, FERMATA_PREEMPT_HOLD));
	fm_wait(c.fd, FERMATA_EVENT_DONE);
	want(&w, "pause slot=%d ctx=%u why=request", c.slot, ctx);
	/* The slot keeps an order: it is not written again. */
	if (!card_relay())
		want(&w, "pause slot=%d ctx=%u why=again", c.slot, ctx);
	want(&w, "reset slot=%d ctx=%u hold=1", c.slot, ctx);
	want(&w, "quarantine slot=%d ctx=%u", c.slot, ctx);
	want(&w, "job_end ctx=%u job=1 result=preempt-timeout", ctx);
	card_fault(c.slot, "clear");
	ASSERT_EQ(0, fm_unbind());
	fm_agent_gone(c.token);
	ASSERT_EQ(0, fm_bind());
	want(&w, "card event=removed");
	want(&w, "card event=gone");
	ASSERT_RECORDED(&w);
}

/* All jobs are taken off the card before the function is reset, and put back. */
FM_TEST(trace, function_reset)
{
	struct wanted w = { .n = 0 };
	struct fm_ctx c;
	u32 ctx;

	RECORD();
	if (!fm_reset_by("flr") && !fm_reset_by("bus"))
		SKIP(return, "the function cannot be reset");
	fm_tenant(&c, FM_LONG_SLICE);
	ctx = fm_number(c.fd);
	card_speed(c.slot, 1);
	fm_job_endless(&c);
	fm_must_start(&c);
	card_until_runs(c.slot, c.token);
	ASSERT_EQ(0, fm_reset());
	card_until_runs(c.slot, c.token);
	want(&w, "card event=reset-prepare");
	want(&w, "pause slot=%d ctx=%u why=freeze waiter=0", c.slot, ctx);
	want(&w, "stop slot=%d ctx=%u why=paused", c.slot, ctx);
	want(&w, "card event=frozen");
	want(&w, "card event=reset-done");
	want(&w, "card event=thawed");
	want(&w, "start slot=%d ctx=%u resume=1", c.slot, ctx);
	ASSERT_RECORDED(&w);
	fm_end_endless(&c);
}

FM_TEST(trace, suspend)
{
	const char *why = fm_cannot_sleep(FM_SHORT_REHEARSAL);
	struct wanted w = { .n = 0 };

	if (why)
		SKIP(return, "%s", why);
	RECORD();
	ASSERT_EQ(0, fm_sleep_and_wake(FM_SHORT_REHEARSAL));
	want(&w, "card event=suspend");
	want(&w, "card event=frozen");
	want(&w, "card event=resume");
	want(&w, "card event=thawed");
	ASSERT_RECORDED(&w);
}

/* An engine leaves its slot with an empty queue, and a doorbell makes it return. */
FM_TEST(trace, queue)
{
	struct wanted w = { .n = 0 };
	struct fm_queue q;
	u32 ctx;

	if (fm_slot_of(FM_QUEUE) < 0 || card_base())
		SKIP(return, "no slot with a queue engine that leaves");
	RECORD();
	fm_queue_new(&q, 16, 32 * 1024, 1, 0);
	ctx = fm_number(q.c.fd);
	fm_until_state(q.c.fd, FERMATA_STATE_EMPTY);
	want(&w, "start slot=%d ctx=%u resume=0", q.c.slot, ctx);
	want(&w, "stop slot=%d ctx=%u why=empty", q.c.slot, ctx);
	want(&w, "queue slot=-1 ctx=%u event=empty", ctx);
	want(&w, "queue slot=-1 ctx=%u event=doorbell", ctx);
	want(&w, "arrival ctx=%u cause=doorbell", ctx);
	want(&w, "start slot=%d ctx=%u resume=1", q.c.slot, ctx);
	want(&w, "queue slot=%d ctx=%u event=completed", q.c.slot, ctx);
	/* Until a poll of the driver has seen the engine at work. */
	card_speed(q.c.slot, 1);
	do {
		while (fm_queue_has_room(&q))
			fm_queue_post(&q, FERMATA_QUEUE_OP_COPY, q.c.base + q.data,
				      q.c.base + q.data + 16 * 1024, 16 * 1024, 0);
		fm_queue_tell(&q);
		fm_queue_reap(&q);
	} while (fm_trace_wrong(w.list, w.n));
	card_speed(q.c.slot, 0);
	while (q.reaped < q.tail)
		fm_queue_reap(&q);
	fm_until_state(q.c.fd, FERMATA_STATE_EMPTY);
	want(&w, "queue ctx=%u event=empty", ctx);
	fm_trace_until(w.list, w.n);
}

/* Nothing is recorded while tracepoints are off, and each can be enabled alone. */
FM_TEST(trace, off)
{
	struct wanted w = { .n = 0 };
	struct fm_expect e;
	struct fm_ctx c;

	RECORD();
	fm_trace_switch("enable", false);
	fm_trace_begin();
	fm_ctx_new(&c, FM_LIST, 64 * 1024);
	fm_job_list(&c, 64, 2000, 1, &e);
	ASSERT_GOOD(fm_job_run(&c, &e));
	EXPECT_EQ(0, fm_trace_count());
	fm_trace_switch("job_end/enable", true);
	ASSERT_GOOD(fm_job_run(&c, &e));
	EXPECT_EQ(1, fm_trace_count());
	want(&w, "job_end ctx=%u job=2 result=done", fm_number(c.fd));
	ASSERT_RECORDED(&w);
}

TEST_HARNESS_MAIN
