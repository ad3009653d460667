// SPDX-License-Identifier: GPL-2.0

//! Stopping a job: PAUSE, at once or at a boundary, until it is answered or the preempt timeout is
//! over.

use super::super::card::{Call, Card, Pause, Trace};
use super::super::values::{Duration, PauseCause, PreemptGranularity, Time};
use super::run::{Run, WATCHDOG_PERIOD};
use super::{Change, Protocol};

/// A PAUSE is not written again sooner than this: an answer takes an interrupt, and saves take
/// time.
const AGAIN_MIN: Duration = Duration::from_us(250);
/// It is not written again later than this.
const AGAIN_MAX: Duration = Duration::from_ms(5);
/// A restore is certainly over this much later than expected, plus a sixteenth of the expected
/// time: the writes of the START take time.
const RESTORE_MARGIN: Duration = Duration::from_us(10);
/// Fewer repetitions of PAUSE than this do not prove a hang, however late the timers are.
const TRIES_MIN: u32 = 3;

/// How a job was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Stopping {
    /// When the job is to stop: when PAUSE was first written, or later on a slot with a relay.
    pub(in super::super) at: Time,
    /// Relay: how long the job may work; zero: it stops at once.
    pub(super) after: Duration,
    /// When to write PAUSE again, or for the first time, and how long to wait then.
    pub(super) again: Time,
    wait: Duration,
    /// It is not written yet, because the engine cannot be saved so soon after its START: why it is
    /// to be written.
    pub(super) unwritten: Option<PauseCause>,
    /// It was probably written during a restore, and then dropped: having to repeat it is no sign
    /// of an error.
    in_restore: bool,
    /// How often it was repeated.
    tries: u32,
    /// A save would be over by now, judging by earlier saves on this slot.
    pub(in super::super) late: bool,
    /// When the preempt timeout is over, and how long it is.
    give_up: Time,
    timeout: Duration,
    /// The preempt timeout is over; the status is read a last time, in case an interrupt was lost.
    pub(in super::super) last: bool,
    /// The job is stopped without being saved.
    pub(in super::super) dropped: bool,
    /// The job works on to a boundary, until `bound` at the latest.
    pub(in super::super) boundary: bool,
    bound: Time,
    /// The bound has passed, and the engine stops at boundaries only.
    pub(super) overrun: bool,
}

impl Stopping {
    /// Returns whether the card was told to stop the job at once, and not after a time.
    pub(in super::super) fn is_at_once(&self) -> bool {
        self.after == Duration::ZERO
    }

    /// Returns when the timer is needed; `poll_at`: for reading the status.
    #[inline]
    pub(super) fn deadline(&self, poll_at: Time) -> Time {
        if self.last {
            return poll_at;
        }
        let next = self.again.min(poll_at);
        let next = match self.overrun {
            true => next,
            false => next.min(self.bound),
        };
        match self.tries >= TRIES_MIN {
            true => next.min(self.give_up),
            false => next,
        }
    }

    /// Sets the times of a plain PAUSE that is written now, where a save takes `save`.
    fn save_from(&mut self, now: Time, save: Duration) {
        // A bound belongs to a boundary.
        (self.boundary, self.bound) = (false, Time::NEVER);
        (self.at, self.after) = (now, Duration::ZERO);
        self.wait = save.doubled().clamp(AGAIN_MIN, AGAIN_MAX);
        (self.again, self.late) = (now + self.wait, false);
    }

    /// Notes that PAUSE was not answered in time: it may have been dropped during a restore, or
    /// lost, or the save takes longer than usual.
    fn repeat(&mut self, now: Time, save: Duration) {
        if !core::mem::take(&mut self.in_restore) {
            self.wait = self.wait.doubled().min(AGAIN_MAX);
            self.tries += 1;
            self.late = !self.boundary && now >= self.at + save.doubled();
        }
        self.again = now + self.wait;
    }
}

impl Run {
    /// Returns a stop that is to come at `at`.
    pub(super) fn new_stop(
        &self,
        now: Time,
        at: Time,
        timeout: Duration,
        save: Duration,
    ) -> Stopping {
        let wait = save.doubled().clamp(AGAIN_MIN, AGAIN_MAX);
        let begun = self.started + self.extra;
        let restored = begun + self.extra.parts(16) + RESTORE_MARGIN;
        let in_restore = self.extra != Duration::ZERO && at < restored;
        Stopping {
            at,
            after: match at > now {
                true => at.since(begun).max(Duration::from_us(1)),
                false => Duration::ZERO,
            },
            again: match in_restore {
                true => restored.min(at + AGAIN_MAX),
                false => at + wait,
            },
            wait,
            unwritten: None,
            in_restore,
            tries: 0,
            late: false,
            give_up: at + timeout,
            timeout,
            last: false,
            dropped: false,
            boundary: false,
            bound: Time::NEVER,
            overrun: false,
        }
    }
}

/// Telling a job to stop.
impl Protocol {
    /// Returns whether a job stops at a boundary. `cooperative`: its context wants that.
    fn stops_at_boundary(&self, cooperative: bool) -> bool {
        match self.config.granularity {
            PreemptGranularity::BoundaryOnly => true,
            PreemptGranularity::AnywhereOrBoundary => cooperative,
            PreemptGranularity::Anywhere => false,
        }
    }

    /// Tells the job, which was not told yet, to stop at `at`. That is later than now only on a
    /// slot with a relay.
    pub(in super::super) fn stop<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        at: Time,
        (cooperative, timeout): (bool, Duration),
        cause: PauseCause,
    ) {
        let boundary = self.stops_at_boundary(cooperative);
        let (first_poll, save, relay) = (self.first_poll(), self.save_time(), self.has_relay());
        let now = call.now;
        let Some(run) = self.run_mut() else {
            return;
        };
        run.poll_period = first_poll;
        run.poll_at = now.max(at) + first_poll;
        let mut stop = run.new_stop(now, now.max(at).max(run.savable), timeout, save);
        stop.boundary = boundary;
        let is_held_back = now < run.savable;
        if is_held_back {
            stop.after = Duration::ZERO;
            (stop.again, stop.unwritten) = (stop.at, Some(cause));
        } else if relay {
            // An order stays in force.
            stop.again = stop.at + WATCHDOG_PERIOD;
        }
        run.stop = Some(stop);
        self.stats.pauses += 1;
        if !is_held_back {
            let late = self.fired.map(|at| now.since(at));
            self.write_pause(call, boundary, cause, late);
        }
    }

    fn write_pause<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        boundary: bool,
        cause: PauseCause,
        late: Option<Duration>,
    ) {
        if let Some(run) = self.run() {
            let pause = Pause {
                boundary,
                cause,
                late,
            };
            call.card.pause(self.id, run.ctx, &pause);
        }
    }

    /// Relay: stops at once a job that was told to stop later. Returns whether it was.
    pub(in super::super) fn stop_now(&mut self, now: Time) -> bool {
        let save = self.save_time();
        let Some(run) = self.run_mut() else {
            return false;
        };
        let Some(stop) = run.stop.filter(|stop| stop.after != Duration::ZERO) else {
            return false;
        };
        let is_early = now < stop.at;
        let boundary = stop.boundary;
        let mut stop = run.new_stop(now, now, stop.timeout, save);
        (stop.boundary, stop.again) = (boundary, now + WATCHDOG_PERIOD);
        run.poll_at = now + WATCHDOG_PERIOD;
        run.stop = Some(stop);
        is_early
    }

    /// Stops a job on its way to a boundary where it is, because its context is no longer
    /// cooperative.
    pub(in super::super) fn stop_before_boundary<C: Card>(&mut self, call: &mut Call<'_, C>) {
        if self.stops_at_boundary(false) {
            return;
        }
        let now = call.now;
        let (save, relay) = (self.save_time(), self.has_relay());
        let Some(run) = self.run_mut() else {
            return;
        };
        let stop = run.stop.as_mut();
        let Some(stop) = stop.filter(|stop| stop.boundary && !stop.last) else {
            return;
        };
        if now < stop.at || stop.unwritten.is_some() {
            (stop.boundary, stop.bound) = (false, Time::NEVER);
            return;
        }
        stop.save_from(now, save);
        if relay {
            stop.again = now + WATCHDOG_PERIOD;
        }
        self.write_pause(call, false, PauseCause::Again, None);
    }

    /// Bounds how long the job may be on its way to a boundary, because `waiter` waits for it, or
    /// because the card is to be at rest; `None`: nobody waits any more.
    pub(in super::super) fn bound_boundary<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        wait: Option<Duration>,
    ) {
        let Some(&stop) = self.stopping().filter(|stop| stop.boundary && !stop.last) else {
            return;
        };
        if wait.is_none() {
            self.note_overrun(call, &stop);
        }
        let now = call.now;
        if let Some(stop) = self.run_mut().and_then(|run| run.stop.as_mut()) {
            match wait {
                Some(wait) if stop.bound == Time::NEVER => stop.bound = now.max(stop.at) + wait,
                Some(_) => {}
                None => (stop.bound, stop.overrun) = (Time::NEVER, false),
            }
            if now >= stop.bound && !stop.overrun {
                self.pass_bound(call);
            }
        }
    }

    /// Reports how long the job was on its way to a boundary beyond the bound.
    pub(super) fn note_overrun<C: Card>(&mut self, call: &mut Call<'_, C>, stop: &Stopping) {
        let is_over = stop.overrun && call.now > stop.bound;
        if let Some(run) = self.run().filter(|_| is_over) {
            let (ctx, span) = (run.ctx, call.now.since(stop.bound));
            self.stats.overrun += span;
            call.card.trace(self.id, ctx, Trace::Overrun(span));
        }
    }
}

/// The timer of a job that was told to stop.
impl Protocol {
    pub(super) fn stop_timer<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        timeslice: Duration,
    ) -> Change {
        let now = call.now;
        let save = self.save_time();
        let Some(run) = self.run_mut() else {
            return Change::NONE;
        };
        let is_due = now >= run.poll_at;
        let Some(stop) = &mut run.stop else {
            return Change::NONE;
        };
        if stop.last {
            return match is_due {
                true => self.after_last_read(call, timeslice),
                false => Change::NONE,
            };
        }
        if now >= stop.give_up && stop.tries >= TRIES_MIN {
            stop.last = true;
            self.poll(call, timeslice);
            return Change::NONE;
        }
        if now >= stop.bound && !stop.overrun {
            self.pass_bound(call);
        } else if now >= stop.again {
            self.pause_again(call, save);
        }
        if is_due {
            self.poll(call, timeslice);
        }
        Change::NONE
    }

    /// The boundary is too far away for who waits for it.
    fn pass_bound<C: Card>(&mut self, call: &mut Call<'_, C>) {
        let now = call.now;
        let must_wait = self.stops_at_boundary(false);
        let (save, relay) = (self.save_time(), self.has_relay());
        self.stats.overruns += 1;
        let Some(run) = self.run_mut() else {
            return;
        };
        let ctx = run.ctx;
        let Some(stop) = &mut run.stop else {
            return;
        };
        if must_wait {
            stop.overrun = true;
            return;
        }
        stop.save_from(now, save);
        if relay {
            stop.again = now + WATCHDOG_PERIOD;
        }
        call.card
            .trace(self.id, ctx, Trace::Overrun(Duration::ZERO));
        self.write_pause(call, false, PauseCause::Again, None);
    }

    /// Writes PAUSE again, or for the first time.
    fn pause_again<C: Card>(&mut self, call: &mut Call<'_, C>, save: Duration) {
        let (now, first_poll) = (call.now, self.first_poll());
        let Some(run) = self.run_mut() else {
            return;
        };
        let Some(stop) = &mut run.stop else {
            return;
        };
        let first = stop.unwritten.take();
        if first.is_some() {
            stop.again = now + stop.wait;
            (run.poll_period, run.poll_at) = (first_poll, now + first_poll);
        } else {
            stop.repeat(now, save);
        }
        let boundary = stop.boundary;
        // An order stays in force until it is taken.
        if !self.has_relay() {
            self.stats.pauses_again += u64::from(first.is_none());
            self.write_pause(call, boundary, first.unwrap_or(PauseCause::Again), None);
        }
    }

    /// Handles the case that the read at the end of the preempt timeout has not ended the run, or
    /// has returned nothing. Base: the slot showed what it showed before the START, which does not
    /// prove a timeout.
    fn after_last_read<C: Card>(&mut self, call: &mut Call<'_, C>, timeslice: Duration) -> Change {
        if self.settle().is_some() {
            self.poll(call, timeslice);
            return Change::NONE;
        }
        self.runs_on(call, true)
    }
}
