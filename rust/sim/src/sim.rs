// SPDX-License-Identifier: GPL-2.0

//! The simulation: a heap of events in virtual time, cards with the real scheduler, clients with requests.

mod agenda;
mod client;
mod host;
mod relayed;

use agenda::{Agenda, What};
use client::Client;
use fermata_sched_host::sched::{
    Action, ContextId, Event, NewJob, Scheduler, SlotId, Time, MAX_SLOTS,
};

use crate::card::Slot;
pub use crate::costs::Costs;
use crate::mode::Mode;
use crate::relay::Relay;
use crate::workload::ClientPlan;
use crate::S;

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How slots are shared.
    pub mode: Mode,
    /// What things cost.
    pub costs: Costs,
    /// Cards.
    pub cards: usize,
    /// Slots of each card, 1 to 8.
    pub slots: usize,
    /// The clients of each card.
    pub clients: Vec<Vec<ClientPlan>>,
    /// The scheduler is told which clients are gangs.
    pub gangs: bool,
    /// All that is random follows from it.
    pub seed: u64,
    /// Requests that come before this time, in ns, are not counted.
    pub warm_up: u64,
    /// Requests come until this time, in ns.
    pub end: u64,
    /// Those that came in time may end until this much later, in ns.
    pub drain: u64,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Latencies of LC requests, from their arrival to the moment the program knows of the end, in ns.
    pub lc: Vec<u64>,
    /// Those of BE requests.
    pub be: Vec<u64>,
    /// BE requests that ended between the warm-up and the end.
    pub be_done: u64,
    /// Requests that came in time and had not ended when the simulation did.
    pub unfinished: u64,
    /// Requests in all.
    pub requests: u64,
    /// LC requests that were skipped, of those that count.
    pub lc_skipped: u64,
    /// BE requests that were skipped, of those that count.
    pub be_skipped: u64,
    /// Events given to the scheduler.
    pub decisions: u64,
    /// STARTs, resumes included.
    pub starts: u64,
    /// Saves.
    pub saves: u64,
    /// PAUSEs written.
    pub pauses: u64,
    /// PAUSEs that the card dropped.
    pub dropped: u64,
    /// Orders posted.
    pub orders: u64,
    /// Orders that the card dropped.
    pub orders_dropped: u64,
    /// Of the STARTs, those of contexts that a relay has gone on with by itself.
    pub relayed: u64,
    /// Hints given.
    pub hints: u64,
    /// Of these, those that were followed by a job.
    pub hints_used: u64,
    /// How long members of gangs were started after others that they waited together with, in ns.
    pub skews: Vec<u64>,
    /// Time in which engines worked on jobs of gangs, in ns.
    pub gang_work: u64,
    /// Time in which engines worked on other BE jobs, in ns.
    pub be_work: u64,
    /// Jobs that failed. Nothing misbehaves here, so: none.
    pub failed: u64,
    /// Sum over all slots of the time with a job on it until the end, in ns.
    pub busy: u64,
}

struct Card {
    machine: Scheduler,
    hardware: Hardware,
    /// Counts what invalidates the timer of each slot.
    timers: [u32; MAX_SLOTS],
    /// The client of each context, by its index.
    clients: Vec<u32>,
}

/// A card of one of two profiles.
enum Hardware {
    /// The driver switches (`host.rs`).
    Plain(Vec<Slot>),
    /// The card switches (`relayed.rs`).
    Relayed(Relay),
}

struct Sim<'a> {
    plan: &'a Plan,
    now: u64,
    agenda: Agenda,
    cards: Vec<Card>,
    clients: Vec<Client>,
    /// Actions of one event, kept for its room.
    actions: Vec<Action>,
    outcome: Outcome,
}

/// Runs a plan.
pub fn run(plan: &Plan) -> Outcome {
    let mut sim = Sim::new(plan);
    let last = plan.end + plan.drain;
    let mut ended = false;
    while let Some(next) = sim.agenda.pop() {
        if next.at > last {
            break;
        }
        if !ended && next.at >= plan.end {
            ended = true;
            sim.count_busy(plan.end);
        }
        sim.now = next.at;
        sim.happen(next.what);
    }
    if !ended {
        sim.count_busy(plan.end);
    }
    sim.finish()
}

impl<'a> Sim<'a> {
    fn new(plan: &'a Plan) -> Self {
        let mut sim = Self {
            plan,
            now: 0,
            agenda: Agenda::default(),
            cards: Vec::with_capacity(plan.cards),
            clients: Vec::new(),
            actions: Vec::new(),
            outcome: Outcome::default(),
        };
        for (card, clients) in plan.clients.iter().take(plan.cards).enumerate() {
            let mut machine = plan.mode.machine(plan.slots, clients.len());
            let mut of_context = vec![0; clients.len()];
            let mut gangs: Vec<(u32, ContextId)> = Vec::new();
            for client in clients {
                let config = plan.mode.context(client.kind);
                let ctx = machine.add(config).expect("there is room for all clients");
                if let Some(gang) = client.gang.filter(|_| plan.gangs) {
                    match gangs.iter().find(|(other, _)| *other == gang) {
                        Some(&(_, first)) => join(&mut machine, ctx, first),
                        None => gangs.push((gang, ctx)),
                    }
                }
                of_context[ctx.index()] = sim.clients.len() as u32;
                sim.add_client(card as u32, ctx, client);
            }
            sim.cards.push(Card {
                machine,
                hardware: Hardware::of(plan, clients.len()),
                timers: [0; MAX_SLOTS],
                clients: of_context,
            });
        }
        sim
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
                let it = &self.clients[client as usize];
                let (card, ctx) = (it.card, it.ctx);
                let at = Time::from_ns(at);
                self.decide(card, Event::Hint { ctx, at });
                self.outcome.hints += 1;
            }
            What::Ready { client } => {
                let it = &self.clients[client as usize];
                let (card, ctx) = (it.card, it.ctx);
                self.decide(
                    card,
                    Event::Start {
                        ctx,
                        job: NewJob::default(),
                    },
                );
            }
            What::Heard { client } => {
                self.heard(client);
                self.begin(client);
            }
            What::Engine { card, slot, epoch } => self.engine(card, slot, epoch),
            What::Status { card, slot } => self.status(card, slot),
            What::Order { card, slot, order } => self.order(card, slot, *order),
            What::Record { card, slot } => {
                self.take_records(card, slot);
            }
            What::Timer { card, slot, timer } => {
                if self.cards[card as usize].timers[usize::from(slot)] == timer {
                    let slot = slot_id(slot);
                    self.decide(card, Event::Timer { slot });
                }
            }
        }
    }

    fn count_busy(&mut self, now: u64) {
        for card in &self.cards {
            for slot in 0..self.plan.slots as u8 {
                let stats = card.machine.slot_stats(slot_id(slot), Time::from_ns(now));
                self.outcome.busy += stats.expect("the slot exists").busy.as_ns();
            }
        }
    }

    fn finish(mut self) -> Outcome {
        let waiting =
            |client: &Client| client.waiting.len() + usize::from(client.current.is_some());
        for client in &self.clients {
            let machine = &self.cards[client.card as usize].machine;
            let stats = machine.stats(client.ctx, Time::from_ns(self.now));
            self.outcome.hints_used += stats.expect("clients stay").hints_used;
        }
        self.outcome.unfinished = self.clients.iter().map(waiting).sum::<usize>() as u64;
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
    /// The part of the slots' time with a job on it, its saves and restores included.
    pub fn utilisation(&self, plan: &Plan) -> f64 {
        let slots = (plan.cards * plan.slots) as f64;
        self.busy as f64 / (slots * plan.end as f64)
    }

    /// BE requests per second that ended while requests came.
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
