// SPDX-License-Identifier: GPL-2.0

//! A card and a caller in virtual time, to drive the machine.

pub mod card;
pub mod measured;
pub mod relay;
pub mod share;
pub mod world;

use proptest::prelude::ProptestConfig;

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;

/// So many cases, if the environment's PROPTEST_CASES wants no other number. Nothing is kept of those that failed.
pub fn cases(usual: u32) -> ProptestConfig {
    ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").map_or(usual, |n| n.parse().unwrap()),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}
