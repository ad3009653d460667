// SPDX-License-Identifier: GPL-2.0

//! A raw spinlock that disables interrupts: what interrupt handlers and hard timers may take.
//!
//! The `kernel` crate's `SpinLock` leaves interrupts on and sleeps on PREEMPT_RT; taking it in a
//! hard timer is an invalid wait context. This one is built on the crate's `Lock` with a
//! `raw_spinlock_t`. Under it: no sleeping, no wake-ups, no eventfd signals, no freeing of memory;
//! those are deferred to after the unlock (see [`crate::delivery`]).

use crate::shim;
use kernel::{
    bindings,
    prelude::*,
    sync::lock::{Backend, Lock},
};

/// The [`Backend`] over `raw_spin_lock_irqsave()`.
pub(crate) struct RawSpinLockBackend;

// SAFETY: `_raw_spin_lock_irqsave` gives mutual exclusion until the matching
// `_raw_spin_unlock_irqrestore`.
unsafe impl Backend for RawSpinLockBackend {
    type State = bindings::raw_spinlock_t;
    /// The interrupt flags to restore.
    type GuardState = c_ulong;

    unsafe fn init(ptr: *mut Self::State, name: *const c_char, key: *mut bindings::lock_class_key) {
        // SAFETY: The caller guarantees that `ptr` is valid for writes and `name` and `key` for the
        // lock's life.
        unsafe { shim::fermata_raw_spin_lock_init(ptr, name, key) }
    }

    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
        // SAFETY: The caller guarantees that `ptr` is initialised.
        unsafe { bindings::_raw_spin_lock_irqsave(ptr) }
    }

    unsafe fn unlock(ptr: *mut Self::State, flags: &Self::GuardState) {
        // SAFETY: The caller guarantees that it holds the lock, which `lock` took with these
        // `flags`.
        unsafe { bindings::_raw_spin_unlock_irqrestore(ptr, *flags) }
    }

    unsafe fn try_lock(_ptr: *mut Self::State) -> Option<Self::GuardState> {
        // The irq-save trylock is a macro in C, and nothing here needs it.
        None
    }

    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // SAFETY: The caller guarantees that `ptr` is initialised.
        unsafe { shim::fermata_raw_spin_assert_held(ptr) }
    }
}

/// A value behind a raw, interrupt-disabling spinlock. Usable in any context but NMI.
pub(crate) type RawSpinLock<T> = Lock<T, RawSpinLockBackend>;

/// Creates a [`RawSpinLock`] of its own lock class.
macro_rules! new_raw_spinlock {
    ($value:expr, $name:literal) => {
        kernel::sync::lock::Lock::<_, $crate::raw_spinlock::RawSpinLockBackend>::new(
            $value,
            kernel::optional_name!($name),
            kernel::static_lock_class!(),
        )
    };
}
pub(crate) use new_raw_spinlock;
