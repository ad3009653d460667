// SPDX-License-Identifier: GPL-2.0
//! The live view in a terminal.

use super::columns::Order;
use super::draw::draw;
use super::sample::{Frame, Sample};
use super::screen::{Request, Screen};
use crate::advice::{self, Call};
use crate::card::Card;
use crate::trouble::{Result, Trouble};
use fermata::Control;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::DefaultTerminal;
use std::time::{Duration, Instant};

/// How long after its start the first interval is shown: nobody wants to look at nothing for longer.
const FIRST: Duration = Duration::from_millis(200);

/// Shows cards until the user quits; the terminal is as it was before then, whatever happens.
pub(super) fn run(cards: &[Card], order: Order, interval: Duration) -> Result<()> {
    let before = Sample::take(cards)?;
    let terminal = ratatui::try_init().map_err(|error| {
        Trouble::new(
            format!("terminal: {error}"),
            "with --once it prints plain text",
        )
    })?;
    let shown = show(cards, order, interval, before, terminal);
    ratatui::restore();
    shown
}

fn show(
    cards: &[Card],
    order: Order,
    interval: Duration,
    mut before: Sample,
    mut terminal: DefaultTerminal,
) -> Result<()> {
    let mut screen = Screen::new(Frame::between(&before, &before), order);
    let mut next = Instant::now() + FIRST.min(interval);
    loop {
        terminal.draw(|canvas| draw(&screen, canvas))?;
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

/// Does it; what there is to say of it.
fn act(card: &Card, context: u32, control: Control, what: &str) -> String {
    match card.file.control(context, control) {
        Ok(()) => format!("{what}: context {context}: done"),
        Err(error) => {
            let (cause, remedy) = advice::explain(Call::of_control(control), error);
            format!("{what}: context {context}: {cause}: {remedy}")
        }
    }
}
