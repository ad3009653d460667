// SPDX-License-Identifier: GPL-2.0

//! The snapshot buffer of a context: making it, copying a state out of it and into it.

use super::Context;
use crate::{capability, card::BoundDevice, compat::errno, sched::JobState};
use kernel::{page::PAGE_SIZE, prelude::*, uaccess::UserSliceWriter};

/// Largest snapshot that is believed, in pages (`FERMATA_IOC_SNAPSHOT_CREATE`): 16 MiB.
const STATE_PAGES_MAX: u64 = 4096;
/// The same in bytes.
pub(crate) const STATE_MAX: u64 = STATE_PAGES_MAX * PAGE_SIZE as u64;

impl Context {
    /// Makes the snapshot buffer, and returns its size in bytes. `own`: address and length of the
    /// caller's own memory, which it is then.
    pub(crate) fn create_snapshot(
        &self,
        device: &BoundDevice<'_>,
        own: Option<(u64, u64)>,
    ) -> Result<u64> {
        let id = self.id()?;
        if self.memory.lock().snapshot.is_some() {
            return Err(EEXIST);
        }
        let pages = self.state_pages(self.card.params(id)?.mask)?;
        if pages == 0 || pages > STATE_PAGES_MAX {
            return Err(errno::eproto());
        }
        let needed = pages * PAGE_SIZE as u64;
        let length = match own {
            Some((address, length)) => self.check_own_snapshot(address, length, needed)?,
            None => needed,
        };
        let address = own.map(|(address, _)| address);
        // CAST: at most STATE_PAGES_MAX pages.
        let snapshot = self.make_memory(device, length as usize, address)?;
        let mut memory = self.memory.lock();
        if memory.snapshot.is_some() {
            return Err(EEXIST);
        }
        self.card
            .with_image(id, |image| image.set_snapshot(snapshot.iova()))?;
        let length = snapshot.length() as u64;
        memory.snapshot = Some(snapshot);
        Ok(length)
    }

    /// Whether the program's own memory can be the snapshot buffer, of which `needed` bytes are the
    /// least; returns its length. `EINVAL`; `EOPNOTSUPP`: the card does not confine an engine whose
    /// state is forged.
    fn check_own_snapshot(&self, address: u64, length: u64, needed: u64) -> Result<u64> {
        let page = PAGE_SIZE as u64;
        if address % page != 0 || length % page != 0 || !(needed..=STATE_MAX).contains(&length) {
            return Err(EINVAL);
        }
        if !self.card.identity.confines_any_state() {
            return Err(errno::eopnotsupp());
        }
        Ok(length)
    }

    /// The largest snapshot, in pages, of `slots`.
    fn state_pages(&self, slots: u8) -> Result<u64> {
        self.card
            .slots_in(slots)
            .try_fold(0, |most, slot| Ok(self.card.state_pages(slot)?.max(most)))
    }

    /// Whether a snapshot of `length` bytes takes the state of all of `slots`. `EPROTO`.
    pub(super) fn check_snapshot(&self, slots: u8, length: u64) -> Result {
        match self.state_pages(slots)?.checked_mul(PAGE_SIZE as u64) {
            Some(needed) if needed <= length && needed != 0 => Ok(()),
            _ => Err(errno::eproto()),
        }
    }

    /// Copies the bytes of a held job's snapshot from `offset` on to the program.
    pub(crate) fn read_snapshot(&self, offset: u64, out: &mut UserSliceWriter) -> Result {
        let stats = self.card.view(self.id()?)?.stats;
        let mut copy = KVVec::new();
        {
            let memory = self.memory.lock();
            let snapshot = memory.snapshot.as_ref().ok_or_else(errno::enxio)?;
            let offset = usize::try_from(offset)?;
            snapshot.check_range(offset, out.len())?;
            if stats.state != JobState::Held {
                return Err(EBUSY);
            }
            if !stats.saved {
                return Err(errno::enodata());
            }
            snapshot.copy_to(offset, out.len(), &mut copy)?;
        }
        // Only what was read while the job stayed held is a snapshot.
        let after = self.card.view(self.id()?)?.stats;
        if after.state != JobState::Held || after.slices != stats.slices {
            return Err(EBUSY);
        }
        out.write_slice(&copy)
    }

    /// Puts a state into the snapshot buffer from `offset` on, from which the next job can start.
    ///
    /// It is whatever the program says: where the card does not confine an engine whose state is
    /// forged, that takes who may touch all memory anyway.
    pub(crate) fn write_snapshot(&self, offset: u64, state: &[u8]) -> Result {
        if !self.card.identity.confines_any_state() && !capability::may_touch_all_memory() {
            return Err(EPERM);
        }
        let id = self.id()?;
        let mut memory = self.memory.lock();
        let snapshot = memory.snapshot.as_ref().ok_or_else(errno::enxio)?;
        if self.card.view(id)?.stats.state.is_live() {
            return Err(EBUSY);
        }
        snapshot.copy_from(usize::try_from(offset)?, state)?;
        memory.imported = true;
        Ok(())
    }
}
