// SPDX-License-Identifier: GPL-2.0

//! The starvation boost: whatever the policy prefers, the context that waits longest gets a slice
//! now and then.
//!
//! If the context has waited for longer than the boost interval, and the last slice given for this
//! reason is at least as long ago, the context is given the next slice, which is not cut short. The
//! slice is as long as the context's own, but no longer than a quarter of the interval. So at most
//! a quarter of the time goes against the policy, and each of n waiting contexts runs within n + 1
//! intervals, slices and switches.

use super::ids::ContextIndex;
use super::state::Scheduler;
use super::{Duration, Refusal, SlotId, Time};

/// How many of the contexts that wait longest are checked for one that may run on a slot; the
/// others will be among them later.
const LOOKS_MAX: usize = 8;

impl Scheduler {
    /// The shortest boost interval: 10 ms.
    pub const BOOST_MIN: Duration = Duration::from_ms(10);
    /// The longest boost interval: 60 s.
    pub const BOOST_MAX: Duration = Duration::from_ms(60_000);

    /// Checks a boost interval: zero for "none", or in range.
    pub(super) fn check_boost(boost: Duration) -> Result<(), Refusal> {
        let range = Self::BOOST_MIN..=Self::BOOST_MAX;
        if boost != Duration::ZERO && !range.contains(&boost) {
            return Err(Refusal::Range);
        }
        Ok(())
    }

    /// Returns the context that waits longest for a slot, and when it has waited too long.
    pub(super) fn starving(&self, slot: SlotId) -> Option<(ContextIndex, Time)> {
        if self.boost == Duration::ZERO {
            return None;
        }
        let queue = &self.queues[self.slots[slot].class];
        let mut next = queue.waiting.oldest;
        for _ in 0..LOOKS_MAX {
            let at = next?;
            let (ctx, entity) = (at.context(), &self.entities[at]);
            let is_hidden = queue.is_hidden(&self.entities, ctx) || self.is_kept_back(ctx);
            if entity.slots() & slot.bit() != 0 && !is_hidden {
                let since = self.entities[ctx].since.max(queue.boosted_at);
                return Some((ctx, since + self.boost));
            }
            next = entity.newer;
        }
        None
    }

    /// Moves contexts of throttled groups to the end of the list of waiting contexts, so that they
    /// do not hide the others.
    pub(super) fn rotate_hidden(&mut self, class: SlotId) {
        let (queue, entities) = (&mut self.queues[class], &mut self.entities);
        for _ in 0..LOOKS_MAX {
            let oldest = queue.waiting.oldest;
            let Some(at) = oldest.filter(|at| queue.is_hidden(entities, at.context())) else {
                return;
            };
            queue.waiting.remove(entities, at);
            queue.waiting.push(entities, at);
        }
    }
}
