// SPDX-License-Identifier: GPL-2.0

//! Clusters: results computed by hand and by a formula, and that checkpoints lose nothing.

use fermata_sim::placement::{placement, synthetic, Class, Job, Row, Settings, Strategy};
use fermata_sim::S;
use rand::SeedableRng;
use rand_distr::{Distribution, Exp1};
use rand_xoshiro::Xoshiro256PlusPlus;

const ONE_NODE: Settings = Settings {
    nodes: 1,
    end: 100_000 * S,
    drain_every: 0,
    drain_for: 0,
    move_time: 0,
    seed: 1,
};

/// Returns a job that takes `run` seconds with only its shards.
fn job(submitted: u64, run: u64, shards: u8, class: Class) -> Job {
    Job {
        submitted: submitted * S,
        work: run * S * u64::from(shards) / 8,
        shards,
        class,
    }
}

#[track_caller]
fn near(found: f64, wanted: f64) {
    assert!((found - wanted).abs() < 1e-6, "{found}, not {wanted}");
}

/// An urgent job of 10 s arrives when a normal one of 100 s is half done.
#[test]
fn a_job_that_is_preempted_begins_anew_or_goes_on() {
    let jobs = [job(0, 100, 8, Class::Normal), job(50, 10, 8, Class::Urgent)];
    let rows = |move_s: u64| {
        let settings = Settings {
            move_time: move_s * S,
            ..ONE_NODE
        };
        Strategy::ALL.map(|strategy| placement(&settings, strategy, &jobs))
    };
    // The normal job ends after 60 and 100 s, or after 10 s more than it takes.
    let [requeue, checkpoint] = rows(5);
    near(requeue.normal.p50, 1.6);
    near(requeue.lost * 100_000.0, 50.0);
    near(checkpoint.normal.p50, 1.1);
    for row in [requeue, checkpoint] {
        near(row.urgent.p99, 1.0);
        assert_eq!((row.preempted, row.unfinished), (1, 0));
    }
    // A move that takes longer than the urgent job.
    near(rows(20)[1].normal.p50, 1.2);
}

/// The node that was reserved for the second job goes to the first job once that has to leave.
#[test]
fn a_job_that_had_to_leave_goes_before_later_ones() {
    let jobs = [
        job(0, 100, 8, Class::Normal),
        job(10, 100, 8, Class::Normal),
        job(50, 10, 8, Class::Urgent),
    ];
    // The urgent job ends at 60, the first at 110, the second at 210.
    let row = placement(&ONE_NODE, Strategy::Checkpoint, &jobs);
    near(row.normal.mean, f64::midpoint(1.1, 2.0));
    near(row.urgent.p99, 1.0);
}

/// A job of half a card has the whole card until another job arrives. A job of all shards gets the
/// card before jobs that arrived later, unless these end in time.
#[test]
fn who_waits_longest_is_not_passed_for_long() {
    let row = |jobs: &[Job]| placement(&ONE_NODE, Strategy::Checkpoint, jobs);
    let first = job(0, 100, 4, Class::Normal);
    near(row(&[first]).normal.p50, 0.5);
    let wide = job(10, 100, 8, Class::Normal);
    // The first ends at 50, the wide one at 150, and the long one, which would not end in time, at
    // 250.
    let long = job(20, 200, 4, Class::Normal);
    near(
        row(&[first, wide, long]).normal.mean,
        (0.5 + 1.4 + 230.0 / 200.0) / 3.0,
    );
    // The short one shares the card with the first from 20 to 40.
    let short = job(20, 20, 4, Class::Normal);
    near(
        row(&[first, wide, short]).normal.mean,
        (0.6 + 1.5 + 1.0) / 3.0,
    );
}

/// Whole cards, one after the other: the mean wait of an M/D/1 queue.
#[test]
fn a_node_is_a_queue() {
    const RUN: f64 = 100.0;
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
    let mut at = 0.0;
    let jobs = (0..200_000).map(|_| {
        let gap: f64 = Exp1.sample(&mut rng);
        at += gap * RUN / 0.7;
        job(at as u64, RUN as u64, 8, Class::Normal)
    });
    let jobs: Vec<Job> = jobs.collect();
    let settings = Settings {
        end: u64::MAX / 2,
        ..ONE_NODE
    };
    let mean = placement(&settings, Strategy::Requeue, &jobs).normal.mean;
    let wanted = 1.0 + 0.7 / (2.0 * 0.3);
    assert!((mean / wanted - 1.0).abs() < 0.02, "{mean}, not {wanted}");
}

/// Many nodes, drains and urgent jobs: repeated runs are equal, and checkpoints lose nothing and
/// complete more.
#[test]
fn checkpoints_lose_no_work() {
    const HOUR: u64 = 3_600 * S;
    let settings = Settings {
        nodes: 50,
        end: 48 * HOUR,
        drain_every: 24 * HOUR,
        drain_for: HOUR,
        move_time: 10 * S,
        seed: 3,
    };
    let jobs = synthetic(settings.nodes, 0.9, settings.end, settings.seed);
    let run = |strategy| placement(&settings, strategy, &jobs);
    let [requeue, checkpoint]: [Row; 2] = Strategy::ALL.map(run);
    assert!((requeue.load - 0.9).abs() < 0.1, "{}", requeue.load);
    for row in [&requeue, &checkpoint] {
        assert!(row.drained > 0 && row.preempted > 0, "{row:?}");
        assert!(row.completed > 0.5 && row.completed <= row.load, "{row:?}");
    }
    assert!(requeue.lost > 0.01 && checkpoint.lost == 0.0);
    assert!(checkpoint.completed > requeue.completed);
    assert!(checkpoint.normal.p99 < requeue.normal.p99);
    let again = run(Strategy::Checkpoint);
    assert_eq!(format!("{again:?}"), format!("{checkpoint:?}"));
}
