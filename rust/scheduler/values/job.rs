// SPDX-License-Identifier: GPL-2.0

//! Jobs: how they start, their states and results, and why a request is refused.

use super::GroupKey;

/// How a job starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewJob {
    /// The job may be run again from its beginning, whatever it has done to its memory, when its
    /// state could not be saved or restored. It is run again up to three times, and then fails with
    /// [`Failure::Snapshot`].
    pub replayable: bool,
    /// The owner has put a complete state into the snapshot, and the job resumes from that state
    /// instead of starting from its beginning.
    pub saved: bool,
    /// The job does not wait for a slot before [`Scheduler::resume`](crate::scheduler::Scheduler::resume).
    pub held: bool,
}

/// The results of a context's jobs before a checkpoint that the context was restored from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastJobs {
    /// Why the last job failed; `None`: it finished.
    pub last: Option<Failure>,
    /// Jobs finished.
    pub finished: u64,
    /// Jobs failed.
    pub failed: u64,
}

/// The state of the job of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// There has been no job yet.
    Idle,
    /// It waits for a slot.
    Queued,
    /// It is on a slot: it runs, is being saved, or the slot is being cleared after it.
    Running,
    /// It is off its slot and waits for [`Scheduler::resume`](crate::scheduler::Scheduler::resume).
    Held,
    /// It is off its slot because its queue is empty, and waits for
    /// [`Scheduler::ring`](crate::scheduler::Scheduler::ring).
    Empty,
    /// The last job finished.
    Done,
    /// The last job failed.
    Failed(Failure),
}

impl JobState {
    /// Returns whether the job has begun and not ended.
    pub const fn is_live(self) -> bool {
        matches!(
            self,
            Self::Queued | Self::Running | Self::Held | Self::Empty
        )
    }

    /// Returns whether the job waits for a slot or is on one.
    pub const fn wants_slot(self) -> bool {
        matches!(self, Self::Queued | Self::Running)
    }

    /// Returns whether the context needs no slot until its owner asks for more.
    pub const fn wants_nothing(self) -> bool {
        !self.is_live() || matches!(self, Self::Empty)
    }
}

/// Why a queued job is on no slot. The first reason in this order that applies is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// The context is disabled.
    Disabled,
    /// No slot that the context may use is in use.
    NoSlot,
    /// No job may run on the card: [`Scheduler::freeze`](crate::scheduler::Scheduler::freeze).
    Frozen,
    /// The budget of its reservation is used up.
    Budget,
    /// Its own cap is used up.
    Cap,
    /// The cap of this group, which is its own or above, is used up.
    GroupCap(GroupKey),
    /// The members of its gang are put on slots together.
    Gang,
    /// It waits for its turn under the policy.
    Turn,
}

/// Why an owner is notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The job finished.
    Done,
    /// The job failed.
    Failed(Failure),
    /// The job is off its slot and held.
    Held,
    /// The job is off its slot, because its queue is empty.
    Empty,
}

/// Why a job failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It did not pause within the preempt timeout; the slot was reset.
    PreemptTimeout,
    /// The card stopped it at an access outside its window.
    Fault,
    /// Its snapshot could not be saved or restored, or the card was cut off with the job on it.
    Snapshot,
    /// The card did not take the START, or reported something that its protocol does not have.
    Protocol,
    /// The card is gone.
    Gone,
}

/// Why a request was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No such context.
    NoContext,
    /// The context has a job that has not ended.
    Busy,
    /// The context has no job that could be preempted or resumed.
    NoJob,
    /// No slot in the mask has this engine, or none of them is in use.
    NoSlot,
    /// The storage is full.
    NoSpace,
    /// The class has too little left for the requested reservation, or a context with a reservation
    /// does not allow every slot.
    Admission,
    /// A value out of range.
    Range,
    /// The priority is above the ceiling of the context's group.
    Ceiling,
    /// Too many hints in too short a time.
    Rate,
    /// Groups would be nested too deeply.
    Depth,
    /// The card is gone.
    Gone,
}
