// SPDX-License-Identifier: GPL-2.0

//! Who runs and for how long: filling slots, ending slices, arming timers.

use core::{cmp::Reverse, ops::DerefMut};

use super::doorbell::Parting;
use super::limit::{THROTTLE_MAX, THROTTLE_NEXT};
use super::machine::{Machine, Out};
use super::policy::Turn;
use super::slot::{slots_in, Slot, State, MAX_SLOTS};
use super::{
    Action, ContextId, Duration, Entry, JobState, Params, PauseCause, Profile, SlotId, Time,
};

/// An interrupt can be lost, so a job that runs or pauses is looked at this often.
pub(super) const LOOK: Duration = Duration::from_ms(10);
/// Base: the first look at a status that is polled; later ones are twice as far apart each time.
const POLL_MIN: Duration = Duration::from_us(50);
/// Base: no wider apart than this, or than a quarter of the slice if that is less...
const POLL_MAX: Duration = Duration::from_ms(1);
/// ... but never less than this.
const POLL_MAX_FLOOR: Duration = Duration::from_us(100);
/// A PAUSE is not written again sooner than this: an answer takes an interrupt, and saves take time.
const AGAIN_MIN: Duration = Duration::from_us(250);
/// And not later than this.
const AGAIN_MAX: Duration = Duration::from_ms(5);
/// A restore is over for certain so much later than it should be: the writes of the START take time. A sixteenth of it is added.
const RESTORE_MARGIN: Duration = Duration::from_us(10);

/// A slice is at least as long as so many saves and restores...
const SLICE_SWITCHES: u64 = 2;
/// ... but is not made longer than this by it.
const SLICE_FLOOR_MAX: Duration = Duration::from_ms(10);

/// A job on a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) ctx: ContextId,
    /// When START was written, or what is charged begins (`load.rs`).
    pub(super) started: Time,
    /// Added to the slice: the cost of the restore, and of loading registers, so that a slice always makes progress.
    pub(super) extra: Duration,
    /// When to look at the status if nothing happens.
    pub(super) look: Time,
    /// Base: the time between two looks.
    pub(super) period: Duration,
    /// Base: RUNNING was read, so that IDLE does not mean "not yet" any more.
    pub(super) seen: bool,
    /// Fermata: a status of before the START was read; a read that surely follows it is on its way.
    pub(super) doubt: bool,
    /// It was put there by the starvation guard: its slice is not cut short.
    pub(super) guarded: bool,
}

/// The end of a job's time on its slot.
#[derive(Clone, Copy, Debug)]
struct End {
    at: Time,
    /// Where the policy would put it if it waited.
    place: (u8, u64),
    payer: Option<ContextId>,
    cause: PauseCause,
}

impl End {
    fn is_before(&self, other: &Self) -> bool {
        (self.at, Reverse(self.place)) < (other.at, Reverse(other.place))
    }
}

/// A job that was told to pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    /// When PAUSE was written first.
    pub(super) since: Time,
    /// When it is written again.
    pub(super) again: Time,
    /// It was written while the job was probably restored, and then it was dropped: that it has to be written again
    /// is no sign of anything wrong.
    pub(super) restores: bool,
    /// The time between the last two.
    pub(super) wait: Duration,
    /// How often it was written again.
    pub(super) tries: u32,
    /// A save would be over by now, as they go here.
    pub(super) late: bool,
    /// When the job has had its time.
    pub(super) give_up: Time,
    /// It has had its time; the status is read a last time, in case an interrupt was lost.
    pub(super) last: bool,
    /// For whom it makes way before the end of its slice: the save is charged to that one.
    pub(super) payer: Option<ContextId>,
    /// It stops at a boundary: the time until PAUSED is not that of a save, but its own.
    pub(super) boundary: bool,
    /// Until when the one that goes first and waits for the slot waits for a boundary; `None` if there is none.
    pub(super) bound: Option<Time>,
    /// That was passed.
    pub(super) overrun: bool,
}

/// The earlier of two times to go, if there is any; the first if they are the same.
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

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// Puts the slots of a class to work after something changed: fills one that is vacant, ends the slices that are
    /// used up if somebody waits, and arms the timers, at once for what else is to be filled. A job that is started can have
    /// all registers of the slot to be written, so one decision starts no more than one. O(log n) in the number of contexts;
    /// a card has at most eight slots.
    pub(super) fn press(&mut self, now: Time, queue: u8, out: &mut Out<'_>) {
        self.started = false;
        self.press_class(now, queue, out);
    }

    fn press_class(&mut self, now: Time, queue: u8, out: &mut Out<'_>) {
        if self.gone {
            return;
        }
        if self.frozen {
            self.press_frozen(now, queue, out);
            return;
        }
        if let Some(queue) = self.queue_mut(queue) {
            queue.throttles = THROTTLE_MAX;
        }
        self.unpark(now, queue);
        // Nothing below makes a hint.
        let hinted = self.is_hinted(queue);
        if hinted {
            self.expire_hints(now, queue);
        }
        let slots = self.class_slots(queue);
        for id in slots_in(slots) {
            self.fill(now, id, out);
        }
        self.end_slices(now, queue, out);
        if hinted {
            self.serve_hints(now, queue, out);
            self.meter_kept(now, queue);
        }
        self.bound_boundaries(now, slots, out);
        for id in slots_in(slots) {
            self.arm(now, id, out);
        }
    }

    /// Presses every class.
    pub(super) fn press_all(&mut self, now: Time, out: &mut Out<'_>) {
        self.started = false;
        for index in 0..MAX_SLOTS as u8 {
            if self.queue(index).is_some_and(|queue| queue.slots != 0) {
                self.press_class(now, index, out);
            }
        }
    }

    /// Ends the slices of a class that are used up, the oldest first, as many as are needed.
    pub(super) fn end_slices(&mut self, now: Time, queue: u8, out: &mut Out<'_>) {
        self.throttle(now, queue);
        let slots = self.class_slots(queue);
        while let Some((id, payer, cause)) = self.most_overdue(now, slots) {
            self.pause_for(now, id, payer, cause, out);
        }
    }

    /// Gives a vacant slot to the next who waits, or closes its window if nobody does.
    fn fill(&mut self, now: Time, id: SlotId, out: &mut Out<'_>) {
        let Some(index) = self
            .slot(id)
            .filter(|slot| matches!(slot.state, State::Vacant))
            .map(|slot| slot.queue)
        else {
            return;
        };
        if let Some(slot) = self.slot_mut(id) {
            slot.unfilled = false;
        }
        self.throttle(now, index);
        let first = self
            .queue(index)
            .filter(|queue| queue.throttles != 0)
            .and_then(|queue| queue.first(&self.slab, id));
        let keeper = self.keeper(now, id, first);
        // Who would be next if all that is announced were there.
        let next = keeper.or(first);
        match (next, self.starving(id).filter(|_| first.is_some())) {
            (Some(next), Some((ctx, at)))
                if ctx != next && at <= now && !self.is_reserved(next) =>
            {
                self.start_one(now, id, ctx, true, out);
            }
            _ => match (keeper, first) {
                (None, Some(ctx)) => self.start_one(now, id, ctx, false, out),
                (None, None) => self.unload(id, out),
                (Some(ctx), _) => {
                    self.keep(now, id, ctx, false, out);
                    self.unload(id, out);
                }
            },
        }
    }

    /// Starts the job of `ctx`, or leaves that to the next decision; `guarded`: the starvation guard gives the slice.
    fn start_one(
        &mut self,
        now: Time,
        id: SlotId,
        ctx: ContextId,
        guarded: bool,
        out: &mut Out<'_>,
    ) {
        let leave = core::mem::replace(&mut self.started, true);
        let Some(slot) = self.slot_mut(id) else {
            return;
        };
        slot.unfilled = leave;
        if leave {
            return;
        }
        let index = slot.queue;
        if let Some(queue) = self.queue_mut(index).filter(|_| guarded) {
            queue.guarded = now;
        }
        self.start(now, id, ctx, guarded, out);
    }

    pub(super) fn unload(&mut self, id: SlotId, out: &mut Out<'_>) {
        if let Some(slot) = self.slot_mut(id) {
            if slot.loaded {
                slot.loaded = false;
                out(Action::Unload { slot: id });
            }
        }
    }

    /// Starts or resumes the job of `ctx`, which is queued, on a vacant slot.
    fn start(&mut self, now: Time, id: SlotId, ctx: ContextId, guarded: bool, out: &mut Out<'_>) {
        self.take_kept(now, id);
        self.dequeue(now, ctx, JobState::Running);
        self.enter_lane(ctx);
        self.weigh(ctx);
        let Some(entry) = self.slab.get_mut(ctx) else {
            return;
        };
        // The snapshot is used up: what the job writes from now on is newer than it.
        let resume = core::mem::replace(&mut entry.saved, false);
        // The engine looks at its queue when it begins.
        entry.parting = Parting::Free;
        entry.slot = Some(id);
        entry.since = now;
        entry.charged = false;
        entry.slices += 1;
        entry.resumes += u64::from(resume);
        // A base slot was reset when the last job left it.
        let resets = |slot: &Slot| slot.config.reset_before_resume && slot.settle().is_none();
        if resume && self.slot(id).is_some_and(resets) {
            out(Action::Reset {
                slot: id,
                hold: true,
            });
            out(Action::Reset {
                slot: id,
                hold: false,
            });
        }
        out(Action::Load { slot: id, ctx });
        out(Action::Start {
            slot: id,
            ctx,
            resume,
            starved: guarded,
        });
        let Some(slot) = self.slot_mut(id) else {
            return;
        };
        slot.loaded = true;
        slot.count = slot.count.wrapping_add(1);
        slot.stats.starts += 1;
        slot.stats.resumes += u64::from(resume);
        let extra = if resume {
            slot.restore()
        } else {
            Duration::ZERO
        };
        let period = match slot.config.profile {
            Profile::Base { .. } => POLL_MIN,
            Profile::Fermata => LOOK,
        };
        slot.enter(State::Running(Run {
            ctx,
            started: now,
            extra,
            look: now + period,
            period,
            seen: false,
            doubt: false,
            guarded,
        }));
    }

    /// Writes PAUSE if the slot runs a job.
    pub(super) fn pause(&mut self, now: Time, id: SlotId, cause: PauseCause, out: &mut Out<'_>) {
        self.pause_for(now, id, None, cause, out);
    }

    /// The same, and charges the save to `payer`.
    pub(super) fn pause_for(
        &mut self,
        now: Time,
        id: SlotId,
        payer: Option<ContextId>,
        cause: PauseCause,
        out: &mut Out<'_>,
    ) {
        let Some(&Slot {
            state: State::Running(mut run),
            ..
        }) = self.slot(id)
        else {
            return;
        };
        let boundary = self.stops_at_boundary(id, run.ctx);
        let timeout = self
            .slab
            .get(run.ctx)
            .map_or(Duration::ZERO, |entry| entry.params.preempt_timeout);
        let Some(slot) = self.slot_mut(id) else {
            return;
        };
        run.period = match slot.config.profile {
            Profile::Base { .. } => POLL_MIN,
            Profile::Fermata => LOOK,
        };
        run.look = now + run.period;
        let wait = slot.save().doubled().clamp(AGAIN_MIN, AGAIN_MAX);
        let restored = run.restored().filter(|&at| now < at);
        slot.stats.pauses += 1;
        slot.enter(State::Pausing(
            run,
            Pause {
                since: now,
                again: restored.map_or(now + wait, |at| at.min(now + AGAIN_MAX)),
                restores: restored.is_some(),
                wait,
                tries: 0,
                late: false,
                give_up: now + timeout,
                last: false,
                payer: payer.filter(|_| !boundary),
                boundary,
                bound: None,
                overrun: false,
            },
        ));
        out(Action::Pause {
            slot: id,
            boundary,
            cause,
        });
    }

    /// PAUSE was not answered in time: it may have been dropped during a restore, or lost, or the save is a long one.
    /// `save`: what one takes there.
    pub(super) fn pause_again(now: Time, pause: &mut Pause, save: Duration) {
        if !core::mem::take(&mut pause.restores) {
            pause.wait = pause.wait.doubled().min(AGAIN_MAX);
            pause.tries += 1;
            pause.late = now >= pause.since + save.doubled();
        }
        pause.again = now + pause.wait;
    }

    /// The job that has to go, and for whom if before the end of its slice: the one whose time was up first, and of several
    /// that go at once the one that the policy puts last.
    fn most_overdue(
        &self,
        now: Time,
        slots: u8,
    ) -> Option<(SlotId, Option<ContextId>, PauseCause)> {
        let mut most: Option<(SlotId, End)> = None;
        for id in slots_in(slots) {
            match self.end(id) {
                Some(end) if end.at <= now && most.is_none_or(|(_, most)| end.is_before(&most)) => {
                    most = Some((id, end));
                }
                _ => {}
            }
        }
        most.map(|(id, end)| (id, end.payer, end.cause))
    }

    /// When the job that runs on the slot has to go: at the end of its slice or when the policy says, if somebody waits
    /// for the slot that no other slot is about to take; at once, if its mask excludes the slot.
    fn end(&self, id: SlotId) -> Option<End> {
        let slot = self.slot(id)?;
        let State::Running(run) = slot.state else {
            return None;
        };
        let entry = self.slab.get(run.ctx)?;
        let stands = self.standing(run.ctx)?;
        let end = |at, payer, cause| {
            Some(End {
                at,
                place: self.policy.place(stands),
                payer,
                cause,
            })
        };
        if entry.allowed & id.bit() == 0 {
            return end(Time::ZERO, None, PauseCause::Slots);
        }
        let limit = self.limit_end(&run, entry);
        let Some(next) = self.candidate(id) else {
            return end(limit?, None, PauseCause::Limit);
        };
        let slice = run.started + self.slice(slot, &run, entry) + run.extra;
        let at = match self.turn_end(&run, next, slice) {
            Some(Time::ZERO) => {
                let cause = PauseCause::Outranked { waiter: next };
                return end(Time::ZERO, Some(next), cause);
            }
            at => at.map(|at| (at, PauseCause::Slice { waiter: next })),
        };
        // A fellow may be owed less than another group, which the time of this run counts for, too.
        let beside = Some(next)
            .filter(|&next| self.are_fellows(run.ctx, next))
            .and_then(|_| {
                self.queue(slot.queue)?
                    .first_beside(&self.slab, run.ctx, id.bit())
            })
            .and_then(|other| Some((self.turn_end(&run, other, slice)?, other)))
            .map(|(at, waiter)| match at {
                Time::ZERO => (at, PauseCause::Outranked { waiter }),
                _ => (at, PauseCause::Slice { waiter }),
            });
        let guard = self
            .guard_end(id)
            .filter(|_| !self.is_reserved(run.ctx))
            .map(|(waiter, at)| (at.max(slice), PauseCause::Starving { waiter }));
        let limit = limit.map(|at| (at, PauseCause::Limit));
        let (at, cause) = earlier(earlier(at, beside), earlier(guard, limit))?;
        end(at, None, cause)
    }

    /// When a run has to make way for `next`, which waits; time zero: at once.
    fn turn_end(&self, run: &Run, next: ContextId, slice: Time) -> Option<Time> {
        let entry = self.slab.get(run.ctx)?;
        let turn = if run.guarded && !self.is_reserved(next) {
            Turn::Slice
        } else {
            match self.turn(run.ctx, next)? {
                // All of the group that run use up what it is owed.
                Turn::After(span) if entry.grouped && !self.are_fellows(run.ctx, next) => {
                    Turn::After(span.parts(self.lanes(entry.group)))
                }
                turn => turn,
            }
        };
        match turn {
            Turn::Now => Some(Time::ZERO),
            Turn::Slice => Some(slice),
            Turn::After(span) => {
                let most = run.started + Params::TIMESLICE_MAX;
                Some(slice.max((entry.since + span).min(most)))
            }
            Turn::Never => None,
        }
    }

    /// When the job of `runs` makes way for `waits` under the policy.
    #[inline(always)]
    pub(super) fn turn(&self, runs: ContextId, waits: ContextId) -> Option<Turn> {
        Some(if self.are_fellows(runs, waits) {
            self.policy
                .turn(self.slab.get(runs)?, self.slab.get(waits)?)
        } else {
            self.policy
                .turn(self.standing(runs)?, self.standing(waits)?)
        })
    }

    /// Has it a reservation that is in force? Its load is admitted and bounded, so the guard leaves it alone.
    fn is_reserved(&self, ctx: ContextId) -> bool {
        self.slab
            .get(ctx)
            .is_some_and(|entry| self.policy.reserves(entry))
    }

    /// When a job has to go because another starves, unless a slot will be free for that one anyway.
    fn guard_end(&self, id: SlotId) -> Option<(ContextId, Time)> {
        let slots = self.queue(self.slot(id)?.queue)?.slots;
        let leaving = slots_in(slots).any(|other| self.slot(other).is_some_and(Slot::is_leaving));
        self.starving(id).filter(|_| !leaving)
    }

    /// The length of a slice on this slot: no shorter than [`SLICE_SWITCHES`] saves and restores take here, so that most of
    /// the time is work; but one whose saves are slow does not make the slices of others longer than [`SLICE_FLOOR_MAX`].
    fn slice(&self, slot: &Slot, run: &Run, entry: &Entry) -> Duration {
        let mut asked = entry.params.timeslice;
        if run.guarded {
            asked = asked.min(self.guard.quarter());
        }
        asked.max(slot.switch().times(SLICE_SWITCHES).min(SLICE_FLOOR_MAX))
    }

    /// The first context that waits for the slot and that no slot which is about to be free will take.
    pub(super) fn candidate(&self, id: SlotId) -> Option<ContextId> {
        let index = self.slot(id)?.queue;
        let queue = self.queue(index).filter(|queue| queue.throttles != 0)?;
        if self.free_soon(index) == 0 {
            return queue.first(&self.slab, id);
        }
        let mut taken = [None; MAX_SLOTS];
        for (place, (_, taker)) in taken.iter_mut().zip(self.takers(index)) {
            *place = taker;
        }
        queue.first_but(&self.slab, id, &taken)
    }

    /// The slots of a class that are about to be free, or kept vacant for a hint, a bit each.
    fn free_soon(&self, index: u8) -> u8 {
        let soon = |id: &SlotId| {
            self.slot(*id).is_some_and(|slot| match slot.state {
                State::Vacant => slot.unfilled || self.kept_for(*id).is_some(),
                _ => slot.is_leaving(),
            })
        };
        let slots = slots_in(self.class_slots(index)).filter(soon);
        slots.fold(0, |soon, id| soon | id.bit())
    }

    /// The slots of a class that are about to be free, and who takes each. One that is kept for a hint is counted for who
    /// gets it if nobody comes: to end another slice for that one would be a switch too many in most cases.
    pub(super) fn takers(
        &self,
        index: u8,
    ) -> impl Iterator<Item = (SlotId, Option<ContextId>)> + '_ {
        let mut taken = [None; MAX_SLOTS];
        slots_in(self.free_soon(index))
            .zip(0..)
            .map(move |(id, count)| {
                let queue = self.queue(index);
                let next = queue.and_then(|queue| queue.first_but(&self.slab, id, &taken));
                if let Some(place) = taken.get_mut(count) {
                    *place = next;
                }
                (id, next)
            })
    }

    /// Arms the timer of a slot for what is next, if it is not armed for that time or an earlier one: a timer that
    /// fires too early costs less than one armed anew at every event of its neighbours.
    pub(super) fn arm(&mut self, now: Time, id: SlotId, out: &mut Out<'_>) {
        let next = self.next_time(now, id);
        let Some(slot) = self.slot_mut(id) else {
            return;
        };
        let entered = core::mem::replace(&mut slot.entered, false);
        match (next, slot.armed) {
            (Some(at), armed) if entered || armed.is_none_or(|armed| armed > at) => {
                slot.armed = Some(at);
                out(Action::Arm { slot: id, at });
            }
            (None, Some(_)) => {
                slot.armed = None;
                out(Action::Disarm { slot: id });
            }
            _ => {}
        }
    }

    /// When the timer is needed; `None` while the slot waits for nothing.
    fn next_time(&self, now: Time, id: SlotId) -> Option<Time> {
        let slot = self.slot(id)?;
        let own = self.own_time(now, id);
        // Of a class one slot's timer is enough to end the time of those that are parked, and for hints.
        let queue = self.queue(slot.queue)?;
        if self.frozen || slots_in(queue.usable).next() != Some(id) {
            return own;
        }
        let parked = self.next_parked(slot.queue).map(|(_, at)| at);
        let hint = self.next_hint(now, slot.queue);
        let throttle = (queue.throttles == 0).then_some(now + THROTTLE_NEXT);
        let next = own.into_iter().chain(parked).chain(hint);
        next.chain(throttle).min()
    }

    /// When the timer is needed for the slot itself.
    fn own_time(&self, now: Time, id: SlotId) -> Option<Time> {
        let slot = self.slot(id)?;
        match slot.state {
            State::Running(run) => {
                let end = self.end(id).map(|end| end.at);
                let slice = self.slice(slot, &run, self.slab.get(run.ctx)?);
                match end {
                    // The PAUSE at the end of a short slice shows a lost interrupt soon enough: spare the read.
                    Some(end)
                        if slot.settle().is_none()
                            && slice <= LOOK
                            && end.since(run.started) <= LOOK.doubled() =>
                    {
                        Some(end)
                    }
                    Some(end) => Some(end.min(run.look)),
                    None => Some(run.look),
                }
            }
            State::Pausing(run, pause) => Some(pause.next(run)),
            State::Resetting(reset) => Some(reset.next),
            State::Vacant if slot.unfilled && !self.frozen => Some(now),
            _ => None,
        }
    }
}

impl Run {
    /// When its restore should be over for certain; `None` if it had none, or nothing is known of restores here.
    fn restored(&self) -> Option<Time> {
        let margin = self.extra.parts(16) + RESTORE_MARGIN;
        (self.extra != Duration::ZERO).then(|| self.started + self.extra + margin)
    }

    /// The status was looked at, or will be: when to look again.
    pub(super) fn looked(&mut self, now: Time, slot: &Slot, slice: Duration) {
        if slot.settle().is_some() {
            let most = slice.quarter().min(POLL_MAX).max(POLL_MAX_FLOOR);
            self.period = self.period.doubled().min(most);
        }
        self.look = now + self.period;
    }
}

impl Pause {
    /// Fewer repetitions than this are no proof of a hang, however late the timers are.
    const TRIES_MIN: u32 = 3;

    /// Has the job had its time?
    pub(super) fn is_over(&self, now: Time) -> bool {
        now >= self.give_up && self.tries >= Self::TRIES_MIN
    }

    /// The times of a plain PAUSE that is written now, where a save takes `save`.
    pub(super) fn begin_save(&mut self, now: Time, save: Duration) {
        self.boundary = false;
        self.since = now;
        self.wait = save.doubled().clamp(AGAIN_MIN, AGAIN_MAX);
        self.again = now + self.wait;
        self.late = false;
    }

    fn next(&self, run: Run) -> Time {
        if self.last {
            return run.look;
        }
        let bound = self.bound.filter(|_| !self.overrun);
        let next = bound.into_iter().fold(self.again.min(run.look), Time::min);
        if self.tries >= Self::TRIES_MIN {
            next.min(self.give_up)
        } else {
            next
        }
    }
}

impl Slot {
    /// Will the slot be free soon? One that does not answer as it should is not counted on.
    pub(super) fn is_leaving(&self) -> bool {
        match self.state {
            State::Pausing(_, pause) => !pause.late,
            State::Resetting(reset) => reset.tries == 0,
            _ => false,
        }
    }
}
