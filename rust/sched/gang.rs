// SPDX-License-Identifier: GPL-2.0

//! Gangs: contexts of one group that are preempted, held and resumed together.
//!
//! A program whose one queue waits for another of its own stands still when only that other one is taken off its slot. So what
//! is asked of the job of one is asked of the jobs of all, in one call. Slices are each one's own: a gang is not put on slots
//! at one time.
//!
//! Its members are linked by `next` into a ring, which a context in use needs for nothing else.

use core::iter::successors;
use core::ops::DerefMut;

use super::machine::{Machine, Out};
use super::slab::{Slab, NONE};
use super::{ContextId, Entry, Refusal, Time};

impl<S: DerefMut<Target = [Entry]>> Slab<S> {
    /// The next one in the ring of `ctx`; none if it is alone.
    fn mate(&self, ctx: ContextId) -> Option<ContextId> {
        self.id_at(self.get(ctx)?.next)
    }

    fn set_mate(&mut self, ctx: ContextId, mate: Option<ContextId>) {
        // CAST: an index is of 32 bits.
        let next = mate.map_or(NONE, |mate| mate.index() as u32);
        if let Some(entry) = self.get_mut(ctx) {
            entry.next = next;
        }
    }

    /// The one after `at` in the ring of `ctx`, until that comes again.
    fn mate_after(&self, at: ContextId, ctx: ContextId) -> Option<ContextId> {
        self.mate(at).filter(|&mate| mate != ctx)
    }

    /// The others in the ring of `ctx`, from the one after it on.
    fn mates(&self, ctx: ContextId) -> impl Iterator<Item = ContextId> + '_ {
        let first = self.mate_after(ctx, ctx);
        successors(first, move |&at| self.mate_after(at, ctx))
    }

    /// How many there are in the ring of `ctx`, itself included. O(result).
    fn gang_size(&self, ctx: ContextId) -> u32 {
        self.mates(ctx).fold(1, |size, _| size + 1)
    }

    fn is_mate(&self, ctx: ContextId, other: ContextId) -> bool {
        self.mates(ctx).any(|mate| mate == other)
    }

    /// Takes a context out of its gang. O(members).
    pub(super) fn leave_gang(&mut self, ctx: ContextId) {
        let mut mates = self.mates(ctx);
        let Some(after) = mates.next() else {
            return;
        };
        let before = mates.last().unwrap_or(after);
        // Of two the other one is alone then.
        self.set_mate(before, Some(after).filter(|&after| after != before));
        self.set_mate(ctx, None);
    }

    /// Puts a context that is in no gang into that of `other`. O(1).
    fn join_gang(&mut self, ctx: ContextId, other: ContextId) {
        let after = self.mate(other).unwrap_or(other);
        self.set_mate(ctx, Some(after));
        self.set_mate(other, Some(ctx));
    }
}

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// Most members of a gang: what one call does to it is done with the caller's lock held.
    pub const GANG_MAX: u32 = 64;

    /// Lets a context belong to the gang of `with`, of which that is the first member if it was in none, or to no gang
    /// (`None`). It leaves the one that it was in. Its job stays as it is. O([`Machine::GANG_MAX`]).
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`] (either), [`Refusal::Range`] (`with` is the context itself, or of another group),
    /// [`Refusal::NoSpace`] (the gang has [`Machine::GANG_MAX`] members); nothing was changed.
    pub fn set_gang(&mut self, ctx: ContextId, with: Option<ContextId>) -> Result<(), Refusal> {
        self.slab.owned(ctx)?;
        let Some(with) = with else {
            self.slab.leave_gang(ctx);
            return Ok(());
        };
        self.slab.owned(with)?;
        if with == ctx || self.slab.key_of(with) != self.slab.key_of(ctx) {
            return Err(Refusal::Range);
        }
        if self.slab.is_mate(ctx, with) {
            return Ok(());
        }
        if self.slab.gang_size(with) >= Self::GANG_MAX {
            return Err(Refusal::NoSpace);
        }
        self.slab.leave_gang(ctx);
        self.slab.join_gang(ctx, with);
        Ok(())
    }

    /// Takes a context out of its gang if that has a member of another group: a context has been moved
    /// ([`Machine::regroup`]). O([`Machine::GANG_MAX`]).
    pub fn leave_foreign_gang(&mut self, ctx: ContextId) {
        let own = self.slab.key_of(ctx);
        if self
            .slab
            .mates(ctx)
            .any(|mate| self.slab.key_of(mate) != own)
        {
            self.slab.leave_gang(ctx);
        }
    }

    /// How many members the gang of a context has; 1: it is in none.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`].
    pub fn gang_size(&self, ctx: ContextId) -> Result<u32, Refusal> {
        self.slab.owned(ctx)?;
        Ok(self.slab.gang_size(ctx))
    }

    /// [`Event::Preempt`](super::Event::Preempt), of all members of a gang that have a job.
    pub(super) fn preempt_gang(
        &mut self,
        now: Time,
        ctx: ContextId,
        hold: bool,
        out: &mut Out<'_>,
    ) -> Result<(), Refusal> {
        self.preempt(now, ctx, hold, out)?;
        self.each_mate(ctx, |machine, mate| {
            // Whoever has no job takes no part.
            let _ = machine.preempt(now, mate, hold, out);
        });
        Ok(())
    }

    /// [`Event::Resume`](super::Event::Resume), of all members of a gang that have a job.
    pub(super) fn resume_gang(
        &mut self,
        now: Time,
        ctx: ContextId,
        out: &mut Out<'_>,
    ) -> Result<(), Refusal> {
        let mut waits = self.resume(now, ctx)?;
        self.each_mate(ctx, |machine, mate| {
            // Whoever has no job takes no part, and whose slots are all out of use stays held.
            waits |= machine.resume(now, mate).unwrap_or(false);
        });
        if waits {
            self.press_all(now, out);
        }
        Ok(())
    }

    /// Does something with all others in the gang of `ctx`, which must leave the gang as it is.
    fn each_mate(&mut self, ctx: ContextId, mut what: impl FnMut(&mut Self, ContextId)) {
        let mut at = ctx;
        while let Some(mate) = self.slab.mate_after(at, ctx) {
            what(self, mate);
            at = mate;
        }
    }
}
