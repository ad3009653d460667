// SPDX-License-Identifier: GPL-2.0
//! Histograms as they are shown: how often, how long, and percentiles.

use crate::format::time;
use fermata::{lower_bound, Histogram};
use serde::Serialize;

/// A histogram. Percentiles are at most 25 % (or 16 ns) too long; null: there was nothing to measure.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) count: u64,
    pub(crate) mean_ns: Option<u64>,
    pub(crate) min_ns: Option<u64>,
    pub(crate) p50_ns: Option<u64>,
    pub(crate) p90_ns: Option<u64>,
    pub(crate) p99_ns: Option<u64>,
    pub(crate) max_ns: Option<u64>,
    /// Those that are not empty.
    pub(crate) buckets: Vec<Bucket>,
}

/// So many times from this one to below that of the next bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Bucket {
    pub(crate) from_ns: u64,
    pub(crate) count: u64,
}

impl From<&Histogram> for Spread {
    fn from(histogram: &Histogram) -> Self {
        let any = |value: u64| Some(value).filter(|_| histogram.count != 0);
        let counts = histogram.buckets.iter().enumerate();
        Self {
            count: histogram.count,
            mean_ns: histogram.sum.checked_div(histogram.count),
            min_ns: any(histogram.min),
            p50_ns: histogram.quantile(500_000),
            p90_ns: histogram.quantile(900_000),
            p99_ns: histogram.quantile(990_000),
            max_ns: any(histogram.max),
            buckets: counts
                .filter(|(_, count)| **count != 0)
                .map(|(bucket, count)| Bucket {
                    from_ns: lower_bound(bucket),
                    count: *count,
                })
                .collect(),
        }
    }
}

impl Spread {
    /// Titles of [`Spread::cells`].
    pub(crate) const TITLES: [&str; 7] =
        [">COUNT", ">MEAN", ">MIN", ">P50", ">P90", ">P99", ">MAX"];

    pub(crate) fn cells(&self) -> Vec<String> {
        let times = [
            self.mean_ns,
            self.min_ns,
            self.p50_ns,
            self.p90_ns,
            self.p99_ns,
            self.max_ns,
        ];
        let times = times.map(|ns| ns.map_or_else(|| "-".into(), time));
        std::iter::once(self.count.to_string())
            .chain(times)
            .collect()
    }
}

/// What has come since an earlier look at the same histogram. The longest and the shortest are those of all times.
pub(crate) fn since(now: &Histogram, before: &Histogram) -> Histogram {
    let mut new = *now;
    new.count = now.count.saturating_sub(before.count);
    new.sum = now.sum.saturating_sub(before.sum);
    for (count, before) in new.buckets.iter_mut().zip(before.buckets) {
        *count = count.saturating_sub(before);
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_has_no_percentiles() {
        let spread = Spread::from(&Histogram::EMPTY);
        assert_eq!(
            (spread.p99_ns, spread.mean_ns, spread.min_ns),
            (None, None, None)
        );
        assert_eq!(spread.cells(), ["0", "-", "-", "-", "-", "-", "-"]);
    }

    #[test]
    fn only_what_is_new_counts() {
        let mut before = Histogram::EMPTY;
        before.add(1_000_000);
        let mut now = before;
        for _ in 0..10 {
            now.add(1_000);
        }
        let spread = Spread::from(&since(&now, &before));
        assert_eq!((spread.count, spread.mean_ns), (10, Some(1_000)));
        assert!(spread.p99_ns.is_some_and(|ns| ns < 1_250));
        assert_eq!(spread.buckets.len(), 1);
    }
}
