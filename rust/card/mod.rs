// SPDX-License-Identifier: GPL-2.0

//! A card: its registers, its scheduler, and the contexts that use it.

mod calls;
mod config;
mod dump;
mod events;
mod execute;
mod groups;
mod lifetime;
mod load;
mod neighbours;
mod quiesce;
mod record;
mod registered;
mod registry;
mod state;
mod watch;

pub(crate) use calls::View;
pub(crate) use groups::{GroupChange, GroupView};
pub(crate) use registered::GroupScope;
pub(crate) use registry::Registry;

use crate::{
    bar::{Bar, Identity, SlotIdentity},
    bus_watch::BusWatch,
    delayed_work::DelayedWork,
    delivery::Delivery,
    dump::Dumper,
    engine_id::EngineId,
    gate::UnplugGuard,
    limits::Limits,
    measure::SlotWatch,
    monotonic::now,
    notifier::{Notice, Notifier},
    presence::Presence,
    raw_spinlock::{new_raw_spinlock, RawSpinLock},
    regs::MAX_SLOTS,
    scheduler::{GroupKey, PreemptGranularity, Profile, SlotId, SlotState, SlotStats},
    vector::Vector,
};
use config::{card_config, class_of, new_relay, new_state, profile};
use events::SlotEvents;
use kernel::{
    device::{Bound, Core, Device},
    pci,
    prelude::*,
    sync::{aref::ARef, atomic::Atomic, new_mutex, Arc, Mutex},
};
use quiesce::{quiesce, switch_on};
use state::State;

/// The state of a slot at a moment, for `FERMATA_IOC_SLOT_INFO` and for sysfs.
pub(crate) struct SlotView {
    pub(crate) stats: SlotStats,
    pub(crate) state: SlotState,
    /// The only group that it serves.
    pub(crate) exclusive: Option<GroupKey>,
    /// How often its vector was switched off because of a storm.
    pub(crate) storms: u64,
    /// Spurious interrupts of its vector.
    pub(crate) spurious: u64,
    /// How often its vector was switched off because it reported too many completions.
    pub(crate) throttled: u64,
    /// Jobs that finished on it.
    pub(crate) finished: u64,
    /// Jobs that were stopped on it at an access outside their windows.
    pub(crate) faults: u64,
    /// Its vector is off.
    pub(crate) is_polled: bool,
    pub(crate) watch: SlotWatch,
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
    /// Limits and defaults of contexts.
    pub(crate) limits: Limits,
    slots: [SlotIdentity; MAX_SLOTS],
    /// The number of its node, once it has one. Traces name the card by it.
    number: Atomic<u32>,
    device: ARef<Device>,
    /// The PCI side of `device`.
    pci: ARef<pci::Device>,
    /// Its DMA addresses go through an IOMMU.
    pub(crate) translated: bool,
    /// Other devices in its IOMMU group, if the card does not check windows.
    neighbours: Atomic<u32>,
    /// Held while `neighbours` is updated.
    #[pin]
    updating_neighbours: Mutex<()>,
    /// Updates `neighbours`.
    #[pin]
    bus_watch: BusWatch<Self>,
    bar: Bar,
    #[pin]
    presence: Presence,
    #[pin]
    pub(crate) delivery: Delivery,
    /// Notified when the card goes, for pollers of contexts that are not set up.
    pub(crate) bystanders: Arc<Notifier>,
    /// On the heap, because it would fill the stack while a card is made.
    #[pin]
    state: RawSpinLock<KBox<State>>,
    #[pin]
    registry: Mutex<Registry>,
    /// Sweeps all contexts, looks for slots that stand still, ends registrations of removed
    /// cgroups, and gives up a silent card. Queued under the registry's lock or that of `state`, and not once the card is gone.
    #[pin]
    sweeper: DelayedWork<Self>,
    /// Makes dumps of hangs.
    #[pin]
    dumper: Dumper,
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

/// Returns the slots of a card that has `count` of them.
fn slot_ids(count: u8) -> impl Iterator<Item = SlotId> {
    (0..count).filter_map(SlotId::new)
}

/// Reads the identities of the slots, which must be out of reset. `ENODEV`: a slot has no engine, or
/// does not answer.
// Not part of its caller's frame, which is large.
#[inline(never)]
fn identify_slots(
    device: &Device<Bound>,
    bar: &Bar,
    identity: &Identity,
    slots: &mut [SlotIdentity; MAX_SLOTS],
) -> Result {
    for (slot, id) in slots.iter_mut().zip(slot_ids(identity.slots)) {
        *slot = bar.identify_slot(id, identity).inspect_err(|_| {
            dev_err!(
                device,
                "slot {} has no engine, or does not answer\n",
                id.index()
            );
        })?;
        if !slot.has_state_size() {
            dev_warn!(
                device,
                "slot {} has states of {} pages, not of 1 to 4096: its engine cannot be used\n",
                id.index(),
                slot.state_pages
            );
        }
    }
    Ok(())
}

impl Card {
    /// Makes the card behind `bar`, which answered `identity`. All slots are reset and their
    /// windows closed, and only then may the card do DMA. May sleep. `ENODEV`: a slot has no
    /// engine, or the card does not answer; the log says which.
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
        let device: &Device<Bound> = pdev.as_ref();
        // An earlier driver has left the slots in reset, where those of a base card do not answer.
        quiesce(&bar, &identity, &limits);
        let mut slots = [SlotIdentity::default(); MAX_SLOTS];
        identify_slots(device, &bar, &identity, &mut slots)?;
        pdev.set_master();
        let translated = crate::dma_memory::is_translated(device);
        let relay = new_relay(device, translated, &identity, &limits);
        let limits = Limits {
            relay: relay.is_some(),
            ..limits
        };
        if let Some(relay) = &relay {
            switch_on(&bar, &identity, relay)
                .inspect_err(|_| dev_err!(device, "the card does not take orders\n"))?;
        }
        let config = card_config(device, &bar, &identity, &slots, &limits)?;
        let state = new_state(&config, &limits, relay)?;
        let card = Arc::pin_init(
            try_pin_init!(Self {
                identity,
                limits,
                slots,
                number: Atomic::new(u32::MAX),
                device: device.into(),
                pci: pdev.into(),
                translated,
                neighbours: Atomic::new(0),
                updating_neighbours <- new_mutex!((), "fermata_neighbours"),
                // SAFETY: `OFFSET` is that of this field; `shut_down` stops the watch for good.
                bus_watch <- unsafe { BusWatch::new() },
                bar,
                presence <- Presence::new(),
                delivery <- Delivery::new(),
                bystanders: Arc::pin_init(Notifier::new(), GFP_KERNEL)?,
                state <- new_raw_spinlock!(state, "fermata_card"),
                registry <- new_mutex!(Registry::new(limits.contexts)?, "fermata_registry"),
                // SAFETY: `OFFSET` is that of this field; `shut_down` stops the work for good.
                sweeper <- unsafe { DelayedWork::new() },
                dumper <- Dumper::new(pdev.as_ref())?,
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

    /// Returns the profile by which the slots of the card are used: that of a card with a relay is
    /// irq if the relay is not used.
    pub(crate) fn profile(&self) -> Profile {
        profile(&self.identity, &self.limits)
    }

    /// Returns whether the slots of the card switch by themselves.
    pub(crate) fn has_relay(&self) -> bool {
        self.profile() == Profile::Relay
    }

    /// Returns whether the card is gone: unbound, unplugged or dead.
    pub(crate) fn is_gone(&self) -> bool {
        self.presence.is_gone()
    }

    /// Notifies pollers that only wait for the card to go. Any context, under any lock.
    fn tell_bystanders(&self) {
        self.delivery.tell(&self.bystanders, Notice::Gone);
    }

    /// Requests the interrupt `irq` of vector number `vector`, which reports events of the slots
    /// `slots`. Process context.
    pub(crate) fn request_irq(&self, vector: SlotId, irq: u32, slots: u8) -> Result {
        self.events[vector.index()].vector.request(irq, slots)
    }

    /// Returns the vector of `slot`; `None`: the card has no interrupts.
    fn vector_of(&self, slot: SlotId) -> Option<&Vector<Self>> {
        let mut vectors = self.events.iter().map(|events| &events.vector);
        vectors.find(|vector| vector.serves(slot))
    }

    /// Returns the slot number `slot` and its identity; `None`: there is no such slot.
    pub(crate) fn slot(&self, slot: u32) -> Option<(SlotId, &SlotIdentity)> {
        let id = slot_ids(self.identity.slots).find(|id| id.index() == slot as usize)?;
        Some((id, &self.slots[id.index()]))
    }

    /// Returns the identity of `slot`.
    pub(crate) fn identity_of(&self, slot: SlotId) -> &SlotIdentity {
        &self.slots[slot.index()]
    }

    /// Returns the slots of `mask`, a bit each. `EINVAL`: none, or a slot that does not exist.
    pub(crate) fn existing_slots(&self, mask: u32) -> Result<u8> {
        let all = self.slots_in(u8::MAX).fold(0, |all, id| all | id.bit());
        match u8::try_from(mask) {
            Ok(slots) if slots != 0 && slots & !all == 0 => Ok(slots),
            _ => Err(EINVAL),
        }
    }

    /// Returns the slots that have the engine `afu_id` (low half, high half), a bit each.
    pub(crate) fn slots_with(&self, afu_id: (u64, u64)) -> u8 {
        slot_ids(self.identity.slots)
            .filter(|id| self.slots[id.index()].afu_id() == afu_id)
            .fold(0, |mask, id| mask | id.bit())
    }

    /// Returns the class, in the scheduler's sense, of slot number `slot`: the first slot that has
    /// its engine.
    pub(crate) fn class_of(&self, slot: usize) -> u8 {
        class_of(&self.slots, slot)
    }

    /// Returns whether an engine of `mask` can stop at boundaries of its work.
    pub(crate) fn has_boundaries(&self, mask: u8) -> bool {
        self.slots_in(mask)
            .any(|id| self.slots[id.index()].granularity != PreemptGranularity::Anywhere)
    }

    /// Returns whether all engines of `mask` can stop only at boundaries of their work.
    pub(crate) fn is_boundary_only(&self, mask: u8) -> bool {
        self.slots_in(mask)
            .all(|id| self.slots[id.index()].granularity == PreemptGranularity::BoundaryOnly)
    }

    /// Returns whether an engine of `mask` reads a queue of jobs.
    pub(crate) fn reads_queue(&self, mask: u8) -> bool {
        self.slots_in(mask).any(|id| self.slots[id.index()].queues)
    }

    /// Returns the slots of `mask`.
    pub(crate) fn slots_in(&self, mask: u8) -> impl Iterator<Item = SlotId> {
        slot_ids(self.identity.slots).filter(move |id| mask & id.bit() != 0)
    }

    /// Returns the state and the counters of `slot`.
    pub(crate) fn slot_view(&self, slot: SlotId) -> SlotView {
        let vector = self.vector_of(slot);
        let (storms, spurious, throttled, is_polled) = vector.map_or((0, 0, 0, false), |vector| {
            (
                vector.storms(),
                vector.spurious_count(),
                vector.throttled(),
                vector.is_off(),
            )
        });
        let mut state = self.state.lock();
        let at = state.shown_until();
        let scheduler = &state.scheduler;
        let measured = &state.slots[slot].histograms;
        SlotView {
            stats: scheduler.slot_stats(slot, at).unwrap_or_default(),
            // The scheduler has every slot that `slot_ids` returns.
            state: scheduler.slot_state(slot).unwrap_or(SlotState::Gone),
            exclusive: scheduler.exclusive(slot),
            storms,
            spurious,
            throttled,
            finished: measured.finished,
            faults: measured.faults,
            is_polled,
            watch: state.slots[slot].watch,
        }
    }

    /// Returns the engine of a slot of the card.
    pub(crate) fn engine_id(&self, slot: SlotId) -> EngineId {
        let (low, high) = self.slots[slot.index()].afu_id();
        EngineId { low, high }
    }

    /// Returns the name of its PCI function.
    pub(crate) fn name(&self) -> &CStr {
        self.device.name()
    }

    /// Returns the number of contexts that are set up.
    pub(crate) fn context_count(&self) -> u32 {
        self.state.lock().scheduler.contexts()
    }
}
