// SPDX-License-Identifier: GPL-2.0
//! The load, in the guest.

use crate::marker::{Arrival, LC_TAG, MARK, MARKER_TAG, TAG};
use anyhow::{ensure, Context as _, Result};
use fermata::{Arena, Context, EngineId, Events, Param};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::process::{setrlimit, Resource, Rlimit};
use std::path::PathBuf;
use std::time::Duration;

/// Nothing takes this long; a guard against hangs, not a criterion.
const GUARD: Duration = Duration::from_secs(60);
/// First list node; before it is what the engine writes at the end.
const NODES_AT: usize = 64;
/// Nodes of a ring, or of the list that is the latency-critical work.
const NODES: u64 = 64;
/// Between two arrivals: not in step with any timeslice.
const PAUSE_US: std::ops::Range<u64> = 3_000..11_000;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The card
    #[arg(long, default_value = "/dev/fermata0")]
    device: PathBuf,
    /// Contexts open on the slot, the latency-critical one included
    #[arg(long, value_delimiter = ',', default_values_t = [2_u16, 64, 1000])]
    contexts: Vec<u16>,
    /// How often each number of contexts is visited
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Arrivals in each visit
    #[arg(long, default_value_t = 60)]
    arrivals: u32,
}

/// A context and the memory that its jobs work on.
struct Tenant {
    context: Context,
    _arena: Arena,
}

/// All rounds, the numbers of contexts in turn in each.
pub(crate) fn run(options: &Options) -> Result<()> {
    allow_files(u64::from(options.contexts.iter().copied().max().unwrap_or(0)) + 64)?;
    let marker = marker(options)?;
    let urgent = list(options, 1, LC_TAG, false)?;
    urgent.context.set_param(Param::LatencyCritical, 1)?;
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut number = 0;
    for round in 1..=options.rounds {
        for &contexts in &options.contexts {
            let others = crowd(options, contexts)?;
            for _ in 0..options.arrivals {
                std::thread::sleep(Duration::from_micros(random.random_range(PAUSE_US)));
                number += 1;
                let arrival = Arrival { contexts, number };
                arrive(&marker, &urgent, arrival)?;
            }
            println!(
                "round {round}: {contexts} contexts: {} arrivals",
                options.arrivals
            );
            drop(others);
        }
    }
    Ok(())
}

/// One arrival, to the end of its work.
fn arrive(marker: &Tenant, urgent: &Tenant, arrival: Arrival) -> Result<()> {
    let mark = [(MARK, arrival.to_mark())];
    marker.context.write_registers(&mark)?;
    urgent.context.start()?;
    urgent.context.wait(Events::DONE, Some(GUARD))?;
    let error = urgent.context.status()?.error;
    ensure!(error == 0, "the latency-critical job failed: errno {error}");
    Ok(())
}

/// Best-effort contexts, all of which want the slot.
fn crowd(options: &Options, contexts: u16) -> Result<Vec<Tenant>> {
    (1..u64::from(contexts))
        .map(|number| {
            let tenant = list(options, number, 0x1_0000 + number, true)?;
            tenant.context.start()?;
            Ok(tenant)
        })
        .collect()
}

/// A list, or a ring that is walked for ever.
fn list(options: &Options, seed: u64, tag: u64, ring: bool) -> Result<Tenant> {
    let (context, arena) = open(options, EngineId::LINKED_LIST)?;
    let at = |node: u64| NODES_AT + node as usize * 16;
    for node in 0..NODES {
        let last = node + 1 == NODES;
        let next = match (last, ring) {
            (true, false) => 0,
            (true, true) => arena.base() + at(0) as u64,
            (false, _) => arena.base() + at(node + 1) as u64,
        };
        arena.store(at(node), next);
        arena.store(at(node) + 8, seed ^ node);
    }
    let head = arena.base() + at(0) as u64;
    context.write_registers(&[(0x30, head), (0x38, 0), (0x40, seed), (0x48, 0), (TAG, tag)])?;
    Ok(Tenant {
        context,
        _arena: arena,
    })
}

/// The context that marks: on its slot for as long as it is open.
fn marker(options: &Options) -> Result<Tenant> {
    let (context, arena) = open(options, EngineId::MEMBENCH)?;
    let registers = [
        (0x30, arena.base()),
        (0x38, 4096),
        (0x40, u64::MAX),
        (TAG, MARKER_TAG),
    ];
    context.write_registers(&registers)?;
    context.start()?;
    Ok(Tenant {
        context,
        _arena: arena,
    })
}

fn open(options: &Options, engine: EngineId) -> Result<(Context, Arena)> {
    let context = Context::open(&options.device).context("cannot open the card")?;
    context.setup(engine, 0)?;
    let arena = context.create_arena(4096)?;
    context.create_snapshot()?;
    Ok((context, arena))
}

/// Raises the soft limit of open files.
fn allow_files(count: u64) -> Result<()> {
    let limit = Rlimit {
        current: Some(count),
        maximum: Some(count.max(4096)),
    };
    setrlimit(Resource::Nofile, limit).with_context(|| format!("cannot open {count} files"))
}
