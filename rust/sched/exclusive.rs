// SPDX-License-Identifier: GPL-2.0

//! Slots that serve one group only.
//!
//! For all others such a slot is not allowed (`access.rs`). The reservation lasts until it is lifted, or until the last context
//! of the group is released.

use core::ops::DerefMut;

use super::machine::{Machine, Out};
use super::slot::{slots_in, State};
use super::{Action, Entry, GroupKey, Refusal, SlotId, Time};

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// Reserves `slots`, a bit each, for a group; `None` lets all contexts use them again. Jobs of others on them are
    /// preempted at once. Slots that the group has already, and has not been named, stay its own. O(n log n) in the card's
    /// capacity.
    ///
    /// # Errors
    ///
    /// [`Refusal::Gone`], [`Refusal::NoSlot`] (no slot, or one that the card does not have), [`Refusal::NoContext`] (the
    /// group has none), [`Refusal::Busy`] (a slot is reserved for another group); nothing was changed.
    pub fn set_exclusive(
        &mut self,
        now: Time,
        slots: u8,
        group: Option<GroupKey>,
        out: &mut impl FnMut(Action),
    ) -> Result<(), Refusal> {
        if self.gone {
            return Err(Refusal::Gone);
        }
        let there = |id| {
            self.slot(id)
                .is_some_and(|slot| slot.state != State::Absent)
        };
        if slots == 0 || !slots_in(slots).all(there) {
            return Err(Refusal::NoSlot);
        }
        if let Some(group) = group {
            if self.group_contexts(group) == 0 {
                return Err(Refusal::NoContext);
            }
            if self.foreign_slots(group) & slots != 0 {
                return Err(Refusal::Busy);
            }
        }
        for id in slots_in(slots) {
            if let Some(slot) = self.slot_mut(id) {
                slot.exclusive = group;
            }
        }
        self.allow_all(now, out);
        Ok(())
    }

    /// The group that a slot is reserved for.
    pub fn exclusive(&self, slot: SlotId) -> Option<GroupKey> {
        self.slot(slot)?.exclusive
    }

    /// The slots, a bit each, that are reserved for other groups.
    pub(super) fn foreign_slots(&self, group: GroupKey) -> u8 {
        slots_in(u8::MAX)
            .filter(|&id| self.exclusive(id).is_some_and(|owner| owner != group))
            .fold(0, |slots, id| slots | id.bit())
    }

    /// The last context of a group may be gone.
    pub(super) fn note_parted(&mut self, group: GroupKey) {
        let theirs = |id: &SlotId| self.exclusive(*id) == Some(group);
        if !slots_in(u8::MAX).any(|id| theirs(&id)) || self.group_contexts(group) != 0 {
            return;
        }
        for id in slots_in(u8::MAX) {
            if let Some(slot) = self
                .slot_mut(id)
                .filter(|slot| slot.exclusive == Some(group))
            {
                slot.exclusive = None;
                self.lapsed = true;
            }
        }
    }

    /// Lets all contexts use again what has ceased to be reserved.
    pub(super) fn end_lapsed(&mut self, now: Time, out: &mut Out<'_>) {
        if core::mem::take(&mut self.lapsed) {
            self.allow_all(now, out);
        }
    }

    /// Makes right what every context may use. O(n log n).
    fn allow_all(&mut self, now: Time, out: &mut Out<'_>) {
        self.each_context(|machine, ctx| {
            let allowed = machine.slab.get(ctx).map(|entry| entry.allowed);
            if allowed != machine.allowed_to(ctx) {
                machine.change_access(now, ctx, |_| ());
            }
        });
        self.press_all(now, out);
    }
}
