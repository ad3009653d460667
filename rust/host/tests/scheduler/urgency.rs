// SPDX-License-Identifier: GPL-2.0

//! Priorities, latency-critical over best-effort work, and the starvation boost.

use crate::model::check::{pause, start};
use crate::model::{cases, ns, sid, world, World, CRITICAL, ENDLESS, MS, US};
use fermata_sched_host::sched::{
    Action, ContextId, Duration, Event, JobState, Params, PauseCause, PolicyKind, Refusal,
    SlotState,
};
use proptest::prelude::*;

const ALL: [PolicyKind; 3] = [
    PolicyKind::Fair,
    PolicyKind::RoundRobin,
    PolicyKind::Priority,
];

fn with_priority(world: &mut World, priority: u8) -> ContextId {
    let params = Params {
        priority,
        ..Params::DEFAULT
    };
    world.open(0, params).unwrap()
}

#[test]
fn lc_preempts_be_at_once_under_every_policy() {
    for policy in ALL {
        let mut world = world(1, policy);
        let be = world.tenant(100 * MS);
        let lc = world.open(0, CRITICAL).unwrap();
        world.start(be, 20 * MS).unwrap();
        world.run_for(MS);
        let from = world.log.len();
        world.start(lc, MS).unwrap();
        assert_eq!(
            world.actions(from),
            [pause(sid(0), be, PauseCause::Outranked { waiter: lc })]
        );
        world.run_for(60 * US);
        assert_eq!(world.machine.slot_of(lc), Some(sid(0)));
        // The urgent job is not preempted; then the other one resumes where it was.
        world.run_for(MS);
        assert_eq!(world.state(lc), JobState::Done);
        assert_eq!(world.machine.slot_of(be), Some(sid(0)));
        world.run_for(20 * MS);
        assert_eq!(world.state(be), JobState::Done);
        assert_eq!(
            (world.stats(be).resumes, world.stats(lc).preemptions),
            (1, 0)
        );
    }
}

/// A PAUSE is written again every few milliseconds, even if a save is known to take longer. The
/// slot still counts as about to become vacant, and no other slot is preempted in addition.
#[test]
fn a_save_that_takes_long_costs_no_second_preemption() {
    let mut world = world(2, PolicyKind::Fair);
    for slot in &mut world.card.slots {
        slot.save = 42 * MS;
    }
    let be = [0; 2].map(|_| world.tenant(1_000 * MS));
    for ctx in be {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(MS);
    for ctx in be {
        world.event(Event::Preempt { ctx, hold: true }).unwrap();
    }
    world.run_for(100 * MS);
    for ctx in be {
        world.event(Event::Resume { ctx }).unwrap();
    }
    world.run_for(100 * MS);
    let preempted = |world: &World| be.map(|ctx| world.stats(ctx).preemptions);
    let before = preempted(&world);
    let lc = world.open(0, CRITICAL).unwrap();
    world.start(lc, MS).unwrap();
    world.run_for(150 * MS);
    assert_eq!(world.state(lc), JobState::Done);
    let more = preempted(&world).iter().sum::<u64>() - before.iter().sum::<u64>();
    assert_eq!(more, 1);
}

/// The scheduler does not count on a slot that does not respond in time: urgent work gets another
/// one.
#[test]
fn lc_does_not_wait_for_a_slot_that_hangs() {
    let mut world = world(2, PolicyKind::Fair);
    let be = [0; 2].map(|_| world.tenant(1_000 * MS));
    for ctx in be {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(MS);
    let hung = world.machine.slot_of(be[0]).unwrap().index();
    world.card.slots[hung].hang = true;
    let lc = world.open(0, CRITICAL).unwrap();
    world.start(lc, MS).unwrap();
    world.run_for(50 * MS);
    assert_eq!(world.state(lc), JobState::Done);
    assert_eq!(world.stats(be[1]).preemptions, 1);
}

#[test]
fn lc_takes_only_as_many_slots_as_it_needs_and_may_use() {
    let mut world = world(3, PolicyKind::Fair);
    let be = [(); 4].map(|()| world.tenant(100 * MS));
    for be in be {
        world.start(be, ENDLESS).unwrap();
    }
    let lc = world
        .open(
            0,
            Params {
                mask: 2,
                ..CRITICAL
            },
        )
        .unwrap();
    world.run_for(MS);
    let from = world.log.len();
    world.start(lc, MS).unwrap();
    assert_eq!(
        world.actions(from),
        [pause(sid(1), be[1], PauseCause::Outranked { waiter: lc })]
    );
    world.run_for(500 * US);
    assert_eq!(world.machine.slot_of(lc), Some(sid(1)));
    assert_eq!(world.stats(lc).slices, 1);
}

/// Another context of the best-effort group waits, too, and any slot will do.
#[test]
fn lc_that_may_use_all_slots_takes_one() {
    for policy in [PolicyKind::Fair, PolicyKind::Deadline] {
        let mut world = world(3, policy);
        for _ in 0..4 {
            let be = world.tenant(100 * MS);
            world.start(be, ENDLESS).unwrap();
        }
        let lc = world.open(0, CRITICAL).unwrap();
        world.run_for(MS);
        let from = world.log.len();
        world.start(lc, MS).unwrap();
        let actions = world.actions(from);
        assert!(matches!(actions[..], [Action::Pause { .. }]), "{actions:?}");
    }
}

#[test]
fn lc_may_be_said_and_taken_back_while_it_waits() {
    let mut world = world(1, PolicyKind::Fair);
    let (a, b) = (world.tenant(100 * MS), world.tenant(100 * MS));
    world.start(a, ENDLESS).unwrap();
    world.start(b, ENDLESS).unwrap();
    world.set_params(b, CRITICAL).unwrap();
    world.run_for(100 * US);
    assert_eq!(world.machine.slot_of(b), Some(sid(0)));
    world.set_params(b, Params::DEFAULT).unwrap();
    world.run_for(5 * MS);
    assert_eq!(world.machine.slot_of(a), Some(sid(0)));
}

#[test]
fn lc_pays_for_the_save_of_the_one_that_makes_way() {
    // A save of 1 ms cuts each run of the best-effort job, which loses no share to a similar job by
    // this.
    let mut world = world(2, PolicyKind::Fair);
    for slot in &mut world.card.slots {
        slot.save = MS;
        slot.restore = 1;
    }
    let one = Params {
        mask: 1,
        timeslice: Duration::from_ms(5),
        ..Params::DEFAULT
    };
    let (a, b) = (world.open(0, one).unwrap(), world.open(0, one).unwrap());
    let lc = world
        .open(
            0,
            Params {
                mask: 1,
                ..CRITICAL
            },
        )
        .unwrap();
    world.start(a, ENDLESS).unwrap();
    world.start(b, ENDLESS).unwrap();
    for _ in 0..400 {
        // Always while `a` runs.
        while world.machine.slot_of(a).is_none() {
            world.run_for(500 * US);
        }
        let _ = world.start(lc, MS);
        world.run_for(4 * MS);
    }
    let (a, b) = (world.stats(a), world.stats(b));
    assert!(a.run > b.run, "{a:?} {b:?}");
}

#[test]
fn priority_highest_first_and_equals_in_turn() {
    let mut world = world(1, PolicyKind::Priority);
    let low = with_priority(&mut world, 3);
    let pair = [with_priority(&mut world, 9), with_priority(&mut world, 9)];
    world.start(low, 10 * MS).unwrap();
    world.run_for(MS);
    for ctx in pair {
        world.start(ctx, 5 * MS).unwrap();
    }
    assert_eq!(
        world.machine.slot_state(sid(0)),
        Some(SlotState::Pausing(low))
    );
    world.run_for(12 * MS);
    let order = world.starts();
    assert_eq!(order[..5], [low, pair[0], pair[1], pair[0], pair[1]]);
    world.run_for(20 * MS);
    assert_eq!(world.state(low), JobState::Done);
    assert_eq!(world.stats(low).resumes, 1);
}

#[test]
fn priority_the_lowest_makes_way() {
    let mut world = world(3, PolicyKind::Priority);
    let who = [5, 2, 7].map(|priority| with_priority(&mut world, priority));
    for ctx in who {
        world.start(ctx, ENDLESS).unwrap();
    }
    let high = with_priority(&mut world, 20);
    world.start(high, MS).unwrap();
    assert_eq!(
        world.machine.slot_state(sid(1)),
        Some(SlotState::Pausing(who[1]))
    );
    assert_eq!(world.machine.slot_of(who[0]), Some(sid(0)));
}

#[test]
fn priority_changed_while_it_waits_holds_at_once() {
    let mut world = world(1, PolicyKind::Priority);
    let (a, b) = (with_priority(&mut world, 5), with_priority(&mut world, 4));
    world.start(a, ENDLESS).unwrap();
    world.start(b, ENDLESS).unwrap();
    world.run_for(50 * MS);
    assert_eq!(world.stats(b).slices, 0);
    let params = Params {
        priority: 6,
        ..Params::DEFAULT
    };
    world.set_params(b, params).unwrap();
    world.run_for(MS);
    assert_eq!(world.machine.slot_of(b), Some(sid(0)));
}

#[test]
fn boost_gives_a_slice_to_the_starving() {
    for policy in ALL {
        let mut world = world(1, policy);
        let low = with_priority(&mut world, 0);
        let lc = world
            .open(
                0,
                Params {
                    priority: 31,
                    ..CRITICAL
                },
            )
            .unwrap();
        world.set_boost(Duration::from_ms(100)).unwrap();
        world.start(lc, ENDLESS).unwrap();
        world.start(low, ENDLESS).unwrap();
        world.run_for(2_000 * MS);
        let slices = world.stats(low).slices;
        assert!((15..=20).contains(&slices), "{policy:?}: {slices}");
        assert!(world.tenants[&low].longest_wait < 110 * MS);
        // Each boost gives a whole slice, and no more.
        let run = world.stats(low).run.as_ns() / slices;
        assert!((2 * MS..3 * MS).contains(&run), "{policy:?}: {run}");
        // Without the boost there is none.
        world.set_boost(Duration::ZERO).unwrap();
        world.run_for(10 * MS);
        let slices = world.stats(low).slices;
        world.run_for(1_000 * MS);
        assert_eq!(world.stats(low).slices, slices);
    }
}

#[test]
fn boost_bounds_the_slice_that_it_gives() {
    let mut world = world(1, PolicyKind::Priority);
    let greedy = Params {
        timeslice: Params::TIMESLICE_MAX,
        priority: 0,
        ..Params::DEFAULT
    };
    let low = world.open(0, greedy).unwrap();
    let high = with_priority(&mut world, 31);
    world.set_boost(Duration::from_ms(100)).unwrap();
    world.start(high, ENDLESS).unwrap();
    world.start(low, ENDLESS).unwrap();
    world.run_for(10_000 * MS);
    assert!(world.stats(low).run.as_ns() < 2_600 * MS);
    assert!(world.stats(low).slices > 50);
}

#[test]
fn boost_and_priority_out_of_range() {
    let mut world = world(1, PolicyKind::Priority);
    let ctx = with_priority(&mut world, 31);
    for priority in [32, u8::MAX] {
        let params = Params {
            priority,
            ..Params::DEFAULT
        };
        assert_eq!(world.open(0, params), Err(Refusal::Range));
        assert_eq!(world.set_params(ctx, params), Err(Refusal::Range));
    }
    for boost in [1, 9_999_999, 60_000 * MS + 1, u64::MAX] {
        assert_eq!(
            world.set_boost(Duration::from_ns(boost)),
            Err(Refusal::Range)
        );
    }
}

/// EPOCH's first figure: at t3 a tenant of higher priority arrives and tenant 2 is saved; at t5
/// tenant 3 is done; at t6 tenant 2 resumes, without losing work.
#[test]
fn epoch_three_tenants_on_two_slots() {
    let mut world = world(2, PolicyKind::Priority);
    let (one, two) = (with_priority(&mut world, 9), with_priority(&mut world, 8));
    let three = with_priority(&mut world, 20);
    world.start(one, 30 * MS).unwrap();
    world.start(two, 20 * MS).unwrap();
    world.run_for(3 * MS);
    world.start(three, 2 * MS).unwrap();
    world.run_for(100 * MS);
    let slot_one = sid(1);
    let of_slot_one: Vec<Action> = world
        .actions(0)
        .into_iter()
        .filter(|action| match action {
            Action::Start { slot, .. } | Action::Pause { slot, .. } => *slot == slot_one,
            _ => false,
        })
        .collect();
    let start = |ctx, resume| start(slot_one, ctx, resume);
    let order = [
        start(two, false),
        pause(slot_one, two, PauseCause::Outranked { waiter: three }),
        start(three, false),
        start(two, true),
    ];
    assert_eq!(of_slot_one, order);
    for ctx in [one, two, three] {
        assert_eq!(world.state(ctx), JobState::Done);
    }
    assert_eq!(world.stats(one).preemptions, 0);
}

/// A PAUSE that falls into a restore is dropped. Once the card has reported how long restores take,
/// it is written again when the restore is over, not after a fixed time.
#[test]
fn a_pause_in_a_restore_comes_again_when_that_is_over() {
    let mut world = world(1, PolicyKind::Fair);
    let (save, restore) = (world.card.slots[0].save, world.card.slots[0].restore);
    let be = world.tenant(2 * MS);
    world.start(be, ENDLESS).unwrap();
    let lc = world.open(0, CRITICAL).unwrap();
    for _ in 0..2 {
        world.run_for(5 * MS);
        world.start(lc, 100 * US).unwrap();
    }
    world.run_for(5 * MS);
    let known = world.tenants[&lc].longest_wait;
    let late = 10 * US + restore / 16;
    assert!(known <= save + US, "no PAUSE was dropped until now");

    world.start(lc, 100 * US).unwrap();
    while world.stats(lc).state != JobState::Done {
        world.run_for(US);
    }
    world.run_for(restore / 2);
    let pauses = world.machine.slot_stats(sid(0), ns(world.now)).unwrap();
    world.start(lc, 100 * US).unwrap();
    world.run_for(5 * MS);
    let after = world.machine.slot_stats(sid(0), ns(world.now)).unwrap();
    assert_eq!(after.pauses_again, pauses.pauses_again + 1);
    let longest = world.tenants[&lc].longest_wait;
    assert!(longest > known, "the PAUSE was dropped");
    assert!(longest <= restore / 2 + late + save + 2 * US, "{longest}");
}

proptest! {
    #![proptest_config(cases(48))]

    /// From arrival to START: a PAUSE that fell into a restore and is written again, and one save.
    #[test]
    fn lc_latency_is_bounded(
        policy in prop::sample::select(ALL.to_vec()),
        slots in 1..4usize,
        others in 1..8usize,
        save in 10..400u64,
        restore in 10..400u64,
        gaps in prop::collection::vec(1..9_000u64, 20..60),
    ) {
        let mut world = world(slots, policy);
        for slot in &mut world.card.slots {
            slot.save = save * US;
            slot.restore = restore * US;
        }
        for i in 0..others {
            let be = with_priority(&mut world, i as u8);
            world.start(be, ENDLESS).unwrap();
        }
        let lc = world.open(0, Params { priority: 31, ..CRITICAL }).unwrap();
        for gap in gaps {
            world.run_for(gap * US);
            if !world.stats(lc).state.is_live() {
                world.start(lc, 100 * US).unwrap();
            }
        }
        world.run_for(20 * MS);
        let bound = (3 * save + 2 * restore + 2 * 250 + 2 * save) * US;
        let longest = world.tenants[&lc].longest_wait;
        prop_assert!(longest <= bound, "{longest} for {bound}");
    }
}
