// SPDX-License-Identifier: GPL-2.0

//! "I shall need a slot at this time": a slot is made vacant in time for work that has not arrived
//! yet.
//!
//! A hint is *due* a save before its time. Then, if the work would preempt best-effort work at once
//! if it were there, its context becomes the successor on a slot of such work, which is *kept* until
//! the work arrives or the hint expires. A slot that is free anyway is kept if the work goes before
//! all that waits for it. A kept slot goes to any work but such as could have been stopped for it.
//!
//! The time for which a vacant slot is kept is charged as run time, to virtual time and caps, and
//! the owner pays for the save of the job that makes way. Unused hints of a group may cost 2 % of a
//! slot, and a second's part of that at once; then further hints are refused.
//!
//! A context with a hint is in no queue: its node is in a tree by the time at which the hint is due,
//! and later by that at which it expires.

use super::super::card::{Call, Card, Trace};
use super::super::context::State;
use super::super::decisions::Why;
use super::super::queues::Tree;
use super::super::values::{
    slots_in, Class, ContextId, Duration, EntityIndex, Rank, Refusal, SlotId, Stats, Time,
    MAX_SLOTS,
};
use super::super::Scheduler;

/// How far ahead a hint may be.
const AHEAD_MAX: Duration = Duration::from_ms(10_000);
/// The shortest time between two hints of a context that starts no job in between.
const INTERVAL: Duration = Duration::from_us(100);
/// The slot is to be vacant this long before the time of the hint; an eighth of a save is added.
const LEAD_MARGIN: Duration = Duration::from_us(20);
/// A hint expires a save after its time, but not sooner or later than this.
const GRACE: (Duration, Duration) = (Duration::from_us(50), Duration::from_ms(1));
/// Wasted time counts so many times...
const WASTE_TIMES: u64 = 50;
/// ... and hints are refused while more than this has not passed since.
const WASTE_MAX: Duration = Duration::from_ms(1_000);
/// How many hints one call handles; the timer brings the next.
const HINTS_MAX: usize = 4;

/// The contexts that have a hint, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Hints([Tree; MAX_SLOTS]);

/// How far a hint has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// There is none.
    #[default]
    None,
    /// It is not due yet.
    Pending,
    /// The slot is kept for it.
    Served(SlotId),
    /// It was due, and has no slot.
    Passed,
}

/// The hint of a context, and what became of earlier ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Hint {
    stage: Stage,
    /// When the work will arrive.
    at: Time,
    /// When it was given; zero: a job has arrived since.
    given_at: Time,
    /// Since when a vacant slot is kept.
    kept_since: Option<Time>,
    /// Since when that costs others time.
    costs_since: Time,
    /// How much time of slots it has cost others.
    cost: Duration,
    given: u32,
    used: u32,
    wasted: u32,
}

impl Hint {
    /// Adds what became of hints to the statistics of a context.
    #[inline]
    pub(in super::super) fn report(&self, stats: &mut Stats) {
        stats.hint = (self.stage != Stage::None).then_some(self.at);
        stats.hints = self.given.into();
        stats.hints_used = self.used.into();
        stats.hints_wasted = self.wasted.into();
    }
}

/// Requests of owners.
impl Scheduler {
    /// Announces work of a context for the time `at`: a job, or work in its empty queue. A new hint
    /// replaces the last one; the time zero withdraws it.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`], [`Refusal::Gone`], [`Refusal::Busy`] (a job has not ended, and its
    /// queue is not empty), [`Refusal::Range`] (`at` is not within the next 10 s),
    /// [`Refusal::NoSlot`] (as for a start), [`Refusal::Rate`] (the last hint was given less than
    /// 100 us ago and no job has arrived since, or unused hints of the group have cost too much).
    pub fn hint<C: Card>(
        &mut self,
        card: &mut C,
        now: Time,
        id: ContextId,
        at: Time,
    ) -> Result<(), Refusal> {
        let ctx = self.present(id)?;
        let state = self.contexts[ctx].state;
        if state.is_live() && state != State::Empty {
            return Err(Refusal::Busy);
        }
        if at != Time::ZERO {
            self.check_hint(now, ctx, at)?;
        }
        let call = &mut Call::new(card, now);
        self.withdraw_hint(call, ctx);
        if at != Time::ZERO {
            let hint = &mut self.contexts[ctx].hint;
            (hint.given_at, hint.given) = (now, hint.given.saturating_add(1));
            self.put_hint(now, ctx, Some(at));
        }
        self.finish(call);
        Ok(())
    }

    fn check_hint(&mut self, now: Time, ctx: EntityIndex, at: Time) -> Result<(), Refusal> {
        let context = &self.contexts[ctx];
        let (given_at, is_stuck) = (context.hint.given_at, context.stuck);
        if at < now || at > now + AHEAD_MAX {
            return Err(Refusal::Range);
        }
        if is_stuck {
            return Err(Refusal::NoSlot);
        }
        self.check_slots(ctx)?;
        let is_soon = given_at != Time::ZERO && now < given_at + INTERVAL;
        match is_soon || self.has_wasted(now, ctx) {
            true => Err(Refusal::Rate),
            false => Ok(()),
        }
    }

    /// Returns whether unused hints of a context's group have cost too much.
    fn has_wasted(&mut self, now: Time, ctx: EntityIndex) -> bool {
        // A time so far ahead is a debt.
        let group = self.keyed_group(ctx);
        group.is_some_and(|group| *self.groups.wasted_until(group) > now + WASTE_MAX)
    }

    /// Notes that the work of a context has arrived. Returns the slot that was kept for it.
    #[inline]
    pub(in super::super) fn use_hint<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        ctx: EntityIndex,
    ) -> Option<SlotId> {
        let hint = &mut self.contexts[ctx].hint;
        hint.given_at = Time::ZERO;
        match hint.stage {
            Stage::None => None,
            _ => self.end_hint(call, ctx, true),
        }
    }

    /// Takes back the hint of a context, if there is one.
    #[inline]
    pub(in super::super) fn withdraw_hint<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        ctx: EntityIndex,
    ) {
        if self.contexts[ctx].hint.stage != Stage::None {
            let kept = self.end_hint(call, ctx, false);
            self.refill(call, kept);
        }
    }

    /// Takes the hint of a context out of its tree before a change; [`Scheduler::put_hint`] follows.
    #[inline]
    pub(in super::super) fn take_hint<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        ctx: EntityIndex,
    ) -> Option<Time> {
        let Hint { stage, at, .. } = self.contexts[ctx].hint;
        if stage == Stage::None {
            return None;
        }
        let kept = self.unlink_hint(call, ctx);
        self.refill(call, kept);
        Some(at)
    }

    /// Lets the hint of a context, if it has one, wait until it is due.
    #[inline]
    pub(in super::super) fn put_hint(&mut self, now: Time, ctx: EntityIndex, hint: Option<Time>) {
        if let Some(at) = hint {
            let save = self.leaving_time(self.contexts[ctx].class);
            self.contexts[ctx].hint.at = at;
            let due = at.before(save + save.parts(8) + LEAD_MARGIN);
            self.link_hint(ctx, Stage::Pending, due.max(now));
        }
    }
}

/// When hints are due.
impl Scheduler {
    /// Returns how long it takes at most to make a slot of a class vacant.
    fn leaving_time(&self, class: Class) -> Duration {
        let slots = slots_in(self.classes[class.at()].usable);
        let spans = slots.map(|id| self.slot(id).protocol.leaving_time());
        spans.max().unwrap_or_default()
    }

    /// Links a context, which is in no tree, by the time at which its hint needs attention: when it
    /// is due, or when it expires.
    #[cold]
    fn link_hint(&mut self, ctx: EntityIndex, stage: Stage, at: Time) {
        let class = self.contexts[ctx].class;
        self.contexts[ctx].hint.stage = stage;
        self.queue
            .link_timed(&mut self.hints.0[class.at()], ctx, at);
        self.dirty_classes |= class.bit();
    }

    /// Takes a context out of its tree, and off the slot that is kept for it, which is returned.
    #[cold]
    fn unlink_hint<C: Card>(&mut self, call: &mut Call<'_, C>, ctx: EntityIndex) -> Option<SlotId> {
        let class = self.contexts[ctx].class;
        self.queue.unlink_timed(&mut self.hints.0[class.at()], ctx);
        let Stage::Served(id) = self.contexts[ctx].hint.stage else {
            return None;
        };
        let _ = self.unbind(call, id);
        self.lose_kept(call.now, ctx);
        Some(id)
    }

    /// Returns when a hint of a class needs attention.
    #[inline]
    pub(in super::super) fn next_hint(&self, class: Class) -> Time {
        let first = self.hints.0[class.at()].first();
        first.map_or(Time::NEVER, |first| self.queue.time_of(first))
    }

    /// Handles hints of a class that need attention, until a slot has changed.
    pub(in super::super) fn hint_timer<C: Card>(&mut self, call: &mut Call<'_, C>, class: Class) {
        let grace = self.leaving_time(class).clamp(GRACE.0, GRACE.1);
        for _ in 0..HINTS_MAX {
            // One slot changes in each call.
            let first = self.hints.0[class.at()].first();
            let Some(ctx) = first.filter(|_| self.next_hint(class) <= call.now) else {
                return;
            };
            self.dirty_classes |= class.bit();
            let Hint { stage, at, .. } = self.contexts[ctx].hint;
            // It is served once.
            if stage == Stage::Pending && call.now < at + grace {
                self.unlink_hint(call, ctx);
                self.link_hint(ctx, Stage::Passed, at + grace);
                if self.serve_hint(call, ctx) {
                    return;
                }
            } else if let Some(id) = self.end_hint(call, ctx, false) {
                return self.rebind(call, id);
            }
        }
    }

    /// Keeps a slot for announced work: one that is free, or one that best-effort work leaves.
    /// Returns whether a slot has changed.
    fn serve_hint<C: Card>(&mut self, call: &mut Call<'_, C>, ctx: EntityIndex) -> bool {
        if self.frozen || self.has_wasted(call.now, ctx) || self.is_spent(call.now, ctx) {
            return false;
        }
        let Some((offer, id)) = self.best_offer(call, ctx) else {
            return false;
        };
        let next = self.slot(id).next().map(|next| next.ctx);
        let first = self.first_for(call, id, id.bit().into());
        let losers = [first, next, self.stoppable(call, id)];
        let mut losers = losers.into_iter().flatten();
        if losers.any(|loser| !self.may_cost(ctx, loser)) {
            self.rebind(call, id);
        } else if let Some(displaced) = self.take_offer(call, ctx, offer, id, Why::Hint) {
            self.arrived(call, displaced);
        }
        true
    }

    /// Returns the context that runs on a slot and is not leaving the slot yet.
    fn stoppable<C: Card>(&self, call: &Call<'_, C>, id: SlotId) -> Option<EntityIndex> {
        let run = self.slot(id).protocol.run();
        let run = run.filter(|run| run.stop.is_none_or(|stop| stop.at > call.now));
        run.map(|run| EntityIndex::of(run.ctx))
    }

    /// Returns whether a hint may keep a context that runs or waits off a slot.
    fn may_cost(&self, ctx: EntityIndex, loser: EntityIndex) -> bool {
        self.queue.rank(loser) == Rank::BestEffort && self.queue.outranks(ctx, loser)
    }

    /// Returns whether the slot that is kept for a context goes to the job of `at`.
    #[cold]
    pub(in super::super) fn gives_up_kept(&self, ctx: EntityIndex, at: EntityIndex) -> bool {
        self.contexts[at].state == State::Queued && !self.may_cost(ctx, at)
    }
}

/// Slots that are kept.
impl Scheduler {
    /// Notes that a slot is kept for a context, which wants a slot from now on.
    pub(in super::super) fn note_kept<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        id: SlotId,
        ctx: EntityIndex,
    ) {
        self.wake(call.now, ctx);
        // The job was told to stop in this call.
        let protocol = &self.slot(id).protocol;
        let stops = protocol.stopping().is_some_and(|stop| stop.at >= call.now);
        let restore = protocol.restore_time();
        let hint = &mut self.contexts[ctx].hint;
        (hint.stage, hint.costs_since) = (Stage::Served(id), Time::NEVER);
        if stops {
            // The save, and what the job loses by it.
            hint.costs_since = call.now;
            hint.cost += restore;
        }
        call.card.trace(id, self.contexts.id(ctx), Trace::Reserved);
    }

    /// Leaves a slot vacant that is kept for a context.
    pub(in super::super) fn keep_vacant<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        id: SlotId,
        ctx: EntityIndex,
    ) {
        let hint = &mut self.contexts[ctx].hint;
        hint.kept_since.get_or_insert(call.now);
        hint.costs_since = hint.costs_since.min(call.now);
        self.slots[id.index()].protocol.leave_vacant(call);
    }

    /// Settles the time for which a slot was kept for a context that is its successor no more.
    pub(in super::super) fn lose_kept(&mut self, now: Time, ctx: EntityIndex) {
        let class = self.contexts[ctx].class;
        let others_wait = !self.classes[class.at()].waiting.is_empty();
        let hint = &mut self.contexts[ctx].hint;
        hint.stage = Stage::Passed;
        let since = hint.kept_since.take();
        let kept = since.map_or(Duration::ZERO, |since| now.since(since));
        if others_wait {
            hint.cost += now.since(hint.costs_since);
        }
        self.queue.charge(ctx, kept);
        self.spend(now, ctx, kept);
        self.queue.sleep(ctx);
    }

    /// Ends the hint of a context. Returns the slot that was kept for it.
    #[cold]
    fn end_hint<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        ctx: EntityIndex,
        is_used: bool,
    ) -> Option<SlotId> {
        let kept = self.unlink_hint(call, ctx);
        let hint = &mut self.contexts[ctx].hint;
        hint.stage = Stage::None;
        let cost = core::mem::take(&mut hint.cost);
        if is_used {
            hint.used = hint.used.saturating_add(1);
        } else if cost != Duration::ZERO || call.now > hint.at {
            hint.wasted = hint.wasted.saturating_add(1);
        }
        if let Some(group) = self.keyed_group(ctx).filter(|_| !is_used) {
            let until = self.groups.wasted_until(group);
            *until = (*until).max(call.now) + cost.times(WASTE_TIMES);
        }
        kept
    }

    /// Gives a slot that was kept, if there is one, to the context whose turn it is.
    fn refill<C: Card>(&mut self, call: &mut Call<'_, C>, kept: Option<SlotId>) {
        if let Some(id) = kept {
            self.rebind(call, id);
        }
    }

    /// Returns the context for whose hint a slot is kept, or will be once it is vacant.
    pub fn reserved_for(&self, slot: SlotId) -> Option<ContextId> {
        let next = self.find_record(slot)?.next()?;
        (next.why == Why::Hint).then(|| self.contexts.id(next.ctx))
    }
}
