// SPDX-License-Identifier: GPL-2.0

//! The registers of a context are written in parts, each in a section of its own with interrupts
//! off.

use crate::model::{sid, world, World, CRITICAL, ENDLESS, MS, US};
use fermata_sched_host::sched::{
    Action, ContextId, Event, JobState, Params, PolicyKind, SlotState,
};

/// A slot whose registers are written in four parts, 2 us one after another.
fn in_parts() -> World {
    let mut world = world(1, PolicyKind::Priority);
    world.machine.set_load_parts(4);
    world
}

fn with_priority(world: &mut World, priority: u8) -> ContextId {
    let params = Params {
        priority,
        ..Params::DEFAULT
    };
    world.open(0, params).unwrap()
}

/// Returns the contexts whose registers were written completely.
fn loads(world: &World) -> Vec<ContextId> {
    let loads = world.log.iter().filter_map(|&(_, action)| match action {
        Action::Load { ctx, .. } => Some(ctx),
        _ => None,
    });
    loads.collect()
}

fn vacant(world: &World) -> bool {
    world.machine.slot_state(sid(0)) == Some(SlotState::Vacant)
}

#[test]
fn a_job_starts_after_the_last_part() {
    let mut world = in_parts();
    let ctx = world.tenant(MS);
    world.start(ctx, 10 * MS).unwrap();
    for part in 1..4 {
        assert!(vacant(&world), "after part {part}");
        assert_eq!(world.state(ctx), JobState::Queued);
        world.run_for(2 * US);
    }
    assert_eq!(world.state(ctx), JobState::Running);
    assert_eq!(loads(&world), [ctx]);
    world.run_for(20 * MS);
    assert_eq!(world.state(ctx), JobState::Done);
}

/// Two contexts take turns: each switch takes all parts, and no time of the slices is lost by them.
#[test]
fn slices_are_whole() {
    let mut world = in_parts();
    let both = [0; 2].map(|_| world.tenant(MS));
    for ctx in both {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(50 * MS);
    let starts = world.starts();
    assert!(starts.len() > 40, "{} slices in 50 ms", starts.len());
    assert!(starts.windows(2).all(|turn| turn[0] != turn[1]));
    assert_eq!(loads(&world), starts);
}

#[test]
fn a_better_arrival_takes_the_slot_between_two_parts() {
    let mut world = in_parts();
    let [low, high] = [1, 2].map(|priority| with_priority(&mut world, priority));
    world.start(low, 10 * MS).unwrap();
    world.run_for(2 * US);
    world.start(high, MS).unwrap();
    world.run_for(8 * US);
    assert_eq!(world.state(high), JobState::Running);
    assert_eq!(loads(&world), [high]);
    world.run_for(20 * MS);
    assert_eq!(loads(&world), [high, low]);
    assert_eq!(world.state(low), JobState::Done);
}

/// A context that is closed, held or disabled between two parts is not started, and its window does
/// not open.
#[test]
fn who_goes_between_two_parts_is_not_started() {
    for case in 0..3 {
        let mut world = in_parts();
        let [goes, stays] = [0; 2].map(|_| world.tenant(MS));
        world.start(goes, 10 * MS).unwrap();
        world.run_for(4 * US);
        world.start(stays, 10 * MS).unwrap();
        match case {
            0 => world.close(goes).unwrap(),
            1 => {
                let hold = Event::Preempt {
                    ctx: goes,
                    hold: true,
                };
                world.event(hold).unwrap();
            }
            _ => world.set_enabled(goes, false).unwrap(),
        }
        world.run_for(20 * MS);
        assert_eq!(loads(&world), [stays], "case {case}");
        assert_eq!(world.state(stays), JobState::Done, "case {case}");
    }
}

/// The card is frozen between two parts: nothing starts before the thaw.
#[test]
fn a_freeze_ends_a_load() {
    let mut world = in_parts();
    let ctx = world.open(0, CRITICAL).unwrap();
    world.start(ctx, 10 * MS).unwrap();
    world.run_for(2 * US);
    world.freeze();
    world.rest();
    world.run_for(MS);
    assert_eq!(loads(&world), []);
    world.thaw();
    world.run_for(20 * MS);
    assert_eq!(loads(&world), [ctx]);
    assert_eq!(world.state(ctx), JobState::Done);
}
