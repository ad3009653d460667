// SPDX-License-Identifier: GPL-2.0-or-later
//! Axes: where a value is drawn, and which values have ticks.

use crate::svg::Point;

/// Labels that a logarithmic axis has at least, where the range allows.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
