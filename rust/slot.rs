// SPDX-License-Identifier: GPL-2.0

//! The timer and the vector of one slot: what brings the card's events in.

use crate::{
    card::Card,
    compat::c_enum,
    sched::{SlotId, Time},
    vector::Vector,
};
use core::{
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};
use kernel::{bindings, prelude::*, types::Opaque};

/// The sources of events of one slot.
///
/// # Invariants
///
/// `card` is null, or the [`Card`] that `self` is a part of. The timer is armed only while it is not
/// null; [`SlotEvents::stop`] ends it before the card can go.
#[pin_data(PinnedDrop)]
pub(crate) struct SlotEvents {
    id: SlotId,
    card: AtomicPtr<Card>,
    /// The vector of the slot's number; where there are fewer, of the slots that fall to it too.
    #[pin]
    pub(crate) vector: Vector,
    #[pin]
    timer: Opaque<bindings::hrtimer>,
}

// SAFETY: Atomics, and an hrtimer, which has a lock of its own.
unsafe impl Send for SlotEvents {}
// SAFETY: As above.
unsafe impl Sync for SlotEvents {}

/// Absolute times on the CPU that arms it, in interrupt context also on PREEMPT_RT: a slice must
/// not wait for a thread.
const TIMER_MODE: bindings::hrtimer_mode = bindings::hrtimer_mode_HRTIMER_MODE_ABS_PINNED_HARD;

impl SlotEvents {
    /// The sources of slot number `slot`, silent. `EINVAL`: no card has such a slot.
    pub(crate) fn new(slot: u8) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            id: SlotId::new(slot).ok_or(EINVAL)?,
            card: AtomicPtr::new(ptr::null_mut()),
            vector <- Vector::new(),
            timer <- Opaque::ffi_init(|timer| {
                // SAFETY: `timer` is valid for writes.
                unsafe {
                    bindings::hrtimer_setup(
                        timer,
                        Some(Self::timer_fired),
                        // CAST: a small constant.
                        bindings::CLOCK_MONOTONIC as bindings::clockid_t,
                        TIMER_MODE,
                    )
                }
            }),
        })
    }

    /// Lets events come in.
    ///
    /// # Safety
    ///
    /// `card` must be pinned, contain `self`, and call [`SlotEvents::stop`] before it is dropped.
    pub(crate) unsafe fn start(&self, card: *const Card) {
        // INVARIANT: By the safety requirement.
        self.card.store(card.cast_mut(), Ordering::Release);
        // SAFETY: By the safety requirement: `stop` stops the vector, which is a part of us.
        unsafe { self.vector.start(card) };
    }

    /// Arms the timer for `at`, in place of an earlier arming. Any context, under any lock.
    pub(crate) fn arm(&self, at: Time) {
        // CAST: below 2^63 ns, 292 years.
        let at = i64::try_from(at.as_ns()).unwrap_or(i64::MAX);
        // SAFETY: `timer` is initialised; the callback does not restart it by itself.
        unsafe { bindings::hrtimer_start_range_ns(self.timer.get(), at, 0, TIMER_MODE) };
    }

    /// Disarms the timer if that can be done without waiting. It may fire all the same. Any
    /// context, under any lock.
    pub(crate) fn disarm(&self) {
        // SAFETY: `timer` is initialised.
        unsafe { bindings::hrtimer_try_to_cancel(self.timer.get()) };
    }

    /// Ends both sources, and waits for handlers that run. Process context, without the card's
    /// lock.
    pub(crate) fn stop(&self) {
        self.vector.stop();
        // SAFETY: `timer` is initialised.
        unsafe { bindings::hrtimer_cancel(self.timer.get()) };
    }

    fn card(&self) -> Option<&Card> {
        // SAFETY: By the type invariant it is null or our container, which lives.
        unsafe { self.card.load(Ordering::Acquire).as_ref() }
    }

    /// # Safety
    ///
    /// Called by the hrtimer core with the `timer` of a live `SlotEvents`.
    unsafe extern "C" fn timer_fired(timer: *mut bindings::hrtimer) -> bindings::hrtimer_restart {
        // SAFETY: By the safety requirement.
        let this = unsafe { &*kernel::container_of!(Opaque::cast_from(timer), Self, timer) };
        if let Some(card) = this.card() {
            card.timer(this.id);
        }
        c_enum::HRTIMER_NORESTART
    }
}

#[pinned_drop]
impl PinnedDrop for SlotEvents {
    fn drop(self: Pin<&mut Self>) {
        self.stop();
    }
}
