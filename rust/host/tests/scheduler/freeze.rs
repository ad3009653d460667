// SPDX-License-Identifier: GPL-2.0

//! All jobs are taken off a card that loses its state, and go on afterwards.

use crate::model::world::{ns, sid, World, BASE, FERMATA};
use crate::model::MS;
use fermata_sched_host::sched::{
    Action, ContextId, Event, Failure, JobState, Params, PolicyKind, Refusal, SlotState, Status,
    Urgency,
};

const ENDLESS: u64 = 1_000_000 * MS;

fn states<const N: usize>(world: &World, of: [ContextId; N]) -> [JobState; N] {
    of.map(|ctx| world.state(ctx))
}

fn starts(world: &World) -> u64 {
    (0..world.plans.len())
        .filter_map(|i| world.machine.slot_stats(sid(i), ns(world.now)))
        .map(|stats| stats.starts)
        .sum()
}

#[test]
fn jobs_go_on_where_they_were() {
    for plan in [FERMATA, BASE] {
        let mut world = World::new(&[plan, plan], 8);
        let all = [0; 4].map(|_| world.tenant(2 * MS));
        for ctx in all {
            world.start(ctx, 40 * MS).unwrap();
        }
        let ctx = all[3];
        world.event(Event::Preempt { ctx, hold: true }).unwrap();
        for _ in 0..5 {
            world.run_for(7 * MS);
            world.freeze();
            world.rest();
            let before = starts(&world);
            let queued = JobState::Queued;
            let expected = [queued, queued, queued, JobState::Held];
            assert_eq!(states(&world, all), expected);
            world.run_for(30 * MS);
            assert_eq!(starts(&world), before);
            world.thaw();
            // One at once, the other by the next decision.
            assert_eq!(starts(&world), before + 1);
            world.run_for(1);
            assert_eq!(starts(&world), before + 2);
        }
        world.run_for(200 * MS);
        world.event(Event::Resume { ctx }).unwrap();
        world.run_for(200 * MS);
        assert_eq!(states(&world, all), [JobState::Done; 4]);
    }
}

/// An answer of all-ones would be the end of the card.
#[test]
fn slot_in_reset_is_not_asked_after_the_card_is_cut_off() {
    let mut world = World::new(&[BASE], 8);
    let ctx = world.tenant(2 * MS);
    world.start(ctx, MS).unwrap();
    while !matches!(
        world.machine.slot_state(sid(0)),
        Some(SlotState::Resetting(_))
    ) {
        world.run_for(MS / 20);
    }
    world.machine.cut_off(ns(world.now));
    let mut actions = Vec::new();
    for ms in 1..=20 {
        let now = ns(world.now + ms * MS);
        let timer = Event::Timer { slot: sid(0) };
        let handled = world
            .machine
            .handle(now, timer, &mut |action| actions.push(action));
        assert_eq!(handled, Ok(()));
    }
    let touches = |action: &Action| {
        matches!(
            action,
            Action::ReadStatus { .. } | Action::Reset { .. } | Action::Quarantine { .. }
        )
    };
    assert!(!actions.iter().any(touches), "{actions:?}");
}

#[test]
fn owners_may_ask_for_anything_meanwhile() {
    let mut world = World::new(&[FERMATA], 8);
    let [runs, closed, held] = [0; 3].map(|_| world.tenant(2 * MS));
    world.start(runs, 10 * MS).unwrap();
    world.start(closed, ENDLESS).unwrap();
    world.run_for(MS);
    world.freeze();
    world.freeze();
    world.close(closed).unwrap();
    world.rest();
    world.start(held, 10 * MS).unwrap();
    world
        .event(Event::Preempt {
            ctx: held,
            hold: true,
        })
        .unwrap();
    let late = world.tenant(2 * MS);
    let urgency = Urgency::LatencyCritical;
    let params = Params {
        urgency,
        ..Params::DEFAULT
    };
    world.set_params(late, params).unwrap();
    world.start(late, MS).unwrap();
    world.set_policy(PolicyKind::Priority).unwrap();
    world.run_for(5_000 * MS);
    let states_now = states(&world, [runs, held, late]);
    let (held_now, queued) = (JobState::Held, JobState::Queued);
    assert_eq!(states_now, [queued, held_now, queued]);
    world.thaw();
    assert_eq!(world.state(late), JobState::Running);
    world.run_for(30 * MS);
    assert_eq!(states(&world, [runs, late]), [JobState::Done; 2]);
    assert_eq!(world.state(held), JobState::Held);
}

#[test]
fn one_that_cannot_be_saved_fails() {
    let mut world = World::new(&[FERMATA, FERMATA], 8);
    let [hung, other] = [0; 2].map(|_| world.tenant(2 * MS));
    world.start(hung, ENDLESS).unwrap();
    world.start(other, 500 * MS).unwrap();
    world.run_for(MS);
    world.card.set_hang(0);
    world.freeze();
    world.rest();
    let failed = JobState::Failed(Failure::PreemptTimeout);
    assert_eq!(states(&world, [hung, other]), [failed, JobState::Queued]);
    world.thaw();
    world.run_for(1_000 * MS);
    assert_eq!(world.state(other), JobState::Done);
    assert_eq!(world.start(hung, MS), Ok(()));
}

/// A slot that cannot be reset: its job fails, and its memory stays with it.
fn quarantined() -> (World, ContextId) {
    let mut world = World::new(&[FERMATA], 8);
    let stuck = world.tenant(2 * MS);
    world.start(stuck, ENDLESS).unwrap();
    world.run_for(MS);
    world.card.slots[0].ignore_resets = u32::MAX;
    world.card.set_hang(0);
    world
        .event(Event::Preempt {
            ctx: stuck,
            hold: false,
        })
        .unwrap();
    world.run_for(1_000 * MS);
    let state = world.machine.slot_state(sid(0));
    assert_eq!(state, Some(SlotState::Quarantined));
    assert_eq!(world.start(stuck, MS), Err(Refusal::NoSlot));
    (world, stuck)
}

#[test]
fn a_quarantine_ends_with_the_card_set_up_anew() {
    let (mut world, stuck) = quarantined();
    world.freeze();
    world.rest();
    world.thaw();
    world.start(stuck, MS).unwrap();
    world.run_for(10 * MS);
    assert_eq!(world.state(stuck), JobState::Done);

    let (mut world, stuck) = quarantined();
    world.close(stuck).unwrap();
    assert!(!world.released.contains(&stuck));
    world.freeze();
    world.rest();
    world.thaw();
    assert!(world.released.contains(&stuck));
    assert_eq!(world.machine.contexts(), 0);
}

/// One that may use only slots that are reserved for others waits for the one that comes back.
#[test]
fn whoever_was_set_aside_uses_the_slot_that_came_back() {
    let (mut world, stuck) = quarantined();
    world.freeze();
    world.rest();
    world.thaw();
    let waits = world.tenant(2 * MS);
    world.start(stuck, ENDLESS).unwrap();
    world.set_enabled(waits, false).unwrap();
    world.start(waits, MS).unwrap();
    world.freeze();
    world.rest();
    world.set_enabled(waits, true).unwrap();
    world.thaw();
    world.run_for(10 * MS);
    assert_eq!(world.state(waits), JobState::Done);
}

#[test]
fn a_slot_that_is_not_idle_afterwards_is_out_of_use() {
    let mut world = World::new(&[FERMATA, FERMATA], 8);
    let only = Params {
        mask: 2,
        ..Params::DEFAULT
    };
    let [any, there] = [Params::DEFAULT, only].map(|params| world.open(0, params).unwrap());
    for ctx in [any, there] {
        world.start(ctx, 20 * MS).unwrap();
    }
    world.run_for(MS);
    world.freeze();
    world.rest();
    let from = world.log.len();
    // Its phase: running.
    world.renew(1, Status::from_raw(1));
    let slot = sid(1);
    let expected = Action::Quarantine { slot, ctx: None };
    assert!(world.actions(from).contains(&expected));
    let failed = JobState::Failed(Failure::Protocol);
    assert_eq!(states(&world, [any, there]), [JobState::Queued, failed]);
}

#[test]
fn what_is_on_a_card_that_cannot_be_reached_is_lost() {
    for plan in [FERMATA, BASE] {
        let mut world = World::new(&[plan], 8);
        let [runs, waits, closed] = [0; 3].map(|_| world.tenant(2 * MS));
        world.start(runs, 40 * MS).unwrap();
        world.start(waits, 40 * MS).unwrap();
        world.run_for(MS);
        world.lose_runs();
        assert!(world.machine.is_at_rest());
        let failed = JobState::Failed(Failure::Snapshot);
        assert_eq!(states(&world, [runs, waits]), [failed, JobState::Queued]);
        world.thaw();
        world.run_for(100 * MS);
        assert_eq!(world.state(waits), JobState::Done);
        world.start(closed, ENDLESS).unwrap();
        world.run_for(MS);
        world.close(closed).unwrap();
        world.lose_runs();
        assert!(world.released.contains(&closed));
    }
}

#[test]
fn what_is_lost_begins_anew_if_it_may() {
    for plan in [FERMATA, BASE] {
        let mut world = World::new(&[plan], 8);
        let ctx = world.tenant(2 * MS);
        world.start_as(ctx, 40 * MS, true).unwrap();
        for round in 1..=3 {
            world.run_for(30 * MS);
            world.lose_runs();
            let queued = (JobState::Queued, round);
            assert_eq!((world.state(ctx), world.stats(ctx).replays), queued);
            world.thaw();
        }
        world.run_for(30 * MS);
        world.lose_runs();
        let failed = JobState::Failed(Failure::Snapshot);
        assert_eq!((world.state(ctx), world.stats(ctx).replays), (failed, 3));
        world.thaw();
        // The next one begins to count anew.
        world.start_as(ctx, 40 * MS, true).unwrap();
        assert_eq!(world.stats(ctx).replays, 0);
        world.run_for(30 * MS);
        world.lose_runs();
        world.thaw();
        world.run_for(100 * MS);
        let done = (JobState::Done, 1);
        assert_eq!((world.state(ctx), world.stats(ctx).replays), done);
    }
}

/// One that was to be held is held at its beginning, and a torn save during a freeze is one as any other.
#[test]
fn a_save_torn_while_frozen_begins_anew() {
    let mut world = World::new(&[FERMATA], 8);
    let ctx = world.tenant(2 * MS);
    world.start_as(ctx, 10 * MS, true).unwrap();
    for hold in [false, true] {
        world.run_for(5 * MS);
        world.card.slots[0].torn = true;
        if hold {
            world.event(Event::Preempt { ctx, hold }).unwrap();
        }
        world.freeze();
        world.rest();
        let waits = if hold {
            JobState::Held
        } else {
            JobState::Queued
        };
        assert_eq!(world.state(ctx), waits);
        world.thaw();
    }
    assert_eq!(world.state(ctx), JobState::Held);
    world.event(Event::Resume { ctx }).unwrap();
    world.run_for(20 * MS);
    let stats = world.stats(ctx);
    assert_eq!((stats.state, stats.replays), (JobState::Done, 2));
    assert_eq!((stats.slices, stats.resumes), (3, 0));
}

#[test]
fn a_card_that_is_gone_stays_so() {
    let mut world = World::new(&[FERMATA], 8);
    let ctx = world.tenant(2 * MS);
    world.start(ctx, ENDLESS).unwrap();
    world.freeze();
    world.vanish();
    world.event(Event::Gone).unwrap();
    assert!(world.machine.is_at_rest());
    world.thaw();
    assert_eq!(world.state(ctx), JobState::Failed(Failure::Gone));
    assert_eq!(world.start(ctx, MS), Err(Refusal::Gone));
    let state = world.machine.slot_state(sid(0));
    assert_eq!(state, Some(SlotState::Gone));
}

/// A hint is served when the machine is thawed, and costs nothing for the time before.
#[test]
fn hints_wait_for_the_thaw() {
    let mut world = World::new(&[FERMATA], 8);
    let urgency = Urgency::LatencyCritical;
    let params = Params {
        urgency,
        ..Params::DEFAULT
    };
    let (lc, be) = (world.open(0, params).unwrap(), world.tenant(2 * MS));
    world.start(be, ENDLESS).unwrap();
    world.run_for(10 * MS);
    let at = ns(world.now + 5 * MS);
    world.event(Event::Hint { ctx: lc, at }).unwrap();
    world.freeze();
    world.rest();
    world.run_for(100 * MS);
    world.thaw();
    world.run_for(10 * MS);
    let stats = world.stats(lc);
    assert_eq!((stats.hints, stats.hints_used), (1, 0));
    assert_eq!(world.state(be), JobState::Running);
    assert_eq!(stats.run.as_ns(), 0);
}
