// SPDX-License-Identifier: GPL-2.0-or-later
//! Converts times of a card's clock to the clock of a trace.
//!
//! The driver sees a run's record after the run has left its slot, and an order for a vacant slot is
//! written before the card takes it. So each run bounds the difference of the clocks from above, and
//! some runs bound it from below. The line through these bounds has the drift of the run ends that
//! were seen soonest, and lies half-way between the bounds.

/// The most by which the two clocks can drift apart; the kernel corrects a clock by no more than
/// half of that.
const DRIFT_MAX: f64 = 1e-3;

/// Bounds of the difference of the clocks. A bound is a time of the card after the first one, and by
/// how much more the trace's clock has advanced, at most or at least.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bounds {
    /// The first times, of the card and of the trace.
    first: Option<(u64, u64)>,
    upper: Vec<(f64, f64)>,
    lower: Vec<(f64, f64)>,
}

/// A straight line from the card's times to those of the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Line {
    first: (u64, u64),
    offset: f64,
    drift: f64,
    /// By how much converted times can be wrong; `None`: a lower bound is missing.
    pub(crate) uncertainty: Option<f64>,
}

impl Bounds {
    /// Notes that the card's time `left` was not after the trace's time `seen`.
    pub(crate) fn not_after(&mut self, left: u64, seen: u64) {
        let bound = self.bound(left, seen);
        self.upper.push(bound);
    }

    /// Notes that the card's time `began` was not before the trace's time `written`.
    pub(crate) fn not_before(&mut self, began: u64, written: u64) {
        let bound = self.bound(began, written);
        self.lower.push(bound);
    }

    fn bound(&mut self, card: u64, trace: u64) -> (f64, f64) {
        let first = *self.first.get_or_insert((card, trace));
        let at = since(first.0, card);
        (at, since(first.1, trace) - at)
    }

    /// Returns the line.
    pub(crate) fn line(mut self) -> Line {
        self.upper.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let hull = lower_hull(&self.upper);
        let count = self.upper.len().max(1) as f64;
        let mean = self.upper.iter().map(|(at, _)| at).sum::<f64>() / count;
        // Of all lines below the upper bounds, this one is the nearest to them.
        let edge = hull
            .windows(2)
            .find(|edge| edge[1].0 >= mean)
            .map_or(0.0, slope);
        let drift = edge.clamp(-DRIFT_MAX, DRIFT_MAX);
        let offsets = |bounds: &[(f64, f64)]| -> Vec<f64> {
            let offsets = bounds.iter().map(|(at, ahead)| ahead - drift * at);
            offsets.collect()
        };
        let most = offsets(&hull).into_iter().fold(f64::INFINITY, f64::min);
        let least = offsets(&self.lower)
            .into_iter()
            .fold(f64::NEG_INFINITY, f64::max);
        let half = (most - least) / 2.0;
        Line {
            first: self.first.unwrap_or_default(),
            offset: match (most.is_finite(), half.is_finite()) {
                (true, true) => most - half,
                (true, false) => most,
                (false, _) => 0.0,
            },
            drift,
            uncertainty: half.is_finite().then_some(half.abs()),
        }
    }
}

impl Line {
    /// Converts a time of the card's clock.
    pub(crate) fn convert(&self, card: u64) -> u64 {
        let at = since(self.first.0, card);
        let ahead = self.offset + self.drift * at;
        self.first
            .1
            .saturating_add_signed((at + ahead).round() as i64)
    }
}

/// Returns `later - earlier`, which may be negative.
fn since(earlier: u64, later: u64) -> f64 {
    (later.wrapping_sub(earlier) as i64) as f64
}

fn slope(edge: &[(f64, f64)]) -> f64 {
    (edge[1].1 - edge[0].1) / (edge[1].0 - edge[0].0)
}

/// Returns the points, sorted by the first coordinate, that have no other points below their
/// connections.
fn lower_hull(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut hull: Vec<(f64, f64)> = Vec::new();
    for &point in points {
        if let Some(last) = hull.last_mut().filter(|last| last.0 >= point.0) {
            last.1 = last.1.min(point.1);
            if last.1 < point.1 {
                continue;
            }
            hull.pop();
        }
        while let [.., before, last] = hull[..] {
            if slope(&[before, last]) < slope(&[last, point]) {
                break;
            }
            hull.pop();
        }
        hull.push(point);
    }
    hull
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A card whose clock starts at 7 s when the trace's is at 1 s and is 100 ppm slow. Runs end
    /// each millisecond, and are seen after a delay.
    fn bounds(delay: impl Fn(u64) -> u64) -> Bounds {
        let mut bounds = Bounds::default();
        for n in 0..1_000 {
            let (card, trace) = at(n * MS);
            bounds.not_after(card, trace + delay(n));
        }
        bounds
    }

    fn at(passed: u64) -> (u64, u64) {
        (7_000 * MS + passed, 1_000 * MS + passed + passed / 10_000)
    }

    #[test]
    fn the_soonest_tell_offset_and_drift() {
        let delay = |n: u64| 20_000 + (n * 7_919 % 97) * 1_000 + (n % 31) * (n % 11) * 10_000;
        let mut bounds = bounds(delay);
        let open = bounds.clone().line();
        assert_eq!(open.uncertainty, None);
        for n in [0, 500, 900] {
            let (card, trace) = at(n * MS);
            let error = open.convert(card).abs_diff(trace + 20_000);
            assert!(error < 3_000, "{n}: {error}");
        }
        for n in [3, 400] {
            let (card, trace) = at(n * MS);
            bounds.not_before(card + 10_000 + n, trace);
        }
        let line = bounds.line();
        for n in [0, 500, 999] {
            let (card, trace) = at(n * MS);
            let error = line.convert(card).abs_diff(trace + 5_000);
            assert!(error < 3_000, "{n}: {error}");
        }
        assert!((line.uncertainty.unwrap() - 15_000.0).abs() < 2_000.0);
    }

    #[test]
    fn two_runs_do_not_tell_a_drift() {
        let mut bounds = Bounds::default();
        bounds.not_after(10 * MS, 30 * MS);
        bounds.not_after(11 * MS, 31 * MS + 400_000);
        let line = bounds.line();
        assert_eq!(line.convert(10 * MS), 30 * MS);
        assert_eq!(line.convert(11 * MS), 31 * MS + 1_000);
    }

    #[test]
    fn nothing_and_one_run() {
        assert_eq!(Bounds::default().line(), Line::default());
        let mut bounds = Bounds::default();
        bounds.not_before(u64::MAX - 5, 100);
        bounds.not_after(4, 130);
        let line = bounds.line();
        assert_eq!(line.uncertainty, Some(10.0));
        // The card's clock may wrap.
        assert_eq!((line.convert(u64::MAX - 5), line.convert(4)), (110, 120));
    }

    #[test]
    fn hulls_are_below_all_points() {
        let points = [
            (0.0, 3.0),
            (1.0, 1.0),
            (1.0, 2.0),
            (2.0, 4.0),
            (3.0, 2.0),
            (4.0, 9.0),
        ];
        assert_eq!(
            lower_hull(&points),
            [(0.0, 3.0), (1.0, 1.0), (3.0, 2.0), (4.0, 9.0)]
        );
        assert_eq!(lower_hull(&[(1.0, 2.0), (1.0, 1.0)]), [(1.0, 1.0)]);
    }
}
