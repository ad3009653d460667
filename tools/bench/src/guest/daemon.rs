// SPDX-License-Identifier: GPL-2.0
//! The daemon's process.

use super::bind::Card;
use crate::visit::{Cell, Variant};
use anyhow::{bail, ensure, Context as _, Result};
use rustix::process::{kill_process, Pid, Signal};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Where clients connect.
pub(super) const SOCKET: &str = "/run/fermata-bench";
/// Leaving takes milliseconds; a guard against hangs, not a criterion.
const GUARD: Duration = Duration::from_secs(30);

/// Ends with its owner.
pub(super) struct Daemon(Child);

impl Daemon {
    /// Starts a daemon that shares the card as a cell says.
    pub(super) fn start(cell: Cell, card: &Card) -> Result<Self> {
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

    pub(super) fn process(&self) -> &Child {
        &self.0
    }

    /// Asks the daemon to end, which it must do without an error.
    pub(super) fn end(&mut self) -> Result<()> {
        let early = self.0.try_wait()?;
        ensure!(early.is_none(), "the daemon ended early: {early:?}");
        self.signal(Signal::TERM)?;
        let status = self.wait()?;
        ensure!(status.success(), "the daemon ended with {status}");
        Ok(())
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.0), signal)?)
    }

    /// Waits until the daemon has ended.
    pub(super) fn wait(&mut self) -> Result<ExitStatus> {
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
