// SPDX-License-Identifier: GPL-2.0

//! What is measured of slots and contexts. That it agrees with what the scheduler counts is seen in every test of a world
//! (`model/measured.rs`).

use crate::model::world::{World, BASE, FERMATA};
use crate::model::{MS, US};
use fermata_sched_host::sched::{Event, JobState, Params, Urgency};

const ENDLESS: u64 = 1_000_000 * MS;

#[test]
fn there_is_a_gap_between_any_two_runs_that_follow_each_other() {
    for plan in [FERMATA, BASE] {
        let mut world = World::new(&[plan], 8);
        let pair = [world.tenant(2 * MS), world.tenant(2 * MS)];
        for ctx in pair {
            world.start(ctx, ENDLESS).unwrap();
        }
        world.run_for(100 * MS);
        let starts: u64 = pair.iter().map(|ctx| world.stats(*ctx).slices).sum();
        let slot = &world.measured.slots[0];
        // One may be under way.
        assert!(starts > 20 && (starts - 1..=starts).contains(&(slot.gap.count + 1)));
        match plan.base {
            // The model's card and driver take no time.
            None => assert_eq!(slot.gap.max, 0),
            Some((settle, _)) => assert!(slot.gap.min >= settle),
        }
    }
}

#[test]
fn a_slot_that_nobody_wants_is_no_gap() {
    for plan in [FERMATA, BASE] {
        let mut world = World::new(&[plan], 8);
        let ctx = world.tenant(2 * MS);
        for _ in 0..3 {
            world.start(ctx, MS).unwrap();
            world.run_for(50 * MS);
            assert_eq!(world.state(ctx), JobState::Done);
        }
        let slot = &world.measured.slots[0];
        assert_eq!((slot.finished, slot.gap.count), (3, 0));
    }
}

#[test]
fn a_timer_that_comes_late_overruns_the_slice() {
    let mut world = World::new(&[FERMATA], 8);
    world.timer_delay = 300 * US;
    let pair = [world.tenant(2 * MS), world.tenant(2 * MS)];
    for ctx in pair {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(50 * MS);
    let overrun = &world.measured.slots[0].overrun;
    assert!(overrun.count > 10);
    assert_eq!((overrun.min, overrun.max), (300 * US, 300 * US));
}

#[test]
fn an_arrival_lasts_until_the_first_start_only() {
    let mut world = World::new(&[FERMATA], 8);
    let (a, b) = (world.tenant(2 * MS), world.tenant(2 * MS));
    world.start(a, ENDLESS).unwrap();
    world.run_for(5 * MS);
    world.start(b, 10 * MS).unwrap();
    world.run_for(100 * MS);
    assert_eq!(world.state(b), JobState::Done);
    let measured = &world.measured.contexts[&b].histograms;
    assert!(measured.wait.count >= 5);
    assert_eq!(measured.arrival.count, 1);
    assert_eq!(
        measured.arrival.sum,
        measured.wait.min.max(measured.arrival.sum)
    );
    assert_eq!(world.measured.slots[0].latency.count, 0);
}

#[test]
fn a_job_that_was_held_before_it_ran_has_no_arrival() {
    let mut world = World::new(&[FERMATA], 8);
    let (a, b) = (world.tenant(2 * MS), world.tenant(2 * MS));
    world.start(a, ENDLESS).unwrap();
    world.run_for(MS);
    world.start(b, MS).unwrap();
    let hold = Event::Preempt { ctx: b, hold: true };
    world.event(hold).unwrap();
    world.run_for(10 * MS);
    world.event(Event::Resume { ctx: b }).unwrap();
    world.run_for(20 * MS);
    assert_eq!(world.state(b), JobState::Done);
    assert_eq!(world.measured.contexts[&b].histograms.arrival.count, 0);
}

#[test]
fn urgent_arrivals_stand_at_their_slot() {
    let mut world = World::new(&[FERMATA], 8);
    let a = world.tenant(2 * MS);
    let urgent = Params {
        urgency: Urgency::LatencyCritical,
        ..Params::DEFAULT
    };
    let b = world.open(0, urgent).unwrap();
    world.start(a, ENDLESS).unwrap();
    for _ in 0..4 {
        world.run_for(5 * MS);
        world.start(b, MS).unwrap();
    }
    world.run_for(20 * MS);
    let slot = &world.measured.slots[0];
    assert_eq!(slot.latency.count, 4);
    assert_eq!(slot.latency, world.measured.contexts[&b].histograms.arrival);
    // It is as long as the save of the other one.
    assert_eq!(slot.latency.max, slot.save.max);
}
