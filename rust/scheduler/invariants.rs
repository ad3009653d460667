// SPDX-License-Identifier: GPL-2.0

//! Invariants, for tests: they hold after each call.
//!
//! - I1: a context is in exactly one place: a queue, or kept out of it because it may use no slot;
//!   bound to one slot; on one slot; or it has no live job.
//! - I2: a slot has at most one run, one successor, and one context that was named and replaced,
//!   this on a relay only.
//! - I4: while a slot is vacant without a successor, nobody who waits may use it, or its timer is
//!   due.
//! - I7: no waiting context outranks a successor that it could replace, or a run that it could stop.
//! - I8: a slot that is late has no successor, unless its class has no other slot.
//! - I11: a slot that is not vacant has a timer.
//! - I14: a frozen scheduler has no successors.

use super::context::State;
use super::decisions::{Slot, Why};
use super::slot::Protocol;
use super::values::{EntityIndex, SlotId, SlotState, Time};
use super::{Scheduler, SOON};

impl Scheduler {
    /// Checks the invariants after a call at `now`.
    ///
    /// # Panics
    ///
    /// If one does not hold.
    pub fn check_invariants(&self, now: Time) {
        if self.gone {
            return;
        }
        for place in 0..self.contexts.len() {
            if let Some(at) = self.contexts.at(place) {
                self.check_place(at);
            }
        }
        for id in self.ids() {
            self.check_slot(id, now);
        }
    }

    /// I1: a context is in exactly one place.
    fn check_place(&self, at: EntityIndex) {
        let context = &self.contexts[at];
        let is_bound = |slot: &Slot| {
            let all = [slot.next(), slot.prev()];
            all.into_iter()
                .flatten()
                .filter(|next| next.ctx == at && next.why != Why::Hint)
                .count()
        };
        let is_on = |slot: &Slot| occupant(&slot.protocol) == Some(at);
        let bound: usize = self.ids().map(|id| is_bound(self.slot(id))).sum();
        let on = self.ids().filter(|&id| is_on(self.slot(id))).count();
        let expected = match context.state {
            State::Bound => (1, 0),
            State::Running => (0, 1),
            _ => (0, 0),
        };
        assert_eq!((bound, on), expected, "{at:?} is {:?}", context.state);
        let linked = self.queue.is_linked(at);
        let may_wait = context.state == State::Queued && self.slots_of(at) != 0;
        let may_wait = may_wait && !self.is_gathering(at) && self.awaits_budget(at).is_none();
        let is_settled = self.sweep == super::Sweep::None;
        assert!(!linked || context.state == State::Queued, "{at:?} waits");
        assert!(linked == may_wait || !is_settled, "{at:?} does not wait");
        assert_eq!(context.slot.is_some(), expected != (0, 0));
    }

    fn check_slot(&self, id: SlotId, now: Time) {
        let slot = self.slot(id);
        let protocol = &slot.protocol;
        // I2: only what a relay may have taken is in doubt.
        assert!(slot.prev().is_none() || protocol.has_relay() && protocol.is_busy());
        let may_be_taken = |at| protocol.names(self.contexts.id(at));
        let next = slot.next();
        // I8, I14: no successor waits for a slot that is late, or on a card that is frozen.
        let is_late = protocol.is_busy() && protocol.unstopped().is_none() && !self.is_leaving(id);
        if let Some(next) = next.filter(|next| !may_be_taken(next.ctx)) {
            assert!(!self.frozen, "slot {id:?} of a frozen card has a successor");
            let is_last = protocol.stopping().is_some_and(|stop| stop.last);
            assert!(!is_late || is_last, "{next:?} waits for slot {id:?}");
        }
        // I11: a slot at work has a timer, and so has a slot that is to be filled.
        let due = slot.deadline();
        assert!(
            slot.is_armed_by(due.max(now + SOON)),
            "slot {id:?} has no timer"
        );
        let is_usable = self.classes[slot.class.at()].usable & id.bit() != 0;
        if !is_usable || self.frozen || self.sweep != super::Sweep::None || due <= now + SOON {
            return;
        }
        for place in 0..self.contexts.len() {
            let at = self.contexts.at(place);
            if let Some(at) = at.filter(|&at| self.could_run(at, id)) {
                self.check_waiter(at, id, now);
            }
        }
    }

    /// Returns whether a context waits, and could run on a slot.
    fn could_run(&self, at: EntityIndex, id: SlotId) -> bool {
        let is_allowed = self.slots_of(at) & id.bit() != 0;
        let group = self.queue.group_of(at);
        let mut capped = self.groups.lineage(group);
        is_allowed
            && self.queue.is_linked(at)
            && !self.is_throttled(at)
            && !self.is_ganged(at)
            && !capped.any(|group| self.groups.is_spent(group))
    }

    /// I4 and I7: a context that waits has no claim to the slot.
    fn check_waiter(&self, at: EntityIndex, id: SlotId, now: Time) {
        let slot = self.slot(id);
        let protocol = &slot.protocol;
        let Some(next) = slot.next() else {
            assert!(!protocol.is_vacant(), "{at:?} waits beside vacant {id:?}");
            let run = protocol.unstopped().filter(|_| !slot.is_boosted());
            if let Some(run) = run {
                let runs = EntityIndex::of(run.ctx);
                assert!(!self.preempts(at, runs), "{at:?} waits for {runs:?}");
            }
            return;
        };
        let is_stopped = protocol.stopping().is_none_or(|stop| stop.at <= now);
        let may_give_way = slot.prev().is_none() && is_stopped;
        if may_give_way && (protocol.is_vacant() || self.is_leaving(id)) {
            assert!(!self.gives_way(&next, at), "{at:?} waits for {next:?}");
        }
    }
}

/// Returns the context whose job is on a slot, or was until the slot is cleared.
fn occupant(protocol: &Protocol) -> Option<EntityIndex> {
    match protocol.report() {
        SlotState::Running(ctx) | SlotState::Pausing(ctx) | SlotState::Resetting(ctx) => {
            Some(EntityIndex::of(ctx))
        }
        SlotState::Vacant | SlotState::Quarantined | SlotState::Gone => None,
    }
}
