// SPDX-License-Identifier: GPL-2.0

//! What is made of the samples. All of them are kept, so percentiles are exact.

use serde::Serialize;

/// Latencies of one kind, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// How many samples.
    pub count: usize,
    /// The mean.
    pub mean_us: f64,
    /// Half of the samples are no longer.
    pub p50_us: f64,
    /// 99 of 100 samples are no longer.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Latency {
    /// Of samples in ns, which are sorted by this.
    pub fn of(samples: &mut [u64]) -> Self {
        if samples.is_empty() {
            return Self::default();
        }
        samples.sort_unstable();
        let us = |ns: u64| ns as f64 / 1e3;
        let sum: u128 = samples.iter().map(|&ns| u128::from(ns)).sum();
        Self {
            count: samples.len(),
            mean_us: sum as f64 / samples.len() as f64 / 1e3,
            p50_us: us(rank(samples, 50)),
            p99_us: us(rank(samples, 99)),
            max_us: us(rank(samples, 100)),
        }
    }
}

/// The nearest rank of a percentile in samples that are sorted and not empty.
fn rank(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1]
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "these values are exact")]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let mut samples: Vec<u64> = (1..=200).rev().map(|n| n * 1_000).collect();
        let latency = Latency::of(&mut samples);
        assert_eq!((latency.p50_us, latency.p99_us), (100.0, 198.0));
        assert_eq!((latency.max_us, latency.mean_us), (200.0, 100.5));
        assert_eq!(Latency::of(&mut [7_000]).p99_us, 7.0);
        assert_eq!(Latency::of(&mut []).count, 0);
    }
}
