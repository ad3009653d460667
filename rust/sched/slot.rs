// SPDX-License-Identifier: GPL-2.0

//! A slot: its configuration, its protocol state, its statistics.

use core::num::NonZeroU8;

use super::hints::Kept;
use super::reset::Reset;
use super::run::{Pause, Run};
use super::{ContextId, Duration, GroupKey, Stops, Time};

/// Slots that a card can have (docs/card.md).
pub const MAX_SLOTS: usize = 8;

/// Names one slot of a card: 0 to 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotId(
    /// The number, and one more: so an `Option` of it takes no more room.
    NonZeroU8,
);

impl SlotId {
    /// The slot number `n`; `None` above 7.
    #[inline]
    pub const fn new(n: u8) -> Option<Self> {
        match NonZeroU8::MIN.checked_add(n) {
            Some(next) if (n as usize) < MAX_SLOTS => Some(Self(next)),
            _ => None,
        }
    }

    /// The slot's number.
    pub const fn index(self) -> usize {
        (self.0.get() - 1) as usize
    }

    /// The slot's bit in a mask.
    pub const fn bit(self) -> u8 {
        1 << (self.0.get() - 1)
    }
}

/// The slots whose bit is set in `mask`, lowest first.
pub(super) fn slots_in(mask: u8) -> impl Iterator<Item = SlotId> {
    let mut left = mask;
    core::iter::from_fn(move || {
        // CAST: at most 8, which is no slot.
        let slot = SlotId::new(left.trailing_zeros() as u8)?;
        left &= !slot.bit();
        Some(slot)
    })
}

/// How much of its protocol the slot keeps by itself (docs/card.md, F and O).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// An Optimus slot: no interrupt, and PAUSED and FINISH come while DMA may still be under way.
    Base {
        /// How long the slot stays in reset until nothing of the last job can still arrive. It must also cover the
        /// time for which a status may be old after a START: the status after the reset has to be believed.
        settle: Duration,
    },
    /// PAUSED and FINISH come after the last DMA and raise an interrupt; the status counts the STARTs taken.
    Fermata,
}

/// What the caller knows of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotConfig {
    /// Its profile.
    pub profile: Profile,
    /// Its engine's class: the slots of one class are interchangeable and serve one queue. Any number.
    pub class: u8,
    /// The engine needs a reset before START_RESUME.
    pub reset_before_resume: bool,
    /// Fermata: its engine reads a queue of jobs, and leaves the slot by itself when it is empty.
    pub queues: bool,
    /// Where its engine can stop for a PAUSE.
    pub stops: Stops,
    /// Fermata: START_COUNT as read when the machine was made.
    pub start_count: u32,
}

/// What a slot does, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Nobody is on it.
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

/// What a slot has done since the machine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotStats {
    /// STARTs written.
    pub starts: u64,
    /// Of these, resumes.
    pub resumes: u64,
    /// Jobs that were asked to pause.
    pub pauses: u64,
    /// PAUSEs written again because the first was not answered in time.
    pub pauses_again: u64,
    /// Jobs saved.
    pub saves: u64,
    /// Status reads asked for, beyond those that the caller's interrupt makes.
    pub reads: u64,
    /// Resets that stopped a job by force: it was closed, or failed.
    pub resets: u64,
    /// Jobs that did not pause within their preempt timeout.
    pub timeouts: u64,
    /// Jobs that let another one wait for a boundary longer than [`Machine::boundary_wait`](super::Machine::boundary_wait).
    pub overruns: u64,
    /// The time beyond that, where the engine stops at boundaries only. It is a part of `busy`.
    pub overrun: Duration,
    /// Time from the first PAUSE to PAUSED, moving average over about eight saves; those at a boundary do not count. Where
    /// there were none, the same as `restore`.
    pub save: Duration,
    /// The longest of these; zero if there were none.
    pub save_max: Duration,
    /// Time of a restore as the card told it, moving average over about eight restores. Where it told none (base, and
    /// restores of less than a microsecond), the same as `save`.
    pub restore: Duration,
    /// The longest that it told; zero if it told none.
    pub restore_max: Duration,
    /// Time with a job on it, from each START to the observed end of the run.
    pub busy: Duration,
}

/// The protocol of one slot. The window may be changed in `Vacant` only: in every other state the engine may still
/// touch memory, or, on base, DMA of a job that has ended may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The card has no such slot.
    Absent,
    /// Quiescent; out of reset; nobody is on it.
    Vacant,
    /// START was written. Left by FINISH, by the end of the slice if somebody waits, by Preempt and by Close.
    Running(Run),
    /// PAUSE was written. Left by PAUSED, by FINISH (which wins: the job is complete), by the timeout and by Close.
    Pausing(Run, Pause),
    /// The reset bit was set. Left when the status reads IDLE (then the slot is quiescent) or after too many tries.
    Resetting(Reset),
    /// It never read IDLE: nothing is known of it, so nothing is done with it. The memory of the context that was on it, if
    /// any, stays in its reach.
    Quarantined(Option<ContextId>),
    /// The card is gone; so is every action.
    Gone,
}

impl State {
    /// The job on the slot, while it runs or is told to pause.
    pub(super) const fn run(&self) -> Option<Run> {
        match self {
            Self::Running(run) | Self::Pausing(run, _) => Some(*run),
            _ => None,
        }
    }

    /// Whose that is.
    pub(super) const fn ctx(&self) -> Option<ContextId> {
        match self {
            Self::Running(run) | Self::Pausing(run, _) => Some(run.ctx),
            _ => None,
        }
    }
}

/// One slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) config: SlotConfig,
    /// Index of the queue of its class.
    pub(super) queue: u8,
    pub(super) state: State,
    /// The only group that it serves.
    pub(super) exclusive: Option<GroupKey>,
    /// Whose hint it is kept vacant for, or made so.
    pub(super) kept: Option<Kept>,
    /// The window is open.
    pub(super) loaded: bool,
    /// It is vacant although somebody waits, because a decision starts one job only. The timer brings the next decision.
    pub(super) unfilled: bool,
    /// When the timer will fire, as far as we know.
    pub(super) armed: Option<Time>,
    /// The state was entered anew: what the timer was armed for is over.
    pub(super) entered: bool,
    /// Fermata: the START_COUNT that the card must show after the last START.
    pub(super) count: u32,
    pub(super) stats: SlotStats,
}

impl Slot {
    pub(super) const ABSENT: Self = Self {
        config: SlotConfig {
            profile: Profile::Fermata,
            class: 0,
            reset_before_resume: false,
            queues: false,
            stops: Stops::Anywhere,
            start_count: 0,
        },
        queue: 0,
        state: State::Absent,
        exclusive: None,
        kept: None,
        unfilled: false,
        loaded: false,
        armed: None,
        entered: false,
        count: 0,
        stats: SlotStats {
            starts: 0,
            resumes: 0,
            pauses: 0,
            pauses_again: 0,
            saves: 0,
            reads: 0,
            resets: 0,
            timeouts: 0,
            overruns: 0,
            overrun: Duration::ZERO,
            save: Duration::ZERO,
            save_max: Duration::ZERO,
            restore: Duration::ZERO,
            restore_max: Duration::ZERO,
            busy: Duration::ZERO,
        },
    };

    pub(super) const fn new(config: SlotConfig, queue: u8) -> Self {
        Self {
            config,
            queue,
            state: State::Vacant,
            count: config.start_count,
            ..Self::ABSENT
        }
    }

    /// The settle time of a base slot.
    pub(super) const fn settle(&self) -> Option<Duration> {
        match self.config.profile {
            Profile::Base { settle } => Some(settle),
            Profile::Fermata => None,
        }
    }

    pub(super) fn enter(&mut self, state: State) {
        self.state = state;
        self.entered = true;
    }

    /// A save was observed; it took `span`, if that could be measured.
    pub(super) fn saved(&mut self, span: Option<Duration>) {
        self.saved_for_hint(span);
        let stats = &mut self.stats;
        stats.saves += 1;
        let Some(span) = span else {
            return;
        };
        stats.save = if stats.save_max == Duration::ZERO {
            span
        } else {
            stats.save.averaged(span)
        };
        stats.save_max = stats.save_max.max(span);
    }

    /// The card told that a restore took `span`; zero if it did not.
    pub(super) fn restored(&mut self, span: Duration) {
        if span == Duration::ZERO {
            return;
        }
        let stats = &mut self.stats;
        stats.restore = if stats.restore_max == Duration::ZERO {
            span
        } else {
            stats.restore.averaged(span)
        };
        stats.restore_max = stats.restore_max.max(span);
    }

    /// What a save takes here, as far as is known: what was not measured is taken to cost as much as a restore.
    pub(super) fn save(&self) -> Duration {
        if self.stats.save_max == Duration::ZERO {
            self.stats.restore
        } else {
            self.stats.save
        }
    }

    /// What a restore takes here, as far as is known: what was not measured is taken to cost as much as a save.
    pub(super) fn restore(&self) -> Duration {
        if self.stats.restore_max == Duration::ZERO {
            self.stats.save
        } else {
            self.stats.restore
        }
    }

    /// What a job that leaves and comes back costs.
    pub(super) fn switch(&self) -> Duration {
        self.save() + self.restore()
    }
}
