// SPDX-License-Identifier: GPL-2.0

//! A cluster of nodes with a card each, under a scheduler like Slurm's: jobs that are preempted, or
//! whose node is drained, restart on another node, or resume there from a checkpoint
//! (docs/simulator.md).

mod jobs;

pub use jobs::{parse_swf, synthetic, Class, Job};

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use rand::SeedableRng;
use rand_distr::{Distribution, Exp1};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

use crate::S;

/// Shards of a card. A job gets at least the shards that it requests, and a part of the unused
/// ones.
pub const SHARDS: u8 = 8;

/// What happens to a job that must leave its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// It is queued again, and restarts.
    Requeue,
    /// It is saved, and resumes where it was.
    Checkpoint,
}

impl Strategy {
    /// Both strategies.
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
    /// How much time is simulated.
    pub end: u64,
    /// The mean time from the end of a node's drain to its next drain; 0: no node is drained.
    pub drain_every: u64,
    /// How long a node is drained.
    pub drain_for: u64,
    /// How long a job that is saved cannot run: save, transfer and restore.
    pub move_time: u64,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// The results of a cluster.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Requeue or checkpoint.
    pub strategy: &'static str,
    /// Nodes.
    pub nodes: usize,
    /// The part of the cards' time that the jobs demand.
    pub load: f64,
    /// Days of virtual time.
    pub days: f64,
    /// Jobs that were submitted.
    pub jobs: usize,
    /// Of these, those that did not end in time.
    pub unfinished: usize,
    /// How often a job was preempted by an urgent one.
    pub preempted: u64,
    /// How often a job had to leave a node that was drained.
    pub drained: u64,
    /// The part of the cards' time that was used for jobs that ended.
    pub completed: f64,
    /// The part of the cards' time that was lost because jobs restarted.
    pub lost: f64,
    /// Slowdown of the jobs that are not urgent.
    pub normal: Slowdown,
    /// Slowdown of the urgent ones.
    pub urgent: Slowdown,
}

/// The time from submission to end, divided by the time that the job takes with only its own
/// shards, at least 10 s. A job that did not end counts as if it had ended with the simulation.
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
    /// The shortest time that a job counts as.
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

/// Runs jobs, which are ordered by submission, on a cluster.
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

/// Jobs of a class that are considered at a time, as Slurm's `bf_max_job_test`.
const CONSIDERED: usize = 100;

/// An event. Ordered only for the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// The next job is submitted.
    Submitted,
    /// A job that was saved can run again.
    Moved { id: u32 },
    /// A job of a node ends, unless the node's epoch has changed.
    Ends { node: u32, epoch: u32 },
    /// A node is drained.
    Drain { node: u32 },
    /// A node is back.
    Back { node: u32 },
}

/// The results of a run.
#[derive(Debug)]
struct Outcome {
    /// When each job ended.
    ended: Vec<Option<u64>>,
    preempted: u64,
    drained: u64,
    /// Work that was lost by restarts, in ns.
    lost: u64,
}

/// A node that is kept for the first job that has to wait, chosen again at each decision: other
/// jobs use the node only if they end by then.
#[derive(Clone, Copy)]
struct Reservation {
    id: u32,
    node: u32,
    at: u64,
}

/// A cluster and its scheduler. Jobs are ordered by class and submission, with backfilling behind
/// the first job that has to wait, and urgent jobs preempt others, as under Slurm's main and
/// backfill schedulers with preemption by QOS.
struct Cluster<'a> {
    settings: &'a Settings,
    strategy: Strategy,
    jobs: &'a [Job],
    now: u64,
    agenda: BinaryHeap<Reverse<(u64, u64, What)>>,
    entered: u64,
    rng: Xoshiro256PlusPlus,
    submitted: usize,
    nodes: Vec<Node>,
    /// The nodes by their number of free shards.
    free: [BTreeSet<u32>; SHARDS as usize + 1],
    /// Waiting jobs, by number: first the urgent ones.
    waiting: [BTreeSet<u32>; 2],
    /// Remaining work of each job while it is on no node, in ns.
    left: Vec<u64>,
    reserved: Option<Reservation>,
    outcome: Outcome,
}

impl<'a> Cluster<'a> {
    fn new(settings: &'a Settings, strategy: Strategy, jobs: &'a [Job]) -> Self {
        let mut cluster = Self {
            settings,
            strategy,
            jobs,
            now: 0,
            agenda: BinaryHeap::new(),
            entered: 0,
            rng: Xoshiro256PlusPlus::seed_from_u64(settings.seed),
            submitted: 0,
            nodes: (0..settings.nodes).map(|_| Node::default()).collect(),
            free: Default::default(),
            waiting: Default::default(),
            left: jobs.iter().map(|job| job.work).collect(),
            reserved: None,
            outcome: Outcome {
                ended: vec![None; jobs.len()],
                preempted: 0,
                drained: 0,
                lost: 0,
            },
        };
        cluster.await_submission();
        for node in 0..settings.nodes as u32 {
            cluster.free[usize::from(SHARDS)].insert(node);
            cluster.await_drain(node);
        }
        cluster
    }

    fn run(mut self) -> Outcome {
        while let Some(Reverse((at, _, what))) = self.agenda.pop() {
            if at > self.settings.end {
                break;
            }
            self.now = at;
            if self.happen(what) {
                self.schedule();
            }
        }
        self.outcome
    }

    fn enter(&mut self, at: u64, what: What) {
        self.entered += 1;
        self.agenda.push(Reverse((at, self.entered, what)));
    }

    fn await_submission(&mut self) {
        if let Some(job) = self.jobs.get(self.submitted) {
            self.enter(job.submitted, What::Submitted);
        }
    }

    fn await_drain(&mut self, node: u32) {
        if self.settings.drain_every > 0 {
            let times: f64 = Exp1.sample(&mut self.rng);
            let after = (times * self.settings.drain_every as f64) as u64;
            self.enter(self.now + after, What::Drain { node });
        }
    }

    /// Handles an event. Returns whether a job that could not begin before may begin now.
    fn happen(&mut self, what: What) -> bool {
        match what {
            What::Submitted => {
                let id = self.submitted as u32;
                self.submitted += 1;
                self.await_submission();
                self.queue(id);
            }
            What::Moved { id } => self.queue(id),
            What::Ends { node, epoch } if self.nodes[node as usize].epoch != epoch => return false,
            What::Ends { node, .. } => self.end_jobs(node),
            What::Drain { node } => self.drain(node),
            What::Back { node } => {
                self.change(node, |node| node.is_drained = false);
                self.await_drain(node);
            }
        }
        true
    }

    fn class(&mut self, id: u32) -> &mut BTreeSet<u32> {
        match self.jobs[id as usize].class {
            Class::Urgent => &mut self.waiting[0],
            Class::Normal => &mut self.waiting[1],
        }
    }

    fn queue(&mut self, id: u32) {
        self.class(id).insert(id);
    }

    /// Changes a node, and schedules its next event.
    fn change<T>(&mut self, id: u32, f: impl FnOnce(&mut Node) -> T) -> T {
        let node = &mut self.nodes[id as usize];
        self.free[usize::from(node.free())].remove(&id);
        let done = f(node);
        self.free[usize::from(node.free())].insert(id);
        let (next, epoch) = (node.next_end(), node.epoch);
        if let Some(at) = next {
            self.enter(at, What::Ends { node: id, epoch });
        }
        done
    }

    fn end_jobs(&mut self, id: u32) {
        let now = self.now;
        self.nodes[id as usize].advance(now);
        while let Some(job) = self.nodes[id as usize].ended() {
            self.change(id, |node| node.remove(now, job));
            self.outcome.ended[job as usize] = Some(now);
        }
    }

    fn drain(&mut self, id: u32) {
        let jobs = self.nodes[id as usize].running.iter().map(|job| job.id);
        let jobs: Vec<u32> = jobs.collect();
        self.outcome.drained += jobs.len() as u64;
        for job in jobs {
            self.evict(id, job);
        }
        self.change(id, |node| node.is_drained = true);
        let until = self.now + self.settings.drain_for;
        self.enter(until, What::Back { node: id });
    }

    /// Removes a job from its node.
    fn evict(&mut self, id: u32, job: u32) {
        let now = self.now;
        let left = self.change(id, |node| node.remove(now, job));
        match self.strategy {
            Strategy::Requeue => {
                let work = self.jobs[job as usize].work;
                self.outcome.lost += work - left;
                self.left[job as usize] = work;
                self.queue(job);
            }
            Strategy::Checkpoint => {
                self.left[job as usize] = left;
                let at = now + self.settings.move_time;
                self.enter(at, What::Moved { id: job });
            }
        }
    }
}

/// Decisions.
impl Cluster<'_> {
    fn schedule(&mut self) {
        self.reserved = None;
        for class in 0..self.waiting.len() {
            let waiting = self.waiting[class].iter().take(CONSIDERED);
            let waiting: Vec<u32> = waiting.copied().collect();
            for id in waiting {
                if self.free[1..].iter().all(BTreeSet::is_empty) && class > 0 {
                    return;
                }
                self.place(id);
            }
        }
    }

    /// Begins a job if a node has room. A node is reserved for the first job for which none has
    /// room.
    fn place(&mut self, id: u32) {
        if let Some(node) = self.fitting(id) {
            return self.begin(id, node);
        }
        if self.jobs[id as usize].class == Class::Urgent {
            if let Some(node) = self.clear(self.jobs[id as usize].shards) {
                return self.begin(id, node);
            }
        }
        if self.reserved.is_none() {
            self.reserved = self.earliest(id);
        }
    }

    fn begin(&mut self, id: u32, node: u32) {
        let (now, job, left) = (self.now, &self.jobs[id as usize], self.left[id as usize]);
        self.class(id).remove(&id);
        self.change(node, |node| node.add(now, id, job, left));
    }

    /// Returns the fullest node that has room for a job.
    fn fitting(&self, id: u32) -> Option<u32> {
        let job = &self.jobs[id as usize];
        let run = self.left[id as usize] / u64::from(job.shards) * u64::from(SHARDS);
        let is_kept = |node: u32| {
            let kept = self.reserved.filter(|kept| kept.node == node);
            kept.is_some_and(|kept| kept.id != id && self.now + run > kept.at)
        };
        let nodes = self.free[usize::from(job.shards)..].iter().flatten();
        nodes.copied().find(|&node| !is_kept(node))
    }

    /// Returns the node that has room for a job first, and the latest time of that.
    fn earliest(&self, id: u32) -> Option<Reservation> {
        let shards = self.jobs[id as usize].shards;
        let nodes = self.nodes.iter().zip(0..);
        let times = nodes
            .filter_map(|(node, number)| node.free_at(self.now, shards).map(|at| (at, number)));
        let (at, node) = times.min()?;
        Some(Reservation { id, node, at })
    }

    /// Preempts normal jobs of the node that lacks the fewest shards, the youngest first, until
    /// this many shards are free. Returns the node.
    fn clear(&mut self, shards: u8) -> Option<u32> {
        let is_normal = |id: u32| self.jobs[id as usize].class == Class::Normal;
        let nodes = self.nodes.iter().zip(0..);
        let (_, id) = nodes
            .filter(|(node, _)| !node.is_drained)
            .filter_map(|(node, number)| {
                let normal = node.running.iter().filter(|job| is_normal(job.id));
                let can_leave: u8 = normal.map(|job| job.shards).sum();
                let missing = shards.saturating_sub(node.free());
                (can_leave >= missing).then_some((missing, number))
            })
            .min()?;
        let node = &self.nodes[id as usize];
        let normal = node.running.iter().filter(|job| is_normal(job.id));
        let mut normal: Vec<(u64, u32)> = normal.map(|job| (job.came, job.id)).collect();
        normal.sort_unstable();
        while self.nodes[id as usize].free() < shards {
            let (_, job) = normal.pop()?;
            self.evict(id, job);
            self.outcome.preempted += 1;
        }
        Some(id)
    }
}

/// Work is counted in parts of a nanosecond. 840 is divisible by 1 to [`SHARDS`], so whatever jobs
/// share a card, each does a whole number of parts in a nanosecond.
const PARTS: u64 = 840;

/// A job on a node.
#[derive(Clone, Copy, Debug)]
struct Running {
    id: u32,
    shards: u8,
    /// When it came to the node.
    came: u64,
    /// Remaining work, in parts.
    left: u64,
}

impl Running {
    /// Returns the latest time at which it ends.
    fn latest_end(&self, now: u64) -> u64 {
        let alone = self.left.div_ceil(PARTS * u64::from(self.shards));
        now + alone * u64::from(SHARDS)
    }
}

/// A node: a card that jobs share by their shards.
#[derive(Debug, Default)]
struct Node {
    running: Vec<Running>,
    /// The time up to which the work of its jobs is counted.
    counted: u64,
    is_drained: bool,
    /// Counts events that invalidate the next end of a job.
    epoch: u32,
}

impl Node {
    /// Returns the shards of its jobs.
    fn used(&self) -> u8 {
        self.running.iter().map(|job| job.shards).sum()
    }

    /// Returns the shards that a job can have.
    fn free(&self) -> u8 {
        if self.is_drained {
            0
        } else {
            SHARDS - self.used()
        }
    }

    /// Counts the work of its jobs until `now`.
    fn advance(&mut self, now: u64) {
        let took = now - std::mem::replace(&mut self.counted, now);
        let used = u64::from(self.used());
        for job in &mut self.running {
            let gain = (PARTS / used) * u64::from(job.shards);
            job.left = job.left.saturating_sub(took.saturating_mul(gain));
        }
    }

    /// Adds a job, with `left` work.
    fn add(&mut self, now: u64, id: u32, job: &Job, left: u64) {
        self.advance(now);
        self.epoch += 1;
        self.running.push(Running {
            id,
            shards: job.shards,
            came: now,
            left: left * PARTS,
        });
    }

    /// Removes a job. Returns its remaining work, in ns.
    fn remove(&mut self, now: u64, id: u32) -> u64 {
        self.advance(now);
        self.epoch += 1;
        let at = self.running.iter().position(|job| job.id == id);
        let job = self.running.remove(at.expect("the job is here"));
        job.left.div_ceil(PARTS)
    }

    /// Returns the job that has no work left, after [`Node::advance`].
    fn ended(&self) -> Option<u32> {
        let ended = self.running.iter().find(|job| job.left == 0);
        ended.map(|job| job.id)
    }

    /// Returns when the next of its jobs ends if nothing else happens.
    fn next_end(&self) -> Option<u64> {
        let used = u64::from(self.used());
        let ends = self.running.iter().map(|job| {
            let gain = (PARTS / used) * u64::from(job.shards);
            self.counted + job.left.div_ceil(gain)
        });
        ends.min()
    }

    /// Returns the latest time at which this many shards are free, if no job is added; `None`:
    /// never, because the node is drained.
    fn free_at(&self, now: u64, shards: u8) -> Option<u64> {
        if self.is_drained {
            return None;
        }
        let mut ends: Vec<(u64, u8)> = self
            .running
            .iter()
            .map(|job| (job.latest_end(self.counted), job.shards))
            .collect();
        ends.sort_unstable();
        let mut free = self.free();
        let mut at = now;
        for (end, more) in ends {
            if free >= shards {
                break;
            }
            (free, at) = (free + more, end);
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_leave_is_shared_by_shards() {
        let mut node = Node::default();
        let job = |shards| Job {
            submitted: 0,
            work: 600,
            shards,
            class: Class::Normal,
        };
        // Alone, a job of one shard has the whole card.
        node.add(0, 0, &job(1), 600);
        assert_eq!(node.next_end(), Some(600));
        assert_eq!(node.running[0].latest_end(0), 4_800);
        // When a job of two shards is added, the first job has a third from then on.
        node.add(300, 1, &job(2), 600);
        assert_eq!(node.free(), 5);
        assert_eq!(node.next_end(), Some(1_200));
        assert_eq!(node.free_at(300, 8), Some(2_700));
        assert_eq!(node.free_at(300, 5), Some(300));
        node.advance(1_200);
        assert_eq!(node.ended(), Some(0));
        assert_eq!(node.remove(1_200, 0), 0);
        assert_eq!((node.remove(1_200, 1), node.next_end()), (0, None));
    }
}
