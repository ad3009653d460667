// SPDX-License-Identifier: GPL-2.0

//! The contexts that are set up on a card.

use super::{groups::GroupLimits, Card};
use crate::{
    capability::{self, Audit},
    cgroup::Cgroup,
    charge::PinnedBytes,
    client::Client,
    gate::UnplugGuard,
    opener::Opener,
    sched::{GroupKey, Scheduler},
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
    /// Sorted by number. Never grows beyond its initial capacity.
    pub(super) groups: KVec<RegisteredGroup>,
}

/// A registered group.
pub(super) struct RegisteredGroup {
    cgroup: Cgroup,
    limits: GroupLimits,
}

impl RegisteredGroup {
    pub(super) fn key(&self) -> GroupKey {
        GroupKey(self.cgroup.number())
    }
}

impl Registry {
    /// Returns an empty registry with room for `contexts` contexts and for as many groups as can be
    /// registered.
    pub(super) fn new(contexts: usize) -> Result<Self> {
        Ok(Self {
            clients: KVVec::with_capacity(contexts, GFP_KERNEL)?,
            groups: KVec::with_capacity(Scheduler::GROUPS_MAX, GFP_KERNEL)?,
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

    /// Iterates over the contexts of a group, and of the groups below it.
    pub(crate) fn members(&self, group: GroupKey) -> impl Iterator<Item = &Client> {
        let is_registered = self.place_of(group).is_ok();
        let clients = self.clients.iter().map(|client| &**client);
        clients.filter(move |client| match is_registered {
            true => client.opener.cgroup.is_below(group.0),
            false => client.group() == group,
        })
    }

    /// Returns the group of contexts that `opener` opens, or has opened: that of the nearest
    /// registered cgroup, else the opener's own.
    pub(crate) fn group_of(&self, opener: &Opener) -> GroupKey {
        let mut registered = self.registered(&opener.cgroup);
        registered.next().unwrap_or(opener.own_group)
    }

    /// Iterates over the groups that contexts of `opener` belong to, the nearest first.
    pub(crate) fn groups_of<'a>(
        &'a self,
        opener: &'a Opener,
    ) -> impl Iterator<Item = GroupKey> + 'a {
        let group = self.group_of(opener);
        let above = self.registered(&opener.cgroup).skip(1);
        Iterator::chain(core::iter::once(group), above)
    }

    /// Iterates over the registered groups among a cgroup and those above it, the nearest first.
    fn registered<'a>(&'a self, cgroup: &'a Cgroup) -> impl Iterator<Item = GroupKey> + 'a {
        let lineage = cgroup.lineage().take_while(|_| !self.groups.is_empty());
        let groups = lineage.map(GroupKey);
        groups.filter(|&group| self.place_of(group).is_ok())
    }

    /// Returns the nearest registered group above a cgroup.
    pub(super) fn parent_of(&self, cgroup: &Cgroup) -> Option<GroupKey> {
        let mut registered = self.registered(cgroup);
        registered.find(|group| group.0 != cgroup.number())
    }

    /// Returns the nearest registered group above a registered one.
    pub(super) fn parent_of_registered(&self, group: GroupKey) -> Option<GroupKey> {
        let place = self.place_of(group).ok()?;
        self.parent_of(&self.groups[place].cgroup)
    }

    /// Iterates over the registered groups whose nearest registered group above is `group`.
    pub(super) fn children_of(&self, group: GroupKey) -> impl Iterator<Item = GroupKey> + '_ {
        let is_child = move |other: &&RegisteredGroup| self.parent_of(&other.cgroup) == Some(group);
        self.groups
            .iter()
            .filter(is_child)
            .map(RegisteredGroup::key)
    }

    /// Checks that `cgroup` can be registered between the registered cgroups above and below it.
    /// `E2BIG`: registered groups would nest too deeply.
    pub(super) fn check_depth(&self, cgroup: &Cgroup) -> Result {
        let number = cgroup.number();
        if self.place_of(GroupKey(number)).is_ok() {
            return Ok(());
        }
        let depth = |of: &Cgroup| self.registered(of).count();
        let below = self.groups.iter().map(|group| &group.cgroup);
        let below = below.filter(|other| other.is_below(number)).map(depth);
        let deepest = below.max().unwrap_or_else(|| depth(cgroup));
        if deepest + 1 > Scheduler::GROUP_DEPTH_MAX {
            return Err(E2BIG);
        }
        Ok(())
    }

    /// Returns the limits of a group.
    pub(crate) fn limits_of(&self, group: GroupKey) -> GroupLimits {
        let place = self.place_of(group);
        place.map_or_else(
            |_| GroupLimits::default(),
            |place| self.groups[place].limits,
        )
    }

    /// Sets the limits of a group, and takes `cgroup` if the group was not registered.
    pub(super) fn set_limits(
        &mut self,
        cgroup: &mut Option<Cgroup>,
        group: GroupKey,
        limits: GroupLimits,
    ) {
        match self.place_of(group) {
            Ok(place) => self.groups[place].limits = limits,
            Err(place) => {
                if let Some(cgroup) = cgroup.take() {
                    // There is room.
                    let registered = RegisteredGroup { cgroup, limits };
                    let _ = self.groups.insert_within_capacity(place, registered);
                }
            }
        }
    }

    /// Returns the position of a group among the registered groups, or the position at which it
    /// would be inserted.
    fn place_of(&self, group: GroupKey) -> Result<usize, usize> {
        self.groups
            .binary_search_by_key(&group.0, |other| other.key().0)
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
        for group in registry.groups_of(&client.opener) {
            let most = match registry.limits_of(group).bytes {
                0 => self.limits.pinned,
                bytes => bytes,
            };
            let others = registry.members(group).map(|other| other.pinned.all());
            if with(bytes, others) > most && !capability::may_lock_memory(Audit::Denial) {
                return Err(ENOMEM);
            }
            let others = registry.members(group);
            let others = others.map(|other| other.pinned.uncharged());
            if uncharged && with(bytes, others) > self.limits.uncharged {
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
