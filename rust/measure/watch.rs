// SPDX-License-Identifier: GPL-2.0

//! Two events that no job can cause: the timer of a slot fires without end, or a job waits beside
//! the slot although the slot is vacant. Only a fault of the scheduler or the driver is the
//! cause.

use crate::scheduler::{ContextId, Duration, Time};

/// Maximum number of expiries within [`STORM_SPAN`] that is not a storm.
const EXPIRIES_MAX: u32 = 100;
/// The time in which expiries are counted. It begins with one.
const STORM_SPAN: Duration = Duration::from_ms(1);
/// How long a job waits beside a vacant slot until the slot stands still.
const STANDSTILL: Duration = Duration::from_ms(10_000);

/// Watches one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotWatch {
    /// The beginning of the current [`STORM_SPAN`].
    since: Time,
    /// Expiries in that span.
    expiries: u32,
    /// The context that was seen to wait beside the slot each time since then.
    waiter: Option<(ContextId, Time)>,
    /// Whether that was counted.
    is_counted: bool,
    /// How often the timer has fired more than 100 times in a millisecond.
    pub timer_storms: u64,
    /// How often a job has waited for ten seconds while the slot was vacant.
    pub standstills: u64,
}

impl SlotWatch {
    /// Notes that the timer has fired at `now`. Returns whether that is one time too often in the
    /// current span.
    pub fn note_expiry(&mut self, now: Time) -> bool {
        if now.since(self.since) >= STORM_SPAN {
            (self.since, self.expiries) = (now, 0);
        }
        self.expiries = self.expiries.saturating_add(1);
        let is_storm = self.expiries == EXPIRIES_MAX + 1;
        self.timer_storms += u64::from(is_storm);
        is_storm
    }

    /// Notes which context waits at `now` although it could run on the slot, which is vacant.
    /// Returns whether it was the same for long enough, once for each time that it waits. To be
    /// called every second or so.
    pub fn note_waiter(&mut self, now: Time, waiter: Option<ContextId>) -> bool {
        let last = self.waiter.map(|(ctx, _)| ctx);
        if last != waiter {
            (self.waiter, self.is_counted) = (waiter.map(|ctx| (ctx, now)), false);
        }
        let stands = self
            .waiter
            .is_some_and(|(_, since)| now.since(since) >= STANDSTILL);
        let is_new = stands && !core::mem::replace(&mut self.is_counted, stands);
        self.standstills += u64::from(is_new);
        is_new
    }
}
