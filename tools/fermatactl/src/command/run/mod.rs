// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermatactl run`: any engine on a file.

mod job;
mod options;
mod stream;

use crate::advice::{self, Call};
use crate::card::{Card, CardName};
use crate::format::time;
use crate::number;
use crate::setting::ContextSetting;
use crate::trouble::{Out, Result, Trouble};
use crate::view::CardView;
use fermata::queue::Queue;
use fermata::{uapi, Arena, EngineId, Error, Events, State};
use job::{Job, Product};
use options::Options;
use serde::Serialize;
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
/// Any other is named by its UUID, as `fermatactl list` shows it (or with --raw, a known one, too):
/// the arena begins with the file, and --reg and --result say what its registers are for.
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
    /// Announce each job so long before it is started, 1us to 10s, so that a slot is free by then
    #[arg(long, value_name = "TIME", value_parser = number::ahead)]
    hint: Option<Duration>,
    /// Run it so many times, 1 or more
    #[arg(long, default_value = "1", value_name = "N", value_parser = number::count)]
    repeat: u64,
    /// It may run again from its beginning if the card loses its state
    #[arg(long)]
    replayable: bool,
    /// The word by which the emulated card knows whose job it is (register 0x50)
    #[arg(long, default_value = "0", value_name = "WORD", value_parser = number::number)]
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
struct Engine(EngineId);

impl FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        EngineId::of(text).map(Self).map_err(|_| {
            let names = EngineId::KNOWN.map(|(_, name)| name);
            format!("neither an engine's UUID nor one of {}", names.join(", "))
        })
    }
}

fn name_of_engine(engine: EngineId) -> String {
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
        let card = self.card_with_engine()?;
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
        let mut before = uapi::Status::default();
        for _ in 0..self.repeat {
            let queue = self.start(&card, &arena, &job)?;
            let ended = context.wait(Events::DONE, None);
            ended.map_err(|error| card.refused("waiting for the job", Call::Wait, error))?;
            let status = context.status();
            let status =
                status.map_err(|error| card.refused("the job's state", Call::Status, error))?;
            if State::from(status.state) != State::Done {
                return Err(failed(&card, &status));
            }
            let product = job.product(context, &arena, queue);
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
            out.show(&answer, |answer| self.text(answer))?;
            before = status;
        }
        if let Some(path) = &self.output {
            let written = std::fs::write(path, job.output(&arena));
            written.map_err(|error| Trouble::of_file(path, &error))?;
        }
        Ok(())
    }

    /// Opens the named card, or the first card with the engine.
    fn card_with_engine(&self) -> Result<Card> {
        let mut there = Vec::new();
        for card in Card::open_all(self.card.as_slice())? {
            let slots = card.file.slots_of(self.engine.0);
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
        let engine = name_of_engine(self.engine.0);
        Err(Trouble::new(
            format!("no slot has the engine {engine}"),
            format!("there are {}", there.join(", ")),
        ))
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
fn failed(card: &Card, status: &uapi::Status) -> Trouble {
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
