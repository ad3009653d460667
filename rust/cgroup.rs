// SPDX-License-Identifier: GPL-2.0

//! The tree of cgroups (version 2), see `rust/cgroup.c`. On a kernel without cgroups every process
//! is in the root.

use kernel::{bindings, error::from_err_ptr, prelude::*};

// SAFETY: The declarations are those of `include/fermata_cgroup.h`. The functions that are declared
// safe may be called with any arguments.
#[expect(
    improper_ctypes,
    reason = "pointers to C structures, some of which are empty in this configuration"
)]
unsafe extern "C" {
    safe fn fermata_cgroup_exit();
    safe fn fermata_cgroup_current() -> *mut bindings::cgroup;
    safe fn fermata_cgroup_of_fd(fd: c_int) -> *mut bindings::cgroup;
    fn fermata_cgroup_put(cgroup: *mut bindings::cgroup);
    fn fermata_cgroup_level(cgroup: *mut bindings::cgroup) -> c_int;
    fn fermata_cgroup_at(cgroup: *mut bindings::cgroup, level: c_int) -> u64;
    fn fermata_cgroup_is_roots(cgroup: *mut bindings::cgroup, level: c_int) -> c_int;
    safe fn fermata_cgroup_lives(number: u64) -> bool;
}

/// A reference to a `struct cgroup`.
///
/// # Invariants
///
/// `self` owns a reference; null where the kernel has no cgroups.
struct Reference(*mut bindings::cgroup);

impl Reference {
    /// Returns the number of cgroups above.
    fn level(&self) -> c_int {
        // SAFETY: The pointer is valid by the type invariant.
        unsafe { fermata_cgroup_level(self.0) }
    }

    /// Returns the numbers of the cgroups from the root down to this one.
    fn lineage(&self) -> Result<KVec<u64>> {
        let own_level = self.level();
        // CAST: a level is not negative.
        let mut numbers = KVec::with_capacity(own_level as usize + 1, GFP_KERNEL_ACCOUNT)?;
        for level in 0..=own_level {
            // SAFETY: The pointer is valid by the type invariant, and `level` is at most its own.
            let number = unsafe { fermata_cgroup_at(self.0, level) };
            numbers.push(number, GFP_KERNEL_ACCOUNT)?;
        }
        Ok(numbers)
    }

    /// Returns the level of the nearest cgroup, this one or one above, whose directory belongs to
    /// the user root of the initial user namespace. May sleep. `ENOMEM`.
    fn nearest_of_root(&self) -> Result<usize> {
        for level in (1..=self.level()).rev() {
            // SAFETY: The pointer is valid by the type invariant, and `level` is at most its own.
            match unsafe { fermata_cgroup_is_roots(self.0, level) } {
                0 => {}
                // CAST: `level` is positive.
                1 => return Ok(level as usize),
                error => return Err(Error::from_errno(error)),
            }
        }
        Ok(0)
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the reference is ours; it is put once, here.
        unsafe { fermata_cgroup_put(self.0) };
    }
}

/// The number of a cgroup, and the numbers of the cgroups above it, which never change. The cgroup
/// may have been removed.
///
/// # Invariants
///
/// `lineage` is not empty.
pub(crate) struct Cgroup {
    /// From the root's number to the cgroup's own.
    lineage: KVec<u64>,
}

impl Cgroup {
    /// Returns the caller's cgroup, and the number of the nearest cgroup, this one or one above,
    /// whose directory belongs to the user root of the initial user namespace. Process context, may
    /// sleep. `ENOMEM`.
    pub(crate) fn current() -> Result<(Self, u64)> {
        // INVARIANT: The reference is ours.
        let reference = Reference(fermata_cgroup_current());
        let lineage = reference.lineage()?;
        let nearest_of_root = lineage[reference.nearest_of_root()?];
        Ok((Self { lineage }, nearest_of_root))
    }

    /// Returns the cgroup of the caller's descriptor `fd`. Process context. `EBADF`: `fd` is not
    /// the directory of a cgroup; `ENOENT`: the cgroup was removed; `ENOMEM`.
    pub(crate) fn of_descriptor(fd: i32) -> Result<Self> {
        // INVARIANT: The reference is ours.
        let reference = Reference(from_err_ptr(fermata_cgroup_of_fd(fd))?);
        Ok(Self {
            lineage: reference.lineage()?,
        })
    }

    /// Returns the number of the cgroup: that of the inode of its directory. A number is never
    /// reused for another cgroup.
    pub(crate) fn number(&self) -> u64 {
        // By the type invariant there is one.
        self.lineage.last().copied().unwrap_or_default()
    }

    /// Returns whether `number` is that of the cgroup or of a cgroup above it.
    pub(crate) fn is_below(&self, number: u64) -> bool {
        self.lineage.contains(&number)
    }

    /// Returns the numbers of the cgroup and of the cgroups above it, the root's last.
    pub(crate) fn lineage(&self) -> impl Iterator<Item = u64> + '_ {
        self.lineage.iter().rev().copied()
    }
}

/// Returns whether there is a cgroup with this number. Must be called by a kworker: other callers
/// find only the cgroups of their own cgroup namespace.
pub(crate) fn lives(number: u64) -> bool {
    fermata_cgroup_lives(number)
}

/// Releases the module's mount of the tree when it is dropped. The module has one such value, and
/// asks for no [`Cgroup`] after it is dropped.
pub(crate) struct Tree(());

impl Tree {
    /// Returns the one value of the module.
    pub(crate) const fn new() -> Self {
        Self(())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        fermata_cgroup_exit();
    }
}
