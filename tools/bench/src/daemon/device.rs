// SPDX-License-Identifier: GPL-2.0-or-later
//! The card through vfio-pci: mapped registers, an eventfd for the interrupt vector, memory mapped
//! by the IOMMU. Only slot 0 is used. And the relay of that slot (docs/registers.md, Relay):
//! contexts and records in memory that the card reads and writes, and orders.

use super::protocol::REGISTERS;
use super::schedule::ClientId;
use crate::mapping::Mapping;
use anyhow::{ensure, Context as _, Result};
use fermata_card::regs::{ctl, status, APP_FIRST};
use fermata_card::relay::{self, ENTRY_SIZE};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use vfio_ioctls::{VfioContainer, VfioDevice};
use vmm_sys_util::eventfd::{EventFd, EFD_NONBLOCK};

/// Regions of a PCI device in linux/vfio.h.
const BAR0: u32 = 0;
const CONFIG: u32 = 7;
/// The command register of the configuration space, and its bits: memory, bus master.
const COMMAND: u64 = 4;
const MEMORY: u16 = 1 << 1;
const MASTER: u16 = 1 << 2;
/// The register whose bits hold slots in reset, and the registers of slot 0 (docs/registers.md).
const RESET: usize = 0x18;
const SLOT: usize = 0x1000;
const CONTROL: usize = SLOT + 0x18;
const SNAPSHOT_ADDRESS: usize = SLOT + 0x28;
const APPLICATION: usize = SLOT + 0x30;
const DMA_OFFSET: usize = 0x30;
const WINDOW_BASE: usize = 0x180;
const WINDOW_SIZE: usize = 0x1c0;

/// The card.
pub(super) struct Device {
    registers: Mapping,
    interrupt: EventFd,
    iommu: Box<dyn Iommu>,
    /// The values that were written last; an unchanged value is not written again.
    addresses: JobAddresses,
}

/// Where memory is mapped for the card.
trait Iommu {
    fn map(&self, iova: u64, memory: &Mapping) -> Result<()>;
    fn unmap(&self, iova: u64, memory: &Mapping) -> Result<()>;
}

/// VFIO's type1 IOMMU.
struct Vfio {
    container: Arc<VfioContainer>,
    /// Keeps the device open; dropping the value returns the card to the kernel.
    _owned: VfioDevice,
}

impl Iommu for Vfio {
    fn map(&self, iova: u64, memory: &Mapping) -> Result<()> {
        // SAFETY: `memory` stays mapped until the caller unmaps it for the card.
        unsafe {
            self.container
                .vfio_dma_map(iova, memory.length(), memory.address())
        }
        .context("cannot map memory for the card")
    }

    fn unmap(&self, iova: u64, memory: &Mapping) -> Result<()> {
        self.container
            .vfio_dma_unmap(iova, memory.length())
            .context("cannot unmap memory")
    }
}

/// Addresses of a job: DMA offset, window and snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JobAddresses {
    /// DMA offset, which the card adds to device addresses.
    pub(super) offset: u64,
    /// First device address of the window, and length.
    pub(super) window: (u64, u64),
    /// Address of the snapshot buffer.
    pub(super) snapshot: u64,
}

/// The status of the slot (docs/registers.md, Status).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status(pub(super) u64);

impl Status {
    pub(super) fn is_paused(self) -> bool {
        self.0 & 0xff == status::PAUSED
    }

    pub(super) fn is_finished(self) -> bool {
        self.0 & 0xff == status::FINISH
    }

    /// Returns the time of the last restore.
    pub(super) fn restore_us(self) -> u64 {
        self.0 >> status::RESTORE_SHIFT & status::RESTORE_MAX
    }

    /// Returns the number of STARTs.
    pub(super) fn starts(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl Device {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let container = Arc::new(VfioContainer::new(None).context("no VFIO container")?);
        let device = VfioDevice::new(path, container.clone(), true)
            .with_context(|| format!("{}: not bound to vfio-pci", path.display()))?;
        let mut command = [0; 2];
        device.region_read(CONFIG, &mut command, COMMAND);
        let enabled = u16::from_le_bytes(command) | MEMORY | MASTER;
        device.region_write(CONFIG, &enabled.to_le_bytes(), COMMAND);
        // SAFETY: The device outlives the borrow.
        let file = unsafe { BorrowedFd::borrow_raw(device.as_raw_fd()) };
        let length = device.get_region_size(BAR0) as usize;
        let registers = Mapping::new(&file, length, device.get_region_offset(BAR0))
            .context("cannot map the registers")?;
        let interrupt = EventFd::new(EFD_NONBLOCK)?;
        device
            .enable_msix(vec![&interrupt])
            .context("no interrupt")?;
        let starts = Status(registers.read(CONTROL)).starts();
        anyhow::ensure!(starts == 0, "the card was not reset: {starts} STARTs");
        Ok(Self {
            registers,
            interrupt,
            iommu: Box::new(Vfio {
                container,
                _owned: device,
            }),
            addresses: JobAddresses::default(),
        })
    }

    /// Stops the engine. On return the slot's last DMA is complete.
    fn quiesce(&self) {
        self.registers.write(RESET, 1);
        self.status();
    }

    /// Returns the eventfd that the card's interrupt signals.
    pub(super) fn interrupt(&self) -> BorrowedFd<'_> {
        // SAFETY: The eventfd lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.interrupt.as_raw_fd()) }
    }

    /// Returns the size of a snapshot in bytes.
    pub(super) fn snapshot_bytes(&self) -> usize {
        self.registers.read(SLOT + 0x20) as usize * 4096
    }

    /// Maps memory for the card at an I/O virtual address. The memory stays mapped until
    /// [`Self::unmap`] or the end of the device.
    pub(super) fn map(&self, iova: u64, memory: &Mapping) -> Result<()> {
        self.iommu.map(iova, memory)
    }

    pub(super) fn unmap(&self, iova: u64, memory: &Mapping) -> Result<()> {
        self.iommu.unmap(iova, memory)
    }

    /// Writes a register of the manager page.
    pub(super) fn write(&self, offset: usize, value: u64) {
        self.registers.write(offset, value);
    }

    /// Reads the status: the only trapped read of a switch.
    pub(super) fn status(&self) -> Status {
        Status(self.registers.read(CONTROL))
    }

    pub(super) fn pause(&self) {
        self.registers.write(CONTROL, ctl::PAUSE);
    }

    /// Starts a job on the idle slot. After another job all application registers are written, even
    /// unchanged ones: no value of one tenant may be left to another.
    pub(super) fn start(
        &mut self,
        addresses: JobAddresses,
        registers: &[u64; REGISTERS],
        resume: bool,
    ) {
        let another = self.addresses.snapshot != addresses.snapshot;
        let was = std::mem::replace(&mut self.addresses, addresses);
        let write = |was: u64, offset: usize, value: u64| {
            if was != value {
                self.registers.write(offset, value);
            }
        };
        write(was.offset, DMA_OFFSET, addresses.offset);
        write(was.window.0, WINDOW_BASE, addresses.window.0);
        write(was.window.1, WINDOW_SIZE, addresses.window.1);
        if another || !resume {
            for (number, value) in registers.iter().enumerate() {
                self.registers.write(APPLICATION + 8 * number, *value);
            }
        }
        if another {
            self.registers
                .write(SNAPSHOT_ADDRESS, addresses.snapshot / 64);
        }
        let control = if resume {
            ctl::START_RESUME
        } else {
            ctl::START_NEW
        };
        self.registers.write(CONTROL, control);
    }
}

impl Drop for Device {
    /// Leaves the slot quiescent: when the card is closed, the kernel ends bus mastering and unmaps
    /// the memory, even if the engine works.
    fn drop(&mut self) {
        self.quiesce();
    }
}

#[cfg(test)]
pub(super) mod fake {
    //! A device whose registers are plain memory: a test reads what the daemon wrote last, and
    //! writes what the card would report.

    use super::{Device, Iommu, JobAddresses, Mapping, Status, CONTROL};
    use anyhow::Result;
    use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
    use vmm_sys_util::eventfd::{EventFd, EFD_NONBLOCK};

    struct NoIommu;

    impl Iommu for NoIommu {
        fn map(&self, _iova: u64, _memory: &Mapping) -> Result<()> {
            Ok(())
        }

        fn unmap(&self, _iova: u64, _memory: &Mapping) -> Result<()> {
            Ok(())
        }
    }

    const BAR0_BYTES: usize = 0x1_0000;

    pub(in super::super) fn device() -> Device {
        let file = memfd_create("registers", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, BAR0_BYTES as u64).unwrap();
        Device {
            registers: Mapping::new(&file, BAR0_BYTES, 0).unwrap(),
            interrupt: EventFd::new(EFD_NONBLOCK).unwrap(),
            iommu: Box::new(NoIommu),
            addresses: JobAddresses::default(),
        }
    }

    impl Device {
        /// Returns the word that was written to a register last.
        pub(in super::super) fn written(&self, offset: usize) -> u64 {
            self.registers.read(offset)
        }

        /// Returns the command that was written last.
        pub(in super::super) fn command(&self) -> u64 {
            self.written(CONTROL)
        }

        /// Makes the slot show a status.
        pub(in super::super) fn show(&self, status: Status) {
            self.registers.write(CONTROL, status.0);
        }
    }
}

/// Registers (docs/registers.md, Relay registers).
const CTX_TABLE: usize = 0x120;
const CTX_COUNT: usize = 0x128;
const RECORDS: usize = 0x130;
const ORDER: usize = 0x300;
const RELAY: usize = 0x340;
/// Bits of an order.
const NEXT_SHIFT: u32 = 16;
const VACANT: u64 = 1 << 33;
const RESUME: u64 = 1 << 34;
const AT_SHIFT: u32 = 40;
/// The run only ends by itself.
const NEVER_US: u64 = 0xff_ffff;

/// Records of a slot.
const SLOT_RECORDS: u32 = 8;

/// REASON in a record.
const PAUSED: u64 = relay::Reason::Paused as u64;
const FINISH: u64 = relay::Reason::Finish as u64;
const NOT_RUN: u64 = relay::Reason::NotRun as u64;

/// The maximum number of clients.
const CLIENTS: usize = 64;
const PAGE: usize = 4096;
/// The memory: a table, the records, and a page of registers for each client.
const TABLE_AT: usize = 0;
const RECORDS_AT: usize = CLIENTS * ENTRY_SIZE;
const REGISTERS_AT: usize = RECORDS_AT + 2 * PAGE;
const BYTES: usize = REGISTERS_AT + CLIENTS * PAGE;
/// I/O virtual address of the memory, below the address spaces of the clients.
const IOVA: u64 = 1 << 30;

/// What follows the run on the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Next {
    /// The client whose job is next.
    pub(super) client: ClientId,
    /// The job is resumed from its snapshot.
    pub(super) resume: bool,
}

/// An order (docs/registers.md, Orders).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    /// The run that the order follows.
    pub(super) after: u32,
    /// Microseconds for which that run may work; `None`: it ends by itself.
    pub(super) at_us: Option<u32>,
    pub(super) next: Option<Next>,
}

impl Order {
    fn word(self) -> u64 {
        let at = self.at_us.map_or(NEVER_US, u64::from) << AT_SHIFT;
        let next = self.next.map_or(0, |next| {
            (next.client as u64 + 1) << NEXT_SHIFT | u64::from(next.resume) * RESUME
        });
        at | next | u64::from(self.after as u16)
    }
}

/// The card's report of a run (docs/registers.md, Records).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) reason: Reason,
    /// The client whose job the card has taken next.
    pub(super) next: Option<ClientId>,
}

/// Why a run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Paused,
    Finished,
    /// The restore was aborted; the snapshot has not changed.
    NotRun,
    /// The job failed; the number is REASON.
    Failed(u64),
}

/// The slot, and the memory that the card and the daemon share.
pub(super) struct Relay {
    pub(super) device: Device,
    memory: Mapping,
}

impl Relay {
    /// Switches on the relay of the slot. The slot must not have been used since the card was
    /// reset.
    pub(super) fn new(device: Device) -> Result<Self> {
        let file = memfd_create("relay", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, BYTES as u64)?;
        let memory = Mapping::new(&file, BYTES, 0)?;
        device.map(IOVA, &memory)?;
        device.write(CTX_TABLE, IOVA + TABLE_AT as u64);
        device.write(CTX_COUNT, CLIENTS as u64);
        device.write(RECORDS, IOVA + RECORDS_AT as u64);
        device.write(RELAY, 1);
        Ok(Self { device, memory })
    }

    /// Writes the entry of a client.
    pub(super) fn attach(&self, client: ClientId, addresses: JobAddresses) -> Result<()> {
        ensure!(client < CLIENTS, "more than {CLIENTS} clients");
        let registers = IOVA + (REGISTERS_AT + client * PAGE) as u64;
        let entry = [
            1,
            addresses.offset,
            addresses.window.0,
            addresses.window.1,
            addresses.snapshot,
            self.device.snapshot_bytes() as u64,
            registers,
        ];
        for (number, word) in entry.into_iter().enumerate() {
            self.memory
                .write(TABLE_AT + client * ENTRY_SIZE + 8 * number, word);
        }
        Ok(())
    }

    /// Writes the registers with which the next job of a client begins.
    pub(super) fn load(&self, client: ClientId, registers: &[u64; REGISTERS]) {
        let page = REGISTERS_AT + client * PAGE;
        for (number, value) in registers.iter().enumerate() {
            self.memory
                .write(page + usize::from(APP_FIRST) + 8 * number, *value);
        }
    }

    /// Posts an order for the run on the slot.
    pub(super) fn order(&self, order: Order) {
        self.device.write(ORDER, order.word());
    }

    /// Starts a job on the slot, which run `after` has left vacant.
    pub(super) fn start(&self, after: u32, next: Next) {
        let order = Order {
            after,
            at_us: Some(0),
            next: Some(next),
        };
        self.device.write(ORDER, order.word() | VACANT);
    }

    /// Returns the record of a run, if the run has ended.
    pub(super) fn record(&self, run: u32) -> Option<Record> {
        let at = RECORDS_AT + relay::Record::SIZE * (run % SLOT_RECORDS) as usize;
        let last = self.memory.read(at + relay::Record::LAST);
        let reason = match last >> 32 & 0xff {
            0 => return None,
            PAUSED => Reason::Paused,
            FINISH => Reason::Finished,
            NOT_RUN => Reason::NotRun,
            other => Reason::Failed(other),
        };
        if last as u32 != run {
            return None;
        }
        let next = self.memory.read(at + 0x30) as u32;
        let next = next.checked_sub(1).map(|client| client as ClientId);
        Some(Record { reason, next })
    }
}

#[cfg(test)]
impl Relay {
    /// Writes the record of a run, as the card does.
    pub(super) fn write_record(&self, record: &relay::Record) {
        let at = RECORDS_AT + relay::Record::SIZE * (record.run % SLOT_RECORDS) as usize;
        for (number, word) in record.bytes().chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().unwrap());
            self.memory.write(at + 8 * number, word);
        }
    }

    /// Returns the order that was written last.
    pub(super) fn last_order(&self) -> relay::Order {
        relay::Order(self.device.written(ORDER))
    }
}

#[cfg(test)]
mod tests {
    use super::{relay, Next, Order};

    #[test]
    fn orders_are_as_the_card_reads_them() {
        let next = Next {
            client: 4,
            resume: true,
        };
        let order = |at_us, next| Order {
            after: 0x1_0007,
            at_us,
            next,
        };
        let word = relay::Order(order(Some(1000), Some(next)).word());
        assert_eq!((word.after(), word.context()), (7, Some(4)));
        assert_eq!((word.at_us(), word.resume()), (Some(1000), true));
        assert!(!word.vacant() && !word.reserved());
        assert!(relay::Order(order(None, None).word()).withdraws());
    }
}
