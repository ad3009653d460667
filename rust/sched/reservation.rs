// SPDX-License-Identifier: GPL-2.0

//! A slot that is kept vacant for announced work, or will be once its job has left it.

use super::{ContextId, Duration, Time};

/// The reservation of a slot for a hint, and what it has cost until now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotReservation {
    pub(super) ctx: ContextId,
    /// Another context took the slot meanwhile; the cost until then is not forgotten.
    pub(super) taken: bool,
    /// The job on the slot was told to pause for it.
    pub(super) made: bool,
    /// Since when the slot has idled while a context that could use it waits.
    idle_since: Option<Time>,
    /// How long the slot idled before that.
    idle: Duration,
    /// The time of the save that was made for the reservation.
    pub(super) save: Duration,
}

impl SlotReservation {
    pub(super) const fn new(ctx: ContextId) -> Self {
        Self {
            ctx,
            taken: false,
            made: false,
            idle_since: None,
            idle: Duration::ZERO,
            save: Duration::ZERO,
        }
    }

    /// Returns how long the slot has idled while a context waited.
    pub(super) fn idle_until(&self, now: Time) -> Duration {
        let idle = self.idle_since.map(|since| now.since(since));
        self.idle + idle.unwrap_or_default()
    }

    /// Notes whether the slot idles from now on while a context waits.
    pub(super) fn note_idle(&mut self, now: Time, idles: bool) {
        self.idle = self.idle_until(now);
        self.idle_since = idles.then_some(now);
    }

    /// Notes that another context takes the slot, and benefits from the save, or that no context
    /// may have the slot.
    pub(super) fn take(&mut self, now: Time) {
        *self = Self {
            taken: true,
            idle: self.idle_until(now),
            ..Self::new(self.ctx)
        };
    }

    /// Notes that the preempted job was saved in `span`.
    pub(super) fn note_save(&mut self, span: Duration) {
        if self.made {
            self.save = span.max(Duration::from_ns(1));
        }
    }
}
