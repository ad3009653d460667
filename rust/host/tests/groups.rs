// SPDX-License-Identifier: GPL-2.0

//! Groups of contexts.

mod model;

use fermata_sched_host::sched::{
    ContextConfig, ContextId, Entry, GroupKey, GroupStats, Machine, MachineConfig, Params, Profile,
    Refusal, SlotConfig, Stops, Urgency,
};
use model::world::{ns, SlotPlan, World, FERMATA};
use model::MS;

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
fn machine(contexts: usize, groups: usize) -> Machine<Vec<Entry>> {
    let mut config = MachineConfig::default();
    config.slots[0] = Some(SlotConfig {
        profile: Profile::Fermata,
        class: 0,
        reset_before_resume: false,
        stops: Stops::Anywhere,
        start_count: 0,
    });
    Machine::new(config, contexts, vec![Entry::EMPTY; contexts + groups])
}

fn add(machine: &mut Machine<Vec<Entry>>, group: u64) -> Result<ContextId, Refusal> {
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
        let close = |machine: &mut Machine<Vec<Entry>>, ctx| {
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
