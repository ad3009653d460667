// SPDX-License-Identifier: GPL-2.0-or-later
//! Compares the card's view and the driver's view of the same time.

use crate::{End, Timeline, Turn};
use anyhow::{bail, ensure, Result};
use std::collections::BTreeMap;
use std::fmt;

/// Resolution of the driver's times, in nanoseconds. Times of a record may differ by no more.
const RESOLUTION: u64 = 1_000;

/// By which part of a duration the two clocks may differ.
const DRIFT: u64 = 1_000;

/// By how much the run and the save of a turn may differ at the median, in nanoseconds, where the
/// driver knows only when it wrote PAUSE: the card stops the job a little later.
const PAUSE_LATE: u64 = 1_000_000;

/// How the two views fit together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// Number of common turns.
    pub turns: usize,
    /// Number of spans in these turns.
    pub spans: usize,
    /// The driver's clock minus the card's, at the card's time `since`...
    offset: f64,
    since: f64,
    /// ... and by how much that grows with each nanosecond.
    drift: f64,
    apart: Apart,
}

/// By how many nanoseconds the views differ.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Apart {
    /// The largest difference of a time of a record.
    record: Option<u64>,
    /// The median difference of runs and saves, of turns whose records the driver has not.
    median: Option<u64>,
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { turns, spans, .. } = self;
        write!(
            f,
            "{turns} turns and their {spans} spans, the same for the card and the driver"
        )?;
        let us = |ns: u64| ns as f64 / 1e3;
        if let Some(most) = self.apart.record {
            write!(f, "; at most {:.1} us apart", us(most))?;
        }
        if let Some(median) = self.apart.median {
            write!(f, "; run and save {:.1} us apart at the median", us(median))?;
        }
        Ok(())
    }
}

impl Fit {
    /// Converts a time of the card to the driver's clock.
    pub fn driver_time(&self, card: u64) -> u64 {
        let ahead = card as f64 - self.since;
        (card as f64 + self.offset + self.drift * ahead)
            .max(0.0)
            .round() as u64
    }

    /// Converts the card's timeline to the driver's clock.
    pub fn translate(&self, card: &Timeline) -> Timeline {
        let mut card = card.clone();
        for span in &mut card.spans {
            (span.from, span.to) = (self.driver_time(span.from), self.driver_time(span.to));
        }
        for turn in &mut card.turns {
            let times = [
                &mut turn.from,
                &mut turn.worked,
                &mut turn.stopped,
                &mut turn.to,
            ];
            for time in times {
                *time = self.driver_time(*time);
            }
        }
        for instant in &mut card.instants {
            instant.at = self.driver_time(instant.at);
        }
        card.last = self.driver_time(card.last);
        card
    }
}

/// A turn of the card, and what the driver saw of it.
type Pair = (Turn, Turn);

/// Compares the two views: each slot must have the same turns in the same order, with the same kind
/// of start and end and the same job, each turn of the card must fit into the driver's, and what the
/// slot did in it must be the same. Turns that ended by a reset are compared only in number, order
/// and start: a reset that interrupts a turn is not known to both at the same time.
///
/// # Errors
///
/// The first difference.
pub fn compare(card: &Timeline, driver: &Timeline) -> Result<Fit> {
    let slots = card.engines.len().max(driver.engines.len());
    let mut pairs = Vec::new();
    let mut spans = 0;
    for slot in 0..slots {
        let of = |timeline: &Timeline| -> Vec<Turn> {
            let turns = timeline.turns.iter();
            turns.filter(|turn| turn.slot == slot).copied().collect()
        };
        let (cards, drivers) = (of(card), of(driver));
        for (n, (of_card, of_driver)) in cards.iter().zip(&drivers).enumerate() {
            compare_turn(of_card, of_driver, card.tells_restore)
                .map_err(|error| error.context(format!("slot {slot}, turn {n}")))?;
            pairs.push((*of_card, *of_driver));
            spans += of_card.spans().count();
        }
        if cards.len() != drivers.len() {
            let (cards, drivers) = (cards.len(), drivers.len());
            bail!("slot {slot}: {cards} turns on the card, {drivers} of the driver");
        }
    }
    compare_jobs(&pairs)?;
    let turns = pairs.len();
    pairs.retain(|(_, driver)| !matches!(driver.end, End::Reset | End::Open));
    let mut fit = fit(&pairs)?;
    fit.apart = Apart {
        record: compare_records(&pairs, &fit)?,
        median: compare_pauses(&pairs)?,
    };
    Ok(Fit {
        turns,
        spans,
        ..fit
    })
}

fn took(turn: &Turn) -> (u64, u64, u64) {
    (
        turn.worked - turn.from,
        turn.stopped - turn.worked,
        turn.to - turn.stopped,
    )
}

/// Compares a turn. If the driver ends a turn by a reset, it does not know how the turn would have
/// ended, and the card learns of the reset later.
fn compare_turn(card: &Turn, driver: &Turn, tells_restore: bool) -> Result<()> {
    let same_end = driver.end == End::Reset || card.end == driver.end;
    if card.resumed != driver.resumed || !same_end {
        bail!("the card saw {card:?}, the driver {driver:?}");
    }
    if driver.by_record || matches!(driver.end, End::Reset | End::Open) {
        return Ok(());
    }
    let longer = |what: &str, of_card: u64, of_driver: u64| {
        ensure!(
            of_card <= of_driver + RESOLUTION + of_card / DRIFT,
            "{what} took {of_card} ns on the card, and {of_driver} ns of the driver's, which must \
             be more"
        );
        Ok(())
    };
    longer("it", card.to - card.from, driver.to - driver.from)?;
    let ((of_card, _, saved), (of_driver, _, pausing)) = (took(card), took(driver));
    if card.resumed && tells_restore {
        // The card rounds up to a microsecond.
        ensure!(
            of_card.abs_diff(of_driver) <= 2 * RESOLUTION + of_card / DRIFT,
            "the restore took {of_card} ns on the card, and {of_driver} ns of the driver's"
        );
    }
    // Otherwise the driver does not know which of several PAUSEs the card obeyed.
    if driver.end == End::Saved && (tells_restore || !card.resumed) {
        longer("the save", saved, pausing)?;
    }
    Ok(())
}

/// Compares the times of records with the card's. Returns the largest difference.
fn compare_records(pairs: &[Pair], fit: &Fit) -> Result<Option<u64>> {
    let mut most = None;
    for (card, driver) in pairs.iter().filter(|(_, driver)| driver.by_record) {
        let times = [
            ("begins", card.from, driver.from),
            ("begins to work", card.worked, driver.worked),
            ("stops working", card.stopped, driver.stopped),
            ("ends", card.to, driver.to),
        ];
        for (what, of_card, of_driver) in times {
            let apart = fit.driver_time(of_card).abs_diff(of_driver);
            most = most.max(Some(apart));
            ensure!(
                apart <= RESOLUTION,
                "slot {}: a turn {what} at {of_card} ns on the card, and {apart} ns before or after \
                 that in its record: {card:?}, {driver:?}",
                card.slot
            );
        }
    }
    Ok(most)
}

/// Compares runs and saves where the driver knows only when it wrote PAUSE. Returns the median
/// difference.
fn compare_pauses(pairs: &[Pair]) -> Result<Option<u64>> {
    let saved = |(card, driver): &&Pair| {
        driver.end == End::Saved && !driver.by_record && card.stopped != card.to
    };
    let mut apart: Vec<u64> = pairs
        .iter()
        .filter(saved)
        .flat_map(|(card, driver)| {
            let ((_, run, save), (_, runs, saves)) = (took(card), took(driver));
            [run.abs_diff(runs), save.abs_diff(saves)]
        })
        .collect();
    apart.sort_unstable();
    let median = apart.get(apart.len() / 2).copied();
    if let Some(median) = median.filter(|median| *median > PAUSE_LATE) {
        bail!(
            "runs and saves differ by {median} ns at the median, which is more than {PAUSE_LATE} ns"
        );
    }
    Ok(median)
}

/// Checks that all turns of one job of the card belong to the same context.
fn compare_jobs(pairs: &[Pair]) -> Result<()> {
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

/// Fits a line to the middles of the ranges that the turns allow. Times of records are those of the
/// card: if there are any, they alone count.
fn fit(pairs: &[Pair]) -> Result<Fit> {
    let by_record = pairs.iter().any(|(_, driver)| driver.by_record);
    let points: Vec<(f64, f64)> = pairs
        .iter()
        .filter(|(_, driver)| driver.by_record == by_record)
        .map(|(card, driver)| {
            let at = f64::midpoint(card.from as f64, card.to as f64);
            (at, f64::midpoint(driver.from as f64, driver.to as f64) - at)
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
        spans: 0,
        offset,
        since,
        drift,
        apart: Apart::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Doing, Span};

    const MS: u64 = 1_000_000;

    /// Returns a turn without a restore.
    fn turn(job: u64, from: u64, stopped: u64, to: u64) -> Turn {
        let saved = stopped != to;
        Turn {
            slot: 0,
            job,
            resumed: false,
            from,
            worked: from,
            stopped,
            to,
            end: if saved { End::Saved } else { End::Finished },
            by_record: false,
        }
    }

    fn timeline(turns: &[Turn]) -> Timeline {
        let mut timeline = Timeline {
            engines: vec!["list".into()],
            tells_restore: true,
            ..Timeline::default()
        };
        turns.iter().for_each(|turn| timeline.add(*turn));
        timeline
    }

    fn views() -> (Vec<Turn>, Vec<Turn>) {
        let card = [
            turn(0xa, 10 * MS, 18 * MS, 20 * MS),
            turn(0xb, 21 * MS, 30 * MS, 30 * MS),
        ];
        let driver = [
            turn(1, 109_500_000, 117_800_000, 120_500_000),
            turn(2, 121 * MS, 130 * MS, 130 * MS),
        ];
        (card.into(), driver.into())
    }

    /// The views of a card with a relay: the driver has the card's times by another clock.
    fn by_record() -> (Vec<Turn>, Vec<Turn>) {
        let (mut card, _) = views();
        (card[0].resumed, card[0].worked) = (true, 11 * MS);
        let driver = card.iter().map(|turn| Turn {
            job: turn.job - 9,
            from: turn.from + 7 * MS,
            worked: turn.worked + 7 * MS,
            stopped: turn.stopped + 7 * MS,
            to: turn.to + 7 * MS,
            by_record: true,
            ..*turn
        });
        let driver = driver.collect();
        (card, driver)
    }

    #[test]
    fn views_of_the_same() {
        let (card, driver) = views();
        let card = timeline(&card);
        let fit = compare(&card, &timeline(&driver)).unwrap();
        assert_eq!((fit.turns, fit.spans), (2, 3));
        assert_eq!(fit.apart.record, None);
        let moved = fit.translate(&card);
        assert!(moved.turns[0].from.abs_diff(110 * MS) < MS / 10);
        assert!(moved.spans[0].to.abs_diff(118 * MS) < MS / 10);
        let (card, driver) = by_record();
        let fit = compare(&timeline(&card), &timeline(&driver)).unwrap();
        assert_eq!((fit.turns, fit.spans, fit.apart.median), (2, 4, None));
        assert_eq!(
            fit.to_string(),
            "2 turns and their 4 spans, the same for the card and the driver; at most 0.0 us apart"
        );
    }

    fn difference(
        views: (Vec<Turn>, Vec<Turn>),
        change: impl FnOnce(&mut Vec<Turn>, &mut Vec<Turn>),
    ) -> String {
        let (mut card, mut driver) = views;
        change(&mut card, &mut driver);
        let result = compare(&timeline(&card), &timeline(&driver));
        format!("{:#}", result.unwrap_err())
    }

    #[test]
    fn differences_are_found() {
        let missing = difference(views(), |card, _| card.truncate(1));
        assert_eq!(missing, "slot 0: 1 turns on the card, 2 of the driver");
        let other = difference(views(), |card, _| card[1].end = End::Saved);
        assert!(other.starts_with("slot 0, turn 1: the card saw"));
        let kind = difference(views(), |_, driver| driver[0].resumed = true);
        assert!(kind.starts_with("slot 0, turn 0"));
        let long = difference(views(), |card, _| {
            (card[1].stopped, card[1].to) = (31 * MS, 31 * MS);
        });
        assert!(long.contains("must be more"));
        let context = difference(views(), |card, _| card[1].job = 0xa);
        assert_eq!(context, "job 0xa of the card is of contexts 1 and 2");
        let nothing = difference(views(), |card, driver| {
            card.clear();
            driver.clear();
        });
        assert!(nothing.starts_with("nothing to compare"));
    }

    #[test]
    fn spans_that_differ_are_found() {
        let save = difference(views(), |_, driver| driver[0].stopped = 120 * MS);
        assert!(save.contains("the save took"), "{save}");
        let pause = difference(views(), |_, driver| driver[0].stopped = 110 * MS);
        assert!(pause.contains("at the median"), "{pause}");
        let restore = difference(views(), |card, driver| {
            (card[0].resumed, card[0].worked) = (true, 11 * MS);
            driver[0].resumed = true;
        });
        assert!(restore.contains("the restore took"), "{restore}");
        for (n, time) in ["begins to work", "stops working"].into_iter().enumerate() {
            let changed = difference(by_record(), |_, driver| {
                let turn = &mut driver[0];
                let times = [&mut turn.worked, &mut turn.stopped];
                *times.into_iter().nth(n).unwrap() += 2 * RESOLUTION;
            });
            assert!(changed.contains(time), "{changed}");
        }
    }

    /// The driver's view as it was before the stop had the times of the record: the order to stop,
    /// written when the slice begins, taken for the beginning of the save.
    #[test]
    fn orders_are_no_pauses() {
        let (card, mut driver) = by_record();
        for turn in &mut driver {
            (turn.worked, turn.by_record) = (turn.from, false);
            if turn.end == End::Saved {
                turn.stopped = turn.from + MS / 10;
            }
        }
        let result = compare(&timeline(&card), &timeline(&driver));
        assert!(format!("{:#}", result.unwrap_err()).contains("the restore took"));
        let spans = timeline(&card).spans;
        assert_eq!(
            spans[2],
            Span {
                slot: 0,
                job: 0xa,
                doing: Doing::Save,
                from: 18 * MS,
                to: 20 * MS
            }
        );
    }
}
