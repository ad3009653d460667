// SPDX-License-Identifier: GPL-2.0-or-later
//! An engine that takes jobs from a queue, between its steps: tells of completions, and leaves the
//! slot when there is no work.

use super::bus::SlotBus;
use super::state::Phase;
use super::worker::sleep;
use super::Slot;
use crate::engine::{Coalescing, Engine, Refused};
use crate::event::What;
use crate::event::{now_ns, us};
use std::time::Duration;

/// How long an engine without work sleeps between two looks while it lingers, and where it cannot
/// leave.
const LOOK: Duration = Duration::from_micros(20);
const NAP: Duration = Duration::from_micros(100);

/// What the slot remembers of the engine from step to step.
pub(super) struct Watch {
    coalescing: Option<Coalescing>,
    /// Completions that the driver was told of.
    told: u64,
    /// When the first completion was seen that the driver was not told of.
    untold_since: Option<u64>,
    idle_since: Option<u64>,
}

impl Watch {
    /// Completions from before the last save of the engine were told by the save.
    pub(super) fn new(slot: &Slot, engine: &dyn Engine) -> Self {
        Self {
            coalescing: engine.coalescing().filter(|_| slot.fermata()),
            told: engine.completed(),
            untold_since: None,
            idle_since: None,
        }
    }

    /// Tells of completions, when it is time.
    pub(super) fn tell(&mut self, slot: &Slot, engine: &dyn Engine, bus: &mut SlotBus<'_>) {
        let Some(n) = self.due(engine.completed(), now_ns()) else {
            return;
        };
        bus.flush(true);
        slot.completion_event(n);
    }

    /// Tells of all completions that were not told, because the card is stopped.
    pub(super) fn tell_all(&mut self, slot: &Slot, engine: &dyn Engine, bus: &mut SlotBus<'_>) {
        let untold = engine.completed().wrapping_sub(self.told);
        if self.coalescing.is_some() && untold != 0 {
            bus.flush(true);
            slot.completion_event(untold);
        }
    }

    /// How many completions an event tells of now.
    fn due(&mut self, completed: u64, now: u64) -> Option<u64> {
        let coalescing = self.coalescing?;
        let untold = completed.wrapping_sub(self.told);
        if untold == 0 {
            return None;
        }
        let since = *self.untold_since.get_or_insert(now);
        let due = untold >= coalescing.count || now.saturating_sub(since) >= us(coalescing.us);
        due.then(|| {
            self.told = completed;
            self.untold_since = None;
            untold
        })
    }

    /// Waits if there is no work. Returns whether the engine has left its queue, and is to be saved
    /// as EMPTY.
    pub(super) fn rest(
        &mut self,
        slot: &Slot,
        engine: &mut dyn Engine,
        bus: &mut SlotBus<'_>,
    ) -> Result<bool, Refused> {
        if !engine.idle() {
            self.idle_since = None;
            return Ok(false);
        }
        bus.settle();
        let now = now_ns();
        let since = *self.idle_since.get_or_insert(now);
        let state = slot.lock();
        let lingers = us(state.settings.linger_us).saturating_sub(now.saturating_sub(since));
        let stays = state.aborted() || state.pause.is_some() || state.misbehaviour.hang;
        if slot.fermata() && lingers == 0 && !stays {
            drop(state);
            self.idle_since = None;
            return Ok(engine.leave(bus)? && slot.begin_save());
        }
        let nap = if slot.fermata() {
            LOOK.min(Duration::from_nanos(lingers.max(1)))
        } else {
            NAP
        };
        // What the registers want is looked at before the next step.
        drop(sleep(slot, state, nap));
        Ok(false)
    }
}

impl Slot {
    /// Begins the save of an engine that stops by itself. Returns false if a reset came first.
    fn begin_save(&self) -> bool {
        let mut state = self.lock();
        let goes = !state.aborted();
        if goes {
            state.stops(now_ns());
            state.phase = Phase::Saving;
            self.tell_phase(&state);
        }
        goes
    }

    /// Tells the driver of `n` completions while the engine runs.
    fn completion_event(&self, n: u64) {
        let mut state = self.lock();
        if state.aborted() {
            return;
        }
        state.events = state.events.wrapping_add(1);
        self.host.recorder.record(What::Completions {
            slot: self.index,
            n,
        });
        self.post_events(&state);
        self.interrupt(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(count: u64, us: u64) -> Watch {
        Watch {
            coalescing: Some(Coalescing { count, us }),
            told: u64::MAX,
            untold_since: None,
            idle_since: None,
        }
    }

    #[test]
    fn an_event_comes_by_count_or_by_time() {
        let mut watch = watch(3, 10);
        assert_eq!(watch.due(u64::MAX, 0), None);
        assert_eq!(watch.due(0, 1_000), None);
        assert_eq!(watch.due(1, 2_000), None);
        assert_eq!(watch.due(2, 3_000), Some(3), "by count");
        assert_eq!(watch.due(2, 900_000), None, "all are told");
        assert_eq!(watch.due(3, 900_000), None, "time counts from here");
        assert_eq!(watch.due(3, 909_999), None);
        assert_eq!(watch.due(4, 910_000), Some(2), "by time");
    }

    #[test]
    fn no_time_is_at_once_and_no_count_is_never() {
        assert_eq!(watch(5, 0).due(0, 7), Some(1));
        assert_eq!(watch(5, u64::MAX).due(3, u64::MAX), None);
        let never = Watch {
            coalescing: None,
            ..watch(1, 0)
        };
        assert_eq!({ never }.due(9, u64::MAX), None);
    }
}
