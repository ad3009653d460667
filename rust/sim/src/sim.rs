// SPDX-License-Identifier: GPL-2.0

//! The simulation: a heap of events in virtual time, cards with the real scheduler, clients with requests.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use fermata_sched_host::sched::{
    Action, ContextId, Event, Failure, JobState, Scheduler, SlotId, Time, Wake, MAX_SLOTS,
};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

use crate::arrivals::Source;
use crate::card::{Slot, Step};
use crate::mode::Mode;
use crate::workload::{ClientPlan, Kind};
use crate::{S, US};

/// What the card and the machine between card and scheduler cost, in ns.
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
    /// Preparing a request takes up to so much more or less than its program believes, percent
    #[arg(long = "preparation-off", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    #[serde(rename = "preparation_off_percent")]
    pub preparation_off: u8,
}

impl Costs {
    /// An A100 as `GPreempt` has it (44 MB of state at 1.1 TB/s: 40 us each way), and a common machine with `PCIe`.
    pub const DEFAULT: Self = Self {
        save: 40 * US,
        restore: 40 * US,
        irq: 3 * US,
        read: US,
        start: US,
        timer: US,
        call: US,
        wake: 5 * US,
        preparation_off: 0,
    };
    /// Nothing costs anything, as in a textbook.
    pub const ZERO: Self = Self {
        save: 0,
        restore: 0,
        irq: 0,
        read: 0,
        start: 0,
        timer: 0,
        call: 0,
        wake: 0,
        preparation_off: 0,
    };
}

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
    /// PAUSEs that the card dropped.
    pub dropped: u64,
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

#[derive(Clone, Copy, Debug)]
enum What {
    /// The next request of a client comes.
    Arrival { client: u32 },
    /// A client says when it will want the slot.
    Hint { client: u32, at: u64 },
    /// A client has prepared its request.
    Ready { client: u32 },
    /// A client has heard of the end of its request.
    Heard { client: u32 },
    /// The engine of a slot comes to the end of something.
    Engine { card: u32, slot: u8, epoch: u32 },
    /// A status read of a slot returns.
    Status { card: u32, slot: u8 },
    /// The timer of a slot fires.
    Timer { card: u32, slot: u8, timer: u32 },
}

/// Ordered by time, then by the order in which they were made: so a run is repeatable.
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

#[derive(Default)]
struct Agenda {
    heap: BinaryHeap<Reverse<Entered>>,
    seq: u64,
}

impl Agenda {
    fn push(&mut self, at: u64, what: What) {
        self.seq += 1;
        let seq = self.seq;
        self.heap.push(Reverse(Entered { at, seq, what }));
    }
}

struct Card {
    machine: Scheduler,
    slots: [Slot; MAX_SLOTS],
    /// The client of each context, by its index.
    clients: Vec<u32>,
}

struct Client {
    card: u32,
    ctx: ContextId,
    kind: Kind,
    preparation: u64,
    /// Draws how long each preparation is: not from the source, so that requests are the same whatever is drawn here.
    rng: Xoshiro256PlusPlus,
    source: Source,
    /// The next request, drawn already.
    next: Option<(u64, u64)>,
    skips_late: bool,
    /// Those that came and are not begun: when, and how much work.
    waiting: VecDeque<(u64, u64)>,
    /// The one that is being prepared or run: when it came.
    current: Option<u64>,
    /// Work that its job has left, as of its START or its snapshot.
    left: u64,
    /// Its snapshot is complete and was not resumed.
    saved: bool,
    /// The gang that it is a member of.
    gang: Option<u32>,
    /// When another member was started while this one waited.
    behind_since: Option<u64>,
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
    while let Some(Reverse(next)) = sim.agenda.heap.pop() {
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
                slots: [const { Slot::new() }; MAX_SLOTS],
                clients: of_context,
            });
        }
        sim
    }

    fn add_client(&mut self, card: u32, ctx: ContextId, plan: &ClientPlan) {
        let id = self.clients.len() as u32;
        let (arrivals, seed) = (plan.arrivals.clone(), self.plan.seed);
        let source = Source::new(arrivals, plan.work, seed, u64::from(id));
        self.clients.push(Client {
            card,
            ctx,
            kind: plan.kind,
            preparation: plan.preparation,
            skips_late: plan.skips_late,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed ^ (u64::from(id) << 32)),
            source,
            next: None,
            waiting: VecDeque::new(),
            current: None,
            left: 0,
            saved: false,
            gang: plan.gang,
            behind_since: None,
        });
        self.draw(id);
    }

    /// Draws the next request of a client, if it comes in time.
    fn draw(&mut self, id: u32) {
        let client = &mut self.clients[id as usize];
        client.next = client.source.next().filter(|next| next.0 < self.plan.end);
        if let Some((at, _)) = client.next {
            self.agenda.push(at, What::Arrival { client: id });
        }
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
                        replayable: false,
                        saved: false,
                    },
                );
            }
            What::Heard { client } => {
                self.heard(client);
                self.begin(client);
            }
            What::Engine { card, slot, epoch } => self.engine(card, slot, epoch),
            What::Status { card, slot } => {
                let status = self.cards[card as usize].slots[usize::from(slot)].status();
                let slot = slot_id(slot);
                self.decide(card, Event::Status { slot, status });
            }
            What::Timer { card, slot, timer } => {
                if self.cards[card as usize].slots[usize::from(slot)].timer == timer {
                    let slot = slot_id(slot);
                    self.decide(card, Event::Timer { slot });
                }
            }
        }
    }

    /// Begins a client's next request, if there is one and none under way. The members of a gang
    /// begin together, when each has a request.
    fn begin(&mut self, id: u32) {
        let client = &self.clients[id as usize];
        let Some(gang) = client.gang else {
            return self.begin_one(id);
        };
        let (card, ids) = (client.card, 0..self.clients.len() as u32);
        let members: Vec<u32> = ids
            .filter(|&id| {
                let client = &self.clients[id as usize];
                client.card == card && client.gang == Some(gang)
            })
            .collect();
        let all_can = members.iter().all(|&id| {
            let client = &self.clients[id as usize];
            client.current.is_none() && !client.waiting.is_empty()
        });
        for id in members.into_iter().filter(|_| all_can) {
            self.begin_one(id);
        }
    }

    fn begin_one(&mut self, id: u32) {
        self.skip_late(id);
        let client = &mut self.clients[id as usize];
        if client.current.is_some() {
            return;
        }
        let Some((came, work)) = client.waiting.pop_front() else {
            return;
        };
        client.current = Some(came);
        client.left = work;
        client.saved = false;
        let call = self.plan.costs.call;
        let mut begin = self.now;
        let hints = self.plan.mode.hints(client.kind);
        if hints {
            begin += call;
        }
        let off = f64::from(self.plan.costs.preparation_off) / 100.0;
        let takes = client.rng.random_range(1.0 - off..=1.0 + off) * client.preparation as f64;
        let ready = begin + takes as u64 + call;
        if hints {
            let at = begin + client.preparation + call;
            self.agenda.push(begin, What::Hint { client: id, at });
        }
        self.agenda.push(ready, What::Ready { client: id });
    }

    /// Skips all requests of a client that wait but the newest, if the client does so and is about to begin one.
    fn skip_late(&mut self, id: u32) {
        let client = &mut self.clients[id as usize];
        if !client.skips_late || client.current.is_some() {
            return;
        }
        let late = client.waiting.len().saturating_sub(1);
        let skipped = client.waiting.drain(..late);
        let skipped = skipped.filter(|(came, _)| *came >= self.plan.warm_up);
        let count = match client.kind {
            Kind::Lc => &mut self.outcome.lc_skipped,
            Kind::Be => &mut self.outcome.be_skipped,
        };
        *count += skipped.count() as u64;
    }

    fn heard(&mut self, id: u32) {
        let client = &mut self.clients[id as usize];
        let came = client.current.take().expect("a request was under way");
        if came < self.plan.warm_up {
            return;
        }
        match client.kind {
            Kind::Lc => self.outcome.lc.push(self.now - came),
            Kind::Be => {
                self.outcome.be.push(self.now - came);
                self.outcome.be_done += u64::from(self.now < self.plan.end);
            }
        }
    }

    fn engine(&mut self, card: u32, slot: u8, epoch: u32) {
        let it = &mut self.cards[card as usize].slots[usize::from(slot)];
        if it.epoch != epoch {
            return;
        }
        match it.step() {
            Step::Next(at) => {
                self.agenda.push(at, What::Engine { card, slot, epoch });
                return;
            }
            Step::Finished { client } => self.note_work(client, 0),
            Step::Paused { client, left } => {
                self.note_work(client, left);
                self.clients[client as usize].saved = true;
            }
        }
        let costs = &self.plan.costs;
        let at = self.now + costs.irq + costs.read;
        self.agenda.push(at, What::Status { card, slot });
    }

    /// The job of a client has so much work left after a run.
    fn note_work(&mut self, id: u32, left: u64) {
        let client = &mut self.clients[id as usize];
        let done = client.left - left;
        client.left = left;
        match (client.kind, client.gang) {
            (Kind::Lc, _) => {}
            (Kind::Be, Some(_)) => self.outcome.gang_work += done,
            (Kind::Be, None) => self.outcome.be_work += done,
        }
    }

    /// Gives an event to the scheduler of a card and carries out what it decides.
    fn decide(&mut self, card: u32, event: Event) {
        let mut actions = std::mem::take(&mut self.actions);
        let machine = &mut self.cards[card as usize].machine;
        machine
            .handle(Time::from_ns(self.now), event, &mut |action| {
                actions.push(action);
            })
            .expect("clients ask for nothing that is refused");
        self.outcome.decisions += 1;
        for action in actions.drain(..) {
            self.act(card, action);
        }
        self.actions = actions;
    }

    /// The engine of a slot comes to the end of something at this time, unless it is stopped before.
    fn await_engine(&mut self, card: u32, slot: SlotId, at: u64) {
        let epoch = self.cards[card as usize].slots[slot.index()].epoch;
        let slot = slot.index() as u8;
        self.agenda.push(at, What::Engine { card, slot, epoch });
    }

    fn start(&mut self, card: u32, slot: SlotId, id: u32, resume: bool) {
        let costs = &self.plan.costs;
        let client = &mut self.clients[id as usize];
        let saved = std::mem::take(&mut client.saved);
        assert_eq!(resume, saved, "a resume from no snapshot, or a loss of one");
        let restore = resume.then_some(costs.restore);
        let it = &mut self.cards[card as usize].slots[slot.index()];
        let at = it.start(self.now + costs.start, id, client.left, restore);
        self.await_engine(card, slot, at);
        self.outcome.starts += 1;
        self.note_start(id);
    }

    fn pause(&mut self, card: u32, slot: SlotId) {
        let save = self.plan.costs.save;
        let it = &mut self.cards[card as usize].slots[slot.index()];
        if let Some(at) = it.pause(self.now, save) {
            self.await_engine(card, slot, at);
            self.outcome.saves += 1;
        }
    }

    /// Notes who waited when another member of its gang was started, and for how long after.
    fn note_start(&mut self, id: u32) {
        let client = &mut self.clients[id as usize];
        let (card, Some(gang)) = (client.card, client.gang) else {
            return;
        };
        if let Some(since) = client.behind_since.take() {
            // Who has come since joins them later.
            self.outcome.skews.push(self.now - since);
            return;
        }
        let machine = &self.cards[card as usize].machine;
        let now = Time::from_ns(self.now);
        let mates = self.clients.iter_mut();
        for mate in mates.filter(|mate| mate.card == card && mate.gang == Some(gang)) {
            let stats = machine.stats(mate.ctx, now).expect("clients stay");
            if stats.state == JobState::Queued {
                mate.behind_since.get_or_insert(self.now);
            }
        }
    }

    fn act(&mut self, card_id: u32, action: Action) {
        let costs = &self.plan.costs;
        let card = &mut self.cards[card_id as usize];
        match action {
            Action::Load { slot, ctx } => card.slots[slot.index()].load(card.clients[ctx.index()]),
            Action::Unload { slot, .. } => card.slots[slot.index()].unload(),
            Action::Start {
                slot, ctx, resume, ..
            } => {
                let client = card.clients[ctx.index()];
                self.start(card_id, slot, client, resume);
            }
            Action::Pause { slot, boundary, .. } => {
                assert!(!boundary, "no simulated engine has boundaries");
                self.pause(card_id, slot);
            }
            Action::Reset { slot, hold, .. } => card.slots[slot.index()].reset(hold),
            Action::ReadStatus { slot } => {
                let slot = slot.index() as u8;
                let what = What::Status {
                    card: card_id,
                    slot,
                };
                self.agenda.push(self.now + costs.read, what);
            }
            Action::Arm { slot, at } => {
                let it = &mut card.slots[slot.index()];
                it.timer += 1;
                let what = What::Timer {
                    card: card_id,
                    slot: slot.index() as u8,
                    timer: it.timer,
                };
                self.agenda
                    .push(at.as_ns().max(self.now) + costs.timer, what);
            }
            Action::Disarm { slot } => card.slots[slot.index()].timer += 1,
            Action::Wake { ctx, wake } => {
                let client = card.clients[ctx.index()];
                if wake != Wake::Done {
                    let gone = wake == Wake::Failed(Failure::Gone);
                    assert!(!gone, "cards stay");
                    self.outcome.failed += 1;
                }
                self.agenda
                    .push(self.now + costs.wake, What::Heard { client });
            }
            Action::Ended { .. }
            | Action::Released { .. }
            | Action::Lost { .. }
            | Action::Reserve { .. }
            | Action::Overrun { .. } => {}
            Action::Inconsistent => panic!("an index did not resolve"),
            Action::Quarantine { .. } => unreachable!("no slot misbehaves"),
            Action::Order { .. } | Action::Stuck { .. } => unreachable!("no slot has a relay"),
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
        let slots = self.cards.iter().flat_map(|card| &card.slots);
        self.outcome.dropped = slots.map(|slot| slot.dropped).sum();
        self.outcome
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
