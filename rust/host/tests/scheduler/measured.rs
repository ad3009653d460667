// SPDX-License-Identifier: GPL-2.0

//! How well slots are used: the time that urgent work waits, the slot time that is used under load,
//! and how far the members of a gang start apart.

use crate::model::{sid, SlotPlan, World, BASE, CRITICAL, ENDLESS, IRQ, MS, RELAY, US};
use crate::simulation::Random;
use fermata_sched_host::sched::{Action, ContextId, Duration, Params, PolicyKind};

const PLANS: [(SlotPlan, &str); 3] = [(BASE, "base"), (IRQ, "irq"), (RELAY, "relay")];
const SWITCH: u64 = 80 * US;

fn timeslice(us: u64) -> Params {
    Params {
        timeslice: Duration::from_us(us),
        ..Params::DEFAULT
    }
}

fn of(plan: SlotPlan, slots: usize, contexts: usize) -> World {
    let mut world = World::new(&vec![plan; slots], contexts);
    world.lean = true;
    world.irq_delay = 2 * US;
    world.set_policy(PolicyKind::Fair).unwrap();
    for slot in &mut world.card.slots {
        (slot.save, slot.restore) = (SWITCH, SWITCH);
    }
    world
}

fn start(world: &mut World, params: Params) -> ContextId {
    let ctx = world.open(0, params).unwrap();
    world.start(ctx, ENDLESS).unwrap();
    ctx
}

/// Returns a quantile, in us.
fn quantile(spans: &mut [u64], part: f64) -> u64 {
    spans.sort_unstable();
    spans[((spans.len() - 1) as f64 * part) as usize] / US
}

/// Returns the part of the time in which slots had jobs on them.
fn used(world: &World) -> f64 {
    let busy = |i| {
        let stats = world
            .machine
            .slot_stats(sid(i), crate::model::ns(world.now));
        stats.unwrap().busy.as_ns()
    };
    let slots = world.plans.len();
    (0..slots).map(busy).sum::<u64>() as f64 / (world.now * slots as u64) as f64
}

/// Returns how long jobs of urgent contexts, each 3 to 11 ms after the one before, wait for their
/// STARTs beside endless best-effort jobs.
fn waits(world: &mut World, others: usize, urgent: usize, span: u64) -> Vec<u64> {
    for _ in 0..others {
        start(world, timeslice(2_000));
    }
    let mut random = Random(5);
    let mut arrivals: Vec<_> = (0..urgent)
        .map(|_| {
            (
                world.open(0, CRITICAL).unwrap(),
                3 * MS + random.below(8 * MS),
            )
        })
        .collect();
    let (end, mut asked, mut waited) = (world.now + span, Vec::new(), Vec::new());
    while world.now < end {
        let next = arrivals.iter_mut().min_by_key(|arrival| arrival.1).unwrap();
        world.run_until(next.1);
        if !world.state(next.0).is_live() {
            asked.push((next.0, world.now, world.log.len()));
            world.start(next.0, 20 * US).unwrap();
        }
        next.1 = world.now + 3 * MS + random.below(8 * MS);
    }
    world.run_for(5 * MS);
    for (who, at, from) in asked {
        let started = world.log[from..]
            .iter()
            .find(|(_, action)| matches!(action, Action::Start { ctx, .. } if *ctx == who));
        waited.push(started.unwrap().0 - at);
    }
    waited
}

#[test]
fn urgent_work_waits_for_one_save() {
    for (plan, name) in PLANS {
        for (slots, others, urgent) in [(1, 12, 1), (4, 16, 2), (8, 24, 6)] {
            let mut world = of(plan, slots, 40);
            let mut waited = waits(&mut world, others, urgent, 400 * MS);
            let [half, most] = [0.5, 1.0].map(|part| quantile(&mut waited, part));
            let used = used(&world);
            let what =
                format!("{name}, {slots} slots: {half} us, at most {most} us, {used:.4} used");
            println!("{what}");
            // A PAUSE during a restore is dropped; a base slot is polled and reset.
            let (half_due, most_due, used_due) = match name {
                "base" => (700, 1_500, 0.7),
                "irq" => (90, 200, 0.99),
                _ => (90, 100, 0.99),
            };
            assert!(
                half <= half_due && most <= most_due && used >= used_due,
                "{what}"
            );
        }
    }
}

#[test]
fn members_of_a_gang_start_together() {
    for (plan, name) in PLANS {
        for (slots, size, others) in [(4, 3, 6), (8, 8, 8), (8, 4, 12)] {
            let mut world = of(plan, slots, 24);
            world.set_boost(Duration::ZERO).unwrap();
            let gang: Vec<_> = (0..size)
                .map(|_| world.open(0, timeslice(2_000)).unwrap())
                .collect();
            for &ctx in &gang[1..] {
                world.set_gang(ctx, Some(gang[0])).unwrap();
            }
            for &ctx in &gang {
                world.start(ctx, ENDLESS).unwrap();
            }
            let beside: Vec<_> = (0..others)
                .map(|_| start(&mut world, timeslice(2_000)))
                .collect();
            let (end, mut was, mut first, mut apart) = (500 * MS, 0, 0, Vec::new());
            while world.step(end) {
                let on = |ctx: &&ContextId| {
                    world
                        .card
                        .slots
                        .iter()
                        .any(|slot| slot.active() && slot.running_job() == Some(**ctx))
                };
                let on = gang.iter().filter(on).count();
                if was == 0 && on > 0 {
                    first = world.now;
                }
                if on == size && was < size {
                    apart.push(world.now - first);
                }
                was = on;
            }
            let had = |who: &[ContextId]| {
                who.iter()
                    .map(|&ctx| world.stats(ctx).run.as_ns())
                    .sum::<u64>() as f64
            };
            let part = had(&gang) / (had(&gang) + had(&beside));
            let (together, used) = (apart.len(), used(&world));
            let [half, most] = [0.5, 0.99].map(|part| quantile(&mut apart, part));
            let what = format!("{name}, {slots} slots, {size} beside {others}: {together} times, {half} to {most} us apart, {part:.3} of the time, {used:.4} used");
            println!("{what}");
            let due = size as f64 / (size + others) as f64;
            let used_due = if plan.base.is_some() { 0.75 } else { 0.99 };
            assert!(together > 50 && most <= 20 && used >= used_due, "{what}");
            assert!((part - due).abs() < 0.02, "{what}");
        }
    }
}

/// Jobs that come and end, as many as the slots can do, and fewer and more.
#[test]
fn no_slot_stands_vacant_beside_work() {
    for (plan, name) in PLANS {
        for load in [60, 90, 120] {
            let mut world = of(plan, 8, 24);
            world.lean = false;
            let all: Vec<_> = (0..24)
                .map(|_| world.open(0, timeslice(1_000)).unwrap())
                .collect();
            let mut random = Random(3);
            while world.now < 30 * MS {
                let ctx = random.of(&all);
                if !world.state(ctx).is_live() {
                    let work = 200 * US + random.below(3 * MS);
                    world.start(ctx, work).unwrap();
                }
                let next = random.below(2 * 1_700 * US * 100 / 8 / load);
                world.run_for(next);
            }
            let part = world.rules.idled as f64 / (8 * world.now) as f64;
            println!(
                "{name}, load {load} %: {part:.5} of the slots idle, {:.4} used, {} timers",
                used(&world),
                world.rules.fired
            );
            assert!(part < 0.005, "{part}: {name}, load {load} %");
        }
    }
}
