// SPDX-License-Identifier: GPL-2.0

//! The contexts that are set up on a card.

use super::Card;
use crate::context::Context;
use core::{cmp::Reverse, ptr, sync::atomic::Ordering};
use kernel::{prelude::*, sync::Arc};

/// Contexts that are set up.
///
/// # Locking
///
/// Behind a mutex. User memory is not touched under it, and `mmap_lock` is not taken under it.
pub(super) struct Registry {
    pub(super) contexts: KVec<Arc<Context>>,
}

impl Card {
    /// Notes a context that has been set up, so that [`Card::shut_down`] finds its memory.
    ///
    /// `may_join` looks at those that are there, and may refuse.
    pub(crate) fn register(
        &self,
        context: Arc<Context>,
        may_join: impl FnOnce(&[Arc<Context>]) -> Result,
    ) -> Result {
        let mut registry = self.registry.lock();
        may_join(&registry.contexts)?;
        Ok(registry.contexts.push(context, GFP_KERNEL)?)
    }

    /// Forgets a context, if [`Card::shut_down`] has not taken it out before, and returns whether
    /// it did.
    ///
    /// `free` is called meanwhile: the device is bound, since `shut_down` waits for us.
    pub(crate) fn unregister(&self, context: &Context, free: impl FnOnce()) -> bool {
        let mut registry = self.registry.lock();
        let Some(place) = registry
            .contexts
            .iter()
            .position(|other| ptr::eq(&**other, context))
        else {
            return false;
        };
        if self.dead.load(Ordering::Acquire) {
            // Nobody knows what a card does that does not answer.
            self.stop_dma();
        }
        free();
        let forgotten = registry.contexts.remove(place);
        drop(registry);
        drop(forgotten);
        true
    }

    /// The context of which `is_it` holds; the first, if of several.
    pub(crate) fn find_context(&self, is_it: impl Fn(&Context) -> bool) -> Option<Arc<Context>> {
        let registry = self.registry.lock();
        registry
            .contexts
            .iter()
            .find(|context| is_it(context))
            .cloned()
    }

    /// The context with the lowest index from `from` on, and its index. Of several that have had
    /// the index the last, which alone can be there still.
    pub(crate) fn next_context(&self, from: usize) -> Option<(usize, Arc<Context>)> {
        let registry = self.registry.lock();
        let (id, context) = registry
            .contexts
            .iter()
            .filter_map(|context| Some((context.id().ok()?, context)))
            .filter(|(id, _)| id.index() >= from)
            .min_by_key(|(id, _)| (id.index(), Reverse(id.generation())))?;
        Some((id.index(), context.clone()))
    }

    /// Notes that nobody will call [`Card::unregister`] for a context whose owner is gone, since a
    /// quarantined slot may still reach its memory. Whether that is so: it was not released
    /// meanwhile.
    pub(crate) fn leave_behind(&self, context: &Context) -> bool {
        let _registry = self.registry.lock();
        context.leave_behind()
    }

    /// Frees the memory of contexts that were left behind and have been released since. While the
    /// device is bound.
    pub(super) fn free_left_behind(&self) {
        while let Some(context) = self.take_left_behind() {
            context.free_memory();
        }
    }

    fn take_left_behind(&self) -> Option<Arc<Context>> {
        let mut registry = self.registry.lock();
        let place = registry
            .contexts
            .iter()
            .position(|context| context.may_be_freed())?;
        registry.contexts.remove(place).ok()
    }
}
