// SPDX-License-Identifier: GPL-2.0

//! Revises the successors and runs of a class after a change that is no arrival: a group returns, a
//! parameter changes, or the name of a relay is resolved.

use super::super::card::{Call, Card};
use super::super::values::{slots_in, Class, EntityIndex, SlotId, Time, MAX_SLOTS};
use super::super::Scheduler;

impl Scheduler {
    /// Notes that contexts of a class may have begun to wait, or may outrank others now. At the end of
    /// the present call a vacant slot is filled, and successors are compared. Timers fill the other
    /// vacant slots and have the policy look at runs, each in a section of its own.
    pub(in super::super) fn reschedule(&mut self, class: Class) {
        if self.classes[class.at()].waiting.is_empty() {
            return;
        }
        self.revise |= class.bit();
        for id in slots_in(self.classes[class.at()].usable) {
            let slot = &mut self.slots[id.index()];
            let is_idle = slot.protocol.unstopped().is_some() || slot.protocol.is_vacant();
            if is_idle && slot.next.is_none() {
                slot.check_at = Time::ZERO;
                self.dirty |= id.bit();
            }
        }
    }

    /// Replaces successors of a class that are outranked by a context that waits.
    pub(in super::super) fn revise_class<C: Card>(&mut self, call: &mut Call<'_, C>, class: Class) {
        for id in slots_in(self.classes[class.at()].usable) {
            let slot = self.slot(id);
            if slot.protocol.is_vacant() && slot.next.is_none() && !call.has_loaded {
                self.fill(call, id);
                continue;
            }
            let is_checked = slot.protocol.unstopped().is_some() || slot.protocol.is_vacant();
            if !is_checked || slot.next.is_some() {
                self.revise_slot(call, class, id);
            }
        }
    }

    fn revise_slot<C: Card>(&mut self, call: &mut Call<'_, C>, class: Class, id: SlotId) {
        let mut slots = id.bit().into();
        // The first may find a better offer on another slot; then the second is next here.
        for _ in 0..MAX_SLOTS {
            let first = self.queue.pick(class, slots);
            let next = self.slot(id).next;
            let gives_way =
                |first: &EntityIndex| next.is_none_or(|next| self.gives_way(&next, *first));
            let Some(first) = first.filter(gives_way) else {
                return;
            };
            self.arrived(call, first);
            if self.queue.is_linked(first) {
                if !self.is_ganged(first) {
                    return;
                }
                // Its gang cannot have its slots yet.
                slots = u16::from(id.bit()) << u8::BITS;
            }
        }
    }
}
