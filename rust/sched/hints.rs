// SPDX-License-Identifier: GPL-2.0

//! "I shall need a slot at this time": a slot is made vacant in time for work that has not arrived
//! yet, as `GPreempt` does.
//!
//! A hint is *due* a save before its time. Then, if the work would preempt best-effort work at once
//! if it were there, a slot is taken from best-effort work and kept vacant until the work arrives
//! or the hint expires. A hint takes no slot from a boosted slice, a reservation or
//! latency-critical work; these may also take the reserved slot.
//!
//! What a wrong hint wastes (the slot's idle time while a context waited, and the save and the
//! restore of the preempted job) is charged to its owner. The hints of its group are then ignored
//! for [`GROUP_BACKOFF`] times as long, and those of the whole class for [`CLASS_BACKOFF`] times as
//! long. So one group wastes at most a hundredth of the time, and all groups together a twentieth.

use super::context::SchedContext;
use super::event::Cx;
use super::ids::{slots_in, ContextIndex, EntityRef};
use super::plan_cache::Taken;
use super::reservation::SlotReservation;
use super::state::{Scheduler, Slot};
use super::time::earliest;
use super::{Action, ContextId, Duration, PauseCause, Refusal, SlotId, Time};

/// How far ahead a hint may be.
const AHEAD_MAX: Duration = Duration::from_ms(10_000);
/// The shortest time between two hints of a context that starts no job in between.
const INTERVAL: Duration = Duration::from_us(100);
/// The slot is to be vacant this long before the time of the hint; an eighth of a save is added.
const LEAD_MARGIN: Duration = Duration::from_us(20);
/// A hint expires a save after its time, but not sooner than this...
const GRACE_MIN: Duration = Duration::from_us(50);
/// ... and not later than this.
const GRACE_MAX: Duration = Duration::from_ms(1);
/// Back-off of a group's hints, as a multiple of the time that they wasted.
const GROUP_BACKOFF: u64 = 100;
/// Back-off of a class's hints.
const CLASS_BACKOFF: u64 = 20;
/// How many expired hints one decision drops; the timer brings the next ones.
const EXPIRE_MAX: usize = 4;
/// How many due hints of each list one decision examines.
const LOOKS_MAX: usize = 8;

/// How a hint ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The work arrived.
    Used,
    /// The work did not arrive in time.
    Expired,
    /// The owner has given another hint, or withdrawn the hint, or is gone.
    Withdrawn,
}

/// Requests of owners.
impl Scheduler {
    /// Notes that `id` will need a slot at `at`; zero withdraws its hint. [`Refusal::NoSlot`] as
    /// for Start.
    pub(super) fn give_hint(
        &mut self,
        now: Time,
        id: ContextId,
        at: Time,
    ) -> Result<ContextIndex, Refusal> {
        let ctx = self.entities.owned(id)?;
        self.check_present()?;
        let context = &self.entities[ctx];
        if !context.state.wants_nothing() {
            return Err(Refusal::Busy);
        }
        if at != Time::ZERO {
            self.check_hint(now, context, at)?;
        }
        self.end_hint(now, ctx, Ending::Withdrawn);
        if at != Time::ZERO {
            let context = &mut self.entities[ctx];
            context.hinted_at = now;
            context.hints.given = context.hints.given.saturating_add(1);
            self.link_hint(ctx, at);
        }
        Ok(ctx)
    }

    fn check_hint(&self, now: Time, context: &SchedContext, at: Time) -> Result<(), Refusal> {
        if at < now || at > now + AHEAD_MAX {
            return Err(Refusal::Range);
        }
        if context.stuck {
            return Err(Refusal::NoSlot);
        }
        self.check_mask(context.class, context.params.mask)?;
        if context.hinted_at != Time::ZERO && now < context.hinted_at + INTERVAL {
            return Err(Refusal::Rate);
        }
        Ok(())
    }

    /// Notes that the context wants a slot now, at the announced time or before.
    pub(super) fn use_hint(&mut self, now: Time, ctx: ContextIndex) {
        self.end_hint(now, ctx, Ending::Used);
        self.entities[ctx].hinted_at = Time::ZERO;
    }

    /// Withdraws the hint of a context, because the owner is gone or the hint is no longer useful.
    pub(super) fn withdraw_hint(&mut self, now: Time, ctx: ContextIndex) {
        self.end_hint(now, ctx, Ending::Withdrawn);
    }

    /// Takes the hint of a context out of its list before a change to something that its place
    /// depends on; [`Self::put_hint`] puts it back.
    pub(super) fn take_hint(&mut self, ctx: ContextIndex) -> Option<Time> {
        let hint = self.entities.pending_hint(ctx);
        if hint.is_some() {
            self.dequeue(ctx);
        }
        hint
    }

    pub(super) fn put_hint(&mut self, ctx: ContextIndex, hint: Option<Time>) {
        if let Some(at) = hint {
            self.link_hint(ctx, at);
        }
    }

    fn link_hint(&mut self, ctx: ContextIndex, at: Time) {
        let context = &self.entities[ctx];
        let (class, is_urgent) = (context.class, self.policy.is_urgent(context));
        self.queues[class].link_hint(&mut self.entities, ctx, at, is_urgent);
        self.forget_plans(class);
    }
}

/// The cost of hints.
impl Scheduler {
    /// Ends the pending hint of a context, if there is one, and charges what it cost.
    fn end_hint(&mut self, now: Time, ctx: ContextIndex, ending: Ending) {
        let context = &self.entities[ctx];
        if !context.has_hint() {
            return;
        }
        let ignored = self.in_backoff(now, context);
        let class = context.class;
        let until = self.entities.hint(ctx) + self.hint_grace(class);
        let id = self.entities.id(ctx);
        let mut waste = Duration::ZERO;
        for slot in self.class_slots(class) {
            let reservation = self.slots[slot].reservation;
            if reservation.is_some_and(|reservation| reservation.ctx == id) {
                waste += self.release_slot(now.min(until), slot, ending == Ending::Used);
            }
        }
        self.dequeue(ctx);
        let hints = &mut self.entities[ctx].hints;
        let free = waste == Duration::ZERO;
        let count = match ending {
            Ending::Used => Some(&mut hints.used),
            Ending::Withdrawn if free => None,
            Ending::Expired if free && ignored => Some(&mut hints.ignored),
            Ending::Expired | Ending::Withdrawn => Some(&mut hints.wasted),
        };
        if let Some(count) = count {
            *count = count.saturating_add(1);
        }
        if ending != Ending::Used {
            self.back_off(now, ctx, waste);
        }
        self.forget_plans(class);
    }

    /// Ends the reservation of a slot. The idle time of the slot is charged to the context that it
    /// was kept for, and so is the rest of what was spent on the reservation unless the hint was
    /// `used`. Returns the cost of the reservation.
    fn release_slot(&mut self, now: Time, id: SlotId, used: bool) -> Duration {
        let slot = &mut self.slots[id];
        let Some(reservation) = slot.reservation.take() else {
            return Duration::ZERO;
        };
        self.generation.advance();
        let stats = &slot.fsm.stats;
        let paused_at = slot.fsm.run().and_then(|run| Some(run.pause?.since));
        let save = match paused_at {
            Some(at) if reservation.made => stats.save().max(now.since(at)),
            _ => reservation.save,
        };
        let restore = if save == Duration::ZERO {
            save
        } else {
            stats.restore()
        };
        let idle = reservation.idle_until(now);
        if let Some(ctx) = self.entities.find(reservation.ctx) {
            // The context wanted the slot then, so its charge begins at the virtual time of its
            // siblings.
            self.place(now, ctx);
            self.charge_off_slot(ctx, idle);
            self.spend(ctx, idle);
            if !used {
                self.charge_off_slot(ctx, restore);
                // The save is in its virtual time already, because the context was the payer.
                self.spend(ctx, restore + save);
            }
        }
        idle + save + restore
    }

    /// Ends the reservation of a slot that its hint cannot use.
    fn give_up_slot(&mut self, now: Time, id: SlotId) {
        if let Some(reservation) = self.slots[id].reservation {
            let waste = self.release_slot(now, id, false);
            if let Some(ctx) = self.entities.find(reservation.ctx) {
                self.back_off(now, ctx, waste);
            }
        }
    }

    /// Ignores the hints of the group and of the class of a context for a while after `waste`.
    fn back_off(&mut self, now: Time, ctx: ContextIndex, waste: Duration) {
        if waste == Duration::ZERO {
            return;
        }
        let context = &self.entities[ctx];
        let (class, group) = (context.class, context.group);
        let until = &mut self.entities[group].backoff_until;
        *until = (*until).max(now) + waste.times(GROUP_BACKOFF);
        let until = &mut self.queues[class].backoff_until;
        *until = (*until).max(now) + waste.times(CLASS_BACKOFF);
    }

    /// Returns whether the hints of a context are ignored.
    fn in_backoff(&self, now: Time, context: &SchedContext) -> bool {
        let group = self.entities[context.group].backoff_until;
        group.max(self.queues[context.class].backoff_until) > now
    }

    /// Notes since when reserved slots idle although a context waits for them.
    pub(super) fn account_reserved(&mut self, now: Time, class: SlotId) {
        for id in self.class_slots(class) {
            let slot = &self.slots[id];
            let Some(mut reservation) = slot.reservation else {
                continue;
            };
            let next = self.queues[class].pick_next(&self.entities, id.bit().into());
            let idles = next.is_some() && slot.fsm.is_vacant();
            reservation.note_idle(now, idles);
            self.slots[id].reservation = Some(reservation);
        }
    }
}

/// When hints are due.
impl Scheduler {
    /// Returns how long before its time a hint is due: how long it takes to make a slot vacant.
    fn hint_lead(&self, class: SlotId) -> Duration {
        let longest = self.longest(class, |slot| {
            let settle = slot.fsm.config.settle();
            slot.fsm.stats.save() + settle.unwrap_or_default()
        });
        longest + longest.parts(8) + LEAD_MARGIN
    }

    /// Returns how long after its time a hint expires.
    fn hint_grace(&self, class: SlotId) -> Duration {
        let longest = self.longest(class, |slot| slot.fsm.stats.save());
        longest.clamp(GRACE_MIN, GRACE_MAX)
    }

    fn longest(&self, class: SlotId, what: impl Fn(&Slot) -> Duration) -> Duration {
        let usable = self.queues[class].usable;
        let slots = self.class_slots(class).filter(|id| id.bit() & usable != 0);
        slots
            .map(|id| what(&self.slots[id]))
            .max()
            .unwrap_or_default()
    }

    /// Returns the first hint whose time is not before `at`.
    fn hint_from(&self, class: SlotId, at: Time) -> Option<(ContextIndex, Time)> {
        let queue = &self.queues[class];
        let trees = [queue.urgent_hints, queue.common_hints];
        let firsts = trees.map(|tree| tree.first_from(&self.entities, at.as_ns()));
        let hints = firsts.into_iter().flatten().map(EntityRef::context);
        hints
            .map(|ctx| (ctx, self.entities.hint(ctx)))
            .min_by_key(|&(_, at)| at)
    }

    /// Returns when hints of the class need attention next, after the due hints were served.
    pub(super) fn next_hint(&self, now: Time, class: SlotId) -> Option<Time> {
        if !self.queues[class].has_hints() {
            return None;
        }
        let (_, first) = self.hint_from(class, Time::ZERO)?;
        let lead = self.hint_lead(class);
        let due = self.hint_from(class, now + lead + Duration::from_ns(1));
        let due = due.map(|(_, at)| Time::from_ns(at.as_ns().saturating_sub(lead.as_ns())));
        earliest(due, Some(first + self.hint_grace(class)))
    }

    /// Returns the hints for `slots` with times until `by`, at most [`LOOKS_MAX`] of each list.
    fn due_hints(
        &self,
        class: SlotId,
        slots: u8,
        by: Time,
    ) -> [Option<ContextIndex>; 2 * LOOKS_MAX] {
        let queue = &self.queues[class];
        let mut due = [None; 2 * LOOKS_MAX];
        let mut places = due.iter_mut();
        for tree in [queue.urgent_hints, queue.common_hints] {
            let mut next = tree.first(&self.entities, slots.into());
            for _ in 0..LOOKS_MAX {
                let ctx = next.map(EntityRef::context);
                let Some(ctx) = ctx.filter(|&ctx| self.entities.hint(ctx) <= by) else {
                    break;
                };
                if let Some(place) = places.next() {
                    *place = Some(ctx);
                }
                next = tree.after(&self.entities, ctx.into(), slots.into());
            }
        }
        due
    }

    /// Returns whether a slot is reserved for a context.
    fn is_served(&self, ctx: ContextIndex) -> bool {
        let id = self.entities.id(ctx);
        let mut slots = self.class_slots(self.entities[ctx].class);
        slots.any(|slot| self.slots[slot].reserved_for() == Some(id))
    }

    /// Returns whether a slot may be made vacant for a context, and none was yet.
    fn may_serve(&self, now: Time, ctx: ContextIndex) -> bool {
        let context = &self.entities[ctx];
        !self.in_backoff(now, context) && !self.is_throttled(now, ctx) && !self.is_served(ctx)
    }
}

/// Serving hints.
impl Scheduler {
    /// Drops expired hints, and ends reservations of slots that the contexts they are reserved for
    /// cannot use. O(log n).
    pub(super) fn expire_hints(&mut self, now: Time, class: SlotId) {
        let grace = self.hint_grace(class);
        for _ in 0..EXPIRE_MAX {
            match self.hint_from(class, Time::ZERO) {
                Some((ctx, at)) if at + grace <= now => self.end_hint(now, ctx, Ending::Expired),
                _ => break,
            }
        }
        for id in self.class_slots(class) {
            let ctx = self.slots[id].reserved_for();
            let ctx = ctx.and_then(|ctx| self.entities.find(ctx));
            if ctx.is_some_and(|ctx| self.usable_slots(ctx) & id.bit() == 0) {
                self.give_up_slot(now, id);
            }
        }
    }

    /// Returns the context that a vacant slot must be kept for instead of being given to `first`,
    /// which waits for it.
    pub(super) fn reserve_for(
        &self,
        now: Time,
        id: SlotId,
        first: Option<ContextIndex>,
    ) -> Option<ContextIndex> {
        let slot = &self.slots[id];
        let yields = |ctx: ContextIndex| {
            first.is_none_or(|first| {
                self.policy
                    .yields_to(&self.entities[first], &self.entities[ctx])
            })
        };
        if let Some(kept) = slot.reserved_for() {
            return self.entities.find(kept).filter(|&ctx| yields(ctx));
        }
        if !self.queues[slot.class].has_hints() {
            return None;
        }
        // A job that would have to leave before it is restored is not started.
        let restore = match first {
            Some(first) if self.entities[first].saved => slot.fsm.stats.restore(),
            _ => Duration::ZERO,
        };
        let by = now + self.hint_lead(slot.class) + restore;
        let due = self.due_hints(slot.class, id.bit(), by);
        let mut due = due.into_iter().flatten();
        due.find(|&ctx| self.may_serve(now, ctx) && yields(ctx))
    }

    /// Reserves a slot for a context; `made`: the job on the slot was told to pause for this.
    pub(super) fn reserve_slot(
        &mut self,
        cx: &mut Cx<'_>,
        id: SlotId,
        ctx: ContextIndex,
        made: bool,
    ) {
        let name = self.entities.id(ctx);
        if self.slots[id].reserved_for() != Some(name) {
            cx.act(Action::Reserve {
                slot: id,
                ctx: name,
            });
            // The slot is no longer available to a gang.
            self.generation.advance();
        }
        let reservation = self.slots[id].reservation;
        if reservation.is_some_and(|reservation| reservation.ctx != name) {
            self.give_up_slot(cx.now, id);
        }
        let reservation = &mut self.slots[id].reservation;
        let reservation = reservation.get_or_insert(SlotReservation::new(name));
        reservation.taken = false;
        reservation.made |= made;
    }

    /// Makes slots vacant for the hints that are due. O(log n).
    pub(super) fn serve_hints(&mut self, cx: &mut Cx<'_>, class: SlotId) {
        let usable = self.queues[class].usable;
        let by = cx.now + self.hint_lead(class);
        // Slots that are reserved for hints meanwhile are not available to the next hint.
        let mut takers = None;
        for ctx in self.due_hints(class, usable, by).into_iter().flatten() {
            if self.may_serve(cx.now, ctx) {
                let takers = takers.get_or_insert_with(|| self.takers(cx, class));
                self.serve_hint(cx, ctx, takers);
            } else if !self.is_served(ctx) && self.in_backoff(cx.now, &self.entities[ctx]) {
                self.end_hint(cx.now, ctx, Ending::Expired);
            }
        }
    }

    /// Finds a slot for announced work: a slot that will be vacant anyway, or one that best-effort
    /// work leaves.
    fn serve_hint(&mut self, cx: &mut Cx<'_>, ctx: ContextIndex, takers: &Taken) {
        let class = self.entities[ctx].class;
        let mut leaving = self.leaving_for(ctx, takers);
        if leaving.is_none() {
            leaving = self.withdraw_for(ctx);
        }
        if let Some(id) = leaving {
            let made = self.stop_early(cx.now, id, ctx);
            self.reserve_slot(cx, id, ctx, made);
        } else if let Some(id) = self.yielding_to(cx.now, ctx) {
            self.reserve_slot(cx, id, ctx, true);
            let waiter = self.entities.id(ctx);
            let cause = PauseCause::Hint { waiter };
            self.pause(cx, id, Some(waiter), cause);
        } else {
            return;
        }
        self.forget_plans(class);
    }

    /// Returns a slot about to be vacant that is not taken by a waiter which goes before `ctx`.
    fn leaving_for(&self, ctx: ContextIndex, takers: &Taken) -> Option<SlotId> {
        let context = &self.entities[ctx];
        let free = slots_in(self.free_soon(context.class)).find(|&id| {
            let yields = takers[id.index()].is_none_or(|taker| {
                let taker = &self.entities[taker];
                self.policy.yields_to(taker, context)
            });
            let slot = &self.slots[id];
            let is_kept = slot.reserved_for().is_some() || slot.claim.is_some();
            self.entities.se(ctx).slots() & id.bit() != 0 && !is_kept && yields
        });
        free
    }

    /// Withdraws a context that is named to run next on a slot, if the work of `ctx` preempts it.
    /// Returns the slot.
    fn withdraw_for(&mut self, ctx: ContextIndex) -> Option<SlotId> {
        let context = &self.entities[ctx];
        let id = slots_in(self.usable_slots(ctx)).find(|&id| {
            let slot = &self.slots[id];
            let is_kept = slot.reserved_for().is_some() || slot.claim.is_some();
            let named = slot.nominees.next.filter(|named| !named.boosted);
            let yields = named
                .is_some_and(|named| self.policy.yields_to(&self.entities[named.ctx], context));
            slot.fsm.is_leaving() && !is_kept && yields
        })?;
        self.withdraw(id, false);
        self.slots[id].nominees.next.is_none().then_some(id)
    }

    /// Stops at once a job that was told to stop at the end of its slice, if the work of `ctx`
    /// preempts it. Returns whether the job is therefore saved before the end of its slice.
    fn stop_early(&mut self, now: Time, id: SlotId, ctx: ContextIndex) -> bool {
        let run = self.slots[id].fsm.run();
        let run = run.filter(|_| !self.is_boosted(now, id));
        let yields = run.is_some_and(|run| {
            let runs = &self.entities[run.ctx.at()];
            self.policy.yields_to(runs, &self.entities[ctx])
        });
        yields && self.stop_now(now, id, Some(self.entities.id(ctx)))
    }

    /// Returns the slot of a job that the work of `ctx` preempts; of several, the slot whose job
    /// the policy puts last.
    fn yielding_to(&self, now: Time, ctx: ContextIndex) -> Option<SlotId> {
        let context = &self.entities[ctx];
        let yielding = slots_in(self.usable_slots(ctx)).filter_map(|id| {
            let slot = &self.slots[id];
            let run = slot.fsm.unpaused().filter(|_| slot.claim.is_none())?;
            if self.is_boosted(now, id) {
                return None;
            }
            let runs = &self.entities[run.ctx.at()];
            let yields = self.policy.yields_to(runs, context);
            yields.then(|| (self.place_of(run.ctx.at()), id))
        });
        yielding.max_by_key(|&(place, _)| place).map(|(_, id)| id)
    }
}
