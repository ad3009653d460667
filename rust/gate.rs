// SPDX-License-Identifier: GPL-2.0

//! Keeping a device bound while a call uses it, as `drm_dev_enter()` does for DRM drivers.

use kernel::{
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Full},
        Completion,
    },
};

/// Set once the gate is closed. The bits below count the guards.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// Lets callers in until it is closed. Closing waits until all guards are dropped.
///
/// Removal waits in [`UnplugGate::close`], and every reset and suspend of the device waits for
/// removal. So the holder of an [`UnplugGuard`] does only bounded work. It does not access user
/// memory, since the owner of a FUSE file or of a userfaultfd decides how long a page fault takes.
/// It makes no allocation that may wait, since a tenant can throttle its own memory cgroup. Lockdep
/// checks both ([`lockdep`]).
#[pin_data]
pub(crate) struct UnplugGate {
    state: Atomic<usize>,
    #[pin]
    empty: Completion,
}

/// The device stays bound while this exists.
pub(crate) struct UnplugGuard<'a>(&'a UnplugGate);

impl UnplugGate {
    /// Returns an initialiser for an open gate. Process context.
    pub(crate) fn new() -> impl PinInit<Self> {
        lockdep::teach();
        pin_init!(Self {
            state: Atomic::new(0),
            empty <- Completion::new(),
        })
    }

    /// Returns a guard. `ENODEV`: the gate is closed. Never blocks; process context.
    pub(crate) fn enter(&self) -> Result<UnplugGuard<'_>> {
        // The guard is made before the check, so that dropping it undoes a failed entry.
        let before = self.state.fetch_add(1, Acquire);
        lockdep::acquire();
        let guard = UnplugGuard(self);
        if before & CLOSED != 0 {
            return Err(ENODEV);
        }
        Ok(guard)
    }

    /// Returns whether [`UnplugGate::close`] was called.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.load(Acquire) & CLOSED != 0
    }

    /// Closes the gate for good and waits until all guards are dropped. May sleep; called once.
    pub(crate) fn close(&self) {
        lockdep::acquire();
        if self.state.fetch_add(CLOSED, Full) != 0 {
            self.empty.wait_for_completion();
        }
        lockdep::release();
    }
}

impl Drop for UnplugGuard<'_> {
    fn drop(&mut self) {
        lockdep::release();
        // `Full` orders the holder's work before the count. `close` waits only for the completion
        // of the last holder, which makes the work of all other holders visible, too.
        if self.0.state.fetch_sub(1, Full) == CLOSED | 1 {
            // A caller that was turned away may also bring the count to zero, even after `close`
            // has returned. Completing again does no harm: the caller's reference keeps the gate
            // alive.
            self.0.empty.complete_all();
        }
    }
}

/// The gate as lockdep sees it: a lock under which neither `mmap_lock` nor memory reclaim may be
/// entered.
mod lockdep {
    #[cfg(CONFIG_LOCKDEP)]
    pub(super) use crate::shim::{
        fermata_unplug_acquire as acquire, fermata_unplug_release as release,
        fermata_unplug_teach as teach,
    };

    #[cfg(not(CONFIG_LOCKDEP))]
    pub(super) fn teach() {}
    #[cfg(not(CONFIG_LOCKDEP))]
    pub(super) fn acquire() {}
    #[cfg(not(CONFIG_LOCKDEP))]
    pub(super) fn release() {}
}
