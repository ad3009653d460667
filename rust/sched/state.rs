// SPDX-License-Identifier: GPL-2.0

//! The scheduler's state, part by part.

use super::context::Linked;
use super::entities::Entities;
use super::ids::{slots_in, ContextIndex, RegistrationIndex};
use super::plan_cache::Generation;
use super::policy::{PolicyKind, Preempt};
use super::reservation::SlotReservation;
use super::runqueue::RunQueue;
use super::slot_config::{PreemptGranularity, SlotConfig};
use super::slot_fsm::SlotFsm;
use super::table::{EntityStorage, PerSlot};
use super::{ContextId, Duration, PauseCause, Refusal, SlotId, Time, MAX_SLOTS};
use crate::array::Boxed;

/// The scheduler of one card.
///
/// The caller holds one lock across each call and the actions that come out of it. An interrupt
/// handler that reads a status itself reads it under the same lock, so that no START can come
/// between the read and its [`Event::Status`](super::Event::Status).
#[derive(Debug)]
#[cfg_attr(not(MODULE), derive(Clone, PartialEq, Eq))]
pub struct Scheduler {
    pub(super) entities: Entities,
    /// The run queues, by the first slot of their class.
    pub(super) queues: PerSlot<RunQueue>,
    pub(super) slots: PerSlot<Slot>,
    pub(super) policy: PolicyKind,
    /// The starvation boost interval (`boost.rs`); zero: there is no boost.
    pub(super) boost: Duration,
    /// How long work that preempts at once waits for a boundary.
    pub(super) boundary_wait: Duration,
    pub(super) gone: bool,
    /// No job is started (`freeze.rs`).
    pub(super) frozen: bool,
    /// What remains to be done for every context (`sweep.rs`).
    pub(super) sweep: Sweep,
    /// The generation of the answers that plans share (`plan_cache.rs`).
    pub(super) generation: Generation,
}

/// A slot: its state machine, and what the scheduler plans for it. Opaque: the caller provides the
/// storage for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    pub(super) fsm: SlotFsm,
    /// The first slot of its class.
    pub(super) class: SlotId,
    /// The only group that the slot serves, if it is an exclusive slot.
    pub(super) exclusive: Option<RegistrationIndex>,
    /// The hint that the slot is kept vacant for, or is being vacated for.
    pub(super) reservation: Option<SlotReservation>,
    /// The slot is vacant although a context waits, because a decision starts only one job. The
    /// timer triggers the next decision.
    pub(super) unfilled: bool,
    /// The context for which the job on the slot is preempted before the end of its slice, and
    /// which is charged for the save.
    pub(super) payer: Option<ContextId>,
    /// The member of a gang that the slot is claimed for.
    pub(super) claim: Option<Claim>,
    /// The contexts that a relay may put on the slot by itself.
    pub(super) nominees: Nominees,
    /// When the job on the slot is to be preempted; `None`: not determined yet.
    pub(super) plan: Option<Plan>,
}

/// The claim of a member of a gang to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) ctx: ContextIndex,
    /// When the job on the slot is to be preempted.
    pub(super) at: Time,
    /// The claim was made because of the starvation boost.
    pub(super) boosted: bool,
    /// Other members of the gang were started: all slots of the gang are vacant.
    pub(super) begun: bool,
}

/// A context that was named to run next on a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nominee {
    pub(super) ctx: ContextIndex,
    /// It was named because of the starvation boost.
    pub(super) boosted: bool,
    /// Its place among the waiting contexts, to which it returns if the relay does not take it;
    /// `None`: it was not waiting.
    pub(super) place: Option<WaitPlace>,
    /// When it was named: its run cannot begin earlier.
    pub(super) since: Time,
    /// The part of its slice that is already used.
    pub(super) used: Duration,
}

/// The place of a context among the waiting contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaitPlace {
    /// Its turn among its equals.
    pub(super) turn: u64,
    /// When it began to wait.
    pub(super) since: Time,
}

/// The contexts that a relay may put on a slot by itself. Their jobs are
/// [`Running`](super::JobState::Running): the contexts are in no queue, and their memory stays
/// where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Nominees {
    /// Named in the order that was posted last.
    pub(super) next: Option<Nominee>,
    /// Named in earlier orders, which the card may have taken.
    pub(super) replaced: [Option<Nominee>; 3],
}

impl Nominees {
    /// Iterates over all nominees.
    pub(super) fn iter(self) -> impl Iterator<Item = Nominee> {
        self.replaced.into_iter().chain([self.next]).flatten()
    }
}

/// When the job on a slot is to be preempted, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// When the job is to be preempted; `None`: not before something changes.
    pub(super) at: Option<Time>,
    /// How long before `at` a relay is told.
    pub(super) lead: Duration,
    pub(super) cause: PauseCause,
    /// The context that is charged for the save.
    pub(super) payer: Option<ContextIndex>,
    /// The slice is no longer than the time between two polls of the status.
    pub(super) is_short: bool,
}

/// What a sweep does with each item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// Nothing: no sweep is under way.
    None,
    /// A group is reset for the policy in force; the contexts follow.
    ResetGroup,
    /// A context is reset for the policy in force, and settled as by `Settle`.
    ResetContext,
    /// A context is updated for the slots that are in use, or for the loss of the card.
    Settle,
}

/// How far a sweep over all contexts and groups has come (`sweep.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sweep {
    pub(super) pass: Pass,
    /// The index of the item to visit next.
    pub(super) next: u32,
}

impl Sweep {
    /// No sweep is under way.
    pub(super) const NONE: Self = Self::new(Pass::None);

    pub(super) const fn new(pass: Pass) -> Self {
        Self { pass, next: 0 }
    }

    /// Schedules an update of all contexts for the slots that are in use, or for the loss of the
    /// card.
    pub(super) fn settle_all(&mut self, gone: bool) {
        *self = match self.pass {
            // The next pass does that too.
            Pass::ResetGroup if !gone => return,
            Pass::ResetContext if !gone => Self::new(Pass::ResetContext),
            _ => Self::new(Pass::Settle),
        };
    }
}

/// The storage of a scheduler.
pub struct Storage {
    /// For contexts and groups.
    pub entities: EntityStorage,
    /// For slots.
    pub slots: Boxed<[Slot; MAX_SLOTS]>,
    /// For the run queues.
    pub queues: Boxed<[RunQueue; MAX_SLOTS]>,
}

/// A placeholder to fill new storage with.
impl Default for Slot {
    fn default() -> Self {
        Self::new(SlotId::FIRST, SlotConfig::PLAIN, SlotId::FIRST)
    }
}

impl Slot {
    fn new(id: SlotId, config: SlotConfig, class: SlotId) -> Self {
        Self {
            fsm: SlotFsm::new(id, config),
            class,
            exclusive: None,
            reservation: None,
            unfilled: false,
            payer: None,
            claim: None,
            nominees: Nominees::default(),
            plan: None,
        }
    }

    /// Returns the context that the slot is kept vacant for.
    pub(super) fn reserved_for(&self) -> Option<ContextId> {
        let reservation = self.reservation.as_ref();
        Some(reservation.filter(|reservation| !reservation.taken)?.ctx)
    }
}

impl Scheduler {
    /// Returns a scheduler without slots. The contents of `storage` are overwritten; O(length).
    pub fn without_slots(storage: Storage) -> Self {
        Self {
            entities: Entities::new(storage.entities),
            queues: PerSlot::new(storage.queues),
            slots: PerSlot::new(storage.slots),
            policy: PolicyKind::default(),
            boost: Self::BOOST_DEFAULT,
            boundary_wait: Self::BOUNDARY_WAIT_DEFAULT,
            gone: false,
            frozen: false,
            sweep: Sweep::NONE,
            generation: Generation::default(),
        }
    }

    /// The default starvation boost interval: 1 s.
    pub const BOOST_DEFAULT: Duration = Duration::from_ms(1_000);
    /// The default boundary wait: 1 ms.
    pub const BOUNDARY_WAIT_DEFAULT: Duration = Duration::from_ms(1);

    pub(super) fn add_slot(&mut self, id: SlotId, config: SlotConfig) {
        let class = self.class_of(config.class).unwrap_or(id);
        self.slots.set(id, Slot::new(id, config, class));
        if class == id {
            self.queues.set(id, RunQueue::default());
        }
        let queue = &mut self.queues[class];
        queue.slots |= id.bit();
        queue.usable |= id.bit();
        queue.relays |= config.has_relay();
        queue.has_boundaries |= config.granularity != PreemptGranularity::Anywhere;
    }

    /// Returns the first slot of the class that has the caller's number `class`.
    pub(super) fn class_of(&self, class: u8) -> Option<SlotId> {
        let mut slots = self.slots.iter();
        let found = slots.find(|slot| slot.fsm.config.class == class);
        found.map(|slot| slot.class)
    }

    /// Iterates over the slots of a class.
    pub(super) fn class_slots(&self, class: SlotId) -> impl Iterator<Item = SlotId> {
        slots_in(self.queues[class].slots)
    }

    /// Returns whether the class has a pending hint, or a slot reserved for an earlier hint.
    pub(super) fn is_hinted(&self, class: SlotId) -> bool {
        let mut slots = self.class_slots(class);
        self.queues[class].has_hints() || slots.any(|id| self.slots[id].reservation.is_some())
    }

    /// Returns whether the job of `waits` preempts the job of `runs` at once.
    pub(super) fn is_preempted_now(&self, runs: ContextIndex, waits: ContextIndex) -> bool {
        let (runs, waits) = (&self.entities[runs], &self.entities[waits]);
        self.policy.preempt(runs, waits) == Preempt::Now
    }

    /// Returns the slots of its class that a context may use.
    pub(super) fn usable_slots(&self, ctx: ContextIndex) -> u8 {
        let usable = self.queues[self.entities[ctx].class].usable;
        usable & self.entities.se(ctx).slots()
    }

    /// Returns whether the job of a context waits because its group, or one above, is throttled.
    pub(super) fn waits_for_cap(&self, ctx: ContextIndex) -> bool {
        let context = &self.entities[ctx];
        match context.linked {
            Linked::Behind => self.entities[context.group].throttled,
            Linked::Ready => self.queues[context.class].is_hidden(&self.entities, ctx),
            _ => false,
        }
    }

    /// Checks that at least one slot of `mask` is in use.
    pub(super) fn check_mask(&self, class: SlotId, mask: u8) -> Result<(), Refusal> {
        if self.queues[class].usable & mask == 0 {
            return Err(Refusal::NoSlot);
        }
        Ok(())
    }

    /// Checks that the card is present.
    pub(super) fn check_present(&self) -> Result<(), Refusal> {
        if self.gone {
            return Err(Refusal::Gone);
        }
        Ok(())
    }

    /// Returns the slot that the job of a context is on; `None`: the job is on no slot, or the
    /// context is only named for a slot.
    pub(super) fn slot_with(&self, ctx: ContextIndex) -> Option<SlotId> {
        let slot = self.entities[ctx].slot?;
        let run = self.slots[slot].fsm.run()?;
        (run.ctx.at() == ctx).then_some(slot)
    }

    /// Iterates over the contexts on slots of a class.
    pub(super) fn running(&self, class: SlotId) -> impl Iterator<Item = ContextIndex> + '_ {
        let slots = self.class_slots(class);
        slots.filter_map(|id| self.slots[id].fsm.run().map(|run| run.ctx.at()))
    }

    /// Invalidates all plans.
    pub(super) fn forget_all_plans(&mut self) {
        self.generation.advance();
        for class in self.queues.ids() {
            self.queues[class].replan = true;
        }
    }

    /// Invalidates the plans that depend on what happens in a class.
    pub(super) fn forget_plans(&mut self, class: SlotId) {
        if self.are_classes_tied() {
            return self.forget_all_plans();
        }
        self.generation.advance();
        self.queues[class].replan = true;
    }

    /// Returns whether what happens in a class matters to the other classes: a gang may have
    /// members of several classes, and the cap of a group holds for all its contexts together.
    pub(super) fn are_classes_tied(&self) -> bool {
        self.entities.nr_ganged != 0 || self.entities.nr_capped != 0
    }
}
