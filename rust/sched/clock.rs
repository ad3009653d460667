// SPDX-License-Identifier: GPL-2.0

//! What a context is charged for its time on slots.
//!
//! A context is charged from START to the observed end of its run: its restores are its own cost, and so are its saves at
//! the end of a slice. A save that makes way for another before that is charged to the other one.

use core::ops::DerefMut;

use super::machine::Machine;
use super::slot::{slots_in, State};
use super::{ContextId, Duration, Entry, JobState, Params, SlotId, Time};

/// How far behind the others one may be that did not want to run for a while, in virtual ns: what a slice of the default
/// length costs at the default weight. Sleeping longer saves up no more. It is the same in virtual time for all, so in
/// real time it is as the weights.
const CREDIT: u64 = Params::DEFAULT.timeslice.as_ns();

/// The virtual time of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    /// Time on slots in ns, scaled by the default weight over its weight. It lasts for 5 years at weight 1 and then
    /// stands, so that all become equal.
    pub(super) virtual_ns: u64,
    /// Until when the run that is under way was charged.
    pub(super) charged: Time,
    /// The weight that the run under way is charged at.
    pub(super) weight: u32,
}

impl Clock {
    pub(super) const ZERO: Self = Self {
        virtual_ns: 0,
        charged: Time::ZERO,
        weight: Params::WEIGHT_DEFAULT as u32,
    };
}

impl Entry {
    /// The virtual time that passes while it runs for `span`; rounded up, so that none runs for nothing.
    fn virtual_ns(&self, span: Duration) -> u64 {
        let weight = u64::from(self.clock.weight.max(1));
        let scaled = span.as_ns().saturating_mul(Params::WEIGHT_DEFAULT.into());
        scaled.div_ceil(weight)
    }

    /// How long it runs until `virtual_ns` of its virtual time have passed.
    pub(super) fn real(&self, virtual_ns: u64) -> Duration {
        let scaled = virtual_ns.saturating_mul(self.clock.weight.into());
        Duration::from_ns(scaled / u64::from(Params::WEIGHT_DEFAULT))
    }

    /// Charges the run that is under way until `now`.
    pub(super) fn meter(&mut self, now: Time) {
        let span = now.since(self.clock.charged);
        self.clock.charged = now;
        self.spend(span);
        self.clock.virtual_ns = self.clock.virtual_ns.saturating_add(self.virtual_ns(span));
    }

    /// Charges time that was spent on it while it was on no slot.
    pub(super) fn pay(&mut self, span: Duration) {
        self.spend(span);
        self.clock.virtual_ns = self.clock.virtual_ns.saturating_add(self.virtual_ns(span));
    }

    /// Its virtual time, the run that is under way included.
    pub(super) fn virtual_at(&self, now: Time) -> u64 {
        let mut at = self.clock.virtual_ns;
        if self.is_metered() {
            at = at.saturating_add(self.virtual_ns(now.since(self.clock.charged)));
        }
        at
    }

    /// Is there a run under way that is not charged to its end?
    pub(super) fn is_metered(&self) -> bool {
        self.state == JobState::Running && !self.charged
    }
}

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// A context begins to want a slot: of the time that it did not want one it keeps only the credit.
    pub(super) fn wake_clock(&mut self, now: Time, ctx: ContextId) {
        let Some(queue) = self.slab.get(ctx).map(|entry| entry.queue) else {
            return;
        };
        self.advance_clock(now, queue, None);
        let start = self.queue(queue).map_or(0, |queue| queue.virtual_ns);
        if let Some(entry) = self.slab.get_mut(ctx) {
            let least = start.saturating_sub(CREDIT);
            entry.clock.virtual_ns = entry.clock.virtual_ns.max(least);
        }
    }

    /// A run ended, and was charged.
    pub(super) fn note_charge(&mut self, now: Time, ctx: ContextId) {
        if let Some(queue) = self.slab.get(ctx).map(|entry| entry.queue) {
            self.advance_clock(now, queue, Some(ctx));
        }
    }

    /// The virtual time of a class is the least of those who run, of the first who waits, and of `leaver`, who just ran;
    /// it never runs backwards. O(log n).
    fn advance_clock(&mut self, now: Time, index: u8, leaver: Option<ContextId>) {
        let Some(queue) = self.queue(index) else {
            return;
        };
        let run = slots_in(queue.slots).filter_map(|id| match self.slot(id)?.state {
            State::Running(run) | State::Pausing(run, _) => Some(run.ctx),
            _ => None,
        });
        let least = run
            .chain(queue.first_of(&self.slab, queue.slots))
            .chain(leaver)
            .filter_map(|ctx| self.slab.get(ctx))
            .map(|entry| entry.virtual_at(now))
            .min();
        if let (Some(queue), Some(least)) = (self.queue_mut(index), least) {
            queue.virtual_ns = queue.virtual_ns.max(least);
        }
    }

    /// Of what `from` was charged, `to` takes `span` over.
    pub(super) fn shift_charge(&mut self, from: ContextId, to: ContextId, span: Duration) {
        if let Some(entry) = self.slab.get_mut(from) {
            let less = entry.virtual_ns(span);
            entry.clock.virtual_ns = entry.clock.virtual_ns.saturating_sub(less);
        }
        if let Some(entry) = self.slab.get_mut(to) {
            let more = entry.virtual_ns(span);
            entry.clock.virtual_ns = entry.clock.virtual_ns.saturating_add(more);
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
    /// that one stands, which came before it. Where virtual time does not decide, the end of its equals is enough.
    pub(super) fn yield_to_next(&mut self, id: SlotId, ctx: ContextId) {
        let next = self.slot(id).and_then(|slot| {
            let ctx = self.queue(slot.queue)?.first(&self.slab, id)?;
            self.slab.get(ctx)
        });
        let (Some(next), Some(entry)) = (next, self.slab.get(ctx)) else {
            return;
        };
        if self.policy.rank(next) != self.policy.rank(entry) {
            return;
        }
        let least = next.clock.virtual_ns;
        if let Some(entry) = self.slab.get_mut(ctx) {
            entry.clock.virtual_ns = entry.clock.virtual_ns.max(least);
        }
    }

    /// Sets the weight that a context is charged at from now on.
    pub(super) fn weigh(&mut self, ctx: ContextId) {
        let Some(entry) = self.slab.get(ctx) else {
            return;
        };
        let Some(queue) = self.queue(entry.queue) else {
            return;
        };
        let running =
            slots_in(queue.slots).filter(|&id| match self.slot(id).map(|slot| slot.state) {
                Some(State::Running(run) | State::Pausing(run, _)) => self
                    .slab
                    .get(run.ctx)
                    .is_some_and(|entry| run.ctx != ctx && entry.params.share == 0),
                _ => false,
            });
        let own = entry.state != JobState::Queued || entry.parked || entry.aside;
        let without = queue.without_share + running.count() as u32 + u32::from(own);
        let left = (100 * queue.usable.count_ones()).saturating_sub(queue.reserved.share);
        let weight = self.policy.policy().weight(entry, left, without);
        if let Some(entry) = self.slab.get_mut(ctx) {
            entry.clock.weight = weight;
        }
    }

    /// Nothing counts that a context has had before; a run that is under way is charged from now on.
    pub(super) fn begin_anew(&mut self, now: Time, ctx: ContextId) {
        if let Some(entry) = self.slab.get_mut(ctx) {
            let start = self.queues.get(usize::from(entry.queue));
            entry.clock = Clock {
                virtual_ns: start.map_or(0, |queue| queue.virtual_ns),
                charged: now,
                ..entry.clock
            };
        }
    }
}
