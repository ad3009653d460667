// SPDX-License-Identifier: GPL-2.0

//! `make bench-sched`: the scheduler's time for a switch at the end of a slice, and for a whole
//! urgent job, with few and with many waiting contexts. Criterion measures; the table and
//! build/reports/bench-sched.json are made from its estimates.

use fermata_output::say;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs};

use comfy_table::{presets::UTF8_FULL_CONDENSED, CellAlignment, Table};
use criterion::{BenchmarkId, Criterion};
use fermata_sched_bench::{Case, Contended, CASES};
use fermata_sched_host::scheduler::{Entity, Place};
use serde_json::{json, Value};

const CONTEXTS: [usize; 4] = [2, 64, 4_096, 65_536];
/// Index of the size with which the others are compared.
const FEW: usize = 1;

/// How often the sizes are visited to compare them, and the number of turns each time, which take
/// less than a millisecond.
const ROUNDS: usize = 301;
const TURNS_EACH: usize = 256;

/// What is measured.
struct Turn {
    name: &'static str,
    text: &'static str,
    make: fn(&mut Contended) -> u32,
}

const TURNS: [Turn; 2] = [
    Turn {
        name: "switch",
        text: "time is up, PAUSE; PAUSED, the next START",
        make: Contended::switch,
    },
    Turn {
        name: "urgent",
        text: "an urgent job comes, PAUSE; PAUSED, its START; FINISH, the next START",
        make: Contended::interrupt,
    },
];

/// Measurements of one kind of turn under `policy` with `contexts`.
struct Row {
    policy: &'static str,
    turn: &'static str,
    contexts: usize,
    /// Criterion's time of a turn, in ns: the median, and its interval of 95 %.
    median: f64,
    low: f64,
    high: f64,
    compared: Compared,
}

/// Measurements of short turns of all sizes, one after the other.
#[derive(Clone, Copy, Default)]
struct Compared {
    /// Mean number of decisions that a turn takes.
    decisions: f64,
    /// One decision, ns: the median of all rounds.
    decision: f64,
    /// Its ratio to the time with the fewest contexts in the same round: the median of all rounds.
    ratio: f64,
}

/// Returns a contended slot of which every entry was accessed.
fn warm(case: Case, contexts: usize) -> Contended {
    let mut contended = Contended::new(case, contexts);
    for _ in 0..contexts.max(1_000) {
        contended.switch();
    }
    contended
}

fn bench(criterion: &mut Criterion, dir: &Path) -> Vec<Row> {
    let mut rows = Vec::new();
    for case in CASES {
        let policy = case.name;
        for turn in &TURNS {
            let mut slots = CONTEXTS.map(|contexts| warm(case, contexts));
            let mut group = criterion.benchmark_group(format!("{policy}-{}", turn.name));
            for (contended, contexts) in slots.iter_mut().zip(CONTEXTS) {
                group.bench_function(BenchmarkId::from_parameter(contexts), |b| {
                    b.iter(|| (turn.make)(contended));
                });
            }
            group.finish();
            let compared = compare(&mut slots, turn);
            for (contexts, compared) in CONTEXTS.into_iter().zip(compared) {
                let name = format!("{policy}-{}/{contexts}", turn.name);
                rows.extend(estimate(dir, &name).map(|[median, low, high]| Row {
                    policy,
                    turn: turn.name,
                    contexts,
                    median,
                    low,
                    high,
                    compared,
                }));
            }
        }
    }
    rows
}

/// Visits all sizes in turn, each round beginning with another one.
fn compare(slots: &mut [Contended; 4], turn: &Turn) -> [Compared; 4] {
    let (mut decisions, mut times, mut ratios) =
        ([0.0; 4], [(); 4].map(|()| vec![]), [(); 4].map(|()| vec![]));
    for round in 0..ROUNDS {
        let mut took = [0.0; 4];
        for i in 0..4 {
            let i = (i + round) % 4;
            let begin = Instant::now();
            let made: u32 = (0..TURNS_EACH).map(|_| (turn.make)(&mut slots[i])).sum();
            took[i] = begin.elapsed().as_nanos() as f64 / f64::from(made);
            decisions[i] += f64::from(made);
        }
        for i in 0..4 {
            times[i].push(took[i]);
            ratios[i].push(took[i] / took[FEW]);
        }
    }
    std::array::from_fn(|i| Compared {
        decisions: decisions[i] / (ROUNDS * TURNS_EACH) as f64,
        decision: median(&mut times[i]),
        ratio: median(&mut ratios[i]),
    })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the median and its interval from criterion's files.
fn estimate(dir: &Path, name: &str) -> Option<[f64; 3]> {
    let file = dir.join(name).join("new/estimates.json");
    let all: Value = serde_json::from_str(&fs::read_to_string(file).ok()?).ok()?;
    let median = &all["median"];
    let bounds = &median["confidence_interval"];
    Some([
        median["point_estimate"].as_f64()?,
        bounds["lower_bound"].as_f64()?,
        bounds["upper_bound"].as_f64()?,
    ])
}

fn env_dir(name: &str, default: &str) -> PathBuf {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    env::var_os(name).map_or_else(|| top.join(default), PathBuf::from)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED);
    table.set_header([
        "policy",
        "turn",
        "contexts",
        "decisions",
        "a turn, ns",
        "95 % interval",
        "a decision, ns",
        "next to 64",
    ]);
    for row in rows {
        table.add_row([
            row.policy.to_string(),
            row.turn.to_string(),
            row.contexts.to_string(),
            format!("{:.1}", row.compared.decisions),
            format!("{:.0}", row.median),
            format!("{:.0} to {:.0}", row.low, row.high),
            format!("{:.0}", row.compared.decision),
            format!("{:.2}", row.compared.ratio),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn report(rows: &[Row], reports: &Path) -> std::io::Result<()> {
    say!("{}", table(rows));
    for turn in &TURNS {
        say!("{}: {}", turn.name, turn.text);
    }
    let large = rows.iter().filter(|row| row.contexts == 4_096);
    let ratios = large.map(|row| {
        let name = format!("{}-{}", row.policy, row.turn);
        (name, row.compared.ratio)
    });
    let ratios: Vec<(String, f64)> = ratios.collect();
    let worst = ratios.iter().map(|(_, ratio)| *ratio).fold(0.0, f64::max);
    say!("a turn: criterion's median; a decision, next to 64: medians of {ROUNDS} rounds that visit all sizes in turn");
    say!("The aim: 4,096 next to 64 contexts at most 2. The worst: {worst:.2}");
    say!(
        "State of a context: {} bytes (at most 256).",
        size_of::<Place>() + size_of::<Entity>()
    );
    let json: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "policy": row.policy, "turn": row.turn, "contexts": row.contexts,
                "decisions": row.compared.decisions, "median_ns": row.median, "low_ns": row.low,
                "high_ns": row.high, "decision_ns": row.compared.decision, "next_to_64": row.compared.ratio,
            })
        })
        .collect();
    let turns = TURNS
        .iter()
        .map(|turn| (turn.name.into(), json!(turn.text)));
    let report = json!({
        "turns": Value::Object(turns.collect()),
        "rows": json,
        "ratio_4096_64": Value::Object(ratios.into_iter().map(|(k, v)| (k, json!(v))).collect()),
        "ratio_4096_64_worst": worst,
        "context_bytes": size_of::<Place>() + size_of::<Entity>(),
    });
    fs::create_dir_all(reports)?;
    fs::write(reports.join("bench-sched.json"), format!("{report:#}\n"))?;
    say!("wrote build/reports/bench-sched.json");
    Ok(())
}

fn main() -> std::io::Result<()> {
    let dir = env_dir("CARGO_TARGET_DIR", "target").join("criterion");
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .output_directory(&dir)
        .configure_from_args();
    let rows = bench(&mut criterion, &dir);
    criterion.final_summary();
    // With a filter, or as a test, not everything was measured.
    if rows.len() == CASES.len() * TURNS.len() * CONTEXTS.len() {
        report(&rows, &env_dir("FERMATA_REPORTS", "build/reports"))?;
    }
    Ok(())
}
