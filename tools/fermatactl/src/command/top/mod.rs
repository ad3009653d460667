// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermatactl top`: who uses the slots, live.

mod columns;
mod draw;
mod sample;
mod screen;
#[cfg(test)]
mod tests;

use crate::advice::{self, Call};
use crate::card::{Card, CardName};
use crate::number;
use crate::trouble::{Out, Result, Trouble};
use columns::{Column, Order};
use fermata::Control;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::DefaultTerminal;
use sample::{Frame, Sample};
use screen::{Request, Screen};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Watch slots and contexts, live
///
/// In a terminal it is refreshed in place, and keys act on contexts (`?` lists them). In a pipe,
/// with --once, --count or --json it prints plain text (or JSON), an interval at a time.
#[derive(Debug, clap::Args)]
pub(crate) struct Top {
    /// These cards; without one, all that may be opened
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
            return show_live(&cards, order, self.interval);
        }
        let mut before = Sample::take(&cards)?;
        for _ in 0..count.unwrap_or(u64::MAX) {
            std::thread::sleep(self.interval);
            let now = Sample::take(&cards)?;
            let frame = Frame::between(&before, &now);
            out.show(&frame, |frame| draw::text(frame, &order))?;
            before = now;
        }
        Ok(())
    }
}

/// Time to the first interval, which the user should not have to wait for.
const FIRST: Duration = Duration::from_millis(200);

/// Shows cards until the user quits, and restores the terminal in any case.
fn show_live(cards: &[Card], order: Order, interval: Duration) -> Result<()> {
    let before = Sample::take(cards)?;
    let terminal = ratatui::try_init().map_err(|error| {
        Trouble::new(
            format!("terminal: {error}"),
            "with --once it prints plain text",
        )
    })?;
    let shown = redraw(cards, order, interval, before, terminal);
    ratatui::restore();
    shown
}

/// Redraws cards, and executes commands of keys.
fn redraw(
    cards: &[Card],
    order: Order,
    interval: Duration,
    mut before: Sample,
    mut terminal: DefaultTerminal,
) -> Result<()> {
    let mut screen = Screen::new(Frame::between(&before, &before), order);
    let mut next = Instant::now() + FIRST.min(interval);
    loop {
        terminal.draw(|canvas| draw::draw(&screen, canvas))?;
        let left = next.saturating_duration_since(Instant::now());
        if event::poll(left)? {
            let Event::Key(key) = event::read()? else {
                continue;
            };
            if key.kind == KeyEventKind::Release {
                continue;
            }
            screen.message.clear();
            match screen.key(key) {
                Request::None => {}
                Request::Quit => return Ok(()),
                Request::Control {
                    card,
                    context,
                    control,
                    what,
                } => screen.message = act(&cards[card], context, control, &what),
            }
            continue;
        }
        next = Instant::now() + interval;
        if !screen.paused {
            let now = Sample::take(cards)?;
            screen.frame = Frame::between(&before, &now);
            before = now;
        }
    }
}

/// Acts on a context. Returns a message.
fn act(card: &Card, context: u32, control: Control, what: &str) -> String {
    match card.file.control(context, control) {
        Ok(()) => format!("{what}: context {context}: done"),
        Err(error) => {
            let (cause, remedy) = advice::explain(Call::of_control(control), error);
            format!("{what}: context {context}: {cause}: {remedy}")
        }
    }
}
