// SPDX-License-Identifier: GPL-2.0

//! An order over contexts that wait: a balanced tree (AVL) linked through the slab.
//!
//! Inserting, removing and finding the first are O(log n) at worst, whoever chooses the keys. Each node knows the masks of all
//! below it, so that those which may not run on a slot are passed over by whole branches.

use core::ops::DerefMut;

use super::slab::{Slab, NONE};
use super::{ContextId, Entry};

/// Where a context stands in the order: by rank, then by the policy's key, then first come first served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// Lower ranks go first whatever the policy says.
    pub(super) rank: u8,
    /// What the policy orders by; lower first.
    pub(super) key: u64,
    /// Counts the contexts that began to wait; no two are equal.
    pub(super) turn: u64,
}

/// The part of an entry that links it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// The parts of its place, apart so that they take no more room than they need.
    key: u64,
    turn: u64,
    left: u32,
    right: u32,
    parent: u32,
    /// Of the branch that begins here; a leaf has 1.
    height: u8,
    /// The masks of all contexts of the branch.
    below: u8,
    rank: u8,
}

impl Node {
    pub(super) const EMPTY: Self = Self {
        key: 0,
        turn: 0,
        left: NONE,
        right: NONE,
        parent: NONE,
        height: 0,
        below: 0,
        rank: 0,
    };

    /// One that is in no tree, and where its owner keeps a number.
    pub(super) const fn unlinked(turn: u64) -> Self {
        Self {
            turn,
            ..Self::EMPTY
        }
    }

    /// Where it stands in the order.
    pub(super) const fn place(&self) -> Place {
        Place {
            rank: self.rank,
            key: self.key,
            turn: self.turn,
        }
    }

    const fn child(&self, right: bool) -> u32 {
        if right {
            self.right
        } else {
            self.left
        }
    }

    fn set_child(&mut self, right: bool, child: u32) {
        if right {
            self.right = child;
        } else {
            self.left = child;
        }
    }
}

/// The root of one such tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tree {
    root: u32,
}

impl Tree {
    pub(super) const EMPTY: Self = Self { root: NONE };

    /// The tree with this root.
    pub(super) const fn of(root: u32) -> Self {
        Self { root }
    }

    pub(super) const fn root(self) -> u32 {
        self.root
    }

    /// Puts a context that is in no tree in. O(log n).
    pub(super) fn insert<S>(&mut self, slab: &mut Slab<S>, ctx: ContextId, place: Place)
    where
        S: DerefMut<Target = [Entry]>,
    {
        let index = ctx.index() as u32;
        let (mut parent, mut at, mut right) = (NONE, self.root, false);
        while let Some(node) = node(slab, at) {
            parent = at;
            right = node.place() < place;
            at = node.child(right);
        }
        let Some(entry) = slab.get_mut(ctx) else {
            return;
        };
        entry.node = Node {
            key: place.key,
            turn: place.turn,
            rank: place.rank,
            parent,
            ..Node::EMPTY
        };
        match slab.at_mut(parent) {
            Some(entry) => entry.node.set_child(right, index),
            None => self.root = index,
        }
        self.settle(slab, index);
    }

    /// Takes a context that is in this tree out. O(log n).
    pub(super) fn remove<S>(&mut self, slab: &mut Slab<S>, ctx: ContextId)
    where
        S: DerefMut<Target = [Entry]>,
    {
        let index = ctx.index() as u32;
        let Some(gone) = slab.get_mut(ctx) else {
            return;
        };
        let gone = core::mem::replace(&mut gone.node, Node::EMPTY);
        let next = leftmost(slab, gone.right);
        match node(slab, next) {
            Some(heir) if gone.left != NONE => {
                // The next in order takes its place; it has no left branch.
                let from = if heir.parent == index {
                    next
                } else {
                    self.replace(slab, heir.parent, next, heir.right);
                    adopt(slab, next, true, gone.right);
                    heir.parent
                };
                adopt(slab, next, false, gone.left);
                self.replace(slab, gone.parent, index, next);
                if let Some(entry) = slab.at_mut(next) {
                    entry.node.height = gone.height;
                    entry.node.below = gone.below;
                }
                self.settle(slab, from);
                // That may have ended below it, and its own mask is another.
                self.settle(slab, next);
            }
            _ => {
                let child = if gone.left == NONE {
                    gone.right
                } else {
                    gone.left
                };
                self.replace(slab, gone.parent, index, child);
                self.settle(slab, gone.parent);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.root == NONE
    }

    /// The masks of all that are in it.
    pub(super) fn masks<S>(&self, slab: &Slab<S>) -> u8
    where
        S: DerefMut<Target = [Entry]>,
    {
        node(slab, self.root).map_or(0, |node| node.below)
    }

    /// What one that is in this tree may use has changed. O(log n).
    pub(super) fn refresh<S>(&mut self, slab: &mut Slab<S>, ctx: ContextId)
    where
        S: DerefMut<Target = [Entry]>,
    {
        self.settle(slab, ctx.index() as u32);
    }

    /// The first context with one of the slots `bits` in its mask. O(log n).
    pub(super) fn first<S>(&self, slab: &Slab<S>, bits: u8) -> Option<ContextId>
    where
        S: DerefMut<Target = [Entry]>,
    {
        first_below(slab, self.root, bits)
    }

    /// The next one after `ctx`, which is in this tree, with one of the slots `bits` in its mask. O(log n).
    pub(super) fn after<S>(&self, slab: &Slab<S>, ctx: ContextId, bits: u8) -> Option<ContextId>
    where
        S: DerefMut<Target = [Entry]>,
    {
        let mut at = ctx.index() as u32;
        let right = node(slab, at)?.right;
        if let Some(found) = first_below(slab, right, bits) {
            return Some(found);
        }
        loop {
            let parent = node(slab, at)?.parent;
            let above = node(slab, parent)?;
            if above.left == at {
                if slab.at(parent)?.allowed & bits != 0 {
                    return slab.id_at(parent);
                }
                if let Some(found) = first_below(slab, above.right, bits) {
                    return Some(found);
                }
            }
            at = parent;
        }
    }

    /// The first context whose key is at least `key`, in an order by key only and whatever the masks are. O(log n).
    pub(super) fn first_from<S>(&self, slab: &Slab<S>, key: u64) -> Option<ContextId>
    where
        S: DerefMut<Target = [Entry]>,
    {
        let (mut at, mut found) = (self.root, None);
        while let Some(node) = node(slab, at) {
            if node.key < key {
                at = node.right;
            } else {
                found = slab.id_at(at);
                at = node.left;
            }
        }
        found
    }

    /// Lets `new` (or nobody) stand where `old` stood below `parent`.
    fn replace<S>(&mut self, slab: &mut Slab<S>, parent: u32, old: u32, new: u32)
    where
        S: DerefMut<Target = [Entry]>,
    {
        match slab.at_mut(parent) {
            Some(entry) => {
                let right = entry.node.right == old;
                entry.node.set_child(right, new);
            }
            None => self.root = new,
        }
        if let Some(entry) = slab.at_mut(new) {
            entry.node.parent = parent;
        }
    }

    /// Makes heights and masks right again from `at` upwards, and balances. Where a branch comes out as it was before, all
    /// above it is right.
    fn settle<S>(&mut self, slab: &mut Slab<S>, mut at: u32)
    where
        S: DerefMut<Target = [Entry]>,
    {
        while let Some(before) = node(slab, at) {
            let tilt = update(slab, at);
            if tilt.abs() > 1 {
                at = self.balance(slab, at, tilt > 0);
            }
            let Some(after) = node(slab, at) else {
                return;
            };
            if (after.height, after.below) == (before.height, before.below) {
                return;
            }
            at = after.parent;
        }
    }

    /// The branch at `at` is higher by two on one side: turns it, and says where it begins now.
    fn balance<S>(&mut self, slab: &mut Slab<S>, at: u32, right: bool) -> u32
    where
        S: DerefMut<Target = [Entry]>,
    {
        let child = node(slab, at).map_or(NONE, |node| node.child(right));
        let inner = tilt(slab, child);
        if (right && inner < 0) || (!right && inner > 0) {
            self.rotate(slab, child, !right);
        }
        self.rotate(slab, at, right)
    }

    /// Lifts the `right` (or left) child of `at` into its place, and says who that is.
    fn rotate<S>(&mut self, slab: &mut Slab<S>, at: u32, right: bool) -> u32
    where
        S: DerefMut<Target = [Entry]>,
    {
        let Some(low) = node(slab, at) else {
            return at;
        };
        let up = low.child(right);
        let Some(high) = node(slab, up) else {
            return at;
        };
        self.replace(slab, low.parent, at, up);
        adopt(slab, at, right, high.child(!right));
        adopt(slab, up, !right, at);
        update(slab, at);
        update(slab, up);
        up
    }
}

fn node<S>(slab: &Slab<S>, at: u32) -> Option<Node>
where
    S: DerefMut<Target = [Entry]>,
{
    slab.at(at).map(|entry| entry.node)
}

/// Puts `child` (or nobody) below `parent`.
fn adopt<S>(slab: &mut Slab<S>, parent: u32, right: bool, child: u32)
where
    S: DerefMut<Target = [Entry]>,
{
    if let Some(entry) = slab.at_mut(parent) {
        entry.node.set_child(right, child);
    }
    if let Some(entry) = slab.at_mut(child) {
        entry.node.parent = parent;
    }
}

fn leftmost<S>(slab: &Slab<S>, mut at: u32) -> u32
where
    S: DerefMut<Target = [Entry]>,
{
    while let Some(node) = node(slab, at) {
        if node.left == NONE {
            break;
        }
        at = node.left;
    }
    at
}

/// Makes height and mask of `at` right by those of its children, and says how much higher the right branch is than the left.
fn update<S>(slab: &mut Slab<S>, at: u32) -> i16
where
    S: DerefMut<Target = [Entry]>,
{
    let (left, right) = children(slab, at);
    if let Some(entry) = slab.at_mut(at) {
        entry.node.height = 1 + left.height.max(right.height);
        entry.node.below = entry.allowed | left.below | right.below;
    }
    i16::from(right.height) - i16::from(left.height)
}

/// How much higher the right branch is than the left.
fn tilt<S>(slab: &Slab<S>, at: u32) -> i16
where
    S: DerefMut<Target = [Entry]>,
{
    let (left, right) = children(slab, at);
    i16::from(right.height) - i16::from(left.height)
}

fn children<S>(slab: &Slab<S>, at: u32) -> (Node, Node)
where
    S: DerefMut<Target = [Entry]>,
{
    let (left, right) = node(slab, at).map_or((NONE, NONE), |node| (node.left, node.right));
    let child = |at| node(slab, at).unwrap_or(Node::EMPTY);
    (child(left), child(right))
}

fn first_below<S>(slab: &Slab<S>, mut at: u32, bits: u8) -> Option<ContextId>
where
    S: DerefMut<Target = [Entry]>,
{
    let has = |at| node(slab, at).is_some_and(|node| node.below & bits != 0);
    if !has(at) {
        return None;
    }
    loop {
        let entry = slab.at(at)?;
        if has(entry.node.left) {
            at = entry.node.left;
        } else if entry.allowed & bits != 0 {
            return slab.id_at(at);
        } else {
            at = entry.node.right;
        }
    }
}
