// SPDX-License-Identifier: GPL-2.0

//! A card: its registers, its scheduler, and the contexts that use it.

use crate::{
    bar::{Bar, Identity, SlotIdentity},
    context::Context,
    gate::{Gate, Inside},
    image::{AppRegister, Image, RegisterSet, Tenant},
    limits::Limits,
    notifier::Notice,
    raw_spinlock::{new_raw_spinlock, RawSpinLock},
    regs::{Command, MAX_SLOTS},
    sched::{
        self, Action, ContextConfig, ContextId, Duration, Event, Failure, Machine, MachineConfig,
        PolicyKind, Profile, Refusal, SlotConfig, SlotId, SlotState, SlotStats, Stats, Status,
        Time, Wake,
    },
    slot::SlotEvents,
};
use core::{
    ptr,
    sync::atomic::{AtomicBool, Ordering},
};
use kernel::{
    bindings,
    device::{Bound, Device},
    prelude::*,
    sync::{aref::ARef, new_mutex, Arc, Mutex},
};

/// What the interrupt handlers, the timers and the calls of all contexts share.
///
/// # Locking
///
/// Behind the card's raw spinlock, with interrupts off. It is the innermost lock of the module:
/// nothing else is taken under it but those that `irq_work` and hrtimers take. Registers of slots
/// are accessed under it, so that no START comes between a status read and what follows from it.
pub(crate) struct State {
    machine: Machine<KVVec<sched::Entry>>,
    /// By [`ContextId::index`]. `Some` from set-up until [`Action::Released`].
    tenants: KVVec<Option<Tenant>>,
    slots: SlotRegisters,
}

/// What the driver has written to registers that it cannot read back.
struct SlotRegisters {
    /// The reset bits.
    in_reset: u8,
    /// By slot: application registers that may not be zero.
    residue: [RegisterSet; MAX_SLOTS],
}

/// Contexts that are set up.
///
/// # Locking
///
/// Behind a mutex. User memory is not touched under it, and `mmap_lock` is not taken under it.
struct Registry {
    contexts: KVec<Arc<Context>>,
}

/// One card. Outlives its device: open files keep it.
///
/// # Invariants
///
/// `device` is bound to this driver until the gate is closed and those inside have left.
#[pin_data]
pub(crate) struct Card {
    /// What the card is.
    pub(crate) identity: Identity,
    /// What is accepted of contexts.
    pub(crate) limits: Limits,
    slots: [SlotIdentity; MAX_SLOTS],
    device: ARef<Device>,
    /// The PCI side of `device`.
    pci: *mut bindings::pci_dev,
    /// Its DMA addresses go through an IOMMU.
    pub(crate) translated: bool,
    bar: Bar,
    #[pin]
    gate: Gate,
    /// The card answered all-ones.
    dead: AtomicBool,
    /// On the heap: it would fill the stack of whoever makes a card.
    #[pin]
    state: RawSpinLock<KBox<State>>,
    #[pin]
    registry: Mutex<Registry>,
    #[pin]
    events: [SlotEvents; MAX_SLOTS],
}

/// The bound device of a card, for as long as the gate is held.
pub(crate) struct BoundDevice<'a> {
    device: &'a Device<Bound>,
    _inside: Inside<'a>,
}

impl core::ops::Deref for BoundDevice<'_> {
    type Target = Device<Bound>;

    fn deref(&self) -> &Self::Target {
        self.device
    }
}

/// The time of CLOCK_MONOTONIC. Any context.
pub(crate) fn now() -> Time {
    // SAFETY: No requirement.
    // CAST: the clock starts at 0 and does not go back.
    Time::from_ns(unsafe { bindings::ktime_get() } as u64)
}

/// The slots of a card that has `count` of them.
fn slot_ids(count: u8) -> impl Iterator<Item = SlotId> {
    (0..count).filter_map(SlotId::new)
}

// SAFETY: `pci` is only handed to C functions that lock what they need; all else is `Send`.
unsafe impl Send for Card {}
// SAFETY: As above.
unsafe impl Sync for Card {}

impl Card {
    /// Makes the card behind `bar`, which answered `identity`: all slots are reset and their
    /// windows closed. May sleep.
    ///
    /// # Safety
    ///
    /// `pci` must be that of `device`, and [`Card::shut_down`] must be called before `device` is
    /// unbound.
    pub(crate) unsafe fn new(
        device: &Device<Bound>,
        pci: *mut bindings::pci_dev,
        bar: Bar,
        identity: Identity,
        limits: Limits,
    ) -> Result<Arc<Self>> {
        let mut slots = [SlotIdentity::default(); MAX_SLOTS];
        for (slot, id) in slots.iter_mut().zip(slot_ids(identity.slots)) {
            *slot = bar.identify_slot(id, &identity)?;
        }
        quiesce(&bar, &identity, &limits);
        let config = machine_config(&bar, &identity, &slots, &limits);
        let state = new_state(config, limits.contexts)?;
        let translated = crate::dma_memory::is_translated(device);
        let card = Arc::pin_init(
            try_pin_init!(Self {
                identity,
                limits,
                slots,
                device: device.into(),
                pci,
                translated,
                bar,
                gate <- Gate::new(),
                dead: AtomicBool::new(false),
                state <- new_raw_spinlock!(state, "fermata_card"),
                registry <- new_mutex!(Registry { contexts: KVec::new() }, "fermata_registry"),
                events <- pin_init::pin_init_array_from_fn(|n| {
                    // CAST: below MAX_SLOTS.
                    SlotEvents::new(n as u8)
                }),
            }),
            GFP_KERNEL,
        )?;
        for events in &card.events {
            // SAFETY: The card is pinned in its `Arc`, and drops `events`, which stops them, as
            // part of itself.
            unsafe { events.start(&*card) };
        }
        Ok(card)
    }

    /// Goes inside the gate. `ENODEV`: the card is gone.
    pub(crate) fn enter(&self) -> Result<BoundDevice<'_>> {
        let inside = self.gate.enter()?;
        if self.dead.load(Ordering::Acquire) {
            return Err(ENODEV);
        }
        // SAFETY: By the type invariant the device is bound while somebody is inside.
        let device = unsafe { self.device.as_bound() };
        Ok(BoundDevice {
            device,
            _inside: inside,
        })
    }

    /// Whether the card is gone: unbound, unplugged or dead.
    pub(crate) fn is_gone(&self) -> bool {
        self.gate.is_closed() || self.dead.load(Ordering::Acquire)
    }

    /// Requests the interrupt of `slot`. Process context.
    pub(crate) fn request_irq(&self, slot: SlotId, irq: u32) -> Result {
        self.events[slot.index()].request_irq(irq)
    }

    /// What `slot` is; `None`: there is no such slot.
    pub(crate) fn slot(&self, slot: u32) -> Option<(SlotId, &SlotIdentity)> {
        let id = slot_ids(self.identity.slots).find(|id| id.index() == slot as usize)?;
        Some((id, &self.slots[id.index()]))
    }

    /// The slots that have the engine `afu_id` (low half, high half), a bit each.
    pub(crate) fn slots_with(&self, afu_id: (u64, u64)) -> u8 {
        slot_ids(self.identity.slots)
            .filter(|id| self.slots[id.index()].afu_id() == afu_id)
            .fold(0, |mask, id| mask | id.bit())
    }

    /// The class, in the scheduler's sense, of slot number `slot`: the first slot that has its
    /// engine.
    pub(crate) fn class_of(&self, slot: usize) -> u8 {
        class_of(&self.slots, slot)
    }

    /// The slots of `mask`.
    pub(crate) fn slots_in(&self, mask: u8) -> impl Iterator<Item = SlotId> {
        slot_ids(self.identity.slots).filter(move |id| mask & id.bit() != 0)
    }

    /// Size of a snapshot of `slot` in pages, read from the card: anything. `ENODEV`: the card is
    /// gone.
    pub(crate) fn state_pages(&self, slot: SlotId) -> Result<u64> {
        let pages = self.bar.state_pages(slot);
        if pages == u64::MAX {
            // All-ones. The status, which never is, tells whether it is the value or the card.
            self.look(&mut self.state.lock(), slot);
        }
        if self.is_gone() {
            return Err(ENODEV);
        }
        Ok(pages)
    }

    /// What `slot` has done, and whether it is out of use.
    pub(crate) fn slot_stats(&self, slot: SlotId) -> (SlotStats, bool) {
        let state = self.state.lock();
        let quarantined = state.machine.slot_state(slot) == Some(SlotState::Quarantined);
        (
            state.machine.slot_stats(slot, now()).unwrap_or_default(),
            quarantined,
        )
    }

    /// Contexts that are set up.
    pub(crate) fn context_count(&self) -> u32 {
        self.state.lock().machine.contexts()
    }
}

/// What a context has at a moment, for `FERMATA_IOC_STATUS`, `FERMATA_IOC_WAIT` and `poll()`.
pub(crate) struct View {
    /// The scheduler's part.
    pub(crate) stats: Stats,
    /// Device address of the access that stopped the last job.
    pub(crate) fault_address: u64,
}

/// Calls for one context. All may be made in process context, outside or inside the gate; `ENODEV`:
/// the card is gone.
impl Card {
    /// Adds a context; `tenant` is used until [`Notice::Released`] after [`Card::close`].
    pub(crate) fn add(&self, config: ContextConfig, tenant: Tenant) -> Result<ContextId> {
        let mut state = self.state.lock();
        let id = state.machine.add(config).map_err(refused)?;
        // The machine's storage is as long as this table.
        match state.tenants.get_mut(id.index()) {
            Some(place) => *place = Some(tenant),
            None => return Err(EINVAL),
        }
        Ok(id)
    }

    /// Starts a job, and returns its number.
    pub(crate) fn start(&self, ctx: ContextId) -> Result<u64> {
        let mut state = self.state.lock();
        if state
            .machine
            .stats(ctx, now())
            .map_err(refused)?
            .state
            .is_live()
        {
            return Err(EBUSY);
        }
        if let Some(tenant) = state.tenant(ctx) {
            tenant.image().begin_job();
        }
        self.handle(&mut state, Event::Start { ctx })
            .map_err(refused)?;
        Ok(state.machine.stats(ctx, now()).map_err(refused)?.job)
    }

    /// Takes the job off its slot, to be held or queued.
    pub(crate) fn preempt(&self, ctx: ContextId, hold: bool) -> Result {
        self.handle(&mut self.state.lock(), Event::Preempt { ctx, hold })
            .map_err(refused)
    }

    /// Lets a held job go on.
    pub(crate) fn resume(&self, ctx: ContextId) -> Result {
        self.handle(&mut self.state.lock(), Event::Resume { ctx })
            .map_err(refused)
    }

    /// Asks for the end of a context. [`Notice::Released`] follows, or [`Notice::Stuck`] has come.
    pub(crate) fn close(&self, ctx: ContextId) {
        // A refusal means that it was released before.
        let _ = self.handle(&mut self.state.lock(), Event::Close { ctx });
    }

    /// Where a context stands.
    pub(crate) fn view(&self, ctx: ContextId) -> Result<View> {
        let mut state = self.state.lock();
        let stats = state.machine.stats(ctx, now()).map_err(refused)?;
        let image = state.tenant(ctx).ok_or(ENODEV)?.image();
        Ok(View {
            stats,
            fault_address: image.fault_address,
        })
    }

    /// The parameters of a context.
    pub(crate) fn params(&self, ctx: ContextId) -> Result<sched::Params> {
        self.state.lock().machine.params(ctx).map_err(refused)
    }

    /// Changes the parameters of a context by `change`.
    pub(crate) fn set_params(
        &self,
        ctx: ContextId,
        change: impl FnOnce(&mut sched::Params),
    ) -> Result {
        let mut guard = self.state.lock();
        let state = &mut **guard;
        let mut params = state.machine.params(ctx).map_err(refused)?;
        change(&mut params);
        let mut outbox = Outbox::default();
        let State {
            machine,
            tenants,
            slots,
        } = state;
        let result = machine.set_params(now(), ctx, params, &mut |action| {
            self.carry_out(tenants, slots, &mut outbox, action);
        });
        self.feed_reads(&mut guard, outbox);
        result.map_err(refused)
    }

    /// Works on the image of a context.
    pub(crate) fn with_image<R>(
        &self,
        ctx: ContextId,
        f: impl FnOnce(&mut Image) -> R,
    ) -> Result<R> {
        Ok(f(self.state.lock().tenant(ctx).ok_or(ENODEV)?.image()))
    }

    /// Writes registers of a context, to its slot too while it is on one.
    pub(crate) fn write_registers(
        &self,
        ctx: ContextId,
        registers: &[(AppRegister, u64)],
    ) -> Result {
        let mut guard = self.state.lock();
        let State {
            machine,
            tenants,
            slots,
        } = &mut **guard;
        let slot = machine.slot_of(ctx);
        let image = tenant_of(tenants, ctx).ok_or(ENODEV)?.image();
        for &(register, value) in registers {
            let slot = slot.map(|slot| (slot, &mut slots.residue[slot.index()]));
            image.write(&self.bar, slot, register, value);
        }
        Ok(())
    }

    /// Reads registers of a context, from its slot while it is on one. `EAGAIN`: one is not to be
    /// had now.
    pub(crate) fn read_registers(
        &self,
        ctx: ContextId,
        registers: &mut [(AppRegister, u64)],
    ) -> Result {
        let mut state = self.state.lock();
        let slot = state.machine.slot_of(ctx);
        let image = state.tenant(ctx).ok_or(ENODEV)?.image();
        for (register, value) in registers {
            *value = image.read(&self.bar, slot, *register)?;
        }
        Ok(())
    }
}

/// Events of the card.
impl Card {
    /// The timer of `slot` fired. Interrupt context.
    pub(crate) fn timer(&self, slot: SlotId) {
        // Events of the card are never refused.
        let _ = self.handle(&mut self.state.lock(), Event::Timer { slot });
    }

    /// `slot` interrupted. Interrupt context.
    pub(crate) fn interrupt(&self, slot: SlotId) {
        let mut state = self.state.lock();
        match state.machine.slot_state(slot) {
            // The one trapped read of a switch.
            Some(SlotState::Running(_) | SlotState::Pausing(_)) => self.look(&mut state, slot),
            // It came late, or the vector is shared: a slot that nobody is on, or whose status is
            // being waited for by timer, is not worth a read.
            _ => {}
        }
    }

    /// Reads the status of `slot`, and does what follows from it.
    fn look(&self, state: &mut State, slot: SlotId) {
        let outbox = Outbox {
            reads: slot.bit(),
            ..Outbox::default()
        };
        self.feed_reads(state, outbox);
    }

    /// Feeds `event`, and the status reads that follow from it, to the machine.
    fn handle(&self, state: &mut State, event: Event) -> Result<(), Refusal> {
        let mut outbox = Outbox::default();
        let result = self.handle_one(state, event, &mut outbox);
        self.feed_reads(state, outbox);
        result
    }

    /// Makes the status reads that were asked for, until none is.
    fn feed_reads(&self, state: &mut State, mut outbox: Outbox) {
        while let Some(slot) = outbox.take_read() {
            let status = Status::from_raw(self.bar.status(slot));
            // Events of the card are never refused.
            let _ = self.handle_one(state, Event::Status { slot, status }, &mut outbox);
        }
    }

    fn handle_one(
        &self,
        state: &mut State,
        event: Event,
        outbox: &mut Outbox,
    ) -> Result<(), Refusal> {
        if let Event::Status { slot, status } = event {
            if status.is_gone() {
                self.dead.store(true, Ordering::Release);
            } else if status.fault() {
                outbox.fault = self.bar.take_fault(slot);
            }
        }
        let State {
            machine,
            tenants,
            slots,
        } = state;
        let was_gone = machine.is_gone();
        let result = machine.handle(now(), event, &mut |action| {
            self.carry_out(tenants, slots, outbox, action)
        });
        if machine.is_gone() && !was_gone {
            // Also those without a job may wait, for this.
            for tenant in tenants.iter().flatten() {
                tenant.notify(Notice::Gone);
            }
        }
        result
    }

    /// Does what the machine wants.
    fn carry_out(
        &self,
        tenants: &mut [Option<Tenant>],
        slots: &mut SlotRegisters,
        outbox: &mut Outbox,
        action: Action,
    ) {
        match action {
            Action::Load { slot, ctx } => {
                if let Some(tenant) = tenant_of(tenants, ctx) {
                    tenant.image().load(
                        &self.bar,
                        slot,
                        &mut slots.residue[slot.index()],
                        &self.identity,
                    );
                }
            }
            Action::Unload { slot } => {
                if self.identity.has_window() {
                    self.bar.set_window(slot, &Default::default(), true);
                }
            }
            Action::Start { slot, resume, .. } => {
                self.bar.command(
                    slot,
                    if resume {
                        Command::StartResume
                    } else {
                        Command::StartNew
                    },
                );
            }
            Action::Pause { slot } => self.bar.command(slot, Command::Pause),
            Action::Reset { slot, hold } => {
                slots.in_reset = if hold {
                    slots.in_reset | slot.bit()
                } else {
                    slots.in_reset & !slot.bit()
                };
                self.bar.reset(slots.in_reset);
            }
            Action::Capture { slot, ctx } => {
                if let Some(tenant) = tenant_of(tenants, ctx) {
                    tenant.image().capture(&self.bar, slot);
                }
            }
            Action::ReadStatus { slot } => outbox.reads |= slot.bit(),
            Action::Arm { slot, at } => self.events[slot.index()].arm(at),
            Action::Disarm { slot } => self.events[slot.index()].disarm(),
            Action::Wake { ctx, wake } => {
                if let Some(tenant) = tenant_of(tenants, ctx) {
                    tell(tenant, wake, outbox.fault);
                }
            }
            Action::Released { ctx } => {
                if let Some(tenant) = tenants.get_mut(ctx.index()).and_then(Option::take) {
                    tenant.notify(Notice::Released);
                }
            }
            Action::Quarantine { slot, ctx } => {
                dev_err!(
                    self.device,
                    "slot {} does not come out of reset: out of use\n",
                    slot.index()
                );
                if let Some(tenant) = ctx.and_then(|ctx| tenant_of(tenants, ctx)) {
                    tenant.notify(Notice::Stuck);
                }
            }
        }
    }
}

impl SlotRegisters {
    /// As [`quiesce`] leaves the card.
    const NEW: Self = Self {
        in_reset: 0,
        residue: [RegisterSet::EMPTY; MAX_SLOTS],
    };
}

/// What actions leave to be done after the machine has returned.
#[derive(Default)]
struct Outbox {
    /// Slots whose status is to be read, a bit each.
    reads: u8,
    /// Device address of the access that stopped the job whose status is being handled.
    fault: u64,
}

impl Outbox {
    fn take_read(&mut self) -> Option<SlotId> {
        // CAST: at most 8.
        let slot = SlotId::new(self.reads.trailing_zeros() as u8)?;
        self.reads &= !slot.bit();
        Some(slot)
    }
}

impl State {
    fn tenant(&mut self, ctx: ContextId) -> Option<&mut Tenant> {
        tenant_of(&mut self.tenants, ctx)
    }
}

/// The tenant of `ctx`, while it is set up.
fn tenant_of(tenants: &mut [Option<Tenant>], ctx: ContextId) -> Option<&mut Tenant> {
    tenants.get_mut(ctx.index()).and_then(Option::as_mut)
}

/// Passes on what became of a job.
fn tell(tenant: &mut Tenant, wake: Wake, fault: u64) {
    let notice = match wake {
        Wake::Done => Notice::Done,
        Wake::Held => Notice::Held,
        Wake::Failed(failure) => {
            if failure == Failure::Fault {
                tenant.image().fault_address = fault;
            }
            Notice::Done
        }
    };
    tenant.notify(notice);
}

/// Life and death.
impl Card {
    /// Notes a context that has been set up, so that [`Card::shut_down`] finds its memory.
    ///
    /// `may_join` looks at those that are there, and may refuse.
    pub(crate) fn register(
        &self,
        context: Arc<Context>,
        may_join: impl FnOnce(&[Arc<Context>]) -> Result,
    ) -> Result {
        let mut registry = self.registry.lock();
        may_join(&registry.contexts)?;
        Ok(registry.contexts.push(context, GFP_KERNEL)?)
    }

    /// Forgets a context, if [`Card::shut_down`] has not taken it out before, and returns whether
    /// it did.
    ///
    /// `free` is called meanwhile: the device is bound, since `shut_down` waits for us.
    pub(crate) fn unregister(&self, context: &Context, free: impl FnOnce()) -> bool {
        let mut registry = self.registry.lock();
        let Some(place) = registry
            .contexts
            .iter()
            .position(|other| ptr::eq(&**other, context))
        else {
            return false;
        };
        if self.dead.load(Ordering::Acquire) {
            // Nobody knows what a card does that does not answer.
            self.stop_dma();
        }
        free();
        let forgotten = registry.contexts.remove(place);
        drop(registry);
        drop(forgotten);
        true
    }

    /// The context of which `is_it` holds; the first, if of several.
    pub(crate) fn find_context(&self, is_it: impl Fn(&Context) -> bool) -> Option<Arc<Context>> {
        let registry = self.registry.lock();
        registry
            .contexts
            .iter()
            .find(|context| is_it(context))
            .cloned()
    }

    /// The context with the lowest index from `from` on, and its index.
    pub(crate) fn next_context(&self, from: usize) -> Option<(usize, Arc<Context>)> {
        let registry = self.registry.lock();
        let indexed = registry
            .contexts
            .iter()
            .filter_map(|context| Some((context.id().ok()?.index(), context)));
        let (index, context) = indexed
            .filter(|(index, _)| *index >= from)
            .min_by_key(|(index, _)| *index)?;
        Some((index, context.clone()))
    }

    /// Waits until notices that are being given are given: whoever gives one holds the lock.
    pub(crate) fn wait_for_notices(&self) {
        drop(self.state.lock());
    }

    /// Takes bus mastering from the card. While the device is bound.
    fn stop_dma(&self) {
        // SAFETY: By the safety requirement of `new` it is the device's.
        unsafe { bindings::pci_clear_master(self.pci) };
    }

    /// Ends everything: after it no register is touched, no DMA happens, no memory of a context is
    /// mapped for the card, and every call on an open file gives `ENODEV`. Process context, while
    /// the device is bound; once.
    pub(crate) fn shut_down(&self) {
        self.gate.close();
        let contexts = {
            let mut registry = self.registry.lock();
            self.halt();
            core::mem::take(&mut registry.contexts)
        };
        for events in &self.events {
            events.stop();
        }
        for context in &contexts {
            context.revoke();
        }
    }

    /// The card will lose its state: every job fails, and every call gives `ENODEV` from now on.
    /// Process context.
    pub(crate) fn lose(&self) {
        let _registry = self.registry.lock();
        self.halt();
    }

    /// Fails all jobs and stops the card's DMA. The caller holds the registry's lock, so that no
    /// context whose job has failed frees its memory before the card has stopped.
    fn halt(&self) {
        {
            let mut state = self.state.lock();
            // The machine does nothing more to the card, so nothing takes a slot out of the reset
            // that follows.
            let _ = self.handle(&mut state, Event::Gone);
            self.bar.reset(u8::MAX);
        }
        if !self.dead.swap(true, Ordering::AcqRel) {
            settle(&self.bar, &self.identity, &self.limits);
        }
        self.stop_dma();
    }

    /// Brings an idle card back after it lost its state. Process context.
    pub(crate) fn wake(&self) {
        // SAFETY: By the safety requirement of `new` it is the device's.
        unsafe { bindings::pci_set_master(self.pci) };
        quiesce(&self.bar, &self.identity, &self.limits);
        let mut state = self.state.lock();
        state.slots = SlotRegisters::NEW;
        for id in slot_ids(self.identity.slots) {
            let count = Status::from_raw(self.bar.status(id)).start_count();
            state.machine.resync(id, count);
        }
    }

    /// Whether a job has not ended.
    pub(crate) fn is_busy(&self) -> bool {
        let registry = self.registry.lock();
        registry
            .contexts
            .iter()
            .any(|context| context.has_live_job())
    }
}

/// Stops all engines, closes all windows and clears all application registers, of which nobody
/// knows what stands in them. Without a machine: nobody is on a slot yet.
fn quiesce(bar: &Bar, identity: &Identity, limits: &Limits) {
    bar.reset(u8::MAX);
    settle(bar, identity, limits);
    for slot in slot_ids(identity.slots) {
        if identity.has_window() {
            bar.set_window(slot, &Default::default(), true);
        }
        AppRegister::all().for_each(|register| bar.write_application(slot, register.offset(), 0));
    }
    bar.reset(0);
}

/// Waits until no DMA of slots that are held in reset can arrive any more.
fn settle(bar: &Bar, identity: &Identity, limits: &Limits) {
    for slot in slot_ids(identity.slots) {
        // On a card that is quiescent the read itself waits for the last DMA; on others it only
        // pushes the reset.
        let _ = bar.status(slot);
    }
    if !identity.is_quiescent() {
        kernel::time::delay::fsleep(kernel::time::Delta::from_nanos(limits.settle.as_ns() as i64));
    }
}

/// The state of a card for `contexts` contexts. In a frame of its own, from which nothing deep is
/// called: it makes several kilobytes on the stack before they go to the heap.
#[inline(never)]
fn new_state(config: MachineConfig, contexts: usize) -> Result<KBox<State>> {
    let entries = new_entries(contexts)?;
    let mut tenants = KVVec::with_capacity(contexts, GFP_KERNEL)?;
    for _ in 0..contexts {
        tenants.push(None, GFP_KERNEL)?;
    }
    let mut state = KBox::<State>::new_uninit(GFP_KERNEL)?.write(State {
        machine: Machine::new(config, entries),
        tenants,
        slots: SlotRegisters::NEW,
    });
    // The user interface promises turns (`FERMATA_IOC_PREEMPT`: "the end of the queue"). There are
    // no contexts, so nothing is to be done about it.
    state
        .machine
        .set_policy(now(), PolicyKind::RoundRobin, &mut |_| ())
        .map_err(refused)?;
    Ok(state)
}

/// Room for `count` contexts in the scheduler.
fn new_entries(count: usize) -> Result<KVVec<sched::Entry>> {
    let mut entries = KVVec::with_capacity(count, GFP_KERNEL)?;
    for _ in 0..count {
        entries.push(sched::Entry::EMPTY, GFP_KERNEL)?;
    }
    Ok(entries)
}

/// The first slot that has the engine of slot number `slot`.
fn class_of(slots: &[SlotIdentity], slot: usize) -> u8 {
    let engine = slots.get(slot).map(SlotIdentity::afu_id);
    let first = slots
        .iter()
        .position(|other| Some(other.afu_id()) == engine)
        .unwrap_or(slot);
    // CAST: below MAX_SLOTS.
    first as u8
}

/// What the scheduler has to know of the card.
fn machine_config(
    bar: &Bar,
    identity: &Identity,
    slots: &[SlotIdentity],
    limits: &Limits,
) -> MachineConfig {
    let mut config = MachineConfig::default();
    for id in slot_ids(identity.slots) {
        let slot = &slots[id.index()];
        config.slots[id.index()] = Some(SlotConfig {
            profile: if identity.is_quiescent() && identity.has_irq() {
                Profile::Fermata
            } else {
                Profile::Base {
                    settle: Duration::from_ns(limits.settle.as_ns()),
                }
            },
            class: class_of(slots, id.index()),
            reset_before_resume: slot.reset_before_resume,
            start_count: Status::from_raw(bar.status(id)).start_count(),
        });
    }
    config
}

/// The error number of a refusal (`uapi/fermata.h`, "errors").
fn refused(refusal: Refusal) -> Error {
    match refusal {
        Refusal::NoContext | Refusal::Gone => ENODEV,
        Refusal::Busy => EBUSY,
        Refusal::NoJob => ENOENT,
        Refusal::NoSlot => EIO,
        Refusal::NoSpace => ENOSPC,
        Refusal::Admission => EBUSY,
        Refusal::Range => ERANGE,
    }
}
