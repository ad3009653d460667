// SPDX-License-Identifier: GPL-2.0

//! The values that the scheduler and its caller exchange: times, names, parameters, reports.

mod config;
mod ids;
mod job;
mod order;
mod params;
mod run;
mod statistics;
mod status;
mod time;

use core::num::NonZeroU32;

pub use config::{CardConfig, ContextConfig, PreemptGranularity, Profile, SlotConfig};
pub use ids::{ContextId, GroupKey, GroupPath, SlotId, MAX_SLOTS};
pub use job::{Failure, JobState, NewJob, PastJobs, Refusal, WaitReason, Wake};
pub use order::{LeftReason, NextRun, Order, RunRecord, Stop};
pub use params::{GroupSettings, Params, PolicyKind, Urgency};
pub use run::{EndReason, LoadCost, PauseCause, RunEnd, StartTimes};
pub use statistics::{GroupStats, SlotState, SlotStats, Stats};
pub use status::{Phase, Status};
pub use time::{Duration, Time};

/// Index of a context, or of a group that competes for contexts, in the table of entities. Contexts
/// come first. An index is made only for a place that exists, and tables keep their lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntityIndex(
    /// The index plus one, so that an `Option` takes no more space.
    NonZeroU32,
);

impl EntityIndex {
    pub(super) const fn new(at: usize) -> Self {
        // CAST: tables are far shorter than 2^31 places.
        Self(NonZeroU32::MIN.saturating_add(at as u32))
    }

    /// Returns the index of a context that exists.
    pub(super) const fn of(ctx: ContextId) -> Self {
        Self::new(ctx.index())
    }

    pub(super) const fn at(self) -> usize {
        (self.0.get() - 1) as usize
    }
}

/// Index of a group in the table of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupIndex(NonZeroU32);

impl GroupIndex {
    pub(super) const fn new(at: usize) -> Self {
        // CAST: as above.
        Self(NonZeroU32::MIN.saturating_add(at as u32))
    }

    pub(super) const fn at(self) -> usize {
        (self.0.get() - 1) as usize
    }
}

/// A class of slots: the number of its first slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class(u8);

impl Class {
    pub(super) const fn of(first: SlotId) -> Self {
        // CAST: below 8.
        Self(first.index() as u8)
    }

    /// Returns the class of a stored number.
    pub(super) const fn from_number(number: u8) -> Self {
        Self(number)
    }

    pub(super) const fn number(self) -> u8 {
        self.0
    }

    pub(super) const fn at(self) -> usize {
        (self.0 & 7) as usize
    }

    pub(super) const fn bit(self) -> u8 {
        1 << (self.0 & 7)
    }
}

/// Returns a span of time in ns, for what may become a debt.
pub(super) fn signed(span: Duration) -> i64 {
    i64::try_from(span.as_ns()).unwrap_or(i64::MAX)
}

/// Iterates over the slots whose bit is set in `mask`, lowest first.
pub(super) fn slots_in(mask: u8) -> impl Iterator<Item = SlotId> {
    let mut left = mask;
    core::iter::from_fn(move || {
        // CAST: at most 8, which is no slot.
        let slot = SlotId::new(left.trailing_zeros() as u8)?;
        left &= left - 1;
        Some(slot)
    })
}

/// Iterates over the classes whose bit is set in `mask`, lowest first.
pub(super) fn classes_in(mask: u8) -> impl Iterator<Item = Class> {
    slots_in(mask).map(Class::of)
}

/// The first criterion of the order in a class: work of a lower rank preempts work of a higher rank
/// at once, under every policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// A reservation that is in force: it was admitted, so it can go before all others.
    Reserved,
    /// Latency-critical work.
    Critical,
    /// The rest.
    #[default]
    BestEffort,
}

impl Rank {
    /// All ranks, the first to run first.
    pub(super) const ALL: [Self; 3] = [Self::Reserved, Self::Critical, Self::BestEffort];

    /// Returns the rank of a context that has no reservation in force.
    pub(super) const fn of(params: &Params) -> Self {
        match params.urgency {
            Urgency::LatencyCritical => Self::Critical,
            Urgency::BestEffort => Self::BestEffort,
        }
    }
}
