// SPDX-License-Identifier: GPL-2.0

//! Which slots a context may use now: those of its mask that are not reserved for another group, while it is enabled.
//!
//! One mask in the entry says so, and everything that asks looks there. A job that waits while no slot is allowed to it is set
//! aside: it stays `Queued` and keeps its place in no order, so that it costs nobody else anything. Once it may use a slot
//! again it is as one that did not want one until then.

use core::ops::DerefMut;

use super::machine::{Machine, Out};
use super::{Action, ContextId, Entry, JobState, Refusal, Time};

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// Disables a context, or enables it again. A disabled one runs nowhere: a job on a slot is preempted at once, as by the
    /// end of its slice, and a Start is accepted; the jobs wait until the context is enabled. Holding is another matter: a held
    /// job stays held. To ask for what is so already changes nothing. O(log n).
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`], [`Refusal::Gone`]; nothing was changed.
    pub fn set_enabled(
        &mut self,
        now: Time,
        ctx: ContextId,
        enabled: bool,
        out: &mut impl FnMut(Action),
    ) -> Result<(), Refusal> {
        let entry = self.slab.owned(ctx)?;
        let (index, was) = (entry.queue, entry.enabled);
        if self.gone {
            return Err(Refusal::Gone);
        }
        if was != enabled {
            let out: &mut Out<'_> = out;
            self.change_access(now, ctx, |entry| entry.enabled = enabled);
            self.press(now, index, out);
        }
        Ok(())
    }

    /// What a context may use by what is set now.
    pub(super) fn allowed_to(&self, ctx: ContextId) -> Option<u8> {
        let entry = self.slab.get(ctx)?;
        let foreign = self.slab.key_of(ctx).map(|key| self.foreign_slots(key));
        let mask = entry.params.mask & !foreign.unwrap_or(0);
        Some(if entry.enabled { mask } else { 0 })
    }

    /// Makes the mask in the entry right again after something that it depends on has changed.
    pub(super) fn allow(&mut self, ctx: ContextId) {
        let allowed = self.allowed_to(ctx);
        if let (Some(entry), Some(allowed)) = (self.slab.get_mut(ctx), allowed) {
            entry.allowed = allowed;
        }
    }

    /// Has the context no slot that it may use and that is in use?
    pub(super) fn has_no_slot(&self, entry: &Entry) -> bool {
        self.check_mask(entry.queue, entry.allowed).is_err()
    }

    /// Changes what decides on the slots of a context, and puts a job that waits where it belongs then.
    pub(super) fn change_access(
        &mut self,
        now: Time,
        ctx: ContextId,
        change: impl FnOnce(&mut Entry),
    ) {
        let Some(entry) = self.slab.get(ctx) else {
            return;
        };
        let queued = entry.state == JobState::Queued;
        let aside = entry.aside;
        if queued {
            self.step_out(ctx);
        }
        let hint = self.take_hint(ctx);
        if let Some(entry) = self.slab.get_mut(ctx) {
            change(entry);
        }
        self.allow(ctx);
        self.put_hint(ctx, hint);
        if queued {
            // What it missed because it was kept from slots is not made up for.
            self.wake_clock(now, ctx);
            self.line_up(now, ctx, aside);
        }
    }
}
