// SPDX-License-Identifier: GPL-2.0

//! The gate between the users of a card and its removal.

use core::sync::atomic::{AtomicUsize, Ordering};
use kernel::{prelude::*, sync::Completion};

/// Set once the gate is closed; the other bits count those inside.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// Lets callers in until it is closed, and closes by waiting for those inside to leave.
///
/// Entering never blocks. That is the point: a caller may page-fault inside (holding the gate and
/// wanting `mmap_lock`) while another one enters from `mmap()` (holding `mmap_lock`), and a gate
/// that makes newcomers queue behind a closer, as an rwsem does, would deadlock the three.
#[pin_data]
pub(crate) struct Gate {
    state: AtomicUsize,
    #[pin]
    empty: Completion,
}

/// Whoever holds this is inside: the card stays bound.
pub(crate) struct Inside<'a>(&'a Gate);

impl Gate {
    /// An open gate.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            state: AtomicUsize::new(0),
            empty <- Completion::new(),
        })
    }

    /// Goes in. `ENODEV`: the gate is closed. Any context.
    pub(crate) fn enter(&self) -> Result<Inside<'_>> {
        // The guard is made before the check, so that a failed entry leaves again by its drop.
        let before = self.state.fetch_add(1, Ordering::Acquire);
        let inside = Inside(self);
        if before & CLOSED != 0 {
            return Err(ENODEV);
        }
        Ok(inside)
    }

    /// Whether [`Gate::close`] was called.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Closes the gate for good and waits until nobody is inside. May sleep; called once.
    pub(crate) fn close(&self) {
        if self.state.fetch_or(CLOSED, Ordering::AcqRel) != 0 {
            self.empty.wait_for_completion();
        }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if self.0.state.fetch_sub(1, Ordering::Release) == CLOSED | 1 {
            // Latecomers that were turned away may also pass through zero; completing again does no
            // harm.
            self.0.empty.complete_all();
        }
    }
}
