// SPDX-License-Identifier: GPL-2.0
//! The program that has a context: its descriptor, got from it.

use anyhow::{anyhow, bail, Context as _, Result};
use fermata::{Arena, Context, Error};
use rustix::process::{
    kill_process, pidfd_getfd, pidfd_open, ForeignRawFd, Pid, PidfdFlags, PidfdGetfdFlags, Signal,
};
use std::path::PathBuf;

/// Whose job.
#[derive(clap::Args)]
pub(crate) struct Owner {
    /// The program; its descriptor is got as a debugger would (`pidfd_getfd()`)
    #[arg(long)]
    pid: i32,
    /// Its descriptor of the card, where it has several
    #[arg(long)]
    fd: Option<ForeignRawFd>,
}

impl Owner {
    fn process(&self) -> Result<Pid> {
        Pid::from_raw(self.pid).ok_or_else(|| anyhow!("{} is no process", self.pid))
    }

    /// Its context, which is ours, too, from now on.
    pub(crate) fn context(&self) -> Result<Context> {
        let fd = match self.fd {
            Some(fd) => fd,
            None => self.only_descriptor()?,
        };
        let process = pidfd_open(self.process()?, PidfdFlags::empty());
        let process = process.with_context(|| format!("process {}", self.pid))?;
        let file = pidfd_getfd(&process, fd, PidfdGetfdFlags::empty());
        let file = file.with_context(|| format!("descriptor {fd} of process {}", self.pid))?;
        Ok(Context::from_file(file))
    }

    /// Its only descriptor of a card.
    fn only_descriptor(&self) -> Result<ForeignRawFd> {
        let folder = PathBuf::from(format!("/proc/{}/fd", self.pid));
        let mut found = Vec::new();
        for entry in folder
            .read_dir()
            .with_context(|| folder.display().to_string())?
        {
            let entry = entry?;
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            if target.to_string_lossy().starts_with("/dev/fermata") {
                found.extend(
                    entry
                        .file_name()
                        .to_str()
                        .and_then(|fd| fd.parse::<ForeignRawFd>().ok()),
                );
            }
        }
        found.sort_unstable();
        match found[..] {
            [] => bail!("process {} has no card open", self.pid),
            [fd] => Ok(fd),
            _ => bail!(
                "process {} has several contexts: give --fd, one of {found:?}",
                self.pid
            ),
        }
    }

    /// Kills it.
    pub(crate) fn kill(&self) -> Result<()> {
        let killed = kill_process(self.process()?, Signal::KILL);
        killed.with_context(|| format!("process {}", self.pid))
    }
}

/// All of its arena.
pub(crate) fn arena_of(context: &Context) -> Result<Option<Arena>> {
    context.map_arena().map_err(|error| match error {
        Error::Invalid => {
            anyhow!("its arena is the program's own memory: only the program itself can save it")
        }
        Error::NoAddress => anyhow!("its arena has no device address yet: it was never mapped"),
        error => anyhow!("its arena cannot be mapped: {error}"),
    })
}
