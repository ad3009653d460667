// SPDX-License-Identifier: GPL-2.0

//! Who opened a context.
//!
//! Time is shared between groups of cgroups, not users: a user can have as many subordinate users as
//! `/etc/subuid` gives it. So those in the root cgroup are one group, whoever they are.

use crate::{capability, cgroup::Cgroup, charge::Account, sched::GroupKey, shim};
use kernel::{bindings, prelude::*};

/// A process, its user and its cgroup, at the time of `open()`.
///
/// # Invariants
///
/// `process` owns a reference of a `struct pid`.
pub(crate) struct Opener {
    process: *mut bindings::pid,
    /// The same, in the initial pid namespace.
    pub(crate) pid: i32,
    /// In the initial user namespace.
    uid: u32,
    /// Who pays for its memory.
    pub(crate) account: Account,
    /// Its cgroup.
    pub(crate) cgroup: Cgroup,
    /// The group of contexts where no cgroup above is registered: the nearest cgroup whose directory
    /// is root's. In the others a user can make as many cgroups as it likes.
    pub(crate) own_group: GroupKey,
}

// SAFETY: A `struct pid` is reference-counted and never changes.
unsafe impl Send for Opener {}
// SAFETY: As above.
unsafe impl Sync for Opener {}

impl Opener {
    /// The caller. Process context, may sleep. `ENOMEM`.
    pub(crate) fn current() -> Result<Self> {
        let cgroup = Cgroup::current();
        let own_group = GroupKey(cgroup.nearest_of_root()?);
        // SAFETY: No requirement.
        let process = unsafe { shim::fermata_get_current_tgid() };
        // INVARIANT: The reference is ours.
        Ok(Self {
            process,
            // SAFETY: The reference was just taken.
            pid: unsafe { shim::fermata_pid_nr(process) },
            uid: current_uid(),
            account: Account::current(),
            cgroup,
            own_group,
        })
    }

    /// Whether both are processes of one user.
    pub(crate) fn is_same_user(&self, other: &Self) -> bool {
        self.uid == other.uid
    }

    /// Whether it is the caller's user.
    pub(crate) fn is_caller(&self) -> bool {
        self.uid == current_uid()
    }

    /// The process in the caller's pid namespace. 0: it is not there, or it is another user's and
    /// the caller is no administrator.
    pub(crate) fn pid_for_caller(&self) -> i32 {
        if !self.is_caller() && !capability::is_administrator() {
            return 0;
        }
        // SAFETY: By the type invariant.
        unsafe { bindings::pid_vnr(self.process) }
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::put_pid(self.process) };
    }
}

/// The caller's user, in the initial user namespace.
fn current_uid() -> u32 {
    // SAFETY: No requirement.
    unsafe { shim::fermata_current_uid() }
}
