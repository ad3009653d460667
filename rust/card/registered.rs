// SPDX-License-Identifier: GPL-2.0

//! Which groups are registered, and which group a context belongs to.
//!
//! Of the cgroup that a program was in at `open()` and the cgroups above, the nearest registered one
//! decides: it is the program's group or, if it is registered with its children, the child on the
//! way to the program is. If none is registered, the group is the program's user.
//!
//! A group is a *level* if it competes by itself, and groups below it share what it gets. A cgroup
//! that is registered with its children alone is no level: its children compete where it would.

use crate::{
    cgroup::{self, Cgroup},
    limits::Limits,
    opener::{group_of_user, Opener},
    scheduler::{GroupKey, GroupPath, Scheduler},
};
use kernel::prelude::*;

/// Whose contexts are in a group.
pub(crate) enum GroupScope {
    /// A cgroup with its subtree.
    Cgroup(Cgroup),
    /// A user of the initial user namespace, by number.
    User(u32),
}

impl GroupScope {
    pub(crate) fn key(&self) -> GroupKey {
        match self {
            Self::Cgroup(cgroup) => GroupKey(cgroup.number()),
            Self::User(uid) => group_of_user(*uid),
        }
    }

    /// Returns whether the cgroup was removed. Must be called by a kworker.
    fn is_gone(&self) -> bool {
        match self {
            Self::Cgroup(cgroup) => !cgroup::lives(cgroup.number()),
            Self::User(_) => false,
        }
    }

    fn cgroup(&self) -> Option<&Cgroup> {
        match self {
            Self::Cgroup(cgroup) => Some(cgroup),
            Self::User(_) => None,
        }
    }
}

/// Limits of the contexts of a group and of the groups below it, together.
#[derive(Clone, Copy, Default)]
pub(crate) struct GroupLimits {
    /// Maximum number of contexts that are set up; 0: not set.
    pub(crate) contexts: u32,
    /// Maximum number of bytes of pinned memory; 0: not set.
    pub(crate) bytes: u64,
}

/// What is in force for some contexts together.
pub(crate) struct Bounds {
    pub(super) group: GroupKey,
    /// They are the contexts of the group and of those below it, else only the group's own.
    pub(super) of_subtree: bool,
    pub(crate) contexts: usize,
    pub(crate) bytes: u64,
    /// Bytes that no memory cgroup is charged for.
    pub(crate) uncharged: u64,
}

/// How a group is registered.
#[derive(Clone, Copy, Default)]
pub(crate) struct Registered {
    /// Each child of the cgroup is a group of its own.
    pub(crate) children: bool,
    /// It competes by itself.
    pub(super) is_level: bool,
    pub(crate) limits: GroupLimits,
}

/// A registered group.
struct Group {
    scope: GroupScope,
    how: Registered,
}

impl Group {
    fn key(&self) -> GroupKey {
        self.scope.key()
    }
}

/// The registered groups of a card.
pub(super) struct RegisteredGroups {
    /// Sorted by number. Never grows beyond its initial capacity.
    groups: KVec<Group>,
}

impl RegisteredGroups {
    /// Returns a table with room for as many groups as can be registered.
    pub(super) fn new() -> Result<Self> {
        let groups = KVec::with_capacity(Scheduler::GROUPS_MAX, GFP_KERNEL)?;
        Ok(Self { groups })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Returns how a group is registered; `None`: it is not.
    pub(super) fn find(&self, group: GroupKey) -> Option<Registered> {
        let place = self.place_of(group).ok()?;
        Some(self.groups[place].how)
    }

    /// Returns whether a group is a level, and a cgroup.
    pub(super) fn is_cgroup_level(&self, group: GroupKey) -> bool {
        let place = self.place_of(group).ok();
        let found = place.map(|place| &self.groups[place]);
        found.is_some_and(|found| found.how.is_level && found.scope.cgroup().is_some())
    }

    /// Returns where contexts of `opener` belong among the groups.
    pub(super) fn path_of(&self, opener: &Opener) -> GroupPath {
        let group = match self.above(&opener.cgroup).next() {
            None => opener.user_group,
            Some(nearest) if nearest.how.children => {
                GroupKey(opener.cgroup.child_below(nearest.key().0))
            }
            Some(nearest) => nearest.key(),
        };
        let mut levels = self.levels(&opener.cgroup);
        let level = levels.find(|&level| level != group);
        GroupPath { group, level }
    }

    /// Iterates over what is in force for contexts of `opener`: for its group, and for each level
    /// that it is below.
    pub(super) fn bounds_of<'a>(
        &'a self,
        opener: &'a Opener,
        limits: &'a Limits,
    ) -> impl Iterator<Item = Bounds> + 'a {
        let own = self.bounds(self.path_of(opener).group, false, limits);
        let levels = self.levels(&opener.cgroup);
        let levels = levels.map(|level| self.bounds(level, true, limits));
        Iterator::chain(core::iter::once(own), levels)
    }

    /// Iterates over the registered groups among a cgroup and those above it, the nearest first.
    fn above<'a>(&'a self, cgroup: &'a Cgroup) -> impl Iterator<Item = &'a Group> + 'a {
        let lineage = cgroup.lineage().take_while(|_| !self.is_empty());
        lineage.filter_map(|number| Some(&self.groups[self.place_of(GroupKey(number)).ok()?]))
    }

    /// Iterates over the levels among a cgroup and those above it, the nearest first.
    fn levels<'a>(&'a self, cgroup: &'a Cgroup) -> impl Iterator<Item = GroupKey> + 'a {
        let levels = self.above(cgroup).filter(|group| group.how.is_level);
        levels.map(Group::key)
    }

    /// Returns the nearest level above a group.
    pub(super) fn parent_of(&self, scope: &GroupScope) -> Option<GroupKey> {
        let mut levels = self.levels(scope.cgroup()?);
        levels.find(|&level| level != scope.key())
    }

    /// Returns the nearest level above a registered group.
    pub(super) fn parent_of_registered(&self, group: GroupKey) -> Option<GroupKey> {
        let place = self.place_of(group).ok()?;
        self.parent_of(&self.groups[place].scope)
    }

    /// Iterates over the levels whose nearest level above is `group`.
    pub(super) fn children_of(&self, group: GroupKey) -> impl Iterator<Item = GroupKey> + '_ {
        let levels = self.groups.iter().filter(|other| other.how.is_level);
        let is_child = move |other: &&Group| self.parent_of(&other.scope) == Some(group);
        levels.filter(is_child).map(Group::key)
    }

    /// Checks that a group can be a level between those above and below it. `E2BIG`: levels would
    /// nest too deeply.
    pub(super) fn check_depth(&self, scope: &GroupScope) -> Result {
        let key = scope.key();
        let Some(cgroup) = scope.cgroup() else {
            return Ok(());
        };
        if self.find(key).is_some_and(|how| how.is_level) {
            return Ok(());
        }
        let depth = |of: &Cgroup| self.levels(of).count();
        let levels = self.groups.iter().filter(|other| other.how.is_level);
        let cgroups = levels.filter_map(|other| other.scope.cgroup());
        let below = cgroups.filter(|other| other.is_below(key.0)).map(depth);
        let deepest = below.max().unwrap_or_else(|| depth(cgroup));
        if deepest + 1 > Scheduler::GROUP_DEPTH_MAX {
            return Err(E2BIG);
        }
        Ok(())
    }

    /// Groups below a cgroup that is registered with its children have limits of their own, and so
    /// have contexts in the cgroup itself. What is set for it holds for all together.
    fn bounds(&self, group: GroupKey, of_subtree: bool, limits: &Limits) -> Bounds {
        let how = self.find(group).unwrap_or_default();
        let set = match how.children && !of_subtree {
            true => GroupLimits::default(),
            false => how.limits,
        };
        let is_unlimited = how.children && of_subtree;
        Bounds {
            group,
            of_subtree,
            contexts: match set.contexts {
                0 if is_unlimited => usize::MAX,
                0 => limits.contexts_of_group,
                // CAST: at least 32 bits.
                contexts => contexts as usize,
            },
            bytes: match set.bytes {
                0 if is_unlimited => u64::MAX,
                0 => limits.pinned,
                bytes => bytes,
            },
            uncharged: match is_unlimited {
                true => u64::MAX,
                false => limits.uncharged,
            },
        }
    }

    /// Returns whether `group` is registered, or can be.
    pub(super) fn has_room_for(&self, group: GroupKey) -> bool {
        self.place_of(group).is_ok() || self.groups.len() < self.groups.capacity()
    }

    /// Sets how a group is registered, and takes `scope` if it was not. There is room.
    pub(super) fn set(&mut self, scope: &mut Option<GroupScope>, group: GroupKey, how: Registered) {
        match self.place_of(group) {
            Ok(place) => self.groups[place].how = how,
            Err(place) => {
                if let Some(scope) = scope.take() {
                    let registered = Group { scope, how };
                    let _ = self.groups.insert_within_capacity(place, registered);
                }
            }
        }
    }

    /// Forgets a group.
    pub(super) fn remove(&mut self, group: GroupKey) {
        self.groups.retain(|other| other.key() != group);
    }

    /// Returns a registered group whose cgroup was removed. Must be called by a kworker.
    pub(super) fn first_gone(&self) -> Option<GroupKey> {
        let gone = self.groups.iter().find(|group| group.scope.is_gone());
        gone.map(Group::key)
    }

    /// Returns the position of a group, or the position at which it would be inserted.
    fn place_of(&self, group: GroupKey) -> Result<usize, usize> {
        self.groups
            .binary_search_by_key(&group.0, |other| other.key().0)
    }
}
