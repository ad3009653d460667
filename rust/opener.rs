// SPDX-License-Identifier: GPL-2.0

//! The process that opened a context.
//!
//! Time is shared between groups of cgroups, not users: a user can have as many subordinate users
//! as `/etc/subuid` gives it. So all processes in the root cgroup are one group, whoever their
//! users are.

use crate::{capability, cgroup::Cgroup, charge::Account, sched::GroupKey};
use kernel::{bindings, cred::Credential, current, prelude::*, task::Kuid};

/// A reference to a `struct pid`.
///
/// # Invariants
///
/// The pointer is valid, and `self` owns a reference.
struct Process(*mut bindings::pid);

// SAFETY: A `struct pid` is reference-counted, and may be put on any thread.
unsafe impl Send for Process {}
// SAFETY: `&self` reads the numbers of the `struct pid` only, which never change.
unsafe impl Sync for Process {}

impl Process {
    /// Returns the caller's process.
    fn current() -> Self {
        // SAFETY: The current task is valid, and has a thread group.
        // INVARIANT: `get_task_pid` takes the reference.
        Self(unsafe {
            bindings::get_task_pid(current!().as_ptr(), bindings::pid_type_PIDTYPE_TGID)
        })
    }

    /// Returns the process's number in the caller's pid namespace; 0: it has none there.
    fn number_for_caller(&self) -> i32 {
        // SAFETY: The pointer is valid by the type invariant.
        unsafe { bindings::pid_vnr(self.0) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the reference is ours; it is put once, here.
        unsafe { bindings::put_pid(self.0) };
    }
}

/// A process, its user and its cgroup, at the time of `open()`.
pub(crate) struct Opener {
    process: Process,
    /// The number of the process in the initial pid namespace.
    pub(crate) pid: i32,
    /// The real user of the process.
    user: Kuid,
    /// The user that is charged for the context's memory.
    pub(crate) account: Account,
    pub(crate) cgroup: Cgroup,
    /// The group of the process's contexts if neither its cgroup nor one above is registered: the
    /// nearest cgroup whose directory belongs to root. In other cgroups a user can make as many
    /// cgroups as it likes.
    pub(crate) own_group: GroupKey,
}

impl Opener {
    /// Returns the caller, who opens a file with the credentials `credential`. Process context, may
    /// sleep. `ENOMEM`.
    pub(crate) fn current(credential: &Credential) -> Result<Self> {
        let (cgroup, nearest_of_root) = Cgroup::current()?;
        let own_group = GroupKey(nearest_of_root);
        Ok(Self {
            process: Process::current(),
            pid: current!().group_leader().pid(),
            user: current!().uid(),
            account: Account::new(credential),
            cgroup,
            own_group,
        })
    }

    /// Returns whether both are processes of one user.
    pub(crate) fn is_same_user(&self, other: &Self) -> bool {
        self.user == other.user
    }

    /// Returns whether the caller is a process of the same user.
    pub(crate) fn is_caller(&self) -> bool {
        self.user == current!().uid()
    }

    /// Returns the process's number in the caller's pid namespace. 0: the process has none there,
    /// or is another user's and the caller is not an administrator.
    pub(crate) fn pid_for_caller(&self) -> i32 {
        if !self.is_caller() && !capability::is_administrator() {
            return 0;
        }
        self.process.number_for_caller()
    }
}
