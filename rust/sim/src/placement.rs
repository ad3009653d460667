// SPDX-License-Identifier: GPL-2.0

//! A cluster of nodes with a card each, under a scheduler like Slurm's: jobs that are preempted, or whose node is drained, begin again
//! elsewhere, or go on elsewhere from a checkpoint (docs/simulator.md).

mod cluster;
mod jobs;
mod node;
pub mod swf;

use serde::Serialize;

use crate::S;
use cluster::{Cluster, Outcome};
pub use jobs::{synthetic, Class, Job};

/// Shares of a card. A job has so many of them at least; what others leave, it gets as well.
pub const SHARDS: u8 = 8;

/// What becomes of a job that has to leave its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// It is queued again, and begins anew.
    Requeue,
    /// It is saved, and goes on where it was.
    Checkpoint,
}

impl Strategy {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Requeue, Self::Checkpoint];

    fn name(self) -> &'static str {
        match self {
            Self::Requeue => "requeue",
            Self::Checkpoint => "checkpoint",
        }
    }
}

/// A cluster. Times in ns of virtual time.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Nodes.
    pub nodes: usize,
    /// How long is simulated.
    pub end: u64,
    /// The mean time from the end of a node's drain to the next; 0: none is drained.
    pub drain_every: u64,
    /// How long a node is drained.
    pub drain_for: u64,
    /// How long a job that is saved cannot run: save, transfer and restore.
    pub move_time: u64,
    /// All that is random follows from it.
    pub seed: u64,
}

/// What a cluster did with jobs.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Requeue or checkpoint.
    pub strategy: &'static str,
    /// Nodes.
    pub nodes: usize,
    /// The part of the cards' time that the jobs ask for.
    pub load: f64,
    /// Days of virtual time.
    pub days: f64,
    /// Jobs that came.
    pub jobs: usize,
    /// Of these, those that did not end in time.
    pub unfinished: usize,
    /// Times that a job had to leave for an urgent one.
    pub preempted: u64,
    /// Times that a job had to leave a node that was drained.
    pub drained: u64,
    /// The part of the cards' time that went into jobs that ended.
    pub completed: f64,
    /// The part of the cards' time that was lost because jobs began anew.
    pub lost: f64,
    /// Slowdown of the jobs that are not urgent.
    pub normal: Slowdown,
    /// Slowdown of the urgent ones.
    pub urgent: Slowdown,
}

/// The time from submission to end, over the time that the job takes with its own shards and no more, at least 10 s. A job that did
/// not end counts as if it had ended with the simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Slowdown {
    /// The mean.
    pub mean: f64,
    /// Half of the jobs have no more.
    pub p50: f64,
    /// 99 of 100 jobs have no more.
    pub p99: f64,
}

impl Slowdown {
    /// The least time that a job counts as.
    const LEAST: u64 = 10 * S;

    fn of(mut samples: Vec<f64>) -> Self {
        if samples.is_empty() {
            return Self::default();
        }
        samples.sort_unstable_by(f64::total_cmp);
        let rank = |percent: usize| samples[(samples.len() * percent).div_ceil(100).max(1) - 1];
        Self {
            mean: samples.iter().sum::<f64>() / samples.len() as f64,
            p50: rank(50),
            p99: rank(99),
        }
    }
}

/// Runs jobs, which are in the order of their submission, on a cluster.
pub fn placement(settings: &Settings, strategy: Strategy, jobs: &[Job]) -> Row {
    let outcome = Cluster::new(settings, strategy, jobs).run();
    row(settings, strategy, jobs, &outcome)
}

fn row(settings: &Settings, strategy: Strategy, jobs: &[Job], outcome: &Outcome) -> Row {
    let capacity = settings.nodes as f64 * settings.end as f64;
    let slowdown = |class: Class| {
        let ended = jobs.iter().zip(&outcome.ended);
        let samples = ended.filter(|(job, _)| job.class == class);
        let samples = samples.map(|(job, ended)| {
            let took = ended.unwrap_or(settings.end) - job.submitted;
            took as f64 / job.run().max(Slowdown::LEAST) as f64
        });
        Slowdown::of(samples.collect())
    };
    let work = |is_counted: fn(&Option<u64>) -> bool| {
        let jobs = jobs.iter().zip(&outcome.ended);
        let counted = jobs.filter(|(_, ended)| is_counted(ended));
        counted.map(|(job, _)| job.work as f64).sum::<f64>() / capacity
    };
    Row {
        strategy: strategy.name(),
        nodes: settings.nodes,
        load: work(|_| true),
        days: settings.end as f64 / (86_400 * S) as f64,
        jobs: jobs.len(),
        unfinished: outcome.ended.iter().filter(|ended| ended.is_none()).count(),
        preempted: outcome.preempted,
        drained: outcome.drained,
        completed: work(Option::is_some),
        lost: outcome.lost as f64 / capacity,
        normal: slowdown(Class::Normal),
        urgent: slowdown(Class::Urgent),
    }
}
