// SPDX-License-Identifier: GPL-2.0-or-later
//! Marks in the card's log: the program writes to a register of an unused slot, whichever driver is
//! bound to the card. The card's own clock then tells when a visit begins and when urgent work
//! arrives, and a mark costs the same with all drivers. The register is one that may be written
//! whether the slot has a relay or not.

use crate::mapping::Mapping;
use anyhow::{Context as _, Result};
use std::fs::OpenOptions;
use std::path::Path;

/// The slot whose tenants are measured; its engine is `membench`.
pub(crate) const CONTESTED_SLOT: usize = 0;
/// Offset of the register for marks: `FAULT_INFO[1]` (docs/registers.md), which a write clears,
/// whatever the value.
pub(crate) const MARK_OFFSET: u64 = 0x208;
/// Distinguishes marks from other writes to the register.
const MAGIC: u64 = 0xbe9c;

/// Prefix of the text of a visit's mark.
const VISIT: &str = "visit-";

/// What a mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The visit with this number begins.
    Begin(u32),
    /// The visit with this number ends.
    End(u32),
    /// Latency-critical work with this number is about to be started.
    Arrival(u32),
}

impl Mark {
    pub(crate) fn to_word(self) -> u64 {
        let (kind, number) = match self {
            Self::Begin(number) => (1, number),
            Self::End(number) => (2, number),
            Self::Arrival(number) => (3, number),
        };
        MAGIC << 48 | kind << 32 | u64::from(number)
    }

    /// Returns the mark that a register value stands for, or `None` if the value is not a mark.
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        let number = word as u32;
        match ((word >> 48), (word >> 32) & 0xffff) {
            (MAGIC, 1) => Some(Self::Begin(number)),
            (MAGIC, 2) => Some(Self::End(number)),
            (MAGIC, 3) => Some(Self::Arrival(number)),
            _ => None,
        }
    }
}

/// Returns the text of the mark that a visit makes by the card's control port: after the driver of
/// the previous visit was unbound, before the visit's own driver is bound.
pub(crate) fn visit_text(number: u32) -> String {
    format!("{VISIT}{number}")
}

/// Returns the number of the visit that the text of a mark names.
pub(crate) fn visit_of(text: &str) -> Option<u32> {
    text.strip_prefix(VISIT)?.parse().ok()
}

/// The registers of the card, mapped beside the driver.
pub(crate) struct Marker(Mapping);

impl Marker {
    /// Maps the registers. The kernel must be booted with `iomem=relaxed`, because a driver has
    /// claimed them.
    pub(crate) fn open(device: &Path) -> Result<Self> {
        let path = device.join("resource0");
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.with_context(|| path.display().to_string())?;
        let map = Mapping::new(&file, 0x1_0000, 0);
        Ok(Self(map.context(
            "cannot map the card's registers: boot with iomem=relaxed",
        )?))
    }

    pub(crate) fn mark(&self, mark: Mark) {
        self.0.write(MARK_OFFSET as usize, mark.to_word());
    }

    /// Reads the register, to time a read.
    pub(crate) fn read(&self) -> u64 {
        self.0.read(MARK_OFFSET as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::{visit_of, visit_text, Mark};

    #[test]
    fn a_mark_survives_the_log() {
        for mark in [Mark::Begin(1), Mark::End(u32::MAX), Mark::Arrival(7)] {
            assert_eq!(Mark::from_word(mark.to_word()), Some(mark));
        }
        assert_eq!(Mark::from_word(0), None);
        assert_eq!(visit_of(&visit_text(12)), Some(12));
        assert_eq!(visit_of("begin"), None);
    }
}
