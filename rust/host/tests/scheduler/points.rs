// SPDX-License-Identifier: GPL-2.0

//! The points of prior-art.md section 8 that concern the pure code, one test for each, by number.

use crate::model::card::Engine;
use crate::model::check::{ended, pause, start};
use crate::model::{ns, sid, SlotPlan, World, BASE, IRQ, MS, US};
use fermata_sched_host::sched::{
    Action, Duration, EndReason, Event, Failure, JobState, NewJob, Params, PauseCause, Profile,
    SlotState, Wake,
};

const S0: fermata_sched_host::sched::SlotId = match fermata_sched_host::sched::SlotId::new(0) {
    Some(slot) => slot,
    None => panic!(),
};

fn failed(failure: Failure) -> JobState {
    JobState::Failed(failure)
}

/// Two jobs of 20 ms on one slot, with slices of 2 ms.
fn contended(plan: SlotPlan) -> (World, [fermata_sched_host::sched::ContextId; 2]) {
    let mut world = World::new(&[plan], 8);
    let pair = [world.tenant(2 * MS), world.tenant(2 * MS)];
    for ctx in pair {
        world.start(ctx, 20 * MS).unwrap();
    }
    (world, pair)
}

fn saved(replayable: bool) -> NewJob {
    NewJob {
        replayable,
        saved: true,
        held: false,
    }
}

#[test]
fn point_01_lost_pause_is_written_again() {
    for plan in [IRQ, BASE] {
        let (mut world, pair) = contended(plan);
        world.card.slots[0].ignore_pauses = 3;
        world.run_for(200 * MS);
        for ctx in pair {
            assert_eq!(world.state(ctx), JobState::Done);
        }
        let stats = world.machine.slot_stats(S0, ns(world.now)).unwrap();
        assert!(stats.pauses_again >= 3);
        assert_eq!(stats.timeouts, 0);
    }
}

#[test]
fn point_01_repeated_pause_needs_no_read() {
    let (mut world, _) = contended(IRQ);
    world.card.slots[0].ignore_pauses = 2;
    world.run_for(5 * MS);
    let stats = world.machine.slot_stats(S0, ns(world.now)).unwrap();
    assert_eq!((stats.pauses_again, stats.reads), (2, 0));
}

#[test]
fn point_02_finish_beats_pause() {
    // The job ends when PAUSE arrives, or just before the PAUSE, or its interrupt comes after the PAUSE.
    for plan in [IRQ, BASE] {
        for (on_pause, irq_delay) in [(true, 0), (false, 0), (false, 100 * US)] {
            let mut world = World::new(&[plan], 8);
            let (a, b) = (world.tenant(2 * MS), world.tenant(2 * MS));
            world.irq_delay = irq_delay;
            world.timer_first = true;
            world.card.slots[0].finish_on_pause = on_pause;
            let work = if on_pause { 50 * MS } else { 2 * MS - 10 * US };
            world.start(a, work).unwrap();
            world.start(b, 10 * MS).unwrap();
            world.run_for(4 * MS);
            assert_eq!(world.state(a), JobState::Done);
            assert_eq!(world.stats(a).preemptions, 0);
            world.run_for(50 * MS);
            assert_eq!(world.state(b), JobState::Done);
            // Never resumed, and notified only once.
            assert_eq!(world.stats(a).slices, 1);
            let done = (a, Wake::Done);
            assert_eq!(world.wakes.iter().filter(|&&wake| wake == done).count(), 1);
        }
    }
}

#[test]
fn point_02_finish_beats_hold() {
    let mut world = World::new(&[BASE], 8);
    let a = world.tenant(2 * MS);
    world.card.slots[0].finish_on_pause = true;
    world.start(a, 50 * MS).unwrap();
    world.run_for(MS);
    world.event(Event::Preempt { ctx: a, hold: true }).unwrap();
    world.run_for(5 * MS);
    assert_eq!(world.wakes, [(a, Wake::Done)]);
    // The hold does not apply to its next job.
    world.start(a, 5 * MS).unwrap();
    world.run_for(MS);
    world
        .event(Event::Preempt {
            ctx: a,
            hold: false,
        })
        .unwrap();
    world.run_for(10 * MS);
    assert_eq!(world.state(a), JobState::Done);
}

#[test]
fn point_03_snapshot_only_after_paused() {
    // A torn save fails the job, which is not resumed from this or an older snapshot.
    let (mut world, [a, b]) = contended(IRQ);
    world.run_for(5 * MS);
    assert_eq!(world.stats(a).preemptions, 1);
    world.card.slots[0].torn = true;
    world.run_for(2 * MS);
    let (ctx, other) = match world.state(a) {
        JobState::Failed(_) => (a, b),
        _ => (b, a),
    };
    assert_eq!(world.state(ctx), failed(Failure::Snapshot));
    world.run_for(100 * MS);
    assert_eq!(world.state(other), JobState::Done);
    // A new job starts normally.
    world.start(ctx, MS).unwrap();
    world.run_for(10 * MS);
    assert_eq!(world.state(ctx), JobState::Done);
}

/// Preempts the job of the only slot, and tears its save. Returns the state of the job, and how
/// often it was replayed.
fn torn(
    world: &mut World,
    ctx: fermata_sched_host::sched::ContextId,
    hold: bool,
) -> (JobState, u64) {
    world.run_for(5 * MS);
    world.card.slots[0].torn = true;
    world.event(Event::Preempt { ctx, hold }).unwrap();
    world.run_for(MS);
    let stats = world.stats(ctx);
    assert!(!stats.saved);
    (stats.state, stats.replays)
}

#[test]
fn point_03_a_replayable_job_begins_anew_three_times() {
    let mut world = World::new(&[IRQ], 8);
    let ctx = world.tenant(2 * MS);
    world.start_as(ctx, 20 * MS, true).unwrap();
    for round in 1..=3 {
        assert_eq!(torn(&mut world, ctx, false), (JobState::Running, round));
    }
    let snapshot = failed(Failure::Snapshot);
    assert_eq!(torn(&mut world, ctx, false), (snapshot, 3));
    assert_eq!(world.wakes, [(ctx, Wake::Failed(Failure::Snapshot))]);
    let stats = world.stats(ctx);
    assert_eq!((stats.job, stats.failed, stats.finished), (1, 1, 0));
    assert_eq!((stats.slices, stats.resumes, stats.preemptions), (4, 0, 0));
    // A job of the same context that is not replayable fails as usual.
    world.start(ctx, 20 * MS).unwrap();
    assert_eq!(torn(&mut world, ctx, false), (snapshot, 0));
}

#[test]
fn point_03_a_replayed_job_is_held_at_its_beginning() {
    let mut world = World::new(&[IRQ], 8);
    let ctx = world.tenant(2 * MS);
    world.start_as(ctx, 20 * MS, true).unwrap();
    for round in 1..=2 {
        assert_eq!(torn(&mut world, ctx, true), (JobState::Held, round));
        assert_eq!(world.wakes.pop(), Some((ctx, Wake::Held)));
        world.run_for(50 * MS);
        assert_eq!(world.state(ctx), JobState::Held);
        world.event(Event::Resume { ctx }).unwrap();
    }
    // A complete snapshot is resumed after torn ones, too.
    world.run_for(5 * MS);
    world.event(Event::Preempt { ctx, hold: true }).unwrap();
    world.run_for(MS);
    assert!(world.stats(ctx).saved);
    world.event(Event::Resume { ctx }).unwrap();
    world.run_for(30 * MS);
    let stats = world.stats(ctx);
    assert_eq!((stats.state, stats.replays), (JobState::Done, 2));
    assert_eq!((stats.slices, stats.resumes), (4, 1));
}

#[test]
fn point_07_a_job_goes_on_from_a_state_that_was_brought_in() {
    for plan in [IRQ, BASE] {
        let mut world = World::new(&[plan], 8);
        let ctx = world.tenant(2 * MS);
        world
            .start_from(ctx, 20 * MS, saved(false), 15 * MS)
            .unwrap();
        assert_eq!(world.stats(ctx).slices, 1);
        world.run_for(8 * MS);
        let stats = world.stats(ctx);
        assert_eq!((stats.state, stats.job), (JobState::Done, 1));
        assert_eq!((stats.slices, stats.resumes, stats.preemptions), (1, 1, 0));
        // The imported state is used up: the next job starts from the beginning.
        world.start(ctx, MS).unwrap();
        world.run_for(3 * MS);
        let stats = world.stats(ctx);
        assert_eq!((stats.state, stats.resumes), (JobState::Done, 1));
    }
}

#[test]
fn point_07_a_state_that_was_brought_in_and_is_lost_fails_the_job() {
    let mut world = World::new(&[IRQ], 8);
    let ctx = world.tenant(2 * MS);
    world.start_from(ctx, 20 * MS, saved(false), MS).unwrap();
    let snapshot = failed(Failure::Snapshot);
    assert_eq!(torn(&mut world, ctx, false), (snapshot, 0));
    // A replayable job is replayed, from its beginning.
    world.start_from(ctx, 20 * MS, saved(true), MS).unwrap();
    assert_eq!(torn(&mut world, ctx, false), (JobState::Running, 1));
    world.run_for(30 * MS);
    let stats = world.stats(ctx);
    assert_eq!((stats.state, stats.replays), (JobState::Done, 1));
    assert_eq!((stats.slices, stats.resumes), (3, 2));
}

/// A job that yields lets the next one go first, whether it is resumed afterwards or replayed.
#[test]
fn point_03_a_replayed_job_waits_behind_the_next() {
    let mut world = World::new(&[IRQ], 8);
    let [ctx, other] = [0; 2].map(|_| world.tenant(100 * MS));
    world.start_as(ctx, 20 * MS, true).unwrap();
    world.start(other, 20 * MS).unwrap();
    assert_eq!(torn(&mut world, ctx, false), (JobState::Queued, 1));
    assert_eq!(world.state(other), JobState::Running);
    world.run_for(50 * MS);
    assert_eq!(world.starts(), [ctx, other, ctx]);
    for ctx in [ctx, other] {
        assert_eq!(world.state(ctx), JobState::Done);
    }
}

/// An engine that does not respond counts as hung: its job would hang it again.
#[test]
fn point_03_a_timeout_is_final() {
    for plan in [IRQ, BASE] {
        let mut world = World::new(&[plan], 8);
        let ctx = world.tenant(2 * MS);
        world.start_as(ctx, 20 * MS, true).unwrap();
        world.run_for(5 * MS);
        world.card.set_hang(0);
        world.event(Event::Preempt { ctx, hold: false }).unwrap();
        world.run_for(500 * MS);
        let stats = world.stats(ctx);
        let timeout = failed(Failure::PreemptTimeout);
        assert_eq!((stats.state, stats.replays), (timeout, 0));
    }
}

/// The owner closes the context while the save is torn: the job is released, and not queued again.
#[test]
fn point_03_nothing_is_replayed_for_the_dead() {
    let mut world = World::new(&[IRQ], 8);
    let ctx = world.tenant(2 * MS);
    world.start_as(ctx, 20 * MS, true).unwrap();
    world.run_for(5 * MS);
    world.card.slots[0].torn = true;
    world.event(Event::Preempt { ctx, hold: false }).unwrap();
    world.close(ctx).unwrap();
    world.run_for(10 * MS);
    assert!(world.released.contains(&ctx));
    assert_eq!(world.starts().len(), 1);
}

#[test]
fn point_03_a_snapshot_is_used_once() {
    // Saved, resumed, and then stopped by force: the snapshot is older than the arena, so the job
    // fails.
    let (mut world, [a, b]) = contended(IRQ);
    world.run_for(5 * MS);
    assert!(world.stats(a).resumes == 1 && world.stats(a).slot.is_some());
    world.card.set_hang(0);
    world.run_for(200 * MS);
    assert_eq!(world.state(a), failed(Failure::PreemptTimeout));
    assert_eq!(world.state(b), JobState::Done);
    assert_eq!(world.stats(a).resumes, 1);
}

#[test]
fn point_03_paused_that_nobody_asked_for_is_no_save() {
    let mut world = World::new(&[IRQ], 8);
    let a = world.tenant(2 * MS);
    world.start(a, 20 * MS).unwrap();
    world.run_for(MS);
    let count = u64::from(world.card.slots[0].count);
    world.card.guilty.insert((a, 1));
    world.status(0, 4 | (count << 32));
    assert_eq!(world.state(a), failed(Failure::Protocol));
}

#[test]
fn point_04_timeout_resets_and_fails_only_the_guilty() {
    for plan in [IRQ, BASE] {
        let mut world = World::new(&[plan, plan], 8);
        let one = Params {
            mask: 1,
            ..Params::DEFAULT
        };
        let two = Params {
            mask: 2,
            ..Params::DEFAULT
        };
        let (a, b, c) = (
            world.open(0, one).unwrap(),
            world.open(0, one).unwrap(),
            world.open(0, two).unwrap(),
        );
        for ctx in [a, b, c] {
            world.start(ctx, 30 * MS).unwrap();
        }
        world.run_for(MS);
        world.card.set_hang(0);
        world.run_for(60 * MS);
        // The other slot is not affected.
        assert_eq!(world.state(c), JobState::Done);
        assert_eq!(world.state(a), JobState::Running);
        world.run_for(200 * MS);
        assert_eq!(world.state(a), failed(Failure::PreemptTimeout));
        assert_eq!(world.state(b), JobState::Done);
        assert_eq!(world.quarantined, 0);
    }
}

#[test]
fn point_04_the_timeout_is_the_contexts_own() {
    let mut world = World::new(&[IRQ], 8);
    let params = Params {
        preempt_timeout: Duration::from_ms(30),
        ..Params::DEFAULT
    };
    let a = world.open(0, params).unwrap();
    world.start(a, 30 * MS).unwrap();
    world.card.set_hang(0);
    world.event(Event::Preempt { ctx: a, hold: true }).unwrap();
    world.run_for(29 * MS);
    assert_eq!(world.state(a), JobState::Running);
    world.run_for(2 * MS);
    assert_eq!(world.state(a), failed(Failure::PreemptTimeout));
}

#[test]
fn point_04_late_timers_are_no_proof_of_a_hang() {
    // The caller was stalled for longer than the timeout, and the first PAUSE was lost.
    let mut world = World::new(&[IRQ], 8);
    let a = world.tenant(2 * MS);
    world.start(a, 500 * MS).unwrap();
    world.run_for(MS);
    world.card.slots[0].ignore_pauses = 1;
    world.event(Event::Preempt { ctx: a, hold: true }).unwrap();
    world.timer_delay = 150 * MS;
    world.run_for(160 * MS);
    world.timer_delay = 0;
    world.run_for(20 * MS);
    assert_eq!(world.state(a), JobState::Held);
}

#[test]
fn point_04_a_last_look_before_the_reset() {
    // The job was saved in time, only its interrupt was lost.
    let mut world = World::new(&[IRQ], 8);
    let params = Params {
        preempt_timeout: Duration::from_ms(5),
        ..Params::DEFAULT
    };
    let a = world.open(0, params).unwrap();
    world.start(a, 30 * MS).unwrap();
    world.run_for(MS);
    world.card.slots[0].lose_irqs = 1;
    world.event(Event::Preempt { ctx: a, hold: true }).unwrap();
    world.run_for(6 * MS);
    assert_eq!(world.state(a), JobState::Held);
}

#[test]
fn point_04_a_status_from_before_the_start_is_no_proof_of_a_hang() {
    // The job was saved in time, but for longer than the timeout the status shows the state before
    // the START.
    let mut world = World::new(&[BASE], 8);
    let params = Params {
        preempt_timeout: Duration::from_ms(5),
        ..Params::DEFAULT
    };
    let a = world.open(0, params).unwrap();
    world.card.slots[0].start_lag = 20 * MS;
    world.start(a, 30 * MS).unwrap();
    world.run_for(MS);
    world.event(Event::Preempt { ctx: a, hold: true }).unwrap();
    world.run_for(18 * MS);
    assert_eq!(world.state(a), JobState::Running);
    world.run_for(5 * MS);
    assert_eq!(world.state(a), JobState::Held);
}

#[test]
fn point_04_a_slot_that_does_not_reset_is_quarantined() {
    for plan in [IRQ, BASE] {
        let mut world = World::new(&[plan, plan], 8);
        let one = Params {
            mask: 1,
            ..Params::DEFAULT
        };
        let (a, b, c) = (
            world.open(0, one).unwrap(),
            world.open(0, one).unwrap(),
            world.tenant(MS),
        );
        for ctx in [a, b, c] {
            world.start(ctx, 400 * MS).unwrap();
        }
        world.run_for(MS / 2);
        world.card.set_hang(0);
        world.card.slots[0].ignore_resets = u32::MAX;
        world.run_for(300 * MS);
        assert_eq!(world.state(a), failed(Failure::PreemptTimeout));
        // The job that can run on no other slot fails too; the others continue.
        assert_eq!(world.state(b), failed(Failure::Protocol));
        assert_eq!(world.state(c), JobState::Running);
        assert_eq!(world.machine.slot_state(S0), Some(SlotState::Quarantined));
        // The slot can still reach the memory of a, which stays mapped and unused until the whole
        // card is reset.
        world.set_params(a, Params::DEFAULT).unwrap();
        assert!(world.start(a, MS).is_err());
        world.close(a).unwrap();
        assert!(!world.released.contains(&a));
        world.run_for(300 * MS);
        assert_eq!(world.state(c), JobState::Done);
        world.vanish();
        world.event(Event::Gone).unwrap();
        assert!(world.released.contains(&a));
    }
}

#[test]
fn point_05_paused_is_not_quiescence_on_base() {
    let (mut world, [a, waiter]) = contended(BASE);
    world.run_for(30 * MS);
    // The model panics if a window changes too early; this checks the order itself.
    let from = world.position(pause(S0, a, PauseCause::Slice { waiter }));
    let actions = world.actions(from);
    let mut actions = actions
        .iter()
        .filter(|action| !matches!(action, Action::ReadStatus { .. }));
    assert!(matches!(actions.next(), Some(Action::Pause { .. })));
    assert!(matches!(actions.next(), Some(Action::Ended { .. })));
    assert!(matches!(
        actions.next(),
        Some(Action::Reset { hold: true, .. })
    ));
    assert!(matches!(
        actions.next(),
        Some(Action::Reset { hold: false, .. })
    ));
    assert!(matches!(actions.next(), Some(Action::Load { .. })));
    assert!(matches!(actions.next(), Some(Action::Start { .. })));
}

#[test]
fn point_05_settling_begins_when_the_reset_has_arrived() {
    // The model lets the reset arrive with the read that follows it, and panics if a window changes
    // too early.
    let mut plan = BASE;
    plan.base = Some((3 * MS, 2 * MS));
    let (mut world, pair) = contended(plan);
    world.run_for(200 * MS);
    for ctx in pair {
        assert_eq!(world.state(ctx), JobState::Done);
    }
    let reset = world.position(Action::Reset {
        slot: S0,
        ctx: pair[0],
        hold: true,
    });
    assert_eq!(world.actions(reset)[1], Action::ReadStatus { slot: S0 });
}

#[test]
fn point_05_a_job_stopped_by_force_is_flushed_on_fermata() {
    let mut world = World::new(&[IRQ], 8);
    let a = world.tenant(2 * MS);
    world.start(a, 20 * MS).unwrap();
    world.run_for(MS);
    let from = world.log.len();
    world.close(a).unwrap();
    let expected = [
        Action::Reset {
            slot: S0,
            ctx: a,
            hold: true,
        },
        Action::ReadStatus { slot: S0 },
        Action::Reset {
            slot: S0,
            ctx: a,
            hold: false,
        },
        Action::Unload { slot: S0, ctx: a },
        Action::Released { ctx: a },
    ];
    assert_eq!(world.actions(from), expected);
}

#[test]
fn point_06_order_at_death() {
    for plan in [IRQ, BASE] {
        // In each state of the slot: running, pausing, being reset; and for a waiting context.
        for (step, pause) in [
            (MS, false),
            (MS, true),
            (MS + 60 * US, true),
            (MS + 400 * US, true),
        ] {
            for waiter in [false, true] {
                let mut world = World::new(&[plan], 8);
                let (a, b) = (world.tenant(50 * MS), world.tenant(50 * MS));
                world.card.slots[0].save = 100 * US;
                world.start(a, 90 * MS).unwrap();
                world.start(b, 5 * MS).unwrap();
                world.run_until(MS);
                if pause {
                    world
                        .event(Event::Preempt {
                            ctx: a,
                            hold: false,
                        })
                        .unwrap();
                }
                world.run_until(step);
                let victim = if waiter { b } else { a };
                world.close(victim).unwrap();
                world.run_for(200 * MS);
                // The model checks that nothing works for the victim when it is released.
                assert!(world.released.contains(&victim));
                let other = if waiter { a } else { b };
                assert_eq!(world.state(other), JobState::Done);
                assert!(world
                    .event(Event::Start {
                        ctx: victim,
                        job: NewJob::default(),
                    })
                    .is_err());
            }
        }
    }
}

#[test]
fn point_09_results_are_captured_before_the_hand_over() {
    for plan in [IRQ, BASE] {
        let (mut world, [a, b]) = contended(plan);
        world.run_for(200 * MS);
        // The model checks that each capture precedes the reset and the next load.
        for ctx in [a, b] {
            let actions = world.actions(0).into_iter();
            let captures = actions.filter(|&action| action == ended(S0, ctx));
            let stats = world.stats(ctx);
            assert_eq!(captures.count() as u64, stats.preemptions + 1);
        }
    }
}

#[test]
fn point_11_a_slice_is_longer_by_the_cost_of_the_restore() {
    let (mut world, [a, b]) = contended(IRQ);
    world.card.slots[0].save = 700 * US;
    world.card.slots[0].restore = 700 * US;
    world.run_for(100 * MS);
    for ctx in [a, b] {
        assert_eq!(world.state(ctx), JobState::Done);
        // 20 ms of work in slices that make 2 ms of progress each.
        assert!(world.stats(ctx).slices <= 11, "{:?}", world.stats(ctx));
    }
}

#[test]
fn point_11_nobody_starves_and_nobody_is_paused_in_vain() {
    let mut world = World::new(&[IRQ], 16);
    let tenants: Vec<_> = (0..5).map(|_| world.tenant(MS)).collect();
    world.start(tenants[0], 20 * MS).unwrap();
    world.run_for(10 * MS);
    assert_eq!(world.stats(tenants[0]).preemptions, 0);
    for &ctx in &tenants[1..] {
        world.start(ctx, 20 * MS).unwrap();
    }
    // Its slice was used up long ago: the job is preempted at once.
    assert!(matches!(
        world.machine.slot_state(S0),
        Some(SlotState::Pausing(_))
    ));
    world.run_for(200 * MS);
    for &ctx in &tenants {
        assert_eq!(world.state(ctx), JobState::Done);
        assert!(world.tenants[&ctx].longest_wait < 6 * MS);
    }
}

#[test]
fn point_11_time_adds_up_in_nanoseconds() {
    let (mut world, [a, b]) = contended(IRQ);
    world.run_until(10 * MS + 123);
    let (a, b) = (world.stats(a), world.stats(b));
    let stats = world.machine.slot_stats(S0, ns(world.now)).unwrap();
    assert_eq!(a.run + b.run, stats.busy);
    assert_eq!(stats.busy.as_ns(), world.now - 1);
    assert_eq!((a.run + a.wait).as_ns(), world.now - 1);
    assert_eq!((b.run + b.wait).as_ns(), world.now - 1);
}

#[test]
fn point_12_pause_in_a_restore_is_dropped_and_progress_is_made() {
    // The restore takes nine times as long as the slice, and ends just before the second repetition
    // of the PAUSE.
    let mut world = World::new(&[IRQ], 8);
    let (a, b) = (world.tenant(100 * US), world.tenant(100 * US));
    world.card.slots[0].save = 20 * US;
    world.card.slots[0].restore = 869 * US;
    for ctx in [a, b] {
        world.start(ctx, 3 * MS).unwrap();
    }
    world.run_for(300 * MS);
    for ctx in [a, b] {
        assert_eq!(world.state(ctx), JobState::Done);
        // The slices have grown to cover the restore: at most one for each 50 us of progress on
        // average.
        assert!(world.stats(ctx).slices < 60, "{:?}", world.stats(ctx));
    }
    assert!(world.card.slots[0].pauses_dropped > 0);
}

#[test]
fn point_12_preempt_right_after_resume() {
    for plan in [IRQ, BASE] {
        let mut world = World::new(&[plan], 8);
        let a = world.tenant(2 * MS);
        world.start(a, 5 * MS).unwrap();
        for _ in 0..4 {
            world.run_for(MS);
            world.event(Event::Preempt { ctx: a, hold: true }).unwrap();
            world.run_for(3 * MS);
            assert_eq!(world.state(a), JobState::Held);
            world.event(Event::Resume { ctx: a }).unwrap();
            assert!(matches!(
                world.card.slots[0].engine,
                Engine::Restoring { .. }
            ));
            world.event(Event::Preempt { ctx: a, hold: true }).unwrap();
            world.run_for(4 * MS);
            assert_eq!(world.state(a), JobState::Held);
            world.event(Event::Resume { ctx: a }).unwrap();
        }
        world.run_for(20 * MS);
        assert_eq!(world.state(a), JobState::Done);
        assert_eq!(world.stats(a).failed, 0);
    }
}

#[test]
fn point_13_an_old_finish_is_not_a_new_one() {
    let mut world = World::new(&[IRQ], 8);
    let (a, b) = (world.tenant(2 * MS), world.tenant(2 * MS));
    world.start(a, MS).unwrap();
    world.run_for(2 * MS);
    assert_eq!(world.state(a), JobState::Done);
    let old = 2 | (u64::from(world.card.slots[0].count) << 32);
    world.start(b, 10 * MS).unwrap();
    world.status(0, old);
    assert_eq!(world.state(b), JobState::Running);
    world
        .event(Event::Preempt {
            ctx: b,
            hold: false,
        })
        .unwrap();
    world.status(0, old);
    world.run_for(30 * MS);
    assert_eq!(world.state(b), JobState::Done);
}

#[test]
fn point_13_a_start_that_was_not_taken_is_noticed() {
    let mut world = World::new(&[IRQ], 8);
    let (a, b) = (world.tenant(2 * MS), world.tenant(2 * MS));
    world.start(a, MS).unwrap();
    world.run_for(2 * MS);
    world.card.slots[0].ignore_starts = 1;
    world.start(b, MS).unwrap();
    world.run_for(20 * MS);
    assert_eq!(world.state(b), failed(Failure::Protocol));
    // The count is right again.
    world.start(b, MS).unwrap();
    world.run_for(5 * MS);
    assert_eq!(world.state(b), JobState::Done);
}

#[test]
fn point_13_a_base_card_may_start_late() {
    let mut world = World::new(&[BASE], 8);
    let (a, b) = (world.tenant(2 * MS), world.tenant(2 * MS));
    world.card.slots[0].start_lag = 300 * US;
    for ctx in [a, b] {
        world.start(ctx, 7 * MS).unwrap();
    }
    world.run_for(60 * MS);
    for ctx in [a, b] {
        assert_eq!(world.state(ctx), JobState::Done);
    }
    world.card.slots[0].ignore_starts = 1;
    world.start(a, MS).unwrap();
    world.run_for(100 * MS);
    assert_eq!(world.state(a), failed(Failure::Protocol));
}

#[test]
fn point_14_done_is_told_after_the_data_has_arrived() {
    let mut world = World::new(&[BASE], 8);
    let a = world.tenant(2 * MS);
    world.start(a, MS).unwrap();
    let (settle, _) = BASE.base.unwrap();
    assert!(matches!(
        world.machine.profile(S0),
        Some(Profile::Base { .. })
    ));
    world.run_for(20 * MS);
    let capture = world.position(ended(S0, a));
    let wake = world.position(Action::Wake {
        ctx: a,
        wake: Wake::Done,
    });
    assert!(world.log[wake].0 >= world.log[capture].0 + settle);
    // The same for a hold; on irq FINISH itself reports the end.
    world.start(a, 9 * MS).unwrap();
    world.run_for(MS);
    world.event(Event::Preempt { ctx: a, hold: true }).unwrap();
    world.run_for(20 * MS);
    let wake = world.position(Action::Wake {
        ctx: a,
        wake: Wake::Held,
    });
    let reset = world.log[..wake].iter().rposition(|&(_, x)| {
        x == Action::Reset {
            slot: S0,
            ctx: a,
            hold: true,
        }
    });
    assert!(world.log[wake].0 >= world.log[reset.unwrap()].0 + settle);
}

/// The engines of Optimus's RTL cannot be saved in their first cycles.
#[test]
fn no_pause_comes_soon_after_a_start_of_a_base_slot() {
    const UNSAVABLE: u64 = 100 * US;
    let mut world = World::new(
        &[SlotPlan {
            unsavable: UNSAVABLE,
            ..BASE
        }],
        8,
    );
    let a = world.tenant(2 * MS);
    world.start(a, 9 * MS).unwrap();
    // The second START is written late: other slots were loaded before.
    for (resumed, late) in [(false, 0), (true, 300 * US)] {
        let started = world.now + late;
        world.machine.note_start(sid(0), ns(started));
        assert_eq!(world.state(a), JobState::Running, "{resumed}");
        world.event(Event::Preempt { ctx: a, hold: true }).unwrap();
        world.run_for(20 * MS);
        let is_pause = |(at, action): &&(u64, Action)| {
            *at >= started - late && matches!(action, Action::Pause { .. })
        };
        let (at, first) = *world.log.iter().find(is_pause).unwrap();
        assert!(at >= started + UNSAVABLE, "{at} {started}");
        assert!(at <= started + UNSAVABLE + 50 * US, "and not much later");
        assert!(!matches!(
            first,
            Action::Pause {
                cause: PauseCause::Again,
                ..
            }
        ));
        assert_eq!(world.state(a), JobState::Held);
        world.event(Event::Resume { ctx: a }).unwrap();
    }
    let stats = world.machine.slot_stats(sid(0), ns(world.now)).unwrap();
    assert_eq!((stats.pauses, stats.pauses_again), (2, 0));
}

#[test]
fn a_switch_is_one_pause_and_no_read() {
    let mut plan = IRQ;
    plan.reset_before_resume = true;
    let (mut world, [a, b]) = contended(plan);
    world.run_for(5 * MS);
    // From the second PAUSE on, a is resumed.
    let pauses: Vec<_> = (0..world.log.len())
        .filter(|&i| matches!(world.log[i].1, Action::Pause { .. }))
        .collect();
    let expected = [
        pause(S0, b, PauseCause::Slice { waiter: a }),
        ended(S0, b),
        Action::Reset {
            slot: S0,
            ctx: a,
            hold: true,
        },
        Action::Reset {
            slot: S0,
            ctx: a,
            hold: false,
        },
        Action::Load { slot: S0, ctx: a },
        start(S0, a, true),
    ];
    assert_eq!(world.actions(pauses[1])[..6], expected);
    let reads = world.card.slots[0].status_reads;
    assert_eq!(
        reads as usize,
        pauses.len(),
        "one read a switch: the interrupt's own"
    );
    assert_eq!(
        world
            .machine
            .slot_stats(sid(0), ns(world.now))
            .unwrap()
            .reads,
        0
    );
}

#[test]
fn no_read_in_slices_of_ten_milliseconds() {
    let mut world = World::new(&[IRQ], 8);
    for _ in 0..2 {
        let ctx = world.tenant(10 * MS);
        world.start(ctx, 45 * MS).unwrap();
    }
    world.run_for(80 * MS);
    let stats = world.machine.slot_stats(S0, ns(world.now)).unwrap();
    assert_eq!((stats.saves, stats.reads), (7, 0));
    // During longer slices the status is polled.
    let (a, b) = (world.tenant(25 * MS), world.tenant(25 * MS));
    world.run_for(20 * MS);
    for ctx in [a, b] {
        world.start(ctx, 25 * MS).unwrap();
    }
    let before = world.machine.slot_stats(S0, ns(world.now)).unwrap();
    world.run_for(24 * MS);
    let after = world.machine.slot_stats(S0, ns(world.now)).unwrap();
    assert_eq!(
        (after.saves - before.saves, after.reads - before.reads),
        (0, 2)
    );
}

#[test]
fn a_lost_interrupt_costs_ten_milliseconds() {
    let mut world = World::new(&[IRQ], 8);
    let a = world.tenant(2 * MS);
    world.card.slots[0].lose_irqs = 1;
    world.start(a, MS).unwrap();
    world.run_for(10 * MS);
    assert_eq!(world.state(a), JobState::Done);
    let b = world.tenant(2 * MS);
    world.card.slots[0].lose_irqs = u32::MAX;
    for ctx in [a, b] {
        world.start(ctx, 3 * MS).unwrap();
    }
    world.run_for(60 * MS);
    for ctx in [a, b] {
        assert_eq!(world.state(ctx), JobState::Done);
    }
}

#[test]
fn gone_ends_everything() {
    let mut world = World::new(&[IRQ, BASE], 8);
    let tenants: Vec<_> = (0..4).map(|_| world.tenant(MS)).collect();
    for &ctx in &tenants {
        world.start(ctx, 50 * MS).unwrap();
    }
    world.run_for(MS);
    world.close(tenants[1]).unwrap();
    world.vanish();
    world.run_for(50 * MS);
    for (i, &ctx) in tenants.iter().enumerate() {
        if i != 1 {
            assert_eq!(world.state(ctx), failed(Failure::Gone));
            world.close(ctx).unwrap();
        }
        assert!(world.released.contains(&ctx));
    }
    assert!(world.open(0, Params::DEFAULT).is_err());
}

/// How runs of slot 0 ended that were stopped by a reset.
fn aborts(world: &World) -> Vec<Option<Failure>> {
    let aborted = world.log.iter().filter_map(|(_, action)| match action {
        Action::Ended { run, .. } => match run.reason {
            EndReason::Aborted(failure) => Some(failure),
            _ => None,
        },
        _ => None,
    });
    aborted.collect()
}

/// The driver makes a dump for a failure, and none for a context that is closed.
#[test]
fn point_04_an_abort_says_whether_the_job_failed() {
    for plan in [IRQ, BASE] {
        let mut world = World::new(&[plan], 8);
        let [a, b] = [world.tenant(2 * MS), world.tenant(2 * MS)];
        world.start(a, 20 * MS).unwrap();
        world.run_for(MS);
        world.close(a).unwrap();
        assert_eq!(aborts(&world), [None]);
        world.run_for(10 * MS);
        world.start(b, 20 * MS).unwrap();
        world.run_for(5 * MS);
        world.card.set_hang(0);
        world.event(Event::Preempt { ctx: b, hold: true }).unwrap();
        world.run_for(500 * MS);
        assert_eq!(aborts(&world), [None, Some(Failure::PreemptTimeout)]);
    }
}
