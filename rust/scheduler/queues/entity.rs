// SPDX-License-Identifier: GPL-2.0

//! Scheduling entities and the levels where they compete.
//!
//! An entity is a context, or a group that competes for its contexts of one class and rank. A
//! *level* is a set of siblings: the members of such a group, or of a class in one rank. Levels of
//! classes come first, and always exist; the others are taken for a group while it has contexts of
//! the class and rank.

use super::tree::{Node, Nodes, Tree};
use crate::array::Array;
use crate::scheduler::values::{Class, EntityIndex, GroupIndex, Rank, MAX_SLOTS};

/// Levels of classes, which are no group's.
pub(super) const TOPS: usize = Rank::ALL.len() * MAX_SLOTS;

/// [`Entity::level`] of an entity that a tree orders by time: that of a throttled group, or of a
/// context with a hint.
pub(super) const THROTTLED: u32 = u32::MAX;

/// A scheduling entity. Opaque: the caller provides the storage for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entity {
    pub(super) node: Node,
    /// The level of its group or class.
    pub(super) home: u32,
    /// The level where it is linked. It differs from `home` where groups do not compete, because
    /// contexts are then linked at the top; and for the entity of a throttled group, which is linked
    /// in the queue of these ([`THROTTLED`]).
    pub(super) level: u32,
    pub(super) weight: u32,
    pub(super) vruntime: u64,
    /// The virtual time of one of its turns: a context's slice; of a group the largest of late.
    pub(super) step: u64,
    /// The deadline of a reservation that is in force.
    pub(super) deadline: u64,
    pub(super) priority: u8,
    pub(super) rank: Rank,
}

impl Entity {
    /// Returns whether the entity is linked among its siblings.
    #[inline]
    pub(super) const fn is_queued(&self) -> bool {
        self.node.is_linked() && self.level != THROTTLED
    }
}

impl Default for Entity {
    fn default() -> Self {
        Self {
            node: Node::default(),
            home: 0,
            level: 0,
            weight: 0,
            vruntime: 0,
            step: 0,
            deadline: 0,
            priority: 0,
            rank: Rank::BestEffort,
        }
    }
}

/// The siblings of one group, or of a class, in one rank. Opaque: the caller provides the storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// The siblings that wait.
    pub(super) tree: Tree,
    /// The entity that competes for them; none: the siblings are those of a class.
    pub(super) own: Option<EntityIndex>,
    /// The least virtual time of the siblings that want a slot; it never runs backwards.
    pub(super) min_vruntime: u64,
    /// Contexts at this level or below that want a slot.
    pub(super) nr_active: u32,
    /// Contexts of the group, and levels of groups below it.
    pub(super) members: u32,
    /// A limit of the group is used up: its entity is linked in the class's queue of throttled
    /// groups.
    pub(super) throttled: bool,
    /// The group; none: the level is a class's, or free.
    pub(super) group: Option<GroupIndex>,
    /// The class, by number.
    pub(super) class: u8,
    pub(super) rank: Rank,
    /// The next level of the same group; of a free level, the next free level. Zero: none.
    pub(super) next: u32,
    /// The neighbours in the list of levels without members, the one that has been so for longest
    /// first. Zero: none.
    pub(super) newer: u32,
    pub(super) older: u32,
}

impl Level {
    pub(super) fn class(&self) -> Class {
        Class::from_number(self.class)
    }
}

/// The entities, first those of contexts.
#[derive(Debug)]
#[cfg_attr(not(MODULE), derive(Clone, PartialEq, Eq))]
pub(super) struct Entities(pub(super) Array<Entity>);

impl Nodes for Entities {
    #[inline]
    fn node(&self, at: EntityIndex) -> &Node {
        &self[at].node
    }

    #[inline]
    fn node_mut(&mut self, at: EntityIndex) -> &mut Node {
        &mut self[at].node
    }
}

impl core::ops::Index<EntityIndex> for Entities {
    type Output = Entity;

    #[inline]
    fn index(&self, at: EntityIndex) -> &Entity {
        &self.0[at.at()]
    }
}

impl core::ops::IndexMut<EntityIndex> for Entities {
    #[inline]
    fn index_mut(&mut self, at: EntityIndex) -> &mut Entity {
        &mut self.0[at.at()]
    }
}
