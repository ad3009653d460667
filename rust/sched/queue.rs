// SPDX-License-Identifier: GPL-2.0

//! Who waits for a slot of one class, and who is next: round robin.
//!
//! The rest of the machine only pushes, removes and picks, so that another policy can take this place.

use core::ops::DerefMut;

use super::slab::{Slab, NONE};
use super::slot::{slots_in, MAX_SLOTS};
use super::{ContextId, Entry, SlotId};

/// The contexts that wait for a slot of one class, first come first served, linked through the slab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Queue {
    head: u32,
    tail: u32,
    /// The slots of the class, a bit each.
    pub(super) slots: u8,
    /// Those of them that are not quarantined.
    pub(super) usable: u8,
    /// For each slot, how many of those that wait may run on it: whether somebody waits is asked at every event.
    waiting: [u32; MAX_SLOTS],
}

impl Queue {
    pub(super) const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
        slots: 0,
        usable: 0,
        waiting: [0; MAX_SLOTS],
    };

    /// How many wait that may run on `slot`.
    pub(super) fn waiting(&self, slot: SlotId) -> u32 {
        self.waiting.get(slot.index()).copied().unwrap_or(0)
    }

    /// Puts a context that is not queued at the end. O(1).
    pub(super) fn push<S>(&mut self, slab: &mut Slab<S>, ctx: ContextId)
    where
        S: DerefMut<Target = [Entry]>,
    {
        let (index, tail) = (ctx.index() as u32, self.tail);
        let Some(entry) = slab.get_mut(ctx) else {
            return;
        };
        entry.prev = tail;
        entry.next = NONE;
        let mask = entry.params.mask;
        match slab.at_mut(tail) {
            Some(last) => last.next = index,
            None => self.head = index,
        }
        self.tail = index;
        self.count(mask, true);
    }

    /// Takes a context that is queued out. O(1).
    pub(super) fn remove<S>(&mut self, slab: &mut Slab<S>, ctx: ContextId)
    where
        S: DerefMut<Target = [Entry]>,
    {
        let Some(entry) = slab.get_mut(ctx) else {
            return;
        };
        let (prev, next, mask) = (entry.prev, entry.next, entry.params.mask);
        entry.prev = NONE;
        entry.next = NONE;
        match slab.at_mut(prev) {
            Some(entry) => entry.next = next,
            None => self.head = next,
        }
        match slab.at_mut(next) {
            Some(entry) => entry.prev = prev,
            None => self.tail = prev,
        }
        self.count(mask, false);
    }

    /// The first context that may run on `slot`. O(1), and O(n) only over those in front whose mask excludes `slot`.
    pub(super) fn first<S>(&self, slab: &Slab<S>, slot: SlotId) -> Option<ContextId>
    where
        S: DerefMut<Target = [Entry]>,
    {
        if self.waiting(slot) == 0 {
            return None;
        }
        self.find(slab, |entry| entry.params.mask & slot.bit() != 0)
    }

    /// The first context for which `test` holds. O(n).
    pub(super) fn find<S>(&self, slab: &Slab<S>, test: impl Fn(&Entry) -> bool) -> Option<ContextId>
    where
        S: DerefMut<Target = [Entry]>,
    {
        let mut at = self.head;
        while let Some(ctx) = slab.id_at(at) {
            let entry = slab.get(ctx)?;
            if test(entry) {
                return Some(ctx);
            }
            at = entry.next;
        }
        None
    }

    /// The mask of a context that is queued changes; its place does not.
    pub(super) fn remask(&mut self, old: u8, new: u8) {
        self.count(old, false);
        self.count(new, true);
    }

    fn count(&mut self, mask: u8, up: bool) {
        for slot in slots_in(mask & self.slots) {
            if let Some(n) = self.waiting.get_mut(slot.index()) {
                *n = if up { *n + 1 } else { n.saturating_sub(1) };
            }
        }
    }
}
