// SPDX-License-Identifier: GPL-2.0

//! The run of a job on a slot: START, PAUSE, what the status says of the run, and its end.

use super::event::Cx;
use super::order::{NextRun, Order, Stop};
use super::run::{Pause, Run, WATCHDOG_PERIOD};
use super::slot_fsm::{After, Outcome, Progress, RunOver, SlotFsm, State};
use super::status::StatusClass;
use super::{
    Action, ContextId, Duration, EndReason, Failure, PauseCause, Phase, PreemptGranularity,
    Profile, RunEnd, StartTimes, Status, Time,
};

/// Base: the time until the first poll of a status; it doubles with each poll.
const POLL_MIN: Duration = Duration::from_us(50);
/// Base: the longest time between two polls, or a quarter of the slice if that is less...
const POLL_MAX: Duration = Duration::from_ms(1);
/// ... but never less than this.
const POLL_MAX_FLOOR: Duration = Duration::from_us(100);

/// How a run has ended.
pub(super) struct End {
    pub(super) reason: EndReason,
    /// Its duration, if the card has reported it.
    pub(super) span: Option<Duration>,
    /// The time of its restore; zero: there was none, or its time is not known.
    pub(super) restore: Duration,
    /// The time of its save, if that is known.
    pub(super) save: Option<Duration>,
}

impl End {
    fn of(reason: EndReason) -> Self {
        Self {
            reason,
            span: None,
            restore: Duration::ZERO,
            save: None,
        }
    }
}

impl SlotFsm {
    pub(super) fn poll_min(&self) -> Duration {
        match self.config.profile {
            Profile::Base { .. } => POLL_MIN,
            Profile::Irq | Profile::Relay => WATCHDOG_PERIOD,
        }
    }

    /// Starts or resumes the job of `ctx` on the slot, which must be vacant.
    pub(super) fn start(
        &mut self,
        cx: &mut Cx<'_>,
        ctx: ContextId,
        resume: bool,
        boosted: bool,
        times: StartTimes,
    ) {
        let slot = self.id;
        if self.config.has_relay() {
            cx.act(Action::Load { slot, ctx });
            self.post_start(cx, ctx, resume);
            return self.begin_run(cx, ctx, resume, boosted, times);
        }
        // A base slot was reset when the last job left it.
        if resume && self.config.reset_before_resume && self.config.settle().is_none() {
            for hold in [true, false] {
                cx.act(Action::Reset { slot, ctx, hold });
            }
        }
        cx.act(Action::Load { slot, ctx });
        self.window = Some(ctx);
        self.begin_run(cx, ctx, resume, boosted, times);
    }

    /// Posts the order by which the vacant slot runs a context.
    fn post_start(&mut self, cx: &mut Cx<'_>, ctx: ContextId, resume: bool) {
        let order = Order {
            after: self.count,
            stop: Stop::Vacant,
            next: Some(NextRun {
                ctx,
                resume,
                back: false,
            }),
        };
        cx.act(Action::Order {
            slot: self.id,
            order,
        });
    }

    /// Notes that the run of a context has begun on a slot that had no run.
    pub(super) fn begin_run(
        &mut self,
        cx: &mut Cx<'_>,
        ctx: ContextId,
        resume: bool,
        boosted: bool,
        mut times: StartTimes,
    ) {
        let slot = self.id;
        times.idle_since = self.idle_since.take();
        cx.act(Action::Start {
            slot,
            ctx,
            resume,
            boosted,
            times,
        });
        self.count = self.count.wrapping_add(1);
        self.posted = Order::none(self.count);
        self.stats.starts += 1;
        self.stats.resumes += u64::from(resume);
        let extra = if resume {
            self.stats.restore()
        } else {
            Duration::ZERO
        };
        let poll_period = self.poll_min();
        let savable = match self.config.unsavable() {
            Duration::ZERO => Time::ZERO,
            unsavable => cx.now + unsavable,
        };
        self.enter(State::Running(Run {
            ctx,
            started: cx.now,
            named: cx.now,
            resumed: resume,
            extra,
            used: Duration::ZERO,
            shown: Time::ZERO,
            poll_at: cx.now + poll_period,
            poll_period,
            seen_running: false,
            suspect: false,
            savable,
            boosted,
            pause: None,
        }));
    }

    /// Notes that the last START was written at `written` at the latest.
    pub(super) fn note_start(&mut self, written: Time) {
        let unsavable = self.config.unsavable();
        if let State::Running(run) = &mut self.state {
            if unsavable != Duration::ZERO {
                run.savable = run.savable.max(written + unsavable);
            }
        }
    }

    /// Notes that loading registers before the last START took `total`, of which `clearing` is
    /// charged to others: the run begins later by `clearing`.
    pub(super) fn note_load(&mut self, clearing: Duration, total: Duration) {
        if let State::Running(run) = &mut self.state {
            run.started = run.started + clearing;
            run.extra += Duration::from_ns(total.as_ns().saturating_sub(clearing.as_ns()));
            run.poll_at = run.poll_at + total;
            self.entered = true;
        }
    }

    /// Stops the job by force, because it fails, or `None`: because its context is closed.
    pub(super) fn abort(&mut self, cx: &mut Cx<'_>, failure: Option<Failure>) -> Progress {
        let over = self.end_run(cx, End::of(EndReason::Aborted(failure)));
        let Some(over) = over else {
            return Progress::NONE;
        };
        self.stats.resets += 1;
        self.idle_since = None;
        let outcome = Outcome::Failed(failure.unwrap_or(Failure::Protocol));
        self.hold_reset(cx, over.ctx, outcome, 0);
        Progress {
            over: Some(over),
            after: After::Pending,
        }
    }
}

/// Reports of the card.
impl SlotFsm {
    /// Handles the status of a slot with a job.
    pub(super) fn run_status(
        &mut self,
        cx: &mut Cx<'_>,
        status: Status,
        class: StatusClass,
    ) -> Progress {
        let (reason, outcome) = match class {
            StatusClass::Running => return self.runs_on(cx, status.phase() == Phase::Running),
            StatusClass::Stale => {
                if let State::Running(run) = &mut self.state {
                    run.suspect = true;
                }
                self.read_status(cx);
                return Progress::NONE;
            }
            StatusClass::Violation => return self.abort(cx, Some(Failure::Protocol)),
            StatusClass::Paused => (EndReason::Paused, Outcome::Saved),
            StatusClass::Empty => (EndReason::Empty, Outcome::Empty),
            StatusClass::Finished => (EndReason::Finished, Outcome::Finished),
            StatusClass::Fault => (EndReason::Fault, Outcome::Failed(Failure::Fault)),
            StatusClass::SnapshotError => {
                let outcome = Outcome::Failed(Failure::Snapshot);
                (EndReason::SnapshotError, outcome)
            }
        };
        let mut end = End::of(reason);
        if self.config.profile == Profile::Irq {
            end.restore = status.restore();
        }
        if let (EndReason::Paused, Some(pause)) = (reason, self.run().and_then(|run| run.pause)) {
            end.save = (!pause.boundary).then(|| cx.now.since(pause.since));
        }
        let Some(over) = self.end_run(cx, end) else {
            return Progress::NONE;
        };
        self.idle_since = Some(cx.now);
        let ctx = over.ctx;
        let after = if self.config.settle().is_none() {
            self.enter(State::Vacant);
            After::Vacant { ctx, outcome }
        } else {
            self.hold_reset(cx, ctx, outcome, 0);
            After::Pending
        };
        Progress {
            over: Some(over),
            after,
        }
    }

    /// Notes that the job runs or, on a base card, has not begun.
    pub(super) fn runs_on(&mut self, cx: &mut Cx<'_>, is_running: bool) -> Progress {
        let is_polled = self.config.settle().is_some();
        let State::Running(run) = &mut self.state else {
            return Progress::NONE;
        };
        if is_running && run.pause.is_some_and(|pause| pause.last) {
            self.stats.timeouts += 1;
            return self.abort(cx, Some(Failure::PreemptTimeout));
        }
        run.suspect = false;
        run.seen_running |= is_running;
        if !is_polled {
            run.poll_at = cx.now + run.poll_period;
        }
        Progress::NONE
    }

    /// Measures and reports the end of a run. The caller changes the state.
    pub(super) fn end_run(&mut self, cx: &mut Cx<'_>, end: End) -> Option<RunOver> {
        let End {
            reason,
            span,
            restore,
            save,
        } = end;
        self.end_overrun(cx);
        let &Run {
            ctx,
            started,
            pause,
            ..
        } = self.run()?;
        let span = span.unwrap_or(cx.now.since(started));
        self.stats.busy += span;
        self.stats.note_restore(restore);
        let saved = matches!(reason, EndReason::Paused | EndReason::Empty);
        if saved {
            // From the first PAUSE on, even if that PAUSE was dropped during a restore: then the
            // average grows until the slice covers the restore.
            self.stats.note_save(save);
        }
        cx.act(Action::Ended {
            slot: self.id,
            ctx,
            run: RunEnd {
                reason,
                span,
                save,
                restore,
            },
        });
        Some(RunOver {
            ctx,
            saved,
            save,
            paused_at: pause.map(|pause| pause.since),
        })
    }

    /// Reports how long the job was on its way to a boundary beyond the bound.
    pub(super) fn end_overrun(&mut self, cx: &mut Cx<'_>) {
        let Some(run) = self.run() else {
            return;
        };
        let ctx = run.ctx;
        if let Some(Pause {
            bound: Some(bound),
            overrun: true,
            boundary: true,
            ..
        }) = run.pause
        {
            let span = cx.now.since(bound);
            self.stats.overrun += span;
            cx.act(Action::Overrun {
                slot: self.id,
                ctx,
                span,
            });
        }
    }

    /// Reads the status, and sets the time of the next poll.
    pub(super) fn poll(&mut self, cx: &mut Cx<'_>, timeslice: Duration) {
        let is_polled = self.config.settle().is_some();
        if let State::Running(run) = &mut self.state {
            if is_polled {
                let most = timeslice.quarter().min(POLL_MAX).max(POLL_MAX_FLOOR);
                run.poll_period = run.poll_period.doubled().min(most);
            }
            run.poll_at = cx.now + run.poll_period;
        }
        self.read_status(cx);
    }
}

/// Saving the job: PAUSE, at once or at a boundary, until it is answered or the preempt timeout is
/// over.
impl SlotFsm {
    /// Returns whether the slot stops a job at a boundary; `cooperative`: the context of the job is
    /// cooperative.
    fn stops_at_boundary(&self, cooperative: bool) -> bool {
        match self.config.granularity {
            PreemptGranularity::BoundaryOnly => true,
            PreemptGranularity::AnywhereOrBoundary => cooperative,
            PreemptGranularity::Anywhere => false,
        }
    }

    /// Tells the job to pause at the time `due`, unless it was already told to. Only a relay can be
    /// told in advance. Returns whether the job is to pause at a boundary. The slot is reset if the
    /// job has not left it after `timeout`.
    pub(super) fn pause(
        &mut self,
        cx: &mut Cx<'_>,
        cooperative: bool,
        timeout: Duration,
        cause: PauseCause,
        due: Time,
    ) -> Option<bool> {
        let now = cx.now;
        let boundary = self.stops_at_boundary(cooperative);
        let (poll_period, save) = (self.poll_min(), self.stats.save());
        let is_relay = self.config.has_relay();
        let State::Running(run) = &mut self.state else {
            return None;
        };
        if run.pause.is_some() {
            return None;
        }
        let at = now.max(due).max(run.savable);
        run.poll_period = poll_period;
        // The job may end before the PAUSE is written.
        run.poll_at = now.max(due) + poll_period;
        let pause = Pause {
            after: run.work_until(now, due),
            is_early: matches!(cause, PauseCause::Outranked { .. }),
            ..run.new_pause(at, timeout, save, boundary)
        };
        self.entered = true;
        self.stats.pauses += 1;
        if now < run.savable {
            run.pause = Some(pause.held_back(cause));
            return Some(boundary);
        }
        run.pause = Some(if is_relay { pause.by_order() } else { pause });
        let late = self.fired.map(|at| now.since(at));
        self.write_pause(cx, boundary, cause, late);
        Some(boundary)
    }

    fn write_pause(
        &mut self,
        cx: &mut Cx<'_>,
        boundary: bool,
        cause: PauseCause,
        late: Option<Duration>,
    ) {
        let Some(&Run { ctx, .. }) = self.run() else {
            return;
        };
        cx.act(Action::Pause {
            slot: self.id,
            ctx,
            boundary,
            cause,
            late,
        });
    }

    /// Limits how long a job on its way to a boundary may delay `waiter`, which preempts the job at
    /// once. After `wait`, the overrun is counted, and the job is stopped where it is unless the
    /// engine stops at boundaries only. `None`: no such context waits any more.
    pub(super) fn bound_boundary(
        &mut self,
        cx: &mut Cx<'_>,
        waiter: Option<ContextId>,
        wait: Duration,
    ) {
        let granularity = self.config.granularity;
        let Some((ctx, pause)) = self.boundary_pause() else {
            return;
        };
        let Some(waiter) = waiter else {
            if pause.bound.is_some() {
                self.end_overrun(cx);
                if let Some((_, pause)) = self.boundary_pause() {
                    (pause.bound, pause.overrun) = (None, false);
                }
            }
            return;
        };
        let bound = *pause.bound.get_or_insert(cx.now + wait);
        if cx.now < bound || pause.overrun {
            return;
        }
        pause.overrun = true;
        self.stats.overruns += 1;
        if granularity != PreemptGranularity::BoundaryOnly {
            cx.act(Action::Overrun {
                slot: self.id,
                ctx,
                span: Duration::ZERO,
            });
            self.save_now(cx, PauseCause::Outranked { waiter });
        }
    }

    /// Replaces the PAUSE of a job on its way to a boundary by a plain one.
    fn save_now(&mut self, cx: &mut Cx<'_>, cause: PauseCause) {
        let save = self.stats.save();
        if let Some((_, pause)) = self.boundary_pause() {
            pause.begin_save(cx.now, save);
            self.write_pause(cx, false, cause, None);
        }
    }

    /// Returns the context and the PAUSE of a job that is on its way to a boundary.
    fn boundary_pause(&mut self) -> Option<(ContextId, &mut Pause)> {
        let State::Running(run) = &mut self.state else {
            return None;
        };
        let ctx = run.ctx;
        let pause = run.pause.as_mut()?;
        (pause.boundary && !pause.last).then_some((ctx, pause))
    }

    /// Returns whether the job is on its way to a boundary.
    pub(super) fn is_to_boundary(&self) -> bool {
        let pause = self.run().and_then(|run| run.pause.as_ref());
        pause.is_some_and(|pause| pause.boundary && !pause.last)
    }

    /// Stops a job on its way to a boundary where it is, because its context is no longer
    /// cooperative. A context that becomes cooperative meanwhile is so from its next stop on.
    pub(super) fn stop_before_boundary(&mut self, cx: &mut Cx<'_>) {
        if self.stops_at_boundary(false) {
            return;
        }
        let Some((_, pause)) = self.boundary_pause() else {
            return;
        };
        if cx.now < pause.since {
            (pause.boundary, pause.bound) = (false, None);
            return;
        }
        self.entered = true;
        self.save_now(cx, PauseCause::Again);
    }

    pub(super) fn pause_timer(&mut self, cx: &mut Cx<'_>, timeslice: Duration) -> Progress {
        let now = cx.now;
        let (poll_period, save) = (self.poll_min(), self.stats.save());
        let State::Running(run) = &mut self.state else {
            return Progress::NONE;
        };
        let is_due = now >= run.poll_at;
        let Some(pause) = &mut run.pause else {
            return Progress::NONE;
        };
        if pause.last {
            return if is_due {
                self.after_last_read(cx, timeslice)
            } else {
                Progress::NONE
            };
        }
        if pause.is_over(now) {
            pause.last = true;
            self.poll(cx, timeslice);
            return Progress::NONE;
        }
        if now >= pause.again {
            let boundary = pause.boundary;
            let first = pause.unwritten.take();
            match first {
                Some(_) => {
                    pause.again = now + pause.wait;
                    (run.poll_period, run.poll_at) = (poll_period, now + poll_period);
                }
                None => pause.repeat(now, save),
            }
            self.entered = true;
            // An order stays in force until it is taken.
            if !self.config.has_relay() {
                self.stats.pauses_again += u64::from(first.is_none());
                self.write_pause(cx, boundary, first.unwrap_or(PauseCause::Again), None);
            }
        }
        if is_due {
            self.poll(cx, timeslice);
        }
        Progress::NONE
    }

    /// Handles the case that the read at the end of the preempt timeout has not ended the run, or
    /// has returned nothing. Base: the slot showed what it showed before the START, which does not
    /// prove a timeout.
    fn after_last_read(&mut self, cx: &mut Cx<'_>, timeslice: Duration) -> Progress {
        if self.config.settle().is_some() {
            self.poll(cx, timeslice);
            return Progress::NONE;
        }
        self.runs_on(cx, true)
    }
}

/// Events of the slot.
impl SlotFsm {
    /// Handles a status that was read.
    pub(super) fn status(&mut self, cx: &mut Cx<'_>, status: Status) -> Progress {
        match self.state {
            State::Running(run) => {
                let class = status.classify(&self.config, &run, self.count, cx.now);
                self.run_status(cx, status, class)
            }
            State::Resetting(reset) => self.reset_status(cx, reset, status),
            // No job: a late interrupt, or one that the card did not send.
            State::Vacant | State::Quarantined(_) | State::Gone => Progress::NONE,
        }
    }

    /// Does what is due when the timer fires. The context of the job has the slice `timeslice`.
    pub(super) fn timer(&mut self, cx: &mut Cx<'_>, timeslice: Duration) -> Progress {
        match self.state {
            State::Running(Run { pause: Some(_), .. }) => self.pause_timer(cx, timeslice),
            State::Running(run) if cx.now >= run.poll_at => {
                self.poll(cx, timeslice);
                Progress::NONE
            }
            State::Resetting(reset) => self.reset_timer(cx, reset),
            _ => Progress::NONE,
        }
    }
}
