// SPDX-License-Identifier: GPL-2.0-or-later
//! A file that is there completely or not at all.

use std::fs::{self, File};
use std::io::{BufWriter, Error, IntoInnerError};
use std::path::Path;
use tempfile::NamedTempFile;

/// Makes a file of the bytes that `write` writes. Only the owner can read the file (mode 0600),
/// because a checkpoint holds the memory of a program. On an error, a file that was at the path stays
/// as it was.
///
/// # Errors
///
/// The error of `write`; the file cannot be written; or something is at the path that is not a
/// regular file, as /dev/null is, which root would replace.
pub fn store<T, E: From<Error>>(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<NamedTempFile>) -> Result<T, E>,
) -> Result<T, E> {
    if fs::symlink_metadata(path).is_ok_and(|there| !there.is_file()) {
        return Err(Error::other("not a regular file").into());
    }
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let folder = File::open(parent)?;
    let mut to = BufWriter::new(NamedTempFile::new_in(parent)?);
    let result = write(&mut to)?;
    let file = to.into_inner().map_err(IntoInnerError::into_error)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    folder.sync_all()?;
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_file_is_replaced_completely_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let hello = store(&path, |to| to.write_all(b"hello"));
        hello.unwrap();
        let broken = store(&path, |to| {
            to.write_all(b"hell")?;
            Err::<(), _>(Error::other("no"))
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
