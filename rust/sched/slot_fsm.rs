// SPDX-License-Identifier: GPL-2.0

//! The state machine of a slot: the slot protocol of docs/registers.md.
//!
//! The state machine knows one job, but no other contexts and no policy: it is told when to start a
//! job and when to stop it, and reports the end of the run and when the slot is vacant.

use super::event::Cx;
use super::run::Run;
use super::slot_config::{SlotConfig, SlotStats};
use super::{Action, ContextId, Duration, Failure, Order, SlotId, SlotState, Time};

/// What becomes of a job once its slot is quiescent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was saved, and will be resumed.
    Saved,
    /// It was saved with an empty queue, and will be resumed when there is work in the queue.
    Empty,
    /// It finished.
    Finished,
    /// It failed.
    Failed(Failure),
}

/// A slot that is being reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reset {
    pub(super) ctx: ContextId,
    pub(super) outcome: Outcome,
    /// Base: the settle time has begun, because the reset bit is known to have reached the card.
    pub(super) settling: bool,
    /// Base: the settle time is over and the reset bit cleared.
    pub(super) released: bool,
    pub(super) tries: u8,
    /// When the settle time, or the wait for the status, is over.
    pub(super) next: Time,
}

/// The state of a slot. The window may be changed in `Vacant` only: in every other state the engine
/// may still touch memory, or, on a base card, DMA of a job that has ended may still arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Quiescent, out of reset, no job.
    Vacant,
    /// START was written. Left by PAUSED, by FINISH (which wins over PAUSE: the job is complete),
    /// by the preempt timeout and by [`SlotFsm::abort`].
    Running(Run),
    /// The reset bit was set. Left when the status reads IDLE (then the slot is quiescent) or after
    /// too many tries.
    Resetting(Reset),
    /// It never read IDLE: its state is unknown, so it is not used. It may still reach the memory
    /// of the context that was on it, if any.
    Quarantined(Option<ContextId>),
    /// The card is gone; no action follows.
    Gone,
}

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunOver {
    pub(super) ctx: ContextId,
    /// The job was saved.
    pub(super) saved: bool,
    /// The time of the save, if that could be measured.
    pub(super) save: Option<Duration>,
    /// When PAUSE was written.
    pub(super) paused_at: Option<Time>,
}

/// What becomes of the slot after the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// Nothing is known yet.
    Pending,
    /// It is vacant, and no DMA of the job can follow.
    Vacant { ctx: ContextId, outcome: Outcome },
    /// It is out of use, and the job may still change its memory.
    Quarantined { ctx: ContextId, outcome: Outcome },
}

/// What an event has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) over: Option<RunOver>,
    pub(super) after: After,
}

impl Progress {
    pub(super) const NONE: Self = Self {
        over: None,
        after: After::Pending,
    };
}

/// A slot and its protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotFsm {
    pub(super) id: SlotId,
    pub(super) config: SlotConfig,
    pub(super) state: State,
    /// The context whose window is open.
    pub(super) window: Option<ContextId>,
    /// irq: the START_COUNT that the card must show after the last START. relay: the number of
    /// the last run.
    pub(super) count: u32,
    /// Relay: the order in force for the run on the slot.
    pub(super) posted: Order,
    /// When the timer will fire, as far as is known.
    pub(super) timer: Option<Time>,
    /// A state was entered since the timer was armed: what the timer was armed for is obsolete.
    pub(super) entered: bool,
    /// The time for which the timer was armed, if it has just fired.
    pub(super) fired: Option<Time>,
    /// When the last run ended by itself, unless the slot was left vacant since.
    pub(super) idle_since: Option<Time>,
    pub(super) stats: SlotStats,
}

impl SlotFsm {
    pub(super) fn new(id: SlotId, config: SlotConfig) -> Self {
        Self {
            id,
            config,
            state: State::Vacant,
            window: None,
            count: config.start_count,
            posted: Order::none(0),
            timer: None,
            entered: false,
            fired: None,
            idle_since: None,
            stats: SlotStats::default(),
        }
    }

    /// Returns the running job, also while it is being saved.
    pub(super) fn run(&self) -> Option<&Run> {
        match &self.state {
            State::Running(run) => Some(run),
            _ => None,
        }
    }

    /// Returns the running job if it was not told to pause.
    pub(super) fn unpaused(&self) -> Option<&Run> {
        self.run().filter(|run| run.pause.is_none())
    }

    /// Returns what the slot does, for reports.
    pub(super) fn report(&self) -> SlotState {
        match &self.state {
            State::Vacant => SlotState::Vacant,
            State::Running(run) if run.pause.is_some() => SlotState::Pausing(run.ctx),
            State::Running(run) => SlotState::Running(run.ctx),
            State::Resetting(reset) => SlotState::Resetting(reset.ctx),
            State::Quarantined(_) => SlotState::Quarantined,
            State::Gone => SlotState::Gone,
        }
    }

    /// Returns when the job that was told to pause is to be saved. `None`: it was not told to, or
    /// stops at a boundary.
    pub(super) fn save_due(&self) -> Option<Time> {
        let pause = self.run()?.pause.as_ref()?;
        (!pause.boundary).then_some(pause.since)
    }

    pub(super) fn is_vacant(&self) -> bool {
        matches!(self.state, State::Vacant)
    }

    /// Returns whether the slot will be vacant soon. A slot that has not answered in time does not
    /// count.
    pub(super) fn is_leaving(&self) -> bool {
        match &self.state {
            State::Running(run) => run.pause.is_some_and(|pause| !pause.late),
            State::Resetting(reset) => reset.tries == 0,
            _ => false,
        }
    }

    /// Returns whether a job is on the slot, or its DMA may still arrive.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self.state, State::Running(_) | State::Resetting(_))
    }

    pub(super) fn enter(&mut self, state: State) {
        self.state = state;
        self.entered = true;
    }

    pub(super) fn read_status(&mut self, cx: &mut Cx<'_>) {
        self.stats.reads += 1;
        cx.act(Action::ReadStatus { slot: self.id });
    }
}

/// Starting and stopping a job.
impl SlotFsm {
    /// Closes the window, if it is open.
    pub(super) fn close_window(&mut self, cx: &mut Cx<'_>) {
        if let Some(ctx) = self.window.take() {
            cx.act(Action::Unload { slot: self.id, ctx });
        }
    }

    /// Closes the window, because no job is to follow soon.
    pub(super) fn leave_vacant(&mut self, cx: &mut Cx<'_>) {
        self.idle_since = None;
        self.close_window(cx);
    }
}

/// Timers.
impl SlotFsm {
    /// Notes that the timer of the slot has fired.
    pub(super) fn note_timer(&mut self, now: Time) {
        // A replaced arming may still fire: then nothing is due.
        self.fired = self.timer.take().filter(|&at| at <= now);
    }

    /// Returns when the slot itself needs its timer; `None`: the slot waits for nothing.
    pub(super) fn next_timer(&self) -> Option<Time> {
        match &self.state {
            State::Running(run) => Some(run.next_timer()),
            State::Resetting(reset) => Some(reset.next),
            _ => None,
        }
    }

    /// Arms the timer for `next`, unless it is armed for that time or an earlier one: a timer that
    /// fires too early costs less than rearming it at every event of a neighbouring slot, or at
    /// every switch of a relay. The timer is armed for no time that has passed: it would fire again
    /// and again before any other interrupt is handled.
    pub(super) fn arm(&mut self, cx: &mut Cx<'_>, next: Option<Time>) {
        let slot = self.id;
        let next = next.map(|at| if at < cx.now { cx.soon() } else { at });
        self.fired = None;
        let entered = core::mem::take(&mut self.entered) && !self.config.has_relay();
        match (next, self.timer) {
            (Some(at), armed) if entered || armed.is_none_or(|armed| armed > at) => {
                self.timer = Some(at);
                cx.act(Action::Arm { slot, at });
            }
            (None, Some(_)) => {
                self.timer = None;
                cx.act(Action::Disarm { slot });
            }
            _ => {}
        }
    }
}
