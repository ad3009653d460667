// SPDX-License-Identifier: GPL-2.0

//! What each has of the time, and what it is due.

use fermata_sched_host::sched::ContextId;
use proptest::prelude::prop_assert;
use proptest::test_runner::TestCaseError;

use super::world::World;

/// What a context has run, in ns.
pub fn ran(world: &World, ctx: ContextId) -> f64 {
    world.stats(ctx).run.as_ns() as f64
}

/// The part of each in what all have.
pub fn shares(had: &[f64]) -> Vec<f64> {
    let all: f64 = had.iter().sum();
    had.iter().map(|had| had / all).collect()
}

/// The share of each differs by less than `most` from what its weight is due.
pub fn check_shares(had: &[f64], weights: &[u16], most: f64) -> Result<(), TestCaseError> {
    let due: Vec<f64> = weights.iter().map(|&weight| weight.into()).collect();
    for (share, due) in shares(had).into_iter().zip(shares(&due)) {
        prop_assert!((share - due).abs() < most, "{share} for {due}: {weights:?}");
    }
    Ok(())
}
