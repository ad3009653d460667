// SPDX-License-Identifier: GPL-2.0

//! The machine: all contexts and slots of one card, and the way in.

use core::fmt::{self, Debug, Formatter};
use core::ops::{Deref, DerefMut};

use super::queue::Queue;
use super::slab::Slab;
use super::slot::{slots_in, Slot, State, MAX_SLOTS};
use super::sweep::Sweep;
use super::{
    Action, ContextId, Duration, Entry, Event, GroupKey, Params, PolicyKind, Profile, Refusal,
    SlotConfig, SlotId, SlotState, SlotStats, Stats, Time,
};

/// Where actions go to.
pub(super) type Out<'a> = dyn FnMut(Action) + 'a;

/// What the caller knows of a card. Slots that it does not have are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineConfig {
    /// The slots, by number.
    pub slots: [Option<SlotConfig>; MAX_SLOTS],
}

/// What a new context is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextConfig {
    /// The class of the slots that compute its engine: [`SlotConfig::class`].
    pub class: u8,
    /// Its parameters to begin with.
    pub params: Params,
    /// The group that it belongs to.
    pub group: GroupKey,
}

/// The scheduler and slot protocol of one card.
///
/// `S` is the storage for the contexts and, behind them, their groups: [`Machine::room`].
///
/// The caller holds one lock over each call and over the actions that come out of it. A status that an interrupt handler
/// reads itself is read under that lock too, so that no START can come between the read and its [`Event::Status`].
#[derive(Clone, PartialEq, Eq)]
pub struct Machine<S> {
    pub(super) slab: Slab<S>,
    pub(super) slots: [Slot; MAX_SLOTS],
    /// One for each class, at the index of the class's first slot; the others are empty.
    pub(super) queues: [Queue; MAX_SLOTS],
    pub(super) policy: PolicyKind,
    pub(super) guard: Duration,
    /// How long work that goes first waits for a boundary (`cooperative.rs`).
    pub(super) boundary_wait: Duration,
    pub(super) gone: bool,
    /// The decision under way has started a job.
    pub(super) started: bool,
    /// No job is let on a slot (`freeze.rs`).
    pub(super) frozen: bool,
    /// What is left to be done for every context (`sweep.rs`).
    pub(super) sweep: Sweep,
}

/// All of it but slots that the card does not have. The model checker takes each state from this text
/// (rust/check/src/key.rs), and most of its time goes into it.
impl<S: Deref<Target = [Entry]>> Debug for Machine<S> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            slab,
            slots,
            queues,
            policy,
            guard,
            boundary_wait,
            started: _,
            gone,
            frozen,
            sweep,
        } = self;
        f.debug_struct("Machine")
            .field("slab", slab)
            .field("slots and queues", &there(slots, queues))
            .field("policy", policy)
            .field("guard", guard)
            .field("boundary_wait", boundary_wait)
            .field("gone", gone)
            .field("frozen", frozen)
            .field("sweep", sweep)
            .finish()
    }
}

/// The slots that the card has, each with the queue of its number.
fn there<'a>(
    slots: &'a [Slot; MAX_SLOTS],
    queues: &'a [Queue; MAX_SLOTS],
) -> [Option<(&'a Slot, &'a Queue)>; MAX_SLOTS] {
    let mut there = [None; MAX_SLOTS];
    for ((place, slot), queue) in there.iter_mut().zip(slots).zip(queues) {
        *place = (slot.state != State::Absent).then_some((slot, queue));
    }
    there
}

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// How long the storage has to be for so many contexts, each in a group of its own, and for `groups` more groups: those that
    /// are registered and those that are remembered. With less, contexts are refused for whose group there is no place.
    pub const fn room(contexts: usize, groups: usize) -> usize {
        contexts.saturating_mul(2).saturating_add(groups)
    }

    /// A machine without contexts, for so many of them. Every slot must be quiescent, out of reset and its window closed.
    /// What stood in `storage` is overwritten; O(length).
    pub fn new(config: MachineConfig, contexts: usize, storage: S) -> Self {
        let mut machine = Self::without_slots(contexts, storage);
        machine.add_slots(&config);
        machine
    }

    /// A machine that [`Machine::add_slots`] makes one of [`Machine::new`]: for callers with a small stack, who make it
    /// where it stays.
    #[inline(always)]
    pub fn without_slots(contexts: usize, storage: S) -> Self {
        Self {
            slab: Slab::new(contexts, storage),
            slots: [Slot::ABSENT; MAX_SLOTS],
            queues: [Queue::EMPTY; MAX_SLOTS],
            policy: PolicyKind::default(),
            guard: Self::GUARD_DEFAULT,
            boundary_wait: Self::BOUNDARY_WAIT_DEFAULT,
            started: false,
            gone: false,
            frozen: false,
            sweep: Sweep::NONE,
        }
    }

    /// Adds the slots of a card. Once, before any context is added.
    pub fn add_slots(&mut self, config: &MachineConfig) {
        for (id, config) in slots_in(u8::MAX).zip(config.slots) {
            if let Some(config) = config {
                self.add_slot(id, config);
            }
        }
    }

    fn add_slot(&mut self, id: SlotId, config: SlotConfig) {
        let queue = self.class_queue(config.class).unwrap_or(id.index() as u8);
        if let Some(slot) = self.slots.get_mut(id.index()) {
            *slot = Slot::new(config, queue);
        }
        if let Some(queue) = self.queue_mut(queue) {
            queue.slots |= id.bit();
            queue.usable |= id.bit();
        }
    }

    /// Index of the queue of `class`.
    fn class_queue(&self, class: u8) -> Option<u8> {
        self.slots
            .iter()
            .find(|slot| slot.state != State::Absent && slot.config.class == class)
            .map(|slot| slot.queue)
    }

    /// Adds a context, and its group if it is the first of it. A priority above the ceiling of the group is lowered to that. O(1).
    ///
    /// # Errors
    ///
    /// [`Refusal::Gone`], [`Refusal::Range`] (a parameter), [`Refusal::NoSlot`] (no slot of the class in the mask is in
    /// use), [`Refusal::NoSpace`] (the storage is full), [`Refusal::Admission`].
    pub fn add(&mut self, config: ContextConfig) -> Result<ContextId, Refusal> {
        if self.gone {
            return Err(Refusal::Gone);
        }
        config.params.check()?;
        let queue = self.class_queue(config.class).ok_or(Refusal::NoSlot)?;
        self.check_mask(queue, config.params.mask)?;
        self.check_admission(queue, None, &config.params)?;
        let weight = self.group_weight(config.group);
        let params = self.within_ceiling(config.params, config.group);
        let ctx = self.slab.add(queue, params, config.group, weight)?;
        self.note_admission(queue, None, Some(&params));
        if let Some(entry) = self.slab.get_mut(ctx) {
            entry.open_purse();
        }
        self.allow(ctx);
        self.weigh(ctx);
        Ok(ctx)
    }

    /// Is any slot of `mask` in use?
    pub(super) fn check_mask(&self, queue: u8, mask: u8) -> Result<(), Refusal> {
        match self.queue(queue) {
            Some(queue) if queue.usable & mask != 0 => Ok(()),
            _ => Err(Refusal::NoSlot),
        }
    }

    /// Takes one event in, and gives the actions that follow to `out`, which the caller carries out at once and in
    /// order. `now` must not be before that of an earlier call; it may be (the machine then waits longer than it need).
    ///
    /// O(log n) in the number of contexts. What concerns every context is left to [`Machine::sweep`].
    ///
    /// # Errors
    ///
    /// An owner's request that is refused changed nothing and gave no action. Events of the card are never refused.
    pub fn handle(
        &mut self,
        now: Time,
        event: Event,
        out: &mut impl FnMut(Action),
    ) -> Result<(), Refusal> {
        match event {
            Event::Start {
                ctx,
                replayable,
                saved,
            } => self.start_job(now, ctx, replayable, saved, out),
            Event::Preempt { ctx, hold } => self.preempt_gang(now, ctx, hold, out),
            Event::Resume { ctx } => self.resume_gang(now, ctx, out),
            Event::Ring { ctx } => self.ring(now, ctx, out),
            Event::Hint { ctx, at } => self.hint(now, ctx, at, out),
            Event::Close { ctx } => self.close(now, ctx, out),
            Event::Status { status, .. } if status.is_gone() => {
                self.card_gone(now, out);
                Ok(())
            }
            Event::Status { slot, status } => {
                self.status(now, slot, status, out);
                Ok(())
            }
            Event::Timer { slot } => {
                self.timer(now, slot, out);
                Ok(())
            }
            Event::Gone => {
                self.card_gone(now, out);
                Ok(())
            }
        }
    }

    /// The parameters of a context.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`].
    pub fn params(&self, ctx: ContextId) -> Result<Params, Refusal> {
        Ok(self.slab.owned(ctx)?.params)
    }

    /// Changes the parameters of a context; they hold at once, for the slice that runs too. A job on a slot that is not
    /// in the mask any more is preempted.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`], [`Refusal::Gone`], [`Refusal::Range`], [`Refusal::Ceiling`], [`Refusal::NoSlot`],
    /// [`Refusal::Admission`]; nothing was changed.
    pub fn set_params(
        &mut self,
        now: Time,
        ctx: ContextId,
        params: Params,
        out: &mut impl FnMut(Action),
    ) -> Result<(), Refusal> {
        let index = self.slab.owned(ctx)?.queue;
        if self.gone {
            return Err(Refusal::Gone);
        }
        params.check()?;
        self.check_priority(ctx, &params)?;
        self.check_mask(index, params.mask)?;
        let old = self.slab.owned(ctx)?.params;
        self.check_admission(index, Some(&old), &params)?;
        self.replace_params(now, ctx, params);
        self.press(now, index, out);
        Ok(())
    }

    /// The policy in force.
    pub fn policy(&self) -> PolicyKind {
        self.policy
    }

    /// Chooses another policy, which holds at once; jobs that run are not disturbed before their slices end. What
    /// contexts had before counts no more. [`Machine::sweep`] brings those that wait into the new order. To choose the one
    /// in force changes nothing.
    ///
    /// # Errors
    ///
    /// [`Refusal::Gone`].
    pub fn set_policy(&mut self, now: Time, policy: PolicyKind) -> Result<(), Refusal> {
        if self.gone {
            return Err(Refusal::Gone);
        }
        if policy != self.policy {
            self.change_policy(now, policy);
        }
        Ok(())
    }

    /// What a context has done until `now`.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`].
    pub fn stats(&self, ctx: ContextId, now: Time) -> Result<Stats, Refusal> {
        let entry = self.slab.owned(ctx)?;
        Ok(Stats {
            no_slot: self.has_no_slot(entry),
            ..entry.stats(now)
        })
    }

    /// Whether a quarantined slot may still reach the memory of a context, also of one that was closed.
    pub fn is_stuck(&self, ctx: ContextId) -> bool {
        self.slab.get(ctx).is_some_and(|entry| entry.stuck)
    }

    /// The slot whose application registers are those of `ctx` now, so that its writes and reads may be forwarded: from
    /// Load until the end of the run is observed or the slot is reset.
    pub fn slot_of(&self, ctx: ContextId) -> Option<SlotId> {
        let id = self.slab.owned(ctx).ok()?.slot?;
        let run = self.slot(id)?.state.run()?;
        (run.ctx == ctx).then_some(id)
    }

    /// What a slot does; `None` if the card has no such slot.
    pub fn slot_state(&self, slot: SlotId) -> Option<SlotState> {
        match self.slots.get(slot.index())?.state {
            State::Absent => None,
            State::Vacant => Some(SlotState::Vacant),
            State::Running(run) => Some(SlotState::Running(run.ctx)),
            State::Pausing(run, _) => Some(SlotState::Pausing(run.ctx)),
            State::Resetting(reset) => Some(SlotState::Resetting(reset.ctx)),
            State::Quarantined(_) => Some(SlotState::Quarantined),
            State::Gone => Some(SlotState::Gone),
        }
    }

    /// What a slot has done until `now`, the run that is under way included; `None` if the card has no such slot.
    pub fn slot_stats(&self, slot: SlotId, now: Time) -> Option<SlotStats> {
        let slot = self.slots.get(slot.index())?;
        let mut stats = slot.stats;
        (stats.save, stats.restore) = (slot.save(), slot.restore());
        if let Some(run) = slot.state.run() {
            stats.busy += now.since(run.started);
        }
        (slot.state != State::Absent).then_some(stats)
    }

    /// The profile of a slot; `None` if the card has no such slot.
    pub fn profile(&self, slot: SlotId) -> Option<Profile> {
        let slot = self.slots.get(slot.index())?;
        (slot.state != State::Absent).then_some(slot.config.profile)
    }

    /// How many contexts there are, those included that were closed and not yet released.
    pub fn contexts(&self) -> u32 {
        self.slab.used()
    }

    /// How many contexts fit.
    pub fn capacity(&self) -> usize {
        self.slab.capacity()
    }

    /// Is the card gone?
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    pub(super) fn queue(&self, index: u8) -> Option<&Queue> {
        self.queues.get(usize::from(index))
    }

    pub(super) fn queue_mut(&mut self, index: u8) -> Option<&mut Queue> {
        self.queues.get_mut(usize::from(index))
    }

    /// The slots of a class, a bit each.
    pub(super) fn class_slots(&self, index: u8) -> u8 {
        self.queue(index).map_or(0, |queue| queue.slots)
    }

    /// Those of them that are not quarantined.
    pub(super) fn usable_slots(&self, index: u8) -> u8 {
        self.queue(index).map_or(0, |queue| queue.usable)
    }

    pub(super) fn slot(&self, id: SlotId) -> Option<&Slot> {
        self.slots.get(id.index())
    }

    pub(super) fn slot_mut(&mut self, id: SlotId) -> Option<&mut Slot> {
        self.slots.get_mut(id.index())
    }

    /// Asks for a status read.
    pub(super) fn read(&mut self, id: SlotId, out: &mut Out<'_>) {
        if let Some(slot) = self.slot_mut(id) {
            slot.stats.reads += 1;
            out(Action::ReadStatus { slot: id });
        }
    }
}
