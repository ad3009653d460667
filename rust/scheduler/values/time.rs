// SPDX-License-Identifier: GPL-2.0

//! Points and spans of time, in nanoseconds.
//!
//! All arithmetic saturates: a clock that steps back or a span from a hostile caller gives a wrong
//! length, never a panic and never a wrapped value.

use core::ops::{Add, AddAssign};

/// A point in time: nanoseconds of a clock that the caller chooses and that does not run backwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

/// A span of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(u64);

impl Time {
    /// The clock's zero.
    pub const ZERO: Self = Self(0);

    /// A time that does not come.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns the point `ns` nanoseconds after the clock's zero.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Returns the nanoseconds since the clock's zero.
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// Returns the point `span` before, the clock's zero at the earliest.
    pub const fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(span.0))
    }

    /// Returns the span from `earlier` to `self`; zero if `earlier` is in fact later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
}

impl Duration {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// Returns a span of `ns` nanoseconds.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Returns a span of `us` microseconds.
    pub const fn from_us(us: u64) -> Self {
        Self(us.saturating_mul(1_000))
    }

    /// Returns a span of `ms` milliseconds.
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// Returns the span in nanoseconds.
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// Returns the span without `other`; zero if `other` is longer.
    pub const fn less(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Returns the span in microseconds, rounded up.
    pub const fn as_us_rounded_up(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// Returns twice the span.
    pub const fn doubled(self) -> Self {
        Self(self.0.saturating_mul(2))
    }

    /// Returns `n` times the span.
    pub const fn times(self, n: u64) -> Self {
        Self(self.0.saturating_mul(n))
    }

    /// Returns one of `n` equal parts of the span; the whole span if `n` is zero.
    pub const fn parts(self, n: u64) -> Self {
        match self.0.checked_div(n) {
            Some(ns) => Self(ns),
            None => self,
        }
    }

    /// Returns a quarter of the span.
    pub const fn quarter(self) -> Self {
        Self(self.0 / 4)
    }

    /// Returns the moving average that follows `self` after `sample`, which counts for one eighth.
    pub const fn averaged(self, sample: Self) -> Self {
        Self((self.0 - self.0 / 8).saturating_add(sample.0 / 8))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Add for Duration {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Duration {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}
