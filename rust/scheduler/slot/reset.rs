// SPDX-License-Identifier: GPL-2.0

//! Resetting a slot, and a slot of a card that loses its state or is gone.
//!
//! irq and relay, to stop a job by force: hold, read the status (the read returns after the last
//! DMA of the job), IDLE, release.
//!
//! Base, after every job: hold, read the status (the driver pushes the reset to the card by another
//! read, and reports IDLE, since the slot answers none), settle, release, read the status, IDLE.
//! Needed after every job, because PAUSED and FINISH come before the last DMA, and because a stale
//! status must not be taken for the status of the next job.

use super::super::card::{Call, Card};
use super::super::values::{ContextId, Duration, Failure, Order, Phase, Status, Time};
use super::{After, Change, Outcome, Over, Protocol, State};

/// If the status after a reset is not IDLE, or does not come, the reset is repeated after this
/// time.
const RETRY: Duration = Duration::from_ms(1);
/// How often a reset is repeated at most.
const TRIES_MAX: u8 = 4;
/// How long the status of a slot whose run was lost is not read, because the caller resets the
/// slot.
const LOST_WAIT: Duration = Duration::from_ms(10_000);

/// A reset that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reset {
    pub(super) ctx: ContextId,
    outcome: Outcome,
    /// Base: the settle time has begun, because the reset bit is known to have reached the card.
    settling: bool,
    /// Base: the settle time is over and the reset bit cleared.
    released: bool,
    tries: u8,
    /// When the settle time, or the wait for the status, is over.
    next: Time,
}

impl Reset {
    #[inline]
    pub(super) fn deadline(&self) -> Time {
        self.next
    }

    #[inline]
    pub(super) fn is_repeated(&self) -> bool {
        self.tries != 0
    }
}

impl Protocol {
    pub(super) fn reset_status<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        reset: Reset,
        status: Status,
    ) -> Change {
        let settle = self.settle();
        if let (Some(settle), false) = (settle, reset.settling) {
            self.state = State::Resetting(Reset {
                settling: true,
                next: call.now + settle,
                ..reset
            });
            return Change::NONE;
        }
        // Anything but IDLE is left to the timer, which tries again.
        if status.phase() != Phase::Idle || (settle.is_some() && !reset.released) {
            return Change::NONE;
        }
        if settle.is_none() {
            // It is known now whether the card took the last START.
            self.count = status.start_count();
            call.card.reset(self.id, reset.ctx, false);
        }
        self.state = State::Vacant;
        Change {
            over: None,
            after: After::Vacant(reset.ctx, reset.outcome),
        }
    }

    pub(super) fn reset_timer<C: Card>(&mut self, call: &mut Call<'_, C>, reset: Reset) -> Change {
        if call.now < reset.next {
            return Change::NONE;
        }
        if reset.settling && !reset.released {
            call.card.reset(self.id, reset.ctx, false);
            self.state = State::Resetting(Reset {
                released: true,
                next: call.now + RETRY,
                ..reset
            });
            self.read_status(call);
        } else if reset.tries < TRIES_MAX {
            self.hold_again(call, reset.ctx, reset.outcome, reset.tries + 1);
        } else {
            // The job's memory may still change, even if the job was saved or finished.
            let outcome = match reset.outcome {
                Outcome::Failed(failure) => Outcome::Failed(failure),
                _ => Outcome::Failed(Failure::Protocol),
            };
            self.quarantine(call, Some(reset.ctx));
            return Change {
                over: None,
                after: After::Quarantined(reset.ctx, outcome),
            };
        }
        Change::NONE
    }

    pub(super) fn hold_reset<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        ctx: ContextId,
        outcome: Outcome,
    ) {
        self.hold_again(call, ctx, outcome, 0);
    }

    fn hold_again<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        ctx: ContextId,
        outcome: Outcome,
        tries: u8,
    ) {
        call.card.reset(self.id, ctx, true);
        self.state = State::Resetting(Reset {
            ctx,
            outcome,
            settling: false,
            released: false,
            tries,
            next: call.now + RETRY,
        });
        self.read_status(call);
    }

    /// Takes the slot out of use; `stuck`: the context whose memory the slot may still reach.
    fn quarantine<C: Card>(&mut self, call: &mut Call<'_, C>, stuck: Option<ContextId>) {
        self.idle_since = None;
        self.state = State::Quarantined(stuck);
        call.card.quarantine(self.id, stuck);
    }
}

/// A card that loses its state, or is gone.
impl Protocol {
    /// Gives up the run, because the card cannot be accessed any more. The caller resets the slot,
    /// and calls [`Protocol::end_lost_run`].
    pub(in super::super) fn cut_off(&mut self, now: Time) -> Option<Over> {
        if let State::Resetting(reset) = &mut self.state {
            (reset.settling, reset.next) = (true, now + LOST_WAIT);
            // Base: the read that follows the last DMA, and ends the reset, does not come.
            if !matches!(reset.outcome, Outcome::Failed(_)) {
                reset.outcome = Outcome::Failed(Failure::Snapshot);
            }
        }
        let over = self.lose_run(now)?;
        self.state = State::Resetting(Reset {
            ctx: over.ctx,
            outcome: Outcome::Failed(Failure::Snapshot),
            settling: true,
            released: false,
            tries: 0,
            next: now + LOST_WAIT,
        });
        Some(over)
    }

    /// Accounts for the run on the slot, of which nothing is saved.
    fn lose_run(&mut self, now: Time) -> Option<Over> {
        let run = self.run()?;
        let (ctx, span) = (run.ctx, now.since(run.started));
        self.stats.busy += span;
        self.idle_since = None;
        Some(Over {
            ctx,
            saved: false,
            span,
            save: Duration::ZERO,
        })
    }

    /// Notes that the caller has reset the slot: the job that was on it, if any, has left it.
    pub(in super::super) fn end_lost_run(&mut self) -> Change {
        let after = match self.state {
            State::Resetting(Reset { ctx, outcome, .. }) => {
                self.state = State::Vacant;
                After::Vacant(ctx, outcome)
            }
            _ => After::Pending,
        };
        Change { over: None, after }
    }

    /// Notes that the card was set up again, and that the slot shows `status`. A slot that is not
    /// idle is quarantined; a quarantined slot that is idle is used again. Returns whether the use
    /// of the slot has changed, and the context whose memory the slot can no longer reach.
    pub(in super::super) fn renew<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        status: Status,
    ) -> (bool, Option<ContextId>) {
        let idle = status.phase() == Phase::Idle;
        if !matches!(
            self.state,
            State::Vacant | State::Loading(_) | State::Quarantined(_)
        ) {
            return (false, None);
        }
        (self.count, self.window) = (status.start_count(), None);
        self.posted = Order::none(self.count);
        match (self.state, idle) {
            (State::Quarantined(stuck), true) => {
                self.state = State::Vacant;
                (true, stuck)
            }
            (State::Vacant | State::Loading(_), false) => {
                self.quarantine(call, None);
                (true, None)
            }
            _ => (false, None),
        }
    }

    /// Notes that the card is gone. Returns the run that was ended by this.
    pub(in super::super) fn disconnect(&mut self, now: Time) -> Option<Over> {
        let over = self.lose_run(now);
        (self.state, self.window) = (State::Gone, None);
        over
    }
}
