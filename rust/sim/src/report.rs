// SPDX-License-Identifier: GPL-2.0

//! Tables and pictures for people, JSON for programs.

use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use fermata_picture::chart::{self, log_range, Line, Panel, Scale, Side};
use fermata_picture::svg::{palette, Color};
use serde::Serialize;

use crate::compare::{Row, REFERENCES};
use crate::mode::Mode;
use crate::sim::Costs;
use crate::workload::{Phases, Program, PROGRAMS};
use crate::{compare, fleet, gangs, placement};

/// build/reports/sim.json.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Seed of all random numbers.
    pub seed: u64,
    /// The costs of card and machine.
    pub costs: Costs,
    /// The duration of a request of each program, before it is scaled to a load.
    pub programs: &'static [Program],
    /// When the periodic clients of the compared workloads begin; absent where no workloads were compared.
    pub phases: Option<Phases>,
    /// Modes, workloads and loads.
    pub compare: Vec<compare::Row>,
    /// Fleets.
    pub fleet: Vec<fleet::Row>,
    /// Gangs.
    pub gangs: Vec<gangs::Row>,
    /// Modes on a trace.
    pub trace: Vec<compare::Row>,
    /// Jobs of a cluster.
    pub placement: Vec<placement::Row>,
}

impl Report {
    /// Returns a report without results.
    pub fn new(seed: u64, costs: Costs) -> Self {
        Self {
            seed,
            costs,
            programs: &PROGRAMS,
            phases: None,
            compare: Vec::new(),
            fleet: Vec::new(),
            gangs: Vec::new(),
            trace: Vec::new(),
            placement: Vec::new(),
        }
    }
}

fn table(header: &[impl ToString], left: usize) -> Table {
    let mut table = Table::new();
    let header = header.iter().map(ToString::to_string);
    table.load_preset(UTF8_FULL_CONDENSED).set_header(header);
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Returns the costs of card and machine, in one line.
pub fn costs(costs: &Costs) -> String {
    let us = |ns: u64| ns as f64 / 1e3;
    format!(
        "costs (us): save {}, restore {}, interrupt {}, status read {}, start {}, order {}, load {}, timer {}, call {}, wake-up {}; preparation off by up to {} %",
        us(costs.save),
        us(costs.restore),
        us(costs.irq),
        us(costs.read),
        us(costs.start),
        us(costs.order),
        us(costs.load),
        us(costs.timer),
        us(costs.call),
        us(costs.wake),
        costs.preparation_off
    )
}

/// The meaning of the columns of [`compare_table`].
pub const LEGEND: &str = "\
load *: durations as in the table of programs, or given; else all scaled by one factor to reach the load
isolated: each LC client has a slot of its own; alone: all LC clients on one slot, without BE
P50, P99, max: LC latency, arrival to end, us; +: over alone; BE/s: BE requests done per second
kept: of the BE/s of no-preemption; used: time with a job on the slot, saves and restores included
skipped: requests that were late, of clients that skip them";

/// Returns the comparison as a table, with a row for each mode.
pub fn compare_table(rows: &[&compare::Row]) -> Table {
    let header = [
        "", "load", "mode", "LC P50", "P99", "max", "P50 +%", "P99 +%", "mean +", "BE/s", "kept %",
        "used %", "saves/s",
    ];
    let skips = rows.iter().any(|row| row.lc_skipped + row.be_skipped > 0);
    let skipped = ["LC skipped", "BE skipped"]
        .iter()
        .take(if skips { 2 } else { 0 });
    let header: Vec<&str> = header.iter().chain(skipped).copied().collect();
    let mut out = table(&header, 3);
    out.column_mut(1)
        .expect("there is one")
        .set_cell_alignment(CellAlignment::Right);
    for row in rows {
        let all = row.be_offered_per_s > 0.0 || row.be.count > 0;
        let unless = |text: String| if all { text } else { "-".into() };
        let percent = |part: f64| format!("{:.1}", part * 100.0);
        let mut cells = vec![
            row.workload.clone(),
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
        ];
        if skips {
            cells.extend([row.lc_skipped, row.be_skipped].map(|count| count.to_string()));
        }
        out.add_row(cells);
    }
    out
}

/// A figure of the sweep: its name, and its value for a row.
type Figure = (&'static str, fn(&compare::Row) -> f64);

/// Returns the figures of one mode over the loads, a row for each workload and figure; `None`
/// without a sweep.
pub fn sweep_table(rows: &[compare::Row], mode: Mode) -> Option<Table> {
    let name = mode.name();
    let rows = rows.iter().filter(|row| !row.natural && row.mode == name);
    let rows: Vec<&compare::Row> = rows.collect();
    let first = &rows.first()?.workload;
    let loads = rows.iter().take_while(|row| row.workload == *first);
    let loads = loads.map(|row| format!("{:.0} %", row.load * 100.0));
    let header: Vec<String> = [name, String::new()].into_iter().chain(loads).collect();
    let mut out = table(&header, 2);
    let figures: [Figure; 3] = [
        ("LC P50 +%", |row| row.lc_p50_added),
        ("LC P99 +%", |row| row.lc_p99_added),
        ("BE kept %", |row| row.be_kept.unwrap_or(f64::NAN)),
    ];
    for rows in rows.chunk_by(|a, b| a.workload == b.workload) {
        for (i, (figure, value)) in figures.iter().enumerate() {
            let name = if i == 0 { &rows[0].workload } else { "" };
            let values = rows.iter().map(|row| format!("{:.1}", value(row) * 100.0));
            let texts = [name.to_string(), (*figure).to_string()].into_iter();
            out.add_row(texts.chain(values).collect::<Vec<_>>());
        }
    }
    Some(out)
}

/// Returns gangs as a table, with each figure beside the one without gangs.
pub fn gangs_table(rows: &[gangs::Row]) -> Table {
    let header = [
        "mode",
        "slots",
        "members",
        "gangs",
        "singles",
        "skew us",
        "switches",
        "apart us",
        "useful %",
        "apart %",
        "loss %",
        "gangs' %",
        "apart %",
        "LC P99 us",
        "apart",
    ];
    let mut out = table(&header, 1);
    let percent = |part: f64| format!("{:.1}", part * 100.0);
    for row in rows {
        out.add_row([
            row.mode.clone(),
            row.slots.to_string(),
            row.members.to_string(),
            row.gangs.to_string(),
            row.singles.to_string(),
            format!("{:.0}", row.skew_us),
            format!("{:.2}", row.skew_switches),
            format!("{:.0}", row.skew_apart_us),
            percent(row.useful),
            percent(row.useful_apart),
            percent(row.loss),
            percent(row.gang_useful),
            percent(row.gang_useful_apart),
            format!("{:.0}", row.lc.p99_us),
            format!("{:.0}", row.lc_apart.p99_us),
        ]);
    }
    out
}

/// Returns fleets as a table.
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

/// Returns clusters as a table.
pub fn placement_table(rows: &[placement::Row]) -> Table {
    let header = [
        "strategy",
        "nodes",
        "load %",
        "jobs",
        "unfinished",
        "preempted",
        "drained",
        "completed %",
        "lost %",
        "P50",
        "P99",
        "mean",
        "urgent P50",
        "P99",
    ];
    let mut out = table(&header, 1);
    let percent = |part: f64| format!("{:.1}", part * 100.0);
    for row in rows {
        out.add_row([
            row.strategy.to_string(),
            row.nodes.to_string(),
            percent(row.load),
            row.jobs.to_string(),
            row.unfinished.to_string(),
            row.preempted.to_string(),
            row.drained.to_string(),
            percent(row.completed),
            percent(row.lost),
            format!("{:.2}", row.normal.p50),
            format!("{:.1}", row.normal.p99),
            format!("{:.2}", row.normal.mean),
            format!("{:.2}", row.urgent.p50),
            format!("{:.1}", row.urgent.p99),
        ]);
    }
    out
}

type Value = fn(&Row) -> f64;

/// The colors of isolated and alone; those of the modes are from the palette.
const REFERENCE_COLORS: [Color; REFERENCES] = [Color(0xaa, 0xaa, 0xaa), Color(0x55, 0x55, 0x55)];

/// Draws the rows of one workload over the load to `file`: latencies in three panels, throughput in
/// the last.
///
/// # Errors
///
/// The file cannot be written.
pub fn draw(rows: &[&Row], title: &str, file: &Path) -> Result<()> {
    let rows: Vec<&Row> = rows.iter().copied().filter(|row| !row.natural).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let panels: [(&str, &str, Value, Scale); 4] = [
        (
            "LC latency P50",
            "ms",
            |row| row.lc.p50_us / 1e3,
            Scale::Log,
        ),
        (
            "LC latency P99",
            "ms",
            |row| row.lc.p99_us / 1e3,
            Scale::Log,
        ),
        (
            "LC latency max",
            "ms",
            |row| row.lc.max_us / 1e3,
            Scale::Log,
        ),
        (
            "BE requests",
            "per second",
            |row| row.be_per_s,
            Scale::Linear,
        ),
    ];
    let panels = panels.map(|(name, unit, value, scale)| panel(&rows, (name, unit), value, scale));
    let svg = chart::draw(title, &panels, 2, (1100.0, 820.0));
    svg.write(file).with_context(|| file.display().to_string())
}

/// Returns the modes of a workload's rows, which repeat with each load.
fn modes<'a>(rows: &[&'a Row]) -> Vec<&'a str> {
    let mut modes: Vec<&str> = Vec::new();
    for row in rows {
        if !modes.contains(&row.mode.as_str()) {
            modes.push(&row.mode);
        }
    }
    modes
}

fn panel<'a>(
    rows: &[&Row],
    (name, unit): (&str, &'a str),
    value: Value,
    scale: Scale,
) -> Panel<'a> {
    let modes = modes(rows);
    let colors = palette(modes.len());
    let colors = REFERENCE_COLORS.into_iter().chain(colors);
    let lines = modes.iter().zip(colors).enumerate();
    let lines = lines.map(|(marker, (mode, color))| {
        let rows = rows.iter().filter(|row| row.mode == *mode);
        // References have no BE requests.
        let rows = rows.filter(|row| scale == Scale::Log || row.be.count > 0);
        Line {
            name: (*mode).into(),
            color,
            marker,
            // The references are bold, so that they remain visible where modes are equal to them.
            bold: marker < REFERENCES,
            is_area: false,
            points: rows.map(|row| (row.load * 100.0, value(row))).collect(),
            is_level: false,
        }
    });
    let lines: Vec<Line> = lines.filter(|line| !line.points.is_empty()).collect();
    let points = || lines.iter().flat_map(|line| &line.points);
    let loads = points().map(|(load, _)| *load);
    let (left, right) = loads.fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(x), b.max(x)));
    let values = log_range(points().map(|(_, value)| *value));
    let range = values.map(|(low, high)| match scale {
        Scale::Log => (low, high),
        Scale::Linear => (0.0, high),
    });
    Panel {
        caption: format!("{name}, {unit}"),
        across: Side {
            name: "load, %",
            scale: Scale::Linear,
            range: (left - 1.0, right + 1.0),
        },
        up: range.map(|range| Side {
            name: unit,
            scale,
            range,
        }),
        lines,
        has_legend: false,
    }
}
