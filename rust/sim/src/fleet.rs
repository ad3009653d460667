// SPDX-License-Identifier: GPL-2.0

//! Many cards at once, in one heap of events, up to 1,000 cards and 100,000 contexts.

use std::time::Instant;

use serde::Serialize;

use crate::mode::Mode;
use crate::sim::{run, Costs, Latency, Plan};
use crate::workload::{Arrivals, ClientPlan, Kind, Work};
use crate::{MS, S, US};

/// One size of a fleet.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How slots are shared.
    pub mode: Mode,
    /// Cards.
    pub cards: usize,
    /// Slots of each.
    pub slots: usize,
    /// Contexts of each.
    pub contexts: usize,
    /// The part of the slots' time that requests ask for.
    pub load: f64,
    /// What things cost.
    pub costs: Costs,
    /// Milliseconds of virtual time.
    pub ms: u64,
    /// All that is random follows from it.
    pub seed: u64,
}

/// What a fleet did, and what it cost to find out.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// How slots are shared.
    pub mode: String,
    /// Cards.
    pub cards: usize,
    /// Slots of all.
    pub slots: usize,
    /// Contexts of all.
    pub contexts: usize,
    /// The part of the slots' time that requests ask for.
    pub load: f64,
    /// Seconds of virtual time.
    pub virtual_s: f64,
    /// Requests that came.
    pub requests: u64,
    /// Events that schedulers decided on.
    pub decisions: u64,
    /// STARTs.
    pub starts: u64,
    /// Requests of one context in five, the short ones.
    pub lc: Latency,
    /// The others.
    pub be: Latency,
    /// The part of the slots' time with a job.
    pub utilisation: f64,
    /// Seconds that the simulation took.
    pub run_s: f64,
    /// The most memory that the process had during it, in MiB; absent where the system does not say.
    pub peak_mib: Option<f64>,
}

/// Requests of every context are Poisson; one in five is LC, with work a tenth of the others' mean. Work is exponential.
fn clients(settings: &Settings) -> Vec<ClientPlan> {
    let mean_be = 5 * MS;
    let mean_lc = mean_be / 10;
    let lc = settings.contexts.div_ceil(5);
    let each = settings.load * settings.slots as f64 / settings.contexts as f64;
    (0..settings.contexts)
        .map(|i| {
            let (kind, work) = if i < lc {
                (Kind::Lc, mean_lc)
            } else {
                (Kind::Be, mean_be)
            };
            let mean = work as f64;
            ClientPlan {
                preparation: 200 * US,
                ..ClientPlan::new(
                    kind,
                    Arrivals::Poisson { mean: mean / each },
                    Work::Exponential(mean),
                )
            }
        })
        .collect()
}

/// Runs one fleet.
pub fn fleet(settings: &Settings) -> Row {
    reset_peak();
    let plan = Plan {
        mode: settings.mode,
        costs: settings.costs,
        cards: settings.cards,
        slots: settings.slots,
        clients: vec![clients(settings); settings.cards],
        gangs: false,
        seed: settings.seed,
        warm_up: 0,
        end: settings.ms * MS,
        drain: S,
    };
    let began = Instant::now();
    let mut outcome = run(&plan);
    let run_s = began.elapsed().as_secs_f64();
    let peak_mib = peak();
    Row {
        mode: settings.mode.name(),
        cards: settings.cards,
        slots: settings.cards * settings.slots,
        contexts: settings.cards * settings.contexts,
        load: settings.load,
        virtual_s: plan.end as f64 / S as f64,
        requests: outcome.requests,
        decisions: outcome.decisions,
        starts: outcome.starts,
        utilisation: outcome.utilisation(&plan),
        lc: Latency::of(&mut outcome.lc),
        be: Latency::of(&mut outcome.be),
        run_s,
        peak_mib,
    }
}

/// Lets the kernel forget the process's peak of memory, so that the next run has one of its own.
fn reset_peak() {
    // Where that is not possible the peak is that of the largest run so far: still true of the largest.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn peak() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib / 1024.0)
}
