// SPDX-License-Identifier: GPL-2.0

//! Lists of events that break the rules of `model/rules.rs` on a core without successors, and
//! checks of the rules themselves.

use crate::model::{sid, world, SlotPlan, World, BASE, CRITICAL, ENDLESS, IRQ, MS, RELAY, US};
use fermata_sched_host::sched::{
    Action, ContextId, Duration, EndReason, Event, Order, Params, PolicyKind, RunEnd, SlotState,
    Stop, Time,
};

fn start(world: &mut World, params: Params) -> ContextId {
    let ctx = world.open(0, params).unwrap();
    world.start(ctx, ENDLESS).unwrap();
    ctx
}

/// A timer for the time of the call fires at once, before other interrupts are handled.
#[test]
fn a_decision_that_is_left_over_is_due_a_little_later() {
    let mut world = world(2, PolicyKind::Fair);
    let held = [(); 2].map(|()| start(&mut world, Params::DEFAULT));
    world.set_gang(held[0], Some(held[1])).unwrap();
    world.run_for(MS);
    let (ctx, hold) = (held[0], true);
    world.event(Event::Preempt { ctx, hold }).unwrap();
    world.run_for(MS);
    world.event(Event::Resume { ctx }).unwrap();
    world.run_for(MS);
}

/// The job is even with the context that waits after 200 ms only.
#[test]
fn a_job_that_is_far_behind_is_looked_at_once_a_slice() {
    let mut world = world(1, PolicyKind::Fair);
    let heavy = Params {
        weight: 10_000,
        ..Params::DEFAULT
    };
    start(&mut world, heavy);
    start(&mut world, Params::DEFAULT);
    world.run_for(100 * MS);
}

/// The slot is still being reset when the policy changes.
#[test]
fn a_hint_whose_work_goes_before_no_other_gives_its_slot_back() {
    let mut world = World::new(&[BASE], 8);
    world.set_policy(PolicyKind::Priority).unwrap();
    for _ in 0..2 {
        start(&mut world, Params::DEFAULT);
    }
    let higher = Params {
        priority: Params::PRIORITY_MAX,
        ..Params::DEFAULT
    };
    let ctx = world.open(0, higher).unwrap();
    world.run_for(300 * US);
    let at = Time::from_ns(world.now + 400 * US);
    world.event(Event::Hint { ctx, at }).unwrap();
    let resets = |world: &World| {
        matches!(
            world.machine.slot_state(sid(0)),
            Some(SlotState::Resetting(_))
        )
    };
    while !resets(&world) {
        world.run_for(10 * US);
    }
    assert_eq!(world.machine.reserved_for(sid(0)), Some(ctx));
    world.set_policy(PolicyKind::Fair).unwrap();
    world.run_for(MS);
}

/// A world in which nothing has happened.
fn idle(plan: SlotPlan) -> World {
    let mut world = World::new(&[plan; 2], 4);
    world.run_for(MS);
    world
}

fn ctx(world: &mut World) -> ContextId {
    world.open(0, Params::DEFAULT).unwrap()
}

fn started(slot: usize, ctx: ContextId) -> Action {
    crate::model::check::start(sid(slot), ctx, false)
}

fn ended(slot: usize, ctx: ContextId, span: u64) -> Action {
    let run = RunEnd {
        reason: EndReason::Finished,
        span: Duration::from_ns(span),
        save: None,
        restore: Duration::ZERO,
    };
    let slot = sid(slot);
    Action::Ended { slot, ctx, run }
}

/// A wait for a boundary that ends.
fn overrun(ctx: ContextId) -> Action {
    Action::Overrun {
        slot: sid(0),
        ctx,
        span: Duration::ZERO,
    }
}

#[test]
#[should_panic(expected = "OneStart")]
fn two_starts_in_a_call_are_noticed() {
    let mut world = idle(IRQ);
    let ctx = ctx(&mut world);
    world.check_call(&[started(0, ctx), started(1, ctx)]);
}

#[test]
#[should_panic(expected = "OneLoad")]
fn two_loads_in_a_call_are_noticed() {
    let mut world = idle(IRQ);
    let ctx = ctx(&mut world);
    world.check_call(&[0, 1].map(|slot| Action::Load {
        slot: sid(slot),
        ctx,
    }));
}

#[test]
#[should_panic(expected = "Charges")]
fn a_run_that_is_too_long_is_noticed() {
    let mut world = idle(IRQ);
    let ctx = ctx(&mut world);
    world.check_call(&[started(0, ctx)]);
    world.run_for(MS);
    world.check_call(&[ended(0, ctx, MS + 1)]);
}

#[test]
#[should_panic(expected = "BoundTold")]
fn a_boundary_wait_that_ends_in_silence_is_noticed() {
    let mut world = idle(IRQ);
    let ctx = ctx(&mut world);
    world.check_call(&[overrun(ctx)]);
}

#[test]
#[should_panic(expected = "BoundTold")]
fn an_order_that_goes_on_waiting_for_the_boundary_is_noticed() {
    let mut world = idle(RELAY);
    let ctx = ctx(&mut world);
    let order = Order {
        after: 7,
        stop: Stop::Paused {
            after: Duration::ZERO,
            boundary: true,
        },
        next: None,
    };
    let slot = sid(0);
    world.check_call(&[overrun(ctx), Action::Order { slot, order }]);
}

#[test]
#[should_panic(expected = "TimerRate")]
fn a_storm_of_timers_is_noticed() {
    let mut world = idle(IRQ);
    for _ in 0..100 {
        world.run_for(9 * US);
        world.note_fire(0);
    }
}

/// 99 in a millisecond are none.
#[test]
fn many_timers_are_no_storm() {
    let mut world = idle(IRQ);
    for _ in 0..1_000 {
        world.run_for(11 * US);
        world.note_fire(0);
    }
}

#[test]
fn a_timer_for_the_present_is_noticed() {
    let mut world = idle(IRQ);
    for (ahead, is_noticed) in [(2 * US, false), (2 * US - 1, true)] {
        let (slot, at) = (sid(0), Time::from_ns(world.now + ahead));
        let check = std::panic::AssertUnwindSafe(|| world.check_call(&[Action::Arm { slot, at }]));
        let panics = std::panic::catch_unwind(check).is_err();
        assert_eq!(panics, is_noticed);
    }
}

/// The rule about contexts that wait knows ranks and masks: two urgent contexts may use one slot,
/// and the job on another slot, which only one of them may use, gives way to it.
#[test]
fn urgent_work_takes_the_slots_that_it_may_use_and_no_more() {
    let mut world = world(3, PolicyKind::Fair);
    for _ in 0..3 {
        start(&mut world, Params::DEFAULT);
    }
    world.run_for(MS);
    for mask in [1, 3, 1] {
        start(&mut world, Params { mask, ..CRITICAL });
        world.run_for(300 * US);
    }
    assert_eq!(world.starts().len(), 5);
}
