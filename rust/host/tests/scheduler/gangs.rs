// SPDX-License-Identifier: GPL-2.0

//! Contexts that are preempted, held and resumed together.

use crate::model::world::{sid, SlotPlan, World, BASE, FERMATA};
use crate::model::MS;
use fermata_sched_host::sched::{
    ContextId, Entry, Event, GroupKey, JobState, Machine, Params, Refusal, SlotState,
};

const ENDLESS: u64 = 1_000_000 * MS;
const GANG_MAX: usize = Machine::<Vec<Entry>>::GANG_MAX as usize;

/// Two slots of two engines, and a gang of a context on each.
fn gang_on(plan: SlotPlan) -> (World, [ContextId; 2]) {
    let other = SlotPlan { class: 1, ..plan };
    let mut world = World::new(&[plan, other], 8);
    let gang = [0, 1].map(|class| world.open(class, Params::DEFAULT).unwrap());
    world.set_gang(gang[1], Some(gang[0])).unwrap();
    (world, gang)
}

fn states<const N: usize>(world: &World, of: [ContextId; N]) -> [JobState; N] {
    of.map(|ctx| world.state(ctx))
}

#[test]
fn what_is_asked_of_one_is_done_to_all() {
    for plan in [FERMATA, BASE] {
        let (mut world, gang) = gang_on(plan);
        for ctx in gang {
            world.start(ctx, 40 * MS).unwrap();
        }
        for turn in 0..4 {
            let (one, another) = (gang[turn & 1], gang[turn >> 1]);
            world.run_for(5 * MS);
            world
                .event(Event::Preempt {
                    ctx: one,
                    hold: true,
                })
                .unwrap();
            for (i, ctx) in gang.into_iter().enumerate() {
                let state = world.machine.slot_state(sid(i));
                assert_eq!(state, Some(SlotState::Pausing(ctx)));
            }
            world.run_for(5 * MS);
            assert_eq!(states(&world, gang), [JobState::Held; 2]);
            world.event(Event::Resume { ctx: another }).unwrap();
            // One at once, the other by the next decision.
            world.run_for(1);
            assert_eq!(states(&world, gang), [JobState::Running; 2]);
        }
        world.run_for(100 * MS);
        assert_eq!(states(&world, gang), [JobState::Done; 2]);
        assert_eq!(gang.map(|ctx| world.stats(ctx).preemptions), [4; 2]);
    }
}

#[test]
fn a_yield_is_one_of_all() {
    let (mut world, gang) = gang_on(FERMATA);
    let next = [0, 1].map(|class| world.open(class, Params::DEFAULT).unwrap());
    for ctx in gang {
        world.start(ctx, 50 * MS).unwrap();
    }
    world.run_for(MS);
    for ctx in next {
        world.start(ctx, MS / 10).unwrap();
    }
    let ctx = gang[1];
    world.event(Event::Preempt { ctx, hold: false }).unwrap();
    world.run_for(MS);
    assert_eq!(states(&world, next), [JobState::Done; 2]);
    assert_eq!(states(&world, gang), [JobState::Running; 2]);
}

#[test]
fn a_hold_that_has_not_come_about_is_taken_back_from_all() {
    let (mut world, gang) = gang_on(FERMATA);
    for ctx in gang {
        world.start(ctx, 5 * MS).unwrap();
    }
    world.run_for(MS);
    let [ctx, other] = gang;
    world.event(Event::Preempt { ctx, hold: true }).unwrap();
    world.event(Event::Resume { ctx: other }).unwrap();
    world.run_for(20 * MS);
    assert_eq!(states(&world, gang), [JobState::Done; 2]);
}

#[test]
fn whoever_has_no_job_takes_no_part() {
    let (mut world, gang) = gang_on(FERMATA);
    let [a, b] = gang;
    world.start(a, ENDLESS).unwrap();
    let none = Err(Refusal::NoJob);
    assert_eq!(world.event(Event::Preempt { ctx: b, hold: true }), none);
    assert_eq!(world.event(Event::Resume { ctx: b }), none);
    assert_eq!(world.state(a), JobState::Running);
    world.event(Event::Preempt { ctx: a, hold: true }).unwrap();
    world.run_for(5 * MS);
    world.start(b, ENDLESS).unwrap();
    assert_eq!(states(&world, gang), [JobState::Held, JobState::Running]);
    // One that runs can resume the others, too.
    world.event(Event::Resume { ctx: b }).unwrap();
    assert_eq!(states(&world, gang), [JobState::Running; 2]);
}

#[test]
fn whoever_joins_or_leaves_or_is_closed_changes_nothing_for_jobs() {
    let (mut world, [a, b]) = gang_on(FERMATA);
    let c = world.open(0, Params::DEFAULT).unwrap();
    let gang = [a, b, c];
    for ctx in gang {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.event(Event::Preempt { ctx: b, hold: true }).unwrap();
    world.run_for(5 * MS);
    let expected = [JobState::Held, JobState::Held, JobState::Running];
    world.set_gang(c, Some(a)).unwrap();
    assert_eq!(states(&world, gang), expected);
    world.set_gang(b, None).unwrap();
    assert_eq!(states(&world, gang), expected);
    world.event(Event::Resume { ctx: b }).unwrap();
    assert_eq!(world.state(a), JobState::Held);
    world.set_gang(b, Some(c)).unwrap();
    world.close(a).unwrap();
    world.event(Event::Preempt { ctx: b, hold: true }).unwrap();
    world.run_for(5 * MS);
    assert_eq!(states(&world, [b, c]), [JobState::Held; 2]);
}

#[test]
fn a_gang_is_of_one_group_and_bounded() {
    let mut world = World::new(&[FERMATA], GANG_MAX + 4);
    let foreign = world.open_in(GroupKey(1), 0, Params::DEFAULT).unwrap();
    let first = world.tenant(2 * MS);
    assert_eq!(world.set_gang(first, Some(first)), Err(Refusal::Range));
    assert_eq!(world.set_gang(first, Some(foreign)), Err(Refusal::Range));
    let mut all = vec![first];
    while all.len() < GANG_MAX {
        let ctx = world.tenant(2 * MS);
        world.set_gang(ctx, Some(all[all.len() / 2])).unwrap();
        all.push(ctx);
    }
    let (late, other) = (world.tenant(2 * MS), world.tenant(2 * MS));
    world.set_gang(late, Some(other)).unwrap();
    let full = world.set_gang(late, Some(first));
    assert_eq!(full, Err(Refusal::NoSpace));
    // Those that are in it may say so again.
    world.set_gang(all[5], Some(all[60])).unwrap();
    world.close(all[7]).unwrap();
    let dead = Err(Refusal::NoContext);
    assert_eq!(world.set_gang(late, Some(all[7])), dead);
    assert_eq!(world.set_gang(all[7], Some(late)), dead);
    assert_eq!(world.set_gang(all[7], None), dead);
    world.set_gang(late, Some(first)).unwrap();
    assert_eq!(world.machine.gang_size(late), Ok(GANG_MAX as u32));
    assert_eq!(world.machine.gang_size(other), Ok(1));
}
