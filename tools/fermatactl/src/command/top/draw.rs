// SPDX-License-Identifier: GPL-2.0
//! How the live view looks.

use super::columns::{slot_cells, slot_widths, Column, SLOT_TITLES};
use super::sample::{CardFrame, Frame};
use super::screen::{Mode, Screen};
use crate::format::time;
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

/// The line that tells of a card as such.
pub(super) fn head(card: &CardFrame) -> String {
    let of = |state| {
        let contexts = card.contexts.iter();
        contexts.filter(|row| row.view.state == state).count()
    };
    let guard = match card.guard_ns {
        0 => "no guard".into(),
        guard => format!("guard {}", time(guard)),
    };
    format!(
        "{}  policy {}, {guard}  {} contexts: {} running, {} queued, {} held",
        card.device.display(),
        card.policy.unwrap_or("unknown"),
        card.contexts.len(),
        of("running"),
        of("queued"),
        of("held"),
    )
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
    let lines: Vec<_> = frame
        .cards
        .iter()
        .map(|card| Line::from(head(card)))
        .collect();
    canvas.render_widget(Paragraph::new(lines).bold(), heads);
    canvas.render_widget(slot_table(frame), slots);
    context_table(screen, canvas, contexts);
    canvas.render_widget(foot_of(screen), foot);
    if screen.mode == Mode::Help {
        help(canvas);
    }
}

fn titles<'a>(titles: impl Iterator<Item = (&'a str, bool)>) -> Row<'a> {
    titles
        .map(|(title, is_number)| aligned(title.into(), is_number))
        .collect::<Row>()
        .style(Style::new().add_modifier(Modifier::REVERSED))
}

fn aligned<'a>(text: String, is_number: bool) -> Cell<'a> {
    let alignment = if is_number {
        Alignment::Right
    } else {
        Alignment::Left
    };
    Cell::from(Text::from(text).alignment(alignment))
}

fn slot_table(frame: &Frame) -> Table<'_> {
    let is_number = |title: &str| title.starts_with('>');
    let rows = frame.slots().map(|row| {
        let cells = slot_cells(row, frame).into_iter().zip(SLOT_TITLES);
        cells
            .map(|(cell, title)| aligned(cell, is_number(title)))
            .collect::<Row>()
    });
    let header = SLOT_TITLES.map(|title| (title.trim_start_matches('>'), is_number(title)));
    let widths = slot_widths(frame).map(|width| match width {
        0 => Constraint::Min(4),
        width => Constraint::Length(width),
    });
    Table::new(rows, widths).header(titles(header.into_iter()))
}

fn context_table(screen: &Screen, canvas: &mut Canvas, area: Rect) {
    let columns = Column::shown(area.width);
    let (rows, selected) = screen.rows();
    let rows = rows.into_iter().map(|row| {
        let cells = columns
            .iter()
            .map(|column| aligned(column.cell(row, &screen.frame), column.is_number()));
        cells.collect::<Row>().style(style_of(row.view.state))
    });
    let widths = columns.iter().map(|column| match column {
        Column::Command => Constraint::Min(4),
        column => Constraint::Length(column.width(&screen.frame)),
    });
    // The column that they are sorted by is marked.
    let header = columns
        .iter()
        .map(|column| (column.title(), column.is_number()));
    let marked = header.zip(&columns).map(|((title, is_number), column)| {
        let cell = aligned(title.into(), is_number);
        if *column == screen.order.by {
            cell.style(Style::new().bold().underlined())
        } else {
            cell
        }
    });
    let header = marked
        .collect::<Row>()
        .style(Style::new().add_modifier(Modifier::REVERSED));
    let table = Table::new(rows, widths)
        .header(header)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected(selected);
    canvas.render_stateful_widget(table, area, &mut state);
}

/// Colours help; nothing is told by them alone.
fn style_of(state: &str) -> Style {
    match state {
        "running" => Style::new().fg(Color::Green),
        "failed" => Style::new().fg(Color::Red),
        "held" => Style::new().fg(Color::Yellow),
        _ => Style::new(),
    }
}

fn foot_of(screen: &Screen) -> Paragraph<'_> {
    let text = match &screen.mode {
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
            format!("sort {by} {order}{filter}{paused}  |  ? help  q quit  h hold  r resume  p preempt  / filter")
        }
    };
    Paragraph::new(text)
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
