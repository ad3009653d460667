// SPDX-License-Identifier: GPL-2.0
//! Pictures: what a variant comes to over the length of the slices, on an idle machine and on a busy one.

use super::figures::Row;
use super::Report;
use crate::visit::{Costs, Load, Tenants, Variant};
use anyhow::{anyhow, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::{Path, PathBuf};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Value = fn(&Row) -> Option<f64>;

/// Told apart by most people (Okabe and Ito).
fn color(variant: Variant) -> RGBColor {
    match variant {
        Variant::Fermata => RGBColor(0xd5, 0x5e, 0x00),
        Variant::Sleep => RGBColor(0x00, 0x72, 0xb2),
        Variant::SleepFifo => RGBColor(0x56, 0xb4, 0xe9),
        Variant::Poll => RGBColor(0x00, 0x9e, 0x73),
        Variant::PollFifo => RGBColor(0xcc, 0x79, 0xa7),
        Variant::Completion => RGBColor(0xe6, 0x9f, 0x00),
        Variant::Bound => RGBColor(0x55, 0x55, 0x55),
    }
}

/// A picture of two rows of panels: a value, and another one; idle and busy.
struct Picture {
    file: &'static str,
    title: &'static str,
    values: [(&'static str, Value); 2],
}

fn of(spread: &super::figures::Spread, value: f64) -> Option<f64> {
    (spread.count > 0 && value > 0.0).then_some(value)
}

const PICTURES: [Picture; 3] = [
    Picture {
        file: "bench-gap.svg",
        title: "Gap: PAUSED or FINISH to the next START (an emulator's times)",
        values: [
            ("P50, us", |row| of(&row.gap, row.gap.p50)),
            ("P99, us", |row| of(&row.gap, row.gap.p99)),
        ],
    },
    Picture {
        file: "bench-arrival.svg",
        title: "Urgent work waits: arrival to START (an emulator's times)",
        values: [
            ("P50, us", |row| of(&row.arrival, row.arrival.p50)),
            ("P99, us", |row| of(&row.arrival, row.arrival.p99)),
        ],
    },
    Picture {
        file: "bench-useful.svg",
        title:
            "Part of the time that the slot works, and the same beside what the lower bound allows",
        values: [
            ("useful, %", |row| Some(row.useful * 100.0)),
            ("of the bound's, %", |row| Some(row.useful_of_bound * 100.0)),
        ],
    },
];

/// Draws all into a folder. Returns the files.
pub(crate) fn draw(report: &Report, folder: &Path) -> Result<Vec<PathBuf>> {
    let draw_one = |picture: &Picture| {
        let file = folder.join(picture.file);
        picture.draw(report, &file)?;
        Ok(file)
    };
    PICTURES.iter().map(draw_one).collect()
}

impl Picture {
    fn draw(&self, report: &Report, file: &Path) -> Result<()> {
        let failed = |error: &dyn std::fmt::Display| anyhow!("{}: {error}", file.display());
        let root = SVGBackend::new(file, (1000, 700)).into_drawing_area();
        root.fill(&WHITE).map_err(|e| failed(&e))?;
        let root = root
            .titled(self.title, ("sans-serif", 18))
            .map_err(|e| failed(&e))?;
        let areas = root.split_evenly((2, 2));
        let panels = self.values.iter().flat_map(|value| {
            let of = |load| (value.0, value.1, load);
            Load::ALL.map(of)
        });
        for (area, (name, value, load)) in areas.iter().zip(panels) {
            let caption = format!("{name}, {} machine", load.name());
            panel(area, report, &caption, value, load)
                .map_err(|e| anyhow!("{}: {e}", file.display()))?;
        }
        root.present().map_err(|e| failed(&e))
    }
}

/// One variant's points: length of the slice in milliseconds, value.
fn points(report: &Report, variant: Variant, load: Load, value: Value) -> Vec<(f64, f64)> {
    let rows = report.rows.iter().filter(|row| {
        let cell = row.cell;
        let counts = !matches!(cell.tenants, Tenants::Endless(_));
        counts && cell.variant == variant && cell.load == load && cell.costs == Costs::Even
    });
    let mut points: Vec<_> = rows
        .filter_map(|row| Some((f64::from(row.cell.slice_us) / 1e3, value(row)?)))
        .collect();
    points.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    // What has no slices, or one length only, is a line across.
    if let ([(_, y)], Variant::Completion | Variant::Bound) = (&points[..], variant) {
        return vec![(LEFT, *y), (RIGHT, *y)];
    }
    points
}

/// The lengths of slices, in milliseconds, and some room.
const LEFT: f64 = 0.4;
const RIGHT: f64 = 12.5;

fn panel(area: &Area<'_>, report: &Report, caption: &str, value: Value, load: Load) -> Result<()> {
    let failed = |error: &dyn std::fmt::Display| anyhow!("{error}");
    let variants = Variant::PREEMPTIVE
        .into_iter()
        .chain([Variant::Completion, Variant::Bound]);
    let lines: Vec<_> = variants
        .map(|variant| (variant, points(report, variant, load, value)))
        .filter(|(_, points)| !points.is_empty())
        .collect();
    let values = lines.iter().flat_map(|(_, points)| points).map(|(_, y)| *y);
    let (low, high) = values.fold((f64::MAX, f64::MIN), |(a, b), y| (a.min(y), b.max(y)));
    if low > high {
        return Ok(());
    }
    let down = (low * 0.8)..(high * 1.25);
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 14))
        .margin(8)
        .x_label_area_size(30)
        .y_label_area_size(58)
        .build_cartesian_2d((LEFT..RIGHT).log_scale(), down.log_scale())
        .map_err(|e| failed(&e))?;
    chart
        .configure_mesh()
        .x_desc("slice, ms")
        .x_labels(6)
        .y_labels(6)
        .max_light_lines(1)
        .light_line_style(BLACK.mix(0.04))
        .draw()
        .map_err(|e| failed(&e))?;
    for (variant, points) in lines {
        let color = color(variant);
        let style = color.stroke_width(if variant == Variant::Fermata { 3 } else { 2 });
        chart
            .draw_series(LineSeries::new(points.clone(), style))
            .map_err(|e| failed(&e))?
            .label(variant.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
        let dots = points.iter().filter(|(x, _)| *x > LEFT && *x < RIGHT);
        chart
            .draw_series(dots.map(|point| Circle::new(*point, 3, color.filled())))
            .map_err(|e| failed(&e))?;
    }
    chart
        .configure_series_labels()
        .label_font(("sans-serif", 11))
        .background_style(WHITE.mix(0.7))
        .position(SeriesLabelPosition::UpperRight)
        .draw()
        .map_err(|e| failed(&e))
}
