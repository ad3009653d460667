// SPDX-License-Identifier: GPL-2.0

//! Delivering notices to the owners of contexts, from any context.
//!
//! The holder of the card's raw lock must not wake tasks. So a notifier that has a notice is put on
//! a list of the card, and the card's `irq_work` is queued. The `irq_work` runs as soon as
//! interrupts are on again, and does the wake-ups and eventfd signals.
//!
//! The list holds references, so that no notifier is freed during its delivery. An `irq_work` in
//! each notifier could not guarantee that: the work can be queued on a second CPU while its handler
//! runs on the first, and `irq_work_sync()` returns when one of the two handlers has returned.

use crate::{
    c_object::{c_object, callback, Callback},
    notifier::{Notice, Notifier},
    shim::{self, synchronize_rcu},
};
use core::{mem::offset_of, ptr};
use kernel::{
    bindings,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Relaxed, Release},
        Arc,
    },
};

c_object! {
    /// A `struct irq_work`.
    IrqWork(irq_work) {
        new = shim::fermata_irq_work_init, (
            func: unsafe extern "C" fn(*mut bindings::irq_work)
        );
        fn queue = bindings::irq_work_queue, () -> bool;
        fn sync = bindings::irq_work_sync, ();
    }
}

/// The notifiers of a card that have notices to deliver.
///
/// # Invariants
///
/// `first` is null or the first notifier of a list that is linked by [`Notifier::next`]. The list
/// owns a reference of each notifier on it. `work` is queued after a notifier is put on the list.
#[pin_data(PinnedDrop)]
pub(crate) struct Delivery {
    #[pin]
    work: IrqWork,
    first: Atomic<*mut Notifier>,
}

impl Delivery {
    /// Returns an initialiser for an empty list.
    pub(crate) fn new() -> impl PinInit<Self> {
        // The callback is for a `Delivery`, which `work` is a part of, and whose `drop` waits for
        // the callback.
        pin_init!(Self {
            work <- IrqWork::new(callback::<Self, bindings::irq_work>),
            first: Atomic::new(ptr::null_mut()),
        })
    }

    /// Notes `notice` for the owner of `notifier`, and schedules its delivery. Any context but NMI,
    /// under any lock. Allocates nothing.
    pub(crate) fn tell(&self, notifier: &Arc<Notifier>, notice: Notice) {
        if !notifier.note(notice) {
            // The notifier is on the list, or will be in a moment.
            return;
        }
        let new = Arc::into_raw(notifier.clone()).cast_mut();
        let mut first = self.first.load(Relaxed);
        loop {
            // SAFETY: `note` has given us `next`, until the notifier is on the list.
            unsafe { *notifier.next.get() = first };
            match self.first.cmpxchg(first, new, Release) {
                Ok(_) => break,
                Err(now_first) => first = now_first,
            }
        }
        self.work.queue();
    }
}

impl Callback<bindings::irq_work> for Delivery {
    const OFFSET: usize = offset_of!(Self, work);

    /// Delivers the notices of all notifiers on the list. May run on several CPUs at once, each
    /// with a list of its own.
    fn called(&self) {
        let mut next = self.first.xchg(ptr::null_mut(), Acquire);
        while !next.is_null() {
            // SAFETY: By the type invariant the list, which we have taken, owned this reference.
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
        // Nobody gives notices any more. After this the last handler has at least begun.
        self.work.sync();
        // Handlers are RCU readers: they run in interrupts or, on PREEMPT_RT, in a thread that
        // holds `rcu_read_lock()`. `irq_work` does not touch `work` after that either.
        synchronize_rcu();
    }
}
