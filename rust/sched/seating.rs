// SPDX-License-Identifier: GPL-2.0

//! A bipartite matching of contexts and slots, which grows slot by slot along augmenting paths:
//! each context gets one of the slots that it may use.

use super::ids::{slots_in, ContextIndex};
use super::{SlotId, MAX_SLOTS};

/// Contexts, and the slots that they have been given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seating {
    /// Each context, and the slots that it may have, a bit each.
    guests: [Option<(ContextIndex, u8)>; MAX_SLOTS],
    count: usize,
    /// By slot: which guest has it.
    seats: [Option<usize>; MAX_SLOTS],
    seated: usize,
}

impl Seating {
    pub(super) const EMPTY: Self = Self {
        guests: [None; MAX_SLOTS],
        count: 0,
        seats: [None; MAX_SLOTS],
        seated: 0,
    };

    /// Adds a context that may have one of `slots`. `false`: there are as many as slots already.
    pub(super) fn add(&mut self, ctx: ContextIndex, slots: u8) -> bool {
        let place = self.guests.get_mut(self.count);
        let fits = place.is_some();
        if let Some(place) = place {
            *place = Some((ctx, slots));
            self.count += 1;
        }
        fits
    }

    /// Returns how many contexts there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns whether each context has a slot.
    pub(super) fn is_complete(&self) -> bool {
        self.seated == self.count
    }

    /// Returns the context that has a slot.
    pub(super) fn on(&self, slot: SlotId) -> Option<ContextIndex> {
        let guest = self.seats[slot.index()]?;
        Some(self.guests[guest]?.0)
    }

    /// Returns whether all contexts can have one of `slots` each, were these free.
    pub(super) fn fits(mut self, slots: u8) -> bool {
        for slot in slots_in(slots) {
            self.offer(slot);
        }
        self.is_complete()
    }

    /// Adds a slot. Returns whether one more context has a slot now; others may have changed
    /// theirs. Slots stay in use once they are, so those that are offered first are preferred.
    pub(super) fn offer(&mut self, slot: SlotId) -> bool {
        // Breadth first: slots whose context could move to the slot that is noted beside.
        let mut reached = [(slot, slot); MAX_SLOTS];
        let (mut next, mut len, mut known) = (0, 1, slot.bit());
        while next < len {
            let (at, _) = reached[next];
            next += 1;
            for guest in 0..self.count {
                if self.guests[guest].is_none_or(|(_, slots)| slots & at.bit() == 0) {
                    continue;
                }
                let seat = self.seats.iter().position(|&other| other == Some(guest));
                // CAST: below 8.
                let Some(seat) = seat.and_then(|seat| SlotId::new(seat as u8)) else {
                    self.shift(slot, at, guest, &reached[..len]);
                    return true;
                };
                if known & seat.bit() == 0 && len < MAX_SLOTS {
                    known |= seat.bit();
                    reached[len] = (seat, at);
                    len += 1;
                }
            }
        }
        false
    }

    /// Gives the slot `at` to a guest without one, and moves the guests on the way to it towards
    /// `first`.
    fn shift(&mut self, first: SlotId, at: SlotId, guest: usize, reached: &[(SlotId, SlotId)]) {
        let (mut at, mut guest) = (at, guest);
        for _ in 0..MAX_SLOTS {
            let before = self.seats[at.index()].replace(guest);
            let Some(before) = before.filter(|_| at != first) else {
                break;
            };
            let from = reached.iter().find(|&&(slot, _)| slot == at);
            (at, guest) = (from.map_or(first, |&(_, from)| from), before);
        }
        self.seated += 1;
    }
}
