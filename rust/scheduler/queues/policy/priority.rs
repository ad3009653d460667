// SPDX-License-Identifier: GPL-2.0

//! The highest priority first, at once; equals take turns. Without regard to priorities this is
//! round-robin: one slice each, in turn.

use super::super::entity::Entity;
use super::super::store::Store;
use super::{Policy, Preempt};
use crate::scheduler::values::{Duration, EntityIndex, Params, SlotId};

/// The policies `priority` and `round-robin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Priority {
    /// Priorities count; otherwise all contexts are equals.
    counts: bool,
}

impl Priority {
    pub(super) const fn new(counts: bool) -> Self {
        Self { counts }
    }
}

impl Policy for Priority {
    #[inline]
    fn key(&self, entity: &Entity) -> u64 {
        match self.counts {
            true => Params::PRIORITY_MAX.saturating_sub(entity.priority).into(),
            false => 0,
        }
    }

    #[inline]
    fn preempt(&self, runs: &Entity, waits: &Entity) -> Preempt {
        match self.key(waits).cmp(&self.key(runs)) {
            core::cmp::Ordering::Less => Preempt::Now,
            core::cmp::Ordering::Equal => Preempt::AtSliceEnd,
            core::cmp::Ordering::Greater => Preempt::Never,
        }
    }

    #[inline]
    fn slice(&self, params: &Params) -> Duration {
        params.timeslice
    }

    fn enqueue(&self, _: &mut Store, _: EntityIndex, _: bool) {}

    fn running(&self, _: &mut Store, _: SlotId, _: EntityIndex) {}

    fn stopped(&self, _: &mut Store, _: SlotId, _: EntityIndex, _: Duration) {}
}
