// SPDX-License-Identifier: GPL-2.0-or-later
//! Weights of the jobs that share a card.

use fermata::GroupSettings;
use serde::{Deserialize, Serialize};

/// The largest weight of a group.
const MOST: u64 = GroupSettings::MAX_WEIGHT as u64;

/// The part of a card that a job has.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Share {
    /// Parts of the card that the job is promised.
    pub(crate) shards: u32,
    /// Its part of what nobody is promised, for each of its shards.
    pub(crate) weight: u32,
}

/// Returns the weight of each job's group: each job has its shards of the card, and the jobs share
/// what is left of the card by shards and weights. Where all jobs together have more than the card,
/// they share the card by shards.
pub(crate) fn weights(shares: &[Share], card: u32) -> Vec<u32> {
    let promised: u64 = shares.iter().map(|share| u64::from(share.shards)).sum();
    let card = u64::from(card).max(promised);
    let left = card - promised;
    let claim = |share: &Share| u64::from(share.shards) * u64::from(share.weight);
    let claims: u64 = shares.iter().map(claim).sum::<u64>().max(1);
    let weight = |share: &Share| {
        // In units of 1 / (card * claims) of the card.
        let part = u64::from(share.shards) * claims + left * claim(share);
        (part * MOST / (card * claims)).clamp(1, MOST) as u32
    };
    shares.iter().map(weight).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(shares: &[(u32, u32)]) -> Vec<u32> {
        let shares: Vec<_> = shares
            .iter()
            .map(|&(shards, weight)| Share { shards, weight })
            .collect();
        weights(&shares, 8)
    }

    #[test]
    fn a_job_alone_has_the_card() {
        assert_eq!(of(&[(1, 1)]), [10_000]);
        assert_eq!(of(&[(8, 10_000)]), [10_000]);
        assert_eq!(of(&[]), [0; 0]);
    }

    #[test]
    fn a_full_card_is_shared_by_shards_whatever_the_weights() {
        assert_eq!(of(&[(6, 1), (2, 10_000)]), [7_500, 2_500]);
    }

    #[test]
    fn weights_share_what_nobody_is_promised() {
        // 2/8 each, and the other 4/8 at 1 to 3.
        assert_eq!(of(&[(2, 100), (2, 300)]), [3_750, 6_250]);
    }

    #[test]
    fn each_job_has_at_least_what_it_is_promised() {
        for first in 1..=8_u32 {
            for second in 1..=8 - first.min(7) {
                for weight in [1, 100, 10_000] {
                    let card = 8.max(first + second);
                    let got = of(&[(first, weight), (second, 100)]);
                    let sum: u32 = got.iter().sum();
                    // A part in ten thousand is rounded away.
                    assert!(
                        u64::from(got[0] + 1) * u64::from(card)
                            >= u64::from(first) * u64::from(sum)
                    );
                    assert!(
                        u64::from(got[1] + 1) * u64::from(card)
                            >= u64::from(second) * u64::from(sum)
                    );
                }
            }
        }
    }

    #[test]
    fn nothing_overflows() {
        let share = Share {
            shards: 1024,
            weight: 10_000,
        };
        assert_eq!(weights(&[share; 256], 1024)[0], 39);
    }
}
