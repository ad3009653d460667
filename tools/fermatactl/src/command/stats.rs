// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermatactl stats`: counters and histograms.

use crate::advice::Call;
use crate::card::{Card, CardName, Monitor};
use crate::format::{or_dash, table, time, Spread};
use crate::number;
use crate::trouble::{Out, Result};
use crate::view::{CardView, ContextView, SlotView};
use fermata::{uapi, ContextHistogram, SlotHistogram};
use serde::Serialize;

/// Print counters and histograms of a card or of a context
///
/// Of a card they count since the driver was bound to it, of a context since it was set up;
/// docs/statistics.md tells what each measures. Percentiles are at most 25 % too long. With --json
/// all buckets are there.
#[derive(Debug, clap::Args)]
pub(crate) struct Stats {
    /// The card; may be left out where there is only one
    card: Option<CardName>,
    /// The number of a context
    #[arg(value_parser = number::context)]
    context: Option<u32>,
}

#[derive(Serialize)]
struct Slot {
    #[serde(flatten)]
    view: SlotView,
    resumes: u64,
    preemptions: u64,
    finished: u64,
    faults: u64,
    timeouts: u64,
    spurious_interrupts: u64,
    /// Null if the caller may not see them.
    histograms: Option<SlotHistograms>,
}

#[derive(Serialize)]
struct SlotHistograms {
    gap: Spread,
    save: Spread,
    restore: Spread,
    overrun: Spread,
    latency: Spread,
}

#[derive(Serialize)]
struct OfCard {
    card: Option<u32>,
    slots: Vec<Slot>,
}

#[derive(Serialize)]
struct OfContext {
    card: Option<u32>,
    #[serde(flatten)]
    view: ContextView,
    /// Null if the caller may not see them.
    histograms: Option<ContextHistograms>,
}

#[derive(Serialize)]
struct ContextHistograms {
    wait: Spread,
    arrival: Spread,
    run: Spread,
}

impl Stats {
    pub(crate) fn run(&self, out: Out) -> Result<()> {
        let card = Card::open_one(self.card.as_ref())?;
        let view = CardView::of(&card)?;
        match self.context {
            None => {
                let monitor = card.monitor();
                let slots = view.slots.into_iter();
                let slots = slots.map(|slot| Slot::of(&card, slot, monitor.as_ref()));
                let answer = OfCard {
                    card: card.number(),
                    slots: slots.collect::<Result<_>>()?,
                };
                out.show(&answer, |answer| {
                    let texts: Vec<_> = answer.slots.iter().map(Slot::text).collect();
                    texts.join("\n")
                })
            }
            Some(number) => {
                let context = view.context(number).cloned();
                let context = context.ok_or_else(|| card.no_context(number))?;
                out.show(&OfContext::of(&card, context)?, OfContext::text)
            }
        }
    }
}

impl Slot {
    fn of(card: &Card, view: SlotView, monitor: Option<&Monitor>) -> Result<Self> {
        let number = view.slot;
        if let Some(figures) = monitor.and_then(|monitor| monitor.slot(number)) {
            return Ok(Self {
                view,
                resumes: figures.of("resumes"),
                preemptions: figures.of("preemptions"),
                finished: figures.of("finished"),
                faults: figures.of("faults"),
                timeouts: figures.of("timeouts"),
                spurious_interrupts: figures.of("spurious_interrupts"),
                histograms: None,
            });
        }
        let of = |which| {
            let histogram = card.file.slot_histogram(number, which);
            let histogram = histogram
                .map_err(|error| card.refused("its histograms", Call::Histogram, error))?;
            Ok::<_, crate::trouble::Trouble>(Spread::from(&histogram))
        };
        let info = card.file.slot_info(number);
        let uapi::SlotInfo {
            resumes,
            preemptions,
            finished,
            faults,
            timeouts,
            spurious,
            ..
        } = info.map_err(|error| card.refused("its slots", Call::SlotInfo, error))?;
        Ok(Self {
            view,
            resumes,
            preemptions,
            finished,
            faults,
            timeouts,
            spurious_interrupts: spurious,
            histograms: Some(SlotHistograms {
                gap: of(SlotHistogram::Gap)?,
                save: of(SlotHistogram::Save)?,
                restore: of(SlotHistogram::Restore)?,
                overrun: of(SlotHistogram::Overrun)?,
                latency: of(SlotHistogram::Latency)?,
            }),
        })
    }

    fn text(&self) -> String {
        let view = &self.view;
        let counters = [
            ("switches", view.switches),
            ("resumes", Some(self.resumes)),
            ("preemptions", Some(self.preemptions)),
            ("finished", Some(self.finished)),
            ("faults", Some(self.faults)),
            ("timeouts", Some(self.timeouts)),
            ("resets", view.resets),
            ("spurious interrupts", Some(self.spurious_interrupts)),
        ];
        let text = format!(
            "slot {} {}: busy {}\n  {}\n",
            view.slot,
            view.engine_name(),
            or_dash(view.busy_ns.map(time)),
            counted(&counters)
        );
        let Some(histograms) = &self.histograms else {
            return text;
        };
        text + &spreads(&[
            ("gap", &histograms.gap),
            ("save", &histograms.save),
            ("restore", &histograms.restore),
            ("overrun", &histograms.overrun),
            ("latency", &histograms.latency),
        ])
    }
}

impl OfContext {
    fn of(card: &Card, view: ContextView) -> Result<Self> {
        let number = view.context;
        let of = |which| {
            let histogram = card.file.context_histogram(Some(number), which);
            let histogram = histogram.map_err(|error| {
                card.refused_for(number, "histograms of", Call::Histogram, error)
            })?;
            Ok::<_, crate::trouble::Trouble>(Spread::from(&histogram))
        };
        let all = || {
            Ok::<_, crate::trouble::Trouble>(ContextHistograms {
                wait: of(ContextHistogram::Wait)?,
                arrival: of(ContextHistogram::Arrival)?,
                run: of(ContextHistogram::Run)?,
            })
        };
        // sysfs has the counters of other users' contexts, for users who may read them.
        let is_monitored = || {
            card.monitor()
                .is_some_and(|all| all.context(number).is_some())
        };
        let histograms = match all() {
            Err(_) if is_monitored() => None,
            other => Some(other?),
        };
        Ok(Self {
            card: card.number(),
            histograms,
            view,
        })
    }

    fn text(&self) -> String {
        let view = &self.view;
        let counters = [
            ("jobs", view.job),
            ("slices", view.slices),
            ("preemptions", view.preemptions),
        ];
        let text = format!(
            "context {} {}: ran {}, waited {}\n  {}\n",
            view.context,
            view.engine_name(),
            or_dash(view.run_ns.map(time)),
            or_dash(view.wait_ns.map(time)),
            counted(&counters)
        );
        let Some(histograms) = &self.histograms else {
            return text;
        };
        text + &spreads(&[
            ("wait", &histograms.wait),
            ("arrival", &histograms.arrival),
            ("run", &histograms.run),
        ])
    }
}

fn counted(counters: &[(&str, Option<u64>)]) -> String {
    let texts: Vec<_> = counters
        .iter()
        .map(|(name, count)| format!("{} {name}", or_dash(*count)))
        .collect();
    texts.join(", ")
}

fn spreads(spreads: &[(&str, &Spread)]) -> String {
    let titles: Vec<_> = std::iter::once("").chain(Spread::TITLES).collect();
    let rows = spreads.iter().map(|(name, spread)| {
        let name = std::iter::once((*name).to_string());
        name.chain(spread.cells()).collect()
    });
    table(&titles, rows)
}
