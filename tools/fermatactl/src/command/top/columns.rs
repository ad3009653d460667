// SPDX-License-Identifier: GPL-2.0-or-later
//! The columns of contexts and of slots: their contents, sorting and filtering by them, and the
//! choice for a narrow terminal. A number is shown completely or not at all, since a number without
//! its last digits looks like another number.

use super::sample::{ContextRow, Frame, SlotRow};
use crate::format::{or_dash, time, Spread};
use std::cmp::Ordering;

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
    /// Times put on a slot
    Slices,
    /// Times taken off before the job's end
    Preemptions,
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
        Self::Slices,
        Self::Preemptions,
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
        Self::Engine,
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
            Self::Slices => "SLICES",
            Self::Preemptions => "PREEM",
            Self::Pid => "PID",
            Self::Command => "COMMAND",
        }
    }

    fn is_number(self) -> bool {
        !matches!(self, Self::State | Self::Engine | Self::Command)
    }

    fn width(self) -> u16 {
        match self {
            Self::Engine => 10,
            Self::State | Self::Command => 8,
            Self::Weight | Self::Slices | Self::Pid => 7,
            Self::Run => 6,
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
            // For a queued context, the reason that keeps it from running is of interest.
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
            Self::Slices => or_dash(view.slices.map(count)),
            Self::Preemptions => or_dash(view.preemptions.map(count)),
            Self::Pid => or_dash(view.pid),
            Self::Command => or_dash(view.command.as_deref()),
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
            Self::Slices => y.slices.cmp(&x.slices),
            Self::Preemptions => y.preemptions.cmp(&x.preemptions),
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
    /// Text that state, engine, command, pid or number must contain.
    pub(super) filter: String,
}

impl Order {
    fn shows(&self, row: &ContextRow, frame: &Frame) -> bool {
        const NAMES: [Column; 5] = [
            Column::Context,
            Column::State,
            Column::Engine,
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

    /// Returns the width of a text column, or the least width of a column of numbers.
    fn width(self) -> u16;
}

/// A shown column, and its width.
pub(super) type Shown<C> = (C, u16);

/// Returns the columns that fit into `width` with a blank between two, and their widths: a column
/// of numbers is as wide as the longest of its `cells`, and the last column gets the remaining
/// width if it has text.
pub(super) fn fitting<C: TableColumn>(
    width: u16,
    cells: impl Fn(C) -> Vec<String>,
) -> Vec<Shown<C>> {
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
pub(super) fn first_that_fit(width: u16, parts: &[String]) -> String {
    let mut text = String::new();
    for part in parts {
        if text.chars().count() + part.chars().count() > width.into() {
            break;
        }
        text += part;
    }
    text
}

/// Shortens a text to `width`; an ellipsis marks a shortened text.
pub(super) fn shortened(width: u16, text: &str) -> String {
    let width = usize::from(width);
    if text.chars().count() <= width {
        return text.into();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    kept + "…"
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

    #[test]
    fn texts_show_that_they_are_cut() {
        assert_eq!(shortened(5, "12345"), "12345");
        assert_eq!(shortened(4, "12345"), "123…");
        assert_eq!(shortened(1, "12345"), "…");
    }
}
