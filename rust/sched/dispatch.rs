// SPDX-License-Identifier: GPL-2.0

//! The decision: vacant slots are filled, slices end, timers are armed.

use super::event::Cx;
use super::ids::{slots_in, ContextIndex, EntityKind};
use super::plan_cache::Turn;
use super::run::WATCHDOG_PERIOD;
use super::state::{Plan, Scheduler};
use super::time::earliest;
use super::{Action, PauseCause, SlotId, Time, MAX_SLOTS};

/// How many slices one decision ends at most.
const ROUNDS_MAX: usize = 4 * MAX_SLOTS;
/// How many slices one decision ends, or has gangs claim slots for, if there are gangs: plans then
/// take longer, and are made again after each. The timer triggers the next decision soon.
const GANG_ROUNDS_MAX: usize = 2;
/// Another context gets a slot that a gang waits for only if it can have the slot for longer than
/// this many saves and restores take.
const BACKFILL_SWITCHES: u64 = 2;

impl Scheduler {
    /// Puts the slots of a class to work after something has changed: fills a vacant slot, ends the
    /// slices that are over if a context waits, and arms the timers. If more slots are to be
    /// filled, a timer is armed to fire at once. O(log n) in the number of contexts; a card has at
    /// most eight slots.
    pub(super) fn reschedule(&mut self, cx: &mut Cx<'_>, class: SlotId) {
        if self.are_classes_tied() {
            return self.reschedule_all(cx);
        }
        self.decide(cx, class);
        self.post_orders(cx, class);
        self.arm_timers(cx, class);
    }

    /// Reschedules the class of a slot after an event of the slot, and then passes on `notice` to the
    /// owner.
    pub(super) fn reschedule_and_notify(
        &mut self,
        cx: &mut Cx<'_>,
        id: SlotId,
        notice: Option<Action>,
    ) {
        self.reschedule(cx, self.slots[id].class);
        if let Some(notice) = notice {
            cx.act(notice);
        }
    }

    /// Reschedules every class.
    pub(super) fn reschedule_all(&mut self, cx: &mut Cx<'_>) {
        self.check_claims();
        self.renew_claims(cx.now);
        for class in self.queues.ids() {
            self.decide(cx, class);
        }
        for id in self.slots.ids() {
            // The decision for a later class may have claimed the slot.
            if self.slots[id].claim.is_some() && self.slots[id].fsm.is_vacant() {
                self.fill_claimed(cx, id);
            }
        }
        for class in self.queues.ids() {
            // The decision for a later class may have stopped members of a gang in an earlier one.
            self.post_orders(cx, class);
        }
        for class in self.queues.ids() {
            self.arm_timers(cx, class);
        }
    }

    fn decide(&mut self, cx: &mut Cx<'_>, class: SlotId) {
        if self.gone {
            return;
        }
        if self.frozen {
            return self.take_off(cx, class);
        }
        self.unthrottle(cx.now, class);
        self.rotate_hidden(class);
        let is_hinted = self.is_hinted(class);
        if is_hinted {
            self.expire_hints(cx.now, class);
        }
        for id in self.class_slots(class) {
            if self.slots[id].fsm.is_vacant() {
                self.fill(cx, id);
            }
        }
        if self.queues[class].relays {
            self.displace_nominees(cx, class);
        }
        self.end_slices(cx, class);
        if is_hinted {
            self.serve_hints(cx, class);
            self.account_reserved(cx.now, class);
        }
        if self.queues[class].has_boundaries {
            self.bound_boundaries(cx, class);
        }
    }

    /// Arms the timers of a class.
    pub(super) fn arm_timers(&mut self, cx: &mut Cx<'_>, class: SlotId) {
        if self.gone || self.frozen {
            return;
        }
        for id in self.class_slots(class) {
            let next = self.next_timer(cx, id);
            self.slots[id].fsm.arm(cx, next);
        }
        if cx.is_throttling(class) {
            // These plans were made without knowing the next context.
            self.forget_plans(class);
        }
    }

    /// Ends the slices of a class that are over, the most overdue first.
    pub(super) fn end_slices(&mut self, cx: &mut Cx<'_>, class: SlotId) {
        self.throttle_next(cx, class);
        let rounds = match self.entities.nr_ganged {
            0 => ROUNDS_MAX,
            _ => GANG_ROUNDS_MAX,
        };
        for _ in 0..rounds {
            let id = self.most_overdue(cx, class);
            let Some((id, plan)) = id.and_then(|id| Some((id, self.slots[id].plan?))) else {
                return;
            };
            if !self.claim_for(cx, id, plan.cause) {
                let payer = plan.payer.map(|payer| self.entities.id(payer));
                let due = plan.at.unwrap_or(cx.now);
                self.pause_at(cx, id, payer, plan.cause, due);
            }
        }
    }

    /// Returns the most overdue slot: the slot whose job was to be preempted first. If several are
    /// due at once, returns the slot whose job the policy puts last.
    pub(super) fn most_overdue(&mut self, cx: &Cx<'_>, class: SlotId) -> Option<SlotId> {
        let mut most: Option<(SlotId, Time)> = None;
        for id in self.class_slots(class) {
            let Some(end) = self.planned_end(cx, id).filter(|&end| end <= cx.now) else {
                continue;
            };
            let is_first = match most {
                Some((other, at)) if end == at => self.class_place(id) > self.class_place(other),
                Some((_, at)) => end < at,
                None => true,
            };
            if is_first {
                most = Some((id, end));
            }
        }
        most.map(|(id, _)| id)
    }

    /// Returns when the job on a slot is to be told to pause, and makes a plan if there is none.
    /// `None`: the slot has no job, its job was already told to pause, or there is no known reason
    /// to preempt the job.
    pub(super) fn planned_end(&mut self, cx: &Cx<'_>, id: SlotId) -> Option<Time> {
        self.slots[id].fsm.unpaused()?;
        let queue = &mut self.queues[self.slots[id].class];
        if core::mem::take(&mut queue.replan) {
            for id in slots_in(queue.slots) {
                self.slots[id].plan = None;
            }
        }
        // Whether a gang can have the slot depends on the other slots, and on the time.
        let may_gang = self.entities.nr_ganged != 0;
        let is_open = |plan: Plan| {
            let is_boost = matches!(plan.cause, PauseCause::Starving { .. });
            may_gang && (is_boost || plan.at.is_none())
        };
        if self.slots[id].plan.is_none_or(is_open) {
            self.slots[id].plan = self.make_plan(cx, id);
        }
        let plan = self.slots[id].plan.as_ref()?;
        Some(plan.at?.before(plan.lead))
    }

    /// Returns the place, in the order of the policy, of the entity that competes in the class for
    /// the job on a slot. Of equals, jobs that are in no gang come last: preempting them stops no
    /// other jobs.
    fn class_place(&self, id: SlotId) -> Option<(u8, bool, u64)> {
        let ctx = self.slots[id].fsm.run()?.ctx.at();
        let (rank, key) = self.place_of(ctx);
        let is_alone = !self.entities.is_ganged(ctx);
        let at = self.entities.ancestor_below(ctx, None)?;
        match self.entities.kind(at) {
            EntityKind::Context(_) => Some((rank, is_alone, key)),
            EntityKind::Group(group) => Some((rank, is_alone, self.entities.se(group).vruntime)),
        }
    }

    /// Claims slots for the gang that has its turn on a slot. Returns `false` if the slot is to be
    /// vacant for a single context.
    fn claim_for(&mut self, cx: &Cx<'_>, id: SlotId, cause: PauseCause) -> bool {
        let (waiter, boosted) = match cause {
            PauseCause::Slice { waiter } | PauseCause::Outranked { waiter } => (waiter.at(), false),
            PauseCause::Starving { waiter } => (waiter.at(), true),
            _ => return false,
        };
        if self.slots[id]
            .claim
            .is_some_and(|claim| claim.ctx == waiter)
        {
            return false;
        }
        match self.turn(cx.now, waiter, boosted) {
            Turn::Alone => return false,
            Turn::Together(_) => self.claim_together(cx.now, waiter, boosted),
            Turn::Later => self.forget_plans(self.slots[id].class),
        }
        true
    }

    /// Takes the jobs off the slots of a class while the scheduler is frozen.
    fn take_off(&mut self, cx: &mut Cx<'_>, class: SlotId) {
        for id in self.class_slots(class) {
            self.pause(cx, id, None, PauseCause::Freeze);
            // No context is to have the slot, so none waits for a boundary.
            let wait = self.boundary_wait;
            self.slots[id].fsm.bound_boundary(cx, None, wait);
            self.withdraw(id, false);
            self.post_order(cx, id);
            let fsm = &mut self.slots[id].fsm;
            if fsm.is_vacant() {
                fsm.leave_vacant(cx);
            }
            let next = fsm.next_timer();
            fsm.arm(cx, next);
        }
    }

    /// Gives a vacant slot to the next context that waits, or closes its window if no context
    /// waits.
    fn fill(&mut self, cx: &mut Cx<'_>, id: SlotId) {
        let class = self.slots[id].class;
        self.slots[id].unfilled = false;
        self.throttle_next(cx, class);
        self.yield_claim(cx, id);
        if self.slots[id].claim.is_some() {
            return self.fill_claimed(cx, id);
        }
        let first = match cx.is_throttling(class) {
            true => None,
            false => self.pick_next(cx, id),
        };
        let kept_for = self.reserve_for(cx.now, id, first.map(|(ctx, _)| ctx));
        // The context that would be next if all announced jobs had arrived.
        let next = kept_for.or(first.map(|(ctx, _)| ctx));
        let starving = match cx.is_throttling(class) {
            true => None,
            false => self.starves(cx.now, id, next),
        };
        if let Some(ctx) = starving {
            match self.turn(cx.now, ctx, true) {
                Turn::Later => {}
                turn => return self.give(cx, id, (ctx, turn), true),
            }
        }
        match (kept_for, first) {
            (None, Some(first)) => self.give(cx, id, first, false),
            (None, None) => self.slots[id].fsm.leave_vacant(cx),
            (Some(ctx), _) => {
                self.reserve_slot(cx, id, ctx, false);
                self.slots[id].fsm.leave_vacant(cx);
            }
        }
    }

    /// Names the contexts that run next on the slots of a class that have a relay, and posts the
    /// orders that have changed.
    fn post_orders(&mut self, cx: &mut Cx<'_>, class: SlotId) {
        if self.gone || self.frozen || !self.queues[class].relays {
            return;
        }
        for id in self.class_slots(class) {
            if self.slots[id].fsm.config.has_relay() {
                self.name_next(cx, id);
                self.post_order(cx, id);
            }
        }
    }

    /// Names the context that runs next on a slot with a relay: the context that the slot is given to
    /// when the slice there ends. No context is named for a slot that must be vacant together with
    /// others, or that is to be kept vacant.
    fn name_next(&mut self, cx: &mut Cx<'_>, id: SlotId) {
        let slot = &self.slots[id];
        let class = slot.class;
        if !slot.fsm.takes_next(cx.now) || slot.nominees.next.is_some() || slot.claim.is_some() {
            return;
        }
        self.throttle_next(cx, class);
        if cx.is_throttling(class) {
            return;
        }
        let Some((ctx, Turn::Alone)) = self.pick_at_slice_end(cx, id) else {
            return;
        };
        if self.reserve_for(cx.now, id, Some(ctx)).is_some() {
            return;
        }
        let starving = self.starves(cx.now, id, Some(ctx));
        let next = starving.unwrap_or(ctx);
        if !self.entities.is_ganged(next) {
            self.nominate(cx, id, next, starving.is_some());
        }
    }

    /// Returns the starving context that takes a slot in place of `next`, if there is one.
    fn starves(&self, now: Time, id: SlotId, next: Option<ContextIndex>) -> Option<ContextIndex> {
        // The boost gives one slice in each interval.
        if self.queues[self.slots[id].class].boosted_at + self.boost > now {
            return None;
        }
        let (ctx, at) = self.starving(id)?;
        let is_due = at <= now && Some(ctx) != next && !self.is_claiming(ctx);
        let is_refused = next.is_some_and(|next| self.policy.reserves(&self.entities[next]));
        (is_due && !is_refused).then_some(ctx)
    }

    /// Gives a vacant slot to a context that has its turn, or to its gang.
    fn give(
        &mut self,
        cx: &mut Cx<'_>,
        id: SlotId,
        (ctx, turn): (ContextIndex, Turn),
        boosted: bool,
    ) {
        match turn {
            Turn::Alone => self.start_one(cx, id, ctx, boosted),
            Turn::Together(_) => {
                self.claim_together(cx.now, ctx, boosted);
                match self.slots[id].claim.is_some() {
                    true => self.fill_claimed(cx, id),
                    false => self.leave_unfilled(cx, id),
                }
            }
            Turn::Later => self.slots[id].fsm.leave_vacant(cx),
        }
    }

    /// Puts a member of a gang on a vacant slot that is claimed for it, once all members have their
    /// slots. Until then, puts another context there if that is worth a switch.
    fn fill_claimed(&mut self, cx: &mut Cx<'_>, id: SlotId) {
        if let Some((ctx, boosted)) = self.claimant(id) {
            self.start_one(cx, id, ctx, boosted);
        } else if let Some(ctx) = self.backfill(cx, id) {
            self.start_one(cx, id, ctx, false);
        } else {
            self.slots[id].fsm.leave_vacant(cx);
        }
    }

    /// Returns a context in no gang that may have a vacant slot until the gang that claims the slot
    /// can be started, if that time is long enough for more than a save and a restore.
    pub(super) fn backfill(&self, cx: &Cx<'_>, id: SlotId) -> Option<ContextIndex> {
        let slot = &self.slots[id];
        let claim = slot.claim.filter(|claim| !claim.begun)?;
        let switch = slot.fsm.stats.save() + slot.fsm.stats.restore();
        if cx.is_throttling(slot.class) || claim.at <= cx.now + switch.times(BACKFILL_SWITCHES) {
            return None;
        }
        let queue = &self.queues[slot.class];
        let ctx = queue.pick_next(&self.entities, super::entity::alone(id.bit()))?;
        (!self.is_preempted_on(cx, id, ctx)).then_some(ctx)
    }

    /// Returns whether a context that waits for a slot preempts `ctx` at once.
    fn is_preempted_on(&self, cx: &Cx<'_>, id: SlotId, ctx: ContextIndex) -> bool {
        self.may_be_outranked(id, ctx)
            && self
                .pick_next(cx, id)
                .is_some_and(|(first, _)| self.is_preempted_now(ctx, first))
    }

    /// Drops the claims of the gang that claims `id`, unless a member was started already, if a
    /// context that waits for `id` would preempt the gang at once.
    pub(super) fn yield_claim(&mut self, cx: &Cx<'_>, id: SlotId) {
        let Some(claim) = self.slots[id].claim.filter(|claim| !claim.begun) else {
            return;
        };
        if self.is_preempted_on(cx, id, claim.ctx) {
            self.drop_claims_of(claim.ctx);
        }
    }

    /// Starts a job, or leaves it to the next decision.
    fn start_one(&mut self, cx: &mut Cx<'_>, id: SlotId, ctx: ContextIndex, boosted: bool) {
        if cx.may_start() {
            self.start_job(cx, id, ctx, boosted);
        } else {
            self.leave_unfilled(cx, id);
        }
    }

    /// Leaves a vacant slot to the next decision, which the timer triggers. The window is closed,
    /// because the last context on the slot may be closed and released before then.
    fn leave_unfilled(&mut self, cx: &mut Cx<'_>, id: SlotId) {
        self.slots[id].unfilled = true;
        self.slots[id].fsm.close_window(cx);
        self.forget_plans(self.slots[id].class);
    }

    /// Stops jobs that were told to stop at a boundary and have kept another context waiting too
    /// long.
    fn bound_boundaries(&mut self, cx: &mut Cx<'_>, class: SlotId) {
        for id in self.class_slots(class) {
            if self.slots[id].fsm.is_to_boundary() {
                let waiter = self.outranks(cx, id);
                let waiter = waiter.map(|waiter| self.entities.id(waiter));
                let wait = self.boundary_wait;
                let fsm = &mut self.slots[id].fsm;
                fsm.bound_boundary(cx, waiter, wait);
            }
        }
    }

    /// Returns the context that will take the slot next, if it preempts the job there at once under
    /// the policy.
    fn outranks(&self, cx: &Cx<'_>, id: SlotId) -> Option<ContextIndex> {
        let slot = &self.slots[id];
        let runs = slot.fsm.run()?.ctx.at();
        let leaving = self.free_soon(slot.class);
        let next = if let Some(nominee) = slot.nominees.next {
            Some(nominee.ctx)
        } else if leaving & id.bit() != 0 {
            self.takers(cx, slot.class)[id.index()]
        } else {
            self.candidate(cx, id)
        };
        next.filter(|&next| self.is_preempted_now(runs, next))
    }

    /// Returns when the timer of a slot is needed; `None` while the slot waits for nothing.
    fn next_timer(&mut self, cx: &Cx<'_>, id: SlotId) -> Option<Time> {
        let own = earliest(self.own_timer(cx, id), self.kept_until(id));
        let class = self.slots[id].class;
        // One timer per class serves throttled contexts and hints.
        if slots_in(self.queues[class].usable).next() != Some(id) {
            return own;
        }
        let next = earliest(self.next_unthrottle(class), self.next_hint(cx.now, class));
        // If that time has come, this decision has left entities throttled, or hints pending.
        let next = next.map(|at| if at > cx.now { at } else { cx.soon() });
        let throttle = cx.is_throttling(class).then_some(cx.soon());
        earliest(own, earliest(next, throttle))
    }

    /// Returns when the timer is needed for the slot itself.
    fn own_timer(&mut self, cx: &Cx<'_>, id: SlotId) -> Option<Time> {
        let slot = &self.slots[id];
        if slot.fsm.is_vacant() {
            return slot.unfilled.then_some(cx.now);
        }
        let Some(run) = slot.fsm.unpaused() else {
            return slot.fsm.next_timer();
        };
        let (poll_at, started) = (run.poll_at, run.started);
        let is_polled = slot.fsm.config.settle().is_some();
        let Some(end) = self.planned_end(cx, id) else {
            return Some(poll_at);
        };
        let is_short = self.slots[id].plan.is_some_and(|plan| plan.is_short);
        // The PAUSE at the end of a short slice shows a lost interrupt soon enough: skip the status
        // read.
        let is_soon = end.since(started) <= WATCHDOG_PERIOD.doubled();
        if !is_polled && is_short && is_soon {
            return Some(end);
        }
        Some(end.min(poll_at))
    }
}
