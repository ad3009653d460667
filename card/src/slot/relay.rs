// SPDX-License-Identifier: GPL-2.0-or-later
//! Orders of a slot: the held order, the run that an order began, the loading of a context for a
//! run, and what a run leaves in memory.

use super::state::{Job, Phase, Queued, State, Stop};
use super::worker::End;
use super::Slot;
use crate::dma::{Access, DmaTrace};
use crate::engine::AppRegs;
use crate::event::{now_ns, us, OrderFate, RecordFate, Unit, What};
use crate::misbehave::Misbehaviour;
use crate::regs::{SlotReg, APP_FIRST, TAG};
use crate::relay::{Clock, Entry, Order, Reason, Record, ENTRY_SIZE, RESULTS};
use serde::{Deserialize, Serialize};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// The state of a slot's orders.
#[derive(Default)]
pub(super) struct Relay {
    /// `RELAY[i]`
    pub(super) on: bool,
    pub(super) held: Option<Order>,
    /// The run that occupies the slot, if an order brought it there.
    pub(super) run: Option<Run>,
    /// Number of power-ons: a write that was delayed must not survive a power-on.
    pub(super) epoch: u64,
    /// A record of which only the last word is in memory.
    pub(super) torn: Option<Torn>,
}

/// The words of a record that come after its last word.
pub(super) struct Torn {
    at: u64,
    words: Vec<u8>,
    run: u32,
}

/// A run that an order began. Times are 0 until they are known.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) context: u64,
    pub(super) resume: bool,
    pub(super) cookie: u64,
    pub(super) began: u64,
    pub(super) worked: u64,
    pub(super) stopped: u64,
    /// Where the results go.
    pub(super) results: u64,
    pub(super) offsets: [u16; RESULTS],
    /// AT of the held order has passed, and was obeyed or ignored.
    spent: bool,
    /// The stop under way saves nothing.
    pub(super) drops: bool,
    /// A misbehaviour: AT of the held order is late by this many nanoseconds.
    late_ns: u64,
}

impl Run {
    fn new(context: u64, resume: bool, began: u64) -> Self {
        Self {
            context,
            resume,
            cookie: 0,
            began,
            worked: 0,
            stopped: 0,
            results: 0,
            offsets: [0; RESULTS],
            spent: false,
            drops: false,
            late_ns: 0,
        }
    }

    /// Returns the run with its times converted to another clock.
    pub(super) fn at(&self, clock: impl Fn(u64) -> u64) -> Self {
        let time = |time| if time == 0 { 0 } else { clock(time) };
        Self {
            began: time(self.began),
            worked: time(self.worked),
            stopped: time(self.stopped),
            ..self.clone()
        }
    }

    /// Notes the entry of the context that was loaded.
    pub(super) fn loaded(&mut self, entry: &Entry) {
        self.results = entry.results;
        self.offsets = entry.offsets;
    }
}

impl Relay {
    /// Returns the held order if its AT is still to come, and when AT is due.
    pub(super) fn deadline(&self) -> Option<(Order, u64)> {
        let (order, run) = (self.held?, self.run.as_ref()?);
        let at = us(order.at_us()?).saturating_add(run.late_ns);
        (run.worked != 0 && !run.spent).then(|| (order, Clock::after(run.worked, at)))
    }

    /// Returns whether the held order has AT 0, which aborts a restore.
    pub(super) fn at_zero(&self) -> bool {
        let late = self.run.as_ref().map_or(0, |run| run.late_ns);
        late == 0 && self.held.is_some_and(|order| order.at_us() == Some(0))
    }

    /// Handles a reset: no order is held, and the run leaves no record.
    pub(super) fn reset(&mut self) {
        self.held = None;
        self.run = None;
    }
}

impl Slot {
    /// Handles a write to `RELAY[i]`.
    pub(super) fn switch_relay(state: &mut State, val: u64) {
        if state.relay.run.is_none() && !state.phase.busy() {
            state.relay.on = val & 1 != 0;
        }
    }

    /// Returns whether the slot obeys orders.
    pub fn relays(&self) -> bool {
        self.lock().relay.on
    }

    /// Handles a write to `ORDER[i]`.
    pub(super) fn order(&self, state: &mut State, order: Order, t: u64) {
        let run = state.start_count;
        let fate = Self::judge(state, order);
        let accepted = matches!(fate, OrderFate::Held | OrderFate::Taken);
        let seen = order.context().filter(|_| accepted);
        self.host.recorder.record_at(
            t,
            What::Order {
                slot: self.index,
                order,
                run,
                fate,
                seen: seen.and_then(|context| self.peek(context)),
            },
        );
        match fate {
            OrderFate::Held => {
                Self::hold(state, order);
                self.stop_when_due(state, t);
            }
            OrderFate::Withdrawn => state.relay.held = None,
            OrderFate::Taken => self.take(state, order, t),
            OrderFate::Dropped | OrderFate::Ignored | OrderFate::Off => return,
        }
        self.tell_engine(state);
        self.maker.wake();
        self.changed.notify_all();
    }

    fn judge(state: &mut State, order: Order) -> OrderFate {
        if !state.relay.on {
            return OrderFate::Off;
        }
        if state.misbehaviour.ignore_order.take() {
            return OrderFate::Ignored;
        }
        let vacant = state.relay.run.is_none();
        if state.in_reset || order.vacant() != vacant {
            return OrderFate::Dropped;
        }
        let follows = order.after() == state.start_count as u16;
        if !follows && !state.misbehaviour.stale_order.take() {
            return OrderFate::Dropped;
        }
        match (vacant, order) {
            (true, order) if order.next() == 0 || order.reserved() => OrderFate::Dropped,
            (true, _) => OrderFate::Taken,
            (false, order) if order.withdraws() => OrderFate::Withdrawn,
            (false, _) => OrderFate::Held,
        }
    }

    fn hold(state: &mut State, order: Order) {
        state.relay.held = Some(order);
        let Some(run) = state.relay.run.as_mut() else {
            return;
        };
        run.spent = false;
        run.late_ns = match order.at_us() {
            Some(_) => us(state.misbehaviour.late_at.take().unwrap_or(0)),
            None => 0,
        };
    }

    /// Stops the job when AT of the held order is due. Once the job is stopping, every AT is due.
    pub(super) fn stop_when_due(&self, state: &mut State, now: u64) {
        let Some((order, due)) = state.relay.deadline() else {
            return;
        };
        let works = state.phase == Phase::Running;
        if !works || now < due && state.pause.is_none() {
            return;
        }
        let at_once = state.pause == Some(Stop::AtOnce);
        if let Some(run) = state.relay.run.as_mut() {
            run.spent = true;
            // After a DROP at once, the engine may be at a point where it cannot be saved.
            run.drops = order.drops() || run.drops && at_once;
        }
        let boundary = self.stops_at_boundary(order);
        let stop = if boundary {
            Stop::AtBoundary
        } else {
            Stop::AtOnce
        };
        self.pause(state, stop, boundary && order.boundary());
    }

    /// Returns whether the order asks for a stop at a boundary.
    pub(super) fn stops_at_boundary(&self, order: Order) -> bool {
        order.boundary() && self.engine.has_boundaries()
            || !order.drops() && self.engine.only_at_boundaries()
    }

    /// Takes an order: begins a run and increments RUN. The thread loads the context.
    fn take(&self, state: &mut State, order: Order, t: u64) {
        let Some(context) = order.context() else {
            return;
        };
        state.start_count = state.start_count.wrapping_add(1);
        state.phase = Phase::Loading;
        state.pause = None;
        state.restore_us = 0;
        state.written = AppRegs::default();
        if !state.misbehaviour.results_kept {
            state.reads = AppRegs::default();
        }
        state.relay.run = Some(Run::new(context, order.resume(), t));
        state.queued = Some(Queued::Context(context));
        self.host.recorder.record_at(
            t,
            What::Take {
                slot: self.index,
                run: state.start_count,
                context,
            },
        );
    }

    /// Ends the run: posts its record and takes the next context. A reader of the registers sees
    /// one step, because the caller holds the lock.
    pub(super) fn choose(
        self: &Arc<Self>,
        state: &mut State,
        reason: Reason,
        results_lost: bool,
        now: u64,
    ) {
        let Some(run) = state.relay.run.take() else {
            return;
        };
        let order = state.relay.held.take().filter(|order| order.next() != 0);
        let is_void = |o: &Order| o.reserved() || o.context() == Some(run.context);
        let taken = order.filter(|order| !is_void(order));
        let told = run.at(|time| self.host.clock.told(time));
        // A run that was refused did not clear the fault of an earlier one.
        let (fault_info, fault_addr) = match reason {
            Reason::Fault => (state.fault_info, state.fault_addr),
            _ => (0, 0),
        };
        let record = Record {
            cookie: run.cookie,
            began: told.began,
            worked: told.worked,
            stopped: told.stopped,
            left: self.host.clock.told(now),
            fault_addr,
            next: taken.map_or(0, |order| order.next() as u32),
            fault_info: fault_info as u32,
            run: state.start_count,
            reason,
            results_lost,
            void: order.is_some() && taken.is_none(),
        };
        if taken.is_none() {
            self.window.set_size(0);
        }
        let interrupts = self.post(state, &record, run.context, now);
        if let Some(order) = taken {
            self.take(state, order, now);
        }
        if interrupts {
            self.interrupt(state);
        }
    }
}

const PAGE: u64 = 4096;

/// What the card has read of a context.
struct Context {
    entry: Entry,
    regs: Vec<u8>,
    /// Digest of all the bytes that were read.
    seen: u64,
}

fn digest(entry: &[u8], regs: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(entry);
    hasher.write(regs);
    hasher.finish()
}

/// Loads the context into the slot. Returns the job that now runs, or how the run ends instead.
pub(super) fn load(slot: &Slot, context: u64) -> Result<Job, End> {
    let mut trace = DmaTrace::default();
    let (cookie, read) = fetch(slot, context, &mut trace);
    slot.log_dma(&mut trace, 0, Unit::Control);
    let mut state = slot.lock();
    if state.aborted() {
        return Err(End::Aborted);
    }
    if let Some(run) = state.relay.run.as_mut() {
        run.cookie = cookie;
    }
    match read {
        Some(read) => Ok(slot.start_context(&mut state, &read)),
        None => Err(End::Refused),
    }
}

/// Reads entry and registers. Returns the cookie, and the whole context if it is valid.
fn fetch(slot: &Slot, context: u64, trace: &mut DmaTrace) -> (u64, Option<Context>) {
    let (error, state_size) = {
        let mut state = slot.lock();
        let error = state.misbehaviour.entry_error.take();
        (error, state.settings.state_pages * PAGE)
    };
    let mut bytes = [0; ENTRY_SIZE];
    let at = slot.host.relay.entry_at(context).filter(|_| !error);
    if !at.is_some_and(|at| read(slot, at, &mut bytes, trace)) {
        return (0, None);
    }
    let cookie = Entry::cookie_of(&bytes);
    let Some(entry) = Entry::parse(&bytes, state_size) else {
        return (cookie, None);
    };
    let mut regs = vec![0; slot.register_bytes()];
    let from = entry.regs.saturating_add(u64::from(APP_FIRST));
    let read = read(slot, from, &mut regs, trace).then(|| Context {
        entry,
        seen: digest(&bytes, &regs),
        regs,
    });
    (cookie, read)
}

fn read(slot: &Slot, iova: u64, buf: &mut [u8], trace: &mut DmaTrace) -> bool {
    let give_up = Some(&slot.abandoned);
    slot.transfer(iova, Access::Read(buf), Unit::Control, give_up, trace)
        .is_some()
}

impl Slot {
    /// Returns the number of bytes from the first application register to the end of the engine's
    /// last one.
    fn register_bytes(&self) -> usize {
        let last = self.engine.writable().iter().max().copied();
        usize::from(last.map_or(0, |last| last + 8 - APP_FIRST))
    }

    /// Returns the digest of a context as it is in memory now, or `None` if the context cannot be
    /// read. Only the checker uses it.
    fn peek(&self, context: u64) -> Option<u64> {
        let mut bytes = [0; ENTRY_SIZE];
        let mut regs = vec![0; self.register_bytes()];
        let at = self.host.relay.entry_at(context)?;
        self.host.dma(at, Access::Read(&mut bytes), None)?;
        let from = Entry::regs_of(&bytes).saturating_add(u64::from(APP_FIRST));
        self.host.dma(from, Access::Read(&mut regs), None)?;
        Some(digest(&bytes, &regs))
    }

    /// Sets the registers of the slot and starts the job.
    fn start_context(&self, state: &mut State, read: &Context) -> Job {
        let Context { entry, regs, seen } = read;
        self.window.set_offset(entry.dma_offset);
        self.window.set_base(entry.window_base);
        self.window.set_size(entry.window_size);
        state.snapshot = entry.snapshot_addr;
        state.written = AppRegs::default();
        for &offset in self.engine.writable() {
            let at = usize::from(offset - APP_FIRST);
            let mut word = [0; 8];
            word.copy_from_slice(&regs[at..at + 8]);
            state.written.set(offset, u64::from_le_bytes(word));
        }
        if self.engine.needs_reset() {
            state.reads = AppRegs::default();
        }
        let (context, resume, began) = match state.relay.run.as_mut() {
            Some(run) => {
                run.loaded(entry);
                (run.context, run.resume, run.began)
            }
            None => (0, false, now_ns()),
        };
        let loaded = |&offset: &u16| (offset, state.written.get(offset));
        self.host.recorder.record(What::Load {
            slot: self.index,
            run: state.start_count,
            context,
            seen: *seen,
            regs: self.engine.writable().iter().map(loaded).collect(),
        });
        self.host.recorder.record(What::Start {
            slot: self.index,
            resume,
            accepted: true,
            tag: state.written.get(TAG),
        });
        let job = self.begin(state, resume, began);
        self.stop_when_due(state, now_ns());
        job
    }
}

/// Offset of the last word of a record.
const LAST: u64 = Record::LAST as u64;
/// The delay of the rest of a torn record.
const TEAR: Duration = Duration::from_millis(2);

/// Writes the results of the run that has become quiescent. Returns whether they are lost.
pub(super) fn lose_results(slot: &Slot) -> bool {
    let Some((at, bytes)) = results(slot) else {
        return false;
    };
    let mut trace = DmaTrace::default();
    let give_up = Some(&slot.abandoned);
    let written = slot.transfer(
        at,
        Access::Write(&bytes),
        Unit::Control,
        give_up,
        &mut trace,
    );
    slot.log_dma(&mut trace, 0, Unit::Control);
    written.is_none()
}

/// Returns where results go and what they are, or `None` if there are none.
fn results(slot: &Slot) -> Option<(u64, [u8; 8 * RESULTS])> {
    let state = slot.lock();
    let run = state.relay.run.as_ref().filter(|_| !state.aborted())?;
    if run.worked == 0 || run.results == 0 {
        return None;
    }
    let mut bytes = [0; 8 * RESULTS];
    for (to, &offset) in bytes.chunks_exact_mut(8).zip(&run.offsets) {
        if offset != 0 {
            let value = slot.value(&state, SlotReg::App(offset), 0);
            to.copy_from_slice(&value.to_le_bytes());
        }
    }
    Some((run.results, bytes))
}

/// Returns what becomes of the next record, and how late it is.
fn fate(misbehaviour: &mut Misbehaviour) -> (RecordFate, Duration) {
    if misbehaviour.lose_record.take() {
        (RecordFate::Lost, Duration::ZERO)
    } else if let Some(us) = misbehaviour.delay_record.take() {
        (RecordFate::Late, Duration::from_micros(us))
    } else if misbehaviour.tear_record.take() {
        (RecordFate::Torn, TEAR)
    } else {
        (RecordFate::Posted, Duration::ZERO)
    }
}

impl Slot {
    /// Posts the record of a run that ended at `now`, or does what a misbehaviour demands. Returns
    /// whether the interrupt comes now.
    fn post(self: &Arc<Self>, state: &mut State, record: &Record, context: u64, now: u64) -> bool {
        self.complete_record(state);
        // Once the record is written, the context may change.
        let seen = self.peek(context);
        let at = self.host.relay.record_at(self.index, record.run);
        let bytes = record.bytes();
        let (head, last) = bytes.split_at(Record::LAST);
        let (wanted, delay) = fate(&mut state.misbehaviour);
        let fate = if wanted == RecordFate::Posted && !self.put(at, head) {
            RecordFate::Lost
        } else {
            wanted
        };
        // The driver may act on the last word as soon as the word is in memory.
        let ended = What::Record {
            slot: self.index,
            run: record.run,
            context,
            reason: record.reason,
            next: u64::from(record.next),
            void: record.void,
            results_lost: record.results_lost,
            fate,
            seen,
        };
        self.host.recorder.record_at(now, ended);
        let last_comes = matches!(fate, RecordFate::Posted | RecordFate::Torn);
        if last_comes && !self.put(at.saturating_add(LAST), last) {
            self.note_written(record.run, false, false);
            return true;
        }
        match fate {
            RecordFate::Late => {
                let (bytes, run) = (bytes.to_vec(), record.run);
                self.later(state, delay, move |slot, state| {
                    let (head, last) = bytes.split_at(Record::LAST);
                    let is_written = slot.put(at, head) && slot.put(at.saturating_add(LAST), last);
                    slot.note_written(run, is_written, true);
                    if is_written {
                        slot.interrupt(state);
                    }
                });
            }
            RecordFate::Torn => {
                let (words, run) = (head.to_vec(), record.run);
                state.relay.torn = Some(Torn { at, words, run });
                self.later(state, delay, Self::complete_record);
            }
            RecordFate::Lost | RecordFate::Posted => {}
        }
        fate != RecordFate::Late
    }

    /// Calls `f` after `delay`, unless the card is reset before that.
    fn later(
        self: &Arc<Self>,
        state: &State,
        delay: Duration,
        f: impl FnOnce(&Self, &mut State) + Send + 'static,
    ) {
        let (slot, epoch) = (self.clone(), state.relay.epoch);
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            let mut state = slot.lock();
            if state.relay.epoch == epoch && !state.quit {
                f(&slot, &mut state);
            }
        });
    }

    /// Writes the rest of a torn record. A read of the status pushes it, as it pushes all writes.
    pub(super) fn complete_record(&self, state: &mut State) {
        if let Some(Torn { at, words, run }) = state.relay.torn.take() {
            let is_written = self.put(at, &words);
            self.note_written(run, is_written, false);
        }
    }

    /// Logs that the rest of a record was written, or was lost. `irq`: its interrupt follows.
    fn note_written(&self, run: u32, is_written: bool, irq: bool) {
        let slot = self.index;
        self.host.recorder.record(if is_written {
            What::RecordLanded { slot, run, irq }
        } else {
            What::RecordLost { slot, run }
        });
    }

    /// Writes EVENTS to memory; the interrupt of a completion event must follow.
    pub(super) fn post_events(&self, state: &State) {
        if state.relay.on {
            let at = self.host.relay.events_at(self.index);
            let events = self.value(state, SlotReg::Events, 0);
            self.put(at, &events.to_le_bytes());
        }
    }

    /// Writes control memory under the slot's lock. Reaches shared memory only, because a register
    /// access must not wait for the client.
    fn put(&self, at: u64, bytes: &[u8]) -> bool {
        let mut trace = DmaTrace::default();
        let access = Access::Write(bytes);
        let answer = self.transfer(at, access, Unit::Control, None, &mut trace);
        self.log_dma(&mut trace, 0, Unit::Control);
        answer.is_some()
    }
}
