// SPDX-License-Identifier: GPL-2.0

//! What the caller may do, in the initial user namespace. Process context.

use crate::shim;
use kernel::{bindings, prelude::*};

/// CAP_SYS_ADMIN: act on contexts of others, and on the card as a whole.
pub(crate) fn is_administrator() -> bool {
    has(bindings::CAP_SYS_ADMIN)
}

/// CAP_PERFMON or CAP_SYS_ADMIN: know what contexts of other users do.
pub(crate) fn may_monitor() -> bool {
    has(bindings::CAP_PERFMON) || is_administrator()
}

/// CAP_SYS_NICE: take more than what everybody has by default.
pub(crate) fn may_raise() -> bool {
    has(bindings::CAP_SYS_NICE)
}

/// CAP_SYS_RAWIO, on a kernel without lockdown: let a device touch all memory.
pub(crate) fn may_touch_all_memory() -> bool {
    // SAFETY: No requirement.
    has(bindings::CAP_SYS_RAWIO) && !unsafe { shim::fermata_locked_down() }
}

/// CAP_SYS_RESOURCE: have more contexts than other users may.
pub(crate) fn may_have_any_number() -> bool {
    has(bindings::CAP_SYS_RESOURCE)
}

/// CAP_IPC_LOCK: pin memory whatever RLIMIT_MEMLOCK says.
pub(crate) fn may_lock_memory() -> bool {
    has(bindings::CAP_IPC_LOCK)
}

fn has(capability: u32) -> bool {
    // SAFETY: No requirement. CAST: a small constant.
    unsafe { bindings::capable(capability as c_int) }
}
