// SPDX-License-Identifier: GPL-2.0-or-later
//! Memory that a device or another process changes: the registers of a card, or memory shared by a
//! tenant.

use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;

/// A shared mapping, accessed by aligned 64-bit words only.
pub(crate) struct Mapping {
    memory: NonNull<u8>,
    length: usize,
}

// SAFETY: The value owns the mapping, and all accesses are volatile.
unsafe impl Send for Mapping {}
// SAFETY: All accesses are volatile reads and writes of aligned words, which may race.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(file: &impl AsFd, length: usize, offset: u64) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: The kernel chooses the address of the new mapping.
        let memory = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                protection,
                MapFlags::SHARED,
                file,
                offset,
            )
        }?;
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { memory, length })
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    #[allow(clippy::cast_ptr_alignment)] // the mapping begins with a page
    fn word(&self, offset: usize) -> *mut u64 {
        assert!(offset % 8 == 0 && offset + 8 <= self.length, "{offset:#x}");
        // SAFETY: The assertion has checked that the word lies within the mapping.
        unsafe { self.memory.as_ptr().add(offset).cast() }
    }

    /// Returns the word at `offset`. Panics if `offset` is no multiple of 8 or lies beyond the end.
    pub(crate) fn read(&self, offset: usize) -> u64 {
        // SAFETY: `word` returns an aligned pointer into the mapping, which lives as long as
        // `self`.
        unsafe { self.word(offset).read_volatile() }
    }

    /// Writes the word at `offset`. Panics if `offset` is no multiple of 8 or lies beyond the end.
    pub(crate) fn write(&self, offset: usize, value: u64) {
        // SAFETY: `word` returns an aligned pointer into the mapping, which lives as long as
        // `self`.
        unsafe { self.word(offset).write_volatile(value) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping, and no reference into it is left.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.length) };
    }
}
