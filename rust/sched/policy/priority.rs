// SPDX-License-Identifier: GPL-2.0

//! Strict priority: the highest that wants a slot has it, at once; equals take turns.
//!
//! That nobody starves is the business of the starvation guard (`guard.rs`), which works under every policy.

use super::{Entry, Policy, Turn};

pub(super) struct Priority;

impl Policy for Priority {
    fn key(&self, entry: &Entry) -> u64 {
        u64::from(u8::MAX - entry.params.priority)
    }

    fn turn(&self, runs: &Entry, waits: &Entry) -> Turn {
        Turn::by(self.key(waits), self.key(runs)).unwrap_or(Turn::Slice)
    }
}
