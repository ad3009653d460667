// SPDX-License-Identifier: GPL-2.0

//! Membership of gangs: the members of a gang are linked in a ring.

use core::iter::{once, successors};

use super::entities::Entities;
use super::ids::ContextIndex;
use super::MAX_SLOTS;

/// The members of a gang.
pub(super) type Members = [Option<ContextIndex>; MAX_SLOTS];

impl Entities {
    /// Iterates over the other members of the gang of `ctx`, in the order of the ring.
    pub(super) fn mates(&self, ctx: ContextIndex) -> impl Iterator<Item = ContextIndex> + '_ {
        let next = move |&at: &ContextIndex| self[at].gang.filter(|&mate| mate != ctx);
        successors(next(&ctx), next)
    }

    /// Iterates over a context and the other members of its gang.
    pub(super) fn gang(&self, ctx: ContextIndex) -> impl Iterator<Item = ContextIndex> + '_ {
        once(ctx).chain(self.mates(ctx))
    }

    /// Returns whether the jobs of a context are to be held.
    pub(super) fn is_to_be_held(&self, ctx: ContextIndex) -> bool {
        self[ctx].hold_requested || self.has_hold(ctx)
    }

    /// Returns whether a context or a member of its gang has a hold.
    pub(super) fn has_hold(&self, ctx: ContextIndex) -> bool {
        self.gang(ctx).any(|member| self[member].holds > 0)
    }

    /// Returns a context and the other members of its gang, which has no more members than a card
    /// has slots.
    pub(super) fn members(&self, ctx: ContextIndex) -> Members {
        let mut members = [None; MAX_SLOTS];
        for (place, member) in members.iter_mut().zip(self.gang(ctx)) {
            *place = Some(member);
        }
        members
    }

    /// Returns whether a context is in a gang.
    pub(super) fn is_ganged(&self, ctx: ContextIndex) -> bool {
        self[ctx].gang.is_some()
    }

    /// Adds a context, which is in no gang, to the gang of `with`.
    pub(super) fn join_ring(&mut self, ctx: ContextIndex, with: ContextIndex) {
        let after = self[with].gang;
        self.nr_ganged += if after.is_some() { 1 } else { 2 };
        self[ctx].gang = Some(after.unwrap_or(with));
        self[with].gang = Some(ctx);
    }

    /// Removes a context from its gang. Returns another member, which may now be in no gang;
    /// `None`: the context was in no gang.
    pub(super) fn leave_ring(&mut self, ctx: ContextIndex) -> Option<ContextIndex> {
        let before = self.mates(ctx).last()?;
        let after = self[ctx].gang.take().filter(|&after| after != before);
        self.nr_ganged -= if after.is_some() { 1 } else { 2 };
        self[before].gang = after;
        Some(before)
    }
}
