// SPDX-License-Identifier: GPL-2.0

//! The quick configurations, completely: every state, every property (docs/proof.md).

use fermata_check::{failure, Bounds, QUICK};
use stateright::{Checker, HasDiscoveries, Model};

/// More than any of them has: a state space that grows beyond it has a field in its key that counts for ever.
const STATES: usize = 1_000_000;

fn check(chosen: impl Fn(&Bounds) -> bool) {
    for bounds in QUICK.iter().filter(|bounds| chosen(bounds)) {
        let checker = bounds
            .checker()
            .threads(2)
            .target_state_count(STATES)
            .finish_when(HasDiscoveries::AnyFailures)
            .spawn_bfs()
            .join();
        if let Some(why) = failure(&checker) {
            panic!("{}: {why}", bounds.name);
        }
        assert!(checker.state_count() < STATES, "{} grows", bounds.name);
    }
}

#[test]
fn fermata_profile() {
    check(|bounds| !bounds.base);
}

#[test]
fn base_profile() {
    check(|bounds| bounds.base);
}
