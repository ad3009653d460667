// SPDX-License-Identifier: GPL-2.0

//! A timer as a part of what it is for.

use crate::{sched::Time, shim};
use core::marker::PhantomData;
use kernel::{bindings, prelude::*, types::Opaque};

/// What a [`Timer`] is a part of.
pub(crate) trait Timed {
    /// Where in `Self` the timer is, in bytes.
    const OFFSET: usize;
    /// Absolute, and hard: in interrupt context also on PREEMPT_RT.
    const MODE: bindings::hrtimer_mode;

    /// The time has come. Hard interrupt context.
    fn timer_fired(&self);
}

/// An hrtimer on CLOCK_MONOTONIC that fires once for each arming.
///
/// # Invariants
///
/// `hrtimer` is initialised. It is [`Timed::OFFSET`] bytes into a `T`, which has called
/// [`Timer::stop`] after the last arming before it is dropped.
///
/// The layout is that of `struct fermata_timer` (include/fermata_shim.h).
#[pin_data]
#[repr(C)]
pub(crate) struct Timer<T: Timed> {
    #[pin]
    hrtimer: Opaque<bindings::hrtimer>,
    fired: unsafe extern "C" fn(*mut bindings::hrtimer),
    _part_of: PhantomData<fn(&T)>,
}

// SAFETY: An hrtimer has a lock of its own, and may be used and dropped on any CPU.
unsafe impl<T: Timed> Send for Timer<T> {}
// SAFETY: As above. That `timer_fired` runs on another CPU takes a `T` that is `Sync`, see `new`.
unsafe impl<T: Timed> Sync for Timer<T> {}

impl<T: Timed + Sync> Timer<T> {
    /// A timer that is not armed.
    ///
    /// # Safety
    ///
    /// It must be initialised as the part of a pinned `T` that [`Timed::OFFSET`] tells of. That `T`
    /// must call [`Timer::stop`] before anything of it is dropped, and not arm it afterwards.
    pub(crate) unsafe fn new() -> impl PinInit<Self> {
        // INVARIANT: By the safety requirement, and initialised here.
        pin_init!(Self {
            hrtimer <- Opaque::ffi_init(|hrtimer| {
                // SAFETY: `hrtimer` is valid for writes.
                unsafe { shim::fermata_timer_setup(hrtimer, T::MODE) }
            }),
            fired: Self::fired,
            _part_of: PhantomData,
        })
    }

    /// Arms it for `at`, in place of an earlier arming. Any context, under any lock.
    pub(crate) fn arm(&self, at: Time) {
        // CAST: below 2^63 ns, 292 years.
        let at = i64::try_from(at.as_ns()).unwrap_or(i64::MAX);
        // SAFETY: By the type invariant it is initialised; the callback does not restart it.
        unsafe { bindings::hrtimer_start_range_ns(self.hrtimer.get(), at, 0, T::MODE) };
    }

    /// Disarms it if that can be done without waiting. It may fire all the same. Any context, under
    /// any lock.
    pub(crate) fn disarm(&self) {
        // SAFETY: By the type invariant it is initialised.
        unsafe { bindings::hrtimer_try_to_cancel(self.hrtimer.get()) };
    }

    /// Disarms it, and waits for [`Timed::timer_fired`] if that runs. Process context, without a lock
    /// that it takes.
    pub(crate) fn stop(&self) {
        // SAFETY: By the type invariant it is initialised.
        unsafe { bindings::hrtimer_cancel(self.hrtimer.get()) };
    }

    /// # Safety
    ///
    /// Called when it fires, with the `hrtimer` of a `Timer<T>`.
    unsafe extern "C" fn fired(hrtimer: *mut bindings::hrtimer) {
        // SAFETY: By the safety requirement.
        let timer = unsafe { kernel::container_of!(Opaque::cast_from(hrtimer), Self, hrtimer) };
        // SAFETY: By the type invariant that is a part of a `T`, so many bytes into it. The `T` lives:
        // it was armed, and `stop`, which waits for us, has not returned since.
        let part_of = unsafe { &*timer.byte_sub(T::OFFSET).cast::<T>() };
        part_of.timer_fired();
    }
}
