// SPDX-License-Identifier: GPL-2.0

//! Writing the registers of a context to a vacant slot, in parts, and accounting for the time that
//! this takes.

use super::{
    execute::Outbox,
    now,
    state::{Slots, State},
    Card,
};
use crate::{
    image::{AppRegister, Image, RegisterSet},
    scheduler::{ContextId, Duration, LoadCost, SlotId},
};

/// Number of registers that are written while the card's lock is held with interrupts off.
const WRITES_AT_ONCE: u32 = 64;
/// A load with fewer writes takes too little time to be measured.
const MEASURED_WRITES: u32 = 16;
/// A load that took less time counts as part of the slice.
const NOTED: Duration = Duration::from_us(20);
/// Number of writes that reset a slot. The reset clears all registers where
/// [`SLOT_CAPS`](crate::regs::SLOT_CAPS) says so.
const RESET_WRITES: u32 = 2;

/// A load that is under way.
pub(super) struct Loading {
    ctx: ContextId,
    /// Registers that are still to be written.
    left: RegisterSet,
    /// Until the registers of other contexts were cleared, and until now; `None`: not measured.
    cost: Option<(Duration, Duration)>,
}

/// A load that was measured.
pub(super) struct MeasuredLoad {
    pub(super) slot: SlotId,
    pub(super) ctx: ContextId,
    /// Part of `total`: until the registers of other contexts were cleared.
    clearing: Duration,
    total: Duration,
}

/// The state of a load after one of its parts.
pub(super) enum Loaded {
    /// More registers are to be written, in another section.
    Part,
    /// Nothing.
    All(Option<MeasuredLoad>),
}

impl Slots {
    /// Returns whether `slot` is being loaded for a context.
    pub(super) fn is_loading(&self, slot: SlotId, ctx: ContextId) -> bool {
        let loading = self[slot].loading.as_ref();
        loading.is_some_and(|loading| loading.ctx == ctx)
    }

    /// Notes that a program has changed a register of a context that is on no slot.
    pub(super) fn note_change(&mut self, ctx: ContextId, register: AppRegister) {
        for slot in self.iter_mut() {
            if let Some(loading) = slot.loading.as_mut().filter(|loading| loading.ctx == ctx) {
                loading.left.insert(register);
            }
        }
    }
}

impl Card {
    /// Loads `slot`, which is vacant, with the `image` of a context, or goes on with that.
    pub(super) fn load(
        &self,
        slots: &mut Slots,
        slot: SlotId,
        ctx: ContextId,
        image: &Image,
    ) -> Loaded {
        let mut loading = match slots[slot].loading.take() {
            Some(loading) if loading.ctx == ctx => loading,
            _ => self.begin_load(slots, slot, ctx, image),
        };
        let is_over = self.load_part(slots, slot, image, &mut loading);
        let shadow = &mut slots[slot].shadow;
        if !is_over {
            if self.identity.has_window() {
                shadow.close_window(&self.bar, slot, &self.identity);
            }
            slots[slot].loading = Some(loading);
            return Loaded::Part;
        }
        image.open(&self.bar, slot, shadow, &self.identity);
        if loading.cost.is_none() {
            slots[slot].writer = None;
        }
        let measured = loading.cost.map(|(clearing, total)| MeasuredLoad {
            slot,
            ctx,
            clearing,
            total,
        });
        Loaded::All(measured)
    }

    fn begin_load(
        &self,
        slots: &mut Slots,
        slot: SlotId,
        ctx: ContextId,
        image: &Image,
    ) -> Loading {
        let (written, cleared) = image.burst(&slots[slot].shadow);
        if cleared > RESET_WRITES && self.slots[slot.index()].reset_clears {
            self.reset_slot(slots, slot, true);
            self.reset_slot(slots, slot, false);
        }
        let is_measured = written + cleared >= MEASURED_WRITES;
        Loading {
            ctx,
            left: image.registers(),
            cost: is_measured.then_some((Duration::ZERO, Duration::ZERO)),
        }
    }

    /// Writes the next registers. Returns whether none is left.
    fn load_part(
        &self,
        slots: &mut Slots,
        slot: SlotId,
        image: &Image,
        loading: &mut Loading,
    ) -> bool {
        let (bar, shadow) = (&self.bar, &mut slots[slot].shadow);
        let begun = loading.cost.map(|_| now());
        let cleared = image.clear_others(bar, slot, shadow, WRITES_AT_ONCE);
        if let (Some((clearing, _)), Some(begun)) = (&mut loading.cost, begun) {
            if cleared >= MEASURED_WRITES {
                // Writes are posted: a read returns when the card has taken them.
                bar.status(slot);
            }
            *clearing += now().since(begun);
        }
        let most = WRITES_AT_ONCE - cleared;
        image.replay(bar, slot, shadow, (&mut loading.left, most));
        if let (Some((_, total)), Some(begun)) = (&mut loading.cost, begun) {
            *total += now().since(begun);
        }
        loading.left.is_empty() && image.burst(shadow).1 == 0
    }

    /// Reports a load to the scheduler if it took a noticeable time.
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
        self.call(state, outbox, |scheduler, card, at| {
            scheduler.note_load(card, at, load.slot, cost);
        });
    }
}
