// SPDX-License-Identifier: GPL-2.0

//! Cards with a relay: orders reach them, and what their runs leave is told.

use fermata_sched_host::sched::{Action, LeftReason, NextRun, Order};

use super::{slot_id, Sim, What};
use crate::relay::{Effect, Left};

impl Sim<'_> {
    /// Carries out what concerns a slot with a relay. STARTs and PAUSEs are for reports there.
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
            // The order was posted just now: members of gangs are not named before their slots are vacant.
            Action::Start { ctx, .. } => {
                let client = self.card.clients[ctx.index()];
                self.note_start(client);
            }
            Action::Pause { .. } => {}
            _ => unreachable!("a relay closes its windows itself"),
        }
    }

    /// An order reaches a slot.
    pub(super) fn order(&mut self, slot: u8, order: Order) {
        let relay = self.card.hardware.relay();
        let effect = relay.order(self.now, slot.into(), order);
        self.follow(slot, effect);
    }

    /// The engine of a slot comes to the end of something, unless the epoch is over.
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

    /// A slot goes on with a context.
    fn take(&mut self, slot: u8, next: NextRun) {
        let id = self.card.clients[next.ctx.index()];
        let work = self.use_snapshot(id, next.resume);
        let relay = self.card.hardware.relay();
        let at = relay.take(self.now, slot.into(), next, work);
        self.await_relay(slot, at);
    }

    /// Notes what a run has left of the job.
    fn note_left(&mut self, left: &Left) {
        let id = self.card.clients[left.ctx.index()];
        self.note_work(id, left.work);
        let is_saved = matches!(left.reason, LeftReason::Paused | LeftReason::NotRun);
        self.clients[id as usize].saved = is_saved;
        if left.reason == LeftReason::Paused {
            self.note_save();
        }
    }

    /// Gives the records that a slot has left, and that are awaited, to the scheduler. `false`: there is none.
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
