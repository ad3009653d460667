// SPDX-License-Identifier: GPL-2.0

//! Tables of contexts and groups in storage that the caller provides.
//!
//! Nothing is allocated here, so the storage bounds the number of contexts and groups. Adding,
//! finding and freeing an item is O(1).

use core::fmt::{self, Debug, Formatter};
use core::ops::{Index, IndexMut};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::context::SchedContext;
use super::entity::SchedEntity;
use super::group::{Registration, SchedGroup};
use super::ids::{slots_in, GroupIndex};
use super::{SlotId, MAX_SLOTS};
use crate::array::{Array, Boxed};

/// A place of a table. Opaque: the caller provides the storage for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place<T> {
    /// How many items were freed here.
    pub(super) generation: u32,
    /// The free place after this one, plus one; 0: none.
    next_free: u32,
    pub(super) item: Option<T>,
}

/// A free place to fill new storage with.
impl<T> Default for Place<T> {
    fn default() -> Self {
        Self {
            generation: 0,
            next_free: 0,
            item: None,
        }
    }
}

/// The head of a hash chain of groups. Opaque: the caller provides the storage for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket(pub(super) Option<GroupIndex>);

/// Storage for contexts and groups.
pub struct EntityStorage {
    /// One for each place for a context or a group.
    pub entities: Array<SchedEntity>,
    /// Places for contexts.
    pub contexts: Array<Place<SchedContext>>,
    /// Places for groups, one for each class and urgency of a group's contexts
    /// ([`Scheduler::group_places`](super::Scheduler::group_places)).
    pub groups: Array<Place<SchedGroup>>,
    /// As many buckets as there are places for groups.
    pub buckets: Array<Bucket>,
    /// Places for registered groups.
    pub registrations: Array<Place<Registration>>,
}

/// A table of items, which are found by the index of their place.
#[derive(Debug)]
#[cfg_attr(not(MODULE), derive(Clone, PartialEq, Eq))]
pub(super) struct Table<T> {
    places: Array<Place<T>>,
    /// The first free place, plus one; 0: none.
    first_free: u32,
    used: u32,
    spare: Spare<T>,
}

impl<T> Table<T> {
    /// Returns an empty table; an index that does not resolve refers to `spare`. O(length).
    pub(super) fn new(mut places: Array<Place<T>>, spare: T) -> Self {
        // CAST: storage is far smaller than 2^31 places.
        let len = places.len() as u32;
        for (next, place) in (2..).zip(places.iter_mut()) {
            *place = Place {
                next_free: if next <= len { next } else { 0 },
                ..Place::default()
            };
        }
        Self {
            places,
            first_free: len.min(1),
            used: 0,
            spare: Spare::new(spare),
        }
    }

    /// Returns how many places there are.
    pub(super) fn len(&self) -> u32 {
        // CAST: as in `new`.
        self.places.len() as u32
    }

    /// Returns how many places are in use.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// Returns the generation of a place.
    pub(super) fn generation(&self, index: u32) -> u32 {
        let place = self.places.get(index as usize);
        place.map_or(0, |place| place.generation)
    }

    /// Returns whether a place is in use.
    pub(super) fn has(&self, index: u32) -> bool {
        let place = self.places.get(index as usize);
        place.is_some_and(|place| place.item.is_some())
    }

    /// Iterates over the places that are in use.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let places = (0..).zip(self.places.iter());
        places.filter_map(|(index, place)| Some((index, place.item.as_ref()?)))
    }

    /// Puts an item into a free place, and returns the place's index. `None`: all places are in
    /// use.
    pub(super) fn add(&mut self, item: T) -> Option<u32> {
        let index = self.first_free.checked_sub(1)?;
        let place = self.places.get_mut(index as usize)?;
        self.first_free = place.next_free;
        self.used += 1;
        place.item = Some(item);
        Some(index)
    }

    /// Frees a place. Its generation is not used again.
    pub(super) fn remove(&mut self, index: u32) {
        let place = self.places.get_mut(index as usize);
        let Some(place) = place.filter(|place| place.item.is_some()) else {
            return;
        };
        place.item = None;
        place.generation = place.generation.wrapping_add(1);
        place.next_free = self.first_free;
        self.first_free = index + 1;
        self.used -= 1;
    }

    /// Returns whether an index did not resolve since the last call.
    pub(super) fn was_unresolved(&self) -> bool {
        self.spare.was_used()
    }
}

impl<T> Index<usize> for Table<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        match self.places.get(index) {
            Some(Place {
                item: Some(item), ..
            }) => item,
            _ => self.spare.get(),
        }
    }
}

impl<T> IndexMut<usize> for Table<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        match self.places.get_mut(index) {
            Some(Place {
                item: Some(item), ..
            }) => item,
            _ => self.spare.get_mut(),
        }
    }
}

/// The item that an index which does not resolve refers to. Such an index is a bug, which is
/// reported and costs only the consistency of one item.
pub(super) struct Spare<T> {
    item: T,
    used: AtomicBool,
}

impl<T> Spare<T> {
    pub(super) const fn new(item: T) -> Self {
        Self {
            item,
            used: AtomicBool::new(false),
        }
    }

    #[cold]
    pub(super) fn get(&self) -> &T {
        debug_assert!(false, "an index does not resolve");
        self.used.store(true, Relaxed);
        &self.item
    }

    #[cold]
    pub(super) fn get_mut(&mut self) -> &mut T {
        debug_assert!(false, "an index does not resolve");
        self.used.store(true, Relaxed);
        &mut self.item
    }

    /// Returns whether an index did not resolve since the last call.
    pub(super) fn was_used(&self) -> bool {
        self.used.load(Relaxed) && self.used.swap(false, Relaxed)
    }
}

impl<T: Clone> Clone for Spare<T> {
    fn clone(&self) -> Self {
        Self::new(self.item.clone())
    }
}

/// A spare item is no part of the state.
impl<T> PartialEq for Spare<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for Spare<T> {}

impl<T> Debug for Spare<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Spare")
    }
}

/// An item for each slot that the card has.
#[cfg_attr(not(MODULE), derive(Clone, PartialEq, Eq))]
pub(super) struct PerSlot<T> {
    /// Items of slots that the card does not have are never used.
    items: Boxed<[T; MAX_SLOTS]>,
    /// The slots that the card has, a bit each.
    present: u8,
}

impl<T> PerSlot<T> {
    /// Returns the items of a card without slots; `items` is the storage.
    pub(super) fn new(items: Boxed<[T; MAX_SLOTS]>) -> Self {
        Self { items, present: 0 }
    }

    pub(super) fn set(&mut self, slot: SlotId, item: T) {
        self[slot] = item;
        self.present |= slot.bit();
    }

    pub(super) fn has(&self, slot: SlotId) -> bool {
        self.present & slot.bit() != 0
    }

    /// Returns the item of a slot that the card may not have.
    pub(super) fn find(&self, slot: SlotId) -> Option<&T> {
        self.has(slot).then(|| &self[slot])
    }

    /// Iterates over the slots that have an item.
    pub(super) fn ids(&self) -> impl Iterator<Item = SlotId> {
        slots_in(self.present)
    }

    /// Iterates over all items.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.ids().map(|slot| &self[slot])
    }
}

impl<T> Index<SlotId> for PerSlot<T> {
    type Output = T;

    fn index(&self, slot: SlotId) -> &T {
        &self.items[slot.index() % MAX_SLOTS]
    }
}

impl<T> IndexMut<SlotId> for PerSlot<T> {
    fn index_mut(&mut self, slot: SlotId) -> &mut T {
        &mut self.items[slot.index() % MAX_SLOTS]
    }
}

impl<T: Debug> Debug for PerSlot<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
