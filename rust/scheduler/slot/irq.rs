// SPDX-License-Identifier: GPL-2.0

//! The protocol of a slot of the irq profile: its status counts the STARTs that the slot has
//! accepted, and PAUSED and FINISH come after the last DMA.

use super::super::values::{Phase, Status};
use super::run::{Run, Seen};
use super::Protocol;

impl Protocol {
    /// Returns what a status says of a run. The count tells a status of this run from an older one.
    /// A read that follows the START cannot show an older one, unless the card did not take the
    /// START.
    #[inline]
    pub(super) fn see_irq(&self, run: &Run, status: Status) -> Seen {
        if status.start_count() != self.count {
            return match run.suspect {
                true => Seen::Violation,
                false => Seen::Stale,
            };
        }
        if status.phase() == Phase::Running {
            return Seen::Running;
        }
        self.see_end(status, run.stop.is_some())
            .map_or(Seen::Violation, Seen::Over)
    }
}
