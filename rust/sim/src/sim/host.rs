// SPDX-License-Identifier: GPL-2.0

//! Between the scheduler and the cards: what is decided is carried out, what the cards do is told.

use fermata_sched_host::sched::{Action, Event, Failure, SlotId, Time, Wake};

use super::{Sim, What};
use crate::card::Step;

impl Sim<'_> {
    pub(super) fn engine(&mut self, card: u32, slot: u8, epoch: u32) {
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

    /// Gives an event to the scheduler of a card and carries out what it decides.
    pub(super) fn decide(&mut self, card: u32, event: Event) {
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
}
