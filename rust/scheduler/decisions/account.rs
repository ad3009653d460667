// SPDX-License-Identifier: GPL-2.0

//! Who is charged for time on slots: a context, from its START to the observed end of its run. Its
//! restores are its own cost, and so are its saves at the end of a slice. An earlier save is paid
//! for, in virtual time, by the context for which the job is stopped.
//!
//! Such a save is charged once, when the run is over and it is known who pays. Nothing is given back
//! but what was paid ahead, and that before any weight changes: each change of a weight charges
//! first.

use super::super::slot::Over;
use super::super::values::{signed, Class, Duration, EntityIndex, Params, SlotId, Time};
use super::super::Scheduler;
use super::Accounts;

impl Scheduler {
    /// Charges the run on a slot until now.
    pub(in super::super) fn charge(&mut self, now: Time, id: SlotId) {
        self.charge_to(now, now, id);
    }

    /// Charges the run on a slot until now; in virtual time until `then`, when it is expected to
    /// end. What it does not use of that is given back at the next charge.
    pub(super) fn charge_to(&mut self, now: Time, then: Time, id: SlotId) {
        let slot = &mut self.slots[id.index()];
        let Some(run) = slot.protocol.run() else {
            return;
        };
        let (ctx, started) = (run.ctx, run.started);
        let rest = now.since(started).less(slot.accounts.charged);
        // The save for another context is charged once, when it is known who pays.
        let end = match (run.stop.as_ref(), slot.accounts.payer) {
            (Some(stop), Some(_)) => then.min(stop.at),
            _ => then,
        };
        let own = end.since(started);
        let paid = core::mem::replace(&mut slot.accounts.paid, own);
        slot.accounts.charged += rest;
        let at = EntityIndex::of(ctx);
        self.note_run(at, rest);
        self.pay(at, own, paid);
    }

    fn note_run(&mut self, at: EntityIndex, span: Duration) {
        if span != Duration::ZERO {
            self.contexts[at].run += span;
            if let Some(group) = self.queue.group_of(at) {
                self.groups.note_run(group, span);
            }
        }
    }

    /// Makes the virtual time that a context has paid for its run `own`; it was `paid`.
    fn pay(&mut self, at: EntityIndex, own: Duration, paid: Duration) {
        if self.is_reserved(at) {
            return self.spend_budget(at, signed(own).saturating_sub(signed(paid)));
        }
        match own >= paid {
            true => self.queue.charge(at, own.less(paid)),
            false => self.queue.refund(at, paid.less(own)),
        }
    }

    /// Charges all runs of a class until now.
    pub(in super::super) fn charge_class(&mut self, now: Time, class: Class) {
        for id in super::super::values::slots_in(self.classes[class.at()].slots) {
            self.charge(now, id);
        }
    }

    /// Charges all runs until now.
    pub(in super::super) fn charge_all(&mut self, now: Time) {
        for id in self.ids() {
            self.charge(now, id);
        }
    }

    /// Settles the accounts of a run that is over.
    pub(super) fn settle(&mut self, now: Time, id: SlotId, accounts: Accounts, over: &Over) {
        let at = EntityIndex::of(over.ctx);
        let rest = over.span.less(accounts.charged);
        self.note_run(at, rest);
        let context = &mut self.contexts[at];
        context.saved = over.saved;
        context.preemptions += u64::from(over.saved);
        // A turn lasts until the job is off its slot: a boundary may be far away.
        let turn = context.params.timeslice + over.save;
        let payer = accounts.payer.filter(|_| over.saved);
        let payer = payer.and_then(|payer| self.contexts.find(payer));
        let save = payer.map_or(Duration::ZERO, |_| over.save.min(over.span));
        self.pay(at, over.span.less(save), accounts.paid);
        if let Some(granted) = accounts.granted {
            // Limits are paid by their owner, as virtual time is.
            self.give_back_grant(now, at, granted, over.span.less(save));
        }
        if let Some(payer) = payer {
            self.queue.charge(payer, save);
            self.spend(now, payer, save);
        }
        self.queue.stopped(id, at, turn);
    }

    /// Returns the slice of a context on a slot. A slice is at least as long as two saves and
    /// restores, but for this reason no longer than [`Params::SLICE_FLOOR_MAX`].
    pub(in super::super) fn slice(&self, id: SlotId, at: EntityIndex, boosted: bool) -> Duration {
        let mut slice = self.queue.slice(&self.contexts[at].params);
        if boosted {
            slice = slice.min(self.boost.quarter());
        }
        let floor = self.slot(id).protocol.switch_time().doubled();
        slice.max(floor.min(Params::SLICE_FLOOR_MAX))
    }

    /// Returns when the slice of the run on a slot ends.
    #[inline]
    pub(in super::super) fn slice_end(&self, id: SlotId) -> Time {
        let slot = self.slot(id);
        slot.protocol.run().map_or(Time::NEVER, |run| {
            run.started + run.extra + slot.accounts.slice
        })
    }

    /// Notes that the slice of the run of a context on a slot may have another length now.
    pub(in super::super) fn renew_slice(&mut self, id: SlotId, at: EntityIndex) {
        let slice = self.slice(id, at, self.slot(id).accounts.boosted);
        self.slots[id.index()].accounts.slice = slice;
    }
}
