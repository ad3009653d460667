// SPDX-License-Identifier: GPL-2.0

//! Limits that hold even if a slot is free: budgets of reservations, and caps of contexts and of
//! registered groups.
//!
//! A context whose own budget or cap is used up waits in the throttled queue. A group is throttled
//! when its cap, or the cap of a group above, is used up and one of its contexts would be next on a
//! slot: the group leaves the ready queue with all of its contexts. Contexts that do not compete
//! through their group wait behind it, and follow one by one when it is no longer throttled.

use super::bandwidth::Bandwidth;
use super::context::{Linked, SchedContext};
use super::ids::{ContextIndex, GroupIndex, RegistrationIndex};
use super::policy::Limit;
use super::run::Run;
use super::state::Scheduler;
use super::time::earliest;
use super::{Duration, Params, Time};

impl Scheduler {
    /// Refills the caps of a context and of its groups, so that unused time is kept for no longer
    /// than a cap keeps it.
    pub(super) fn refill_caps(&mut self, now: Time, ctx: ContextIndex) {
        if let Limit::Cap(cap) = self.policy.limit(&self.entities[ctx]) {
            let bandwidth = &mut self.entities[ctx].bandwidth;
            bandwidth.refill(now, cap, Duration::ZERO);
        }
        if self.entities.nr_capped == 0 || self.policy.reserves(&self.entities[ctx]) {
            return;
        }
        let mut next = self.entities.registration_of(self.entities[ctx].group);
        while let Some(at) = next {
            if let Some(cap) = self.entities[at].cap() {
                let used = self.used(now, at);
                self.entities[at].bandwidth.refill(now, cap, used);
            }
            next = self.entities[at].parent;
        }
    }

    /// Returns whether work of a context that arrived now, or continued now, would be throttled.
    pub(super) fn is_throttled(&self, now: Time, ctx: ContextIndex) -> bool {
        let context = &self.entities[ctx];
        let used = context.uncharged(now);
        let own = match self.policy.limit(context) {
            Limit::None => false,
            Limit::Reservation => context.bandwidth.is_exhausted(now, &context.params, used),
            Limit::Cap(cap) => context.bandwidth.is_spent(now, cap, used),
        };
        own || self.spent_cap(now, ctx).is_some()
    }

    /// Returns when a run has used up its limits.
    pub(super) fn limit_end(&self, run: &Run, ctx: ContextIndex) -> Option<Time> {
        let context = &self.entities[ctx];
        let (since, bandwidth) = (context.charged_until, &context.bandwidth);
        let limit = self.policy.limit(context);
        let mut end = match limit {
            Limit::None => None,
            Limit::Reservation => Some(bandwidth.budget_end(since)),
            Limit::Cap(cap) => bandwidth.cap_end(since, cap, 1, Duration::ZERO),
        };
        let caps = self.caps(context.group);
        for (at, cap) in caps.filter(|_| limit != Limit::Reservation) {
            let (since, slots, used) = self.used_since(at);
            let group = &self.entities[at].bandwidth;
            end = earliest(end, group.cap_end(since, cap, slots, used));
        }
        let end = end?;
        // A job makes progress, on credit if necessary.
        Some(end.max(run.started + run.extra + Params::TIMESLICE_MIN))
    }
}

/// Caps of groups.
impl Scheduler {
    /// Iterates over the caps that hold for the contexts of a group: its own and those of groups
    /// above.
    fn caps(&self, group: GroupIndex) -> impl Iterator<Item = (RegistrationIndex, u64)> + '_ {
        let first = match self.entities.nr_capped {
            0 => None,
            _ => self.entities.registration_of(group),
        };
        let lineage = first
            .into_iter()
            .flat_map(|at| self.entities.registered(at));
        lineage.filter_map(|at| Some((at, self.entities[at].cap()?)))
    }

    /// Returns whether the cap of a group holds for the run of a context.
    fn is_capped_by(&self, context: &SchedContext, at: RegistrationIndex) -> bool {
        let mut caps = self.caps(context.group);
        let bound = context.charging && !self.policy.reserves(context);
        bound && caps.any(|(other, _)| other == at)
    }

    /// Calls `f` for the contexts on slots that the cap of a group holds for.
    fn for_capped_runs(&self, at: RegistrationIndex, mut f: impl FnMut(&SchedContext)) {
        for slot in self.slots.iter() {
            if let Some(run) = slot.fsm.run() {
                let context = &self.entities[run.ctx.at()];
                if self.is_capped_by(context, at) {
                    f(context);
                }
            }
        }
    }

    /// Returns the time that the current runs of a group have used and were not charged for.
    pub(super) fn used(&self, now: Time, at: RegistrationIndex) -> Duration {
        let mut used = Duration::ZERO;
        self.for_capped_runs(at, |context| used += context.uncharged(now));
        used
    }

    /// Returns a time, how many slots the group has used since then, and the time used before that
    /// was not charged.
    fn used_since(&self, at: RegistrationIndex) -> (Time, u64, Duration) {
        let (mut since, mut slots) = (self.entities[at].bandwidth.refilled(), 0);
        self.for_capped_runs(at, |context| {
            since = since.max(context.charged_until);
            slots += 1;
        });
        (since, slots, self.used(since, at))
    }

    /// Returns a cap of a context's group, or of a group above, that is used up.
    pub(super) fn spent_cap(
        &self,
        now: Time,
        ctx: ContextIndex,
    ) -> Option<(RegistrationIndex, u64)> {
        let context = &self.entities[ctx];
        if self.entities.nr_capped == 0 || self.policy.reserves(context) {
            return None;
        }
        let mut caps = self.caps(context.group);
        caps.find(|&(at, cap)| {
            let bandwidth = &self.entities[at].bandwidth;
            bandwidth.is_spent(now, cap, self.used(now, at))
        })
    }

    /// Returns whether the job of a context waits because a budget or cap keeps it off slots.
    pub(super) fn waits_for_limit(&self, ctx: ContextIndex) -> bool {
        match self.entities[ctx].linked {
            Linked::Throttled | Linked::Behind => true,
            _ => self.waits_for_cap(ctx),
        }
    }

    /// Returns the group whose cap keeps the waiting job of a context off slots.
    pub(super) fn throttling_cap(&self, now: Time, ctx: ContextIndex) -> Option<RegistrationIndex> {
        if !self.waits_for_limit(ctx) {
            return None;
        }
        if let Some((at, _)) = self.spent_cap(now, ctx) {
            return Some(at);
        }
        // A part of the cap is refilled, but the group stays throttled until a slice is.
        let group = self.entities[ctx].group;
        let mut lineage = self.entities.lineage(group);
        let throttled = lineage.find(|&group| self.entities[group].throttled);
        let mut next = self.entities.registration_of(throttled.unwrap_or(group));
        while let Some(at) = next.filter(|&at| self.entities[at].cap().is_none()) {
            next = self.entities[at].parent;
        }
        next
    }

    /// Sets the cap of a registered group, in percent of a slot; 0: no cap.
    pub(super) fn set_group_cap(&mut self, now: Time, at: RegistrationIndex, cap: u16) {
        let used = self.used(now, at);
        let registration = &mut self.entities[at];
        let old = registration.cap();
        match old {
            Some(old) => registration.bandwidth.refill(now, old, used),
            None => registration.bandwidth = Bandwidth::empty(now),
        }
        registration.settings.cap = cap;
        let nr_capped = &mut self.entities.nr_capped;
        *nr_capped += u32::from(cap != 0);
        *nr_capped -= u32::from(old.is_some());
    }
}
