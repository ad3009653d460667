// SPDX-License-Identifier: GPL-2.0

//! Whether the members of a gang can be put on slots together, and when.
//!
//! A gang has its turn when the policy picks one of its members. Each member that waits needs a
//! slot: a vacant slot, one that is about to be vacant, or one whose job has had half of its
//! slice and makes way for the gang under the policy. The gang takes the slots that it can have
//! first. All their jobs make way at the same time, so that no slot is vacant for long. If the
//! gang cannot have its slots within a slice, other contexts go first.
//!
//! Members that could not all have a slot if every slot were vacant (a slot is out of use, or masks
//! have changed) are scheduled one by one.

use super::context::Linked;
use super::ids::ContextIndex;
use super::seating::Seating;
use super::state::{Claim, Scheduler};
use super::{SlotId, Time, MAX_SLOTS};

/// How many gangs are considered in one decision; after these, only contexts in no gang are.
const GANGS_MAX: usize = 4;

/// How a context that the policy has picked is put on a slot.
#[allow(
    clippy::large_enum_variant,
    reason = "lives on the stack for one decision"
)]
#[derive(Clone, Copy, Debug)]
pub(super) enum Turn {
    /// The context is started alone.
    Alone,
    /// All members of its gang that wait are started together.
    Together(Seats),
    /// Not now: its gang cannot have its slots in time, so other contexts go first.
    Later,
}

/// Which member of a gang gets which slot, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seats {
    pub(super) seating: Seating,
    /// When the jobs on these slots make way.
    pub(super) at: Time,
    pub(super) boosted: bool,
}

/// Contexts that already have a slot to go to.
pub(super) type Taken = [Option<ContextIndex>; 2 * MAX_SLOTS];

impl Scheduler {
    /// Returns whether the job of a context waits, and could be put on a slot.
    pub(super) fn is_waiting(&self, ctx: ContextIndex) -> bool {
        matches!(self.entities[ctx].linked, Linked::Ready | Linked::Behind)
    }

    /// Returns what comes of the turn of a context, which waits; `boosted`: by the starvation
    /// boost.
    pub(super) fn turn(&self, now: Time, ctx: ContextIndex, boosted: bool) -> Turn {
        if !self.entities.is_ganged(ctx) {
            return Turn::Alone;
        }
        let mut seating = Seating::EMPTY;
        for member in self
            .entities
            .gang(ctx)
            .filter(|&member| self.is_waiting(member))
        {
            if !seating.add(member, self.usable_slots(member)) {
                return Turn::Alone;
            }
        }
        if seating.count() < 2 || !seating.fits(u8::MAX) {
            return Turn::Alone;
        }
        if self.makes_way(ctx) {
            return Turn::Later;
        }
        self.seat(now, ctx, boosted, seating)
    }

    /// Returns whether a slot that a member of a gang is on is claimed for another gang.
    fn makes_way(&self, ctx: ContextIndex) -> bool {
        let mut slots = self
            .entities
            .gang(ctx)
            .filter_map(|member| self.entities[member].slot);
        slots.any(|slot| self.slots[slot].claim.is_some())
    }

    fn seat(&self, now: Time, ctx: ContextIndex, boosted: bool, mut seating: Seating) -> Turn {
        let timeslice = self.entities[ctx].params.timeslice;
        let mut left = self.slots.ids().fold(0, |slots, id| slots | id.bit());
        let mut at = now;
        while !seating.is_complete() {
            let offers = super::ids::slots_in(left);
            let offers = offers.filter_map(|id| Some((self.offer(now, id, ctx, boosted)?, id)));
            let Some((time, id)) = offers.min_by_key(|&(time, _)| time) else {
                break;
            };
            if time > now + Self::slice_on(&self.slots[id], timeslice) {
                break;
            }
            left &= !id.bit();
            if seating.offer(id) {
                at = at.max(time);
            }
        }
        match (seating.is_complete(), boosted) {
            (true, _) => Turn::Together(Seats {
                seating,
                at,
                boosted,
            }),
            // A member that starves runs alone rather than not at all.
            (false, true) => Turn::Alone,
            (false, false) => Turn::Later,
        }
    }

    /// Returns when the gang of `ctx` can have a slot, time zero if the slot is vacant. `None`:
    /// that is not known.
    fn offer(&self, now: Time, id: SlotId, ctx: ContextIndex, boosted: bool) -> Option<Time> {
        let slot = &self.slots[id];
        let is_own = |other| self.entities.gang(ctx).any(|member| member == other);
        let is_claimed = slot.claim.is_some_and(|claim| !is_own(claim.ctx));
        if is_claimed || slot.reserved_for().is_some() {
            return None;
        }
        if slot.fsm.is_vacant() {
            return Some(Time::ZERO);
        }
        if slot.fsm.is_leaving() {
            // A relay goes on with the context that is named, whose run would end at once.
            let named = slot.nominees.next;
            let outranks = named.is_some_and(|named| self.is_preempted_now(ctx, named.ctx));
            return (!outranks).then_some(now);
        }
        let run = slot.fsm.unpaused()?;
        let runs = run.ctx.at();
        if run.boosted || is_own(runs) || self.claim_of_mate(runs).is_some() {
            return None;
        }
        let end = self.gang_turn_end(id, run, ctx, boosted)?;
        Some(end.max(now))
    }

    /// Returns the context that a slot which is vacant is given to, and what comes of its turn.
    pub(super) fn pick_next(&self, now: Time, id: SlotId) -> Option<(ContextIndex, Turn)> {
        let class = self.slots[id].class;
        if self.entities.nr_ganged == 0 {
            // No slot is claimed.
            let next = self.queues[class].pick_next(&self.entities, id.bit().into())?;
            return Some((next, Turn::Alone));
        }
        self.next_turn(now, id, &self.claimants(class))
    }

    /// Returns the first context that waits for a slot and is none of `taken`, and what comes of
    /// its turn there. Gangs that go later are passed over.
    pub(super) fn next_turn(
        &self,
        now: Time,
        id: SlotId,
        taken: &[Option<ContextIndex>],
    ) -> Option<(ContextIndex, Turn)> {
        let queue = &self.queues[self.slots[id].class];
        let mut next = queue.pick_next_but(&self.entities, id.bit().into(), taken);
        let mut later = [None; GANGS_MAX];
        let mut places = later.iter_mut();
        while let Some(ctx) = next {
            match self.turn_on(now, id, ctx) {
                Turn::Later => {}
                turn => return Some((ctx, turn)),
            }
            let Some(place) = places.next() else {
                let alone = super::entity::alone(id.bit());
                let single = queue.pick_next_but(&self.entities, alone, taken)?;
                return Some((single, Turn::Alone));
            };
            *place = Some(ctx);
            next = queue.pick_after(&self.entities, ctx.into(), id.bit().into());
            while let Some(other) = next.filter(|other| {
                let mut mates = self.entities.mates(ctx);
                taken.contains(&Some(*other)) || mates.any(|mate| mate == *other)
            }) {
                next = queue.pick_after(&self.entities, other.into(), id.bit().into());
            }
        }
        None
    }

    /// Returns what comes of the turn of a context on a slot: later, if the gang has its turn,
    /// but on other slots.
    pub(super) fn turn_on(&self, now: Time, id: SlotId, ctx: ContextIndex) -> Turn {
        match self.turn(now, ctx, false) {
            Turn::Together(seats) if seats.seating.on(id).is_none() => Turn::Later,
            turn => turn,
        }
    }

    /// Returns the contexts that have a claim to a slot of a class.
    pub(super) fn claimants(&self, class: SlotId) -> Taken {
        let mut taken = [None; 2 * MAX_SLOTS];
        for id in self.class_slots(class) {
            let claim = self.slots[id].claim;
            taken[MAX_SLOTS + id.index()] = claim.map(|claim| claim.ctx);
        }
        taken
    }

    /// Returns whether a context has a claim to a slot.
    pub(super) fn is_claiming(&self, ctx: ContextIndex) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|slot| slot.claim.is_some_and(|claim| claim.ctx == ctx))
    }

    /// Returns the member of a gang that is to be started now on a claimed slot, and whether by the
    /// starvation boost. `None` until all slots that the gang claims are vacant.
    pub(super) fn claimant(&self, id: SlotId) -> Option<(ContextIndex, bool)> {
        let claim = self.slots[id].claim?;
        let is_vacant = self.slots.iter().all(|slot| {
            let claimed = slot.claim.is_some_and(|other| {
                self.entities
                    .gang(claim.ctx)
                    .any(|member| member == other.ctx)
            });
            !claimed || slot.fsm.is_vacant()
        });
        is_vacant.then_some((claim.ctx, claim.boosted))
    }

    /// Returns the claim of another member of the gang of a context: that member joins members
    /// which run.
    pub(super) fn claim_of_mate(&self, ctx: ContextIndex) -> Option<Claim> {
        if !self.entities.is_ganged(ctx) {
            return None;
        }
        let mut claims = self.slots.iter().filter_map(|slot| slot.claim);
        claims.find(|claim| self.entities.mates(ctx).any(|mate| mate == claim.ctx))
    }
}
