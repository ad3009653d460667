// SPDX-License-Identifier: GPL-2.0
//! How many system calls this process makes, as the kernel counts them.

use anyhow::{ensure, Context as _, Result};
use rustix::mount::{mount, MountFlags};
use std::fs;
use std::path::Path;

const TRACEFS: &str = "/sys/kernel/tracing";
const TRIGGER: &str = "/sys/kernel/tracing/events/raw_syscalls/sys_enter/trigger";
const HIST: &str = "/sys/kernel/tracing/events/raw_syscalls/sys_enter/hist";

/// Counts while it lives, by a histogram of the tracepoint at the entry of each call.
pub(crate) struct Counter {
    trigger: String,
    /// Calls of reading it once.
    own: u64,
}

impl Counter {
    pub(crate) fn new() -> Result<Self> {
        if !Path::new(TRIGGER).exists() {
            mount("tracefs", TRACEFS, "tracefs", MountFlags::empty(), None).context("tracefs")?;
        }
        let trigger = format!(
            "hist:keys=common_pid if common_pid == {}",
            std::process::id()
        );
        fs::write(TRIGGER, &trigger).context(TRIGGER)?;
        let mut counter = Self { trigger, own: 0 };
        let nothing = || Ok(());
        counter.own = counter.count(nothing)?;
        ensure!(counter.own != 0, "the kernel counts no system calls");
        ensure!(
            counter.count(nothing)? == 0,
            "reading the counter costs now this, now that"
        );
        Ok(counter)
    }

    /// The calls that `work` makes.
    pub(crate) fn count(&self, work: impl FnOnce() -> Result<()>) -> Result<u64> {
        let before = total()?;
        work()?;
        Ok(total()? - before - self.own)
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // Nothing is counted any more; if it fails, the machine's next run finds it in use.
        let _ = fs::write(TRIGGER, format!("!{}", self.trigger));
    }
}

/// All calls that were counted: lines like `{ common_pid: 42 } hitcount: 7`.
fn total() -> Result<u64> {
    let text = fs::read_to_string(HIST).context(HIST)?;
    let hits = text.lines().filter(|line| line.starts_with('{'));
    hits.filter_map(|line| line.rsplit_once("hitcount:"))
        .map(|(_, hits)| hits.trim().parse::<u64>().context("a histogram"))
        .sum()
}
