// SPDX-License-Identifier: GPL-2.0

//! Contexts that are named to run next on a slot whose relay switches by itself.
//!
//! Once a context is named, its job is treated as one on the slot: what its owner or an
//! administrator requests is noted, and carried out when the record of the previous run says
//! whether the relay has taken the context.

use super::context::OnStop;
use super::event::Cx;
use super::ids::ContextIndex;
use super::order::{NextRun, RunRecord};
use super::policy::Preempt;
use super::slot_fsm::{After, Outcome, Progress};
use super::state::{Nominee, Nominees, Scheduler, WaitPlace};
use super::switch::Begin;
use super::{Action, ContextId, Duration, Failure, JobState, PauseCause, SlotId, Status, Time};

impl Scheduler {
    /// Names a waiting context to run next on a slot.
    pub(super) fn nominate(
        &mut self,
        cx: &mut Cx<'_>,
        id: SlotId,
        ctx: ContextIndex,
        boosted: bool,
    ) {
        let place = WaitPlace {
            turn: self.entities.se(ctx).node.sched_key().turn,
            since: self.entities[ctx].since,
        };
        let nominee = Nominee {
            ctx,
            boosted,
            place: Some(place),
            since: cx.now,
            used: Duration::ZERO,
        };
        self.take_out(cx.now, id, ctx);
        self.slots[id].nominees.next = Some(nominee);
        cx.act(Action::Load {
            slot: id,
            ctx: self.entities.id(ctx),
        });
    }

    /// Withdraws the context that is named to run next on a slot. No-op if there is none, or if so
    /// many were withdrawn that the last free place is kept for the end of the preempt timeout
    /// (`last`): the context then stays named.
    pub(super) fn withdraw(&mut self, id: SlotId, last: bool) {
        let slot = &mut self.slots[id];
        let Nominees { next, replaced } = &mut slot.nominees;
        let free = replaced.iter().filter(|place| place.is_none()).count();
        if next.is_none() || free < if last { 1 } else { 2 } {
            return;
        }
        if let Some(place) = replaced.iter_mut().find(|place| place.is_none()) {
            *place = next.take();
        }
        let class = slot.class;
        self.forget_plans(class);
    }

    /// Withdraws contexts that were named to run next if a waiting context preempts them at once,
    /// if their jobs are to be stopped anyway, or if they were kept out of their queues for long.
    pub(super) fn displace_nominees(&mut self, cx: &mut Cx<'_>, class: SlotId) {
        for id in self.class_slots(class) {
            let Some(nominee) = self.slots[id].nominees.next else {
                continue;
            };
            let is_kept_for_long = self.kept_until(id).is_some_and(|end| end <= cx.now);
            if is_kept_for_long || self.is_unwanted(id, nominee.ctx) {
                self.withdraw(id, false);
                // The status shows whether the card has taken the context.
                self.slots[id].fsm.look_now(cx.now);
            } else if self.is_outranked(cx, id, nominee.ctx) {
                self.withdraw(id, false);
            }
        }
    }

    /// Returns whether the job of a context that is named for a slot should not run there.
    fn is_unwanted(&self, id: SlotId, ctx: ContextIndex) -> bool {
        let context = &self.entities[ctx];
        context.closing
            || context.yields
            || context.on_stop == OnStop::Hold
            || self.entities.se(ctx).slots() & id.bit() == 0
    }

    fn is_outranked(&self, cx: &Cx<'_>, id: SlotId, ctx: ContextIndex) -> bool {
        if !self.may_be_outranked(id, ctx) {
            return false;
        }
        let next = self.candidate(cx, id);
        next.is_some_and(|next| self.is_preempted_now(ctx, next))
    }

    /// Posts the order of a slot if the order has changed.
    pub(super) fn post_order(&mut self, cx: &mut Cx<'_>, id: SlotId) {
        if self.slots[id].fsm.is_giving_up() {
            self.withdraw(id, true);
        }
        self.stop_for_next(cx.now, id);
        let next = self.slots[id].nominees.next.map(|nominee| nominee.ctx);
        let next = next.map(|ctx| NextRun {
            ctx: self.entities.id(ctx),
            resume: self.entities[ctx].saved,
            back: self.goes_back(cx.now, id, ctx),
        });
        let fsm = &mut self.slots[id].fsm;
        if fsm.config.has_relay() {
            fsm.post(cx, next);
        }
    }

    /// Returns whether a slot goes back to the job that it stops for `next` when `next` has ended.
    /// Otherwise the slot would stay vacant after work that is shorter than an interrupt takes. The
    /// job resumes only for the rest of its slice, and within its limits.
    fn goes_back(&self, now: Time, id: SlotId, next: ContextIndex) -> bool {
        let slot = &self.slots[id];
        let Some(ctx) = slot.fsm.preempted_early().map(ContextId::at) else {
            return false;
        };
        let is_free = slot.claim.is_none() && !self.entities.is_ganged(ctx);
        is_free
            && !self.frozen
            && self.queues[slot.class].has_one_slot()
            && self.is_preempted_now(ctx, next)
            && !self.is_unwanted(id, ctx)
            && !self.is_hinted(slot.class)
            && self.has_slice_left(now, id)
            && !self.is_throttled(now, ctx)
    }

    /// Returns whether the slice on a slot has more time left than a save and a restore take.
    fn has_slice_left(&self, now: Time, id: SlotId) -> bool {
        let slot = &self.slots[id];
        let switch = slot.fsm.stats.save() + slot.fsm.stats.restore();
        slot.fsm.run().is_some_and(|run| {
            let worked = now.since(run.started + run.extra);
            worked + switch < self.slice(slot, run)
        })
    }

    /// Stops at once a job that was told to stop at the end of its slice, if the named context
    /// preempts the job at once.
    fn stop_for_next(&mut self, now: Time, id: SlotId) {
        let slot = &self.slots[id];
        let (Some(nominee), Some(run)) = (slot.nominees.next, slot.fsm.run()) else {
            return;
        };
        if self.preempt_run(run, nominee.ctx) == Preempt::Now {
            let payer = self.entities.id(nominee.ctx);
            self.stop_now(now, id, Some(payer));
        }
    }

    /// Handles the record of a run on a slot. Returns the notice to the owner.
    pub(super) fn end_by_record(
        &mut self,
        cx: &mut Cx<'_>,
        id: SlotId,
        record: &RunRecord,
    ) -> Option<Action> {
        let slot = &mut self.slots[id];
        let mut named = slot.nominees.iter();
        let is_named = |index| named.any(|nominee| self.entities.id(nominee.ctx).index() == index);
        let is_known = record.next.is_none_or(is_named);
        let record = self.charge_to_record(cx.now, id, record);
        let slot = &mut self.slots[id];
        let used = slot.fsm.run().map(|run| run.used).unwrap_or_default();
        let progress = match is_known {
            true => slot.fsm.record(cx, &record),
            // The card runs a context that it was not told to run.
            false => slot.fsm.abort(cx, Some(Failure::Protocol)),
        };
        match progress.after {
            After::Vacant {
                ctx,
                outcome: Outcome::Saved,
            } if record.back && record.next.is_some() => {
                self.end_run(cx.now, id, progress.over);
                self.take_next(cx, id, record.next);
                let worked = record.span.less(record.load).less(record.save);
                self.keep_for_back(cx.now, id, ctx, used + worked);
                None
            }
            After::Vacant { .. } => {
                let notice = self.follow(cx, id, progress);
                self.take_next(cx, id, record.next);
                notice
            }
            _ => self.follow(cx, id, progress),
        }
    }

    /// Notes that the slot goes back to a context after the run that has just begun, as if an order
    /// had said so. `used`: the part of the context's slice that is used.
    fn keep_for_back(&mut self, now: Time, id: SlotId, name: ContextId, used: Duration) {
        let slot = &mut self.slots[id];
        slot.nominees.next = Some(Nominee {
            ctx: name.at(),
            boosted: false,
            place: None,
            since: now,
            used,
        });
        slot.fsm.go_back_to(name);
    }

    /// Returns until when a context stays named behind a job that was not told to stop. After that
    /// the context waits in its queue, where the starvation boost and new parameters reach it.
    pub(super) fn kept_until(&self, id: SlotId) -> Option<Time> {
        let slot = &self.slots[id];
        slot.nominees.next?;
        slot.fsm.goes_on_until()
    }

    /// Sets the charge of the run on a slot that has left a record, as if the run ended now: the
    /// time in the record, limited to what can have passed, and no less than what users were shown.
    /// Returns the record with its times limited likewise.
    fn charge_to_record(&mut self, now: Time, id: SlotId, record: &RunRecord) -> RunRecord {
        let Some(run) = self.slots[id].fsm.run() else {
            return *record;
        };
        let context = &mut self.entities[run.ctx.at()];
        let charged = context.charged_until.since(run.started);
        let least = charged.max(run.shown.since(run.started));
        let span = record.span.min(now.since(run.named)).max(least);
        context.charged_until = now.before(span.less(charged));
        RunRecord {
            span,
            load: record.load.min(span),
            save: record.save.min(span),
            ..*record
        }
    }

    /// Begins the run of the context that the card has taken. All other contexts that were named go
    /// back to their queues.
    fn take_next(&mut self, cx: &mut Cx<'_>, id: SlotId, taken: Option<usize>) {
        let nominees = core::mem::take(&mut self.slots[id].nominees);
        for nominee in nominees.iter() {
            if taken == Some(self.entities.id(nominee.ctx).index()) {
                self.end_wait(cx.now, nominee);
                self.begin_run(cx, id, nominee.ctx, nominee.boosted, Begin::Taken(nominee));
                self.stop_unwanted(cx, id, nominee.ctx);
            } else {
                self.give_back(cx, id, nominee, Outcome::Saved);
            }
        }
    }

    /// Stops the job that the card has just taken, if its owner does not want it to run any more.
    fn stop_unwanted(&mut self, cx: &mut Cx<'_>, id: SlotId, ctx: ContextIndex) {
        let context = &self.entities[ctx];
        if context.closing {
            self.slots[id].fsm.drop_job(cx);
        } else if context.yields || context.on_stop == OnStop::Hold {
            self.pause(cx, id, None, PauseCause::Request);
        }
    }

    /// Counts the time since a context was named as waiting time.
    fn end_wait(&mut self, now: Time, nominee: Nominee) {
        self.entities[nominee.ctx].wait += now.since(nominee.since);
    }

    /// Handles a context that was named for a slot and that the card has not taken.
    fn give_back(&mut self, cx: &mut Cx<'_>, id: SlotId, nominee: Nominee, outcome: Outcome) {
        let ctx = nominee.ctx;
        self.end_wait(cx.now, nominee);
        let name = self.entities.id(ctx);
        // The context waits like one whose job was saved.
        if let Some(wake) = self.vacated(cx, id, ctx, outcome) {
            cx.act(Action::Wake { ctx: name, wake });
            return;
        }
        let is_queued = |ctx: ContextIndex| self.entities[ctx].state == JobState::Queued;
        let waits = self.entities.find(name).is_some_and(is_queued);
        if let Some(place) = nominee.place.filter(|_| waits) {
            let class = self.entities[ctx].class;
            self.queues[class].restore_place(&mut self.entities, ctx, place.turn);
            let context = &mut self.entities[ctx];
            // The time since `since` was counted already, and will be counted again.
            context.wait = context.wait.less(cx.now.since(place.since));
            context.since = place.since;
        }
    }

    /// Handles a status after which no record was found: if the slot still shows the run that is
    /// known to be there, no order was taken, and the replaced orders cannot be taken any more.
    pub(super) fn settle_replaced(&mut self, cx: &mut Cx<'_>, id: SlotId, status: Status) {
        if self.slots[id].fsm.config.has_relay() && self.slots[id].fsm.still_shows(status) {
            let replaced = core::mem::take(&mut self.slots[id].nominees.replaced);
            for nominee in replaced.into_iter().flatten() {
                self.give_back(cx, id, nominee, Outcome::Saved);
            }
        }
    }

    /// Handles the consequences of an event of a slot other than a record, like
    /// [`Scheduler::follow`], also for the contexts that were named for the slot.
    #[must_use]
    pub(super) fn follow_all(
        &mut self,
        cx: &mut Cx<'_>,
        id: SlotId,
        progress: Progress,
    ) -> Option<Action> {
        let notice = self.follow(cx, id, progress);
        if self.slots[id].fsm.config.has_relay() {
            self.fail_nominees(cx, id, &progress);
        }
        notice
    }

    /// Fails the jobs that were named for a slot that was reset, after `progress`: it is not known
    /// which of them have run.
    fn fail_nominees(&mut self, cx: &mut Cx<'_>, id: SlotId, progress: &Progress) {
        let nominees = self.slots[id].nominees;
        match progress.after {
            After::Pending => {}
            After::Vacant { outcome, .. } => {
                self.slots[id].nominees = Nominees::default();
                let outcome = match outcome {
                    Outcome::Failed(failure) => Outcome::Failed(failure),
                    _ => Outcome::Failed(Failure::Protocol),
                };
                for nominee in nominees.iter() {
                    self.give_back(cx, id, nominee, outcome);
                }
            }
            After::Quarantined { outcome, .. } => {
                for nominee in nominees.iter() {
                    let ctx = self.entities.id(nominee.ctx);
                    if let Some(wake) = self.quarantined(cx.now, id, nominee.ctx, outcome) {
                        cx.act(Action::Wake { ctx, wake });
                    }
                    cx.act(Action::Stuck { ctx });
                }
            }
        }
    }
}
