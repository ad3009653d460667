// SPDX-License-Identifier: GPL-2.0-or-later
//! Time on a slot is shared between guests by the weights of their cgroups.

use crate::guest::Guest;
use crate::host::{cgroup, Daemon, DEVICE};
use crate::jobs::{endless, SLOTS};
use anyhow::{ensure, Result};
use fermata::{Context, GroupSettings};
use std::fs::File;
use std::os::fd::AsFd as _;
use std::time::Duration;

/// How long both guests run.
const TIME: Duration = Duration::from_secs(6);

/// A guest whose job does not end.
struct Busy {
    daemon: Daemon,
    _guest: Guest,
}

impl Busy {
    fn start(name: &str, weight: u32, tag: u64, host: &Context) -> Result<Self> {
        let daemon = Daemon::start(name, &["--slots", SLOTS])?;
        let settings = GroupSettings {
            weight: Some(weight),
            ..Default::default()
        };
        host.set_group(File::open(cgroup(name))?.as_fd(), &settings)?;
        let mut guest = Guest::plug(daemon.socket())?;
        guest.start(&endless(tag))?;
        Ok(Self {
            daemon,
            _guest: guest,
        })
    }

    /// Time on slots, in nanoseconds.
    fn run_ns(&self, host: &Context) -> Result<u64> {
        let contexts = self.daemon.contexts(host)?;
        Ok(contexts.iter().map(|context| context.run_ns).sum())
    }
}

/// Two guests with weights 3 : 1 have time on a slot as 3 : 1, within 2 %.
pub(crate) fn weights() -> Result<()> {
    let host = Context::open(DEVICE)?;
    let heavy = Busy::start("heavy", 300, 0x1100, &host)?;
    let light = Busy::start("light", 100, 0x1101, &host)?;
    std::thread::sleep(TIME / 10);
    let before = (heavy.run_ns(&host)?, light.run_ns(&host)?);
    std::thread::sleep(TIME);
    let (of_heavy, of_light) = (heavy.run_ns(&host)?, light.run_ns(&host)?);
    let (of_heavy, of_light) = (of_heavy - before.0, of_light - before.1);
    let share = of_heavy as f64 / (of_heavy + of_light) as f64;
    println!("# {of_heavy} : {of_light} ns, {:.1} %", share * 100.0);
    ensure!((0.735..0.765).contains(&share), "3 : 1 is 75 %");
    Ok(())
}
