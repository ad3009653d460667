// SPDX-License-Identifier: GPL-2.0

//! Memory that is contiguous for the card: arenas and snapshots.
//!
//! [`UnmappedMemory`] is made without the device, and so outside the unplug gate, because making it
//! may take as long as a tenant likes (a page fault on FUSE memory, a throttled memory cgroup).
//! Only [`UnmappedMemory::map`], which is bounded, needs the bound device.
//!
//! The `kernel` crate's `SGTable` and `Coherent` cannot take their place (docs/upstream.md).

use crate::{
    charge::Charge,
    compat::errno,
    pages::{contiguous_is_charged, PageRange, Pages},
    shim::{fermata_dma_flush, fermata_dma_is_translated},
    user_memory::UserMemory,
};
use core::ops::Range;
use kernel::{
    bindings,
    device::{Bound, Device, DeviceContext},
    dma::DataDirection,
    error::to_result,
    page::{Page, PAGE_SIZE},
    pr_warn_once,
    prelude::*,
    scatterlist::SGTable,
    sync::aref::ARef,
};

/// The longest segment that the DMA API is asked for. Set at probe, since the PCI default of 64 KiB
/// would split an arena into several segments.
pub(crate) const MAX_SEGMENT: u32 = u32::MAX;

/// A running engine and the CPU use the memory at the same time, without bounce buffers and cache
/// maintenance. Pages that several contexts share are mapped several times.
// CAST: the attributes are 32 bits wide at most.
const ATTRIBUTES: c_ulong = bindings::DMA_ATTR_REQUIRE_COHERENT as c_ulong;

/// Where memory for the card comes from.
pub(crate) enum Kind {
    /// Allocated, anywhere: an IOMMU makes it contiguous for the card.
    Scattered,
    /// Allocated, physically contiguous, for a card without an IOMMU.
    Contiguous,
    /// A program's own memory.
    Own(UserMemory),
}

impl Kind {
    /// Returns whether the kernel charges `length` bytes to the caller's memory cgroup.
    pub(crate) fn is_charged_to_cgroup(&self, length: usize) -> bool {
        match self {
            // Pages of a program's own were charged when they were allocated.
            Self::Scattered | Self::Own(_) => true,
            Self::Contiguous => contiguous_is_charged(length / PAGE_SIZE),
        }
    }
}

/// A scatter list of pages.
///
/// # Invariants
///
/// The `struct sg_table` is initialised, and refers to pages that outlive `self`.
struct Table(bindings::sg_table);

// SAFETY: A scatter list may be mapped, unmapped and freed on any thread.
unsafe impl Send for Table {}

impl Table {
    /// Makes a scatter list of `pages`, which must outlive it. Allocates memory. `ENOMEM`.
    fn new(pages: &PageRange) -> Result<Self> {
        let mut table = bindings::sg_table::default();
        // SAFETY: `table` may be written. The array has that many pages, and is not written.
        to_result(unsafe {
            bindings::sg_alloc_table_from_pages_segment(
                &mut table,
                pages.as_ptr(),
                c_uint::try_from(pages.len())?,
                0,
                pages.len() * PAGE_SIZE,
                MAX_SEGMENT,
                bindings::GFP_KERNEL_ACCOUNT,
            )
        })?;
        // INVARIANT: Just initialised. The callers make sure that the pages outlive the table.
        Ok(Self(table))
    }

    /// Maps the pages for `device`. `EOPNOTSUPP`: they need a bounce buffer. `ENOMEM`.
    fn map(mut self, device: &Device<Bound>, direction: DataDirection) -> Result<Mapping> {
        // SAFETY: `device` is bound, and the scatter list is initialised and not mapped yet.
        to_result(unsafe {
            let direction = direction.into();
            bindings::dma_map_sgtable(as_raw(device), &mut self.0, direction, ATTRIBUTES)
        })
        .map_err(|error| match error {
            EIO if !is_translated(device) => errno::eopnotsupp(),
            _ => ENOMEM,
        })?;
        // INVARIANT: Just mapped.
        Ok(Mapping {
            device: device.into(),
            table: self,
            direction,
        })
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the scatter list is initialised. It is freed once, here.
        unsafe { bindings::sg_free_table(&mut self.0) };
    }
}

/// Memory that the card cannot reach yet.
pub(crate) struct UnmappedMemory {
    // Before the pages, to which it refers.
    table: Table,
    pages: PageRange,
    charge: Option<Charge>,
}

impl UnmappedMemory {
    /// Allocates or pins `length` bytes, which `charge` pays for; `None`: memory of the driver,
    /// charged only to the caller's memory cgroup. May sleep, for as long as the caller's page
    /// faults take.
    ///
    /// `EINVAL`: `length` is 0 or not a multiple of the page size. `ENOMEM`: also if there is not
    /// enough contiguous memory. Other errors are those of [`Pages::pinned`].
    pub(crate) fn new(kind: Kind, length: usize, charge: Option<Charge>) -> Result<Self> {
        if length == 0 || length % PAGE_SIZE != 0 {
            return Err(EINVAL);
        }
        let count = length / PAGE_SIZE;
        let pages = match kind {
            Kind::Scattered => Pages::scattered(count, charge)?,
            Kind::Contiguous => Pages::contiguous(count, charge)?,
            Kind::Own(memory) => Pages::pinned(&memory, 0, count, charge)?,
        };
        let pages = PageRange::whole(pages)?;
        Ok(Self {
            table: Table::new(&pages)?,
            pages,
            charge: None,
        })
    }

    /// Makes memory of pages that are shared with other memory. `charge` pays for the mapping only.
    /// `ENOMEM`.
    pub(crate) fn shared(pages: PageRange, charge: Charge) -> Result<Self> {
        Ok(Self {
            table: Table::new(&pages)?,
            pages,
            charge: Some(charge),
        })
    }

    /// Maps the memory for `device`, which reads and writes it. The rest is as with
    /// [`UnmappedMemory::map_for`].
    pub(crate) fn map(self, device: &Device<Bound>) -> Result<DmaMemory> {
        self.map_for(device, DataDirection::Bidirectional)
    }

    /// Maps the memory for `device`, at one range of addresses. Takes bounded time.
    ///
    /// `ENOMEM`; `EOPNOTSUPP`: the card cannot reach the memory at one range of addresses (without
    /// an IOMMU the memory must be physically contiguous), or only with a bounce buffer.
    pub(crate) fn map_for(
        self,
        device: &Device<Bound>,
        direction: DataDirection,
    ) -> Result<DmaMemory> {
        // Variables are dropped in reverse order: on an error the table is dropped first.
        let Self {
            charge,
            pages,
            table,
        } = self;
        let mapping = table.map(device, direction).inspect_err(|&error| {
            if error == errno::eopnotsupp() {
                pr_warn_once!(
                    "{}: DMA needs a bounce buffer, which a running engine cannot use: put the \
                     card behind an IOMMU, or boot without swiotlb=force\n",
                    device.name()
                );
            }
        })?;
        let iova = mapping.iova()?;
        // INVARIANT: The table is mapped at one range of addresses.
        Ok(DmaMemory {
            _mapping: mapping,
            pages,
            _charge: charge,
            iova,
        })
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
    direction: DataDirection,
}

impl Mapping {
    /// Returns the address at which the device reaches the first byte. `EOPNOTSUPP`: the pages are
    /// mapped at several ranges of addresses.
    fn iova(&self) -> Result<u64> {
        let table = (&raw const self.table.0).cast_mut();
        // SAFETY: The scatter list is initialised by the type invariant of `Table`. Nobody changes
        // it while `self` is borrowed.
        let segments = unsafe { SGTable::from_raw(table) }.iter();
        // A segment has at most `MAX_SEGMENT` bytes: a larger range has several segments.
        let mut range: Option<Range<u64>> = None;
        for segment in segments {
            let (start, length) = (segment.dma_address(), segment.dma_len());
            range = match range {
                None => Some(start..start + length),
                Some(before) if before.end == start => Some(before.start..start + length),
                Some(_) => return Err(errno::eopnotsupp()),
            };
        }
        Ok(range.ok_or(EINVAL)?.start)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the scatter list is mapped for the device, which is bound.
        // It is unmapped once, here.
        unsafe {
            let direction = self.direction.into();
            let device = as_raw(&self.device);
            bindings::dma_unmap_sgtable(device, &mut self.table.0, direction, ATTRIBUTES);
        }
        fermata_dma_flush(&self.device);
    }
}

/// Memory that the card reaches at one contiguous range of addresses, and that stays where it is.
///
/// # Invariants
///
/// The pages are mapped at `iova`. The owner drops the value while the device is bound, and after
/// the card's last access.
pub(crate) struct DmaMemory {
    // Dropped in this order: unmapped, then released and no longer charged.
    _mapping: Mapping,
    pages: PageRange,
    _charge: Option<Charge>,
    iova: u64,
}

impl DmaMemory {
    /// Returns whether the memory was allocated, and so may be mapped into a program.
    pub(crate) fn is_allocated(&self) -> bool {
        self.pages.are_allocated()
    }

    /// Returns the address at which the card reaches the first byte.
    pub(crate) fn iova(&self) -> u64 {
        self.iova
    }

    /// Returns the number of bytes, a multiple of the page size.
    pub(crate) fn length(&self) -> usize {
        self.pages.len() * PAGE_SIZE
    }

    /// Returns the pages, in order.
    pub(crate) fn pages(&self) -> &PageRange {
        &self.pages
    }

    /// Copies bytes from `offset` on to `out`. `EINVAL`: they go beyond the end of the memory.
    ///
    /// The caller makes sure that the card does not write there. If a broken card writes there, or
    /// a program whose own memory it is, the copy is torn.
    pub(crate) fn copy_to(&self, offset: usize, out: &mut [u8]) -> Result {
        self.check_range(offset, out.len())?;
        let mut rest = out;
        self.each_part(offset, rest.len(), |page, at, length| {
            let (part, after) = core::mem::take(&mut rest).split_at_mut(length);
            rest = after;
            // SAFETY: `part` may be written, for `length` bytes. The bytes of the page may change
            // meanwhile: they are plain bytes, and no reference to them is made.
            unsafe { page.read_raw(part.as_mut_ptr(), at, length) }
        })
    }

    /// Copies `data` to `offset`. `EINVAL`: it goes beyond the end of the memory.
    ///
    /// The caller makes sure that the card does not read there.
    pub(crate) fn copy_from(&self, offset: usize, data: &[u8]) -> Result {
        self.check_range(offset, data.len())?;
        let mut rest = data;
        self.each_part(offset, rest.len(), |page, at, length| {
            let (part, after) = rest.split_at(length);
            rest = after;
            // SAFETY: `part` may be read, for `length` bytes. The page is not part of `data`, and
            // no reference to its bytes is made.
            unsafe { page.write_raw(part.as_ptr(), at, length) }
        })
    }

    /// Checks that the memory has `length` bytes from `offset` on. `EINVAL`.
    pub(crate) fn check_range(&self, offset: usize, length: usize) -> Result {
        match offset.checked_add(length) {
            Some(end) if end <= self.length() => Ok(()),
            _ => Err(EINVAL),
        }
    }

    /// Splits the `length` bytes from `offset` on, which must be in range, at page boundaries.
    /// Calls `copy` with the page, the offset in the page and the length of each part.
    fn each_part(
        &self,
        offset: usize,
        length: usize,
        mut copy: impl FnMut(&Page, usize, usize) -> Result,
    ) -> Result {
        let end = offset + length;
        let mut at = offset;
        while at < end {
            let in_page = at % PAGE_SIZE;
            let part = (PAGE_SIZE - in_page).min(end - at);
            let page = self.pages.get(at / PAGE_SIZE).ok_or(EINVAL)?;
            copy(&page, in_page, part)?;
            at += part;
        }
        Ok(())
    }
}

/// Returns whether DMA addresses of `device` go through an IOMMU.
pub(crate) fn is_translated(device: &Device<Bound>) -> bool {
    fermata_dma_is_translated(device)
}

/// Returns the C side of `device`.
fn as_raw<Context: DeviceContext>(device: &Device<Context>) -> *mut bindings::device {
    // CAST: `Device` is transparent over `struct device`.
    core::ptr::from_ref(device).cast_mut().cast()
}
