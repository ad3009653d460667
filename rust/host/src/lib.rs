// SPDX-License-Identifier: GPL-2.0

//! The scheduler and the slot protocol of `fermata.ko`, and what it measures, on the host: the very
//! files that the module compiles.

#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

pub mod array;

#[path = "../../sched/mod.rs"]
pub mod sched;

#[path = "../../measure/mod.rs"]
pub mod measure;

/// Returns a card with so many slots of one engine, of the fermata profile; at most
/// [`sched::MAX_SLOTS`].
pub fn card(slots: usize) -> sched::CardConfig {
    let mut config = sched::CardConfig::default();
    let slots = config.slots.iter_mut().take(slots);
    slots.for_each(|slot| *slot = Some(sched::SlotConfig::PLAIN));
    config
}

/// Returns storage for so many contexts and groups.
pub fn storage(contexts: usize, groups: usize) -> sched::Storage {
    fn table<T: Default>(len: usize) -> array::Array<T> {
        (0..len).map(|_| T::default()).collect()
    }
    let entities = sched::EntityStorage {
        entities: table(contexts + groups),
        contexts: table(contexts),
        groups: table(groups),
        buckets: table(groups),
        registrations: table(sched::Scheduler::GROUPS_MAX),
    };
    sched::Storage {
        entities,
        slots: array::Boxed::new(core::array::from_fn(|_| sched::Slot::default())),
        queues: array::Boxed::new(core::array::from_fn(|_| sched::RunQueue::default())),
    }
}
