// SPDX-License-Identifier: GPL-2.0-or-later
//! What the register side and the thread of a slot share.

use super::relay::Relay;
use crate::config::Settings;
use crate::engine::AppRegs;
use crate::event;
use crate::event::{now_ns, us};
use crate::misbehave::Misbehaviour;
use crate::regs::{status, TAG};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// How a slot came to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Rest {
    Idle,
    /// `empty`: for want of work.
    Paused {
        empty: bool,
    },
    Finished {
        fault: bool,
        snapshot_error: bool,
    },
}

/// What a slot does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Rest(Rest),
    /// Reads table entry and registers of a context.
    Loading,
    Restoring,
    Running,
    Saving,
    Ending,
}

impl Phase {
    pub(super) fn busy(self) -> bool {
        !matches!(self, Self::Rest(_))
    }

    /// For the log.
    pub(super) fn told(self) -> event::Phase {
        match self {
            Self::Rest(Rest::Idle) => event::Phase::Idle,
            Self::Rest(Rest::Paused { .. }) => event::Phase::Paused,
            Self::Rest(Rest::Finished { .. }) => event::Phase::Finished,
            Self::Loading | Self::Restoring => event::Phase::Restoring,
            Self::Running => event::Phase::Running,
            Self::Saving => event::Phase::Saving,
            Self::Ending => event::Phase::Ending,
        }
    }

    /// How the job failed: fault, snapshot error.
    pub(super) fn errors(self) -> (bool, bool) {
        match self {
            Self::Rest(Rest::Finished {
                fault,
                snapshot_error,
            }) => (fault, snapshot_error),
            _ => (false, false),
        }
    }
}

/// What the thread of a slot is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thread {
    /// It has no job.
    Free,
    /// It has one.
    Working,
    /// It has one that was reset away, and has not seen it yet.
    Aborted,
}

/// A START that was accepted: the engine samples its registers then.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) resume: bool,
    pub(super) written: AppRegs,
    pub(super) reads: AppRegs,
    /// When the START was accepted. A job that comes from another host is accepted anew.
    #[serde(skip, default = "now_ns")]
    pub(super) at: u64,
}

impl Job {
    pub(super) fn tag(&self) -> u64 {
        self.written.get(TAG)
    }
}

/// What the thread of a slot is to begin.
#[derive(Clone, Debug)]
pub(super) enum Queued {
    /// A START.
    Job(Job),
    /// A context that an order named.
    Context(u64),
    /// A job that ran when the card was stopped, and the state of the engine.
    Stopped(Job, Vec<u8>),
}

/// Where a PAUSE stops the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Stop {
    /// At its next boundary.
    AtBoundary,
    /// Where it stands.
    AtOnce,
}

/// A DMA write that was issued and has not arrived.
#[derive(Clone, Debug)]
pub(super) struct Posted {
    pub(super) addr: u64,
    pub(super) data: Vec<u8>,
    pub(super) tag: u64,
    pub(super) due: u64,
}

/// The state of a slot.
pub(super) struct State {
    pub(super) settings: Settings,
    pub(super) misbehaviour: Misbehaviour,
    pub(super) phase: Phase,
    pub(super) in_reset: bool,
    pub(super) start_count: u32,
    /// Completion events since power-on.
    pub(super) events: u64,
    /// What the last `START_RESUME` took to restore, in microseconds, for the status.
    pub(super) restore_us: u64,
    /// Base: until when the status reads the old value, and that value.
    pub(super) lag: Option<(u64, u64)>,
    /// Write side of the application registers.
    pub(super) written: AppRegs,
    /// Read side of the application registers.
    pub(super) reads: AppRegs,
    /// Byte address of the snapshot.
    pub(super) snapshot: u64,
    pub(super) fault_info: u64,
    pub(super) fault_addr: u64,
    /// A PAUSE that the engine has not followed yet.
    pub(super) pause: Option<Stop>,
    /// A START or an order that the thread has not seen yet.
    pub(super) queued: Option<Queued>,
    pub(super) thread: Thread,
    pub(super) reset_at: Option<u64>,
    /// What one read of the status shows of a save that was reset away, and from when on.
    pub(super) late: Option<(u64, u64)>,
    /// Writes of past jobs that have not arrived.
    pub(super) posted: VecDeque<Posted>,
    pub(super) relay: Relay,
    /// The card is stopped: the thread begins nothing, and puts its job back into `queued`.
    pub(super) frozen: bool,
    pub(super) quit: bool,
}

impl State {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            misbehaviour: Misbehaviour::default(),
            phase: Phase::Rest(Rest::Idle),
            in_reset: false,
            start_count: 0,
            events: 0,
            restore_us: 0,
            lag: None,
            written: AppRegs::default(),
            reads: AppRegs::default(),
            snapshot: 0,
            fault_info: 0,
            fault_addr: 0,
            pause: None,
            queued: None,
            thread: Thread::Free,
            reset_at: None,
            late: None,
            posted: VecDeque::new(),
            relay: Relay::default(),
            frozen: false,
            quit: false,
        }
    }

    pub(super) fn status(&self) -> u64 {
        match self.phase {
            Phase::Rest(Rest::Idle) => status::IDLE,
            Phase::Rest(Rest::Paused { empty: false }) => status::PAUSED,
            Phase::Rest(Rest::Paused { empty: true }) => status::PAUSED | status::EMPTY,
            Phase::Rest(Rest::Finished {
                fault,
                snapshot_error,
            }) => {
                let bit = |on, bit| if on { bit } else { 0 };
                status::FINISH
                    | bit(fault, status::FAULT)
                    | bit(snapshot_error, status::SNAPSHOT_ERROR)
            }
            _ => status::RUNNING,
        }
    }

    /// What a read of the status at `t` shows of an answer that was left behind: once.
    pub(super) fn take_late(&mut self, t: u64) -> Option<u64> {
        let (_, answer) = self.late.take_if(|(due, _)| *due <= t)?;
        self.misbehaviour.late_paused = None;
        Some(answer)
    }

    pub(super) fn aborted(&self) -> bool {
        self.thread == Thread::Aborted
    }

    /// Whether what is under way is to be given up: a job that was reset away, or a restore that an
    /// order aborts.
    pub(super) fn cut_short(&self) -> bool {
        self.aborted() || self.phase == Phase::Restoring && self.relay.at_zero()
    }

    /// The engine begins to work.
    pub(super) fn works(&mut self, now: u64) {
        self.phase = Phase::Running;
        if let Some(run) = self.relay.run.as_mut() {
            run.worked = now;
        }
    }

    /// The engine stops to work, if it did.
    pub(super) fn stops(&mut self, now: u64) {
        let run = self.relay.run.as_mut();
        if let Some(run) = run.filter(|run| run.worked != 0 && run.stopped == 0) {
            run.stopped = now;
        }
    }

    /// Whether the stop that has begun saves nothing.
    pub(super) fn drops(&self) -> bool {
        self.relay.run.as_ref().is_some_and(|run| run.drops)
    }

    /// Whether the driver has waited long enough since it reset the slot.
    pub(super) fn settled(&self, t: u64) -> bool {
        self.reset_at
            .is_some_and(|at| t >= at.saturating_add(us(self.settings.settle_us)))
    }
}
