// SPDX-License-Identifier: GPL-2.0

//! Resetting a slot.
//!
//! Fermata: hold, read the status (that read is the flush: it returns after the last DMA), IDLE,
//! release. Needed only when a job is stopped by force. Base: hold, read the status (that read
//! pushes the reset to the card), settle, release, read the status, IDLE. Needed after every job,
//! because PAUSED and FINISH come before the last DMA, and because an old status must not be taken
//! for that of the next job.

use super::event::Cx;
use super::slot_fsm::{After, Outcome, Progress, Reset, SlotFsm, State};
use super::{Action, ContextId, Duration, Failure, Phase, Status};

/// A status after a reset that is not IDLE, or does not come, is read again after this time.
const RESET_RETRY: Duration = Duration::from_ms(1);
/// How often a reset is repeated.
const RESETS_MAX: u8 = 4;

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
            // Whether the card took the last START is known now.
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
            // The job's memory may still change, also where it was saved or finished.
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

    /// Takes the slot out of use; `stuck`: whose memory it may still reach.
    pub(super) fn quarantine(&mut self, cx: &mut Cx<'_>, stuck: Option<ContextId>) {
        self.idle_since = None;
        self.enter(State::Quarantined(stuck));
        cx.act(Action::Quarantine {
            slot: self.id,
            ctx: stuck,
        });
    }
}
