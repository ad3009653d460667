// SPDX-License-Identifier: GPL-2.0

//! Checks the quick configurations completely: every state, every property (docs/proof.md). If
//! `FERMATA_MODEL` is set, only configurations whose names end with one of its parts, which `;`
//! separates.

use fermata_check::{search, Bounds, QUICK};

/// More states than any configuration has: if a state space exceeds this, a field in its key grows
/// for ever.
const STATES: usize = 2_000_000;

fn check(chosen: impl Fn(&Bounds) -> bool) {
    let words = std::env::var("FERMATA_MODEL").unwrap_or_default();
    let named = |bounds: &Bounds| words.split(';').any(|part| bounds.name.ends_with(part));
    let chosen = |bounds: &&Bounds| named(bounds) && chosen(bounds);
    assert!(QUICK.iter().any(|bounds| chosen(&bounds)), "no {words}");
    for bounds in QUICK.iter().filter(chosen) {
        let search = search(bounds, None, Some(STATES));
        if let Some(why) = search.breach.or(search.unreached) {
            panic!("{}: {why}", bounds.name);
        }
        assert!(search.states < STATES, "{} grows", bounds.name);
    }
}

#[test]
fn irq_profile() {
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
