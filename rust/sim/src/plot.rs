// SPDX-License-Identifier: GPL-2.0

//! A picture for each workload: LC latency and BE throughput over the load.

use std::path::Path;

use anyhow::{Context, Result};
use fermata_picture::axis::{log_range, Scale};
use fermata_picture::chart::{self, Line, Panel, Side};
use fermata_picture::color::{palette, Color};

use crate::compare::{Row, REFERENCES};

type Value = fn(&Row) -> f64;

/// Of isolated and alone; the modes have the palette's.
const REFERENCE_COLORS: [Color; REFERENCES] = [Color(0xaa, 0xaa, 0xaa), Color(0x55, 0x55, 0x55)];

/// Draws the rows of one workload to `file`: latencies in three panels, throughput in the last.
///
/// # Errors
///
/// The file cannot be written.
pub fn draw(rows: &[&Row], title: &str, file: &Path) -> Result<()> {
    let rows: Vec<&Row> = rows.iter().copied().filter(|row| !row.natural).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let panels: [(&str, &str, Value, Scale); 4] = [
        (
            "LC latency P50",
            "ms",
            |row| row.lc.p50_us / 1e3,
            Scale::Log,
        ),
        (
            "LC latency P99",
            "ms",
            |row| row.lc.p99_us / 1e3,
            Scale::Log,
        ),
        (
            "LC latency max",
            "ms",
            |row| row.lc.max_us / 1e3,
            Scale::Log,
        ),
        (
            "BE requests",
            "per second",
            |row| row.be_per_s,
            Scale::Linear,
        ),
    ];
    let panels = panels.map(|(name, unit, value, scale)| panel(&rows, (name, unit), value, scale));
    let svg = chart::draw(title, &panels, 2, (1100.0, 820.0));
    svg.write(file).with_context(|| file.display().to_string())
}

/// The modes of a workload's rows, which repeat with each load.
fn modes<'a>(rows: &[&'a Row]) -> Vec<&'a str> {
    let mut modes: Vec<&str> = Vec::new();
    for row in rows {
        if !modes.contains(&row.mode.as_str()) {
            modes.push(&row.mode);
        }
    }
    modes
}

fn panel<'a>(
    rows: &[&Row],
    (name, unit): (&str, &'a str),
    value: Value,
    scale: Scale,
) -> Panel<'a> {
    let modes = modes(rows);
    let colors = palette(modes.len());
    let colors = REFERENCE_COLORS.into_iter().chain(colors);
    let lines = modes.iter().zip(colors).enumerate();
    let lines = lines.map(|(marker, (mode, color))| {
        let rows = rows.iter().filter(|row| row.mode == *mode);
        // References have no BE requests.
        let rows = rows.filter(|row| scale == Scale::Log || row.be.count > 0);
        Line {
            name: (*mode).into(),
            color,
            marker,
            // What others are compared with is seen beside them where they are equal.
            bold: marker < REFERENCES,
            points: rows.map(|row| (row.load * 100.0, value(row))).collect(),
            is_level: false,
        }
    });
    let lines: Vec<Line> = lines.filter(|line| !line.points.is_empty()).collect();
    let points = || lines.iter().flat_map(|line| &line.points);
    let loads = points().map(|(load, _)| *load);
    let (left, right) = loads.fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(x), b.max(x)));
    let values = log_range(points().map(|(_, value)| *value));
    let range = values.map(|(low, high)| match scale {
        Scale::Log => (low, high),
        Scale::Linear => (0.0, high),
    });
    Panel {
        caption: format!("{name}, {unit}"),
        across: Side {
            name: "load, %",
            scale: Scale::Linear,
            range: (left - 1.0, right + 1.0),
        },
        up: range.map(|range| Side {
            name: unit,
            scale,
            range,
        }),
        lines,
    }
}
