// SPDX-License-Identifier: GPL-2.0

//! Throttling: entities leave the ready queue when a limit is used up, and come back when the limit
//! is refilled.

use super::event::Cx;
use super::ids::{ContextIndex, EntityKind};
use super::state::Scheduler;
use super::{SlotId, Time, MAX_SLOTS};

/// How many entities one decision lets wait for a slot again; the timer brings the others.
const UNTHROTTLE_MAX: usize = 4;

impl Scheduler {
    /// Throttles the group of a context of the ready queue, or a group above, if its cap is used
    /// up. Returns whether a group was throttled.
    pub(super) fn throttle_group_of(&mut self, now: Time, ctx: ContextIndex) -> bool {
        let Some((at, cap)) = self.spent_cap(now, ctx) else {
            return false;
        };
        self.forget_all_plans();
        let used = self.used(now, at);
        let context = &self.entities[ctx];
        let (class, timeslice) = (context.class, context.params.timeslice);
        let entities = &self.entities;
        let group = entities.se(ctx).parent.and_then(|parent| {
            let mut lineage = entities.lineage(parent);
            lineage.find(|&group| entities[group].registration == Some(at))
        });
        let bandwidth = &mut self.entities[at].bandwidth;
        bandwidth.refill(now, cap, used);
        let until = bandwidth.refilled_at(now, cap, used, timeslice);
        let queue = &mut self.queues[class];
        let group = match group {
            Some(group) => group,
            None => {
                queue.put_behind(&mut self.entities, ctx, (0, 0));
                self.entities[ctx].group
            }
        };
        queue.throttle_group(&mut self.entities, group, until);
        true
    }

    /// Throttles the groups of contexts that would be next on slots of a class although a cap is
    /// used up, up to the limit of this decision.
    pub(super) fn throttle_next(&mut self, cx: &mut Cx<'_>, class: SlotId) {
        if self.entities.nr_capped == 0 {
            return;
        }
        for slot in self.class_slots(class) {
            while let Some(ctx) = self.next_over_cap(cx.now, class, slot) {
                if !cx.may_throttle(class) {
                    return;
                }
                self.throttle_group_of(cx.now, ctx);
            }
        }
    }

    /// Returns a context that would be next on a slot, or would be taken along by a reservation,
    /// although a cap is used up.
    fn next_over_cap(&self, now: Time, class: SlotId, slot: SlotId) -> Option<ContextIndex> {
        let next = self.queues[class].pick_next(&self.entities, slot.bit().into());
        let starving = self.starving(slot).map(|(ctx, _)| ctx);
        let next = next.into_iter().chain(starving);
        let mut all = next.flat_map(|ctx| {
            let is_reserved = self.policy.reserves(&self.entities[ctx]);
            let count = if is_reserved { MAX_SLOTS } else { 1 };
            self.entities.gang(ctx).take(count)
        });
        all.find(|&ctx| {
            let is_ready = self.entities[ctx].is_ready() && !self.waits_for_cap(ctx);
            is_ready && self.spent_cap(now, ctx).is_some()
        })
    }

    /// Lets entities whose budget or cap was refilled wait for a slot again. O(log n).
    pub(super) fn unthrottle(&mut self, now: Time, class: SlotId) {
        for _ in 0..UNTHROTTLE_MAX {
            let next = self.queues[class].next_throttled(&self.entities);
            match next.filter(|&(_, at)| at <= now) {
                None => return,
                Some((EntityKind::Context(ctx), _)) => {
                    self.dequeue(ctx);
                    self.enqueue(now, ctx, false);
                }
                Some((EntityKind::Group(group), _)) => {
                    self.queues[class].unthrottle_group(&mut self.entities, group);
                }
            }
            self.forget_plans(class);
        }
    }

    /// Returns when the next entity of a class is unthrottled.
    pub(super) fn next_unthrottle(&self, class: SlotId) -> Option<Time> {
        let next = self.queues[class].next_throttled(&self.entities);
        next.map(|(_, at)| at)
    }
}
