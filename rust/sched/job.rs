// SPDX-License-Identifier: GPL-2.0

//! What owners ask for their jobs. Each request is checked completely before it changes anything.
//!
//! *Job queues.* A program posts work in its memory, and rings if the engine has said there that it
//! leaves its slot; the engine says so, and looks once more before it leaves (docs/queues.md). So
//! work that was posted is seen by the engine before it leaves, or its doorbell comes here: while the
//! engine is still on its slot, which is then noted, or after it has left.

use super::context::{JobState, OnStop, Restarts};
use super::event::{Cx, NewJob, PastJobs};
use super::ids::ContextIndex;
use super::slot_fsm::Outcome;
use super::state::Scheduler;
use super::{Action, ContextId, Failure, PauseCause, Refusal, Time, Wake};

impl Scheduler {
    /// Checks whether a Start would be accepted now.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`], [`Refusal::Gone`], [`Refusal::Busy`] (the last job has not ended),
    /// [`Refusal::NoSlot`] (also while a quarantined slot can still reach the context's memory).
    pub fn check_start(&self, id: ContextId) -> Result<(), Refusal> {
        let context = &self.entities[self.entities.owned(id)?];
        self.check_present()?;
        if context.state.is_live() {
            return Err(Refusal::Busy);
        }
        if context.stuck {
            return Err(Refusal::NoSlot);
        }
        self.check_mask(context.class, context.params.mask)
    }

    /// Checks whether a context may be told what its jobs have come to elsewhere.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`], [`Refusal::Gone`], [`Refusal::Busy`] (the context has had a job).
    pub fn check_past(&self, id: ContextId) -> Result<(), Refusal> {
        let context = &self.entities[self.entities.owned(id)?];
        self.check_present()?;
        match context.state {
            JobState::Idle => Ok(()),
            _ => Err(Refusal::Busy),
        }
    }

    /// Tells a context what its jobs have come to elsewhere.
    ///
    /// # Errors
    ///
    /// Those of [`Self::check_past`].
    pub fn set_past(&mut self, id: ContextId, past: PastJobs) -> Result<(), Refusal> {
        self.check_past(id)?;
        let context = &mut self.entities[id.at()];
        context.state = past.last.map_or(JobState::Done, JobState::Failed);
        (context.finished, context.failed) = (past.finished, past.failed);
        Ok(())
    }

    /// Starts a job.
    pub(super) fn start(
        &mut self,
        cx: &mut Cx<'_>,
        id: ContextId,
        job: NewJob,
    ) -> Result<(), Refusal> {
        self.check_start(id)?;
        let ctx = id.at();
        let context = &mut self.entities[ctx];
        context.saved = job.saved;
        context.restarts = Restarts::of_new_job(job.replayable);
        context.on_stop = OnStop::Requeue;
        context.yields = false;
        if job.held {
            self.hold_off_slot(cx, ctx);
        } else {
            self.arrive(cx.now, ctx);
        }
        self.reschedule(cx, self.entities[ctx].class);
        Ok(())
    }

    /// Holds the job of a context that is on no slot and does not wait for a slot.
    fn hold_off_slot(&mut self, cx: &mut Cx<'_>, ctx: ContextIndex) {
        self.withdraw_hint(cx.now, ctx);
        let context = &mut self.entities[ctx];
        context.state = JobState::Held;
        context.arriving = false;
        cx.act(Action::Wake {
            ctx: self.entities.id(ctx),
            wake: Wake::Held,
        });
    }

    /// The owner wants a slot from now on.
    fn arrive(&mut self, now: Time, ctx: ContextIndex) {
        let context = &mut self.entities[ctx];
        (context.arriving, context.arrived) = (true, now);
        self.use_hint(now, ctx);
        self.place(now, ctx);
        self.wait_for_slot(now, ctx, true);
    }

    /// Checks that a context has a job that can be preempted or resumed.
    pub(super) fn check_live(&self, id: ContextId) -> Result<ContextIndex, Refusal> {
        let ctx = self.entities.owned(id)?;
        self.check_present()?;
        if !self.entities[ctx].state.is_live() {
            return Err(Refusal::NoJob);
        }
        Ok(ctx)
    }

    /// Preempts the job of a context that has one. No-op if the job is already queued or held, or
    /// just ended on a slot that is not yet cleared; but a queued job becomes held if asked.
    pub(super) fn preempt(&mut self, cx: &mut Cx<'_>, ctx: ContextIndex, hold: bool) {
        let context = &mut self.entities[ctx];
        match context.state {
            JobState::Queued if hold => {
                self.stop_waiting(cx.now, ctx, JobState::Held);
                self.hold_off_slot(cx, ctx);
            }
            JobState::Empty if hold => self.hold_off_slot(cx, ctx),
            JobState::Running => {
                if hold {
                    context.on_stop = OnStop::Hold;
                } else {
                    context.yields = true;
                }
                if let Some(slot) = self.slot_with(ctx) {
                    self.pause(cx, slot, None, PauseCause::Request);
                }
            }
            _ => {}
        }
    }

    /// Checks that a job off its slot has a slot to go to.
    pub(super) fn check_resume(&self, ctx: ContextIndex) -> Result<(), Refusal> {
        let context = &self.entities[ctx];
        match context.state {
            JobState::Held | JobState::Empty => self.check_mask(context.class, context.params.mask),
            _ => Ok(()),
        }
    }

    /// Resumes the job of a context that has one and passes [`Self::check_resume`]. Takes back a
    /// hold that was asked for and has not come about. A job whose queue is empty looks at it
    /// again.
    pub(super) fn resume(&mut self, now: Time, ctx: ContextIndex) {
        let context = &mut self.entities[ctx];
        if context.on_stop == OnStop::Hold {
            // A doorbell that the hold has hidden counts again. Without one, this costs one
            // spurious check of the queue.
            let queues = |slot| self.slots[slot].fsm.config.queues;
            context.on_stop = match context.slot.is_some_and(queues) {
                true => OnStop::Rung,
                false => OnStop::Requeue,
            };
        }
        match context.state {
            JobState::Empty => self.arrive(now, ctx),
            JobState::Held => {
                self.place(now, ctx);
                self.wait_for_slot(now, ctx, true);
            }
            _ => {}
        }
    }

    /// Rings the doorbell: there is work in the queue of a context. A job that waits or is held
    /// looks at its queue anyway when it runs.
    pub(super) fn ring(&mut self, cx: &mut Cx<'_>, id: ContextId) -> Result<(), Refusal> {
        let ctx = self.check_live(id)?;
        let context = &mut self.entities[ctx];
        match context.state {
            JobState::Empty => {
                self.check_resume(ctx)?;
                self.resume(cx.now, ctx);
                self.reschedule(cx, self.entities[ctx].class);
            }
            JobState::Running if context.on_stop == OnStop::Requeue => {
                context.on_stop = OnStop::Rung;
            }
            _ => {}
        }
        Ok(())
    }

    /// Closes a context that is in no gang. A context on no slot is released at once; a job on a
    /// slot is stopped by a reset, or dropped by a relay, because its snapshot is of no use any
    /// more, and its memory may go only when the slot is quiescent.
    pub(super) fn close(&mut self, cx: &mut Cx<'_>, ctx: ContextIndex) {
        self.withdraw_hint(cx.now, ctx);
        let context = &self.entities[ctx];
        let (class, state, stuck) = (context.class, context.state, context.stuck);
        if state == JobState::Queued {
            self.stop_waiting(cx.now, ctx, JobState::Idle);
        }
        if state == JobState::Running || (stuck && !self.gone) {
            self.entities[ctx].closing = true;
            if let Some(slot) = self.slot_with(ctx) {
                if self.slots[slot].fsm.config.has_relay() {
                    self.slots[slot].payer = None;
                    self.slots[slot].fsm.drop_job(cx);
                } else {
                    self.abort(cx, slot, Outcome::Failed(Failure::Protocol));
                }
            }
        } else {
            self.release(cx, ctx);
        }
        self.reschedule(cx, class);
    }
}
