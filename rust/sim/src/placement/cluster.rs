// SPDX-License-Identifier: GPL-2.0

//! The cluster's scheduler: by class and submission, with backfilling behind the first job that has to wait, and preemption for urgent
//! jobs, as Slurm's main and backfill schedulers with preemption by QOS.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use rand::SeedableRng;
use rand_distr::{Distribution, Exp1};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::node::Node;
use super::{Class, Job, Settings, Strategy, SHARDS};

/// Jobs of a class that are considered at a time, as Slurm's `bf_max_job_test`.
const CONSIDERED: usize = 100;

/// Something that happens. Ordered only for the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// The next job is submitted.
    Submitted,
    /// A job that was saved can run again.
    Moved { id: u32 },
    /// A job of a node ends, unless the epoch is over.
    Ends { node: u32, epoch: u32 },
    /// A node is drained.
    Drain { node: u32 },
    /// A node is back.
    Back { node: u32 },
}

/// What came of the jobs.
#[derive(Debug)]
pub(super) struct Outcome {
    /// When each job ended.
    pub(super) ended: Vec<Option<u64>>,
    pub(super) preempted: u64,
    pub(super) drained: u64,
    /// Work that was done in vain, in ns.
    pub(super) lost: u64,
}

/// A place that is kept for the first job that has to wait, chosen anew at each decision: others use the node only if they are gone by
/// then.
#[derive(Clone, Copy)]
struct Reservation {
    id: u32,
    node: u32,
    at: u64,
}

/// A cluster.
pub(super) struct Cluster<'a> {
    settings: &'a Settings,
    strategy: Strategy,
    jobs: &'a [Job],
    now: u64,
    agenda: BinaryHeap<Reverse<(u64, u64, What)>>,
    entered: u64,
    rng: Xoshiro256PlusPlus,
    submitted: usize,
    nodes: Vec<Node>,
    /// The nodes with so many free shards.
    free: [BTreeSet<u32>; SHARDS as usize + 1],
    /// Jobs that wait, by number: first the urgent ones.
    waiting: [BTreeSet<u32>; 2],
    /// Work that each job has left while it is on no node, in ns.
    left: Vec<u64>,
    reserved: Option<Reservation>,
    outcome: Outcome,
}

impl<'a> Cluster<'a> {
    pub(super) fn new(settings: &'a Settings, strategy: Strategy, jobs: &'a [Job]) -> Self {
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

    pub(super) fn run(mut self) -> Outcome {
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

    /// Returns whether a job may begin now that could not before.
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

    /// Changes a node, and awaits what happens there next.
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

    /// A job has to leave its node.
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

    /// Begins a job if there is a node. The first job for which there is none has a node reserved.
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

    /// Returns the node that has room for a job first, and when at the latest.
    fn earliest(&self, id: u32) -> Option<Reservation> {
        let shards = self.jobs[id as usize].shards;
        let nodes = self.nodes.iter().zip(0..);
        let times = nodes
            .filter_map(|(node, number)| node.free_at(self.now, shards).map(|at| (at, number)));
        let (at, node) = times.min()?;
        Some(Reservation { id, node, at })
    }

    /// Has normal jobs leave a node, the youngest first, until so many shards are free: the node that lacks the fewest shards.
    /// Returns the node.
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
