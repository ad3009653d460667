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
//! driver's turn, and bounds the difference of the clocks.

#[cfg(feature = "card")]
pub mod card;
pub mod chrome;
mod coverage;
pub mod driver;
pub mod svg;

use anyhow::{bail, Result};
use serde::Serialize;
use std::collections::BTreeMap;

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

/// A turn of a job on a slot, which begins with START.
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
    /// End.
    pub to: u64,
    /// How the turn ended.
    pub end: End,
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
    /// The slots are switched by orders: the driver learns of a turn after it has begun.
    pub by_order: bool,
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

/// Resolution of the driver's times, in nanoseconds.
const RESOLUTION: u64 = 1_000;

/// How the two views fit together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// Number of common turns.
    pub turns: usize,
    /// The driver's clock minus the card's, at the card's time `since`...
    offset: f64,
    since: f64,
    /// ... and by how much that grows with each nanosecond.
    drift: f64,
}

impl Fit {
    /// Converts a time of the card to the driver's clock.
    pub fn driver_time(&self, card: u64) -> u64 {
        let ahead = card as f64 - self.since;
        (card as f64 + self.offset + self.drift * ahead).max(0.0) as u64
    }

    /// Converts the card's timeline to the driver's clock.
    pub fn translate(&self, card: &Timeline) -> Timeline {
        let mut card = card.clone();
        for span in &mut card.spans {
            (span.from, span.to) = (self.driver_time(span.from), self.driver_time(span.to));
        }
        for turn in &mut card.turns {
            (turn.from, turn.to) = (self.driver_time(turn.from), self.driver_time(turn.to));
        }
        for instant in &mut card.instants {
            instant.at = self.driver_time(instant.at);
        }
        card.last = self.driver_time(card.last);
        card
    }
}

/// Compares the two views: each slot must have the same turns in the same order, with the same kind
/// of start and end and the same job, and each turn of the card must fit into the driver's.
///
/// # Errors
///
/// The first difference.
pub fn compare(card: &Timeline, driver: &Timeline) -> Result<Fit> {
    let slots = card.engines.len().max(driver.engines.len());
    let mut pairs = Vec::new();
    for slot in 0..slots {
        let of = |timeline: &Timeline| -> Vec<Turn> {
            let turns = timeline.turns.iter();
            turns.filter(|turn| turn.slot == slot).copied().collect()
        };
        let (cards, drivers) = (of(card), of(driver));
        for (n, (of_card, of_driver)) in cards.iter().zip(&drivers).enumerate() {
            compare_turn(of_card, of_driver, card.by_order)
                .map_err(|error| error.context(format!("slot {slot}, turn {n}")))?;
            pairs.push((*of_card, *of_driver));
        }
        if cards.len() != drivers.len() {
            let (cards, drivers) = (cards.len(), drivers.len());
            bail!("slot {slot}: {cards} turns on the card, {drivers} of the driver");
        }
    }
    compare_jobs(&pairs)?;
    fit(&pairs)
}

/// Compares a turn. If the driver ends a turn by a reset, it does not know how the turn would have
/// ended, and the card learns of the reset later. The durations are compared unless the slots are
/// switched `by_order`: then the driver sees both ends of a turn late, by different amounts.
fn compare_turn(card: &Turn, driver: &Turn, by_order: bool) -> Result<()> {
    let same_end = driver.end == End::Reset || card.end == driver.end;
    if card.resumed != driver.resumed || !same_end {
        bail!("the card saw {card:?}, the driver {driver:?}");
    }
    let (of_card, of_driver) = (card.to - card.from, driver.to - driver.from);
    let is_longer = of_card > of_driver + RESOLUTION;
    if is_longer && driver.end != End::Reset && !by_order {
        bail!(
            "it took {of_card} ns on the card, and {of_driver} ns of the driver's, which must \
             be more"
        );
    }
    Ok(())
}

/// Checks that all turns of one job of the card belong to the same context.
fn compare_jobs(pairs: &[(Turn, Turn)]) -> Result<()> {
    let mut contexts = BTreeMap::new();
    for (card, driver) in pairs {
        let context = *contexts.entry(card.job).or_insert(driver.job);
        if context != driver.job {
            let job = card.job;
            bail!(
                "job {job:#x} of the card is of contexts {context} and {}",
                driver.job
            );
        }
    }
    Ok(())
}

/// Fits a line to the middles of the ranges that the turns allow.
fn fit(pairs: &[(Turn, Turn)]) -> Result<Fit> {
    let points: Vec<(f64, f64)> = pairs
        .iter()
        .filter(|(_, driver)| driver.end != End::Reset)
        .map(|(card, driver)| {
            let at = (card.from + card.to) as f64 / 2.0;
            (at, (driver.from + driver.to) as f64 / 2.0 - at)
        })
        .collect();
    if points.is_empty() {
        bail!("nothing to compare: neither tells of a turn that ended by itself");
    }
    let count = points.len() as f64;
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (since, offset) = (mean(&|p| p.0), mean(&|p| p.1));
    let spread = mean(&|p| (p.0 - since).powi(2));
    let drift = if spread > 0.0 {
        mean(&|p| (p.0 - since) * (p.1 - offset)) / spread
    } else {
        0.0
    };
    Ok(Fit {
        turns: pairs.len(),
        offset,
        since,
        drift,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(job: u64, from: u64, to: u64, end: End) -> Turn {
        Turn {
            slot: 0,
            job,
            resumed: false,
            from,
            to,
            end,
        }
    }

    fn timeline(turns: &[Turn]) -> Timeline {
        Timeline {
            engines: vec!["list".into()],
            turns: turns.to_vec(),
            ..Timeline::default()
        }
    }

    const MS: u64 = 1_000_000;

    fn views() -> (Vec<Turn>, Vec<Turn>) {
        let card = [
            turn(0xa, 10 * MS, 20 * MS, End::Saved),
            turn(0xb, 21 * MS, 30 * MS, End::Finished),
        ];
        let driver = [
            turn(1, 109 * MS, 121 * MS, End::Saved),
            turn(2, 121 * MS, 130 * MS, End::Finished),
        ];
        (card.into(), driver.into())
    }

    #[test]
    fn views_of_the_same() {
        let (card, driver) = views();
        let fit = compare(&timeline(&card), &timeline(&driver)).unwrap();
        assert_eq!(fit.turns, 2);
        let mut both = timeline(&card);
        both.spans.push(Span {
            slot: 0,
            job: 0xa,
            doing: Doing::Run,
            from: 10 * MS,
            to: 20 * MS,
        });
        let moved = fit.translate(&both);
        assert!(moved.turns[0].from.abs_diff(110 * MS) < MS / 10);
        assert!(moved.spans[0].to.abs_diff(120 * MS) < MS / 10);
    }

    fn difference(change: impl FnOnce(&mut Vec<Turn>, &mut Vec<Turn>)) -> String {
        let (mut card, mut driver) = views();
        change(&mut card, &mut driver);
        format!(
            "{:#}",
            compare(&timeline(&card), &timeline(&driver)).unwrap_err()
        )
    }

    #[test]
    fn differences_are_found() {
        let missing = difference(|card, _| card.truncate(1));
        assert_eq!(missing, "slot 0: 1 turns on the card, 2 of the driver");
        let other = difference(|card, _| card[1].end = End::Saved);
        assert!(other.starts_with("slot 0, turn 1: the card saw"));
        let kind = difference(|_, driver| driver[0].resumed = true);
        assert!(kind.starts_with("slot 0, turn 0"));
        let long = difference(|card, _| card[1].to += MS);
        assert!(long.contains("must be more"));
        let context = difference(|card, _| card[1].job = 0xa);
        assert_eq!(context, "job 0xa of the card is of contexts 1 and 2");
        let nothing = difference(|card, driver| {
            card.clear();
            driver.clear();
        });
        assert!(nothing.starts_with("nothing to compare"));
    }
}
