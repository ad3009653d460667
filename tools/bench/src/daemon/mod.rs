// SPDX-License-Identifier: GPL-2.0-or-later
//! What people do without a driver: a daemon that owns the card through vfio-pci and shares it
//! among clients of a UNIX socket, preempting by the same protocol (docs/switch.md, Fermata
//! profile). Written as well as it can be, so that the comparison is fair:
//!
//! - one thread, one epoll loop; nothing is allocated for a switch;
//! - the card's interrupt and the timer are edge-triggered: neither is read, which saves a system
//!   call each;
//! - a switch costs one call to wait and one to set the timer;
//! - registers that stand as they should are not written again;
//! - the next job is started before anybody is told of the end of the last one;
//! - it leaves the card quiescent when it ends, by a signal or by an error;
//! - under `SCHED_FIFO` its memory is locked; polling, it makes no call that sleeps, and takes the
//!   time from the vDSO.

mod device;
mod protocol;
mod schedule;
mod server;

use crate::guest::bind::Card;
use crate::visit::{Cell, Variant};
use anyhow::{bail, ensure, Context as _, Result};
pub(crate) use protocol::{Client, Urgency};
use rustix::process::{kill_process, Pid, Signal};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

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

/// Where clients connect.
pub(crate) const SOCKET: &str = "/run/fermata-bench";
/// Leaving takes milliseconds; a guard against hangs, not a criterion.
const GUARD: Duration = Duration::from_secs(30);

/// The daemon's process. It ends with its owner.
pub(crate) struct Daemon(Child);

impl Daemon {
    /// Starts a daemon that shares the card as a cell says.
    pub(crate) fn start(cell: Cell, card: &Card) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("daemon").arg("--device").arg(&card.path);
        command.args(["--socket", SOCKET, "--slice-us", &cell.slice_us.to_string()]);
        let (polls, fifo) = match cell.variant {
            Variant::Poll => (true, false),
            Variant::PollFifo => (true, true),
            Variant::SleepFifo => (false, true),
            _ => (false, false),
        };
        command.args(polls.then_some("--poll"));
        command.args(fifo.then_some("--fifo"));
        let mut child = Self(command.stdout(Stdio::piped()).spawn()?);
        let output = child.0.stdout.take().context("no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        ensure!(line == "ready\n", "the daemon does not start");
        Ok(child)
    }

    pub(crate) fn process(&self) -> &Child {
        &self.0
    }

    /// Asks the daemon to end, which it must do without an error.
    pub(crate) fn end(&mut self) -> Result<()> {
        let early = self.0.try_wait()?;
        ensure!(early.is_none(), "the daemon ended early: {early:?}");
        self.signal(Signal::TERM)?;
        let status = self.wait()?;
        ensure!(status.success(), "the daemon ended with {status}");
        Ok(())
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.0), signal)?)
    }

    /// Waits until the daemon has ended.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        let until = Instant::now() + GUARD;
        while Instant::now() < until {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        bail!("the daemon does not end")
    }
}

impl Drop for Daemon {
    /// Lets the daemon leave the card quiescent, if it still runs and can.
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(Some(_))) {
            return;
        }
        if self.end().is_err() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}
