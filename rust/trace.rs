// SPDX-License-Identifier: GPL-2.0

//! Tracepoints (`include/trace/events/fermata.h`, docs/tracing.md).
//!
//! One that is off costs a patched jump: what it would tell is worked out behind that. All may be
//! passed in any context, under any lock.

use crate::sched::{ContextId, Failure, PauseCause, Refusal, SlotId, Status, Urgency};

/// `struct fermata_subject`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Subject {
    card: u32,
    slot: i32,
    ctx: u32,
    pid: i32,
}

impl Subject {
    /// The card of that number, and nothing on it.
    pub(crate) fn card(card: u32) -> Self {
        Self {
            card,
            slot: -1,
            ctx: 0,
            pid: 0,
        }
    }

    /// With a slot.
    pub(crate) fn on(self, slot: Option<SlotId>) -> Self {
        // CAST: below 8.
        let slot = slot.map_or(-1, |slot| slot.index() as i32);
        Self { slot, ..self }
    }

    /// With a context.
    pub(crate) fn of(self, ctx: Option<ContextId>, pid: i32) -> Self {
        let ctx = ctx.map_or(0, number);
        Self { ctx, pid, ..self }
    }
}

/// The number of a context for programs: no other one has it while it lives, and an index that is
/// used again comes with another number.
pub(crate) fn number(id: ContextId) -> u32 {
    // Never 0, which means the caller's own context, and here none.
    let use_of_index = id.generation() % 0xffff + 1;
    // CAST: a card has at most 2^16 contexts (`limits.rs`).
    use_of_index << 16 | id.index() as u32
}

/// What an owner asks for, in the numbers of `fermata_request` and `fermata_refused`.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum Request {
    Preempt,
    Hold,
    Resume,
    Start,
    Doorbell,
    Hint,
    Close,
}

/// Why a job wants a slot, in the numbers of `fermata_arrival`.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum Arrival {
    Start,
    Resume,
    Doorbell,
}

/// What happened to a queue, in the numbers of `fermata_queue`.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum QueueEvent {
    Doorbell,
    Completed,
    Empty,
    Throttled,
}

/// What happened to the card, in the numbers of `fermata_card`.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum CardEvent {
    ResetPrepare,
    ResetDone,
    Suspend,
    Resume,
    Error,
    LinkReset,
    Recovered,
    Frozen,
    CutOff,
    Thawed,
    Gone,
    Removed,
    Shutdown,
}

/// The number of `urgency` in `fermata_arrival`.
pub(crate) fn urgency(urgency: Urgency) -> u32 {
    u32::from(urgency == Urgency::LatencyCritical)
}

/// The number of `cause` in `fermata_pause`, and who waits.
pub(crate) fn cause(cause: PauseCause) -> (u32, Option<ContextId>) {
    match cause {
        PauseCause::Slice { waiter } => (0, Some(waiter)),
        PauseCause::Outranked { waiter } => (1, Some(waiter)),
        PauseCause::Starving { waiter } => (2, Some(waiter)),
        PauseCause::Limit => (3, None),
        PauseCause::Slots => (4, None),
        PauseCause::Hint { waiter } => (5, Some(waiter)),
        PauseCause::Request => (6, None),
        PauseCause::Freeze => (7, None),
        PauseCause::Again => (8, None),
    }
}

/// The number of `status`, by which a run ended, in `fermata_stop`.
pub(crate) fn end(status: Status) -> u32 {
    match status {
        status if status.fault() => 3,
        status if status.snapshot_error() => 4,
        status if status.phase() == crate::sched::Phase::Finish => 1,
        status if status.empty() => 2,
        _ => 0,
    }
}

/// The number of a failure in `fermata_job_end`, where 0 is none.
pub(crate) fn failure(failure: Failure) -> u32 {
    match failure {
        Failure::PreemptTimeout => 1,
        Failure::Fault => 2,
        Failure::Snapshot => 3,
        Failure::Protocol => 4,
        Failure::Gone => 5,
    }
}

/// The number of a refusal in `fermata_refused`.
pub(crate) fn refusal(refusal: Refusal) -> u32 {
    match refusal {
        Refusal::NoContext => 0,
        Refusal::Busy => 1,
        Refusal::NoJob => 2,
        Refusal::NoSlot => 3,
        Refusal::NoSpace => 4,
        Refusal::Admission => 5,
        Refusal::Range => 6,
        Refusal::Rate => 7,
        Refusal::Gone => 8,
        Refusal::Ceiling => 9,
    }
}

/// Declares a function for each tracepoint, which takes a closure that gives its arguments, or `None`
/// where there is nothing to tell.
///
/// `kernel::declare_trace!` serves tracepoints that the `kernel` crate's bindings have, those of the
/// kernel itself, and works its arguments out before it looks whether anybody wants them.
macro_rules! tracepoints {
    ($($name:ident => $key:ident, $call:ident ($($argument:ident: $type:ty),*);)*) => {
        #[cfg(CONFIG_TRACEPOINTS)]
        mod c {
            use kernel::bindings;

            #[allow(
                improper_ctypes,
                reason = "a C structure, parts of which are empty in some configurations"
            )]
            extern "C" {
                $(
                    pub(super) static $key: bindings::tracepoint;
                    pub(super) fn $call(subject: *const super::Subject $(, $argument: $type)*);
                )*
            }
        }

        $(
            #[doc = concat!("Passes `fermata_", stringify!($name), "`.")]
            #[inline(always)]
            pub(crate) fn $name<A: Into<Option<(Subject, $($type,)*)>>>(
                #[cfg_attr(not(CONFIG_TRACEPOINTS), expect(unused_variables))]
                arguments: impl FnOnce() -> A,
            ) {
                #[cfg(CONFIG_TRACEPOINTS)]
                {
                    // SAFETY: `tracepoints.c` defines it.
                    let is_on = unsafe {
                        kernel::jump_label::static_branch_unlikely!(
                            c::$key,
                            kernel::bindings::tracepoint,
                            key
                        )
                    };
                    if is_on {
                        if let Some((subject, $($argument,)*)) = arguments().into() {
                            // SAFETY: `subject` is valid during the call; the prototype is that
                            // of `include/trace/events/fermata.h`.
                            unsafe { c::$call(&subject $(, $argument)*) };
                        }
                    }
                }
            }
        )*
    };
}

tracepoints! {
    context_open => __tracepoint_fermata_context_open, rust_do_trace_fermata_context_open();
    context_setup => __tracepoint_fermata_context_setup, rust_do_trace_fermata_context_setup(slots: u32, group: u64);
    context_close => __tracepoint_fermata_context_close, rust_do_trace_fermata_context_close();
    context_released => __tracepoint_fermata_context_released, rust_do_trace_fermata_context_released();
    job_start => __tracepoint_fermata_job_start, rust_do_trace_fermata_job_start(job: u64, replayable: bool, saved: bool);
    arrival => __tracepoint_fermata_arrival, rust_do_trace_fermata_arrival(urgency: u32, cause: u32);
    request => __tracepoint_fermata_request, rust_do_trace_fermata_request(request: u32);
    hint => __tracepoint_fermata_hint, rust_do_trace_fermata_hint(at: u64);
    refused => __tracepoint_fermata_refused, rust_do_trace_fermata_refused(request: u32, reason: u32);
    load => __tracepoint_fermata_load, rust_do_trace_fermata_load(written: u32, cleared: u32, device_base: u64, iova: u64, length: u64);
    unload => __tracepoint_fermata_unload, rust_do_trace_fermata_unload();
    start => __tracepoint_fermata_start, rust_do_trace_fermata_start(resume: bool, why: u32);
    pause => __tracepoint_fermata_pause, rust_do_trace_fermata_pause(why: u32, waiter: u32, boundary: bool);
    keep => __tracepoint_fermata_keep, rust_do_trace_fermata_keep();
    stop => __tracepoint_fermata_stop, rust_do_trace_fermata_stop(why: u32);
    reset => __tracepoint_fermata_reset, rust_do_trace_fermata_reset(hold: bool);
    quarantine => __tracepoint_fermata_quarantine, rust_do_trace_fermata_quarantine();
    job_end => __tracepoint_fermata_job_end, rust_do_trace_fermata_job_end(job: u64, result: u32);
    held => __tracepoint_fermata_held, rust_do_trace_fermata_held();
    queue => __tracepoint_fermata_queue, rust_do_trace_fermata_queue(event: u32);
    registers => __tracepoint_fermata_registers, rust_do_trace_fermata_registers(count: u32);
    status => __tracepoint_fermata_status, rust_do_trace_fermata_status(status: u64);
    fault => __tracepoint_fermata_fault, rust_do_trace_fermata_fault(address: u64, write: bool);
    interrupt => __tracepoint_fermata_interrupt, rust_do_trace_fermata_interrupt(slots: u32, useful: bool);
    group => __tracepoint_fermata_group, rust_do_trace_fermata_group(group: u64, set: bool, weight: u32, max_priority: u32, cap: u32, slots: u32);
    card => __tracepoint_fermata_card, rust_do_trace_fermata_card(event: u32);
}
