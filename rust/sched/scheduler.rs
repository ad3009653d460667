// SPDX-License-Identifier: GPL-2.0

//! Setting up a scheduler, its settings, and its reports.

use super::context::{Linked, WaitReason};
use super::event::Cx;
use super::group::GroupKind;
use super::ids::ContextIndex;
use super::policy::{Limit, PolicyKind};
use super::state::{Scheduler, Storage};
use super::{
    Action, ContextId, Duration, GroupPath, JobState, Params, Profile, Refusal, SlotConfig, SlotId,
    SlotState, SlotStats, Stats, Time, MAX_SLOTS,
};

/// A card as its caller knows it, and its first settings, which are in range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardConfig {
    /// The slots, by number. Slots that the card does not have are `None`.
    pub slots: [Option<SlotConfig>; MAX_SLOTS],
    /// The policy.
    pub policy: PolicyKind,
    /// The starvation boost interval.
    pub boost: Duration,
    /// How long urgent work waits for a boundary.
    pub boundary_wait: Duration,
}

impl Default for CardConfig {
    fn default() -> Self {
        Self {
            slots: [None; MAX_SLOTS],
            policy: PolicyKind::default(),
            boost: Scheduler::BOOST_DEFAULT,
            boundary_wait: Scheduler::BOUNDARY_WAIT_DEFAULT,
        }
    }
}

/// The configuration of a new context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextConfig {
    /// The class of the slots that have its engine: [`SlotConfig::class`].
    pub class: u8,
    /// Its initial parameters.
    pub params: Params,
    /// The group that it belongs to.
    pub group: GroupPath,
}

/// Setting up.
impl Scheduler {
    /// Returns a scheduler without contexts. Every slot must be quiescent and out of reset, with
    /// its window closed. The contents of `storage` are overwritten; O(length).
    pub fn new(config: &CardConfig, storage: Storage) -> Self {
        let mut scheduler = Self::without_slots(storage);
        scheduler.add_slots(config);
        scheduler.policy = config.policy;
        (scheduler.boost, scheduler.boundary_wait) = (config.boost, config.boundary_wait);
        scheduler
    }

    /// Adds the slots of a card. Must be called once, before any context is added.
    pub fn add_slots(&mut self, config: &CardConfig) {
        for (id, config) in super::ids::slots_in(u8::MAX).zip(config.slots) {
            if let Some(config) = config {
                self.add_slot(id, config);
            }
        }
    }

    /// Adds a context, and its group unless the group exists. A priority above the ceiling of the
    /// group is lowered to the ceiling. O(log n).
    ///
    /// # Errors
    ///
    /// [`Refusal::Gone`], [`Refusal::Range`] (a parameter), [`Refusal::NoSlot`] (no slot of the
    /// class in the mask is in use), [`Refusal::NoSpace`] (the storage is full),
    /// [`Refusal::Admission`].
    pub fn add(&mut self, now: Time, config: ContextConfig) -> Result<ContextId, Refusal> {
        self.check_present()?;
        config.params.check()?;
        let class = self.class_of(config.class).ok_or(Refusal::NoSlot)?;
        let mut params = config.params;
        self.check_mask(class, params.mask)?;
        let queue = &self.queues[class];
        queue.reserved.admit(queue.usable, None, &params)?;
        let registration = self.entities.registration_on(&config.group);
        params.priority = params.priority.min(self.priority_ceiling(registration));
        let kind = GroupKind {
            key: config.group.group,
            class,
            urgency: params.urgency,
        };
        let ctx = self
            .entities
            .add_context(&kind, config.group.level, params, now);
        let ctx = ctx.ok_or(Refusal::NoSpace)?;
        let reserved = &mut self.queues[class].reserved;
        *reserved = reserved.with(None, Some(&params));
        self.update_allowed(ctx);
        Ok(self.entities.id(ctx))
    }
}

/// Settings.
impl Scheduler {
    /// Returns the parameters of a context.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`].
    pub fn params(&self, id: ContextId) -> Result<Params, Refusal> {
        Ok(self.entities[self.entities.owned(id)?].params)
    }

    /// Changes the parameters of a context. They take effect at once, also for the current slice. A
    /// job on a slot that is no longer in the mask is preempted.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`], [`Refusal::Gone`], [`Refusal::Range`], [`Refusal::Ceiling`],
    /// [`Refusal::NoSlot`], [`Refusal::Admission`]; nothing was changed.
    pub fn set_params(
        &mut self,
        now: Time,
        id: ContextId,
        params: Params,
        out: &mut dyn FnMut(Action),
    ) -> Result<(), Refusal> {
        let ctx = self.entities.owned(id)?;
        self.check_present()?;
        params.check()?;
        self.check_priority(ctx, &params)?;
        let context = &self.entities[ctx];
        let class = context.class;
        if params.mask != context.params.mask {
            self.check_mask(class, params.mask)?;
        }
        let queue = &self.queues[class];
        queue
            .reserved
            .admit(queue.usable, Some(&context.params), &params)?;
        self.replace_params(now, ctx, params);
        let cx = &mut Cx::new(now, out);
        if !params.cooperative {
            if let Some(slot) = self.slot_with(ctx) {
                self.slots[slot].fsm.stop_before_boundary(cx);
            }
        }
        self.reschedule(cx, class);
        Ok(())
    }

    /// Disables or enables a context. The job of a disabled context is preempted at once if it is
    /// on a slot, as at the end of its slice. A Start is accepted, but the job waits until the
    /// context is enabled. A held job stays held. No-op if the context is already in the requested
    /// state. O(log n).
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`], [`Refusal::Gone`]; nothing was changed.
    pub fn set_enabled(
        &mut self,
        now: Time,
        id: ContextId,
        enabled: bool,
        out: &mut dyn FnMut(Action),
    ) -> Result<(), Refusal> {
        let ctx = self.entities.owned(id)?;
        self.check_present()?;
        if core::mem::replace(&mut self.entities[ctx].enabled, enabled) != enabled {
            self.change_access(now, ctx);
            self.reschedule(&mut Cx::new(now, out), self.entities[ctx].class);
        }
        Ok(())
    }

    /// Adds a context to the gang of `with`, which becomes the first member if it was in no gang;
    /// `None`: the context is to be in no gang. The context leaves its previous gang. Its job stays
    /// where it is, unless a member has a hold, which holds the jobs of all.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`] (either), [`Refusal::Range`] (`with` is the context itself, or
    /// belongs to another group), [`Refusal::NoSpace`] (the members could not all be on slots
    /// together even if the slots were vacant); nothing was changed.
    pub fn set_gang(
        &mut self,
        now: Time,
        id: ContextId,
        with: Option<ContextId>,
        out: &mut dyn FnMut(Action),
    ) -> Result<(), Refusal> {
        let entities = &self.entities;
        let ctx = entities.owned(id)?;
        let with = with.map(|with| entities.owned(with)).transpose()?;
        if let Some(with) = with {
            if with == ctx || entities.key_of(with) != entities.key_of(ctx) {
                return Err(Refusal::Range);
            }
            if entities.mates(ctx).any(|mate| mate == with) {
                return Ok(());
            }
            self.check_seats(ctx, with)?;
        }
        self.part(now, ctx);
        let cx = &mut Cx::new(now, out);
        if let Some(with) = with {
            self.entities.join_ring(ctx, with);
            self.change_access(now, ctx);
            self.change_access(now, with);
            self.gather(ctx);
            if self.entities.has_hold(ctx) {
                self.hold_gang(cx, ctx);
            }
        }
        self.forget_all_plans();
        self.reschedule_all(cx);
        Ok(())
    }

    /// Removes a context from its gang if the gang has a member of another group, after a context
    /// was moved ([`Scheduler::regroup`]).
    pub fn leave_foreign_gang(&mut self, now: Time, id: ContextId, out: &mut dyn FnMut(Action)) {
        let entities = &self.entities;
        let Some(ctx) = entities.find(id) else {
            return;
        };
        let key = entities.key_of(ctx);
        if entities.mates(ctx).any(|mate| entities.key_of(mate) != key) {
            self.part(now, ctx);
            self.reschedule_all(&mut Cx::new(now, out));
        }
    }

    /// Returns the policy in force.
    pub fn policy(&self) -> PolicyKind {
        self.policy
    }

    /// Selects another policy, which takes effect at once; running jobs are not disturbed before
    /// their slices end. A policy change resets accounting. [`Scheduler::sweep`] moves the waiting
    /// contexts into the new order. No-op for the policy in force.
    ///
    /// # Errors
    ///
    /// [`Refusal::Gone`].
    pub fn set_policy(&mut self, now: Time, policy: PolicyKind) -> Result<(), Refusal> {
        self.check_present()?;
        if policy != self.policy {
            self.change_policy(now, policy);
        }
        Ok(())
    }

    /// Returns the starvation boost interval; zero if there is none.
    pub fn boost(&self) -> Duration {
        self.boost
    }

    /// Sets how long a context may wait until it is given a slice under every policy:
    /// [`Scheduler::BOOST_MIN`] to [`Scheduler::BOOST_MAX`], or zero for no limit. If several
    /// contexts have waited that long, one of them is served in each such interval.
    ///
    /// # Errors
    ///
    /// [`Refusal::Gone`], [`Refusal::Range`]; nothing was changed.
    pub fn set_boost(
        &mut self,
        now: Time,
        boost: Duration,
        out: &mut dyn FnMut(Action),
    ) -> Result<(), Refusal> {
        self.check_present()?;
        Self::check_boost(boost)?;
        self.boost = boost;
        self.forget_all_plans();
        self.reschedule_all(&mut Cx::new(now, out));
        Ok(())
    }

    /// The longest boundary wait: 10 s, the same as the longest preempt timeout.
    pub const BOUNDARY_WAIT_MAX: Duration = Duration::from_ms(10_000);

    /// Returns how long a job on its way to a boundary may delay a context that preempts it at once
    /// under the policy.
    pub fn boundary_wait(&self) -> Duration {
        self.boundary_wait
    }

    /// Sets [`Scheduler::boundary_wait`]: zero to [`Scheduler::BOUNDARY_WAIT_MAX`]. The new value
    /// applies to waits that begin from now on.
    ///
    /// # Errors
    ///
    /// [`Refusal::Gone`], [`Refusal::Range`]; nothing was changed.
    pub fn set_boundary_wait(&mut self, wait: Duration) -> Result<(), Refusal> {
        self.check_present()?;
        if wait > Self::BOUNDARY_WAIT_MAX {
            return Err(Refusal::Range);
        }
        self.boundary_wait = wait;
        Ok(())
    }
}

/// Reports.
impl Scheduler {
    /// Notes that times on slots until `now` are shown to users, of contexts, groups or slots. What
    /// is shown later is never less, even if a record says that a run began later than the host
    /// assumed.
    pub fn note_shown(&mut self, now: Time) {
        for id in self.slots.ids() {
            self.slots[id].fsm.note_shown(now);
        }
    }

    /// Returns the statistics of a context until `now`.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`].
    pub fn stats(&self, id: ContextId, now: Time) -> Result<Stats, Refusal> {
        let ctx = self.entities.owned(id)?;
        let stats = self.entities[ctx].stats(now);
        let run = self.slot_with(ctx);
        let run = run.and_then(|slot| self.slots[slot].fsm.run());
        Ok(Stats {
            has_hold: self.entities.has_hold(ctx),
            no_slot: self.lacks_slots(ctx),
            throttled: self.waits_for_limit(ctx),
            hint: self.entities.pending_hint(ctx),
            waits: self.wait_reason(now, ctx),
            lasted: run.map_or(stats.lasted, |run| now.since(run.started)),
            ..stats
        })
    }

    /// Returns whether a context or a member of its gang has a hold
    /// ([`Event::Hold`](super::Event::Hold)).
    pub fn is_kept(&self, id: ContextId) -> bool {
        let ctx = self.entities.find(id);
        ctx.is_some_and(|ctx| self.entities.has_hold(ctx))
    }

    /// Returns whether the only reason why the jobs of a context are held is one hold of its own.
    pub fn is_kept_by_one(&self, id: ContextId) -> bool {
        let Some(ctx) = self.entities.find(id) else {
            return false;
        };
        let context = &self.entities[ctx];
        let mut mates = self.entities.mates(ctx);
        let is_only = context.holds == 1 && !context.hold_requested;
        is_only && mates.all(|mate| self.entities[mate].holds == 0)
    }

    /// Returns why the job of a context is queued; `None`: it is not.
    fn wait_reason(&self, now: Time, ctx: ContextIndex) -> Option<WaitReason> {
        let context = &self.entities[ctx];
        if context.state != JobState::Queued {
            return None;
        }
        Some(if !context.enabled {
            WaitReason::Disabled
        } else if self.lacks_slots(ctx) {
            WaitReason::NoSlot
        } else if self.frozen {
            WaitReason::Frozen
        } else if context.linked == Linked::Throttled {
            match self.policy.limit(context) {
                Limit::Reservation => WaitReason::Budget,
                Limit::Cap(_) | Limit::None => WaitReason::Cap,
            }
        } else if let Some(at) = self.throttling_cap(now, ctx) {
            WaitReason::GroupCap(self.entities[at].key)
        } else if context.linked == Linked::Gathering || self.waits_for_seats(ctx) {
            WaitReason::Gang
        } else {
            WaitReason::Turn
        })
    }

    /// Returns the state of a context's job, and the number of the job as in [`Stats::job`].
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`].
    pub fn job(&self, id: ContextId) -> Result<(JobState, u64), Refusal> {
        let context = &self.entities[self.entities.owned(id)?];
        Ok((context.state, context.job()))
    }

    /// Returns whether a quarantined slot may still reach the memory of a context, even if the
    /// context was closed.
    pub fn is_stuck(&self, id: ContextId) -> bool {
        let ctx = self.entities.find(id);
        ctx.is_some_and(|ctx| self.entities[ctx].stuck)
    }

    /// Returns the slot whose application registers belong to a context now, so that the context's
    /// reads and writes may be forwarded: from Load until the end of the run is observed or the
    /// slot is reset.
    pub fn slot_of(&self, id: ContextId) -> Option<SlotId> {
        self.slot_with(self.entities.owned(id).ok()?)
    }

    /// Returns whether the run on a slot began with a restore whose end the status reports
    /// ([`Status::restore`](super::Status::restore)).
    pub fn reports_restore(&self, slot: SlotId) -> bool {
        let fsm = self.slots.find(slot).map(|slot| &slot.fsm);
        fsm.is_some_and(|fsm| {
            fsm.config.settle().is_none() && fsm.run().is_some_and(|run| run.resumed)
        })
    }

    /// Returns the state of a slot; `None` if the card has no such slot.
    pub fn slot_state(&self, slot: SlotId) -> Option<SlotState> {
        Some(self.slots.find(slot)?.fsm.report())
    }

    /// Returns when the job on a slot that was told to pause is to be saved; `None`: it was not
    /// told to, or stops at a boundary. An interrupt signals the end of the save.
    pub fn save_due(&self, slot: SlotId) -> Option<Time> {
        self.slots.find(slot)?.fsm.save_due()
    }

    /// Returns the context on a slot with a relay and the number of its run. The caller looks for
    /// the record of this run at each interrupt and after each status read. `None`: no record is
    /// awaited.
    pub fn awaited_run(&self, slot: SlotId) -> Option<(ContextId, u32)> {
        self.slots.find(slot)?.fsm.awaited_run()
    }

    /// Returns the statistics of a slot until `now`, including the current run; `None` if the card
    /// has no such slot.
    pub fn slot_stats(&self, slot: SlotId, now: Time) -> Option<SlotStats> {
        let fsm = &self.slots.find(slot)?.fsm;
        let mut stats = fsm.stats;
        (stats.save, stats.restore) = (stats.save(), stats.restore());
        if let Some(run) = fsm.run() {
            stats.busy += now.since(run.started);
        }
        Some(stats)
    }

    /// Returns the profile of a slot; `None` if the card has no such slot.
    pub fn profile(&self, slot: SlotId) -> Option<Profile> {
        Some(self.slots.find(slot)?.fsm.config.profile)
    }

    /// Returns the context for whose hint a slot is kept vacant, or will be once its job is off it.
    pub fn reserved_for(&self, slot: SlotId) -> Option<ContextId> {
        self.slots.find(slot)?.reserved_for()
    }

    /// Returns the member of a gang that a slot is claimed for. It is started once all members that
    /// wait can have their slots.
    pub fn claimed_for(&self, slot: SlotId) -> Option<ContextId> {
        let claim = self.slots.find(slot)?.claim?;
        Some(self.entities.id(claim.ctx))
    }

    /// Returns the number of contexts, including those that were closed and not yet released.
    pub fn contexts(&self) -> u32 {
        self.entities.nr_contexts()
    }

    /// Returns how many contexts there is room for.
    pub fn capacity(&self) -> usize {
        self.entities.capacity()
    }

    /// Returns whether the card is gone.
    pub fn is_gone(&self) -> bool {
        self.gone
    }
}
