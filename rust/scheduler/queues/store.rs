// SPDX-License-Identifier: GPL-2.0

//! The entities and levels of a card, and virtual time.

use super::entity::{Entities, Level};
use super::tree::Key;
use crate::array::Array;
use crate::scheduler::values::{EntityIndex, Params, MAX_SLOTS};

/// Entities and levels, as policies see them.
#[derive(Debug)]
#[cfg_attr(not(MODULE), derive(Clone, PartialEq, Eq))]
pub(super) struct Store {
    pub(super) entities: Entities,
    pub(super) levels: Array<Level>,
    /// The contexts on slots, as far as the policy notes them.
    pub(super) curr: [Option<EntityIndex>; MAX_SLOTS],
    /// How many slots the card has.
    pub(super) width: u64,
}

impl Store {
    /// Returns the entity that competes for another one; none: the other one competes in its class.
    #[inline]
    pub(super) fn own(&self, at: EntityIndex) -> Option<EntityIndex> {
        self.levels[self.entities[at].home as usize].own
    }

    /// Returns the virtual time that passes for an entity in `span` ns on a slot.
    #[inline]
    pub(super) fn virtual_of(&self, at: EntityIndex, span: u64) -> u64 {
        const WEIGHT: u64 = Params::WEIGHT_DEFAULT as u64;
        match u64::from(self.entities[at].weight) {
            WEIGHT => span,
            weight => span.saturating_mul(WEIGHT).div_ceil(weight.max(1)),
        }
    }

    /// Sets the virtual time of an entity, and moves the entity to its new place.
    pub(super) fn set_vruntime(&mut self, at: EntityIndex, vruntime: u64) {
        self.entities[at].vruntime = vruntime;
        self.reorder(at);
    }

    /// Moves an entity, if it waits, to the place of its virtual time.
    fn reorder(&mut self, at: EntityIndex) {
        let entity = &self.entities[at];
        if entity.is_queued() {
            let key = Key {
                key: entity.vruntime,
                ..entity.node.key()
            };
            let level = entity.level as usize;
            let tree = &mut self.levels[level].tree;
            tree.change_key(&mut self.entities, at, key);
        }
    }

    /// Charges a context and its groups for `span` ns on a slot, or gives that back.
    pub(super) fn charge(&mut self, ctx: EntityIndex, span: u64, refund: bool) {
        let mut next = Some(ctx);
        while let Some(at) = next {
            let time = self.virtual_of(at, span);
            let entity = &mut self.entities[at];
            entity.vruntime = match refund {
                false => entity.vruntime.saturating_add(time),
                // Rounded against who gets it.
                true => entity
                    .vruntime
                    .saturating_sub(time.saturating_sub(u64::from(time != span))),
            };
            next = self.levels[entity.home as usize].own;
            self.reorder(at);
        }
    }

    /// Returns the entities, below the same level, that compete for two contexts of one rank.
    pub(super) fn siblings(
        &self,
        one: EntityIndex,
        other: EntityIndex,
    ) -> (EntityIndex, EntityIndex) {
        let mut one_at = Some(one);
        while let Some(a) = one_at {
            let mut other_at = Some(other);
            while let Some(b) = other_at {
                if self.entities[a].home == self.entities[b].home {
                    return (a, b);
                }
                other_at = self.own(b);
            }
            one_at = self.own(a);
        }
        (one, other)
    }

    /// Returns whether a context is, or is below, an entity.
    pub(super) fn is_below(&self, ctx: EntityIndex, at: EntityIndex) -> bool {
        let mut next = Some(ctx);
        while let Some(below) = next {
            if below == at {
                return true;
            }
            next = self.own(below);
        }
        false
    }
}
