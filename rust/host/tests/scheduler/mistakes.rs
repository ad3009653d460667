// SPDX-License-Identifier: GPL-2.0

//! Mistakes that a core makes easily whose slots have successors: lists of events. A successor is
//! chosen when a job is told to stop, and much can happen until it starts: groups return, parameters
//! change, hints come due, resets fail, members of gangs leave.

use crate::model::card::Engine;
use crate::model::rules::{judge, Rule};
use crate::model::{sid, SlotPlan, World, BASE, CRITICAL, ENDLESS, IRQ, MS, RELAY, US};
use fermata_sched_host::sched::{
    Action, ContextId, Duration, Event, GroupKey, GroupSettings, JobState, Params, PolicyKind,
    Refusal, SlotState, Time,
};

/// A group that its cap keeps from slots until the cap is lifted.
const CAPPED: GroupKey = GroupKey(1);
const SAVE: u64 = 3 * MS;
/// Longer than an interrupt and a START, much shorter than a save.
const SOON: u64 = 300 * US;

const LOW: Params = Params {
    timeslice: Duration::from_ms(2),
    ..Params::DEFAULT
};

fn priority(priority: u8) -> Params {
    Params { priority, ..LOW }
}

fn world(plan: SlotPlan, slots: usize, policy: PolicyKind) -> World {
    let mut world = World::new(&vec![plan; slots], 32);
    world.set_policy(policy).unwrap();
    world.set_boost(Duration::from_ms(60_000)).unwrap();
    for slot in &mut world.card.slots {
        slot.save = SAVE;
    }
    world
}

fn start(world: &mut World, params: Params) -> ContextId {
    let ctx = world.open(0, params).unwrap();
    world.start(ctx, ENDLESS).unwrap();
    ctx
}

fn until(world: &mut World, what: &str, holds: impl Fn(&World) -> bool) {
    let end = world.now + 4_000 * MS;
    while !holds(world) {
        assert!(world.now < end, "never: {what}");
        world.run_for(20 * US);
    }
}

fn runs(world: &World, ctx: ContextId) -> bool {
    world.machine.slot_of(ctx).is_some() && !leaves(world, ctx)
}

fn leaves(world: &World, ctx: ContextId) -> bool {
    let slot = world.machine.slot_of(ctx);
    let state = slot.and_then(|slot| world.machine.slot_state(slot));
    slot.is_some() && !matches!(state, Some(SlotState::Running(_)))
}

fn hold(world: &mut World, ctx: ContextId) {
    let hold = true;
    world.event(Event::Preempt { ctx, hold }).unwrap();
}

fn cap(world: &mut World, cap: u16) {
    let settings = GroupSettings {
        cap,
        ..GroupSettings::DEFAULT
    };
    world.set_group(CAPPED, settings).unwrap();
}

/// Starts urgent work that its cap keeps from slots.
fn throttled<const N: usize>(world: &mut World) -> [ContextId; N] {
    cap(world, 1);
    let all = [(); N].map(|()| {
        let ctx = world.open_in(CAPPED, 0, CRITICAL).unwrap();
        world.start(ctx, ENDLESS).unwrap();
        ctx
    });
    until(world, "throttled", |world| {
        let mut all = all.iter();
        all.all(|&ctx| world.stats(ctx).throttled && world.machine.slot_of(ctx).is_none())
    });
    all
}

/// Advances time until half of the save of a job is over.
fn half_saved(world: &mut World, ctx: ContextId) {
    until(world, "saved", |world| {
        let slot = world.machine.slot_of(ctx);
        slot.is_some_and(|slot| {
            let engine = world.card.slots[slot.index()].engine;
            matches!(engine, Engine::Saving { .. })
        })
    });
    world.run_for(SAVE / 2);
    assert!(leaves(world, ctx));
}

#[test]
fn urgent_work_whose_group_returns_goes_before_the_successor_of_a_slot() {
    for plan in [IRQ, RELAY] {
        let mut world = world(plan, 1, PolicyKind::Fair);
        let [urgent] = throttled(&mut world);
        let first = start(&mut world, LOW);
        start(&mut world, LOW);
        half_saved(&mut world, first);
        cap(&mut world, 0);
        world.run_for(SAVE / 2 + SOON);
        assert!(runs(&world, urgent), "{plan:?}");
    }
}

#[test]
fn all_urgent_work_of_a_group_that_returns_goes_before_successors() {
    let mut world = world(IRQ, 2, PolicyKind::Fair);
    let urgent = throttled::<2>(&mut world);
    let first = start(&mut world, LOW);
    for _ in 0..3 {
        start(&mut world, LOW);
    }
    half_saved(&mut world, first);
    cap(&mut world, 0);
    world.run_for(2 * SAVE + SOON);
    assert!(urgent.iter().all(|&ctx| runs(&world, ctx)));
}

#[test]
fn all_work_of_a_group_that_returns_gets_vacant_slots() {
    let mut world = world(IRQ, 2, PolicyKind::Fair);
    let all = throttled::<2>(&mut world);
    cap(&mut world, 0);
    world.run_for(SOON);
    assert!(all.iter().all(|&ctx| runs(&world, ctx)));
}

/// Nobody waits when the job is told to leave.
#[test]
fn a_slot_that_is_left_to_nobody_goes_to_the_best_that_comes() {
    let mut world = world(IRQ, 1, PolicyKind::Fair);
    let [urgent] = throttled(&mut world);
    let first = start(&mut world, LOW);
    world.run_for(MS);
    hold(&mut world, first);
    world.run_for(SAVE / 3);
    cap(&mut world, 0);
    world.run_for(SAVE / 3);
    start(&mut world, LOW);
    world.run_for(SAVE / 3 + SOON);
    assert!(runs(&world, urgent));
}

/// The timer that brings the group back is late.
#[test]
fn who_comes_before_a_group_is_brought_back_does_not_take_its_slot() {
    let prepare = || {
        let mut world = world(IRQ, 1, PolicyKind::Fair);
        let [urgent] = throttled(&mut world);
        world.timer_delay = 200 * US;
        (world, urgent)
    };
    let (mut world, urgent) = prepare();
    until(&mut world, "back", |world| runs(world, urgent));
    let back = world.now;
    let (mut world, urgent) = prepare();
    world.run_until(back - 100 * US);
    let from = world.starts().len();
    start(&mut world, LOW);
    world.run_until(back + SAVE + SOON);
    assert!(world.starts()[from..].contains(&urgent));
}

#[test]
fn urgent_work_that_yields_does_not_yield_to_best_effort_work() {
    let mut breach = None;
    for plan in [IRQ, RELAY] {
        for comes_late in [false, true] {
            let mut world = world(plan, 1, PolicyKind::Fair);
            let urgent = start(&mut world, CRITICAL);
            if !comes_late {
                start(&mut world, LOW);
            }
            world.run_for(MS);
            let before = world.starts().len();
            let (ctx, hold) = (urgent, false);
            world.event(Event::Preempt { ctx, hold }).unwrap();
            world.run_for(SAVE / 2);
            if comes_late {
                start(&mut world, LOW);
            }
            world.run_for(20 * MS);
            assert!(runs(&world, urgent));
            let starts = &world.starts()[before..];
            if starts.iter().any(|&ctx| ctx != urgent) {
                breach.get_or_insert(format!("{starts:?}: {plan:?}, {comes_late}"));
            }
            assert!(starts.len() <= 3, "{starts:?}: {plan:?}");
        }
    }
    judge(Rule::YieldRank, breach);
}

#[test]
fn the_only_context_that_waits_is_boosted_without_a_storm() {
    for plan in [IRQ, RELAY] {
        let mut world = world(plan, 1, PolicyKind::Fair);
        world.set_boost(Duration::from_ms(20)).unwrap();
        start(&mut world, CRITICAL);
        let waits = start(&mut world, LOW);
        world.run_for(1_000 * MS);
        let slices = world.stats(waits).slices;
        assert!((15..60).contains(&slices), "{slices}: {plan:?}");
        assert!(world.rules.fired < 2_000, "{}: {plan:?}", world.rules.fired);
    }
}

#[test]
fn a_successor_that_is_boosted_gives_way_to_nobody() {
    let mut world = world(IRQ, 1, PolicyKind::Fair);
    world.set_boost(Duration::from_ms(20)).unwrap();
    let first = start(&mut world, CRITICAL);
    let starving = start(&mut world, LOW);
    half_saved(&mut world, first);
    start(&mut world, CRITICAL);
    world.run_for(SAVE / 2 + SOON);
    assert!(runs(&world, starving));
}

#[test]
fn the_boost_does_not_hide_urgent_work_whose_group_returns() {
    let mut world = world(IRQ, 1, PolicyKind::Priority);
    let [urgent] = throttled(&mut world);
    world.set_boost(Duration::from_ms(10)).unwrap();
    let long = Params {
        timeslice: Duration::from_ms(500),
        ..priority(20)
    };
    let job = start(&mut world, long);
    start(&mut world, priority(5));
    world.run_for(15 * MS);
    assert!(runs(&world, job));
    cap(&mut world, 0);
    world.run_for(SOON);
    assert!(leaves(&world, job));
    let from = world.starts().len();
    world.run_for(2 * SAVE + 10 * MS);
    // The boost may have its turn before or after a slice of the urgent work.
    assert!(
        world.starts()[from..].contains(&urgent),
        "{:?} {urgent:?}",
        &world.starts()[from..]
    );
}

/// The first of a group may not be on the slot, and its second is of lower priority than others.
#[test]
fn priorities_count_before_groups_and_masks() {
    let mut world = world(IRQ, 2, PolicyKind::Priority);
    let both = [(); 2].map(|()| start(&mut world, priority(30)));
    let open = |world: &mut World, group, mask, level| {
        let params = Params {
            mask,
            ..priority(level)
        };
        let ctx = world.open_in(GroupKey(group), 0, params).unwrap();
        world.start(ctx, ENDLESS).unwrap();
        ctx
    };
    let high = open(&mut world, 7, 2, 20);
    let low = open(&mut world, 7, 1, 5);
    let middle = open(&mut world, 8, 3, 10);
    let on_first = both
        .into_iter()
        .find(|&ctx| world.machine.slot_of(ctx) == Some(sid(0)));
    hold(&mut world, on_first.unwrap());
    world.run_for(SAVE + SOON);
    assert!(runs(&world, middle) && !runs(&world, low) && !runs(&world, high));
}

#[test]
fn a_successor_whose_priority_is_lowered_gives_way() {
    for plan in [IRQ, RELAY] {
        let mut world = world(plan, 1, PolicyKind::Priority);
        let first = start(&mut world, priority(3));
        let other = start(&mut world, priority(10));
        half_saved(&mut world, first);
        let higher = start(&mut world, priority(20));
        world.set_params(higher, priority(5)).unwrap();
        // A relay may have taken the context before the order that withdraws it.
        let most = if plan.relay { 2 * SAVE } else { SAVE / 2 };
        world.run_for(most + SOON);
        assert!(runs(&world, other), "{plan:?}");
    }
}

#[test]
fn a_job_whose_priority_is_raised_while_it_leaves_runs_again() {
    for plan in [IRQ, RELAY] {
        let mut world = world(plan, 1, PolicyKind::Priority);
        let first = start(&mut world, priority(10));
        start(&mut world, priority(20));
        half_saved(&mut world, first);
        world.set_params(first, priority(25)).unwrap();
        world.run_for(2 * SAVE + SOON);
        assert!(runs(&world, first), "{plan:?}");
    }
}

#[test]
fn a_mask_of_quarantined_slots_is_refused() {
    let mut world = world(IRQ, 2, PolicyKind::Fair);
    let first = start(&mut world, LOW);
    let other = start(&mut world, LOW);
    let slot = world.machine.slot_of(first).unwrap();
    world.card.slots[slot.index()].ignore_resets = u32::MAX;
    world.close(first).unwrap();
    until(&mut world, "quarantined", |world| world.quarantined != 0);
    let params = Params {
        mask: slot.bit(),
        ..LOW
    };
    assert_eq!(world.set_params(other, params), Err(Refusal::NoSlot));
    assert!(runs(&world, other));
}

/// The slot that is reset is no slot that becomes vacant.
#[test]
fn urgent_work_does_not_wait_for_a_reset_that_is_repeated() {
    let mut world = world(IRQ, 2, PolicyKind::Fair);
    let first = start(&mut world, CRITICAL);
    let other = world.open(0, CRITICAL).unwrap();
    world.start(other, 30 * MS).unwrap();
    let slot = world.machine.slot_of(first).unwrap();
    world.card.slots[slot.index()].ignore_resets = u32::MAX;
    world.close(first).unwrap();
    let waits = start(&mut world, CRITICAL);
    until(&mut world, "the other ends", |world| {
        world.state(other) == JobState::Done
    });
    world.run_for(SOON);
    assert!(runs(&world, waits));
}

#[test]
fn a_job_that_hangs_costs_few_orders() {
    let mut world = world(RELAY, 1, PolicyKind::Fair);
    let hangs = start(&mut world, LOW);
    world.run_for(MS);
    world.card.set_hang(0);
    let others = [(); 4].map(|()| start(&mut world, LOW));
    until(&mut world, "failed", |world| !world.state(hangs).is_live());
    world.run_for(5 * MS);
    assert!(others
        .iter()
        .any(|&ctx| world.machine.slot_of(ctx).is_some()));
    let is_order = |(_, action): &&(u64, Action)| matches!(action, Action::Order { .. });
    let orders = world.log.iter().filter(is_order).count();
    assert!(orders < 30, "{orders}");
}

/// The slot whose job ends first may be used by the context that makes way for the hint.
#[test]
fn a_successor_that_makes_way_for_a_hint_takes_another_slot() {
    let mut world = world(IRQ, 2, PolicyKind::Fair);
    let pinned = |mask| Params { mask, ..LOW };
    let first = start(&mut world, pinned(1));
    let other = world
        .open(
            0,
            Params {
                mask: 2,
                ..CRITICAL
            },
        )
        .unwrap();
    world.start(other, 4 * MS).unwrap();
    let hinted = world
        .open(
            0,
            Params {
                mask: 1,
                ..CRITICAL
            },
        )
        .unwrap();
    world.run_for(200 * US);
    let waits = start(&mut world, LOW);
    until(&mut world, "told to stop", |world| leaves(world, first));
    let at = Time::from_ns(world.now + SAVE + MS);
    world.event(Event::Hint { ctx: hinted, at }).unwrap();
    until(&mut world, "the other ends", |world| {
        world.state(other) == JobState::Done
    });
    world.run_for(SOON);
    assert_eq!(world.machine.slot_of(waits), Some(sid(1)));
}

#[test]
fn a_hint_whose_slot_does_not_become_vacant_in_time_keeps_nothing() {
    let mut world = world(IRQ, 1, PolicyKind::Fair);
    for slot in &mut world.card.slots {
        slot.save = 20 * MS;
    }
    for _ in 0..2 {
        start(&mut world, LOW);
    }
    let ctx = world.open(0, CRITICAL).unwrap();
    world.run_for(MS);
    let at = Time::from_ns(world.now + 200 * US);
    world.event(Event::Hint { ctx, at }).unwrap();
    world.run_for(60 * MS);
    assert_eq!(world.machine.reserved_for(sid(0)), None);
    assert!(world.rules.idled < SOON, "{}", world.rules.idled);
}

/// The relay has begun the next run, and the record is not read yet.
#[test]
fn urgent_work_that_comes_before_the_record_stops_the_run_that_has_begun() {
    let mut world = world(RELAY, 1, PolicyKind::Fair);
    for _ in 0..3 {
        start(&mut world, LOW);
    }
    let urgent = world.open(0, CRITICAL).unwrap();
    world.run_for(30 * MS);
    world.irq_delay = 500 * US;
    let on_card = |world: &World| world.card.slots[0].running_job();
    let before = on_card(&world);
    until(&mut world, "another run", |world| on_card(world) != before);
    world.start(urgent, ENDLESS).unwrap();
    world.run_for(SAVE + 2 * MS);
    assert!(runs(&world, urgent));
}

/// The context comes while the slot is reset, and was never named.
#[test]
fn who_comes_during_a_reset_of_a_relay_does_not_fail_with_the_others() {
    let mut world = world(RELAY, 1, PolicyKind::Fair);
    let hangs = start(&mut world, LOW);
    world.run_for(MS);
    world.card.set_hang(0);
    world.card.slots[0].ignore_resets = 1;
    world.close(hangs).unwrap();
    until(&mut world, "reset", |world| {
        matches!(
            world.machine.slot_state(sid(0)),
            Some(SlotState::Resetting(_))
        )
    });
    let late = start(&mut world, LOW);
    world.run_for(500 * MS);
    assert!(runs(&world, late));
}

fn gang(world: &mut World, params: [Params; 2]) -> [ContextId; 2] {
    let gang = params.map(|params| world.open_in(GroupKey(9), 0, params).unwrap());
    world.set_gang(gang[0], Some(gang[1])).unwrap();
    for ctx in gang {
        world.start(ctx, ENDLESS).unwrap();
    }
    gang
}

/// The best member has the turn, and the jobs that are stopped go before the worst one.
#[test]
fn a_gang_of_unequal_members_does_not_switch_for_ever() {
    let mut breach = None;
    for plan in [IRQ, RELAY] {
        // On a relay, which aborts restores at once, this is a storm of timers.
        if breach.is_some() {
            break;
        }
        let mut world = world(plan, 2, PolicyKind::Priority);
        for slot in &mut world.card.slots {
            slot.save = 50 * US;
        }
        for _ in 0..2 {
            start(&mut world, priority(10));
        }
        world.run_for(10 * MS);
        let gang = gang(&mut world, [priority(20), priority(5)]);
        world.run_for(100 * MS);
        let starts = world.starts().len();
        if starts > 200 || !runs(&world, gang[0]) {
            breach.get_or_insert(format!("{starts} STARTs: {plan:?}"));
        }
    }
    judge(Rule::GangRank, breach);
}

#[test]
fn gangs_that_stop_each_other_run_in_turn() {
    for plan in [IRQ, RELAY] {
        let mut world = world(plan, 3, PolicyKind::Fair);
        for slot in &mut world.card.slots {
            slot.save = 50 * US;
        }
        let gangs = [(); 3].map(|()| gang(&mut world, [LOW; 2]));
        start(&mut world, LOW);
        world.run_for(300 * MS);
        for gang in gangs {
            let slices = gang.map(|ctx| world.stats(ctx).slices);
            assert!(slices[0] >= 8, "{slices:?}: {plan:?}");
        }
        let starts = world.starts().len();
        assert!(starts < 1_500, "{starts}: {plan:?}");
    }
}

/// The other slot is never vacant for the second member.
#[test]
fn a_gang_that_cannot_have_its_slots_causes_no_storm() {
    for plan in [IRQ, RELAY] {
        let mut world = world(plan, 2, PolicyKind::Fair);
        start(&mut world, CRITICAL);
        let members = gang(&mut world, [LOW; 2]);
        let more = world.open_in(GroupKey(9), 0, LOW).unwrap();
        for _ in 0..50 {
            let _ = world.start(more, 100 * US);
            world.run_for(MS);
        }
        assert!(world.rules.fired < 1_000, "{}: {plan:?}", world.rules.fired);
        assert!(world.state(members[0]).is_live());
    }
}

#[test]
fn a_member_that_is_closed_while_its_gang_waits_for_a_slot_is_not_started() {
    for plan in [IRQ, RELAY] {
        let mut world = world(plan, 2, PolicyKind::Fair);
        let beside = [(); 2].map(|()| start(&mut world, LOW));
        world.run_for(MS);
        let gang = gang(&mut world, [LOW; 2]);
        until(&mut world, "told to stop", |world| {
            beside.iter().all(|&ctx| leaves(world, ctx))
        });
        let from = world.starts().len();
        world.close(gang[0]).unwrap();
        world.run_for(20 * MS);
        assert!(!world.starts()[from..].contains(&gang[0]), "{plan:?}");
        assert!(world.starts()[from..].contains(&gang[1]), "{plan:?}");
    }
}

/// A member ran because of the rank of the other one, which is of another class.
#[test]
fn a_member_of_another_class_makes_way_when_its_gang_ends() {
    let plans = [IRQ, SlotPlan { class: 1, ..IRQ }];
    let mut world = World::new(&plans, 16);
    world.set_policy(PolicyKind::Fair).unwrap();
    let first = world.open_in(GroupKey(9), 0, CRITICAL).unwrap();
    let other = world.open_in(GroupKey(9), 1, LOW).unwrap();
    world.set_gang(first, Some(other)).unwrap();
    for ctx in [first, other] {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(200 * US);
    assert!(runs(&world, first) && runs(&world, other));
    let urgent = world.open(1, CRITICAL).unwrap();
    world.start(urgent, ENDLESS).unwrap();
    world.set_gang(first, None).unwrap();
    world.run_for(MS);
    assert!(runs(&world, urgent));
}

/// The context uses exactly the time that its cap gives.
#[test]
fn a_cap_that_is_just_enough_costs_few_timers() {
    for plan in [IRQ, RELAY] {
        let mut world = world(plan, 1, PolicyKind::Fair);
        world.lean = true;
        world.card.slots[0].save = 50 * US;
        let own = start(&mut world, Params { cap: 50, ..LOW });
        let other = start(&mut world, LOW);
        world.run_for(2_000 * MS);
        let [own, other] = [own, other].map(|ctx| world.stats(ctx).run.as_ns());
        assert!(
            own > 900 * MS && other > 900 * MS,
            "{own}, {other}: {plan:?}"
        );
        assert!(world.rules.fired < 4_000, "{}: {plan:?}", world.rules.fired);
    }
}

/// The grant of a run beside which no context waits is renewed again and again.
#[test]
fn a_cap_with_a_short_slice_costs_few_timers() {
    for plan in [BASE, IRQ] {
        let mut world = world(plan, 1, PolicyKind::Fair);
        world.lean = true;
        let short = Params {
            timeslice: Params::TIMESLICE_MIN,
            cap: 99,
            ..LOW
        };
        let capped = world.open(0, short).unwrap();
        // Meanwhile the cap is filled.
        world.run_for(100 * MS);
        let fired = world.rules.fired;
        world.start(capped, ENDLESS).unwrap();
        world.run_for(50 * MS);
        assert!(runs(&world, capped), "{plan:?}");
        let fired = world.rules.fired - fired;
        // A base slot is polled ten times in a millisecond.
        let polls = if plan.base.is_some() { 500 } else { 0 };
        assert!(fired < polls + 100, "{fired}: {plan:?}");
    }
}

/// A context has waited since a little while ago, and its owner changes its parameters over and over.
#[test]
fn the_boost_is_not_hidden_by_changes_of_a_context_that_waits() {
    for plan in [IRQ, RELAY] {
        let mut world = world(plan, 1, PolicyKind::Priority);
        world.set_boost(Duration::from_ms(50)).unwrap();
        start(&mut world, priority(20));
        let starving = start(&mut world, priority(5));
        let changes = start(&mut world, priority(5));
        for weight in 0..400 {
            let weight = 100 + weight % 2;
            let params = Params {
                weight,
                ..priority(5)
            };
            world.set_params(changes, params).unwrap();
            world.run_for(5 * MS);
        }
        let slices = [starving, changes].map(|ctx| world.stats(ctx).slices);
        assert!(slices[0] >= 10 && slices[1] >= 10, "{slices:?}: {plan:?}");
    }
}

/// Contexts that come later are bound to the slot, and give way, one after the other.
#[test]
fn the_boost_is_not_hidden_by_a_context_that_is_given_back() {
    let mut world = world(IRQ, 1, PolicyKind::Priority);
    world.set_boost(Duration::from_ms(50)).unwrap();
    start(&mut world, priority(20));
    let starving = start(&mut world, priority(5));
    let urgent = world.open(0, CRITICAL).unwrap();
    world.run_for(20 * MS);
    let mut last = None;
    for _ in 0..40 {
        let bound = start(&mut world, priority(25));
        world.run_for(SAVE / 2);
        world.start(urgent, 10 * US).unwrap();
        world.set_params(bound, priority(4)).unwrap();
        if let Some(last) = last.replace(bound) {
            world.close(last).unwrap();
        }
        world.run_for(15 * MS);
    }
    let slices = world.stats(starving).slices;
    assert!(slices >= 3, "{slices}");
}
