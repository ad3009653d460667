// SPDX-License-Identifier: GPL-2.0

//! A simulated card with a relay (docs/card.md, Relay): a slot is told by orders who runs next, goes
//! on with that context by itself, and leaves a record of each run. It panics where the driver breaks
//! the card's rules, so that each run is a test, too.

use fermata_sched_host::sched::{
    ContextId, Duration, LeftReason, NextRun, Order, RunRecord, Status, Stop,
};

use crate::costs::Costs;

/// Records that a slot keeps.
const RECORDS: usize = 8;
/// The longest time that an order can let a job work and still stop it, in us.
const AT_MAX: u64 = 0xff_fffe;

/// The slots, and what the card knows of contexts from memory.
#[derive(Clone, Debug)]
pub(crate) struct Relay {
    slots: Vec<Slot>,
    /// The table of contexts: which entries were written, by the index of the context.
    entries: Vec<bool>,
    /// Reading entry and registers of a context, ns.
    load: u64,
    /// Restoring a snapshot, ns.
    restore: u64,
    /// Saving one, ns.
    save: u64,
}

/// One slot.
#[derive(Clone, Debug, Default)]
struct Slot {
    /// RUN: the number of the present or last run.
    number: u32,
    run: Option<Run>,
    held: Option<Order>,
    /// How the last run ended, if the slot is vacant and was not reset since.
    left: Option<LeftReason>,
    in_reset: bool,
    records: [Option<RunRecord>; RECORDS],
    /// Counts what invalidates the engine's next step.
    epoch: u32,
}

/// A run. Times in ns.
#[derive(Clone, Copy, Debug)]
struct Run {
    ctx: ContextId,
    resumed: bool,
    /// When its order was taken.
    began: u64,
    /// When load and restore are over.
    works_at: u64,
    /// When the job is done, unless it is stopped before.
    done_at: u64,
    /// When the order that is held stops it.
    stop_at: Option<u64>,
    /// It is stopped without being saved.
    drops: bool,
    /// When its save began.
    saves_since: Option<u64>,
}

/// What an order, or the end of something that the engine does, has brought about on a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing: the order was dropped.
    Dropped,
    /// Nothing yet: a save that was under way goes on.
    Goes,
    /// The engine comes to the end of something at this time, unless another effect comes first.
    Next(u64),
    /// The slot was vacant and takes this context.
    Taken(NextRun),
    /// A run has left the slot: its record is in memory, and an interrupt is raised.
    Left(Left),
}

/// A run that has left its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// Whose it was.
    pub(crate) ctx: ContextId,
    /// Why it has left.
    pub(crate) reason: LeftReason,
    /// Work that the job has left, ns.
    pub(crate) work: u64,
    /// The context that the slot takes at once.
    pub(crate) next: Option<NextRun>,
}

impl Relay {
    pub(crate) fn new(slots: usize, contexts: usize, costs: &Costs) -> Self {
        Self {
            slots: vec![Slot::default(); slots],
            entries: vec![false; contexts],
            load: costs.load,
            restore: costs.restore,
            save: costs.save,
        }
    }

    /// Counts what invalidates the next step of a slot's engine.
    pub(crate) fn epoch(&self, slot: usize) -> u32 {
        self.slots[slot].epoch
    }

    /// The driver writes the entry and the registers of a context in memory.
    pub(crate) fn write_entry(&mut self, ctx: ContextId) {
        for slot in &self.slots {
            assert!(!slot.is_of(ctx), "context_changed: {ctx:?} runs");
            assert!(!slot.names(ctx), "context_changed: {ctx:?} is named");
        }
        self.entries[ctx.index()] = true;
    }

    /// An order reaches a slot at `now`.
    pub(crate) fn order(&mut self, now: u64, id: usize, order: Order) -> Effect {
        let is_vacant = order.stop == Stop::Vacant;
        assert!(
            !is_vacant || order.next.is_some(),
            "order_bad: VACANT, and nobody is next"
        );
        let slot = &self.slots[id];
        // The card compares 16 bits.
        let follows = order.after & 0xffff == slot.number & 0xffff;
        if slot.in_reset || !follows || is_vacant != slot.run.is_none() {
            return Effect::Dropped;
        }
        if let Some(next) = order.next {
            self.check_next(id, next.ctx);
        }
        match order.next.filter(|_| is_vacant) {
            Some(next) => Effect::Taken(next),
            None => self.hold(now, id, order),
        }
    }

    /// Checks that a slot may be told that `ctx` is next.
    fn check_next(&self, id: usize, ctx: ContextId) {
        assert!(
            self.entries[ctx.index()],
            "the entry of {ctx:?} was never written"
        );
        assert!(
            !self.slots[id].is_of(ctx),
            "order_bad: {ctx:?} is to follow itself"
        );
        for (other, slot) in self
            .slots
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != id)
        {
            assert!(!slot.is_of(ctx), "named_twice: {ctx:?} is on slot {other}");
            assert!(
                !slot.names(ctx),
                "named_twice: {ctx:?} is named on slot {other}"
            );
        }
    }

    /// A slot keeps the order for its run, and the run has to stop when the order says.
    fn hold(&mut self, now: u64, id: usize, order: Order) -> Effect {
        let slot = &mut self.slots[id];
        let run = slot.run.as_mut().expect("an order is held for a run");
        slot.held = Some(order);
        if run.saves_since.is_some() {
            return Effect::Goes;
        }
        let after = match order.stop {
            Stop::Paused { after, boundary } => {
                assert!(!boundary, "no simulated engine has boundaries");
                Some(after.as_us_rounded_up().min(AT_MAX) * crate::US)
            }
            Stop::Dropped => Some(0),
            Stop::Never | Stop::Vacant => None,
        };
        run.drops = order.stop == Stop::Dropped;
        run.stop_at = after.map(|after| (run.works_at + after).max(now));
        if after == Some(0) && run.resumed && now < run.works_at {
            return self.leave(now, id, LeftReason::NotRun);
        }
        slot.epoch += 1;
        Effect::Next(run.next_step())
    }

    /// A slot goes on with a context, whose job has `work` left. When the engine goes on by itself.
    pub(crate) fn take(&mut self, now: u64, id: usize, next: NextRun, work: u64) -> u64 {
        let slot = &mut self.slots[id];
        assert!(slot.run.is_none(), "a slot has one run");
        let restore = if next.resume { self.restore } else { 0 };
        let works_at = now + self.load + restore;
        slot.number = slot.number.wrapping_add(1);
        slot.epoch += 1;
        slot.left = None;
        slot.run = Some(Run {
            ctx: next.ctx,
            resumed: next.resume,
            began: now,
            works_at,
            done_at: works_at + work,
            stop_at: None,
            drops: false,
            saves_since: None,
        });
        works_at + work
    }

    /// The time that [`Effect::Next`] or [`Relay::take`] named has come.
    pub(crate) fn step(&mut self, now: u64, id: usize) -> Effect {
        let save = self.save;
        let run = self.slots[id].run.as_mut().expect("a run goes on");
        let reason = match run.saves_since {
            Some(_) => LeftReason::Paused,
            None if now >= run.done_at => LeftReason::Finished,
            None if run.drops => LeftReason::Dropped,
            None => {
                run.saves_since = Some(now);
                return Effect::Next(now + save);
            }
        };
        self.leave(now, id, reason)
    }

    /// The run on a slot ends: its record is written, and the order that is held is carried out.
    fn leave(&mut self, now: u64, id: usize, reason: LeftReason) -> Effect {
        let slot = &mut self.slots[id];
        let run = slot.run.take().expect("a run leaves");
        let next = slot.held.take().and_then(|order| order.next);
        let stopped = run.saves_since.unwrap_or(now);
        let has_worked = reason != LeftReason::NotRun;
        let load = if has_worked {
            run.works_at - run.began
        } else {
            0
        };
        let ns = Duration::from_ns;
        slot.epoch += 1;
        slot.left = Some(reason);
        slot.records[slot.number as usize % RECORDS] = Some(RunRecord {
            run: slot.number,
            reason,
            span: ns(now - run.began),
            load: ns(load),
            save: ns(now - stopped),
            next: next.map(|next| next.ctx.index()),
        });
        Effect::Left(Left {
            ctx: run.ctx,
            reason,
            work: run.done_at - stopped.max(run.works_at),
            next,
        })
    }

    /// The record of run `number` of a slot, if that has left one.
    pub(crate) fn record(&self, id: usize, number: u32) -> Option<RunRecord> {
        let record = self.slots[id].records[number as usize % RECORDS];
        record.filter(|record| record.run == number)
    }

    pub(crate) fn reset(&mut self, id: usize, hold: bool) {
        let slot = &mut self.slots[id];
        slot.in_reset = hold;
        if hold {
            slot.run = None;
            slot.held = None;
            slot.left = None;
            slot.epoch += 1;
        }
    }

    /// Is a context on a slot?
    pub(crate) fn occupies(&self, ctx: ContextId) -> bool {
        self.slots.iter().any(|slot| slot.is_of(ctx))
    }

    pub(crate) fn status(&self, id: usize) -> Status {
        let slot = &self.slots[id];
        let phase = match (slot.run, slot.left) {
            (Some(_), _) => 1,
            (None, Some(LeftReason::Finished)) => 2,
            (None, Some(LeftReason::Paused)) => 4,
            (None, _) => 0,
        };
        Status::from_raw(phase | (u64::from(slot.number) << 32))
    }
}

impl Slot {
    fn is_of(&self, ctx: ContextId) -> bool {
        self.run.is_some_and(|run| run.ctx == ctx)
    }

    fn names(&self, ctx: ContextId) -> bool {
        let next = self.held.and_then(|order| order.next);
        next.is_some_and(|next| next.ctx == ctx)
    }
}

impl Run {
    /// When the engine comes to the end of something. A job that is done then is not stopped.
    fn next_step(&self) -> u64 {
        self.stop_at
            .map_or(self.done_at, |stop| stop.min(self.done_at))
    }
}
