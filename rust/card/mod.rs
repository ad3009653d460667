// SPDX-License-Identifier: GPL-2.0

//! A card: its registers, its scheduler, and the contexts that use it.

mod calls;
mod config;
mod events;
mod groups;
mod histograms;
mod lifetime;
mod load;
mod quiesce;
mod record;
mod registry;

pub(crate) use calls::View;
pub(crate) use groups::{GroupLimits, GroupView};
pub(crate) use registry::Registry;

use crate::{
    bar::{Bar, Identity, SlotIdentity},
    delayed_work::DelayedWork,
    delivery::Delivery,
    engine_name::EngineName,
    gate::UnplugGuard,
    image::{Residue, Tenant},
    limits::Limits,
    measurement::Measurements,
    monotonic::now,
    presence::Presence,
    raw_spinlock::{new_raw_spinlock, RawSpinLock},
    regs::MAX_SLOTS,
    sched::{self, ContextId, GroupKey, Machine, SlotId, SlotState, SlotStats, Stops},
    slot::SlotEvents,
    vector::Vector,
};
use config::{class_of, machine_config, new_state};
use events::Outbox;
use kernel::{
    device::{Bound, Core, Device},
    pci,
    prelude::*,
    sync::{aref::ARef, atomic::Atomic, new_mutex, Arc, Mutex},
};
use load::LoadTime;
use quiesce::quiesce;

/// The scheduler of a card.
pub(crate) type Scheduler = Machine<KVVec<sched::Entry>>;

/// What the interrupt handlers, the timers and the calls of all contexts share.
///
/// # Locking
///
/// Behind the card's raw spinlock, with interrupts off. It is the innermost lock of the module:
/// nothing else is taken under it but those that `irq_work` and hrtimers take. Registers of slots
/// are accessed under it, so that no START comes between a status read and what follows from it.
pub(crate) struct State {
    machine: Scheduler,
    /// By [`ContextId::index`]. `Some` from set-up until [`Card::drop_released`].
    tenants: KVVec<Option<Tenant>>,
    slots: SlotRegisters,
    measurements: KVBox<Measurements>,
    /// By slot: the last answer to how large a snapshot is, in pages.
    state_pages: [u64; MAX_SLOTS],
    /// By slot: how often its engine had told of completions when it was looked at last.
    completions: [u64; MAX_SLOTS],
}

/// What the driver has written to registers that it cannot read back.
struct SlotRegisters {
    /// The reset bits.
    in_reset: u8,
    /// By slot.
    residue: [Residue; MAX_SLOTS],
    /// By slot: who was put on it last, until its window was closed.
    on: [Option<ContextId>; MAX_SLOTS],
    /// By slot: who has written many of its application registers, if anybody has.
    writer: [Option<(ContextId, GroupKey)>; MAX_SLOTS],
    /// By slot: what the last measured Load took.
    load_time: [LoadTime; MAX_SLOTS],
    /// Slots whose status is to be read when their timer fires, which it does at once; a bit each.
    unread: u8,
}

impl SlotRegisters {
    /// As [`quiesce()`] leaves the card.
    const NEW: Self = Self {
        in_reset: 0,
        residue: [Residue::NEW; MAX_SLOTS],
        on: [None; MAX_SLOTS],
        writer: [None; MAX_SLOTS],
        load_time: [LoadTime::ZERO; MAX_SLOTS],
        unread: 0,
    };
}

impl State {
    fn tenant(&mut self, ctx: ContextId) -> Option<&mut Tenant> {
        tenant_of(&mut self.tenants, ctx)
    }
}

/// The tenant of `ctx`, while it is set up.
fn tenant_of(tenants: &mut [Option<Tenant>], ctx: ContextId) -> Option<&mut Tenant> {
    let tenant = tenants.get_mut(ctx.index()).and_then(Option::as_mut);
    tenant.filter(|tenant| !tenant.is_released())
}

/// What a slot is at a moment, for `FERMATA_IOC_SLOT_INFO` and for sysfs.
pub(crate) struct SlotView {
    pub(crate) stats: SlotStats,
    pub(crate) state: SlotState,
    /// The only group that it serves.
    pub(crate) exclusive: Option<GroupKey>,
    /// How often its vector was switched off because of a storm.
    pub(crate) storms: u64,
    /// How often its vector told of nothing.
    pub(crate) useless: u64,
    /// How often its vector was switched off because it told of too many completions.
    pub(crate) throttled: u64,
    /// Jobs that finished on it.
    pub(crate) finished: u64,
    /// Jobs that were stopped on it at an access outside their windows.
    pub(crate) faults: u64,
    /// Its vector is off.
    pub(crate) is_polled: bool,
}

/// One card. Outlives its device: open files keep it.
///
/// # Invariants
///
/// `device` is bound to this driver until `presence` is closed and all its guards are dropped.
#[pin_data]
pub(crate) struct Card {
    /// What the card is.
    pub(crate) identity: Identity,
    /// What is accepted of contexts.
    pub(crate) limits: Limits,
    slots: [SlotIdentity; MAX_SLOTS],
    /// The number of its node, once it has one: what it is called in traces.
    number: Atomic<u32>,
    device: ARef<Device>,
    /// The PCI side of `device`.
    pci: ARef<pci::Device>,
    /// Its DMA addresses go through an IOMMU.
    pub(crate) translated: bool,
    bar: Bar,
    #[pin]
    presence: Presence,
    #[pin]
    pub(crate) delivery: Delivery,
    /// On the heap: it would fill the stack of whoever makes a card.
    #[pin]
    state: RawSpinLock<KBox<State>>,
    #[pin]
    registry: Mutex<Registry>,
    /// Does what concerns every context, and ends registrations of groups. Queued under the registry's
    /// lock or that of `state`, and not once the card is gone.
    #[pin]
    sweeper: DelayedWork<Self>,
    #[pin]
    events: [SlotEvents; MAX_SLOTS],
}

/// The device of a card, which stays bound while this exists. Holders do bounded work only, see
/// [`UnplugGate`](crate::gate::UnplugGate).
pub(crate) struct BoundDevice<'a> {
    device: &'a Device<Bound>,
    _guard: UnplugGuard<'a>,
}

impl core::ops::Deref for BoundDevice<'_> {
    type Target = Device<Bound>;

    fn deref(&self) -> &Self::Target {
        self.device
    }
}

/// The slots of a card that has `count` of them.
fn slot_ids(count: u8) -> impl Iterator<Item = SlotId> {
    (0..count).filter_map(SlotId::new)
}

impl Card {
    /// Makes the card behind `bar`, which answered `identity`: all slots are reset and their
    /// windows closed, and only then it may do DMA. May sleep.
    ///
    /// # Safety
    ///
    /// [`Card::shut_down`] must be called before the device is unbound.
    pub(crate) unsafe fn new(
        pdev: &pci::Device<Core<'_>>,
        bar: Bar,
        identity: Identity,
        limits: Limits,
    ) -> Result<Arc<Self>> {
        let mut slots = [SlotIdentity::default(); MAX_SLOTS];
        for (slot, id) in slots.iter_mut().zip(slot_ids(identity.slots)) {
            *slot = bar.identify_slot(id, &identity)?;
        }
        quiesce(&bar, &identity, &limits);
        pdev.set_master();
        let config = machine_config(&bar, &identity, &slots, &limits)?;
        let mut state = new_state(config, &limits)?;
        for (pages, id) in state.state_pages.iter_mut().zip(slot_ids(identity.slots)) {
            *pages = bar.state_pages(id);
        }
        let device: &Device<Bound> = pdev.as_ref();
        let translated = crate::dma_memory::is_translated(device);
        let card = Arc::pin_init(
            try_pin_init!(Self {
                identity,
                limits,
                slots,
                number: Atomic::new(u32::MAX),
                device: device.into(),
                pci: pdev.into(),
                translated,
                bar,
                presence <- Presence::new(),
                delivery <- Delivery::new(),
                state <- new_raw_spinlock!(state, "fermata_card"),
                registry <- new_mutex!(Registry::new(limits.contexts)?, "fermata_registry"),
                // SAFETY: `OFFSET` is that of this field. `shut_down`, which comes before the end, stops
                // it, and it is not queued from then on.
                sweeper <- unsafe { DelayedWork::new() },
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
            unsafe { events.vector.start(&*card) };
        }
        Ok(card)
    }

    /// Keeps the device bound. `ENODEV`: the card is gone. Process context.
    pub(crate) fn enter(&self) -> Result<BoundDevice<'_>> {
        let guard = self.presence.enter()?;
        if self.presence.is_dead() {
            return Err(ENODEV);
        }
        // SAFETY: By the type invariant the device is bound while there is a guard.
        let device = unsafe { self.device.as_bound() };
        Ok(BoundDevice {
            device,
            _guard: guard,
        })
    }

    /// Whether the card is gone: unbound, unplugged or dead.
    pub(crate) fn is_gone(&self) -> bool {
        self.presence.is_gone()
    }

    /// Requests the interrupt `irq` of vector number `vector`, which tells of the slots of `slots`.
    /// Process context.
    pub(crate) fn request_irq(&self, vector: SlotId, irq: u32, slots: u8) -> Result {
        self.events[vector.index()].vector.request(irq, slots)
    }

    /// The vector of `slot`; `None`: the card has no interrupts.
    fn vector_of(&self, slot: SlotId) -> Option<&Vector<Self>> {
        let mut vectors = self.events.iter().map(|events| &events.vector);
        vectors.find(|vector| vector.serves(slot))
    }

    /// What `slot` is; `None`: there is no such slot.
    pub(crate) fn slot(&self, slot: u32) -> Option<(SlotId, &SlotIdentity)> {
        let id = slot_ids(self.identity.slots).find(|id| id.index() == slot as usize)?;
        Some((id, &self.slots[id.index()]))
    }

    /// The slots of `mask`. `EINVAL`: none, or one that is not there.
    pub(crate) fn existing_slots(&self, mask: u32) -> Result<u8> {
        let all = self.slots_in(u8::MAX).fold(0, |all, id| all | id.bit());
        match u8::try_from(mask) {
            Ok(slots) if slots != 0 && slots & !all == 0 => Ok(slots),
            _ => Err(EINVAL),
        }
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

    /// Whether an engine of `mask` can stop at boundaries of its work.
    pub(crate) fn has_boundaries(&self, mask: u8) -> bool {
        self.slots_in(mask)
            .any(|id| self.slots[id.index()].stops != Stops::Anywhere)
    }

    /// Whether all engines of `mask` can stop nowhere else.
    pub(crate) fn is_boundary_only(&self, mask: u8) -> bool {
        self.slots_in(mask)
            .all(|id| self.slots[id.index()].stops == Stops::BoundaryOnly)
    }

    /// Whether the engines of `mask` read a queue of jobs.
    pub(crate) fn reads_queue(&self, mask: u8) -> bool {
        self.slots_in(mask).any(|id| self.slots[id.index()].queues)
    }

    /// The slots of `mask`.
    pub(crate) fn slots_in(&self, mask: u8) -> impl Iterator<Item = SlotId> {
        slot_ids(self.identity.slots).filter(move |id| mask & id.bit() != 0)
    }

    /// Size of a snapshot of `slot` in pages, read from the card: anything. `ENODEV`: the card is
    /// gone.
    pub(crate) fn state_pages(&self, slot: SlotId) -> Result<u64> {
        let mut state = self.state.lock();
        if state.machine.is_gone() {
            return Err(ENODEV);
        }
        if state.machine.is_at_rest() {
            // No register may be touched: the last answer stands.
            return Ok(state.state_pages[slot.index()]);
        }
        let pages = self.bar.state_pages(slot);
        self.believe(&mut state, (pages == u64::MAX).then_some(slot))?;
        state.state_pages[slot.index()] = pages;
        Ok(pages)
    }

    /// What `slot` has done, and whom it serves.
    pub(crate) fn slot_view(&self, slot: SlotId) -> SlotView {
        let vector = self.vector_of(slot);
        let (storms, useless, throttled, is_polled) = vector.map_or((0, 0, 0, false), |vector| {
            (
                vector.storms(),
                vector.spurious_count(),
                vector.throttled(),
                vector.is_off(),
            )
        });
        let state = self.state.lock();
        let machine = &state.machine;
        let measured = &state.measurements.slots[slot.index()];
        SlotView {
            stats: machine.slot_stats(slot, now()).unwrap_or_default(),
            // There is no such slot on a card that has no slots.
            state: machine.slot_state(slot).unwrap_or(SlotState::Gone),
            exclusive: machine.exclusive(slot),
            storms,
            useless,
            throttled,
            finished: measured.finished,
            faults: measured.faults,
            is_polled,
        }
    }

    /// The engine of a slot of the card.
    pub(crate) fn engine_name(&self, slot: SlotId) -> EngineName {
        let (low, high) = self.slots[slot.index()].afu_id();
        EngineName { low, high }
    }

    /// The name of its PCI function.
    pub(crate) fn name(&self) -> &CStr {
        self.device.name()
    }

    /// Contexts that are set up.
    pub(crate) fn context_count(&self) -> u32 {
        self.state.lock().machine.contexts()
    }
}
