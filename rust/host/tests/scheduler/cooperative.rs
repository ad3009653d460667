// SPDX-License-Identifier: GPL-2.0

//! Cooperative contexts: their jobs stop at a boundary, and are charged for the time until then.

use crate::model::check::{check_shares, ran, shares};
use crate::model::{cases, ns, sid, SlotPlan, World, ENDLESS, IRQ, MS, US};
use fermata_sched_host::sched::{
    Action, ContextId, Duration, Event, Failure, JobState, Params, PolicyKind, PreemptGranularity,
    Refusal, SlotStats, Urgency, Wake,
};
use proptest::prelude::*;

const SAVE: u64 = 50 * US;
/// Longer than any block.
const PATIENT: Duration = Duration::from_ms(10_000);

const COOPERATIVE: Params = Params {
    cooperative: true,
    ..Params::DEFAULT
};
const URGENT: Params = Params {
    urgency: Urgency::LatencyCritical,
    ..Params::DEFAULT
};

/// One slot; the engine has a boundary after each millisecond of work.
fn world(granularity: PreemptGranularity) -> World {
    let plan = SlotPlan { granularity, ..IRQ };
    let mut world = World::new(&[plan], 8);
    world.set_policy(PolicyKind::Fair).unwrap();
    world
}

fn slot(world: &World) -> SlotStats {
    world.machine.slot_stats(sid(0), ns(world.now)).unwrap()
}

/// Starts a job with these parameters, and urgent work `after` ns later.
fn interrupted(world: &mut World, params: Params, after: u64) -> [ContextId; 2] {
    let (job, urgent) = (
        world.open(0, params).unwrap(),
        world.open(0, URGENT).unwrap(),
    );
    world.start(job, ENDLESS).unwrap();
    world.run_for(after);
    world.start(urgent, 10 * US).unwrap();
    [job, urgent]
}

fn pauses(world: &World) -> Vec<bool> {
    let boundary = |(_, action): &(u64, Action)| match action {
        Action::Pause { boundary, .. } => Some(*boundary),
        _ => None,
    };
    world.log.iter().filter_map(boundary).collect()
}

#[test]
fn a_cooperative_job_stops_at_its_next_boundary() {
    let mut world = world(PreemptGranularity::AnywhereOrBoundary);
    let [job, urgent] = interrupted(&mut world, COOPERATIVE, 300 * US);
    world.run_for(690 * US);
    assert_eq!(world.state(urgent), JobState::Queued, "before the boundary");
    world.run_for(10 * US + SAVE);
    assert_eq!(world.state(urgent), JobState::Running);
    assert!(pauses(&world).iter().all(|&boundary| boundary));
    // The job worked until the boundary, and the rest is the save.
    assert_eq!(world.stats(job).run, Duration::from_ns(MS + SAVE));
}

#[test]
fn any_other_job_stops_at_once() {
    for (stops, params) in [
        (PreemptGranularity::AnywhereOrBoundary, Params::DEFAULT),
        // An engine without boundaries has no cooperative contexts.
        (PreemptGranularity::Anywhere, COOPERATIVE),
    ] {
        let mut world = world(stops);
        let [_, urgent] = interrupted(&mut world, params, 300 * US);
        world.run_for(SAVE);
        assert_eq!(world.state(urgent), JobState::Running);
        assert_eq!(pauses(&world), [false]);
    }
}

#[test]
fn an_engine_that_stops_at_boundaries_only_makes_all_cooperative() {
    let mut world = world(PreemptGranularity::BoundaryOnly);
    let [_, urgent] = interrupted(&mut world, Params::DEFAULT, 300 * US);
    world.run_for(600 * US);
    assert_eq!(world.state(urgent), JobState::Queued);
    world.run_for(100 * US + SAVE);
    assert_eq!(world.state(urgent), JobState::Running);
    assert!(pauses(&world).iter().all(|&boundary| boundary));
}

/// The time until the boundary is the job's own work. The save cannot be told apart from it, and is
/// charged to the job, too.
#[test]
fn the_time_until_the_boundary_is_charged_to_the_job() {
    let share = |params: Params| {
        let mut world = world(PreemptGranularity::AnywhereOrBoundary);
        let [a, b] = [params, params].map(|params| world.open(0, params).unwrap());
        let urgent = world.open(0, URGENT).unwrap();
        world.start(a, ENDLESS).unwrap();
        world.start(b, ENDLESS).unwrap();
        // Urgent work always arrives while `a` runs.
        for _ in 0..2_000 {
            while world.state(a) != JobState::Running {
                world.run_for(20 * US);
            }
            world.run_for(100 * US);
            if world.state(a) == JobState::Running {
                world.start(urgent, 10 * US).unwrap();
            }
            world.run_for(3 * MS);
        }
        shares(&[ran(&world, a), ran(&world, b)])[0]
    };
    let share = share(COOPERATIVE);
    assert!((share - 0.5).abs() < 0.01, "{share}");
}

#[test]
fn the_time_until_the_boundary_is_no_save() {
    let mut world = world(PreemptGranularity::AnywhereOrBoundary);
    interrupted(&mut world, COOPERATIVE, 100 * US);
    world.run_for(5 * MS);
    let stats = slot(&world);
    assert_eq!((stats.saves, stats.save_max), (1, Duration::ZERO));
    // The restore time is known by now, and serves as the estimate for the save.
    world.run_for(10 * MS);
    interrupted(&mut world, Params::DEFAULT, 100 * US);
    world.run_for(50 * MS);
    let stats = slot(&world);
    assert_eq!(stats.restore, Duration::from_us(50));
    assert!(stats.save_max <= Duration::from_ns(SAVE));
}

#[test]
fn the_preempt_timeout_bounds_the_way_to_the_boundary() {
    let mut world = world(PreemptGranularity::AnywhereOrBoundary);
    world.card.slots[0].block = 1_000 * MS;
    world.set_boundary_wait(PATIENT).unwrap();
    let params = Params {
        preempt_timeout: Duration::from_ms(20),
        ..COOPERATIVE
    };
    let [job, urgent] = interrupted(&mut world, params, 100 * US);
    let spoilt = (job, world.tenants[&job].job);
    world.card.guilty.insert(spoilt);
    world.run_for(19 * MS);
    assert_eq!(world.state(urgent), JobState::Queued);
    world.run_for(6 * MS);
    let failed = Wake::Failed(Failure::PreemptTimeout);
    assert_eq!(world.wakes, [(job, failed), (urgent, Wake::Done)]);
    assert!(pauses(&world).iter().all(|&boundary| boundary));
}

/// The boundary is still far away when the owner makes the context non-cooperative.
#[test]
fn who_is_not_cooperative_any_more_is_stopped_at_once() {
    let mut world = world(PreemptGranularity::AnywhereOrBoundary);
    world.card.slots[0].block = 50 * MS;
    world.set_boundary_wait(PATIENT).unwrap();
    let [job, urgent] = interrupted(&mut world, COOPERATIVE, 100 * US);
    world.run_for(5 * MS);
    assert_eq!(world.state(urgent), JobState::Queued);
    // A PAUSE is repeated rarely where saves take long.
    world.card.slots[0].save = 60 * MS;
    world.set_params(job, Params::DEFAULT).unwrap();
    assert_eq!(pauses(&world).last(), Some(&false));
    assert!(pauses(&world)[0]);
    world.set_params(job, COOPERATIVE).unwrap();
    world.set_params(job, Params::DEFAULT).unwrap();
    let told = pauses(&world).len();
    world.run_for(61 * MS);
    assert_eq!(world.wakes, [(urgent, Wake::Done)]);
    assert!(pauses(&world)[told..].iter().all(|&boundary| !boundary));
}

/// Returns the reported overruns: how long jobs made urgent work wait beyond the boundary wait.
fn overruns(world: &World) -> Vec<Duration> {
    let span = |(_, action): &(u64, Action)| match action {
        Action::Overrun { span, .. } => Some(*span),
        _ => None,
    };
    world.log.iter().filter_map(span).collect()
}

#[test]
fn work_that_goes_first_does_not_wait_for_a_far_boundary() {
    let mut world = world(PreemptGranularity::AnywhereOrBoundary);
    world.card.slots[0].block = 50 * MS;
    let [job, urgent] = interrupted(&mut world, COOPERATIVE, 300 * US);
    world.run_for(990 * US);
    assert_eq!(world.state(urgent), JobState::Queued, "before the bound");
    world.run_for(10 * US + SAVE);
    assert_eq!(world.state(urgent), JobState::Running);
    assert_eq!(world.state(job), JobState::Queued);
    let told = pauses(&world);
    assert_eq!(told.last(), Some(&false));
    assert!(told[..told.len() - 1].iter().all(|&boundary| boundary));
    assert_eq!(overruns(&world), [Duration::ZERO]);
    // From the plain PAUSE on, time counts as the save.
    let stats = slot(&world);
    assert_eq!(stats.overruns, 1);
    assert_eq!(stats.save_max, Duration::from_ns(SAVE));
}

/// The job is on its way to a boundary because its slice is over when urgent work arrives.
#[test]
fn the_bound_begins_when_work_that_goes_first_comes() {
    let mut world = world(PreemptGranularity::AnywhereOrBoundary);
    world.card.slots[0].block = 50 * MS;
    let [job, other] = [COOPERATIVE, COOPERATIVE].map(|params| world.open(0, params).unwrap());
    let urgent = world.open(0, URGENT).unwrap();
    world.start(job, ENDLESS).unwrap();
    world.start(other, ENDLESS).unwrap();
    world.run_for(20 * MS);
    assert_eq!(pauses(&world).first(), Some(&true));
    assert!(
        overruns(&world).is_empty(),
        "an equal waits for the boundary"
    );
    world.start(urgent, 10 * US).unwrap();
    world.run_for(990 * US);
    assert_eq!(world.state(urgent), JobState::Queued);
    world.run_for(10 * US + SAVE);
    assert_eq!(world.state(urgent), JobState::Running);
    assert_eq!(overruns(&world), [Duration::ZERO]);
}

#[test]
fn who_does_not_wait_any_more_bounds_nothing() {
    let mut world = world(PreemptGranularity::AnywhereOrBoundary);
    world.card.slots[0].block = 50 * MS;
    let [job, urgent] = interrupted(&mut world, COOPERATIVE, 300 * US);
    world.run_for(500 * US);
    world
        .event(Event::Preempt {
            ctx: urgent,
            hold: true,
        })
        .unwrap();
    world.run_for(20 * MS);
    assert_eq!(world.state(job), JobState::Running);
    assert!(pauses(&world).iter().all(|&boundary| boundary));
    assert!(overruns(&world).is_empty());
}

/// The engine stops at boundaries only. The wait ends at the very moment at which it is too long.
#[test]
fn a_wait_that_ends_with_its_bound_is_no_overrun() {
    let mut world = world(PreemptGranularity::BoundaryOnly);
    world.card.slots[0].block = 50 * MS;
    let [_, urgent] = interrupted(&mut world, Params::DEFAULT, 300 * US);
    world.run_for(MS);
    assert_eq!(slot(&world).overruns, 1);
    let (ctx, hold) = (urgent, true);
    world.event(Event::Preempt { ctx, hold }).unwrap();
    world.run_for(20 * MS);
    assert!(overruns(&world).is_empty());
}

#[test]
fn a_higher_priority_does_not_wait_for_a_far_boundary() {
    let mut world = world(PreemptGranularity::AnywhereOrBoundary);
    world.set_policy(PolicyKind::Priority).unwrap();
    world.card.slots[0].block = 50 * MS;
    let high = Params {
        priority: Params::PRIORITY_MAX,
        ..Params::DEFAULT
    };
    let [job, first] = [COOPERATIVE, high].map(|params| world.open(0, params).unwrap());
    world.start(job, ENDLESS).unwrap();
    world.run_for(300 * US);
    world.start(first, 10 * US).unwrap();
    world.run_for(MS + SAVE);
    assert_eq!(world.state(first), JobState::Running);
}

/// Such an engine cannot be stopped earlier: time beyond the bound is charged to the job, and
/// counted.
#[test]
fn beyond_the_bound_an_engine_that_stops_at_boundaries_only_is_charged_and_counted() {
    let mut world = world(PreemptGranularity::BoundaryOnly);
    world.card.slots[0].block = 20 * MS;
    let [job, urgent] = interrupted(&mut world, Params::DEFAULT, 300 * US);
    let group = world.tenants[&job].group;
    world.run_for(20 * MS - 300 * US + SAVE);
    assert_eq!(world.state(urgent), JobState::Running);
    assert!(pauses(&world).iter().all(|&boundary| boundary));
    let over = Duration::from_ns(20 * MS - 300 * US - MS + SAVE);
    assert_eq!(overruns(&world), [over]);
    assert_eq!((slot(&world).overruns, slot(&world).overrun), (1, over));
    let ran = Duration::from_ns(20 * MS + SAVE);
    assert_eq!(world.stats(job).run, ran);
    assert_eq!(world.stats(urgent).run, Duration::ZERO);
    assert_eq!(world.machine.group_stats(group, ns(world.now)).run, ran);
}

#[test]
fn a_bound_is_no_longer_than_the_longest_preempt_timeout() {
    let mut world = world(PreemptGranularity::AnywhereOrBoundary);
    assert_eq!(world.machine.boundary_wait(), Duration::from_ms(1));
    assert_eq!(
        world.set_boundary_wait(Duration::from_ns(10_000 * MS + 1)),
        Err(Refusal::Range)
    );
    assert_eq!(world.machine.boundary_wait(), Duration::from_ms(1));
    world.set_boundary_wait(Duration::ZERO).unwrap();
    world.card.slots[0].block = 50 * MS;
    let [_, urgent] = interrupted(&mut world, COOPERATIVE, 300 * US);
    world.run_for(SAVE);
    assert_eq!(world.state(urgent), JobState::Running);
}

#[test]
fn who_becomes_cooperative_while_it_is_saved_is_so_from_the_next_time_on() {
    let mut world = world(PreemptGranularity::AnywhereOrBoundary);
    world.card.slots[0].ignore_pauses = 1;
    let [job, urgent] = interrupted(&mut world, Params::DEFAULT, 100 * US);
    world.set_params(job, COOPERATIVE).unwrap();
    world.run_for(MS);
    assert_eq!(world.wakes, [(urgent, Wake::Done)]);
    assert_eq!(pauses(&world), [false, false]);
}

/// Returns how often a timer was armed.
fn arms(world: &World) -> usize {
    world.arms().count()
}

/// Starts a cooperative job whose boundary is far and whose save is long, and urgent work, which
/// waits for the boundary.
fn far(world: &mut World) -> [ContextId; 2] {
    world.card.slots[0].block = 200 * MS;
    world.card.slots[0].save = 60 * MS;
    world.set_boundary_wait(Duration::from_ms(20)).unwrap();
    let ids = interrupted(world, COOPERATIVE, 300 * US);
    world.run_for(5 * MS);
    ids
}

/// The bound passes while the job is saved.
#[test]
fn no_storm_of_timers_follows_if_cooperative_is_taken_back_during_a_boundary_wait() {
    let mut world = world(PreemptGranularity::AnywhereOrBoundary);
    let [job, urgent] = far(&mut world);
    world.set_params(job, Params::DEFAULT).unwrap();
    world.run_for(70 * MS);
    assert_eq!(world.wakes, [(urgent, Wake::Done)]);
    assert!(arms(&world) < 60, "{}", arms(&world));
}

/// While the scheduler is frozen, no work waits for the boundary.
#[test]
fn no_storm_of_timers_follows_a_freeze_during_a_boundary_wait() {
    for granularity in [
        PreemptGranularity::AnywhereOrBoundary,
        PreemptGranularity::BoundaryOnly,
    ] {
        for before in [0, 30 * MS] {
            let mut world = world(granularity);
            let [job, urgent] = far(&mut world);
            let spoilt = (job, world.tenants[&job].job);
            world.card.guilty.insert(spoilt);
            world.run_for(before);
            world.freeze();
            world.rest();
            world.thaw();
            world.run_for(20 * MS);
            assert!(world.wakes.contains(&(urgent, Wake::Done)));
            assert!(arms(&world) < 100, "{}", arms(&world));
        }
    }
}

proptest! {
    #![proptest_config(cases(24))]

    /// Whatever the blocks, the bound and the policy are, urgent work waits at most for the bound
    /// and the save.
    #[test]
    fn nobody_waits_for_a_boundary_beyond_the_bound(
        block in 10..100_000u64,
        wait in 0..20_000u64,
        afters in prop::collection::vec(200..30_000u64, 1..20),
        policy in prop::sample::select(vec![
            PolicyKind::Fair, PolicyKind::RoundRobin, PolicyKind::Priority,
        ]),
        others in 0..3usize,
    ) {
        let mut world = world(PreemptGranularity::AnywhereOrBoundary);
        world.set_policy(policy).unwrap();
        world.card.slots[0].block = block * US;
        world.set_boundary_wait(Duration::from_us(wait)).unwrap();
        for _ in 0..=others {
            let ctx = world.open(0, COOPERATIVE).unwrap();
            world.start(ctx, ENDLESS).unwrap();
        }
        let urgent = world.open(0, URGENT).unwrap();
        for after in afters {
            world.run_for(after * US);
            let before = world.stats(urgent).wait;
            world.start(urgent, 10 * US).unwrap();
            while world.state(urgent) == JobState::Queued {
                world.run_for(10 * US);
            }
            let waited = world.stats(urgent).wait.as_ns() - before.as_ns();
            // An engine drops a PAUSE during a restore; the PAUSE is written again after the
            // restore.
            let most = wait * US + 2 * SAVE + 100 * US;
            prop_assert!(waited <= most, "{waited} ns, at most {most}");
            while world.state(urgent).is_live() {
                world.run_for(10 * US);
            }
        }
        prop_assert!(overruns(&world).iter().all(|&span| span == Duration::ZERO));
    }

    /// The time until a boundary is time on the slot, so shares are right with blocks of any
    /// length.
    #[test]
    fn shares_do_not_depend_on_blocks(
        blocks in 10..3_000u64,
        weights in prop::collection::vec(50..400u16, 2..5),
        only in any::<bool>(),
    ) {
        let mut world = world(if only { PreemptGranularity::BoundaryOnly } else { PreemptGranularity::AnywhereOrBoundary });
        world.card.slots[0].block = blocks * US;
        let who: Vec<ContextId> = weights
            .iter()
            .enumerate()
            .map(|(i, &weight)| {
                let cooperative = i % 2 == 0;
                let params = Params { weight, cooperative, ..Params::DEFAULT };
                world.open(0, params).unwrap()
            })
            .collect();
        for &ctx in &who {
            world.start(ctx, ENDLESS).unwrap();
        }
        world.run_for(6_000 * MS);
        let had: Vec<f64> = who.iter().map(|&ctx| ran(&world, ctx)).collect();
        check_shares(&had, &weights, 0.01)?;
    }
}
