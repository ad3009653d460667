// SPDX-License-Identifier: GPL-2.0

//! Waiting for a slot, and the starvation boost: whatever the policy prefers, the context that
//! waits longest gets a slice now and then.
//!
//! If the context has waited for longer than the boost interval, and the last slice given for this
//! reason is at least as long ago, the context is given the next slice, which is not cut short. The
//! slice is as long as the context's own, but no longer than a quarter of the interval. So at most
//! a quarter of the time goes against the policy, and each of n waiting contexts runs within n + 1
//! intervals, slices and switches.

use super::super::context::{Context, Neighbours, State};
use super::super::values::{Class, ContextId, Duration, EntityIndex, SlotId, Time};
use super::super::Scheduler;
use super::Slot;

/// How many of the contexts that wait longest are looked at for one that may run on a slot.
const LOOKS_MAX: usize = 8;

/// The contexts of a class that wait, in order of arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Waiting {
    oldest: Option<EntityIndex>,
    newest: Option<EntityIndex>,
    /// When the boost last had its turn.
    boosted_at: Time,
}

impl Waiting {
    #[inline]
    pub(in super::super) fn is_empty(&self) -> bool {
        self.oldest.is_none()
    }

    pub(in super::super) fn note_boost(&mut self, now: Time) {
        self.boosted_at = now;
    }
}

/// Queues.
impl Scheduler {
    /// Lets a job wait for a slot: since `since`, and at the turn that it had, if it had one.
    pub(in super::super) fn wait(&mut self, at: EntityIndex, since: Time, turn: Option<u64>) {
        let context = &mut self.contexts[at];
        (context.state, context.slot, context.since) = (State::Queued, None, since);
        self.link(at, turn);
    }

    /// Links a context whose job waits, unless it may use no slot.
    pub(in super::super) fn link(&mut self, at: EntityIndex, turn: Option<u64>) {
        if self.may_link(at) {
            self.queue.enqueue(at, turn);
            let older = match turn {
                Some(_) => self.longer_waiting(at),
                None => self.classes[self.contexts[at].class.at()].waiting.newest,
            };
            self.list(at, older);
            self.note_wait(at);
        }
    }

    /// Takes a context out of its queue for a change. It stays in the list of those that wait.
    /// Returns its turn; `None`: it is in no queue.
    pub(in super::super) fn detach(&mut self, at: EntityIndex) -> Option<u64> {
        let turn = self.queue.is_linked(at).then(|| self.queue.turn(at));
        match turn {
            Some(_) => self.queue.dequeue(at),
            None => self.forget_budget(at),
        }
        turn
    }

    /// Links a context again that was detached, and had `turn`.
    pub(in super::super) fn reattach(&mut self, at: EntityIndex, turn: Option<u64>) {
        if turn.is_none() {
            return self.link(at, None);
        }
        match self.may_link(at) {
            true => self.queue.enqueue(at, turn),
            false => self.unlist(at),
        }
        self.note_wait(at);
    }

    fn may_link(&mut self, at: EntityIndex) -> bool {
        self.slots_of(at) != 0 && !self.is_gathering(at) && !self.await_budget(at)
    }

    pub(in super::super) fn unlink(&mut self, at: EntityIndex) {
        if self.queue.is_linked(at) {
            self.queue.dequeue(at);
            self.unlist(at);
            self.note_wait(at);
        } else {
            self.forget_budget(at);
        }
    }

    /// Takes the job of a context, which is on no slot and bound to none, out of its queue: it wants
    /// no slot any more.
    pub(in super::super) fn stop_waiting(&mut self, now: Time, at: EntityIndex, state: State) {
        self.unlink(at);
        self.queue.sleep(at);
        self.contexts[at].rest(now, state);
    }

    /// Returns the context in the list behind which one belongs that was bound, and is given back.
    fn longer_waiting(&self, at: EntityIndex) -> Option<EntityIndex> {
        let Context { class, since, .. } = self.contexts[at];
        self.longest_waiting(class)
            .take_while(|&other| self.contexts[other].since <= since)
            .last()
    }

    /// Iterates over the contexts of a class that wait longest.
    fn longest_waiting(&self, class: Class) -> impl Iterator<Item = EntityIndex> + '_ {
        let first = self.classes[class.at()].waiting.oldest;
        let newer = |&at: &EntityIndex| self.contexts[at].neighbours.newer;
        core::iter::successors(first, newer).take(LOOKS_MAX)
    }

    /// Returns a context that could run on a slot which is vacant. If it stays, the slot stands still.
    pub fn waits_beside(&self, slot: SlotId) -> Option<ContextId> {
        let is_vacant = |slot: &&Slot| slot.protocol.is_vacant() && !self.frozen;
        let record = self.find_record(slot).filter(is_vacant)?;
        let waits = self.longest_waiting(record.class).find(|&at| {
            let is_kept = self.is_throttled(at) || self.is_ganged(at);
            !is_kept && self.slots_of(at) & slot.bit() != 0
        });
        self.successor(slot)
            .or(waits.map(|at| self.contexts.id(at)))
    }

    /// Adds a context to the list of those that wait, behind `older`.
    fn list(&mut self, at: EntityIndex, older: Option<EntityIndex>) {
        let newer = match older {
            Some(older) => self.contexts[older].neighbours.newer,
            None => self.classes[self.contexts[at].class.at()].waiting.oldest,
        };
        let waiting = &mut self.classes[self.contexts[at].class.at()].waiting;
        match older {
            Some(older) => self.contexts[older].neighbours.newer = Some(at),
            None => waiting.oldest = Some(at),
        }
        match newer {
            Some(newer) => self.contexts[newer].neighbours.older = Some(at),
            None => waiting.newest = Some(at),
        }
        self.contexts[at].neighbours = Neighbours { newer, older };
    }

    fn unlist(&mut self, at: EntityIndex) {
        let Neighbours { newer, older } = core::mem::take(&mut self.contexts[at].neighbours);
        let waiting = &mut self.classes[self.contexts[at].class.at()].waiting;
        match older {
            Some(older) => self.contexts[older].neighbours.newer = newer,
            None => waiting.oldest = newer,
        }
        match newer {
            Some(newer) => self.contexts[newer].neighbours.older = older,
            None => waiting.newest = older,
        }
    }
}

/// The starvation boost.
impl Scheduler {
    /// Returns the context that waits longest for a slot, and when it has waited too long.
    pub(in super::super) fn starving(&mut self, slot: SlotId) -> Option<(EntityIndex, Time)> {
        if self.boost == Duration::ZERO {
            return None;
        }
        let class = self.slot(slot).class;
        let mut next = self.classes[class.at()].waiting.oldest;
        for _ in 0..LOOKS_MAX {
            let at = next?;
            next = self.contexts[at].neighbours.newer;
            if self.is_throttled(at) {
                // Contexts of throttled groups do not hide the others.
                self.unlist(at);
                self.list(at, self.classes[class.at()].waiting.newest);
            } else if self.queue.allowed(at) & slot.bit() != 0 {
                let since = self.contexts[at].since;
                let since = since.max(self.classes[class.at()].waiting.boosted_at);
                return Some((at, since + self.boost));
            }
        }
        None
    }
}
