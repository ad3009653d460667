// SPDX-License-Identifier: GPL-2.0

//! The cap of a group: a bucket of time that is refilled continuously.
//!
//! A run takes a *grant* from the bucket of each capped group above it when it begins, and gives
//! back what it did not use, as with the bandwidth of CFS. So a limit is a timer of the run, and a
//! bucket needs no sum over runs. Time beyond a grant, above all for a save, makes a debt, which
//! later refills pay: a cap is exact in the long run.

use crate::scheduler::values::{signed, Duration, Params, Time};

/// How long unused time of a cap is kept.
const WINDOW: Duration = Duration::from_ms(100);

/// Time on slots that a group may still use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bucket {
    /// Nanoseconds on a slot; negative: a debt.
    left: i64,
    refilled_at: Time,
}

/// `cap` is the cap of the group in percent of a slot, not zero.
impl Bucket {
    /// Returns the bucket of a new cap.
    pub(super) const fn empty(now: Time) -> Self {
        Self {
            left: 0,
            refilled_at: now,
        }
    }

    fn most(cap: u16) -> i64 {
        signed(WINDOW.times(cap.into())) / 100
    }

    /// Adds what has become due since the last refill.
    pub(super) fn refill(&mut self, now: Time, cap: u16) {
        let due = signed(now.since(self.refilled_at).times(cap.into())) / 100;
        self.left = self.left.saturating_add(due).min(Self::most(cap));
        self.refilled_at = self.refilled_at.max(now);
    }

    /// Deducts `time` ns on a slot; negative: gives it back.
    pub(super) fn spend(&mut self, time: i64) {
        self.left = self.left.saturating_sub(time);
    }

    /// Returns what is left after the last refill.
    pub(super) fn left(&self) -> Duration {
        Duration::from_ns(u64::try_from(self.left).unwrap_or(0))
    }

    /// Returns whether less is left than the shortest slice.
    pub(super) fn is_spent(&self) -> bool {
        self.left < signed(Params::TIMESLICE_MIN)
    }

    /// Returns when enough is left for a slice of `timeslice`.
    pub(super) fn refilled_by(&self, cap: u16, timeslice: Duration) -> Time {
        let enough = signed(timeslice).min(Self::most(cap));
        let missing = u64::try_from(enough.saturating_sub(self.left)).unwrap_or(0);
        let wait = missing.saturating_mul(100).div_ceil(u64::from(cap.max(1)));
        self.refilled_at + Duration::from_ns(wait)
    }
}
