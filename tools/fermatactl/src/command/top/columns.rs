// SPDX-License-Identifier: GPL-2.0
//! The columns of `top`: what stands in them, how wide they are, and how rows are sorted and filtered by them.

use super::sample::{ContextRow, Frame, SlotRow};
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

impl Column {
    pub(super) const ALL: [Self; 14] = [
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

    /// Those that fit in a terminal of this many columns: most fit in 80.
    pub(super) fn shown(width: u16) -> Vec<Self> {
        let fits = |column: &Self| match column {
            Self::Weight => width >= 90,
            Self::Slices => width >= 100,
            _ => true,
        };
        Self::ALL.into_iter().filter(fits).collect()
    }

    pub(super) fn title(self) -> &'static str {
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

    /// Columns of the terminal; the command has what is left.
    pub(super) fn width(self, frame: &Frame) -> u16 {
        match self {
            // Numbers grow with every context that there was.
            Self::Context => context_width(frame),
            Self::Engine => 10,
            Self::State => 8,
            Self::Weight | Self::Slices | Self::Pid => 7,
            Self::Run => 6,
            Self::Slice | Self::Share | Self::Wait | Self::Preemptions => 5,
            Self::Slot | Self::Priority => 2,
            Self::Command => 0,
        }
    }

    pub(super) fn is_number(self) -> bool {
        !matches!(self, Self::State | Self::Engine | Self::Command)
    }

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

fn context_width(frame: &Frame) -> u16 {
    let names = frame
        .contexts()
        .map(|row| frame.name(row.card, row.view.context));
    names
        .map(|name| name.len() as u16)
        .max()
        .unwrap_or(0)
        .max(5)
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

/// Titles of the slots' table, whose widths are [`slot_widths`].
pub(super) const SLOT_TITLES: [&str; 10] = [
    ">SLOT", "ENGINE", ">CTX", ">BUSY%", ">SW/S", ">GAP50", ">GAP99", ">LC50", ">LC99", "FLAGS",
];

/// Columns of the terminal; flags have what is left.
pub(super) fn slot_widths(frame: &Frame) -> [u16; 10] {
    [4, 10, context_width(frame), 5, 5, 6, 6, 6, 6, 0]
}

pub(super) fn slot_cells(row: &SlotRow, frame: &Frame) -> Vec<String> {
    let view = &row.view;
    vec![
        frame.name(row.card, view.slot),
        view.engine_name().into(),
        or_dash(view.context),
        format!("{:.1}", row.busy_percent),
        format!("{:.0}", row.switches_per_second),
        or_dash(row.gap.p50_ns.map(time)),
        or_dash(row.gap.p99_ns.map(time)),
        or_dash(row.latency.p50_ns.map(time)),
        or_dash(row.latency.p99_ns.map(time)),
        view.flags.join(","),
    ]
}
