// SPDX-License-Identifier: GPL-2.0-or-later
//! What the slots of a card did, read from the card's log ([`card`]) or from the driver's
//! tracepoints ([`driver`]) into one model ([`Timeline`]), and written as a picture ([`svg`]) or as a
//! trace for Perfetto ([`chrome`]). [`compare`] compares the card's view and the driver's view of the
//! same time, and the [`Fit`] converts times between them.
//!
//! Each view has its own clock: the card's is that of the machine that emulates it, the driver's
//! that of the guest. Both count nanoseconds; the guest's clock depends on a measurement of the
//! processor's speed. Causes come before effects: the driver writes START before the card takes it,
//! and the card ends a turn before the driver notices. So each turn of the card must fit into the
//! driver's turn, and bounds the difference of the clocks. On a card with a relay, the driver's view
//! has the times of the runs' records, which are converted from the card's clock in the same way.

#[cfg(feature = "card")]
pub mod card;
pub mod chrome;
mod clock;
mod compare;
mod coverage;
pub mod driver;
pub mod svg;

pub use compare::{compare, Fit};

use serde::Serialize;

/// An activity of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Doing {
    /// The slot is free while the job waits.
    Gap,
    /// The slot reads the job's state.
    Restore,
    /// The slot runs the job.
    Run,
    /// The slot writes the job's state.
    Save,
}

impl Doing {
    /// Returns the activity's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gap => "gap",
            Self::Restore => "restore",
            Self::Run => "run",
            Self::Save => "save",
        }
    }
}

/// A slot's activity for a job. Times are in nanoseconds of the record's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Number of the slot.
    pub slot: usize,
    /// The job: its TAG register, or the number of its context.
    pub job: u64,
    /// The activity.
    pub doing: Doing,
    /// Begin.
    pub from: u64,
    /// End.
    pub to: u64,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The job was saved.
    Saved,
    /// The job has ended.
    Finished,
    /// The slot was reset.
    Reset,
    /// The turn has not ended when the record ends.
    Open,
}

/// A turn of a job on a slot, which begins with START, or when an order is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Number of the slot.
    pub slot: usize,
    /// The job, as in [`Span`].
    pub job: u64,
    /// The job was resumed.
    pub resumed: bool,
    /// Begin.
    pub from: u64,
    /// End of the restore, and of the loading of the context on a card with a relay; `to` if the job
    /// never worked.
    pub worked: u64,
    /// Begin of the save; `to` if there was no save.
    pub stopped: u64,
    /// End.
    pub to: u64,
    /// How the turn ended.
    pub end: End,
    /// The times are those of the run's record.
    pub by_record: bool,
}

impl Turn {
    /// Returns what the slot did in the turn, without activities that took no time.
    pub fn spans(&self) -> impl Iterator<Item = Span> {
        let &Self { slot, job, .. } = self;
        let parts = [
            (Doing::Restore, self.from, self.worked),
            (Doing::Run, self.worked, self.stopped),
            (Doing::Save, self.stopped, self.to),
        ];
        let span = move |(doing, from, to)| Span {
            slot,
            job,
            doing,
            from,
            to,
        };
        parts
            .into_iter()
            .filter(|(_, from, to)| to > from)
            .map(span)
    }
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instant {
    /// The slot; `None`: the card as a whole.
    pub slot: Option<usize>,
    /// Description.
    pub what: String,
    /// Time.
    pub at: u64,
}

/// A record of a card.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// Names of the slots' engines, by number of the slot.
    pub engines: Vec<String>,
    /// Activities, in the order of time.
    pub spans: Vec<Span>,
    /// Turns; not changed by [`Timeline::cut`].
    pub turns: Vec<Turn>,
    /// Events.
    pub instants: Vec<Instant>,
    /// The card tells the driver how long a restore took.
    pub tells_restore: bool,
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
        self.instants.sort_by_key(|instant| instant.at);
    }

    /// Adds a turn and what the slot did in the turn.
    pub(crate) fn add(&mut self, turn: Turn) {
        self.spans.extend(turn.spans());
        self.turns.push(turn);
    }

    /// Returns the time of the first activity or event.
    pub fn first(&self) -> u64 {
        let spans = self.spans.iter().map(|span| span.from);
        let instants = self.instants.iter().map(|instant| instant.at);
        spans.chain(instants).min().unwrap_or(0)
    }

    /// Returns the time of the last mark with this text.
    pub fn mark(&self, text: &str) -> Option<u64> {
        let marks = self
            .instants
            .iter()
            .filter(|i| i.slot.is_none() && i.what == text);
        marks.map(|instant| instant.at).next_back()
    }

    /// Keeps what lies between two moments, and subtracts the first from all times.
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

    /// Returns the end of the record.
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

    /// Returns the slots with an activity, in order.
    pub fn slots(&self) -> Vec<usize> {
        let at_work = |slot: &usize| self.spans.iter().any(|span| span.slot == *slot);
        (0..self.engines.len()).filter(at_work).collect()
    }

    /// Returns the jobs, in the order of their first activities.
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
