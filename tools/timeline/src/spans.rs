// SPDX-License-Identifier: GPL-2.0-or-later
//! What slots did.

use serde::Serialize;

/// What a slot does with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Doing {
    /// It is free, and the job waits for it.
    Gap,
    /// Reads its state.
    Restore,
    /// Runs it.
    Run,
    /// Writes its state.
    Save,
}

impl Doing {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gap => "gap",
            Self::Restore => "restore",
            Self::Run => "run",
            Self::Save => "save",
        }
    }
}

/// For some time a slot did one thing for one job. Times are in nanoseconds, of the clock of
/// whoever tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its number.
    pub slot: usize,
    /// Whose: the job's TAG register, or the number of its context.
    pub job: u64,
    /// What.
    pub doing: Doing,
    /// Since when.
    pub from: u64,
    /// Until when.
    pub to: u64,
}

/// How the time of a job on a slot ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was saved.
    Saved,
    /// The job is over.
    Finished,
    /// Its slot was reset.
    Reset,
    /// It has not: the record ends.
    Open,
}

/// A job on a slot, from START on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The slot's number.
    pub slot: usize,
    /// Whose: as in [`Span`].
    pub job: u64,
    /// It went on from its state.
    pub resumed: bool,
    /// Since when.
    pub from: u64,
    /// Until when.
    pub to: u64,
    /// How it ended.
    pub end: End,
}

/// Something at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instant {
    /// `None`: of the card as a whole.
    pub slot: Option<usize>,
    /// What.
    pub what: String,
    /// When.
    pub at: u64,
}

/// All of a record.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// What slots are, by number.
    pub engines: Vec<String>,
    /// What they did, in the order of time.
    pub spans: Vec<Span>,
    /// The same, a line for each turn; not changed by [`Timeline::cut`].
    pub turns: Vec<Turn>,
    /// What happened.
    pub instants: Vec<Instant>,
    pub(crate) last: u64,
}

impl Timeline {
    pub(crate) fn note(&mut self, slot: Option<usize>, what: impl Into<String>, at: u64) {
        let what = what.into();
        self.instants.push(Instant { slot, what, at });
    }

    pub(crate) fn sort(&mut self) {
        self.spans.sort_by_key(|span| (span.from, span.slot));
        self.turns.sort_by_key(|turn| (turn.from, turn.slot));
    }

    /// When the first thing happened.
    pub fn first(&self) -> u64 {
        let spans = self.spans.iter().map(|span| span.from);
        let instants = self.instants.iter().map(|instant| instant.at);
        spans.chain(instants).min().unwrap_or(0)
    }

    /// When a mark was made, the last of this text.
    pub fn mark(&self, text: &str) -> Option<u64> {
        let marks = self
            .instants
            .iter()
            .filter(|i| i.slot.is_none() && i.what == text);
        marks.map(|instant| instant.at).next_back()
    }

    /// Leaves what is between two moments, and lets time begin with the first.
    pub fn cut(&mut self, from: u64, to: u64) {
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
    pub fn length(&self) -> u64 {
        self.last
    }

    /// Returns the part of the time that a slot restored, ran or saved a job.
    pub fn busy(&self, slot: usize) -> f64 {
        let spans = self.spans.iter();
        let busy = spans.filter(|span| span.slot == slot && span.doing != Doing::Gap);
        let time: u64 = busy.map(|span| span.to - span.from).sum();
        time as f64 / self.last.max(1) as f64
    }

    /// The slots that did something, in order.
    pub fn slots(&self) -> Vec<usize> {
        let at_work = |slot: &usize| self.spans.iter().any(|span| span.slot == *slot);
        (0..self.engines.len()).filter(at_work).collect()
    }

    /// The jobs, in the order of their coming.
    pub fn jobs(&self) -> Vec<u64> {
        let mut jobs = Vec::new();
        for span in &self.spans {
            if !jobs.contains(&span.job) {
                jobs.push(span.job);
            }
        }
        jobs
    }
}
