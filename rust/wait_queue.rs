// SPDX-License-Identifier: GPL-2.0

//! A wait queue whose sleepers have absolute deadlines in nanoseconds.
//!
//! The `kernel` crate's `PollCondVar` cannot take its place (docs/upstream.md).

use crate::{
    c_object::c_object,
    scheduler::Time,
    shim::{self, schedule, schedule_hrtimeout_range},
};
use core::ptr;
use kernel::{bindings, prelude::*, types::Opaque};

c_object! {
    /// A `struct wait_queue_head`.
    Head(wait_queue_head) {
        new = shim::fermata_wait_queue_init, ();
        fn wake_up = bindings::__wake_up, (states: c_uint, exclusive: c_int, key: *mut c_void)
            -> c_int;
    }
}

/// Tasks that sleep until a condition may hold, and pollers.
#[pin_data]
pub(crate) struct WaitQueue {
    #[pin]
    head: Head,
}

impl WaitQueue {
    /// Returns an initialiser for an empty queue.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self { head <- Head::new() })
    }

    /// Wakes all sleepers and pollers. Any context but NMI, not under a raw lock.
    pub(crate) fn wake_all(&self) {
        self.head.wake_up(bindings::TASK_NORMAL, 0, ptr::null_mut());
    }

    /// Returns the C side, for `poll_wait()`. A poller stays on the queue until its call returns
    /// or, with epoll, until its file is released.
    pub(crate) fn as_ptr(&self) -> *mut bindings::wait_queue_head {
        self.head.object.get()
    }

    /// Sleeps until `condition` holds, `deadline` is reached (from `i64::MAX` on: never), or a
    /// signal comes.
    ///
    /// Returns whether the condition held. `ERESTARTSYS`: a signal came; the call can be restarted
    /// with the same deadline.
    pub(crate) fn wait(&self, deadline: Time, condition: impl FnMut() -> bool) -> Result<bool> {
        self.sleep(bindings::TASK_INTERRUPTIBLE, deadline, condition)
    }

    /// Sleeps until `condition` holds, whatever signals come. The condition must hold in the end.
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
        // SAFETY: `entry` is valid for writes. It names the caller's task, which does not leave
        // this function before `finish_wait` has taken the entry off the queue.
        unsafe { bindings::init_wait_entry(entry.get(), 0) };
        let mut expires = i64::try_from(deadline.as_ns()).unwrap_or(i64::MAX);
        let result = loop {
            // CAST: the task state is a small constant.
            // SAFETY: `head` is initialised by its type invariant, `entry` above; `entry` does not
            // move.
            let signal = unsafe {
                bindings::prepare_to_wait_event(self.as_ptr(), entry.get(), state as c_int)
            };
            if condition() {
                break Ok(true);
            }
            if signal != 0 {
                break Err(Error::from_errno(signal as c_int));
            }
            if sleep_until(&mut expires) {
                // The condition may have become true together with the deadline.
                break Ok(condition());
            }
        };
        // SAFETY: `entry` was prepared for this queue.
        unsafe { bindings::finish_wait(self.as_ptr(), entry.get()) };
        result
    }
}

/// Sleeps in the state set by `prepare_to_wait_event`, until woken or `expires`. Returns whether
/// `expires` was reached.
fn sleep_until(expires: &mut i64) -> bool {
    if *expires == i64::MAX {
        schedule();
        return false;
    }
    schedule_hrtimeout_range(expires, 0, bindings::hrtimer_mode_HRTIMER_MODE_ABS) == 0
}
