// SPDX-License-Identifier: GPL-2.0-or-later
//! Jobs of SHA-256 of 64 bytes, submitted in one of three modes.

use crate::work::TIMEOUT;
use anyhow::{ensure, Context as _, Result};
use fermata::queue::{Operation, Queue};
use fermata::{uapi, Arena, Context, EngineId, Error, Events};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::path::Path;
use std::time::Instant;

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
