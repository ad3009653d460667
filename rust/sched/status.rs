// SPDX-License-Identifier: GPL-2.0

//! The status register of a slot (docs/registers.md, Status), and what a status says of a run.

use super::run::Run;
use super::slot_config::SlotConfig;
use super::{Duration, Profile, Time};

/// Base: how long after START the status may still read IDLE.
const START_LAG_MAX: Duration = Duration::from_ms(50);

/// The raw 64 bits of CSR_TRANSACTION_CTL as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(u64);

/// What the engine of a slot does: bits 7:0 of its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing; no job since the last reset.
    Idle,
    /// It runs, saves or restores.
    Running,
    /// The job ended.
    Finish,
    /// The job was saved.
    Paused,
    /// A value that docs/registers.md does not define.
    Unknown,
}

impl Status {
    /// The value of every register of a card that is gone.
    pub const ALL_ONES: Self = Self(u64::MAX);

    /// The status of a slot that does not answer, of a card that does: an unknown phase.
    pub const UNANSWERED: Self = Self(0xff);

    const FAULT: u64 = 1 << 8;
    const SNAPSHOT_ERROR: u64 = 1 << 9;
    const EMPTY: u64 = 1 << 10;

    /// Returns the status of a value as read.
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// Returns the register's value.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Returns whether this read says that the card is gone. The caller then sends
    /// [`Event::Gone`](super::Event::Gone).
    pub const fn is_gone(self) -> bool {
        self.0 == u64::MAX
    }

    /// Returns what the engine does.
    pub const fn phase(self) -> Phase {
        match self.0 & 0xff {
            0 => Phase::Idle,
            1 => Phase::Running,
            2 => Phase::Finish,
            4 => Phase::Paused,
            _ => Phase::Unknown,
        }
    }

    /// irq and relay profiles: returns whether the job was stopped at an access outside its window.
    pub const fn fault(self) -> bool {
        self.0 & Self::FAULT != 0
    }

    /// irq and relay profiles: returns whether a save or a restore failed.
    pub const fn snapshot_error(self) -> bool {
        self.0 & Self::SNAPSHOT_ERROR != 0
    }

    /// irq and relay profiles: returns whether the engine paused, by itself or not, with an empty queue.
    pub const fn empty(self) -> bool {
        self.0 & Self::EMPTY != 0
    }

    /// irq and relay profiles: returns how long the restore of this run took, to the microsecond and at
    /// most 1.05 s; zero after START_NEW and while the engine restores. Base: zero.
    pub const fn restore(self) -> Duration {
        Duration::from_us((self.0 >> 12) & 0xf_ffff)
    }

    /// irq and relay profiles: returns how many STARTs the slot has accepted since power-on, modulo 2^32.
    pub const fn start_count(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// What a status says of the job on the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatusClass {
    /// It runs, or will.
    Running,
    /// The status may be older than the START: it must be read once more.
    Stale,
    /// It was saved.
    Paused,
    /// It was saved with an empty queue.
    Empty,
    /// It finished.
    Finished,
    /// It was stopped at an access outside its window.
    Fault,
    /// Its state could not be saved or restored.
    SnapshotError,
    /// The slot does what its protocol does not allow.
    Violation,
}

impl Status {
    /// Returns what the status says of a run. `count`: the START count of the slot after the START
    /// of the run.
    pub(super) fn classify(
        self,
        config: &SlotConfig,
        run: &Run,
        count: u32,
        now: Time,
    ) -> StatusClass {
        // It has no START count.
        if self == Self::UNANSWERED {
            return StatusClass::Violation;
        }
        match config.profile {
            Profile::Irq => self.classify_irq(config, run, count),
            Profile::Relay => self.classify_relay(run, count),
            Profile::Base { .. } => self.classify_base(config, run, now),
        }
    }

    /// Classifies a status on the irq profile. The count tells a status of this run from an
    /// older one. A read that follows the START cannot show an older one, unless the card did not
    /// take the START.
    fn classify_irq(self, config: &SlotConfig, run: &Run, count: u32) -> StatusClass {
        if self.start_count() != count {
            return if run.suspect {
                StatusClass::Violation
            } else {
                StatusClass::Stale
            };
        }
        match self.phase() {
            Phase::Running => StatusClass::Running,
            Phase::Finish | Phase::Paused if self.fault() => StatusClass::Fault,
            Phase::Finish | Phase::Paused if self.snapshot_error() => StatusClass::SnapshotError,
            Phase::Finish => StatusClass::Finished,
            Phase::Paused if config.queues && self.empty() => StatusClass::Empty,
            Phase::Paused if run.pause.is_some() => StatusClass::Paused,
            Phase::Paused | Phase::Idle | Phase::Unknown => StatusClass::Violation,
        }
    }

    /// Classifies a status of a slot with a relay. A run that has ended leaves a record, which is
    /// read after the status: none was found.
    fn classify_relay(self, run: &Run, count: u32) -> StatusClass {
        let is_own = self.start_count() == count;
        match self.phase() {
            Phase::Running if is_own => StatusClass::Running,
            _ if is_own || run.suspect => StatusClass::Violation,
            // The answer of a run that was given up may arrive late.
            _ => StatusClass::Stale,
        }
    }

    /// Classifies a status on the base profile. There is no count, but the slot was reset before
    /// the START, so an older status can only be IDLE. A card with a window, a snapshot unit or
    /// queues, but without interrupts, reports faults, snapshot errors and empty queues, too.
    fn classify_base(self, config: &SlotConfig, run: &Run, now: Time) -> StatusClass {
        let is_fresh = !run.seen_running && now.since(run.started) <= START_LAG_MAX;
        let is_written = run.pause.is_some_and(|pause| pause.unwritten.is_none());
        match self.phase() {
            Phase::Running => StatusClass::Running,
            Phase::Finish if self.fault() => StatusClass::Fault,
            Phase::Finish if self.snapshot_error() => StatusClass::SnapshotError,
            Phase::Finish => StatusClass::Finished,
            Phase::Paused if self.empty() && config.queues => StatusClass::Empty,
            Phase::Paused if is_written => StatusClass::Paused,
            Phase::Idle if is_fresh => StatusClass::Running,
            // It may have arrived right behind a START that was late: Optimus's engines show RUNNING
            // one cycle after it.
            Phase::Idle if !run.seen_running && !run.suspect => StatusClass::Stale,
            Phase::Paused | Phase::Idle | Phase::Unknown => StatusClass::Violation,
        }
    }
}
