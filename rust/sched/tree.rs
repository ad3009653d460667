// SPDX-License-Identifier: GPL-2.0

//! An order over waiting entities: a balanced tree (AVL) that is linked through them.
//!
//! Inserting, removing and finding the first entity are O(log n) in the worst case, whatever the
//! keys. Each node knows the allowed slots of all entities below it, so that whole subtrees of
//! entities that may not run on a slot are skipped.

use super::entity::{EntityTable, Node, SchedKey};
use super::ids::EntityRef;

/// A tree: its root, and its first and last entity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tree {
    root: Option<EntityRef>,
    ends: [Option<EntityRef>; 2],
}

/// The sides of a node.
const LEFT: usize = 0;
const RIGHT: usize = 1;

impl Tree {
    pub(super) fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Returns the first entity, whatever slots it may use. O(1).
    pub(super) fn leftmost(&self) -> Option<EntityRef> {
        self.ends[LEFT]
    }

    /// Returns the slots that any entity of the tree may use.
    pub(super) fn allowed(&self, table: &impl EntityTable) -> u16 {
        self.root.map_or(0, |root| table[root].node.below)
    }

    /// Adds an entity that is in no tree. O(log n).
    pub(super) fn insert(&mut self, table: &mut impl EntityTable, at: EntityRef, key: SchedKey) {
        let (mut parent, mut side) = (None, RIGHT);
        // Most entities come last: then the last entity is the parent.
        let last = self.ends[RIGHT];
        if last.is_some_and(|last| table[last].node.sched_key() < key) {
            parent = last;
        } else {
            let mut next = self.root;
            while let Some(above) = next {
                let node = &table[above].node;
                side = usize::from(node.sched_key() < key);
                parent = next;
                next = node.children[side];
            }
        }
        let entity = &mut table[at];
        entity.node = Node::leaf(key, parent, entity.allowed);
        if let Some(parent) = parent {
            table[parent].node.children[side] = Some(at);
            if self.ends[side] == Some(parent) {
                self.ends[side] = Some(at);
            }
        } else {
            self.root = Some(at);
            self.ends = [Some(at); 2];
        }
        self.rebalance(table, parent);
    }

    /// Changes the key of an entity that is in this tree, if the entity is last before and after
    /// the change. Returns whether it is. O(1).
    pub(super) fn change_last_key(
        &mut self,
        table: &mut impl EntityTable,
        at: EntityRef,
        key: u64,
    ) -> bool {
        let is_alone = self.ends == [Some(at); 2];
        let stays = self.ends[RIGHT] == Some(at) && (is_alone || key >= table[at].node.key());
        if stays {
            table[at].node.set_key(key);
        }
        stays
    }

    /// Removes an entity that is in this tree. O(log n).
    pub(super) fn remove(&mut self, table: &mut impl EntityTable, at: EntityRef) {
        let gone = core::mem::take(&mut table[at].node);
        let [left, right] = gone.children;
        for side in [LEFT, RIGHT] {
            if self.ends[side] == Some(at) {
                let inner = gone.children[1 - side];
                self.ends[side] = inner.map(|at| end_of(table, at, side)).or(gone.parent);
            }
        }
        let (Some(left), Some(right)) = (left, right) else {
            self.replace(table, gone.parent, at, left.or(right));
            self.rebalance(table, gone.parent);
            return;
        };
        // The next entity in order, which has no left child, takes the place.
        let next = end_of(table, right, LEFT);
        let from = if next == right {
            next
        } else {
            let Node {
                children, parent, ..
            } = table[next].node;
            self.replace(table, parent, next, children[RIGHT]);
            adopt(table, next, RIGHT, Some(right));
            parent.unwrap_or(next)
        };
        adopt(table, next, LEFT, Some(left));
        self.replace(table, gone.parent, at, Some(next));
        let node = &mut table[next].node;
        (node.height, node.below) = (gone.height, gone.below);
        self.rebalance(table, Some(from));
        // The rebalancing may have ended below `next`, whose allowed slots may differ from those of
        // its predecessor.
        self.rebalance(table, Some(next));
    }

    /// Updates the tree after the allowed slots of an entity have changed. O(log n).
    pub(super) fn refresh(&mut self, table: &mut impl EntityTable, at: EntityRef) {
        self.rebalance(table, Some(at));
    }

    /// Returns the first entity that may use one of `slots`. O(log n).
    pub(super) fn first(&self, table: &impl EntityTable, slots: u16) -> Option<EntityRef> {
        let leftmost = self.leftmost()?;
        if table[leftmost].allowed & slots != 0 {
            return Some(leftmost);
        }
        first_below(table, self.root, slots)
    }

    /// Returns the next entity after `at`, which is in this tree, that may use one of `slots`.
    /// O(log n).
    pub(super) fn after(
        &self,
        table: &impl EntityTable,
        mut at: EntityRef,
        slots: u16,
    ) -> Option<EntityRef> {
        let found = first_below(table, table[at].node.children[RIGHT], slots);
        if found.is_some() {
            return found;
        }
        loop {
            let parent = table[at].node.parent?;
            let above = &table[parent];
            if above.node.children[LEFT] == Some(at) {
                if above.allowed & slots != 0 {
                    return Some(parent);
                }
                let found = first_below(table, above.node.children[RIGHT], slots);
                if found.is_some() {
                    return found;
                }
            }
            at = parent;
        }
    }

    /// Returns the first entity whose key is at least `key`, in an order by key only, whatever
    /// slots it may use. O(log n).
    pub(super) fn first_from(&self, table: &impl EntityTable, key: u64) -> Option<EntityRef> {
        let (mut next, mut found) = (self.root, None);
        while let Some(at) = next {
            let node = &table[at].node;
            if node.key() < key {
                next = node.children[RIGHT];
            } else {
                found = next;
                next = node.children[LEFT];
            }
        }
        found
    }

    /// Puts `new` in the place of `old` below `parent`.
    fn replace(
        &mut self,
        table: &mut impl EntityTable,
        parent: Option<EntityRef>,
        old: EntityRef,
        new: Option<EntityRef>,
    ) {
        match parent {
            Some(parent) => {
                let children = &mut table[parent].node.children;
                let side = usize::from(children[RIGHT] == Some(old));
                children[side] = new;
            }
            None => self.root = new,
        }
        if let Some(new) = new {
            table[new].node.parent = parent;
        }
    }

    /// Updates heights and allowed slots from `at` upwards, and balances. Stops at a subtree that
    /// is unchanged: then everything above it is correct.
    fn rebalance(&mut self, table: &mut impl EntityTable, mut at: Option<EntityRef>) {
        while let Some(root) = at {
            let &Node {
                parent,
                height,
                below,
                ..
            } = &table[root].node;
            let [left, right] = update(table, root);
            let root = if left.abs_diff(right) > 1 {
                self.balance(table, root, usize::from(left < right))
            } else {
                root
            };
            let node = &table[root].node;
            if (node.height, node.below) == (height, below) {
                return;
            }
            at = parent;
        }
    }

    /// Balances the subtree at `at`, which is higher by two on one side, and returns its new root.
    fn balance(&mut self, table: &mut impl EntityTable, at: EntityRef, side: usize) -> EntityRef {
        let Some(child) = table[at].node.children[side] else {
            return at;
        };
        let children = table[child].node.children;
        let [outer, inner] = [side, 1 - side].map(|side| summary(table, children[side]).0);
        if inner > outer {
            self.rotate(table, child, 1 - side);
        }
        self.rotate(table, at, side)
    }

    /// Lifts the child of `at` on that side into the place of `at`, and returns the child.
    fn rotate(&mut self, table: &mut impl EntityTable, at: EntityRef, side: usize) -> EntityRef {
        let low = table[at].node;
        let Some(up) = low.children[side] else {
            return at;
        };
        let inner = table[up].node.children[1 - side];
        self.replace(table, low.parent, at, Some(up));
        adopt(table, at, side, inner);
        adopt(table, up, 1 - side, Some(at));
        update(table, at);
        update(table, up);
        up
    }
}

/// Puts `child` below `parent`.
fn adopt(table: &mut impl EntityTable, parent: EntityRef, side: usize, child: Option<EntityRef>) {
    table[parent].node.children[side] = child;
    if let Some(child) = child {
        table[child].node.parent = Some(parent);
    }
}

/// Returns the first or last entity of the subtree at `at`.
fn end_of(table: &impl EntityTable, mut at: EntityRef, side: usize) -> EntityRef {
    while let Some(child) = table[at].node.children[side] {
        at = child;
    }
    at
}

/// Returns height and allowed slots of a subtree.
fn summary(table: &impl EntityTable, at: Option<EntityRef>) -> (u8, u16) {
    at.map_or((0, 0), |at| (table[at].node.height, table[at].node.below))
}

/// Updates the height and the allowed slots of `at` from its children, and returns the heights of
/// the children.
fn update(table: &mut impl EntityTable, at: EntityRef) -> [u8; 2] {
    let [left, right] = table[at].node.children;
    let (left, left_below) = summary(table, left);
    let (right, right_below) = summary(table, right);
    let entity = &mut table[at];
    entity.node.height = 1 + left.max(right);
    entity.node.below = entity.allowed | left_below | right_below;
    [left, right]
}

fn first_below(
    table: &impl EntityTable,
    mut at: Option<EntityRef>,
    slots: u16,
) -> Option<EntityRef> {
    while let Some(root) = at.filter(|&root| table[root].node.below & slots != 0) {
        let entity = &table[root];
        let [left, right] = entity.node.children;
        if left.is_some_and(|left| table[left].node.below & slots != 0) {
            at = left;
        } else if entity.allowed & slots != 0 {
            return Some(root);
        } else {
            at = right;
        }
    }
    None
}
