// SPDX-License-Identifier: GPL-2.0

//! Groups of contexts, by the key that the caller has chosen, what the administrator has set for
//! them, and their caps.
//!
//! A group exists while it is registered, has a level in a run queue, or has groups below it. The
//! cap of a context is that of an *own* group, which has no key, between the context and its group.

use super::bucket::Bucket;
use crate::array::Array;
use crate::scheduler::values::{
    Duration, GroupIndex, GroupKey, GroupSettings, Params, Refusal, Time,
};

/// How many groups can be registered.
pub(in super::super) const REGISTERED_MAX: usize = 256;
/// How deep registered groups may nest.
pub(in super::super) const DEPTH_MAX: usize = 4;

/// The content of a place in the table of groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Free,
    /// The group that the caller names by a key.
    Keyed(GroupKey),
    /// The group of one context that has a cap.
    Own,
}

/// A group. Opaque: the caller provides the storage for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    kind: Kind,
    registered: bool,
    settings: GroupSettings,
    /// The group above.
    parent: Option<GroupIndex>,
    /// Groups directly below.
    children: u32,
    /// The first of its levels in run queues; zero: none.
    levels: u32,
    /// Contexts of the group and of groups below.
    contexts: u32,
    /// Time on slots of these while they belonged to the group.
    run: Duration,
    bucket: Bucket,
    /// When all that its unused hints have cost, times fifty, will have passed.
    wasted_until: Time,
    /// The next group of the same hash; of a free place, the next free place.
    chain: Option<GroupIndex>,
}

impl Default for Group {
    fn default() -> Self {
        Self {
            kind: Kind::Free,
            registered: false,
            settings: GroupSettings::DEFAULT,
            parent: None,
            children: 0,
            levels: 0,
            contexts: 0,
            run: Duration::ZERO,
            bucket: Bucket::default(),
            wasted_until: Time::ZERO,
            chain: None,
        }
    }
}

/// The head of a chain of groups of the same hash. Opaque: the caller provides the storage for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin(Option<GroupIndex>);

/// The groups of a card.
#[derive(Debug)]
#[cfg_attr(not(MODULE), derive(Clone, PartialEq, Eq))]
pub(in super::super) struct Groups {
    places: Array<Group>,
    bins: Array<Bin>,
    free: Option<GroupIndex>,
    registered: usize,
    /// Groups with a cap.
    capped: u32,
}

/// Looking up.
impl Groups {
    /// Returns no groups. O(length of the storage).
    pub(in super::super) fn new(mut places: Array<Group>, mut bins: Array<Bin>) -> Self {
        let len = places.len();
        for (at, place) in places.iter_mut().enumerate() {
            let chain = (at + 1 < len).then(|| GroupIndex::new(at + 1));
            *place = Group {
                chain,
                ..Group::default()
            };
        }
        bins.fill(Bin(None));
        Self {
            free: (len != 0).then(|| GroupIndex::new(0)),
            places,
            bins,
            registered: 0,
            capped: 0,
        }
    }

    fn get(&self, at: GroupIndex) -> &Group {
        &self.places[at.at()]
    }

    fn get_mut(&mut self, at: GroupIndex) -> &mut Group {
        &mut self.places[at.at()]
    }

    /// Returns the place of the bin of a key, which is mixed well: keys may be small numbers.
    fn bin(&self, key: GroupKey) -> usize {
        let mut mixed = key.0;
        for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
            mixed = (mixed ^ (mixed >> 31)).wrapping_mul(factor);
        }
        // CAST: cut on purpose.
        (mixed >> 32) as usize % self.bins.len().max(1)
    }

    /// Returns the group of a key.
    pub(in super::super) fn find(&self, key: GroupKey) -> Option<GroupIndex> {
        let mut next = self.bins.get(self.bin(key))?.0;
        while let Some(at) = next.filter(|&at| self.get(at).kind != Kind::Keyed(key)) {
            next = self.get(at).chain;
        }
        next
    }

    /// Returns the group of a key if it is registered.
    pub(in super::super) fn find_registered(&self, key: GroupKey) -> Option<GroupIndex> {
        self.find(key).filter(|&at| self.get(at).registered)
    }

    /// Iterates over a group and those above it.
    pub(in super::super) fn lineage(
        &self,
        at: Option<GroupIndex>,
    ) -> impl Iterator<Item = GroupIndex> + '_ {
        core::iter::successors(at, |&at| self.get(at).parent)
    }

    /// Iterates over the registered groups that a group is or is below.
    pub(in super::super) fn registered(
        &self,
        at: Option<GroupIndex>,
    ) -> impl Iterator<Item = GroupIndex> + '_ {
        self.lineage(at).filter(|&at| self.get(at).registered)
    }

    /// Returns the key of a group, or of the first group above it that has one.
    pub(in super::super) fn key(&self, at: GroupIndex) -> GroupKey {
        let keys = self.lineage(Some(at));
        let mut keys = keys.filter_map(|at| match self.get(at).kind {
            Kind::Keyed(key) => Some(key),
            Kind::Own | Kind::Free => None,
        });
        keys.next().unwrap_or_default()
    }

    pub(in super::super) fn is_own(&self, at: GroupIndex) -> bool {
        self.get(at).kind == Kind::Own
    }

    pub(in super::super) fn is_registered(&self, at: GroupIndex) -> bool {
        self.get(at).registered
    }

    pub(in super::super) fn parent(&self, at: GroupIndex) -> Option<GroupIndex> {
        self.get(at).parent
    }

    pub(in super::super) fn settings(&self, at: GroupIndex) -> GroupSettings {
        self.get(at).settings
    }

    pub(in super::super) fn wasted_until(&mut self, at: GroupIndex) -> &mut Time {
        &mut self.get_mut(at).wasted_until
    }

    /// Returns how many contexts a group and those below it have.
    pub(in super::super) fn contexts(&self, at: GroupIndex) -> u32 {
        self.get(at).contexts
    }

    /// Returns the time on slots that is recorded for a group.
    pub(in super::super) fn run(&self, at: GroupIndex) -> Duration {
        self.get(at).run
    }

    /// Returns the highest priority that contexts of a group may have.
    pub(in super::super) fn priority_ceiling(&self, at: Option<GroupIndex>) -> u8 {
        let ceilings = self.registered(at);
        let ceilings = ceilings.map(|at| self.get(at).settings.max_priority);
        ceilings.min().unwrap_or(Params::PRIORITY_MAX)
    }

    /// Checks that a registered group may be put below `parent`.
    pub(in super::super) fn check_nesting(
        &self,
        own: Option<GroupIndex>,
        parent: GroupIndex,
    ) -> Result<(), Refusal> {
        let depth = self.registered(Some(parent)).count();
        let all = (0..self.places.len()).map(GroupIndex::new);
        let below = all.filter(|&at| self.get(at).registered);
        let height = below.filter_map(|at| {
            let mut lineage = self.registered(Some(at));
            lineage.position(|above| Some(above) == own)
        });
        let height = 1 + height.max().unwrap_or(0);
        let is_circle = self.registered(Some(parent)).any(|at| Some(at) == own);
        if is_circle || depth + height > DEPTH_MAX {
            return Err(Refusal::Depth);
        }
        Ok(())
    }

    /// Returns whether a registered group is below another one.
    pub(in super::super) fn has_registered_below(&self, at: GroupIndex) -> bool {
        let mut below = self.places.iter();
        below.any(|group| group.registered && group.parent == Some(at))
    }
}

/// Adding and removing.
impl Groups {
    /// Returns the group of a key, which is made if there is none, directly below `parent` then.
    pub(in super::super) fn make(
        &mut self,
        key: GroupKey,
        parent: Option<GroupIndex>,
    ) -> Option<GroupIndex> {
        if let Some(at) = self.find(key) {
            return Some(at);
        }
        let at = self.take(Kind::Keyed(key), parent)?;
        let bin = self.bin(key);
        let head = &mut self.bins[bin].0;
        let chain = head.replace(at);
        self.get_mut(at).chain = chain;
        Some(at)
    }

    /// Makes the own group of a context that has a cap.
    pub(in super::super) fn make_own(&mut self, parent: GroupIndex) -> Option<GroupIndex> {
        self.take(Kind::Own, Some(parent))
    }

    fn take(&mut self, kind: Kind, parent: Option<GroupIndex>) -> Option<GroupIndex> {
        let at = self.free?;
        self.free = self.get(at).chain;
        *self.get_mut(at) = Group {
            kind,
            parent,
            ..Group::default()
        };
        if let Some(parent) = parent {
            self.get_mut(parent).children += 1;
        }
        Some(at)
    }

    /// Frees a group that nothing needs, and then those above it of which that is true.
    pub(in super::super) fn free_unused(&mut self, at: GroupIndex) {
        let mut next = Some(at);
        while let Some(at) = next {
            let group = self.get(at);
            let is_used = group.registered || group.levels != 0 || group.children != 0;
            if is_used || group.kind == Kind::Free {
                return;
            }
            next = group.parent;
            self.set_cap(at, 0, Time::ZERO);
            if let Kind::Keyed(key) = self.get(at).kind {
                self.unchain(at, key);
            }
            let free = self.free.replace(at);
            *self.get_mut(at) = Group {
                chain: free,
                ..Group::default()
            };
            if let Some(parent) = next {
                self.get_mut(parent).children -= 1;
            }
        }
    }

    fn unchain(&mut self, at: GroupIndex, key: GroupKey) {
        let (bin, after) = (self.bin(key), self.get(at).chain);
        let mut next = self.bins[bin].0;
        if next == Some(at) {
            self.bins[bin].0 = after;
            return;
        }
        while let Some(before) = next {
            next = self.get(before).chain;
            if next == Some(at) {
                self.get_mut(before).chain = after;
                return;
            }
        }
    }

    /// Puts a group below another one; contexts of the group count there from now on.
    pub(in super::super) fn set_parent(&mut self, at: GroupIndex, parent: Option<GroupIndex>) {
        let contexts = self.get(at).contexts;
        let old = self.get(at).parent;
        self.count_contexts(old, |count| count - contexts);
        self.count_contexts(parent, |count| count + contexts);
        if let Some(parent) = parent {
            self.get_mut(parent).children += 1;
        }
        self.get_mut(at).parent = parent;
        if let Some(old) = old {
            self.get_mut(old).children -= 1;
            self.free_unused(old);
        }
    }

    /// Checks that there is room for another registered group.
    pub(in super::super) fn has_room(&self, key: GroupKey) -> bool {
        self.registered < REGISTERED_MAX && (self.find(key).is_some() || self.free.is_some())
    }

    /// Sets whether a group is registered.
    pub(in super::super) fn set_registered(&mut self, at: GroupIndex, registered: bool) {
        let group = self.get_mut(at);
        let was = core::mem::replace(&mut group.registered, registered);
        self.registered = self.registered + usize::from(registered) - usize::from(was);
    }

    /// Sets what the administrator wants of a group. The cap is set by [`Groups::set_cap`].
    pub(in super::super) fn set(&mut self, at: GroupIndex, settings: GroupSettings) {
        let group = self.get_mut(at);
        let cap = group.settings.cap;
        group.settings = GroupSettings { cap, ..settings };
    }

    /// Changes the number of contexts of a group and those above it.
    pub(in super::super) fn count_contexts(
        &mut self,
        at: Option<GroupIndex>,
        change: impl Fn(u32) -> u32,
    ) {
        let mut next = at;
        while let Some(at) = next {
            let group = self.get_mut(at);
            group.contexts = change(group.contexts);
            next = group.parent;
        }
    }

    /// Records time on slots for a group and those above it.
    pub(in super::super) fn note_run(&mut self, at: GroupIndex, span: Duration) {
        let mut next = Some(at);
        while let Some(at) = next {
            let group = self.get_mut(at);
            group.run += span;
            next = group.parent;
        }
    }

    /// Returns the first level of a group in run queues; zero: none.
    pub(super) fn levels(&self, at: GroupIndex) -> u32 {
        self.get(at).levels
    }

    pub(super) fn set_levels(&mut self, at: GroupIndex, first: u32) {
        self.get_mut(at).levels = first;
    }
}

/// Caps.
impl Groups {
    /// Returns whether any group has a cap.
    pub(in super::super) fn has_caps(&self) -> bool {
        self.capped != 0
    }

    /// Sets the cap of a group, in percent of a slot; zero: none. What is left is kept.
    pub(in super::super) fn set_cap(&mut self, at: GroupIndex, cap: u16, now: Time) {
        let group = &mut self.places[at.at()];
        let old = core::mem::replace(&mut group.settings.cap, cap);
        match old {
            0 => group.bucket = Bucket::empty(now),
            _ => group.bucket.refill(now, old),
        }
        self.capped = self.capped + u32::from(cap != 0) - u32::from(old != 0);
    }

    /// Refills the bucket of a group. Returns whether the group has a cap.
    pub(in super::super) fn refill(&mut self, now: Time, at: GroupIndex) -> bool {
        let group = self.get_mut(at);
        let cap = group.settings.cap;
        if cap != 0 {
            group.bucket.refill(now, cap);
        }
        cap != 0
    }

    /// Deducts `time` ns from what is left of the cap of a group; negative: gives it back.
    pub(in super::super) fn spend(&mut self, at: GroupIndex, time: i64) {
        self.get_mut(at).bucket.spend(time);
    }

    /// Returns what is left of the cap of a group after the last refill.
    pub(in super::super) fn left(&self, at: GroupIndex) -> Duration {
        self.get(at).bucket.left()
    }

    /// Returns whether the cap of a group, as of the last refill, is used up.
    pub(in super::super) fn is_spent(&self, at: GroupIndex) -> bool {
        let group = self.get(at);
        group.settings.cap != 0 && group.bucket.is_spent()
    }

    /// Returns when enough is left of the cap of a group for a slice.
    pub(in super::super) fn refilled_by(&self, at: GroupIndex, timeslice: Duration) -> Time {
        let group = self.get(at);
        group.bucket.refilled_by(group.settings.cap, timeslice)
    }
}
