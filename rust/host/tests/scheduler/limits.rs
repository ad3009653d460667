// SPDX-License-Identifier: GPL-2.0

//! Deadlines, budgets, shares and caps, and their admission.

use crate::model::{cases, sid, world, World, ENDLESS, IRQ, MS, RELAY, US};
use fermata_sched_host::sched::{
    ContextId, Duration, GroupKey, GroupSettings, JobState, Params, PolicyKind, Refusal, SlotState,
    Urgency, WaitReason,
};
use proptest::prelude::*;

fn reservation(budget_us: u64, deadline_us: u64, period_us: u64) -> Params {
    Params {
        budget: Duration::from_us(budget_us),
        deadline: Duration::from_us(deadline_us),
        period: Duration::from_us(period_us),
        ..Params::DEFAULT
    }
}

fn capped(cap: u8) -> Params {
    Params {
        cap,
        ..Params::DEFAULT
    }
}

fn used(world: &World, ctx: ContextId, since: u64) -> f64 {
    world.stats(ctx).run.as_ns() as f64 / (world.now - since) as f64
}

/// Jobs that arrive at the beginning of each period.
struct Periodic {
    ctx: ContextId,
    period: u64,
    deadline: u64,
    work: u64,
    next: u64,
    due: Option<u64>,
    jobs: u64,
}

impl Periodic {
    /// Starts the job that is due to begin; panics if the last one is late.
    fn tick(&mut self, world: &mut World) {
        if world.now < self.next {
            return;
        }
        assert!(
            self.due.is_none() || world.state(self.ctx) == JobState::Done,
            "a period is over, and its job is not"
        );
        world.start(self.ctx, self.work).unwrap();
        self.due = Some(self.next + self.deadline);
        self.next += self.period;
        self.jobs += 1;
    }

    fn check(&mut self, world: &World, slack: u64) {
        if let Some(due) = self.due.map(|due| due + slack) {
            if world.state(self.ctx) == JobState::Done {
                assert!(world.now <= due, "late by {}", world.now - due);
                self.due = None;
            } else {
                assert!(world.now <= due, "late");
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(32))]

    /// All admitted work is done in time, despite best-effort and latency-critical work that wants
    /// all slots.
    #[test]
    fn deadlines_are_kept_under_admitted_load(
        slots in 1..4usize,
        tasks in prop::collection::vec((4_000..40_000u64, 10..60u64, 60..=100u64), 1..8),
        save in 1..60u64,
    ) {
        let mut world = world(slots, PolicyKind::Deadline);
        for slot in &mut world.card.slots {
            slot.save = save * US;
            slot.restore = save * US;
        }
        for i in 0..slots {
            let urgency = if i == 0 { Urgency::LatencyCritical } else { Urgency::BestEffort };
            let other = world.open(0, Params { urgency, ..Params::DEFAULT }).unwrap();
            world.start(other, ENDLESS).unwrap();
        }
        world.run_for(5 * MS);
        let mut periodic = Vec::new();
        for (period, percent, deadline) in tasks {
            let deadline = period * deadline / 100;
            let budget = (deadline * percent / 100).max(1_000);
            let Ok(ctx) = world.open(0, reservation(budget, deadline, period)) else {
                continue;
            };
            // The budget covers saves and restores, too; a PAUSE in a restore is repeated late.
            periodic.push(Periodic {
                ctx,
                period: period * US,
                deadline: deadline * US,
                work: budget * US * 6 / 10,
                next: world.now,
                due: None,
                jobs: 0,
            });
        }
        // The step of this loop, and the time to take over a slot, for which a PAUSE that fell into
        // a restore is written again.
        let slack = (100 + 500 + 5 * save) * US;
        let end = world.now + 400 * MS;
        while world.now < end {
            for task in &mut periodic {
                task.tick(&mut world);
            }
            world.run_for(100 * US);
            for task in &mut periodic {
                task.check(&world, slack);
            }
        }
        for task in &periodic {
            prop_assert!(task.jobs >= 10);
        }
    }

    #[test]
    fn shares_are_kept_by_nested_weights(parts in prop::collection::vec(1..45u8, 2..7), without in 0..4usize) {
        let mut world = world(1, PolicyKind::Fair);
        let mut who = Vec::new();
        let mut left = 100;
        for (group, part) in (1..).map(GroupKey).zip(parts) {
            if part < left {
                left -= part;
                world.nest(group, None, u16::from(part) * 100).unwrap();
                let ctx = world.open_in(group, 0, Params::DEFAULT).unwrap();
                who.push((ctx, f64::from(part) / 100.0));
            }
        }
        // All other groups are below one group, which has the remaining weight.
        let others = GroupKey(100);
        world.nest(others, None, u16::from(left) * 100).unwrap();
        for group in (0..without as u64).map(|n| GroupKey(101 + n)) {
            world.nest(group, Some(others), Params::WEIGHT_DEFAULT).unwrap();
            let ctx = world.open_in(group, 0, Params::DEFAULT).unwrap();
            who.push((ctx, f64::from(left) / 100.0 / without as f64));
        }
        for &(ctx, _) in &who {
            world.start(ctx, ENDLESS).unwrap();
        }
        let begin = world.now;
        world.run_for(4_000 * MS);
        let total: f64 = who.iter().map(|(_, part)| part).sum();
        let busy: f64 = who.iter().map(|&(ctx, _)| used(&world, ctx, begin)).sum();
        for (ctx, part) in who {
            let (had, due) = (used(&world, ctx, begin) / busy, part / total);
            prop_assert!((had - due).abs() < 0.01, "{had} for {due}");
        }
    }

    /// A context gets its cap under every policy, alone and among others: no more, and no less.
    #[test]
    fn caps_hold(
        cap in 1..100u8,
        alone in any::<bool>(),
        policy in prop::sample::select(vec![
            PolicyKind::Fair, PolicyKind::RoundRobin, PolicyKind::Priority,
        ]),
    ) {
        let mut world = world(1, policy);
        let ctx = world.open(0, Params { priority: 31, ..capped(cap) }).unwrap();
        world.start(ctx, ENDLESS).unwrap();
        if !alone {
            let other = world.open(0, Params::DEFAULT).unwrap();
            world.start(other, ENDLESS).unwrap();
        }
        let begin = world.now;
        world.run_for(10_000 * MS);
        let (had, most) = (used(&world, ctx, begin), f64::from(cap) / 100.0);
        // This includes what it may have saved up at the beginning.
        prop_assert!(had <= most + 0.012, "{had} for {most}");
        if alone {
            prop_assert!(had >= most - 0.01, "{had} for {most}");
        }
    }
}

#[test]
fn budget_is_enforced_on_a_free_slot_too() {
    let mut world = world(1, PolicyKind::Deadline);
    let ctx = world.open(0, reservation(2_000, 10_000, 10_000)).unwrap();
    world.start(ctx, ENDLESS).unwrap();
    let begin = world.now;
    world.run_for(2_100 * US);
    assert_eq!(world.stats(ctx).waits, Some(WaitReason::Budget));
    assert!(world.stats(ctx).throttled);
    assert_eq!(world.machine.slot_state(sid(0)), Some(SlotState::Vacant));
    world.run_for(2_000 * MS);
    let had = used(&world, ctx, begin);
    assert!((had - 0.2).abs() < 0.005, "{had}");
}

/// The time beyond the budget is a debt that the next periods pay.
#[test]
fn a_reservation_whose_budget_is_below_its_restore_makes_progress() {
    for plan in [IRQ, RELAY] {
        let mut world = World::new(&[plan], 8);
        world.set_policy(PolicyKind::Deadline).unwrap();
        world.card.slots[0].save = 400 * US;
        world.card.slots[0].restore = 536 * US;
        let ctx = world.open(0, reservation(100, 10_000, 10_000)).unwrap();
        let other = world.tenant(2 * MS);
        world.start(other, ENDLESS).unwrap();
        world.start(ctx, 2 * MS).unwrap();
        world.run_for(5_000 * MS);
        assert_eq!(world.state(ctx), JobState::Done, "{plan:?}");
        let used = used(&world, ctx, 0);
        assert!(used < 0.0105, "{used} of the slot: {plan:?}");
    }
}

#[test]
fn budget_is_not_renewed_by_starting_again_or_by_new_parameters() {
    let mut world = world(1, PolicyKind::Deadline);
    let params = reservation(2_000, 10_000, 10_000);
    let ctx = world.open(0, params).unwrap();
    let begin = world.now;
    for i in 0..4_000u64 {
        let _ = world.start(ctx, 300 * US);
        if i % 3 == 0 {
            let other = reservation(1_000, 10_000, 10_000);
            world.set_params(ctx, other).unwrap();
            world.set_params(ctx, params).unwrap();
        }
        world.run_for(250 * US);
    }
    let had = used(&world, ctx, begin);
    assert!(had < 0.21, "{had}");
}

/// Whatever the context ran before.
#[test]
fn a_limit_begins_without_a_debt() {
    for is_reserved in [false, true] {
        let mut world = world(1, PolicyKind::Fair);
        let params = if is_reserved {
            reservation(5_000, 10_000, 10_000)
        } else {
            Params::DEFAULT
        };
        let ctx = world.open(0, params).unwrap();
        world.start(ctx, ENDLESS).unwrap();
        world.run_for(10_000 * MS);
        if is_reserved {
            world.set_policy(PolicyKind::Deadline).unwrap();
        } else {
            world.set_params(ctx, capped(50)).unwrap();
        }
        let ran = world.stats(ctx).run.as_ns();
        world.run_for(1_000 * MS);
        let had = (world.stats(ctx).run.as_ns() - ran) as f64 / (1_000 * MS) as f64;
        assert!((0.49..0.56).contains(&had), "{had}");
    }
}

#[test]
fn budget_is_not_renewed_by_changing_the_policy() {
    let mut world = world(1, PolicyKind::Deadline);
    let ctx = world.open(0, reservation(2_000, 10_000, 10_000)).unwrap();
    world.start(ctx, ENDLESS).unwrap();
    let begin = world.now;
    for _ in 0..1_000 {
        world.run_for(MS);
        world.set_policy(PolicyKind::Fair).unwrap();
        world.set_policy(PolicyKind::Deadline).unwrap();
    }
    let had = used(&world, ctx, begin);
    assert!(had < 0.21, "{had}");
}

/// Opens contexts of a group that has a cap.
fn in_capped_group(world: &mut World, cap: u16, contexts: [Params; 2]) -> [ContextId; 2] {
    let group = GroupKey(7);
    let settings = GroupSettings {
        cap,
        ..GroupSettings::DEFAULT
    };
    world.set_group(group, settings).unwrap();
    contexts.map(|params| world.open_in(group, 0, params).unwrap())
}

/// The cap of a group does not apply to its reservations.
#[test]
fn a_reservation_is_kept_while_its_group_is_throttled() {
    let mut world = world(1, PolicyKind::Deadline);
    let contexts = [Params::DEFAULT, reservation(2_000, 10_000, 10_000)];
    let [best_effort, reserved] = in_capped_group(&mut world, 1, contexts);
    world.start(best_effort, ENDLESS).unwrap();
    while !world.stats(best_effort).throttled {
        world.run_for(MS);
        assert!(world.now < 1_000 * MS, "the group is not throttled");
    }
    let group = world.machine.group_of(best_effort).unwrap();
    let reason = WaitReason::GroupCap(group);
    assert_eq!(world.stats(best_effort).waits, Some(reason));
    world.start(reserved, MS).unwrap();
    world.run_for(2 * MS);
    assert_eq!(world.state(reserved), JobState::Done);
}

/// The other members of a gang with a reservation are subject to the cap as usual.
#[test]
fn a_reservation_takes_no_members_of_its_gang_past_the_cap_of_their_group() {
    let mut world = world(2, PolicyKind::Deadline);
    let contexts = [Params::DEFAULT, reservation(5_000, 10_000, 10_000)];
    let [best_effort, reserved] = in_capped_group(&mut world, 10, contexts);
    world.set_gang(best_effort, Some(reserved)).unwrap();
    for ctx in [best_effort, reserved] {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(2_000 * MS);
    let share = used(&world, best_effort, 0);
    assert!(share < 0.15, "{share}");
    assert!(world.stats(reserved).run.as_ns() > 20 * MS);
}

#[test]
fn earliest_deadline_goes_first_at_once() {
    let mut world = world(1, PolicyKind::Deadline);
    let late = world.open(0, reservation(10_000, 50_000, 50_000)).unwrap();
    let early = world.open(0, reservation(1_000, 5_000, 5_000)).unwrap();
    world.start(late, 5 * MS).unwrap();
    world.run_for(MS);
    world.start(early, MS / 2).unwrap();
    assert_eq!(
        world.machine.slot_state(sid(0)),
        Some(SlotState::Pausing(late))
    );
    world.run_for(10 * MS);
    assert_eq!(
        (world.state(early), world.state(late)),
        (JobState::Done, JobState::Done)
    );
    assert_eq!(world.stats(early).preemptions, 0);
}

#[test]
fn what_cannot_be_kept_is_refused() {
    let mut world = world(1, PolicyKind::Fair);
    let a = world.open(0, reservation(5_000, 10_000, 20_000)).unwrap();
    assert_eq!(
        world.open(0, reservation(4_001, 10_000, 10_000)),
        Err(Refusal::Admission)
    );
    let b = world.open(0, reservation(4_000, 10_000, 10_000)).unwrap();
    assert_eq!(
        world.set_params(a, reservation(5_100, 10_000, 20_000)),
        Err(Refusal::Admission)
    );
    world
        .set_params(a, reservation(4_000, 10_000, 20_000))
        .unwrap();
    world.close(b).unwrap();
    world
        .set_params(a, reservation(9_000, 10_000, 20_000))
        .unwrap();
    world.open(0, capped(10)).unwrap();
}

#[test]
fn what_is_admitted_on_several_slots() {
    let mut world = world(2, PolicyKind::Deadline);
    assert_eq!(
        world.open(0, reservation(5_001, 10_000, 10_000)),
        Err(Refusal::Admission)
    );
    let one = Params {
        mask: 1,
        ..reservation(1_000, 10_000, 10_000)
    };
    assert_eq!(world.open(0, one), Err(Refusal::Admission));
    for _ in 0..3 {
        world.open(0, reservation(4_500, 10_000, 10_000)).unwrap();
    }
    assert_eq!(
        world.open(0, reservation(1_000, 10_000, 10_000)),
        Err(Refusal::Admission)
    );
}

#[test]
fn limits_out_of_range() {
    let mut world = world(1, PolicyKind::Deadline);
    let ctx = world.open(0, Params::DEFAULT).unwrap();
    let huge = u64::MAX / 1_000;
    let bad = [
        capped(101),
        reservation(99, 5_000, 5_000),
        reservation(6_000, 5_000, 5_000),
        reservation(100, 6_000, 5_000),
        reservation(100, 900, 900),
        reservation(100, 10_000_001, 10_000_001),
        reservation(huge, huge, huge),
        reservation(0, 1_000, 1_000),
        reservation(100, 0, 0),
    ];
    for params in bad {
        assert_eq!(world.open(0, params), Err(Refusal::Range));
        assert_eq!(world.set_params(ctx, params), Err(Refusal::Range));
    }
}

#[test]
fn a_throttled_job_can_be_held_closed_and_let_go() {
    let mut world = world(1, PolicyKind::Fair);
    let who = [0; 3].map(|_| world.open(0, capped(10)).unwrap());
    for ctx in who {
        world.start(ctx, ENDLESS).unwrap();
    }
    while !who.iter().all(|&ctx| world.stats(ctx).throttled) {
        world.run_for(100 * US);
    }
    assert_eq!(world.stats(who[0]).waits, Some(WaitReason::Cap));
    world
        .event(fermata_sched_host::sched::Event::Preempt {
            ctx: who[0],
            hold: true,
        })
        .unwrap();
    assert_eq!(world.state(who[0]), JobState::Held);
    world.close(who[1]).unwrap();
    world.set_params(who[2], Params::DEFAULT).unwrap();
    assert_eq!(world.machine.slot_of(who[2]), Some(sid(0)));
}
