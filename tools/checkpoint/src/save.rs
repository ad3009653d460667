// SPDX-License-Identifier: GPL-2.0-or-later
//! Writes a checkpoint of a context.

use crate::container::{Kind, Writer, SECTION_MAX};
use crate::content::{Description, Job};
use fermata::{Arena, Context};
use fermata_output::file::NewFile;
use std::fs;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

/// Why a context was not saved.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The driver refuses a call.
    #[error("{0}: {1}")]
    Driver(&'static str, #[source] fermata::Error),
    /// The job is not held.
    #[error("the job is not held: its state would change while it is read")]
    NotHeld,
    /// The checkpoint cannot be written.
    #[error("the checkpoint cannot be written: {0}")]
    Output(#[from] io::Error),
}

/// Returns a function that adds the name of a call to the driver's error.
pub(crate) fn at(step: &'static str) -> impl Fn(fermata::Error) -> SaveError {
    move |error| SaveError::Driver(step, error)
}

/// Writes the checkpoint of a context whose job is held, or that has no job. `arena` is the whole
/// arena, mapped. Returns the size of the checkpoint.
pub fn save(context: &Context, arena: Option<&Arena>, to: impl Write) -> Result<u64, SaveError> {
    let description = describe(context)?;
    let mut writer = Writer::new(to)?;
    writer.section(Kind::Description, 0, &description.to_bytes())?;
    write_state(context, &description, &mut writer)?;
    if let Some(arena) = arena {
        for part in arena_parts(arena) {
            let bytes = arena.read(part.start, part.len());
            // A new arena has zeros, so zeros are left out.
            if bytes.iter().any(|&byte| byte != 0) {
                writer.section(Kind::Arena, part.start as u64, &bytes)?;
            }
        }
    }
    check_still(context, &description)?;
    Ok(writer.end()?.1)
}

/// Checks that no job has run since `description` was made. The owner may have resumed the job or
/// started another one, so that the arena was copied while it changed.
pub(crate) fn check_still(context: &Context, description: &Description) -> Result<(), SaveError> {
    let now = describe(context)?;
    let is_same = now.job == description.job && now.account.slices == description.account.slices;
    is_same.then_some(()).ok_or(SaveError::NotHeld)
}

/// Returns the description of a context whose job is held, or that has no job.
pub(crate) fn describe(context: &Context) -> Result<Description, SaveError> {
    Description::of(context).map_err(|error| match error {
        fermata::Error::Busy => SaveError::NotHeld,
        error => at("the context cannot be described")(error),
    })
}

/// Writes the engine's state, if the job has one.
pub(crate) fn write_state<W: Write>(
    context: &Context,
    description: &Description,
    writer: &mut Writer<W>,
) -> Result<(), SaveError> {
    if description.job != Job::Saved {
        return Ok(());
    }
    for part in parts(description.state_bytes as usize, SECTION_MAX) {
        let mut bytes = vec![0; part.len()];
        let read = context.read_snapshot(part.start as u64, &mut bytes);
        read.map_err(at("the state cannot be read"))?;
        writer.section(Kind::State, part.start as u64, &bytes)?;
    }
    Ok(())
}

/// Length of the sections of an arena; a migration compares and sends whole sections.
const ARENA_PART: usize = 64 << 10;

/// Returns the sections of an arena.
pub(crate) fn arena_parts(arena: &Arena) -> impl Iterator<Item = Range<usize>> {
    parts(arena.length(), ARENA_PART)
}

/// Divides `length` bytes into ranges.
fn parts(length: usize, part: usize) -> impl Iterator<Item = Range<usize>> {
    let starts = (0..length).step_by(part);
    starts.map(move |start| start..length.min(start + part))
}

/// Opens the file for a checkpoint, before a job is held for it.
///
/// # Errors
///
/// The file cannot be written, or the path is not a regular file.
pub fn create(path: &Path) -> io::Result<NewFile> {
    if fs::symlink_metadata(path).is_ok_and(|there| !there.is_file()) {
        return Err(io::Error::other("not a regular file"));
    }
    NewFile::create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "kept").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [&link, folder.path(), Path::new("/dev/null")] {
            assert_eq!(create(path).unwrap_err().to_string(), "not a regular file");
        }
        assert_eq!(fs::read(&file).unwrap(), b"kept");
    }
}
