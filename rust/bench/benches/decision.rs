// SPDX-License-Identifier: GPL-2.0

//! `make bench-sched`: a switch as the scheduler sees it (slice over, PAUSE; PAUSED, the next START), with few and with many
//! contexts that wait. Criterion measures; the table and build/reports/bench-sched.json are made of its estimates.

use std::path::{Path, PathBuf};
use std::{env, fs};

use comfy_table::{presets::UTF8_FULL_CONDENSED, CellAlignment, Table};
use criterion::{BenchmarkId, Criterion};
use fermata_sched_bench::{Contended, POLICIES};
use fermata_sched_host::sched::Entry;
use serde_json::{json, Value};

const CONTEXTS: [usize; 4] = [2, 64, 4_096, 65_536];

fn bench(criterion: &mut Criterion) {
    for (name, policy) in POLICIES {
        let mut group = criterion.benchmark_group(name);
        for contexts in CONTEXTS {
            let mut contended = Contended::new(policy, contexts);
            // Every entry is touched before it is measured.
            (0..contexts).for_each(|_| contended.switch());
            group.bench_function(BenchmarkId::from_parameter(contexts), |b| {
                b.iter(|| contended.switch());
            });
        }
        group.finish();
    }
}

/// What was measured: a switch under `policy` among `contexts`; ns, with a confidence interval of 95 %.
struct Row {
    policy: &'static str,
    contexts: usize,
    median: f64,
    low: f64,
    high: f64,
}

/// The row that criterion has left.
fn row(dir: &Path, policy: &'static str, contexts: usize) -> Option<Row> {
    let file = dir.join(format!("{policy}/{contexts}/new/estimates.json"));
    let all: Value = serde_json::from_str(&fs::read_to_string(file).ok()?).ok()?;
    let median = &all["median"];
    let bounds = &median["confidence_interval"];
    Some(Row {
        policy,
        contexts,
        median: median["point_estimate"].as_f64()?,
        low: bounds["lower_bound"].as_f64()?,
        high: bounds["upper_bound"].as_f64()?,
    })
}

fn env_dir(name: &str, default: &str) -> PathBuf {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    env::var_os(name).map_or_else(|| top.join(default), PathBuf::from)
}

fn report(rows: &[Row], reports: &Path) -> std::io::Result<()> {
    let next_to = |row: &Row, contexts: usize| {
        let mut same = rows.iter().filter(|it| it.policy == row.policy);
        let other = same.find(|it| it.contexts == contexts);
        row.median / other.map_or(f64::NAN, |other| other.median)
    };
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED);
    table.set_header([
        "policy",
        "contexts",
        "switch, ns (median)",
        "95 % interval",
        "next to 64",
    ]);
    for row in rows {
        table.add_row([
            row.policy.to_string(),
            row.contexts.to_string(),
            format!("{:.0}", row.median),
            format!("{:.0} to {:.0}", row.low, row.high),
            format!("{:.2}", next_to(row, 64)),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}");
    println!("The aim: 4,096 next to 64 contexts at most 2.");
    println!(
        "State of a context: {} bytes (at most 256).",
        size_of::<Entry>()
    );
    let json: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "policy": row.policy, "contexts": row.contexts,
                "median_ns": row.median, "low_ns": row.low, "high_ns": row.high,
            })
        })
        .collect();
    let large = rows.iter().filter(|row| row.contexts == 4_096);
    let ratios: serde_json::Map<_, _> = large
        .map(|row| (row.policy.to_string(), json!(next_to(row, 64))))
        .collect();
    let report = json!({
        "what": "slice over, PAUSE; PAUSED, next START: two calls of Machine::handle",
        "switch": json,
        "ratio_4096_64": ratios,
        "entry_bytes": size_of::<Entry>(),
    });
    let file = reports.join("bench-sched.json");
    fs::create_dir_all(reports)?;
    fs::write(&file, format!("{report:#}\n"))?;
    println!("wrote {}", file.display());
    Ok(())
}

fn main() -> std::io::Result<()> {
    let dir = env_dir("CARGO_TARGET_DIR", "target").join("criterion");
    let mut criterion = Criterion::default()
        .output_directory(&dir)
        .configure_from_args();
    bench(&mut criterion);
    criterion.final_summary();
    let all = POLICIES
        .iter()
        .flat_map(|(name, _)| CONTEXTS.map(|n| (*name, n)));
    let rows: Option<Vec<Row>> = all.map(|(name, n)| row(&dir, name, n)).collect();
    // Run with a filter, or as a test, it may have left nothing to report.
    rows.map_or(Ok(()), |rows| {
        report(&rows, &env_dir("FERMATA_REPORTS", "build/reports"))
    })
}
