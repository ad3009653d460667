// SPDX-License-Identifier: GPL-2.0-or-later
//! Legends: marks with names, in as many rows as they need. A legend has a place of its own, beside
//! the data.

use crate::svg::{text_width, Anchor, Color, Point, Svg, LABEL};

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
pub fn height(entries: &[Entry], width: f64) -> f64 {
    rows(entries, width).len() as f64 * ROW
}

/// Draws entries in rows of `width` pixels, the upper left corner at `at`.
pub fn draw(svg: &mut Svg, entries: &[Entry], at: Point, width: f64) {
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
        assert!((height(&entries, 400.0) - rows.len() as f64 * ROW).abs() < 1e-9);
        assert_eq!(super::rows(&entries, 1.0).len(), 20, "one at least");
        assert!(super::rows(&[], 1.0).is_empty());
    }
}
