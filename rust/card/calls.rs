// SPDX-License-Identifier: GPL-2.0

//! Calls of programs that act on a context of the card.

use super::{
    config::refused,
    execute::Executor,
    groups::SWEEP_MS,
    now,
    state::{context_of, State},
    Card,
};
use crate::{
    bar::Fault,
    image::{AppRegister, ContextRef, Image},
    measure::{ContextHistograms, Histogram, SlotHistograms},
    notifier::Notice,
    scheduler::{
        self, ContextConfig, ContextId, Duration, GroupKey, GroupStats, JobState, NewJob, PastJobs,
        PolicyKind, Refusal, Scheduler, SlotId, Stats, Time,
    },
    trace::Request,
};
use kernel::prelude::*;

/// Number of registers that a call reads or writes while it holds the card's lock with interrupts
/// off: a read waits for the card, for a microsecond or more.
const REGISTERS_AT_ONCE: usize = 8;

/// The state of a context at a moment, for `FERMATA_IOC_STATUS`, `FERMATA_IOC_WAIT` and `poll()`.
pub(crate) struct View {
    /// The scheduler's part.
    pub(crate) stats: Stats,
    /// The parameters in force.
    pub(crate) params: scheduler::Params,
    /// The access that stopped the last job.
    pub(crate) fault: Option<Fault>,
    /// Jobs that were stopped by such an access.
    pub(crate) faults: u64,
    /// How often another job waited too long for a boundary of the context's job.
    pub(crate) overruns: u64,
    /// How long others waited beyond the boundary wait, where the engine stops only at boundaries.
    pub(crate) overrun: Duration,
}

/// Calls for one context. Process context; `ENODEV`: the card is gone; `ESRCH`: the context was
/// closed, which that of the caller never is. Once the scheduler knows that the card is gone, none
/// of them touches a register, so they need not keep the device bound.
impl Card {
    /// Adds a context, and takes its `part` of the card's state. [`Card::drop_released`] drops the
    /// part after [`Card::close`] and [`Notice::Released`].
    pub(crate) fn add(
        &self,
        config: ContextConfig,
        part: &mut Option<ContextRef>,
    ) -> Result<ContextId> {
        let slots = config.params.mask;
        let id = {
            let mut state = self.state.lock();
            let id = state.scheduler.add(now(), config).map_err(refused)?;
            // Slots are watched while there are contexts.
            self.sweeper.queue(SWEEP_MS);
            // The scheduler has places for as many contexts as this table.
            let place = state.contexts.get_mut(id.index()).ok_or(EINVAL)?;
            // The part of a released context may still be there.
            core::mem::swap(place, part);
            self.note_setup(&mut state, id, slots);
            id
        };
        // Not under the raw lock.
        *part = None;
        Ok(id)
    }

    /// Drops the part of a released context, after [`Notice::Released`].
    pub(crate) fn drop_released(&self, ctx: ContextId) {
        let part = {
            let mut state = self.state.lock();
            let place = state.contexts.get_mut(ctx.index());
            place.and_then(|place| place.take_if(|part| part.is_released()))
        };
        // Not under the raw lock.
        drop(part);
    }

    /// Starts a job, and returns the job's number. `check` is called under the card's lock with the
    /// slots that the context may use and whether its image has a window. It checks everything but
    /// the scheduler's state. A start that is refused keeps the results of the last job. `EPERM`:
    /// other devices share the card's address space, see [`Card::check_neighbours`].
    pub(crate) fn start(
        &self,
        ctx: ContextId,
        job: NewJob,
        check: impl FnOnce(u8, bool) -> Result,
    ) -> Result<u64> {
        let may_reach = self.may_reach_neighbours();
        let mut state = self.state.lock();
        self.check_neighbours(may_reach)?;
        if let Err(refusal) = state.scheduler.check_start(ctx) {
            self.note_refusal(&mut state, ctx, Request::Start, refusal);
            return Err(refused(refusal));
        }
        let mask = state.scheduler.params(ctx).map_err(refused)?.mask;
        let (_, last) = state.scheduler.job(ctx).map_err(refused)?;
        let number = last + 1;
        let context = state.context(ctx).ok_or(ESRCH)?;
        check(mask, context.image().window().is_some())?;
        context.begin_job(number);
        self.note_start(&mut state, ctx, job);
        let result = self.act(&mut state, |scheduler, card, at| {
            scheduler.start(card, at, ctx, job)
        });
        self.answer(&mut state, ctx, Request::Start, result)?;
        Ok(number)
    }

    /// Sets how jobs of a context have ended elsewhere. `EBUSY`: the context has had a job here;
    /// `EINVAL`: a result is not declared.
    pub(crate) fn set_past(
        &self,
        ctx: ContextId,
        past: PastJobs,
        fault: Option<Fault>,
        results: &[(AppRegister, u64)],
    ) -> Result {
        let mut state = self.state.lock();
        state.scheduler.check_past(ctx).map_err(refused)?;
        let context = state.context(ctx).ok_or(ESRCH)?;
        context.image().set_past(results, fault)?;
        context.notify(&self.delivery, Notice::Done);
        self.note_past(&mut state, ctx, past);
        state.scheduler.set_past(ctx, past).map_err(refused)
    }

    /// Declares the result registers of a context. `EBUSY`: its job has not ended.
    pub(crate) fn declare_results(&self, ctx: ContextId, registers: &[AppRegister]) -> Result {
        let mut state = self.state.lock();
        let (job, _) = state.scheduler.job(ctx).map_err(refused)?;
        if job.is_live() {
            return Err(EBUSY);
        }
        let context = state.context(ctx).ok_or(ESRCH)?;
        context.image().declare_results(registers);
        Ok(())
    }

    /// Sets the values of the results of a held job. `EBUSY`: the job is not held; `EINVAL`: a
    /// result is not declared.
    pub(crate) fn set_results(&self, ctx: ContextId, results: &[(AppRegister, u64)]) -> Result {
        let mut state = self.state.lock();
        match state.scheduler.job(ctx).map_err(refused)? {
            (JobState::Held, _) => {}
            _ => return Err(EBUSY),
        }
        let context = state.context(ctx).ok_or(ESRCH)?;
        context.image().set_past(results, None)
    }

    /// Returns a context that identifies the gang of a context: the same one for all members.
    /// `None`: the context is in no gang.
    pub(crate) fn gang_of(&self, ctx: ContextId) -> Result<Option<ContextId>> {
        self.state.lock().scheduler.gang_of(ctx).map_err(refused)
    }

    /// Traces a refusal of the scheduler.
    fn answer(
        &self,
        state: &mut State,
        ctx: ContextId,
        request: Request,
        result: Result<(), Refusal>,
    ) -> Result {
        result.map_err(|refusal| {
            self.note_refusal(state, ctx, request, refusal);
            refused(refusal)
        })
    }

    /// Passes a request for a context to the scheduler.
    fn submit(
        &self,
        ctx: ContextId,
        request: Request,
        f: impl FnOnce(&mut Scheduler, &mut Executor<'_>, Time) -> Result<(), Refusal>,
    ) -> Result {
        self.submit_locked(&mut self.state.lock(), ctx, request, f)
    }

    fn submit_locked(
        &self,
        state: &mut State,
        ctx: ContextId,
        request: Request,
        f: impl FnOnce(&mut Scheduler, &mut Executor<'_>, Time) -> Result<(), Refusal>,
    ) -> Result {
        self.note_request(state, ctx, request);
        let result = self.act(state, f);
        self.answer(state, ctx, request, result)
    }

    /// Passes a request to the scheduler by which a job may get a slot. `EPERM`: as with
    /// [`Card::start`].
    fn submit_to_run(
        &self,
        ctx: ContextId,
        request: Request,
        f: impl FnOnce(&mut Scheduler, &mut Executor<'_>, Time) -> Result<(), Refusal>,
    ) -> Result {
        let may_reach = self.may_reach_neighbours();
        let mut state = self.state.lock();
        self.check_neighbours(may_reach)?;
        self.submit_locked(&mut state, ctx, request, f)
    }

    /// Preempts the job, to be held or queued.
    pub(crate) fn preempt(&self, ctx: ContextId, hold: bool) -> Result {
        let request = match hold {
            true => Request::Hold,
            false => Request::Preempt,
        };
        self.submit(ctx, request, |scheduler, card, at| {
            scheduler.preempt(card, at, ctx, hold)
        })
    }

    /// Rings the doorbell of a context: there is work in its queue. `EPERM`: as with `start`.
    pub(crate) fn ring(&self, ctx: ContextId) -> Result {
        self.submit_to_run(ctx, Request::Doorbell, |scheduler, card, at| {
            scheduler.ring(card, at, ctx)
        })
    }

    /// Resumes a held job. `EPERM`: as with `start`.
    pub(crate) fn resume(&self, ctx: ContextId) -> Result {
        self.submit_to_run(ctx, Request::Resume, |scheduler, card, at| {
            scheduler.resume(card, at, ctx)
        })
    }

    /// Adds a hold to a context.
    pub(crate) fn hold(&self, ctx: ContextId) -> Result {
        self.submit(ctx, Request::HoldBegin, |scheduler, card, at| {
            scheduler.hold(card, at, ctx)
        })
    }

    /// Takes a hold away from a context, which may be closed. Any card.
    pub(crate) fn end_hold(&self, ctx: ContextId) {
        // A refusal means that nothing is left that could be held.
        let _ = self.submit(ctx, Request::HoldEnd, |scheduler, card, at| {
            scheduler.end_hold(card, at, ctx)
        });
    }

    /// Announces that the context will start a job at `at`; zero: takes the hint back.
    pub(crate) fn hint(&self, ctx: ContextId, at: Time) -> Result {
        let mut state = self.state.lock();
        self.note_hint(&mut state, ctx, at);
        let result = self.act(&mut state, |scheduler, card, now| {
            scheduler.hint(card, now, ctx, at)
        });
        self.answer(&mut state, ctx, Request::Hint, result)
    }

    /// Requests the end of a context. [`Notice::Released`] follows, unless [`Notice::Stuck`] was
    /// given.
    pub(crate) fn close(&self, ctx: ContextId) {
        let mut state = self.state.lock();
        self.note_close(&mut state, ctx);
        let result = self.act(&mut state, |scheduler, card, at| {
            scheduler.close(card, at, ctx)
        });
        // A refusal means that the context was released before.
        let _ = self.answer(&mut state, ctx, Request::Close, result);
    }

    /// Returns whether a quarantined slot may still reach the memory of a context.
    pub(crate) fn is_stuck(&self, ctx: ContextId) -> bool {
        self.state.lock().scheduler.is_stuck(ctx)
    }

    /// Returns the state of the job of a context, and the job's number; 0: there was none.
    pub(crate) fn job(&self, ctx: ContextId) -> Result<(JobState, u64)> {
        self.state.lock().scheduler.job(ctx).map_err(refused)
    }

    /// Returns the state of a context.
    pub(crate) fn view(&self, ctx: ContextId) -> Result<View> {
        let mut state = self.state.lock();
        let at = state.shown_until();
        let stats = state.scheduler.stats(ctx, at).map_err(refused)?;
        let params = state.scheduler.params(ctx).map_err(refused)?;
        let context = state.context(ctx).ok_or(ESRCH)?;
        let (fault, faults) = context.image().faults();
        let (overruns, overrun) = context.overruns();
        Ok(View {
            stats,
            params,
            fault,
            faults,
            overruns,
            overrun,
        })
    }

    /// Returns the parameters of a context.
    pub(crate) fn params(&self, ctx: ContextId) -> Result<scheduler::Params> {
        self.state.lock().scheduler.params(ctx).map_err(refused)
    }

    /// Changes the parameters of a context with `change`.
    pub(crate) fn set_params(
        &self,
        ctx: ContextId,
        change: impl FnOnce(&mut scheduler::Params),
    ) -> Result {
        let mut state = self.state.lock();
        let mut params = state.scheduler.params(ctx).map_err(refused)?;
        change(&mut params);
        self.act(&mut state, |scheduler, card, at| {
            scheduler.set_params(card, at, ctx, params)
        })
        .map_err(refused)
    }

    /// Lets the jobs of a context run, or keeps them off slots.
    pub(crate) fn set_enabled(&self, ctx: ContextId, enabled: bool) -> Result {
        self.act(&mut self.state.lock(), |scheduler, card, at| {
            scheduler.set_enabled(card, at, ctx, enabled)
        })
        .map_err(refused)
    }

    /// Puts a context into the gang of another context, or into none. `EINVAL`: the other context
    /// is the same one, or belongs to another group; `ENOSPC`: there are not enough slots for all
    /// members.
    pub(crate) fn set_gang(&self, ctx: ContextId, with: Option<ContextId>) -> Result {
        self.act(&mut self.state.lock(), |scheduler, card, at| {
            scheduler.set_gang(card, at, ctx, with)
        })
        .map_err(|refusal| match refusal {
            Refusal::Range => EINVAL,
            other => refused(other),
        })
    }

    /// Returns the number of members of the gang of a context, itself included.
    pub(crate) fn gang_size(&self, ctx: ContextId) -> Result<u32> {
        self.state.lock().scheduler.gang_size(ctx).map_err(refused)
    }

    /// Calls `f` with the image of a context.
    pub(crate) fn with_image<R>(
        &self,
        ctx: ContextId,
        f: impl FnOnce(&mut Image) -> R,
    ) -> Result<R> {
        Ok(f(self.state.lock().context(ctx).ok_or(ESRCH)?.image()))
    }

    /// Writes registers of a context, also to its slot while it is on one. The lock is released
    /// between pieces, so that other users of the card get their turn; meanwhile the context may be
    /// put on a slot or leave it.
    pub(crate) fn write_registers(
        &self,
        ctx: ContextId,
        registers: &[(AppRegister, u64)],
    ) -> Result {
        for piece in registers.chunks(REGISTERS_AT_ONCE) {
            self.write_some_registers(ctx, piece)?;
        }
        Ok(())
    }

    fn write_some_registers(&self, ctx: ContextId, registers: &[(AppRegister, u64)]) -> Result {
        let mut state = self.state.lock();
        let State {
            scheduler,
            contexts,
            slots,
            relay,
            ..
        } = &mut **state;
        // A relay loads registers from memory, for the next run.
        let slot = scheduler.slot_of(ctx).filter(|_| relay.is_none());
        if let Some(slot) = slot {
            // The next context on the slot waits until these registers are cleared.
            slots[slot].writer = scheduler.group_of(ctx).ok().map(|group| (ctx, group));
        }
        let image = context_of(contexts, ctx).ok_or(ESRCH)?.image();
        for &(register, value) in registers {
            slots.note_change(ctx, register);
            let slot = slot.map(|slot| (slot, &mut slots[slot].shadow));
            image.write(&self.bar, slot, register, value);
        }
        self.note_registers(&mut state, ctx, registers.len());
        Ok(())
    }

    /// Reads registers of a context: from its slot while it is on one and its state is restored,
    /// else as they were when it left its slot. In pieces, as [`Card::write_registers`]. `EAGAIN`:
    /// the value of a register is not available now. `EACCES`: the context may not read a register.
    /// `EIO`: a register gives no answer.
    pub(crate) fn read_registers(
        &self,
        ctx: ContextId,
        registers: &mut [(AppRegister, u64)],
    ) -> Result {
        for piece in registers.chunks_mut(REGISTERS_AT_ONCE) {
            self.read_some_registers(ctx, piece)?;
        }
        Ok(())
    }

    fn read_some_registers(&self, ctx: ContextId, registers: &mut [(AppRegister, u64)]) -> Result {
        let mut state = self.state.lock();
        let occupied = state.scheduler.slot_of(ctx);
        let slot = match occupied {
            Some(slot) if self.has_restored(&mut state, slot)? => Some(slot),
            _ => None,
        };
        self.read_from(&mut state, ctx, slot, registers)?;
        let Some(occupied) = occupied.filter(|_| self.has_relay()) else {
            return Ok(());
        };
        if self.still_runs(&mut state, occupied) {
            return Ok(());
        }
        // The relay has switched: what was read may be of another context, or of an earlier run.
        self.read_from(&mut state, ctx, None, registers)
    }

    fn read_from(
        &self,
        state: &mut State,
        ctx: ContextId,
        slot: Option<SlotId>,
        registers: &mut [(AppRegister, u64)],
    ) -> Result {
        let image = state.context(ctx).ok_or(ESRCH)?.image();
        // An offset of a base card may give no answer, which the link may take for an error.
        let any = !self.identity.is_base || self.limits.base_read_any;
        if !any && !registers.iter().all(|&(register, _)| image.names(register)) {
            return Err(EACCES);
        }
        match slot {
            Some(slot) => self.read_slot(state, slot, registers),
            None => registers.iter_mut().try_for_each(|(register, value)| {
                *value = image.captured(*register)?;
                Ok(())
            }),
        }
    }

    fn read_slot(
        &self,
        state: &mut State,
        slot: SlotId,
        registers: &mut [(AppRegister, u64)],
    ) -> Result {
        let (mut all_ones, mut answer, begun) = (false, Ok(()), now());
        for (register, value) in registers {
            let read = self.bar.read_application(slot, register.offset(), begun);
            *value = read.unwrap_or(u64::MAX);
            if *value == u64::MAX {
                all_ones = true;
                answer = match self.bar.silence(slot) {
                    Some(_) => Err(EAGAIN),
                    None => read.map(drop),
                };
            }
            if answer.is_err() {
                break;
            }
        }
        self.check_alive(state, all_ones.then_some(slot))?;
        answer
    }
}

/// Calls for the group of a context. Process context; `ESRCH`: the context was closed.
impl Card {
    /// Returns the group of a context, and the group's statistics.
    pub(crate) fn group(&self, ctx: ContextId) -> Result<(GroupKey, GroupStats)> {
        let mut state = self.state.lock();
        let at = state.shown_until();
        let group = state.scheduler.group_of(ctx).map_err(refused)?;
        Ok((group, state.scheduler.group_stats(group, at)))
    }

    /// Returns the highest priority that a context may have.
    pub(crate) fn max_priority(&self, ctx: ContextId) -> Result<u8> {
        self.state
            .lock()
            .scheduler
            .max_priority(ctx)
            .map_err(refused)
    }
}

/// Calls for the card as a whole. Process context; `ENODEV`: the card is gone.
impl Card {
    /// Returns the policy in force.
    pub(crate) fn policy(&self) -> PolicyKind {
        self.state.lock().scheduler.policy()
    }

    /// Returns the starvation boost interval.
    pub(crate) fn boost(&self) -> Duration {
        self.state.lock().scheduler.boost()
    }

    /// Sets the starvation boost interval. `ERANGE`.
    pub(crate) fn set_boost(&self, boost: Duration) -> Result {
        self.act(&mut self.state.lock(), |scheduler, card, at| {
            scheduler.set_boost(card, at, boost)
        })
        .map_err(refused)
    }

    /// Returns the boundary wait: how long urgent work waits for a cooperative job's boundary.
    pub(crate) fn boundary_wait(&self) -> Duration {
        self.state.lock().scheduler.boundary_wait()
    }

    /// Sets the boundary wait. `ERANGE`.
    pub(crate) fn set_boundary_wait(&self, wait: Duration) -> Result {
        let mut state = self.state.lock();
        state.scheduler.set_boundary_wait(wait).map_err(refused)
    }

    /// Sets the policy.
    pub(crate) fn set_policy(&self, policy: PolicyKind) -> Result {
        self.act(&mut self.state.lock(), |scheduler, _, at| {
            scheduler.set_policy(at, policy)
        })
        .map_err(refused)?;
        self.sweep();
        Ok(())
    }
}

/// Copies of histograms, which are made under the card's lock, a kilobyte at a time.
impl Card {
    /// Copies one of the histograms of `slot`.
    pub(crate) fn copy_of_slot(
        &self,
        slot: SlotId,
        which: fn(&SlotHistograms) -> &Histogram,
        copy: &mut Histogram,
    ) {
        let state = self.state.lock();
        copy.clone_from(which(&state.slots[slot].histograms));
    }

    /// Copies one of the histograms of a context. `ESRCH`: the context was closed.
    pub(crate) fn copy_of_context(
        &self,
        ctx: ContextId,
        which: fn(&ContextHistograms) -> &Histogram,
        copy: &mut Histogram,
    ) -> Result {
        let mut state = self.state.lock();
        // A context that is being closed is still in the table.
        state.scheduler.params(ctx).map_err(refused)?;
        let meter = state.context(ctx).ok_or(ESRCH)?.meter();
        copy.clone_from(which(&meter.histograms));
        Ok(())
    }
}
