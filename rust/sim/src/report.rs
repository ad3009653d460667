// SPDX-License-Identifier: GPL-2.0

//! Tables for people, JSON for programs.

use comfy_table::{presets::UTF8_FULL_CONDENSED, CellAlignment, Table};
use serde::Serialize;

use crate::sim::Costs;
use crate::workload::{Program, PROGRAMS};
use crate::{compare, fleet};

/// build/reports/sim.json.
#[derive(Debug, Serialize)]
pub struct Report {
    /// All that is random follows from it.
    pub seed: u64,
    /// What card and machine cost.
    pub costs: Costs,
    /// What a request of each program takes, before it is scaled to a load.
    pub programs: &'static [Program],
    /// Modes, workloads and loads.
    pub compare: Vec<compare::Row>,
    /// Fleets.
    pub fleet: Vec<fleet::Row>,
    /// Modes on a trace.
    pub trace: Vec<compare::Row>,
}

impl Report {
    /// Without results.
    pub fn new(seed: u64, costs: Costs) -> Self {
        Self {
            seed,
            costs,
            programs: &PROGRAMS,
            compare: Vec::new(),
            fleet: Vec::new(),
            trace: Vec::new(),
        }
    }
}

fn table(header: &[&str], left: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header(header);
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// What things cost, in a line.
pub fn costs(costs: &Costs) -> String {
    let us = |ns: u64| ns as f64 / 1e3;
    format!(
        "costs (us): save {}, restore {}, interrupt {}, status read {}, start {}, timer {}, call {}, wake-up {}",
        us(costs.save),
        us(costs.restore),
        us(costs.irq),
        us(costs.read),
        us(costs.start),
        us(costs.timer),
        us(costs.call),
        us(costs.wake)
    )
}

/// The comparison as a table.
pub fn compare_table(rows: &[compare::Row]) -> Table {
    let header = [
        "",
        "load",
        "mode",
        "LC P50 us",
        "P99",
        "max",
        "P50 +%",
        "P99 +%",
        "mean +us",
        "BE/s",
        "kept %",
        "used %",
        "saves/s",
    ];
    let mut out = table(&header, 3);
    out.column_mut(1)
        .expect("there is one")
        .set_cell_alignment(CellAlignment::Right);
    for row in rows {
        let alone = row.mode == "alone";
        let unless = |text: String| if alone { "-".to_string() } else { text };
        let percent = |part: f64| format!("{:.1}", part * 100.0);
        out.add_row([
            row.workload.to_string(),
            format!(
                "{:.0}{}",
                row.load * 100.0,
                if row.natural { "*" } else { "" }
            ),
            row.mode.clone(),
            format!("{:.0}", row.lc.p50_us),
            format!("{:.0}", row.lc.p99_us),
            format!("{:.0}", row.lc.max_us),
            unless(percent(row.lc_p50_added)),
            unless(percent(row.lc_p99_added)),
            unless(format!("{:.0}", row.lc_mean_added_us)),
            unless(format!("{:.1}", row.be_per_s)),
            row.be_kept.map_or("-".into(), percent),
            percent(row.utilisation),
            format!("{:.0}", row.saves_per_s),
        ]);
    }
    out
}

/// Fleets as a table.
pub fn fleet_table(rows: &[fleet::Row]) -> Table {
    let header = [
        "mode",
        "cards",
        "slots",
        "contexts",
        "virtual s",
        "requests",
        "decisions",
        "LC P50 us",
        "P99",
        "used %",
        "run s",
        "peak MiB",
    ];
    let mut out = table(&header, 1);
    for row in rows {
        out.add_row([
            row.mode.clone(),
            row.cards.to_string(),
            row.slots.to_string(),
            row.contexts.to_string(),
            format!("{:.1}", row.virtual_s),
            row.requests.to_string(),
            row.decisions.to_string(),
            format!("{:.0}", row.lc.p50_us),
            format!("{:.0}", row.lc.p99_us),
            format!("{:.1}", row.utilisation * 100.0),
            format!("{:.2}", row.run_s),
            row.peak_mib.map_or("-".into(), |mib| format!("{mib:.0}")),
        ]);
    }
    out
}
