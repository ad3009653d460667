// SPDX-License-Identifier: GPL-2.0-or-later
//! Reads the card's log.

use crate::{End, Timeline, Turn};
use anyhow::{Context as _, Result};
use fermata_card::config::Profile;
use fermata_card::event::{Event, PauseFate, Phase, What};
use fermata_card::relay::Reason;
use std::io::BufRead;

/// The state of a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Now {
    /// When the order of the next turn was taken.
    taken: Option<u64>,
    turn: Option<Open>,
}

/// A turn that has not ended.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    tag: u64,
    resumed: bool,
    from: u64,
    worked: Option<u64>,
    stopped: Option<u64>,
}

/// Builds a timeline of events.
#[derive(Debug, Default)]
pub struct Reader {
    timeline: Timeline,
    slots: Vec<Now>,
}

/// Returns the timeline of a log, and when the log begins; times are `CLOCK_MONOTONIC` of the
/// card's machine.
pub fn read(log: impl BufRead) -> Result<(Timeline, u64)> {
    let mut reader = Reader::default();
    let mut first = None;
    for (n, line) in log.lines().enumerate() {
        let event = Event::parse(&line?).with_context(|| format!("line {}", n + 1))?;
        first.get_or_insert(event.t);
        reader.take(&event);
    }
    Ok((reader.end(), first.unwrap_or(0)))
}

fn end_of(phase: Phase, failed: bool) -> Option<End> {
    match phase {
        Phase::Paused if !failed => Some(End::Saved),
        Phase::Paused | Phase::Finished => Some(End::Finished),
        _ => None,
    }
}

impl Reader {
    /// Handles the next event.
    pub fn take(&mut self, event: &Event) {
        let at = event.t;
        self.timeline.last = self.timeline.last.max(at);
        match &event.what {
            What::Card { config } => {
                let names = config.slots.iter().map(|slot| slot.engine.name().into());
                self.timeline.engines = names.collect();
                self.timeline.tells_restore = config.profile != Profile::Base;
                self.slots = vec![Now::default(); self.timeline.engines.len()];
            }
            What::Start {
                slot,
                accepted: true,
                tag,
                resume,
            } => {
                let now = &mut self.slots[*slot];
                now.turn = Some(Open {
                    tag: *tag,
                    resumed: *resume,
                    from: now.taken.take().unwrap_or(at),
                    ..Open::default()
                });
            }
            What::Take { slot, .. } => self.slots[*slot].taken = Some(at),
            What::Phase {
                slot,
                phase,
                fault,
                snapshot_error,
                ..
            } => {
                self.enter(*slot, *phase, at);
                if let Some(end) = end_of(*phase, *fault || *snapshot_error) {
                    self.end_turn(*slot, end, at);
                }
            }
            What::Record {
                slot,
                reason: Reason::NotRun,
                ..
            } => self.end_turn(*slot, End::Saved, at),
            What::Record {
                slot,
                reason: Reason::Dropped | Reason::Refused,
                ..
            }
            | What::SlotReset { slot, .. } => self.end_turn(*slot, End::Reset, at),
            What::DeviceReset => self.end_turns(End::Reset, at),
            What::Pause {
                slot,
                fate: PauseFate::Honoured,
                ..
            } => {
                self.timeline.note(Some(*slot), "PAUSE", at);
            }
            What::Mark { text } => self.timeline.note(None, text, at),
            _ => {}
        }
    }

    /// Notes the phase that the slot's job has entered.
    fn enter(&mut self, slot: usize, phase: Phase, at: u64) {
        let turn = &mut self.slots[slot].turn;
        if phase.busy() {
            // A card that was given the state of another card goes on without a START.
            let from = turn.map_or(at, |turn| turn.from);
            let turn = turn.get_or_insert_default();
            turn.from = from;
            match phase {
                Phase::Running => _ = turn.worked.get_or_insert(at),
                Phase::Saving => turn.stopped = Some(at),
                _ => {}
            }
        }
    }

    fn end_turn(&mut self, slot: usize, end: End, at: u64) {
        let now = &mut self.slots[slot];
        now.taken = None;
        if let Some(turn) = now.turn.take() {
            self.timeline.add(Turn {
                slot,
                job: turn.tag,
                resumed: turn.resumed,
                from: turn.from,
                worked: turn.worked.unwrap_or(at),
                stopped: turn.stopped.unwrap_or(at),
                to: at,
                end,
                by_record: false,
            });
        }
    }

    fn end_turns(&mut self, end: End, at: u64) {
        (0..self.slots.len()).for_each(|slot| self.end_turn(slot, end, at));
    }

    /// Ends turns at the end of the log.
    pub fn end(mut self) -> Timeline {
        self.end_turns(End::Open, self.timeline.last);
        self.timeline.sort();
        self.timeline
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Doing, Instant, Span};

    fn phase(t: u64, phase: Phase) -> Event {
        let (slot, fault, snapshot_error, empty) = (0, false, false, false);
        let what = What::Phase {
            slot,
            phase,
            fault,
            snapshot_error,
            empty,
        };
        Event { t, what }
    }

    fn start(t: u64, tag: u64, resume: bool) -> Event {
        let what = What::Start {
            slot: 0,
            resume,
            accepted: true,
            tag,
        };
        Event { t, what }
    }

    fn mark(t: u64, text: &str) -> Event {
        Event {
            t,
            what: What::Mark { text: text.into() },
        }
    }

    fn timeline() -> Timeline {
        let mut reader = Reader {
            timeline: Timeline {
                engines: vec!["riscv".into()],
                ..Timeline::default()
            },
            slots: vec![Now::default()],
        };
        let events = [
            mark(5, "begin"),
            start(10, 1, false),
            phase(10, Phase::Running),
            Event {
                t: 20,
                what: What::Pause {
                    slot: 0,
                    fate: PauseFate::Honoured,
                    at_boundary: false,
                },
            },
            phase(20, Phase::Saving),
            phase(25, Phase::Paused),
            start(30, 2, true),
            phase(30, Phase::Restoring),
            phase(33, Phase::Running),
            phase(50, Phase::Ending),
            phase(51, Phase::Finished),
            mark(60, "end"),
            start(70, 3, false),
            phase(70, Phase::Running),
            mark(75, "begin"),
        ];
        events.iter().for_each(|event| reader.take(event));
        reader.end()
    }

    fn span(job: u64, doing: Doing, from: u64, to: u64) -> Span {
        Span {
            slot: 0,
            job,
            doing,
            from,
            to,
        }
    }

    #[test]
    fn spans_are_what_a_slot_did() {
        let expected = [
            span(1, Doing::Run, 10, 20),
            span(1, Doing::Save, 20, 25),
            span(2, Doing::Restore, 30, 33),
            span(2, Doing::Run, 33, 51),
            span(3, Doing::Run, 70, 75),
        ];
        assert_eq!(timeline().spans, expected);
        assert_eq!(timeline().jobs(), [1, 2, 3]);
    }

    #[test]
    fn turns_are_from_start_to_end() {
        let turns: Vec<_> = timeline().turns;
        let told = turns.iter().map(|turn| (turn.job, turn.resumed, turn.end));
        let expected = [
            (1, false, End::Saved),
            (2, true, End::Finished),
            (3, false, End::Open),
        ];
        assert_eq!(told.collect::<Vec<_>>(), expected);
        assert_eq!((turns[1].from, turns[1].to), (30, 51));
    }

    #[test]
    fn a_part_begins_at_zero() {
        let mut timeline = timeline();
        assert_eq!(timeline.mark("begin"), Some(75));
        assert_eq!(timeline.mark("none"), None);
        timeline.cut(15, 40);
        let expected = [
            span(1, Doing::Run, 0, 5),
            span(1, Doing::Save, 5, 10),
            span(2, Doing::Restore, 15, 18),
            span(2, Doing::Run, 18, 25),
        ];
        assert_eq!(timeline.spans, expected);
        let pause = Instant {
            slot: Some(0),
            what: "PAUSE".into(),
            at: 5,
        };
        assert_eq!((timeline.instants, timeline.last), (vec![pause], 25));
    }
}
