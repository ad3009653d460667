// SPDX-License-Identifier: GPL-2.0-or-later
//! Guest memory: files that QEMU shares, each mapped as a whole; and pieces of such files side by
//! side. All unsafe code of the card is here.

use rustix::fs::{fstat, fstatfs};
use rustix::io::Errno;
use rustix::mm::{mmap, mmap_anonymous, munmap, MapFlags, ProtFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Identifies the file behind a descriptor.
pub type FileId = (u64, u64);

/// One shared file. The guest and the card use it at the same time, so it is accessed only by
/// volatile copies.
pub struct Ram {
    base: *mut u8,
    len: usize,
    writable: bool,
    page: usize,
    file: OwnedFd,
}

// SAFETY: the mapping lives as long as the value and belongs to no thread; accesses are
// bounds-checked volatile copies.
unsafe impl Send for Ram {}
// SAFETY: as above.
unsafe impl Sync for Ram {}

/// Returns the identity of the file behind `fd`.
pub fn file_id(fd: BorrowedFd<'_>) -> std::io::Result<FileId> {
    let stat = fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

impl Ram {
    /// Maps the whole file, read-only if it cannot be written.
    pub fn map(fd: BorrowedFd<'_>) -> std::io::Result<Self> {
        let file = fd.try_clone_to_owned()?;
        let len = usize::try_from(fstat(fd)?.st_size).map_err(std::io::Error::other)?;
        let page = page_size(fd)?;
        let try_map = |prot| {
            // SAFETY: a new shared mapping at an address that the kernel chooses.
            unsafe {
                mmap(
                    ptr::null_mut(),
                    len,
                    prot,
                    MapFlags::SHARED | MapFlags::NORESERVE,
                    fd,
                    0,
                )
            }
        };
        let (base, writable) = match try_map(ProtFlags::READ | ProtFlags::WRITE) {
            Ok(base) => (base, true),
            Err(_) => (try_map(ProtFlags::READ)?, false),
        };
        Ok(Self {
            base: base.cast(),
            len,
            writable,
            page,
            file,
        })
    }

    /// Returns the size of the file in bytes.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns whether the file is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn at(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(len)?;
        // SAFETY: offset is within the mapping.
        (end <= self.len).then(|| unsafe { self.base.add(offset) })
    }

    /// Copies guest memory to `buf`. Returns false if the range is outside the file.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> bool {
        let Some(source) = self.at(offset, buf.len()) else {
            return false;
        };
        // SAFETY: `at` checked the range; `buf` is private.
        unsafe { copy_volatile(source, buf.as_mut_ptr(), buf.len()) };
        true
    }

    /// Copies `data` to guest memory. Returns false if the range is outside the file or cannot be
    /// written.
    pub fn write(&self, offset: u64, data: &[u8]) -> bool {
        let Some(target) = self.at(offset, data.len()) else {
            return false;
        };
        if !self.writable {
            return false;
        }
        // SAFETY: `at` checked the range; `data` is private.
        unsafe { copy_volatile(data.as_ptr(), target, data.len()) };
        true
    }
}

impl Drop for Ram {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which no reference is left. A failure would leave it mapped,
        // which does no harm.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

/// A part of a shared file: first byte and length.
pub type Piece = (Arc<Ram>, (u64, u64));

/// Pieces of shared files, mapped side by side, for a driver that pins the pages.
pub struct View {
    base: NonNull<u8>,
    len: usize,
    _mapping: Mapping,
}

/// What keeps the mapping of a view alive: the file, or the view's own address range.
type Mapping = (Option<Arc<Ram>>, Option<Reservation>);

/// A range of addresses of this process.
struct Reservation {
    start: NonNull<u8>,
    len: usize,
}

impl Reservation {
    fn new(len: usize) -> std::io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { start, len })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which no reference is left.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

const PAGE: usize = 4096;
/// The file system of huge pages (`linux/magic.h`).
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

/// Returns the page size of the file in bytes. Mappings of the file begin and end at multiples of
/// it.
fn page_size(file: BorrowedFd<'_>) -> std::io::Result<usize> {
    let system = fstatfs(file)?;
    match system.f_type {
        HUGETLBFS_MAGIC => usize::try_from(system.f_bsize).map_err(std::io::Error::other),
        _ => Ok(PAGE),
    }
}

impl View {
    /// Maps the pieces. `EINVAL`: the offset or the length of a piece, or its position in the view,
    /// is not a multiple of the page size, which is that of a huge page if there are several pieces
    /// and the file has huge pages. `EACCES`: a file cannot be written.
    pub fn of(pieces: &[Piece]) -> std::io::Result<Self> {
        match one_piece(pieces) {
            Some(piece) => Self::of_one(&piece),
            None => Self::of_several(pieces),
        }
    }

    /// Returns a view of one piece, whose file is mapped already as a whole.
    fn of_one((ram, (offset, len)): &Piece) -> std::io::Result<Self> {
        if offset % PAGE as u64 != 0 || len % PAGE as u64 != 0 {
            return Err(Errno::INVAL.into());
        }
        if !ram.writable {
            return Err(Errno::ACCESS.into());
        }
        let base = ram.at(*offset, *len as usize).and_then(NonNull::new);
        Ok(Self {
            base: base.ok_or(Errno::FAULT)?,
            len: *len as usize,
            _mapping: (Some(ram.clone()), None),
        })
    }

    fn of_several(pieces: &[Piece]) -> std::io::Result<Self> {
        let len = length_in_pages(pieces)?;
        let align = pieces.iter().map(|(ram, _)| ram.page).max();
        let align = align.unwrap_or(PAGE);
        let reserved = Reservation::new(len.checked_add(align).ok_or(Errno::NOMEM)?)?;
        let mut at = reserved.start.align_offset(align);
        // SAFETY: the reservation has room for the alignment.
        let base = unsafe { reserved.start.add(at) };
        for (ram, (offset, len)) in pieces {
            // SAFETY: replaces a part of the reservation, to which there is no reference: the parts
            // add up to the view's length, and are whole pages, so that none is rounded up.
            let mapped = unsafe {
                mmap(
                    reserved.start.as_ptr().add(at).cast(),
                    *len as usize,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE,
                    ram.file.as_fd(),
                    *offset,
                )
            };
            if let Err(error) = mapped {
                // The part may be unmapped now, and another thread's mapping may take its place.
                std::mem::forget(reserved);
                return Err(error.into());
            }
            at += *len as usize;
        }
        Ok(Self {
            base,
            len,
            _mapping: (None, Some(reserved)),
        })
    }

    /// Returns the address of the mapping.
    pub fn address(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the size of the view in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the view is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Returns the length of all pieces together. `EINVAL`: a piece cannot be mapped after the
/// previous one.
fn length_in_pages(pieces: &[Piece]) -> std::io::Result<usize> {
    let mut end = 0u64;
    for (ram, (offset, len)) in pieces {
        if (offset | len | end) % ram.page as u64 != 0 {
            return Err(Errno::INVAL.into());
        }
        end = end.checked_add(*len).ok_or(Errno::INVAL)?;
    }
    usize::try_from(end).map_err(std::io::Error::other)
}

/// Returns the pieces as one, if they follow each other in one file.
fn one_piece(pieces: &[Piece]) -> Option<Piece> {
    let ((first, (start, len)), more) = pieces.split_first()?;
    let mut end = start + len;
    for (ram, (offset, len)) in more {
        if !Arc::ptr_eq(first, ram) || *offset != end {
            return None;
        }
        end += len;
    }
    Some((first.clone(), (*start, end - start)))
}

/// Copies in aligned words where both sides allow it, so that a word that the guest polls is never
/// torn.
///
/// # Safety
/// Both ranges are valid for `len` bytes.
unsafe fn copy_volatile(source: *const u8, target: *mut u8, len: usize) {
    let mut i = 0;
    while i < len {
        // SAFETY: i < len, and the word fits where it is taken.
        unsafe {
            let (from, to) = (source.add(i), target.add(i));
            let shared_aligned = from as usize % 8 == 0 || to as usize % 8 == 0;
            if shared_aligned && len - i >= 8 {
                copy_word(from, to);
                i += 8;
            } else {
                to.write_volatile(from.read_volatile());
                i += 1;
            }
        }
    }
}

/// Copies eight bytes; an aligned side is accessed as one word.
///
/// # Safety
/// Both pointers are valid for eight bytes.
#[allow(clippy::cast_ptr_alignment)] // checked before each access
unsafe fn copy_word(from: *const u8, to: *mut u8) {
    // SAFETY: a volatile access happens only where the pointer is aligned.
    unsafe {
        let word = if from as usize % 8 == 0 {
            from.cast::<u64>().read_volatile()
        } else {
            from.cast::<u64>().read_unaligned()
        };
        if to as usize % 8 == 0 {
            to.cast::<u64>().write_volatile(word);
        } else {
            to.cast::<u64>().write_unaligned(word);
        }
    }
}
