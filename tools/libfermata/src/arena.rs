// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory that a context shares with its engine.

use crate::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// An arena, mapped whole. The engine may write it while a job runs, so there are no references
/// into it: it is copied from and to, and words are accessed atomically.
#[derive(Debug)]
pub struct Arena {
    memory: NonNull<u8>,
    length: usize,
    base: u64,
}

// SAFETY: a plain mapping; all access is by copies and atomics, as with any memory that others
// write.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// `at`: only at that address; `EEXIST`: it is taken.
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
    pub(crate) fn anonymous(length: usize) -> Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let mut arena = Self::new(0, length, flags, -1, 0)?;
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
        })
    }

    pub(crate) fn set_base(&mut self, base: u64) {
        self.base = base;
    }

    /// Device address of its first byte.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Whether it is mapped at its device address: pointers are valid on both sides.
    pub fn is_at_base(&self) -> bool {
        self.address() as u64 == self.base
    }

    /// Where it is mapped.
    pub fn address(&self) -> usize {
        self.memory.as_ptr() as usize
    }

    /// Where it is mapped, for programs in other languages. The engine may write there while a job runs: no Rust
    /// reference may point to it, except to atomic or volatile data.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.memory
    }

    /// Its length in bytes.
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
        // SAFETY: within the mapping, as was just checked.
        unsafe { self.memory.as_ptr().add(offset) }
    }

    /// Copies into the arena. Panics beyond its end.
    pub fn write(&self, offset: usize, data: &[u8]) {
        let to = self.at(offset, data.len());
        // SAFETY: within the mapping; `data` is not part of it, as nobody gets a reference to that.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
    }

    /// Copies out of the arena. Panics beyond its end.
    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        let from = self.at(offset, length);
        // SAFETY: within the mapping, into memory of that length.
        unsafe { std::ptr::copy_nonoverlapping(from, data.as_mut_ptr(), length) };
        data
    }

    /// A word at an offset that is a multiple of 8. Panics beyond its end.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert_eq!(offset % 8, 0);
        #[allow(clippy::cast_ptr_alignment)] // the mapping begins with a page
        let word = self.at(offset, 8).cast::<u64>();
        // SAFETY: aligned, within the mapping, which lives as long as self; others access it by
        // words, too.
        unsafe { AtomicU64::from_ptr(word) }
    }

    /// Words from an offset that is a multiple of 8 on. Panics beyond its end.
    pub fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        assert_eq!(offset % 8, 0);
        let length = count.saturating_mul(8);
        #[allow(clippy::cast_ptr_alignment)] // the mapping begins with a page
        let words = self.at(offset, length).cast::<AtomicU64>();
        // SAFETY: aligned, within the mapping, which lives as long as self; others access it by
        // words, too.
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
        // SAFETY: the mapping made by `map`, to which no reference is left.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.length) };
    }
}
