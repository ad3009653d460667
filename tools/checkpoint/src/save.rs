// SPDX-License-Identifier: GPL-2.0-or-later
//! Writes a checkpoint of a context, and stores files either completely or not at all.

use crate::container::{Kind, Writer, SECTION_MAX};
use crate::content::{Description, Job};
use fermata::{Arena, Context};
use std::fs::{self, File};
use std::io::{self, BufWriter, IntoInnerError, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::NamedTempFile;

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

/// Creates a file of the bytes that `write` writes. Only the owner can read the file (mode 0600),
/// because a checkpoint holds the memory of a program. After an error, a file that was already at
/// the path is unchanged.
///
/// # Errors
///
/// The error of `write`; the file cannot be written; or the path is not a regular file, such as
/// /dev/null, which root would replace.
pub fn store<T, E: From<io::Error>>(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<NamedTempFile>) -> Result<T, E>,
) -> Result<T, E> {
    if fs::symlink_metadata(path).is_ok_and(|there| !there.is_file()) {
        return Err(io::Error::other("not a regular file").into());
    }
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let folder = File::open(parent)?;
    let file = {
        let mut incomplete = incomplete();
        let file = NamedTempFile::new_in(parent)?;
        *incomplete = Some(std::path::absolute(file.path())?);
        file
    };
    let mut to = BufWriter::new(file);
    let result = write(&mut to)?;
    let file = to.into_inner().map_err(IntoInnerError::into_error)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    *incomplete() = None;
    folder.sync_all()?;
    Ok(result)
}

/// The path of the file that [`store`] is writing.
fn incomplete() -> MutexGuard<'static, Option<PathBuf>> {
    static INCOMPLETE: Mutex<Option<PathBuf>> = Mutex::new(None);
    INCOMPLETE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the incomplete file of a [`store`] that another thread does, and keeps that thread from
/// making another one. The process must end now.
pub fn forget_incomplete() {
    let mut incomplete = incomplete();
    if let Some(path) = incomplete.take() {
        // It may have been completed.
        let _ = fs::remove_file(path);
    }
    std::mem::forget(incomplete);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_file_is_replaced_completely_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let hello = store(&path, |to| to.write_all(b"hello"));
        hello.unwrap();
        let broken = store(&path, |to| {
            to.write_all(b"hell")?;
            Err::<(), _>(io::Error::other("no"))
        });
        assert_eq!(broken.unwrap_err().to_string(), "no");
        assert_eq!(fs::read(&path).unwrap(), b"hello");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn only_a_regular_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "kept").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [&link, folder.path(), Path::new("/dev/null")] {
            let error = store(path, |to| to.write_all(b"new")).unwrap_err();
            assert_eq!(error.to_string(), "not a regular file");
        }
        assert_eq!(fs::read_link(&link).unwrap(), file);
        assert_eq!(fs::read(&file).unwrap(), b"kept");
    }
}
