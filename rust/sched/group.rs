// SPDX-License-Identifier: GPL-2.0

//! Groups: who stands behind contexts, as the caller names it.
//!
//! A group has one record for each class and urgency that its contexts are of. Records stand in the same storage as contexts,
//! behind them, and are found by a hash of what they are for. The record of a group whose last context closed is remembered
//! until its place is needed, those longest without a context being forgotten first: so nobody is a newcomer by closing all
//! and opening again.

use core::ops::DerefMut;

use super::chain::Chain;
use super::machine::Machine;
use super::registration::Registered;
use super::slab::{Slab, NONE};
use super::slot::{slots_in, MAX_SLOTS};
use super::tree::Tree;
use super::{ContextId, Duration, Entry, Params, Refusal, Time, Urgency};

/// Names a group: a number that the caller chooses. Contexts of one card with the same key belong together, in all classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GroupKey(pub u64);

/// What a group has and has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupStats {
    /// Contexts of the group that were not released.
    pub contexts: u32,
    /// Its weight against that of other groups.
    pub weight: u16,
    /// Time on slots that contexts have had while they belonged to the group, the runs that are under way included. Begins again
    /// when the group was forgotten, which no group is while it is registered.
    pub run: Duration,
}

/// The urgencies, each with records of its own.
const URGENCIES: [Urgency; 2] = [Urgency::LatencyCritical, Urgency::BestEffort];

/// What only the record of a group has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) key: GroupKey,
    /// First of those whose hash leads here; `next` of an entry links them.
    first: u32,
    /// Contexts of the record.
    contexts: u32,
    /// Those of them that wait for a slot or run, and that the group stands for.
    pub(super) active: u32,
    /// Those that wait.
    pub(super) members: Tree,
    /// The virtual time inside the group, where those of its contexts begin that did not wait.
    pub(super) virtual_ns: u64,
}

impl Record {
    pub(super) const EMPTY: Self = Self {
        key: GroupKey(0),
        first: NONE,
        contexts: 0,
        active: 0,
        members: Tree::EMPTY,
        virtual_ns: 0,
    };
}

/// The lists of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Records {
    /// The first that is used for no group.
    pub(super) free: u32,
    /// Those that are only remembered, the one that has been without a context for longest first.
    remembered: Chain,
    pub(super) registered: Registered,
}

impl Records {
    pub(super) const fn new(free: u32) -> Self {
        Self {
            free,
            remembered: Chain::EMPTY,
            registered: Registered::NONE,
        }
    }
}

/// Which record of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Of {
    pub(super) queue: u8,
    pub(super) urgency: Urgency,
    pub(super) key: GroupKey,
}

impl Of {
    /// Which one an entry is, that is a record.
    fn record(entry: &Entry) -> Self {
        Self {
            queue: entry.queue,
            urgency: entry.params.urgency,
            key: entry.record.key,
        }
    }

    /// Well mixed: the keys may be small numbers in a row.
    fn hash(&self) -> u32 {
        let kind = (u64::from(self.queue) << 1) | u64::from(self.urgency == Urgency::BestEffort);
        let mut mixed = self.key.0 ^ kind.rotate_right(8);
        for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
            mixed = (mixed ^ (mixed >> 31)).wrapping_mul(factor);
        }
        (mixed >> 32) as u32
    }
}

impl<S: DerefMut<Target = [Entry]>> Slab<S> {
    /// The place whose list has the record `of`.
    fn bucket(&self, of: &Of) -> u32 {
        let (begin, end) = self.record_places();
        let scaled = (u64::from(of.hash()) * u64::from(end - begin)) >> 32;
        begin + scaled as u32
    }

    fn is_record(&self, at: u32, of: &Of) -> bool {
        self.at(at).is_some_and(|entry| Of::record(entry) == *of)
    }

    /// The record `of`, if there is one. O(1) but for collisions.
    pub(super) fn record(&self, of: &Of) -> Option<u32> {
        let mut at = self.at(self.bucket(of))?.record.first;
        while at != NONE && !self.is_record(at, of) {
            at = self.at(at)?.next;
        }
        (at != NONE).then_some(at)
    }

    /// The record that a context is of.
    pub(super) fn record_of(&self, ctx: ContextId) -> Option<&Entry> {
        self.at(self.get(ctx)?.group)
    }

    /// The group that a context belongs to.
    pub(super) fn key_of(&self, ctx: ContextId) -> Option<GroupKey> {
        Some(self.record_of(ctx)?.record.key)
    }

    pub(super) fn record_of_mut(&mut self, ctx: ContextId) -> Option<&mut Entry> {
        let group = self.get(ctx)?.group;
        self.at_mut(group)
    }

    /// Lets a context belong to the record `of`, which is made with this weight if there is none. [`Refusal::NoSpace`] if there is no place
    /// for it; nothing was changed.
    pub(super) fn join(&mut self, ctx: ContextId, of: &Of, weight: u16) -> Result<(), Refusal> {
        let at = match self.record(of) {
            Some(at) => at,
            None => self.make_record(of, weight).ok_or(Refusal::NoSpace)?,
        };
        let record = self.at_mut(at).ok_or(Refusal::NoSpace)?;
        record.record.contexts += 1;
        if record.record.contexts == 1 {
            self.recall(at);
        }
        if let Some(entry) = self.get_mut(ctx) {
            entry.group = at;
        }
        Ok(())
    }

    /// A context belongs to its record no more.
    pub(super) fn part(&mut self, ctx: ContextId) {
        let Some(entry) = self.get_mut(ctx) else {
            return;
        };
        let at = core::mem::replace(&mut entry.group, NONE);
        let Some(entry) = self.at_mut(at) else {
            return;
        };
        entry.record.contexts = entry.record.contexts.saturating_sub(1);
        if entry.record.contexts == 0 {
            self.remember(at);
        }
    }

    /// A record without contexts: it goes to the end of those that are remembered.
    fn remember(&mut self, at: u32) {
        let mut remembered = self.records.remembered;
        remembered.push(self, at);
        self.records.remembered = remembered;
    }

    /// A record is not only remembered any more.
    pub(super) fn recall(&mut self, at: u32) {
        let mut remembered = self.records.remembered;
        remembered.remove(self, at);
        self.records.remembered = remembered;
    }

    /// A new record, remembered only.
    pub(super) fn make_record(&mut self, of: &Of, weight: u16) -> Option<u32> {
        let at = match self.records.free {
            NONE => self.forget_oldest()?,
            free => {
                self.records.free = self.at(free)?.next;
                free
            }
        };
        let bucket = self.bucket(of);
        let next = core::mem::replace(&mut self.at_mut(bucket)?.record.first, at);
        let entry = self.at_mut(at)?;
        let record = Record {
            key: of.key,
            first: entry.record.first,
            ..Record::EMPTY
        };
        let params = Params {
            urgency: of.urgency,
            weight,
            ..Params::DEFAULT
        };
        *entry = Entry::for_group(of.queue, params, record, next);
        self.remember(at);
        Some(at)
    }

    /// Forgets the group that has been without a context for longest, and gives its place.
    fn forget_oldest(&mut self) -> Option<u32> {
        let gone = self.records.remembered.oldest;
        self.unlink_record(gone)?;
        self.recall(gone);
        Some(gone)
    }

    /// Takes a record out of the list of its bucket.
    fn unlink_record(&mut self, gone: u32) -> Option<()> {
        let entry = self.at(gone)?;
        let (after, bucket) = (entry.next, self.bucket(&Of::record(entry)));
        let mut at = self.at(bucket)?.record.first;
        if at == gone {
            self.at_mut(bucket)?.record.first = after;
        }
        while at != NONE {
            let entry = self.at_mut(at)?;
            if entry.next == gone {
                entry.next = after;
            }
            at = entry.next;
        }
        Some(())
    }

    /// Frees the place of a record without contexts that is not among those that are remembered.
    pub(super) fn free_record(&mut self, at: u32) {
        if self.unlink_record(at).is_none() {
            return;
        }
        let free = core::mem::replace(&mut self.records.free, at);
        if let Some(entry) = self.at_mut(at) {
            let record = Record {
                first: entry.record.first,
                ..Record::EMPTY
            };
            *entry = Entry::EMPTY;
            entry.next = free;
            entry.record = record;
        }
    }

    /// Lets a context that belongs to a record belong to the record `of`, which is made with this weight if there is none.
    pub(super) fn rejoin(&mut self, ctx: ContextId, of: &Of, weight: u16) {
        let Some(old) = self.get(ctx).map(|entry| entry.group) else {
            return;
        };
        // There is room: the context leaves a record, which if it was the last of it may be forgotten.
        self.part(ctx);
        if self.join(ctx, of, weight).is_err() {
            if let Some(entry) = self.get_mut(ctx) {
                entry.group = old;
            }
        }
    }
}

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// Which group a context belongs to.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`].
    pub fn group_of(&self, ctx: ContextId) -> Result<GroupKey, Refusal> {
        self.slab.owned(ctx)?;
        self.slab.key_of(ctx).ok_or(Refusal::NoContext)
    }

    /// What a group has done until `now`, in all classes; nothing if none of its contexts is there, and it was forgotten or
    /// never was.
    pub fn group_stats(&self, group: GroupKey, now: Time) -> GroupStats {
        let mut stats = GroupStats {
            contexts: 0,
            weight: self.group_weight(group),
            run: self.recorded_run(group),
        };
        if let Some(entry) = self
            .slab
            .registration(group)
            .and_then(|at| self.slab.at(at))
        {
            stats.run = entry.run;
        }
        stats.contexts = self.group_contexts(group);
        for ctx in self.running() {
            if self.slab.key_of(ctx) == Some(group) {
                let due = self.slab.get(ctx).map(|entry| entry.due(now));
                stats.run += due.unwrap_or(Duration::ZERO);
            }
        }
        stats
    }

    /// Time on slots that the records of a group have, without what is under way.
    pub(super) fn recorded_run(&self, group: GroupKey) -> Duration {
        let mut run = Duration::ZERO;
        for at in self.records_of(group) {
            run += self.slab.at(at).map_or(Duration::ZERO, |entry| entry.run);
        }
        run
    }

    /// Replaces the weight of all records of a group; what ran before is charged at the old one.
    pub(super) fn set_group_weight(&mut self, now: Time, group: GroupKey, weight: u16) {
        for at in self.records_of(group) {
            self.replace_weight(now, at, weight);
        }
    }

    fn replace_weight(&mut self, now: Time, at: u32, weight: u16) {
        for id in slots_in(u8::MAX) {
            let runs = self.slot(id).and_then(|slot| slot.state.ctx());
            let theirs =
                |ctx: &ContextId| self.slab.get(*ctx).is_some_and(|entry| entry.group == at);
            if let Some(ctx) = runs.filter(theirs) {
                self.meter(now, ctx);
            }
        }
        let Some(record) = self.slab.at_mut(at) else {
            return;
        };
        let old = core::mem::replace(&mut record.params.weight, weight);
        let (active, queue) = (record.record.active != 0, record.queue);
        if let Some(queue) = self.queue_mut(queue).filter(|_| active) {
            queue.weights = queue.weights.saturating_sub(old.into()) + u64::from(weight);
        }
        self.weigh_group(at);
    }

    /// The weight of a group.
    pub(super) fn group_weight(&self, group: GroupKey) -> u16 {
        let entry = self
            .slab
            .registration(group)
            .and_then(|at| self.slab.at(at));
        entry.map_or(Params::WEIGHT_DEFAULT, |entry| entry.params.weight)
    }

    /// How many contexts of a group there are.
    pub(super) fn group_contexts(&self, group: GroupKey) -> u32 {
        let mut contexts = 0;
        for at in self.records_of(group) {
            contexts += self.slab.at(at).map_or(0, |entry| entry.record.contexts);
        }
        contexts
    }

    /// The records of a group, at most one for each class and urgency.
    pub(super) fn records_of(&self, key: GroupKey) -> impl Iterator<Item = u32> {
        // By an array, since chained adapters have longer names than the kernel's objtool takes.
        let mut found = [[None; URGENCIES.len()]; MAX_SLOTS];
        for (queue, records) in (0..).zip(&mut found) {
            if self.queue(queue).is_none_or(|class| class.slots == 0) {
                continue;
            }
            for (record, urgency) in records.iter_mut().zip(URGENCIES) {
                *record = self.slab.record(&Of {
                    queue,
                    urgency,
                    key,
                });
            }
        }
        found.into_iter().flatten().flatten()
    }

    /// Counts `span` of a run of a context for its group.
    pub(super) fn note_run(&mut self, ctx: ContextId, span: Duration) {
        let Some(record) = self.slab.record_of_mut(ctx) else {
            return;
        };
        record.run += span;
        let key = record.record.key;
        self.slab.note_registered_run(key, span);
    }

    /// A context whose urgency changed belongs to another record of its group.
    pub(super) fn join_again(&mut self, ctx: ContextId) {
        let (Some(entry), Some(record)) = (self.slab.get(ctx), self.slab.record_of(ctx)) else {
            return;
        };
        let of = Of {
            queue: entry.queue,
            urgency: entry.params.urgency,
            key: record.record.key,
        };
        let weight = record.params.weight;
        self.slab.rejoin(ctx, &of, weight);
    }
}
