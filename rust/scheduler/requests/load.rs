// SPDX-License-Identifier: GPL-2.0

//! The cost of writing a job's registers before its START, and which context is charged for it.
//!
//! A slice begins when the registers are written. A job is charged for writing its own registers.
//! The clearing of registers that another context has left behind is charged to that
//! context, or to its group if the context was closed.

use super::super::card::{Call, Card};
use super::super::values::{LoadCost, SlotId, Time};
use super::super::Scheduler;

impl Scheduler {
    /// Notes that the START of the job that was just started on `slot` was written at `written` at
    /// the latest.
    pub fn note_start(&mut self, slot: SlotId, written: Time) {
        if self.present & slot.bit() != 0 {
            self.slots[slot.index()].protocol.note_start(written);
        }
    }

    /// Notes the cost of loading the registers of the job that was just started on `slot`. Must be
    /// called before the scheduler is told of anything else. The slice of the job begins that much
    /// later. No-op if no job runs on the slot.
    pub fn note_load<C: Card>(&mut self, card: &mut C, now: Time, slot: SlotId, cost: LoadCost) {
        let runs = self.find_record(slot);
        if runs.and_then(|slot| slot.protocol.unstopped()).is_none() {
            return;
        }
        let call = &mut Call::new(card, now);
        let record = &mut self.slots[slot.index()];
        record.protocol.note_load(cost.clearing, cost.total);
        record.delay(cost.total);
        if let Some((debtor, group)) = cost.debtor {
            let class = self.slot(slot).class;
            match (self.owned(debtor), self.groups.find(group)) {
                (Ok(debtor), _) => self.queue.charge(debtor, cost.clearing),
                (Err(_), Some(group)) => {
                    let groups = &self.groups;
                    self.queue.charge_group(groups, group, class, cost.clearing);
                }
                (Err(_), None) => {}
            }
        }
        self.touch(slot);
        self.finish(call);
    }
}
