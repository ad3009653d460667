// SPDX-License-Identifier: GPL-2.0
//! `fermatactl hint`: announces the next job of another program's context.

use crate::advice::Call;
use crate::card::{Card, CardName};
use crate::format::time;
use crate::number;
use crate::out::Out;
use crate::owner;
use crate::trouble::Result;
use serde::Serialize;
use std::time::Duration;

/// Announce the next job of a context, so that a slot is free by then
///
/// The driver takes a hint from who has the context's descriptor only, so this gets the descriptor from its program as a debugger
/// would (same user, or root). A hint has an effect if the job would take a slot from another one at once: latency-critical, of a
/// higher priority, or with a reservation. For own jobs: `fermatactl run --hint`.
#[derive(Debug, clap::Args)]
pub(crate) struct Hint {
    /// The card
    card: CardName,
    /// The number of the context
    #[arg(value_parser = number::context)]
    context: u32,
    /// In how long the job will be started: 1us to 10s; `never` takes the last hint back
    #[arg(value_parser = when)]
    when: When,
}

#[derive(Clone, Copy, Debug)]
enum When {
    In(Duration),
    Never,
}

fn when(text: &str) -> std::result::Result<When, String> {
    match text {
        "never" => Ok(When::Never),
        text => number::ahead(text).map(When::In),
    }
}

#[derive(Serialize)]
struct Answer {
    card: Option<u32>,
    context: u32,
    /// Null: taken back.
    ahead_ns: Option<u64>,
}

impl Hint {
    pub(crate) fn run(&self, out: Out) -> Result<()> {
        let card = Card::open(&self.card)?;
        let context = owner::context(&card, self.context)?;
        let ahead = match self.when {
            When::In(ahead) => Some(ahead),
            When::Never => None,
        };
        let hinted = context.hint(ahead);
        hinted.map_err(|error| card.refused_for(self.context, "hinting", Call::Hint, error))?;
        let answer = Answer {
            card: card.number(),
            context: self.context,
            ahead_ns: ahead.map(|ahead| ahead.as_nanos() as u64),
        };
        out.show(&answer, |answer| match answer.ahead_ns {
            Some(ns) => format!(
                "{}: context {}: a job in {}",
                card.name,
                answer.context,
                time(ns)
            ),
            None => format!("{}: context {}: no job for now", card.name, answer.context),
        })
    }
}
