// SPDX-License-Identifier: GPL-2.0-or-later
//! What `top` shows: how cards stand, and what has changed since the last look.

use crate::card::Card;
use crate::format::{since, Spread};
use crate::trouble::{Result, Trouble};
use crate::view::{CardView, ContextView, SlotView};
use fermata::{Histogram, SlotHistogram};
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How cards stood at a moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    at: Instant,
    cards: Vec<CardView>,
    /// Of each card, of each slot.
    measured: Vec<Vec<Measured>>,
}

/// What the driver has measured of a slot.
#[derive(Clone, Debug)]
struct Measured {
    gap: Histogram,
    latency: Histogram,
}

impl Measured {
    fn of(card: &Card, slot: u32) -> Result<Self> {
        // Those of slots tell of other users, too, and not everybody may know of them.
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

/// What is shown: an interval between two samples.
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
    pub(super) guard_ns: u64,
    pub(super) slots: Vec<SlotRow>,
    pub(super) contexts: Vec<ContextRow>,
}

/// A slot in an interval.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SlotRow {
    /// Which of the frame's cards.
    #[serde(skip)]
    pub(super) card: usize,
    #[serde(flatten)]
    pub(super) view: SlotView,
    /// Of the context on it.
    pub(super) command: Option<String>,
    /// Of the interval.
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
    /// Which of the frame's cards.
    #[serde(skip)]
    pub(super) card: usize,
    #[serde(flatten)]
    pub(super) view: ContextView,
    /// Of the interval: on a slot; queued.
    pub(super) run_percent: f64,
    pub(super) wait_percent: f64,
}

/// How much of an interval, in percent; a clock that was read a little later than the counter does
/// not make it more than all.
fn percent(now: u64, before: u64, interval: Duration) -> f64 {
    let ns = interval.as_nanos().max(1) as f64;
    (now.saturating_sub(before) as f64 * 100.0 / ns).min(100.0)
}

impl Frame {
    /// What has changed from one sample to the next one, of the same cards.
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

    /// How something of a card is called: by its number alone, where there is one card only.
    pub(super) fn name(&self, card: usize, number: u32) -> String {
        match &self.cards[..] {
            [_] => number.to_string(),
            cards => format!("{}/{number}", cards[card].card.unwrap_or(card as u32)),
        }
    }
}

impl CardFrame {
    /// Pairs are of before and now.
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
            // One that is new has begun at 0.
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
            guard_ns: now.guard_ns,
            slots: slots.map(slot).collect(),
            contexts: now.contexts.iter().map(context).collect(),
        }
    }
}
