// SPDX-License-Identifier: GPL-2.0

//! Between the scheduler and the cards: what is decided is carried out, what cards without a relay do is told.

use fermata_sched_host::sched::{Action, Event, Failure, Scheduler, SlotId, Time, Wake};

use super::{slot_id, Hardware, Sim, What};
use crate::card::Step;

/// Events of cards.
impl Sim<'_> {
    /// The engine of a slot comes to the end of something, unless the epoch is over.
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

    /// A status read of a slot returns. The records that it has pushed to memory are looked for first.
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
    /// Gives an event to the scheduler of a card and carries out what it decides.
    pub(super) fn decide(&mut self, event: Event) {
        self.consult(|machine, now, out| {
            let taken = machine.handle(now, event, out);
            taken.expect("clients ask for nothing that is refused");
        });
    }

    /// Lets `f` tell the scheduler of a card something, and carries out what it decides.
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

    /// The engine of a slot comes to the end of something at this time, unless it is stopped before.
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
