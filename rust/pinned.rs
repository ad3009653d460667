// SPDX-License-Identifier: GPL-2.0

//! A program's own pages, pinned.

use core::ptr;
use kernel::{bindings, page::PAGE_SIZE, prelude::*};

/// The writable pages of a range of addresses, as they were when it was made; what the program does
/// to its mappings later changes nothing. They stay where they are, and are nobody else's, until it
/// is dropped.
///
/// # Invariants
///
/// The first `pinned` pages have a pin of ours.
pub(crate) struct PinnedPages {
    pages: KVVec<*mut bindings::page>,
    pinned: usize,
}

// SAFETY: Pages can be unpinned from any thread, and nothing else is done to them.
unsafe impl Send for PinnedPages {}
// SAFETY: `&self` gives pointers only.
unsafe impl Sync for PinnedPages {}

impl PinnedPages {
    /// Pins the `count` pages from `address`, a multiple of the page size, on, of the caller's
    /// address space. May sleep, and takes `mmap_lock`.
    ///
    /// `EFAULT`: not all of it is mapped and writable, or some of it cannot be pinned for long:
    /// device memory, secret memory, a shared mapping of a file whose writes are tracked.
    /// `EOPNOTSUPP`: a file of a DAX file system. `ENOMEM`; `EINTR`: a fatal signal came.
    pub(crate) fn new(address: usize, count: usize) -> Result<Self> {
        // INVARIANT: None is pinned yet.
        let mut this = Self {
            pages: KVVec::from_elem(ptr::null_mut(), count, GFP_KERNEL_ACCOUNT)?,
            pinned: 0,
        };
        while this.pinned < count {
            this.pin_more(address)?;
        }
        Ok(this)
    }

    /// Pins some of the pages that are not pinned yet; what was pinned stays so on an error.
    fn pin_more(&mut self, address: usize) -> Result {
        let rest = &mut self.pages[self.pinned..];
        // SAFETY: `rest` has room for so many pages. A wrong address is an error.
        let result = unsafe {
            bindings::pin_user_pages_fast(
                address + self.pinned * PAGE_SIZE,
                c_int::try_from(rest.len()).unwrap_or(c_int::MAX),
                bindings::FOLL_WRITE | bindings::FOLL_LONGTERM,
                rest.as_mut_ptr(),
            )
        };
        match usize::try_from(result) {
            Ok(0) => Err(EFAULT),
            // INVARIANT: So many more are pinned.
            Ok(more) => {
                self.pinned += more;
                Ok(())
            }
            Err(_) => Err(Error::from_errno(result)),
        }
    }

    /// All of them, in order.
    pub(crate) fn as_slice(&self) -> &[*mut bindings::page] {
        &self.pages
    }

    /// The same, for C functions that take it as writable and do not write.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [*mut bindings::page] {
        &mut self.pages
    }
}

impl Drop for PinnedPages {
    fn drop(&mut self) {
        // Dirty: the engine may have written any of them, and the page tables do not know of it.
        // SAFETY: By the type invariant.
        unsafe {
            bindings::unpin_user_pages_dirty_lock(self.pages.as_mut_ptr(), self.pinned, true)
        };
    }
}
