// SPDX-License-Identifier: GPL-2.0
//! `make bench-queue`, the part in the guest: the same small jobs (SHA-256 of 64 bytes) posted to a queue, and started one by one by
//! calls; in batches of 1 to 256, the ways in turn in each round. First it counts system calls, as the kernel sees them, then
//! it measures time.

mod report;
mod worker;

use anyhow::{ensure, Context as _, Result};
use report::{Cell, Report};
use rustix::mount::{mount, MountFlags};
use std::fs;
use std::path::{Path, PathBuf};
use worker::{Way, Worker};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The card
    #[arg(long, default_value = "/dev/fermata0")]
    device: PathBuf,
    /// Where the report goes
    #[arg(long, default_value = "/report/queue.json")]
    report: PathBuf,
    /// Jobs that are given out before the first is waited for
    #[arg(long, value_delimiter = ',', default_values_t = [1_usize, 2, 4, 8, 16, 32, 64, 128, 256])]
    batches: Vec<usize>,
    /// How often each batch size and way is visited
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Jobs in each visit, at least
    #[arg(long, default_value_t = 512)]
    jobs: usize,
}

/// Counts system calls, then measures times. Leaves the report.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut cells: Vec<Cell> = Vec::new();
    for &batch in &options.batches {
        cells.extend(Way::ALL.map(|way| Cell::new(way, batch)));
    }
    let counter = Counter::new()?;
    for cell in &mut cells {
        count(options, &counter, cell)?;
    }
    drop(counter);
    for round in 1..=options.rounds {
        for cell in &mut cells {
            measure(options, cell)?;
        }
        println!("round {round} of {}", options.rounds);
    }
    let (posted, calls) = posting(options)?;
    Report::new(&mut cells, posted, calls).leave(&options.report)
}

/// How many batches make a visit.
fn batches(options: &Options, cell: &Cell) -> usize {
    options.jobs.div_ceil(cell.batch)
}

/// The system calls of a visit.
fn count(options: &Options, counter: &Counter, cell: &mut Cell) -> Result<()> {
    let mut worker = Worker::new(&options.device, cell.way, cell.batch)?;
    worker.batch()?;
    let batches = batches(options, cell);
    cell.calls = counter.count(|| (0..batches).try_for_each(|_| worker.batch()))?;
    cell.counted = (batches * cell.batch) as u64;
    worker.end()
}

/// The times of a visit.
fn measure(options: &Options, cell: &mut Cell) -> Result<()> {
    let mut worker = Worker::new(&options.device, cell.way, cell.batch)?;
    worker.batch()?;
    worker.latencies.clear();
    let from = std::time::Instant::now();
    for _ in 0..batches(options, cell) {
        worker.batch()?;
    }
    let jobs = batches(options, cell) * cell.batch;
    cell.rates.push(jobs as f64 / from.elapsed().as_secs_f64());
    cell.latencies.append(&mut worker.latencies);
    worker.end()
}

/// Jobs that were posted to an engine that is at work, and the system calls of that.
fn posting(options: &Options) -> Result<(usize, u64)> {
    let counter = Counter::new()?;
    let mut worker = Worker::new(&options.device, Way::Polled, 256)?;
    worker.occupy()?;
    let mut posted = 0;
    let calls = counter.count(|| {
        posted = worker.post_behind()?;
        Ok(())
    })?;
    worker.end()?;
    Ok((posted, calls))
}

const TRACEFS: &str = "/sys/kernel/tracing";
const TRIGGER: &str = "/sys/kernel/tracing/events/raw_syscalls/sys_enter/trigger";
const HIST: &str = "/sys/kernel/tracing/events/raw_syscalls/sys_enter/hist";

/// Counts while it lives, by a histogram of the tracepoint at the entry of each call.
pub(crate) struct Counter {
    trigger: String,
    /// Calls of reading it once.
    own: u64,
}

impl Counter {
    pub(crate) fn new() -> Result<Self> {
        if !Path::new(TRIGGER).exists() {
            mount("tracefs", TRACEFS, "tracefs", MountFlags::empty(), None).context("tracefs")?;
        }
        let trigger = format!(
            "hist:keys=common_pid if common_pid == {}",
            std::process::id()
        );
        fs::write(TRIGGER, &trigger).context(TRIGGER)?;
        let mut counter = Self { trigger, own: 0 };
        let nothing = || Ok(());
        counter.own = counter.count(nothing)?;
        ensure!(counter.own != 0, "the kernel counts no system calls");
        ensure!(
            counter.count(nothing)? == 0,
            "reading the counter costs now this, now that"
        );
        Ok(counter)
    }

    /// The calls that `work` makes.
    pub(crate) fn count(&self, work: impl FnOnce() -> Result<()>) -> Result<u64> {
        let before = total()?;
        work()?;
        Ok(total()? - before - self.own)
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // Nothing is counted any more; if it fails, the machine's next run finds it in use.
        let _ = fs::write(TRIGGER, format!("!{}", self.trigger));
    }
}

/// All calls that were counted: lines like `{ common_pid: 42 } hitcount: 7`.
fn total() -> Result<u64> {
    let text = fs::read_to_string(HIST).context(HIST)?;
    let hits = text.lines().filter(|line| line.starts_with('{'));
    hits.filter_map(|line| line.rsplit_once("hitcount:"))
        .map(|(_, hits)| hits.trim().parse::<u64>().context("a histogram"))
        .sum()
}
