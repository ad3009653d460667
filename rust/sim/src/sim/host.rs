// SPDX-License-Identifier: GPL-2.0

//! The host: programs with their requests, and the layer between the scheduler and the cards, which
//! executes decisions and tells the scheduler what the cards do.

use std::collections::VecDeque;

use fermata_sched_host::sched::{
    Action, ContextId, Event, Failure, JobState, LeftReason, NextRun, Order, Scheduler, SlotId,
    Time, Wake, MAX_SLOTS,
};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{slot_id, Hardware, Sim, What};
use crate::card::{Effect, Left, Step};
use crate::workload::{ClientPlan, Kind, Source};

/// Events of cards.
impl Sim<'_> {
    /// Handles a step of a slot's engine, unless the epoch has changed.
    pub(super) fn engine(&mut self, slot: u8, epoch: u32) {
        let slots = match &mut self.card.hardware {
            Hardware::Plain(slots) => slots,
            Hardware::Relayed(_) => return self.relay_engine(slot, epoch),
        };
        let it = &mut slots[usize::from(slot)];
        if it.epoch != epoch {
            return;
        }
        match it.step() {
            Step::Next(at) => {
                self.agenda.push(at, What::Engine { slot, epoch });
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
        self.agenda.push(at, What::Status { slot });
    }

    /// Handles a status read of a slot that returns. The read has flushed records to memory, which
    /// are handled first.
    pub(super) fn status(&mut self, slot: u8) {
        if self.plan.mode.relay && self.take_records(slot) {
            return;
        }
        let id = usize::from(slot);
        let status = match &self.card.hardware {
            Hardware::Plain(slots) => slots[id].status(),
            Hardware::Relayed(relay) => relay.status(id),
        };
        let slot = slot_id(slot);
        self.decide(Event::Status { slot, status });
    }
}

/// Decisions.
impl Sim<'_> {
    /// Passes an event to the scheduler of a card, and executes its decisions.
    pub(super) fn decide(&mut self, event: Event) {
        self.consult(|machine, now, out| {
            let taken = machine.handle(now, event, out);
            taken.expect("clients ask for nothing that is refused");
        });
    }

    /// Calls `f` with the scheduler of a card, and executes its decisions.
    pub(super) fn consult(&mut self, f: impl FnOnce(&mut Scheduler, Time, &mut dyn FnMut(Action))) {
        let mut actions = std::mem::take(&mut self.actions);
        let machine = &mut self.card.machine;
        f(machine, Time::from_ns(self.now), &mut |action| {
            actions.push(action);
        });
        self.outcome.decisions += 1;
        for action in actions.drain(..) {
            self.act(action);
        }
        self.actions = actions;
    }

    fn act(&mut self, action: Action) {
        if let Action::Pause { ctx, .. } = action {
            self.note_stop(self.card.clients[ctx.index()]);
        }
        let costs = &self.plan.costs;
        let it = &mut self.card;
        match action {
            Action::Load { .. }
            | Action::Unload { .. }
            | Action::Start { .. }
            | Action::Pause { .. }
            | Action::Reset { .. }
            | Action::Order { .. } => match it.hardware {
                Hardware::Plain(_) => self.act_on_slot(action),
                Hardware::Relayed(_) => self.act_on_relay(action),
            },
            Action::ReadStatus { slot } => {
                let slot = slot.index() as u8;
                let what = What::Status { slot };
                self.agenda.push(self.now + costs.read, what);
            }
            Action::Arm { slot, at } => {
                let timer = &mut it.timers[slot.index()];
                *timer += 1;
                let what = What::Timer {
                    slot: slot.index() as u8,
                    timer: *timer,
                };
                let at = at.as_ns().max(self.now) + costs.timer;
                self.agenda.push(at, what);
            }
            Action::Wake { ctx, wake } => {
                let client = it.clients[ctx.index()];
                if wake != Wake::Done {
                    let gone = wake == Wake::Failed(Failure::Gone);
                    assert!(!gone, "cards stay");
                    self.outcome.failed += 1;
                }
                let what = What::Heard { client };
                self.agenda.push(self.now + costs.wake, what);
            }
            Action::Ended { .. }
            | Action::Released { .. }
            | Action::Lost { .. }
            | Action::Reserve { .. }
            | Action::Overrun { .. } => {}
            Action::Quarantine { .. } | Action::Stuck { .. } => {
                unreachable!("no slot misbehaves")
            }
        }
    }
}

/// Slots without a relay.
impl Sim<'_> {
    fn act_on_slot(&mut self, action: Action) {
        let it = &mut self.card;
        let slots = it.hardware.plain();
        match action {
            Action::Load { slot, ctx } => slots[slot.index()].load(it.clients[ctx.index()]),
            Action::Unload { slot, .. } => slots[slot.index()].unload(),
            Action::Start {
                slot, ctx, resume, ..
            } => {
                let client = it.clients[ctx.index()];
                self.start(slot, client, resume);
            }
            Action::Pause { slot, boundary, .. } => {
                assert!(!boundary, "no simulated engine has boundaries");
                self.pause(slot);
            }
            Action::Reset { slot, hold, .. } => slots[slot.index()].reset(hold),
            _ => unreachable!("a slot without a relay is told nothing else"),
        }
    }

    /// Schedules the next step of a slot's engine, which is due at this time unless the engine is
    /// stopped earlier.
    fn await_engine(&mut self, slot: SlotId, at: u64) {
        let epoch = self.card.hardware.plain()[slot.index()].epoch;
        let slot = slot.index() as u8;
        self.agenda.push(at, What::Engine { slot, epoch });
    }

    fn start(&mut self, slot: SlotId, id: u32, resume: bool) {
        let costs = &self.plan.costs;
        let left = self.use_snapshot(id, resume);
        let restore = resume.then_some(costs.restore);
        let it = &mut self.card.hardware.plain()[slot.index()];
        let at = it.start(self.now + costs.start, id, left, restore);
        self.await_engine(slot, at);
        self.note_start(id);
    }

    fn pause(&mut self, slot: SlotId) {
        let save = self.plan.costs.save;
        let it = &mut self.card.hardware.plain()[slot.index()];
        self.outcome.pauses += 1;
        match it.pause(self.now, save) {
            Some(at) => {
                self.await_engine(slot, at);
                self.note_save();
            }
            None => self.outcome.dropped += 1,
        }
    }
}

/// A program that has requests.
pub(super) struct Client {
    pub(super) ctx: ContextId,
    pub(super) kind: Kind,
    pub(super) preparation: u64,
    /// Random numbers for the durations of preparations. They are not from the source, so that
    /// requests do not depend on them.
    pub(super) rng: Xoshiro256PlusPlus,
    pub(super) source: Source,
    /// The next request, which is already drawn.
    pub(super) next: Option<(u64, u64)>,
    pub(super) skips_late: bool,
    /// Requests that arrived and have not begun: their times, and their work.
    pub(super) waiting: VecDeque<(u64, u64)>,
    /// When the request that is being prepared or run arrived.
    pub(super) current: Option<u64>,
    /// Remaining work of its job, as of its START or its snapshot.
    pub(super) left: u64,
    /// Its snapshot is complete and was not resumed.
    pub(super) saved: bool,
    /// The gang that it is a member of.
    pub(super) gang: Option<u32>,
    /// When another member was started while this one waited.
    pub(super) behind_since: Option<u64>,
    /// Its job came when another member had its slot already, so that it goes by itself.
    pub(super) comes_later: bool,
}

impl Sim<'_> {
    /// Adds a client. All random numbers of the client follow from the seed and `stream`.
    pub(super) fn add_client(&mut self, stream: u64, ctx: ContextId, plan: &ClientPlan) {
        let id = self.clients.len() as u32;
        let seed = self.plan.seed;
        let source = Source::new(plan.arrivals.clone(), plan.work, seed, stream);
        self.clients.push(Client {
            ctx,
            kind: plan.kind,
            preparation: plan.preparation,
            skips_late: plan.skips_late,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed ^ (stream << 32)),
            source,
            next: None,
            waiting: VecDeque::new(),
            current: None,
            left: 0,
            saved: false,
            gang: plan.gang,
            behind_since: None,
            comes_later: false,
        });
        self.draw(id);
    }

    /// Draws the next request of a client, if it arrives in time.
    pub(super) fn draw(&mut self, id: u32) {
        let client = &mut self.clients[id as usize];
        client.next = client.source.next().filter(|next| next.0 < self.plan.end);
        if let Some((at, _)) = client.next {
            self.agenda.push(at, What::Arrival { client: id });
        }
    }

    /// Begins a client's next request, if there is one and none under way. The members of a gang
    /// begin together, when each has a request.
    pub(super) fn begin(&mut self, id: u32) {
        let client = &self.clients[id as usize];
        let Some(gang) = client.gang else {
            return self.begin_one(id);
        };
        let ids = 0..self.clients.len() as u32;
        let members: Vec<u32> = ids
            .filter(|&id| self.clients[id as usize].gang == Some(gang))
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

    /// Skips all waiting requests of a client but the newest, if the client skips late requests and
    /// is about to begin one.
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

    pub(super) fn heard(&mut self, id: u32) {
        let client = &mut self.clients[id as usize];
        let came = client.current.take().expect("a request was under way");
        let counted = self.plan.warm_up..self.plan.end;
        if client.kind == Kind::Be && counted.contains(&self.now) {
            self.outcome.be_done += 1;
        }
        if came < counted.start {
            return;
        }
        match client.kind {
            Kind::Lc => self.outcome.lc.push(self.now - came),
            Kind::Be => self.outcome.be.push(self.now - came),
        }
    }

    /// Counts a save, if it is before the end.
    pub(super) fn note_save(&mut self) {
        self.outcome.saves += u64::from(self.now < self.plan.end);
    }

    /// Notes the remaining work of a client's job after a run.
    pub(super) fn note_work(&mut self, id: u32, left: u64) {
        let client = &mut self.clients[id as usize];
        let done = client.left - left;
        client.left = left;
        match (client.kind, client.gang) {
            (Kind::Lc, _) => {}
            (Kind::Be, Some(_)) => self.outcome.gang_work += done,
            (Kind::Be, None) => self.outcome.be_work += done,
        }
    }

    /// Begins or resumes the job of a client. Returns its remaining work.
    pub(super) fn use_snapshot(&mut self, id: u32, resume: bool) -> u64 {
        let client = &mut self.clients[id as usize];
        let saved = std::mem::take(&mut client.saved);
        assert_eq!(resume, saved, "a resume from no snapshot, or a loss of one");
        self.outcome.starts += 1;
        client.left
    }

    /// Notes that the job of a client comes, and whether another member of its gang has its slot
    /// already.
    pub(super) fn note_arrival(&mut self, id: u32) {
        let (client, machine) = (&self.clients[id as usize], &self.card.machine);
        let slots = || (0..MAX_SLOTS as u8).map(slot_id);
        let is_bound =
            |mate: &Client| slots().any(|slot| machine.successor(slot) == Some(mate.ctx));
        let mut mates = self.clients.iter().filter(|mate| mate.gang == client.gang);
        let comes_later = client.gang.is_some() && mates.any(is_bound);
        self.clients[id as usize].comes_later = comes_later;
    }

    /// Notes that a client is told to stop: its gang will start together later.
    fn note_stop(&mut self, id: u32) {
        let gang = self.clients[id as usize].gang;
        let mates = self.clients.iter_mut();
        for mate in mates.filter(|mate| gang.is_some() && mate.gang == gang) {
            mate.behind_since = None;
        }
    }

    /// Notes which members waited when another member of their gang was started, and for how long
    /// they waited after that.
    pub(super) fn note_start(&mut self, id: u32) {
        let client = &mut self.clients[id as usize];
        let Some(gang) = client.gang else {
            return;
        };
        client.comes_later = false;
        if let Some(since) = client.behind_since.take() {
            // Members that have arrived since then join later.
            self.outcome.skews.push(self.now - since);
            return;
        }
        let machine = &self.card.machine;
        let now = Time::from_ns(self.now);
        let mates = self.clients.iter_mut();
        for mate in mates.filter(|mate| mate.gang == Some(gang)) {
            let stats = machine.stats(mate.ctx, now).expect("clients stay");
            if stats.state == JobState::Queued && !mate.comes_later {
                mate.behind_since.get_or_insert(self.now);
            }
        }
    }
}

/// Cards with a relay: orders reach them, and the scheduler is told of their records.
impl Sim<'_> {
    /// Executes an action on a slot with a relay. STARTs and PAUSEs are only for reports there.
    pub(super) fn act_on_relay(&mut self, action: Action) {
        let relay = self.card.hardware.relay();
        match action {
            Action::Load { ctx, .. } => relay.write_entry(ctx),
            Action::Order { slot, order } => {
                let slot = slot.index() as u8;
                let order = Box::new(order);
                let what = What::Order { slot, order };
                self.outcome.orders += 1;
                let at = self.now + self.plan.costs.order;
                self.agenda.push(at, what);
            }
            Action::Reset { slot, hold, .. } => relay.reset(slot.index(), hold),
            // The order was just posted: members of gangs are not named before their slots are
            // vacant.
            Action::Start { ctx, .. } => {
                let client = self.card.clients[ctx.index()];
                self.note_start(client);
            }
            Action::Pause { .. } => {}
            _ => unreachable!("a relay closes its windows itself"),
        }
    }

    /// Handles an order that reaches a slot.
    pub(super) fn order(&mut self, slot: u8, order: Order) {
        let relay = self.card.hardware.relay();
        let effect = relay.order(self.now, slot.into(), order);
        self.follow(slot, effect);
    }

    /// Handles a step of a slot's engine, unless the epoch has changed.
    pub(super) fn relay_engine(&mut self, slot: u8, epoch: u32) {
        let relay = self.card.hardware.relay();
        if relay.epoch(slot.into()) == epoch {
            let effect = relay.step(self.now, slot.into());
            self.follow(slot, effect);
        }
    }

    fn follow(&mut self, slot: u8, effect: Effect) {
        match effect {
            Effect::Dropped => self.outcome.orders_dropped += 1,
            Effect::Goes => {}
            Effect::Next(at) => self.await_relay(slot, at),
            Effect::Taken(next) => self.take(slot, next),
            Effect::Left(left) => {
                self.note_left(&left);
                let at = self.now + self.plan.costs.irq;
                self.agenda.push(at, What::Record { slot });
                if let Some(next) = left.next {
                    self.outcome.relayed += 1;
                    self.take(slot, next);
                }
            }
        }
    }

    fn await_relay(&mut self, slot: u8, at: u64) {
        let relay = self.card.hardware.relay();
        let epoch = relay.epoch(slot.into());
        self.agenda.push(at, What::Engine { slot, epoch });
    }

    /// Switches a slot to a context.
    fn take(&mut self, slot: u8, next: NextRun) {
        let id = self.card.clients[next.ctx.index()];
        let work = self.use_snapshot(id, next.resume);
        let relay = self.card.hardware.relay();
        let at = relay.take(self.now, slot.into(), next, work);
        self.await_relay(slot, at);
    }

    /// Notes how much work of the job is left after a run.
    fn note_left(&mut self, left: &Left) {
        let id = self.card.clients[left.ctx.index()];
        self.note_work(id, left.work);
        let is_saved = matches!(left.reason, LeftReason::Paused | LeftReason::NotRun);
        self.clients[id as usize].saved = is_saved;
        if left.reason == LeftReason::Paused {
            self.note_save();
        }
    }

    /// Passes the awaited records of a slot to the scheduler. Returns `false` if there is none.
    pub(super) fn take_records(&mut self, slot: u8) -> bool {
        let mut found = false;
        let id = slot_id(slot);
        loop {
            let it = &mut self.card;
            let run = it.machine.awaited_run(id);
            let record = run.and_then(|(_, run)| it.hardware.relay().record(slot.into(), run));
            let Some(record) = record else {
                return found;
            };
            found = true;
            self.consult(|machine, now, out| {
                machine.take_record(now, id, &record, out);
            });
        }
    }
}
