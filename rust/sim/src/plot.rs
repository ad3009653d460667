// SPDX-License-Identifier: GPL-2.0

//! A picture for each workload: LC latency and BE throughput over the load.

use std::path::Path;

use anyhow::{anyhow, Result};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::compare::Row;

const COLORS: [RGBColor; 9] = [
    RGBColor(0xbb, 0xbb, 0xbb),
    RGBColor(0x55, 0x55, 0x55),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x00, 0x00, 0x00),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Value = fn(&Row) -> f64;

/// Draws the rows of one workload to `file`: latencies in the upper three panels, throughput in the last.
///
/// # Errors
///
/// The file cannot be written.
pub fn draw(rows: &[&Row], title: &str, file: &Path) -> Result<()> {
    let rows: Vec<&Row> = rows.iter().copied().filter(|row| !row.natural).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let root = SVGBackend::new(file, (1100, 800)).into_drawing_area();
    let failed = |error: &dyn std::fmt::Display| anyhow!("{}: {error}", file.display());
    root.fill(&WHITE).map_err(|e| failed(&e))?;
    let root = root
        .titled(title, ("sans-serif", 20))
        .map_err(|e| failed(&e))?;
    let panels: [(&str, Value, bool); 4] = [
        ("LC latency P50, ms", |row| row.lc.p50_us / 1e3, true),
        ("LC latency P99, ms", |row| row.lc.p99_us / 1e3, true),
        ("LC latency max, ms", |row| row.lc.max_us / 1e3, true),
        ("BE requests per second", |row| row.be_per_s, false),
    ];
    for (area, (name, value, log)) in root.split_evenly((2, 2)).iter().zip(panels) {
        panel(area, &rows, name, value, log).map_err(|e| failed(&e))?;
    }
    root.present().map_err(|e| failed(&e))
}

fn panel(area: &Area<'_>, rows: &[&Row], name: &str, value: Value, log: bool) -> Result<()> {
    let failed = |error: &dyn std::fmt::Display| anyhow!("{error}");
    let loads = rows.iter().map(|row| row.load * 100.0);
    let (left, right) = loads.fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(x), b.max(x)));
    let drawn = |row: &&&Row| log || row.be.count > 0;
    let values = rows.iter().filter(drawn).map(|row| value(row));
    let (low, high) = values.fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(x), b.max(x)));
    let across = left - 1.0..right + 1.0;
    let mut builder = ChartBuilder::on(area);
    builder
        .caption(name, ("sans-serif", 15))
        .margin(8)
        .x_label_area_size(28)
        .y_label_area_size(52);
    let mut modes: Vec<&str> = rows.iter().map(|row| row.mode.as_str()).collect();
    modes.truncate(
        modes
            .iter()
            .skip(1)
            .position(|mode| *mode == modes[0])
            .map_or(modes.len(), |i| i + 1),
    );
    macro_rules! fill {
        ($chart:expr) => {{
            let mut chart = $chart.map_err(|e| failed(&e))?;
            chart
                .configure_mesh()
                .x_desc("load, %")
                .light_line_style(BLACK.mix(0.05))
                .y_label_formatter(&|y| {
                    format!("{y:.4}")
                        .trim_end_matches('0')
                        .trim_end_matches('.')
                        .to_string()
                })
                .draw()
                .map_err(|e| failed(&e))?;
            for (mode, color) in modes.iter().zip(COLORS.iter().cycle()) {
                let of_mode = rows.iter().filter(|row| row.mode == *mode).filter(drawn);
                let points: Vec<(f64, f64)> =
                    of_mode.map(|row| (row.load * 100.0, value(row))).collect();
                let line = LineSeries::new(points, color.stroke_width(2)).point_size(2);
                let series = chart.draw_series(line).map_err(|e| failed(&e))?;
                series.label(*mode).legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2))
                });
            }
            // One legend is enough; below the throughput there is room.
            if !log {
                chart
                    .configure_series_labels()
                    .position(SeriesLabelPosition::LowerLeft)
                    .draw()
                    .map_err(|e| failed(&e))?;
            }
        }};
    }
    if log {
        fill!(builder.build_cartesian_2d(across, (low * 0.8..high * 1.25).log_scale()));
    } else {
        fill!(builder.build_cartesian_2d(across, 0.0..high * 1.1));
    }
    Ok(())
}
