// SPDX-License-Identifier: GPL-2.0-or-later
//! CPUs of the machine: load on them, and what the kernel counts. The kernel's idle time cannot be
//! used: this kernel charges interrupts of an idle CPU to idle time, and the module works in
//! interrupts. CPU time is therefore taken on the host (vm/fermatavm/bench.py).

use crate::visit::Usage;
use anyhow::{Context as _, Result};
use std::fs;
use std::process::{Child, Command};
use std::time::Instant;

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

/// Starts a process for each CPU that computes, at normal priority.
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
