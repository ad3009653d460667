// SPDX-License-Identifier: GPL-2.0

//! Pages of physical memory that stay where they are: allocated, or a program's own, pinned.

use crate::{
    charge::Charge,
    shim::{
        self, fermata_contig_alloc, fermata_contig_is_charged, fermata_fatal_signal_pending,
        fermata_pages_alloc,
    },
    user_memory::UserMemory,
};
use core::{cmp::min, ptr::NonNull};
use kernel::{bindings, page::BorrowedPage, prelude::*, sync::Arc};

/// Largest order that is tried for scattered pages: 2 MiB, which an IOMMU maps with one entry.
const MAX_ORDER: u32 = 9;

/// Pages of a program's memory that are compared at once: a page of pointers.
const COMPARED: usize = 512;

/// Where pages come from, which decides how they are released.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Allocated,
    Pinned,
}

/// A list of pages.
///
/// # Invariants
///
/// Every page in `list` is valid, and has a reference (`Allocated`) or a pin (`Pinned`) that
/// belongs to this value.
pub(crate) struct Pages {
    list: KVVec<NonNull<bindings::page>>,
    source: Source,
    /// Dropped after the pages are released. `None`: memory of the driver.
    _charge: Option<Charge>,
}

// SAFETY: Pages can be released on any thread; `Charge` is `Send`.
unsafe impl Send for Pages {}
// SAFETY: `&self` gives access to `Page`, which is `Sync`, and plain values; `Charge` is `Sync`.
unsafe impl Sync for Pages {}

impl Pages {
    /// Allocates `count` zeroed pages, which need not be contiguous. May sleep.
    ///
    /// `ENOMEM`; `EINTR`: a fatal signal came.
    pub(crate) fn scattered(count: usize, charge: Option<Charge>) -> Result<Self> {
        let mut this = Self::empty(count, Source::Allocated, charge)?;
        let mut order = MAX_ORDER;
        while this.list.len() < count {
            if fermata_fatal_signal_pending() {
                return Err(EINTR);
            }
            order = min(order, (count - this.list.len()).ilog2());
            match (NonNull::new(fermata_pages_alloc(order)), order) {
                (Some(first), _) => this.push_run(first, 1 << order),
                (None, 0) => return Err(ENOMEM),
                (None, _) => order -= 1,
            }
        }
        Ok(this)
    }

    /// Allocates `count` zeroed, physically contiguous pages. May sleep. `ENOMEM`.
    ///
    /// The memory cgroup is charged only if [`contiguous_is_charged`].
    pub(crate) fn contiguous(count: usize, charge: Option<Charge>) -> Result<Self> {
        let mut this = Self::empty(count, Source::Allocated, charge)?;
        let first = NonNull::new(fermata_contig_alloc(count)).ok_or(ENOMEM)?;
        this.push_run(first, count);
        Ok(this)
    }

    /// Pins `count` pages of `memory`, whose address is a multiple of the page size, from page
    /// number `first` on. Later changes of the program's mappings do not matter.
    ///
    /// May sleep for as long as a page fault takes, which the owner of a FUSE file or of a
    /// userfaultfd decides. So this must not be called while others wait for the caller. Takes
    /// `mmap_lock`.
    ///
    /// `EFAULT`: not all of the range is mapped and writable, or some of it cannot be pinned long
    /// term: device memory, secret memory, a shared mapping of a file whose writes are tracked.
    /// `EOPNOTSUPP`: a file of a DAX file system. `ENOMEM`; `EINTR`: a fatal signal came.
    pub(crate) fn pinned(
        memory: &UserMemory,
        first: usize,
        count: usize,
        charge: Option<Charge>,
    ) -> Result<Self> {
        let mut this = Self::empty(count, Source::Pinned, charge)?;
        while this.list.len() < count {
            let pinned = this.list.len();
            let room = &mut this.list.spare_capacity_mut()[..count - pinned];
            let more = memory.pin(first + pinned, room)?;
            // INVARIANT: The pages are valid and pinned.
            // SAFETY: `more` pointers were written, at most as many as there is room for.
            unsafe { this.list.inc_len(more) };
        }
        Ok(this)
    }

    /// Returns an empty list with room for `count` pages.
    fn empty(count: usize, source: Source, charge: Option<Charge>) -> Result<Self> {
        Ok(Self {
            list: KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?,
            source,
            _charge: charge,
        })
    }

    /// Appends the `count` contiguous pages from `first` on, for which there is room. The pages
    /// were just allocated, each with a reference.
    fn push_run(&mut self, first: NonNull<bindings::page>, count: usize) {
        for n in 0..count {
            // SAFETY: `first` is the first of `count` contiguous pages.
            let page = NonNull::new(unsafe { shim::fermata_nth_page(first.as_ptr(), n) });
            // INVARIANT: The page's reference is that of the allocation.
            let pushed = page.map(|page| self.list.push_within_capacity(page));
            if !matches!(pushed, Some(Ok(()))) {
                return;
            }
        }
    }

    /// Returns the number of pages.
    fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns the array of page pointers, for C functions that do not write to it.
    fn as_ptr(&self) -> *mut *mut bindings::page {
        self.list.as_ptr().cast_mut().cast()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let (pages, count) = (self.as_ptr(), self.len());
        match self.source {
            // A page that somebody else still refers to is freed with the last reference.
            // SAFETY: By the type invariant each page has a reference that is ours.
            Source::Allocated => unsafe { shim::fermata_put_pages(pages, count) },
            // Dirty: the engine may have written to any page, and the page tables do not show it.
            // SAFETY: By the type invariant each page has a pin that is ours.
            Source::Pinned => unsafe {
                bindings::unpin_user_pages_dirty_lock(pages, count, true);
            },
        }
    }
}

/// Some of the pages of a list, in order. The whole list exists as long as this value.
#[derive(Clone)]
pub(crate) struct PageRange {
    pages: Arc<Pages>,
    /// Number of the first page. There are `count` pages from there on.
    first: usize,
    count: usize,
}

impl PageRange {
    /// Returns all of `pages`. `ENOMEM`.
    pub(crate) fn whole(pages: Pages) -> Result<Self> {
        let count = pages.len();
        Ok(Self {
            pages: Arc::new(pages, GFP_KERNEL_ACCOUNT)?,
            first: 0,
            count,
        })
    }

    /// Returns the `count` pages from page number `first` of this range on. `EINVAL`: they go
    /// beyond the end of the range.
    pub(crate) fn part(&self, first: usize, count: usize) -> Result<Self> {
        match first.checked_add(count) {
            Some(end) if end <= self.count => Ok(Self {
                pages: self.pages.clone(),
                first: self.first + first,
                count,
            }),
            _ => Err(EINVAL),
        }
    }

    /// Returns whether the pages were allocated, and so may be mapped into a program.
    pub(crate) fn are_allocated(&self) -> bool {
        self.pages.source == Source::Allocated
    }

    /// Returns whether the program now has these pages mapped from the address of `memory` on.
    ///
    /// May sleep for as long as page faults take, as [`Pages::pinned`] does. `ENOMEM`; `EINTR`: a
    /// fatal signal came.
    pub(crate) fn are_at(&self, memory: &UserMemory) -> Result<bool> {
        let ours = self.pages.list.get(self.first..self.first + self.count);
        for (n, part) in ours.ok_or(EINVAL)?.chunks(COMPARED).enumerate() {
            if fermata_fatal_signal_pending() {
                return Err(EINTR);
            }
            match Pages::pinned(memory, n * COMPARED, part.len(), None) {
                Ok(there) if there.list[..] == *part => {}
                Ok(_) | Err(EFAULT) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Returns the number of pages.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Returns the number of the first page in the whole list.
    pub(crate) fn first(&self) -> usize {
        self.first
    }

    /// Returns the number of pages in the whole list, all of which this value keeps.
    pub(crate) fn kept(&self) -> usize {
        self.pages.len()
    }

    /// Returns page number `n` of the range.
    pub(crate) fn get(&self, n: usize) -> Option<BorrowedPage<'_>> {
        let pages = self.pages.list.get(self.first..self.first + self.count)?;
        let &page = pages.get(n)?;
        // SAFETY: By the type invariant the page is valid as long as the list.
        Some(unsafe { BorrowedPage::from_raw(page) })
    }

    /// Returns the array of page pointers, for C functions that do not write to it.
    pub(crate) fn as_ptr(&self) -> *mut *mut bindings::page {
        self.pages.as_ptr().wrapping_add(self.first)
    }
}

/// Returns whether the memory cgroup is charged for `count` physically contiguous pages.
pub(crate) fn contiguous_is_charged(count: usize) -> bool {
    fermata_contig_is_charged(count)
}
