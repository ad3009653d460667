// SPDX-License-Identifier: GPL-2.0
//! The driver's tracepoints, recorded by a tracing instance of our own: nobody else's trace is disturbed, and theirs not ours.

use crate::trouble::{Result, Trouble};
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

const FOLDERS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// A tracing instance that records; it is removed when it is dropped.
pub(crate) struct Instance {
    folder: PathBuf,
    /// Gone before the folder is.
    pipe: Option<File>,
}

impl Instance {
    /// Begins to record all events of the driver, in `buffer` KiB for each processor, with times of `CLOCK_MONOTONIC`.
    pub(crate) fn new(buffer: u32) -> Result<Self> {
        let folder = tracing_folder()?.join(format!("instances/fermatactl-{}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| refused(&folder, &error))?;
        // From here on its drop removes it.
        let mut instance = Self { folder, pipe: None };
        instance.put("buffer_size_kb", &buffer.to_string())?;
        instance.put("trace_clock", "mono")?;
        let path = instance.folder.join("trace_pipe");
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let pipe = rustix::fs::open(&path, flags, Mode::empty());
        let pipe = pipe.map_err(|error| refused(&path, &error.into()))?;
        instance.pipe = Some(pipe.into());
        instance.put("events/fermata/enable", "1")?;
        Ok(instance)
    }

    fn put(&self, file: &str, text: &str) -> Result<()> {
        let path = self.folder.join(file);
        fs::write(&path, text).map_err(|error| refused(&path, &error))
    }

    /// Records no more; what was recorded can still be read.
    pub(crate) fn stop(&self) -> Result<()> {
        self.put("events/fermata/enable", "0")
    }

    /// Reads what was recorded since; 0: nothing now.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        let path = self.folder.join("trace_pipe");
        let Some(pipe) = &mut self.pipe else {
            return Ok(0);
        };
        match pipe.read(into) {
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Ok(0)
            }
            read => read.map_err(|error| refused(&path, &error)),
        }
    }

    /// How many events were overwritten before they could be read, or had no room.
    pub(crate) fn lost(&self) -> Result<u64> {
        let path = self.folder.join("per_cpu");
        let processors = fs::read_dir(&path).map_err(|error| refused(&path, &error))?;
        let mut lost = 0;
        for processor in processors.flatten() {
            let path = processor.path().join("stats");
            let stats = fs::read_to_string(&path).map_err(|error| refused(&path, &error))?;
            lost += lost_of(&stats);
        }
        Ok(lost)
    }
}

fn lost_of(stats: &str) -> u64 {
    let lines = stats.lines().filter_map(|line| line.split_once(": "));
    let lost = lines.filter(|(what, _)| matches!(*what, "overrun" | "dropped events"));
    lost.filter_map(|(_, count)| count.parse::<u64>().ok())
        .sum()
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.pipe = None;
        // Nothing can be done about it, and the next reboot removes it.
        let _ = fs::remove_dir(&self.folder);
    }
}

fn tracing_folder() -> Result<&'static Path> {
    let folders = FOLDERS.map(Path::new);
    let Some(folder) = folders
        .into_iter()
        .find(|folder| folder.join("instances").exists())
    else {
        return Err(if rustix::process::geteuid().is_root() {
            Trouble::new(
                "there is no tracefs",
                "mount it: `mount -t tracefs nodev /sys/kernel/tracing`",
            )
        } else {
            Trouble::new(
                "tracepoints are not to be seen",
                "only root may: run it as root",
            )
        });
    };
    if !folder.join("events/fermata").exists() {
        return Err(Trouble::new(
            "the driver has no tracepoints",
            "the module fermata is not loaded (`modprobe fermata`), or the kernel was built without CONFIG_TRACEPOINTS",
        ));
    }
    Ok(folder)
}

fn refused(path: &Path, error: &std::io::Error) -> Trouble {
    let advice = match error.kind() {
        ErrorKind::PermissionDenied => "only root may trace: run it as root",
        ErrorKind::OutOfMemory => "there is not so much memory: give a smaller --buffer",
        _ => "tracefs does not do what it should: `dmesg` may say why",
    };
    Trouble::new(format!("{}: {error}", path.display()), advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_events_are_added_up() {
        let stats = "entries: 5\noverrun: 7\ncommit overrun: 0\nbytes: 100\ndropped events: 2\nread events: 9\n";
        assert_eq!(lost_of(stats), 9);
    }
}
