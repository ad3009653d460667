// SPDX-License-Identifier: GPL-2.0

//! Between the scheduler and the cards: what is decided is carried out, what cards without a relay do is told.

use fermata_sched_host::sched::{Action, Event, Failure, Scheduler, SlotId, Time, Wake};

use super::{slot_id, Hardware, Sim, What};
use crate::card::Step;

/// Events of cards.
impl Sim<'_> {
    /// The engine of a slot comes to the end of something, unless the epoch is over.
    pub(super) fn engine(&mut self, card: u32, slot: u8, epoch: u32) {
        let slots = match &mut self.cards[card as usize].hardware {
            Hardware::Plain(slots) => slots,
            Hardware::Relayed(_) => return self.relay_engine(card, slot, epoch),
        };
        let it = &mut slots[usize::from(slot)];
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

    /// A status read of a slot returns. The records that it has pushed to memory are looked for first.
    pub(super) fn status(&mut self, card: u32, slot: u8) {
        if self.plan.mode.relay && self.take_records(card, slot) {
            return;
        }
        let id = usize::from(slot);
        let status = match &self.cards[card as usize].hardware {
            Hardware::Plain(slots) => slots[id].status(),
            Hardware::Relayed(relay) => relay.status(id),
        };
        let slot = slot_id(slot);
        self.decide(card, Event::Status { slot, status });
    }
}

/// Decisions.
impl Sim<'_> {
    /// Gives an event to the scheduler of a card and carries out what it decides.
    pub(super) fn decide(&mut self, card: u32, event: Event) {
        self.consult(card, |machine, now, out| {
            let taken = machine.handle(now, event, out);
            taken.expect("clients ask for nothing that is refused");
        });
    }

    /// Lets `f` tell the scheduler of a card something, and carries out what it decides.
    pub(super) fn consult(
        &mut self,
        card: u32,
        f: impl FnOnce(&mut Scheduler, Time, &mut dyn FnMut(Action)),
    ) {
        let mut actions = std::mem::take(&mut self.actions);
        let machine = &mut self.cards[card as usize].machine;
        f(machine, Time::from_ns(self.now), &mut |action| {
            actions.push(action);
        });
        self.outcome.decisions += 1;
        for action in actions.drain(..) {
            self.act(card, action);
        }
        self.actions = actions;
    }

    fn act(&mut self, card: u32, action: Action) {
        let costs = &self.plan.costs;
        let it = &mut self.cards[card as usize];
        match action {
            Action::Load { .. }
            | Action::Unload { .. }
            | Action::Start { .. }
            | Action::Pause { .. }
            | Action::Reset { .. }
            | Action::Order { .. } => match it.hardware {
                Hardware::Plain(_) => self.act_on_slot(card, action),
                Hardware::Relayed(_) => self.act_on_relay(card, action),
            },
            Action::ReadStatus { slot } => {
                let slot = slot.index() as u8;
                let what = What::Status { card, slot };
                self.agenda.push(self.now + costs.read, what);
            }
            Action::Arm { slot, at } => {
                let timer = &mut it.timers[slot.index()];
                *timer += 1;
                let what = What::Timer {
                    card,
                    slot: slot.index() as u8,
                    timer: *timer,
                };
                let at = at.as_ns().max(self.now) + costs.timer;
                self.agenda.push(at, what);
            }
            Action::Disarm { slot } => it.timers[slot.index()] += 1,
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
            Action::Inconsistent => panic!("an index did not resolve"),
            Action::Quarantine { .. } | Action::Stuck { .. } => {
                unreachable!("no slot misbehaves")
            }
        }
    }
}

/// Slots without a relay.
impl Sim<'_> {
    fn act_on_slot(&mut self, card: u32, action: Action) {
        let it = &mut self.cards[card as usize];
        let slots = it.hardware.plain();
        match action {
            Action::Load { slot, ctx } => slots[slot.index()].load(it.clients[ctx.index()]),
            Action::Unload { slot, .. } => slots[slot.index()].unload(),
            Action::Start {
                slot, ctx, resume, ..
            } => {
                let client = it.clients[ctx.index()];
                self.start(card, slot, client, resume);
            }
            Action::Pause { slot, boundary, .. } => {
                assert!(!boundary, "no simulated engine has boundaries");
                self.pause(card, slot);
            }
            Action::Reset { slot, hold, .. } => slots[slot.index()].reset(hold),
            _ => unreachable!("a slot without a relay is told nothing else"),
        }
    }

    /// The engine of a slot comes to the end of something at this time, unless it is stopped before.
    fn await_engine(&mut self, card: u32, slot: SlotId, at: u64) {
        let epoch = self.cards[card as usize].hardware.plain()[slot.index()].epoch;
        let slot = slot.index() as u8;
        self.agenda.push(at, What::Engine { card, slot, epoch });
    }

    fn start(&mut self, card: u32, slot: SlotId, id: u32, resume: bool) {
        let costs = &self.plan.costs;
        let left = self.use_snapshot(id, resume);
        let restore = resume.then_some(costs.restore);
        let it = &mut self.cards[card as usize].hardware.plain()[slot.index()];
        let at = it.start(self.now + costs.start, id, left, restore);
        self.await_engine(card, slot, at);
        self.note_start(id);
    }

    fn pause(&mut self, card: u32, slot: SlotId) {
        let save = self.plan.costs.save;
        let it = &mut self.cards[card as usize].hardware.plain()[slot.index()];
        self.outcome.pauses += 1;
        match it.pause(self.now, save) {
            Some(at) => {
                self.await_engine(card, slot, at);
                self.outcome.saves += 1;
            }
            None => self.outcome.dropped += 1,
        }
    }
}
