// SPDX-License-Identifier: GPL-2.0-or-later
//! Binds the card to the driver that a visit needs.

use crate::visit::{Cell, Driver};
use anyhow::{bail, ensure, Context as _, Result};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const DEVICES: &str = "/sys/bus/pci/devices";
/// PCI identifiers of the emulated card (docs/card.md).
const VENDOR: &str = "0x1af4";
const DEVICE: &str = "0x10f1";
/// Where the machine has fermata.ko.
const MODULE: &str = "/fermata.ko";

/// Loads vfio-pci.
pub(super) fn load_vfio() -> Result<()> {
    command("modprobe", ["vfio_iommu_type1"])?;
    // By default vfio-pci puts the card into a low-power state between two daemons.
    command("modprobe", ["vfio_pci", "disable_idle_d3=1"])
}

/// Loads the module that measures the bounds.
pub(super) fn load_bound(bound: &Path) -> Result<()> {
    command("insmod", [bound])
}

fn command<A: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = A>) -> Result<()> {
    let mut command = Command::new(program);
    let status = command.args(arguments).status()?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// The card, and its drivers.
pub(crate) struct Card {
    /// The card's directory in sysfs.
    pub(crate) path: PathBuf,
    /// fermata.ko is loaded with this value of its parameter `relay`.
    relay: bool,
}

impl Card {
    pub(crate) fn find() -> Result<Self> {
        for entry in fs::read_dir(DEVICES)? {
            let path = entry?.path();
            let is = |file: &str, value| {
                fs::read_to_string(path.join(file)).is_ok_and(|text| text.trim() == value)
            };
            if is("vendor", VENDOR) && is("device", DEVICE) {
                let relay = true;
                return Ok(Self { path, relay });
            }
        }
        bail!("no card of the fermata profile is plugged")
    }

    fn driver(&self) -> Option<String> {
        let link = fs::read_link(self.path.join("driver")).ok()?;
        Some(link.file_name()?.to_string_lossy().into_owned())
    }

    /// Binds the card to `driver`; does nothing if the card is bound to it.
    pub(super) fn bind(&mut self, driver: Driver) -> Result<()> {
        if self.is_bound_to(driver) {
            return Ok(());
        }
        self.release()?;
        if driver.is_own() {
            self.load(driver == Driver::Fermata)?;
        }
        let write = |file: &Path, text: &str| {
            fs::write(file, text).with_context(|| format!("{}: {text}", file.display()))
        };
        write(&self.path.join("driver_override"), driver.name())?;
        let name = self.path.file_name().context("no such card")?;
        write(
            Path::new("/sys/bus/pci/drivers_probe"),
            &name.to_string_lossy(),
        )?;
        ensure!(
            self.is_bound_to(driver),
            "{} did not take the card",
            driver.name()
        );
        Ok(())
    }

    /// Loads fermata.ko anew if its parameter `relay` has another value.
    fn load(&mut self, relay: bool) -> Result<()> {
        if self.relay != relay {
            command("rmmod", ["fermata"])?;
            command("insmod", [MODULE, &format!("relay={}", u8::from(relay))])?;
            self.relay = relay;
        }
        Ok(())
    }

    fn is_bound_to(&self, driver: Driver) -> bool {
        let is_loaded = !driver.is_own() || self.relay == (driver == Driver::Fermata);
        is_loaded && self.driver().as_deref() == Some(driver.name())
    }

    /// Unbinds the card, unless the visit can begin with the present driver. A bound runs as soon
    /// as its driver is bound, so each of its visits begins with a bind.
    pub(super) fn release_unless(&self, cell: Cell) -> Result<()> {
        if !cell.variant.is_bound() && self.is_bound_to(cell.variant.driver()) {
            Ok(())
        } else {
            self.release()
        }
    }

    /// Unbinds the card from its driver, if it has a driver.
    pub(super) fn release(&self) -> Result<()> {
        let Some(_) = self.driver() else {
            return Ok(());
        };
        let name = self.path.file_name().context("no such card")?;
        let unbind = self.path.join("driver/unbind");
        fs::write(&unbind, name.to_string_lossy().as_bytes())
            .with_context(|| unbind.display().to_string())
    }
}
