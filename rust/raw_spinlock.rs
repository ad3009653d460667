// SPDX-License-Identifier: GPL-2.0

//! A raw spinlock that disables interrupts, for interrupt handlers and hard timers.
//!
//! The `kernel` crate's `SpinLock` leaves interrupts enabled and sleeps on PREEMPT_RT, so a hard
//! timer must not take it. This lock is the crate's `Lock` over a `raw_spinlock_t`. Its holder does
//! not sleep, wake tasks, signal eventfds or free memory, but defers these until the lock is
//! released (see [`crate::delivery`]).

use crate::shim;
use kernel::{
    bindings,
    prelude::*,
    sync::lock::{Backend, Lock},
};

/// The [`Backend`] over `raw_spin_lock_irqsave()`.
pub(crate) struct RawSpinLockBackend;

// SAFETY: Only one CPU at a time returns from `_raw_spin_lock_irqsave` for a lock, until it calls
// `_raw_spin_unlock_irqrestore`.
unsafe impl Backend for RawSpinLockBackend {
    type State = bindings::raw_spinlock_t;
    /// The interrupt flags that are restored at the unlock.
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

    /// Always fails: the C function is a macro, and nothing here needs it.
    unsafe fn try_lock(_ptr: *mut Self::State) -> Option<Self::GuardState> {
        None
    }

    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // SAFETY: The caller guarantees that `ptr` is initialised.
        unsafe { shim::fermata_raw_spin_assert_held(ptr) }
    }
}

/// A value behind a raw spinlock that disables interrupts. Any context but NMI.
pub(crate) type RawSpinLock<T> = Lock<T, RawSpinLockBackend>;

/// Returns an initialiser for a [`RawSpinLock`] with a lock class of its own.
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
