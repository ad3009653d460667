// SPDX-License-Identifier: GPL-2.0

//! What goes into the scheduler and what comes out of it.

use super::plan_cache::PlanCache;
use super::{ContextId, Duration, Order, SlotId, Status, Time, MAX_SLOTS};

/// How a job starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewJob {
    /// The job may be run again from its beginning, whatever it has done to its memory, when its
    /// state could not be saved or restored. It is run again up to three times, and then fails with
    /// [`Failure::Snapshot`].
    pub replayable: bool,
    /// The owner has put a complete state into the snapshot, and the job resumes from that state
    /// instead of starting from its beginning.
    pub saved: bool,
    /// The job does not wait for a slot before [`Event::Resume`].
    pub held: bool,
}

/// The results of a context's jobs before a checkpoint that the context was restored from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastJobs {
    /// Why the last job failed; `None`: it finished.
    pub last: Option<Failure>,
    /// Jobs finished.
    pub finished: u64,
    /// Jobs failed.
    pub failed: u64,
}

/// Something that happened.
///
/// The first group contains the requests of a context's owner, which may be refused; the second
/// group comes from the card and its timers and is never refused.
#[allow(
    missing_docs,
    reason = "`slot` and `ctx` name the slot and the context meant; the rest is in each variant's text"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Start a new job. Refused with [`Refusal::Busy`] while the last one has not ended.
    Start { ctx: ContextId, job: NewJob },
    /// Take the job off its slot as soon as it can be saved. With `hold`, the job stays off until
    /// [`Event::Resume`]. Without, it is queued again, but behind the next context that waits for
    /// the slot: behind its equals, and under weighted fair no further ahead than that context. If
    /// no context waits, the job resumes. The same is done to the other jobs of its gang.
    Preempt { ctx: ContextId, hold: bool },
    /// Let a held job run again, and the other jobs of its gang, unless the context or a member of
    /// its gang has a hold by [`Event::Hold`].
    Resume { ctx: ContextId },
    /// Add a hold, which only [`Event::EndHold`] ends. While a context has holds, its job and the
    /// other jobs of its gang are held, also if they are started meanwhile. Refused with
    /// [`Refusal::NoSpace`] if there are 2^32 - 1.
    Hold { ctx: ContextId },
    /// Take a hold away. If none is left, and no [`Event::Preempt`] or start has requested a hold,
    /// the jobs run again.
    EndHold { ctx: ContextId },
    /// There is work in the context's queue again: a job in
    /// [`JobState::Empty`](super::JobState::Empty) waits for a slot again, and a job on its slot
    /// does so if it leaves the slot with an empty queue. Refused with [`Refusal::NoJob`].
    Ring { ctx: ContextId },
    /// The context will start a job, or find work in its empty queue, at `at`: a slot is made
    /// vacant in time if the job would preempt a running job at once. Only one hint is pending at a
    /// time: a new hint replaces it, and the time zero withdraws it. Refused with [`Refusal::Busy`]
    /// while a job has not ended and its queue is not empty, with [`Refusal::Range`] unless `at` is
    /// within the next 10 s, and with [`Refusal::Rate`] if the last hint was given less than 100 us
    /// ago and no job has started since.
    Hint { ctx: ContextId, at: Time },
    /// The owner is gone: stop the job without saving it. [`Action::Released`] follows, at once or
    /// later.
    Close { ctx: ContextId },

    /// The status register of `slot` was read.
    Status { slot: SlotId, status: Status },
    /// The timer armed by [`Action::Arm`] fired. It may fire early or late: only the time counts.
    Timer { slot: SlotId },
    /// The card is gone (all-ones, unplugged, unbound): every job fails with [`Failure::Gone`], and
    /// no action that touches a register follows.
    Gone,
}

/// Something for the caller to do, at once and in order.
#[allow(
    missing_docs,
    reason = "`slot` and `ctx` name the slot and the context meant; the rest is in each variant's text"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write the window of `ctx`, its written application registers and its snapshot address to
    /// `slot`. If the slot has a relay, write them to the memory that the card reads for `ctx`.
    Load { slot: SlotId, ctx: ContextId },
    /// Close the window of `slot`, which is that of `ctx`: the slot may touch no memory from here
    /// on (size 0 where the card has a window).
    Unload { slot: SlotId, ctx: ContextId },
    /// Write START_RESUME (`resume`) or START_NEW to `slot`. If the slot has a relay, this is only
    /// for reports: the job was or will be started by an order. `boosted`: another context would go
    /// first under the policy, but `ctx` has waited too long.
    Start {
        slot: SlotId,
        ctx: ContextId,
        resume: bool,
        boosted: bool,
        times: StartTimes,
    },
    /// Write PAUSE_AT_BOUNDARY (`boundary`) or PAUSE to `slot`, where `ctx` is. If the slot has a
    /// relay, this is only for reports: an order stops the job. `late`: how late the timer of the
    /// slot was, if the timer has caused the PAUSE.
    Pause {
        slot: SlotId,
        ctx: ContextId,
        boundary: bool,
        cause: PauseCause,
        late: Option<Duration>,
    },
    /// Write `order` to `slot`, which has a relay.
    Order { slot: SlotId, order: Order },
    /// For reports: `slot` is kept vacant, or will be once its job has left it, for the work that
    /// `ctx` has announced.
    Reserve { slot: SlotId, ctx: ContextId },
    /// For reports: the job of `ctx` on `slot` has kept a context that preempts it at once waiting
    /// for a boundary for longer than
    /// [`Scheduler::boundary_wait`](super::Scheduler::boundary_wait), by `span`. Zero: the job is
    /// stopped where it is.
    Overrun {
        slot: SlotId,
        ctx: ContextId,
        span: Duration,
    },
    /// Set (`hold`) or clear the reset bit of `slot`, before a run of `ctx` or after it.
    Reset {
        slot: SlotId,
        ctx: ContextId,
        hold: bool,
    },
    /// The run of `ctx` on `slot` has ended. Unless it was aborted, read the declared result
    /// registers of `ctx` while they are still its own.
    Ended {
        slot: SlotId,
        ctx: ContextId,
        run: RunEnd,
    },
    /// Read the status register of `slot` and report it as [`Event::Status`] after this call has
    /// returned.
    ReadStatus { slot: SlotId },
    /// (Re-)arm the one timer of `slot` for the time `at`; an earlier arming is replaced.
    Arm { slot: SlotId, at: Time },
    /// The timer of `slot` is not needed now. It may still fire.
    Disarm { slot: SlotId },
    /// Notify the owner of `ctx` (after the lock is dropped).
    Wake { ctx: ContextId, wake: Wake },
    /// `ctx`, which was closed, is no longer on a slot and no DMA for it can follow: its memory may
    /// be unmapped. Its id is free from now on.
    Released { ctx: ContextId },
    /// The card is gone, and `ctx` is not closed: nothing that callers wait for on `ctx` will
    /// happen any more.
    Lost { ctx: ContextId },
    /// `slot` did not come out of reset: it is out of use and must be held in reset, and `ctx` (if
    /// any) must keep its memory mapped until the whole card is reset.
    Quarantine {
        slot: SlotId,
        ctx: Option<ContextId>,
    },
    /// A quarantined slot may also reach the memory of `ctx`, which was named for the slot: the
    /// memory must stay mapped until the whole card is reset.
    Stuck { ctx: ContextId },
    /// The scheduler has found itself inconsistent: a bug. Report it.
    Inconsistent,
}

/// Times around a START, for measuring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartTimes {
    /// The job is latency-critical.
    pub latency_critical: bool,
    /// How long the context has been queued, in total.
    pub wait: Duration,
    /// When the owner asked for the job, or rang for an empty queue, if this START is the first
    /// since then. `None` if the job was held meanwhile.
    pub arrived: Option<Time>,
    /// When the last run on the slot ended by itself, unless the slot has been left vacant since.
    pub idle_since: Option<Time>,
}

/// How a run ended, and what it cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunEnd {
    /// How it ended.
    pub reason: EndReason,
    /// From START to the observed end.
    pub span: Duration,
    /// From the first PAUSE to PAUSED, if that is the time of a save.
    pub save: Option<Duration>,
    /// The time of its restore as the card reports it; zero if it does not.
    pub restore: Duration,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The job finished.
    Finished,
    /// The job was saved.
    Paused,
    /// The job was saved, with an empty queue.
    Empty,
    /// The job was stopped at an access outside its window.
    Fault,
    /// The job's state could not be saved or restored.
    SnapshotError,
    /// The slot is reset: the job fails for this reason, or `None`: its context is closed.
    Aborted(Option<Failure>),
    /// A relay has stopped the job without saving it, or has not started it.
    Dropped,
}

/// Why a job has to leave its slot. `waiter`: the context for which it leaves.
#[allow(missing_docs, reason = "`waiter` is in the text above")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseCause {
    /// Its slice is over.
    Slice { waiter: ContextId },
    /// Another context goes before it under the policy.
    Outranked { waiter: ContextId },
    /// Another context has waited too long.
    Starving { waiter: ContextId },
    /// Its budget, its cap or the cap of its group is used up.
    Limit,
    /// It may no longer be on this slot.
    Slots,
    /// Another context has announced a job.
    Hint { waiter: ContextId },
    /// Its owner or an administrator has requested it.
    Request,
    /// Another job of its gang leaves its slot.
    Gang,
    /// All jobs are taken off the card.
    Freeze,
    /// An earlier PAUSE was not answered in time.
    Again,
}

/// Why an owner is notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The job finished.
    Done,
    /// The job failed.
    Failed(Failure),
    /// The job is off its slot and held.
    Held,
    /// The job is off its slot, because its queue is empty.
    Empty,
}

/// Why a job failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It did not pause within the preempt timeout; the slot was reset.
    PreemptTimeout,
    /// The card stopped it at an access outside its window.
    Fault,
    /// Its snapshot could not be saved or restored, or the card was cut off with the job on it.
    Snapshot,
    /// The card did not take the START, or reported something that its protocol does not have.
    Protocol,
    /// The card is gone.
    Gone,
}

/// Why a request was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No such context.
    NoContext,
    /// The context has a job that has not ended.
    Busy,
    /// The context has no job that could be preempted or resumed.
    NoJob,
    /// No slot in the mask has this engine, or none of them is in use.
    NoSlot,
    /// The storage is full.
    NoSpace,
    /// The class has too little left for the requested reservation, or a context with a reservation
    /// does not allow every slot.
    Admission,
    /// A value out of range.
    Range,
    /// The priority is above the ceiling of the context's group.
    Ceiling,
    /// Too many hints in too short a time.
    Rate,
    /// Groups would be nested too deeply.
    Depth,
    /// The card is gone.
    Gone,
}

/// One call: its time, where its actions go, and how much it may still do.
pub(super) struct Cx<'a> {
    pub(super) now: Time,
    out: &'a mut dyn FnMut(Action),
    has_started: bool,
    /// How many groups and contexts may still be throttled in each class.
    throttles: [u8; MAX_SLOTS],
    /// Answers that the plans made in this call share.
    pub(super) plan_cache: PlanCache,
}

/// How many groups and contexts of a class one decision throttles at most.
const THROTTLE_MAX: u8 = 8;
/// The time to the next decision if there is more to do for a class than one decision does. The
/// interrupt handler returns in between, so that other interrupts are handled.
const NEXT_DECISION: Duration = Duration::from_us(50);

impl<'a> Cx<'a> {
    pub(super) fn new(now: Time, out: &'a mut dyn FnMut(Action)) -> Self {
        Self {
            now,
            out,
            has_started: false,
            throttles: [THROTTLE_MAX; MAX_SLOTS],
            plan_cache: PlanCache::default(),
        }
    }

    /// Passes an action to the caller.
    pub(super) fn act(&mut self, action: Action) {
        (self.out)(action);
    }

    /// Returns when the next decision does what this one has left.
    pub(super) fn soon(&self) -> Time {
        self.now + NEXT_DECISION
    }

    /// Returns whether the decision may start a job. It may start only one: a START can require all
    /// registers of the slot to be written, and the caller has interrupts off.
    pub(super) fn may_start(&mut self) -> bool {
        !core::mem::replace(&mut self.has_started, true)
    }

    /// Returns whether the decision may throttle another group or context of a class.
    pub(super) fn may_throttle(&mut self, class: SlotId) -> bool {
        let throttles = &mut self.throttles[class.index() % MAX_SLOTS];
        let left = throttles.checked_sub(1);
        *throttles = left.unwrap_or(0);
        left.is_some()
    }

    /// Returns whether there may be more to throttle in a class: then it is not certain which
    /// context runs next on a slot.
    pub(super) fn is_throttling(&self, class: SlotId) -> bool {
        self.throttles[class.index() % MAX_SLOTS] == 0
    }
}
