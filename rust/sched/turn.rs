// SPDX-License-Identifier: GPL-2.0

//! When a running job is preempted by a waiting one.

use super::ids::{ContextIndex, EntityKind};
use super::policy::Preempt;
use super::run::Run;
use super::state::{Scheduler, Slot};
use super::{Duration, Params, PauseCause, SlotId, Time};

/// A slice is at least as long as this many saves and restores.
const SLICE_SWITCHES: u64 = 2;

impl Scheduler {
    /// Returns when and why a run is preempted by `next`, which waits; time zero: at once.
    pub(super) fn turn_end(
        &self,
        run: &Run,
        next: ContextIndex,
        slice: Time,
    ) -> Option<(Time, PauseCause)> {
        let ctx = run.ctx.at();
        let waiter = self.entities.id(next);
        let at = match self.preempt_run(run, next) {
            Preempt::Never => return None,
            Preempt::Now => return Some((Time::ZERO, PauseCause::Outranked { waiter })),
            Preempt::AtSliceEnd => slice,
            Preempt::AtVruntime => {
                let most = run.started + Params::TIMESLICE_MAX;
                let charged_until = self.entities[ctx].charged_until;
                let even = charged_until + self.lag(ctx, next);
                slice.max(even.min(most))
            }
        };
        Some((at, PauseCause::Slice { waiter }))
    }

    /// Returns when a run is preempted by `next` under the policy. A boosted run keeps its whole
    /// slice, unless `next` has a reservation.
    pub(super) fn preempt_run(&self, run: &Run, next: ContextIndex) -> Preempt {
        let (runs, waits) = (&self.entities[run.ctx.at()], &self.entities[next]);
        match self.policy.preempt(runs, waits) {
            _ if run.boosted && !self.policy.reserves(waits) => Preempt::AtSliceEnd,
            preempt => preempt,
        }
    }

    /// Returns when a run can be preempted for a gang whose member `next` has its turn: at once
    /// (time zero) if the policy says so; otherwise after half of the slice, so that gangs do not
    /// keep others from work, and when virtual times allow it.
    pub(super) fn gang_turn_end(
        &self,
        id: SlotId,
        run: &Run,
        next: ContextIndex,
        boosted: bool,
    ) -> Option<Time> {
        let ctx = run.ctx.at();
        let (context, waits) = (&self.entities[ctx], &self.entities[next]);
        let half = run.started + run.extra + self.slice(&self.slots[id], run).parts(2);
        let is_comparable = context.class == waits.class;
        match self.policy.preempt(context, waits) {
            Preempt::Now => Some(Time::ZERO),
            Preempt::Never if !boosted || self.policy.reserves(context) => None,
            Preempt::AtVruntime if is_comparable && !boosted => {
                Some(half.max(context.charged_until + self.lag(ctx, next)))
            }
            _ => Some(half),
        }
    }

    /// Returns how long a context may run until its entity is no longer behind that of `next`. All
    /// running contexts of a group use up what the group is owed.
    fn lag(&self, ctx: ContextIndex, next: ContextIndex) -> Duration {
        let (own, other) = self.entities.siblings(ctx, next);
        let (own, other) = (own, &self.entities[other]);
        let entity = &self.entities[own];
        let lag = entity.real(other.vruntime.saturating_sub(entity.vruntime));
        match self.entities.kind(own) {
            EntityKind::Context(_) => lag,
            EntityKind::Group(_) => {
                let class = self.entities[ctx].class;
                let running = self.running(class);
                let below = running.filter(|&ctx| {
                    let at = self.entities.ancestor_below(ctx, entity.parent);
                    at == Some(own)
                });
                lag.parts(below.count() as u64)
            }
        }
    }

    /// Returns whether the starvation boost has put the job on a slot, and its slice is not over.
    pub(super) fn is_boosted(&self, now: Time, id: SlotId) -> bool {
        let slot = &self.slots[id];
        let run = slot.fsm.run().filter(|run| run.boosted);
        run.is_some_and(|run| now < run.started + run.extra + self.slice(slot, run))
    }

    /// Returns the length of the slice of a run, less the part that was used before.
    pub(super) fn slice(&self, slot: &Slot, run: &Run) -> Duration {
        let mut asked = self.entities[run.ctx.at()].params.timeslice;
        if run.boosted {
            asked = asked.min(self.boost.quarter());
        }
        Self::slice_on(slot, asked).less(run.used)
    }

    /// Returns the length of a slice on a slot: no shorter than [`SLICE_SWITCHES`] saves and
    /// restores there, so that most of the time is work. But a context whose saves are slow does
    /// not make the slices of others longer than [`Params::SLICE_FLOOR_MAX`].
    pub(super) fn slice_on(slot: &Slot, asked: Duration) -> Duration {
        let stats = &slot.fsm.stats;
        let switch = stats.save() + stats.restore();
        asked.max(switch.times(SLICE_SWITCHES).min(Params::SLICE_FLOOR_MAX))
    }
}
