// SPDX-License-Identifier: GPL-2.0
//! The columns of the slots.

use super::fit::TableColumn;
use super::sample::{Frame, SlotRow};
use crate::format::{or_dash, time};

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

impl SlotColumn {
    pub(super) fn cell(self, row: &SlotRow, frame: &Frame) -> String {
        let view = &row.view;
        match self {
            Self::Slot => frame.name(row.card, view.slot),
            Self::Engine => view.engine_name().into(),
            Self::Context => or_dash(view.context),
            Self::Busy => format!("{:.1}", row.busy_percent),
            Self::Switches => format!("{:.0}", row.switches_per_second),
            Self::Gap50 => or_dash(row.gap.p50_ns.map(time)),
            Self::Gap99 => or_dash(row.gap.p99_ns.map(time)),
            Self::Latency50 => or_dash(row.latency.p50_ns.map(time)),
            Self::Latency99 => or_dash(row.latency.p99_ns.map(time)),
            Self::Flags => view.flags.join(","),
        }
    }
}
