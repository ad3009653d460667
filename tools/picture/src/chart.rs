// SPDX-License-Identifier: GPL-2.0-or-later
//! Line charts: panels beside and below one another, with one legend below all of them, or below each
//! panel. The axes:
//! where a value is drawn, and which values have ticks. And legends: marks with names, in as many rows
//! as they need. A legend has a place of its own, beside the data.

use crate::svg::{text_width, Anchor, Color, Point, Svg, LABEL, TITLE};

const MARGIN: f64 = 12.0;
const TITLE_HEIGHT: f64 = 34.0;
const CAPTION: f64 = 24.0;
const BELOW: f64 = 44.0;
/// About how many markers a line has at most.
const MARKERS: usize = 10;

/// A data series.
#[derive(Clone, Debug)]
pub struct Line {
    /// The name in the legend; lines with the same name have the same colour and marker.
    pub name: String,
    /// The colour.
    pub color: Color,
    /// The number of the marker ([`marker`]).
    pub marker: usize,
    /// The line is emphasized.
    pub bold: bool,
    /// The area below the line is drawn instead, behind the other lines.
    pub is_area: bool,
    /// Across and up, ascending across.
    pub points: Vec<Point>,
    /// The value of the only point holds everywhere: the line extends from end to end.
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
    /// The panel has a legend of its own.
    pub has_legend: bool,
}

/// Draws panels in rows of `columns`.
pub fn draw(title: &str, panels: &[Panel<'_>], columns: usize, (width, height): (f64, f64)) -> Svg {
    let entries = entries(panels.iter().filter(|panel| !panel.has_legend));
    let inner = width - 2.0 * MARGIN;
    let legend = legend_height(&entries, inner);
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
    draw_legend(&mut svg, &entries, at, inner);
    svg
}

fn entries<'a>(panels: impl Iterator<Item = &'a Panel<'a>>) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for line in panels.flat_map(|panel| &panel.lines) {
        if !entries.iter().any(|entry| entry.name == line.name) {
            let mark = if line.is_area {
                Mark::Box(line.color.tint())
            } else {
                Mark::Line(line.color, line.marker)
            };
            entries.push(Entry::new(mark, &line.name));
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
    let own = entries([panel].into_iter().filter(|panel| panel.has_legend));
    let legend = legend_height(&own, width);
    let (top, bottom) = (y + CAPTION, y + height - BELOW - legend);
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
    for line in panel.lines.iter().filter(|line| line.is_area) {
        draw_area(svg, line, &horizontal, &vertical);
    }
    for line in panel.lines.iter().filter(|line| !line.is_area) {
        draw_line(svg, line, &horizontal, &vertical);
    }
    if !own.is_empty() {
        draw_legend(svg, &own, (left, bottom + BELOW - 6.0), width - (left - x));
    }
}

fn draw_area(svg: &mut Svg, line: &Line, horizontal: &Axis, vertical: &Axis) {
    let place = |(x, y): &Point| (horizontal.place(*x), vertical.place(*y));
    let mut corners: Vec<Point> = line.points.iter().map(place).collect();
    let (Some(first), Some(last)) = (corners.first(), corners.last()) else {
        return;
    };
    let base = vertical.pixels.0;
    let ends = [(last.0, base), (first.0, base)];
    corners.extend(ends);
    svg.polygon(&corners, line.color.tint());
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
        marker(svg, end, line.marker, 3.5, line.color);
        return;
    }
    svg.polyline(&points, line.color, width);
    // Lines that lie on one another have their markers at different points.
    let every = points.len().div_ceil(MARKERS).max(1);
    for point in points.into_iter().skip(line.marker % every).step_by(every) {
        marker(svg, point, line.marker, 3.5, line.color);
    }
}

/// The least number of labels on a logarithmic axis, where the range allows.
const LABELS_MIN: usize = 4;

/// How values are spread over an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Equal differences have equal distances.
    Linear,
    /// Equal ratios have equal distances.
    Log,
}

/// An axis: the values `low..high`, drawn between two pixels.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// How values are spread.
    pub scale: Scale,
    /// The least value, which is at `pixels.0`; more than 0 on a logarithmic axis.
    pub low: f64,
    /// The largest value, which is at `pixels.1`.
    pub high: f64,
    /// The ends.
    pub pixels: Point,
}

/// A tick.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// The value.
    pub value: f64,
    /// What is written there; a minor tick has none.
    pub label: Option<String>,
}

/// Returns the range of values that are more than 0, widened by a tenth for a logarithmic axis;
/// `None` without such values.
pub fn log_range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let values = values.filter(|value| value.is_finite() && *value > 0.0);
    let (low, high) = values.fold((f64::MAX, 0.0), |(a, b), v| (v.min(a), v.max(b)));
    (high > 0.0).then_some((low / 1.1, high * 1.1))
}

fn label(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').into()
}

impl Axis {
    /// Returns the pixel of a value.
    pub fn place(&self, value: f64) -> f64 {
        let part = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        self.pixels.0 + part * (self.pixels.1 - self.pixels.0)
    }

    /// Returns ticks in ascending order, about `most` of them with labels on a linear axis.
    pub fn ticks(&self, most: usize) -> Vec<Tick> {
        match self.scale {
            Scale::Linear => self.linear_ticks(most),
            Scale::Log => self.log_ticks(most),
        }
    }

    fn linear_ticks(&self, most: usize) -> Vec<Tick> {
        let least = (self.high - self.low) / most.max(1) as f64;
        let decade = 10_f64.powf(least.log10().floor());
        let (factor, parts) = [(1.0, 5), (2.0, 4), (5.0, 5), (10.0, 5)]
            .into_iter()
            .find(|(factor, _)| factor * decade >= least * 0.999)
            .unwrap_or((10.0, 5));
        let step = factor * decade / f64::from(parts);
        let first = (self.low / step - 1e-6).ceil() as i64;
        let last = (self.high / step + 1e-6).floor() as i64;
        let tick = |n: i64| Tick {
            value: n as f64 * step,
            label: (n % i64::from(parts) == 0).then(|| label(n as f64 * step)),
        };
        (first..=last).map(tick).collect()
    }

    /// Every multiple of a power of ten is a tick. Powers have labels, and multiples of them where
    /// there would be too few labels otherwise.
    fn log_ticks(&self, most: usize) -> Vec<Tick> {
        let labelled: [&[u32]; 4] = [
            &[1],
            &[1, 2, 5],
            &[1, 2, 3, 5],
            &[1, 2, 3, 4, 5, 6, 7, 8, 9],
        ];
        for digits in labelled {
            let ticks = self.decades(digits);
            if ticks.iter().filter(|tick| tick.label.is_some()).count() >= LABELS_MIN {
                return ticks;
            }
        }
        self.linear_ticks(most)
    }

    fn decades(&self, labelled: &[u32]) -> Vec<Tick> {
        let first = self.low.log10().floor() as i32;
        let last = self.high.log10().ceil() as i32;
        let all = (first..=last).flat_map(|power| (1..=9).map(move |digit| (power, digit)));
        let ticks = all.map(|(power, digit)| {
            let value = f64::from(digit) * 10_f64.powi(power);
            let label = labelled.contains(&digit).then(|| label(value));
            Tick { value, label }
        });
        let inside = |tick: &Tick| {
            tick.value >= self.low * (1.0 - 1e-9) && tick.value <= self.high * (1.0 + 1e-9)
        };
        ticks.filter(inside).collect()
    }
}

/// The height of a row of a legend.
pub const ROW: f64 = 20.0;
const MARK: f64 = 18.0;
const SPACE: f64 = 6.0;
const BETWEEN: f64 = 18.0;

/// What stands before a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A box of one colour.
    Box(Color),
    /// A box of two colours, side by side.
    Pair(Color, Color),
    /// A line with the marker number `usize` of [`marker`].
    Line(Color, usize),
    /// A triangle that points down.
    Triangle(Color),
    /// A short vertical line.
    Tick(Color),
    /// Nothing: the name is a remark.
    None,
}

/// An entry.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What stands before the name.
    pub mark: Mark,
    /// The name.
    pub name: String,
}

impl Entry {
    /// Returns an entry.
    pub fn new(mark: Mark, name: impl Into<String>) -> Self {
        let name = name.into();
        Self { mark, name }
    }

    fn width(&self) -> f64 {
        let mark = if self.mark == Mark::None {
            0.0
        } else {
            MARK + SPACE
        };
        mark + text_width(&self.name, LABEL) + BETWEEN
    }
}

/// Draws the marker of a data series: shapes repeat after four.
pub fn marker(svg: &mut Svg, (x, y): Point, number: usize, radius: f64, color: Color) {
    let r = radius * 1.15;
    match number % 4 {
        0 => svg.disk((x, y), radius, color),
        1 => svg.rect(
            (x - radius, y - radius),
            (2.0 * radius, 2.0 * radius),
            color,
        ),
        2 => svg.polygon(&[(x, y - r), (x + r, y + r), (x - r, y + r)], color),
        _ => svg.polygon(&[(x, y - r), (x + r, y), (x, y + r), (x - r, y)], color),
    }
}

/// Draws a triangle that points down to `at`.
pub fn triangle(svg: &mut Svg, (x, y): Point, color: Color) {
    svg.polygon(&[(x, y), (x - 4.5, y - 8.0), (x + 4.5, y - 8.0)], color);
}

/// Breaks entries into rows of `width` pixels.
fn rows(entries: &[Entry], width: f64) -> Vec<&[Entry]> {
    let mut rows = Vec::new();
    let (mut first, mut used) = (0, 0.0);
    for (n, entry) in entries.iter().enumerate() {
        if n > first && used + entry.width() > width {
            rows.push(&entries[first..n]);
            (first, used) = (n, 0.0);
        }
        used += entry.width();
    }
    if first < entries.len() {
        rows.push(&entries[first..]);
    }
    rows
}

/// Returns the height that [`draw`] takes.
pub fn legend_height(entries: &[Entry], width: f64) -> f64 {
    rows(entries, width).len() as f64 * ROW
}

/// Draws entries in rows of `width` pixels, the upper left corner at `at`.
pub fn draw_legend(svg: &mut Svg, entries: &[Entry], at: Point, width: f64) {
    svg.open("legend");
    for (row, n) in rows(entries, width).into_iter().zip(0..) {
        let y = at.1 + (f64::from(n) + 0.5) * ROW;
        let mut x = at.0;
        for entry in row {
            draw_mark(svg, entry.mark, (x, y));
            let mark = if entry.mark == Mark::None {
                0.0
            } else {
                MARK + SPACE
            };
            let text = (x + mark, y);
            svg.text(text, Anchor::Start, LABEL, Color::INK, &entry.name);
            x += entry.width();
        }
    }
    svg.close();
}

fn draw_mark(svg: &mut Svg, mark: Mark, (x, y): Point) {
    let top = (x, y - 6.0);
    match mark {
        Mark::Box(color) => svg.rect(top, (MARK, 12.0), color),
        Mark::Pair(left, right) => {
            svg.rect(top, (MARK / 2.0, 12.0), left);
            svg.rect((x + MARK / 2.0, y - 6.0), (MARK / 2.0, 12.0), right);
        }
        Mark::Line(color, number) => {
            svg.line((x, y), (x + MARK, y), color, 2.0);
            marker(svg, (x + MARK / 2.0, y), number, 3.5, color);
        }
        Mark::Triangle(color) => triangle(svg, (x + MARK / 2.0, y + 4.0), color),
        Mark::Tick(color) => {
            let x = x + MARK / 2.0;
            svg.line((x, y - 4.0), (x, y + 4.0), color, 1.0);
        }
        Mark::None => {}
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
            is_area: false,
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
            has_legend: false,
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

    #[test]
    fn a_panel_may_have_its_own_legend_and_areas() {
        let mut own = panel(100.0);
        own.has_legend = true;
        own.lines[0].is_area = true;
        let text = draw("t", &[own, panel(900.0)], 2, (800.0, 400.0)).finish();
        assert_eq!(text.matches(r#"<g id="legend">"#).count(), 2);
        for name in [">a</text>", ">b</text>"] {
            assert_eq!(text.matches(name).count(), 2);
        }
        // The area is behind the line, and has its colour in the legend.
        let area = format!(r#" fill="{}"/>"#, Color::BLACK.tint());
        let area: Vec<usize> = text.match_indices(&area).map(|(at, _)| at).collect();
        let ink = format!(r#"stroke="{}" stroke-width="1.8""#, Color::INK);
        assert!(area.len() == 2 && area[0] < text.find(&ink).unwrap());
    }

    fn axis(scale: Scale, low: f64, high: f64) -> Axis {
        Axis {
            scale,
            low,
            high,
            pixels: (100.0, 200.0),
        }
    }

    fn labels(axis: &Axis) -> Vec<String> {
        let ticks = axis.ticks(10);
        ticks.into_iter().filter_map(|tick| tick.label).collect()
    }

    #[test]
    fn values_have_their_places() {
        assert!((axis(Scale::Linear, 2.0, 4.0).place(3.0) - 150.0).abs() < 1e-9);
        assert!((axis(Scale::Log, 1.0, 100.0).place(10.0) - 150.0).abs() < 1e-9);
    }

    #[test]
    fn a_logarithmic_axis_has_labels_whatever_its_range() {
        assert_eq!(
            labels(&axis(Scale::Log, 0.5, 2e4)),
            ["1", "10", "100", "1000", "10000"]
        );
        assert_eq!(
            labels(&axis(Scale::Log, 0.4, 12.5)),
            ["0.5", "1", "2", "5", "10"]
        );
        assert_eq!(
            labels(&axis(Scale::Log, 180.0, 900.0)),
            ["200", "300", "400", "500", "600", "700", "800", "900"]
        );
        assert_eq!(
            labels(&axis(Scale::Log, 258.0, 390.0)),
            ["260", "280", "300", "320", "340", "360", "380"]
        );
        for low in [0.001, 0.7, 1.0, 3.0, 99.0] {
            for ratio in [1.05, 1.3, 2.0, 5.0, 10.0, 40.0, 1e4] {
                let count = labels(&axis(Scale::Log, low, low * ratio)).len();
                assert!(
                    (LABELS_MIN..=11).contains(&count),
                    "{low} * {ratio}: {count}"
                );
            }
        }
    }

    #[test]
    fn decades_have_minor_ticks() {
        let ticks = axis(Scale::Log, 1.0, 1e4).ticks(10);
        let minor: Vec<_> = ticks.iter().filter(|tick| tick.label.is_none()).collect();
        assert_eq!((ticks.len(), minor.len()), (37, 32));
    }

    #[test]
    fn a_linear_axis_has_round_labels() {
        assert_eq!(
            labels(&axis(Scale::Linear, 0.0, 60.0)),
            ["0", "10", "20", "30", "40", "50", "60"]
        );
        assert_eq!(
            labels(&axis(Scale::Linear, 0.0, 1.1)),
            ["0", "0.2", "0.4", "0.6", "0.8", "1"]
        );
    }

    #[test]
    fn a_range_has_room() {
        let (low, high) = log_range([f64::NAN, 0.0, 11.0, 100.0].into_iter()).unwrap();
        assert!((low - 10.0).abs() < 1e-9 && (high - 110.0).abs() < 1e-9);
        assert_eq!(log_range([0.0].into_iter()), None);
    }

    #[test]
    fn entries_are_broken_into_rows() {
        let entries: Vec<_> = (0..20)
            .map(|n| Entry::new(Mark::Box(Color::BLACK), format!("tenant {n}")))
            .collect();
        let rows = rows(&entries, 400.0);
        assert_eq!(rows.iter().map(|row| row.len()).sum::<usize>(), 20);
        for row in &rows {
            assert!(row.iter().map(Entry::width).sum::<f64>() <= 400.0);
        }
        assert!((legend_height(&entries, 400.0) - rows.len() as f64 * ROW).abs() < 1e-9);
        assert_eq!(super::rows(&entries, 1.0).len(), 20, "one at least");
        assert!(super::rows(&[], 1.0).is_empty());
    }
}
