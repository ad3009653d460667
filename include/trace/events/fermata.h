/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints of fermata; docs/tracing.md says what they mean. rust/trace.rs
 * has the numbers that are printed as symbols here.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM fermata

#if !defined(_TRACE_FERMATA_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_FERMATA_H

#include <linux/tracepoint.h>

#ifndef _FERMATA_SUBJECT
#define _FERMATA_SUBJECT
/* The subject of an event. */
struct fermata_subject {
	u32 card;	/* /dev/fermataN */
	s32 slot;	/* -1: none */
	u32 ctx;	/* the context's number; 0: none */
	s32 pid;	/* of the context, in the initial pid namespace; 0: none */
};
#endif

#define FERMATA_SUBJECT_FIELDS						\
	__field(u32, card)						\
	__field(s32, slot)						\
	__field(u32, ctx)						\
	__field(s32, pid)

#define FERMATA_SUBJECT_ASSIGN						\
	__entry->card = subject->card;					\
	__entry->slot = subject->slot;					\
	__entry->ctx = subject->ctx;					\
	__entry->pid = subject->pid

#define FERMATA_SUBJECT_FORMAT	"card=fermata%u slot=%d ctx=%u pid=%d"

#define FERMATA_SUBJECT_ARGS						\
	__entry->card, __entry->slot, __entry->ctx, __entry->pid

#define fermata_show_urgency(value)					\
	__print_symbolic(value,						\
		{ 0, "best-effort" }, { 1, "latency-critical" })

#define fermata_show_result(value)					\
	__print_symbolic(value,						\
		{ 0, "done" }, { 1, "preempt-timeout" }, { 2, "fault" },\
		{ 3, "snapshot" }, { 4, "protocol" }, { 5, "gone" })

DECLARE_EVENT_CLASS(fermata_subject,
	TP_PROTO(const struct fermata_subject *subject),
	TP_ARGS(subject),
	TP_STRUCT__entry(
		FERMATA_SUBJECT_FIELDS
	),
	TP_fast_assign(
		FERMATA_SUBJECT_ASSIGN;
	),
	TP_printk(FERMATA_SUBJECT_FORMAT, FERMATA_SUBJECT_ARGS)
);

/* Contexts. */

DEFINE_EVENT(fermata_subject, fermata_context_open,
	TP_PROTO(const struct fermata_subject *subject), TP_ARGS(subject));

TRACE_EVENT(fermata_context_setup,
	TP_PROTO(const struct fermata_subject *subject, u32 slots, u64 group),
	TP_ARGS(subject, slots, group),
	TP_STRUCT__entry(
		FERMATA_SUBJECT_FIELDS
		__field(u32, slots)
		__field(u64, group)
	),
	TP_fast_assign(
		FERMATA_SUBJECT_ASSIGN;
		__entry->slots = slots;
		__entry->group = group;
	),
	TP_printk(FERMATA_SUBJECT_FORMAT " slots=0x%x group=%llu",
		  FERMATA_SUBJECT_ARGS, __entry->slots, __entry->group)
);

DEFINE_EVENT(fermata_subject, fermata_context_close,
	TP_PROTO(const struct fermata_subject *subject), TP_ARGS(subject));

DEFINE_EVENT(fermata_subject, fermata_context_released,
	TP_PROTO(const struct fermata_subject *subject), TP_ARGS(subject));

/* Requests of owners. */

TRACE_EVENT(fermata_job_start,
	TP_PROTO(const struct fermata_subject *subject, u64 job,
		 bool replayable, bool saved, bool held),
	TP_ARGS(subject, job, replayable, saved, held),
	TP_STRUCT__entry(
		FERMATA_SUBJECT_FIELDS
		__field(u64, job)
		__field(bool, replayable)
		__field(bool, saved)
		__field(bool, held)
	),
	TP_fast_assign(
		FERMATA_SUBJECT_ASSIGN;
		__entry->job = job;
		__entry->replayable = replayable;
		__entry->saved = saved;
		__entry->held = held;
	),
	TP_printk(FERMATA_SUBJECT_FORMAT " job=%llu replayable=%d saved=%d held=%d",
		  FERMATA_SUBJECT_ARGS, __entry->job, __entry->replayable,
		  __entry->saved, __entry->held)
);

TRACE_EVENT(fermata_outcome,
	TP_PROTO(const struct fermata_subject *subject, u64 job, u32 result),
	TP_ARGS(subject, job, result),
	TP_STRUCT__entry(
		FERMATA_SUBJECT_FIELDS
		__field(u64, job)
		__field(u32, result)
	),
	TP_fast_assign(
		FERMATA_SUBJECT_ASSIGN;
		__entry->job = job;
		__entry->result = result;
	),
	TP_printk(FERMATA_SUBJECT_FORMAT " job=%llu result=%s",
		  FERMATA_SUBJECT_ARGS, __entry->job,
		  fermata_show_result(__entry->result))
);

TRACE_EVENT(fermata_arrival,
	TP_PROTO(const struct fermata_subject *subject, u32 urgency, u32 cause),
	TP_ARGS(subject, urgency, cause),
	TP_STRUCT__entry(
		FERMATA_SUBJECT_FIELDS
		__field(u32, urgency)
		__field(u32, cause)
	),
	TP_fast_assign(
		FERMATA_SUBJECT_ASSIGN;
		__entry->urgency = urgency;
		__entry->cause = cause;
	),
	TP_printk(FERMATA_SUBJECT_FORMAT " urgency=%s cause=%s",
		  FERMATA_SUBJECT_ARGS,
		  fermata_show_urgency(__entry->urgency),
		  __print_symbolic(__entry->cause,
			{ 0, "start" }, { 1, "resume" }, { 2, "doorbell" }))
);

TRACE_EVENT(fermata_request,
	TP_PROTO(const struct fermata_subject *subject, u32 request),
	TP_ARGS(subject, request),
	TP_STRUCT__entry(
		FERMATA_SUBJECT_FIELDS
		__field(u32, request)
	),
	TP_fast_assign(
		FERMATA_SUBJECT_ASSIGN;
		__entry->request = request;
	),
	TP_printk(FERMATA_SUBJECT_FORMAT " request=%s", FERMATA_SUBJECT_ARGS,
		  __print_symbolic(__entry->request,
			{ 0, "preempt" }, { 1, "hold" }, { 2, "resume" },
			{ 7, "hold-begin" }, { 8, "hold-end" }))
);

TRACE_EVENT(fermata_hint,
	TP_PROTO(const struct fermata_subject *subject, u64 at),
	TP_ARGS(subject, at),
	TP_STRUCT__entry(
		FERMATA_SUBJECT_FIELDS
		__field(u64, at)
	),
	TP_fast_assign(
		FERMATA_SUBJECT_ASSIGN;
		__entry->at = at;
	),
	TP_printk(FERMATA_SUBJECT_FORMAT " at=%llu", FERMATA_SUBJECT_ARGS,
		  __entry->at)
);

TRACE_EVENT(fermata_refused,
	TP_PROTO(const struct fermata_subject *subject, u32 request,
		 u32 reason),
	TP_ARGS(subject, request, reason),
	TP_STRUCT__entry(
		FERMATA_SUBJECT_FIELDS
		__field(u32, request)
		__field(u32, reason)
	),
	TP_fast_assign(
		FERMATA_SUBJECT_ASSIGN;
		__entry->request = request;
		__entry->reason = reason;
	),
	TP_printk(FERMATA_SUBJECT_FORMAT " request=%s reason=%s",
		  FERMATA_SUBJECT_ARGS,
		  __print_symbolic(__entry->request,
			{ 0, "preempt" }, { 1, "hold" }, { 2, "resume" },
			{ 3, "start" }, { 4, "doorbell" }, { 5, "hint" },
			{ 6, "close" }, { 7, "hold-begin" },
			{ 8, "hold-end" }),
		  __print_symbolic(__entry->reason,
			{ 0, "no-context" }, { 1, "busy" }, { 2, "no-job" },
			{ 3, "no-slot" }, { 4, "no-space" },
			{ 5, "admission" }, { 6, "range" }, { 7, "rate" },
			{ 8, "gone" }, { 9, "ceiling" }, { 10, "depth" }))
);

/* Decisions of the scheduler, and the steps of a switch. */

TRACE_EVENT(fermata_load,
	TP_PROTO(const struct fermata_subject *subject, u32 written,
		 u32 cleared, u64 device_base, u64 iova, u64 length),
	TP_ARGS(subject, written, cleared, device_base, iova, length),
	TP_STRUCT__entry(
		FERMATA_SUBJECT_FIELDS
		__field(u32, written)
		__field(u32, cleared)
		__field(u64, device_base)
		__field(u64, iova)
		__field(u64, length)
	),
	TP_fast_assign(
		FERMATA_SUBJECT_ASSIGN;
		__entry->written = written;
		__entry->cleared = cleared;
		__entry->device_base = device_base;
		__entry->iova = iova;
		__entry->length = length;
	),
	TP_printk(FERMATA_SUBJECT_FORMAT
		  " written=%u cleared=%u device_base=0x%llx iova=0x%llx length=%llu",
		  FERMATA_SUBJECT_ARGS, __entry->written, __entry->cleared,
		  __entry->device_base, __entry->iova, __entry->length)
);

DEFINE_EVENT(fermata_subject, fermata_unload,
	TP_PROTO(const struct fermata_subject *subject), TP_ARGS(subject));

TRACE_EVENT(fermata_start,
	TP_PROTO(const struct fermata_subject *subject, bool resume, u32 why),
	TP_ARGS(subject, resume, why),
	TP_STRUCT__entry(
		FERMATA_SUBJECT_FIELDS
		__field(bool, resume)
		__field(u32, why)
	),
	TP_fast_assign(
		FERMATA_SUBJECT_ASSIGN;
		__entry->resume = resume;
		__entry->why = why;
	),
	TP_printk(FERMATA_SUBJECT_FORMAT " resume=%d why=%s",
		  FERMATA_SUBJECT_ARGS, __entry->resume,
		  __print_symbolic(__entry->why,
			{ 0, "turn" }, { 1, "starving" }))
);

TRACE_EVENT(fermata_pause,
	TP_PROTO(const struct fermata_subject *subject, u32 why, u32 waiter,
		 bool boundary),
	TP_ARGS(subject, why, waiter, boundary),
	TP_STRUCT__entry(
		FERMATA_SUBJECT_FIELDS
		__field(u32, why)
		__field(u32, waiter)
		__field(bool, boundary)
	),
	TP_fast_assign(
		FERMATA_SUBJECT_ASSIGN;
		__entry->why = why;
		__entry->waiter = waiter;
		__entry->boundary = boundary;
	),
	TP_printk(FERMATA_SUBJECT_FORMAT " why=%s waiter=%u boundary=%d",
		  FERMATA_SUBJECT_ARGS,
		  __print_symbolic(__entry->why,
			{ 0, "slice" }, { 1, "outranked" }, { 2, "starving" },
			{ 3, "limit" }, { 4, "slots" }, { 5, "hint" },
			{ 6, "request" }, { 7, "freeze" }, { 8, "again" }, { 9, "gang" }),
		  __entry->waiter, __entry->boundary)
);

DEFINE_EVENT(fermata_subject, fermata_keep,
	TP_PROTO(const struct fermata_subject *subject), TP_ARGS(subject));

/* The times are those of the run's record, by the card's clock; 0: none. */
TRACE_EVENT(fermata_stop,
	TP_PROTO(const struct fermata_subject *subject, u32 why, u64 began,
		 u64 worked, u64 stopped, u64 left),
	TP_ARGS(subject, why, began, worked, stopped, left),
	TP_STRUCT__entry(
		FERMATA_SUBJECT_FIELDS
		__field(u32, why)
		__field(u64, began)
		__field(u64, worked)
		__field(u64, stopped)
		__field(u64, left)
	),
	TP_fast_assign(
		FERMATA_SUBJECT_ASSIGN;
		__entry->why = why;
		__entry->began = began;
		__entry->worked = worked;
		__entry->stopped = stopped;
		__entry->left = left;
	),
	TP_printk(FERMATA_SUBJECT_FORMAT
		  " why=%s began=%llu worked=%llu stopped=%llu left=%llu",
		  FERMATA_SUBJECT_ARGS,
		  __print_symbolic(__entry->why,
			{ 0, "paused" }, { 1, "finished" }, { 2, "empty" },
			{ 3, "fault" }, { 4, "snapshot-error" },
			{ 5, "dropped" }),
		  __entry->began, __entry->worked, __entry->stopped,
		  __entry->left)
);

TRACE_EVENT(fermata_reset,
	TP_PROTO(const struct fermata_subject *subject, bool hold),
	TP_ARGS(subject, hold),
	TP_STRUCT__entry(
		FERMATA_SUBJECT_FIELDS
		__field(bool, hold)
	),
	TP_fast_assign(
		FERMATA_SUBJECT_ASSIGN;
		__entry->hold = hold;
	),
	TP_printk(FERMATA_SUBJECT_FORMAT " hold=%d", FERMATA_SUBJECT_ARGS,
		  __entry->hold)
);

DEFINE_EVENT(fermata_subject, fermata_quarantine,
	TP_PROTO(const struct fermata_subject *subject), TP_ARGS(subject));

DEFINE_EVENT(fermata_subject, fermata_timer_storm,
	TP_PROTO(const struct fermata_subject *subject), TP_ARGS(subject));

DEFINE_EVENT(fermata_subject, fermata_standstill,
	TP_PROTO(const struct fermata_subject *subject), TP_ARGS(subject));

TRACE_EVENT(fermata_job_end,
	TP_PROTO(const struct fermata_subject *subject, u64 job, u32 result),
	TP_ARGS(subject, job, result),
	TP_STRUCT__entry(
		FERMATA_SUBJECT_FIELDS
		__field(u64, job)
		__field(u32, result)
	),
	TP_fast_assign(
		FERMATA_SUBJECT_ASSIGN;
		__entry->job = job;
		__entry->result = result;
	),
	TP_printk(FERMATA_SUBJECT_FORMAT " job=%llu result=%s",
		  FERMATA_SUBJECT_ARGS, __entry->job,
		  fermata_show_result(__entry->result))
);

DEFINE_EVENT(fermata_subject, fermata_held,
	TP_PROTO(const struct fermata_subject *subject), TP_ARGS(subject));

TRACE_EVENT(fermata_queue,
	TP_PROTO(const struct fermata_subject *subject, u32 event),
	TP_ARGS(subject, event),
	TP_STRUCT__entry(
		FERMATA_SUBJECT_FIELDS
		__field(u32, event)
	),
	TP_fast_assign(
		FERMATA_SUBJECT_ASSIGN;
		__entry->event = event;
	),
	TP_printk(FERMATA_SUBJECT_FORMAT " event=%s", FERMATA_SUBJECT_ARGS,
		  __print_symbolic(__entry->event,
			{ 0, "doorbell" }, { 1, "completed" }, { 2, "empty" },
			{ 3, "throttled" }))
);

/* Registers. */

TRACE_EVENT(fermata_registers,
	TP_PROTO(const struct fermata_subject *subject, u32 count),
	TP_ARGS(subject, count),
	TP_STRUCT__entry(
		FERMATA_SUBJECT_FIELDS
		__field(u32, count)
	),
	TP_fast_assign(
		FERMATA_SUBJECT_ASSIGN;
		__entry->count = count;
	),
	TP_printk(FERMATA_SUBJECT_FORMAT " count=%u", FERMATA_SUBJECT_ARGS,
		  __entry->count)
);

TRACE_EVENT(fermata_status,
	TP_PROTO(const struct fermata_subject *subject, u64 status),
	TP_ARGS(subject, status),
	TP_STRUCT__entry(
		FERMATA_SUBJECT_FIELDS
		__field(u32, phase)
		__field(u32, flags)
		__field(u32, restore)
		__field(u32, starts)
	),
	TP_fast_assign(
		FERMATA_SUBJECT_ASSIGN;
		__entry->phase = status & 0xff;
		__entry->flags = (status >> 8) & 0x7;
		__entry->restore = (status >> 12) & 0xfffff;
		__entry->starts = status >> 32;
	),
	TP_printk(FERMATA_SUBJECT_FORMAT
		  " phase=%s flags=%s restore=%u starts=%u",
		  FERMATA_SUBJECT_ARGS,
		  __print_symbolic(__entry->phase,
			{ 0, "idle" }, { 1, "running" }, { 2, "finish" },
			{ 4, "paused" }, { 0xff, "gone" }),
		  __print_flags(__entry->flags, "|",
			{ 1, "fault" }, { 2, "snapshot-error" },
			{ 4, "empty" }),
		  __entry->restore, __entry->starts)
);

TRACE_EVENT(fermata_fault,
	TP_PROTO(const struct fermata_subject *subject, u64 address,
		 bool write),
	TP_ARGS(subject, address, write),
	TP_STRUCT__entry(
		FERMATA_SUBJECT_FIELDS
		__field(u64, address)
		__field(bool, write)
	),
	TP_fast_assign(
		FERMATA_SUBJECT_ASSIGN;
		__entry->address = address;
		__entry->write = write;
	),
	TP_printk(FERMATA_SUBJECT_FORMAT " address=0x%llx write=%d",
		  FERMATA_SUBJECT_ARGS, __entry->address, __entry->write)
);

/* The card as a whole. */

TRACE_EVENT(fermata_interrupt,
	TP_PROTO(const struct fermata_subject *subject, u32 slots,
		 bool useful),
	TP_ARGS(subject, slots, useful),
	TP_STRUCT__entry(
		__field(u32, card)
		__field(u32, slots)
		__field(bool, useful)
	),
	TP_fast_assign(
		__entry->card = subject->card;
		__entry->slots = slots;
		__entry->useful = useful;
	),
	TP_printk("card=fermata%u slots=0x%x useful=%d", __entry->card,
		  __entry->slots, __entry->useful)
);

TRACE_EVENT(fermata_group,
	TP_PROTO(const struct fermata_subject *subject, u64 group, bool set,
		 u32 weight, u32 max_priority, u32 cap, u32 slots),
	TP_ARGS(subject, group, set, weight, max_priority, cap, slots),
	TP_STRUCT__entry(
		__field(u32, card)
		__field(u64, group)
		__field(bool, set)
		__field(u32, weight)
		__field(u32, max_priority)
		__field(u32, cap)
		__field(u32, slots)
	),
	TP_fast_assign(
		__entry->card = subject->card;
		__entry->group = group;
		__entry->set = set;
		__entry->weight = weight;
		__entry->max_priority = max_priority;
		__entry->cap = cap;
		__entry->slots = slots;
	),
	TP_printk("card=fermata%u group=%llu set=%d weight=%u max_priority=%u cap=%u slots=0x%x",
		  __entry->card, __entry->group, __entry->set, __entry->weight,
		  __entry->max_priority, __entry->cap, __entry->slots)
);

TRACE_EVENT(fermata_card,
	TP_PROTO(const struct fermata_subject *subject, u32 event),
	TP_ARGS(subject, event),
	TP_STRUCT__entry(
		__field(u32, card)
		__field(u32, event)
	),
	TP_fast_assign(
		__entry->card = subject->card;
		__entry->event = event;
	),
	TP_printk("card=fermata%u event=%s", __entry->card,
		  __print_symbolic(__entry->event,
			{ 0, "reset-prepare" }, { 1, "reset-done" },
			{ 2, "suspend" }, { 3, "resume" }, { 4, "error" },
			{ 5, "link-reset" }, { 6, "recovered" },
			{ 7, "frozen" }, { 8, "cut-off" }, { 9, "thawed" },
			{ 10, "gone" }, { 11, "removed" },
			{ 12, "shutdown" }))
);

#endif /* _TRACE_FERMATA_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
