// SPDX-License-Identifier: GPL-2.0

//! Registered groups: what the administrator has set for a group, in force whether the group has contexts or not.
//!
//! A registration has an entry of its own among the records of groups, which belongs to no class and is never forgotten:
//! - `params.weight` and `params.priority` are the group's weight and its priority ceiling,
//! - `params.budget` is the time on slots that the group's cap allows in each [`WINDOW`](super::limit::WINDOW), and
//!   `purse` is what is left of it (`limit.rs`),
//! - `run` is the time on slots of the group's contexts, kept when a record of the group is forgotten.
//!
//! The slots that serve the group only are in the slots themselves (`exclusive.rs`).

use core::ops::DerefMut;

use super::group::Of;
use super::machine::Machine;
use super::slab::Slab;
use super::slot::{slots_in, State};
use super::{
    Action, ContextId, Duration, Entry, GroupKey, JobState, Params, Refusal, Time, Urgency,
};

/// The class of the entries of registrations: none.
const NO_CLASS: u8 = u8::MAX;

/// What the administrator sets for a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSettings {
    /// Its weight against that of other groups: [`Params::WEIGHT_MIN`] to [`Params::WEIGHT_MAX`].
    pub weight: u16,
    /// The highest [`Params::priority`] that its contexts may have: 0 to [`Params::PRIORITY_MAX`].
    pub max_priority: u8,
    /// The time on slots that all its contexts together may have, in percent of one slot: 0 to [`GroupSettings::CAP_MAX`]; 0:
    /// no cap. Contexts with a reservation in force are neither bound by it nor counted.
    pub cap: u16,
    /// The slots that serve this group only, a bit each.
    pub slots: u8,
}

impl GroupSettings {
    /// All slots of a card that has as many as a card can have.
    pub const CAP_MAX: u16 = 800;

    /// What holds for a group that is not registered.
    pub const DEFAULT: Self = Self {
        weight: Params::WEIGHT_DEFAULT,
        max_priority: Params::PRIORITY_MAX,
        cap: 0,
        slots: 0,
    };

    fn check(&self) -> Result<(), Refusal> {
        let weight = (Params::WEIGHT_MIN..=Params::WEIGHT_MAX).contains(&self.weight);
        let priority = self.max_priority <= Params::PRIORITY_MAX;
        if weight && priority && self.cap <= Self::CAP_MAX {
            Ok(())
        } else {
            Err(Refusal::Range)
        }
    }
}

impl Default for GroupSettings {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// How many groups are registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Registered {
    pub(super) all: u32,
    /// Of these, groups with a cap.
    pub(super) capped: u32,
}

impl Registered {
    pub(super) const NONE: Self = Self { all: 0, capped: 0 };
}

impl Of {
    /// The registration of a group.
    const fn registration(key: GroupKey) -> Self {
        Self {
            queue: NO_CLASS,
            urgency: Urgency::BestEffort,
            key,
        }
    }
}

impl<S: DerefMut<Target = [Entry]>> Slab<S> {
    /// The registration of a group, if it has one. O(1) but for collisions.
    pub(super) fn registration(&self, key: GroupKey) -> Option<u32> {
        if self.records.registered.all == 0 {
            return None;
        }
        self.record(&Of::registration(key))
    }

    /// Adds the time of a run to the registration of a group, if it has one.
    pub(super) fn note_registered_run(&mut self, key: GroupKey, span: Duration) {
        if let Some(at) = self.registration(key) {
            if let Some(entry) = self.at_mut(at) {
                entry.run += span;
            }
        }
    }

    /// The priority ceiling of a group.
    fn max_priority(&self, key: GroupKey) -> u8 {
        let entry = self.registration(key).and_then(|at| self.at(at));
        entry.map_or(Params::PRIORITY_MAX, |entry| entry.params.priority)
    }
}

impl<S: DerefMut<Target = [Entry]>> Machine<S> {
    /// Most groups that can be registered.
    pub const GROUPS_MAX: u32 = 256;

    /// Registers a group, or changes what is set for it. The registration lasts until [`Machine::remove_group`], whether the
    /// group has contexts or not. Weight and cap hold at once. The caller brings all contexts of the card in line with the
    /// rest by [`Machine::regroup`]. O(log n).
    ///
    /// # Errors
    ///
    /// [`Refusal::Gone`], [`Refusal::Range`], [`Refusal::NoSlot`] (a slot that the card does not have), [`Refusal::Busy`]
    /// (a slot serves another group only), [`Refusal::NoSpace`] ([`Machine::GROUPS_MAX`] groups are registered, or the storage
    /// is full); nothing was changed.
    pub fn set_group(
        &mut self,
        now: Time,
        key: GroupKey,
        settings: GroupSettings,
        out: &mut impl FnMut(Action),
    ) -> Result<(), Refusal> {
        if self.gone {
            return Err(Refusal::Gone);
        }
        settings.check()?;
        if !slots_in(settings.slots).all(|id| self.has_slot(id)) {
            return Err(Refusal::NoSlot);
        }
        if self.foreign_slots(key) & settings.slots != 0 {
            return Err(Refusal::Busy);
        }
        let at = match self.slab.registration(key) {
            Some(at) => at,
            None => self.register(key)?,
        };
        self.set_group_cap(now, at, settings.cap);
        if let Some(entry) = self.slab.at_mut(at) {
            entry.params.weight = settings.weight;
            entry.params.priority = settings.max_priority;
        }
        self.set_group_weight(now, key, settings.weight);
        self.reserve_slots(key, settings.slots);
        self.press_all(now, out);
        Ok(())
    }

    /// Ends the registration of a group, which has what groups have by default from now on. The caller brings all contexts
    /// of the card in line with that by [`Machine::regroup`]. O(log n).
    ///
    /// # Errors
    ///
    /// [`Refusal::Gone`], [`Refusal::NoContext`] (the group is not registered); nothing was changed.
    pub fn remove_group(
        &mut self,
        now: Time,
        key: GroupKey,
        out: &mut impl FnMut(Action),
    ) -> Result<(), Refusal> {
        if self.gone {
            return Err(Refusal::Gone);
        }
        let at = self.slab.registration(key).ok_or(Refusal::NoContext)?;
        self.set_group_cap(now, at, 0);
        self.set_group_weight(now, key, Params::WEIGHT_DEFAULT);
        self.reserve_slots(key, 0);
        self.slab.free_record(at);
        self.slab.records.registered.all -= 1;
        self.press_all(now, out);
        Ok(())
    }

    /// What is set for a group; `None`: it is not registered.
    pub fn group_settings(&self, key: GroupKey) -> Option<GroupSettings> {
        let entry = self.slab.at(self.slab.registration(key)?)?;
        let theirs = slots_in(u8::MAX).filter(|&id| self.exclusive(id) == Some(key));
        Some(GroupSettings {
            weight: entry.params.weight,
            max_priority: entry.params.priority,
            // CAST: at most CAP_MAX.
            cap: entry.group_cap() as u16,
            slots: theirs.fold(0, |slots, id| slots | id.bit()),
        })
    }

    /// Lets each of the contexts belong to the group named with it, and obey what is set for groups now: the priority ceiling, the
    /// slots that serve one group only, the cap. No-op for a context that is in line already; one that is gone is passed over.
    /// O(log n) for each context.
    pub fn regroup(
        &mut self,
        now: Time,
        contexts: impl Iterator<Item = (ContextId, GroupKey)>,
        out: &mut impl FnMut(Action),
    ) {
        if self.gone {
            return;
        }
        for (ctx, key) in contexts {
            self.bring_in_line(now, ctx, key);
        }
        self.press_all(now, out);
    }

    /// Refuses a priority above the ceiling of the context's group, unless the context has that priority already.
    pub(super) fn check_priority(&self, ctx: ContextId, params: &Params) -> Result<(), Refusal> {
        let old = self.slab.owned(ctx)?.params.priority;
        let most = self.max_priority(ctx)?;
        if params.priority > old && params.priority > most {
            Err(Refusal::Ceiling)
        } else {
            Ok(())
        }
    }

    /// The priority ceiling of the group of a context.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`].
    pub fn max_priority(&self, ctx: ContextId) -> Result<u8, Refusal> {
        Ok(self.slab.max_priority(self.group_of(ctx)?))
    }

    /// The parameters of a context that joins a group.
    pub(super) fn within_ceiling(&self, params: Params, key: GroupKey) -> Params {
        let most = self.slab.max_priority(key);
        Params {
            priority: params.priority.min(most),
            ..params
        }
    }

    fn has_slot(&self, id: super::SlotId) -> bool {
        self.slot(id)
            .is_some_and(|slot| slot.state != State::Absent)
    }

    /// Makes the registration of a group that has none.
    fn register(&mut self, key: GroupKey) -> Result<u32, Refusal> {
        if self.slab.records.registered.all >= Self::GROUPS_MAX {
            return Err(Refusal::NoSpace);
        }
        let run = self.recorded_run(key);
        let of = Of::registration(key);
        let at = self.slab.make_record(&of, Params::WEIGHT_DEFAULT);
        let at = at.ok_or(Refusal::NoSpace)?;
        self.slab.recall(at);
        if let Some(entry) = self.slab.at_mut(at) {
            entry.run = run;
        }
        self.slab.records.registered.all += 1;
        Ok(at)
    }

    fn bring_in_line(&mut self, now: Time, ctx: ContextId, key: GroupKey) {
        if self.slab.get(ctx).is_none() {
            return;
        }
        if self.slab.key_of(ctx) != Some(key) {
            self.move_to_group(now, ctx, key);
        }
        let Some(entry) = self.slab.get(ctx) else {
            return;
        };
        let (params, parked) = (entry.params, entry.is_parked());
        if parked || Some(entry.allowed) != self.allowed_to(ctx) {
            self.change_access(now, ctx, |_| ());
        }
        let within = self.within_ceiling(params, key);
        if within != params {
            self.replace_params(now, ctx, within);
        }
    }

    /// A context leaves its group for another one, among whose contexts it is new.
    fn move_to_group(&mut self, now: Time, ctx: ContextId, key: GroupKey) {
        let Some(entry) = self.slab.get(ctx) else {
            return;
        };
        let of = Of {
            queue: entry.queue,
            urgency: entry.params.urgency,
            key,
        };
        let (queue, runs, aside) = (entry.queue, entry.is_metered(), entry.aside);
        let queued = entry.state == JobState::Queued;
        let weight = self.group_weight(key);
        let hint = self.take_hint(ctx);
        self.advance_clock(now, queue, None);
        if runs {
            self.meter(now, ctx);
            self.leave_lane(ctx);
        }
        if queued {
            self.step_out(ctx);
        }
        self.slab.rejoin(ctx, &of, weight);
        self.allow(ctx);
        if runs || queued {
            self.wake_in_group(now, ctx);
        }
        if runs {
            self.enter_lane(ctx);
        }
        self.weigh(ctx);
        self.begin_anew(ctx);
        if queued {
            self.line_up(now, ctx, aside);
        }
        self.put_hint(ctx, hint);
    }
}
