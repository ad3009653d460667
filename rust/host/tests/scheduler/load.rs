// SPDX-License-Identifier: GPL-2.0

//! Registers that take time to load, before a slice and at whose cost.

use crate::model::world::{sid, World, FERMATA};
use crate::model::{MS, US};
use fermata_sched_host::sched::{ContextId, Duration, GroupKey, LoadCost, PolicyKind, SlotState};

const ENDLESS: u64 = 1_000_000 * MS;
const STEP: u64 = 10 * US;
const SLICE: u64 = 2 * MS;
const CLEARING: u64 = MS;

/// Two contexts, each of a group of its own, with jobs that do not end, on one slot.
fn world() -> (World, [ContextId; 2]) {
    let mut world = World::new(&[FERMATA], 8);
    world.set_policy(PolicyKind::Fair).unwrap();
    let pair = [1, 2].map(|group| world.tenant_in(GroupKey(group), SLICE));
    for ctx in pair {
        world.start(ctx, ENDLESS).unwrap();
    }
    (world, pair)
}

/// Lets time pass until `ctx` is put on the slot.
fn until_started(world: &mut World, ctx: ContextId) {
    let runs = |world: &World| world.machine.slot_state(sid(0)) == Some(SlotState::Running(ctx));
    while runs(world) {
        world.run_for(STEP);
    }
    while !runs(world) {
        world.run_for(STEP);
    }
}

fn clear_after(debtor: ContextId) -> LoadCost {
    LoadCost {
        clearing: Duration::from_ns(CLEARING),
        total: Duration::from_ns(CLEARING + MS / 2),
        debtor: Some((debtor, GroupKey(1))),
    }
}

#[test]
fn a_slice_begins_after_the_load() {
    let (mut world, [writes, waits]) = world();
    until_started(&mut world, waits);
    let (begun, before) = (world.now, world.stats(waits).run);
    world.note_load(0, clear_after(writes));
    until_started(&mut world, writes);
    let took = world.now - begun;
    let least = CLEARING + MS / 2 + SLICE - STEP;
    assert!(took >= least, "{took} ns");
    let charged = world.stats(waits).run.as_ns() - before.as_ns();
    assert!(charged < took - CLEARING + STEP, "{charged} of {took} ns");
}

#[test]
fn clearing_is_charged_to_who_wrote_the_registers() {
    let (mut world, [writes, waits]) = world();
    let mut cleared = 0;
    for _ in 0..200 {
        until_started(&mut world, waits);
        world.note_load(0, clear_after(writes));
        cleared += CLEARING;
    }
    let [paid, had] = [writes, waits].map(|ctx| world.stats(ctx).run.as_ns());
    let apart = (paid + cleared).abs_diff(had);
    assert!(apart < 10 * MS, "{paid} + {cleared} and {had} ns");
}

#[test]
fn clearing_after_a_closed_context_is_charged_to_its_group() {
    let (mut world, [writes, waits]) = world();
    let next = world.tenant_in(GroupKey(1), SLICE);
    until_started(&mut world, waits);
    world.close(writes).unwrap();
    world.start(next, ENDLESS).unwrap();
    world.note_load(0, clear_after(writes));
    let without = {
        let (mut world, [writes, waits]) = self::world();
        let next = world.tenant_in(GroupKey(1), SLICE);
        until_started(&mut world, waits);
        world.close(writes).unwrap();
        world.start(next, ENDLESS).unwrap();
        world.run_for(100 * MS);
        world.stats(next).run
    };
    world.run_for(100 * MS);
    assert!(world.stats(next).run < without);
}
