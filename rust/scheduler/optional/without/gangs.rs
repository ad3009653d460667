// SPDX-License-Identifier: GPL-2.0

//! No gangs: each context is alone.

use super::super::card::{Call, Card};
use super::super::decisions::{Next, Why};
use super::super::queues::Preempt;
use super::super::values::{EntityIndex, SlotId, Time};
use super::super::Scheduler;

/// Nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Ring;

/// Nothing.
pub(in super::super) type Gangs = Ring;

impl Ring {
    pub(in super::super) const NONE: Self = Self;
}

#[rustfmt::skip]
impl Scheduler {
    pub(in super::super) fn has_mate_with_hold(&self, _: EntityIndex) -> bool { false }
    pub(in super::super) fn has_gangs(&self) -> bool { false }
    pub(in super::super) fn is_in_gang(&self, _: EntityIndex) -> bool { false }
    pub(in super::super) fn are_mates(&self, _: EntityIndex, _: EntityIndex) -> bool { false }
    pub(in super::super) fn is_ganged(&self, _: EntityIndex) -> bool { false }
    pub(in super::super) fn is_gathering(&self, _: EntityIndex) -> bool { false }
    pub(in super::super) fn has_room(&self, _: Time, _: SlotId, _: EntityIndex) -> bool { false }
    pub(in super::super) fn waits_for_gang(&self, _: EntityIndex) -> bool { false }
    pub(in super::super) fn note_wait(&mut self, _: EntityIndex) {}
    pub(in super::super) fn defer_arrival(&mut self, _: EntityIndex) -> bool { false }
    pub(in super::super) fn gather(&mut self, _: Time, _: EntityIndex) {}
    pub(in super::super) fn is_seated(&self, _: &Next) -> bool { true }
    pub(in super::super) fn is_beginning(&self, _: &Next) -> bool { false }
    pub(in super::super) fn has_seated_mate(&self, _: EntityIndex) -> bool { false }
    pub(in super::super) fn start_mates(&mut self, _: SlotId, _: &Next) {}

    pub(in super::super) fn for_gang(
        &mut self,
        at: EntityIndex,
        mut act: impl FnMut(&mut Self, EntityIndex),
    ) {
        act(self, at);
    }

    pub(in super::super) fn preempted_by(&self, runs: EntityIndex, waits: EntityIndex) -> Preempt {
        self.queue.preempt(runs, waits)
    }

    pub(in super::super) fn preempts(&self, waits: EntityIndex, runs: EntityIndex) -> bool {
        self.queue.outranks(waits, runs)
    }

    pub(in super::super) fn seat_gangs<C>(&mut self, _: &mut Call<'_, C>) {}
    pub(in super::super) fn stop_mates<C>(&mut self, _: &mut Call<'_, C>, _: EntityIndex) {}
    pub(in super::super) fn leave_gang<C>(&mut self, _: &mut Call<'_, C>, _: EntityIndex) {}
    pub(in super::super) fn dissolve<C>(&mut self, _: &mut Call<'_, C>, _: &Next) {}
    pub(in super::super) fn start_late_mate<C>(&self, _: &mut Call<'_, C>, _: EntityIndex) -> bool { false }
    pub(in super::super) fn stop_for_gang<C>(&self, _: &mut Call<'_, C>, _: SlotId) -> bool { false }
    pub(in super::super) fn arrives_alone<C>(&self, _: &mut Call<'_, C>, _: EntityIndex) -> bool { true }

    pub(in super::super) fn preempt_gang<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        at: EntityIndex,
        hold: bool,
        requested: bool,
    ) {
        self.contexts[at].hold_requested |= hold && requested;
        self.preempt_one(call, at, hold);
    }

    pub(in super::super) fn choose_gang<C>(
        &mut self,
        _: &mut Call<'_, C>,
        _: SlotId,
        chosen: (EntityIndex, Why),
    ) -> Option<(EntityIndex, Why)> {
        Some(chosen)
    }
}
