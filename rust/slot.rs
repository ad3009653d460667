// SPDX-License-Identifier: GPL-2.0

//! The timer and the vector of one slot: what brings the card's events in.

use crate::{
    card::Card,
    sched::{SlotId, Time},
    timer::{Timed, Timer},
    vector::Vector,
};
use core::{
    mem::offset_of,
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};
use kernel::{
    prelude::*,
    time::{hrtimer::AbsolutePinnedHardMode, Monotonic},
};

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
    pub(crate) vector: Vector<Card>,
    #[pin]
    timer: Timer<Self>,
}

impl SlotEvents {
    /// The sources of slot number `slot`, silent. `EINVAL`: no card has such a slot.
    pub(crate) fn new(slot: u8) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            id: SlotId::new(slot).ok_or(EINVAL)?,
            card: AtomicPtr::new(ptr::null_mut()),
            vector <- Vector::new(),
            // SAFETY: `OFFSET` is that of this field, and `drop` stops it first.
            timer <- unsafe { Timer::new() },
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
        self.timer.arm(at);
    }

    /// Disarms the timer if that can be done without waiting. It may fire all the same. Any
    /// context, under any lock.
    pub(crate) fn disarm(&self) {
        self.timer.disarm();
    }

    /// Ends both sources, and waits for handlers that run. Process context, without the card's
    /// lock.
    pub(crate) fn stop(&self) {
        self.vector.stop();
        self.timer.stop();
    }

    fn card(&self) -> Option<&Card> {
        // SAFETY: By the type invariant it is null or our container, which lives.
        unsafe { self.card.load(Ordering::Acquire).as_ref() }
    }
}

impl Timed for SlotEvents {
    const OFFSET: usize = offset_of!(Self, timer);
    /// On the CPU that arms it, and hard: a slice must not wait for a thread.
    type Mode = AbsolutePinnedHardMode<Monotonic>;

    fn timer_fired(&self) {
        if let Some(card) = self.card() {
            card.timer(self.id);
        }
    }
}

#[pinned_drop]
impl PinnedDrop for SlotEvents {
    fn drop(self: Pin<&mut Self>) {
        self.stop();
    }
}
