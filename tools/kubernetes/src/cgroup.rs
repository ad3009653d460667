// SPDX-License-Identifier: GPL-2.0-or-later
//! The cgroups that the kubelet makes for pods.

use anyhow::{bail, Result};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The qualities of service that have a cgroup of their own; a pod that is guaranteed its resources
/// is beside them.
const CLASSES: [&str; 2] = ["burstable", "besteffort"];

/// Whether a text can be a UID, which is part of the names of cgroups. Static pods have hashes.
pub(crate) fn is_uid(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Returns where the cgroup of a pod may be below the cgroup that the kubelet has. No other folder
/// is looked into: a container may own folders farther below.
fn places(root: &Path, uid: &str) -> Vec<PathBuf> {
    // By systemd, which uses `-` for levels, and by the kubelet alone.
    let slice = uid.replace('-', "_");
    let mut places = vec![
        root.join(format!("kubepods.slice/kubepods-pod{slice}.slice")),
        root.join(format!("kubepods/pod{uid}")),
    ];
    for class in CLASSES {
        places.push(root.join(format!(
            "kubepods.slice/kubepods-{class}.slice/kubepods-{class}-pod{slice}.slice"
        )));
        places.push(root.join(format!("kubepods/{class}/pod{uid}")));
    }
    places
}

/// Opens the folder of a pod's cgroup. `None`: there is no such pod.
pub(crate) fn open(root: &Path, uid: &str) -> Result<Option<File>> {
    for place in places(root, uid) {
        match File::open(&place) {
            Ok(folder) => return Ok(Some(folder)),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => bail!("{}: {error}", place.display()),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn pods_are_found_where_each_driver_of_cgroups_puts_them() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let made = [
            ("0-1", "kubepods.slice/kubepods-pod0_1.slice"),
            (
                "0-2",
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0_2.slice",
            ),
            ("0-3", "kubepods/pod0-3"),
            ("0-4", "kubepods/besteffort/pod0-4"),
        ];
        for (uid, path) in made {
            assert!(open(root, uid).unwrap().is_none());
            fs::create_dir_all(root.join(path)).unwrap();
            let found = open(root, uid).unwrap().unwrap().metadata().unwrap();
            assert_eq!(found.ino(), root.join(path).metadata().unwrap().ino());
        }
        assert!(open(root, "0-5").unwrap().is_none());
    }
}
