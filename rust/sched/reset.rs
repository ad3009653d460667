// SPDX-License-Identifier: GPL-2.0

//! Making a slot quiescent, and what becomes of the job that was on it.
//!
//! Fermata: hold, read the status (that read is the flush: it returns after the last DMA), IDLE, release. Needed only when
//! a job is stopped by force. Base: hold, read the status (that read pushes the reset to the card), settle, release, read the
//! status, IDLE. Needed after every job, because PAUSED and FINISH come before the last DMA, and because an old status
//! must not be taken for that of the next job.

use core::ops::DerefMut;

use super::doorbell::Parting;
use super::machine::{Machine, Out};
use super::slot::{slots_in, State};
use super::{
    Action, ContextId, Duration, Entry, Failure, JobState, Phase, SlotId, Status, Time, Wake,
};

/// A status after reset that is not IDLE, or does not come, is asked for again after this time.
const RETRY: Duration = Duration::from_ms(1);
/// How often.
const TRIES_MAX: u8 = 4;

/// What becomes of the job once its slot is quiescent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was saved, and goes on.
    Saved,
    /// It was saved with an empty queue, and goes on when there is something in it.
    Empty,
    /// Its state is lost, and it runs again from its beginning.
    Again,
    /// It finished.
    Done,
    /// It failed.
    Failed(Failure),
}

impl Outcome {
    /// Does the job wait for its next turn?
    fn goes_on(self) -> bool {
        matches!(self, Self::Saved | Self::Again)
    }
}

/// A slot that is being reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reset {
    pub(super) ctx: ContextId,
    pub(super) outcome: Outcome,
    /// Base: the settle time has begun, since the reset bit is known to have reached the card.
    pub(super) settling: bool,
    /// Base: the settle time is over and the reset bit cleared.
    pub(super) released: bool,
    pub(super) tries: u8,
    /// When the settle time, or the wait for the status, is over.
    pub(super) next: Time,
}

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// Ends the run on a slot, and its charge.
    pub(super) fn end_run(&mut self, now: Time, id: SlotId, ctx: ContextId) {
        let Some(run) = self.slot(id).and_then(|slot| slot.state.run()) else {
            return;
        };
        if !self.slab.get(ctx).is_some_and(Entry::is_metered) {
            return;
        }
        self.meter(now, ctx);
        if let Some(entry) = self.slab.get_mut(ctx) {
            entry.charged = true;
        }
        let span = now.since(run.started);
        if let Some(slot) = self.slot_mut(id) {
            slot.stats.busy += span;
        }
        self.note_charge(now, ctx);
        self.leave_lane(ctx);
    }

    /// The job ended by PAUSED or FINISH. On fermata the slot is quiescent with that: what [`Self::quiescent`] gives.
    pub(super) fn leave(
        &mut self,
        now: Time,
        id: SlotId,
        ctx: ContextId,
        outcome: Outcome,
        out: &mut Out<'_>,
    ) -> Option<Action> {
        match self.slot(id).map(|slot| slot.settle()) {
            Some(None) => self.quiescent(now, id, ctx, outcome, out),
            _ => {
                self.end_run(now, id, ctx);
                self.hold(now, id, ctx, outcome, 0, out);
                None
            }
        }
    }

    /// Stops the job by force: sets the reset bit; the caller presses the class afterwards.
    pub(super) fn begin_reset(
        &mut self,
        now: Time,
        id: SlotId,
        ctx: ContextId,
        outcome: Outcome,
        out: &mut Out<'_>,
    ) {
        self.end_overrun(now, id, out);
        self.end_run(now, id, ctx);
        if let Some(slot) = self.slot_mut(id) {
            slot.stats.resets += 1;
        }
        self.hold(now, id, ctx, outcome, 0, out);
    }

    fn hold(
        &mut self,
        now: Time,
        id: SlotId,
        ctx: ContextId,
        outcome: Outcome,
        tries: u8,
        out: &mut Out<'_>,
    ) {
        out(Action::Reset {
            slot: id,
            hold: true,
        });
        let Some(slot) = self.slot_mut(id) else {
            return;
        };
        slot.enter(State::Resetting(Reset {
            ctx,
            outcome,
            settling: false,
            released: false,
            tries,
            next: now + RETRY,
        }));
        self.read(id, out);
    }

    /// The timer of a slot that is being reset.
    pub(super) fn reset_timer(
        &mut self,
        now: Time,
        id: SlotId,
        mut reset: Reset,
        out: &mut Out<'_>,
    ) {
        if now < reset.next {
            return;
        }
        if reset.settling && !reset.released {
            reset.released = true;
            reset.next = now + RETRY;
            out(Action::Reset {
                slot: id,
                hold: false,
            });
            if let Some(slot) = self.slot_mut(id) {
                slot.enter(State::Resetting(reset));
            }
            self.read(id, out);
        } else if reset.tries < TRIES_MAX {
            self.hold(now, id, reset.ctx, reset.outcome, reset.tries + 1, out);
        } else {
            self.quarantine(now, id, reset, out);
        }
    }

    /// A status while the slot is being reset. Anything but IDLE is left to the timer, which tries again.
    pub(super) fn reset_status(
        &mut self,
        now: Time,
        id: SlotId,
        reset: Reset,
        status: Status,
        out: &mut Out<'_>,
    ) -> Option<Action> {
        let slot = self.slot_mut(id)?;
        let settle = slot.settle();
        if let (Some(settle), false) = (settle, reset.settling) {
            slot.enter(State::Resetting(Reset {
                settling: true,
                next: now + settle,
                ..reset
            }));
            return None;
        }
        if status.phase() != Phase::Idle || (settle.is_some() && !reset.released) {
            return None;
        }
        if settle.is_none() {
            // Whether the card took the last START is known now.
            slot.count = status.start_count();
            out(Action::Reset {
                slot: id,
                hold: false,
            });
        }
        self.quiescent(now, id, reset.ctx, reset.outcome, out)
    }

    /// Nothing of the job can touch memory any more: only from here on may the window go to somebody else, and the owner be
    /// told of the end. The caller presses the class, and then tells the owner what the result says: the next job need not
    /// wait for that.
    #[must_use]
    pub(super) fn quiescent(
        &mut self,
        now: Time,
        id: SlotId,
        ctx: ContextId,
        outcome: Outcome,
        out: &mut Out<'_>,
    ) -> Option<Action> {
        self.slot_mut(id)?.enter(State::Vacant);
        let closing = self.slab.get(ctx).is_some_and(Entry::is_closing);
        let outcome = self.or_again(ctx, outcome);
        if self.takes_yield(ctx) && outcome.goes_on() {
            self.yield_to_next(id, ctx);
        }
        if closing {
            self.unload(id, out);
            self.release(ctx, out);
            return None;
        }
        let wake = self.settle_job(now, ctx, outcome)?;
        Some(Action::Wake { ctx, wake })
    }

    /// What a job that is off its slot becomes.
    fn settle_job(&mut self, now: Time, ctx: ContextId, outcome: Outcome) -> Option<Wake> {
        let entry = self.slab.get(ctx)?;
        let (queue, mask) = (entry.queue, entry.params.mask);
        match (outcome, entry.parting) {
            (Outcome::Saved | Outcome::Again | Outcome::Empty, Parting::Held) => {
                self.rest(ctx, JobState::Held);
                Some(Wake::Held)
            }
            (Outcome::Empty, Parting::Free) => {
                self.rest(ctx, JobState::Empty);
                Some(Wake::Empty)
            }
            (Outcome::Saved | Outcome::Again | Outcome::Empty, _)
                if self.check_mask(queue, mask).is_err() =>
            {
                Some(self.fail(ctx, Failure::Protocol))
            }
            (Outcome::Saved | Outcome::Again | Outcome::Empty, _) => {
                self.enqueue(now, ctx, false);
                None
            }
            (Outcome::Done, _) => {
                let entry = self.slab.get_mut(ctx)?;
                entry.slot = None;
                entry.state = JobState::Done;
                entry.finished += 1;
                Some(Wake::Done)
            }
            (Outcome::Failed(failure), _) => Some(self.fail(ctx, failure)),
        }
    }

    /// The job is off its slot, and waits for its owner.
    fn rest(&mut self, ctx: ContextId, state: JobState) {
        if let Some(entry) = self.slab.get_mut(ctx) {
            entry.slot = None;
            entry.parting = Parting::Free;
            entry.state = state;
        }
    }

    /// The job is over, and its snapshot worth nothing.
    pub(super) fn fail(&mut self, ctx: ContextId, failure: Failure) -> Wake {
        if let Some(entry) = self.slab.get_mut(ctx) {
            entry.slot = None;
            entry.saved = false;
            entry.state = JobState::Failed(failure);
            entry.failed += 1;
        }
        Wake::Failed(failure)
    }

    /// The slot does not come out of reset. Its job fails even if it was saved or finished: its memory may still change.
    /// Jobs that wait and may run nowhere else fail too ([`Machine::sweep`]); those held fail to resume.
    fn quarantine(&mut self, now: Time, id: SlotId, reset: Reset, out: &mut Out<'_>) {
        let ctx = reset.ctx;
        let Some(index) = self.slot(id).map(|slot| slot.queue) else {
            return;
        };
        let failure = match reset.outcome {
            Outcome::Failed(failure) => failure,
            Outcome::Saved | Outcome::Empty | Outcome::Again | Outcome::Done => Failure::Protocol,
        };
        let closing = self.slab.get(ctx).is_some_and(Entry::is_closing);
        let wake = self.fail(ctx, failure);
        if let Some(entry) = self.slab.get_mut(ctx) {
            entry.stuck = true;
        }
        self.put_out_of_use(id, Some(ctx), out);
        if !closing {
            out(Action::Wake { ctx, wake });
        }
        self.settle_all();
        self.press(now, index, out);
    }

    /// Nothing is done with a slot any more; `stuck`: whose memory it may still reach.
    pub(super) fn put_out_of_use(
        &mut self,
        id: SlotId,
        stuck: Option<ContextId>,
        out: &mut Out<'_>,
    ) {
        let Some(slot) = self.slot_mut(id) else {
            return;
        };
        slot.enter(State::Quarantined(stuck));
        let index = slot.queue;
        if let Some(queue) = self.queue_mut(index) {
            queue.usable &= !id.bit();
        }
        out(Action::Quarantine {
            slot: id,
            ctx: stuck,
        });
    }

    /// The card is gone. [`Machine::sweep`] fails every job and releases what was closed.
    pub(super) fn card_gone(&mut self, now: Time, out: &mut Out<'_>) {
        if core::mem::replace(&mut self.gone, true) {
            return;
        }
        for id in slots_in(u8::MAX) {
            self.slot_gone(now, id, out);
        }
        self.settle_all();
    }

    fn slot_gone(&mut self, now: Time, id: SlotId, out: &mut Out<'_>) {
        let Some(state) = self.slot(id).map(|slot| slot.state) else {
            return;
        };
        if state == State::Absent {
            return;
        }
        if let Some(run) = state.run() {
            self.end_run(now, id, run.ctx);
        }
        let Some(slot) = self.slot_mut(id) else {
            return;
        };
        slot.state = State::Gone;
        slot.kept = None;
        slot.loaded = false;
        if slot.armed.take().is_some() {
            out(Action::Disarm { slot: id });
        }
    }
}
