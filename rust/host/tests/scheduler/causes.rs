// SPDX-License-Identifier: GPL-2.0

//! Why a job leaves its slot, as it is told in traces.

use crate::model::world::{ns, sid, World, FERMATA};
use crate::model::MS;
use fermata_sched_host::sched::{
    Action, ContextId, Duration, Event, Params, PauseCause, PolicyKind, Urgency,
};

const ENDLESS: u64 = 1_000_000 * MS;
const CRITICAL: Params = Params {
    urgency: Urgency::LatencyCritical,
    ..Params::DEFAULT
};

/// One slot, and a job without end on it.
fn busy(params: Params) -> (World, ContextId) {
    let mut world = World::new(&[FERMATA], 8);
    let ctx = world.open(0, params).unwrap();
    world.start(ctx, ENDLESS).unwrap();
    world.run_for(MS);
    (world, ctx)
}

fn causes(world: &World) -> Vec<PauseCause> {
    let cause = |(_, action): &(u64, Action)| match action {
        Action::Pause { cause, .. } => Some(*cause),
        _ => None,
    };
    world.log.iter().filter_map(cause).collect()
}

#[test]
fn the_end_of_a_slice() {
    let (mut world, _) = busy(Params::DEFAULT);
    let waiter = world.tenant(2 * MS);
    world.start(waiter, ENDLESS).unwrap();
    world.run_for(3 * MS);
    assert_eq!(causes(&world)[0], PauseCause::Slice { waiter });
}

#[test]
fn one_that_goes_before_it() {
    let (mut world, _) = busy(Params::DEFAULT);
    let waiter = world.open(0, CRITICAL).unwrap();
    world.start(waiter, MS).unwrap();
    assert_eq!(causes(&world), [PauseCause::Outranked { waiter }]);
}

#[test]
fn one_that_starves() {
    let (mut world, _) = busy(CRITICAL);
    world.set_boost(Duration::from_ms(20)).unwrap();
    let waiter = world.tenant(2 * MS);
    world.start(waiter, ENDLESS).unwrap();
    world.run_for(30 * MS);
    let cause = PauseCause::Starving { waiter };
    assert_eq!(causes(&world)[0], cause);
    let boosted = |(_, action): &(u64, Action)| matches!(action, Action::Start { ctx, boosted: true, .. } if *ctx == waiter);
    assert!(world.log.iter().any(boosted));
}

#[test]
fn its_cap() {
    let capped = Params {
        cap: 10,
        ..Params::DEFAULT
    };
    let (mut world, _) = busy(capped);
    world.run_for(100 * MS);
    let causes = causes(&world);
    assert!(!causes.is_empty() && causes.iter().all(|&cause| cause == PauseCause::Limit));
}

#[test]
fn a_slot_that_it_may_not_use_any_more() {
    let (mut world, ctx) = busy(Params::DEFAULT);
    world.set_enabled(ctx, false).unwrap();
    assert_eq!(causes(&world), [PauseCause::Slots]);
}

#[test]
fn a_hint_for_which_the_slot_is_kept() {
    let (mut world, ctx) = busy(Params::DEFAULT);
    let waiter = world.open(0, CRITICAL).unwrap();
    let at = ns(world.now + MS);
    world.event(Event::Hint { ctx: waiter, at }).unwrap();
    world.run_for(MS);
    assert_eq!(causes(&world), [PauseCause::Hint { waiter }]);
    let keep = Action::Reserve {
        slot: sid(0),
        ctx: waiter,
    };
    let kept = world.log.iter().filter(|&&(_, action)| action == keep);
    assert_eq!(kept.count(), 1);
    world.close(ctx).unwrap();
}

#[test]
fn a_request_and_a_freeze() {
    let (mut world, ctx) = busy(Params::DEFAULT);
    world.event(Event::Preempt { ctx, hold: false }).unwrap();
    assert_eq!(causes(&world), [PauseCause::Request]);
    world.run_for(MS);
    world.freeze();
    assert_eq!(causes(&world)[1], PauseCause::Freeze);
}

#[test]
fn a_pause_that_was_not_answered() {
    let (mut world, ctx) = busy(Params::DEFAULT);
    world.set_policy(PolicyKind::RoundRobin).unwrap();
    world.card.slots[0].hang = true;
    world.event(Event::Preempt { ctx, hold: true }).unwrap();
    world.run_for(20 * MS);
    assert_eq!(
        causes(&world)[..2],
        [PauseCause::Request, PauseCause::Again]
    );
}
