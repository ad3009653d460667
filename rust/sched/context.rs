// SPDX-License-Identifier: GPL-2.0

//! A context as the scheduler sees it, and the state of its job.

use super::bandwidth::Bandwidth;
use super::ids::{ContextIndex, GroupIndex};
use super::{Duration, Failure, GroupKey, Params, SlotId, Time};

/// The state of the job of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// There has been no job yet.
    Idle,
    /// It waits for a slot.
    Queued,
    /// It is on a slot: it runs, is being saved, or the slot is being cleared after it.
    Running,
    /// It is off its slot and waits for [`Event::Resume`](super::Event::Resume).
    Held,
    /// It is off its slot because its queue is empty, and waits for
    /// [`Event::Ring`](super::Event::Ring).
    Empty,
    /// The last job finished.
    Done,
    /// The last job failed.
    Failed(Failure),
}

impl JobState {
    /// Returns whether the job has begun and not ended.
    pub const fn is_live(self) -> bool {
        matches!(
            self,
            Self::Queued | Self::Running | Self::Held | Self::Empty
        )
    }

    /// Returns whether the job waits for a slot or is on one.
    pub const fn wants_slot(self) -> bool {
        matches!(self, Self::Queued | Self::Running)
    }

    /// Returns whether the context needs no slot until its owner asks for more.
    pub const fn wants_nothing(self) -> bool {
        !self.is_live() || matches!(self, Self::Empty)
    }
}

/// Why a queued job is on no slot. The first reason in this order that applies is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// The context is disabled.
    Disabled,
    /// No slot that the context may use is in use.
    NoSlot,
    /// No job may run on the card: [`Scheduler::freeze`](super::Scheduler::freeze).
    Frozen,
    /// The budget of its reservation is used up.
    Budget,
    /// Its own cap is used up.
    Cap,
    /// The cap of this group, which is its own or above, is used up.
    GroupCap(GroupKey),
    /// The members of its gang are put on slots together.
    Gang,
    /// It waits for its turn under the policy.
    Turn,
}

/// What a context has done, including its current run, and its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// The state of its job.
    pub state: JobState,
    /// The slot that it is on, if any.
    pub slot: Option<SlotId>,
    /// The snapshot holds the complete state of the job, and the job will be resumed from it. The
    /// snapshot may be read while the job is held.
    pub saved: bool,
    /// The job is queued, but must not run yet: a budget or cap is used up.
    pub throttled: bool,
    /// The job may run: [`Scheduler::set_enabled`](super::Scheduler::set_enabled).
    pub enabled: bool,
    /// The context or a member of its gang has a hold ([`Event::Hold`](super::Event::Hold)).
    pub has_hold: bool,
    /// None of the slots that the context may use while it is enabled is in use: a job that it
    /// starts waits until one is.
    pub no_slot: bool,
    /// Why the job is queued; `None`: it is not.
    pub waits: Option<WaitReason>,
    /// How long the job has been queued, or on its slot since the last START; in other states, for
    /// how long the context has wanted no slot. Zero while a relay is only told to run it next.
    pub lasted: Duration,
    /// The number of the current or last job; the first one is 1. So this is also the number of
    /// jobs that were started.
    pub job: u64,
    /// Time on a slot, from each START to the observed end of the run, including restores and
    /// saves.
    pub run: Duration,
    /// Time in the queue.
    pub wait: Duration,
    /// STARTs written for it, including resumes.
    pub slices: u64,
    /// Of these, resumes from a snapshot.
    pub resumes: u64,
    /// Saves completed.
    pub preemptions: u64,
    /// The current or last job may be run again from its beginning.
    pub replayable: bool,
    /// How often the current or last job was run again from its beginning
    /// ([`Event::Start`](super::Event::Start)).
    pub replays: u64,
    /// Jobs finished.
    pub finished: u64,
    /// Jobs failed.
    pub failed: u64,
    /// The time of the pending hint.
    pub hint: Option<Time>,
    /// Hints given: [`Event::Hint`](super::Event::Hint).
    pub hints: u64,
    /// Of these, hints that were followed by a job.
    pub hints_used: u64,
    /// Hints that no job followed in time, or that were withdrawn after they had cost something.
    pub hints_wasted: u64,
    /// Hints that were ignored, because other hints had wasted too much before.
    pub hints_ignored: u64,
}

impl Stats {
    /// Returns for how long the context has wanted no slot; `None`: it wants one, or is on one.
    pub fn idle(&self) -> Option<Duration> {
        (!self.state.wants_slot()).then_some(self.lasted)
    }
}

/// The queue of its class that the entity of a context is linked in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Linked {
    /// None.
    No,
    /// The contexts that wait for a slot, in the class or in its group.
    Ready,
    /// The contexts that wait until a budget or cap is refilled.
    Throttled,
    /// The contexts that its throttled group keeps back.
    Behind,
    /// None, because its job waits and may use no slot.
    Ineligible,
    /// None, because its job waits until its gang can wait for slots.
    Gathering,
    /// The hints of work that preempts best-effort work at once.
    UrgentHint,
    /// The other hints.
    CommonHint,
}

/// What happens to a job on a slot when it leaves the slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum OnStop {
    /// It is queued; with an empty queue, it waits for the doorbell.
    #[default]
    Requeue,
    /// It is queued, because the doorbell has been rung.
    Rung,
    /// It is held.
    Hold,
}

/// How often a job whose state was lost may be run again: a card that corrupts every save must not
/// keep the job running for ever.
const RESTARTS_MAX: u8 = 3;

/// Whether the job of a context may be run again from its beginning, and how often it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restarts {
    Forbidden,
    Allowed { done: u8 },
}

impl Restarts {
    pub(super) const fn of_new_job(replayable: bool) -> Self {
        if replayable {
            Self::Allowed { done: 0 }
        } else {
            Self::Forbidden
        }
    }

    /// Returns how often the job was run again.
    pub(super) const fn count(self) -> u8 {
        match self {
            Self::Forbidden => 0,
            Self::Allowed { done } => done,
        }
    }

    /// Counts another restart if that is allowed, and returns whether it is.
    pub(super) fn restart(&mut self) -> bool {
        match self {
            Self::Allowed { done } if *done < RESTARTS_MAX => {
                *done += 1;
                true
            }
            _ => false,
        }
    }
}

/// What became of the hints of a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HintCounts {
    pub(super) given: u32,
    pub(super) used: u32,
    pub(super) wasted: u32,
    pub(super) ignored: u32,
}

/// The scheduler's state of one context. Opaque: the caller provides the storage for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct SchedContext {
    pub(super) linked: Linked,
    pub(super) group: GroupIndex,
    /// The first slot of its class.
    pub(super) class: SlotId,
    pub(super) params: Params,
    pub(super) bandwidth: Bandwidth,
    pub(super) state: JobState,
    pub(super) slot: Option<SlotId>,
    pub(super) on_stop: OnStop,
    /// Its job was started held, or a hold of the job was requested, until RESUME.
    pub(super) hold_requested: bool,
    /// How many holds it has ([`Event::Hold`](super::Event::Hold)).
    pub(super) holds: u32,
    /// The next waiting job goes first when this one leaves its slot.
    pub(super) yields: bool,
    /// The snapshot holds a complete save that has not been resumed yet.
    pub(super) saved: bool,
    pub(super) restarts: Restarts,
    /// The owner has closed it; it is released once no slot can reach its memory.
    pub(super) closing: bool,
    /// A slot that did not come out of reset may still reach its memory.
    pub(super) stuck: bool,
    pub(super) enabled: bool,
    /// The next member of its gang, in a ring.
    pub(super) gang: Option<ContextIndex>,
    /// When its job was queued; if it wants no slot, since when.
    pub(super) since: Time,
    /// It has a current run, which is charged until `charged_until`.
    pub(super) charging: bool,
    pub(super) charged_until: Time,
    /// Its owner asked for a job, at `arrived`, for which no START was written yet.
    pub(super) arriving: bool,
    pub(super) arrived: Time,
    /// When it gave its last hint; zero: it has started a job since then.
    pub(super) hinted_at: Time,
    pub(super) hints: HintCounts,
    pub(super) run: Duration,
    pub(super) wait: Duration,
    pub(super) slices: u64,
    pub(super) resumes: u64,
    pub(super) preemptions: u64,
    pub(super) finished: u64,
    pub(super) failed: u64,
}

// 4,096 contexts take one MiB.
const _: () = assert!(core::mem::size_of::<SchedContext>() <= 256);

impl SchedContext {
    pub(super) fn new(class: SlotId, params: Params, group: GroupIndex, now: Time) -> Self {
        Self {
            linked: Linked::No,
            group,
            class,
            params,
            bandwidth: Bandwidth::with_budget(params.budget),
            state: JobState::Idle,
            slot: None,
            on_stop: OnStop::Requeue,
            hold_requested: false,
            holds: 0,
            yields: false,
            saved: false,
            restarts: Restarts::Forbidden,
            closing: false,
            stuck: false,
            enabled: true,
            gang: None,
            since: now,
            charging: false,
            charged_until: Time::ZERO,
            arriving: false,
            arrived: Time::ZERO,
            hinted_at: Time::ZERO,
            hints: HintCounts::default(),
            run: Duration::ZERO,
            wait: Duration::ZERO,
            slices: 0,
            resumes: 0,
            preemptions: 0,
            finished: 0,
            failed: 0,
        }
    }

    /// Returns the part of the current run that was not charged yet.
    pub(super) fn uncharged(&self, now: Time) -> Duration {
        if self.charging {
            now.since(self.charged_until)
        } else {
            Duration::ZERO
        }
    }

    /// Sets the state of a context that wants no slot.
    pub(super) fn rest(&mut self, now: Time, state: JobState) {
        if self.state.wants_slot() {
            self.since = now;
        }
        self.state = state;
    }

    /// Returns the number of the current or last job.
    pub(super) fn job(&self) -> u64 {
        self.finished + self.failed + u64::from(self.state.is_live())
    }

    /// Returns whether the job waits for a slot in the ready queue.
    pub(super) fn is_ready(&self) -> bool {
        self.linked == Linked::Ready
    }

    /// Returns whether a hint is pending.
    pub(super) fn has_hint(&self) -> bool {
        matches!(self.linked, Linked::UrgentHint | Linked::CommonHint)
    }

    /// Returns the statistics of the context. `has_hold`, `no_slot`, the throttling of its group,
    /// its hint, the reason why it waits and the time of its run are left to the caller.
    pub(super) fn stats(&self, now: Time) -> Stats {
        let lasted = match self.state {
            JobState::Running => Duration::ZERO,
            _ => now.since(self.since),
        };
        let waited = match self.state {
            JobState::Queued => lasted,
            _ => Duration::ZERO,
        };
        Stats {
            state: self.state,
            slot: self.slot,
            saved: self.saved,
            throttled: matches!(self.linked, Linked::Throttled | Linked::Behind),
            enabled: self.enabled,
            has_hold: false,
            no_slot: false,
            waits: None,
            lasted,
            job: self.job(),
            run: self.run + self.uncharged(now),
            wait: self.wait + waited,
            slices: self.slices,
            resumes: self.resumes,
            preemptions: self.preemptions,
            replayable: self.restarts != Restarts::Forbidden,
            replays: self.restarts.count().into(),
            finished: self.finished,
            failed: self.failed,
            hint: None,
            hints: self.hints.given.into(),
            hints_used: self.hints.used.into(),
            hints_wasted: self.hints.wasted.into(),
            hints_ignored: self.hints.ignored.into(),
        }
    }
}
