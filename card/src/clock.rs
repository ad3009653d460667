// SPDX-License-Identifier: GPL-2.0
//! The card's clock.

use rustix::time::{clock_gettime, ClockId};

/// `CLOCK_MONOTONIC` in nanoseconds.
pub fn now_ns() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Microseconds as nanoseconds, saturating.
pub const fn us(n: u64) -> u64 {
    n.saturating_mul(1000)
}
