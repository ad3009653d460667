// SPDX-License-Identifier: GPL-2.0

//! Writing the application registers of a context to a slot, and what that costs.

use super::{
    execute::Outbox,
    now,
    state::{Slots, State},
    Card,
};
use crate::{
    image::Image,
    sched::{Duration, LoadCost, SlotId},
};

/// Fewer writes than this take too little time to be measured.
const MEASURED_WRITES: u32 = 16;
/// A Load that took less is a part of the slice.
const NOTED: Duration = Duration::from_us(20);
/// Writes of a reset of a slot, which clears all registers where
/// [`SLOT_CAPS`](crate::regs::SLOT_CAPS) says so.
const RESET_WRITES: u32 = 2;

impl Card {
    /// Makes the registers of `slot`, which is vacant, those of `image`. Returns, where that was
    /// measured, the time until the registers of the context before were cleared, and the whole
    /// time.
    pub(super) fn load(
        &self,
        slots: &mut Slots,
        slot: SlotId,
        image: &Image,
    ) -> Option<(Duration, Duration)> {
        let (written, cleared) = image.burst(&slots[slot].shadow);
        if cleared > RESET_WRITES && self.slots[slot.index()].reset_clears {
            self.reset_slot(slots, slot, true);
            self.reset_slot(slots, slot, false);
        }
        let shadow = &mut slots[slot].shadow;
        if written + cleared < MEASURED_WRITES {
            image.clear_others(&self.bar, slot, shadow);
            image.load(&self.bar, slot, shadow, &self.identity);
            slots[slot].writer = None;
            return None;
        }
        let begun = now();
        image.clear_others(&self.bar, slot, shadow);
        if cleared >= MEASURED_WRITES {
            // Writes are posted: a read returns when the card has taken them.
            self.bar.status(slot);
        }
        let clearing = now().since(begun);
        image.load(&self.bar, slot, shadow, &self.identity);
        Some((clearing, now().since(begun)))
    }

    /// Tells the scheduler of a Load that took time.
    pub(super) fn note_load(&self, state: &mut State, outbox: &mut Outbox) {
        let Some(load) = outbox.load.take() else {
            return;
        };
        let group = state.scheduler.group_of(load.ctx).ok();
        let writer = group.map(|group| (load.ctx, group));
        let debtor = core::mem::replace(&mut state.slots[load.slot].writer, writer);
        if load.total < NOTED {
            return;
        }
        let cost = LoadCost {
            clearing: load.clearing,
            total: load.total,
            debtor,
        };
        self.call(state, outbox, |scheduler, at, out| {
            scheduler.note_load(at, load.slot, cost, out);
        });
    }
}
