// SPDX-License-Identifier: GPL-2.0-or-later
//! The processes of the program, and their jobs on cards, which are held while Slurm suspends the
//! job: Slurm only stops processes, and a card would continue.

use anyhow::{ensure, Context as _, Result};
use fermata::{owner, Error, Hold};
use rustix::process::{kill_process, Pid, Signal};
use std::fs;

/// The root of cgroups, for Slurm and for the driver.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Returns the path of the caller's cgroup (version 2), from the root of cgroups.
pub(crate) fn own_cgroup() -> Result<String> {
    let text = fs::read_to_string("/proc/self/cgroup")?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"));
    Ok(path
        .context("the process is in no cgroup of version 2: CgroupPlugin=cgroup/v2 of cgroup.conf")?
        .to_owned())
}

/// Returns the path of a directory of cgroups.
pub(crate) fn directory(cgroup: &str) -> String {
    format!("{CGROUPS}{cgroup}")
}

/// Processes that are stopped, and holds of their jobs, which end with the caller.
#[derive(Default)]
pub(crate) struct Suspended {
    stopped: Vec<Pid>,
    held: Vec<Hold>,
}

impl Suspended {
    /// Stops all processes of the caller's cgroup, except the caller and its ancestors, and holds
    /// their jobs. Jobs that were already held stay held afterwards.
    pub(crate) fn suspend(&mut self) -> Result<()> {
        let processes = others()?;
        for &pid in &processes {
            // It may have ended.
            if kill_process(pid, Signal::STOP).is_ok() {
                self.stopped.push(pid);
            }
        }
        hold_jobs(&processes, &mut self.held)
    }

    /// Resumes all that was suspended.
    pub(crate) fn resume(&mut self) {
        self.held.clear();
        for pid in self.stopped.drain(..) {
            let _ = kill_process(pid, Signal::CONT);
        }
    }
}

/// Checks that CRIU can restore the contexts of all processes of the caller's cgroup.
pub(crate) fn check_memory() -> Result<()> {
    for pid in others()? {
        let pid = pid.as_raw_nonzero().get() as u32;
        for number in owner::descriptors(pid).unwrap_or_default() {
            // It may have been closed.
            let Ok(context) = owner::context(pid, number) else {
                continue;
            };
            ensure!(
                !context.lacks_foreign_memory().unwrap_or(false),
                "process {pid} has an arena or a snapshot buffer in its own memory, which could not \
                 be restored: load the module with foreign_memory=1"
            );
        }
    }
    Ok(())
}

/// Holds the jobs of processes, and adds the holds to `held`.
fn hold_jobs(processes: &[Pid], held: &mut Vec<Hold>) -> Result<()> {
    for pid in processes {
        let pid = pid.as_raw_nonzero().get() as u32;
        for number in owner::descriptors(pid).unwrap_or_default() {
            let context = owner::context(pid, number)
                .with_context(|| format!("descriptor {number} of process {pid}"))?;
            match context.open_hold() {
                Ok(hold) => held.push(hold),
                // It is not set up.
                Err(Error::NotReady) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Holds the jobs of all processes of the caller's cgroup until the result is dropped.
pub(crate) fn hold_all() -> Result<Vec<Hold>> {
    let mut held = Vec::new();
    hold_jobs(&others()?, &mut held)?;
    Ok(held)
}

/// Returns the processes of the caller's cgroup, except the caller and its ancestors.
pub(crate) fn others() -> Result<Vec<Pid>> {
    let path = format!("{}/cgroup.procs", directory(&own_cgroup()?));
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    let own = line_of_parents();
    let all = text.lines().filter_map(|line| line.parse().ok());
    Ok(all
        .filter(|pid| !own.contains(pid))
        .filter_map(Pid::from_raw)
        .collect())
}

/// Returns the process and its ancestors.
fn line_of_parents() -> Vec<i32> {
    let mut line = vec![std::process::id() as i32];
    while let Some(parent) = line.last().and_then(|&pid| parent_of(pid)) {
        line.push(parent);
    }
    line
}

fn parent_of(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    parent.trim().parse().ok().filter(|&parent| parent > 0)
}
