// SPDX-License-Identifier: GPL-2.0

//! The state of a card that interrupt handlers, timers and calls share.

use super::{load::Loading, now};
use crate::{
    dump::RefusedAccess,
    image::{ContextRef, ShadowRegs},
    measure::{SlotHistograms, SlotWatch},
    regs::MAX_SLOTS,
    relay::Relay,
    scheduler::{CardConfig, ContextId, GroupKey, Scheduler, SlotId, SlotState, Storage, Time},
};
use kernel::prelude::*;
use pin_init::{init_array_from_fn, init_zeroed};

/// State that the interrupt handlers, the timers and the calls of all contexts share.
///
/// # Locking
///
/// Protected by the card's raw spinlock, with interrupts off. Under it only the locks of vectors
/// and those that `irq_work` and hrtimers take are taken. Registers of slots are accessed under the
/// lock, so that no START comes between a status read and its evaluation.
pub(super) struct State {
    pub(super) scheduler: Scheduler,
    /// By [`ContextId::index`]. `Some` from set-up until `Card::drop_released`.
    pub(super) contexts: KVVec<Option<ContextRef>>,
    pub(super) slots: Slots,
    /// The memory that a card with a relay uses for its switches, until the card is shut down.
    pub(super) relay: Option<KBox<Relay>>,
    /// Since when the card has not answered, if its link may still be reset. No register is read.
    pub(super) silent_since: Option<Time>,
}

/// The driver's state of all slots.
pub(super) struct Slots {
    slots: KVBox<[CardSlot; MAX_SLOTS]>,
    /// The reset bits as written last.
    pub(super) in_reset: u8,
}

/// The driver's state of one slot.
pub(super) struct CardSlot {
    /// Registers that cannot be read back, as they were written last.
    pub(super) shadow: ShadowRegs,
    /// A load that is under way.
    pub(super) loading: Option<Loading>,
    /// The context that has written many of the application registers, if there is one, and its
    /// group.
    pub(super) writer: Option<(ContextId, GroupKey)>,
    /// How many completion events the engine had counted when they were read last.
    pub(super) completions: u64,
    /// A completion was read whose interrupt may still come.
    awaits_completion: bool,
    /// Number of interrupts that may still come for ends of runs that were read.
    awaited_ends: u8,
    /// The status is to be read when the timer of the slot fires, which it does at once.
    pub(super) is_unread: bool,
    pub(super) histograms: SlotHistograms,
    pub(super) watch: SlotWatch,
    /// The status that was read last, and when, for dumps.
    pub(super) status: Option<(u64, Time)>,
    /// The last access that the window has refused, for dumps.
    pub(super) refused: Option<RefusedAccess>,
}

/// Maximum number of interrupts of a slot that may still come after their events were read: one
/// that the interrupt controller holds while the handler runs, and one on its way to it.
const AWAITED_ENDS_MAX: u8 = 2;

/// The event that an interrupt reports.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum IrqCause {
    Completion,
    End,
}

impl CardSlot {
    /// Notes that a completion was read.
    pub(super) fn await_completion(&mut self) {
        self.awaits_completion = true;
    }

    /// Notes that the end of a run was read, for which the card raises at most `interrupts`.
    pub(super) fn await_end(&mut self, interrupts: u8) {
        self.awaited_ends = AWAITED_ENDS_MAX.min(self.awaited_ends + interrupts);
    }

    /// Returns the event that an interrupt of the slot's vector reports, if the event was read
    /// before. The interrupt is not awaited any longer.
    pub(super) fn take_awaited(&mut self) -> Option<IrqCause> {
        if core::mem::take(&mut self.awaits_completion) {
            return Some(IrqCause::Completion);
        }
        self.awaited_ends = self.awaited_ends.checked_sub(1)?;
        Some(IrqCause::End)
    }
}

impl Slots {
    /// Returns the state of slots after `quiesce()`.
    fn new() -> Result<Self> {
        let slots = init_array_from_fn(|_| {
            init!(CardSlot {
                shadow: ShadowRegs::CLEAR,
                loading: None,
                writer: None,
                completions: 0,
                awaits_completion: false,
                awaited_ends: 0,
                is_unread: false,
                histograms <- init_zeroed(),
                watch: SlotWatch::default(),
                status: None,
                refused: None,
            })
        });
        Ok(Self {
            slots: KVBox::init(slots, GFP_KERNEL)?,
            in_reset: 0,
        })
    }

    /// Forgets what was written to the card, after `quiesce()` has reset it.
    pub(super) fn reset(&mut self) {
        self.in_reset = 0;
        for slot in self.slots.iter_mut() {
            slot.shadow = ShadowRegs::CLEAR;
            slot.loading = None;
            slot.writer = None;
            slot.completions = 0;
            slot.awaits_completion = false;
            slot.awaited_ends = 0;
            slot.is_unread = false;
        }
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut CardSlot> {
        self.slots.iter_mut()
    }

    /// Returns the sum of a counter over all slots.
    pub(super) fn total(&self, count: fn(&SlotWatch) -> u64) -> u64 {
        self.slots.iter().map(|slot| count(&slot.watch)).sum()
    }

    /// Forgets that status reads were left to timers.
    pub(super) fn clear_unread(&mut self) {
        for slot in self.slots.iter_mut() {
            slot.is_unread = false;
        }
    }
}

impl core::ops::Index<SlotId> for Slots {
    type Output = CardSlot;

    fn index(&self, slot: SlotId) -> &CardSlot {
        &self.slots[slot.index()]
    }
}

impl core::ops::IndexMut<SlotId> for Slots {
    fn index_mut(&mut self, slot: SlotId) -> &mut CardSlot {
        &mut self.slots[slot.index()]
    }
}

impl State {
    /// Returns the state of a card without contexts.
    pub(super) fn new(
        config: &CardConfig,
        storage: Storage,
        contexts: KVVec<Option<ContextRef>>,
        relay: Option<KBox<Relay>>,
    ) -> Result<KBox<Self>> {
        let slots = Slots::new()?;
        let state = init!(Self {
            scheduler: Scheduler::new(config, storage),
            contexts,
            slots,
            relay,
            silent_since: None,
        });
        KBox::init(state, GFP_KERNEL)
    }

    /// Returns the references to a context, while the context is set up.
    pub(super) fn context(&mut self, ctx: ContextId) -> Option<&mut ContextRef> {
        context_of(&mut self.contexts, ctx)
    }

    /// Returns the time, and notes that times on slots until then are shown to users.
    pub(super) fn shown_until(&mut self) -> Time {
        let at = now();
        self.scheduler.note_shown(at);
        at
    }

    /// Returns the context whose job the engine of a slot runs or saves.
    pub(super) fn occupant(&self, slot: SlotId) -> Option<ContextId> {
        match self.scheduler.slot_state(slot)? {
            SlotState::Running(ctx) | SlotState::Pausing(ctx) => Some(ctx),
            _ => None,
        }
    }

    /// Returns whether the status of a slot may have changed by itself.
    pub(super) fn is_at_work(&self, slot: SlotId) -> bool {
        let slot_state = self.scheduler.slot_state(slot);
        slot_state.and_then(SlotState::context).is_some()
    }
}

/// Returns the references to `ctx`, while the context is set up.
pub(super) fn context_of(
    contexts: &mut [Option<ContextRef>],
    ctx: ContextId,
) -> Option<&mut ContextRef> {
    let context = contexts.get_mut(ctx.index()).and_then(Option::as_mut);
    context.filter(|context| !context.is_released())
}
