// SPDX-License-Identifier: GPL-2.0-or-later
//! A guest: its memory, the accesses of its driver to the card, through a vfio-user client that is
//! not ours, and its jobs with their results.

use anyhow::{bail, ensure, Context as _, Result};
use fermata_card::engine::splitmix64;
use fermata_card::ram::Ram;
use fermata_card::regs::{ctl, status, TAG};
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::{memfd_create, MemfdFlags};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use vfio_user::Client;

const BAR0: u32 = 0;
const CONFIG: u32 = 7;
const MSIX: u32 = 2;
/// Interrupts are delivered by eventfd.
const BY_EVENTFD: u32 = 0x24;
const VECTORS: usize = 8;
const CTL: u64 = 0x18;
const SNAPSHOT: u64 = 0x28;
/// Length of the guest's memory in bytes.
pub(crate) const RAM: u64 = 16 << 20;
/// Address of the memory for the card.
pub(crate) const GPA: u64 = 0x4000_0000;
/// Length of a window in bytes. The memory begins with windows; snapshots are in its second half.
pub(crate) const WINDOW: u64 = 2 << 20;
const SNAPSHOTS: u64 = RAM / 2;
/// Address of pages of other files for the card.
const FILES: u64 = 0x8000_0000;
/// Address of memory that is mapped again, for the card.
pub(crate) const LARGE: u64 = 0x10_0000_0000;
/// Device address of the first byte of each window.
pub(crate) const BASE: u64 = 0x7000_0000_0000;
/// Longer than any wait takes.
const LIMIT: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};

/// Creates the memory of a guest.
fn memory() -> Result<File> {
    let ram = File::from(memfd_create("ram", MemfdFlags::CLOEXEC)?);
    ram.set_len(RAM)?;
    Ok(ram)
}

/// A guest without a virtual machine.
pub(crate) struct Guest {
    client: Client,
    ram: File,
    /// The memory, if it consists of huge pages: `write()` does not work there.
    huge: Option<Ram>,
    irqs: Vec<OwnedFd>,
}

/// A job of the guest: its registers, and its window and snapshot in the memory.
pub(crate) struct Job {
    pub(crate) slot: u64,
    pub(crate) window: u64,
    pub(crate) snapshot: u64,
    pub(crate) tag: u64,
    pub(crate) registers: Vec<(u64, u64)>,
}

impl Guest {
    /// Plugs the card: memory, interrupts, bus mastering.
    pub(crate) fn plug(socket: &Path) -> Result<Self> {
        Self::with(memory()?, socket, VECTORS)
    }

    /// Plugs the card, with memory of huge pages. The machine must have enough of these.
    pub(crate) fn plug_huge(socket: &Path) -> Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB;
        let ram = File::from(memfd_create("huge", flags)?);
        ram.set_len(RAM)?;
        let huge = Ram::map(ram.as_fd())?;
        let mut guest = Self::with(ram, socket, VECTORS)?;
        guest.huge = Some(huge);
        Ok(guest)
    }

    /// Maps the memory of window 0 repeatedly, from [`LARGE`] on, so that `length` bytes are mapped
    /// there.
    pub(crate) fn map_again(&mut self, length: u64) -> Result<()> {
        for at in (0..length).step_by(WINDOW as usize) {
            let fd = self.ram.as_raw_fd();
            self.client.dma_map(0, LARGE + at, WINDOW, fd)?;
        }
        Ok(())
    }

    /// Plugs a card of the base profile, which has no interrupts.
    pub(crate) fn plug_base(socket: &Path) -> Result<Self> {
        Self::with(memory()?, socket, 0)
    }

    /// Returns the same machine on another host: with a copy of the memory, and another daemon's
    /// card.
    pub(crate) fn copy(&self, socket: &Path) -> Result<Self> {
        let ram = File::from(memfd_create("copy", MemfdFlags::CLOEXEC)?);
        ram.write_all_at(&self.get(0, RAM as usize)?, 0)?;
        Self::with(ram, socket, VECTORS)
    }

    fn with(ram: File, socket: &Path, vectors: usize) -> Result<Self> {
        let client = Client::new(socket).context("no connection")?;
        let vector = || eventfd(0, EventfdFlags::CLOEXEC);
        let irqs = (0..vectors).map(|_| vector());
        let mut guest = Self {
            client,
            ram,
            huge: None,
            irqs: irqs.collect::<Result<_, _>>()?,
        };
        guest.map()?;
        if vectors > 0 {
            let fds: Vec<_> = guest.irqs.iter().map(AsRawFd::as_raw_fd).collect();
            let count = fds.len() as u32;
            guest.client.set_irqs(MSIX, BY_EVENTFD, 0, count, &fds)?;
        }
        guest.client.region_write(CONFIG, 4, &[6, 0])?;
        Ok(guest)
    }

    fn is_base(&self) -> bool {
        self.irqs.is_empty()
    }

    /// Maps the memory for the card, in two regions, because a guest's memory usually has several.
    pub(crate) fn map(&mut self) -> Result<()> {
        let (half, fd) = (RAM / 2, self.ram.as_raw_fd());
        self.client.dma_map(0, GPA, half, fd)?;
        Ok(self.client.dma_map(half, GPA + half, half, fd)?)
    }

    /// Takes the memory away from the daemon: truncates the file to zero bytes.
    pub(crate) fn truncate(&self) -> Result<()> {
        Ok(self.ram.set_len(0)?)
    }

    /// Maps pages of this many files. Returns how many the daemon accepted.
    pub(crate) fn map_files(&mut self, count: u64) -> Result<u64> {
        let mut taken = 0;
        for n in 0..count {
            let file = File::from(memfd_create("page", MemfdFlags::CLOEXEC)?);
            file.set_len(0x1000)?;
            let at = FILES + n * 0x1000;
            let mapped = self.client.dma_map(0, at, 0x1000, file.as_raw_fd());
            taken += u64::from(mapped.is_ok());
        }
        Ok(taken)
    }

    /// Replaces the memory of all windows and snapshots by other memory.
    pub(crate) fn replace_memory(&mut self) -> Result<()> {
        self.client.dma_unmap(GPA, RAM / 2)?;
        self.client.dma_unmap(GPA + RAM / 2, RAM / 2)?;
        self.ram = memory()?;
        self.map()
    }

    /// Takes the memory of all windows away from the card.
    pub(crate) fn unmap_windows(&mut self) -> Result<()> {
        Ok(self.client.dma_unmap(GPA, RAM / 2)?)
    }

    /// Resets the card.
    pub(crate) fn reset(&mut self) -> Result<()> {
        self.client.reset()?;
        Ok(self.client.region_write(CONFIG, 4, &[6, 0])?)
    }

    /// Reads a register.
    pub(crate) fn read(&mut self, offset: u64) -> Result<u64> {
        let mut value = [0; 8];
        self.client.region_read(BAR0, offset, &mut value)?;
        Ok(u64::from_le_bytes(value))
    }

    /// Writes a register.
    pub(crate) fn write(&mut self, offset: u64, value: u64) -> Result<()> {
        let value = value.to_le_bytes();
        Ok(self.client.region_write(BAR0, offset, &value)?)
    }

    /// Reads a register of a slot.
    pub(crate) fn slot(&mut self, slot: u64, offset: u64) -> Result<u64> {
        self.read(0x1000 * (slot + 1) + offset)
    }

    fn set(&mut self, slot: u64, offset: u64, value: u64) -> Result<()> {
        self.write(0x1000 * (slot + 1) + offset, value)
    }

    /// Writes to the memory.
    pub(crate) fn put(&self, at: u64, data: &[u8]) -> Result<()> {
        if let Some(huge) = &self.huge {
            ensure!(huge.write(at, data), "beyond the memory");
            return Ok(());
        }
        Ok(self.ram.write_all_at(data, at)?)
    }

    /// Reads the memory.
    pub(crate) fn get(&self, at: u64, length: usize) -> Result<Vec<u8>> {
        let mut data = vec![0; length];
        self.ram.read_exact_at(&mut data, at)?;
        Ok(data)
    }

    /// Returns where in the memory a snapshot is.
    pub(crate) fn snapshot_at(snapshot: u64) -> u64 {
        SNAPSHOTS + snapshot * 0x1_0000
    }

    /// Does what a driver does before it puts a job on a slot: reset, window, registers.
    pub(crate) fn prepare(&mut self, job: &Job) -> Result<()> {
        self.write(0x18, 1 << job.slot)?;
        self.write(0x18, 0)?;
        let memory = GPA + job.window * WINDOW;
        self.window(job.slot, BASE, memory, WINDOW)?;
        self.write(0x200 + 8 * job.slot, 0)?;
        for &(offset, value) in &job.registers {
            self.set(job.slot, offset, value)?;
        }
        self.set(job.slot, TAG.into(), job.tag)?;
        let mut snapshot = GPA + Self::snapshot_at(job.snapshot);
        if self.is_base() {
            // A card without snapshot unit also adds the offset to this address.
            snapshot = snapshot.wrapping_sub(memory.wrapping_sub(BASE));
        }
        self.set(job.slot, SNAPSHOT, snapshot >> 6)
    }

    /// Sets the window of a slot.
    pub(crate) fn window(&mut self, slot: u64, base: u64, iova: u64, size: u64) -> Result<()> {
        let of_slot = 8 * slot;
        let offset = iova.wrapping_sub(base);
        // A base card counts lines.
        let lines = (offset as i64 >> 6) as u64;
        let value = if self.is_base() { lines } else { offset };
        self.write(0x30 + of_slot, value)?;
        self.write(0x180 + of_slot, base)?;
        self.write(0x1c0 + of_slot, size)
    }

    /// Starts a job whose registers were written before.
    pub(crate) fn go(&mut self, job: &Job) -> Result<()> {
        self.set(job.slot, CTL, ctl::START_NEW)
    }

    /// Starts a job.
    pub(crate) fn start(&mut self, job: &Job) -> Result<()> {
        self.prepare(job)?;
        self.go(job)
    }

    /// Starts a job from its snapshot.
    pub(crate) fn resume(&mut self, job: &Job) -> Result<()> {
        self.prepare(job)?;
        self.set(job.slot, CTL, ctl::START_RESUME)
    }

    /// Tells the job to stop.
    pub(crate) fn pause(&mut self, job: &Job) -> Result<()> {
        self.set(job.slot, CTL, ctl::PAUSE)
    }

    /// Waits until the slot is at rest: for its interrupt, or by polling if the card has none.
    /// Returns the status: PAUSED or FINISH, with errors.
    pub(crate) fn wait(&mut self, job: &Job) -> Result<u64> {
        let Some(irq) = self.irqs.get(job.slot as usize) else {
            return self.poll(job);
        };
        let mut fds = [PollFd::new(irq, PollFlags::IN)];
        if poll(&mut fds, Some(&LIMIT))? == 0 {
            let (slot, status) = (job.slot, self.slot(job.slot, CTL)?);
            bail!("no interrupt of slot {slot}, whose status is {status:#x}");
        }
        let mut count = [0; 8];
        rustix::io::read(&self.irqs[job.slot as usize], &mut count)?;
        ensure!(u64::from_ne_bytes(count) == 1, "more interrupts than one");
        Ok(self.slot(job.slot, CTL)? & 0xfff)
    }

    fn poll(&mut self, job: &Job) -> Result<u64> {
        let begin = Instant::now();
        while self.runs(job)? {
            ensure!(begin.elapsed() < Duration::from_secs(60), "it runs");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(self.slot(job.slot, CTL)? & 0xfff)
    }

    /// Waits for the end of a job.
    pub(crate) fn finish(&mut self, job: &Job) -> Result<()> {
        let end = self.wait(job)?;
        ensure!(end == status::FINISH, "status {end:#x}");
        Ok(())
    }

    /// Waits for the end of a job on a card that was loaded: `load` sends one interrupt for each
    /// slot, and the end of the job sends the second.
    pub(crate) fn finish_moved(&mut self, job: &Job) -> Result<()> {
        self.wait_irqs(job.slot, 2)?;
        let end = self.slot(job.slot, CTL)? & 0xfff;
        ensure!(end == status::FINISH, "status {end:#x}");
        Ok(())
    }

    /// Waits for interrupts of a slot until there were `count`.
    pub(crate) fn wait_irqs(&self, slot: u64, count: u64) -> Result<()> {
        let irq = &self.irqs[slot as usize];
        let mut seen = 0;
        while seen < count {
            let mut fds = [PollFd::new(irq, PollFlags::IN)];
            ensure!(poll(&mut fds, Some(&LIMIT))? > 0, "{seen} interrupts");
            let mut more = [0; 8];
            rustix::io::read(irq, &mut more)?;
            seen += u64::from_ne_bytes(more);
        }
        ensure!(seen == count, "{seen} interrupts");
        Ok(())
    }

    /// Returns whether the job is on the slot, as the guest sees it.
    pub(crate) fn runs(&mut self, job: &Job) -> Result<bool> {
        Ok(self.slot(job.slot, CTL)? & 0xff == status::RUNNING)
    }
}

/// The guest's slots, in the order of the daemon's option.
pub(crate) const SLOTS: &str = "sha256,membench";
const SHA256: u64 = 0;
pub(crate) const MEMBENCH: u64 = 1;
/// Offset of the data in a window. The results are before it.
const DATA: u64 = 0x1000;

/// A hash over most of a window.
pub(crate) struct Hash {
    pub(crate) job: Job,
    length: usize,
    digest: [u8; 32],
}

impl Hash {
    /// Writes data to the window of this number.
    pub(crate) fn new(guest: &Guest, window: u64, seed: u64) -> Result<Self> {
        let length = (WINDOW - DATA) as usize;
        let words = (0..length as u64 / 8).map(|i| splitmix64(seed.wrapping_add(i)));
        let data: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        guest.put(window * WINDOW + DATA, &data)?;
        guest.put(window * WINDOW, &[0; 32])?;
        let registers = vec![(0x30, BASE + DATA), (0x38, length as u64), (0x40, BASE)];
        Ok(Self {
            job: Job {
                slot: SHA256,
                window,
                snapshot: window,
                tag: seed,
                registers,
            },
            length,
            digest: Sha256::digest(&data).into(),
        })
    }

    /// Returns how many bytes it hashes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Checks the result in memory.
    pub(crate) fn check_memory(&self, guest: &Guest) -> Result<()> {
        let digest = guest.get(self.job.window * WINDOW, 32)?;
        ensure!(digest == self.digest, "digest in memory");
        Ok(())
    }

    /// Checks the results in memory and registers.
    pub(crate) fn check(&self, guest: &mut Guest) -> Result<()> {
        self.check_memory(guest)?;
        let mut words = Vec::new();
        for offset in [0x58, 0x60, 0x68, 0x70] {
            words.extend(guest.slot(SHA256, offset)?.to_le_bytes());
        }
        ensure!(words == self.digest, "digest in registers");
        let done = guest.slot(SHA256, 0x38)?;
        ensure!(done == self.length as u64, "{done} bytes hashed");
        Ok(())
    }
}

/// Reads, changes and writes the lines of a buffer. Returns the job, the count and the checksum.
pub(crate) fn membench(guest: &Guest, window: u64, seed: u64) -> Result<(Job, u64, u64)> {
    let (lines, count) = (64u64, 20_000u64);
    let mut model: Vec<u64> = (0..lines * 8).map(splitmix64).collect();
    let bytes: Vec<u8> = model.iter().flat_map(|word| word.to_le_bytes()).collect();
    guest.put(window * WINDOW + DATA, &bytes)?;
    let mut checksum = 0u64;
    for n in 0..count {
        let line = splitmix64(seed + n) % lines;
        for at in line * 8..line * 8 + 8 {
            let word = &mut model[at as usize];
            checksum = checksum.rotate_left(5) ^ *word;
            *word ^= splitmix64(seed ^ at);
        }
    }
    let registers = vec![
        (0x30, BASE + DATA),
        (0x38, lines * 64),
        (0x40, count),
        (0x48, seed),
        (0x58, 6),
        (0x60, BASE),
    ];
    let job = Job {
        slot: MEMBENCH,
        window,
        snapshot: window,
        tag: seed,
        registers,
    };
    Ok((job, count, checksum))
}

/// Reads a buffer endlessly.
pub(crate) fn endless(tag: u64) -> Job {
    reads(0, tag, 1 << 40)
}

/// Reads this many lines of a buffer.
pub(crate) fn reads(window: u64, tag: u64, lines: u64) -> Job {
    Job {
        slot: MEMBENCH,
        window,
        snapshot: 0,
        tag,
        registers: vec![(0x30, BASE), (0x38, 4096), (0x40, lines)],
    }
}

/// A device address beyond all windows.
pub(crate) const ASTRAY: u64 = BASE + 2 * WINDOW;

/// A hash whose data are beyond its window.
pub(crate) fn astray(window: u64, tag: u64) -> Job {
    Job {
        slot: SHA256,
        window,
        snapshot: window,
        tag,
        registers: vec![(0x30, ASTRAY), (0x38, 4096), (0x40, BASE)],
    }
}
