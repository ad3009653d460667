// SPDX-License-Identifier: GPL-2.0

//! What owners may request, and what is refused. `model.rs` checks that a refusal changes nothing.

use fermata_sched_host::sched::{
    ContextId, Duration, Event, JobState, NewJob, Params, PolicyKind, Refusal, SlotState,
    WaitReason, Wake,
};

use crate::model::{ns, sid, SlotPlan, World, BASE, ENDLESS, IRQ, MS, RELAY};

#[test]
fn values_out_of_range() {
    let mut world = World::new(&[IRQ], 4);
    let ctx = world.tenant(MS);
    let slice = |timeslice| Params {
        timeslice,
        ..Params::DEFAULT
    };
    let timeout = |preempt_timeout| Params {
        preempt_timeout,
        ..Params::DEFAULT
    };
    let huge = Duration::from_ns(u64::MAX);
    let bad = [
        slice(Duration::ZERO),
        slice(Duration::from_ns(Params::TIMESLICE_MIN.as_ns() - 1)),
        slice(Duration::from_ns(Params::TIMESLICE_MAX.as_ns() + 1)),
        slice(huge),
        timeout(Duration::ZERO),
        timeout(huge),
    ];
    for params in bad {
        assert_eq!(world.open(0, params), Err(Refusal::Range));
        assert_eq!(world.set_params(ctx, params), Err(Refusal::Range));
    }
    let nowhere = Params {
        mask: 0xfe,
        ..Params::DEFAULT
    };
    assert_eq!(world.open(0, nowhere), Err(Refusal::NoSlot));
    assert_eq!(world.open(1, Params::DEFAULT), Err(Refusal::NoSlot));
    assert_eq!(world.set_params(ctx, nowhere), Err(Refusal::NoSlot));
    assert_eq!(world.set_params(ctx, slice(Params::TIMESLICE_MIN)), Ok(()));
}

#[test]
fn capacity_and_stale_ids() {
    let mut world = World::new(&[IRQ], 2);
    let (a, b) = (world.tenant(MS), world.tenant(MS));
    assert_eq!(world.open(0, Params::DEFAULT), Err(Refusal::NoSpace));
    world.close(a).unwrap();
    let c = world.tenant(MS);
    assert_eq!(c.index(), a.index());
    assert_ne!(c, a);
    for event in [
        Event::Start {
            ctx: a,
            job: NewJob::default(),
        },
        Event::Preempt { ctx: a, hold: true },
        Event::Resume { ctx: a },
        Event::Hold { ctx: a },
        Event::EndHold { ctx: a },
        Event::Close { ctx: a },
    ] {
        assert_eq!(world.event(event), Err(Refusal::NoContext));
    }
    assert_eq!(
        world.set_params(a, Params::DEFAULT),
        Err(Refusal::NoContext)
    );
    assert!(world.machine.params(a).is_err());
    assert_eq!(world.machine.contexts(), 2);
    let _ = b;
}

#[test]
fn each_request_in_each_state() {
    let mut world = World::new(&[IRQ], 4);
    let (a, b) = (world.tenant(2 * MS), world.tenant(2 * MS));
    let hold = |ctx| Event::Preempt { ctx, hold: true };
    for event in [hold(a), Event::Resume { ctx: a }] {
        assert_eq!(world.event(event), Err(Refusal::NoJob));
    }
    world.start(a, 3 * MS).unwrap();
    world.start(b, 3 * MS).unwrap();
    assert_eq!(world.state(b), JobState::Queued);
    for ctx in [a, b] {
        assert_eq!(world.start(ctx, MS), Err(Refusal::Busy));
        world.event(Event::Resume { ctx }).unwrap();
    }
    // A waiting job is held at once, and is started, not resumed, when the hold ends.
    world.event(hold(b)).unwrap();
    assert_eq!(world.wakes, [(b, Wake::Held)]);
    world.event(hold(b)).unwrap();
    assert_eq!(world.start(b, MS), Err(Refusal::Busy));
    world.run_for(5 * MS);
    assert_eq!(world.state(a), JobState::Done);
    assert_eq!(world.state(b), JobState::Held);
    world.event(Event::Resume { ctx: b }).unwrap();
    world.run_for(5 * MS);
    assert_eq!(world.state(b), JobState::Done);
    assert_eq!(world.stats(b).resumes, 0);
    for ctx in [a, b] {
        assert_eq!(world.event(hold(ctx)), Err(Refusal::NoJob));
    }
}

/// The slot stays vacant until the RESUME, and a hint is taken back.
#[test]
fn a_job_that_starts_held() {
    for plan in [IRQ, RELAY] {
        for (saved, wait) in [(false, 5 * MS), (true, 5 * MS), (true, MS)] {
            let mut world = World::new(&[plan], 4);
            let a = world.tenant(2 * MS);
            let at = ns(world.now + 2 * MS);
            world.event(Event::Hint { ctx: a, at }).unwrap();
            let job = NewJob {
                saved,
                held: true,
                ..NewJob::default()
            };
            world.start_from(a, 3 * MS, job, MS).unwrap();
            assert_eq!(world.wakes, [(a, Wake::Held)]);
            assert_eq!(world.start(a, MS), Err(Refusal::Busy));
            world.run_for(wait);
            assert_eq!(world.state(a), JobState::Held);
            assert_eq!(
                world.machine.slot_state(sid(0)),
                Some(SlotState::Vacant),
                "{plan:?}"
            );
            assert_eq!(
                (world.stats(a).wait, world.stats(a).job),
                (Duration::ZERO, 1)
            );
            assert_eq!(world.stats(a).saved, saved);
            world.event(Event::Resume { ctx: a }).unwrap();
            world.run_for(5 * MS);
            assert_eq!(world.state(a), JobState::Done);
            assert_eq!(world.stats(a).resumes, u64::from(saved));
            let stats = world.stats(a);
            assert_eq!((stats.hints_used, stats.hints_wasted), (0, 0));
        }
    }
}

/// RESUME ends what a request has begun, and only the end of the last hold ends holds.
#[test]
fn holds_count() {
    for plan in [IRQ, RELAY, BASE] {
        let mut world = World::new(&[plan], 4);
        let a = world.tenant(2 * MS);
        let (hold, end, resume) = (
            Event::Hold { ctx: a },
            Event::EndHold { ctx: a },
            Event::Resume { ctx: a },
        );
        assert_eq!(world.event(end), Err(Refusal::Range));
        world.start(a, 10 * MS).unwrap();
        world.run_for(MS);
        for _ in 0..2 {
            world.event(hold).unwrap();
        }
        world.run_for(5 * MS);
        for event in [resume, end] {
            world.event(event).unwrap();
            world.run_for(5 * MS);
            assert_eq!(world.state(a), JobState::Held, "{plan:?}");
            assert!(world.stats(a).has_hold);
        }
        // A request to hold outlasts the last hold.
        world.event(Event::Preempt { ctx: a, hold: true }).unwrap();
        world.event(end).unwrap();
        world.run_for(5 * MS);
        assert_eq!(world.state(a), JobState::Held);
        assert!(!world.stats(a).has_hold);
        world.event(hold).unwrap();
        world.event(resume).unwrap();
        world.run_for(5 * MS);
        assert_eq!(world.state(a), JobState::Held);
        world.event(end).unwrap();
        world.run_for(20 * MS);
        assert_eq!(world.state(a), JobState::Done);
        assert_eq!(world.stats(a).slices, 2);
    }
}

/// A hold that ends before it has taken effect costs a save.
#[test]
fn a_hold_may_end_at_once() {
    let mut world = World::new(&[IRQ], 4);
    let a = world.tenant(2 * MS);
    world.start(a, 5 * MS).unwrap();
    world.run_for(MS);
    world.event(Event::Hold { ctx: a }).unwrap();
    world.event(Event::EndHold { ctx: a }).unwrap();
    world.run_for(10 * MS);
    assert_eq!(world.state(a), JobState::Done);
    assert_eq!(world.stats(a).resumes, 1);
}

#[test]
fn a_job_that_starts_under_a_hold() {
    let mut world = World::new(&[IRQ], 4);
    let a = world.tenant(2 * MS);
    world.event(Event::Hold { ctx: a }).unwrap();
    assert_eq!(world.state(a), JobState::Idle);
    world.start(a, 3 * MS).unwrap();
    assert_eq!(world.wakes, [(a, Wake::Held)]);
    world.run_for(5 * MS);
    assert_eq!((world.state(a), world.stats(a).slices), (JobState::Held, 0));
    world.event(Event::EndHold { ctx: a }).unwrap();
    world.run_for(5 * MS);
    assert_eq!(world.state(a), JobState::Done);
    // The next job starts as usual.
    world.start(a, MS).unwrap();
    world.run_for(5 * MS);
    assert_eq!(world.state(a), JobState::Done);
}

/// The holds of a member are those of the gang until the member leaves or closes.
#[test]
fn a_hold_of_a_gang() {
    for closes in [false, true] {
        let mut world = World::new(&[IRQ, IRQ], 4);
        let (a, b) = (world.tenant(2 * MS), world.tenant(2 * MS));
        world.event(Event::Hold { ctx: b }).unwrap();
        world.start(a, 20 * MS).unwrap();
        world.run_for(MS);
        assert_eq!(world.state(a), JobState::Running);
        world.set_gang(a, Some(b)).unwrap();
        world.run_for(2 * MS);
        assert_eq!(world.state(a), JobState::Held);
        world.event(Event::Resume { ctx: a }).unwrap();
        world.start(b, MS).unwrap();
        world.run_for(2 * MS);
        assert_eq!(
            (world.state(a), world.state(b)),
            (JobState::Held, JobState::Held)
        );
        if closes {
            world.close(b).unwrap();
        } else {
            world.set_gang(b, None).unwrap();
            assert_eq!(world.state(b), JobState::Held);
        }
        world.run_for(30 * MS);
        assert_eq!(world.state(a), JobState::Done);
    }
}

#[test]
fn resume_takes_a_hold_back() {
    let mut world = World::new(&[IRQ], 4);
    let a = world.tenant(2 * MS);
    world.start(a, 5 * MS).unwrap();
    world.run_for(MS);
    world.event(Event::Preempt { ctx: a, hold: true }).unwrap();
    world.event(Event::Resume { ctx: a }).unwrap();
    world.run_for(10 * MS);
    assert_eq!(world.state(a), JobState::Done);
    assert_eq!(world.stats(a).resumes, 1);
}

#[test]
fn parameters_hold_at_once() {
    let mut world = World::new(&[IRQ, IRQ], 4);
    let first = Params {
        mask: 1,
        timeslice: Duration::from_ms(1_000),
        ..Params::DEFAULT
    };
    let (a, b) = (world.open(0, first).unwrap(), world.open(0, first).unwrap());
    world.start(a, 50 * MS).unwrap();
    world.start(b, 50 * MS).unwrap();
    world.run_for(5 * MS);
    assert_eq!(world.state(b), JobState::Queued);
    // A waiting job that may now run on another slot starts there.
    let second = Params { mask: 2, ..first };
    world.set_params(b, second).unwrap();
    assert_eq!(world.machine.slot_of(b), Some(sid(1)));
    // A job on a slot that it may no longer use leaves the slot, and waits for the other one.
    world.set_params(a, second).unwrap();
    world.run_for(MS);
    assert_eq!(world.machine.slot_state(sid(0)), Some(SlotState::Vacant));
    assert_eq!(world.state(a), JobState::Queued);
    // A slice that is set to less than the time already used ends at once.
    let short = Params {
        timeslice: Duration::from_ms(1),
        ..second
    };
    world.set_params(b, short).unwrap();
    assert_eq!(
        world.machine.slot_state(sid(1)),
        Some(SlotState::Pausing(b))
    );
    world.run_for(MS);
    assert_eq!(world.machine.slot_of(a), Some(sid(1)));
}

// Which slots a context may use: disabling and enabling.

fn world(plans: &[SlotPlan]) -> World {
    let mut world = World::new(plans, 16);
    world.set_policy(PolicyKind::Fair).unwrap();
    world
}

fn runs(world: &World, ctx: ContextId) -> bool {
    world.state(ctx) == JobState::Running
}

#[test]
fn a_disabled_context_waits_and_goes_on() {
    for plan in [IRQ, BASE] {
        let mut world = world(&[plan]);
        let a = world.tenant(2 * MS);
        world.start(a, 20 * MS).unwrap();
        world.run_for(5 * MS);
        world.set_enabled(a, false).unwrap();
        // At once, although no context waits.
        assert_eq!(
            world.machine.slot_state(sid(0)),
            Some(SlotState::Pausing(a))
        );
        world.run_for(100 * MS);
        let stats = world.stats(a);
        assert_eq!((stats.state, stats.saved), (JobState::Queued, true));
        assert!(!stats.enabled && !stats.no_slot);
        assert_eq!(stats.waits, Some(WaitReason::Disabled));
        assert_eq!(world.machine.slot_state(sid(0)), Some(SlotState::Vacant));
        world.set_enabled(a, false).unwrap();
        world.set_enabled(a, true).unwrap();
        world.run_for(30 * MS);
        let stats = world.stats(a);
        assert_eq!((stats.state, stats.resumes), (JobState::Done, 1));
        assert!(stats.enabled && !stats.no_slot);
    }
}

#[test]
fn the_jobs_of_a_disabled_context_are_accepted() {
    let mut world = world(&[IRQ]);
    let (a, b) = (world.tenant(2 * MS), world.tenant(2 * MS));
    world.set_enabled(a, false).unwrap();
    world.start(a, 5 * MS).unwrap();
    assert_eq!(world.state(a), JobState::Queued);
    assert_eq!(world.start(a, MS), Err(Refusal::Busy));
    // Other contexts do not wait for the disabled one.
    world.start(b, 20 * MS).unwrap();
    world.run_for(30 * MS);
    assert_eq!(world.state(b), JobState::Done);
    assert_eq!(world.stats(b).preemptions, 0);
    world.event(Event::Preempt { ctx: a, hold: true }).unwrap();
    assert_eq!(world.state(a), JobState::Held);
    // Holding is independent of disabling.
    world.set_enabled(a, true).unwrap();
    world.run_for(10 * MS);
    assert_eq!(world.state(a), JobState::Held);
    world.set_enabled(a, false).unwrap();
    world.event(Event::Resume { ctx: a }).unwrap();
    world.run_for(10 * MS);
    assert_eq!(world.state(a), JobState::Queued);
    world.set_enabled(a, true).unwrap();
    world.run_for(10 * MS);
    assert_eq!(world.state(a), JobState::Done);
    world.set_enabled(a, false).unwrap();
    world.start(a, MS).unwrap();
    world.close(a).unwrap();
    assert_eq!(world.set_enabled(a, true), Err(Refusal::NoContext));
    assert_eq!(world.machine.contexts(), 1);
}

#[test]
fn time_disabled_is_not_made_up_for() {
    let mut world = world(&[IRQ]);
    let (a, b) = (world.tenant(2 * MS), world.tenant(2 * MS));
    for ctx in [a, b] {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(100 * MS);
    world.set_enabled(a, false).unwrap();
    world.run_for(1_000 * MS);
    let ran = world.stats(a).run;
    assert!(runs(&world, b));
    world.set_enabled(a, true).unwrap();
    world.run_for(200 * MS);
    let had = world.stats(a).run.as_ns() - ran.as_ns();
    assert!((95 * MS..=105 * MS).contains(&had), "{had}");
}

/// Disabled contexts do not keep the starvation boost from other contexts.
#[test]
fn the_boost_sees_past_disabled_contexts() {
    let mut world = World::new(&[IRQ], 16);
    world.set_policy(PolicyKind::Priority).unwrap();
    world.set_boost(Duration::from_ms(20)).unwrap();
    let low = Params {
        priority: 0,
        ..Params::DEFAULT
    };
    for _ in 0..12 {
        let ctx = world.open(0, low).unwrap();
        world.set_enabled(ctx, false).unwrap();
        world.start(ctx, ENDLESS).unwrap();
    }
    let (high, low) = (world.tenant(2 * MS), world.open(0, low).unwrap());
    for ctx in [high, low] {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(100 * MS);
    assert!(world.stats(low).slices >= 3);
}

/// The job of a disabled context fails, too, when the last of its slots is quarantined. The context
/// can still change parameters, but cannot name slots that are out of service.
#[test]
fn quarantine_of_the_last_slot_fails_jobs_of_disabled_contexts() {
    let mut world = world(&[IRQ]);
    let (a, b) = (world.tenant(2 * MS), world.tenant(2 * MS));
    world.set_enabled(b, false).unwrap();
    world.start(b, ENDLESS).unwrap();
    world.start(a, ENDLESS).unwrap();
    world.run_for(MS);
    world.card.slots[0].ignore_resets = u32::MAX;
    world.close(a).unwrap();
    world.run_for(100 * MS);
    assert_ne!(world.quarantined, 0);
    assert!(matches!(world.state(b), JobState::Failed(_)));
    assert_eq!(world.start(b, MS), Err(Refusal::NoSlot));
    let params = world.machine.params(b).unwrap();
    let lighter = Params {
        weight: 1,
        ..params
    };
    assert_eq!(world.set_params(b, lighter), Ok(()));
    let elsewhere = Params {
        mask: 0xfe,
        ..params
    };
    assert_eq!(world.set_params(b, elsewhere), Err(Refusal::NoSlot));
}
