// SPDX-License-Identifier: GPL-2.0

//! The run of a job on a slot: START, what the status says of it, and its end.

use super::event::Cx;
use super::order::{NextRun, Order, Stop};
use super::run::{Pause, Run, WATCHDOG_PERIOD};
use super::slot_fsm::{After, Outcome, Progress, RunOver, SlotFsm, State};
use super::status::StatusClass;
use super::{
    Action, ContextId, Duration, EndReason, Failure, Phase, Profile, RunEnd, StartTimes, Status,
};

/// Base: the time to the first poll of a status; the time doubles with each poll.
const POLL_MIN: Duration = Duration::from_us(50);
/// Base: the longest time between two polls, or a quarter of the slice if that is less...
const POLL_MAX: Duration = Duration::from_ms(1);
/// ... but never less than this.
const POLL_MAX_FLOOR: Duration = Duration::from_us(100);

/// How a run has ended.
pub(super) struct End {
    pub(super) reason: EndReason,
    /// What it took, if the card has told.
    pub(super) span: Option<Duration>,
    /// The time of its restore; zero: it had none, or nothing is known.
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
            Profile::Fermata | Profile::Relay => WATCHDOG_PERIOD,
        }
    }

    /// Starts or resumes the job of `ctx` on the slot, which is vacant.
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

    /// Posts the order by which the slot, which is vacant, runs a context.
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

    /// Notes that the run of a context has begun, on a slot on which there was none.
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
        self.enter(State::Running(Run {
            ctx,
            started: cx.now,
            named: cx.now,
            resumed: resume,
            extra,
            used: Duration::ZERO,
            poll_at: cx.now + poll_period,
            poll_period,
            seen_running: false,
            suspect: false,
            boosted,
            pause: None,
        }));
    }

    /// Notes that loading registers before the last START took `total`, of which others pay
    /// `clearing`: the run begins so much later.
    pub(super) fn note_load(&mut self, clearing: Duration, total: Duration) {
        if let State::Running(run) = &mut self.state {
            run.started = run.started + clearing;
            run.extra += Duration::from_ns(total.as_ns().saturating_sub(clearing.as_ns()));
            run.poll_at = run.poll_at + total;
            self.entered = true;
        }
    }

    /// Stops the job by force.
    pub(super) fn abort(&mut self, cx: &mut Cx<'_>, outcome: Outcome) -> Progress {
        let over = self.end_run(cx, End::of(EndReason::Aborted));
        let Some(over) = over else {
            return Progress::NONE;
        };
        self.stats.resets += 1;
        self.idle_since = None;
        self.hold_reset(cx, over.ctx, outcome, 0);
        Progress {
            over: Some(over),
            after: After::Pending,
        }
    }
}

/// What the card says.
impl SlotFsm {
    /// Takes in the status of a slot with a job.
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
            StatusClass::Violation => return self.abort(cx, Outcome::Failed(Failure::Protocol)),
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
        if self.config.profile == Profile::Fermata {
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

    /// The job runs, or on base has not begun.
    pub(super) fn runs_on(&mut self, cx: &mut Cx<'_>, is_running: bool) -> Progress {
        let is_polled = self.config.settle().is_some();
        let State::Running(run) = &mut self.state else {
            return Progress::NONE;
        };
        if is_running && run.pause.is_some_and(|pause| pause.last) {
            self.stats.timeouts += 1;
            return self.abort(cx, Outcome::Failed(Failure::PreemptTimeout));
        }
        run.suspect = false;
        run.seen_running |= is_running;
        if !is_polled {
            run.poll_at = cx.now + run.poll_period;
        }
        Progress::NONE
    }

    /// Measures and reports the end of a run. The state is left to the caller.
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
            // From the first PAUSE on, also when it was dropped during a restore: then the average
            // grows until the slice covers the restore.
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

    /// Reports for how long the job was on its way to a boundary beyond the bound.
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
