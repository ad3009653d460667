// SPDX-License-Identifier: GPL-2.0

//! What owners ask for. Each request is checked completely before it changes anything.

use core::ops::DerefMut;

use super::doorbell::Parting;
use super::machine::{Machine, Out};
use super::replay::Replays;
use super::reset::Outcome;
use super::{Action, ContextId, Entry, Failure, JobState, Params, PauseCause, Refusal, Time, Wake};

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// Whether a Start would be accepted now.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`], [`Refusal::Gone`], [`Refusal::Busy`] (the last job has not ended), [`Refusal::NoSlot`] (also
    /// while a quarantined slot can still reach the context's memory).
    pub fn check_start(&self, ctx: ContextId) -> Result<(), Refusal> {
        let entry = self.slab.owned(ctx)?;
        if self.gone {
            return Err(Refusal::Gone);
        }
        if entry.state.is_live() {
            return Err(Refusal::Busy);
        }
        if entry.stuck {
            return Err(Refusal::NoSlot);
        }
        self.check_mask(entry.queue, entry.params.mask)
    }

    /// Start: a new job, from its beginning or from a `saved` state.
    pub(super) fn start_job(
        &mut self,
        now: Time,
        ctx: ContextId,
        replayable: bool,
        saved: bool,
        out: &mut Out<'_>,
    ) -> Result<(), Refusal> {
        self.check_start(ctx)?;
        let queue = self.slab.owned(ctx)?.queue;
        if let Some(entry) = self.slab.get_mut(ctx) {
            entry.saved = saved;
            entry.replays = Replays::of_new_job(replayable);
            entry.parting = Parting::Free;
            entry.yields = false;
        }
        self.use_hint(now, ctx);
        self.wake_clock(now, ctx);
        self.enqueue(now, ctx, true);
        self.press(now, queue, out);
        Ok(())
    }

    /// Preempt, of one context. On a job that is queued or held, or that just ended on a slot not yet cleared, it asks for nothing that
    /// is not so already, and is no error; but a queued job becomes held if asked.
    pub(super) fn preempt(
        &mut self,
        now: Time,
        ctx: ContextId,
        hold: bool,
        out: &mut Out<'_>,
    ) -> Result<(), Refusal> {
        let entry = self.slab.owned(ctx)?;
        let (state, queue) = (entry.state, entry.queue);
        if self.gone {
            return Err(Refusal::Gone);
        }
        match state {
            JobState::Idle | JobState::Done | JobState::Failed(_) => Err(Refusal::NoJob),
            JobState::Held => Ok(()),
            JobState::Queued | JobState::Empty => {
                if hold {
                    self.hold_off_slot(now, ctx, state);
                    out(Action::Wake {
                        ctx,
                        wake: Wake::Held,
                    });
                }
                Ok(())
            }
            JobState::Running => {
                if let Some(entry) = self.slab.get_mut(ctx) {
                    if hold {
                        entry.parting = Parting::Held;
                    }
                    entry.yields |= !hold;
                }
                if let Some(slot) = self.slab.get(ctx).and_then(|entry| entry.slot) {
                    self.pause(now, slot, PauseCause::Request, out);
                }
                self.press(now, queue, out);
                Ok(())
            }
        }
    }

    /// Holds a job that waits, or whose queue is empty.
    fn hold_off_slot(&mut self, now: Time, ctx: ContextId, state: JobState) {
        if state == JobState::Queued {
            self.dequeue(now, ctx, JobState::Held);
            return;
        }
        self.withdraw_hint(now, ctx);
        if let Some(entry) = self.slab.get_mut(ctx) {
            entry.state = JobState::Held;
        }
    }

    /// Resume, of one context. On a job that is on its slot, it takes back a hold that was asked for and has not come about.
    /// One whose queue is empty looks at it again. Returns whether the job waits for a slot from now on: the caller presses.
    pub(super) fn resume(&mut self, now: Time, ctx: ContextId) -> Result<bool, Refusal> {
        let entry = self.slab.owned(ctx)?;
        if self.gone {
            return Err(Refusal::Gone);
        }
        if !entry.state.is_live() {
            return Err(Refusal::NoJob);
        }
        let queue = entry.queue;
        let empty = entry.state == JobState::Empty;
        let off = empty || entry.state == JobState::Held;
        let unheld = self.parting_unheld(entry.slot);
        if off {
            self.check_mask(queue, entry.params.mask)?;
        }
        if let Some(entry) = self.slab.get_mut(ctx) {
            if entry.parting == Parting::Held {
                entry.parting = unheld;
            }
        }
        if off {
            if empty {
                self.use_hint(now, ctx);
            }
            self.wake_clock(now, ctx);
            self.enqueue(now, ctx, true);
        }
        Ok(off)
    }

    /// Close. What is on no slot is released at once; a job on a slot is stopped by a reset, because nobody wants its
    /// snapshot any more, and its memory may go only when the slot is quiescent.
    pub(super) fn close(
        &mut self,
        now: Time,
        ctx: ContextId,
        out: &mut Out<'_>,
    ) -> Result<(), Refusal> {
        let entry = self.slab.owned(ctx)?;
        let (state, slot, queue, stuck) = (entry.state, entry.slot, entry.queue, entry.stuck);
        self.slab.leave_gang(ctx);
        self.withdraw_hint(now, ctx);
        if state == JobState::Queued {
            self.dequeue(now, ctx, JobState::Idle);
        }
        let on_slot = state == JobState::Running || (stuck && !self.gone);
        if !on_slot {
            self.release(ctx, out);
            self.press(now, queue, out);
            return Ok(());
        }
        if let Some(entry) = self.slab.get_mut(ctx) {
            entry.close();
        }
        if let Some(id) = slot {
            let run = self.slot(id).and_then(|slot| slot.state.run());
            if run.is_some_and(|run| run.ctx == ctx) {
                self.begin_reset(now, id, ctx, Outcome::Failed(Failure::Protocol), out);
            }
        }
        self.press(now, queue, out);
        Ok(())
    }

    pub(super) fn release(&mut self, ctx: ContextId, out: &mut Out<'_>) {
        if let Some(entry) = self.slab.get(ctx) {
            let (index, params) = (entry.queue, entry.params);
            self.note_admission(index, Some(&params), None);
        }
        self.slab.free(ctx);
        out(Action::Released { ctx });
    }

    /// Lets a job that is on no slot wait; `wakes`: it did not want one before.
    pub(super) fn enqueue(&mut self, now: Time, ctx: ContextId, wakes: bool) {
        let Some(entry) = self.slab.get_mut(ctx) else {
            return;
        };
        entry.state = JobState::Queued;
        entry.slot = None;
        entry.since = now;
        self.line_up(now, ctx, wakes);
    }

    /// Puts a job that waits into its queue, where the policy says, or parks it, or sets it aside.
    pub(super) fn line_up(&mut self, now: Time, ctx: ContextId, wakes: bool) {
        if self
            .slab
            .get(ctx)
            .is_some_and(|entry| self.has_no_slot(entry))
        {
            if let Some(entry) = self.slab.get_mut(ctx) {
                entry.aside = true;
            }
            return;
        }
        let until = self.park_until(now, ctx, wakes);
        let Some(entry) = self.slab.get(ctx) else {
            return;
        };
        let place = self.policy.place(entry);
        let grouped = self.policy.policy().groups(entry);
        if let Some(queue) = self.queues.get_mut(usize::from(entry.queue)) {
            match until {
                Some((at, why)) => queue.park(&mut self.slab, ctx, at, why),
                None => queue.push(&mut self.slab, ctx, place, grouped),
            }
        }
    }

    /// Takes a job that waits out of its queue; [`Self::line_up`] follows.
    pub(super) fn step_out(&mut self, ctx: ContextId) {
        if let Some(entry) = self.slab.get(ctx) {
            if let Some(queue) = self.queues.get_mut(usize::from(entry.queue)) {
                queue.remove(&mut self.slab, ctx);
            }
        }
    }

    /// Takes a job out of its queue.
    pub(super) fn dequeue(&mut self, now: Time, ctx: ContextId, state: JobState) {
        let Some(entry) = self.slab.get_mut(ctx) else {
            return;
        };
        entry.state = state;
        entry.wait += now.since(entry.since);
        if let Some(queue) = self.queues.get_mut(usize::from(entry.queue)) {
            queue.remove(&mut self.slab, ctx);
        }
    }

    pub(super) fn replace_params(&mut self, now: Time, ctx: ContextId, params: Params) {
        let Some(entry) = self.slab.get(ctx) else {
            return;
        };
        let old = entry.params;
        let (index, runs) = (entry.queue, entry.is_metered());
        let limits = |params: &Params| {
            (
                params.cap,
                params.share,
                params.budget,
                params.deadline,
                params.period,
                params.urgency,
            )
        };
        // Its place among the others stays, unless what it may have at all is another.
        let aside = entry.aside;
        let others = limits(&old) != limits(&params);
        let anew = entry.state == JobState::Queued && (entry.is_parked() || aside || others);
        let grouped = self.policy.policy().groups(entry);
        let hint = self.take_hint(ctx);
        if runs {
            self.meter(now, ctx);
            self.leave_lane(ctx);
        }
        if anew {
            self.step_out(ctx);
        }
        if let Some(entry) = self.slab.get_mut(ctx) {
            entry.params = params;
        }
        self.allow(ctx);
        self.note_admission(index, Some(&old), Some(&params));
        if old.urgency != params.urgency {
            self.join_again(ctx);
        }
        if runs {
            self.enter_lane(ctx);
        }
        self.weigh(ctx);
        if old.mask != params.mask {
            // What it missed because it was kept from slots is not made up for.
            self.wake_clock(now, ctx);
        }
        let groups = self
            .slab
            .get(ctx)
            .map(|entry| self.policy.policy().groups(entry));
        if old.urgency != params.urgency || groups != Some(grouped) {
            // Among others now, with whom it has not competed.
            self.begin_anew(ctx);
        }
        if anew {
            self.line_up(now, ctx, aside);
        } else {
            self.place_again(ctx);
        }
        self.put_hint(ctx, hint);
    }

    /// Something that the place of a context in its queue depends on has changed.
    pub(super) fn place_again(&mut self, ctx: ContextId) {
        let Some(entry) = self.slab.get(ctx) else {
            return;
        };
        if entry.state != JobState::Queued || entry.is_parked() || entry.aside {
            return;
        }
        let (rank, key) = self.policy.place(entry);
        if let Some(queue) = self.queues.get_mut(usize::from(entry.queue)) {
            queue.replace(&mut self.slab, ctx, rank, key);
        }
    }
}
