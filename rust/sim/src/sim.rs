// SPDX-License-Identifier: GPL-2.0

//! The simulation: a heap of events in virtual time, a card with the real scheduler, clients with requests.

mod host;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fermata_sched_host::sched::{
    Action, ContextId, Event, NewJob, Order, Scheduler, SlotId, Time, MAX_SLOTS,
};
use host::Client;
use serde::Serialize;

use crate::card::{Relay, Slot};
use crate::mode::Mode;
use crate::workload::ClientPlan;
use crate::{S, US};

/// The plan of a simulation.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How slots are shared.
    pub mode: Mode,
    /// The costs of card and machine.
    pub costs: Costs,
    /// Cards.
    pub cards: usize,
    /// Slots of each card, 1 to 8.
    pub slots: usize,
    /// The clients of each card.
    pub clients: Vec<Vec<ClientPlan>>,
    /// Clients with the same gang number are gangs for the scheduler.
    pub gangs: bool,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Requests that arrive before this time, in ns, are not counted.
    pub warm_up: u64,
    /// Requests arrive until this time, in ns.
    pub end: u64,
    /// Requests that arrived in time may end until this much later, in ns.
    pub drain: u64,
}

impl Plan {
    /// Returns a plan of a card with one slot and these clients, whose requests of one second
    /// count.
    pub fn one_slot(mode: Mode, costs: Costs, clients: Vec<ClientPlan>) -> Self {
        Self {
            mode,
            costs,
            cards: 1,
            slots: 1,
            clients: vec![clients],
            gangs: false,
            seed: 0,
            warm_up: 0,
            end: S,
            drain: S,
        }
    }
}

/// The results of a simulation.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Latencies of LC requests, from arrival until the program is notified of the end, in ns.
    pub lc: Vec<u64>,
    /// Latencies of BE requests.
    pub be: Vec<u64>,
    /// BE requests that ended between the warm-up and the end, whenever they arrived.
    pub be_done: u64,
    /// Requests that arrived in time and had not ended when the simulation did.
    pub unfinished: u64,
    /// Total of requests.
    pub requests: u64,
    /// Skipped LC requests, of those that count.
    pub lc_skipped: u64,
    /// Skipped BE requests, of those that count.
    pub be_skipped: u64,
    /// Events given to the scheduler.
    pub decisions: u64,
    /// STARTs, resumes included.
    pub starts: u64,
    /// Saves until the end.
    pub saves: u64,
    /// PAUSEs written.
    pub pauses: u64,
    /// PAUSEs that the card dropped.
    pub dropped: u64,
    /// Orders posted.
    pub orders: u64,
    /// Orders that the card dropped.
    pub orders_dropped: u64,
    /// Of the STARTs, those that a relay did by itself.
    pub relayed: u64,
    /// Hints given.
    pub hints: u64,
    /// Of these, those that were followed by a job.
    pub hints_used: u64,
    /// Times between the STARTs of members of a gang that waited together, in ns.
    pub skews: Vec<u64>,
    /// Time in which engines worked on jobs of gangs, in ns.
    pub gang_work: u64,
    /// Time in which engines worked on other BE jobs, in ns.
    pub be_work: u64,
    /// Jobs that failed: none, because nothing misbehaves here.
    pub failed: u64,
    /// Sum over all slots of the time with a job on it until the end, in ns.
    pub busy: u64,
}

/// A card.
struct Card {
    machine: Scheduler,
    hardware: Hardware,
    /// Counts events that invalidate the timer of each slot.
    timers: [u32; MAX_SLOTS],
    /// The client of each context, by its index.
    clients: Vec<u32>,
}

/// A card of one of two profiles.
enum Hardware {
    /// The driver switches.
    Plain(Vec<Slot>),
    /// The card switches.
    Relayed(Relay),
}

/// One card and its clients.
struct Sim<'a> {
    plan: &'a Plan,
    now: u64,
    agenda: Agenda,
    card: Card,
    clients: Vec<Client>,
    /// Actions of one event; kept to avoid allocations.
    actions: Vec<Action>,
    outcome: Outcome,
}

/// Runs a plan. Cards are independent of each other, so each is simulated from beginning to end
/// before the next: the data in use fits into the caches of a processor, however many cards there
/// are.
pub fn run(plan: &Plan) -> Outcome {
    let mut outcome = Outcome::default();
    let mut first = 0;
    for clients in plan.clients.iter().take(plan.cards) {
        outcome = Sim::new(plan, clients, first, outcome).run();
        first += clients.len() as u64;
    }
    outcome
}

impl<'a> Sim<'a> {
    /// Returns a simulation of one card. The index of its first client is `first`, and the card's
    /// figures are added to `outcome`.
    fn new(plan: &'a Plan, clients: &[ClientPlan], first: u64, outcome: Outcome) -> Self {
        let mut sim = Self {
            plan,
            now: 0,
            agenda: Agenda::default(),
            card: Card {
                machine: plan.mode.machine(plan.slots, clients.len()),
                hardware: Hardware::of(plan, clients.len()),
                timers: [0; MAX_SLOTS],
                clients: vec![0; clients.len()],
            },
            clients: Vec::with_capacity(clients.len()),
            actions: Vec::new(),
            outcome,
        };
        let mut gangs: Vec<(u32, ContextId)> = Vec::new();
        for (client, index) in clients.iter().zip(first..) {
            let machine = &mut sim.card.machine;
            let config = plan.mode.context(client.kind);
            let ctx = machine
                .add(Time::ZERO, config)
                .expect("there is room for all clients");
            if let Some(gang) = client.gang.filter(|_| plan.gangs) {
                match gangs.iter().find(|(other, _)| *other == gang) {
                    Some(&(_, first)) => join(machine, ctx, first),
                    None => gangs.push((gang, ctx)),
                }
            }
            sim.card.clients[ctx.index()] = sim.clients.len() as u32;
            sim.add_client(client.stream.unwrap_or(index), ctx, client);
        }
        sim
    }

    fn run(mut self) -> Outcome {
        let last = self.plan.end + self.plan.drain;
        let mut ended = false;
        while let Some(next) = self.agenda.pop() {
            if next.at > last {
                break;
            }
            if !ended && next.at >= self.plan.end {
                ended = true;
                self.count_busy(self.plan.end);
            }
            self.now = next.at;
            self.happen(next.what);
        }
        if !ended {
            self.count_busy(self.plan.end);
        }
        self.finish()
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Arrival { client } => {
                let it = &mut self.clients[client as usize];
                it.waiting.extend(it.next.take());
                self.outcome.requests += 1;
                self.begin(client);
                self.draw(client);
            }
            What::Hint { client, at } => {
                let ctx = self.clients[client as usize].ctx;
                let at = Time::from_ns(at);
                self.decide(Event::Hint { ctx, at });
                self.outcome.hints += 1;
            }
            What::Ready { client } => {
                let ctx = self.clients[client as usize].ctx;
                let job = NewJob::default();
                self.note_arrival(client);
                self.decide(Event::Start { ctx, job });
            }
            What::Heard { client } => {
                self.heard(client);
                self.begin(client);
            }
            What::Engine { slot, epoch } => self.engine(slot, epoch),
            What::Status { slot } => self.status(slot),
            What::Order { slot, order } => self.order(slot, *order),
            What::Record { slot } => {
                self.take_records(slot);
            }
            What::Timer { slot, timer } => {
                if self.card.timers[usize::from(slot)] == timer {
                    let slot = slot_id(slot);
                    self.decide(Event::Timer { slot });
                }
            }
        }
    }

    fn count_busy(&mut self, now: u64) {
        for slot in 0..self.plan.slots as u8 {
            let stats = self
                .card
                .machine
                .slot_stats(slot_id(slot), Time::from_ns(now));
            self.outcome.busy += stats.expect("the slot exists").busy.as_ns();
        }
    }

    fn finish(mut self) -> Outcome {
        let waiting =
            |client: &Client| client.waiting.len() + usize::from(client.current.is_some());
        for client in &self.clients {
            let stats = self.card.machine.stats(client.ctx, Time::from_ns(self.now));
            self.outcome.hints_used += stats.expect("clients stay").hints_used;
        }
        self.outcome.unfinished += self.clients.iter().map(waiting).sum::<usize>() as u64;
        self.outcome
    }
}

impl Hardware {
    fn of(plan: &Plan, contexts: usize) -> Self {
        if plan.mode.relay {
            Self::Relayed(Relay::new(plan.slots, contexts, &plan.costs))
        } else {
            Self::Plain(vec![Slot::new(); plan.slots])
        }
    }

    fn plain(&mut self) -> &mut [Slot] {
        match self {
            Self::Plain(slots) => slots,
            Self::Relayed(_) => unreachable!("a relay is told by orders"),
        }
    }

    fn relay(&mut self) -> &mut Relay {
        match self {
            Self::Plain(_) => unreachable!("no slot has a relay"),
            Self::Relayed(relay) => relay,
        }
    }
}

impl Outcome {
    /// Returns the part of the slots' time with a job on the slot, including saves and restores.
    pub fn utilisation(&self, plan: &Plan) -> f64 {
        let slots = (plan.cards * plan.slots) as f64;
        self.busy as f64 / (slots * plan.end as f64)
    }

    /// Returns the number of BE requests per second that ended while requests arrived.
    pub fn be_per_s(&self, plan: &Plan) -> f64 {
        self.be_done as f64 / ((plan.end - plan.warm_up) as f64 / S as f64)
    }
}

/// Makes a context, which has no job yet, a member of the gang of another one.
fn join(machine: &mut Scheduler, ctx: ContextId, with: ContextId) {
    let joined = machine.set_gang(Time::ZERO, ctx, Some(with), &mut |_| {});
    joined.expect("there is a slot for each member");
}

fn slot_id(slot: u8) -> SlotId {
    SlotId::new(slot).expect("a card has at most eight slots")
}

/// An event of a card.
#[derive(Clone, Debug)]
enum What {
    /// The next request of a client arrives.
    Arrival { client: u32 },
    /// A client gives a hint when it will want the slot.
    Hint { client: u32, at: u64 },
    /// A client has prepared its request.
    Ready { client: u32 },
    /// A client is notified of the end of its request.
    Heard { client: u32 },
    /// A step of a slot's engine is due.
    Engine { slot: u8, epoch: u32 },
    /// A status read of a slot returns.
    Status { slot: u8 },
    /// An order reaches a slot with a relay. It is boxed, because every entry of the agenda is as
    /// large as the largest event.
    Order { slot: u8, order: Box<Order> },
    /// The interrupt of a relay's record is handled.
    Record { slot: u8 },
    /// The timer of a slot fires.
    Timer { slot: u8, timer: u32 },
}

/// Ordered by time, then by creation, so that a run is repeatable.
struct Entered {
    at: u64,
    seq: u64,
    what: What,
}

impl PartialEq for Entered {
    fn eq(&self, other: &Self) -> bool {
        self.seq == other.seq
    }
}

impl Eq for Entered {}

impl PartialOrd for Entered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}

/// Future events.
#[derive(Default)]
struct Agenda {
    heap: BinaryHeap<Reverse<Entered>>,
    seq: u64,
}

impl Agenda {
    /// Enters an event.
    fn push(&mut self, at: u64, what: What) {
        self.seq += 1;
        let seq = self.seq;
        self.heap.push(Reverse(Entered { at, seq, what }));
    }
    /// Removes and returns the next event.
    fn pop(&mut self) -> Option<Entered> {
        self.heap.pop().map(|Reverse(next)| next)
    }
}

/// The costs of the card, and of the machine between card and scheduler, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::Args)]
pub struct Costs {
    /// Save of a snapshot, ns
    #[arg(long = "save-ns", default_value_t = Costs::DEFAULT.save)]
    #[serde(rename = "save_ns")]
    pub save: u64,
    /// Restore of a snapshot, ns
    #[arg(long = "restore-ns", default_value_t = Costs::DEFAULT.restore)]
    #[serde(rename = "restore_ns")]
    pub restore: u64,
    /// From the card's interrupt to the handler, ns
    #[arg(long = "irq-ns", default_value_t = Costs::DEFAULT.irq)]
    #[serde(rename = "irq_ns")]
    pub irq: u64,
    /// A status read, ns
    #[arg(long = "read-ns", default_value_t = Costs::DEFAULT.read)]
    #[serde(rename = "read_ns")]
    pub read: u64,
    /// The writes of a START until it takes effect, ns
    #[arg(long = "start-ns", default_value_t = Costs::DEFAULT.start)]
    #[serde(rename = "start_ns")]
    pub start: u64,
    /// An order on its way to a relay, ns
    #[arg(long = "order-ns", default_value_t = Costs::DEFAULT.order)]
    #[serde(rename = "order_ns")]
    pub order: u64,
    /// A relay's reads of the next context's entry and registers in memory, ns
    #[arg(long = "load-ns", default_value_t = Costs::DEFAULT.load)]
    #[serde(rename = "load_ns")]
    pub load: u64,
    /// How late a timer fires, ns
    #[arg(long = "timer-ns", default_value_t = Costs::DEFAULT.timer)]
    #[serde(rename = "timer_ns")]
    pub timer: u64,
    /// A program's call into the driver, ns
    #[arg(long = "call-ns", default_value_t = Costs::DEFAULT.call)]
    #[serde(rename = "call_ns")]
    pub call: u64,
    /// From the end of a job to its program, ns
    #[arg(long = "wake-ns", default_value_t = Costs::DEFAULT.wake)]
    #[serde(rename = "wake_ns")]
    pub wake: u64,
    /// Preparing a request takes up to this much more or less than its program expects, percent
    #[arg(long = "preparation-off", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    #[serde(rename = "preparation_off_percent")]
    pub preparation_off: u8,
}

impl Costs {
    /// An A100 as in `GPreempt` (44 MB of state at 1.1 TB/s: 40 us each way), and a common machine
    /// with `PCIe`.
    pub const DEFAULT: Self = Self {
        save: 40 * US,
        restore: 40 * US,
        irq: 3 * US,
        read: US,
        start: US,
        order: 0,
        load: 2 * US,
        timer: US,
        call: US,
        wake: 5 * US,
        preparation_off: 0,
    };
    /// Everything is free, as in a textbook.
    pub const ZERO: Self = Self {
        save: 0,
        restore: 0,
        irq: 0,
        read: 0,
        start: 0,
        order: 0,
        load: 0,
        timer: 0,
        call: 0,
        wake: 0,
        preparation_off: 0,
    };
}

/// Latencies of one kind, in microseconds. All samples are kept, so percentiles are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// How many samples.
    pub count: usize,
    /// The mean.
    pub mean_us: f64,
    /// Half of the samples are no longer.
    pub p50_us: f64,
    /// 99 of 100 samples are no longer.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Latency {
    /// Returns the latencies of samples in ns, which it sorts.
    pub fn of(samples: &mut [u64]) -> Self {
        if samples.is_empty() {
            return Self::default();
        }
        samples.sort_unstable();
        let us = |ns: u64| ns as f64 / 1e3;
        let sum: u128 = samples.iter().map(|&ns| u128::from(ns)).sum();
        Self {
            count: samples.len(),
            mean_us: sum as f64 / samples.len() as f64 / 1e3,
            p50_us: us(rank(samples, 50)),
            p99_us: us(rank(samples, 99)),
            max_us: us(rank(samples, 100)),
        }
    }
}

/// Returns the nearest-rank percentile of samples that are sorted and not empty.
fn rank(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1]
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "these values are exact")]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let mut samples: Vec<u64> = (1..=200).rev().map(|n| n * 1_000).collect();
        let latency = Latency::of(&mut samples);
        assert_eq!((latency.p50_us, latency.p99_us), (100.0, 198.0));
        assert_eq!((latency.max_us, latency.mean_us), (200.0, 100.5));
        assert_eq!(Latency::of(&mut [7_000]).p99_us, 7.0);
        assert_eq!(Latency::of(&mut []).count, 0);
    }
}
