// SPDX-License-Identifier: GPL-2.0

//! A card whose slots many contexts want, one of which is urgent. `make bench-sched` times its
//! operations, and the tests count their allocations and accesses.

use fermata_sched_host::sched::{
    Action, ContextConfig, ContextId, Duration, Event, GroupKey, LeftReason, NewJob, NextRun,
    Params, PolicyKind, Profile, RunRecord, Scheduler, SlotId, Status, Stop, Time, Urgency,
};
use fermata_sched_host::{card, storage};

/// A policy, and how the contexts are grouped.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The policy's name, with `-groups` if there are many, and `-relay` if the slots have relays.
    pub name: &'static str,
    policy: PolicyKind,
    /// Number of contexts in a group.
    group: usize,
    /// The slots have relays.
    relay: bool,
}

impl Case {
    /// Do contexts have reservations, which need all slots of their class?
    pub const fn has_reservations(&self) -> bool {
        matches!(self.policy, PolicyKind::Deadline)
    }

    /// Does the card start jobs by itself?
    pub const fn has_relay(&self) -> bool {
        self.relay
    }

    /// Are contexts in several groups, which never share a gang?
    pub const fn has_groups(&self) -> bool {
        self.group != usize::MAX
    }
}

const fn case(name: &'static str, policy: PolicyKind, group: usize) -> Case {
    Case {
        name,
        policy,
        group,
        relay: false,
    }
}

const fn with_relay(name: &'static str, case: Case) -> Case {
    Case {
        name,
        relay: true,
        ..case
    }
}

const FAIR: Case = case("fair", PolicyKind::Fair, usize::MAX);
const ROUND_ROBIN: Case = case("round-robin", PolicyKind::RoundRobin, usize::MAX);

/// Every policy with all contexts in one group; weighted fair, under which groups compete, with
/// groups of four; and two policies on slots with relays.
pub const CASES: [Case; 7] = [
    FAIR,
    with_relay("fair-relay", FAIR),
    case("fair-groups", PolicyKind::Fair, 4),
    ROUND_ROBIN,
    with_relay("round-robin-relay", ROUND_ROBIN),
    case("priority", PolicyKind::Priority, usize::MAX),
    case("deadline", PolicyKind::Deadline, usize::MAX),
];

const SLICE: Duration = Duration::from_ms(2);
/// Number of contexts that announce work: more than one decision considers.
const ANNOUNCERS: usize = 24;
/// A save takes this time after a PAUSE, in ns.
const SAVE: u64 = 50_000;
/// An urgent job takes this time, in ns.
const URGENT: u64 = 1_000;
/// Status: the engine runs, has finished, is paused.
const RUNNING: u64 = 1;
const FINISH: u64 = 2;
const PAUSED: u64 = 4;

/// The calls that callgrind counts; it finds functions by their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// None.
    None,
    /// All calls into the scheduler.
    All,
    /// All calls, until a START, which ends the program.
    UntilStart,
}

/// Calls `what`, whose instructions are counted.
#[inline(never)]
fn counted<R>(what: impl FnOnce() -> R) -> R {
    std::hint::black_box(what())
}

/// Ends the program; from here on nothing is counted.
#[inline(never)]
fn end_of_counted() -> ! {
    std::process::exit(0)
}

/// Slots under contention. Jobs never end, except those of one urgent context, which is
/// latency-critical and, under `Deadline`, has a reservation that is due before all others.
pub struct Contended {
    machine: Scheduler,
    contexts: Vec<ContextId>,
    urgent: ContextId,
    announcers: Vec<ContextId>,
    now: u64,
    slots: Vec<Slot>,
    relay: bool,
    /// STARTs so far.
    starts: u64,
    counts: Counts,
}

/// What a slot will report next.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    count: u32,
    runs: Option<ContextId>,
    /// When the job began to run.
    began: u64,
    armed: Option<u64>,
    /// When the job is off the slot, by a PAUSE or an order.
    leaves: Option<u64>,
    /// The context that runs after that on a slot with a relay.
    next: Option<ContextId>,
    /// A read of its status is pending.
    read: bool,
}

impl Contended {
    /// Returns one slot that `contexts` contexts want, at least 2; or, with 0, only the urgent one.
    ///
    /// # Panics
    ///
    /// If the scheduler refuses a request.
    pub fn new(case: Case, contexts: usize) -> Self {
        Self::on(contexts, case, 1)
    }

    /// Returns `slots` slots that this many contexts want.
    ///
    /// # Panics
    ///
    /// If the scheduler refuses a request.
    pub fn on(contexts: usize, case: Case, slots: usize) -> Self {
        let mut config = card(slots);
        for slot in config.slots.iter_mut().flatten().filter(|_| case.relay) {
            slot.profile = Profile::Relay;
        }
        let places = contexts + 1 + ANNOUNCERS;
        let mut machine = Scheduler::new(&config, storage(places, places));
        let set = machine.set_policy(Time::ZERO, case.policy);
        set.expect("the card is there");
        while machine.sweep(Time::ZERO, u32::MAX, &mut |_| {}) {}
        let mut add = |params, group| {
            let config = ContextConfig {
                class: 0,
                params,
                group: GroupKey(group as u64).into(),
            };
            machine.add(Time::ZERO, config).expect("there is room")
        };
        let urgent = Params {
            urgency: Urgency::LatencyCritical,
            budget: Duration::from_us(100),
            deadline: Duration::from_ms(1),
            period: Duration::from_ms(1),
            ..Params::DEFAULT
        };
        let urgent = add(urgent, 0);
        let all = (0..contexts).map(|i| add(params(case.policy, i, contexts), i / case.group));
        let all: Vec<ContextId> = all.collect();
        let mut it = Self {
            machine,
            contexts: all,
            urgent,
            announcers: Vec::new(),
            now: 0,
            slots: vec![Slot::default(); slots],
            relay: case.relay,
            starts: 0,
            counts: Counts::None,
        };
        for i in 0..contexts {
            let ctx = it.contexts[i];
            it.event(Event::Start {
                ctx,
                job: NewJob::default(),
            });
        }
        it
    }

    /// Sets which calls are counted from now on.
    pub fn count(&mut self, counts: Counts) {
        self.counts = counts;
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns the contexts, without the urgent one.
    pub fn contexts(&self) -> &[ContextId] {
        &self.contexts
    }

    /// Makes `gangs` gangs, each of as many contexts as there are slots, which are not adjacent in
    /// the queue. `apart`: each member may use only one slot, different from those of the others.
    ///
    /// # Panics
    ///
    /// If the scheduler refuses a request.
    pub fn form_gangs(&mut self, gangs: usize, apart: bool) {
        for gang in 0..gangs {
            let members = self.contexts.iter().copied().skip(gang).step_by(gangs);
            let members: Vec<ContextId> = members.take(self.slots.len()).collect();
            for (slot, &member) in members.iter().enumerate() {
                let with = (slot > 0).then_some(members[0]);
                let formed = self.call(|machine, now, out| {
                    let mut params = machine.params(member)?;
                    if apart {
                        params.mask = 1 << slot;
                    }
                    machine.set_params(now, member, params, out)?;
                    machine.set_gang(now, member, with, out)
                });
                formed.expect("a gang has no more members than there are slots");
            }
        }
    }

    /// Makes [`ANNOUNCERS`] latency-critical contexts without a job, each of another group,
    /// announce work for the same time.
    ///
    /// # Panics
    ///
    /// If the scheduler refuses a request.
    pub fn announce(&mut self) {
        if self.announcers.is_empty() {
            let add = |group| ContextConfig {
                class: 0,
                params: Params {
                    urgency: Urgency::LatencyCritical,
                    ..Params::DEFAULT
                },
                group: GroupKey(group).into(),
            };
            let groups = (0..ANNOUNCERS as u64).map(|group| u64::MAX - group);
            let all = groups.map(|group| {
                self.machine
                    .add(Time::from_ns(self.now), add(group))
                    .expect("there is room")
            });
            self.announcers = all.collect();
        }
        let at = Time::from_ns(self.now) + SLICE;
        for i in 0..ANNOUNCERS {
            let ctx = self.announcers[i];
            self.event(Event::Hint { ctx, at });
        }
    }

    /// Calls the scheduler, and executes its actions.
    pub fn call<R>(
        &mut self,
        call: impl FnOnce(&mut Scheduler, Time, &mut dyn FnMut(Action)) -> R,
    ) -> R {
        let Self {
            slots,
            starts,
            now,
            counts,
            machine,
            ..
        } = self;
        let (now, counts) = (*now, *counts);
        let mut act = |action: Action| {
            match action {
                Action::Start { .. } if counts == Counts::UntilStart => end_of_counted(),
                Action::Start { slot, ctx, .. } => {
                    let slot = &mut slots[slot.index()];
                    slot.count = slot.count.wrapping_add(1);
                    slot.runs = Some(ctx);
                    slot.began = now;
                    slot.leaves = None;
                    slot.next = None;
                    *starts += 1;
                }
                Action::Pause { slot, .. } => slots[slot.index()].leaves = Some(now + SAVE),
                Action::Order { slot, order } if order.stop != Stop::Vacant => {
                    let slot = &mut slots[slot.index()];
                    let works = match order.stop {
                        Stop::Paused { after, .. } => after.as_ns(),
                        _ => 0,
                    };
                    slot.leaves = Some((slot.began + works).max(now) + SAVE);
                    slot.next = order.next.map(|NextRun { ctx, .. }| ctx);
                }
                Action::ReadStatus { slot } => slots[slot.index()].read = true,
                Action::Arm { slot, at } => slots[slot.index()].armed = Some(at.as_ns()),
                _ => {}
            };
        };
        let what = || call(machine, Time::from_ns(now), &mut act);
        match counts {
            Counts::None => what(),
            Counts::All | Counts::UntilStart => counted(what),
        }
    }

    fn event(&mut self, event: Event) {
        let done = self.call(|machine, now, out| machine.handle(now, event, out));
        done.expect("nothing is refused");
    }

    /// Starts a job of the urgent context, unless it has one.
    pub fn start_urgent(&mut self) {
        let ctx = self.urgent;
        if !self.is_urgent() {
            self.event(Event::Start {
                ctx,
                job: NewJob::default(),
            });
        }
    }

    /// Has the urgent context a job?
    fn is_urgent(&self) -> bool {
        let stats = self.machine.stats(self.urgent, Time::from_ns(self.now));
        stats.is_ok_and(|stats| stats.state.is_live())
    }

    /// Makes one decision: reports the next event of the card to the scheduler. This is a pending
    /// read of a status, FINISH of the urgent job, or the earliest of PAUSED and of the timers.
    ///
    /// # Panics
    ///
    /// If there is no next event.
    pub fn decide(&mut self) {
        let slots = &self.slots;
        if let Some(i) = slots.iter().position(|slot| slot.read) {
            self.slots[i].read = false;
            return self.status(i, RUNNING);
        }
        let urgent = Some(self.urgent);
        if let Some(i) = slots.iter().position(|slot| slot.runs == urgent) {
            self.now += URGENT;
            self.slots[i].runs = None;
            return self.end(i, FINISH);
        }
        if let Some((at, i)) = self.leaves() {
            self.now = self.now.max(at);
            self.slots[i].runs = None;
            self.slots[i].leaves = None;
            return self.end(i, PAUSED);
        }
        let timer = self.first(|slot| slot.armed);
        let (at, i) = timer.expect("a timer is armed");
        self.now = self.now.max(at);
        self.slots[i].armed = None;
        let slot = SlotId::new(i as u8).expect("a card has at most eight slots");
        self.event(Event::Timer { slot });
    }

    /// Returns the earliest of some times of slots.
    fn first(&self, at: fn(&Slot) -> Option<u64>) -> Option<(u64, usize)> {
        let times = self.slots.iter().zip(0..);
        times.filter_map(|(slot, i)| Some((at(slot)?, i))).min()
    }

    /// Returns when a job leaves its slot, if that comes before the next timer, and the slot.
    fn leaves(&self) -> Option<(u64, usize)> {
        let timer = self.first(|slot| slot.armed);
        let leaves = self.first(|slot| slot.leaves);
        leaves.filter(|(at, _)| timer.is_none_or(|(fires, _)| *at <= fires))
    }

    /// Counts the gap of a slot: from the report that its job is saved to the START of the next one,
    /// which ends the program.
    pub fn gap(&mut self) {
        while self.slots.iter().any(|slot| slot.read) || self.leaves().is_none() {
            self.decide();
        }
        self.count(Counts::UntilStart);
        self.decide();
    }

    /// Ends a run, and reports this by a status or a record.
    fn end(&mut self, i: usize, phase: u64) {
        if !self.relay {
            return self.status(i, phase);
        }
        let record = RunRecord {
            run: self.slots[i].count,
            reason: match phase {
                PAUSED => LeftReason::Paused,
                _ => LeftReason::Finished,
            },
            span: Duration::from_ns(self.now - self.slots[i].began),
            load: Duration::ZERO,
            save: Duration::from_ns(SAVE),
            next: self.slots[i].next.take().map(ContextId::index),
        };
        let slot = SlotId::new(i as u8).expect("a card has at most eight slots");
        self.call(|machine, now, out| machine.take_record(now, slot, &record, out));
    }

    fn status(&mut self, i: usize, phase: u64) {
        let raw = phase | (u64::from(self.slots[i].count) << 32);
        let (slot, status) = (SlotId::new(i as u8), Status::from_raw(raw));
        let slot = slot.expect("a card has at most eight slots");
        self.event(Event::Status { slot, status });
    }

    /// Makes a switch as the scheduler sees it: time is up, PAUSE; PAUSED, the next START. This
    /// takes two decisions, and a few more if limits are used up; one on a slot with a relay.
    /// Returns their number.
    pub fn switch(&mut self) -> u32 {
        let before = self.starts;
        let mut decisions = 0;
        while self.starts == before {
            self.decide();
            decisions += 1;
        }
        decisions
    }

    /// Runs an urgent job as the scheduler sees it: arrival, PAUSE; PAUSED, its START; FINISH, the
    /// next START. This takes three decisions. Returns their number.
    pub fn interrupt(&mut self) -> u32 {
        self.start_urgent();
        let mut decisions = 1;
        while self.is_urgent() {
            self.decide();
            decisions += 1;
        }
        decisions
    }
}

/// Returns the parameters of context number `i` of `n`. Under each policy all contexts are served,
/// in an order that differs from their order in memory.
fn params(policy: PolicyKind, i: usize, n: usize) -> Params {
    let spread = i.wrapping_mul(0x9e37_79b9) >> 4;
    let mut params = Params {
        timeslice: SLICE,
        weight: 50 + (spread % 151) as u16,
        ..Params::DEFAULT
    };
    match policy {
        // At least half of the slot is reserved, in equal parts whose periods begin at the same
        // time; the last context gets the rest.
        PolicyKind::Deadline if i + 1 < n => {
            let two = Params::TIMESLICE_MIN.times(2 * n as u64);
            params.budget = Params::TIMESLICE_MIN;
            params.period = two.clamp(Params::PERIOD_MIN, Params::PERIOD_MAX);
            params.deadline = params.period;
        }
        _ => {}
    }
    params
}
