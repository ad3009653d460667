// SPDX-License-Identifier: GPL-2.0

//! Names of slots, contexts and groups.

use core::num::NonZeroU8;

/// Slots that a card can have (docs/registers.md).
pub const MAX_SLOTS: usize = 8;

/// Names one slot of a card: 0 to 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(
    /// The number plus one, so that an `Option` takes no more space.
    NonZeroU8,
);

impl SlotId {
    /// The slot number 0.
    pub(crate) const FIRST: Self = Self(NonZeroU8::MIN);

    /// Returns the slot number `n`, `None` above 7.
    #[inline]
    pub const fn new(n: u8) -> Option<Self> {
        match NonZeroU8::MIN.checked_add(n) {
            Some(next) if (n as usize) < MAX_SLOTS => Some(Self(next)),
            _ => None,
        }
    }

    /// Returns the slot's number.
    pub const fn index(self) -> usize {
        (self.0.get() - 1) as usize
    }

    /// Returns the slot's bit in a mask.
    pub const fn bit(self) -> u8 {
        1 << (self.0.get() - 1)
    }
}

/// Names one context. An id is never valid again after its
/// [`Notice::Released`](crate::scheduler::Notice::Released), although its index is reused: the generation
/// tells the two contexts apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContextId {
    index: u32,
    generation: u32,
}

impl ContextId {
    /// Returns the name of the context at a place of which `generation` contexts were freed.
    pub(crate) const fn new(index: u32, generation: u32) -> Self {
        Self { index, generation }
    }

    /// Returns the place of the context in the storage, for tables that the caller keeps alongside
    /// it. Unique among the contexts that exist at one time.
    pub const fn index(self) -> usize {
        self.index as usize
    }

    /// Returns how many contexts had this index before.
    pub const fn generation(self) -> u32 {
        self.generation
    }
}

/// Names a group: a number that the caller chooses. Contexts of one card with the same key are
/// members of one group, in all classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GroupKey(pub u64);

/// Where a context belongs among the groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupPath {
    /// Its group.
    pub group: GroupKey,
    /// The registered group that its group is directly below. Of no effect while its group is
    /// registered itself, or while there is no such registration.
    pub level: Option<GroupKey>,
}

/// The path of a group that is below no group, or is registered.
impl From<GroupKey> for GroupPath {
    fn from(group: GroupKey) -> Self {
        Self { group, level: None }
    }
}
