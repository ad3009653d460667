// SPDX-License-Identifier: GPL-2.0

//! The protocol of a slot of the base profile: it has no interrupt and is polled, its status
//! counts no STARTs, and some engines cannot be saved soon after a START. It is reset after each
//! job (`reset.rs`).

use super::super::values::{Duration, Phase, Profile, Status, Time};
use super::run::{Run, Seen};
use super::Protocol;

/// The time until the first poll of a status; it doubles with each poll.
pub(super) const POLL_MIN: Duration = Duration::from_us(50);
/// The longest time between two polls, or a quarter of the slice if that is less...
const POLL_MAX: Duration = Duration::from_ms(1);
/// ... but never less than this.
const POLL_MAX_FLOOR: Duration = Duration::from_us(100);
/// How long after START the status may still read IDLE.
const START_LAG_MAX: Duration = Duration::from_ms(50);

/// Returns the time between two polls after the time before.
pub(super) fn next_poll(period: Duration, timeslice: Duration) -> Duration {
    let most = timeslice.quarter().min(POLL_MAX).max(POLL_MAX_FLOOR);
    period.doubled().min(most)
}

impl Protocol {
    /// Returns from when on a PAUSE may be written for a run whose START was written at `started`.
    #[inline]
    pub(super) fn savable_after(&self, started: Time) -> Time {
        match self.config.profile {
            Profile::Base { unsavable, .. } if unsavable != Duration::ZERO => started + unsavable,
            _ => Time::ZERO,
        }
    }

    /// Returns what a status says of a run. There is no count, but the slot was reset before the
    /// START, so an older status can only be IDLE. A card with a window, a snapshot unit or queues,
    /// but without interrupts, reports faults, snapshot errors and empty queues, too.
    pub(super) fn see_base(&self, run: &Run, status: Status, now: Time) -> Seen {
        let is_fresh = !run.seen_running && now.since(run.started) <= START_LAG_MAX;
        let is_written = run.stop.is_some_and(|stop| stop.unwritten.is_none());
        match status.phase() {
            Phase::Running => Seen::Running,
            Phase::Idle if is_fresh => Seen::Running,
            // It may have arrived right behind a START that was late: Optimus's engines show
            // RUNNING one cycle after it.
            Phase::Idle if !run.seen_running && !run.suspect => Seen::Stale,
            _ => self
                .see_end(status, is_written)
                .map_or(Seen::Violation, Seen::Over),
        }
    }
}
