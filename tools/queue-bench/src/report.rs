// SPDX-License-Identifier: GPL-2.0
//! The table for people, and the same for programs.

use crate::work::Way;
use anyhow::{ensure, Context as _, Result};
use comfy_table::{CellAlignment, Table};
use fermata_card::percentile::nearest_rank;
use serde::Serialize;
use std::path::Path;

/// Said first, and kept in the report.
const HONESTY: &str = "All times are those of an emulated card in an emulated machine; they say nothing about a device. \
    Ratios of one run count, and system calls.";
/// At this batch size a queue must need so many times fewer calls.
const BATCH: usize = 32;
const FEWER: f64 = 10.0;

/// A way and a batch size.
pub(crate) struct Cell {
    pub(crate) way: Way,
    pub(crate) batch: usize,
    /// Jobs whose system calls were counted, and these.
    pub(crate) counted: u64,
    pub(crate) calls: u64,
    /// Jobs per second, of each round.
    pub(crate) rates: Vec<f64>,
    /// Of all jobs, in nanoseconds.
    pub(crate) latencies: Vec<u64>,
}

impl Cell {
    pub(crate) fn new(way: Way, batch: usize) -> Self {
        Self {
            way,
            batch,
            counted: 0,
            calls: 0,
            rates: Vec::new(),
            latencies: Vec::new(),
        }
    }
}

#[derive(Serialize)]
struct Row {
    way: Way,
    batch: usize,
    calls_per_job: f64,
    /// Median of the rounds.
    jobs_per_second: f64,
    latency_p50_us: f64,
    latency_p99_us: f64,
}

/// All that was found.
#[derive(Serialize)]
pub(crate) struct Report {
    note: &'static str,
    rows: Vec<Row>,
    /// Jobs posted to an engine at work, and the system calls of that.
    posted: usize,
    calls_of_posting: u64,
    /// System calls of a call each, by those of a queue, at a batch of 32.
    fewer_calls: f64,
}

impl Report {
    pub(crate) fn new(cells: &mut [Cell], posted: usize, calls_of_posting: u64) -> Self {
        let rows: Vec<Row> = cells.iter_mut().map(Row::of).collect();
        let at = |way| {
            let mut found = rows
                .iter()
                .filter(|row| row.way == way && row.batch == BATCH);
            found.next().map_or(f64::NAN, |row| row.calls_per_job)
        };
        Self {
            note: HONESTY,
            fewer_calls: at(Way::Calls) / at(Way::Queue),
            rows,
            posted,
            calls_of_posting,
        }
    }

    /// Prints the table, writes the report, and fails if a queue needs too many calls.
    pub(crate) fn leave(&self, file: &Path) -> Result<()> {
        println!("{HONESTY}\n{}", self.table());
        println!(
            "{} jobs were posted to an engine at work by {} calls; at a batch of {BATCH} a queue needs {:.1} times fewer",
            self.posted, self.calls_of_posting, self.fewer_calls
        );
        std::fs::write(file, serde_json::to_string_pretty(self)? + "\n")
            .with_context(|| file.display().to_string())?;
        ensure!(self.calls_of_posting == 0, "posting costs calls");
        ensure!(
            self.fewer_calls >= FEWER,
            "less than {FEWER} times fewer calls"
        );
        Ok(())
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(comfy_table::presets::ASCII_MARKDOWN);
        table.set_header([
            "batch",
            "way",
            "calls per job",
            "jobs per second",
            "P50 us",
            "P99 us",
        ]);
        for row in &self.rows {
            table.add_row([
                row.batch.to_string(),
                row.way.name().into(),
                format!("{:.3}", row.calls_per_job),
                format!("{:.0}", row.jobs_per_second),
                format!("{:.1}", row.latency_p50_us),
                format!("{:.1}", row.latency_p99_us),
            ]);
        }
        for column in table.column_iter_mut().filter(|column| column.index != 1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}

impl Row {
    fn of(cell: &mut Cell) -> Self {
        cell.latencies.sort_unstable();
        cell.rates.sort_unstable_by(f64::total_cmp);
        let rank =
            |percent| nearest_rank(&cell.latencies, percent).map_or(0.0, |ns| ns as f64 / 1e3);
        Self {
            way: cell.way,
            batch: cell.batch,
            calls_per_job: cell.calls as f64 / cell.counted as f64,
            jobs_per_second: cell.rates.get(cell.rates.len() / 2).copied().unwrap_or(0.0),
            latency_p50_us: rank(50),
            latency_p99_us: rank(99),
        }
    }
}
