// SPDX-License-Identifier: GPL-2.0-or-later

//! Runs random programs of calls against a card, on a kernel with KCOV: what reaches something new
//! in the module is kept, and changed further.
//!
//! It judges nothing: the kernel does, and the card. The report's folder then has the places that
//! were reached (`reached`) and the programs that reached something new (`found`).

mod interface;
mod kcov;
mod program;
mod run;

use anyhow::{Context, Result};
use clap::Parser;
use program::{corpus_text, parse_corpus, Program};
use rand::{seq::IndexedRandom, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use run::Machine;
use std::{
    collections::HashSet,
    env, fs,
    io::Write,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// Random programs of calls, led by what they reach in the module.
#[derive(Parser)]
struct Options {
    /// The card's node.
    #[arg(long, default_value = "/dev/fermata0")]
    device: String,
    /// Seconds to run, after the corpus was run.
    #[arg(long, default_value_t = 60)]
    time: u64,
    /// The first random number.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The file of the programs to begin with.
    #[arg(long, default_value = "/corpus.txt")]
    corpus: PathBuf,
    /// Where the report goes, and programs that reached something new.
    #[arg(long, default_value = "/report")]
    report: PathBuf,
}

/// The programs that are worth changing, and what they reached together.
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

    /// Runs a program, and keeps it if it reached something new, without the steps that it does
    /// not need for that.
    fn try_one(&mut self, machine: &Machine, program: Program) -> Option<Arc<Program>> {
        let mut program = Arc::new(program);
        let reached = machine.run(&program);
        let new: HashSet<u64> = reached.difference(&self.reached).copied().collect();
        if new.is_empty() {
            return None;
        }
        self.reached.extend(reached);
        let mut n = program.steps.len();
        while n > 0 {
            n -= 1;
            let shorter = Arc::new(program.without(n));
            let reached = machine.run(&shorter);
            if new.is_subset(&reached) {
                program = shorter;
            }
            self.reached.extend(reached);
        }
        self.programs.push(program.clone());
        Some(program)
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let machine = Machine::new(&options.device)?;
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
        corpus.reached.extend(machine.run(&program));
        corpus.programs.push(program);
        runs += 1;
    }
    let by_corpus = corpus.reached.len();
    println!("# corpus: {from} programs reach {by_corpus} places of the module");

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
        if let Some(program) = corpus.try_one(&machine, program) {
            found.push(program);
            fs::write(options.report.join("found"), corpus_text(&found))?;
        }
    }
    let kept = found.len();
    let (calls, good) = machine.calls();
    tally(calls)?;
    println!(
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

/// Leaves `fuzz.json`, and `reached`: a place of the module on each line, as offset in a function.
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

/// Adds the calls to what the machine's programs count (see `fm_tally()` in selftests/lib/fm.h).
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

/// The module's functions by address.
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
