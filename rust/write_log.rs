// SPDX-License-Identifier: GPL-2.0

//! The last writes to the control registers of a card, for dumps.

use crate::{
    monotonic::now,
    scheduler::{SlotId, Time},
};
use kernel::{
    prelude::*,
    sync::atomic::{Atomic, Relaxed},
};
use pin_init::init_array_from_fn;

/// Number of writes that are kept.
pub(crate) const WRITES: usize = 64;

/// A control register that the driver writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Control {
    Reset,
    Command,
    Order,
    Relay,
    WindowSize,
    ContextCount,
    /// Registers with addresses, of which no value is kept.
    WindowBase,
    DmaOffset,
    Snapshot,
    ContextTable,
    Records,
}

impl Control {
    /// All registers, in the order of their numbers.
    const ALL: [Self; 11] = [
        Self::Reset,
        Self::Command,
        Self::Order,
        Self::Relay,
        Self::WindowSize,
        Self::ContextCount,
        Self::WindowBase,
        Self::DmaOffset,
        Self::Snapshot,
        Self::ContextTable,
        Self::Records,
    ];

    /// Returns the name of the register in docs/registers.md.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Command => "TRANSACTION_CTL",
            Self::Order => "ORDER",
            Self::Relay => "RELAY",
            Self::WindowSize => "WINDOW_SIZE",
            Self::ContextCount => "CTX_COUNT",
            Self::WindowBase => "WINDOW_BASE",
            Self::DmaOffset => "DMA_OFFSET",
            Self::Snapshot => "SNAPSHOT_ADDR",
            Self::ContextTable => "CTX_TABLE",
            Self::Records => "RECORDS",
        }
    }

    /// Returns whether values of the register are addresses of programs or of DMA.
    pub(crate) fn is_address(self) -> bool {
        matches!(
            self,
            Self::WindowBase
                | Self::DmaOffset
                | Self::Snapshot
                | Self::ContextTable
                | Self::Records
        )
    }
}

/// A write to a control register.
#[derive(Clone, Copy)]
pub(crate) struct Write {
    pub(crate) at: Time,
    /// `None`: the register is one of the manager.
    pub(crate) slot: Option<SlotId>,
    pub(crate) control: Control,
    /// `None`: an address.
    pub(crate) value: Option<u64>,
}

/// A place of the log. Two writers that are [`WRITES`] writes apart may mix their writes.
struct LogPlace {
    at: Atomic<u64>,
    value: Atomic<u64>,
    /// The register's number plus 1 in the low byte, the slot in the next; 0: no write yet.
    what: Atomic<u32>,
}

/// The slot of a write to a register of the manager.
const NO_SLOT: u32 = 0xff;

impl LogPlace {
    fn new() -> Self {
        Self {
            at: Atomic::new(0),
            value: Atomic::new(0),
            what: Atomic::new(0),
        }
    }

    fn get(&self) -> Option<Write> {
        let what = self.what.load(Relaxed);
        let number = ((what & 0xff) as usize).checked_sub(1)?;
        let control = *Control::ALL.get(number)?;
        let value = self.value.load(Relaxed);
        Some(Write {
            at: Time::from_ns(self.at.load(Relaxed)),
            // CAST: a byte.
            slot: SlotId::new((what >> 8) as u8),
            control,
            value: (!control.is_address()).then_some(value),
        })
    }
}

/// The log. Written and read in any context, without a lock.
pub(crate) struct WriteLog {
    places: KBox<[LogPlace; WRITES]>,
    next: Atomic<u32>,
}

impl WriteLog {
    /// Returns an empty log. `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            places: KBox::init(init_array_from_fn(|_| LogPlace::new()), GFP_KERNEL)?,
            next: Atomic::new(0),
        })
    }

    /// Notes that `value` is written to a register now. A value that is an address is not kept.
    pub(crate) fn note(&self, slot: Option<SlotId>, control: Control, value: u64) {
        let place = self.next.fetch_add(1, Relaxed) as usize % WRITES;
        let noted = &self.places[place];
        let kept = if control.is_address() { 0 } else { value };
        // CAST: below 8.
        let slot = slot.map_or(NO_SLOT, |slot| slot.index() as u32);
        noted.at.store(now().as_ns(), Relaxed);
        noted.value.store(kept, Relaxed);
        // CAST: the enum has no values of its own.
        noted.what.store(slot << 8 | (control as u32 + 1), Relaxed);
    }

    /// Calls `f` with the number of each write, oldest first. Writes meanwhile may be missing.
    pub(crate) fn for_each(&self, mut f: impl FnMut(usize, Write)) {
        let next = self.next.load(Relaxed) as usize;
        let writes = (0..WRITES).filter_map(|n| self.places[(next + n) % WRITES].get());
        writes.enumerate().for_each(|(n, write)| f(n, write));
    }
}
