// SPDX-License-Identifier: GPL-2.0

//! Slots with a relay: orders, records, and the contexts that are named to run next.

use crate::model::card::Relay;
use crate::model::{ns, sid, SlotPlan, World, CRITICAL, ENDLESS, MS, RELAY, US};
use fermata_sched_host::sched::{
    Action, ContextId, Duration, Event, Failure, JobState, Params, PolicyKind, SlotState, Stop,
    Urgency, Wake,
};

fn relay(world: &mut World) -> &mut Relay {
    world.card.slots[0].relay.as_mut().unwrap()
}

/// A slot, and tenants with slices of a millisecond whose jobs have no end.
fn tenants<const N: usize>(plan: SlotPlan) -> (World, [ContextId; N]) {
    let mut world = World::new(&[plan], 8);
    let tenants = [0; N].map(|_| world.tenant(MS));
    for ctx in tenants {
        world.start(ctx, ENDLESS).unwrap();
    }
    (world, tenants)
}

/// The job of the first tenant is being saved, which takes 5 ms, and the second tenant is named.
fn switching<const N: usize>() -> (World, [ContextId; N]) {
    let (mut world, tenants) = tenants(RELAY);
    world.card.slots[0].save = 5 * MS;
    world.run_until(MS + 500 * US);
    assert_eq!(named(&world), Some(tenants[1]));
    (world, tenants)
}

/// Returns the context that is named in the order that was posted last.
fn named(world: &World) -> Option<ContextId> {
    let mut orders = world.log.iter().rev();
    let order = orders.find_map(|&(_, action)| match action {
        Action::Order { order, .. } => Some(order),
        _ => None,
    });
    Some(order?.next?.ctx)
}

fn orders(world: &World) -> usize {
    let is_order = |(_, action): &&(u64, Action)| matches!(action, Action::Order { .. });
    world.log.iter().filter(is_order).count()
}

fn critical(world: &mut World) -> ContextId {
    world.open(0, CRITICAL).unwrap()
}

#[test]
fn a_switch_takes_one_order_and_no_read_of_a_status() {
    let (mut world, [a, b, c]) = tenants(RELAY);
    world.run_for(50 * MS);
    let starts = world.starts();
    assert!(starts.len() > 40);
    let in_turn = starts.chunks(3).all(|turn| [a, b, c].starts_with(turn));
    assert!(in_turn);
    assert_eq!(relay(&mut world).relayed as usize, starts.len() - 1);
    // One for the first START, one for each switch, and at most one whose record is still to come.
    assert!(orders(&world) - starts.len() <= 1);
    assert_eq!(world.card.slots[0].status_reads, 0);
}

#[test]
fn late_interrupts_do_not_keep_a_slot_vacant() {
    let (mut world, [_, _]) = tenants(RELAY);
    world.irq_delay = 700 * US;
    world.run_for(50 * MS);
    let starts = world.starts().len();
    // The record of the last run may not have been read.
    assert!(relay(&mut world).relayed as usize >= starts - 1);
}

/// A switch between short slices takes an interrupt and no timer: the timer is for errors only.
#[test]
fn a_short_slice_is_ordered_as_a_whole() {
    let (mut world, [_, b]) = tenants(RELAY);
    world.run_for(10 * US);
    assert_eq!(named(&world), Some(b));
    world.run_for(50 * MS);
    let armed = world.arms().count();
    assert!(armed * 5 < world.starts().len(), "{armed} times");
}

/// The card also starts the next job by itself if a job ends long before its slice.
#[test]
fn a_job_that_ends_within_its_slice_is_followed_at_once() {
    let mut world = World::new(&[RELAY], 8);
    let [a, b] = [0; 2].map(|_| world.tenant(10 * MS));
    world.start(a, 3 * MS).unwrap();
    world.start(b, ENDLESS).unwrap();
    world.irq_delay = 700 * US;
    world.run_until(5 * MS);
    assert_eq!(world.state(a), JobState::Done);
    assert_eq!(world.starts(), [a, b]);
    assert_eq!(relay(&mut world).relayed, 1);
}

/// The host learns of the end of a run 700 us late. What it has shown until then, of the context and
/// of the slot, is not taken back.
#[test]
fn time_that_was_shown_is_not_taken_back() {
    let mut world = World::new(&[RELAY], 8);
    let ctx = world.tenant(10 * MS);
    world.irq_delay = 700 * US;
    world.start(ctx, MS).unwrap();
    let times = |world: &mut World| {
        let now = ns(world.now);
        world.machine.note_shown(now);
        let stats = world.machine.stats(ctx, now).unwrap();
        (
            stats.run,
            world.machine.slot_stats(sid(0), now).unwrap().busy,
        )
    };
    world.run_until(MS + 500 * US);
    let shown = times(&mut world);
    assert_eq!(world.state(ctx), JobState::Running);
    world.run_until(3 * MS);
    assert_eq!(world.state(ctx), JobState::Done);
    assert_eq!(times(&mut world), shown);
}

/// A slot is not polled during a slice whose end was ordered.
#[test]
fn the_longest_slice_that_is_ordered_as_a_whole_takes_no_read() {
    let mut world = World::new(&[RELAY], 8);
    let tenants = [0; 2].map(|_| world.tenant(10 * MS));
    for ctx in tenants {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(200 * MS);
    let starts = world.starts().len();
    assert!(starts >= 19);
    assert_eq!(relay(&mut world).relayed as usize, starts - 1);
    assert_eq!(world.card.slots[0].status_reads, 0);
}

#[test]
fn who_follows_a_long_slice_is_named_at_its_end() {
    let mut world = World::new(&[RELAY], 8);
    let [a, b] = [0; 2].map(|_| world.tenant(20 * MS));
    world.start(a, ENDLESS).unwrap();
    world.start(b, ENDLESS).unwrap();
    world.run_until(19 * MS);
    assert_eq!(orders(&world), 1, "but for the first START");
    world.run_until(20 * MS);
    assert_eq!(named(&world), Some(b));
}

/// A context that is only named does not run: requests for it do not affect the job on the slot.
#[test]
fn a_named_context_is_preempted_alone() {
    for hold in [false, true] {
        let (mut world, [a, b]) = tenants(RELAY);
        world.run_for(10 * US);
        assert_eq!(named(&world), Some(b));
        let from = world.log.len();
        world.event(Event::Preempt { ctx: b, hold }).unwrap();
        world.run_for(900 * US);
        assert_eq!(world.machine.slot_of(a), Some(sid(0)));
        assert_eq!(world.stats(a).preemptions, 0);
        let is_pause = |(_, action): &(u64, Action)| matches!(action, Action::Pause { .. });
        assert!(!world.log[from..].iter().any(is_pause));
        if hold {
            assert_eq!(world.state(b), JobState::Held);
        }
    }
}

/// Meanwhile the limit of the job passes, at 100 ms.
#[test]
fn a_closed_job_that_is_not_dropped_in_time_is_stopped_by_a_reset() {
    let mut world = World::new(&[RELAY], 8);
    let params = Params {
        cap: 50,
        ..Params::DEFAULT
    };
    let ctx = world.open(0, params).unwrap();
    world.run_for(500 * MS);
    world.start(ctx, ENDLESS).unwrap();
    world.run_for(95 * MS);
    world.card.set_hang(0);
    world.close(ctx).unwrap();
    world.run_for(300 * MS);
    assert!(world.released.contains(&ctx));
}

/// Until then another slot may become vacant for the only context that waits.
#[test]
fn the_last_context_that_waits_is_named_at_the_end_of_a_slice() {
    let mut world = World::new(&[RELAY, RELAY], 8);
    let tenants = [0; 3].map(|_| world.tenant(2 * MS));
    for ctx in tenants {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_until(MS);
    assert_eq!(orders(&world), 2, "but for the first STARTs");
    world.run_until(2 * MS);
    assert_eq!(named(&world), Some(tenants[2]));
}

#[test]
fn a_context_that_is_named_waits() {
    let (mut world, tenants) = tenants::<3>(RELAY);
    world.run_for(60 * MS);
    for ctx in tenants {
        let stats = world.stats(ctx);
        let all = (stats.run + stats.wait).as_ns();
        assert!(all.abs_diff(world.now) < 2 * MS, "{stats:?}");
    }
}

/// The job has ended when the order reaches the card, which drops the order. The driver starts the
/// next job on the vacant slot.
#[test]
fn an_order_that_comes_too_late_is_dropped() {
    let mut world = World::new(&[RELAY], 8);
    let a = world.tenant(MS);
    let lc = critical(&mut world);
    world.irq_delay = 100 * US;
    world.start(a, 500 * US).unwrap();
    world.run_for(550 * US);
    world.start(lc, ENDLESS).unwrap();
    assert_eq!(named(&world), Some(lc));
    assert_eq!(relay(&mut world).dropped, 1);
    world.run_for(MS);
    assert_eq!(world.state(a), JobState::Done);
    assert_eq!(world.starts(), [a, lc]);
    assert_eq!(world.machine.slot_of(lc), Some(sid(0)));
    assert_eq!(world.stats(lc).slices, 1);
}

/// The card is told the end of a slice in advance, so late timers and interrupts make no slice
/// longer.
#[test]
fn slices_end_on_the_card() {
    let starts = |late| {
        let (mut world, [_, _]) = tenants(RELAY);
        (world.timer_delay, world.irq_delay) = (late, late / 2);
        world.run_for(50 * MS);
        world.starts().len()
    };
    assert_eq!(starts(0), starts(100 * US));
}

#[test]
fn urgent_work_does_not_wait_for_the_end_of_a_slice_that_the_card_was_told_of() {
    let (mut world, [a, b]) = tenants(RELAY);
    world.run_for(800 * US);
    assert_eq!(named(&world), Some(b));
    assert_eq!(world.machine.slot_of(a), Some(sid(0)));
    let lc = critical(&mut world);
    world.start(lc, 10 * US).unwrap();
    world.run_for(70 * US);
    assert_eq!(world.state(lc), JobState::Done);
    // The same for a hold that the owner requests.
    world.run_for(MS);
    let (on, _) = world.machine.awaited_run(sid(0)).unwrap();
    world
        .event(Event::Preempt {
            ctx: on,
            hold: true,
        })
        .unwrap();
    world.run_for(120 * US);
    assert_eq!(world.state(on), JobState::Held);
}

#[test]
fn urgent_work_takes_the_place_of_who_was_named() {
    let (mut world, [a, b, c]) = switching();
    let lc = critical(&mut world);
    world.start(lc, 10 * US).unwrap();
    assert_eq!(named(&world), Some(lc));
    world.run_for(6 * MS);
    // The context that was named before runs next.
    assert_eq!(world.starts(), [a, lc, b]);
    assert_eq!(world.state(lc), JobState::Done);
    world.run_for(25 * MS);
    assert_eq!(world.starts()[3], c);
}

/// Other slots, which a context may not use, are constantly told which context runs next.
#[test]
fn the_boost_does_not_count_on_slots_that_go_on_with_others() {
    let mut world = World::new(&[RELAY; 3], 8);
    world.set_boost(Duration::from_ms(20)).unwrap();
    let on = |mask| Params {
        mask,
        timeslice: Duration::from_ms(2),
        ..Params::DEFAULT
    };
    for mask in [1, 1, 4, 4] {
        let ctx = world.open(0, on(mask)).unwrap();
        world.start(ctx, ENDLESS).unwrap();
    }
    let urgent = Params {
        urgency: Urgency::LatencyCritical,
        ..on(2)
    };
    let urgent = world.open(0, urgent).unwrap();
    world.start(urgent, ENDLESS).unwrap();
    world.run_for(MS);
    let waits = world.open(0, on(2)).unwrap();
    world.start(waits, ENDLESS).unwrap();
    world.run_for(500 * MS);
    assert!(world.stats(waits).slices > 5);
}

/// Two tenants, and urgent work of 20 us that arrives each `period` ns, for 200 ms.
fn interrupted(params: [Params; 2], period: u64) -> (World, [ContextId; 2]) {
    let mut world = World::new(&[RELAY], 8);
    world.irq_delay = 5 * US;
    let tenants = params.map(|params| world.open(0, params).unwrap());
    for ctx in tenants {
        world.start(ctx, ENDLESS).unwrap();
    }
    let lc = critical(&mut world);
    while world.now < 200 * MS {
        world.run_for(period);
        if !world.state(lc).is_live() {
            world.start(lc, 20 * US).unwrap();
        }
    }
    (world, tenants)
}

#[test]
fn urgent_work_does_not_let_a_job_pass_its_cap() {
    let capped = Params {
        cap: 10,
        timeslice: Params::TIMESLICE_MAX,
        ..Params::DEFAULT
    };
    // The other tenant is throttled most of the time, too.
    let (world, tenants) = interrupted([capped; 2], 50 * US);
    for ctx in tenants {
        let run = world.stats(ctx).run.as_ns();
        assert!(run * 100 < world.now * 15, "{run} of {}", world.now);
    }
}

/// A save before the end of a slice is charged to the urgent work.
#[test]
fn urgent_work_pays_for_the_slice_that_it_cuts_short() {
    let mut world = World::new(&[RELAY], 8);
    world.set_policy(PolicyKind::Fair).unwrap();
    world.irq_delay = 5 * US;
    world.card.slots[0].save = 300 * US;
    let [a, b] = [0; 2].map(|_| world.tenant(2 * MS));
    let lc = critical(&mut world);
    world.start(a, ENDLESS).unwrap();
    world.start(b, ENDLESS).unwrap();
    let mut cuts = 0;
    while world.now < 200 * MS {
        world.run_for(100 * US);
        let may = !world.state(lc).is_live() && world.stats(a).slices > 10;
        if may && world.machine.slot_state(sid(0)) == Some(SlotState::Pausing(a)) {
            // The whole slice was ordered in advance, so the job still works.
            world.start(lc, 10 * US).unwrap();
            cuts += 1;
        }
    }
    let [a, b] = [a, b].map(|ctx| world.stats(ctx).run.as_ns());
    assert!(a > b + cuts * 100 * US, "{a} and {b}, {cuts} times");
}

/// Urgent work is named on a slot whose job is being saved, the other slot becomes vacant, and a
/// gang waits for both.
#[test]
fn a_gang_does_not_take_the_slot_of_urgent_work_that_is_named() {
    let mut world = World::new(&[RELAY; 2], 8);
    world.card.slots[0].save = 200 * US;
    let be = world.tenant(100 * MS);
    world.start(be, ENDLESS).unwrap();
    let other = critical(&mut world);
    world.start(other, 3 * MS).unwrap();
    let gang = [0; 2].map(|_| world.tenant(100 * MS));
    world.set_gang(gang[1], Some(gang[0])).unwrap();
    for ctx in gang {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_until(2_900 * US);
    let lc = critical(&mut world);
    world.start(lc, MS).unwrap();
    assert_eq!(named(&world), Some(lc));
    world.run_until(3_050 * US);
    assert_eq!(world.state(other), JobState::Done);
    assert_eq!(world.machine.slot_of(be), Some(sid(0)), "it is being saved");
    world.run_for(2 * MS);
    assert_eq!(world.state(lc), JobState::Done);
    assert_eq!(world.stats(lc).preemptions, 0);
    world.run_for(200 * MS);
    assert!(gang.iter().all(|&ctx| world.stats(ctx).slices > 0));
}

/// A latency-critical context announces work for a time just before the end of a slice that the
/// card was already told of.
fn announced() -> (World, [ContextId; 2], ContextId, u64) {
    let (mut world, tenants) = tenants(RELAY);
    let lc = critical(&mut world);
    world.run_until(20 * MS);
    // The times of a save and a restore are known by now.
    let told = orders(&world);
    while orders(&world) == told {
        world.run_for(10 * US);
    }
    assert!(named(&world).is_some());
    let at = world.now + 150 * US;
    world
        .event(Event::Hint {
            ctx: lc,
            at: ns(at),
        })
        .unwrap();
    (world, tenants, lc, at)
}

#[test]
fn a_hint_does_not_wait_for_the_end_of_a_slice_that_the_card_was_told_of() {
    let (mut world, _, lc, at) = announced();
    let next = named(&world).unwrap();
    let starts = world.starts().len();
    world.run_until(at);
    assert_eq!(world.machine.slot_state(sid(0)), Some(SlotState::Vacant));
    assert_eq!(world.machine.reserved_for(sid(0)), Some(lc));
    world.start(lc, 10 * US).unwrap();
    world.run_for(2 * MS);
    assert_eq!(world.state(lc), JobState::Done);
    // The context that was named before runs next.
    assert_eq!(world.starts()[starts..][..2], [lc, next]);
    assert_eq!(world.stats(lc).hints_used, 1);
}

/// The job was stopped for the hint before the end of its slice.
#[test]
fn a_hint_that_is_taken_back_while_a_slice_is_cut_short_is_wasted() {
    let (mut world, _, lc, _) = announced();
    while world.machine.reserved_for(sid(0)) != Some(lc) {
        world.run_for(US);
    }
    let at = ns(0);
    world.event(Event::Hint { ctx: lc, at }).unwrap();
    assert_eq!(world.stats(lc).hints_wasted, 1);
}

/// The announced work does not arrive: the context that was named runs when the hint has expired.
#[test]
fn who_was_withdrawn_for_a_hint_runs_in_the_end() {
    let (mut world, _, lc, at) = announced();
    let next = named(&world).unwrap();
    let starts = world.starts().len();
    world.run_until(at + 5 * MS);
    assert_eq!(world.starts()[starts], next);
    assert_eq!(world.stats(lc).hints_wasted, 1);
}

/// The record shows that the card took the context that was named before.
#[test]
fn an_order_is_replaced_too_late() {
    let (mut world, [a, b]) = tenants(RELAY);
    world.card.slots[0].save = 50 * US;
    world.irq_delay = 200 * US;
    world.run_until(MS + 100 * US);
    assert_eq!(world.machine.slot_of(a), Some(sid(0)), "no record was read");
    let lc = critical(&mut world);
    world.start(lc, 10 * US).unwrap();
    assert_eq!(named(&world), Some(lc));
    assert_eq!(relay(&mut world).dropped, 1);
    world.run_for(3 * MS);
    assert_eq!(world.starts()[..3], [a, b, lc]);
}

/// The status that is read after the order that names nobody shows the job before.
#[test]
fn who_is_named_is_held_when_a_status_says_that_the_card_has_not_taken_it() {
    let (mut world, [a, b]) = switching();
    world.event(Event::Preempt { ctx: b, hold: true }).unwrap();
    assert_eq!(named(&world), None);
    assert_eq!(world.state(b), JobState::Held);
    assert_eq!(world.wakes, [(b, Wake::Held)]);
    world.run_for(6 * MS);
    assert_eq!(world.starts(), [a, a]);
}

#[test]
fn who_was_taken_before_being_withdrawn_is_stopped_at_once() {
    let (mut world, [a, b]) = tenants(RELAY);
    world.card.slots[0].save = 50 * US;
    world.irq_delay = 200 * US;
    world.run_until(MS + 100 * US);
    world.event(Event::Preempt { ctx: b, hold: true }).unwrap();
    world.run_for(MS);
    assert_eq!(world.starts()[..3], [a, b, a]);
    assert_eq!(world.state(b), JobState::Held);
    assert!(world.stats(b).run < Duration::from_ms(1));
}

#[test]
fn memory_of_who_is_named_stays_until_it_is_known_whether_the_card_has_taken_it() {
    for taken in [false, true] {
        let (mut world, [_, b]) = tenants(RELAY);
        world.card.slots[0].save = if taken { 50 * US } else { 5 * MS };
        world.irq_delay = 200 * US;
        world.run_until(MS + 100 * US);
        world.close(b).unwrap();
        // The status that is read then shows the job before, or the record is found after it.
        assert_eq!(world.released.contains(&b), !taken);
        world.run_for(6 * MS);
        assert!(world.released.contains(&b));
        assert_eq!(world.starts().contains(&b), taken);
        // A job that was taken is dropped by a reset, and not saved.
        assert_eq!(
            world
                .machine
                .slot_stats(sid(0), ns(world.now))
                .unwrap()
                .resets,
            taken.into()
        );
    }
}

#[test]
fn a_job_that_is_closed_is_dropped_and_not_reset() {
    let (mut world, [a, b]) = tenants(RELAY);
    world.run_for(500 * US);
    let from = world.log.len();
    world.close(a).unwrap();
    let order = world.log[from..]
        .iter()
        .find_map(|&(_, action)| match action {
            Action::Order { order, .. } => Some(order),
            _ => None,
        });
    let order = order.unwrap();
    assert_eq!(
        (order.stop, order.next.map(|next| next.ctx)),
        (Stop::Dropped, Some(b))
    );
    world.run_for(100 * US);
    assert!(world.released.contains(&a));
    assert_eq!(world.machine.slot_of(b), Some(sid(0)));
    let is_reset = |(_, action): &(u64, Action)| matches!(action, Action::Reset { .. });
    assert!(!world.log.iter().any(is_reset));
}

#[test]
fn who_may_not_use_the_slot_any_more_is_withdrawn() {
    let (mut world, [a, b, c]) = switching();
    world.set_enabled(b, false).unwrap();
    assert_eq!(named(&world), Some(c));
    world.run_for(6 * MS);
    assert_eq!(world.starts(), [a, c]);
    assert_eq!(world.state(b), JobState::Queued);
}

#[test]
fn nobody_is_named_by_a_frozen_scheduler() {
    let (mut world, [a, _]) = switching();
    world.freeze();
    assert_eq!(named(&world), None);
    world.rest();
    assert_eq!(world.starts(), [a]);
    world.thaw();
    world.run_for(10 * MS);
    assert!(world.starts().len() > 1);
}

/// The card has gone on with the next job when it is frozen, and the host learns that later.
#[test]
fn a_job_that_was_taken_before_the_freeze_leaves_the_slot() {
    let (mut world, tenants @ [_, b]) = tenants(RELAY);
    world.irq_delay = 700 * US;
    world.run_until(MS + 200 * US);
    assert_eq!(relay(&mut world).relayed, 1);
    world.freeze();
    world.rest();
    assert_eq!(tenants.map(|ctx| world.state(ctx)), [JobState::Queued; 2]);
    assert_eq!(world.starts().last(), Some(&b));
    world.thaw();
    world.run_for(10 * MS);
    assert!(world.starts().len() > 8);
}

#[test]
fn a_hung_job_is_reset_and_who_is_named_runs() {
    let (mut world, [a, b]) = tenants(RELAY);
    world.run_for(500 * US);
    world.card.set_hang(0);
    world.run_for(200 * MS);
    assert_eq!(world.state(a), JobState::Failed(Failure::PreemptTimeout));
    assert_eq!(world.machine.slot_of(b), Some(sid(0)));
    assert_eq!(world.stats(b).failed, 0);
}

#[test]
fn a_record_that_is_lost_fails_both_jobs() {
    let (mut world, [a, b]) = tenants(RELAY);
    relay(&mut world).lose_records = 1;
    let jobs = [(a, 1), (b, 1)];
    world.card.guilty.extend(jobs);
    world.run_for(50 * MS);
    assert_eq!(world.state(a), JobState::Failed(Failure::Protocol));
    assert_eq!(world.state(b), JobState::Failed(Failure::Protocol));
    // The slot continues to work.
    let c = world.tenant(MS);
    world.start(c, MS).unwrap();
    world.run_for(2 * MS);
    assert_eq!(world.state(c), JobState::Done);
}

#[test]
fn a_start_that_is_ignored_fails_the_job_that_is_named_too() {
    let mut world = World::new(&[RELAY], 8);
    world.card.slots[0].ignore_starts = 1;
    let tenants = [0; 2].map(|_| world.tenant(MS));
    for ctx in tenants {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(50 * MS);
    for ctx in tenants {
        assert_eq!(world.state(ctx), JobState::Failed(Failure::Protocol));
    }
    let next = world.tenant(MS);
    world.start(next, MS).unwrap();
    world.run_for(2 * MS);
    assert_eq!(world.state(next), JobState::Done);
}

#[test]
fn a_record_that_names_a_stranger_fails_the_jobs() {
    let (mut world, [a, b]) = tenants(RELAY);
    relay(&mut world).lies = Some(7);
    world.card.guilty.extend([(a, 1), (b, 1)]);
    world.run_for(50 * MS);
    assert_eq!(world.state(a), JobState::Failed(Failure::Protocol));
    assert_eq!(world.state(b), JobState::Failed(Failure::Protocol));
}

#[test]
fn a_restore_is_broken_off_for_urgent_work() {
    let (mut world, [a, b]) = tenants(RELAY);
    world.set_policy(PolicyKind::Fair).unwrap();
    world.card.slots[0].restore = 2 * MS;
    world.run_for(40 * MS);
    let (resumed, other) = match world.machine.slot_of(a) {
        Some(_) => (a, b),
        None => (b, a),
    };
    assert!(world.stats(resumed).resumes > 0 && world.stats(other).resumes > 0);
    let starts = world.starts().len();
    while world.starts().len() == starts {
        world.run_for(10 * US);
    }
    let lc = critical(&mut world);
    world.start(lc, 10 * US).unwrap();
    world.run_for(100 * US);
    assert_eq!(world.state(lc), JobState::Done);
    world.run_for(20 * MS);
    assert_eq!(world.stats(a).failed + world.stats(b).failed, 0);
}

/// Times that a card reports are limited to the time that can have passed.
#[test]
fn nobody_is_charged_for_more_than_has_passed() {
    let (mut world, [a, b]) = tenants(RELAY);
    relay(&mut world).exaggerates = true;
    world.run_for(20 * MS);
    let run = world.stats(a).run + world.stats(b).run;
    assert!(run < Duration::from_ms(30));
    let stats = world.machine.slot_stats(sid(0), ns(world.now)).unwrap();
    // A slice is at most 10 ms, however long a save seems to take.
    assert!(stats.save_max < Duration::from_ms(12));
}
