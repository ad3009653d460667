// SPDX-License-Identifier: GPL-2.0

//! What goes into the scheduler and what comes out of it.

use super::plan_cache::PlanCache;
use super::{ContextId, Duration, Order, SlotId, Status, Time, MAX_SLOTS};

/// How a job starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewJob {
    /// The job may be run again from its beginning, whatever it has done to its memory, when its
    /// state could not be saved or restored; three times, and only then it fails with
    /// [`Failure::Snapshot`].
    pub replayable: bool,
    /// The owner has put a complete state into the snapshot, and the job goes on from the state
    /// instead of its beginning.
    pub saved: bool,
    /// The job waits for no slot before [`Event::Resume`].
    pub held: bool,
}

/// What the jobs of a context came to elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastJobs {
    /// Why the last one failed; `None`: it finished.
    pub last: Option<Failure>,
    /// Jobs finished.
    pub finished: u64,
    /// Jobs failed.
    pub failed: u64,
}

/// Something that happened.
///
/// The first group are requests of a context's owner, which may be refused; the second group comes
/// from the card and its timers and is never refused.
#[allow(
    missing_docs,
    reason = "`slot` and `ctx` name the slot and the context meant; the rest is in each variant's text"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Start a new job. Refused with [`Refusal::Busy`] while the last one has not ended.
    Start { ctx: ContextId, job: NewJob },
    /// Take the job off its slot as soon as it can be saved. With `hold` it stays off until
    /// [`Event::Resume`]. Without, it is queued again, but behind the next one that waits for the
    /// slot: behind its equals, and under weighted fair no further ahead than that one. If nobody
    /// waits it goes on. The same is done to the jobs of its gang.
    Preempt { ctx: ContextId, hold: bool },
    /// Let a held job run again, and those of its gang.
    Resume { ctx: ContextId },
    /// There is work in the context's queue again: a job in
    /// [`JobState::Empty`](super::JobState::Empty) waits for a slot again, and one on its slot does
    /// so when it leaves the slot with an empty queue. Refused with [`Refusal::NoJob`].
    Ring { ctx: ContextId },
    /// The context will start a job, or find one in its empty queue, at `at`: a slot is made vacant
    /// in time, if the job would preempt what runs at once. One hint stands at a time; a new one
    /// replaces it, and the time zero takes it back. Refused with [`Refusal::Busy`] while a job has
    /// not ended and its queue is not empty, with [`Refusal::Range`] unless `at` is in the next
    /// 10 s, and with [`Refusal::Rate`] if the last hint was given less than 100 us ago and no job
    /// started since.
    Hint { ctx: ContextId, at: Time },
    /// The owner is gone: stop the job without saving it. [`Action::Released`] follows, at once or
    /// later.
    Close { ctx: ContextId },

    /// The status register of `slot` was read.
    Status { slot: SlotId, status: Status },
    /// The timer armed by [`Action::Arm`] fired (or fired early, or late: only the time counts).
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
    /// `slot`; where that has a relay, to what the card reads of `ctx` in memory.
    Load { slot: SlotId, ctx: ContextId },
    /// Close the window of `slot`, which is that of `ctx`: no memory may be touched from here on
    /// (size 0 where the card has a window).
    Unload { slot: SlotId, ctx: ContextId },
    /// Write START_RESUME (`resume`) or START_NEW to `slot`. Where that has a relay, only for
    /// reports: the job was or will be started by an order. `boosted`: another context goes first
    /// under the policy, but `ctx` has waited for too long.
    Start {
        slot: SlotId,
        ctx: ContextId,
        resume: bool,
        boosted: bool,
        times: StartTimes,
    },
    /// Write PAUSE_AT_BOUNDARY (`boundary`) or PAUSE to `slot`, where `ctx` is. Where the slot has a
    /// relay, only for reports: an order stops the job. `late`: of a PAUSE
    /// that the timer of the slot has brought, how late that was.
    Pause {
        slot: SlotId,
        ctx: ContextId,
        boundary: bool,
        cause: PauseCause,
        late: Option<Duration>,
    },
    /// Write `order` to `slot`, which has a relay.
    Order { slot: SlotId, order: Order },
    /// For reports: `slot` is kept vacant, or will be once its job is off it, for the work that
    /// `ctx` has announced.
    Reserve { slot: SlotId, ctx: ContextId },
    /// For reports: the job of `ctx` on `slot` let another one that goes before it wait for a
    /// boundary for longer than [`Scheduler::boundary_wait`](super::Scheduler::boundary_wait),
    /// `span` longer. Zero: it is stopped where it is.
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
    /// Read the status register of `slot` and bring it back as [`Event::Status`] after this call
    /// returned.
    ReadStatus { slot: SlotId },
    /// (Re-)arm the one timer of `slot` for the time `at`; an earlier arming is replaced.
    Arm { slot: SlotId, at: Time },
    /// The timer of `slot` is not needed now. It may fire all the same.
    Disarm { slot: SlotId },
    /// Tell the owner of `ctx` (after the lock is dropped).
    Wake { ctx: ContextId, wake: Wake },
    /// `ctx`, which was closed, is on no slot any more and no DMA for it can follow: its memory may
    /// be unmapped. Its id is free from now on.
    Released { ctx: ContextId },
    /// The card is gone: whoever waits for anything of `ctx`, which is not closed, waits in vain.
    Lost { ctx: ContextId },
    /// `slot` did not even come out of a reset: it is out of use and to be held in reset, and `ctx`
    /// (if any) must keep its memory mapped until the whole card is reset.
    Quarantine {
        slot: SlotId,
        ctx: Option<ContextId>,
    },
    /// A slot that is quarantined may reach the memory of `ctx` too, which was named for it: the
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
    /// For how long the context has been queued, in all.
    pub wait: Duration,
    /// When the owner asked for the job, or rang for an empty queue, if this START is the first
    /// since. Not where the job was held meanwhile.
    pub arrived: Option<Time>,
    /// When the last run on the slot ended by itself, unless the slot was left vacant since.
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
    /// The time of its restore, as the card tells it; zero if it does not.
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
    /// The slot is reset.
    Aborted,
    /// A relay has stopped the job without saving it, or not begun it.
    Dropped,
}

/// Why a job has to leave its slot. `waiter`: for whom.
#[allow(missing_docs, reason = "`waiter` is in the text above")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseCause {
    /// Its slice is over.
    Slice { waiter: ContextId },
    /// One goes before it under the policy.
    Outranked { waiter: ContextId },
    /// One has waited for too long.
    Starving { waiter: ContextId },
    /// Its budget, its cap or that of its group is used up.
    Limit,
    /// It may not be on this slot any more.
    Slots,
    /// One has announced that it will come.
    Hint { waiter: ContextId },
    /// Its owner or an administrator wants it.
    Request,
    /// Another job of its gang makes way.
    Gang,
    /// All jobs are taken off the card.
    Freeze,
    /// An earlier PAUSE was not answered in time.
    Again,
}

/// Why an owner is told.
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
    /// The card did not take the START, or reported something that its protocol does not know.
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
    /// No slot in the mask computes this engine, or none that is in use.
    NoSlot,
    /// The storage is full.
    NoSpace,
    /// The class has not enough left of what the context wants to reserve, or the reservation does
    /// not allow every slot.
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

/// Groups and contexts of a class that one decision throttles.
const THROTTLE_MAX: u8 = 8;

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

    /// Has the caller do something.
    pub(super) fn act(&mut self, action: Action) {
        (self.out)(action);
    }

    /// Returns whether the decision may start a job, which it may once: a job can have all
    /// registers of the slot to be written, and the caller has interrupts off.
    pub(super) fn may_start(&mut self) -> bool {
        !core::mem::replace(&mut self.has_started, true)
    }

    /// Returns whether the decision may throttle one more of a class.
    pub(super) fn may_throttle(&mut self, class: SlotId) -> bool {
        let throttles = &mut self.throttles[class.index() % MAX_SLOTS];
        let left = throttles.checked_sub(1);
        *throttles = left.unwrap_or(0);
        left.is_some()
    }

    /// Returns whether there may be more to throttle in a class: then nobody is next on a slot for
    /// certain.
    pub(super) fn is_throttling(&self, class: SlotId) -> bool {
        self.throttles[class.index() % MAX_SLOTS] == 0
    }
}
