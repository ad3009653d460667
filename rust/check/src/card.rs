// SPDX-License-Identifier: GPL-2.0

//! A slot of the card as docs/registers.md describes it, and its relay. The steps that the slot
//! takes by itself may happen at any time, or never.

use fermata_sched_host::sched::{Duration, NextRun, Order, RunRecord, Stop};

use crate::key::Key;

/// What the engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Idle,
    Restoring,
    Working,
    Saving,
    Paused,
    Finished,
}

/// The resets that the slot will ignore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IgnoredResets {
    None,
    Next,
    All,
}

pub(crate) const FAULT: u64 = 1 << 8;
pub(crate) const SNAPSHOT_ERROR: u64 = 1 << 9;
pub(crate) const EMPTY: u64 = 1 << 10;

/// A slot. Contexts are named by their index.
#[allow(
    clippy::struct_excessive_bools,
    reason = "independent switches of a card"
)]
#[derive(Clone, Debug)]
pub(crate) struct CardSlot {
    pub(crate) engine: Engine,
    /// The context whose window and registers are loaded.
    pub(crate) window: Option<usize>,
    /// The context whose job was started last, and may still access memory (`may_touch`).
    pub(crate) last: Option<usize>,
    /// The starvation boost has started the job.
    pub(crate) boosted: bool,
    pub(crate) bits: u64,
    pub(crate) count: u32,
    /// The status before the last START.
    pub(crate) old: u64,
    /// Base: the status still shows `old`.
    pub(crate) lag: bool,
    pub(crate) started: u64,
    pub(crate) in_reset: bool,
    /// No START since the last reset.
    pub(crate) fresh: bool,
    /// Base: DMA may be under way until the settle time after a reset has passed.
    pub(crate) dirty: bool,
    /// Base: the write of the reset bit is posted, and no read has flushed it.
    pub(crate) posted: bool,
    /// Base: when the reset reached the card.
    pub(crate) arrived: Option<u64>,
    /// irq and relay: reset while working, and not flushed by a read since.
    pub(crate) unflushed: bool,
    /// It leaves by itself, because its queue is empty.
    pub(crate) empty: bool,
    /// The job was told to stop at its next boundary.
    pub(crate) asked: bool,
    /// The job is stopped before its boundary, for urgent work that has waited for long enough.
    pub(crate) bounded: bool,
    /// The results of the last run were read.
    pub(crate) captured: bool,
    /// PAUSEs written since the last START, counted up to four.
    pub(crate) pauses: u8,
    pub(crate) first_pause: u64,
    pub(crate) quarantined: bool,
    // Misbehaviour.
    pub(crate) hang: bool,
    pub(crate) lose_pause: bool,
    pub(crate) lose_start: bool,
    pub(crate) ignored_resets: IgnoredResets,
    pub(crate) relay: Relay,
    // Interrupt and timer, which call the machine.
    pub(crate) irq: bool,
    pub(crate) timer: Option<u64>,
}

impl CardSlot {
    pub(crate) fn new() -> Self {
        Self {
            engine: Engine::Idle,
            window: None,
            last: None,
            boosted: false,
            bits: 0,
            count: 0,
            old: 0,
            lag: false,
            started: 0,
            in_reset: false,
            fresh: true,
            dirty: false,
            posted: false,
            arrived: None,
            unflushed: false,
            empty: false,
            asked: false,
            bounded: false,
            captured: false,
            pauses: 0,
            first_pause: 0,
            quarantined: false,
            hang: false,
            lose_pause: false,
            lose_start: false,
            ignored_resets: IgnoredResets::None,
            relay: Relay::default(),
            irq: false,
            timer: None,
        }
    }

    /// Handles a START of a context, which the slot accepts.
    pub(crate) fn begin(&mut self, index: usize, resume: bool, base: bool, now: u64) {
        self.old = self.raw(base);
        self.lag = base;
        self.started = now;
        self.count = self.count.wrapping_add(1);
        self.bits = 0;
        self.last = Some(index);
        self.fresh = false;
        self.dirty = base;
        self.arrived = None;
        self.captured = false;
        self.asked = false;
        self.empty = false;
        self.engine = if resume {
            Engine::Restoring
        } else {
            Engine::Working
        };
    }

    /// Notes that the driver begins a run, which was not told to pause.
    pub(crate) fn begin_told(&mut self) {
        self.pauses = 0;
        self.bounded = false;
    }

    /// Sets the state after power-on; the machine's timer stays armed.
    pub(crate) fn lose_state(&mut self) {
        *self = Self {
            timer: self.timer,
            ..Self::new()
        };
    }

    /// Sets the state after power-on, but keeps the memory that a quarantined slot may still reach.
    pub(crate) fn be_cut_off(&mut self) {
        let (quarantined, stuck) = (self.quarantined, self.relay.stuck);
        self.lose_state();
        self.quarantined = quarantined;
        self.relay.stuck = stuck;
    }

    pub(crate) fn active(&self) -> bool {
        matches!(
            self.engine,
            Engine::Restoring | Engine::Working | Engine::Saving
        )
    }

    /// Is a misbehaviour switched on?
    pub(crate) fn misbehaves(&self) -> bool {
        let dead = self.ignored_resets == IgnoredResets::All && self.quarantined;
        let resists = self.ignored_resets != IgnoredResets::None && !dead;
        self.hang || self.lose_pause || self.lose_start || resists || self.relay.misbehaves()
    }

    /// May DMA of the last job still occur?
    pub(crate) fn may_touch(&self, now: u64, settle: u64) -> bool {
        let settled = self.arrived.is_some_and(|at| now >= at + settle);
        self.active() || self.unflushed || (self.dirty && !settled)
    }

    /// Returns the status register, without the side effects of reading it.
    pub(crate) fn raw(&self, base: bool) -> u64 {
        let phase = match self.engine {
            Engine::Idle => 0,
            Engine::Finished => 2,
            Engine::Paused => 4,
            _ => 1,
        };
        if !base {
            phase | self.bits | (u64::from(self.count) << 32)
        } else if self.lag {
            self.old
        } else {
            phase
        }
    }

    /// Adds the slot to a key. `vacant`: the machine takes the slot for vacant, so that the last
    /// context does not matter.
    pub(crate) fn key(&self, key: &mut Key, expected: u64, base: bool, settle: u64, vacant: bool) {
        let ended = matches!(self.engine, Engine::Paused | Engine::Finished) && !vacant;
        let last = self.last.filter(|_| !vacant || self.active());
        let bits = if vacant { 0 } else { self.bits };
        let owner = |owner: Option<usize>| owner.map_or(15, |index| index as u64);
        let mut flags = 0;
        for flag in [
            self.lag,
            self.in_reset,
            self.fresh,
            self.dirty,
            self.posted,
            self.unflushed,
            self.empty,
            self.asked,
            self.bounded,
            self.captured && ended,
            self.quarantined,
            self.hang,
            self.lose_pause,
            self.lose_start,
            self.irq,
        ] {
            flags = flags << 1 | u64::from(flag);
        }
        key.word(flags);
        key.word(
            self.engine as u64
                | owner(self.window) << 4
                | owner(last) << 8
                | u64::from(if self.active() { self.pauses } else { 0 }) << 12
                | (self.ignored_resets as u64) << 16
                | bits << 20,
        );
        key.word(u64::from(self.count).wrapping_sub(expected));
        key.word(if base { self.old } else { 0 });
        key.word(u64::from(self.timer.is_some()));
        if let Some(at) = self.timer {
            key.deadline(at);
        }
        if let (true, Some(at)) = (self.dirty, self.arrived) {
            key.deadline(at + settle);
        }
    }
}

// The relay of a slot: on the card's side the held order and the records of runs; on the driver's
// side what the slot was told.

/// A record that the driver has not read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unread {
    pub(crate) record: RunRecord,
    /// Misbehaviour: a read of the status does not flush it to memory.
    pub(crate) late: bool,
}

/// What the driver has told a slot about the run that the driver knows of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    /// The order that was posted last.
    pub(crate) posted: Option<Order>,
    /// The contexts that the card may have taken, a bit for each.
    pub(crate) named: u8,
}

/// The additional state of a slot with a relay.
#[allow(
    clippy::struct_excessive_bools,
    reason = "independent facts and switches"
)]
#[derive(Clone, Debug, Default)]
pub(crate) struct Relay {
    pub(crate) held: Option<Order>,
    /// The run on the slot began with `START_RESUME`.
    pub(crate) resumed: bool,
    /// When the job began to work, and to stop.
    pub(crate) worked: u64,
    pub(crate) stopped: u64,
    /// Records that the driver has not read, the oldest first.
    pub(crate) records: Vec<Unread>,
    pub(crate) told: Told,
    /// A reset was written, and its completion is not known.
    pub(crate) resetting: bool,
    /// Contexts that the quarantined slot may reach, a bit for each.
    pub(crate) stuck: u8,
    // Misbehaviour.
    pub(crate) lose_record: bool,
    pub(crate) delay_record: bool,
    /// The next entry cannot be read; the entry of the run on the slot could not be read.
    pub(crate) refuse: bool,
    pub(crate) refused: bool,
    /// The run whose record is lost, or too late.
    pub(crate) lost: Option<u32>,
    /// The order that was posted last did not count.
    pub(crate) ignored: bool,
}

impl Relay {
    /// Does the run on the slot stop at the end of the order's time?
    pub(crate) fn has_limit(&self) -> bool {
        self.held.is_some_and(|order| is_later(order.stop))
    }

    /// Returns how many of the records are in memory after a read of the status, which flushes
    /// them.
    pub(crate) fn pushed(&self) -> usize {
        let pushed = self.records.iter().take_while(|unread| !unread.late);
        pushed.count()
    }

    /// Removes the record of a run from memory, and returns it.
    pub(crate) fn take_record(&mut self, run: u32) -> Option<RunRecord> {
        let first = self.records.first()?.record;
        if first.run != run {
            return None;
        }
        self.records.remove(0);
        Some(first)
    }

    /// Resets the relay: no order is held, and unread records are of runs that the driver no longer
    /// waits for.
    pub(crate) fn reset(&mut self) {
        *self = Self {
            told: self.told,
            resetting: self.resetting,
            ..Self::default()
        };
    }

    /// Is a misbehaviour under way?
    pub(crate) fn misbehaves(&self) -> bool {
        let switched = self.lose_record || self.delay_record || self.refuse || self.refused;
        switched || self.lost.is_some() || self.ignored
    }

    /// Adds the relay to a key. `count`: the number of the run on the slot.
    pub(crate) fn key(&self, key: &mut Key, count: u32, active: bool) {
        let flags = [
            self.resumed && active,
            self.resetting,
            self.lose_record,
            self.delay_record,
            self.refuse,
            self.refused,
            self.ignored,
        ];
        let bits = flags
            .into_iter()
            .fold(0, |bits, flag| bits << 1 | u64::from(flag));
        let masks = u64::from(self.told.named) << 8 | u64::from(self.stuck) << 16;
        key.word(bits | masks | (self.records.len() as u64) << 32);
        let behind = |run: u32| u64::from(count.wrapping_sub(run)) | 1 << 32;
        key.word(self.lost.map_or(0, behind));
        key.word(self.held.map_or(0, |order| order_word(&order, count)));
        for Unread { record, late } in &self.records {
            let next = record.next.map_or(0, |next| next as u64 + 1);
            let run = u64::from(count.wrapping_sub(record.run));
            let late = u64::from(*late) << 16;
            key.word(record.reason as u64 | next << 8 | late | run << 32);
        }
    }
}

/// Does a run with this order still work for a while?
pub(crate) fn is_later(stop: Stop) -> bool {
    matches!(stop, Stop::Paused { after, .. } if after != Duration::ZERO)
}

/// Does a run with this order stop at once?
pub(crate) fn is_at_once(stop: Stop) -> bool {
    matches!(stop, Stop::Dropped | Stop::Paused { .. }) && !is_later(stop)
}

/// Returns the index of the context that is named in an order.
pub(crate) fn named(order: &Order) -> Option<usize> {
    order.next.map(|next| next.ctx.index())
}

/// Returns an order as a word of a key; `count`: the number of the run on its slot.
pub(crate) fn order_word(order: &Order, count: u32) -> u64 {
    let stop = match order.stop {
        Stop::Vacant => 1,
        Stop::Never => 2,
        Stop::Dropped => 3,
        Stop::Paused { boundary, .. } => {
            4 | u64::from(boundary) | u64::from(is_later(order.stop)) << 1
        }
    };
    let next = order.next.map_or(0, |NextRun { ctx, resume }| {
        (ctx.index() as u64 + 1) << 4 | u64::from(resume) << 3
    });
    stop | next << 4 | u64::from(order.after.wrapping_sub(count)) << 32
}
