// SPDX-License-Identifier: GPL-2.0

//! Timer storms and slots that stand still are counted, traced, and reported once per card
//! ([`SlotWatch`](crate::measure::SlotWatch)).

use super::{now, state::State, Card};
use crate::{
    scheduler::{ContextId, SlotId},
    trace,
};
use kernel::prelude::*;

impl Card {
    /// Reports that the timer of `slot` fires all the time. Any context.
    pub(super) fn report_timer_storm(&self, state: &mut State, slot: SlotId) {
        self.note_timer_storm(state, slot);
        if state.slots.total(|watch| watch.timer_storms) == 1 {
            let ctx = state.occupant(slot).map_or(0, trace::number);
            dev_warn!(
                self.device,
                "slot {}, context {}: the timer fires more than 100 times in a millisecond: a reset of the card starts timers again; please report this\n",
                slot.index(),
                ctx
            );
        }
    }

    /// Looks for slots that stand still. Process context, once a second while there are contexts.
    pub(super) fn find_standstill(&self) {
        for slot in self.slots_in(u8::MAX) {
            let mut state = self.state.lock();
            let waiter = state.scheduler.waits_beside(slot);
            let is_new = state.slots[slot].watch.note_waiter(now(), waiter);
            if let Some(ctx) = waiter.filter(|_| is_new) {
                self.report_standstill(&mut state, slot, ctx);
            }
        }
    }

    fn report_standstill(&self, state: &mut State, slot: SlotId, ctx: ContextId) {
        self.note_standstill(state, slot, ctx);
        if state.slots.total(|watch| watch.standstills) == 1 {
            dev_warn!(
                self.device,
                "slot {}, context {}: the job has waited for ten seconds beside the vacant slot: a reset of the card starts it; please report this\n",
                slot.index(),
                trace::number(ctx)
            );
        }
    }
}
