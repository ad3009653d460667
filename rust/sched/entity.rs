// SPDX-License-Identifier: GPL-2.0

//! The scheduling entity: the part of a context or a group that competes for slots.

use core::ops::IndexMut;

use super::ids::{EntityRef, GroupIndex};
use super::{Duration, Params};

/// How far behind its siblings an entity that did not want to run for a while may be, in virtual
/// ns: the cost of a slice of the default length at the default weight. Sleeping longer earns no
/// more credit.
const CREDIT: u64 = Params::DEFAULT.timeslice.as_ns();

/// Returns the bits for `slots` that are set in entities which are in no gang.
pub(super) const fn alone(slots: u8) -> u16 {
    (slots as u16) << u8::BITS
}

/// The place of an entity in an order: by rank, then by the policy's key, then first come first
/// served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SchedKey {
    /// Lower ranks go first under every policy.
    pub(super) rank: u8,
    /// What the policy orders by; lower goes first.
    pub(super) key: u64,
    /// Counts the entities that were enqueued; no two are equal.
    pub(super) turn: u64,
}

/// The links of an entity in a tree. An entity is in one tree at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    /// The parts of a [`SchedKey`], kept apart so that they are not padded.
    key: u64,
    turn: u64,
    pub(super) children: [Option<EntityRef>; 2],
    pub(super) parent: Option<EntityRef>,
    rank: u8,
    /// Height of the subtree; 1 for a leaf, 0 outside of a tree.
    pub(super) height: u8,
    /// Union of [`SchedEntity::allowed`] over all entities of the subtree.
    pub(super) below: u16,
}

impl Node {
    /// Returns the node of an entity without children, which may use the slots `allowed`.
    pub(super) const fn leaf(at: SchedKey, parent: Option<EntityRef>, allowed: u16) -> Self {
        Self {
            key: at.key,
            turn: at.turn,
            children: [None; 2],
            parent,
            rank: at.rank,
            height: 1,
            below: allowed,
        }
    }

    /// Returns the place in the order.
    pub(super) const fn sched_key(&self) -> SchedKey {
        SchedKey {
            rank: self.rank,
            key: self.key,
            turn: self.turn,
        }
    }

    pub(super) fn set_key(&mut self, key: u64) {
        self.key = key;
    }

    /// Returns the key alone, for trees that are ordered by time.
    pub(super) const fn key(&self) -> u64 {
        self.key
    }
}

/// A scheduling entity. Opaque: the caller provides the storage for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedEntity {
    pub(super) node: Node,
    /// The slots that the entity may use now, a bit each, including slots that are out of use;
    /// repeated as [`alone()`] has them, unless the entity is in a gang. For a group, the union
    /// over its members that wait.
    pub(super) allowed: u16,
    /// Links of a [`FifoList`](super::fifo::FifoList).
    pub(super) older: Option<EntityRef>,
    pub(super) newer: Option<EntityRef>,
    /// The group that competes for the entity; `None`: the entity competes in the class.
    pub(super) parent: Option<GroupIndex>,
    /// The weight at which runs are charged.
    pub(super) weight: u32,
    /// Time on slots in ns, times the default weight over the weight. Saturates after five years
    /// at weight 1: then all entities are equal.
    pub(super) vruntime: u64,
}

impl SchedEntity {
    /// Returns the slots that the entity may use now, a bit each.
    pub(super) const fn slots(&self) -> u8 {
        // CAST: the upper half has no other slots.
        self.allowed as u8
    }

    /// Returns the virtual time of `span` on a slot, rounded up, so that no run is free.
    fn vruntime_of(&self, span: Duration) -> u64 {
        if self.weight == u32::from(Params::WEIGHT_DEFAULT) {
            return span.as_ns();
        }
        let scaled = span.as_ns().saturating_mul(Params::WEIGHT_DEFAULT.into());
        scaled.div_ceil(u64::from(self.weight.max(1)))
    }

    /// Returns the time on a slot in which the virtual time advances by `vruntime_of`.
    pub(super) fn real(&self, vruntime_of: u64) -> Duration {
        let scaled = vruntime_of.saturating_mul(self.weight.into());
        Duration::from_ns(scaled / u64::from(Params::WEIGHT_DEFAULT))
    }

    /// Charges `span` on a slot.
    pub(super) fn charge(&mut self, span: Duration) {
        self.vruntime = self.vruntime_after(span);
    }

    /// Returns how far the entity may be before its siblings after `span` on a slot, in virtual
    /// time.
    pub(super) fn lead_max(&self, span: Duration) -> u64 {
        self.vruntime_of(span).saturating_add(CREDIT)
    }

    /// Returns the virtual time after another `span` has been charged.
    pub(super) fn vruntime_after(&self, span: Duration) -> u64 {
        self.vruntime.saturating_add(self.vruntime_of(span))
    }

    /// Places an entity that begins to want a slot among its siblings, whose least virtual time is
    /// `min_vruntime`.
    pub(super) fn place(&mut self, min_vruntime: u64) {
        self.vruntime = self.vruntime.max(min_vruntime.saturating_sub(CREDIT));
    }
}

/// Finds entities by their references.
pub(super) trait EntityTable: IndexMut<EntityRef, Output = SchedEntity> {}

impl<T: IndexMut<EntityRef, Output = SchedEntity>> EntityTable for T {}
