// SPDX-License-Identifier: GPL-2.0

//! Binding a successor to a slot, and giving it back.

use super::super::card::{Call, Card};
use super::super::context::{OnStop, State};
use super::super::values::{EntityIndex, SlotId};
use super::super::Scheduler;
use super::{Next, Why};

/// The result of taking a successor off its slot.
pub(in super::super) enum Unbound {
    /// There was none.
    None,
    /// It will not run there.
    Free(Next),
    /// The card may have taken it.
    Maybe,
    /// It stays: the card may have taken an earlier one, and this is looked up first.
    Stays,
}

/// Binding.
impl Scheduler {
    /// Makes a waiting context the successor on a slot that has none.
    pub(in super::super) fn bind<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        id: SlotId,
        at: EntityIndex,
        why: Why,
    ) {
        let next = Next {
            ctx: at,
            why,
            turn: self.queue.turn(at),
            named: call.now,
            together: None,
        };
        self.touch(id);
        self.slots[id.index()].next = Some(next);
        if why == Why::Hint {
            return self.note_kept(call, id, at);
        }
        self.unlink(at);
        let context = &mut self.contexts[at];
        (context.state, context.slot) = (State::Bound, Some(id));
        // The engine looks at its queue when it begins.
        context.on_stop = OnStop::Requeue;
    }

    /// Takes the successor off a slot.
    pub(in super::super) fn unbind<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        id: SlotId,
    ) -> Unbound {
        let Some(next) = self.slot(id).next else {
            return Unbound::None;
        };
        let name = self.contexts.id(next.ctx);
        self.touch(id);
        let slot = &mut self.slots[id.index()];
        if slot.protocol.is_loading() {
            slot.protocol.close(call);
        }
        if !slot.protocol.names(name) {
            slot.next = None;
            return Unbound::Free(next);
        }
        if slot.prev.is_some() {
            call.card.read_status(id);
            return Unbound::Stays;
        }
        slot.prev = slot.next.take();
        Unbound::Maybe
    }

    /// Handles a context that was bound and will not run: it waits at its old place, unless its
    /// owner wants something else. Returns whether it waits.
    pub(in super::super) fn give_back<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        next: Next,
    ) -> bool {
        if next.why == Why::Hint {
            self.lose_kept(call.now, next.ctx);
            return false;
        }
        self.dissolve(call, &next);
        let since = self.contexts[next.ctx].since;
        self.requeue(call, next.ctx, since, Some(next.turn))
    }

    /// Takes the successor off a slot because it is not to run there, and looks for another.
    pub(in super::super) fn withdraw<C: Card>(&mut self, call: &mut Call<'_, C>, id: SlotId) {
        let left = match self.unbind(call, id) {
            Unbound::Free(next) => Some(next),
            Unbound::Maybe => {
                // The status shows whether the card has taken it.
                call.card.read_status(id);
                None
            }
            Unbound::None | Unbound::Stays => None,
        };
        let waits = left.is_some_and(|next| self.give_back(call, next));
        self.rebind(call, id);
        if let Some(next) = left.filter(|_| waits) {
            self.arrived(call, next.ctx);
        }
    }

    /// Withdraws a context from the slot that it is bound to, if it is the successor. A context that
    /// was replaced is settled when it is known whether the card has taken it.
    pub(in super::super) fn withdraw_context<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        id: SlotId,
        at: EntityIndex,
    ) {
        match self.slot(id).next.is_some_and(|next| next.ctx == at) {
            true => self.withdraw(call, id),
            false => call.card.read_status(id),
        }
    }

    /// Binds a successor to a slot that is being vacated without one; fills a vacant slot.
    pub(in super::super) fn rebind<C: Card>(&mut self, call: &mut Call<'_, C>, id: SlotId) {
        let slot = self.slot(id);
        if slot.protocol.is_vacant() {
            return self.fill(call, id);
        }
        if slot.next.is_none() && self.is_leaving(id) {
            // A relay was told when: it is the turn of who is first then.
            let stop = slot.protocol.stopping().map(|stop| stop.at);
            if let Some(at) = stop.filter(|&at| at > call.now) {
                self.charge_to(call.now, at, id);
            }
            if let Some((at, why)) = self.choose(call, id) {
                if why == Why::Boost || !self.comes_back(id, at) {
                    self.bind(call, id, at, why);
                }
            }
        }
        self.commit(call, id);
    }

    /// Returns whether the leaver of a slot would preempt a context at once.
    pub(in super::super) fn comes_back(&self, id: SlotId, at: EntityIndex) -> bool {
        let run = self.slot(id).protocol.run();
        run.is_some_and(|run| {
            let leaver = EntityIndex::of(run.ctx);
            let context = &self.contexts[leaver];
            let waits = context.on_stop != OnStop::Hold && !context.closing;
            let may_return = self.queue.allowed(leaver) & id.bit() != 0;
            let may_return = may_return && !self.lacks_budget(leaver);
            waits && may_return && self.queue.outranks(leaver, at)
        })
    }

    /// Tells the card what has changed: the order in force, and how long the job may work on to a
    /// boundary.
    pub(in super::super) fn commit<C: Card>(&mut self, call: &mut Call<'_, C>, id: SlotId) {
        self.touch(id);
        let slot = self.slot(id);
        let Some(run) = slot.protocol.run() else {
            return;
        };
        let runs = EntityIndex::of(run.ctx);
        let next = slot.next;
        let is_to_boundary = run.stop.is_some_and(|stop| stop.boundary);
        if is_to_boundary {
            let is_urgent = next.is_some_and(|next| self.queue.outranks(next.ctx, runs));
            let wait = (is_urgent || self.frozen).then_some(self.boundary_wait);
            self.slots[id.index()].protocol.bound_boundary(call, wait);
        }
        // A frozen card is told nothing as long as it may have taken two contexts: the status that
        // is being read settles one of them.
        let is_settled = !self.frozen || next.is_none();
        if is_settled && self.slot(id).protocol.has_relay() {
            // A slot that waits for others of a gang, or is kept, is not given on by the card.
            let is_named = |next: &Next| next.together.is_none() && next.why != Why::Hint;
            let next = next.filter(is_named).map(|next| {
                let saved = self.contexts[next.ctx].saved;
                (self.contexts.id(next.ctx), saved)
            });
            self.slots[id.index()].protocol.post(call, next);
        }
    }

    /// Returns whether a context that is bound to a slot, or that its relay has taken, should not
    /// run there.
    pub(in super::super) fn is_unwanted(&self, id: SlotId, at: EntityIndex) -> bool {
        let context = &self.contexts[at];
        let may_run = self.queue.allowed(at) & id.bit() != 0;
        context.closing || context.on_stop == OnStop::Hold || !may_run
    }

    /// Notes that the card has taken no order of a slot that was replaced.
    pub(in super::super) fn settle_replaced<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        id: SlotId,
    ) {
        if let Some(prev) = self.slots[id.index()].prev.take() {
            if self.give_back(call, prev) {
                self.arrived(call, prev.ctx);
            }
            self.reschedule(self.slot(id).class);
        }
    }

    /// Takes the successors of a slot off it without looking at what the card knows of them, and
    /// returns them.
    pub(in super::super) fn take_named(&mut self, id: SlotId) -> [Option<Next>; 2] {
        self.touch(id);
        let slot = &mut self.slots[id.index()];
        [slot.next.take(), slot.prev.take()]
    }
}
