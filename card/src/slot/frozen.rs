// SPDX-License-Identifier: GPL-2.0-or-later
//! A slot of a card that is stopped: the state of the slot, and how another card takes the state.

use super::relay::{Relay, Run};
use super::snapshot::PAGE;
use super::state::{Job, Phase, Queued, Rest, State, Stop, Thread};
use super::Slot;
use crate::engine::AppRegs;
use crate::regs::{status, IOVA_BITS};
use crate::relay::{Order, Tables};
use serde::{Deserialize, Serialize};
use std::sync::PoisonError;
use std::time::Instant;

/// The state of a slot that is stopped. Times are those of the card's clock.
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

/// What a slot does.
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
    /// Returns whether a job is in the engine. The slot then has a state of the engine.
    pub fn has_engine(&self) -> bool {
        matches!(self.activity, Activity::Work(..))
    }

    /// Returns the state of the engine, as long as a snapshot of the slot; empty without a job in
    /// the engine.
    pub fn engine(&self) -> &[u8] {
        match &self.activity {
            Activity::Work(_, state) => state,
            _ => &[],
        }
    }

    /// Returns the state of the engine, to be filled in; `None` without a job in the engine.
    pub fn engine_mut(&mut self) -> Option<&mut Vec<u8>> {
        match &mut self.activity {
            Activity::Work(_, state) => Some(state),
            _ => None,
        }
    }

    /// Returns whether a card can have this state.
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

    /// Returns whether a job that no order brought can be on the slot.
    fn may_work(&self) -> bool {
        !self.in_reset && !self.relay
    }
}

impl Slot {
    /// Tells the slot to stop where it stands.
    pub(crate) fn freeze(&self) {
        let mut state = self.lock();
        state.frozen = true;
        self.tell_thread(&state);
    }

    /// Lets the slot go on.
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

    /// Waits until the thread has set its job aside. Returns false if that took until `until`.
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

    /// Returns the state of the slot, which is stopped.
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

    /// Returns whether the slot can take that state.
    pub(crate) fn takes(&self, state: &SlotState) -> bool {
        let engine = self.lock().settings.state_pages as usize * PAGE;
        let whole = !state.has_engine() || state.engine().len() == engine;
        whole && state.is_consistent() && (!state.relay || self.profile.has_relay())
    }

    /// Gets ready for the job of the state `from`, which the slot has taken. `Err`: the reason why the
    /// job cannot go on here.
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

    /// Takes a state. The slot is stopped, and as after power-on.
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
        if self.fermata() {
            self.window.set_base(base);
            self.window.set_size(size);
        }
        self.tell_phase(&state);
    }
}
