// SPDX-License-Identifier: GPL-2.0

//! Reservations: a budget of time in each period, with a deadline. They are in force under the
//! policy `deadline`.
//!
//! A context with a reservation in force has a rank of its own, before all others, and is ordered by
//! its deadline. The context does not compete through its group, whose virtual time and caps its
//! runs do not count for: other contexts share what reservations leave.
//!
//! A reservation is a constant-bandwidth server: the budget is refilled once a period. A run is
//! granted what is left of the budget, also on a free slot. Without a budget, the context is in no
//! queue: its node is in a tree by the beginning of the next period. Time beyond the budget, above
//! all for a save, is a debt, which later refills pay.
//!
//! *Admission* is checked under every policy, so that a change of policy finds no reservation that it
//! cannot keep. A tenth of each slot is never reserved: it covers saves on behalf of others, and
//! serves contexts without a reservation. On one slot, the densities (budget over deadline) add up to
//! at most 90 %. On m slots, each density is at most 50 %, and they add up to at most 90 % of
//! (m + 1) / 2: by Goossens, Funk and Baruah, m slots keep all deadlines if the sum is at most
//! m - (m - 1) d, where d is the greatest density, here one half. That holds for contexts that may
//! run on every slot of the class.

use super::super::card::{Call, Card};
use super::super::queues::Tree;
use super::super::values::{
    signed, Class, Duration, EntityIndex, Params, Rank, Refusal, Time, WaitReason, MAX_SLOTS,
};
use super::super::Scheduler;

/// Densities are counted in millionths of a slot.
const SLOT: u64 = 1_000_000;

/// The reservations of a card, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Reservations {
    /// Contexts that wait for a budget, by the time at which they have one.
    exhausted: [Tree; MAX_SLOTS],
    /// The sum of the densities.
    densities: [u64; MAX_SLOTS],
}

/// The rest of the budget of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Budget {
    /// Nanoseconds on a slot; negative: a debt.
    left: i64,
    /// The beginning of the current period.
    began_at: Time,
    /// The context waits for the next period.
    is_awaited: bool,
}

/// The budget of a context that never had a reservation in force: that of its first period.
impl Default for Budget {
    fn default() -> Self {
        Self {
            left: i64::MAX,
            began_at: Time::ZERO,
            is_awaited: false,
        }
    }
}

fn density(params: &Params) -> u64 {
    let scaled = params.budget.as_ns().saturating_mul(SLOT);
    scaled.div_ceil(params.deadline.as_ns().max(1))
}

/// `params` are the parameters of the context.
impl Budget {
    /// Begins a new period if one is due, and returns when the next period begins if no budget is
    /// left. `wakes`: the context did not want a slot before; a new period then begins if the rest
    /// of the budget in the rest of the time is denser than was admitted.
    fn update(&mut self, now: Time, params: &Params, wakes: bool) -> Option<Time> {
        self.left = self.left.min(signed(params.budget));
        let next = self.began_at + params.period;
        if self.left > 0 {
            if wakes && self.is_too_dense(now, params) {
                self.replenish(now, params);
            }
        } else if next <= now {
            let in_time = next + params.deadline > now && !wakes;
            self.replenish(if in_time { next } else { now }, params);
        }
        (self.left <= 0).then_some(self.began_at + params.period)
    }

    /// Begins a new period at `at`; a debt is carried over.
    fn replenish(&mut self, at: Time, params: &Params) {
        self.began_at = at;
        self.left = self.left.min(0).saturating_add(signed(params.budget));
    }

    fn is_too_dense(&self, now: Time, params: &Params) -> bool {
        let time = (self.began_at + params.deadline).since(now);
        let left = u128::try_from(self.left).unwrap_or(0);
        left * u128::from(params.deadline.as_ns())
            > u128::from(time.as_ns()) * u128::from(params.budget.as_ns())
    }
}

/// Admission.
impl Scheduler {
    /// Checks whether a context of a class may have `params` in place of `old`.
    pub(in super::super) fn admit(
        &self,
        class: Class,
        old: Option<&Params>,
        params: &Params,
    ) -> Result<(), Refusal> {
        let usable = self.classes[class.at()].usable;
        let (had, want) = (old.map_or(0, density), density(params));
        let slots = usable.count_ones();
        let (each, all) = match slots {
            0 | 1 => (SLOT, SLOT),
            _ => (SLOT / 2, SLOT * u64::from(slots + 1) / 2),
        };
        let others = self.reservations.densities[class.at()].saturating_sub(had);
        // A context that asks for no more than it had is not refused because slots went out of use.
        let fits = want <= had || (want <= each && others + want <= all / 10 * 9);
        let everywhere = usable & !params.mask == 0;
        match want == 0 || fits && everywhere {
            true => Ok(()),
            false => Err(Refusal::Admission),
        }
    }

    /// Notes that a context of a class has `new` in place of `old`.
    pub(in super::super) fn note_admitted(
        &mut self,
        class: Class,
        old: Option<&Params>,
        new: Option<&Params>,
    ) {
        let sum = &mut self.reservations.densities[class.at()];
        *sum = sum.saturating_sub(old.map_or(0, density)) + new.map_or(0, density);
    }
}

/// Budgets.
impl Scheduler {
    /// Returns whether a context has a reservation that is in force.
    #[inline]
    pub(in super::super) fn is_reserved(&self, at: EntityIndex) -> bool {
        self.queue.rank(at) == Rank::Reserved
    }

    /// Gives a context that is in no queue the rank that it has under the policy in force.
    pub(in super::super) fn renew_rank(&mut self, now: Time, at: EntityIndex) {
        let context = &self.contexts[at];
        let (budget, wants) = (context.params.budget, context.state.wants_slot());
        if budget == Duration::ZERO {
            return;
        }
        self.settle_grant(now, at);
        if wants {
            self.queue.sleep(at);
        }
        self.apply(at);
        if wants {
            self.queue.wake(at);
            self.renew_budget(now, at, true);
        }
        self.renew_grant(now, at);
    }

    /// Begins a new period of a context, which is in no queue, if one is due. Returns when the next
    /// period begins if no budget is left.
    pub(in super::super) fn renew_budget(
        &mut self,
        now: Time,
        at: EntityIndex,
        wakes: bool,
    ) -> Option<Time> {
        if !self.is_reserved(at) {
            return None;
        }
        let context = &mut self.contexts[at];
        let due = context.budget.update(now, &context.params, wakes);
        let deadline = context.budget.began_at + context.params.deadline;
        if self.queue.set_deadline(at, deadline) && self.slot_with(at).is_some() {
            // Others may outrank the run now.
            self.reschedule(self.contexts[at].class);
        }
        due
    }

    /// Deducts `time` ns on a slot from the budget of a reservation; negative: gives it back.
    pub(in super::super) fn spend_budget(&mut self, at: EntityIndex, time: i64) {
        if self.is_reserved(at) {
            let left = &mut self.contexts[at].budget.left;
            *left = left.saturating_sub(time);
        }
    }

    /// Returns whether a context has no budget left until a new period begins.
    #[inline]
    pub(in super::super) fn lacks_budget(&self, at: EntityIndex) -> bool {
        self.is_reserved(at) && self.contexts[at].budget.left <= 0
    }

    /// Returns for how long the run of a reservation that is on a slot may last from now on. `None`:
    /// it is no reservation.
    pub(in super::super) fn grant_budget(
        &mut self,
        now: Time,
        at: EntityIndex,
    ) -> Option<Duration> {
        if !self.is_reserved(at) {
            return None;
        }
        self.renew_budget(now, at, false);
        let left = u64::try_from(self.contexts[at].budget.left).unwrap_or(0);
        let run = self
            .slot_with(at)
            .and_then(|id| self.slot(id).protocol.run());
        // A job makes progress, on credit if necessary.
        let least = run.map_or(now, |run| run.started + run.extra + Params::TIMESLICE_MIN);
        Some(Duration::from_ns(left).max(least.since(now)))
    }

    /// Lets a context whose job would be linked wait for its budget. Returns `false` if the context
    /// has a budget.
    pub(in super::super) fn await_budget(&mut self, at: EntityIndex) -> bool {
        // A gang may let a context wait that waits for its budget.
        self.forget_budget(at);
        let Some(due) = self.renew_budget(self.contexts[at].since, at, false) else {
            return false;
        };
        let class = self.contexts[at].class;
        self.contexts[at].budget.is_awaited = true;
        let tree = &mut self.reservations.exhausted[class.at()];
        self.queue.link_timed(tree, at, due);
        self.dirty_classes |= class.bit();
        true
    }

    /// Ends the wait for a budget.
    pub(in super::super) fn forget_budget(&mut self, at: EntityIndex) {
        let context = &mut self.contexts[at];
        if core::mem::take(&mut context.budget.is_awaited) {
            let tree = &mut self.reservations.exhausted[context.class.at()];
            self.queue.unlink_timed(tree, at);
        }
    }

    /// Takes a context that would be next and has no budget out of its queue. Returns whether it has
    /// none.
    pub(in super::super) fn deplete(&mut self, now: Time, at: EntityIndex) -> bool {
        let is_depleted = self.lacks_budget(at) && self.queue.is_linked(at);
        if is_depleted {
            let turn = self.queue.turn(at);
            self.unlink(at);
            self.renew_budget(now, at, false);
            self.link(at, Some(turn));
            // If a new period has begun, the context waits again.
            self.reschedule(self.contexts[at].class);
        }
        is_depleted
    }

    /// Returns when the first context of a class that waits for a budget has one.
    pub(in super::super) fn next_budget(&self, class: Class) -> Time {
        let first = self.reservations.exhausted[class.at()].first();
        first.map_or(Time::NEVER, |at| self.queue.time_of(at))
    }

    /// Begins the period of a context of a class that is due: of one in each call, the timer brings
    /// the next.
    pub(in super::super) fn budget_timer<C: Card>(&mut self, call: &mut Call<'_, C>, class: Class) {
        self.dirty_classes |= class.bit();
        let first = self.reservations.exhausted[class.at()].first();
        if let Some(at) = first.filter(|_| self.next_budget(class) <= call.now) {
            self.forget_budget(at);
            self.renew_budget(call.now, at, false);
            self.link(at, None);
            self.arrived(call, at);
        }
    }

    /// Returns why a context waits if it has no budget.
    pub(in super::super) fn awaits_budget(&self, at: EntityIndex) -> Option<WaitReason> {
        let budget = &self.contexts[at].budget;
        budget.is_awaited.then_some(WaitReason::Budget)
    }
}
