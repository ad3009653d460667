// SPDX-License-Identifier: GPL-2.0

//! Work for later, in a kworker, as a part of what it is for.

use crate::shim;
use core::marker::PhantomData;
use kernel::{bindings, prelude::*, types::Opaque};

/// What a [`DelayedWork`] is a part of.
pub(crate) trait Worker {
    /// Where in `Self` the work is, in bytes.
    const OFFSET: usize;

    /// The work. Process context.
    fn work(&self);
}

/// A work item that runs once for each queueing, not while the machine is asleep.
///
/// # Invariants
///
/// `work` is initialised. It is [`Worker::OFFSET`] bytes into a `T`, which has called
/// [`DelayedWork::stop`] after the last queueing before it is dropped.
#[pin_data]
pub(crate) struct DelayedWork<T: Worker> {
    #[pin]
    work: Opaque<bindings::delayed_work>,
    _part_of: PhantomData<fn(&T)>,
}

// SAFETY: A work item is queued and run by functions that lock, on any CPU.
unsafe impl<T: Worker> Send for DelayedWork<T> {}
// SAFETY: As for `Send`. That `work` runs on another CPU takes a `T` that is `Sync`, see `new`.
unsafe impl<T: Worker> Sync for DelayedWork<T> {}

impl<T: Worker + Sync> DelayedWork<T> {
    /// Work that is not queued.
    ///
    /// # Safety
    ///
    /// It must be initialised as the part of a pinned `T` that [`Worker::OFFSET`] tells of. That `T`
    /// must call [`DelayedWork::stop`] before anything of it is dropped, and not queue it afterwards.
    pub(crate) unsafe fn new() -> impl PinInit<Self> {
        // INVARIANT: By the safety requirement, and initialised here.
        pin_init!(Self {
            work <- Opaque::ffi_init(|work| {
                // SAFETY: `work` is valid for writes.
                unsafe { shim::fermata_delayed_work_init(work, Self::run) }
            }),
            _part_of: PhantomData,
        })
    }

    /// Queues it for `ms` milliseconds later, unless it is queued already. 0: the work runs as soon as
    /// possible, whether it is queued or not.
    pub(crate) fn queue(&self, ms: u32) {
        // SAFETY: By the type invariant it is initialised.
        unsafe { shim::fermata_delayed_work_queue(self.work.get(), ms) };
    }

    /// Waits until it has run, if it is queued. Process context, without a lock that it takes.
    pub(crate) fn flush(&self) {
        // SAFETY: By the type invariant it is initialised.
        unsafe { bindings::flush_delayed_work(self.work.get()) };
    }

    /// Takes it out of the queue, and waits for [`Worker::work`] if that runs. Process context,
    /// without a lock that it takes.
    pub(crate) fn stop(&self) {
        // SAFETY: By the type invariant it is initialised.
        unsafe { bindings::cancel_delayed_work_sync(self.work.get()) };
    }

    /// # Safety
    ///
    /// Called by a kworker with the `work` of a `DelayedWork<T>`.
    unsafe extern "C" fn run(work: *mut bindings::work_struct) {
        // SAFETY: By the safety requirement it is that of a `struct delayed_work`.
        let work = unsafe { kernel::container_of!(work, bindings::delayed_work, work) };
        // SAFETY: By the safety requirement.
        let item = unsafe { kernel::container_of!(Opaque::cast_from(work), Self, work) };
        // SAFETY: By the type invariant that is a part of a `T`, so many bytes into it. The `T` lives:
        // it was queued, and `stop`, which waits for us, has not returned since.
        let part_of = unsafe { &*item.byte_sub(T::OFFSET).cast::<T>() };
        part_of.work();
    }
}
