// SPDX-License-Identifier: GPL-2.0

//! CLOCK_MONOTONIC: the clock of the scheduler, of its timers and of the calls.

use crate::{scheduler::Time, shim::fermata_monotonic_of_caller};
use kernel::time::{hrtimer::HrTimerExpires, Instant, Monotonic};

/// Returns the time. Any context but NMI.
pub(crate) fn now() -> Time {
    // Only this trait gives access to the value of an `Instant`.
    let ns = HrTimerExpires::as_nanos(&Instant::<Monotonic>::now());
    // CAST: the clock starts at 0 and does not go back.
    Time::from_ns(ns as u64)
}

/// Converts `ns`, a time on the clock of the caller's time namespace. 0 stays 0, and a time beyond
/// the range of the clock stays as it is. Process context.
pub(crate) fn of_caller(ns: u64) -> Time {
    match i64::try_from(ns) {
        Ok(ns) if ns != 0 => {
            let ours = fermata_monotonic_of_caller(ns);
            // CAST: at least 1; the kernel returns 0 for a time before our clock began.
            Time::from_ns(ours.max(1) as u64)
        }
        _ => Time::from_ns(ns),
    }
}
