// SPDX-License-Identifier: GPL-2.0

//! `make bench-sched`: what the scheduler takes for a switch at the end of a slice, and for an urgent job that comes and goes, with few and
//! with many contexts that wait. Criterion measures; the table and build/reports/bench-sched.json are made of its estimates.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use comfy_table::{presets::UTF8_FULL_CONDENSED, CellAlignment, Table};
use criterion::{BenchmarkId, Criterion};
use fermata_sched_bench::{Contended, POLICIES};
use fermata_sched_host::sched::{Entry, PolicyKind};
use serde_json::{json, Value};

/// The second and the third are those that are compared: measured one after the other.
const CONTEXTS: [usize; 4] = [2, 64, 4_096, 65_536];

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

/// What was measured: so many decisions of one kind, on the average, under `policy` among `contexts`; ns for all of them, with a
/// confidence interval of 95 %.
struct Row {
    policy: &'static str,
    turn: &'static str,
    contexts: usize,
    decisions: f64,
    median: f64,
    low: f64,
    high: f64,
}

impl Row {
    /// One decision, ns.
    fn decision(&self) -> f64 {
        self.median / self.decisions
    }
}

/// A contended slot whose every entry was touched, and decisions per turn.
fn warm(policy: PolicyKind, contexts: usize, turn: &Turn) -> (Contended, f64) {
    let mut contended = Contended::new(policy, contexts);
    (0..contexts).for_each(|_| {
        contended.switch();
    });
    let turns = contexts.max(1_000);
    let decisions: u32 = (0..turns).map(|_| (turn.make)(&mut contended)).sum();
    (contended, f64::from(decisions) / turns as f64)
}

fn bench(criterion: &mut Criterion, dir: &Path) -> Vec<Row> {
    let mut rows = Vec::new();
    for (policy, kind) in POLICIES {
        for turn in &TURNS {
            let mut group = criterion.benchmark_group(format!("{policy}-{}", turn.name));
            for contexts in CONTEXTS {
                let (mut contended, decisions) = warm(kind, contexts, turn);
                group.bench_function(BenchmarkId::from_parameter(contexts), |b| {
                    b.iter(|| (turn.make)(&mut contended));
                });
                let name = format!("{policy}-{}/{contexts}", turn.name);
                rows.extend(estimate(dir, &name).map(|[median, low, high]| Row {
                    policy,
                    turn: turn.name,
                    contexts,
                    decisions,
                    median,
                    low,
                    high,
                }));
            }
            group.finish();
        }
    }
    rows
}

/// The median and its interval, as criterion has left them.
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

/// One decision of `row` next to one with 64 contexts of the same kind.
fn next_to_64(rows: &[Row], row: &Row) -> f64 {
    let mut same = rows
        .iter()
        .filter(|it| (it.policy, it.turn) == (row.policy, row.turn));
    let other = same.find(|it| it.contexts == 64);
    row.decision() / other.map_or(f64::NAN, Row::decision)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED);
    table.set_header([
        "policy",
        "turn",
        "contexts",
        "decisions",
        "ns (median)",
        "95 % interval",
        "a decision",
        "next to 64",
    ]);
    for row in rows {
        table.add_row([
            row.policy.to_string(),
            row.turn.to_string(),
            row.contexts.to_string(),
            format!("{:.1}", row.decisions),
            format!("{:.0}", row.median),
            format!("{:.0} to {:.0}", row.low, row.high),
            format!("{:.0}", row.decision()),
            format!("{:.2}", next_to_64(rows, row)),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn report(rows: &[Row], reports: &Path) -> std::io::Result<()> {
    println!("{}", table(rows));
    for turn in &TURNS {
        println!("{}: {}", turn.name, turn.text);
    }
    let large = rows.iter().filter(|row| row.contexts == 4_096);
    let ratios = large.map(|row| {
        let name = format!("{}-{}", row.policy, row.turn);
        (name, next_to_64(rows, row))
    });
    let ratios: Vec<(String, f64)> = ratios.collect();
    let worst = ratios.iter().map(|(_, ratio)| *ratio).fold(0.0, f64::max);
    println!("The aim: 4,096 next to 64 contexts at most 2. The worst: {worst:.2}");
    println!(
        "State of a context: {} bytes (at most 256).",
        size_of::<Entry>()
    );
    let json: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "policy": row.policy, "turn": row.turn, "contexts": row.contexts,
                "decisions": row.decisions, "median_ns": row.median, "low_ns": row.low,
                "high_ns": row.high, "decision_ns": row.decision(),
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
        "entry_bytes": size_of::<Entry>(),
    });
    fs::create_dir_all(reports)?;
    fs::write(reports.join("bench-sched.json"), format!("{report:#}\n"))?;
    println!("wrote build/reports/bench-sched.json");
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
    // Run with a filter, or as a test, it has not measured all.
    if rows.len() == POLICIES.len() * TURNS.len() * CONTEXTS.len() {
        report(&rows, &env_dir("FERMATA_REPORTS", "build/reports"))?;
    }
    Ok(())
}
