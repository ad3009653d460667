// SPDX-License-Identifier: GPL-2.0

//! Bandwidth: what is left of the budget of a reservation, or of a cap.
//!
//! Time that a run uses beyond its limit, above all for its save, is a debt that is deducted from
//! the next refill, so a limit is exact in the long run. A reservation is a constant-bandwidth
//! server: its budget is refilled once a period. A cap is refilled continuously, and unused time is
//! kept for [`WINDOW`].

use super::{Duration, Params, Time};

/// How long unused time of a cap is kept.
pub(super) const WINDOW: Duration = Duration::from_ms(100);

/// Time on slots that may still be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bandwidth {
    /// Nanoseconds on a slot; negative: a debt.
    left: i64,
    /// Reservation: the beginning of the current period. Cap: the last refill.
    at: Time,
}

fn signed(span: Duration) -> i64 {
    i64::try_from(span.as_ns()).unwrap_or(i64::MAX)
}

fn span(ns: i64) -> Duration {
    Duration::from_ns(u64::try_from(ns).unwrap_or(0))
}

impl Bandwidth {
    /// Returns the bandwidth of a new cap.
    pub(super) const fn empty(now: Time) -> Self {
        Self { left: 0, at: now }
    }

    /// Returns the bandwidth of a new context, which has the budget of its first period.
    pub(super) fn with_budget(budget: Duration) -> Self {
        Self {
            left: signed(budget),
            at: Time::ZERO,
        }
    }

    /// Deducts `time` on a slot.
    pub(super) fn spend(&mut self, time: Duration) {
        self.left = self.left.saturating_sub(signed(time));
    }
}

/// Reservations. `params` are the parameters of the context.
impl Bandwidth {
    /// Returns the deadline of the current period.
    pub(super) fn deadline(&self, params: &Params) -> Time {
        self.at + params.deadline
    }

    /// Returns when a run that is charged since `since` has used up the budget.
    pub(super) fn budget_end(&self, since: Time) -> Time {
        since + span(self.left)
    }

    /// Returns whether no budget is left before the next period, which is still to come; `used` is
    /// not yet deducted.
    pub(super) fn is_exhausted(&self, now: Time, params: &Params, used: Duration) -> bool {
        self.left <= signed(used) && self.at + params.period > now
    }

    /// Begins a new period if one is due, and returns when the next period begins if no budget is
    /// left. `wakes`: the context did not want a slot before; a new period then begins if the rest
    /// of the budget in the rest of the time is denser than was admitted.
    pub(super) fn update(&mut self, now: Time, params: &Params, wakes: bool) -> Option<Time> {
        self.left = self.left.min(signed(params.budget));
        let next = self.at + params.period;
        if self.left > 0 {
            if wakes && self.is_too_dense(now, params) {
                self.replenish(now, params);
            }
        } else if next <= now {
            let in_time = next + params.deadline > now && !wakes;
            self.replenish(if in_time { next } else { now }, params);
        }
        (self.left <= 0).then_some(self.at + params.period)
    }

    /// Begins a new period at `at`; a debt is carried over.
    fn replenish(&mut self, at: Time, params: &Params) {
        self.at = at;
        self.left = self.left.min(0).saturating_add(signed(params.budget));
    }

    fn is_too_dense(&self, now: Time, params: &Params) -> bool {
        let time = (self.at + params.deadline).since(now);
        let left = u128::try_from(self.left).unwrap_or(0);
        left * u128::from(params.deadline.as_ns())
            > u128::from(time.as_ns()) * u128::from(params.budget.as_ns())
    }
}

/// Caps, in percent of one slot. `used` is the time of current runs that is not yet deducted.
impl Bandwidth {
    /// Returns the most time that a cap keeps.
    fn cap_max(cap: u64) -> i64 {
        signed(WINDOW.times(cap)) / 100
    }

    /// Returns when the bandwidth was last refilled.
    pub(super) fn refilled(&self) -> Time {
        self.at
    }

    /// Returns what is left at `at` if there were no maximum.
    fn left_by(&self, at: Time, cap: u64) -> i64 {
        let due = signed(at.since(self.at).times(cap)) / 100;
        self.left.saturating_add(due)
    }

    fn left_at(&self, now: Time, cap: u64, used: Duration) -> i64 {
        let left = self.left_by(now, cap).saturating_sub(signed(used));
        left.min(Self::cap_max(cap))
    }

    /// Refills the bandwidth of a cap.
    pub(super) fn refill(&mut self, now: Time, cap: u64, used: Duration) {
        self.left = self.left_at(now, cap, used).saturating_add(signed(used));
        self.at = now;
    }

    /// Returns whether less is left than the shortest slice.
    pub(super) fn is_spent(&self, now: Time, cap: u64, used: Duration) -> bool {
        self.left_at(now, cap, used) < signed(Params::TIMESLICE_MIN)
    }

    /// Returns when enough is left for a slice of `timeslice`.
    pub(super) fn refilled_at(
        &self,
        now: Time,
        cap: u64,
        used: Duration,
        timeslice: Duration,
    ) -> Time {
        let enough = signed(timeslice).min(Self::cap_max(cap));
        let missing = enough.saturating_sub(self.left_at(now, cap, used));
        now + Duration::from_ns(span(missing).times(100).as_ns().div_ceil(cap))
    }

    /// Returns when runs on `slots` slots, charged since `since` except for `used`, have used up
    /// the cap; `None`: the cap gives more than they use.
    pub(super) fn cap_end(
        &self,
        since: Time,
        cap: u64,
        slots: u64,
        used: Duration,
    ) -> Option<Time> {
        let rate = (100 * slots).checked_sub(cap).filter(|&rate| rate != 0)?;
        let left = self.left_by(since, cap).saturating_sub(signed(used));
        Some(since + Duration::from_ns(span(left).times(100).as_ns() / rate))
    }
}
