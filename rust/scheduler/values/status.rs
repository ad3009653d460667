// SPDX-License-Identifier: GPL-2.0

//! The status register of a slot (docs/registers.md, Status).

use super::Duration;

/// The raw 64 bits of CSR_TRANSACTION_CTL as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(u64);

/// The activity of the engine of a slot: bits 7:0 of its status.
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
    /// [`Scheduler::disconnect`](crate::scheduler::Scheduler::disconnect).
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
