// SPDX-License-Identifier: GPL-2.0-or-later
//! The seam between what computes and how others reach it: the vfio-user server and the control
//! connection see a [`Device`], which is the emulated [`Card`] or a [foreign](crate::foreign) one.

use crate::card::{Card, Host};
use crate::config::CardConfig;
use crate::misbehave::FaultCommand;

/// A card as seen from its PCI function and from its control connection.
pub trait Device: Send + Sync {
    /// Returns what the card is made of.
    fn config(&self) -> &CardConfig;
    /// Returns the card's memory, vectors and log.
    fn host(&self) -> &Host;
    /// Reads BAR 0.
    fn bar_read(&self, off: u64, data: &mut [u8]);
    /// Writes BAR 0.
    fn bar_write(&self, off: u64, data: &[u8]);
    /// Reads configuration space.
    fn config_read(&self, off: u64, data: &mut [u8]);
    /// Writes configuration space.
    fn config_write(&self, off: u64, data: &[u8]);
    /// Function-level or bus reset; returns when the last DMA is complete.
    fn device_reset(&self);
    /// Handles the arrival of a client.
    fn connect(&self);
    /// Handles the departure of the client.
    fn disconnect(&self);
    /// Takes from the card the memory that begins in [iova, iova + size). Returns when the card
    /// cannot reach that memory.
    fn unmap(&self, iova: u64, size: u64);
    /// Takes all memory from the card.
    fn unmap_all(&self);
    /// Changes settings of a slot.
    fn set(&self, slot: usize, pairs: &[(&str, u64)]) -> Result<(), String>;
    /// Switches a misbehaviour on or off.
    fn fault(&self, slot: usize, command: FaultCommand) -> Result<(), String>;
    /// Returns the reply to `state`.
    fn state(&self, slot: usize) -> Result<String, String>;
    /// Returns when everything that the card does in one step is recorded.
    fn settle(&self);
}

impl Device for Card {
    fn config(&self) -> &CardConfig {
        self.config()
    }

    fn host(&self) -> &Host {
        self.host()
    }

    fn bar_read(&self, off: u64, data: &mut [u8]) {
        self.bar_read(off, data);
    }

    fn bar_write(&self, off: u64, data: &[u8]) {
        self.bar_write(off, data);
    }

    fn config_read(&self, off: u64, data: &mut [u8]) {
        self.config_read(off, data);
    }

    fn config_write(&self, off: u64, data: &[u8]) {
        self.config_write(off, data);
    }

    fn device_reset(&self) {
        self.device_reset();
    }

    fn connect(&self) {
        self.connect();
    }

    fn disconnect(&self) {
        self.disconnect();
    }

    fn unmap(&self, iova: u64, size: u64) {
        self.unmap(iova, size);
    }

    fn unmap_all(&self) {
        self.unmap_all();
    }

    fn set(&self, slot: usize, pairs: &[(&str, u64)]) -> Result<(), String> {
        self.slots()[slot].set(pairs)
    }

    fn fault(&self, slot: usize, command: FaultCommand) -> Result<(), String> {
        self.fault(slot, command);
        Ok(())
    }

    fn state(&self, slot: usize) -> Result<String, String> {
        let (dead, lost) = (u8::from(self.host().is_dead()), self.host().lost_reads());
        let state = self.slots()[slot].describe();
        Ok(format!("{state} dead={dead} lost_reads={lost}"))
    }

    fn settle(&self) {
        self.slots().iter().for_each(|slot| slot.settle());
    }
}
