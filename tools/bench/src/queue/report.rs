// SPDX-License-Identifier: GPL-2.0
//! The table for people, and the same for programs.

use super::worker::Way;
use crate::output::{self, Distribution, NOTE};
use anyhow::{ensure, Result};
use serde::Serialize;
use std::path::Path;

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
            note: NOTE,
            fewer_calls: at(Way::Calls) / at(Way::Queue),
            rows,
            posted,
            calls_of_posting,
        }
    }

    /// Prints the table, writes the report, and fails if a queue needs too many calls.
    pub(crate) fn leave(&self, file: &Path) -> Result<()> {
        println!("{NOTE}\n{}", self.table());
        println!(
            "{} jobs were posted to an engine at work by {} calls; at a batch of {BATCH} a queue needs {:.1} times fewer",
            self.posted, self.calls_of_posting, self.fewer_calls
        );
        output::write(self, file)?;
        ensure!(self.calls_of_posting == 0, "posting costs calls");
        ensure!(
            self.fewer_calls >= FEWER,
            "less than {FEWER} times fewer calls"
        );
        Ok(())
    }

    fn table(&self) -> String {
        let rows = self.rows.iter().map(|row| {
            vec![
                row.batch.to_string(),
                row.way.name().into(),
                format!("{:.3}", row.calls_per_job),
                format!("{:.0}", row.jobs_per_second),
                format!("{:.1}", row.latency_p50_us),
                format!("{:.1}", row.latency_p99_us),
            ]
        });
        let header = [
            "batch",
            "way",
            "calls per job",
            "jobs per second",
            "P50 us",
            "P99 us",
        ];
        output::table(&header, rows.collect(), &[1])
    }
}

impl Row {
    fn of(cell: &mut Cell) -> Self {
        let latencies = Distribution::new(std::mem::take(&mut cell.latencies));
        cell.rates.sort_unstable_by(f64::total_cmp);
        Self {
            way: cell.way,
            batch: cell.batch,
            calls_per_job: cell.calls as f64 / cell.counted as f64,
            jobs_per_second: cell.rates.get(cell.rates.len() / 2).copied().unwrap_or(0.0),
            latency_p50_us: latencies.p50_us,
            latency_p99_us: latencies.p99_us,
        }
    }
}
