// SPDX-License-Identifier: GPL-2.0

//! The protocol of a slot with a relay: orders in place of START and PAUSE, records in place
//! of the status.
//!
//! Each run has a number, the START count of the status, and each order names the run that it
//! follows. The card therefore drops an order that comes too late, and the record of the run says
//! what the card has done. The status is read only to find out whether a record was lost, whether
//! the card has taken an order that was replaced, and after a reset.

use super::super::card::{Call, Card};
use super::super::values::{
    ContextId, Duration, EndReason, Failure, LeftReason, NextRun, Order, Phase, RunEnd, RunRecord,
    Status, Stop, Time,
};
use super::run::{outcome_of, Run, Seen, WATCHDOG_PERIOD};
use super::{After, Change, Protocol, State};

/// How long a job that is stopped without being saved may take to leave its slot.
const DROP_TIMEOUT: Duration = Duration::from_ms(100);

/// Orders.
impl Protocol {
    /// Returns the context on the slot and the number of its run, whose record is awaited.
    pub(in super::super) fn awaited_run(&self) -> Option<(ContextId, u32)> {
        let run = self.run().filter(|_| self.has_relay())?;
        Some((run.ctx, self.count))
    }

    /// Posts the order for the run on the slot if it differs from the one in force. `next`: the
    /// successor, and whether it resumes.
    pub(in super::super) fn post<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        next: Option<(ContextId, bool)>,
    ) {
        let Some(run) = self.run() else {
            return;
        };
        let stop = match &run.stop {
            None => Stop::Never,
            Some(stop) if stop.last => Stop::Never,
            Some(stop) if stop.dropped => Stop::Dropped,
            Some(stop) => Stop::Paused {
                after: stop.after,
                boundary: stop.boundary,
            },
        };
        let order = Order {
            after: self.count,
            stop,
            next: next.map(|(ctx, resume)| NextRun { ctx, resume }),
        };
        let old = core::mem::replace(&mut self.posted, order);
        if old == order {
            return;
        }
        if let Some((ctx, _)) = next.filter(|&(ctx, _)| old.next.is_none_or(|old| old.ctx != ctx)) {
            call.card.publish(self.id, ctx);
        }
        call.card.order(self.id, &order);
    }

    /// Returns whether the order in force names a context, for the run on the slot.
    pub(in super::super) fn names(&self, ctx: ContextId) -> bool {
        !self.is_vacant() && self.has_named(ctx)
    }

    /// Returns whether the last order names a context, whatever has become of the run.
    pub(in super::super) fn has_named(&self, ctx: ContextId) -> bool {
        self.posted.next.is_some_and(|next| next.ctx == ctx)
    }

    /// Stops the job without saving it.
    pub(in super::super) fn drop_job(&mut self, now: Time) {
        let save = self.save_time();
        if let Some(run) = self.run_mut() {
            let mut stop = run.new_stop(now, now, DROP_TIMEOUT, save);
            (stop.dropped, stop.again) = (true, now + WATCHDOG_PERIOD);
            run.stop = Some(stop);
            run.poll_at = now + WATCHDOG_PERIOD;
            self.stats.resets += 1;
        }
    }
}

/// Records and statuses.
impl Protocol {
    /// Returns what a status says of a run. A run that has ended leaves a record, which is read
    /// after the status: none was found.
    pub(super) fn see_relay(&self, run: &Run, status: Status) -> Seen {
        let is_own = status.start_count() == self.count;
        match status.phase() {
            Phase::Running if is_own => Seen::Running,
            _ if is_own || run.suspect => Seen::Violation,
            // The answer of a run that was given up may arrive late.
            _ => Seen::Stale,
        }
    }

    /// Returns whether a status after which no record was found shows the run that is known to be
    /// on the slot. If so, the card has taken no order that was posted before.
    pub(in super::super) fn still_shows(&self, status: Status) -> bool {
        self.run().is_some()
            && status.phase() == Phase::Running
            && status.start_count() == self.count
    }

    /// Handles the record of the run on the slot. The run lasts no less than `charged`, because that
    /// was charged, and perhaps shown to users.
    pub(in super::super) fn record<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        record: &RunRecord,
        charged: Duration,
    ) -> Change {
        let Some(&run) = self.run().filter(|_| record.run == self.count) else {
            return Change::NONE;
        };
        let Some(reason) = reason_of(record.reason, &run) else {
            return self.abort(call, Some(Failure::Protocol));
        };
        let span = record.span.min(call.now.since(run.named)).max(charged);
        // On the way to a boundary the job still works: that time is no part of a save.
        let at_once = run.stop.is_some_and(|stop| !stop.boundary);
        let is_save = record.reason == LeftReason::Paused && at_once;
        let end = RunEnd {
            reason,
            span,
            save: is_save.then(|| record.save.min(span)),
            restore: match run.resumed {
                true => record.load.min(span),
                false => Duration::ZERO,
            },
        };
        let Some(over) = self.end_run(call, &end) else {
            return Change::NONE;
        };
        self.idle_since = Some(call.now);
        self.state = State::Vacant;
        Change {
            over: Some(over),
            after: After::Vacant(over.ctx, outcome_of(reason)),
        }
    }
}

/// Returns how a run has ended according to its record; `None`: the card must not report that.
fn reason_of(reason: LeftReason, run: &Run) -> Option<EndReason> {
    let is_stopped = run.stop.is_some();
    Some(match reason {
        LeftReason::Paused if is_stopped => EndReason::Paused,
        LeftReason::NotRun if is_stopped && run.resumed => EndReason::Paused,
        LeftReason::Dropped if run.stop.is_some_and(|stop| stop.dropped) => EndReason::Dropped,
        LeftReason::Finished => EndReason::Finished,
        LeftReason::Empty => EndReason::Empty,
        LeftReason::Fault => EndReason::Fault,
        LeftReason::SnapshotError => EndReason::SnapshotError,
        LeftReason::Refused => EndReason::Dropped,
        LeftReason::Paused | LeftReason::NotRun | LeftReason::Dropped => return None,
    })
}
