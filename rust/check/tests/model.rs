// SPDX-License-Identifier: GPL-2.0

//! The quick configurations, completely: every state, every property (docs/proof.md). Where `FERMATA_MODEL` is set, only those
//! whose name has it in it.

use fermata_check::{breach, checker, unreached, Bounds, QUICK};
use stateright::Checker;

/// More than any of them has: a state space that grows beyond it has a field in its key that counts for ever.
const STATES: usize = 2_000_000;

fn check(chosen: impl Fn(&Bounds) -> bool) {
    let words = std::env::var("FERMATA_MODEL").unwrap_or_default();
    let chosen = |bounds: &&Bounds| bounds.name.contains(&words) && chosen(bounds);
    assert!(QUICK.iter().any(|bounds| chosen(&bounds)), "no {words}");
    for bounds in QUICK.iter().filter(chosen) {
        let checker = checker(bounds).target_state_count(STATES);
        let checker = checker.spawn_bfs().join();
        if let Some(why) = breach(&checker).or_else(|| unreached(&checker)) {
            panic!("{}: {why}", bounds.name);
        }
        assert!(checker.state_count() < STATES, "{} grows", bounds.name);
    }
}

#[test]
fn fermata_profile() {
    check(|bounds| !bounds.base && !bounds.relay);
}

#[test]
fn relay() {
    check(|bounds| bounds.relay);
}

#[test]
fn base_profile() {
    check(|bounds| bounds.base);
}
