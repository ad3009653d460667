// SPDX-License-Identifier: GPL-2.0

//! A cache of answers that plans share.
//!
//! The plans of all slots ask who takes the slots that are about to be vacant, and what comes of the
//! turns of the same few gangs. To find a turn out takes a look at every member of the gang and at
//! every slot. An answer holds during one call, until something changes that answers depend on.

use core::cell::Cell;
use core::fmt;

use super::ids::ContextIndex;
use super::{SlotId, MAX_SLOTS};

/// How many turns are kept: the members of three gangs that each may use another slot.
const TURNS_MAX: usize = 3 * MAX_SLOTS;

/// How a context that the policy has picked is put on a slot.
#[derive(Clone, Copy, Debug)]
pub(super) enum Turn {
    /// The context is started alone.
    Alone,
    /// All members of its gang that wait are started together, on these slots, a bit each.
    Together(u8),
    /// Not now: its gang cannot have its slots in time, so other contexts go first.
    Later,
}

/// Contexts that already have a slot to go to.
pub(super) type Taken = [Option<ContextIndex>; 2 * MAX_SLOTS];

/// Changes whenever something changes that answers depend on.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Generation(u32);

impl Generation {
    pub(super) fn advance(&mut self) {
        self.0 = self.0.wrapping_add(1);
    }
}

/// The number matters within a call only, and is no part of what makes two states different.
impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Generation")
    }
}

/// Answers that are known.
#[derive(Default)]
pub(super) struct PlanCache {
    /// When the answers were found.
    generation: Cell<Generation>,
    /// The contexts that take the slots of a class which are about to be vacant.
    takers: Cell<Option<(SlotId, Taken)>>,
    /// The turns of members of gangs.
    turns: [Cell<Option<(ContextIndex, Turn)>>; TURNS_MAX],
    /// How many turns were added since the cache was empty.
    added: Cell<usize>,
}

impl PlanCache {
    /// Returns who takes the slots of a class that are about to be vacant, found by `find` if not
    /// known.
    pub(super) fn takers(
        &self,
        generation: Generation,
        class: SlotId,
        find: impl FnOnce() -> Taken,
    ) -> Taken {
        self.renew(generation);
        if let Some((_, takers)) = self.takers.get().filter(|&(known, _)| known == class) {
            return takers;
        }
        let takers = find();
        self.takers.set(Some((class, takers)));
        takers
    }

    /// Returns what comes of the turn of a context, found by `find` if not known.
    pub(super) fn turn(
        &self,
        generation: Generation,
        ctx: ContextIndex,
        find: impl FnOnce() -> Turn,
    ) -> Turn {
        self.renew(generation);
        let added = self.added.get();
        let mut known = self.turns.iter().take(added).filter_map(Cell::get);
        if let Some((_, turn)) = known.find(|&(known, _)| known == ctx) {
            return turn;
        }
        let turn = find();
        self.turns[added % TURNS_MAX].set(Some((ctx, turn)));
        self.added.set(added + 1);
        turn
    }

    /// Forgets answers of an earlier generation.
    fn renew(&self, generation: Generation) {
        if self.generation.replace(generation) != generation {
            self.takers.set(None);
            self.added.set(0);
        }
    }
}
