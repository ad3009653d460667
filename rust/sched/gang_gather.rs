// SPDX-License-Identifier: GPL-2.0

//! Entering the run queue, which the members of a gang do together.
//!
//! While the job of a member is being saved, or a limit throttles it, the other members that wait
//! are *gathering* (`Linked::Gathering`): in no queue, so that no decision starts them.

use super::context::{JobState, Linked};
use super::ids::ContextIndex;
use super::state::Scheduler;

impl Scheduler {
    /// Enqueues a context, which waits and is in no queue, or lets it gather until its gang can be
    /// enqueued.
    pub(super) fn become_ready(&mut self, ctx: ContextIndex) {
        if self.entities.is_ganged(ctx) {
            self.entities[ctx].linked = Linked::Gathering;
            self.gather(ctx);
        } else {
            self.link_ready(ctx);
        }
    }

    /// Enqueues the members of a gang that gather, or dequeues those in the run queue, after the
    /// state of one member has changed. No-op for a context in no gang.
    pub(super) fn gather(&mut self, ctx: ContextIndex) {
        if !self.entities.is_ganged(ctx) {
            return;
        }
        let is_waiting = self.entities.gang(ctx).any(|ctx| self.keeps_gang_back(ctx));
        let mut next = Some(ctx);
        while let Some(member) = next {
            match self.entities[member].linked {
                Linked::Gathering if !is_waiting => self.link_ready(member),
                Linked::Ready | Linked::Behind if is_waiting => {
                    self.dequeue(member);
                    self.entities[member].linked = Linked::Gathering;
                }
                _ => {}
            }
            next = self.entities[member].gang.filter(|&mate| mate != ctx);
        }
    }

    /// Returns whether the other members gather because of this one: its job is leaving its slot,
    /// or is throttled.
    fn keeps_gang_back(&self, ctx: ContextIndex) -> bool {
        let context = &self.entities[ctx];
        let is_leaving = context.state == JobState::Running
            && context
                .slot
                .is_some_and(|slot| self.slots[slot].fsm.unpaused().is_none());
        is_leaving || context.linked == Linked::Throttled
    }

    fn link_ready(&mut self, ctx: ContextIndex) {
        let context = &self.entities[ctx];
        let class = context.class;
        let place = self.place_of(ctx);
        let by_group = self.policy.by_group(context);
        let is_capped = !by_group && !self.policy.reserves(context);
        let is_behind = is_capped && self.entities[context.group].throttled;
        let queue = &mut self.queues[class];
        if is_behind {
            queue.put_behind(&mut self.entities, ctx, place);
        } else {
            queue.enqueue(&mut self.entities, ctx, place, by_group);
        }
        self.forget_plans(class);
    }

    /// Removes a context from the queue that it is in.
    pub(super) fn dequeue(&mut self, ctx: ContextIndex) {
        let class = self.entities[ctx].class;
        self.queues[class].dequeue(&mut self.entities, ctx);
    }
}
