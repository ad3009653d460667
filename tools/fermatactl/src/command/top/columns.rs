// SPDX-License-Identifier: GPL-2.0
//! The columns of contexts: what stands in them, how wide they are, and how rows are sorted and filtered by them.

use super::fit::TableColumn;
use super::sample::{ContextRow, Frame};
use crate::format::{or_dash, time};
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
            // What keeps it from running is what one wants to know of a queued one.
            Self::State => view
                .attributes
                .first()
                .map_or(view.state, |attribute| attribute)
                .into(),
            Self::Engine => view.engine_name().into(),
            Self::Slot => or_dash(view.slot),
            Self::Priority if view.latency_critical => "LC".into(),
            Self::Priority => view.priority.to_string(),
            Self::Weight => view.weight.to_string(),
            Self::Slice => or_dash(view.timeslice_ns.map(time)),
            Self::Share => format!("{:.1}", row.run_percent),
            Self::Run => time(view.run_ns),
            Self::Wait => format!("{:.1}", row.wait_percent),
            Self::Slices => count(view.slices),
            Self::Preemptions => count(view.preemptions),
            Self::Pid => or_dash(view.pid),
            Self::Command => or_dash(view.command.as_deref()),
        }
    }

    /// What comes first in this column: the largest of what counts, the smallest of what names.
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
            Self::Share => b.run_percent.total_cmp(&a.run_percent),
            Self::Run => y.run_ns.cmp(&x.run_ns),
            Self::Wait => b.wait_percent.total_cmp(&a.wait_percent),
            Self::Slices => y.slices.cmp(&x.slices),
            Self::Preemptions => y.preemptions.cmp(&x.preemptions),
            Self::Pid => x.pid.cmp(&y.pid),
            Self::Command => x.command.cmp(&y.command),
        }
    }
}

/// A count in at most five digits and letters.
pub(super) fn count(n: u64) -> String {
    match n {
        0..100_000 => n.to_string(),
        100_000..10_000_000 => format!("{}k", n / 1_000),
        _ => format!("{}M", n / 1_000_000),
    }
}

/// Which contexts are shown, and in which order.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) by: Column,
    pub(super) reversed: bool,
    /// Only rows that have this in what names them: state, engine, command, pid, number.
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

    /// The rows that are shown; those that are equal stay in the order of their numbers.
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
