// SPDX-License-Identifier: GPL-2.0

//! The PCI driver: binding and unbinding a card.

use crate::{
    bar::{Bar, Identity},
    card::Card,
    chardev::Node,
    compat::{self, IrqVectors},
    dma_memory::MAX_SEGMENT,
    file::OPERATIONS,
    limits::Limits,
    regs::BAR_SIZE,
    scheduler::SlotId,
    shim::{
        fermata_dma_cross_boundaries, fermata_dma_is_coherent, pci_as_raw, pci_disable_device,
        pci_save_state,
    },
};
use core::iter;
use kernel::{
    device::{Bound, Core, Device},
    devres,
    dma::{self, Device as _},
    pci,
    prelude::*,
    sync::{aref::ARef, Arc},
};

/// Device ids of the emulated card, from QEMU's experimental range (docs/emulated-card.md): of the base
/// profile, and of the irq and relay profiles.
const DEVICE_BASE: u32 = 0x10f0;
const DEVICE_IRQ: u32 = 0x10f1;

compat::pci_device_table!(
    PCI_TABLE,
    MODULE_PCI_TABLE,
    [
        pci::DeviceId::from_id(pci::Vendor::REDHAT_QUMRANET, DEVICE_BASE),
        pci::DeviceId::from_id(pci::Vendor::REDHAT_QUMRANET, DEVICE_IRQ),
    ]
);

/// The driver of the card. [`Adapter`](crate::adapter::Adapter) registers it.
pub(crate) struct Driver;

impl pci::Driver for Driver {
    type IdInfo = ();
    type Data<'bound> = BoundCard<'bound>;
    const ID_TABLE: pci::IdTable<()> = &PCI_TABLE;

    /// Binds a card. `ENODEV`: the device is not a card, or the driver cannot work on this machine,
    /// and nothing was written to the device; or a slot of the card does not answer.
    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        _id_info: compat::IdInfo<'bound>,
    ) -> impl PinInit<BoundCard<'bound>, Error> + 'bound {
        probe(pdev)
    }
}

/// The driver's data of a bound card.
///
/// # Invariants
///
/// The fields are dropped in their order: first the node, so that nobody opens the card; then the
/// card is shut down; then the vectors are freed. After that devres unmaps the BAR and disables the
/// function.
pub(crate) struct BoundCard<'bound> {
    _node: Node,
    card: ShutDownOnDrop,
    _vectors: Option<IrqVectors<'bound>>,
}

impl BoundCard<'_> {
    /// Returns the card.
    pub(crate) fn card(&self) -> &Card {
        &self.card.0
    }
}

/// Shuts the card down before its device is unbound.
struct ShutDownOnDrop(Arc<Card>);

impl Drop for ShutDownOnDrop {
    fn drop(&mut self) {
        self.0.shut_down();
    }
}

/// A PCI function that was enabled, and is disabled when this value is dropped. Otherwise the
/// enable count would keep the PCI core from enabling the function when it is bound again.
struct Enabled(ARef<pci::Device>);

impl Drop for Enabled {
    fn drop(&mut self) {
        pci_disable_device(&self.0);
    }
}

/// Enables the memory of a function until the device is unbound.
fn enable(pdev: &pci::Device<Core<'_>>) -> Result {
    pdev.enable_device_mem()?;
    devres::register(pdev.as_ref(), Enabled(pdev.into()), GFP_KERNEL)
}

/// Returns the interrupt of each vector, for at most `slots` slots.
fn irqs<'a>(vectors: &'a IrqVectors<'_>, slots: u8) -> impl Iterator<Item = u32> + 'a {
    let mut numbers = 0..u32::from(slots);
    iter::from_fn(move || vectors.irq(numbers.next()?).ok())
}

/// Returns which of `slots` slots, a bit each, interrupt by `vector` on a card with `count`
/// vectors: several if there are not enough vectors (docs/registers.md, Interrupts).
fn slots_of(vector: usize, count: usize, slots: u8) -> u8 {
    (0..slots)
        .filter_map(SlotId::new)
        .filter(|slot| slot.index().checked_rem(count) == Some(vector))
        .fold(0, |slots, slot| slots | slot.bit())
}

/// Returns the interrupt vectors of a card. `None`: the card has none, or the machine has none for
/// it (`pci=nomsi`), which is logged: the slots are to be polled.
fn vectors<'a>(pdev: &'a pci::Device<Core<'_>>, identity: &Identity) -> Option<IrqVectors<'a>> {
    if !identity.has_irq() {
        return None;
    }
    let vectors = IrqVectors::new(pdev, identity.slots.into());
    let told = vectors.inspect_err(|error| {
        dev_warn!(
            pdev,
            "no interrupt vectors ({error:?}): the slots are polled\n"
        );
    });
    told.ok()
}

/// Requests the interrupts of `card`.
fn request_irqs(card: &Card, vectors: &IrqVectors<'_>, slots: u8) -> Result {
    let count = irqs(vectors, slots).count();
    for (vector, irq) in irqs(vectors, slots).enumerate() {
        // CAST: below 8.
        let id = SlotId::new(vector as u8).ok_or(EINVAL)?;
        card.request_irq(id, irq, slots_of(vector, count, slots))?;
    }
    Ok(())
}

/// Checks that the driver can keep its guarantees on this machine. `ENODEV`.
fn check_machine(pdev: &pci::Device<Core<'_>>) -> Result {
    let device: &Device<Bound> = pdev.as_ref();
    if !fermata_dma_is_coherent(device) {
        dev_err!(
            pdev,
            "DMA is not cache-coherent: program and engine could not share an arena\n"
        );
        return Err(ENODEV);
    }
    let raw = pci_as_raw(pdev);
    // SAFETY: The device is valid. ATS is enabled before a driver is probed, and stays enabled.
    if unsafe { (*raw).ats_enabled() } != 0 {
        dev_err!(
            pdev,
            "address translation services (ATS) let the card bypass the IOMMU: \
             boot with pci=noats\n"
        );
        return Err(ENODEV);
    }
    Ok(())
}

/// Binds a card, see [`Driver`].
fn probe<'bound>(pdev: &'bound pci::Device<Core<'_>>) -> Result<BoundCard<'bound>> {
    let limits = Limits::from_module_parameters()?;
    enable(pdev)?;
    check_machine(pdev)?;
    let device: &Device<Bound> = pdev.as_ref();
    let region = pdev.iomap_region_sized::<BAR_SIZE>(0, c"fermata")?;
    let bar = Bar::new(region.into_devres()?, device)?;
    let identity = bar.identify().inspect_err(|_| {
        dev_err!(
            pdev,
            "not an Optimus or fermata card of a known version with 1 to 8 slots\n"
        );
    })?;
    // Cards cut DMA addresses to 48 bits.
    // SAFETY: Memory is allocated or mapped for the device by `Card::new` at the earliest.
    unsafe {
        pdev.dma_set_mask_and_coherent(dma::DmaMask::new::<48>())?;
        pdev.dma_set_max_seg_size(MAX_SEGMENT);
    }
    fermata_dma_cross_boundaries(device);

    let vectors = vectors(pdev, &identity);
    let identity = match &vectors {
        Some(_) => identity,
        None => identity.without_irq(),
    };
    // SAFETY: `ShutDownOnDrop` is part of the driver's data, which is dropped before the device is
    // unbound.
    let card = unsafe { Card::new(pdev, bar, identity, limits)? };
    let card = ShutDownOnDrop(card);
    if let Some(vectors) = &vectors {
        request_irqs(&card.0, vectors, identity.slots)?;
    }
    card.0.watch_neighbours()?;
    // What the PCI core has saved is the configuration from before the function was enabled.
    pci_save_state(pdev);
    // Last: from here on programs can open the card.
    let node = Node::new(device, &card.0, &OPERATIONS)?;
    report(pdev, &card.0, &identity);
    Ok(BoundCard {
        _node: node,
        card,
        _vectors: vectors,
    })
}

/// Logs the features of a bound card.
fn report(pdev: &pci::Device<Core<'_>>, card: &Card, identity: &Identity) {
    dev_info!(
        pdev,
        "{} slots, {}, {}{}\n",
        identity.slots,
        if identity.has_irq() {
            "interrupts"
        } else {
            "no interrupts"
        },
        if identity.has_window() {
            "DMA window check"
        } else {
            "no DMA window check"
        },
        if identity.has_relay { ", relay" } else { "" }
    );
    if !identity.has_window() && !card.translated {
        dev_warn!(
            pdev,
            "no IOMMU translates (iommu=pt does not): engines reach all memory, so set-up takes CAP_SYS_RAWIO\n"
        );
    }
}
