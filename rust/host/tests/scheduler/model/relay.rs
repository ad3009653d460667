// SPDX-License-Identifier: GPL-2.0

//! The relay of a slot of the model (docs/card.md, Relay): orders come in, records go out.

use std::collections::HashMap;

use fermata_sched_host::sched::{ContextId, Duration, LeftReason, NextRun, Order, RunRecord, Stop};

use super::card::{Card, CardSlot, Engine, Program};

/// What a slot with a relay has beside the others.
#[derive(Clone, Debug, Default)]
pub struct Relay {
    /// The order for the run on the slot.
    held: Option<Order>,
    /// Of each run that has left, until the driver has read it.
    records: Vec<RunRecord>,
    began: u64,
    worked: Option<u64>,
    stopped: Option<u64>,
    /// How long the job may work, and whether it stops at a boundary then.
    limit: Option<(u64, bool)>,
    /// The job on the slot is stopped without being saved.
    drops: bool,
    /// Orders that were dropped, because they followed another run.
    pub dropped: u32,
    /// Runs that followed another one without a vacancy.
    pub relayed: u32,
    /// Runs after which the slot goes back to the job before.
    pub backs: u32,
    // Misbehaviour, switched on by tests.
    pub lose_records: u32,
    pub ignore_orders: u32,
    /// The next record says that this context was taken.
    pub lies: Option<usize>,
    /// The times of records are as long as can be.
    pub exaggerates: bool,
}

impl Card {
    /// What the card reads of a context in memory is written.
    pub fn write_entry(&mut self, program: Program) {
        for (i, slot) in self.slots.iter().enumerate() {
            let on = |of: &Program| of.job.0 == program.job.0;
            let busy = slot.active() && slot.running.as_ref().is_some_and(on);
            assert!(!busy, "context_changed: it is on slot {i}");
            let named = self.named_on(i) == Some(program.job.0);
            assert!(!named, "context_changed: it is named on slot {i}");
        }
        self.entries.insert(program.job.0, program);
    }

    /// Who is named in the order that a slot holds.
    fn named_on(&self, i: usize) -> Option<ContextId> {
        let relay = self.slots[i].relay.as_ref()?;
        Some(relay.held?.next?.ctx)
    }

    /// An order arrives.
    pub fn order(&mut self, now: u64, i: usize, order: Order) -> Vec<usize> {
        let mut irqs = Vec::new();
        assert!(!self.gone, "write to a card that is gone");
        if let Some(next) = order.next {
            let job = self.entries[&next.ctx].job;
            for (j, other) in self.slots.iter().enumerate() {
                let on = other.active() && other.running.is_some_and(|of| of.job.0 == next.ctx);
                assert!(!on || i == j, "named_twice: {job:?} is on slot {j}");
                let named = i != j && self.named_on(j) == Some(next.ctx);
                assert!(!named, "named_twice: {job:?} is named on slot {j}");
            }
        }
        let slot = &mut self.slots[i];
        let vacant = !slot.active();
        let relay = slot
            .relay
            .as_mut()
            .expect("an order to a slot without a relay");
        if order.stop == Stop::Vacant {
            assert!(order.next.is_some(), "order_bad: nobody for a vacant slot");
        }
        if relay.ignore_orders > 0 {
            relay.ignore_orders -= 1;
            return irqs;
        }
        let follows = order.after == slot.count && vacant == (order.stop == Stop::Vacant);
        if !follows || slot.in_reset {
            slot.relay.as_mut().unwrap().dropped += 1;
            // The order follows a START that was ignored. The scheduler resets the slot then, and
            // cannot know which of the contexts that it has named have run.
            let follows_ignored = vacant && order.after == slot.count.wrapping_add(1);
            if let Some(next) = order.next.filter(|_| follows_ignored) {
                self.guilty.insert(self.entries[&next.ctx].job);
            }
            return irqs;
        }
        if let (true, Some(next)) = (vacant, order.next) {
            if slot.ignore_starts > 0 {
                slot.ignore_starts -= 1;
                self.guilty.insert(self.entries[&next.ctx].job);
                return irqs;
            }
            self.take(now, i, next);
            return irqs;
        }
        relay.held = Some(order);
        self.stop(now, i, order.stop, &mut irqs);
        irqs
    }

    /// The run on a slot has to stop.
    fn stop(&mut self, now: u64, i: usize, stop: Stop, irqs: &mut Vec<usize>) {
        let slot = &mut self.slots[i];
        let ignores = slot.hang || slot.ignore_pauses > 100;
        // An order is no pulse: one that is ignored for a while is obeyed then.
        if !ignores {
            slot.ignore_pauses = 0;
        }
        if ignores || stop == Stop::Never {
            if ignores {
                self.guilty.extend(slot.running.map(|program| program.job));
            }
            return;
        }
        let relay = slot.relay.as_mut().unwrap();
        let (after, boundary) = match stop {
            Stop::Paused { after, boundary } => (after.as_ns(), boundary),
            _ => (0, false),
        };
        relay.limit = None;
        match (slot.engine, stop) {
            (Engine::Restoring { .. }, _) if after != 0 => relay.limit = Some((after, boundary)),
            (Engine::Working { .. }, _) if relay.worked.unwrap() + after > now => {
                relay.limit = Some((after, boundary));
            }
            (Engine::Restoring { .. }, _) => {
                let program = slot.running.unwrap();
                slot.engine = Engine::Paused;
                self.memory.get_mut(&program.job.0).unwrap().resumed = false;
                self.leave(i, now, LeftReason::NotRun, irqs);
            }
            (Engine::Working { .. }, Stop::Dropped) => {
                relay.drops = true;
                relay.stopped = Some(now);
                slot.engine = Engine::Finished;
                let job = slot.running.unwrap().job;
                self.guilty.insert(job);
                self.leave(i, now, LeftReason::Dropped, irqs);
            }
            (Engine::Working { .. }, _) => {
                irqs.extend(self.pause(now, i, boundary));
            }
            _ => {}
        }
    }

    /// The run on a slot has ended and the slot is quiescent: it leaves a record, and the context
    /// that is named goes on.
    pub fn leave(&mut self, i: usize, at: u64, reason: LeftReason, irqs: &mut Vec<usize>) {
        let slot = &mut self.slots[i];
        let relay = slot.relay.as_mut().unwrap();
        let stopped = relay.stopped.unwrap_or(at);
        let worked = relay.worked.unwrap_or(stopped).min(stopped);
        let next = relay.held.take().and_then(|order| order.next);
        let mut record = RunRecord {
            run: slot.count,
            reason,
            span: Duration::from_ns(at - relay.began),
            load: Duration::from_ns(worked - relay.began),
            save: Duration::from_ns(at - stopped),
            next: relay.lies.take().or(next.map(|next| next.ctx.index())),
            back: matches!(reason, LeftReason::Paused | LeftReason::NotRun)
                && next.is_some_and(|next| next.back),
        };
        let back = slot.running.filter(|_| record.back);
        if relay.exaggerates {
            let long = Duration::from_ns(u64::MAX);
            (record.span, record.load, record.save) = (long, long, long);
        }
        if relay.lose_records > 0 {
            relay.lose_records -= 1;
        } else {
            relay.records.push(record);
        }
        if slot.lose_irqs > 0 {
            slot.lose_irqs -= 1;
        } else {
            irqs.push(i);
        }
        if let Some(next) = next {
            self.take(at, i, next);
            let slot = &mut self.slots[i];
            let relay = slot.relay.as_mut().unwrap();
            relay.relayed += 1;
            relay.backs += u32::from(back.is_some());
            relay.held = back.map(|program| Order {
                after: slot.count,
                stop: Stop::Never,
                next: Some(NextRun {
                    ctx: program.job.0,
                    resume: true,
                    back: false,
                }),
            });
        }
    }

    fn take(&mut self, now: u64, i: usize, next: NextRun) {
        let program = self.entries[&next.ctx];
        self.slots[i].window = Some(program);
        self.start(now, i, next.ctx, next.resume);
        let slot = &mut self.slots[i];
        slot.window = None;
        let relay = slot.relay.as_mut().unwrap();
        relay.began = now;
        relay.worked = (!next.resume).then_some(now);
        relay.stopped = None;
        relay.limit = None;
        relay.drops = false;
    }

    /// The record of a run, if the card has written it.
    pub fn record(&mut self, i: usize, run: u32) -> Option<RunRecord> {
        let relay = self.slots[i].relay.as_mut()?;
        let at = relay.records.iter().position(|record| record.run == run)?;
        Some(relay.records.remove(at))
    }
}

/// What the card reads of contexts in memory.
pub type Entries = HashMap<ContextId, Program>;

impl CardSlot {
    /// When the job has worked for as long as the order that is held allows.
    pub fn limit(&self) -> Option<u64> {
        let relay = self.relay.as_ref()?;
        Some(relay.worked? + relay.limit?.0)
    }

    /// Is that at `at`, and no earlier than where the job ends or stops by itself?
    pub fn is_limited(&self, since: u64, at: u64) -> bool {
        self.limit().is_some_and(|limit| limit.max(since) == at)
    }

    /// Takes that away, for it is over. Returns whether the job stops at a boundary.
    pub fn take_limit(&mut self) -> bool {
        let limit = self.relay.as_mut().and_then(|relay| relay.limit.take());
        limit.is_some_and(|(_, boundary)| boundary)
    }

    /// The job begins to work.
    pub fn note_work(&mut self, at: u64) {
        if let Some(relay) = &mut self.relay {
            relay.worked = Some(at);
        }
    }

    /// The job stops working.
    pub fn note_stop(&mut self, at: u64) {
        if let Some(relay) = &mut self.relay {
            relay.stopped = Some(at);
        }
    }

    /// A reset: what was held is void, and no record of the run follows.
    pub fn reset_relay(&mut self) {
        if let Some(relay) = &mut self.relay {
            relay.held = None;
        }
    }
}
