// SPDX-License-Identifier: GPL-2.0

//! Who waits for a slot of one class, in the order that the policy gave them: contexts, and groups that stand for theirs.

use core::ops::DerefMut;

use super::admission::Reserved;
use super::chain::Chain;
use super::hints::Hints;
use super::limit::{Parked, THROTTLE_MAX};
use super::slab::Slab;
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
    /// Sum of the weights of all groups that stand for contexts which run or wait.
    pub(super) weights: u64,
    pub(super) reserved: Reserved,
    /// Those that are ready, the one that waits longest first.
    pub(super) waiting: Chain,
    /// How many contexts whose groups are at their caps this decision may still park. None: there may be more of them.
    pub(super) throttles: u8,
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
        weights: 0,
        reserved: Reserved::NONE,
        waiting: Chain::EMPTY,
        throttles: THROTTLE_MAX,
        guarded: Time::ZERO,
        turns: 0,
        virtual_ns: 0,
        slots: 0,
        usable: 0,
    };

    /// Puts a context that is not queued at the end of those with its rank and key; of its group's, which stands for it,
    /// if `grouped`. O(log n).
    pub(super) fn push<S>(
        &mut self,
        slab: &mut Slab<S>,
        ctx: ContextId,
        (rank, key): (u8, u64),
        grouped: bool,
    ) where
        S: DerefMut<Target = [Entry]>,
    {
        if slab.get(ctx).is_none() {
            return;
        }
        self.waiting.push(slab, ctx.index() as u32);
        let turn = self.next_turn();
        let place = Place { rank, key, turn };
        if grouped {
            self.activate(slab, ctx);
        }
        self.insert(slab, ctx, place);
    }

    /// A number for a context that begins to wait.
    pub(super) fn next_turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    /// The group of a context stands for it from now on, while it waits or runs.
    pub(super) fn activate<S>(&mut self, slab: &mut Slab<S>, ctx: ContextId)
    where
        S: DerefMut<Target = [Entry]>,
    {
        let Some(entry) = slab.get_mut(ctx) else {
            return;
        };
        let (group, was) = (entry.group, core::mem::replace(&mut entry.grouped, true));
        if let Some(record) = slab.at_mut(group).filter(|_| !was) {
            record.record.active += 1;
            if record.record.active == 1 {
                self.weights += u64::from(record.params.weight);
            }
        }
    }

    /// It does so no more.
    pub(super) fn deactivate<S>(&mut self, slab: &mut Slab<S>, ctx: ContextId)
    where
        S: DerefMut<Target = [Entry]>,
    {
        let Some(entry) = slab.get_mut(ctx) else {
            return;
        };
        let (group, was) = (entry.group, core::mem::take(&mut entry.grouped));
        if let Some(record) = slab.at_mut(group).filter(|_| was) {
            record.record.active = record.record.active.saturating_sub(1);
            if record.record.active == 0 {
                let weight = u64::from(record.params.weight);
                self.weights = self.weights.saturating_sub(weight);
            }
        }
    }

    /// Puts a context into the order: of its class, or of its group and the group into that of the class.
    fn insert<S>(&mut self, slab: &mut Slab<S>, ctx: ContextId, place: Place)
    where
        S: DerefMut<Target = [Entry]>,
    {
        let Some((at, mut members)) = members_with(slab, ctx) else {
            self.ready.insert(slab, ctx, place);
            return;
        };
        let first = members.is_empty();
        members.insert(slab, ctx, Place { rank: 0, ..place });
        let changed = put_members(slab, at, members);
        if first {
            let key = slab.get(at).map_or(0, |record| record.clock.virtual_ns);
            self.ready.insert(slab, at, Place { key, ..place });
        } else if changed {
            self.ready.refresh(slab, at);
        }
    }

    /// Takes a context out of the order.
    fn take<S>(&mut self, slab: &mut Slab<S>, ctx: ContextId)
    where
        S: DerefMut<Target = [Entry]>,
    {
        let Some((at, mut members)) = members_with(slab, ctx) else {
            self.ready.remove(slab, ctx);
            return;
        };
        members.remove(slab, ctx);
        let changed = put_members(slab, at, members);
        if members.is_empty() {
            self.ready.remove(slab, at);
        } else if changed {
            self.ready.refresh(slab, at);
        }
    }

    /// The virtual time of a group changed; among equals it keeps its turn. O(log n).
    pub(super) fn replace_group<S>(&mut self, slab: &mut Slab<S>, group: u32)
    where
        S: DerefMut<Target = [Entry]>,
    {
        let Some((at, record)) = slab.id_at(group).and_then(|at| Some((at, slab.get(at)?))) else {
            return;
        };
        let key = record.clock.virtual_ns;
        let place = record.node.place();
        if record.record.members.is_empty() || place.key == key {
            return;
        }
        self.ready.remove(slab, at);
        self.ready.insert(slab, at, Place { key, ..place });
    }

    /// The rank, key or mask of a context that is queued changed; among equals it keeps its turn. O(log n).
    pub(super) fn replace<S>(&mut self, slab: &mut Slab<S>, ctx: ContextId, rank: u8, key: u64)
    where
        S: DerefMut<Target = [Entry]>,
    {
        let turn = slab.get(ctx).map_or(0, |entry| entry.node.place().turn);
        self.take(slab, ctx);
        self.insert(slab, ctx, Place { rank, key, turn });
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
        match core::mem::replace(&mut entry.parked, Parked::No) {
            Parked::No => {}
            Parked::Own => return self.unpark_alone(slab, ctx),
            Parked::Group => return self.unpark_behind(slab, ctx),
        }
        self.waiting.remove(slab, ctx.index() as u32);
        self.take(slab, ctx);
        self.deactivate(slab, ctx);
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
        resolve(slab, self.ready.first(slab, slots)?, slots)
    }

    /// The first that may run on one of `slots` and that the group of `ctx` does not stand for. O(log n).
    pub(super) fn first_beside<S>(
        &self,
        slab: &Slab<S>,
        ctx: ContextId,
        slots: u8,
    ) -> Option<ContextId>
    where
        S: DerefMut<Target = [Entry]>,
    {
        let (at, _) = members_with(slab, ctx)?;
        let first = self.ready.first(slab, slots)?;
        if first == at {
            resolve(slab, self.ready.after(slab, at, slots)?, slots)
        } else {
            resolve(slab, first, slots)
        }
    }

    /// The next one after `ctx`, which waits, that may run on one of `slots`. O(log n).
    fn after<S>(&self, slab: &Slab<S>, ctx: ContextId, slots: u8) -> Option<ContextId>
    where
        S: DerefMut<Target = [Entry]>,
    {
        let Some((at, members)) = members_with(slab, ctx) else {
            return resolve(slab, self.ready.after(slab, ctx, slots)?, slots);
        };
        members
            .after(slab, ctx, slots)
            .or_else(|| resolve(slab, self.ready.after(slab, at, slots)?, slots))
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
        let mut at = self.first(slab, slot);
        while let Some(ctx) = at.filter(|ctx| taken.contains(&Some(*ctx))) {
            at = self.after(slab, ctx, slot.bit());
        }
        at
    }

    /// Puts a context that is not queued aside until `at`. O(log n).
    pub(super) fn park<S>(&mut self, slab: &mut Slab<S>, ctx: ContextId, at: Time, why: Parked)
    where
        S: DerefMut<Target = [Entry]>,
    {
        if let Some(entry) = slab.get_mut(ctx) {
            entry.parked = why;
        }
        match why {
            Parked::Group => self.park_behind(slab, ctx, at),
            Parked::No | Parked::Own => self.park_alone(slab, ctx, at),
        }
    }

    /// Puts a context into the order of those that wait until some time.
    pub(super) fn park_alone<S>(&mut self, slab: &mut Slab<S>, ctx: ContextId, at: Time)
    where
        S: DerefMut<Target = [Entry]>,
    {
        let place = Place {
            rank: 0,
            key: at.as_ns(),
            turn: self.next_turn(),
        };
        self.parked.insert(slab, ctx, place);
    }

    /// Takes a context out of that order.
    pub(super) fn unpark_alone<S>(&mut self, slab: &mut Slab<S>, ctx: ContextId)
    where
        S: DerefMut<Target = [Entry]>,
    {
        self.parked.remove(slab, ctx);
    }

    /// The one that was put aside for the shortest time. O(log n).
    pub(super) fn first_parked<S>(&self, slab: &Slab<S>) -> Option<ContextId>
    where
        S: DerefMut<Target = [Entry]>,
    {
        self.parked.first(slab, u8::MAX)
    }
}

/// The group that stands for a context, and those of it that wait.
fn members_with<S>(slab: &Slab<S>, ctx: ContextId) -> Option<(ContextId, Tree)>
where
    S: DerefMut<Target = [Entry]>,
{
    let group = slab.get(ctx).filter(|entry| entry.grouped)?.group;
    let at = slab.id_at(group)?;
    Some((at, slab.get(at)?.record.members))
}

/// Notes who waits of a group. Has it changed what the group may use?
fn put_members<S>(slab: &mut Slab<S>, at: ContextId, members: Tree) -> bool
where
    S: DerefMut<Target = [Entry]>,
{
    let allowed = members.masks(slab);
    let Some(record) = slab.get_mut(at) else {
        return false;
    };
    record.record.members = members;
    core::mem::replace(&mut record.allowed, allowed) != allowed
}

/// The one of a group that goes first, or who stands for itself.
fn resolve<S>(slab: &Slab<S>, at: ContextId, slots: u8) -> Option<ContextId>
where
    S: DerefMut<Target = [Entry]>,
{
    let entry = slab.get(at)?;
    if entry.is_record() {
        entry.record.members.first(slab, slots)
    } else {
        Some(at)
    }
}
