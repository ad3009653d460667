// SPDX-License-Identifier: GPL-2.0-or-later
//! Orders, contexts and records: what a driver that uses them owes to the card, and the reverse.

use super::{Checker, Kind, Written};
use crate::event::{OrderFate, Phase, RecordFate, What};
use crate::regs::{Reg, SlotReg, TAG};
use crate::relay::{Order, Reason, Tables};

/// A context that a slot holds or runs, and the digest of it that the card saw last.
#[derive(Clone, Copy, Debug)]
struct Named {
    context: u64,
    seen: Option<u64>,
}

impl Named {
    /// Returns whether `seen` differs from the last digest.
    fn changes(&self, seen: Option<u64>) -> bool {
        self.seen.zip(seen).is_some_and(|(old, new)| old != new)
    }
}

/// What the checker knows of the orders of a slot.
#[derive(Debug, Default)]
pub(super) struct RelayView {
    /// `RELAY[i]`
    pub(super) on: bool,
    held: Option<Named>,
    run: Option<Named>,
    /// A run whose record has not been written.
    unrecorded: Option<u32>,
    /// A record that is not complete in memory, although the card has continued.
    late: Option<u32>,
}

impl RelayView {
    fn has(&self, context: u64) -> bool {
        let named = [self.held, self.run];
        named.iter().flatten().any(|named| named.context == context)
    }

    /// Handles a reset of the slot.
    pub(super) fn reset(&mut self) {
        self.held = None;
        self.run = None;
        self.unrecorded = None;
    }
}

/// An order that arrived, as in [`What::Order`].
struct Arrival {
    slot: usize,
    order: Order,
    run: u32,
    fate: OrderFate,
    seen: Option<u64>,
}

impl Checker {
    pub(super) fn relay_event(&mut self, t: u64, what: &What) {
        match *what {
            What::Order {
                slot,
                order,
                run,
                fate,
                seen,
            } => self.order(&Arrival {
                slot,
                order,
                run,
                fate,
                seen,
            }),
            What::Take { slot, run, context } => self.take(t, slot, run, context),
            What::Load {
                slot,
                seen,
                ref regs,
                ..
            } => self.load(slot, seen, regs),
            What::Record {
                slot,
                run,
                reason,
                next,
                fate,
                seen,
                ..
            } => {
                self.judge_record(slot, run, fate, seen);
                self.end_run(slot, reason, next);
            }
            What::RecordLanded { slot, run, irq } => {
                let view = &mut self.slots[slot];
                view.reasons.irq |= irq;
                view.relay.late.take_if(|late| *late == run);
            }
            What::RecordLost { slot, run } => self.lose_record(slot, run),
            _ => {}
        }
    }

    /// Checks a write to a register that belongs to the relay. Returns whether that was the whole
    /// check.
    pub(super) fn relay_write(&mut self, reg: Reg, val: u64) -> bool {
        match reg {
            Reg::CtxTable | Reg::CtxCount | Reg::Records => self.table_write(reg, val),
            Reg::Slot(slot, SlotReg::Relay) => self.switch(slot, val),
            Reg::Slot(slot, reg) if self.slots[slot].relay.on && reg.is_loaded_by_orders() => {
                let kind = match reg {
                    SlotReg::App(_) => Kind::WriteRunning,
                    _ => Kind::WindowBusy,
                };
                self.violate(
                    kind,
                    format!("slot {slot}: {reg:?} written while RELAY is 1"),
                );
            }
            _ => return false,
        }
        true
    }

    fn table_write(&mut self, reg: Reg, val: u64) {
        if self.slots.iter().any(|view| view.relay.on) {
            self.violate(
                Kind::BadAccess,
                format!("{reg:?} written while RELAY is 1 in a slot"),
            );
        } else if reg == Reg::CtxCount && !Tables::is_count(val) {
            self.violate(Kind::BadAccess, format!("CTX_COUNT {val:#x}"));
        } else if reg == Reg::CtxCount {
            self.contexts = val;
        }
    }

    fn switch(&mut self, slot: usize, val: u64) {
        let phase = self.slots[slot].phase;
        if phase.busy() {
            self.violate(
                Kind::BadAccess,
                format!("slot {slot}: RELAY written while {phase:?}"),
            );
        } else {
            self.slots[slot].relay.on = val & 1 != 0;
        }
    }

    /// Checks that all runs that are over have a record when the status is read.
    pub(super) fn status_read(&mut self, slot: usize) {
        let view = &mut self.slots[slot];
        if view.phase.busy() {
            return;
        }
        if let Some(run) = view.relay.unrecorded.take() {
            self.violate(
                Kind::RecordMissing,
                format!("slot {slot}: the status shows that run {run} ended, without a record"),
            );
        }
    }

    fn order(&mut self, arrival: &Arrival) {
        let Arrival {
            slot, order, fate, ..
        } = *arrival;
        if let Some(why) = self.malformed(arrival) {
            self.violate(
                Kind::OrderBad,
                format!("slot {slot}: order {:#x}: {why}", order.0),
            );
        }
        let accepted = !fate.is_lost();
        if accepted && order.after() != arrival.run as u16 {
            let (after, run) = (order.after(), arrival.run);
            self.violate(
                Kind::StaleOrderTaken,
                format!("slot {slot}: an order for run {after} was accepted in run {run}"),
            );
        }
        if fate == OrderFate::Dropped && order.vacant() && self.slots[slot].in_reset {
            self.violate(
                Kind::StartBusy,
                format!("slot {slot}: an order while in reset"),
            );
        }
        if accepted {
            self.name(arrival);
        }
    }

    /// Returns what is wrong with an order that the driver wrote.
    fn malformed(&self, arrival: &Arrival) -> Option<&'static str> {
        let order = arrival.order;
        let run = self.slots[arrival.slot].relay.run;
        let itself = run.is_some_and(|run| order.context() == Some(run.context));
        if arrival.fate == OrderFate::Off {
            Some("RELAY is 0")
        } else if order.reserved() {
            Some("a reserved bit")
        } else if order.next() > self.contexts {
            Some("NEXT is beyond the table")
        } else if arrival.fate == OrderFate::Held && itself {
            Some("NEXT is the context that runs")
        } else {
            None
        }
    }

    /// Notes that the slot has accepted an order: the slot can reach the context that the order
    /// names.
    fn name(&mut self, arrival: &Arrival) {
        let Arrival {
            slot, order, seen, ..
        } = *arrival;
        let named = order.context().map(|context| Named { context, seen });
        let before = std::mem::replace(&mut self.slots[slot].relay.held, named);
        let Some(Named { context, .. }) = named else {
            return;
        };
        let before = before.filter(|before| before.context == context);
        if before.is_some_and(|before| before.changes(seen)) {
            self.changed(slot, context, "while an order named it");
        }
        let others = self.slots.iter().enumerate();
        let other = others
            .filter(|(other, view)| *other != slot && view.relay.has(context))
            .map(|(other, _)| other)
            .next();
        if let Some(other) = other {
            self.violate(
                Kind::NamedTwice,
                format!("slot {slot}: context {context} is on slot {other} or named there"),
            );
        }
    }

    fn changed(&mut self, slot: usize, context: u64, when: &str) {
        self.violate(
            Kind::ContextChanged,
            format!("slot {slot}: context {context} changed {when}"),
        );
    }

    fn take(&mut self, t: u64, slot: usize, run: u32, context: u64) {
        let view = &mut self.slots[slot];
        let undrained = view.undrained(t);
        let named = view.relay.held.take();
        let seen = named.filter(|n| n.context == context).and_then(|n| n.seen);
        view.relay.run = Some(Named { context, seen });
        view.phase = Phase::Restoring;
        let missing = view.relay.unrecorded.replace(run);
        if let Some(why) = undrained {
            self.violate(
                Kind::StartUndrained,
                format!("slot {slot}: an order was taken, {why}"),
            );
        }
        if let Some(missing) = missing {
            self.violate(
                Kind::RecordMissing,
                format!("slot {slot}: run {run} begins without a record of run {missing}"),
            );
        }
    }

    /// Notes the registers of a context: those that the card has loaded belong to the context's
    /// program.
    fn load(&mut self, slot: usize, seen: u64, regs: &[(u16, u64)]) {
        let view = &mut self.slots[slot];
        view.dirty = false;
        view.controls.clear();
        view.tag = regs.iter().find(|(off, _)| *off == TAG).map_or(0, |r| r.1);
        let owner = Some(view.tag);
        for &(offset, value) in regs.iter().filter(|(off, _)| *off != TAG) {
            view.app.insert(offset, Written { value, owner });
        }
        let named = view.relay.run.as_mut();
        let changed = named.and_then(|named| {
            let changed = named.changes(Some(seen));
            named.seen = Some(seen);
            changed.then_some(named.context)
        });
        let late = view.relay.late;
        if let Some(context) = changed {
            self.changed(slot, context, "before it was loaded");
        }
        if let Some(run) = late {
            self.violate(
                Kind::EarlyLoad,
                format!(
                    "slot {slot}: a context was loaded before all of the record of run {run} came"
                ),
            );
        }
    }

    fn judge_record(&mut self, slot: usize, run: u32, fate: RecordFate, seen: Option<u64>) {
        let view = &mut self.slots[slot];
        view.reasons.irq |= fate != RecordFate::Late;
        let awaited = view.relay.unrecorded.take() == Some(run);
        if matches!(fate, RecordFate::Late | RecordFate::Torn) {
            view.relay.late = Some(run);
        }
        let named = view.relay.run.take();
        // A dead card writes nothing to memory.
        let is_lost = fate == RecordFate::Lost && !self.dead;
        if !awaited || is_lost {
            self.violate(
                Kind::RecordMissing,
                format!("slot {slot}: the record of run {run} is {fate:?}, awaited: {awaited}"),
            );
        }
        if let Some(named) = named.filter(|named| named.changes(seen)) {
            self.changed(slot, named.context, "during its run");
        }
    }

    /// Handles the loss of the rest of a record.
    fn lose_record(&mut self, slot: usize, run: u32) {
        self.slots[slot].relay.late.take_if(|late| *late == run);
        // A dead card writes nothing to memory.
        if !self.dead {
            self.violate(
                Kind::RecordMissing,
                format!(
                    "slot {slot}: memory did not answer for the rest of the record of run {run}"
                ),
            );
        }
    }

    fn end_run(&mut self, slot: usize, reason: Reason, next: u64) {
        let view = &mut self.slots[slot];
        if next == 0 {
            view.relay.held = None;
        }
        let job = view.job.take_if(|_| reason == Reason::Dropped);
        if let Some(job) = job {
            self.snapshots.end(job);
        }
    }

    /// Returns whether an order began the present run of a slot.
    pub(super) fn runs_by_order(&self, slot: usize) -> bool {
        self.slots[slot].relay.run.is_some()
    }
}
