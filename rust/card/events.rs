// SPDX-License-Identifier: GPL-2.0

//! Events of the card: into the scheduler, and what it wants done.

use super::{now, tenant_of, Card, Scheduler, SlotRegisters, State};
use crate::{
    bar::Fault,
    delivery::Delivery,
    image::Tenant,
    notifier::Notice,
    regs::Command,
    sched::{Action, Event, Failure, Phase, Refusal, SlotId, SlotState, Status, Time, Wake},
    vector::{EventSink, Vector},
};
use kernel::prelude::*;

/// Contexts that [`Card::sweep`] visits while it holds the card's lock with interrupts off.
const CONTEXTS_AT_ONCE: u32 = 16;

/// Events of the card.
impl Card {
    /// The timer of `slot` fired. Interrupt context.
    pub(crate) fn timer(&self, slot: SlotId) {
        self.read_late(slot);
        // Events of the card are never refused.
        let _ = self.handle(&mut self.state.lock(), Event::Timer { slot });
    }

    /// Makes the status read of `slot` that [`Card::feed_reads`] left, if it is still of use.
    fn read_late(&self, slot: SlotId) {
        let mut state = self.state.lock();
        let unread = state.slots.unread & slot.bit() != 0;
        state.slots.unread &= !slot.bit();
        if unread && is_at_work(state.machine.slot_state(slot)) {
            self.look(&mut state, slot);
        }
    }

    /// One of the slots of `vector` interrupted. `false`: it was for nothing. Interrupt context.
    pub(crate) fn interrupt(&self, vector: &Vector<Self>) -> bool {
        let slots = vector.slots();
        let mut useful = false;
        let mut completed = None;
        for slot in self.slots_in(slots) {
            // Anew for each slot: of a shared vector, each can have a load of all registers.
            let mut state = self.state.lock();
            let seen = |state: &State| {
                (
                    state.machine.slot_state(slot),
                    state.completions[slot.index()],
                )
            };
            let before = seen(&state);
            match before.0 {
                // The one trapped read of a switch.
                Some(SlotState::Running(_) | SlotState::Pausing(_)) => self.look(&mut state, slot),
                // It came late, or the vector is shared: a slot that nobody is on, or whose status
                // is being waited for by timer, is not worth a read.
                _ => {}
            }
            let after = seen(&state);
            useful |= after != before;
            if after.0 == before.0 && after.1 != before.1 {
                completed = Some(slot);
            }
        }
        self.note_interrupt(slots, useful);
        if let Some(slot) = completed {
            let mut state = self.state.lock();
            let is_pausing = |slot| {
                let slot_state = state.machine.slot_state(slot);
                matches!(slot_state, Some(SlotState::Pausing(_)))
            };
            let is_awaited = self.slots_in(slots).any(is_pausing);
            if !is_awaited && vector.completed(self.limits.completion_interval) {
                self.note_throttled(&mut state, slot);
            }
        }
        useful
    }

    /// A vector that tells of `slots` was switched off. Any context.
    pub(crate) fn report_storm(&self, slots: u8) {
        dev_warn!(
            self.device,
            "interrupt storm: slots {:#x} are polled for a while\n",
            slots
        );
    }

    /// Reads the status of `slot`, and does what follows from it.
    pub(super) fn look(&self, state: &mut State, slot: SlotId) {
        let outbox = Outbox {
            reads: slot.bit(),
            ..Outbox::default()
        };
        self.feed_reads(state, outbox);
    }

    /// Ends a read of registers; `doubted` is the slot that gave all-ones. These are a value like
    /// others, or the card is gone: the status, which never is all-ones, tells. `ENODEV`: the card
    /// is gone.
    pub(super) fn believe(&self, state: &mut State, doubted: Option<SlotId>) -> Result {
        if let Some(slot) = doubted {
            self.look(state, slot);
        }
        if self.is_gone() {
            return Err(ENODEV);
        }
        Ok(())
    }

    /// Feeds `event`, and the status reads that follow from it, to the machine.
    pub(super) fn handle(&self, state: &mut State, event: Event) -> Result<(), Refusal> {
        let mut outbox = Outbox::default();
        let result = self.handle_one(state, event, &mut outbox);
        self.feed_reads(state, outbox);
        result
    }

    /// Lets `act` work on the machine, at the time that it is given, and carries out what follows.
    pub(super) fn act<R>(
        &self,
        state: &mut State,
        act: impl FnOnce(&mut Scheduler, Time, &mut dyn FnMut(Action)) -> R,
    ) -> R {
        let mut outbox = Outbox::default();
        let at = now();
        let cause = state.measurements.stopwatch.cause(at, None);
        let State {
            machine,
            tenants,
            slots,
            measurements,
            ..
        } = state;
        let was_sweeping = machine.is_sweeping();
        let result = act(machine, at, &mut |action| {
            self.carry_out(tenants, slots, &mut outbox, action);
            measurements.note(&cause, action);
        });
        if machine.is_sweeping() && !was_sweeping {
            self.sweeper.queue(0);
        }
        state.settle(&cause);
        self.note_loads(state, &mut outbox);
        self.feed_reads(state, outbox);
        result
    }

    /// Does what concerns every context, with interrupts on between the parts. Process context.
    pub(super) fn sweep(&self) {
        while self.act(&mut self.state.lock(), |machine, at, mut out| {
            machine.sweep(at, CONTEXTS_AT_ONCE, &mut out)
        }) {}
    }

    /// Makes the status reads that were asked for, until none is. Once registers were loaded, which is all that the holder of
    /// the lock has time for, those that can wait are left to the timers of their slots.
    fn feed_reads(&self, state: &mut State, mut outbox: Outbox) {
        while let Some(slot) = outbox.take_read() {
            let status = Status::from_raw(self.bar.status(slot));
            // Events of the card are never refused.
            let _ = self.handle_one(state, Event::Status { slot, status }, &mut outbox);
        }
        state.slots.unread |= outbox.reads;
        for slot in self.slots_in(outbox.reads) {
            self.events[slot.index()].arm(now());
        }
    }

    fn handle_one(
        &self,
        state: &mut State,
        event: Event,
        outbox: &mut Outbox,
    ) -> Result<(), Refusal> {
        self.note_event(state, event);
        outbox.status = None;
        if let Event::Status { slot, status } = event {
            outbox.status = Some(status);
            if status.is_gone() {
                self.presence.note_death();
            } else if status.fault() {
                let fault = self.bar.fault(slot);
                let _ = fault.inspect(|fault| self.note_fault(state, slot, *fault));
                match fault {
                    Ok(fault) => outbox.fault = fault,
                    Err(_) => outbox.doubt(slot),
                }
            } else if status.phase() == Phase::Running && self.slots[slot.index()].queues {
                self.note_completions(state, slot, outbox);
            }
        }
        let at = now();
        let cause = state.measurements.stopwatch.cause(at, Some(&event));
        let arriving = state.arrive(at, &event);
        let State {
            machine,
            tenants,
            slots,
            measurements,
            ..
        } = state;
        let was_sweeping = machine.is_sweeping();
        let result = machine.handle(at, event, &mut |action| {
            self.carry_out(tenants, slots, outbox, action);
            measurements.note(&cause, action);
        });
        if machine.is_sweeping() && !was_sweeping {
            self.sweeper.queue(0);
        }
        if let Err(refusal) = result {
            self.note_refusal(state, event, refusal);
        }
        if let (Err(_), Some(ctx)) = (result, arriving) {
            state.withdraw(ctx);
        }
        state.settle(&cause);
        self.note_loads(state, outbox);
        result
    }

    /// The engine of `slot` runs, and may have told that jobs of its queue are complete. Who has come
    /// to the slot since may be told for nothing.
    fn note_completions(&self, state: &mut State, slot: SlotId, outbox: &mut Outbox) {
        let events = self.bar.completion_events(slot);
        if events == u64::MAX {
            return outbox.doubt(slot);
        }
        if core::mem::replace(&mut state.completions[slot.index()], events) == events {
            return;
        }
        if let Some(SlotState::Running(ctx) | SlotState::Pausing(ctx)) =
            state.machine.slot_state(slot)
        {
            self.note_queue(state, slot, ctx);
            if let Some(tenant) = state.tenant(ctx) {
                tenant.notify(&self.delivery, Notice::Completed);
            }
        }
    }

    /// Writes the RESET bit of `slot`.
    pub(super) fn reset_slot(&self, slots: &mut SlotRegisters, slot: SlotId, hold: bool) {
        let clears = self.slots[slot.index()].reset_clears;
        slots.residue[slot.index()].note_reset(clears);
        slots.in_reset = if hold {
            slots.in_reset | slot.bit()
        } else {
            slots.in_reset & !slot.bit()
        };
        self.bar.reset(slots.in_reset);
    }

    /// Does what the machine wants.
    fn carry_out(
        &self,
        tenants: &mut [Option<Tenant>],
        slots: &mut SlotRegisters,
        outbox: &mut Outbox,
        action: Action,
    ) {
        self.note_action(tenants, slots, outbox.status, &action);
        match action {
            Action::Load { slot, ctx } => {
                outbox.has_loaded = true;
                slots.on[slot.index()] = Some(ctx);
                if let Some(tenant) = tenant_of(tenants, ctx) {
                    if self.load(slots, slot, tenant.image()) {
                        outbox.loads |= slot.bit();
                    }
                }
            }
            Action::Unload { slot } => {
                if self.identity.has_window() {
                    slots.residue[slot.index()].close_window(&self.bar, slot, &self.identity);
                }
                slots.on[slot.index()] = None;
            }
            Action::Start { slot, resume, .. } => {
                self.bar.command(
                    slot,
                    if resume {
                        Command::StartResume
                    } else {
                        Command::StartNew
                    },
                );
            }
            Action::Pause { slot, boundary, .. } => {
                let command = if boundary {
                    Command::PauseAtBoundary
                } else {
                    Command::Pause
                };
                self.bar.command(slot, command);
                if let Some(vector) = self.vector_of(slot) {
                    vector.end_throttle();
                }
            }
            Action::Reset { slot, hold } => self.reset_slot(slots, slot, hold),
            Action::Capture { slot, ctx } => {
                if let Some(tenant) = tenant_of(tenants, ctx) {
                    if !tenant.image().capture(&self.bar, slot) {
                        outbox.doubt(slot);
                    }
                    if self.slots[slot.index()].queues {
                        // What it has completed last it tells by leaving.
                        tenant.notify(&self.delivery, Notice::Completed);
                    }
                }
            }
            Action::Keep { .. } => {}
            Action::Overrun { ctx, span, .. } => {
                if let Some(tenant) = tenant_of(tenants, ctx) {
                    tenant.overruns += 1;
                    tenant.overrun += span;
                }
            }
            Action::ReadStatus { slot } => outbox.reads |= slot.bit(),
            // Armed for the status read, after which the machine is asked again.
            Action::Arm { slot, .. } | Action::Disarm { slot }
                if slots.unread & slot.bit() != 0 => {}
            Action::Arm { slot, at } => self.events[slot.index()].arm(at),
            Action::Disarm { slot } => self.events[slot.index()].disarm(),
            Action::Wake { ctx, wake } => {
                if let Some(tenant) = tenant_of(tenants, ctx) {
                    tell(&self.delivery, tenant, wake, outbox.fault);
                }
            }
            Action::Lost { ctx } => {
                if let Some(tenant) = tenant_of(tenants, ctx) {
                    tenant.notify(&self.delivery, Notice::Gone);
                }
            }
            Action::Released { ctx } => {
                if let Some(tenant) = tenant_of(tenants, ctx) {
                    tenant.release(&self.delivery);
                }
            }
            Action::Quarantine { slot, ctx } => {
                self.reset_slot(slots, slot, true);
                dev_err!(
                    self.device,
                    "slot {} does not come out of reset: out of use\n",
                    slot.index()
                );
                if let Some(tenant) = ctx.and_then(|ctx| tenant_of(tenants, ctx)) {
                    tenant.notify(&self.delivery, Notice::Stuck);
                }
            }
        }
    }
}

impl EventSink for Card {
    fn interrupt(&self, vector: &Vector<Self>) -> bool {
        Card::interrupt(self, vector)
    }

    fn report_storm(&self, slots: u8) {
        Card::report_storm(self, slots);
    }
}

/// May the status of a slot have something to tell?
fn is_at_work(state: Option<SlotState>) -> bool {
    matches!(
        state,
        Some(SlotState::Running(_) | SlotState::Pausing(_) | SlotState::Resetting(_))
    )
}

/// What actions leave to be done after the machine has returned.
#[derive(Default)]
pub(super) struct Outbox {
    /// Slots whose status is to be read, a bit each.
    reads: u8,
    /// Slots whose status is to be read before the lock is let go, a bit each.
    doubts: u8,
    /// The registers of a slot were loaded.
    has_loaded: bool,
    /// The status that is being handled.
    status: Option<Status>,
    /// The access that stopped the job whose status it is.
    fault: Fault,
    /// Slots with a Load whose time was measured, a bit each.
    loads: u8,
}

impl Outbox {
    /// A register of `slot` reads all-ones: the status, which never does, tells whether that is its
    /// value or the card is gone. It is read before anybody else can look at what became of the job.
    fn doubt(&mut self, slot: SlotId) {
        self.doubts |= slot.bit();
    }

    fn take_read(&mut self) -> Option<SlotId> {
        let doubt = take_first(&mut self.doubts);
        match doubt {
            None if !self.has_loaded => take_first(&mut self.reads),
            doubt => doubt,
        }
    }

    pub(super) fn take_load(&mut self) -> Option<SlotId> {
        take_first(&mut self.loads)
    }
}

/// Takes the first slot out of a set.
fn take_first(slots: &mut u8) -> Option<SlotId> {
    // CAST: at most 8.
    let slot = SlotId::new(slots.trailing_zeros() as u8)?;
    *slots &= !slot.bit();
    Some(slot)
}

/// Passes on what became of a job.
fn tell(delivery: &Delivery, tenant: &mut Tenant, wake: Wake, fault: Fault) {
    tenant.meter().withdraw();
    let notice = match wake {
        Wake::Done => Notice::Done,
        Wake::Held => Notice::Held,
        Wake::Empty => Notice::Empty,
        Wake::Failed(failure) => {
            if failure == Failure::Fault {
                tenant.image().note_fault(fault);
            }
            Notice::Done
        }
    };
    tenant.notify(delivery, notice);
}
