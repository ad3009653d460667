// SPDX-License-Identifier: GPL-2.0

//! Gangs: contexts of one group that are put on slots, taken off, held and resumed together.
//!
//! Jobs that depend on each other stall if only one of them is on a slot. So the members of a gang
//! are co-scheduled, and a request for the job of one member applies to the jobs of all:
//!
//! - `gang_ring.rs`: which contexts are members;
//! - `switch.rs`: members enter the run queue together;
//! - `gang_turn.rs`, `seating.rs`: which slots a gang can have, and when;
//! - `gang_claim.rs`: slots that are set aside for a gang until all members can be started.

use super::ids::ContextIndex;
use super::seating::Seating;
use super::state::Scheduler;
use super::{ContextId, Refusal, Time};

impl Scheduler {
    /// Checks whether the members of a gang and one more context could all be on slots together.
    pub(super) fn check_seats(&self, ctx: ContextIndex, with: ContextIndex) -> Result<(), Refusal> {
        let mut seating = Seating::default();
        for member in self.entities.gang(with).chain([ctx]) {
            let context = &self.entities[member];
            let slots = self.queues[context.class].slots & context.params.mask;
            if !seating.add(member, slots) {
                return Err(Refusal::NoSpace);
            }
        }
        match seating.fits(u8::MAX) {
            true => Ok(()),
            false => Err(Refusal::NoSpace),
        }
    }

    /// Removes a context from its gang, if it is in one. Returns a member that stays, if there is
    /// one.
    pub(super) fn leave_gang(&mut self, now: Time, ctx: ContextIndex) -> Option<ContextIndex> {
        if !self.entities.is_ganged(ctx) {
            return None;
        }
        self.drop_claims_of(ctx);
        let mate = self.entities.leave_ring(ctx);
        for ctx in mate.into_iter().chain([ctx]) {
            self.change_access(now, ctx);
        }
        if let Some(mate) = mate {
            // The context may have kept the other members back.
            self.gather(mate);
        }
        mate
    }

    /// Returns how many members the gang of a context has; 1: the context is in no gang.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`].
    pub fn gang_size(&self, id: ContextId) -> Result<u32, Refusal> {
        Ok(self.gang_size_of(self.entities.owned(id)?))
    }

    /// Returns one member of the gang of a context, the same for all members; `None`: the context
    /// is in no gang.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`].
    pub fn gang_of(&self, id: ContextId) -> Result<Option<ContextId>, Refusal> {
        let ctx = self.entities.owned(id)?;
        if !self.entities.is_ganged(ctx) {
            return Ok(None);
        }
        let members = self.entities.gang(ctx).map(|at| self.entities.id(at));
        Ok(members.min_by_key(|member| member.index()))
    }

    fn gang_size_of(&self, ctx: ContextIndex) -> u32 {
        self.entities.mates(ctx).fold(1, |size, _| size + 1)
    }
}
