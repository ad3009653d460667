// SPDX-License-Identifier: GPL-2.0

//! What is measured while the scheduler works, and who asks for it.

use super::{config::refused, now, tenant_of, Card, State};
use crate::{
    measure::{arriving, Cause, ContextHistograms, Histogram, SlotHistograms},
    measurement::Measurements,
    sched::{Action, ContextId, Event, SlotId, Time},
};
use kernel::prelude::*;

impl Measurements {
    /// The scheduler wanted `action`, and that was done.
    pub(super) fn note(&mut self, cause: &Cause, action: Action) {
        self.stopwatch.note(&mut self.slots, cause, action, now);
    }
}

impl State {
    /// Notes that a context arrives by `event`, before the scheduler is told of that: which one.
    pub(super) fn arrive(&mut self, at: Time, event: &Event) -> Option<ContextId> {
        let ctx = arriving(&self.machine, event)?;
        self.tenant(ctx)?.meter().arrive(at);
        Some(ctx)
    }

    /// It has not arrived: it was refused.
    pub(super) fn withdraw(&mut self, ctx: ContextId) {
        if let Some(tenant) = self.tenant(ctx) {
            tenant.meter().withdraw();
        }
    }

    /// After the scheduler was called: what was measured of contexts.
    pub(super) fn settle(&mut self, cause: &Cause) {
        let Self {
            machine,
            tenants,
            measurements,
            ..
        } = self;
        let Measurements { slots, stopwatch } = &mut **measurements;
        stopwatch.settle(slots, cause, machine, |ctx, told| {
            tenant_of(tenants, ctx)?.meter().tell(told)
        });
    }
}

/// Copies of histograms. They are made under the card's lock, a kilobyte at a time.
impl Card {
    /// One of the histograms of `slot`.
    pub(crate) fn copy_of_slot(
        &self,
        slot: SlotId,
        which: fn(&SlotHistograms) -> &Histogram,
        copy: &mut Histogram,
    ) {
        let state = self.state.lock();
        copy.clone_from(which(&state.measurements.slots[slot.index()]));
    }

    /// One of the histograms of a context. `ENODEV`: the card is gone, or the context closed.
    pub(crate) fn copy_of_context(
        &self,
        ctx: ContextId,
        which: fn(&ContextHistograms) -> &Histogram,
        copy: &mut Histogram,
    ) -> Result {
        let mut state = self.state.lock();
        // One that is being closed has a tenant still.
        state.machine.params(ctx).map_err(refused)?;
        let meter = state.tenant(ctx).ok_or(ENODEV)?.meter();
        copy.clone_from(which(&meter.histograms));
        Ok(())
    }
}
