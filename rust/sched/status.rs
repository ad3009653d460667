// SPDX-License-Identifier: GPL-2.0

//! The status register of a slot (docs/card.md, Status).

use super::Duration;

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
    /// A value that docs/card.md does not know.
    Unknown,
}

impl Status {
    /// What every register of a card that is gone reads.
    pub const ALL_ONES: Self = Self(u64::MAX);

    const FAULT: u64 = 1 << 8;
    const SNAPSHOT_ERROR: u64 = 1 << 9;
    const EMPTY: u64 = 1 << 10;

    /// The register's value as read.
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The register's value.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Does this read say that the card is gone? The caller then sends [`Event::Gone`](super::Event::Gone).
    pub const fn is_gone(self) -> bool {
        self.0 == u64::MAX
    }

    /// What the engine does.
    pub const fn phase(self) -> Phase {
        match self.0 & 0xff {
            0 => Phase::Idle,
            1 => Phase::Running,
            2 => Phase::Finish,
            4 => Phase::Paused,
            _ => Phase::Unknown,
        }
    }

    /// Fermata profile: the job was stopped at an access outside its window.
    pub const fn fault(self) -> bool {
        self.0 & Self::FAULT != 0
    }

    /// Fermata profile: a save or a restore could not be done.
    pub const fn snapshot_error(self) -> bool {
        self.0 & Self::SNAPSHOT_ERROR != 0
    }

    /// Fermata profile: the engine paused, by itself or not, with an empty queue.
    pub const fn empty(self) -> bool {
        self.0 & Self::EMPTY != 0
    }

    /// Fermata profile: how long the START_RESUME of this run took to restore, to the microsecond and at most 1.05 s; zero
    /// after START_NEW, while it restores, and from a card that does not tell.
    pub const fn restore(self) -> Duration {
        Duration::from_us((self.0 >> 12) & 0xf_ffff)
    }

    /// Fermata profile: how many STARTs the slot has accepted since power-on, modulo 2^32.
    pub const fn start_count(self) -> u32 {
        (self.0 >> 32) as u32
    }
}
