// SPDX-License-Identifier: GPL-2.0

//! Cards, slots and contexts as the caller describes them.

use super::{Duration, GroupPath, Params, PolicyKind, MAX_SLOTS};
use crate::scheduler::Scheduler;

/// A card as its caller knows it, and its first settings, which are in range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardConfig {
    /// The slots, by number. Slots that the card does not have are `None`.
    pub slots: [Option<SlotConfig>; MAX_SLOTS],
    /// The policy.
    pub policy: PolicyKind,
    /// The starvation boost interval.
    pub boost: Duration,
    /// How long urgent work waits for a boundary.
    pub boundary_wait: Duration,
}

impl Default for CardConfig {
    fn default() -> Self {
        Self {
            slots: [None; MAX_SLOTS],
            policy: PolicyKind::default(),
            boost: Scheduler::BOOST_DEFAULT,
            boundary_wait: Scheduler::BOUNDARY_WAIT_DEFAULT,
        }
    }
}

/// The configuration of a new context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextConfig {
    /// The class of the slots that have its engine: [`SlotConfig::class`].
    pub class: u8,
    /// Its initial parameters.
    pub params: Params,
    /// The group that it belongs to.
    pub group: GroupPath,
}

/// The protocol that a slot keeps (docs/registers.md, F and O).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// An Optimus slot: no interrupt, and PAUSED and FINISH come while DMA may still be in flight.
    Base {
        /// How long the slot stays in reset until nothing of the last job can still arrive. It must
        /// also cover the time for which a status may be stale after a START, because the status
        /// after the reset must be reliable.
        settle: Duration,
        /// How long after a START the engine cannot be saved, so that no PAUSE is written.
        unsavable: Duration,
    },
    /// PAUSED and FINISH come after the last DMA and raise an interrupt; the status counts the
    /// STARTs that the slot has accepted.
    Irq,
    /// The slot takes orders, continues with the next context by itself, and leaves a record of
    /// each run; otherwise the same as [`Profile::Irq`].
    Relay,
}

/// Where the engine of a slot can stop for a PAUSE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreemptGranularity {
    /// At any point, and it knows no boundaries: its contexts are never cooperative.
    #[default]
    Anywhere,
    /// At any point, or at its next boundary if told to do so.
    AnywhereOrBoundary,
    /// At a boundary only: its contexts are always cooperative.
    BoundaryOnly,
}

/// A slot as the caller describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotConfig {
    /// Its profile.
    pub profile: Profile,
    /// Its engine's class: the slots of one class are interchangeable and serve one queue. Any
    /// number.
    pub class: u8,
    /// The engine needs a reset before START_RESUME.
    pub reset_before_resume: bool,
    /// irq and relay: its engine reads a queue of jobs, and leaves the slot by itself when the queue is
    /// empty.
    pub queues: bool,
    /// Where its engine can stop for a PAUSE.
    pub granularity: PreemptGranularity,
    /// irq and relay: START_COUNT as read when the scheduler was made.
    pub start_count: u32,
}

impl SlotConfig {
    /// A slot of the irq profile whose engine has no optional feature.
    pub const PLAIN: Self = Self {
        profile: Profile::Irq,
        class: 0,
        reset_before_resume: false,
        queues: false,
        granularity: PreemptGranularity::Anywhere,
        start_count: 0,
    };
}
