// SPDX-License-Identifier: GPL-2.0

//! What contexts and groups are charged for time on slots.
//!
//! If the policy shares by groups, virtual time has a level for each group: an entity competes with
//! its siblings. A context is charged from START to the observed end of its run: its restores are
//! its own cost, and so are its saves at the end of a slice. An earlier save is charged to the
//! context that the job was preempted for.

use super::entities::LINEAGE_MAX;
use super::entity::SchedEntity;
use super::ids::{ContextIndex, EntityKind, EntityRef, GroupIndex};
use super::policy::Limit;
use super::state::{Pass, Scheduler};
use super::{Duration, SlotId, Time};

impl Scheduler {
    /// Charges a context, and the groups that compete for it, for its current run until `now`.
    pub(super) fn update_curr(&mut self, now: Time, ctx: ContextIndex) {
        self.charge_run(now, ctx, Duration::ZERO);
    }

    /// The same, except for `paid` of the run, which another context pays for in virtual time.
    fn charge_run(&mut self, now: Time, ctx: ContextIndex, paid: Duration) {
        let context = &mut self.entities[ctx];
        let span = context.uncharged(now);
        context.charged_until = now;
        context.run += span;
        let group = context.group;
        let parent = self.entities.se(ctx).parent;
        self.entities[group].run += span;
        self.note_registered_run(group, span);
        self.spend(ctx, span);
        self.charge(ctx, parent, span.less(paid));
    }

    /// Charges all current runs until `now`.
    pub(super) fn charge_runs(&mut self, now: Time) {
        self.for_runs(|scheduler, ctx| scheduler.update_curr(now, ctx));
    }

    /// Calls `act` for each context on a slot; `act` must leave the contexts there.
    pub(super) fn for_runs(&mut self, mut act: impl FnMut(&mut Self, ContextIndex)) {
        for id in self.slots.ids() {
            if let Some(ctx) = self.slots[id].fsm.run().map(|run| run.ctx.at()) {
                act(self, ctx);
            }
        }
    }

    fn note_registered_run(&mut self, group: GroupIndex, span: Duration) {
        let mut next = self.entities.registration_of(group);
        while let Some(at) = next {
            self.entities[at].run += span;
            next = self.entities[at].parent;
        }
    }

    /// Charges a context in virtual time for what was spent on its behalf while it was on no slot.
    pub(super) fn charge_off_slot(&mut self, ctx: ContextIndex, span: Duration) {
        let by_group = self.policy.by_group(&self.entities[ctx]);
        let group = self.entities[ctx].group;
        self.charge(ctx, by_group.then_some(group), span);
        if self.policy.is_fair() {
            self.requeue(ctx);
        }
    }

    /// Charges a context and the groups from `parent` upwards in virtual time.
    fn charge(&mut self, ctx: ContextIndex, parent: Option<GroupIndex>, span: Duration) {
        self.entities.se_mut(ctx).charge(span);
        let class = self.entities[ctx].class;
        let mut next = parent;
        while let Some(group) = next {
            self.change_group(class, group, |entity| entity.charge(span));
            next = self.entities.se(group).parent;
        }
    }

    /// Deducts time from the limits that hold for a context.
    pub(super) fn spend(&mut self, ctx: ContextIndex, span: Duration) {
        let limit = self.policy.limit(&self.entities[ctx]);
        if limit != Limit::None {
            self.entities[ctx].bandwidth.spend(span);
        }
        if self.entities.nr_capped == 0 || limit == Limit::Reservation {
            return;
        }
        let mut next = self.entities.registration_of(self.entities[ctx].group);
        while let Some(at) = next {
            self.entities[at].bandwidth.spend(span);
            next = self.entities[at].parent;
        }
    }

    /// Changes the virtual time of a group.
    pub(super) fn change_group(
        &mut self,
        class: SlotId,
        group: GroupIndex,
        change: impl FnOnce(&mut SchedEntity),
    ) {
        change(self.entities.se_mut(group));
        if self.policy.is_fair() {
            self.queues[class].requeue_group(&mut self.entities, group);
        }
    }

    /// Returns the place of a context among the waiting contexts.
    pub(super) fn place_of(&self, ctx: ContextIndex) -> (u8, u64) {
        let vruntime = self.entities.se(ctx).vruntime;
        self.policy.place(&self.entities[ctx], vruntime)
    }

    /// Moves a context to its new place after something that the place depends on has changed.
    pub(super) fn requeue(&mut self, ctx: ContextIndex) {
        let context = &self.entities[ctx];
        if context.is_ready() {
            let (class, place) = (context.class, self.place_of(ctx));
            self.queues[class].requeue(&mut self.entities, ctx, place);
        }
    }
}

/// Initial virtual times.
impl Scheduler {
    /// Places a context that begins to want a slot: it keeps only a limited credit for the time in
    /// which it did not want one. The same holds for each of its groups, if no other context of the
    /// group wants a slot.
    pub(super) fn place(&mut self, now: Time, ctx: ContextIndex) {
        if !self.policy.is_fair() {
            return;
        }
        let (class, group) = (self.entities[ctx].class, self.entities[ctx].group);
        self.update_min_vruntime(now, class, None, None);
        let mut min_vruntime = self.queues[class].min_vruntime;
        if self.policy.by_group(&self.entities[ctx]) {
            let mut path = [None; LINEAGE_MAX];
            for (place, group) in path.iter_mut().zip(self.entities.lineage(group)) {
                *place = Some(group);
            }
            for group in path.into_iter().rev().flatten() {
                self.update_min_vruntime(now, class, Some(group), None);
                if self.entities[group].nr_active == 0 {
                    self.entities.se_mut(group).place(min_vruntime);
                }
                min_vruntime = self.entities[group].min_vruntime;
            }
        }
        self.entities.se_mut(ctx).place(min_vruntime);
    }

    /// Updates the least virtual times on all levels after the run of `ctx` has ended and was
    /// charged.
    pub(super) fn update_min_vruntimes(&mut self, now: Time, ctx: ContextIndex) {
        if !self.policy.is_fair() {
            return;
        }
        let class = self.entities[ctx].class;
        let mut leaver = EntityRef::from(ctx);
        loop {
            let level = self.entities[leaver].parent;
            self.update_min_vruntime(now, class, level, Some(leaver));
            match level {
                Some(group) => leaver = group.into(),
                None => return,
            }
        }
    }

    /// Updates the least virtual time of the members of a group, or of the class: the least of the
    /// members that run, of the first that waits, and of `leaver`, which just ran. It never runs
    /// backwards.
    fn update_min_vruntime(
        &mut self,
        now: Time,
        class: SlotId,
        level: Option<GroupIndex>,
        leaver: Option<EntityRef>,
    ) {
        let entities = &self.entities;
        let mut least = u64::MAX;
        if let Some(first) = self.queues[class].first_of_level(entities, level) {
            least = entities[first].vruntime;
        }
        if let Some(leaver) = leaver {
            least = least.min(entities[leaver].vruntime);
        }
        for id in self.class_slots(class) {
            let Some(run) = self.slots[id].fsm.run() else {
                continue;
            };
            if let Some(at) = entities.ancestor_below(run.ctx.at(), level) {
                let uncharged = entities[run.ctx.at()].uncharged(now);
                least = least.min(entities[at].vruntime_after(uncharged));
            }
        }
        if least == u64::MAX {
            return;
        }
        let min_vruntime = match level {
            Some(group) => &mut self.entities[group].min_vruntime,
            None => &mut self.queues[class].min_vruntime,
        };
        *min_vruntime = (*min_vruntime).max(least);
    }

    /// Lets the next context that waits for `slot` go before `ctx`, which leaves the slot and will
    /// wait: the entity of `ctx` is moved forward to the virtual time of the sibling that competes
    /// for the next context. Where virtual time does not decide, being the last of its equals is
    /// enough.
    pub(super) fn yield_to_next(&mut self, slot: SlotId, ctx: ContextIndex) {
        let class = self.entities[ctx].class;
        let next = self.queues[class].pick_next(&self.entities, slot.bit().into());
        let Some(next) = next else {
            return;
        };
        let (yields, waits) = (&self.entities[ctx], &self.entities[next]);
        if self.policy.rank(yields) != self.policy.rank(waits) {
            return;
        }
        let by_group = self.policy.by_group(yields);
        let group = by_group.then_some(yields.group);
        // The context is in no queue: its group competes for it again once it is.
        self.entities.se_mut(ctx).parent = group;
        let (own, other) = self.entities.siblings(ctx, next);
        self.entities.se_mut(ctx).parent = None;
        self.advance(class, own, self.entities[other].vruntime);
    }

    /// Advances the virtual time of a group, or of a context that does not wait, to at least
    /// `least`.
    fn advance(&mut self, class: SlotId, at: EntityRef, least: u64) {
        if self.entities[at].vruntime >= least {
            return;
        }
        match self.entities.kind(at) {
            EntityKind::Context(ctx) => self.entities.se_mut(ctx).vruntime = least,
            EntityKind::Group(group) => {
                self.change_group(class, group, |entity| entity.vruntime = least);
            }
        }
    }

    /// Advances the virtual times of a context whose run begins, and of its groups, if they are
    /// further behind the first sibling that waits than a turn of the sibling explains: what an
    /// entity could not use, or did not want, is not kept for later. Does nothing during a
    /// sweep, which changes virtual times one by one.
    fn limit_lag(&mut self, ctx: ContextIndex) {
        let context = &self.entities[ctx];
        if !self.policy.by_group(context) || self.sweep.pass != Pass::None {
            return;
        }
        let (class, rank) = (context.class, self.policy.rank(context));
        let mut next = Some(EntityRef::from(ctx));
        while let Some(at) = next {
            next = self.entities[at].parent.map(EntityRef::from);
            let queue = &self.queues[class];
            let first = queue.first_sibling(&self.entities, at, u16::MAX);
            let first = first.map(|first| &self.entities[first]);
            if let Some(first) = first.filter(|first| first.node.sched_key().rank == rank) {
                let least = first
                    .vruntime
                    .saturating_sub(first.lead_max(queue.longest_turn()));
                self.advance(class, at, least);
            }
        }
    }

    /// Resets the virtual time of a context to that of its siblings.
    pub(super) fn reset_vruntime(&mut self, ctx: ContextIndex) {
        let context = &self.entities[ctx];
        let start = if self.policy.by_group(context) {
            self.entities[context.group].min_vruntime
        } else {
            self.queues[context.class].min_vruntime
        };
        self.entities.se_mut(ctx).vruntime = start;
    }

    /// Resets the virtual time of a group to that of its siblings.
    pub(super) fn reset_group_vruntime(&mut self, group: GroupIndex) {
        let class = self.entities[group].kind.class;
        let start = match self.entities.se(group).parent {
            Some(parent) => self.entities[parent].min_vruntime,
            None => self.queues[class].min_vruntime,
        };
        self.change_group(class, group, |entity| entity.vruntime = start);
    }
}

/// The beginning and the end of a run.
impl Scheduler {
    /// Notes that the run of a context begins.
    pub(super) fn account_start(&mut self, now: Time, ctx: ContextIndex) {
        let context = &mut self.entities[ctx];
        context.charging = true;
        context.charged_until = now;
        if self.policy.by_group(&self.entities[ctx]) {
            self.entities.activate(ctx);
        }
        self.limit_lag(ctx);
    }

    /// Charges a run until its end, except for a save that another context pays for.
    pub(super) fn account_stop(
        &mut self,
        now: Time,
        ctx: ContextIndex,
        paid: Option<(ContextIndex, Duration)>,
    ) {
        let save = paid.map_or(Duration::ZERO, |(_, save)| save);
        self.charge_run(now, ctx, save);
        if let Some((payer, save)) = paid {
            self.charge_off_slot(payer, save);
        }
        self.entities[ctx].charging = false;
        self.update_min_vruntimes(now, ctx);
        self.entities.deactivate(ctx);
    }
}
