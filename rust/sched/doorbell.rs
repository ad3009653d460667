// SPDX-License-Identifier: GPL-2.0

//! Job queues in a program's memory: an engine that finds its queue empty leaves its slot by itself, and a doorbell brings
//! it back.
//!
//! The program posts, and rings if the engine has said in memory that it is leaving; the engine says so, and looks once more
//! before it leaves (docs/queues.md). So a job that was posted is seen by the engine before it leaves, or its doorbell comes
//! here: while the engine is still on its slot, which is then remembered, or after it has left.

use core::ops::DerefMut;

use super::machine::{Machine, Out};
use super::{ContextId, Entry, JobState, Refusal, SlotId, Time};

/// What a job on a slot is to do when it leaves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Parting {
    /// Go on when it is its turn; with an empty queue, wait for the doorbell.
    #[default]
    Free,
    /// The same, but the doorbell has been rung: look at the queue again.
    Rung,
    /// Be held.
    Held,
}

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// What a job on `slot` is to do when the hold that was asked for is taken back: a doorbell that the hold has hidden
    /// counts again, and without one the queue is looked at once too often.
    pub(super) fn parting_unheld(&self, slot: Option<SlotId>) -> Parting {
        match slot.and_then(|id| self.slot(id)) {
            Some(slot) if slot.config.queues => Parting::Rung,
            _ => Parting::Free,
        }
    }

    /// Doorbell: there is work in the queue of `ctx`. What waits or is held looks at its queue anyway when it runs.
    pub(super) fn ring(
        &mut self,
        now: Time,
        ctx: ContextId,
        out: &mut Out<'_>,
    ) -> Result<(), Refusal> {
        let state = self.slab.owned(ctx)?.state;
        if self.gone {
            return Err(Refusal::Gone);
        }
        match state {
            JobState::Idle | JobState::Done | JobState::Failed(_) => Err(Refusal::NoJob),
            JobState::Queued | JobState::Held => Ok(()),
            JobState::Empty => {
                self.resume(now, ctx)?;
                self.press_all(now, out);
                Ok(())
            }
            JobState::Running => {
                if let Some(entry) = self.slab.get_mut(ctx) {
                    entry.parting = match entry.parting {
                        Parting::Held => Parting::Held,
                        Parting::Free | Parting::Rung => Parting::Rung,
                    };
                }
                Ok(())
            }
        }
    }
}
