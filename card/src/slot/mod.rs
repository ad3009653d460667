// SPDX-License-Identifier: GPL-2.0-or-later
//! A slot: the registers of one accelerator, and the thread that runs its engine.
//!
//! The register side ([`Slot`]) and the thread (`worker`) share [`State`] under one lock, which is
//! never held while the engine works.

mod bus;
mod relay;
mod snapshot;
mod state;
mod worker;

use crate::card::Host;
use crate::config::{Profile, SlotConfig};
use crate::dma::LINE;
use crate::engine::{AppRegs, EngineKind, EngineMaker, Reach};
use crate::event::{us, IrqFate, PauseFate, What};
use crate::misbehave::{Misbehaviour, SlotFault};
use crate::regs::{
    ctl, is_unanswered, slot_of_page, status, SlotReg, CAP_BOUNDARY, CAP_BOUNDARY_ONLY, CAP_QUEUE,
    CAP_RESET_BEFORE_RESUME, CAP_RESET_CLEARS, IOVA_BITS, TAG,
};
use crate::relay::Order;
use bus::{Deadline, Window};
use relay::Relay;
pub use state::SlotState;
use state::{Job, Phase, Queued, Rest, State, Stop, Thread};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// One slot.
pub struct Slot {
    index: usize,
    engine: EngineKind,
    maker: Arc<dyn EngineMaker>,
    profile: Profile,
    host: Arc<Host>,
    state: Mutex<State>,
    changed: Condvar,
    window: Window,
    /// The engine must return at once.
    attention: AtomicBool,
    /// The engine must return at its next boundary.
    wants_boundary: AtomicBool,
    /// When the held order wants the engine to return.
    deadline: Deadline,
    /// The job in the engine was aborted by a reset.
    abandoned: AtomicBool,
}

/// The longest that a register access waits for a thread that the host does not run.
const PATIENCE: Duration = Duration::from_secs(2);

/// All addresses of programs are below this address.
const ADDRESS_END: u64 = 1 << 47;

/// Returns base and size of the window that a job has without a window check: the part of `memory`
/// (IOVA and length) that programs can address when `offset` is added to their addresses.
fn whole_window(memory: Option<(u64, u64)>, offset: u64) -> (u64, u64) {
    let (iova, length) = memory.unwrap_or((0, 0));
    let first = iova.wrapping_sub(offset) & IOVA_BITS;
    let (base, size) = if first < ADDRESS_END {
        (first, length)
    } else {
        // The memory begins below the IOVA of address 0.
        (0, length.saturating_sub(IOVA_BITS + 1 - first))
    };
    (base, size.min(ADDRESS_END - base))
}

impl Slot {
    /// Returns a slot in its state after power-on.
    pub fn new(
        index: usize,
        config: SlotConfig,
        maker: Arc<dyn EngineMaker>,
        profile: Profile,
        host: Arc<Host>,
    ) -> Arc<Self> {
        Arc::new(Self {
            index,
            engine: config.engine,
            maker,
            profile,
            host,
            state: Mutex::new(State::new(config.settings)),
            changed: Condvar::new(),
            window: Window::default(),
            attention: AtomicBool::new(false),
            wants_boundary: AtomicBool::new(false),
            deadline: Deadline::default(),
            abandoned: AtomicBool::new(false),
        })
    }

    /// Starts the engine's thread.
    pub fn spawn(self: &Arc<Self>) -> JoinHandle<()> {
        let slot = self.clone();
        std::thread::spawn(move || worker::run(&slot))
    }

    /// Ends the engine's thread.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.quit = true;
        self.halt(&mut state);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_base(&self) -> bool {
        self.profile.is_base()
    }

    /// Reads a register and records it.
    pub fn read(&self, reg: SlotReg, off: u64) -> u64 {
        let mut state = self.lock();
        if reg == SlotReg::Ctl && !self.is_base() {
            state = self.quiet(state);
        }
        let t = crate::event::now_ns();
        state = self.complete_due(state, t);
        if reg == SlotReg::Ctl {
            self.complete_record(&mut state);
        }
        let late = match reg {
            _ if slot_of_page(off).is_some() && self.is_deaf(&state) => Some(u64::MAX),
            _ if self.is_base() && is_unanswered(off) => {
                let waits = state.settings.unanswered_us;
                drop(state);
                std::thread::sleep(Duration::from_micros(waits));
                state = self.lock();
                Some(u64::MAX)
            }
            SlotReg::Ctl => state.take_late(t),
            _ => None,
        };
        let val = late.unwrap_or_else(|| self.value(&state, reg, t));
        self.host
            .recorder
            .record_at(t, What::Read { off, len: 8, val });
        val
    }

    fn value(&self, state: &State, reg: SlotReg, t: u64) -> u64 {
        let (id_h, id_l) = if state.misbehaviour.no_engine {
            (0, 0)
        } else {
            self.engine.afu_id()
        };
        match reg {
            SlotReg::DmaOffset => self.offset_register(),
            SlotReg::WindowBase => self.window.base(),
            SlotReg::WindowSize => self.window.size(),
            SlotReg::FaultInfo | SlotReg::FaultAddr | SlotReg::Events
                if state.misbehaviour.ones =>
            {
                u64::MAX
            }
            SlotReg::FaultInfo => state.fault_info,
            SlotReg::FaultAddr => state.fault_addr,
            SlotReg::Events => state.events,
            SlotReg::Caps if self.is_base() => u64::MAX,
            SlotReg::Caps => self.capabilities(state),
            SlotReg::Relay => u64::from(state.relay.on),
            SlotReg::SnapshotAddr | SlotReg::Order => 0,
            SlotReg::IdH => id_h,
            SlotReg::IdL => id_l,
            SlotReg::Ctl => self.status(state, t),
            SlotReg::StateSize => state
                .misbehaviour
                .state_size
                .unwrap_or(state.settings.state_pages),
            SlotReg::App(TAG) => state.written.get(TAG),
            SlotReg::App(offset) => state.reads.get(offset),
        }
    }

    /// Returns by how much the value of `DMA_OFFSET` is shifted to the left: base counts lines.
    fn offset_shift(&self) -> u32 {
        if self.is_base() {
            LINE.trailing_zeros()
        } else {
            0
        }
    }

    fn offset_register(&self) -> u64 {
        (self.window.offset() as i64 >> self.offset_shift()) as u64
    }

    fn capabilities(&self, state: &State) -> u64 {
        let bit = |has, bit| if has { bit } else { 0 };
        bit(self.engine.needs_reset(), CAP_RESET_BEFORE_RESUME)
            | bit(self.engine.has_boundaries(), CAP_BOUNDARY)
            | bit(self.engine.only_at_boundaries(), CAP_BOUNDARY_ONLY)
            | bit(self.engine.has_queue(), CAP_QUEUE)
            | bit(self.reset_clears(state), CAP_RESET_CLEARS)
    }

    fn reset_clears(&self, state: &State) -> bool {
        !self.is_base() && state.settings.reset_clears != 0
    }

    fn status(&self, state: &State, t: u64) -> u64 {
        if !self.is_base() {
            return state.status()
                | state.restore_us << status::RESTORE_SHIFT
                | u64::from(state.start_count) << 32;
        }
        match state.lag {
            Some((until, old)) if t < until && state.phase.busy() => old,
            _ => state.status() & 0xff,
        }
    }

    /// Writes a register and records it.
    pub fn write(&self, reg: SlotReg, off: u64, val: u64) {
        let mut state = self.lock();
        // A card that has died since the write arrived must not begin a run.
        if self.host.is_dead() {
            return;
        }
        let t = crate::event::now_ns();
        self.host
            .recorder
            .record_at(t, What::Write { off, len: 8, val });
        state = self.complete_due(state, t);
        if state.relay.on && reg.is_loaded_by_orders() {
            return;
        }
        if self.is_deaf(&state) && matches!(reg, SlotReg::App(_) | SlotReg::SnapshotAddr) {
            return;
        }
        match reg {
            SlotReg::Order => self.order(&mut state, Order(val), t),
            SlotReg::Relay => Self::switch_relay(&mut state, val),
            SlotReg::DmaOffset => self.window.set_offset(val << self.offset_shift()),
            SlotReg::WindowBase => self.window.set_base(val),
            SlotReg::WindowSize => self.window.set_size(val),
            SlotReg::FaultInfo => (state.fault_info, state.fault_addr) = (0, 0),
            SlotReg::SnapshotAddr => state.snapshot = (val & ((1 << 42) - 1)) << 6,
            SlotReg::Ctl => self.control(&mut state, val, t),
            SlotReg::App(offset) if self.engine.writable().contains(&offset) => {
                state.written.set(offset, val);
            }
            _ => {}
        }
    }

    fn control(&self, state: &mut State, val: u64, t: u64) {
        match val {
            ctl::START_NEW => self.start(state, false, t),
            ctl::START_RESUME => self.start(state, true, t),
            ctl::PAUSE => self.pause(state, self.soonest_stop(), false),
            ctl::PAUSE_AT_BOUNDARY if !self.is_base() && self.engine.has_boundaries() => {
                self.pause(state, Stop::AtBoundary, true);
            }
            _ => {}
        }
    }

    fn start(&self, state: &mut State, resume: bool, t: u64) {
        let tag = state.written.get(TAG);
        let accepted = !state.in_reset && !state.phase.busy();
        self.host.recorder.record_at(
            t,
            What::Start {
                slot: self.index,
                resume,
                accepted,
                tag,
            },
        );
        if !accepted {
            return;
        }
        state.start_count = state.start_count.wrapping_add(1);
        state.lag = Some((
            t.saturating_add(us(state.settings.start_lag_us)),
            state.status() & 0xff,
        ));
        state.queued = Some(Queued::Job(self.begin(state, resume, t)));
        self.changed.notify_all();
    }

    /// Begins a job with the present registers. `at` is when the job was requested.
    fn begin(&self, state: &mut State, resume: bool, at: u64) -> Job {
        state.pause = None;
        state.restore_us = 0;
        (state.fault_info, state.fault_addr) = (0, 0);
        state.reset_at = None;
        let registers = state.reads;
        if !(resume && self.engine.needs_reset() || !resume && state.misbehaviour.results_kept) {
            state.reads = AppRegs::default();
        }
        if let Some(off) = state.reads.first_set().filter(|_| !resume) {
            let slot = self.index;
            self.host.recorder.record(What::ResultsLeft { slot, off });
        }
        let now = crate::event::now_ns();
        if resume {
            state.phase = Phase::Restoring;
        } else {
            state.works(now);
        }
        self.tell_phase(state, now);
        Job {
            resume,
            written: state.written,
            reads: registers,
            at,
        }
    }

    fn pause(&self, state: &mut State, stop: Stop, at_boundary: bool) {
        let fate = match state.phase {
            Phase::Running if state.misbehaviour.hang => PauseFate::Ignored,
            Phase::Running if state.misbehaviour.ignore_pause.take() => PauseFate::Ignored,
            Phase::Running => PauseFate::Honoured,
            _ => PauseFate::Dropped,
        };
        self.host.recorder.record(What::Pause {
            slot: self.index,
            fate,
            at_boundary,
        });
        if fate == PauseFate::Honoured {
            // A PAUSE at a boundary does not replace a PAUSE at once.
            state.pause = state.pause.max(Some(stop));
            self.tell_engine(state);
            self.maker.wake();
            self.changed.notify_all();
        }
    }

    /// Returns the first point at which the engine can be stopped.
    fn soonest_stop(&self) -> Stop {
        if self.engine.only_at_boundaries() {
            Stop::AtBoundary
        } else {
            Stop::AtOnce
        }
    }

    /// Tells the running engine what it has to stop for.
    fn tell_engine(&self, state: &State) {
        let frozen = state.frozen.then(|| self.soonest_stop());
        let stop = state.pause.max(frozen);
        self.attention
            .store(stop == Some(Stop::AtOnce), Ordering::Release);
        self.wants_boundary
            .store(stop == Some(Stop::AtBoundary), Ordering::Release);
        let deadline = state.relay.deadline();
        self.deadline
            .set(deadline.map(|(order, due)| (due, self.stops_at_boundary(order))));
    }

    /// Returns what a job that begins now may reach.
    fn reach(&self, state: &State) -> Reach<'_> {
        let (window_base, window_size) = if self.is_base() {
            whole_window(self.host.memory.largest(), self.window.offset())
        } else {
            (self.window.base(), self.window.size())
        };
        Reach {
            window_base,
            window_size,
            offset: self.window.offset(),
            snapshot: state.snapshot,
            memory: Box::new(|| self.host.memory_in_reach()),
        }
    }

    /// Handles the loss of memory; returns when the engine can no longer reach the lost memory.
    pub fn release(&self) {
        self.maker.release(&self.host.memory);
    }

    /// Handles a write to the slot's bit in RESET.
    pub fn reset(self: &Arc<Self>, asserted: bool) {
        let mut state = self.lock();
        let t = crate::event::now_ns();
        state = self.complete_due(state, t);
        // The register holds the bits of all slots: writing a bit that is already set is not a new
        // reset.
        let rises = asserted && !state.in_reset;
        state.in_reset = asserted;
        if rises && !state.misbehaviour.reset_fails {
            self.take_reset(&mut state, t);
        }
    }

    /// Lets the reset take effect.
    fn take_reset(self: &Arc<Self>, state: &mut State, t: u64) {
        let aborted = state.phase.busy();
        self.leave_answer(state, t);
        self.host.recorder.record_at(
            t,
            What::SlotReset {
                slot: self.index,
                aborted,
            },
        );
        state.reset_at = Some(t);
        state.misbehaviour.hang = false;
        state.restore_us = 0;
        self.halt(state);
        if aborted && self.is_base() && state.settings.drain_us > 0 {
            let until = t.saturating_add(us(state.settings.drain_us));
            self.host.recorder.record_at(
                t,
                What::Drain {
                    slot: self.index,
                    until,
                },
            );
        }
        let mut kept = AppRegs::default();
        if !self.reset_clears(state) {
            for &offset in self.engine.kept() {
                kept.set(offset, state.written.get(offset));
            }
        }
        state.written = kept;
        state.reads = AppRegs::default();
        if state.relay.on {
            self.window.set_size(0);
        }
        self.changed.notify_all();
    }

    /// Under the misbehaviour `late_paused`, leaves the answer of a save that is cut short by a
    /// reset: a status and an interrupt.
    fn leave_answer(self: &Arc<Self>, state: &mut State, t: u64) {
        let (Phase::Saving, Some(after)) = (state.phase, state.misbehaviour.late_paused) else {
            return;
        };
        let count = if self.is_base() { 0 } else { state.start_count };
        let answer = status::PAUSED | u64::from(count) << 32;
        state.late = Some((t.saturating_add(us(after)), answer));
        let slot = self.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(after));
            if !slot.is_base() && slot.host.has_irqs() {
                slot.spurious(1);
            }
        });
    }

    /// Stops the running job; the thread notices at its next boundary.
    fn halt(&self, state: &mut State) {
        state.phase = Phase::Rest(Rest::Idle);
        state.queued = None;
        state.pause = None;
        state.lag = None;
        state.relay.reset();
        if state.thread != Thread::Free {
            state.thread = Thread::Aborted;
            self.abandoned.store(true, Ordering::Release);
            self.attention.store(true, Ordering::Release);
            self.maker.wake();
        }
    }

    /// Puts the slot into its state after power-on, once its last DMA is complete or dropped.
    /// Settings stay. So do misbehaviours, unless `behave` is set (but a hang never outlives a
    /// reset).
    pub fn power_on(&self, behave: bool) {
        let mut state = self.lock();
        self.halt(&mut state);
        self.changed.notify_all();
        state = self.quiet(state);
        let misbehaviour = if behave {
            Misbehaviour::default()
        } else {
            Misbehaviour {
                hang: false,
                ..state.misbehaviour.clone()
            }
        };
        let (thread, frozen, quit) = (state.thread, state.frozen, state.quit);
        let relay = Relay {
            epoch: state.relay.epoch + 1,
            ..Relay::default()
        };
        *state = State {
            misbehaviour,
            thread,
            relay,
            frozen,
            quit,
            ..State::new(state.settings)
        };
        self.window.clear();
        drop(state);
        self.quiesce();
    }

    /// Stops access to memory; returns when the engine can reach memory only by its bus.
    pub fn quiesce(&self) {
        self.maker.quiesce();
    }

    /// Waits until the thread has noticed an abort.
    fn quiet<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let until = Instant::now() + PATIENCE;
        while state.aborted() && Instant::now() < until {
            state = self
                .changed
                .wait_timeout(state, PATIENCE)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        state
    }

    /// Completes the DMA that must have arrived by now, so that its arrival does not depend on when
    /// the host runs a thread. On an irq or relay card, only a misbehaviour leaves such DMA.
    fn complete_due<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        t: u64,
    ) -> MutexGuard<'a, State> {
        if !self.is_base() {
            self.deliver(&mut state, t);
            return state;
        }
        if state.aborted() && state.settled(t) {
            state = self.quiet(state);
        }
        let all = state.settled(t) && !state.phase.busy();
        self.deliver(&mut state, if all { u64::MAX } else { t });
        state
    }

    /// Logs the phase that began at `now`, with the time that the record of the run has.
    fn tell_phase(&self, state: &State, now: u64) {
        let (fault, snapshot_error) = state.phase.errors();
        let what = What::Phase {
            slot: self.index,
            phase: state.phase.told(),
            fault,
            snapshot_error,
            empty: state.phase == Phase::Rest(Rest::Paused { empty: true }),
        };
        self.host.recorder.record_at(now, what);
    }

    /// Sends the slot's interrupt, or loses it.
    fn interrupt(&self, state: &mut State) {
        if self.is_base() || !self.host.has_irqs() {
            return;
        }
        let lost = state.misbehaviour.lose_irq.take() || !self.host.fire(self.index);
        let fate = if lost { IrqFate::Lost } else { IrqFate::Sent };
        self.host.recorder.record(What::Irq {
            slot: self.index,
            fate,
        });
    }

    /// Sends `n` spurious interrupts.
    pub fn spurious(&self, n: u64) {
        for _ in 0..n {
            let fate = if self.host.fire(self.index) {
                IrqFate::Spurious
            } else {
                IrqFate::Lost
            };
            self.host.recorder.record(What::Irq {
                slot: self.index,
                fate,
            });
        }
    }

    /// Sends spurious interrupts as long as the misbehaviour is on, and then records their number.
    /// The thread exists only for the storm.
    fn storm(self: &Arc<Self>) {
        let slot = self.clone();
        std::thread::spawn(move || {
            let mut sent = 0;
            while let Some(pause) = slot.storm_pause() {
                sent += u64::from(slot.host.fire(slot.index));
                std::thread::sleep(pause);
            }
            slot.host.recorder.record(What::Misbehave {
                slot: slot.index,
                text: format!("storm of {sent}"),
            });
        });
    }

    fn storm_pause(&self) -> Option<Duration> {
        let state = self.lock();
        let us = state.misbehaviour.irq_storm;
        (us > 0 && !state.quit).then(|| Duration::from_micros(us))
    }

    /// Switches a misbehaviour on or off.
    pub fn misbehave(self: &Arc<Self>, fault: SlotFault) {
        self.host.recorder.record(What::Misbehave {
            slot: self.index,
            text: format!("{fault:?}"),
        });
        let mut state = self.lock();
        let mut changed = state.misbehaviour.clone();
        changed.apply(fault);
        self.set_misbehaviour(&mut state, changed);
    }

    fn set_misbehaviour(self: &Arc<Self>, state: &mut State, to: Misbehaviour) {
        let storms = to.irq_storm > 0;
        let before = std::mem::replace(&mut state.misbehaviour, to);
        if storms && before.irq_storm == 0 {
            self.storm();
        }
        let failed = before.reset_fails;
        // A reset that had no effect, and is still asserted, takes effect now.
        if failed && !state.misbehaviour.reset_fails && state.in_reset {
            self.take_reset(state, crate::event::now_ns());
        }
        self.changed.notify_all();
    }

    /// Switches all misbehaviours off.
    pub fn behave(self: &Arc<Self>) {
        self.host.recorder.record(What::Misbehave {
            slot: self.index,
            text: "clear".into(),
        });
        self.set_misbehaviour(&mut self.lock(), Misbehaviour::default());
    }

    /// Changes settings.
    pub fn set(&self, pairs: &[(&str, u64)]) -> Result<(), String> {
        let mut state = self.lock();
        let mut settings = state.settings;
        for (key, value) in pairs {
            settings.set(key, *value)?;
        }
        state.settings = settings;
        self.host.recorder.record(What::Settings {
            slot: self.index,
            settings,
        });
        self.changed.notify_all();
        Ok(())
    }

    /// Returns the reply to `state`.
    pub fn describe(&self) -> String {
        let state = self.lock();
        format!(
            "status={:#x} restore_us={} start_count={} events={} tag={:#x} dma_offset={:#x} \
                 window_base={:#x} window_size={:#x} fault_info={:#x} \
             reset={} relay={} held={:#x} pending_faults={} phase={} engine={}",
            self.status(&state, crate::event::now_ns()) & 0xfff,
            state.restore_us,
            state.start_count,
            state.events,
            state.written.get(TAG),
            self.window.offset(),
            self.window.base(),
            self.window.size(),
            state.fault_info,
            u8::from(state.in_reset),
            u8::from(state.relay.on),
            state.relay.held.map_or(0, |order| order.0),
            state.misbehaviour.pending(),
            format!("{:?}", state.phase.told()).to_lowercase(),
            self.engine.name(),
        )
    }

    /// Returns whether RESET holds the slot. A read of the register flushes DMA as one of the slot
    /// does.
    pub fn in_reset(&self) -> bool {
        let state = self.lock();
        self.complete_due(state, crate::event::now_ns()).in_reset
    }

    /// Returns whether the page of the slot can be read.
    pub fn answers(&self) -> bool {
        !self.is_deaf(&self.lock())
    }

    /// Returns whether the engine answers no read and ignores writes: on base, in reset.
    fn is_deaf(&self, state: &State) -> bool {
        self.is_base() && state.in_reset && !state.misbehaviour.reset_fails
    }

    /// Returns when no step of the slot is under way.
    pub fn settle(&self) {
        drop(self.lock());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_without_window_check_reaches_the_memory_at_addresses_of_programs() {
        const GIB: u64 = 1 << 30;
        let of = |iova, offset| whole_window(Some((iova, 2 * GIB)), offset);
        assert_eq!(whole_window(None, 7), (0, 0));
        assert_eq!(of(GIB, 0), (GIB, 2 * GIB));
        // The address 5 GiB is the IOVA 2 GiB: the memory is at 4 to 6 GiB.
        assert_eq!(of(GIB, 0u64.wrapping_sub(3 * GIB)), (4 * GIB, 2 * GIB));
        // The address 0 is the IOVA 2 GiB: the first GiB is at no address.
        assert_eq!(of(GIB, 2 * GIB), (0, GIB));
        assert_eq!(of(GIB, 4 * GIB), (0, 0));
        let end = 0u64.wrapping_sub(ADDRESS_END - 2 * GIB);
        assert_eq!(of(GIB, end), (ADDRESS_END - GIB, GIB));
    }
}
