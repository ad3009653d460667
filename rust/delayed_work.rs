// SPDX-License-Identifier: GPL-2.0

//! Work for a kworker, embedded in the value that does the work.
//!
//! The `kernel` crate's `DelayedWork` cannot take its place (docs/upstream.md): nothing can
//! cancel it or wait for it, so it could outlive the module.

use crate::{
    c_object::{c_object, callback, Callback},
    shim,
};
use core::{marker::PhantomData, mem::offset_of};
use kernel::{bindings, prelude::*};

/// A value that contains a [`DelayedWork`].
pub(crate) trait Worker {
    /// Offset of the work in `Self`, in bytes.
    const OFFSET: usize;

    /// Does the work. Process context.
    fn work(&self);
}

c_object! {
    /// A `struct delayed_work`.
    Work(delayed_work) {
        new = shim::fermata_delayed_work_init, (
            func: unsafe extern "C" fn(*mut bindings::work_struct)
        );
        fn queue = shim::fermata_delayed_work_queue, (ms: c_uint);
        fn flush = bindings::flush_delayed_work, () -> bool;
        fn cancel = bindings::cancel_delayed_work_sync, () -> bool;
    }
}

/// A work item that runs once each time it is queued, but not while the machine is asleep.
///
/// # Invariants
///
/// The work is [`Worker::OFFSET`] bytes into a `T`, which calls [`DelayedWork::stop`] after it has
/// queued the work for the last time and before it is dropped.
#[pin_data]
#[repr(C)]
pub(crate) struct DelayedWork<T: Worker> {
    #[pin]
    work: Work,
    _part_of: PhantomData<fn(&T)>,
}

impl<T: Worker + Sync> DelayedWork<T> {
    /// Returns an initialiser for work that is not queued.
    ///
    /// # Safety
    ///
    /// The work must be initialised [`Worker::OFFSET`] bytes into a pinned `T`. The `T` must call
    /// [`DelayedWork::stop`] before any part of it is dropped, and not queue the work afterwards.
    pub(crate) unsafe fn new() -> impl PinInit<Self> {
        // INVARIANT: By the safety requirement. The callback is called only after the work is
        // queued and before `stop` returns, while the `T` is alive.
        pin_init!(Self {
            work <- Work::new(callback::<T, bindings::work_struct>),
            _part_of: PhantomData,
        })
    }

    /// Queues the work for `ms` milliseconds later, unless it is queued already. 0: the work runs
    /// as soon as possible, whether it is queued or not. Any context.
    pub(crate) fn queue(&self, ms: u32) {
        self.work.queue(ms);
    }

    /// Waits until the work has run, if it is queued. Process context, without a lock that
    /// [`Worker::work`] takes.
    pub(crate) fn flush(&self) {
        self.work.flush();
    }

    /// Dequeues the work, and waits for [`Worker::work`] if it is running. Process context, without
    /// a lock that `work` takes.
    pub(crate) fn stop(&self) {
        self.work.cancel();
    }
}

impl<T: Worker> Callback<bindings::work_struct> for T {
    const OFFSET: usize = <T as Worker>::OFFSET + offset_of!(bindings::delayed_work, work);

    fn called(&self) {
        self.work();
    }
}
