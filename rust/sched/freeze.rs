// SPDX-License-Identifier: GPL-2.0

//! Taking all jobs off a card that will lose its state (in a reset of the whole card, or with its
//! power), putting them back, and the end of a card.
//!
//! The caller freezes the scheduler, waits until it is at rest, has the card set up again, reports
//! what each slot shows then, and thaws the scheduler. Jobs that could be saved resume where they
//! were. Jobs that could not be stopped or saved have failed by then, or start over, as after any
//! PAUSE.

use super::event::Cx;
use super::slot_fsm::Progress;
use super::state::{Nominees, Scheduler};
use super::{Action, SlotId, Status, Time};

impl Scheduler {
    /// Takes the jobs off all slots, as Preempt does, and starts none before [`Scheduler::thaw`].
    /// Owners may make any request meanwhile. A card that is gone stays gone.
    pub fn freeze(&mut self, now: Time, out: &mut dyn FnMut(Action)) {
        self.begin_freeze(now);
        self.reschedule_all(&mut Cx::new(now, out));
    }

    fn begin_freeze(&mut self, now: Time) {
        self.frozen = true;
        self.keep_claims(|_| false);
        for id in self.slots.ids() {
            // A slot that a hint has made vacant cannot be used now, and that is not the owner's
            // fault.
            if let Some(reservation) = &mut self.slots[id].reservation {
                reservation.take(now);
            }
        }
    }

    /// Notes that the card cannot be accessed any more, and that what is on its slots is lost. No
    /// status is requested from here on; the caller stops the card, and calls
    /// [`Scheduler::lose_runs`].
    pub fn cut_off(&mut self, now: Time) {
        self.begin_freeze(now);
        for id in self.slots.ids() {
            let over = self.slots[id].fsm.cut_off(now);
            self.end_run(now, id, over);
        }
    }

    /// Ends the lost runs, after the card was stopped: the jobs fail with
    /// [`Failure::Snapshot`](super::Failure::Snapshot), or run again if they may. The scheduler is
    /// then at rest.
    pub fn lose_runs(&mut self, now: Time, out: &mut dyn FnMut(Action)) {
        let cx = &mut Cx::new(now, out);
        for id in self.slots.ids() {
            let after = self.slots[id].fsm.end_lost_run();
            let progress = Progress { over: None, after };
            let notice = self.follow_all(cx, id, progress);
            self.reschedule_and_notify(cx, id, notice);
        }
    }

    /// Returns whether the scheduler is frozen and no job is on a slot that is in use. If so, no
    /// register is accessed until [`Scheduler::thaw`].
    pub fn is_at_rest(&self) -> bool {
        self.frozen && !self.slots.iter().any(|slot| slot.fsm.is_busy())
    }

    /// Notes that the card was set up again while the scheduler was at rest, and that `slot` shows
    /// `status`: it is out of reset, with its window closed. A slot that was out of use is used
    /// again if it is idle; a slot that is not idle is quarantined.
    pub fn renew(&mut self, slot: SlotId, status: Status, out: &mut dyn FnMut(Action)) {
        if !self.slots.has(slot) {
            return;
        }
        let cx = &mut Cx::new(Time::ZERO, out);
        let (changed, stuck) = self.slots[slot].fsm.renew(cx, status);
        if !changed {
            return;
        }
        let is_usable = self.slots[slot].fsm.is_vacant();
        let usable = &mut self.queues[self.slots[slot].class].usable;
        if is_usable {
            *usable |= slot.bit();
        } else {
            *usable &= !slot.bit();
        }
        let nominees = core::mem::take(&mut self.slots[slot].nominees);
        let stuck = stuck.and_then(|ctx| self.entities.find(ctx));
        for ctx in nominees.iter().map(|nominee| nominee.ctx).chain(stuck) {
            // No slot can reach its memory any more.
            self.entities[ctx].stuck = false;
            if self.entities[ctx].closing {
                self.release(cx, ctx);
            }
        }
        self.sweep.settle_all(self.gone);
    }

    /// Lets jobs run again.
    pub fn thaw(&mut self, now: Time, out: &mut dyn FnMut(Action)) {
        self.frozen = false;
        for class in self.queues.ids() {
            // While the scheduler was frozen, no context was starved by others.
            self.queues[class].boosted_at = now;
        }
        self.reschedule_all(&mut Cx::new(now, out));
    }

    /// Ends everything, because the card is gone. [`Scheduler::sweep`] fails every job and releases
    /// the contexts that were closed.
    pub(super) fn disconnect(&mut self, cx: &mut Cx<'_>) {
        if core::mem::replace(&mut self.gone, true) {
            return;
        }
        for id in self.slots.ids() {
            let over = self.slots[id].fsm.disconnect(cx);
            self.end_run(cx.now, id, over);
            self.slots[id].reservation = None;
            self.slots[id].nominees = Nominees::default();
        }
        self.sweep.settle_all(true);
    }
}
