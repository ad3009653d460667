// SPDX-License-Identifier: GPL-2.0-or-later
//! The advice, held against `uapi/fermata.h`: each error that the header names at a call is
//! explained, with the capability that the header names there.

use super::*;
use std::collections::BTreeSet;

const HEADER: &str = include_str!("../../../uapi/fermata.h");

/// What the header calls errors.
const ERRORS: [(&str, i32); 25] = [
    ("EPERM", 1),
    ("ENOENT", 2),
    ("ESRCH", 3),
    ("EINTR", 4),
    ("EIO", 5),
    ("ENXIO", 6),
    ("E2BIG", 7),
    ("EBADF", 9),
    ("EAGAIN", 11),
    ("ENOMEM", 12),
    ("EFAULT", 14),
    ("EBUSY", 16),
    ("EEXIST", 17),
    ("ENODEV", 19),
    ("EINVAL", 22),
    ("ENOTTY", 25),
    ("ENOSPC", 28),
    ("ERANGE", 34),
    ("ENODATA", 61),
    ("ETIME", 62),
    ("EPROTO", 71),
    ("EDESTADDRREQ", 89),
    ("EOPNOTSUPP", 95),
    ("ETIMEDOUT", 110),
    ("EDQUOT", 122),
];

const PARAMS: [Call; 9] = [
    Call::Param(Param::Timeslice),
    Call::Param(Param::PreemptTimeout),
    Call::Param(Param::Priority),
    Call::Param(Param::Weight),
    Call::Param(Param::LatencyCritical),
    Call::Param(Param::Cap),
    Call::Param(Param::SlotMask),
    Call::Param(Param::Cooperative),
    Call::Param(Param::Enabled),
];

/// The structures of the header, and the calls that take them.
const CALLS: [(&str, &[Call]); 16] = [
    ("card_info", &[Call::CardInfo]),
    ("slot_info", &[Call::SlotInfo]),
    ("setup", &[Call::Setup]),
    ("arena_create", &[Call::ArenaCreate]),
    ("snapshot_create", &[Call::SnapshotCreate]),
    ("regs", &[Call::RegistersWrite, Call::RegistersRead]),
    ("start", &[Call::Start]),
    ("hint", &[Call::Hint]),
    ("wait", &[Call::Wait]),
    ("param", &PARAMS),
    ("reserve", &[Call::Reserve, Call::ReserveAny]),
    ("context_info", &[Call::ContextInfo]),
    ("histogram", &[Call::Histogram]),
    ("preempt", &[Call::Control]),
    ("resume", &[Call::Control]),
    ("group_set", &[Call::GroupSet]),
];

/// Errors of calls that fermatactl does not make so.
const NEVER: [(&str, &str, &str); 15] = [
    ("setup", "ENXIO", "of the calls before it"),
    ("setup", "EINVAL", "it names no slots"),
    ("arena_create", "EFAULT", "FERMATA_ARENA_USER"),
    ("arena_create", "EOPNOTSUPP", "FERMATA_ARENA_USER"),
    ("arena_create", "EBADF", "FERMATA_ARENA_SHARED"),
    ("arena_create", "EPERM", "memory of another process"),
    ("arena_create", "ESRCH", "memory of another process"),
    ("snapshot_create", "EFAULT", "FERMATA_SNAPSHOT_USER"),
    ("snapshot_create", "EOPNOTSUPP", "FERMATA_SNAPSHOT_USER"),
    ("snapshot_create", "EPERM", "memory of another process"),
    ("snapshot_create", "ESRCH", "memory of another process"),
    ("start", "ETIME", "the error of a job"),
    ("context_info", "ENOENT", "the end of the list"),
    ("wait", "EINTR", "the library waits again"),
    ("wait", "EAGAIN", "O_NONBLOCK is not set"),
];

/// The description of a structure.
fn description(name: &str) -> &'static str {
    let begin = format!("/**\n * struct fermata_{name} - ");
    let at = HEADER.find(&begin).unwrap_or_else(|| panic!("{begin}"));
    HEADER[at..].split("*/").next().unwrap()
}

/// The words of a text that are all capitals, digits and underscores.
fn capitals(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

fn errors_of(text: &str) -> BTreeSet<(&'static str, i32)> {
    let known = |word| ERRORS.into_iter().find(|(name, _)| *name == word);
    capitals(text).filter_map(known).collect()
}

fn capabilities_of(text: &str) -> BTreeSet<&str> {
    capitals(text)
        .filter(|word| word.starts_with("CAP_"))
        .collect()
}

/// Returns whether a call takes the number of any context, by the rules that hold for every call.
fn acts_on_any_context(name: &str) -> bool {
    description(name).contains("@context:\t\tin: 0: the caller's own")
}

fn said(call: Call, errno: i32) -> String {
    let (cause, remedy) = explain(call, Error::from_errno(errno));
    format!("{cause}: {remedy}")
}

#[test]
fn every_error_that_the_header_names_is_explained() {
    // The same everywhere: it does not matter which call it was.
    let anywhere = ["E2BIG", "EFAULT", "EINTR", "ENODEV", "ENOMEM", "ENOTTY"];
    for (name, calls) in CALLS {
        for (error, errno) in errors_of(description(name)) {
            let is_never = NEVER
                .iter()
                .any(|never| (never.0, never.1) == (name, error));
            let error_of = Error::from_errno(errno);
            let is_explained = calls.iter().any(|call| named(*call, error_of).is_some());
            let is_of_any = anywhere.contains(&error) && of_any_call(error_of).is_some();
            assert!(
                is_explained || is_of_any || is_never,
                "{error} of struct fermata_{name} has no advice"
            );
        }
    }
}

#[test]
fn what_is_never_returned_is_in_the_header() {
    for (name, error, why) in NEVER {
        let named = errors_of(description(name));
        assert!(
            named.iter().any(|(known, _)| *known == error),
            "{name} {error}: {why}"
        );
    }
}

#[test]
fn capabilities_are_those_that_the_header_names_at_the_call() {
    for (name, calls) in CALLS {
        let mut there = capabilities_of(description(name));
        if name == "snapshot_create" {
            // It is charged as an arena is.
            there.extend(capabilities_of(description("arena_create")));
        }
        if acts_on_any_context(name) {
            there.insert("CAP_SYS_ADMIN");
        }
        for (call, (error, errno)) in calls
            .iter()
            .flat_map(|call| ERRORS.map(|error| (call, error)))
        {
            let text = said(*call, errno);
            for capability in capabilities_of(&text) {
                assert!(there.contains(capability), "{name} {error}: {text}");
            }
        }
    }
}

#[test]
fn calls_for_any_context_explain_its_errors() {
    let any = [
        Call::Control,
        Call::ReserveAny,
        Call::ControlParam(Param::Enabled),
    ];
    for call in any {
        assert_eq!(named(call, Error::NoContext), Some(NO_CONTEXT), "{call:?}");
        assert!(said(call, 1).contains("CAP_SYS_ADMIN"), "{call:?}");
    }
    for name in ["preempt", "resume", "param", "reserve"] {
        assert!(acts_on_any_context(name), "{name}");
    }
}

#[test]
fn each_refusal_names_its_capability() {
    const ADMIN: &str = "CAP_SYS_ADMIN";
    const NICE: &str = "CAP_SYS_NICE";
    const EPERM: i32 = 1;
    let table: [(Call, i32, &[&str]); 22] = [
        (Call::Setup, EPERM, &["CAP_SYS_RAWIO"]),
        (Call::Setup, 122, &["CAP_SYS_RESOURCE"]),
        (Call::ArenaCreate, 12, &["CAP_IPC_LOCK"]),
        (Call::SnapshotCreate, 12, &["CAP_IPC_LOCK"]),
        (Call::Param(Param::Timeslice), EPERM, &[NICE]),
        (Call::Param(Param::PreemptTimeout), EPERM, &[NICE]),
        (Call::Param(Param::Priority), EPERM, &[NICE]),
        (Call::Param(Param::Weight), EPERM, &[NICE]),
        (Call::Param(Param::LatencyCritical), EPERM, &[NICE]),
        (Call::Param(Param::Cap), EPERM, &[]),
        (Call::Param(Param::SlotMask), EPERM, &[]),
        (Call::Param(Param::Cooperative), EPERM, &[]),
        (Call::Param(Param::Enabled), EPERM, &[ADMIN]),
        (Call::Reserve, EPERM, &[NICE]),
        (Call::ReserveAny, EPERM, &[ADMIN, NICE]),
        (Call::Control, EPERM, &[ADMIN]),
        (Call::ControlParam(Param::Weight), EPERM, &[ADMIN, NICE]),
        (Call::ControlParam(Param::Cap), EPERM, &[ADMIN]),
        (Call::ControlParam(Param::Enabled), EPERM, &[ADMIN]),
        (Call::Histogram, EPERM, &[ADMIN, "CAP_PERFMON"]),
        (Call::PolicyWrite, EPERM, &[ADMIN]),
        (Call::GroupSet, EPERM, &[ADMIN]),
    ];
    for (call, errno, capabilities) in table {
        let text = said(call, errno);
        let wanted = capabilities.iter().copied().collect();
        assert_eq!(capabilities_of(&text), wanted, "{call:?}: {text}");
    }
}

#[test]
fn the_same_error_has_the_cause_of_its_call() {
    let table = [
        (Call::Setup, 16, "another user is on it"),
        (Call::Start, 16, "the last job has not ended"),
        (Call::Start, 22, "leave out --replayable"),
        (Call::Start, 5, "quarantined"),
        (Call::Hint, 34, "at most 10s"),
        (Call::Param(Param::SlotMask), 16, "reservation=none"),
        (Call::ControlParam(Param::SlotMask), 16, "reservation=none"),
        (Call::ControlParam(Param::SlotMask), 22, "another engine"),
        (Call::ControlParam(Param::Weight), 22, "different versions"),
        (Call::ReserveAny, 16, "a smaller budget"),
        (Call::ReserveAny, 22, "different versions"),
        (Call::ReserveAny, 34, "the period 1ms to 10s"),
        (Call::Control, 2, "the job has ended"),
        (Call::PolicyWrite, 2, "another policy"),
        (Call::PolicyWrite, 13, "root of the host"),
        (Call::PolicyRead, 6, "mount sysfs"),
        (Call::PolicyWrite, 6, "mount sysfs"),
        (Call::PolicyWrite, 30, "outside of the container"),
        (Call::PolicyWrite, 34, "10ms to 60s"),
        (Call::GroupSet, 9, "not the directory of a cgroup"),
        (Call::GroupSet, 16, "reserved for another group"),
        (Call::GroupSet, 28, "--remove"),
        (Call::CardInfo, 25, "different versions"),
        (Call::CardInfo, 19, "unplugged or unbound"),
        (Call::Status, 77, "dmesg"),
    ];
    for (call, errno, words) in table {
        let text = said(call, errno);
        assert!(text.contains(words), "{call:?} {errno}: {text}");
    }
}

#[test]
fn errors_of_jobs_are_explained() {
    for (error, errno) in errors_of(description("status")) {
        assert!(of_job(Error::from_errno(errno)).is_some(), "{error}");
    }
    assert_eq!(of_job(Error::Busy), None);
}

#[test]
fn advice_has_no_line_breaks() {
    let calls = CALLS.iter().flat_map(|(_, calls)| calls.iter());
    for call in calls {
        for errno in 1..134 {
            assert!(!said(*call, errno).contains('\n'));
        }
    }
}
