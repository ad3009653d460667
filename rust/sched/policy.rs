// SPDX-License-Identifier: GPL-2.0

//! Which context goes first and for how long: the policies.
//!
//! A policy keeps no state of its own: what it knows of a context is in the context, so the policy
//! can be changed while jobs run. The starvation boost (`boost.rs`) and limits (`limit.rs`) work
//! under every policy.

use core::cmp::Ordering;

use super::context::SchedContext;
use super::{Duration, Params, Urgency};

/// How a card shares its slots. All classes of a card have the same policy;
/// [`Scheduler::set_policy`](super::Scheduler::set_policy).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// Time on slots in proportion to the weights of groups, and of the contexts of a group: each
    /// entity has a virtual time that passes while it is on a slot, faster the lower its weight,
    /// and the entity with the least virtual time goes first.
    #[default]
    Fair,
    /// One slice each, in turn.
    RoundRobin,
    /// The highest priority first, at once; equals take turns.
    Priority,
    /// Earliest deadline first for contexts with a reservation, weighted fair for what is left.
    Deadline,
}

/// When a running job is preempted by a waiting job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preempt {
    /// At once.
    Now,
    /// When its slice is over.
    AtSliceEnd,
    /// When its slice is over, and its entity is no longer behind that of the waiting job.
    AtVruntime,
    /// Not by this job.
    Never,
}

/// The limit that holds for a context itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    None,
    Reservation,
    /// Percent of a slot.
    Cap(u64),
}

/// Compares two values, the lower of which goes first, at once; `None`: they are equal.
fn lower_first<T: Ord>(runs: T, waits: T) -> Option<Preempt> {
    match waits.cmp(&runs) {
        Ordering::Less => Some(Preempt::Now),
        Ordering::Equal => None,
        Ordering::Greater => Some(Preempt::Never),
    }
}

/// Rank of contexts with a reservation: their load was admitted, so they can go before all others.
const RANK_RESERVED: u8 = 0;
/// Rank of latency-critical contexts.
const RANK_LC: u8 = 1;
/// Rank of best-effort contexts.
const RANK_BE: u8 = 2;

impl PolicyKind {
    /// Returns whether virtual times decide which context goes first.
    pub(super) fn is_fair(self) -> bool {
        matches!(self, Self::Fair | Self::Deadline)
    }

    /// Returns whether a context competes through its group, so that time is shared between groups
    /// first.
    pub(super) fn by_group(self, ctx: &SchedContext) -> bool {
        self.is_fair() && !self.reserves(ctx)
    }

    /// Returns whether a context has a reservation that is in force.
    pub(super) fn reserves(self, ctx: &SchedContext) -> bool {
        self == Self::Deadline && ctx.params.budget != Duration::ZERO
    }

    /// Returns the limit that holds for a context itself.
    pub(super) fn limit(self, ctx: &SchedContext) -> Limit {
        match ctx.params.cap {
            _ if self.reserves(ctx) => Limit::Reservation,
            0 | 100.. => Limit::None,
            cap => Limit::Cap(cap.into()),
        }
    }

    /// Returns the rank of a context, which comes before all keys: under every policy,
    /// latency-critical work goes first, after reservations only.
    pub(super) fn rank(self, ctx: &SchedContext) -> u8 {
        match ctx.params.urgency {
            _ if self.reserves(ctx) => RANK_RESERVED,
            Urgency::LatencyCritical => RANK_LC,
            Urgency::BestEffort => RANK_BE,
        }
    }

    /// Returns whether the work of a context ranks above best-effort.
    pub(super) fn is_urgent(self, ctx: &SchedContext) -> bool {
        self.rank(ctx) < RANK_BE
    }

    /// Returns what a context with that virtual time is ordered by while it waits: its rank, and
    /// then its key. Lower goes first, and equals go in the order of arrival.
    pub(super) fn place(self, ctx: &SchedContext, vruntime: u64) -> (u8, u64) {
        let key = match self {
            Self::Deadline if self.reserves(ctx) => ctx.bandwidth.deadline(&ctx.params).as_ns(),
            Self::Fair | Self::Deadline => vruntime,
            Self::RoundRobin => 0,
            Self::Priority => Params::PRIORITY_MAX
                .saturating_sub(ctx.params.priority)
                .into(),
        };
        (self.rank(ctx), key)
    }

    /// Returns when `runs` is preempted by `waits`.
    pub(super) fn preempt(self, runs: &SchedContext, waits: &SchedContext) -> Preempt {
        lower_first(self.rank(runs), self.rank(waits))
            .unwrap_or_else(|| self.preempt_equal(runs, waits))
    }

    /// Returns when `runs` is preempted by `waits`, which is of the same rank. Under a fair policy,
    /// a job that is still behind the next one at the end of its slice runs on until it is not: a
    /// switch that would be undone at once is not made.
    fn preempt_equal(self, runs: &SchedContext, waits: &SchedContext) -> Preempt {
        match self {
            Self::Deadline if self.reserves(runs) => {
                let deadline = |ctx: &SchedContext| ctx.bandwidth.deadline(&ctx.params);
                lower_first(deadline(runs), deadline(waits)).unwrap_or(Preempt::Never)
            }
            Self::Fair | Self::Deadline => Preempt::AtVruntime,
            Self::RoundRobin => Preempt::AtSliceEnd,
            Self::Priority => lower_first(waits.params.priority, runs.params.priority)
                .unwrap_or(Preempt::AtSliceEnd),
        }
    }

    /// Returns whether the work of `runs` is best-effort, and is preempted at once by that of
    /// `comes`.
    pub(super) fn yields_to(self, runs: &SchedContext, comes: &SchedContext) -> bool {
        !self.is_urgent(runs) && self.preempt(runs, comes) == Preempt::Now
    }
}
