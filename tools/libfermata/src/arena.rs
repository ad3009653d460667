// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory that a context shares with its engine. It belongs to the driver, to the program
//! itself, or to another context.

use crate::{uapi, Context, Error, Process, Result};
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// An arena, mapped as a whole. The engine may write to it while a job runs, so there are no
/// references into it: data are copied in and out, and words are accessed atomically.
///
/// A child of `fork()` does not have the mapping ([`Arena::is_mapped`]), and may have another one
/// at its address: there an access panics, and dropping the arena does nothing.
#[derive(Debug)]
pub struct Arena {
    memory: NonNull<u8>,
    length: usize,
    base: u64,
    /// The process that has the mapping.
    process: Process,
}

// SAFETY: a plain mapping. All access is by copies and atomics, as for any memory that others write
// to.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps an arena. With `at`, only at this address; `EEXIST`: the address is taken.
    pub(crate) fn map(
        file: BorrowedFd<'_>,
        length: usize,
        offset: u64,
        at: Option<usize>,
    ) -> Result<Self> {
        let fixed = at.map_or(0, |_| libc::MAP_FIXED_NOREPLACE);
        let flags = libc::MAP_SHARED | fixed;
        Self::new(at.unwrap_or(0), length, flags, file.as_raw_fd(), offset)
    }

    /// Maps new anonymous memory.
    fn anonymous(length: usize) -> Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let mut arena = Self::new(0, length, flags, -1, 0)?;
        // SAFETY: the new mapping. A child has none, as of a driver's arena.
        if unsafe { libc::madvise(arena.memory.as_ptr().cast(), length, libc::MADV_DONTFORK) } < 0 {
            return Err(Error::last());
        }
        arena.base = arena.address() as u64;
        Ok(arena)
    }

    fn new(at: usize, length: usize, flags: i32, file: RawFd, offset: u64) -> Result<Self> {
        // SAFETY: a new mapping, where nothing else is.
        let memory = unsafe {
            libc::mmap(
                std::ptr::without_provenance_mut(at),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                file,
                offset as libc::off_t,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(Error::last());
        }
        let memory = NonNull::new(memory.cast()).ok_or(Error::NoMemory)?;
        Ok(Self {
            memory,
            length,
            base: 0,
            process: Process::current(),
        })
    }

    pub(crate) fn set_base(&mut self, base: u64) {
        self.base = base;
    }

    /// Returns the device address of the first byte.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Returns whether the arena is mapped at its device address, so that pointers are valid on
    /// both sides.
    pub fn is_at_base(&self) -> bool {
        self.address() as u64 == self.base
    }

    /// Returns whether the arena is mapped in this process, which is not a child of the process that
    /// has mapped it.
    pub fn is_mapped(&self) -> bool {
        self.process.is_current()
    }

    /// Returns the address of the mapping.
    pub fn address(&self) -> usize {
        self.memory.as_ptr() as usize
    }

    /// Returns the address of the mapping, for programs in other languages. The engine may write
    /// there while a job runs: no Rust reference may point to it, except to atomic or volatile
    /// data.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.memory
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        let end = offset.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= self.length),
            "{offset}+{length} is beyond the arena's {}",
            self.length
        );
        assert!(self.is_mapped(), "the arena is not mapped in a child");
        // SAFETY: within the mapping, as was just checked.
        unsafe { self.memory.as_ptr().add(offset) }
    }

    /// Copies `data` into the arena. Panics if they go beyond its end.
    pub fn write(&self, offset: usize, data: &[u8]) {
        let to = self.at(offset, data.len());
        // SAFETY: within the mapping. `data` is not part of it, because there are no references
        // into it.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
    }

    /// Copies data out of the arena. Panics if they go beyond its end.
    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        let from = self.at(offset, length);
        // SAFETY: within the mapping, into memory of that length.
        unsafe { std::ptr::copy_nonoverlapping(from, data.as_mut_ptr(), length) };
        data
    }

    /// Returns the word at an offset, which must be a multiple of 8. Panics beyond the end.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert_eq!(offset % 8, 0);
        #[allow(clippy::cast_ptr_alignment)] // the mapping begins with a page
        let word = self.at(offset, 8).cast::<u64>();
        // SAFETY: aligned, and within the mapping, which lives as long as self. Others also access
        // it by words.
        unsafe { AtomicU64::from_ptr(word) }
    }

    /// Returns words from an offset, which must be a multiple of 8. Panics beyond the end.
    pub fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        assert_eq!(offset % 8, 0);
        let length = count.saturating_mul(8);
        #[allow(clippy::cast_ptr_alignment)] // the mapping begins with a page
        let words = self.at(offset, length).cast::<AtomicU64>();
        // SAFETY: aligned, and within the mapping, which lives as long as self. Others also access
        // it by words.
        unsafe { std::slice::from_raw_parts(words, count) }
    }

    /// Writes a word.
    pub fn store(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Relaxed);
    }

    /// Reads a word.
    pub fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Relaxed)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if !self.is_mapped() {
            return;
        }
        // SAFETY: the mapping made by `new`. No reference to it is left.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.length) };
    }
}

impl Context {
    /// Makes `length` bytes of the program's own memory the arena, with the device address `base`.
    /// The driver pins the pages until the context ends, even if they are unmapped before.
    ///
    /// # Safety
    ///
    /// While the context lives, jobs write to the memory: no reference may point to it, except to
    /// atomic or volatile data.
    pub unsafe fn use_memory(&self, memory: NonNull<u8>, length: usize, base: u64) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.use_memory_of(0, memory.as_ptr() as u64, length as u64, base) }
    }

    /// Makes new anonymous memory of the program the arena. Its device address is the address of
    /// the mapping.
    pub fn create_own_arena(&self, length: usize) -> Result<Arena> {
        let arena = Arena::anonymous(length)?;
        // SAFETY: an `Arena` gives out no references to its memory except to atomics.
        unsafe { self.use_memory_of(0, arena.base(), length as u64, arena.base()) }?;
        Ok(arena)
    }

    /// Makes `length` bytes at `address` in the memory of the process `pid` (0: this process) the
    /// arena, with the device address `base`.
    ///
    /// # Errors
    ///
    /// [`Error::NotPermitted`]: `pid` is not 0, and the module parameter `foreign_memory` is 0
    /// ([`Context::allows_foreign_memory`]), or this process has neither `CAP_SYS_ADMIN` nor both
    /// `CAP_CHECKPOINT_RESTORE` and `CAP_SYS_PTRACE`. Other errors are those of `FERMATA_IOC_ARENA_CREATE`.
    ///
    /// # Safety
    ///
    /// As for [`Context::use_memory`], but for the process `pid`.
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
        // SAFETY: the driver pins what is mapped there, and refuses anything else. The rest is
        // guaranteed by the caller.
        unsafe { self.call(uapi::IOC_ARENA_CREATE, argument) }.map(drop)
    }

    /// Makes `length` bytes at `address` in the memory of the process `pid` (0: this process) the
    /// snapshot buffer. The errors are those of [`Context::use_memory_of`] and of
    /// `FERMATA_IOC_SNAPSHOT_CREATE`.
    ///
    /// # Safety
    ///
    /// As for [`Context::use_memory`], but for the process `pid`.
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

    /// Makes `length` bytes of the arena of `lender`, from `offset` on, also the arena of this
    /// context, and maps them. The device address is the address of the mapping. The lender's arena
    /// must have been made by [`Context::create_arena`]. The lender is charged for the memory, and
    /// this context for the mapping, a 64th of `length`. The memory and its charge stay until both
    /// contexts are closed.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: the lender's arena has no such part, or is memory
    /// of a program's own. Other errors are those of `FERMATA_IOC_ARENA_CREATE`.
    pub fn share_arena(&self, lender: &Self, offset: usize, length: usize) -> Result<Arena> {
        let made = self.share(lender, offset, length, None)?;
        let mut arena = Arena::map(self.as_fd(), length, made.mmap_offset, None)?;
        arena.set_base(self.status()?.device_base);
        Ok(arena)
    }

    /// Makes a part of the arena of `lender` also the arena of this context, like
    /// [`Context::share_arena`], but with the device address `base` and without mapping the memory.
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
        // SAFETY: no pointers; the callers answer for what jobs write.
        unsafe { self.call(uapi::IOC_ARENA_CREATE, argument) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fork::tests::holds_in_child;

    #[test]
    fn a_child_keeps_its_own_memory_at_the_address_of_an_inherited_arena() {
        const LENGTH: usize = 1 << 16;
        let arena = Arena::anonymous(LENGTH).unwrap();
        arena.store(0, 5);
        // The child drops a copy of the parent's arena.
        let copy = || Arena { ..arena };
        assert!(holds_in_child(|| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let Ok(own) = Arena::new(arena.address(), LENGTH, flags, -1, 0) else {
                return false;
            };
            let is_inherited = !arena.is_mapped();
            own.store(0, 7);
            drop(copy());
            is_inherited && own.load(0) == 7
        }));
        assert_eq!(arena.load(0), 5);
    }
}
