// SPDX-License-Identifier: GPL-2.0
//! The table for people, and the same for programs.

use crate::timeline::{Samples, Timeline};
use anyhow::{ensure, Context as _, Result};
use comfy_table::{CellAlignment, Table};
use fermata_card::event::Event;
use fermata_card::percentile::nearest_rank;
use serde::Serialize;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Said first, and kept in the report.
const HONESTY: &str = "All times are those of an emulated card in an emulated machine; they say nothing about a device. \
    P99 and max are the host's as much as the driver's.";

#[derive(Serialize)]
struct Report {
    note: &'static str,
    populations: Vec<Population>,
}

/// With so many contexts open.
#[derive(Serialize)]
struct Population {
    contexts: u16,
    arrival_to_pause: Latency,
    arrival_to_start: Latency,
    /// Arrivals at a slot that was between two jobs.
    arrivals_without_pause: u64,
    /// PAUSED or FINISH to the next START.
    paused_to_start: Latency,
}

/// In microseconds; nearest ranks.
#[derive(Serialize)]
struct Latency {
    count: usize,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

impl Latency {
    fn of(mut samples: Vec<u64>) -> Self {
        samples.sort_unstable();
        let rank = |percent| nearest_rank(&samples, percent).map_or(0.0, |ns| ns as f64 / 1e3);
        Self {
            count: samples.len(),
            p50_us: rank(50),
            p99_us: rank(99),
            max_us: rank(100),
        }
    }

    fn cells(&self) -> [String; 3] {
        [self.p50_us, self.p99_us, self.max_us].map(|us| format!("{us:.1}"))
    }
}

impl Population {
    fn of(contexts: u16, samples: Samples) -> Self {
        Self {
            contexts,
            arrival_to_pause: Latency::of(samples.arrival_to_pause),
            arrival_to_start: Latency::of(samples.arrival_to_start),
            arrivals_without_pause: samples.without_pause,
            paused_to_start: Latency::of(samples.gap),
        }
    }
}

/// Reads the log, prints the table and writes the report.
pub(crate) fn make(log: &Path, out: &Path) -> Result<()> {
    let mut timeline = Timeline::default();
    let file = File::open(log).with_context(|| log.display().to_string())?;
    for line in BufReader::new(file).lines() {
        timeline.take(&serde_json::from_str::<Event>(&line?)?);
    }
    ensure!(
        timeline.violations == 0,
        "{} violations",
        timeline.violations
    );
    let populations: Vec<_> = timeline
        .samples()
        .into_iter()
        .map(|(contexts, samples)| Population::of(contexts, samples))
        .collect();
    ensure!(
        !populations.is_empty(),
        "{} holds no arrivals",
        log.display()
    );
    println!("{HONESTY}\n{}", table(&populations));
    let report = Report {
        note: HONESTY,
        populations,
    };
    if let Some(folder) = out.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(out, serde_json::to_string_pretty(&report)? + "\n")
        .with_context(|| out.display().to_string())
}

fn table(populations: &[Population]) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::ASCII_MARKDOWN);
    table.set_header(["contexts", "what", "count", "P50 us", "P99 us", "max us"]);
    for population in populations {
        let kinds = [
            ("LC arrival to PAUSE", &population.arrival_to_pause),
            ("LC arrival to START", &population.arrival_to_start),
            (
                "PAUSED or FINISH to next START",
                &population.paused_to_start,
            ),
        ];
        for (what, latency) in kinds {
            let [p50, p99, max] = latency.cells();
            table.add_row([
                population.contexts.to_string(),
                what.into(),
                latency.count.to_string(),
                p50,
                p99,
                max,
            ]);
        }
    }
    for column in table.column_iter_mut().filter(|column| column.index != 1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
