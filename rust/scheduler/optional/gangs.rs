// SPDX-License-Identifier: GPL-2.0

//! Gangs: contexts of one group whose jobs depend on each other. They are put on slots together,
//! and leave them together.
//!
//! The members wait in the run queue one by one, but none while another one leaves its slot. When
//! it is the turn of one, all that wait are bound to slots at once: vacant slots, slots that are
//! about to be vacant, and slots whose jobs have had half of their slices. These jobs stop at one
//! common time, and the members start when all the slots are vacant. If the gang cannot have its
//! slots within a slice, others go first.
//!
//! A member without a job, or of a throttled group, is left out. If the members that wait could not
//! all have slots even if every slot were vacant, they are scheduled one by one.

use super::super::card::{Call, Card};
use super::super::context::{OnStop, State};
use super::super::decisions::{Next, Why};
use super::super::queues::Preempt;
use super::super::values::{
    slots_in, ContextId, Duration, EntityIndex, PauseCause, Refusal, SlotId, Time, MAX_SLOTS,
};
use super::super::{Scheduler, SPREAD};

/// A gang that could not be bound is tried again after this time, unless something happens before...
const RETRY: Duration = Duration::from_us(250);
/// ... or after this time, if only an event or the starvation boost can help.
const RARELY: Duration = Duration::from_ms(10);

/// The next member of the gang, in a ring; none: the context is in no gang.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Ring(Option<EntityIndex>);

impl Ring {
    pub(in super::super) const NONE: Self = Self(None);
}

type Members = [Option<EntityIndex>; MAX_SLOTS];

/// The gangs of a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Gangs {
    /// How many contexts are in gangs.
    members: u32,
    /// A member of each gang that has begun to wait in this call.
    arrived: Members,
}

/// Contexts, and the slots that they were given: a matching that grows slot by slot.
#[derive(Clone, Copy, Default)]
struct Seats {
    guests: Members,
    count: usize,
    /// By slot: the guests that may have it, a bit each.
    allowed: [u8; MAX_SLOTS],
    /// By slot: the guest that has it.
    taken: [Option<usize>; MAX_SLOTS],
    /// The guests without a slot, a bit each.
    left: u8,
}

impl Seats {
    /// Adds a context that may have one of `slots`. Returns `false` if there are too many.
    fn add(&mut self, at: EntityIndex, slots: u8) -> bool {
        let Some(guest) = self.guests.get_mut(self.count) else {
            return false;
        };
        *guest = Some(at);
        for id in slots_in(slots) {
            self.allowed[id.index()] |= 1 << self.count;
        }
        self.left |= 1 << self.count;
        self.count += 1;
        true
    }

    /// Adds a slot; guests may move to it, so that another one has theirs. `seen`: slots that are no
    /// help. Returns whether one more guest has a slot. At most [`MAX_SLOTS`] calls deep.
    fn offer(&mut self, id: SlotId, seen: &mut u8) -> bool {
        *seen |= id.bit();
        let wanted = self.allowed[id.index()];
        if wanted & self.left != 0 {
            // CAST: below 8.
            let guest = (wanted & self.left).trailing_zeros() as usize;
            self.left &= !(1 << guest);
            self.taken[id.index()] = Some(guest);
            return true;
        }
        for other in slots_in(u8::MAX) {
            let guest = self.taken[other.index()].filter(|guest| wanted & (1 << guest) != 0);
            if guest.is_some() && *seen & other.bit() == 0 && self.offer(other, seen) {
                self.taken[id.index()] = guest;
                return true;
            }
        }
        false
    }

    /// Returns whether all could have one of `slots` each.
    fn fit(mut self, slots: u8) -> bool {
        slots_in(slots).for_each(|id| _ = self.offer(id, &mut 0));
        self.left == 0
    }

    /// Returns the context that has a slot.
    fn on(&self, id: SlotId) -> Option<EntityIndex> {
        self.guests[self.taken[id.index()]?]
    }
}

/// The result of trying to bind a gang.
enum Turn {
    /// Its members are bound.
    Bound,
    /// Others go first; it may be tried again after this time.
    Later(Duration),
    /// The member is scheduled like a context in no gang.
    Alone,
}

/// Members.
impl Scheduler {
    /// Iterates over the other members of the gang of a context.
    fn mates(&self, at: EntityIndex) -> impl Iterator<Item = EntityIndex> + '_ {
        let next = move |&mate: &EntityIndex| self.contexts[mate].ring.0.filter(|&mate| mate != at);
        core::iter::successors(next(&at), next)
    }

    /// Returns a context and the other members of its gang.
    fn gang(&self, at: EntityIndex) -> Members {
        let mut gang = [None; MAX_SLOTS];
        let members = core::iter::once(at).chain(self.mates(at));
        gang.iter_mut()
            .zip(members)
            .for_each(|(place, member)| *place = Some(member));
        gang
    }

    /// Calls `act` for a context and the other members of its gang.
    #[inline]
    pub(in super::super) fn for_gang(
        &mut self,
        at: EntityIndex,
        mut act: impl FnMut(&mut Self, EntityIndex),
    ) {
        let mut next = Some(at);
        while let Some(member) = next {
            next = self.contexts[member].ring.0.filter(|&mate| mate != at);
            act(self, member);
        }
    }

    /// Returns whether another member of the gang of a context has a hold.
    #[inline]
    pub(in super::super) fn has_mate_with_hold(&self, at: EntityIndex) -> bool {
        self.is_in_gang(at) && self.mates(at).any(|mate| self.contexts[mate].holds != 0)
    }

    #[inline]
    pub(in super::super) fn has_gangs(&self) -> bool {
        self.gangs.members != 0
    }

    #[inline]
    pub(in super::super) fn is_in_gang(&self, at: EntityIndex) -> bool {
        self.has_gangs() && self.contexts[at].ring != Ring::NONE
    }

    /// Returns whether another member of the gang of a context waits in a queue, or for slots of its
    /// gang.
    #[inline]
    pub(in super::super) fn is_ganged(&self, at: EntityIndex) -> bool {
        let waits = |mate| self.queue.is_linked(mate) || self.awaits_slots(mate);
        self.is_in_gang(at) && self.mates(at).any(waits)
    }

    /// Returns whether a context is bound to a slot together with its gang, and the job there was not
    /// told to stop yet.
    fn awaits_slots(&self, at: EntityIndex) -> bool {
        let slot = self.seat_of(at).map(|id| self.slot(id));
        slot.is_some_and(|slot| slot.protocol.unstopped().is_some())
    }

    /// Returns whether two contexts are in one gang.
    #[inline]
    pub(in super::super) fn are_mates(&self, one: EntityIndex, other: EntityIndex) -> bool {
        self.is_in_gang(one) && self.mates(one).any(|mate| mate == other)
    }

    /// Returns the slot that a context is bound to together with its gang.
    fn seat_of(&self, at: EntityIndex) -> Option<SlotId> {
        let id = self.contexts[at].slot?;
        let next = self.slot(id).next()?;
        (next.ctx == at && next.together.is_some()).then_some(id)
    }

    /// Returns whether the job of a context leaves its slot.
    fn is_leaving_slot(&self, at: EntityIndex) -> bool {
        let context = &self.contexts[at];
        let slot = context.slot.filter(|_| context.state == State::Running);
        slot.is_some_and(|id| self.slot(id).protocol.unstopped().is_none())
    }

    /// Returns whether a context may use a vacant slot before a gang that waits for others: the gang
    /// does not wait longer if half of the slice is over by then.
    #[inline]
    pub(in super::super) fn has_room(&self, now: Time, id: SlotId, at: EntityIndex) -> bool {
        let next = self.slot(id).next();
        let until = next.and_then(|next| next.together.filter(|_| !self.is_seated(&next)));
        until.is_some_and(|until| now + self.slice(id, at, false).parts(2) <= until)
    }

    /// Returns whether a context waits for another member of its gang to leave its slot.
    #[inline]
    pub(in super::super) fn is_gathering(&self, at: EntityIndex) -> bool {
        self.is_in_gang(at) && self.mates(at).any(|mate| self.is_leaving_slot(mate))
    }

    /// Returns whether a context, which waits, is to be put on a slot together with others.
    pub(in super::super) fn waits_for_gang(&self, at: EntityIndex) -> bool {
        self.is_ganged(at) || self.is_gathering(at) || self.seat_of(at).is_some()
    }

    /// Returns when `runs`, which is on a slot or bound to one, is preempted by `waits`: a gang keeps
    /// its slots by the turn of its best member there. A member makes way for another one at the end
    /// of its slice, and then they wait together.
    #[inline]
    pub(in super::super) fn preempted_by(&self, runs: EntityIndex, waits: EntityIndex) -> Preempt {
        match self.is_in_gang(runs) {
            true => self.gang_preempted_by(runs, waits),
            false => self.queue.preempt(runs, waits),
        }
    }

    #[cold]
    fn gang_preempted_by(&self, runs: EntityIndex, waits: EntityIndex) -> Preempt {
        let own = self.queue.preempt(runs, waits);
        if self.are_mates(runs, waits) {
            return Preempt::AtSliceEnd;
        }
        let has_slot = |state| matches!(state, State::Bound | State::Running);
        let mates = self
            .mates(runs)
            .filter(|&mate| has_slot(self.contexts[mate].state));
        mates.fold(own, |own, mate| own.max(self.queue.preempt(mate, waits)))
    }

    /// Returns whether `waits` preempts `runs`, which is on a slot or bound to one, at once.
    #[inline]
    pub(in super::super) fn preempts(&self, waits: EntityIndex, runs: EntityIndex) -> bool {
        let is_first = self.queue.outranks(waits, runs);
        is_first && (!self.is_in_gang(runs) || self.gang_preempted_by(runs, waits) == Preempt::Now)
    }
}

/// Waiting.
impl Scheduler {
    /// Updates which members of a gang wait alone, after one has entered a queue or left it.
    #[inline]
    pub(in super::super) fn note_wait(&mut self, at: EntityIndex) {
        if self.is_in_gang(at) {
            self.update_alone(at);
        }
    }

    fn update_alone(&mut self, at: EntityIndex) {
        for member in self.gang(at).into_iter().flatten() {
            let alone = !self.is_ganged(member);
            if self.queue.set_alone(member, alone) && alone {
                self.note_arrival(member);
            }
        }
    }

    /// Leaves it to the end of the call to find slots for a context that has begun to wait, if it is
    /// in a gang: others may begin to wait, too. Returns whether it is.
    pub(in super::super) fn defer_arrival(&mut self, at: EntityIndex) -> bool {
        let defers = self.is_in_gang(at);
        if defers {
            self.note_arrival(at);
        }
        defers
    }

    fn note_arrival(&mut self, at: EntityIndex) {
        let mut places = self.gangs.arrived.iter_mut();
        match places.find(|place| place.is_none_or(|other| other == at)) {
            Some(place) => *place = Some(at),
            None => self.reschedule(self.contexts[at].class),
        }
    }

    /// Finds slots for the members of gangs that have begun to wait in this call.
    #[inline]
    pub(in super::super) fn seat_gangs(&mut self, call: &mut Call<'_, impl Card>) {
        if self.gangs.arrived[0].is_some() {
            for at in core::mem::take(&mut self.gangs.arrived)
                .into_iter()
                .flatten()
            {
                let gang = self.gang(at).into_iter().flatten();
                gang.for_each(|member| self.arrived(call, member));
            }
        }
    }

    /// Handles a member of a gang that leaves its slot or has left it.
    #[inline]
    pub(in super::super) fn gather(&mut self, now: Time, left: EntityIndex) {
        if self.is_in_gang(left) {
            self.gather_mates(now, left, left);
        }
    }

    /// Lets the members of a gang that wait do so in their queues, unless one leaves its slot; they
    /// run by their own ranks if `left`, which has left its slot or the gang, had a better one.
    fn gather_mates(&mut self, now: Time, at: EntityIndex, left: EntityIndex) {
        let gang = self.gang(at);
        let leaves = gang
            .into_iter()
            .flatten()
            .any(|member| self.is_leaving_slot(member));
        for member in gang.into_iter().flatten() {
            let waits = self.contexts[member].state == State::Queued;
            if waits && leaves {
                self.unlink(member);
            } else if waits && !self.queue.is_linked(member) {
                self.link(member, None);
            }
        }
        self.check_mates(now, at, left);
        if !leaves {
            self.note_arrival(at);
        }
    }

    /// Has the policy look at the runs of a gang, one after the other, that had a better rank by
    /// `left`, which has no slot now.
    fn check_mates(&mut self, mut due: Time, at: EntityIndex, left: EntityIndex) {
        for member in self.gang(at).into_iter().flatten() {
            let slot = self.slot_with(member);
            if let Some(id) = slot.filter(|_| self.queue.outranks(left, member)) {
                self.slots[id.index()].check_by(due);
                self.touch(id);
                due = due + SPREAD;
            }
        }
    }

    /// Stops the jobs of a gang, of which one was told to stop.
    pub(in super::super) fn stop_mates(&mut self, call: &mut Call<'_, impl Card>, at: EntityIndex) {
        if self.is_in_gang(at) {
            self.stop_gang(call, at);
        }
    }

    #[cold]
    fn stop_gang(&mut self, call: &mut Call<'_, impl Card>, at: EntityIndex) {
        for mate in self.gang(at).into_iter().flatten().skip(1) {
            let slot = self.slot_with(mate);
            if let Some(id) = slot.filter(|&id| self.slot(id).protocol.unstopped().is_some()) {
                self.stop(call, id, call.now, PauseCause::Gang);
                self.commit(call, id);
                // Their successors are chosen when all have stopped.
                self.revise |= self.slot(id).class.bit();
            }
        }
        // Members that were to start together with others that stop already wait with these.
        self.unseat(call, at);
        self.gather(call.now, at);
    }
}

/// Binding.
impl Scheduler {
    /// Returns the members of a gang that wait, in a queue or for slots of their gang, and could be
    /// on slots together, without slots.
    /// `None`: they are scheduled one by one.
    fn guests(&mut self, now: Time, at: EntityIndex) -> Option<Seats> {
        let mut seats = Seats::default();
        for member in self.gang(at).into_iter().flatten() {
            let waits = self.queue.is_linked(member) || self.seat_of(member).is_some();
            let waits = waits && !self.is_throttled(member);
            if waits && !self.throttle_group_of(now, member) {
                seats.add(member, self.slots_of(member));
            }
        }
        (seats.count >= 2 && seats.fit(u8::MAX)).then_some(seats)
    }

    /// Returns when a slot can be vacant for a gang whose best member is `best`; time zero: it is.
    /// `None`: its job does not give way.
    fn gang_offer(&mut self, now: Time, id: SlotId, best: EntityIndex, why: Why) -> Option<Time> {
        let first = self.queue.pick(self.slot(id).class, id.bit().into());
        let is_outranked = first.is_some_and(|first| self.queue.outranks(first, best));
        let slot = self.slot(id);
        let stays = |next: Next| next.why != Why::Hint || !self.gives_way(&next, best);
        let is_named = slot.prev().is_some() || slot.next().is_some_and(stays);
        if is_named || (is_outranked && why == Why::Turn) {
            return Some(Time::NEVER);
        }
        let Some(run) = slot.protocol.unstopped() else {
            let is_free = self.is_leaving(id) && !self.comes_back(id, best);
            return match slot.protocol.is_vacant() {
                true => Some(Time::ZERO),
                false => is_free.then_some(now),
            };
        };
        let (runs, begun) = (EntityIndex::of(run.ctx), run.started + run.extra);
        let is_boosted = slot.is_boosted() && now < self.slice_end(id);
        if is_boosted || self.are_mates(best, runs) {
            return Some(Time::NEVER);
        }
        let half = now.max(begun + self.slice(id, runs, slot.is_boosted()).parts(2));
        self.charge(now, id);
        match self.preempted_by(runs, best) {
            Preempt::Now => Some(now),
            _ if why == Why::Boost => Some(half),
            Preempt::AtSliceEnd => Some(half),
            Preempt::AtVruntime => Some(half.max(now + self.queue.lag(runs, best))),
            Preempt::Never => None,
        }
    }

    /// Binds all members of a gang that wait, if they can have slots within a slice; it is the turn
    /// of the gang because of `at`.
    fn bind_gang(&mut self, call: &mut Call<'_, impl Card>, at: EntityIndex, why: Why) -> Turn {
        let Some(mut seats) = self.guests(call.now, at) else {
            return Turn::Alone;
        };
        let Some(left) = call.gangs.checked_sub(1) else {
            return Turn::Later(RETRY);
        };
        call.gangs = left;
        self.unseat(call, at);
        let best = seats.guests.into_iter().flatten().reduce(|best, member| {
            match self.queue.outranks(member, best) {
                true => member,
                false => best,
            }
        });
        let best = best.unwrap_or(at);
        let (guests, mut blocked, mut when) = (seats, 0, call.now);
        let mut offers = [(Time::NEVER, SlotId::FIRST); MAX_SLOTS];
        for (id, place) in self.ids().zip(&mut offers) {
            match self.gang_offer(call.now, id, best, why) {
                Some(at) if at <= call.now + self.slice(id, best, false) => *place = (at, id),
                Some(_) => {}
                None => blocked |= id.bit(),
            }
        }
        let earliest = core::iter::from_fn(|| {
            let first = offers.iter_mut().min()?;
            Some(core::mem::replace(first, (Time::NEVER, SlotId::FIRST)))
        });
        for (at, id) in earliest.take_while(|&(at, _)| at != Time::NEVER) {
            if seats.left != 0 && seats.offer(id, &mut 0) {
                when = when.max(at);
            }
        }
        match (seats.left, guests.fit(!blocked)) {
            (0, _) => self.take_seats(call, &seats, why, when),
            (_, true) => return Turn::Later(RETRY),
            (_, false) => return Turn::Later(RARELY),
        }
        Turn::Bound
    }

    /// Takes the other members of a gang off the slots that they were bound to together.
    fn unseat(&mut self, call: &mut Call<'_, impl Card>, at: EntityIndex) {
        let seat = self.mates_seats(at).next();
        if let Some(next) = seat.and_then(|id| self.slots[id.index()].take_together(call)) {
            self.give_back(call, next);
        }
    }

    /// Binds the members of a gang to their slots, whose jobs stop at `when`.
    fn take_seats(&mut self, call: &mut Call<'_, impl Card>, seats: &Seats, why: Why, when: Time) {
        for id in self.ids() {
            if let Some(member) = seats.on(id) {
                if let Some(kept) = self.slot(id).next() {
                    let _ = self.unbind(call, id);
                    self.give_back(call, kept);
                }
                self.bind(call, id, member, why);
                self.slots[id.index()].bind_together(when);
            }
        }
        // All are bound before the first job is stopped, because that may stop another gang, for
        // whose slots successors are chosen.
        for id in self.ids().filter(|&id| seats.on(id).is_some()) {
            if self.slot(id).protocol.is_vacant() {
                self.slots[id.index()].check_by(call.now);
            } else if !self.stop_for_gang(call, id) {
                self.commit(call, id);
            }
        }
    }

    /// Stops the job on a slot if a gang waits for the slot and the time has come. Returns whether.
    #[inline]
    pub(in super::super) fn stop_for_gang(
        &mut self,
        call: &mut Call<'_, impl Card>,
        id: SlotId,
    ) -> bool {
        let next = self.slot(id).next();
        match next.filter(|next| next.together.is_some_and(|at| at <= call.now)) {
            Some(next) => self.vacate(call, id, &next),
            None => false,
        }
    }

    #[cold]
    fn vacate(&mut self, call: &mut Call<'_, impl Card>, id: SlotId, next: &Next) -> bool {
        if self.slot(id).protocol.unstopped().is_none() {
            return false;
        }
        let waiter = self.contexts.id(next.ctx);
        let cause = match next.why {
            Why::Boost => PauseCause::Starving { waiter },
            _ if call.now < self.slice_end(id) => PauseCause::Outranked { waiter },
            _ => PauseCause::Slice { waiter },
        };
        self.stop(call, id, call.now, cause);
        self.commit(call, id);
        true
    }

    /// Returns what is chosen for a slot where it is the turn of a context. If the context waits
    /// with its gang, the gang gets its slots here, or is passed over.
    #[inline]
    pub(in super::super) fn choose_gang(
        &mut self,
        call: &mut Call<'_, impl Card>,
        id: SlotId,
        (at, why): (EntityIndex, Why),
    ) -> Option<(EntityIndex, Why)> {
        match self.is_ganged(at) {
            true => self.choose_ganged(call, id, (at, why)),
            false => Some((at, why)),
        }
    }

    #[cold]
    fn choose_ganged(
        &mut self,
        call: &mut Call<'_, impl Card>,
        id: SlotId,
        (at, why): (EntityIndex, Why),
    ) -> Option<(EntityIndex, Why)> {
        match self.bind_gang(call, at, why) {
            Turn::Alone => Some((at, why)),
            Turn::Bound if self.slot(id).next().is_some() => None,
            // It has other slots.
            Turn::Bound => self.choose(call, id),
            // A starving member runs alone rather than not at all.
            Turn::Later(_) if why == Why::Boost => Some((at, why)),
            Turn::Later(span) => {
                self.slots[id.index()].check_by(call.now + span);
                self.touch(id);
                let alone = self.first_for(call, id, u16::from(id.bit()) << u8::BITS);
                alone.map(|at| (at, Why::Turn))
            }
        }
    }

    /// Handles a context that waits for slots together with others. Returns whether a slot is to be
    /// found for it alone.
    #[inline]
    pub(in super::super) fn arrives_alone(
        &mut self,
        call: &mut Call<'_, impl Card>,
        at: EntityIndex,
    ) -> bool {
        !self.is_ganged(at) || self.arrives_ganged(call, at)
    }

    #[cold]
    fn arrives_ganged(&mut self, call: &mut Call<'_, impl Card>, at: EntityIndex) -> bool {
        let span = match self.bind_gang(call, at, Why::Turn) {
            Turn::Alone => return true,
            Turn::Bound => return false,
            Turn::Later(span) => span,
        };
        self.await_slices(call, at);
        for id in slots_in(self.slots_of(at)) {
            if self.slot(id).protocol.is_vacant() && self.slot(id).next().is_none() {
                self.slots[id.index()].check_by(call.now + span);
                self.touch(id);
            }
        }
        false
    }
}

/// Starting, and giving up.
impl Scheduler {
    /// Returns whether a successor may start: the slots of its gang are vacant.
    #[inline]
    pub(in super::super) fn is_seated(&self, next: &Next) -> bool {
        next.together.is_none() || self.has_vacant_seats(next.ctx)
    }

    /// Iterates over the slots that the mates of a context are bound to together.
    fn mates_seats(&self, at: EntityIndex) -> impl Iterator<Item = SlotId> + '_ {
        self.mates(at).filter_map(|mate| self.seat_of(mate))
    }

    fn has_vacant_seats(&self, at: EntityIndex) -> bool {
        let mut seats = self.mates_seats(at);
        seats.all(|id| self.slot(id).protocol.is_vacant())
    }

    /// Returns whether a mate of a successor was started already: others wait until the gang is
    /// complete.
    pub(in super::super) fn is_beginning(&self, next: &Next) -> bool {
        let runs = |mate: EntityIndex| self.contexts[mate].state == State::Running;
        next.together.is_some() && self.mates(next.ctx).any(runs)
    }

    /// Returns whether a mate of a job that runs is to be started at once.
    pub(in super::super) fn has_seated_mate(&self, at: EntityIndex) -> bool {
        self.is_in_gang(at) && self.mates_seats(at).next().is_some()
    }

    /// Has the timers start the gang of a member that was started, each in a section of its own, and
    /// look at its run if others have waited for that.
    #[inline]
    pub(in super::super) fn start_mates(&mut self, id: SlotId, next: &Next) {
        if next.together.is_some() {
            let first = self.queue.pick(self.slot(id).class, id.bit().into());
            if first.is_some_and(|first| self.preempts(first, next.ctx)) {
                self.slots[id.index()].check_by(Time::ZERO);
            }
            self.for_gang(next.ctx, |scheduler, mate| {
                if let Some(id) = scheduler.seat_of(mate) {
                    scheduler.slots[id.index()].check_by(Time::ZERO);
                    scheduler.touch(id);
                }
            });
        }
    }

    /// Starts a member of the gang of a run that its timer has not started in time: until all have
    /// started, the slice of none ends. Returns whether there was one.
    #[inline]
    pub(in super::super) fn start_late_mate(
        &mut self,
        call: &mut Call<'_, impl Card>,
        at: EntityIndex,
    ) -> bool {
        self.is_in_gang(at) && {
            let are_vacant = self.has_vacant_seats(at);
            let late = self.mates_seats(at).next().filter(|_| are_vacant);
            late.inspect(|&id| self.fill(call, id)).is_some()
        }
    }

    /// Takes the gang of a successor, which is off its slot and will not run there, off its slots.
    #[inline]
    pub(in super::super) fn dissolve(&mut self, call: &mut Call<'_, impl Card>, next: &Next) {
        if next.together.is_some() {
            self.dissolve_gang(call, next);
        }
        if self.is_in_gang(next.ctx) {
            self.check_mates(call.now, next.ctx, next.ctx);
        }
    }

    #[cold]
    fn dissolve_gang(&mut self, call: &mut Call<'_, impl Card>, next: &Next) {
        let mut left = [None; MAX_SLOTS];
        for (member, left) in self.gang(next.ctx).into_iter().flatten().zip(&mut left) {
            let own = self.contexts[member].slot.filter(|_| member == next.ctx);
            let Some(id) = self.seat_of(member).or(own) else {
                continue;
            };
            let slot = &mut self.slots[id.index()];
            if own.is_none() {
                *left = slot.take_together(call);
            }
            // Others may use it now.
            slot.check_by(call.now);
            self.revise |= slot.class.bit();
            self.touch(id);
        }
        for next in left.into_iter().flatten() {
            self.give_back(call, next);
        }
        self.note_arrival(next.ctx);
    }
}

/// Requests.
impl Scheduler {
    /// Adds a context to the gang of `with`, which becomes the first member if it was in no gang;
    /// `None`: the context is to be in no gang. The context leaves its gang. Its job stays where it
    /// is, unless a member has a hold, which holds the jobs of all.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`] (either), [`Refusal::Range`] (`with` is the context itself, or belongs
    /// to another group), [`Refusal::NoSpace`] (the members could not all be on slots together even
    /// if the slots were vacant); nothing was changed.
    pub fn set_gang<C: Card>(
        &mut self,
        card: &mut C,
        now: Time,
        id: ContextId,
        with: Option<ContextId>,
    ) -> Result<(), Refusal> {
        let at = self.owned(id)?;
        let with = with.map(|with| self.owned(with)).transpose()?;
        if let Some(with) = with {
            if with == at || self.keyed_group(with) != self.keyed_group(at) {
                return Err(Refusal::Range);
            }
            if self.mates(at).any(|mate| mate == with) {
                return Ok(());
            }
            let mut seats = Seats::default();
            let has_room = self.mates(with).chain([with, at]).all(|member| {
                let context = &self.contexts[member];
                seats.add(
                    member,
                    self.classes[context.class.at()].slots & context.params.mask,
                )
            });
            if !has_room || !seats.fit(u8::MAX) {
                return Err(Refusal::NoSpace);
            }
        }
        let call = &mut Call::new(card, now);
        self.part_from_gang(call, at);
        if let Some(with) = with {
            let next = self.contexts[with].ring.0;
            self.gangs.members += if next.is_none() { 2 } else { 1 };
            self.contexts[at].ring.0 = next.or(Some(with));
            self.contexts[with].ring.0 = Some(at);
            self.update_alone(at);
            self.gather(now, at);
            if self.has_hold(at) {
                self.preempt_gang(call, at, true, false);
            }
        }
        self.finish(call);
        Ok(())
    }

    /// Removes a context from its gang, and lets it wait and run by itself.
    fn part_from_gang(&mut self, call: &mut Call<'_, impl Card>, at: EntityIndex) {
        if let Some(id) = self.seat_of(at) {
            if let Some(next) = self.slots[id.index()].take_together(call) {
                self.give_back(call, next);
            }
        }
        if self.leave_gang(call, at) {
            self.settle_gang(call, at, at);
        }
    }

    /// Removes a context, which its owner may have closed, from its gang. Returns whether it was in
    /// one.
    pub(in super::super) fn leave_gang(
        &mut self,
        call: &mut Call<'_, impl Card>,
        at: EntityIndex,
    ) -> bool {
        self.is_in_gang(at) && self.take_from_ring(call, at)
    }

    #[cold]
    fn take_from_ring(&mut self, call: &mut Call<'_, impl Card>, at: EntityIndex) -> bool {
        let Some(last) = self.mates(at).last() else {
            return false;
        };
        let next = core::mem::take(&mut self.contexts[at].ring).0;
        self.contexts[last].ring.0 = next.filter(|&next| next != last);
        self.gangs.members -= if next == Some(last) { 2 } else { 1 };
        self.settle_gang(call, last, at);
        true
    }

    /// Lets the members of a gang that `left` has left wait, run and be held by themselves.
    fn settle_gang(&mut self, call: &mut Call<'_, impl Card>, at: EntityIndex, left: EntityIndex) {
        self.gather_mates(call.now, at, left);
        self.update_alone(at);
        for member in self.gang(at).into_iter().flatten() {
            self.resume_released(call, member);
        }
    }

    /// Takes the jobs of a gang off their slots; `requested`: until the owner resumes them.
    pub(in super::super) fn preempt_gang(
        &mut self,
        call: &mut Call<'_, impl Card>,
        at: EntityIndex,
        hold: bool,
        requested: bool,
    ) {
        if !self.is_in_gang(at) {
            self.contexts[at].hold_requested |= hold && requested;
            return self.preempt_one(call, at, hold);
        }
        let gang = self.gang(at);
        for member in gang.into_iter().flatten().filter(|_| hold) {
            let context = &mut self.contexts[member];
            context.hold_requested |= requested && context.state.is_live();
            match context.state {
                // First of all none waits: otherwise one could get the slot of another.
                State::Queued => self.preempt_one(call, member, hold),
                State::Bound | State::Running => context.on_stop = OnStop::Hold,
                _ => {}
            }
        }
        for member in gang.into_iter().flatten() {
            self.preempt_one(call, member, hold);
        }
    }

    /// Removes a context from its gang if the gang has a member of another group, after a context
    /// was moved ([`Scheduler::regroup`]).
    pub fn leave_foreign_gang<C: Card>(&mut self, card: &mut C, now: Time, id: ContextId) {
        if let Some(at) = self.contexts.find(id) {
            let group = self.keyed_group(at);
            if self.mates(at).any(|mate| self.keyed_group(mate) != group) {
                let call = &mut Call::new(card, now);
                self.part_from_gang(call, at);
                self.finish(call);
            }
        }
    }

    /// Returns how many members the gang of a context has; 1: the context is in no gang.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`].
    pub fn gang_size(&self, id: ContextId) -> Result<u32, Refusal> {
        let at = self.owned(id)?;
        Ok(self.mates(at).fold(1, |size, _| size + 1))
    }

    /// Returns one member of the gang of a context, the same for all members; `None`: the context is
    /// in no gang.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`].
    pub fn gang_of(&self, id: ContextId) -> Result<Option<ContextId>, Refusal> {
        let at = self.owned(id)?;
        let mate = self.mates(at).min();
        Ok(mate.map(|mate| self.contexts.id(mate.min(at))))
    }
}
