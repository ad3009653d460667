// SPDX-License-Identifier: GPL-2.0

//! Utilisation shares: a context has its share in percent of one slot whenever it wants it.
//!
//! It is weighted fair with the shares for weights. All shares together are at most nine tenths of the slots
//! (`admission.rs`), and what nobody has reserved is divided evenly among those without a share, so the weights of all who want a
//! slot never exceed the slots. What is not wanted goes to those who want more, but not to one with a cap (`limit.rs`).

use super::fair::Fair;
use super::{Entry, Policy, Turn};

/// What one percent of a slot weighs.
pub(super) const PERCENT: u32 = 100;

pub(super) struct Share;

impl Policy for Share {
    fn key(&self, entry: &Entry) -> u64 {
        Fair.key(entry)
    }

    fn turn(&self, runs: &Entry, waits: &Entry) -> Turn {
        Fair.turn(runs, waits)
    }

    fn weight(&self, entry: &Entry, left: u32, without: u32) -> u32 {
        match u32::from(entry.params.share) {
            0 => (left.saturating_mul(PERCENT) / without.max(1)).max(1),
            share => share * PERCENT,
        }
    }
}
