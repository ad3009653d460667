// SPDX-License-Identifier: GPL-2.0

//! What is measured of the slots of a card.

use super::{Histogram, Told};
use crate::sched::{
    Action, ContextId, Duration, Entry, Event, Machine, Params, Phase, SlotId, Status, Time,
    Urgency, MAX_SLOTS,
};
use core::ops::DerefMut;

/// Histograms and counters of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SlotHistograms {
    /// From the status that showed PAUSED or FINISH until the next START was written, where the slot was not left vacant in
    /// between because nobody wanted it, or for a hint.
    pub gap: Histogram,
    /// From the first PAUSE to PAUSED; not of jobs that stop at boundaries, and not of queues that were empty.
    pub save: Histogram,
    /// What the card told of restores.
    pub restore: Histogram,
    /// How long after the time that the timer was set to a PAUSE was written that ended a slice.
    pub overrun: Histogram,
    /// From the arrival of a latency-critical job until its first START was written.
    pub latency: Histogram,
    /// Jobs finished.
    pub finished: u64,
    /// Jobs that the card stopped at an access outside their windows.
    pub faults: u64,
}

impl SlotHistograms {
    /// Nothing was measured. All of its bytes are zero.
    pub const EMPTY: Self = Self {
        gap: Histogram::EMPTY,
        save: Histogram::EMPTY,
        restore: Histogram::EMPTY,
        overrun: Histogram::EMPTY,
        latency: Histogram::EMPTY,
        finished: 0,
        faults: 0,
    };
}

/// Why actions come: what one call of the scheduler is about.
#[derive(Clone, Copy, Debug)]
pub struct Cause {
    /// The time that the scheduler was given.
    at: Time,
    /// The status that was read.
    status: Option<Status>,
    /// When the timer was to fire that has fired.
    due: Option<Time>,
}

/// A run that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    ctx: ContextId,
    started: Time,
    /// The first PAUSE that was written, and whether it waits for a boundary.
    pause: Option<(Time, bool)>,
}

/// What is under way on a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Watch {
    run: Option<Run>,
    /// When PAUSED or FINISH of the last run was seen, unless that was ended by force.
    left: Option<Time>,
    /// When its window was closed because nobody was to have it, unless there was a START since.
    vacant: Option<Time>,
    /// What its timer is set to.
    due: Option<Time>,
    /// Whose run ended, and how long it was; until it is taken out.
    ended: Option<(ContextId, Duration)>,
    /// For whom a START was written, and when exactly; until it is taken out.
    begun: Option<(ContextId, Time)>,
}

impl Watch {
    const NEW: Self = Self {
        run: None,
        left: None,
        vacant: None,
        due: None,
        ended: None,
        begun: None,
    };

    fn end(&mut self, at: Time) -> Option<Run> {
        let run = self.run.take()?;
        self.ended = Some((run.ctx, at.since(run.started)));
        Some(run)
    }
}

/// Measures the slots of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopwatch {
    watches: [Watch; MAX_SLOTS],
    /// Slots whose status has more than the phase, a bit each: fermata profile.
    tells: u8,
    /// Slots of which something is to be taken out, a bit each.
    changed: u8,
}

impl Stopwatch {
    /// Of slots that nobody is on; `tells`: those of the fermata profile, a bit each.
    pub const fn new(tells: u8) -> Self {
        Self {
            watches: [Watch::NEW; MAX_SLOTS],
            tells,
            changed: 0,
        }
    }

    /// The scheduler is called at `at`, because of `event` or for something else.
    pub fn cause(&mut self, at: Time, event: Option<&Event>) -> Cause {
        let mut cause = Cause {
            at,
            status: None,
            due: None,
        };
        match event {
            // The status of others has a phase, and nobody knows what else.
            Some(Event::Status { slot, status }) if self.tells & slot.bit() == 0 => {
                cause.status = Some(Status::from_raw(status.raw() & 0xff));
            }
            Some(Event::Status { status, .. }) => cause.status = Some(*status),
            Some(Event::Timer { slot }) => {
                let due = self.watch(*slot).and_then(|watch| watch.due.take());
                // An earlier setting of the timer may fire, too: then it is nothing's time.
                cause.due = due.filter(|due| *due <= at);
            }
            _ => {}
        }
        cause
    }

    /// The scheduler wanted `action`, and that was done. `clock`: the time now; asked for a START only.
    pub fn note(
        &mut self,
        slots: &mut [SlotHistograms; MAX_SLOTS],
        cause: &Cause,
        action: Action,
        clock: impl FnOnce() -> Time,
    ) {
        match action {
            Action::Start { slot, ctx, .. } => self.started(slots, cause, slot, ctx, clock()),
            Action::Pause { slot, boundary, .. } => self.paused(slots, cause, slot, boundary),
            Action::Capture { slot, .. } => self.left(slots, cause, slot),
            Action::Reset { slot, hold: true } => self.stopped(cause, slot),
            Action::Unload { slot } => {
                if let Some(watch) = self.watch(slot) {
                    watch.run = None;
                    watch.vacant = Some(cause.at);
                }
            }
            Action::Quarantine { slot, .. } => {
                if let Some(watch) = self.watch(slot) {
                    watch.left = None;
                }
            }
            Action::Arm { slot, at } => {
                if let Some(watch) = self.watch(slot) {
                    watch.due = Some(at);
                }
            }
            Action::Disarm { slot } => {
                if let Some(watch) = self.watch(slot) {
                    watch.due = None;
                }
            }
            _ => {}
        }
    }

    /// The run that was just started on `slot` begins `span` later
    /// ([`LoadCost::clearing`](crate::sched::LoadCost::clearing)).
    pub fn delay(&mut self, slot: SlotId, span: Duration) {
        if let Some(run) = self.watch(slot).and_then(|watch| watch.run.as_mut()) {
            run.started = run.started + span;
        }
    }

    /// After each call of the scheduler: has contexts told by `tell` what was measured of them.
    pub fn settle<S: DerefMut<Target = [Entry]>>(
        &mut self,
        slots: &mut [SlotHistograms; MAX_SLOTS],
        cause: &Cause,
        machine: &Machine<S>,
        mut tell: impl FnMut(ContextId, Told) -> Option<Duration>,
    ) {
        // CAST: at most 8.
        while let Some(slot) = SlotId::new(self.changed.trailing_zeros() as u8) {
            self.changed &= !slot.bit();
            let (Some(watch), Some(histograms)) = (
                self.watches.get_mut(slot.index()),
                slots.get_mut(slot.index()),
            ) else {
                return;
            };
            if let Some((ctx, span)) = watch.ended.take() {
                tell(ctx, Told::Ended { span });
            }
            let Some((ctx, written)) = watch.begun.take() else {
                continue;
            };
            let Ok(stats) = machine.stats(ctx, cause.at) else {
                continue;
            };
            let wait = stats.wait;
            let latency = tell(ctx, Told::Begun { wait, written });
            let urgent = |params: &Params| params.urgency == Urgency::LatencyCritical;
            if let (Some(latency), true) = (latency, machine.params(ctx).is_ok_and(|p| urgent(&p)))
            {
                histograms.latency.add(latency.as_ns());
            }
        }
    }

    fn watch(&mut self, slot: SlotId) -> Option<&mut Watch> {
        self.watches.get_mut(slot.index())
    }

    fn started(
        &mut self,
        slots: &mut [SlotHistograms; MAX_SLOTS],
        cause: &Cause,
        slot: SlotId,
        ctx: ContextId,
        written: Time,
    ) {
        let Some(watch) = self.watches.get_mut(slot.index()) else {
            return;
        };
        let left = watch.left.take();
        // A window that was closed just now was closed for somebody else's sake.
        let waited = watch.vacant.take().is_none_or(|at| at == cause.at);
        if let (Some(left), true, Some(histograms)) = (left, waited, slots.get_mut(slot.index())) {
            histograms.gap.add(written.since(left).as_ns());
        }
        watch.run = Some(Run {
            ctx,
            started: cause.at,
            pause: None,
        });
        watch.begun = Some((ctx, written));
        self.changed |= slot.bit();
    }

    fn paused(
        &mut self,
        slots: &mut [SlotHistograms; MAX_SLOTS],
        cause: &Cause,
        slot: SlotId,
        boundary: bool,
    ) {
        let run = self
            .watch(slot)
            .and_then(|watch| watch.run.as_mut())
            // A plain PAUSE takes the place of one at a boundary: the save begins with it.
            .filter(|run| run.pause.is_none_or(|(_, before)| before && !boundary));
        let Some(run) = run else {
            return;
        };
        let is_first = run.pause.is_none();
        run.pause = Some((cause.at, boundary));
        if !is_first {
            return;
        }
        if let (Some(due), Some(histograms)) = (cause.due, slots.get_mut(slot.index())) {
            histograms.overrun.add(cause.at.since(due).as_ns());
        }
    }

    /// The end of a run was observed.
    fn left(&mut self, slots: &mut [SlotHistograms; MAX_SLOTS], cause: &Cause, slot: SlotId) {
        let (Some(status), Some(watch), Some(histograms)) = (
            cause.status,
            self.watches.get_mut(slot.index()),
            slots.get_mut(slot.index()),
        ) else {
            return;
        };
        let Some(run) = watch.end(cause.at) else {
            return;
        };
        watch.left = Some(cause.at);
        let restore = status.restore().as_ns();
        if restore != 0 {
            histograms.restore.add(restore);
        }
        match status.phase() {
            _ if status.fault() => histograms.faults += 1,
            _ if status.snapshot_error() => {}
            Phase::Finish => histograms.finished += 1,
            Phase::Paused if !status.empty() => {
                if let Some((since, false)) = run.pause {
                    histograms.save.add(cause.at.since(since).as_ns());
                }
            }
            _ => {}
        }
        self.changed |= slot.bit();
    }

    /// A slot is reset. A run that is under way ends by that.
    fn stopped(&mut self, cause: &Cause, slot: SlotId) {
        let Some(watch) = self.watches.get_mut(slot.index()) else {
            return;
        };
        if watch.end(cause.at).is_some() {
            watch.left = None;
            self.changed |= slot.bit();
        }
    }
}
