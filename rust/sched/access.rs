// SPDX-License-Identifier: GPL-2.0

//! Changing what a context may use while its job waits or runs: parameters, allowed slots, group.
//!
//! While it is enabled, a context may use the slots of its mask that are not exclusive to other
//! groups. A mask in its entity holds these slots. A job that waits while no slot is allowed is
//! *ineligible*: it stays [`JobState::Queued`] but is in no queue, so that it costs other contexts
//! nothing. Once it may use a slot again, it is treated like a job that did not want a slot until
//! then.

use super::context::{JobState, Linked};
use super::entity::alone;
use super::group::GroupKind;
use super::ids::{slots_in, ContextIndex, GroupIndex, RegistrationIndex};
use super::state::Scheduler;
use super::{GroupPath, Params, Refusal, Time};

/// A context while something changes that its place depends on.
#[must_use]
pub(super) struct Change {
    /// The context was dequeued.
    dequeued: bool,
    was_ineligible: bool,
    hint: Option<Time>,
}

impl Scheduler {
    /// Begins to change something that the place of a context depends on: charges its run until now,
    /// and dequeues the context if its job waits and `dequeues`. [`Scheduler::end_change`] puts the
    /// context back.
    pub(super) fn begin_change(&mut self, now: Time, ctx: ContextIndex, dequeues: bool) -> Change {
        let context = &self.entities[ctx];
        let was_ineligible = context.linked == Linked::Ineligible;
        let dequeued = dequeues && context.state == JobState::Queued;
        if context.charging {
            self.update_curr(now, ctx);
            self.entities.deactivate(ctx);
        }
        let hint = self.take_hint(ctx);
        if dequeued {
            self.dequeue(ctx);
        }
        Change {
            dequeued,
            was_ineligible,
            hint,
        }
    }

    /// Ends a change, and enqueues the context that was dequeued for the change.
    pub(super) fn end_change(&mut self, now: Time, ctx: ContextIndex, change: Change) {
        let context = &self.entities[ctx];
        let class = context.class;
        if context.charging && self.policy.by_group(context) {
            self.entities.activate(ctx);
        }
        if change.dequeued {
            self.enqueue(now, ctx, change.was_ineligible);
        }
        self.put_hint(ctx, change.hint);
        self.forget_plans(class);
    }

    /// Returns the slots, a bit each, that are exclusive to groups other than `group` and those
    /// above it.
    fn foreign_slots(&self, group: GroupIndex) -> u8 {
        let own = self.entities.registration_of(group);
        let foreign = slots_in(u8::MAX).filter(|&id| {
            let exclusive = self.slots.find(id).and_then(|slot| slot.exclusive);
            exclusive.is_some_and(|owner| {
                let mut lineage = own.into_iter().flat_map(|at| self.entities.registered(at));
                !lineage.any(|at| at == owner)
            })
        });
        foreign.fold(0, |slots, id| slots | id.bit())
    }

    /// Returns the slots that a context may use under the current settings while it is enabled.
    fn allowed_if_enabled(&self, ctx: ContextIndex) -> u8 {
        let context = &self.entities[ctx];
        context.params.mask & !self.foreign_slots(context.group)
    }

    /// Returns the slots that a context may use under the current settings.
    fn allowed(&self, ctx: ContextIndex) -> u8 {
        match self.entities[ctx].enabled {
            true => self.allowed_if_enabled(ctx),
            false => 0,
        }
    }

    /// Updates the allowed slots of a context after something that they depend on has changed.
    pub(super) fn update_allowed(&mut self, ctx: ContextIndex) {
        let slots = self.allowed(ctx);
        let is_alone = self.entities[ctx].gang.is_none();
        let twice = if is_alone { alone(slots) } else { 0 };
        self.entities.se_mut(ctx).allowed = u16::from(slots) | twice;
    }

    /// Returns whether the allowed slots of a context are out of date.
    pub(super) fn access_differs(&self, ctx: ContextIndex) -> bool {
        self.entities.se(ctx).slots() != self.allowed(ctx)
    }

    /// Returns whether a context may use none of the slots that are in use.
    pub(super) fn has_no_slot(&self, ctx: ContextIndex) -> bool {
        self.usable_slots(ctx) == 0
    }

    /// Returns whether a context could use none of the slots that are in use even if it were
    /// enabled.
    pub(super) fn lacks_slots(&self, ctx: ContextIndex) -> bool {
        let usable = self.queues[self.entities[ctx].class].usable;
        usable & self.allowed_if_enabled(ctx) == 0
    }

    /// Moves a context to the right queue after something that its slots depend on has changed.
    pub(super) fn change_access(&mut self, now: Time, ctx: ContextIndex) {
        let change = self.begin_change(now, ctx, true);
        self.update_allowed(ctx);
        if change.dequeued {
            // The time that the context missed while it was kept off slots is not made up for.
            self.place(now, ctx);
        }
        self.end_change(now, ctx, change);
    }

    /// Changes the parameters of a context.
    pub(super) fn replace_params(&mut self, now: Time, ctx: ContextIndex, params: Params) {
        let context = &self.entities[ctx];
        let (class, old) = (context.class, context.params);
        let was_by_group = self.policy.by_group(context);
        // A context in the run queue keeps its place there unless its limits change.
        let stays = context.is_ready() && !old.limits_differ(&params);
        let change = self.begin_change(now, ctx, !stays);
        self.entities[ctx].params = params;
        self.entities.se_mut(ctx).weight = params.weight.into();
        if old.limits_differ(&params) {
            self.refill_caps(now, ctx);
        }
        let reserved = &mut self.queues[class].reserved;
        *reserved = reserved.with(Some(&old), Some(&params));
        if old.urgency != params.urgency {
            let path = self.entities.path_of(ctx);
            self.move_to(ctx, path);
        }
        self.update_allowed(ctx);
        if old.mask != params.mask {
            self.place(now, ctx);
        }
        let by_group = self.policy.by_group(&self.entities[ctx]);
        if old.urgency != params.urgency || by_group != was_by_group {
            // It has different siblings now, with which it has not competed.
            self.reset_vruntime(ctx);
        }
        if stays && self.has_no_slot(ctx) {
            self.dequeue(ctx);
            self.enqueue(now, ctx, false);
        } else if stays {
            self.requeue(ctx);
        }
        self.end_change(now, ctx, change);
    }

    /// Makes a context a member of a group, by its class and urgency.
    fn move_to(&mut self, ctx: ContextIndex, path: GroupPath) {
        let context = &self.entities[ctx];
        let kind = GroupKind {
            key: path.group,
            class: context.class,
            urgency: context.params.urgency,
        };
        self.entities.move_context(ctx, &kind, path.level);
    }

    /// Moves a context to another group, where it counts as new.
    pub(super) fn change_group_of(&mut self, now: Time, ctx: ContextIndex, path: GroupPath) {
        let change = self.begin_change(now, ctx, true);
        self.move_to(ctx, path);
        self.refill_caps(now, ctx);
        self.update_allowed(ctx);
        if change.dequeued || self.entities[ctx].charging {
            self.place(now, ctx);
        }
        self.reset_vruntime(ctx);
        self.end_change(now, ctx, change);
    }

    /// Checks that a priority is not raised above the ceiling of a context's group.
    pub(super) fn check_priority(&self, ctx: ContextIndex, params: &Params) -> Result<(), Refusal> {
        let old = self.entities[ctx].params.priority;
        let most = self.priority_ceiling_of(ctx);
        if params.priority > old && params.priority > most {
            return Err(Refusal::Ceiling);
        }
        Ok(())
    }

    /// Returns the highest priority that a context may have.
    pub(super) fn priority_ceiling_of(&self, ctx: ContextIndex) -> u8 {
        let group = self.entities[ctx].group;
        self.priority_ceiling(self.entities.registration_of(group))
    }

    /// Returns the highest priority that contexts may have for which a registration is in force.
    pub(super) fn priority_ceiling(&self, registration: Option<RegistrationIndex>) -> u8 {
        let lineage = registration.into_iter();
        let lineage = lineage.flat_map(|at| self.entities.registered(at));
        let ceilings = lineage.map(|at| self.entities[at].settings.max_priority);
        ceilings.min().unwrap_or(Params::PRIORITY_MAX)
    }
}
