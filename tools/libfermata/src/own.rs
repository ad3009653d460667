// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arenas of the program's own memory, and of the memory of another context.

use crate::{uapi, Arena, Context, Result};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::ptr::NonNull;

impl Context {
    /// Makes `length` bytes of the program's own memory the arena, with the device address `base`.
    /// The driver pins the pages until the context ends, whatever becomes of their mapping.
    ///
    /// # Safety
    ///
    /// While the context lives, jobs write to the memory: no reference may point to it, except to
    /// atomic or volatile data.
    pub unsafe fn use_memory(&self, memory: NonNull<u8>, length: usize, base: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.use_memory_of(0, memory.as_ptr() as u64, length as u64, base) }
    }

    /// Makes an arena of new anonymous memory of the program, which has the device address at which
    /// it is mapped.
    pub fn create_own_arena(&self, length: usize) -> Result<Arena> {
        let arena = Arena::anonymous(length)?;
        // SAFETY: an `Arena` gives no references to its memory except to atomics.
        unsafe { self.use_memory_of(0, arena.base(), length as u64, arena.base()) }?;
        Ok(arena)
    }

    /// Makes `length` bytes at `address` in the memory of the process `pid` (0: this process) the
    /// arena, with the device address `base`.
    ///
    /// # Errors
    ///
    /// [`Error::NotPermitted`](crate::Error::NotPermitted): `pid` is not 0, and this process has
    /// neither `CAP_SYS_ADMIN` nor both `CAP_CHECKPOINT_RESTORE` and `CAP_SYS_PTRACE`; those of
    /// `FERMATA_IOC_ARENA_CREATE`.
    ///
    /// # Safety
    ///
    /// The promise of [`Context::use_memory`], for the process `pid`.
    pub unsafe fn use_memory_of(
        &self,
        pid: u32,
        address: u64,
        length: u64,
        base: u64,
    ) -> Result<()> {
        let argument = uapi::ArenaCreate {
            flags: uapi::ARENA_USER | uapi::ARENA_FIXED_BASE,
            length,
            device_base: base,
            user_addr: address,
            pid,
            ..Default::default()
        };
        // SAFETY: the driver pins what is mapped there, and refuses what is not; the rest is the
        // caller's promise.
        unsafe { self.call(uapi::IOC_ARENA_CREATE, argument) }.map(drop)
    }

    /// Makes `length` bytes at `address` in the memory of the process `pid` (0: this process) the
    /// buffer for preempted state. The errors are those of [`Context::use_memory_of`] and of
    /// `FERMATA_IOC_SNAPSHOT_CREATE`.
    ///
    /// # Safety
    ///
    /// The promise of [`Context::use_memory`], for the process `pid`.
    pub unsafe fn create_snapshot_of(&self, pid: u32, address: u64, length: u64) -> Result<()> {
        let argument = uapi::SnapshotCreate {
            flags: uapi::SNAPSHOT_USER,
            length,
            user_addr: address,
            pid,
            ..Default::default()
        };
        // SAFETY: as above.
        unsafe { self.call(uapi::IOC_SNAPSHOT_CREATE, argument) }.map(drop)
    }

    /// Makes `length` bytes of the arena of `lender` from `offset` on the arena of this context, too,
    /// and maps them; the device address is that of the mapping. The lender's arena was made by
    /// [`Context::create_arena`]. The lender is charged for the memory, and this context for the
    /// mapping, a 64th of `length`. The memory, and what is charged for it, stays until both contexts
    /// are closed.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid): the lender's arena has no such part, or is memory of
    /// a program's own; those of `FERMATA_IOC_ARENA_CREATE`.
    pub fn share_arena(&self, lender: &Self, offset: usize, length: usize) -> Result<Arena> {
        let made = self.share(lender, offset, length, None)?;
        let mut arena = Arena::map(self.as_fd(), length, made.mmap_offset, None)?;
        arena.set_base(self.status()?.device_base);
        Ok(arena)
    }

    /// Makes a part of the arena of `lender` the arena of this context, as
    /// [`Context::share_arena`], with the device address `base`, and does not map the memory.
    ///
    /// # Safety
    ///
    /// While the context lives, jobs write to the memory: no reference may point to it, except to
    /// atomic or volatile data.
    pub unsafe fn share_memory(
        &self,
        lender: &Self,
        offset: usize,
        length: usize,
        base: u64,
    ) -> Result<()> {
        self.share(lender, offset, length, Some(base)).map(drop)
    }

    fn share(
        &self,
        lender: &Self,
        offset: usize,
        length: usize,
        base: Option<u64>,
    ) -> Result<uapi::ArenaCreate> {
        let fixed = base.map_or(0, |_| uapi::ARENA_FIXED_BASE);
        let argument = uapi::ArenaCreate {
            flags: uapi::ARENA_SHARED | fixed,
            length: length as u64,
            device_base: base.unwrap_or(0),
            offset: offset as u64,
            fd: lender.as_fd().as_raw_fd(),
            ..Default::default()
        };
        // SAFETY: no pointers; the callers see to what jobs write.
        unsafe { self.call(uapi::IOC_ARENA_CREATE, argument) }
    }
}
