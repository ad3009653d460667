// SPDX-License-Identifier: GPL-2.0

//! A model of the card as docs/registers.md describes it: one engine per slot, which needs a given
//! time for a job. It panics if the driver breaks the rules of the card (docs/emulated-card.md,
//! What the checker counts).

use std::collections::{HashMap, HashSet};

use fermata_sched_host::sched::{
    ContextId, Duration, LeftReason, NextRun, Order, PreemptGranularity, RunRecord, Status, Stop,
};

/// A job as tests identify it: its context, and its number there.
pub type Job = (ContextId, u64);

/// What the driver loads into a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    pub job: Job,
    /// How long the engine must work, in ns.
    pub work: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Idle,
    Restoring { until: u64 },
    Working { since: u64 },
    Saving { until: u64 },
    Paused,
    Finished,
}

/// The contents of a context's snapshot buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Snapshot {
    job: Job,
    progress: u64,
    complete: bool,
    pub(super) resumed: bool,
}

#[derive(Clone, Debug)]
pub struct CardSlot {
    /// Base profile: (settle, drain).
    pub base: Option<(u64, u64)>,
    pub reset_before_resume: bool,
    pub relay: Option<Relay>,
    pub granularity: PreemptGranularity,
    /// A queue engine: it works on posted work, and leaves its slot when the queue is empty.
    pub queues: bool,
    /// The engine has a boundary at each multiple of this amount of work, in ns.
    pub block: u64,
    pub engine: Engine,
    pub count: u32,
    pub save: u64,
    pub restore: u64,
    pub start_lag: u64,
    pub(super) window: Option<Program>,
    pub(super) running: Option<Program>,
    progress: u64,
    /// How far the job can progress with the posted work.
    supply: u64,
    /// The job is saved with an empty queue.
    empty: bool,
    /// The job stops at its next boundary, which is at this progress.
    boundary: Option<u64>,
    pub(super) in_reset: bool,
    fresh: bool,
    held_at: Option<u64>,
    /// The write of the reset bit is posted and no read has flushed it: it may arrive at any time.
    posted: bool,
    dma: Option<(ContextId, u64)>,
    lag: Option<(u64, u64)>,
    /// irq and relay: reset while working, and the status was not read since: DMA may be under way.
    unflushed: bool,
    bits: u64,
    /// irq and relay: how long the last START_RESUME took to restore, in us; 0 while it restores.
    restored: u64,
    // Misbehaviour, switched on by tests.
    pub ignore_pauses: u32,
    pub lose_irqs: u32,
    pub hang: bool,
    pub ignore_starts: u32,
    pub ignore_resets: u32,
    pub finish_on_pause: bool,
    pub torn: bool,
    pub fault: bool,
    // Counters.
    pub pauses_dropped: u32,
    pub status_reads: u32,
}

impl CardSlot {
    pub fn new(
        base: Option<(u64, u64)>,
        reset_before_resume: bool,
        granularity: PreemptGranularity,
    ) -> Self {
        Self {
            base,
            reset_before_resume,
            relay: None,
            granularity,
            queues: false,
            supply: u64::MAX,
            empty: false,
            block: 1_000_000,
            boundary: None,
            engine: Engine::Idle,
            count: 7,
            save: 50_000,
            restore: 50_000,
            start_lag: 0,
            window: None,
            running: None,
            progress: 0,
            in_reset: false,
            fresh: true,
            held_at: None,
            posted: false,
            dma: None,
            lag: None,
            unflushed: false,
            bits: 0,
            restored: 0,
            ignore_pauses: 0,
            lose_irqs: 0,
            hang: false,
            ignore_starts: 0,
            ignore_resets: 0,
            finish_on_pause: false,
            torn: false,
            fault: false,
            pauses_dropped: 0,
            status_reads: 0,
        }
    }

    /// Has the slot reported a torn save?
    pub fn tells_of_torn(&self) -> bool {
        self.engine == Engine::Finished && self.bits == 1 << 9
    }

    pub fn active(&self) -> bool {
        matches!(
            self.engine,
            Engine::Restoring { .. } | Engine::Working { .. } | Engine::Saving { .. }
        )
    }

    /// Returns the context of the last job that was started.
    pub fn running_job(&self) -> Option<ContextId> {
        Some(self.running?.job.0)
    }

    fn draining(&self, now: u64) -> bool {
        self.dma.is_some_and(|(_, until)| until > now)
    }

    fn raw(&self) -> u64 {
        let phase = match self.engine {
            Engine::Idle => 0,
            Engine::Finished => 2,
            Engine::Paused => 4,
            _ => 1,
        };
        match self.base {
            Some(_) => phase,
            None => phase | self.bits | (self.restored << 12) | (u64::from(self.count) << 32),
        }
    }

    /// When the engine next changes state by itself.
    fn next(&self) -> Option<u64> {
        match self.engine {
            Engine::Restoring { until } | Engine::Saving { until } => Some(until),
            Engine::Working { .. } if self.hang => None,
            Engine::Working { since } => {
                let work = self.running.unwrap().work;
                let end = self
                    .boundary
                    .map_or(work, |at| at.min(work))
                    .min(self.supply);
                let end = since + end.saturating_sub(self.progress);
                Some(self.limit().map_or(end, |limit| limit.max(since).min(end)))
            }
            _ => None,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Card {
    pub slots: Vec<CardSlot>,
    pub(super) memory: HashMap<ContextId, Snapshot>,
    pub(super) entries: Entries,
    pub started: HashSet<Job>,
    pub finished: HashSet<Job>,
    /// Jobs that a misbehaviour has hit; only these may fail.
    pub guilty: HashSet<Job>,
    /// Jobs that may be replayed, and how often they were.
    pub replays: HashMap<Job, u64>,
    /// Jobs that began from a state that their owner has imported.
    imports: HashSet<Job>,
    /// Total work that was posted to the queue of a context.
    posted: HashMap<ContextId, u64>,
    /// Contexts whose engine has announced that it leaves its slot.
    idle: HashSet<ContextId>,
    pub gone: bool,
}

impl Card {
    /// Notes that the state of a job is lost: a replayable job restarts, another job fails.
    pub fn lose(&mut self, job: Job) {
        match self.replays.get_mut(&job) {
            Some(count) if *count < 3 => {
                *count += 1;
                self.started.remove(&job);
                self.finished.remove(&job);
            }
            _ => {
                self.guilty.insert(job);
            }
        }
    }

    /// The last writes of a job that was saved, or has finished, do not reach memory.
    pub fn lose_last_dma(&mut self, job: Job) {
        if let Some(snapshot) = self.memory.get_mut(&job.0) {
            snapshot.complete = false;
        }
        self.lose(job);
    }

    /// Imports a state, with this progress, for a job that is about to begin.
    pub fn import(&mut self, job: Job, progress: u64) {
        let snapshot = Snapshot {
            job,
            progress,
            complete: true,
            resumed: false,
        };
        self.memory.insert(job.0, snapshot);
        self.imports.insert(job);
        self.started.insert(job);
    }

    /// Returns how many jobs of `ctx` began from an imported state.
    pub fn imports_of(&self, ctx: ContextId) -> u64 {
        self.imports.iter().filter(|(of, _)| *of == ctx).count() as u64
    }

    /// Returns how often jobs of `ctx` were replayed.
    pub fn replays_of(&self, ctx: ContextId) -> u64 {
        let of = self.replays.iter().filter(|((of, _), _)| *of == ctx);
        of.map(|(_, count)| count).sum()
    }

    /// Resets the card or cycles its power: no job may be on the card, and its registers get their
    /// initial values.
    pub fn lose_state(&mut self, now: u64) {
        for slot in &mut self.slots {
            let ignores = slot.ignore_resets != 0;
            assert!(ignores || !slot.active(), "lost with a job on it");
            assert!(ignores || !slot.draining(now), "lost with DMA under way");
            *slot = CardSlot {
                block: slot.block,
                save: slot.save,
                restore: slot.restore,
                start_lag: slot.start_lag,
                queues: slot.queues,
                relay: slot.relay.as_ref().map(|_| Relay::default()),
                count: 0,
                status_reads: slot.status_reads,
                pauses_dropped: slot.pauses_dropped,
                ..CardSlot::new(slot.base, slot.reset_before_resume, slot.granularity)
            };
        }
    }

    /// Cuts off the card from the driver and from memory: jobs on the card are lost.
    pub fn cut_off(&mut self) {
        for slot in &mut self.slots {
            if slot.active() {
                slot.engine = Engine::Idle;
            }
            slot.dma = None;
            slot.unflushed = false;
            slot.held_at = None;
            slot.reset_relay();
        }
    }

    /// Adds work to the queue of `ctx`. Returns whether its engine has announced that it leaves.
    pub fn post(&mut self, now: u64, ctx: ContextId, work: u64) -> bool {
        let posted = self.posted.entry(ctx).or_default();
        *posted += work;
        for slot in &mut self.slots {
            let own = slot.running.is_some_and(|program| program.job.0 == ctx);
            match slot.engine {
                Engine::Working { since } if own && slot.queues => {
                    slot.progress = (slot.progress + now.saturating_sub(since)).min(slot.supply);
                    slot.engine = Engine::Working {
                        since: since.max(now),
                    };
                    slot.supply = *posted;
                }
                Engine::Restoring { .. } if own && slot.queues => slot.supply = *posted,
                _ => {}
            }
        }
        self.idle.contains(&ctx)
    }

    pub fn next(&self) -> Option<u64> {
        if self.gone {
            return None;
        }
        self.slots.iter().filter_map(CardSlot::next).min()
    }

    /// Lets the engines work until `now`. Returns the slots that raise an interrupt.
    pub fn advance(&mut self, now: u64) -> Vec<usize> {
        let mut irqs = Vec::new();
        if self.gone {
            return irqs;
        }
        for i in 0..self.slots.len() {
            while self.slots[i].next().is_some_and(|next| next <= now) {
                self.step(i, &mut irqs);
            }
        }
        irqs
    }

    fn step(&mut self, i: usize, irqs: &mut Vec<usize>) {
        let slot = &mut self.slots[i];
        let program = slot.running.unwrap();
        let at = slot.next().unwrap();
        match slot.engine {
            Engine::Restoring { until } => {
                slot.restored = (slot.restore / 1_000).min(0xf_ffff);
                slot.engine = Engine::Working { since: until };
                slot.note_work(until);
            }
            Engine::Working { since } if slot.is_limited(since, at) => {
                let boundary = slot.take_limit();
                irqs.extend(self.pause(at, i, boundary));
            }
            Engine::Working { .. } if slot.boundary.is_some_and(|stop| stop < program.work) => {
                slot.progress = slot.boundary.take().unwrap();
                self.save(i, at);
            }
            Engine::Working { .. } if slot.supply < program.work => {
                slot.progress = slot.supply;
                slot.empty = true;
                self.idle.insert(program.job.0);
                self.save(i, at);
            }
            Engine::Working { .. } => {
                slot.progress = program.work;
                self.finish(i, at, irqs);
            }
            Engine::Saving { .. } if slot.torn => {
                slot.torn = false;
                slot.bits = 1 << 9;
                slot.engine = Engine::Finished;
                self.lose(program.job);
                self.ended(i, at, LeftReason::SnapshotError, irqs);
            }
            Engine::Saving { .. } => {
                slot.engine = Engine::Paused;
                slot.bits = u64::from(slot.empty) << 10;
                let snapshot = Snapshot {
                    job: program.job,
                    progress: slot.progress,
                    complete: true,
                    resumed: false,
                };
                let reason = match slot.empty {
                    true => LeftReason::Empty,
                    false => LeftReason::Paused,
                };
                self.memory.insert(program.job.0, snapshot);
                self.ended(i, at, reason, irqs);
            }
            _ => unreachable!(),
        }
    }

    fn finish(&mut self, i: usize, at: u64, irqs: &mut Vec<usize>) {
        let slot = &mut self.slots[i];
        let job = slot.running.unwrap().job;
        slot.engine = Engine::Finished;
        slot.note_stop(at);
        let mut reason = LeftReason::Finished;
        if slot.fault && slot.base.is_none() {
            slot.fault = false;
            slot.bits = 1 << 8;
            reason = LeftReason::Fault;
            self.guilty.insert(job);
        } else {
            assert!(self.finished.insert(job), "{job:?} finished twice");
        }
        self.ended(i, at, reason, irqs);
    }

    fn ended(&mut self, i: usize, at: u64, reason: LeftReason, irqs: &mut Vec<usize>) {
        if self.slots[i].relay.is_some() {
            return self.leave(i, at, reason, irqs);
        }
        let slot = &mut self.slots[i];
        match slot.base {
            Some((_, drain)) => slot.dma = Some((slot.running.unwrap().job.0, at + drain)),
            None if slot.lose_irqs > 0 => slot.lose_irqs -= 1,
            None => irqs.push(i),
        }
    }

    pub fn read_status(&mut self, now: u64, i: usize) -> Status {
        if self.gone {
            return Status::ALL_ONES;
        }
        let slot = &mut self.slots[i];
        slot.status_reads += 1;
        slot.unflushed = false;
        if std::mem::take(&mut slot.posted) {
            slot.held_at = Some(now);
        }
        let raw = match slot.lag {
            Some((until, old)) if until > now => old,
            _ => slot.raw(),
        };
        Status::from_raw(raw)
    }

    fn window_rules(&self, now: u64, i: usize) {
        assert!(!self.gone, "write to a card that is gone");
        let slot = &self.slots[i];
        assert!(!slot.active(), "window_busy: slot {i} is at work");
        assert!(!slot.unflushed, "window of slot {i} before the flush");
        assert!(!slot.draining(now), "start_undrained: window of slot {i}");
        if let (Some((settle, _)), Some(at)) = (slot.base, slot.held_at) {
            assert!(now >= at + settle, "start_undrained: window of slot {i}");
        }
    }

    pub fn load(&mut self, now: u64, i: usize, program: Program) {
        self.window_rules(now, i);
        self.slots[i].window = Some(program);
    }

    pub fn unload(&mut self, now: u64, i: usize) {
        self.window_rules(now, i);
        self.slots[i].window = None;
    }

    pub fn start(&mut self, now: u64, i: usize, ctx: ContextId, resume: bool) {
        self.window_rules(now, i);
        for (j, other) in self.slots.iter().enumerate() {
            let same = other.running.is_some_and(|program| program.job.0 == ctx);
            assert!(j == i || !same || !other.active(), "{ctx:?} in two slots");
        }
        let slot = &mut self.slots[i];
        let program = slot.window.expect("START without a window");
        assert_eq!(program.job.0, ctx, "START with another's window");
        assert!(!slot.in_reset, "start_busy: slot {i} in reset");
        if slot.base.is_some() {
            assert_eq!(slot.engine, Engine::Idle, "base START without reset");
        }
        assert!(
            !self.finished.contains(&program.job),
            "finished, and run again"
        );
        if slot.ignore_starts > 0 && slot.relay.is_none() {
            slot.ignore_starts -= 1;
            self.guilty.insert(program.job);
            return;
        }
        slot.lag = (slot.start_lag > 0).then_some((now + slot.start_lag, slot.raw()));
        slot.count = slot.count.wrapping_add(1);
        slot.bits = 0;
        slot.restored = 0;
        slot.boundary = None;
        slot.running = Some(program);
        slot.empty = false;
        slot.supply = u64::MAX;
        if slot.queues {
            slot.supply = *self.posted.entry(ctx).or_default();
            self.idle.remove(&ctx);
        }
        if slot.hang {
            self.guilty.insert(program.job);
        }
        if resume {
            let fresh = slot.fresh || !slot.reset_before_resume || slot.relay.is_some();
            assert!(fresh, "resume_unreset: slot {i}");
            let snapshot = self
                .memory
                .get_mut(&ctx)
                .expect("resume without a snapshot");
            assert!(snapshot.complete, "resume_incomplete");
            assert!(!snapshot.resumed, "resume_stale: {:?}", program.job);
            assert_eq!(snapshot.job, program.job, "resume_stale: older job");
            snapshot.resumed = true;
            slot.progress = snapshot.progress;
            slot.engine = Engine::Restoring {
                until: now + slot.restore,
            };
        } else {
            assert!(
                self.started.insert(program.job),
                "{:?} run twice",
                program.job
            );
            slot.progress = 0;
            slot.engine = Engine::Working { since: now };
        }
        slot.fresh = false;
    }

    pub fn pause(&mut self, now: u64, i: usize, boundary: bool) -> Vec<usize> {
        assert!(!self.gone, "write to a card that is gone");
        let mut irqs = Vec::new();
        let slot = &mut self.slots[i];
        let Engine::Working { since } = slot.engine else {
            slot.pauses_dropped += 1;
            return irqs;
        };
        assert!(
            !boundary || slot.granularity != PreemptGranularity::Anywhere,
            "PAUSE_AT_BOUNDARY to an engine that has none"
        );
        let program = slot.running.unwrap();
        if slot.ignore_pauses > 0 || slot.hang {
            slot.ignore_pauses = slot.ignore_pauses.saturating_sub(1);
            slot.pauses_dropped += 1;
            if slot.ignore_pauses > 100 {
                self.guilty.insert(program.job);
            }
            return irqs;
        }
        if slot.finish_on_pause {
            slot.finish_on_pause = false;
            slot.progress = program.work;
            self.finish(i, now, &mut irqs);
            return irqs;
        }
        slot.progress = (slot.progress + (now - since)).min(program.work.min(slot.supply));
        if boundary || slot.granularity == PreemptGranularity::BoundaryOnly {
            slot.engine = Engine::Working { since: now };
            slot.boundary = Some(slot.progress.next_multiple_of(slot.block));
        } else {
            self.save(i, now);
        }
        irqs
    }

    fn save(&mut self, i: usize, at: u64) {
        let slot = &mut self.slots[i];
        let program = slot.running.unwrap();
        slot.boundary = None;
        slot.note_stop(at);
        slot.engine = Engine::Saving {
            until: at + slot.save,
        };
        let torn = Snapshot {
            job: program.job,
            progress: 0,
            complete: false,
            resumed: false,
        };
        self.memory.insert(program.job.0, torn);
    }

    pub fn reset(&mut self, now: u64, i: usize, hold: bool) {
        assert!(!self.gone, "write to a card that is gone");
        let slot = &mut self.slots[i];
        if !hold {
            slot.in_reset = false;
            return;
        }
        slot.held_at = Some(now);
        slot.posted = true;
        if slot.ignore_resets > 0 && (slot.active() || slot.base.is_some()) {
            slot.ignore_resets -= 1;
            if slot.ignore_resets > 100 {
                self.guilty.extend(slot.running.map(|program| program.job));
            }
            return;
        }
        if let (Some((_, drain)), true) = (slot.base, slot.active()) {
            slot.dma = Some((slot.running.unwrap().job.0, now + drain));
        }
        slot.unflushed |= slot.base.is_none() && slot.active();
        slot.engine = Engine::Idle;
        slot.reset_relay();
        slot.bits = 0;
        slot.hang = false;
        slot.lag = None;
        slot.in_reset = true;
        slot.fresh = true;
    }

    /// Is there a complete snapshot of the job that was not restored yet?
    pub fn can_resume(&self, job: Job) -> bool {
        let snapshot = self.memory.get(&job.0);
        snapshot.is_some_and(|s| s.job == job && s.complete && !s.resumed)
    }

    pub fn set_hang(&mut self, i: usize) {
        let slot = &mut self.slots[i];
        if !slot.hang {
            // Progress up to now counts.
            slot.hang = true;
            if slot.active() {
                self.guilty.extend(slot.running.map(|program| program.job));
            }
        }
    }

    /// May the memory of `ctx` be unmapped?
    pub fn released(&mut self, now: u64, ctx: ContextId) {
        if !self.gone {
            for (i, slot) in self.slots.iter().enumerate() {
                let on = slot.running.is_some_and(|program| program.job.0 == ctx);
                assert!(!(on && slot.active()), "released at work on slot {i}");
                assert!(
                    !(on && slot.unflushed),
                    "released before the flush of slot {i}"
                );
                let dma = slot.dma.is_some_and(|(of, until)| of == ctx && until > now);
                assert!(!dma, "released while DMA is under way on slot {i}");
                let open = slot.window.is_some_and(|program| program.job.0 == ctx);
                assert!(!open, "released with its window open on slot {i}");
            }
        }
        self.memory.remove(&ctx);
    }
}

/// The additional state of a slot with a relay (docs/registers.md, Relay): orders come in, records
/// go out.
#[derive(Clone, Debug, Default)]
pub struct Relay {
    /// The order for the run on the slot.
    held: Option<Order>,
    /// The record of each run that has ended, until the driver has read it.
    records: Vec<RunRecord>,
    began: u64,
    worked: Option<u64>,
    stopped: Option<u64>,
    /// How long the job may work, and whether it stops at a boundary after that.
    limit: Option<(u64, bool)>,
    /// The job on the slot is stopped without being saved.
    drops: bool,
    /// Orders that were dropped because they refer to another run.
    pub dropped: u32,
    /// Runs that followed another one without the slot becoming vacant.
    pub relayed: u32,
    // Misbehaviour, switched on by tests.
    pub lose_records: u32,
    pub ignore_orders: u32,
    /// The next record claims that this context was taken.
    pub lies: Option<usize>,
    /// Records report the longest possible times.
    pub exaggerates: bool,
}

impl Card {
    /// Writes the entry of a context, which the card reads from memory.
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

    /// Returns the context that is named in the order that a slot holds.
    fn named_on(&self, i: usize) -> Option<ContextId> {
        let relay = self.slots[i].relay.as_ref()?;
        Some(relay.held?.next?.ctx)
    }

    /// Handles the arrival of an order.
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
            // The order refers to a START that was ignored. The scheduler then resets the slot, and
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

    /// Stops the run on a slot.
    fn stop(&mut self, now: u64, i: usize, stop: Stop, irqs: &mut Vec<usize>) {
        let slot = &mut self.slots[i];
        let ignores = slot.hang || slot.ignore_pauses > 100;
        // An order is a level, not a pulse: an order that was ignored for a while is obeyed later.
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

    /// Ends the run on a slot that is quiescent: writes a record, and starts or resumes the context
    /// that is named.
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
        };
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

    /// Returns the record of a run, if the card has written it.
    pub fn record(&mut self, i: usize, run: u32) -> Option<RunRecord> {
        let relay = self.slots[i].relay.as_mut()?;
        let at = relay.records.iter().position(|record| record.run == run)?;
        Some(relay.records.remove(at))
    }
}

/// The entries of contexts, which the card reads from memory.
pub type Entries = HashMap<ContextId, Program>;

impl CardSlot {
    /// Returns when the job has worked for as long as the held order allows.
    pub fn limit(&self) -> Option<u64> {
        let relay = self.relay.as_ref()?;
        Some(relay.worked? + relay.limit?.0)
    }

    /// Does the limit, or `since` if that is later, fall on `at`?
    pub fn is_limited(&self, since: u64, at: u64) -> bool {
        self.limit().is_some_and(|limit| limit.max(since) == at)
    }

    /// Removes the limit, which has passed. Returns whether the job stops at a boundary.
    pub fn take_limit(&mut self) -> bool {
        let limit = self.relay.as_mut().and_then(|relay| relay.limit.take());
        limit.is_some_and(|(_, boundary)| boundary)
    }

    /// Notes that the job begins to work.
    pub fn note_work(&mut self, at: u64) {
        if let Some(relay) = &mut self.relay {
            relay.worked = Some(at);
        }
    }

    /// Notes that the job stops working.
    pub fn note_stop(&mut self, at: u64) {
        if let Some(relay) = &mut self.relay {
            relay.stopped = Some(at);
        }
    }

    /// Resets the relay: the held order is void, and no record of the run follows.
    pub fn reset_relay(&mut self) {
        if let Some(relay) = &mut self.relay {
            relay.held = None;
        }
    }
}
