// SPDX-License-Identifier: GPL-2.0

//! Who goes first and for how long: one policy a file, behind one trait.
//!
//! A policy keeps no state of its own: what it knows of a context stands in the context's entry, what it knows of a class in
//! the class's queue. So it can be exchanged while jobs run.

mod deadline;
mod fair;
mod priority;
mod round_robin;
mod share;

use core::cmp::Ordering;

use super::{Duration, Entry, Urgency};

/// How a card shares its slots. One for all classes of a card; [`Machine::set_policy`](super::Machine::set_policy).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// Time on a slot in proportion to the weights.
    #[default]
    Fair,
    /// One slice each, in turn.
    RoundRobin,
    /// The highest priority first, at once.
    Priority,
    /// Earliest deadline first for contexts with a reservation, weighted fair for what is left.
    Deadline,
    /// To each its share in percent of a slot.
    Share,
}

/// When a job that runs has to make way for one that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// When its slice is used up.
    Slice,
    /// When its slice is used up and it has run for so long since it was last charged.
    After(Duration),
    /// At once.
    Now,
    /// Not for this one.
    Never,
}

impl Turn {
    /// Of two that differ, the lower goes first.
    fn by<T: Ord>(waits: T, runs: T) -> Option<Self> {
        match waits.cmp(&runs) {
            Ordering::Less => Some(Self::Now),
            Ordering::Equal => None,
            Ordering::Greater => Some(Self::Never),
        }
    }
}

/// Rank of contexts with a reservation: their load is admitted, so it can go before all else.
pub(super) const RANK_RESERVED: u8 = 0;
/// Rank of latency-critical contexts.
const RANK_LC: u8 = 1;
/// Rank of the others.
const RANK_BE: u8 = 2;

/// What a policy decides. All of it is O(1).
pub(super) trait Policy {
    /// What a context that begins to wait is ordered by; lower goes first, equals in the order in which they came.
    fn key(&self, entry: &Entry) -> u64;

    /// When `runs` makes way for `waits`, the first that waits for its slot and of the same rank.
    fn turn(&self, runs: &Entry, waits: &Entry) -> Turn;

    /// Does the group of a context stand for it, so that time is shared between groups first?
    fn groups(&self, entry: &Entry) -> bool {
        let _ = entry;
        false
    }

    /// The weight of a context or a group, at least 1: `left` percent of a slot are left by shares, and the groups that
    /// want a slot have the weight `all` together.
    fn weight(&self, entry: &Entry, left: u32, all: u64) -> u32 {
        let _ = (left, all);
        entry.params.weight.into()
    }
}

impl PolicyKind {
    pub(super) fn policy(self) -> &'static dyn Policy {
        match self {
            Self::Fair => &fair::Fair,
            Self::RoundRobin => &round_robin::RoundRobin,
            Self::Priority => &priority::Priority,
            Self::Deadline => &deadline::Deadline,
            Self::Share => &share::Share,
        }
    }

    /// What comes before all keys: latency-critical work goes first under every policy, but for what was admitted.
    pub(super) fn rank(self, entry: &Entry) -> u8 {
        match entry.params.urgency {
            _ if self.reserves(entry) => RANK_RESERVED,
            Urgency::LatencyCritical => RANK_LC,
            Urgency::BestEffort => RANK_BE,
        }
    }

    /// Is its work more than best-effort?
    pub(super) fn is_urgent(self, entry: &Entry) -> bool {
        self.rank(entry) < RANK_BE
    }

    /// Is the work of `runs` best-effort, and preempted at once by that of `comes`?
    pub(super) fn yields_to(self, runs: &Entry, comes: &Entry) -> bool {
        !self.is_urgent(runs) && self.turn(runs, comes) == Turn::Now
    }

    /// What a context that begins to wait is ordered by, lower first.
    pub(super) fn place(self, entry: &Entry) -> (u8, u64) {
        (self.rank(entry), self.policy().key(entry))
    }

    /// When `runs` makes way for `waits`, the first that waits for its slot.
    pub(super) fn turn(self, runs: &Entry, waits: &Entry) -> Turn {
        Turn::by(self.rank(waits), self.rank(runs))
            .unwrap_or_else(|| self.policy().turn(runs, waits))
    }
}
