// SPDX-License-Identifier: GPL-2.0

//! The scheduler's reports of contexts, slots and groups.

use super::{ContextId, Duration, JobState, SlotId, Time, WaitReason};

/// The work of a context so far, including its current run, and its state.
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
    /// The job may run: [`Scheduler::set_enabled`](crate::scheduler::Scheduler::set_enabled).
    pub enabled: bool,
    /// The context or a member of its gang has a hold ([`Scheduler::hold`](crate::scheduler::Scheduler::hold)).
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
    /// ([`Scheduler::start`](crate::scheduler::Scheduler::start)).
    pub replays: u64,
    /// Jobs finished.
    pub finished: u64,
    /// Jobs failed.
    pub failed: u64,
    /// The time of the pending hint.
    pub hint: Option<Time>,
    /// Hints given: [`Scheduler::hint`](crate::scheduler::Scheduler::hint)(super::Event::Hint).
    pub hints: u64,
    /// Of these, hints that were followed by a job.
    pub hints_used: u64,
    /// Hints that no job followed in time, or that were withdrawn after they had cost something.
    pub hints_wasted: u64,
}

impl Stats {
    /// Returns for how long the context has wanted no slot; `None`: it wants one, or is on one.
    pub fn idle(&self) -> Option<Duration> {
        (!self.state.wants_slot()).then_some(self.lasted)
    }
}

/// The statistics of a group, including the groups below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupStats {
    /// Contexts of the group that were not released.
    pub contexts: u32,
    /// Its weight relative to its siblings.
    pub weight: u16,
    /// Time on slots that contexts have had while they belonged to the group, including current
    /// runs. Starts over after the group was forgotten; a registered group is never forgotten.
    pub run: Duration,
}

/// The state of a slot, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// No context is on it.
    Vacant,
    /// The job of a context runs.
    Running(ContextId),
    /// PAUSE was written and not yet answered.
    Pausing(ContextId),
    /// The slot is being reset, or settles, after a job.
    Resetting(ContextId),
    /// It did not come out of reset and is out of use until the whole card is reset.
    Quarantined,
    /// The card is gone.
    Gone,
}

impl SlotState {
    /// Returns its name, for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vacant => "vacant",
            Self::Running(_) => "running",
            Self::Pausing(_) => "pausing",
            Self::Resetting(_) => "resetting",
            Self::Quarantined => "quarantined",
            Self::Gone => "gone",
        }
    }

    /// Returns the context that is on the slot.
    pub fn context(self) -> Option<ContextId> {
        match self {
            Self::Running(ctx) | Self::Pausing(ctx) | Self::Resetting(ctx) => Some(ctx),
            Self::Vacant | Self::Quarantined | Self::Gone => None,
        }
    }
}

/// What a slot has done since the scheduler was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotStats {
    /// STARTs written.
    pub starts: u64,
    /// Of these, resumes.
    pub resumes: u64,
    /// Jobs that were told to pause.
    pub pauses: u64,
    /// PAUSEs written again because the first was not answered in time.
    pub pauses_again: u64,
    /// Jobs saved.
    pub saves: u64,
    /// Status reads that were requested, beyond those that the caller's interrupt handler makes.
    pub reads: u64,
    /// Resets that stopped a job by force: its context was closed, or the job failed.
    pub resets: u64,
    /// Jobs that did not pause within their preempt timeout.
    pub timeouts: u64,
    /// Jobs that kept another context waiting for a boundary longer than
    /// [`Scheduler::boundary_wait`](crate::scheduler::Scheduler::boundary_wait).
    pub overruns: u64,
    /// The time in excess of it, if the engine stops at boundaries only. It is a part of `busy`.
    pub overrun: Duration,
    /// Time from the first PAUSE to PAUSED, moving average over about eight saves; saves at a
    /// boundary do not count. The same as `restore` if there were none.
    pub save: Duration,
    /// The longest of these; zero if there were none.
    pub save_max: Duration,
    /// Time of a restore as the card reports it, moving average over about eight restores. The same
    /// as `save` if the card reported none (base, and restores of less than a microsecond).
    pub restore: Duration,
    /// The longest restore that the card reported; zero if it reported none.
    pub restore_max: Duration,
    /// Time with a job on it, from each START to the observed end of the run.
    pub busy: Duration,
}

impl SlotStats {
    /// Counts a save that was observed, and took `span` if that could be measured.
    pub(crate) fn note_save(&mut self, span: Option<Duration>) {
        self.saves += 1;
        if let Some(span) = span {
            self.save = average(self.save, self.save_max, span);
            self.save_max = self.save_max.max(span);
        }
    }

    /// Counts a restore, which took `span`; zero: the card did not report its time.
    pub(crate) fn note_restore(&mut self, span: Duration) {
        if span != Duration::ZERO {
            self.restore = average(self.restore, self.restore_max, span);
            self.restore_max = self.restore_max.max(span);
        }
    }
}

/// Returns the moving average after `span`; `max` is zero before the first one.
fn average(before: Duration, max: Duration, span: Duration) -> Duration {
    if max == Duration::ZERO {
        span
    } else {
        before.averaged(span)
    }
}
