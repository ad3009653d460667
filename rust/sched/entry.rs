// SPDX-License-Identifier: GPL-2.0

//! Handling of events: what owners ask for their jobs, and what the card and its timers report.
//! Each request is checked completely before it changes anything.
//!
//! *Job queues.* A program posts work in its memory, and rings the doorbell if the engine has said
//! there that it leaves its slot. The engine says so, and then checks the queue once more before it
//! leaves (docs/queues.md). So either the engine sees the posted work before it leaves, or a
//! doorbell arrives here: after the engine has left, or while it is still on its slot, and then the
//! doorbell is noted.

use super::context::{JobState, OnStop, Restarts};
use super::event::{Cx, NewJob, PastJobs};
use super::ids::ContextIndex;
use super::state::Scheduler;
use super::{
    Action, ContextId, Duration, Event, PauseCause, Refusal, RunRecord, SlotId, Status, Time, Wake,
};

/// Events.
impl Scheduler {
    /// Handles one event, and passes the resulting actions to `out`; the caller carries them out at
    /// once and in order. `now` should be monotonic; going backwards only delays timers.
    ///
    /// O(log n) in the number of contexts. Work that concerns every context is left to
    /// [`Scheduler::sweep`].
    ///
    /// # Errors
    ///
    /// A refused request of an owner has changed nothing and produced no action. Events of the card
    /// are never refused.
    pub fn handle(
        &mut self,
        now: Time,
        event: Event,
        out: &mut dyn FnMut(Action),
    ) -> Result<(), Refusal> {
        let cx = &mut Cx::new(now, out);
        let result = self.take_in(cx, event);
        if self.entities.was_unresolved() {
            cx.act(Action::Inconsistent);
        }
        result
    }

    fn take_in(&mut self, cx: &mut Cx<'_>, event: Event) -> Result<(), Refusal> {
        match event {
            Event::Start { ctx, job } => self.start(cx, ctx, job)?,
            Event::Preempt { ctx, hold } => self.preempt_gang(cx, ctx, hold)?,
            Event::Resume { ctx } => self.resume_gang(cx, ctx)?,
            Event::Hold { ctx } => self.add_hold(cx, ctx)?,
            Event::EndHold { ctx } => self.end_hold(cx, ctx)?,
            Event::Ring { ctx } => self.ring(cx, ctx)?,
            Event::Hint { ctx, at } => {
                let ctx = self.give_hint(cx.now, ctx, at)?;
                self.reschedule(cx, self.entities[ctx].class);
            }
            Event::Close { ctx } => {
                let ctx = self.entities.owned(ctx)?;
                let were_tied = self.are_classes_tied();
                self.part(cx.now, ctx);
                self.close(cx, ctx);
                // Other members of the gang may wait in other classes.
                if were_tied && !self.are_classes_tied() {
                    self.reschedule_all(cx);
                }
            }
            Event::Status { status, .. } if status.is_gone() => self.disconnect(cx),
            Event::Status { slot, status } => self.status(cx, slot, status),
            Event::Timer { slot } => self.timer(cx, slot),
            Event::Gone => self.disconnect(cx),
        }
        Ok(())
    }

    /// Handles a read of the status register of a slot.
    fn status(&mut self, cx: &mut Cx<'_>, id: SlotId, status: Status) {
        if !self.slots.has(id) {
            return;
        }
        self.settle_replaced(cx, id, status);
        let progress = self.slots[id].fsm.status(cx, status);
        let notice = self.follow_all(cx, id, progress);
        self.reschedule_and_notify(cx, id, notice);
    }

    /// Handles the record of the run on a slot with a relay ([`Scheduler::awaited_run`]), as
    /// [`Scheduler::handle`] handles an event of the card.
    pub fn take_record(
        &mut self,
        now: Time,
        slot: SlotId,
        record: &RunRecord,
        out: &mut dyn FnMut(Action),
    ) {
        if self.gone || !self.slots.has(slot) {
            return;
        }
        let cx = &mut Cx::new(now, out);
        let notice = self.end_by_record(cx, slot, record);
        self.reschedule_and_notify(cx, slot, notice);
        if self.entities.was_unresolved() {
            cx.act(Action::Inconsistent);
        }
    }

    /// Handles the firing of a slot's timer.
    fn timer(&mut self, cx: &mut Cx<'_>, id: SlotId) {
        if self.gone || !self.slots.has(id) {
            return;
        }
        self.slots[id].fsm.note_timer(cx.now);
        // If the slice is over, the PAUSE that ends it makes a poll of the status unnecessary.
        let end = self.planned_end(cx, id);
        let notice = if end.is_some_and(|end| end <= cx.now) {
            None
        } else {
            let fsm = &mut self.slots[id].fsm;
            let timeslice = fsm.run().map_or(Duration::ZERO, |run| {
                self.entities[run.ctx.at()].params.timeslice
            });
            let was_leaving = fsm.is_leaving();
            let progress = fsm.timer(cx, timeslice);
            // Another job may have to be preempted in place of a job that does not answer.
            let differs = fsm.is_leaving() != was_leaving;
            if differs {
                self.forget_plans(self.slots[id].class);
            }
            self.follow_all(cx, id, progress)
        };
        self.reschedule_and_notify(cx, id, notice);
    }
}

/// Jobs.
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

    /// Checks whether the results of a context's jobs before a checkpoint may be set.
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

    /// Sets the results that a context's jobs had before a checkpoint.
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
        context.hold_requested = job.held;
        if self.entities.is_to_be_held(ctx) {
            self.hold_off_slot(cx, ctx);
        } else {
            self.arrive(cx.now, ctx);
        }
        self.reschedule(cx, self.entities[ctx].class);
        Ok(())
    }

    /// Holds the job of a context that is on no slot and does not wait for one.
    fn hold_off_slot(&mut self, cx: &mut Cx<'_>, ctx: ContextIndex) {
        self.withdraw_hint(cx.now, ctx);
        let context = &mut self.entities[ctx];
        context.rest(cx.now, JobState::Held);
        context.arriving = false;
        cx.act(Action::Wake {
            ctx: self.entities.id(ctx),
            wake: Wake::Held,
        });
    }

    /// Makes the job of a context wait for a slot, because its owner wants one from now on.
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
    /// has just ended on a slot that is not yet cleared. With `hold`, a job that is queued or EMPTY
    /// becomes held.
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

    /// Checks that a job that is held or EMPTY has a slot to go to.
    pub(super) fn check_resume(&self, ctx: ContextIndex) -> Result<(), Refusal> {
        let context = &self.entities[ctx];
        match context.state {
            JobState::Held | JobState::Empty => self.check_mask(context.class, context.params.mask),
            _ => Ok(()),
        }
    }

    /// Resumes the job of a context that has one and passes [`Self::check_resume`]. Cancels a hold
    /// that was requested and has not taken effect. A job whose queue was empty checks the queue
    /// again.
    pub(super) fn resume(&mut self, now: Time, ctx: ContextIndex) {
        let context = &mut self.entities[ctx];
        if context.on_stop == OnStop::Hold {
            // The hold may have hidden a doorbell, so assume that there was one. If there was none,
            // this costs one spurious check of the queue.
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

    /// Preempts the jobs of all members of a gang that have a job.
    pub(super) fn preempt_gang(
        &mut self,
        cx: &mut Cx<'_>,
        id: ContextId,
        hold: bool,
    ) -> Result<(), Refusal> {
        let ctx = self.check_live(id)?;
        self.for_gang(ctx, |scheduler, ctx| {
            let context = &mut scheduler.entities[ctx];
            context.hold_requested |= hold && context.state.is_live();
            scheduler.preempt(cx, ctx, hold);
        });
        self.reschedule(cx, self.entities[ctx].class);
        Ok(())
    }

    /// Resumes the jobs of all members of a gang that have a job, and a slot to go to, unless a
    /// member has a hold.
    pub(super) fn resume_gang(&mut self, cx: &mut Cx<'_>, id: ContextId) -> Result<(), Refusal> {
        let ctx = self.check_live(id)?;
        self.check_resume(ctx)?;
        self.for_gang(ctx, |scheduler, ctx| {
            let is_live = scheduler.entities[ctx].state.is_live();
            if is_live && scheduler.check_resume(ctx).is_ok() {
                scheduler.entities[ctx].hold_requested = false;
                if !scheduler.entities.has_hold(ctx) {
                    scheduler.resume(cx.now, ctx);
                }
            }
        });
        self.reschedule(cx, self.entities[ctx].class);
        Ok(())
    }

    /// Adds a hold to a context, and holds the jobs of all members of its gang.
    fn add_hold(&mut self, cx: &mut Cx<'_>, id: ContextId) -> Result<(), Refusal> {
        let ctx = self.entities.owned(id)?;
        self.check_present()?;
        let holds = self.entities[ctx].holds.checked_add(1);
        self.entities[ctx].holds = holds.ok_or(Refusal::NoSpace)?;
        self.hold_gang(cx, ctx);
        self.reschedule(cx, self.entities[ctx].class);
        Ok(())
    }

    /// Takes the jobs of all members of a gang off their slots, to be held.
    pub(super) fn hold_gang(&mut self, cx: &mut Cx<'_>, ctx: ContextIndex) {
        self.for_gang(ctx, |scheduler, ctx| scheduler.preempt(cx, ctx, true));
    }

    /// Takes a hold away from a context.
    fn end_hold(&mut self, cx: &mut Cx<'_>, id: ContextId) -> Result<(), Refusal> {
        let ctx = self.entities.owned(id)?;
        self.check_present()?;
        let context = &mut self.entities[ctx];
        context.holds = context.holds.checked_sub(1).ok_or(Refusal::Range)?;
        self.resume_released(cx.now, ctx);
        self.reschedule(cx, self.entities[ctx].class);
        Ok(())
    }

    /// Resumes the jobs of all members of a gang that are held, or about to be, and that nothing
    /// holds any more. A job that has no slot to go to stays held until RESUME.
    pub(super) fn resume_released(&mut self, now: Time, ctx: ContextIndex) {
        self.for_gang(ctx, |scheduler, ctx| {
            let context = &scheduler.entities[ctx];
            let is_held = context.state == JobState::Held || context.on_stop == OnStop::Hold;
            let is_released = is_held && !scheduler.entities.is_to_be_held(ctx);
            if is_released && scheduler.check_resume(ctx).is_ok() {
                scheduler.resume(now, ctx);
            }
        });
    }

    /// Removes a context from its gang, if it is in one. The holds of one are no longer those of the
    /// others.
    pub(super) fn part(&mut self, now: Time, ctx: ContextIndex) {
        if let Some(mate) = self.leave_gang(now, ctx) {
            self.resume_released(now, ctx);
            self.resume_released(now, mate);
        }
    }

    /// Calls `act` for each member of the gang of `ctx`; `act` must leave the gang as it is.
    fn for_gang(&mut self, ctx: ContextIndex, mut act: impl FnMut(&mut Self, ContextIndex)) {
        let mut next = Some(ctx);
        while let Some(member) = next {
            act(self, member);
            next = self.entities[member].gang.filter(|&mate| mate != ctx);
        }
    }

    /// Rings the doorbell: there is work in the queue of a context. A job that waits or is held
    /// checks its queue anyway when it runs.
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

    /// Closes a context that is in no gang. A context on no slot is released at once. A job on a
    /// slot is stopped by a reset, or dropped by a relay, because its snapshot is not needed any
    /// more; the context is released only when the slot is quiescent.
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
                    self.abort(cx, slot);
                }
            }
        } else {
            self.release(cx, ctx);
        }
        self.reschedule(cx, class);
    }
}
