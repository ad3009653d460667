// SPDX-License-Identifier: GPL-2.0

//! Measurements of slots and contexts, and what traces report. Every test of a world checks that
//! they agree with the scheduler's counters (`model/check.rs`).

use fermata_sched_host::measure::{bucket_of, lower_bound, Histogram, BUCKETS};
use fermata_sched_host::sched::{
    Action, ContextId, Duration, Event, JobState, Params, PauseCause, PolicyKind, Urgency,
};
use proptest::prelude::*;

use crate::model::{ns, sid, World, BASE, CRITICAL, ENDLESS, IRQ, MS, US};

#[test]
fn there_is_a_gap_between_any_two_runs_that_follow_each_other() {
    for plan in [IRQ, BASE] {
        let mut world = World::new(&[plan], 8);
        let pair = [world.tenant(2 * MS), world.tenant(2 * MS)];
        for ctx in pair {
            world.start(ctx, ENDLESS).unwrap();
        }
        world.run_for(100 * MS);
        let starts: u64 = pair.iter().map(|ctx| world.stats(*ctx).slices).sum();
        let slot = &world.measured.slots[0];
        // One switch may be under way.
        assert!(starts > 20 && (starts - 1..=starts).contains(&(slot.gap.count + 1)));
        match plan.base {
            // The model's card and driver take no time.
            None => assert_eq!(slot.gap.max, 0),
            Some((settle, _)) => assert!(slot.gap.min >= settle),
        }
    }
}

#[test]
fn a_slot_that_nobody_wants_is_no_gap() {
    for plan in [IRQ, BASE] {
        let mut world = World::new(&[plan], 8);
        let ctx = world.tenant(2 * MS);
        for _ in 0..3 {
            world.start(ctx, MS).unwrap();
            world.run_for(50 * MS);
            assert_eq!(world.state(ctx), JobState::Done);
        }
        let slot = &world.measured.slots[0];
        assert_eq!((slot.finished, slot.gap.count), (3, 0));
    }
}

#[test]
fn a_timer_that_comes_late_overruns_the_slice() {
    let mut world = World::new(&[IRQ], 8);
    world.timer_delay = 300 * US;
    let pair = [world.tenant(2 * MS), world.tenant(2 * MS)];
    for ctx in pair {
        world.start(ctx, ENDLESS).unwrap();
    }
    world.run_for(50 * MS);
    let overrun = &world.measured.slots[0].overrun;
    assert!(overrun.count > 10);
    assert_eq!((overrun.min, overrun.max), (300 * US, 300 * US));
}

#[test]
fn an_arrival_lasts_until_the_first_start_only() {
    let mut world = World::new(&[IRQ], 8);
    let (a, b) = (world.tenant(2 * MS), world.tenant(2 * MS));
    world.start(a, ENDLESS).unwrap();
    world.run_for(5 * MS);
    world.start(b, 10 * MS).unwrap();
    world.run_for(100 * MS);
    assert_eq!(world.state(b), JobState::Done);
    let measured = &world.measured.contexts[&b].histograms;
    assert!(measured.wait.count >= 5);
    assert_eq!(measured.arrival.count, 1);
    assert_eq!(
        measured.arrival.sum,
        measured.wait.min.max(measured.arrival.sum)
    );
    assert_eq!(world.measured.slots[0].latency.count, 0);
}

#[test]
fn a_job_that_was_held_before_it_ran_has_no_arrival() {
    let mut world = World::new(&[IRQ], 8);
    let (a, b) = (world.tenant(2 * MS), world.tenant(2 * MS));
    world.start(a, ENDLESS).unwrap();
    world.run_for(MS);
    world.start(b, MS).unwrap();
    let hold = Event::Preempt { ctx: b, hold: true };
    world.event(hold).unwrap();
    world.run_for(10 * MS);
    world.event(Event::Resume { ctx: b }).unwrap();
    world.run_for(20 * MS);
    assert_eq!(world.state(b), JobState::Done);
    assert_eq!(world.measured.contexts[&b].histograms.arrival.count, 0);
}

#[test]
fn urgent_arrivals_stand_at_their_slot() {
    let mut world = World::new(&[IRQ], 8);
    let a = world.tenant(2 * MS);
    let urgent = Params {
        urgency: Urgency::LatencyCritical,
        ..Params::DEFAULT
    };
    let b = world.open(0, urgent).unwrap();
    world.start(a, ENDLESS).unwrap();
    for _ in 0..4 {
        world.run_for(5 * MS);
        world.start(b, MS).unwrap();
    }
    world.run_for(20 * MS);
    let slot = &world.measured.slots[0];
    assert_eq!(slot.latency.count, 4);
    assert_eq!(slot.latency, world.measured.contexts[&b].histograms.arrival);
    // The latency is the duration of the other job's save.
    assert_eq!(slot.latency.max, slot.save.max);
}

// Why a job leaves its slot, as traces report it.

/// One slot, and a job without end on it.
fn busy(params: Params) -> (World, ContextId) {
    let mut world = World::new(&[IRQ], 8);
    let ctx = world.open(0, params).unwrap();
    world.start(ctx, ENDLESS).unwrap();
    world.run_for(MS);
    (world, ctx)
}

fn causes(world: &World) -> Vec<PauseCause> {
    let cause = |(_, action): &(u64, Action)| match action {
        Action::Pause { cause, .. } => Some(*cause),
        _ => None,
    };
    world.log.iter().filter_map(cause).collect()
}

#[test]
fn the_end_of_a_slice() {
    let (mut world, _) = busy(Params::DEFAULT);
    let waiter = world.tenant(2 * MS);
    world.start(waiter, ENDLESS).unwrap();
    world.run_for(3 * MS);
    assert_eq!(causes(&world)[0], PauseCause::Slice { waiter });
}

#[test]
fn one_that_goes_before_it() {
    let (mut world, _) = busy(Params::DEFAULT);
    let waiter = world.open(0, CRITICAL).unwrap();
    world.start(waiter, MS).unwrap();
    assert_eq!(causes(&world), [PauseCause::Outranked { waiter }]);
}

#[test]
fn one_that_starves() {
    let (mut world, _) = busy(CRITICAL);
    world.set_boost(Duration::from_ms(20)).unwrap();
    let waiter = world.tenant(2 * MS);
    world.start(waiter, ENDLESS).unwrap();
    world.run_for(30 * MS);
    let cause = PauseCause::Starving { waiter };
    assert_eq!(causes(&world)[0], cause);
    let boosted = |(_, action): &(u64, Action)| matches!(action, Action::Start { ctx, boosted: true, .. } if *ctx == waiter);
    assert!(world.log.iter().any(boosted));
}

#[test]
fn its_cap() {
    let capped = Params {
        cap: 10,
        ..Params::DEFAULT
    };
    let (mut world, _) = busy(capped);
    world.run_for(100 * MS);
    let causes = causes(&world);
    assert!(!causes.is_empty() && causes.iter().all(|&cause| cause == PauseCause::Limit));
}

#[test]
fn a_slot_that_it_may_not_use_any_more() {
    let (mut world, ctx) = busy(Params::DEFAULT);
    world.set_enabled(ctx, false).unwrap();
    assert_eq!(causes(&world), [PauseCause::Slots]);
}

#[test]
fn a_hint_for_which_the_slot_is_kept() {
    let (mut world, ctx) = busy(Params::DEFAULT);
    let waiter = world.open(0, CRITICAL).unwrap();
    let at = ns(world.now + MS);
    world.event(Event::Hint { ctx: waiter, at }).unwrap();
    world.run_for(MS);
    assert_eq!(causes(&world), [PauseCause::Hint { waiter }]);
    let keep = Action::Reserve {
        slot: sid(0),
        ctx: waiter,
    };
    let kept = world.log.iter().filter(|&&(_, action)| action == keep);
    assert_eq!(kept.count(), 1);
    world.close(ctx).unwrap();
}

#[test]
fn a_request_and_a_freeze() {
    let (mut world, ctx) = busy(Params::DEFAULT);
    world.event(Event::Preempt { ctx, hold: false }).unwrap();
    assert_eq!(causes(&world), [PauseCause::Request]);
    world.run_for(MS);
    world.freeze();
    assert_eq!(causes(&world)[1], PauseCause::Freeze);
}

#[test]
fn a_pause_that_was_not_answered() {
    let (mut world, ctx) = busy(Params::DEFAULT);
    world.set_policy(PolicyKind::RoundRobin).unwrap();
    world.card.slots[0].hang = true;
    world.event(Event::Preempt { ctx, hold: true }).unwrap();
    world.run_for(20 * MS);
    assert_eq!(
        causes(&world)[..2],
        [PauseCause::Request, PauseCause::Again]
    );
}

// The buckets and quantiles of a histogram, against the spans themselves.

/// Spans of all magnitudes.
fn span() -> impl Strategy<Value = u64> {
    (0..64u32, any::<u64>()).prop_map(|(shift, bits)| bits >> shift)
}

fn of(spans: &[u64]) -> Histogram {
    let mut histogram = Histogram::EMPTY;
    spans.iter().for_each(|&span| histogram.add(span));
    histogram
}

/// Returns the span that this part of all spans does not exceed.
fn exact(sorted: &[u64], millionths: u32) -> u64 {
    let rank = (sorted.len() as u64 * u64::from(millionths)).div_ceil(1_000_000);
    sorted[rank.max(1) as usize - 1]
}

#[test]
fn buckets_follow_each_other() {
    assert_eq!(lower_bound(0), 0);
    for bucket in 0..BUCKETS {
        let (first, next) = (lower_bound(bucket), lower_bound(bucket + 1));
        assert!(first < next);
        assert_eq!(bucket_of(first), bucket);
        assert_eq!(bucket_of(next - 1), bucket);
        // No wider than a quarter of its lower bound, or 16 ns.
        assert!(next - first <= (first / 4).max(16), "bucket {bucket}");
    }
    assert_eq!(lower_bound(BUCKETS), 1 << 37);
    assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    assert_eq!(lower_bound(usize::MAX), lower_bound(BUCKETS));
}

#[test]
fn the_bounds_that_the_header_tells() {
    for bucket in 0..=BUCKETS as u64 {
        let told = if bucket < 4 {
            16 * bucket
        } else {
            (4 + bucket % 4) << (bucket / 4 + 3)
        };
        assert_eq!(lower_bound(bucket as usize), told);
    }
}

#[test]
fn nothing_has_no_quantile() {
    assert_eq!(Histogram::EMPTY.quantile(500_000), None);
    assert_eq!(Histogram::EMPTY, Histogram::default());
    assert_eq!(of(&[]).max, 0);
}

#[test]
fn a_sum_that_does_not_fit_stands() {
    let histogram = of(&[u64::MAX, u64::MAX]);
    assert_eq!((histogram.count, histogram.sum), (2, u64::MAX));
    assert_eq!(histogram.quantile(500_000), Some(u64::MAX));
}

proptest! {
    #[test]
    fn a_span_is_in_its_bucket(span in span()) {
        let bucket = bucket_of(span);
        prop_assert!(lower_bound(bucket) <= span);
        prop_assert!(span < lower_bound(bucket + 1) || bucket == BUCKETS - 1);
    }

    #[test]
    fn what_was_added_is_there(spans in prop::collection::vec(span(), 1..200)) {
        let histogram = of(&spans);
        prop_assert_eq!(histogram.count, spans.len() as u64);
        prop_assert_eq!(histogram.buckets.iter().sum::<u64>(), histogram.count);
        prop_assert_eq!(histogram.sum, spans.iter().fold(0u64, |sum, span| sum.saturating_add(*span)));
        prop_assert_eq!(Some(&histogram.min), spans.iter().min());
        prop_assert_eq!(Some(&histogram.max), spans.iter().max());
    }

    #[test]
    fn quantiles_are_right_within_a_quarter(
        spans in prop::collection::vec(span(), 1..200),
        millionths in 0..=1_000_000u32,
    ) {
        let histogram = of(&spans);
        let mut sorted = spans;
        sorted.sort_unstable();
        let (exact, told) = (exact(&sorted, millionths), histogram.quantile(millionths).unwrap());
        prop_assert!(told >= exact);
        if exact < lower_bound(BUCKETS - 1) {
            prop_assert!(told - exact < (exact / 4).max(16), "{told} for {exact}");
        }
        prop_assert!(told <= histogram.max);
    }

    #[test]
    fn quantiles_rise(spans in prop::collection::vec(span(), 1..50), a in 0..=1_000_000u32, b in 0..=1_000_000u32) {
        let histogram = of(&spans);
        prop_assert!(histogram.quantile(a.min(b)) <= histogram.quantile(a.max(b)));
    }

    #[test]
    fn two_in_one_are_all_of_both(
        some in prop::collection::vec(span(), 0..50),
        others in prop::collection::vec(span(), 0..50),
    ) {
        let mut merged = of(&some);
        merged.merge(&of(&others));
        prop_assert_eq!(merged, of(&[some, others].concat()));
    }
}
