// SPDX-License-Identifier: GPL-2.0

//! Taking all jobs off a card that will lose its state (a reset of all of it, or its power), and putting them back.
//!
//! The caller freezes the machine, waits until it is at rest, has the card set up anew, tells what each slot shows then, and
//! thaws the machine. Jobs that could be saved go on where they were; what could not be stopped or saved has failed by then, or
//! begins anew, as after any PAUSE.

use core::ops::DerefMut;

use super::machine::{Machine, Out};
use super::reset::{Outcome, Reset};
use super::slot::{slots_in, Slot, State};
use super::{Action, ContextId, Duration, Entry, Failure, PauseCause, Phase, SlotId, Status, Time};

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// Takes the jobs off all slots, as by Preempt, and lets none on before [`Machine::thaw`]. Owners may ask for anything
    /// meanwhile. A card that is gone stays so.
    pub fn freeze(&mut self, now: Time, out: &mut impl FnMut(Action)) {
        self.begin_freeze(now);
        self.press_all(now, out);
    }

    fn begin_freeze(&mut self, now: Time) {
        self.frozen = true;
        for id in slots_in(u8::MAX) {
            // What a hint has made vacant is of use to nobody now, and that is not its owner's fault.
            self.take_kept(now, id);
        }
    }

    /// The card cannot be asked any more, and what is on its slots is lost. No status is asked for from here on; the caller
    /// stops the card, and calls [`Machine::lose_runs`].
    pub fn cut_off(&mut self, now: Time) {
        self.begin_freeze(now);
        for id in slots_in(u8::MAX) {
            let Some(run) = self.slot(id).and_then(|slot| slot.state.run()) else {
                continue;
            };
            self.end_run(now, id, run.ctx);
            if let Some(slot) = self.slot_mut(id) {
                slot.enter(State::Resetting(Reset::of_lost(run.ctx, now)));
            }
        }
    }

    /// The card was stopped after [`Machine::cut_off`]: jobs that were on it fail with [`Failure::Snapshot`], or run
    /// again if they may. The machine is at rest then.
    pub fn lose_runs(&mut self, now: Time, out: &mut impl FnMut(Action)) {
        for id in slots_in(u8::MAX) {
            let Some(slot) = self.slot(id) else {
                continue;
            };
            if let (State::Resetting(reset), queue) = (slot.state, slot.queue) {
                let told = self.quiescent(now, id, reset.ctx, reset.outcome, out);
                self.press(now, queue, out);
                told.into_iter().for_each(&mut *out);
            }
        }
    }

    /// Is the machine frozen, and nobody on any slot that is in use? Until [`Machine::thaw`] no register is touched then.
    pub fn is_at_rest(&self) -> bool {
        let resting = |id| match self.slot(id).map(|slot| slot.state) {
            Some(State::Running(_) | State::Pausing(..) | State::Resetting(_)) => false,
            Some(State::Absent | State::Vacant | State::Quarantined(_) | State::Gone) | None => {
                true
            }
        };
        self.frozen && slots_in(u8::MAX).all(resting)
    }

    /// The card was set up anew while the machine was at rest, and `slot` shows `status`: it is out of reset, its window
    /// closed. One that was out of use is used again if it is idle; one that is not is quarantined.
    pub fn renew(&mut self, slot: SlotId, status: Status, out: &mut impl FnMut(Action)) {
        let idle = status.phase() == Phase::Idle;
        let Some(found) = self.slot_mut(slot).filter(|slot| slot.is_empty()) else {
            return;
        };
        found.count = status.start_count();
        found.loaded = false;
        let (state, index) = (found.state, found.queue);
        match (state, idle) {
            (State::Quarantined(stuck), true) => {
                found.enter(State::Vacant);
                if let Some(queue) = self.queue_mut(index) {
                    queue.usable |= slot.bit();
                }
                if let Some(ctx) = stuck {
                    self.unstick(ctx, out);
                }
                self.settle_all();
            }
            (State::Vacant, false) => {
                self.put_out_of_use(slot, None, out);
                self.settle_all();
            }
            _ => {}
        }
    }

    /// Jobs go on.
    pub fn thaw(&mut self, now: Time, out: &mut impl FnMut(Action)) {
        self.frozen = false;
        for queue in &mut self.queues {
            // Nobody starved for want of a slice.
            queue.guarded = now;
        }
        self.press_all(now, out);
    }

    /// No slot can reach the memory of a context any more.
    fn unstick(&mut self, ctx: ContextId, out: &mut Out<'_>) {
        let Some(entry) = self.slab.get_mut(ctx) else {
            return;
        };
        entry.stuck = false;
        if entry.is_closing() {
            self.release(ctx, out);
        }
    }

    /// Presses a class of a frozen machine: takes the jobs off its slots.
    pub(super) fn press_frozen(&mut self, now: Time, queue: u8, out: &mut Out<'_>) {
        for id in slots_in(self.class_slots(queue)) {
            self.pause(now, id, PauseCause::Freeze, out);
            if self
                .slot(id)
                .is_some_and(|slot| slot.state == State::Vacant)
            {
                self.unload(id, out);
            }
            self.arm(now, id, out);
        }
    }
}

impl Reset {
    /// How long nobody asks for the status of a slot whose job is lost.
    const LOST: Duration = Duration::from_ms(10_000);

    /// Of a slot that the caller resets itself.
    fn of_lost(ctx: ContextId, now: Time) -> Self {
        Self {
            ctx,
            outcome: Outcome::Failed(Failure::Snapshot),
            settling: true,
            released: false,
            tries: 0,
            next: now + Self::LOST,
        }
    }
}

impl Slot {
    /// Is nobody on it that could come off it?
    fn is_empty(&self) -> bool {
        matches!(self.state, State::Vacant | State::Quarantined(_))
    }
}
