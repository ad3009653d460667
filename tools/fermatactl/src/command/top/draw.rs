// SPDX-License-Identifier: GPL-2.0-or-later
//! Draws the live view, and prints the same as plain text.

use super::columns::{
    first_that_fit, fitting, shortened, Column, Order, Shown, SlotColumn, TableColumn,
};
use super::sample::{CardFrame, ContextRow, Frame};
use super::screen::{Mode, Screen};
use crate::format::{table, time};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table, TableState};
use ratatui::Frame as Canvas;

const HELP: &str = "\
\x20up, down, j, k   select a context      s, S   sort by the next column
 h   hold its job                       i      invert the order
 r   resume it                          /      filter: Enter keeps, Esc
 p   preempt it                                leaves the one before
 d   disable the context                space  stop and go on
 e   enable it                          ?      this help
 +   priority up                        q      quit
 -   priority down
 RUN%, WAIT%: of the interval on a slot, queued. PR: priority,
 LC: latency-critical. CTX: number of the context, CARD/CTX with
 several cards. h to - need CAP_SYS_ADMIN. GAP: end of a run to
 the next START, LC: arrival of latency-critical work to its
 START; half and 99 % are within, in the interval.";

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
        Paragraph::new(shortened(foot.width, &foot_of(screen))),
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
    } else {
        Text::from(shortened(width, &text))
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
