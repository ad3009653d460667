// SPDX-License-Identifier: GPL-2.0

//! The run of a job: loading registers, START, what the status says of it, and its end.

use super::super::card::{Begin, Call, Card};
use super::super::values::{
    ContextId, Duration, EndReason, Failure, NextRun, Order, Phase, Profile, RunEnd, StartTimes,
    Status, Stop, Time,
};
use super::stop::Stopping;
use super::{After, Change, Outcome, Protocol, State};

/// The status of a job is read this often, because an interrupt can be lost.
pub(super) const WATCHDOG_PERIOD: Duration = Duration::from_ms(10);

/// A job on the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Run {
    pub(in super::super) ctx: ContextId,
    /// When START was written; later if a part of the loading is charged to others.
    pub(in super::super) started: Time,
    /// When the run can have begun at the earliest: a relay was told of it then.
    pub(super) named: Time,
    /// Added to the slice: the cost of the restore, and of loading registers, so that a slice
    /// always makes progress.
    pub(in super::super) extra: Duration,
    /// It began with a restore.
    pub(super) resumed: bool,
    /// When to read the status if nothing happens, and how long to wait then.
    pub(super) poll_at: Time,
    pub(super) poll_period: Duration,
    /// Base: RUNNING was read, so IDLE no longer means "not yet".
    pub(super) seen_running: bool,
    /// A status from before the START was read; a later read is under way.
    pub(super) suspect: bool,
    /// Base: no PAUSE is written before this time, because the engine cannot be saved yet.
    pub(super) savable: Time,
    pub(in super::super) stop: Option<Stopping>,
}

impl Run {
    /// Returns when the timer is needed.
    #[inline]
    pub(super) fn deadline(&self) -> Time {
        match &self.stop {
            Some(stop) => stop.deadline(self.poll_at),
            None => self.poll_at,
        }
    }
}

/// A run that is to begin.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Start {
    pub(in super::super) ctx: ContextId,
    pub(in super::super) resume: bool,
    pub(in super::super) boosted: bool,
    pub(in super::super) times: StartTimes,
    /// When a relay was told of it.
    pub(in super::super) named: Time,
}

/// The state of the job on the slot, as a status shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It runs, or will.
    Running,
    /// The status may be older than the START: it is read once more.
    Stale,
    /// The run has ended.
    Over(EndReason),
    /// The slot does what its protocol does not allow.
    Violation,
}

/// Beginning a run.
impl Protocol {
    /// Begins a run on the vacant slot, or goes on loading its registers. Returns whether the run
    /// has begun; if not, this is called again.
    pub(in super::super) fn begin<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        start: &Start,
    ) -> bool {
        let (slot, ctx) = (self.id, start.ctx);
        if self.has_relay() {
            call.card.publish(slot, ctx);
            let order = Order {
                after: self.count,
                stop: Stop::Vacant,
                next: Some(NextRun {
                    ctx,
                    resume: start.resume,
                }),
            };
            call.card.order(slot, &order);
            self.enter_run(call, start);
            return true;
        }
        let is_new = self.state != State::Loading(ctx);
        // A base slot was reset when the last job left it.
        if is_new && start.resume && self.config.reset_before_resume && self.settle().is_none() {
            call.card.reset(slot, ctx, true);
            call.card.reset(slot, ctx, false);
        }
        if !call.card.load(slot, ctx) {
            // The window stays closed until the last part.
            self.window = None;
            self.state = State::Loading(ctx);
            return false;
        }
        self.window = Some(ctx);
        self.enter_run(call, start);
        true
    }

    /// Notes, and reports, that a run has begun.
    pub(in super::super) fn enter_run<C: Card>(&mut self, call: &mut Call<'_, C>, start: &Start) {
        let begin = Begin {
            resume: start.resume,
            boosted: start.boosted,
            times: StartTimes {
                idle_since: self.idle_since.take(),
                ..start.times
            },
        };
        call.card.start(self.id, start.ctx, &begin);
        self.count = self.count.wrapping_add(1);
        self.posted = Order::none(self.count);
        self.stats.starts += 1;
        self.stats.resumes += u64::from(start.resume);
        let poll_period = self.first_poll();
        let extra = match start.resume {
            true => self.restore_time(),
            false => Duration::ZERO,
        };
        self.state = State::Running(Run {
            ctx: start.ctx,
            started: call.now,
            named: start.named,
            extra,
            resumed: start.resume,
            poll_at: call.now + extra + poll_period,
            poll_period,
            seen_running: false,
            suspect: false,
            savable: self.savable_after(call.now),
            stop: None,
        });
    }

    /// Notes that the last START was written at `written` at the latest.
    pub(in super::super) fn note_start(&mut self, written: Time) {
        let savable = self.savable_after(written);
        if let Some(run) = self.run_mut() {
            run.savable = run.savable.max(savable);
        }
    }

    /// Notes that loading registers before the last START took `total`, of which `clearing` is
    /// charged to others: the run begins later by `clearing`.
    pub(in super::super) fn note_load(&mut self, clearing: Duration, total: Duration) {
        if let Some(run) = self.run_mut() {
            run.started = run.started + clearing;
            run.extra += total.less(clearing);
            run.poll_at = run.poll_at + total;
        }
    }

    /// Returns the time to the first poll of a run, or of a stop.
    pub(super) fn first_poll(&self) -> Duration {
        match self.config.profile {
            Profile::Base { .. } => super::base::POLL_MIN,
            Profile::Irq | Profile::Relay => WATCHDOG_PERIOD,
        }
    }
}

/// The status of a run.
impl Protocol {
    /// Handles a status.
    pub(in super::super) fn status<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        status: Status,
    ) -> Change {
        match &self.state {
            State::Running(run) => {
                let seen = self.see(run, status, call.now);
                self.run_status(call, status, seen)
            }
            State::Resetting(reset) => self.reset_status(call, *reset, status),
            // No job: a late interrupt, or one that the card did not send.
            _ => Change::NONE,
        }
    }

    /// Does what is due. `timeslice` bounds the time between two polls of a base slot.
    pub(in super::super) fn timer<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        timeslice: Duration,
    ) -> Change {
        match &self.state {
            State::Running(Run { stop: Some(_), .. }) => self.stop_timer(call, timeslice),
            State::Running(run) if call.now >= run.poll_at => {
                self.poll(call, timeslice);
                Change::NONE
            }
            State::Resetting(reset) => self.reset_timer(call, *reset),
            _ => Change::NONE,
        }
    }

    #[inline]
    fn see(&self, run: &Run, status: Status, now: Time) -> Seen {
        // It has no START count.
        if status == Status::UNANSWERED {
            return Seen::Violation;
        }
        match self.config.profile {
            Profile::Base { .. } => self.see_base(run, status, now),
            Profile::Irq => self.see_irq(run, status),
            Profile::Relay => self.see_relay(run, status),
        }
    }

    /// Returns what FINISH or PAUSED says of a run, on the base and irq profiles. `None`: it is no
    /// answer to what the slot was told.
    pub(super) fn see_end(&self, status: Status, is_stopped: bool) -> Option<EndReason> {
        Some(match status.phase() {
            Phase::Finish | Phase::Paused if status.fault() => EndReason::Fault,
            Phase::Finish | Phase::Paused if status.snapshot_error() => EndReason::SnapshotError,
            Phase::Finish => EndReason::Finished,
            Phase::Paused if self.config.queues && status.empty() => EndReason::Empty,
            Phase::Paused if is_stopped => EndReason::Paused,
            Phase::Paused | Phase::Idle | Phase::Running | Phase::Unknown => return None,
        })
    }

    fn run_status<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        status: Status,
        seen: Seen,
    ) -> Change {
        let reason = match seen {
            Seen::Running => return self.runs_on(call, status.phase() == Phase::Running),
            Seen::Stale => {
                if let Some(run) = self.run_mut() {
                    run.suspect = true;
                }
                self.read_status(call);
                return Change::NONE;
            }
            Seen::Violation => return self.abort(call, Some(Failure::Protocol)),
            Seen::Over(reason) => reason,
        };
        let Some(run) = self.run() else {
            return Change::NONE;
        };
        let stop = run.stop.as_ref().filter(|stop| !stop.boundary);
        let stop = stop.filter(|_| reason == EndReason::Paused);
        let end = RunEnd {
            reason,
            span: call.now.since(run.started),
            save: stop.map(|stop| call.now.since(stop.at)),
            restore: match self.config.profile {
                Profile::Irq => status.restore(),
                Profile::Base { .. } | Profile::Relay => Duration::ZERO,
            },
        };
        let Some(over) = self.end_run(call, &end) else {
            return Change::NONE;
        };
        self.idle_since = Some(call.now);
        let outcome = outcome_of(reason);
        let after = if self.settle().is_some() {
            self.hold_reset(call, over.ctx, outcome);
            After::Pending
        } else {
            self.state = State::Vacant;
            After::Vacant(over.ctx, outcome)
        };
        Change {
            over: Some(over),
            after,
        }
    }

    /// Notes that the job runs or, on a base card, has not begun.
    pub(super) fn runs_on<C: Card>(&mut self, call: &mut Call<'_, C>, is_running: bool) -> Change {
        let is_polled = self.settle().is_some();
        let Some(run) = self.run_mut() else {
            return Change::NONE;
        };
        if is_running && run.stop.is_some_and(|stop| stop.last) {
            self.stats.timeouts += 1;
            return self.abort(call, Some(Failure::PreemptTimeout));
        }
        run.suspect = false;
        run.seen_running |= is_running;
        if !is_polled {
            run.poll_at = call.now + run.poll_period;
        }
        Change::NONE
    }

    /// Reads the status, and sets the time of the next poll.
    pub(super) fn poll<C: Card>(&mut self, call: &mut Call<'_, C>, timeslice: Duration) {
        let is_polled = self.settle().is_some();
        if let Some(run) = self.run_mut() {
            if is_polled {
                run.poll_period = super::base::next_poll(run.poll_period, timeslice);
            }
            run.poll_at = call.now + run.poll_period;
        }
        self.read_status(call);
    }
}

/// Returns what becomes of a job whose run has ended.
pub(super) fn outcome_of(reason: EndReason) -> Outcome {
    match reason {
        EndReason::Paused => Outcome::Saved,
        EndReason::Empty => Outcome::Empty,
        EndReason::Finished => Outcome::Finished,
        EndReason::Fault => Outcome::Failed(Failure::Fault),
        EndReason::SnapshotError => Outcome::Failed(Failure::Snapshot),
        EndReason::Aborted(failure) => Outcome::Failed(failure.unwrap_or(Failure::Protocol)),
        EndReason::Dropped => Outcome::Failed(Failure::Protocol),
    }
}
