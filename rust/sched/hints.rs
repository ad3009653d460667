// SPDX-License-Identifier: GPL-2.0

//! "I shall need a slot at this time": a slot is made vacant in time for work that has not come yet, as `GPreempt` does.
//!
//! A hint is *due* a save before its time. Then, if the work would preempt best-effort work at once were it there, a slot is
//! taken from that and kept vacant until the work comes or the hint expires. It takes nothing from anybody else: not from a
//! guarded slice, a reservation, or latency-critical work, which may also take the slot that is kept.
//!
//! What a wrong hint wastes (the slot's idle time while somebody waited, the save and the restore of the one that made way)
//! is charged to its owner. The hints of its group are then ignored for [`GROUP_DEAF`] times as long, those of the whole class for
//! [`CLASS_DEAF`] times: so one group wastes at most a hundredth of the time, and all together a twentieth.

use core::ops::DerefMut;

use super::machine::{Machine, Out};
use super::queue::Queue;
use super::slot::{slots_in, Slot, State};
use super::tree::{Node, Place, Tree};
use super::{Action, ContextId, Duration, Entry, PauseCause, Refusal, SlotId, Time};

/// How far ahead a hint may be.
const AHEAD_MAX: Duration = Duration::from_ms(10_000);
/// The shortest time between two hints of a context that starts no job in between.
const INTERVAL: Duration = Duration::from_us(100);
/// The slot is to be vacant so much before the time of the hint; an eighth of a save is added.
const LEAD_MARGIN: Duration = Duration::from_us(20);
/// A hint expires a save after its time, but not sooner than this...
const GRACE_MIN: Duration = Duration::from_us(50);
/// ... and not later than this.
const GRACE_MAX: Duration = Duration::from_ms(1);
/// For so many times what was wasted the hints of the group are ignored...
const GROUP_DEAF: u64 = 100;
/// ... and those of the class.
const CLASS_DEAF: u64 = 20;
/// So many hints that have expired are dropped in one decision; the timer brings the next ones.
const EXPIRE_MAX: usize = 4;
/// So many of those that are due are looked at in one decision.
const LOOKS_MAX: usize = 8;

/// The hints of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hints {
    /// By their times: of work that is more than best-effort...
    urgent: Tree,
    /// ... and of the other work, so that however many these are, those are found.
    common: Tree,
    /// They are ignored until then.
    deaf: Time,
}

impl Hints {
    pub(super) const NONE: Self = Self {
        urgent: Tree::EMPTY,
        common: Tree::EMPTY,
        deaf: Time::ZERO,
    };

    fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.common.is_empty()
    }

    fn tree_mut(&mut self, list: List) -> &mut Tree {
        match list {
            List::Urgent => &mut self.urgent,
            List::Common => &mut self.common,
        }
    }
}

/// Which tree of its class the hint of a context stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    Urgent,
    Common,
}

/// What became of the hints of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) given: u32,
    pub(super) used: u32,
    pub(super) wasted: u32,
    pub(super) ignored: u32,
}

impl Tally {
    pub(super) const NONE: Self = Self {
        given: 0,
        used: 0,
        wasted: 0,
        ignored: 0,
    };
}

/// A slot is kept vacant for a hint, or will be once its job is off it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    ctx: ContextId,
    /// Somebody else took it meanwhile; what it cost until then is not forgotten.
    taken: bool,
    /// The job on it was told to pause for this.
    made: bool,
    /// Since when it idles while somebody waits who would have it.
    since: Option<Time>,
    /// How long it did so before.
    idle: Duration,
    /// What the save took that was made for this.
    save: Duration,
}

/// How a hint ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The work came.
    Used,
    /// The work did not come in time.
    Expired,
    /// Another hint takes its place, or none.
    Withdrawn,
}

impl Entry {
    /// When it will need a slot; meaningful while a hint stands.
    fn hinted(&self) -> Time {
        Time::from_ns(self.node.place().key)
    }

    /// When it gave its last hint, unless it has started a job since. It stands where the turn does in a queue.
    fn hinted_at(&self) -> Option<Time> {
        let at = self.node.place().turn;
        (at != 0).then(|| Time::from_ns(at))
    }
}

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// Hint: `ctx` will need a slot at `at`; zero takes its hint back. [`Refusal::NoSlot`] as for Start.
    pub(super) fn hint(
        &mut self,
        now: Time,
        ctx: ContextId,
        at: Time,
        out: &mut Out<'_>,
    ) -> Result<(), Refusal> {
        let entry = self.slab.owned(ctx)?;
        let queue = entry.queue;
        if self.gone {
            return Err(Refusal::Gone);
        }
        if !entry.state.wants_nothing() {
            return Err(Refusal::Busy);
        }
        if at != Time::ZERO {
            self.check_hint(now, entry, at)?;
        }
        self.end_hint(now, ctx, Ending::Withdrawn);
        if at != Time::ZERO {
            if let Some(entry) = self.slab.get_mut(ctx) {
                entry.hints.given = entry.hints.given.saturating_add(1);
            }
            self.link_hint(ctx, at, now);
        }
        self.press(now, queue, out);
        Ok(())
    }

    fn check_hint(&self, now: Time, entry: &Entry, at: Time) -> Result<(), Refusal> {
        if at < now || at > now + AHEAD_MAX {
            return Err(Refusal::Range);
        }
        if entry.stuck {
            return Err(Refusal::NoSlot);
        }
        self.check_mask(entry.queue, entry.params.mask)?;
        match entry.hinted_at() {
            Some(last) if now < last + INTERVAL => Err(Refusal::Rate),
            _ => Ok(()),
        }
    }

    /// The context for whose hint the slot is kept vacant, or will be once its job is off it.
    pub fn kept_for(&self, slot: SlotId) -> Option<ContextId> {
        let kept = self.slot(slot)?.kept?;
        (!kept.taken).then_some(kept.ctx)
    }

    /// The context wants a slot now, as it said or before.
    pub(super) fn use_hint(&mut self, now: Time, ctx: ContextId) {
        self.end_hint(now, ctx, Ending::Used);
    }

    /// The owner is gone, or the hint counts no more.
    pub(super) fn withdraw_hint(&mut self, now: Time, ctx: ContextId) {
        self.end_hint(now, ctx, Ending::Withdrawn);
    }

    /// Something changes that the place of a context's hint depends on; [`Self::put_hint`] puts it back.
    pub(super) fn take_hint(&mut self, ctx: ContextId) -> Option<(Time, Time)> {
        let entry = self.slab.get(ctx)?;
        let taken = (entry.hinted(), entry.hinted_at()?);
        entry.hint?;
        self.unlink_hint(ctx);
        Some(taken)
    }

    pub(super) fn put_hint(&mut self, ctx: ContextId, taken: Option<(Time, Time)>) {
        if let Some((at, given)) = taken {
            self.link_hint(ctx, at, given);
        }
    }

    fn link_hint(&mut self, ctx: ContextId, at: Time, given: Time) {
        let Some(entry) = self.slab.get_mut(ctx) else {
            return;
        };
        let list = if self.policy.is_urgent(entry) {
            List::Urgent
        } else {
            List::Common
        };
        entry.hint = Some(list);
        let place = Place {
            rank: 0,
            key: at.as_ns(),
            turn: given.as_ns(),
        };
        if let Some(queue) = self.queues.get_mut(usize::from(entry.queue)) {
            let tree = queue.hints.tree_mut(list);
            tree.insert(&mut self.slab, ctx, place);
        }
    }

    fn unlink_hint(&mut self, ctx: ContextId) {
        let Some(entry) = self.slab.get_mut(ctx) else {
            return;
        };
        let (index, given) = (entry.queue, entry.node.place().turn);
        let Some(list) = entry.hint.take() else {
            return;
        };
        if let Some(queue) = self.queues.get_mut(usize::from(index)) {
            queue.hints.tree_mut(list).remove(&mut self.slab, ctx);
        }
        if let Some(entry) = self.slab.get_mut(ctx) {
            entry.node = Node::unlinked(given);
        }
    }

    /// Ends the hint of a context, if one stands, and charges what it cost.
    fn end_hint(&mut self, now: Time, ctx: ContextId, ending: Ending) {
        let Some(entry) = self.slab.get(ctx).filter(|entry| entry.hint.is_some()) else {
            return;
        };
        let heard = self.is_heard(now, entry);
        let (index, until) = (entry.queue, entry.hinted() + self.hint_grace(entry.queue));
        let mut waste = Duration::ZERO;
        let slots = self.class_slots(index);
        for id in slots_in(slots) {
            let kept = self.slot(id).and_then(|slot| slot.kept);
            if kept.is_some_and(|kept| kept.ctx == ctx) {
                waste += self.let_go(now.min(until), id, ending == Ending::Used);
            }
        }
        self.unlink_hint(ctx);
        let Some(entry) = self.slab.get_mut(ctx) else {
            return;
        };
        let hints = &mut entry.hints;
        let free = waste == Duration::ZERO;
        match ending {
            Ending::Used => hints.used = hints.used.saturating_add(1),
            Ending::Withdrawn if free => {}
            Ending::Expired if free && !heard => hints.ignored = hints.ignored.saturating_add(1),
            Ending::Expired | Ending::Withdrawn => hints.wasted = hints.wasted.saturating_add(1),
        }
        if ending != Ending::Used {
            self.deafen(now, ctx, waste);
        }
    }

    /// The slot is not kept any more. What it idled is charged to the one that it was kept for, and, if that has not
    /// `used` it, also the rest of what was spent on it. The result is what it cost.
    fn let_go(&mut self, now: Time, id: SlotId, used: bool) -> Duration {
        let Some(slot) = self.slot_mut(id) else {
            return Duration::ZERO;
        };
        let Some(kept) = slot.kept.take() else {
            return Duration::ZERO;
        };
        let save = match slot.state {
            State::Pausing(_, pause) if kept.made => slot.save().max(now.since(pause.since)),
            _ => kept.save,
        };
        let restore = match save {
            Duration::ZERO => save,
            _ => slot.restore(),
        };
        let idle = kept.idle_until(now);
        // It wanted the slot then, and so it is charged from where all stand that do.
        self.wake_clock(now, kept.ctx);
        self.pay(kept.ctx, idle);
        if !used {
            self.pay(kept.ctx, restore);
            // The save itself is in its virtual time already: it was made to make way.
            if let Some(entry) = self.slab.get_mut(kept.ctx) {
                entry.spend(save);
            }
            self.spend_of_group(kept.ctx, save);
        }
        idle + save + restore
    }

    /// The slot is of no use for the hint that it was kept for.
    fn give_up(&mut self, now: Time, id: SlotId) {
        if let Some(kept) = self.slot(id).and_then(|slot| slot.kept) {
            let waste = self.let_go(now, id, false);
            self.deafen(now, kept.ctx, waste);
        }
    }

    /// Somebody else takes a slot that is kept. The save was of use to that one.
    pub(super) fn take_kept(&mut self, now: Time, id: SlotId) {
        if let Some(kept) = self.slot_mut(id).and_then(|slot| slot.kept.as_mut()) {
            *kept = Kept {
                taken: true,
                idle: kept.idle_until(now),
                ..Kept::of(kept.ctx)
            };
        }
    }

    /// After `waste` the hints of the group and of all others are ignored for a while.
    fn deafen(&mut self, now: Time, ctx: ContextId, waste: Duration) {
        if waste == Duration::ZERO {
            return;
        }
        let Some(record) = self.slab.record_of_mut(ctx) else {
            return;
        };
        record.since = record.since.max(now) + waste.times(GROUP_DEAF);
        let index = record.queue;
        if let Some(queue) = self.queue_mut(index) {
            queue.hints.deaf = queue.hints.deaf.max(now) + waste.times(CLASS_DEAF);
        }
    }

    /// How long before its time a hint is due: what it takes to make a slot of the class vacant.
    fn hint_lead(&self, index: u8) -> Duration {
        let longest = self.longest(index, |slot| {
            slot.save() + slot.settle().unwrap_or_default()
        });
        longest + longest.parts(8) + LEAD_MARGIN
    }

    /// How long after its time a hint expires.
    fn hint_grace(&self, index: u8) -> Duration {
        self.longest(index, Slot::save).clamp(GRACE_MIN, GRACE_MAX)
    }

    /// The longest of what something takes on the slots of the class.
    fn longest(&self, index: u8, what: impl Fn(&Slot) -> Duration) -> Duration {
        let slots = slots_in(self.usable_slots(index)).filter_map(|id| self.slot(id));
        slots.map(what).max().unwrap_or_default()
    }

    /// Does a hint of the class stand, or is a slot of it kept for one that did?
    pub(super) fn is_hinted(&self, index: u8) -> bool {
        let stands = self
            .queue(index)
            .is_some_and(|queue| !queue.hints.is_empty());
        let kept = |id| self.slot(id).is_some_and(|slot| slot.kept.is_some());
        stands || slots_in(self.class_slots(index)).any(kept)
    }

    /// Drops hints whose time is over, and lets go of slots that can be of no use to the one they are kept for. O(log n).
    pub(super) fn expire_hints(&mut self, now: Time, index: u8) {
        let grace = self.hint_grace(index);
        for _ in 0..EXPIRE_MAX {
            match self.first_hint(index) {
                Some((ctx, at)) if at + grace <= now => self.end_hint(now, ctx, Ending::Expired),
                _ => break,
            }
        }
        let usable = self.usable_slots(index);
        for id in slots_in(self.class_slots(index)) {
            let keeper = self.kept_for(id).and_then(|ctx| self.slab.get(ctx));
            if keeper.is_some_and(|entry| entry.allowed & usable & id.bit() == 0) {
                self.give_up(now, id);
            }
        }
    }

    /// The hint of the class that is next by its time, due or not.
    fn first_hint(&self, index: u8) -> Option<(ContextId, Time)> {
        self.hint_from(index, Time::ZERO)
    }

    /// The first hint whose time is not before `at`.
    fn hint_from(&self, index: u8, at: Time) -> Option<(ContextId, Time)> {
        let hints = &self.queue(index)?.hints;
        let trees = [hints.urgent, hints.common];
        let firsts = trees.map(|tree| tree.first_from(&self.slab, at.as_ns()));
        let firsts = firsts.into_iter().flatten();
        let timed = firsts.filter_map(|ctx| Some((ctx, self.slab.get(ctx)?.hinted())));
        timed.min_by_key(|&(_, at)| at)
    }

    /// When something is to be done about hints of the class, after those that are due at `now` were seen to.
    pub(super) fn next_hint(&self, now: Time, index: u8) -> Option<Time> {
        let (_, first) = self.first_hint(index)?;
        let lead = self.hint_lead(index);
        let due = self.hint_from(index, now + lead + Duration::from_ns(1));
        let due = due.map(|(_, at)| Time::from_ns(at.as_ns().saturating_sub(lead.as_ns())));
        let over = first + self.hint_grace(index);
        due.into_iter().chain([over]).min()
    }

    /// Is a slot kept for the context?
    fn is_served(&self, index: u8, ctx: ContextId) -> bool {
        let slots = self.class_slots(index);
        slots_in(slots).any(|id| self.kept_for(id) == Some(ctx))
    }

    /// Are hints of the context listened to?
    fn is_heard(&self, now: Time, entry: &Entry) -> bool {
        let group = self.slab.at(entry.group).map(|record| record.since);
        let class = self.queue(entry.queue).map(|queue| queue.hints.deaf);
        group.max(class).is_some_and(|deaf| deaf <= now)
    }

    /// For whom a slot that is vacant has to be kept, and not be given to `first`, who waits for it.
    pub(super) fn keeper(
        &self,
        now: Time,
        id: SlotId,
        first: Option<ContextId>,
    ) -> Option<ContextId> {
        let slot = self.slot(id)?;
        let first = first.and_then(|ctx| self.slab.get(ctx));
        let yields = |ctx: &ContextId| match (first, self.slab.get(*ctx)) {
            (Some(first), Some(entry)) => self.policy.yields_to(first, entry),
            (None, entry) => entry.is_some(),
            (_, None) => false,
        };
        if let Some(ctx) = self.kept_for(id) {
            return Some(ctx).filter(yields);
        }
        if self.queue(slot.queue)?.hints.is_empty() {
            return None;
        }
        // One that would have to leave before it is restored is not begun.
        let more = match first {
            Some(first) if first.saved => slot.restore(),
            _ => Duration::ZERO,
        };
        let by = now + self.hint_lead(slot.queue) + more;
        let due = self.due_hints(slot.queue, id.bit(), by);
        due.into_iter()
            .flatten()
            .find(|ctx| self.may_serve(now, *ctx) && yields(ctx))
    }

    /// The hints for the slots `bits` with times until `by`, [`LOOKS_MAX`] of each list at most.
    fn due_hints(&self, index: u8, bits: u8, by: Time) -> [Option<ContextId>; 2 * LOOKS_MAX] {
        let mut due = [None; 2 * LOOKS_MAX];
        let Some(hints) = self.queue(index).map(|queue| &queue.hints) else {
            return due;
        };
        let mut places = due.iter_mut();
        for tree in [hints.urgent, hints.common] {
            let mut at = tree.first(&self.slab, bits);
            for _ in 0..LOOKS_MAX {
                let Some(ctx) = at.filter(|ctx| self.is_due(*ctx, by)) else {
                    break;
                };
                if let Some(place) = places.next() {
                    *place = Some(ctx);
                }
                at = tree.after(&self.slab, ctx, bits);
            }
        }
        due
    }

    /// Is the time of the context's hint not after `by`?
    fn is_due(&self, ctx: ContextId, by: Time) -> bool {
        self.slab.get(ctx).is_some_and(|entry| entry.hinted() <= by)
    }

    /// Is it of use to make room for the context, and was none made yet?
    fn may_serve(&self, now: Time, ctx: ContextId) -> bool {
        self.slab.get(ctx).is_some_and(|entry| {
            self.is_heard(now, entry)
                && !self.is_spent(now, entry)
                && !self.is_served(entry.queue, ctx)
        })
    }

    /// Keeps a slot for the context; `made`: its job was told to pause for this.
    pub(super) fn keep(
        &mut self,
        now: Time,
        id: SlotId,
        ctx: ContextId,
        made: bool,
        out: &mut Out<'_>,
    ) {
        if self.kept_for(id) != Some(ctx) {
            out(Action::Keep { slot: id, ctx });
        }
        match self.slot(id).and_then(|slot| slot.kept) {
            Some(kept) if kept.ctx == ctx => {}
            Some(_) => self.give_up(now, id),
            None => {}
        }
        if let Some(slot) = self.slot_mut(id) {
            let kept = slot.kept.get_or_insert(Kept::of(ctx));
            kept.taken = false;
            kept.made |= made;
        }
    }

    /// Makes slots vacant for the hints that are due. O(log n).
    pub(super) fn serve_hints(&mut self, now: Time, index: u8, out: &mut Out<'_>) {
        let usable = self.usable_slots(index);
        let by = now + self.hint_lead(index);
        for ctx in self.due_hints(index, usable, by).into_iter().flatten() {
            if self.may_serve(now, ctx) {
                self.serve(now, index, ctx, out);
            } else {
                self.ignore(now, index, ctx);
            }
        }
    }

    /// A hint that is due and not listened to is dropped.
    fn ignore(&mut self, now: Time, index: u8, ctx: ContextId) {
        let heard = |entry: &Entry| self.is_heard(now, entry);
        if self.is_served(index, ctx) || self.slab.get(ctx).is_none_or(heard) {
            return;
        }
        self.unlink_hint(ctx);
        if let Some(entry) = self.slab.get_mut(ctx) {
            entry.hints.ignored = entry.hints.ignored.saturating_add(1);
        }
    }

    /// Finds a slot for work that is to come: one that will be vacant anyway, or one that best-effort work leaves.
    fn serve(&mut self, now: Time, index: u8, ctx: ContextId, out: &mut Out<'_>) {
        if let Some(id) = self.leaving_for(index, ctx) {
            self.keep(now, id, ctx, false, out);
        } else if let Some(id) = self.yielding_to(index, ctx) {
            self.keep(now, id, ctx, true, out);
            let cause = PauseCause::Hint { waiter: ctx };
            self.pause_for(now, id, Some(ctx), cause, out);
        }
    }

    /// A slot that is about to be vacant and that nobody waits for who goes before `ctx`.
    fn leaving_for(&self, index: u8, ctx: ContextId) -> Option<SlotId> {
        let entry = self.slab.get(ctx)?;
        let mut takers = self.takers(index);
        let free = takers.find(|&(id, taker)| {
            let taker = taker.and_then(|taker| self.slab.get(taker));
            let yields = taker.is_none_or(|taker| self.policy.yields_to(taker, entry));
            let kept = self.kept_for(id).is_some();
            entry.allowed & id.bit() != 0 && !kept && yields
        });
        free.map(|(id, _)| id)
    }

    /// The slot of the job that makes way for the work of `ctx`: of several the one that the policy puts last.
    fn yielding_to(&self, index: u8, ctx: ContextId) -> Option<SlotId> {
        let entry = self.slab.get(ctx)?;
        let slots = self.queue(index)?.usable & entry.allowed;
        let yielding = slots_in(slots).filter_map(|id| match self.slot(id)?.state {
            State::Running(run) if !run.guarded => {
                let runs = self.slab.get(run.ctx)?;
                let yields = self.policy.yields_to(runs, entry);
                yields.then(|| (self.policy.place(runs), id))
            }
            _ => None,
        });
        yielding.max_by_key(|&(place, _)| place).map(|(_, id)| id)
    }

    /// Notes since when slots that are kept idle although somebody waits for them.
    pub(super) fn meter_kept(&mut self, now: Time, index: u8) {
        for id in slots_in(self.class_slots(index)) {
            let Some(slot) = self.slot(id).filter(|slot| slot.kept.is_some()) else {
                continue;
            };
            let first = |queue: &Queue| queue.first(&self.slab, id);
            let waits = self.queue(index).and_then(first).is_some();
            let idles = waits && slot.state == State::Vacant;
            if let Some(kept) = self.slot_mut(id).and_then(|slot| slot.kept.as_mut()) {
                kept.idle = kept.idle_until(now);
                kept.since = idles.then_some(now);
            }
        }
    }
}

impl Kept {
    const fn of(ctx: ContextId) -> Self {
        Self {
            ctx,
            taken: false,
            made: false,
            since: None,
            idle: Duration::ZERO,
            save: Duration::ZERO,
        }
    }

    fn idle_until(&self, now: Time) -> Duration {
        self.idle + self.since.map_or(Duration::ZERO, |since| now.since(since))
    }
}

impl Slot {
    /// The job on the slot was saved, in `span`, or in nobody knows how long because it went on to a boundary.
    pub(super) fn saved_for_hint(&mut self, span: Option<Duration>) {
        let save = span.unwrap_or(self.save());
        if let Some(kept) = &mut self.kept {
            if kept.made {
                kept.save = save.max(Duration::from_ns(1));
            }
        }
    }
}
