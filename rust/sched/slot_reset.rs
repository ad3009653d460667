// SPDX-License-Identifier: GPL-2.0

//! Resetting a slot, and what happens to a slot of a card that loses its state.
//!
//! irq and relay: hold, read the status (this read is the flush: it returns after the last DMA), IDLE,
//! release. Needed only when a job is stopped by force. Base: hold, read the status (the driver
//! pushes the reset to the card by another read, and reports IDLE, since the slot answers none),
//! settle, release, read the status, IDLE. Needed after every job, because PAUSED and FINISH come
//! before the last DMA, and because a stale status must not be taken for the status of the next job.

use super::event::Cx;
use super::run::Run;
use super::slot_fsm::{After, Outcome, Progress, Reset, RunOver, SlotFsm, State};
use super::{Action, ContextId, Duration, Failure, Phase, Status, Time};

/// If the status after a reset is not IDLE, or does not come, the reset is repeated after this
/// time.
const RESET_RETRY: Duration = Duration::from_ms(1);
/// How often a reset is repeated at most.
const RESETS_MAX: u8 = 4;
/// How long the status of a slot whose run was lost is not read, because the caller resets the
/// slot.
const LOST_WAIT: Duration = Duration::from_ms(10_000);

impl SlotFsm {
    pub(super) fn reset_status(
        &mut self,
        cx: &mut Cx<'_>,
        reset: Reset,
        status: Status,
    ) -> Progress {
        let settle = self.config.settle();
        if let (Some(settle), false) = (settle, reset.settling) {
            self.enter(State::Resetting(Reset {
                settling: true,
                next: cx.now + settle,
                ..reset
            }));
            return Progress::NONE;
        }
        // Anything but IDLE is left to the timer, which tries again.
        if status.phase() != Phase::Idle || (settle.is_some() && !reset.released) {
            return Progress::NONE;
        }
        if settle.is_none() {
            // It is known now whether the card took the last START.
            self.count = status.start_count();
            self.write_reset(cx, reset.ctx, false);
        }
        self.enter(State::Vacant);
        Progress {
            over: None,
            after: After::Vacant {
                ctx: reset.ctx,
                outcome: reset.outcome,
            },
        }
    }

    pub(super) fn reset_timer(&mut self, cx: &mut Cx<'_>, reset: Reset) -> Progress {
        if cx.now < reset.next {
            return Progress::NONE;
        }
        if reset.settling && !reset.released {
            self.write_reset(cx, reset.ctx, false);
            self.enter(State::Resetting(Reset {
                released: true,
                next: cx.now + RESET_RETRY,
                ..reset
            }));
            self.read_status(cx);
        } else if reset.tries < RESETS_MAX {
            self.hold_reset(cx, reset.ctx, reset.outcome, reset.tries + 1);
        } else {
            // The job's memory may still change, even if the job was saved or finished.
            let outcome = match reset.outcome {
                Outcome::Failed(failure) => Outcome::Failed(failure),
                _ => Outcome::Failed(Failure::Protocol),
            };
            let ctx = reset.ctx;
            self.quarantine(cx, Some(ctx));
            return Progress {
                over: None,
                after: After::Quarantined { ctx, outcome },
            };
        }
        Progress::NONE
    }

    fn write_reset(&mut self, cx: &mut Cx<'_>, ctx: ContextId, hold: bool) {
        cx.act(Action::Reset {
            slot: self.id,
            ctx,
            hold,
        });
    }

    pub(super) fn hold_reset(
        &mut self,
        cx: &mut Cx<'_>,
        ctx: ContextId,
        outcome: Outcome,
        tries: u8,
    ) {
        self.write_reset(cx, ctx, true);
        self.enter(State::Resetting(Reset {
            ctx,
            outcome,
            settling: false,
            released: false,
            tries,
            next: cx.now + RESET_RETRY,
        }));
        self.read_status(cx);
    }

    /// Takes the slot out of use; `stuck`: the context whose memory the slot may still reach.
    pub(super) fn quarantine(&mut self, cx: &mut Cx<'_>, stuck: Option<ContextId>) {
        self.idle_since = None;
        self.enter(State::Quarantined(stuck));
        cx.act(Action::Quarantine {
            slot: self.id,
            ctx: stuck,
        });
    }
}

/// A card that loses its state, or is gone.
impl SlotFsm {
    /// Gives up the run, because the card cannot be accessed any more. The caller resets the slot,
    /// and calls [`SlotFsm::end_lost_run`].
    pub(super) fn cut_off(&mut self, now: Time) -> Option<RunOver> {
        if let State::Resetting(reset) = &mut self.state {
            (reset.settling, reset.next) = (true, now + LOST_WAIT);
            // Base: the read that follows the last DMA, and ends the reset, does not come.
            if !matches!(reset.outcome, Outcome::Failed(_)) {
                reset.outcome = Outcome::Failed(Failure::Snapshot);
            }
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

    /// Accounts for the run on the slot, of which nothing is saved.
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

    /// Notes that the caller has reset the slot: the job that was on it, if any, has left it.
    pub(super) fn end_lost_run(&mut self) -> After {
        let State::Resetting(Reset { ctx, outcome, .. }) = self.state else {
            return After::Pending;
        };
        self.enter(State::Vacant);
        After::Vacant { ctx, outcome }
    }

    /// Notes that the card was set up again, and that the slot shows `status`. A slot that is not
    /// idle is quarantined; a quarantined slot that is idle is used again. Returns whether the use
    /// of the slot has changed, and the context whose memory the slot can no longer reach.
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

    /// Notes that the card is gone. Returns the run that was ended by this.
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
