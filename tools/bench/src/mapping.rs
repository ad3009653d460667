// SPDX-License-Identifier: GPL-2.0-or-later
//! Memory that a device or another process changes: registers of a card, or what a tenant shares.

use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;

/// A shared mapping, accessed by aligned words only.
pub(crate) struct Mapping {
    memory: NonNull<u8>,
    length: usize,
}

// SAFETY: a plain mapping; all access is by volatile words, as with any memory that others write.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(file: &impl AsFd, length: usize, offset: u64) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, where the kernel finds room.
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
        // SAFETY: within the mapping, as was just checked.
        unsafe { self.memory.as_ptr().add(offset).cast() }
    }

    /// Reads the word at a multiple of 8. Panics beyond the end.
    pub(crate) fn read(&self, offset: usize) -> u64 {
        // SAFETY: aligned and within the mapping, which lives as long as self.
        unsafe { self.word(offset).read_volatile() }
    }

    /// Writes the word at a multiple of 8. Panics beyond the end.
    pub(crate) fn write(&self, offset: usize, value: u64) {
        // SAFETY: as above.
        unsafe { self.word(offset).write_volatile(value) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`, to which no reference is left.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.length) };
    }
}
