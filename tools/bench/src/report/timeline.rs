// SPDX-License-Identifier: GPL-2.0-or-later
//! Evaluates the card's log, visit by visit.

use super::LoggedViolation;
use crate::mark::{visit_of, Mark, CONTESTED_SLOT, MARK_OFFSET};
use crate::visit::URGENT_TAG;
use anyhow::{Context as _, Result};
use fermata_card::event::{Event, PauseFate, Phase, What};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// `CSR_STATE_SIZE_PG` of slot 0.
const STATE_SIZE: u64 = 0x1020;

/// What the log has between the marks of a visit. Times are in nanoseconds.
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
    /// Returns what a log has of each visit, by number, and the violations. `slices` are the
    /// lengths of slices, in nanoseconds, by number of the visit.
    pub(crate) fn read(
        log: &Path,
        slices: BTreeMap<u32, u64>,
    ) -> Result<(BTreeMap<u32, VisitLog>, Vec<LoggedViolation>)> {
        let mut timeline = Self::new(slices);
        let file = File::open(log).with_context(|| log.display().to_string())?;
        for line in BufReader::new(file).lines() {
            timeline.take(&serde_json::from_str::<Event>(&line?)?);
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
}
