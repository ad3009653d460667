// SPDX-License-Identifier: GPL-2.0

//! Reports of the card, and its timers.

use super::super::card::{Call, Card};
use super::super::values::{Class, Duration, EntityIndex, RunRecord, SlotId, Status, Time};
use super::super::Scheduler;

impl Scheduler {
    /// Handles a read of the status of a slot; on a slot with a relay, one after which the record of
    /// the awaited run was looked for and not found.
    pub fn status<C: Card>(&mut self, card: &mut C, now: Time, id: SlotId, status: Status) {
        if status.is_gone() {
            return self.disconnect(card, now);
        }
        if self.gone || self.present & id.bit() == 0 {
            return;
        }
        let call = &mut Call::new(card, now);
        if self.slot(id).protocol.has_relay() && self.relay_status(call, id, status) {
            return self.finish(call);
        }
        let protocol = &mut self.slots[id.index()].protocol;
        let change = protocol.status(call, status);
        self.follow_report(call, id, change);
        self.finish(call);
    }

    /// Settles the contexts that were named for a slot with a relay by its status. Returns whether
    /// that is all that the status is good for.
    fn relay_status<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        id: SlotId,
        status: Status,
    ) -> bool {
        if !self.slot(id).protocol.still_shows(status) {
            return false;
        }
        self.settle_replaced(call, id);
        let slot = self.slot(id);
        let stopping = slot.protocol.stopping();
        let is_last = stopping.is_some_and(|stop| stop.last);
        let Some(next) = slot.next() else {
            return false;
        };
        if is_last {
            // The successor is withdrawn before the slot is reset.
            self.withdraw(call, id);
            return true;
        }
        if self.frozen || self.is_unwanted(id, next.ctx) {
            self.withdraw(call, id);
        }
        false
    }

    /// Returns the context on a slot with a relay and the number of its run. The caller looks for the
    /// record of this run at each interrupt and after each status read. `None`: none is awaited.
    pub fn awaited_run(&self, slot: SlotId) -> Option<(super::super::values::ContextId, u32)> {
        self.find_record(slot)?.protocol.awaited_run()
    }

    /// Handles the record of the run on a slot with a relay ([`Scheduler::awaited_run`]).
    pub fn record<C: Card>(&mut self, card: &mut C, now: Time, id: SlotId, record: &RunRecord) {
        let awaited = self.awaited_run(id);
        if self.gone || awaited.is_none_or(|(_, run)| run != record.run) {
            return;
        }
        let call = &mut Call::new(card, now);
        self.follow_record(call, id, record);
        self.finish(call);
    }

    /// Handles the firing of a slot's timer. It may fire early, late, or without cause.
    pub fn timer<C: Card>(&mut self, card: &mut C, now: Time, id: SlotId) {
        if self.gone || self.present & id.bit() == 0 {
            return;
        }
        let call = &mut Call::new(card, now);
        self.slots[id.index()].note_fired(now);
        self.touch(id);
        let class = self.slot(id).class;
        if class == Class::of(id) && self.class_due(class) <= now {
            self.unthrottle_due(now, class);
            self.hint_timer(call, class);
            self.budget_timer(call, class);
        }
        self.slot_timer(call, id);
        self.finish(call);
    }

    fn slot_timer<C: Card>(&mut self, call: &mut Call<'_, C>, id: SlotId) {
        // If the slice is over, the PAUSE that ends it makes a poll of the status unnecessary.
        self.check_run(call, id);
        let run = self.slot(id).protocol.run();
        let timeslice = run.map_or(Duration::ZERO, |run| {
            self.contexts[EntityIndex::of(run.ctx)].params.timeslice
        });
        let protocol = &mut self.slots[id.index()].protocol;
        let change = protocol.timer(call, timeslice);
        self.follow_report(call, id, change);
        let slot = self.slot(id);
        if slot.protocol.is_vacant() {
            return self.fill(call, id);
        }
        let is_stopped = slot.protocol.unstopped().is_none();
        let is_late = slot.protocol.is_busy() && is_stopped && !self.is_leaving(id);
        if is_late && slot.next().is_some() {
            // The slot does not answer in time: its successor need not wait for it.
            self.withdraw(call, id);
            return;
        }
        let has_relay = slot.protocol.has_relay();
        let stop = slot.protocol.stopping();
        if stop.is_some_and(|stop| stop.boundary || has_relay) {
            // The wait for a boundary may be over.
            self.commit(call, id);
        }
    }

    /// Notes that times on slots until `now` are shown to users, of contexts, groups or slots. What
    /// is shown later is never less, even if a record says that a run began later than the host
    /// assumed.
    pub fn note_shown(&mut self, now: Time) {
        self.charge_all(now);
    }
}
