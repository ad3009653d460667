// SPDX-License-Identifier: GPL-2.0

//! The watch of a slot: storms of its timer, and jobs that wait beside it while it is vacant. The
//! scheduler has neither fault, so the card of a test fires timers without end, or not at all.

use fermata_sched_host::measure::SlotWatch;
use fermata_sched_host::sched::{
    ContextId, Event, GroupKey, GroupSettings, JobState, Params, PolicyKind,
};

use crate::model::{ns, sid, world, World, ENDLESS, MS, US};

const SECOND: u64 = 1_000 * MS;

/// Fires the timer of a slot each `every` ns, beside what the scheduler asks for, and returns how
/// often a storm is noticed in 10 ms.
fn storms(every: u64) -> u64 {
    let mut world = world(1, PolicyKind::Fair);
    let ctx = world.tenant(2 * MS);
    world.start(ctx, ENDLESS).unwrap();
    let mut watch = SlotWatch::default();
    let times = 10 * MS / every;
    let noticed = (0..times).filter(|_| {
        world.run_for(every);
        world.event(Event::Timer { slot: sid(0) }).unwrap();
        watch.note_expiry(ns(world.now))
    });
    let noticed = noticed.count() as u64;
    assert_eq!(watch.timer_storms, noticed);
    assert_eq!(world.state(ctx), JobState::Running);
    noticed
}

#[test]
fn a_timer_that_fires_without_end_is_noticed_once_a_millisecond() {
    assert_eq!(storms(2 * US), 10);
    assert_eq!(storms(9 * US), 10);
}

#[test]
fn a_hundred_expiries_in_a_millisecond_are_no_storm() {
    assert_eq!(storms(10 * US), 0);
}

/// Looks at a slot once a second, as the driver does, and returns after how many seconds a
/// standstill is noticed.
fn standstills(world: &mut World, slot: usize, seconds: u64) -> Vec<u64> {
    let mut watch = SlotWatch::default();
    let noticed = (0..seconds).filter(|_| {
        let waiter = world.machine.waits_beside(sid(slot));
        let is_new = watch.note_waiter(ns(world.now), waiter);
        world.run_for(SECOND);
        is_new
    });
    let noticed: Vec<_> = noticed.collect();
    assert_eq!(watch.standstills, noticed.len() as u64);
    noticed
}

/// A job that waits for its registers, which are written in parts, for the timer that never comes.
fn stuck() -> (World, ContextId) {
    let mut world = world(1, PolicyKind::Fair);
    world.machine.set_load_parts(4);
    world.timer_delay = 3_600 * SECOND;
    let ctx = world.tenant(2 * MS);
    world.start(ctx, 10 * MS).unwrap();
    (world, ctx)
}

#[test]
fn a_job_that_waits_beside_a_vacant_slot_for_ten_seconds_is_noticed_once() {
    let (mut world, ctx) = stuck();
    assert_eq!(world.machine.waits_beside(sid(0)), Some(ctx));
    assert_eq!(standstills(&mut world, 0, 40), [10]);
    assert_eq!(world.state(ctx), JobState::Queued);
    // The timer brings the job to its slot, and nobody waits any more.
    world.timer_delay = 0;
    world.run_for(SECOND);
    assert_eq!(world.state(ctx), JobState::Done);
    assert_eq!(world.machine.waits_beside(sid(0)), None);
}

/// Each job that waits is noticed for itself.
#[test]
fn the_next_job_that_stands_still_is_noticed_again() {
    let (mut world, first) = stuck();
    let second = world.tenant(2 * MS);
    world.start(second, 10 * MS).unwrap();
    let mut watch = SlotWatch::default();
    for (waits, at) in [(first, 0), (first, 10), (second, 11), (second, 21)] {
        let is_new = watch.note_waiter(ns(at * SECOND), Some(waits));
        assert_eq!(is_new, at == 10 || at == 21, "{waits:?} at {at} s");
    }
    assert!(!watch.note_waiter(ns(22 * SECOND), None));
    assert_eq!(watch.standstills, 2);
}

/// Nobody stands still where jobs share slots, or may not run.
#[test]
fn jobs_that_share_slots_do_not_stand_still() {
    const CAPPED: GroupKey = GroupKey(1);
    for policy in [PolicyKind::Fair, PolicyKind::Priority] {
        let mut world = world(2, policy);
        world.lean = true;
        let (cap, settings) = (1, GroupSettings::DEFAULT);
        world
            .set_group(CAPPED, GroupSettings { cap, ..settings })
            .unwrap();
        for group in [GroupKey(0), CAPPED, CAPPED] {
            let ctx = world.tenant_in(group, 20 * MS);
            world.start(ctx, ENDLESS).unwrap();
        }
        let disabled = world.open(0, Params::DEFAULT).unwrap();
        world.set_enabled(disabled, false).unwrap();
        world.start(disabled, ENDLESS).unwrap();
        for slot in 0..2 {
            assert_eq!(standstills(&mut world, slot, 12), [], "slot {slot}");
        }
        assert_eq!(world.state(disabled), JobState::Queued);
    }
}

/// A slot of a card that is frozen is vacant, and its jobs wait, for as long as the card is.
#[test]
fn jobs_of_a_frozen_card_do_not_stand_still() {
    let mut world = world(1, PolicyKind::Fair);
    let ctx = world.tenant(2 * MS);
    world.start(ctx, ENDLESS).unwrap();
    world.freeze();
    world.rest();
    assert_eq!(world.state(ctx), JobState::Queued);
    assert_eq!(world.machine.waits_beside(sid(0)), None);
}
