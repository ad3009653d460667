// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermatactl check-engine`: preempts a job of an engine at random points, and compares its result
//! with that of a run alone.

mod job;

use crate::advice::Call;
use crate::card::{Card, CardName};
use crate::command::run::{card_with, failed, name_of_engine, Engine};
use crate::format::{time, Hex};
use crate::trouble::{Out, Result, Trouble};
use crate::value::{self, ContextSetting};
use fermata::{uapi, Arena, Events, Param, State};
use job::{Job, Product};
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

/// How often a run alone is tried while others use the card.
const TRIES: u32 = 5;
/// Preemptions of a run, at most.
const MOST: u32 = 8;
/// Runs that are reported one by one.
const TOLD: usize = 10;

/// Preempt an engine's job at random points, on changing slots, and compare its result with that of
/// a run alone
///
/// FILE describes the job, one line each (`#` begins a comment):
///
///   arena BYTES           the memory of the job, in whole pages; 0 where nothing else is said
///
///   data OFFSET FILE      a file's bytes there; the name begins at the folder of this file
///
///   word OFFSET VALUE     a word of 64 bits there
///
///   reg OFFSET VALUE      a register
///
///   result OFFSET         a register that must have the same value at the end
///
///   ignore OFFSET BYTES   bytes of the arena that may differ, as counts of cycles do
///
/// A VALUE is a number, @OFFSET for the address of that byte of the arena, or @OFFSET/64 for that
/// address in lines of 64 bytes. All of the arena must be the same at the end.
///
/// A wrong result or a failed job makes the exit status 1, and so does a check in which no
/// preemption came to pass.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct CheckEngine {
    /// The engine's UUID or name
    engine: Engine,
    /// The file that describes the job
    file: PathBuf,
    /// The card; by default the first that has the engine
    #[arg(short, long)]
    card: Option<CardName>,
    /// Run the job this many times, 1 or more
    #[arg(long, default_value = "100", value_name = "N", value_parser = value::count)]
    runs: u64,
    /// Choose the points as the check did that has printed this seed; what they hit differs
    /// nevertheless [default: by chance]
    #[arg(long, value_name = "WORD", value_parser = value::number)]
    seed: Option<u64>,
    /// A parameter of the context, as with `fermatactl set`; may be given several times
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<ContextSetting>,
}

/// What the check has found.
#[derive(Debug, Serialize)]
struct Report {
    card: Option<u32>,
    engine_id: String,
    seed: Hex,
    slots: Vec<u32>,
    alone_ns: u64,
    runs: u64,
    right: u64,
    wrong: u64,
    failed: u64,
    preemptions: u64,
    slot_changes: u64,
    /// The first runs that were not right.
    bad: Vec<BadRun>,
}

/// A run that was not right.
#[derive(Debug, Serialize)]
struct BadRun {
    run: u64,
    difference: String,
    points: Vec<Point>,
}

/// A preemption.
#[derive(Clone, Copy, Debug, Serialize)]
struct Point {
    /// The time since the START or the resume before.
    after_ns: u64,
    slot: u32,
}

/// What a run was.
struct Trial {
    points: Vec<Point>,
    changes: u64,
    /// `Err`: why the job failed.
    product: std::result::Result<Product, String>,
}

/// A context with its job.
struct Check {
    card: Card,
    arena: Arena,
    job: Job,
    slots: Vec<u32>,
    random: Xoshiro256PlusPlus,
}

impl CheckEngine {
    pub(crate) fn run(&self, out: Out) -> Result<()> {
        let job = Job::read(&self.file)?;
        let card = card_with(self.engine.0, self.card.as_slice())?;
        let seed = self.seed.unwrap_or_else(by_chance);
        let mut check = self.set_up(card, job, seed)?;
        let (right, alone) = check.alone()?;
        let mut report = Report {
            card: check.card.number(),
            engine_id: self.engine.0.to_string(),
            seed: Hex(seed),
            slots: check.slots.clone(),
            alone_ns: alone.as_nanos() as u64,
            runs: 0,
            right: 0,
            wrong: 0,
            failed: 0,
            preemptions: 0,
            slot_changes: 0,
            bad: Vec::new(),
        };
        for _ in 0..self.runs {
            let trial = check.trial(alone)?;
            report.add(trial, &right);
        }
        out.show(&report, |report| self.text(report))?;
        report.verdict()
    }

    fn set_up(&self, card: Card, job: Job, seed: u64) -> Result<Check> {
        let (context, engine) = (&card.file, self.engine.0);
        let refused = |doing: &'static str, call| {
            let card = &card;
            move |error| card.refused(doing, call, error)
        };
        let slots = context.slots_of(engine);
        let slots = slots.map_err(refused("its slots", Call::SlotInfo))?;
        let number = context.setup(engine, 0);
        number.map_err(refused("setting up a context", Call::Setup))?;
        let arena = context.create_arena(job.arena);
        let arena = arena.map_err(refused("the job's arena", Call::ArenaCreate))?;
        let snapshot = context.create_snapshot();
        snapshot.map_err(refused("room for a snapshot", Call::SnapshotCreate))?;
        for setting in &self.set {
            let applied = setting.apply(context);
            applied.map_err(|error| card.refused(&setting.to_string(), setting.call(), error))?;
        }
        Ok(Check {
            card,
            arena,
            job,
            slots,
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
        })
    }

    fn text(&self, report: &Report) -> String {
        let Report {
            seed,
            alone_ns,
            runs,
            right,
            wrong,
            failed,
            preemptions,
            slot_changes,
            ..
        } = report;
        let slots: Vec<_> = report.slots.iter().map(ToString::to_string).collect();
        let mut text = format!(
            "{}: seed {seed}, slots {}\n  alone {}; {runs} runs: {right} right, {wrong} wrong, \
             {failed} failed\n  {preemptions} preemptions, {slot_changes} of them with another \
             slot after it\n",
            name_of_engine(self.engine.0),
            slots.join(", "),
            time(*alone_ns),
        );
        for bad in &report.bad {
            let points = bad.points.iter();
            let points = points.map(|p| format!("{} on slot {}", time(p.after_ns), p.slot));
            let points: Vec<_> = points.collect();
            text += &format!("  run {}: {}\n", bad.run, bad.difference);
            if !points.is_empty() {
                text += &format!("    preempted after {}\n", points.join(", "));
            }
        }
        text
    }
}

/// Returns a seed.
fn by_chance() -> u64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    now.as_nanos() as u64 ^ u64::from(std::process::id()) << 32
}

impl Report {
    fn add(&mut self, trial: Trial, right: &Product) {
        self.runs += 1;
        self.preemptions += trial.points.len() as u64;
        self.slot_changes += trial.changes;
        let difference = match trial.product {
            Err(error) => {
                self.failed += 1;
                error
            }
            Ok(product) => match product.difference(right) {
                None => {
                    self.right += 1;
                    return;
                }
                Some(difference) => {
                    self.wrong += 1;
                    difference
                }
            },
        };
        if self.bad.len() < TOLD {
            self.bad.push(BadRun {
                run: self.runs,
                difference,
                points: trial.points,
            });
        }
    }

    fn verdict(&self) -> Result<()> {
        let Self {
            runs,
            wrong,
            failed,
            preemptions,
            seed,
            ..
        } = self;
        if wrong + failed > 0 {
            return Err(Trouble::new(
                format!(
                    "{} of {runs} runs are wrong or failed, with {preemptions} preemptions",
                    wrong + failed
                ),
                format!(
                    "docs/porting.md says what an engine must do; --seed {seed} chooses the same \
                     points"
                ),
            ));
        }
        if *preemptions == 0 {
            return Err(Trouble::new(
                "no preemption came to pass: nothing was tested",
                format!(
                    "make the job longer, which takes {} alone, or --runs larger",
                    time(self.alone_ns)
                ),
            ));
        }
        Ok(())
    }
}

impl Check {
    fn refused(
        &self,
        doing: &'static str,
        call: Call,
    ) -> impl Fn(fermata::Error) -> Trouble + Copy + '_ {
        move |error| self.card.refused(doing, call, error)
    }

    /// Lets the context use one slot only.
    fn use_slot(&self, slot: u32) -> Result<()> {
        let set = self.card.file.set_param(Param::SlotMask, 1 << slot);
        set.map_err(self.refused("choosing a slot", Call::Param(Param::SlotMask)))
    }

    fn start(&self) -> Result<()> {
        let loaded = self.job.load(&self.card.file, &self.arena);
        loaded.map_err(self.refused("the job's registers", Call::RegistersWrite))?;
        let started = self.card.file.start();
        started.map_err(self.refused("starting the job", Call::Start))?;
        Ok(())
    }

    fn status(&self) -> Result<uapi::Status> {
        let status = self.card.file.status();
        status.map_err(self.refused("the job's state", Call::Status))
    }

    /// Waits for the end of the job. Returns what it was, and its result.
    fn end(&self) -> Result<(uapi::Status, std::result::Result<Product, String>)> {
        let ended = self.card.file.wait(Events::DONE, None);
        ended.map_err(self.refused("waiting for the job", Call::Wait))?;
        let status = self.status()?;
        if State::from(status.state) != State::Done {
            let text = failed(&self.card, &status).to_string();
            let text = text.lines().next().unwrap_or_default().to_string();
            return Ok((status, Err(text)));
        }
        let product = self.job.product(&self.card.file, &self.arena);
        let product = product.map_err(self.refused("the job's result", Call::RegistersRead))?;
        Ok((status, Ok(product)))
    }

    /// Runs the job on each slot without a preemption. Returns its result, and the longest time.
    fn alone(&self) -> Result<(Product, Duration)> {
        let mut known: Option<(Product, Duration)> = None;
        // Twice, also if there is but one slot.
        for &slot in self.slots.iter().chain(&self.slots[..1]) {
            self.use_slot(slot)?;
            let (product, run) = self.alone_on(slot)?;
            known = Some(match known {
                None => (product, run),
                Some((right, longest)) => {
                    if let Some(difference) = product.difference(&right) {
                        return Err(Trouble::new(
                            format!(
                                "slot {slot}: two runs without preemption differ: {difference}"
                            ),
                            "let the file ignore what may differ, as counts of cycles do; \
                             otherwise the engine is wrong without preemption already",
                        ));
                    }
                    (right, longest.max(run))
                }
            });
        }
        known.ok_or_else(|| Trouble::new("the engine has no slot", "`fermatactl info` shows slots"))
    }

    fn alone_on(&self, slot: u32) -> Result<(Product, Duration)> {
        for _ in 0..TRIES {
            let before = self.status()?;
            self.start()?;
            let (after, product) = self.end()?;
            let product = product.map_err(|error| {
                Trouble::job_failed(
                    format!("slot {slot}: the job fails without preemption: {error}"),
                    "correct the file of the job, or the engine",
                )
            })?;
            if after.preemptions == before.preemptions && after.replays == before.replays {
                let run = Duration::from_nanos(after.run_ns - before.run_ns);
                return Ok((product, run));
            }
        }
        Err(Trouble::new(
            format!("slot {slot}: the job is preempted for others, so there is no run alone"),
            "`fermatactl` shows who uses the card: use it alone, or shorten the job",
        ))
    }

    /// Runs the job with preemptions at random points. `alone`: how long it takes without.
    fn trial(&mut self, alone: Duration) -> Result<Trial> {
        let (mut points, mut changes) = (Vec::new(), 0);
        let mut slot = self.slot_other_than(None);
        self.use_slot(slot)?;
        let wanted = self.random.random_range(1..=MOST);
        self.start()?;
        for _ in 0..wanted {
            let since = Instant::now();
            let wait = self.point(alone, wanted);
            let done = self.card.file.wait(Events::DONE, Some(wait));
            if !matches!(done, Err(fermata::Error::TimedOut)) {
                done.map_err(self.refused("waiting for the job", Call::Wait))?;
                break;
            }
            let after_ns = since.elapsed().as_nanos() as u64;
            let before = self.status()?.preemptions;
            let held = self.card.file.hold(None);
            if !held.map_err(self.refused("preempting the job", Call::Control))? {
                break;
            }
            // A job that waited for others, or did not run yet, was not preempted by this.
            if self.status()?.preemptions > before {
                points.push(Point { after_ns, slot });
                let next = self.slot_other_than(Some(slot));
                changes += u64::from(next != slot);
                slot = next;
                self.use_slot(slot)?;
            }
            let resumed = self.card.file.resume();
            resumed.map_err(self.refused("resuming the job", Call::Control))?;
        }
        let (_, product) = self.end()?;
        Ok(Trial {
            points,
            changes,
            product,
        })
    }

    /// Chooses a slot, other than this one if there is another.
    fn slot_other_than(&mut self, slot: Option<u32>) -> u32 {
        let others = self.slots.iter().copied();
        let others: Vec<_> = others.filter(|other| Some(*other) != slot).collect();
        let chosen = others.choose(&mut self.random).copied();
        chosen.or(slot).unwrap_or_default()
    }

    /// Chooses how long the job works before it is preempted: one in four is as short as can be,
    /// because engines go wrong there; the others are spread over the job.
    fn point(&mut self, alone: Duration, preemptions: u32) -> Duration {
        if self.random.random_ratio(1, 4) {
            return Duration::ZERO;
        }
        let longest = alone.mul_f64(1.5 / f64::from(preemptions));
        longest.mul_f64(self.random.random())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(wrong: u64, failed: u64, preemptions: u64) -> Report {
        Report {
            card: None,
            engine_id: String::new(),
            seed: Hex(7),
            slots: vec![0],
            alone_ns: 1_000_000,
            runs: 10,
            right: 10 - wrong - failed,
            wrong,
            failed,
            preemptions,
            slot_changes: 0,
            bad: Vec::new(),
        }
    }

    #[test]
    fn only_right_results_of_preempted_jobs_pass() {
        assert!(report(0, 0, 1).verdict().is_ok());
        let error = |report: Report| report.verdict().unwrap_err().to_string();
        assert!(error(report(0, 0, 0)).contains("nothing was tested"));
        let text = error(report(1, 2, 40));
        assert!(text.contains("3 of 10 runs are wrong or failed, with 40 preemptions"));
        assert!(text.contains("--seed 0x7"));
    }
}
