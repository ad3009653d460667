// SPDX-License-Identifier: GPL-2.0

//! Programs of several jobs that wait for each other, as gangs, beside other work.
//!
//! A job spins on its slot until the job that it waits for has progressed far enough, and does no
//! work meanwhile. So a program would never end if jobs that depend on each other were never on
//! slots together. `FERMATA_PROGRAMS` sets the number of random programs; `FERMATA_PROGRAM` selects
//! one.

use crate::model::{CRITICAL, MS, US};
use fermata_sched_host::sched::{
    Action, ContextConfig, ContextId, Duration, Event, GroupKey, JobState, NewJob, Params,
    PolicyKind, Scheduler, SlotId, Status, Time,
};
use fermata_sched_host::{card, storage};

/// Duration of a save, and of a restore.
const SWITCH: u64 = 40 * US;
/// Delay of an interrupt, a timer or a decision.
const LATENCY: u64 = US;
/// Limit of successive decisions that do nothing: more than there are slots.
const IDLE_MAX: u32 = 32;
/// Upper limit of every wait.
const END: u64 = 20_000 * MS;

/// Random numbers (xorshift64*), the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A step of a job.
#[derive(Clone, Copy, Debug)]
enum Step {
    Work(u64),
    /// Spin until a job has done a number of steps.
    WaitFor(usize, usize),
}

#[derive(Clone, Debug, Default)]
struct Job {
    steps: Vec<Step>,
    done: usize,
    /// Progress in the current step.
    worked: u64,
}

/// What the engine of a slot does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Engine {
    Idle,
    Restoring { until: u64 },
    Working,
    Saving { until: u64 },
    Paused,
    Finished,
}

#[derive(Clone, Copy)]
struct Slot {
    engine: Engine,
    on: Option<usize>,
    starts: u32,
    /// When its interrupt is handled.
    interrupt: Option<u64>,
    timer: Option<u64>,
}

struct World {
    now: u64,
    scheduler: Scheduler,
    ids: Vec<ContextId>,
    gang: Vec<Option<usize>>,
    jobs: Vec<Job>,
    saved: Vec<bool>,
    slots: Vec<Slot>,
    /// The longest time between the STARTs of jobs of a gang that waited together.
    skew: u64,
    waits_since_start: Vec<Option<u64>>,
    /// Since when the scheduler has bound a job to a slot that is not vacant yet.
    bound: Vec<Option<u64>>,
    done: Vec<bool>,
    /// Decisions in succession that did nothing but arm a timer for a time in the past.
    idle: u32,
}

impl World {
    fn new(slots: usize, contexts: usize, policy: PolicyKind) -> Self {
        let mut scheduler = Scheduler::new(&card(slots), storage(contexts, 2 * contexts));
        if scheduler.set_policy(Time::ZERO, policy).is_err() {
            // Reservations are optional: what is left is fair.
            assert_eq!(policy, PolicyKind::Deadline);
        }
        while scheduler.sweep(Time::ZERO, u32::MAX, &mut |_| ()) {}
        let slot = Slot {
            engine: Engine::Idle,
            on: None,
            starts: 0,
            interrupt: None,
            timer: None,
        };
        Self {
            now: MS,
            scheduler,
            ids: Vec::new(),
            gang: Vec::new(),
            jobs: Vec::new(),
            saved: Vec::new(),
            slots: vec![slot; slots],
            skew: 0,
            waits_since_start: Vec::new(),
            bound: Vec::new(),
            done: Vec::new(),
            idle: 0,
        }
    }

    fn add(&mut self, group: u64, params: Params, gang: Option<usize>, job: Job) -> usize {
        let config = ContextConfig {
            class: 0,
            params,
            group: GroupKey(group).into(),
        };
        let id = self.scheduler.add(Time::from_ns(self.now), config).unwrap();
        if let Some(first) = gang.and_then(|gang| self.gang.iter().position(|&g| g == Some(gang))) {
            let first = self.ids[first];
            self.scheduler
                .set_gang(self.time(), id, Some(first), &mut |_| ())
                .unwrap();
        }
        self.ids.push(id);
        self.gang.push(gang);
        self.jobs.push(job);
        self.saved.push(false);
        self.waits_since_start.push(None);
        self.bound.push(None);
        self.done.push(false);
        self.ids.len() - 1
    }

    fn time(&self) -> Time {
        Time::from_ns(self.now)
    }

    fn start(&mut self, n: usize) {
        let ctx = self.ids[n];
        self.jobs[n].done = 0;
        self.jobs[n].worked = 0;
        self.saved[n] = false;
        self.done[n] = false;
        self.event(Event::Start {
            ctx,
            job: NewJob::default(),
        });
    }

    fn event(&mut self, event: Event) {
        let mut actions = Vec::new();
        let now = self.time();
        self.scheduler
            .handle(now, event, &mut |action| actions.push(action))
            .unwrap();
        self.note_idle(&actions);
        for action in actions {
            self.act(action);
        }
        self.note_bound();
    }

    fn note_bound(&mut self) {
        let slots = (0..self.slots.len()).filter_map(|i| SlotId::new(i as u8));
        let bound: Vec<_> = slots
            .filter_map(|slot| self.scheduler.successor(slot))
            .collect();
        for (n, since) in self.bound.iter_mut().enumerate() {
            let is_bound = bound.iter().any(|ctx| ctx.index() == n);
            *since = is_bound.then(|| since.unwrap_or(self.now));
        }
    }

    fn act(&mut self, action: Action) {
        let now = self.now;
        match action {
            Action::Start {
                slot, ctx, resume, ..
            } => {
                let n = ctx.index();
                let at = &mut self.slots[slot.index()];
                assert!(matches!(
                    at.engine,
                    Engine::Idle | Engine::Paused | Engine::Finished
                ));
                assert_eq!(resume, self.saved[n]);
                at.engine = match resume {
                    true => Engine::Restoring {
                        until: now + SWITCH,
                    },
                    false => Engine::Working,
                };
                at.on = Some(n);
                at.starts += 1;
                at.interrupt = None;
                self.note_start(n);
            }
            Action::Pause { slot, ctx, .. } => {
                // Members that have not started yet wait with the one that stops.
                for (gang, since) in self.gang.iter().zip(&mut self.waits_since_start) {
                    if gang.is_some() && *gang == self.gang[ctx.index()] {
                        *since = None;
                    }
                }
                let at = &mut self.slots[slot.index()];
                if at.engine == Engine::Working {
                    at.engine = Engine::Saving {
                        until: now + SWITCH,
                    };
                }
            }
            Action::ReadStatus { slot } => self.read(slot),
            Action::Arm { slot, at } => {
                self.slots[slot.index()].timer = Some(at.as_ns().max(now) + LATENCY);
            }
            Action::Ended { .. }
            | Action::Load { .. }
            | Action::Unload { .. }
            | Action::Wake { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    /// Checks that a timer does not fire again and again without effect.
    fn note_idle(&mut self, actions: &[Action]) {
        let does_nothing = |action: &Action| match *action {
            Action::Arm { at, .. } => at <= self.time(),
            _ => false,
        };
        let is_idle = !actions.is_empty() && actions.iter().all(does_nothing);
        self.idle = if is_idle { self.idle + 1 } else { 0 };
        assert!(self.idle < IDLE_MAX, "a timer fires without end");
    }

    /// Notes a START, for the check that members which wait together are started together.
    fn note_start(&mut self, n: usize) {
        // The boost starts a member that starves alone.
        if self.scheduler.boost() != Scheduler::BOOST_DEFAULT {
            return;
        }
        if let Some(since) = self.waits_since_start[n].take() {
            // Members that have arrived since then, or since the first one was bound to its slot, join
            // later.
            self.skew = self.skew.max(self.now - since);
            return;
        }
        let Some(gang) = self.gang[n] else {
            return;
        };
        let since = self.bound[n].map(Time::from_ns);
        for mate in 0..self.ids.len() {
            let waits = || {
                let stats = self.scheduler.stats(self.ids[mate], self.time()).unwrap();
                let waited = since.is_none_or(|since| stats.lasted > self.time().since(since));
                stats.state == JobState::Queued && waited
            };
            if mate != n && self.gang[mate] == Some(gang) && waits() {
                self.waits_since_start[mate].get_or_insert(self.now);
            }
        }
    }

    fn read(&mut self, slot: SlotId) {
        let at = &mut self.slots[slot.index()];
        let phase = match at.engine {
            Engine::Idle => 0,
            Engine::Paused => 4,
            Engine::Finished => 2,
            _ => 1,
        };
        let raw = (u64::from(at.starts) << 32) | phase;
        if let (Engine::Paused, Some(n)) = (at.engine, at.on) {
            self.saved[n] = true;
        }
        if let (Engine::Finished, Some(n)) = (at.engine, at.on) {
            self.done[n] = true;
        }
        let status = Status::from_raw(raw);
        self.event(Event::Status { slot, status });
    }

    fn working(&self, n: usize) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|slot| slot.on == Some(n) && slot.engine == Engine::Working)
    }

    /// Completes waits whose condition holds.
    fn pass_waits(&mut self) {
        loop {
            let mut changed = false;
            for n in 0..self.jobs.len() {
                while let Some(&Step::WaitFor(other, steps)) =
                    self.jobs[n].steps.get(self.jobs[n].done)
                {
                    if !self.working(n) || self.jobs[other].done < steps {
                        break;
                    }
                    self.jobs[n].done += 1;
                    changed = true;
                }
            }
            if !changed {
                return;
            }
        }
    }

    /// Returns the time of the next event.
    fn next(&self) -> u64 {
        let mut next = u64::MAX;
        for slot in &self.slots {
            next = next.min(slot.timer.unwrap_or(u64::MAX));
            next = next.min(slot.interrupt.unwrap_or(u64::MAX));
            match slot.engine {
                Engine::Restoring { until } | Engine::Saving { until } => next = next.min(until),
                Engine::Working => {
                    let job = &self.jobs[slot.on.unwrap()];
                    match job.steps.get(job.done) {
                        Some(Step::Work(ns)) => next = next.min(self.now + (ns - job.worked)),
                        None => next = self.now,
                        Some(_) => {}
                    }
                }
                _ => {}
            }
        }
        next
    }

    fn advance(&mut self, to: u64) {
        let span = to - self.now;
        self.now = to;
        for i in 0..self.slots.len() {
            if self.slots[i].engine == Engine::Working {
                let job = &mut self.jobs[self.slots[i].on.unwrap()];
                if let Some(&Step::Work(ns)) = job.steps.get(job.done) {
                    job.worked += span;
                    if job.worked >= ns {
                        job.worked = 0;
                        job.done += 1;
                    }
                }
            }
        }
        self.pass_waits();
        for slot in &mut self.slots {
            let next = match slot.engine {
                Engine::Restoring { until } if until <= to => Engine::Working,
                Engine::Saving { until } if until <= to => Engine::Paused,
                Engine::Working => {
                    let job = &self.jobs[slot.on.unwrap()];
                    if job.done < job.steps.len() {
                        continue;
                    }
                    Engine::Finished
                }
                _ => continue,
            };
            slot.engine = next;
            if next != Engine::Working {
                slot.interrupt = Some(to + LATENCY);
            }
        }
        self.pass_waits();
        for i in 0..self.slots.len() {
            let slot = SlotId::new(i as u8).unwrap();
            if self.slots[i].interrupt.is_some_and(|at| at <= to) {
                self.slots[i].interrupt = None;
                self.read(slot);
            }
            if self.slots[i].timer.is_some_and(|at| at <= to) {
                self.slots[i].timer = None;
                self.event(Event::Timer { slot });
            }
        }
    }
}

/// Returns jobs of a gang that wait for each other, without cycles.
fn program(random: &mut Random, first: usize, members: usize) -> Vec<Job> {
    let mut jobs = vec![Job::default(); members];
    for _ in 0..random.below(12) + 1 {
        let n = random.below(members as u64) as usize;
        let other = random.below(members as u64) as usize;
        if other != n && !random.one_in(3) {
            // The existing steps of the other job do not depend on this new step.
            let steps = jobs[other].steps.len();
            jobs[n].steps.push(Step::WaitFor(first + other, steps));
        }
        let work = (random.below(30) + 1) * 100 * US;
        jobs[n].steps.push(Step::Work(work));
    }
    jobs
}

const POLICIES: [PolicyKind; 4] = [
    PolicyKind::Fair,
    PolicyKind::RoundRobin,
    PolicyKind::Priority,
    PolicyKind::Deadline,
];

/// Returns a job that waits for no other job.
fn plain(random: &mut Random, most: u64) -> Job {
    let steps = vec![Step::Work((random.below(most) + 1) * 100 * US)];
    Job {
        steps,
        ..Job::default()
    }
}

/// Returns one to three gangs, up to two other contexts, and, as the last one, a latency-critical
/// context.
fn random_world(random: &mut Random) -> World {
    let slots = [2, 2, 3, 4, 8][random.below(5) as usize];
    let policy = POLICIES[random.below(4) as usize];
    let mut world = World::new(slots, 32, policy);
    if random.one_in(2) {
        let boost = Duration::from_ms(10 * (random.below(5) + 1));
        let set = world.scheduler.set_boost(Time::ZERO, boost, &mut |_| ());
        set.unwrap();
    }
    for gang in 0..random.below(3) as usize + 1 {
        let members = random.below(slots as u64 - 1) as usize + 2;
        let first = world.ids.len();
        for job in program(random, first, members) {
            let params = Params {
                timeslice: Duration::from_ms([2, 2, 20, 200][random.below(4) as usize]),
                priority: random.below(3) as u8,
                ..Params::DEFAULT
            };
            world.add(gang as u64 % 2, params, Some(gang), job);
        }
    }
    for _ in 0..random.below(3) {
        let params = Params {
            priority: random.below(3) as u8,
            ..Params::DEFAULT
        };
        let job = plain(random, 600);
        world.add(2 + random.below(2), params, None, job);
    }
    let job = plain(random, 5);
    world.add(9, CRITICAL, None, job);
    world
}

/// Runs a random program to its end, beside a stream of latency-critical jobs. Returns the longest
/// skew of a gang's STARTs.
fn run(seed: u64) -> u64 {
    let random = &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut world = random_world(random);
    let stream = world.ids.len() - 1;
    let period = (random.below(20) + 1) * MS;
    let mut arrivals: Vec<(u64, usize)> = (0..stream)
        .map(|n| (MS + random.below(50) * 100 * US, n))
        .collect();
    arrivals.push((MS, stream));
    let ends = |world: &World| world.done[..stream].iter().all(|&done| done);
    let latest = world.now + END;
    while !ends(&world) || arrivals.iter().any(|&(_, n)| n != stream) {
        let arrival = arrivals.iter().map(|&(at, _)| at).min();
        let to = world.next().min(arrival.unwrap_or(u64::MAX));
        assert!(
            to < latest,
            "seed {seed}: a job never ends under {:?} on {} slots: {:?}",
            world.scheduler.policy(),
            world.slots.len(),
            world.jobs
        );
        world.advance(to);
        let (due, later): (Vec<_>, Vec<_>) = arrivals.iter().partition(|&&(at, _)| at <= to);
        arrivals = later;
        for (_, n) in due {
            // The last job of the stream may not have ended.
            if world.scheduler.check_start(world.ids[n]).is_ok() {
                world.start(n);
            }
            if n == stream {
                arrivals.push((to + period, stream));
            }
        }
    }
    world.skew
}

#[test]
fn no_gang_of_jobs_that_wait_for_each_other_stalls() {
    let programs = std::env::var("FERMATA_PROGRAMS").ok();
    let programs = programs.map_or(4_000, |programs| programs.parse().unwrap());
    let seed = std::env::var("FERMATA_PROGRAM").ok();
    let seeds = match seed.map(|seed| seed.parse().unwrap()) {
        Some(seed) => seed..seed + 1,
        None => 0..programs,
    };
    for seed in seeds {
        let skew = run(seed);
        // A save and a restore.
        assert!(skew <= 2 * SWITCH, "seed {seed}: a skew of {skew} ns");
    }
}
