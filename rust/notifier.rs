// SPDX-License-Identifier: GPL-2.0

//! Telling a context's owner what happened to its job. Notices are given by
//! [`Delivery::tell`](crate::delivery::Delivery::tell).

use crate::{sched::Time, shim};
use core::{
    cell::UnsafeCell,
    ptr,
    sync::atomic::{AtomicPtr, AtomicU32, Ordering},
};
use kernel::{bindings, error::from_err_ptr, prelude::*, sync::rcu, types::Opaque};

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
    /// Something in its queue may be complete (`FERMATA_EVENT_COMPLETED`).
    Completed = 1 << 3,
    /// The card is gone.
    Gone = 1 << 16,
    /// The closed context is on no slot any more.
    Released = 1 << 17,
    /// A quarantined slot may reach the context's memory until the card is shut down.
    Stuck = 1 << 18,
}

/// An eventfd, and the notices that its owner wants to be told by it.
///
/// # Invariants
///
/// `context` owns a reference.
struct EventFd {
    context: *mut bindings::eventfd_ctx,
    mask: u32,
}

impl EventFd {
    /// `EBADF`: `fd` is no descriptor; `EINVAL`: it is no eventfd.
    fn new(fd: i32, mask: u32) -> Result<Self> {
        // INVARIANT: The reference is ours.
        Ok(Self {
            // SAFETY: No requirement; it fails for what is no descriptor of an eventfd.
            context: from_err_ptr(unsafe { bindings::eventfd_ctx_fdget(fd) })?,
            mask: mask | Notice::Gone as u32,
        })
    }
}

impl Drop for EventFd {
    fn drop(&mut self) {
        // SAFETY: By the type invariant. Any context but NMI.
        unsafe { bindings::eventfd_ctx_put(self.context) };
    }
}

/// A wait queue and an optional eventfd of one context.
///
/// # Invariants
///
/// `eventfd` is null or comes from a `KBox`. What was replaced there is freed after an RCU grace
/// period.
///
/// `pending` is not zero while the notifier is on a list of [`Delivery`](crate::delivery::Delivery).
#[pin_data(PinnedDrop)]
pub(crate) struct Notifier {
    #[pin]
    queue: Opaque<bindings::wait_queue_head>,
    /// Noted and not yet delivered.
    pending: AtomicU32,
    /// All that was noted, and not taken.
    noted: AtomicU32,
    eventfd: AtomicPtr<EventFd>,
    /// The next notifier on the list. Belongs to the caller to whom [`Notifier::note`] has returned
    /// `true` until the notifier is on the list, and from when it was taken off to the caller of
    /// [`Notifier::deliver`].
    pub(crate) next: UnsafeCell<*mut Notifier>,
}

// SAFETY: All fields but `next` are atomics or C objects with locks of their own; for `next` see there.
unsafe impl Send for Notifier {}
// SAFETY: As above.
unsafe impl Sync for Notifier {}

impl Notifier {
    /// A notifier without an eventfd.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            queue <- Opaque::ffi_init(|queue| {
                // SAFETY: `queue` is valid for writes, and the name and class are static.
                unsafe {
                    bindings::__init_waitqueue_head(
                        queue,
                        c"fermata_notifier".as_char_ptr(),
                        kernel::static_lock_class!().as_ptr(),
                    )
                }
            }),
            pending: AtomicU32::new(0),
            noted: AtomicU32::new(0),
            eventfd: AtomicPtr::new(ptr::null_mut()),
            next: UnsafeCell::new(ptr::null_mut()),
        })
    }

    /// Whether `notice` was noted, and not taken.
    pub(crate) fn has(&self, notice: Notice) -> bool {
        self.noted.load(Ordering::Acquire) & notice as u32 != 0
    }

    /// Whether `notice` was noted since it was last taken.
    pub(crate) fn take(&self, notice: Notice) -> bool {
        self.noted.fetch_and(!(notice as u32), Ordering::AcqRel) & notice as u32 != 0
    }

    /// Notes `notice`. Returns whether the caller has to put the notifier on the list of what is to be
    /// delivered. Any context, under any lock.
    pub(crate) fn note(&self, notice: Notice) -> bool {
        self.noted.fetch_or(notice as u32, Ordering::Release);
        // Release lets the delivery, whoever puts the notifier on the list, find what was noted.
        // Acquire orders our use of `next` after that of the last delivery.
        self.pending.fetch_or(notice as u32, Ordering::AcqRel) == 0
    }

    /// Tells the owner what was noted. Called by [`Delivery`](crate::delivery::Delivery), in an
    /// interrupt or, on PREEMPT_RT, in a thread.
    pub(crate) fn deliver(&self) {
        // Before the wake-up: what is noted from now on is delivered once more. Release and Acquire as
        // in `note`.
        let pending = self.pending.swap(0, Ordering::AcqRel);
        // SAFETY: `queue` is initialised. TASK_NORMAL, all waiters, no key: every poller looks
        // again.
        unsafe { bindings::__wake_up(self.queue.get(), bindings::TASK_NORMAL, 0, ptr::null_mut()) };

        let _reader = rcu::read_lock();
        // SAFETY: By the type invariant it is null, or valid as long as we are an RCU reader.
        if let Some(eventfd) = unsafe { self.eventfd.load(Ordering::Acquire).as_ref() } {
            if pending & eventfd.mask != 0 {
                // SAFETY: By the type invariant of `EventFd`.
                unsafe { bindings::eventfd_signal_mask(eventfd.context, 0) };
            }
        }
    }

    /// Replaces the eventfd by that of descriptor `fd` (`None`: by none), to be told of the notices
    /// in `mask`. Sleeps, if there was one, until nobody signals that any more.
    ///
    /// `EBADF`: no descriptor; `EINVAL`: no eventfd; `ENOMEM`. Nothing is changed then.
    pub(crate) fn set_eventfd(&self, fd: Option<i32>, mask: u32) -> Result {
        let new = match fd {
            Some(fd) => KBox::into_raw(KBox::new(EventFd::new(fd, mask)?, GFP_KERNEL_ACCOUNT)?),
            None => ptr::null_mut(),
        };
        let old = self.eventfd.swap(new, Ordering::AcqRel);
        if !old.is_null() {
            // SAFETY: No requirement.
            unsafe { bindings::synchronize_rcu() };
            // SAFETY: By the type invariant. All who have loaded it were RCU readers, and are done.
            drop(unsafe { KBox::from_raw(old) });
        }
        Ok(())
    }

    /// Registers a poller.
    ///
    /// # Safety
    ///
    /// `file` and `table` must be those of a call of the `poll` file operation, and `self` must
    /// live as long as `file`.
    pub(crate) unsafe fn poll(&self, file: *mut bindings::file, table: *mut bindings::poll_table) {
        // SAFETY: By the safety requirement, and `queue` is initialised.
        unsafe { shim::fermata_poll_wait(file, self.queue.get(), table) };
    }

    /// Sleeps until `condition` holds, `deadline` (from `i64::MAX` on: never) comes, or a signal.
    ///
    /// Returns whether the condition held. `ERESTARTSYS`: a signal; the call can be restarted with
    /// the same deadline.
    pub(crate) fn wait(&self, deadline: Time, condition: impl FnMut() -> bool) -> Result<bool> {
        self.sleep(bindings::TASK_INTERRUPTIBLE, deadline, condition)
    }

    /// Sleeps until `condition` holds, signals or not. For conditions that are sure to come.
    pub(crate) fn wait_uninterruptible(&self, condition: impl FnMut() -> bool) {
        // No error: only an interruptible sleep is interrupted.
        let never = Time::from_ns(u64::MAX);
        let _ = self.sleep(bindings::TASK_UNINTERRUPTIBLE, never, condition);
    }

    fn sleep(
        &self,
        state: u32,
        deadline: Time,
        mut condition: impl FnMut() -> bool,
    ) -> Result<bool> {
        let entry = Opaque::<bindings::wait_queue_entry>::uninit();
        // SAFETY: `entry` stays where it is until `finish_wait` took it off the queue.
        unsafe { bindings::init_wait_entry(entry.get(), 0) };
        let mut expires = i64::try_from(deadline.as_ns()).unwrap_or(i64::MAX);
        let result = loop {
            // SAFETY: `queue` and `entry` are initialised.
            // CAST: the task state is a small constant.
            let signal = unsafe {
                bindings::prepare_to_wait_event(self.queue.get(), entry.get(), state as c_int)
            };
            if condition() {
                break Ok(true);
            }
            if signal != 0 {
                break Err(Error::from_errno(signal as c_int));
            }
            if Self::sleep_until(&mut expires) {
                // The condition may have come together with the deadline.
                break Ok(condition());
            }
        };
        // SAFETY: As above.
        unsafe { bindings::finish_wait(self.queue.get(), entry.get()) };
        result
    }

    /// Sleeps in the state set by `prepare_to_wait_event`, until woken or `expires`. Returns
    /// whether the time came.
    fn sleep_until(expires: &mut i64) -> bool {
        if *expires == i64::MAX {
            // SAFETY: No requirement.
            unsafe { bindings::schedule() };
            return false;
        }
        // SAFETY: `expires` is valid during the call.
        let ret = unsafe {
            bindings::schedule_hrtimeout_range(expires, 0, bindings::hrtimer_mode_HRTIMER_MODE_ABS)
        };
        ret == 0
    }
}

#[pinned_drop]
impl PinnedDrop for Notifier {
    /// Any context but NMI, not under a raw lock: a delivery may hold the last reference.
    fn drop(self: Pin<&mut Self>) {
        let eventfd = self.eventfd.load(Ordering::Relaxed);
        if !eventfd.is_null() {
            // SAFETY: By the type invariant, and nobody else refers to the notifier.
            drop(unsafe { KBox::from_raw(eventfd) });
        }
    }
}
