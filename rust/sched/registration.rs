// SPDX-License-Identifier: GPL-2.0

//! Registered groups: what the administrator has set for a group and the groups below it, in force
//! whether the group has contexts or not.

use super::entities::GROUP_DEPTH_MAX;
use super::event::Cx;
use super::group::{GroupKind, GroupStats};
use super::ids::{slots_in, ContextIndex, GroupIndex, RegistrationIndex};
use super::state::Scheduler;
use super::{
    Action, ContextId, Duration, GroupKey, GroupPath, GroupSettings, Params, Refusal, SlotId, Time,
    Urgency, MAX_SLOTS,
};

/// The urgencies. A group competes separately for each.
const URGENCIES: [Urgency; 2] = [Urgency::LatencyCritical, Urgency::BestEffort];

impl Scheduler {
    /// How many groups can be registered.
    pub const GROUPS_MAX: usize = 256;
    /// How deep registered groups may nest.
    pub const GROUP_DEPTH_MAX: usize = GROUP_DEPTH_MAX;

    /// Returns how many places for groups always suffice for `contexts` contexts on a card with
    /// `classes` classes, when `remembered` groups are remembered.
    pub const fn group_places(contexts: usize, classes: usize, remembered: usize) -> usize {
        contexts + remembered + Self::GROUPS_MAX * classes * URGENCIES.len()
    }

    /// Registers a group below the registered group `parent`, or changes the settings of the group.
    /// The registration lasts until [`Scheduler::remove_group`], whether the group has contexts or
    /// not. Weight and cap take effect at once. The caller applies the other settings to all
    /// contexts of the card with [`Scheduler::regroup`]. O(log n).
    ///
    /// # Errors
    ///
    /// [`Refusal::Gone`], [`Refusal::Range`], [`Refusal::NoContext`] (`parent` is not registered),
    /// [`Refusal::Depth`] (registered groups would nest more than four deep, or in a cycle),
    /// [`Refusal::NoSlot`] (a slot that the card does not have), [`Refusal::Busy`] (a slot is
    /// exclusive to another group), [`Refusal::NoSpace`] (too many groups are registered); nothing
    /// was changed.
    pub fn set_group(
        &mut self,
        now: Time,
        key: GroupKey,
        parent: Option<GroupKey>,
        settings: GroupSettings,
        out: &mut dyn FnMut(Action),
    ) -> Result<(), Refusal> {
        self.check_present()?;
        settings.check()?;
        let parent = self.find_parent(key, parent)?;
        if !slots_in(settings.slots).all(|id| self.slots.has(id)) {
            return Err(Refusal::NoSlot);
        }
        let own = self.entities.find_registration(key);
        if slots_in(settings.slots).any(|id| {
            let owner = self.slots[id].exclusive;
            owner.is_some() && owner != own
        }) {
            return Err(Refusal::Busy);
        }
        let at = match own {
            Some(at) => at,
            None => self.register(key)?,
        };
        self.charge_runs(now);
        self.set_group_cap(now, at, settings.cap);
        self.entities[at].settings = settings;
        self.nest(at, parent);
        self.for_runs(|scheduler, ctx| scheduler.refill_caps(now, ctx));
        for id in self.slots.ids() {
            let exclusive = &mut self.slots[id].exclusive;
            if settings.slots & id.bit() != 0 {
                *exclusive = Some(at);
            } else if *exclusive == Some(at) {
                *exclusive = None;
            }
        }
        self.reschedule_all(&mut Cx::new(now, out));
        Ok(())
    }

    /// Ends the registration of a group. The caller moves its contexts to other groups with
    /// [`Scheduler::regroup`]. O(log n).
    ///
    /// # Errors
    ///
    /// [`Refusal::Gone`], [`Refusal::NoContext`] (the group is not registered), [`Refusal::Busy`]
    /// (a group is registered below it); nothing was changed.
    pub fn remove_group(
        &mut self,
        now: Time,
        key: GroupKey,
        out: &mut dyn FnMut(Action),
    ) -> Result<(), Refusal> {
        self.check_present()?;
        let at = self.entities.find_registration(key);
        let at = at.ok_or(Refusal::NoContext)?;
        if self.entities.has_registered_below(at) {
            return Err(Refusal::Busy);
        }
        self.charge_runs(now);
        self.set_group_cap(now, at, 0);
        self.entities[at].settings = GroupSettings::DEFAULT;
        self.nest(at, None);
        for group in self.groups_of(key).into_iter().flatten() {
            self.entities[group].registration = None;
        }
        for id in self.slots.ids() {
            let exclusive = &mut self.slots[id].exclusive;
            *exclusive = exclusive.filter(|&owner| owner != at);
        }
        self.entities.remove_registration(at);
        self.reschedule_all(&mut Cx::new(now, out));
        Ok(())
    }

    /// Returns the settings of a group; `None`: it is not registered.
    pub fn group_settings(&self, key: GroupKey) -> Option<GroupSettings> {
        let at = self.entities.find_registration(key)?;
        Some(self.entities[at].settings)
    }

    /// Moves each of the contexts to the group given with it, and applies the current settings of
    /// groups to it: the priority ceiling, the exclusive slots, the cap. Moves its group below the
    /// level given with it, unless the group is registered. No-op for a context that is up to date;
    /// a context that is gone is skipped. O(log n) for each context.
    pub fn regroup(
        &mut self,
        now: Time,
        contexts: impl Iterator<Item = (ContextId, impl Into<GroupPath>)>,
        out: &mut dyn FnMut(Action),
    ) {
        if self.gone {
            return;
        }
        for (id, path) in contexts {
            if let Some(ctx) = self.entities.find(id) {
                self.regroup_one(now, ctx, path.into());
            }
        }
        self.reschedule_all(&mut Cx::new(now, out));
    }

    /// Returns the group of a context.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`].
    pub fn group_of(&self, id: ContextId) -> Result<GroupKey, Refusal> {
        Ok(self.entities.key_of(self.entities.owned(id)?))
    }

    /// Returns the priority ceiling of the group of a context.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`].
    pub fn max_priority(&self, id: ContextId) -> Result<u8, Refusal> {
        Ok(self.priority_ceiling_of(self.entities.owned(id)?))
    }

    /// Returns the group that a slot is exclusive to.
    pub fn exclusive(&self, slot: SlotId) -> Option<GroupKey> {
        let owner = self.slots.find(slot)?.exclusive?;
        Some(self.entities[owner].key)
    }

    /// Returns the statistics of a group until `now`, in all classes, including the groups below
    /// it; nothing if the group has no contexts and was forgotten or never existed.
    pub fn group_stats(&self, key: GroupKey, now: Time) -> GroupStats {
        let registration = self.entities.find_registration(key);
        let mut stats = GroupStats {
            contexts: 0,
            weight: self.entities.settings(key).weight,
            run: self.recorded_run(key),
        };
        if let Some(at) = registration {
            stats.run = self.entities[at].run;
        }
        let running = self.slots.iter().filter_map(|slot| slot.fsm.run());
        for context in running.map(|run| &self.entities[run.ctx.at()]) {
            if self.entities.belongs_to(context.group, key) {
                stats.run += context.uncharged(now);
            }
        }
        for group in self.groups_of(key).into_iter().flatten() {
            stats.contexts += self.entities[group].nr_contexts;
        }
        stats
    }

    /// Returns the time on slots that is recorded for a group, without current runs.
    fn recorded_run(&self, key: GroupKey) -> Duration {
        let mut run = Duration::ZERO;
        for group in self.groups_of(key).into_iter().flatten() {
            run += self.entities[group].run;
        }
        run
    }

    /// Returns the existing parts of a group, one for each class and urgency.
    pub(super) fn groups_of(
        &self,
        key: GroupKey,
    ) -> [Option<GroupIndex>; MAX_SLOTS * URGENCIES.len()] {
        let mut groups = [None; MAX_SLOTS * URGENCIES.len()];
        for (place, kind) in groups.iter_mut().zip(self.kinds(key)) {
            *place = self.entities.find_group(&kind);
        }
        groups
    }

    /// Iterates over the parts that a group may have.
    fn kinds(&self, key: GroupKey) -> impl Iterator<Item = GroupKind> {
        let kinds = move |class| {
            URGENCIES.map(|urgency| GroupKind {
                key,
                class,
                urgency,
            })
        };
        self.queues.ids().flat_map(kinds)
    }

    /// Returns the registration of `parent`, if `key` may be nested below it.
    fn find_parent(
        &self,
        key: GroupKey,
        parent: Option<GroupKey>,
    ) -> Result<Option<RegistrationIndex>, Refusal> {
        let Some(parent) = parent else {
            return Ok(None);
        };
        let parent = self.entities.find_registration(parent);
        let parent = parent.ok_or(Refusal::NoContext)?;
        let own = self.entities.find_registration(key);
        let depth = self.entities.registered(parent).count();
        let below = self.entities.registrations().filter_map(|at| {
            let mut lineage = self.entities.registered(at);
            lineage.position(|above| Some(above) == own)
        });
        let height = 1 + below.max().unwrap_or(0);
        let is_circle = self.entities.registered(parent).any(|at| Some(at) == own);
        if is_circle || depth + height > GROUP_DEPTH_MAX {
            return Err(Refusal::Depth);
        }
        Ok(Some(parent))
    }

    fn register(&mut self, key: GroupKey) -> Result<RegistrationIndex, Refusal> {
        let run = self.recorded_run(key);
        let at = self.entities.add_registration(key);
        let at = at.ok_or(Refusal::NoSpace)?;
        self.entities[at].run = run;
        for group in self.groups_of(key).into_iter().flatten() {
            self.entities[group].registration = Some(at);
        }
        Ok(at)
    }

    /// Puts a registered group below `parent`, and makes it compete at its set weight. All runs
    /// must have been charged.
    fn nest(&mut self, at: RegistrationIndex, parent: Option<RegistrationIndex>) {
        self.entities[at].parent = parent;
        let key = self.entities[at].key;
        let above = parent.map(|parent| self.entities[parent].key);
        for kind in self.kinds(key) {
            if self.entities.find_group(&kind).is_none() {
                continue;
            }
            let above = above.and_then(|key| {
                let kind = GroupKind { key, ..kind };
                self.entities.make_group(&kind)
            });
            // The group above may have taken the place of the group.
            let Some(group) = self.entities.find_group(&kind) else {
                continue;
            };
            let weight = self.entities[at].settings.weight;
            self.entities.se_mut(group).weight = weight.into();
            if self.entities.se(group).parent != above {
                self.move_below(group, above);
            }
            self.forget_plans(kind.class);
        }
    }

    /// Makes a group compete below `parent`, where it counts as new.
    fn move_below(&mut self, group: GroupIndex, parent: Option<GroupIndex>) {
        let class = self.entities[group].kind.class;
        let is_active = self.entities[group].nr_active != 0;
        let key = self.queues[class].unlink_group(&mut self.entities, group);
        if let Some(old) = self.entities.se(group).parent.filter(|_| is_active) {
            self.entities.remove_active(old);
        }
        self.entities.move_group(group, parent);
        if let Some(parent) = parent.filter(|_| is_active) {
            self.place_inactive(parent);
            self.entities.add_active(parent);
        }
        if let Some(key) = key {
            self.queues[class].link_group(&mut self.entities, group, key);
        }
        self.reset_group_vruntime(group);
    }

    /// Gives a group and those above it that do not compete yet the virtual time of their siblings.
    fn place_inactive(&mut self, group: GroupIndex) {
        let mut next = Some(group);
        while let Some(group) = next.filter(|&group| self.entities[group].nr_active == 0) {
            self.reset_group_vruntime(group);
            next = self.entities.se(group).parent;
        }
    }

    /// Puts the group of a context, if it is not registered, below the registered group `level`.
    fn nest_group_of(&mut self, now: Time, ctx: ContextIndex, level: Option<GroupKey>) {
        let group = self.entities[ctx].group;
        if self.entities[group].registration.is_some() || self.entities.level_of(group) == level {
            return;
        }
        self.charge_runs(now);
        let kind = self.entities[group].kind;
        let above = level.filter(|&level| self.entities.find_registration(level).is_some());
        let above = above.and_then(|key| self.entities.make_group(&GroupKind { key, ..kind }));
        self.move_below(group, above);
        self.forget_plans(kind.class);
    }

    fn regroup_one(&mut self, now: Time, ctx: ContextIndex, path: GroupPath) {
        if self.entities.key_of(ctx) != path.group {
            self.change_group_of(now, ctx, path);
        }
        self.nest_group_of(now, ctx, path.level);
        let class = self.entities[ctx].class;
        if self.waits_for_limit(ctx) {
            // Determine again what throttles the group.
            let mut next = Some(self.entities[ctx].group);
            while let Some(group) = next {
                self.queues[class].unthrottle_group(&mut self.entities, group);
                next = self.entities.se(group).parent;
            }
            self.change_access(now, ctx);
        } else if self.access_differs(ctx) {
            self.change_access(now, ctx);
        }
        let params = self.entities[ctx].params;
        let priority = params.priority.min(self.priority_ceiling_of(ctx));
        if priority != params.priority {
            self.replace_params(now, ctx, Params { priority, ..params });
        }
    }
}
