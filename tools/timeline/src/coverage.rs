// SPDX-License-Identifier: GPL-2.0-or-later
//! Draws spans of a slot so that areas stand for times: a span that is wide enough has a bar of its
//! own. The space between such bars is divided into columns, and the height of a column is divided
//! in proportion to time.

use fermata_picture::svg::number;
use std::fmt::Write as _;

/// Least width of a span with a bar of its own, in pixels.
const WIDE: f64 = 1.0;
/// Width of a column in pixels.
const COLUMN: f64 = 2.0;

/// A span in horizontal pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    /// Index of the colour.
    pub(crate) layer: usize,
    /// Left end.
    pub(crate) from: f64,
    /// Right end.
    pub(crate) to: f64,
}

/// A bar or a column.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cell {
    from: f64,
    to: f64,
    /// Cumulative heights of the layers, as parts of the height.
    tops: Vec<f64>,
}

impl Cell {
    fn new(from: f64, to: f64, layers: usize) -> Self {
        let tops = vec![0.0; layers];
        Self { from, to, tops }
    }

    /// Adds the overlap with a stretch to the stretch's layer; layers are not stacked yet.
    fn add(&mut self, stretch: &Stretch) {
        let common = stretch.to.min(self.to) - stretch.from.max(self.from);
        self.tops[stretch.layer] += common.max(0.0) / (self.to - self.from);
    }

    fn stack(&mut self) {
        let mut top = 0.0;
        for layer in &mut self.tops {
            top += *layer;
            *layer = top;
        }
    }

    /// Returns the top of a layer if the cell has a part of the layer.
    fn top(&self, layer: usize) -> Option<f64> {
        let below = layer.checked_sub(1).map_or(0.0, |below| self.tops[below]);
        let top = self.tops[layer];
        (top > below).then_some(top.min(1.0))
    }
}

/// Returns the cells of ordered stretches that do not overlap; a stretch's layer is less than
/// `layers`.
pub(crate) fn cells(stretches: &[Stretch], layers: usize) -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut narrow = Vec::new();
    let mut end = 0.0;
    for stretch in stretches {
        if stretch.to - stretch.from < WIDE {
            narrow.push(*stretch);
            continue;
        }
        columns(&mut cells, &narrow, (end, stretch.from), layers);
        narrow.clear();
        let mut cell = Cell::new(stretch.from, stretch.to, layers);
        cell.add(stretch);
        cells.push(cell);
        end = stretch.to;
    }
    columns(&mut cells, &narrow, (end, f64::MAX), layers);
    cells.iter_mut().for_each(Cell::stack);
    cells
}

/// Returns the sum of widths of stretches that are too narrow for bars of their own.
pub(crate) fn narrow(stretches: &[Stretch]) -> f64 {
    let widths = stretches.iter().map(|stretch| stretch.to - stretch.from);
    widths.filter(|width| *width < WIDE).sum()
}

/// Adds columns for `narrow`, whose stretches lie between `from` and `to`.
fn columns(cells: &mut Vec<Cell>, narrow: &[Stretch], (from, to): (f64, f64), layers: usize) {
    let mut current: Option<Cell> = None;
    for stretch in narrow {
        let mut at = stretch.from;
        while at < stretch.to {
            if current.as_ref().is_none_or(|cell| cell.to <= at) {
                let left = (at / COLUMN).floor() * COLUMN;
                let (left, right) = (left.max(from), (left + COLUMN).min(to));
                cells.extend(current.replace(Cell::new(left, right, layers)));
            }
            let Some(cell) = &mut current else { break };
            cell.add(stretch);
            at = cell.to;
        }
    }
    cells.extend(current);
}

/// Returns the outline of a layer and all below it in the cells that have a part of the layer, as
/// SVG path data. Cells stand on `base`, and a full cell is `height` pixels high. Layers are
/// painted from the highest to the lowest, so that no background shows between them.
pub(crate) fn outline(cells: &[Cell], layer: usize, base: f64, height: f64) -> String {
    let mut path = String::new();
    let mut end: Option<(f64, String)> = None;
    let close = format!("V{}Z", number(base));
    for cell in cells {
        let Some(top) = cell.top(layer) else { continue };
        let top = number(base - top * height);
        match &end {
            Some((right, last)) if (right - cell.from).abs() < 1e-6 => {
                if *last != top {
                    let _ = write!(path, "H{}V{top}", number(cell.from));
                }
            }
            _ => {
                if let Some((right, _)) = &end {
                    let _ = write!(path, "H{}{close}", number(*right));
                }
                let (left, base) = (number(cell.from), number(base));
                let _ = write!(path, "M{left} {base}V{top}");
            }
        }
        end = Some((cell.to, top));
    }
    if let Some((right, _)) = end {
        let _ = write!(path, "H{}{close}", number(right));
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(layer: usize, from: f64, to: f64) -> Stretch {
        Stretch { layer, from, to }
    }

    #[test]
    fn wide_spans_keep_their_ends_and_narrow_ones_share_columns() {
        let found = cells(
            &[
                stretch(0, 0.5, 4.3),
                stretch(1, 4.3, 4.8),
                stretch(0, 5.0, 5.5),
                stretch(1, 5.8, 6.4),
                stretch(0, 9.0, 10.0),
                stretch(0, 40.1, 40.2),
            ],
            2,
        );
        let told = found.iter().map(|cell| (cell.from, cell.to, &cell.tops));
        let expected = [
            (0.5, 4.3, [1.0, 1.0]),
            (4.3, 6.0, [0.5 / 1.7, 1.2 / 1.7]),
            (6.0, 8.0, [0.0, 0.2]),
            (9.0, 10.0, [1.0, 1.0]),
            (40.0, 42.0, [0.05, 0.05]),
        ];
        assert_eq!(told.len(), expected.len());
        for (found, expected) in told.zip(expected) {
            assert!((found.0 - expected.0).abs() + (found.1 - expected.1).abs() < 1e-9);
            for (found, expected) in found.2.iter().zip(expected.2) {
                assert!((found - expected).abs() < 1e-9, "{found} {expected}");
            }
        }
    }

    #[test]
    fn outlines_join_cells_that_touch() {
        let found = cells(
            &[
                stretch(0, 0.0, 3.0),
                stretch(1, 3.0, 5.5),
                stretch(0, 8.0, 9.5),
            ],
            2,
        );
        assert_eq!(
            outline(&found, 0, 50.0, 40.0),
            "M0 50V10H3V50ZM8 50V10H9.5V50Z"
        );
        assert_eq!(outline(&found, 1, 50.0, 40.0), "M3 50V10H5.5V50Z");
        assert_eq!(outline(&[], 1, 50.0, 40.0), "");
        let stacked = cells(
            &[
                stretch(0, 0.0, 0.5),
                stretch(1, 1.0, 1.5),
                stretch(0, 2.0, 2.5),
            ],
            2,
        );
        assert_eq!(outline(&stacked, 0, 50.0, 40.0), "M0 50V40H4V50Z");
        assert_eq!(outline(&stacked, 1, 50.0, 40.0), "M0 50V30H2V50Z");
    }
}
