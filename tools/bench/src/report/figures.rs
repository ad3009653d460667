// SPDX-License-Identifier: GPL-2.0-or-later
//! The card's log, evaluated visit by visit; figures of a cell, over all of its visits, and the load of
//! the host meanwhile.

use super::LoggedViolation;
use crate::mark::{visit_of, Mark, CONTESTED_SLOT, MARK_OFFSET};
use crate::visit::{Cell, Costs, Load, Tenants, Variant, Visit, URGENT_TAG};
use anyhow::{Context as _, Result};
use fermata_card::event::{Event, PauseFate, Phase, What};
use fermata_card::ledger::nearest_rank;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// `CSR_STATE_SIZE_PG` of slot 0.
const STATE_SIZE: u64 = 0x1020;

/// The contents of the log between the marks of a visit. Times are in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VisitLog {
    pub(crate) begin: u64,
    /// 0 if the mark is missing.
    pub(crate) end: u64,
    /// From PAUSED or FINISH to the next START.
    pub(crate) gap: Vec<u64>,
    /// From PAUSE, or the end of a job's work, until the next job works: save, gap and restore.
    pub(crate) switch: Vec<u64>,
    /// From the arrival of urgent work to its START.
    pub(crate) arrival: Vec<u64>,
    /// From the arrival of urgent work to the first honoured PAUSE after the arrival, if there is a
    /// PAUSE before the START.
    pub(crate) arrival_pause: Vec<u64>,
    /// By how much a job exceeded its slice. Only for jobs with a whole slice: not for the rest of
    /// a slice that urgent work interrupted, nor if urgent work arrived during the slice.
    pub(crate) overrun: Vec<i64>,
    /// Time in which the slot worked, saved and restored.
    pub(crate) useful: u64,
    pub(crate) saving: u64,
    pub(crate) restoring: u64,
    pub(crate) starts: u64,
    /// Register accesses, without marks and reads of `STATE_SIZE_PG`.
    pub(crate) reads: u64,
    /// Reads of `STATE_SIZE_PG`.
    pub(crate) size_reads: u64,
    pub(crate) writes: u64,
}

/// The present visit.
#[derive(Default)]
struct Open {
    number: u32,
    seen: VisitLog,
    slice_ns: u64,
    /// When urgent work arrived that has not been started.
    arrived: Option<u64>,
    /// PAUSE was honoured since the arrival.
    paused: bool,
}

/// The state of the evaluation.
#[derive(Default)]
pub(crate) struct Timeline {
    /// Lengths of slices by visit; 0 if the visit has no slices.
    slices: BTreeMap<u32, u64>,
    visits: BTreeMap<u32, VisitLog>,
    open: Option<Open>,
    phase: Option<(Phase, u64)>,
    /// Since when no job works on the slot.
    stopped: Option<u64>,
    /// Since when the slot is idle.
    idle: Option<u64>,
    /// The running job, and whether the job has a whole slice.
    tag: u64,
    whole_slice: bool,
    /// Jobs that urgent work interrupted, which may get only the rest of a slice.
    interrupted: BTreeSet<u64>,
    /// The visit whose driver has the card, before, between and after the visit's marks.
    present: Option<u32>,
    /// Violations that the checker found.
    violations: Vec<LoggedViolation>,
}

impl Timeline {
    /// Returns the contents of a log for each visit, by number, and the violations. `slices` are
    /// the lengths of slices, in nanoseconds, by number of the visit.
    pub(crate) fn read(
        log: &Path,
        slices: BTreeMap<u32, u64>,
    ) -> Result<(BTreeMap<u32, VisitLog>, Vec<LoggedViolation>)> {
        let mut timeline = Self::new(slices);
        let file = File::open(log).with_context(|| log.display().to_string())?;
        for line in BufReader::new(file).lines() {
            timeline.take(&Event::parse(&line?)?);
        }
        Ok((timeline.visits, timeline.violations))
    }

    fn new(slices: BTreeMap<u32, u64>) -> Self {
        Self {
            slices,
            ..Self::default()
        }
    }

    /// Evaluates the next line of the log.
    fn take(&mut self, event: &Event) {
        let t = event.t;
        match &event.what {
            What::Write { off, val, .. } if *off == MARK_OFFSET => self.mark(t, *val),
            What::Write { .. } => self.count(|seen| seen.writes += 1),
            What::Read {
                off: STATE_SIZE, ..
            } => self.count(|seen| seen.size_reads += 1),
            What::Read { off, .. } if *off != MARK_OFFSET => self.count(|seen| seen.reads += 1),
            What::Pause {
                slot: CONTESTED_SLOT,
                fate: PauseFate::Honoured,
                ..
            } => self.pause(t),
            What::Phase {
                slot: CONTESTED_SLOT,
                phase,
                ..
            } => self.enter(t, *phase),
            What::Start {
                slot: CONTESTED_SLOT,
                accepted: true,
                tag,
                ..
            } => self.start(t, *tag),
            What::DeviceReset
            | What::SlotReset {
                slot: CONTESTED_SLOT,
                ..
            } => {
                (self.idle, self.stopped) = (None, None);
            }
            What::Mark { text } => self.present = visit_of(text).or(self.present),
            What::Violation { kind, text } => {
                let found = (self.present, format!("{kind}: {text}"));
                self.violations.push(found);
            }
            _ => {}
        }
    }

    fn count(&mut self, change: impl FnOnce(&mut VisitLog)) {
        if let Some(open) = &mut self.open {
            change(&mut open.seen);
        }
    }

    fn mark(&mut self, t: u64, word: u64) {
        match Mark::from_word(word) {
            Some(Mark::Begin(number)) => {
                self.open = Some(Open {
                    number,
                    slice_ns: self.slices.get(&number).copied().unwrap_or(0),
                    seen: VisitLog {
                        begin: t,
                        ..VisitLog::default()
                    },
                    arrived: None,
                    paused: false,
                });
                // Each sample must begin within the visit.
                (self.idle, self.stopped) = (None, None);
            }
            Some(Mark::End(number)) => {
                self.account(t);
                if let Some(mut open) = self.open.take().filter(|open| open.number == number) {
                    open.seen.end = t;
                    self.visits.insert(number, open.seen);
                }
            }
            Some(Mark::Arrival(_)) => {
                if let Some(open) = &mut self.open {
                    (open.arrived, open.paused) = (Some(t), false);
                }
            }
            None => {}
        }
    }

    /// Adds the time since the last change of phase to the phase's sum.
    fn account(&mut self, t: u64) {
        let Some((phase, since)) = self.phase else {
            return;
        };
        self.count(|seen| {
            let time = t.saturating_sub(since.max(seen.begin));
            match phase {
                Phase::Running | Phase::Ending => seen.useful += time,
                Phase::Saving => seen.saving += time,
                Phase::Restoring => seen.restoring += time,
                Phase::Idle | Phase::Finished | Phase::Paused => {}
            }
        });
    }

    fn pause(&mut self, t: u64) {
        self.stopped = Some(t);
        if let Some(open) = &mut self.open {
            let first = open.arrived.filter(|_| !open.paused);
            open.seen.arrival_pause.extend(first.map(|since| t - since));
            open.paused = true;
        }
        let (Some((Phase::Running, since)), true) = (self.phase, self.whole_slice) else {
            return;
        };
        if let Some(open) = &mut self.open {
            if open.slice_ns > 0 && open.arrived.is_none() && since > open.seen.begin {
                open.seen
                    .overrun
                    .push((t - since) as i64 - open.slice_ns as i64);
            }
        }
    }

    fn enter(&mut self, t: u64, phase: Phase) {
        self.account(t);
        self.phase = Some((phase, t));
        match phase {
            Phase::Paused | Phase::Finished => {
                self.idle = Some(t);
                self.stopped.get_or_insert(t);
            }
            Phase::Running => {
                if let Some(stopped) = self.stopped.take() {
                    self.count(|seen| seen.switch.push(t - stopped));
                }
            }
            Phase::Idle | Phase::Restoring | Phase::Saving | Phase::Ending => {}
        }
    }

    fn start(&mut self, t: u64, tag: u64) {
        if tag == URGENT_TAG {
            self.interrupted.insert(self.tag);
        }
        self.whole_slice = !self.interrupted.remove(&tag) && tag != URGENT_TAG;
        self.tag = tag;
        let idle = self.idle.take();
        let Some(open) = &mut self.open else {
            return;
        };
        open.seen.starts += 1;
        open.seen.gap.extend(idle.map(|since| t - since));
        if tag == URGENT_TAG {
            let arrived = open.arrived.take();
            open.seen.arrival.extend(arrived.map(|since| t - since));
        }
    }
}

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
    /// Part of the time by which the gaps exceed the same number of mean gaps of the card bound.
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

/// Returns the contents of the card's log for a visit, or what is missing.
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

    /// Returns the CPU time of the guest in some intervals, in ns, or `None` if the samples do not
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

    const SLOT: usize = CONTESTED_SLOT;

    fn mark(t: u64, mark: Mark) -> Event {
        let what = What::Write {
            off: MARK_OFFSET,
            len: 8,
            val: mark.to_word(),
        };
        Event { t, what }
    }

    fn phase(t: u64, phase: Phase) -> Event {
        let what = What::Phase {
            slot: SLOT,
            phase,
            fault: false,
            snapshot_error: false,
            empty: false,
        };
        Event { t, what }
    }

    fn start(t: u64, tag: u64) -> Event {
        let what = What::Start {
            slot: SLOT,
            resume: true,
            accepted: true,
            tag,
        };
        Event { t, what }
    }

    fn pause(t: u64) -> Event {
        pause_of(t, PauseFate::Honoured)
    }

    fn pause_of(t: u64, fate: PauseFate) -> Event {
        let what = What::Pause {
            slot: SLOT,
            fate,
            at_boundary: false,
        };
        Event { t, what }
    }

    fn of(events: &[Event]) -> VisitLog {
        let mut timeline = Timeline::new(BTreeMap::from([(7, 100)]));
        events.iter().for_each(|event| timeline.take(event));
        timeline.visits.remove(&7).unwrap_or_default()
    }

    #[test]
    fn a_slice_and_its_switch() {
        let seen = of(&[
            start(5, 1),
            phase(6, Phase::Running),
            mark(10, Mark::Begin(7)),
            pause(20),
            phase(20, Phase::Saving),
            phase(30, Phase::Paused),
            start(37, 2),
            phase(37, Phase::Restoring),
            phase(45, Phase::Running),
            pause(150),
            phase(150, Phase::Saving),
            mark(160, Mark::End(7)),
        ]);
        assert_eq!((seen.gap, seen.switch), (vec![7], vec![25]));
        // The first slice began before the visit; the second had 105 ns instead of 100.
        assert_eq!(seen.overrun, [5]);
        assert_eq!((seen.useful, seen.saving, seen.restoring), (115, 20, 8));
        assert_eq!((seen.begin, seen.end, seen.starts), (10, 160, 1));
    }

    #[test]
    fn urgent_work_is_timed_and_what_it_interrupts_is_no_slice() {
        let seen = of(&[
            mark(0, Mark::Begin(7)),
            start(5, 1),
            phase(6, Phase::Running),
            mark(20, Mark::Arrival(1)),
            pause_of(23, PauseFate::Dropped),
            pause(25),
            phase(30, Phase::Paused),
            start(40, URGENT_TAG),
            phase(40, Phase::Running),
            phase(50, Phase::Finished),
            start(60, 2),
            phase(61, Phase::Running),
            pause(171),
            phase(180, Phase::Paused),
            start(190, 1),
            phase(191, Phase::Running),
            pause(250),
            mark(260, Mark::End(7)),
        ]);
        assert_eq!((seen.arrival, seen.arrival_pause), (vec![20], vec![5]));
        // Only the second job had a whole slice.
        assert_eq!(seen.overrun, [10]);
        assert_eq!(seen.gap, [10, 10, 10]);
        assert_eq!(seen.switch, [15, 11, 20]);
    }

    #[test]
    fn urgent_work_that_arrives_between_two_jobs_needs_no_pause() {
        let seen = of(&[
            mark(0, Mark::Begin(7)),
            mark(10, Mark::Arrival(1)),
            phase(20, Phase::Finished),
            start(25, 1),
            phase(30, Phase::Paused),
            mark(40, Mark::Arrival(2)),
            start(47, URGENT_TAG),
            mark(50, Mark::End(7)),
        ]);
        assert_eq!(seen.gap, [5, 17]);
        assert_eq!((seen.arrival, seen.arrival_pause), (vec![7], vec![]));
    }

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
