// SPDX-License-Identifier: GPL-2.0

//! Every mode on every workload at every load, compared with the LC clients alone on the slot, and
//! with the LC clients on a slot each.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use serde::Serialize;

use crate::mode::Mode;
use crate::sim::{run, Costs, Latency, Plan};
use crate::workload::{Arrivals, ClientPlan, Kind, Phases, Workload};
use crate::S;

/// The settings of a comparison.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The workloads.
    pub workloads: Vec<Workload>,
    /// The loads, as parts of the slot's time; `None`: the load of the durations in the table.
    pub loads: Vec<Option<f64>>,
    /// The modes.
    pub modes: Vec<Mode>,
    /// The costs of card and machine.
    pub costs: Costs,
    /// When the periodic clients begin.
    pub phases: Phases,
    /// Seconds of virtual time in which requests arrive, unless the workload sets them.
    pub seconds: u64,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// The results of one run, also relative to its LC clients alone, and to no preemption.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The workload.
    pub workload: String,
    /// The load of LC and BE together.
    pub load: f64,
    /// The durations are those of the table, without scaling.
    pub natural: bool,
    /// The mode; "isolated" is LC with a slot for each client, "alone" LC without BE on one slot.
    pub mode: String,
    /// Latency of LC requests, from arrival until the program is notified of the end.
    pub lc: Latency,
    /// Latency of BE requests.
    pub be: Latency,
    /// Requests that arrived.
    pub requests: u64,
    /// LC P50 relative to the P50 alone, minus 1.
    pub lc_p50_added: f64,
    /// LC P99 relative to the P99 alone, minus 1.
    pub lc_p99_added: f64,
    /// Mean LC latency minus the mean LC latency alone, in us. `GPreempt`'s evaluation reports another figure: the mean of the
    /// clients' means, of latencies that begin with the preparation and not with the arrival.
    pub lc_mean_added_us: f64,
    /// BE requests offered per second.
    pub be_offered_per_s: f64,
    /// BE requests done per second.
    pub be_per_s: f64,
    /// `be_per_s` relative to no preemption; absent if that was not run.
    pub be_kept: Option<f64>,
    /// The part of the time with a job on the slot, saves and restores included.
    pub utilisation: f64,
    /// Saves per second until the end.
    pub saves_per_s: f64,
    /// STARTs, resumes included.
    pub starts: u64,
    /// PAUSEs written.
    pub pauses: u64,
    /// Orders posted.
    pub orders: u64,
    /// Of the STARTs, those that a relay did by itself.
    pub relayed: u64,
    /// Hints given.
    pub hints: u64,
    /// Of these, those that were followed by a job.
    pub hints_used: u64,
    /// Requests that arrived in time and never ended: the slot is overloaded.
    pub unfinished: u64,
    /// LC requests that were skipped because they were late, by clients that skip late requests.
    pub lc_skipped: u64,
    /// The same for BE.
    pub be_skipped: u64,
}

/// The clients of a run, and their slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// LC clients, each with its own slot: no schedule of one slot serves any of their requests
    /// faster.
    Isolated,
    /// LC clients on one slot, first come, first served.
    Alone,
    /// All clients on one slot.
    All(Mode),
}

impl Who {
    fn name(self) -> String {
        match self {
            Self::Isolated => "isolated".into(),
            Self::Alone => "alone".into(),
            Self::All(mode) => mode.name(),
        }
    }

    fn plan(self, clients: Vec<ClientPlan>, end: u64) -> Plan {
        let all = matches!(self, Self::All(_));
        // Clients are numbered before BE clients are removed, so that an LC client has the same
        // requests in every row.
        let clients = clients
            .into_iter()
            .zip(0..)
            .map(|(client, stream)| ClientPlan {
                stream: Some(stream),
                ..client
            })
            .filter(|client| all || client.kind == Kind::Lc);
        let clients: Vec<Vec<ClientPlan>> = if self == Self::Isolated {
            clients.map(|client| vec![client]).collect()
        } else {
            vec![clients.collect()]
        };
        Plan {
            mode: match self {
                Self::All(mode) => mode,
                Self::Isolated | Self::Alone => Mode::NO_PREEMPTION,
            },
            costs: Costs::DEFAULT,
            cards: clients.len(),
            slots: 1,
            clients,
            gangs: false,
            seed: 0,
            warm_up: 0,
            end,
            drain: 5 * S,
        }
    }
}

/// Number of rows that are not modes: "isolated" and "alone".
pub const REFERENCES: usize = 2;

/// Runs all combinations. Rows are ordered by workload, load and mode, with the [`REFERENCES`]
/// first.
pub fn compare(settings: &Settings) -> Vec<Row> {
    let mut tasks = Vec::new();
    for workload in &settings.workloads {
        for &load in &settings.loads {
            tasks.push((workload, load));
        }
    }
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(tasks.len()) {
            scope.spawn(|| loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(&(workload, load)) = tasks.get(i) else {
                    return;
                };
                let rows = one(settings, workload, load);
                done.lock().expect("no thread panics").push((i, rows));
            });
        }
    });
    let mut done = done.into_inner().expect("no thread panics");
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().flat_map(|(_, rows)| rows).collect()
}

fn one(settings: &Settings, workload: &Workload, load: Option<f64>) -> Vec<Row> {
    let natural = load.is_none();
    let load = load.unwrap_or_else(|| workload.natural_load());
    let end = workload.seconds.unwrap_or(settings.seconds) * S;
    let row = |who: Who| {
        let plan = Plan {
            costs: settings.costs,
            seed: settings.seed,
            ..who.plan(workload.clients(load, settings.phases), end)
        };
        let offered = match who {
            Who::All(_) => workload.rate(Kind::Be),
            Who::Isolated | Who::Alone => 0.0,
        };
        Row {
            workload: workload.name.clone(),
            load,
            natural,
            be_offered_per_s: offered,
            ..measure(&plan, who)
        }
    };
    beside_alone(row, &settings.modes)
}

/// Runs every mode on the clients of a trace whose last request arrives at `last`.
pub fn on_trace(
    clients: &[ClientPlan],
    last: u64,
    modes: &[Mode],
    costs: Costs,
    seed: u64,
) -> Vec<Row> {
    let requests = clients.iter().flat_map(|client| match &client.arrivals {
        Arrivals::Trace(requests) => &requests[..],
        Arrivals::Periodic { .. } | Arrivals::Poisson { .. } => &[],
    });
    let work: u64 = requests.filter_map(|request| request.1).sum();
    let load = work as f64 / (last + 1) as f64;
    let row = |who: Who| {
        let plan = Plan {
            costs,
            seed,
            ..who.plan(clients.to_vec(), last + 1)
        };
        Row {
            workload: "trace".into(),
            load,
            natural: true,
            ..measure(&plan, who)
        }
    };
    beside_alone(row, modes)
}

fn measure(plan: &Plan, who: Who) -> Row {
    let mut outcome = run(plan);
    assert_eq!(outcome.failed, 0, "no job fails on a card without fault");
    Row {
        workload: String::new(),
        load: 0.0,
        natural: false,
        mode: who.name(),
        lc: Latency::of(&mut outcome.lc),
        be: Latency::of(&mut outcome.be),
        requests: outcome.requests,
        lc_p50_added: 0.0,
        lc_p99_added: 0.0,
        lc_mean_added_us: 0.0,
        be_offered_per_s: 0.0,
        be_per_s: outcome.be_per_s(plan),
        be_kept: None,
        utilisation: outcome.utilisation(plan),
        saves_per_s: outcome.saves as f64 / (plan.end as f64 / S as f64),
        starts: outcome.starts,
        pauses: outcome.pauses,
        orders: outcome.orders,
        relayed: outcome.relayed,
        hints: outcome.hints,
        hints_used: outcome.hints_used,
        unfinished: outcome.unfinished,
        lc_skipped: outcome.lc_skipped,
        be_skipped: outcome.be_skipped,
    }
}

/// Returns the rows of the references and of every mode, the latter relative to "alone" and to no
/// preemption.
fn beside_alone(row: impl Fn(Who) -> Row, modes: &[Mode]) -> Vec<Row> {
    let mut rows = vec![row(Who::Isolated), row(Who::Alone)];
    rows.extend(modes.iter().map(|&mode| row(Who::All(mode))));
    let alone = rows[REFERENCES - 1].lc;
    let plain = Mode::NO_PREEMPTION.name();
    let plain = rows.iter().find(|row| row.mode == plain);
    let plain = plain.map(|row| row.be_per_s);
    for row in &mut rows[REFERENCES..] {
        row.lc_p50_added = row.lc.p50_us / alone.p50_us - 1.0;
        row.lc_p99_added = row.lc.p99_us / alone.p99_us - 1.0;
        row.lc_mean_added_us = row.lc.mean_us - alone.mean_us;
        row.be_kept = plain.map(|plain| row.be_per_s / plain);
    }
    rows
}
