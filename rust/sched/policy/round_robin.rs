// SPDX-License-Identifier: GPL-2.0

//! Round robin: one slice each, in the order in which they came.

use super::{Entry, Policy, Turn};

pub(super) struct RoundRobin;

impl Policy for RoundRobin {
    fn key(&self, _: &Entry) -> u64 {
        0
    }

    fn turn(&self, _: &Entry, _: &Entry) -> Turn {
        Turn::Slice
    }
}
