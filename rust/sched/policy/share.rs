// SPDX-License-Identifier: GPL-2.0

//! Utilisation shares: a context has its share in percent of one slot whenever it wants it.
//!
//! It is weighted fair with the shares for weights. All shares together are at most nine tenths of the slots
//! (`admission.rs`), and what nobody has reserved is divided between the groups of those without a share, by the weights of the groups,
//! so the weights of all who want a slot never exceed the slots. What is not wanted goes to those who want more, but not to one with a cap (`limit.rs`).

use super::fair::Fair;
use super::{Entry, Policy, Turn};

/// What one percent of a slot weighs.
pub(super) const PERCENT: u32 = 100;

pub(super) struct Share;

impl Policy for Share {
    fn groups(&self, entry: &Entry) -> bool {
        entry.params.share == 0
    }

    fn key(&self, entry: &Entry) -> u64 {
        Fair.key(entry)
    }

    fn turn(&self, runs: &Entry, waits: &Entry) -> Turn {
        Fair.turn(runs, waits)
    }

    fn weight(&self, entry: &Entry, left: u32, all: u64) -> u32 {
        let own = u64::from(entry.params.weight);
        match u32::from(entry.params.share) {
            0 if entry.is_record() => {
                let scaled = u64::from(left) * u64::from(PERCENT) * own;
                u32::try_from(scaled / all.max(1))
                    .unwrap_or(u32::MAX)
                    .max(1)
            }
            0 => entry.params.weight.into(),
            share => share * PERCENT,
        }
    }
}
