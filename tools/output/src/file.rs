// SPDX-License-Identifier: GPL-2.0-or-later
//! Files that are written completely or not at all.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, IntoInnerError, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::NamedTempFile;

/// A file that appears at its path, or replaces the file there, when [`NewFile::complete`] is called.
/// If it is dropped before, nothing has changed. It is opened before the work of which it has the
/// result, so that a path that cannot be written is refused at once.
///
/// The owner alone can read it (mode 0600), because it may have the memory of a program. What is not
/// a regular file, such as /dev/stdout, which is a symbolic link, is written where it is.
#[derive(Debug)]
pub struct NewFile(Form);

#[derive(Debug)]
enum Form {
    /// A temporary file, the path that it gets, and the folder.
    New(BufWriter<NamedTempFile>, PathBuf, File),
    /// A file that is no regular one. It is emptied by the first write.
    Old(BufWriter<File>, bool),
}

impl NewFile {
    /// Opens the file.
    pub fn create(path: &Path) -> io::Result<Self> {
        if fs::symlink_metadata(path).is_ok_and(|there| !there.is_file()) {
            let old = File::options().write(true).open(path)?;
            return Ok(Self(Form::Old(BufWriter::new(old), false)));
        }
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let folder = File::open(parent)?;
        let mut incomplete = incomplete();
        let file = NamedTempFile::new_in(parent)?;
        incomplete.push(std::path::absolute(file.path())?);
        Ok(Self(Form::New(BufWriter::new(file), path.into(), folder)))
    }

    /// Lets all users read the file, whatever the umask is.
    pub fn readable(self) -> io::Result<Self> {
        if let Form::New(to, ..) = &self.0 {
            let file = to.get_ref().as_file();
            file.set_permissions(Permissions::from_mode(0o644))?;
        }
        Ok(self)
    }

    /// Writes the whole contents, and completes the file.
    pub fn fill(mut self, contents: &[u8]) -> io::Result<()> {
        self.write_all(contents)?;
        self.complete()
    }

    /// Writes what is left to the disk, and gives the file its name.
    pub fn complete(self) -> io::Result<()> {
        match self.0 {
            Form::New(to, path, folder) => {
                let file = to.into_inner().map_err(IntoInnerError::into_error)?;
                file.as_file().sync_all()?;
                let temporary = std::path::absolute(file.path())?;
                file.persist(path).map_err(|error| error.error)?;
                incomplete().retain(|path| *path != temporary);
                folder.sync_all()
            }
            Form::Old(mut to, _) => to.flush(),
        }
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Form::New(to, ..) => to.write(bytes),
            Form::Old(to, begun) => {
                if !std::mem::replace(begun, true) {
                    // Terminals and pipes have no length.
                    let _ = to.get_ref().set_len(0);
                }
                to.write(bytes)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Form::New(to, ..) => to.flush(),
            Form::Old(to, _) => to.flush(),
        }
    }
}

/// Temporary files that were created and have no name yet.
fn incomplete() -> MutexGuard<'static, Vec<PathBuf>> {
    static INCOMPLETE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    INCOMPLETE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the process cleanly on SIGINT, SIGTERM and SIGHUP: no incomplete file is left.
pub fn end_on_signals() -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            // While the lock is held, no other thread creates a file or gives one its name.
            let mut incomplete = incomplete();
            for path in incomplete.drain(..) {
                // It may be complete.
                let _ = fs::remove_file(path);
            }
            // It ends the process.
            let _ = emulate_default_handler(signal);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_file_appears_when_it_is_complete_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let count = || fs::read_dir(&folder).unwrap().count();
        let mut file = NewFile::create(&path).unwrap();
        file.write_all(b"hello").unwrap();
        assert!(!path.exists());
        file.complete().unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!((mode & 0o777, count()), (0o600, 1));
        let mut other = NewFile::create(&path).unwrap();
        other.write_all(b"hell").unwrap();
        assert_eq!((fs::read(&path).unwrap(), count()), (b"hello".into(), 2));
        drop(other);
        assert_eq!((fs::read(&path).unwrap(), count()), (b"hello".into(), 1));
        let missing = NewFile::create(&folder.path().join("none/x"));
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_is_no_regular_file_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&path, "longer than before").unwrap();
        symlink(&path, &link).unwrap();
        let mut file = NewFile::create(&link).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"longer than before");
        file.write_all(b"new").unwrap();
        file.complete().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_link(&link).unwrap(), path);
        let mut full = NewFile::create(Path::new("/dev/full")).unwrap();
        full.write_all(b"new").unwrap();
        let error = full.complete().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(NewFile::create(folder.path()).is_err());
    }
}
