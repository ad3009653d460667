// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arenas of the program's own memory.

use crate::{uapi, Context, Result};
use std::ptr::NonNull;

impl Context {
    /// Makes `length` bytes of the program's own memory the arena, with the device address `base`.
    /// The driver pins the pages until the context ends, whatever becomes of their mapping.
    ///
    /// # Safety
    ///
    /// While the context lives, jobs write to the memory: no reference may point to it, except to
    /// atomic or volatile data.
    pub unsafe fn use_memory(&self, memory: NonNull<u8>, length: usize, base: u64) -> Result<()> {
        let argument = uapi::ArenaCreate {
            flags: uapi::ARENA_USER | uapi::ARENA_FIXED_BASE,
            length: length as u64,
            device_base: base,
            user_addr: memory.as_ptr() as u64,
            ..Default::default()
        };
        // SAFETY: the driver pins what is mapped there, and refuses what is not; the rest is the
        // caller's promise.
        unsafe { self.call(uapi::IOC_ARENA_CREATE, argument) }.map(drop)
    }
}
