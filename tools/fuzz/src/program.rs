// SPDX-License-Identifier: GPL-2.0-or-later

//! Programs: steps of two threads on four files. Programs are generated, mutated, written and
//! parsed. And the interface as the fuzzer knows it: calls, and the members of their arguments.

use anyhow::{bail, Context as _, Result};
use fermata::{uapi, EngineId};
use rand::seq::IndexedRandom;
use rand::Rng;
use std::fmt;
use std::mem::offset_of;
use std::str::FromStr;
use std::sync::Arc;

/// Number of files that a program can have open at once.
pub(crate) const FILES: u8 = 4;
/// Number of threads of a program. The second one has no privileges.
pub(crate) const THREADS: u8 = 2;
const STEPS_MAX: usize = 24;

/// A program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) steps: Vec<Step>,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The thread that takes the step.
    pub(crate) thread: u8,
    /// The file that the step is about.
    pub(crate) file: u8,
    pub(crate) action: Action,
}

/// The action of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Opens the node; 1: with `O_NONBLOCK`.
    Open(u64),
    Close,
    /// Maps this many bytes of the arena, and writes to them.
    Map(u64),
    Unmap,
    Poll,
    /// Chooses the card's policy in sysfs, by its place in [`fermata::Policy::ALL`].
    Policy(u64),
    /// Chooses the card's starvation boost interval in sysfs, in milliseconds.
    Boost(u64),
    /// A call: index in [`CALLS`], size that the argument claims, and a value for each member.
    Call(usize, u32, Vec<u64>),
}

/// Values at edges.
const EDGES: [u64; 16] = [
    0,
    1,
    2,
    3,
    7,
    8,
    100,
    255,
    256,
    4095,
    4096,
    65_536,
    1 << 31,
    u32::MAX as u64,
    1 << 47,
    u64::MAX,
];

fn value(kind: Kind, rng: &mut impl Rng) -> u64 {
    if rng.random_ratio(1, 12) {
        return *EDGES.choose(rng).unwrap_or(&0);
    }
    match kind {
        // Most flags are 0.
        Kind::Small if rng.random_bool(0.5) => 0,
        Kind::Small => rng.random_range(0..12),
        Kind::Length => 4096 * rng.random_range(0..16),
        Kind::Duration => {
            let exponent = rng.random_range(0..34);
            rng.random_range(0..=1 << exponent)
        }
        Kind::Deadline => *[0, 1, 2, 5, u64::MAX].choose(rng).unwrap_or(&0),
        Kind::Context | Kind::File => rng.random_range(0..5),
        Kind::Pointer => rng.random_range(0..260),
        Kind::Eventfd | Kind::Cgroup | Kind::Process => rng.random_range(0..3),
        Kind::Engine => rng.random_range(0..6),
    }
}

fn size(index: usize, rng: &mut impl Rng) -> u32 {
    let size = CALLS[index].size as u32;
    if rng.random_ratio(9, 10) {
        return size;
    }
    *[0, 4, 8, size - 8, size + 8, 4096, 4097, u32::MAX]
        .choose(rng)
        .unwrap_or(&size)
}

fn call(index: usize, rng: &mut impl Rng) -> Action {
    let values = CALLS[index]
        .members
        .iter()
        .map(|member| value(member.kind, rng))
        .collect();
    Action::Call(index, size(index, rng), values)
}

fn named(name: &str) -> usize {
    CALLS.iter().position(|call| call.name == name).unwrap_or(0)
}

/// Returns the steps that set up a context and start a job.
fn setup_steps(file: u8, rng: &mut impl Rng) -> Vec<Step> {
    let engine = rng.random_range(0..4);
    let exact = |name: &str, values: Vec<u64>| {
        Action::Call(named(name), CALLS[named(name)].size as u32, values)
    };
    [
        Action::Open(0),
        exact("setup", vec![0, engine, 0]),
        exact("arena_create", vec![0, 4 * 4096, 0, u64::MAX, 0, 0, 0]),
        Action::Map(4 * 4096),
        exact("snapshot_create", vec![0, 0, u64::MAX, 0, 0]),
        exact("results", vec![0, 2, 0, 0]),
        exact("regs_write", vec![0, 6, 0, rng.random_range(0..256)]),
        exact("start", vec![0]),
    ]
    .map(|action| Step {
        thread: 0,
        file,
        action,
    })
    .to_vec()
}

impl Step {
    fn random(rng: &mut impl Rng) -> Self {
        let action = match rng.random_range(0..25) {
            0 => Action::Open(rng.random_range(0..2)),
            1 => Action::Close,
            2 => Action::Map(4096 * rng.random_range(0..6)),
            3 => Action::Unmap,
            4 => Action::Poll,
            5 => Action::Policy(rng.random_range(0..5)),
            6 => Action::Boost(*[0, 1, 10, 1000, 60_000, u64::MAX].choose(rng).unwrap_or(&0)),
            _ => call(rng.random_range(0..CALLS.len()), rng),
        };
        Self {
            thread: rng.random_range(0..THREADS),
            file: rng.random_range(0..FILES),
            action,
        }
    }

    fn mutate(&mut self, rng: &mut impl Rng) {
        match (&mut self.action, rng.random_range(0..6)) {
            (_, 0) => self.thread = rng.random_range(0..THREADS),
            (_, 1) => self.file = rng.random_range(0..FILES),
            (Action::Call(index, told, _), 2) => *told = size(*index, rng),
            (Action::Call(index, _, values), _) if !values.is_empty() => {
                let member = rng.random_range(0..values.len());
                values[member] = match rng.random_range(0..4) {
                    0 => values[member].wrapping_add(1),
                    1 => values[member] ^ 1 << rng.random_range(0..64),
                    _ => value(CALLS[*index].members[member].kind, rng),
                };
            }
            _ => *self = Self::random(rng),
        }
    }
}

impl Program {
    /// Returns a random program.
    pub(crate) fn random(rng: &mut impl Rng) -> Self {
        let mut steps = Vec::new();
        for file in 0..rng.random_range(1..3) {
            steps.extend(setup_steps(file, rng));
        }
        for _ in 0..rng.random_range(1..10) {
            steps.push(Step::random(rng));
        }
        Self { steps }
    }

    /// Returns a program with some changes, or with a part of `other`.
    pub(crate) fn mutated(&self, other: &Self, rng: &mut impl Rng) -> Self {
        let mut steps = self.steps.clone();
        for _ in 0..rng.random_range(1..5) {
            let at = rng.random_range(0..=steps.len());
            match rng.random_range(0..6) {
                0 => steps.insert(at, Step::random(rng)),
                1 if at < steps.len() => drop(steps.remove(at)),
                2 if !other.steps.is_empty() => {
                    steps.truncate(at);
                    let from = rng.random_range(0..other.steps.len());
                    steps.extend_from_slice(&other.steps[from..]);
                }
                3 if at < steps.len() => steps.insert(at, steps[at].clone()),
                _ if at < steps.len() => steps[at].mutate(rng),
                _ => steps.push(Step::random(rng)),
            }
        }
        steps.truncate(STEPS_MAX);
        Self { steps }
    }

    /// Returns the program without step `n`.
    pub(crate) fn without(&self, n: usize) -> Self {
        let mut steps = self.steps.clone();
        steps.remove(n);
        Self { steps }
    }
}

/// Returns the text of programs, with a blank line between two.
pub(crate) fn corpus_text(programs: &[Arc<Program>]) -> String {
    let texts: Vec<_> = programs.iter().map(ToString::to_string).collect();
    texts.join("\n")
}

/// Returns the programs of a text like that of [`corpus_text`]. Lines that begin with `#` are
/// comments.
pub(crate) fn parse_corpus(text: &str) -> Result<Vec<Program>> {
    let programs = text.split("\n\n").map(str::parse::<Program>);
    let is_comment = |program: &Program| program.steps.is_empty();
    programs
        .filter(|program| !program.as_ref().is_ok_and(is_comment))
        .collect()
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Step {
            thread,
            file,
            action,
        } in &self.steps
        {
            write!(f, "{thread} {file} ")?;
            match action {
                Action::Open(mode) => write!(f, "open {mode}")?,
                Action::Close => write!(f, "close")?,
                Action::Map(length) => write!(f, "map {length}")?,
                Action::Unmap => write!(f, "unmap")?,
                Action::Poll => write!(f, "poll")?,
                Action::Policy(policy) => write!(f, "policy {policy}")?,
                Action::Boost(ms) => write!(f, "boost {ms}")?,
                Action::Call(index, size, values) => {
                    write!(f, "{} {size}", CALLS[*index].name)?;
                    for value in values {
                        write!(f, " {value:#x}")?;
                    }
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

fn number(word: &str) -> Result<u64> {
    let parsed = match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => word.parse(),
    };
    parsed.with_context(|| format!("no number: {word}"))
}

impl FromStr for Step {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self> {
        let words: Vec<_> = line.split_whitespace().collect();
        let [thread, file, name, rest @ ..] = &words[..] else {
            bail!("not `THREAD FILE STEP ...`: {line}");
        };
        let values = rest
            .iter()
            .map(|word| number(word))
            .collect::<Result<Vec<_>>>()?;
        let action = match (*name, &values[..]) {
            ("open", [mode]) => Action::Open(*mode),
            ("close", []) => Action::Close,
            ("map", [length]) => Action::Map(*length),
            ("unmap", []) => Action::Unmap,
            ("poll", []) => Action::Poll,
            ("policy", [policy]) => Action::Policy(*policy),
            ("boost", [ms]) => Action::Boost(*ms),
            (name, [size, values @ ..]) => {
                let index = CALLS.iter().position(|call| call.name == name);
                let index = index.with_context(|| format!("no such call: {name}"))?;
                if values.len() != CALLS[index].members.len() {
                    bail!("{name} has {} members: {line}", CALLS[index].members.len());
                }
                Action::Call(index, u32::try_from(*size)?, values.to_vec())
            }
            _ => bail!("no such step: {line}"),
        };
        let step = Self {
            thread: u8::try_from(number(thread)?)?,
            file: u8::try_from(number(file)?)?,
            action,
        };
        if step.thread >= THREADS || step.file >= FILES {
            bail!("no such thread or file: {line}");
        }
        Ok(step)
    }
}

impl FromStr for Program {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let steps = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        let steps = steps.map(str::parse).collect::<Result<_>>()?;
        Ok(Self { steps })
    }
}

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
    "hold" IOC_HOLD Hold { flags: Small, context: Context }
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
        children: Small, max_bytes: Length, uid: Small, reserved: Small
    }
};

/// The engines of the emulated card.
pub(crate) const ENGINES: [EngineId; 4] = [
    EngineId::LINKED_LIST,
    EngineId::MEMBENCH,
    EngineId::SHA256,
    EngineId::BLOCKMIX,
];

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;

    #[test]
    fn written_and_read_again() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let mut program = Program::random(&mut rng);
        for _ in 0..1000 {
            let other = Program::random(&mut rng);
            program = program.mutated(&other, &mut rng);
            assert!(program.steps.len() <= STEPS_MAX);
            assert_eq!(program, program.to_string().parse().unwrap());
        }
    }

    #[test]
    fn corpus_can_be_read() {
        let programs = parse_corpus(include_str!("../corpus.txt")).unwrap();
        assert!(programs.len() >= 200);
        let programs: Vec<_> = programs.into_iter().map(Arc::new).collect();
        let again = parse_corpus(&corpus_text(&programs)).unwrap();
        assert!(again.iter().eq(programs.iter().map(Arc::as_ref)));
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "",
            "0 0",
            "0 9 close",
            "2 0 close",
            "0 0 start 16",
            "0 0 none 8 0",
        ] {
            assert!(line.parse::<Step>().is_err(), "{line}");
        }
    }

    #[test]
    fn members_lie_within_their_arguments() {
        for call in CALLS {
            for member in call.members {
                assert!(member.offset + member.width <= call.size, "{}", call.name);
            }
        }
    }
}
