// SPDX-License-Identifier: GPL-2.0

//! Whether a card is there, for those who use it and for those who wait for it.

use crate::gate::{UnplugGate, UnplugGuard};
use core::sync::atomic::{AtomicBool, Ordering};
use kernel::prelude::*;

/// The gate of a card's device, and whether the card has died.
#[pin_data]
pub(crate) struct Presence {
    #[pin]
    gate: UnplugGate,
    dead: AtomicBool,
}

impl Presence {
    /// Of a card that is there.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            gate <- UnplugGate::new(),
            dead: AtomicBool::new(false),
        })
    }

    /// Keeps the device bound, also that of a dead card. `ENODEV`: it is unbound, or will be.
    pub(crate) fn enter(&self) -> Result<UnplugGuard<'_>> {
        self.gate.enter()
    }

    /// Whether the card is dead: it answered all-ones, or will lose its state.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Whether the card is gone: unbound, unplugged or dead. Whoever sleeps until something happens
    /// on the card asks this first, and is woken when the answer changes.
    pub(crate) fn is_gone(&self) -> bool {
        self.gate.is_closed() || self.is_dead()
    }

    /// Notes that the card is dead. Those who wait are to be told after that. Any context.
    pub(crate) fn note_death(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Notes that the card is dead, and calls `tell`, which tells those who wait: when they are woken,
    /// they find the card dead.
    pub(crate) fn die(&self, tell: impl FnOnce()) {
        self.note_death();
        tell();
    }

    /// Unbinds the device: nobody enters any more, and the device is used no more when this returns.
    /// Those who wait are to be told after that. May sleep; called once.
    pub(crate) fn close(&self) {
        self.gate.close();
    }
}
