// SPDX-License-Identifier: GPL-2.0-or-later
//! Draws the live view, and prints the same as plain text: the columns of contexts and of slots, their
//! contents, sorting and filtering by them, and the choice for a narrow terminal. A number is shown
//! completely or not at all, since a number without its last digits looks like another number.

use super::{CardFrame, ContextRow, Frame, Mode, Screen, SlotRow};
use crate::format::{end_of_path, or_dash, shortened, table, time, Spread};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table, TableState};
use ratatui::Frame as Canvas;
use std::cmp::Ordering;

const HELP: &str = "\
\x20up, down, j, k   select a context      s, S   sort by the next column
 h   hold its job                       i      invert the order
 r   resume it                          /      filter: Enter keeps, Esc
 p   preempt it                                leaves the one before
 d   disable the context                space  stop and go on
 e   enable it                          ?      this help
 +   priority up                        q      quit
 -   priority down
 RUN%, WAIT%: of the interval on a slot, queued. IDLE: time without
 a job that wants a slot. PR: priority, LC: latency-critical. CTX:
 number of the context, CARD/CTX with several cards. h to - need
 CAP_SYS_ADMIN. GAP: end of a run to the next START, LC: arrival of
 latency-critical work to its START; half and 99 % are within, in
 the interval.";

/// Returns the line about a card in parts; a narrow terminal drops the last parts.
pub(super) fn head(card: &CardFrame) -> Vec<String> {
    let of = |state| {
        let contexts = card.contexts.iter();
        contexts.filter(|row| row.view.state == state).count()
    };
    let boost = match card.boost_ns {
        None => "boost unknown".into(),
        Some(0) => "no boost".into(),
        Some(boost) => format!("boost {}", time(boost)),
    };
    vec![
        card.device.display().to_string(),
        format!("  policy {}", card.policy.unwrap_or("unknown")),
        format!(", {boost}"),
        format!("  {} contexts", card.contexts.len()),
        format!(
            ": {} running, {} queued, {} held",
            of("running"),
            of("queued"),
            of("held")
        ),
    ]
}

pub(super) fn draw(screen: &Screen, canvas: &mut Canvas) {
    let frame = &screen.frame;
    let slots = frame.slots().count() as u16 + 1;
    let parts = [
        Constraint::Length(frame.cards.len() as u16),
        Constraint::Length(slots),
        Constraint::Length(1),
        Constraint::Min(2),
        Constraint::Length(1),
    ];
    let [heads, slots, _, contexts, foot] = Layout::vertical(parts).areas(canvas.area());
    let line = |card| Line::from(first_that_fit(heads.width, &head(card)));
    let lines: Vec<_> = frame.cards.iter().map(line).collect();
    canvas.render_widget(Paragraph::new(lines).bold(), heads);
    slot_table(frame, canvas, slots);
    context_table(screen, canvas, contexts);
    canvas.render_widget(
        Paragraph::new(shortened(foot.width.into(), &foot_of(screen))),
        foot,
    );
    if screen.mode == Mode::Help {
        help(canvas);
    }
}

/// Returns a cell: a number aligned to the right, or a text shortened to the width.
fn cell<C: TableColumn>((column, width): Shown<C>, text: String) -> Cell<'static> {
    Cell::from(if column.is_number() {
        Text::from(text).alignment(Alignment::Right)
    } else if column.is_path() {
        Text::from(end_of_path(width.into(), &text))
    } else {
        Text::from(shortened(width.into(), &text))
    })
}

/// Returns the titles; the column that rows are sorted by is marked.
fn titles<C: TableColumn>(shown: &[Shown<C>], sorted_by: Option<C>) -> Row<'static> {
    let title = |column: &Shown<C>| {
        let cell = cell(*column, column.0.title().into());
        if sorted_by == Some(column.0) {
            cell.style(Style::new().bold().underlined())
        } else {
            cell
        }
    };
    let cells = shown.iter().map(title).collect::<Row>();
    cells.style(Style::new().add_modifier(Modifier::REVERSED))
}

fn widths<C: TableColumn>(shown: &[Shown<C>]) -> impl Iterator<Item = Constraint> + '_ {
    shown.iter().map(|(_, width)| Constraint::Length(*width))
}

fn slot_table(frame: &Frame, canvas: &mut Canvas, area: Rect) {
    let cells = |column: SlotColumn| frame.slots().map(|row| column.cell(row, frame)).collect();
    let shown = fitting(area.width, cells);
    if shown.is_empty() {
        return;
    }
    let row = |row| {
        let cells = shown
            .iter()
            .map(|column| cell(*column, column.0.cell(row, frame)));
        cells.collect::<Row>()
    };
    let table = Table::new(frame.slots().map(row), widths(&shown)).header(titles(&shown, None));
    canvas.render_widget(table, area);
}

fn context_table(screen: &Screen, canvas: &mut Canvas, area: Rect) {
    let frame = &screen.frame;
    let cells = |column: Column| {
        frame
            .contexts()
            .map(|row| column.cell(row, frame))
            .collect()
    };
    let shown = fitting(area.width, cells);
    if shown.is_empty() {
        return;
    }
    let (rows, selected) = screen.rows();
    let row = |row: &ContextRow| {
        let cells = shown
            .iter()
            .map(|column| cell(*column, column.0.cell(row, frame)));
        cells.collect::<Row>().style(style_of(row.view.state))
    };
    let table = Table::new(rows.into_iter().map(row), widths(&shown))
        .header(titles(&shown, Some(screen.order.by)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected(selected);
    canvas.render_stateful_widget(table, area, &mut state);
}

/// Returns the style of a state; the state is also shown as text.
fn style_of(state: &str) -> Style {
    match state {
        "running" => Style::new().fg(Color::Green),
        "failed" => Style::new().fg(Color::Red),
        "held" => Style::new().fg(Color::Yellow),
        _ => Style::new(),
    }
}

fn foot_of(screen: &Screen) -> String {
    match &screen.mode {
        Mode::Filter(_) => format!("filter: {}_", screen.order.filter),
        _ if !screen.message.is_empty() => screen.message.clone(),
        _ => {
            let order = if screen.order.reversed { "up" } else { "down" };
            let filter = match screen.order.filter.as_str() {
                "" => String::new(),
                filter => format!("  filter {filter}"),
            };
            let paused = if screen.paused { "  PAUSED" } else { "" };
            let by = screen.order.by.title();
            format!(
                "sort {by} {order}{filter}{paused}  |  ? help  q quit  h hold  r resume  p \
                 preempt  / filter"
            )
        }
    }
}

fn help(canvas: &mut Canvas) {
    let lines = HELP.lines();
    let (height, width) = (lines.clone().count() as u16 + 2, 74);
    let area = canvas.area();
    let area = Rect {
        x: area.width.saturating_sub(width) / 2,
        y: area.height.saturating_sub(height) / 2,
        width: width.min(area.width),
        height: height.min(area.height),
    };
    canvas.render_widget(Clear, area);
    let block = Block::bordered().title(" fermatactl top: any key goes on ");
    canvas.render_widget(Paragraph::new(HELP).block(block), area);
}

/// Returns all columns as text, without the limits of a terminal.
pub(super) fn text(frame: &Frame, order: &Order) -> String {
    let heads = frame.cards.iter().map(|card| head(card).concat() + "\n");
    let mut text: String = heads.collect();
    text += &columns(frame.slots(), |column: SlotColumn, row| {
        column.cell(row, frame)
    });
    let rows = order.rows(frame);
    if !rows.is_empty() {
        text += "\n";
        text += &columns(rows.into_iter(), |column: Column, row| {
            column.cell(row, frame)
        });
    }
    text
}

fn columns<C: TableColumn, R>(
    rows: impl Iterator<Item = R>,
    cell: impl Fn(C, &R) -> String,
) -> String {
    let title = |column: &C| {
        let mark = if column.is_number() { ">" } else { "" };
        format!("{mark}{}", column.title())
    };
    let titles: Vec<_> = C::ALL.iter().map(title).collect();
    let titles: Vec<_> = titles.iter().map(String::as_str).collect();
    let cells = |row| C::ALL.iter().map(|column| cell(*column, &row)).collect();
    table(&titles, rows.map(cells))
}

/// A column of contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Column {
    /// Number of the context
    Context,
    /// What its job does
    State,
    /// Engine
    Engine,
    /// Slot that it is on
    Slot,
    /// Priority
    Priority,
    /// Weight
    Weight,
    /// Timeslice
    Slice,
    /// Percent of the interval on a slot
    Share,
    /// Time on slots since it was set up
    Run,
    /// Percent of the interval queued
    Wait,
    /// For how long it has had no job that wants a slot
    Idle,
    /// Times put on a slot
    Slices,
    /// Times taken off before the job's end
    Preemptions,
    /// Path of its group's cgroup
    Group,
    /// Process
    Pid,
    /// Its command
    Command,
}

impl TableColumn for Column {
    const ALL: &'static [Self] = &[
        Self::Context,
        Self::State,
        Self::Engine,
        Self::Slot,
        Self::Priority,
        Self::Weight,
        Self::Slice,
        Self::Share,
        Self::Run,
        Self::Wait,
        Self::Idle,
        Self::Slices,
        Self::Preemptions,
        Self::Group,
        Self::Pid,
        Self::Command,
    ];
    const DROPPED: &'static [Self] = &[
        Self::Slices,
        Self::Weight,
        Self::Preemptions,
        Self::Slice,
        Self::Run,
        Self::Priority,
        Self::Wait,
        Self::Idle,
        Self::Engine,
        Self::Group,
        Self::Pid,
        Self::Slot,
        Self::Share,
        Self::Command,
        Self::State,
        Self::Context,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::Context => "CTX",
            Self::State => "STATE",
            Self::Engine => "ENGINE",
            Self::Slot => "SL",
            Self::Priority => "PR",
            Self::Weight => "WEIGHT",
            Self::Slice => "SLICE",
            Self::Share => "RUN%",
            Self::Run => "RUN",
            Self::Wait => "WAIT%",
            Self::Idle => "IDLE",
            Self::Slices => "SLICES",
            Self::Preemptions => "PREEM",
            Self::Group => "GROUP",
            Self::Pid => "PID",
            Self::Command => "COMMAND",
        }
    }

    fn is_number(self) -> bool {
        !matches!(
            self,
            Self::State | Self::Engine | Self::Group | Self::Command
        )
    }

    fn is_path(self) -> bool {
        self == Self::Group
    }

    fn width(self) -> u16 {
        match self {
            Self::Engine | Self::Group => 10,
            Self::State | Self::Command => 8,
            Self::Weight | Self::Slices | Self::Pid => 7,
            Self::Run | Self::Idle => 6,
            Self::Context | Self::Slice | Self::Share | Self::Wait | Self::Preemptions => 5,
            Self::Slot | Self::Priority => 2,
        }
    }
}

impl Column {
    pub(super) fn cell(self, row: &ContextRow, frame: &Frame) -> String {
        let view = &row.view;
        match self {
            Self::Context => frame.name(row.card, view.context),
            // For a queued context, the reason why it does not run is of interest.
            Self::State => view
                .attributes
                .first()
                .map_or(view.state, |attribute| attribute)
                .into(),
            Self::Engine => view.engine_name().into(),
            Self::Slot => or_dash(view.slot),
            Self::Priority if view.latency_critical == Some(true) => "LC".into(),
            Self::Priority => or_dash(view.priority),
            Self::Weight => or_dash(view.weight),
            Self::Slice => or_dash(view.timeslice_ns.map(time)),
            Self::Share => or_dash(row.run_percent.map(one_digit)),
            Self::Run => or_dash(view.run_ns.map(time)),
            Self::Wait => or_dash(row.wait_percent.map(one_digit)),
            Self::Idle => or_dash(view.idle_ns().map(time)),
            Self::Slices => or_dash(view.slices.map(count)),
            Self::Preemptions => or_dash(view.preemptions.map(count)),
            Self::Group => view.group_name(usize::MAX),
            Self::Pid => or_dash(view.pid),
            Self::Command => or_dash(view.command_text()),
        }
    }

    /// Compares two rows by the column: numbers descend, texts ascend, unknown numbers are last.
    fn compare(self, a: &ContextRow, b: &ContextRow) -> Ordering {
        let (x, y) = (&a.view, &b.view);
        match self {
            Self::Context => (a.card, x.context).cmp(&(b.card, y.context)),
            Self::State => x.state.cmp(y.state),
            Self::Engine => x.engine_name().cmp(y.engine_name()),
            Self::Slot => {
                let place = |slot: Option<u32>| slot.unwrap_or(u32::MAX);
                (a.card, place(x.slot)).cmp(&(b.card, place(y.slot)))
            }
            Self::Priority => {
                let urgency =
                    |view: &crate::view::ContextView| (view.latency_critical, view.priority);
                urgency(y).cmp(&urgency(x))
            }
            Self::Weight => y.weight.cmp(&x.weight),
            Self::Slice => y.timeslice_ns.cmp(&x.timeslice_ns),
            Self::Share => descending(a.run_percent, b.run_percent),
            Self::Run => y.run_ns.cmp(&x.run_ns),
            Self::Wait => descending(a.wait_percent, b.wait_percent),
            Self::Idle => y.idle_ns().cmp(&x.idle_ns()),
            Self::Slices => y.slices.cmp(&x.slices),
            Self::Preemptions => y.preemptions.cmp(&x.preemptions),
            Self::Group => (&x.group_path, x.group).cmp(&(&y.group_path, y.group)),
            Self::Pid => x.pid.cmp(&y.pid),
            Self::Command => x.command.cmp(&y.command),
        }
    }
}

/// Compares two percentages in descending order; an unknown one is last.
fn descending(a: Option<f64>, b: Option<f64>) -> Ordering {
    let order = |percent: Option<f64>| percent.unwrap_or(-1.0);
    order(b).total_cmp(&order(a))
}

fn one_digit(value: f64) -> String {
    format!("{value:.1}")
}

/// Formats a count with at most five characters.
pub(super) fn count(n: u64) -> String {
    match n {
        0..100_000 => n.to_string(),
        100_000..10_000_000 => format!("{}k", n / 1_000),
        _ => format!("{}M", n / 1_000_000),
    }
}

/// The contexts to show, and their order.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) by: Column,
    pub(super) reversed: bool,
    /// Text that state, engine, group, command, pid or number must contain.
    pub(super) filter: String,
}

impl Order {
    fn shows(&self, row: &ContextRow, frame: &Frame) -> bool {
        const NAMES: [Column; 6] = [
            Column::Context,
            Column::State,
            Column::Engine,
            Column::Group,
            Column::Pid,
            Column::Command,
        ];
        let wanted = self.filter.to_lowercase();
        let mut cells = NAMES.iter().map(|column| column.cell(row, frame));
        wanted.is_empty() || cells.any(|cell| cell.to_lowercase().contains(&wanted))
    }

    /// Returns the rows to show; equal rows are ordered by number.
    pub(super) fn rows<'a>(&self, frame: &'a Frame) -> Vec<&'a ContextRow> {
        let shown = frame.contexts().filter(|row| self.shows(row, frame));
        let mut rows: Vec<_> = shown.collect();
        rows.sort_by(|a, b| Column::Context.compare(a, b));
        rows.sort_by(|a, b| {
            let order = self.by.compare(a, b);
            if self.reversed {
                order.reverse()
            } else {
                order
            }
        });
        rows
    }
}

/// A column of a table.
pub(super) trait TableColumn: Copy + PartialEq + 'static {
    /// All columns, from left to right.
    const ALL: &'static [Self];
    /// The order in which columns are dropped if the terminal is too narrow.
    const DROPPED: &'static [Self];

    fn title(self) -> &'static str;

    /// Returns whether the column has numbers, which are aligned to the right and never cut.
    fn is_number(self) -> bool;

    /// Returns whether the column has paths, of which the ends are shown.
    fn is_path(self) -> bool {
        false
    }

    /// Returns the width of a text column, or the least width of a column of numbers.
    fn width(self) -> u16;
}

/// A shown column, and its width.
pub(super) type Shown<C> = (C, u16);

/// Returns the columns that fit into `width` with a blank between two, and their widths: a column
/// of numbers is as wide as the longest of its `cells`, and the last column gets the remaining
/// width if it has text.
fn fitting<C: TableColumn>(width: u16, cells: impl Fn(C) -> Vec<String>) -> Vec<Shown<C>> {
    let needed = |column: &C| {
        let longest = if column.is_number() {
            let cells = cells(*column);
            cells.iter().map(String::len).max().unwrap_or(0)
        } else {
            0
        };
        let longest = longest.max(column.title().len()) as u16;
        (*column, column.width().max(longest))
    };
    let mut shown: Vec<_> = C::ALL.iter().map(needed).collect();
    for dropped in C::DROPPED {
        if total_of(&shown) <= width {
            break;
        }
        shown.retain(|(column, _)| column != dropped);
    }
    let left = width.saturating_sub(total_of(&shown));
    if let Some((column, last)) = shown.last_mut() {
        if !column.is_number() {
            *last += left;
        }
    }
    shown
}

fn total_of<C>(shown: &[Shown<C>]) -> u16 {
    let widths = shown.iter().map(|(_, width)| width + 1);
    widths.sum::<u16>().saturating_sub(1)
}

/// Joins as many parts as fit, beginning with the first.
fn first_that_fit(width: u16, parts: &[String]) -> String {
    let mut text = String::new();
    for part in parts {
        if text.chars().count() + part.chars().count() > width.into() {
            break;
        }
        text += part;
    }
    text
}

/// A column of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotColumn {
    Slot,
    Engine,
    Context,
    Busy,
    Switches,
    Gap50,
    Gap99,
    Latency50,
    Latency99,
    Flags,
}

impl TableColumn for SlotColumn {
    const ALL: &'static [Self] = &[
        Self::Slot,
        Self::Engine,
        Self::Context,
        Self::Busy,
        Self::Switches,
        Self::Gap50,
        Self::Gap99,
        Self::Latency50,
        Self::Latency99,
        Self::Flags,
    ];
    const DROPPED: &'static [Self] = &[
        Self::Latency50,
        Self::Latency99,
        Self::Gap50,
        Self::Gap99,
        Self::Switches,
        Self::Engine,
        Self::Flags,
        Self::Busy,
        Self::Context,
        Self::Slot,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::Slot => "SLOT",
            Self::Engine => "ENGINE",
            Self::Context => "CTX",
            Self::Busy => "BUSY%",
            Self::Switches => "SW/S",
            Self::Gap50 => "GAP50",
            Self::Gap99 => "GAP99",
            Self::Latency50 => "LC50",
            Self::Latency99 => "LC99",
            Self::Flags => "FLAGS",
        }
    }

    fn is_number(self) -> bool {
        !matches!(self, Self::Engine | Self::Flags)
    }

    fn width(self) -> u16 {
        match self {
            Self::Engine => 10,
            Self::Flags => 8,
            Self::Gap50 | Self::Gap99 | Self::Latency50 | Self::Latency99 => 6,
            Self::Context | Self::Busy | Self::Switches => 5,
            Self::Slot => 4,
        }
    }
}

fn quantile(spread: Option<&Spread>, of: fn(&Spread) -> Option<u64>) -> String {
    or_dash(spread.and_then(of).map(time))
}

impl SlotColumn {
    pub(super) fn cell(self, row: &SlotRow, frame: &Frame) -> String {
        let view = &row.view;
        match self {
            Self::Slot => frame.name(row.card, view.slot),
            Self::Engine => view.engine_name().into(),
            Self::Context => or_dash(view.context),
            Self::Busy => or_dash(row.busy_percent.map(one_digit)),
            Self::Switches => or_dash(row.switches_per_second.map(|rate| format!("{rate:.0}"))),
            Self::Gap50 => quantile(row.gap.as_ref(), |gap| gap.p50_ns),
            Self::Gap99 => quantile(row.gap.as_ref(), |gap| gap.p99_ns),
            Self::Latency50 => quantile(row.latency.as_ref(), |latency| latency.p50_ns),
            Self::Latency99 => quantile(row.latency.as_ref(), |latency| latency.p99_ns),
            Self::Flags => view.flags.join(","),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole() {
        let parts = ["fermata10", "  12 contexts", ", 3 held"].map(String::from);
        let table = [
            (8, ""),
            (9, "fermata10"),
            (21, "fermata10"),
            (22, "fermata10  12 contexts"),
            (99, "fermata10  12 contexts, 3 held"),
        ];
        for (width, text) in table {
            assert_eq!(first_that_fit(width, &parts), text, "{width}");
        }
    }
}
