// SPDX-License-Identifier: GPL-2.0

//! Who waits for a slot of one class, in the order that the policy gave them.

use core::ops::DerefMut;

use super::admission::Reserved;
use super::hints::Hints;
use super::slab::{Slab, NONE};
use super::tree::{Place, Tree};
use super::{ContextId, Entry, SlotId, Time};

/// The contexts that wait for a slot of one class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Queue {
    ready: Tree,
    /// Those that wait for more to be due to them (`limit.rs`), by when it is.
    parked: Tree,
    /// Those that said when they will want a slot (`hints.rs`).
    pub(super) hints: Hints,
    /// How many of those that are ready have no share.
    pub(super) without_share: u32,
    pub(super) reserved: Reserved,
    /// The one that waits longest, and the one that came last.
    pub(super) oldest: u32,
    newest: u32,
    /// When the starvation guard last gave a slice.
    pub(super) guarded: Time,
    /// Counts the contexts that began to wait.
    turns: u64,
    /// The virtual time of the last context picked: where those begin that did not wait.
    pub(super) virtual_ns: u64,
    /// The slots of the class, a bit each.
    pub(super) slots: u8,
    /// Those of them that are not quarantined.
    pub(super) usable: u8,
}

impl Queue {
    pub(super) const EMPTY: Self = Self {
        ready: Tree::EMPTY,
        parked: Tree::EMPTY,
        hints: Hints::NONE,
        without_share: 0,
        reserved: Reserved::NONE,
        oldest: NONE,
        newest: NONE,
        guarded: Time::ZERO,
        turns: 0,
        virtual_ns: 0,
        slots: 0,
        usable: 0,
    };

    /// Puts a context that is not queued at the end of those with its rank and key. O(log n).
    pub(super) fn push<S>(&mut self, slab: &mut Slab<S>, ctx: ContextId, rank: u8, key: u64)
    where
        S: DerefMut<Target = [Entry]>,
    {
        let (index, last) = (ctx.index() as u32, self.newest);
        let Some(entry) = slab.get_mut(ctx) else {
            return;
        };
        self.without_share += u32::from(entry.params.share == 0);
        entry.older = last;
        entry.newer = NONE;
        match slab.at_mut(last) {
            Some(entry) => entry.newer = index,
            None => self.oldest = index,
        }
        self.newest = index;
        self.turns += 1;
        let turn = self.turns;
        self.ready.insert(slab, ctx, Place { rank, key, turn });
    }

    /// The rank, key or mask of a context that is queued changed; among equals it keeps its turn. O(log n).
    pub(super) fn replace<S>(&mut self, slab: &mut Slab<S>, ctx: ContextId, rank: u8, key: u64)
    where
        S: DerefMut<Target = [Entry]>,
    {
        let turn = slab.get(ctx).map_or(0, |entry| entry.node.place().turn);
        self.ready.remove(slab, ctx);
        self.ready.insert(slab, ctx, Place { rank, key, turn });
    }

    /// Takes a context that is queued, or was put aside, out. O(log n).
    pub(super) fn remove<S>(&mut self, slab: &mut Slab<S>, ctx: ContextId)
    where
        S: DerefMut<Target = [Entry]>,
    {
        let Some(entry) = slab.get_mut(ctx) else {
            return;
        };
        if core::mem::take(&mut entry.aside) {
            return;
        }
        if core::mem::take(&mut entry.parked) {
            self.parked.remove(slab, ctx);
            return;
        }
        let without = u32::from(entry.params.share == 0);
        self.without_share = self.without_share.saturating_sub(without);
        let older = core::mem::replace(&mut entry.older, NONE);
        let newer = core::mem::replace(&mut entry.newer, NONE);
        match slab.at_mut(older) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
        match slab.at_mut(newer) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
        self.ready.remove(slab, ctx);
    }

    /// The first context that may run on `slot`. O(log n).
    pub(super) fn first<S>(&self, slab: &Slab<S>, slot: SlotId) -> Option<ContextId>
    where
        S: DerefMut<Target = [Entry]>,
    {
        self.first_of(slab, slot.bit())
    }

    /// The first context that may run on one of `slots`, a bit each. O(log n).
    pub(super) fn first_of<S>(&self, slab: &Slab<S>, slots: u8) -> Option<ContextId>
    where
        S: DerefMut<Target = [Entry]>,
    {
        self.ready.first(slab, slots)
    }

    /// The first context that may run on `slot` and is none of `taken`. O(k log n) with k taken ones.
    pub(super) fn first_but<S>(
        &self,
        slab: &Slab<S>,
        slot: SlotId,
        taken: &[Option<ContextId>],
    ) -> Option<ContextId>
    where
        S: DerefMut<Target = [Entry]>,
    {
        let mut at = self.ready.first(slab, slot.bit());
        while let Some(ctx) = at.filter(|ctx| taken.contains(&Some(*ctx))) {
            at = self.ready.after(slab, ctx, slot.bit());
        }
        at
    }

    /// Puts a context that is not queued aside until `at`. O(log n).
    pub(super) fn park<S>(&mut self, slab: &mut Slab<S>, ctx: ContextId, at: Time)
    where
        S: DerefMut<Target = [Entry]>,
    {
        self.turns += 1;
        let place = Place {
            rank: 0,
            key: at.as_ns(),
            turn: self.turns,
        };
        if let Some(entry) = slab.get_mut(ctx) {
            entry.parked = true;
        }
        self.parked.insert(slab, ctx, place);
    }

    /// The one that was put aside for the shortest time. O(log n).
    pub(super) fn first_parked<S>(&self, slab: &Slab<S>) -> Option<ContextId>
    where
        S: DerefMut<Target = [Entry]>,
    {
        self.parked.first(slab, u8::MAX)
    }
}
