// SPDX-License-Identifier: GPL-2.0

//! The card's registers. Source: `docs/card.md`; those marked O there are Optimus's
//! (`preemption-interface.md`), those marked F are of the fermata profile. All are 64 bits wide.

use crate::sched::Stops;
use kernel::{io::register, num::Bounded, prelude::*};

/// Slots that a card can have at the most.
pub(crate) const MAX_SLOTS: usize = 8;
/// Bytes of BAR 0 that the driver needs: the manager page and eight slot pages.
pub(crate) const BAR_SIZE: usize = 0x1000 * (1 + MAX_SLOTS);
/// [`const@MAGIC`] of a card with the fermata profile, "FRMATA_1".
pub(crate) const FERMATA_MAGIC: u64 = 0x315f_4154_414d_5246;
/// [`const@VERSION`] that this driver knows.
pub(crate) const FERMATA_VERSION: u64 = 1;
/// First application register of a slot page, a byte offset.
pub(crate) const APP_FIRST: u32 = 0x30;
/// Last application register of a slot page.
pub(crate) const APP_LAST: u32 = 0xff8;

/// What can be written to [`TRANSACTION_CTL`] (Optimus, "Control Register Definition").
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Command {
    /// Start a new job; honoured only while the engine does nothing.
    StartNew = 1,
    /// Read the snapshot and go on; honoured only while the engine does nothing.
    StartResume = 5,
    /// Save to the snapshot and stop; a pulse, honoured only while the engine runs.
    Pause = 6,
    /// F: the same at the engine's next boundary; honoured by engines that have any ([`SLOT_CAPS`]).
    PauseAtBoundary = 7,
}

register! {
    /// O: device feature header of the manager; read-only.
    pub(crate) MANAGER_DFH(u64) @ 0x000 {
        /// Feature type; 1 is an AFU.
        63:60 feature_type;
        /// Last header of the list.
        40:40 end_of_list => bool;
    }

    /// O: the manager's UUID, low half; read-only.
    pub(crate) MANAGER_ID_L(u64) @ 0x008 {
        63:0 value;
    }

    /// O: the manager's UUID, high half; read-only.
    pub(crate) MANAGER_ID_H(u64) @ 0x010 {
        63:0 value;
    }

    /// O: bit i holds slot i in reset. F: the first status read after a reset returns when the
    /// slot's last DMA is complete.
    pub(crate) RESET(u64) @ 0x018 {
        /// One bit for each slot.
        7:0 slots;
    }

    /// O: number of slots, 1 to 8; read-only.
    pub(crate) SLOT_COUNT(u64) @ 0x020 {
        63:0 value;
    }

    /// O: added to each device address that the slot's engine issues, modulo 2^64.
    pub(crate) DMA_OFFSET(u64)[8] @ 0x030 {
        63:0 value;
    }

    /// F: [`FERMATA_MAGIC`]; read-only. Base: 0.
    pub(crate) MAGIC(u64) @ 0x100 {
        63:0 value;
    }

    /// F: version of the interface; read-only. Base: 0.
    pub(crate) VERSION(u64) @ 0x108 {
        63:0 value;
    }

    /// F: what the card can do; read-only. Base: 0.
    pub(crate) FEATURES(u64) @ 0x110 {
        /// An interrupt vector for each slot.
        0:0 irq => bool;
        /// Engine accesses outside the window are refused.
        1:1 window => bool;
        /// PAUSED and FINISH come after the last DMA.
        2:2 quiescent => bool;
        /// Snapshots are at IOVAs that no engine can reach.
        3:3 snapshot_unit => bool;
    }

    /// F: first device address that the slot's engine may touch.
    pub(crate) WINDOW_BASE(u64)[8] @ 0x180 {
        63:0 value;
    }

    /// F: bytes from [`WINDOW_BASE`] on; 0, the value after a reset of the card: none.
    pub(crate) WINDOW_SIZE(u64)[8] @ 0x1c0 {
        63:0 value;
    }

    /// F: the first access that the window refused since the last START; that, and any write, clears
    /// it and [`FAULT_ADDR`].
    pub(crate) FAULT_INFO(u64)[8] @ 0x200 {
        /// There was one.
        0:0 valid => bool;
        /// It was a write.
        1:1 write => bool;
        /// Its length in bytes.
        31:8 length;
    }

    /// F: device address of that access; read-only.
    pub(crate) FAULT_ADDR(u64)[8] @ 0x240 {
        63:0 value;
    }

    /// F: what the slot needs; read-only. Base: 0.
    pub(crate) SLOT_CAPS(u64)[8] @ 0x280 {
        /// The engine must be reset before START_RESUME.
        0:0 reset_before_resume => bool;
        /// It takes [`Command::PauseAtBoundary`].
        1:1 boundary => bool;
        /// It cannot be saved between boundaries: it takes every PAUSE as one at its next boundary.
        2:2 boundary_only => bool;
        /// It reads a queue of jobs, leaves by itself when that is empty, and counts
        /// [`EVENTS`].
        3:3 queues => bool;
        /// A reset of the slot clears all its application registers.
        4:4 reset_clears => bool;
    }

    /// F: how often the engine of the slot has told, while it ran, that jobs of its queue are
    /// complete, since power-on; read-only. Other engines: 0.
    pub(crate) EVENTS(u64)[8] @ 0x2c0 {
        63:0 value;
    }

    /// O: the engine's UUID, low half; read-only.
    pub(crate) AFU_ID_L(u64)[8, stride = 0x1000] @ 0x1008 {
        63:0 value;
    }

    /// O: the engine's UUID, high half; read-only.
    pub(crate) AFU_ID_H(u64)[8, stride = 0x1000] @ 0x1010 {
        63:0 value;
    }

    /// O: read: status; write: a [`Command`]. Reading has no side effect but, on F, waits for DMA
    /// after a reset.
    pub(crate) TRANSACTION_CTL(u64)[8, stride = 0x1000] @ 0x1018 {
        63:0 value;
    }

    /// O: size of a snapshot in 4 KiB pages; read-only. Device input: may be anything.
    pub(crate) STATE_SIZE_PG(u64)[8, stride = 0x1000] @ 0x1020 {
        63:0 value;
    }

    /// O: where snapshots are: address / 64; write-only. F: an IOVA. Base: a device address.
    pub(crate) SNAPSHOT_ADDR(u64)[8, stride = 0x1000] @ 0x1028 {
        /// The address in units of 64 bytes.
        41:0 cacheline;
    }
}

impl SLOT_CAPS {
    /// Where the engine can stop for a PAUSE.
    pub(crate) fn stops(self) -> Stops {
        match (self.boundary_only(), self.boundary()) {
            (true, _) => Stops::BoundaryOnly,
            (false, true) => Stops::BoundaryToo,
            (false, false) => Stops::Anywhere,
        }
    }
}

impl TRANSACTION_CTL {
    /// The value that makes the slot do `command`.
    pub(crate) fn command(command: Command) -> Self {
        // CAST: the enum is `repr(u64)`, and its discriminants are the register's values.
        Self::from_raw(command as u64)
    }
}

impl SNAPSHOT_ADDR {
    /// Points at the byte address `address`, a multiple of 64; bits above 47 are cut off, as the
    /// card does.
    pub(crate) fn at_address(address: u64) -> Self {
        Self::zeroed().with_cacheline(Bounded::<u64, 42>::from_expr(
            (address >> 6) & ((1 << 42) - 1),
        ))
    }
}
