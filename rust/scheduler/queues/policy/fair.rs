// SPDX-License-Identifier: GPL-2.0

//! Weighted fair sharing. Each entity has a virtual time, which passes while a context of the
//! entity is on a slot, the faster the lower its weight; the entity with the least virtual time
//! goes first, at each level: groups share the class, and contexts share their group.
//!
//! An entity that was kept from running falls behind. How far it may be behind is limited, because
//! it would have slots for itself until it is even: when it begins to want a slot, when it is
//! linked, against each sibling that leaves a slot, and while it runs, against the sibling whose
//! turn is next.

use super::super::entity::Entity;
use super::super::store::Store;
use super::{Policy, Preempt};
use crate::scheduler::values::{Duration, EntityIndex, Params, SlotId};

/// How far behind its siblings an entity that begins to want a slot may be, in ns: a context that
/// has slept for a while is served soon, and sleeping earns no more than that.
const CREDIT: u64 = Duration::from_ms(2).as_ns();
/// How far behind a sibling an entity may be, beyond one turn of the sibling on each slot.
const LAG: u64 = Duration::from_ms(20).as_ns();

/// The policy `fair`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Fair;

impl Policy for Fair {
    #[inline]
    fn key(&self, entity: &Entity) -> u64 {
        entity.vruntime
    }

    #[inline]
    fn preempt(&self, _: &Entity, _: &Entity) -> Preempt {
        Preempt::AtVruntime
    }

    #[inline]
    fn slice(&self, params: &Params) -> Duration {
        params.timeslice
    }

    #[inline]
    fn enqueue(&self, store: &mut Store, ctx: EntityIndex, wakes: bool) {
        if wakes {
            self.place(store, ctx);
        } else {
            self.limit_lag_at_home(store, ctx);
        }
    }

    #[inline]
    fn running(&self, store: &mut Store, slot: SlotId, ctx: EntityIndex) {
        store.curr[slot.index()] = Some(ctx);
    }

    fn stopped(&self, store: &mut Store, slot: SlotId, ctx: EntityIndex, turn: Duration) {
        if store.curr[slot.index()] == Some(ctx) {
            store.curr[slot.index()] = None;
        }
        let mut next = Some(ctx);
        while let Some(at) = next {
            if at != ctx {
                let step = store.virtual_of(at, turn.as_ns());
                let old = &mut store.entities[at].step;
                *old = step.max(*old - *old / 8);
            }
            let level = store.entities[at].home as usize;
            let tree = &store.levels[level].tree;
            let first = tree.first();
            let other = match first == Some(at) {
                true => tree.second(&store.entities),
                false => first,
            };
            if let Some(other) = other {
                // Neither is the leaver far behind who waits, nor is who waits far behind it.
                self.limit_lag(store, other, at);
                self.limit_lag(store, at, other);
            }
            let mut least = store.entities[at].vruntime;
            if let Some(first) = first {
                least = least.min(store.entities[first].vruntime);
            }
            let level = &mut store.levels[level];
            level.min_vruntime = least.max(level.min_vruntime);
            next = level.own;
        }
    }
}

impl Fair {
    /// Returns for how many ns `runs`, which was charged until now, may run until its entity is even
    /// with that of `waits`. How far behind it may be is limited, as for an entity that waits.
    pub(in super::super) fn lag(
        self,
        store: &mut Store,
        runs: EntityIndex,
        waits: EntityIndex,
    ) -> u64 {
        let (own, other) = store.siblings(runs, waits);
        self.limit_lag(store, own, other);
        let behind = store.entities[other].vruntime;
        let behind = behind.saturating_sub(store.entities[own].vruntime);
        if behind == 0 {
            return 0;
        }
        let runs = store.curr.iter().flatten();
        let runs = runs.filter(|&&ctx| store.is_below(ctx, own)).count() as u64;
        let weight = u64::from(store.entities[own].weight);
        behind.saturating_mul(weight) / u64::from(Params::WEIGHT_DEFAULT) / runs.max(1)
    }

    /// Gives a context that begins to want a slot, and each of its groups without another such
    /// context, a virtual time that is not far behind those of its siblings.
    fn place(&self, store: &mut Store, ctx: EntityIndex) {
        let mut next = Some(ctx);
        while let Some(at) = next {
            let home = store.entities[at].home as usize;
            if is_behind(store, at) {
                self.raise_min(store, home);
            }
            let level = &store.levels[home];
            let least = level.min_vruntime.saturating_sub(CREDIT);
            let vruntime = &mut store.entities[at].vruntime;
            *vruntime = least.max(*vruntime);
            next = level.own.filter(|_| level.nr_active == 0);
        }
    }

    /// Returns whether the virtual times of runs count for a context that begins to want a slot.
    pub(in super::super) fn needs_runs(self, store: &Store, ctx: EntityIndex) -> bool {
        let mut next = Some(ctx);
        while let Some(at) = next.filter(|&at| !is_behind(store, at)) {
            let level = &store.levels[store.entities[at].home as usize];
            next = level.own.filter(|_| level.nr_active == 0);
        }
        next.is_some()
    }

    /// Limits how far an entity that is about to be linked is behind the first of its siblings.
    #[inline]
    pub(super) fn limit_lag_at_home(&self, store: &mut Store, at: EntityIndex) {
        let home = store.entities[at].home as usize;
        if let Some(first) = store.levels[home].tree.first() {
            self.limit_lag(store, at, first);
        }
    }

    /// Limits how far an entity is behind a sibling, whatever has kept the entity from running.
    #[inline]
    fn limit_lag(&self, store: &mut Store, at: EntityIndex, sibling: EntityIndex) {
        let other = &store.entities[sibling];
        if store.entities[at].vruntime.saturating_add(LAG) >= other.vruntime {
            return;
        }
        let most = LAG.saturating_add(store.width.saturating_mul(other.step));
        let least = other.vruntime.saturating_sub(most);
        if store.entities[at].vruntime < least {
            store.set_vruntime(at, least);
        }
    }

    /// Raises the least virtual time of a level to that of its members that run, and of the first
    /// that waits.
    fn raise_min(&self, store: &mut Store, level: usize) {
        let first = store.levels[level].tree.first();
        let mut least = first.map_or(u64::MAX, |first| store.entities[first].vruntime);
        let rank = store.levels[level].rank;
        for next in store.curr {
            let mut next = next.filter(|&ctx| store.entities[ctx].rank == rank);
            while let Some(at) = next {
                let entity = &store.entities[at];
                if entity.home as usize == level {
                    least = least.min(entity.vruntime);
                }
                next = store.own(at);
            }
        }
        if least != u64::MAX {
            let min = &mut store.levels[level].min_vruntime;
            *min = least.max(*min);
        }
    }
}

/// Returns whether an entity that begins to want a slot may be too far behind its siblings, whatever
/// the virtual times of those are that run.
fn is_behind(store: &Store, at: EntityIndex) -> bool {
    let entity = &store.entities[at];
    let level = &store.levels[entity.home as usize];
    let is_behind = |first| {
        let most = level.min_vruntime.max(store.entities[first].vruntime);
        entity.vruntime.saturating_add(CREDIT) < most
    };
    level.nr_active != 0 && level.tree.first().is_none_or(is_behind)
}
