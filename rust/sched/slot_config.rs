// SPDX-License-Identifier: GPL-2.0

//! What the caller knows of a slot, and what a slot reports.

use super::{ContextId, Duration};

/// The protocol that a slot keeps (docs/registers.md, F and O).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// An Optimus slot: no interrupt, and PAUSED and FINISH come while DMA may still be in flight.
    Base {
        /// How long the slot stays in reset until nothing of the last job can still arrive. It must
        /// also cover the time for which a status may be stale after a START, because the status
        /// after the reset must be reliable.
        settle: Duration,
        /// How long after a START the engine cannot be saved, so that no PAUSE is written.
        unsavable: Duration,
    },
    /// PAUSED and FINISH come after the last DMA and raise an interrupt; the status counts the
    /// STARTs that the slot has accepted.
    Irq,
    /// The slot takes orders, continues with the next context by itself, and leaves a record of
    /// each run; otherwise the same as [`Profile::Irq`].
    Relay,
}

/// Where the engine of a slot can stop for a PAUSE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreemptGranularity {
    /// At any point, and it knows no boundaries: its contexts are never cooperative.
    #[default]
    Anywhere,
    /// At any point, or at its next boundary if told to do so.
    AnywhereOrBoundary,
    /// At a boundary only: its contexts are always cooperative.
    BoundaryOnly,
}

/// What the caller knows of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotConfig {
    /// Its profile.
    pub profile: Profile,
    /// Its engine's class: the slots of one class are interchangeable and serve one queue. Any
    /// number.
    pub class: u8,
    /// The engine needs a reset before START_RESUME.
    pub reset_before_resume: bool,
    /// irq and relay: its engine reads a queue of jobs, and leaves the slot by itself when the queue is
    /// empty.
    pub queues: bool,
    /// Where its engine can stop for a PAUSE.
    pub granularity: PreemptGranularity,
    /// irq and relay: START_COUNT as read when the scheduler was made.
    pub start_count: u32,
}

impl SlotConfig {
    /// A slot of the irq profile whose engine has no optional feature.
    pub const PLAIN: Self = Self {
        profile: Profile::Irq,
        class: 0,
        reset_before_resume: false,
        queues: false,
        granularity: PreemptGranularity::Anywhere,
        start_count: 0,
    };

    /// Returns whether the slot takes orders.
    pub(super) const fn has_relay(&self) -> bool {
        matches!(self.profile, Profile::Relay)
    }

    /// Returns the settle time of a base slot.
    pub(super) const fn settle(&self) -> Option<Duration> {
        match self.profile {
            Profile::Base { settle, .. } => Some(settle),
            Profile::Irq | Profile::Relay => None,
        }
    }

    /// Returns how long after a START no PAUSE may be written.
    pub(super) const fn unsavable(&self) -> Duration {
        match self.profile {
            Profile::Base { unsavable, .. } => unsavable,
            Profile::Irq | Profile::Relay => Duration::ZERO,
        }
    }
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
    /// [`Scheduler::boundary_wait`](super::Scheduler::boundary_wait).
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

    /// Returns the time of a save, as far as is known: a save that was not measured is taken to
    /// cost as much as a restore.
    pub(super) fn save(&self) -> Duration {
        if self.save_max == Duration::ZERO {
            self.restore
        } else {
            self.save
        }
    }

    /// Returns the time of a restore, as far as is known: a restore that was not measured is taken
    /// to cost as much as a save.
    pub(super) fn restore(&self) -> Duration {
        if self.restore_max == Duration::ZERO {
            self.save
        } else {
            self.restore
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
