// SPDX-License-Identifier: GPL-2.0-or-later

//! Programs: steps of two threads on four files. Programs are generated, mutated, written and
//! parsed.

use crate::interface::{Kind, CALLS};
use anyhow::{bail, Context as _, Result};
use rand::{seq::IndexedRandom, Rng};
use std::{fmt, str::FromStr, sync::Arc};

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
