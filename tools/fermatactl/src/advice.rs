// SPDX-License-Identifier: GPL-2.0-or-later
//! Why the driver refuses a call, and what to do: for each call that fermatactl makes, the errors
//! that `uapi/fermata.h` names there.

use fermata::{Control, Error, Param};
use rustix::io::Errno;

/// A call of the driver; one call has several variants if its errors have different causes or
/// remedies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// open() of a card's node.
    Open,
    CardInfo,
    SlotInfo,
    Setup,
    ArenaCreate,
    SnapshotCreate,
    /// `FERMATA_IOC_REGS_WRITE` and `FERMATA_IOC_RESULTS`.
    RegistersWrite,
    RegistersRead,
    Start,
    Status,
    Hint,
    Wait,
    /// A parameter of the caller's own context.
    Param(Param),
    /// A reservation of the caller's own context.
    Reserve,
    /// A reservation of any context.
    ReserveAny,
    ContextInfo,
    Histogram,
    /// `FERMATA_IOC_PREEMPT` and `FERMATA_IOC_RESUME` of any context.
    Control,
    /// A parameter of any context.
    ControlParam(Param),
    /// Reading the files `policy` and `boost_ms` of a card in sysfs.
    PolicyRead,
    /// Writing one of these files.
    PolicyWrite,
    GroupSet,
}

impl Call {
    /// Returns the call for an action on a context.
    pub(crate) fn of_control(control: Control) -> Self {
        match control {
            Control::Param(param, _) => Self::ControlParam(param),
            _ => Self::Control,
        }
    }
}

/// The cause of a failure, and the remedy.
type Explanation = (&'static str, &'static str);

/// Errors without a name in [`Error`].
const EIO: i32 = Errno::IO.raw_os_error();
const E2BIG: i32 = Errno::TOOBIG.raw_os_error();
const EFAULT: i32 = Errno::FAULT.raw_os_error();
const ENOTTY: i32 = Errno::NOTTY.raw_os_error();
const ETIME: i32 = Errno::TIME.raw_os_error();
const EBADF: i32 = Errno::BADF.raw_os_error();
const EROFS: i32 = Errno::ROFS.raw_os_error();
const EDQUOT: i32 = Errno::DQUOT.raw_os_error();

const NOT_PERMITTED: &str = "not permitted";
const ADMINISTRATOR: Explanation = (
    NOT_PERMITTED,
    "this takes CAP_SYS_ADMIN in the initial user namespace: run fermatactl as root of the host",
);
const RAISE: Explanation = (
    NOT_PERMITTED,
    "more than the default takes CAP_SYS_NICE in the initial user namespace: keep to the default, \
         or run fermatactl as root of the host",
);
const RAISE_ANY: Explanation = (
    NOT_PERMITTED,
    "this takes CAP_SYS_ADMIN, and for more than the default CAP_SYS_NICE, both in the initial \
         user namespace: run fermatactl as root of the host",
);
const NO_CONTEXT: Explanation = (
    "no context has this number",
    "`fermatactl list` shows the contexts that there are",
);
const NOT_SET_UP: Explanation = (
    "the context is not set up",
    "`fermatactl list` shows the contexts that are",
);
const NO_SLOT_IN_SERVICE: Explanation = (
    "no slot that the context may use is in service any more",
    "`fermatactl info` shows which slots are quarantined; a reset of the card tries them again \
         (docs/operations.md)",
);
const NEIGHBOURS: Explanation = (
    "the card has no DMA window check, and other devices have joined its IOMMU group",
    "`fermatactl info` names them: remove them, or run fermatactl as root of the host",
);
const NO_SYSFS: Explanation = ("the card has no files below /sys", "mount sysfs at /sys");
const STATE_GREW: Explanation = (
    "the card reports a larger state than the snapshot buffer has room for",
    "the card broke its protocol: reset the card, and see docs/operations.md",
);

/// Returns cause and remedy for an error of a call.
pub(crate) fn explain(call: Call, error: Error) -> (String, String) {
    in_full(named(call, error).or_else(|| of_any_call(error)), error)
}

/// Returns an explanation, or the kernel's text for the error.
fn in_full(explanation: Option<Explanation>, error: Error) -> (String, String) {
    match explanation {
        Some((cause, remedy)) => (cause.into(), remedy.into()),
        None => (
            error.to_string(),
            "`dmesg` may say why; docs/operations.md has symptoms and causes".into(),
        ),
    }
}

/// Returns cause and remedy for the error in the status of a failed job.
pub(crate) fn explain_failure(error: Error) -> (String, String) {
    in_full(of_job(error), error)
}

/// Returns whether a job failed because its engine accessed memory outside of the arena.
pub(crate) fn is_fault(error: Error) -> bool {
    error == Error::Other(EFAULT)
}

/// Explains errors that `uapi/fermata.h` names for jobs.
fn of_job(error: Error) -> Option<Explanation> {
    Some(match error {
        Error::Other(ETIME) => (
            "the engine did not pause in time, and its slot was reset",
            "give the engine longer (--set preempt-timeout=1s; more than the default takes \
                 CAP_SYS_NICE)",
        ),
        Error::Other(EFAULT) => (
            "the engine touched memory outside of the arena",
            "correct the addresses that the job has",
        ),
        Error::Other(EIO) => (
            "the state of the job could not be saved or restored",
            "run the job again, or with --replayable",
        ),
        Error::Protocol => (
            "the card broke its protocol",
            "reset the card; on a base card base_settle_us may be too small, or a declared result \
                 gives no answer (docs/operations.md)",
        ),
        Error::Gone => ("the card is gone", "`dmesg` tells why"),
        _ => return None,
    })
}

/// Explains errors that every call can return.
fn of_any_call(error: Error) -> Option<Explanation> {
    const VERSIONS: &str =
        "driver and fermatactl may be of different versions: install both of one version";
    Some(match error {
        Error::Gone => (
            "the card is gone",
            "the card was unplugged or unbound, or has died: `dmesg` tells; `fermatactl list` \
                 shows which cards there are",
        ),
        Error::Invalid => ("the driver does not take the call's argument", VERSIONS),
        Error::Other(E2BIG) => (
            "the driver does not know all of the call's argument",
            VERSIONS,
        ),
        Error::Other(ENOTTY) => ("the driver does not know this call", VERSIONS),
        Error::Other(EFAULT) => ("memory of fermatactl was not accessible", "try again"),
        Error::Interrupted => ("interrupted by a signal", "try again"),
        Error::NoMemory => (
            "out of memory",
            "free memory, or raise the limit of the memory cgroup",
        ),
        _ => return None,
    })
}

/// Explains errors that `uapi/fermata.h` names for a call.
fn named(call: Call, error: Error) -> Option<Explanation> {
    match call {
        Call::Open | Call::CardInfo | Call::Status | Call::ContextInfo => None,
        Call::PolicyRead => (error == Error::NotReady).then_some(NO_SYSFS),
        Call::SlotInfo => (error == Error::Invalid).then_some((
            "the card has no slot of this number",
            "`fermatactl list` shows the slots",
        )),
        Call::Setup => of_setup(error),
        Call::ArenaCreate | Call::SnapshotCreate => of_memory(call, error),
        Call::RegistersWrite | Call::RegistersRead => of_registers(call, error),
        Call::Start => of_start(error),
        Call::Hint => of_hint(error),
        Call::Wait => of_wait(error),
        Call::Param(param) => of_param(param, error),
        Call::Reserve => of_reservation(error),
        Call::Histogram | Call::Control => of_number(call, error),
        Call::ControlParam(_) | Call::ReserveAny => of_settings_of_any(call, error),
        Call::PolicyWrite => of_policy(error),
        Call::GroupSet => of_groups(error),
    }
}

fn of_setup(error: Error) -> Option<Explanation> {
    Some(match error {
        Error::Exists => ("the context is set up already", "start the command again"),
        Error::NotFound => (
            "no slot has this engine",
            "`fermatactl list` shows the engines of each card",
        ),
        Error::NoSpace => (
            "the card has as many contexts as max_contexts allows",
            "wait until a context is closed (`fermatactl list`), or load the module with a larger \
                 max_contexts",
        ),
        Error::Other(EDQUOT) => (
            "the group has as many contexts on the card as it may (`fermatactl group CARD` shows how \
                 many)",
            "close contexts (`fermatactl list`), allow the group more (`fermatactl group \
                 --max-contexts`), load the module with a larger max_contexts_group, or run \
                 fermatactl with CAP_SYS_RESOURCE",
        ),
        Error::Busy => (
            "the card cannot keep users apart (no DMA window check), and another user is on it",
            "wait until the contexts of that user are closed (`fermatactl list`), or use another \
                 card",
        ),
        Error::NotPermitted => (
            "the card has no DMA window check, and no IOMMU of its own before it",
            "boot with an IOMMU, and without iommu=pt; if `fermatactl info` shows neighbours in the \
                 card's IOMMU group, put the card into another place; or run fermatactl as root of the \
                 host, on a kernel that is not locked down: set-up takes CAP_SYS_RAWIO",
        ),
        _ => return None,
    })
}

/// Explains errors of calls that allocate arenas and snapshot buffers.
fn of_memory(call: Call, error: Error) -> Option<Explanation> {
    Some(match (call, error) {
        (_, Error::Exists) => (
            "the context has this memory already",
            "start the command again",
        ),
        (_, Error::NotReady) => NOT_SET_UP,
        (Call::ArenaCreate, Error::NotPermitted) => NEIGHBOURS,
        (_, Error::NoMemory) => (
            "not so much memory, or more than RLIMIT_MEMLOCK or the group's limit allows",
            "raise the limits of locked memory (`ulimit -l`; CAP_IPC_LOCK has none), of the \
                 memory cgroup and of the group (`fermatactl group --max-bytes`); without an \
                 IOMMU the memory must be contiguous, too",
        ),
        (Call::ArenaCreate, Error::Invalid | Error::OutOfRange) => (
            "larger than the card's largest arena",
            "`fermatactl info` tells the largest arena (module parameter max_arena_mib)",
        ),
        (Call::SnapshotCreate, Error::Protocol) => (
            "the card reports an impossible size of its state",
            "the card broke its protocol: reset the card, and see docs/operations.md",
        ),
        _ => return None,
    })
}

fn of_registers(call: Call, error: Error) -> Option<Explanation> {
    Some(match (call, error) {
        (_, Error::Invalid) => (
            "a register is out of range",
            "registers are at multiples of 8 from 0x30 to 0xff8",
        ),
        (_, Error::NotReady) => NOT_SET_UP,
        (Call::RegistersWrite, Error::Busy) => (
            "a job has not ended",
            "wait for the end of the job (`fermatactl list` shows its state)",
        ),
        (Call::RegistersRead, Error::Other(EIO)) => (
            "a register gives no answer",
            "name only registers that the engine has",
        ),
        (Call::RegistersRead, Error::Again) => (
            "the context is on no slot, and a register is no declared result",
            "declare the register as a result (--result) before the job is started",
        ),
        _ => return None,
    })
}

fn of_start(error: Error) -> Option<Explanation> {
    Some(match error {
        Error::NotPermitted => NEIGHBOURS,
        Error::Busy => (
            "the last job has not ended",
            "wait for the end of the job (`fermatactl list` shows its state)",
        ),
        Error::NotReady => (
            "the context is not set up, or has no snapshot buffer",
            "start the command again",
        ),
        Error::NoAddress => (
            "the arena has no device address, or the card needs an arena",
            "map the arena before the job is started",
        ),
        Error::NoState => (
            "no state was brought in",
            "restore the job from its file (fermata-checkpoint)",
        ),
        Error::Invalid => (
            "the engine reads a queue, and its jobs cannot run again",
            "leave out --replayable",
        ),
        Error::Other(EIO) => NO_SLOT_IN_SERVICE,
        Error::Protocol => STATE_GREW,
        _ => return None,
    })
}

fn of_hint(error: Error) -> Option<Explanation> {
    Some(match error {
        Error::OutOfRange => (
            "the moment is past, or more than 10s ahead",
            "give a time of at most 10s",
        ),
        Error::Busy => (
            "the last job has not ended",
            "a hint is for the next job: try again when the job has ended",
        ),
        Error::Again => (
            "the last hint is less than 100us ago, or unused hints of the group have cost too much",
            "try again, after seconds if hints of the group were not followed by jobs",
        ),
        Error::NotReady => NOT_SET_UP,
        Error::Other(EIO) => NO_SLOT_IN_SERVICE,
        _ => return None,
    })
}

fn of_wait(error: Error) -> Option<Explanation> {
    Some(match error {
        Error::NotFound => ("no job was started", "start a job first"),
        Error::NotReady => NOT_SET_UP,
        Error::TimedOut => ("the deadline came first", "wait for longer"),
        Error::Again => (
            "nothing has happened, and the file is O_NONBLOCK",
            "wait with poll()",
        ),
        _ => return None,
    })
}

fn of_param(param: Param, error: Error) -> Option<Explanation> {
    Some(match (param, error) {
        (_, Error::OutOfRange) => (
            "out of range",
            "`fermatactl set --help` has the ranges; a cap is at most 100, and \
                 cooperative is what the engine can",
        ),
        (_, Error::NotReady) => NOT_SET_UP,
        // No value of these parameters needs a capability.
        (Param::Cap | Param::SlotMask | Param::Cooperative, Error::NotPermitted) => return None,
        (Param::Enabled, Error::NotPermitted) => ADMINISTRATOR,
        (_, Error::NotPermitted) => RAISE,
        (Param::SlotMask, Error::Busy) => (
            "the context has a reservation, which counts on all slots of the engine",
            "drop the reservation first (reservation=none)",
        ),
        (Param::SlotMask, Error::Invalid) => (
            "a slot is not there, or has another engine",
            "`fermatactl list` shows slots and engines",
        ),
        (Param::SlotMask, Error::Other(EIO)) => (
            "none of the slots is in service",
            "`fermatactl info` shows which slots are quarantined: name another slot",
        ),
        (Param::SlotMask, Error::Protocol) => STATE_GREW,
        _ => return None,
    })
}

fn of_reservation(error: Error) -> Option<Explanation> {
    Some(match error {
        Error::OutOfRange => (
            "out of range",
            "the budget is 100us up to the deadline, the deadline at most the period, the period \
                 1ms to 10s",
        ),
        Error::NotReady => NOT_SET_UP,
        Error::NotPermitted => (
            NOT_PERMITTED,
            "a reservation takes CAP_SYS_NICE in the initial user namespace: run fermatactl as \
                 root of the host",
        ),
        Error::Busy => (
            "the reservation cannot be admitted",
            "what is promised already leaves no room, or the context may not use all slots of the \
                 engine: give a smaller budget or a longer deadline, or drop the reservations of \
                 others",
        ),
        _ => return None,
    })
}

/// Explains errors of calls that act on a context by its number.
fn of_number(call: Call, error: Error) -> Option<Explanation> {
    Some(match (call, error) {
        (_, Error::NoContext) => NO_CONTEXT,
        (Call::Control, Error::NotPermitted) => (
            NOT_PERMITTED,
            "this takes CAP_SYS_ADMIN in the initial user namespace, or other devices have joined \
                 the card's IOMMU group (`fermatactl info`): run fermatactl as root of the host",
        ),
        (Call::Control, Error::NotFound) => (
            "the context has no job, or the job has ended",
            "wait until the program starts a job: `fermatactl info` shows the state of the context",
        ),
        (Call::Control, Error::Other(EIO)) => NO_SLOT_IN_SERVICE,
        (Call::Histogram, Error::NotPermitted) => (
            "they tell of other users",
            "this takes CAP_PERFMON or CAP_SYS_ADMIN in the initial user namespace: run \
                 fermatactl as root of the host; members of the group fermata-monitor see the \
                 counters",
        ),
        (Call::Histogram, Error::Invalid) => (
            "the driver has no such histogram or slot",
            "driver and fermatactl may be of different versions: install both of one version",
        ),
        _ => return None,
    })
}

/// Explains errors of parameters and reservations of any context: the errors that the own context
/// can give, and a missing capability.
fn of_settings_of_any(call: Call, error: Error) -> Option<Explanation> {
    match (call, error) {
        (_, Error::NoContext) => Some(NO_CONTEXT),
        (
            Call::ControlParam(Param::Cap | Param::SlotMask | Param::Cooperative | Param::Enabled),
            Error::NotPermitted,
        ) => Some(ADMINISTRATOR),
        (_, Error::NotPermitted) => Some(RAISE_ANY),
        (Call::ControlParam(param), error) => of_param(param, error),
        (_, error) => of_reservation(error),
    }
}

fn of_policy(error: Error) -> Option<Explanation> {
    Some(match error {
        Error::NotPermitted => ADMINISTRATOR,
        Error::NotReady => NO_SYSFS,
        Error::Other(EROFS) => (
            "sysfs is mounted read-only",
            "run fermatactl outside of the container",
        ),
        Error::NotFound => (
            "the driver and fermatactl do not know the same policies",
            "install driver and fermatactl of one version, or name another policy",
        ),
        Error::OutOfRange => (
            "the starvation boost interval is out of range",
            "give 10ms to 60s, or 0 for none",
        ),
        _ => return None,
    })
}

fn of_groups(error: Error) -> Option<Explanation> {
    Some(match error {
        Error::NotPermitted => ADMINISTRATOR,
        Error::Other(EBADF) => (
            "it is not the directory of a cgroup (version 2)",
            "name a directory below the mount that `findmnt -t cgroup2` shows; without one, set it \
                 for users (`--user`), or boot without systemd.unified_cgroup_hierarchy=0",
        ),
        Error::NotFound => (
            "the cgroup is not registered, or was removed meanwhile",
            "register it by setting something: `fermatactl group CARD CGROUP --weight 100`",
        ),
        Error::OutOfRange => (
            "a value is out of range",
            "give what `fermatactl group --help` names; driver and fermatactl may be of different \
                 versions",
        ),
        Error::Invalid => ("a slot is not there", "`fermatactl list` shows the slots"),
        Error::Busy => (
            "a slot is reserved for another group",
            "`fermatactl info` shows which slot and group; `fermatactl group CARD CGROUP \
                 --exclusive none` ends that",
        ),
        Error::NoSpace => (
            "as many cgroups are registered on the card as can be",
            "end a registration: `fermatactl group CARD CGROUP --remove`",
        ),
        Error::NoMemory => (
            "not so much memory",
            "free memory, or raise the limit of the memory cgroup",
        ),
        _ => return None,
    })
}

/// Compares the advice with `uapi/fermata.h`: each error that the header names for a call is
/// explained, with the capability that the header names there.
#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const HEADER: &str = include_str!("../../../uapi/fermata.h");

    /// The header's names of errors.
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

    /// Errors of calls that fermatactl does not make in this way.
    const NEVER: [(&str, &str, &str); 15] = [
        ("setup", "ENXIO", "of the calls before it"),
        ("setup", "EINVAL", "it names no slots"),
        ("arena_create", "EFAULT", "FERMATA_ARENA_USER"),
        ("arena_create", "EOPNOTSUPP", "FERMATA_ARENA_USER"),
        ("arena_create", "EBADF", "FERMATA_ARENA_SHARED"),
        ("arena_create", "ESRCH", "memory of another process"),
        ("snapshot_create", "EFAULT", "FERMATA_SNAPSHOT_USER"),
        ("snapshot_create", "EOPNOTSUPP", "FERMATA_SNAPSHOT_USER"),
        ("snapshot_create", "EPERM", "memory of another process"),
        ("snapshot_create", "ESRCH", "memory of another process"),
        ("regs", "EPROTO", "the error of a job"),
        ("start", "ETIME", "the error of a job"),
        ("context_info", "ENOENT", "the end of the list"),
        ("wait", "EINTR", "the library waits again"),
        ("wait", "EAGAIN", "O_NONBLOCK is not set"),
    ];

    /// Returns the description of a structure.
    fn description(name: &str) -> &'static str {
        let begin = format!("/**\n * struct fermata_{name} - ");
        let at = HEADER.find(&begin).unwrap_or_else(|| panic!("{begin}"));
        HEADER[at..].split("*/").next().unwrap()
    }

    /// Returns the words of a text that are all capitals, digits and underscores.
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
        // Explained alike for every call.
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
                // The snapshot buffer is charged like an arena.
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
}
