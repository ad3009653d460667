// SPDX-License-Identifier: GPL-2.0

//! A context begins to wait: which slot it gets, and what that displaces.

use super::super::card::{Call, Card};
use super::super::slot::Run;
use super::super::values::{slots_in, Class, EntityIndex, PauseCause, SlotId, Time, MAX_SLOTS};
use super::super::Scheduler;
use super::bind::Unbound;
use super::{Next, Why};

/// How many contexts whose groups have used up their caps one decision sets aside.
const THROTTLES_MAX: usize = 8;

/// The offer of a slot to a context that waits, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Offer {
    /// It is vacant, or about to be, without a successor.
    Free,
    /// Its successor gives way.
    Successor,
    /// Its job is stopped at once.
    Job,
}

impl Scheduler {
    /// Returns the context that runs next on a slot, and why.
    pub(in super::super) fn choose<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        id: SlotId,
    ) -> Option<(EntityIndex, Why)> {
        let class = self.slot(id).class;
        let usable = self.classes[class.at()].usable;
        if self.frozen || self.gone || usable & id.bit() == 0 {
            return None;
        }
        let first = self.first_for(call, id, id.bit().into())?;
        if let Some((at, due)) = self.starving(id) {
            let is_passed = at != first || self.is_ganged(first);
            let is_passed = is_passed && !self.is_reserved(first);
            if due <= call.now && is_passed && !self.throttle_group_of(call.now, at) {
                return self.choose_gang(call, id, (at, Why::Boost));
            }
        }
        self.choose_gang(call, id, (first, Why::Turn))
    }

    /// Lets a group of a class wait again whose cap was refilled, before a decision: the timer that
    /// does so may be late.
    #[inline]
    pub(in super::super) fn return_group(&mut self, now: Time, class: Class) {
        let due = self.queue.next_throttled(class);
        if due.is_some_and(|(_, at)| at <= now) {
            self.unthrottle_due(now, class);
        }
    }

    /// Returns the context that the policy puts first for a slot, and throttles groups whose caps
    /// are used up on the way; `slots`: those of [`RunQueue::pick`](super::super::queues::RunQueue).
    pub(in super::super) fn first_for<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        id: SlotId,
        slots: u16,
    ) -> Option<EntityIndex> {
        let class = self.slot(id).class;
        for _ in 0..THROTTLES_MAX {
            let first = self.queue.pick(class, slots);
            if self.queue.take_unfinished() {
                break;
            }
            let first = first?;
            if !self.throttle_group_of(call.now, first) {
                return Some(first);
            }
        }
        // The rest is left to the next section.
        self.slots[id.index()].check_by(call.now);
        self.touch(id);
        None
    }

    /// Finds a slot for a context that has begun to wait; then for the one that it has displaced,
    /// and so on: each ranks below the one before, so this ends soon.
    pub(in super::super) fn arrived<C: Card>(&mut self, call: &mut Call<'_, C>, at: EntityIndex) {
        let mut next = Some(at);
        for _ in 0..2 * MAX_SLOTS {
            let Some(at) = next else {
                return;
            };
            next = self.find_slot(call, at);
        }
    }

    /// Finds a slot for a context that waits. Returns the context that a slot is to be found for
    /// next.
    fn find_slot<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        at: EntityIndex,
    ) -> Option<EntityIndex> {
        if self.frozen || self.gone || !self.queue.is_linked(at) || self.is_throttled(at) {
            return None;
        }
        if !self.arrives_alone(call, at) {
            return None;
        }
        let Some((offer, id)) = self.best_offer(call, at) else {
            self.await_slices(call, at);
            return None;
        };
        if self.throttle_group_of(call.now, at) {
            return None;
        }
        if offer == Offer::Free {
            // If a group has just returned, others come first.
            self.rebind(call, id);
            let slot = self.slot(id);
            let is_taken = slot.next.is_some() || slot.protocol.unstopped().is_some();
            return (is_taken && self.queue.is_linked(at)).then_some(at);
        }
        let first = self.first_for(call, id, id.bit().into());
        let first = first.filter(|&first| first != at && self.queue.outranks(first, at));
        if let Some(first) = first.filter(|&first| !self.is_ganged(first)) {
            if let Some(displaced) = self.take_offer(call, first, offer, id, Why::Turn) {
                self.reschedule(self.contexts[displaced].class);
            }
            return self.queue.is_linked(at).then_some(at);
        }
        self.take_offer(call, at, offer, id, Why::Turn)
    }

    /// Returns the best offer of a slot to a context; among equal ones that where the policy puts
    /// the loser last.
    pub(in super::super) fn best_offer<C: Card>(
        &self,
        call: &Call<'_, C>,
        at: EntityIndex,
    ) -> Option<(Offer, SlotId)> {
        let mut best: Option<(Offer, u64, SlotId)> = None;
        let may_outrank = self.queue.may_outrank(at);
        for id in slots_in(self.slots_of(at)) {
            if !may_outrank && !self.slot(id).is_open() {
                continue;
            }
            let Some((offer, loser)) = self.offer(call, id, at) else {
                continue;
            };
            if offer == Offer::Free && self.slot(id).protocol.is_vacant() {
                return Some((offer, id));
            }
            let place = loser.map_or(u64::MAX, |loser| self.queue.place(loser));
            let is_better = |(other, last, _)| offer < other || offer == other && place > last;
            if best.is_none_or(is_better) {
                best = Some((offer, place, id));
            }
        }
        best.map(|(offer, _, id)| (offer, id))
    }

    /// Returns what a slot offers to a context, and at whose cost.
    fn offer<C: Card>(
        &self,
        call: &Call<'_, C>,
        id: SlotId,
        at: EntityIndex,
    ) -> Option<(Offer, Option<EntityIndex>)> {
        let slot = self.slot(id);
        if slot.prev.is_some() && slot.next.is_some_and(|next| next.why != Why::Hint) {
            // Two contexts are named: the status is read before a third is.
            return None;
        }
        let run = slot.protocol.unstopped();
        run.map_or_else(
            || self.offer_of_leaver(call, id, at),
            |run| self.offer_of_job(call, id, at, run),
        )
    }

    /// Returns what a slot offers to a context that preempts its job.
    fn offer_of_job<C: Card>(
        &self,
        call: &Call<'_, C>,
        id: SlotId,
        at: EntityIndex,
        run: &Run,
    ) -> Option<(Offer, Option<EntityIndex>)> {
        let runs = EntityIndex::of(run.ctx);
        let is_boosted = || self.slot(id).accounts.boosted && call.now < self.slice_end(id);
        let may_stop = self.preempts(at, runs) && (self.is_reserved(at) || !is_boosted());
        let may_stop = may_stop && !self.has_seated_mate(runs);
        may_stop.then_some((Offer::Job, Some(runs)))
    }

    /// Returns what a slot offers whose job leaves, or that has none.
    fn offer_of_leaver<C: Card>(
        &self,
        call: &Call<'_, C>,
        id: SlotId,
        at: EntityIndex,
    ) -> Option<(Offer, Option<EntityIndex>)> {
        let slot = self.slot(id);
        let (is_vacant, is_leaving) = (slot.protocol.is_vacant(), self.is_leaving(id));
        if slot.next.is_none() && (is_vacant || is_leaving && !self.comes_back(id, at)) {
            return Some((Offer::Free, None));
        }
        // A relay was told to stop the job later.
        let run = slot.protocol.run();
        let run = run.filter(|run| run.stop.is_some_and(|stop| !stop.is_at_once()));
        if let Some(offer) = run.and_then(|run| self.offer_of_job(call, id, at, run)) {
            return Some(offer);
        }
        let next = slot.next.filter(|_| is_vacant || is_leaving)?;
        let has_room = || is_vacant && self.has_room(call.now, id, at);
        let gives_way = self.gives_way(&next, at) || has_room();
        gives_way.then_some((Offer::Successor, Some(next.ctx)))
    }

    /// Returns whether a successor gives way to a context that waits.
    #[inline]
    pub(in super::super) fn gives_way(&self, next: &Next, at: EntityIndex) -> bool {
        match next.why {
            Why::Turn => self.preempts(at, next.ctx) && !self.is_beginning(next),
            Why::Boost => self.is_reserved(at),
            Why::Hint => self.gives_up_kept(next.ctx, at),
        }
    }

    /// Takes what a slot offers. Returns the context that was displaced, and waits.
    pub(in super::super) fn take_offer<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        at: EntityIndex,
        offer: Offer,
        id: SlotId,
        why: Why,
    ) -> Option<EntityIndex> {
        let displaced = match self.unbind(call, id) {
            Unbound::Free(next) => Some(next),
            Unbound::None | Unbound::Maybe => None,
            Unbound::Stays => return None,
        };
        if offer == Offer::Job {
            let waiter = self.contexts.id(at);
            let cause = match why {
                Why::Hint => PauseCause::Hint { waiter },
                Why::Turn | Why::Boost => PauseCause::Outranked { waiter },
            };
            self.stop(call, id, call.now, cause);
        }
        self.bind(call, id, at, why);
        let waits = displaced.filter(|&next| self.give_back(call, next));
        match self.slot(id).protocol.is_vacant() {
            true => _ = self.start_next(call, id),
            false => self.commit(call, id),
        }
        waits.map(|next| next.ctx)
    }

    /// Has the policy look at the runs that a context waits for, at the end of their slices, or at
    /// once where these are over.
    pub(in super::super) fn await_slices<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        at: EntityIndex,
    ) {
        for id in slots_in(self.slots_of(at)) {
            let slot = self.slot(id);
            let may_end = slot.protocol.unstopped().is_some() && slot.next.is_none();
            if !may_end || slot.check_at <= call.now {
                continue;
            }
            let check_at = self.slice_end(id).before(self.lead(id));
            if check_at < slot.check_at && self.queue.is_linked(at) {
                self.slots[id.index()].check_at = check_at;
                self.touch(id);
                self.check_run(call, id);
            }
        }
    }
}
