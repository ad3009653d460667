// SPDX-License-Identifier: GPL-2.0-or-later
//! The state that the register side and the thread of a slot share; and the state of a slot of a
//! stopped card, which another card can take.

use super::relay::{Relay, Run};
use super::snapshot::PAGE;
use super::Slot;
use crate::config::Settings;
use crate::engine::AppRegs;
use crate::event::{self, now_ns, us};
use crate::misbehave::Misbehaviour;
use crate::regs::{status, IOVA_BITS, TAG};
use crate::relay::{Order, Tables};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::Instant;

/// How a slot came to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Rest {
    Idle,
    /// `empty`: because its queue was empty.
    Paused {
        empty: bool,
    },
    Finished {
        fault: bool,
        snapshot_error: bool,
    },
}

/// What a slot is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Rest(Rest),
    /// Reads the table entry and the registers of a context.
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

    /// Returns the phase as the log names it.
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

    /// Returns how the job failed: by a fault, by a snapshot error.
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

/// What the thread of a slot is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thread {
    /// It has no job.
    Free,
    /// It has a job.
    Working,
    /// It has a job that was aborted by a reset, and has not noticed yet.
    Aborted,
}

/// An accepted START, with the registers as the engine sampled them at that time.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) resume: bool,
    pub(super) written: AppRegs,
    pub(super) reads: AppRegs,
    /// When the START was accepted. A job from another host counts as accepted when it arrives.
    #[serde(skip, default = "now_ns")]
    pub(super) at: u64,
}

impl Job {
    pub(super) fn tag(&self) -> u64 {
        self.written.get(TAG)
    }
}

/// What the thread of a slot begins next.
#[derive(Clone, Debug)]
pub(super) enum Queued {
    /// A START.
    Job(Job),
    /// A context that an order named.
    Context(u64),
    /// A job that was running when the card was stopped, and the state of the engine.
    Stopped(Job, Vec<u8>),
}

/// Where a PAUSE stops the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Stop {
    /// At its next boundary.
    AtBoundary,
    /// Wherever it is.
    AtOnce,
}

/// A DMA access that was issued and has not arrived yet.
#[derive(Clone, Debug)]
pub(super) struct Posted {
    pub(super) addr: u64,
    /// What to write, or room for what is read.
    pub(super) data: Vec<u8>,
    pub(super) write: bool,
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
    /// Base: until when the status reads an old value, and that value.
    pub(super) lag: Option<(u64, u64)>,
    /// Write side of the application registers.
    pub(super) written: AppRegs,
    /// Read side of the application registers.
    pub(super) reads: AppRegs,
    /// Byte address of the snapshot.
    pub(super) snapshot: u64,
    pub(super) fault_info: u64,
    pub(super) fault_addr: u64,
    /// A PAUSE that the engine has not obeyed yet.
    pub(super) pause: Option<Stop>,
    /// A START or an order that the thread has not seen yet.
    pub(super) queued: Option<Queued>,
    pub(super) thread: Thread,
    pub(super) reset_at: Option<u64>,
    /// When a read of the status shows the answer of a save that was cut short by a reset, and that
    /// answer. It is shown once.
    pub(super) late: Option<(u64, u64)>,
    /// Accesses of past jobs that have not arrived yet.
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

    /// Takes the late answer of a save, if the status shows it at `t`.
    pub(super) fn take_late(&mut self, t: u64) -> Option<u64> {
        let (_, answer) = self.late.take_if(|(due, _)| *due <= t)?;
        self.misbehaviour.late_paused = None;
        Some(answer)
    }

    pub(super) fn aborted(&self) -> bool {
        self.thread == Thread::Aborted
    }

    /// Returns whether to give up the work in progress: a reset aborted the job, or an order aborts
    /// its restore.
    pub(super) fn cut_short(&self) -> bool {
        self.aborted() || self.phase == Phase::Restoring && self.relay.at_zero()
    }

    /// Notes that the engine starts to work.
    pub(super) fn works(&mut self, now: u64) {
        self.phase = Phase::Running;
        if let Some(run) = self.relay.run.as_mut() {
            run.worked = now;
        }
    }

    /// Notes that the engine stops working, if it worked.
    pub(super) fn stops(&mut self, now: u64) {
        let run = self.relay.run.as_mut();
        if let Some(run) = run.filter(|run| run.worked != 0 && run.stopped == 0) {
            run.stopped = now;
        }
    }

    /// Returns whether the stop under way saves nothing.
    pub(super) fn drops(&self) -> bool {
        self.relay.run.as_ref().is_some_and(|run| run.drops)
    }

    /// Returns whether the settle time since the reset of the slot is over.
    pub(super) fn settled(&self, t: u64) -> bool {
        self.reset_at
            .is_some_and(|at| t >= at.saturating_add(us(self.settings.settle_us)))
    }
}

/// The state of a stopped slot. Times are those of the card's clock.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotState {
    activity: Activity,
    in_reset: bool,
    start_count: u32,
    events: u64,
    restore_us: u64,
    written: AppRegs,
    reads: AppRegs,
    snapshot: u64,
    fault: (u64, u64),
    /// Offset, base and size of the window that a job has, with or without a window check.
    window: (u64, u64, u64),
    pause: Option<Stop>,
    relay: bool,
    held: Option<Order>,
    run: Option<Run>,
}

/// What a slot was doing.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Activity {
    Rest(Rest),
    /// A START was accepted.
    Start(Job),
    /// An order was taken.
    Load(u64),
    /// A job is in the engine. The state of the engine is not part of the serialized form.
    Work(Job, #[serde(skip)] Vec<u8>),
}

impl SlotState {
    /// Returns whether a job is in the engine. If so, the slot has a state of the engine.
    pub fn has_engine(&self) -> bool {
        matches!(self.activity, Activity::Work(..))
    }

    /// Returns the state of the engine, which is as long as a snapshot of the slot; empty if there
    /// is no job in the engine.
    pub fn engine(&self) -> &[u8] {
        match &self.activity {
            Activity::Work(_, state) => state,
            _ => &[],
        }
    }

    /// Returns the state of the engine, to be filled in; `None` if there is no job in the engine.
    pub fn engine_mut(&mut self) -> Option<&mut Vec<u8>> {
        match &mut self.activity {
            Activity::Work(_, state) => Some(state),
            _ => None,
        }
    }

    /// Returns whether a card can be in this state.
    fn is_consistent(&self) -> bool {
        let Some(run) = &self.run else {
            let no_order = self.held.is_none();
            return no_order
                && match &self.activity {
                    Activity::Rest(_) => self.pause.is_none(),
                    Activity::Start(job) => {
                        self.may_work() && !(job.resume && self.pause.is_some())
                    }
                    Activity::Work(..) => self.may_work(),
                    Activity::Load(_) => false,
                };
        };
        let of_order =
            self.relay && !self.in_reset && Tables::is_count(run.context.saturating_add(1));
        of_order
            && run.stopped == 0
            && match &self.activity {
                Activity::Load(context) => {
                    *context == run.context && run.worked == 0 && self.pause.is_none()
                }
                Activity::Work(..) => run.worked != 0,
                Activity::Rest(_) | Activity::Start(_) => false,
            }
    }

    /// Returns whether a job that was not started by an order can be on the slot.
    fn may_work(&self) -> bool {
        !self.in_reset && !self.relay
    }
}

impl Slot {
    /// Tells the slot to stop at the present point.
    pub(crate) fn freeze(&self) {
        let mut state = self.lock();
        state.frozen = true;
        self.tell_thread(&state);
    }

    /// Lets the slot continue.
    pub(crate) fn thaw(&self) {
        let mut state = self.lock();
        state.frozen = false;
        self.tell_thread(&state);
    }

    fn tell_thread(&self, state: &State) {
        if state.thread == Thread::Working {
            self.tell_engine(state);
            self.maker.wake();
        }
        self.changed.notify_all();
    }

    /// Returns whether the slot is stopped.
    pub(crate) fn is_frozen(&self) -> bool {
        self.lock().frozen
    }

    /// Returns whether the slot is not at rest.
    pub(crate) fn is_busy(&self) -> bool {
        self.lock().phase.busy()
    }

    /// Waits until the thread has set its job aside. Returns false if that has not happened by
    /// `until`.
    pub(crate) fn wait_frozen(&self, until: Instant) -> bool {
        let mut state = self.lock();
        while state.thread != Thread::Free {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Returns the state of the slot, which must be stopped.
    pub(crate) fn state(&self) -> SlotState {
        let mut state = self.lock();
        self.deliver(&mut state, u64::MAX);
        let activity = match (&state.queued, state.phase) {
            (Some(Queued::Job(job)), _) => Activity::Start(*job),
            (Some(Queued::Context(context)), _) => Activity::Load(*context),
            (Some(Queued::Stopped(job, engine)), _) => Activity::Work(*job, engine.clone()),
            (None, Phase::Rest(rest)) => Activity::Rest(rest),
            (None, _) => Activity::Rest(Rest::Idle),
        };
        let reach = self.reach(&state);
        let clock = |time| self.host.clock.told(time);
        SlotState {
            activity,
            in_reset: state.in_reset,
            start_count: state.start_count,
            events: state.events,
            restore_us: state.restore_us,
            written: state.written,
            reads: state.reads,
            snapshot: state.snapshot,
            fault: (state.fault_info, state.fault_addr),
            window: (reach.offset, reach.window_base, reach.window_size),
            pause: state.pause,
            relay: state.relay.on,
            held: state.relay.held,
            run: state.relay.run.as_ref().map(|run| run.at(clock)),
        }
    }

    /// Returns whether the slot can take the state.
    pub(crate) fn takes(&self, state: &SlotState) -> bool {
        let engine = self.lock().settings.state_pages as usize * PAGE;
        let whole = !state.has_engine() || state.engine().len() == engine;
        whole && state.is_consistent() && (!state.relay || self.profile.has_relay())
    }

    /// Prepares for the job of the state `from`, which the slot has taken. `Err`: the reason why
    /// the job cannot continue here.
    pub(crate) fn prepare(&self, from: &SlotState) -> Result<(), String> {
        let at_work = match &from.activity {
            Activity::Work(job, engine) => Some((&job.written, &engine[..])),
            Activity::Start(_) => None,
            Activity::Load(_) | Activity::Rest(_) => return Ok(()),
        };
        let reach = self.reach(&self.lock());
        let (_, base, size) = from.window;
        if at_work.is_some() && (reach.window_base, reach.window_size) != (base, size) {
            let engine = self.engine.name();
            return Err(format!(
                "a job for {engine} had {size:#x} bytes of memory from {base:#x} on, and has not here"
            ));
        }
        self.maker.prepare(&reach, at_work)
    }

    /// Takes a state. The slot must be stopped, in its state after power-on.
    pub(crate) fn set_state(&self, from: &SlotState) {
        let mut state = self.lock();
        let (phase, queued) = match &from.activity {
            Activity::Rest(rest) => (Phase::Rest(*rest), None),
            Activity::Load(context) => (Phase::Loading, Some(Queued::Context(*context))),
            Activity::Start(job) => {
                let phase = if job.resume {
                    Phase::Restoring
                } else {
                    Phase::Running
                };
                (phase, Some(Queued::Job(*job)))
            }
            Activity::Work(job, engine) => {
                let stopped = Queued::Stopped(*job, engine.clone());
                (Phase::Running, Some(stopped))
            }
        };
        let clock = |time| self.host.clock.local(time);
        let relay = Relay {
            on: from.relay,
            held: from.held,
            run: from.run.as_ref().map(|run| run.at(clock)),
            epoch: state.relay.epoch,
            torn: state.relay.torn.take(),
        };
        *state = State {
            phase,
            queued,
            relay,
            in_reset: from.in_reset,
            start_count: from.start_count,
            events: from.events,
            restore_us: from.restore_us & status::RESTORE_MAX,
            written: from.written,
            reads: from.reads,
            snapshot: from.snapshot & IOVA_BITS & !0x3f,
            fault_info: from.fault.0,
            fault_addr: from.fault.1,
            pause: from.pause,
            thread: state.thread,
            frozen: state.frozen,
            quit: state.quit,
            misbehaviour: state.misbehaviour.clone(),
            ..State::new(state.settings)
        };
        let (offset, base, size) = from.window;
        self.window.set_offset(offset);
        if !self.is_base() {
            self.window.set_base(base);
            self.window.set_size(size);
        }
        self.tell_phase(&state, now_ns());
    }
}
