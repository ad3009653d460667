// SPDX-License-Identifier: GPL-2.0

//! Cooperative contexts: their jobs are stopped where they say, at the next boundary of the engine's work.
//!
//! From the PAUSE until the boundary the job works on. That time is its own, whoever it makes way for, and tells nothing
//! about what a save takes on the slot. The preempt timeout bounds it.

use core::ops::DerefMut;

use super::machine::Machine;
use super::{ContextId, Entry, SlotId};

/// Where the engine of a slot can stop for a PAUSE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stops {
    /// At any point, and it knows no boundaries: its contexts are never cooperative.
    #[default]
    Anywhere,
    /// At any point, or at its next boundary if told so.
    BoundaryToo,
    /// At a boundary only: its contexts always are cooperative.
    BoundaryOnly,
}

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// Is the job of `ctx` stopped at a boundary when it is on `slot`?
    pub(super) fn stops_at_boundary(&self, slot: SlotId, ctx: ContextId) -> bool {
        let cooperative = || {
            self.slab
                .get(ctx)
                .is_some_and(|entry| entry.params.cooperative)
        };
        match self.slot(slot).map(|slot| slot.config.stops) {
            Some(Stops::BoundaryOnly) => true,
            Some(Stops::BoundaryToo) => cooperative(),
            Some(Stops::Anywhere) | None => false,
        }
    }
}
