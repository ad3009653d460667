// SPDX-License-Identifier: GPL-2.0

//! A slot of a card that loses its state, or is gone.

use super::event::Cx;
use super::run::Run;
use super::slot_fsm::{After, Outcome, Reset, RunOver, SlotFsm, State};
use super::{Action, ContextId, Duration, Failure, Phase, Status, Time};

/// How long the status of a slot whose run was lost is not read: the caller resets it.
const LOST_WAIT: Duration = Duration::from_ms(10_000);

impl SlotFsm {
    /// The card cannot be asked any more: the run is lost. The caller resets the slot, and calls
    /// [`SlotFsm::end_lost_run`].
    pub(super) fn cut_off(&mut self, now: Time) -> Option<RunOver> {
        if let State::Resetting(reset) = &mut self.state {
            (reset.settling, reset.next) = (true, now + LOST_WAIT);
        }
        let over = self.lose_run(now)?;
        self.idle_since = None;
        self.enter(State::Resetting(Reset {
            ctx: over.ctx,
            outcome: Outcome::Failed(Failure::Snapshot),
            settling: true,
            released: false,
            tries: 0,
            next: now + LOST_WAIT,
        }));
        Some(over)
    }

    /// Measures the run on the slot, of which nothing is saved.
    fn lose_run(&mut self, now: Time) -> Option<RunOver> {
        let &Run { ctx, started, .. } = self.run()?;
        self.stats.busy += now.since(started);
        Some(RunOver {
            ctx,
            saved: false,
            save: None,
            paused_at: None,
        })
    }

    /// The caller has reset the slot: whatever was on it is off.
    pub(super) fn end_lost_run(&mut self) -> After {
        let State::Resetting(Reset { ctx, outcome, .. }) = self.state else {
            return After::Pending;
        };
        self.enter(State::Vacant);
        After::Vacant { ctx, outcome }
    }

    /// The card was set up anew, and the slot shows `status`. A slot that is not idle is
    /// quarantined; one that was is used again if it is idle. Returns whether the use of the slot
    /// has changed, and whose memory is out of its reach.
    pub(super) fn renew(&mut self, cx: &mut Cx<'_>, status: Status) -> (bool, Option<ContextId>) {
        let idle = status.phase() == Phase::Idle;
        if !matches!(self.state, State::Vacant | State::Quarantined(_)) {
            return (false, None);
        }
        self.count = status.start_count();
        self.window = None;
        match (self.state, idle) {
            (State::Quarantined(stuck), true) => {
                self.enter(State::Vacant);
                (true, stuck)
            }
            (State::Vacant, false) => {
                self.quarantine(cx, None);
                (true, None)
            }
            _ => (false, None),
        }
    }

    /// The card is gone. Returns the run that has ended by that.
    pub(super) fn disconnect(&mut self, cx: &mut Cx<'_>) -> Option<RunOver> {
        let over = self.lose_run(cx.now);
        self.state = State::Gone;
        self.window = None;
        if self.timer.take().is_some() {
            cx.act(Action::Disarm { slot: self.id });
        }
        over
    }
}
