// SPDX-License-Identifier: GPL-2.0

//! Saving a job: PAUSE, at once or at a boundary, until it is answered or the preempt timeout is
//! over.

use super::event::Cx;
use super::run::{Pause, Run};
use super::slot_fsm::{Progress, SlotFsm, State};
use super::{Action, ContextId, Duration, PauseCause, PreemptGranularity, Time};

impl SlotFsm {
    /// Returns whether a job is stopped at a boundary here; `cooperative`: its context is.
    fn stops_at_boundary(&self, cooperative: bool) -> bool {
        match self.config.granularity {
            PreemptGranularity::BoundaryOnly => true,
            PreemptGranularity::AnywhereOrBoundary => cooperative,
            PreemptGranularity::Anywhere => false,
        }
    }

    /// Tells the job to pause at the time `due`, which only a relay can be told in advance, if it
    /// was not told so, and returns whether it was told to do so at a boundary. The slot is reset if
    /// it is not off the slot after `timeout`.
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
        run.poll_period = poll_period;
        run.poll_at = now.max(due) + poll_period;
        let pause = Pause {
            after: run.work_until(now, due),
            is_early: matches!(cause, PauseCause::Outranked { .. }),
            ..run.new_pause(now.max(due), timeout, save, boundary)
        };
        run.pause = Some(if is_relay { pause.by_order() } else { pause });
        self.entered = true;
        self.stats.pauses += 1;
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

    /// Stops the job where it is, if it was told to pause at a boundary and lets `waiter`, which
    /// goes first, wait for longer than `wait`. `None`: there is no such waiter any more.
    pub(super) fn bound_boundary(
        &mut self,
        cx: &mut Cx<'_>,
        waiter: Option<ContextId>,
        wait: Duration,
    ) {
        let granularity = self.config.granularity;
        let save = self.stats.save();
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
        let is_stopped = granularity != PreemptGranularity::BoundaryOnly;
        if is_stopped {
            pause.begin_save(cx.now, save);
        }
        self.stats.overruns += 1;
        if is_stopped {
            cx.act(Action::Overrun {
                slot: self.id,
                ctx,
                span: Duration::ZERO,
            });
            self.write_pause(cx, false, PauseCause::Outranked { waiter }, None);
        }
    }

    /// Returns the job on its way to a boundary.
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

    pub(super) fn pause_timer(
        &mut self,
        cx: &mut Cx<'_>,
        timeslice: Duration,
        cooperative: bool,
    ) -> Progress {
        let now = cx.now;
        let at_boundary = self.stops_at_boundary(cooperative);
        let save = self.stats.save();
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
            // A context that is not cooperative any more is stopped at once; one that just became
            // so, next time.
            let boundary = pause.boundary && at_boundary;
            pause.repeat(now, save);
            if pause.boundary && !boundary {
                pause.begin_save(now, save);
            }
            self.entered = true;
            // An order stands until it is taken.
            if !self.config.has_relay() {
                self.stats.pauses_again += 1;
                self.write_pause(cx, boundary, PauseCause::Again, None);
            }
        }
        if is_due {
            self.poll(cx, timeslice);
        }
        Progress::NONE
    }

    /// The read at the end of the preempt timeout brought nothing that ended the run, or nothing at
    /// all. Base: the slot showed what it showed before the START, which is no proof of a timeout.
    fn after_last_read(&mut self, cx: &mut Cx<'_>, timeslice: Duration) -> Progress {
        if self.config.settle().is_some() {
            self.poll(cx, timeslice);
            return Progress::NONE;
        }
        self.runs_on(cx, true)
    }
}
