// SPDX-License-Identifier: GPL-2.0

//! Attacks by an owner at a moment of its choice: calls in every phase of a run, waits for
//! boundaries that do not come, limits that are due together, jobs beside a gang. Timers do not
//! storm, urgent work comes in time, and others have their part.

use crate::model::card::Engine;
use crate::model::rules::{judge, Rule};
use crate::model::{ns, sid, SlotPlan, World, BASE, CRITICAL, ENDLESS, IRQ, MS, RELAY, US};
use crate::simulation::Random;
use fermata_sched_host::sched::{
    ContextId, Duration, Event, GroupKey, JobState, Params, PolicyKind, PreemptGranularity,
    Refusal, SlotState,
};

const PLANS: [(SlotPlan, &str); 3] = [(BASE, "base"), (IRQ, "irq"), (RELAY, "relay")];
const OWN: GroupKey = GroupKey(1);
const OTHERS: GroupKey = GroupKey(2);
const THIRD: GroupKey = GroupKey(3);

fn start(world: &mut World, group: GroupKey, params: Params) -> ContextId {
    let ctx = world.open_in(group, 0, params).unwrap();
    world.start(ctx, ENDLESS).unwrap();
    ctx
}

fn timeslice(us: u64) -> Params {
    Params {
        timeslice: Duration::from_us(us),
        ..Params::DEFAULT
    }
}

fn run_of(world: &World, of: &[ContextId]) -> f64 {
    let run = |&ctx: &ContextId| world.stats(ctx).run.as_ns() as f64;
    of.iter().map(run).sum()
}

fn hold(world: &mut World, ctx: ContextId) -> Result<(), Refusal> {
    let hold = true;
    world.event(Event::Preempt { ctx, hold })
}

/// A slot whose engine has boundaries, the first of them far away.
fn far(plan: SlotPlan, save: u64) -> World {
    let granularity = PreemptGranularity::AnywhereOrBoundary;
    let mut world = World::new(
        &[SlotPlan {
            granularity,
            ..plan
        }],
        8,
    );
    world.set_policy(PolicyKind::Fair).unwrap();
    world.card.slots[0].block = 100_000 * MS;
    world.card.slots[0].save = save;
    world
}

const COOPERATIVE: Params = Params {
    cooperative: true,
    preempt_timeout: Duration::from_ms(10_000),
    ..Params::DEFAULT
};

/// An act of an owner, or of root, while a job is on its way to a boundary or is saved.
#[derive(Clone, Copy, Debug)]
enum Act {
    Nothing,
    Cooperative,
    Weight,
    Slice,
    Priority,
    Disable,
    Hold,
    Preempt,
}

fn act(world: &mut World, ctx: ContextId, what: Act) {
    let done = match what {
        Act::Nothing => Ok(()),
        Act::Cooperative => world.set_params(
            ctx,
            Params {
                cooperative: false,
                ..COOPERATIVE
            },
        ),
        Act::Weight => world.set_params(
            ctx,
            Params {
                weight: 1,
                ..COOPERATIVE
            },
        ),
        Act::Slice => world.set_params(
            ctx,
            Params {
                timeslice: Params::TIMESLICE_MIN,
                ..COOPERATIVE
            },
        ),
        Act::Priority => world.set_params(
            ctx,
            Params {
                priority: 0,
                ..COOPERATIVE
            },
        ),
        Act::Disable => world.set_enabled(ctx, false),
        Act::Hold => hold(world, ctx),
        Act::Preempt => world.event(Event::Preempt { ctx, hold: false }),
    };
    done.unwrap();
}

#[test]
fn no_act_during_a_boundary_wait_or_the_save_after_it_delays_urgent_work() {
    use Act::*;
    for plan in [IRQ, RELAY] {
        for what in [
            Nothing,
            Cooperative,
            Weight,
            Slice,
            Priority,
            Disable,
            Hold,
            Preempt,
        ] {
            for after in (0..90).step_by(6) {
                let mut world = far(plan, 60 * MS);
                world.set_boundary_wait(Duration::from_ms(20)).unwrap();
                let own = start(&mut world, OWN, COOPERATIVE);
                let urgent = world.open_in(OTHERS, 0, CRITICAL).unwrap();
                world.run_for(5 * MS);
                world.start(urgent, 10 * US).unwrap();
                let begun = world.now;
                world.run_for(after * MS);
                act(&mut world, own, what);
                while world.state(urgent) != JobState::Done {
                    world.run_for(100 * US);
                    // The wait, the save and the job, or the act.
                    let most = begun + 82.max(after + 1) * MS;
                    assert!(world.now < most, "{what:?} at {after} ms, {plan:?}");
                }
                world.run_for(200 * MS);
                let most = world.rules.most_at_once;
                assert!(
                    most <= 4,
                    "{most} timers in one interrupt: {what:?} at {after} ms"
                );
                let fired = world.rules.fired;
                assert!(fired < 200, "{fired} timers: {what:?} at {after} ms");
            }
        }
    }
}

#[test]
fn urgent_work_waits_for_the_bound_and_the_save_and_no_longer() {
    for plan in [IRQ, RELAY] {
        for i in 0..20 {
            let mut world = far(plan, 100 * US);
            start(&mut world, OWN, COOPERATIVE);
            let urgent = world.open_in(OTHERS, 0, CRITICAL).unwrap();
            world.run_for(5 * MS + i * 333 * US);
            world.start(urgent, MS).unwrap();
            world.run_for(1_130 * US);
            assert_eq!(world.state(urgent), JobState::Running, "{plan:?}, {i}");
        }
    }
}

#[test]
fn a_job_whose_boundary_is_far_does_not_keep_a_card_that_is_frozen() {
    let mut breach = None;
    for plan in [IRQ, RELAY] {
        let mut world = far(plan, 100 * US);
        start(&mut world, OWN, COOPERATIVE);
        world.run_for(5 * MS);
        world.freeze();
        world.run_for(1_200 * US);
        if !world.machine.is_at_rest() {
            breach.get_or_insert(format!("{plan:?}"));
        }
    }
    judge(Rule::FrozenBound, breach);
}

/// Two contexts of one group, of very different weights and slices, beside two other groups: the
/// other groups are not kept waiting, whoever of the group is on its slot or was named to be.
#[test]
fn others_wait_for_no_more_than_a_slice_of_each() {
    let cases = [
        (50, 150, 2_000, 2_000, 2_000),
        (1, 100, 2_000, 2_000, 2_000),
        (1, 100, 10_000, 10_000, 2_000),
        (1, 100, 10_000, 200, 10_000),
        (100, 100, 1_000, 10_000, 2_000),
    ];
    let mut in_row = None;
    for (plan, name) in PLANS {
        for (light, heavy, first, second, others) in cases {
            let mut world = World::new(&[plan], 8);
            world.lean = true;
            world.set_policy(PolicyKind::Fair).unwrap();
            let weighed = |weight, us| Params {
                weight,
                ..timeslice(us)
            };
            let own = [(light, first), (heavy, second)]
                .map(|(weight, us)| start(&mut world, OWN, weighed(weight, us)));
            let other = start(&mut world, OTHERS, timeslice(others));
            start(&mut world, THIRD, timeslice(others));
            world.run_for(200 * MS);
            let what =
                format!("{name}, weights {light}:{heavy}, slices {first}, {second}, {others} us");
            let longest = longest_wait(&mut world, other, 1_500 * MS);
            let most = (3 * first.max(second).max(others) + 6_000) * US;
            assert!(longest < most, "{longest} ns: {what}");
            let busy = world
                .machine
                .slot_stats(sid(0), ns(world.now))
                .unwrap()
                .busy;
            let part = run_of(&world, &own) / busy.as_ns() as f64;
            assert!((0.31..0.36).contains(&part), "{part}: {what}");
            let rows = in_rows(&world, &own);
            if rows > 0.02 && first == second {
                in_row.get_or_insert(format!("{rows} of the runs: {what}"));
            }
        }
    }
    judge(Rule::TurnAtEnd, in_row);
}

/// Returns the longest time without a run of `ctx` in the next `span`.
fn longest_wait(world: &mut World, ctx: ContextId, span: u64) -> u64 {
    let (end, mut last, mut longest) = (world.now + span, world.now, 0);
    while world.step(end) {
        if world.machine.slot_of(ctx).is_some() {
            longest = longest.max(world.now - last);
            last = world.now;
        }
    }
    longest
}

/// Returns the part of the runs that follow a run of the same group.
fn in_rows(world: &World, own: &[ContextId]) -> f64 {
    let starts = world.starts();
    let rows = starts
        .windows(2)
        .filter(|pair| pair[0] != pair[1] && own.contains(&pair[0]) && own.contains(&pair[1]));
    rows.count() as f64 / starts.len() as f64
}

/// Each context is throttled after a slice, and many return at about the same time.
#[test]
fn no_storm_of_timers_follows_many_caps() {
    for contexts in [15, 100, 400] {
        let mut world = World::new(&[IRQ], contexts);
        world.lean = true;
        world.set_policy(PolicyKind::Fair).unwrap();
        world.card.slots[0].save = US;
        world.card.slots[0].restore = US;
        for i in 0..contexts {
            let params = Params {
                cap: 1,
                ..timeslice(100)
            };
            start(&mut world, GroupKey(i as u64 % 3), params);
        }
        world.run_for(300 * MS);
        let most = world.rules.most_at_once;
        assert!(
            most <= 4,
            "{most} timers in one interrupt, {contexts} contexts"
        );
    }
}

/// How many timers the calls of an owner cost.
#[test]
fn a_call_costs_few_timers() {
    for plan in [IRQ, RELAY] {
        let quiet = timers_of(plan, "nothing").0;
        for what in ["weight", "mask", "hold", "preempt", "gang", "hint"] {
            let (timers, calls) = timers_of(plan, what);
            assert!(calls > 20, "{calls}: {what}");
            let each = (timers as f64 - quiet as f64) / calls as f64;
            assert!(each < 4.5, "{each} timers a call: {what}, {plan:?}");
        }
    }
}

/// Returns the timers that have fired in 10 ms, and the number of calls.
fn timers_of(plan: SlotPlan, what: &str) -> (u64, u64) {
    let mut world = World::new(&[plan; 8], 32);
    world.lean = true;
    world.set_policy(PolicyKind::Fair).unwrap();
    for _ in 0..16 {
        start(&mut world, OTHERS, timeslice(2_000));
    }
    let base = timeslice(2_000);
    let urgent = Params {
        urgency: CRITICAL.urgency,
        ..base
    };
    let own = match what {
        "hint" => world.open_in(OWN, 0, urgent).unwrap(),
        _ => start(&mut world, OWN, base),
    };
    let mate = world.open_in(OWN, 0, base).unwrap();
    world.run_for(20 * MS);
    let (before, end, mut calls) = (world.rules.fired, world.now + 10 * MS, 0);
    while world.now < end {
        let is_odd = calls % 2 == 1;
        let runs = world.state(own) == JobState::Running;
        let weight = if is_odd { 1 } else { 100 };
        let mask = if is_odd { 1 } else { u8::MAX };
        let at = ns(if is_odd { world.now + US } else { 0 });
        let done = match what {
            "weight" => world.set_params(own, Params { weight, ..base }),
            "mask" if runs => world.set_params(own, Params { mask, ..base }),
            "hold" if world.state(own) == JobState::Held => world.event(Event::Resume { ctx: own }),
            "hold" => hold(&mut world, own),
            "preempt" if runs => world.event(Event::Preempt {
                ctx: own,
                hold: false,
            }),
            "gang" => world.set_gang(own, is_odd.then_some(mate)),
            "hint" => world.event(Event::Hint { ctx: own, at }),
            _ => Err(Refusal::NoJob),
        };
        calls += u64::from(done.is_ok());
        world.run_for(5 * US);
    }
    (world.rules.fired - before, calls)
}

/// The saves are for other work. They are no time of the context that is saved.
#[test]
fn a_cap_is_not_used_up_by_saves_for_urgent_work() {
    let mut breach = None;
    for (plan, name) in [(IRQ, "irq"), (RELAY, "relay")] {
        let mut world = World::new(&[plan], 8);
        world.lean = true;
        world.set_policy(PolicyKind::Fair).unwrap();
        world.card.slots[0].save = 3 * MS;
        let own = start(
            &mut world,
            OWN,
            Params {
                cap: 30,
                ..timeslice(2_000)
            },
        );
        start(&mut world, OTHERS, timeslice(2_000));
        let urgent = world.open_in(OTHERS, 0, CRITICAL).unwrap();
        let mut saves = 0;
        for _ in 0..400 {
            world.run_for(5 * MS);
            // A save at the end of its grant is its own.
            while world.machine.slot_state(sid(0)) != Some(SlotState::Running(own)) {
                world.run_for(500 * US);
            }
            let before = world.stats(own).preemptions;
            world.start(urgent, 10 * US).unwrap();
            while world.state(urgent).is_live() {
                world.run_for(500 * US);
            }
            saves += (world.stats(own).preemptions - before) * 3 * MS;
        }
        assert!(saves > world.now / 20, "{saves}");
        let part = (run_of(&world, &[own]) - saves as f64) / world.now as f64;
        if part < 0.28 {
            breach.get_or_insert(format!(
                "{part} of the slot, with {saves} ns of saves, {name}"
            ));
        }
    }
    judge(Rule::LimitPaid, breach);
}

/// A hint of low priority is due while the slot is reset, and urgent work waits for it.
#[test]
fn a_hint_takes_no_slot_that_is_reset_from_urgent_work_that_waits() {
    let mut world = World::new(&[BASE], 8);
    world.set_policy(PolicyKind::Priority).unwrap();
    let first = world.open(0, CRITICAL).unwrap();
    world.start(first, MS).unwrap();
    world.run_for(100 * US);
    let waits = start(&mut world, OWN, CRITICAL);
    let low = world
        .open(
            0,
            Params {
                priority: 0,
                ..CRITICAL
            },
        )
        .unwrap();
    while !matches!(
        world.machine.slot_state(sid(0)),
        Some(SlotState::Resetting(_))
    ) {
        world.run_for(10 * US);
    }
    let (ctx, at) = (low, ns(world.now + 100 * US));
    world.event(Event::Hint { ctx, at }).unwrap();
    world.run_for(700 * US);
    assert_eq!(world.state(waits), JobState::Running);
}

/// A gang of one priority less than the jobs beside it, on one slot of two and on both.
#[test]
fn a_gang_of_priority_15_runs_beside_jobs_of_16() {
    for plan in [IRQ, RELAY] {
        for beside in [1, 2] {
            let mut world = World::new(&[plan; 2], 8);
            world.set_policy(PolicyKind::Priority).unwrap();
            let low = Params {
                priority: 15,
                ..timeslice(2_000)
            };
            let gang = [(); 2].map(|()| world.open_in(OWN, 0, low).unwrap());
            world.set_gang(gang[0], Some(gang[1])).unwrap();
            for ctx in gang {
                world.start(ctx, ENDLESS).unwrap();
            }
            for _ in 0..beside {
                start(&mut world, OTHERS, timeslice(2_000));
            }
            world.run_for(6_000 * MS);
            let what = format!("beside {beside}, {plan:?}");
            for ctx in gang {
                // A slice in three intervals of the boost at least.
                let slices = world.stats(ctx).slices;
                assert!(slices >= 2, "{slices} slices {what}");
            }
            let fired = world.rules.fired;
            assert!(fired < 12_000, "{fired} timers {what}");
        }
    }
}

/// The bound of the lag covers the slices: weights far apart are kept.
#[test]
fn weights_far_apart_are_kept() {
    for plan in [IRQ, RELAY] {
        for (first, second) in [(10_000, 10_000), (10_000, 200), (200, 10_000)] {
            for grouped in [false, true] {
                let mut world = World::new(&[plan], 8);
                world.lean = true;
                world.set_policy(PolicyKind::Fair).unwrap();
                world.set_boost(Duration::ZERO).unwrap();
                let mut who = [(1, first), (100, second)]
                    .map(|(weight, us)| {
                        let group = if grouped {
                            GroupKey(weight.into())
                        } else {
                            OWN
                        };
                        world
                            .set_group_weight(group, if grouped { weight } else { 100 })
                            .unwrap();
                        let weight = if grouped { 100 } else { weight };
                        (
                            group,
                            Params {
                                weight,
                                ..timeslice(us)
                            },
                        )
                    })
                    .map(|(group, params)| {
                        vec![
                            start(&mut world, group, params),
                            start(&mut world, group, params),
                        ]
                    });
                world.run_for(12_000 * MS);
                let [light, heavy] = who.each_mut().map(|who| run_of(&world, who));
                let part = light / (light + heavy) * 101.0;
                assert!(
                    (0.8..1.25).contains(&part),
                    "{part}: {first}, {second} us, groups {grouped}, {plan:?}"
                );
            }
        }
    }
}

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    Queued,
    Named,
    Restoring,
    Works,
    Stops,
}

const PHASES: [At; 5] = [At::Queued, At::Named, At::Restoring, At::Works, At::Stops];

fn phase(world: &World, ctx: ContextId) -> Option<At> {
    let state = world.state(ctx);
    let Some(slot) = world.machine.slot_of(ctx) else {
        return match state {
            JobState::Queued => Some(At::Queued),
            JobState::Running => Some(At::Named),
            _ => None,
        };
    };
    match (
        world.machine.slot_state(slot),
        world.card.slots[slot.index()].engine,
    ) {
        (Some(SlotState::Running(_)), Engine::Restoring { .. }) => Some(At::Restoring),
        (Some(SlotState::Running(_)), _) => Some(At::Works),
        _ => Some(At::Stops),
    }
}

/// A change, made in one phase of a run and taken back in another.
#[derive(Clone, Copy, Debug)]
enum Change {
    Hold,
    Preempt,
    To(Params),
}

fn changes() -> Vec<Change> {
    let base = timeslice(2_000);
    let mut all = vec![Change::Hold, Change::Preempt];
    all.extend([
        Change::To(Params { weight: 1, ..base }),
        Change::To(timeslice(100)),
        Change::To(timeslice(10_000)),
        Change::To(Params {
            priority: 0,
            ..base
        }),
        Change::To(Params {
            cooperative: true,
            ..base
        }),
        Change::To(Params { cap: 1, ..base }),
    ]);
    all
}

/// Returns the part of a context that makes a change at `on` and takes it back at `off`, of its own
/// time and that of an equal one.
fn part_of_changer(plan: SlotPlan, change: Change, on: At, off: At) -> f64 {
    let granularity = match plan.base {
        Some(_) => PreemptGranularity::Anywhere,
        None => PreemptGranularity::AnywhereOrBoundary,
    };
    let mut world = World::new(
        &[SlotPlan {
            granularity,
            ..plan
        }],
        8,
    );
    world.lean = true;
    world.set_policy(PolicyKind::Fair).unwrap();
    (world.card.slots[0].save, world.card.slots[0].restore) = (300 * US, 300 * US);
    world.card.slots[0].block = 400 * US;
    let base = timeslice(2_000);
    let own = start(&mut world, OWN, base);
    let other = start(&mut world, OWN, base);
    start(&mut world, OTHERS, base);
    let urgent = world.open_in(THIRD, 0, CRITICAL).unwrap();
    let mut random = Random(7);
    let (end, mut next, mut is_on) = (500 * MS, 3 * MS, false);
    while world.now < end {
        if !world.step(next.min(end)) && world.now >= next {
            if !world.state(urgent).is_live() {
                world.start(urgent, 100 * US).unwrap();
            }
            next = world.now + 2 * MS + random.below(5 * MS);
        }
        let at = phase(&world, own).unwrap_or(off);
        let wants_on = match at == on {
            true if on == off => !is_on,
            true => true,
            false => is_on && at != off,
        };
        if wants_on == is_on {
            continue;
        }
        is_on = wants_on;
        let ctx = own;
        let _ = match (change, is_on) {
            (Change::Hold, true) => hold(&mut world, ctx),
            (Change::Hold, false) => world.event(Event::Resume { ctx }),
            (Change::Preempt, _) => world.event(Event::Preempt { ctx, hold: false }),
            (Change::To(params), true) => world.set_params(ctx, params),
            (Change::To(_), false) => world.set_params(ctx, base),
        };
    }
    let [own, other] = [own, other].map(|ctx| run_of(&world, &[ctx]));
    own / (own + other)
}

#[test]
fn no_change_in_one_phase_of_a_run_that_is_taken_back_in_another_gains_time() {
    let mut breach = None;
    for (plan, name) in PLANS {
        for change in changes() {
            for (on, off) in PHASES.iter().flat_map(|&on| PHASES.map(|off| (on, off))) {
                let part = part_of_changer(plan, change, on, off);
                if part > 0.56 {
                    let what = format!("{part:.3}: {name}, {change:?} at {on:?}, back at {off:?}");
                    println!("{what}");
                    breach.get_or_insert(what);
                }
            }
        }
    }
    judge(Rule::Gains, breach);
}
