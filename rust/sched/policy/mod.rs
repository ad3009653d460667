// SPDX-License-Identifier: GPL-2.0

//! Who goes first and for how long: one policy a file, behind one trait.
//!
//! A policy keeps no state of its own: what it knows of a context stands in the context's entry, what it knows of a class in
//! the class's queue. So it can be exchanged while jobs run.

mod fair;
mod round_robin;

use super::{Duration, Entry};

/// How a card shares its slots. One for all classes of a card; [`Machine::set_policy`](super::Machine::set_policy).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// Time on a slot in proportion to the weights.
    #[default]
    Fair,
    /// One slice each, in turn.
    RoundRobin,
}

/// When a job that runs has to make way for one that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// When its slice is used up.
    Slice,
    /// When its slice is used up and it has run for so long since it was last charged.
    After(Duration),
}

/// What a policy decides. All of it is O(1).
pub(super) trait Policy {
    /// What a context that begins to wait is ordered by; lower goes first, equals in the order in which they came.
    fn key(&self, entry: &Entry) -> u64;

    /// When `runs` makes way for `waits`, the first that waits for its slot.
    fn turn(&self, runs: &Entry, waits: &Entry) -> Turn;
}

impl PolicyKind {
    pub(super) fn policy(self) -> &'static dyn Policy {
        match self {
            Self::Fair => &fair::Fair,
            Self::RoundRobin => &round_robin::RoundRobin,
        }
    }
}
