// SPDX-License-Identifier: GPL-2.0

//! Putting jobs on slots, taking them off, deciding what becomes of them, and letting them wait.

use super::context::{JobState, Linked, OnStop};
use super::event::Cx;
use super::ids::ContextIndex;
use super::policy::Limit;
use super::slot_fsm::{After, Outcome, Progress, RunOver};
use super::state::{Nominee, Scheduler};
use super::{
    Action, ContextId, Duration, Failure, PauseCause, SlotId, StartTimes, Time, Urgency, Wake,
};

/// How a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// The slot is vacant, and is told to start the context.
    Start,
    /// The relay of the slot has taken the context.
    Taken(Nominee),
}

impl Scheduler {
    /// Starts or resumes the job of `ctx`, which is queued, on a vacant slot.
    pub(super) fn start_job(
        &mut self,
        cx: &mut Cx<'_>,
        id: SlotId,
        ctx: ContextIndex,
        boosted: bool,
    ) {
        self.take_out(cx.now, id, ctx);
        self.begin_run(cx, id, ctx, boosted, Begin::Start);
    }

    /// Takes a context that is to run on a slot out of its queue.
    pub(super) fn take_out(&mut self, now: Time, id: SlotId, ctx: ContextIndex) {
        self.stop_waiting(now, ctx, JobState::Running);
        let context = &mut self.entities[ctx];
        // The engine looks at its queue when it begins.
        context.on_stop = OnStop::Requeue;
        context.slot = Some(id);
    }

    /// Notes that the run of a context begins. The context is in no queue.
    pub(super) fn begin_run(
        &mut self,
        cx: &mut Cx<'_>,
        id: SlotId,
        ctx: ContextIndex,
        boosted: bool,
        begin: Begin,
    ) {
        let now = cx.now;
        self.refill_caps(now, ctx);
        self.account_start(now, ctx);
        let name = self.entities.id(ctx);
        let context = &mut self.entities[ctx];
        // The snapshot is used up: what the job writes from now on is newer.
        let resume = core::mem::replace(&mut context.saved, false);
        context.slices += 1;
        context.resumes += u64::from(resume);
        let arriving = core::mem::replace(&mut context.arriving, false);
        let times = StartTimes {
            latency_critical: context.params.urgency == Urgency::LatencyCritical,
            wait: context.wait,
            arrived: arriving.then_some(context.arrived),
            idle_since: None,
        };
        let class = context.class;
        self.use_claim(id, ctx);
        if boosted {
            self.queues[class].boosted_at = now;
        }
        let slot = &mut self.slots[id];
        slot.payer = None;
        slot.unfilled = false;
        if let Some(reservation) = &mut slot.reservation {
            reservation.take(now);
        }
        match begin {
            Begin::Start => slot.fsm.start(cx, name, resume, boosted, times),
            Begin::Taken(nominee) => {
                slot.fsm.begin_run(cx, name, resume, boosted, times);
                slot.fsm.note_named(nominee.since, nominee.used);
            }
        }
        self.forget_plans(class);
    }

    /// Tells the job on a slot, and the jobs of its gang, to pause at once. `payer` is charged for
    /// the save, unless the job continues to a boundary.
    pub(super) fn pause(
        &mut self,
        cx: &mut Cx<'_>,
        id: SlotId,
        payer: Option<ContextId>,
        cause: PauseCause,
    ) {
        self.stop_now(cx.now, id, payer);
        self.pause_at(cx, id, payer, cause, cx.now);
    }

    /// Stops the job on a slot at once if the relay was told to stop it later. `payer` is charged
    /// for the save if the save comes before the end of the slice.
    pub(super) fn stop_now(&mut self, now: Time, id: SlotId, payer: Option<ContextId>) -> bool {
        let slot = &mut self.slots[id];
        let is_early = slot.fsm.stop_now(now);
        if is_early {
            slot.payer = payer;
        }
        is_early
    }

    /// Tells the job on a slot to pause at the time `due`, which is later than now only if the slot
    /// has a relay and the job is in no gang. Otherwise the same as [`Scheduler::pause`].
    pub(super) fn pause_at(
        &mut self,
        cx: &mut Cx<'_>,
        id: SlotId,
        payer: Option<ContextId>,
        cause: PauseCause,
        due: Time,
    ) {
        let Some(ctx) = self.slots[id].fsm.unpaused().map(|run| run.ctx.at()) else {
            return;
        };
        self.pause_one(cx, id, payer, cause, due);
        let mut next = self.entities[ctx].gang;
        while let Some(mate) = next.filter(|&mate| mate != ctx) {
            if let Some(id) = self.slot_with(mate) {
                self.pause_one(cx, id, None, PauseCause::Gang, cx.now);
            }
            next = self.entities[mate].gang;
        }
        self.gather(ctx);
    }

    /// Tells the job on a slot to pause, unless it was already told to.
    fn pause_one(
        &mut self,
        cx: &mut Cx<'_>,
        id: SlotId,
        payer: Option<ContextId>,
        cause: PauseCause,
        due: Time,
    ) {
        let slot = &mut self.slots[id];
        let Some(run) = slot.fsm.unpaused() else {
            return;
        };
        let params = &self.entities[run.ctx.at()].params;
        let (cooperative, timeout) = (params.cooperative, params.preempt_timeout);
        let boundary = slot.fsm.pause(cx, cooperative, timeout, cause, due);
        slot.payer = payer.filter(|_| boundary == Some(false));
        let class = slot.class;
        self.forget_plans(class);
    }

    /// Stops the job on a slot by force, because its context is closed.
    pub(super) fn abort(&mut self, cx: &mut Cx<'_>, id: SlotId) {
        let progress = self.slots[id].fsm.abort(cx, None);
        self.end_run(cx.now, id, progress.over);
    }

    /// Handles the consequences of an event of a slot. Returns the notice that the owner is to get
    /// after the class was rescheduled: the next job need not wait for the notice.
    #[must_use]
    pub(super) fn follow(
        &mut self,
        cx: &mut Cx<'_>,
        id: SlotId,
        progress: Progress,
    ) -> Option<Action> {
        self.end_run(cx.now, id, progress.over);
        let (ctx, wake) = match progress.after {
            After::Pending => return None,
            After::Vacant { ctx, outcome } => (ctx, self.vacated(cx, id, ctx.at(), outcome)?),
            After::Quarantined { ctx, outcome } => {
                let wake = self.quarantined(cx.now, id, ctx.at(), outcome);
                (ctx, wake?)
            }
        };
        Some(Action::Wake { ctx, wake })
    }

    /// Charges a run that has ended, and charges its save to the context that it was preempted for.
    /// No-op if no run has ended.
    pub(super) fn end_run(&mut self, now: Time, id: SlotId, over: Option<RunOver>) {
        let Some(over) = over else {
            return;
        };
        let ctx = over.ctx.at();
        let slot = &mut self.slots[id];
        let payer = slot.payer.take().filter(|_| over.saved);
        let class = slot.class;
        let late = over.paused_at.map(|since| now.since(since));
        let late = late.unwrap_or_default();
        if over.saved {
            let save = over.save.unwrap_or(slot.fsm.stats.save());
            if let Some(reservation) = &mut slot.reservation {
                reservation.note_save(save);
            }
            let context = &mut self.entities[ctx];
            context.saved = true;
            context.preemptions += 1;
            let longest = &mut self.queues[class].longest_slice;
            *longest = (*longest).max(context.params.timeslice + late);
        }
        let payer = payer.and_then(|payer| self.entities.find(payer));
        let paid = payer.map(|payer| (payer, over.save.unwrap_or(late)));
        self.account_stop(now, ctx, paid);
        self.forget_plans(class);
    }

    /// Handles a slot that has become quiescent: nothing of the job can touch memory any more. Only
    /// from here on may the window be given to another context, and the owner be told of the end of
    /// the job.
    pub(super) fn vacated(
        &mut self,
        cx: &mut Cx<'_>,
        id: SlotId,
        ctx: ContextIndex,
        outcome: Outcome,
    ) -> Option<Wake> {
        self.forget_plans(self.slots[id].class);
        if self.entities[ctx].closing {
            self.slots[id].fsm.close_window(cx);
            self.release(cx, ctx);
            return None;
        }
        let lost = outcome == Outcome::Failed(Failure::Snapshot);
        let restarts = lost && self.entities[ctx].restarts.restart();
        let yields = core::mem::take(&mut self.entities[ctx].yields);
        if yields && (restarts || outcome == Outcome::Saved) {
            self.yield_to_next(id, ctx);
        }
        let wake = self.settle_job(cx.now, ctx, outcome, restarts);
        self.gather(ctx);
        wake
    }

    /// Decides what becomes of a job that is off its slot.
    fn settle_job(
        &mut self,
        now: Time,
        ctx: ContextIndex,
        outcome: Outcome,
        restarts: bool,
    ) -> Option<Wake> {
        let context = &mut self.entities[ctx];
        context.slot = None;
        context.saved &= !restarts;
        let on_stop = core::mem::take(&mut context.on_stop);
        match outcome {
            Outcome::Finished => {
                context.rest(now, JobState::Done);
                context.hold_requested = false;
                context.finished += 1;
                return Some(Wake::Done);
            }
            Outcome::Failed(failure) if !restarts => return Some(self.fail(now, ctx, failure)),
            Outcome::Saved | Outcome::Empty | Outcome::Failed(_) => {}
        }
        match (on_stop, outcome) {
            (OnStop::Hold, _) => {
                context.rest(now, JobState::Held);
                Some(Wake::Held)
            }
            (OnStop::Requeue, Outcome::Empty) => {
                context.rest(now, JobState::Empty);
                Some(Wake::Empty)
            }
            _ => {
                let (class, mask) = (context.class, context.params.mask);
                if self.check_mask(class, mask).is_err() {
                    return Some(self.fail(now, ctx, Failure::Protocol));
                }
                self.wait_for_slot(now, ctx, false);
                None
            }
        }
    }

    /// Fails the job of a context. Its snapshot is worthless.
    pub(super) fn fail(&mut self, now: Time, ctx: ContextIndex, failure: Failure) -> Wake {
        let context = &mut self.entities[ctx];
        context.slot = None;
        context.saved = false;
        context.arriving = false;
        context.hold_requested = false;
        context.rest(now, JobState::Failed(failure));
        context.failed += 1;
        Wake::Failed(failure)
    }

    /// Handles a slot that did not come out of reset. Its job fails even if it was saved or
    /// finished. Waiting jobs that may run on no other slot fail too (`sweep.rs`); held jobs fail
    /// when they are resumed.
    pub(super) fn quarantined(
        &mut self,
        now: Time,
        id: SlotId,
        ctx: ContextIndex,
        outcome: Outcome,
    ) -> Option<Wake> {
        let failure = match outcome {
            Outcome::Failed(failure) => failure,
            _ => Failure::Protocol,
        };
        let wake = self.fail(now, ctx, failure);
        let context = &mut self.entities[ctx];
        context.stuck = true;
        let has_owner = !context.closing;
        self.gather(ctx);
        self.put_out_of_use(id);
        has_owner.then_some(wake)
    }

    /// Notes that a slot is no longer used.
    pub(super) fn put_out_of_use(&mut self, id: SlotId) {
        let class = self.slots[id].class;
        self.queues[class].usable &= !id.bit();
        self.sweep.settle_all(self.gone);
        self.forget_plans(class);
    }

    /// Removes a context that no slot can reach any more.
    pub(super) fn release(&mut self, cx: &mut Cx<'_>, ctx: ContextIndex) {
        let name = self.entities.id(ctx);
        let (class, params) = (self.entities[ctx].class, self.entities[ctx].params);
        let reserved = &mut self.queues[class].reserved;
        *reserved = reserved.with(Some(&params), None);
        self.entities.remove_context(ctx);
        cx.act(Action::Released { ctx: name });
    }
}

/// Waiting for a slot.
///
/// The members of a gang enter the run queue together. While the job of a member is being saved, or
/// a limit throttles it, the other members that wait are *gathering* (`Linked::Gathering`): in no
/// queue, so that no decision starts them.
impl Scheduler {
    /// Makes a job that is on no slot wait for one; `wakes`: the context did not want a slot
    /// before.
    pub(super) fn wait_for_slot(&mut self, now: Time, ctx: ContextIndex, wakes: bool) {
        let context = &mut self.entities[ctx];
        context.state = JobState::Queued;
        context.slot = None;
        context.since = now;
        let class = context.class;
        self.enqueue(now, ctx, wakes);
        self.forget_plans(class);
    }

    /// Enqueues a context whose job waits, in the queue where it belongs. `wakes`: the context did
    /// not want a slot before.
    pub(super) fn enqueue(&mut self, now: Time, ctx: ContextIndex, wakes: bool) {
        let class = self.entities[ctx].class;
        if self.usable_slots(ctx) == 0 {
            self.entities[ctx].linked = Linked::Ineligible;
        } else if let Some(at) = self.throttled_until(now, ctx, wakes) {
            self.queues[class].throttle(&mut self.entities, ctx, at);
        } else {
            return self.become_ready(ctx);
        }
        self.gather(ctx);
    }

    /// Returns until when a context that wants a slot is throttled by a limit of its own.
    fn throttled_until(&mut self, now: Time, ctx: ContextIndex, wakes: bool) -> Option<Time> {
        let limit = self.policy.limit(&self.entities[ctx]);
        let context = &mut self.entities[ctx];
        match limit {
            Limit::None => None,
            Limit::Reservation => context.bandwidth.update(now, &context.params, wakes),
            Limit::Cap(cap) => {
                let bandwidth = &mut context.bandwidth;
                bandwidth.refill(now, cap, Duration::ZERO);
                let timeslice = context.params.timeslice;
                bandwidth
                    .is_spent(now, cap, Duration::ZERO)
                    .then(|| bandwidth.refilled_at(now, cap, Duration::ZERO, timeslice))
            }
        }
    }

    /// Enqueues a context that waits and is in no queue, or lets it gather until its gang can be
    /// enqueued.
    pub(super) fn become_ready(&mut self, ctx: ContextIndex) {
        if self.entities.is_ganged(ctx) {
            self.entities[ctx].linked = Linked::Gathering;
            self.gather(ctx);
        } else {
            self.link_ready(ctx);
        }
    }

    fn link_ready(&mut self, ctx: ContextIndex) {
        let context = &self.entities[ctx];
        let class = context.class;
        let place = self.place_of(ctx);
        let by_group = self.policy.by_group(context);
        let is_capped = !by_group && !self.policy.reserves(context);
        let is_behind = is_capped && self.entities[context.group].throttled;
        let queue = &mut self.queues[class];
        if is_behind {
            queue.put_behind(&mut self.entities, ctx, place);
        } else {
            queue.enqueue(&mut self.entities, ctx, place, by_group);
        }
        self.forget_plans(class);
    }

    /// Takes a waiting job out of its queue.
    pub(super) fn stop_waiting(&mut self, now: Time, ctx: ContextIndex, state: JobState) {
        let context = &mut self.entities[ctx];
        context.wait += now.since(context.since);
        (context.state, context.since) = (state, now);
        let class = context.class;
        self.dequeue(ctx);
        self.gather(ctx);
        self.forget_plans(class);
    }

    /// Removes a context from the queue that it is in.
    pub(super) fn dequeue(&mut self, ctx: ContextIndex) {
        let class = self.entities[ctx].class;
        self.queues[class].dequeue(&mut self.entities, ctx);
    }

    /// Enqueues the gathering members of a gang, or dequeues its members in the run queue, after
    /// the state of one member has changed. No-op for a context in no gang.
    pub(super) fn gather(&mut self, ctx: ContextIndex) {
        if !self.entities.is_ganged(ctx) {
            return;
        }
        let is_waiting = self.entities.gang(ctx).any(|ctx| self.keeps_gang_back(ctx));
        let mut next = Some(ctx);
        while let Some(member) = next {
            match self.entities[member].linked {
                Linked::Gathering if !is_waiting => self.link_ready(member),
                Linked::Ready | Linked::Behind if is_waiting => {
                    self.dequeue(member);
                    self.entities[member].linked = Linked::Gathering;
                }
                _ => {}
            }
            next = self.entities[member].gang.filter(|&mate| mate != ctx);
        }
    }

    /// Returns whether the other members of a gang gather because of `ctx`: its job is leaving its
    /// slot, or is throttled.
    fn keeps_gang_back(&self, ctx: ContextIndex) -> bool {
        let context = &self.entities[ctx];
        let is_leaving = context.state == JobState::Running
            && context
                .slot
                .is_some_and(|slot| self.slots[slot].fsm.unpaused().is_none());
        is_leaving || context.linked == Linked::Throttled
    }
}
