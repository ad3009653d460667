// SPDX-License-Identifier: GPL-2.0

//! Executing the scheduler's actions.

use super::{
    dump::SlotTrouble,
    now,
    state::{context_of, Slots, State},
    Card,
};
use crate::{
    bar::Fault,
    image::{ContextRef, Image},
    notifier::Notice,
    regs::Command,
    relay::{Relay, RunTimes},
    sched::{
        Action, ContextId, Duration, EndReason, LoadCost, Order, RunEnd, SlotId, StartTimes, Stop,
        Wake,
    },
};
use kernel::prelude::*;

/// A Load with fewer writes takes too little time to be measured.
const MEASURED_WRITES: u32 = 16;
/// A Load that took less time counts as part of the slice.
const NOTED: Duration = Duration::from_us(20);
/// Number of writes that reset a slot. The reset clears all registers where
/// [`SLOT_CAPS`](crate::regs::SLOT_CAPS) says so.
const RESET_WRITES: u32 = 2;

/// Work that actions leave until the scheduler has returned.
#[derive(Default)]
pub(super) struct Outbox {
    /// Slots whose status is to be read, a bit each.
    pub(super) reads: u8,
    /// The registers of a slot were loaded.
    has_loaded: bool,
    /// The access that stopped the job whose status is handled.
    pub(super) fault: Fault,
    /// The results of the run whose record is handled were not written.
    pub(super) results_lost: bool,
    /// The times of the run whose record is handled.
    pub(super) times: RunTimes,
    /// Slots to which a START was written after which no PAUSE may come soon, a bit each.
    started: u8,
    /// The last Load that was measured.
    pub(super) load: Option<MeasuredLoad>,
    /// What has gone wrong.
    pub(super) trouble: Option<SlotTrouble>,
}

/// A Load that was measured.
pub(super) struct MeasuredLoad {
    pub(super) slot: SlotId,
    pub(super) ctx: ContextId,
    /// Part of `total`: until the registers of the previous context were cleared.
    pub(super) clearing: Duration,
    pub(super) total: Duration,
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

/// The part of a card's state that actions change: all but the scheduler.
pub(super) struct Executor<'a> {
    pub(super) card: &'a Card,
    pub(super) contexts: &'a mut [Option<ContextRef>],
    pub(super) slots: &'a mut Slots,
    pub(super) relay: Option<&'a Relay>,
    pub(super) outbox: &'a mut Outbox,
}

impl Executor<'_> {
    /// Executes an action.
    pub(super) fn execute(&mut self, action: Action) {
        self.note(&action);
        let (card, outbox) = (self.card, &mut *self.outbox);
        match action {
            Action::Load { slot, ctx } => self.load(slot, ctx),
            Action::Unload { slot, .. } => self.unload(slot),
            Action::Start {
                slot,
                ctx,
                resume,
                times,
                ..
            } => self.start(slot, ctx, resume, &times),
            Action::Pause {
                slot,
                boundary,
                late,
                ..
            } => self.pause(slot, boundary, late),
            Action::Order { slot, order } => self.order(slot, &order),
            Action::Reset { slot, hold, .. } => card.reset_slot(self.slots, slot, hold),
            Action::Ended { slot, ctx, run } => self.end(slot, ctx, &run),
            Action::ReadStatus { slot } => outbox.reads |= slot.bit(),
            // The timer is armed for the status read. The scheduler is called again after that.
            Action::Arm { slot, .. } | Action::Disarm { slot } if self.slots[slot].is_unread => {}
            Action::Arm { slot, at } => card.events[slot.index()].arm(at),
            Action::Disarm { slot } => card.events[slot.index()].disarm(),
            Action::Overrun { ctx, span, .. } => {
                self.with(ctx, |context| context.note_overrun(span))
            }
            Action::Wake { ctx, wake } => {
                self.with(ctx, |context| {
                    context.notify(&card.delivery, notice_of(wake))
                });
            }
            Action::Lost { ctx } => self.notify(ctx, Notice::Gone),
            Action::Stuck { ctx } => self.notify(ctx, Notice::Stuck),
            Action::Released { ctx } => self.with(ctx, |context| context.release(&card.delivery)),
            Action::Quarantine { slot, ctx } => self.quarantine(slot, ctx),
            Action::Reserve { .. } => {}
            Action::Inconsistent => {
                kernel::warn_on!(true);
            }
        }
    }

    /// Calls `f` with the references to a context, if it is set up.
    fn with(&mut self, ctx: ContextId, f: impl FnOnce(&mut ContextRef)) {
        if let Some(context) = context_of(self.contexts, ctx) {
            f(context);
        }
    }

    fn notify(&mut self, ctx: ContextId, notice: Notice) {
        let delivery = &self.card.delivery;
        self.with(ctx, |context| context.notify(delivery, notice));
    }

    fn load(&mut self, slot: SlotId, ctx: ContextId) {
        if let Some(relay) = self.relay {
            return self.with(ctx, |context| {
                context.image().publish(relay, ctx.index(), cookie(ctx));
            });
        }
        self.outbox.has_loaded = true;
        if let Some(context) = context_of(self.contexts, ctx) {
            let measured = self.card.load(self.slots, slot, context.image());
            self.outbox.load = measured.map(|(clearing, total)| MeasuredLoad {
                slot,
                ctx,
                clearing,
                total,
            });
        }
    }

    fn unload(&mut self, slot: SlotId) {
        let card = self.card;
        if card.identity.has_window() {
            let shadow = &mut self.slots[slot].shadow;
            shadow.close_window(&card.bar, slot, &card.identity);
        }
    }

    fn start(&mut self, slot: SlotId, ctx: ContextId, resume: bool, times: &StartTimes) {
        let command = match resume {
            true => Command::StartResume,
            false => Command::StartNew,
        };
        if self.relay.is_none() {
            self.card.bar.command(slot, command);
        }
        let written = now();
        self.slots[slot].histograms.note_start(times, written);
        self.with(ctx, |context| context.meter().note_start(times, written));
        if self.card.limits.unsavable != Duration::ZERO {
            self.outbox.started |= slot.bit();
        }
    }

    fn pause(&mut self, slot: SlotId, boundary: bool, late: Option<Duration>) {
        let command = match boundary {
            true => Command::PauseAtBoundary,
            false => Command::Pause,
        };
        if self.relay.is_none() {
            self.card.bar.command(slot, command);
        }
        self.slots[slot].histograms.note_pause(late);
        self.expect_save(slot);
    }

    /// Makes the end of the save on `slot` known soon although its vector is throttled.
    fn expect_save(&self, slot: SlotId) {
        if let Some(vector) = self.card.vector_of(slot) {
            vector.expect_save();
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

    fn end(&mut self, slot: SlotId, ctx: ContextId, run: &RunEnd) {
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

    fn quarantine(&mut self, slot: SlotId, ctx: Option<ContextId>) {
        self.card.reset_slot(self.slots, slot, true);
        dev_err!(
            self.card.device,
            "slot {} does not come out of reset: out of use\n",
            slot.index()
        );
        let trouble = self.outbox.trouble.take();
        self.outbox.trouble = trouble.or(Some(SlotTrouble::of_quarantine(slot, ctx)));
        if let Some(ctx) = ctx {
            self.notify(ctx, Notice::Stuck);
        }
    }
}

/// Loading a slot for a context, and accounting for the time that this takes.
impl Card {
    /// Loads `slot`, which is vacant, with `image`. If that was measured, returns the time until
    /// the registers of the previous context were cleared, and the whole time.
    pub(super) fn load(
        &self,
        slots: &mut Slots,
        slot: SlotId,
        image: &Image,
    ) -> Option<(Duration, Duration)> {
        let (written, cleared) = image.burst(&slots[slot].shadow);
        if cleared > RESET_WRITES && self.slots[slot.index()].reset_clears {
            self.reset_slot(slots, slot, true);
            self.reset_slot(slots, slot, false);
        }
        let shadow = &mut slots[slot].shadow;
        if written + cleared < MEASURED_WRITES {
            image.clear_others(&self.bar, slot, shadow);
            image.load(&self.bar, slot, shadow, &self.identity);
            slots[slot].writer = None;
            return None;
        }
        let begun = now();
        image.clear_others(&self.bar, slot, shadow);
        if cleared >= MEASURED_WRITES {
            // Writes are posted: a read returns when the card has taken them.
            self.bar.status(slot);
        }
        let clearing = now().since(begun);
        image.load(&self.bar, slot, shadow, &self.identity);
        Some((clearing, now().since(begun)))
    }

    /// Reports a Load to the scheduler if it took a noticeable time.
    pub(super) fn note_load(&self, state: &mut State, outbox: &mut Outbox) {
        let Some(load) = outbox.load.take() else {
            return;
        };
        let group = state.scheduler.group_of(load.ctx).ok();
        let writer = group.map(|group| (load.ctx, group));
        let debtor = core::mem::replace(&mut state.slots[load.slot].writer, writer);
        if load.total < NOTED {
            return;
        }
        let cost = LoadCost {
            clearing: load.clearing,
            total: load.total,
            debtor,
        };
        self.call(state, outbox, |scheduler, at, out| {
            scheduler.note_load(at, load.slot, cost, out);
        });
    }
}

/// Returns the cookie by which records name a context.
pub(super) fn cookie(ctx: ContextId) -> u64 {
    u64::from(ctx.generation()) << 32 | (ctx.index() as u64 + 1)
}

/// Returns the notice that tells an owner what has become of its job.
fn notice_of(wake: Wake) -> Notice {
    match wake {
        Wake::Done | Wake::Failed(_) => Notice::Done,
        Wake::Held => Notice::Held,
        Wake::Empty => Notice::Empty,
    }
}
