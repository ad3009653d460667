// SPDX-License-Identifier: GPL-2.0

//! Writing the application registers of a context to a slot, and what that costs.

use super::{now, Card, Outbox, SlotRegisters, State};
use crate::{
    image::Image,
    sched::{Duration, LoadCost, SlotId},
};

/// Fewer writes than this take too little time to be measured.
const MEASURED_WRITES: u32 = 16;
/// A Load that took less is a part of the slice.
const NOTED: Duration = Duration::from_us(20);
/// Writes of a reset of a slot, which clears all registers where [`SLOT_CAPS`](crate::regs::SLOT_CAPS)
/// says so.
const RESET_WRITES: u32 = 2;

/// The time that a Load took.
#[derive(Clone, Copy)]
pub(super) struct LoadTime {
    /// Part of `total`: until the registers of the context before were cleared.
    clearing: Duration,
    total: Duration,
}

impl LoadTime {
    pub(super) const ZERO: Self = Self {
        clearing: Duration::ZERO,
        total: Duration::ZERO,
    };
}

impl Card {
    /// Makes the registers of `slot`, which is vacant, those of `image`. Returns whether what that took
    /// stands in `slots`, for [`Card::note_loads`].
    pub(super) fn load(&self, slots: &mut SlotRegisters, slot: SlotId, image: &Image) -> bool {
        let index = slot.index();
        let (written, cleared) = image.burst(&slots.residue[index]);
        if cleared > RESET_WRITES && self.slots[index].reset_clears {
            self.reset_slot(slots, slot, true);
            self.reset_slot(slots, slot, false);
        }
        let residue = &mut slots.residue[index];
        if written + cleared < MEASURED_WRITES {
            image.clear_residue(&self.bar, slot, residue);
            image.load(&self.bar, slot, residue, &self.identity);
            slots.writer[index] = None;
            return false;
        }
        let begun = now();
        image.clear_residue(&self.bar, slot, residue);
        if cleared >= MEASURED_WRITES {
            // Writes are posted: a read returns when the card has taken them.
            self.bar.status(slot);
        }
        let clearing = now().since(begun);
        image.load(&self.bar, slot, residue, &self.identity);
        slots.load_time[index] = LoadTime {
            clearing,
            total: now().since(begun),
        };
        true
    }

    /// Tells the machine of Loads that took time.
    pub(super) fn note_loads(&self, state: &mut State, outbox: &mut Outbox) {
        while let Some(slot) = outbox.take_load() {
            let index = slot.index();
            let on = state.slots.on[index];
            let writer = on.and_then(|ctx| Some((ctx, state.machine.group_of(ctx).ok()?)));
            let debtor = core::mem::replace(&mut state.slots.writer[index], writer);
            let LoadTime { clearing, total } = state.slots.load_time[index];
            if total < NOTED {
                continue;
            }
            let cost = LoadCost {
                clearing,
                total,
                debtor,
            };
            state.measurements.stopwatch.delay(slot, clearing);
            self.act(state, |machine, at, mut out| {
                machine.note_load(at, slot, cost, &mut out)
            });
        }
    }
}
