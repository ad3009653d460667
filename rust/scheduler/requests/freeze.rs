// SPDX-License-Identifier: GPL-2.0

//! Taking all jobs off a card that will lose its state (in a reset of the whole card, or with its
//! power), putting them back, and the end of a card.
//!
//! The caller freezes the scheduler, waits until it is at rest, has the card set up again, reports
//! what each slot shows then, and thaws the scheduler. Jobs that could be saved resume where they
//! were. Jobs that could not be stopped or saved have failed by then, or start over, as after any
//! PAUSE. A frozen scheduler has no successors.

use super::super::card::{Call, Card};
use super::super::values::{slots_in, PauseCause, SlotId, Status, Time};
use super::super::{Scheduler, Sweep};

impl Scheduler {
    /// Takes the jobs off all slots, and starts none before [`Scheduler::thaw`]. Owners may make any
    /// request meanwhile. A card that is gone stays gone.
    pub fn freeze<C: Card>(&mut self, card: &mut C, now: Time) {
        self.frozen = true;
        let call = &mut Call::new(card, now);
        for id in slots_in(self.present) {
            if self.slot(id).next().is_some() {
                self.withdraw(call, id);
            }
            self.stop(call, id, now, PauseCause::Freeze);
            self.commit(call, id);
            if self.slot(id).protocol.is_vacant() {
                self.slots[id.index()].protocol.leave_vacant(call);
            }
        }
        self.finish(call);
    }

    /// Notes that the card cannot be accessed any more, and that what is on its slots is lost. No
    /// status is requested from here on; the caller stops the card, and calls
    /// [`Scheduler::lose_runs`].
    pub fn cut_off(&mut self, now: Time) {
        self.frozen = true;
        for id in slots_in(self.present) {
            let over = self.slots[id.index()].protocol.cut_off(now);
            if let Some(over) = over {
                self.settle_lost(now, id, &over);
            }
        }
    }

    /// Ends the lost runs, after the card was stopped: the jobs fail with
    /// [`Failure::Snapshot`](super::super::values::Failure::Snapshot), or run again if they may. The
    /// scheduler is then at rest.
    pub fn lose_runs<C: Card>(&mut self, card: &mut C, now: Time) {
        let call = &mut Call::new(card, now);
        for id in slots_in(self.present) {
            let change = self.slots[id.index()].protocol.end_lost_run();
            self.follow_report(call, id, change);
            if self.slot(id).next().is_some() {
                self.withdraw(call, id);
            }
        }
        self.finish(call);
    }

    /// Returns whether the scheduler is frozen and no job is on a slot that is in use. If so, no
    /// register is accessed until [`Scheduler::thaw`].
    pub fn is_at_rest(&self) -> bool {
        let mut slots = self.ids().map(|id| self.slot(id));
        self.frozen && !slots.any(|slot| slot.protocol.is_busy())
    }

    /// Notes that the card was set up again while the scheduler was at rest, and that `slot` shows
    /// `status`: it is out of reset, with its window closed. A slot that was out of use is used
    /// again if it is idle; a slot that is not idle is put out of use.
    pub fn renew<C: Card>(&mut self, card: &mut C, now: Time, slot: SlotId, status: Status) {
        if self.present & slot.bit() == 0 {
            return;
        }
        let call = &mut Call::new(card, now);
        let record = &mut self.slots[slot.index()];
        let (changed, stuck) = record.protocol.renew(call, status);
        if !changed {
            return;
        }
        let is_usable = record.protocol.is_vacant();
        let usable = &mut self.classes[record.class.at()].usable;
        if is_usable {
            *usable |= slot.bit();
        } else {
            *usable &= !slot.bit();
        }
        if is_usable {
            let named = self.slots[slot.index()].take_stuck();
            for ctx in named.into_iter().chain([stuck]).flatten() {
                self.release_stuck(call, self.contexts.find(ctx));
            }
        }
        self.settle_all();
    }

    /// Lets jobs run again.
    pub fn thaw<C: Card>(&mut self, card: &mut C, now: Time) {
        self.frozen = false;
        for class in self.all_classes() {
            // While the scheduler was frozen, no context was starved by others.
            self.classes[class.at()].waiting.note_boost(now);
        }
        self.reschedule_all();
        self.finish(&mut Call::new(card, now));
    }

    /// Ends everything, because the card is gone. [`Scheduler::sweep`] fails every job and releases
    /// the contexts that were closed.
    pub fn disconnect<C: Card>(&mut self, _: &mut C, now: Time) {
        if core::mem::replace(&mut self.gone, true) {
            return;
        }
        for id in slots_in(self.present) {
            let over = self.slots[id.index()].protocol.disconnect(now);
            if let Some(over) = over {
                self.settle_lost(now, id, &over);
            }
            self.take_named(id);
        }
        self.settle_all();
    }

    /// Has the sweep settle all contexts.
    pub(in super::super) fn settle_all(&mut self) {
        self.sweep = match self.sweep {
            // The contexts follow.
            Sweep::Levels(next) if !self.gone => Sweep::Levels(next),
            Sweep::Renew(_) if !self.gone => Sweep::Renew(0),
            _ => Sweep::Settle(0),
        };
    }
}
