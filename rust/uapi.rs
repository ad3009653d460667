// SPDX-License-Identifier: GPL-2.0

//! `uapi/fermata.h` in Rust, without the documentation. `shim.c` asserts the same sizes for the
//! header's structures.

use kernel::{
    bindings, ioctl,
    transmute::{AsBytes, FromBytes},
};

/// A structure of the interface, with its size in bytes in the first `u32`.
pub(crate) trait Argument: FromBytes + AsBytes + Copy + Default {}

macro_rules! arguments {
    ($($(#[$doc:meta])* $name:ident, $size:literal { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Default)]
            pub(crate) struct $name {
                $(pub(crate) $field: $type,)*
            }
            // The size has no padding, and is that of the header's structure.
            const _: () = assert!(
                core::mem::size_of::<$name>() == $size
                    && 0 $(+ core::mem::size_of::<$type>())* == $size
            );
            // SAFETY: Integers only, no padding by the assertion.
            unsafe impl FromBytes for $name {}
            // SAFETY: Integers only, no padding by the assertion.
            unsafe impl AsBytes for $name {}
        )*
    };
}

macro_rules! sized_arguments {
    ($($name:ident),*) => {
        $(
            impl Argument for $name {}
        )*
    };
}

arguments! {
    /// `struct fermata_card_info`
    CardInfo, 40 {
        size: u32,
        flags: u32,
        uapi_version: u32,
        slots: u32,
        features: u64,
        contexts: u32,
        max_contexts: u32,
        max_arena: u64,
    }
    /// `struct fermata_slot_info`
    SlotInfo, 136 {
        size: u32,
        slot: u32,
        afu_id_lo: u64,
        afu_id_hi: u64,
        state_pages: u32,
        flags: u32,
        switches: u64,
        busy_ns: u64,
        resets: u64,
        save_ns: u64,
        restore_ns: u64,
        group: u64,
        storms: u64,
        resumes: u64,
        preemptions: u64,
        finished: u64,
        faults: u64,
        timeouts: u64,
        spurious: u64,
    }
    /// `struct fermata_setup`
    Setup, 32 {
        size: u32,
        flags: u32,
        afu_id_lo: u64,
        afu_id_hi: u64,
        slot_mask: u32,
        context: u32,
    }
    /// `struct fermata_arena_create`
    ArenaCreate, 56 {
        size: u32,
        flags: u32,
        length: u64,
        device_base: u64,
        mmap_offset: u64,
        user_addr: u64,
        offset: u64,
        fd: i32,
        pid: u32,
    }
    /// `struct fermata_snapshot_create`
    SnapshotCreate, 32 {
        size: u32,
        flags: u32,
        length: u64,
        user_addr: u64,
        pid: u32,
        reserved: u32,
    }
    /// `struct fermata_snapshot_read`
    SnapshotRead, 32 {
        size: u32,
        flags: u32,
        offset: u64,
        length: u64,
        buffer: u64,
    }
    /// `struct fermata_snapshot_write`
    SnapshotWrite, 32 {
        size: u32,
        flags: u32,
        offset: u64,
        length: u64,
        buffer: u64,
    }
    /// `struct fermata_reg`
    Reg, 16 {
        offset: u32,
        reserved: u32,
        value: u64,
    }
    /// `struct fermata_regs`
    Regs, 24 {
        size: u32,
        flags: u32,
        count: u32,
        reserved: u32,
        regs: u64,
    }
    /// `struct fermata_config`
    Config, 72 {
        size: u32,
        flags: u32,
        arena_flags: u32,
        snapshot_flags: u32,
        arena_addr: u64,
        arena_offset: u64,
        snapshot_addr: u64,
        lender: u32,
        start_flags: u32,
        events: u32,
        fd: i32,
        gang: u32,
        pid: u32,
        hint_ns: u64,
    }
    /// `struct fermata_outcome`
    Outcome, 56 {
        size: u32,
        flags: u32,
        state: u32,
        error: u32,
        finished: u64,
        failed: u64,
        fault_addr: u64,
        fault_flags: u32,
        count: u32,
        regs: u64,
    }
    /// `struct fermata_start`
    Start, 16 {
        size: u32,
        flags: u32,
        job: u64,
    }
    /// `struct fermata_preempt`
    Preempt, 16 {
        size: u32,
        flags: u32,
        context: u32,
        reserved: u32,
    }
    /// `struct fermata_resume`
    Resume, 16 {
        size: u32,
        flags: u32,
        context: u32,
        reserved: u32,
    }
    /// `struct fermata_hold`
    Hold, 16 {
        size: u32,
        flags: u32,
        context: u32,
        fd: i32,
    }
    /// `struct fermata_status`
    Status, 176 {
        size: u32,
        flags: u32,
        state: u32,
        error: u32,
        context: u32,
        slot: u32,
        job: u64,
        run_ns: u64,
        wait_ns: u64,
        slices: u64,
        preemptions: u64,
        finished: u64,
        failed: u64,
        fault_addr: u64,
        arena_length: u64,
        device_base: u64,
        snapshot_length: u64,
        attributes: u32,
        fault_flags: u32,
        group: u64,
        hints: u64,
        hints_used: u64,
        hints_wasted: u64,
        reserved: u64,
        faults: u64,
        replays: u64,
    }
    /// `struct fermata_hint`
    Hint, 16 {
        size: u32,
        flags: u32,
        at: u64,
    }
    /// `struct fermata_doorbell`
    Doorbell, 8 {
        size: u32,
        flags: u32,
    }
    /// `struct fermata_wait`
    Wait, 24 {
        size: u32,
        events: u32,
        deadline: u64,
        happened: u32,
        error: u32,
    }
    /// `struct fermata_eventfd`
    EventFd, 16 {
        size: u32,
        events: u32,
        fd: i32,
        reserved: u32,
    }
    /// `struct fermata_param`
    Param, 40 {
        size: u32,
        flags: u32,
        context: u32,
        param: u32,
        value: u64,
        min: u64,
        max: u64,
    }
    /// `struct fermata_context_info`
    ContextInfo, 136 {
        size: u32,
        flags: u32,
        cursor: u32,
        context: u32,
        pid: i32,
        state: u32,
        slot: u32,
        slot_mask: u32,
        job: u64,
        run_ns: u64,
        wait_ns: u64,
        slices: u64,
        preemptions: u64,
        priority: u32,
        weight: u32,
        attributes: u32,
        latency_critical: u32,
        group: u64,
        timeslice_ns: u64,
        preempt_timeout_ns: u64,
        cap: u32,
        waits: u32,
        waits_group: u64,
        state_ns: u64,
    }
    /// `struct fermata_histogram`
    Histogram, 64 {
        size: u32,
        flags: u32,
        kind: u32,
        number: u32,
        count: u64,
        sum_ns: u64,
        min_ns: u64,
        max_ns: u64,
        buckets: u32,
        reserved: u32,
        counts: u64,
    }
    /// `struct fermata_reserve`
    Reserve, 40 {
        size: u32,
        flags: u32,
        context: u32,
        reserved: u32,
        budget_ns: u64,
        deadline_ns: u64,
        period_ns: u64,
    }
    /// `struct fermata_group`
    Group, 40 {
        size: u32,
        flags: u32,
        context: u32,
        weight: u32,
        contexts: u32,
        reserved: u32,
        number: u64,
        run_ns: u64,
    }
    /// `struct fermata_group_set`
    GroupSet, 80 {
        size: u32,
        flags: u32,
        cgroup: i32,
        weight: u32,
        max_priority: u32,
        cap: u32,
        max_contexts: u32,
        slot_mask: u32,
        contexts: u32,
        children: u32,
        max_bytes: u64,
        bytes: u64,
        number: u64,
        run_ns: u64,
        uid: u32,
        reserved: u32,
    }
    /// `struct fermata_gang`
    Gang, 16 {
        size: u32,
        flags: u32,
        context: u32,
        members: u32,
    }
}

sized_arguments!(
    CardInfo,
    SlotInfo,
    Setup,
    ArenaCreate,
    SnapshotCreate,
    SnapshotRead,
    SnapshotWrite,
    Regs,
    Config,
    Outcome,
    Start,
    Preempt,
    Resume,
    Hold,
    Status,
    Hint,
    Doorbell,
    Wait,
    EventFd,
    Param,
    ContextInfo,
    Histogram,
    Reserve,
    Group,
    GroupSet,
    Gang
);

pub(crate) const UAPI_VERSION: u32 = 3;
pub(crate) const MAX_REGS: u32 = 512;

/// `FERMATA_FEATURE_*`
pub(crate) mod feature {
    pub(crate) const IRQ: u64 = 1 << 0;
    pub(crate) const WINDOW: u64 = 1 << 1;
    pub(crate) const QUIESCENT: u64 = 1 << 2;
    pub(crate) const SNAPSHOT_UNIT: u64 = 1 << 3;
    pub(crate) const RELAY: u64 = 1 << 4;
    pub(crate) const IOMMU: u64 = 1 << 32;
    pub(crate) const FOREIGN_MEMORY: u64 = 1 << 33;
}

pub(crate) const SLOT_QUARANTINED: u32 = 1 << 0;
pub(crate) const SLOT_BOUNDARY: u32 = 1 << 1;
pub(crate) const SLOT_BOUNDARY_ONLY: u32 = 1 << 2;
pub(crate) const SLOT_EXCLUSIVE: u32 = 1 << 3;
/// `FERMATA_SLOT_POLLED`
pub(crate) const SLOT_POLLED: u32 = 1 << 4;
pub(crate) const GROUP_WEIGHT: u32 = 1 << 0;
pub(crate) const GROUP_MAX_PRIORITY: u32 = 1 << 1;
pub(crate) const GROUP_CAP: u32 = 1 << 2;
pub(crate) const GROUP_MAX_CONTEXTS: u32 = 1 << 3;
pub(crate) const GROUP_MAX_BYTES: u32 = 1 << 4;
pub(crate) const GROUP_EXCLUSIVE: u32 = 1 << 5;
pub(crate) const GROUP_REMOVE: u32 = 1 << 6;
pub(crate) const GROUP_CHILDREN: u32 = 1 << 7;
pub(crate) const GROUP_USER: u32 = 1 << 8;
pub(crate) const USER_GROUP: u64 = 1 << 63;
pub(crate) const GANG_JOIN: u32 = 1 << 0;
pub(crate) const GANG_LEAVE: u32 = 1 << 1;
pub(crate) const ARENA_FIXED_BASE: u32 = 1 << 0;
pub(crate) const ARENA_USER: u32 = 1 << 1;
pub(crate) const ARENA_SHARED: u32 = 1 << 2;
pub(crate) const SNAPSHOT_USER: u32 = 1 << 0;
pub(crate) const START_REPLAYABLE: u32 = 1 << 0;
/// `FERMATA_START_SAVED`
pub(crate) const START_SAVED: u32 = 1 << 1;
pub(crate) const START_HELD: u32 = 1 << 2;
/// `FERMATA_REGS_RESULTS`
pub(crate) const REGS_RESULTS: u32 = 1 << 0;
pub(crate) const PREEMPT_HOLD: u32 = 1 << 0;
/// `FERMATA_SET`
pub(crate) const SET: u32 = 1 << 0;
pub(crate) const FAULT_WRITE: u32 = 1 << 0;
pub(crate) const CONFIG_EVENTFD: u32 = 1 << 0;
pub(crate) const CONFIG_IN_PLACE: u32 = 1 << 1;
pub(crate) const NO_SLOT: u32 = u32::MAX;

/// `FERMATA_STATE_*`
pub(crate) mod state {
    // NEW is 0.
    pub(crate) const IDLE: u32 = 1;
    pub(crate) const QUEUED: u32 = 2;
    pub(crate) const RUNNING: u32 = 3;
    pub(crate) const HELD: u32 = 4;
    pub(crate) const DONE: u32 = 5;
    pub(crate) const FAILED: u32 = 6;
    pub(crate) const EMPTY: u32 = 7;
}

/// `FERMATA_STATUS_*`
pub(crate) mod attribute {
    pub(crate) const DISABLED: u32 = 1 << 0;
    pub(crate) const THROTTLED: u32 = 1 << 1;
    pub(crate) const NO_SLOT: u32 = 1 << 2;
    pub(crate) const HOLD: u32 = 1 << 3;
}

/// `FERMATA_WAITS_*`
pub(crate) mod waits {
    use crate::scheduler::WaitReason;

    /// Returns the number of a reason; `None`: the job is not queued.
    pub(crate) fn number_of(reason: Option<WaitReason>) -> u32 {
        match reason {
            None => 0,
            Some(WaitReason::Disabled) => 1,
            Some(WaitReason::NoSlot) => 2,
            Some(WaitReason::Frozen) => 3,
            Some(WaitReason::Budget) => 4,
            Some(WaitReason::Cap) => 5,
            Some(WaitReason::GroupCap(_)) => 6,
            Some(WaitReason::Gang) => 7,
            Some(WaitReason::Turn) => 8,
        }
    }
}

/// `FERMATA_EVENT_*`, the same bits as those of [`crate::notifier::Notice`].
pub(crate) mod event {
    use crate::notifier::Notice;

    pub(crate) const DONE: u32 = Notice::Done as u32;
    pub(crate) const HELD: u32 = Notice::Held as u32;
    pub(crate) const EMPTY: u32 = Notice::Empty as u32;
    pub(crate) const COMPLETED: u32 = Notice::Completed as u32;
    pub(crate) const ALL: u32 = DONE | HELD | EMPTY | COMPLETED;
}

/// `FERMATA_PARAM_*`
pub(crate) mod param {
    pub(crate) const TIMESLICE: u32 = 1;
    pub(crate) const PREEMPT_TIMEOUT: u32 = 2;
    pub(crate) const PRIORITY: u32 = 3;
    pub(crate) const WEIGHT: u32 = 4;
    pub(crate) const LATENCY_CRITICAL: u32 = 5;
    pub(crate) const CAP: u32 = 6;
    pub(crate) const SLOT_MASK: u32 = 8;
    pub(crate) const COOPERATIVE: u32 = 9;
    pub(crate) const ENABLED: u32 = 10;
}

/// `FERMATA_HISTOGRAM_*`
pub(crate) mod histogram {
    pub(crate) const GAP: u32 = 1;
    pub(crate) const SAVE: u32 = 2;
    pub(crate) const RESTORE: u32 = 3;
    pub(crate) const OVERRUN: u32 = 4;
    pub(crate) const LATENCY: u32 = 5;
    pub(crate) const WAIT: u32 = 16;
    pub(crate) const ARRIVAL: u32 = 17;
    pub(crate) const RUN: u32 = 18;
}

/// `FERMATA_POLICY_*`, the names of policies.
pub(crate) mod policy {
    use crate::scheduler::PolicyKind;

    const ALL: [PolicyKind; 4] = [
        PolicyKind::Fair,
        PolicyKind::RoundRobin,
        PolicyKind::Priority,
        PolicyKind::Deadline,
    ];

    /// Returns the name of a policy.
    pub(crate) fn name_of(policy: PolicyKind) -> &'static str {
        match policy {
            PolicyKind::Fair => "fair",
            PolicyKind::RoundRobin => "round-robin",
            PolicyKind::Priority => "priority",
            PolicyKind::Deadline => "deadline",
        }
    }

    /// Returns the policy of this name.
    pub(crate) fn named(name: &[u8]) -> Option<PolicyKind> {
        ALL.into_iter()
            .find(|policy| name_of(*policy).as_bytes() == name)
    }
}

/// `FERMATA_IOC_*`
pub(crate) mod ioc {
    use super::*;

    const MAGIC: u32 = 0xfa;

    pub(crate) const CARD_INFO: u32 = ioctl::_IO(MAGIC, 0x00);
    pub(crate) const SLOT_INFO: u32 = ioctl::_IO(MAGIC, 0x01);
    pub(crate) const SETUP: u32 = ioctl::_IO(MAGIC, 0x10);
    pub(crate) const ARENA_CREATE: u32 = ioctl::_IO(MAGIC, 0x11);
    pub(crate) const SNAPSHOT_CREATE: u32 = ioctl::_IO(MAGIC, 0x12);
    pub(crate) const SNAPSHOT_READ: u32 = ioctl::_IO(MAGIC, 0x13);
    pub(crate) const SNAPSHOT_WRITE: u32 = ioctl::_IO(MAGIC, 0x14);
    pub(crate) const REGS_WRITE: u32 = ioctl::_IO(MAGIC, 0x20);
    pub(crate) const REGS_READ: u32 = ioctl::_IO(MAGIC, 0x21);
    pub(crate) const RESULTS: u32 = ioctl::_IO(MAGIC, 0x22);
    pub(crate) const REGS_LIST: u32 = ioctl::_IO(MAGIC, 0x23);
    pub(crate) const START: u32 = ioctl::_IO(MAGIC, 0x30);
    pub(crate) const PREEMPT: u32 = ioctl::_IO(MAGIC, 0x31);
    pub(crate) const RESUME: u32 = ioctl::_IO(MAGIC, 0x32);
    pub(crate) const STATUS: u32 = ioctl::_IO(MAGIC, 0x33);
    pub(crate) const WAIT: u32 = ioctl::_IO(MAGIC, 0x34);
    pub(crate) const EVENTFD: u32 = ioctl::_IO(MAGIC, 0x35);
    pub(crate) const HINT: u32 = ioctl::_IO(MAGIC, 0x36);
    pub(crate) const DOORBELL: u32 = ioctl::_IO(MAGIC, 0x37);
    pub(crate) const OUTCOME: u32 = ioctl::_IO(MAGIC, 0x38);
    pub(crate) const HOLD: u32 = ioctl::_IO(MAGIC, 0x39);
    pub(crate) const PARAM: u32 = ioctl::_IO(MAGIC, 0x40);
    pub(crate) const RESERVE: u32 = ioctl::_IO(MAGIC, 0x41);
    pub(crate) const CONTEXT_INFO: u32 = ioctl::_IO(MAGIC, 0x50);
    pub(crate) const HISTOGRAM: u32 = ioctl::_IO(MAGIC, 0x51);
    pub(crate) const CONFIG: u32 = ioctl::_IO(MAGIC, 0x52);
    pub(crate) const GROUP: u32 = ioctl::_IO(MAGIC, 0x60);
    pub(crate) const GROUP_SET: u32 = ioctl::_IO(MAGIC, 0x61);
    pub(crate) const GANG: u32 = ioctl::_IO(MAGIC, 0x62);
}

/// What `poll()` reports (`uapi/fermata.h`, at `struct fermata_wait`).
pub(crate) mod poll {
    use super::{bindings, event};

    /// What `poll()` says of each event that holds.
    pub(crate) const BITS: [(u32, u32); 4] = [
        (event::DONE, bindings::POLLIN),
        (event::HELD, bindings::POLLPRI),
        (event::EMPTY, bindings::POLLOUT),
        (event::COMPLETED, bindings::POLLRDBAND),
    ];
    pub(crate) const GONE: u32 = bindings::POLLERR | bindings::POLLHUP;
}
