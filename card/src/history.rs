// SPDX-License-Identifier: GPL-2.0-or-later
//! Who was on which slot, in order: what `history` tells.

use crate::event::{Event, PauseFate, Phase, What};
use crate::relay::Reason;
use std::collections::VecDeque;

/// So many are remembered; older ones are forgotten.
const KEPT: usize = 65_536;
/// One reply has no more.
const TOLD: usize = 2_048;

/// One turn of events on a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    slot: usize,
    what: &'static str,
    tag: u64,
}

/// The STARTs, PAUSEs and ends of all slots in the order in which the card saw them.
#[derive(Debug, Default)]
pub struct History {
    turns: VecDeque<Turn>,
    /// Number of the first that is kept.
    first: u64,
    /// Whose job each slot had last.
    tags: Vec<u64>,
    /// Of each slot, the number of the turn that an order was taken for whose context is not loaded
    /// yet.
    taken: Vec<Option<u64>>,
}

/// What stands in the place of a turn until the context is loaded, and for good if it never is.
const TAKEN: &str = "";

impl History {
    /// Takes one event in.
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
            // The run has its place in the order from here on, and its name when it is loaded.
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

    /// Number of the next turn.
    fn end(&self) -> u64 {
        self.first + self.turns.len() as u64
    }

    fn take_place(&mut self, slot: usize) -> Option<u64> {
        self.taken.get_mut(slot)?.take()
    }

    /// A turn that stands where its order was taken, or last if there was none.
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

    /// The reply to `history`: those from number `from` on, up to one that is not known yet; or
    /// without it none, only the number of the next one.
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
    use super::*;

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
