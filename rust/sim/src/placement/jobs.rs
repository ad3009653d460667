// SPDX-License-Identifier: GPL-2.0

//! Jobs of a cluster.

use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Exp1};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::SHARDS;
use crate::S;

/// What a job may do to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It goes before normal jobs, and has them leave.
    Urgent,
    /// All others.
    Normal,
}

/// A job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// When it is submitted, in ns.
    pub submitted: u64,
    /// What it takes with a card for itself, in ns.
    pub work: u64,
    /// Shards of one card, 1 to [`SHARDS`].
    pub shards: u8,
    /// Its class.
    pub class: Class,
}

impl Job {
    /// A job that takes `run` with its shards and no more.
    pub(super) fn of_run(submitted: u64, run: u64, shards: u8, class: Class) -> Self {
        Self {
            submitted,
            work: (run / u64::from(SHARDS)).max(1) * u64::from(shards),
            shards,
            class,
        }
    }

    /// What it takes with its shards and no more, in ns: the longest time that it is on a node.
    pub(super) fn run(&self) -> u64 {
        self.work * u64::from(SHARDS) / u64::from(self.shards)
    }
}

/// The times of a class with its shards and no more, in ns. Their logarithms are uniform: most jobs are short, and most work is that
/// of long ones.
struct Runs {
    least: f64,
    most: f64,
}

const NORMAL: Runs = Runs {
    least: 60e9,
    most: 8.0 * 3_600e9,
};
const URGENT: Runs = Runs {
    least: 60e9,
    most: 600e9,
};
/// The part of the jobs that is urgent.
const URGENT_PART: f64 = 0.1;
/// What jobs ask for, each as often.
const SIZES: [u8; 4] = [1, 2, 4, 8];

impl Runs {
    fn mean(&self) -> f64 {
        (self.most - self.least) / (self.most / self.least).ln()
    }

    fn draw(&self, rng: &mut impl Rng) -> u64 {
        (self.least * (self.most / self.least).powf(rng.random())) as u64
    }
}

/// Jobs whose arrivals are Poisson until `end`, in ns, and that ask for the part `load` of the time of so many cards.
pub fn synthetic(nodes: usize, load: f64, end: u64, seed: u64) -> Vec<Job> {
    let run = NORMAL.mean() * (1.0 - URGENT_PART) + URGENT.mean() * URGENT_PART;
    let shards = SIZES.iter().map(|&size| f64::from(size)).sum::<f64>() / SIZES.len() as f64;
    let gap = run * shards / f64::from(SHARDS) / (load * nodes as f64);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let (mut at, mut jobs) = (0.0, Vec::new());
    loop {
        at += gap * Distribution::<f64>::sample(&Exp1, &mut rng);
        if at as u64 >= end {
            return jobs;
        }
        let (class, runs) = if rng.random::<f64>() < URGENT_PART {
            (Class::Urgent, &URGENT)
        } else {
            (Class::Normal, &NORMAL)
        };
        let run = runs.draw(&mut rng).max(S);
        let shards = SIZES[rng.random_range(0..SIZES.len())];
        jobs.push(Job::of_run(at as u64, run, shards, class));
    }
}
