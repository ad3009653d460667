// SPDX-License-Identifier: GPL-2.0

//! Taking all jobs off a card that will lose its state (a reset of all of it, or its power), and putting them back.
//!
//! The caller freezes the machine, waits until it is at rest, has the card set up anew, tells what each slot shows then, and
//! thaws the machine. Jobs that could be saved go on where they were; what could not be stopped has failed by then, as
//! after any PAUSE.

use core::ops::DerefMut;

use super::machine::{Machine, Out};
use super::reset::Outcome;
use super::slot::{slots_in, Slot, State, MAX_SLOTS};
use super::{Action, ContextId, Entry, Failure, Phase, SlotId, Status, Time};

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// Takes the jobs off all slots, as by Preempt, and lets none on before [`Machine::thaw`]. Owners may ask for anything
    /// meanwhile. A card that is gone stays so.
    pub fn freeze(&mut self, now: Time, out: &mut impl FnMut(Action)) {
        self.frozen = true;
        for id in slots_in(u8::MAX) {
            // What a hint has made vacant is of use to nobody now, and that is not its owner's fault.
            self.take_kept(now, id);
        }
        self.press_all(now, out);
    }

    /// The card lost its state with jobs on its slots: they fail with [`Failure::Snapshot`]. The machine is frozen and at rest
    /// then. All slots are in reset, or cannot be reached.
    pub fn lose_runs(&mut self, now: Time, out: &mut impl FnMut(Action)) {
        let mut lost = [None; MAX_SLOTS];
        for (id, lost) in slots_in(u8::MAX).zip(&mut lost) {
            *lost = self.lose_run(now, id);
        }
        self.freeze(now, out);
        for (id, lost) in slots_in(u8::MAX).zip(lost) {
            if let Some((ctx, outcome)) = lost {
                self.quiescent(now, id, ctx, outcome, out);
            }
        }
    }

    /// Empties a slot: who was on it, and what becomes of the job.
    fn lose_run(&mut self, now: Time, id: SlotId) -> Option<(ContextId, Outcome)> {
        let lost = match self.slot(id)?.state {
            State::Running(run) | State::Pausing(run, _) => {
                self.end_run(now, id, run.ctx);
                (run.ctx, Outcome::Failed(Failure::Snapshot))
            }
            State::Resetting(reset) => (reset.ctx, reset.outcome),
            _ => return None,
        };
        self.slot_mut(id)?.enter(State::Vacant);
        Some(lost)
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
    /// closed. One that was out of use is used again if it is idle; one that is not is quarantined. O(n) in that case.
    pub fn renew(&mut self, now: Time, slot: SlotId, status: Status, out: &mut impl FnMut(Action)) {
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
                self.line_up_aside(now, index);
            }
            (State::Vacant, false) => {
                self.put_out_of_use(slot, None, out);
                self.fail_stranded(now, index, out);
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
        if entry.closing {
            self.release(ctx, out);
        }
    }

    /// Presses a class of a frozen machine: takes the jobs off its slots.
    pub(super) fn press_frozen(&mut self, now: Time, queue: u8, out: &mut Out<'_>) {
        for id in slots_in(self.class_slots(queue)) {
            self.pause(now, id, out);
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

impl Slot {
    /// Is nobody on it that could come off it?
    fn is_empty(&self) -> bool {
        matches!(self.state, State::Vacant | State::Quarantined(_))
    }
}
