// SPDX-License-Identifier: GPL-2.0-or-later
//! The cards of the machine, as the test needs them.

use anyhow::{ensure, Context as _, Result};
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;

/// An emulated card.
pub(crate) struct Card {
    pub(crate) number: u32,
    pub(crate) address: String,
}

impl Card {
    pub(crate) fn find(number: u32) -> Result<Self> {
        let device = fs::canonicalize(format!("/sys/class/fermata/fermata{number}/device"))?;
        let address = device.file_name().context("a card without an address")?;
        Ok(Self {
            number,
            address: address.to_string_lossy().into(),
        })
    }

    pub(crate) fn node(&self) -> PathBuf {
        format!("/dev/fermata{}", self.number).into()
    }

    /// Binds the driver to the card, or unbinds the driver.
    pub(crate) fn driver(&self, what: &str) -> Result<()> {
        fs::write(
            format!("/sys/bus/pci/drivers/fermata/{what}"),
            &self.address,
        )?;
        Ok(())
    }

    /// Sends a command to the emulation.
    pub(crate) fn command(&self, words: &str) -> Result<()> {
        let path = format!("/dev/virtio-ports/fermata.card{}", self.number);
        let mut port = OpenOptions::new().read(true).write(true).open(path)?;
        writeln!(port, "kubelet {words}")?;
        let mut reply = String::new();
        BufReader::new(port).read_line(&mut reply)?;
        ensure!(reply.starts_with("kubelet ok"), "{words}: {reply}");
        Ok(())
    }
}
