// SPDX-License-Identifier: GPL-2.0

//! What an owner cannot gain: time that it could not use, or did not want, and time that it did not
//! pay for.

use crate::model::{world, SlotPlan, World, BASE, CRITICAL, ENDLESS, IRQ, MS, RELAY, US};
use fermata_sched_host::sched::{
    ContextId, Duration, Event, GroupKey, GroupSettings, JobState, Params, PolicyKind,
    PreemptGranularity, SlotState,
};

const GREEDY: GroupKey = GroupKey(1);
const OTHERS: GroupKey = GroupKey(2);

fn run_of(world: &World, of: &[ContextId]) -> f64 {
    of.iter()
        .map(|&ctx| world.stats(ctx).run.as_ns() as f64)
        .sum()
}

/// Returns the part of `greedy` in the time that `greedy` and `others` get in the next half second,
/// before the starvation boost makes a difference.
fn part(world: &mut World, greedy: &[ContextId], others: &[ContextId]) -> f64 {
    let before = [run_of(world, greedy), run_of(world, others)];
    world.run_for(500 * MS);
    let [own, other] = [
        run_of(world, greedy) - before[0],
        run_of(world, others) - before[1],
    ];
    own / (own + other)
}

fn start(world: &mut World, group: GroupKey, params: Params) -> ContextId {
    let ctx = world.open_in(group, 0, params).unwrap();
    world.start(ctx, ENDLESS).unwrap();
    ctx
}

fn check_half(part: f64, what: &str) {
    assert!((0.4..0.6).contains(&part), "{part}: {what}");
}

fn capped(cap: u8) -> Params {
    Params {
        cap,
        ..Params::DEFAULT
    }
}

/// The save for latency-critical work is charged to that work, at no weight of the context that is
/// saved.
#[test]
fn a_weight_that_is_turned_during_a_save_gains_nothing() {
    for (plan, cap) in [(BASE, 0), (IRQ, 0), (IRQ, 90), (RELAY, 0), (RELAY, 90)] {
        let mut world = World::new(&[plan], 8);
        world.set_policy(PolicyKind::Fair).unwrap();
        world.card.slots[0].save = 3 * MS;
        let greedy = start(&mut world, GREEDY, capped(cap));
        let other = start(&mut world, GREEDY, Params::DEFAULT);
        let lc = world.open_in(OTHERS, 0, CRITICAL).unwrap();
        for _ in 0..400 {
            world.run_for(20 * MS);
            world.start(lc, 10 * US).unwrap();
            world.run_for(500 * US);
            let slot = world.machine.slot_of(greedy);
            let state = slot.and_then(|slot| world.machine.slot_state(slot));
            if state == Some(SlotState::Pausing(greedy)) {
                let light = Params {
                    weight: 1,
                    ..capped(cap)
                };
                world.set_params(greedy, light).unwrap();
            }
            while world.state(lc) != JobState::Done {
                world.run_for(100 * US);
            }
            world.set_params(greedy, capped(cap)).unwrap();
        }
        let had = [greedy, other].map(|ctx| run_of(&world, &[ctx]));
        check_half(
            had[0] / (had[0] + had[1]),
            &format!("of the slot, {plan:?}, cap {cap}"),
        );
    }
}

/// One job uses one slot, however many there are.
#[test]
fn slots_that_a_group_could_not_use_are_not_kept_for_later() {
    for plan in [IRQ, RELAY] {
        for slots in [2, 4, 8] {
            // The others use all slots beside the one job, and wait for more or not.
            for waiting in [0, 1, 5] {
                let mut world = World::new(&vec![plan; slots], 32);
                world.set_policy(PolicyKind::Fair).unwrap();
                let mut greedy = vec![start(&mut world, GREEDY, Params::DEFAULT)];
                let others: Vec<_> = (1..slots + waiting)
                    .map(|_| start(&mut world, OTHERS, Params::DEFAULT))
                    .collect();
                world.run_for(8_000 * MS);
                greedy.extend((1..slots).map(|_| start(&mut world, GREEDY, Params::DEFAULT)));
                let part = part(&mut world, &greedy, &others);
                let due = slots.min(others.len()) as f64;
                let due = (slots as f64 / 2.0).min(due) / slots as f64;
                let what = format!("{slots} slots, {waiting} wait, {plan:?}");
                assert!((part - (1.0 - due)).abs() < 0.1, "{part}: {what}");
            }
        }
    }
}

/// A job that waits for one slot all the time does not hide that its group lags on the other ones.
#[test]
fn a_job_that_waits_for_one_slot_keeps_nothing_for_the_others() {
    let mut world = world(4, PolicyKind::Fair);
    let pinned = Params {
        mask: 1,
        ..Params::DEFAULT
    };
    let mut greedy = vec![
        start(&mut world, GREEDY, pinned),
        start(&mut world, GREEDY, pinned),
    ];
    let others = [(); 8].map(|()| start(&mut world, OTHERS, Params::DEFAULT));
    world.run_for(8_000 * MS);
    greedy.extend([(); 4].map(|()| start(&mut world, GREEDY, Params::DEFAULT)));
    let part = part(&mut world, &greedy, &others);
    check_half(part, "of four slots");
}

/// The time for which a cap keeps a context off its slot is not made up for when the cap is lifted.
#[test]
fn a_cap_that_is_lifted_gives_back_nothing() {
    for group in [GREEDY, OTHERS] {
        for plan in [IRQ, RELAY] {
            let mut world = World::new(&[plan], 8);
            world.set_policy(PolicyKind::Fair).unwrap();
            let greedy = start(&mut world, group, capped(1));
            let other = start(&mut world, OTHERS, Params::DEFAULT);
            world.run_for(5_000 * MS);
            world.set_params(greedy, Params::DEFAULT).unwrap();
            let part = part(&mut world, &[greedy], &[other]);
            check_half(part, "after a cap");
        }
    }
}

/// While the cap of one member keeps it off its slot, the other one gathers.
#[test]
fn a_gang_with_a_capped_member_keeps_nothing_for_the_other_members() {
    for ends in 0..3 {
        let mut world = world(2, PolicyKind::Fair);
        let [capped_one, greedy] = [1, 0].map(|cap| world.open_in(GREEDY, 0, capped(cap)).unwrap());
        world.set_gang(capped_one, Some(greedy)).unwrap();
        for ctx in [capped_one, greedy] {
            world.start(ctx, ENDLESS).unwrap();
        }
        let others = [(); 2].map(|()| start(&mut world, OTHERS, Params::DEFAULT));
        world.run_for(5_000 * MS);
        match ends {
            0 => world.set_params(capped_one, Params::DEFAULT).unwrap(),
            1 => world.set_gang(capped_one, None).unwrap(),
            _ => world.close(capped_one).unwrap(),
        }
        if ends != 0 {
            // As many jobs as slots, so that the group can use half of the time and more.
            let more = start(&mut world, GREEDY, Params::DEFAULT);
            let part = part(&mut world, &[greedy, more], &others);
            check_half(part, "of two slots, without the capped member");
        } else {
            let part = part(&mut world, &[capped_one, greedy], &others);
            check_half(part, "of two slots, with the capped member");
        }
    }
}

/// The same for the cap of a registered group, and for a reservation that is given up: its time was
/// no time of the group.
#[test]
fn a_cap_of_a_group_or_a_reservation_that_ends_gives_back_nothing() {
    let mut world = world(1, PolicyKind::Deadline);
    let cap = |cap| GroupSettings {
        cap,
        ..GroupSettings::DEFAULT
    };
    world.set_group(GREEDY, cap(1)).unwrap();
    let greedy = start(&mut world, GREEDY, Params::DEFAULT);
    let reserved = Params {
        budget: Duration::from_us(100),
        deadline: Duration::from_ms(100),
        period: Duration::from_ms(100),
        ..Params::DEFAULT
    };
    let third = start(&mut world, GroupKey(3), reserved);
    let other = start(&mut world, OTHERS, Params::DEFAULT);
    world.run_for(5_000 * MS);
    world.set_group(GREEDY, cap(0)).unwrap();
    check_half(part(&mut world, &[greedy], &[other]), "after a cap");
    let hold = true;
    world.event(Event::Preempt { ctx: greedy, hold }).unwrap();
    world.set_params(third, Params::DEFAULT).unwrap();
    check_half(part(&mut world, &[third], &[other]), "after a reservation");
}

/// A group has its share also after long runs of another one: it catches up, and loses nothing.
#[test]
fn what_is_owed_after_long_slices_and_far_boundaries_is_kept() {
    let long = Params {
        timeslice: Duration::from_ms(300),
        ..Params::DEFAULT
    };
    let cooperative = Params {
        cooperative: true,
        ..Params::DEFAULT
    };
    for (params, block) in [(long, MS), (cooperative, 80 * MS)] {
        for slots in [1, 2, 4] {
            let granularity = PreemptGranularity::AnywhereOrBoundary;
            let plan = SlotPlan { granularity, ..IRQ };
            let mut world = World::new(&vec![plan; slots], 32);
            world.set_policy(PolicyKind::Fair).unwrap();
            for slot in &mut world.card.slots {
                slot.block = block;
            }
            let start_all = |world: &mut World, group, params| -> Vec<_> {
                (0..=slots).map(|_| start(world, group, params)).collect()
            };
            let others = start_all(&mut world, OTHERS, params);
            let own = start_all(&mut world, GREEDY, Params::DEFAULT);
            world.run_for(12_000 * MS);
            let had = [run_of(&world, &own), run_of(&world, &others)];
            let part = had[0] / (had[0] + had[1]);
            assert!(
                (0.47..0.53).contains(&part),
                "{part}: {slots} slots, {params:?}"
            );
        }
    }
}
