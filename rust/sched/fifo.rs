// SPDX-License-Identifier: GPL-2.0

//! Entities in the order of their arrival: a list that is linked through them.

use super::entity::EntityTable;
use super::ids::EntityRef;

/// The ends of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FifoList {
    /// The oldest entity in the list.
    pub(super) oldest: Option<EntityRef>,
    newest: Option<EntityRef>,
}

impl FifoList {
    /// Returns whether more than one entity is in the list.
    pub(super) fn has_several(&self) -> bool {
        self.oldest != self.newest
    }

    /// Adds an entity that is in no list to the end. O(1).
    pub(super) fn push(&mut self, table: &mut impl EntityTable, at: EntityRef) {
        self.join(table, self.newest, Some(at));
        self.join(table, Some(at), None);
    }

    /// Adds an entity that is in no list to the front. O(1).
    pub(super) fn push_front(&mut self, table: &mut impl EntityTable, at: EntityRef) {
        self.join(table, Some(at), self.oldest);
        self.join(table, None, Some(at));
    }

    /// Removes an entity that is in the list. O(1).
    pub(super) fn remove(&mut self, table: &mut impl EntityTable, at: EntityRef) {
        let entity = &mut table[at];
        let (older, newer) = (entity.older.take(), entity.newer.take());
        self.join(table, older, newer);
    }

    /// Makes two entities neighbours; `None`: the other entity is at an end of the list.
    fn join(
        &mut self,
        table: &mut impl EntityTable,
        older: Option<EntityRef>,
        newer: Option<EntityRef>,
    ) {
        match older {
            Some(older) => table[older].newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => table[newer].older = older,
            None => self.newest = older,
        }
    }
}
