// SPDX-License-Identifier: GPL-2.0

//! What writing the registers of a job costs before its START, and who is charged for that.
//!
//! A slice begins when the registers are written. A job is charged for the writing of its own registers; the clearing of those that
//! another context has left behind is charged to that context, or to its group once the context was closed.

use core::ops::DerefMut;

use super::machine::{Machine, Out};
use super::slot::State;
use super::{Action, ContextId, Duration, Entry, GroupKey, SlotId, Time};

/// What the caller has done to a slot between Load and Start.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadCost {
    /// Time in which registers were cleared that another context had written. Part of `total`.
    pub clearing: Duration,
    /// Time from Load to Start.
    pub total: Duration,
    /// Who had written the registers that were cleared.
    pub debtor: Option<(ContextId, GroupKey)>,
}

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// Notes what the Load of the job cost that was just started on `slot`, before the machine is told of anything else. Its slice
    /// begins that much later. Nothing happens if no job runs there.
    pub fn note_load(
        &mut self,
        now: Time,
        slot: SlotId,
        cost: LoadCost,
        out: &mut impl FnMut(Action),
    ) {
        let out: &mut Out<'_> = out;
        let Some(found) = self.slot_mut(slot) else {
            return;
        };
        let State::Running(run) = &mut found.state else {
            return;
        };
        run.started = run.started + cost.clearing;
        run.extra += Duration::from_ns(cost.total.as_ns().saturating_sub(cost.clearing.as_ns()));
        run.look = run.look + cost.total;
        found.entered = true;
        let ctx = run.ctx;
        if let Some(entry) = self.slab.get_mut(ctx) {
            entry.since = entry.since + cost.clearing;
        }
        if let Some((debtor, group)) = cost.debtor {
            self.charge_clearing(slot, debtor, group, cost.clearing);
        }
        self.arm(now, slot, out);
    }

    fn charge_clearing(&mut self, slot: SlotId, ctx: ContextId, group: GroupKey, span: Duration) {
        if self.slab.owned(ctx).is_ok() {
            self.pay(ctx, span);
            self.place_again(ctx);
            return;
        }
        let Some(index) = self.slot(slot).map(|slot| slot.queue) else {
            return;
        };
        let record = self
            .records_of(group)
            .find(|&at| self.slab.at(at).is_some_and(|record| record.queue == index));
        self.change_group(record, |record| record.advance(span));
    }
}
