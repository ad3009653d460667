// SPDX-License-Identifier: GPL-2.0
//! The picture: slots are rows, jobs are colours; saves and restores are lighter. What is too short to be seen is left out.

use crate::driver::{ARRIVAL, HINT};
use crate::spans::{Doing, Span, Timeline};
use anyhow::{anyhow, Result};
use plotters::prelude::*;
use std::path::Path;

/// Told apart by most people (Okabe and Ito).
const COLORS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x55, 0x55, 0x55),
];
/// What is drawn as a point above the slots, and what the legend says of it.
const POINTS: &[(&str, RGBColor, &str)] = &[
    (ARRIVAL, RGBColor(0xc0, 0x00, 0x00), "urgent work arrives"),
    (HINT, RGBColor(0x80, 0x80, 0x80), "hint"),
];
const WIDTH: u32 = 1100;
/// How much longer the axis is than the time, so that the legend hides nothing.
const LEGEND: f64 = 1.16;
/// With more events than this, single PAUSEs are not to be told apart.
const PAUSES_MAX: usize = 600;
/// Of a row, and of title, axis and legend.
const ROW: u32 = 60;
const FRAME: u32 = 130;
/// Of a row's height: empty above and below its bar.
const MARGIN: f64 = 0.2;

/// Draws a timeline; `name` says what a job is called.
pub fn draw(
    timeline: &Timeline,
    title: &str,
    name: &dyn Fn(u64) -> String,
    file: &Path,
) -> Result<()> {
    let failed = |error: &dyn std::fmt::Display| anyhow!("{}: {error}", file.display());
    let slots = timeline.slots();
    let rows = slots.len().max(1);
    let root = SVGBackend::new(file, (WIDTH, FRAME + ROW * rows as u32)).into_drawing_area();
    root.fill(&WHITE).map_err(|e| failed(&e))?;
    let ms = |ns: u64| ns as f64 / 1e6;
    // The first slot is on top, and there is room for marks above it.
    let row = |slot: usize| {
        let place = slots.iter().position(|of| *of == slot);
        (rows - 1 - place.unwrap_or(0)) as f64
    };
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(35)
        .y_label_area_size(110)
        .build_cartesian_2d(
            0.0..ms(timeline.length().max(1)) * LEGEND,
            0.0..rows as f64 + 0.4,
        )
        .map_err(|e| failed(&e))?;
    let label = |y: &f64| {
        let place = rows as f64 - 0.5 - y;
        let at_middle = place >= 0.0 && (place - place.round()).abs() < 0.01;
        let slot = slots.get(place.round() as usize).filter(|_| at_middle);
        slot.map_or(String::new(), |slot| {
            format!("{slot} {}", timeline.engines[*slot])
        })
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .x_desc("ms")
        .y_labels(4 * rows + 1)
        .y_label_formatter(&label)
        .light_line_style(BLACK.mix(0.05))
        .draw()
        .map_err(|e| failed(&e))?;
    let seen = visible(timeline);
    for (number, job) in timeline.jobs().into_iter().enumerate() {
        let color = COLORS[number % COLORS.len()];
        let spans = seen.iter().filter(|span| span.job == job);
        let bars = spans.map(|span| {
            let (style, height) = match span.doing {
                Doing::Run => (color.filled(), 1.0 - 2.0 * MARGIN),
                Doing::Restore | Doing::Save => (color.mix(0.35).filled(), 1.0 - 2.0 * MARGIN),
                Doing::Gap => (BLACK.mix(0.6).filled(), 0.1),
            };
            let bottom = row(span.slot) + MARGIN;
            let corners = [(ms(span.from), bottom), (ms(span.to), bottom + height)];
            Rectangle::new(corners, style)
        });
        chart
            .draw_series(bars)
            .map_err(|e| failed(&e))?
            .label(name(job))
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], color.filled()));
    }
    let pauses = timeline.instants.iter().filter_map(|instant| {
        let slot = instant.slot.filter(|_| instant.what.starts_with("PAUSE"))?;
        let (x, bottom) = (ms(instant.at), row(slot));
        let ends = [(x, bottom + 0.1), (x, bottom + 0.9)];
        Some(PathElement::new(ends, BLACK.mix(0.6).stroke_width(1)))
    });
    if timeline.instants.len() <= PAUSES_MAX {
        chart.draw_series(pauses).map_err(|e| failed(&e))?;
    }
    let of_card = || timeline.instants.iter().filter(|i| i.slot.is_none());
    for (what, color, legend) in POINTS {
        let mut points = of_card().filter(|instant| instant.what == *what).peekable();
        if points.peek().is_none() {
            continue;
        }
        let top = rows as f64 + 0.15;
        let points = points.map(|i| TriangleMarker::new((ms(i.at), top), 5, color.filled()));
        chart
            .draw_series(points)
            .map_err(|e| failed(&e))?
            .label(*legend)
            .legend(move |(x, y)| TriangleMarker::new((x + 7, y), 5, color.filled()));
    }
    let marks = of_card().filter(|instant| POINTS.iter().all(|(what, ..)| instant.what != *what));
    let marks = marks.map(|mark| {
        let at = (ms(mark.at), rows as f64 + 0.3);
        Text::new(mark.what.clone(), at, ("sans-serif", 12))
    });
    chart.draw_series(marks).map_err(|e| failed(&e))?;
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .position(SeriesLabelPosition::MiddleRight)
        .draw()
        .map_err(|e| failed(&e))?;
    root.present().map_err(|e| failed(&e))
}

/// The spans but those that lie in one pixel with the span before them on their slot.
fn visible(timeline: &Timeline) -> Vec<Span> {
    let pixel = (timeline.length() / u64::from(WIDTH)).max(1);
    let mut last = vec![None; timeline.engines.len()];
    let shown = timeline.spans.iter().filter(|span| {
        let place = &mut last[span.slot];
        let is_seen = span.to > span.from && *place != Some(span.to / pixel);
        *place = Some(span.to / pixel);
        is_seen
    });
    shown.copied().collect()
}
