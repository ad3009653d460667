// SPDX-License-Identifier: GPL-2.0

//! Shares inside a group, beside other groups, on each kind of slot: a relay is told early who runs
//! next, and that must be who has the turn when the slice ends.

use fermata_sched_host::sched::{ContextId, Duration, GroupKey, GroupSettings, Params, PolicyKind};

use crate::model::{ns, sid, SlotPlan, World, BASE, ENDLESS, IRQ, MS, RELAY, US};

const PLANS: [(SlotPlan, &str); 3] = [(BASE, "base"), (IRQ, "irq"), (RELAY, "relay")];

const ABOVE: GroupKey = GroupKey(1);
const A: GroupKey = GroupKey(7);
const B: GroupKey = GroupKey(8);
const OTHERS: [GroupKey; 2] = [GroupKey(9), GroupKey(10)];

fn start(world: &mut World, group: GroupKey, weight: u16, timeslice: u64) -> ContextId {
    let params = Params {
        weight,
        timeslice: Duration::from_ns(timeslice),
        ..Params::DEFAULT
    };
    let ctx = world.open_in(group, 0, params).unwrap();
    world.start(ctx, ENDLESS).unwrap();
    ctx
}

/// Calls `check` for each kind of slot, each policy that shares by weights, and beside no, one and
/// two other groups.
fn each(mut check: impl FnMut(&mut World, f64, &str)) {
    for (plan, name) in PLANS {
        for policy in [PolicyKind::Fair, PolicyKind::Deadline] {
            for beside in 0..=OTHERS.len() {
                let mut world = World::new(&[plan], 16);
                world.set_policy(policy).unwrap();
                for &group in &OTHERS[..beside] {
                    start(&mut world, group, 100, 2 * MS);
                }
                let part = 1.0 / (beside + 1) as f64;
                let what = format!("{name}, {policy:?}, {beside} groups beside");
                check(&mut world, part, &what);
            }
        }
    }
}

/// Checks that two contexts share `part` of the slot so that the second one has `due` of it.
fn check(world: &mut World, who: [ContextId; 2], due: f64, part: f64, what: &str) {
    world.run_for(2_000 * MS);
    let [one, other] = who.map(|ctx| world.stats(ctx).run.as_ns() as f64);
    let found = other / (one + other);
    assert!((found - due).abs() < 0.02, "{found} for {due}: {what}");
    let all = world
        .machine
        .slot_stats(sid(0), ns(world.now))
        .unwrap()
        .busy;
    let found = (one + other) / all.as_ns() as f64;
    assert!((found - part).abs() < 0.03, "{found} for {part}: {what}");
}

#[test]
fn contexts_of_a_group_have_time_by_their_weights() {
    for slices in [[2 * MS; 2], [500 * US, 8 * MS], [8 * MS, 500 * US]] {
        for weights in [[100, 100], [100, 300]] {
            each(|world, part, what| {
                let who = [0, 1].map(|i| start(world, A, weights[i], slices[i]));
                let due = f64::from(weights[1]) / f64::from(weights[0] + weights[1]);
                let what = format!("{what}, weights {weights:?}, slices {slices:?}");
                check(world, who, due, part, &what);
            });
        }
    }
}

#[test]
fn nested_groups_have_time_by_their_weights() {
    each(|world, part, what| {
        world.set_group(ABOVE, GroupSettings::DEFAULT).unwrap();
        for (group, weight) in [(A, 100), (B, 300)] {
            let settings = GroupSettings {
                weight,
                ..GroupSettings::DEFAULT
            };
            world.set_group_below(group, Some(ABOVE), settings).unwrap();
        }
        let who = [start(world, A, 100, 2 * MS), start(world, B, 100, 2 * MS)];
        check(world, who, 0.75, part, what);
    });
}

/// These policies know neither groups nor weights.
#[test]
fn policies_without_weights_give_each_context_as_many_slices() {
    for (plan, name) in PLANS {
        for policy in [PolicyKind::RoundRobin, PolicyKind::Priority] {
            let mut world = World::new(&[plan], 16);
            world.set_policy(policy).unwrap();
            let who = [(A, 100), (A, 300), (B, 100)];
            let who = who.map(|(group, weight)| start(&mut world, group, weight, 2 * MS));
            world.run_for(2_000 * MS);
            let slices = who.map(|ctx| world.stats(ctx).slices);
            let (least, most) = (slices.iter().min(), slices.iter().max());
            assert!(most.unwrap() - least.unwrap() <= 1, "{slices:?}: {name}");
        }
    }
}
