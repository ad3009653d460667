// SPDX-License-Identifier: GPL-2.0

//! Registered groups: settings that persist without contexts, caps, ceilings, and contexts that
//! move.

use crate::model::{cases, ns, sid, world, SlotPlan, World, ENDLESS, IRQ, MS, US};
use fermata_sched_host::sched::{
    CardConfig, ContextId, Duration, GroupKey, GroupSettings, JobState, Params, PolicyKind,
    Refusal, Scheduler, SlotState, Urgency,
};
use fermata_sched_host::storage;
use proptest::prelude::*;

const A: GroupKey = GroupKey(1);
const B: GroupKey = GroupKey(2);
const DEFAULT: GroupSettings = GroupSettings::DEFAULT;

fn capped(cap: u16) -> GroupSettings {
    GroupSettings { cap, ..DEFAULT }
}

/// Opens contexts of a group that always want a slot.
fn busy(world: &mut World, group: GroupKey, count: usize) -> Vec<ContextId> {
    (0..count)
        .map(|_| {
            let ctx = world.open_in(group, 0, Params::DEFAULT).unwrap();
            world.start(ctx, ENDLESS).unwrap();
            ctx
        })
        .collect()
}

fn ran(world: &World, group: GroupKey) -> f64 {
    let stats = world.machine.group_stats(group, ns(world.now));
    stats.run.as_ns() as f64
}

/// Returns the group's time on slots in the next `ms` milliseconds, as a part of one slot.
fn has(world: &mut World, group: GroupKey, ms: u64) -> f64 {
    let before = ran(world, group);
    world.run_for(ms * MS);
    (ran(world, group) - before) / (ms * MS) as f64
}

fn policies() -> impl Strategy<Value = PolicyKind> {
    prop_oneof![
        Just(PolicyKind::Fair),
        Just(PolicyKind::Priority),
        Just(PolicyKind::Deadline),
        Just(PolicyKind::RoundRobin)
    ]
}

proptest! {
    #![proptest_config(cases(8))]

    /// With any number of contexts and slots; the others get the rest.
    #[test]
    fn a_group_has_no_more_than_its_cap(
        cap in 1..150u16,
        count in 1..40usize,
        slots in 1..4usize,
        others in 0..3usize,
        urgent in any::<bool>(),
        policy in policies(),
    ) {
        let mut world = world(slots, policy);
        world.set_group(A, capped(cap)).unwrap();
        busy(&mut world, B, others);
        for i in 0..count {
            let urgency = match urgent && i % 2 == 0 {
                true => Urgency::LatencyCritical,
                false => Urgency::BestEffort,
            };
            let params = Params { urgency, ..Params::DEFAULT };
            let ctx = world.open_in(A, 0, params).unwrap();
            world.start(ctx, ENDLESS).unwrap();
        }
        world.run_for(500 * MS);
        let had = has(&mut world, A, 10_000);
        let most = f64::from(cap) / 100.0;
        prop_assert!(had <= most + 0.012, "{had} for {most}");
        if others == 0 {
            let least = most.min(slots.min(count) as f64 * 0.8);
            prop_assert!(had >= least - 0.02, "{had} for {least}");
        }
    }

    /// Groups that move below others and back while their contexts wait and run.
    #[test]
    fn groups_nest_anew_under_load(
        steps in prop::collection::vec((1..5u64, 0..5u64, 1..300u16), 1..30),
        slots in 1..3usize,
        policy in policies(),
    ) {
        let mut world = world(slots, policy);
        let keys: Vec<_> = (1..5).map(GroupKey).collect();
        for &key in &keys {
            busy(&mut world, key, 3);
        }
        for (key, parent, weight) in steps {
            let parent = (parent != 0).then_some(GroupKey(parent));
            let settings = GroupSettings { weight, ..DEFAULT };
            // Refused if the groups would form a cycle, or the parent is not registered.
            let _ = world.set_group_below(GroupKey(key), parent, settings);
            world.run_for(3 * MS);
        }
        let before: Vec<_> = keys.iter().map(|&key| ran(&world, key)).collect();
        world.run_for(2_000 * MS);
        if policy != PolicyKind::Priority {
            for (&key, before) in keys.iter().zip(before) {
                prop_assert!(ran(&world, key) > before, "{key:?} does not run");
            }
        }
    }

    /// After the group has been idle, and if the cap is set while the jobs run.
    #[test]
    fn a_cap_keeps_unused_time_for_a_window_only(
        cap in 1..60u16,
        idle in 200..20_000u64,
        first in any::<bool>(),
        policy in policies(),
    ) {
        let mut world = world(1, policy);
        if first {
            world.set_group(A, capped(cap)).unwrap();
        }
        world.run_for(idle * MS);
        busy(&mut world, A, 3);
        if !first {
            world.run_for(100 * MS);
            world.set_group(A, capped(cap)).unwrap();
        }
        let had = has(&mut world, A, 500);
        let window = 0.1 * f64::from(cap) / 100.0;
        let most = f64::from(cap) / 100.0 + window / 0.5;
        prop_assert!(had <= most + 0.03, "{had} for {most}");
    }

    /// Jobs that come and go, each of a context that has waited for the cap.
    #[test]
    fn short_jobs_of_a_capped_group_all_end(cap in 1..60u16, work in 20..3_000u64) {
        let mut world = world(1, PolicyKind::Fair);
        world.set_group(A, capped(cap)).unwrap();
        let all: Vec<_> = (0..20).map(|_| world.open_in(A, 0, Params::DEFAULT).unwrap()).collect();
        for _ in 0..3 {
            for &ctx in &all {
                world.start(ctx, work * US).unwrap();
            }
            for _ in 0..400 {
                world.run_for(50 * MS);
                if !all.iter().any(|&ctx| world.state(ctx).is_live()) {
                    break;
                }
            }
            prop_assert!(all.iter().all(|&ctx| world.state(ctx) == JobState::Done));
        }
    }

    /// Contexts of one group that move in and out gain nothing.
    #[test]
    fn moving_gains_nothing(every in 1..40u64, count in 1..6usize) {
        let mut world = world(1, PolicyKind::Fair);
        let a = busy(&mut world, A, count);
        busy(&mut world, B, 1);
        let mut had = 0.0;
        for i in 0..2_000 / every {
            let (from, to) = if i % 2 == 0 { (A, GroupKey(9)) } else { (GroupKey(9), A) };
            had += has(&mut world, from, every);
            for &ctx in &a {
                world.move_to(ctx, to).unwrap();
            }
        }
        let part = had / (2_000 / every) as f64;
        // A context that moves keeps the rest of its slice.
        prop_assert!(part < 0.5 + 3.0 / every as f64, "{part}");
    }
}

/// A cap that starts to apply during a run is not charged for earlier time; it starts with the
/// credit of one window.
#[test]
fn a_cap_begins_without_a_debt() {
    fn reserve(world: &mut World, ctx: ContextId) {
        let params = Params {
            budget: Duration::from_ms(9),
            deadline: Duration::from_ms(10),
            period: Duration::from_ms(10),
            ..Params::DEFAULT
        };
        world.set_params(ctx, params).unwrap();
        world.set_policy(PolicyKind::Deadline).unwrap();
        world.move_to(ctx, B).unwrap();
        world.run_for(10_005 * MS);
        assert_eq!(world.machine.slot_of(ctx), Some(sid(0)));
    }
    let changes: [fn(&mut World, ContextId); 5] = [
        |world, _| world.set_group(A, capped(50)).unwrap(),
        |world, _| world.set_group_below(A, Some(B), DEFAULT).unwrap(),
        |world, ctx| world.move_to(ctx, B).unwrap(),
        |world, ctx| {
            reserve(world, ctx);
            world.set_policy(PolicyKind::Fair).unwrap();
        },
        |world, ctx| {
            reserve(world, ctx);
            world.set_params(ctx, Params::DEFAULT).unwrap();
        },
    ];
    for (i, change) in changes.into_iter().enumerate() {
        let mut world = world(1, PolicyKind::Fair);
        world.set_group(A, DEFAULT).unwrap();
        world.set_group(B, capped(50)).unwrap();
        let ctx = busy(&mut world, A, 1)[0];
        world.run_for(10_000 * MS);
        change(&mut world, ctx);
        let ran = world.stats(ctx).run.as_ns();
        // This charges the run again.
        world.run_for(500 * MS);
        world
            .set_params(ctx, world.machine.params(ctx).unwrap())
            .unwrap();
        world.run_for(500 * MS);
        let had = (world.stats(ctx).run.as_ns() - ran) as f64 / (1_000 * MS) as f64;
        assert!((0.49..0.56).contains(&had), "{i}: {had}");
    }
}

/// The group that moves is the one that has been without contexts for longest, and no group record
/// is free.
#[test]
fn a_group_above_takes_no_place_of_the_group_below() {
    let mut world = World::new(&[IRQ], 2);
    for key in 1..20 {
        let ctx = world.open_in(GroupKey(key), 0, Params::DEFAULT).unwrap();
        world.close(ctx).unwrap();
    }
    let above = GroupKey(20);
    world.set_group(above, DEFAULT).unwrap();
    for key in (1..20).map(GroupKey) {
        world.set_group_below(key, Some(above), DEFAULT).unwrap();
        world.remove_group(key).unwrap();
    }
    world.open_in(above, 0, Params::DEFAULT).unwrap();
}

/// One cap applies to contexts on slots of several classes.
#[test]
fn a_cap_is_shared_by_contexts_of_several_classes() {
    let other = SlotPlan { class: 1, ..IRQ };
    let mut world = World::new(&[IRQ, other], 8);
    world.set_group(A, capped(50)).unwrap();
    let both = [0, 1].map(|class| world.open_in(A, class, Params::DEFAULT).unwrap());
    world.run_for(500 * MS);
    for ctx in both {
        world.start(ctx, ENDLESS).unwrap();
    }
    // The group has kept 50 ms of the cap, and each context has a quarter of a slot's time.
    world.run_for(40 * MS);
    let throttled = both.map(|ctx| world.stats(ctx).throttled);
    assert_eq!(throttled, [true; 2]);
}

/// Its contexts are throttled a few at a time.
#[test]
fn crowd_at_its_cap_keeps_no_other_class_from_its_slots() {
    let other = SlotPlan { class: 1, ..IRQ };
    let mut world = World::new(&[IRQ, other], 128);
    world.set_policy(PolicyKind::RoundRobin).unwrap();
    world.set_group(A, capped(5)).unwrap();
    world.run_for(500 * MS);
    let _ = busy(&mut world, A, 60);
    let pair = [0; 2].map(|_| world.open(1, Params::DEFAULT).unwrap());
    for ctx in pair {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(200 * MS);
    let slices = pair.map(|ctx| world.stats(ctx).slices);
    assert!(slices.iter().all(|&slices| slices > 43), "{slices:?}");
}

#[test]
fn settings_hold_without_a_context() {
    let mut world = world(1, PolicyKind::Fair);
    let settings = GroupSettings {
        weight: 300,
        max_priority: 7,
        cap: 250,
        slots: 1,
    };
    assert_eq!(world.machine.group_settings(A), None);
    world.set_group(A, settings).unwrap();
    assert_eq!(world.machine.group_settings(A), Some(settings));
    world
        .set_group(
            A,
            GroupSettings {
                cap: 0,
                slots: 0,
                ..settings
            },
        )
        .unwrap();
    busy(&mut world, B, 2);
    for _ in 0..3 {
        let a = busy(&mut world, A, 2);
        world.run_for(100 * MS);
        let had = has(&mut world, A, 2_000);
        assert!((had - 0.73).abs() < 0.04, "{had}");
        for ctx in a {
            world.close(ctx).unwrap();
        }
        world.run_for(10 * MS);
    }
    world.remove_group(A).unwrap();
    assert_eq!(world.machine.group_settings(A), None);
    assert_eq!(world.remove_group(A), Err(Refusal::NoContext));
    busy(&mut world, A, 1);
    world.run_for(100 * MS);
    let had = has(&mut world, A, 2_000);
    assert!((had - 0.49).abs() < 0.03, "{had}");
}

#[test]
fn settings_out_of_range() {
    let mut world = world(2, PolicyKind::Fair);
    let bad = [
        GroupSettings {
            weight: 0,
            ..DEFAULT
        },
        GroupSettings {
            weight: 10_001,
            ..DEFAULT
        },
        GroupSettings {
            max_priority: 32,
            ..DEFAULT
        },
        GroupSettings {
            cap: 801,
            ..DEFAULT
        },
    ];
    for settings in bad {
        assert_eq!(world.set_group(A, settings), Err(Refusal::Range));
        assert_eq!(world.machine.group_settings(A), None);
    }
}

#[test]
fn registrations_are_bounded() {
    const MOST: u64 = Scheduler::GROUPS_MAX as u64;
    let mut machine = Scheduler::new(&CardConfig::default(), storage(1, 1));
    let set = |machine: &mut Scheduler, key| {
        machine.set_group(ns(1), GroupKey(key), None, DEFAULT, &mut |_| ())
    };
    for round in 0..3 {
        let keys = round * 1_000..round * 1_000 + MOST;
        for key in keys.clone() {
            set(&mut machine, key).unwrap();
        }
        let before = machine.clone();
        assert_eq!(set(&mut machine, 1 << 40), Err(Refusal::NoSpace));
        assert_eq!(machine, before);
        // Registering the same group again needs no more room.
        set(&mut machine, keys.start).unwrap();
        for key in keys {
            assert_eq!(machine.group_settings(GroupKey(key)), Some(DEFAULT));
            machine
                .remove_group(ns(1), GroupKey(key), &mut |_| ())
                .unwrap();
        }
    }
}

#[test]
fn nobody_is_above_the_ceiling() {
    let mut world = world(1, PolicyKind::Priority);
    let of = |priority| Params {
        priority,
        ..Params::DEFAULT
    };
    let high = world.open_in(A, 0, of(20)).unwrap();
    let low = world.open_in(A, 0, of(3)).unwrap();
    let settings = GroupSettings {
        max_priority: 5,
        ..DEFAULT
    };
    world.set_group(A, settings).unwrap();
    let priority = |world: &World, ctx| world.machine.params(ctx).unwrap().priority;
    assert_eq!((priority(&world, high), priority(&world, low)), (5, 3));
    assert_eq!(world.set_params(low, of(6)), Err(Refusal::Ceiling));
    world.set_params(low, of(5)).unwrap();
    let late = world.open_in(A, 0, Params::DEFAULT).unwrap();
    assert_eq!(priority(&world, late), 5);
    let moved = world.open_in(B, 0, of(31)).unwrap();
    world.move_to(moved, A).unwrap();
    assert_eq!(priority(&world, moved), 5);
    world.remove_group(A).unwrap();
    world.set_params(moved, of(31)).unwrap();
}

/// A context that moves takes its job with it, wherever the job is.
#[test]
fn jobs_move_with_their_contexts() {
    let mut world = world(1, PolicyKind::Fair);
    let a = busy(&mut world, A, 3);
    let held = a[2];
    world.run_for(5 * MS);
    let hold = fermata_sched_host::sched::Event::Preempt {
        ctx: held,
        hold: true,
    };
    world.event(hold).unwrap();
    world.run_for(5 * MS);
    for &ctx in &a {
        world.move_to(ctx, B).unwrap();
        assert_eq!(world.machine.group_of(ctx), Ok(B));
    }
    assert_eq!(world.state(held), JobState::Held);
    let left = ran(&world, A);
    let had = has(&mut world, B, 100);
    assert!(had > 0.9, "{had}");
    assert_eq!(ran(&world, A), left);
    assert_eq!(world.machine.group_stats(A, ns(world.now)).contexts, 0);
    assert_eq!(world.machine.group_stats(B, ns(world.now)).contexts, 3);
}

/// A gang belongs to one group.
#[test]
fn a_gang_is_split_by_a_move() {
    let mut world = world(3, PolicyKind::Fair);
    let all: Vec<_> = (0..3)
        .map(|_| world.open_in(A, 0, Params::DEFAULT).unwrap())
        .collect();
    for &ctx in &all[1..] {
        world.set_gang(ctx, Some(all[0])).unwrap();
    }
    world.move_to(all[1], B).unwrap();
    assert_eq!(world.machine.gang_size(all[1]), Ok(1));
    assert_eq!(world.machine.gang_size(all[0]), Ok(2));
}

/// A throttled context resumes at once when the cap is removed.
#[test]
fn a_cap_that_ends_lets_all_go_on() {
    for moves in [false, true] {
        let mut world = world(1, PolicyKind::Fair);
        world.set_group(A, capped(1)).unwrap();
        let a = busy(&mut world, A, 10);
        world.run_for(300 * MS);
        assert_eq!(world.machine.slot_state(sid(0)), Some(SlotState::Vacant));
        assert!(a.iter().all(|&ctx| world.stats(ctx).throttled));
        if moves {
            for &ctx in &a {
                world.move_to(ctx, B).unwrap();
            }
        } else {
            world.set_group(A, DEFAULT).unwrap();
        }
        assert!(!a.iter().any(|&ctx| world.stats(ctx).throttled));
        world.run_for(100 * MS);
        assert!(a.iter().all(|&ctx| world.stats(ctx).slices > 1));
    }
}

/// All contexts of a capped group run: for the same time under weighted fair, for as many slices
/// under round-robin.
#[test]
fn nobody_waits_for_ever_in_a_capped_group() {
    for count in [2, 5, 20, 50] {
        for policy in [PolicyKind::Fair, PolicyKind::RoundRobin] {
            let mut world = world(1, policy);
            world.set_group(A, capped(10)).unwrap();
            let a = busy(&mut world, A, count);
            world.run_for(100 * count as u64 * MS);
            let fair = policy == PolicyKind::Fair;
            let each = a.iter().map(|&ctx| {
                let stats = world.stats(ctx);
                assert!(stats.slices >= 2);
                if fair {
                    stats.run.as_ns().div_ceil(2 * MS)
                } else {
                    stats.slices
                }
            });
            let each: Vec<u64> = each.collect();
            let (least, most) = (each.iter().min().unwrap(), each.iter().max().unwrap());
            let slack = if fair { 2 } else { most.div_ceil(3) + 2 };
            assert!(most - least <= slack, "{policy:?} {count} {each:?}");
        }
    }
}

/// A decision throttles a few of them, and the next decision follows soon.
#[test]
fn many_of_a_group_at_its_cap_do_not_stop_others() {
    let mut world = world(1, PolicyKind::RoundRobin);
    busy(&mut world, A, 50);
    world.run_for(10 * MS);
    world.set_group(A, capped(1)).unwrap();
    world.run_for(20 * MS);
    let b = busy(&mut world, B, 1)[0];
    world.run_for(200 * MS);
    let had = world.stats(b).run.as_ns() as f64 / (200 * MS) as f64;
    assert!(had > 0.9, "{had}");
}

/// Returns the parts of the time on slots that the groups have in the next `ms` milliseconds.
fn parts<const N: usize>(world: &mut World, groups: [GroupKey; N], ms: u64) -> [f64; N] {
    let before = groups.map(|group| ran(world, group));
    world.run_for(ms * MS);
    let mut index = 0..;
    groups.map(|group| {
        let had = ran(world, group) - before[index.next().unwrap()];
        had / (ms * MS) as f64
    })
}

#[track_caller]
fn are_near<const N: usize>(parts: [f64; N], expected: [f64; N]) {
    for (part, expected) in parts.into_iter().zip(expected) {
        assert!((part - expected).abs() < 0.05, "{parts:?}");
    }
}

/// Groups that are not registered share the part of the registered group that they are below. They
/// compete at the top without it, and below it again with it, whatever they have had.
#[test]
fn groups_that_are_not_registered_share_the_part_of_their_level() {
    let (level, c) = (GroupKey(50), GroupKey(3));
    let mut world = world(1, PolicyKind::Fair);
    world.set_group(level, DEFAULT).unwrap();
    let ids = [A, B, c].map(|group| busy(&mut world, group, 1)[0]);
    for _ in 0..3 {
        are_near(parts(&mut world, [A, B, c], 300), [0.33; 3]);
        for group in [A, B] {
            world.put_below(group, level).unwrap();
        }
        are_near(parts(&mut world, [A, B, c], 300), [0.25, 0.25, 0.5]);
        // The ceiling and the cap of the level hold for them.
        let settings = GroupSettings {
            max_priority: 3,
            cap: 20,
            ..DEFAULT
        };
        world.set_group(level, settings).unwrap();
        world.run_for(300 * MS);
        are_near(parts(&mut world, [A, B, c], 1000), [0.1, 0.1, 0.8]);
        let ceilings = ids.map(|id| world.machine.max_priority(id));
        assert_eq!(ceilings, [Ok(3), Ok(3), Ok(Params::PRIORITY_MAX)]);
        for group in [A, B] {
            world.parents.remove(&group);
        }
        world.remove_group(level).unwrap();
        world.set_group(level, DEFAULT).unwrap();
    }
}

/// An exclusive slot of a level serves the groups below it.
#[test]
fn a_slot_of_a_level_serves_groups_that_are_not_registered() {
    let level = GroupKey(50);
    let mut world = world(1, PolicyKind::Fair);
    world.set_group(level, DEFAULT).unwrap();
    for group in [A, B] {
        busy(&mut world, group, 1);
    }
    world.put_below(A, level).unwrap();
    world.set_exclusive(1, Some(level)).unwrap();
    are_near(parts(&mut world, [A, B], 100), [1.0, 0.0]);
}

/// A group that is forgotten where it was is remembered where it is.
#[test]
fn a_group_without_contexts_follows_its_level() {
    let level = GroupKey(50);
    let mut world = world(1, PolicyKind::Fair);
    world.set_group(level, DEFAULT).unwrap();
    let alone = busy(&mut world, A, 1)[0];
    busy(&mut world, B, 1);
    world.run_for(1000 * MS);
    world.close(alone).unwrap();
    world.put_below(A, level).unwrap();
    world.set_group(level, capped(10)).unwrap();
    busy(&mut world, A, 1);
    world.run_for(300 * MS);
    are_near(parts(&mut world, [A, B], 1000), [0.1, 0.9]);
}

/// A group that is registered above a running group starts with the virtual time of its siblings.
#[test]
fn a_group_above_a_running_one_has_no_time_to_make_up_for() {
    let above = GroupKey(50);
    let mut world = world(1, PolicyKind::Fair);
    for group in [A, B] {
        busy(&mut world, group, 1);
    }
    world.run_for(2000 * MS);
    world.set_group(above, DEFAULT).unwrap();
    world.set_group_below(A, Some(above), DEFAULT).unwrap();
    are_near(parts(&mut world, [A, B], 400), [0.5, 0.5]);
}

#[test]
fn groups_nest_four_deep_and_in_no_circle() {
    let mut world = World::new(&[IRQ], 8);
    let key = |n: u64| GroupKey(100 + n);
    world.nest(key(1), None, 100).unwrap();
    for n in 2..=4 {
        world.nest(key(n), Some(key(n - 1)), 100).unwrap();
    }
    let deep = Err(Refusal::Depth);
    assert_eq!(world.nest(key(5), Some(key(4)), 100), deep);
    // A group moves with all groups below it.
    world.nest(key(3), None, 100).unwrap();
    world.nest(key(3), Some(key(1)), 100).unwrap();
    assert_eq!(world.nest(key(1), Some(key(4)), 100), deep);
    world.nest(key(5), None, 100).unwrap();
    assert_eq!(world.nest(key(3), Some(key(2)), 100), Ok(()));
    assert_eq!(world.nest(key(1), Some(key(5)), 100), deep);
}
