// SPDX-License-Identifier: GPL-2.0-or-later
//! The program that is tested.

use anyhow::{Context as _, Result};
use rustix::process::{kill_process, Pid, Signal};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Deadline of everything that the test waits for.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// A process of the program, which ends with the value.
pub(crate) struct Program {
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts a command, with its log in a folder.
    pub(crate) fn start(command: &mut Command, folder: &Path) -> Result<Self> {
        let log = folder.join("log");
        let child = command.stderr(File::create(&log)?).spawn()?;
        Ok(Self { child, log })
    }

    /// Waits for the end. Returns status and log.
    pub(crate) async fn end(&mut self) -> Result<(Option<i32>, String)> {
        let ended = async {
            loop {
                if let Some(status) = self.child.try_wait()? {
                    return anyhow::Ok(status.code());
                }
                sleep(Duration::from_millis(50)).await;
            }
        };
        let code = timeout(LIMIT, ended)
            .await
            .context("the program does not end")??;
        Ok((code, fs::read_to_string(&self.log)?))
    }

    pub(crate) fn terminate(&self) -> Result<()> {
        let pid = Pid::from_raw(self.child.id().try_into()?).context("no process")?;
        Ok(kill_process(pid, Signal::TERM)?)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for line in fs::read_to_string(&self.log).unwrap_or_default().lines() {
            println!("# {line}");
        }
    }
}
