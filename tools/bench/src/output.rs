// SPDX-License-Identifier: GPL-2.0-or-later
//! What the benchmarks print and write: distributions, tables and reports.

use anyhow::{Context as _, Result};
use comfy_table::{CellAlignment, Table};
use fermata_card::ledger::nearest_rank;
use serde::Serialize;
use std::path::Path;

/// The first sentences of every report.
pub(crate) const NOTE: &str = "All times are those of an emulated card in an emulated machine: \
     absolute figures say nothing about a device. Ratios \
    within one run are what counts; P99 and max are the host's as much as the driver's.";

/// A distribution of times in microseconds; percentiles are nearest ranks. All zero: there are no
/// samples.
#[derive(Serialize)]
pub(crate) struct Distribution {
    pub(crate) count: usize,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
}

impl Distribution {
    /// Returns the distribution of samples in nanoseconds.
    pub(crate) fn new(mut samples: Vec<u64>) -> Self {
        samples.sort_unstable();
        let rank = |percent| nearest_rank(&samples, percent).map_or(0.0, |ns| ns as f64 / 1e3);
        Self {
            count: samples.len(),
            p50_us: rank(50),
            p99_us: rank(99),
            max_us: rank(100),
        }
    }
}

/// Returns a table as Markdown; the columns in `left` are aligned to the left, the others to the
/// right.
pub(crate) fn table(header: &[&str], rows: Vec<Vec<String>>, left: &[usize]) -> String {
    debug_assert!(rows.iter().all(|row| row.len() == header.len()));
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::ASCII_MARKDOWN);
    table.set_header(header);
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        if !left.contains(&column.index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    // Cells hold sentences: padding would make the lines of a column as long as the longest one.
    let lines = table.to_string();
    let lines = lines.lines().map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(compact).collect();
        format!("| {} |\n", cells.join(" | "))
    });
    lines.collect()
}

/// Returns a cell of a Markdown table, or a part of the line below its header, without padding.
fn compact(cell: &str) -> String {
    let cell = cell.trim();
    match (cell.starts_with("--"), cell.ends_with(':')) {
        (true, true) => "--:".into(),
        (true, false) => "---".into(),
        (false, _) => cell.into(),
    }
}

/// Writes a report as JSON, and creates its folder if it is missing.
pub(crate) fn write(report: &impl Serialize, file: &Path) -> Result<()> {
    let name = || file.display().to_string();
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).with_context(name)?;
    }
    let text = serde_json::to_string_pretty(report)? + "\n";
    std::fs::write(file, text).with_context(name)
}
