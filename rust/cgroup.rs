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
    safe fn fermata_cgroup_current() -> *mut bindings::cgroup;
    safe fn fermata_cgroup_of_fd(fd: c_int) -> *mut bindings::cgroup;
    fn fermata_cgroup_put(cgroup: *mut bindings::cgroup);
    fn fermata_cgroup_level(cgroup: *mut bindings::cgroup) -> c_int;
    fn fermata_cgroup_at(cgroup: *mut bindings::cgroup, level: c_int) -> u64;
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
    /// Returns the caller's cgroup. Process context, may sleep. `ENOMEM`.
    pub(crate) fn current() -> Result<Self> {
        // INVARIANT: The reference is ours.
        let reference = Reference(fermata_cgroup_current());
        Ok(Self {
            lineage: reference.lineage()?,
        })
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

    /// Returns the number of the cgroup that is directly below cgroup `number` on the way to this
    /// one; `number` if it is this one.
    pub(crate) fn child_below(&self, number: u64) -> u64 {
        let mut below = self.lineage.iter().skip_while(|&&at| at != number).skip(1);
        below.next().copied().unwrap_or(number)
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
