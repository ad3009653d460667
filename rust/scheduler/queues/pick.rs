// SPDX-License-Identifier: GPL-2.0

//! Waiting: which context is next on a slot, and groups that are throttled.
//!
//! Where groups compete, a context is linked in its group's level, and the group among its
//! siblings: one unlinking throttles a group with all its contexts. Where groups do not compete,
//! contexts are linked at the top of the class, because the order of contexts, not that of groups,
//! decides there; a pick that finds the context of a throttled group parks it in its group.

use super::entity::THROTTLED;
use super::groups::Groups;
use super::policy::Policy;
use super::tree::{Key, Nodes, Tree};
use super::RunQueue;
use crate::scheduler::values::{Class, EntityIndex, GroupIndex, Rank, Time};

/// How many contexts of throttled groups one pick parks.
const PARKS: usize = 8;

/// Queues.
impl RunQueue {
    /// Enqueues a context at the turn that it had, or behind its equals.
    pub(in super::super) fn enqueue(&mut self, ctx: EntityIndex, turn: Option<u64>) {
        let turn = turn.unwrap_or_else(|| self.next_turn());
        if !self.is_reserved(ctx) {
            self.policy.enqueue(&mut self.store, ctx, false);
        }
        let key = self.key(&self.store.entities[ctx]);
        let level = self.level_for(ctx);
        self.store.entities[ctx].level = level as u32;
        let tree = &mut self.store.levels[level].tree;
        tree.insert(&mut self.store.entities, ctx, Key { key, turn });
        self.sync(level);
    }

    /// Returns the level where a context is linked.
    fn level_for(&self, ctx: EntityIndex) -> usize {
        let entity = &self.store.entities[ctx];
        let home = entity.home as usize;
        if self.competes_by_group(ctx) || self.is_throttled(ctx) {
            return home;
        }
        let class = self.store.levels[home].class();
        Self::top(class, entity.rank)
    }

    /// Takes a context out of its queue.
    pub(in super::super) fn dequeue(&mut self, ctx: EntityIndex) {
        let level = self.store.entities[ctx].level as usize;
        let tree = &mut self.store.levels[level].tree;
        tree.remove(&mut self.store.entities, ctx);
        self.sync(level);
    }

    /// Notes whether a context waits without others of its gang. Returns whether that has changed for
    /// a context that waits.
    #[allow(dead_code, reason = "only gangs need it")]
    pub(in super::super) fn set_alone(&mut self, ctx: EntityIndex, alone: bool) -> bool {
        let node = &mut self.store.entities[ctx].node;
        let slots = node.allowed() & u16::from(u8::MAX);
        let allowed = slots | if alone { slots << u8::BITS } else { 0 };
        if node.allowed() == allowed {
            return false;
        }
        node.set_allowed(allowed);
        let is_linked = self.is_linked(ctx);
        if is_linked {
            let level = self.store.entities[ctx].level as usize;
            let tree = &mut self.store.levels[level].tree;
            tree.refresh(&mut self.store.entities, ctx);
            self.sync(level);
        }
        is_linked
    }

    /// Returns the turn of a context among its equals, which it keeps when it is bound and given
    /// back.
    pub(in super::super) fn turn(&self, ctx: EntityIndex) -> u64 {
        self.store.entities.node(ctx).key().turn
    }

    /// Returns a turn behind all others.
    pub(in super::super) fn next_turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    /// Links, moves or unlinks the entity of a level, and those above, after a change in the level.
    pub(super) fn sync(&mut self, mut level: usize) {
        while let Some(own) = self.store.levels[level].own {
            if self.store.levels[level].throttled {
                return;
            }
            let tree = &self.store.levels[level].tree;
            let (first, allowed) = (tree.first(), tree.allowed(&self.store.entities));
            let entity = &self.store.entities[own];
            level = entity.home as usize;
            let is_linked = entity.node.is_linked();
            let Some(first) = first else {
                if !is_linked {
                    return;
                }
                let tree = &mut self.store.levels[level].tree;
                tree.remove(&mut self.store.entities, own);
                continue;
            };
            let key = || self.store.entities.node(first).key();
            let is_at_place = || self.policy.is_fair() || entity.node.key() == key();
            if is_linked && entity.node.allowed() == allowed && is_at_place() {
                return;
            }
            self.refresh_own(own, first, allowed);
        }
    }

    /// Puts the entity of a level at its place, which is that of `first` where groups do not
    /// compete.
    fn refresh_own(&mut self, own: EntityIndex, first: EntityIndex, allowed: u16) {
        let is_fair = self.policy.is_fair();
        if is_fair && !self.store.entities[own].node.is_linked() {
            // The group was kept from running: by a limit, or because all its contexts ran.
            self.policy.enqueue(&mut self.store, own, false);
        }
        let (node, up) = (
            self.store.entities[own].node,
            self.store.entities[own].home as usize,
        );
        let key = match is_fair {
            false => self.store.entities.node(first).key(),
            true if node.is_linked() => node.key(),
            true => Key {
                key: self.store.entities[own].vruntime,
                turn: self.next_turn(),
            },
        };
        self.store.entities[own].node.set_allowed(allowed);
        let tree = &mut self.store.levels[up].tree;
        if !node.is_linked() {
            self.store.entities[own].level = up as u32;
            return tree.insert(&mut self.store.entities, own, key);
        }
        if node.allowed() != allowed {
            tree.refresh(&mut self.store.entities, own);
        }
        if node.key() != key {
            tree.change_key(&mut self.store.entities, own, key);
        }
    }
}

/// Picking.
impl RunQueue {
    /// Returns the context that is next on the slots of a class; given in the upper half, the next
    /// that does not wait together with others of a gang.
    pub(in super::super) fn pick(&mut self, class: Class, slots: u16) -> Option<EntityIndex> {
        for _ in 0..PARKS {
            let at = self.first(class, slots)?;
            if self.policy.is_fair() || self.is_parked(at) == self.is_throttled(at) {
                return Some(at);
            }
            // Its group was throttled, or has returned: it moves between the top and its group.
            let turn = self.turn(at);
            self.dequeue(at);
            self.enqueue(at, Some(turn));
        }
        self.unfinished = true;
        None
    }

    /// Returns whether a context is linked in its group where groups do not compete.
    fn is_parked(&self, ctx: EntityIndex) -> bool {
        let level = self.store.entities[ctx].level as usize;
        self.store.levels[level].own.is_some()
    }

    /// Returns whether a pick since the last call has stopped before it found a context.
    pub(in super::super) fn take_unfinished(&mut self) -> bool {
        core::mem::take(&mut self.unfinished)
    }

    /// Returns the first context of a class, by rank and then by the policy, for some slots.
    fn first(&self, class: Class, slots: u16) -> Option<EntityIndex> {
        for rank in Rank::ALL {
            let tree = &self.store.levels[Self::top(class, rank)].tree;
            if let Some(mut at) = tree.first_for(&self.store.entities, slots) {
                while at.at() >= self.contexts {
                    let level = &self.store.levels[self.level_below(at)];
                    at = level.tree.first_for(&self.store.entities, slots)?;
                }
                return Some(at);
            }
        }
        None
    }
}

/// Throttled groups.
impl RunQueue {
    /// Takes a group with its contexts of a class out of the queues, to return at `until`.
    pub(in super::super) fn throttle(
        &mut self,
        groups: &Groups,
        at: GroupIndex,
        class: Class,
        until: Time,
    ) {
        self.for_levels(groups, at, class, |queue, level, own| {
            let (is_queued, up) = {
                let entity = &queue.store.entities[own];
                (entity.is_queued(), entity.level)
            };
            if is_queued {
                let tree = &mut queue.store.levels[up as usize].tree;
                tree.remove(&mut queue.store.entities, own);
                queue.sync(up as usize);
            } else if queue.store.levels[level].throttled {
                queue.throttled[class.at()].remove(&mut queue.store.entities, own);
            }
            queue.store.levels[level].throttled = true;
            queue.store.entities[own].level = THROTTLED;
            let key = Key {
                key: until.as_ns(),
                turn: queue.next_turn(),
            };
            queue.throttled[class.at()].insert(&mut queue.store.entities, own, key);
        });
    }

    /// Lets a group with its contexts of a class wait again, if it was throttled.
    pub(in super::super) fn unthrottle(&mut self, groups: &Groups, at: GroupIndex, class: Class) {
        self.for_levels(groups, at, class, |queue, level, own| {
            if core::mem::take(&mut queue.store.levels[level].throttled) {
                queue.throttled[class.at()].remove(&mut queue.store.entities, own);
                queue.store.entities[own].level = queue.store.entities[own].home;
                queue.sync(level);
            }
        });
    }

    /// Calls `act` for the levels of a group in a class, and their entities.
    fn for_levels(
        &mut self,
        groups: &Groups,
        at: GroupIndex,
        class: Class,
        mut act: impl FnMut(&mut Self, usize, EntityIndex),
    ) {
        let mut next = groups.levels(at) as usize;
        while next != 0 {
            let level = &self.store.levels[next];
            let (own, is_of_class) = (level.own, level.class() == class);
            let after = level.next as usize;
            if let Some(own) = own.filter(|_| is_of_class) {
                act(self, next, own);
            }
            next = after;
        }
    }

    /// Returns whether a group is throttled in a class.
    pub(in super::super) fn is_group_throttled(
        &self,
        groups: &Groups,
        at: GroupIndex,
        class: Class,
    ) -> bool {
        self.levels_of(groups, at).any(|level| {
            let level = &self.store.levels[level as usize];
            level.throttled && level.class() == class
        })
    }

    /// Returns the throttled group of a class that returns first, and when.
    pub(in super::super) fn next_throttled(&self, class: Class) -> Option<(GroupIndex, Time)> {
        let first = self.throttled[class.at()].first()?;
        let group = self.store.levels[self.level_below(first)].group?;
        let at = self.store.entities.node(first).key().key;
        Some((group, Time::from_ns(at)))
    }

    /// Returns whether a group of the context is throttled in its class.
    pub(in super::super) fn is_throttled(&self, ctx: EntityIndex) -> bool {
        self.throttled_group(ctx).is_some()
    }

    /// Returns the first group of the context that is throttled in its class. Caps do not hold for
    /// reservations.
    pub(in super::super) fn throttled_group(&self, ctx: EntityIndex) -> Option<GroupIndex> {
        if self.is_reserved(ctx) {
            return None;
        }
        let mut level = &self.store.levels[self.store.entities[ctx].home as usize];
        while let Some(own) = level.own {
            if level.throttled {
                return level.group;
            }
            level = &self.store.levels[self.store.entities[own].home as usize];
        }
        None
    }
}

/// Contexts that are in no queue, by time.
impl RunQueue {
    /// Links a context into a tree that is ordered by time.
    pub(in super::super) fn link_timed(&mut self, tree: &mut Tree, ctx: EntityIndex, at: Time) {
        self.store.entities[ctx].level = THROTTLED;
        let (key, turn) = (at.as_ns(), self.next_turn());
        tree.insert(&mut self.store.entities, ctx, Key { key, turn });
    }

    /// Unlinks a context from a tree that is ordered by time.
    pub(in super::super) fn unlink_timed(&mut self, tree: &mut Tree, ctx: EntityIndex) {
        tree.remove(&mut self.store.entities, ctx);
    }

    /// Returns the time of a context in such a tree.
    pub(in super::super) fn time_of(&self, ctx: EntityIndex) -> Time {
        Time::from_ns(self.store.entities.node(ctx).key().key)
    }
}
