// SPDX-License-Identifier: GPL-2.0-or-later
//! Samples of cards, and their differences, which `top` shows.

use crate::card::Card;
use crate::format::{since, Spread};
use crate::trouble::{Result, Trouble};
use crate::view::{CardView, ContextView, SlotView};
use fermata::{Histogram, SlotHistogram};
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A sample of the cards.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    at: Instant,
    cards: Vec<CardView>,
    /// Measurements of each card's slots.
    measured: Vec<Vec<Measured>>,
}

/// The driver's measurements of a slot.
#[derive(Clone, Debug)]
struct Measured {
    gap: Histogram,
    latency: Histogram,
}

impl Measured {
    fn of(card: &Card, slot: u32) -> Result<Self> {
        // Figures of slots include other users', which not every user may see.
        let of = |which| Ok::<_, Trouble>(card.slot_histogram(slot, which)?.unwrap_or_default());
        Ok(Self {
            gap: of(SlotHistogram::Gap)?,
            latency: of(SlotHistogram::Latency)?,
        })
    }
}

impl Sample {
    pub(super) fn take(cards: &[Card]) -> Result<Self> {
        let views = cards.iter().map(CardView::of).collect::<Result<Vec<_>>>()?;
        let measured = cards.iter().zip(&views).map(|(card, view)| {
            let slots = view.slots.iter();
            slots.map(|slot| Measured::of(card, slot.slot)).collect()
        });
        Ok(Self {
            at: Instant::now(),
            measured: measured.collect::<Result<_>>()?,
            cards: views,
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
    /// Index of the card in the frame.
    #[serde(skip)]
    pub(super) card: usize,
    #[serde(flatten)]
    pub(super) view: SlotView,
    /// Command of the context on the slot.
    pub(super) command: Option<String>,
    /// Percent of the interval.
    pub(super) busy_percent: f64,
    pub(super) switches_per_second: f64,
    /// From the end of a run to the next START, in the interval.
    pub(super) gap: Spread,
    /// From the arrival of latency-critical jobs to their START, in the interval.
    pub(super) latency: Spread,
}

/// A context in an interval.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ContextRow {
    /// Index of the card in the frame.
    #[serde(skip)]
    pub(super) card: usize,
    #[serde(flatten)]
    pub(super) view: ContextView,
    /// Percent of the interval: on a slot, and queued.
    pub(super) run_percent: f64,
    pub(super) wait_percent: f64,
}

/// Returns the part of an interval in percent, at most 100, although the clock is read a little
/// later than the counter.
fn percent(now: u64, before: u64, interval: Duration) -> f64 {
    let ns = interval.as_nanos().max(1) as f64;
    (now.saturating_sub(before) as f64 * 100.0 / ns).min(100.0)
}

impl Frame {
    /// Returns the difference of two samples of the same cards.
    pub(super) fn between(before: &Sample, now: &Sample) -> Self {
        let interval = now.at.saturating_duration_since(before.at);
        let pairs = now.cards.iter().zip(&before.cards).enumerate();
        Self {
            interval_ns: interval.as_nanos() as u64,
            cards: pairs
                .map(|(index, (card, old))| {
                    let measured = (&before.measured[index][..], &now.measured[index][..]);
                    CardFrame::between(index, (old, card), measured, interval)
                })
                .collect(),
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
            cards => format!("{}/{number}", cards[card].card.unwrap_or(card as u32)),
        }
    }
}

impl CardFrame {
    /// Each pair is of the earlier and the later sample.
    fn between(
        index: usize,
        (before, now): (&CardView, &CardView),
        measured: (&[Measured], &[Measured]),
        interval: Duration,
    ) -> Self {
        let measured = measured.1.iter().zip(measured.0);
        let slot = |((slot, before), (now_of, before_of)): (_, (&Measured, &Measured))| {
            let (slot, before): (&SlotView, &SlotView) = (slot, before);
            let context = slot.context.and_then(|context| now.context(context));
            let switches = slot.switches.saturating_sub(before.switches);
            SlotRow {
                card: index,
                command: context.and_then(|context| context.command.clone()),
                busy_percent: percent(slot.busy_ns, before.busy_ns, interval),
                switches_per_second: switches as f64 / interval.as_secs_f64().max(1e-9),
                gap: Spread::from(&since(&now_of.gap, &before_of.gap)),
                latency: Spread::from(&since(&now_of.latency, &before_of.latency)),
                view: slot.clone(),
            }
        };
        let slots = now.slots.iter().zip(&before.slots).zip(measured);
        let context = |context: &ContextView| {
            // A new context began at 0.
            let before = before.context(context.context);
            let (run, wait) = before.map_or((0, 0), |before| (before.run_ns, before.wait_ns));
            ContextRow {
                card: index,
                run_percent: percent(context.run_ns, run, interval),
                wait_percent: percent(context.wait_ns, wait, interval),
                view: context.clone(),
            }
        };
        Self {
            card: now.card,
            device: now.device.clone(),
            policy: now.policy,
            boost_ns: now.boost_ns,
            slots: slots.map(slot).collect(),
            contexts: now.contexts.iter().map(context).collect(),
        }
    }
}
