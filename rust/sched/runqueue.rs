// SPDX-License-Identifier: GPL-2.0

//! The run queue of a class: the entities that wait for one of its slots.
//!
//! The ready queue is a tree for the class and one for each group, as in the CPU controller: a
//! group is linked in the tree above it while a member waits, so the first context is found by
//! descending from the class. Entities whose budget or cap is used up are in the throttled queue,
//! ordered by the time at which it is refilled. The members of a throttled group stay in the
//! group's tree.

use super::admission::Reserved;
use super::context::Linked;
use super::entities::Entities;
use super::entity::SchedKey;
use super::fifo::FifoList;
use super::ids::{ContextIndex, EntityKind, EntityRef, GroupIndex};
use super::tree::Tree;
use super::{Duration, Params, Time};

/// The run queue of a class, and other state of the class. Opaque: the caller provides the storage
/// for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunQueue {
    /// The slots of the class, a bit each.
    pub(super) slots: u8,
    /// The slots of the class that are not quarantined.
    pub(super) usable: u8,
    ready: Tree,
    throttled: Tree,
    /// The number of groups in the throttled queue.
    nr_throttled_groups: u32,
    /// Hints of work that preempts best-effort work at once, by their times.
    pub(super) urgent_hints: Tree,
    /// The other hints.
    pub(super) common_hints: Tree,
    /// Hints are ignored until this time.
    pub(super) backoff_until: Time,
    /// The contexts of the ready queue, the one that has waited longest first.
    pub(super) waiting: FifoList,
    /// When the starvation boost last gave a slice.
    pub(super) boosted_at: Time,
    /// The longest slice of a job that was saved, and the time from its PAUSE until it was off the
    /// slot.
    pub(super) longest_slice: Duration,
    /// The least virtual time of the entities of the class that want a slot.
    pub(super) min_vruntime: u64,
    pub(super) reserved: Reserved,
    /// Engines of the class can stop at boundaries.
    pub(super) has_boundaries: bool,
    /// The slots have relays.
    pub(super) relays: bool,
    /// The plans for the slots of the class are out of date.
    pub(super) replan: bool,
    /// Counts the entities that were enqueued.
    turns: u64,
}

impl RunQueue {
    /// Returns whether the class has only one slot, so that no other slot can take a context that
    /// waits.
    pub(super) fn has_one_slot(&self) -> bool {
        self.slots.count_ones() == 1
    }

    /// Returns how long the contexts of a group may run, on all slots together, before a context of
    /// another group has its turn.
    pub(super) fn longest_turn(&self) -> Duration {
        let slice = self.longest_slice.max(Params::SLICE_FLOOR_MAX);
        slice.times(self.slots.count_ones().into())
    }

    /// Returns a number for an entity that begins to wait.
    fn next_turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    /// Adds a context behind those with the same rank and key; `by_group`: it competes through its
    /// group. O(log n).
    pub(super) fn enqueue(
        &mut self,
        entities: &mut Entities,
        ctx: ContextIndex,
        (rank, key): (u8, u64),
        by_group: bool,
    ) {
        let turn = self.next_turn();
        if by_group {
            entities.activate(ctx);
        }
        self.link_ready(entities, ctx, SchedKey { rank, key, turn });
    }

    fn link_ready(&mut self, entities: &mut Entities, ctx: ContextIndex, key: SchedKey) {
        entities[ctx].linked = Linked::Ready;
        self.waiting.push(entities, ctx.into());
        self.link(entities, ctx.into(), key);
    }

    /// Removes a context from the queue that it is in, if it is in one. O(log n).
    pub(super) fn dequeue(&mut self, entities: &mut Entities, ctx: ContextIndex) {
        let at = ctx.into();
        match core::mem::replace(&mut entities[ctx].linked, Linked::No) {
            Linked::No | Linked::Ineligible | Linked::Gathering => {}
            Linked::Ready => {
                self.waiting.remove(entities, at);
                self.unlink(entities, at);
                entities.deactivate(ctx);
                self.follow_up(entities, entities[ctx].group);
            }
            Linked::Throttled => self.throttled.remove(entities, at),
            Linked::Behind => {
                let group = entities[ctx].group;
                let mut behind = entities[group].behind;
                behind.remove(entities, at);
                entities[group].behind = behind;
                self.unthrottle_if_idle(entities, group);
            }
            Linked::UrgentHint => self.urgent_hints.remove(entities, at),
            Linked::CommonHint => self.common_hints.remove(entities, at),
        }
    }

    /// Restores the turn that a context of the ready queue had among its equals, and puts the
    /// context first among those that wait. O(log n).
    pub(super) fn restore_place(&mut self, entities: &mut Entities, ctx: ContextIndex, turn: u64) {
        if entities[ctx].linked == Linked::Ready {
            self.waiting.remove(entities, ctx.into());
            self.waiting.push_front(entities, ctx.into());
            let key = entities.se(ctx).node.sched_key();
            self.unlink(entities, ctx.into());
            self.link(entities, ctx.into(), SchedKey { turn, ..key });
        }
    }

    /// Moves a context of the ready queue to where its new rank and key belong; among equals it
    /// keeps its turn. O(log n).
    pub(super) fn requeue(
        &mut self,
        entities: &mut Entities,
        ctx: ContextIndex,
        (rank, key): (u8, u64),
    ) {
        let SchedKey { turn, .. } = entities.se(ctx).node.sched_key();
        self.unlink(entities, ctx.into());
        self.link(entities, ctx.into(), SchedKey { rank, key, turn });
    }

    /// Moves a group to where its new virtual time belongs. Among equals it keeps its turn.
    /// O(log n).
    pub(super) fn requeue_group(&mut self, entities: &mut Entities, group: GroupIndex) {
        let entity = entities.se(group);
        let (parent, key) = (entity.parent, entity.vruntime);
        if entity.node.key() == key || !entities[group].waits() {
            return;
        }
        let mut stays = false;
        self.with_tree(entities, parent, |tree, entities| {
            stays = tree.change_last_key(entities, group.into(), key);
        });
        if !stays {
            let key = entities.se(group).node.sched_key();
            self.unlink(entities, group.into());
            self.link_group(entities, group, key);
        }
    }
}

/// The trees.
impl RunQueue {
    /// Calls `work` with the tree of the members of `parent`, or of the class.
    fn with_tree(
        &mut self,
        entities: &mut Entities,
        parent: Option<GroupIndex>,
        work: impl FnOnce(&mut Tree, &mut Entities),
    ) {
        match parent {
            None => work(&mut self.ready, entities),
            Some(group) => {
                let mut tree = entities[group].ready;
                work(&mut tree, entities);
                entities[group].ready = tree;
            }
        }
    }

    /// Returns the tree of the members of `parent`, or of the class.
    fn tree(&self, entities: &Entities, parent: Option<GroupIndex>) -> Tree {
        parent.map_or(self.ready, |group| entities[group].ready)
    }

    /// Takes a group out of the tree above it, if it is linked, and returns its place.
    pub(super) fn unlink_group(
        &mut self,
        entities: &mut Entities,
        group: GroupIndex,
    ) -> Option<SchedKey> {
        let key = entities.se(group).node.sched_key();
        let waits = entities[group].waits();
        if waits {
            self.unlink(entities, group.into());
        }
        waits.then_some(key)
    }

    /// Puts a group whose members wait into the tree above it, by its virtual time.
    pub(super) fn link_group(&mut self, entities: &mut Entities, group: GroupIndex, key: SchedKey) {
        let vruntime = entities.se(group).vruntime;
        let key = SchedKey {
            key: vruntime,
            ..key
        };
        self.link(entities, group.into(), key);
    }

    /// Returns the first entity that waits among the members of `level`, or of the class.
    pub(super) fn first_of_level(
        &self,
        entities: &Entities,
        level: Option<GroupIndex>,
    ) -> Option<EntityRef> {
        self.tree(entities, level).leftmost()
    }

    /// Links an entity in the tree above it, and also the groups above if it is their first waiting
    /// member.
    fn link(&mut self, entities: &mut Entities, mut at: EntityRef, key: SchedKey) {
        let mut key = key;
        loop {
            let parent = entities[at].parent;
            self.with_tree(entities, parent, |tree, entities| {
                tree.insert(entities, at, key);
            });
            let Some(group) = parent else {
                return;
            };
            let was_empty = entities.se(group).allowed == 0;
            let has_changed = update_allowed(entities, group);
            if entities[group].throttled {
                return;
            }
            if !was_empty {
                if has_changed {
                    self.refresh(entities, group);
                }
                return;
            }
            at = group.into();
            key.key = entities.se(group).vruntime;
        }
    }

    /// Unlinks an entity, and also the groups above if it was their last waiting member.
    fn unlink(&mut self, entities: &mut Entities, mut at: EntityRef) {
        loop {
            let parent = entities[at].parent;
            self.with_tree(entities, parent, |tree, entities| {
                tree.remove(entities, at);
            });
            let Some(group) = parent else {
                return;
            };
            let has_changed = update_allowed(entities, group);
            if entities[group].throttled {
                self.unthrottle_if_idle(entities, group);
                return;
            }
            if !entities[group].ready.is_empty() {
                if has_changed {
                    self.refresh(entities, group);
                }
                return;
            }
            at = group.into();
        }
    }

    /// Updates the trees above a linked group after its allowed slots have changed.
    fn refresh(&mut self, entities: &mut Entities, mut group: GroupIndex) {
        loop {
            let parent = entities.se(group).parent;
            self.with_tree(entities, parent, |tree, entities| {
                tree.refresh(entities, group.into());
            });
            let Some(above) = parent else {
                return;
            };
            if !update_allowed(entities, above) || entities[above].throttled {
                return;
            }
            group = above;
        }
    }
}

/// Updates which slots the waiting members of a group may use, and returns whether that has
/// changed.
fn update_allowed(entities: &mut Entities, group: GroupIndex) -> bool {
    let allowed = entities[group].ready.allowed(entities);
    core::mem::replace(&mut entities.se_mut(group).allowed, allowed) != allowed
}

/// Picking.
impl RunQueue {
    /// Returns the first context that may run on one of `slots`, a bit each. O(log n).
    pub(super) fn pick_next(&self, entities: &Entities, slots: u16) -> Option<ContextIndex> {
        descend(entities, self.ready.first(entities, slots)?, slots)
    }

    /// Returns the first waiting entity of a level, other than `but`, and its place, if each entity
    /// for which `spends` returns a time were charged for that time. O(k log n) with k such
    /// entities.
    pub(super) fn first_after_charge(
        &self,
        entities: &Entities,
        (level, but): (Option<GroupIndex>, Option<EntityRef>),
        slots: u16,
        spends: &impl Fn(EntityRef) -> Option<Duration>,
    ) -> Option<(SchedKey, EntityRef)> {
        let tree = self.tree(entities, level);
        let mut next = tree.first(entities, slots);
        let mut first: Option<(SchedKey, EntityRef)> = None;
        while let Some(at) = next {
            let mut key = entities[at].node.sched_key();
            let span = spends(at);
            if let Some(span) = span {
                key.key = entities[at].vruntime_after(span);
            }
            if but != Some(at) && first.is_none_or(|(least, _)| key < least) {
                first = Some((key, at));
            }
            // A charge only moves an entity back, so that no later entity comes before this one.
            next = span.and_then(|_| tree.after(entities, at, slots));
        }
        first
    }

    /// Returns the first context below an entity, if entities were charged likewise.
    pub(super) fn descend_after_charge(
        &self,
        entities: &Entities,
        mut at: EntityRef,
        slots: u16,
        spends: &impl Fn(EntityRef) -> Option<Duration>,
    ) -> Option<ContextIndex> {
        loop {
            match entities.kind(at) {
                EntityKind::Context(ctx) => return Some(ctx),
                EntityKind::Group(group) => {
                    let level = (Some(group), None);
                    at = self.first_after_charge(entities, level, slots, spends)?.1;
                }
            }
        }
    }

    /// Returns the first context that may run on one of `slots` and is not in `taken`. O(k log n)
    /// with k contexts taken.
    pub(super) fn pick_next_but(
        &self,
        entities: &Entities,
        slots: u16,
        taken: &[Option<ContextIndex>],
    ) -> Option<ContextIndex> {
        let mut next = self.pick_next(entities, slots);
        while let Some(ctx) = next.filter(|ctx| taken.contains(&Some(*ctx))) {
            next = self.pick_after(entities, ctx.into(), slots);
        }
        next
    }

    /// Returns the first context after a waiting entity, in the tree above that entity or in the
    /// trees further up. O(log n).
    pub(super) fn pick_after(
        &self,
        entities: &Entities,
        mut at: EntityRef,
        slots: u16,
    ) -> Option<ContextIndex> {
        loop {
            let parent = entities[at].parent;
            let tree = self.tree(entities, parent);
            if let Some(next) = tree.after(entities, at, slots) {
                return descend(entities, next, slots);
            }
            at = parent?.into();
        }
    }

    /// Returns the first context in the tree above `entity` that `entity` does not compete for.
    /// O(log n).
    pub(super) fn pick_sibling(
        &self,
        entities: &Entities,
        entity: EntityRef,
        slots: u16,
    ) -> Option<ContextIndex> {
        let first = self.first_sibling(entities, entity, slots)?;
        descend(entities, first, slots)
    }

    /// Returns the first entity that waits beside `entity` for one of `slots`. O(log n).
    pub(super) fn first_sibling(
        &self,
        entities: &Entities,
        entity: EntityRef,
        slots: u16,
    ) -> Option<EntityRef> {
        let tree = self.tree(entities, entities[entity].parent);
        let first = tree.first(entities, slots)?;
        match first == entity {
            true => tree.after(entities, entity, slots),
            false => Some(first),
        }
    }
}

/// Returns the first context below an entity that may run on one of `slots`.
fn descend(entities: &Entities, mut at: EntityRef, slots: u16) -> Option<ContextIndex> {
    loop {
        match entities.kind(at) {
            EntityKind::Context(ctx) => return Some(ctx),
            EntityKind::Group(group) => at = entities[group].ready.first(entities, slots)?,
        }
    }
}

/// Throttling.
impl RunQueue {
    /// Adds a context, which is in no queue, to the throttled queue until `at`. O(log n).
    pub(super) fn throttle(&mut self, entities: &mut Entities, ctx: ContextIndex, at: Time) {
        entities[ctx].linked = Linked::Throttled;
        self.link_throttled(entities, ctx.into(), at);
    }

    fn link_throttled(&mut self, entities: &mut Entities, at: EntityRef, time: Time) {
        let key = SchedKey {
            rank: 0,
            key: time.as_ns(),
            turn: self.next_turn(),
        };
        self.throttled.insert(entities, at, key);
    }

    /// Takes a group, with all of its members, out of the ready queue until `at`. O(log n).
    pub(super) fn throttle_group(&mut self, entities: &mut Entities, group: GroupIndex, at: Time) {
        if entities[group].throttled {
            self.throttled.remove(entities, group.into());
        } else {
            self.unlink_group(entities, group);
            entities[group].throttled = true;
            self.nr_throttled_groups += 1;
        }
        self.link_throttled(entities, group.into(), at);
    }

    /// Makes a context that does not compete through its group wait behind the group until the
    /// group is no longer throttled. The context is in the ready queue, or in no queue. O(log n).
    pub(super) fn put_behind(
        &mut self,
        entities: &mut Entities,
        ctx: ContextIndex,
        (rank, key): (u8, u64),
    ) {
        let at = ctx.into();
        let key = if entities[ctx].is_ready() {
            let key = entities.se(ctx).node.sched_key();
            self.waiting.remove(entities, at);
            self.unlink(entities, at);
            key
        } else {
            let turn = self.next_turn();
            SchedKey { rank, key, turn }
        };
        entities[ctx].linked = Linked::Behind;
        let group = entities[ctx].group;
        let mut behind = entities[group].behind;
        behind.insert(entities, at, key);
        entities[group].behind = behind;
    }

    /// Makes a throttled group compete again. O(log n).
    pub(super) fn unthrottle_group(&mut self, entities: &mut Entities, group: GroupIndex) {
        if !core::mem::take(&mut entities[group].throttled) {
            return;
        }
        self.throttled.remove(entities, group.into());
        self.nr_throttled_groups -= 1;
        if let Some(first) = entities[group].ready.leftmost() {
            let rank = entities[first].node.sched_key().rank;
            let turn = self.next_turn();
            let key = SchedKey { rank, key: 0, turn };
            self.link_group(entities, group, key);
        }
        self.follow_up(entities, group);
    }

    /// Ends the throttling of a group in which no context waits any more.
    fn unthrottle_if_idle(&mut self, entities: &mut Entities, group: GroupIndex) {
        let idle = entities[group].ready.is_empty() && entities[group].behind.is_empty();
        if entities[group].throttled && idle {
            self.unthrottle_group(entities, group);
        }
    }

    /// Lets the next context that its group has kept back wait for a slot, unless the group is
    /// throttled. One context follows another, so that a group at its cap costs others little.
    fn follow_up(&mut self, entities: &mut Entities, group: GroupIndex) {
        if entities[group].throttled {
            return;
        }
        let mut behind = entities[group].behind;
        let Some(EntityKind::Context(next)) = behind.leftmost().map(|at| entities.kind(at)) else {
            return;
        };
        let key = entities.se(next).node.sched_key();
        behind.remove(entities, next.into());
        entities[group].behind = behind;
        self.link_ready(entities, next, key);
    }

    /// Returns the entity that is unthrottled next, and when. O(1).
    pub(super) fn next_throttled(&self, entities: &Entities) -> Option<(EntityKind, Time)> {
        let first = self.throttled.leftmost()?;
        let at = Time::from_ns(entities[first].node.key());
        Some((entities.kind(first), at))
    }

    /// Returns whether a throttled group is above a context of the ready queue.
    pub(super) fn is_hidden(&self, entities: &Entities, ctx: ContextIndex) -> bool {
        if self.nr_throttled_groups == 0 {
            return false;
        }
        let parent = entities.se(ctx).parent;
        parent.is_some_and(|parent| {
            entities
                .lineage(parent)
                .any(|group| entities[group].throttled)
        })
    }
}

/// Hints.
impl RunQueue {
    /// Adds a context without a job to those that have announced a job, for the time `at`.
    /// O(log n).
    pub(super) fn link_hint(
        &mut self,
        entities: &mut Entities,
        ctx: ContextIndex,
        at: Time,
        is_urgent: bool,
    ) {
        let key = SchedKey {
            rank: 0,
            key: at.as_ns(),
            turn: self.next_turn(),
        };
        let (tree, linked) = if is_urgent {
            (&mut self.urgent_hints, Linked::UrgentHint)
        } else {
            (&mut self.common_hints, Linked::CommonHint)
        };
        tree.insert(entities, ctx.into(), key);
        entities[ctx].linked = linked;
    }

    /// Returns whether the class has a pending hint.
    pub(super) fn has_hints(&self) -> bool {
        !self.urgent_hints.is_empty() || !self.common_hints.is_empty()
    }
}
