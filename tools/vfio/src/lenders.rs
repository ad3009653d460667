// SPDX-License-Identifier: GPL-2.0-or-later
//! Contexts whose arenas others share, so that the memory of a guest is pinned and charged once,
//! however many windows lie in it.

use fermata::Context;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The contexts of a guest that have an arena, each with the IOVAs of the arena.
#[derive(Default)]
pub(crate) struct Lenders(Mutex<Vec<(Range<u64>, Weak<Context>)>>);

impl Lenders {
    /// Returns a context whose arena includes `memory`, and where the arena begins.
    pub(crate) fn find(&self, memory: &Range<u64>) -> Option<(Arc<Context>, u64)> {
        let lenders = self.lock();
        let mut fitting = lenders.iter().filter(|(arena, _)| includes(arena, memory));
        fitting.find_map(|(arena, context)| Some((context.upgrade()?, arena.start)))
    }

    /// Adds a context, and forgets those that are gone.
    pub(crate) fn add(&self, arena: Range<u64>, context: &Arc<Context>) {
        let mut lenders = self.lock();
        lenders.retain(|(_, lender)| lender.strong_count() > 0);
        lenders.push((arena, Arc::downgrade(context)));
    }

    /// Removes a context whose memory has been taken away from the guest. To be called before other
    /// memory can have the same IOVAs.
    pub(crate) fn remove(&self, context: &Arc<Context>) {
        let is_it = |lender: &Weak<Context>| std::ptr::eq(lender.as_ptr(), Arc::as_ptr(context));
        self.lock().retain(|(_, lender)| !is_it(lender));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Range<u64>, Weak<Context>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
