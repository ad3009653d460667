// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermatactl run`: runs any engine on a file.
//!
//! Options for certain engines: each engine takes its own; an option that is left belongs to another
//! engine. For unknown engines, options set registers directly.

mod job;

use crate::advice::{self, Call};
use crate::card::{Card, CardName};
use crate::format::time;
use crate::trouble::{Out, Result, Trouble};
use crate::value::{self, number, number_in, ContextSetting, Parsed};
use crate::view::CardView;
use fermata::queue::Queue;
use fermata::work::{Access, LINE};
use fermata::{uapi, Arena, EngineId, Error, Events, State};
use fermata_output::file::{end_on_signals, NewFile};
use job::{Job, Product};
use serde::Serialize;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Run an engine of a card on a file, and print the result
///
/// The engines of the emulated card are known by name: linkedlist (the file's 64-bit words are the
/// values of a list), membench (accesses to the file's bytes), sha256, blockmix, queue (one
/// operation on the file), riscv (the file is a program: ELF, for RV32IMC), counter_up and
/// counter_down (no file).
///
/// Any other engine is named by its UUID, as `fermatactl list` shows it (with --raw, a known engine
/// too): the arena begins with the file, and --reg and --result say what its registers are for.
#[derive(Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools)] // switches of a command line
pub(crate) struct Run {
    /// The engine's name or UUID
    engine: Engine,
    /// The file; `-` is standard input
    file: Option<PathBuf>,
    /// The card; by default the first that has the engine
    #[arg(short, long)]
    card: Option<CardName>,
    /// A parameter of the context, as with `fermatactl set`; may be given several times
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<ContextSetting>,
    /// Announce each job this long before it is started, 1us to 10s, so that a slot is free by then
    #[arg(long, value_name = "TIME", value_parser = value::ahead)]
    hint: Option<Duration>,
    /// Run the job this many times, 1 or more
    #[arg(long, default_value = "1", value_name = "N", value_parser = value::count)]
    repeat: u64,
    /// Let the job run again from its beginning if the card loses its state
    #[arg(long)]
    replayable: bool,
    /// The word by which the emulated card knows whose job it is (register 0x50)
    #[arg(long, default_value = "0", value_name = "WORD", value_parser = value::number)]
    tag: u64,
    /// Write what the engine has made of the data to this file (of riscv: what the program has
    /// printed; with --raw: the arena)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

/// An engine by its name or its UUID.
#[derive(Clone, Copy, Debug)]
pub(super) struct Engine(pub(super) EngineId);

impl FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        EngineId::of(text).map(Self).map_err(|_| {
            let names = EngineId::KNOWN.map(|(_, name)| name);
            format!("neither an engine's UUID nor one of {}", names.join(", "))
        })
    }
}

pub(super) fn name_of_engine(engine: EngineId) -> String {
    engine.name().map_or_else(|| engine.to_string(), Into::into)
}

/// The result of a job.
#[derive(Serialize)]
struct Answer {
    card: Option<u32>,
    context: u32,
    engine: Option<&'static str>,
    engine_id: String,
    job: u64,
    result: Product,
    run_ns: u64,
    wait_ns: u64,
    slices: u64,
    preemptions: u64,
    replays: u64,
}

impl Run {
    pub(crate) fn run(&self, out: Out) -> Result<()> {
        let mut options = self.options.clone();
        let file = self.file.as_deref().map(read).transpose()?;
        let job = Job::new(self.engine.0, file, &mut options)?;
        let output = self.output.as_deref().map(create).transpose()?;
        let card = card_with(self.engine.0, self.card.as_slice())?;
        let context = &card.file;
        let number = self.set_up(&card)?;
        let arena = context.create_arena(job.arena_length());
        let arena = arena.map_err(|error| {
            let doing = format!("an arena of {} bytes", job.arena_length());
            card.refused(&doing, Call::ArenaCreate, error)
        })?;
        let snapshot = context.create_snapshot();
        snapshot
            .map_err(|error| card.refused("room for a snapshot", Call::SnapshotCreate, error))?;
        for setting in &self.set {
            let applied = setting.apply(context);
            applied.map_err(|error| card.refused(&setting.to_string(), setting.call(), error))?;
        }
        let shown = self.run_jobs(&card, number, &arena, &job, out)?;
        if let (Some(path), Some(file)) = (&self.output, output) {
            let written = file.fill(&job.output(&arena));
            written.map_err(|error| Trouble::of_file(path, &error))?;
        }
        shown
    }

    /// Runs the job as often as asked for, or until its result cannot be printed. Returns whether
    /// the results were printed.
    fn run_jobs(
        &self,
        card: &Card,
        number: u32,
        arena: &Arena,
        job: &Job,
        out: Out,
    ) -> Result<Result<()>> {
        let context = &card.file;
        let mut before = uapi::Status::default();
        for _ in 0..self.repeat {
            let queue = self.start(card, arena, job)?;
            let ended = context.wait(Events::DONE, None);
            ended.map_err(|error| card.refused("waiting for the job", Call::Wait, error))?;
            let status = context.status();
            let status =
                status.map_err(|error| card.refused("the job's state", Call::Status, error))?;
            if State::from(status.state) != State::Done {
                return Err(failed(card, &status));
            }
            let product = job.product(context, arena, queue);
            let product = product
                .map_err(|error| card.refused("the job's result", Call::RegistersRead, error))?;
            let answer = Answer {
                card: card.number(),
                context: number,
                engine: self.engine.0.name(),
                engine_id: self.engine.0.to_string(),
                job: status.job,
                result: product,
                run_ns: status.run_ns - before.run_ns,
                wait_ns: status.wait_ns - before.wait_ns,
                slices: status.slices - before.slices,
                preemptions: status.preemptions - before.preemptions,
                replays: status.replays,
            };
            let shown = out.show(&answer, |answer| self.text(answer));
            if shown.is_err() {
                return Ok(shown);
            }
            before = status;
        }
        Ok(Ok(()))
    }

    fn set_up(&self, card: &Card) -> Result<u32> {
        let context = card.file.setup(self.engine.0, 0);
        context.map_err(|error| card.refused("setting up a context", Call::Setup, error))
    }

    /// Sets up a context and starts a job.
    fn start<'a>(&self, card: &Card, arena: &'a Arena, job: &Job) -> Result<Option<Queue<'a>>> {
        let context = &card.file;
        let refused = |doing: &'static str, call| move |error| card.refused(doing, call, error);
        let queue = job.load(context, arena, self.tag);
        let queue = queue.map_err(refused("the job's registers", Call::RegistersWrite))?;
        if let Some(ahead) = self.hint {
            let hinted = context.hint(Some(ahead));
            hinted.map_err(refused("announcing the job", Call::Hint))?;
            std::thread::sleep(ahead);
        }
        let started = if self.replayable {
            context.start_replayable()
        } else {
            context.start()
        };
        started.map_err(refused("starting the job", Call::Start))?;
        Ok(queue)
    }

    fn text(&self, answer: &Answer) -> String {
        let mut text = name_of_engine(self.engine.0);
        if let Some(file) = &self.file {
            text += &format!(" {}", file.display());
        }
        text += &format!(": {}", answer.result.text());
        text + &format!(
            "\n  ran {} in {} slices, waited {}, preempted {} times\n",
            time(answer.run_ns),
            answer.slices,
            time(answer.wait_ns),
            answer.preemptions
        )
    }
}

/// Opens the named card, or the first card with the engine.
pub(super) fn card_with(engine: EngineId, named: &[CardName]) -> Result<Card> {
    let mut there = Vec::new();
    for card in Card::open_all(named)? {
        let slots = card.file.slots_of(engine);
        if !slots
            .map_err(|error| card.refused("its slots", Call::SlotInfo, error))?
            .is_empty()
        {
            return Ok(card);
        }
        for slot in CardView::of(&card)?.slots {
            there.push(format!("{}: {}", card.name, slot.engine_name()));
        }
    }
    let engine = name_of_engine(engine);
    Err(Trouble::new(
        format!("no slot has the engine {engine}"),
        format!("there are {}", there.join(", ")),
    ))
}

/// Opens the file of --output before the job is run.
fn create(path: &Path) -> Result<NewFile> {
    let opened = end_on_signals().and_then(|()| NewFile::create(path));
    opened.map_err(|error| Trouble::of_file(path, &error))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin(), &mut bytes).map(|_| bytes)
    } else {
        std::fs::read(path)
    };
    bytes.map_err(|error| Trouble::of_file(path, &error))
}

/// Returns the error for a failed job.
pub(super) fn failed(card: &Card, status: &uapi::Status) -> Trouble {
    let error = Error::from_errno(status.error as i32);
    let (mut cause, remedy) = advice::explain_failure(error);
    if advice::is_fault(error) {
        let how = if status.fault_flags & uapi::FAULT_WRITE != 0 {
            "written"
        } else {
            "read"
        };
        cause = format!(
            "its engine has {how} {:#x}, which is outside of the arena ({:#x}, {:#x} bytes)",
            status.fault_addr, status.device_base, status.arena_length
        );
    }
    Trouble::job_failed(
        format!("{}: the job has failed: {cause}", card.name),
        remedy,
    )
}

/// What a job does, as far as it can be chosen.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Options of engines")]
struct Options {
    /// linkedlist, membench, blockmix: what checksum and pattern begin with [default: 0]
    #[arg(long, value_name = "WORD", value_parser = number)]
    seed: Option<u64>,
    /// linkedlist: nodes (0: all); membench: accesses, 1 or more [default: one for each line];
    /// counters: counts, 1 or more [default: 1000]
    #[arg(long, value_name = "N", value_parser = number)]
    count: Option<u64>,
    /// membench: what kind of access [default: read]
    #[arg(long, value_enum)]
    access: Option<AccessName>,
    /// membench: in random order
    #[arg(long)]
    random: bool,
    /// blockmix: bytes of a block, 64 to 65536, a multiple of 64 [default: 4096]
    #[arg(long, value_name = "BYTES", value_parser = block)]
    block: Option<u64>,
    /// counters: where to begin, 0 to 15 [default: 0]
    #[arg(long, value_name = "BITS", value_parser = first)]
    first: Option<u64>,
    /// queue: what is done to the file [default: sha256]
    #[arg(long, value_enum)]
    op: Option<OperationName>,
    /// riscv: what the program gets in a0, 32 bits [default: 0]; queue: pattern of fill, CRC (32
    /// bits) that crc32c continues from [default: 0]
    #[arg(long, value_name = "WORD", value_parser = number)]
    arg: Option<u64>,
    /// Treat a known engine like one named by UUID
    #[arg(long)]
    raw: bool,
    /// by UUID: a register; a VALUE of @OFFSET is the address of that byte of the arena, @OFFSET/64
    /// that address in lines of 64 bytes; may be given several times
    #[arg(long, value_name = "OFFSET=VALUE")]
    reg: Vec<Register>,
    /// by UUID: a register to be read at the end; may be given several times
    #[arg(long, value_name = "OFFSET", value_parser = offset)]
    result: Vec<u32>,
    /// by UUID: bytes of the arena, at least the file's [default: the file's, in whole pages]
    #[arg(long, value_name = "BYTES", value_parser = arena)]
    arena: Option<u64>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum AccessName {
    /// Reads lines
    Read,
    /// Writes a pattern
    Write,
    /// Reads lines and writes them, changed by the pattern
    Update,
}

impl From<AccessName> for Access {
    fn from(name: AccessName) -> Self {
        match name {
            AccessName::Read => Self::Read,
            AccessName::Write => Self::Write,
            AccessName::Update => Self::Update,
        }
    }
}

impl OperationName {
    /// Returns the range of --arg.
    fn arguments(self) -> RangeInclusive<u64> {
        match self {
            Self::Fill => 0..=u64::MAX,
            _ => 0..=u32::MAX.into(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum OperationName {
    /// Copies it
    Copy,
    /// Fills as many bytes with the pattern of --arg
    Fill,
    /// Its SHA-256
    #[default]
    Sha256,
    /// Its CRC-32C
    Crc32c,
}

fn block(text: &str) -> Parsed<u64> {
    match number_in(text, &(64..=65_536))? {
        bytes if bytes % LINE == 0 => Ok(bytes),
        _ => Err(format!(
            "{text} is no multiple of {LINE}: give one of 64 to 65536"
        )),
    }
}

fn first(text: &str) -> Parsed<u64> {
    number_in(text, &(0..=15))
}

/// Parses the length of an arena, which ends at most at the device address 2^47.
pub(super) fn arena(text: &str) -> Parsed<u64> {
    number_in(text, &(1..=1 << 47))
}

impl Options {
    /// Fails if an option is left, which belongs to another engine.
    fn none_left(&self, engine: &str) -> Result<()> {
        let left = [
            (self.seed.is_some(), "--seed"),
            (self.count.is_some(), "--count"),
            (self.access.is_some(), "--access"),
            (self.random, "--random"),
            (self.block.is_some(), "--block"),
            (self.first.is_some(), "--first"),
            (self.op.is_some(), "--op"),
            (self.arg.is_some(), "--arg"),
            (!self.reg.is_empty(), "--reg"),
            (!self.result.is_empty(), "--result"),
            (self.arena.is_some(), "--arena"),
        ];
        match left.into_iter().find(|(is_left, _)| *is_left) {
            None => Ok(()),
            Some((_, option)) => {
                let advice = if matches!(option, "--reg" | "--result" | "--arena") {
                    "with --raw it is taken as an engine that is known by its UUID only"
                } else {
                    "`fermatactl run --help` tells which options go with which engine"
                };
                Err(Trouble::wrong_arguments(
                    format!("{engine} has no {option}"),
                    advice,
                ))
            }
        }
    }

    /// Returns registers for an arena at a device address.
    fn registers(&self, base: u64) -> Vec<(u32, u64)> {
        let registers = self.reg.iter();
        registers
            .map(|register| (register.offset, register.value.at(base)))
            .collect()
    }
}

/// The value of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Plain(u64),
    /// The device address of a byte of the arena, divided by the second number.
    InArena(u64, u64),
}

impl Value {
    /// Returns the value for an arena at a device address.
    pub(super) fn at(self, base: u64) -> u64 {
        match self {
            Self::Plain(value) => value,
            Self::InArena(offset, unit) => base.wrapping_add(offset) / unit,
        }
    }
}

impl FromStr for Value {
    type Err = String;

    fn from_str(text: &str) -> Parsed<Self> {
        let Some(byte) = text.strip_prefix('@') else {
            return number(text).map(Self::Plain);
        };
        match byte.split_once('/') {
            None => Ok(Self::InArena(number(byte)?, 1)),
            Some((byte, unit)) => Ok(Self::InArena(number(byte)?, value::count(unit)?)),
        }
    }
}

/// A register and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Register {
    offset: u32,
    value: Value,
}

/// Parses the offset of a register that a program may write.
pub(super) fn offset(text: &str) -> Parsed<u32> {
    let offset = number(text)?;
    u32::try_from(offset)
        .ok()
        .filter(|offset| (uapi::REG_FIRST..=uapi::REG_LAST).contains(offset) && offset % 8 == 0)
        .ok_or_else(|| {
            let (first, last) = (uapi::REG_FIRST, uapi::REG_LAST);
            format!("registers are at multiples of 8 from {first:#x} to {last:#x}")
        })
}

impl FromStr for Register {
    type Err = String;

    fn from_str(text: &str) -> Parsed<Self> {
        let (at, value) = text.split_once('=').ok_or("not OFFSET=VALUE")?;
        Ok(Self {
            offset: offset(at)?,
            value: value.parse()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_offsets_and_values() {
        let parsed = "0x38=@0x1000".parse();
        let wanted = Register {
            offset: 0x38,
            value: Value::InArena(0x1000, 1),
        };
        assert_eq!(parsed, Ok(wanted));
        let in_lines: Register = "0x38=@0x1000/64".parse().unwrap();
        assert_eq!(in_lines.value.at(0x4_0000), 0x41000 / 64);
        assert_eq!("48=7".parse::<Register>().unwrap().offset, 0x30);
        for bad in [
            "0x30",
            "0x28=1",
            "0x1000=1",
            "0x31=1",
            "0x30=",
            "0x30=@",
            "0x30=-1",
            "0x30=@0/0",
            "0x30=7/64",
        ] {
            assert!(bad.parse::<Register>().is_err(), "{bad}");
        }
    }
}
