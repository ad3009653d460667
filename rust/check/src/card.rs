// SPDX-License-Identifier: GPL-2.0

//! A slot of the card by docs/card.md. What it does of itself it may do at any time, or never.

use crate::key::Key;
use crate::relay::Relay;

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
    /// Whose window and registers are loaded.
    pub(crate) window: Option<usize>,
    /// Whose job was started last, and may still touch memory (`may_touch`).
    pub(crate) last: Option<usize>,
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
    /// Base: the write of the reset bit is posted, and no read has pushed it.
    pub(crate) posted: bool,
    /// Base: when the reset reached the card.
    pub(crate) arrived: Option<u64>,
    /// Fermata: reset at work, and not flushed by a read since.
    pub(crate) unflushed: bool,
    /// It leaves by itself, because its queue is empty.
    pub(crate) empty: bool,
    /// It was told to stop at its next boundary.
    pub(crate) asked: bool,
    /// It is stopped before its boundary, for one that has waited for long enough.
    pub(crate) bounded: bool,
    /// The results of the last run were read.
    pub(crate) captured: bool,
    /// PAUSEs written since the last START; counted up to four.
    pub(crate) pauses: u8,
    pub(crate) first_pause: u64,
    pub(crate) quarantined: bool,
    // Misbehaviour.
    pub(crate) hang: bool,
    pub(crate) lose_pause: bool,
    pub(crate) lose_start: bool,
    pub(crate) ignored_resets: IgnoredResets,
    pub(crate) relay: Relay,
    // The way to the machine.
    pub(crate) irq: bool,
    pub(crate) timer: Option<u64>,
}

impl CardSlot {
    pub(crate) fn new() -> Self {
        Self {
            engine: Engine::Idle,
            window: None,
            last: None,
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

    /// START is written for a context, and taken.
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

    /// The driver begins a run: it has told nobody there to pause.
    pub(crate) fn begin_told(&mut self) {
        self.pauses = 0;
        self.bounded = false;
    }

    /// As after power-on; the machine's timer runs on.
    pub(crate) fn lose_state(&mut self) {
        *self = Self {
            timer: self.timer,
            ..Self::new()
        };
    }

    /// As after power-on, with the memory that a slot which is out of use may still reach.
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

    /// May DMA of the last job still come?
    pub(crate) fn may_touch(&self, now: u64, settle: u64) -> bool {
        let settled = self.arrived.is_some_and(|at| now >= at + settle);
        self.active() || self.unflushed || (self.dirty && !settled)
    }

    /// The status register, without the effects of reading it.
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

    /// `vacant`: for the machine, nobody is on it; who was there last does not matter then.
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
