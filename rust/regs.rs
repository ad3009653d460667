// SPDX-License-Identifier: GPL-2.0

//! The registers of a card, as docs/registers.md defines them. Registers marked O are Optimus's,
//! registers marked F belong to the irq and relay profiles. All are 64 bits wide.

use crate::scheduler::{Order, Stop};
use kernel::{io::register, num::Bounded, prelude::*};

/// Most slots that a card can have.
pub(crate) const MAX_SLOTS: usize = 8;
/// Bytes of BAR 0 that the driver needs: the manager page and eight slot pages.
pub(crate) const BAR_SIZE: usize = 0x1000 * (1 + MAX_SLOTS);
/// [`const@MAGIC`] of a card of the irq or the relay profile, "FRMATA_1".
pub(crate) const FERMATA_MAGIC: u64 = 0x315f_4154_414d_5246;
/// [`const@MANAGER_ID_L`] of such a card, "MUS_MGR".
pub(crate) const FERMATA_MANAGER_ID_L: u64 = 0x4d55_535f_4d47_5200;
/// The [`const@VERSION`] that this driver knows.
pub(crate) const FERMATA_VERSION: u64 = 1;
/// First application register of a slot page, a byte offset.
pub(crate) const APP_FIRST: u32 = 0x30;
/// Largest value of [`struct@STATE_SIZE_PG`], of a card that keeps to its specification: 16 MiB.
pub(crate) const STATE_PAGES_MAX: u64 = 4096;
/// Last application register of a slot page.
pub(crate) const APP_LAST: u32 = 0xff8;

/// A value that can be written to [`TRANSACTION_CTL`].
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Command {
    /// Start a new job; honoured only while the engine is idle.
    StartNew = 1,
    /// Read the snapshot and continue the job; honoured only while the engine is idle.
    StartResume = 5,
    /// Save to the snapshot and stop; a pulse, honoured only while the engine runs.
    Pause = 6,
    /// F: the same at the engine's next boundary; honoured by engines that have boundaries
    /// ([`SLOT_CAPS`]).
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

    /// O: bit i holds slot i in reset. On base, such a slot answers no read, and ignores writes. F:
    /// the first status read after a reset returns when the slot's last DMA is complete.
    pub(crate) RESET(u64) @ 0x018 {
        /// One bit for each slot.
        7:0 slots;
    }

    /// O: number of slots, 1 to 8; read-only.
    pub(crate) SLOT_COUNT(u64) @ 0x020 {
        63:0 value;
    }

    /// Added to each device address that the slot's engine issues, modulo 2^48. O: in lines of 64
    /// bytes. F: in bytes.
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

    /// F: features of the card; read-only. Base: 0.
    pub(crate) FEATURES(u64) @ 0x110 {
        /// An interrupt vector for each slot.
        0:0 irq => bool;
        /// Engine accesses outside the window are refused.
        1:1 window => bool;
        /// PAUSED and FINISH come after the last DMA.
        2:2 quiescent => bool;
        /// Snapshots are at IOVAs that no engine can reach.
        3:3 snapshot_unit => bool;
        /// Slots take orders and leave records.
        4:4 relay => bool;
    }

    /// F, RELAY: what the relay can do; read-only. Other cards: 0.
    pub(crate) RELAY_CAPS(u64) @ 0x118 {
        /// Version of the interface.
        7:0 version;
        /// Orders that a slot holds.
        15:8 orders;
        /// Result registers of a context.
        23:16 results;
    }

    /// F, RELAY: IOVA of the context table, a multiple of 4096. Written while no slot obeys orders.
    pub(crate) CTX_TABLE(u64) @ 0x120 {
        63:0 value;
    }

    /// F, RELAY: entries of the context table.
    pub(crate) CTX_COUNT(u64) @ 0x128 {
        63:0 value;
    }

    /// F, RELAY: IOVA of the records, a multiple of 4096: 1 KiB for each slot.
    pub(crate) RECORDS(u64) @ 0x130 {
        63:0 value;
    }

    /// F: first device address that the slot's engine may touch.
    pub(crate) WINDOW_BASE(u64)[8] @ 0x180 {
        63:0 value;
    }

    /// F: bytes from [`WINDOW_BASE`] on; 0, the value after a reset of the card: none.
    pub(crate) WINDOW_SIZE(u64)[8] @ 0x1c0 {
        63:0 value;
    }

    /// F: the first access that the window refused since the last START. A START, or any write,
    /// clears this register and [`FAULT_ADDR`].
    pub(crate) FAULT_INFO(u64)[8] @ 0x200 {
        /// An access was refused.
        0:0 valid => bool;
        /// The access was a write.
        1:1 write => bool;
        /// Length of the access in bytes.
        31:8 length;
    }

    /// F: device address of the access in [`FAULT_INFO`]; read-only.
    pub(crate) FAULT_ADDR(u64)[8] @ 0x240 {
        63:0 value;
    }

    /// F: properties of the slot's engine; read-only. Base: 0.
    pub(crate) SLOT_CAPS(u64)[8] @ 0x280 {
        /// The engine must be reset before START_RESUME.
        0:0 reset_before_resume => bool;
        /// The engine takes [`Command::PauseAtBoundary`].
        1:1 boundary => bool;
        /// The engine cannot be saved between boundaries: every PAUSE stops it at its next
        /// boundary.
        2:2 boundary_only => bool;
        /// The engine reads a queue of jobs, stops by itself when the queue is empty, and counts
        /// [`EVENTS`].
        3:3 queues => bool;
        /// A reset of the slot clears all its application registers.
        4:4 reset_clears => bool;
    }

    /// F: number of events since power-on by which the engine of the slot has reported, while it
    /// ran, that jobs of its queue are complete; read-only. Other engines: 0.
    pub(crate) EVENTS(u64)[8] @ 0x2c0 {
        63:0 value;
    }

    /// F, RELAY: an order for the slot; write-only.
    pub(crate) ORDER(u64)[8] @ 0x300 {
        /// The run that the order follows, modulo 2^16.
        15:0 after;
        /// Index of the next context in the context table, plus 1; 0: none.
        32:16 next;
        /// The slot is vacant.
        33:33 vacant => bool;
        /// The next context begins with START_RESUME.
        34:34 resume => bool;
        /// The run stops at its next boundary.
        36:36 boundary => bool;
        /// The run is not saved.
        37:37 drop => bool;
        /// How many microseconds the run may work. 0: it stops at once; all ones: until it ends.
        63:40 at;
    }

    /// F, RELAY: whether the slot obeys orders. Written while the slot is vacant.
    pub(crate) RELAY(u64)[8] @ 0x340 {
        0:0 on => bool;
    }

    /// O: the engine's UUID, low half; read-only.
    pub(crate) AFU_ID_L(u64)[8, stride = 0x1000] @ 0x1008 {
        63:0 value;
    }

    /// O: the engine's UUID, high half; read-only.
    pub(crate) AFU_ID_H(u64)[8, stride = 0x1000] @ 0x1010 {
        63:0 value;
    }

    /// O: read: the status of the slot; write: a [`Command`]. A read has no side effect but, on F,
    /// waits for DMA after a reset. A card that is gone reads all-ones.
    pub(crate) TRANSACTION_CTL(u64)[8, stride = 0x1000] @ 0x1018 {
        /// Read: 0 idle, 1 running, 2 finished, 4 paused. Write: the command.
        7:0 phase;
        /// F: the job was stopped by an access outside its window.
        8:8 fault => bool;
        /// F: a save or a restore could not be done.
        9:9 snapshot_error => bool;
        /// F: the engine paused with an empty queue.
        10:10 empty => bool;
        /// F: duration of the restore of this run in microseconds.
        31:12 restore_us;
        /// F: STARTs that the slot has accepted since power-on, modulo 2^32.
        63:32 start_count;
    }

    /// O: size of a snapshot in 4 KiB pages; read-only. Device input: may be anything.
    pub(crate) STATE_SIZE_PG(u64)[8, stride = 0x1000] @ 0x1020 {
        63:0 value;
    }

    /// O: address of the snapshot; write-only. F: an IOVA. Base: a device address.
    pub(crate) SNAPSHOT_ADDR(u64)[8, stride = 0x1000] @ 0x1028 {
        /// The address in units of 64 bytes.
        41:0 cacheline;
    }
}

impl TRANSACTION_CTL {
    /// Returns the value that makes the slot execute `command`.
    pub(crate) fn command(command: Command) -> Self {
        // CAST: the enum is `repr(u64)`, and its discriminants are the register's values.
        Self::from_raw(command as u64)
    }
}

impl DMA_OFFSET {
    /// Returns the value for an offset of `bytes`, which may be negative. `in_lines`: the card
    /// counts lines of 64 bytes, of which every offset is a multiple.
    pub(crate) fn of(bytes: u64, in_lines: bool) -> Self {
        // CAST: an arithmetic shift keeps the sign.
        let lines = (bytes as i64 >> 6) as u64;
        Self::from_raw(if in_lines { lines } else { bytes })
    }
}

impl ORDER {
    /// The value of `at` for a run that is not to be stopped.
    const NEVER: u64 = 0xff_ffff;

    /// Returns the register value of an order.
    pub(crate) fn of(order: &Order) -> Self {
        let next = order.next.map_or(0, |next| next.ctx.index() as u64 + 1);
        let at = match order.stop {
            Stop::Never => Self::NEVER,
            Stop::Paused { after, .. } => after.as_us_rounded_up().min(Self::NEVER - 1),
            Stop::Vacant | Stop::Dropped => 0,
        };
        let boundary = matches!(order.stop, Stop::Paused { boundary: true, .. });
        Self::zeroed()
            .with_after(Bounded::<u64, 16>::from_expr(
                u64::from(order.after) & 0xffff,
            ))
            .with_next(Bounded::<u64, 17>::from_expr(next & 0x1_ffff))
            .with_vacant(order.stop == Stop::Vacant)
            .with_resume(order.next.is_some_and(|next| next.resume))
            .with_boundary(boundary)
            .with_drop(order.stop == Stop::Dropped)
            .with_at(Bounded::<u64, 24>::from_expr(at & Self::NEVER))
    }
}

impl SNAPSHOT_ADDR {
    /// Returns the value for the byte address `address`, a multiple of 64. Bits above 47 are cut
    /// off, as by the card.
    pub(crate) fn at_address(address: u64) -> Self {
        Self::zeroed().with_cacheline(Bounded::<u64, 42>::from_expr(
            (address >> 6) & ((1 << 42) - 1),
        ))
    }
}
