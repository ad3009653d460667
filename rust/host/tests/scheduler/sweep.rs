// SPDX-License-Identifier: GPL-2.0

//! What concerns every context is done in parts.

use crate::model::world::{World, FERMATA};
use crate::model::MS;
use fermata_sched_host::sched::{
    Action, ContextId, Event, Failure, GroupKey, JobState, Params, PolicyKind, Wake,
};

const ENDLESS: u64 = 1_000_000 * MS;
const WAITING: usize = 40;

/// A slot with a job on it, for which so many others wait; the later, the higher their priority.
fn crowd() -> (World, ContextId, Vec<ContextId>) {
    let mut world = World::new(&[FERMATA], WAITING + 2);
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

/// Sweeps in parts for so many contexts, and returns how many actions each part gave that `counts`.
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

/// A quarantine fails all that wait for the slot, and no part of that is larger than asked.
#[test]
fn defect_04_quarantine_fails_a_few_at_a_time() {
    let (mut world, runs, wait) = crowd();
    world.card.slots[0].ignore_resets = u32::MAX;
    world.close(runs).unwrap();
    world.run_for(100 * MS);
    assert_ne!(world.quarantined, 0);
    assert_eq!(world.state(wait[0]), JobState::Queued);
    let failed = Wake::Failed(Failure::Protocol);
    let parts = parts(
        &mut world,
        4,
        |action| matches!(action, Action::Wake { wake, .. } if *wake == failed),
    );
    assert_eq!(parts.iter().sum::<usize>(), WAITING);
    assert!(parts.iter().all(|&n| n <= 4), "{parts:?}");
}

/// The end of the card is known at once, and each context is told of it once, a few at a time.
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

/// Jobs that wait are put into the order of another policy in parts; the job on the slot stays there.
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

/// A slot that goes out of use while jobs are put into another order is not forgotten.
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

/// Nobody but contexts that may use no slot any more have waited for longer.
#[test]
fn the_boost_sees_past_contexts_of_a_quarantined_slot() {
    let mut world = World::new(&[FERMATA; 2], 16);
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

/// What a group had under another policy does not count against the group.
#[test]
fn groups_begin_anew_under_another_policy() {
    let mut world = World::new(&[FERMATA], 4);
    world.set_policy(PolicyKind::Fair).unwrap();
    let [light, heavy] = [1, 2].map(GroupKey);
    world.set_group_weight(light, 1).unwrap();
    let [a, b] = [light, heavy].map(|group| world.open_in(group, 0, Params::DEFAULT).unwrap());
    for ctx in [a, b] {
        world.start(ctx, ENDLESS).unwrap();
    }
    // The light one has run, and owes a hundred times as much.
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
