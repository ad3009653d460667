// SPDX-License-Identifier: GPL-2.0-or-later
//! Where a program is saved: a folder of the job's user, on a file system that all nodes share.

use anyhow::{ensure, Context as _, Result};
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{symlink, DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// The link to the last complete image.
const CURRENT: &str = "current";

/// The images of one task of a job.
pub(crate) struct Images {
    folder: PathBuf,
}

impl Images {
    /// Opens or makes the folder. Nobody but the user may have written there: whoever can write an
    /// image, decides what the program does.
    pub(crate) fn open(folder: PathBuf) -> Result<Self> {
        let name = || folder.display().to_string();
        let made = DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&folder);
        made.with_context(name)?;
        let is = fs::symlink_metadata(&folder).with_context(name)?;
        let user = rustix::process::geteuid().as_raw();
        ensure!(
            is.is_dir() && is.uid() == user && is.mode().trailing_zeros() >= 6,
            "{}: belongs to another user, or is open to others: give another --directory",
            folder.display()
        );
        Ok(Self { folder })
    }

    /// Returns the last complete image.
    pub(crate) fn current(&self) -> Result<Option<PathBuf>> {
        let link = self.folder.join(CURRENT);
        match fs::read_link(&link) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            name => Ok(Some(
                self.folder
                    .join(name.with_context(|| link.display().to_string())?),
            )),
        }
    }

    /// Makes a folder for a new image.
    pub(crate) fn begin(&self) -> Result<PathBuf> {
        let last = self.current()?;
        let names = ["0", "1"].map(|name| self.folder.join(name));
        let [first, second] = names;
        let folder = if last.as_ref() == Some(&first) {
            second
        } else {
            first
        };
        remove(&folder)?;
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.with_context(|| folder.display().to_string())?;
        Ok(folder)
    }

    /// Makes a complete image the last one, at once, and removes the one before.
    pub(crate) fn complete(&self, image: &Path) -> Result<()> {
        let before = self.current()?;
        let new = self.folder.join("new");
        let _ = fs::remove_file(&new);
        let name = image.file_name().context("an image has a name")?;
        symlink(name, &new).and_then(|()| fs::rename(&new, self.folder.join(CURRENT)))?;
        match before {
            Some(before) if before != image => remove(&before),
            _ => Ok(()),
        }
    }

    /// Removes all images: the program has ended.
    pub(crate) fn remove(&self) -> Result<()> {
        remove(&self.folder)
    }
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done.with_context(|| folder.display().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn the_last_complete_image_counts() {
        let top = tempfile::tempdir().unwrap();
        let images = Images::open(top.path().join("job")).unwrap();
        assert_eq!(images.current().unwrap(), None);
        let first = images.begin().unwrap();
        assert_eq!(images.current().unwrap(), None);
        images.complete(&first).unwrap();
        assert_eq!(images.current().unwrap(), Some(first.clone()));
        // One that breaks off.
        let second = images.begin().unwrap();
        assert_ne!(first, second);
        assert_eq!(images.current().unwrap(), Some(first.clone()));
        assert_eq!(images.begin().unwrap(), second);
        images.complete(&second).unwrap();
        assert_eq!(images.current().unwrap(), Some(second));
        assert!(!first.exists());
        images.remove().unwrap();
        assert!(!top.path().join("job").exists());
    }

    #[test]
    fn a_folder_that_others_can_read_or_replace_is_refused() {
        let top = tempfile::tempdir().unwrap();
        let folder = top.path().join("job");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o770)).unwrap();
        assert!(Images::open(folder.clone()).is_err());
        fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
        assert!(Images::open(folder.clone()).is_ok());
        let link = top.path().join("link");
        symlink(&folder, &link).unwrap();
        assert!(Images::open(link).is_err());
    }
}
