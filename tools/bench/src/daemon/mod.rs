// SPDX-License-Identifier: GPL-2.0
//! What people do without a driver: a daemon that owns the card through vfio-pci and shares it among clients of a UNIX socket, preempting by the
//! same protocol (docs/switch.md, Fermata profile). Written as well as it can be, so that the comparison is fair:
//!
//! - one thread, one epoll loop; nothing is allocated for a switch;
//! - the card's interrupt and the timer are edge-triggered: neither is read, which saves a system call each;
//! - a switch costs one call to wait and one to set the timer;
//! - registers that stand as they should are not written again;
//! - the next job is started before anybody is told of the end of the last one;
//! - it leaves the card quiescent when it ends, by a signal or by an error;
//! - under `SCHED_FIFO` its memory is locked; polling, it makes no call that sleeps, and takes the time from the vDSO.

mod device;
mod protocol;
mod schedule;
mod server;

pub(crate) use protocol::{Client, Urgency};

use anyhow::{Context as _, Result};
use std::path::PathBuf;

/// Priority under `SCHED_FIFO`.
const PRIORITY: i32 = 50;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    /// The card's folder in sysfs; it is bound to vfio-pci
    #[arg(long)]
    pub(crate) device: PathBuf,
    /// Where clients connect
    #[arg(long)]
    pub(crate) socket: PathBuf,
    /// Length of a slice in microseconds
    #[arg(long)]
    pub(crate) slice_us: u32,
    /// Poll instead of sleeping
    #[arg(long)]
    pub(crate) poll: bool,
    /// Run under `SCHED_FIFO`
    #[arg(long)]
    pub(crate) fifo: bool,
}

/// Serves until SIGTERM, SIGINT or SIGHUP.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.fifo {
        become_real_time()?;
    }
    server::Server::new(options)?.serve()
}

fn become_real_time() -> Result<()> {
    let param = libc::sched_param {
        sched_priority: PRIORITY,
    };
    // SAFETY: a valid pointer; the calls change this process only.
    let done = unsafe {
        libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) == 0
            && libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) == 0
    };
    done.then_some(())
        .ok_or_else(std::io::Error::last_os_error)
        .context("cannot become a real-time process")
}
