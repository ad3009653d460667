// SPDX-License-Identifier: GPL-2.0-or-later

//! The interface as the fuzzer knows it: calls, and the members of their arguments.

use std::mem::offset_of;

use fermata::{uapi, EngineId};

/// The kind of a member, which decides the values to try. [`crate::run`] converts values for the
/// kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Some bits, or a small number.
    Small,
    /// A length in bytes.
    Length,
    /// A duration in nanoseconds.
    Duration,
    /// A deadline: milliseconds from now; 0 for none, `u64::MAX` for never.
    Deadline,
    /// The number of a context; 1 to 4 stand for the contexts of the program's files.
    Context,
    /// A pointer: below 256 to memory that is filled from this seed, then to memory that is
    /// read-only or unmapped.
    Pointer,
    /// A descriptor: 0 for an eventfd, 1 for none.
    Eventfd,
    /// A descriptor: 0 for the root of the cgroups, 1 for none.
    Cgroup,
    /// A descriptor: 1 to 4 stand for the program's files.
    File,
    /// A process: 0 for none, 1 for the program, 2 for no process that exists. Jobs must not write
    /// to the memory of others.
    Process,
    /// Two words: the ID of an engine of the card, or of none.
    Engine,
}

/// A member that the program fills.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) offset: usize,
    /// 4 or 8 bytes; 16 for [`Kind::Engine`].
    pub(crate) width: usize,
    pub(crate) kind: Kind,
}

/// A call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) number: u32,
    /// Size of the argument.
    pub(crate) size: usize,
    pub(crate) members: &'static [Member],
}

impl Kind {
    /// Returns the number of bytes of a value that begins in a member of `member` bytes.
    const fn width(self, member: usize) -> usize {
        match self {
            Self::Engine => 2 * member,
            _ => member,
        }
    }
}

/// Returns the size of the member that `_get` returns.
const fn size_of_member<A, M>(_get: fn(&A) -> &M) -> usize {
    size_of::<M>()
}

/// Returns calls from their structures in libfermata, whose layout is tested against the header.
macro_rules! calls {
    ($($name:literal $number:ident $argument:ident { $($member:ident: $kind:ident),* })*) => {
        &[
            $(Call {
                name: $name,
                number: uapi::$number,
                size: size_of::<uapi::$argument>(),
                members: &[$(Member {
                    offset: offset_of!(uapi::$argument, $member),
                    width: Kind::$kind.width(size_of_member(|a: &uapi::$argument| &a.$member)),
                    kind: Kind::$kind,
                }),*],
            },)*
            UNKNOWN,
        ]
    };
}

/// A call that does not exist.
const UNKNOWN: Call = Call {
    name: "unknown",
    number: uapi::IOC_CARD_INFO | 0x7f,
    size: 64,
    members: &[Member {
        offset: 4,
        width: 4,
        kind: Kind::Small,
    }],
};

/// The calls of the interface, and a call that does not exist.
pub(crate) const CALLS: &[Call] = calls! {
    "card_info" IOC_CARD_INFO CardInfo { flags: Small }
    "slot_info" IOC_SLOT_INFO SlotInfo { slot: Small }
    "setup" IOC_SETUP Setup { flags: Small, afu_id_lo: Engine, slot_mask: Small }
    "arena_create" IOC_ARENA_CREATE ArenaCreate {
        flags: Small, length: Length, device_base: Length, user_addr: Pointer,
        offset: Length, fd: File, pid: Process
    }
    "snapshot_create" IOC_SNAPSHOT_CREATE SnapshotCreate {
        flags: Small, length: Length, user_addr: Pointer, pid: Process, reserved: Small
    }
    "snapshot_read" IOC_SNAPSHOT_READ SnapshotRead {
        flags: Small, offset: Length, length: Length, buffer: Pointer
    }
    "snapshot_write" IOC_SNAPSHOT_WRITE SnapshotWrite {
        flags: Small, offset: Length, length: Length, buffer: Pointer
    }
    "regs_write" IOC_REGS_WRITE Regs { flags: Small, count: Small, reserved: Small, regs: Pointer }
    "regs_read" IOC_REGS_READ Regs { flags: Small, count: Small, reserved: Small, regs: Pointer }
    "results" IOC_RESULTS Regs { flags: Small, count: Small, reserved: Small, regs: Pointer }
    "regs_list" IOC_REGS_LIST Regs { flags: Small, count: Small, reserved: Small, regs: Pointer }
    "config" IOC_CONFIG Config { flags: Small, fd: Eventfd, pid: Process }
    "outcome" IOC_OUTCOME Outcome {
        flags: Small, state: Small, error: Small, finished: Small, failed: Small, fault_addr: Length, fault_flags: Small,
        count: Small, regs: Pointer
    }
    "start" IOC_START Start { flags: Small }
    "preempt" IOC_PREEMPT Preempt { flags: Small, context: Context, reserved: Small }
    "resume" IOC_RESUME Resume { flags: Small, context: Context, reserved: Small }
    "status" IOC_STATUS Status { flags: Small }
    "wait" IOC_WAIT Wait { events: Small, deadline: Deadline }
    "eventfd" IOC_EVENTFD Eventfd { events: Small, fd: Eventfd, reserved: Small }
    "doorbell" IOC_DOORBELL Doorbell { flags: Small }
    "hint" IOC_HINT Hint { flags: Small, at: Deadline }
    "param" IOC_PARAM Param {
        flags: Small, context: Context, param: Small, value: Duration, min: Small, max: Small
    }
    "reserve" IOC_RESERVE Reserve {
        flags: Small, context: Context, reserved: Small,
        budget_ns: Duration, deadline_ns: Duration, period_ns: Duration
    }
    "context_info" IOC_CONTEXT_INFO ContextInfo { flags: Small, cursor: Small }
    "histogram" IOC_HISTOGRAM Histogram {
        flags: Small, kind: Small, number: Context, buckets: Small, reserved: Small, counts: Pointer
    }
    "group" IOC_GROUP Group { flags: Small, context: Context, weight: Small, reserved: Small }
    "gang" IOC_GANG Gang { flags: Small, context: Context }
    "group_set" IOC_GROUP_SET GroupSet {
        flags: Small, cgroup: Cgroup, weight: Small, max_priority: Small, cap: Small, max_contexts: Small, slot_mask: Small,
        reserved: Small, max_bytes: Length
    }
};

/// The engines of the emulated card.
pub(crate) const ENGINES: [EngineId; 4] = [
    EngineId::LINKED_LIST,
    EngineId::MEMBENCH,
    EngineId::SHA256,
    EngineId::BLOCKMIX,
];
