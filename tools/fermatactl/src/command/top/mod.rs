// SPDX-License-Identifier: GPL-2.0
//! `fermatactl top`: who uses the slots, live.

mod columns;
mod draw;
mod fit;
mod live;
mod plain;
mod sample;
mod screen;
mod slots;
#[cfg(test)]
mod tests;

use crate::card::{Card, CardName};
use crate::number;
use crate::out::Out;
use crate::trouble::Result;
use columns::{Column, Order};
use sample::{Frame, Sample};
use std::io::IsTerminal;
use std::time::Duration;

/// Watch slots and contexts, live
///
/// In a terminal it is refreshed in place, and keys act on contexts (`?` lists them). In a pipe, with --once, --count or --json
/// it prints plain text (or JSON), an interval at a time.
#[derive(Debug, clap::Args)]
pub(crate) struct Top {
    /// Only these cards
    #[arg(value_name = "CARD")]
    cards: Vec<CardName>,
    /// How long an interval is: 100ms to 1h
    #[arg(short, long, default_value = "1s", value_name = "TIME", value_parser = interval)]
    interval: Duration,
    /// Print one interval and end
    #[arg(long, conflicts_with = "count")]
    once: bool,
    /// Print so many intervals, 1 or more, and end
    #[arg(short = 'n', long, value_name = "N", value_parser = number::count)]
    count: Option<u64>,
    /// Sort contexts by this column
    #[arg(short, long, value_enum, default_value = "share")]
    sort: Column,
    /// Only contexts that have this in number, state, engine, pid or command
    #[arg(short, long, default_value = "", value_name = "TEXT")]
    filter: String,
}

fn interval(text: &str) -> number::Parsed<Duration> {
    number::time_in(
        text,
        &(Duration::from_millis(100)..=Duration::from_secs(3600)),
    )
}

impl Top {
    pub(crate) fn run(&self, out: Out) -> Result<()> {
        let cards = Card::open_all(&self.cards)?;
        let order = Order {
            by: self.sort,
            reversed: false,
            filter: self.filter.clone(),
        };
        let count = if self.once { Some(1) } else { self.count };
        let is_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
        if is_terminal && count.is_none() && !out.is_json() {
            return live::run(&cards, order, self.interval);
        }
        let mut before = Sample::take(&cards)?;
        for _ in 0..count.unwrap_or(u64::MAX) {
            std::thread::sleep(self.interval);
            let now = Sample::take(&cards)?;
            let frame = Frame::between(&before, &now);
            out.show(&frame, |frame| plain::text(frame, &order))?;
            before = now;
        }
        Ok(())
    }
}
