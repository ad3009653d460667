// SPDX-License-Identifier: GPL-2.0

//! Tracepoints (`include/trace/events/fermata.h`, docs/tracing.md).
//!
//! A tracepoint that is off costs a patched jump: its arguments are computed behind the jump. All
//! may be passed in any context, under any lock.

use crate::scheduler::{ContextId, EndReason, Failure, PauseCause, Refusal, SlotId, Urgency};

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
    /// Returns the subject for the card of number `card`.
    pub(crate) fn card(card: u32) -> Self {
        Self {
            card,
            slot: -1,
            ctx: 0,
            pid: 0,
        }
    }

    /// Returns the subject with a slot.
    pub(crate) fn on(self, slot: Option<SlotId>) -> Self {
        // CAST: below 8.
        let slot = slot.map_or(-1, |slot| slot.index() as i32);
        Self { slot, ..self }
    }

    /// Returns the subject with a context and its process.
    pub(crate) fn of(self, ctx: Option<ContextId>, pid: i32) -> Self {
        let ctx = ctx.map_or(0, number);
        Self { ctx, pid, ..self }
    }
}

/// Returns the number of a context for programs. No other context has this number while the context
/// lives, and a context that reuses an index gets another number.
pub(crate) fn number(id: ContextId) -> u32 {
    // Never 0: that is the caller's own context in calls, and no context in tracepoints.
    let use_of_index = id.generation() % 0xffff + 1;
    // CAST: a card has at most 2^16 contexts (`limits.rs`).
    use_of_index << 16 | id.index() as u32
}

/// Returns the index of the context that has the number `number` for programs.
pub(crate) fn index(number: u32) -> usize {
    // CAST: 16 bits.
    (number & 0xffff) as usize
}

/// A request of an owner, in the numbers of `fermata_request` and `fermata_refused`.
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
    HoldBegin,
    HoldEnd,
}

/// A reason why a job wants a slot, in the numbers of `fermata_arrival`.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum Arrival {
    Start,
    Resume,
    Doorbell,
}

/// An event of a job queue, in the numbers of `fermata_queue`.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum QueueEvent {
    Doorbell,
    Completed,
    Empty,
    Throttled,
}

/// An event of the card, in the numbers of `fermata_card`.
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

/// Returns the number of `urgency` in `fermata_arrival`.
pub(crate) fn urgency(urgency: Urgency) -> u32 {
    u32::from(urgency == Urgency::LatencyCritical)
}

/// Returns the number of `cause` in `fermata_pause`, and the context that waits.
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
        PauseCause::Gang => (9, None),
    }
}

/// Returns the number of `reason` in `fermata_stop`; `None`: the run was stopped by a reset.
pub(crate) fn end(reason: EndReason) -> Option<u32> {
    match reason {
        EndReason::Paused => Some(0),
        EndReason::Finished => Some(1),
        EndReason::Empty => Some(2),
        EndReason::Fault => Some(3),
        EndReason::SnapshotError => Some(4),
        EndReason::Dropped => Some(5),
        EndReason::Aborted(_) => None,
    }
}

/// Returns the number of a failure in `fermata_job_end`, where 0 is none.
pub(crate) fn failure(failure: Failure) -> u32 {
    match failure {
        Failure::PreemptTimeout => 1,
        Failure::Fault => 2,
        Failure::Snapshot => 3,
        Failure::Protocol => 4,
        Failure::Gone => 5,
    }
}

/// Returns the number of a refusal in `fermata_refused`.
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
        Refusal::Depth => 10,
    }
}

/// Declares a function for each tracepoint. The function takes a closure that returns the
/// arguments, or `None` if the tracepoint is not passed.
///
/// `kernel::declare_trace!` cannot take its place (docs/upstream.md): its tracepoints must be
/// in the `kernel` crate's bindings, and its arguments are computed even if the tracepoint is off.
macro_rules! tracepoints {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        kernel::macros::paste! {
            #[cfg(CONFIG_TRACEPOINTS)]
            mod c {
                use kernel::bindings;

                #[allow(
                    improper_ctypes,
                    reason = "a C structure, parts of which are empty in some configurations"
                )]
                extern "C" {
                    $(
                        pub(super) static [< __tracepoint_fermata_ $name >]: bindings::tracepoint;
                        pub(super) fn [< rust_do_trace_fermata_ $name >](
                            subject: *const super::Subject $(, $argument: $type)*
                        );
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
                        // SAFETY: `tracepoints.c` defines the tracepoint, whose key is never freed.
                        let is_on = unsafe {
                            kernel::jump_label::static_branch_unlikely!(
                                c::[< __tracepoint_fermata_ $name >],
                                kernel::bindings::tracepoint,
                                key
                            )
                        };
                        if is_on {
                            if let Some((subject, $($argument,)*)) = arguments().into() {
                                // SAFETY: `subject` is valid during the call. The prototype is that
                                // of `include/trace/events/fermata.h`.
                                unsafe {
                                    c::[< rust_do_trace_fermata_ $name >](
                                        &subject $(, $argument)*
                                    )
                                };
                            }
                        }
                    }
                }
            )*
        }
    };
}

tracepoints! {
    context_open();
    context_setup(slots: u32, group: u64);
    context_close();
    context_released();
    job_start(job: u64, replayable: bool, saved: bool, held: bool);
    outcome(job: u64, result: u32);
    arrival(urgency: u32, cause: u32);
    request(request: u32);
    hint(at: u64);
    refused(request: u32, reason: u32);
    load(written: u32, cleared: u32, device_base: u64, iova: u64, length: u64);
    unload();
    start(resume: bool, why: u32);
    pause(why: u32, waiter: u32, boundary: bool);
    keep();
    stop(why: u32, began: u64, worked: u64, stopped: u64, left: u64);
    reset(hold: bool);
    quarantine();
    timer_storm();
    standstill();
    job_end(job: u64, result: u32);
    held();
    queue(event: u32);
    registers(count: u32);
    status(status: u64);
    fault(address: u64, write: bool);
    interrupt(slots: u32, useful: bool);
    group(group: u64, set: bool, weight: u32, max_priority: u32, cap: u32, slots: u32);
    card(event: u32);
}
