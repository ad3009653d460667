// SPDX-License-Identifier: GPL-2.0-or-later
//! `make bench-latency`: latency-critical work arrives at a slot for which 2, 64 or 1,000 contexts
//! compete. [`run`] makes the load in the guest; [`report`] evaluates the card's log on the host.

use crate::guest::machine::Card;
use crate::guest::tenants::{allow_files, open, wait_for_end, OwnContext};
use crate::mark::{Mark, Marker};
use crate::report::figures::{Timeline, VisitLog};
use crate::report::{markdown_table, write_json, Distribution, NOTE};
use crate::visit::{Job, SHORT, TAGS, URGENT_TAG};
use anyhow::{ensure, Result};
use fermata::Param;
use fermata_output::say;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

/// Pause between two arrivals of urgent work; not a multiple of any timeslice.
pub(crate) const PAUSE_US: Range<u64> = 3_000..11_000;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The card
    #[arg(long, default_value = "/dev/fermata0")]
    device: PathBuf,
    /// Contexts open on the slot, the latency-critical one included
    #[arg(long, value_delimiter = ',', default_values_t = [2_u16, 64, 1000])]
    contexts: Vec<u16>,
    /// Number of visits with each number of contexts
    #[arg(long, default_value_t = 5)]
    rounds: u16,
    /// Arrivals in each visit
    #[arg(long, default_value_t = 60)]
    arrivals: u32,
}

#[derive(clap::Args)]
pub(crate) struct ReportOptions {
    /// The card's log
    log: PathBuf,
    /// Where the report goes
    #[arg(long, default_value = "build/reports/latency.json")]
    out: PathBuf,
}

/// Makes all rounds; a round visits each number of contexts once.
pub(crate) fn run(options: &Options) -> Result<()> {
    allow_files(options.contexts.iter().copied().max().unwrap_or(0).into())?;
    let marker = Marker::open(&Card::find()?.path)?;
    let urgent = tenant(options, URGENT_TAG, SHORT)?;
    urgent.context.set_param(Param::LatencyCritical, 1)?;
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut number = 0;
    for round in 1..=options.rounds {
        for &contexts in &options.contexts {
            let others = crowd(options, contexts)?;
            let visit = u32::from(round) << 16 | u32::from(contexts);
            marker.mark(Mark::Begin(visit));
            for _ in 0..options.arrivals {
                std::thread::sleep(Duration::from_micros(random.random_range(PAUSE_US)));
                number += 1;
                marker.mark(Mark::Arrival(number));
                urgent.context.start()?;
                wait_for_end(&urgent.context)?;
            }
            marker.mark(Mark::End(visit));
            let arrivals = options.arrivals;
            say!("round {round}: {contexts} contexts: {arrivals} arrivals");
            drop(others);
        }
    }
    Ok(())
}

/// Returns best-effort contexts whose jobs never end.
fn crowd(options: &Options, contexts: u16) -> Result<Vec<OwnContext>> {
    (1..u64::from(contexts))
        .map(|number| {
            let tenant = tenant(options, TAGS + number, u64::MAX)?;
            tenant.context.start()?;
            Ok(tenant)
        })
        .collect()
}

fn tenant(options: &Options, tag: u64, accesses: u64) -> Result<OwnContext> {
    open(&options.device, Job { tag, accesses }, 1)
}

#[derive(Serialize)]
struct Report {
    note: &'static str,
    populations: Vec<Population>,
}

/// The samples of all visits with one number of contexts.
#[derive(Serialize)]
struct Population {
    contexts: u16,
    arrival_to_pause: Distribution,
    arrival_to_start: Distribution,
    /// Arrivals at a slot that was between two jobs, for which no PAUSE was needed.
    arrivals_without_pause: usize,
    /// From PAUSED or FINISH to the next START.
    paused_to_start: Distribution,
}

impl Population {
    fn new(contexts: u16, visits: &[VisitLog]) -> Self {
        let join = |samples: fn(&VisitLog) -> &[u64]| -> Vec<u64> {
            visits.iter().flat_map(samples).copied().collect()
        };
        let (pauses, starts) = (join(|seen| &seen.arrival_pause), join(|seen| &seen.arrival));
        Self {
            contexts,
            arrivals_without_pause: starts.len() - pauses.len(),
            arrival_to_pause: Distribution::new(pauses),
            arrival_to_start: Distribution::new(starts),
            paused_to_start: Distribution::new(join(|seen| &seen.gap)),
        }
    }

    /// Returns the population's rows of the table.
    fn rows(&self) -> [Vec<String>; 3] {
        [
            ("LC arrival to PAUSE", &self.arrival_to_pause),
            ("LC arrival to START", &self.arrival_to_start),
            ("PAUSED or FINISH to next START", &self.paused_to_start),
        ]
        .map(|(what, times)| {
            let [p50, p99, max] =
                [times.p50_us, times.p99_us, times.max_us].map(|us| format!("{us:.1}"));
            let (contexts, count) = (self.contexts.to_string(), times.count.to_string());
            vec![contexts, what.into(), count, p50, p99, max]
        })
    }
}

/// Reads the log, prints the table and writes the report. Fails if the card's checker found a
/// violation.
pub(crate) fn report(options: &ReportOptions) -> Result<()> {
    let (seen, violations) = Timeline::read(&options.log, BTreeMap::new())?;
    ensure!(violations.is_empty(), "{} violations", violations.len());
    let populations = populations(seen);
    let log = options.log.display();
    ensure!(!populations.is_empty(), "{log} holds no arrivals");
    let rows = populations.iter().flat_map(Population::rows).collect();
    let header = ["contexts", "what", "count", "P50 us", "P99 us", "max us"];
    say!("{NOTE}\n{}", markdown_table(&header, rows, &[1]));
    let report = Report {
        note: NOTE,
        populations,
    };
    write_json(&report, &options.out)
}

/// Joins the visits that have the same number of contexts, which their numbers hold.
fn populations(visits: BTreeMap<u32, VisitLog>) -> Vec<Population> {
    let mut seen: BTreeMap<u16, Vec<VisitLog>> = BTreeMap::new();
    for (number, visit) in visits {
        seen.entry(number as u16).or_default().push(visit);
    }
    seen.into_iter()
        .map(|(contexts, visits)| Population::new(contexts, &visits))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visits_with_the_same_number_of_contexts_are_joined() {
        let visit = |arrival: &[u64], arrival_pause: &[u64]| VisitLog {
            arrival: arrival.to_vec(),
            arrival_pause: arrival_pause.to_vec(),
            ..VisitLog::default()
        };
        let visits = [
            (1 << 16 | 64, visit(&[5_000, 7_000], &[2_000])),
            (2 << 16 | 2, visit(&[1_000], &[])),
            (2 << 16 | 64, visit(&[6_000], &[3_000])),
        ];
        let found = populations(BTreeMap::from(visits));
        let rows: Vec<_> = found.iter().flat_map(Population::rows).collect();
        assert_eq!(
            rows[1],
            ["2", "LC arrival to START", "1", "1.0", "1.0", "1.0"]
        );
        assert_eq!(
            rows[3],
            ["64", "LC arrival to PAUSE", "2", "2.0", "3.0", "3.0"]
        );
        assert_eq!(
            rows[4],
            ["64", "LC arrival to START", "3", "6.0", "7.0", "7.0"]
        );
        let without = found
            .iter()
            .map(|population| population.arrivals_without_pause);
        assert_eq!(without.collect::<Vec<_>>(), [1, 1]);
    }
}
