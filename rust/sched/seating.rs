// SPDX-License-Identifier: GPL-2.0

//! A bipartite matching of contexts and slots, which grows slot by slot along augmenting paths:
//! each context gets one of the slots that it may use.

use super::ids::{slots_in, ContextIndex};
use super::{SlotId, MAX_SLOTS};

/// Contexts, and the slots that they were given.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seating {
    guests: [Option<ContextIndex>; MAX_SLOTS],
    count: usize,
    /// By slot: the guests that may have it, a bit each.
    allowed: [u8; MAX_SLOTS],
    /// By slot: the guest that has it.
    seats: [Option<usize>; MAX_SLOTS],
    /// The guests without a slot, a bit each.
    standing: u8,
}

impl Seating {
    /// Adds a context that may have one of `slots`. Returns `false` if there are as many contexts
    /// as slots already.
    pub(super) fn add(&mut self, ctx: ContextIndex, slots: u8) -> bool {
        let Some(place) = self.guests.get_mut(self.count) else {
            return false;
        };
        *place = Some(ctx);
        let guest = 1 << self.count;
        self.standing |= guest;
        for slot in slots_in(slots) {
            self.allowed[slot.index()] |= guest;
        }
        self.count += 1;
        true
    }

    /// Returns how many contexts there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns whether each context has a slot.
    pub(super) fn is_complete(&self) -> bool {
        self.standing == 0
    }

    /// Returns the context that has `slot`.
    pub(super) fn on(&self, slot: SlotId) -> Option<ContextIndex> {
        self.guests[self.seats[slot.index()]?]
    }

    /// Returns the slots that have a context, a bit each.
    pub(super) fn slots(&self) -> u8 {
        let seats = slots_in(u8::MAX).filter(|slot| self.seats[slot.index()].is_some());
        seats.fold(0, |slots, slot| slots | slot.bit())
    }

    /// Returns whether all contexts could have one of `slots` each, if these were free.
    pub(super) fn fits(mut self, slots: u8) -> bool {
        for slot in slots_in(slots) {
            self.offer(slot);
        }
        self.is_complete()
    }

    /// Adds a slot. Returns whether one more context has a slot now; other contexts may have been
    /// moved. Slots in use stay in use, so slots that are offered earlier are preferred.
    pub(super) fn offer(&mut self, slot: SlotId) -> bool {
        // Breadth-first search: slots, each with the slot that its context could move to.
        let mut reached = [(slot, slot); MAX_SLOTS];
        let (mut next, mut len, mut known) = (0, 1, slot.bit());
        while next < len {
            let (at, _) = reached[next];
            next += 1;
            let guests = self.allowed[at.index()];
            if guests & self.standing != 0 {
                // CAST: below 8.
                let guest = (guests & self.standing).trailing_zeros() as usize;
                self.shift(slot, at, guest, &reached[..len]);
                return true;
            }
            for seat in slots_in(!known) {
                let guest = self.seats[seat.index()];
                if guest.is_some_and(|guest| guests & (1 << guest) != 0) {
                    known |= seat.bit();
                    reached[len] = (seat, at);
                    len += 1;
                }
            }
        }
        false
    }

    /// Gives the slot `at` to a guest without one, and moves the guests on the path towards
    /// `first`.
    fn shift(&mut self, first: SlotId, at: SlotId, guest: usize, reached: &[(SlotId, SlotId)]) {
        self.standing &= !(1 << guest);
        let (mut at, mut guest) = (at, guest);
        for _ in 0..MAX_SLOTS {
            let before = self.seats[at.index()].replace(guest);
            let Some(before) = before.filter(|_| at != first) else {
                break;
            };
            let from = reached.iter().find(|&&(slot, _)| slot == at);
            (at, guest) = (from.map_or(first, |&(_, from)| from), before);
        }
    }
}
