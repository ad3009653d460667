// SPDX-License-Identifier: GPL-2.0

//! Limits that hold although a slot is free: budgets of reservations, and caps.
//!
//! A context that has had its time is parked: it waits, but is offered to no slot before more is due to it. What a run takes
//! beyond the limit, its save above all, is a debt that is deducted from what is due next, so over time the limit is exact.
//!
//! A reservation (under [`PolicyKind::Deadline`]) is a constant-bandwidth server: its budget is due once a period, and work
//! that arrives while the rest of the budget would be too much for the rest of the time gets a new deadline. A cap (under
//! every policy, for contexts without a reservation in force) is due continuously, and saves up for [`WINDOW`].

use core::ops::DerefMut;

use super::machine::Machine;
use super::run::Run;
use super::{ContextId, Duration, Entry, Params, PolicyKind, Time};

/// What a capped context has not used is kept for so long.
const WINDOW: Duration = Duration::from_ms(100);
/// The periods of all contexts may begin at one moment; one decision ends the wait of no more than this.
const UNPARK_MAX: usize = 4;

/// What is left of a budget or of a cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Purse {
    /// Nanoseconds on a slot; below zero it is a debt.
    left: i64,
    /// Reservation: when the current period began. Cap: until when the purse was filled.
    at: Time,
}

impl Purse {
    pub(super) const EMPTY: Self = Self {
        left: 0,
        at: Time::ZERO,
    };
}

/// Which limit holds for a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    None,
    /// Budget, period, deadline.
    Reservation,
    /// Percent.
    Cap(u64),
}

fn signed(span: Duration) -> i64 {
    i64::try_from(span.as_ns()).unwrap_or(i64::MAX)
}

fn span(ns: i64) -> Duration {
    Duration::from_ns(u64::try_from(ns).unwrap_or(0))
}

impl PolicyKind {
    /// Has the context a reservation that is in force?
    pub(super) fn reserves(self, entry: &Entry) -> bool {
        self == Self::Deadline && entry.params.budget != Duration::ZERO
    }

    fn limit(self, entry: &Entry) -> Limit {
        match entry.params.cap {
            _ if self.reserves(entry) => Limit::Reservation,
            0 | 100.. => Limit::None,
            cap => Limit::Cap(cap.into()),
        }
    }
}

impl Entry {
    /// When the work of the current period is due; `None` without a reservation.
    pub(super) fn deadline(&self) -> Option<Time> {
        (self.params.budget != Duration::ZERO).then(|| self.purse.at + self.params.deadline)
    }

    /// A new context has its first budget.
    pub(super) fn open_purse(&mut self) {
        self.purse.left = signed(self.params.budget);
    }

    pub(super) fn spend(&mut self, time: Duration) {
        self.purse.left = self.purse.left.saturating_sub(signed(time));
    }

    /// What a cap lets it save up.
    fn cap_most(cap: u64) -> i64 {
        signed(WINDOW.times(cap)) / 100
    }

    fn fill(&mut self, now: Time, cap: u64) {
        self.purse.left = self.filled(now, cap);
        self.purse.at = now;
    }

    /// What the cap leaves it to use at `now`.
    fn filled(&self, now: Time, cap: u64) -> i64 {
        self.due_by(now, cap).min(Self::cap_most(cap))
    }

    /// The same, if it could save up without end.
    fn due_by(&self, at: Time, cap: u64) -> i64 {
        let due = signed(at.since(self.purse.at).times(cap)) / 100;
        self.purse.left.saturating_add(due)
    }

    /// A new period begins at `at`; a debt is carried over.
    fn release(&mut self, at: Time) {
        self.purse.at = at;
        self.purse.left = self
            .purse
            .left
            .min(0)
            .saturating_add(signed(self.params.budget));
    }

    /// Would what is left of the budget, in what is left until the deadline, be more than was admitted?
    fn is_too_dense(&self, now: Time) -> bool {
        let time = (self.purse.at + self.params.deadline).since(now);
        let left = u128::try_from(self.purse.left).unwrap_or(0);
        left * u128::from(self.params.deadline.as_ns())
            > u128::from(time.as_ns()) * u128::from(self.params.budget.as_ns())
    }
}

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// A context wants a slot: `Some` until when it has to be parked. `wakes`: it did not want one before.
    pub(super) fn park_until(&mut self, now: Time, ctx: ContextId, wakes: bool) -> Option<Time> {
        let policy = self.policy;
        let entry = self.slab.get_mut(ctx)?;
        match policy.limit(entry) {
            Limit::None => None,
            Limit::Reservation => {
                entry.purse.left = entry.purse.left.min(signed(entry.params.budget));
                let next = entry.purse.at + entry.params.period;
                if entry.purse.left > 0 {
                    if wakes && entry.is_too_dense(now) {
                        entry.release(now);
                    }
                } else if next <= now {
                    let in_time = next + entry.params.deadline > now && !wakes;
                    entry.release(if in_time { next } else { now });
                }
                (entry.purse.left <= 0).then_some(entry.purse.at + entry.params.period)
            }
            Limit::Cap(cap) => {
                entry.fill(now, cap);
                let least = signed(Params::TIMESLICE_MIN);
                if entry.purse.left >= least {
                    return None;
                }
                let enough = signed(entry.params.timeslice).min(Entry::cap_most(cap));
                let wait = span(enough.saturating_sub(entry.purse.left)).times(100);
                Some(now + Duration::from_ns(wait.as_ns().div_ceil(cap)))
            }
        }
    }

    /// Would work of the context that came now be parked?
    pub(super) fn is_spent(&self, now: Time, entry: &Entry) -> bool {
        match self.policy.limit(entry) {
            Limit::None => false,
            Limit::Reservation => {
                entry.purse.left <= 0 && entry.purse.at + entry.params.period > now
            }
            Limit::Cap(cap) => entry.filled(now, cap) < signed(Params::TIMESLICE_MIN),
        }
    }

    /// When a job that runs has used up what is due to it, whoever waits.
    pub(super) fn limit_end(&self, run: &Run, entry: &Entry) -> Option<Time> {
        match self.policy.limit(entry) {
            Limit::None => None,
            Limit::Reservation => Some(entry.since + span(entry.purse.left)),
            Limit::Cap(cap) => {
                let left = span(entry.due_by(entry.since, cap)).times(100);
                let end = entry.since + Duration::from_ns(left.as_ns() / (100 - cap));
                // It gets on, if on credit.
                Some(end.max(run.started + run.extra + Params::TIMESLICE_MIN))
            }
        }
    }

    /// Lets those that were parked wait for a slot whose time has come, [`UNPARK_MAX`] at the most; the timer brings the
    /// next ones. O(log n).
    pub(super) fn unpark(&mut self, now: Time, index: u8) {
        for _ in 0..UNPARK_MAX {
            let Some((ctx, at)) = self.next_parked(index) else {
                return;
            };
            if at > now {
                return;
            }
            if let Some(queue) = self.queues.get_mut(usize::from(index)) {
                queue.remove(&mut self.slab, ctx);
            }
            self.line_up(now, ctx, false);
        }
    }

    /// Who is to be unparked next, and when.
    pub(super) fn next_parked(&self, index: u8) -> Option<(ContextId, Time)> {
        let ctx = self.queue(index)?.first_parked(&self.slab)?;
        let at = self.slab.get(ctx)?.node.place().key;
        Some((ctx, Time::from_ns(at)))
    }
}
