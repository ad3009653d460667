// SPDX-License-Identifier: GPL-2.0

//! Caps of groups. A run takes what it may use, a slice, from the bucket of each capped group above
//! its context when it begins, and gives back the rest. A group has one bucket for all classes; a
//! class learns that the bucket is empty when one of its slots asks for it, and then the group leaves
//! the run queue of the class with all its contexts, until the bucket is refilled.

use super::super::values::{signed, Class, Duration, EntityIndex, GroupIndex, Params, Time};
use super::super::Scheduler;

impl Scheduler {
    /// Takes what a run may use from its capped groups, at most `want`. `None`: it has none.
    pub(super) fn grant(&mut self, now: Time, at: EntityIndex, want: Duration) -> Option<Duration> {
        let budget = self.grant_budget(now, at);
        if budget.is_some() || !self.groups.has_caps() {
            return budget;
        }
        let mut least = None;
        let mut next = self.queue.group_of(at);
        while let Some(group) = next {
            if self.groups.refill(now, group) {
                let left = self.groups.left(group).min(want);
                least = Some(least.map_or(left, |least: Duration| least.min(left)));
            }
            next = self.groups.parent(group);
        }
        // Some of it may be on credit, which the next refill pays: otherwise a group that uses just
        // what its cap gives would need a timer every 100 us.
        let grant = least?.max(want.quarter()).max(Params::TIMESLICE_MIN);
        self.spend(now, at, grant);
        Some(grant)
    }

    /// Gives back to the groups of a context what its run was granted beyond `used`.
    pub(super) fn give_back_grant(
        &mut self,
        now: Time,
        at: EntityIndex,
        granted: Duration,
        used: Duration,
    ) {
        self.spend_signed(now, at, signed(used).saturating_sub(signed(granted)));
    }

    /// Deducts time from what is left of the caps of a context's groups.
    pub(in super::super) fn spend(&mut self, now: Time, at: EntityIndex, span: Duration) {
        self.spend_budget(at, signed(span));
        self.spend_signed(now, at, signed(span));
    }

    fn spend_signed(&mut self, now: Time, at: EntityIndex, time: i64) {
        if !self.groups.has_caps() || self.is_reserved(at) {
            return;
        }
        let (class, slice) = (self.contexts[at].class, self.contexts[at].params.timeslice);
        let mut next = self.queue.group_of(at);
        while let Some(group) = next {
            if self.groups.refill(now, group) {
                self.groups.spend(group, time);
                self.update_throttling(class, group, slice);
            }
            next = self.groups.parent(group);
        }
    }

    /// Throttles a group in a class, or lets it wait again, according to what is left of its cap.
    fn update_throttling(&mut self, class: Class, group: GroupIndex, slice: Duration) {
        let was = self.queue.is_group_throttled(&self.groups, group, class);
        if self.groups.is_spent(group) {
            let until = self.groups.refilled_by(group, slice);
            self.queue.throttle(&self.groups, group, class, until);
            self.dirty_classes |= class.bit();
        } else if was {
            self.unthrottle(class, group);
        }
    }

    /// Throttles, in the class of a context that would be next, its group whose cap is used up.
    /// Returns whether there is one.
    pub(in super::super) fn throttle_group_of(&mut self, now: Time, at: EntityIndex) -> bool {
        if !self.groups.has_caps() || self.is_reserved(at) {
            return self.deplete(now, at);
        }
        let (class, slice) = (self.contexts[at].class, self.contexts[at].params.timeslice);
        let mut next = self.queue.group_of(at);
        while let Some(group) = next {
            if self.groups.refill(now, group) && self.groups.is_spent(group) {
                self.update_throttling(class, group, slice);
                return true;
            }
            next = self.groups.parent(group);
        }
        false
    }

    /// Returns whether a group of a context is throttled.
    #[inline]
    pub(in super::super) fn is_throttled(&self, at: EntityIndex) -> bool {
        self.groups.has_caps() && self.queue.is_throttled(at)
    }

    /// Returns whether the budget of a context, or a cap of its groups, is used up.
    pub(in super::super) fn is_spent(&mut self, now: Time, at: EntityIndex) -> bool {
        if self.is_reserved(at) {
            return self.renew_budget(now, at, false).is_some();
        }
        let mut next = self.queue.group_of(at);
        while let Some(group) = next {
            if self.groups.refill(now, group) && self.groups.is_spent(group) {
                return true;
            }
            next = self.groups.parent(group);
        }
        false
    }

    fn unthrottle(&mut self, class: Class, group: GroupIndex) {
        self.queue.unthrottle(&self.groups, group, class);
        self.dirty_classes |= class.bit();
        self.reschedule(class);
    }

    /// Sets the cap of a group, which is in force at once.
    pub(in super::super) fn set_cap(&mut self, now: Time, group: GroupIndex, cap: u16) {
        self.groups.set_cap(group, cap, now);
        if !self.groups.is_spent(group) {
            let classes = self.queue.classes_of(&self.groups, group);
            for class in super::super::values::classes_in(classes) {
                self.unthrottle(class, group);
            }
        }
    }

    /// Lets a group of a class whose cap was refilled wait again: one in each call, the timer brings
    /// the next.
    pub(in super::super) fn unthrottle_due(&mut self, now: Time, class: Class) {
        self.dirty_classes |= class.bit();
        let due = self.queue.next_throttled(class);
        let Some((group, _)) = due.filter(|&(_, at)| at <= now) else {
            return;
        };
        self.groups.refill(now, group);
        match self.groups.is_spent(group) {
            // Another class has used what was refilled.
            true => self.update_throttling(class, group, Params::TIMESLICE_MIN),
            false => self.unthrottle(class, group),
        }
    }

    /// Settles the grant of a run whose context moves to another group.
    pub(in super::super) fn settle_grant(&mut self, now: Time, at: EntityIndex) {
        let Some(id) = self.slot_with(at) else {
            return;
        };
        let slot = &mut self.slots[id.index()];
        let accounts = &mut slot.accounts;
        if let Some(granted) = accounts.granted.take() {
            let used = accounts.charged;
            slot.quota_end = Time::NEVER;
            self.give_back_grant(now, at, granted, used);
        }
    }

    /// Takes a new grant for a run whose context has moved to another group, or whose groups have
    /// another cap.
    pub(in super::super) fn renew_grant(&mut self, now: Time, at: EntityIndex) {
        let Some(id) = self.slot_with(at) else {
            return;
        };
        self.queue.running(id, at);
        let want = self.slice(id, at, false);
        let granted = self.grant(now, at, want);
        let slot = &mut self.slots[id.index()];
        if let Some(more) = granted {
            // What was used before is no concern of the new groups.
            slot.accounts.granted = Some(slot.accounts.charged + more);
            slot.quota_end = now + more;
            self.dirty |= id.bit();
        }
    }
}
