// SPDX-License-Identifier: GPL-2.0
//! `make bench-queue`, the part in the guest: the same small jobs (SHA-256 of 64 bytes) posted to a queue, and started one by one by
//! calls; in batches of 1 to 256, the ways in turn in each round. First it counts system calls, as the kernel sees them, then
//! it measures time.

mod calls;
mod report;
mod worker;

use anyhow::Result;
use report::{Cell, Report};
use std::path::PathBuf;
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
    let counter = calls::Counter::new()?;
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
fn count(options: &Options, counter: &calls::Counter, cell: &mut Cell) -> Result<()> {
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
    let counter = calls::Counter::new()?;
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
