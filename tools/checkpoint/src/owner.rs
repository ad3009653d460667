// SPDX-License-Identifier: GPL-2.0-or-later
//! The program that owns a context: gets the context's descriptor from it.

use anyhow::{anyhow, bail, Context as _, Result};
use fermata::{owner, Arena, Context, Error};
use rustix::process::{kill_process, Pid, Signal};
use std::os::fd::RawFd;

/// The owner of a job.
#[derive(clap::Args)]
pub(crate) struct Owner {
    /// The program, from which the descriptor is taken (`pidfd_getfd()`, as a debugger does)
    #[arg(long)]
    pid: u32,
    /// The program's descriptor of the card, if it has several
    #[arg(long)]
    fd: Option<RawFd>,
}

impl Owner {
    /// Returns the owner's context, which both processes share from now on.
    pub(crate) fn context(&self) -> Result<Context> {
        let fd = match self.fd {
            Some(fd) => fd,
            None => self.only_descriptor()?,
        };
        let context = owner::context(self.pid, fd);
        context.with_context(|| format!("descriptor {fd} of process {}", self.pid))
    }

    /// Returns the owner's only descriptor of a card.
    fn only_descriptor(&self) -> Result<RawFd> {
        let found = owner::descriptors(self.pid);
        let found = found.with_context(|| format!("descriptors of process {}", self.pid))?;
        match found[..] {
            [] => bail!("process {} has no card open", self.pid),
            [fd] => Ok(fd),
            _ => bail!(
                "process {} has several contexts: give --fd, one of {found:?}",
                self.pid
            ),
        }
    }

    /// Kills the owner.
    pub(crate) fn kill(&self) -> Result<()> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| anyhow!("{} is no process", self.pid))?;
        let killed = kill_process(pid, Signal::KILL);
        killed.with_context(|| format!("process {}", self.pid))
    }
}

/// Maps the whole arena of a context.
pub(crate) fn arena_of(context: &Context) -> Result<Option<Arena>> {
    context.map_arena().map_err(|error| match error {
        Error::Invalid => {
            anyhow!("its arena is the program's own memory: only the program itself can save it")
        }
        Error::NoAddress => anyhow!("its arena has no device address yet: it was never mapped"),
        error => anyhow!("its arena cannot be mapped: {error}"),
    })
}
