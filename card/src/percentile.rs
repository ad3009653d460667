// SPDX-License-Identifier: GPL-2.0
//! Percentiles of samples.

/// The nearest-rank percentile of `sorted`, which must ascend: the least sample that at least `percent` % of all samples do not
/// exceed. 0 gives the smallest sample, 100 and above the largest one. `None` if there are no samples.
pub fn nearest_rank(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    let last = sorted.len().checked_sub(1)?;
    sorted.get(rank.saturating_sub(1).min(last)).copied()
}

#[cfg(test)]
mod tests {
    use super::nearest_rank;

    #[test]
    fn ranks_are_rounded_up() {
        let samples = [10, 20, 30, 40, 50];
        let found = [0, 20, 21, 50, 99, 100, 101].map(|percent| nearest_rank(&samples, percent));
        assert_eq!(found, [10, 10, 20, 30, 50, 50, 50].map(Some));
        assert_eq!(nearest_rank(&[7], 1), Some(7));
        assert_eq!(nearest_rank(&[], 50), None);
    }
}
