// SPDX-License-Identifier: GPL-2.0-or-later
//! The machine: the card and its drivers; the CPUs, load on them, and what the kernel counts. The
//! kernel's idle time cannot be used: this kernel charges interrupts of an idle CPU to idle time, and
//! the module works in interrupts. CPU time is therefore taken on the host
//! (vm/fermatavm/bench.py).

use crate::visit::{Cell, Driver, Usage};
use anyhow::{bail, ensure, Context as _, Result};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Instant;

const DEVICES: &str = "/sys/bus/pci/devices";
/// PCI identifiers of the emulated card (docs/emulated-card.md).
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
        bail!("no card of the irq or the relay profile is plugged")
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

    /// Reloads fermata.ko if its parameter `relay` has another value.
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

/// Returns the number of CPUs that are online.
pub(super) fn cpus() -> Result<u64> {
    let text = fs::read_to_string("/proc/stat")?;
    let count = text
        .lines()
        .filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "))
        .count();
    Ok(count as u64)
}

/// Counters since the machine booted.
pub(super) struct Sample {
    at: Instant,
    context_switches: u64,
    daemon_ns: u64,
}

impl Sample {
    pub(super) fn take(daemon: Option<&Child>) -> Result<Self> {
        let stat = fs::read_to_string("/proc/stat")?;
        let line = |name: &str| {
            let found = stat.lines().find_map(|line| line.strip_prefix(name));
            found.with_context(|| format!("/proc/stat has no {name}"))
        };
        let daemon_ns = daemon.map_or(Ok(0), |daemon| {
            let path = format!("/proc/{}/schedstat", daemon.id());
            let text = fs::read_to_string(path)?;
            let ran = text.split_ascii_whitespace().next();
            ran.and_then(|ran| ran.parse().ok()).context("no schedstat")
        })?;
        Ok(Self {
            at: Instant::now(),
            context_switches: line("ctxt ")?.trim().parse()?,
            daemon_ns,
        })
    }

    pub(super) fn since(&self, before: &Self) -> Usage {
        Usage {
            wall_ns: (self.at - before.at).as_nanos() as u64,
            context_switches: self.context_switches - before.context_switches,
            daemon_ns: self.daemon_ns - before.daemon_ns,
        }
    }
}

/// A process that computes; dropping the value kills the process.
pub(super) struct CpuHog(Child);

/// Starts a computing process of normal priority for each CPU.
pub(super) fn start_hogs() -> Result<Vec<CpuHog>> {
    let program = std::env::current_exe()?;
    (0..cpus()?)
        .map(|_| Ok(CpuHog(Command::new(&program).arg("spin").spawn()?)))
        .collect()
}

impl Drop for CpuHog {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Computes until the process is killed.
pub(crate) fn spin() -> ! {
    let mut number = 1_u64;
    loop {
        number = std::hint::black_box(number.wrapping_mul(6_364_136_223_846_793_005) + 1);
    }
}
