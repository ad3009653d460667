// SPDX-License-Identifier: GPL-2.0

//! A slot with a relay: orders in place of START and PAUSE, records in place of the status.
//!
//! Each run has a number, the START count of the status, and each order names the run that it
//! follows. The card therefore drops an order that comes too late, and the record of the run says
//! what the card has done. The status is read only to find out whether a record was lost, and after
//! a reset.

use super::event::Cx;
use super::order::{LeftReason, NextRun, Order, RunRecord, Stop};
use super::run::{Pause, Run};
use super::slot_fsm::{After, Outcome, Progress, SlotFsm, State};
use super::slot_run::End;
use super::{Action, ContextId, Duration, EndReason, Failure, Phase, Status, Time};

/// How long a job that is stopped without being saved may take to leave its slot.
const DROP_TIMEOUT: Duration = Duration::from_ms(100);
/// A slot continues by itself after a run that is no longer than this. After a longer run, a gap as
/// long as an interrupt takes matters less.
const GO_ON_MAX: Duration = Duration::from_ms(2);

impl SlotFsm {
    /// Returns whether the card is to be told which context follows the job on the slot: the job
    /// was told to stop, or the slot is to continue without the host after the job has ended.
    pub(super) fn takes_next(&self, now: Time) -> bool {
        let Some(run) = self.run().filter(|_| self.config.has_relay()) else {
            return false;
        };
        match &run.pause {
            Some(pause) => !pause.last,
            None => self.goes_on_until().is_some_and(|end| now < end),
        }
    }

    /// Returns until when the slot continues without the host if the job on it ends. `None`: the
    /// slot does not, or the job was told to stop.
    pub(super) fn goes_on_until(&self) -> Option<Time> {
        let run = self.unpaused()?;
        (self.posted != Order::none(self.count)).then(|| run.started + GO_ON_MAX)
    }

    /// Notes that the slot returns to a context after the run that has just begun.
    pub(super) fn go_back_to(&mut self, ctx: ContextId) {
        self.posted = Order::back_to(self.count, ctx);
    }

    /// Returns the context of the job on the slot if the job is to be saved before the end of its
    /// slice.
    pub(super) fn preempted_early(&self) -> Option<ContextId> {
        let run = self.run()?;
        let pause = run.pause.as_ref()?;
        let is_saved = pause.is_early && !pause.dropped && !pause.last;
        is_saved.then_some(run.ctx)
    }

    /// Returns the context on the slot and the number of its run, whose record is awaited.
    pub(super) fn awaited_run(&self) -> Option<(ContextId, u32)> {
        let run = self.run().filter(|_| self.config.has_relay())?;
        Some((run.ctx, self.count))
    }

    /// Returns whether the preempt timeout of the job is over.
    pub(super) fn is_giving_up(&self) -> bool {
        let pause = self.run().and_then(|run| run.pause.as_ref());
        pause.is_some_and(|pause| pause.last)
    }

    /// Stops the job at once if it was told to stop later. Returns whether the job is therefore
    /// saved before the end of its slice.
    pub(super) fn stop_now(&mut self, now: Time) -> bool {
        let save = self.stats.save();
        let State::Running(run) = &mut self.state else {
            return false;
        };
        let Some(pause) = run.pause.filter(|pause| pause.after != Duration::ZERO) else {
            return false;
        };
        let timeout = pause.give_up.since(pause.since);
        let is_early = now < pause.since;
        let pause = Pause {
            after: Duration::ZERO,
            is_early,
            ..run.new_pause(now, timeout, save, pause.boundary)
        };
        run.pause = Some(pause.by_order());
        is_early && !pause.boundary
    }

    /// Schedules a read of the status at once, because the run may last long.
    pub(super) fn look_now(&mut self, now: Time) {
        if let State::Running(run) = &mut self.state {
            run.poll_at = now;
        }
    }

    /// Drops the job: stops it without saving it.
    pub(super) fn drop_job(&mut self, cx: &mut Cx<'_>) {
        let save = self.stats.save();
        if let State::Running(run) = &mut self.state {
            let pause = Pause {
                dropped: true,
                ..run.new_pause(cx.now, DROP_TIMEOUT, save, false)
            };
            run.pause = Some(pause.by_order());
            self.stats.resets += 1;
        }
    }

    /// Posts an order for the run on the slot if the order differs from the one in force.
    pub(super) fn post(&mut self, cx: &mut Cx<'_>, next: Option<NextRun>) {
        let Some(run) = self.run() else {
            return;
        };
        let stop = match run.pause {
            None | Some(Pause { last: true, .. }) => Stop::Never,
            Some(Pause { dropped: true, .. }) => Stop::Dropped,
            Some(Pause {
                after, boundary, ..
            }) => Stop::Paused { after, boundary },
        };
        let order = Order {
            after: self.count,
            stop,
            next,
        };
        if core::mem::replace(&mut self.posted, order) != order {
            cx.act(Action::Order {
                slot: self.id,
                order,
            });
        }
    }

    /// Notes when the relay was told of the run that has begun, and how much of its slice was
    /// already used.
    pub(super) fn note_named(&mut self, since: Time, used: Duration) {
        if let State::Running(run) = &mut self.state {
            (run.named, run.used) = (since, used);
        }
    }

    /// Notes that the time of the run until `now` is shown to users.
    pub(super) fn note_shown(&mut self, now: Time) {
        if let State::Running(run) = &mut self.state {
            run.shown = now;
        }
    }

    /// Handles the record of a run. A record of any other run than the one on the slot is old, and
    /// is ignored.
    pub(super) fn record(&mut self, cx: &mut Cx<'_>, record: &RunRecord) -> Progress {
        let (State::Running(run), true) = (&self.state, record.run == self.count) else {
            return Progress::NONE;
        };
        let resumed = run.resumed;
        // On the way to a boundary the job still works: that time is no part of a save.
        let at_once = run.pause.is_some_and(|pause| !pause.boundary);
        let Some((reason, outcome)) = Self::outcome(record.reason, run) else {
            return self.abort(cx, Some(Failure::Protocol));
        };
        let end = End {
            reason,
            span: Some(record.span),
            restore: match resumed {
                true => record.load,
                false => Duration::ZERO,
            },
            save: (record.reason == LeftReason::Paused && at_once).then_some(record.save),
        };
        let Some(over) = self.end_run(cx, end) else {
            return Progress::NONE;
        };
        self.idle_since = Some(cx.now);
        self.enter(State::Vacant);
        let ctx = over.ctx;
        Progress {
            over: Some(over),
            after: After::Vacant { ctx, outcome },
        }
    }

    /// Returns what a record says of a run; `None`: the card must not report that.
    fn outcome(reason: LeftReason, run: &Run) -> Option<(EndReason, Outcome)> {
        let is_stopped = run.pause.is_some();
        Some(match reason {
            LeftReason::Paused if is_stopped => (EndReason::Paused, Outcome::Saved),
            LeftReason::NotRun if is_stopped && run.resumed => (EndReason::Paused, Outcome::Saved),
            LeftReason::Dropped if run.pause.is_some_and(|pause| pause.dropped) => {
                (EndReason::Dropped, Outcome::Failed(Failure::Protocol))
            }
            LeftReason::Finished => (EndReason::Finished, Outcome::Finished),
            LeftReason::Empty => (EndReason::Empty, Outcome::Empty),
            LeftReason::Fault => (EndReason::Fault, Outcome::Failed(Failure::Fault)),
            LeftReason::SnapshotError => {
                let outcome = Outcome::Failed(Failure::Snapshot);
                (EndReason::SnapshotError, outcome)
            }
            LeftReason::Refused => (EndReason::Dropped, Outcome::Failed(Failure::Protocol)),
            LeftReason::Paused | LeftReason::NotRun | LeftReason::Dropped => return None,
        })
    }

    /// Returns whether a status after which no record was found shows the run that is known to be
    /// on the slot, and no other run. If so, the card has taken no order that was posted before.
    pub(super) fn still_shows(&self, status: Status) -> bool {
        self.run().is_some()
            && status.phase() == Phase::Running
            && status.start_count() == self.count
    }
}
