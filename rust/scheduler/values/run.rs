// SPDX-License-Identifier: GPL-2.0

//! Runs: from the loading of registers and the START to the end.

use super::{ContextId, Duration, Failure, GroupKey, Time};

/// The cost of loading a slot before the START of a job.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadCost {
    /// The time in which registers that another context had written were cleared. Part of `total`.
    pub clearing: Duration,
    /// Time from Load to Start.
    pub total: Duration,
    /// The context that had written the cleared registers, and its group.
    pub debtor: Option<(ContextId, GroupKey)>,
}

/// Times around a START, for measuring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartTimes {
    /// The job is latency-critical.
    pub latency_critical: bool,
    /// How long the context has been queued, in total.
    pub wait: Duration,
    /// When the owner asked for the job, or rang for an empty queue, if this START is the first
    /// since then. `None` if the job was held meanwhile.
    pub arrived: Option<Time>,
    /// When the last run on the slot ended by itself, unless the slot has been left vacant since.
    pub idle_since: Option<Time>,
}

/// Why a job has to leave its slot. `waiter`: the context for which it leaves.
#[allow(missing_docs, reason = "`waiter` is in the text above")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseCause {
    /// Its slice is over.
    Slice { waiter: ContextId },
    /// Another context goes before it under the policy.
    Outranked { waiter: ContextId },
    /// Another context has waited too long.
    Starving { waiter: ContextId },
    /// Its budget, its cap or the cap of its group is used up.
    Limit,
    /// It may no longer be on this slot.
    Slots,
    /// Another context has announced a job.
    Hint { waiter: ContextId },
    /// Its owner or an administrator has requested it.
    Request,
    /// Another job of its gang leaves its slot.
    Gang,
    /// All jobs are taken off the card.
    Freeze,
    /// An earlier PAUSE was not answered in time.
    Again,
}

/// How a run ended, and what it cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunEnd {
    /// How it ended.
    pub reason: EndReason,
    /// From START to the observed end.
    pub span: Duration,
    /// From the first PAUSE to PAUSED, if that is the time of a save.
    pub save: Option<Duration>,
    /// The time of its restore as the card reports it; zero if it does not.
    pub restore: Duration,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The job finished.
    Finished,
    /// The job was saved.
    Paused,
    /// The job was saved, with an empty queue.
    Empty,
    /// The job was stopped at an access outside its window.
    Fault,
    /// The job's state could not be saved or restored.
    SnapshotError,
    /// The slot is reset: the job fails for this reason, or `None`: its context is closed.
    Aborted(Option<Failure>),
    /// A relay has stopped the job without saving it, or has not started it.
    Dropped,
}
