// SPDX-License-Identifier: GPL-2.0

//! Policies: the order of contexts that wait in one rank, and when a context that waits ends the
//! run of another. Ranks, the starvation boost and caps are the same under every policy.

mod fair;
mod priority;

use super::entity::Entity;
use super::store::Store;
use crate::scheduler::values::{Duration, EntityIndex, Params, PolicyKind, SlotId};
use fair::Fair;
use priority::Priority;

/// When a job that runs is preempted by a job that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super::super) enum Preempt {
    /// At once.
    Now,
    /// When its slice is over.
    AtSliceEnd,
    /// When its slice is over, and its entity is no longer behind that of the waiting job.
    AtVruntime,
    /// Not by this job.
    Never,
}

/// A policy. The run queue stores the keys, so a policy never walks a tree.
pub(super) trait Policy {
    /// Returns what entities of a level are ordered by while they wait; the lower key goes first.
    fn key(&self, entity: &Entity) -> u64;

    /// Returns when `runs` is preempted by `waits`, which is of the same rank.
    fn preempt(&self, runs: &Entity, waits: &Entity) -> Preempt;

    /// Returns the slice of a context.
    fn slice(&self, params: &Params) -> Duration;

    /// Notes that a context is about to be linked. `wakes`: it did not want a slot before, and the
    /// runs of its class were charged until now.
    fn enqueue(&self, store: &mut Store, ctx: EntityIndex, wakes: bool);

    /// Notes that a context runs on a slot.
    fn running(&self, store: &mut Store, slot: SlotId, ctx: EntityIndex);

    /// Notes that a context has left a slot after a turn of `turn`. The run was charged.
    fn stopped(&self, store: &mut Store, slot: SlotId, ctx: EntityIndex, turn: Duration);
}

/// The policy in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Active {
    Fair(Fair),
    Priority(Priority),
}

impl Default for Active {
    fn default() -> Self {
        Self::Fair(Fair)
    }
}

impl Active {
    /// Returns the policy of a kind. Under `deadline`, it orders what has no reservation.
    pub(super) const fn of(kind: PolicyKind) -> Self {
        match kind {
            PolicyKind::Fair | PolicyKind::Deadline => Self::Fair(Fair),
            PolicyKind::Priority => Self::Priority(Priority::new(true)),
            PolicyKind::RoundRobin => Self::Priority(Priority::new(false)),
        }
    }

    /// Returns whether contexts compete through their groups, in virtual time.
    #[inline]
    pub(super) const fn is_fair(self) -> bool {
        matches!(self, Self::Fair(_))
    }
}

/// Calls the policy in force.
impl Policy for Active {
    #[inline]
    fn key(&self, entity: &Entity) -> u64 {
        match self {
            Self::Fair(policy) => policy.key(entity),
            Self::Priority(policy) => policy.key(entity),
        }
    }

    #[inline]
    fn preempt(&self, runs: &Entity, waits: &Entity) -> Preempt {
        match self {
            Self::Fair(policy) => policy.preempt(runs, waits),
            Self::Priority(policy) => policy.preempt(runs, waits),
        }
    }

    #[inline]
    fn slice(&self, params: &Params) -> Duration {
        match self {
            Self::Fair(policy) => policy.slice(params),
            Self::Priority(policy) => policy.slice(params),
        }
    }

    #[inline]
    fn enqueue(&self, store: &mut Store, ctx: EntityIndex, wakes: bool) {
        match self {
            Self::Fair(policy) => policy.enqueue(store, ctx, wakes),
            Self::Priority(policy) => policy.enqueue(store, ctx, wakes),
        }
    }

    #[inline]
    fn running(&self, store: &mut Store, slot: SlotId, ctx: EntityIndex) {
        match self {
            Self::Fair(policy) => policy.running(store, slot, ctx),
            Self::Priority(policy) => policy.running(store, slot, ctx),
        }
    }

    #[inline]
    fn stopped(&self, store: &mut Store, slot: SlotId, ctx: EntityIndex, turn: Duration) {
        match self {
            Self::Fair(policy) => policy.stopped(store, slot, ctx, turn),
            Self::Priority(policy) => policy.stopped(store, slot, ctx, turn),
        }
    }
}
