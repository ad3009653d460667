// SPDX-License-Identifier: GPL-2.0

//! Requests of owners for their jobs. Each is checked completely before it changes anything.
//!
//! *Job queues.* A program posts work in its memory, and rings the doorbell if the engine has said
//! there that it leaves its slot. The engine says so, and then checks the queue once more before it
//! leaves (docs/queues.md). So either the engine sees the posted work before it leaves, or a
//! doorbell arrives here: after the engine has left, or while it is still on its slot, and then the
//! doorbell is noted.

use super::super::card::{Call, Card};
use super::super::context::{OnStop, Restarts, State};
use super::super::values::{
    ContextId, EntityIndex, NewJob, PastJobs, PauseCause, Refusal, SlotId, Time, Wake,
};
use super::super::Scheduler;

/// Checks.
impl Scheduler {
    /// Returns a context that its owner has not closed.
    pub(in super::super) fn owned(&self, id: ContextId) -> Result<EntityIndex, Refusal> {
        let at = self.contexts.find(id);
        at.filter(|&at| !self.contexts[at].closing)
            .ok_or(Refusal::NoContext)
    }

    pub(super) fn check_present(&self) -> Result<(), Refusal> {
        match self.gone {
            true => Err(Refusal::Gone),
            false => Ok(()),
        }
    }

    /// Returns a context that its owner has not closed, of a card that is present.
    pub(in super::super) fn present(&self, id: ContextId) -> Result<EntityIndex, Refusal> {
        let at = self.owned(id)?;
        self.check_present()?;
        Ok(at)
    }

    /// Returns a context that has a job that has not ended.
    fn live(&self, id: ContextId) -> Result<EntityIndex, Refusal> {
        let at = self.present(id)?;
        match self.contexts[at].state.is_live() {
            true => Ok(at),
            false => Err(Refusal::NoJob),
        }
    }

    /// Checks that a slot of the context's mask is in use.
    pub(in super::super) fn check_slots(&self, at: EntityIndex) -> Result<(), Refusal> {
        let context = &self.contexts[at];
        match self.classes[context.class.at()].usable & context.params.mask {
            0 => Err(Refusal::NoSlot),
            _ => Ok(()),
        }
    }

    /// Checks whether [`Scheduler::start`] would be accepted now.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`], [`Refusal::Gone`], [`Refusal::Busy`] (the last job has not ended),
    /// [`Refusal::NoSlot`] (also while a slot that is out of use can still reach the context's
    /// memory).
    pub fn check_start(&self, id: ContextId) -> Result<(), Refusal> {
        let at = self.present(id)?;
        let context = &self.contexts[at];
        if context.state.is_live() {
            return Err(Refusal::Busy);
        }
        if context.stuck {
            return Err(Refusal::NoSlot);
        }
        self.check_slots(at)
    }

    /// Checks whether the results of a context's jobs before a checkpoint may be set.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`], [`Refusal::Gone`], [`Refusal::Busy`] (the context has had a job).
    pub fn check_past(&self, id: ContextId) -> Result<(), Refusal> {
        let at = self.present(id)?;
        match self.contexts[at].state {
            State::Idle => Ok(()),
            _ => Err(Refusal::Busy),
        }
    }

    /// Sets the results that a context's jobs had before a checkpoint.
    ///
    /// # Errors
    ///
    /// Those of [`Scheduler::check_past`].
    pub fn set_past(&mut self, id: ContextId, past: PastJobs) -> Result<(), Refusal> {
        self.check_past(id)?;
        let at = self.owned(id)?;
        let context = &mut self.contexts[at];
        context.state = past.last.map_or(State::Done, State::Failed);
        (context.finished, context.failed) = (past.finished, past.failed);
        Ok(())
    }

    /// Returns whether the jobs of a context are to be held.
    pub(super) fn is_to_be_held(&self, at: EntityIndex) -> bool {
        self.contexts[at].hold_requested || self.has_hold(at)
    }
}

/// Starting, and waiting.
impl Scheduler {
    /// Starts a job.
    ///
    /// # Errors
    ///
    /// Those of [`Scheduler::check_start`].
    pub fn start<C: Card>(
        &mut self,
        card: &mut C,
        now: Time,
        id: ContextId,
        job: NewJob,
    ) -> Result<(), Refusal> {
        self.check_start(id)?;
        let at = self.owned(id)?;
        let call = &mut Call::new(card, now);
        let context = &mut self.contexts[at];
        (context.saved, context.on_stop) = (job.saved, OnStop::Requeue);
        context.hold_requested = job.held;
        context.restarts = Restarts {
            allowed: job.replayable,
            done: 0,
        };
        if self.is_to_be_held(at) {
            self.hold_off_slot(call, at);
        } else {
            self.contexts[at].arrived = Some(now);
            self.arrive(call, at);
        }
        self.finish(call);
        Ok(())
    }

    /// Holds the job of a context that is on no slot and does not wait for one.
    fn hold_off_slot<C: Card>(&mut self, call: &mut Call<'_, C>, at: EntityIndex) {
        self.withdraw_hint(call, at);
        let context = &mut self.contexts[at];
        context.rest(call.now, State::Held);
        context.arrived = None;
        call.tell(self.contexts.id(at), Wake::Held);
    }

    /// Lets the job of a context wait for a slot, which its owner wants from now on.
    pub(super) fn arrive<C: Card>(&mut self, call: &mut Call<'_, C>, at: EntityIndex) {
        self.return_group(call.now, self.contexts[at].class);
        let kept = self.use_hint(call, at);
        self.wake(call.now, at);
        self.wait(at, call.now, None);
        if !self.defer_arrival(at) {
            self.arrived(call, at);
        }
        if let Some(slot) = kept {
            self.rebind(call, slot);
        }
    }

    /// Notes that a context wants a slot from now on.
    #[inline]
    pub(in super::super) fn wake(&mut self, now: Time, at: EntityIndex) {
        if self.queue.needs_runs(at) {
            self.charge_class(now, self.contexts[at].class);
        }
        self.queue.wake(at);
        self.renew_budget(now, at, true);
    }

    /// There is work in the context's queue again: a job that is off its slot because the queue was
    /// empty waits for a slot again, and a job on its slot does so if it leaves with an empty queue.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`], [`Refusal::Gone`], [`Refusal::NoJob`], [`Refusal::NoSlot`].
    pub fn ring<C: Card>(&mut self, card: &mut C, now: Time, id: ContextId) -> Result<(), Refusal> {
        let at = self.live(id)?;
        match self.contexts[at].state {
            State::Empty => {
                self.check_slots(at)?;
                let call = &mut Call::new(card, now);
                self.resume_one(call, at);
                self.finish(call);
            }
            // A job that waits or is held checks its queue anyway when it runs. A relay may have put
            // one that is named on its slot.
            state => {
                let may_run = state == State::Running || self.is_named(at);
                let on_stop = &mut self.contexts[at].on_stop;
                if may_run && *on_stop == OnStop::Requeue {
                    *on_stop = OnStop::Rung;
                }
            }
        }
        Ok(())
    }
}

/// Preempting, holding and resuming.
impl Scheduler {
    /// Takes the job off its slot as soon as it can be saved. With `hold`, the job stays off until
    /// [`Scheduler::resume`]. Without, it is queued again, but behind the next context that waits
    /// for the slot.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`], [`Refusal::Gone`], [`Refusal::NoJob`].
    pub fn preempt<C: Card>(
        &mut self,
        card: &mut C,
        now: Time,
        id: ContextId,
        hold: bool,
    ) -> Result<(), Refusal> {
        let at = self.live(id)?;
        let call = &mut Call::new(card, now);
        self.preempt_gang(call, at, hold, true);
        self.finish(call);
        Ok(())
    }

    /// Takes the job of a context off its slot.
    pub(in super::super) fn preempt_one<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        at: EntityIndex,
        hold: bool,
    ) {
        let context = &mut self.contexts[at];
        match (context.state, context.slot) {
            (State::Queued, _) if hold => {
                self.stop_waiting(call.now, at, State::Held);
                self.hold_off_slot(call, at);
            }
            (State::Empty, _) if hold => self.hold_off_slot(call, at),
            (State::Bound, Some(slot)) if hold => {
                context.on_stop = OnStop::Hold;
                self.withdraw_context(call, slot, at);
            }
            (State::Running, Some(slot)) => {
                if hold {
                    context.on_stop = OnStop::Hold;
                }
                self.stop_for_owner(call, slot, at, hold);
            }
            _ => {}
        }
    }

    /// Stops the job of a context that is on a slot, as its owner wants. Unless it is to be held, the
    /// next context goes before it.
    fn stop_for_owner<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        id: SlotId,
        at: EntityIndex,
        hold: bool,
    ) {
        if self.slot_with(at).is_none() {
            return;
        }
        if !hold {
            let class = self.slot(id).class;
            if let Some(next) = self.queue.pick(class, id.bit().into()) {
                self.charge(call.now, id);
                self.queue.yield_to(at, next);
            }
        }
        self.stop(call, id, call.now, PauseCause::Request);
        self.rebind(call, id);
    }

    /// Lets a held job run again, unless the context has a hold by [`Scheduler::hold`].
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`], [`Refusal::Gone`], [`Refusal::NoJob`], [`Refusal::NoSlot`].
    pub fn resume<C: Card>(
        &mut self,
        card: &mut C,
        now: Time,
        id: ContextId,
    ) -> Result<(), Refusal> {
        let at = self.live(id)?;
        self.check_resume(at)?;
        let call = &mut Call::new(card, now);
        let has_hold = self.has_hold(at);
        self.for_gang(at, |scheduler, member| {
            scheduler.contexts[member].hold_requested = false;
            if !has_hold && scheduler.check_resume(member).is_ok() {
                scheduler.resume_one(call, member);
            }
        });
        self.finish(call);
        Ok(())
    }

    /// Checks that a job that is held, or has an empty queue, has a slot to go to.
    fn check_resume(&self, at: EntityIndex) -> Result<(), Refusal> {
        match self.contexts[at].state {
            State::Held | State::Empty => self.check_slots(at),
            _ => Ok(()),
        }
    }

    /// Resumes a job that is held or has an empty queue, or cancels a hold that has not taken effect.
    fn resume_one<C: Card>(&mut self, call: &mut Call<'_, C>, at: EntityIndex) {
        let context = &mut self.contexts[at];
        if context.on_stop == OnStop::Hold {
            // The hold may have hidden a doorbell, so assume that there was one. If there was none,
            // this costs one check of the queue.
            let has_queue = |slot: SlotId| self.slots[slot.index()].protocol.config().queues;
            context.on_stop = match context.slot.is_some_and(has_queue) {
                true => OnStop::Rung,
                false => OnStop::Requeue,
            };
        }
        match context.state {
            State::Empty => {
                context.arrived = Some(call.now);
                self.arrive(call, at);
            }
            State::Held => self.arrive(call, at),
            _ => {}
        }
    }

    /// Adds a hold, which only [`Scheduler::end_hold`] ends. While a context has holds, its job is
    /// held, also if it is started meanwhile.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`], [`Refusal::Gone`], [`Refusal::NoSpace`] (it has 2^32 - 1 holds).
    pub fn hold<C: Card>(&mut self, card: &mut C, now: Time, id: ContextId) -> Result<(), Refusal> {
        let at = self.present(id)?;
        let holds = self.contexts[at].holds.checked_add(1);
        self.contexts[at].holds = holds.ok_or(Refusal::NoSpace)?;
        let call = &mut Call::new(card, now);
        self.preempt_gang(call, at, true, false);
        self.finish(call);
        Ok(())
    }

    /// Takes a hold away. If none is left, and no preemption or start has requested a hold, the job
    /// runs again; a job that has no slot to go to stays held.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`], [`Refusal::Gone`], [`Refusal::Range`] (it has no hold).
    pub fn end_hold<C: Card>(
        &mut self,
        card: &mut C,
        now: Time,
        id: ContextId,
    ) -> Result<(), Refusal> {
        let at = self.present(id)?;
        let holds = self.contexts[at].holds.checked_sub(1);
        self.contexts[at].holds = holds.ok_or(Refusal::Range)?;
        let call = &mut Call::new(card, now);
        self.for_gang(at, |scheduler, member| {
            scheduler.resume_released(call, member);
        });
        self.finish(call);
        Ok(())
    }

    /// Resumes the job of a context that is held, or about to be, if nothing holds it any more.
    pub(in super::super) fn resume_released<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        at: EntityIndex,
    ) {
        let context = &self.contexts[at];
        let is_held = context.state == State::Held || context.on_stop == OnStop::Hold;
        if is_held && !self.is_to_be_held(at) && self.check_resume(at).is_ok() {
            self.resume_one(call, at);
        }
    }

    /// The owner is gone: the job is stopped without being saved, and the context released once no
    /// slot can reach its memory.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`].
    pub fn close<C: Card>(
        &mut self,
        card: &mut C,
        now: Time,
        id: ContextId,
    ) -> Result<(), Refusal> {
        let at = self.owned(id)?;
        let call = &mut Call::new(card, now);
        self.withdraw_hint(call, at);
        let context = &mut self.contexts[at];
        match (context.state, context.slot) {
            (State::Queued, _) => {
                self.stop_waiting(now, at, State::Idle);
                self.close_off_slot(call, at);
            }
            (State::Bound, Some(slot)) => {
                context.closing = true;
                self.withdraw_context(call, slot, at);
            }
            (State::Running, Some(slot)) => {
                context.closing = true;
                if self.slot_with(at).is_some() {
                    self.kill(call, slot);
                }
            }
            _ => self.close_off_slot(call, at),
        }
        if self.contexts.find(id).is_some() {
            self.leave_gang(call, at);
        }
        self.finish(call);
        Ok(())
    }

    /// Releases a context that is on no slot, unless a slot that is out of use can reach its memory.
    fn close_off_slot<C: Card>(&mut self, call: &mut Call<'_, C>, at: EntityIndex) {
        match self.contexts[at].stuck && !self.gone {
            true => self.contexts[at].closing = true,
            false => self.release(call, at),
        }
    }
}
