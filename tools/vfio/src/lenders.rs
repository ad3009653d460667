// SPDX-License-Identifier: GPL-2.0-or-later
//! Contexts that run no job and have memory of the guest, which the contexts that run jobs share: so
//! the memory is pinned and charged once, however many windows lie in it.

use fermata::{Context, Error, Result};
use fermata_card::dma::DmaSpace;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A context whose arena is memory of the guest.
pub(crate) struct Lender {
    context: Context,
    /// The IOVAs of the arena.
    memory: Range<u64>,
}

impl Lender {
    /// Makes `memory` the arena of `context`.
    fn new(context: Context, memory: Range<u64>, of: &DmaSpace) -> Result<Self> {
        let size = memory.end - memory.start;
        let view = of.view(memory.start, size).ok_or_else(fault)?;
        // SAFETY: nothing in this process refers to the memory; the memory of the guest is accessed by
        // volatile copies elsewhere. The context runs no job, so its device address does not matter.
        unsafe { context.use_memory(view.address(), view.len(), 0)? };
        Ok(Self { context, memory })
    }

    /// Makes the part `window` of the memory the arena of `context`, at the device address `base`.
    pub(crate) fn lend(&self, context: &Context, window: &Range<u64>, base: u64) -> Result<()> {
        let offset = (window.start - self.memory.start) as usize;
        let length = (window.end - window.start) as usize;
        // SAFETY: as above.
        unsafe { context.share_memory(&self.context, offset, length, base) }
    }

    /// Whether the memory includes `window`, and is still the guest's.
    fn has(&self, window: &Range<u64>, memory: &DmaSpace) -> bool {
        includes(&self.memory, window) && self.is_mapped(memory)
    }

    /// Whether all of the memory is still the guest's.
    pub(crate) fn is_mapped(&self, memory: &DmaSpace) -> bool {
        let Range { start, end } = self.memory;
        memory.covers(start, end - start)
    }
}

/// The lenders of a guest.
pub(crate) struct Lenders {
    /// A lender has all memory around the window for which it is made, not only that of the window.
    whole: bool,
    list: Mutex<Vec<Weak<Lender>>>,
}

impl Lenders {
    pub(crate) fn new(whole: bool) -> Self {
        let list = Mutex::default();
        Self { whole, list }
    }

    /// Returns a lender that has all of `window`: one that is there, or a new one with the context
    /// that `open` returns.
    pub(crate) fn of(
        &self,
        window: Range<u64>,
        memory: &DmaSpace,
        open: impl FnOnce() -> Result<Context>,
    ) -> Result<Arc<Lender>> {
        let mut lenders = self.lock();
        let mut all = lenders.iter().filter_map(Weak::upgrade);
        if let Some(lender) = all.find(|lender| lender.has(&window, memory)) {
            return Ok(lender);
        }
        let lender = Arc::new(Lender::new(open()?, self.lent(window, memory), memory)?);
        lenders.retain(|lender| lender.strong_count() > 0);
        lenders.push(Arc::downgrade(&lender));
        Ok(lender)
    }

    /// Returns the memory of a new lender that must have all of `window`.
    fn lent(&self, window: Range<u64>, memory: &DmaSpace) -> Range<u64> {
        let around = self.whole.then(|| memory.range_around(window.start));
        let around = around
            .flatten()
            .map(|(start, length)| start..start + length);
        around
            .filter(|around| includes(around, &window))
            .unwrap_or(window)
    }

    /// Forgets lenders of memory that is not the guest's any more. To be called before other memory
    /// can have the same IOVAs.
    pub(crate) fn release(&self, memory: &DmaSpace) {
        let is_mapped = |lender: Arc<Lender>| lender.is_mapped(memory);
        self.lock()
            .retain(|lender| lender.upgrade().is_some_and(is_mapped));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Lender>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The guest has no such memory.
pub(crate) fn fault() -> Error {
    Error::Other(rustix::io::Errno::FAULT.raw_os_error())
}

fn includes(outer: &Range<u64>, inner: &Range<u64>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lender_has_all_of_the_memory() {
        assert!(includes(&(8..16), &(8..16)) && includes(&(8..16), &(9..15)));
        assert!(!includes(&(8..16), &(7..16)) && !includes(&(8..16), &(8..17)));
    }
}
