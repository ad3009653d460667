// SPDX-License-Identifier: GPL-2.0

//! Limits that hold although a slot is free: budgets of reservations, and caps.
//!
//! A context that has had its time is parked: it waits, but is offered to no slot before more is due to it. What a run takes
//! beyond the limit, its save above all, is a debt that is deducted from what is due next, so over time the limit is exact.
//!
//! A reservation (under [`PolicyKind::Deadline`]) is a constant-bandwidth server: its budget is due once a period, and work
//! that arrives while the rest of the budget would be too much for the rest of the time gets a new deadline. A cap (under
//! every policy, for contexts without a reservation in force) is due continuously, and saves up for [`WINDOW`].
//!
//! The cap of a registered group (`registration.rs`) limits all its contexts together in the same way. The contexts of a group
//! at its cap are throttled: those that begin to wait are parked, and those that wait already are parked when it is
//! their turn, [`THROTTLE_MAX`] of them in a decision. Of each record of the group only the context that has waited longest
//! stands among those that are parked until some time; the others are behind that context, in the order in which they began
//! to wait. So the end of the wait costs one event for each context that goes on, however many there are.

use core::ops::DerefMut;

use super::machine::Machine;
use super::queue::Queue;
use super::run::Run;
use super::slab::{Slab, NONE};
use super::slot::slots_in;
use super::tree::{Place, Tree};
use super::{ContextId, Duration, Entry, GroupKey, Params, PolicyKind, SlotId, Time};

/// What a capped context or group has not used is kept for so long.
pub(super) const WINDOW: Duration = Duration::from_ms(100);
/// Contexts of groups at their caps that one decision takes out of the order of those that wait.
pub(super) const THROTTLE_MAX: u8 = 8;
/// When the next decision comes if there are more of them.
pub(super) const THROTTLE_NEXT: Duration = Duration::from_us(50);
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

/// Why a context that waits must not run yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parked {
    /// It may run.
    No,
    /// Its own limit.
    Own,
    /// Its group is at its cap.
    Group,
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
    pub(super) fn is_parked(&self) -> bool {
        self.parked != Parked::No
    }

    /// Of a registration: the cap of the group, in percent of a slot; 0: none.
    pub(super) fn group_cap(&self) -> u64 {
        self.params.budget.as_ns() / WINDOW.parts(100).as_ns()
    }

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
    /// A context wants a slot: `Some` until when it has to be parked, and why. `wakes`: it did not want one before.
    pub(super) fn park_until(
        &mut self,
        now: Time,
        ctx: ContextId,
        wakes: bool,
    ) -> Option<(Time, Parked)> {
        if let Some(at) = self.own_limit_until(now, ctx, wakes) {
            return Some((at, Parked::Own));
        }
        let at = self.group_limit_until(now, ctx)?;
        Some((at, Parked::Group))
    }

    fn own_limit_until(&mut self, now: Time, ctx: ContextId, wakes: bool) -> Option<Time> {
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
        if self.is_group_spent(now, entry) {
            return true;
        }
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
        let own = self.own_limit_end(run, entry);
        let group = self.group_limit_end(run, entry);
        own.into_iter().chain(group).min()
    }

    fn own_limit_end(&self, run: &Run, entry: &Entry) -> Option<Time> {
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
            let parked = self.slab.get(ctx).map(|entry| entry.parked);
            if parked == Some(Parked::Group) {
                self.unpark_of_group(now, index, ctx);
                continue;
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

/// The caps of groups.
impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// Sets the cap of the group with the registration `at`, in percent of a slot; 0: none.
    pub(super) fn set_group_cap(&mut self, now: Time, at: u32, cap: u16) {
        let old = self.slab.at(at).map_or(0, Entry::group_cap);
        if old == u64::from(cap) {
            return;
        }
        if old != 0 {
            self.fill_group(now, at, old);
        }
        let Some(entry) = self.slab.at_mut(at) else {
            return;
        };
        entry.params.budget = WINDOW.parts(100).times(cap.into());
        if old == 0 {
            entry.purse = Purse::EMPTY;
        }
        let capped = &mut self.slab.records.registered.capped;
        *capped = *capped - u32::from(old != 0) + u32::from(cap != 0);
    }

    /// The registration whose cap holds for a context, and that cap; `None` without one.
    fn group_limit(&self, entry: &Entry) -> Option<(u32, u64)> {
        if self.slab.records.registered.capped == 0 || self.policy.reserves(entry) {
            return None;
        }
        let at = self
            .slab
            .registration(self.slab.at(entry.group)?.record.key)?;
        let cap = self.slab.at(at)?.group_cap();
        (cap != 0).then_some((at, cap))
    }

    /// The contexts on slots that the cap of a group holds for and that are not charged to the end of their runs.
    fn capped_runs(&self, key: GroupKey) -> impl Iterator<Item = &Entry> {
        self.running()
            .filter_map(|ctx| self.slab.get(ctx))
            .filter(|entry| entry.is_metered() && !self.policy.reserves(entry))
            .filter(move |entry| {
                let record = self.slab.at(entry.group);
                record.is_some_and(|record| record.record.key == key)
            })
    }

    /// What the cap of a group leaves it to use at `now`, and what of it the runs under way have used already.
    fn left_of_group(&self, now: Time, at: u32, cap: u64) -> (i64, i64) {
        let Some(entry) = self.slab.at(at) else {
            return (0, 0);
        };
        let mut used = 0_i64;
        for run in self.capped_runs(entry.record.key) {
            used = used.saturating_add(signed(run.due(now)));
        }
        let left = entry.due_by(now, cap).saturating_sub(used);
        (left.min(Entry::cap_most(cap)), used)
    }

    /// Puts what is due to a group until `now` into its purse.
    fn fill_group(&mut self, now: Time, at: u32, cap: u64) {
        let (left, used) = self.left_of_group(now, at, cap);
        if let Some(entry) = self.slab.at_mut(at) {
            entry.purse.left = left.saturating_add(used);
            entry.purse.at = now;
        }
    }

    /// Deducts time of a context from what its group may use.
    pub(super) fn spend_of_group(&mut self, ctx: ContextId, span: Duration) {
        let limit = self.slab.get(ctx).and_then(|entry| self.group_limit(entry));
        if let Some(entry) = limit.and_then(|(at, _)| self.slab.at_mut(at)) {
            entry.spend(span);
        }
    }

    /// Is the group of a context at its cap?
    fn is_group_spent(&self, now: Time, entry: &Entry) -> bool {
        self.group_limit(entry).is_some_and(|(at, cap)| {
            let (left, _) = self.left_of_group(now, at, cap);
            left < signed(Params::TIMESLICE_MIN)
        })
    }

    /// Until when a context whose group is at its cap has to be parked.
    fn group_limit_until(&mut self, now: Time, ctx: ContextId) -> Option<Time> {
        let entry = self.slab.get(ctx)?;
        let slice = entry.params.timeslice;
        let (at, cap) = self.group_limit(entry)?;
        self.fill_group(now, at, cap);
        let (left, _) = self.left_of_group(now, at, cap);
        if left >= signed(Params::TIMESLICE_MIN) {
            return None;
        }
        let enough = signed(slice).min(Entry::cap_most(cap));
        let wait = span(enough.saturating_sub(left)).times(100);
        Some(now + Duration::from_ns(wait.as_ns().div_ceil(cap)))
    }

    /// When the contexts of a capped group that run will have used up what is due to the group.
    fn group_limit_end(&self, run: &Run, entry: &Entry) -> Option<Time> {
        let (at, cap) = self.group_limit(entry)?;
        let registration = self.slab.at(at)?;
        let (key, mut base) = (registration.record.key, registration.purse.at);
        let mut rate = 0_u64;
        for run in self.capped_runs(key) {
            base = base.max(run.since);
            rate += 100;
        }
        let rate = rate.checked_sub(cap).filter(|&rate| rate != 0)?;
        let mut left = registration.due_by(base, cap);
        for run in self.capped_runs(key) {
            left = left.saturating_sub(signed(run.due(base)));
        }
        let end = base + Duration::from_ns(span(left).times(100).as_ns() / rate);
        // It gets on, if on credit.
        Some(end.max(run.started + run.extra + Params::TIMESLICE_MIN))
    }

    /// The time of the first that its group's cap keeps waiting has come: it waits for a slot now, and the next one
    /// follows when the cap has given the group the shortest slice; or the group has nothing left, and it stays the first.
    fn unpark_of_group(&mut self, now: Time, index: u8, ctx: ContextId) {
        let Some(entry) = self.slab.get(ctx) else {
            return;
        };
        let (record, cap) = (entry.group, self.group_limit(entry).map(|(_, cap)| cap));
        if let Some(at) = self.group_limit_until(now, ctx) {
            if let Some(queue) = self.queues.get_mut(usize::from(index)) {
                queue.park_first(&mut self.slab, record, at);
            }
            return;
        }
        let pause = cap.map_or(0, |cap| Params::TIMESLICE_MIN.times(100).as_ns() / cap);
        if let Some(queue) = self.queues.get_mut(usize::from(index)) {
            queue.remove(&mut self.slab, ctx);
            queue.park_first(&mut self.slab, record, now + Duration::from_ns(pause));
        }
        self.line_up(now, ctx, false);
    }

    /// Parks those that would be the next ones on slots of a class although their groups are at their caps, as many as this
    /// decision may. O(log n).
    pub(super) fn throttle(&mut self, now: Time, index: u8) {
        if self.slab.records.registered.capped == 0 {
            return;
        }
        for id in slots_in(self.class_slots(index)) {
            while let Some(ctx) = self.next_to_throttle(now, id) {
                let left = self.queue(index).map_or(0, |queue| queue.throttles);
                let Some(left) = left.checked_sub(1) else {
                    return;
                };
                if let Some(queue) = self.queue_mut(index) {
                    queue.throttles = left;
                }
                self.step_out(ctx);
                self.line_up(now, ctx, false);
            }
        }
    }

    /// The one that would be next on a slot although its group is at its cap.
    fn next_to_throttle(&self, now: Time, id: SlotId) -> Option<ContextId> {
        let first = self.queue(self.slot(id)?.queue)?.first(&self.slab, id);
        let starving = self.starving(id).map(|(ctx, _)| ctx);
        first.into_iter().chain(starving).find(|&ctx| {
            let entry = self.slab.get(ctx);
            entry.is_some_and(|entry| self.is_group_spent(now, entry))
        })
    }
}

impl<S: DerefMut<Target = [Entry]>> Slab<S> {
    /// Of those of one record whose group is at its cap: the one that has waited longest, and the others. A record that has
    /// contexts is not among those that are remembered, so its links are free for this.
    fn throttled(&self, record: u32) -> (u32, Tree) {
        let entry = self.at(record);
        entry.map_or((NONE, Tree::EMPTY), |entry| {
            (entry.older, Tree::of(entry.newer))
        })
    }

    fn put_throttled(&mut self, record: u32, first: u32, others: Tree) {
        if let Some(entry) = self.at_mut(record) {
            (entry.older, entry.newer) = (first, others.root());
        }
    }
}

impl Queue {
    /// Parks a context that is not queued, with others of its record that wait for their group's cap. The one that has waited
    /// longest waits until a time of the parked, `at` if there was none; the others are behind that one. O(log n).
    pub(super) fn park_behind<S>(&mut self, slab: &mut Slab<S>, ctx: ContextId, at: Time)
    where
        S: DerefMut<Target = [Entry]>,
    {
        let Some((record, since)) = slab.get(ctx).map(|entry| (entry.group, entry.since)) else {
            return;
        };
        let (first, mut others) = slab.throttled(record);
        let before = slab.id_at(first).filter(|_| first != NONE);
        let before = before.and_then(|first| Some((first, slab.get(first)?)));
        let Some((first, entry)) = before else {
            slab.put_throttled(record, ctx.index() as u32, others);
            return self.park_alone(slab, ctx, at);
        };
        let (place, is_first) = (entry.node.place(), entry.since <= since);
        let (first, other) = if is_first {
            (first, ctx)
        } else {
            self.unpark_alone(slab, first);
            self.park_alone(slab, ctx, Time::from_ns(place.key));
            (ctx, first)
        };
        let since = slab.get(other).map_or(Time::ZERO, |entry| entry.since);
        let place = Place {
            rank: 0,
            key: since.as_ns(),
            turn: self.next_turn(),
        };
        others.insert(slab, other, place);
        slab.put_throttled(record, first.index() as u32, others);
    }

    /// Takes a context out that [`Queue::park_behind`] has parked. If it was the first, the next one waits as long as it
    /// had to. O(log n).
    pub(super) fn unpark_behind<S>(&mut self, slab: &mut Slab<S>, ctx: ContextId)
    where
        S: DerefMut<Target = [Entry]>,
    {
        let Some(entry) = slab.get(ctx) else {
            return;
        };
        let (record, at) = (entry.group, Time::from_ns(entry.node.place().key));
        let (first, mut others) = slab.throttled(record);
        if first != ctx.index() as u32 {
            others.remove(slab, ctx);
            return slab.put_throttled(record, first, others);
        }
        self.unpark_alone(slab, ctx);
        let next = others.first(slab, u8::MAX);
        if let Some(next) = next {
            others.remove(slab, next);
            self.park_alone(slab, next, at);
        }
        let next = next.map_or(NONE, |next| next.index() as u32);
        slab.put_throttled(record, next, others);
    }

    /// Lets the first of a record that waits for its group's cap wait until `at`. O(log n).
    fn park_first<S>(&mut self, slab: &mut Slab<S>, record: u32, at: Time)
    where
        S: DerefMut<Target = [Entry]>,
    {
        let (first, _) = slab.throttled(record);
        if let Some(first) = slab.id_at(first) {
            self.unpark_alone(slab, first);
            self.park_alone(slab, first, at);
        }
    }
}
