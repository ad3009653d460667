// SPDX-License-Identifier: GPL-2.0

//! The policy looks at a run: are its limits used up, and is it the turn of another context? If so,
//! the context is bound to the slot, and the job is told to stop.

use super::super::card::{Call, Card};
use super::super::queues::Preempt;
use super::super::values::{Duration, EntityIndex, Params, PauseCause, SlotId, Time};
use super::super::Scheduler;
use super::Why;

/// A relay is told of the end of a slice at most this long in advance...
const LEAD: Duration = Duration::from_us(500);
/// ... or, if the slice is no longer than this and no other slot could run the waiter, when the
/// slice begins.
const WHOLE: Duration = Duration::from_ms(10);
/// A run that no other context ends takes grants of at least this length, however short its slices
/// are.
const RENEW_MIN: Duration = Duration::from_ms(1);

/// The planned end of a run, and the context that follows.
struct PlannedEnd {
    next: EntityIndex,
    why: Why,
    /// When the run is to stop.
    at: Time,
}

impl Scheduler {
    /// Returns how long before the end of a slice a slot is told of its successor.
    #[inline]
    pub(super) fn lead(&self, id: SlotId) -> Duration {
        let slot = self.slot(id);
        let run = slot.protocol.run().filter(|_| slot.protocol.has_relay());
        let Some(run) = run.filter(|run| !self.is_in_gang(EntityIndex::of(run.ctx))) else {
            return Duration::ZERO;
        };
        let slice = slot.accounts.slice;
        let is_only = self.classes[slot.class.at()].slots.is_power_of_two();
        match slice <= WHOLE && is_only && !self.has_gangs() {
            true => slice + run.extra,
            false => LEAD.min(slice.quarter()),
        }
    }

    /// Looks at the run on a slot that was not told to stop, if that is due.
    pub(in super::super) fn check_run<C: Card>(&mut self, call: &mut Call<'_, C>, id: SlotId) {
        let now = call.now;
        let slot = self.slot(id);
        let Some(run) = slot.protocol.unstopped() else {
            return;
        };
        let at = EntityIndex::of(run.ctx);
        let (quota_over, check_due) = (now >= slot.quota_end, now >= slot.check_at);
        if self.stop_for_gang(call, id) {
            return;
        }
        if !quota_over && !check_due {
            return;
        }
        self.touch(id);
        if self.start_late_mate(call, at) {
            return;
        }
        if self.is_unwanted(id, at) {
            self.slots[id.index()].check_at = Time::NEVER;
            self.stop(call, id, now, PauseCause::Slots);
            return self.rebind(call, id);
        }
        if quota_over && !self.renew_quota(now, id, at) {
            self.stop(call, id, now, PauseCause::Limit);
            return self.rebind(call, id);
        }
        if check_due && self.slot(id).next.is_none() {
            self.end_slice(call, id, at);
        }
    }

    /// Takes more from the groups of a run whose grant is used up. Returns `false` if there is
    /// nothing left.
    fn renew_quota(&mut self, now: Time, id: SlotId, at: EntityIndex) -> bool {
        self.charge(now, id);
        if self.is_spent(now, at) {
            return false;
        }
        let want = self.contexts[at].params.timeslice.max(RENEW_MIN);
        let more = self.grant(now, at, want);
        let slot = &mut self.slots[id.index()];
        slot.quota_end = match (more, slot.accounts.granted) {
            (Some(more), Some(granted)) => {
                slot.accounts.granted = Some(granted + more);
                now + more
            }
            _ => Time::NEVER,
        };
        true
    }

    /// Decides whether it is the turn of another context, and stops the run then.
    fn end_slice<C: Card>(&mut self, call: &mut Call<'_, C>, id: SlotId, at: EntityIndex) {
        let now = call.now;
        self.slots[id.index()].check_at = Time::NEVER;
        let (end, lead) = (self.slice_end(id), self.lead(id));
        let is_early = lead != Duration::ZERO && self.queue.is_fair() && !self.has_gangs();
        let Some(planned) = self.judge(call, id, at, (end, lead, is_early)) else {
            return;
        };
        let PlannedEnd {
            next,
            why,
            at: stop_at,
        } = planned;
        if stop_at > now + lead {
            // Until then it may be the turn of another group: this is looked at after each slice.
            let soon = end.max(now + self.slice(id, at, false));
            self.slots[id.index()].check_by(stop_at.before(lead).min(soon));
            if is_early {
                self.charge(now, id);
            }
            return;
        }
        let waiter = self.contexts.id(next);
        let cause = match why {
            Why::Boost => PauseCause::Starving { waiter },
            Why::Turn if stop_at < end => PauseCause::Outranked { waiter },
            Why::Turn | Why::Hint => PauseCause::Slice { waiter },
        };
        self.stop(call, id, stop_at, cause);
        if self.are_mates(at, next) {
            // They wait for each other, and then for slots together.
            return self.rebind(call, id);
        }
        self.bind(call, id, next, why);
        self.commit(call, id);
    }

    /// Returns which context follows the run on a slot, and when; `None`: none for now.
    fn judge<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        id: SlotId,
        at: EntityIndex,
        (end, lead, is_early): (Time, Duration, bool),
    ) -> Option<PlannedEnd> {
        let now = call.now;
        // A successor that is named early is the one whose turn it is when the run ends: the run is
        // charged until then.
        let mut then = match is_early {
            true => end.max(now).min(now + lead),
            false => now,
        };
        self.charge_to(now, then, id);
        let mut chosen = self.choose(call, id)?;
        let mut lag = self.queue.lag(at, chosen.0);
        if is_early && lag != Duration::ZERO {
            let even = end.max(then + lag).min(now + lead);
            if even > then {
                then = even;
                self.charge_to(now, then, id);
                chosen = self.choose(call, id)?;
                lag = self.queue.lag(at, chosen.0);
            }
        }
        let (mut next, mut why) = chosen;
        let boosted = self.slot(id).accounts.boosted;
        if why == Why::Boost && !boosted {
            // Urgent work need not wait for the end of the slice; the boost is next then.
            let class = self.slot(id).class;
            let first = self.queue.pick(class, id.bit().into());
            let first = first.filter(|&first| self.preempts(first, at));
            if let Some(first) = first.filter(|&first| !self.is_ganged(first)) {
                (next, why) = (first, Why::Turn);
            }
        }
        let started = self.slot(id).protocol.run()?.started;
        let stop_at = match self.preempted_by(at, next) {
            Preempt::Never if self.is_reserved(at) => return None,
            _ if why == Why::Boost => end,
            _ if boosted && now < end && !self.is_reserved(next) => end,
            Preempt::Now => now,
            Preempt::AtSliceEnd => end,
            Preempt::AtVruntime => end.max((then + lag).min(started + Params::TIMESLICE_MAX)),
            Preempt::Never => return self.wait_for_boost(call, id, end),
        };
        Some(PlannedEnd {
            next,
            why,
            at: stop_at,
        })
    }

    /// Handles a run that no waiting context ends under the policy: it ends for the boost only.
    fn wait_for_boost<C: Card>(
        &mut self,
        call: &Call<'_, C>,
        id: SlotId,
        end: Time,
    ) -> Option<PlannedEnd> {
        let (starving, due) = self.starving(id)?;
        if due <= call.now {
            return Some(PlannedEnd {
                next: starving,
                why: Why::Boost,
                at: end,
            });
        }
        let soon = call.now + Params::TIMESLICE_MIN;
        self.slots[id.index()].check_at = due.max(end).max(soon);
        None
    }

    /// Tells the job on a slot to stop at `at`, which is later than now only if the slot has a
    /// relay. The context that it is stopped for before the end of its slice pays for the save.
    pub(in super::super) fn stop<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        id: SlotId,
        at: Time,
        cause: PauseCause,
    ) {
        self.touch(id);
        let payer = match cause {
            PauseCause::Outranked { waiter } | PauseCause::Hint { waiter } => Some(waiter),
            _ => None,
        };
        let slot = &mut self.slots[id.index()];
        let Some(run) = slot.protocol.run() else {
            return;
        };
        if let Some(stop) = run.stop {
            if at <= call.now && slot.protocol.stop_now(call.now) {
                slot.accounts.payer = payer.filter(|_| !stop.boundary);
            }
            return;
        }
        let runs = EntityIndex::of(run.ctx);
        let params = &self.contexts[runs].params;
        let how = (params.cooperative, params.preempt_timeout);
        slot.rearm();
        slot.protocol.stop(call, at, how, cause);
        let boundary = slot.protocol.stopping().is_some_and(|stop| stop.boundary);
        slot.accounts.payer = payer.filter(|_| !boundary);
        if cause != PauseCause::Gang {
            self.stop_mates(call, runs);
        }
    }
}
