// SPDX-License-Identifier: GPL-2.0

//! An order over waiting entities: a balanced tree (AVL), linked through the entities themselves,
//! so that nothing is allocated. Each node knows the slots that any entity below it may use, so the
//! first entity for a slot is found in one descent.

use crate::scheduler::values::EntityIndex;

/// The order of entities: the key of the policy, and then first come first served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Key {
    /// The policy's key.
    pub(in super::super) key: u64,
    /// The turn among equal keys; no two entities have the same.
    pub(in super::super) turn: u64,
}

/// An entity's place in a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    key: Key,
    kids: [Option<EntityIndex>; 2],
    up: Option<EntityIndex>,
    /// Height of the subtree; 0: the entity is in no tree.
    height: u8,
    /// The slots that the entity may use; in the upper half again if it does not wait together
    /// with others of a gang.
    allowed: u16,
    /// The slots that any entity of the subtree may use.
    below: u16,
}

impl Node {
    pub(super) const fn is_linked(&self) -> bool {
        self.height != 0
    }

    pub(super) const fn key(&self) -> Key {
        self.key
    }

    pub(super) const fn allowed(&self) -> u16 {
        self.allowed
    }

    /// Sets the slots that an entity may use. If the node is linked, [`Tree::refresh`] follows.
    pub(super) fn set_allowed(&mut self, allowed: u16) {
        self.allowed = allowed;
    }
}

/// Where nodes are kept.
pub(super) trait Nodes {
    fn node(&self, at: EntityIndex) -> &Node;
    fn node_mut(&mut self, at: EntityIndex) -> &mut Node;
}

/// An order over entities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Tree {
    root: Option<EntityIndex>,
    /// The first entity and the last.
    ends: [Option<EntityIndex>; 2],
}

const LEFT: usize = 0;
const RIGHT: usize = 1;

/// Lookups.
impl Tree {
    pub(in super::super) fn first(&self) -> Option<EntityIndex> {
        self.ends[LEFT]
    }

    /// Returns the entity after the first.
    pub(super) fn second(&self, nodes: &impl Nodes) -> Option<EntityIndex> {
        let first = nodes.node(self.ends[LEFT]?);
        match first.kids[RIGHT] {
            Some(right) => Some(end_of(nodes, right, LEFT)),
            None => first.up,
        }
    }

    /// Returns the slots that any entity may use.
    pub(super) fn allowed(&self, nodes: &impl Nodes) -> u16 {
        self.root.map_or(0, |root| nodes.node(root).below)
    }

    /// Returns the first entity that may use one of `slots`. O(log n).
    pub(super) fn first_for(&self, nodes: &impl Nodes, slots: u16) -> Option<EntityIndex> {
        let first = self.first()?;
        if nodes.node(first).allowed & slots != 0 {
            return Some(first);
        }
        let mut next = self.root;
        while let Some(at) = next.filter(|&at| nodes.node(at).below & slots != 0) {
            let node = nodes.node(at);
            let [left, right] = node.kids;
            if left.is_some_and(|left| nodes.node(left).below & slots != 0) {
                next = left;
            } else if node.allowed & slots != 0 {
                return Some(at);
            } else {
                next = right;
            }
        }
        None
    }
}

/// Changes, each O(log n).
impl Tree {
    /// Links an entity that is in no tree.
    pub(super) fn insert(&mut self, nodes: &mut impl Nodes, at: EntityIndex, key: Key) {
        let (mut up, mut side) = (None, RIGHT);
        let last = self.ends[RIGHT];
        if last.is_some_and(|last| nodes.node(last).key < key) {
            up = last;
        } else {
            let mut next = self.root;
            while let Some(above) = next {
                let node = nodes.node(above);
                side = usize::from(node.key < key);
                (up, next) = (next, node.kids[side]);
            }
        }
        let node = nodes.node_mut(at);
        *node = Node {
            key,
            kids: [None; 2],
            up,
            height: 1,
            allowed: node.allowed,
            below: node.allowed,
        };
        match up {
            Some(up) => {
                nodes.node_mut(up).kids[side] = Some(at);
                if self.ends[side] == Some(up) {
                    self.ends[side] = Some(at);
                }
            }
            None => (self.root, self.ends) = (Some(at), [Some(at); 2]),
        }
        self.rebalance(nodes, up);
    }

    /// Unlinks an entity; the node keeps its key.
    pub(super) fn remove(&mut self, nodes: &mut impl Nodes, at: EntityIndex) {
        let gone = *nodes.node(at);
        *nodes.node_mut(at) = Node {
            allowed: gone.allowed,
            ..Node::default()
        };
        let [left, right] = gone.kids;
        for side in [LEFT, RIGHT] {
            if self.ends[side] == Some(at) {
                let inner = gone.kids[1 - side];
                self.ends[side] = inner.map(|at| end_of(nodes, at, side)).or(gone.up);
            }
        }
        let (Some(left), Some(right)) = (left, right) else {
            self.replace(nodes, gone.up, at, left.or(right));
            return self.rebalance(nodes, gone.up);
        };
        // The next entity in order, which has no left child, takes the place.
        let next = end_of(nodes, right, LEFT);
        let from = if next == right {
            next
        } else {
            let Node { kids, up, .. } = *nodes.node(next);
            self.replace(nodes, up, next, kids[RIGHT]);
            adopt(nodes, next, RIGHT, Some(right));
            up.unwrap_or(next)
        };
        adopt(nodes, next, LEFT, Some(left));
        self.replace(nodes, gone.up, at, Some(next));
        let node = nodes.node_mut(next);
        (node.height, node.below) = (gone.height, gone.below);
        self.rebalance(nodes, Some(from));
        self.rebalance(nodes, Some(next));
    }

    /// Moves a linked entity to the place of its new key.
    pub(super) fn change_key(&mut self, nodes: &mut impl Nodes, at: EntityIndex, key: Key) {
        let is_last = self.ends[RIGHT] == Some(at) && key >= nodes.node(at).key;
        if is_last || self.ends == [Some(at); 2] {
            nodes.node_mut(at).key = key;
        } else {
            self.remove(nodes, at);
            self.insert(nodes, at, key);
        }
    }

    /// Updates the tree after the allowed slots of a linked entity have changed.
    pub(super) fn refresh(&mut self, nodes: &mut impl Nodes, at: EntityIndex) {
        self.rebalance(nodes, Some(at));
    }

    /// Puts `new` where `old` was below `up`.
    fn replace(
        &mut self,
        nodes: &mut impl Nodes,
        up: Option<EntityIndex>,
        old: EntityIndex,
        new: Option<EntityIndex>,
    ) {
        match up {
            Some(up) => {
                let kids = &mut nodes.node_mut(up).kids;
                let side = usize::from(kids[RIGHT] == Some(old));
                kids[side] = new;
            }
            None => self.root = new,
        }
        if let Some(new) = new {
            nodes.node_mut(new).up = up;
        }
    }

    /// Restores heights, masks and balance from `at` upwards, as far as they change.
    fn rebalance(&mut self, nodes: &mut impl Nodes, mut at: Option<EntityIndex>) {
        while let Some(root) = at {
            let node = nodes.node(root);
            let (up, old) = (node.up, (node.height, node.below));
            let [left, right] = node.kids.map(|kid| summary(nodes, kid));
            let new = if left.0.abs_diff(right.0) > 1 {
                let root = self.balance(nodes, root, usize::from(left.0 < right.0));
                summary(nodes, Some(root))
            } else {
                update(nodes, root, left, right)
            };
            if new == old {
                return;
            }
            at = up;
        }
    }

    /// Rotates a subtree whose child on `side` is too high, and returns its new root.
    fn balance(&mut self, nodes: &mut impl Nodes, at: EntityIndex, side: usize) -> EntityIndex {
        let Some(child) = nodes.node(at).kids[side] else {
            return at;
        };
        let kids = nodes.node(child).kids;
        if summary(nodes, kids[1 - side]).0 > summary(nodes, kids[side]).0 {
            self.rotate(nodes, child, 1 - side);
        }
        self.rotate(nodes, at, side)
    }

    /// Puts the child on `side` above its parent, and returns the child.
    fn rotate(&mut self, nodes: &mut impl Nodes, at: EntityIndex, side: usize) -> EntityIndex {
        let low = *nodes.node(at);
        let Some(up) = low.kids[side] else {
            return at;
        };
        let inner = nodes.node(up).kids[1 - side];
        self.replace(nodes, low.up, at, Some(up));
        adopt(nodes, at, side, inner);
        adopt(nodes, up, 1 - side, Some(at));
        for at in [at, up] {
            let [left, right] = nodes.node(at).kids.map(|kid| summary(nodes, kid));
            update(nodes, at, left, right);
        }
        up
    }
}

fn adopt(nodes: &mut impl Nodes, up: EntityIndex, side: usize, child: Option<EntityIndex>) {
    nodes.node_mut(up).kids[side] = child;
    if let Some(child) = child {
        nodes.node_mut(child).up = Some(up);
    }
}

/// Returns the outermost entity of a subtree on one side.
fn end_of(nodes: &impl Nodes, mut at: EntityIndex, side: usize) -> EntityIndex {
    while let Some(child) = nodes.node(at).kids[side] {
        at = child;
    }
    at
}

/// Returns the height of a subtree, and the slots that its entities may use.
fn summary(nodes: &impl Nodes, at: Option<EntityIndex>) -> (u8, u16) {
    at.map_or((0, 0), |at| (nodes.node(at).height, nodes.node(at).below))
}

/// Computes the summary of a subtree from those of its children.
fn update(nodes: &mut impl Nodes, at: EntityIndex, left: (u8, u16), right: (u8, u16)) -> (u8, u16) {
    let node = nodes.node_mut(at);
    node.height = 1 + left.0.max(right.0);
    node.below = node.allowed | left.1 | right.1;
    (node.height, node.below)
}
