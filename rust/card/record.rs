// SPDX-License-Identifier: GPL-2.0

//! What tracepoints tell of a card ([`crate::trace`]).

use super::{now, tenant_of, Card, SlotRegisters, State};
use crate::{
    bar::Fault,
    image::Tenant,
    sched::{
        Action, ContextId, Event, GroupKey, GroupSettings, JobState, Refusal, SlotId, SlotState,
        Status, Wake,
    },
    trace::{self, Arrival, CardEvent, QueueEvent, Request, Subject},
};
use kernel::sync::atomic::Relaxed;

impl Card {
    /// The card has a node of that number.
    pub(crate) fn set_number(&self, number: u32) {
        self.number.store(number, Relaxed);
    }

    /// The card, for a tracepoint.
    pub(crate) fn subject(&self) -> Subject {
        Subject::card(self.number.load(Relaxed))
    }

    /// Something happens to the card as a whole.
    pub(crate) fn note(&self, event: CardEvent) {
        trace::card(|| (self.subject(), event as u32));
    }

    /// Somebody opens the card.
    pub(crate) fn note_open(&self, pid: i32) {
        trace::context_open(|| (self.subject().of(None, pid),));
    }

    /// A context on a slot.
    fn context_on(
        &self,
        tenants: &mut [Option<Tenant>],
        slot: Option<SlotId>,
        ctx: Option<ContextId>,
    ) -> Subject {
        let tenant = ctx.and_then(|ctx| tenant_of(tenants, ctx));
        let pid = tenant.map_or(0, |tenant| tenant.pid());
        self.subject().on(slot).of(ctx, pid)
    }

    /// A context, where it is.
    fn context_in(&self, state: &mut State, ctx: ContextId) -> Subject {
        let slot = state.machine.slot_of(ctx);
        self.context_on(&mut state.tenants, slot, Some(ctx))
    }

    /// A slot and whoever runs there.
    fn slot_in(&self, state: &mut State, slot: SlotId) -> Subject {
        let ctx = match state.machine.slot_state(slot) {
            Some(SlotState::Running(ctx) | SlotState::Pausing(ctx) | SlotState::Resetting(ctx)) => {
                Some(ctx)
            }
            _ => None,
        };
        self.context_on(&mut state.tenants, Some(slot), ctx)
    }

    /// A context was set up for `slots`.
    pub(super) fn note_setup(&self, state: &mut State, ctx: ContextId, slots: u8) {
        trace::context_setup(|| {
            let group = state.machine.group_of(ctx).map_or(0, |group| group.0);
            (self.context_in(state, ctx), slots.into(), group)
        });
    }

    /// A group was registered or changed; `None`: its registration ended.
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

    /// An interrupt came for `slots`, and was good for something or not.
    pub(super) fn note_interrupt(&self, slots: u8, useful: bool) {
        trace::interrupt(|| (self.subject(), slots.into(), useful));
    }

    /// A program has written registers.
    pub(super) fn note_registers(&self, state: &mut State, ctx: ContextId, count: usize) {
        // CAST: a call writes 256 at the most.
        trace::registers(|| (self.context_in(state, ctx), count as u32));
    }

    /// `event` goes to the machine.
    pub(super) fn note_event(&self, state: &mut State, event: Event) {
        match event {
            Event::Status { slot, status } => {
                trace::status(|| (self.slot_in(state, slot), status.raw()));
            }
            Event::Timer { .. } => {}
            Event::Gone => self.note(CardEvent::Gone),
            Event::Start {
                ctx,
                replayable,
                saved,
            } => {
                trace::job_start(|| {
                    let stats = state.machine.stats(ctx, now()).ok()?;
                    let subject = self.context_in(state, ctx);
                    Some((subject, stats.job + 1, replayable, saved))
                });
                self.note_arrival(state, ctx, Arrival::Start, |state| !state.is_live());
            }
            Event::Preempt { ctx, hold } => {
                trace::request(|| (self.context_in(state, ctx), preempt(hold) as u32));
            }
            Event::Resume { ctx } => {
                trace::request(|| (self.context_in(state, ctx), Request::Resume as u32));
                let is_off = |state| matches!(state, JobState::Held | JobState::Empty);
                self.note_arrival(state, ctx, Arrival::Resume, is_off);
            }
            Event::Ring { ctx } => {
                trace::queue(|| (self.context_in(state, ctx), QueueEvent::Doorbell as u32));
                let is_empty = |state| state == JobState::Empty;
                self.note_arrival(state, ctx, Arrival::Doorbell, is_empty);
            }
            Event::Hint { ctx, at } => {
                trace::hint(|| (self.context_in(state, ctx), at.as_ns()));
            }
            Event::Close { ctx } => {
                trace::context_close(|| (self.context_in(state, ctx),));
            }
        }
    }

    /// The job of `ctx` wants a slot from now on, if it is in a state in which it did not.
    fn note_arrival(
        &self,
        state: &mut State,
        ctx: ContextId,
        arrival: Arrival,
        wanted_none: impl Fn(JobState) -> bool,
    ) {
        trace::arrival(|| {
            let job = state.machine.stats(ctx, now()).ok()?.state;
            let urgency = state.machine.params(ctx).ok()?.urgency;
            let subject = self.context_in(state, ctx);
            wanted_none(job).then_some((subject, trace::urgency(urgency), arrival as u32))
        });
    }

    /// The machine refused `event`.
    pub(super) fn note_refusal(&self, state: &mut State, event: Event, refusal: Refusal) {
        trace::refused(|| {
            let (ctx, request) = match event {
                Event::Start { ctx, .. } => (ctx, Request::Start),
                Event::Preempt { ctx, hold } => (ctx, preempt(hold)),
                Event::Resume { ctx } => (ctx, Request::Resume),
                Event::Ring { ctx } => (ctx, Request::Doorbell),
                Event::Hint { ctx, .. } => (ctx, Request::Hint),
                Event::Close { ctx } => (ctx, Request::Close),
                Event::Status { .. } | Event::Timer { .. } | Event::Gone => return None,
            };
            let subject = self.context_in(state, ctx);
            Some((subject, request as u32, trace::refusal(refusal)))
        });
    }

    /// The engine of `slot` has told that jobs of the queue of `ctx` are complete.
    pub(super) fn note_queue(&self, state: &mut State, slot: SlotId, ctx: ContextId) {
        trace::queue(|| {
            let subject = self.context_on(&mut state.tenants, Some(slot), Some(ctx));
            (subject, QueueEvent::Completed as u32)
        });
    }

    /// The vector of `slot` was switched off for a moment: too many completions were told of.
    pub(super) fn note_throttled(&self, state: &mut State, slot: SlotId) {
        trace::queue(|| (self.slot_in(state, slot), QueueEvent::Throttled as u32));
    }

    /// The job on `slot` made an access that its window refused.
    pub(super) fn note_fault(&self, state: &mut State, slot: SlotId, fault: Fault) {
        trace::fault(|| (self.slot_in(state, slot), fault.address, fault.is_write));
    }

    /// `action` is about to be carried out; `status`: what led to it, if that was one.
    pub(super) fn note_action(
        &self,
        tenants: &mut [Option<Tenant>],
        slots: &SlotRegisters,
        status: Option<Status>,
        action: &Action,
    ) {
        let there = |slot: SlotId| slots.on[slot.index()];
        let on = |tenants: &mut _, slot, ctx| self.context_on(tenants, Some(slot), ctx);
        match *action {
            Action::Load { slot, ctx } => trace::load(|| {
                let subject = on(tenants, slot, Some(ctx));
                let image = tenant_of(tenants, ctx)?.image();
                let (written, cleared) = image.burst(&slots.residue[slot.index()]);
                let window = image.window().unwrap_or_default();
                let (base, iova) = (window.device_base, window.iova);
                Some((subject, written, cleared, base, iova, window.length))
            }),
            Action::Unload { slot } => trace::unload(|| (on(tenants, slot, there(slot)),)),
            Action::Start {
                slot,
                ctx,
                resume,
                starved,
            } => trace::start(|| (on(tenants, slot, Some(ctx)), resume, starved.into())),
            Action::Pause {
                slot,
                boundary,
                cause,
            } => trace::pause(|| {
                let (why, waiter) = trace::cause(cause);
                let waiter = waiter.map_or(0, trace::number);
                (on(tenants, slot, there(slot)), why, waiter, boundary)
            }),
            Action::Keep { slot, ctx } => trace::keep(|| (on(tenants, slot, Some(ctx)),)),
            Action::Reset { slot, hold } => trace::reset(|| (on(tenants, slot, there(slot)), hold)),
            Action::Capture { slot, ctx } => {
                trace::stop(|| Some((on(tenants, slot, Some(ctx)), trace::end(status?))));
            }
            Action::Wake { ctx, wake } => self.note_wake(tenants, ctx, wake),
            Action::Released { ctx } => {
                trace::context_released(|| (self.context_on(tenants, None, Some(ctx)),));
            }
            Action::Quarantine { slot, ctx } => trace::quarantine(|| (on(tenants, slot, ctx),)),
            Action::ReadStatus { .. }
            | Action::Overrun { .. }
            | Action::Lost { .. }
            | Action::Arm { .. }
            | Action::Disarm { .. } => {}
        }
    }

    /// What became of the job of `ctx`, which is on no slot any more.
    fn note_wake(&self, tenants: &mut [Option<Tenant>], ctx: ContextId, wake: Wake) {
        let mut end = |result| {
            trace::job_end(|| {
                let job = tenant_of(tenants, ctx)?.job;
                Some((self.context_on(tenants, None, Some(ctx)), job, result))
            });
        };
        match wake {
            Wake::Done => end(0),
            Wake::Failed(failure) => end(trace::failure(failure)),
            Wake::Held => trace::held(|| (self.context_on(tenants, None, Some(ctx)),)),
            Wake::Empty => trace::queue(|| {
                let subject = self.context_on(tenants, None, Some(ctx));
                (subject, QueueEvent::Empty as u32)
            }),
        }
    }
}

fn preempt(hold: bool) -> Request {
    if hold {
        Request::Hold
    } else {
        Request::Preempt
    }
}
