// SPDX-License-Identifier: GPL-2.0-or-later
//! A foreign card: BAR 0 is a library's (card/include/fermata-card.h), everything else is as with the
//! emulated card. All calls of the library are made on one thread.

pub mod interface;
#[cfg(not(target_feature = "crt-static"))]
pub mod library;
mod observer;

use crate::card::Host;
use crate::config::{CardConfig, IrqKind, Profile, MAX_SLOTS};
use crate::device::Device;
use crate::dma::Access;
use crate::engine::EngineKind;
use crate::event::What;
use crate::log::Recorder;
use crate::misbehave::FaultCommand;
use crate::pci::ConfigSpace;
use crate::regs::MSIX_TABLE;
use clap::ValueEnum as _;
use interface::{Functions, HostCalls, OpenCard, DMA_MAX, EINVAL, ENODEV, OK, UNANSWERED, VERSION};
use observer::Observer;
use std::cell::RefCell;
use std::ffi::{c_int, c_void, CString};
use std::sync::mpsc::{channel, sync_channel, Receiver, Sender, SyncSender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// `FERMATA_CARD_NO_SLOT`
const NO_SLOT: u32 = u32::MAX;
/// Cycles of a tick: an access waits for the end of it, which is 0.1 ms with a large design under
/// Verilator.
const CYCLES: u64 = 64;

/// What a foreign card is made of, besides its library.
#[derive(Clone, Debug)]
pub struct Make {
    /// The profile that the design claims to follow.
    pub profile: Profile,
    /// Interrupts (always none on base).
    pub irq: IrqKind,
    /// Settings of slots, as on the command line: those that the checker needs.
    pub settings: Vec<String>,
    /// The library's argument.
    pub argument: CString,
}

/// A request to the thread of the library.
enum Call {
    Read(u64, u32, SyncSender<u64>),
    Write(u64, u32, u64),
    /// Record this.
    Tell(What, SyncSender<()>),
    Reset(SyncSender<()>),
    Quit,
}

/// A card whose BAR 0 is a library's.
pub struct Foreign {
    config: CardConfig,
    host: Arc<Host>,
    pci: Mutex<ConfigSpace>,
    calls: Sender<Call>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Foreign {
    /// Opens and resets the card of a library. The thread of the library begins.
    ///
    /// # Errors
    ///
    /// A text: the library refused, or a setting is wrong.
    pub fn start(
        functions: Functions,
        make: Make,
        recorder: Recorder,
    ) -> Result<Arc<Self>, String> {
        let irq = if make.profile.is_base() {
            IrqKind::None
        } else {
            make.irq
        };
        let host = Arc::new(Host::new(irq, recorder));
        let (calls, requests) = channel();
        let (tell, told) = sync_channel(1);
        let of_thread = host.clone();
        let thread =
            std::thread::spawn(move || serve(functions, &make, of_thread, &requests, &tell));
        let config = told
            .recv()
            .map_err(|_| String::from("the thread of the library has ended"))??;
        Ok(Arc::new(Self {
            pci: Mutex::new(ConfigSpace::new(&config)),
            config,
            host,
            calls,
            thread: Mutex::new(Some(thread)),
        }))
    }

    /// Closes the card and ends its thread.
    pub fn stop(&self) {
        let _ = self.calls.send(Call::Quit);
        let thread = self.thread.lock();
        if let Some(thread) = thread.unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }

    fn pci(&self) -> MutexGuard<'_, ConfigSpace> {
        self.pci.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a request, and returns its answer.
    fn ask<T>(&self, call: impl FnOnce(SyncSender<T>) -> Call) -> Option<T> {
        let (tell, told) = sync_channel(1);
        self.calls.send(call(tell)).ok()?;
        told.recv().ok()
    }

    fn tell(&self, what: What) {
        self.ask(|done| Call::Tell(what, done));
    }

    /// Returns the length of an access that the library can serve.
    fn served(&self, off: u64, len: usize) -> Option<u32> {
        let has_size = matches!(len, 1 | 2 | 4 | 8) && off % len as u64 == 0;
        (has_size && !self.is_msix(off)).then_some(len as u32)
    }

    /// Returns whether QEMU answers at an offset itself.
    fn is_msix(&self, off: u64) -> bool {
        self.config.irq == IrqKind::Msix && off >= MSIX_TABLE
    }
}

impl Device for Foreign {
    fn config(&self) -> &CardConfig {
        &self.config
    }

    fn host(&self) -> &Host {
        &self.host
    }

    fn bar_read(&self, off: u64, data: &mut [u8]) {
        data.fill(if self.is_msix(off) { 0 } else { 0xff });
        let Some(len) = self.served(off, data.len()) else {
            return;
        };
        if let Some(val) = self.ask(|reply| Call::Read(off, len, reply)) {
            data.copy_from_slice(&val.to_le_bytes()[..data.len()]);
        }
    }

    fn bar_write(&self, off: u64, data: &[u8]) {
        if let Some(len) = self.served(off, data.len()) {
            let mut bytes = [0; 8];
            bytes[..data.len()].copy_from_slice(data);
            let val = u64::from_le_bytes(bytes);
            let _ = self.calls.send(Call::Write(off, len, val));
        }
    }

    fn config_read(&self, off: u64, data: &mut [u8]) {
        self.pci().read(off, data);
    }

    fn config_write(&self, off: u64, data: &[u8]) {
        let written = self.pci().write(off, data);
        let on = written.bus_master;
        if self.host.set_bus_master(on) {
            self.tell(What::Master { on });
        }
        if written.reset {
            self.device_reset();
        }
    }

    fn device_reset(&self) {
        *self.pci() = ConfigSpace::new(&self.config);
        self.host.set_bus_master(false);
        self.ask(Call::Reset);
    }

    fn connect(&self) {
        self.tell(What::Connect);
    }

    fn disconnect(&self) {
        self.device_reset();
        self.host.irqs.clear();
        self.host.memory.set_remote(None);
        self.host.memory.clear();
        self.tell(What::Disconnect);
    }

    fn unmap(&self, iova: u64, size: u64) {
        self.host.memory.unmap(iova, size);
    }

    fn unmap_all(&self) {
        self.host.memory.clear();
    }

    fn set(&self, _slot: usize, _pairs: &[(&str, u64)]) -> Result<(), String> {
        Err("a foreign card has no settings".into())
    }

    fn fault(&self, _slot: usize, _command: FaultCommand) -> Result<(), String> {
        Err("a foreign card has no misbehaviours".into())
    }

    fn state(&self, _slot: usize) -> Result<String, String> {
        Err("a foreign card does not show its state".into())
    }

    fn settle(&self) {}
}

/// What the functions of the host work on. It stays on the thread of the library.
struct Side {
    host: Arc<Host>,
    observer: RefCell<Observer>,
}

/// The thread of the library: opens the card, tells what it is made of, and serves until it is told
/// to quit.
fn serve(
    functions: Functions,
    make: &Make,
    host: Arc<Host>,
    requests: &Receiver<Call>,
    tell: &SyncSender<Result<CardConfig, String>>,
) {
    let nothing = CardConfig {
        profile: make.profile,
        irq: IrqKind::None,
        slots: Vec::new(),
        ats: false,
    };
    let recorder = host.recorder.clone();
    // Until the slots are known nothing is recorded.
    let observer = RefCell::new(Observer::new(&nothing, Recorder::none()));
    let side = Side { host, observer };
    let calls = HostCalls {
        version: VERSION,
        size: size_of::<HostCalls>() as u32,
        host: (&raw const side).cast_mut().cast(),
        dma_read,
        dma_write,
        interrupt,
    };
    let opened = functions.open(&calls, &make.argument).and_then(|card| {
        card.reset();
        Ok((configure(&card, make)?, card))
    });
    let (config, card) = match opened {
        Ok(opened) => opened,
        Err(text) => return drop(tell.send(Err(text))),
    };
    recorder.record(What::Card {
        config: config.clone(),
    });
    *side.observer.borrow_mut() = Observer::new(&config, recorder);
    let _ = tell.send(Ok(config));
    work(&card, requests, &side);
}

/// Returns the configuration of a card that was reset, from its registers.
fn configure(card: &OpenCard, make: &Make) -> Result<CardConfig, String> {
    let register = |off| match card.bar_read(off, 8) {
        (OK, value) => Some(value),
        _ => None,
    };
    let count = register(0x20).unwrap_or(0);
    // The driver must refuse a number that is out of range.
    let slots = count.clamp(1, MAX_SLOTS as u64);
    let engine = |slot: u64| {
        let id = |off| register(0x1000 * (slot + 1) + off);
        let id = id(0x10).zip(id(0x08));
        let mut known = EngineKind::value_variants().iter();
        let known = known.find(|kind| Some(kind.afu_id()) == id);
        known.copied().unwrap_or(EngineKind::Foreign)
    };
    let engines: Vec<_> = (0..slots).map(engine).collect();
    let mut config = CardConfig::new(make.profile, make.irq, &engines)?;
    for text in &make.settings {
        config
            .apply(text)
            .map_err(|error| format!("--set {text}: {error}"))?;
    }
    Ok(config)
}

/// Lets the design work, and makes the accesses of the client in between.
fn work(card: &OpenCard, requests: &Receiver<Call>, side: &Side) {
    let mut works = true;
    loop {
        let call = if works {
            requests.try_recv()
        } else {
            side.observer.borrow_mut().flush();
            requests.recv().map_err(|_| TryRecvError::Disconnected)
        };
        match call {
            Err(TryRecvError::Empty) => works = card.tick(CYCLES),
            Err(TryRecvError::Disconnected) | Ok(Call::Quit) => break,
            Ok(call) => {
                side.make(card, call);
                works = true;
            }
        }
    }
    side.observer.borrow_mut().flush();
}

impl Side {
    /// Makes a call. While the library works, it may call the host.
    fn make(&self, card: &OpenCard, call: Call) {
        match call {
            Call::Read(off, len, reply) => {
                let (answer, value) = card.bar_read(off, len);
                let mut observer = self.observer.borrow_mut();
                if !matches!(answer, OK | UNANSWERED) {
                    observer.bad_call(format!("bar_read() at {off:#x} returned {answer}"));
                }
                let mask = u64::MAX >> (64 - 8 * len);
                let is_answered = answer == OK;
                let value = if is_answered { value & mask } else { mask };
                observer.read(off, len.into(), value, is_answered);
                let _ = reply.send(value);
            }
            Call::Write(off, len, value) => {
                self.observer.borrow_mut().write(off, len.into(), value);
                card.bar_write(off, len, value);
            }
            Call::Tell(what, done) => {
                let mut observer = self.observer.borrow_mut();
                observer.flush();
                self.host.recorder.record(what);
                let _ = done.send(());
            }
            Call::Reset(done) => {
                card.reset();
                self.observer.borrow_mut().reset();
                let _ = done.send(());
            }
            Call::Quit => {}
        }
    }

    /// Makes a DMA access.
    fn dma(&self, slot: u32, iova: u64, access: Access<'_>) -> c_int {
        let write = matches!(access, Access::Write(_));
        let touched = self.host.dma(iova, access, None);
        let status = if touched.is_some() { OK } else { ENODEV };
        let mut observer = self.observer.borrow_mut();
        observer.dma(slot, iova, write, touched);
        status
    }

    /// Checks the arguments of a DMA access.
    fn admits(&self, name: &str, slot: u32, data: *const c_void, length: usize) -> bool {
        let mut observer = self.observer.borrow_mut();
        let why = if data.is_null() {
            "a null pointer".into()
        } else if !(1..=DMA_MAX).contains(&length) {
            format!("{length} bytes, not 1 to {DMA_MAX}")
        } else if slot != NO_SLOT && !observer.has_slot(slot) {
            format!("slot {slot}")
        } else {
            return true;
        };
        observer.bad_call(format!("{name}() with {why}"));
        false
    }
}

unsafe extern "C" fn dma_read(
    host: *mut c_void,
    slot: u32,
    address: u64,
    data: *mut c_void,
    length: usize,
) -> c_int {
    // SAFETY: it is the pointer that `serve` gave to the library.
    let side = unsafe { &*host.cast::<Side>() };
    if !side.admits("dma_read", slot, data, length) {
        return EINVAL;
    }
    let data: *mut u8 = data.cast();
    // SAFETY: the library vouches for the memory.
    let data = unsafe {
        data.write_bytes(0, length);
        std::slice::from_raw_parts_mut(data, length)
    };
    side.dma(slot, address, Access::Read(data))
}

unsafe extern "C" fn dma_write(
    host: *mut c_void,
    slot: u32,
    address: u64,
    data: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: it is the pointer that `serve` gave to the library.
    let side = unsafe { &*host.cast::<Side>() };
    if !side.admits("dma_write", slot, data, length) {
        return EINVAL;
    }
    // SAFETY: the library vouches for the memory.
    let data = unsafe { std::slice::from_raw_parts(data.cast(), length) };
    side.dma(slot, address, Access::Write(data))
}

unsafe extern "C" fn interrupt(host: *mut c_void, vector: u32) -> c_int {
    // SAFETY: it is the pointer that `serve` gave to the library.
    let side = unsafe { &*host.cast::<Side>() };
    let mut observer = side.observer.borrow_mut();
    if !observer.has_slot(vector) {
        observer.bad_call(format!("interrupt() with vector {vector}"));
        return EINVAL;
    }
    let sent = side.host.fire(vector as usize);
    observer.interrupt(vector, sent);
    if sent {
        OK
    } else {
        ENODEV
    }
}
