// SPDX-License-Identifier: GPL-2.0-or-later
//! Programs that have contexts: their commands (from /proc), and their contexts.

use crate::card::Card;
use crate::trouble::{Result, Trouble};
use fermata::{owner, Context};
use std::os::fd::AsFd;
use std::{fs, io};

/// Returns the command of a process: its arguments, or its name in brackets if it has none. Returns
/// `None` if the process does not exist or belongs to another user.
pub(crate) fn command(pid: u32) -> Option<String> {
    let words = arguments(pid)?;
    if !words.is_empty() {
        return Some(words.join(" "));
    }
    Some(format!("[{}]", name(pid)?))
}

/// Returns the arguments of a process, except empty ones.
pub(crate) fn arguments(pid: u32) -> Option<Vec<String>> {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let text = String::from_utf8_lossy(&arguments);
    let words = text.split('\0').filter(|word| !word.is_empty());
    Some(words.map(Into::into).collect())
}

/// Returns the processes with this name.
pub(crate) fn all_of(wanted: &str) -> impl Iterator<Item = u32> + '_ {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(move |&pid| name(pid).is_some_and(|name| name == wanted))
}

/// Returns the cgroup of a process, as seen from the caller's.
pub(crate) fn cgroup(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(path.into())
}

/// Returns the name of a process, or `None` if it does not exist.
pub(crate) fn name(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().into())
}

/// Gets a context from the program that opened it. The context lives until both have closed it.
pub(crate) fn context_of(card: &Card, number: u32) -> Result<Context> {
    let contexts = card.contexts()?;
    let info = contexts.iter().find(|info| info.context == number);
    let info = info.ok_or_else(|| card.no_context(number))?;
    let whose = format!("{}: context {number}", card.name);
    if info.pid <= 0 {
        return Err(Trouble::new(
            format!(
                "{whose}: it is another user's, its program is not to be seen from here, or the \
                 process that opened it has ended"
            ),
            "only its user and root may have it: run it as root, where the program can be seen \
                 (outside of a container)",
        ));
    }
    let pid = info.pid.unsigned_abs();
    match find(card, number, pid) {
        Ok(Some(context)) => Ok(context),
        Ok(None) => Err(Trouble::new(
            format!("{whose}: process {pid}, which opened it, has it no more"),
            "it was passed on to another process, which cannot be told from outside: have that \
                 one give the hint",
        )),
        Err(error) => Err(Trouble::new(
            format!("{whose}: the descriptor of process {pid}: {error}"),
            "it takes the right to trace the process: run it as root (CAP_SYS_PTRACE), or as the \
                 user of the process",
        )),
    }
}

/// Finds the context among the descriptors of the process.
fn find(card: &Card, number: u32, pid: u32) -> io::Result<Option<Context>> {
    let device = |context: &Context| rustix::fs::fstat(context.as_fd()).map(|about| about.st_rdev);
    let wanted = device(&card.file)?;
    for fd in owner::descriptors(pid)? {
        let context = owner::context(pid, fd)?;
        let is_it = context
            .status()
            .is_ok_and(|status| status.context == number);
        if is_it && device(&context)? == wanted {
            return Ok(Some(context));
        }
    }
    Ok(None)
}
