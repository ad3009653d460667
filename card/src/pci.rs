// SPDX-License-Identifier: GPL-2.0-or-later
//! PCI configuration space, and interrupt vectors, which are eventfds from the client.

use crate::config::{CardConfig, IrqKind, Profile};
use crate::regs::{MSIX_PBA, MSIX_TABLE};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{fcntl_setfl, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

/// Size of PCI Express configuration space.
pub const CONFIG_SIZE: usize = 4096;

const VENDOR: u16 = 0x1af4;
const DEVICE_BASE: u16 = 0x10f0;
const DEVICE_FERMATA: u16 = 0x10f1;
const COMMAND: usize = 0x04;
const COMMAND_MASTER: u8 = 1 << 2;
const IRQ_CAP: usize = 0x40;
const PCIE_CAP: usize = 0x60;
const DEVCTL: usize = PCIE_CAP + 8;
const AER: usize = 0x100;
const ATS: usize = 0x148;

/// The effect of a write to configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigWrite {
    /// Bus mastering is on.
    pub bus_master: bool,
    /// A function-level reset was requested.
    pub reset: bool,
}

/// The bytes, and which of their bits can be written.
pub struct ConfigSpace {
    bytes: Box<[u8; CONFIG_SIZE]>,
    writable: Box<[u8; CONFIG_SIZE]>,
}

impl ConfigSpace {
    /// Returns configuration space after power-on.
    pub fn new(config: &CardConfig) -> Self {
        let (profile, irq) = (config.profile, config.irq);
        let mut space = Self {
            bytes: Box::new([0; CONFIG_SIZE]),
            writable: Box::new([0; CONFIG_SIZE]),
        };
        space.header(profile, irq);
        match irq {
            IrqKind::Msix => space.msix(),
            IrqKind::Msi => space.msi(),
            IrqKind::None => {}
        }
        space.express();
        space.aer();
        if config.ats {
            space.ats();
        }
        space
    }

    fn put16(&mut self, at: usize, value: u16, writable: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        self.writable[at..at + 2].copy_from_slice(&writable.to_le_bytes());
    }

    fn put32(&mut self, at: usize, value: u32, writable: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self.writable[at..at + 4].copy_from_slice(&writable.to_le_bytes());
    }

    fn header(&mut self, profile: Profile, irq: IrqKind) {
        let device = if profile == Profile::Base {
            DEVICE_BASE
        } else {
            DEVICE_FERMATA
        };
        self.put16(0x00, VENDOR, 0);
        self.put16(0x02, device, 0);
        self.put16(COMMAND, 0, 0x0547); // memory, bus master, parity, SERR, INTx disable
        self.put16(0x06, 0x0010, 0); // capability list
        self.put32(0x08, 0x1200_0001, 0); // processing accelerator, revision 1
        self.put16(0x0c, 0, 0x00ff); // cache line size
        self.put32(0x10, 0x0000_0004, 0xffff_0000); // BAR 0: 64-bit memory, 64 KiB
        self.put32(0x14, 0, 0xffff_ffff);
        self.put16(0x2c, VENDOR, 0);
        self.put16(0x2e, 1, 0);
        self.bytes[0x34] = if irq == IrqKind::None {
            PCIE_CAP as u8
        } else {
            IRQ_CAP as u8
        };
        self.put16(0x3c, 0, 0x00ff); // interrupt line
    }

    fn msix(&mut self) {
        self.put16(IRQ_CAP, (PCIE_CAP as u16) << 8 | 0x11, 0);
        self.put16(IRQ_CAP + 2, VECTORS as u16 - 1, 0xc000);
        self.put32(IRQ_CAP + 4, MSIX_TABLE as u32, 0);
        self.put32(IRQ_CAP + 8, MSIX_PBA as u32, 0);
    }

    fn msi(&mut self) {
        self.put16(IRQ_CAP, (PCIE_CAP as u16) << 8 | 0x05, 0);
        self.put16(IRQ_CAP + 2, 1 << 7 | (VECTORS.ilog2() as u16) << 1, 0x0071); // 64-bit, eight messages
        self.put32(IRQ_CAP + 4, 0, 0xffff_fffc);
        self.put32(IRQ_CAP + 8, 0, 0xffff_ffff);
        self.put16(IRQ_CAP + 12, 0, 0xffff);
    }

    fn express(&mut self) {
        self.put16(PCIE_CAP, 0x10, 0);
        self.put16(PCIE_CAP + 2, 0x0002, 0); // version 2, endpoint
        self.put32(PCIE_CAP + 4, 1 << 28 | 1 << 15, 0); // function-level reset, role-based errors
        self.put16(DEVCTL, 0, 0x7fff);
        self.put32(PCIE_CAP + 0xc, 0x0000_0411, 0); // x1, 2.5 GT/s
        self.put16(PCIE_CAP + 0x10, 0, 0x0fff);
        self.put16(PCIE_CAP + 0x12, 0x0011, 0);
    }

    fn aer(&mut self) {
        self.put32(AER, 0x0002_0001, 0);
        self.put32(AER + 0x08, 0, 0x07ff_f030); // uncorrectable mask
        self.put32(AER + 0x0c, 0x0046_2030, 0x07ff_f030); // uncorrectable severity
        self.put32(AER + 0x14, 0x0000_2000, 0x0000_f1c1); // correctable mask
    }

    fn ats(&mut self) {
        self.put32(AER, 0x0002_0001 | (ATS as u32) << 20, 0);
        self.put32(ATS, 0x0001_000f, 0);
        self.put16(ATS + 4, 1 << 5, 0); // aligned requests only
        self.put16(ATS + 6, 0, 0x801f); // enable, smallest unit
    }

    /// Reads bytes; those beyond the end read as zeros.
    pub fn read(&self, off: u64, data: &mut [u8]) {
        data.fill(0);
        let Some(from) = usize::try_from(off).ok().and_then(|o| self.bytes.get(o..)) else {
            return;
        };
        let n = data.len().min(from.len());
        data[..n].copy_from_slice(&from[..n]);
    }

    /// Returns all bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..]
    }

    /// Writes the writable bits.
    pub fn write(&mut self, off: u64, data: &[u8]) -> ConfigWrite {
        let mut reset = false;
        for (i, byte) in data.iter().enumerate() {
            let at = usize::try_from(off).ok().and_then(|o| o.checked_add(i));
            let Some(at) = at.filter(|a| *a < CONFIG_SIZE) else {
                break;
            };
            let mask = self.writable[at];
            self.bytes[at] = self.bytes[at] & !mask | byte & mask;
            reset |= at == DEVCTL + 1 && byte & 0x80 != 0;
        }
        ConfigWrite {
            bus_master: self.bytes[COMMAND] & COMMAND_MASTER != 0,
            reset,
        }
    }
}

/// Number of vectors of the card.
pub const VECTORS: usize = 8;

/// The eventfds of the vectors.
#[derive(Default)]
pub struct Irqs(Mutex<[Option<OwnedFd>; VECTORS]>);

impl Irqs {
    /// Sets the eventfd of one vector, or removes it with `None`. A vector that the card does not
    /// have is ignored.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the descriptor is not an eventfd.
    pub fn set(&self, vector: usize, fd: Option<OwnedFd>) -> Result<(), Errno> {
        if fd.as_ref().is_some_and(|fd| !is_eventfd(fd.as_fd())) {
            return Err(Errno::INVAL);
        }
        let mut vectors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(v) = vectors.get_mut(vector) {
            *v = fd;
        }
        Ok(())
    }

    /// Removes all eventfds.
    pub fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Default::default();
    }

    /// Signals a vector. Returns false if nobody listens, or the counter is full. With `fold`, a
    /// vector beyond those in use goes to one of them, as in MSI with fewer messages than were
    /// requested.
    pub fn fire(&self, vector: usize, fold: bool) -> bool {
        let vectors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let used = vectors
            .iter()
            .rposition(Option::is_some)
            .map_or(0, |last| last + 1);
        let vector = if fold {
            vector % used.next_power_of_two()
        } else {
            vector
        };
        let fd = vectors.get(vector).and_then(Option::as_ref);
        fd.is_some_and(|fd| signal(fd.as_fd()).is_ok())
    }
}

fn is_eventfd(fd: BorrowedFd<'_>) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
        .is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]")
}

/// Adds 1 to an eventfd, unless its counter is full. The client shares the open file description;
/// whether it has set `O_NONBLOCK` does not matter.
fn signal(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    fcntl_setfl(fd, OFlags::NONBLOCK)?;
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match poll(
        &mut [PollFd::from_borrowed_fd(fd, PollFlags::OUT)],
        Some(&now),
    )? {
        0 => Err(Errno::AGAIN),
        _ => rustix::io::write(fd, &1u64.to_ne_bytes()).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineKind;
    use rustix::event::{eventfd, EventfdFlags};

    fn plain(profile: Profile, irq: IrqKind) -> CardConfig {
        CardConfig::new(profile, irq, &[EngineKind::Sha256]).unwrap()
    }

    fn dword(space: &ConfigSpace, off: u64) -> u32 {
        let mut data = [0; 4];
        space.read(off, &mut data);
        u32::from_le_bytes(data)
    }

    #[test]
    fn ids_and_capabilities() {
        let ats = CardConfig {
            ats: true,
            ..plain(Profile::Irq, IrqKind::Msix)
        };
        assert_eq!(dword(&ConfigSpace::new(&ats), 0x148), 0x0001_000f);
        let relay = ConfigSpace::new(&plain(Profile::Relay, IrqKind::Msix));
        assert_eq!(dword(&relay, 0), 0x10f1_1af4);
        let space = ConfigSpace::new(&plain(Profile::Irq, IrqKind::Msix));
        assert_eq!(dword(&space, 0), 0x10f1_1af4);
        assert_eq!(dword(&space, 8) >> 8, 0x12_0000);
        assert_eq!(dword(&space, 0x2c), 0x0001_1af4);
        assert_eq!(dword(&space, 0x40), 0x0007_6011);
        assert_eq!(dword(&space, 0x100), 0x0002_0001);
        let space = ConfigSpace::new(&plain(Profile::Base, IrqKind::None));
        assert_eq!(dword(&space, 0), 0x10f0_1af4);
        assert_eq!(dword(&space, 0x34), 0x60);
    }

    #[test]
    fn writes_are_masked_and_decoded() {
        let mut space = ConfigSpace::new(&plain(Profile::Irq, IrqKind::Msi));
        assert_eq!(
            space.write(4, &[0xff, 0xff]),
            ConfigWrite {
                bus_master: true,
                reset: false
            }
        );
        assert_eq!(dword(&space, 4), 0x0010_0547);
        assert!(space.write(0x68, &[0, 0x80]).reset);
        assert!(space.write(0x69, &[0x80]).reset);
        assert!(!space.write(0x68, &[0x80]).reset);
        space.write(0x10, &[0xff; 8]);
        assert_eq!(dword(&space, 0x10), 0xffff_0004);
        space.write(4094, &[1; 8]);
        space.write(u64::MAX, &[1; 8]);
        let mut data = [7; 4];
        space.read(u64::MAX, &mut data);
        assert_eq!(data, [0; 4]);
    }

    #[test]
    fn a_full_eventfd_holds_nobody_up() {
        let irqs = Irqs::default();
        let full = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        irqs.set(0, Some(full.try_clone().unwrap())).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let fired = irqs.fire(0, false);
            // The client makes the descriptor blocking again.
            fcntl_setfl(&full, OFlags::empty()).unwrap();
            let again = irqs.fire(0, false);
            rustix::io::read(&full, &mut [0; 8]).unwrap();
            tell.send((fired, again, irqs.fire(0, false))).unwrap();
        });
        let told = told.recv_timeout(std::time::Duration::from_secs(60));
        assert_eq!(told, Ok((false, false, true)));
    }

    #[test]
    fn only_an_eventfd_is_a_vector() {
        let irqs = Irqs::default();
        let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(irqs.set(0, Some(file)), Err(Errno::INVAL));
        assert!(!irqs.fire(0, false));
    }
}
