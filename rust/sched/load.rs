// SPDX-License-Identifier: GPL-2.0

//! What writing the registers of a job before its START costs, and which context is charged for it.
//!
//! A slice begins when the registers are written. A job is charged for writing its own registers.
//! The clearing of registers that another context has left behind is charged to that context, or to
//! its group if the context was closed.

use super::event::Cx;
use super::state::Scheduler;
use super::{Action, ContextId, Duration, GroupKey, SlotId, Time};

/// What the caller has done to a slot between Load and Start.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadCost {
    /// The time in which registers that another context had written were cleared. Part of `total`.
    pub clearing: Duration,
    /// Time from Load to Start.
    pub total: Duration,
    /// The context that had written the cleared registers, and its group.
    pub debtor: Option<(ContextId, GroupKey)>,
}

impl Scheduler {
    /// Notes that the START of the job that was just started on `slot` was written at `written` at
    /// the latest.
    pub fn note_start(&mut self, slot: SlotId, written: Time) {
        if self.slots.find(slot).is_some() {
            self.slots[slot].fsm.note_start(written);
        }
    }

    /// Notes the cost of the Load of the job that was just started on `slot`. Must be called before
    /// the scheduler is told of anything else. The slice of the job begins that much later. No-op
    /// if no job runs on the slot.
    pub fn note_load(
        &mut self,
        now: Time,
        slot: SlotId,
        cost: LoadCost,
        out: &mut dyn FnMut(Action),
    ) {
        let Some(run) = self.slots.find(slot).and_then(|slot| slot.fsm.unpaused()) else {
            return;
        };
        let (ctx, class) = (run.ctx.at(), self.slots[slot].class);
        self.slots[slot].fsm.note_load(cost.clearing, cost.total);
        let context = &mut self.entities[ctx];
        context.charged_until = context.charged_until + cost.clearing;
        if let Some((debtor, group)) = cost.debtor {
            self.charge_clearing(class, debtor, group, cost.clearing);
        }
        self.forget_plans(class);
        self.arm_timers(&mut Cx::new(now, out), class);
    }

    fn charge_clearing(&mut self, class: SlotId, id: ContextId, group: GroupKey, span: Duration) {
        if let Ok(debtor) = self.entities.owned(id) {
            self.charge_off_slot(debtor, span);
            self.requeue(debtor);
            return;
        }
        let mut groups = self.groups_of(group).into_iter().flatten();
        let debtor = groups.find(|&group| self.entities[group].kind.class == class);
        if let Some(group) = debtor {
            self.change_group(class, group, |entity| entity.charge(span));
        }
    }
}
