// SPDX-License-Identifier: GPL-2.0-or-later
//! What CRIU's images have of a context, besides the checkpoint of its job.

use anyhow::{Context as _, Result};
use fermata_checkpoint::Absent;
use rustix::fs::{openat, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufReader, Write};
use std::path::PathBuf;

/// A file of a card.
#[derive(Serialize, Deserialize)]
pub(crate) struct Record {
    /// The node.
    pub(crate) node: PathBuf,
    /// Whether the file is `O_NONBLOCK`.
    pub(crate) nonblocking: bool,
    /// The context, if it was set up.
    pub(crate) context: Option<ContextRecord>,
}

/// A context that was set up. Its checkpoint is in a file of its own.
#[derive(Serialize, Deserialize)]
pub(crate) struct ContextRecord {
    /// The context's number, by which mappings are found.
    pub(crate) number: u32,
    /// The real user of the process.
    pub(crate) user: u32,
    /// The slots that the context might use, one bit each.
    pub(crate) slots: u64,
    /// The outcome of its jobs.
    pub(crate) past: Past,
    /// Whether the job was held by the dump, and not by its program.
    pub(crate) resumes: bool,
    /// `FERMATA_START_REPLAYABLE` of its job.
    pub(crate) start_flags: u32,
    /// The values of results that were known.
    pub(crate) results: Vec<(u32, u64)>,
    /// Members of a gang of the card have the same number; 0: not in a gang.
    pub(crate) gang: u32,
    /// Nanoseconds until the time of its hint; 0: there was no hint.
    #[serde(default)]
    pub(crate) hint_ns: u64,
    /// Parts that are restored when a process is complete.
    pub(crate) late: Option<Late>,
}

/// Jobs that have ended: members of `struct fermata_status`.
#[derive(Serialize, Deserialize)]
pub(crate) struct Past {
    pub(crate) state: u32,
    pub(crate) error: u32,
    pub(crate) finished: u64,
    pub(crate) failed: u64,
    pub(crate) fault_addr: u64,
    pub(crate) fault_flags: u32,
}

/// Parts of a context that are restored when the process that has them is complete.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Late {
    /// The process, by its number in its own pid namespace.
    pub(crate) process: i32,
    /// The eventfd of the context.
    pub(crate) eventfd: Option<EventfdRecord>,
    /// The arena, if it is the process's own memory.
    pub(crate) arena: Option<OwnArena>,
    /// The snapshot buffer, if it is the process's own memory.
    pub(crate) snapshot: Option<OwnMemory>,
}

impl Late {
    /// Returns the memory that the context lacks until the process is complete.
    pub(crate) fn absent(&self) -> Absent {
        Absent {
            arena: self.arena.is_some(),
            snapshot: self.snapshot.is_some(),
        }
    }
}

/// An eventfd.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct EventfdRecord {
    /// `FERMATA_EVENT_*` that are signalled.
    pub(crate) events: u32,
    /// Its descriptor.
    pub(crate) number: i32,
}

/// Memory of a process.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct OwnMemory {
    pub(crate) address: u64,
    pub(crate) length: u64,
}

/// An arena of a process's memory.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct OwnArena {
    pub(crate) memory: OwnMemory,
    /// Its device address.
    pub(crate) base: u64,
}

/// The two files of a context.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    Record,
    Checkpoint,
}

fn name(id: i32, part: Part) -> String {
    match part {
        Part::Record => format!("fermata-{id}.json"),
        Part::Checkpoint => format!("fermata-{id}.img"),
    }
}

/// Makes a file of the context `id` among CRIU's images.
pub(crate) fn create(id: i32, part: Part) -> Result<File> {
    let name = name(id, part);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let file = openat(
        crate::image_folder()?,
        &name,
        flags,
        Mode::RUSR | Mode::WUSR,
    );
    Ok(File::from(file.with_context(|| name)?))
}

/// Opens a file of the context `id`. `None`: there is no such file.
pub(crate) fn open(id: i32, part: Part) -> Result<Option<File>> {
    let name = name(id, part);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    match openat(crate::image_folder()?, &name, flags, Mode::empty()) {
        Ok(file) => Ok(Some(File::from(file))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error).context(name),
    }
}

impl Record {
    /// Writes the record of the context `id`.
    pub(crate) fn store(&self, id: i32) -> Result<()> {
        let mut file = create(id, Part::Record)?;
        serde_json::to_writer_pretty(&file, self)?;
        Ok(file.write_all(b"\n")?)
    }

    /// Reads the record of the context `id`. `None`: the file `id` is not a card's.
    pub(crate) fn load(id: i32) -> Result<Option<Self>> {
        let Some(file) = open(id, Part::Record)? else {
            return Ok(None);
        };
        let record = serde_json::from_reader(BufReader::new(file));
        record.map(Some).with_context(|| name(id, Part::Record))
    }
}
