// SPDX-License-Identifier: GPL-2.0

//! Groups that the administrator has registered: cgroups, each with its subtree, while they live.
//!
//! A registration names its cgroup by number, and holds no reference to it. While there are
//! registrations, those of removed cgroups are looked for every [`SWEEP_MS`] milliseconds, and when
//! there is no room for another registration. The scheduler keeps the part of a registration that
//! it needs, and the registry keeps the rest.
//!
//! Registered groups nest as their cgroups do.

use super::{
    config::refused,
    registry::{RegisteredGroup, Registry},
    Card,
};
use crate::{
    cgroup::{self, Cgroup},
    delayed_work::Worker,
    opener::Opener,
    sched::{ContextId, GroupKey, GroupSettings, GroupStats, Refusal},
};
use core::mem::offset_of;
use kernel::prelude::*;

/// How often registrations of removed cgroups are looked for.
const SWEEP_MS: u32 = 1000;

/// Contexts that are moved in one section with interrupts off.
const REGROUP_MAX: usize = 16;

/// Limits of the contexts of a group and of the groups below it, together.
#[derive(Clone, Copy, Default)]
pub(crate) struct GroupLimits {
    /// Maximum number of contexts that are set up; 0: the module parameter's.
    pub(crate) contexts: u32,
    /// Maximum number of bytes of pinned memory; 0: the module parameter's.
    pub(crate) bytes: u64,
}

/// A registered group, for `FERMATA_IOC_GROUP_SET`.
pub(crate) struct GroupView {
    pub(crate) settings: GroupSettings,
    pub(crate) limits: GroupLimits,
    pub(crate) stats: GroupStats,
    /// Bytes of pinned memory that its contexts have.
    pub(crate) bytes: u64,
}

/// Calls for registered groups. Process context; `ENODEV`: the card is gone.
impl Card {
    /// Returns the group of contexts that `opener` opens, or has opened.
    pub(crate) fn group_of(&self, opener: &Opener) -> GroupKey {
        self.registry.lock().group_of(opener)
    }

    /// Returns what is set for the subtree of a cgroup. `ENOENT`: it is not registered.
    pub(crate) fn registered_group(&self, cgroup: &Cgroup) -> Result<GroupView> {
        let group = GroupKey(cgroup.number());
        self.view_group(&self.registry.lock(), group)
    }

    /// Registers the subtree of a cgroup, or changes what is set for it, with `change`. Moves open
    /// contexts to the group. `ERANGE`; `EBUSY`: a slot serves only another group; `ENOSPC`: too
    /// many groups are registered; `E2BIG`: registered groups would nest too deeply.
    pub(crate) fn set_group(
        &self,
        cgroup: Cgroup,
        change: impl Fn(&mut GroupSettings, &mut GroupLimits),
    ) -> Result<GroupView> {
        let mut cgroup = Some(cgroup);
        match self.try_set_group(&mut cgroup, &change) {
            Err(error) if error == ENOSPC => {
                self.sweep_now();
                self.try_set_group(&mut cgroup, &change)
            }
            result => result,
        }
    }

    /// Does what [`Card::set_group`] does, once. Takes `cgroup` if the group was not registered.
    fn try_set_group(
        &self,
        cgroup: &mut Option<Cgroup>,
        change: impl Fn(&mut GroupSettings, &mut GroupLimits),
    ) -> Result<GroupView> {
        let mut registry = self.registry.lock();
        let Some(named) = cgroup else {
            return Err(ENOSPC);
        };
        let group = GroupKey(named.number());
        registry.check_depth(named)?;
        let parent = registry.parent_of(named);
        let mut limits = registry.limits_of(group);
        let settings = self
            .act(&mut self.state.lock(), |scheduler, at, out| {
                let mut settings = scheduler.group_settings(group).unwrap_or_default();
                change(&mut settings, &mut limits);
                scheduler.set_group(at, group, parent, settings, out)?;
                Ok(settings)
            })
            .map_err(refused)?;
        self.note_group(group, Some(settings));
        registry.set_limits(cgroup, group, limits);
        self.nest_below(&registry, group, Some(group));
        self.sweeper.queue(SWEEP_MS);
        self.regroup(&registry);
        self.view_group(&registry, group)
    }

    /// Puts the registered groups whose nearest registered group above is `group` below `parent`.
    fn nest_below(&self, registry: &Registry, group: GroupKey, parent: Option<GroupKey>) {
        for child in registry.children_of(group) {
            // The depth was checked, so the group is refused only if the card is gone.
            let _ = self.act(&mut self.state.lock(), |scheduler, at, out| {
                let settings = scheduler.group_settings(child).unwrap_or_default();
                scheduler.set_group(at, child, parent, settings, out)
            });
        }
    }

    /// Ends the registration of the subtree of a cgroup, and moves its contexts to the groups that
    /// they belong to without it. `ENOENT`: it is not registered.
    pub(crate) fn remove_group(&self, cgroup: &Cgroup) -> Result<GroupView> {
        let group = GroupKey(cgroup.number());
        let mut registry = self.registry.lock();
        let view = self.view_group(&registry, group)?;
        self.forget_group(&mut registry, group)?;
        self.regroup(&registry);
        Ok(view)
    }

    fn forget_group(&self, registry: &mut Registry, group: GroupKey) -> Result {
        self.nest_below(registry, group, registry.parent_of_registered(group));
        self.act(&mut self.state.lock(), |scheduler, at, out| {
            scheduler.remove_group(at, group, out)
        })
        .map_err(not_registered)?;
        self.note_group(group, None);
        registry.groups.retain(|other| other.key() != group);
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
            settings: scheduler.group_settings(group).ok_or(ENOENT)?,
            limits: registry.limits_of(group),
            stats: scheduler.group_stats(group, at),
            bytes,
        })
    }

    /// Moves every context to its group, and applies to it what is set for groups, [`REGROUP_MAX`]
    /// contexts at a time.
    fn regroup(&self, registry: &Registry) {
        let mut moved = false;
        for some in registry.clients.chunks(REGROUP_MAX) {
            let mut places: [Option<(ContextId, GroupKey)>; REGROUP_MAX] = [None; REGROUP_MAX];
            for (place, client) in places.iter_mut().zip(some) {
                let group = registry.group_of(&client.opener);
                moved |= client.put_group(group);
                *place = client.id().ok().map(|id| (id, group));
            }
            self.act(&mut self.state.lock(), |scheduler, at, out| {
                scheduler.regroup(at, places.into_iter().flatten(), out);
            });
        }
        if !moved {
            return;
        }
        for client in &registry.clients {
            if let Ok(id) = client.id() {
                self.act(&mut self.state.lock(), |scheduler, at, out| {
                    scheduler.leave_foreign_gang(at, id, out);
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
        self.sweep();
        let mut registry = self.registry.lock();
        let mut swept = false;
        while let Some(group) = first_dead(&registry) {
            if self.forget_group(&mut registry, group).is_err() {
                return;
            }
            swept = true;
        }
        if swept {
            self.regroup(&registry);
        }
        if !registry.groups.is_empty() && !self.is_gone() {
            self.sweeper.queue(SWEEP_MS);
        }
    }
}

/// Returns a registered group whose cgroup was removed.
fn first_dead(registry: &Registry) -> Option<GroupKey> {
    let mut groups = registry.groups.iter().map(RegisteredGroup::key);
    groups.find(|group| !cgroup::lives(group.0))
}

/// Returns the error number of a refusal by a call that names a group, not a context.
fn not_registered(refusal: Refusal) -> Error {
    match refusal {
        Refusal::NoContext => ENOENT,
        refusal => refused(refusal),
    }
}
