// SPDX-License-Identifier: GPL-2.0

//! The contexts that are set up on a card.

use super::{groups::GroupLimits, Card, Scheduler};
use crate::{
    capability, charge::PinnedBytes, context::Context, gate::UnplugGuard, opener::Opener,
    sched::GroupKey,
};
use core::{cmp::Reverse, ptr};
use kernel::{prelude::*, sync::Arc};

/// Contexts that are set up, and groups that are registered.
///
/// # Locking
///
/// Behind a mutex, which is also taken inside the unplug gate: user memory is not touched, and no
/// memory is allocated, under it.
pub(crate) struct Registry {
    /// Never grows beyond the room that it has from the beginning.
    pub(super) contexts: KVVec<Arc<Context>>,
    /// In the order of their numbers. Never grows beyond the room that it has from the beginning.
    pub(super) groups: KVec<GroupLimits>,
}

impl Registry {
    /// Empty, with room for `contexts` contexts and for as many groups as can be registered.
    pub(super) fn new(contexts: usize) -> Result<Self> {
        Ok(Self {
            contexts: KVVec::with_capacity(contexts, GFP_KERNEL)?,
            groups: KVec::with_capacity(Scheduler::GROUPS_MAX as usize, GFP_KERNEL)?,
        })
    }

    /// Takes all contexts out.
    pub(super) fn take_all(&mut self) -> KVVec<Arc<Context>> {
        core::mem::take(&mut self.contexts)
    }

    /// Contexts that are set up.
    pub(crate) fn contexts(&self) -> &[Arc<Context>] {
        &self.contexts
    }

    /// The contexts of a group.
    pub(crate) fn members(&self, group: GroupKey) -> impl Iterator<Item = &Context> {
        let contexts = self.contexts.iter().map(|context| &**context);
        contexts.filter(move |context| context.joined_group() == group)
    }

    /// The group of contexts that `opener` opens, or has opened: that of the nearest registered
    /// cgroup, else its own.
    pub(crate) fn group_of(&self, opener: &Opener) -> GroupKey {
        if self.groups.is_empty() {
            return opener.own_group;
        }
        let mut lineage = opener.cgroup.lineage().map(GroupKey);
        let registered = lineage.find(|group| self.place_of(*group).is_ok());
        registered.unwrap_or(opener.own_group)
    }

    /// The limits of a group.
    pub(crate) fn limits_of(&self, group: GroupKey) -> GroupLimits {
        match self.place_of(group) {
            Ok(place) => self.groups[place],
            Err(_) => GroupLimits::of(group),
        }
    }

    /// Where a group stands among those that are registered, or where it would.
    pub(super) fn place_of(&self, group: GroupKey) -> Result<usize, usize> {
        self.groups
            .binary_search_by_key(&group.0, |limits| limits.group.0)
    }
}

/// The sum of `bytes` and those of others.
fn with(bytes: u64, others: impl Iterator<Item = u64>) -> u64 {
    others.fold(bytes, u64::saturating_add)
}

impl Card {
    /// Sets a context up by `join`, which may refuse, and notes it, so that [`Card::shut_down`] finds its
    /// memory. `ENOSPC`: there are as many as can be.
    pub(crate) fn register(
        &self,
        context: Arc<Context>,
        join: impl FnOnce(&Registry) -> Result,
    ) -> Result {
        let mut registry = self.registry.lock();
        if registry.contexts.len() == registry.contexts.capacity() {
            // `shut_down` takes the room, too.
            return Err(if self.is_gone() { ENODEV } else { ENOSPC });
        }
        join(&registry)?;
        // There is room.
        let _ = registry.contexts.push_within_capacity(context);
        Ok(())
    }

    /// Forgets a context. The device stays bound as long as the result is held, so that the memory of
    /// the context can be freed. `None`: [`Card::shut_down`] has taken the context out, or will, and
    /// revokes its memory.
    pub(crate) fn unregister(&self, context: &Context) -> Option<UnplugGuard<'_>> {
        let bound = self.presence.enter().ok()?;
        let forgotten = {
            let mut registry = self.registry.lock();
            let place = registry
                .contexts
                .iter()
                .position(|other| ptr::eq(&**other, context))?;
            if self.presence.is_dead() {
                // Nobody knows what a card does that does not answer.
                self.stop_dma();
            }
            registry.contexts.remove(place)
        };
        drop(forgotten);
        Some(bound)
    }

    /// Counts `bytes` of pinned memory for a registered context; `uncharged`: no memory cgroup is charged
    /// for them. `ENOMEM`: contexts of its group have as many as the administrator allows, or of
    /// those that are charged to no memory cgroup its user has.
    pub(crate) fn count_pinned(
        &self,
        context: &Context,
        bytes: u64,
        uncharged: bool,
    ) -> Result<PinnedBytes> {
        let registry = self.registry.lock();
        let group = context.joined_group();
        let most = match registry.limits_of(group).bytes {
            0 => self.limits.pinned,
            bytes => bytes,
        };
        let all = with(
            bytes,
            registry.members(group).map(|other| other.pinned.all()),
        );
        if all > most && !capability::may_lock_memory() {
            return Err(ENOMEM);
        }
        if uncharged {
            let of_user = registry
                .contexts
                .iter()
                .filter(|other| other.opener.is_same_user(&context.opener))
                .map(|other| other.pinned.uncharged());
            let of_group = registry
                .members(group)
                .map(|other| other.pinned.uncharged());
            if with(bytes, of_user).max(with(bytes, of_group)) > self.limits.uncharged {
                return Err(ENOMEM);
            }
        }
        Ok(PinnedBytes::new(&context.pinned, bytes, uncharged))
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
            if let Ok(id) = context.id() {
                self.drop_released(id);
            }
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
