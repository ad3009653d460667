// SPDX-License-Identifier: GPL-2.0-or-later
//! What people use without a driver: a daemon that owns the card through vfio-pci, shares the card
//! among clients of a UNIX socket, and preempts by the same protocol (docs/switch.md, Fermata
//! profile). The daemon is as fast as its authors could make it, so that the comparison is fair:
//!
//! - one thread, one epoll loop; a switch allocates nothing;
//! - the card's interrupt and the timer are edge-triggered and never read, which saves a system
//!   call each;
//! - a switch costs one call to wait and one call to set the timer;
//! - unchanged registers are not written again;
//! - the next job is started before a client is told of the end of the last job;
//! - the daemon leaves the card quiescent when a signal or an error ends it;
//! - with `--relay` the card is told by one order per switch, when a run begins, what runs next and
//!   how long the run may work, and tells by a record in memory: no timer, no read of a register;
//! - under `SCHED_FIFO` its memory is locked; when polling, the daemon makes no call that sleeps,
//!   and takes the time from the vDSO.

mod device;
mod protocol;
mod relay;
mod relay_schedule;
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
    /// The card's directory in sysfs; the card is bound to vfio-pci
    #[arg(long)]
    pub(crate) device: PathBuf,
    /// The socket for clients
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
    /// Tell the card by orders what runs next
    #[arg(long)]
    pub(crate) relay: bool,
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
    // SAFETY: The pointer is valid, and the calls affect this process only.
    let done = unsafe {
        libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) == 0
            && libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) == 0
    };
    done.then_some(())
        .ok_or_else(std::io::Error::last_os_error)
        .context("cannot lock memory and set SCHED_FIFO")
}

/// The socket for clients.
pub(crate) const SOCKET: &str = "/run/fermata-bench";
/// Time limit for the daemon to exit; only a hang reaches it.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The daemon's process. Dropping the value ends the process.
pub(crate) struct Daemon(Child);

impl Daemon {
    /// Starts a daemon for a cell.
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
        command.args((cell.variant == Variant::Relay).then_some("--relay"));
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

    /// Asks the daemon to exit; fails if it exits with an error or has exited before.
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

    /// Waits until the daemon has exited.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        let until = Instant::now() + TIMEOUT;
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
    /// Ends the daemon, which leaves the card quiescent if it still runs and can.
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
