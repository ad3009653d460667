// SPDX-License-Identifier: GPL-2.0

//! An hrtimer that is embedded in the value that handles its expiry.
//!
//! The `kernel` crate's `HrTimer` cannot take its place (docs/upstream.md): its handles cannot
//! cancel without waiting, and on 7.2 its callback does not have the type that kCFI checks.

use crate::{
    c_object::{c_object, callback, Callback},
    scheduler::Time,
    shim,
};
use core::marker::PhantomData;
use kernel::{
    bindings,
    prelude::*,
    time::{hrtimer::HrTimerMode, Monotonic},
};

/// A value that contains a [`Timer`].
pub(crate) trait Timed {
    /// Offset of the timer in `Self`, in bytes.
    const OFFSET: usize;
    /// Absolute, and hard: the timer fires in interrupt context on PREEMPT_RT, too.
    type Mode: HrTimerMode<Clock = Monotonic>;

    /// Handles the expiry of the timer. Hard interrupt context.
    fn timer_fired(&self);
}

c_object! {
    /// A `struct hrtimer`.
    HrTimer(hrtimer) {
        new = shim::fermata_timer_setup, (mode: bindings::hrtimer_mode);
        fn start = bindings::hrtimer_start_range_ns, (
            at: bindings::ktime_t,
            slack: u64,
            mode: bindings::hrtimer_mode
        );
        fn try_to_cancel = bindings::hrtimer_try_to_cancel, () -> c_int;
        fn cancel = bindings::hrtimer_cancel, () -> c_int;
    }
}

/// An hrtimer on CLOCK_MONOTONIC that fires once each time it is armed.
///
/// # Invariants
///
/// The timer is [`Timed::OFFSET`] bytes into a `T`, which calls [`Timer::stop`] after it has armed
/// the timer for the last time and before it is dropped.
///
/// The layout is that of `struct fermata_timer` (include/fermata_shim.h).
#[pin_data]
#[repr(C)]
pub(crate) struct Timer<T: Timed> {
    #[pin]
    hrtimer: HrTimer,
    fired: unsafe extern "C" fn(*mut bindings::hrtimer),
    _part_of: PhantomData<fn(&T)>,
}

impl<T: Timed + Sync> Timer<T> {
    /// Returns an initialiser for a timer that is not armed.
    ///
    /// # Safety
    ///
    /// The timer must be initialised [`Timed::OFFSET`] bytes into a pinned `T`. The `T` must call
    /// [`Timer::stop`] before any part of it is dropped, and not arm the timer afterwards.
    pub(crate) unsafe fn new() -> impl PinInit<Self> {
        // INVARIANT: By the safety requirement. `fired` is called only while the timer is armed or
        // being stopped, while the `T` is alive.
        pin_init!(Self {
            hrtimer <- HrTimer::new(T::Mode::C_MODE),
            fired: callback::<T, bindings::hrtimer>,
            _part_of: PhantomData,
        })
    }

    /// Arms the timer for `at`, in place of an earlier time. Any context, under any lock.
    pub(crate) fn arm(&self, at: Time) {
        // A time beyond 2^63 ns, 292 years, is never reached.
        let at = i64::try_from(at.as_ns()).unwrap_or(i64::MAX);
        self.hrtimer.start(at, 0, T::Mode::C_MODE);
    }

    /// Disarms the timer if that is possible without waiting. The timer may still fire. Any
    /// context, under any lock.
    pub(crate) fn disarm(&self) {
        self.hrtimer.try_to_cancel();
    }

    /// Disarms the timer, and waits for [`Timed::timer_fired`] if it is running. Process context,
    /// without a lock that `timer_fired` takes.
    pub(crate) fn stop(&self) {
        self.hrtimer.cancel();
    }
}

impl<T: Timed> Callback<bindings::hrtimer> for T {
    /// The hrtimer is the first member of the timer.
    const OFFSET: usize = <T as Timed>::OFFSET;

    fn called(&self) {
        self.timer_fired();
    }
}
