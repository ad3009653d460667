// SPDX-License-Identifier: GPL-2.0

//! Statistics of contexts, groups and slots.

use super::super::context::State;
use super::super::decisions::Why;
use super::super::values::{
    ContextId, Duration, EntityIndex, JobState, Params, Profile, Refusal, SlotId, SlotState,
    SlotStats, Stats, Time, WaitReason,
};
use super::super::Scheduler;

/// Contexts.
impl Scheduler {
    /// Returns the parameters of a context.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`].
    pub fn params(&self, id: ContextId) -> Result<Params, Refusal> {
        Ok(self.contexts[self.owned(id)?].params)
    }

    /// Returns the state of a context's job, and the number of the job as in [`Stats::job`].
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`].
    pub fn job(&self, id: ContextId) -> Result<(JobState, u64), Refusal> {
        let at = self.owned(id)?;
        Ok((self.job_state(at), self.contexts[at].job()))
    }

    fn job_state(&self, at: EntityIndex) -> JobState {
        self.contexts[at].state.report(self.is_named(at))
    }

    /// Returns whether a relay may put a context on a slot by itself: its memory stays where it is.
    pub(super) fn is_named(&self, at: EntityIndex) -> bool {
        let context = &self.contexts[at];
        let slot = context.slot.filter(|_| context.state == State::Bound);
        slot.is_some_and(|id| {
            let slot = self.slot(id);
            let is_prev = slot.prev().is_some_and(|prev| prev.ctx == at);
            is_prev || slot.protocol.names(self.contexts.id(at))
        })
    }

    /// Returns the statistics of a context until `now`.
    ///
    /// # Errors
    ///
    /// [`Refusal::NoContext`].
    pub fn stats(&self, id: ContextId, now: Time) -> Result<Stats, Refusal> {
        let at = self.owned(id)?;
        let context = &self.contexts[at];
        let slot = self.slot_with(at).map(|id| self.slot(id));
        let run = slot.and_then(|slot| slot.protocol.run());
        let ran = run.map_or(Duration::ZERO, |run| now.since(run.started));
        let uncharged = slot.map_or(Duration::ZERO, |slot| ran.less(slot.charged()));
        let state = self.job_state(at);
        let waits = matches!(context.state, State::Queued | State::Bound);
        let lasted = match state {
            JobState::Running => ran,
            _ => now.since(context.since),
        };
        let mut stats = Stats {
            state,
            slot: context.slot.filter(|_| state == JobState::Running),
            saved: context.saved,
            throttled: context.state == State::Queued && self.throttled_by(at).is_some(),
            enabled: context.enabled,
            has_hold: self.has_hold(at),
            no_slot: self.lacks_slots(at),
            waits: self.wait_reason(at),
            lasted,
            job: context.job(),
            run: context.run + uncharged,
            wait: match waits {
                true => context.wait + now.since(context.since),
                false => context.wait,
            },
            slices: context.slices,
            resumes: context.resumes,
            preemptions: context.preemptions,
            replayable: context.restarts.allowed,
            replays: context.restarts.done.into(),
            finished: context.finished,
            failed: context.failed,
            hint: None,
            hints: 0,
            hints_used: 0,
            hints_wasted: 0,
        };
        context.hint.report(&mut stats);
        Ok(stats)
    }

    /// Returns whether a context could use none of the slots that are in use even if it were enabled.
    fn lacks_slots(&self, at: EntityIndex) -> bool {
        let usable = self.classes[self.contexts[at].class.at()].usable;
        usable & self.allowed_if_enabled(at) == 0
    }

    /// Returns why the job of a context waits; `None`: it does not.
    fn wait_reason(&self, at: EntityIndex) -> Option<WaitReason> {
        if self.job_state(at) != JobState::Queued {
            return None;
        }
        Some(if !self.contexts[at].enabled {
            WaitReason::Disabled
        } else if self.lacks_slots(at) {
            WaitReason::NoSlot
        } else if self.frozen {
            WaitReason::Frozen
        } else {
            let is_queued = self.contexts[at].state == State::Queued;
            let cap = is_queued.then(|| self.throttled_by(at)).flatten();
            cap.unwrap_or(match self.waits_for_gang(at) {
                true => WaitReason::Gang,
                false => WaitReason::Turn,
            })
        })
    }

    /// Returns the cap or budget that keeps the job of a context off slots.
    fn throttled_by(&self, at: EntityIndex) -> Option<WaitReason> {
        if let Some(reason) = self.awaits_budget(at) {
            return Some(reason);
        }
        let group = self.queue.throttled_group(at)?;
        Some(match self.groups.is_own(group) {
            true => WaitReason::Cap,
            false => WaitReason::GroupCap(self.groups.key(group)),
        })
    }

    /// Returns whether a context or a member of its gang has a hold by [`Scheduler::hold`].
    pub(in super::super) fn has_hold(&self, at: EntityIndex) -> bool {
        self.contexts[at].holds != 0 || self.has_mate_with_hold(at)
    }

    /// Returns whether a context has a hold ([`Scheduler::hold`]).
    pub fn is_kept(&self, id: ContextId) -> bool {
        let at = self.contexts.find(id);
        at.is_some_and(|at| self.has_hold(at))
    }

    /// Returns whether the only reason why the jobs of a context are held is one hold of its own.
    pub fn is_kept_by_one(&self, id: ContextId) -> bool {
        self.contexts.find(id).is_some_and(|at| {
            let context = &self.contexts[at];
            context.holds == 1 && !context.hold_requested && !self.has_mate_with_hold(at)
        })
    }

    /// Returns whether a slot that is out of use may still reach the memory of a context, even if
    /// the context was closed.
    pub fn is_stuck(&self, id: ContextId) -> bool {
        let at = self.contexts.find(id);
        at.is_some_and(|at| self.contexts[at].stuck)
    }

    /// Returns the slot whose application registers belong to a context now, so that the context's
    /// reads and writes may be forwarded: from Load until the end of the run is observed or the slot
    /// is reset.
    pub fn slot_of(&self, id: ContextId) -> Option<SlotId> {
        self.slot_with(self.owned(id).ok()?)
    }

    /// Returns the number of contexts, including those that were closed and not yet released.
    pub fn contexts(&self) -> u32 {
        self.contexts.used()
    }

    /// Returns how many contexts there is room for.
    pub fn capacity(&self) -> usize {
        self.contexts.len()
    }

    /// Returns whether the card is gone.
    pub fn is_gone(&self) -> bool {
        self.gone
    }
}

/// Slots.
impl Scheduler {
    /// Returns whether the run on a slot began with a restore whose end the status reports.
    pub fn reports_restore(&self, slot: SlotId) -> bool {
        let slot = self.find_record(slot);
        slot.is_some_and(|slot| slot.protocol.reports_restore())
    }

    /// Returns the state of a slot; `None` if the card has no such slot.
    pub fn slot_state(&self, slot: SlotId) -> Option<SlotState> {
        Some(self.find_record(slot)?.protocol.report())
    }

    /// Returns when the job that was told to pause is to be saved; `None`: it was not told to, or
    /// stops at a boundary.
    pub fn save_due(&self, slot: SlotId) -> Option<Time> {
        self.find_record(slot)?.protocol.save_due()
    }

    /// Returns the statistics of a slot until `now`, including the current run; `None` if the card
    /// has no such slot.
    pub fn slot_stats(&self, slot: SlotId, now: Time) -> Option<SlotStats> {
        let protocol = &self.find_record(slot)?.protocol;
        let mut stats = protocol.stats();
        if let Some(run) = protocol.run() {
            stats.busy += now.since(run.started);
        }
        Some(stats)
    }

    /// Returns the profile of a slot; `None` if the card has no such slot.
    pub fn profile(&self, slot: SlotId) -> Option<Profile> {
        Some(self.find_record(slot)?.protocol.config().profile)
    }

    /// Returns the context that runs next on a slot and waits for the slot to be vacant.
    pub fn successor(&self, slot: SlotId) -> Option<ContextId> {
        let next = self.find_record(slot)?.next();
        let next = next.filter(|next| next.why != Why::Hint)?;
        Some(self.contexts.id(next.ctx))
    }
}
