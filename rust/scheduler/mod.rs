// SPDX-License-Identifier: GPL-2.0

//! The scheduler of a card and the slot protocol, pure: it does not lock, allocate, read a clock or
//! import the kernel.
//!
//! The caller owns one [`Scheduler`] per card, and passes it requests of owners and reports of the
//! card under its own lock, with the time and with its [`Card`], through which the scheduler acts.
//! Requests return whether they were refused; then nothing was changed. Reports return nothing.
//! Each is O(log n) in the number of contexts, and writes at most one part of a context's registers.
//!
//! - `queues`: what waits, and in which order;
//! - `slot`: one slot and its protocol;
//! - `decisions`: which context runs next on a slot, and who is charged;
//! - `requests`: what owners and administrators ask for, what the card reports, and statistics;
//! - `optional`: features that can be left out.

mod card;
mod context;
mod decisions;
#[cfg(not(MODULE))]
mod invariants;
mod optional;
mod queues;
mod requests;
mod slot;
mod values;

use crate::array::{Array, Boxed};
pub use card::{Begin, Card, Notice, Pause, Trace};
use context::Contexts;
pub use context::Place;
pub use decisions::Slot;
use decisions::Waiting;
use optional::{gangs::Gangs, hints::Hints, reservations::Reservations};
pub use queues::{Bin, Entity, Group, Level};
use queues::{Groups, RunQueue};
pub use values::*;

/// Storage for a scheduler; [`Scheduler::new`] overwrites it.
pub struct Storage {
    /// Places for contexts.
    pub contexts: Array<Place>,
    /// As many as there are places for contexts and levels together.
    pub entities: Array<Entity>,
    /// Places for groups, by class and urgency of their contexts: [`Scheduler::level_places`].
    pub levels: Array<Level>,
    /// Places for groups: as many as there are levels, and [`Scheduler::GROUPS_MAX`] more.
    pub groups: Array<Group>,
    /// As many as there are places for groups.
    pub bins: Array<Bin>,
    /// For slots.
    pub slots: Boxed<[Slot; MAX_SLOTS]>,
}

/// The slots of one engine, and what waits for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SlotClass {
    /// Its slots, a bit each.
    slots: u8,
    /// Of these, those in use.
    usable: u8,
    waiting: Waiting,
}

/// How far work that concerns all contexts has come (`requests/sweep.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sweep {
    /// There is none.
    None,
    /// Levels, from this one on, are renewed for the policy in force; contexts follow.
    Levels(u32),
    /// Contexts, from this place on, are enqueued again for the policy in force, and settled.
    Renew(u32),
    /// Contexts are settled for the slots in use, or for the loss of the card.
    Settle(u32),
}

/// The scheduler of one card.
///
/// The caller holds one lock across each call. An interrupt handler that reads a status itself reads
/// it under the same lock, so that no START can come between the read and its report.
#[derive(Debug)]
#[cfg_attr(not(MODULE), derive(Clone, PartialEq, Eq))]
pub struct Scheduler {
    queue: RunQueue,
    groups: Groups,
    contexts: Contexts,
    hints: Hints,
    slots: Boxed<[Slot; MAX_SLOTS]>,
    /// The slots that the card has, a bit each.
    present: u8,
    /// By the first slot of the class.
    classes: [SlotClass; MAX_SLOTS],
    /// The starvation boost interval; zero: there is no boost.
    boost: Duration,
    /// How long work that preempts at once waits for a boundary.
    boundary_wait: Duration,
    frozen: bool,
    gone: bool,
    sweep: Sweep,
    /// Slots whose timers may have to be armed.
    dirty: u8,
    /// Classes whose work in common may be due at another time.
    dirty_classes: u8,
    /// Classes whose successors are to be compared with what waits.
    revise: u8,
    gangs: Gangs,
    reservations: Reservations,
}

/// A timer that is due fires this much later: other interrupts are handled in between.
const SOON: Duration = Duration::from_us(2);
/// Of what is due for several contexts of a class, one follows the other after this time.
const SPREAD: Duration = Duration::from_us(20);

impl Scheduler {
    /// Returns a scheduler without contexts. Every slot must be quiescent and out of reset, with its
    /// window closed. O(length of the storage).
    pub fn new(config: &CardConfig, storage: Storage) -> Self {
        let contexts = storage.contexts.len();
        let width = config.slots.iter().flatten().count();
        let mut scheduler = Self {
            queue: RunQueue::new(storage.entities, storage.levels, contexts, width),
            groups: Groups::new(storage.groups, storage.bins),
            contexts: Contexts::new(storage.contexts),
            hints: Hints::default(),
            slots: storage.slots,
            present: 0,
            classes: [SlotClass::default(); MAX_SLOTS],
            boost: config.boost,
            boundary_wait: config.boundary_wait,
            frozen: false,
            gone: false,
            sweep: Sweep::None,
            dirty: 0,
            dirty_classes: 0,
            revise: 0,
            gangs: Gangs::default(),
            reservations: Reservations::default(),
        };
        scheduler.queue.set_policy(config.policy, [None; MAX_SLOTS]);
        for (id, config) in slots_in(u8::MAX).zip(config.slots) {
            if let Some(config) = config {
                scheduler.add_slot(id, config);
            }
        }
        scheduler
    }

    /// Returns how many levels always suffice for `contexts` contexts on a card with `classes`
    /// classes, when `remembered` groups without contexts are remembered.
    pub const fn level_places(contexts: usize, classes: usize, remembered: usize) -> usize {
        // A context may have an own group, for its cap.
        RunQueue::TOPS + 2 * contexts + remembered + 2 * Self::GROUPS_MAX * classes
    }

    fn add_slot(&mut self, id: SlotId, config: SlotConfig) {
        let class = self.find_class(config.class).unwrap_or(Class::of(id));
        self.slots[id.index()] = Slot::new(id, config, class);
        self.present |= id.bit();
        let class = &mut self.classes[class.at()];
        class.slots |= id.bit();
        class.usable |= id.bit();
    }

    /// Returns the class that has the caller's number `class`.
    fn find_class(&self, class: u8) -> Option<Class> {
        let mut slots = self.ids().map(|id| self.slot(id));
        let found = slots.find(|slot| slot.protocol.config().class == class);
        found.map(|slot| slot.class)
    }

    #[inline]
    fn slot(&self, id: SlotId) -> &Slot {
        &self.slots[id.index()]
    }

    /// Returns a slot that the card may not have.
    fn find_record(&self, id: SlotId) -> Option<&Slot> {
        (self.present & id.bit() != 0).then(|| self.slot(id))
    }

    /// Iterates over the slots that the card has.
    fn ids(&self) -> impl Iterator<Item = SlotId> {
        slots_in(self.present)
    }

    /// Iterates over the classes that the card has.
    fn all_classes(&self) -> impl Iterator<Item = Class> {
        let mut classes = 0;
        for id in self.ids() {
            classes |= self.slot(id).class.bit();
        }
        classes_in(classes)
    }

    /// Returns the slots in use that a context may use.
    #[inline]
    fn slots_of(&self, at: EntityIndex) -> u8 {
        let class = self.contexts[at].class;
        self.queue.allowed(at) & self.classes[class.at()].usable
    }

    /// Returns whether a slot will be vacant soon, and may have a successor.
    #[inline]
    fn is_leaving(&self, id: SlotId) -> bool {
        let slot = self.slot(id);
        let usable = self.classes[slot.class.at()].usable;
        slot.protocol.is_leaving(usable == id.bit())
    }

    /// Marks the timer of a slot.
    #[inline]
    fn touch(&mut self, id: SlotId) {
        self.dirty |= id.bit();
    }

    /// Ends a call: compares successors with what waits, where that may have changed, and arms the
    /// timers.
    fn finish<C: Card>(&mut self, call: &mut card::Call<'_, C>) {
        if self.gone {
            (self.dirty, self.dirty_classes, self.revise) = (0, 0, 0);
            return;
        }
        self.seat_gangs(call);
        for class in classes_in(core::mem::take(&mut self.revise)) {
            self.revise_class(call, class);
        }
        // The work of a class in common is done by the timer of its first slot.
        self.dirty |= core::mem::take(&mut self.dirty_classes);
        for id in slots_in(core::mem::take(&mut self.dirty)) {
            let mut at = self.slot(id).deadline().max(call.now + SOON);
            if self.slot(id).class == Class::of(id) {
                at = at.min(self.class_due(Class::of(id)).max(call.now + SPREAD));
            }
            if self.slots[id.index()].arm(at) {
                call.card.arm(id, at);
            }
        }
    }

    /// Returns when something is due for contexts of a class that no slot waits for.
    fn class_due(&self, class: Class) -> Time {
        let throttled = self.queue.next_throttled(class);
        let due = self.next_hint(class).min(self.next_budget(class));
        throttled.map_or(due, |(_, at)| due.min(at))
    }
}
