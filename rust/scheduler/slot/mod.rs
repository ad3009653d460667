// SPDX-License-Identifier: GPL-2.0

//! One slot and its protocol (docs/registers.md): it runs one job, and knows no other contexts and
//! no policy. It is told to begin a run and to stop it, and reports the end of the run, and when the
//! slot is quiescent.

mod base;
mod irq;
mod relay;
mod reset;
mod run;
mod stop;

use super::card::{Call, Card};
use super::values::{
    ContextId, Duration, EndReason, Failure, Order, Profile, RunEnd, SlotConfig, SlotId, SlotState,
    SlotStats, Time,
};
use reset::Reset;
pub(super) use run::{Run, Start};
pub(super) use stop::Stopping;

/// The outcome of a run for its job, once the slot is quiescent.
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

/// The state of a slot. The window may be changed in `Vacant` and `Loading` only: in every other
/// state the engine may still touch memory, or, on a base card, DMA of a job that has ended may
/// still arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Quiescent, out of reset, no job.
    Vacant,
    /// Vacant, and a part of the registers of a context are written.
    Loading(ContextId),
    /// START was written.
    Running(Run),
    /// The reset bit was set.
    Resetting(Reset),
    /// It did not come out of reset; it may still reach the memory of the context, if any.
    Quarantined(Option<ContextId>),
    /// The card is gone.
    Gone,
}

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Over {
    pub(super) ctx: ContextId,
    /// The job was saved.
    pub(super) saved: bool,
    /// From its START to its end.
    pub(super) span: Duration,
    /// The time of its save, if that was measured, and otherwise the time since the job was told to
    /// stop.
    pub(super) save: Duration,
}

/// The state of the slot after a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// Nothing yet.
    Pending,
    /// It is vacant, and no DMA of the job can follow.
    Vacant(ContextId, Outcome),
    /// It is out of use, and the job may still change its memory.
    Quarantined(ContextId, Outcome),
}

/// The changes that a report has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) struct Change {
    pub(super) over: Option<Over>,
    pub(super) after: After,
}

impl Change {
    pub(super) const NONE: Self = Self {
        over: None,
        after: After::Pending,
    };
}

/// A slot and its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Protocol {
    id: SlotId,
    config: SlotConfig,
    state: State,
    /// The context whose window is open.
    window: Option<ContextId>,
    /// The START count that the card must show for the last run; relay: the number of that run.
    count: u32,
    /// Relay: the order in force for the run on the slot.
    posted: Order,
    /// The time for which the timer was armed, if it has just fired.
    fired: Option<Time>,
    /// When the last run ended by itself, unless the slot was left vacant since.
    idle_since: Option<Time>,
    stats: SlotStats,
}

/// Reports.
impl Protocol {
    pub(super) fn new(id: SlotId, config: SlotConfig) -> Self {
        Self {
            id,
            config,
            state: State::Vacant,
            window: None,
            count: config.start_count,
            posted: Order::none(config.start_count),
            fired: None,
            idle_since: None,
            stats: SlotStats::default(),
        }
    }

    pub(super) fn config(&self) -> &SlotConfig {
        &self.config
    }

    #[inline]
    pub(super) fn has_relay(&self) -> bool {
        self.config.profile == Profile::Relay
    }

    /// Returns the settle time of a base slot.
    #[inline]
    fn settle(&self) -> Option<Duration> {
        match self.config.profile {
            Profile::Base { settle, .. } => Some(settle),
            Profile::Irq | Profile::Relay => None,
        }
    }

    /// Returns the statistics until the end of the last run.
    pub(super) fn stats(&self) -> SlotStats {
        let (save, restore) = (self.save_time(), self.restore_time());
        SlotStats {
            save,
            restore,
            ..self.stats
        }
    }

    /// Returns what the slot does.
    pub(super) fn report(&self) -> SlotState {
        match &self.state {
            State::Vacant | State::Loading(_) => SlotState::Vacant,
            State::Running(run) if run.stop.is_some() => SlotState::Pausing(run.ctx),
            State::Running(run) => SlotState::Running(run.ctx),
            State::Resetting(reset) => SlotState::Resetting(reset.ctx),
            State::Quarantined(_) => SlotState::Quarantined,
            State::Gone => SlotState::Gone,
        }
    }

    /// Returns whether the slot has no job, also while registers are loaded.
    #[inline]
    pub(super) fn is_vacant(&self) -> bool {
        matches!(self.state, State::Vacant | State::Loading(_))
    }

    pub(super) fn is_loading(&self) -> bool {
        matches!(self.state, State::Loading(_))
    }

    /// Returns whether a job is on the slot, or its DMA may still arrive.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self.state, State::Running(_) | State::Resetting(_))
    }

    /// Returns the run on the slot, also while it is saved.
    #[inline]
    pub(super) fn run(&self) -> Option<&Run> {
        match &self.state {
            State::Running(run) => Some(run),
            _ => None,
        }
    }

    #[inline]
    fn run_mut(&mut self) -> Option<&mut Run> {
        match &mut self.state {
            State::Running(run) => Some(run),
            _ => None,
        }
    }

    /// Returns the run on the slot if it was not told to stop.
    #[inline]
    pub(super) fn unstopped(&self) -> Option<&Run> {
        self.run().filter(|run| run.stop.is_none())
    }

    /// Returns how the run on the slot was told to stop.
    #[inline]
    pub(super) fn stopping(&self) -> Option<&Stopping> {
        self.run()?.stop.as_ref()
    }

    /// Returns when the job that was told to stop is to be saved. `None`: it was not told to, or
    /// stops at a boundary.
    pub(super) fn save_due(&self) -> Option<Time> {
        let stop = self.stopping()?;
        (!stop.boundary).then_some(stop.at)
    }

    /// Returns whether the slot will be vacant soon. A slot that has not answered in time does not
    /// count, unless the class has no other: `is_only`.
    #[inline]
    pub(super) fn is_leaving(&self, is_only: bool) -> bool {
        match &self.state {
            State::Running(run) => {
                let stop = run.stop.as_ref();
                stop.is_some_and(|stop| !stop.last && (is_only || !stop.late))
            }
            State::Resetting(reset) => is_only || !reset.is_repeated(),
            _ => false,
        }
    }

    /// Returns when the slot needs its timer for itself.
    #[inline]
    pub(super) fn deadline(&self) -> Time {
        match &self.state {
            State::Loading(_) => Time::ZERO,
            State::Running(run) => run.deadline(),
            State::Resetting(reset) => reset.deadline(),
            State::Vacant | State::Quarantined(_) | State::Gone => Time::NEVER,
        }
    }

    /// Returns the mean time of a save; that of a restore if no save was measured.
    #[inline]
    pub(super) fn save_time(&self) -> Duration {
        match self.stats.save_max {
            Duration::ZERO => self.stats.restore,
            _ => self.stats.save,
        }
    }

    /// Returns how long it takes to make the slot vacant.
    pub(super) fn leaving_time(&self) -> Duration {
        self.save_time() + self.settle().unwrap_or_default()
    }

    /// Returns the mean time of a restore; that of a save if no restore was measured.
    #[inline]
    pub(super) fn restore_time(&self) -> Duration {
        match self.stats.restore_max {
            Duration::ZERO => self.stats.save,
            _ => self.stats.restore,
        }
    }

    /// Returns what a switch of jobs is expected to cost.
    #[inline]
    pub(super) fn switch_time(&self) -> Duration {
        self.save_time() + self.restore_time()
    }

    /// Returns whether the run on the slot began with a restore whose end the status reports.
    pub(super) fn reports_restore(&self) -> bool {
        self.settle().is_none() && self.run().is_some_and(|run| run.resumed)
    }
}

/// Vacant slots, and what ends a run.
impl Protocol {
    /// Notes that the timer, which was armed for `armed`, has fired.
    pub(super) fn note_fired(&mut self, now: Time, armed: Time) {
        self.fired = (armed <= now).then_some(armed);
    }

    /// Forgets that the timer has fired.
    #[inline]
    pub(super) fn forget_fired(&mut self) {
        self.fired = None;
    }

    /// Closes the window, and forgets what was loaded in part.
    pub(super) fn close<C: Card>(&mut self, call: &mut Call<'_, C>) {
        let open = self.window.take();
        if let State::Loading(ctx) = self.state {
            self.state = State::Vacant;
            if open.is_none() {
                call.card.unload(self.id, ctx);
            }
        }
        if let Some(ctx) = open {
            call.card.unload(self.id, ctx);
        }
    }

    /// Closes the window because no job is to follow soon.
    pub(super) fn leave_vacant<C: Card>(&mut self, call: &mut Call<'_, C>) {
        self.idle_since = None;
        self.close(call);
    }

    fn read_status<C: Card>(&mut self, call: &mut Call<'_, C>) {
        self.stats.reads += 1;
        call.card.read_status(self.id);
    }

    /// Measures and reports the end of the run; `span`, `restore` and `save` as far as they are
    /// known. The caller changes the state.
    fn end_run<C: Card>(&mut self, call: &mut Call<'_, C>, end: &RunEnd) -> Option<Over> {
        let run = self.run()?;
        let (ctx, stop) = (run.ctx, run.stop.as_ref());
        let since = stop.map_or(Duration::ZERO, |stop| call.now.since(stop.at));
        if let Some(&stop) = stop.filter(|stop| stop.overrun) {
            self.note_overrun(call, &stop);
        }
        let saved = matches!(end.reason, EndReason::Paused | EndReason::Empty);
        self.stats.busy += end.span;
        self.stats.note_restore(end.restore);
        if saved {
            self.stats.note_save(end.save);
        }
        call.card.ended(self.id, ctx, end);
        Some(Over {
            ctx,
            saved,
            span: end.span,
            save: end.save.unwrap_or(since),
        })
    }

    /// Stops the job by force: it fails, or `None`: its context is closed.
    pub(super) fn abort<C: Card>(
        &mut self,
        call: &mut Call<'_, C>,
        failure: Option<Failure>,
    ) -> Change {
        let Some(run) = self.run() else {
            return Change::NONE;
        };
        let end = RunEnd {
            reason: EndReason::Aborted(failure),
            span: call.now.since(run.started),
            save: None,
            restore: Duration::ZERO,
        };
        let Some(over) = self.end_run(call, &end) else {
            return Change::NONE;
        };
        self.stats.resets += 1;
        self.idle_since = None;
        let outcome = Outcome::Failed(failure.unwrap_or(Failure::Protocol));
        self.hold_reset(call, over.ctx, outcome);
        Change {
            over: Some(over),
            after: After::Pending,
        }
    }
}
