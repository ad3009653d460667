// SPDX-License-Identifier: GPL-2.0

//! Capabilities of the caller, in the initial user namespace. Process context.

use crate::shim::{capable, fermata_locked_down};
use kernel::{bindings, prelude::*};

/// Returns whether the caller has CAP_SYS_ADMIN: it may act on contexts of others, and on the card
/// as a whole.
pub(crate) fn is_administrator() -> bool {
    has(bindings::CAP_SYS_ADMIN)
}

/// Returns whether the caller has CAP_PERFMON or CAP_SYS_ADMIN: it may know what contexts of other
/// users do.
pub(crate) fn may_monitor() -> bool {
    has(bindings::CAP_PERFMON) || is_administrator()
}

/// Returns whether the caller has CAP_SYS_NICE: it may exceed the defaults that everybody has.
pub(crate) fn may_raise() -> bool {
    has(bindings::CAP_SYS_NICE)
}

/// Returns whether the caller has CAP_SYS_RAWIO on a kernel without lockdown: it may let a device
/// access all memory.
pub(crate) fn may_touch_all_memory() -> bool {
    has(bindings::CAP_SYS_RAWIO) && !fermata_locked_down()
}

/// Returns whether the caller has CAP_SYS_RESOURCE: it may have more contexts than its group's
/// limit.
pub(crate) fn has_cap_sys_resource() -> bool {
    has(bindings::CAP_SYS_RESOURCE)
}

/// Returns whether the caller has CAP_IPC_LOCK: it may pin memory whatever RLIMIT_MEMLOCK says.
pub(crate) fn may_lock_memory() -> bool {
    has(bindings::CAP_IPC_LOCK)
}

/// Returns whether the caller has CAP_SYS_ADMIN, or both CAP_CHECKPOINT_RESTORE and CAP_SYS_PTRACE:
/// it may let a card write to the memory of any process.
pub(crate) fn may_restore_memory() -> bool {
    let restores = has(bindings::CAP_CHECKPOINT_RESTORE) && has(bindings::CAP_SYS_PTRACE);
    restores || is_administrator()
}

fn has(capability: u32) -> bool {
    // CAST: a small constant.
    capable(capability as c_int)
}
