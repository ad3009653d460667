// SPDX-License-Identifier: GPL-2.0
//! What slots did, from the events of the card's log.

use fermata_card::event::{Event, PauseFate, Phase, What};
use serde::Serialize;

/// What a slot does with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Doing {
    /// Reads its state.
    Restore,
    /// Runs it.
    Run,
    /// Writes its state.
    Save,
}

impl Doing {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Restore => "restore",
            Self::Run => "run",
            Self::Save => "save",
        }
    }

    fn of(phase: Phase) -> Option<Self> {
        match phase {
            Phase::Restoring => Some(Self::Restore),
            Phase::Running | Phase::Ending => Some(Self::Run),
            Phase::Saving => Some(Self::Save),
            Phase::Idle | Phase::Finished | Phase::Paused => None,
        }
    }
}

/// For some time a slot did one thing for one job. Times are of the log, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) slot: usize,
    /// The job's TAG register.
    pub(crate) tag: u64,
    pub(crate) doing: Doing,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// Something at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Instant {
    /// `None`: of the card as a whole.
    pub(crate) slot: Option<usize>,
    pub(crate) what: String,
    pub(crate) at: u64,
}

/// All of a log.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    /// Names of the engines, by slot.
    pub(crate) engines: Vec<String>,
    pub(crate) spans: Vec<Span>,
    pub(crate) instants: Vec<Instant>,
    /// By slot: the job that it has, and what it does for it since when.
    now: Vec<(u64, Option<(Doing, u64)>)>,
    last: u64,
}

impl Timeline {
    /// Takes the next event.
    pub(crate) fn take(&mut self, event: &Event) {
        let at = event.t;
        self.last = self.last.max(at);
        match &event.what {
            What::Card { config } => {
                self.engines = config
                    .slots
                    .iter()
                    .map(|slot| slot.engine.name().into())
                    .collect();
                self.now = vec![(0, None); self.engines.len()];
            }
            What::Start {
                slot,
                accepted: true,
                tag,
                ..
            } => self.now[*slot].0 = *tag,
            What::Phase { slot, phase, .. } => self.enter(*slot, Doing::of(*phase), at),
            What::SlotReset { slot, .. } => self.enter(*slot, None, at),
            What::DeviceReset => (0..self.now.len()).for_each(|slot| self.enter(slot, None, at)),
            What::Pause {
                slot,
                fate: PauseFate::Honoured,
                ..
            } => {
                self.note(Some(*slot), "PAUSE", at);
            }
            What::Mark { text } => self.note(None, text, at),
            _ => {}
        }
    }

    fn note(&mut self, slot: Option<usize>, what: &str, at: u64) {
        let what = what.into();
        self.instants.push(Instant { slot, what, at });
    }

    /// A slot does something else from now on.
    fn enter(&mut self, slot: usize, doing: Option<Doing>, at: u64) {
        let (tag, before) = self.now[slot];
        if before.map(|(doing, _)| doing) == doing {
            return;
        }
        if let Some((doing, from)) = before {
            self.spans.push(Span {
                slot,
                tag,
                doing,
                from,
                to: at,
            });
        }
        self.now[slot].1 = doing.map(|doing| (doing, at));
    }

    /// The log is at its end: what is under way is cut there.
    pub(crate) fn end(&mut self) {
        for slot in 0..self.now.len() {
            self.enter(slot, None, self.last);
        }
        self.spans.sort_by_key(|span| (span.from, span.slot));
    }

    /// When a mark was made, the last of this text.
    pub(crate) fn mark(&self, text: &str) -> Option<u64> {
        let marks = self
            .instants
            .iter()
            .filter(|i| i.slot.is_none() && i.what == text);
        marks.map(|instant| instant.at).next_back()
    }

    /// Leaves what is between two moments, and lets time begin with the first.
    pub(crate) fn cut(&mut self, from: u64, to: u64) {
        self.spans.retain(|span| span.to > from && span.from < to);
        for span in &mut self.spans {
            span.from = span.from.max(from) - from;
            span.to = span.to.min(to) - from;
        }
        self.instants
            .retain(|instant| (from..=to).contains(&instant.at));
        for instant in &mut self.instants {
            instant.at -= from;
        }
        self.last = to - from;
    }

    /// When it ends.
    pub(crate) fn length(&self) -> u64 {
        self.last
    }

    /// The slots that did something, in order.
    pub(crate) fn slots(&self) -> Vec<usize> {
        let at_work = |slot: &usize| self.spans.iter().any(|span| span.slot == *slot);
        (0..self.engines.len()).filter(at_work).collect()
    }

    /// The jobs' tags, in the order of their coming.
    pub(crate) fn tags(&self) -> Vec<u64> {
        let mut tags = Vec::new();
        for span in &self.spans {
            if !tags.contains(&span.tag) {
                tags.push(span.tag);
            }
        }
        tags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut timeline = Timeline {
            engines: vec!["riscv".into()],
            now: vec![(0, None)],
            ..Timeline::default()
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
        events.iter().for_each(|event| timeline.take(event));
        timeline.end();
        timeline
    }

    fn span(tag: u64, doing: Doing, from: u64, to: u64) -> Span {
        Span {
            slot: 0,
            tag,
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
        assert_eq!(timeline().tags(), [1, 2, 3]);
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
