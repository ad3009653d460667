// SPDX-License-Identifier: GPL-2.0

//! Earliest deadline first, for contexts with a reservation; the others share what is left as under weighted fair.
//!
//! The budget is enforced and the deadline kept by the limits (`limit.rs`), the load is bounded by the admission test
//! (`admission.rs`).

use super::fair::Fair;
use super::{Entry, Policy, Turn};

pub(super) struct Deadline;

impl Policy for Deadline {
    fn groups(&self, entry: &Entry) -> bool {
        entry.deadline().is_none()
    }

    fn key(&self, entry: &Entry) -> u64 {
        match entry.deadline() {
            Some(deadline) => deadline.as_ns(),
            None => Fair.key(entry),
        }
    }

    fn turn(&self, runs: &Entry, waits: &Entry) -> Turn {
        match (runs.deadline(), waits.deadline()) {
            (Some(runs), Some(waits)) => Turn::by(waits, runs).unwrap_or(Turn::Never),
            _ => Fair.turn(runs, waits),
        }
    }
}
