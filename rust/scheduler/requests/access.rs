// SPDX-License-Identifier: GPL-2.0

//! Adding contexts, and changing what they may use while their jobs wait or run: parameters, slots,
//! group.
//!
//! While it is enabled, a context may use the slots of its mask that are not exclusive to other
//! groups. A job that waits while no slot is allowed is in no queue, so that it costs other contexts
//! nothing. Once it may use a slot again, it is treated like a job that did not want a slot until
//! then.

use super::super::card::{Call, Card};
use super::super::context::{Context, State};
use super::super::values::{
    ContextConfig, ContextId, EntityIndex, GroupIndex, GroupPath, Params, PauseCause, Rank,
    Refusal, Time,
};
use super::super::Scheduler;

/// Contexts.
impl Scheduler {
    /// Adds a context, and its group unless the group exists. A priority above the ceiling of the
    /// group is lowered to the ceiling.
    ///
    /// # Errors
    ///
    /// [`Refusal::Gone`], [`Refusal::Range`] (a parameter), [`Refusal::NoSlot`] (no slot of the
    /// class in the mask is in use), [`Refusal::Admission`], [`Refusal::NoSpace`] (the storage is full).
    pub fn add(&mut self, now: Time, config: ContextConfig) -> Result<ContextId, Refusal> {
        self.check_present()?;
        config.params.check()?;
        let class = self.find_class(config.class).ok_or(Refusal::NoSlot)?;
        let mut params = config.params;
        if self.classes[class.at()].usable & params.mask == 0 {
            return Err(Refusal::NoSlot);
        }
        self.admit(class, None, &params)?;
        let at = self.contexts.next_free().ok_or(Refusal::NoSpace)?;
        let group = self.group_at(now, config.group).ok_or(Refusal::NoSpace)?;
        let ceiling = self.groups.priority_ceiling(Some(group));
        params.priority = params.priority.min(ceiling);
        let place = (class, Rank::of(&params));
        if !self.queue.join(&mut self.groups, at, group, place) {
            return Err(Refusal::NoSpace);
        }
        self.contexts.add(Context::new(class, params, now));
        if is_capped(&params) && !self.make_own_group(now, at, group) {
            self.queue.part(&mut self.groups, at);
            self.contexts.remove(at);
            return Err(Refusal::NoSpace);
        }
        self.note_admitted(class, None, Some(&params));
        self.apply(at);
        Ok(self.contexts.id(at))
    }

    /// Returns the group at a path, which is made if there is none, and moved if it is elsewhere.
    fn group_at(&mut self, now: Time, path: GroupPath) -> Option<GroupIndex> {
        let level = path.level.and_then(|key| self.groups.find_registered(key));
        let at = self.groups.make(path.group, level)?;
        match self.nest_unregistered(now, at, level) {
            // Without contexts, the group was forgotten.
            true => self.groups.make(path.group, level),
            false => Some(at),
        }
    }

    /// Puts a group below a registered one, unless the group is registered itself. Returns whether
    /// it has moved.
    pub(super) fn nest_unregistered(
        &mut self,
        now: Time,
        at: GroupIndex,
        level: Option<GroupIndex>,
    ) -> bool {
        let moves = !self.groups.is_registered(at) && self.groups.parent(at) != level;
        if moves {
            self.charge_all(now);
            self.queue.move_group(&mut self.groups, at, level);
        }
        moves
    }

    /// Returns the group of a context that has a key.
    pub(in super::super) fn keyed_group(&self, at: EntityIndex) -> Option<GroupIndex> {
        let group = self.queue.group_of(at)?;
        match self.groups.is_own(group) {
            true => self.groups.parent(group),
            false => Some(group),
        }
    }

    /// Puts a context, which is in no queue and wants no slot, into an own group below `group`, for
    /// its cap. Returns `false` if there is no room; then nothing was changed.
    fn make_own_group(&mut self, now: Time, at: EntityIndex, group: GroupIndex) -> bool {
        let Some(own) = self.groups.make_own(group) else {
            return false;
        };
        let context = &self.contexts[at];
        let place = (context.class, Rank::of(&context.params));
        let cap = context.params.cap;
        if !self.queue.move_to(&mut self.groups, at, own, place) {
            return false;
        }
        self.groups.set_cap(own, cap.into(), now);
        true
    }

    /// Makes the entity of a context agree with its parameters and settings.
    pub(in super::super) fn apply(&mut self, at: EntityIndex) {
        let allowed = self.allowed(at);
        let params = self.contexts[at].params;
        let both = (u16::from(allowed) << u8::BITS) | u16::from(allowed);
        if let Some(own) = self.queue.group_of(at) {
            if self.groups.is_own(own) {
                self.queue.set_weight(&self.groups, own, params.weight);
            }
        }
        self.queue.set(at, &params, params.weight, both);
    }
}

/// Slots.
impl Scheduler {
    /// Returns the slots, a bit each, that are exclusive to groups other than `group` and those
    /// above it.
    fn foreign_slots(&self, group: Option<GroupIndex>) -> u8 {
        let foreign = self.ids().filter(|&id| {
            let owner = self.slot(id).exclusive;
            owner.is_some_and(|owner| self.groups.lineage(group).all(|at| at != owner))
        });
        foreign.fold(0, |slots, id| slots | id.bit())
    }

    /// Returns the slots that a context may use under the current settings while it is enabled.
    pub(super) fn allowed_if_enabled(&self, at: EntityIndex) -> u8 {
        self.contexts[at].params.mask & !self.foreign_slots(self.queue.group_of(at))
    }

    fn allowed(&self, at: EntityIndex) -> u8 {
        match self.contexts[at].enabled {
            true => self.allowed_if_enabled(at),
            false => 0,
        }
    }

    /// Returns whether the slots that the entity of a context may use are out of date.
    pub(super) fn access_differs(&self, at: EntityIndex) -> bool {
        self.queue.allowed(at) != self.allowed(at)
    }

    /// Disables or enables a context. The job of a disabled context is preempted at once if it is on
    /// a slot. A start is accepted, but the job waits until the context is enabled.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`], [`Refusal::Gone`]; nothing was changed.
    pub fn set_enabled<C: Card>(
        &mut self,
        card: &mut C,
        now: Time,
        id: ContextId,
        enabled: bool,
    ) -> Result<(), Refusal> {
        let at = self.present(id)?;
        if self.contexts[at].enabled != enabled {
            let call = &mut Call::new(card, now);
            self.change(call, at, |scheduler| {
                scheduler.contexts[at].enabled = enabled;
            });
            self.finish(call);
        }
        Ok(())
    }
}

/// Changes.
impl Scheduler {
    /// Changes something that the place of a context depends on. What has passed is charged at the
    /// old values.
    pub(super) fn change<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        at: EntityIndex,
        change: impl FnOnce(&mut Self),
    ) {
        let hint = self.take_hint(call, at);
        let Context {
            state, slot, class, ..
        } = self.contexts[at];
        self.charge_class(call.now, class);
        let turn = self.detach(at);
        if state.wants_slot() {
            self.queue.sleep(at);
        }
        change(self);
        self.apply(at);
        self.put_hint(call.now, at, hint);
        if state.wants_slot() {
            self.queue.wake(at);
        }
        match (state, slot) {
            (State::Queued, _) => {
                self.reattach(at, turn);
                self.arrived(call, at);
            }
            (State::Bound, Some(slot)) if self.is_unwanted(slot, at) => {
                self.withdraw_context(call, slot, at);
            }
            // It may be outranked now.
            (State::Bound, _) => self.reschedule(class),
            (State::Running, Some(slot)) if self.slot_with(at).is_some() => {
                self.renew_slice(slot, at);
                if self.is_unwanted(slot, at) {
                    self.stop(call, slot, call.now, PauseCause::Slots);
                    self.rebind(call, slot);
                }
                self.slots[slot.index()].check_by(call.now);
                self.check_run(call, slot);
            }
            _ => {}
        }
    }

    /// Changes the parameters of a context. They take effect at once, also for the current slice. A
    /// job on a slot that is no longer in the mask is preempted.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`], [`Refusal::Gone`], [`Refusal::Range`], [`Refusal::Ceiling`],
    /// [`Refusal::NoSlot`], [`Refusal::Admission`], [`Refusal::NoSpace`]; nothing was changed.
    pub fn set_params<C: Card>(
        &mut self,
        card: &mut C,
        now: Time,
        id: ContextId,
        params: Params,
    ) -> Result<(), Refusal> {
        let at = self.present(id)?;
        params.check()?;
        let old = self.contexts[at].params;
        let ceiling = self.groups.priority_ceiling(self.keyed_group(at));
        if params.priority > old.priority && params.priority > ceiling {
            return Err(Refusal::Ceiling);
        }
        let usable = self.classes[self.contexts[at].class.at()].usable;
        if params.mask != old.mask && usable & params.mask == 0 {
            return Err(Refusal::NoSlot);
        }
        self.admit(self.contexts[at].class, Some(&old), &params)?;
        let call = &mut Call::new(card, now);
        self.replace_params(call, at, params);
        if !params.cooperative {
            if let Some(slot) = self.slot_with(at) {
                let slot = &mut self.slots[slot.index()];
                slot.protocol.stop_before_boundary(call);
                self.commit_of(call, at);
            }
        }
        self.finish(call);
        Ok(())
    }

    fn commit_of<C: Card>(&mut self, call: &mut Call<'_, C>, at: EntityIndex) {
        if let Some(slot) = self.slot_with(at) {
            self.commit(call, slot);
        }
    }

    pub(super) fn replace_params<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        at: EntityIndex,
        params: Params,
    ) {
        let now = call.now;
        self.change(call, at, |scheduler| {
            let old = core::mem::replace(&mut scheduler.contexts[at].params, params);
            let class = scheduler.contexts[at].class;
            scheduler.note_admitted(class, Some(&old), Some(&params));
            let reservation = |of: &Params| (of.budget, of.deadline, of.period);
            let moves = (params.cap, params.urgency) != (old.cap, old.urgency);
            if !moves && reservation(&params) == reservation(&old) {
                return;
            }
            scheduler.settle_grant(now, at);
            if moves {
                scheduler.regroup_for_params(now, at, &old);
            }
            scheduler.apply(at);
            scheduler.renew_budget(now, at, true);
            scheduler.renew_grant(now, at);
        });
    }

    /// Moves a context to where its cap and urgency belong, which have changed.
    fn regroup_for_params(&mut self, now: Time, at: EntityIndex, old: &Params) {
        let Some(keyed) = self.keyed_group(at) else {
            return;
        };
        let Context { class, params, .. } = self.contexts[at];
        let place = (class, Rank::of(&params));
        match (is_capped(old), is_capped(&params)) {
            (false, true) => _ = self.make_own_group(now, at, keyed),
            (true, true) => {
                if let Some(own) = self.queue.group_of(at) {
                    if old.urgency != params.urgency {
                        self.queue.move_to(&mut self.groups, at, own, place);
                    }
                    self.set_cap(now, own, params.cap.into());
                }
            }
            (_, false) => _ = self.queue.move_to(&mut self.groups, at, keyed, place),
        }
    }

    /// Moves a context to another group, where it counts as new.
    pub(super) fn change_group_of<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        at: EntityIndex,
        path: GroupPath,
    ) {
        let now = call.now;
        self.change(call, at, |scheduler| {
            let Some(group) = scheduler.group_at(now, path) else {
                return;
            };
            scheduler.settle_grant(now, at);
            let Context { class, params, .. } = scheduler.contexts[at];
            let place = (class, Rank::of(&params));
            let has_moved = scheduler
                .queue
                .move_to(&mut scheduler.groups, at, group, place);
            if has_moved && is_capped(&params) {
                scheduler.make_own_group(now, at, group);
            }
            scheduler.apply(at);
            scheduler.renew_grant(now, at);
        });
    }
}

/// Returns whether a context has a cap; one of a whole slot is none.
pub(super) fn is_capped(params: &Params) -> bool {
    (1..100).contains(&params.cap)
}
