// SPDX-License-Identifier: GPL-2.0

//! Copies of histograms, which are made under the card's lock, a kilobyte at a time.

use super::{config::refused, Card};
use crate::{
    measure::{ContextHistograms, Histogram, SlotHistograms},
    sched::{ContextId, SlotId},
};
use kernel::prelude::*;

impl Card {
    /// Copies one of the histograms of `slot`.
    pub(crate) fn copy_of_slot(
        &self,
        slot: SlotId,
        which: fn(&SlotHistograms) -> &Histogram,
        copy: &mut Histogram,
    ) {
        let state = self.state.lock();
        copy.clone_from(which(&state.slots[slot].histograms));
    }

    /// Copies one of the histograms of a context. `ENODEV`: the card is gone, or the context
    /// closed.
    pub(crate) fn copy_of_context(
        &self,
        ctx: ContextId,
        which: fn(&ContextHistograms) -> &Histogram,
        copy: &mut Histogram,
    ) -> Result {
        let mut state = self.state.lock();
        // A context that is being closed is in the table still.
        state.scheduler.params(ctx).map_err(refused)?;
        let meter = state.context(ctx).ok_or(ENODEV)?.meter();
        copy.clone_from(which(&meter.histograms));
        Ok(())
    }
}
