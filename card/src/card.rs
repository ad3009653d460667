// SPDX-License-Identifier: GPL-2.0-or-later
//! The card: PCI function, BAR 0, slots; and the state of a stopped card, from which this card or
//! another card of the same make continues. A stopped card makes no DMA, sends no interrupts and
//! loses nothing, like a device in the state STOP of the kernel's VFIO migration
//! (include/uapi/linux/vfio.h).

use crate::config::{CardConfig, IrqKind, Profile};
use crate::dma::{Access, Answer, DmaSpace};
use crate::engine::{EngineKind, EngineMaker};
use crate::event::{now_ns, What};
use crate::log::Recorder;
use crate::misbehave::{FaultCommand, Times};
use crate::pci::{ConfigSpace, ConfigWrite, Irqs, CONFIG_SIZE};
use crate::regs::{
    self, Reg, DFH, FEATURES_ALWAYS, FEATURE_IRQ, FEATURE_RELAY, MAGIC, MANAGER_ID, OPTIMUS_ID,
    VERSION,
};
use crate::relay::{self, Clock, Tables};
use crate::slot::{Slot, SlotState};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What the slots share: memory, interrupts, the log.
pub struct Host {
    /// The recorder of events.
    pub recorder: Recorder,
    /// Guest memory.
    pub memory: DmaSpace,
    /// Interrupt vectors.
    pub irqs: Irqs,
    /// The addresses of the memory of the relay interface.
    pub relay: Tables,
    /// The clock for the times in records.
    pub clock: Clock,
    irq: IrqKind,
    bus_master: AtomicBool,
    dead: AtomicBool,
    /// The card dies when this many registers have been read; 0: it does not.
    dead_in: AtomicU64,
    /// The card dies when this many registers have been written; 0: it does not.
    dead_in_writes: AtomicU64,
    losses: Losses,
}

/// Reads that are lost on the link.
#[derive(Default)]
struct Losses {
    plan: Mutex<LossPlan>,
    /// How many were lost.
    count: AtomicU64,
}

/// The reads that are lost from now on.
#[derive(Debug, Default)]
struct LossPlan {
    /// How many of the reads at which offset in BAR 0.
    at: (u64, Times),
    /// How many of all reads, after how many that are not.
    after: (u64, Times),
}

impl LossPlan {
    /// Counts a read at `off`. Returns whether it is lost.
    fn take(&mut self, off: u64) -> bool {
        let (left, times) = &mut self.after;
        let is_next = *left == 0 && times.take();
        *left = left.saturating_sub(1);
        let (offset, times) = &mut self.at;
        is_next | (*offset == off && times.take())
    }
}

impl Losses {
    fn plan(&self) -> MutexGuard<'_, LossPlan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a read at `off`. Returns whether it is lost.
    fn take(&self, off: u64) -> bool {
        let is_lost = self.plan().take(off);
        self.count.fetch_add(u64::from(is_lost), Ordering::AcqRel);
        is_lost
    }
}

/// Counts one of the accesses that are `left`. Returns whether it is the last of them.
fn is_the_last(left: &AtomicU64) -> bool {
    let count = |left: u64| left.checked_sub(1);
    left.fetch_update(Ordering::AcqRel, Ordering::Acquire, count) == Ok(1)
}

impl Host {
    /// Returns what a card without power has.
    pub(crate) fn new(irq: IrqKind, recorder: Recorder) -> Self {
        Self {
            recorder,
            memory: DmaSpace::default(),
            irqs: Irqs::default(),
            relay: Tables::default(),
            clock: Clock::default(),
            irq,
            bus_master: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            dead_in: AtomicU64::new(0),
            dead_in_writes: AtomicU64::new(0),
            losses: Losses::default(),
        }
    }

    /// Lets the card make DMA and send interrupts, or not. Returns whether that is a change.
    pub(crate) fn set_bus_master(&self, on: bool) -> bool {
        self.bus_master.swap(on, Ordering::AcqRel) != on
    }

    /// Returns whether the card can interrupt at all.
    pub fn has_irqs(&self) -> bool {
        self.irq != IrqKind::None
    }

    /// Sends the interrupt of a vector. Returns false if nobody received it.
    pub fn fire(&self, vector: usize) -> bool {
        self.on_the_bus() && self.irqs.fire(vector, self.irq == IrqKind::Msi)
    }

    /// Makes one DMA access.
    pub fn dma(&self, iova: u64, access: Access<'_>, give_up: Option<&AtomicBool>) -> Answer {
        if !self.on_the_bus() {
            return None;
        }
        self.memory.access(iova, access, give_up)
    }

    /// Returns the memory, while the card may access memory.
    pub fn memory_in_reach(&self) -> Option<&DmaSpace> {
        self.on_the_bus().then_some(&self.memory)
    }

    fn on_the_bus(&self) -> bool {
        self.bus_master.load(Ordering::Acquire) && !self.is_dead()
    }

    /// Makes the card neither die nor lose reads later.
    fn behave(&self) {
        self.dead_in.store(0, Ordering::Release);
        self.dead_in_writes.store(0, Ordering::Release);
        *self.losses.plan() = LossPlan::default();
    }

    /// Returns how many reads were lost on the link.
    pub fn lost_reads(&self) -> u64 {
        self.losses.count.load(Ordering::Acquire)
    }

    /// Returns whether the card acts dead.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }
}

/// The emulated card.
pub struct Card {
    config: CardConfig,
    host: Arc<Host>,
    slots: Vec<Arc<Slot>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    pci: Mutex<ConfigSpace>,
    /// Base: the bits of RESET that are of no slot.
    reset_beyond: AtomicU64,
    /// Held while a client disconnects, and while the card is stopped or takes a state.
    turnover: Mutex<()>,
}

impl Card {
    /// Makes a card in its state after power-on, with emulated engines and their threads.
    pub fn new(config: CardConfig, recorder: Recorder) -> Arc<Self> {
        let engines = config.slots.iter();
        let engines = engines.map(|slot| Arc::new(slot.engine) as Arc<dyn EngineMaker>);
        let makers = engines.collect();
        Self::with_makers(config, makers, recorder)
    }

    /// Like [`Card::new`], with a maker of engines for each slot.
    pub fn with_makers(
        config: CardConfig,
        makers: Vec<Arc<dyn EngineMaker>>,
        recorder: Recorder,
    ) -> Arc<Self> {
        recorder.record(What::Card {
            config: config.clone(),
        });
        let host = Arc::new(Host::new(config.irq, recorder));
        assert_eq!(config.slots.len(), makers.len());
        let slots = config.slots.iter().zip(makers).enumerate();
        let slots: Vec<_> = slots
            .map(|(i, (slot, maker))| Slot::new(i, *slot, maker, config.profile, host.clone()))
            .collect();
        let threads = Mutex::new(slots.iter().map(Slot::spawn).collect());
        let pci = Mutex::new(ConfigSpace::new(&config));
        Arc::new(Self {
            config,
            host,
            slots,
            threads,
            pci,
            reset_beyond: AtomicU64::new(0),
            turnover: Mutex::default(),
        })
    }

    /// Returns what the card is made of.
    pub fn config(&self) -> &CardConfig {
        &self.config
    }

    /// Returns what the slots of the card share.
    pub fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// Returns the recorder of the card's log.
    pub fn recorder(&self) -> &Recorder {
        &self.host.recorder
    }

    /// Returns the slots of the card.
    pub fn slots(&self) -> &[Arc<Slot>] {
        &self.slots
    }

    /// Reads BAR 0.
    pub fn bar_read(&self, off: u64, data: &mut [u8]) {
        if is_the_last(&self.host.dead_in) {
            self.set_dead(true);
        }
        if self.host.is_dead() {
            data.fill(0xff);
            return;
        }
        if self.host.losses.take(off) {
            self.recorder().record(What::LostRead { off });
            data.fill(0xff);
            return;
        }
        let reg = Reg::at(off, self.config.profile, self.slots.len());
        let val = match reg {
            Some(Reg::Msix) => 0,
            Some(Reg::Slot(slot, reg)) if data.len() == 8 => self.slots[slot].read(reg, off),
            reg => {
                let val = self.common_value(reg.filter(|_| data.len() == 8), off);
                self.recorder().record(What::Read {
                    off,
                    len: data.len() as u64,
                    val,
                });
                val
            }
        };
        data.fill(0);
        let n = data.len().min(8);
        data[..n].copy_from_slice(&val.to_le_bytes()[..n]);
    }

    /// Returns what a read of `reg` at `off` gives, which is no register of one slot.
    fn common_value(&self, reg: Option<Reg>, off: u64) -> u64 {
        let slot = regs::slot_of_page(off).and_then(|slot| self.slots.get(slot));
        match reg {
            Some(Reg::Dfh) if slot.is_some_and(|slot| !slot.answers()) => u64::MAX,
            Some(reg) => self.manager_value(reg),
            None => self.unless_base(0),
        }
    }

    /// Returns `value`, or what Optimus's manager answers where it has no register.
    fn unless_base(&self, value: u64) -> u64 {
        if self.config.profile.is_base() {
            u64::MAX
        } else {
            value
        }
    }

    fn manager_value(&self, reg: Reg) -> u64 {
        let relay = self.config.profile.has_relay();
        let id = if self.config.profile.is_base() {
            OPTIMUS_ID
        } else {
            MANAGER_ID
        };
        let tables = &self.host.relay;
        match reg {
            Reg::Dfh => DFH,
            Reg::ManagerIdH => id.0,
            Reg::ManagerIdL => id.1,
            Reg::Reset => {
                let slots = self.slots.iter().enumerate();
                let held: u64 = slots.map(|(i, s)| u64::from(s.in_reset()) << i).sum();
                held | self.reset_beyond.load(Ordering::Acquire)
            }
            Reg::SlotCount => self.slots.len() as u64,
            Reg::Magic => self.unless_base(MAGIC),
            Reg::Version => self.unless_base(VERSION),
            Reg::Features => self.unless_base(self.features()),
            Reg::RelayCaps => self.unless_base(if relay { relay::CAPS } else { 0 }),
            Reg::CtxTable => tables.table(),
            Reg::CtxCount => tables.count(),
            Reg::Records => tables.records(),
            Reg::Slot(..) | Reg::Msix => 0,
        }
    }

    fn features(&self) -> u64 {
        let bit = |has, bit| if has { bit } else { 0 };
        FEATURES_ALWAYS
            | bit(self.host.has_irqs(), FEATURE_IRQ)
            | bit(self.config.profile.has_relay(), FEATURE_RELAY)
    }

    /// Writes BAR 0. Only an aligned 64-bit write to a writable register has an effect.
    pub fn bar_write(&self, off: u64, data: &[u8]) {
        if is_the_last(&self.host.dead_in_writes) {
            self.set_dead(true);
        }
        if self.host.is_dead() {
            return;
        }
        let mut bytes = [0; 8];
        let n = data.len().min(8);
        bytes[..n].copy_from_slice(&data[..n]);
        let val = u64::from_le_bytes(bytes);
        match Reg::at(off, self.config.profile, self.slots.len()) {
            Some(Reg::Msix) => {}
            Some(reg @ Reg::Slot(slot, inner)) if data.len() == 8 && reg.writable() => {
                self.slots[slot].write(inner, off, val);
            }
            reg => {
                self.recorder().record(What::Write {
                    off,
                    len: data.len() as u64,
                    val,
                });
                if let Some(reg) = reg.filter(|_| data.len() == 8) {
                    self.manager_write(reg, val);
                }
            }
        }
    }

    fn manager_write(&self, reg: Reg, val: u64) {
        let relays = || self.slots.iter().any(|slot| slot.relays());
        let tables = &self.host.relay;
        match reg {
            Reg::Reset => {
                let slots = self.slots.iter().enumerate();
                slots.for_each(|(i, s)| s.reset(val >> i & 1 != 0));
                if self.config.profile.is_base() {
                    let beyond = val >> self.slots.len() << self.slots.len();
                    self.reset_beyond.store(beyond, Ordering::Release);
                }
            }
            Reg::CtxTable if !relays() => tables.set_table(val),
            Reg::CtxCount if !relays() => tables.set_count(val),
            Reg::Records if !relays() => tables.set_records(val),
            _ => {}
        }
    }

    pub(crate) fn pci(&self) -> MutexGuard<'_, ConfigSpace> {
        self.pci.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads configuration space.
    pub fn config_read(&self, off: u64, data: &mut [u8]) {
        if self.host.is_dead() {
            data.fill(0xff);
        } else {
            self.pci().read(off, data);
        }
    }

    /// Writes configuration space.
    pub fn config_write(&self, off: u64, data: &[u8]) {
        if self.host.is_dead() {
            return;
        }
        let ConfigWrite { bus_master, reset } = self.pci().write(off, data);
        self.set_bus_master(bus_master);
        if reset {
            self.device_reset();
        }
    }

    pub(crate) fn set_bus_master(&self, on: bool) {
        if self.host.set_bus_master(on) {
            self.recorder().record(What::Master { on });
            if !on {
                self.slots.iter().for_each(|slot| slot.quiesce());
            }
        }
    }

    /// Function-level or bus reset: puts the card into its state after power-on, once its last DMA
    /// is complete. A bus reset brings a dead card back.
    pub fn device_reset(&self) {
        self.set_dead(false);
        self.power_on(false);
    }

    fn power_on(&self, behave: bool) {
        self.slots.iter().for_each(|s| s.power_on(behave));
        self.host.relay.clear();
        self.reset_beyond.store(0, Ordering::Release);
        *self.pci() = ConfigSpace::new(&self.config);
        self.host.set_bus_master(false);
        self.recorder().record(What::DeviceReset);
    }

    /// Handles the arrival of a client. The card continues if it was stopped.
    pub fn connect(&self) {
        self.recorder().record(What::Connect);
        self.thaw();
    }

    /// Calls `f` and returns its result. No client disconnects meanwhile.
    pub fn with_client<R>(&self, f: impl FnOnce() -> R) -> R {
        let _held = self.turnover.lock().unwrap_or_else(PoisonError::into_inner);
        f()
    }

    /// Handles the departure of the client.
    pub fn disconnect(&self) {
        let _held = self.turnover.lock().unwrap_or_else(PoisonError::into_inner);
        self.power_on(true);
        self.host.dead.store(false, Ordering::Release);
        self.host.behave();
        self.host.irqs.clear();
        self.host.memory.set_remote(None);
        self.unmap_all();
        self.thaw();
        self.recorder().record(What::Disconnect);
    }

    /// Takes from the card the memory that begins in [iova, iova + size). Returns when no engine
    /// can reach that memory.
    pub fn unmap(&self, iova: u64, size: u64) {
        self.host.memory.unmap(iova, size);
        self.slots.iter().for_each(|slot| slot.release());
    }

    /// Takes all memory from the card.
    pub fn unmap_all(&self) {
        self.host.memory.clear();
        self.slots.iter().for_each(|slot| slot.release());
    }

    /// Switches a misbehaviour on or off.
    pub fn fault(&self, slot: usize, command: FaultCommand) {
        match command {
            FaultCommand::Clear => {
                self.host.behave();
                self.slots[slot].behave();
            }
            FaultCommand::Slot(fault) => self.slots[slot].misbehave(fault),
            FaultCommand::SpuriousIrq(n) => self.slots[slot].spurious(n),
            FaultCommand::Dead(on) => self.set_dead(on),
            FaultCommand::DeadAtRead(n) => self.host.dead_in.store(n, Ordering::Release),
            FaultCommand::DeadAtWrite(n) => self.host.dead_in_writes.store(n, Ordering::Release),
            FaultCommand::LoseRead(off, times) => self.host.losses.plan().at = (off, times),
            FaultCommand::LoseReadAt(n, times) => {
                self.host.losses.plan().after = match n.checked_sub(1) {
                    Some(left) => (left, times),
                    None => (0, Times::Never),
                };
            }
        }
    }

    fn set_dead(&self, on: bool) {
        if on == self.host.is_dead() {
            return;
        }
        // The checker must know first, because what a dead card does not write is not missing. A
        // card that comes back has nothing under way.
        self.recorder().record(What::Dead { on });
        self.host.dead.store(on, Ordering::Release);
        // The link was down, not the power. After a loss of power, the host would have to set up
        // configuration space again, and would not know it.
        self.slots.iter().for_each(|s| s.power_on(true));
        self.host.relay.clear();
        // The checker must know that nothing runs any more, and that windows are closed.
        self.recorder().record(What::DeviceReset);
    }

    /// Ends the engines' threads.
    pub fn stop(&self) {
        self.slots.iter().for_each(|s| s.stop());
        for thread in self
            .threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
        {
            let _ = thread.join();
        }
    }
}

/// The state of a stopped card. The serialized form omits the states of engines:
/// [`SlotState::engine`] returns them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardState {
    make: Make,
    config_space: Vec<u8>,
    /// `CTX_TABLE`, `CTX_COUNT`, `RECORDS`.
    tables: (u64, u64, u64),
    /// The time by the card's clock.
    time: u64,
    /// The slots.
    pub slots: Vec<SlotState>,
}

/// What a guest's driver has learnt about a card and relies on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Make {
    profile: Profile,
    irq: IrqKind,
    slots: Vec<SlotMake>,
}

/// What a guest's driver has learnt about a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SlotMake {
    engine: EngineKind,
    state_pages: u64,
    reset_clears: u64,
}

impl Make {
    /// Checks that this make can take a state of a card of the make `there`.
    ///
    /// # Errors
    ///
    /// A text that names both makes.
    pub fn check(&self, there: &Self) -> Result<(), String> {
        if self == there {
            return Ok(());
        }
        let (there, here) = (there.describe(), self.describe());
        Err(format!("it is of another card: {there}; this card: {here}"))
    }

    /// Returns a description for messages.
    fn describe(&self) -> String {
        let slot = |slot: &SlotMake| format!("{} ({} pages)", slot.engine.name(), slot.state_pages);
        let slots: Vec<_> = self.slots.iter().map(slot).collect();
        let (profile, irq) = (self.profile.name(), self.irq.name());
        format!("profile {profile}, {irq}, slots {}", slots.join(", "))
    }

    /// Returns the size in bytes of the engine's state in a slot.
    pub fn engine_bytes(&self, slot: usize) -> usize {
        let pages = self.slots.get(slot).map_or(0, |slot| slot.state_pages);
        usize::try_from(pages).unwrap_or(0).saturating_mul(4096)
    }
}

impl CardState {
    /// Returns the make of the card.
    pub fn make(&self) -> &Make {
        &self.make
    }
}

impl Card {
    /// Returns the make of the card.
    pub fn make(&self) -> Make {
        let config = self.config();
        let slots = config.slots.iter().map(|slot| SlotMake {
            engine: slot.engine,
            state_pages: slot.settings.state_pages,
            reset_clears: slot.settings.reset_clears,
        });
        Make {
            profile: config.profile,
            irq: config.irq,
            slots: slots.collect(),
        }
    }

    /// Stops the card: when this returns, no slot accesses memory or interrupts. Registers can
    /// still be read and written; a job that is started begins when the card continues. If a client
    /// writes registers meanwhile, the state is not that of a single moment. `Err`: a slot whose
    /// job did not stop within `limit`; the card then continues.
    pub fn freeze(&self, limit: Duration) -> Result<(), usize> {
        let until = Instant::now() + limit;
        self.slots().iter().for_each(|slot| slot.freeze());
        let late = self
            .slots()
            .iter()
            .position(|slot| !slot.wait_frozen(until));
        match late {
            None => Ok(()),
            Some(slot) => {
                self.thaw();
                Err(slot)
            }
        }
    }

    /// Lets the card continue.
    pub fn thaw(&self) {
        self.slots().iter().for_each(|slot| slot.thaw());
    }

    /// Returns whether the card is stopped.
    pub fn is_frozen(&self) -> bool {
        self.slots().iter().any(|slot| slot.is_frozen())
    }

    /// Returns whether a slot is not at rest.
    pub fn is_busy(&self) -> bool {
        self.slots().iter().any(|slot| slot.is_busy())
    }

    /// Returns the state of the card, which must be stopped.
    pub fn state(&self) -> CardState {
        let host = self.host();
        CardState {
            make: self.make(),
            config_space: self.pci().bytes().to_vec(),
            tables: (host.relay.table(), host.relay.count(), host.relay.records()),
            time: host.clock.told(now_ns()),
            slots: self.slots().iter().map(|slot| slot.state()).collect(),
        }
    }

    /// Takes a state of a card of the same make. The card must be stopped, and stays stopped.
    ///
    /// # Errors
    ///
    /// The reason why the card cannot take the state. The card then has its previous state.
    pub fn set_state(&self, state: &CardState) -> Result<(), String> {
        self.check(state)?;
        let before = self.state();
        self.apply(state);
        let mut slots = self.slots().iter().zip(&state.slots);
        let prepared = slots.try_for_each(|(slot, from)| slot.prepare(from));
        if prepared.is_err() {
            self.apply(&before);
        }
        prepared
    }

    fn apply(&self, state: &CardState) {
        self.device_reset();
        let host = self.host();
        host.clock.set(state.time);
        let (table, count, records) = state.tables;
        host.relay.set_table(table);
        host.relay.set_count(count);
        host.relay.set_records(records);
        let mut space = ConfigSpace::new(self.config());
        let written = space.write(0, &state.config_space);
        *self.pci() = space;
        self.set_bus_master(written.bus_master);
        for (slot, state) in self.slots().iter().zip(&state.slots) {
            slot.set_state(state);
        }
    }

    fn check(&self, state: &CardState) -> Result<(), String> {
        self.make().check(&state.make)?;
        let fits = state.slots.len() == self.slots().len()
            && state.config_space.len() == CONFIG_SIZE
            && Tables::is_count(state.tables.1);
        let mut pairs = self.slots().iter().zip(&state.slots);
        if fits && pairs.all(|(slot, state)| slot.takes(state)) {
            Ok(())
        } else {
            Err("it is inconsistent".into())
        }
    }

    /// Sends an interrupt for each slot, because an interrupt may have been lost when the card was
    /// stopped. The driver then reads the status of its slots.
    pub fn interrupt_again(&self) {
        if self.host().has_irqs() {
            self.slots().iter().for_each(|slot| slot.spurious(1));
        }
    }
}
