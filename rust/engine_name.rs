// SPDX-License-Identifier: GPL-2.0

//! The names of engines for people and tools: their UUIDs.

use kernel::{fmt, prelude::*};

/// The UUID of an engine, displayed in the usual form.
#[derive(Clone, Copy)]
pub(crate) struct EngineName {
    pub(crate) low: u64,
    pub(crate) high: u64,
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { low, high } = self;
        f.write_fmt(fmt!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            high >> 16 & 0xffff,
            high & 0xffff,
            low >> 48,
            low & 0xffff_ffff_ffff
        ))
    }
}
