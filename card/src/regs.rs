// SPDX-License-Identifier: GPL-2.0-or-later
//! The register map of BAR 0: offsets to names.

use crate::config::Profile;

/// Size of BAR 0.
pub const BAR_SIZE: u64 = 0x1_0000;
/// Offset of the MSI-X table in BAR 0 (QEMU emulates the table itself).
pub const MSIX_TABLE: u64 = 0xe000;
/// Offset of the MSI-X pending bits in BAR 0.
pub const MSIX_PBA: u64 = 0xf000;
/// Bits of an IOVA.
pub const IOVA_BITS: u64 = (1 << 48) - 1;
/// Value of every DFH: an AFU, end of list.
pub const DFH: u64 = 1 << 60 | 1 << 40;
/// The manager's UUID, both halves.
pub const MANAGER_ID: (u64, u64) = (0x4d47_525f_4f50_5449, 0x4d55_535f_4d47_5200);
/// The UUID of Optimus's manager, both halves.
pub const OPTIMUS_ID: (u64, u64) = (0xd1d3_83aa_ca4c_4c60, 0xa0a0_13a4_2113_9e69);
/// `FRMATA_1`.
pub const MAGIC: u64 = 0x315f_4154_414d_5246;
/// Version of the irq and relay profiles.
pub const VERSION: u64 = 1;
/// FEATURES bit: a vector per slot.
pub const FEATURE_IRQ: u64 = 1;
/// FEATURES bits that every irq and relay card has: WINDOW, QUIESCENT, `SNAPSHOT_UNIT`.
pub const FEATURES_ALWAYS: u64 = 0b1110;
/// FEATURES bit: orders.
pub const FEATURE_RELAY: u64 = 1 << 4;
/// `SLOT_CAPS` bit: the engine needs a reset before `START_RESUME`.
pub const CAP_RESET_BEFORE_RESUME: u64 = 1;
/// `SLOT_CAPS` bit: the engine takes `PAUSE_AT_BOUNDARY`.
pub const CAP_BOUNDARY: u64 = 1 << 1;
/// `SLOT_CAPS` bit: a PAUSE is treated as `PAUSE_AT_BOUNDARY`.
pub const CAP_BOUNDARY_ONLY: u64 = 1 << 2;
/// `SLOT_CAPS` bit: the engine takes jobs from a queue: EMPTY, and completion events.
pub const CAP_QUEUE: u64 = 1 << 3;
/// `SLOT_CAPS` bit: a reset of the slot clears all application registers.
pub const CAP_RESET_CLEARS: u64 = 1 << 4;
/// First application register of a slot page.
pub const APP_FIRST: u16 = 0x30;
/// First offset in a slot page of a base card at which reads are never answered.
pub const UNANSWERED_FIRST: u16 = 0xf80;
/// Offset of TAG in a slot page.
pub const TAG: u16 = 0x50;

/// `CSR_TRANSACTION_CTL` status values.
pub mod status {
    /// Nothing ran since the reset.
    pub const IDLE: u64 = 0;
    /// Runs, restores or saves.
    pub const RUNNING: u64 = 1;
    /// The job ended.
    pub const FINISH: u64 = 2;
    /// The job was saved.
    pub const PAUSED: u64 = 4;
    /// irq and relay: stopped by an access outside the window.
    pub const FAULT: u64 = 1 << 8;
    /// irq and relay: a save or restore could not be done.
    pub const SNAPSHOT_ERROR: u64 = 1 << 9;
    /// irq and relay, with PAUSED: the queue was empty, and the program knows.
    pub const EMPTY: u64 = 1 << 10;
    /// irq and relay: the duration of the last restore, in microseconds, begins at this bit.
    pub const RESTORE_SHIFT: u32 = 12;
    /// irq and relay: the longest duration that fits.
    pub const RESTORE_MAX: u64 = (1 << 20) - 1;
}

/// `CSR_TRANSACTION_CTL` commands.
pub mod ctl {
    /// Start a job from its registers.
    pub const START_NEW: u64 = 1;
    /// Start a job from its snapshot.
    pub const START_RESUME: u64 = 5;
    /// Save the running job.
    pub const PAUSE: u64 = 6;
    /// irq and relay: save the running job at its next boundary.
    pub const PAUSE_AT_BOUNDARY: u64 = 7;
}

/// A register of the BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reg {
    /// DFH of the manager or of a slot: the same value.
    Dfh,
    /// First half of the manager's UUID.
    ManagerIdH,
    /// Second half of the manager's UUID.
    ManagerIdL,
    /// Slot reset bitmap.
    Reset,
    /// Number of slots.
    SlotCount,
    /// `FRMATA_1` or 0.
    Magic,
    /// Version or 0.
    Version,
    /// Feature bits or 0.
    Features,
    /// `RELAY_CAPS` or 0.
    RelayCaps,
    /// `CTX_TABLE`
    CtxTable,
    /// `CTX_COUNT`
    CtxCount,
    /// `RECORDS`
    Records,
    /// A register of one slot, in the manager page or in the slot's page.
    Slot(usize, SlotReg),
    /// MSI-X table or pending bits, which QEMU answers itself.
    Msix,
}

/// A register of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotReg {
    /// `DMA_OFFSET[i]`
    DmaOffset,
    /// `WINDOW_BASE[i]`
    WindowBase,
    /// `WINDOW_SIZE[i]`
    WindowSize,
    /// `FAULT_INFO[i]`
    FaultInfo,
    /// `FAULT_ADDR[i]`
    FaultAddr,
    /// `SLOT_CAPS[i]`
    Caps,
    /// `EVENTS[i]`
    Events,
    /// `ORDER[i]`
    Order,
    /// `RELAY[i]`
    Relay,
    /// First half of the engine's UUID.
    IdH,
    /// Second half of the engine's UUID.
    IdL,
    /// `CSR_TRANSACTION_CTL`
    Ctl,
    /// `CSR_STATE_SIZE_PG`
    StateSize,
    /// `CSR_SNAPSHOT_ADDR`
    SnapshotAddr,
    /// An application register, by its offset in the page.
    App(u16),
}

/// Returns whether reads at `offset` of a base card are never answered.
pub fn is_unanswered(offset: u64) -> bool {
    slot_of_page(offset).is_some() && offset & 0xfff >= u64::from(UNANSWERED_FIRST)
}

/// Returns the slot in whose page `offset` is; `None`: in the manager's.
pub fn slot_of_page(offset: u64) -> Option<usize> {
    (offset >> 12).checked_sub(1).map(|slot| slot as usize)
}

impl SlotReg {
    /// Returns whether orders load this register when RELAY is on, and writes of the driver are
    /// ignored.
    pub fn is_loaded_by_orders(self) -> bool {
        matches!(
            self,
            Self::DmaOffset
                | Self::WindowBase
                | Self::WindowSize
                | Self::Ctl
                | Self::SnapshotAddr
                | Self::App(_)
        )
    }
}

impl Reg {
    /// Returns the register at `offset` of a card with `slots` slots; `None` where nothing is
    /// defined.
    pub fn at(offset: u64, profile: Profile, slots: usize) -> Option<Self> {
        if (MSIX_TABLE..BAR_SIZE).contains(&offset) {
            return Some(Self::Msix);
        }
        if offset % 8 != 0 || offset >= BAR_SIZE {
            return None;
        }
        let (page, offset) = (slot_of_page(offset), offset & 0xfff);
        match page {
            None => Self::in_manager_page(offset, profile, slots),
            Some(slot) if slot < slots => Some(Self::in_slot_page(slot, offset as u16)?),
            Some(_) => None,
        }
    }

    fn in_manager_page(offset: u64, profile: Profile, slots: usize) -> Option<Self> {
        let (base, relay) = (profile.is_base(), profile.has_relay());
        let slot = ((offset >> 3) & 7) as usize;
        let of_slot = |reg| (slot < slots).then_some(Self::Slot(slot, reg));
        match offset {
            0x00 => Some(Self::Dfh),
            0x08 => Some(Self::ManagerIdL),
            0x10 => Some(Self::ManagerIdH),
            0x18 => Some(Self::Reset),
            0x20 => Some(Self::SlotCount),
            0x30..=0x68 => {
                let slot = ((offset - 0x30) >> 3) as usize;
                (slot < slots).then_some(Self::Slot(slot, SlotReg::DmaOffset))
            }
            0x100 => Some(Self::Magic),
            0x108 => Some(Self::Version),
            0x110 => Some(Self::Features),
            0x118 => Some(Self::RelayCaps),
            0x120 if relay => Some(Self::CtxTable),
            0x128 if relay => Some(Self::CtxCount),
            0x130 if relay => Some(Self::Records),
            0x180..=0x1b8 if !base => of_slot(SlotReg::WindowBase),
            0x1c0..=0x1f8 if !base => of_slot(SlotReg::WindowSize),
            0x200..=0x238 if !base => of_slot(SlotReg::FaultInfo),
            0x240..=0x278 if !base => of_slot(SlotReg::FaultAddr),
            0x280..=0x2b8 => of_slot(SlotReg::Caps),
            0x2c0..=0x2f8 if !base => of_slot(SlotReg::Events),
            0x300..=0x338 if relay => of_slot(SlotReg::Order),
            0x340..=0x378 if relay => of_slot(SlotReg::Relay),
            _ => None,
        }
    }

    fn in_slot_page(slot: usize, offset: u16) -> Option<Self> {
        let reg = match offset {
            0x00 => return Some(Self::Dfh),
            0x08 => SlotReg::IdL,
            0x10 => SlotReg::IdH,
            0x18 => SlotReg::Ctl,
            0x20 => SlotReg::StateSize,
            0x28 => SlotReg::SnapshotAddr,
            APP_FIRST.. => SlotReg::App(offset),
            _ => return None,
        };
        Some(Self::Slot(slot, reg))
    }

    /// Returns whether a write to the register is defined.
    pub fn writable(self) -> bool {
        match self {
            Self::Reset | Self::CtxTable | Self::CtxCount | Self::Records | Self::Msix => true,
            Self::Slot(_, reg) => matches!(
                reg,
                SlotReg::DmaOffset
                    | SlotReg::WindowBase
                    | SlotReg::WindowSize
                    | SlotReg::FaultInfo
                    | SlotReg::Order
                    | SlotReg::Relay
                    | SlotReg::Ctl
                    | SlotReg::SnapshotAddr
                    | SlotReg::App(_)
            ),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_name_registers() {
        let at = |o| Reg::at(o, Profile::Irq, 3);
        assert_eq!(at(0x18), Some(Reg::Reset));
        assert_eq!(at(0x40), Some(Reg::Slot(2, SlotReg::DmaOffset)));
        assert_eq!(at(0x48), None);
        assert_eq!(at(0x188), Some(Reg::Slot(1, SlotReg::WindowBase)));
        assert_eq!(at(0x1c0), Some(Reg::Slot(0, SlotReg::WindowSize)));
        assert_eq!(at(0x200), Some(Reg::Slot(0, SlotReg::FaultInfo)));
        assert_eq!(at(0x250), Some(Reg::Slot(2, SlotReg::FaultAddr)));
        assert_eq!(at(0x288), Some(Reg::Slot(1, SlotReg::Caps)));
        assert_eq!(at(0x2d0), Some(Reg::Slot(2, SlotReg::Events)));
        assert_eq!(at(0x2d8), None);
        assert_eq!(at(0x1018), Some(Reg::Slot(0, SlotReg::Ctl)));
        assert_eq!(at(0x3ff8), Some(Reg::Slot(2, SlotReg::App(0xff8))));
        assert_eq!(at(0x4018), None);
        assert_eq!(at(0x101c), None);
        assert_eq!(at(0xe004), Some(Reg::Msix));
        assert_eq!(Reg::at(0x180, Profile::Base, 3), None);
        assert_eq!(Reg::at(0x2c0, Profile::Base, 3), None);
        assert_eq!(Reg::at(0x100, Profile::Base, 3), Some(Reg::Magic));
        assert_eq!(at(0x118), Some(Reg::RelayCaps));
        assert_eq!(at(0x120), None);
        assert_eq!(at(0x300), None);
        let relay = |o| Reg::at(o, Profile::Relay, 3);
        assert_eq!(relay(0x128), Some(Reg::CtxCount));
        assert_eq!(relay(0x130), Some(Reg::Records));
        assert_eq!(relay(0x138), None);
        assert_eq!(relay(0x310), Some(Reg::Slot(2, SlotReg::Order)));
        assert_eq!(relay(0x318), None);
        assert_eq!(relay(0x340), Some(Reg::Slot(0, SlotReg::Relay)));
        assert_eq!(relay(0x1c0), Some(Reg::Slot(0, SlotReg::WindowSize)));
    }
}
