// SPDX-License-Identifier: GPL-2.0

//! Calls for groups that the administrator registers: users, and cgroups with their subtrees while
//! they live.
//!
//! A registration names its cgroup by number, and holds no reference to it. While there are
//! registrations, those of removed cgroups are looked for every [`SWEEP_MS`] milliseconds, and when
//! there is no room for another registration. The scheduler keeps what it needs of levels, and
//! `registered.rs` the rest.

use super::{
    config::refused,
    registered::{GroupLimits, GroupScope, Registered},
    registry::Registry,
    Card,
};
use crate::{
    delayed_work::Worker,
    opener::Opener,
    scheduler::{ContextId, GroupKey, GroupPath, GroupSettings, GroupStats, Refusal},
};
use core::mem::offset_of;
use kernel::prelude::*;

/// How often registrations of removed cgroups, and slots that stand still, are looked for.
pub(super) const SWEEP_MS: u32 = 1000;

/// Contexts that are moved in one section with interrupts off.
const REGROUP_MAX: usize = 16;

/// A registered group, for `FERMATA_IOC_GROUP_SET`.
pub(crate) struct GroupView {
    pub(crate) settings: GroupSettings,
    pub(crate) how: Registered,
    pub(crate) stats: GroupStats,
    /// Bytes of pinned memory that its contexts have.
    pub(crate) bytes: u64,
}

/// Changes of what is set for a group; `None`: unchanged.
pub(crate) struct GroupChange {
    pub(crate) weight: Option<u16>,
    pub(crate) max_priority: Option<u8>,
    pub(crate) cap: Option<u16>,
    pub(crate) contexts: Option<u32>,
    pub(crate) bytes: Option<u64>,
    pub(crate) slots: Option<u8>,
    pub(crate) children: Option<bool>,
}

impl GroupChange {
    fn applied_to(&self, settings: GroupSettings) -> GroupSettings {
        GroupSettings {
            weight: self.weight.unwrap_or(settings.weight),
            max_priority: self.max_priority.unwrap_or(settings.max_priority),
            cap: self.cap.unwrap_or(settings.cap),
            slots: self.slots.unwrap_or(settings.slots),
        }
    }

    /// Returns how a group is registered after the change. What was a level stays one.
    fn applied_to_registration(&self, how: Registered) -> Registered {
        let children = self.children.unwrap_or(how.children);
        Registered {
            children,
            is_level: how.is_level || !children || self.sets_something(),
            limits: GroupLimits {
                contexts: self.contexts.unwrap_or(how.limits.contexts),
                bytes: self.bytes.unwrap_or(how.limits.bytes),
            },
        }
    }

    /// Returns whether something is set for the group itself.
    fn sets_something(&self) -> bool {
        let settings = self.weight.is_some() || self.max_priority.is_some() || self.cap.is_some();
        let limits = self.contexts.is_some() || self.bytes.is_some();
        settings || limits || self.slots.is_some()
    }
}

/// Calls for registered groups. Process context; `ENODEV`: the card is gone.
impl Card {
    /// Returns the group of contexts that `opener` opens, or has opened.
    pub(crate) fn group_of(&self, opener: &Opener) -> GroupKey {
        self.registry.lock().path_of(opener).group
    }

    /// Returns what is set for a group. `ENOENT`: it is not registered.
    pub(crate) fn registered_group(&self, group: GroupKey) -> Result<GroupView> {
        self.view_group(&self.registry.lock(), group)
    }

    /// Registers a group, or changes what is set for it. Moves open contexts to the groups that
    /// they belong to then. `ERANGE`; `EBUSY`: a slot serves only another group; `ENOSPC`: too many
    /// groups are registered; `E2BIG`: levels would nest too deeply.
    pub(crate) fn set_group(&self, scope: GroupScope, change: &GroupChange) -> Result<GroupView> {
        let group = scope.key();
        let mut scope = Some(scope);
        match self.try_set_group(&mut scope, group, change) {
            Err(error) if error == ENOSPC => {
                self.sweep_now();
                self.try_set_group(&mut scope, group, change)
            }
            result => result,
        }
    }

    /// Does what [`Card::set_group`] does, once. Takes `scope` if the group was not registered.
    fn try_set_group(
        &self,
        scope: &mut Option<GroupScope>,
        group: GroupKey,
        change: &GroupChange,
    ) -> Result<GroupView> {
        let mut registry = self.registry.lock();
        let Some(named) = scope
            .as_ref()
            .filter(|_| registry.groups.has_room_for(group))
        else {
            return Err(ENOSPC);
        };
        if self.is_gone() {
            return Err(ENODEV);
        }
        let old = registry.groups.find(group).unwrap_or_default();
        let new = change.applied_to_registration(old);
        if new.is_level {
            registry.groups.check_depth(named)?;
            let parent = registry.groups.parent_of(named);
            let settings = self.register_level(group, parent, change)?;
            self.note_group(group, Some(settings));
        }
        registry.groups.set(scope, group, new);
        if new.is_level {
            self.nest_below(&registry, group, Some(group));
        }
        self.sweeper.queue(SWEEP_MS);
        self.regroup(&registry);
        self.view_group(&registry, group)
    }

    /// Registers a level with the scheduler. Returns its settings. `ERANGE`, `EBUSY`.
    fn register_level(
        &self,
        group: GroupKey,
        parent: Option<GroupKey>,
        change: &GroupChange,
    ) -> Result<GroupSettings> {
        self.act(&mut self.state.lock(), |scheduler, card, at| {
            let settings = change.applied_to(scheduler.group_settings(group).unwrap_or_default());
            scheduler.set_group(card, at, group, parent, settings)?;
            Ok(settings)
        })
        .map_err(refused)
    }

    /// Puts the levels whose nearest level above is `group` below `parent`.
    fn nest_below(&self, registry: &Registry, group: GroupKey, parent: Option<GroupKey>) {
        for child in registry.groups.children_of(group) {
            // The depth was checked, so the group is refused only if the card is gone.
            let _ = self.act(&mut self.state.lock(), |scheduler, card, at| {
                let settings = scheduler.group_settings(child).unwrap_or_default();
                scheduler.set_group(card, at, child, parent, settings)
            });
        }
    }

    /// Ends the registration of a group, and moves its contexts to the groups that they belong to
    /// without it. `ENOENT`: it is not registered.
    pub(crate) fn remove_group(&self, group: GroupKey) -> Result<GroupView> {
        let mut registry = self.registry.lock();
        let view = self.view_group(&registry, group)?;
        self.forget_group(&mut registry, group)?;
        self.regroup(&registry);
        Ok(view)
    }

    fn forget_group(&self, registry: &mut Registry, group: GroupKey) -> Result {
        let how = registry.groups.find(group).ok_or(ENOENT)?;
        if how.is_level {
            self.nest_below(registry, group, registry.groups.parent_of_registered(group));
            self.act(&mut self.state.lock(), |scheduler, card, at| {
                scheduler.remove_group(card, at, group)
            })
            .map_err(not_registered)?;
            self.note_group(group, None);
        }
        registry.groups.remove(group);
        Ok(())
    }

    fn view_group(&self, registry: &Registry, group: GroupKey) -> Result<GroupView> {
        let members = registry.members(group);
        let bytes = members.fold(0, |sum, client| sum + client.pinned.all());
        let mut state = self.state.lock();
        let at = state.shown_until();
        let scheduler = &state.scheduler;
        if scheduler.is_gone() {
            return Err(ENODEV);
        }
        Ok(GroupView {
            how: registry.groups.find(group).ok_or(ENOENT)?,
            settings: scheduler.group_settings(group).unwrap_or_default(),
            stats: scheduler.group_stats(group, at),
            bytes,
        })
    }

    /// Moves every context to its group, and applies to it what is set for groups, [`REGROUP_MAX`]
    /// contexts at a time.
    fn regroup(&self, registry: &Registry) {
        let mut moved = false;
        for some in registry.clients.chunks(REGROUP_MAX) {
            let mut places: [Option<(ContextId, GroupPath)>; REGROUP_MAX] = [None; REGROUP_MAX];
            for (place, client) in places.iter_mut().zip(some) {
                let path = registry.path_of(&client.opener);
                moved |= client.put_group(path.group);
                *place = client.id().ok().map(|id| (id, path));
            }
            self.act(&mut self.state.lock(), |scheduler, card, at| {
                scheduler.regroup(card, at, places.into_iter().flatten());
            });
        }
        if !moved {
            return;
        }
        for client in &registry.clients {
            if let Ok(id) = client.id() {
                self.act(&mut self.state.lock(), |scheduler, card, at| {
                    scheduler.leave_foreign_gang(card, at, id);
                });
            }
        }
    }

    /// Ends the registrations of removed cgroups, and waits for that.
    fn sweep_now(&self) {
        {
            let registry = self.registry.lock();
            // `shut_down` closes the gate, then takes this lock, and then stops the sweeper.
            if registry.groups.is_empty() || self.is_gone() {
                return;
            }
            self.sweeper.queue(0);
        }
        self.sweeper.flush();
    }
}

/// The sweeper.
impl Worker for Card {
    const OFFSET: usize = offset_of!(Card, sweeper);

    fn work(&self) {
        self.end_wait_for_link();
        self.sweep();
        self.find_standstill();
        let mut registry = self.registry.lock();
        let mut swept = false;
        while let Some(group) = registry.groups.first_gone() {
            if self.forget_group(&mut registry, group).is_err() {
                return;
            }
            swept = true;
        }
        if swept {
            self.regroup(&registry);
        }
        let is_watched = self.context_count() != 0;
        let is_needed = is_watched || !registry.groups.is_empty() || self.is_silent();
        if is_needed && !self.is_gone() {
            self.sweeper.queue(SWEEP_MS);
        }
    }
}

/// Returns the error number of a refusal by a call that names a group, not a context.
fn not_registered(refusal: Refusal) -> Error {
    match refusal {
        Refusal::NoContext => ENOENT,
        refusal => refused(refusal),
    }
}
