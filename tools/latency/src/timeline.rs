// SPDX-License-Identifier: GPL-2.0
//! What the card's log says of each arrival.

use crate::marker::{Arrival, CONTESTED_SLOT, LC_TAG, MARK, MARKER_SLOT};
use fermata_card::event::{Event, PauseFate, Phase, What};
use std::collections::BTreeMap;

/// Samples for one number of contexts, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Samples {
    /// Arrival to PAUSE, of those arrivals for which one was written.
    pub(crate) arrival_to_pause: Vec<u64>,
    /// Arrival to START, of all.
    pub(crate) arrival_to_start: Vec<u64>,
    /// PAUSED or FINISH to the next START, whoever's.
    pub(crate) gap: Vec<u64>,
    /// Arrivals at a slot that was between two jobs: no PAUSE was needed.
    pub(crate) without_pause: u64,
}

/// An arrival whose work has not been started.
#[derive(Clone, Copy)]
struct Pending {
    at: u64,
    paused: Option<u64>,
}

/// Goes through the log.
#[derive(Default)]
pub(crate) struct Timeline {
    samples: BTreeMap<u16, Samples>,
    /// Of the last arrival.
    contexts: Option<u16>,
    pending: Option<Pending>,
    /// Since when the slot stands idle.
    idle: Option<u64>,
    /// What the checker said.
    pub(crate) violations: u64,
}

/// Offset of the marker's register in the BAR (docs/card.md, Slot page).
const MARK_OFFSET: u64 = 0x1000 * (MARKER_SLOT + 1) + MARK as u64;

impl Timeline {
    /// The next line.
    pub(crate) fn take(&mut self, event: &Event) {
        let t = event.t;
        match &event.what {
            What::Write { off, val, .. } if *off == MARK_OFFSET => self.arrive(t, *val),
            What::Pause { slot, fate, .. }
                if is_contested(*slot) && *fate == PauseFate::Honoured =>
            {
                self.pause(t);
            }
            What::Phase { slot, phase, .. } if is_contested(*slot) => {
                if matches!(phase, Phase::Paused | Phase::Finished) {
                    self.idle = Some(t);
                }
            }
            What::Start {
                slot,
                accepted: true,
                tag,
                ..
            } if is_contested(*slot) => self.start(t, *tag),
            What::SlotReset { slot, .. } if is_contested(*slot) => self.idle = None,
            What::Violation { .. } => self.violations += 1,
            _ => {}
        }
    }

    /// By number of contexts.
    pub(crate) fn samples(self) -> BTreeMap<u16, Samples> {
        self.samples
    }

    fn arrive(&mut self, t: u64, mark: u64) {
        if let Some(arrival) = Arrival::from_mark(mark) {
            self.contexts = Some(arrival.contexts);
            self.pending = Some(Pending {
                at: t,
                paused: None,
            });
        }
    }

    fn pause(&mut self, t: u64) {
        if let Some(pending) = &mut self.pending {
            pending.paused.get_or_insert(t);
        }
    }

    fn start(&mut self, t: u64, tag: u64) {
        let idle = self.idle.take();
        let Some(samples) = self
            .contexts
            .map(|contexts| self.samples.entry(contexts).or_default())
        else {
            return;
        };
        samples.gap.extend(idle.map(|since| t - since));
        if tag != LC_TAG {
            return;
        }
        let Some(pending) = self.pending.take() else {
            return;
        };
        samples.arrival_to_start.push(t - pending.at);
        match pending.paused {
            Some(paused) => samples.arrival_to_pause.push(paused - pending.at),
            None => samples.without_pause += 1,
        }
    }
}

fn is_contested(slot: usize) -> bool {
    slot as u64 == CONTESTED_SLOT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(t: u64, what: What) -> Event {
        Event { t, what }
    }

    fn start(t: u64, tag: u64) -> Event {
        let (slot, resume, accepted) = (0, false, true);
        event(
            t,
            What::Start {
                slot,
                resume,
                accepted,
                tag,
            },
        )
    }

    fn phase(t: u64, phase: Phase) -> Event {
        let (slot, fault, snapshot_error) = (0, false, false);
        event(
            t,
            What::Phase {
                slot,
                phase,
                fault,
                snapshot_error,
                empty: false,
            },
        )
    }

    fn arrival(t: u64, number: u32) -> Event {
        let val = Arrival {
            contexts: 64,
            number,
        }
        .to_mark();
        event(
            t,
            What::Write {
                off: 0x2078,
                len: 8,
                val,
            },
        )
    }

    fn of(events: &[Event]) -> Samples {
        let mut timeline = Timeline::default();
        events.iter().for_each(|event| timeline.take(event));
        timeline.samples().remove(&64).unwrap_or_default()
    }

    #[test]
    fn an_arrival_that_preempts() {
        let (slot, at_boundary) = (0, false);
        let pause = |t, fate| {
            event(
                t,
                What::Pause {
                    slot,
                    fate,
                    at_boundary,
                },
            )
        };
        let samples = of(&[
            start(50, 0x1_0001),
            arrival(100, 1),
            pause(105, PauseFate::Dropped),
            pause(110, PauseFate::Honoured),
            phase(140, Phase::Paused),
            start(160, LC_TAG),
        ]);
        let expected = Samples {
            arrival_to_pause: vec![10],
            arrival_to_start: vec![60],
            gap: vec![20],
            without_pause: 0,
        };
        assert_eq!(samples, expected);
    }

    #[test]
    fn an_arrival_between_two_jobs() {
        let samples = of(&[
            arrival(10, 1),
            phase(20, Phase::Finished),
            start(25, 0x1_0001),
            phase(30, Phase::Paused),
            arrival(40, 2),
            start(47, LC_TAG),
        ]);
        assert_eq!(samples.gap, [5, 17]);
        assert_eq!(samples.arrival_to_start, [7]);
        assert_eq!(
            (samples.arrival_to_pause.len(), samples.without_pause),
            (0, 1)
        );
    }
}
