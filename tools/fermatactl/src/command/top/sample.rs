// SPDX-License-Identifier: GPL-2.0-or-later
//! Samples of cards, and their differences, which `top` shows.

use crate::card::{of_present, Card};
use crate::format::{since, Spread};
use crate::trouble::Result;
use crate::view::{CardView, ContextView, SlotView};
use fermata::{Histogram, SlotHistogram};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A sample of the cards.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    at: Instant,
    /// The cards that are not gone, by index among the sampled cards.
    cards: BTreeMap<usize, CardSample>,
}

/// A sample of a card.
#[derive(Clone, Debug)]
struct CardSample {
    view: CardView,
    /// Measurements of the slots.
    measured: Vec<Measured>,
}

/// The driver's measurements of a slot, which include other users'. Not every user may see them.
#[derive(Clone, Debug)]
struct Measured {
    gap: Option<Histogram>,
    latency: Option<Histogram>,
}

impl Measured {
    fn of(card: &Card, slot: u32) -> Result<Self> {
        Ok(Self {
            gap: card.slot_histogram(slot, SlotHistogram::Gap)?,
            latency: card.slot_histogram(slot, SlotHistogram::Latency)?,
        })
    }
}

impl Sample {
    /// Samples the cards that are not gone. Fails if all are gone.
    pub(super) fn take(cards: &[Card]) -> Result<Self> {
        let samples = cards.iter().map(CardSample::of).enumerate();
        let samples = of_present(samples.map(|(index, sample)| Ok((index, sample?))))?;
        Ok(Self {
            at: Instant::now(),
            cards: samples.into_iter().collect(),
        })
    }
}

impl CardSample {
    fn of(card: &Card) -> Result<Self> {
        let view = CardView::of(card)?;
        let slots = view.slots.iter();
        let measured = slots.map(|slot| Measured::of(card, slot.slot));
        Ok(Self {
            measured: measured.collect::<Result<_>>()?,
            view,
        })
    }
}

/// A frame: an interval between two samples.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Frame {
    pub(super) interval_ns: u64,
    pub(super) cards: Vec<CardFrame>,
}

/// A card in an interval.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CardFrame {
    /// Index among the sampled cards.
    #[serde(skip)]
    pub(super) index: usize,
    pub(super) card: Option<u32>,
    pub(super) device: PathBuf,
    pub(super) policy: Option<&'static str>,
    pub(super) boost_ns: Option<u64>,
    pub(super) slots: Vec<SlotRow>,
    pub(super) contexts: Vec<ContextRow>,
}

/// A slot in an interval.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SlotRow {
    /// Index of the card among the sampled cards.
    #[serde(skip)]
    pub(super) card: usize,
    #[serde(flatten)]
    pub(super) view: SlotView,
    /// Command of the context on the slot.
    pub(super) command: Option<String>,
    /// Percent of the interval.
    pub(super) busy_percent: Option<f64>,
    pub(super) switches_per_second: Option<f64>,
    /// From the end of a run to the next START, in the interval.
    pub(super) gap: Option<Spread>,
    /// From the arrival of latency-critical jobs to their START, in the interval.
    pub(super) latency: Option<Spread>,
}

/// A context in an interval.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ContextRow {
    /// Index of the card among the sampled cards.
    #[serde(skip)]
    pub(super) card: usize,
    #[serde(flatten)]
    pub(super) view: ContextView,
    /// Percent of the interval: on a slot, and queued.
    pub(super) run_percent: Option<f64>,
    pub(super) wait_percent: Option<f64>,
}

/// Returns the part of an interval in percent, at most 100, although the clock is read a little
/// later than the counter.
fn percent(now: Option<u64>, before: Option<u64>, interval: Duration) -> Option<f64> {
    let ns = interval.as_nanos().max(1) as f64;
    Some((now?.saturating_sub(before?) as f64 * 100.0 / ns).min(100.0))
}

fn spread(now: Option<&Histogram>, before: Option<&Histogram>) -> Option<Spread> {
    Some(Spread::from(&since(now?, before?)))
}

impl Frame {
    /// Returns the difference of two samples of the same cards. A card that is gone in one of them
    /// is left out.
    pub(super) fn between(before: &Sample, now: &Sample) -> Self {
        let interval = now.at.saturating_duration_since(before.at);
        let pairs = now.cards.iter().filter_map(|(index, now)| {
            let before = before.cards.get(index)?;
            Some(CardFrame::between(*index, before, now, interval))
        });
        Self {
            interval_ns: interval.as_nanos() as u64,
            cards: pairs.collect(),
        }
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = &SlotRow> {
        self.cards.iter().flat_map(|card| &card.slots)
    }

    pub(super) fn contexts(&self) -> impl Iterator<Item = &ContextRow> {
        self.cards.iter().flat_map(|card| &card.contexts)
    }

    /// Returns the name of a slot or context: its number, with the card's number if there are
    /// several cards.
    pub(super) fn name(&self, card: usize, number: u32) -> String {
        match &self.cards[..] {
            [_] => number.to_string(),
            cards => {
                let shown = cards.iter().find(|shown| shown.index == card);
                let name = shown.and_then(|shown| shown.card);
                format!("{}/{number}", name.unwrap_or(card as u32))
            }
        }
    }
}

impl CardFrame {
    fn between(index: usize, before: &CardSample, now: &CardSample, interval: Duration) -> Self {
        let measured = now.measured.iter().zip(&before.measured);
        let (before, now) = (&before.view, &now.view);
        let slot = |((slot, before), (now_of, before_of)): (_, (&Measured, &Measured))| {
            let (slot, before): (&SlotView, &SlotView) = (slot, before);
            let context = slot.context.and_then(|context| now.context(context));
            let switches = slot.switches.zip(before.switches);
            let per_second = |(now, before): (u64, u64)| {
                now.saturating_sub(before) as f64 / interval.as_secs_f64().max(1e-9)
            };
            SlotRow {
                card: index,
                command: context.and_then(|context| context.command.clone()),
                busy_percent: percent(slot.busy_ns, before.busy_ns, interval),
                switches_per_second: switches.map(per_second),
                gap: spread(now_of.gap.as_ref(), before_of.gap.as_ref()),
                latency: spread(now_of.latency.as_ref(), before_of.latency.as_ref()),
                view: slot.clone(),
            }
        };
        let slots = now.slots.iter().zip(&before.slots).zip(measured);
        let context = |context: &ContextView| {
            // A new context began at 0.
            let before = before.context(context.context);
            let (run, wait) =
                before.map_or((Some(0), Some(0)), |before| (before.run_ns, before.wait_ns));
            ContextRow {
                card: index,
                run_percent: percent(context.run_ns, run, interval),
                wait_percent: percent(context.wait_ns, wait, interval),
                view: context.clone(),
            }
        };
        Self {
            index,
            card: now.card,
            device: now.device.clone(),
            policy: now.policy,
            boost_ns: now.boost_ns,
            slots: slots.map(slot).collect(),
            contexts: now.contexts.iter().map(context).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: Instant, indices: &[usize]) -> Sample {
        let card = |index: &usize| {
            let view = CardView {
                card: Some(*index as u32 + 5),
                device: PathBuf::new(),
                interface_version: 0,
                features: vec![],
                policy: None,
                boost_ns: None,
                max_contexts: 0,
                max_arena_bytes: 0,
                slots: vec![],
                contexts: vec![],
            };
            let measured = vec![];
            (*index, CardSample { view, measured })
        };
        let cards = indices.iter().map(card).collect();
        Sample { at, cards }
    }

    #[test]
    fn a_card_that_goes_is_left_out() {
        let now = Instant::now();
        let both = sample(now, &[0, 1]);
        let frame = Frame::between(&both, &both);
        assert_eq!(
            (frame.name(0, 9), frame.name(1, 9)),
            ("5/9".into(), "6/9".into())
        );
        let frame = Frame::between(&both, &sample(now, &[1]));
        let [card] = &frame.cards[..] else { panic!() };
        assert_eq!((card.index, card.card), (1, Some(6)));
        assert_eq!(frame.name(1, 9), "9");
    }
}
