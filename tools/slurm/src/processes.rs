// SPDX-License-Identifier: GPL-2.0-or-later
//! The processes of the program, and their jobs on cards, which are held while Slurm suspends the
//! job: Slurm only stops processes, and a card would continue.

use anyhow::{ensure, Context as _, Result};
use fermata::{owner, Context, Error, Hold};
use rustix::io::Errno;
use rustix::process::{kill_process, Pid, Signal};
use std::{fs, io};

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
    ///
    /// # Errors
    ///
    /// The first error. All other processes are stopped and their jobs held.
    pub(crate) fn suspend(&mut self) -> Result<()> {
        let processes = self.stop_all(others)?;
        hold_jobs(&processes, &mut self.held)
    }

    /// Stops all processes that `list` returns. A process may fork until it is stopped, so the list
    /// is read again until it has nothing new.
    fn stop_all(&mut self, list: impl Fn() -> Result<Vec<Pid>>) -> Result<Vec<Pid>> {
        let mut all = Vec::new();
        loop {
            let new: Vec<_> = list()?
                .into_iter()
                .filter(|pid| !all.contains(pid))
                .collect();
            if new.is_empty() {
                return Ok(all);
            }
            // It may have ended.
            let is_stopped = |pid: &Pid| kill_process(*pid, Signal::STOP).is_ok();
            self.stopped.extend(new.iter().copied().filter(is_stopped));
            all.extend(new);
        }
    }

    /// Resumes all that was suspended.
    pub(crate) fn resume(&mut self) {
        self.held.clear();
        for pid in self.stopped.drain(..) {
            let _ = kill_process(pid, Signal::CONT);
        }
    }
}

/// A program and its descendants, which CRIU has dumped and left stopped.
pub(crate) struct Stopped {
    processes: Vec<Pid>,
    _held: Vec<Hold>,
}

impl Stopped {
    /// Finds the processes, and holds their jobs, which otherwise would go on for nothing.
    pub(crate) fn of(root: Pid) -> Result<Self> {
        let processes = tree(root)?;
        let mut held = Vec::new();
        // If a job cannot be held, only its time on slots is lost.
        let _ = hold_jobs(&processes, &mut held);
        Ok(Self {
            processes,
            _held: held,
        })
    }

    /// Sends all processes a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        for &process in &self.processes {
            // It is stopped, so it is there, unless somebody else has killed it.
            let _ = kill_process(process, signal);
        }
    }
}

/// Returns a process and its descendants.
fn tree(root: Pid) -> Result<Vec<Pid>> {
    let mut processes = vec![root];
    let mut next = 0;
    while let Some(&process) = processes.get(next) {
        let children = unless_gone(children(process));
        let name = || format!("the children of process {}", process.as_raw_nonzero());
        processes.extend(children.with_context(name)?.unwrap_or_default());
        next += 1;
    }
    Ok(processes)
}

/// Returns the children of all threads of a process.
fn children(process: Pid) -> io::Result<Vec<Pid>> {
    let mut children = Vec::new();
    for thread in fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()))? {
        let text = unless_gone(fs::read_to_string(thread?.path().join("children")))?;
        let numbers = text.unwrap_or_default();
        let numbers = numbers
            .split_whitespace()
            .filter_map(|word| word.parse().ok());
        children.extend(numbers.filter_map(Pid::from_raw));
    }
    Ok(children)
}

/// Checks that CRIU can restore the contexts of a process and its descendants.
pub(crate) fn check_memory(root: Pid) -> Result<()> {
    for process in tree(root)? {
        for context in contexts(process)? {
            ensure!(
                !context.lacks_foreign_memory().unwrap_or(false),
                "process {} has an arena or a snapshot buffer in its own memory, which could not be \
                 restored: load the module with foreign_memory=1",
                process.as_raw_nonzero()
            );
        }
    }
    Ok(())
}

/// Returns the contexts of a process: none if the process has ended.
fn contexts(process: Pid) -> Result<Vec<Context>> {
    let pid = process.as_raw_nonzero().get() as u32;
    let descriptors = unless_gone(owner::descriptors(pid));
    let descriptors = descriptors.with_context(|| format!("the files of process {pid}"))?;
    let mut contexts = Vec::new();
    for number in descriptors.unwrap_or_default() {
        let context = unless_gone(owner::context(pid, number));
        contexts.extend(context.with_context(|| format!("descriptor {number} of process {pid}"))?);
    }
    Ok(contexts)
}

/// Returns `None` for an error which means that the process has ended, or closed the file.
fn unless_gone<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found.as_ref().map_err(Errno::from_io_error) {
        Err(Some(Errno::NOENT | Errno::SRCH | Errno::BADF)) => Ok(None),
        _ => found.map(Some),
    }
}

/// Holds the jobs of processes, and adds the holds to `held`. Holds all jobs that can be held, and
/// returns the first error.
fn hold_jobs(processes: &[Pid], held: &mut Vec<Hold>) -> Result<()> {
    let mut done = Ok(());
    for &process in processes {
        let found = contexts(process);
        for context in found.as_deref().unwrap_or_default() {
            match context.open_hold() {
                Ok(hold) => held.push(hold),
                // It is not set up.
                Err(Error::NotReady) => {}
                Err(error) => done = done.and(Err(error.into())),
            }
        }
        done = done.and(found.map(drop));
    }
    done
}

/// Holds the jobs of a process and its descendants until the result is dropped.
pub(crate) fn hold_all(root: Pid) -> Result<Vec<Hold>> {
    let mut held = Vec::new();
    hold_jobs(&tree(root)?, &mut held)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::process::{Child, Command};

    /// Programs that are killed at the end of the test.
    #[derive(Default)]
    struct Sleepers(Vec<Child>);

    impl Sleepers {
        fn add(&mut self) {
            self.0
                .push(Command::new("sleep").arg("1000").spawn().unwrap());
        }
        fn pids(&self) -> Vec<Pid> {
            self.0.iter().map(Pid::from_child).collect()
        }
    }

    impl Drop for Sleepers {
        fn drop(&mut self) {
            for child in &mut self.0 {
                child.kill().unwrap();
                child.wait().unwrap();
            }
        }
    }

    fn is_stopped(pid: Pid) -> bool {
        let path = format!("/proc/{}/status", pid.as_raw_nonzero());
        let status = fs::read_to_string(path).unwrap();
        status.lines().any(|line| line == "State:\tT (stopped)")
    }

    #[test]
    fn a_process_that_is_forked_meanwhile_is_stopped_too() {
        let sleepers = RefCell::new(Sleepers::default());
        sleepers.borrow_mut().add();
        // After the first list another process comes.
        let list = || {
            let listed = sleepers.borrow().pids();
            if listed.len() == 1 {
                sleepers.borrow_mut().add();
            }
            Ok(listed)
        };
        let mut suspended = Suspended::default();
        assert_eq!(suspended.stop_all(list).unwrap().len(), 2);
        let is_each = |stopped| {
            sleepers
                .borrow()
                .pids()
                .into_iter()
                .all(|pid| is_stopped(pid) == stopped)
        };
        while !is_each(true) {}
        suspended.resume();
        while !is_each(false) {}
    }

    #[test]
    fn only_what_is_gone_has_no_contexts() {
        let found = |errno: Errno| unless_gone::<()>(Err(errno.into()));
        for gone in [Errno::NOENT, Errno::SRCH, Errno::BADF] {
            assert!(matches!(found(gone), Ok(None)), "{gone}");
        }
        for error in [Errno::ACCESS, Errno::PERM, Errno::MFILE] {
            assert!(found(error).is_err(), "{error}");
        }
        let mut sleepers = Sleepers::default();
        sleepers.add();
        let gone = sleepers.pids()[0];
        drop(sleepers);
        assert!(contexts(gone).unwrap().is_empty());
    }

    #[test]
    fn descendants_are_found_and_killed() {
        let mut shell = Command::new("sh");
        let script = "sleep 1000 & sh -c 'sleep 1000 & wait' & wait";
        let mut shell = shell.args(["-c", script]).spawn().unwrap();
        let tree = || Stopped::of(Pid::from_child(&shell)).unwrap();
        while tree().processes.len() < 4 {}
        let tree = tree();
        tree.signal(Signal::KILL);
        shell.wait().unwrap();
        let has_ended = |pid: &Pid| {
            let path = format!("/proc/{}/status", pid.as_raw_nonzero());
            !fs::read_to_string(path).is_ok_and(|status| !status.contains("State:\tZ"))
        };
        while !tree.processes.iter().all(has_ended) {}
    }
}
