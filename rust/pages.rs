// SPDX-License-Identifier: GPL-2.0

//! Pages of physical memory that stay where they are: allocated, or a program's own, pinned.

use crate::shim;
use core::{cmp::min, ptr};
use kernel::{bindings, page::PAGE_SIZE, prelude::*};

/// Largest order that is tried for scattered pages: 2 MiB, which an IOMMU maps by one entry.
const MAX_ORDER: u32 = 9;

/// Where pages come from, and so how they are released.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Allocated,
    Pinned,
}

/// Pages, in order.
///
/// # Invariants
///
/// Every page in `list` has a reference (`Allocated`) or a pin (`Pinned`) that belongs to this
/// value.
pub(crate) struct Pages {
    list: KVVec<*mut bindings::page>,
    source: Source,
}

// SAFETY: Pages can be released from any thread, and nothing else is done to them.
unsafe impl Send for Pages {}
// SAFETY: `&self` gives pointers only.
unsafe impl Sync for Pages {}

impl Pages {
    /// Allocates `count` zeroed pages, anywhere. May sleep.
    ///
    /// `ENOMEM`; `EINTR`: a fatal signal came.
    pub(crate) fn scattered(count: usize) -> Result<Self> {
        let mut this = Self::empty(count, Source::Allocated)?;
        let mut order = MAX_ORDER;
        while this.list.len() < count {
            // SAFETY: No requirement.
            if unsafe { shim::fermata_fatal_signal_pending() } {
                return Err(EINTR);
            }
            order = min(order, (count - this.list.len()).ilog2());
            // SAFETY: No requirement.
            let first = unsafe { shim::fermata_pages_alloc(order) };
            match (first.is_null(), order) {
                (false, _) => this.push_run(first, 1 << order),
                (true, 0) => return Err(ENOMEM),
                (true, _) => order -= 1,
            }
        }
        Ok(this)
    }

    /// Allocates `count` zeroed, physically contiguous pages. May sleep. `ENOMEM`.
    ///
    /// The memory cgroup is charged only if [`contiguous_is_charged`].
    pub(crate) fn contiguous(count: usize) -> Result<Self> {
        let mut this = Self::empty(count, Source::Allocated)?;
        // SAFETY: No requirement.
        let first = unsafe { shim::fermata_contig_alloc(count) };
        if first.is_null() {
            return Err(ENOMEM);
        }
        this.push_run(first, count);
        Ok(this)
    }

    /// Pins the `count` pages that are mapped, writable, from `address` on, a multiple of the page
    /// size, in the caller's address space. What the program does to its mappings later changes
    /// nothing.
    ///
    /// May sleep for as long as a page fault does, which the owner of a FUSE file or of a
    /// userfaultfd decides: never call this where somebody else waits. Takes `mmap_lock`.
    ///
    /// `EFAULT`: not all of the range is mapped and writable, or some of it cannot be pinned for
    /// long: device memory, secret memory, a shared mapping of a file whose writes are tracked.
    /// `EOPNOTSUPP`: a file of a DAX file system. `ENOMEM`; `EINTR`: a fatal signal came.
    pub(crate) fn pinned(address: usize, count: usize) -> Result<Self> {
        let mut this = Self::empty(count, Source::Pinned)?;
        while this.list.len() < count {
            this.pin_more(address, count)?;
        }
        Ok(this)
    }

    /// No page yet, and room for `count` of them.
    fn empty(count: usize, source: Source) -> Result<Self> {
        Ok(Self {
            list: KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?,
            source,
        })
    }

    /// Appends `count` contiguous pages from `first` on, for which there is room.
    fn push_run(&mut self, first: *mut bindings::page, count: usize) {
        for n in 0..count {
            // SAFETY: `first` is the first of `count` contiguous pages.
            let page = unsafe { shim::fermata_nth_page(first, n) };
            // INVARIANT: The page's reference is that of the allocation.
            if self.list.push_within_capacity(page).is_err() {
                return;
            }
        }
    }

    /// Pins some of the pages that are not pinned yet.
    fn pin_more(&mut self, address: usize, count: usize) -> Result {
        let pinned = self.list.len();
        let room = &mut self.list.spare_capacity_mut()[..count - pinned];
        // SAFETY: `room` has place for so many pointers. A wrong address is an error.
        let result = unsafe {
            bindings::pin_user_pages_fast(
                address + pinned * PAGE_SIZE,
                c_int::try_from(room.len()).unwrap_or(c_int::MAX),
                bindings::FOLL_WRITE | bindings::FOLL_LONGTERM,
                room.as_mut_ptr().cast(),
            )
        };
        match usize::try_from(result) {
            Ok(0) => Err(EFAULT),
            Ok(more) => {
                // INVARIANT: So many more are pinned, and their pointers written.
                // SAFETY: As above.
                unsafe { self.list.inc_len(more) };
                Ok(())
            }
            Err(_) => Err(Error::from_errno(result)),
        }
    }

    /// Whether they were allocated, and so may be mapped into a program.
    pub(crate) fn are_allocated(&self) -> bool {
        self.source == Source::Allocated
    }

    /// All of them, in order.
    pub(crate) fn as_slice(&self) -> &[*mut bindings::page] {
        &self.list
    }

    /// The same, for C functions that take the array as writable and do not write to it.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [*mut bindings::page] {
        &mut self.list
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let (pages, count) = (self.list.as_mut_ptr(), self.list.len());
        match self.source {
            // A page that somebody else still refers to is freed with the last reference.
            // SAFETY: By the type invariant.
            Source::Allocated => unsafe { shim::fermata_put_pages(pages, count) },
            // Dirty: the engine may have written to any of them, and the page tables do not tell.
            // SAFETY: By the type invariant.
            Source::Pinned => unsafe {
                bindings::unpin_user_pages_dirty_lock(pages, count, true);
            },
        }
    }
}

/// Some pages, which exist as long as this value.
///
/// # Invariants
///
/// The first `count` pages of `list` have a reference that belongs to this value.
pub(crate) struct HeldPages {
    list: [*mut bindings::page; Self::MAX],
    count: usize,
}

impl HeldPages {
    /// How many fit.
    const MAX: usize = 64;

    /// The first of `pages`, which exist.
    pub(crate) fn new(pages: &[*mut bindings::page]) -> Self {
        let count = pages.len().min(Self::MAX);
        let mut list = [ptr::null_mut(); Self::MAX];
        list[..count].copy_from_slice(&pages[..count]);
        // INVARIANT: The references are taken here.
        // SAFETY: The pages exist.
        unsafe { shim::fermata_get_pages(list.as_mut_ptr(), count) };
        Self { list, count }
    }

    /// All of them, in order.
    pub(crate) fn as_slice(&self) -> &[*mut bindings::page] {
        &self.list[..self.count]
    }
}

impl Drop for HeldPages {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { shim::fermata_put_pages(self.list.as_mut_ptr(), self.count) };
    }
}

/// Whether the memory cgroup is charged for `count` physically contiguous pages.
pub(crate) fn contiguous_is_charged(count: usize) -> bool {
    // SAFETY: No requirement.
    unsafe { shim::fermata_contig_is_charged(count) }
}
