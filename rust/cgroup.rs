// SPDX-License-Identifier: GPL-2.0

//! The tree of cgroups (version 2), see `rust/cgroup.c`. Where there is none, everybody is in the root.

use kernel::{bindings, error::from_err_ptr, prelude::*};

#[expect(
    improper_ctypes,
    reason = "pointers to C structures, some of which are empty in this configuration"
)]
extern "C" {
    fn fermata_cgroup_exit();
    fn fermata_cgroup_current() -> *mut bindings::cgroup;
    fn fermata_cgroup_of_fd(fd: c_int) -> *mut bindings::cgroup;
    fn fermata_cgroup_put(cgroup: *mut bindings::cgroup);
    fn fermata_cgroup_level(cgroup: *mut bindings::cgroup) -> c_int;
    fn fermata_cgroup_at(cgroup: *mut bindings::cgroup, level: c_int) -> u64;
    fn fermata_cgroup_is_roots(cgroup: *mut bindings::cgroup, level: c_int) -> c_int;
    fn fermata_cgroup_lives(number: u64) -> bool;
}

/// A cgroup. That there is one of these does not keep its directory from being removed.
///
/// # Invariants
///
/// Owns a reference of the `struct cgroup`; null where the kernel has no cgroups.
pub(crate) struct Cgroup(*mut bindings::cgroup);

// SAFETY: A `struct cgroup` is reference-counted; its number, its level and those above it never
// change.
unsafe impl Send for Cgroup {}
// SAFETY: As for `Send`.
unsafe impl Sync for Cgroup {}

impl Cgroup {
    /// The caller's. Process context.
    pub(crate) fn current() -> Self {
        // INVARIANT: The reference is ours.
        // SAFETY: No requirement.
        Self(unsafe { fermata_cgroup_current() })
    }

    /// The cgroup of the descriptor `fd` of the caller. Process context. `EBADF`: it is no directory of a
    /// cgroup; `ENOENT`: the cgroup was removed.
    pub(crate) fn of_descriptor(fd: i32) -> Result<Self> {
        // INVARIANT: The reference is ours.
        // SAFETY: No requirement.
        from_err_ptr(unsafe { fermata_cgroup_of_fd(fd) }).map(Self)
    }

    /// Its number: that of the inode of its directory. Never used again for another cgroup.
    pub(crate) fn number(&self) -> u64 {
        self.number_at(self.level())
    }

    /// The numbers of itself and of those above it, the root's last.
    pub(crate) fn lineage(&self) -> impl Iterator<Item = u64> + '_ {
        (0..=self.level()).rev().map(|level| self.number_at(level))
    }

    /// The number of the nearest of them whose directory belongs to the user root of the initial user
    /// namespace. Process context, may sleep. `ENOMEM`.
    pub(crate) fn nearest_of_root(&self) -> Result<u64> {
        for level in (1..=self.level()).rev() {
            // SAFETY: By the type invariant; `level` is not below its own.
            match unsafe { fermata_cgroup_is_roots(self.0, level) } {
                0 => {}
                1 => return Ok(self.number_at(level)),
                error => return Err(Error::from_errno(error)),
            }
        }
        Ok(self.number_at(0))
    }

    /// How many are above it.
    fn level(&self) -> c_int {
        // SAFETY: By the type invariant.
        unsafe { fermata_cgroup_level(self.0) }
    }

    fn number_at(&self, level: c_int) -> u64 {
        // SAFETY: By the type invariant; the callers' levels are not below its own.
        unsafe { fermata_cgroup_at(self.0, level) }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { fermata_cgroup_put(self.0) };
    }
}

/// Whether there is a cgroup of this number. From a work item: elsewhere only those of the caller's
/// cgroup namespace are found.
pub(crate) fn lives(number: u64) -> bool {
    // SAFETY: No requirement.
    unsafe { fermata_cgroup_lives(number) }
}

/// Gives back, when it is dropped, what this file has of the kernel. One, for the module; no
/// [`Cgroup`] is asked for after it.
pub(crate) struct Tree(());

impl Tree {
    /// The one.
    pub(crate) const fn new() -> Self {
        Self(())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // SAFETY: The module ends.
        unsafe { fermata_cgroup_exit() };
    }
}
