// SPDX-License-Identifier: GPL-2.0

//! Engines: their UUIDs, and the names of the engines of docs/emulated-card.md.

use kernel::{fmt, prelude::*};

/// The UUID of an engine, displayed in the usual form.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct EngineId {
    pub(crate) low: u64,
    pub(crate) high: u64,
}

impl EngineId {
    /// The engines of docs/emulated-card.md, and their names there, as in libfermata.
    const KNOWN: [(&'static str, Self); 8] = [
        (
            "linkedlist",
            Self::new(0x4c494e4b45444c49, 0x5354000000000001),
        ),
        ("membench", Self::new(0x4d454d42454e4348, 2)),
        ("sha256", Self::new(0x5348413235360000, 3)),
        ("blockmix", Self::new(0x424c4f434b4d4958, 4)),
        ("riscv", Self::new(0x52495343562d5256, 0x3332000000000005)),
        ("queue", Self::new(0x5155455545000000, 6)),
        ("counter_up", Self::new(0x434f554e54455255, 7)),
        ("counter_down", Self::new(0x434f554e54455244, 8)),
    ];

    const fn new(high: u64, low: u64) -> Self {
        Self { low, high }
    }

    /// Returns the engine's name, if it is one of [`EngineId::KNOWN`].
    pub(crate) fn name(self) -> Option<&'static str> {
        let known = Self::KNOWN.iter().find(|(_, engine)| *engine == self);
        known.map(|(name, _)| *name)
    }
}

impl fmt::Display for EngineId {
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
