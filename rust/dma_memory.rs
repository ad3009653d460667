// SPDX-License-Identifier: GPL-2.0

//! Memory that is contiguous for the card: arenas and snapshots.
//!
//! [`UnmappedMemory`] is made without the device, and so outside the unplug gate, because making it
//! may take as long as a tenant likes (a page fault on FUSE memory, a throttled memory cgroup).
//! Only [`UnmappedMemory::map`], which is bounded, needs the bound device.

use crate::{
    charge::Charge,
    compat::{c_enum::DMA_BIDIRECTIONAL, errno},
    pages::{self, Pages},
    shim,
};
use core::ptr;
use kernel::{
    bindings,
    device::{Bound, Device},
    error::to_result,
    page::PAGE_SIZE,
    pr_warn_once,
    prelude::*,
    sync::aref::ARef,
};

/// The longest segment that the DMA API is asked for; set at probe, since the PCI default of 64 KiB
/// would make several of an arena.
pub(crate) const MAX_SEGMENT: u32 = u32::MAX;

/// Where memory for the card comes from.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// Allocated, anywhere: an IOMMU makes it contiguous for the card.
    Scattered,
    /// Allocated, physically contiguous, for a card without an IOMMU.
    Contiguous,
    /// The caller's own, from this address on.
    Own(usize),
}

impl Kind {
    /// Whether the kernel charges `length` bytes to the caller's memory cgroup.
    pub(crate) fn is_charged_to_cgroup(self, length: usize) -> bool {
        match self {
            // Pages of a program's own have been charged when they were made.
            Self::Scattered | Self::Own(_) => true,
            Self::Contiguous => pages::contiguous_is_charged(length / PAGE_SIZE),
        }
    }
}

/// A scatter list of pages.
///
/// # Invariants
///
/// `table` is an initialised `struct sg_table` that refers to pages which outlive `self`.
struct Table(bindings::sg_table);

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::sg_free_table(&mut self.0) };
    }
}

/// Memory that the card cannot reach yet.
pub(crate) struct UnmappedMemory {
    // Before the pages, to which it refers.
    table: Table,
    pages: Pages,
    charge: Charge,
    length: usize,
}

impl UnmappedMemory {
    /// Allocates or pins `length` bytes, which are paid for by `charge`. May sleep, for as long as
    /// the caller's page faults take.
    ///
    /// `EINVAL`: `length` is 0 or no multiple of the page size. `ENOMEM`: also not so much
    /// contiguous memory. Otherwise as [`Pages::pinned`].
    pub(crate) fn new(kind: Kind, length: usize, charge: Charge) -> Result<Self> {
        if length == 0 || length % PAGE_SIZE != 0 {
            return Err(EINVAL);
        }
        let count = length / PAGE_SIZE;
        let mut pages = match kind {
            Kind::Scattered => Pages::scattered(count)?,
            Kind::Contiguous => Pages::contiguous(count)?,
            Kind::Own(address) => Pages::pinned(address, count)?,
        };
        let mut table = bindings::sg_table::default();
        // SAFETY: `table` may be written, and the array has `count` pages.
        to_result(unsafe {
            bindings::sg_alloc_table_from_pages_segment(
                &mut table,
                pages.as_mut_slice().as_mut_ptr(),
                c_uint::try_from(count)?,
                0,
                length,
                MAX_SEGMENT,
                bindings::GFP_KERNEL_ACCOUNT,
            )
        })?;
        Ok(Self {
            // INVARIANT: Just made; `pages` lives longer, here and in `DmaMemory`.
            table: Table(table),
            pages,
            charge,
            length,
        })
    }

    /// Maps the memory for `device`, at one range of addresses. Bounded: this waits for nobody.
    ///
    /// `ENOMEM`; `EOPNOTSUPP`: the card cannot reach the memory at one range of addresses (without
    /// an IOMMU the memory must be physically contiguous), or not without a bounce buffer.
    pub(crate) fn map(self, device: &Device<Bound>) -> Result<DmaMemory> {
        // Reverse order of dropping: on an error the table goes first, the charge last.
        let Self {
            length,
            charge,
            pages,
            mut table,
        } = self;
        let raw = as_raw(device);
        // SAFETY: `device` is bound, and the table was made for memory that nobody has mapped.
        to_result(unsafe { bindings::dma_map_sgtable(raw, &mut table.0, DMA_BIDIRECTIONAL, 0) })
            .map_err(|_| ENOMEM)?;
        // SAFETY: Just mapped, so there is a first entry.
        let iova = unsafe { bindings::sg_dma_address(table.0.sgl) };
        // INVARIANT: Mapped; the checks below decide whether at one range.
        let memory = DmaMemory {
            mapping: Mapping {
                device: device.into(),
                table,
            },
            pages,
            _charge: charge,
            iova,
            length,
        };
        if memory.mapping.table.0.nents != 1 {
            return Err(errno::eopnotsupp());
        }
        // SAFETY: `device` is bound, and `iova` was returned for it.
        if !is_translated(device) && unsafe { shim::fermata_dma_needs_sync(raw, iova) } {
            pr_warn_once!(
                "{}: DMA needs a bounce buffer, which a running engine cannot use: put the card \
                 behind an IOMMU, or boot without swiotlb=force\n",
                device.name()
            );
            return Err(errno::eopnotsupp());
        }
        Ok(memory)
    }
}

/// A scatter list that is mapped for a device.
///
/// # Invariants
///
/// `table` is mapped for `device`, which is bound when the value is dropped.
struct Mapping {
    device: ARef<Device>,
    table: Table,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let device = as_raw(&self.device);
        // SAFETY: By the type invariant.
        unsafe {
            bindings::dma_unmap_sgtable(device, &mut self.table.0, DMA_BIDIRECTIONAL, 0);
            shim::fermata_dma_flush(device);
        }
    }
}

/// Memory that the card reaches at one contiguous range of addresses, and that stays where it is.
///
/// # Invariants
///
/// The `length` bytes of `pages`, a non-zero multiple of the page size, are mapped at `iova`. The
/// owner drops the value while the device is bound, and after the card's last access.
pub(crate) struct DmaMemory {
    // Dropped in this order: unmapped, then released, then no longer charged.
    mapping: Mapping,
    pages: Pages,
    _charge: Charge,
    iova: u64,
    length: usize,
}

// SAFETY: A scatter list may be unmapped and freed from any thread; all else is `Send`.
unsafe impl Send for DmaMemory {}
// SAFETY: `&self` gives plain values, and copies of bytes that the card may change at any time.
unsafe impl Sync for DmaMemory {}

impl DmaMemory {
    /// Whether the memory was allocated, and so may be mapped into a program.
    pub(crate) fn is_allocated(&self) -> bool {
        self.pages.are_allocated()
    }

    /// Address at which the card reaches the first byte.
    pub(crate) fn iova(&self) -> u64 {
        self.iova
    }

    /// Bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The pages, in order.
    pub(crate) fn pages(&self) -> &[*mut bindings::page] {
        self.pages.as_slice()
    }

    /// Copies bytes from `offset` on to `out`. `EINVAL`: there are not so many.
    ///
    /// The callers see to it that the card does not write there. If a broken card does, or a program
    /// to its own memory, the copy is torn.
    pub(crate) fn copy_to(&self, offset: usize, out: &mut [u8]) -> Result {
        self.check_range(offset, out.len())?;
        let to = out.as_mut_ptr();
        self.each_part(offset, out.len(), |done, address, length| {
            // SAFETY: `out` has `length` bytes from `done` on; `address` is valid for `length`
            // bytes, which lie in one page, and the page is not part of `out`.
            unsafe { ptr::copy_nonoverlapping(address, to.add(done), length) }
        });
        Ok(())
    }

    /// Copies `data` to `offset`. `EINVAL`: it goes beyond the end.
    ///
    /// The callers see to it that the card does not read there.
    pub(crate) fn copy_from(&self, offset: usize, data: &[u8]) -> Result {
        self.check_range(offset, data.len())?;
        self.each_part(offset, data.len(), |done, address, length| {
            // SAFETY: As in `copy_to`, with the directions exchanged.
            unsafe { ptr::copy_nonoverlapping(data.as_ptr().add(done), address, length) }
        });
        Ok(())
    }

    /// `EINVAL`: there are no `length` bytes from `offset` on.
    pub(crate) fn check_range(&self, offset: usize, length: usize) -> Result {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(()),
            _ => Err(EINVAL),
        }
    }

    /// Cuts the `length` bytes from `offset` on, which are in range, at the ends of pages: calls `part`
    /// with the number of bytes before each part, its kernel address and its length.
    fn each_part(&self, offset: usize, length: usize, mut part: impl FnMut(usize, *mut u8, usize)) {
        let mut done = 0;
        while done < length {
            let at = offset + done;
            let in_page = at % PAGE_SIZE;
            let now = (PAGE_SIZE - in_page).min(length - done);
            // SAFETY: The page is ours, and in the direct map, as all pages of 64-bit kernels are.
            let page = unsafe { shim::fermata_page_address(self.pages()[at / PAGE_SIZE]) };
            part(done, page.cast::<u8>().wrapping_add(in_page), now);
            done += now;
        }
    }
}

/// Whether DMA addresses of `device` go through an IOMMU.
pub(crate) fn is_translated(device: &Device<Bound>) -> bool {
    // SAFETY: `device` is valid.
    unsafe { shim::fermata_dma_is_translated(as_raw(device)) }
}

/// Whether the processors and the device see each other's writes without cache maintenance.
pub(crate) fn is_coherent(device: &Device<Bound>) -> bool {
    // SAFETY: `device` is valid.
    unsafe { shim::fermata_dma_is_coherent(as_raw(device)) }
}

/// The C side of `device`.
fn as_raw<Ctx: kernel::device::DeviceContext>(device: &Device<Ctx>) -> *mut bindings::device {
    // CAST: `Device` is transparent over `struct device`.
    core::ptr::from_ref(device).cast_mut().cast()
}
