// SPDX-License-Identifier: GPL-2.0-or-later
//! Plots of the variants' figures over the length of slices, on an idle and on a busy machine.

use super::figures::{Row, Spread};
use super::Report;
use crate::visit::{Costs, Load, Tenants, Variant};
use anyhow::{Context as _, Result};
use fermata_picture::axis::{log_range, Scale};
use fermata_picture::chart::{self, Line, Panel, Side};
use fermata_picture::color::palette;
use fermata_picture::svg::Svg;
use std::path::{Path, PathBuf};

type Value = fn(&Row) -> Option<f64>;

/// A plot of two rows of panels, a row for each value; the left panels are for an idle machine, the
/// right ones for a busy machine.
struct Picture {
    file: &'static str,
    title: &'static str,
    /// Name, unit and value.
    values: [(&'static str, &'static str, Value); 2],
    /// The value of a bound, which is measured with one length of slices, is drawn for all lengths.
    bound_is_level: bool,
}

fn p50(spread: &Spread) -> Option<f64> {
    (spread.count > 0).then_some(spread.p50)
}

const PICTURES: [Picture; 3] = [
    Picture {
        file: "bench-gap.svg",
        title: "Gap: PAUSED or FINISH to the next START (an emulator's times)",
        values: [
            ("P50", "us", |row| p50(&row.gap)),
            ("P99", "us", |row| row.gap.p99),
        ],
        bound_is_level: true,
    },
    Picture {
        file: "bench-arrival.svg",
        title: "Urgent work waits: arrival to START (an emulator's times)",
        values: [
            ("P50", "us", |row| p50(&row.arrival)),
            ("P99", "us", |row| row.arrival.p99),
        ],
        bound_is_level: true,
    },
    Picture {
        file: "bench-useful.svg",
        title: "Part of the time that the slot works, and that gaps beyond the card bound's take",
        values: [
            ("useful", "%", |row| Some(row.useful * 100.0)),
            ("lost to gaps", "%", |row| Some(row.lost_to_gaps * 100.0)),
        ],
        bound_is_level: false,
    },
];

/// Draws all plots into a folder. Returns the files.
pub(crate) fn draw(report: &Report, folder: &Path) -> Result<Vec<PathBuf>> {
    let draw_one = |picture: &Picture| {
        let file = folder.join(picture.file);
        let svg = picture.draw(report);
        svg.write(&file)
            .with_context(|| file.display().to_string())?;
        Ok(file)
    };
    PICTURES.iter().map(draw_one).collect()
}

impl Picture {
    fn draw(&self, report: &Report) -> Svg {
        let panels = self
            .values
            .iter()
            .flat_map(|value| Load::ALL.map(|load| self.panel(report, value, load)));
        let panels: Vec<Panel<'_>> = panels.collect();
        chart::draw(self.title, &panels, Load::ALL.len(), (1000.0, 760.0))
    }

    fn panel(
        &self,
        report: &Report,
        (name, unit, value): &(&str, &'static str, Value),
        load: Load,
    ) -> Panel<'static> {
        let variants = Variant::PREEMPTIVE.into_iter().chain([
            Variant::Completion,
            Variant::Bound,
            Variant::CardBound,
        ]);
        let colors = palette(variants.clone().count());
        let lines = variants.zip(colors).zip(0..);
        let lines = lines.map(|((variant, color), marker)| Line {
            name: variant.name().into(),
            color,
            marker,
            bold: variant == Variant::Fermata,
            points: points(report, variant, load, *value),
            is_level: match variant {
                Variant::Completion => true,
                Variant::Bound | Variant::CardBound => self.bound_is_level,
                _ => false,
            },
        });
        let lines: Vec<Line> = lines.filter(|line| !line.points.is_empty()).collect();
        let values = lines.iter().flat_map(|line| &line.points).map(|(_, y)| *y);
        let side = |name, range| Side {
            name,
            scale: Scale::Log,
            range,
        };
        Panel {
            caption: format!("{name}, {unit}, {} machine", load.name()),
            up: log_range(values).map(|range| side(unit, range)),
            across: side("slice, ms", SLICES),
            lines,
        }
    }
}

/// The range of lengths of slices, in milliseconds.
const SLICES: (f64, f64) = (0.4, 12.5);

/// Returns the points of a variant: length of the slice in milliseconds, and value.
fn points(report: &Report, variant: Variant, load: Load, value: Value) -> Vec<(f64, f64)> {
    let rows = report.rows.iter().filter(|row| {
        let cell = row.cell;
        let counts = !matches!(cell.tenants, Tenants::Endless(_));
        counts && cell.variant == variant && cell.load == load && cell.costs == Costs::Even
    });
    let mut points: Vec<_> = rows
        .filter_map(|row| Some((f64::from(row.cell.slice_us) / 1e3, value(row)?)))
        .filter(|(_, value)| *value > 0.0)
        .collect();
    points.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    points
}
