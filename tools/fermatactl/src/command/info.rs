// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermatactl info` and `fermatactl list`.

use crate::card::{Card, CardName};
use crate::format::{bytes, or_dash, table, time};
use crate::number;
use crate::trouble::{Out, Result};
use crate::view::{CardView, ContextView, SlotView};
use serde::Serialize;

/// Tell all about a card, or about a context
#[derive(Debug, clap::Args)]
pub(crate) struct Info {
    /// The card; may be left out where there is only one
    card: Option<CardName>,
    /// The number of a context
    #[arg(value_parser = number::context)]
    context: Option<u32>,
}

impl Info {
    pub(crate) fn run(&self, out: Out) -> Result<()> {
        let card = Card::open_one(self.card.as_ref())?;
        let view = CardView::of(&card)?;
        match self.context {
            None => out.show(&view, about_card),
            Some(number) => match view.context(number) {
                Some(context) => out.show(context, about_context),
                None => Err(card.no_context(number)),
            },
        }
    }
}

/// Formats lines of a name and a value.
fn lines(pairs: &[(&str, String)]) -> String {
    let row = |(name, value): &(&str, String)| vec![(*name).into(), value.clone()];
    table(&["", ""], pairs.iter().map(row))
        .lines()
        .skip(1)
        .fold(String::new(), |text, line| text + line.trim_end() + "\n")
}

fn words(words: &[&str]) -> String {
    if words.is_empty() {
        "none".into()
    } else {
        words.join(", ")
    }
}

fn numbers(numbers: &[u32]) -> String {
    let texts: Vec<_> = numbers.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

/// Formats a percentage of a slot; 0 means none.
fn percent(percent: u32) -> String {
    match percent {
        0 => "none".into(),
        percent => format!("{percent} %"),
    }
}

fn yes_or_no(value: bool) -> &'static str {
    if value {
        "yes"
    } else {
        "no"
    }
}

fn about_card(card: &CardView) -> String {
    let boost = match card.boost_ns {
        None => "unknown".into(),
        Some(0) => "none".into(),
        Some(boost) => time(boost),
    };
    let mut text = format!("{}\n", card.device.display());
    text += &lines(&[
        ("interface", card.interface_version.to_string()),
        ("features", words(&card.features)),
        ("policy", card.policy.unwrap_or("unknown").into()),
        ("starvation boost", boost),
        (
            "contexts",
            format!("{} of {}", card.contexts.len(), card.max_contexts),
        ),
        ("largest arena", bytes(card.max_arena_bytes)),
    ]);
    for slot in &card.slots {
        text += &about_slot(slot);
    }
    for context in &card.contexts {
        text += "\n";
        text += &about_context(context);
    }
    text
}

fn about_slot(slot: &SlotView) -> String {
    let mut pairs = vec![
        ("engine", slot.engine_name().into()),
        ("engine's UUID", slot.engine_id.clone()),
        ("context on it", or_dash(slot.context)),
        ("flags", words(&slot.flags)),
        ("snapshot", bytes(slot.snapshot_bytes)),
        ("switches", or_dash(slot.switches)),
        ("busy", or_dash(slot.busy_ns.map(time))),
        ("mean save", time(slot.save_ns)),
        ("mean restore", time(slot.restore_ns)),
        ("resets", or_dash(slot.resets)),
        ("interrupt storms", or_dash(slot.interrupt_storms)),
    ];
    if let Some(group) = slot.exclusive_group {
        pairs.push(("only for group", group.to_string()));
    }
    format!("\nslot {}\n", slot.slot) + &lines(&pairs)
}

fn about_context(context: &ContextView) -> String {
    let pairs = [
        ("state", context.state_text()),
        ("engine", context.engine_name().into()),
        ("on slot", or_dash(context.slot)),
        ("may use slots", numbers(&context.slots)),
        ("process", or_dash(context.pid)),
        ("command", or_dash(context.command.as_deref())),
        ("group", or_dash(context.group)),
        ("job", or_dash(context.job)),
        ("priority", or_dash(context.priority)),
        ("weight", or_dash(context.weight)),
        (
            "latency-critical",
            or_dash(context.latency_critical.map(yes_or_no)),
        ),
        ("timeslice", or_dash(context.timeslice_ns.map(time))),
        (
            "preempt timeout",
            or_dash(context.preempt_timeout_ns.map(time)),
        ),
        ("cap", or_dash(context.cap.map(percent))),
        ("ran", or_dash(context.run_ns.map(time))),
        ("waited", or_dash(context.wait_ns.map(time))),
        ("slices", or_dash(context.slices)),
        ("preemptions", or_dash(context.preemptions)),
    ];
    format!("context {}\n", context.context) + &lines(&pairs)
}

/// List cards, their slots, and the contexts on them
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// These cards; without one, all that may be opened
    #[arg(value_name = "CARD")]
    cards: Vec<CardName>,
}

#[derive(Serialize)]
struct Answer {
    cards: Vec<CardView>,
}

impl List {
    pub(crate) fn run(&self, out: Out) -> Result<()> {
        let cards = CardView::all(&self.cards)?;
        out.show(&Answer { cards }, |answer| {
            let texts: Vec<_> = answer.cards.iter().map(text_of).collect();
            texts.join("\n")
        })
    }
}

fn text_of(card: &CardView) -> String {
    let mut text = format!(
        "{}: policy {}, {} of {} contexts\n",
        card.device.display(),
        card.policy.unwrap_or("unknown"),
        card.contexts.len(),
        card.max_contexts
    );
    text += &slots(&card.slots);
    if !card.contexts.is_empty() {
        text += "\n";
        text += &contexts(&card.contexts);
    }
    text
}

fn slots(slots: &[SlotView]) -> String {
    let titles = [
        ">SLOT",
        "ENGINE",
        ">CONTEXT",
        ">SWITCHES",
        ">BUSY",
        ">RESETS",
        "FLAGS",
    ];
    let row = |slot: &SlotView| {
        vec![
            slot.slot.to_string(),
            slot.engine_name().into(),
            or_dash(slot.context),
            or_dash(slot.switches),
            or_dash(slot.busy_ns.map(time)),
            or_dash(slot.resets),
            slot.flags.join(","),
        ]
    };
    table(&titles, slots.iter().map(row))
}

fn contexts(contexts: &[ContextView]) -> String {
    let titles = [
        ">CONTEXT", "STATE", "ENGINE", ">SLOT", ">RUN", ">WAIT", ">SLICES", ">PID", "COMMAND",
    ];
    let row = |context: &ContextView| {
        vec![
            context.context.to_string(),
            context.state_text(),
            context.engine_name().into(),
            or_dash(context.slot),
            or_dash(context.run_ns.map(time)),
            or_dash(context.wait_ns.map(time)),
            or_dash(context.slices),
            or_dash(context.pid),
            or_dash(context.command.as_deref()),
        ]
    };
    table(&titles, contexts.iter().map(row))
}
