// SPDX-License-Identifier: GPL-2.0

//! The tracepoints of a card ([`crate::trace`]).

use super::{
    execute::Executor,
    state::{context_of, State},
    Card,
};
use crate::{
    bar::Fault,
    image::ContextRef,
    relay::RunTimes,
    scheduler::{
        ContextId, GroupKey, GroupSettings, JobState, NewJob, Notice, PastJobs, Refusal, RunEnd,
        SlotId, SlotState, Status, Time, Wake,
    },
    trace::{self, Arrival, CardEvent, QueueEvent, Request, Subject},
};
use kernel::sync::atomic::Relaxed;

impl Card {
    /// Sets the number of the card's node.
    pub(crate) fn set_number(&self, number: u32) {
        self.number.store(number, Relaxed);
    }

    /// Returns the card as the subject of a tracepoint.
    pub(crate) fn subject(&self) -> Subject {
        Subject::card(self.number.load(Relaxed))
    }

    /// Traces an event of the card as a whole.
    pub(crate) fn note(&self, event: CardEvent) {
        trace::card(|| (self.subject(), event as u32));
    }

    /// Traces that the process `pid` opens the card.
    pub(crate) fn note_open(&self, pid: i32) {
        trace::context_open(|| (self.subject().of(None, pid),));
    }

    /// Returns a context on a slot as the subject of a tracepoint.
    pub(super) fn context_on(
        &self,
        contexts: &mut [Option<ContextRef>],
        slot: Option<SlotId>,
        ctx: Option<ContextId>,
    ) -> Subject {
        let context = ctx.and_then(|ctx| context_of(contexts, ctx));
        let pid = context.map_or(0, |context| context.pid());
        self.subject().on(slot).of(ctx, pid)
    }

    /// Returns a context, on the slot where it is, as the subject of a tracepoint.
    fn context_in(&self, state: &mut State, ctx: ContextId) -> Subject {
        let slot = state.scheduler.slot_of(ctx);
        self.context_on(&mut state.contexts, slot, Some(ctx))
    }

    /// Returns a slot, and the context that runs there, as the subject of a tracepoint.
    fn slot_in(&self, state: &mut State, slot: SlotId) -> Subject {
        let slot_state = state.scheduler.slot_state(slot);
        let ctx = slot_state.and_then(SlotState::context);
        self.context_on(&mut state.contexts, Some(slot), ctx)
    }

    /// Traces that a context was set up for `slots`.
    pub(super) fn note_setup(&self, state: &mut State, ctx: ContextId, slots: u8) {
        trace::context_setup(|| {
            let group = state.scheduler.group_of(ctx).map_or(0, |group| group.0);
            (self.context_in(state, ctx), slots.into(), group)
        });
    }

    /// Traces that a program has set how jobs of a context have ended elsewhere.
    pub(super) fn note_past(&self, state: &mut State, ctx: ContextId, past: PastJobs) {
        trace::outcome(|| {
            let result = past.last.map_or(0, trace::failure);
            let job = past.finished + past.failed;
            (self.context_in(state, ctx), job, result)
        });
    }

    /// Traces that a group was registered or changed; `None`: its registration ended.
    pub(super) fn note_group(&self, group: GroupKey, settings: Option<GroupSettings>) {
        trace::group(|| {
            let set = settings.is_some();
            let GroupSettings {
                weight,
                max_priority,
                cap,
                slots,
            } = settings.unwrap_or_default();
            (
                self.subject(),
                group.0,
                set,
                weight.into(),
                max_priority.into(),
                cap.into(),
                slots.into(),
            )
        });
    }

    /// Traces an interrupt for `slots`, which was `useful` or spurious.
    pub(super) fn note_interrupt(&self, slots: u8, useful: bool) {
        trace::interrupt(|| (self.subject(), slots.into(), useful));
    }

    /// Traces that the timer of `slot` fires all the time.
    pub(super) fn note_timer_storm(&self, state: &mut State, slot: SlotId) {
        trace::timer_storm(|| (self.slot_in(state, slot),));
    }

    /// Traces that the job of `ctx` waits although it could run on `slot`, which is vacant.
    pub(super) fn note_standstill(&self, state: &mut State, slot: SlotId, ctx: ContextId) {
        trace::standstill(|| {
            let contexts = &mut state.contexts;
            (self.context_on(contexts, Some(slot), Some(ctx)),)
        });
    }

    /// Traces that a program has written registers.
    pub(super) fn note_registers(&self, state: &mut State, ctx: ContextId, count: usize) {
        // CAST: at most as many as a slot has.
        trace::registers(|| (self.context_in(state, ctx), count as u32));
    }

    /// Traces the status of `slot`, which goes to the scheduler.
    pub(super) fn note_status(&self, state: &mut State, slot: SlotId, status: Status) {
        trace::status(|| (self.slot_in(state, slot), status.raw()));
    }

    /// Traces that the owner of `ctx` starts a job.
    pub(super) fn note_start(&self, state: &mut State, ctx: ContextId, job: NewJob) {
        trace::job_start(|| {
            let (_, last) = state.scheduler.job(ctx).ok()?;
            let subject = self.context_in(state, ctx);
            Some((subject, last + 1, job.replayable, job.saved, job.held))
        });
        let is_held = job.held || state.scheduler.is_kept(ctx);
        let arrives = |state: JobState| !state.is_live() && !is_held;
        self.note_arrival(state, ctx, Arrival::Start, arrives);
    }

    /// Traces that the owner of `ctx` announces a job for `at`.
    pub(super) fn note_hint(&self, state: &mut State, ctx: ContextId, at: Time) {
        trace::hint(|| (self.context_in(state, ctx), at.as_ns()));
    }

    /// Traces that `ctx` is closed.
    pub(super) fn note_close(&self, state: &mut State, ctx: ContextId) {
        trace::context_close(|| (self.context_in(state, ctx),));
    }

    /// Traces a request for `ctx` that has no tracepoint of its own.
    pub(super) fn note_request(&self, state: &mut State, ctx: ContextId, request: Request) {
        if matches!(request, Request::Doorbell) {
            trace::queue(|| (self.context_in(state, ctx), QueueEvent::Doorbell as u32));
        } else {
            trace::request(|| (self.context_in(state, ctx), request as u32));
        }
        match request {
            Request::Resume => {
                let is_kept = state.scheduler.is_kept(ctx);
                let is_off = |state| matches!(state, JobState::Held | JobState::Empty) && !is_kept;
                self.note_arrival(state, ctx, Arrival::Resume, is_off);
            }
            Request::HoldEnd => {
                let is_last = state.scheduler.is_kept_by_one(ctx);
                let is_released = |state| state == JobState::Held && is_last;
                self.note_arrival(state, ctx, Arrival::Resume, is_released);
            }
            Request::Doorbell => {
                let is_empty = |state| state == JobState::Empty;
                self.note_arrival(state, ctx, Arrival::Doorbell, is_empty);
            }
            _ => {}
        }
    }

    /// Traces that the job of `ctx` wants a slot from now on, if `wanted_none` holds of its state.
    fn note_arrival(
        &self,
        state: &mut State,
        ctx: ContextId,
        arrival: Arrival,
        wanted_none: impl Fn(JobState) -> bool,
    ) {
        trace::arrival(|| {
            let (job, _) = state.scheduler.job(ctx).ok()?;
            let urgency = state.scheduler.params(ctx).ok()?.urgency;
            let subject = self.context_in(state, ctx);
            wanted_none(job).then_some((subject, trace::urgency(urgency), arrival as u32))
        });
    }

    /// Traces that the scheduler refused a request for `ctx`.
    pub(super) fn note_refusal(
        &self,
        state: &mut State,
        ctx: ContextId,
        request: Request,
        refusal: Refusal,
    ) {
        trace::refused(|| {
            let subject = self.context_in(state, ctx);
            (subject, request as u32, trace::refusal(refusal))
        });
    }

    /// Traces that the engine of `slot` has reported completions in the queue of `ctx`.
    pub(super) fn note_queue(&self, state: &mut State, slot: SlotId, ctx: ContextId) {
        trace::queue(|| {
            let subject = self.context_on(&mut state.contexts, Some(slot), Some(ctx));
            (subject, QueueEvent::Completed as u32)
        });
    }

    /// Traces that the vector of `slot` was switched off for a moment, because it reported too many
    /// completions.
    pub(super) fn note_throttled(&self, state: &mut State, slot: SlotId) {
        trace::queue(|| (self.slot_in(state, slot), QueueEvent::Throttled as u32));
    }

    /// Traces that the job on `slot` made an access that its window refused.
    pub(super) fn note_fault(&self, state: &mut State, slot: SlotId, fault: Fault) {
        trace::fault(|| (self.slot_in(state, slot), fault.address, fault.is_write));
    }
}

impl Executor<'_> {
    /// Returns a context on a slot as the subject of a tracepoint.
    pub(super) fn on(&mut self, slot: SlotId, ctx: ContextId) -> Subject {
        self.card.context_on(self.contexts, Some(slot), Some(ctx))
    }

    /// Returns a context on no slot as the subject of a tracepoint.
    fn off(&mut self, ctx: ContextId) -> Subject {
        self.card.context_on(self.contexts, None, Some(ctx))
    }

    /// Traces that the registers of `ctx` are about to be written to `slot`.
    pub(super) fn note_load(&mut self, slot: SlotId, ctx: ContextId) {
        trace::load(|| {
            let subject = self.on(slot, ctx);
            let image = context_of(self.contexts, ctx)?.image();
            let (written, cleared) = image.burst(&self.slots[slot].shadow);
            let window = image.window().unwrap_or_default();
            let (base, iova) = (window.device_base, window.iova);
            Some((subject, written, cleared, base, iova, window.length))
        });
    }

    /// Traces that a run has ended.
    pub(super) fn note_end(&mut self, slot: SlotId, ctx: ContextId, run: &RunEnd) {
        trace::stop(|| {
            let RunTimes {
                began,
                worked,
                stopped,
                left,
            } = self.outbox.times;
            let why = trace::end(run.reason)?;
            Some((self.on(slot, ctx), why, began, worked, stopped, left))
        });
    }

    /// Traces that the owner of `ctx`, which is on no slot any more, is about to be notified.
    pub(super) fn note_notice(&mut self, ctx: ContextId, notice: Notice) {
        let mut end = |result| {
            trace::job_end(|| {
                let job = context_of(self.contexts, ctx)?.job();
                Some((self.off(ctx), job, result))
            });
        };
        match notice {
            Notice::Job(Wake::Done) => end(0),
            Notice::Job(Wake::Failed(failure)) => end(trace::failure(failure)),
            Notice::Job(Wake::Held) => trace::held(|| (self.off(ctx),)),
            Notice::Job(Wake::Empty) => {
                trace::queue(|| (self.off(ctx), QueueEvent::Empty as u32));
            }
            Notice::Released => trace::context_released(|| (self.off(ctx),)),
            Notice::Lost | Notice::Stuck => {}
        }
    }
}
