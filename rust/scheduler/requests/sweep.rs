// SPDX-License-Identifier: GPL-2.0

//! Work that concerns every context, done for a few contexts at a time.
//!
//! A change of policy, a slot that goes out of use or comes back, and the end of the card concern
//! all contexts. The caller holds its lock with interrupts off, so no call visits all of them: the
//! work is noted, and [`Scheduler::sweep`] does the next part. The caller drops its lock between two
//! parts. Visiting a context twice does no harm, so a request during a sweep restarts the sweep.
//!
//! A new policy is in force at once. Until a sweep has visited a context, its job waits where the
//! old policy put it.

use super::super::card::{Call, Card, Notice};
use super::super::context::State;
use super::super::values::{EntityIndex, Failure, Time};
use super::super::{Scheduler, Sweep};

impl Scheduler {
    /// Returns whether there is work left for [`Scheduler::sweep`].
    pub fn is_sweeping(&self) -> bool {
        self.sweep != Sweep::None
    }

    /// Does the next part of the work that concerns every context: for at most `most` contexts or
    /// groups, O(log n) each. Returns whether work is left.
    ///
    /// When [`Scheduler::is_sweeping`] returns `true` after any other call, this must be called until
    /// no work is left. The caller should drop its lock between two calls.
    pub fn sweep<C: Card>(&mut self, card: &mut C, now: Time, most: u32) -> bool {
        if !self.is_sweeping() {
            return false;
        }
        let call = &mut Call::new(card, now);
        // CAST: tables are far shorter than 2^32 places.
        let (levels, contexts) = (self.queue.nr_levels(), self.contexts.len() as u32);
        self.sweep = match self.sweep {
            Sweep::None => Sweep::None,
            Sweep::Levels(first) => {
                let end = levels.min(first.saturating_add(most));
                for level in first..end {
                    self.queue.renew_level(level);
                }
                match end == levels {
                    true => Sweep::Renew(0),
                    false => Sweep::Levels(end),
                }
            }
            Sweep::Renew(first) | Sweep::Settle(first) => {
                let renews = matches!(self.sweep, Sweep::Renew(_));
                let end = contexts.min(first.saturating_add(most));
                for place in first..end {
                    self.visit(call, place, renews);
                }
                match (end == contexts, renews) {
                    (true, _) => Sweep::None,
                    (false, true) => Sweep::Renew(end),
                    (false, false) => Sweep::Settle(end),
                }
            }
        };
        self.reschedule_all();
        self.finish(call);
        self.is_sweeping()
    }

    fn visit<C: Card>(&mut self, call: &mut Call<'_, C>, place: u32, renews: bool) {
        let Some(at) = self.contexts.at(place as usize) else {
            return;
        };
        if self.gone {
            return self.settle_gone(call, at);
        }
        let is_queued = self.contexts[at].state == State::Queued;
        if is_queued && self.check_slots(at).is_err() {
            self.stop_waiting(call.now, at, State::Idle);
            return self.fail(call, at, Failure::Protocol);
        }
        if renews {
            self.renew_context(call.now, at);
        } else if is_queued && self.queue.is_linked(at) != (self.slots_of(at) != 0) {
            self.change(call, at, |_| ());
        }
    }

    /// Puts a context where the policy in force wants it.
    fn renew_context(&mut self, now: Time, at: EntityIndex) {
        if let Some(slot) = self.slot_with(at) {
            self.charge(now, slot);
        }
        // A hint does not depend on the policy.
        let awaits = self.awaits_budget(at).is_some();
        let turn = self.detach(at);
        self.queue.reset_vruntime(at);
        self.renew_rank(now, at);
        if turn.is_some() || awaits {
            self.reattach(at, turn);
        }
    }

    /// Handles a context of a card that is gone: its job fails, or the context is released if it was
    /// closed.
    fn settle_gone<C: Card>(&mut self, call: &mut Call<'_, C>, at: EntityIndex) {
        self.contexts[at].stuck = false;
        let (state, closing) = (self.contexts[at].state, self.contexts[at].closing);
        if state.wants_slot() {
            self.stop_waiting(call.now, at, state);
        }
        if closing {
            return self.release(call, at);
        }
        let name = self.contexts.id(at);
        if state.is_live() {
            self.fail(call, at, Failure::Gone);
        }
        call.card.notify(name, Notice::Lost);
    }
}
