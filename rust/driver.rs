// SPDX-License-Identifier: GPL-2.0

//! The PCI driver: what happens when a card comes and goes.

use crate::{
    bar::Bar,
    card::Card,
    chardev::Node,
    compat,
    dma_memory::{is_coherent, MAX_SEGMENT},
    limits::Limits,
    regs::BAR_SIZE,
    sched::SlotId,
};
use kernel::{
    bindings,
    device::{Bound, Core, Device},
    dma::{self, Device as _},
    pci,
    prelude::*,
    sync::Arc,
};

/// Device ids of the emulated card, from QEMU's experimental range (docs/card.md): base and fermata
/// profile.
const DEVICE_BASE: u32 = 0x10f0;
const DEVICE_FERMATA: u32 = 0x10f1;

compat::pci_device_table!(
    PCI_TABLE,
    MODULE_PCI_TABLE,
    [
        pci::DeviceId::from_id(pci::Vendor::REDHAT_QUMRANET, DEVICE_BASE),
        pci::DeviceId::from_id(pci::Vendor::REDHAT_QUMRANET, DEVICE_FERMATA),
    ]
);

/// The ids for `struct pci_driver`.
pub(crate) fn id_table() -> *const bindings::pci_device_id {
    let table: pci::IdTable<()> = &PCI_TABLE;
    table.as_ptr()
}

/// The driver's data of a bound card.
///
/// # Invariants
///
/// The fields are dropped in their order: first the node, so that nobody opens the card; then the
/// card is shut down; then the vectors go; then the function is disabled.
pub(crate) struct BoundCard {
    _node: Node,
    card: ShutDownOnDrop,
    _vectors: Option<Vectors>,
    _enabled: Enabled,
}

impl BoundCard {
    /// The card.
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

/// An enabled function, disabled on drop: else it would not be enabled in earnest when it is bound
/// again.
struct Enabled(*mut bindings::pci_dev);

// SAFETY: Only handed to C functions that lock.
unsafe impl Send for Enabled {}
// SAFETY: As above.
unsafe impl Sync for Enabled {}

impl Drop for Enabled {
    fn drop(&mut self) {
        // SAFETY: `probe` enabled it.
        unsafe { bindings::pci_disable_device(self.0) };
    }
}

/// The interrupt vectors of a device, freed on drop, after their handlers.
struct Vectors {
    pci: *mut bindings::pci_dev,
    count: u32,
}

// SAFETY: Only handed to C functions that lock.
unsafe impl Send for Vectors {}
// SAFETY: As above.
unsafe impl Sync for Vectors {}

impl Drop for Vectors {
    fn drop(&mut self) {
        // SAFETY: `new` allocated them.
        unsafe { bindings::pci_free_irq_vectors(self.pci) };
    }
}

impl Vectors {
    /// Allocates vectors for `slots` slots, MSI-X or MSI: one for each, or as many as there are to
    /// be had (without interrupt remapping MSI gives one). The error is that of
    /// `pci_alloc_irq_vectors()`.
    ///
    /// # Safety
    ///
    /// `pci` must be a bound device.
    unsafe fn new(pci: *mut bindings::pci_dev, slots: u32) -> Result<Self> {
        let flags = bindings::PCI_IRQ_MSIX | bindings::PCI_IRQ_MSI;
        // SAFETY: By the safety requirement.
        let allocated = unsafe { bindings::pci_alloc_irq_vectors(pci, 1, slots, flags) };
        let count = u32::try_from(allocated).map_err(|_| Error::from_errno(allocated))?;
        Ok(Self { pci, count })
    }

    /// The vectors that a card of `slots` slots uses, by the number of the first slot of each.
    fn used(&self, slots: u8) -> impl Iterator<Item = SlotId> + '_ {
        (0..slots)
            .filter_map(SlotId::new)
            .filter(|vector| vector.index() < self.count as usize)
    }

    /// Which of `slots` slots `vector` tells of, a bit each: several where there are not enough
    /// vectors, as the card has it (docs/card.md, Interrupts).
    fn slots(&self, vector: SlotId, slots: u8) -> u8 {
        (0..slots)
            .filter_map(SlotId::new)
            .filter(|slot| slot.index().checked_rem(self.count as usize) == Some(vector.index()))
            .fold(0, |slots, slot| slots | slot.bit())
    }

    /// The interrupt number of `vector`.
    fn irq(&self, vector: SlotId) -> Result<u32> {
        // CAST: below 8.
        let n = vector.index() as u32;
        // SAFETY: The vectors are allocated.
        let irq = unsafe { bindings::pci_irq_vector(self.pci, n) };
        u32::try_from(irq).map_err(|_| Error::from_errno(irq))
    }
}

/// Refuses a machine in which the driver could not keep its promises.
///
/// # Safety
///
/// `raw` must be that of `pdev`.
unsafe fn check_machine(pdev: &pci::Device<Core<'_>>, raw: *mut bindings::pci_dev) -> Result {
    if !is_coherent(pdev.as_ref()) {
        dev_err!(
            pdev,
            "DMA is not cache-coherent: program and engine could not share an arena\n"
        );
        return Err(ENODEV);
    }
    // SAFETY: By the safety requirement.
    if unsafe { (*raw).ats_enabled() } != 0 {
        dev_err!(
            pdev,
            "address translation services (ATS) let the card bypass the IOMMU: boot with pci=noats\n"
        );
        return Err(ENODEV);
    }
    Ok(())
}

/// Binds a card. `ENODEV`: it is none of ours, or the machine does not suit it; nothing was written
/// to it.
///
/// # Safety
///
/// `raw` must be that of `pdev`.
pub(crate) unsafe fn probe(
    pdev: &pci::Device<Core<'_>>,
    raw: *mut bindings::pci_dev,
    limits: Limits,
) -> Result<BoundCard> {
    pdev.enable_device_mem()?;
    let enabled = Enabled(raw);
    // SAFETY: By the safety requirement.
    unsafe { check_machine(pdev, raw)? };
    let device: &Device<Bound> = pdev.as_ref();
    let bar = Bar::new(
        pdev.iomap_region_sized::<BAR_SIZE>(0, c"fermata")?
            .into_devres()?,
    );
    let identity = bar.identify()?;
    // Cards cut DMA addresses to 48 bits.
    // SAFETY: Nothing is allocated or mapped for the device yet.
    unsafe { pdev.dma_set_mask_and_coherent(dma::DmaMask::new::<48>())? };
    // SAFETY: As above.
    unsafe { pdev.dma_set_max_seg_size(MAX_SEGMENT) };

    let vectors = if identity.has_irq() {
        // SAFETY: `raw` is bound.
        Some(unsafe { Vectors::new(raw, identity.slots.into())? })
    } else {
        None
    };
    // SAFETY: `raw` is the device's, and `ShutDownOnDrop` goes with the driver's data, before the
    // device is unbound.
    let card = ShutDownOnDrop(unsafe { Card::new(device, raw, bar, identity, limits)? });
    if let Some(vectors) = &vectors {
        for vector in vectors.used(identity.slots) {
            let slots = vectors.slots(vector, identity.slots);
            card.0.request_irq(vector, vectors.irq(vector)?, slots)?;
        }
    }
    // Last: from here on programs come.
    let node = Node::new(device, &card.0)?;
    dev_info!(
        pdev,
        "{} slots, {}, {}\n",
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
        }
    );
    Ok(BoundCard {
        _node: node,
        card,
        _vectors: vectors,
        _enabled: enabled,
    })
}
