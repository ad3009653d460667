// SPDX-License-Identifier: GPL-2.0

//! Whether a card is present, for callers that use it and for callers that wait for it.

use crate::gate::{UnplugGate, UnplugGuard};
use kernel::{
    prelude::*,
    sync::atomic::{Acquire, AtomicFlag, Release},
};

/// The gate of a card's device, and whether the card has died.
#[pin_data]
pub(crate) struct Presence {
    #[pin]
    gate: UnplugGate,
    dead: AtomicFlag,
}

impl Presence {
    /// Returns an initialiser for the presence of a card that is bound and alive.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            gate <- UnplugGate::new(),
            dead: AtomicFlag::new(false),
        })
    }

    /// Keeps the device bound, even if the card is dead. `ENODEV`: the device is unbound, or is
    /// being unbound.
    pub(crate) fn enter(&self) -> Result<UnplugGuard<'_>> {
        self.gate.enter()
    }

    /// Returns whether the card is dead: it answered all-ones, or will lose its state.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Acquire)
    }

    /// Returns whether the card is gone: unbound, unplugged or dead. A caller that sleeps until
    /// something happens on the card checks this first, and is woken when the answer changes.
    pub(crate) fn is_gone(&self) -> bool {
        self.gate.is_closed() || self.is_dead()
    }

    /// Marks the card dead. The caller notifies waiters afterwards. Any context.
    pub(crate) fn note_death(&self) {
        self.dead.store(true, Release);
    }

    /// Marks the card dead, and then calls `tell`, which notifies waiters: a waiter that is woken
    /// finds the card dead.
    pub(crate) fn die(&self, tell: impl FnOnce()) {
        self.note_death();
        tell();
    }

    /// Closes the gate, and waits until nobody uses the device. The caller notifies waiters
    /// afterwards. May sleep; called once.
    pub(crate) fn close(&self) {
        self.gate.close();
    }
}
