// SPDX-License-Identifier: GPL-2.0

//! Plans: which context runs next on a slot, and when and why the running job is preempted.

use super::entity::SchedKey;
use super::event::Cx;
use super::ids::{slots_in, ContextIndex, EntityKind, EntityRef};
use super::plan_cache::{Taken, Turn};
use super::run::{Run, WATCHDOG_PERIOD};
use super::state::{Claim, Plan, Scheduler};
use super::{Duration, PauseCause, SlotId, Time};

/// A slot with a relay is told of the end of a slice at most this long in advance, which is longer
/// than timers and interrupts are usually late.
const LEAD_MAX: Duration = Duration::from_us(500);
/// If a slice is no longer than this, a relay is told of its end when it begins, unless something
/// speaks against that. A switch then takes one interrupt and no timer, and a job that ends within
/// its slice is followed at once. A named context is not replaced by a context that would go before
/// it at the end of the slice.
const WHOLE_SLICE_MAX: Duration = Duration::from_ms(10);

/// Returns the earlier of two times, if there is any; the first if they are equal.
fn earlier(
    one: Option<(Time, PauseCause)>,
    other: Option<(Time, PauseCause)>,
) -> Option<(Time, PauseCause)> {
    match (one, other) {
        (Some((at, _)), Some((earlier, _))) if earlier < at => other,
        (None, _) => other,
        _ => one,
    }
}

impl Scheduler {
    /// Determines when a running job is preempted: at once if it may not be on the slot; otherwise
    /// at the end of its slice, or when the policy says, if another context waits for the slot and
    /// no other slot is about to take that context.
    #[inline(never)]
    pub(super) fn make_plan(&self, cx: &Cx<'_>, id: SlotId) -> Option<Plan> {
        let run = self.slots[id].fsm.unpaused()?;
        let ctx = run.ctx.at();
        let context = &self.entities[ctx];
        let length = self.slice(&self.slots[id], run);
        let plan = |at, cause, payer| {
            let is_short = length <= WATCHDOG_PERIOD;
            let lead = self.lead(id, run, length);
            Some(Plan {
                at,
                lead,
                cause,
                payer,
                is_short,
            })
        };
        if self.entities.se(ctx).slots() & id.bit() == 0 {
            return plan(Some(Time::ZERO), PauseCause::Slots, None);
        }
        let limit = self.limit_end(run, ctx);
        let limit = limit.map(|at| (at, PauseCause::Limit));
        let slice = run.started + length + run.extra;
        let joining = self.claim_of_mate(ctx);
        let next = match joining.or(self.slots[id].claim) {
            Some(_) if !self.may_be_outranked(id, ctx) => None,
            _ => self.candidate(cx, id),
        };
        let mut first = next.and_then(|next| self.turn_end(run, next, slice));
        match (next, first) {
            // All members are about to be on their slots, and can be told to pause then.
            _ if joining.is_some_and(|claim| claim.begun) => first = None,
            (Some(next), Some((Time::ZERO, cause))) => {
                return plan(Some(Time::ZERO), cause, Some(next));
            }
            _ => {}
        }
        if joining.is_some() {
            first = None;
        } else if let Some(claim) = &self.slots[id].claim {
            first = Some((claim.at, self.claim_cause(claim)));
        } else if first.is_none_or(|(at, _)| at > slice) {
            // Other contexts take the slot at the end of the slice, not earlier. The context that
            // starves may be in a gang that cannot have its slots without the boost.
            let other = next.and_then(|next| self.other_turn_end(cx, id, run, next, slice));
            first = earlier(first, other);
            let boost = self
                .boost_end(id)
                .filter(|_| !self.policy.reserves(context));
            let boost = boost.map(|(waiter, at)| {
                let waiter = self.entities.id(waiter);
                (at.max(slice), PauseCause::Starving { waiter })
            });
            first = earlier(first, boost);
        }
        match earlier(first, limit) {
            Some((at, cause)) => plan(Some(at), cause, None),
            None => plan(None, PauseCause::Limit, None),
        }
    }

    /// Returns how long before the end of a slice of `length` a slot with a relay is told which
    /// context runs next. Members of gangs leave their slots together, so their slots are told at
    /// the end of the slice.
    fn lead(&self, id: SlotId, run: &Run, length: Duration) -> Duration {
        let slot = &self.slots[id];
        let relays = slot.fsm.config.has_relay() && slot.claim.is_none();
        if !relays || self.entities.is_ganged(run.ctx.at()) {
            return Duration::ZERO;
        }
        match length <= WHOLE_SLICE_MAX && self.is_named_soon(slot.class) {
            true => length + run.extra,
            false => length.quarter().min(LEAD_MAX),
        }
    }

    /// Returns whether a context may be named for a whole slice: another slot of the class that
    /// becomes vacant meanwhile finds another waiting context, and no slot may have to be kept
    /// vacant or gathered for a gang.
    fn is_named_soon(&self, class: SlotId) -> bool {
        let queue = &self.queues[class];
        let finds_another = queue.has_one_slot() || queue.waiting.has_several();
        finds_another && !self.is_hinted(class) && self.entities.nr_ganged == 0
    }

    fn claim_cause(&self, claim: &Claim) -> PauseCause {
        let waiter = self.entities.id(claim.ctx);
        if claim.boosted {
            PauseCause::Starving { waiter }
        } else {
            PauseCause::Slice { waiter }
        }
    }

    /// Returns when a run is to be preempted for a waiter in another group, which may have a
    /// smaller virtual time than `next` in the same group. Waiters that a slot about to be vacant
    /// will take are ignored.
    fn other_turn_end(
        &self,
        cx: &Cx<'_>,
        id: SlotId,
        run: &Run,
        next: ContextIndex,
        slice: Time,
    ) -> Option<(Time, PauseCause)> {
        let (own, _) = self.entities.siblings(run.ctx.at(), next);
        let mut above = self.entities[own].parent;
        let class = self.slots[id].class;
        let mut first = None;
        while let Some(group) = above {
            let queue = &self.queues[class];
            let other = queue.pick_sibling(&self.entities, group.into(), id.bit().into());
            let other = other.filter(|&other| {
                let is_taken = self.takers(cx, class).contains(&Some(other));
                !is_taken && !matches!(self.turn_on(cx, id, other), Turn::Later)
            });
            let other = other.and_then(|other| self.turn_end(run, other, slice));
            first = earlier(first, other);
            above = self.entities.se(group).parent;
        }
        first
    }

    /// Returns when a job is to be preempted because another context starves, unless a slot will be
    /// vacant for that context anyway.
    fn boost_end(&self, id: SlotId) -> Option<(ContextIndex, Time)> {
        let starving = self
            .starving(id)
            .filter(|&(ctx, _)| !self.is_claiming(ctx))?;
        let mut slots = slots_in(self.usable_slots(starving.0));
        let is_leaving = slots.any(|other| self.slots[other].fsm.is_leaving());
        (!is_leaving).then_some(starving)
    }

    /// Returns the first context that waits for the slot and that no other slot about to be vacant
    /// will take.
    pub(super) fn candidate(&self, cx: &Cx<'_>, id: SlotId) -> Option<ContextIndex> {
        let class = self.slots[id].class;
        if cx.is_throttling(class) {
            return None;
        }
        let next = match self.free_soon(class) {
            0 => self.pick_next(cx, id),
            _ => self.next_turn(cx, id, &self.takers(cx, class)),
        };
        Some(next?.0)
    }

    /// Returns the context that a vacant slot is given to, and how it is put on the slot.
    pub(super) fn pick_next(&self, cx: &Cx<'_>, id: SlotId) -> Option<(ContextIndex, Turn)> {
        let class = self.slots[id].class;
        if self.entities.nr_ganged == 0 {
            // No slot is claimed.
            let next = self.queues[class].pick_next(&self.entities, id.bit().into())?;
            return Some((next, Turn::Alone));
        }
        self.next_turn(cx, id, &self.claimants(class))
    }

    /// Returns the context that a slot is given to when the slice there ends, and how. With gangs,
    /// returns the context that the slot would be given to now.
    pub(super) fn pick_at_slice_end(
        &self,
        cx: &Cx<'_>,
        id: SlotId,
    ) -> Option<(ContextIndex, Turn)> {
        let next = match self.entities.nr_ganged {
            0 => self.first_at_slice_end(cx, id),
            _ => None,
        };
        let next = next.map(|ctx| (ctx, Turn::Alone));
        next.or_else(|| self.pick_next(cx, id))
    }

    /// Returns the first context that waits for a slot after the job there, if all runs of the
    /// class are charged until the end of the slice. `None`: the job would go first, or it
    /// competes through no group.
    fn first_at_slice_end(&self, cx: &Cx<'_>, id: SlotId) -> Option<ContextIndex> {
        let slot = &self.slots[id];
        let (queue, slots) = (&self.queues[slot.class], id.bit().into());
        let run = slot.fsm.run()?;
        self.entities.se(run.ctx.at()).parent?;
        let end = run.pause.map_or(cx.now, |pause| pause.since.max(cx.now));
        let spends = |at: EntityRef| {
            let level = self.entities[at].parent;
            let is_below = |&ctx: &_| self.entities.ancestor_below(ctx, level) == Some(at);
            let runs = self.running(slot.class).filter(is_below);
            let spans = runs.map(|ctx| self.entities[ctx].uncharged(end));
            spans.reduce(|sum, span| sum + span)
        };
        let mut next = None;
        // What competes for the job, from the context upwards, and who is next below it.
        let mut own = EntityRef::from(run.ctx.at());
        loop {
            let level = self.entities[own].parent;
            if let EntityKind::Group(group) = self.entities.kind(own) {
                next = next.filter(|_| self.entities[group].waits());
            }
            let entity = &self.entities[own];
            let place = SchedKey {
                rank: self.policy.rank(&self.entities[run.ctx.at()]),
                key: entity.vruntime_after(spends(own).unwrap_or_default()),
                // A waiting context goes before the job.
                turn: next.map_or(u64::MAX, |_| entity.node.sched_key().turn),
            };
            let first =
                queue.first_after_charge(&self.entities, (level, Some(own)), slots, &spends);
            if let Some((key, other)) = first {
                if next.is_none() && level.is_none() || key < place {
                    next = queue.descend_after_charge(&self.entities, other, slots, &spends);
                }
            }
            match level {
                Some(group) => own = group.into(),
                None => return next,
            }
        }
    }

    /// Returns whether a context that waits for the slot preempts `ctx` at once; `false` if the
    /// first waiter does not. O(log n), regardless of gangs.
    pub(super) fn may_be_outranked(&self, id: SlotId, ctx: ContextIndex) -> bool {
        let queue = &self.queues[self.slots[id].class];
        let first = queue.pick_next(&self.entities, id.bit().into());
        first.is_some_and(|first| self.is_preempted_now(ctx, first))
    }

    /// Returns the slots of a class that are about to be vacant, or kept vacant for a hint or a
    /// gang, a bit each.
    pub(super) fn free_soon(&self, class: SlotId) -> u8 {
        let mut soon = 0;
        for id in self.class_slots(class) {
            let slot = &self.slots[id];
            let is_free = if slot.fsm.is_vacant() {
                slot.unfilled || slot.claim.is_some() || slot.reserved_for().is_some()
            } else {
                slot.fsm.is_leaving() && slot.nominees.next.is_none()
            };
            soon |= if is_free { id.bit() } else { 0 };
        }
        soon
    }

    /// Returns the context that takes each slot about to be vacant, by slot, followed by the
    /// contexts that have claims to slots. A reserved slot is counted as going to its fallback
    /// waiter: ending another slice for that waiter would be a switch too many in most cases.
    pub(super) fn takers(&self, cx: &Cx<'_>, class: SlotId) -> Taken {
        let find = || self.find_takers(cx, class);
        cx.plan_cache.takers(self.generation, class, find)
    }

    fn find_takers(&self, cx: &Cx<'_>, class: SlotId) -> Taken {
        let mut taken = self.claimants(class);
        for id in slots_in(self.free_soon(class)) {
            let taker = match self.slots[id].claim {
                Some(claim) => Some(claim.ctx),
                None => self.next_turn(cx, id, &taken).map(|(ctx, _)| ctx),
            };
            taken[id.index()] = taker;
        }
        taken
    }
}
