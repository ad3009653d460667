// SPDX-License-Identifier: GPL-2.0

//! A watch over the devices of the PCI bus, embedded in the value that is notified.

use crate::{
    c_object::{c_object, callback, Callback},
    shim,
};
use core::marker::PhantomData;
use kernel::{bindings, error::to_result, prelude::*};

/// A value that contains a [`BusWatch`].
pub(crate) trait Watcher {
    /// Offset of the watch in `Self`, in bytes.
    const OFFSET: usize;

    /// A PCI device was added to the machine or removed from it. Process context, in the bus's
    /// chain of notifiers: a new device has no driver yet.
    fn bus_changed(&self);
}

c_object! {
    /// A `struct notifier_block`.
    Block(notifier_block) {
        new = shim::fermata_bus_watch_init, ();
        fn start = shim::fermata_bus_watch_start, () -> c_int;
        fn stop = shim::fermata_bus_watch_stop, ();
    }
}

/// Notifies a [`Watcher`] of PCI devices that come and go.
///
/// # Invariants
///
/// The watch is [`Watcher::OFFSET`] bytes into a `T`, which calls [`BusWatch::stop`] before it is
/// dropped.
///
/// The layout is that of `struct fermata_bus_watch` (include/fermata_shim.h).
#[pin_data]
#[repr(C)]
pub(crate) struct BusWatch<T: Watcher> {
    #[pin]
    block: Block,
    changed: unsafe extern "C" fn(*mut bindings::notifier_block),
    _part_of: PhantomData<fn(&T)>,
}

impl<T: Watcher + Sync> BusWatch<T> {
    /// Returns an initialiser for a watch that is not started.
    ///
    /// # Safety
    ///
    /// The watch must be initialised [`Watcher::OFFSET`] bytes into a pinned `T`. The `T` must call
    /// [`BusWatch::stop`] before any part of it is dropped, and not start the watch afterwards.
    pub(crate) unsafe fn new() -> impl PinInit<Self> {
        // INVARIANT: By the safety requirement. `changed` is called only between `start` and the
        // end of `stop`, while the `T` is alive.
        pin_init!(Self {
            block <- Block::new(),
            changed: callback::<T, bindings::notifier_block>,
            _part_of: PhantomData,
        })
    }

    /// Starts the watch. Process context; called at most once.
    pub(crate) fn start(&self) -> Result {
        to_result(self.block.start())
    }

    /// Ends the watch if it was started, and waits for [`Watcher::bus_changed`] if it is running.
    /// Process context, without a lock that `bus_changed` takes.
    pub(crate) fn stop(&self) {
        self.block.stop();
    }
}

impl<T: Watcher> Callback<bindings::notifier_block> for T {
    /// The block is the first member of the watch.
    const OFFSET: usize = <T as Watcher>::OFFSET;

    fn called(&self) {
        self.bus_changed();
    }
}
