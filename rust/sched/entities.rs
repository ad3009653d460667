// SPDX-License-Identifier: GPL-2.0

//! All contexts and groups of a card, and which context belongs to which group.
//!
//! A [`SchedGroup`] without members is remembered until its place is needed; the group that has had
//! no members for longest is forgotten first. So reopening contexts does not reset a group's
//! virtual time.

use core::iter::successors;
use core::ops::{Index, IndexMut};

use super::context::SchedContext;
use super::entity::SchedEntity;
use super::fifo::FifoList;
use super::group::{GroupKind, Registration, SchedGroup};
use super::ids::{ContextIndex, EntityKind, EntityRef, GroupIndex, RegistrationIndex};
use super::table::{Bucket, EntityStorage, Spare, Table};
use super::{
    ContextId, GroupKey, GroupPath, GroupSettings, Params, Refusal, SlotId, Time, Urgency,
};
use crate::array::Array;

/// How deep registered groups may nest.
pub(super) const GROUP_DEPTH_MAX: usize = 4;
/// Maximum length of a lineage: registered groups, and one below that is not registered.
pub(super) const LINEAGE_MAX: usize = GROUP_DEPTH_MAX + 1;

/// The contexts, groups and registered groups of a card.
#[derive(Debug)]
#[cfg_attr(not(MODULE), derive(Clone, PartialEq, Eq))]
pub(super) struct Entities {
    /// The entities of contexts, followed by those of groups, by [`EntityRef`].
    entities: Array<SchedEntity>,
    contexts: Table<SchedContext>,
    groups: Table<SchedGroup>,
    buckets: Array<Bucket>,
    registrations: Table<Registration>,
    /// Groups without members, the one that has had none for longest first.
    remembered: FifoList,
    /// Registered groups with a cap.
    pub(super) nr_capped: u32,
    /// Contexts in gangs.
    pub(super) nr_ganged: u32,
    spare: Spare<SchedEntity>,
}

impl Entities {
    /// Returns empty tables. O(length of the storage).
    pub(super) fn new(mut storage: EntityStorage) -> Self {
        storage.buckets.fill(Bucket(None));
        storage.entities.fill(SchedEntity::default());
        let kind = GroupKind {
            key: GroupKey(0),
            class: SlotId::FIRST,
            urgency: Urgency::BestEffort,
        };
        let context = SchedContext::new(
            SlotId::FIRST,
            Params::DEFAULT,
            GroupIndex::new(0),
            Time::ZERO,
        );
        let registration = Registration::new(GroupKey(0));
        Self {
            entities: storage.entities,
            contexts: Table::new(storage.contexts, context),
            groups: Table::new(storage.groups, SchedGroup::new(kind)),
            buckets: storage.buckets,
            registrations: Table::new(storage.registrations, registration),
            remembered: FifoList::default(),
            nr_capped: 0,
            nr_ganged: 0,
            spare: Spare::new(SchedEntity::default()),
        }
    }

    /// Returns whether an index did not resolve since the last call.
    pub(super) fn was_unresolved(&self) -> bool {
        self.spare.was_used()
            | self.contexts.was_unresolved()
            | self.groups.was_unresolved()
            | self.registrations.was_unresolved()
    }
}

/// Entities.
impl Entities {
    /// Returns the entity of a context or a group.
    pub(super) fn se(&self, at: impl Into<EntityRef>) -> &SchedEntity {
        &self[at.into()]
    }

    /// Returns the entity of a context or a group.
    pub(super) fn se_mut(&mut self, at: impl Into<EntityRef>) -> &mut SchedEntity {
        &mut self[at.into()]
    }

    /// Returns the context or group that an entity belongs to.
    pub(super) fn kind(&self, at: EntityRef) -> EntityKind {
        if at.at() < self.contexts.len() as usize {
            EntityKind::Context(at.context())
        } else {
            EntityKind::Group(at.group())
        }
    }
}

/// Contexts.
impl Entities {
    /// Returns how many contexts there are.
    pub(super) fn nr_contexts(&self) -> u32 {
        self.contexts.used()
    }

    /// Returns how many contexts there is room for.
    pub(super) fn capacity(&self) -> usize {
        self.contexts.len() as usize
    }

    /// Adds a context with `params` to a group, which is directly below `level` unless it is
    /// registered. `None`: the storage is full.
    pub(super) fn add_context(
        &mut self,
        kind: &GroupKind,
        level: Option<GroupKey>,
        params: Params,
        now: Time,
    ) -> Option<ContextIndex> {
        if self.contexts.used() == self.contexts.len() {
            return None;
        }
        let group = self.join(kind, level)?;
        self.count_contexts(group, |contexts| contexts + 1);
        let context = SchedContext::new(kind.class, params, group, now);
        let ctx = ContextIndex::new(self.contexts.add(context)?);
        *self.se_mut(ctx) = SchedEntity {
            weight: params.weight.into(),
            ..SchedEntity::default()
        };
        Some(ctx)
    }

    /// Removes a context. Its id is not used again.
    pub(super) fn remove_context(&mut self, ctx: ContextIndex) {
        let group = self[ctx].group;
        self.count_contexts(group, |contexts| contexts - 1);
        self.leave(group);
        *self.se_mut(ctx) = SchedEntity::default();
        self.contexts.remove(self.id(ctx).index);
    }

    /// Moves a context to another group, which is directly below `level` unless it is registered.
    /// Returns `false` if there is no room for the group.
    pub(super) fn move_context(
        &mut self,
        ctx: ContextIndex,
        kind: &GroupKind,
        level: Option<GroupKey>,
    ) -> bool {
        let new = self.join(kind, level);
        if let Some(new) = new {
            let old = core::mem::replace(&mut self[ctx].group, new);
            self.count_contexts(old, |contexts| contexts - 1);
            self.count_contexts(new, |contexts| contexts + 1);
            self.leave(old);
        }
        new.is_some()
    }

    /// Returns the index of a context that was not released, whether its owner has closed it or
    /// not.
    pub(super) fn find(&self, id: ContextId) -> Option<ContextIndex> {
        let is_there = self.contexts.has(id.index);
        (is_there && self.contexts.generation(id.index) == id.generation).then(|| id.at())
    }

    /// Returns the index of a context that its owner has not closed.
    pub(super) fn owned(&self, id: ContextId) -> Result<ContextIndex, Refusal> {
        let ctx = self.find(id).filter(|&ctx| !self[ctx].closing);
        ctx.ok_or(Refusal::NoContext)
    }

    /// Returns the id of a context.
    pub(super) fn id(&self, ctx: ContextIndex) -> ContextId {
        // CAST: an index.
        let index = ctx.at() as u32;
        ContextId {
            index,
            generation: self.contexts.generation(index),
        }
    }

    /// Returns the number of places for contexts.
    pub(super) fn context_places(&self) -> u32 {
        self.contexts.len()
    }

    /// Returns the context at place `index`, if there is one.
    pub(super) fn context_at(&self, index: u32) -> Option<ContextIndex> {
        let is_there = self.contexts.has(index);
        is_there.then(|| ContextIndex::new(index))
    }

    /// Returns when a context will need a slot. Valid only while a hint is pending.
    pub(super) fn hint(&self, ctx: ContextIndex) -> Time {
        Time::from_ns(self.se(ctx).node.key())
    }

    /// Returns when a context will need a slot, if a hint is pending.
    pub(super) fn pending_hint(&self, ctx: ContextIndex) -> Option<Time> {
        self[ctx].has_hint().then(|| self.hint(ctx))
    }

    /// Returns the key of the group of a context.
    pub(super) fn key_of(&self, ctx: ContextIndex) -> GroupKey {
        self[self[ctx].group].kind.key
    }

    /// Returns where a context belongs among the groups.
    pub(super) fn path_of(&self, ctx: ContextIndex) -> GroupPath {
        GroupPath {
            group: self.key_of(ctx),
            level: self.level_of(self[ctx].group),
        }
    }
}

/// Groups.
impl Entities {
    /// Returns the number of places for groups.
    pub(super) fn group_places(&self) -> u32 {
        self.groups.len()
    }

    /// Returns the group at place `index`, if there is one.
    pub(super) fn group_at(&self, index: u32) -> Option<GroupIndex> {
        let is_there = self.groups.has(index);
        is_there.then(|| GroupIndex::new(index + self.context_places()))
    }

    /// Returns whether a group is `key` or below it.
    pub(super) fn belongs_to(&self, group: GroupIndex, key: GroupKey) -> bool {
        self.lineage(group).any(|group| self[group].kind.key == key)
    }

    /// Returns the key of the group directly above a group.
    pub(super) fn level_of(&self, group: GroupIndex) -> Option<GroupKey> {
        let parent = self.se(group).parent;
        parent.map(|parent| self[parent].kind.key)
    }

    /// Changes the number of contexts of a group and of the groups above it.
    fn count_contexts(&mut self, group: GroupIndex, change: impl Fn(u32) -> u32) {
        let mut next = Some(group);
        while let Some(group) = next {
            self[group].nr_contexts = change(self[group].nr_contexts);
            next = self.se(group).parent;
        }
    }

    /// Iterates over a group and the groups above it.
    pub(super) fn lineage(&self, group: GroupIndex) -> impl Iterator<Item = GroupIndex> + '_ {
        successors(Some(group), |&group| self.se(group).parent)
    }

    /// Finds a group. O(1) except for collisions.
    pub(super) fn find_group(&self, kind: &GroupKind) -> Option<GroupIndex> {
        let bucket = self.buckets.get(self.bucket(kind))?;
        let mut chain = successors(bucket.0, |&group| self[group].chain);
        chain.find(|&group| self[group].kind == *kind)
    }

    fn bucket(&self, kind: &GroupKind) -> usize {
        let len = self.buckets.len() as u64;
        ((u64::from(kind.hash()) * len) >> 32) as usize
    }

    /// Adds a member to a group, and creates the group and those above it if they do not exist. A
    /// group that is not registered is created directly below `level`. `None`: there is no room for
    /// one of them.
    fn join(&mut self, kind: &GroupKind, level: Option<GroupKey>) -> Option<GroupIndex> {
        let parent = match self.find_registration(kind.key) {
            Some(at) => self[at].parent,
            None => level.and_then(|level| self.find_registration(level)),
        };
        let level = parent.map(|at| self[at].key);
        if let Some(group) = self.find_group(kind) {
            if self[group].members != 0 || self.level_of(group) == level {
                self.add_member(group);
                return Some(group);
            }
            // It is remembered where it was, and would be new here.
            self.forget(group)?;
        }
        let mut above = [None; GROUP_DEPTH_MAX];
        let registered = parent.into_iter().flat_map(|at| self.registered(at));
        for (place, at) in above.iter_mut().zip(registered) {
            *place = Some(self[at].key);
        }
        let mut group = None;
        for key in above.into_iter().rev().flatten().chain([kind.key]) {
            let kind = GroupKind { key, ..*kind };
            let found = match self.find_group(&kind) {
                Some(found) => Some(found),
                None => self.add_group(kind, group),
            };
            // Each group is held while the next one is added below it: a new group is a member of
            // its parent.
            let found = found.inspect(|&found| self.add_member(found));
            if let Some(parent) = group {
                self.leave(parent);
            }
            group = Some(found?);
        }
        group
    }

    /// Increments the number of members of a group.
    fn add_member(&mut self, group: GroupIndex) {
        if self[group].members == 0 {
            self.forget_remembered(group);
        }
        self[group].members += 1;
    }

    /// Decrements the number of members of a group.
    fn leave(&mut self, group: GroupIndex) {
        self[group].members -= 1;
        if self[group].members == 0 {
            let mut remembered = self.remembered;
            remembered.push(self, group.into());
            self.remembered = remembered;
        }
    }

    /// Removes a group from the list of remembered groups.
    fn forget_remembered(&mut self, group: GroupIndex) {
        let mut remembered = self.remembered;
        remembered.remove(self, group.into());
        self.remembered = remembered;
    }

    /// Adds a group without members below `parent`.
    fn add_group(&mut self, kind: GroupKind, parent: Option<GroupIndex>) -> Option<GroupIndex> {
        if self.groups.used() == self.groups.len() {
            self.forget_oldest()?;
        }
        let registration = self.find_registration(kind.key);
        let weight = registration.map_or(Params::WEIGHT_DEFAULT, |at| self[at].settings.weight);
        let bucket = self.bucket(&kind);
        let mut group = SchedGroup::new(kind);
        let first_group = self.context_places();
        let head = self.buckets.get_mut(bucket)?;
        (group.registration, group.chain) = (registration, head.0);
        let at = self.groups.add(group)?;
        let at = GroupIndex::new(at + first_group);
        *head = Bucket(Some(at));
        *self.se_mut(at) = SchedEntity {
            parent,
            weight: weight.into(),
            ..SchedEntity::default()
        };
        if let Some(parent) = parent {
            self.add_member(parent);
        }
        let mut remembered = self.remembered;
        remembered.push(self, at.into());
        self.remembered = remembered;
        Some(at)
    }

    /// Forgets the group that has had no members for longest.
    fn forget_oldest(&mut self) -> Option<()> {
        let EntityKind::Group(gone) = self.kind(self.remembered.oldest?) else {
            return None;
        };
        self.forget(gone)
    }

    /// Forgets a group without members.
    fn forget(&mut self, gone: GroupIndex) -> Option<()> {
        self.forget_remembered(gone);
        let (chain, parent) = (self[gone].chain, self.se(gone).parent);
        let bucket = self.bucket(&self[gone].kind);
        let bucket = self.buckets.get_mut(bucket)?;
        if bucket.0 == Some(gone) {
            bucket.0 = chain;
        } else {
            let head = bucket.0;
            let before = successors(head, |&group| self[group].chain)
                .find(|&group| self[group].chain == Some(gone));
            if let Some(before) = before {
                self[before].chain = chain;
            }
        }
        // CAST: an index.
        self.groups.remove(gone.at() as u32 - self.contexts.len());
        *self.se_mut(gone) = SchedEntity::default();
        if let Some(parent) = parent {
            self.leave(parent);
        }
        Some(())
    }

    /// Makes a group a member of another group, or of none.
    pub(super) fn move_group(&mut self, group: GroupIndex, parent: Option<GroupIndex>) {
        let below = self[group].nr_contexts;
        if let Some(parent) = parent {
            self.add_member(parent);
            self.count_contexts(parent, |contexts| contexts + below);
        }
        if let Some(old) = core::mem::replace(&mut self.se_mut(group).parent, parent) {
            self.count_contexts(old, |contexts| contexts - below);
            self.leave(old);
        }
    }

    /// Returns a registered group, and creates it if it does not exist. It stays only as long as its place is
    /// not needed.
    pub(super) fn make_group(&mut self, kind: &GroupKind) -> Option<GroupIndex> {
        let group = self.join(kind, None)?;
        self.leave(group);
        Some(group)
    }
}

/// Which entity competes for which context.
impl Entities {
    /// Makes the group of a context compete for it, while the context waits or runs.
    pub(super) fn activate(&mut self, ctx: ContextIndex) {
        let group = self[ctx].group;
        if self.se_mut(ctx).parent.replace(group).is_none() {
            self.add_active(group);
        }
    }

    /// Makes the context compete for itself, or not at all.
    pub(super) fn deactivate(&mut self, ctx: ContextIndex) {
        if let Some(group) = self.se_mut(ctx).parent.take() {
            self.remove_active(group);
        }
    }

    /// Iterates over a context and the groups that compete for it, upwards.
    fn path(&self, ctx: ContextIndex) -> impl Iterator<Item = EntityRef> + '_ {
        let parent = |&at: &EntityRef| self[at].parent.map(EntityRef::from);
        successors(Some(EntityRef::from(ctx)), parent)
    }

    /// Returns the entity among the members of `level`, or of the class, that competes for a
    /// context; `None`: the context is not below that level.
    pub(super) fn ancestor_below(
        &self,
        ctx: ContextIndex,
        level: Option<GroupIndex>,
    ) -> Option<EntityRef> {
        self.path(ctx).find(|&at| self[at].parent == level)
    }

    /// Returns the entities that compete with each other for two contexts of one class.
    pub(super) fn siblings(
        &self,
        one: ContextIndex,
        other: ContextIndex,
    ) -> (EntityRef, EntityRef) {
        for at in self.path(one) {
            if let Some(beside) = self.ancestor_below(other, self[at].parent) {
                return (at, beside);
            }
        }
        (one.into(), other.into())
    }

    /// Adds an active member to a group; the first one makes the group active.
    pub(super) fn add_active(&mut self, group: GroupIndex) {
        let mut next = Some(group);
        while let Some(group) = next {
            self[group].nr_active += 1;
            next = self.se(group).parent.filter(|_| self[group].nr_active == 1);
        }
    }

    /// Removes an active member from a group; the last one makes the group inactive.
    pub(super) fn remove_active(&mut self, group: GroupIndex) {
        let mut next = Some(group);
        while let Some(group) = next {
            self[group].nr_active -= 1;
            next = self.se(group).parent.filter(|_| self[group].nr_active == 0);
        }
    }
}

/// Registered groups.
impl Entities {
    /// Returns the registration of a group. O(number of registrations).
    pub(super) fn find_registration(&self, key: GroupKey) -> Option<RegistrationIndex> {
        if self.registrations.used() == 0 {
            return None;
        }
        let mut all = self.registrations.iter();
        let (at, _) = all.find(|(_, registration)| registration.key == key)?;
        Some(RegistrationIndex::new(at))
    }

    /// Returns the registration that is in force for a context on a path: that of its group, or of
    /// the group above.
    pub(super) fn registration_on(&self, path: &GroupPath) -> Option<RegistrationIndex> {
        let keys = [Some(path.group), path.level];
        let mut keys = keys.into_iter().flatten();
        keys.find_map(|key| self.find_registration(key))
    }

    /// Returns the registration that is in force for the contexts of a group: its own, or that of
    /// the group above.
    pub(super) fn registration_of(&self, group: GroupIndex) -> Option<RegistrationIndex> {
        self.lineage(group)
            .find_map(|group| self[group].registration)
    }

    /// Iterates over all registrations.
    pub(super) fn registrations(&self) -> impl Iterator<Item = RegistrationIndex> + '_ {
        let all = self.registrations.iter();
        all.map(|(at, _)| RegistrationIndex::new(at))
    }

    /// Iterates over a registration and the registrations above it.
    pub(super) fn registered(
        &self,
        at: RegistrationIndex,
    ) -> impl Iterator<Item = RegistrationIndex> + '_ {
        successors(Some(at), |&at| self[at].parent)
    }

    /// Returns whether a group is registered directly below another one.
    pub(super) fn has_registered_below(&self, at: RegistrationIndex) -> bool {
        self.registrations()
            .any(|other| self[other].parent == Some(at))
    }

    /// Adds a registration. `None`: the storage is full.
    pub(super) fn add_registration(&mut self, key: GroupKey) -> Option<RegistrationIndex> {
        let at = self.registrations.add(Registration::new(key))?;
        Some(RegistrationIndex::new(at))
    }

    /// Removes a registration that no group refers to.
    pub(super) fn remove_registration(&mut self, at: RegistrationIndex) {
        // CAST: an index.
        self.registrations.remove(at.at() as u32);
    }

    /// Returns the settings of a group.
    pub(super) fn settings(&self, key: GroupKey) -> GroupSettings {
        let registration = self.find_registration(key);
        registration.map_or(GroupSettings::DEFAULT, |at| self[at].settings)
    }
}

/// Finds the items of a table by their index; `$first` is the index of the first item.
macro_rules! indexed {
    ($table:ident, $first:expr, $index:ident => $item:ident) => {
        impl Index<$index> for Entities {
            type Output = $item;

            fn index(&self, at: $index) -> &$item {
                &self.$table[at.at().wrapping_sub($first(self))]
            }
        }

        impl IndexMut<$index> for Entities {
            fn index_mut(&mut self, at: $index) -> &mut $item {
                let first = $first(self);
                &mut self.$table[at.at().wrapping_sub(first)]
            }
        }
    };
}

indexed!(contexts, |_: &Self| 0, ContextIndex => SchedContext);
// The indices of groups come after those of contexts.
indexed!(groups, |it: &Self| it.capacity(), GroupIndex => SchedGroup);
indexed!(registrations, |_: &Self| 0, RegistrationIndex => Registration);

impl Index<EntityRef> for Entities {
    type Output = SchedEntity;

    fn index(&self, at: EntityRef) -> &SchedEntity {
        let entity = self.entities.get(at.at());
        entity.unwrap_or_else(|| self.spare.get())
    }
}

impl IndexMut<EntityRef> for Entities {
    fn index_mut(&mut self, at: EntityRef) -> &mut SchedEntity {
        let entity = self.entities.get_mut(at.at());
        entity.unwrap_or_else(|| self.spare.get_mut())
    }
}
