// SPDX-License-Identifier: GPL-2.0

//! Operations on all contexts of a card: changes of the policy, quarantines and the end of the card
//! are handled in parts, and all jobs are taken off a card that loses its state.

use fermata_sched_host::sched::{
    Action, ContextId, EndReason, Event, Failure, GroupKey, JobState, Params, PolicyKind, Refusal,
    SlotState, Status, Urgency, Wake,
};

use crate::model::{ns, sid, World, BASE, ENDLESS, IRQ, MS, RELAY, US};

const WAITING: usize = 40;

/// A slot with a job on it, for which [`WAITING`] others wait, of all priorities in turn.
fn crowd() -> (World, ContextId, Vec<ContextId>) {
    let mut world = World::new(&[IRQ], WAITING + 2);
    let first = Params {
        priority: Params::PRIORITY_MAX,
        ..Params::DEFAULT
    };
    let runs = world.open(0, first).unwrap();
    world.start(runs, ENDLESS).unwrap();
    let mut wait = Vec::new();
    for i in 0..WAITING {
        let params = Params {
            priority: i as u8 % 32,
            ..Params::DEFAULT
        };
        let ctx = world.open(0, params).unwrap();
        world.start(ctx, MS).unwrap();
        wait.push(ctx);
    }
    world.lazy = true;
    (world, runs, wait)
}

/// Sweeps in parts of `most` contexts. Returns, for each part, the number of actions that `counts`
/// accepts.
fn parts(world: &mut World, most: u32, counts: impl Fn(&Action) -> bool) -> Vec<usize> {
    let mut parts = Vec::new();
    while world.machine.is_sweeping() {
        let from = world.log.len();
        world.sweep(most);
        let actions = world.log[from..].iter();
        parts.push(actions.filter(|(_, action)| counts(action)).count());
    }
    parts
}

/// A quarantine fails the successor, and then all jobs that wait for the slot, in parts no larger than
/// requested.
#[test]
fn defect_04_quarantine_fails_a_few_at_a_time() {
    let (mut world, runs, wait) = crowd();
    world.card.slots[0].ignore_resets = u32::MAX;
    world.close(runs).unwrap();
    world.run_for(100 * MS);
    assert_ne!(world.quarantined, 0);
    assert_eq!(world.state(wait[0]), JobState::Failed(Failure::Protocol));
    assert_eq!(world.state(wait[1]), JobState::Queued);
    let failed = Wake::Failed(Failure::Protocol);
    let parts = parts(
        &mut world,
        4,
        |action| matches!(action, Action::Wake { wake, .. } if *wake == failed),
    );
    assert_eq!(parts.iter().sum::<usize>(), WAITING - 1);
    assert!(parts.iter().all(|&n| n <= 4), "{parts:?}");
}

/// The end of the card takes effect at once, and contexts are notified once each, a few at a time.
#[test]
fn defect_04_end_of_the_card_is_told_to_a_few_at_a_time() {
    let (mut world, runs, wait) = crowd();
    world.close(runs).unwrap();
    world.event(Event::Gone).unwrap();
    assert!(world.machine.is_gone());
    assert!(world.lost.is_empty());
    let parts = parts(&mut world, 4, |action| {
        matches!(action, Action::Lost { .. })
    });
    assert!(parts.iter().all(|&n| n <= 4), "{parts:?}");
    assert_eq!(world.lost, wait.iter().copied().collect());
    assert!(world.released.contains(&runs));
    let gone = JobState::Failed(Failure::Gone);
    assert!(wait.iter().all(|&ctx| world.state(ctx) == gone));
}

/// Waiting jobs are sorted by another policy in parts; the job on the slot stays there.
#[test]
fn defect_04_policy_changes_in_parts() {
    let (mut world, runs, wait) = crowd();
    let from = world.log.len();
    world.set_policy(PolicyKind::Priority).unwrap();
    assert_eq!(world.machine.policy(), PolicyKind::Priority);
    while world.machine.is_sweeping() {
        world.sweep(4);
        world.run_for(MS / 100);
    }
    assert_eq!(world.state(runs), JobState::Running);
    world.close(runs).unwrap();
    world.run_for(1_000 * MS);
    let started = |&(_, action): &(u64, Action)| match action {
        Action::Start { ctx, .. } => Some(ctx),
        _ => None,
    };
    let started: Vec<_> = world.log[from..].iter().filter_map(started).collect();
    let priority = |&ctx: &ContextId| world.machine.params(ctx).unwrap().priority;
    assert!(started.iter().map(priority).is_sorted_by(|a, b| a >= b));
    assert!(wait.iter().all(|&ctx| world.state(ctx) == JobState::Done));
}

/// A slot that is quarantined while waiting jobs are sorted again is not forgotten.
#[test]
fn defect_04_quarantine_during_a_change_of_the_policy() {
    let (mut world, runs, wait) = crowd();
    world.set_policy(PolicyKind::Fair).unwrap();
    while world.machine.is_sweeping() {
        world.sweep(4);
    }
    world.set_policy(PolicyKind::RoundRobin).unwrap();
    // All groups, and some of the contexts.
    world.sweep(u32::MAX);
    world.sweep(WAITING as u32 / 2);
    world.card.slots[0].ignore_resets = u32::MAX;
    world.close(runs).unwrap();
    world.run_for(100 * MS);
    assert_ne!(world.quarantined, 0);
    while world.machine.is_sweeping() {
        world.sweep(4);
    }
    let failed = JobState::Failed(Failure::Protocol);
    assert!(wait.iter().all(|&ctx| world.state(ctx) == failed));
}

/// The only contexts that have waited for longer may not use any slot now.
#[test]
fn the_boost_sees_past_contexts_of_a_quarantined_slot() {
    let mut world = World::new(&[IRQ; 2], 16);
    world.set_policy(PolicyKind::Priority).unwrap();
    let group = GroupKey(1);
    world.set_exclusive(2, Some(group)).unwrap();
    let hung = world.tenant(MS);
    world.start(hung, ENDLESS).unwrap();
    for _ in 0..8 {
        let ctx = world.tenant(MS);
        world.start(ctx, ENDLESS).unwrap();
    }
    let [low, high] = [0, 1].map(|priority| {
        let params = Params {
            priority,
            mask: 2,
            ..Params::DEFAULT
        };
        world.open_in(group, 0, params).unwrap()
    });
    world.start(high, ENDLESS).unwrap();
    world.start(low, ENDLESS).unwrap();
    world.card.slots[0].ignore_resets = u32::MAX;
    world.close(hung).unwrap();
    world.run_for(1_500 * MS);
    assert_ne!(world.quarantined, 0);
    assert_ne!(world.stats(low).slices, 0);
}

/// Time that a group used under another policy does not count against the group.
#[test]
fn groups_begin_anew_under_another_policy() {
    let mut world = World::new(&[IRQ], 4);
    world.set_policy(PolicyKind::Fair).unwrap();
    let [light, heavy] = [1, 2].map(GroupKey);
    world.set_group_weight(light, 1).unwrap();
    let [a, b] = [light, heavy].map(|group| world.open_in(group, 0, Params::DEFAULT).unwrap());
    for ctx in [a, b] {
        world.start(ctx, ENDLESS).unwrap();
    }
    // The group of small weight has run, and its virtual time has advanced a hundred times as much.
    world.run_for(20 * MS);
    let before = world.stats(a).slices;
    world.run_for(20 * MS);
    assert_eq!(world.stats(a).slices, before);
    for policy in [PolicyKind::RoundRobin, PolicyKind::Fair] {
        world.set_policy(policy).unwrap();
    }
    world.run_for(20 * MS);
    assert_eq!(world.stats(a).slices, before + 1);
}

// All jobs are taken off a card that loses its state, and resume afterwards.

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
    for plan in [IRQ, BASE] {
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
            // One job starts at once, the other at the next decision.
            assert_eq!(starts(&world), before + 1);
            world.run_for(2 * US);
            assert_eq!(starts(&world), before + 2);
        }
        world.run_for(200 * MS);
        world.event(Event::Resume { ctx }).unwrap();
        world.run_for(200 * MS);
        assert_eq!(states(&world, all), [JobState::Done; 4]);
    }
}

/// Returns whether `action` accesses registers.
fn touches(action: &Action) -> bool {
    matches!(
        action,
        Action::ReadStatus { .. }
            | Action::Load { .. }
            | Action::Start { .. }
            | Action::Pause { .. }
            | Action::Order { .. }
            | Action::Reset { .. }
            | Action::Quarantine { .. }
    )
}

/// A read of all-ones would be taken for the end of the card.
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
    assert!(!actions.iter().any(touches), "{actions:?}");
}

#[test]
fn owners_may_ask_for_anything_meanwhile() {
    let mut world = World::new(&[IRQ], 8);
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
    let mut world = World::new(&[IRQ, IRQ], 8);
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

/// A slot that cannot be reset: its job fails, and the memory of the job stays mapped.
fn quarantined() -> (World, ContextId) {
    let mut world = World::new(&[IRQ], 8);
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

/// A job that was ineligible while all jobs were off the card runs on the slot that came back.
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
    let mut world = World::new(&[IRQ, IRQ], 8);
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
    // The status says that the phase is running.
    world.renew(1, Status::from_raw(1));
    let slot = sid(1);
    let expected = Action::Quarantine { slot, ctx: None };
    assert!(world.actions(from).contains(&expected));
    let failed = JobState::Failed(Failure::Protocol);
    assert_eq!(states(&world, [any, there]), [JobState::Queued, failed]);
}

#[test]
fn what_is_on_a_card_that_cannot_be_reached_is_lost() {
    for plan in [IRQ, BASE] {
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

/// Runs until slot 0, of a base card, is reset after a run that has ended for `reason`.
fn until_reset_after(world: &mut World, reason: EndReason) {
    let has_ended = |&(_, action): &(u64, Action)| match action {
        Action::Ended { run, .. } => run.reason == reason,
        _ => false,
    };
    while !world.log.iter().any(has_ended) {
        assert!(world.now < 100 * MS, "no run has ended");
        world.run_for(MS / 100);
    }
    let state = world.machine.slot_state(sid(0));
    assert!(matches!(state, Some(SlotState::Resetting(_))), "{state:?}");
}

/// A base slot reports the end of a run before the last DMA, for which its reset waits until the
/// last read: if the card is cut off before, a snapshot or results may not be complete.
#[test]
fn a_base_run_whose_last_dma_may_be_lost_is_lost() {
    let reasons = [EndReason::Paused, EndReason::Finished];
    let cases = reasons.map(|reason| [(reason, false), (reason, true)]);
    for ((reason, replayable), is_settled) in cases
        .iter()
        .flatten()
        .flat_map(|&case| [(case, false), (case, true)])
    {
        let mut world = World::new(&[BASE], 8);
        let [ctx, waits] = [0; 2].map(|_| world.tenant(2 * MS));
        world.start_as(ctx, 5 * MS, replayable).unwrap();
        if reason == EndReason::Paused {
            world.start(waits, MS).unwrap();
        }
        until_reset_after(&mut world, reason);
        if is_settled {
            // The reset is released, and the read that follows is not answered.
            let timer = Event::Timer { slot: sid(0) };
            let handled = world.machine.handle(ns(world.now + MS), timer, &mut |_| ());
            assert_eq!(handled, Ok(()));
        }
        world.cut_off();
        world.end_lost_runs();
        let (state, stats) = (world.state(ctx), world.stats(ctx));
        let expected = match replayable {
            true => (JobState::Queued, 1),
            false => (JobState::Failed(Failure::Snapshot), 0),
        };
        assert_eq!((state, stats.replays), expected);
        world.thaw();
        world.run_for(100 * MS);
        assert_eq!(world.state(ctx) == JobState::Done, replayable);
    }
}

/// A card that does not answer is cut off until its link is reset, or until it is given up. No
/// register is accessed, whatever its owners ask for meanwhile.
#[test]
fn requests_while_the_card_is_cut_off() {
    for (plan, is_gone) in [(IRQ, false), (IRQ, true), (BASE, false), (BASE, true)] {
        let mut world = World::new(&[plan], 8);
        let [runs, held, closed, late] = [0; 4].map(|_| world.tenant(2 * MS));
        world.start(closed, 40 * MS).unwrap();
        world.start(held, 40 * MS).unwrap();
        world.run_for(5 * MS);
        world.start(runs, ENDLESS).unwrap();
        while world.machine.slot_state(sid(0)) != Some(SlotState::Running(runs)) {
            world.run_for(MS / 10);
        }
        let from = world.log.len();
        world.cut_off();
        world.start(late, MS).unwrap();
        world
            .event(Event::Preempt {
                ctx: held,
                hold: true,
            })
            .unwrap();
        world
            .event(Event::Preempt {
                ctx: runs,
                hold: true,
            })
            .unwrap();
        world.close(closed).unwrap();
        world.run_for(3_000 * MS);
        let actions = world.actions(from);
        assert!(!actions.iter().any(touches), "{actions:?}");
        assert!(world.released.contains(&closed));
        if is_gone {
            world.event(Event::Gone).unwrap();
            world.run_for(MS);
            let gone = JobState::Failed(Failure::Gone);
            assert_eq!(states(&world, [runs, held, late]), [gone; 3]);
            continue;
        }
        world.end_lost_runs();
        let failed = JobState::Failed(Failure::Snapshot);
        assert_eq!(states(&world, [runs, held]), [failed, JobState::Held]);
        world.thaw();
        world.event(Event::Resume { ctx: held }).unwrap();
        world.run_for(100 * MS);
        assert_eq!(states(&world, [held, late]), [JobState::Done; 2]);
    }
}

#[test]
fn what_is_lost_begins_anew_if_it_may() {
    for plan in [IRQ, BASE] {
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
        // The count of the next job starts from zero.
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

/// A job that was to be held is held at its beginning. A torn save during a freeze is handled like
/// any other.
#[test]
fn a_save_torn_while_frozen_begins_anew() {
    let mut world = World::new(&[IRQ], 8);
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
    let mut world = World::new(&[IRQ], 8);
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

/// A hint takes effect when the machine is thawed, and costs nothing for the time before.
#[test]
fn hints_wait_for_the_thaw() {
    let mut world = World::new(&[IRQ], 8);
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

/// Each read of a slot that does not answer may take as long as the link's time-out: the slot is
/// reset at once.
#[test]
fn a_slot_that_does_not_answer_is_not_asked_again() {
    for plan in [IRQ, RELAY, BASE] {
        let mut world = World::new(&[plan], 2);
        let ctx = world.tenant(2 * MS);
        world.start(ctx, ENDLESS).unwrap();
        world.run_for(MS);
        let event = Event::Status {
            slot: sid(0),
            status: Status::UNANSWERED,
        };
        let mut touched = Vec::new();
        let handled = world.machine.handle(ns(world.now), event, &mut |action| {
            touched.extend(touches(&action).then_some(action));
        });
        assert_eq!(handled, Ok(()));
        let first = touched.first();
        assert!(
            matches!(first, Some(Action::Reset { hold: true, .. })),
            "{touched:?}"
        );
    }
}

/// A base card shows IDLE until START has reached the engine: one such read after any time is no
/// violation, a second one is.
#[test]
fn a_start_that_is_late_fails_no_job() {
    for (second, fails) in [(1, false), (0, true)] {
        let mut world = World::new(&[BASE], 2);
        let ctx = world.tenant(2 * MS);
        world.start(ctx, ENDLESS).unwrap();
        let late = ns(world.now + 60 * MS);
        for (raw, reads, resets) in [(0, true, false), (second, fails, fails)] {
            let (slot, status) = (sid(0), Status::from_raw(raw));
            let mut seen = (false, false);
            let event = Event::Status { slot, status };
            let handled = world
                .machine
                .handle(late, event, &mut |action| match action {
                    Action::ReadStatus { .. } => seen.0 = true,
                    Action::Reset { hold: true, .. } => seen.1 = true,
                    _ => {}
                });
            assert_eq!((handled, seen), (Ok(()), (reads, resets)), "status {raw}");
        }
    }
}
