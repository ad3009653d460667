// SPDX-License-Identifier: GPL-2.0

//! Entries in the order in which they came: a list linked through the slab, by `older` and `newer`.

use core::ops::DerefMut;

use super::slab::{Slab, NONE};
use super::Entry;

/// The ends of one such list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    /// Who came first of those that are there, and who came last.
    pub(super) oldest: u32,
    newest: u32,
}

impl Chain {
    pub(super) const EMPTY: Self = Self {
        oldest: NONE,
        newest: NONE,
    };

    /// Puts an entry that is in no list at the end. O(1).
    pub(super) fn push<S>(&mut self, slab: &mut Slab<S>, at: u32)
    where
        S: DerefMut<Target = [Entry]>,
    {
        let last = core::mem::replace(&mut self.newest, at);
        if let Some(entry) = slab.at_mut(at) {
            entry.older = last;
            entry.newer = NONE;
        }
        match slab.at_mut(last) {
            Some(entry) => entry.newer = at,
            None => self.oldest = at,
        }
    }

    /// Takes an entry that is in the list out. O(1).
    pub(super) fn remove<S>(&mut self, slab: &mut Slab<S>, at: u32)
    where
        S: DerefMut<Target = [Entry]>,
    {
        let Some(entry) = slab.at_mut(at) else {
            return;
        };
        let older = core::mem::replace(&mut entry.older, NONE);
        let newer = core::mem::replace(&mut entry.newer, NONE);
        match slab.at_mut(older) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
        match slab.at_mut(newer) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
    }
}
