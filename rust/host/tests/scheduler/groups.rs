// SPDX-License-Identifier: GPL-2.0

//! Groups of contexts.

use std::collections::HashSet;

use crate::model::world::{ns, sid, SlotPlan, World, FERMATA};
use crate::model::MS;
use fermata_sched_host::sched::{
    Action, ContextConfig, ContextId, GroupKey, GroupStats, JobState, Params, Refusal, Scheduler,
    SlotState, Urgency,
};
use fermata_sched_host::{card, storage};

const A: GroupKey = GroupKey(7);
const B: GroupKey = GroupKey(u64::MAX);

fn join(world: &mut World, group: GroupKey) -> ContextId {
    world.open_in(group, 0, Params::DEFAULT).unwrap()
}

fn stats(world: &World, group: GroupKey) -> GroupStats {
    world.machine.group_stats(group, ns(world.now))
}

#[test]
fn a_group_counts_what_its_contexts_do() {
    let mut world = World::new(
        &[
            FERMATA,
            SlotPlan {
                class: 1,
                ..FERMATA
            },
        ],
        8,
    );
    let urgent = Params {
        urgency: Urgency::LatencyCritical,
        ..Params::DEFAULT
    };
    let plain = join(&mut world, A);
    let other = world.open_in(A, 1, Params::DEFAULT).unwrap();
    let quick = world.open_in(A, 0, urgent).unwrap();
    let foreign = join(&mut world, B);
    for ctx in [plain, other, quick, foreign] {
        world.start(ctx, 3 * MS).unwrap();
    }
    world.run_for(100 * MS);
    let run = |ctx| world.stats(ctx).run;
    let sum = run(plain) + run(other) + run(quick);
    let expected = GroupStats {
        contexts: 3,
        weight: 100,
        run: sum,
    };
    assert_eq!(stats(&world, A), expected);
    assert_eq!(stats(&world, B).run, run(foreign));
    assert_eq!(world.machine.group_of(quick), Ok(A));
    // What was done before the urgency changed stays counted.
    world.set_params(quick, Params::DEFAULT).unwrap();
    assert_eq!(stats(&world, A), expected);
    for ctx in [plain, other, quick] {
        world.close(ctx).unwrap();
    }
    assert_eq!(world.machine.group_of(plain), Err(Refusal::NoContext));
    let gone = GroupStats {
        contexts: 0,
        ..expected
    };
    assert_eq!(stats(&world, A), gone, "it is remembered");
    join(&mut world, A);
    assert_eq!(stats(&world, A).run, sum);
}

/// A card with room for so many contexts, and so many groups.
fn machine(contexts: usize, groups: usize) -> Scheduler {
    Scheduler::new(&card(1), storage(contexts, groups))
}

fn add(machine: &mut Scheduler, group: u64) -> Result<ContextId, Refusal> {
    machine.add(ContextConfig {
        class: 0,
        params: Params::DEFAULT,
        group: GroupKey(group),
    })
}

#[test]
fn every_group_is_found_again() {
    const CONTEXTS: usize = 300;
    // Keys in a row, and keys that differ in high bits only.
    for shift in [0, 8, 32, 50] {
        let mut machine = machine(CONTEXTS, CONTEXTS);
        let key = |i: usize| (i as u64) << shift;
        let all: Vec<_> = (0..CONTEXTS)
            .map(|i| add(&mut machine, key(i)).unwrap())
            .collect();
        assert_eq!(add(&mut machine, key(0)), Err(Refusal::NoSpace));
        let close = |machine: &mut Scheduler, ctx| {
            let event = fermata_sched_host::sched::Event::Close { ctx };
            machine.handle(ns(1), event, &mut |_| ()).unwrap();
        };
        for (i, &ctx) in all.iter().enumerate() {
            assert_eq!(machine.group_of(ctx), Ok(GroupKey(key(i))));
            assert_eq!(machine.group_stats(GroupKey(key(i)), ns(1)).contexts, 1);
        }
        // Half of them go, and others come in their place, for which they are forgotten.
        for &ctx in all.iter().step_by(2) {
            close(&mut machine, ctx);
        }
        for i in 0..CONTEXTS / 2 {
            add(&mut machine, key(CONTEXTS + i)).unwrap();
        }
        for i in 0..CONTEXTS + CONTEXTS / 2 {
            let stays = i >= CONTEXTS || i % 2 == 1;
            let stats = machine.group_stats(GroupKey(key(i)), ns(1));
            assert_eq!(stats.contexts, u32::from(stays), "group {i}");
        }
    }
}

#[test]
fn without_a_place_for_its_group_a_context_is_refused() {
    let mut machine = machine(3, 1);
    add(&mut machine, 1).unwrap();
    let before = machine.clone();
    assert_eq!(add(&mut machine, 2), Err(Refusal::NoSpace));
    assert_eq!(machine, before);
    add(&mut machine, 1).unwrap();
}

/// Two slots; two contexts of A and one of B that run for ever.
fn contended() -> (World, [ContextId; 3]) {
    let mut world = World::new(&[FERMATA; 2], 8);
    let all = [A, A, B].map(|group| join(&mut world, group));
    for ctx in all {
        world.start(ctx, 1_000_000 * MS).unwrap();
    }
    world.run_for(10 * MS);
    (world, all)
}

/// Who was started on each slot since entry `from` of the log.
fn started(world: &World, from: usize) -> [HashSet<ContextId>; 2] {
    let mut on = [HashSet::new(), HashSet::new()];
    for (_, action) in &world.log[from..] {
        if let Action::Start { slot, ctx, .. } = action {
            on[slot.index()].insert(*ctx);
        }
    }
    on
}

#[test]
fn a_reserved_slot_serves_its_group_only() {
    let (mut world, [a, b, other]) = contended();
    world.set_exclusive(0b01, Some(A)).unwrap();
    assert_eq!(world.machine.exclusive(sid(0)), Some(A));
    world.run_for(10 * MS);
    let from = world.log.len();
    world.run_for(100 * MS);
    // The group uses what is not reserved, too.
    let on = started(&world, from);
    assert_eq!(on[0], HashSet::from([a, b]));
    assert!(on[1].contains(&other));
    world.set_exclusive(0b10, Some(A)).unwrap();
    world.run_for(10 * MS);
    assert!(world.stats(other).no_slot);
    assert_eq!(world.state(other), JobState::Queued);
    world.set_exclusive(0b01, None).unwrap();
    assert!(!world.stats(other).no_slot);
    let from = world.log.len();
    world.run_for(100 * MS);
    let on = started(&world, from);
    assert!(on[0].contains(&other) && !on[1].contains(&other));
}

#[test]
fn a_job_of_another_group_leaves_at_once() {
    let mut world = World::new(&[FERMATA], 8);
    let (a, b) = (join(&mut world, A), join(&mut world, B));
    world.start(b, 1_000 * MS).unwrap();
    world.set_exclusive(1, Some(A)).unwrap();
    assert_eq!(
        world.machine.slot_state(sid(0)),
        Some(SlotState::Pausing(b))
    );
    world.run_for(50 * MS);
    // It stands empty for them.
    assert_eq!(world.machine.slot_state(sid(0)), Some(SlotState::Vacant));
    assert_eq!(world.state(b), JobState::Queued);
    world.start(a, MS).unwrap();
    assert_eq!(world.state(a), JobState::Running);
}

#[test]
fn a_reservation_ends_with_the_registration() {
    let (mut world, [a, b, other]) = contended();
    world.set_exclusive(0b11, Some(A)).unwrap();
    world.run_for(10 * MS);
    for ctx in [a, b] {
        world.close(ctx).unwrap();
    }
    world.run_for(10 * MS);
    assert_eq!(world.state(other), JobState::Queued);
    world.remove_group(A).unwrap();
    assert_eq!(world.machine.exclusive(sid(0)), None);
    world.run_for(10 * MS);
    assert_eq!(world.state(other), JobState::Running);
    // Nothing is left of the reservation for a context that comes later.
    join(&mut world, A);
    assert_eq!(world.machine.exclusive(sid(1)), None);
}

#[test]
fn reservations_that_are_refused() {
    let mut world = World::new(&[FERMATA; 2], 8);
    let b = join(&mut world, B);
    assert_eq!(world.set_exclusive(0b101, Some(A)), Err(Refusal::NoSlot));
    world.set_exclusive(0b01, Some(A)).unwrap();
    assert_eq!(world.set_exclusive(0b11, Some(B)), Err(Refusal::Busy));
    world.set_exclusive(0b10, Some(B)).unwrap();
    world.set_exclusive(0b10, Some(B)).unwrap();
    // What comes later is bound, too; it is no error.
    let late = join(&mut world, GroupKey(9));
    world.start(late, MS).unwrap();
    assert!(world.stats(late).no_slot);
    world.close(b).unwrap();
    world.remove_group(B).unwrap();
    world.run_for(2 * MS);
    assert_eq!(world.state(late), JobState::Done);
}
