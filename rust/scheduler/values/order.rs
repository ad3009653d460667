// SPDX-License-Identifier: GPL-2.0

//! Orders and records: how a slot with a relay is told what runs next, and reports what has run
//! (docs/registers.md, Relay).

use super::{ContextId, Duration};

/// What a slot is told to do after the run that is on it, or after the run that has left it vacant.
/// A later order for the same run replaces an earlier one that was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The number of the run that the order follows, modulo 2^32. The card drops an order that
    /// follows any other run.
    pub after: u32,
    /// When the run that the order follows must stop.
    pub stop: Stop,
    /// The context that runs next; `None`: the slot is left vacant.
    pub next: Option<NextRun>,
}

/// When and how a run must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It has stopped: the slot is vacant.
    Vacant,
    /// When it has worked for `after`, at the next boundary from then on if `boundary`; the state
    /// is saved. Time zero: at once, even if the job has not begun to work.
    Paused {
        /// How long it may work, not including its restore.
        after: Duration,
        /// At a boundary.
        boundary: bool,
    },
    /// At once; the state is not saved.
    Dropped,
    /// When the job ends by itself. This withdraws the previous order.
    Never,
}

impl Order {
    /// Returns the order in force for run `after` before any order is posted: the slot becomes
    /// vacant when the run has ended by itself.
    pub(crate) const fn none(after: u32) -> Self {
        let (stop, next) = (Stop::Never, None);
        Self { after, stop, next }
    }
}

/// A context that is named to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextRun {
    /// The context.
    pub ctx: ContextId,
    /// Its job resumes from its snapshot, instead of starting from its beginning.
    pub resume: bool,
}

/// What a slot reports of a run that has left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunRecord {
    /// The number of the run, modulo 2^32.
    pub run: u32,
    /// Why it has left.
    pub reason: LeftReason,
    /// From the moment when the order was taken until the slot was quiescent.
    pub span: Duration,
    /// The part of `span` before the job worked.
    pub load: Duration,
    /// The part of `span` after the job worked.
    pub save: Duration,
    /// The index ([`ContextId::index`]) of the context that the slot has continued with.
    pub next: Option<usize>,
}

/// Why a run has left its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftReason {
    /// It was stopped and saved.
    Paused,
    /// The job finished.
    Finished,
    /// It was saved with an empty queue.
    Empty,
    /// It was stopped at an access outside its window.
    Fault,
    /// Its state could not be saved or restored.
    SnapshotError,
    /// It was stopped before it was restored: its snapshot is unchanged.
    NotRun,
    /// It was stopped and not saved.
    Dropped,
    /// The card did not start it, because it found no valid entry in the table of contexts.
    Refused,
}
