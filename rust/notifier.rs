// SPDX-License-Identifier: GPL-2.0

//! Telling a context's owner, from any context, what happened to its job.
//!
//! Whoever holds the card's raw lock may not wake anybody, so a wake-up is noted in an atomic and
//! an `irq_work` is queued, which runs as soon as interrupts are on again and does the wake-up and
//! the eventfd signal.

use crate::{sched::Time, shim};
use core::{
    ptr,
    sync::atomic::{AtomicPtr, AtomicU32, Ordering},
};
use kernel::{bindings, error::from_err_ptr, prelude::*, types::Opaque};

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

/// A wait queue and an optional eventfd of one context.
///
/// # Invariants
///
/// `eventfd` is null or owns a reference. The `irq_work` handler is the only other reader of it,
/// and the reference is dropped only after that handler was waited for.
#[pin_data(PinnedDrop)]
pub(crate) struct Notifier {
    #[pin]
    queue: Opaque<bindings::wait_queue_head>,
    #[pin]
    work: Opaque<bindings::irq_work>,
    /// Noted and not yet delivered.
    pending: AtomicU32,
    /// All that was noted, and not taken.
    noted: AtomicU32,
    eventfd: AtomicPtr<bindings::eventfd_ctx>,
    eventfd_mask: AtomicU32,
}

// SAFETY: All fields are atomics or C objects with locks of their own.
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
            work <- Opaque::ffi_init(|work| {
                // SAFETY: `work` is valid for writes.
                unsafe { shim::fermata_irq_work_init(work, Self::deliver) }
            }),
            pending: AtomicU32::new(0),
            noted: AtomicU32::new(0),
            eventfd: AtomicPtr::new(ptr::null_mut()),
            eventfd_mask: AtomicU32::new(0),
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

    /// Notes `notice` and lets it be delivered soon. Any context, under any lock.
    pub(crate) fn notify(&self, notice: Notice) {
        self.noted.fetch_or(notice as u32, Ordering::Release);
        self.pending.fetch_or(notice as u32, Ordering::Release);
        // SAFETY: `work` is initialised and pinned; `drop` waits for it.
        unsafe { bindings::irq_work_queue(self.work.get()) };
    }

    /// Delivers what was noted.
    ///
    /// # Safety
    ///
    /// `work` must be the `work` of a live `Notifier`. Only called by `irq_work`.
    unsafe extern "C" fn deliver(work: *mut bindings::irq_work) {
        // SAFETY: By the safety requirement; `Opaque<T>` has the layout of `T`.
        let this = unsafe { &*kernel::container_of!(Opaque::cast_from(work), Self, work) };
        let pending = this.pending.swap(0, Ordering::Acquire);
        // SAFETY: `queue` is initialised. TASK_NORMAL, all waiters, no key: every poller looks
        // again.
        unsafe { bindings::__wake_up(this.queue.get(), bindings::TASK_NORMAL, 0, ptr::null_mut()) };

        let mask = this.eventfd_mask.load(Ordering::Acquire) | Notice::Gone as u32;
        let eventfd = this.eventfd.load(Ordering::Acquire);
        if !eventfd.is_null() && pending & mask != 0 {
            // SAFETY: By the type invariant the reference is held until this handler has returned.
            unsafe { bindings::eventfd_signal_mask(eventfd, 0) };
        }
    }

    /// Replaces the eventfd by that of descriptor `fd` (`None`: by none), to be told of the notices
    /// in `mask`. May sleep.
    ///
    /// `EBADF`: no descriptor; `EINVAL`: no eventfd. Nothing is changed then.
    pub(crate) fn set_eventfd(&self, fd: Option<i32>, mask: u32) -> Result {
        let new = match fd {
            // SAFETY: No requirement; it fails for what is no descriptor of an eventfd.
            Some(fd) => from_err_ptr(unsafe { bindings::eventfd_ctx_fdget(fd) })?,
            None => ptr::null_mut(),
        };
        self.eventfd_mask.store(mask, Ordering::Release);
        self.replace_eventfd(new);
        Ok(())
    }

    /// Takes over the reference `new` (or null) and drops the one before.
    fn replace_eventfd(&self, new: *mut bindings::eventfd_ctx) {
        let old = self.eventfd.swap(new, Ordering::AcqRel);
        if !old.is_null() {
            // SAFETY: `work` is initialised. A handler that runs after this one was waited for sees
            // `new`.
            unsafe { bindings::irq_work_sync(self.work.get()) };
            // SAFETY: By the type invariant we own the reference, and nobody else can have it any
            // more.
            unsafe { bindings::eventfd_ctx_put(old) };
        }
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
    fn drop(self: Pin<&mut Self>) {
        self.replace_eventfd(ptr::null_mut());
        // SAFETY: `work` is initialised; after this no handler uses `self`.
        unsafe { bindings::irq_work_sync(self.work.get()) };
    }
}
