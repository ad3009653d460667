// SPDX-License-Identifier: GPL-2.0

//! Which slots a context may use: disabling and enabling.

use crate::model::world::{sid, SlotPlan, World, BASE, FERMATA};
use crate::model::MS;
use fermata_sched_host::sched::{
    ContextId, Duration, Event, JobState, Params, PolicyKind, Refusal, SlotState,
};

const ENDLESS: u64 = 1_000_000 * MS;

fn world(plans: &[SlotPlan]) -> World {
    let mut world = World::new(plans, 16);
    world.set_policy(PolicyKind::Fair).unwrap();
    world
}

fn runs(world: &World, ctx: ContextId) -> bool {
    world.state(ctx) == JobState::Running
}

#[test]
fn a_disabled_context_waits_and_goes_on() {
    for plan in [FERMATA, BASE] {
        let mut world = world(&[plan]);
        let a = world.tenant(2 * MS);
        world.start(a, 20 * MS).unwrap();
        world.run_for(5 * MS);
        world.set_enabled(a, false).unwrap();
        // At once, although nobody waits.
        assert_eq!(
            world.machine.slot_state(sid(0)),
            Some(SlotState::Pausing(a))
        );
        world.run_for(100 * MS);
        let stats = world.stats(a);
        assert_eq!((stats.state, stats.saved), (JobState::Queued, true));
        assert!(!stats.enabled && stats.no_slot);
        assert_eq!(world.machine.slot_state(sid(0)), Some(SlotState::Vacant));
        world.set_enabled(a, false).unwrap();
        world.set_enabled(a, true).unwrap();
        world.run_for(30 * MS);
        let stats = world.stats(a);
        assert_eq!((stats.state, stats.resumes), (JobState::Done, 1));
        assert!(stats.enabled && !stats.no_slot);
    }
}

#[test]
fn the_jobs_of_a_disabled_context_are_accepted() {
    let mut world = world(&[FERMATA]);
    let (a, b) = (world.tenant(2 * MS), world.tenant(2 * MS));
    world.set_enabled(a, false).unwrap();
    world.start(a, 5 * MS).unwrap();
    assert_eq!(world.state(a), JobState::Queued);
    assert_eq!(world.start(a, MS), Err(Refusal::Busy));
    // Nobody waits for the one that is disabled.
    world.start(b, 20 * MS).unwrap();
    world.run_for(30 * MS);
    assert_eq!(world.state(b), JobState::Done);
    assert_eq!(world.stats(b).preemptions, 0);
    world.event(Event::Preempt { ctx: a, hold: true }).unwrap();
    assert_eq!(world.state(a), JobState::Held);
    // Holding is another matter.
    world.set_enabled(a, true).unwrap();
    world.run_for(10 * MS);
    assert_eq!(world.state(a), JobState::Held);
    world.set_enabled(a, false).unwrap();
    world.event(Event::Resume { ctx: a }).unwrap();
    world.run_for(10 * MS);
    assert_eq!(world.state(a), JobState::Queued);
    world.set_enabled(a, true).unwrap();
    world.run_for(10 * MS);
    assert_eq!(world.state(a), JobState::Done);
    world.set_enabled(a, false).unwrap();
    world.start(a, MS).unwrap();
    world.close(a).unwrap();
    assert_eq!(world.set_enabled(a, true), Err(Refusal::NoContext));
    assert_eq!(world.machine.contexts(), 1);
}

#[test]
fn time_disabled_is_not_made_up_for() {
    let mut world = world(&[FERMATA]);
    let (a, b) = (world.tenant(2 * MS), world.tenant(2 * MS));
    for ctx in [a, b] {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(100 * MS);
    world.set_enabled(a, false).unwrap();
    world.run_for(1_000 * MS);
    let ran = world.stats(a).run;
    assert!(runs(&world, b));
    world.set_enabled(a, true).unwrap();
    world.run_for(200 * MS);
    let had = world.stats(a).run.as_ns() - ran.as_ns();
    assert!((95 * MS..=105 * MS).contains(&had), "{had}");
}

/// Disabled contexts do not keep the starvation boost from other contexts.
#[test]
fn the_boost_sees_past_disabled_contexts() {
    let mut world = World::new(&[FERMATA], 16);
    world.set_policy(PolicyKind::Priority).unwrap();
    world.set_boost(Duration::from_ms(20)).unwrap();
    let low = Params {
        priority: 0,
        ..Params::DEFAULT
    };
    for _ in 0..12 {
        let ctx = world.open(0, low).unwrap();
        world.set_enabled(ctx, false).unwrap();
        world.start(ctx, ENDLESS).unwrap();
    }
    let (high, low) = (world.tenant(2 * MS), world.open(0, low).unwrap());
    for ctx in [high, low] {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(100 * MS);
    assert!(world.stats(low).slices >= 3);
}

/// The job of a disabled context fails, too, when the last of its slots is quarantined. The context
/// can still change parameters, but cannot name slots that are out of service.
#[test]
fn quarantine_of_the_last_slot_fails_jobs_of_disabled_contexts() {
    let mut world = world(&[FERMATA]);
    let (a, b) = (world.tenant(2 * MS), world.tenant(2 * MS));
    world.set_enabled(b, false).unwrap();
    world.start(b, ENDLESS).unwrap();
    world.start(a, ENDLESS).unwrap();
    world.run_for(MS);
    world.card.slots[0].ignore_resets = u32::MAX;
    world.close(a).unwrap();
    world.run_for(100 * MS);
    assert_ne!(world.quarantined, 0);
    assert!(matches!(world.state(b), JobState::Failed(_)));
    assert_eq!(world.start(b, MS), Err(Refusal::NoSlot));
    let params = world.machine.params(b).unwrap();
    let lighter = Params {
        weight: 1,
        ..params
    };
    assert_eq!(world.set_params(b, lighter), Ok(()));
    let elsewhere = Params {
        mask: 0xfe,
        ..params
    };
    assert_eq!(world.set_params(b, elsewhere), Err(Refusal::NoSlot));
}
