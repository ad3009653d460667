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

use super::event::Cx;
use super::ids::ContextIndex;
use super::seating::Seating;
use super::state::Scheduler;
use super::{Action, ContextId, Refusal, Time};

impl Scheduler {
    /// Adds a context to the gang of `with`, which becomes the first member if it was in no gang;
    /// `None`: the context is to be in no gang. The context leaves its previous gang. Its job stays
    /// where it is.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`] (either), [`Refusal::Range`] (`with` is the context itself, or
    /// belongs to another group), [`Refusal::NoSpace`] (the members could not all be on slots
    /// together even if the slots were vacant); nothing was changed.
    pub fn set_gang(
        &mut self,
        now: Time,
        id: ContextId,
        with: Option<ContextId>,
        out: &mut dyn FnMut(Action),
    ) -> Result<(), Refusal> {
        let entities = &self.entities;
        let ctx = entities.owned(id)?;
        let with = with.map(|with| entities.owned(with)).transpose()?;
        if let Some(with) = with {
            if with == ctx || entities.key_of(with) != entities.key_of(ctx) {
                return Err(Refusal::Range);
            }
            if entities.mates(ctx).any(|mate| mate == with) {
                return Ok(());
            }
            self.check_seats(ctx, with)?;
        }
        self.leave_gang(now, ctx);
        if let Some(with) = with {
            self.entities.join_ring(ctx, with);
            self.change_access(now, ctx);
            self.change_access(now, with);
            self.gather(ctx);
        }
        self.forget_all_plans();
        self.reschedule_all(&mut Cx::new(now, out));
        Ok(())
    }

    /// Checks whether the members of a gang and one more context could all be on slots together.
    fn check_seats(&self, ctx: ContextIndex, with: ContextIndex) -> Result<(), Refusal> {
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

    /// Removes a context from its gang, if it is in one.
    pub(super) fn leave_gang(&mut self, now: Time, ctx: ContextIndex) {
        if !self.entities.is_ganged(ctx) {
            return;
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
    }

    /// Removes a context from its gang if the gang has a member of another group, after a context
    /// was moved ([`Scheduler::regroup`]).
    pub fn leave_foreign_gang(&mut self, now: Time, id: ContextId, out: &mut dyn FnMut(Action)) {
        let entities = &self.entities;
        let Some(ctx) = entities.find(id) else {
            return;
        };
        let key = entities.key_of(ctx);
        if entities.mates(ctx).any(|mate| entities.key_of(mate) != key) {
            self.leave_gang(now, ctx);
            self.reschedule_all(&mut Cx::new(now, out));
        }
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
