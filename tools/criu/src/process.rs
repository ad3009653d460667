// SPDX-License-Identifier: GPL-2.0-or-later
//! The contexts of a process: its descriptors and mappings of cards.

use anyhow::{ensure, Context as _, Result};
use fermata::Context;
use rustix::process::{pidfd_getfd, pidfd_open, Pid, PidfdFlags, PidfdGetfdFlags};
use std::fs;
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Returns whether a device number belongs to the module.
pub(crate) fn is_card(device: u64) -> bool {
    static MAJOR: OnceLock<Option<u32>> = OnceLock::new();
    let major = MAJOR.get_or_init(|| fermata::major().ok().flatten());
    *major == Some(rustix::fs::major(device))
}

/// An open file of a process.
struct OpenFile {
    number: RawFd,
    target: PathBuf,
}

/// A process that is stopped.
pub(crate) struct Process {
    pid: u32,
    folder: PathBuf,
    pidfd: OwnedFd,
}

impl Process {
    pub(crate) fn new(pid: i32) -> Result<Self> {
        let process = Pid::from_raw(pid).context("there is no such process")?;
        Ok(Self {
            pid: pid.try_into()?,
            folder: format!("/proc/{pid}").into(),
            pidfd: pidfd_open(process, PidfdFlags::empty())?,
        })
    }

    /// Returns the number of the process.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    fn open_files(&self) -> Result<Vec<OpenFile>> {
        let folder = self.folder.join("fd");
        let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry?;
            let number = entry.file_name().to_string_lossy().parse()?;
            // A file whose link cannot be read is not a card's.
            if let Ok(target) = fs::read_link(entry.path()) {
                files.push(OpenFile { number, target });
            }
        }
        Ok(files)
    }

    /// Returns the file of this descriptor.
    pub(crate) fn take(&self, number: RawFd) -> Result<OwnedFd> {
        Ok(pidfd_getfd(&self.pidfd, number, PidfdGetfdFlags::empty())?)
    }

    /// Returns the contexts of the process, each with the number of its descriptor.
    pub(crate) fn contexts(&self) -> Result<Vec<(RawFd, Context)>> {
        let mut contexts = Vec::new();
        for file in self.open_files()? {
            // Sockets, eventfds and the like have no path.
            if !file.target.is_absolute() {
                continue;
            }
            let taken = self.take(file.number)?;
            let stat = rustix::fs::fstat(&taken)?;
            if stat.st_mode & libc::S_IFMT == libc::S_IFCHR && is_card(stat.st_rdev) {
                contexts.push((file.number, Context::from_file(taken)));
            }
        }
        Ok(contexts)
    }

    /// Returns the eventfds of the process, each with the number of its descriptor.
    pub(crate) fn eventfds(&self) -> Result<Vec<(RawFd, OwnedFd)>> {
        let files = self.open_files()?.into_iter();
        let eventfds = files.filter(|file| file.target == Path::new("anon_inode:[eventfd]"));
        eventfds
            .map(|file| Ok((file.number, self.take(file.number)?)))
            .collect()
    }

    /// Returns the indices of the contexts whose arenas the process maps.
    pub(crate) fn mapped(&self) -> Result<Vec<u32>> {
        let maps = fs::read_to_string(self.folder.join("maps"))?;
        Ok(maps.lines().filter_map(mapped_index).collect())
    }

    /// Returns the children of all threads of the process.
    fn children(&self) -> Result<Vec<i32>> {
        let mut children = Vec::new();
        for thread in fs::read_dir(self.folder.join("task"))? {
            let of_thread = fs::read_to_string(thread?.path().join("children"))?;
            let numbers = of_thread.split_whitespace();
            children.extend(numbers.filter_map(|number| number.parse::<i32>().ok()));
        }
        Ok(children)
    }

    /// Returns the number of the process in its own pid namespace, and its real user.
    pub(crate) fn identity(&self) -> Result<(i32, u32)> {
        let status = fs::read_to_string(self.folder.join("status"))?;
        let words = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let words = line.map(|line| line.split_whitespace().collect::<Vec<_>>());
            words.with_context(|| format!("/proc/PID/status has no {key}"))
        };
        let pid = words("NSpid:")?;
        let user = words("Uid:")?;
        let pid = pid.last().context("no pid")?.parse()?;
        Ok((pid, user.first().context("no user")?.parse()?))
    }
}

/// Checks that the contexts of a process and of its descendants can be restored. What cannot be read
/// is left to the dump: a process that is not stopped yet may end.
pub(crate) fn check_memory(pid: i32) -> Result<()> {
    let Ok(process) = Process::new(pid) else {
        return Ok(());
    };
    for (_, context) in process.contexts().unwrap_or_default() {
        ensure!(
            !context.lacks_foreign_memory().unwrap_or(false),
            "process {pid} has an arena or a snapshot buffer in its own memory, which could not be \
             restored: load the module with foreign_memory=1"
        );
    }
    let children = process.children().unwrap_or_default();
    children.into_iter().try_for_each(check_memory)
}

/// Returns the process that CRIU's arguments name as the root of the dump. A client of CRIU's service
/// names it in another way.
pub(crate) fn root_of_dump(arguments: impl Iterator<Item = String>) -> Option<i32> {
    let mut arguments =
        arguments.skip_while(|word| !word.starts_with("-t") && !word.starts_with("--tree"));
    let word = arguments.next()?;
    let value = word
        .strip_prefix("--tree")
        .or_else(|| word.strip_prefix("-t"))?;
    match value.strip_prefix('=').unwrap_or(value) {
        "" => arguments.next()?.parse().ok(),
        value => value.parse().ok(),
    }
}

/// Returns the context's index of a line of /proc/PID/maps, if the mapping is of a card's node
/// (`FERMATA_MMAP_OFFSET`).
fn mapped_index(line: &str) -> Option<u32> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, _, offset, _, _, path, ..] = words[..] else {
        return None;
    };
    let number = Path::new(path)
        .file_name()?
        .to_str()?
        .strip_prefix("fermata")?;
    number.parse::<u32>().ok()?;
    let (index, _) = split_offset(u64::from_str_radix(offset, 16).ok()?);
    index
}

/// Splits the offset of a mapping into the index of the context, if the offset has one, and the
/// offset in the arena.
pub(crate) fn split_offset(offset: u64) -> (Option<u32>, u64) {
    const CONTEXT: u64 = 1 << 47;
    let index = (offset / CONTEXT).checked_sub(1);
    (index.map(|index| index as u32), offset % CONTEXT)
}

/// Returns the index of a context's number.
pub(crate) const fn index_of(number: u32) -> u32 {
    number & 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_of_the_dump_is_found() {
        let root = |line: &str| root_of_dump(line.split(' ').map(str::to_owned));
        assert_eq!(root("criu dump -D /tmp -t 12 -v4"), Some(12));
        assert_eq!(root("criu dump --tree 12"), Some(12));
        assert_eq!(root("criu dump --tree=12 -o log"), Some(12));
        assert_eq!(root("criu dump -t12"), Some(12));
        assert_eq!(root("criu swrk 3"), None);
        assert_eq!(root("criu dump -t"), None);
    }

    #[test]
    fn mappings_tell_their_context() {
        let line = |offset: &str, path: &str| {
            mapped_index(&format!("7f00-7f01 rw-s {offset} 00:05 123    {path}"))
        };
        assert_eq!(line("800000000000", "/dev/fermata0"), Some(0));
        assert_eq!(line("1800000003000", "/dev/fermata12"), Some(2));
        assert_eq!(line("800000000000", "/dev/fermata"), None);
        assert_eq!(line("3000", "/tmp/fermata0"), None);
        assert_eq!(mapped_index("7f00-7f01 rw-p 0 00:00 0"), None);
        assert_eq!(split_offset(0x3000), (None, 0x3000));
    }
}
