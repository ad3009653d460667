// SPDX-License-Identifier: MIT OR Apache-2.0
//! `uapi/fermata.h` in Rust: same names, same layout (a test compares them with the header).

#![allow(missing_docs)] // documented in the header

macro_rules! layout {
    ($($name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct $name { $(pub $field: $type),* }
        )*
        #[cfg(test)]
        pub(crate) const LAYOUT: &[(&str, usize, &[(&str, usize)])] = &[
            $((stringify!($name), size_of::<$name>(),
               &[$((stringify!($field), std::mem::offset_of!($name, $field))),*])),*
        ];
    };
}

layout! {
    CardInfo {
        size: u32, flags: u32, uapi_version: u32, slots: u32, features: u64, contexts: u32, max_contexts: u32, max_arena: u64,
    }
    SlotInfo {
        size: u32, slot: u32, afu_id_lo: u64, afu_id_hi: u64, state_pages: u32, flags: u32, switches: u64, busy_ns: u64,
        resets: u64, save_ns: u64, restore_ns: u64, group: u64, storms: u64, resumes: u64, preemptions: u64, finished: u64,
        faults: u64, timeouts: u64, spurious: u64,
    }
    Setup { size: u32, flags: u32, afu_id_lo: u64, afu_id_hi: u64, slot_mask: u32, context: u32 }
    ArenaCreate {
        size: u32, flags: u32, length: u64, device_base: u64, mmap_offset: u64, user_addr: u64, offset: u64, fd: i32,
        pid: u32,
    }
    SnapshotCreate { size: u32, flags: u32, length: u64, user_addr: u64, pid: u32, reserved: u32 }
    SnapshotRead { size: u32, flags: u32, offset: u64, length: u64, buffer: u64 }
    SnapshotWrite { size: u32, flags: u32, offset: u64, length: u64, buffer: u64 }
    Reg { offset: u32, reserved: u32, value: u64 }
    Regs { size: u32, flags: u32, count: u32, reserved: u32, regs: u64 }
    Config {
        size: u32, flags: u32, arena_flags: u32, snapshot_flags: u32, arena_addr: u64, arena_offset: u64, snapshot_addr: u64,
        lender: u32, start_flags: u32, events: u32, fd: i32, gang: u32, pid: u32, hint_ns: u64,
    }
    Outcome {
        size: u32, flags: u32, state: u32, error: u32, finished: u64, failed: u64, fault_addr: u64, fault_flags: u32,
        count: u32, regs: u64,
    }
    Start { size: u32, flags: u32, job: u64 }
    Preempt { size: u32, flags: u32, context: u32, reserved: u32 }
    Resume { size: u32, flags: u32, context: u32, reserved: u32 }
    Hold { size: u32, flags: u32, context: u32, fd: i32 }
    Status {
        size: u32, flags: u32, state: u32, error: u32, context: u32, slot: u32, job: u64, run_ns: u64, wait_ns: u64,
        slices: u64, preemptions: u64, finished: u64, failed: u64, fault_addr: u64, arena_length: u64, device_base: u64,
        snapshot_length: u64, attributes: u32, fault_flags: u32, group: u64, hints: u64, hints_used: u64, hints_wasted: u64,
        reserved: u64, faults: u64, replays: u64,
    }
    Hint { size: u32, flags: u32, at: u64 }
    Doorbell { size: u32, flags: u32 }
    Wait { size: u32, events: u32, deadline: u64, happened: u32, error: u32 }
    Eventfd { size: u32, events: u32, fd: i32, reserved: u32 }
    Param { size: u32, flags: u32, context: u32, param: u32, value: u64, min: u64, max: u64 }
    ContextInfo {
        size: u32, flags: u32, cursor: u32, context: u32, pid: i32, state: u32, slot: u32, slot_mask: u32, job: u64,
        run_ns: u64, wait_ns: u64, slices: u64, preemptions: u64, priority: u32, weight: u32, attributes: u32,
        latency_critical: u32, group: u64, timeslice_ns: u64, preempt_timeout_ns: u64, cap: u32, waits: u32,
        waits_group: u64, state_ns: u64,
    }
    Histogram {
        size: u32, flags: u32, kind: u32, number: u32, count: u64, sum_ns: u64, min_ns: u64, max_ns: u64, buckets: u32,
        reserved: u32, counts: u64,
    }
    Reserve {
        size: u32, flags: u32, context: u32, reserved: u32, budget_ns: u64, deadline_ns: u64, period_ns: u64,
    }
    Group {
        size: u32, flags: u32, context: u32, weight: u32, contexts: u32, reserved: u32, number: u64, run_ns: u64,
    }
    GroupSet {
        size: u32, flags: u32, cgroup: i32, weight: u32, max_priority: u32, cap: u32, max_contexts: u32, slot_mask: u32,
        contexts: u32, children: u32, max_bytes: u64, bytes: u64, number: u64, run_ns: u64, uid: u32, reserved: u32,
    }
    Gang { size: u32, flags: u32, context: u32, members: u32 }
    QueueJob { header: u32, op: u32, tag: u64, src: u64, dst: u64, length: u64, arg: u64, reserved: [u64; 2] }
    QueueStatus { header: u32, error: u32, tag: u64, result: u64, reserved: u64 }
    QueueControl { completed: u64, head: u64, idle: u32, pad: u32, reserved: [u64; 5], program: [u64; 8] }
}

macro_rules! constants {
    ($($name:ident: $type:ty = $value:expr;)*) => {
        $(pub const $name: $type = $value;)*
        #[cfg(test)]
        pub(crate) const CONSTANTS: &[(&str, u64)] = &[$((stringify!($name), $name as u64)),*];
    };
}

constants! {
    UAPI_VERSION: u32 = 3;
    MAX_SLOTS: usize = 8;
    MAX_RESULTS: usize = 16;
    REG_FIRST: u32 = 0x30;
    REG_LAST: u32 = 0xff8;
    MAX_REGS: usize = 512;
    MAX_GANG: usize = 8;
    MAX_REPLAYS: u64 = 3;
    FEATURE_IRQ: u64 = 1 << 0;
    FEATURE_WINDOW: u64 = 1 << 1;
    FEATURE_QUIESCENT: u64 = 1 << 2;
    FEATURE_SNAPSHOT_UNIT: u64 = 1 << 3;
    FEATURE_RELAY: u64 = 1 << 4;
    FEATURE_IOMMU: u64 = 1 << 32;
    FEATURE_FOREIGN_MEMORY: u64 = 1 << 33;
    SLOT_QUARANTINED: u32 = 1 << 0;
    SLOT_BOUNDARY: u32 = 1 << 1;
    SLOT_BOUNDARY_ONLY: u32 = 1 << 2;
    SLOT_EXCLUSIVE: u32 = 1 << 3;
    SLOT_POLLED: u32 = 1 << 4;
    GROUP_WEIGHT: u32 = 1 << 0;
    GROUP_MAX_PRIORITY: u32 = 1 << 1;
    GROUP_CAP: u32 = 1 << 2;
    GROUP_MAX_CONTEXTS: u32 = 1 << 3;
    GROUP_MAX_BYTES: u32 = 1 << 4;
    GROUP_EXCLUSIVE: u32 = 1 << 5;
    GROUP_REMOVE: u32 = 1 << 6;
    GROUP_CHILDREN: u32 = 1 << 7;
    GROUP_USER: u32 = 1 << 8;
    USER_GROUP: u64 = 1 << 63;
    MAX_GROUPS: usize = 256;
    GANG_JOIN: u32 = 1 << 0;
    GANG_LEAVE: u32 = 1 << 1;
    ARENA_FIXED_BASE: u32 = 1 << 0;
    ARENA_USER: u32 = 1 << 1;
    ARENA_SHARED: u32 = 1 << 2;
    SNAPSHOT_USER: u32 = 1 << 0;
    START_REPLAYABLE: u32 = 1 << 0;
    START_SAVED: u32 = 1 << 1;
    START_HELD: u32 = 1 << 2;
    CONFIG_EVENTFD: u32 = 1 << 0;
    CONFIG_IN_PLACE: u32 = 1 << 1;
    REGS_RESULTS: u32 = 1 << 0;
    PREEMPT_HOLD: u32 = 1 << 0;
    STATE_NEW: u32 = 0;
    STATE_IDLE: u32 = 1;
    STATE_QUEUED: u32 = 2;
    STATE_RUNNING: u32 = 3;
    STATE_HELD: u32 = 4;
    STATE_DONE: u32 = 5;
    STATE_FAILED: u32 = 6;
    STATE_EMPTY: u32 = 7;
    STATUS_DISABLED: u32 = 1 << 0;
    STATUS_THROTTLED: u32 = 1 << 1;
    STATUS_NO_SLOT: u32 = 1 << 2;
    STATUS_HOLD: u32 = 1 << 3;
    FAULT_WRITE: u32 = 1 << 0;
    WAITS_NOT: u32 = 0;
    WAITS_DISABLED: u32 = 1;
    WAITS_NO_SLOT: u32 = 2;
    WAITS_CARD: u32 = 3;
    WAITS_BUDGET: u32 = 4;
    WAITS_CAP: u32 = 5;
    WAITS_GROUP_CAP: u32 = 6;
    WAITS_GANG: u32 = 7;
    WAITS_TURN: u32 = 8;
    NO_SLOT: u32 = 0xffff_ffff;
    EVENT_DONE: u32 = 1 << 0;
    EVENT_HELD: u32 = 1 << 1;
    EVENT_EMPTY: u32 = 1 << 2;
    EVENT_COMPLETED: u32 = 1 << 3;
    PARAM_TIMESLICE: u32 = 1;
    PARAM_PREEMPT_TIMEOUT: u32 = 2;
    PARAM_PRIORITY: u32 = 3;
    PARAM_WEIGHT: u32 = 4;
    PARAM_LATENCY_CRITICAL: u32 = 5;
    PARAM_CAP: u32 = 6;
    PARAM_SLOT_MASK: u32 = 8;
    PARAM_COOPERATIVE: u32 = 9;
    PARAM_ENABLED: u32 = 10;
    SET: u32 = 1 << 0;
    NO_PID: u32 = 0;
    HISTOGRAM_GAP: u32 = 1;
    HISTOGRAM_SAVE: u32 = 2;
    HISTOGRAM_RESTORE: u32 = 3;
    HISTOGRAM_OVERRUN: u32 = 4;
    HISTOGRAM_LATENCY: u32 = 5;
    HISTOGRAM_WAIT: u32 = 16;
    HISTOGRAM_ARRIVAL: u32 = 17;
    HISTOGRAM_RUN: u32 = 18;
    HISTOGRAM_BUCKETS: usize = 128;
    QUEUE_AFU_ID_HI: u64 = 0x5155_4555_4500_0000;
    QUEUE_AFU_ID_LO: u64 = 6;
    QUEUE_REG_JOBS: u32 = 0x30;
    QUEUE_REG_STATUSES: u32 = 0x38;
    QUEUE_REG_ENTRIES: u32 = 0x40;
    QUEUE_REG_CONTROL: u32 = 0x48;
    QUEUE_REG_TAG: u32 = 0x50;
    QUEUE_REG_COALESCE_COUNT: u32 = 0x58;
    QUEUE_REG_COALESCE_US: u32 = 0x60;
    QUEUE_REG_HEAD: u32 = 0x30;
    QUEUE_REG_COMPLETED: u32 = 0x38;
    QUEUE_REG_ERROR: u32 = 0x40;
    QUEUE_MIN_ENTRIES: u32 = 2;
    QUEUE_MAX_ENTRIES: u32 = 65536;
    QUEUE_MAX_BYTES: u64 = 1 << 32;
    QUEUE_VALID: u32 = 1 << 0;
    QUEUE_OP_COPY: u32 = 1;
    QUEUE_OP_FILL: u32 = 2;
    QUEUE_OP_SHA256: u32 = 3;
    QUEUE_OP_CRC32C: u32 = 4;
    QUEUE_OP_END: u32 = 5;
    QUEUE_STARTED: u32 = 1 << 0;
    QUEUE_COMPLETE: u32 = 1 << 1;
}

macro_rules! names {
    ($($name:ident = $value:expr;)*) => {
        $(pub const $name: &str = $value;)*
        #[cfg(test)]
        pub(crate) const NAMES: &[(&str, &str)] = &[$((stringify!($name), $name)),*];
    };
}

names! {
    POLICY_FAIR = "fair";
    POLICY_ROUND_ROBIN = "round-robin";
    POLICY_PRIORITY = "priority";
    POLICY_DEADLINE = "deadline";
}

/// `FERMATA_MMAP_OFFSET`
pub const fn mmap_offset(context: u32) -> u64 {
    ((context & 0xffff) as u64 + 1) << 47
}

/// Numbers of the calls: `_IO(0xFA, n)`.
macro_rules! calls {
    ($($name:ident = $number:expr;)*) => {
        $(pub const $name: u32 = 0xfa00 | $number;)*
        #[cfg(test)]
        pub(crate) const CALLS: &[(&str, u32)] = &[$((stringify!($name), $name)),*];
    };
}

calls! {
    IOC_CARD_INFO = 0x00;
    IOC_SLOT_INFO = 0x01;
    IOC_SETUP = 0x10;
    IOC_ARENA_CREATE = 0x11;
    IOC_SNAPSHOT_CREATE = 0x12;
    IOC_SNAPSHOT_READ = 0x13;
    IOC_SNAPSHOT_WRITE = 0x14;
    IOC_REGS_WRITE = 0x20;
    IOC_REGS_READ = 0x21;
    IOC_RESULTS = 0x22;
    IOC_REGS_LIST = 0x23;
    IOC_START = 0x30;
    IOC_PREEMPT = 0x31;
    IOC_RESUME = 0x32;
    IOC_STATUS = 0x33;
    IOC_WAIT = 0x34;
    IOC_EVENTFD = 0x35;
    IOC_HINT = 0x36;
    IOC_DOORBELL = 0x37;
    IOC_OUTCOME = 0x38;
    IOC_HOLD = 0x39;
    IOC_PARAM = 0x40;
    IOC_RESERVE = 0x41;
    IOC_CONTEXT_INFO = 0x50;
    IOC_HISTOGRAM = 0x51;
    IOC_CONFIG = 0x52;
    IOC_GROUP = 0x60;
    IOC_GROUP_SET = 0x61;
    IOC_GANG = 0x62;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const HEADER: &str = include_str!("../../../uapi/fermata.h");

    /// `CardInfo` -> `fermata_card_info`.
    fn c_name(name: &str) -> String {
        name.chars().fold("fermata".into(), |mut text: String, c| {
            if c.is_uppercase() {
                text.push('_');
            }
            text.extend(c.to_lowercase());
            text
        })
    }

    type Fields = Vec<(String, usize)>;

    /// Returns the structures of the header: name, size, and offsets by C's rules for its types.
    fn structs() -> HashMap<String, (usize, Fields)> {
        let mut found = HashMap::new();
        let mut current: Option<(String, usize, Fields)> = None;
        for line in HEADER.lines() {
            if let Some(name) = line
                .strip_prefix("struct ")
                .and_then(|l| l.strip_suffix(" {"))
            {
                current = Some((name.into(), 0, Vec::new()));
            } else if line == "};" {
                let (name, size, fields) = current.take().expect("the end of a structure");
                found.insert(name, (size, fields));
            } else if let (Some((_, size, fields)), Some(member)) =
                (&mut current, line.trim().strip_suffix(';'))
            {
                let (kind, name) = member.split_once(' ').expect("type and name");
                let align = match kind {
                    "char" => 1,
                    "__u32" | "__s32" => 4,
                    "__aligned_u64" => 8,
                    _ => panic!("a type of variable size: {member}"),
                };
                let (name, count) = name
                    .strip_suffix(']')
                    .and_then(|name| name.split_once('['))
                    .map_or((name, 1), |(name, count)| (name, count.parse().unwrap()));
                assert_eq!(*size % align, 0, "implicit padding before {member}");
                fields.push((name.into(), *size));
                *size += align * count;
            }
        }
        found
    }

    /// Returns the value of a macro of the header: a number, perhaps shifted.
    fn value(text: &str) -> u64 {
        let text = text.split("/*").next().unwrap().trim();
        let text = text.trim_start_matches('(').trim_end_matches(')');
        let number = |t: &str| {
            let t = t.trim().trim_end_matches(['U', 'L']);
            t.strip_prefix("0x")
                .map_or_else(|| t.parse(), |hex| u64::from_str_radix(hex, 16))
                .unwrap_or_else(|_| panic!("no number: {t}"))
        };
        text.split_once("<<")
            .map_or_else(|| number(text), |(a, b)| number(a) << number(b))
    }

    fn macros() -> HashMap<&'static str, &'static str> {
        HEADER
            .lines()
            .filter_map(|l| l.strip_prefix("#define FERMATA_"))
            .filter_map(|l| l.split_once(char::is_whitespace))
            .collect()
    }

    #[test]
    fn layout_is_the_header_s() {
        let mut header = structs();
        for (name, size, fields) in LAYOUT {
            let (c_size, c_fields) = header.remove(&c_name(name)).expect(name);
            assert_eq!(*size, c_size, "{name}");
            let fields: Vec<_> = fields.iter().map(|(n, o)| ((*n).to_string(), *o)).collect();
            assert_eq!(fields, c_fields, "{name}");
        }
        assert!(header.is_empty(), "not in Rust: {header:?}");
    }

    #[test]
    fn constants_are_the_header_s() {
        let mut header = macros();
        for (name, number) in CONSTANTS {
            assert_eq!(*number, value(header.remove(name).expect(name)), "{name}");
        }
        for (name, number) in CALLS {
            let text = header.remove(name).expect(name).trim();
            let nr = text.strip_prefix("_IO(FERMATA_IOC_MAGIC, ").expect(text);
            assert_eq!(u64::from(*number), 0xfa00 | value(nr), "{name}");
        }
        for (name, text) in NAMES {
            let quoted = header.remove(name).expect(name).trim();
            assert_eq!(quoted, format!("\"{text}\""), "{name}");
        }
        assert_eq!(value(header.remove("IOC_MAGIC").unwrap()), 0xfa);
        let offset = header.remove("MMAP_OFFSET(context)").unwrap().trim();
        assert_eq!(offset, "((__u64)(((context) & 0xffff) + 1) << 47)");
        assert_eq!(mmap_offset(0x0003_0002), 3 << 47);
        assert!(header.is_empty(), "not in Rust: {header:?}");
    }
}
