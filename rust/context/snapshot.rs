// SPDX-License-Identifier: GPL-2.0

//! The snapshot buffer of a context: making it, copying states out of it and into it.

use super::Context;
use crate::{
    capability,
    compat::errno,
    regs::STATE_PAGES_MAX,
    relay::{ImageMemory, UnmappedImage},
    scheduler::JobState,
    user_memory::UserMemory,
};
use kernel::{page::PAGE_SIZE, prelude::*};

/// Bytes of a page of a state, independent of the kernel's page size (docs/registers.md,
/// CSR_STATE_SIZE_PG).
const STATE_PAGE: u64 = 4096;
/// Largest snapshot in bytes (`FERMATA_IOC_SNAPSHOT_CREATE`).
const STATE_MAX: u64 = STATE_PAGES_MAX * STATE_PAGE;

impl Context {
    /// Makes the snapshot buffer and returns its size in bytes. `own`: the program's own memory to
    /// use, and its length.
    pub(crate) fn create_snapshot(&self, own: Option<(UserMemory, u64)>) -> Result<u64> {
        let id = self.id()?;
        if self.client.memory.lock().snapshot.is_some() {
            return Err(EEXIST);
        }
        let pages = self.state_pages(self.card.params(id)?.mask);
        if pages == 0 || pages > STATE_PAGES_MAX {
            return Err(errno::eproto());
        }
        let needed = (pages * STATE_PAGE).next_multiple_of(PAGE_SIZE as u64);
        let (own, length) = match own {
            Some((memory, length)) => {
                self.check_own_snapshot(memory.address(), length, needed)?;
                (Some(memory), length)
            }
            None => (None, needed),
        };
        let address = own.as_ref().map(UserMemory::address);
        // CAST: at most STATE_MAX, or a page.
        let unmapped = self.unmapped_memory(length as usize, own)?;
        let image = match self.card.has_relay() {
            true => Some(UnmappedImage::new()?),
            false => None,
        };
        let device = self.card.enter()?;
        let snapshot = unmapped.map(&device)?;
        let image = image.map(|image| image.map(&device)).transpose()?;
        let mut memory = self.client.memory.lock();
        if memory.snapshot.is_some() {
            return Err(EEXIST);
        }
        let pages = image.as_ref().map(ImageMemory::pages);
        self.card.with_image(id, |image| {
            image.set_snapshot(snapshot.iova(), length, pages);
        })?;
        memory.snapshot = Some(snapshot);
        memory.own_snapshot = address;
        memory.image = image;
        Ok(length)
    }

    /// Checks that the program's own memory can be the snapshot buffer, which needs `needed` bytes.
    /// `EINVAL`; `EOPNOTSUPP`: the card does not confine an engine whose state is forged.
    fn check_own_snapshot(&self, address: u64, length: u64, needed: u64) -> Result {
        let page = PAGE_SIZE as u64;
        if address % page != 0 || length % page != 0 || !(needed..=STATE_MAX).contains(&length) {
            return Err(EINVAL);
        }
        if !self.card.identity.confines_any_state() {
            return Err(errno::eopnotsupp());
        }
        Ok(())
    }

    /// Returns the largest snapshot of `slots`, in pages of a state.
    fn state_pages(&self, slots: u8) -> u64 {
        let slots = self.card.slots_in(slots);
        let pages = slots.map(|slot| self.card.identity_of(slot).state_pages);
        pages.max().unwrap_or(0)
    }

    /// Checks that a snapshot of `length` bytes has room for the state of each of `slots`.
    /// `EPROTO`.
    pub(super) fn check_snapshot(&self, slots: u8, length: u64) -> Result {
        match self.state_pages(slots).checked_mul(STATE_PAGE) {
            Some(needed) if needed <= length && needed != 0 => Ok(()),
            _ => Err(errno::eproto()),
        }
    }

    /// Checks that `length` bytes of the snapshot from `offset` on can be read now. Returns a value
    /// for [`Context::check_still_held`]. `ENXIO`: no buffer; `EINVAL`: beyond its end; `EBUSY`:
    /// the job is not held; `ENODATA`: no state was saved.
    pub(crate) fn check_snapshot_read(&self, offset: u64, length: u64) -> Result<HeldSince> {
        let stats = self.card.view(self.id()?)?.stats;
        self.check_snapshot_range(offset, length)?;
        if stats.state != JobState::Held {
            return Err(EBUSY);
        }
        if !stats.saved {
            return Err(errno::enodata());
        }
        Ok(HeldSince {
            slices: stats.slices,
        })
    }

    /// Checks that the job has been held all the time since `since`. `EBUSY`.
    pub(crate) fn check_still_held(&self, since: HeldSince) -> Result {
        let stats = self.card.view(self.id()?)?.stats;
        if stats.state != JobState::Held || stats.slices != since.slices {
            return Err(EBUSY);
        }
        Ok(())
    }

    /// Copies bytes of the snapshot from `offset` on.
    pub(crate) fn copy_from_snapshot(&self, offset: usize, out: &mut [u8]) -> Result {
        self.client.memory.lock().snapshot()?.copy_to(offset, out)
    }

    /// Checks that `length` bytes of a state may be imported to `offset`. `ENXIO`, `EINVAL`,
    /// `EBUSY`; `EPERM`: the card does not confine an engine whose state is forged, and the caller
    /// may not let a device access all memory.
    pub(crate) fn check_snapshot_write(&self, offset: u64, length: u64) -> Result {
        if !self.card.identity.confines_any_state() && !capability::may_touch_all_memory() {
            return Err(EPERM);
        }
        self.check_snapshot_range(offset, length)?;
        self.check_no_job()
    }

    /// Copies a piece of a state into the snapshot buffer. `EBUSY`: a job was started meanwhile.
    pub(crate) fn copy_to_snapshot(&self, offset: usize, state: &[u8]) -> Result {
        // No job starts while the lock is held.
        let mut memory = self.client.memory.lock();
        self.check_no_job()?;
        // Until the whole state is there, no job starts from a part of it.
        memory.imported = false;
        memory.snapshot()?.copy_from(offset, state)
    }

    /// Marks the state in the snapshot buffer complete: the next job can start from it.
    pub(crate) fn note_import(&self) -> Result {
        let mut memory = self.client.memory.lock();
        self.check_no_job()?;
        memory.imported = true;
        Ok(())
    }

    /// Checks that the context has no job that has not ended. `EBUSY`.
    fn check_no_job(&self) -> Result {
        match self.card.job(self.id()?)?.0.is_live() {
            true => Err(EBUSY),
            false => Ok(()),
        }
    }

    /// Checks that the snapshot buffer has `length` bytes from `offset` on. `ENXIO`: no buffer;
    /// `EINVAL`: it has not.
    fn check_snapshot_range(&self, offset: u64, length: u64) -> Result {
        let memory = self.client.memory.lock();
        let snapshot = memory.snapshot()?;
        snapshot.check_range(usize::try_from(offset)?, usize::try_from(length)?)
    }
}

/// A moment at which a job was held.
#[derive(Clone, Copy)]
pub(crate) struct HeldSince {
    slices: u64,
}
