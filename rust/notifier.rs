// SPDX-License-Identifier: GPL-2.0

//! Telling a context's owner what happened to its job. Notices are given by
//! [`Delivery::tell`](crate::delivery::Delivery::tell).

use crate::{
    raw_spinlock::{new_raw_spinlock, RawSpinLock},
    shim::{eventfd_ctx_fdget, synchronize_rcu},
    wait_queue::WaitQueue,
};
use core::{cell::UnsafeCell, mem, ptr};
use kernel::{
    bindings,
    error::from_err_ptr,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Full, Relaxed},
        rcu, Arc,
    },
};

/// Something that an owner can be told; bits, so that several can be noted at once.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Notice {
    /// The job finished or failed (`FERMATA_EVENT_DONE`).
    Done = 1 << 0,
    /// The job is held (`FERMATA_EVENT_HELD`).
    Held = 1 << 1,
    /// The job is off its slot, its queue empty (`FERMATA_EVENT_EMPTY`).
    Empty = 1 << 2,
    /// Jobs in its queue may be complete (`FERMATA_EVENT_COMPLETED`).
    Completed = 1 << 3,
    /// The card is gone.
    Gone = 1 << 16,
    /// The closed context is on no slot any more.
    Released = 1 << 17,
    /// A quarantined slot may reach the context's memory until the card is shut down.
    Stuck = 1 << 18,
}

/// An eventfd, and the notices that are signalled by it.
///
/// # Invariants
///
/// `context` is valid, and `self` owns a reference to it.
struct EventFd {
    context: *mut bindings::eventfd_ctx,
    mask: u32,
}

impl EventFd {
    /// Takes a reference to the caller's eventfd `fd`. `EBADF`: `fd` is not a descriptor; `EINVAL`:
    /// it is not an eventfd.
    fn new(fd: i32, mask: u32) -> Result<Self> {
        // INVARIANT: `eventfd_ctx_fdget` has taken the reference, or failed.
        Ok(Self {
            context: from_err_ptr(eventfd_ctx_fdget(fd))?,
            mask: mask | Notice::Gone as u32,
        })
    }

    /// Signals the eventfd if it is for one of `notices`. Any context but NMI, not under a raw
    /// lock.
    fn signal(&self, notices: u32) {
        if notices & self.mask != 0 {
            // SAFETY: `context` is valid by the type invariant.
            unsafe { bindings::eventfd_signal_mask(self.context, 0) };
        }
    }
}

impl Drop for EventFd {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the reference is ours; it is put once, here.
        unsafe { bindings::eventfd_ctx_put(self.context) };
    }
}

/// The wait queue and the optional eventfd of a context. May be dropped in any context but NMI, not
/// under a raw lock: a delivery may hold the last reference.
///
/// # Invariants
///
/// `pending` is not zero while the notifier is on the list of a
/// [`Delivery`](crate::delivery::Delivery).
#[pin_data]
pub(crate) struct Notifier {
    #[pin]
    queue: WaitQueue,
    /// Notices that were noted and not yet delivered.
    pending: Atomic<u32>,
    /// Notices that were noted and not yet taken.
    noted: Atomic<u32>,
    /// No lock is taken under it.
    #[pin]
    eventfd: RawSpinLock<Option<Arc<EventFd>>>,
    /// The next notifier on the list. Belongs to the caller for whom [`Notifier::note`] returned
    /// `true`, until that caller has put the notifier on the list. Belongs to the caller of
    /// [`Notifier::deliver`] once the notifier was taken off the list.
    pub(crate) next: UnsafeCell<*mut Notifier>,
}

// SAFETY: An eventfd may be signalled and put on any thread, and `next` is a plain pointer. All
// other fields are `Send`.
unsafe impl Send for Notifier {}
// SAFETY: An eventfd may be signalled by several threads at once. `next` has one user at a time, as
// its comment says: the accesses of `pending` order these users. All other fields are `Sync`.
unsafe impl Sync for Notifier {}

impl Notifier {
    /// Returns an initialiser for a notifier without an eventfd.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            queue <- WaitQueue::new(),
            pending: Atomic::new(0),
            noted: Atomic::new(0),
            eventfd <- new_raw_spinlock!(None, "fermata_eventfd"),
            next: UnsafeCell::new(ptr::null_mut()),
        })
    }

    /// Returns the wait queue of the owner's calls.
    pub(crate) fn queue(&self) -> &WaitQueue {
        &self.queue
    }

    /// Returns whether `notice` was noted and not taken.
    pub(crate) fn has(&self, notice: Notice) -> bool {
        self.noted.load(Acquire) & notice as u32 != 0
    }

    /// Takes `notice`. Returns whether it was noted since it was last taken.
    pub(crate) fn take(&self, notice: Notice) -> bool {
        let before = update(&self.noted, |noted| noted & !(notice as u32));
        before & notice as u32 != 0
    }

    /// Notes `notice`. Returns whether the caller has to put the notifier on the list of a
    /// delivery. Any context, under any lock.
    pub(crate) fn note(&self, notice: Notice) -> bool {
        update(&self.noted, |noted| noted | notice as u32);
        // The ordering makes the delivery find what was noted, whichever caller puts the notifier
        // on the list. It also makes our use of `next` follow that of the last delivery.
        update(&self.pending, |pending| pending | notice as u32) == 0
    }

    /// Wakes the owner and signals the eventfd, for all notices that are pending. Called by
    /// [`Delivery`](crate::delivery::Delivery), in an interrupt or, on PREEMPT_RT, in a thread.
    pub(crate) fn deliver(&self) {
        // Before the wake-up: notices that come from now on are delivered once more. The ordering
        // pairs with that in `note`.
        let pending = self.pending.xchg(0, Full);
        self.queue.wake_all();

        // `set_eventfd` waits for this reader.
        let _reader = rcu::read_lock();
        let eventfd = self.eventfd.lock().clone();
        if let Some(eventfd) = eventfd {
            eventfd.signal(pending);
        }
    }

    /// Returns the events that the eventfd is signalled for (0: there is no eventfd), and whether
    /// it is the eventfd of the caller's descriptor `fd`. `EBADF`: not a descriptor; `EINVAL`: not
    /// an eventfd. Process context.
    pub(crate) fn eventfd(&self, fd: Option<i32>) -> Result<(u32, bool)> {
        let other = fd.map(|fd| EventFd::new(fd, 0)).transpose()?;
        let ours = self.eventfd.lock().clone();
        let Some(ours) = ours else {
            return Ok((0, false));
        };
        let is_same = other.is_some_and(|other| other.context == ours.context);
        Ok((ours.mask & !(Notice::Gone as u32), is_same))
    }

    /// Replaces the eventfd by that of the caller's descriptor `fd`, or by none. The new eventfd is
    /// signalled for the notices in `mask`. Sleeps until the replaced eventfd is no longer
    /// signalled.
    ///
    /// `EBADF`: not a descriptor; `EINVAL`: not an eventfd; `ENOMEM`. On an error nothing was
    /// changed.
    pub(crate) fn set_eventfd(&self, fd: Option<i32>, mask: u32) -> Result {
        let new = match fd {
            Some(fd) => Some(Arc::new(EventFd::new(fd, mask)?, GFP_KERNEL_ACCOUNT)?),
            None => None,
        };
        let old = mem::replace(&mut *self.eventfd.lock(), new);
        if old.is_some() {
            synchronize_rcu();
        }
        drop(old);
        Ok(())
    }
}

/// Changes `word` atomically and returns its value before: `kernel::sync::atomic` has neither
/// `fetch_or` nor `fetch_and`.
fn update(word: &Atomic<u32>, change: impl Fn(u32) -> u32) -> u32 {
    let mut before = word.load(Relaxed);
    loop {
        match word.cmpxchg(before, change(before), Full) {
            Ok(_) => return before,
            Err(now) => before = now,
        }
    }
}
