// SPDX-License-Identifier: GPL-2.0-or-later
//! Counters, gaps, run times, and the order in which tenants were on slots, derived from the
//! events.

use crate::config::CardConfig;
use crate::event::{Event, Frames, IrqFate, PauseFate, Phase, RecordFate, What};
use crate::regs::{is_unanswered, Reg, SlotReg};
use crate::relay::Reason;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;

/// What `counters` reports of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // named as in docs/emulated-card.md
pub struct Counters {
    pub starts: u64,
    pub resumes: u64,
    pub pauses_written: u64,
    pub pauses_at_boundary: u64,
    pub pauses_dropped: u64,
    pub paused: u64,
    pub emptied: u64,
    pub finished: u64,
    pub faults: u64,
    pub resets: u64,
    pub irqs: u64,
    pub irqs_lost: u64,
    pub events: u64,
    pub completions: u64,
    pub frames: Frames,
    pub reads: u64,
    pub writes: u64,
    pub reads_status: u64,
    pub reads_unanswered: u64,
    pub dma_reads: u64,
    pub dma_writes: u64,
    pub dma_errors: u64,
    pub orders: u64,
    pub orders_dropped: u64,
    pub orders_taken: u64,
    pub records: u64,
}

impl Counters {
    /// Counts what became of orders and records.
    fn relay_step(&mut self, what: &What) {
        match *what {
            What::Order { fate, .. } => {
                self.orders += 1;
                self.orders_dropped += u64::from(fate.is_lost());
            }
            What::Take { .. } => self.orders_taken += 1,
            What::Record { fate, .. } => {
                self.records += u64::from(fate == RecordFate::Posted);
            }
            What::RecordLanded { .. } => self.records += 1,
            _ => {}
        }
    }
}

/// What `runs` reports of a tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Run {
    pub starts: u64,
    pub resumes: u64,
    pub pauses: u64,
    pub finishes: u64,
    pub run_ns: u64,
}

#[derive(Debug, Default)]
struct SlotLedger {
    counters: Counters,
    gaps: Vec<u64>,
    pauses: Vec<u64>,
    rested_at: Option<u64>,
    paused_at: Option<u64>,
    running: Option<(u64, u64)>,
    /// Of the last START.
    tag: u64,
    runs: BTreeMap<u64, Run>,
}

/// Counters and times of all slots.
#[derive(Debug, Default)]
pub struct Ledger {
    config: Option<CardConfig>,
    slots: Vec<SlotLedger>,
}

impl Ledger {
    /// Processes one event.
    pub fn step(&mut self, event: &Event) {
        let t = event.t;
        match &event.what {
            What::Card { config } => {
                self.slots.clear();
                self.slots
                    .resize_with(config.slots.len(), SlotLedger::default);
                self.config = Some(config.clone());
            }
            What::Read { off, .. } => self.access(*off, false),
            What::Write { off, .. } => self.access(*off, true),
            What::DeviceReset => self.slots.iter_mut().for_each(|s| s.stop(t)),
            what => self.slot_event(t, what),
        }
    }

    fn slot_event(&mut self, t: u64, what: &What) {
        let Some(index) = slot_of(what) else { return };
        if let Some(slot) = self.slots.get_mut(index) {
            slot.step(t, what);
        }
    }

    fn access(&mut self, off: u64, write: bool) {
        let Some(config) = &self.config else { return };
        let reg = Reg::at(off, config.profile, config.slots.len());
        let Some(Reg::Slot(slot, reg)) = reg else {
            return;
        };
        let counters = &mut self.slots[slot].counters;
        if write {
            counters.writes += 1;
        } else {
            counters.reads_unanswered += u64::from(config.profile.is_base() && is_unanswered(off));
            counters.reads += 1;
            counters.reads_status += u64::from(reg == SlotReg::Ctl);
        }
    }

    /// Returns the counters of a slot.
    pub fn counters(&self, slot: usize) -> Counters {
        self.slots
            .get(slot)
            .map_or_else(Counters::default, |s| s.counters)
    }

    /// Returns the reply to `counters`.
    pub fn counters_text(&self, slot: usize) -> String {
        let c = self.counters(slot);
        format!(
            "starts={} resumes={} pauses_written={} pauses_at_boundary={} pauses_dropped={} \
                 paused={} finished={} faults={} resets={} irqs={} \
             irqs_lost={} reads={} writes={} reads_status={} reads_unanswered={} dma_reads={} dma_writes={} dma_errors={} emptied={} events={} completions={} \
             frames_saved={} frames_skipped={} frame_bytes_saved={} frame_bytes_skipped={} frame_ns_skipped={} \
             orders={} orders_dropped={} orders_taken={} records={}",
            c.starts,
            c.resumes,
            c.pauses_written,
            c.pauses_at_boundary,
            c.pauses_dropped,
            c.paused,
            c.finished,
            c.faults,
            c.resets,
            c.irqs,
            c.irqs_lost,
            c.reads,
            c.writes,
            c.reads_status,
            c.reads_unanswered,
            c.dma_reads,
            c.dma_writes,
            c.dma_errors,
            c.emptied,
            c.events,
            c.completions,
            c.frames.saved,
            c.frames.skipped,
            c.frames.saved_bytes,
            c.frames.skipped_bytes,
            c.frames.skipped_ns,
            c.orders,
            c.orders_dropped,
            c.orders_taken,
            c.records
        )
    }

    /// Returns the reply to `gaps`.
    pub fn gaps_text(&self, slot: usize) -> String {
        let Some(slot) = self.slots.get(slot) else {
            return String::new();
        };
        format!(
            "{} {}",
            percentiles("", &slot.gaps),
            percentiles("pause_to_paused_", &slot.pauses)
        )
    }

    /// Returns the reply to `runs`.
    pub fn runs_text(&self, slot: usize) -> String {
        let mut text = String::new();
        for (tag, run) in self.slots.get(slot).map(|s| &s.runs).into_iter().flatten() {
            let comma = if text.is_empty() { "" } else { "," };
            let Run {
                starts,
                resumes,
                pauses,
                finishes,
                run_ns,
            } = run;
            let _ = write!(
                text,
                "{comma}{tag:#x}:{starts}:{resumes}:{pauses}:{finishes}:{run_ns}"
            );
        }
        text
    }
}

fn slot_of(what: &What) -> Option<usize> {
    match what {
        What::SlotReset { slot, .. }
        | What::Start { slot, .. }
        | What::Pause { slot, .. }
        | What::Phase { slot, .. }
        | What::Completions { slot, .. }
        | What::Order { slot, .. }
        | What::Take { slot, .. }
        | What::Record { slot, .. }
        | What::RecordLanded { slot, .. }
        | What::RecordLost { slot, .. }
        | What::Save { slot, .. }
        | What::Irq { slot, .. }
        | What::ClearCounters { slot }
        | What::ClearGaps { slot } => Some(*slot),
        What::Dma { slot, .. } | What::DmaError { slot, .. } => *slot,
        _ => None,
    }
}

impl SlotLedger {
    fn step(&mut self, t: u64, what: &What) {
        let c = &mut self.counters;
        match *what {
            What::SlotReset { .. } => {
                c.resets += 1;
                self.stop(t);
            }
            What::Start {
                resume,
                accepted: true,
                tag,
                ..
            } => self.start(t, resume, tag),
            What::Pause {
                fate, at_boundary, ..
            } => {
                c.pauses_written += 1;
                c.pauses_at_boundary += u64::from(at_boundary);
                match fate {
                    // Counted from the first PAUSE: a repeated PAUSE does not make the time
                    // shorter.
                    PauseFate::Honoured => drop(self.paused_at.get_or_insert(t)),
                    PauseFate::Dropped | PauseFate::Ignored => c.pauses_dropped += 1,
                }
            }
            What::Phase {
                phase,
                fault,
                empty,
                ..
            } => {
                c.emptied += u64::from(empty);
                self.enter(t, phase, fault);
            }
            What::Completions { n, .. } => {
                c.events += 1;
                c.completions += n;
            }
            What::Record {
                reason: Reason::NotRun,
                ..
            } => self.runs.entry(self.tag).or_default().pauses += 1,
            What::Save { frames, .. } => c.frames.add(frames),
            What::Dma { write: true, n, .. } => c.dma_writes += n,
            What::Dma {
                write: false, n, ..
            } => c.dma_reads += n,
            What::DmaError { .. } => c.dma_errors += 1,
            What::Irq {
                fate: IrqFate::Sent | IrqFate::Spurious,
                ..
            } => c.irqs += 1,
            What::Irq {
                fate: IrqFate::Lost,
                ..
            } => c.irqs_lost += 1,
            What::ClearCounters { .. } => {
                *c = Counters::default();
                self.runs.clear();
            }
            What::ClearGaps { .. } => {
                self.gaps.clear();
                self.pauses.clear();
            }
            _ => c.relay_step(what),
        }
    }

    fn start(&mut self, t: u64, resume: bool, tag: u64) {
        let run = self.runs.entry(tag).or_default();
        *(if resume {
            &mut run.resumes
        } else {
            &mut run.starts
        }) += 1;
        *(if resume {
            &mut self.counters.resumes
        } else {
            &mut self.counters.starts
        }) += 1;
        self.gaps
            .extend(self.rested_at.take().map(|rested| t - rested.min(t)));
        self.running = Some((tag, t));
        self.tag = tag;
    }

    fn enter(&mut self, t: u64, phase: Phase, fault: bool) {
        if !matches!(phase, Phase::Paused | Phase::Finished | Phase::Idle) {
            return;
        }
        self.pauses
            .extend(self.paused_at.take().map(|written| t - written.min(t)));
        let mut nobody = Run::default();
        let run = match self.running {
            Some((tag, _)) => self.runs.entry(tag).or_default(),
            None => &mut nobody,
        };
        if phase == Phase::Paused {
            self.counters.paused += 1;
            run.pauses += 1;
        } else if phase == Phase::Finished {
            self.counters.finished += 1;
            self.counters.faults += u64::from(fault);
            run.finishes += 1;
        }
        let rested = self.running.is_some();
        self.stop(t);
        self.rested_at = rested.then_some(t);
    }

    /// Ends the run. A reset between PAUSED and the next START belongs to the gap.
    fn stop(&mut self, t: u64) {
        self.paused_at = None;
        if let Some((tag, since)) = self.running.take() {
            self.runs.entry(tag).or_default().run_ns += t - since.min(t);
            self.rested_at = None;
        }
    }
}

fn percentiles(prefix: &str, samples: &[u64]) -> String {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let at = |percent| nearest_rank(&sorted, percent).unwrap_or(0);
    format!(
        "{prefix}count={} {prefix}p50={} {prefix}p99={} {prefix}max={}",
        sorted.len(),
        at(50),
        at(99),
        at(100)
    )
}

/// Returns the nearest-rank percentile of `sorted`, which must be in ascending order: the smallest
/// sample such that at least `percent` % of all samples do not exceed it. 0 gives the smallest
/// sample, 100 and above give the largest. `None` if there are no samples.
pub fn nearest_rank<T: Copy>(sorted: &[T], percent: usize) -> Option<T> {
    let rank = (sorted.len() * percent).div_ceil(100);
    let last = sorted.len().checked_sub(1)?;
    sorted.get(rank.saturating_sub(1).min(last)).copied()
}

/// The most turns that are remembered; older ones are forgotten.
const KEPT: usize = 65_536;
/// The most turns in one reply.
const TOLD: usize = 2_048;

/// One entry of the history: an event on a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    slot: usize,
    what: &'static str,
    tag: u64,
}

/// The STARTs, PAUSEs and ends of all slots in the order in which the card saw them. Of runs by
/// order, start, resume and refused (with the tag of the previous run) are placed where the order
/// was taken, and later events are added when the context is loaded.
#[derive(Debug, Default)]
pub struct History {
    turns: VecDeque<Turn>,
    /// Number of the first turn that is kept.
    first: u64,
    /// The tag of each slot's last job.
    tags: Vec<u64>,
    /// For each slot, the number of the turn of an order that was taken, as long as the order's
    /// context is not loaded.
    taken: Vec<Option<u64>>,
}

/// Stands in the place of a turn until the context is loaded, or for good if it never is.
const TAKEN: &str = "";

impl History {
    /// Processes one event.
    pub fn step(&mut self, event: &Event) {
        match event.what {
            What::Start {
                slot,
                resume,
                accepted: true,
                tag,
            } => {
                self.tags.resize(self.tags.len().max(slot + 1), 0);
                self.tags[slot] = tag;
                self.begin(slot, if resume { "resume" } else { "start" });
            }
            // The run has its place in the order from now on, and gets its name when it is loaded.
            What::Take { slot, .. } => {
                self.taken.resize(self.taken.len().max(slot + 1), None);
                self.taken[slot] = Some(self.end());
                self.push(slot, TAKEN);
            }
            What::SlotReset { slot, .. } => drop(self.take_place(slot)),
            What::DeviceReset => self.taken.clear(),
            What::Pause {
                slot,
                fate,
                at_boundary,
            } => self.push(
                slot,
                match fate {
                    PauseFate::Honoured if at_boundary => "boundary",
                    PauseFate::Honoured => "pause",
                    PauseFate::Dropped | PauseFate::Ignored => "lost",
                },
            ),
            What::Phase {
                slot,
                phase: Phase::Paused,
                empty,
                ..
            } => self.push(slot, if empty { "emptied" } else { "paused" }),
            What::Phase {
                slot,
                phase: Phase::Finished,
                ..
            } => self.push(slot, "finished"),
            What::Record { slot, reason, .. } => match reason {
                Reason::NotRun => self.push(slot, "notrun"),
                Reason::Dropped => self.push(slot, "dropped"),
                Reason::Refused => self.begin(slot, "refused"),
                _ => {}
            },
            _ => {}
        }
    }

    /// Returns the number of the next turn.
    fn end(&self) -> u64 {
        self.first + self.turns.len() as u64
    }

    fn take_place(&mut self, slot: usize) -> Option<u64> {
        self.taken.get_mut(slot)?.take()
    }

    /// Adds a turn: in the place of its order, or at the end if there was no order.
    fn begin(&mut self, slot: usize, what: &'static str) {
        let Some(number) = self.take_place(slot) else {
            return self.push(slot, what);
        };
        let tag = self.tag(slot);
        let index = number.checked_sub(self.first);
        let place = index.and_then(|index| self.turns.get_mut(index as usize));
        if let Some(turn) = place {
            *turn = Turn { slot, what, tag };
        }
    }

    fn tag(&self, slot: usize) -> u64 {
        self.tags.get(slot).copied().unwrap_or(0)
    }

    fn push(&mut self, slot: usize, what: &'static str) {
        if self.turns.len() == KEPT {
            self.turns.pop_front();
            self.first += 1;
        }
        let tag = self.tag(slot);
        self.turns.push_back(Turn { slot, what, tag });
    }

    /// Returns the reply to `history`: the turns from number `from` on, up to the first that is not
    /// known yet. Without `from`, the reply is only the number of the next turn.
    pub fn text(&self, from: Option<u64>) -> String {
        let end = self.end();
        let known = self
            .taken
            .iter()
            .flatten()
            .min()
            .map_or(end, |&first| first);
        let from = from.unwrap_or(end).clamp(self.first, end);
        let next = known.clamp(from, from + TOLD as u64);
        let told: Vec<String> = self
            .turns
            .iter()
            .skip((from - self.first) as usize)
            .take((next - from) as usize)
            .filter(|turn| turn.what != TAKEN)
            .map(|turn| format!("{}:{}:{:#x}", turn.slot, turn.what, turn.tag))
            .collect();
        format!("from={from} next={next} events={}", told.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::{nearest_rank, *};

    #[test]
    fn percentiles_are_exact() {
        let samples: Vec<u64> = (1..=200).rev().collect();
        assert_eq!(
            super::percentiles("", &samples),
            "count=200 p50=100 p99=198 max=200"
        );
        assert_eq!(
            super::percentiles("x_", &[]),
            "x_count=0 x_p50=0 x_p99=0 x_max=0"
        );
    }

    #[test]
    fn ranks_are_rounded_up() {
        let samples = [10, 20, 30, 40, 50];
        let found = [0, 20, 21, 50, 99, 100, 101].map(|percent| nearest_rank(&samples, percent));
        assert_eq!(found, [10, 10, 20, 30, 50, 50, 50].map(Some));
        assert_eq!(nearest_rank(&[7], 1), Some(7));
        assert_eq!(nearest_rank::<u64>(&[], 50), None);
    }

    fn start(slot: usize, tag: u64) -> Event {
        let what = What::Start {
            slot,
            resume: false,
            accepted: true,
            tag,
        };
        Event { t: 0, what }
    }

    fn pause(slot: usize, fate: PauseFate, at_boundary: bool) -> Event {
        let what = What::Pause {
            slot,
            fate,
            at_boundary,
        };
        Event { t: 0, what }
    }

    #[test]
    fn order_and_numbers() {
        let mut history = History::default();
        assert_eq!(history.text(None), "from=0 next=0 events=");
        history.step(&start(1, 7));
        history.step(&start(0, 9));
        history.step(&pause(1, PauseFate::Honoured, false));
        history.step(&pause(0, PauseFate::Ignored, true));
        history.step(&pause(1, PauseFate::Honoured, true));
        assert_eq!(
            history.text(Some(0)),
            "from=0 next=5 events=1:start:0x7,0:start:0x9,1:pause:0x7,0:lost:0x9,1:boundary:0x7"
        );
        assert_eq!(
            history.text(Some(3)),
            "from=3 next=5 events=0:lost:0x9,1:boundary:0x7"
        );
        assert_eq!(history.text(Some(99)), "from=5 next=5 events=");
    }

    #[test]
    fn a_run_by_order_stands_where_the_order_was_taken() {
        let take = |slot| Event {
            t: 0,
            what: What::Take {
                slot,
                run: 1,
                context: 0,
            },
        };
        let mut history = History::default();
        history.step(&take(0));
        history.step(&take(1));
        history.step(&start(1, 7));
        assert_eq!(history.text(Some(0)), "from=0 next=0 events=");
        history.step(&start(0, 9));
        assert_eq!(
            history.text(Some(0)),
            "from=0 next=2 events=0:start:0x9,1:start:0x7"
        );
        history.step(&take(0));
        history.step(&start(1, 8));
        history.step(&Event {
            t: 0,
            what: What::DeviceReset,
        });
        assert_eq!(history.text(Some(2)), "from=2 next=4 events=1:start:0x8");
        assert_eq!(history.text(None), "from=4 next=4 events=");
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let mut history = History::default();
        for tag in 0..KEPT as u64 + 2 {
            history.step(&start(0, tag));
        }
        let text = history.text(Some(0));
        assert!(text.starts_with("from=2 next=2050 events=0:start:0x2,0:start:0x3"));
        assert_eq!(text.matches(':').count(), 2 * TOLD);
    }
}
