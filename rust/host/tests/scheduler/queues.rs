// SPDX-License-Identifier: GPL-2.0

//! Engines that leave their slot when their queue is empty, and the doorbell that makes them
//! return.

use crate::model::{sid, SlotPlan, World, ENDLESS, IRQ, MS, RELAY, US};
use fermata_sched_host::sched::{
    Action, ContextId, Event, Failure, JobState, NewJob, Params, PolicyKind, Refusal, Status, Time,
    Urgency, Wake,
};

const QUEUE: SlotPlan = SlotPlan {
    queues: true,
    ..IRQ
};

fn world() -> World {
    World::new(&[QUEUE], 8)
}

/// A context whose job has found its queue empty.
fn empty(world: &mut World) -> ContextId {
    let ctx = world.open(0, Params::DEFAULT).unwrap();
    world.start(ctx, ENDLESS).unwrap();
    world.run_for(5 * MS);
    assert_eq!(world.state(ctx), JobState::Empty);
    ctx
}

#[test]
fn an_empty_queue_leaves_the_slot_and_a_doorbell_brings_it_back() {
    let mut world = world();
    let ctx = empty(&mut world);
    assert_eq!(world.wakes, [(ctx, Wake::Empty)]);
    let run = world.stats(ctx).run;
    world.run_for(100 * MS);
    assert_eq!(world.stats(ctx).run, run, "it is charged for nothing");
    assert_eq!(world.stats(ctx).slot, None);
    for round in 1..4 {
        world.post(ctx, 2 * MS);
        assert_eq!(world.state(ctx), JobState::Running);
        world.run_for(5 * MS);
        assert_eq!(world.state(ctx), JobState::Empty);
        assert_eq!(world.stats(ctx).resumes, round);
        assert!(world.stats(ctx).run.as_ns() >= round * 2 * MS);
    }
}

/// The card has gone on with the job, whose queue was empty, before the host knows it.
#[test]
fn a_doorbell_reaches_a_job_that_is_named() {
    let plan = SlotPlan {
        queues: true,
        ..RELAY
    };
    let mut world = World::new(&[plan], 8);
    let [first, named] = [0; 2].map(|_| world.tenant(MS));
    world.start(first, ENDLESS).unwrap();
    world.start(named, ENDLESS).unwrap();
    world.irq_delay = 700 * US;
    world.run_until(300 * US);
    assert_eq!(world.starts(), [first]);
    world.post(named, 2 * MS);
    world.run_for(50 * MS);
    assert_eq!(world.state(named), JobState::Empty);
    assert!(world.stats(named).run.as_ns() >= 2 * MS);
}

#[test]
fn it_ends_like_any_job() {
    let mut world = world();
    let ctx = world.open(0, Params::DEFAULT).unwrap();
    world.start(ctx, 3 * MS).unwrap();
    world.run_for(MS);
    world.post(ctx, 3 * MS);
    world.run_for(10 * MS);
    assert_eq!(world.state(ctx), JobState::Done);
    assert_eq!(world.stats(ctx).job, 1);
    assert_eq!(world.event(Event::Ring { ctx }), Err(Refusal::NoJob));
}

#[test]
fn the_slot_goes_to_the_next() {
    let mut world = world();
    let ctx = world.open(0, Params::DEFAULT).unwrap();
    let other = world.open(0, Params::DEFAULT).unwrap();
    world.post(other, 20 * MS);
    world.start(ctx, ENDLESS).unwrap();
    world.start(other, 20 * MS).unwrap();
    world.run_for(40 * MS);
    assert_eq!(world.state(ctx), JobState::Empty);
    assert_eq!(world.state(other), JobState::Done);
    assert_eq!(world.stats(other).slices, 1, "nobody took it off");
}

#[test]
fn slices_are_those_of_single_jobs() {
    let mut world = world();
    let both = [0, 1].map(|_| world.open(0, Params::DEFAULT).unwrap());
    for ctx in both {
        world.post(ctx, 100 * MS);
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(400 * MS);
    for ctx in both {
        assert_eq!(world.state(ctx), JobState::Empty);
        assert!(world.stats(ctx).preemptions > 2);
        assert!(world.stats(ctx).run.as_ns() >= 100 * MS);
    }
}

/// A doorbell may come at any moment while the engine leaves: the work is done in the end, without
/// another call.
#[test]
fn no_doorbell_is_lost() {
    for at in 0..400 {
        let mut world = world();
        let ctx = world.open(0, Params::DEFAULT).unwrap();
        world.start(ctx, 2 * MS).unwrap();
        world.post(ctx, MS);
        world.run_for(900_000 + at * 1_000);
        world.post(ctx, MS);
        world.run_for(20 * MS);
        assert_eq!(world.state(ctx), JobState::Done, "posted at {at} us");
    }
}

/// A program that rings needlessly wastes only its own time.
#[test]
fn doorbells_for_nothing() {
    let mut world = world();
    let ctx = empty(&mut world);
    for _ in 0..5 {
        world.event(Event::Ring { ctx }).unwrap();
        assert_eq!(world.state(ctx), JobState::Running);
        world.event(Event::Ring { ctx }).unwrap();
        world.run_for(5 * MS);
        assert_eq!(world.state(ctx), JobState::Empty);
    }
}

#[test]
fn a_pause_that_finds_the_queue_empty() {
    let mut world = world();
    let ctx = world.open(0, Params::DEFAULT).unwrap();
    let other = world.open(0, Params::DEFAULT).unwrap();
    world.card.slots[0].save = 3 * MS;
    world.post(ctx, MS);
    world.start(ctx, ENDLESS).unwrap();
    world.run_for(2 * MS);
    world.event(Event::Preempt { ctx, hold: false }).unwrap();
    world.start(other, ENDLESS).unwrap();
    world.run_for(20 * MS);
    assert_eq!(world.state(ctx), JobState::Empty);
}

#[test]
fn held_and_resumed() {
    let mut world = world();
    let ctx = empty(&mut world);
    let hold = Event::Preempt { ctx, hold: true };
    world.event(Event::Preempt { ctx, hold: false }).unwrap();
    assert_eq!(world.state(ctx), JobState::Empty);
    world.event(hold).unwrap();
    assert_eq!(world.state(ctx), JobState::Held);
    assert_eq!(world.wakes.pop(), Some((ctx, Wake::Held)));
    world.post(ctx, MS);
    world.run_for(5 * MS);
    assert_eq!(world.state(ctx), JobState::Held, "a doorbell ends no hold");
    world.event(Event::Resume { ctx }).unwrap();
    world.run_for(MS / 2);
    assert_eq!(world.state(ctx), JobState::Running);
    world.event(hold).unwrap();
    world.run_for(5 * MS);
    assert_eq!(world.state(ctx), JobState::Held);
    world.event(Event::Resume { ctx }).unwrap();
    world.run_for(5 * MS);
    assert_eq!(world.state(ctx), JobState::Empty);
}

/// A hold that is taken back before the job is held hides no doorbell.
#[test]
fn a_doorbell_under_a_hold_that_is_taken_back() {
    let mut world = world();
    let ctx = world.open(0, Params::DEFAULT).unwrap();
    world.card.slots[0].save = 5 * MS;
    world.start(ctx, MS).unwrap();
    world.run_for(MS);
    // The engine is leaving its slot, and no work is posted.
    assert_eq!(world.state(ctx), JobState::Running);
    world.event(Event::Preempt { ctx, hold: true }).unwrap();
    world.post(ctx, MS);
    world.event(Event::Resume { ctx }).unwrap();
    world.run_for(30 * MS);
    assert_eq!(world.state(ctx), JobState::Done);
}

#[test]
fn closed_and_gone_while_empty() {
    let mut world = world();
    let (a, b) = (empty(&mut world), empty(&mut world));
    assert_eq!(
        world.event(Event::Start {
            ctx: a,
            job: NewJob::default(),
        }),
        Err(Refusal::Busy)
    );
    world.close(a).unwrap();
    world.event(Event::Gone).unwrap();
    assert_eq!(world.state(b), JobState::Failed(Failure::Gone));
    assert_eq!(world.event(Event::Ring { ctx: b }), Err(Refusal::Gone));
}

/// A hint works as for a single job: the slot is vacant when the doorbell rings.
#[test]
fn hinted() {
    let mut world = world();
    world.set_policy(PolicyKind::Fair).unwrap();
    world.run_until(1_000 * MS);
    let be = world.open(0, Params::DEFAULT).unwrap();
    let critical = Params {
        urgency: Urgency::LatencyCritical,
        ..Params::DEFAULT
    };
    let lc = world.open(0, critical).unwrap();
    world.start(lc, ENDLESS).unwrap();
    world.run_for(5 * MS);
    assert_eq!(world.state(lc), JobState::Empty);
    world.post(be, ENDLESS);
    world.start(be, ENDLESS).unwrap();
    world.run_for(20 * MS);
    // A save is measured, which shows how early the job must be preempted.
    world
        .event(Event::Preempt {
            ctx: be,
            hold: false,
        })
        .unwrap();
    world.run_for(20 * MS);
    let at = Time::from_ns(world.now + 5 * MS);
    world.event(Event::Hint { ctx: lc, at }).unwrap();
    world.run_for(5 * MS - 1);
    assert_eq!(world.state(be), JobState::Queued, "it made way before");
    world.post(lc, MS);
    assert_eq!(world.state(lc), JobState::Running);
    assert_eq!(world.stats(lc).hints_used, 1);
}

/// An engine without a queue does not leave by itself, and never reports an empty queue.
#[test]
fn only_engines_with_a_queue() {
    let mut world = World::new(&[IRQ], 2);
    let ctx = world.open(0, Params::DEFAULT).unwrap();
    world.start(ctx, ENDLESS).unwrap();
    world.run_for(MS);
    let raw = (world.card.read_status(world.now, 0).raw() & !0xff) | 4 | (1 << 10);
    let mut resets = 0;
    world
        .machine
        .handle(
            Time::from_ns(world.now),
            Event::Status {
                slot: sid(0),
                status: Status::from_raw(raw),
            },
            &mut |action| resets += u32::from(matches!(action, Action::Reset { .. })),
        )
        .unwrap();
    assert_eq!(resets, 1);
}
