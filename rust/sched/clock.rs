// SPDX-License-Identifier: GPL-2.0

//! What a context, and its group, are charged for its time on slots.
//!
//! Virtual time has two levels where the policy shares by groups: that of a group says how it stands to the others of the class,
//! that of a context how it stands to those of its group. A context that its group does not stand for stands to the class itself.
//!
//! A context is charged from START to the observed end of its run: its restores are its own cost, and so are its saves at
//! the end of a slice. A save that makes way for another before that is charged to the other one.

use core::ops::DerefMut;

use super::machine::Machine;
use super::slot::slots_in;
use super::{ContextId, Duration, Entry, JobState, Params, SlotId, Time};

/// How far behind the others one may be that did not want to run for a while, in virtual ns: what a slice of the default
/// length costs at the default weight. Sleeping longer saves up no more. It is the same in virtual time for all, so in
/// real time it is as the weights.
const CREDIT: u64 = Params::DEFAULT.timeslice.as_ns();

/// The virtual time of a context or a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    /// Time on slots in ns, scaled by the default weight over its weight. It lasts for 5 years at weight 1 and then
    /// stands, so that all become equal.
    pub(super) virtual_ns: u64,
}

impl Clock {
    pub(super) const ZERO: Self = Self { virtual_ns: 0 };
}

impl Entry {
    /// The virtual time that passes while it runs for `span`; rounded up, so that none runs for nothing.
    fn virtual_ns(&self, span: Duration) -> u64 {
        let weight = u64::from(self.weight.max(1));
        let scaled = span.as_ns().saturating_mul(Params::WEIGHT_DEFAULT.into());
        scaled.div_ceil(weight)
    }

    /// How long it runs until `virtual_ns` of its virtual time have passed.
    pub(super) fn real(&self, virtual_ns: u64) -> Duration {
        let scaled = virtual_ns.saturating_mul(self.weight.into());
        Duration::from_ns(scaled / u64::from(Params::WEIGHT_DEFAULT))
    }

    /// Charges `span` on a slot.
    pub(super) fn advance(&mut self, span: Duration) {
        self.clock.virtual_ns = self.virtual_after(span);
    }

    /// Takes a charge back.
    fn restore(&mut self, span: Duration) {
        self.clock.virtual_ns = self.clock.virtual_ns.saturating_sub(self.virtual_ns(span));
    }

    /// The part of the run under way that was not charged yet.
    pub(super) fn due(&self, now: Time) -> Duration {
        if self.is_metered() {
            now.since(self.since)
        } else {
            Duration::ZERO
        }
    }

    /// Its virtual time, the run that is under way included.
    fn virtual_at(&self, now: Time) -> u64 {
        self.virtual_after(self.due(now))
    }

    /// Its virtual time when it will have been charged for `span` more.
    fn virtual_after(&self, span: Duration) -> u64 {
        self.clock.virtual_ns.saturating_add(self.virtual_ns(span))
    }

    /// It begins to want a slot, where `start` is the virtual time of those that did.
    fn wake(&mut self, start: u64) {
        let least = start.saturating_sub(CREDIT);
        self.clock.virtual_ns = self.clock.virtual_ns.max(least);
    }

    /// Is there a run under way that is not charged to its end?
    pub(super) fn is_metered(&self) -> bool {
        self.state == JobState::Running && !self.charged
    }
}

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// The record of the group that stands for a context under the policy in force.
    fn stands_for(&self, ctx: ContextId) -> Option<u32> {
        let entry = self.slab.get(ctx)?;
        self.policy.policy().groups(entry).then_some(entry.group)
    }

    /// Who stands to others of the class for a context that runs or waits: its group, or itself.
    pub(super) fn standing(&self, ctx: ContextId) -> Option<&Entry> {
        let entry = self.slab.get(ctx)?;
        if entry.grouped {
            self.slab.at(entry.group)
        } else {
            Some(entry)
        }
    }

    /// Does one group stand for both, which run or wait?
    pub(super) fn are_fellows(&self, one: ContextId, other: ContextId) -> bool {
        let group = |ctx| Some(self.slab.get(ctx).filter(|entry| entry.grouped)?.group);
        group(one).is_some_and(|at| group(other) == Some(at))
    }

    /// The contexts on slots.
    pub(super) fn running(&self) -> impl Iterator<Item = ContextId> + '_ {
        self.slots.iter().filter_map(|slot| slot.state.ctx())
    }

    /// How many contexts of a group are on slots.
    pub(super) fn lanes(&self, group: u32) -> u64 {
        let entries = self.running().filter_map(|ctx| self.slab.get(ctx));
        entries
            .filter(|entry| entry.grouped && entry.group == group)
            .count() as u64
    }

    /// Charges the run of a context that is under way until `now`, to it and to the group that stands for it.
    pub(super) fn meter(&mut self, now: Time, ctx: ContextId) {
        let Some(entry) = self.slab.get_mut(ctx) else {
            return;
        };
        let span = entry.due(now);
        entry.spend(span);
        entry.advance(span);
        entry.run += span;
        entry.since = now;
        let group = entry.grouped.then_some(entry.group);
        self.note_run(ctx, span);
        self.spend_of_group(ctx, span);
        self.change_group(group, |record| record.advance(span));
    }

    /// Charges a context, and its group, for time that was spent on it while it was on no slot.
    pub(super) fn pay(&mut self, ctx: ContextId, span: Duration) {
        if let Some(entry) = self.slab.get_mut(ctx) {
            entry.spend(span);
            entry.advance(span);
        }
        self.spend_of_group(ctx, span);
        let group = self.stands_for(ctx);
        self.change_group(group, |record| record.advance(span));
    }

    /// Changes the virtual time of a group, if one is meant.
    pub(super) fn change_group(&mut self, group: Option<u32>, change: impl FnOnce(&mut Entry)) {
        let Some(record) = group.and_then(|at| self.slab.at_mut(at)) else {
            return;
        };
        change(record);
        let index = record.queue;
        if let (Some(at), Some(queue)) = (group, self.queues.get_mut(usize::from(index))) {
            queue.replace_group(&mut self.slab, at);
        }
    }

    /// A context begins to want a slot: of the time that it did not want one it keeps only the credit. So does its group, if
    /// no other of it wants one.
    pub(super) fn wake_clock(&mut self, now: Time, ctx: ContextId) {
        let Some(queue) = self.slab.get(ctx).map(|entry| entry.queue) else {
            return;
        };
        self.advance_clock(now, queue, None);
        self.wake_in_group(now, ctx);
    }

    /// The same, where the virtual time of the class is up to date.
    pub(super) fn wake_in_group(&mut self, now: Time, ctx: ContextId) {
        let Some(queue) = self.slab.get(ctx).map(|entry| entry.queue) else {
            return;
        };
        let mut start = self.queue(queue).map_or(0, |queue| queue.virtual_ns);
        if let Some(at) = self.stands_for(ctx) {
            self.advance_group(now, at, None);
            if let Some(record) = self.slab.at_mut(at) {
                if record.record.active == 0 {
                    record.wake(start);
                }
                start = record.record.virtual_ns;
            }
        }
        if let Some(entry) = self.slab.get_mut(ctx) {
            entry.wake(start);
        }
    }

    /// A run ended, and was charged.
    pub(super) fn note_charge(&mut self, now: Time, ctx: ContextId) {
        let Some(entry) = self.slab.get(ctx) else {
            return;
        };
        let (queue, group) = (entry.queue, entry.grouped.then_some(entry.group));
        self.advance_clock(now, queue, Some(ctx));
        if let Some(at) = group {
            self.advance_group(now, at, Some(ctx));
        }
    }

    /// The virtual time of a class is the least of those who run, of the first who waits, and of `leaver`, who just ran;
    /// it never runs backwards. O(log n).
    pub(super) fn advance_clock(&mut self, now: Time, index: u8, leaver: Option<ContextId>) {
        let Some(queue) = self.queue(index) else {
            return;
        };
        let running = slots_in(queue.slots).filter_map(|id| self.slot(id)?.state.ctx());
        let least = running
            .chain(queue.first_of(&self.slab, queue.slots))
            .chain(leaver)
            .filter_map(|ctx| {
                let due = self.slab.get(ctx)?.due(now);
                Some(self.standing(ctx)?.virtual_after(due))
            })
            .min();
        if let (Some(queue), Some(least)) = (self.queue_mut(index), least) {
            queue.virtual_ns = queue.virtual_ns.max(least);
        }
    }

    /// The same inside a group. O(log n).
    fn advance_group(&mut self, now: Time, at: u32, leaver: Option<ContextId>) {
        let Some(record) = self.slab.at(at) else {
            return;
        };
        let first = record.record.members.first(&self.slab, u8::MAX);
        let least = self
            .running()
            .filter_map(|ctx| self.slab.get(ctx))
            .filter(|entry| entry.grouped && entry.group == at)
            .chain(first.and_then(|ctx| self.slab.get(ctx)))
            .chain(leaver.and_then(|ctx| self.slab.get(ctx)))
            .map(|entry| entry.virtual_at(now))
            .min();
        if let (Some(record), Some(least)) = (self.slab.at_mut(at), least) {
            record.record.virtual_ns = record.record.virtual_ns.max(least);
        }
    }

    /// Of what `from` was charged, `to` takes `span` over; so do their groups.
    pub(super) fn shift_charge(&mut self, from: ContextId, to: ContextId, span: Duration) {
        let groups = (self.stands_for(from), self.stands_for(to));
        if let Some(entry) = self.slab.get_mut(from) {
            entry.restore(span);
        }
        if let Some(entry) = self.slab.get_mut(to) {
            entry.advance(span);
        }
        if groups.0 != groups.1 {
            self.change_group(groups.0, |record| record.restore(span));
            self.change_group(groups.1, |record| record.advance(span));
        }
        self.place_again(to);
    }

    /// Was the job asked to let the next one go first? Asked once, for each time that it was told so.
    pub(super) fn takes_yield(&mut self, ctx: ContextId) -> bool {
        self.slab
            .get_mut(ctx)
            .is_some_and(|entry| core::mem::take(&mut entry.yields))
    }

    /// The job of `ctx`, which leaves the slot and is going to wait, lets the next one go first: it is set as far forward as
    /// that one stands, which came before it; its group is, if the next one is of another. Where virtual time does not
    /// decide, the end of its equals is enough.
    pub(super) fn yield_to_next(&mut self, id: SlotId, ctx: ContextId) {
        let next = self
            .slot(id)
            .and_then(|slot| self.queue(slot.queue)?.first(&self.slab, id));
        let Some((next, entry)) = next.and_then(|next| Some((next, self.slab.get(ctx)?))) else {
            return;
        };
        let own = self.stands_for(ctx);
        let (Some(waits), Some(stands)) = (self.slab.get(next), self.standing(next)) else {
            return;
        };
        if self.policy.rank(waits) != self.policy.rank(entry) {
            return;
        }
        let fellows = own.is_some() && self.stands_for(next) == own;
        let least = if fellows { waits } else { stands }.clock.virtual_ns;
        if own.is_none() || fellows {
            if let Some(entry) = self.slab.get_mut(ctx) {
                entry.clock.virtual_ns = entry.clock.virtual_ns.max(least);
            }
        } else {
            self.change_group(own, |record| {
                record.clock.virtual_ns = record.clock.virtual_ns.max(least);
            });
        }
    }

    /// Sets the weights that a context and its group are charged at from now on.
    pub(super) fn weigh(&mut self, ctx: ContextId) {
        let Some(entry) = self.slab.get(ctx) else {
            return;
        };
        let (group, weight) = (entry.group, self.policy.policy().weight(entry, 0, 0));
        if let Some(entry) = self.slab.get_mut(ctx) {
            entry.weight = weight;
        }
        self.weigh_group(group);
    }

    /// Sets the weight that a group is charged at from now on.
    pub(super) fn weigh_group(&mut self, at: u32) {
        let Some(record) = self.slab.at(at) else {
            return;
        };
        let Some(queue) = self.queue(record.queue) else {
            return;
        };
        let left = (100 * queue.usable.count_ones()).saturating_sub(queue.reserved.share);
        let weight = self.policy.policy().weight(record, left, queue.weights);
        if let Some(record) = self.slab.at_mut(at) {
            record.weight = weight;
        }
    }

    /// Nothing counts that a context has had before; a run that is under way was charged until now.
    pub(super) fn begin_anew(&mut self, ctx: ContextId) {
        let start = match self.stands_for(ctx).and_then(|at| self.slab.at(at)) {
            Some(record) => record.record.virtual_ns,
            None => {
                let queue = self.slab.get(ctx).and_then(|entry| self.queue(entry.queue));
                queue.map_or(0, |queue| queue.virtual_ns)
            }
        };
        if let Some(entry) = self.slab.get_mut(ctx) {
            entry.clock.virtual_ns = start;
        }
    }

    /// Nothing counts that the group of a record, if it is one, has had before.
    pub(super) fn begin_group_anew(&mut self, at: u32) {
        let Some(record) = self.slab.at(at).filter(|record| record.is_used()) else {
            return;
        };
        let start = self.queue(record.queue).map_or(0, |queue| queue.virtual_ns);
        self.change_group(Some(at), |record| record.clock.virtual_ns = start);
    }

    /// A run ended: its group stands for it no more.
    pub(super) fn leave_lane(&mut self, ctx: ContextId) {
        let index = self.slab.get(ctx).map_or(0, |entry| entry.queue);
        if let Some(queue) = self.queues.get_mut(usize::from(index)) {
            queue.deactivate(&mut self.slab, ctx);
        }
    }

    /// A job that is on a slot: its group, if one stands for it, does so from now on.
    pub(super) fn enter_lane(&mut self, ctx: ContextId) {
        if self.stands_for(ctx).is_some() {
            let index = self.slab.get(ctx).map_or(0, |entry| entry.queue);
            if let Some(queue) = self.queues.get_mut(usize::from(index)) {
                queue.activate(&mut self.slab, ctx);
            }
        }
    }
}
