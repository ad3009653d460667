// SPDX-License-Identifier: GPL-2.0

//! Runs end: the successor starts first, and then it is decided what becomes of the leaver.

use super::super::card::{Call, Card, Notice};
use super::super::context::{Context, OnStop, State};
use super::super::slot::{After, Change, Outcome, Over};
use super::super::values::{EntityIndex, Failure, PauseCause, RunRecord, SlotId, Time, Wake};
use super::super::Scheduler;
use super::{Next, Why};

/// Reports.
impl Scheduler {
    /// Handles what a report has changed.
    pub(in super::super) fn follow<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        id: SlotId,
        change: Change,
    ) {
        self.touch(id);
        let accounts = self.slot(id).accounts;
        if let After::Vacant(..) = change.after {
            self.return_group(call.now, self.slot(id).class);
            self.start_next(call, id);
        }
        if let Some(over) = &change.over {
            self.settle(call.now, id, accounts, over);
            self.gather(call.now, EntityIndex::of(over.ctx));
        }
        match change.after {
            After::Pending => {}
            After::Vacant(ctx, outcome) => {
                let at = EntityIndex::of(ctx);
                let waits = self.off_slot(call, id, at, outcome);
                self.gather(call.now, at);
                self.fill(call, id);
                if waits {
                    self.seek_again(call, id, at);
                }
            }
            After::Quarantined(ctx, outcome) => {
                let at = EntityIndex::of(ctx);
                self.quarantined(call, at, outcome);
                self.gather(call.now, at);
                self.put_out_of_use(call, id);
            }
        }
    }

    /// Finds a slot for a leaver that waits again: another one, or its own, if its parameters were
    /// changed so that it preempts the successor.
    fn seek_again<C: Card>(&mut self, call: &mut Call<'_, C>, id: SlotId, at: EntityIndex) {
        let run = self.slot(id).protocol.unstopped();
        let run = run.map(|run| EntityIndex::of(run.ctx));
        let is_behind = run.is_some_and(|run| !self.queue.outranks(at, run));
        if is_behind && self.slots_of(at) & !id.bit() == 0 {
            self.await_slices(call, at);
        } else {
            self.arrived(call, at);
        }
    }

    /// Handles a report other than a record.
    #[inline]
    pub(in super::super) fn follow_report<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        id: SlotId,
        change: Change,
    ) {
        let Change { over, after } = &change;
        if over.is_none() && *after == After::Pending {
            return self.touch(id);
        }
        if self.slot(id).protocol.has_relay() {
            self.lose_named(call, id, &change);
        }
        self.follow(call, id, change);
    }

    /// If a slot with a relay was reset, it is not known which of the contexts that were named have
    /// run, and their jobs share the fate of the one that was on the slot.
    fn lose_named<C: Card>(&mut self, call: &mut Call<'_, C>, id: SlotId, change: &Change) {
        let outcome = match change.after {
            After::Pending => return,
            After::Vacant(_, outcome) | After::Quarantined(_, outcome) => match outcome {
                Outcome::Failed(failure) => Outcome::Failed(failure),
                _ => Outcome::Failed(Failure::Protocol),
            },
        };
        let is_stuck = matches!(change.after, After::Quarantined(..));
        let slot = self.slot(id);
        let is_named = |next: &Next| slot.protocol.has_named(self.contexts.id(next.ctx));
        let next = slot.next.filter(is_named);
        let named = [next, slot.prev];
        let slot = &mut self.slots[id.index()];
        slot.prev = None;
        if next.is_some() {
            slot.next = None;
        }
        for (next, stuck) in named.into_iter().flatten().zip(0..) {
            if is_stuck {
                let name = self.contexts.id(next.ctx);
                self.slots[id.index()].stuck[stuck] = Some(name);
                self.quarantined(call, next.ctx, outcome);
                call.card.notify(name, Notice::Stuck);
            } else if self.off_slot(call, id, next.ctx, outcome) {
                self.reschedule(self.contexts[next.ctx].class);
            }
        }
    }

    /// Handles the record of the run on a slot.
    pub(in super::super) fn follow_record<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        id: SlotId,
        record: &RunRecord,
    ) {
        let slot = self.slot(id);
        // A slot that becomes vacant is kept; otherwise its work has come too late.
        let kept = slot
            .next
            .filter(|next| next.why == Why::Hint && record.next.is_none());
        let named = [slot.next.filter(|_| kept.is_none()), slot.prev];
        let is_taken = |next: &Next| next.why != Why::Hint && Some(next.ctx.at()) == record.next;
        let taken = named.into_iter().flatten().find(is_taken);
        if taken.is_none() && record.next.is_some() {
            // The card runs a context that it was not told to run.
            let protocol = &mut self.slots[id.index()].protocol;
            let change = protocol.abort(call, Some(Failure::Protocol));
            return self.follow_report(call, id, change);
        }
        let (accounts, charged) = (slot.accounts, slot.charged());
        let protocol = &mut self.slots[id.index()].protocol;
        let change = protocol.record(call, record, charged);
        let (Some(over), After::Vacant(ctx, outcome)) = (change.over, change.after) else {
            return self.follow_report(call, id, change);
        };
        let had_two = named[1].is_some();
        self.take_named(id);
        self.slots[id.index()].next = kept;
        self.settle(call.now, id, accounts, &over);
        let at = EntityIndex::of(ctx);
        let mut waiting = [None; 3];
        if self.off_slot(call, id, at, outcome) {
            waiting[0] = Some(at);
        }
        self.gather(call.now, at);
        for (next, place) in named.into_iter().flatten().zip(&mut waiting[1..]) {
            if next.together.is_some() && taken.is_none() {
                self.slots[id.index()].next = Some(next);
            } else if Some(next.ctx.at()) != record.next && self.give_back(call, next) {
                *place = Some(next.ctx);
            }
        }
        match taken {
            Some(taken) => {
                self.begin_taken(call, id, taken);
                self.stop_unwanted(call, id);
            }
            None => self.fill(call, id),
        }
        if had_two {
            // Others may have arrived while the slot made no offers.
            self.reschedule(self.slot(id).class);
        }
        for at in waiting.into_iter().flatten() {
            self.arrived(call, at);
        }
    }

    /// Stops the job that a relay has taken if it should not run.
    fn stop_unwanted<C: Card>(&mut self, call: &mut Call<'_, C>, id: SlotId) {
        let Some(run) = self.slot(id).protocol.run() else {
            return;
        };
        let at = EntityIndex::of(run.ctx);
        let cause = match self.frozen {
            true => PauseCause::Freeze,
            false => PauseCause::Request,
        };
        if self.contexts[at].closing {
            self.kill(call, id);
        } else if self.frozen || self.is_unwanted(id, at) {
            self.stop(call, id, call.now, cause);
            self.rebind(call, id);
        }
    }

    /// Stops the job on a slot without saving it, because its context is closed.
    pub(in super::super) fn kill<C: Card>(&mut self, call: &mut Call<'_, C>, id: SlotId) {
        self.touch(id);
        let slot = &mut self.slots[id.index()];
        if slot.protocol.has_relay() {
            slot.protocol.drop_job(call.now);
            slot.accounts.payer = None;
            self.rebind(call, id);
        } else {
            let change = slot.protocol.abort(call, None);
            self.follow(call, id, change);
            self.rebind(call, id);
        }
    }
}

/// Jobs that are off their slots.
impl Scheduler {
    /// Decides what becomes of a job that is off its slot. Returns whether it waits again.
    pub(in super::super) fn off_slot<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        id: SlotId,
        at: EntityIndex,
        outcome: Outcome,
    ) -> bool {
        let now = call.now;
        if self.contexts[at].closing {
            if self.slot(id).protocol.is_vacant() {
                self.slots[id.index()].protocol.close(call);
            }
            self.queue.sleep(at);
            self.release(call, at);
            return false;
        }
        let name = self.contexts.id(at);
        let context = &mut self.contexts[at];
        let is_lost = outcome == Outcome::Failed(Failure::Snapshot);
        let restarts = is_lost && context.restarts.restart();
        context.saved &= !restarts;
        let is_requeued = context.on_stop == OnStop::Requeue;
        match outcome {
            Outcome::Finished => {
                context.finished += 1;
                context.hold_requested = false;
                self.end_job(now, at, State::Done);
                call.tell(name, Wake::Done);
                false
            }
            Outcome::Failed(failure) if !restarts => {
                self.queue.sleep(at);
                self.fail(call, at, failure);
                false
            }
            Outcome::Empty if is_requeued => {
                self.end_job(now, at, State::Empty);
                call.tell(name, Wake::Empty);
                false
            }
            _ => self.requeue(call, at, now, None),
        }
    }

    /// Notes that a context wants no slot any more.
    fn end_job(&mut self, now: Time, at: EntityIndex, state: State) {
        self.queue.sleep(at);
        let context = &mut self.contexts[at];
        context.on_stop = OnStop::Requeue;
        context.rest(now, state);
    }

    /// Lets a job wait that is off its slot, or was bound to one; or holds it. Returns whether it
    /// waits.
    pub(super) fn requeue<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        at: EntityIndex,
        since: Time,
        turn: Option<u64>,
    ) -> bool {
        let name = self.contexts.id(at);
        let context = &mut self.contexts[at];
        if context.closing {
            self.queue.sleep(at);
            self.release(call, at);
            return false;
        }
        if core::mem::take(&mut context.on_stop) == OnStop::Hold {
            self.end_job(call.now, at, State::Held);
            call.tell(name, Wake::Held);
            return false;
        }
        let (class, mask) = (context.class, context.params.mask);
        if self.classes[class.at()].usable & mask == 0 {
            self.queue.sleep(at);
            self.fail(call, at, Failure::Protocol);
            return false;
        }
        self.wait(at, since, turn);
        self.queue.is_linked(at)
    }

    /// Fails the job of a context, which is in no queue. Its snapshot is worthless.
    pub(in super::super) fn fail<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        at: EntityIndex,
        failure: Failure,
    ) {
        let name = self.contexts.id(at);
        let context = &mut self.contexts[at];
        (context.saved, context.hold_requested) = (false, false);
        (context.arrived, context.on_stop) = (None, OnStop::Requeue);
        context.failed += 1;
        context.rest(call.now, State::Failed(failure));
        call.tell(name, Wake::Failed(failure));
    }

    /// Fails a job whose slot did not come out of reset, even if the job was saved or finished. The
    /// slot can reach its memory.
    fn quarantined<C: Card>(&mut self, call: &mut Call<'_, C>, at: EntityIndex, outcome: Outcome) {
        let failure = match outcome {
            Outcome::Failed(failure) => failure,
            _ => Failure::Protocol,
        };
        self.queue.sleep(at);
        let context = &mut self.contexts[at];
        context.stuck = true;
        if context.closing {
            context.failed += 1;
            context.rest(call.now, State::Failed(failure));
        } else {
            self.fail(call, at, failure);
        }
    }

    /// Removes a context that no slot can reach any more, and that wants none.
    pub(in super::super) fn release<C: Card>(&mut self, call: &mut Call<'_, C>, at: EntityIndex) {
        let name = self.contexts.id(at);
        self.leave_gang(call, at);
        self.queue.part(&mut self.groups, at);
        let Context { class, params, .. } = self.contexts[at];
        self.note_admitted(class, Some(&params), None);
        self.contexts.remove(at);
        call.card.notify(name, Notice::Released);
    }
}

/// Slots that go out of use, and cards that lose their state.
impl Scheduler {
    /// Notes that a slot is no longer used: its successor finds another one. Waiting jobs that may
    /// run on no other slot fail (`requests/sweep.rs`); held jobs fail when they are resumed.
    fn put_out_of_use<C: Card>(&mut self, call: &mut Call<'_, C>, id: SlotId) {
        let class = self.slot(id).class;
        self.classes[class.at()].usable &= !id.bit();
        self.slots[id.index()].check_at = Time::NEVER;
        self.settle_all();
        for next in self.take_named(id).into_iter().flatten() {
            if self.give_back(call, next) {
                self.arrived(call, next.ctx);
            }
        }
    }

    /// Settles the accounts of a run of which nothing is saved.
    pub(in super::super) fn settle_lost(&mut self, now: Time, id: SlotId, over: &Over) {
        let accounts = self.slot(id).accounts;
        self.settle(now, id, accounts, over);
    }

    /// Notes that no slot can reach the memory of contexts any more that a slot out of use could
    /// reach.
    pub(in super::super) fn release_stuck<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        stuck: Option<EntityIndex>,
    ) {
        if let Some(at) = stuck {
            self.contexts[at].stuck = false;
            if self.contexts[at].closing {
                self.release(call, at);
            }
        }
    }
}
