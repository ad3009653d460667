// SPDX-License-Identifier: GPL-2.0

//! Simulated cards of the irq and relay profiles (docs/registers.md): an engine needs a given time for a job,
//! and for saves and restores. Orders tell a slot with a relay which context runs next; the slot
//! switches to that context by itself, and leaves a record of each run. A card panics if the driver
//! breaks the rules of the card, so that each run is a test, too.

use fermata_sched_host::sched::{
    ContextId, Duration, LeftReason, NextRun, Order, RunRecord, Status, Stop,
};

use crate::sim::Costs;

/// What the engine does. Times in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    Idle,
    Restoring { since: u64, until: u64 },
    Working { since: u64 },
    Saving,
    Paused,
    Finished,
}

/// A slot without a relay.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    engine: Engine,
    /// Remaining work of the job on the engine.
    left: u64,
    count: u32,
    /// How long the last restore took, as the status reports it: in us.
    restored: u64,
    window: Option<u32>,
    running: Option<u32>,
    /// Counts events that invalidate the engine's next step.
    pub(crate) epoch: u32,
    /// PAUSEs that were dropped because the engine restored, saved or had ended.
    pub(crate) dropped: u64,
}

/// The result of a step of a slot's engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Its next step is due at this time.
    Next(u64),
    /// It raises an interrupt: the job of this client is done.
    Finished { client: u32 },
    /// It raises an interrupt: the job of this client is saved, with this much work left.
    Paused { client: u32, left: u64 },
}

impl Slot {
    pub(crate) const fn new() -> Self {
        Self {
            engine: Engine::Idle,
            left: 0,
            count: 0,
            restored: 0,
            window: None,
            running: None,
            epoch: 0,
            dropped: 0,
        }
    }

    fn active(&self) -> bool {
        matches!(
            self.engine,
            Engine::Restoring { .. } | Engine::Working { .. } | Engine::Saving
        )
    }

    pub(crate) fn load(&mut self, client: u32) {
        assert!(!self.active(), "the window moved under a job");
        self.window = Some(client);
    }

    pub(crate) fn unload(&mut self) {
        assert!(!self.active(), "the window closed under a job");
        self.window = None;
    }

    /// Handles a START at `now` of a job with `left` work, after a restore that takes `restore`.
    /// Returns when the engine's next step is due.
    pub(crate) fn start(&mut self, now: u64, client: u32, left: u64, restore: Option<u64>) -> u64 {
        assert!(!self.active(), "START while a job runs");
        assert_eq!(self.window, Some(client), "START in another's window");
        self.count = self.count.wrapping_add(1);
        self.epoch += 1;
        self.left = left;
        self.restored = 0;
        self.running = Some(client);
        if let Some(restore) = restore {
            let until = now + restore;
            self.engine = Engine::Restoring { since: now, until };
            until
        } else {
            self.engine = Engine::Working { since: now };
            now + left
        }
    }

    /// Handles a PAUSE at `now`. Returns when the save is complete, unless the PAUSE is dropped.
    pub(crate) fn pause(&mut self, now: u64, save: u64) -> Option<u64> {
        let Engine::Working { since } = self.engine else {
            self.dropped += 1;
            return None;
        };
        self.left = self.left.saturating_sub(now.saturating_sub(since));
        self.engine = Engine::Saving;
        self.epoch += 1;
        Some(now + save)
    }

    /// Executes the engine's next step, which is due.
    pub(crate) fn step(&mut self) -> Step {
        match self.engine {
            Engine::Restoring { since, until } => {
                self.restored = (until - since).div_ceil(1_000).clamp(1, 0xf_ffff);
                self.engine = Engine::Working { since: until };
                Step::Next(until + self.left)
            }
            Engine::Working { .. } => {
                self.engine = Engine::Finished;
                self.left = 0;
                let client = self.running.expect("a job is done");
                Step::Finished { client }
            }
            Engine::Saving => {
                self.engine = Engine::Paused;
                let client = self.running.expect("a job is saved");
                let left = self.left;
                Step::Paused { client, left }
            }
            Engine::Idle | Engine::Paused | Engine::Finished => unreachable!("nothing to do"),
        }
    }

    pub(crate) fn reset(&mut self, hold: bool) {
        if hold {
            self.engine = Engine::Idle;
            self.epoch += 1;
        }
    }

    pub(crate) fn status(&self) -> Status {
        let phase = match self.engine {
            Engine::Idle => 0,
            Engine::Restoring { .. } | Engine::Working { .. } | Engine::Saving => 1,
            Engine::Finished => 2,
            Engine::Paused => 4,
        };
        Status::from_raw(phase | (self.restored << 12) | (u64::from(self.count) << 32))
    }
}

/// Records that a slot keeps.
const RECORDS: usize = 8;
/// The longest time that an order can let a job work and still stop it, in us.
const AT_MAX: u64 = 0xff_fffe;

/// The slots, and the entries of contexts, which the card reads from memory.
#[derive(Clone, Debug)]
pub(crate) struct Relay {
    slots: Vec<RelaySlot>,
    /// The table of contexts: which entries were written, by the index of the context.
    entries: Vec<bool>,
    /// Reading entry and registers of a context, ns.
    load: u64,
    /// Restoring a snapshot, ns.
    restore: u64,
    /// Saving a snapshot, ns.
    save: u64,
}

/// A slot with a relay.
#[derive(Clone, Debug, Default)]
struct RelaySlot {
    /// RUN: the number of the current or last run.
    number: u32,
    run: Option<Run>,
    held: Option<Order>,
    /// How the last run ended, if the slot is vacant and was not reset since.
    left: Option<LeftReason>,
    in_reset: bool,
    records: [Option<RunRecord>; RECORDS],
    /// Counts events that invalidate the engine's next step.
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
    /// When the job is done, unless it is stopped earlier.
    done_at: u64,
    /// When the held order stops the run.
    stop_at: Option<u64>,
    /// The run is stopped without a save.
    drops: bool,
    /// When its save began.
    saves_since: Option<u64>,
}

/// The effect of an order, or of a step of the engine, on a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing: the order was dropped.
    Dropped,
    /// Nothing yet: a save that was under way continues.
    Goes,
    /// The engine's next step is due at this time, unless another effect comes first.
    Next(u64),
    /// The slot was vacant and takes this context.
    Taken(NextRun),
    /// A run has left the slot: its record is in memory, and an interrupt is raised.
    Left(Left),
}

/// A run that has left its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// The context that ran.
    pub(crate) ctx: ContextId,
    /// Why the run has ended.
    pub(crate) reason: LeftReason,
    /// Remaining work of the job, ns.
    pub(crate) work: u64,
    /// The context that the slot takes at once.
    pub(crate) next: Option<NextRun>,
}

impl Relay {
    pub(crate) fn new(slots: usize, contexts: usize, costs: &Costs) -> Self {
        Self {
            slots: vec![RelaySlot::default(); slots],
            entries: vec![false; contexts],
            load: costs.load,
            restore: costs.restore,
            save: costs.save,
        }
    }

    /// Returns the count of events that invalidate the next step of a slot's engine.
    pub(crate) fn epoch(&self, slot: usize) -> u32 {
        self.slots[slot].epoch
    }

    /// Writes the entry and the registers of a context to memory, as the driver does.
    pub(crate) fn write_entry(&mut self, ctx: ContextId) {
        for slot in &self.slots {
            assert!(!slot.is_of(ctx), "context_changed: {ctx:?} runs");
            assert!(!slot.names(ctx), "context_changed: {ctx:?} is named");
        }
        self.entries[ctx.index()] = true;
    }

    /// Handles an order that reaches a slot at `now`.
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

    /// Checks that an order may name `ctx` for a slot.
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

    /// Keeps an order for the run on a slot, which stops when the order says.
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

    /// Switches a slot to a context, whose job has `work` left. Returns when the engine's next step
    /// is due.
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

    /// Executes the step that [`Effect::Next`] or [`Relay::take`] announced, which is due.
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

    /// Ends the run on a slot: writes its record, and executes the held order.
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

    /// Returns the record of run `number` of a slot, if there is one.
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

impl RelaySlot {
    fn is_of(&self, ctx: ContextId) -> bool {
        self.run.is_some_and(|run| run.ctx == ctx)
    }

    fn names(&self, ctx: ContextId) -> bool {
        let next = self.held.and_then(|order| order.next);
        next.is_some_and(|next| next.ctx == ctx)
    }
}

impl Run {
    /// Returns when the engine's next step is due. A job that is done at that time is not stopped.
    fn next_step(&self) -> u64 {
        self.stop_at
            .map_or(self.done_at, |stop| stop.min(self.done_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mode::Mode;
    use crate::workload::Kind;
    use crate::US;
    use fermata_sched_host::sched::Time;

    #[test]
    fn the_status_tells_what_a_restore_took_rounded_up() {
        for (restore, told) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (1 << 50, 0xf_ffff)] {
            let mut slot = Slot::new();
            slot.load(3);
            slot.start(0, 3, 10, Some(restore));
            assert_eq!(
                slot.status().restore(),
                Duration::ZERO,
                "during the restore"
            );
            slot.step();
            let told = Duration::from_us(told);
            assert_eq!(slot.status().restore(), told, "{restore} ns");
        }
    }

    const WORK: u64 = 100 * US;

    /// Returns a card with two slots, and three contexts whose entries are written. The first
    /// context has been on slot 0 since time 0.
    fn card() -> (Relay, [ContextId; 3]) {
        let mode = Mode::LC_BE.on_relay();
        let mut machine = mode.machine(2, 3);
        let add = |_| machine.add(Time::ZERO, mode.context(Kind::Be)).unwrap();
        let contexts = [0; 3].map(add);
        let mut relay = Relay::new(2, 3, &Costs::DEFAULT);
        for ctx in contexts {
            relay.write_entry(ctx);
        }
        let order = vacant(0, contexts[0]);
        let Effect::Taken(next) = relay.order(0, 0, order) else {
            panic!("the slot is vacant");
        };
        let load = Costs::DEFAULT.load;
        assert_eq!(relay.take(0, 0, next, WORK), load + WORK);
        (relay, contexts)
    }

    fn run(ctx: ContextId) -> NextRun {
        let resume = false;
        NextRun { ctx, resume }
    }

    fn vacant(after: u32, ctx: ContextId) -> Order {
        let (stop, next) = (Stop::Vacant, Some(run(ctx)));
        Order { after, stop, next }
    }

    /// Returns an order that stops run 1 when it has worked for `us` us.
    fn after(us: u64, next: Option<NextRun>) -> Order {
        let after = Duration::from_us(us);
        let boundary = false;
        let stop = Stop::Paused { after, boundary };
        let after = 1;
        Order { after, stop, next }
    }

    fn left(effect: Effect) -> Left {
        match effect {
            Effect::Left(left) => left,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn at_counts_from_the_first_work() {
        let (mut relay, [_, b, _]) = card();
        let Costs { load, save, .. } = Costs::DEFAULT;
        let stops = load + 30 * US;
        assert_eq!(
            relay.order(10 * US, 0, after(30, Some(run(b)))),
            Effect::Next(stops)
        );
        // A stop time in the past is due at once.
        assert_eq!(
            relay.order(40 * US, 0, after(20, Some(run(b)))),
            Effect::Next(40 * US)
        );
        assert_eq!(relay.step(40 * US, 0), Effect::Next(40 * US + save));
        let left = left(relay.step(40 * US + save, 0));
        assert_eq!((left.reason, left.next), (LeftReason::Paused, Some(run(b))));
        assert_eq!(left.work, WORK - (40 * US - load));
        let record = relay.record(0, 1).unwrap();
        assert_eq!(record.span, Duration::from_ns(40 * US + save));
        assert_eq!(record.load, Duration::from_ns(load));
        assert_eq!(record.save, Duration::from_ns(save));
        assert_eq!(record.next, Some(b.index()));
        assert_eq!(relay.record(0, 9), None);
    }

    #[test]
    fn an_order_is_replaced_and_withdrawn_until_the_run_has_left() {
        let (mut relay, [_, b, c]) = card();
        let done = Costs::DEFAULT.load + WORK;
        relay.order(0, 0, after(30, Some(run(b))));
        let stop = Stop::Never;
        let (after_run, next) = (1, None);
        let never = Order {
            after: after_run,
            stop,
            next,
        };
        assert_eq!(relay.order(0, 0, never), Effect::Next(done));
        relay.write_entry(b);
        assert_eq!(
            relay.order(US, 0, after(0, Some(run(b)))),
            Effect::Next(2 * US)
        );
        relay.step(2 * US, 0);
        // The save continues, and another context runs next.
        assert_eq!(relay.order(3 * US, 0, after(0, Some(run(c)))), Effect::Goes);
        assert_eq!(left(relay.step(42 * US, 0)).next, Some(run(c)));
    }

    #[test]
    fn orders_for_another_run_are_dropped() {
        let (mut relay, [a, b, _]) = card();
        let late = Order {
            after: 0,
            ..after(0, Some(run(b)))
        };
        assert_eq!(relay.order(0, 0, late), Effect::Dropped);
        assert_eq!(relay.order(0, 0, vacant(1, b)), Effect::Dropped);
        let record = left(relay.step(Costs::DEFAULT.load + WORK, 0));
        assert_eq!(
            (record.ctx, record.reason, record.work),
            (a, LeftReason::Finished, 0)
        );
        assert_eq!(
            relay.order(1_000 * US, 0, after(0, Some(run(b)))),
            Effect::Dropped
        );
        assert_eq!(relay.status(0).start_count(), 1);
    }

    #[test]
    fn a_job_is_dropped_where_it_is() {
        let (mut relay, _) = card();
        let order = Order {
            stop: Stop::Dropped,
            ..after(0, None)
        };
        assert_eq!(relay.order(10 * US, 0, order), Effect::Next(10 * US));
        assert_eq!(left(relay.step(10 * US, 0)).reason, LeftReason::Dropped);
        let record = relay.record(0, 1).unwrap();
        assert_eq!((record.save, record.next), (Duration::ZERO, None));
    }

    #[test]
    #[should_panic(expected = "named_twice")]
    fn nobody_is_named_for_two_slots() {
        let (mut relay, [_, b, _]) = card();
        relay.order(0, 0, after(30, Some(run(b))));
        relay.order(0, 1, vacant(0, b));
    }

    #[test]
    #[should_panic(expected = "context_changed")]
    fn the_entry_of_who_is_named_stays() {
        let (mut relay, [_, b, _]) = card();
        relay.order(0, 0, after(30, Some(run(b))));
        relay.write_entry(b);
    }

    #[test]
    #[should_panic(expected = "order_bad")]
    fn nobody_follows_itself() {
        let (mut relay, [a, ..]) = card();
        relay.order(0, 0, after(30, Some(run(a))));
    }
}
