// SPDX-License-Identifier: GPL-2.0

//! A job on a slot, and the PAUSE that was written for it.

use super::{ContextId, Duration, PauseCause, Time};

/// The status of a job that runs or pauses is read this often, because an interrupt can be lost.
pub(super) const WATCHDOG_PERIOD: Duration = Duration::from_ms(10);

/// A PAUSE is not written again sooner than this: an answer takes an interrupt, and saves take
/// time.
const AGAIN_MIN: Duration = Duration::from_us(250);
/// It is not written again later than this.
const AGAIN_MAX: Duration = Duration::from_ms(5);
/// A restore is certainly over this much later than expected, plus a sixteenth of the expected
/// time: the writes of the START take time.
const RESTORE_MARGIN: Duration = Duration::from_us(10);
/// Fewer repetitions of PAUSE than this do not prove a hang, however late the timers are.
const PAUSES_MIN: u32 = 3;

/// A job on a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) ctx: ContextId,
    /// When START was written, or later if part of the loading is charged to others.
    pub(super) started: Time,
    /// The earliest time at which the run can have begun: when START was written, or a relay was
    /// told of it.
    pub(super) named: Time,
    /// It began with a restore.
    pub(super) resumed: bool,
    /// Added to the slice: the cost of the restore, and of loading registers, so that a slice
    /// always makes progress.
    pub(super) extra: Duration,
    /// The part of its slice that was used before the slot went back to the job.
    pub(super) used: Duration,
    /// Until when its time was shown to users.
    pub(super) shown: Time,
    /// When to read the status if nothing happens.
    pub(super) poll_at: Time,
    /// The time between two polls.
    pub(super) poll_period: Duration,
    /// Base: RUNNING was read, so that IDLE no longer means "not yet".
    pub(super) seen_running: bool,
    /// irq: a status from before the START was read; a read that certainly follows the START is
    /// under way.
    pub(super) suspect: bool,
    /// Base: no PAUSE is written before this time, because the engine cannot be saved yet.
    pub(super) savable: Time,
    /// The starvation boost has put the job on the slot: its slice is not cut short.
    pub(super) boosted: bool,
    pub(super) pause: Option<Pause>,
}

/// A PAUSE that was written and not yet answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    /// When it was first written; if a PAUSE at a boundary was replaced, when the replacement was
    /// written.
    pub(super) since: Time,
    /// Relay: how long the job may work until it stops; zero: it stops at once.
    pub(super) after: Duration,
    /// When to write it again, or for the first time.
    pub(super) again: Time,
    /// It is not written yet, because the engine cannot be saved so soon after its START: the cause
    /// to write it with.
    pub(super) unwritten: Option<PauseCause>,
    /// It was probably written during a restore, and then dropped: having to repeat it is no sign
    /// of an error.
    pub(super) in_restore: bool,
    /// The current interval between repetitions.
    pub(super) wait: Duration,
    /// How often it was repeated.
    pub(super) tries: u32,
    /// A save would be over by now, judging by earlier saves on this slot.
    pub(super) late: bool,
    /// When the preempt timeout is over.
    pub(super) give_up: Time,
    /// The job is stopped without being saved (a slot with a relay).
    pub(super) dropped: bool,
    /// The job is stopped before its slice is over.
    pub(super) is_early: bool,
    /// The preempt timeout is over; the status is read a last time, in case an interrupt was lost.
    pub(super) last: bool,
    /// The job stops at a boundary: the time until PAUSED is not the time of a save.
    pub(super) boundary: bool,
    /// Until when a context that preempts at once waits for the boundary; `None`: no such context
    /// waits.
    pub(super) bound: Option<Time>,
    /// The bound has passed.
    pub(super) overrun: bool,
}

impl Run {
    /// Returns a PAUSE that is written now.
    pub(super) fn new_pause(
        &self,
        now: Time,
        timeout: Duration,
        save: Duration,
        boundary: bool,
    ) -> Pause {
        let wait = save.doubled().clamp(AGAIN_MIN, AGAIN_MAX);
        let restored = self.restored_at().filter(|&at| now < at);
        Pause {
            since: now,
            after: Duration::ZERO,
            again: restored.map_or(now + wait, |at| at.min(now + AGAIN_MAX)),
            unwritten: None,
            in_restore: restored.is_some(),
            wait,
            tries: 0,
            late: false,
            give_up: now + timeout,
            dropped: false,
            is_early: false,
            last: false,
            boundary,
            bound: None,
            overrun: false,
        }
    }

    /// Returns how long the job works until `due`, if that is still to come; otherwise zero.
    pub(super) fn work_until(&self, now: Time, due: Time) -> Duration {
        match due > now {
            true => due
                .since(self.started + self.extra)
                .max(Duration::from_us(1)),
            false => Duration::ZERO,
        }
    }

    /// Returns when the restore of the run is certainly over; `None`: it had none, or the time of
    /// restores on its slot is not known.
    fn restored_at(&self) -> Option<Time> {
        let margin = self.extra.parts(16) + RESTORE_MARGIN;
        (self.extra != Duration::ZERO).then(|| self.started + self.extra + margin)
    }

    pub(super) fn next_timer(&self) -> Time {
        let Some(pause) = &self.pause else {
            return self.poll_at;
        };
        if pause.last {
            return self.poll_at;
        }
        let bound = pause.bound.filter(|_| !pause.overrun);
        let next = pause.again.min(self.poll_at);
        let next = bound.map_or(next, |bound| next.min(bound));
        if pause.tries >= PAUSES_MIN {
            next.min(pause.give_up)
        } else {
            next
        }
    }
}

impl Pause {
    /// Returns the PAUSE as one that is not written before the time from which it counts.
    pub(super) fn held_back(self, cause: PauseCause) -> Self {
        Self {
            again: self.since,
            unwritten: Some(cause),
            ..self
        }
    }

    /// Returns the PAUSE with the times of an order, which stays in force until it is taken.
    pub(super) fn by_order(self) -> Self {
        let again = self.since + WATCHDOG_PERIOD;
        Self { again, ..self }
    }

    /// Returns whether the preempt timeout is over.
    pub(super) fn is_over(&self, now: Time) -> bool {
        now >= self.give_up && self.tries >= PAUSES_MIN
    }

    /// Sets the times of a plain PAUSE that is written now, where a save takes `save`.
    pub(super) fn begin_save(&mut self, now: Time, save: Duration) {
        // A bound belongs to a boundary.
        (self.boundary, self.bound) = (false, None);
        self.since = now;
        self.wait = save.doubled().clamp(AGAIN_MIN, AGAIN_MAX);
        self.again = now + self.wait;
        self.late = false;
    }

    /// Notes that PAUSE was not answered in time: it may have been dropped during a restore, or
    /// lost, or the save takes longer than usual. `save`: the time that a save takes.
    pub(super) fn repeat(&mut self, now: Time, save: Duration) {
        if !core::mem::take(&mut self.in_restore) {
            self.wait = self.wait.doubled().min(AGAIN_MAX);
            self.tries += 1;
            self.late = now >= self.since + save.doubled();
        }
        self.again = now + self.wait;
    }
}
