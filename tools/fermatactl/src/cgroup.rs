// SPDX-License-Identifier: GPL-2.0-or-later
//! The groups of contexts: cgroups, whose numbers are the inodes of their directories, and users.

use crate::process;
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where the hierarchy of version 2 is usually mounted.
const ROOT: &str = "/sys/fs/cgroup";

/// Returns where the hierarchy of version 2 is mounted. Systemd's hybrid layout has another place.
pub(crate) fn root() -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mount_in(&mounts).unwrap_or(ROOT).into()
}

fn mount_in(mounts: &str) -> Option<&str> {
    let mut lines = mounts.lines().map(|line| line.split(' '));
    lines.find_map(|mut words| {
        let (place, kind) = (words.nth(1)?, words.next()?);
        (kind == "cgroup2").then_some(place)
    })
}

/// Calls `visit` with the number, the directory and the path of each cgroup below `root`, the mount
/// of the tree, until `visit` breaks.
///
/// Only directories that belong to root are entered: others are in a subtree that root has
/// delegated, where a user can make any number of them.
pub(crate) fn walk(root: &Path, mut visit: impl FnMut(u64, &Path, &str) -> ControlFlow<()>) {
    let mut next = vec![PathBuf::new()];
    while let Some(path) = next.pop() {
        let folder = root.join(&path);
        let Ok(metadata) = fs::symlink_metadata(&folder) else {
            continue;
        };
        let name = format!("/{}", path.to_string_lossy());
        if visit(metadata.ino(), &folder, &name).is_break() {
            return;
        }
        if metadata.uid() != 0 {
            continue;
        }
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                next.push(path.join(entry.file_name()));
            }
        }
    }
}

/// Returns the paths of cgroups below `root`, the mount of the tree, by their numbers.
pub(crate) fn paths(root: &Path, mut wanted: BTreeSet<u64>) -> HashMap<u64, String> {
    let mut found = HashMap::new();
    if wanted.is_empty() {
        return found;
    }
    walk(root, |number, _, path| {
        if wanted.remove(&number) {
            found.insert(number, path.into());
        }
        if wanted.is_empty() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    found
}

/// Returns how the group of a user is called where that of a cgroup has a path.
pub(crate) fn name_of_user(uid: u32) -> String {
    format!("user:{uid}")
}

/// The paths of groups that were looked for.
#[derive(Debug)]
pub(crate) struct Paths {
    root: PathBuf,
    /// By number; `None`: none was found.
    known: HashMap<u64, Option<String>>,
}

impl Default for Paths {
    fn default() -> Self {
        Self::below(&root())
    }
}

impl Paths {
    fn below(root: &Path) -> Self {
        Self {
            root: root.into(),
            known: HashMap::new(),
        }
    }

    /// Looks for the groups of these numbers, once: the path of a cgroup does not change. A
    /// process that is or was in the group helps to find it.
    pub(crate) fn look_for(&mut self, groups: impl Iterator<Item = (u64, Option<u32>)>) {
        let mut wanted = BTreeSet::new();
        for (number, pid) in groups {
            if self.known.contains_key(&number) {
                continue;
            }
            if let Some(uid) = fermata::user_of_group(number) {
                self.known.insert(number, Some(name_of_user(uid)));
                continue;
            }
            match pid.and_then(|pid| self.above(number, &process::cgroup(pid)?)) {
                Some(path) => {
                    self.known.insert(number, Some(path));
                }
                None => {
                    wanted.insert(number);
                }
            }
        }
        let mut found = paths(&self.root, wanted.clone());
        for number in wanted {
            // Another process of the group may have told the path meanwhile.
            let path = self.known.entry(number).or_default();
            *path = path.take().or(found.remove(&number));
        }
    }

    /// Returns the path of a group if it is the cgroup `path` or one above.
    fn above(&self, number: u64, path: &str) -> Option<String> {
        let is_it = |path: &&Path| {
            let path = path.strip_prefix("/").unwrap_or(path);
            let metadata = fs::symlink_metadata(self.root.join(path));
            metadata.is_ok_and(|metadata| metadata.ino() == number)
        };
        let path = Path::new(path);
        // From another cgroup namespace a path begins with `/..`.
        let is_below = !path.components().any(|part| part.as_os_str() == "..");
        let found = path.ancestors().filter(|_| is_below).find(is_it)?;
        Some(found.to_string_lossy().into())
    }

    /// Returns the path of a group that was looked for.
    pub(crate) fn of(&self, number: u64) -> Option<&str> {
        self.known.get(&number)?.as_deref()
    }

    /// Opens the directory of a group that was looked for.
    pub(crate) fn open(&self, number: u64) -> Option<File> {
        let path = self.of(number)?;
        let folder = File::open(self.root.join(path.strip_prefix('/')?)).ok()?;
        let is_it = folder.metadata().ok()?.ino() == number;
        is_it.then_some(folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_is_that_of_version_2() {
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs ro 0 0\n\
            cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0\n\
            cgroup2 /sys/fs/cgroup/unified cgroup2 rw,nsdelegate 0 0\n";
        assert_eq!(mount_in(hybrid), Some("/sys/fs/cgroup/unified"));
        assert_eq!(
            mount_in("cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0"),
            None
        );
    }

    #[test]
    fn numbers_are_those_of_inodes() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        fs::create_dir_all(root.join("a/b")).unwrap();
        let number = |path: &str| fs::metadata(root.join(path)).unwrap().ino();
        let wanted = [number(""), number("a/b"), 1 << 62].into();
        let found = paths(root, wanted);
        // Not root's: the tests run as any user.
        let is_root = fs::metadata(root).unwrap().uid() == 0;
        assert_eq!(found.get(&number("")).map(String::as_str), Some("/"));
        assert_eq!(found.contains_key(&number("a/b")), is_root);

        let mut paths = Paths::below(root);
        assert_eq!(paths.above(number("a"), "/a/b/c"), Some("/a".into()));
        assert_eq!(paths.above(number(""), "/a/b"), Some("/".into()));
        assert_eq!(paths.above(number("a"), "/../a/b"), None);
        let user = 1 << 63 | 1000;
        paths.look_for([(number(""), None), (1 << 62, None), (user, None)].into_iter());
        assert_eq!((paths.of(number("")), paths.of(1 << 62)), (Some("/"), None));
        assert_eq!(paths.of(user), Some("user:1000"));
        assert!(paths.open(number("")).is_some() && paths.open(1 << 62).is_none());
    }
}
