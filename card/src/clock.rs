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
    /// Returns the card's time at a time of the host's clock, which is never 0.
    pub fn told(&self, local: u64) -> u64 {
        local
            .wrapping_add(self.ahead.load(Ordering::Acquire))
            .max(1)
    }

    /// Returns the host's time at a time of the card's clock; not in the future, and not 0. What was
    /// before the host's clock began has a negative time, modulo 2^64.
    pub fn local(&self, told: u64) -> u64 {
        let local = told.wrapping_sub(self.ahead.load(Ordering::Acquire));
        match (local as i64).min(now_ns() as i64) {
            0 => 1,
            local => local as u64,
        }
    }

    /// Returns the host's time `later` nanoseconds after a time that [`Clock::local`] has returned; 0
    /// if that was before the host's clock began.
    pub fn after(local: u64, later: u64) -> u64 {
        let due = (local as i64).saturating_add_unsigned(later);
        due.max(0) as u64
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
        clock.set(now_ns() + hour);
        assert!(clock.local(u64::MAX / 2) <= now_ns(), "in the future");
    }

    #[test]
    fn times_before_the_hosts_clock_stay_as_they_are() {
        let clock = Clock::default();
        clock.set(u64::MAX / 2);
        for told in [1, 1000, u64::MAX / 2] {
            assert_eq!(clock.told(clock.local(told)), told);
        }
        let began = clock.local(u64::MAX / 2 - now_ns() - 50);
        assert_eq!(Clock::after(began, 20), 0);
        assert!((1..now_ns()).contains(&Clock::after(began, 1_000_000_000)));
        assert_eq!(Clock::after(7, 5), 12);
        assert!(Clock::after(7, u64::MAX) > now_ns());
    }
}
