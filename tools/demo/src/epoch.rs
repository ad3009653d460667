// SPDX-License-Identifier: GPL-2.0-or-later
//! The first figure of EPOCH, with programs on RISC-V cores, and its basic benchmark: counters of
//! four bits.
//!
//! Three tenants share two slots. At t1 and t2 the first two start. At t3 a third tenant arrives,
//! of a higher priority than the second, which is saved; at t4 the third tenant has the slot. At t5
//! the third tenant is done, and at t6 the second one is resumed. The costs of a frame are those of
//! EPOCH, set by vm/fermatavm/demo.py. The card's log has marks t1 to t6, between which the picture
//! is drawn.

use crate::report::write;
use anyhow::{ensure, Context as _, Result};
use fermata::riscv::{self, Outcome};
use fermata::work::REG_TAG;
use fermata::{Arena, Context, EngineId, Events, Param, Policy, State};
use fermata_card::control::Control;
use fermata_output::say;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time limit for all waits; only a hang reaches it.
const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_micros(500);
/// Time for a job to run.
const STEADY: Duration = Duration::from_millis(40);
/// A timeslice longer than the figure.
const LONG: u64 = 10_000_000_000;

/// Options of `fermata-demo epoch`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// The card
    #[arg(long, default_value = "/dev/fermata0")]
    device: PathBuf,
    /// The emulated card's control port
    #[arg(long, default_value = "/dev/virtio-ports/fermata.card0")]
    control: PathBuf,
    /// The program of all three tenants: ELF, for RV32IMC
    #[arg(long, default_value = "/selftests/riscv-mixture")]
    program: PathBuf,
    /// Where the report goes
    #[arg(long, default_value = "/report/epoch.json")]
    report: PathBuf,
}

/// The tenants of the figure: argument of the program, and priority.
const TENANTS: [(u32, u64); 3] = [(120, 17), (80, 16), (5, 20)];

/// The form of an [`Outcome`] in the report.
#[derive(Serialize)]
#[serde(remote = "Outcome")]
struct ReportedOutcome {
    end: u64,
    code: u64,
    cycles: u64,
    instructions: u64,
    memory: u64,
    output: String,
}

struct Tenant {
    context: Context,
    arena: Arena,
}

impl Tenant {
    fn new(options: &Options, elf: &[u8], number: usize) -> Result<Self> {
        let (arg, priority) = TENANTS[number];
        let context = Context::open(&options.device)?;
        context.setup(EngineId::RISCV, 0)?;
        let arena = context.create_arena(riscv::arena_length(elf.len()))?;
        context.create_snapshot()?;
        context.set_param(Param::Timeslice, LONG)?;
        context.set_param(Param::Priority, priority)?;
        context.set_param(Param::PreemptTimeout, LONG)?;
        riscv::load(&context, &arena, elf, arg, number as u64 + 1)?;
        Ok(Self { context, arena })
    }

    /// Waits until the job is in a state.
    fn until(&self, state: State) -> Result<()> {
        let until = Instant::now() + TIMEOUT;
        while State::from(self.context.status()?.state) != state {
            ensure!(Instant::now() < until, "a job does not come to {state:?}");
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn finish(&self) -> Result<Outcome> {
        self.context.wait(Events::DONE, Some(TIMEOUT))?;
        let status = self.context.status()?;
        ensure!(
            State::from(status.state) == State::Done,
            "a job failed: errno {}",
            status.error
        );
        Ok(Outcome::of(&self.arena))
    }

    /// Runs the job while the card is otherwise idle.
    fn alone(&self) -> Result<Outcome> {
        self.context.start()?;
        let outcome = self.finish()?;
        ensure!(outcome.is_success(), "the program does not exit with 0");
        Ok(outcome)
    }

    /// Runs the job on one slot, held and resumed twice. Afterwards the driver has measured a save
    /// on the slot, and the second save has omitted unchanged frames.
    fn held_on(&self, slot: u32) -> Result<Outcome> {
        let all = self.context.param(Param::SlotMask)?;
        self.context.set_param(Param::SlotMask, 1 << slot)?;
        self.context.start()?;
        for _ in 0..2 {
            self.until(State::Running)?;
            std::thread::sleep(STEADY);
            self.context.preempt(true)?;
            self.context.wait(Events::HELD, Some(TIMEOUT))?;
            self.context.resume()?;
        }
        let outcome = self.finish()?;
        self.context.set_param(Param::SlotMask, all)?;
        Ok(outcome)
    }
}

/// The result of a tenant of the figure.
#[derive(Serialize)]
struct TenantResult {
    #[serde(with = "ReportedOutcome")]
    outcome: Outcome,
    as_alone: bool,
    preemptions: u64,
}

/// The result of a counter.
#[derive(Serialize)]
struct Count {
    engine: &'static str,
    counts: u64,
    bits: u64,
    right: bool,
    preemptions: u64,
}

#[derive(Serialize)]
struct Report {
    ok: bool,
    violations: u64,
    tenants: Vec<TenantResult>,
    frames_saved: u64,
    frames_left_out: u64,
    counters: Vec<Count>,
}

/// Plays the figure. Returns whether all results are right.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let mut control = Control::open(&options.control)?;
    let elf =
        std::fs::read(&options.program).with_context(|| options.program.display().to_string())?;
    let tenants = (0..TENANTS.len())
        .map(|number| Tenant::new(options, &elf, number))
        .collect::<Result<Vec<_>>>()?;
    let alone = tenants
        .iter()
        .map(Tenant::alone)
        .collect::<Result<Vec<_>>>()?;
    tenants[0].context.set_policy(Policy::Priority)?;
    let slots = tenants[0].context.slots_of(EngineId::RISCV)?;
    for &slot in &slots {
        ensure!(
            tenants[0].held_on(slot)? == alone[0],
            "held and resumed it is another"
        );
    }
    let preemptions = |tenant: &Tenant| Ok(tenant.context.status()?.preemptions);
    let before = tenants
        .iter()
        .map(preemptions)
        .collect::<Result<Vec<_>>>()?;
    let outcomes = play(&tenants, &mut control)?;
    let fates: Vec<TenantResult> = outcomes
        .into_iter()
        .zip(&alone)
        .zip(tenants.iter().zip(before))
        .map(|((outcome, alone), (tenant, before))| {
            Ok(TenantResult {
                as_alone: outcome == *alone,
                outcome,
                preemptions: preemptions(tenant)? - before,
            })
        })
        .collect::<Result<_>>()?;
    let counters = counters(&options.device)?;
    let mut frames = [0, 0];
    for slot in slots {
        let counted = control.numbers(&format!("counters slot={slot}"))?;
        for (sum, key) in frames.iter_mut().zip(["frames_saved", "frames_skipped"]) {
            *sum += counted.get(key).context("no such counter")?;
        }
    }
    let violations = control.numbers("violations")?["total"];
    let preempted = fates[1].preemptions >= 1;
    let right = fates.iter().all(|fate| fate.as_alone) && counters.iter().all(|count| count.right);
    let report = Report {
        ok: right && preempted && violations == 0,
        violations,
        tenants: fates,
        frames_saved: frames[0],
        frames_left_out: frames[1],
        counters,
    };
    print(&report);
    write(&report, &options.report)?;
    Ok(report.ok)
}

/// Plays t1 to t6, and waits for the ends of all jobs.
fn play(tenants: &[Tenant], control: &mut Control) -> Result<Vec<Outcome>> {
    let [first, second, third] = tenants else {
        unreachable!("three tenants")
    };
    let mut mark = |text: &str| control.ask(&format!("mark text={text}"));
    mark("t1")?;
    first.context.start()?;
    first.until(State::Running)?;
    std::thread::sleep(STEADY);
    mark("t2")?;
    second.context.start()?;
    second.until(State::Running)?;
    std::thread::sleep(STEADY);
    mark("t3")?;
    third.context.start()?;
    third.until(State::Running)?;
    mark("t4")?;
    let third = third.finish()?;
    mark("t5")?;
    second.until(State::Running)?;
    mark("t6")?;
    let (first, second) = (first.finish()?, second.finish()?);
    mark("end")?;
    Ok(vec![first, second, third])
}

/// Number of counts of each counter.
const COUNTS: u64 = 100_000;

/// Runs two counters up and two down, two tenants on each slot, in slices of a millisecond.
fn counters(device: &Path) -> Result<Vec<Count>> {
    const UP: EngineId = EngineId::COUNTER_UP;
    const DOWN: EngineId = EngineId::COUNTER_DOWN;
    let mut running = Vec::new();
    for (number, engine) in (0..).zip([UP, DOWN, UP, DOWN]) {
        let context = Context::open(device)?;
        context.setup(engine, 0)?;
        let arena = context.create_arena(4096)?;
        context.create_snapshot()?;
        context.set_param(Param::Timeslice, 1_000_000)?;
        let counts = COUNTS + number;
        context.write_registers(&[
            (0x30, counts),
            (0x38, number),
            (0x40, arena.base()),
            (REG_TAG, 16 + number),
        ])?;
        running.push((context, arena, engine, counts, number));
    }
    for (context, ..) in &running {
        context.start()?;
    }
    let mut found = Vec::new();
    for (context, arena, engine, counts, first) in running {
        context.wait(Events::DONE, Some(TIMEOUT))?;
        let up = engine == UP;
        let expected = if up {
            first.wrapping_add(counts)
        } else {
            first.wrapping_sub(counts)
        } & 0xf;
        found.push(Count {
            engine: if up { "counter_up" } else { "counter_down" },
            counts: arena.load(0),
            bits: arena.load(8),
            right: (arena.load(0), arena.load(8)) == (counts, expected),
            preemptions: context.status()?.preemptions,
        });
    }
    Ok(found)
}

fn print(report: &Report) {
    for (number, fate) in report.tenants.iter().enumerate() {
        say!(
            "tenant {}: {} cycles, {} preemptions, {}",
            number + 1,
            fate.outcome.cycles,
            fate.preemptions,
            if fate.as_alone {
                "as alone"
            } else {
                "NOT AS ALONE"
            }
        );
    }
    say!(
        "{} frames were written, {} had not changed",
        report.frames_saved,
        report.frames_left_out
    );
    for count in &report.counters {
        say!(
            "{}: {} counts, ends with {:04b}, {} preemptions, {}",
            count.engine,
            count.counts,
            count.bits,
            count.preemptions,
            if count.right { "right" } else { "WRONG" }
        );
    }
    say!("violations as the card counts them: {}", report.violations);
}
