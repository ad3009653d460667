// SPDX-License-Identifier: GPL-2.0-or-later
//! A file that is there completely or not at all.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{BufWriter, Error, Write};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Mode of a checkpoint: it holds the memory of a program.
const MODE: u32 = 0o600;

/// Makes a file of the bytes that `write` writes, readable by its owner only. On an error, a file that
/// was at the path stays as it was.
///
/// # Errors
///
/// The error of `write`, or the file cannot be written.
pub fn store<T, E: From<Error>>(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<T, E>,
) -> Result<T, E> {
    let unfinished = path.with_extension("unfinished");
    let written = || -> Result<T, E> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(MODE);
        let file = options.open(&unfinished)?;
        file.set_permissions(Permissions::from_mode(MODE))?;
        let mut to = BufWriter::new(file);
        let result = write(&mut to)?;
        to.flush()?;
        to.get_ref().sync_all()?;
        std::fs::rename(&unfinished, path)?;
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(result)
    };
    let written = written();
    if written.is_err() {
        let _ = std::fs::remove_file(&unfinished);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_completely_or_not_at_all() {
        let path = std::env::temp_dir().join(format!("fermata-store-{}.x", std::process::id()));
        let hello = store(&path, |to| to.write_all(b"hello"));
        hello.unwrap();
        let broken = store(&path, |to| {
            to.write_all(b"hell")?;
            Err::<(), _>(Error::other("no"))
        });
        assert_eq!(broken.unwrap_err().to_string(), "no");
        assert_eq!(std::fs::read(&path).unwrap(), b"hello");
        assert!(!path.with_extension("unfinished").exists());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, MODE);
        std::fs::remove_file(&path).unwrap();
    }
}
