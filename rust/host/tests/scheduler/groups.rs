// SPDX-License-Identifier: GPL-2.0

//! Groups of contexts: time is shared between groups first.

use std::collections::HashSet;

use fermata_sched_host::sched::{
    Action, ContextConfig, ContextId, Duration, Event, GroupKey, GroupStats, JobState, Params,
    PolicyKind, Refusal, Scheduler, SlotState, Urgency,
};
use fermata_sched_host::{card, storage};
use proptest::prelude::*;

use crate::model::check::{check_shares, shares};
use crate::model::{cases, check, ns, sid, world, SlotPlan, World, ENDLESS, IRQ, MS, US};

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
    let mut world = World::new(&[IRQ, SlotPlan { class: 1, ..IRQ }], 8);
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
    // Statistics from before the change of the urgency are kept.
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

/// Returns a scheduler with room for this many contexts and groups.
fn machine(contexts: usize, groups: usize) -> Scheduler {
    Scheduler::new(&card(1), storage(contexts, groups))
}

fn add(machine: &mut Scheduler, group: u64) -> Result<ContextId, Refusal> {
    let config = ContextConfig {
        class: 0,
        params: Params::DEFAULT,
        group: GroupKey(group).into(),
    };
    machine.add(ns(0), config)
}

#[test]
fn every_group_is_found_again() {
    const CONTEXTS: usize = 300;
    // Consecutive keys, and keys that differ only in high bits.
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
        // Half of the contexts are closed, and new groups replace theirs.
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
    let mut world = World::new(&[IRQ; 2], 8);
    let all = [A, A, B].map(|group| join(&mut world, group));
    for ctx in all {
        world.start(ctx, 1_000_000 * MS).unwrap();
    }
    world.run_for(10 * MS);
    (world, all)
}

/// Returns the contexts that were started on each slot since entry `from` of the log.
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
    // The group also uses the slot that is not reserved.
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
    let mut world = World::new(&[IRQ], 8);
    let (a, b) = (join(&mut world, A), join(&mut world, B));
    world.start(b, 1_000 * MS).unwrap();
    world.set_exclusive(1, Some(A)).unwrap();
    assert_eq!(
        world.machine.slot_state(sid(0)),
        Some(SlotState::Pausing(b))
    );
    world.run_for(50 * MS);
    // The slot stays vacant for the group.
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
    let mut world = World::new(&[IRQ; 2], 8);
    let b = join(&mut world, B);
    assert_eq!(world.set_exclusive(0b101, Some(A)), Err(Refusal::NoSlot));
    world.set_exclusive(0b01, Some(A)).unwrap();
    assert_eq!(world.set_exclusive(0b11, Some(B)), Err(Refusal::Busy));
    world.set_exclusive(0b10, Some(B)).unwrap();
    world.set_exclusive(0b10, Some(B)).unwrap();
    // A context that is opened later is restricted, too, which is no error.
    let late = join(&mut world, GroupKey(9));
    world.start(late, MS).unwrap();
    assert!(world.stats(late).no_slot);
    world.close(b).unwrap();
    world.remove_group(B).unwrap();
    world.run_for(2 * MS);
    assert_eq!(world.state(late), JobState::Done);
}

// Time is shared between groups first, and no group gains by having more contexts.

fn open(world: &mut World, group: GroupKey, weight: u16) -> ContextId {
    let params = Params {
        weight,
        ..Params::DEFAULT
    };
    world.open_in(group, 0, params).unwrap()
}

/// Opens contexts of a group that always want a slot.
fn busy(world: &mut World, group: GroupKey, count: usize) -> Vec<ContextId> {
    (0..count)
        .map(|_| {
            let ctx = open(world, group, 100);
            world.start(ctx, ENDLESS).unwrap();
            ctx
        })
        .collect()
}

fn ran(world: &World, group: GroupKey) -> f64 {
    let stats = world.machine.group_stats(group, ns(world.now));
    stats.run.as_ns() as f64
}

/// Returns A's share of the time that A and B had since `before`.
fn part(world: &World, before: (f64, f64)) -> f64 {
    shares(&[ran(world, A) - before.0, ran(world, B) - before.1])[0]
}

fn weigh(world: &mut World, group: GroupKey, weight: u16) -> Result<(), Refusal> {
    world.set_group_weight(group, weight)
}

fn slices(world: &World) -> u64 {
    let all = world.tenants.keys();
    all.filter_map(|&ctx| world.machine.stats(ctx, ns(world.now)).ok())
        .map(|stats| stats.slices)
        .sum()
}

fn run_slices(world: &mut World, n: u64) {
    // The starvation boost ends a slice after a second, however small the weight of the waiter is.
    let (end, latest) = (slices(world) + n, world.now + n * 1_100 * MS);
    while slices(world) < end {
        assert!(world.now < latest, "nobody is preempted");
        world.run_for(20 * MS);
    }
}

/// Returns how long each group has run: groups 0 and up, one for each weight.
fn all_ran(world: &World, weights: &[u16]) -> Vec<f64> {
    let keys = (0..).map(GroupKey).take(weights.len());
    keys.map(|key| ran(world, key)).collect()
}

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn groups_have_by_their_weights(
        groups in prop::collection::vec((1..=1_000u16, prop::collection::vec(1..=1_000u16, 1..9)), 2..6),
        save in 1..300u64,
    ) {
        let mut world = world(1, PolicyKind::Fair);
        world.card.slots[0].save = save * US;
        for (i, (weight, members)) in groups.iter().enumerate() {
            let key = GroupKey(i as u64);
            for &own in members {
                let ctx = open(&mut world, key, own);
                world.start(ctx, ENDLESS).unwrap();
            }
            weigh(&mut world, key, *weight).unwrap();
        }
        run_slices(&mut world, 1_000);
        let weights: Vec<u16> = groups.iter().map(|(weight, _)| *weight).collect();
        check_shares(&all_ran(&world, &weights), &weights, 0.01)?;
    }

    /// Several slots; each group has enough contexts for all of them.
    #[test]
    fn on_several_slots_too(
        groups in prop::collection::vec((20..=200u16, 0..4usize), 2..5),
        slots in 2..4usize,
    ) {
        let mut world = world(slots, PolicyKind::Fair);
        for (i, &(weight, more)) in groups.iter().enumerate() {
            let key = GroupKey(i as u64);
            busy(&mut world, key, slots + more);
            weigh(&mut world, key, weight).unwrap();
        }
        run_slices(&mut world, 1_000);
        let weights: Vec<u16> = groups.iter().map(|(weight, _)| *weight).collect();
        check_shares(&all_ran(&world, &weights), &weights, 0.01)?;
    }

    /// A has many contexts that want a slot in turn, each for a short while; B has one that always does.
    #[test]
    fn sleeping_in_turn_gains_nothing(count in 2..24usize, work in 100..6_000u64, ahead in 1..3usize) {
        let mut world = world(1, PolicyKind::Fair);
        let many: Vec<_> = (0..count).map(|_| open(&mut world, A, 100)).collect();
        busy(&mut world, B, 1);
        let mut next = 0;
        while world.now < 1_200 * MS {
            let live = |ctx: &&ContextId| world.state(**ctx).is_live();
            let waiting = many.iter().filter(live).count();
            if waiting < ahead {
                next = (next + 1) % count;
                let _ = world.start(many[next], work * US);
            }
            world.run_for(50 * US);
        }
        let part = part(&world, (0.0, 0.0));
        prop_assert!(part < 0.51, "{part}");
    }

    /// A closes its context after each job, or while it runs, and opens another one.
    #[test]
    fn opening_again_gains_nothing(work in 100..6_000u64, leaves in 100..9_000u64) {
        let mut world = world(1, PolicyKind::Fair);
        busy(&mut world, B, 1);
        while world.now < 1_200 * MS {
            let ctx = open(&mut world, A, 100);
            world.start(ctx, work * US).unwrap();
            let mut left = leaves;
            while world.state(ctx).is_live() && (world.state(ctx) != JobState::Running || left > 50) {
                left = left.saturating_sub(if world.state(ctx) == JobState::Running { 50 } else { 0 });
                world.run_for(50 * US);
            }
            world.close(ctx).unwrap();
            world.run_for(10 * US);
        }
        let part = part(&world, (0.0, 0.0));
        prop_assert!(part < 0.51, "{part}");
    }
}

#[test]
fn one_has_as_much_as_fifty() {
    let mut world = world(1, PolicyKind::Fair);
    let one = busy(&mut world, A, 1)[0];
    let fifty = busy(&mut world, B, 50);
    run_slices(&mut world, 1_000);
    let part = part(&world, (0.0, 0.0));
    assert!((part - 0.5).abs() < 0.005, "{part}");
    // The context does not wait until all contexts of the other group have had a slice.
    let longest = world.tenants[&one].longest_wait;
    assert!(longest < 5 * MS, "{longest}");
    let each: Vec<u64> = fifty.iter().map(|&ctx| world.stats(ctx).slices).collect();
    assert!(each.iter().all(|&n| (8..=12).contains(&n)), "{each:?}");
}

#[test]
fn inside_a_group_the_weights_of_its_contexts_count() {
    let mut world = world(1, PolicyKind::Fair);
    let weights = [100, 200, 500];
    let who = weights.map(|weight| open(&mut world, A, weight));
    for ctx in who {
        world.start(ctx, ENDLESS).unwrap();
    }
    busy(&mut world, B, 2);
    run_slices(&mut world, 4_000);
    check_shares(&who.map(|ctx| check::ran(&world, ctx)), &weights, 0.01).unwrap();
}

#[test]
fn a_weight_holds_at_once_and_lasts() {
    let mut world = world(1, PolicyKind::Fair);
    let a = busy(&mut world, A, 3);
    busy(&mut world, B, 3);
    run_slices(&mut world, 500);
    weigh(&mut world, A, 300).unwrap();
    let before = (ran(&world, A), ran(&world, B));
    run_slices(&mut world, 1_000);
    let found = part(&world, before);
    assert!((found - 0.75).abs() < 0.01, "{found}");
    for ctx in a {
        world.close(ctx).unwrap();
    }
    world.run_for(20 * MS);
    busy(&mut world, A, 1);
    assert_eq!(world.machine.group_stats(A, ns(world.now)).weight, 300);
    let before = (ran(&world, A), ran(&world, B));
    run_slices(&mut world, 1_000);
    let found = part(&world, before);
    assert!((found - 0.75).abs() < 0.01, "{found}");
}

#[test]
fn a_weight_is_that_of_the_group_everywhere() {
    let mut world = World::new(&[IRQ, SlotPlan { class: 1, ..IRQ }], 16);
    let first = open(&mut world, A, 100);
    assert_eq!(weigh(&mut world, A, 0), Err(Refusal::Range));
    assert_eq!(weigh(&mut world, A, 10_001), Err(Refusal::Range));
    weigh(&mut world, A, 10_000).unwrap();
    world.open_in(A, 1, Params::DEFAULT).unwrap();
    world.close(first).unwrap();
    assert_eq!(world.machine.group_stats(A, ns(1)).weight, 10_000);
    assert_eq!(world.machine.group_stats(B, ns(1)).weight, 100);
}

/// All running contexts of a group use up the group's lag together.
#[test]
fn the_contexts_of_a_group_use_up_together_what_it_is_owed() {
    let mut world = world(2, PolicyKind::Fair);
    busy(&mut world, A, 2);
    let b = busy(&mut world, B, 1)[0];
    weigh(&mut world, A, 1_000).unwrap();
    world.run_for(1_000 * MS);
    // A slice of B, 2 ms, is worth 20 ms of A: 2 ms meanwhile on one slot, and 9 ms on both.
    let longest = world.tenants[&b].longest_wait;
    assert!(longest < 10 * MS, "{longest}");
}

/// Even the longest sleep gives a group no more credit than one context gets: one slice.
#[test]
fn a_group_that_slept_has_a_slice_of_credit() {
    let mut world = world(1, PolicyKind::Fair);
    busy(&mut world, B, 1);
    let sleepers: Vec<_> = (0..40).map(|_| open(&mut world, A, 100)).collect();
    world.run_for(1_000 * MS);
    let before = (ran(&world, A), ran(&world, B));
    for &ctx in &sleepers {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(40 * MS);
    let (a, b) = (ran(&world, A) - before.0, ran(&world, B) - before.1);
    assert!(a - b < 5.0 * MS as f64, "{a} {b}");
}

#[test]
fn what_is_left_by_a_share_is_shared_between_nested_groups() {
    let mut world = world(1, PolicyKind::Fair);
    let (promised, others) = (GroupKey(3), GroupKey(4));
    world.nest(promised, None, 4_000).unwrap();
    world.nest(others, None, 6_000).unwrap();
    world.nest(A, Some(others), 100).unwrap();
    world.nest(B, Some(others), 200).unwrap();
    busy(&mut world, promised, 1);
    busy(&mut world, A, 4);
    busy(&mut world, B, 1);
    run_slices(&mut world, 2_000);
    let all = ran(&world, promised) + ran(&world, others);
    let share = ran(&world, promised) / all;
    assert!((share - 0.4).abs() < 0.01, "{share}");
    let other = ran(&world, B) / all;
    assert!((other - 0.4).abs() < 0.01, "{other}");
}

#[test]
fn what_reservations_leave_is_shared_between_groups() {
    let mut world = world(1, PolicyKind::Deadline);
    let params = Params {
        budget: Duration::from_ms(3),
        deadline: Duration::from_ms(10),
        period: Duration::from_ms(10),
        ..Params::DEFAULT
    };
    let promised = world.open_in(A, 0, params).unwrap();
    world.start(promised, ENDLESS).unwrap();
    busy(&mut world, A, 6);
    busy(&mut world, B, 1);
    world.run_for(3_000 * MS);
    let theirs = world.stats(promised).run.as_ns() as f64;
    let (a, b) = (ran(&world, A) - theirs, ran(&world, B));
    assert!((a / (a + b) - 0.5).abs() < 0.01, "{a} {b}");
}

#[test]
fn latency_critical_work_is_shared_between_groups_of_its_own() {
    let mut world = world(1, PolicyKind::Fair);
    let params = Params {
        urgency: Urgency::LatencyCritical,
        ..Params::DEFAULT
    };
    for group in [A, A, A, B] {
        let ctx = world.open_in(group, 0, params).unwrap();
        world.start(ctx, ENDLESS).unwrap();
    }
    busy(&mut world, A, 2);
    world.set_boost(Duration::ZERO).unwrap();
    run_slices(&mut world, 1_000);
    let found = part(&world, (0.0, 0.0));
    assert!((found - 0.5).abs() < 0.01, "{found}");
}

#[test]
fn round_robin_goes_by_contexts() {
    let mut world = world(1, PolicyKind::RoundRobin);
    busy(&mut world, A, 3);
    busy(&mut world, B, 1);
    run_slices(&mut world, 400);
    let found = part(&world, (0.0, 0.0));
    assert!((found - 0.75).abs() < 0.02, "{found}");
    // From now on time is shared by groups, and earlier time does not count.
    world.set_policy(PolicyKind::Fair).unwrap();
    let before = (ran(&world, A), ran(&world, B));
    run_slices(&mut world, 1_000);
    let found = part(&world, before);
    assert!((found - 0.5).abs() < 0.01, "{found}");
}

#[test]
fn who_yields_to_another_group_lets_it_go_first() {
    let mut world = world(1, PolicyKind::Fair);
    let a = busy(&mut world, A, 1)[0];
    world.run_for(MS);
    let b = busy(&mut world, B, 1)[0];
    // Its group has a large lag.
    weigh(&mut world, A, 10_000).unwrap();
    world.run_for(40 * MS);
    for _ in 0..10_000 {
        if world.state(a) == JobState::Running {
            break;
        }
        world.run_for(100 * US);
    }
    assert_eq!(world.state(a), JobState::Running);
    let from = world.starts().len();
    world
        .event(Event::Preempt {
            ctx: a,
            hold: false,
        })
        .unwrap();
    world.run_for(2 * MS);
    assert_eq!(world.starts()[from], b);
}

/// A group does not wait longer because another context of the running group has a small lag.
#[test]
fn a_context_of_the_running_group_does_not_hide_other_groups() {
    let mut world = world(1, PolicyKind::Fair);
    // The heavy context is behind its siblings by a credit that takes long to use up.
    let heavy = open(&mut world, A, 10_000);
    let light = open(&mut world, A, 1);
    world.start(light, ENDLESS).unwrap();
    world.run_for(20 * MS);
    let b = busy(&mut world, B, 1)[0];
    world.start(heavy, ENDLESS).unwrap();
    world.run_for(1_000 * MS);
    let longest = world.tenants[&b].longest_wait;
    assert!(longest < 30 * MS, "{longest}");
}
