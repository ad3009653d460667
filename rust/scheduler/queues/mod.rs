// SPDX-License-Identifier: GPL-2.0

//! The run queues of a card: for each class and rank an order of the entities that wait, and one
//! for each group of contexts. An entity is a context, or a group in one class and rank; a group is
//! linked among its siblings while one of its contexts waits.
//!
//! A context that waits here is on no slot, and bound to none.

mod bucket;
mod entity;
mod groups;
mod levels;
mod pick;
mod policy;
mod store;
mod tree;

use super::values::{
    Class, Duration, EntityIndex, GroupIndex, Params, PolicyKind, Rank, SlotId, Time, MAX_SLOTS,
};
use crate::array::Array;
use entity::{Entities, TOPS};
pub use entity::{Entity, Level};
pub use groups::{Bin, Group};
pub(super) use groups::{Groups, DEPTH_MAX, REGISTERED_MAX};
pub(super) use policy::Preempt;
use policy::{Active, Policy};
use store::Store;
pub(super) use tree::Tree;

/// Everything that waits for the slots of a card.
#[derive(Debug)]
#[cfg_attr(not(MODULE), derive(Clone, PartialEq, Eq))]
pub(super) struct RunQueue {
    store: Store,
    policy: Active,
    kind: PolicyKind,
    /// Throttled groups, by the time at which they return; by class.
    throttled: [Tree; MAX_SLOTS],
    /// How many entities are contexts.
    contexts: usize,
    turns: u64,
    /// The last pick has moved as many contexts as it may.
    unfinished: bool,
    /// The first free level; zero: none.
    free: u32,
    /// The levels of groups that have no members, and are remembered until their place is needed:
    /// those that have been so for the shortest and the longest time. Zero: none.
    newest: u32,
    oldest: u32,
}

/// Setting up.
impl RunQueue {
    /// Returns empty queues for `contexts` contexts. `entities` has a place for each context and
    /// for each level beyond [`RunQueue::TOPS`]. O(length).
    pub(super) fn new(
        mut entities: Array<Entity>,
        mut levels: Array<Level>,
        contexts: usize,
        width: usize,
    ) -> Self {
        entities.fill(Entity::default());
        levels.fill(Level::default());
        // CAST: tables are far shorter than 2^32 places.
        let len = levels.len() as u32;
        for (at, level) in (0..len).zip(levels.iter_mut()) {
            if (at as usize) < TOPS {
                let [class, rank] = [at as usize / Rank::ALL.len(), at as usize % Rank::ALL.len()];
                // CAST: below 8.
                (level.class, level.rank) = (class as u8, Rank::ALL[rank]);
            } else if at + 1 < len {
                level.next = at + 1;
            }
        }
        Self {
            store: Store {
                entities: Entities(entities),
                levels,
                curr: [None; MAX_SLOTS],
                width: width as u64,
            },
            policy: Active::default(),
            kind: PolicyKind::Fair,
            throttled: [Tree::default(); MAX_SLOTS],
            contexts,
            turns: 0,
            unfinished: false,
            free: if len as usize > TOPS { TOPS as u32 } else { 0 },
            newest: 0,
            oldest: 0,
        }
    }

    /// How many levels there are beyond those of groups.
    pub(super) const TOPS: usize = TOPS;

    pub(super) fn policy(&self) -> PolicyKind {
        self.kind
    }

    /// Puts another policy into force for decisions from now on; `curr`: the contexts on slots.
    /// Contexts that wait are moved by [`RunQueue::renew_level`] and by enqueuing them again.
    pub(super) fn set_policy(&mut self, kind: PolicyKind, curr: [Option<EntityIndex>; MAX_SLOTS]) {
        (self.policy, self.kind) = (Active::of(kind), kind);
        self.store.curr = [None; MAX_SLOTS];
        for (slot, ctx) in super::values::slots_in(u8::MAX).zip(curr) {
            if let Some(ctx) = ctx {
                self.running(slot, ctx);
            }
        }
    }
}

/// Contexts as entities.
impl RunQueue {
    /// Sets what orders a context that is not linked. `allowed`: the slots that it may use, and in
    /// the upper half again if it does not wait together with others of a gang.
    pub(super) fn set(&mut self, ctx: EntityIndex, params: &Params, weight: u16, allowed: u16) {
        let entity = &mut self.store.entities[ctx];
        (entity.weight, entity.priority) = (weight.into(), params.priority);
        entity.node.set_allowed(allowed);
        entity.rank = match self.kind {
            PolicyKind::Deadline if params.budget != Duration::ZERO => Rank::Reserved,
            _ => Rank::of(params),
        };
        let slice = self.policy.slice(params).as_ns();
        self.store.entities[ctx].step = self.store.virtual_of(ctx, slice);
    }

    /// Returns the slots that a context may use.
    #[inline]
    pub(super) fn allowed(&self, ctx: EntityIndex) -> u8 {
        // CAST: the lower half.
        self.store.entities[ctx].node.allowed() as u8
    }

    #[inline]
    pub(super) fn rank(&self, ctx: EntityIndex) -> Rank {
        self.store.entities[ctx].rank
    }

    /// Returns whether a context has a reservation in force: then it competes by its deadline, and
    /// not through its group, of which it is a member all the same.
    #[inline]
    fn is_reserved(&self, ctx: EntityIndex) -> bool {
        self.rank(ctx) == Rank::Reserved
    }

    /// Sets the deadline of a context that is in no queue. Returns whether that is another one.
    #[allow(dead_code, reason = "only reservations need it")]
    pub(super) fn set_deadline(&mut self, ctx: EntityIndex, at: Time) -> bool {
        let deadline = &mut self.store.entities[ctx].deadline;
        core::mem::replace(deadline, at.as_ns()) != at.as_ns()
    }

    /// Returns what a context that waits is ordered by in its rank; the lower key goes first.
    #[inline]
    fn key(&self, entity: &Entity) -> u64 {
        match entity.rank {
            Rank::Reserved => entity.deadline,
            Rank::Critical | Rank::BestEffort => self.policy.key(entity),
        }
    }

    /// Returns the slice of a context under the policy.
    #[inline]
    pub(super) fn slice(&self, params: &Params) -> Duration {
        self.policy.slice(params)
    }

    /// Returns whether a context waits in a queue, or has a hint.
    #[inline]
    pub(super) fn is_linked(&self, ctx: EntityIndex) -> bool {
        self.store.entities[ctx].is_queued()
    }
}

/// Time on slots, and who goes before whom.
impl RunQueue {
    /// Returns whether the runs of a class are to be charged before a context begins to want a slot
    /// there: where that decides its virtual time, or which job makes way.
    pub(super) fn needs_runs(&self, ctx: EntityIndex) -> bool {
        match self.policy {
            Active::Fair(_) if self.rank(ctx) != Rank::BestEffort => true,
            Active::Fair(fair) => fair.needs_runs(&self.store, ctx),
            Active::Priority(_) => false,
        }
    }

    /// Notes that a context begins to want a slot ([`RunQueue::needs_runs`]).
    pub(super) fn wake(&mut self, ctx: EntityIndex) {
        if !self.is_reserved(ctx) {
            self.policy.enqueue(&mut self.store, ctx, true);
        }
        self.count_active(ctx, |active| active + 1);
    }

    /// Notes that a context does not want a slot any more.
    pub(super) fn sleep(&mut self, ctx: EntityIndex) {
        self.count_active(ctx, |active| active - 1);
    }

    fn count_active(&mut self, ctx: EntityIndex, change: impl Fn(u32) -> u32) {
        // Groups do not compete for their reservations.
        let mut next = Some(ctx).filter(|&ctx| !self.is_reserved(ctx));
        while let Some(at) = next {
            let level = &mut self.store.levels[self.store.entities[at].home as usize];
            level.nr_active = change(level.nr_active);
            next = level.own;
        }
    }

    /// Charges a context and its groups for time on a slot.
    pub(super) fn charge(&mut self, ctx: EntityIndex, span: Duration) {
        if self.competes_by_group(ctx) {
            self.store.charge(ctx, span.as_ns(), false);
        }
    }

    /// Gives back time that a context and its groups were charged for, at the same weights.
    pub(super) fn refund(&mut self, ctx: EntityIndex, span: Duration) {
        if self.competes_by_group(ctx) {
            self.store.charge(ctx, span.as_ns(), true);
        }
    }

    /// Notes that a context runs on a slot.
    #[inline]
    pub(super) fn running(&mut self, slot: SlotId, ctx: EntityIndex) {
        match self.is_reserved(ctx) {
            true => self.store.curr[slot.index()] = None,
            false => self.policy.running(&mut self.store, slot, ctx),
        }
    }

    /// Notes that a context has left a slot after a turn of `turn`. The run was charged.
    pub(super) fn stopped(&mut self, slot: SlotId, ctx: EntityIndex, turn: Duration) {
        if !self.is_reserved(ctx) {
            self.policy.stopped(&mut self.store, slot, ctx, turn);
        }
    }

    /// Returns when `runs` is preempted by `waits`.
    #[inline]
    pub(super) fn preempt(&self, runs: EntityIndex, waits: EntityIndex) -> Preempt {
        let (runs, waits) = (&self.store.entities[runs], &self.store.entities[waits]);
        if waits.rank == runs.rank {
            return self.preempt_equal(runs, waits);
        }
        match waits.rank < runs.rank {
            true => Preempt::Now,
            false => Preempt::Never,
        }
    }

    /// Returns when `runs` is preempted by `waits` of the same rank.
    fn preempt_equal(&self, runs: &Entity, waits: &Entity) -> Preempt {
        match runs.rank {
            Rank::Reserved if waits.deadline < runs.deadline => Preempt::Now,
            Rank::Reserved => Preempt::Never,
            Rank::Critical | Rank::BestEffort => self.policy.preempt(runs, waits),
        }
    }

    /// Returns whether the job of a context may preempt others at once.
    #[inline]
    pub(super) fn may_outrank(&self, waits: EntityIndex) -> bool {
        !self.is_fair() || self.rank(waits) != Rank::BestEffort
    }

    /// Returns whether the job of `waits` preempts that of `runs` at once.
    #[inline]
    pub(super) fn outranks(&self, waits: EntityIndex, runs: EntityIndex) -> bool {
        self.preempt(runs, waits) == Preempt::Now
    }

    /// Returns what the order of contexts compares: that which goes last has the largest.
    pub(super) fn place(&self, ctx: EntityIndex) -> u64 {
        let mut top = ctx;
        if self.competes_by_group(ctx) {
            while let Some(own) = self.store.own(top) {
                top = own;
            }
        }
        let key = self.key(&self.store.entities[top]);
        // A key is a virtual time, or the time of a deadline, in ns: far below 2^62.
        ((self.rank(ctx) as u64) << 62) | key.min(u64::MAX >> 2)
    }

    /// Returns how long `runs`, which was charged until now, may run until its entity is even with
    /// that of `waits`; zero where virtual times do not count. How far it may be behind is limited.
    pub(super) fn lag(&mut self, runs: EntityIndex, waits: EntityIndex) -> Duration {
        if self.rank(runs) != self.rank(waits) || self.is_reserved(runs) {
            return Duration::ZERO;
        }
        match self.policy {
            Active::Fair(fair) => Duration::from_ns(fair.lag(&mut self.store, runs, waits)),
            Active::Priority(_) => Duration::ZERO,
        }
    }

    /// Returns whether virtual times decide.
    #[inline]
    pub(super) fn is_fair(&self) -> bool {
        self.policy.is_fair()
    }

    /// Returns whether a context competes through its group, in virtual time.
    #[inline]
    fn competes_by_group(&self, ctx: EntityIndex) -> bool {
        self.policy.is_fair() && !self.is_reserved(ctx)
    }

    /// Lets `next` go before `yields`, which is in no queue.
    pub(super) fn yield_to(&mut self, yields: EntityIndex, next: EntityIndex) {
        if !self.competes_by_group(yields) || self.rank(yields) != self.rank(next) {
            return;
        }
        let (own, other) = self.store.siblings(yields, next);
        let least = self.store.entities[other].vruntime;
        if self.store.entities[own].vruntime < least {
            self.store.set_vruntime(own, least);
        }
    }

    /// Makes a context even with those of its level that want a slot: what it had elsewhere, or
    /// under another policy, does not count.
    pub(super) fn reset_vruntime(&mut self, ctx: EntityIndex) {
        let home = self.store.entities[ctx].home as usize;
        let least = self.store.levels[home].min_vruntime;
        self.store.entities[ctx].vruntime = least;
    }

    /// Returns the classes of a group's levels, a bit each.
    pub(super) fn classes_of(&self, groups: &Groups, at: GroupIndex) -> u8 {
        let levels = self.levels_of(groups, at);
        levels.fold(0, |classes, level| {
            classes | self.store.levels[level as usize].class().bit()
        })
    }

    /// Returns the number of levels, those of classes included.
    pub(super) fn nr_levels(&self) -> u32 {
        // CAST: tables are far shorter than 2^32 places.
        self.store.levels.len() as u32
    }

    /// Returns the level of a class in one rank.
    fn top(class: Class, rank: Rank) -> usize {
        Rank::ALL.len() * class.at() + rank as usize
    }
}
