// SPDX-License-Identifier: GPL-2.0

//! Runs begin.

use super::super::card::{Call, Card};
use super::super::context::State;
use super::super::slot::Start;
use super::super::values::{slots_in, Duration, EntityIndex, SlotId, StartTimes, Time, Urgency};
use super::super::{Scheduler, SlotClass};
use super::{Accounts, Next, Slot, Why};

impl Scheduler {
    /// Starts the successor of a vacant slot. Returns whether a run has begun.
    pub(super) fn start_next<C: Card>(&mut self, call: &mut Call<'_, C>, id: SlotId) -> bool {
        let Some(next) = self.slot(id).next.filter(|_| !self.frozen) else {
            return false;
        };
        self.touch(id);
        if next.why == Why::Hint {
            self.keep_vacant(call, id, next.ctx);
            return false;
        }
        if !self.is_seated(&next) {
            let slot = &mut self.slots[id.index()];
            slot.check_at = Time::NEVER;
            slot.protocol.close(call);
            return false;
        }
        if core::mem::replace(&mut call.has_loaded, true) {
            // One load in each section with interrupts off: the timer brings the next.
            let slot = &mut self.slots[id.index()];
            slot.check_at = call.now;
            slot.protocol.close(call);
            return false;
        }
        let start = self.start_of(&next, call.now);
        let slot = &mut self.slots[id.index()];
        if !slot.protocol.begin(call, &start) {
            return false;
        }
        slot.next = None;
        self.begun(call, id, next);
        self.start_mates(id, &next);
        true
    }

    /// Returns how the run of a successor begins.
    pub(super) fn start_of(&self, next: &Next, now: Time) -> Start {
        let context = &self.contexts[next.ctx];
        Start {
            ctx: self.contexts.id(next.ctx),
            resume: context.saved,
            boosted: next.why == Why::Boost,
            times: StartTimes {
                latency_critical: context.params.urgency == Urgency::LatencyCritical,
                wait: context.wait + now.since(context.since),
                arrived: context.arrived,
                idle_since: None,
            },
            named: now,
        }
    }

    /// Notes that the run of a context has begun.
    pub(super) fn begun<C: Card>(&mut self, call: &mut Call<'_, C>, id: SlotId, next: Next) {
        let (now, at, boosted) = (call.now, next.ctx, next.why == Why::Boost);
        let context = &mut self.contexts[at];
        context.end_wait(now);
        (context.state, context.slot) = (State::Running, Some(id));
        // The snapshot is used up: what the job writes from now on is newer.
        let resumes = core::mem::replace(&mut context.saved, false);
        context.slices += 1;
        context.resumes += u64::from(resumes);
        context.arrived = None;
        self.queue.running(id, at);
        let slice = self.slice(id, at, boosted);
        let slot = &mut self.slots[id.index()];
        let class = &mut self.classes[slot.class.at()];
        if boosted {
            class.waiting.note_boost(now);
        }
        let extra = slot.protocol.run().map_or(Duration::ZERO, |run| run.extra);
        slot.check_at = match class.waiting.is_empty() {
            true => Time::NEVER,
            false => now + extra + slice,
        };
        slot.accounts = Accounts {
            boosted,
            slice,
            ..Accounts::NEW
        };
        slot.quota_end = Time::NEVER;
        slot.rearm();
        let has_relay = slot.protocol.has_relay();
        if self.revise & self.slot(id).class.bit() != 0 {
            self.slots[id.index()].check_at = now;
        }
        self.touch(id);
        // This may bring groups back, and then the policy looks at the run at once.
        if let Some(granted) = self.grant(now, at, slice + extra) {
            let slot = &mut self.slots[id.index()];
            slot.accounts.granted = Some(granted);
            slot.quota_end = now + granted;
        }
        if has_relay && self.slot(id).next.is_none() {
            // The card may have taken a context that was named long ago: others may outrank it now.
            self.slots[id.index()].check_by(now);
            self.check_run(call, id);
        }
    }

    /// Gives a vacant slot to the context that is next, or closes its window.
    pub(in super::super) fn fill<C: Card>(&mut self, call: &mut Call<'_, C>, id: SlotId) {
        if !self.slot(id).protocol.is_vacant() {
            return;
        }
        self.slots[id.index()].check_at = Time::NEVER;
        if self.slot(id).next.is_none() {
            match self.choose(call, id) {
                Some((at, why)) => self.bind(call, id, at, why),
                // A gang may have bound a member.
                None if self.slot(id).next.is_some() => {}
                None if self.take_over(call, id) => {}
                None => return self.slots[id.index()].protocol.leave_vacant(call),
            }
        }
        self.start_next(call, id);
    }

    /// Binds to a vacant slot, for which no context waits, the successor of another slot whose job
    /// has not left it yet. Returns whether there is one. A gang that waits for such a slot is given
    /// back, and bound again at the end of the call.
    fn take_over<C: Card>(&mut self, call: &mut Call<'_, C>, id: SlotId) -> bool {
        let SlotClass { usable, .. } = self.classes[self.slot(id).class.at()];
        if self.frozen || usable & id.bit() == 0 {
            return false;
        }
        let moves = |from: SlotId| {
            let Slot { next, protocol, .. } = self.slot(from);
            let waits = next.filter(|next| match next.together {
                Some(_) => next.why == Why::Turn && protocol.unstopped().is_some(),
                // A relay may have taken the successor already.
                None => next.why != Why::Hint && protocol.is_busy() && !protocol.has_relay(),
            });
            let may_use = |next: &Next| self.queue.allowed(next.ctx) & id.bit() != 0;
            Some((from, waits.filter(may_use)?))
        };
        let Some((from, next)) = slots_in(usable).find_map(moves) else {
            return false;
        };
        let _ = self.unbind(call, from);
        let binds = self.give_back(call, next) && next.together.is_none();
        if binds {
            self.bind(call, id, next.ctx, next.why);
        }
        self.rebind(call, from);
        binds
    }

    /// Begins the run of a context that a relay has taken by itself.
    pub(in super::super) fn begin_taken<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        id: SlotId,
        taken: Next,
    ) {
        let start = Start {
            named: taken.named,
            ..self.start_of(&taken, call.now)
        };
        self.slots[id.index()].protocol.enter_run(call, &start);
        self.begun(call, id, taken);
    }

    /// Returns the slot that the job of a context is on; `None`: it is on none, or only bound to one.
    pub(in super::super) fn slot_with(&self, at: EntityIndex) -> Option<SlotId> {
        let id = self.contexts[at].slot?;
        let run = self.slot(id).protocol.run()?;
        (EntityIndex::of(run.ctx) == at).then_some(id)
    }
}
