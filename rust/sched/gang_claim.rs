// SPDX-License-Identifier: GPL-2.0

//! Claims: slots that are set aside for the members of a gang, until all members can be started.
//!
//! A claim is made when the gang has its turn. The job on a claimed slot continues until
//! `Claim::at`, when all claimed slots can be vacant. From the START of the first member on, the
//! claims of the other members are kept (`Claim::begun`).

use super::ids::ContextIndex;
use super::state::{Claim, Scheduler, Slot};
use super::{SlotId, Time};

impl Scheduler {
    /// Claims the slots that the gang of `ctx` takes together in its turn.
    pub(super) fn claim_together(&mut self, now: Time, ctx: ContextIndex, boosted: bool) {
        let Some(seats) = self.seats(now, ctx, boosted) else {
            return;
        };
        for id in self.slots.ids() {
            if let Some(ctx) = seats.seating.on(id) {
                self.slots[id].claim = Some(Claim {
                    ctx,
                    at: seats.at,
                    boosted: seats.boosted,
                    begun: false,
                });
            }
        }
        self.forget_all_plans();
    }

    /// Uses up the claim to a slot if the context that is started there has the claim. The claims
    /// of the other members are kept from now on.
    pub(super) fn use_claim(&mut self, id: SlotId, ctx: ContextIndex) {
        let Some(used) = self.slots[id].claim.filter(|claim| claim.ctx == ctx) else {
            return;
        };
        self.slots[id].claim = None;
        for id in self.slots.ids() {
            if let Some(mut claim) = self.slots[id].claim {
                claim.begun |= self.entities.mates(used.ctx).any(|mate| mate == claim.ctx);
                self.slots[id].claim = Some(claim);
            }
        }
    }

    /// Drops the claims of all members of the gang of a context.
    pub(super) fn drop_claims_of(&mut self, ctx: ContextIndex) {
        for id in self.slots.ids() {
            let claim = self.slots[id].claim;
            if claim.is_some_and(|claim| self.entities.gang(ctx).any(|other| other == claim.ctx)) {
                self.slots[id].claim = None;
            }
        }
        self.forget_all_plans();
    }

    /// Drops the claims for which `stays` is false.
    pub(super) fn keep_claims(&mut self, stays: impl Fn(&Claim) -> bool) {
        for id in self.slots.ids() {
            let claim = &mut self.slots[id].claim;
            *claim = claim.filter(&stays);
        }
    }

    /// Drops claims that are no longer valid: a member no longer waits or may not use its slot,
    /// another member waits, too, or a job does not leave its slot in time.
    pub(super) fn check_claims(&mut self) {
        for id in self.slots.ids() {
            let claim = self.slots[id].claim;
            if let Some(claim) = claim.filter(|claim| !self.is_valid(id, claim)) {
                self.slots[id].claim = None;
                self.drop_claims_of(claim.ctx);
            }
        }
    }

    /// Drops claims to slots whose jobs are still running, if another slot that the member may use
    /// is vacant: the gang may start sooner with that slot.
    pub(super) fn renew_claims(&mut self, now: Time) {
        let is_free = |slot: &Slot| {
            slot.fsm.is_vacant() && slot.claim.is_none() && slot.reserved_for().is_none()
        };
        let ids = self.slots.ids();
        let free = ids
            .filter(|&id| is_free(&self.slots[id]))
            .fold(0, |free, id| free | id.bit());
        if free == 0 {
            return;
        }
        for id in self.slots.ids() {
            let slot = &self.slots[id];
            let claim = slot.claim.filter(|claim| !claim.begun && claim.at > now);
            let Some(claim) = claim.filter(|_| slot.fsm.unpaused().is_some()) else {
                continue;
            };
            if self.usable_slots(claim.ctx) & free != 0 {
                self.drop_claims_of(claim.ctx);
            }
        }
    }

    /// Returns whether a claim is still valid.
    fn is_valid(&self, id: SlotId, claim: &Claim) -> bool {
        let fsm = &self.slots[id].fsm;
        let is_hung = !fsm.is_vacant() && !fsm.is_leaving() && fsm.unpaused().is_none();
        let may_have = self.usable_slots(claim.ctx) & id.bit() != 0;
        // A member that begins to wait while others are being started joins them later.
        let is_complete = claim.begun || {
            let mut gang = self.entities.gang(claim.ctx);
            gang.all(|member| self.is_claiming(member) == self.is_waiting(member))
        };
        !is_hung && may_have && self.is_waiting(claim.ctx) && is_complete
    }
}
