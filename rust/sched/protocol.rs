// SPDX-License-Identifier: GPL-2.0

//! What the card and its timers say of a job on a slot.

use core::ops::DerefMut;

use super::machine::{Machine, Out};
use super::reset::Outcome;
use super::run::{Pause, Run};
use super::slot::{Slot, State};
use super::{Action, Duration, Entry, Failure, PauseCause, Phase, Profile, SlotId, Status, Time};

/// Base: how long after START the status may still read IDLE.
const START_LAG_MAX: Duration = Duration::from_ms(50);

/// What a status says of the job on the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It runs, or will.
    Runs,
    /// The status may be older than the START: look once more.
    Doubtful,
    /// It was saved; `empty`: with an empty queue.
    Saved { empty: bool },
    /// It ended by itself.
    Ended(Outcome),
    /// The slot does what its protocol does not allow.
    Broken,
}

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// The status register of a slot was read.
    pub(super) fn status(&mut self, now: Time, id: SlotId, status: Status, out: &mut Out<'_>) {
        let Some(slot) = self.slot(id) else {
            return;
        };
        let queue = slot.queue;
        let told = match slot.state {
            State::Running(run) => self.run_status(now, id, run, None, status, out),
            State::Pausing(run, pause) => self.run_status(now, id, run, Some(pause), status, out),
            State::Resetting(reset) => self.reset_status(now, id, reset, status, out),
            // Nobody is on it: an interrupt that came late, or that nobody sent.
            State::Absent | State::Vacant | State::Quarantined(_) | State::Gone => return,
        };
        self.press(now, queue, out);
        if let Some(told) = told {
            out(told);
        }
    }

    /// The result is what the owner is to be told when the class was pressed.
    fn run_status(
        &mut self,
        now: Time,
        id: SlotId,
        mut run: Run,
        pause: Option<Pause>,
        status: Status,
        out: &mut Out<'_>,
    ) -> Option<Action> {
        let ctx = run.ctx;
        match judge(now, self.slot(id)?, &run, pause.is_some(), status) {
            Verdict::Runs => self.runs_on(now, id, run, pause, status, out),
            Verdict::Doubtful => {
                run.doubt = true;
                self.put_run(id, run, pause);
                self.read(id, out);
            }
            Verdict::Saved { empty } => {
                self.note_restore(id, status);
                self.end_overrun(now, id, out);
                self.end_run(now, id, ctx);
                self.note_save(now, id, run, pause, empty);
                out(Action::Capture { slot: id, ctx });
                let outcome = if empty {
                    Outcome::Empty
                } else {
                    Outcome::Saved
                };
                return self.leave(now, id, ctx, outcome, out);
            }
            Verdict::Ended(outcome) => {
                self.note_restore(id, status);
                self.end_overrun(now, id, out);
                self.end_run(now, id, ctx);
                out(Action::Capture { slot: id, ctx });
                return self.leave(now, id, ctx, outcome, out);
            }
            Verdict::Broken => {
                self.begin_reset(now, id, ctx, Outcome::Failed(Failure::Protocol), out);
            }
        }
        None
    }

    /// The job runs, or on base has not begun.
    fn runs_on(
        &mut self,
        now: Time,
        id: SlotId,
        mut run: Run,
        pause: Option<Pause>,
        status: Status,
        out: &mut Out<'_>,
    ) {
        if pause.is_some_and(|pause| pause.last) {
            if let Some(slot) = self.slot_mut(id) {
                slot.stats.timeouts += 1;
            }
            let outcome = Outcome::Failed(Failure::PreemptTimeout);
            self.begin_reset(now, id, run.ctx, outcome, out);
            return;
        }
        run.doubt = false;
        run.seen |= status.phase() == Phase::Running;
        if let Some(slot) = self.slot(id) {
            if slot.settle().is_none() {
                run.look = now + run.period;
            }
        }
        self.put_run(id, run, pause);
    }

    /// The status at the end of a run tells how long its restore took.
    fn note_restore(&mut self, id: SlotId, status: Status) {
        if let Some(slot) = self.slot_mut(id) {
            if slot.settle().is_none() {
                slot.restored(status.restore());
            }
        }
    }

    /// PAUSED was observed: from here on, and only from here on, there is a snapshot to resume from.
    fn note_save(&mut self, now: Time, id: SlotId, run: Run, pause: Option<Pause>, empty: bool) {
        if let Some(entry) = self.slab.get_mut(run.ctx) {
            entry.saved = true;
            entry.preemptions += 1;
        }
        if let Some((payer, since)) = pause.and_then(|pause| Some((pause.payer?, pause.since))) {
            self.shift_charge(run.ctx, payer, now.since(since));
        }
        if let Some(slot) = self.slot_mut(id) {
            // From the first PAUSE on, also when it was dropped during a restore: then the average grows until the
            // slice covers the restore.
            let measured = pause.filter(|pause| !pause.boundary && !empty);
            slot.saved(measured.map(|pause| now.since(pause.since)));
        }
    }

    fn put_run(&mut self, id: SlotId, run: Run, pause: Option<Pause>) {
        if let Some(slot) = self.slot_mut(id) {
            slot.state = match pause {
                None => State::Running(run),
                Some(pause) => State::Pausing(run, pause),
            };
        }
    }

    /// The timer of a slot fired.
    pub(super) fn timer(&mut self, now: Time, id: SlotId, out: &mut Out<'_>) {
        let Some(slot) = self.slot_mut(id) else {
            return;
        };
        if matches!(slot.state, State::Gone) {
            return;
        }
        slot.armed = None;
        let queue = slot.queue;
        // A slice that is used up ends by PAUSE, which spares the look at the status.
        self.end_slices(now, queue, out);
        match self.slot(id).map(|slot| slot.state) {
            Some(State::Running(run)) if now >= run.look => self.look(now, id, run, None, out),
            Some(State::Pausing(run, pause)) => self.pause_timer(now, id, run, pause, out),
            Some(State::Resetting(reset)) => self.reset_timer(now, id, reset, out),
            _ => {}
        }
        self.press(now, queue, out);
    }

    fn look(
        &mut self,
        now: Time,
        id: SlotId,
        mut run: Run,
        pause: Option<Pause>,
        out: &mut Out<'_>,
    ) {
        let slice = self
            .slab
            .get(run.ctx)
            .map_or(Duration::ZERO, |entry| entry.params.timeslice);
        if let Some(slot) = self.slot(id) {
            run.looked(now, slot, slice);
        }
        self.put_run(id, run, pause);
        self.read(id, out);
    }

    fn pause_timer(
        &mut self,
        now: Time,
        id: SlotId,
        run: Run,
        mut pause: Pause,
        out: &mut Out<'_>,
    ) {
        if pause.last {
            // The last look brought nothing that ended the run, or nothing at all.
            if now >= run.look {
                let raw = Status::from_raw(1);
                self.runs_on(now, id, run, Some(pause), raw, out);
            }
            return;
        }
        if pause.is_over(now) {
            pause.last = true;
            self.look(now, id, run, Some(pause), out);
            return;
        }
        if now >= pause.again {
            // Who is not cooperative any more is stopped at once; who just became so, next time.
            let boundary = pause.boundary && self.stops_at_boundary(id, run.ctx);
            if let Some(slot) = self.slot_mut(id) {
                Self::pause_again(now, &mut pause, slot.save());
                if pause.boundary && !boundary {
                    pause.begin_save(now, slot.save());
                }
                slot.stats.pauses_again += 1;
                slot.state = State::Pausing(run, pause);
            }
            out(Action::Pause {
                slot: id,
                boundary,
                cause: PauseCause::Again,
            });
        }
        if now >= run.look {
            self.look(now, id, run, Some(pause), out);
        }
    }
}

/// What `status` says of `run`, which was asked to pause or not.
fn judge(now: Time, slot: &Slot, run: &Run, pausing: bool, status: Status) -> Verdict {
    match slot.config.profile {
        Profile::Fermata => judge_fermata(slot, run, pausing, status),
        Profile::Base { .. } => judge_base(now, run, pausing, status),
    }
}

/// The count tells a status of this run from an older one. A read that follows the START cannot show an older one, unless
/// the card did not take the START.
fn judge_fermata(slot: &Slot, run: &Run, pausing: bool, status: Status) -> Verdict {
    if status.start_count() != slot.count {
        return if run.doubt {
            Verdict::Broken
        } else {
            Verdict::Doubtful
        };
    }
    match status.phase() {
        Phase::Running => Verdict::Runs,
        Phase::Finish | Phase::Paused if status.fault() => {
            Verdict::Ended(Outcome::Failed(Failure::Fault))
        }
        Phase::Finish | Phase::Paused if status.snapshot_error() => {
            Verdict::Ended(Outcome::Failed(Failure::Snapshot))
        }
        Phase::Finish => Verdict::Ended(Outcome::Done),
        Phase::Paused if slot.config.queues && status.empty() => Verdict::Saved { empty: true },
        Phase::Paused if pausing => Verdict::Saved { empty: false },
        Phase::Paused | Phase::Idle | Phase::Unknown => Verdict::Broken,
    }
}

/// There is no count; but the slot was reset before the START, so that an older status can only be IDLE.
fn judge_base(now: Time, run: &Run, pausing: bool, status: Status) -> Verdict {
    let fresh = !run.seen && now.since(run.started) <= START_LAG_MAX;
    match status.phase() {
        Phase::Running => Verdict::Runs,
        Phase::Finish => Verdict::Ended(Outcome::Done),
        Phase::Paused if pausing => Verdict::Saved { empty: false },
        Phase::Idle if fresh => Verdict::Runs,
        Phase::Paused | Phase::Idle | Phase::Unknown => Verdict::Broken,
    }
}
