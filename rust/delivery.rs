// SPDX-License-Identifier: GPL-2.0

//! Delivering notices to the owners of contexts, from any context.
//!
//! Whoever holds the card's raw lock may not wake anybody. So a notifier that has a notice is put on a
//! list of the card, and the card's `irq_work` is queued, which runs as soon as interrupts are on
//! again and does the wake-ups and eventfd signals.
//!
//! The list holds references, so that no notifier is freed under its delivery. An `irq_work` of each
//! notifier could not promise that: the work can be queued on a second CPU while its handler runs on
//! the first, and `irq_work_sync()` returns when one of the two handlers has.

use crate::{
    notifier::{Notice, Notifier},
    shim,
};
use core::{
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};
use kernel::{bindings, prelude::*, sync::Arc, types::Opaque};

/// The notifiers of a card whose owners are still to be told.
///
/// # Invariants
///
/// `queued` is null or the first notifier of a list that is linked by [`Notifier::next`], and owns a
/// reference of each notifier on it. `work` is queued after each notifier that is put there.
#[pin_data(PinnedDrop)]
pub(crate) struct Delivery {
    #[pin]
    work: Opaque<bindings::irq_work>,
    queued: AtomicPtr<Notifier>,
}

// SAFETY: An `irq_work` may be queued and run on any CPU, and so may `queued`, which is atomic.
unsafe impl Send for Delivery {}
// SAFETY: As above.
unsafe impl Sync for Delivery {}

impl Delivery {
    /// With nothing to deliver.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            work <- Opaque::ffi_init(|work| {
                // SAFETY: `work` is valid for writes.
                unsafe { shim::fermata_irq_work_init(work, Self::deliver) }
            }),
            queued: AtomicPtr::new(ptr::null_mut()),
        })
    }

    /// Notes `notice` for the owner that `notifier` tells, and lets it be delivered soon. Any context
    /// but NMI, under any lock. Allocates nothing.
    pub(crate) fn tell(&self, notifier: &Arc<Notifier>, notice: Notice) {
        if !notifier.note(notice) {
            // The notifier is on the list, or will be in a moment.
            return;
        }
        let new = Arc::into_raw(notifier.clone()).cast_mut();
        let mut first = self.queued.load(Ordering::Relaxed);
        loop {
            // SAFETY: `note` has given us `next`, until the notifier is on the list.
            unsafe { *notifier.next.get() = first };
            match self.queued.compare_exchange_weak(
                first,
                new,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now_first) => first = now_first,
            }
        }
        // SAFETY: `work` is initialised and pinned; `drop` waits for it.
        unsafe { bindings::irq_work_queue(self.work.get()) };
    }

    /// Delivers to all notifiers on the list. May run on several CPUs at once, each with a list of its
    /// own then.
    ///
    /// # Safety
    ///
    /// Called by `irq_work` with the `work` of a live `Delivery`.
    unsafe extern "C" fn deliver(work: *mut bindings::irq_work) {
        // SAFETY: By the safety requirement; `Opaque<T>` has the layout of `T`.
        let this = unsafe { &*kernel::container_of!(Opaque::cast_from(work), Self, work) };
        let mut next = this.queued.swap(ptr::null_mut(), Ordering::Acquire);
        while !next.is_null() {
            // SAFETY: By the type invariant the list, which we have taken, has owned a reference.
            let notifier = unsafe { Arc::from_raw(next) };
            // SAFETY: `next` is ours until `deliver` lets the notifier be put on the list again.
            next = unsafe { *notifier.next.get() };
            notifier.deliver();
        }
    }
}

#[pinned_drop]
impl PinnedDrop for Delivery {
    fn drop(self: Pin<&mut Self>) {
        // Nobody tells anything any more.
        // SAFETY: `work` is initialised. After this its last handler has at least begun.
        unsafe { bindings::irq_work_sync(self.work.get()) };
        // Handlers are RCU readers: they run in interrupts or, on PREEMPT_RT, in a thread that holds
        // `rcu_read_lock()`. `irq_work` does not touch `work` after that either.
        // SAFETY: No requirement; may sleep.
        unsafe { bindings::synchronize_rcu() };
    }
}
