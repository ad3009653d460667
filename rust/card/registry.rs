// SPDX-License-Identifier: GPL-2.0

//! The contexts that are set up on a card.

use super::{
    registered::{Bounds, RegisteredGroups},
    Card,
};
use crate::{
    capability::{self, Audit},
    charge::PinnedBytes,
    client::Client,
    gate::UnplugGuard,
    limits::Limits,
    opener::Opener,
    scheduler::{GroupKey, GroupPath},
    trace,
};
use core::ptr;
use kernel::{prelude::*, sync::Arc};

/// Contexts that are set up, and groups that are registered.
///
/// # Locking
///
/// Protected by a mutex, which is also taken inside the unplug gate. So no user memory is accessed
/// and no memory is allocated under it.
pub(crate) struct Registry {
    /// Sorted by index; clients that have had the same index are in the order of their set-up.
    /// Never grows beyond its initial capacity.
    pub(super) clients: KVVec<Arc<Client>>,
    pub(super) groups: RegisteredGroups,
}

impl Registry {
    /// Returns an empty registry with room for `contexts` contexts and for as many groups as can be
    /// registered.
    pub(super) fn new(contexts: usize) -> Result<Self> {
        Ok(Self {
            clients: KVVec::with_capacity(contexts, GFP_KERNEL)?,
            groups: RegisteredGroups::new()?,
        })
    }

    /// Takes out all contexts.
    pub(super) fn take_all(&mut self) -> KVVec<Arc<Client>> {
        core::mem::take(&mut self.clients)
    }

    /// Returns the contexts that are set up.
    pub(crate) fn clients(&self) -> &[Arc<Client>] {
        &self.clients
    }

    /// Adds a context that is set up. There is room.
    fn add(&mut self, client: Arc<Client>) {
        let place = self.place_before(index_of(&client) + 1);
        let _ = self.clients.insert_within_capacity(place, client);
    }

    /// Returns the position of the first context whose index is at least `index`.
    fn place_before(&self, index: usize) -> usize {
        let is_below = |client: &Arc<Client>| index_of(client) < index;
        self.clients.partition_point(is_below)
    }

    /// Returns the contexts that have had the index `index`, the last one last.
    fn with_index(&self, index: usize) -> &[Arc<Client>] {
        &self.clients[self.place_before(index)..self.place_before(index + 1)]
    }

    /// Iterates over the contexts of a group; of a level, also over those of the groups below it.
    pub(super) fn members(&self, group: GroupKey) -> impl Iterator<Item = &Client> {
        self.clients_of(group, self.groups.is_cgroup_level(group))
    }

    fn clients_of(&self, group: GroupKey, of_subtree: bool) -> impl Iterator<Item = &Client> {
        let clients = self.clients.iter().map(|client| &**client);
        clients.filter(move |client| match of_subtree {
            true => client.opener.cgroup.is_below(group.0),
            false => client.group() == group,
        })
    }

    /// Iterates over the contexts that `bounds` are for.
    pub(crate) fn bound_by(&self, bounds: &Bounds) -> impl Iterator<Item = &Client> {
        self.clients_of(bounds.group, bounds.of_subtree)
    }

    /// Returns where contexts of `opener` belong among the groups.
    pub(crate) fn path_of(&self, opener: &Opener) -> GroupPath {
        self.groups.path_of(opener)
    }

    /// Iterates over what is in force for contexts of `opener`.
    pub(crate) fn bounds_of<'a>(
        &'a self,
        opener: &'a Opener,
        limits: &'a Limits,
    ) -> impl Iterator<Item = Bounds> + 'a {
        self.groups.bounds_of(opener, limits)
    }
}

/// Returns the index of a context that is set up.
fn index_of(client: &Client) -> usize {
    client.id().map_or(0, |id| id.index())
}

/// Returns the sum of `bytes` and the bytes of others.
fn with(bytes: u64, others: impl Iterator<Item = u64>) -> u64 {
    others.fold(bytes, u64::saturating_add)
}

impl Card {
    /// Sets a context up with `join`, which may fail, and adds it to the registry, so that
    /// [`Card::shut_down`] finds its memory. `ENOSPC`: there are as many contexts as can be set up.
    pub(crate) fn register(
        &self,
        client: Arc<Client>,
        join: impl FnOnce(&Registry) -> Result,
    ) -> Result {
        let mut registry = self.registry.lock();
        if registry.clients.len() == registry.clients.capacity() {
            // `shut_down` takes the capacity, too.
            return Err(if self.is_gone() { ENODEV } else { ENOSPC });
        }
        join(&registry)?;
        registry.add(client);
        Ok(())
    }

    /// Forgets a context. The device stays bound as long as the result is held, so that the memory
    /// of the context can be freed. `None`: [`Card::shut_down`] has taken out the context, or will,
    /// and revokes its memory.
    pub(crate) fn unregister(&self, client: &Client) -> Option<UnplugGuard<'_>> {
        let bound = self.presence.enter().ok()?;
        let forgotten = {
            let mut registry = self.registry.lock();
            let place = registry
                .clients
                .iter()
                .position(|other| ptr::eq(&**other, client))?;
            if self.presence.is_dead() {
                // A card that does not answer may still do DMA.
                self.stop_dma();
            }
            registry.clients.remove(place)
        };
        drop(forgotten);
        Some(bound)
    }

    /// Counts `bytes` of pinned memory for a registered context; `uncharged`: no memory cgroup is
    /// charged for them. `ENOMEM`: a group that the context belongs to would have more bytes than
    /// the administrator allows, or the group or the user would have too many uncharged bytes.
    pub(crate) fn count_pinned(
        &self,
        client: &Client,
        bytes: u64,
        uncharged: bool,
    ) -> Result<PinnedBytes> {
        let registry = self.registry.lock();
        for bounds in registry.bounds_of(&client.opener, &self.limits) {
            let others = registry.bound_by(&bounds).map(|other| other.pinned.all());
            if with(bytes, others) > bounds.bytes && !capability::may_lock_memory(Audit::Denial) {
                return Err(ENOMEM);
            }
            let others = registry.bound_by(&bounds);
            let others = others.map(|other| other.pinned.uncharged());
            if uncharged && with(bytes, others) > bounds.uncharged {
                return Err(ENOMEM);
            }
        }
        if uncharged {
            let of_user = registry
                .clients
                .iter()
                .filter(|other| other.opener.is_same_user(&client.opener))
                .map(|other| other.pinned.uncharged());
            if with(bytes, of_user) > self.limits.uncharged {
                return Err(ENOMEM);
            }
        }
        Ok(PinnedBytes::new(&client.pinned, bytes, uncharged))
    }

    /// Returns the context that has the number `number` for programs.
    pub(crate) fn find_client(&self, number: u32) -> Option<Arc<Client>> {
        let registry = self.registry.lock();
        let has_it = |client: &&Arc<Client>| client.number().is_ok_and(|its| its == number);
        let clients = registry.with_index(trace::index(number));
        clients.iter().find(has_it).cloned()
    }

    /// Returns the context with the lowest index from `from` on, and its index. If several contexts
    /// have had the index, returns the last one: the others are closed.
    pub(crate) fn next_client(&self, from: usize) -> Option<(usize, Arc<Client>)> {
        let registry = self.registry.lock();
        let index = index_of(registry.clients.get(registry.place_before(from))?);
        let client = registry.with_index(index).last()?;
        Some((index, client.clone()))
    }

    /// Notes that nobody will call [`Card::unregister`] for a context whose owner is gone, since a
    /// quarantined slot may still reach its memory. Returns `false` if this is not so, because the
    /// context was released meanwhile.
    pub(crate) fn leave_behind(&self, client: &Client) -> bool {
        let _registry = self.registry.lock();
        client.leave_behind()
    }

    /// Frees the memory of contexts that were left behind and have been released since. The device
    /// must be bound.
    pub(super) fn free_left_behind(&self) {
        while let Some(client) = self.take_left_behind() {
            if let Ok(id) = client.id() {
                self.drop_released(id);
            }
            client.free_memory();
        }
    }

    fn take_left_behind(&self) -> Option<Arc<Client>> {
        let mut registry = self.registry.lock();
        let place = registry
            .clients
            .iter()
            .position(|client| client.may_be_freed())?;
        registry.clients.remove(place).ok()
    }
}
