// SPDX-License-Identifier: GPL-2.0-or-later
//! Figures of a cell, over all of its visits, and the load of the host meanwhile.

use super::timeline::VisitLog;
use crate::visit::{Cell, Costs, Load, Tenants, Variant, Visit};
use anyhow::{Context as _, Result};
use fermata_card::ledger::nearest_rank;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The fewest samples that have a P99: with fewer samples the nearest rank is the largest sample.
const P99_SAMPLES: usize = 100;

/// A distribution in microseconds, of the samples of all visits; percentiles are nearest ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) count: usize,
    pub(crate) p50: f64,
    /// `None` with fewer than [`P99_SAMPLES`] samples.
    pub(crate) p99: Option<f64>,
    pub(crate) max: f64,
}

/// A row of the report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) cell: Cell,
    pub(crate) visits: usize,
    pub(crate) switches: u64,
    /// Number of jobs with the right result.
    pub(crate) jobs: u64,
    /// From PAUSED or FINISH to the next START.
    pub(crate) gap: Spread,
    /// From PAUSE, or the end of a job's work, until the next job works; includes save and restore.
    pub(crate) switch: Spread,
    /// From the arrival of urgent work to its START.
    pub(crate) arrival: Spread,
    /// By how much a job exceeded its slice.
    pub(crate) overrun: Spread,
    /// Part of the time in which the slot works.
    pub(crate) useful: f64,
    /// Part of the time by which the gaps are longer than as many mean gaps of the card bound.
    pub(crate) lost_to_gaps: f64,
    /// CPU time of the guest on the host per switch, including interrupts and tenants, but not
    /// waits for the card. Only for an idle machine: on a busy machine the CPUs always run.
    pub(crate) cpu_us: Option<f64>,
    /// CPU time of the daemon, by the guest's clock, including waits for the card.
    pub(crate) daemon_us: Option<f64>,
    pub(crate) context_switches: f64,
    /// Register reads per switch, without reads of `STATE_SIZE_PG`.
    pub(crate) reads: f64,
    /// Reads of `STATE_SIZE_PG` per switch: one for each START call.
    pub(crate) size_reads: f64,
    pub(crate) writes: f64,
    pub(crate) host: HostLoad,
}

impl Spread {
    /// Returns the distribution of samples in nanoseconds.
    fn of(mut samples: Vec<i64>) -> Self {
        samples.sort_unstable();
        let count = samples.len();
        let rank = |percent| nearest_rank(&samples, percent).map_or(0.0, |ns| ns as f64 / 1e3);
        Self {
            count,
            p50: rank(50),
            p99: (count >= P99_SAMPLES).then(|| rank(99)),
            max: rank(100),
        }
    }
}

fn mean(samples: &[u64]) -> f64 {
    samples.iter().sum::<u64>() as f64 / samples.len().max(1) as f64
}

/// Mean gaps of the card bound in nanoseconds.
type Bounds = BTreeMap<(u32, Load, Costs), f64>;

/// Returns all rows in the order of the cells, and descriptions of what was wrong or is missing. No
/// row includes an incomplete visit.
pub(crate) fn rows(
    visits: &[Visit],
    seen: &BTreeMap<u32, VisitLog>,
    host: &HostSamples,
) -> (Vec<Row>, Vec<String>) {
    let mut cells: BTreeMap<Cell, Vec<(&Visit, &VisitLog)>> = BTreeMap::new();
    let mut bounds = Bounds::new();
    let mut failures = Vec::new();
    for visit in visits {
        let Visit { cell, wrong, .. } = visit;
        if *wrong > 0 {
            failures.push(format!("{wrong} wrong results in {cell:?}"));
        }
        let seen = match complete(visit, seen.get(&visit.number)) {
            Ok(seen) => seen,
            Err(missing) => {
                failures.push(format!("{missing} in {cell:?}"));
                continue;
            }
        };
        cells.entry(*cell).or_default().push((visit, seen));
        if cell.variant == Variant::CardBound {
            let key = (visit.round, cell.load, cell.costs);
            bounds.insert(key, mean(&seen.gap));
        }
    }
    let mut rows = Vec::new();
    for (cell, visits) in cells {
        match Row::of(cell, &visits, &bounds, host) {
            Ok(row) => rows.push(row),
            Err(error) => failures.push(format!("{error} for {cell:?}")),
        }
    }
    (rows, failures)
}

/// Returns what the card's log says of a visit, or what is missing.
fn complete<'a>(visit: &Visit, seen: Option<&'a VisitLog>) -> Result<&'a VisitLog, &'static str> {
    let seen = seen.ok_or("no mark in the log")?;
    let compares = visit.cell.tenants == Tenants::Mixed;
    if seen.gap.is_empty() {
        Err("no switch")
    } else if compares && visit.jobs == 0 {
        Err("no job ended")
    } else if compares && seen.arrival.is_empty() {
        Err("no arrival")
    } else {
        Ok(seen)
    }
}

impl Row {
    fn of(
        cell: Cell,
        visits: &[(&Visit, &VisitLog)],
        bounds: &Bounds,
        host: &HostSamples,
    ) -> Result<Self> {
        let spread = |samples: &dyn Fn(&VisitLog) -> Vec<i64>| {
            Spread::of(visits.iter().flat_map(|(_, seen)| samples(seen)).collect())
        };
        let signed = |samples: &[u64]| samples.iter().map(|ns| *ns as i64).collect();
        let sum = |value: &dyn Fn(&Visit, &VisitLog) -> u64| {
            visits
                .iter()
                .map(|(visit, seen)| value(visit, seen))
                .sum::<u64>() as f64
        };
        let switches = sum(&|_, seen| seen.starts);
        let length = sum(&|_, seen| seen.end - seen.begin);
        let mut longer_gaps = 0.0;
        for (visit, seen) in visits {
            let bound = bounds.get(&(visit.round, cell.load, cell.costs));
            let bound = bound.context("the card bound was not visited")?;
            let without_work = seen.end - seen.begin - seen.useful - seen.saving - seen.restoring;
            longer_gaps += without_work as f64 - seen.gap.len() as f64 * bound;
        }
        let idle = cell.load == Load::Idle;
        let windows = visits.iter().map(|(_, seen)| (seen.begin, seen.end));
        let guest = host.guest_in(windows.clone());
        let guest = guest.context("the host's samples do not cover the visits")?;
        let daemon = sum(&|visit, _| visit.usage.daemon_ns);
        Ok(Self {
            cell,
            visits: visits.len(),
            switches: switches as u64,
            jobs: sum(&|visit, _| visit.jobs) as u64,
            gap: spread(&|seen| signed(&seen.gap)),
            switch: spread(&|seen| signed(&seen.switch)),
            arrival: spread(&|seen| signed(&seen.arrival)),
            overrun: spread(&|seen| seen.overrun.clone()),
            useful: sum(&|_, seen| seen.useful) / length,
            lost_to_gaps: longer_gaps / length,
            cpu_us: idle.then(|| guest / switches / 1e3),
            daemon_us: (daemon > 0.0).then(|| daemon / switches / 1e3),
            context_switches: sum(&|visit, _| visit.usage.context_switches) / switches,
            reads: sum(&|_, seen| seen.reads) / switches,
            size_reads: sum(&|_, seen| seen.size_reads) / switches,
            writes: sum(&|_, seen| seen.writes) / switches,
            host: host.during(windows),
        })
    }
}

/// A line written by vm/fermatavm/bench.py.
#[derive(Clone, Copy, Deserialize)]
struct Sample {
    /// `CLOCK_MONOTONIC` in ns.
    t: u64,
    /// CPU time since the host booted, in ticks: stolen by the hypervisor, and in all.
    steal: u64,
    all: u64,
    /// Load average of one minute.
    load: f64,
    /// CPU time of the guest, in ns.
    guest: u64,
}

/// The load of the host during visits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct HostLoad {
    /// CPU time that the host's hypervisor took, in percent.
    pub(crate) steal_percent: f64,
    /// Mean of the load average of one minute.
    pub(crate) load: f64,
}

/// Samples of the host's load during the run.
pub(crate) struct HostSamples(Vec<Sample>);

impl HostSamples {
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let samples = text.lines().map(serde_json::from_str);
        Ok(Self(samples.collect::<Result<_, _>>()?))
    }

    /// Returns the CPU time of the guest until `t`, in ns, interpolated between two samples.
    fn guest_until(&self, t: u64) -> Option<f64> {
        let next = self.0.partition_point(|sample| sample.t < t);
        let (before, after) = (self.0.get(next.checked_sub(1)?)?, self.0.get(next)?);
        let part = (t - before.t) as f64 / (after.t - before.t) as f64;
        Some(before.guest as f64 + part * after.guest.checked_sub(before.guest)? as f64)
    }

    /// Returns the CPU time of the guest in some intervals, in ns, or `None` if samples do not
    /// cover them.
    pub(crate) fn guest_in(&self, times: impl Iterator<Item = (u64, u64)>) -> Option<f64> {
        let spent =
            times.map(|(begin, end)| Some(self.guest_until(end)? - self.guest_until(begin)?));
        spent.sum()
    }

    /// Returns the load of the host in some intervals.
    pub(crate) fn during(&self, times: impl Iterator<Item = (u64, u64)>) -> HostLoad {
        let (mut steal, mut all, mut load, mut count) = (0, 0, 0.0, 0);
        for (begin, end) in times {
            let first = self.0.partition_point(|sample| sample.t < begin);
            let last = self.0.partition_point(|sample| sample.t < end);
            // The interval extends from the sample before the visit to the sample after it.
            let last = last.min(self.0.len().saturating_sub(1));
            let samples = self.0.get(first.saturating_sub(1)..=last).unwrap_or(&[]);
            if let [first, .., last] = samples {
                steal += last.steal - first.steal;
                all += last.all - first.all;
            }
            load += samples.iter().map(|sample| sample.load).sum::<f64>();
            count += samples.len();
        }
        HostLoad {
            steal_percent: 100.0 * steal as f64 / all.max(1) as f64,
            load: load / count.max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maximum_is_no_p99() {
        let spread = |samples| Spread::of((1..=samples).rev().map(|us| us * 1000).collect());
        let few = spread(99);
        assert_eq!(
            (few.count, few.p50, few.p99, few.max),
            (99, 50.0, None, 99.0)
        );
        let enough = spread(100);
        assert_eq!(
            (enough.p50, enough.p99, enough.max),
            (50.0, Some(99.0), 100.0)
        );
        assert_eq!(Spread::of(Vec::new()), Spread::default());
    }

    #[test]
    fn samples_around_a_visit() {
        let sample = |t: u64, steal, load| Sample {
            t,
            steal,
            all: t,
            load,
            guest: t / 2,
        };
        let host = HostSamples(vec![
            sample(0, 0, 1.0),
            sample(100, 0, 1.0),
            sample(200, 10, 3.0),
            sample(300, 50, 9.0),
        ]);
        let weather = host.during([(120, 180)].into_iter());
        assert!((weather.steal_percent - 10.0).abs() < 1e-9);
        assert!((weather.load - 2.0).abs() < 1e-9);
        let spent = host.guest_in([(120, 180), (50, 100)].into_iter());
        assert!(spent.is_some_and(|spent| (spent - 55.0).abs() < 1e-9));
        assert_eq!(host.guest_in([(120, 400)].into_iter()), None);
        assert_eq!(
            HostSamples(Vec::new()).during([(1, 2)].into_iter()),
            HostLoad::default()
        );
    }
}
