// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermatactl top`: who uses the slots, live: samples of cards and what changes between two, the state
//! of the view, and the effects of keys.

mod draw;
#[cfg(test)]
mod tests;

use crate::advice::{self, Call};
use crate::card::{of_present, Card, CardName};
use crate::cgroup::Paths;
use crate::format::{since, Spread};
use crate::terminal;
use crate::trouble::{Out, Result, Trouble};
use crate::value::{self, PRIORITIES};
use crate::view::{CardView, ContextView, SlotView};
use draw::{Column, Order, TableColumn};
use fermata::{Control, Histogram, Param, SlotHistogram};
use ratatui::crossterm;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::{DefaultTerminal, TerminalOptions, Viewport};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Watch slots and contexts, live
///
/// In a terminal it is refreshed in place, and keys act on contexts (`?` lists them). In a pipe,
/// with --once, --count or --json it prints plain text (or JSON), an interval at a time.
#[derive(Debug, clap::Args)]
pub(crate) struct Top {
    /// The cards; by default all that may be opened
    #[arg(value_name = "CARD")]
    cards: Vec<CardName>,
    /// How long an interval is: 100ms to 1h
    #[arg(short, long, default_value = "1s", value_name = "TIME", value_parser = interval)]
    interval: Duration,
    /// Print one interval and end
    #[arg(long, conflicts_with = "count")]
    once: bool,
    /// Print this many intervals, 1 or more, and end
    #[arg(short = 'n', long, value_name = "N", value_parser = value::count)]
    count: Option<u64>,
    /// Sort contexts by this column
    #[arg(short, long, value_enum, default_value = "share")]
    sort: Column,
    /// Show only contexts whose number, state, engine, group, pid or command contains this
    #[arg(short, long, default_value = "", value_name = "TEXT")]
    filter: String,
}

fn interval(text: &str) -> value::Parsed<Duration> {
    value::time_in(
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
        let mut paths = Paths::default();
        let mut before = Sample::take(&cards, &mut paths)?;
        for _ in 0..count.unwrap_or(u64::MAX) {
            std::thread::sleep(self.interval);
            let now = Sample::take(&cards, &mut paths)?;
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
    let mut paths = Paths::default();
    let before = Sample::take(cards, &mut paths)?;
    let terminal = start_terminal().map_err(|error| {
        ratatui::restore();
        Trouble::new(
            format!("terminal: {error}"),
            "with --once it prints plain text",
        )
    })?;
    let shown = redraw(cards, order, interval, (before, paths), terminal);
    ratatui::restore();
    shown
}

/// Takes over the terminal. A terminal without a size, such as a serial console, is taken for one
/// of 80x24.
fn start_terminal() -> std::io::Result<DefaultTerminal> {
    let (columns, rows) = crossterm::terminal::size().unwrap_or_default();
    if columns != 0 && rows != 0 {
        return ratatui::try_init();
    }
    let (width, height) = terminal::UNSIZED;
    let viewport = Viewport::Fixed(Rect::new(0, 0, width, height));
    let terminal = ratatui::try_init_with_options(TerminalOptions { viewport })?;
    crossterm::execute!(std::io::stdout(), crossterm::terminal::EnterAlternateScreen)?;
    Ok(terminal)
}

/// Redraws cards, and executes commands of keys. Begins with a sample, and the paths of its groups.
fn redraw(
    cards: &[Card],
    order: Order,
    interval: Duration,
    (mut before, mut paths): (Sample, Paths),
    mut terminal: DefaultTerminal,
) -> Result<()> {
    let mut screen = Screen::new(Frame::between(&before, &before), order);
    let mut next = Instant::now() + FIRST.min(interval);
    loop {
        terminal.draw(|canvas| draw::draw(&screen, canvas))?;
        let left = next.saturating_duration_since(Instant::now());
        if event::poll(left)? {
            let key = match event::read()? {
                Event::Key(key) => key,
                // A terminal that had no size has one now.
                Event::Resize(width, height) if width != 0 && height != 0 => {
                    terminal.resize(Rect::new(0, 0, width, height))?;
                    continue;
                }
                _ => continue,
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
            let now = Sample::take(cards, &mut paths)?;
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

/// The mode of the live view.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Mode {
    Table,
    /// The user types a filter; the value is the previous filter.
    Filter(String),
    Help,
}

/// A request of a key to the program.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Request {
    None,
    Quit,
    /// Act on a context.
    Control {
        /// Index among the sampled cards.
        card: usize,
        context: u32,
        control: Control,
        /// Description of the action: "hold", "priority 17".
        what: String,
    },
}

/// The live view.
#[derive(Debug)]
struct Screen {
    frame: Frame,
    order: Order,
    mode: Mode,
    /// Card and number of the selected context.
    selected: Option<(usize, u32)>,
    /// Message about the last request.
    message: String,
    /// The view is frozen.
    paused: bool,
}

impl Screen {
    fn new(frame: Frame, order: Order) -> Self {
        Self {
            frame,
            order,
            mode: Mode::Table,
            selected: None,
            message: String::new(),
            paused: false,
        }
    }

    /// Returns the shown rows, and the index of the selected row if it still exists.
    fn rows(&self) -> (Vec<&ContextRow>, Option<usize>) {
        let rows = self.order.rows(&self.frame);
        let is_selected = |row: &&ContextRow| Some((row.card, row.view.context)) == self.selected;
        let place = rows.iter().position(is_selected);
        (rows, place)
    }

    fn selected_row(&self) -> Option<&ContextRow> {
        let (rows, place) = self.rows();
        place.map(|place| rows[place])
    }

    fn select(&mut self, step: isize) {
        let (rows, place) = self.rows();
        let last = rows.len().saturating_sub(1);
        let to = place.map_or(0, |place| place.saturating_add_signed(step).min(last));
        self.selected = rows.get(to).map(|row| (row.card, row.view.context));
    }

    fn key(&mut self, key: KeyEvent) -> Request {
        let is_break = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_break && matches!(key.code, KeyCode::Char('c' | 'd')) {
            return Request::Quit;
        }
        match std::mem::replace(&mut self.mode, Mode::Table) {
            // Any key closes the help.
            Mode::Help => Request::None,
            Mode::Filter(before) => {
                self.type_filter(key.code, before);
                Request::None
            }
            Mode::Table => self.table_key(key.code),
        }
    }

    fn type_filter(&mut self, code: KeyCode, before: String) {
        match code {
            KeyCode::Enter => return,
            KeyCode::Esc => {
                self.order.filter = before;
                return;
            }
            KeyCode::Backspace => {
                self.order.filter.pop();
            }
            KeyCode::Char(c) => self.order.filter.push(c),
            _ => {}
        }
        self.mode = Mode::Filter(before);
    }

    fn table_key(&mut self, code: KeyCode) -> Request {
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return Request::Quit,
            KeyCode::Char('?') | KeyCode::F(1) => self.mode = Mode::Help,
            KeyCode::Char('/') => {
                self.mode = Mode::Filter(std::mem::take(&mut self.order.filter));
            }
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::PageUp => self.select(-10),
            KeyCode::PageDown => self.select(10),
            KeyCode::Char('s') => self.sort_by_next(1),
            KeyCode::Char('S') => self.sort_by_next(Column::ALL.len() - 1),
            KeyCode::Char('i') => self.order.reversed = !self.order.reversed,
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Char('h') => return self.control("hold", |_| Some(Control::Hold)),
            KeyCode::Char('r') => return self.control("resume", |_| Some(Control::Resume)),
            KeyCode::Char('p') => return self.control("preempt", |_| Some(Control::Preempt)),
            KeyCode::Char('d') => {
                return self.control("disable", |_| Some(Control::Param(Param::Enabled, 0)))
            }
            KeyCode::Char('e') => {
                return self.control("enable", |_| Some(Control::Param(Param::Enabled, 1)))
            }
            KeyCode::Char('+') => return self.control("priority up", |row| priority(row, 1)),
            KeyCode::Char('-') => return self.control("priority down", |row| priority(row, -1)),
            _ => {}
        }
        Request::None
    }

    fn sort_by_next(&mut self, step: usize) {
        let all = Column::ALL;
        let now = all.iter().position(|column| *column == self.order.by);
        self.order.by = all[(now.unwrap_or(0) + step) % all.len()];
        self.order.reversed = false;
    }

    fn control(&mut self, what: &str, control: fn(&ContextRow) -> Option<Control>) -> Request {
        let Some(row) = self.selected_row() else {
            self.message = format!("{what}: select a context first (arrow keys)");
            return Request::None;
        };
        let Some(control) = control(row) else {
            self.message = format!("{what}: that is the end of the range");
            return Request::None;
        };
        Request::Control {
            card: row.card,
            context: row.view.context,
            control,
            what: what.into(),
        }
    }
}

/// Returns the priority one step from the present one.
fn priority(row: &ContextRow, step: i32) -> Option<Control> {
    // The driver refuses a caller who may not know the priority.
    let from = row.view.priority.unwrap_or(16);
    let to = from.checked_add_signed(step)?;
    let to = u64::from(to);
    PRIORITIES
        .contains(&to)
        .then_some(Control::Param(Param::Priority, to))
}

/// A sample of the cards.
#[derive(Clone, Debug)]
struct Sample {
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
    fn take(cards: &[Card], paths: &mut Paths) -> Result<Self> {
        let samples = cards
            .iter()
            .map(|card| CardSample::of(card, paths))
            .enumerate();
        let samples = of_present(samples.map(|(index, sample)| Ok((index, sample?))))?;
        Ok(Self {
            at: Instant::now(),
            cards: samples.into_iter().collect(),
        })
    }
}

impl CardSample {
    fn of(card: &Card, paths: &mut Paths) -> Result<Self> {
        let view = CardView::explained(card, paths)?;
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
struct Frame {
    interval_ns: u64,
    cards: Vec<CardFrame>,
}

/// A card in an interval.
#[derive(Clone, Debug, Serialize)]
struct CardFrame {
    /// Index among the sampled cards.
    #[serde(skip)]
    index: usize,
    card: Option<u32>,
    device: PathBuf,
    policy: Option<&'static str>,
    boost_ns: Option<u64>,
    slots: Vec<SlotRow>,
    contexts: Vec<ContextRow>,
}

/// A slot in an interval.
#[derive(Clone, Debug, Serialize)]
struct SlotRow {
    /// Index of the card among the sampled cards.
    #[serde(skip)]
    card: usize,
    #[serde(flatten)]
    view: SlotView,
    /// Command of the context on the slot.
    command: Option<String>,
    /// Percent of the interval.
    busy_percent: Option<f64>,
    switches_per_second: Option<f64>,
    /// From the end of a run to the next START, in the interval.
    gap: Option<Spread>,
    /// From the arrival of latency-critical jobs to their START, in the interval.
    latency: Option<Spread>,
}

/// A context in an interval.
#[derive(Clone, Debug, Serialize)]
struct ContextRow {
    /// Index of the card among the sampled cards.
    #[serde(skip)]
    card: usize,
    #[serde(flatten)]
    view: ContextView,
    /// Percent of the interval: on a slot, and queued.
    run_percent: Option<f64>,
    wait_percent: Option<f64>,
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
    fn between(before: &Sample, now: &Sample) -> Self {
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

    fn slots(&self) -> impl Iterator<Item = &SlotRow> {
        self.cards.iter().flat_map(|card| &card.slots)
    }

    fn contexts(&self) -> impl Iterator<Item = &ContextRow> {
        self.cards.iter().flat_map(|card| &card.contexts)
    }

    /// Returns the name of a slot or context: its number, with the card's number if there are
    /// several cards.
    fn name(&self, card: usize, number: u32) -> String {
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
