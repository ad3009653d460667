// SPDX-License-Identifier: GPL-2.0

//! The end of a card, and its sleep.

use super::{
    quiesce::{quiesce, settle},
    slot_ids, Card, SlotRegisters,
};
use crate::sched::{Event, Status};
use core::sync::atomic::Ordering;
use kernel::bindings;

impl Card {
    /// Waits until notices that are being given are given: whoever gives one holds the lock.
    pub(crate) fn wait_for_notices(&self) {
        drop(self.state.lock());
    }

    /// Takes bus mastering from the card. While the device is bound.
    pub(super) fn stop_dma(&self) {
        // SAFETY: By the safety requirement of `new` it is the device's.
        unsafe { bindings::pci_clear_master(self.pci) };
    }

    /// Ends everything: after it no register is touched, no DMA happens, no memory of a context is
    /// mapped for the card, and every call on an open file gives `ENODEV`. Process context, while
    /// the device is bound; once.
    pub(crate) fn shut_down(&self) {
        self.gate.close();
        let contexts = {
            let mut registry = self.registry.lock();
            self.halt();
            core::mem::take(&mut registry.contexts)
        };
        for events in &self.events {
            events.stop();
        }
        for context in &contexts {
            context.revoke();
        }
    }

    /// The card will lose its state: every job fails, and every call gives `ENODEV` from now on.
    /// Process context.
    pub(crate) fn lose(&self) {
        let _registry = self.registry.lock();
        self.halt();
    }

    /// Fails all jobs and stops the card's DMA. The caller holds the registry's lock, so that no
    /// context whose job has failed frees its memory before the card has stopped.
    fn halt(&self) {
        {
            let mut state = self.state.lock();
            // The machine does nothing more to the card, so nothing takes a slot out of the reset
            // that follows.
            let _ = self.handle(&mut state, Event::Gone);
            self.bar.reset(u8::MAX);
        }
        if !self.dead.swap(true, Ordering::AcqRel) {
            settle(&self.bar, &self.identity, &self.limits);
        }
        self.stop_dma();
    }

    /// Brings an idle card back after it lost its state. Process context.
    pub(crate) fn wake(&self) {
        // SAFETY: By the safety requirement of `new` it is the device's.
        unsafe { bindings::pci_set_master(self.pci) };
        quiesce(&self.bar, &self.identity, &self.limits);
        let mut state = self.state.lock();
        state.slots = SlotRegisters::NEW;
        for id in slot_ids(self.identity.slots) {
            let count = Status::from_raw(self.bar.status(id)).start_count();
            state.machine.resync(id, count);
        }
    }
}
