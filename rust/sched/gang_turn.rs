// SPDX-License-Identifier: GPL-2.0

//! Whether the members of a gang can be put on slots together, and when.
//!
//! A gang has its turn when the policy picks one of its members. Each member that waits needs a
//! slot: a vacant slot, one that is about to be vacant, or one whose job has had half of its slice
//! and can be preempted for the gang under the policy. The gang takes the slots that it can have
//! soonest. All their jobs are preempted at the same time, so that no slot is vacant for long. If
//! the gang cannot have its slots within a slice, other contexts go first.
//!
//! If not all members could have a slot even if every slot were vacant (a slot is out of use, or
//! masks have changed), the members are scheduled one by one.

use super::context::Linked;
use super::event::Cx;
use super::gang_ring::Members;
use super::ids::ContextIndex;
use super::plan_cache::{Taken, Turn};
use super::seating::Seating;
use super::state::{Claim, Scheduler, Slot};
use super::{SlotId, Time, MAX_SLOTS};

/// How many gangs whose turn is later are passed over for a slot; after these, only contexts in no
/// gang may have the slot.
const GANGS_MAX: usize = 3;
/// How many other members of these gangs are passed over.
const MATES_MAX: usize = MAX_SLOTS;

/// Which member of a gang gets which slot, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seats {
    pub(super) seating: Seating,
    /// When the jobs on these slots are to be preempted.
    pub(super) at: Time,
    pub(super) boosted: bool,
}

impl Scheduler {
    /// Returns whether the job of a context waits and could be put on a slot.
    pub(super) fn is_waiting(&self, ctx: ContextIndex) -> bool {
        matches!(self.entities[ctx].linked, Linked::Ready | Linked::Behind)
    }

    /// Returns the turn of a context that waits; `boosted`: it has its turn by the starvation
    /// boost.
    pub(super) fn turn(&self, now: Time, ctx: ContextIndex, boosted: bool) -> Turn {
        let Some(seating) = self.seating_of(ctx) else {
            return Turn::Alone;
        };
        // A member that arrives while others are being started joins them later.
        let are_starting = self.claim_of_mate(ctx).is_some_and(|claim| claim.begun);
        if are_starting || self.has_claimed_slot(ctx) {
            return Turn::Later;
        }
        match self.seat(now, ctx, boosted, seating) {
            Some(seats) => Turn::Together(seats.seating.slots()),
            // A starving member runs alone rather than not at all.
            None if boosted => Turn::Alone,
            None => Turn::Later,
        }
    }

    /// Returns the slots that the members of the gang of a context take when its turn is
    /// [`Turn::Together`].
    pub(super) fn seats(&self, now: Time, ctx: ContextIndex, boosted: bool) -> Option<Seats> {
        self.seat(now, ctx, boosted, self.seating_of(ctx)?)
    }

    /// Returns whether a context waits for slots together with other members of its gang.
    pub(super) fn waits_for_seats(&self, ctx: ContextIndex) -> bool {
        self.seating_of(ctx).is_some()
    }

    /// Returns the members of the gang of a context that wait, without slots. `None`: the members
    /// are scheduled one by one.
    fn seating_of(&self, ctx: ContextIndex) -> Option<Seating> {
        if !self.entities.is_ganged(ctx) {
            return None;
        }
        let mut seating = Seating::default();
        // A cap does not apply to a context with a reservation, which takes no throttled members
        // along.
        let is_reserved = self.policy.reserves(&self.entities[ctx]);
        let is_capped = |at| is_reserved && self.waits_for_cap(at);
        let members = self.entities.gang(ctx);
        let mut waiting = members.filter(|&at| self.is_waiting(at) && !is_capped(at));
        let has_room = waiting.all(|member| seating.add(member, self.usable_slots(member)));
        (has_room && seating.count() >= 2 && seating.fits(u8::MAX)).then_some(seating)
    }

    /// Returns whether the slot of a member of the gang of a context is claimed for another gang.
    fn has_claimed_slot(&self, ctx: ContextIndex) -> bool {
        let mut slots = self
            .entities
            .gang(ctx)
            .filter_map(|member| self.entities[member].slot);
        slots.any(|slot| self.slots[slot].claim.is_some())
    }

    /// Returns whether members of a gang wait together until another gang has used its claims.
    pub(super) fn is_kept_back(&self, ctx: ContextIndex) -> bool {
        let mut waiting = self.entities.gang(ctx).filter(|&at| self.is_waiting(at));
        self.has_claimed_slot(ctx) && waiting.nth(1).is_some()
    }

    /// Assigns the slots that can be had within a slice to the members of a gang, the soonest
    /// first. `None`: there are too few such slots.
    fn seat(
        &self,
        now: Time,
        ctx: ContextIndex,
        boosted: bool,
        mut seating: Seating,
    ) -> Option<Seats> {
        let timeslice = self.entities[ctx].params.timeslice;
        let members = self.entities.members(ctx);
        let is_open = |slot: &Slot| {
            let is_own = |claim: Claim| members.contains(&Some(claim.ctx));
            slot.claim.is_none_or(is_own) && slot.reserved_for().is_none()
        };
        if self.slots.iter().filter(|slot| is_open(slot)).count() < seating.count() {
            return None;
        }
        let mut offers = [None; MAX_SLOTS];
        for id in self.slots.ids().filter(|&id| is_open(&self.slots[id])) {
            let at = self.offer(now, id, ctx, &members, boosted);
            let latest = now + Self::slice_on(&self.slots[id], timeslice);
            offers[id.index()] = at.filter(|&at| at <= latest).map(|at| (at, id));
        }
        let mut at = now;
        while !seating.is_complete() {
            let soonest = offers.iter_mut().filter(|offer| offer.is_some()).min()?;
            let (time, id) = soonest.take()?;
            if seating.offer(id) {
                at = at.max(time);
            }
        }
        Some(Seats {
            seating,
            at,
            boosted,
        })
    }

    /// Returns when the gang of `ctx` can have a slot that no other gang claims; time zero: the
    /// slot is vacant. `None`: that is not known.
    fn offer(
        &self,
        now: Time,
        id: SlotId,
        ctx: ContextIndex,
        members: &Members,
        boosted: bool,
    ) -> Option<Time> {
        let slot = &self.slots[id];
        if slot.fsm.is_vacant() {
            return Some(Time::ZERO);
        }
        if slot.fsm.is_leaving() {
            // A relay continues with the named context, whose run would end at once.
            let named = slot.nominees.next;
            let outranks = named.is_some_and(|named| self.is_preempted_now(ctx, named.ctx));
            return (!outranks).then_some(now);
        }
        let run = slot.fsm.unpaused()?;
        let runs = run.ctx.at();
        let is_own = members.contains(&Some(runs));
        if self.is_boosted(now, id) || is_own || self.claim_of_mate(runs).is_some() {
            return None;
        }
        let end = self.gang_turn_end(id, run, ctx, boosted)?;
        Some(end.max(now))
    }

    /// Returns the first context that waits for a slot and is not in `taken`, and its turn there.
    /// Gangs whose turn is later are passed over.
    pub(super) fn next_turn(
        &self,
        cx: &Cx<'_>,
        id: SlotId,
        taken: &[Option<ContextIndex>],
    ) -> Option<(ContextIndex, Turn)> {
        let queue = &self.queues[self.slots[id].class];
        let mut next = queue.pick_next_but(&self.entities, id.bit().into(), taken);
        let mut mates_left = MATES_MAX;
        'gangs: for _ in 0..GANGS_MAX {
            let ctx = next?;
            match self.turn_on(cx, id, ctx) {
                Turn::Later => {}
                turn => return Some((ctx, turn)),
            }
            let members = self.entities.members(ctx);
            let is_passed = |ctx| taken.contains(&Some(ctx)) || members.contains(&Some(ctx));
            next = queue.pick_after(&self.entities, ctx.into(), id.bit().into());
            while let Some(other) = next.filter(|&other| is_passed(other)) {
                if mates_left == 0 {
                    break 'gangs;
                }
                mates_left -= 1;
                next = queue.pick_after(&self.entities, other.into(), id.bit().into());
            }
        }
        let alone = super::entity::alone(id.bit());
        let single = queue.pick_next_but(&self.entities, alone, taken)?;
        Some((single, Turn::Alone))
    }

    /// Returns the turn of a context on a slot: [`Turn::Later`] if its gang has its turn, but on
    /// other slots.
    pub(super) fn turn_on(&self, cx: &Cx<'_>, id: SlotId, ctx: ContextIndex) -> Turn {
        match self.known_turn(cx, ctx) {
            Turn::Together(slots) if slots & id.bit() == 0 => Turn::Later,
            turn => turn,
        }
    }

    /// Returns the turn of a context, from the plan cache if nothing has changed.
    fn known_turn(&self, cx: &Cx<'_>, ctx: ContextIndex) -> Turn {
        if !self.entities.is_ganged(ctx) {
            return Turn::Alone;
        }
        let find = || self.turn(cx.now, ctx, false);
        cx.plan_cache.turn(self.generation, ctx, find)
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

    /// Returns the member of a gang that is to be started now on a claimed slot, and whether the
    /// starvation boost starts it. `None` until all slots that the gang claims are vacant.
    pub(super) fn claimant(&self, id: SlotId) -> Option<(ContextIndex, bool)> {
        let claim = self.slots[id].claim?;
        let members = self.entities.members(claim.ctx);
        let is_vacant = self.slots.iter().all(|slot| {
            let is_own = |other: Claim| members.contains(&Some(other.ctx));
            !slot.claim.is_some_and(is_own) || slot.fsm.is_vacant()
        });
        is_vacant.then_some((claim.ctx, claim.boosted))
    }

    /// Returns the claim of another member of the gang of a context, which is to join members that
    /// run.
    pub(super) fn claim_of_mate(&self, ctx: ContextIndex) -> Option<Claim> {
        if !self.entities.is_ganged(ctx) {
            return None;
        }
        let mut claims = self.slots.iter().filter_map(|slot| slot.claim).peekable();
        claims.peek()?;
        let members = self.entities.members(ctx);
        claims.find(|claim| claim.ctx != ctx && members.contains(&Some(claim.ctx)))
    }
}
