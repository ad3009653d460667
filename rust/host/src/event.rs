// SPDX-License-Identifier: GPL-2.0

//! The calls of a scheduler, and of its card, as values: of these, tests make lists, and compare
//! them.

use crate::scheduler::{
    ContextId, Duration, NewJob, Order, PauseCause, RunEnd, SlotId, StartTimes, Status, Time, Wake,
};

/// A request of an owner, or a report of the card: a call of a
/// [`Scheduler`](crate::scheduler::Scheduler).
#[allow(missing_docs, reason = "the arguments of the calls")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// `start()`.
    Start { ctx: ContextId, job: NewJob },
    /// `preempt()`.
    Preempt { ctx: ContextId, hold: bool },
    /// `resume()`.
    Resume { ctx: ContextId },
    /// `hold()`.
    Hold { ctx: ContextId },
    /// `end_hold()`.
    EndHold { ctx: ContextId },
    /// `ring()`.
    Ring { ctx: ContextId },
    /// `hint()`.
    Hint { ctx: ContextId, at: Time },
    /// `close()`.
    Close { ctx: ContextId },
    /// `status()`.
    Status { slot: SlotId, status: Status },
    /// `timer()`.
    Timer { slot: SlotId },
    /// `disconnect()`.
    Gone,
}

/// A call of a [`Card`](crate::scheduler::Card).
#[allow(missing_docs, reason = "the arguments of the calls")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The last part of `load()`, or `publish()` if the slot has a relay.
    Load { slot: SlotId, ctx: ContextId },
    /// `unload()`.
    Unload { slot: SlotId, ctx: ContextId },
    /// `start()`.
    Start {
        slot: SlotId,
        ctx: ContextId,
        resume: bool,
        boosted: bool,
        times: StartTimes,
    },
    /// `pause()`.
    Pause {
        slot: SlotId,
        ctx: ContextId,
        boundary: bool,
        cause: PauseCause,
        late: Option<Duration>,
    },
    /// `order()`.
    Order { slot: SlotId, order: Order },
    /// `trace()` of a slot that is kept vacant.
    Reserve { slot: SlotId, ctx: ContextId },
    /// `trace()` of an overrun.
    Overrun {
        slot: SlotId,
        ctx: ContextId,
        span: Duration,
    },
    /// `reset()`.
    Reset {
        slot: SlotId,
        ctx: ContextId,
        hold: bool,
    },
    /// `ended()`.
    Ended {
        slot: SlotId,
        ctx: ContextId,
        run: RunEnd,
    },
    /// `read_status()`.
    ReadStatus { slot: SlotId },
    /// `arm()`.
    Arm { slot: SlotId, at: Time },
    /// `notify()` of a job.
    Wake { ctx: ContextId, wake: Wake },
    /// `notify()` of a closed context that no slot can reach.
    Released { ctx: ContextId },
    /// `notify()` of a context of a card that is gone.
    Lost { ctx: ContextId },
    /// `quarantine()`.
    Quarantine {
        slot: SlotId,
        ctx: Option<ContextId>,
    },
    /// `notify()` of a context that a slot out of use may reach.
    Stuck { ctx: ContextId },
}
