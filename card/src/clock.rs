// SPDX-License-Identifier: GPL-2.0-or-later
//! The clock of the card, which a guest sees in records: the host's clock, shifted so that the
//! guest's card does not go back in time on another host.

use crate::event::now_ns;
use std::sync::atomic::{AtomicU64, Ordering};

/// The clock of a card, in nanoseconds.
#[derive(Debug, Default)]
pub struct Clock {
    /// Card's time minus host's time, modulo 2^64.
    ahead: AtomicU64,
}

impl Clock {
    /// Returns the card's time at a time of the host's clock.
    pub fn told(&self, local: u64) -> u64 {
        local.wrapping_add(self.ahead.load(Ordering::Acquire))
    }

    /// Returns the host's time at a time of the card's clock; at least 1, and not in the future.
    pub fn local(&self, told: u64) -> u64 {
        let now = now_ns();
        let age = self.told(now).saturating_sub(told);
        now.saturating_sub(age).max(1)
    }

    /// Sets the card's clock.
    pub fn set(&self, told: u64) {
        self.ahead
            .store(told.wrapping_sub(now_ns()), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_goes_on_from_there() {
        let clock = Clock::default();
        let hour = 3_600_000_000_000;
        assert_eq!(clock.told(5), 5);
        for told in [now_ns() + hour, 2 * hour, u64::MAX / 2] {
            clock.set(told);
            let now = now_ns();
            assert!(clock.told(now) >= told && clock.told(now) < told + hour);
            assert!(clock.local(told) <= now_ns());
            assert_eq!(clock.told(now) - clock.told(now - 7), 7);
        }
        clock.set(u64::MAX / 2);
        assert_eq!(clock.local(1), 1, "older than the host's clock");
    }
}
