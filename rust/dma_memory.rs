// SPDX-License-Identifier: GPL-2.0

//! Memory that is contiguous for the card: arenas and snapshots.

use crate::{
    charge::Charge,
    compat::{c_enum::DMA_BIDIRECTIONAL, errno},
    pinned::PinnedPages,
    shim,
};
use core::ptr::{self, NonNull};
use kernel::{
    bindings,
    device::{Bound, Device},
    error::to_result,
    mm::virt::VmaNew,
    page::PAGE_SIZE,
    prelude::*,
    sync::aref::ARef,
};

/// The longest segment that the DMA API is asked for; set at probe, since the PCI default of 64 KiB
/// would make several of an arena.
pub(crate) const MAX_SEGMENT: u32 = u32::MAX;

/// How the memory was got.
enum Backing {
    /// From the DMA API, at `cpu`, which makes scattered pages contiguous for the card by an IOMMU.
    Translated { cpu: NonNull<u8> },
    /// Physically contiguous pages from `first` on, for a card without an IOMMU.
    Contiguous { first: NonNull<bindings::page> },
    /// A program's own pages, mapped by `table`.
    Pinned {
        pages: PinnedPages,
        table: bindings::sg_table,
    },
}

/// A range of memory that the card reaches at one contiguous range of addresses, and that stays
/// where it is.
///
/// # Invariants
///
/// `length` bytes, a non-zero multiple of the page size, are allocated or pinned as `backing` says
/// and mapped for `device` at `iova`. The owner drops the value while `device` is bound, and after
/// the card's last access.
pub(crate) struct DmaMemory {
    device: ARef<Device>,
    // Before the charge: what is freed is not charged any more.
    backing: Backing,
    _charge: Charge,
    iova: u64,
    length: usize,
}

// SAFETY: It owns the memory, and the allocators may be called from any thread; so may what takes a
// scatter list apart.
unsafe impl Send for DmaMemory {}
// SAFETY: `&self` gives plain values, and copies of bytes that the card may change at any time.
unsafe impl Sync for DmaMemory {}

impl DmaMemory {
    /// Allocates `length` zeroed bytes, a multiple of the page size; they are paid for by `charge`.
    /// May sleep.
    ///
    /// `ENOMEM`: not so much memory or, without an IOMMU, not so much contiguous memory.
    pub(crate) fn new(device: &Device<Bound>, length: usize, charge: Charge) -> Result<Self> {
        check_length(length)?;
        if is_translated(device) {
            Self::translated(device, length, charge)
        } else {
            Self::contiguous(device, length, charge)
        }
    }

    /// Takes the caller's own memory, the `length` bytes, a multiple of the page size, from
    /// `address` on, likewise; they are paid for by `charge`. May sleep, and takes `mmap_lock`.
    ///
    /// The errors are those of [`PinnedPages::new`]; `EOPNOTSUPP`: the card cannot reach it at one
    /// range of addresses: without an IOMMU it must be physically contiguous.
    pub(crate) fn pinned(
        device: &Device<Bound>,
        address: usize,
        length: usize,
        charge: Charge,
    ) -> Result<Self> {
        check_length(length)?;
        let mut pages = PinnedPages::new(address, length / PAGE_SIZE)?;
        let table = map_pages(device, pages.as_mut_slice())?;
        // SAFETY: Mapped just now, so there is an entry.
        let iova = unsafe { bindings::sg_dma_address(table.sgl) };
        // INVARIANT: Pinned, and mapped at one range.
        Ok(Self {
            device: device.into(),
            backing: Backing::Pinned { pages, table },
            _charge: charge,
            iova,
            length,
        })
    }

    fn translated(device: &Device<Bound>, length: usize, charge: Charge) -> Result<Self> {
        let mut iova = 0;
        // No warning on failure: the size is a tenant's wish.
        let flags = bindings::GFP_KERNEL_ACCOUNT | bindings::__GFP_NOWARN;
        // SAFETY: `device` is bound. The memory comes zeroed.
        let cpu = unsafe { bindings::dma_alloc_attrs(as_raw(device), length, &mut iova, flags, 0) };
        let cpu = NonNull::new(cpu.cast()).ok_or(ENOMEM)?;
        // INVARIANT: Allocated and mapped just now.
        Ok(Self {
            device: device.into(),
            backing: Backing::Translated { cpu },
            _charge: charge,
            iova,
            length,
        })
    }

    fn contiguous(device: &Device<Bound>, length: usize, charge: Charge) -> Result<Self> {
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
        // SAFETY: `device` is bound, and `iova` is what the DMA API returned for it.
        if unsafe { shim::fermata_dma_mapping_failed(as_raw(device), iova) } {
            // SAFETY: The pages are ours, and not mapped.
            unsafe { shim::fermata_contig_free(first.as_ptr(), count) };
            return Err(ENOMEM);
        }
        // INVARIANT: Allocated and mapped just now.
        Ok(Self {
            device: device.into(),
            backing: Backing::Contiguous { first },
            _charge: charge,
            iova,
            length,
        })
    }

    /// Whether it was allocated, and so can be mapped into a program.
    pub(crate) fn is_allocated(&self) -> bool {
        !matches!(self.backing, Backing::Pinned { .. })
    }

    /// Address at which the card reaches the first byte.
    pub(crate) fn iova(&self) -> u64 {
        self.iova
    }

    /// Bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Maps the pages from `first_page` on of allocated memory into the whole of `vma`, which the
    /// caller checked to lie within.
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
        match &self.backing {
            // SAFETY: By the type invariant; the DMA API maps what it gathers into the vmalloc
            // range.
            Backing::Translated { cpu } => unsafe {
                bindings::vmalloc_to_page(cpu.as_ptr().wrapping_add(n * PAGE_SIZE).cast())
            },
            // SAFETY: By the type invariant.
            Backing::Contiguous { first } => unsafe { shim::fermata_nth_page(first.as_ptr(), n) },
            Backing::Pinned { pages, .. } => pages.as_slice()[n],
        }
    }

    /// Appends the `length` bytes from `offset` on to `out`. `EINVAL`: there are not so many. May
    /// sleep.
    pub(crate) fn copy_to(&self, offset: usize, length: usize, out: &mut KVVec<u8>) -> Result {
        self.check_range(offset, length)?;
        let mut at = offset;
        while at < offset + length {
            let rest = (PAGE_SIZE - at % PAGE_SIZE).min(offset + length - at);
            out.extend_from_slice(self.bytes_in_page(at, rest), GFP_KERNEL)?;
            at += rest;
        }
        Ok(())
    }

    /// Copies `data` in, from `offset` on. `EINVAL`: it goes beyond the end.
    pub(crate) fn copy_from(&self, offset: usize, data: &[u8]) -> Result {
        self.check_range(offset, data.len())?;
        let mut at = offset;
        let mut left = data;
        while !left.is_empty() {
            let (now, later) = left.split_at((PAGE_SIZE - at % PAGE_SIZE).min(left.len()));
            // SAFETY: `now` ends in the page; the page is not `data`, of which a reference is held.
            // The callers see to it that the card reads nothing there.
            unsafe { ptr::copy_nonoverlapping(now.as_ptr(), self.address(at), now.len()) };
            at += now.len();
            left = later;
        }
        Ok(())
    }

    /// `EINVAL`: there are no `length` bytes from `offset` on.
    pub(crate) fn check_range(&self, offset: usize, length: usize) -> Result {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(()),
            _ => Err(EINVAL),
        }
    }

    /// Where byte `at`, which is one of ours, is for the kernel; valid to the end of its page.
    fn address(&self, at: usize) -> *mut u8 {
        // SAFETY: The page is ours, in the direct map, as all pages of 64-bit kernels are.
        let page = unsafe { shim::fermata_page_address(self.page(at / PAGE_SIZE)) };
        page.cast::<u8>().wrapping_add(at % PAGE_SIZE)
    }

    /// The `length` bytes from `at` on, which lie in one page.
    fn bytes_in_page(&self, at: usize, length: usize) -> &[u8] {
        // SAFETY: In the page, by the contract of this private function. The callers see to it that
        // the card is not writing there; if a broken card does, or a program to its own memory, the
        // copy is torn, and no reference outlives the copying.
        unsafe { core::slice::from_raw_parts(self.address(at), length) }
    }
}

impl Drop for DmaMemory {
    fn drop(&mut self) {
        let device = as_raw(&self.device);
        match &mut self.backing {
            // SAFETY: By the type invariant.
            Backing::Translated { cpu } => unsafe {
                bindings::dma_free_attrs(device, self.length, cpu.as_ptr().cast(), self.iova, 0)
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
            // The pages are unpinned after that.
            // SAFETY: By the type invariant; `map_pages` made the table.
            Backing::Pinned { table, .. } => unsafe { unmap_pages(device, table) },
        }
    }
}

/// `EINVAL`: `length` is no multiple of the page size, or 0.
fn check_length(length: usize) -> Result {
    if length == 0 || length % PAGE_SIZE != 0 {
        return Err(EINVAL);
    }
    Ok(())
}

/// Maps pages for `device`, in order, at one range of addresses. `ENOMEM`; `EOPNOTSUPP`: it cannot
/// be one range. May sleep.
fn map_pages(
    device: &Device<Bound>,
    pages: &mut [*mut bindings::page],
) -> Result<bindings::sg_table> {
    let mut table = bindings::sg_table::default();
    // SAFETY: `table` may be written, `pages` is an array of so many.
    to_result(unsafe {
        bindings::sg_alloc_table_from_pages_segment(
            &mut table,
            pages.as_mut_ptr(),
            c_uint::try_from(pages.len())?,
            0,
            pages.len() * PAGE_SIZE,
            MAX_SEGMENT,
            bindings::GFP_KERNEL_ACCOUNT,
        )
    })?;
    // SAFETY: `device` is bound, and the table was just made.
    let mapped = to_result(unsafe {
        bindings::dma_map_sgtable(as_raw(device), &mut table, DMA_BIDIRECTIONAL, 0)
    });
    if mapped.is_err() {
        // SAFETY: Made above, and not mapped.
        unsafe { bindings::sg_free_table(&mut table) };
        return Err(ENOMEM);
    }
    if table.nents != 1 {
        // SAFETY: Made and mapped above.
        unsafe { unmap_pages(as_raw(device), &mut table) };
        return Err(errno::eopnotsupp());
    }
    Ok(table)
}

/// Undoes [`map_pages`].
///
/// # Safety
///
/// `table` must be mapped for `device`, which must be bound; it must not be used any more.
unsafe fn unmap_pages(device: *mut bindings::device, table: &mut bindings::sg_table) {
    // SAFETY: By the safety requirement.
    unsafe {
        bindings::dma_unmap_sgtable(device, table, DMA_BIDIRECTIONAL, 0);
        bindings::sg_free_table(table);
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
