// SPDX-License-Identifier: GPL-2.0

//! Copying the state of a card for a dump ([`crate::dump`]).

use super::{
    now,
    state::{context_of, State},
    Card,
};
use crate::{
    bar::Fault,
    dump::{Capture, Cause, RefusedAccess, SlotCapture, Trouble},
    scheduler::{ContextId, EndReason, Failure, RunEnd, SlotId, SlotState},
    trace::number,
};
use kernel::sync::atomic::Relaxed;

/// A refused access farther from the arena than this is no overrun: its address may be data.
const NEAR: i64 = 16 << 20;

/// Something that has gone wrong on a slot, until the scheduler has returned.
pub(super) struct SlotTrouble {
    cause: Cause,
    slot: SlotId,
    ctx: Option<ContextId>,
}

impl SlotTrouble {
    /// Returns what the end of a run says of the card; `None`: nothing. `has_relay`: the card
    /// reports by records.
    pub(super) fn of_end(
        slot: SlotId,
        ctx: ContextId,
        run: &RunEnd,
        has_relay: bool,
    ) -> Option<Self> {
        let cause = match run.reason {
            EndReason::Aborted(Some(Failure::PreemptTimeout)) => Cause::PreemptTimeout,
            EndReason::Aborted(Some(_)) if has_relay => Cause::InvalidRecord,
            EndReason::Aborted(Some(_)) => Cause::InvalidStatus,
            _ => return None,
        };
        let ctx = Some(ctx);
        Some(Self { cause, slot, ctx })
    }

    /// Returns what a quarantine says.
    pub(super) fn of_quarantine(slot: SlotId, ctx: Option<ContextId>) -> Self {
        let cause = Cause::ResetFailed;
        Self { cause, slot, ctx }
    }
}

impl Card {
    /// Makes a dump of what has gone wrong on a slot, if one is due. Under the card's lock.
    pub(super) fn dump_slot(&self, state: &mut State, trouble: SlotTrouble) {
        let SlotTrouble { cause, slot, ctx } = trouble;
        let context = ctx.map_or(0, number);
        self.dump(state, cause, Some(slot), context);
    }

    /// Makes a dump because the card reads all-ones, unless that is known, or the card is being
    /// removed. Under the card's lock, before the scheduler is told.
    pub(super) fn dump_death(&self, state: &mut State, slot: SlotId) {
        if !self.is_gone() {
            self.dump(state, Cause::CardGone, Some(slot), 0);
        }
    }

    /// Makes a dump because the PCI core has reported an error, if one is due. Process context.
    pub(crate) fn dump_link_error(&self) {
        self.dump(&mut self.state.lock(), Cause::LinkError, None, 0);
    }

    fn dump(&self, state: &mut State, cause: Cause, slot: Option<SlotId>, context: u32) {
        let trouble = Trouble {
            at: now(),
            cause,
            slot,
            context,
        };
        self.dumper.note(trouble, |capture| {
            self.capture(state, capture);
            // Whether the card has taken the reset. The status, which was read just now, took as
            // long.
            capture.reset_read = match cause {
                Cause::ResetFailed => self.bar.held_in_reset(),
                _ => None,
            };
        });
    }

    /// Copies what the driver knows of the card. No register is read.
    fn capture(&self, state: &mut State, capture: &mut Capture) {
        capture.card = self.number.load(Relaxed);
        capture.identity = Some(self.identity);
        capture.profile = Some(self.profile());
        capture.in_reset = state.slots.in_reset;
        for slot in self.slots_in(u8::MAX) {
            self.capture_slot(state, slot, &mut capture.slots[slot.index()]);
        }
        capture.writes.fill(None);
        self.bar.for_each_write(|n, write| {
            if let Some(place) = capture.writes.get_mut(n) {
                *place = Some(write);
            }
        });
    }

    fn capture_slot(&self, state: &mut State, slot: SlotId, capture: &mut SlotCapture) {
        let slot_state = state.scheduler.slot_state(slot);
        let slot_state = slot_state.unwrap_or(SlotState::Gone);
        let ctx = slot_state.context();
        capture.engine = self.identity_of(slot).afu_id();
        capture.state = slot_state;
        capture.context = ctx.map_or(0, number);
        capture.status = state.slots[slot].status;
        capture.refused = state.slots[slot].refused;
        capture.window_size = ctx
            .and_then(|ctx| context_of(&mut state.contexts, ctx)?.image().window())
            .map(|window| window.length);
        if let Some(relay) = &state.relay {
            relay.copy_records(slot, &mut capture.records);
        }
    }

    /// Notes an access that the window of `slot` has refused, for a later dump.
    pub(super) fn note_refused(&self, state: &mut State, slot: SlotId, fault: Fault) {
        let slot_state = state.scheduler.slot_state(slot);
        let ctx = slot_state.and_then(SlotState::context);
        let window = ctx.and_then(|ctx| context_of(&mut state.contexts, ctx)?.image().window());
        let offset = window.and_then(|window| {
            // CAST: the difference of two addresses, which may be negative.
            let offset = fault.address.wrapping_sub(window.device_base) as i64;
            // CAST: arenas are smaller than 2^63 bytes.
            let end = (window.length as i64).saturating_add(NEAR);
            (-NEAR..end).contains(&offset).then_some(offset)
        });
        state.slots[slot].refused = Some(RefusedAccess {
            offset,
            is_write: fault.is_write,
            at: now(),
        });
    }
}
