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
    /// Slots of each card.
    pub slots: usize,
    /// Contexts of each card.
    pub contexts: usize,
    /// The part of the slots' time that requests demand.
    pub load: f64,
    /// The costs of card and machine.
    pub costs: Costs,
    /// Milliseconds of virtual time.
    pub ms: u64,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// The results of a fleet, and what the simulation took.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// How slots are shared.
    pub mode: String,
    /// Cards.
    pub cards: usize,
    /// Slots of all cards.
    pub slots: usize,
    /// Contexts of all cards.
    pub contexts: usize,
    /// The part of the slots' time that requests demand.
    pub load: f64,
    /// Seconds of virtual time.
    pub virtual_s: f64,
    /// Requests that arrived.
    pub requests: u64,
    /// Events that schedulers handled.
    pub decisions: u64,
    /// STARTs.
    pub starts: u64,
    /// Latency of the short requests, of one context in five.
    pub lc: Latency,
    /// Latency of the other requests.
    pub be: Latency,
    /// The part of the slots' time with a job.
    pub utilisation: f64,
    /// Seconds that the simulation took.
    pub run_s: f64,
    /// Peak memory of the process during the simulation, in MiB; absent if the system does not
    /// report it.
    pub peak_mib: Option<f64>,
}

/// Returns clients with Poisson arrivals and exponential work. One in five is LC, with a tenth of
/// the mean work of the others.
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

/// Resets the process's peak memory, so that the next run gets its own peak.
fn reset_peak() {
    // If this fails, the peak is that of the largest run so far, which is right for the largest
    // run.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn peak() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib / 1024.0)
}
