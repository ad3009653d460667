// SPDX-License-Identifier: GPL-2.0

//! CLOCK_MONOTONIC: the clock of the scheduler, of its timers and of the calls.

use crate::{sched::Time, shim};
use kernel::bindings;

/// The time. Any context.
pub(crate) fn now() -> Time {
    // SAFETY: No requirement.
    // CAST: the clock starts at 0 and does not go back.
    Time::from_ns(unsafe { bindings::ktime_get() } as u64)
}

/// What `ns` on the clock of the caller's time namespace is on ours: 0 for 0 only, and what is later
/// than the clock can tell stays so. Process context.
pub(crate) fn of_caller(ns: u64) -> Time {
    match i64::try_from(ns) {
        Ok(ns) if ns != 0 => {
            // SAFETY: No requirement.
            let ours = unsafe { shim::fermata_monotonic_of_caller(ns) };
            // CAST: at least 1; the kernel returns 0 for what was before our clock began.
            Time::from_ns(ours.max(1) as u64)
        }
        _ => Time::from_ns(ns),
    }
}
