// SPDX-License-Identifier: GPL-2.0

//! Calls that set a context up and give it memory.

use super::Call;
use crate::{
    argument::{check_flags, check_zero},
    context::{ContextFile, Source},
    uapi,
    user_memory::{Process, UserMemory},
};
use kernel::{
    prelude::*,
    uaccess::{UserPtr, UserSlice},
};

impl Call<'_> {
    pub(super) fn set_up(&self) -> Result {
        let mut user = self.read::<uapi::Setup>()?;
        let setup = user.value;
        check_flags(setup.flags, 0)?;
        user.check_writable()?;
        self.context
            .set_up((setup.afu_id_lo, setup.afu_id_hi), setup.slot_mask)?;
        user.value = uapi::Setup {
            context: self.context.client.number()?,
            ..setup
        };
        user.write()
    }

    pub(super) fn arena_create(&self) -> Result {
        let mut user = self.read::<uapi::ArenaCreate>()?;
        let arena = user.value;
        let has = |flag| arena.flags & flag != 0;
        check_flags(
            arena.flags,
            uapi::ARENA_FIXED_BASE | uapi::ARENA_USER | uapi::ARENA_SHARED,
        )?;
        let base = has(uapi::ARENA_FIXED_BASE).then_some(arena.device_base);
        let is_unused = |flag, values: &[u64]| has(flag) || values.iter().all(|&value| value == 0);
        // CAST: only compared with 0.
        let shared = [arena.fd as u64, arena.offset];
        if !is_unused(uapi::ARENA_FIXED_BASE, &[arena.device_base])
            || !is_unused(uapi::ARENA_USER, &[arena.user_addr, arena.pid.into()])
            || !is_unused(uapi::ARENA_SHARED, &shared)
            || has(uapi::ARENA_USER) && has(uapi::ARENA_SHARED)
        {
            return Err(EINVAL);
        }
        user.check_writable()?;
        let (from, base) = if has(uapi::ARENA_USER) {
            let memory = self.memory(arena.user_addr, arena.pid)?;
            (Source::Own(memory), base.or(Some(arena.user_addr)))
        } else if has(uapi::ARENA_SHARED) {
            let with = ContextFile::get(arena.fd, self.file)?;
            let offset = arena.offset;
            (Source::Shared { with, offset }, base)
        } else {
            (Source::Allocated, base)
        };
        self.context.create_arena(arena.length, from, base)?;
        // The arena is the only memory of a context that can be mapped.
        user.value = uapi::ArenaCreate {
            mmap_offset: 0,
            ..arena
        };
        user.write()
    }

    pub(super) fn snapshot_create(&self) -> Result {
        let mut user = self.read::<uapi::SnapshotCreate>()?;
        let snapshot = user.value;
        check_flags(snapshot.flags, uapi::SNAPSHOT_USER)?;
        check_zero(snapshot.reserved)?;
        let is_own = snapshot.flags & uapi::SNAPSHOT_USER != 0;
        if !is_own && (snapshot.user_addr != 0 || snapshot.pid != 0) {
            return Err(EINVAL);
        }
        user.check_writable()?;
        let own = match is_own {
            true => Some((
                self.memory(snapshot.user_addr, snapshot.pid)?,
                snapshot.length,
            )),
            false => None,
        };
        user.value.length = self.context.create_snapshot(own)?;
        user.write()
    }

    /// Returns the memory from `address` on of the process `pid`; 0: of the caller. The errors are
    /// those of [`Call::process`].
    fn memory(&self, address: u64, pid: u32) -> Result<UserMemory> {
        Ok(match self.process(pid)? {
            Some(process) => process.memory(address),
            None => UserMemory::of_caller(address),
        })
    }

    /// Returns the address space of the process `pid`; `None`: `pid` is 0. `EPERM`: the
    /// administrator lets no context use memory of another process. The other errors are those of
    /// [`Process::new`].
    pub(super) fn process(&self, pid: u32) -> Result<Option<Process>> {
        match pid {
            0 => Ok(None),
            _ if !self.context.card.limits.foreign_memory => Err(EPERM),
            pid => Process::new(pid).map(Some),
        }
    }

    pub(super) fn snapshot_read(&self) -> Result {
        let read = self.read::<uapi::SnapshotRead>()?.value;
        check_flags(read.flags, 0)?;
        let mut out = user_buffer(read.buffer, read.length)?.writer();
        let before = self.context.check_snapshot_read(read.offset, read.length)?;
        let mut offset = usize::try_from(read.offset)?;
        let mut copy = copy_buffer(out.len())?;
        while !out.is_empty() {
            let piece = out.len().min(copy.len());
            self.context
                .copy_from_snapshot(offset, &mut copy[..piece])?;
            out.write_slice(&copy[..piece])?;
            offset += piece;
        }
        // Only what was read while the job stayed held is a snapshot.
        self.check_present()?;
        self.context.check_still_held(before)
    }

    pub(super) fn snapshot_write(&self) -> Result {
        let write = self.read::<uapi::SnapshotWrite>()?.value;
        check_flags(write.flags, 0)?;
        let mut from = user_buffer(write.buffer, write.length)?.reader();
        self.context
            .check_snapshot_write(write.offset, write.length)?;
        let mut offset = usize::try_from(write.offset)?;
        let mut copy = copy_buffer(from.len())?;
        while !from.is_empty() {
            let piece = from.len().min(copy.len());
            from.read_slice(&mut copy[..piece])?;
            self.context.copy_to_snapshot(offset, &copy[..piece])?;
            offset += piece;
        }
        self.context.note_import()
    }
}

/// Maximum number of bytes of a snapshot that are copied at once: what a call costs its memory
/// cgroup.
const COPY_MAX: usize = 64 << 10;

/// Returns a buffer for pieces of a copy of `length` bytes.
fn copy_buffer(length: usize) -> Result<KVVec<u8>> {
    Ok(KVVec::from_elem(
        0,
        length.min(COPY_MAX),
        GFP_KERNEL_ACCOUNT,
    )?)
}

/// Returns the `length` bytes of the caller's memory from `address` on.
fn user_buffer(address: u64, length: u64) -> Result<UserSlice> {
    let address = UserPtr::from_addr(usize::try_from(address)?);
    Ok(UserSlice::new(address, usize::try_from(length)?))
}
