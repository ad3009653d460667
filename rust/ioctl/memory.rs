// SPDX-License-Identifier: GPL-2.0

//! Calls that set a context up and give it memory.

use super::Call;
use crate::{
    argument::{check_flags, User},
    card::BoundDevice,
    context::STATE_MAX,
    uapi,
};
use kernel::{
    prelude::*,
    uaccess::{UserPtr, UserSlice},
};

impl Call<'_> {
    pub(super) fn set_up(&self) -> Result {
        let mut user = User::<uapi::Setup>::read(self.argument)?;
        let setup = user.value;
        check_flags(setup.flags, 0)?;
        user.check_writable()?;
        self.context
            .set_up((setup.afu_id_lo, setup.afu_id_hi), setup.slot_mask)?;
        user.value = uapi::Setup {
            context: self.context.number()?,
            ..setup
        };
        user.write()
    }

    pub(super) fn arena_create(&self, device: &BoundDevice<'_>) -> Result {
        let mut user = User::<uapi::ArenaCreate>::read(self.argument)?;
        let arena = user.value;
        check_flags(arena.flags, uapi::ARENA_FIXED_BASE | uapi::ARENA_USER)?;
        let base = (arena.flags & uapi::ARENA_FIXED_BASE != 0).then_some(arena.device_base);
        let own = (arena.flags & uapi::ARENA_USER != 0).then_some(arena.user_addr);
        if base.is_none() && arena.device_base != 0 || own.is_none() && arena.user_addr != 0 {
            return Err(EINVAL);
        }
        user.check_writable()?;
        self.context
            .create_arena(device, arena.length, own, base.or(own))?;
        // The arena is all that a context has to map.
        user.value = uapi::ArenaCreate {
            mmap_offset: 0,
            ..arena
        };
        user.write()
    }

    pub(super) fn snapshot_create(&self, device: &BoundDevice<'_>) -> Result {
        let mut user = User::<uapi::SnapshotCreate>::read(self.argument)?;
        let snapshot = user.value;
        check_flags(snapshot.flags, uapi::SNAPSHOT_USER)?;
        let own = (snapshot.flags & uapi::SNAPSHOT_USER != 0)
            .then_some((snapshot.user_addr, snapshot.length));
        if own.is_none() && snapshot.user_addr != 0 {
            return Err(EINVAL);
        }
        user.check_writable()?;
        user.value.length = self.context.create_snapshot(device, own)?;
        user.write()
    }

    pub(super) fn snapshot_read(&self) -> Result {
        let read = User::<uapi::SnapshotRead>::read(self.argument)?.value;
        check_flags(read.flags, 0)?;
        let buffer = UserPtr::from_addr(usize::try_from(read.buffer)?);
        let mut out = UserSlice::new(buffer, usize::try_from(read.length)?).writer();
        self.context.read_snapshot(read.offset, &mut out)
    }

    pub(super) fn snapshot_write(&self) -> Result {
        let write = User::<uapi::SnapshotWrite>::read(self.argument)?.value;
        check_flags(write.flags, 0)?;
        if write.length > STATE_MAX {
            return Err(EINVAL);
        }
        let buffer = UserPtr::from_addr(usize::try_from(write.buffer)?);
        let mut state = KVVec::new();
        UserSlice::new(buffer, usize::try_from(write.length)?).read_all(&mut state, GFP_KERNEL)?;
        self.context.write_snapshot(write.offset, &state)
    }
}
