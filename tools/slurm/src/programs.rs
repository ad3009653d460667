// SPDX-License-Identifier: GPL-2.0-or-later
//! The programs of Slurm, which ask its daemons. A hook has no `PATH`, and a daemon may be silent.

use anyhow::{bail, ensure, Context as _, Result};
use rustix::process::{pidfd_open, pidfd_send_signal, Pid, PidfdFlags, Signal};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long a daemon may take to answer.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// The programs of Slurm.
#[derive(clap::Args)]
pub(crate) struct Programs {
    /// The program scontrol of Slurm; sacct and sacctmgr are in the same folder
    #[arg(long, value_name = "FILE", default_value = "/usr/bin/scontrol")]
    scontrol: PathBuf,
}

impl Programs {
    /// Returns the path of scontrol.
    pub(crate) fn scontrol(&self) -> &Path {
        &self.scontrol
    }

    /// Checks that scontrol is there: otherwise every job would have the default share, without
    /// anybody noticing.
    pub(crate) fn check(&self) -> Result<()> {
        let there = self.scontrol.metadata();
        let name = self.scontrol.display();
        there.with_context(|| format!("{name}: name scontrol by --scontrol"))?;
        Ok(())
    }

    /// Calls scontrol, and returns its output.
    pub(crate) fn control(&self, arguments: &[&str]) -> Result<Vec<u8>> {
        call(&self.scontrol, arguments, LIMIT)
    }

    /// Calls a program beside scontrol, and returns its output.
    pub(crate) fn call(&self, program: &str, arguments: &[&str]) -> Result<Vec<u8>> {
        call(&self.scontrol.with_file_name(program), arguments, LIMIT)
    }
}

/// Calls a program, and returns its output. Kills the program if it does not end within `limit`.
fn call(program: &Path, arguments: &[impl AsRef<OsStr>], limit: Duration) -> Result<Vec<u8>> {
    let words = arguments.iter().map(|word| word.as_ref().to_string_lossy());
    let name = program.display();
    let line = format!("{name} {}", words.collect::<Vec<_>>().join(" "));
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().with_context(|| name.to_string())?;
    let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    let (ended, end) = mpsc::channel();
    // Nobody receives the output after the time limit.
    thread::spawn(move || ended.send(child.wait_with_output()));
    let Ok(done) = end.recv_timeout(limit) else {
        // It may have ended.
        let _ = pidfd_send_signal(process, Signal::KILL);
        bail!("{line}: no answer within {limit:?}");
    };
    let done = done.with_context(|| line.clone())?;
    // sacctmgr prints some errors on its standard output.
    let said = match &*done.stderr {
        [] => &done.stdout,
        _ => &done.stderr,
    };
    let said = String::from_utf8_lossy(said);
    ensure!(done.status.success(), "{line}: {}", said.trim());
    Ok(done.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_program_that_does_not_answer_is_killed() {
        let begin = Instant::now();
        let error = call(Path::new("sleep"), &["1000"], Duration::from_millis(100));
        assert_eq!(
            error.unwrap_err().to_string(),
            "sleep 1000: no answer within 100ms"
        );
        assert!(begin.elapsed() < Duration::from_secs(100));
    }

    #[test]
    fn the_error_of_a_program_is_told() {
        let tell = |script| call(Path::new("sh"), &["-c", script], LIMIT);
        assert_eq!(tell("echo yes").unwrap(), b"yes\n");
        let error = tell("echo no >&2; exit 1").unwrap_err();
        assert_eq!(error.to_string(), "sh -c echo no >&2; exit 1: no");
    }
}
