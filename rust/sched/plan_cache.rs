// SPDX-License-Identifier: GPL-2.0

//! A cache of answers that plans share.
//!
//! The plans of all slots ask which contexts take the slots that are about to be vacant, and how
//! the same few gangs take their turns. To determine a turn, every member of the gang and every
//! slot is examined. An answer is valid during one call, until something that answers depend on
//! changes.

use core::cell::Cell;
use core::fmt;

use super::ids::ContextIndex;
use super::{SlotId, MAX_SLOTS};

/// How many turns are kept: those of the members of three gangs, if each member may use another
/// slot.
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

/// Changes whenever something that answers depend on changes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Generation(u32);

impl Generation {
    pub(super) fn advance(&mut self) {
        self.0 = self.0.wrapping_add(1);
    }
}

/// The number matters only within a call, and does not make two states different.
impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Generation")
    }
}

/// The cached answers.
#[derive(Default)]
pub(super) struct PlanCache {
    /// The generation in which the answers were found.
    generation: Cell<Generation>,
    /// The contexts that take the slots of a class that are about to be vacant.
    takers: Cell<Option<(SlotId, Taken)>>,
    /// The turns of members of gangs.
    turns: [Cell<Option<(ContextIndex, Turn)>>; TURNS_MAX],
    /// How many turns were added since the cache was empty.
    added: Cell<usize>,
}

impl PlanCache {
    /// Returns the contexts that take the slots of a class that are about to be vacant; calls
    /// `find` if they are not cached.
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

    /// Returns the turn of a context; calls `find` if it is not cached.
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

    /// Drops the answers of an earlier generation.
    fn renew(&self, generation: Generation) {
        if self.generation.replace(generation) != generation {
            self.takers.set(None);
            self.added.set(0);
        }
    }
}
