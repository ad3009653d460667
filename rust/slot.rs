// SPDX-License-Identifier: GPL-2.0

//! The timer and the interrupt of one slot: what brings the card's events in.

use crate::{
    card::Card,
    compat::c_enum,
    sched::{SlotId, Time},
};
use core::{
    ptr,
    sync::atomic::{AtomicPtr, AtomicU32, Ordering},
};
use kernel::{bindings, error::to_result, prelude::*, types::Opaque};

/// [`SlotEvents::irq`] without an interrupt.
const NO_IRQ: u32 = 0;

/// The sources of events of one slot.
///
/// # Invariants
///
/// `card` is null, or the [`Card`] that `self` is a part of. The timer is armed and the interrupt
/// requested only while it is not null; [`SlotEvents::stop`] ends both before the card can go.
#[pin_data(PinnedDrop)]
pub(crate) struct SlotEvents {
    id: SlotId,
    card: AtomicPtr<Card>,
    irq: AtomicU32,
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
            irq: AtomicU32::new(NO_IRQ),
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
    }

    /// Requests the interrupt `irq`. Process context. The error is that of `request_irq()`.
    pub(crate) fn request_irq(&self, irq: u32) -> Result {
        // SAFETY: `self` is pinned, and `stop` frees the interrupt before it goes.
        to_result(unsafe {
            bindings::request_threaded_irq(
                irq,
                Some(Self::interrupted),
                None,
                // A hard handler also with forced threading: a switch must not wait for a thread.
                // Shared, since slots share a vector where there are too few.
                (bindings::IRQF_NO_THREAD | bindings::IRQF_SHARED) as c_ulong,
                c"fermata".as_char_ptr(),
                ptr::from_ref(self).cast_mut().cast(),
            )
        })?;
        self.irq.store(irq, Ordering::Release);
        Ok(())
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
        let irq = self.irq.swap(NO_IRQ, Ordering::AcqRel);
        if irq != NO_IRQ {
            // SAFETY: Requested with this cookie, and freed once.
            unsafe { bindings::free_irq(irq, ptr::from_ref(self).cast_mut().cast()) };
        }
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

    /// # Safety
    ///
    /// Called by the interrupt core with the cookie given to `request_threaded_irq`.
    unsafe extern "C" fn interrupted(_irq: c_int, cookie: *mut c_void) -> bindings::irqreturn_t {
        // SAFETY: The cookie is a live `SlotEvents`.
        let this = unsafe { &*cookie.cast_const().cast::<Self>() };
        match this.card() {
            Some(card) => {
                card.interrupt(this.id);
                c_enum::IRQ_HANDLED
            }
            None => c_enum::IRQ_NONE,
        }
    }
}

#[pinned_drop]
impl PinnedDrop for SlotEvents {
    fn drop(self: Pin<&mut Self>) {
        self.stop();
    }
}
