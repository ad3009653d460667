// SPDX-License-Identifier: GPL-2.0

//! Slots that serve one group only.
//!
//! For all others such a slot is not allowed (`access.rs`). The reservation is a part of the group's registration
//! (`registration.rs`), and lasts as long.

use core::ops::DerefMut;

use super::machine::Machine;
use super::slot::slots_in;
use super::{Entry, GroupKey, SlotId};

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
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

    /// Reserves `slots`, a bit each, for a group, and no others any more. What contexts may use is brought in line later.
    pub(super) fn reserve_slots(&mut self, group: GroupKey, slots: u8) {
        for id in slots_in(u8::MAX) {
            let Some(slot) = self.slot_mut(id) else {
                continue;
            };
            if slots & id.bit() != 0 {
                slot.exclusive = Some(group);
            } else if slot.exclusive == Some(group) {
                slot.exclusive = None;
            }
        }
    }
}
