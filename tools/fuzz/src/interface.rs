// SPDX-License-Identifier: GPL-2.0

//! What the fuzzer knows of uapi/fermata.h: the calls, and what stands where in their arguments.

/// What a member is, and so which values are worth trying. How a value becomes what the kernel
/// sees is said in [`crate::run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A few bits, or a small number.
    Small,
    /// Bytes of memory.
    Length,
    /// Nanoseconds.
    Duration,
    /// A moment: milliseconds from now; 0 is none, and `u64::MAX` is never.
    Moment,
    /// The number of a context: 1 to 4 stand for those of the files.
    Context,
    /// A pointer: below 256 to memory that is filled from this seed, then to memory that is
    /// read-only, or not there.
    Pointer,
    /// A descriptor: 0 is an eventfd, 1 is none.
    Eventfd,
    /// Two words: an engine of the card, or none.
    Engine,
    /// 16 bytes: the name of a policy, or none.
    Policy,
}

/// A member that the program fills.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) offset: usize,
    /// 4 or 8 bytes; for [`Kind::Engine`] and [`Kind::Policy`] 16.
    pub(crate) width: usize,
    pub(crate) kind: Kind,
}

/// A call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) number: u8,
    /// Of its argument.
    pub(crate) size: usize,
    pub(crate) members: &'static [Member],
}

const fn word(offset: usize, kind: Kind) -> Member {
    Member {
        offset,
        width: 4,
        kind,
    }
}

const fn long(offset: usize, kind: Kind) -> Member {
    Member {
        offset,
        width: 8,
        kind,
    }
}

const fn wide(offset: usize, kind: Kind) -> Member {
    Member {
        offset,
        width: 16,
        kind,
    }
}

const fn call(name: &'static str, number: u8, size: usize, members: &'static [Member]) -> Call {
    Call {
        name,
        number,
        size,
        members,
    }
}

use Kind::{Context, Duration, Engine, Eventfd, Length, Moment, Pointer, Policy, Small};

const FLAGS: &[Member] = &[word(4, Small)];
const REGISTERS: &[Member] = &[
    word(4, Small),
    word(8, Small),
    word(12, Small),
    long(16, Pointer),
];
const PARAM: &[Member] = &[
    word(4, Small),
    long(8, Duration),
    long(16, Small),
    long(24, Small),
];
const RESERVE: &[Member] = &[
    word(4, Small),
    word(8, Context),
    word(12, Small),
    long(16, Duration),
    long(24, Duration),
    long(32, Duration),
];
const POLICY: &[Member] = &[word(4, Small), wide(8, Policy), long(24, Duration)];

/// The calls of the interface, and one that is none.
pub(crate) const CALLS: &[Call] = &[
    call("card_info", 0x00, 40, FLAGS),
    call("slot_info", 0x01, 80, FLAGS),
    call(
        "setup",
        0x10,
        32,
        &[word(4, Small), wide(8, Engine), word(24, Small)],
    ),
    call(
        "arena_create",
        0x11,
        40,
        &[
            word(4, Small),
            long(8, Length),
            long(16, Length),
            long(32, Pointer),
        ],
    ),
    call(
        "snapshot_create",
        0x12,
        24,
        &[word(4, Small), long(8, Length), long(16, Pointer)],
    ),
    call(
        "snapshot_read",
        0x13,
        32,
        &[
            word(4, Small),
            long(8, Length),
            long(16, Length),
            long(24, Pointer),
        ],
    ),
    call("regs_write", 0x20, 24, REGISTERS),
    call("regs_read", 0x21, 24, REGISTERS),
    call("results", 0x22, 24, REGISTERS),
    call("start", 0x30, 16, FLAGS),
    call("preempt", 0x31, 8, FLAGS),
    call("resume", 0x32, 8, FLAGS),
    call("status", 0x33, 160, FLAGS),
    call("wait", 0x34, 24, &[word(4, Small), long(8, Moment)]),
    call(
        "eventfd",
        0x35,
        16,
        &[word(4, Small), word(8, Eventfd), word(12, Small)],
    ),
    call("hint", 0x36, 16, &[word(4, Small), long(8, Moment)]),
    call("param_get", 0x40, 32, PARAM),
    call("param_set", 0x41, 32, PARAM),
    call("reserve", 0x42, 40, RESERVE),
    call("reserve_get", 0x43, 40, RESERVE),
    call("context_info", 0x50, 96, &[word(4, Small), word(8, Small)]),
    call(
        "control",
        0x51,
        24,
        &[
            word(4, Small),
            word(8, Context),
            word(12, Small),
            long(16, Duration),
        ],
    ),
    call("policy_get", 0x60, 32, POLICY),
    call("policy_set", 0x61, 32, POLICY),
    call(
        "group",
        0x62,
        40,
        &[
            word(4, Small),
            word(8, Context),
            word(12, Small),
            word(20, Small),
        ],
    ),
    call(
        "exclusive",
        0x63,
        16,
        &[word(4, Small), word(8, Context), word(12, Small)],
    ),
    call("gang", 0x64, 16, &[word(4, Small), word(8, Context)]),
    call("unknown", 0x7f, 64, FLAGS),
];

/// The engines of the emulated card, low half and high half.
pub(crate) const ENGINES: [(u64, u64); 4] = [
    (0x5354_0000_0000_0001, 0x4c49_4e4b_4544_4c49),
    (0x0000_0000_0000_0002, 0x4d45_4d42_454e_4348),
    (0x0000_0000_0000_0003, 0x5348_4132_3536_0000),
    (0x0000_0000_0000_0004, 0x424c_4f43_4b4d_4958),
];

/// The policies.
pub(crate) const POLICIES: [&str; 5] = ["fair", "round-robin", "priority", "deadline", "share"];
