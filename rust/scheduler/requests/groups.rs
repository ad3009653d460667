// SPDX-License-Identifier: GPL-2.0

//! Registered groups: what the administrator has set for a group and the groups below it, in force
//! whether the group has contexts or not.

use super::super::card::{Call, Card};
use super::super::queues::{DEPTH_MAX, REGISTERED_MAX};
use super::super::values::{
    slots_in, ContextId, EntityIndex, GroupIndex, GroupKey, GroupPath, GroupSettings, GroupStats,
    Params, Refusal, SlotId, Time,
};
use super::super::Scheduler;

impl Scheduler {
    /// How many groups can be registered.
    pub const GROUPS_MAX: usize = REGISTERED_MAX;
    /// How deep registered groups may nest.
    pub const GROUP_DEPTH_MAX: usize = DEPTH_MAX;

    /// Registers a group below the registered group `parent`, or changes the settings of the group.
    /// The registration lasts until [`Scheduler::remove_group`]. Weight and cap take effect at once.
    /// The caller applies the other settings to all contexts of the card with
    /// [`Scheduler::regroup`].
    ///
    /// # Errors
    ///
    /// [`Refusal::Gone`], [`Refusal::Range`], [`Refusal::NoContext`] (`parent` is not registered),
    /// [`Refusal::Depth`] (registered groups would nest more than four deep, or in a cycle),
    /// [`Refusal::NoSlot`] (a slot that the card does not have), [`Refusal::Busy`] (a slot is
    /// exclusive to another group), [`Refusal::NoSpace`] (too many groups are registered); nothing
    /// was changed.
    pub fn set_group<C: Card>(
        &mut self,
        card: &mut C,
        now: Time,
        key: GroupKey,
        parent: Option<GroupKey>,
        settings: GroupSettings,
    ) -> Result<(), Refusal> {
        self.check_present()?;
        settings.check()?;
        let own = self.groups.find_registered(key);
        let parent = match parent {
            Some(parent) => {
                let parent = self.groups.find_registered(parent);
                let parent = parent.ok_or(Refusal::NoContext)?;
                self.groups.check_nesting(own, parent)?;
                Some(parent)
            }
            None => None,
        };
        self.check_exclusive(own, settings.slots)?;
        if own.is_none() && !self.groups.has_room(key) {
            return Err(Refusal::NoSpace);
        }
        let at = self.groups.make(key, parent).ok_or(Refusal::NoSpace)?;
        self.groups.set_registered(at, true);
        self.charge_all(now);
        let cap = self.groups.settings(at).cap;
        self.groups.set(at, settings);
        self.queue.set_weight(&self.groups, at, settings.weight);
        if cap != settings.cap {
            self.set_cap(now, at, settings.cap);
        }
        self.nest(at, parent);
        self.set_exclusive(at, settings.slots);
        self.after_group_change(card, now);
        Ok(())
    }

    /// Checks that slots exist and are not exclusive to another group.
    fn check_exclusive(&self, own: Option<GroupIndex>, slots: u8) -> Result<(), Refusal> {
        if slots & !self.present != 0 {
            return Err(Refusal::NoSlot);
        }
        let is_foreign = |id| {
            let owner = self.slot(id).exclusive;
            owner.is_some() && owner != own
        };
        match slots_in(slots).any(is_foreign) {
            true => Err(Refusal::Busy),
            false => Ok(()),
        }
    }

    fn set_exclusive(&mut self, at: GroupIndex, slots: u8) {
        for id in slots_in(self.present) {
            let exclusive = &mut self.slots[id.index()].exclusive;
            if slots & id.bit() != 0 {
                *exclusive = Some(at);
            } else if *exclusive == Some(at) {
                *exclusive = None;
            }
        }
    }

    fn nest(&mut self, at: GroupIndex, parent: Option<GroupIndex>) {
        if self.groups.parent(at) != parent {
            self.queue.move_group(&mut self.groups, at, parent);
        }
    }

    /// Renews the grants of the runs after a group has changed, and has all classes looked at again.
    fn after_group_change<C: Card>(&mut self, card: &mut C, now: Time) {
        let call = &mut Call::new(card, now);
        for id in slots_in(self.present) {
            if let Some(run) = self.slot(id).protocol.run() {
                let at = EntityIndex::of(run.ctx);
                self.settle_grant(now, at);
                self.renew_grant(now, at);
            }
        }
        self.reschedule_all();
        self.finish(call);
    }

    pub(super) fn reschedule_all(&mut self) {
        for class in self.all_classes() {
            self.reschedule(class);
        }
    }

    /// Ends the registration of a group. The caller moves its contexts to other groups with
    /// [`Scheduler::regroup`].
    ///
    /// # Errors
    ///
    /// [`Refusal::Gone`], [`Refusal::NoContext`] (the group is not registered), [`Refusal::Busy`] (a
    /// group is registered below it); nothing was changed.
    pub fn remove_group<C: Card>(
        &mut self,
        card: &mut C,
        now: Time,
        key: GroupKey,
    ) -> Result<(), Refusal> {
        self.check_present()?;
        let at = self.groups.find_registered(key);
        let at = at.ok_or(Refusal::NoContext)?;
        if self.groups.has_registered_below(at) {
            return Err(Refusal::Busy);
        }
        self.charge_all(now);
        self.groups.set(at, GroupSettings::DEFAULT);
        self.queue
            .set_weight(&self.groups, at, GroupSettings::DEFAULT.weight);
        self.set_cap(now, at, 0);
        self.nest(at, None);
        self.set_exclusive(at, 0);
        self.groups.set_registered(at, false);
        self.groups.free_unused(at);
        self.after_group_change(card, now);
        Ok(())
    }

    /// Moves each of the contexts to the group given with it, and applies the current settings of
    /// groups to it: the priority ceiling and the exclusive slots. Moves its group below the level
    /// given with it, unless the group is registered. No-op for a context that is up to date; a
    /// context that is gone is skipped.
    pub fn regroup<C: Card>(
        &mut self,
        card: &mut C,
        now: Time,
        contexts: impl Iterator<Item = (ContextId, impl Into<GroupPath>)>,
    ) {
        if self.gone {
            return;
        }
        let call = &mut Call::new(card, now);
        for (id, path) in contexts {
            if let Some(at) = self.contexts.find(id) {
                self.regroup_one(call, at, path.into());
            }
        }
        self.finish(call);
    }

    fn regroup_one<C: Card>(&mut self, call: &mut Call<'_, C>, at: EntityIndex, path: GroupPath) {
        let key = self.keyed_group(at).map(|group| self.groups.key(group));
        if key != Some(path.group) {
            self.change_group_of(call, at, path);
        }
        let Some(group) = self.keyed_group(at) else {
            return;
        };
        let level = path.level.and_then(|key| self.groups.find_registered(key));
        if self.nest_unregistered(call.now, group, level) {
            self.reschedule(self.contexts[at].class);
        }
        if self.access_differs(at) {
            self.change(call, at, |_| ());
        }
        let params = self.contexts[at].params;
        let ceiling = self.groups.priority_ceiling(Some(group));
        let priority = params.priority.min(ceiling);
        if priority != params.priority {
            self.replace_params(call, at, Params { priority, ..params });
        }
    }
}

/// Reports.
impl Scheduler {
    /// Returns the settings of a group; `None`: it is not registered.
    pub fn group_settings(&self, key: GroupKey) -> Option<GroupSettings> {
        let at = self.groups.find_registered(key)?;
        Some(self.groups.settings(at))
    }

    /// Returns the group of a context.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`].
    pub fn group_of(&self, id: ContextId) -> Result<GroupKey, Refusal> {
        let group = self.keyed_group(self.owned(id)?);
        group
            .map(|group| self.groups.key(group))
            .ok_or(Refusal::NoContext)
    }

    /// Returns the priority ceiling of the group of a context.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`].
    pub fn max_priority(&self, id: ContextId) -> Result<u8, Refusal> {
        let group = self.keyed_group(self.owned(id)?);
        Ok(self.groups.priority_ceiling(group))
    }

    /// Returns the group that a slot is exclusive to.
    pub fn exclusive(&self, slot: SlotId) -> Option<GroupKey> {
        let owner = self.find_record(slot)?.exclusive?;
        Some(self.groups.key(owner))
    }

    /// Returns the statistics of a group until `now`, in all classes, including the groups below it;
    /// nothing if the group has no contexts and was forgotten or never existed.
    pub fn group_stats(&self, key: GroupKey, now: Time) -> GroupStats {
        let mut stats = GroupStats {
            contexts: 0,
            weight: Params::WEIGHT_DEFAULT,
            run: super::super::values::Duration::ZERO,
        };
        let Some(at) = self.groups.find(key) else {
            return stats;
        };
        stats.contexts = self.groups.contexts(at);
        stats.weight = self.groups.settings(at).weight;
        stats.run = self.groups.run(at);
        for id in self.ids() {
            let slot = self.slot(id);
            let Some(run) = slot.protocol.run() else {
                continue;
            };
            let group = self.queue.group_of(EntityIndex::of(run.ctx));
            if self.groups.lineage(group).any(|above| above == at) {
                stats.run += now.since(run.started).less(slot.charged());
            }
        }
        stats
    }
}
