// SPDX-License-Identifier: GPL-2.0

//! The process that opened a context.

use crate::{
    capability::{self, Audit},
    cgroup::Cgroup,
    charge::Account,
    scheduler::GroupKey,
    shim::fermata_responsible_user,
    uapi,
};
use kernel::{bindings, cred::Credential, current, prelude::*, sync::rcu, task::Kuid};

/// Returns the group of a user of the initial user namespace.
pub(crate) fn group_of_user(uid: u32) -> GroupKey {
    GroupKey(uapi::USER_GROUP | u64::from(uid))
}

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

    /// Returns whether the process has not ended and been waited for. After that, its numbers may
    /// be given to another process.
    fn exists(&self) -> bool {
        let _guard = rcu::read_lock();
        // SAFETY: The pointer is valid by the type invariant. The task is only compared with null.
        !unsafe { bindings::pid_task(self.0, bindings::pid_type_PIDTYPE_TGID) }.is_null()
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
    /// The number that the process had in the initial pid namespace when it opened the context.
    pub(crate) first_pid: i32,
    /// The real user of the process.
    user: Kuid,
    /// The user that is charged for the context's memory.
    pub(crate) account: Account,
    pub(crate) cgroup: Cgroup,
    /// The group of the process's contexts if neither its cgroup nor one above is registered: that
    /// of the user who answers for it, so that subordinate users do not multiply.
    pub(crate) user_group: GroupKey,
}

impl Opener {
    /// Returns the caller, who opens a file with the credentials `credential`. Process context, may
    /// sleep. `ENOMEM`.
    pub(crate) fn current(credential: &Credential) -> Result<Self> {
        Ok(Self {
            process: Process::current(),
            first_pid: current!().group_leader().pid(),
            user: current!().uid(),
            account: Account::new(credential),
            cgroup: Cgroup::current()?,
            user_group: group_of_user(fermata_responsible_user()),
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

    /// Returns the process's number in the initial pid namespace. 0: the process is gone.
    pub(crate) fn pid(&self) -> i32 {
        match self.process.exists() {
            true => self.first_pid,
            false => 0,
        }
    }

    /// Returns the process's number in the caller's pid namespace. 0: the process is gone, has no
    /// number there, or is another user's and the caller is not an administrator.
    pub(crate) fn pid_for_caller(&self) -> i32 {
        let may_know = self.is_caller() || capability::is_administrator(Audit::Nothing);
        match may_know && self.process.exists() {
            true => self.process.number_for_caller(),
            false => 0,
        }
    }
}
