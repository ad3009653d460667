// SPDX-License-Identifier: GPL-2.0

//! Keeps a device bound while a call uses it, as `drm_dev_enter()` does for DRM drivers.

use core::sync::atomic::{AtomicUsize, Ordering};
use kernel::{prelude::*, sync::Completion};

/// Set once the gate is closed; the other bits count the guards.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// Lets callers in until it is closed, and closes by waiting until all guards are dropped.
///
/// Removal waits in [`UnplugGate::close`], and every reset and suspend of the device waits for
/// removal. So the holder of an [`UnplugGuard`] does bounded work only: no access to user memory,
/// whose page faults FUSE and userfaultfd answer when their owners like, and no allocation that may
/// wait, since a tenant can throttle its own memory cgroup. Lockdep checks both ([`lockdep`]).
#[pin_data]
pub(crate) struct UnplugGate {
    state: AtomicUsize,
    #[pin]
    empty: Completion,
}

/// The device stays bound while this exists.
pub(crate) struct UnplugGuard<'a>(&'a UnplugGate);

impl UnplugGate {
    /// An open gate. Process context.
    pub(crate) fn new() -> impl PinInit<Self> {
        lockdep::teach();
        pin_init!(Self {
            state: AtomicUsize::new(0),
            empty <- Completion::new(),
        })
    }

    /// Returns a guard. `ENODEV`: the gate is closed. Never blocks; process context.
    pub(crate) fn enter(&self) -> Result<UnplugGuard<'_>> {
        // The guard is made before the check, so that a failed entry leaves again by its drop.
        let before = self.state.fetch_add(1, Ordering::Acquire);
        lockdep::acquire();
        let guard = UnplugGuard(self);
        if before & CLOSED != 0 {
            return Err(ENODEV);
        }
        Ok(guard)
    }

    /// Whether [`UnplugGate::close`] was called.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Closes the gate for good and waits until all guards are dropped. May sleep; called once.
    pub(crate) fn close(&self) {
        lockdep::acquire();
        if self.state.fetch_or(CLOSED, Ordering::AcqRel) != 0 {
            self.empty.wait_for_completion();
        }
        lockdep::release();
    }
}

impl Drop for UnplugGuard<'_> {
    fn drop(&mut self) {
        lockdep::release();
        // Release orders what the holder did before the count. Acquire lets the last holder, whose
        // completion alone `close` waits for, pass on what all the others did.
        if self.0.state.fetch_sub(1, Ordering::AcqRel) == CLOSED | 1 {
            // A caller that was turned away may also bring the count to zero, even after `close` has
            // returned. Completing again does no harm: the caller's reference keeps the gate alive.
            self.0.empty.complete_all();
        }
    }
}

/// The gate as lockdep sees it: a lock inside of which neither `mmap_lock` nor memory reclaim may be
/// entered.
#[cfg(CONFIG_LOCKDEP)]
mod lockdep {
    use crate::shim;

    pub(super) fn teach() {
        // SAFETY: Process context.
        unsafe { shim::fermata_unplug_teach() };
    }

    pub(super) fn acquire() {
        // SAFETY: `release` follows, in this task.
        unsafe { shim::fermata_unplug_acquire() };
    }

    pub(super) fn release() {
        // SAFETY: `acquire` came before, in this task.
        unsafe { shim::fermata_unplug_release() };
    }
}

#[cfg(not(CONFIG_LOCKDEP))]
mod lockdep {
    pub(super) fn teach() {}
    pub(super) fn acquire() {}
    pub(super) fn release() {}
}
