// SPDX-License-Identifier: GPL-2.0-or-later
//! Line charts: panels beside and below one another, with one legend below all of them.

use crate::axis::{Axis, Scale, Tick};
use crate::color::Color;
use crate::legend::{self, Entry, Mark};
use crate::svg::{text_width, Anchor, Point, Svg, LABEL, TITLE};

const MARGIN: f64 = 12.0;
const TITLE_HEIGHT: f64 = 34.0;
const CAPTION: f64 = 24.0;
const BELOW: f64 = 44.0;

/// A data series.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name in the legend; lines of one name have the same colour and marker.
    pub name: String,
    /// The colour.
    pub color: Color,
    /// The number of the marker ([`legend::marker`]).
    pub marker: usize,
    /// It stands out.
    pub bold: bool,
    /// Across and up, ascending across.
    pub points: Vec<Point>,
    /// The value of the only point holds everywhere: the line goes from end to end.
    pub is_level: bool,
}

/// What is along one side of a panel.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// Quantity and unit.
    pub name: &'a str,
    /// How values are spread.
    pub scale: Scale,
    /// The least and the largest value.
    pub range: (f64, f64),
}

/// A chart of several lines.
#[derive(Clone, Debug)]
pub struct Panel<'a> {
    /// What the panel shows.
    pub caption: String,
    /// Across.
    pub across: Side<'a>,
    /// Up; `None`: there is nothing to draw.
    pub up: Option<Side<'a>>,
    /// The series.
    pub lines: Vec<Line>,
}

/// Draws panels in rows of `columns`.
pub fn draw(title: &str, panels: &[Panel<'_>], columns: usize, (width, height): (f64, f64)) -> Svg {
    let entries = entries(panels);
    let inner = width - 2.0 * MARGIN;
    let legend = legend::height(&entries, inner);
    let rows = panels.len().div_ceil(columns);
    let size = (
        inner / columns as f64,
        (height - TITLE_HEIGHT - legend - MARGIN) / rows as f64,
    );
    let mut svg = Svg::new(width, height);
    let middle = (width / 2.0, TITLE_HEIGHT / 2.0);
    svg.text(middle, Anchor::Middle, TITLE, Color::INK, title);
    for (n, panel) in panels.iter().enumerate() {
        let (column, row) = ((n % columns) as f64, (n / columns) as f64);
        let at = (MARGIN + column * size.0, TITLE_HEIGHT + row * size.1);
        draw_panel(&mut svg, panel, at, size);
    }
    let at = (MARGIN, height - legend - MARGIN / 2.0);
    legend::draw(&mut svg, &entries, at, inner);
    svg
}

fn entries(panels: &[Panel<'_>]) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for line in panels.iter().flat_map(|panel| &panel.lines) {
        if !entries.iter().any(|entry| entry.name == line.name) {
            entries.push(Entry::new(Mark::Line(line.color, line.marker), &line.name));
        }
    }
    entries
}

fn draw_panel(svg: &mut Svg, panel: &Panel<'_>, (x, y): Point, (width, height): (f64, f64)) {
    let middle = (x + width / 2.0, y + CAPTION / 2.0);
    svg.text(
        middle,
        Anchor::Middle,
        LABEL + 1.0,
        Color::INK,
        &panel.caption,
    );
    let Some(up) = panel.up else { return };
    let (top, bottom) = (y + CAPTION, y + height - BELOW);
    let axis = |side: &Side<'_>, pixels| Axis {
        scale: side.scale,
        low: side.range.0,
        high: side.range.1,
        pixels,
    };
    let vertical = axis(&up, (bottom, top));
    let ticks = vertical.ticks(8);
    let widths = ticks.iter().filter_map(|tick| tick.label.as_deref());
    let widest = widths
        .map(|label| text_width(label, LABEL))
        .fold(0.0, f64::max);
    let (left, right) = (x + widest + 12.0, x + width - 14.0);
    let horizontal = axis(&panel.across, (left, right));
    across(svg, &horizontal, (top, bottom), panel.across.name);
    for Tick { value, label } in &ticks {
        let y = vertical.place(*value);
        svg.line((left, y), (right, y), grid(label.as_ref()), 1.0);
        if let Some(label) = label {
            svg.line((left - 4.0, y), (left, y), Color::INK, 1.0);
            svg.text((left - 7.0, y), Anchor::End, LABEL, Color::INK, label);
        }
    }
    svg.polyline(
        &[(left, top), (left, bottom), (right, bottom)],
        Color::INK,
        1.0,
    );
    for line in &panel.lines {
        draw_line(svg, line, &horizontal, &vertical);
    }
}

fn grid(label: Option<&String>) -> Color {
    if label.is_some() {
        Color::GRID
    } else {
        Color::FAINT
    }
}

/// Draws an axis along the bottom, its grid lines from `top` on, and its name.
pub fn across(svg: &mut Svg, axis: &Axis, (top, bottom): (f64, f64), name: &str) {
    for Tick { value, label } in axis.ticks(10) {
        let x = axis.place(value);
        svg.line((x, top), (x, bottom), grid(label.as_ref()), 1.0);
        let length = if label.is_some() { 5.0 } else { 3.0 };
        svg.line((x, bottom), (x, bottom + length), Color::INK, 1.0);
        if let Some(label) = label {
            let at = (x, bottom + 13.0);
            svg.text(at, Anchor::Middle, LABEL, Color::INK, &label);
        }
    }
    let at = ((axis.pixels.0 + axis.pixels.1) / 2.0, bottom + 29.0);
    svg.text(at, Anchor::Middle, LABEL, Color::INK, name);
}

fn draw_line(svg: &mut Svg, line: &Line, horizontal: &Axis, vertical: &Axis) {
    let place = |(x, y): &Point| (horizontal.place(*x), vertical.place(*y));
    let width = if line.bold { 3.0 } else { 1.8 };
    let points: Vec<Point> = line.points.iter().map(place).collect();
    if let ([(_, y)], true) = (&points[..], line.is_level) {
        let (left, right) = horizontal.pixels;
        svg.line((left, *y), (right, *y), line.color, width);
        let end = (right - 5.0, *y);
        legend::marker(svg, end, line.marker, 3.5, line.color);
        return;
    }
    svg.polyline(&points, line.color, width);
    for point in points {
        legend::marker(svg, point, line.marker, 3.5, line.color);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(high: f64) -> Panel<'static> {
        let side = |name, range| Side {
            name,
            scale: Scale::Log,
            range,
        };
        let line = |name: &str, color, points| Line {
            name: name.into(),
            color,
            marker: 0,
            bold: false,
            points,
            is_level: false,
        };
        Panel {
            caption: "P50".into(),
            across: side("slice, ms", (0.4, 12.5)),
            up: Some(side("us", (10.0, high))),
            lines: vec![
                line("a", Color::BLACK, vec![(1.0, 10.0), (2.0, high)]),
                line("b", Color::INK, vec![(1.0, high)]),
            ],
        }
    }

    /// The greatest y of a line's point, and the y of the legend's first text.
    #[test]
    fn the_legend_is_below_the_data_and_names_each_line_once() {
        let text = draw("t", &[panel(100.0), panel(900.0)], 2, (800.0, 400.0)).finish();
        let (data, legend) = text.split_once(r#"<g id="legend">"#).unwrap();
        let lowest = data
            .lines()
            .filter(|line| line.starts_with("<polyline"))
            .filter_map(|line| line.split('"').nth(1))
            .flat_map(|points| points.split(' '))
            .filter_map(|point| point.split_once(',')?.1.parse::<f64>().ok())
            .fold(0.0, f64::max);
        let tops = legend.lines().filter_map(|line| {
            let y = line.split(" y=\"").nth(1)?.split('"').next()?;
            y.parse::<f64>().ok()
        });
        assert!(lowest > 200.0 && tops.fold(f64::MAX, f64::min) - LABEL > lowest);
        for name in [">a</text>", ">b</text>"] {
            assert_eq!(legend.matches(name).count(), 1);
            assert_eq!(data.matches(name).count(), 0);
        }
    }
}
