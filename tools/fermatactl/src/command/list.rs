// SPDX-License-Identifier: GPL-2.0
//! `fermatactl list`.

use crate::card::{Card, CardName};
use crate::format::{or_dash, table, time};
use crate::out::Out;
use crate::trouble::Result;
use crate::view::{CardView, ContextView, SlotView};
use serde::Serialize;

/// List cards, their slots, and the contexts on them
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// Only these cards
    #[arg(value_name = "CARD")]
    cards: Vec<CardName>,
}

#[derive(Serialize)]
struct Answer {
    cards: Vec<CardView>,
}

impl List {
    pub(crate) fn run(&self, out: Out) -> Result<()> {
        let cards = Card::open_all(&self.cards)?;
        let cards = cards.iter().map(CardView::of).collect::<Result<_>>()?;
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
            slot.switches.to_string(),
            time(slot.busy_ns),
            slot.resets.to_string(),
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
            time(context.run_ns),
            time(context.wait_ns),
            context.slices.to_string(),
            or_dash(context.pid),
            or_dash(context.command.as_deref()),
        ]
    };
    table(&titles, contexts.iter().map(row))
}
