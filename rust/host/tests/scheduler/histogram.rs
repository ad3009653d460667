// SPDX-License-Identifier: GPL-2.0

//! The buckets and quantiles of a histogram, against the spans themselves.

use fermata_sched_host::measure::{bucket_of, lower_bound, Histogram, BUCKETS};
use proptest::prelude::*;

/// Spans of all magnitudes.
fn span() -> impl Strategy<Value = u64> {
    (0..64u32, any::<u64>()).prop_map(|(shift, bits)| bits >> shift)
}

fn of(spans: &[u64]) -> Histogram {
    let mut histogram = Histogram::EMPTY;
    spans.iter().for_each(|&span| histogram.add(span));
    histogram
}

/// The span that so many of them do not exceed.
fn exact(sorted: &[u64], millionths: u32) -> u64 {
    let rank = (sorted.len() as u64 * u64::from(millionths)).div_ceil(1_000_000);
    sorted[rank.max(1) as usize - 1]
}

#[test]
fn buckets_follow_each_other() {
    assert_eq!(lower_bound(0), 0);
    for bucket in 0..BUCKETS {
        let (first, next) = (lower_bound(bucket), lower_bound(bucket + 1));
        assert!(first < next);
        assert_eq!(bucket_of(first), bucket);
        assert_eq!(bucket_of(next - 1), bucket);
        // No wider than a quarter of its beginning, or 16 ns.
        assert!(next - first <= (first / 4).max(16), "bucket {bucket}");
    }
    assert_eq!(lower_bound(BUCKETS), 1 << 37);
    assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    assert_eq!(lower_bound(usize::MAX), lower_bound(BUCKETS));
}

#[test]
fn the_bounds_that_the_header_tells() {
    for bucket in 0..=BUCKETS as u64 {
        let told = if bucket < 4 {
            16 * bucket
        } else {
            (4 + bucket % 4) << (bucket / 4 + 3)
        };
        assert_eq!(lower_bound(bucket as usize), told);
    }
}

#[test]
fn nothing_has_no_quantile() {
    assert_eq!(Histogram::EMPTY.quantile(500_000), None);
    assert_eq!(Histogram::EMPTY, Histogram::default());
    assert_eq!(of(&[]).max, 0);
}

#[test]
fn a_sum_that_does_not_fit_stands() {
    let histogram = of(&[u64::MAX, u64::MAX]);
    assert_eq!((histogram.count, histogram.sum), (2, u64::MAX));
    assert_eq!(histogram.quantile(500_000), Some(u64::MAX));
}

proptest! {
    #[test]
    fn a_span_is_in_its_bucket(span in span()) {
        let bucket = bucket_of(span);
        prop_assert!(lower_bound(bucket) <= span);
        prop_assert!(span < lower_bound(bucket + 1) || bucket == BUCKETS - 1);
    }

    #[test]
    fn what_was_added_is_there(spans in prop::collection::vec(span(), 1..200)) {
        let histogram = of(&spans);
        prop_assert_eq!(histogram.count, spans.len() as u64);
        prop_assert_eq!(histogram.buckets.iter().sum::<u64>(), histogram.count);
        prop_assert_eq!(histogram.sum, spans.iter().fold(0u64, |sum, span| sum.saturating_add(*span)));
        prop_assert_eq!(Some(&histogram.min), spans.iter().min());
        prop_assert_eq!(Some(&histogram.max), spans.iter().max());
    }

    #[test]
    fn quantiles_are_right_within_a_quarter(
        spans in prop::collection::vec(span(), 1..200),
        millionths in 0..=1_000_000u32,
    ) {
        let histogram = of(&spans);
        let mut sorted = spans;
        sorted.sort_unstable();
        let (exact, told) = (exact(&sorted, millionths), histogram.quantile(millionths).unwrap());
        prop_assert!(told >= exact);
        if exact < lower_bound(BUCKETS - 1) {
            prop_assert!(told - exact < (exact / 4).max(16), "{told} for {exact}");
        }
        prop_assert!(told <= histogram.max);
    }

    #[test]
    fn quantiles_rise(spans in prop::collection::vec(span(), 1..50), a in 0..=1_000_000u32, b in 0..=1_000_000u32) {
        let histogram = of(&spans);
        prop_assert!(histogram.quantile(a.min(b)) <= histogram.quantile(a.max(b)));
    }

    #[test]
    fn two_in_one_are_all_of_both(
        some in prop::collection::vec(span(), 0..50),
        others in prop::collection::vec(span(), 0..50),
    ) {
        let mut merged = of(&some);
        merged.merge(&of(&others));
        prop_assert_eq!(merged, of(&[some, others].concat()));
    }
}
