// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls that recreate a context on another card, or later, from what was saved of it.

use crate::{uapi, Arena, Context, Error, Result};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

impl Context {
    /// Returns the context of a file that is already open. If the file is another process's, both
    /// processes control the context.
    pub fn from_file(file: OwnedFd) -> Self {
        Self {
            file: File::from(file),
        }
    }

    /// Returns the file of the context.
    pub fn into_file(self) -> OwnedFd {
        self.file.into()
    }

    /// Maps the arena that the context already has; `None`: it has none.
    ///
    /// # Errors
    ///
    /// [`Error::NoAddress`]: the arena was never mapped, so that it has no device address, and this
    /// mapping would determine it; or its device address is 0, which the driver reports in the same
    /// way. [`Error::Invalid`]: the arena is the program's own memory.
    pub fn map_arena(&self) -> Result<Option<Arena>> {
        let status = self.status()?;
        if status.arena_length == 0 {
            return Ok(None);
        }
        if status.device_base == 0 {
            return Err(Error::NoAddress);
        }
        self.map_at_base(status.arena_length as usize, 0, status.device_base)
            .map(Some)
    }

    /// Creates the arena with this device address, and maps it: at the same address if that is
    /// free, otherwise at another ([`Arena::is_at_base`]).
    pub fn create_arena_at(&self, length: usize, base: u64) -> Result<Arena> {
        let argument = uapi::ArenaCreate {
            flags: uapi::ARENA_FIXED_BASE,
            length: length as u64,
            device_base: base,
            ..Default::default()
        };
        // SAFETY: no pointers.
        let made = unsafe { self.call(uapi::IOC_ARENA_CREATE, argument) }?;
        self.map_at_base(length, made.mmap_offset, base)
    }

    fn map_at_base(&self, length: usize, offset: u64, base: u64) -> Result<Arena> {
        let at = Some(base as usize).filter(|&at| at != 0);
        let mut arena = Arena::map(self.as_fd(), length, offset, at)
            .or_else(|_| Arena::map(self.as_fd(), length, offset, None))?;
        arena.set_base(base);
        Ok(arena)
    }

    /// Writes a part of the state from which [`Context::start_saved`] resumes.
    pub fn write_snapshot(&self, offset: u64, state: &[u8]) -> Result<()> {
        let argument = uapi::SnapshotWrite {
            offset,
            length: state.len() as u64,
            buffer: state.as_ptr() as u64,
            ..Default::default()
        };
        // SAFETY: the pointer refers to a buffer of this length, which is only read.
        unsafe { self.call(uapi::IOC_SNAPSHOT_WRITE, argument) }.map(drop)
    }

    /// Starts a job from the state that was written. Returns the job's number. [`Error::NoState`]:
    /// no state was written.
    pub fn start_saved(&self) -> Result<u64> {
        self.start_with(uapi::START_SAVED)
    }

    /// Like [`Context::start_saved`], but the job is held until [`Context::resume`].
    pub fn start_saved_held(&self) -> Result<u64> {
        self.start_with(uapi::START_SAVED | uapi::START_HELD)
    }

    /// Returns the registers that were ever written, with the values that a job begins with.
    pub fn written_registers(&self) -> Result<Vec<(u32, u64)>> {
        let found = self.list_registers(0)?;
        Ok(found.iter().map(|reg| (reg.offset, reg.value)).collect())
    }

    /// Returns the registers that are declared as results.
    pub fn declared_results(&self) -> Result<Vec<u32>> {
        let found = self.list_registers(uapi::REGS_RESULTS)?;
        Ok(found.iter().map(|reg| reg.offset).collect())
    }

    /// Returns how the context was set up. `eventfd`: a descriptor of an eventfd, to compare with
    /// the context's. `process`: a process whose memory the context may use, or 0.
    pub fn config(&self, eventfd: Option<BorrowedFd<'_>>, process: u32) -> Result<uapi::Config> {
        let argument = uapi::Config {
            fd: eventfd.map_or(-1, |eventfd| eventfd.as_raw_fd()),
            pid: process,
            ..Default::default()
        };
        // SAFETY: no pointers.
        unsafe { self.call(uapi::IOC_CONFIG, argument) }
    }

    /// Returns whether the context cannot be created again for another process: its arena or its
    /// snapshot buffer is the program's own memory, and the module parameter `foreign_memory` is 0.
    pub fn lacks_foreign_memory(&self) -> Result<bool> {
        if self.allows_foreign_memory()? {
            return Ok(false);
        }
        let config = match self.config(None, 0) {
            Err(Error::NotReady) => return Ok(false),
            config => config?,
        };
        let is_own = config.arena_flags & uapi::ARENA_USER != 0;
        Ok(is_own || config.snapshot_flags & uapi::SNAPSHOT_USER != 0)
    }

    /// Returns whether contexts of the card may use memory of another process
    /// ([`Context::use_memory_of`]): the module parameter `foreign_memory`.
    pub fn allows_foreign_memory(&self) -> Result<bool> {
        Ok(self.card_info()?.features & uapi::FEATURE_FOREIGN_MEMORY != 0)
    }

    /// Sets, in a context that has had no job, the outcome of the jobs of another context: `last`
    /// is the status of the other context, whose last job has ended, and `results` are registers
    /// that are declared as results, with their values. [`Error::Busy`]: the context has had a job.
    pub fn set_outcome(&self, last: &uapi::Status, results: &[(u32, u64)]) -> Result<()> {
        let outcome = uapi::Outcome {
            state: last.state,
            error: last.error,
            finished: last.finished,
            failed: last.failed,
            fault_addr: last.fault_addr,
            fault_flags: last.fault_flags,
            ..Default::default()
        };
        self.tell_outcome(outcome, results)
    }

    /// Sets the values of result registers of a held job. [`Error::Busy`]: the job is not held.
    pub fn set_results(&self, results: &[(u32, u64)]) -> Result<()> {
        let outcome = uapi::Outcome {
            state: uapi::STATE_HELD,
            ..Default::default()
        };
        self.tell_outcome(outcome, results)
    }

    fn tell_outcome(&self, outcome: uapi::Outcome, results: &[(u32, u64)]) -> Result<()> {
        let regs: Vec<_> = results
            .iter()
            .map(|&(offset, value)| uapi::Reg {
                offset,
                value,
                ..Default::default()
            })
            .collect();
        let argument = uapi::Outcome {
            count: regs.len() as u32,
            regs: regs.as_ptr() as u64,
            ..outcome
        };
        // SAFETY: the pointer refers to an array of this length, which is only read.
        unsafe { self.call(uapi::IOC_OUTCOME, argument) }.map(drop)
    }

    fn list_registers(&self, flags: u32) -> Result<Vec<uapi::Reg>> {
        let mut array = vec![uapi::Reg::default(); uapi::MAX_REGS];
        let argument = uapi::Regs {
            flags,
            count: array.len() as u32,
            regs: array.as_mut_ptr() as u64,
            ..Default::default()
        };
        // SAFETY: the pointer refers to an array of this length, which may be written.
        let listed = unsafe { self.call(uapi::IOC_REGS_LIST, argument) }?;
        array.truncate(listed.count as usize);
        Ok(array)
    }
}
