// SPDX-License-Identifier: GPL-2.0

//! Memory that is contiguous for the card: arenas and snapshots.

use crate::{compat::c_enum::DMA_BIDIRECTIONAL, shim};
use core::ptr::NonNull;
use kernel::{
    bindings,
    device::{Bound, Device},
    error::to_result,
    mm::virt::VmaNew,
    page::PAGE_SIZE,
    prelude::*,
    sync::aref::ARef,
};

/// What the DMA API returns for an address that it could not make.
const DMA_MAPPING_ERROR: bindings::dma_addr_t = !0;

/// How the memory was got.
#[derive(Clone, Copy)]
enum Backing {
    /// From the DMA API, which makes scattered pages contiguous for the card by an IOMMU.
    Translated,
    /// Physically contiguous pages from `first` on, for a card without an IOMMU.
    Contiguous { first: NonNull<bindings::page> },
}

/// A zeroed, pinned range of memory that the card reaches at one contiguous range of addresses.
///
/// # Invariants
///
/// The `length` bytes at `cpu`, a non-zero multiple of the page size, are allocated as `backing`
/// says and mapped for `device` at `iova`. The owner drops the value while `device` is bound, and
/// after the card's last access.
pub(crate) struct DmaMemory {
    device: ARef<Device>,
    backing: Backing,
    cpu: NonNull<u8>,
    iova: u64,
    length: usize,
}

// SAFETY: It owns the memory, and the allocators may be called from any thread.
unsafe impl Send for DmaMemory {}
// SAFETY: `&self` gives plain values, and copies of bytes that the card may change at any time.
unsafe impl Sync for DmaMemory {}

impl DmaMemory {
    /// Allocates `length` bytes, a multiple of the page size. May sleep.
    ///
    /// `ENOMEM`: not so much memory or, without an IOMMU, not so much contiguous memory.
    pub(crate) fn new(device: &Device<Bound>, length: usize) -> Result<Self> {
        if length == 0 || length % PAGE_SIZE != 0 {
            return Err(EINVAL);
        }
        if is_translated(device) {
            Self::translated(device, length)
        } else {
            Self::contiguous(device, length)
        }
    }

    fn translated(device: &Device<Bound>, length: usize) -> Result<Self> {
        let mut iova = 0;
        // No warning on failure: the size is a tenant's wish.
        let flags = bindings::GFP_KERNEL | bindings::__GFP_NOWARN;
        // SAFETY: `device` is bound. The memory comes zeroed.
        let cpu = unsafe { bindings::dma_alloc_attrs(as_raw(device), length, &mut iova, flags, 0) };
        let cpu = NonNull::new(cpu.cast()).ok_or(ENOMEM)?;
        // INVARIANT: Allocated and mapped just now.
        Ok(Self {
            device: device.into(),
            backing: Backing::Translated,
            cpu,
            iova,
            length,
        })
    }

    fn contiguous(device: &Device<Bound>, length: usize) -> Result<Self> {
        let count = length / PAGE_SIZE;
        // SAFETY: No requirement.
        let first = NonNull::new(unsafe { shim::fermata_contig_alloc(count) }).ok_or(ENOMEM)?;
        // SAFETY: `device` is bound and the pages are ours.
        let iova = unsafe {
            bindings::dma_map_page_attrs(
                as_raw(device),
                first.as_ptr(),
                0,
                length,
                DMA_BIDIRECTIONAL,
                0,
            )
        };
        // SAFETY: The pages are ours, in the direct map, as GFP_KERNEL memory is.
        let cpu = NonNull::new(unsafe { shim::fermata_page_address(first.as_ptr()) }.cast());
        match cpu {
            Some(cpu) if iova != DMA_MAPPING_ERROR => {
                // INVARIANT: Allocated and mapped just now.
                Ok(Self {
                    device: device.into(),
                    backing: Backing::Contiguous { first },
                    cpu,
                    iova,
                    length,
                })
            }
            _ => {
                // SAFETY: The pages are ours, and not mapped.
                unsafe { shim::fermata_contig_free(first.as_ptr(), count) };
                Err(ENOMEM)
            }
        }
    }

    /// Address at which the card reaches the first byte.
    pub(crate) fn iova(&self) -> u64 {
        self.iova
    }

    /// Bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Maps the pages from `first_page` on into the whole of `vma`, which the caller checked to lie
    /// within.
    pub(crate) fn map(&self, vma: &VmaNew, first_page: usize) -> Result {
        let count = (vma.end() - vma.start()) / PAGE_SIZE;
        for n in 0..count {
            let page = self.page(first_page + n);
            // SAFETY: `vma` is being set up by the `mmap` file operation, which calls us; the page
            // has a reference, and gets another.
            to_result(unsafe {
                bindings::vm_insert_page(vma.as_ptr(), vma.start() + n * PAGE_SIZE, page)
            })?;
        }
        Ok(())
    }

    /// The struct page of page `n`.
    fn page(&self, n: usize) -> *mut bindings::page {
        match self.backing {
            // SAFETY: By the type invariant; the DMA API maps what it gathers into the vmalloc
            // range.
            Backing::Translated => unsafe {
                bindings::vmalloc_to_page(self.cpu.as_ptr().wrapping_add(n * PAGE_SIZE).cast())
            },
            // SAFETY: By the type invariant.
            Backing::Contiguous { first } => unsafe { shim::fermata_nth_page(first.as_ptr(), n) },
        }
    }

    /// Appends the `length` bytes from `offset` on to `out`. `EINVAL`: there are not so many. May
    /// sleep.
    pub(crate) fn copy_to(&self, offset: usize, length: usize, out: &mut KVVec<u8>) -> Result {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => {}
            _ => return Err(EINVAL),
        }
        // SAFETY: In range by the check above, and allocated by the type invariant. The caller saw
        // to it that the card is not writing there; if a broken card does, the copy is torn, and no
        // reference outlives the call.
        let bytes = unsafe { core::slice::from_raw_parts(self.cpu.as_ptr().add(offset), length) };
        Ok(out.extend_from_slice(bytes, GFP_KERNEL)?)
    }
}

impl Drop for DmaMemory {
    fn drop(&mut self) {
        let device = as_raw(&self.device);
        match self.backing {
            // SAFETY: By the type invariant.
            Backing::Translated => unsafe {
                bindings::dma_free_attrs(
                    device,
                    self.length,
                    self.cpu.as_ptr().cast(),
                    self.iova,
                    0,
                )
            },
            // SAFETY: By the type invariant.
            Backing::Contiguous { first } => unsafe {
                bindings::dma_unmap_page_attrs(
                    device,
                    self.iova,
                    self.length,
                    DMA_BIDIRECTIONAL,
                    0,
                );
                shim::fermata_contig_free(first.as_ptr(), self.length / PAGE_SIZE);
            },
        }
    }
}

/// Whether DMA addresses of `device` go through an IOMMU.
pub(crate) fn is_translated(device: &Device<Bound>) -> bool {
    // SAFETY: `device` is valid.
    unsafe { shim::fermata_dma_is_translated(as_raw(device)) }
}

/// The C side of `device`.
fn as_raw<Ctx: kernel::device::DeviceContext>(device: &Device<Ctx>) -> *mut bindings::device {
    // CAST: `Device` is transparent over `struct device`.
    core::ptr::from_ref(device).cast_mut().cast()
}
