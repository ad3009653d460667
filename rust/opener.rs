// SPDX-License-Identifier: GPL-2.0

//! Who opened a context.

use crate::{capability, charge::Account, sched::GroupKey, shim};
use kernel::bindings;

/// A process, its user and its group, at the time of `open()`.
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
    /// Whose part of the card's time it uses.
    pub(crate) group: GroupKey,
}

// SAFETY: A `struct pid` is reference-counted and never changes.
unsafe impl Send for Opener {}
// SAFETY: As above.
unsafe impl Sync for Opener {}

impl Opener {
    /// The caller. Process context.
    pub(crate) fn current() -> Self {
        // SAFETY: No requirement.
        let process = unsafe { shim::fermata_get_current_tgid() };
        // INVARIANT: The reference is ours.
        Self {
            process,
            // SAFETY: The reference was just taken.
            pid: unsafe { shim::fermata_pid_nr(process) },
            uid: current_uid(),
            account: Account::current(),
            group: current_group(),
        }
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

/// Marks the key of a user's group; cgroups' numbers do not come so far.
const USER: u64 = 1 << 63;

/// The group of the caller's work: its cgroup or, where that is the root, its user.
fn current_group() -> GroupKey {
    // SAFETY: No requirement.
    match unsafe { shim::fermata_current_cgroup() } {
        0 => GroupKey(USER | u64::from(current_uid())),
        cgroup => GroupKey(cgroup & !USER),
    }
}
