// SPDX-License-Identifier: GPL-2.0

//! What is written to a slot when a context is put on it, and read from it when the context leaves.

use crate::{
    bar::{Bar, Fault, Identity, Window},
    delivery::Delivery,
    measure::ContextMeter,
    measurement,
    monotonic::now,
    notifier::{Notice, Notifier},
    regs::{APP_FIRST, APP_LAST},
    relay::{ImagePages, Relay, TableEntry, RESULTS},
    scheduler::{Duration, SlotId, Status},
};
use kernel::{prelude::*, sync::Arc};

/// Application registers of a slot.
const APP_COUNT: usize = ((APP_LAST - APP_FIRST) / 8 + 1) as usize;
/// Result registers that a context can declare.
pub(crate) const MAX_RESULTS: usize = RESULTS;

/// The byte offset of an application register.
///
/// # Invariants
///
/// A multiple of 8 from [`APP_FIRST`] to [`APP_LAST`]: the control registers below belong to the
/// driver alone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct AppRegister(u32);

impl AppRegister {
    /// Returns the register at `offset`. `EINVAL`: it is not an application register.
    pub(crate) fn new(offset: u32) -> Result<Self> {
        if !(APP_FIRST..=APP_LAST).contains(&offset) || offset % 8 != 0 {
            return Err(EINVAL);
        }
        // INVARIANT: Just checked.
        Ok(Self(offset))
    }

    /// Number of application registers.
    pub(crate) const COUNT: usize = APP_COUNT;

    /// Returns all application registers, in ascending order.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        // INVARIANT: In range, in steps of 8.
        (APP_FIRST..=APP_LAST).step_by(8).map(Self)
    }

    /// Returns the byte offset in the slot's page.
    pub(crate) fn offset(self) -> u32 {
        self.0
    }

    fn index(self) -> usize {
        ((self.0 - APP_FIRST) / 8) as usize
    }
}

/// A set of application registers.
#[derive(Clone, Copy)]
pub(crate) struct RegisterSet([u64; APP_COUNT.div_ceil(64)]);

impl RegisterSet {
    /// No register.
    pub(crate) const EMPTY: Self = Self([0; APP_COUNT.div_ceil(64)]);

    /// Adds `register`. Returns whether it was not in the set before.
    pub(crate) fn insert(&mut self, register: AppRegister) -> bool {
        let index = register.index();
        let (word, bit) = (&mut self.0[index / 64], 1 << (index % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Returns whether there are no registers in the set.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    fn contains(&self, register: AppRegister) -> bool {
        let index = register.index();
        self.0[index / 64] & 1 << (index % 64) != 0
    }

    /// Returns the number of registers in the set.
    fn count(&self) -> u32 {
        // Counting bits is slow without an instruction for it, and most words are zero.
        let words = self.0.iter().filter(|&&word| word != 0);
        words.map(|word| word.count_ones()).sum()
    }

    /// Returns the registers of `self` that are not in `other`.
    fn without(&self, other: &Self) -> Self {
        let mut left = *self;
        for (word, taken) in left.0.iter_mut().zip(other.0) {
            *word &= !taken;
        }
        left
    }

    /// Returns the registers of both sets.
    fn with(&self, other: &Self) -> Self {
        let mut both = *self;
        for (word, more) in both.0.iter_mut().zip(other.0) {
            *word |= more;
        }
        both
    }

    fn for_each(&self, f: impl FnMut(AppRegister)) {
        let mut left = *self;
        left.drain(u32::MAX, f);
    }

    /// Takes out the first registers, at most `most`, and calls `f` with each. Returns how many
    /// these were.
    fn drain(&mut self, most: u32, mut f: impl FnMut(AppRegister)) -> u32 {
        let mut count = 0;
        for (word, bits) in self.0.iter_mut().enumerate() {
            while *bits != 0 && count != most {
                let index = word * 64 + bits.trailing_zeros() as usize;
                *bits &= *bits - 1;
                count += 1;
                // INVARIANT: Only indices of registers are ever inserted. CAST: below APP_COUNT.
                f(AppRegister(APP_FIRST + 8 * index as u32));
            }
        }
        count
    }
}

/// The application registers that a context has written, zeros included, with their last values.
///
/// All of them are replayed before each START, because a reset leaves some registers of the card as
/// the previous context had them. Registers cannot be saved by reading them back, since an offset
/// may read one thing and write another. So registers that the previous context has written, and
/// this one has not, are overwritten with zero.
struct Written {
    /// Indexed by [`AppRegister::index`]; on the heap, since it would fill much of the stack.
    values: KVec<u64>,
    set: RegisterSet,
}

impl Written {
    fn set(&mut self, register: AppRegister, value: u64) {
        self.values[register.index()] = value;
        self.set.insert(register);
    }
}

/// What the driver has written last to the registers of a slot.
///
/// A register that only the driver writes is not written again if it has the right value already:
/// the slot is vacant during the writes, and each of them takes time.
#[derive(Clone, Copy)]
pub(crate) struct ShadowRegs {
    /// Application registers that may not be zero.
    registers: RegisterSet,
    /// `None`: not known.
    window: Option<Window>,
    /// The address of snapshots; `None`: not known.
    snapshot: Option<u64>,
}

impl ShadowRegs {
    /// The shadow registers of a slot whose application registers are all zero.
    pub(crate) const CLEAR: Self = Self {
        registers: RegisterSet::EMPTY,
        window: None,
        snapshot: None,
    };

    /// Notes a reset of the slot, after which the values of registers that only the driver writes
    /// are not known. `clears`: the reset clears the application registers.
    pub(crate) fn note_reset(&mut self, clears: bool) {
        (self.window, self.snapshot) = (None, None);
        if clears {
            self.registers = RegisterSet::EMPTY;
        }
    }

    /// Moves the window of `slot`; `card` says whether the card checks the window.
    fn move_window(&mut self, bar: &Bar, slot: SlotId, window: Window, card: &Identity) {
        bar.set_window(slot, self.window, &window, card);
        self.window = Some(window);
    }

    /// Closes the window of `slot`, on a card that checks windows.
    pub(crate) fn close_window(&mut self, bar: &Bar, slot: SlotId, card: &Identity) {
        let window = Window {
            length: 0,
            ..self.window.unwrap_or_default()
        };
        self.move_window(bar, slot, window, card);
    }

    fn set_snapshot(&mut self, bar: &Bar, slot: SlotId, address: u64) {
        if self.snapshot.replace(address) != Some(address) {
            bar.set_snapshot(slot, address);
        }
    }
}

/// A declared result register, and its value when the job last left a slot.
#[derive(Clone, Copy)]
struct ResultRegister {
    register: AppRegister,
    value: Option<u64>,
}

/// The image of a context: what a slot is loaded with for it. Protected by the card's raw lock
/// (`card/state.rs`).
pub(crate) struct Image {
    written: Written,
    results: [Option<ResultRegister>; MAX_RESULTS],
    /// The arena; `None`: there is none, or its device address is not known yet.
    window: Option<Window>,
    /// Address of the snapshot buffer for the card, and its length; `None`: no buffer yet.
    snapshot: Option<(u64, u64)>,
    /// The memory in which a card with a relay reads registers of the context and writes results.
    pages: Option<ImagePages>,
    /// The image differs from what the card reads in memory.
    is_unpublished: bool,
    /// The access that stopped the last job.
    fault: Option<Fault>,
    /// Jobs that were stopped by such an access.
    faults: u64,
}

impl Image {
    /// Returns an image without registers and memory. Boxed, because it is large.
    pub(crate) fn new() -> Result<KBox<Self>> {
        Ok(KBox::new(
            Self {
                written: Written {
                    values: KVec::from_elem(0, APP_COUNT, GFP_KERNEL_ACCOUNT)?,
                    set: RegisterSet::EMPTY,
                },
                results: [None; MAX_RESULTS],
                window: None,
                snapshot: None,
                pages: None,
                is_unpublished: true,
                fault: None,
                faults: 0,
            },
            GFP_KERNEL_ACCOUNT,
        )?)
    }

    pub(crate) fn set_window(&mut self, window: Window) {
        self.window = Some(window);
        self.is_unpublished = true;
    }

    pub(crate) fn window(&self) -> Option<Window> {
        self.window
    }

    /// Sets the snapshot buffer and, for a card with a relay, the memory of the image.
    pub(crate) fn set_snapshot(&mut self, iova: u64, length: u64, pages: Option<ImagePages>) {
        self.snapshot = Some((iova, length));
        self.pages = pages;
        self.is_unpublished = true;
    }

    /// Notes a register write. If the context is on a `slot`, the write is also forwarded to the
    /// slot, and noted in its shadow registers.
    pub(crate) fn write(
        &mut self,
        bar: &Bar,
        slot: Option<(SlotId, &mut ShadowRegs)>,
        register: AppRegister,
        value: u64,
    ) {
        self.written.set(register, value);
        self.is_unpublished = true;
        if let Some((slot, shadow)) = slot {
            bar.write_application(slot, register.offset(), value);
            shadow.registers.insert(register);
        }
    }

    /// Returns a register's value as captured. `EAGAIN`: there is none.
    pub(crate) fn captured(&self, register: AppRegister) -> Result<u64> {
        self.results
            .iter()
            .flatten()
            .find(|result| result.register == register)
            .and_then(|result| result.value)
            .ok_or(EAGAIN)
    }

    /// Returns whether the context has written `register`, or declared it as a result.
    pub(crate) fn names(&self, register: AppRegister) -> bool {
        let mut declared = self.results.iter().flatten();
        self.written.set.contains(register) || declared.any(|result| result.register == register)
    }

    /// Declares the result registers, in place of those that were declared before.
    pub(crate) fn declare_results(&mut self, registers: &[AppRegister]) {
        self.results = [None; MAX_RESULTS];
        self.is_unpublished = true;
        for (result, &register) in self.results.iter_mut().zip(registers) {
            *result = Some(ResultRegister {
                register,
                value: None,
            });
        }
    }

    /// Calls `f` with each register that was written and its value, in ascending order; with
    /// `results`, with each declared result register and zero, in the order of declaration.
    pub(crate) fn list(&self, results: bool, mut f: impl FnMut(AppRegister, u64)) {
        if results {
            let declared = self.results.iter().flatten();
            declared.for_each(|result| f(result.register, 0));
        } else {
            let Written { values, set } = &self.written;
            set.for_each(|register| f(register, values[register.index()]));
        }
    }

    /// Notes that a new job begins: forgets what was captured of the previous job.
    fn begin_job(&mut self) {
        self.fault = None;
        for result in self.results.iter_mut().flatten() {
            result.value = None;
        }
    }

    /// Sets what a job has left elsewhere: values of declared results, and the access that stopped
    /// the job. `EINVAL`: one of the registers is not declared, and nothing was changed.
    pub(crate) fn set_past(
        &mut self,
        results: &[(AppRegister, u64)],
        fault: Option<Fault>,
    ) -> Result {
        let mut new = self.results;
        for &(register, value) in results {
            let mut declared = new.iter_mut().flatten();
            let result = declared.find(|result| result.register == register);
            result.ok_or(EINVAL)?.value = Some(value);
        }
        self.results = new;
        self.fault = fault;
        Ok(())
    }

    /// Notes that the job was stopped by a refused access.
    pub(crate) fn note_fault(&mut self, fault: Fault) {
        self.fault = Some(fault);
        self.faults += 1;
    }

    /// Returns how many registers a load writes with values of this context, and how many it clears,
    /// since those of `shadow` may not be zero.
    pub(crate) fn burst(&self, shadow: &ShadowRegs) -> (u32, u32) {
        let set = &self.written.set;
        (set.count(), shadow.registers.without(set).count())
    }

    /// Returns the access that stopped the last job, and how many jobs were stopped by such an
    /// access.
    pub(crate) fn faults(&self) -> (Option<Fault>, u64) {
        (self.fault, self.faults)
    }

    /// Reads the declared result registers of `slot`. Returns what does not answer, if one of them
    /// cannot be read.
    pub(crate) fn capture(&mut self, bar: &Bar, slot: SlotId) -> Option<Status> {
        let begun = now();
        for result in self.results.iter_mut().flatten() {
            let value = bar.read_application(slot, result.register.offset(), begun);
            if let Ok(u64::MAX) | Err(_) = value {
                if let Some(silence) = bar.silence(slot) {
                    return Some(silence);
                }
            }
            let Ok(value) = value else {
                return Some(Status::UNANSWERED);
            };
            result.value = Some(value);
        }
        None
    }

    /// Takes the values of declared result registers from memory, after a run has left its record.
    pub(crate) fn take_results(&mut self) {
        let Some(pages) = &self.pages else { return };
        let values = pages.results();
        for (result, value) in self.results.iter_mut().zip(values) {
            if let Some(result) = result {
                result.value = Some(value);
            }
        }
    }

    /// Writes the context's registers and its entry of the context table, number `index`, to the
    /// memory that a relay reads, if the image has changed since the last time. The context must be
    /// on no slot, and named for none.
    pub(crate) fn publish(&mut self, relay: &Relay, index: usize, cookie: u64) {
        let Some(pages) = &self.pages else { return };
        if !core::mem::take(&mut self.is_unpublished) {
            return;
        }
        let Written { values, set } = &self.written;
        set.for_each(|register| {
            pages.write_register(register.offset(), values[register.index()]);
        });
        let mut offsets = [0; RESULTS];
        for (offset, result) in offsets.iter_mut().zip(&self.results) {
            // CAST: below the size of a slot's page.
            *offset = result.map_or(0, |result| result.register.offset() as u16);
        }
        let window = self.window.unwrap_or_default();
        let (snapshot, snapshot_size) = self.snapshot.unwrap_or_default();
        let (registers, results) = pages.addresses();
        let entry = TableEntry {
            dma_offset: window.offset(),
            window_base: window.device_base,
            window_size: window.length,
            snapshot,
            snapshot_size,
            registers,
            results,
            offsets,
            cookie,
        };
        relay.write_entry(index, &entry);
    }

    /// Returns the registers that the context has written.
    pub(crate) fn registers(&self) -> RegisterSet {
        self.written.set
    }

    /// Clears the registers of `slot` that other contexts have written, and this one has not: at
    /// most `most` of them. Returns how many.
    pub(crate) fn clear_others(
        &self,
        bar: &Bar,
        slot: SlotId,
        shadow: &mut ShadowRegs,
        most: u32,
    ) -> u32 {
        let mut others = shadow.registers.without(&self.written.set);
        let own = shadow.registers.without(&others);
        let count = others.drain(most, |register| {
            bar.write_application(slot, register.offset(), 0)
        });
        shadow.registers = own.with(&others);
        count
    }

    /// Writes those registers of the context that are in `left` to `slot`, at most `most` of them,
    /// and takes them out of `left`.
    pub(crate) fn replay(
        &self,
        bar: &Bar,
        slot: SlotId,
        shadow: &mut ShadowRegs,
        (left, most): (&mut RegisterSet, u32),
    ) {
        let values = &self.written.values;
        left.drain(most, |register| {
            bar.write_application(slot, register.offset(), values[register.index()]);
            shadow.registers.insert(register);
        });
    }

    /// Writes what `slot` needs before a START besides the registers. `card` says which form the
    /// snapshot address has.
    pub(crate) fn open(&self, bar: &Bar, slot: SlotId, shadow: &mut ShadowRegs, card: &Identity) {
        let window = self.window.unwrap_or_default();
        shadow.move_window(bar, slot, window, card);
        if let Some((iova, _)) = self.snapshot {
            // A card without a snapshot unit adds the slot's DMA offset to this address as to any
            // other.
            let address = if card.has_snapshot_unit() {
                iova
            } else {
                iova.wrapping_sub(window.offset())
            };
            shadow.set_snapshot(bar, slot, address);
        }
    }
}

/// The part of a context that belongs to the card's state once the context is set up. Before that,
/// the context owns it.
pub(crate) struct ContextRef {
    image: KBox<Image>,
    meter: KBox<ContextMeter>,
    notifier: Arc<Notifier>,
    /// The pid of its process, in the initial pid namespace.
    pid: i32,
    /// The number of its last job.
    job: u64,
    /// How often another job waited too long for a boundary of the context's job.
    overruns: u64,
    /// How long others waited beyond the boundary wait, where the engine stops only at boundaries.
    overrun: Duration,
    /// The scheduler has released the context.
    released: bool,
}

impl ContextRef {
    /// Returns the part of a context without jobs, of the process `pid`, whose owner is notified by
    /// `notifier`.
    pub(crate) fn new(notifier: Arc<Notifier>, pid: i32) -> Result<Self> {
        Ok(Self {
            image: Image::new()?,
            meter: measurement::new_meter()?,
            notifier,
            pid,
            job: 0,
            overruns: 0,
            overrun: Duration::ZERO,
            released: false,
        })
    }

    /// Returns the number of its last job.
    pub(crate) fn job(&self) -> u64 {
        self.job
    }

    /// Returns the pid of its process, in the initial pid namespace.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Notes that job number `job` begins.
    pub(crate) fn begin_job(&mut self, job: u64) {
        self.job = job;
        self.image.begin_job();
    }

    /// Returns the image.
    pub(crate) fn image(&mut self) -> &mut Image {
        &mut self.image
    }

    /// Returns the meter.
    pub(crate) fn meter(&mut self) -> &mut ContextMeter {
        &mut self.meter
    }

    /// Returns how often another job waited too long for a boundary of the context's job, and how
    /// long others waited beyond the boundary wait, where the engine stops only at boundaries.
    pub(crate) fn overruns(&self) -> (u64, Duration) {
        (self.overruns, self.overrun)
    }

    /// Notes that another job waited too long for a boundary of the context's job, and by how much.
    pub(crate) fn note_overrun(&mut self, span: Duration) {
        self.overruns += 1;
        self.overrun += span;
    }

    /// Returns whether the scheduler has released the context.
    pub(crate) fn is_released(&self) -> bool {
        self.released
    }

    /// Notes that the scheduler has released the context: the owner may drop this part.
    pub(crate) fn release(&mut self, delivery: &Delivery) {
        self.released = true;
        self.notify(delivery, Notice::Released);
    }

    /// Notifies the owner by the `delivery` of its card.
    pub(crate) fn notify(&self, delivery: &Delivery, notice: Notice) {
        delivery.tell(&self.notifier, notice);
    }
}
