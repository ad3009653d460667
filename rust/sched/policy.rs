// SPDX-License-Identifier: GPL-2.0

//! Which context goes first and for how long: the policies.
//!
//! A policy keeps no state of its own: what it knows of a context is in the context, so it can be
//! exchanged while jobs run. The starvation boost (`boost.rs`) and limits (`limit.rs`) work under
//! every policy.

use core::cmp::Ordering;

use super::context::SchedContext;
use super::{Duration, Params, Time, Urgency};

/// How a card shares its slots. One for all classes of a card;
/// [`Scheduler::set_policy`](super::Scheduler::set_policy).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// Time on slots in proportion to the weights of groups, and of the contexts of a group.
    #[default]
    Fair,
    /// One slice each, in turn.
    RoundRobin,
    /// The highest priority first, at once; equals take turns.
    Priority,
    /// Earliest deadline first for contexts with a reservation, weighted fair for what is left.
    Deadline,
}

/// When a job that runs makes way for one that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preempt {
    /// At once.
    Now,
    /// When its slice is over.
    AtSliceEnd,
    /// When its slice is over, and its entity is not behind the one that waits any more.
    AtVruntime,
    /// Not for this one.
    Never,
}

/// Of two that differ, the lower value goes first, at once.
fn lower_first<T: Ord>(runs: T, waits: T) -> Option<Preempt> {
    match waits.cmp(&runs) {
        Ordering::Less => Some(Preempt::Now),
        Ordering::Equal => None,
        Ordering::Greater => Some(Preempt::Never),
    }
}

/// Rank of contexts with a reservation: their load is admitted, so it can go before all else.
const RANK_RESERVED: u8 = 0;
/// Rank of latency-critical contexts.
const RANK_LC: u8 = 1;
/// Rank of best-effort contexts.
const RANK_BE: u8 = 2;

/// What a policy decides. All of it is O(1).
trait Policy {
    /// Returns whether a context competes through its group, so that time is shared between groups
    /// first.
    fn by_group(&self, ctx: &SchedContext) -> bool;

    /// Returns what a context of that virtual time is ordered by while it waits; lower goes first,
    /// equals in the order in which they came.
    fn key(&self, ctx: &SchedContext, vruntime: u64) -> u64;

    /// Returns when `runs` makes way for `waits`, which is of the same rank.
    fn preempt(&self, runs: &SchedContext, waits: &SchedContext) -> Preempt;
}

/// Weighted fair: each entity has a virtual time that passes while it is on a slot, faster the
/// lower its weight, and the one with the least virtual time goes first. A job that is still behind
/// the next one at the end of its slice runs on until it is not: a switch that would be taken back
/// at once is not made.
struct Fair;

impl Policy for Fair {
    fn by_group(&self, _: &SchedContext) -> bool {
        true
    }

    fn key(&self, _: &SchedContext, vruntime: u64) -> u64 {
        vruntime
    }

    fn preempt(&self, _: &SchedContext, _: &SchedContext) -> Preempt {
        Preempt::AtVruntime
    }
}

struct RoundRobin;

impl Policy for RoundRobin {
    fn by_group(&self, _: &SchedContext) -> bool {
        false
    }

    fn key(&self, _: &SchedContext, _: u64) -> u64 {
        0
    }

    fn preempt(&self, _: &SchedContext, _: &SchedContext) -> Preempt {
        Preempt::AtSliceEnd
    }
}

struct Priority;

impl Policy for Priority {
    fn by_group(&self, _: &SchedContext) -> bool {
        false
    }

    fn key(&self, ctx: &SchedContext, _: u64) -> u64 {
        (Params::PRIORITY_MAX - ctx.params.priority.min(Params::PRIORITY_MAX)).into()
    }

    fn preempt(&self, runs: &SchedContext, waits: &SchedContext) -> Preempt {
        lower_first(waits.params.priority, runs.params.priority).unwrap_or(Preempt::AtSliceEnd)
    }
}

struct Deadline;

impl Deadline {
    fn deadline(ctx: &SchedContext) -> Option<Time> {
        let params = &ctx.params;
        (params.budget != Duration::ZERO).then(|| ctx.bandwidth.deadline(params))
    }
}

impl Policy for Deadline {
    fn by_group(&self, ctx: &SchedContext) -> bool {
        ctx.params.budget == Duration::ZERO
    }

    fn key(&self, ctx: &SchedContext, vruntime: u64) -> u64 {
        Self::deadline(ctx).map_or(vruntime, Time::as_ns)
    }

    fn preempt(&self, runs: &SchedContext, waits: &SchedContext) -> Preempt {
        match (Self::deadline(runs), Self::deadline(waits)) {
            (Some(runs), Some(waits)) => lower_first(runs, waits).unwrap_or(Preempt::Never),
            _ => Preempt::AtVruntime,
        }
    }
}

impl PolicyKind {
    fn policy(self) -> &'static dyn Policy {
        match self {
            Self::Fair => &Fair,
            Self::RoundRobin => &RoundRobin,
            Self::Priority => &Priority,
            Self::Deadline => &Deadline,
        }
    }

    /// Returns whether virtual times decide.
    pub(super) fn is_fair(self) -> bool {
        matches!(self, Self::Fair | Self::Deadline)
    }

    /// Returns whether a context competes through its group.
    pub(super) fn by_group(self, ctx: &SchedContext) -> bool {
        self.policy().by_group(ctx)
    }

    /// Returns whether a context has a reservation that is in force.
    pub(super) fn reserves(self, ctx: &SchedContext) -> bool {
        self == Self::Deadline && ctx.params.budget != Duration::ZERO
    }

    /// Returns the rank of a context, which comes before all keys: latency-critical work goes first
    /// under every policy, but for reservations.
    pub(super) fn rank(self, ctx: &SchedContext) -> u8 {
        match ctx.params.urgency {
            _ if self.reserves(ctx) => RANK_RESERVED,
            Urgency::LatencyCritical => RANK_LC,
            Urgency::BestEffort => RANK_BE,
        }
    }

    /// Returns whether the work of a context is more than best-effort.
    pub(super) fn is_urgent(self, ctx: &SchedContext) -> bool {
        self.rank(ctx) < RANK_BE
    }

    /// Returns rank and key of a context that waits, lower first.
    pub(super) fn place(self, ctx: &SchedContext, vruntime: u64) -> (u8, u64) {
        (self.rank(ctx), self.policy().key(ctx, vruntime))
    }

    /// Returns when `runs` makes way for `waits`.
    pub(super) fn preempt(self, runs: &SchedContext, waits: &SchedContext) -> Preempt {
        lower_first(self.rank(runs), self.rank(waits))
            .unwrap_or_else(|| self.policy().preempt(runs, waits))
    }

    /// Returns whether the work of `runs` is best-effort, and preempted at once by that of `comes`.
    pub(super) fn yields_to(self, runs: &SchedContext, comes: &SchedContext) -> bool {
        !self.is_urgent(runs) && self.preempt(runs, comes) == Preempt::Now
    }
}
