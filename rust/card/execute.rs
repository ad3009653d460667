// SPDX-License-Identifier: GPL-2.0

//! The card as the scheduler acts on it.

use super::{
    dump::SlotTrouble,
    load::{Loaded, MeasuredLoad},
    now,
    state::{context_of, Slots},
    Card,
};
use crate::{
    bar::Fault,
    image::ContextRef,
    notifier::Notice,
    regs::Command,
    relay::{Relay, RunTimes},
    scheduler::{
        self, Begin, ContextId, Duration, EndReason, Order, Pause, RunEnd, SlotId, Stop, Time,
        Trace, Wake,
    },
    trace,
};
use kernel::prelude::*;

/// Work that is left until the scheduler has returned.
#[derive(Default)]
pub(super) struct Outbox {
    /// Slots whose status is to be read, a bit each.
    pub(super) reads: u8,
    /// The registers of a slot were loaded.
    pub(super) has_loaded: bool,
    /// The access that stopped the job whose status is handled.
    pub(super) fault: Fault,
    /// The results of the run whose record is handled were not written.
    pub(super) results_lost: bool,
    /// The times of the run whose record is handled.
    pub(super) times: RunTimes,
    /// Slots to which a START was written after which no PAUSE may come soon, a bit each.
    started: u8,
    /// The last load that was measured.
    pub(super) load: Option<MeasuredLoad>,
    /// What has gone wrong.
    pub(super) trouble: Option<SlotTrouble>,
}

impl Outbox {
    /// Returns an outbox that asks for a status read of `slot`.
    pub(super) fn with_read(slot: SlotId) -> Self {
        Self {
            reads: slot.bit(),
            ..Self::default()
        }
    }

    /// Takes out a slot to which a START was written.
    pub(super) fn take_started(&mut self) -> Option<SlotId> {
        take_first(&mut self.started)
    }

    /// Returns the slot whose status is to be read next. Once registers were loaded, which is all
    /// that the holder of the lock has time for, reads that can wait are left in `reads`.
    pub(super) fn take_read(&mut self) -> Option<SlotId> {
        match self.has_loaded {
            true => None,
            false => take_first(&mut self.reads),
        }
    }
}

/// Takes the first slot out of a set.
fn take_first(slots: &mut u8) -> Option<SlotId> {
    // CAST: at most 8.
    let slot = SlotId::new(slots.trailing_zeros() as u8)?;
    *slots &= !slot.bit();
    Some(slot)
}

/// The part of a card's state that the scheduler acts on.
pub(super) struct Executor<'a> {
    pub(super) card: &'a Card,
    pub(super) contexts: &'a mut [Option<ContextRef>],
    pub(super) slots: &'a mut Slots,
    pub(super) relay: Option<&'a Relay>,
    pub(super) outbox: &'a mut Outbox,
}

impl scheduler::Card for Executor<'_> {
    fn load(&mut self, slot: SlotId, ctx: ContextId) -> bool {
        self.outbox.has_loaded = true;
        if !self.slots.is_loading(slot, ctx) {
            self.note_load(slot, ctx);
        }
        let Some(context) = context_of(self.contexts, ctx) else {
            return true;
        };
        match self.card.load(self.slots, slot, ctx, context.image()) {
            Loaded::Part => false,
            Loaded::All(load) => {
                self.outbox.load = load;
                true
            }
        }
    }

    fn start(&mut self, slot: SlotId, ctx: ContextId, begin: &Begin) {
        trace::start(|| (self.on(slot, ctx), begin.resume, begin.boosted.into()));
        let command = match begin.resume {
            true => Command::StartResume,
            false => Command::StartNew,
        };
        if self.relay.is_none() {
            self.card.bar.command(slot, command);
        }
        let (times, written) = (&begin.times, now());
        self.slots[slot].histograms.note_start(times, written);
        self.with(ctx, |context| context.meter().note_start(times, written));
        if self.card.limits.unsavable != Duration::ZERO {
            self.outbox.started |= slot.bit();
        }
    }

    fn pause(&mut self, slot: SlotId, ctx: ContextId, pause: &Pause) {
        trace::pause(|| {
            let (why, waiter) = trace::cause(pause.cause);
            let waiter = waiter.map_or(0, trace::number);
            (self.on(slot, ctx), why, waiter, pause.boundary)
        });
        let command = match pause.boundary {
            true => Command::PauseAtBoundary,
            false => Command::Pause,
        };
        if self.relay.is_none() {
            self.card.bar.command(slot, command);
        }
        self.slots[slot].histograms.note_pause(pause.late);
        self.expect_save(slot);
    }

    fn publish(&mut self, slot: SlotId, ctx: ContextId) {
        self.note_load(slot, ctx);
        if let Some(relay) = self.relay {
            self.with(ctx, |context| {
                context.image().publish(relay, ctx.index(), cookie(ctx));
            });
        }
    }

    fn order(&mut self, slot: SlotId, order: &Order) {
        self.card.bar.order(slot, order);
        let stops_now = match order.stop {
            Stop::Paused { after, .. } => after == Duration::ZERO,
            Stop::Dropped => true,
            Stop::Never | Stop::Vacant => false,
        };
        // A job that was told to stop later may have to stop at once.
        if stops_now {
            self.expect_save(slot);
        }
    }

    fn reset(&mut self, slot: SlotId, ctx: ContextId, hold: bool) {
        trace::reset(|| (self.on(slot, ctx), hold));
        self.card.reset_slot(self.slots, slot, hold);
    }

    fn unload(&mut self, slot: SlotId, ctx: ContextId) {
        trace::unload(|| (self.on(slot, ctx),));
        let card = self.card;
        self.slots[slot].loading = None;
        if card.identity.has_window() {
            let shadow = &mut self.slots[slot].shadow;
            shadow.close_window(&card.bar, slot, &card.identity);
        }
    }

    fn ended(&mut self, slot: SlotId, ctx: ContextId, run: &RunEnd) {
        self.note_end(slot, ctx, run);
        self.slots[slot].histograms.note_end(run);
        let card = self.card;
        let trouble = SlotTrouble::of_end(slot, ctx, run, self.relay.is_some());
        self.outbox.trouble = self.outbox.trouble.take().or(trouble);
        let queues = card.slots[slot.index()].queues;
        if !matches!(run.reason, EndReason::Aborted(_)) {
            // An engine with a queue may have reported completions before it left the slot.
            self.slots[slot].await_end(1 + u8::from(queues));
        }
        let Some(context) = context_of(self.contexts, ctx) else {
            return;
        };
        context.meter().note_end(run);
        if run.reason == EndReason::Fault {
            context.image().note_fault(self.outbox.fault);
        }
        if matches!(run.reason, EndReason::Aborted(_) | EndReason::Dropped) {
            return;
        }
        if self.relay.is_some() && !self.outbox.results_lost {
            context.image().take_results();
        }
        if queues {
            // The engine reports its last completions by leaving the slot.
            context.notify(&card.delivery, Notice::Completed);
        }
    }

    fn read_status(&mut self, slot: SlotId) {
        self.outbox.reads |= slot.bit();
    }

    fn arm(&mut self, slot: SlotId, at: Time) {
        // The timer is armed for the status read. The scheduler is called again after that.
        if self.slots[slot].is_unread {
            return;
        }
        self.card.events[slot.index()].arm(at);
    }

    fn notify(&mut self, ctx: ContextId, notice: scheduler::Notice) {
        self.note_notice(ctx, notice);
        let notice = match notice {
            scheduler::Notice::Job(Wake::Done | Wake::Failed(_)) => Notice::Done,
            scheduler::Notice::Job(Wake::Held) => Notice::Held,
            scheduler::Notice::Job(Wake::Empty) => Notice::Empty,
            scheduler::Notice::Lost => Notice::Gone,
            scheduler::Notice::Stuck => Notice::Stuck,
            scheduler::Notice::Released => {
                let delivery = &self.card.delivery;
                return self.with(ctx, |context| context.release(delivery));
            }
        };
        self.tell(ctx, notice);
    }

    fn quarantine(&mut self, slot: SlotId, ctx: Option<ContextId>) {
        trace::quarantine(|| (self.card.context_on(self.contexts, Some(slot), ctx),));
        self.card.reset_slot(self.slots, slot, true);
        dev_err!(
            self.card.device,
            "slot {} does not come out of reset: out of use\n",
            slot.index()
        );
        let trouble = self.outbox.trouble.take();
        self.outbox.trouble = trouble.or(Some(SlotTrouble::of_quarantine(slot, ctx)));
        if let Some(ctx) = ctx {
            self.tell(ctx, Notice::Stuck);
        }
    }

    fn trace(&mut self, slot: SlotId, ctx: ContextId, what: Trace) {
        match what {
            Trace::Reserved => trace::keep(|| (self.on(slot, ctx),)),
            Trace::Overrun(span) => self.with(ctx, |context| context.note_overrun(span)),
        }
    }
}

impl Executor<'_> {
    /// Calls `f` with the references to a context, if it is set up.
    fn with(&mut self, ctx: ContextId, f: impl FnOnce(&mut ContextRef)) {
        if let Some(context) = context_of(self.contexts, ctx) {
            f(context);
        }
    }

    /// Notifies the owner of a context.
    fn tell(&mut self, ctx: ContextId, notice: Notice) {
        let delivery = &self.card.delivery;
        self.with(ctx, |context| context.notify(delivery, notice));
    }

    /// Makes the end of the save on `slot` known soon although its vector is throttled.
    fn expect_save(&self, slot: SlotId) {
        if let Some(vector) = self.card.vector_of(slot) {
            vector.expect_save();
        }
    }
}

/// Returns the cookie by which records name a context.
pub(super) fn cookie(ctx: ContextId) -> u64 {
    u64::from(ctx.generation()) << 32 | (ctx.index() as u64 + 1)
}
