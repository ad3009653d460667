// SPDX-License-Identifier: GPL-2.0-or-later
//! The thread of a slot: takes a START, restores, runs the engine in chunks, saves or ends. Between
//! the steps of a queue engine, it reports completions, and lets an engine without work leave the
//! slot.

use super::bus::SlotBus;
use super::relay::{load, lose_results};
use super::snapshot::{restore, save, Snapshot, PAGE};
use super::state::{Job, Phase, Posted, Queued, Rest, State, Stop, Thread};
use super::Slot;
use crate::engine::{Coalescing, Engine, Refused};
use crate::event::{now_ns, us, What};
use crate::relay::Reason;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

/// How long an engine sleeps when it has used up its credit, or has no work and cannot leave.
const NAP: Duration = Duration::from_micros(100);
/// How late an idle host may be in waking a thread.
const WAKE_UP: Duration = Duration::from_micros(40);

/// How a job left the engine.
pub(super) enum End {
    Aborted,
    /// `empty`: the engine has no work, and has told its program so.
    Paused {
        empty: bool,
    },
    Finished {
        fault: bool,
        snapshot_error: bool,
    },
    /// Orders: the context was not usable.
    Refused,
    /// Orders: the restore was aborted.
    NotRun,
    /// Orders: the job was stopped without a save.
    Dropped,
    /// The card was stopped, with the engine in this state.
    Frozen(Vec<u8>),
}

impl End {
    /// Returns how the slot comes to rest; `None` if a reset has already done that, or the card is
    /// stopped.
    fn rest(&self) -> Option<Rest> {
        match *self {
            Self::Aborted | Self::Frozen(_) => None,
            Self::Paused { empty } => Some(Rest::Paused { empty }),
            Self::Finished {
                fault,
                snapshot_error,
            } => Some(Rest::Finished {
                fault,
                snapshot_error,
            }),
            Self::Refused | Self::NotRun | Self::Dropped => Some(Rest::Idle),
        }
    }

    /// Returns the reason that the record gives for the end of a run; `worked`: the engine has
    /// worked.
    fn reason(&self, worked: bool) -> Option<Reason> {
        Some(match *self {
            Self::Aborted | Self::Frozen(_) => return None,
            Self::Paused { empty: false } => Reason::Paused,
            Self::Paused { empty: true } => Reason::Empty,
            Self::Finished { fault: true, .. } => Reason::Fault,
            Self::Finished {
                snapshot_error: true,
                ..
            } if worked => Reason::SaveError,
            Self::Finished {
                snapshot_error: true,
                ..
            } => Reason::RestoreError,
            Self::Finished { .. } => Reason::Finish,
            Self::Refused => Reason::Refused,
            Self::NotRun => Reason::NotRun,
            Self::Dropped => Reason::Dropped,
        })
    }
}

const FINISHED: End = End::Finished {
    fault: false,
    snapshot_error: false,
};
pub(super) const FAULT: End = End::Finished {
    fault: true,
    snapshot_error: false,
};
pub(super) const SNAPSHOT_ERROR: End = End::Finished {
    fault: false,
    snapshot_error: true,
};

/// What the engine does next.
enum Order {
    Step(u64),
    Save,
    Drop,
    Freeze,
    Abort,
}

pub(super) fn run(slot: &Arc<Slot>) {
    // The default timer slack of 50 us would stretch naps. If the kernel refuses to set it, naps
    // are just longer.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    while let Some(queued) = next_job(slot) {
        let (job, stopped) = match queued {
            Queued::Job(job) => (job, None),
            Queued::Stopped(job, state) => (job, Some(state)),
            Queued::Context(context) => match load(slot, context) {
                Ok(job) => (job, None),
                Err(end) => {
                    conclude(slot, &end, SlotBus::new(slot, 0));
                    continue;
                }
            },
        };
        let mut bus = SlotBus::new(slot, job.tag());
        let end = execute(slot, &job, stopped.as_deref(), &mut bus);
        if let End::Frozen(state) = end {
            set_aside(slot, job, state, bus);
        } else {
            conclude(slot, &end, bus);
        }
    }
}

pub(super) fn sleep<'a>(
    slot: &'a Slot,
    state: MutexGuard<'a, State>,
    time: Duration,
) -> MutexGuard<'a, State> {
    slot.changed
        .wait_timeout(state, time)
        .unwrap_or_else(PoisonError::into_inner)
        .0
}

fn next_job(slot: &Slot) -> Option<Queued> {
    let mut state = slot.lock();
    loop {
        if state.quit {
            return None;
        }
        let now = now_ns();
        slot.deliver(&mut state, now);
        let ready = if state.frozen {
            None
        } else {
            state.queued.take()
        };
        if let Some(queued) = ready {
            state.thread = Thread::Working;
            slot.tell_engine(&state);
            slot.abandoned.store(false, Ordering::Release);
            return Some(queued);
        }
        let due = state.posted.iter().map(|p| p.due).min();
        state = match due {
            Some(due) => sleep(
                slot,
                state,
                Duration::from_nanos(due.saturating_sub(now).max(1)),
            ),
            None => slot
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner),
        };
    }
}

/// Waits until the time at which a configured cost is paid. Returns false if the job or its restore
/// was aborted.
pub(super) fn wait_until(slot: &Slot, until: u64) -> bool {
    let mut state = slot.lock();
    loop {
        let now = now_ns();
        if state.cut_short() || now >= until {
            return !state.cut_short();
        }
        state = sleep(slot, state, Duration::from_nanos(until - now));
    }
}

/// Makes the engine of a job: new, from the state of a stopped card, or from a snapshot, which is
/// then returned, too.
fn begin(
    slot: &Slot,
    job: &Job,
    stopped: Option<&[u8]>,
) -> Result<(Box<dyn Engine>, Option<Snapshot>), End> {
    if stopped.is_none() && job.resume {
        return restore(slot, job);
    }
    let (reach, shown) = {
        let state = slot.lock();
        (slot.reach(&state), state.reads)
    };
    let made = match stopped {
        Some(state) => slot.maker.go_on(&job.written, &shown, state, &reach),
        None => slot.maker.start(&job.written, &reach),
    };
    let engine = made.map_err(|Refused| FAULT)?;
    Ok((engine, None))
}

fn execute(slot: &Slot, job: &Job, stopped: Option<&[u8]>, bus: &mut SlotBus<'_>) -> End {
    let (mut engine, restored) = match begin(slot, job, stopped) {
        Ok(begun) => begun,
        Err(end) => return end,
    };
    let restored = restored.as_ref();
    let mut pacer = Pacer::new(now_ns());
    let mut watch = Watch::new(slot, engine.as_ref());
    let mut rush = false;
    loop {
        let budget = match order(slot, engine.as_ref(), &mut pacer, &mut rush) {
            Order::Step(budget) => budget,
            Order::Save => return leave(slot, job, engine.as_mut(), bus, restored),
            Order::Drop => return End::Dropped,
            Order::Freeze => {
                watch.tell_all(slot, engine.as_ref(), bus);
                return End::Frozen(freeze(slot, engine.as_mut()));
            }
            Order::Abort => return End::Aborted,
        };
        rewrite(slot, engine.as_mut());
        let progress = engine.step(budget, bus);
        publish(slot, engine.as_ref());
        bus.flush(false);
        match progress {
            Err(_) => return FAULT,
            Ok(progress) if progress.done => return finish(slot, engine.as_mut(), bus, rush),
            Ok(progress) => pacer.spend(progress.units),
        }
        watch.tell(slot, engine.as_ref(), bus);
        match watch.rest(slot, engine.as_mut(), bus) {
            Err(_) => return FAULT,
            Ok(true) => return save(slot, job, engine.as_mut(), bus, restored, true),
            Ok(false) => {}
        }
    }
}

/// Tells the engine of a base card the registers as they are now.
fn rewrite(slot: &Slot, engine: &mut dyn Engine) {
    let state = slot.lock();
    // A reset has cleared the registers, and they are another job's now.
    if slot.is_base() && !state.aborted() {
        let written = state.written;
        drop(state);
        engine.rewrite(&written);
    }
}

/// Saves the job for a PAUSE. If an engine has no work, it leaves its slot as if by its own
/// decision.
fn leave(
    slot: &Slot,
    job: &Job,
    engine: &mut dyn Engine,
    bus: &mut SlotBus<'_>,
    restored: Option<&Snapshot>,
) -> End {
    if slot.is_base() {
        return save(slot, job, engine, bus, restored, false);
    }
    match engine.leave(bus) {
        Ok(empty) => save(slot, job, engine, bus, restored, empty),
        Err(_) => FAULT,
    }
}

/// Returns the state of the engine. An engine on a card of the host keeps its held job in its
/// context there, where the job can continue.
fn freeze(slot: &Slot, engine: &mut dyn Engine) -> Vec<u8> {
    let mut state = engine.save();
    publish(slot, engine);
    state.resize(slot.lock().settings.state_pages as usize * PAGE, 0);
    state
}

/// Waits for credit or for a request from the registers, and returns what to do next. Under the
/// misbehaviour `finish_on_pause`, a PAUSE lets the job run to its end at full speed.
fn order(slot: &Slot, engine: &dyn Engine, pacer: &mut Pacer, rush: &mut bool) -> Order {
    let mut state = slot.lock();
    loop {
        if state.aborted() {
            return Order::Abort;
        }
        let now = now_ns();
        slot.stop_when_due(&mut state, now);
        // No register access, which would deliver this, precedes a run that an order begins.
        if !slot.is_base() && !state.posted.is_empty() {
            slot.deliver(&mut state, now);
        }
        let stands = |stop| engine.can_be_saved() && (stop == Stop::AtOnce || engine.at_boundary());
        if let Some(stop) = state.pause {
            if std::mem::take(&mut state.misbehaviour.finish_on_pause) || *rush {
                *rush = true;
                state.pause = None;
            } else if stands(stop) {
                state.stops(now);
                if state.drops() {
                    return Order::Drop;
                }
                state.phase = Phase::Saving;
                slot.tell_phase(&state, now);
                return Order::Save;
            }
        }
        if state.frozen && stands(slot.soonest_stop()) {
            return Order::Freeze;
        }
        slot.tell_engine(&state);
        let allowed = match (state.misbehaviour.hang, *rush) {
            (true, _) => 0,
            (false, true) => u64::MAX,
            (false, false) => pacer.allowance(now, state.settings.speed, slot.engine.quantum()),
        };
        if allowed > 0 {
            return Order::Step(allowed.min(slot.engine.chunk()));
        }
        state = doze(slot, state, now);
    }
}

/// Lets an engine without credit sleep, at most until it is to stop. The last moments before the
/// stop are spent spinning, so that it is as punctual as with a card's timer.
fn doze<'a>(slot: &'a Slot, state: MutexGuard<'a, State>, now: u64) -> MutexGuard<'a, State> {
    let deadline = state.relay.deadline();
    let left = deadline.map(|(_, due)| Duration::from_nanos(due.saturating_sub(now)));
    let nap = left.map_or(NAP, |left| left.saturating_sub(WAKE_UP).min(NAP));
    if nap.is_zero() {
        drop(state);
        std::hint::spin_loop();
        return slot.lock();
    }
    sleep(slot, state, nap)
}

/// Publishes the engine's counters in the registers.
pub(super) fn publish(slot: &Slot, engine: &dyn Engine) {
    let mut state = slot.lock();
    if !state.aborted() {
        state.reads = engine.readback();
    }
}

/// Ends the job. From now on a PAUSE is dropped.
fn finish(slot: &Slot, engine: &mut dyn Engine, bus: &mut SlotBus<'_>, rushed: bool) -> End {
    let mut state = slot.lock();
    let held = |s: &State| {
        s.misbehaviour.hang || (s.misbehaviour.finish_on_pause && s.pause.is_none() && !rushed)
    };
    while !state.aborted() && held(&state) {
        let now = now_ns();
        slot.stop_when_due(&mut state, now);
        state = doze(slot, state, now);
    }
    if state.aborted() {
        return End::Aborted;
    }
    if state.pause.is_some() {
        state.misbehaviour.finish_on_pause = false;
    }
    let now = now_ns();
    state.stops(now);
    state.phase = Phase::Ending;
    slot.tell_phase(&state, now);
    drop(state);
    rewrite(slot, engine);
    let result = engine.finish(bus);
    publish(slot, engine);
    if result.is_ok() {
        FINISHED
    } else {
        FAULT
    }
}

/// Puts the job back into `queued`, until the card continues.
fn set_aside(slot: &Slot, job: Job, engine: Vec<u8>, mut bus: SlotBus<'_>) {
    bus.settle();
    bus.flush(true);
    let mut state = slot.lock();
    if std::mem::replace(&mut state.thread, Thread::Free) != Thread::Aborted {
        state.queued = Some(Queued::Stopped(job, engine));
    }
    slot.changed.notify_all();
}

/// Brings the slot to rest: DMA is complete before the status changes, and the interrupt follows.
fn conclude(slot: &Arc<Slot>, end: &End, mut bus: SlotBus<'_>) {
    bus.flush(true);
    let results_lost = lose_results(slot);
    let mut state = slot.lock();
    let now = now_ns();
    let drain = us(state.settings.drain_us);
    let aborted = std::mem::replace(&mut state.thread, Thread::Free) == Thread::Aborted;
    let since = state.reset_at.filter(|_| aborted).unwrap_or(now);
    let posted = bus.take_posted(since, drain);
    leave_posted(slot, &mut state, posted, now);
    if let Some(rest) = end.rest().filter(|_| !aborted) {
        let late = match rest {
            Rest::Paused { .. } => state.misbehaviour.write_after_paused.take(),
            _ => None,
        };
        if let Some(late) = late {
            let due = now.saturating_add(us(late));
            state.posted.push_back(bus.late_write(due));
        }
        state.phase = Phase::Rest(rest);
        state.pause = None;
        slot.tell_phase(&state, now);
        state.stops(now);
        let run = state.relay.run.as_ref();
        match run.and_then(|run| end.reason(run.worked != 0)) {
            Some(reason) => slot.choose(&mut state, reason, results_lost, now),
            None => slot.interrupt(&mut state),
        }
    }
    slot.changed.notify_all();
}

/// Keeps the writes that a base card has issued and that will arrive later.
fn leave_posted(slot: &Slot, state: &mut State, posted: Vec<Posted>, now: u64) {
    if let Some(last) = posted.iter().map(|p| p.due).max().filter(|due| *due > now) {
        slot.host.recorder.record(What::Drain {
            slot: slot.index,
            until: last,
        });
    }
    state.posted.extend(posted);
}

/// Limits an engine to its speed, by credit that grows with time.
struct Pacer {
    last: u64,
    /// Thousandths of a unit.
    credit: u64,
}

/// The longest time for which an engine gets credit after the host was late.
const MAX_BURST_NS: u64 = 5_000_000;

impl Pacer {
    pub(super) fn new(now: u64) -> Self {
        Self {
            last: now,
            credit: 0,
        }
    }

    /// Returns the number of units that may be worked on now: 0, or at least `quantum`.
    fn allowance(&mut self, now: u64, speed: u64, quantum: u64) -> u64 {
        let elapsed = now.saturating_sub(self.last).min(MAX_BURST_NS);
        self.last = now;
        if speed == 0 {
            return u64::MAX;
        }
        let most = speed.saturating_mul(MAX_BURST_NS).max(quantum * 1000);
        self.credit = self
            .credit
            .saturating_add(elapsed.saturating_mul(speed))
            .min(most);
        let units = self.credit / 1000;
        if units < quantum {
            0
        } else {
            units
        }
    }

    /// Deducts the units that were worked on from the credit.
    fn spend(&mut self, units: u64) {
        self.credit = self.credit.saturating_sub(units.saturating_mul(1000));
    }
}

/// How long an engine without work sleeps between two checks while it lingers.
const LOOK: Duration = Duration::from_micros(20);

/// What the slot remembers of the engine from step to step.
struct Watch {
    coalescing: Option<Coalescing>,
    /// Completions that were reported to the driver.
    told: u64,
    /// When the first unreported completion was seen.
    untold_since: Option<u64>,
    idle_since: Option<u64>,
}

impl Watch {
    /// Starts watching the engine: the save has reported the completions from before the last save.
    pub(super) fn new(slot: &Slot, engine: &dyn Engine) -> Self {
        Self {
            coalescing: engine.coalescing().filter(|_| !slot.is_base()),
            told: engine.completed(),
            untold_since: None,
            idle_since: None,
        }
    }

    /// Reports completions when they are due.
    pub(super) fn tell(&mut self, slot: &Slot, engine: &dyn Engine, bus: &mut SlotBus<'_>) {
        let Some(n) = self.due(engine.completed(), now_ns()) else {
            return;
        };
        bus.flush(true);
        slot.completion_event(n);
    }

    /// Reports all unreported completions, because the card is being stopped.
    fn tell_all(&mut self, slot: &Slot, engine: &dyn Engine, bus: &mut SlotBus<'_>) {
        let untold = engine.completed().wrapping_sub(self.told);
        if self.coalescing.is_some() && untold != 0 {
            bus.flush(true);
            slot.completion_event(untold);
        }
    }

    /// Returns how many completions an event reports now.
    fn due(&mut self, completed: u64, now: u64) -> Option<u64> {
        let coalescing = self.coalescing?;
        let untold = completed.wrapping_sub(self.told);
        if untold == 0 {
            return None;
        }
        let since = *self.untold_since.get_or_insert(now);
        let due = untold >= coalescing.count || now.saturating_sub(since) >= us(coalescing.us);
        due.then(|| {
            self.told = completed;
            self.untold_since = None;
            untold
        })
    }

    /// Waits if there is no work. Returns whether the engine has left its queue and is to be saved
    /// as EMPTY.
    pub(super) fn rest(
        &mut self,
        slot: &Slot,
        engine: &mut dyn Engine,
        bus: &mut SlotBus<'_>,
    ) -> Result<bool, Refused> {
        if !engine.idle() {
            self.idle_since = None;
            return Ok(false);
        }
        bus.settle();
        let now = now_ns();
        let since = *self.idle_since.get_or_insert(now);
        let state = slot.lock();
        let lingers = us(state.settings.linger_us).saturating_sub(now.saturating_sub(since));
        let stays = state.aborted() || state.pause.is_some() || state.misbehaviour.hang;
        if !slot.is_base() && lingers == 0 && !stays {
            drop(state);
            self.idle_since = None;
            return Ok(engine.leave(bus)? && slot.begin_save());
        }
        let nap = if slot.is_base() {
            NAP
        } else {
            LOOK.min(Duration::from_nanos(lingers.max(1)))
        };
        // Requests from the registers are checked before the next step.
        drop(sleep(slot, state, nap));
        Ok(false)
    }
}

impl Slot {
    /// Begins the save of an engine that stops by its own decision. Returns false if a reset came
    /// first.
    fn begin_save(&self) -> bool {
        let mut state = self.lock();
        let goes = !state.aborted();
        if goes {
            let now = now_ns();
            state.stops(now);
            state.phase = Phase::Saving;
            self.tell_phase(&state, now);
        }
        goes
    }

    /// Reports `n` completions to the driver while the engine runs.
    fn completion_event(&self, n: u64) {
        let mut state = self.lock();
        if state.aborted() {
            return;
        }
        state.events = state.events.wrapping_add(1);
        self.host.recorder.record(What::Completions {
            slot: self.index,
            n,
        });
        self.post_events(&state);
        self.interrupt(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_grows_with_time() {
        let mut pacer = Pacer::new(0);
        assert_eq!(pacer.allowance(1_000, 10, 64), 0);
        assert_eq!(pacer.allowance(10_000, 10, 64), 100);
        pacer.spend(64);
        assert_eq!(pacer.allowance(10_000, 10, 1), 36);
        assert_eq!(pacer.allowance(u64::MAX, 10, 1), 50_000);
        assert_eq!(pacer.allowance(u64::MAX, 0, 1), u64::MAX);
    }

    fn watch(count: u64, us: u64) -> Watch {
        Watch {
            coalescing: Some(Coalescing { count, us }),
            told: u64::MAX,
            untold_since: None,
            idle_since: None,
        }
    }

    #[test]
    fn an_event_comes_by_count_or_by_time() {
        let mut watch = watch(3, 10);
        assert_eq!(watch.due(u64::MAX, 0), None);
        assert_eq!(watch.due(0, 1_000), None);
        assert_eq!(watch.due(1, 2_000), None);
        assert_eq!(watch.due(2, 3_000), Some(3), "by count");
        assert_eq!(watch.due(2, 900_000), None, "all are told");
        assert_eq!(watch.due(3, 900_000), None, "time counts from here");
        assert_eq!(watch.due(3, 909_999), None);
        assert_eq!(watch.due(4, 910_000), Some(2), "by time");
    }

    #[test]
    fn no_time_is_at_once_and_no_count_is_never() {
        assert_eq!(watch(5, 0).due(0, 7), Some(1));
        assert_eq!(watch(5, u64::MAX).due(3, u64::MAX), None);
        let never = Watch {
            coalescing: None,
            ..watch(1, 0)
        };
        assert_eq!({ never }.due(9, u64::MAX), None);
    }
}
