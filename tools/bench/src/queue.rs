// SPDX-License-Identifier: GPL-2.0-or-later
//! `make bench-queue`, the part in the guest: small jobs (SHA-256 of 64 bytes), posted to a queue
//! or started one by one by calls, in batches of 1 to 256. A round visits each batch size and mode
//! once. System calls are counted first, by the kernel; then times are measured.

use crate::report::{markdown_table, write_json, Distribution, NOTE};
use crate::visit::TIMEOUT;
use anyhow::{ensure, Context as _, Result};
use fermata::queue::{Operation, Queue};
use fermata::{uapi, Arena, Context, EngineId, Error, Events};
use fermata_output::say;
use rustix::mount::{mount, MountFlags};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The card
    #[arg(long, default_value = "/dev/fermata0")]
    device: PathBuf,
    /// Where the report goes
    #[arg(long, default_value = "/report/queue.json")]
    report: PathBuf,
    /// Sizes of batches: jobs that are submitted before the first is waited for
    #[arg(long, value_delimiter = ',', default_values_t = [1_usize, 2, 4, 8, 16, 32, 64, 128, 256])]
    batches: Vec<usize>,
    /// Number of visits of each batch size and mode
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// The least number of jobs in each visit
    #[arg(long, default_value_t = 512)]
    jobs: usize,
}

/// Counts system calls, measures times, and writes the report.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut cells: Vec<Cell> = Vec::new();
    for &batch in &options.batches {
        cells.extend(Mode::ALL.map(|way| Cell::new(way, batch)));
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
        say!("round {round} of {}", options.rounds);
    }
    let (posted, calls) = posting(options)?;
    Report::new(&mut cells, posted, calls).leave(&options.report)
}

/// Returns the number of batches of a visit.
fn batches(options: &Options, cell: &Cell) -> usize {
    options.jobs.div_ceil(cell.batch)
}

/// Counts the system calls of a visit.
fn count(options: &Options, counter: &Counter, cell: &mut Cell) -> Result<()> {
    let mut worker = Worker::new(&options.device, cell.way, cell.batch)?;
    worker.batch()?;
    let batches = batches(options, cell);
    cell.calls = counter.count(|| (0..batches).try_for_each(|_| worker.batch()))?;
    cell.counted = (batches * cell.batch) as u64;
    worker.end()
}

/// Measures the times of a visit.
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

/// Posts jobs to a running engine. Returns the number of jobs, and of system calls.
fn posting(options: &Options) -> Result<(usize, u64)> {
    let counter = Counter::new()?;
    let mut worker = Worker::new(&options.device, Mode::Polled, 256)?;
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

/// Counts the system calls of this process, by a histogram of the tracepoint at the entry of each
/// call.
pub(crate) struct Counter {
    trigger: String,
    /// Number of calls that reading the histogram takes.
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

    /// Returns the number of system calls that `work` makes.
    pub(crate) fn count(&self, work: impl FnOnce() -> Result<()>) -> Result<u64> {
        let before = total()?;
        work()?;
        Ok(total()? - before - self.own)
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // An error here cannot be reported. The next run then finds the trigger in use.
        let _ = fs::write(TRIGGER, format!("!{}", self.trigger));
    }
}

/// Returns the sum of a histogram, whose lines are like `{ common_pid: 42 } hitcount: 7`.
fn total() -> Result<u64> {
    let text = fs::read_to_string(HIST).context(HIST)?;
    let hits = text.lines().filter(|line| line.starts_with('{'));
    hits.filter_map(|line| line.rsplit_once("hitcount:"))
        .map(|(_, hits)| hits.trim().parse::<u64>().context("a histogram"))
        .sum()
}

/// The batch size at which a queue must need at least `FEWER` times fewer calls.
const BATCH: usize = 32;
const FEWER: f64 = 10.0;

/// The measurements of a mode and a batch size.
pub(crate) struct Cell {
    pub(crate) way: Mode,
    pub(crate) batch: usize,
    /// Number of jobs whose system calls were counted, and number of system calls.
    pub(crate) counted: u64,
    pub(crate) calls: u64,
    /// Jobs per second, a value for each round.
    pub(crate) rates: Vec<f64>,
    /// Latencies of all jobs, in nanoseconds.
    pub(crate) latencies: Vec<u64>,
}

impl Cell {
    pub(crate) fn new(way: Mode, batch: usize) -> Self {
        Self {
            way,
            batch,
            counted: 0,
            calls: 0,
            rates: Vec::new(),
            latencies: Vec::new(),
        }
    }
}

#[derive(Serialize)]
struct Row {
    way: Mode,
    batch: usize,
    calls_per_job: f64,
    /// Median of the rounds.
    jobs_per_second: f64,
    latency_p50_us: f64,
    latency_p99_us: f64,
}

/// The report.
#[derive(Serialize)]
pub(crate) struct Report {
    note: &'static str,
    rows: Vec<Row>,
    /// Number of jobs posted to a running engine, and of system calls.
    posted: usize,
    calls_of_posting: u64,
    /// Calls per job with a call for each job, divided by those with a queue, at a batch of 32.
    fewer_calls: f64,
}

impl Report {
    pub(crate) fn new(cells: &mut [Cell], posted: usize, calls_of_posting: u64) -> Self {
        let rows: Vec<Row> = cells.iter_mut().map(Row::of).collect();
        let at = |way| {
            let mut found = rows
                .iter()
                .filter(|row| row.way == way && row.batch == BATCH);
            found.next().map_or(f64::NAN, |row| row.calls_per_job)
        };
        Self {
            note: NOTE,
            fewer_calls: at(Mode::Calls) / at(Mode::Queue),
            rows,
            posted,
            calls_of_posting,
        }
    }

    /// Prints the table, writes the report, and fails if a queue needs too many calls.
    pub(crate) fn leave(&self, file: &Path) -> Result<()> {
        say!("{NOTE}\n{}", self.table());
        say!(
            "{} jobs were posted to an engine at work by {} calls; at a batch of {BATCH} a queue \
                 needs {:.1} times fewer",
            self.posted,
            self.calls_of_posting,
            self.fewer_calls
        );
        write_json(self, file)?;
        ensure!(self.calls_of_posting == 0, "posting took system calls");
        ensure!(
            self.fewer_calls >= FEWER,
            "less than {FEWER} times fewer calls"
        );
        Ok(())
    }

    fn table(&self) -> String {
        let rows = self.rows.iter().map(|row| {
            vec![
                row.batch.to_string(),
                row.way.name().into(),
                format!("{:.3}", row.calls_per_job),
                format!("{:.0}", row.jobs_per_second),
                format!("{:.1}", row.latency_p50_us),
                format!("{:.1}", row.latency_p99_us),
            ]
        });
        let header = [
            "batch",
            "way",
            "calls per job",
            "jobs per second",
            "P50 us",
            "P99 us",
        ];
        markdown_table(&header, rows.collect(), &[1])
    }
}

impl Row {
    fn of(cell: &mut Cell) -> Self {
        let latencies = Distribution::new(std::mem::take(&mut cell.latencies));
        cell.rates.sort_unstable_by(f64::total_cmp);
        Self {
            way: cell.way,
            batch: cell.batch,
            calls_per_job: cell.calls as f64 / cell.counted as f64,
            jobs_per_second: cell.rates.get(cell.rates.len() / 2).copied().unwrap_or(0.0),
            latency_p50_us: latencies.p50_us,
            latency_p99_us: latencies.p99_us,
        }
    }
}

const LENGTH: u64 = 64;
/// Entries of the queue: more than the largest batch, since posting needs two free pairs.
const ENTRIES: usize = 512;
/// The input of the hash, then a digest for each job of a batch, then the queue.
const DATA: usize = 0;
const DIGESTS: usize = 64;
const QUEUE: usize = DIGESTS + 64 * ENTRIES;
const ARENA: usize = (QUEUE + Queue::bytes(ENTRIES)).next_multiple_of(4096);
/// Length and number of the jobs that keep the engine busy while others are posted, for tens of
/// milliseconds with the fastest SHA-256.
const LONG: usize = 1 << 20;
const LONG_JOBS: u64 = 64;

/// How jobs are submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// START and WAIT for each job.
    Calls,
    /// Jobs are posted; WAIT returns when a job is complete.
    Queue,
    /// Jobs are posted; the queue is polled until all jobs are complete.
    Polled,
}

impl Mode {
    pub(crate) const ALL: [Self; 3] = [Self::Calls, Self::Queue, Self::Polled];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Calls => "a call each",
            Self::Queue => "queue, waits",
            Self::Polled => "queue, polls",
        }
    }
}

/// Submits batches of jobs.
pub(crate) struct Worker {
    context: Context,
    // Must live until the engine has ended.
    arena: &'static Arena,
    queue: Option<Queue<'static>>,
    way: Mode,
    batch: usize,
    /// When the outstanding jobs were posted.
    since: Vec<Instant>,
    /// From submission to completion of each job, in nanoseconds.
    pub(crate) latencies: Vec<u64>,
}

impl Worker {
    pub(crate) fn new(device: &Path, way: Mode, batch: usize) -> Result<Self> {
        let context = Context::open(device).with_context(|| device.display().to_string())?;
        let engine = match way {
            Mode::Calls => EngineId::SHA256,
            Mode::Queue | Mode::Polled => EngineId::QUEUE,
        };
        context.setup(engine, 0)?;
        // The process ends soon after, so the arena may leak: the queue can then borrow the arena
        // beside it.
        let arena: &Arena = Box::leak(Box::new(context.create_arena(ARENA + LONG)?));
        context.create_snapshot()?;
        arena.write(DATA, &[7; LENGTH as usize]);
        let mut worker = Self {
            context,
            arena,
            queue: None,
            way,
            batch,
            since: Vec::new(),
            latencies: Vec::new(),
        };
        if way == Mode::Calls {
            let data = worker.arena.base() + DATA as u64;
            let result = worker.arena.base() + DIGESTS as u64;
            let registers = [(0x30, data), (0x38, LENGTH), (0x40, result)];
            worker.context.write_registers(&registers)?;
        } else {
            worker.begin()?;
        }
        Ok(worker)
    }

    /// Starts the engine with an empty queue. The engine signals once for each batch, or after a
    /// millisecond.
    fn begin(&mut self) -> Result<()> {
        let queue = Queue::new(self.arena, QUEUE, ENTRIES)?;
        self.context.write_registers(&queue.registers())?;
        if self.way == Mode::Queue {
            self.context.write_registers(&[
                (uapi::QUEUE_REG_COALESCE_COUNT, self.batch as u64),
                (uapi::QUEUE_REG_COALESCE_US, 1000),
            ])?;
        }
        self.queue = Some(queue);
        self.context.start()?;
        Ok(())
    }

    /// Submits a batch, and waits until all jobs are complete.
    pub(crate) fn batch(&mut self) -> Result<()> {
        if self.way == Mode::Calls {
            for _ in 0..self.batch {
                let from = Instant::now();
                self.context.start()?;
                self.context.wait(Events::DONE, Some(TIMEOUT))?;
                self.latencies.push(from.elapsed().as_nanos() as u64);
            }
            return Ok(());
        }
        let posted = self.post(self.batch)?;
        ensure!(posted == self.batch, "the queue is full");
        self.reap()
    }

    /// Posts up to `jobs` jobs, as far as the queue has room, and rings the doorbell if the engine
    /// has left the slot. Returns the number of posted jobs.
    fn post(&mut self, jobs: usize) -> Result<usize> {
        let queue = self.queue.as_mut().context("no queue")?;
        for number in 0..jobs {
            let operation = Operation::Sha256 {
                src: self.arena.base() + DATA as u64,
                length: LENGTH,
                digest: self.arena.base() + (DIGESTS + 64 * number) as u64,
            };
            let from = Instant::now();
            if queue.push(operation, number as u64).is_none() {
                return Ok(number);
            }
            self.since.push(from);
        }
        if queue.needs_doorbell() {
            self.context.ring()?;
        }
        Ok(jobs)
    }

    /// Waits until all outstanding jobs are complete.
    fn reap(&mut self) -> Result<()> {
        let until = Instant::now() + TIMEOUT;
        let queue = self.queue.as_mut().context("no queue")?;
        while queue.outstanding() > 0 {
            while let Some(reaped) = queue.reap() {
                reaped.outcome?;
                let since = self.since[reaped.tag as usize];
                self.latencies.push(since.elapsed().as_nanos() as u64);
            }
            ensure!(Instant::now() < until, "a job does not come to its end");
            if self.way == Mode::Queue && queue.outstanding() > 0 {
                self.context.wait(Events::COMPLETED, Some(TIMEOUT))?;
            }
        }
        self.since.clear();
        Ok(())
    }

    /// Posts long jobs, which keep the engine busy for a while.
    pub(crate) fn occupy(&mut self) -> Result<()> {
        let queue = self.queue.as_mut().context("no queue")?;
        for number in 0..LONG_JOBS {
            let long = Operation::Sha256 {
                src: self.arena.base() + ARENA as u64,
                length: LONG as u64,
                digest: self.arena.base() + (DIGESTS + 64 * (ENTRIES - 1)) as u64,
            };
            queue.push(long, number).context("the queue is full")?;
            self.since.push(Instant::now());
        }
        if queue.needs_doorbell() {
            self.context.ring()?;
        }
        Ok(())
    }

    /// Posts a batch behind the long jobs. Returns the number of posted jobs.
    pub(crate) fn post_behind(&mut self) -> Result<usize> {
        let jobs = self.batch;
        self.post(jobs)
    }

    /// Waits until all jobs are complete, ends the engine's job, and checks the digest.
    pub(crate) fn end(mut self) -> Result<()> {
        if self.queue.is_some() {
            self.reap()?;
            let queue = self.queue.as_mut().context("no queue")?;
            let posted = queue.post(Operation::End, 0).context("the queue is full")?;
            if posted.doorbell {
                // The engine may have polled the queue once more and finished.
                match self.context.ring() {
                    Ok(()) | Err(Error::NotFound) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            self.context.wait(Events::DONE, Some(TIMEOUT))?;
        }
        let error = self.context.status()?.error;
        ensure!(error == 0, "the engine's job failed: errno {error}");
        let digest = Sha256::digest([7; LENGTH as usize]);
        ensure!(
            self.arena.read(DIGESTS, 32) == digest[..],
            "the digest is wrong"
        );
        Ok(())
    }
}
