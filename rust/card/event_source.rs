// SPDX-License-Identifier: GPL-2.0

//! The timer and the vector of one slot: what brings the card's events in.

use super::Card;
use crate::{
    sched::{SlotId, Time},
    timer::{Timed, Timer},
    vector::Vector,
};
use core::mem::offset_of;
use kernel::{
    prelude::*,
    time::{hrtimer::AbsolutePinnedHardMode, Monotonic},
};

/// The sources of events of one slot, silent until [`Vector::start`].
#[pin_data(PinnedDrop)]
pub(super) struct SlotEvents {
    id: SlotId,
    /// The vector of the slot's number; where there are fewer, of the slots that fall to it too. It
    /// knows the card.
    #[pin]
    pub(super) vector: Vector<Card>,
    #[pin]
    timer: Timer<Self>,
}

impl SlotEvents {
    /// The sources of slot number `slot`, silent. `EINVAL`: no card has such a slot.
    pub(super) fn new(slot: u8) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            id: SlotId::new(slot).ok_or(EINVAL)?,
            vector <- Vector::new(),
            // SAFETY: `OFFSET` is that of this field, and `drop` stops it first.
            timer <- unsafe { Timer::new() },
        })
    }

    /// Arms the timer for `at`, in place of an earlier arming. Any context, under any lock.
    pub(super) fn arm(&self, at: Time) {
        self.timer.arm(at);
    }

    /// Disarms the timer if that can be done without waiting. It may fire all the same. Any
    /// context, under any lock.
    pub(super) fn disarm(&self) {
        self.timer.disarm();
    }

    /// Ends both sources, and waits for handlers that run. Process context, without the card's
    /// lock.
    pub(super) fn stop(&self) {
        self.vector.stop();
        self.timer.stop();
    }
}

impl Timed for SlotEvents {
    const OFFSET: usize = offset_of!(Self, timer);
    /// On the CPU that arms it, and hard: a slice must not wait for a thread.
    type Mode = AbsolutePinnedHardMode<Monotonic>;

    fn timer_fired(&self) {
        if let Some(card) = self.vector.sink() {
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
