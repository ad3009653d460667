// SPDX-License-Identifier: GPL-2.0-or-later

//! Runs random programs of calls against a card, on a kernel with KCOV. Programs that reach a new
//! place of the module are kept and mutated further.
//!
//! The kernel and the card judge, not the fuzzer. The report's folder gets the reached places
//! (`reached`) and the programs that reached a new place (`found`).

mod program;
mod run;

use anyhow::{Context, Result};
use clap::Parser;
use fermata_output::say;
use program::{corpus_text, parse_corpus, Program};
use rand::{seq::IndexedRandom, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use run::Executor;
use std::process::ExitCode;
use std::{
    collections::HashSet,
    env, fs,
    io::Write,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// Run random programs of calls, guided by the coverage of the module.
#[derive(Parser)]
struct Options {
    /// The card's node.
    #[arg(long, default_value = "/dev/fermata0")]
    device: String,
    /// Time to run after the corpus, in seconds.
    #[arg(long, default_value_t = 60)]
    time: u64,
    /// Seed of the random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The corpus: programs to begin with.
    #[arg(long, default_value = "/corpus.txt")]
    corpus: PathBuf,
    /// The folder for the report and for programs that reached a new place.
    #[arg(long, default_value = "/report")]
    report: PathBuf,
}

/// The programs to mutate, and the places that they reached.
struct Corpus {
    programs: Vec<Arc<Program>>,
    reached: HashSet<u64>,
}

impl Corpus {
    fn load(options: &Options) -> Result<Vec<Program>> {
        let path = || options.corpus.display().to_string();
        let text = fs::read_to_string(&options.corpus).with_context(path)?;
        parse_corpus(&text).with_context(path)
    }

    /// Runs a program. If the program reaches a new place, keeps the program without the steps that
    /// are not needed to reach the place.
    fn try_program(&mut self, executor: &Executor, program: Program) -> Option<Arc<Program>> {
        let mut program = Arc::new(program);
        let reached = executor.run(&program);
        let new: HashSet<u64> = reached.difference(&self.reached).copied().collect();
        if new.is_empty() {
            return None;
        }
        self.reached.extend(reached);
        let mut n = program.steps.len();
        while n > 0 {
            n -= 1;
            let shorter = Arc::new(program.without(n));
            let reached = executor.run(&shorter);
            if new.is_subset(&reached) {
                program = shorter;
            }
            self.reached.extend(reached);
        }
        self.programs.push(program.clone());
        Some(program)
    }
}

fn main() -> ExitCode {
    fermata_output::end("fermata-fuzz", run().map(|()| true))
}

fn run() -> Result<()> {
    let options = Options::parse();
    let executor = Executor::new(&options.device)?;
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(options.seed);
    let mut corpus = Corpus {
        programs: Vec::new(),
        reached: HashSet::new(),
    };
    let mut runs = 0_u64;
    let known = Corpus::load(&options)?;
    let from = known.len();
    for program in known {
        let program = Arc::new(program);
        corpus.reached.extend(executor.run(&program));
        corpus.programs.push(program);
        runs += 1;
    }
    let by_corpus = corpus.reached.len();
    say!("# corpus: {from} programs reach {by_corpus} places of the module");

    let end = Instant::now() + Duration::from_secs(options.time);
    let mut found = Vec::new();
    while Instant::now() < end {
        let program = match (
            corpus.programs.choose(&mut rng),
            corpus.programs.choose(&mut rng),
        ) {
            (Some(one), Some(other)) if runs % 8 != 0 => one.mutated(other, &mut rng),
            _ => Program::random(&mut rng),
        };
        runs += 1;
        if let Some(program) = corpus.try_program(&executor, program) {
            found.push(program);
            fs::write(options.report.join("found"), corpus_text(&found))?;
        }
    }
    let kept = found.len();
    let (calls, good) = executor.calls();
    tally(calls)?;
    say!(
        "# {runs} programs, {calls} calls of which {good} succeeded; {} places, {kept} programs \
             found new ones",
        corpus.reached.len()
    );
    report(
        &options,
        &corpus,
        &serde_json::json!({
            "seconds": options.time, "programs": runs, "calls": calls, "succeeded": good,
            "corpus": from, "reached_by_corpus": by_corpus, "kept": kept,
        }),
    )
}

/// Writes `fuzz.json`, and `reached`: a place of the module on each line, as function and offset.
fn report(options: &Options, corpus: &Corpus, figures: &serde_json::Value) -> Result<()> {
    let symbols = symbols()?;
    let mut places: Vec<String> = corpus
        .reached
        .iter()
        .filter_map(|address| {
            let after = symbols.partition_point(|(start, _)| start <= address);
            let (start, name) = symbols.get(after.checked_sub(1)?)?;
            Some(format!("{name} {:#x}\n", address - start))
        })
        .collect();
    places.sort();
    fs::write(options.report.join("reached"), places.concat())?;
    fs::write(options.report.join("fuzz.json"), figures.to_string())?;
    Ok(())
}

/// Adds the calls to the executor's statistics (see `fm_tally()` in selftests/lib/fm.h).
fn tally(calls: u64) -> Result<()> {
    let Some(path) = env::var_os("FERMATA_TALLY") else {
        return Ok(());
    };
    let mut file = fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)?;
    Ok(writeln!(file, "+ {calls} fuzzed calls")?)
}

/// Returns the module's functions by address.
fn symbols() -> Result<Vec<(u64, String)>> {
    let text = fs::read_to_string("/proc/kallsyms")?;
    let mut symbols: Vec<(u64, String)> = text
        .lines()
        .filter(|line| line.ends_with("[fermata]"))
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let start = u64::from_str_radix(words.next()?, 16).ok()?;
            let kind = words.next()?;
            matches!(kind, "t" | "T").then_some((start, words.next()?.to_owned()))
        })
        .collect();
    symbols.sort();
    Ok(symbols)
}
