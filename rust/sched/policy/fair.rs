// SPDX-License-Identifier: GPL-2.0

//! Weighted fair: time on a slot in proportion to the weights of those that want it.
//!
//! Between groups first, by their weights, and between the contexts of a group then, by theirs. Each of both has a virtual time, which passes while it is on a slot: faster the lower its weight. Whoever's virtual
//! time is least goes first, so all virtual times keep together, and real times are as the weights. One that is still
//! behind the next at the end of its slice runs on until it is not: a switch that would be taken back at once is not made.

use super::{Entry, Policy, Turn};

pub(super) struct Fair;

impl Policy for Fair {
    fn groups(&self, _: &Entry) -> bool {
        true
    }

    fn key(&self, entry: &Entry) -> u64 {
        entry.clock.virtual_ns
    }

    fn turn(&self, runs: &Entry, waits: &Entry) -> Turn {
        let behind = waits.clock.virtual_ns.saturating_sub(runs.clock.virtual_ns);
        Turn::After(runs.real(behind))
    }
}
