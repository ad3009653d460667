// SPDX-License-Identifier: GPL-2.0
//! One tenant, in a process of its own: it does what it is told on its input, and tells on its output, one JSON value a line.

use crate::job::Job;
use anyhow::{bail, Context as _, Result};
use fermata::{Arena, Context, Events, Param, State};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// To the tenant.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Put the job's data and registers in place, for slices of so many nanoseconds.
    Prepare(u64),
    /// Start, and tell when it has ended.
    Go,
}

/// From the tenant.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Word {
    /// The context is there.
    Ready {
        /// It is on this slot.
        slot: u32,
        /// Guest-physical ranges of its arena: address and length.
        pages: Vec<(u64, u64)>,
    },
    /// The job can start; this must come out, computed by the tenant's processor.
    Prepared(String),
    /// The job has ended.
    Done(Ending),
}

/// How a job went.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ending {
    /// What came out.
    pub(crate) outcome: String,
    /// 0, or why it failed.
    pub(crate) error: u32,
    /// Nanoseconds on the slot.
    pub(crate) run_ns: u64,
    /// Nanoseconds queued.
    pub(crate) wait_ns: u64,
    /// Times put on the slot.
    pub(crate) slices: u64,
    /// Times taken off before its end.
    pub(crate) preemptions: u64,
}

fn tell(word: &Word) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(word)?)?;
    Ok(out.flush()?)
}

const PAGE: usize = 4096;

/// The arena's pages, as the page table of this process has them: not as the driver says.
fn pages_of(arena: &Arena) -> Result<Vec<(u64, u64)>> {
    for offset in (0..arena.length()).step_by(PAGE) {
        arena.load(offset);
    }
    let mut entries = vec![0; arena.length() / PAGE * 8];
    let at = (arena.address() / PAGE * 8) as u64;
    File::open("/proc/self/pagemap")?.read_exact_at(&mut entries, at)?;
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for entry in entries.chunks_exact(8) {
        let entry = u64::from_le_bytes(entry.try_into()?);
        let frame = entry & ((1 << 55) - 1);
        if entry >> 63 == 0 || frame == 0 {
            bail!("/proc/self/pagemap does not show the arena (run as root)");
        }
        let address = frame * PAGE as u64;
        match ranges.last_mut() {
            Some((from, length)) if *from + *length == address => *length += PAGE as u64,
            _ => ranges.push((address, PAGE as u64)),
        }
    }
    Ok(ranges)
}

/// Renames this process, so that traces and pictures tell tenants apart.
pub(crate) fn rename(name: &str) -> Result<()> {
    std::fs::write("/proc/self/comm", name).context("/proc/self/comm")
}

/// Serves the demo until it closes this process's input.
pub(crate) fn serve(device: &Path, job: &Job, token: u64) -> Result<()> {
    let context = Context::open(device).with_context(|| device.display().to_string())?;
    let slot = *context
        .slots_of(job.engine())?
        .first()
        .with_context(|| format!("the card has no slot with {}", job.engine_name()))?;
    context.setup(job.engine(), 1 << slot)?;
    let arena = context
        .create_arena(job.arena_bytes())
        .with_context(|| format!("an arena of {} bytes", job.arena_bytes()))?;
    context.create_snapshot()?;
    // On a slow emulator a save may take long without anything being wrong.
    context.set_param(Param::PreemptTimeout, 10_000_000_000)?;
    tell(&Word::Ready {
        slot,
        pages: pages_of(&arena)?,
    })?;
    for line in std::io::stdin().lock().lines() {
        match serde_json::from_str(&line?)? {
            Order::Prepare(slice) => {
                context.set_param(Param::Timeslice, slice)?;
                tell(&Word::Prepared(job.prepare(&context, &arena, token)?))?;
            }
            Order::Go => tell(&Word::Done(go(job, &context, &arena)?))?,
        }
    }
    Ok(())
}

fn go(job: &Job, context: &Context, arena: &Arena) -> Result<Ending> {
    let before = context.status()?;
    context.start()?;
    context.wait(Events::DONE, None)?;
    let after = context.status()?;
    let finished = State::from(after.state) == State::Done;
    Ok(Ending {
        outcome: if finished {
            job.outcome(context, arena)?
        } else {
            format!(
                "failed: {}",
                std::io::Error::from_raw_os_error(after.error as i32)
            )
        },
        error: after.error,
        run_ns: after.run_ns - before.run_ns,
        wait_ns: after.wait_ns - before.wait_ns,
        slices: after.slices - before.slices,
        preemptions: after.preemptions - before.preemptions,
    })
}
