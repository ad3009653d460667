// SPDX-License-Identifier: GPL-2.0

//! Names of slots, contexts and groups, and typed indices into the tables that hold them.

use core::num::{NonZeroU32, NonZeroU8};

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

/// Iterates over the slots whose bit is set in `mask`, lowest first.
pub(super) fn slots_in(mask: u8) -> impl Iterator<Item = SlotId> {
    let mut left = mask;
    core::iter::from_fn(move || {
        let bits = NonZeroU8::new(left)?;
        left &= left - 1;
        // CAST: below 8.
        Some(SlotId(
            NonZeroU8::MIN.saturating_add(bits.trailing_zeros() as u8),
        ))
    })
}

/// Names one context. An id is never valid again after its
/// [`Action::Released`](super::Action::Released), although its index is reused: the generation
/// tells the two contexts apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContextId {
    pub(super) index: u32,
    pub(super) generation: u32,
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

/// Defines the index of a table.
macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) struct $name(NonZeroU32);

        impl $name {
            pub(super) const fn new(at: u32) -> Self {
                Self(NonZeroU32::MIN.saturating_add(at))
            }

            pub(super) const fn at(self) -> usize {
                (self.0.get() - 1) as usize
            }
        }
    };
}

index!(
    /// Index of a [`SchedContext`](super::context::SchedContext).
    ContextIndex
);
index!(
    /// Index of a [`SchedGroup`](super::group::SchedGroup), after those of contexts.
    GroupIndex
);
index!(
    /// Index of a [`Registration`](super::group::Registration).
    RegistrationIndex
);

impl ContextId {
    pub(super) const fn at(self) -> ContextIndex {
        ContextIndex::new(self.index)
    }
}

/// Index of a scheduling entity: of a context, or of a group that competes for its members. The
/// indices of groups come after those of contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntityRef(NonZeroU32);

/// What an [`EntityRef`] refers to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EntityKind {
    Context(ContextIndex),
    Group(GroupIndex),
}

impl EntityRef {
    pub(super) const fn at(self) -> usize {
        (self.0.get() - 1) as usize
    }

    /// Returns the context of an entity that is known to be that of a context.
    pub(super) const fn context(self) -> ContextIndex {
        ContextIndex(self.0)
    }

    /// Returns the group of an entity that is known to be that of a group.
    pub(super) const fn group(self) -> GroupIndex {
        GroupIndex(self.0)
    }
}

impl From<ContextIndex> for EntityRef {
    fn from(ContextIndex(index): ContextIndex) -> Self {
        Self(index)
    }
}

impl From<GroupIndex> for EntityRef {
    fn from(GroupIndex(index): GroupIndex) -> Self {
        Self(index)
    }
}
