// SPDX-License-Identifier: GPL-2.0

//! The levels of groups: one for each class and rank in which a group has contexts, or has had
//! contexts not long ago. A level without members keeps its virtual time until its place is needed,
//! so closing and opening contexts gains a group nothing.

use super::entity::{Entity, Level, TOPS};
use super::groups::Groups;
use super::policy::Policy;
use super::RunQueue;
use crate::scheduler::values::{Class, Duration, EntityIndex, GroupIndex, Rank};

impl RunQueue {
    /// Iterates over the levels of a group.
    pub(super) fn levels_of<'a>(
        &'a self,
        groups: &Groups,
        at: GroupIndex,
    ) -> impl Iterator<Item = u32> + 'a {
        let some = |level: u32| (level != 0).then_some(level);
        let first = some(groups.levels(at));
        core::iter::successors(first, move |&level| {
            some(self.store.levels[level as usize].next)
        })
    }

    fn find_level(&self, groups: &Groups, at: GroupIndex, class: Class, rank: Rank) -> Option<u32> {
        let mut levels = self.levels_of(groups, at);
        levels.find(|&level| {
            let level = &self.store.levels[level as usize];
            level.class() == class && level.rank == rank
        })
    }

    /// Returns the entity that competes for the members of a level of a group.
    fn entity_of(&self, level: u32) -> EntityIndex {
        EntityIndex::new(self.contexts + level as usize - TOPS)
    }

    /// Returns the level of an entity of a group.
    pub(super) fn level_below(&self, entity: EntityIndex) -> usize {
        entity.at() - self.contexts + TOPS
    }

    /// Returns the level of a group, which is made if there is none; `None`: there is no room.
    fn make_level(
        &mut self,
        groups: &mut Groups,
        at: Option<GroupIndex>,
        class: Class,
        rank: Rank,
    ) -> Option<u32> {
        let Some(at) = at else {
            // CAST: below TOPS.
            return Some(Self::top(class, rank) as u32);
        };
        if let Some(level) = self.find_level(groups, at, class, rank) {
            return Some(level);
        }
        // The level above has a member from here on, so it is not the one that is forgotten.
        let up = self.make_level(groups, groups.parent(at), class, rank)?;
        self.add_member(up);
        let Some(level) = self.take_level(groups) else {
            self.remove_member(up);
            return None;
        };
        let own = self.entity_of(level);
        self.store.levels[level as usize] = Level {
            own: Some(own),
            group: Some(at),
            class: class.number(),
            rank,
            next: groups.levels(at),
            ..Level::default()
        };
        groups.set_levels(at, level);
        self.store.entities[own] = Entity {
            home: up,
            level: up,
            weight: groups.settings(at).weight.into(),
            vruntime: self.store.levels[up as usize].min_vruntime,
            rank,
            ..Entity::default()
        };
        self.remember(level);
        Some(level)
    }

    /// Takes a free level, or that of the group which has had no members for longest.
    fn take_level(&mut self, groups: &mut Groups) -> Option<u32> {
        if self.free == 0 && self.oldest != 0 {
            self.forget(groups, self.oldest);
        }
        let level = self.free;
        self.free = self.store.levels[level as usize].next;
        (level != 0).then_some(level)
    }

    /// Frees a level without members.
    fn forget(&mut self, groups: &mut Groups, level: u32) {
        self.recall(level);
        let own = self.entity_of(level);
        let Level {
            group: Some(at),
            next,
            throttled,
            class,
            ..
        } = self.store.levels[level as usize]
        else {
            return;
        };
        if throttled {
            self.throttled[Class::from_number(class).at()].remove(&mut self.store.entities, own);
        }
        let up = self.store.entities[own].home;
        let before = self.levels_of(groups, at);
        let before = before.take_while(|&other| other != level).last();
        match before {
            Some(before) => self.store.levels[before as usize].next = next,
            None => groups.set_levels(at, next),
        }
        self.store.levels[level as usize] = Level {
            next: self.free,
            ..Level::default()
        };
        self.free = level;
        self.remove_member(up);
        groups.free_unused(at);
    }

    fn add_member(&mut self, level: u32) {
        let members = &mut self.store.levels[level as usize].members;
        *members += 1;
        if *members == 1 && level as usize >= TOPS {
            self.recall(level);
        }
    }

    fn remove_member(&mut self, level: u32) {
        let members = &mut self.store.levels[level as usize].members;
        *members -= 1;
        if *members == 0 && level as usize >= TOPS {
            self.remember(level);
        }
    }

    /// Adds a level to the list of those without members.
    fn remember(&mut self, level: u32) {
        let older = core::mem::replace(&mut self.newest, level);
        match older {
            0 => self.oldest = level,
            older => self.store.levels[older as usize].newer = level,
        }
        let level = &mut self.store.levels[level as usize];
        (level.older, level.newer) = (older, 0);
    }

    /// Removes a level from the list of those without members.
    fn recall(&mut self, level: u32) {
        let Level { older, newer, .. } = self.store.levels[level as usize];
        match older {
            0 => self.oldest = newer,
            older => self.store.levels[older as usize].newer = newer,
        }
        match newer {
            0 => self.newest = older,
            newer => self.store.levels[newer as usize].older = older,
        }
    }

    /// Makes a context, which is in no queue and wants no slot, a member of a group, where it counts
    /// as new. Returns `false` if there is no room for the group's level. The old group may be freed.
    pub(in super::super) fn join(
        &mut self,
        groups: &mut Groups,
        ctx: EntityIndex,
        at: GroupIndex,
        (class, rank): (Class, Rank),
    ) -> bool {
        let Some(level) = self.make_level(groups, Some(at), class, rank) else {
            groups.free_unused(at);
            return false;
        };
        self.add_member(level);
        let entity = &mut self.store.entities[ctx];
        (entity.home, entity.level, entity.rank) = (level, level, rank);
        groups.count_contexts(Some(at), |contexts| contexts + 1);
        self.reset_vruntime(ctx);
        true
    }

    /// Removes a context, which is in no queue and wants no slot, from its group.
    pub(in super::super) fn part(&mut self, groups: &mut Groups, ctx: EntityIndex) {
        self.part_from(groups, self.store.entities[ctx].home);
    }

    fn part_from(&mut self, groups: &mut Groups, level: u32) {
        let group = self.store.levels[level as usize].group;
        groups.count_contexts(group, |contexts| contexts - 1);
        self.remove_member(level);
        // The level of a context's own group is of no use to others.
        if group.is_some_and(|at| groups.is_own(at)) {
            self.forget(groups, level);
        }
    }

    /// Moves a context, which is in no queue and wants no slot, to another group or rank, where it
    /// counts as new; but to its own group and back, it keeps its virtual time among its siblings.
    /// Returns `false` if there is no room; then it stays where it is.
    pub(in super::super) fn move_to(
        &mut self,
        groups: &mut Groups,
        ctx: EntityIndex,
        at: GroupIndex,
        place: (Class, Rank),
    ) -> bool {
        let old = self.store.entities[ctx].home;
        let vruntime = self.store.entities[ctx].vruntime;
        let own = self.store.own(ctx);
        let has_own = self.group_of(ctx).is_some_and(|old| groups.is_own(old));
        let has_moved = self.join(groups, ctx, at, place);
        if has_moved {
            let home = self.store.entities[ctx].home;
            match (self.store.own(ctx), own) {
                (Some(own), _) if groups.is_own(at) && self.store.entities[own].home == old => {
                    self.store.entities[own].vruntime = vruntime;
                }
                (_, Some(own)) if has_own && self.store.entities[own].home == home => {
                    self.store.entities[ctx].vruntime = self.store.entities[own].vruntime;
                }
                _ => {}
            }
            self.part_from(groups, old);
        }
        has_moved
    }

    /// Charges a group, and those above it, for time that its contexts of a class have cost others.
    pub(in super::super) fn charge_group(
        &mut self,
        groups: &Groups,
        at: GroupIndex,
        class: Class,
        span: Duration,
    ) {
        let mut levels = self.levels_of(groups, at);
        let level = levels.find(|&level| self.store.levels[level as usize].class() == class);
        drop(levels);
        if let Some(level) = level.filter(|_| self.is_fair()) {
            let own = self.entity_of(level);
            self.store.charge(own, span.as_ns(), false);
        }
    }

    /// Returns the group of a context.
    pub(in super::super) fn group_of(&self, ctx: EntityIndex) -> Option<GroupIndex> {
        let level = self.store.entities[ctx].home;
        self.store.levels[level as usize].group
    }

    /// Sets the weight of a group. Runs were charged until now.
    pub(in super::super) fn set_weight(&mut self, groups: &Groups, at: GroupIndex, weight: u16) {
        let mut next = groups.levels(at);
        while next != 0 {
            let own = self.entity_of(next);
            self.store.entities[own].weight = weight.into();
            next = self.store.levels[next as usize].next;
        }
    }

    /// Puts a group below another one, where it counts as new. Runs were charged until now. A level
    /// for which there is no room above stays below the class.
    pub(in super::super) fn move_group(
        &mut self,
        groups: &mut Groups,
        at: GroupIndex,
        parent: Option<GroupIndex>,
    ) {
        groups.set_parent(at, parent);
        let mut next = groups.levels(at);
        while next != 0 {
            let level = next as usize;
            let Level {
                class,
                rank,
                members,
                next: after,
                ..
            } = self.store.levels[level];
            if members == 0 {
                // It has nothing that counts, and its place may be needed for the level above.
                self.forget(groups, next);
                next = after;
                continue;
            }
            let class = Class::from_number(class);
            let old = self.store.entities[self.entity_of(next)].home;
            let up = self.make_level(groups, parent, class, rank);
            let up = up.unwrap_or(Self::top(class, rank) as u32);
            if up != old {
                self.move_level(next, up);
                self.remove_member(old);
            }
            next = self.store.levels[level].next;
        }
    }

    fn move_level(&mut self, level: u32, up: u32) {
        let own = self.entity_of(level);
        let Level {
            nr_active: active,
            throttled,
            ..
        } = self.store.levels[level as usize];
        let is_queued = self.store.entities[own].is_queued();
        if is_queued {
            let above = self.store.entities[own].level as usize;
            let tree = &mut self.store.levels[above].tree;
            tree.remove(&mut self.store.entities, own);
            self.sync(above);
        }
        self.add_active_above(own, active, false);
        self.store.entities[own].home = up;
        if !throttled {
            self.store.entities[own].level = up;
        }
        self.add_member(up);
        if active != 0 {
            // The groups above that did not compete until now are placed as such.
            self.policy.enqueue(&mut self.store, own, true);
        }
        self.reset_vruntime(own);
        self.add_active_above(own, active, true);
        self.sync(level as usize);
    }

    /// Changes the number of contexts that want a slot in the levels above an entity.
    fn add_active_above(&mut self, own: EntityIndex, active: u32, adds: bool) {
        let mut next = Some(own);
        while let Some(at) = next {
            let level = &mut self.store.levels[self.store.entities[at].home as usize];
            level.nr_active = match adds {
                true => level.nr_active + active,
                false => level.nr_active - active,
            };
            next = level.own;
        }
    }

    /// Resets the virtual time of a level's entity, and of its members, for a policy that has just
    /// come into force. Returns whether there is such a level.
    pub(in super::super) fn renew_level(&mut self, level: u32) -> bool {
        if level >= self.nr_levels() {
            return false;
        }
        self.store.levels[level as usize].min_vruntime = 0;
        if let Some(own) = self.store.levels[level as usize].own {
            self.store.entities[own].vruntime = 0;
            if self.store.entities[own].is_queued() {
                self.store.set_vruntime(own, 0);
            }
        }
        true
    }
}
