// SPDX-License-Identifier: GPL-2.0

//! Models of the lock-free types of the module, for loom, which runs each in all interleavings, and
//! with all values that its loads may give. The types are the very files that the module compiles;
//! the kernel below them is stood in for by a few lines over loom's types.

// What the module's files call `kernel` and `core`.
extern crate self as core;
extern crate self as kernel;

pub use ::std::*;

#[allow(
    clippy::missing_safety_doc,
    clippy::new_without_default,
    clippy::new_ret_no_self,
    reason = "the interface is that of the kernel crate"
)]
mod kernel_crate;
pub use kernel_crate::{bindings, cell, error, prelude, sync, types};

#[path = "../../../c_object.rs"]
#[allow(dead_code, reason = "tables of C are static")]
mod c_object;
#[path = "../../../delivery.rs"]
mod delivery;
#[path = "../../../gate.rs"]
#[allow(unexpected_cfgs, reason = "the host has none of the kernel's options")]
mod gate;
#[path = "../../../notifier.rs"]
#[allow(dead_code, reason = "no model has all notices")]
mod notifier;
#[path = "../../../presence.rs"]
#[allow(dead_code, reason = "not all is lock-free")]
mod presence;
#[path = "../../../wait_queue.rs"]
#[allow(dead_code, reason = "poll() needs a file")]
mod wait_queue;

mod gates;
mod notices;

/// What the types use of the rest of the module.
mod sched {
    #[derive(Clone, Copy)]
    pub(crate) struct Time(pub(crate) u64);

    impl Time {
        pub(crate) fn from_ns(ns: u64) -> Self {
            Self(ns)
        }

        pub(crate) fn as_ns(self) -> u64 {
            self.0
        }
    }
}

/// What the types use of the rest of the module.
mod shim {
    use crate::bindings;

    pub(crate) unsafe fn fermata_irq_work_init(
        work: *mut bindings::irq_work,
        function: unsafe extern "C" fn(*mut bindings::irq_work),
    ) {
        // SAFETY: `work` is valid for writes.
        unsafe { work.write(bindings::irq_work::new(function)) };
    }

    pub(crate) unsafe fn fermata_wait_queue_init(queue: *mut bindings::wait_queue_head) {
        // SAFETY: `queue` is valid for writes.
        unsafe { queue.write(bindings::wait_queue_head::new()) };
    }

    pub(crate) fn schedule() {
        // SAFETY: The caller is on a wait queue.
        unsafe { bindings::schedule() };
    }

    pub(crate) fn schedule_hrtimeout_range(expires: &mut i64, slack: u64, mode: u32) -> i32 {
        // SAFETY: `expires` is valid.
        unsafe { bindings::schedule_hrtimeout_range(expires, slack, mode) }
    }

    pub(crate) fn synchronize_rcu() {
        // SAFETY: No requirement.
        unsafe { bindings::synchronize_rcu() };
    }

    pub(crate) fn eventfd_ctx_fdget(fd: i32) -> *mut bindings::eventfd_ctx {
        // SAFETY: No requirement.
        unsafe { bindings::eventfd_ctx_fdget(fd) }
    }
}

/// What the types use of the rest of the module.
mod raw_spinlock {
    use crate::prelude::PinInit;
    use loom::sync::{Mutex, MutexGuard};

    pub(crate) struct RawSpinLock<T>(Mutex<T>);

    impl<T> RawSpinLock<T> {
        pub(crate) fn new(value: T) -> impl PinInit<Self> {
            Self(Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }

    macro_rules! new_raw_spinlock {
        ($value:expr, $name:literal) => {
            $crate::raw_spinlock::RawSpinLock::new($value)
        };
    }
    pub(crate) use new_raw_spinlock;
}

/// Runs `threads` in all interleavings in which a thread is preempted so often at the most (beside
/// where it has to wait), each of which must free all that it allocates.
fn check(threads: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(move || sync::run(&threads));
}

const PREEMPTIONS: usize = 3;
