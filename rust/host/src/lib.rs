// SPDX-License-Identifier: GPL-2.0

//! The scheduler, the slot protocol and the measurements of `fermata.ko`, on the host: the same
//! source files that the module compiles.

#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

/// The arrays that the scheduler keeps contexts and groups in.
pub mod array {
    /// A value on the heap.
    pub type Boxed<T> = alloc::boxed::Box<T>;

    #[cfg(feature = "count")]
    pub use counted::{accesses, Array};

    /// An array on the heap, of a fixed length.
    #[cfg(not(feature = "count"))]
    pub type Array<T> = alloc::boxed::Box<[T]>;

    /// Arrays that count their accesses: the cost of a decision, counted instead of timed.
    #[cfg(feature = "count")]
    mod counted {
        extern crate std;

        use alloc::boxed::Box;
        use core::cell::Cell;
        use core::ops::{Deref, DerefMut};

        std::thread_local! {
            static ACCESSES: Cell<u64> = const { Cell::new(0) };
        }

        /// Returns how many accesses the calling thread has made.
        pub fn accesses() -> u64 {
            ACCESSES.get()
        }

        /// An array on the heap, of a fixed length.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Array<T>(Box<[T]>);

        impl<T> FromIterator<T> for Array<T> {
            fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
                Self(items.into_iter().collect())
            }
        }

        impl<T> Deref for Array<T> {
            type Target = [T];

            fn deref(&self) -> &[T] {
                ACCESSES.set(ACCESSES.get() + 1);
                &self.0
            }
        }

        impl<T> DerefMut for Array<T> {
            fn deref_mut(&mut self) -> &mut [T] {
                ACCESSES.set(ACCESSES.get() + 1);
                &mut self.0
            }
        }
    }
}

mod event;
mod recording;

/// The scheduler as tests drive it: by events, with actions as answers.
pub mod sched {
    pub use crate::event::{Action, Event};
    pub use crate::recording::Scheduler;
    pub use crate::scheduler::{
        CardConfig, ContextConfig, ContextId, Duration, EndReason, Failure, GroupKey, GroupPath,
        GroupSettings, GroupStats, JobState, LeftReason, LoadCost, NewJob, NextRun, Order, Params,
        PastJobs, PauseCause, Phase, PolicyKind, PreemptGranularity, Profile, Refusal, RunEnd,
        RunRecord, SlotConfig, SlotId, SlotState, SlotStats, StartTimes, Stats, Status, Stop,
        Storage, Time, Urgency, WaitReason, Wake, MAX_SLOTS,
    };
}

#[cfg_attr(
    not(feature = "hints"),
    allow(dead_code, reason = "some functions are for one feature only")
)]
#[path = "../../scheduler/mod.rs"]
pub mod scheduler;

#[path = "../../measure/mod.rs"]
pub mod measure;

/// Returns a card of the irq profile with `slots` slots, at most [`sched::MAX_SLOTS`], of one
/// engine.
pub fn card(slots: usize) -> sched::CardConfig {
    let mut config = sched::CardConfig::default();
    let slots = config.slots.iter_mut().take(slots);
    slots.for_each(|slot| *slot = Some(sched::SlotConfig::PLAIN));
    config
}

fn table<T: Default>(len: usize) -> array::Array<T> {
    (0..len).map(|_| T::default()).collect()
}

/// Returns storage for this many contexts, and groups, which may be registered.
pub fn storage(contexts: usize, groups: usize) -> sched::Storage {
    let registered = scheduler::Scheduler::GROUPS_MAX;
    small_storage(contexts, groups, groups + registered)
}

/// Returns storage for this many contexts, for groups with contexts of one
/// class and urgency, and for groups in all.
pub fn small_storage(contexts: usize, active: usize, groups: usize) -> scheduler::Storage {
    let levels = scheduler::Scheduler::level_places(0, 0, active);
    scheduler::Storage {
        contexts: table(contexts),
        entities: table(contexts + levels),
        levels: table(levels),
        groups: table(groups),
        bins: table(groups),
        slots: array::Boxed::new(core::array::from_fn(|_| scheduler::Slot::default())),
    }
}
