// SPDX-License-Identifier: GPL-2.0

//! Capabilities of the caller, in the initial user namespace. Process context.

use crate::shim::{capable, fermata_capable_noaudit, fermata_locked_down};
use kernel::{bindings, prelude::*};

/// What security modules log if the caller lacks the capability.
#[derive(Clone, Copy)]
pub(crate) enum Audit {
    /// A denial: the call fails.
    Denial,
    /// Nothing: the call succeeds, with fewer answers or with other limits.
    Nothing,
}

/// Returns whether the caller has CAP_SYS_ADMIN: it may act on contexts of others, and on the card
/// as a whole.
pub(crate) fn is_administrator(audit: Audit) -> bool {
    has(bindings::CAP_SYS_ADMIN, audit)
}

/// Returns whether the caller has CAP_PERFMON or CAP_SYS_ADMIN: it may know what contexts of other
/// users do.
pub(crate) fn may_monitor(audit: Audit) -> bool {
    has(bindings::CAP_PERFMON, audit) || is_administrator(audit)
}

/// Returns whether the caller has CAP_SYS_NICE: it may exceed the defaults that everybody has.
pub(crate) fn may_raise(audit: Audit) -> bool {
    has(bindings::CAP_SYS_NICE, audit)
}

/// Returns whether the caller has CAP_SYS_RAWIO on a kernel without lockdown: it may let a device
/// access all memory.
pub(crate) fn may_touch_all_memory() -> bool {
    has(bindings::CAP_SYS_RAWIO, Audit::Denial) && !fermata_locked_down()
}

/// Returns whether the caller has CAP_SYS_RESOURCE: it may have more contexts than its group's
/// limit.
pub(crate) fn has_cap_sys_resource() -> bool {
    has(bindings::CAP_SYS_RESOURCE, Audit::Denial)
}

/// Returns whether the caller has CAP_IPC_LOCK: it may pin memory whatever RLIMIT_MEMLOCK says.
pub(crate) fn may_lock_memory(audit: Audit) -> bool {
    has(bindings::CAP_IPC_LOCK, audit)
}

/// Returns whether the caller has CAP_SYS_ADMIN, or both CAP_CHECKPOINT_RESTORE and CAP_SYS_PTRACE:
/// it may let a card write to the memory of any process.
pub(crate) fn may_restore_memory() -> bool {
    let has = |capability| has(capability, Audit::Denial);
    let restores = has(bindings::CAP_CHECKPOINT_RESTORE) && has(bindings::CAP_SYS_PTRACE);
    restores || is_administrator(Audit::Denial)
}

fn has(capability: u32, audit: Audit) -> bool {
    // CAST: a small constant.
    let capability = capability as c_int;
    match audit {
        Audit::Denial => capable(capability),
        Audit::Nothing => fermata_capable_noaudit(capability),
    }
}
