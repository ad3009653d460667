// SPDX-License-Identifier: GPL-2.0

//! Contexts that are preempted, held and resumed together.

use crate::model::{ns, sid, world, SlotPlan, World, BASE, CRITICAL, ENDLESS, IRQ, MS, RELAY, US};
use fermata_sched_host::sched::{
    Action, ContextConfig, ContextId, Duration, Event, GroupKey, JobState, NewJob, Params,
    PolicyKind, Refusal, Scheduler, SlotState, Status, MAX_SLOTS,
};
use fermata_sched_host::{card, storage};

/// Two slots of two engines, and a gang with one context for each.
fn gang_on(plan: SlotPlan) -> (World, [ContextId; 2]) {
    let other = SlotPlan { class: 1, ..plan };
    let mut world = World::new(&[plan, other], 8);
    let gang = [0, 1].map(|class| world.open(class, Params::DEFAULT).unwrap());
    world.set_gang(gang[1], Some(gang[0])).unwrap();
    (world, gang)
}

fn states<const N: usize>(world: &World, of: [ContextId; N]) -> [JobState; N] {
    of.map(|ctx| world.state(ctx))
}

#[test]
fn what_is_asked_of_one_is_done_to_all() {
    for plan in [IRQ, BASE] {
        let (mut world, gang) = gang_on(plan);
        for ctx in gang {
            world.start(ctx, 40 * MS).unwrap();
        }
        for turn in 0..4 {
            let (one, another) = (gang[turn & 1], gang[turn >> 1]);
            world.run_for(5 * MS);
            world
                .event(Event::Preempt {
                    ctx: one,
                    hold: true,
                })
                .unwrap();
            for (i, ctx) in gang.into_iter().enumerate() {
                let state = world.machine.slot_state(sid(i));
                assert_eq!(state, Some(SlotState::Pausing(ctx)));
            }
            world.run_for(5 * MS);
            assert_eq!(states(&world, gang), [JobState::Held; 2]);
            world.event(Event::Resume { ctx: another }).unwrap();
            // Each START is in a section of its own.
            world.run_for(5 * US);
            assert_eq!(states(&world, gang), [JobState::Running; 2]);
        }
        world.run_for(100 * MS);
        assert_eq!(states(&world, gang), [JobState::Done; 2]);
        assert_eq!(gang.map(|ctx| world.stats(ctx).preemptions), [4; 2]);
    }
}

#[test]
fn a_yield_is_one_of_all() {
    let (mut world, gang) = gang_on(IRQ);
    let next = [0, 1].map(|class| world.open(class, Params::DEFAULT).unwrap());
    for ctx in gang {
        world.start(ctx, 50 * MS).unwrap();
    }
    world.run_for(MS);
    for ctx in next {
        world.start(ctx, MS / 10).unwrap();
    }
    let ctx = gang[1];
    world.event(Event::Preempt { ctx, hold: false }).unwrap();
    world.run_for(MS);
    assert_eq!(states(&world, next), [JobState::Done; 2]);
    assert_eq!(states(&world, gang), [JobState::Running; 2]);
}

#[test]
fn a_hold_that_has_not_come_about_is_taken_back_from_all() {
    let (mut world, gang) = gang_on(IRQ);
    for ctx in gang {
        world.start(ctx, 5 * MS).unwrap();
    }
    world.run_for(MS);
    let [ctx, other] = gang;
    world.event(Event::Preempt { ctx, hold: true }).unwrap();
    world.event(Event::Resume { ctx: other }).unwrap();
    world.run_for(20 * MS);
    assert_eq!(states(&world, gang), [JobState::Done; 2]);
}

/// Until the other member is started, the slice of the first one does not end.
#[test]
fn members_that_start_one_after_another_end_their_slices() {
    let (mut world, gang) = gang_on(IRQ);
    let capped = Params {
        cap: 99,
        ..Params::DEFAULT
    };
    world.set_params(gang[0], capped).unwrap();
    let other = world.open(0, Params::DEFAULT).unwrap();
    world.start(other, ENDLESS).unwrap();
    for ctx in gang {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(100 * MS);
    assert!(world.stats(gang[0]).slices > 5);
    assert!(world.stats(other).slices > 5);
}

/// The timer that starts the second member is late, as on a busy processor: the first member keeps
/// its slot beyond its slice, and the two are told to stop together.
#[test]
fn a_member_that_starts_late_delays_the_end_of_the_slices() {
    for plan in [IRQ, RELAY] {
        let (mut world, gang) = gang_on(plan);
        let other = world.open(0, Params::DEFAULT).unwrap();
        for ctx in gang {
            world.start(ctx, ENDLESS).unwrap();
        }
        world.run_for(10 * US);
        world.start(other, ENDLESS).unwrap();
        for state in [JobState::Queued, JobState::Running] {
            while world.state(gang[0]) != state {
                assert!(world.step(1_000 * MS));
            }
        }
        assert_eq!(states(&world, gang), [JobState::Running, JobState::Queued]);
        world.timer_delay = 100 * MS;
        world.run_for(50 * MS);
        world.event(Event::Timer { slot: sid(0) }).unwrap();
        assert_eq!(states(&world, gang), [JobState::Running; 2], "{plan:?}");
        world.timer_delay = 0;
        world.run_for(MS / 2);
        assert_eq!(states(&world, gang), [JobState::Queued; 2], "{plan:?}");
    }
}

/// A gang claims two slots, and a member of another gang, which starves, is on one of them. A job
/// of `work` with a slice of `slice` ms is on the third slot, and another context waits for this
/// slot, as does a member of the gang that starves. Returns the job's context, the waiter and this
/// member at 460 ms.
fn claim_beside_a_gang_that_starves(
    policy: PolicyKind,
    work: u64,
    slice: u64,
) -> (World, [ContextId; 3]) {
    let mut world = World::new(&[IRQ; 3], 16);
    world.set_policy(policy).unwrap();
    world.set_boost(Duration::from_ms(50)).unwrap();
    let mut open = |mask: u8, ms, priority| {
        let params = Params {
            mask,
            timeslice: Duration::from_ms(ms),
            priority,
            ..Params::DEFAULT
        };
        world.open(0, params).unwrap()
    };
    let starving = [open(1, 400, 1), open(2, 2, 1), open(4, 2, 1)];
    let claiming = [open(1, 400, 1), open(2, 400, 1)];
    let (second, third, next) = (open(2, 400, 1), open(4, slice, 2), open(4, 2, 1));
    for gang in [&starving[..], &claiming[..]] {
        for &ctx in &gang[1..] {
            world.set_gang(ctx, Some(gang[0])).unwrap();
        }
    }
    world.start(starving[0], ENDLESS).unwrap();
    world.start(third, work).unwrap();
    world.run_until(300 * MS);
    world.start(second, ENDLESS).unwrap();
    world.run_for(MS);
    for ctx in [starving[1], starving[2], claiming[0], claiming[1], next] {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_until(449 * MS);
    assert_eq!(world.machine.successor(sid(0)), Some(claiming[0]));
    world.run_until(460 * MS);
    (world, [third, next, starving[2]])
}

#[test]
fn a_gang_that_starves_and_makes_way_keeps_no_slot_vacant() {
    let (world, [third, next, _]) =
        claim_beside_a_gang_that_starves(PolicyKind::Fair, 450 * MS, 1_000);
    assert_eq!(world.state(third), JobState::Done);
    assert_eq!(world.machine.slot_of(next), Some(sid(2)));
}

/// Because of its priority no waiter preempts the job on the third slot, so only the starvation
/// boost can. The gang, which waits longest, is passed over, or its member runs alone. Formerly, the
/// timer fired without end.
#[test]
fn the_boost_sees_past_a_gang_that_makes_way() {
    let (world, [_, next, starves]) =
        claim_beside_a_gang_that_starves(PolicyKind::Priority, ENDLESS, 450);
    let slices = [next, starves].map(|ctx| world.stats(ctx).slices);
    assert_eq!(slices, [0, 1]);
}

/// The other member of a gang has no job, so its first member waits alone, for a slot that another
/// gang claims. A context of lower priority gets no use of the slot: it would be preempted at once.
#[test]
fn a_claimed_slot_is_not_given_to_a_context_that_is_preempted_there() {
    let mut world = World::new(&[IRQ; 2], 16);
    world.set_policy(PolicyKind::Priority).unwrap();
    let mut open = |mask: u8, priority| {
        let params = Params {
            mask,
            timeslice: Duration::from_ms(400),
            priority,
            ..Params::DEFAULT
        };
        world.open(0, params).unwrap()
    };
    let (first, second) = (open(1, 4), open(2, 3));
    let claiming = [open(1, 3), open(2, 3)];
    let waiting = [open(1, 2), open(2, 2)];
    let last = open(1, 1);
    for gang in [claiming, waiting] {
        world.set_gang(gang[1], Some(gang[0])).unwrap();
    }
    world.start(first, 10 * MS).unwrap();
    world.start(second, ENDLESS).unwrap();
    world.run_for(MS);
    for ctx in [claiming[0], claiming[1], waiting[0], last] {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_until(150 * MS);
    assert_eq!(world.state(first), JobState::Done);
    assert_eq!(world.machine.successor(sid(0)), Some(claiming[0]));
    assert_eq!(world.stats(last).slices, 0);
}

/// The claims of members that are just being started are kept.
#[test]
fn a_member_that_comes_while_others_are_being_started_joins_them_later() {
    let mut world = World::new(&[IRQ; 4], 16);
    world.set_policy(PolicyKind::Priority).unwrap();
    let gang = masked(&mut world, [0xf; 4]);
    let [first, second, third, last] = gang;
    for ctx in [second, third, last] {
        world.set_gang(ctx, Some(first)).unwrap();
    }
    let other = Params {
        priority: 0,
        mask: 8,
        ..Params::DEFAULT
    };
    let other = world.open(0, other).unwrap();
    for ctx in [other, first, second, third] {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(MS);
    let ctx = first;
    world.event(Event::Preempt { ctx, hold: true }).unwrap();
    world.run_for(5 * MS);
    world.event(Event::Resume { ctx }).unwrap();
    assert_eq!(world.state(third), JobState::Queued);
    world.start(last, ENDLESS).unwrap();
    world.run_for(10 * US);
    assert_eq!(
        states(&world, [first, second, third]),
        [JobState::Running; 3]
    );
    world.run_for(5 * MS);
    assert_eq!(world.state(last), JobState::Running);
}

/// The other member waits in another class. Whether it runs meanwhile is up to the core: it does not
/// wait for the closed member any more.
#[test]
fn closing_a_throttled_member_lets_the_other_one_run() {
    let (mut world, gang) = gang_on(IRQ);
    let capped = Params {
        cap: 10,
        ..Params::DEFAULT
    };
    world.set_params(gang[0], capped).unwrap();
    for ctx in gang {
        world.start(ctx, ENDLESS).unwrap();
    }
    while !world.stats(gang[0]).throttled {
        world.run_for(MS);
        assert!(world.now < 1_000 * MS, "no member is throttled");
    }
    world.close(gang[0]).unwrap();
    world.run_for(MS);
    assert_eq!(world.state(gang[1]), JobState::Running);
}

/// The neighbour of the throttled member in the ring has no job. Whether the other member runs
/// meanwhile is up to the core.
#[test]
fn a_throttled_member_that_leaves_lets_all_others_run() {
    let mut world = World::new(&[IRQ; 3], 8);
    let leaves = Params {
        cap: 1,
        ..Params::DEFAULT
    };
    let leaves = world.open(0, leaves).unwrap();
    let [stays, idle] = [0; 2].map(|_| world.tenant(MS));
    world.set_gang(stays, Some(leaves)).unwrap();
    world.set_gang(idle, Some(stays)).unwrap();
    for ctx in [leaves, stays] {
        world.start(ctx, ENDLESS).unwrap();
    }
    while !world.stats(leaves).throttled {
        world.run_for(MS);
        assert!(world.now < 1_000 * MS, "no member is throttled");
    }
    world.set_gang(leaves, None).unwrap();
    world.run_for(MS);
    assert_eq!(world.state(stays), JobState::Running);
}

/// Slots of two classes, with relays: the order for the second slot is posted in the same decision.
#[test]
fn members_of_several_classes_are_told_to_stop_at_once() {
    let (mut world, gang) = gang_on(RELAY);
    let other = world.open(1, Params::DEFAULT).unwrap();
    for ctx in [gang[0], gang[1], other] {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(100 * MS);
    let mut stops = 0;
    for (i, &(at, action)) in world.log.iter().enumerate() {
        if !matches!(action, Action::Pause { slot, .. } if slot == sid(0)) {
            continue;
        }
        stops += 1;
        let mut later = world.log[i..].iter();
        let is_order = |action| matches!(action, Action::Order { slot, .. } if slot == sid(0));
        let order = later.find(|&&(_, action)| is_order(action));
        assert_eq!(order.map(|&(posted, _)| posted), Some(at));
    }
    assert!(stops > 2, "{stops}");
}

#[test]
fn whoever_has_no_job_takes_no_part() {
    let (mut world, gang) = gang_on(IRQ);
    let [a, b] = gang;
    world.start(a, ENDLESS).unwrap();
    let none = Err(Refusal::NoJob);
    assert_eq!(world.event(Event::Preempt { ctx: b, hold: true }), none);
    assert_eq!(world.event(Event::Resume { ctx: b }), none);
    assert_eq!(world.state(a), JobState::Running);
    world.event(Event::Preempt { ctx: a, hold: true }).unwrap();
    world.run_for(5 * MS);
    world.start(b, ENDLESS).unwrap();
    assert_eq!(states(&world, gang), [JobState::Held, JobState::Running]);
    // A RESUME of a running member resumes the others, too.
    world.event(Event::Resume { ctx: b }).unwrap();
    assert_eq!(states(&world, gang), [JobState::Running; 2]);
}

#[test]
fn whoever_joins_or_leaves_or_is_closed_changes_nothing_for_jobs() {
    let other = SlotPlan { class: 1, ..IRQ };
    let mut world = World::new(&[IRQ, other, IRQ], 8);
    let gang = [0, 1, 0].map(|class| world.open(class, Params::DEFAULT).unwrap());
    let [a, b, c] = gang;
    world.set_gang(b, Some(a)).unwrap();
    for ctx in gang {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(1);
    world.event(Event::Preempt { ctx: b, hold: true }).unwrap();
    world.run_for(5 * MS);
    let expected = [JobState::Held, JobState::Held, JobState::Running];
    world.set_gang(c, Some(a)).unwrap();
    assert_eq!(states(&world, gang), expected);
    world.set_gang(b, None).unwrap();
    assert_eq!(states(&world, gang), expected);
    world.event(Event::Resume { ctx: b }).unwrap();
    assert_eq!(world.state(a), JobState::Held);
    world.set_gang(b, Some(c)).unwrap();
    world.close(a).unwrap();
    world.event(Event::Preempt { ctx: b, hold: true }).unwrap();
    world.run_for(5 * MS);
    assert_eq!(states(&world, [b, c]), [JobState::Held; 2]);
}

#[test]
fn a_gang_is_of_one_group() {
    let mut world = World::new(&[IRQ; 2], 8);
    let foreign = world.open_in(GroupKey(1), 0, Params::DEFAULT).unwrap();
    let [first, other] = [(); 2].map(|()| world.tenant(2 * MS));
    assert_eq!(world.set_gang(first, Some(first)), Err(Refusal::Range));
    assert_eq!(world.set_gang(first, Some(foreign)), Err(Refusal::Range));
    world.set_gang(first, Some(other)).unwrap();
    // A member may join the same gang again.
    world.set_gang(first, Some(other)).unwrap();
    world.set_gang(other, Some(first)).unwrap();
    assert_eq!(world.machine.gang_size(first), Ok(2));
    world.close(other).unwrap();
    let dead = Err(Refusal::NoContext);
    assert_eq!(world.set_gang(first, Some(other)), dead);
    assert_eq!(world.set_gang(other, Some(first)), dead);
    assert_eq!(world.set_gang(other, None), dead);
    assert_eq!(world.machine.gang_size(first), Ok(1));
}

#[test]
fn a_gang_has_no_more_members_than_there_are_slots_for() {
    for slots in 1..=MAX_SLOTS {
        let mut world = World::new(&vec![IRQ; slots], 2 * MAX_SLOTS);
        let all = [(); MAX_SLOTS + 1].map(|()| world.tenant(2 * MS));
        for (i, &ctx) in all.iter().enumerate().skip(1) {
            let expected = match i < slots {
                true => Ok(()),
                false => Err(Refusal::NoSpace),
            };
            assert_eq!(world.set_gang(ctx, Some(all[i / 2])), expected);
            if i >= slots {
                break;
            }
        }
        assert_eq!(world.machine.gang_size(all[0]), Ok(slots as u32));
    }
}

/// Opens a context for each mask.
fn masked<const N: usize>(world: &mut World, masks: [u8; N]) -> [ContextId; N] {
    masks.map(|mask| {
        let params = Params {
            mask,
            ..Params::DEFAULT
        };
        world.open(0, params).unwrap()
    })
}

#[test]
fn members_need_slots_that_each_of_them_may_use() {
    let mut world = World::new(&[IRQ; 3], 8);
    let [a, b, c, d] = masked(&mut world, [1, 0b11, 0b11, 0b111]);
    world.set_gang(b, Some(a)).unwrap();
    assert_eq!(world.set_gang(c, Some(a)), Err(Refusal::NoSpace));
    world.set_gang(d, Some(a)).unwrap();
    assert_eq!(world.machine.gang_size(a), Ok(3));
}

#[test]
fn members_leave_slots_to_those_who_may_use_no_others() {
    let mut world = World::new(&[IRQ; 3], 8);
    let gang = masked(&mut world, [0b011, 0b101, 0b001]);
    world.set_gang(gang[1], Some(gang[0])).unwrap();
    world.set_gang(gang[2], Some(gang[0])).unwrap();
    for ctx in gang {
        world.start(ctx, ENDLESS).unwrap();
    }
    // The members that came first are preempted at the end of a slice, and all return together.
    world.run_for(10 * MS);
    assert_eq!(states(&world, gang), [JobState::Running; 3]);
}

/// Advances time until both members of a gang wait for two slots, of which one is vacant.
fn let_wait(world: &mut World, [a, b]: [ContextId; 2]) {
    for ctx in [a, b] {
        world.start(ctx, ENDLESS).unwrap();
        let hold = true;
        world.event(Event::Preempt { ctx, hold }).unwrap();
        world.run_for(MS);
    }
    world.event(Event::Resume { ctx: a }).unwrap();
    assert_eq!(states(world, [a, b]), [JobState::Queued; 2]);
}

/// One member runs before the rivals, and the other one after them. The policy changes after the
/// START of the first member and before that of the other.
#[test]
fn a_gang_is_started_together_while_the_policy_changes() {
    let mut world = World::new(&[IRQ; 2], 8);
    world.set_policy(PolicyKind::Fair).unwrap();
    let tenants = [(400, 1), (100, 2), (200, 3), (200, 3)].map(|(weight, mask)| {
        let params = Params {
            weight,
            mask,
            timeslice: Duration::from_ms(1),
            ..Params::DEFAULT
        };
        world.open(0, params).unwrap()
    });
    let gang = [tenants[0], tenants[1]];
    world.set_gang(gang[1], Some(gang[0])).unwrap();
    for ctx in tenants {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(100 * MS);
    world.timer_delay = MS / 10;
    while states(&world, gang) != [JobState::Queued; 2] {
        world.run_for(1000);
    }
    while states(&world, gang) == [JobState::Queued; 2] {
        world.run_for(1000);
    }
    assert!(states(&world, gang).contains(&JobState::Queued));
    world.set_policy(PolicyKind::RoundRobin).unwrap();
    world.run_for(MS / 5);
    assert_eq!(states(&world, gang), [JobState::Running; 2]);
}

#[test]
fn a_slot_that_waits_for_the_next_decision_has_no_window() {
    let mut world = World::new(&[IRQ; 2], 8);
    let gang = [(); 2].map(|()| world.tenant(100 * MS));
    let [first, other] = [(); 2].map(|()| world.tenant(100 * MS));
    world.set_gang(gang[1], Some(gang[0])).unwrap();
    world.start(first, MS).unwrap();
    world.start(other, 20 * MS).unwrap();
    world.run_for(2 * MS);
    let_wait(&mut world, gang);
    world.timer_delay = MS / 10;
    world.run_until(20 * MS + MS / 20);
    // The core chooses which of them starts first.
    let slots = [0, 1].map(|slot| world.machine.slot_state(sid(slot)));
    assert!(slots.contains(&Some(SlotState::Vacant)));
    let mut states_now = states(&world, gang);
    states_now.sort_by_key(|&state| state == JobState::Queued);
    assert_eq!(states_now, [JobState::Running, JobState::Queued]);
    world.close(other).unwrap();
    world.run_for(MS);
    assert_eq!(states(&world, gang), [JobState::Running; 2]);
}

#[test]
fn another_context_has_the_slot_that_a_gang_waits_with() {
    let mut world = World::new(&[IRQ; 2], 8);
    let gang = [(); 2].map(|()| world.tenant(100 * MS));
    let [other, waits] = [100, 80].map(|slice| world.tenant(slice * MS));
    world.set_gang(gang[1], Some(gang[0])).unwrap();
    world.start(other, ENDLESS).unwrap();
    world.run_for(MS);
    let_wait(&mut world, gang);
    world.start(waits, ENDLESS).unwrap();
    assert_eq!(states(&world, [other, waits]), [JobState::Running; 2]);
    // This does not make the gang wait longer: the others have half a slice.
    world.run_until(55 * MS);
    assert_eq!(states(&world, gang), [JobState::Running; 2]);
}

#[test]
fn a_gang_takes_a_slot_that_becomes_vacant_before_the_one_that_it_waits_for() {
    let mut world = World::new(&[IRQ; 3], 8);
    let gang = [(); 2].map(|()| world.tenant(100 * MS));
    let [long, short] = [(); 2].map(|()| world.tenant(100 * MS));
    world.set_gang(gang[1], Some(gang[0])).unwrap();
    world.start(long, ENDLESS).unwrap();
    world.run_for(MS);
    world.start(short, 20 * MS).unwrap();
    let_wait(&mut world, gang);
    world.run_until(22 * MS);
    assert_eq!(states(&world, gang), [JobState::Running; 2]);
    assert_eq!(
        states(&world, [long, short]),
        [JobState::Running, JobState::Done]
    );
}

/// A slot is kept for work that has not arrived yet.
#[test]
fn a_gang_takes_a_slot_that_is_kept_for_work_of_its_rank() {
    let mut world = World::new(&[IRQ; 2], 8);
    let gang = [(); 2].map(|()| world.tenant(100 * MS));
    world.set_gang(gang[1], Some(gang[0])).unwrap();
    for ctx in gang {
        world.start(ctx, ENDLESS).unwrap();
        world.event(Event::Preempt { ctx, hold: true }).unwrap();
        world.run_for(MS);
    }
    let ctx = world.tenant(100 * MS);
    let at = ns(world.now + 10 * MS);
    world.event(Event::Hint { ctx, at }).unwrap();
    let keeps = |world: &World| (0..2).any(|i| world.machine.reserved_for(sid(i)) == Some(ctx));
    while !keeps(&world) {
        world.run_for(US);
    }
    world.event(Event::Resume { ctx: gang[0] }).unwrap();
    world.run_for(10 * US);
    assert_eq!(states(&world, gang), [JobState::Running; 2]);
    assert!(!keeps(&world));
}

/// The urgent member finds no other slot when its own does not become vacant in time.
#[test]
fn a_job_has_the_rank_of_an_urgent_member_only_while_that_has_a_slot() {
    let mut world = world(2, PolicyKind::Priority);
    let mut start = |params, us| {
        let ctx = world.open(0, params).unwrap();
        world.start(ctx, us).unwrap();
        world.run_for(5 * MS);
        ctx
    };
    let low = |priority, mask| Params {
        priority,
        mask,
        ..Params::DEFAULT
    };
    // The first slot has saved jobs before.
    start(low(16, 1), ENDLESS);
    start(low(16, 1), ENDLESS);
    let runs = start(low(0, 2), ENDLESS);
    let urgent = start(
        Params {
            mask: 1,
            ..CRITICAL
        },
        10 * US,
    );
    world.set_gang(urgent, Some(runs)).unwrap();
    world.card.slots[0].save = 50 * MS;
    world.start(urgent, 10 * US).unwrap();
    let waits = world.open(0, low(8, 2)).unwrap();
    world.start(waits, ENDLESS).unwrap();
    let both = [runs, waits];
    assert_eq!(states(&world, both), [JobState::Running, JobState::Queued]);
    world.run_for(10 * MS);
    assert_eq!(world.state(urgent), JobState::Queued);
    assert_eq!(states(&world, both), [JobState::Queued, JobState::Running]);
}

/// The slots of a gang are filled one after the other.
#[test]
fn a_member_does_not_start_when_another_one_stops_already() {
    let mut machine = Scheduler::new(&card(2), storage(4, 1));
    let gang = [(); 2].map(|()| {
        let group = GroupKey(0).into();
        let params = Params::DEFAULT;
        machine
            .add(
                ns(0),
                ContextConfig {
                    class: 0,
                    params,
                    group,
                },
            )
            .unwrap()
    });
    let out = &mut |_| {};
    machine
        .set_gang(ns(0), gang[1], Some(gang[0]), out)
        .unwrap();
    let mut handle = |now, event| {
        let mut starts = Vec::new();
        let out = &mut |action| {
            if let Action::Start { slot, ctx, .. } = action {
                starts.push((slot, ctx));
            }
        };
        machine.handle(ns(now), event, out).unwrap();
        starts
    };
    for ctx in gang {
        let job = NewJob {
            held: true,
            ..NewJob::default()
        };
        assert_eq!(handle(0, Event::Start { ctx, job }), []);
    }
    assert_eq!(handle(MS, Event::Resume { ctx: gang[0] }), []);
    let soon = MS + 2 * US;
    let timers = [0, 1].map(|i| Event::Timer { slot: sid(i) });
    let (slot, ctx) = handle(soon, timers[0])[0];
    assert_eq!(slot, sid(0));
    let hold = false;
    assert_eq!(handle(soon, Event::Preempt { ctx, hold }), []);
    assert_eq!(handle(soon, timers[1]), []);
    // PAUSED, after one START.
    let status = Status::from_raw(4 | (1 << 32));
    let mut starts = handle(soon + US, Event::Status { slot, status });
    for timer in timers {
        starts.extend(handle(soon + 3 * US, timer));
    }
    assert_eq!(starts.len(), 2);
}

#[test]
fn a_gang_that_is_resumed_has_its_turn_beside_others() {
    for (first, second) in [(280, 2), (280, 1), (50, 0), (3, 3), (1, 40)] {
        let plans = [0, 1, 2, 3].map(|class| SlotPlan { class, ..IRQ });
        let mut world = World::new(&plans, 8);
        // Slices are longer than requested.
        for slot in &mut world.card.slots {
            slot.save = 8 * MS;
        }
        let gang = [0, 2].map(|class| {
            let params = Params {
                timeslice: Duration::from_ms(2),
                ..Params::DEFAULT
            };
            world.open(class, params).unwrap()
        });
        world.set_gang(gang[1], Some(gang[0])).unwrap();
        world.open(1, Params::DEFAULT).unwrap();
        world.set_boost(Duration::ZERO).unwrap();
        for ctx in gang {
            world.start(ctx, ENDLESS).unwrap();
        }
        world.run_for(5 * MS);
        let hold = Event::Preempt {
            ctx: gang[0],
            hold: true,
        };
        world.event(hold).unwrap();
        world.run_for(30 * MS);
        assert_eq!(states(&world, gang), [JobState::Held; 2]);
        for (class, timeslice, wait) in [(0, 1, first), (2, 3, second)] {
            let params = Params {
                timeslice: Duration::from_ms(timeslice),
                ..Params::DEFAULT
            };
            let ctx = world.open(class, params).unwrap();
            world.start(ctx, ENDLESS).unwrap();
            world.run_for(wait * MS);
        }
        world.event(Event::Resume { ctx: gang[0] }).unwrap();
        let before = gang.map(|ctx| world.stats(ctx).slices);
        world.run_for(500 * MS);
        for (ctx, before) in gang.into_iter().zip(before) {
            assert!(world.stats(ctx).slices > before + 3, "{first} {second}");
        }
    }
}

#[test]
fn a_gang_takes_no_slot_while_it_has_to_wait_for_longer_than_a_slice() {
    let mut world = World::new(&[IRQ; 3], 8);
    let [long] = masked(&mut world, [0b010]);
    let params = Params {
        timeslice: Duration::from_ns(100 * MS),
        ..world.machine.params(long).unwrap()
    };
    world.set_params(long, params).unwrap();
    let gang = masked(&mut world, [0b011; 2]);
    let other = masked(&mut world, [0b101; 2]);
    for [a, b] in [gang, other] {
        world.set_gang(b, Some(a)).unwrap();
    }
    world.start(long, ENDLESS).unwrap();
    world.run_for(MS);
    let_wait(&mut world, gang);
    for ctx in other {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(1);
    assert_eq!(states(&world, other), [JobState::Running; 2]);
    world.run_until(70 * MS);
    for ctx in gang {
        assert!(world.stats(ctx).run.as_ns() > MS);
    }
}

/// Beside gangs, one decision ends two slices; all eight are over when the policy changes. The next
/// decision is made in another interrupt.
#[test]
fn no_timer_is_armed_for_the_past_if_one_decision_leaves_slices_that_are_over() {
    let mut world = world(8, PolicyKind::RoundRobin);
    let [a, b] = [(); 2].map(|()| world.tenant(MS));
    world.set_gang(a, Some(b)).unwrap();
    let [low, high] = [0, Params::PRIORITY_MAX].map(|priority| {
        let params = Params {
            priority,
            ..Params::DEFAULT
        };
        [(); 8].map(|()| {
            let ctx = world.open(0, params).unwrap();
            world.start(ctx, ENDLESS).unwrap();
            ctx
        })
    });
    world.run_for(500 * US);
    assert_eq!(states(&world, low), [JobState::Running; 8]);
    world.set_policy(PolicyKind::Priority).unwrap();
    world.run_for(MS);
    assert_eq!(states(&world, high), [JobState::Running; 8]);
}

/// Two members, beside jobs of another group: one that the starvation boost has started, and others
/// that are held from then on.
#[test]
fn a_job_that_the_boost_has_started_keeps_no_gang_off_its_slots() {
    for plan in [IRQ, RELAY] {
        let mut world = World::new(&[plan; 2], 16);
        world.set_policy(PolicyKind::Fair).unwrap();
        world.set_boost(Duration::from_ms(200)).unwrap();
        let light = Params {
            weight: 1,
            ..Params::DEFAULT
        };
        let light = world.open(0, light).unwrap();
        let others = [(); 3].map(|()| world.tenant(2 * MS));
        let gang = [(); 2].map(|()| world.tenant_in(GroupKey(1), 2 * MS));
        world.set_gang(gang[0], Some(gang[1])).unwrap();
        for ctx in others.into_iter().chain([light]).chain(gang) {
            world.start(ctx, ENDLESS).unwrap();
        }
        let mut from = 0;
        let is_boosted = |&(_, action): &(u64, Action)| matches!(action, Action::Start { ctx, boosted: true, .. } if ctx == light);
        while !world.log[from..].iter().any(is_boosted) {
            assert!(world.now < 5_000 * MS);
            from = world.log.len();
            world.run_for(100 * US);
        }
        for ctx in others {
            let hold = true;
            world.event(Event::Preempt { ctx, hold }).unwrap();
        }
        // The boost does not start the gang.
        world.set_boost(Duration::from_ms(60_000)).unwrap();
        let before = world.stats(gang[0]).run.as_ns();
        world.run_for(4_000 * MS);
        let ran = world.stats(gang[0]).run.as_ns() - before;
        // As much, on two slots, as the other group on one.
        assert!(ran > 1_200 * MS, "{ran}: {plan:?}");
    }
}

/// No slot is vacant.
#[test]
fn a_gang_of_low_priority_is_boosted_beside_a_job_without_end_on_each_slot() {
    let mut world = world(2, PolicyKind::Priority);
    let high = [(); 2].map(|()| world.open(0, CRITICAL).unwrap());
    let gang = [(); 2].map(|()| world.tenant_in(GroupKey(1), 2 * MS));
    world.set_gang(gang[0], Some(gang[1])).unwrap();
    for ctx in gang.into_iter().chain(high) {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(20_000 * MS);
    for ctx in gang {
        assert!(world.tenants[&ctx].longest_wait <= 3_100 * MS);
        assert!(world.stats(ctx).slices >= 15);
    }
}

/// The gang cannot have both slots while the job on one of them does not stop.
#[test]
fn a_member_of_a_gang_is_boosted_alone_beside_a_job_that_does_not_stop() {
    let mut world = world(2, PolicyKind::Fair);
    let patient = Params {
        preempt_timeout: Duration::from_ms(10_000),
        ..Params::DEFAULT
    };
    let hung = world.open(0, patient).unwrap();
    world.start(hung, ENDLESS).unwrap();
    let slot = world.machine.slot_of(hung).unwrap().index();
    world.card.slots[slot].ignore_pauses = u32::MAX;
    let (ctx, hold) = (hung, true);
    world.event(Event::Preempt { ctx, hold }).unwrap();
    world.run_for(50 * MS);
    let gang = [(); 2].map(|()| world.tenant_in(GroupKey(1), 2 * MS));
    world.set_gang(gang[0], Some(gang[1])).unwrap();
    let_wait(&mut world, gang);
    let slices = |world: &World| gang.map(|ctx| world.stats(ctx).slices);
    let before = slices(&world);
    world.run_for(2_000 * MS);
    assert_ne!(slices(&world), before);
}

/// A slot is vacant, but the gang needs two.
#[test]
fn a_gang_of_low_priority_is_boosted_beside_a_job_without_end() {
    for plan in [IRQ, RELAY] {
        for policy in [PolicyKind::Priority, PolicyKind::RoundRobin] {
            let mut world = World::new(&[plan; 2], 8);
            world.set_policy(policy).unwrap();
            let high = world.open(0, CRITICAL).unwrap();
            let low = Params {
                priority: 15,
                ..Params::DEFAULT
            };
            let gang = [(); 2].map(|()| world.open_in(GroupKey(1), 0, low).unwrap());
            world.set_gang(gang[0], Some(gang[1])).unwrap();
            for ctx in gang.into_iter().chain([high]) {
                world.start(ctx, ENDLESS).unwrap();
            }
            world.run_for(20_000 * MS);
            for ctx in gang {
                // Each of two waiting contexts within three intervals.
                let wait = world.tenants[&ctx].longest_wait;
                assert!(wait <= 3_100 * MS, "{wait}: {plan:?}, {policy:?}");
                let slices = world.stats(ctx).slices;
                assert!(slices >= 15, "{slices}: {plan:?}, {policy:?}");
            }
            let part = world.stats(high).run.as_ns() as f64 / world.now as f64;
            assert!(part > 0.95, "{part}: {plan:?}, {policy:?}");
        }
    }
}

/// The third member preempts a job at once. The others have slots that become vacant much later.
#[test]
fn a_member_that_comes_while_its_gang_waits_for_slots_starts_with_it() {
    for plan in [IRQ, RELAY] {
        let mut world = World::new(&[plan; 3], 8);
        world.set_policy(PolicyKind::Priority).unwrap();
        let priority = |priority| Params {
            priority,
            timeslice: Duration::from_ms(20),
            ..Params::DEFAULT
        };
        for _ in 0..3 {
            let ctx = world.open(0, priority(10)).unwrap();
            world.start(ctx, ENDLESS).unwrap();
        }
        let gang = [10, 10, 20].map(|level| world.open(0, priority(level)).unwrap());
        for &ctx in &gang[1..] {
            world.set_gang(ctx, Some(gang[0])).unwrap();
        }
        world.run_for(MS);
        world.start(gang[0], ENDLESS).unwrap();
        world.start(gang[1], ENDLESS).unwrap();
        world.run_for(MS);
        world.start(gang[2], ENDLESS).unwrap();
        while gang.iter().all(|&ctx| world.machine.slot_of(ctx).is_none()) {
            world.run_for(10 * US);
        }
        world.run_for(200 * US);
        assert_eq!(states(&world, gang), [JobState::Running; 3], "{plan:?}");
        let slots = gang.map(|ctx| world.machine.slot_of(ctx).is_some());
        assert_eq!(slots, [true; 3], "{plan:?}");
    }
}
