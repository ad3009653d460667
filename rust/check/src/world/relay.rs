// SPDX-License-Identifier: GPL-2.0

//! Slots with a relay: orders are on their way and arrive, runs end with a choice, and records are
//! written to memory (docs/registers.md, Relay).

use std::fmt;

use fermata_sched_host::sched::{
    Duration, Event, LeftReason, NextRun, Order, Phase, RunRecord, Status, Stop,
};

use super::{slot_id, Snapshot, World};
use crate::card::Engine;
use crate::card::{named, order_word, Unread};
use crate::key::Key;
use crate::Rule;

/// Limit of orders on their way to the card: no more are posted before one of them has arrived.
pub(super) const IN_FLIGHT: usize = 4;
/// Limit of unread records: of a run, of the run that was ordered to follow, and of the run that
/// the slot returns to. The card keeps eight.
const UNREAD: usize = 3;

/// Orders and choices.
impl World {
    /// Delivers the order that was posted first.
    pub(super) fn arrive(&mut self) {
        if self.posted.is_empty() {
            return;
        }
        let (i, order) = self.posted.remove(0);
        let slot = &mut self.slots[i];
        let vacant = !slot.active();
        let follows = order.after == slot.count && vacant == (order.stop == Stop::Vacant);
        if slot.in_reset || !follows {
            self.seen.order_late = true;
            return;
        }
        slot.relay.ignored = false;
        if let (true, Some(next)) = (vacant, order.next) {
            return self.take(i, next);
        }
        let withdraws = order.next.is_none() && order.stop == Stop::Never;
        slot.relay.held = (!withdraws).then_some(order);
        self.obey(i, order.stop);
    }

    /// Returns how many orders are on their way.
    pub(crate) fn orders_in_flight(&self) -> usize {
        self.posted.len()
    }

    /// Ignores the order that was posted first. An order that withdraws the held one is never
    /// ignored: no driver can cope with a card that starts a context which was withdrawn.
    pub(super) fn ignore_order(&mut self) {
        let (i, order) = self.posted.remove(0);
        self.seen.order_ignored = true;
        let relay = &mut self.slots[i].relay;
        relay.ignored = true;
        if order.stop == Stop::Vacant {
            relay.lost = Some(order.after.wrapping_add(1));
        }
        match (order.stop, named(&order)) {
            (Stop::Vacant, Some(index)) => {
                self.spoil_context(index);
                self.spoil_named(i);
            }
            _ => self.spoil(i),
        }
    }

    pub(super) fn may_ignore_order(&self) -> bool {
        let Some(&(i, order)) = self.posted.first() else {
            return false;
        };
        let held = self.slots[i].relay.held.as_ref().and_then(named);
        held.is_none() || held == named(&order)
    }

    /// Stops the run on a slot as the order says that has just arrived.
    fn obey(&mut self, i: usize, stop: Stop) {
        let slot = &mut self.slots[i];
        let has_begun = slot.asked;
        let due = slot.relay.held.is_some() && (!slot.relay.has_limit() || has_begun);
        match slot.engine {
            Engine::Working if slot.hang || stop == Stop::Never || !due => {}
            Engine::Working => self.stop(i),
            Engine::Restoring if slot.relay.resumed && due && stop != Stop::Never => {
                self.seen.not_run = true;
                self.seen.pause_in_restore = true;
                self.slots[i].relay.refused = false;
                if let Some(owner) = self.owner_on(i) {
                    owner.snapshot = Snapshot::Complete;
                }
                self.choose(i, LeftReason::NotRun, Engine::Idle);
            }
            Engine::Restoring => self.seen.pause_in_restore = true,
            _ => {}
        }
    }

    /// Handles the end of the time in the held order.
    pub(super) fn due(&mut self, i: usize) {
        self.stop(i);
    }

    fn stop(&mut self, i: usize) {
        let now = self.now;
        let drained = !self.has_work(i);
        let slot = &mut self.slots[i];
        let Some(order) = slot.relay.held else { return };
        slot.relay.stopped = now;
        match order.stop {
            Stop::Dropped => {
                self.seen.dropped = true;
                self.spoil(i);
                self.choose(i, LeftReason::Dropped, Engine::Idle);
            }
            Stop::Paused { boundary: true, .. } => slot.asked = true,
            _ if drained => self.leave(i),
            _ => self.save(i),
        }
    }

    /// Ends a run on a slot that is quiescent: leaves a record, and switches to the context that is
    /// named.
    pub(super) fn choose(&mut self, i: usize, reason: LeftReason, engine: Engine) {
        let slot = &mut self.slots[i];
        let held = slot.relay.held.take();
        let own = slot.last;
        slot.engine = engine;
        slot.asked = false;
        slot.window = None;
        slot.relay.ignored = false;
        let worked = !matches!(reason, LeftReason::NotRun | LeftReason::Refused);
        if let Some(owner) = self.owner_on(i).filter(|_| worked) {
            owner.results_due = owner.job.is_some_and(|job| !job.spoilt);
        }
        let next = held.and_then(|order| order.next);
        let other = next.filter(|next| Some(next.ctx.index()) != own);
        self.must(next == other, Rule::NamedOnce, || {
            "a context follows itself".into()
        });
        self.leave_record(i, reason, other);
        if let Some(next) = other {
            self.seen.relayed = true;
            self.take(i, next);
        }
    }

    fn leave_record(&mut self, i: usize, reason: LeftReason, next: Option<NextRun>) {
        let now = self.now;
        let slot = &mut self.slots[i];
        let since = |from: u64| Duration::from_ns(now.saturating_sub(from));
        let record = RunRecord {
            run: slot.count,
            reason,
            span: since(slot.started),
            load: Duration::from_ns(slot.relay.worked.saturating_sub(slot.started)),
            save: since(slot.relay.stopped),
            next: next.map(|next| next.ctx.index()),
        };
        // The driver does not read records of a quarantined slot.
        if slot.quarantined {
            return;
        }
        let lost = std::mem::take(&mut slot.relay.lose_record);
        let late = std::mem::take(&mut slot.relay.delay_record);
        if lost || late {
            slot.relay.lost = Some(slot.count);
        }
        if !lost {
            slot.relay.records.push(Unread { record, late });
        }
        let unread = slot.relay.records.len();
        self.seen.two_unread |= unread > 1;
        assert!(unread <= UNREAD, "a run that no order can have begun");
        if lost || late {
            self.seen.record_lost |= lost;
            self.seen.record_late |= late;
            self.spoil(i);
            self.spoil_named(i);
            // The driver does not learn that the slot has switched to this context.
            if let Some(next) = next {
                self.spoil_context(next.ctx.index());
            }
        }
    }

    /// Spoils the jobs that are named for a slot: which of them the slot has taken is unknown.
    fn spoil_named(&mut self, i: usize) {
        let relay = &self.slots[i].relay;
        let named = relay.told.named;
        let awaited = self.machine.awaited_run(slot_id(i)).map(|(_, run)| run);
        if awaited != relay.lost {
            return;
        }
        let all = 0..self.owners.len();
        for index in all.filter(|index| named >> index & 1 != 0) {
            self.spoil_context(index);
        }
    }

    /// Lets the slot take a context.
    fn take(&mut self, i: usize, next: NextRun) {
        let index = next.ctx.index();
        self.must_take(i, next);
        let now = self.now;
        let slot = &mut self.slots[i];
        slot.begin(index, next.resume, false, now);
        slot.window = Some(index);
        // The card resets an engine that needs it as part of the load.
        slot.fresh = true;
        slot.relay.resumed = next.resume;
        slot.relay.worked = now;
        slot.relay.stopped = now;
        slot.relay.refused = std::mem::take(&mut slot.relay.refuse);
        self.seen.resumed |= next.resume;
        if self.slots[i].relay.refused {
            self.slots[i].engine = Engine::Restoring;
            self.seen.refused = true;
            return self.spoil(i);
        }
        if let Some(owner) = &mut self.owners[index] {
            owner.begin(next.resume, false);
        }
        if !next.resume {
            self.attend(i);
        }
    }

    /// Checks that a context that is taken may run: its memory is mapped, and its job is in the
    /// state that the order expects.
    fn must_take(&mut self, i: usize, next: NextRun) {
        let index = next.ctx.index();
        let slot = &self.slots[i];
        let (active, unflushed) = (slot.active(), slot.unflushed);
        self.must(!active, Rule::OneJobPerSlot, || format!("slot {i}"));
        self.must(!unflushed, Rule::StartTaken, || "before the flush".into());
        let other = (self.slots.iter().enumerate())
            .any(|(j, slot)| j != i && slot.last == Some(index) && slot.may_touch(self.now, 0));
        self.must(!other, Rule::OneSlotPerJob, || format!("context {index}"));
        let owner = self.owners[index]
            .as_ref()
            .filter(|owner| owner.id == next.ctx);
        let Some((owner, job)) = owner.and_then(|owner| Some((owner, owner.job?))) else {
            return self.must(false, Rule::ReleasedQuiet, || "taken, and not there".into());
        };
        // The actions of a quarantined slot do not matter.
        if self.slots[i].quarantined {
            return;
        }
        let complete = owner.snapshot == Snapshot::Complete;
        self.must(!job.held, Rule::HoldKept, || format!("context {index}"));
        self.must(!job.finished, Rule::FinishedStays, || {
            format!("context {index}")
        });
        let due = !job.ended && (next.resume || !job.begun);
        self.must(due, Rule::RunOnce, || format!("context {index}"));
        self.must(!next.resume || complete, Rule::ResumeComplete, || {
            format!("context {index}")
        });
    }

    pub(super) fn spoil_context(&mut self, index: usize) {
        let job = self.owners[index]
            .as_mut()
            .and_then(|owner| owner.job.as_mut());
        if let Some(job) = job {
            job.spoilt = true;
        }
    }

    /// Forgets orders on their way that the card can only drop.
    pub(super) fn prune_orders(&mut self) {
        let all = self.posted.len();
        let mut kept = Vec::new();
        for &(i, order) in &self.posted {
            if self.may_be_taken(i, &order) {
                kept.push((i, order));
            } else {
                self.seen.finish_won |= self.slots[i].engine == Engine::Finished;
            }
        }
        self.posted = kept;
        self.seen.order_late |= self.posted.len() != all;
    }

    /// Writes the state of a slot with a relay, for the report of a breach.
    pub(super) fn write_relay(&self, f: &mut fmt::Formatter<'_>, i: usize) -> fmt::Result {
        let brief = |order: &Order| format!("{}: {:?} {:?}", order.after, named(order), order.stop);
        let slot = &self.slots[i];
        write!(f, " {:?} in run {}", slot.last, slot.count)?;
        write!(f, ", holds {:?}", slot.relay.held.as_ref().map(brief))?;
        let posted = self.posted.iter().filter(|(j, _)| *j == i);
        let posted: Vec<_> = posted.map(|(_, order)| brief(order)).collect();
        write!(f, ", in flight {posted:?}")?;
        let records = &slot.relay.records;
        let records = records
            .iter()
            .map(|Unread { record, .. }| (record.run, record.reason));
        let records: Vec<_> = records.collect();
        write!(f, ", records {records:?}")?;
        write!(
            f,
            ", awaited {:?}",
            self.machine.awaited_run(slot_id(i)).map(|(_, run)| run)
        )
    }

    /// Adds the state of slots with a relay to the key.
    pub(super) fn relay_key(&self, key: &mut Key) {
        for slot in &self.slots {
            slot.relay.key(key, slot.count, slot.active());
        }
        for (i, order) in &self.posted {
            key.word(order_word(order, self.slots[*i].count) | (*i as u64) << 20);
        }
        key.word(self.posted.len() as u64);
        for &i in &self.reads {
            key.word(i as u64 + 1);
        }
        key.word(self.reads.len() as u64);
    }

    /// May an order on its way still be taken?
    pub(super) fn may_be_taken(&self, i: usize, order: &Order) -> bool {
        let slot = &self.slots[i];
        match order.after.wrapping_sub(slot.count) {
            0 => slot.active() || order.stop == Stop::Vacant,
            // Half of the numbers are behind the run on the slot.
            ahead => ahead < 1 << 31,
        }
    }
}

/// Records and status.
impl World {
    /// Reports the records that are in memory, which are the oldest `visible` ones. Returns whether
    /// an awaited one was among them.
    pub(super) fn look(&mut self, i: usize, visible: usize) -> bool {
        let mut found = false;
        for _ in 0..visible {
            let Some((_, run)) = self.machine.awaited_run(slot_id(i)) else {
                break;
            };
            let relay = &mut self.slots[i].relay;
            let Some(record) = relay.take_record(run) else {
                break;
            };
            found = true;
            let told = std::mem::take(&mut relay.told);
            let last = told.posted.as_ref().and_then(named);
            self.seen.taken_late |= record.next.is_some() && record.next != last;
            // The record was in time after all.
            relay.lost = relay.lost.filter(|&lost| lost != run);
            let now = self.time();
            let taken = self.call(record, |machine, actions| {
                let out = &mut |action| actions.push(action);
                machine.take_record(now, slot_id(i), &record, out);
                Ok(())
            });
            assert_eq!(taken, Ok(()), "nothing was asked");
        }
        found
    }

    /// Completes the pending read of a status: orders arrive before it, and records are in memory
    /// after it.
    pub(super) fn read_next(&mut self) {
        let i = self.reads.remove(0);
        let slot = slot_id(i);
        if self.vanished {
            let status = Status::ALL_ONES;
            return self.card_event(Event::Status { slot, status });
        }
        self.flush(i);
        let status = Status::from_raw(self.slots[i].raw(false));
        self.tell_status(i, status);
    }

    /// Reports a status that is older than the last run.
    pub(super) fn read_old(&mut self, i: usize) {
        self.seen.stale = true;
        self.flush(i);
        let status = Status::from_raw(self.slots[i].old);
        self.tell_status(i, status);
    }

    fn flush(&mut self, i: usize) {
        while !self.posted.is_empty() {
            self.arrive();
        }
        self.slots[i].unflushed = false;
    }

    fn tell_status(&mut self, i: usize, status: Status) {
        let visible = self.slots[i].relay.pushed();
        if self.look(i, visible) {
            return;
        }
        let slot = slot_id(i);
        let run = self.machine.awaited_run(slot).map(|(_, run)| run);
        if status.phase() == Phase::Running && run == Some(status.start_count()) {
            // A replaced order cannot be taken any more.
            let told = &mut self.slots[i].relay.told;
            let last = told.posted.as_ref().and_then(named);
            told.named = last.map_or(0, |index| 1 << index);
        }
        self.card_event(Event::Status { slot, status });
    }
}
