// SPDX-License-Identifier: GPL-2.0

//! Jobs of a cluster.

use anyhow::{ensure, Context, Result};
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Exp1};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::SHARDS;
use crate::S;

/// The priority class of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It runs before normal jobs, and preempts them.
    Urgent,
    /// All other jobs.
    Normal,
}

/// A job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// When it is submitted, in ns.
    pub submitted: u64,
    /// Its run time with a whole card, in ns.
    pub work: u64,
    /// Shards of one card, 1 to [`SHARDS`].
    pub shards: u8,
    /// Its class.
    pub class: Class,
}

impl Job {
    /// Returns a job that takes `run` with only its shards.
    pub(super) fn of_run(submitted: u64, run: u64, shards: u8, class: Class) -> Self {
        Self {
            submitted,
            work: (run / u64::from(SHARDS)).max(1) * u64::from(shards),
            shards,
            class,
        }
    }

    /// Returns its run time with only its shards, in ns: the longest time that it is on a node.
    pub(super) fn run(&self) -> u64 {
        self.work * u64::from(SHARDS) / u64::from(self.shards)
    }
}

/// The run times of jobs of a class with only their shards, in ns. Their logarithms are uniform:
/// most jobs are short, and most work is that of long jobs.
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
/// The shards that jobs request, each equally often.
const SIZES: [u8; 4] = [1, 2, 4, 8];

impl Runs {
    fn mean(&self) -> f64 {
        (self.most - self.least) / (self.most / self.least).ln()
    }

    fn draw(&self, rng: &mut impl Rng) -> u64 {
        (self.least * (self.most / self.least).powf(rng.random())) as u64
    }
}

/// Returns jobs with Poisson arrivals until `end`, in ns, that demand the part `load` of the time
/// of `nodes` cards.
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

/// Numbers of a line of the Standard Workload Format.
const FIELDS: usize = 18;
/// Two years, in seconds.
const TIME_MAX: i64 = 2 * 366 * 86_400;
/// More than any machine has.
const PROCESSORS_MAX: i64 = 10_000_000;
/// Half a year, in seconds: longer jobs are mistakes.
const RUN_MAX: i64 = 183 * 86_400;

/// Returns the jobs that ran, ordered by submission, of a file in the Standard Workload Format of
/// the Parallel Workloads Archive (D. Feitelson and others, version 2.2: lines of 18 numbers, `;`
/// begins a comment). `processors_per_card` processors of the trace count as a card: a job of fewer
/// processors has shards of a card, a job of more becomes several jobs of a whole card each. Jobs
/// of queue 0, which the format reserves for interactive jobs, are urgent.
///
/// # Errors
///
/// What is wrong, and in which line.
pub fn parse_swf(text: &str, processors_per_card: u32) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim();
        if line.is_empty() || line.starts_with(';') {
            continue;
        }
        add(&mut jobs, line, processors_per_card).with_context(|| format!("line {number}"))?;
    }
    ensure!(!jobs.is_empty(), "no jobs");
    jobs.sort_by_key(|job| job.submitted);
    Ok(jobs)
}

fn add(jobs: &mut Vec<Job>, line: &str, processors_per_card: u32) -> Result<()> {
    let fields: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
    let fields = fields.context("a word that is no number")?;
    ensure!(
        fields.len() == FIELDS,
        "{} numbers, not {FIELDS}",
        fields.len()
    );
    // Field 2 is the time of submission, 4 the run time, 5 the processors that the job had, 15 its
    // queue. -1 means unknown.
    let [submitted, run, processors, queue] =
        [1, 3, 4, 14].map(|field: usize| fields[field] as i64);
    if run <= 0 || processors <= 0 {
        return Ok(());
    }
    ensure!(
        (0..=TIME_MAX).contains(&submitted),
        "the time of submission is negative, or over two years"
    );
    ensure!(
        processors <= PROCESSORS_MAX,
        "over {PROCESSORS_MAX} processors"
    );
    ensure!(run <= RUN_MAX, "the run time is over half a year");
    let class = if queue == 0 {
        Class::Urgent
    } else {
        Class::Normal
    };
    let (card, processors) = (u64::from(processors_per_card), processors as u64);
    let job = |shards: u64| Job::of_run(submitted as u64 * S, run as u64 * S, shards as u8, class);
    let whole = processors / card;
    jobs.extend((0..whole).map(|_| job(SHARDS.into())));
    let rest = processors % card;
    if rest > 0 {
        jobs.push(job((rest * u64::from(SHARDS)).div_ceil(card)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(submitted: i64, run: i64, processors: i64, queue: i64) -> String {
        format!("1 {submitted} -1 {run} {processors} -1 -1 {processors} -1 -1 1 1 1 1 {queue} -1 -1 -1\n")
    }

    #[test]
    fn jobs_have_shards_of_cards() {
        let text = format!(
            "; MaxProcs: 64\n\n{}{}{}",
            line(90, 80, 3, 1),
            line(5, 10, 20, 0),
            line(7, -1, 4, 1)
        );
        let jobs = parse_swf(&text, 8).unwrap();
        let job = |submitted: u64, run: u64, shards, class| {
            Job::of_run(submitted * S, run * S, shards, class)
        };
        let whole = job(5, 10, 8, Class::Urgent);
        let rest = job(5, 10, 4, Class::Urgent);
        assert_eq!(jobs, [whole, whole, rest, job(90, 80, 3, Class::Normal)]);
        assert_eq!((jobs[3].work, jobs[3].run()), (30 * S, 80 * S));
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        let wrong = [
            ("1 2 3\n", "18"),
            ("a\n", "no number"),
            (&line(-5, 1, 1, 1), "negative"),
            (&line(5, 1, 10_000_001, 1), "processors"),
            (&line(5, i64::MAX, 1, 1), "half a year"),
        ];
        for (text, expected) in wrong {
            let error = format!("{:#}", parse_swf(&format!("; x\n{text}"), 8).unwrap_err());
            assert!(
                error.contains(expected) && error.contains("line 2"),
                "{error}"
            );
        }
        assert!(parse_swf("; nothing\n", 8).is_err());
    }
}
