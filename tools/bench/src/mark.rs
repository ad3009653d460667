// SPDX-License-Identifier: GPL-2.0-or-later
//! Marks in the card's log: writes to a register of a slot that nobody uses, by the program itself,
//! whoever has the card. So the card's own clock tells when a visit begins and when urgent work
//! arrives, and a mark costs the same in all variants.

use crate::mapping::Mapping;
use anyhow::{Context as _, Result};
use std::fs::OpenOptions;
use std::path::Path;

/// The slot whose tenants are measured; its engine is `membench`.
pub(crate) const CONTESTED_SLOT: usize = 0;
/// Where marks are written: an application register of slot 1 (docs/card.md, Slot page).
pub(crate) const MARK_OFFSET: u64 = 0x2078;
/// Unlike what else is written there.
const MAGIC: u64 = 0xbe9c;

/// What the text of a visit's mark begins with.
const VISIT: &str = "visit-";

/// What a mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The visit of this number begins.
    Begin(u32),
    /// It ends.
    End(u32),
    /// Latency-critical work is about to be started, the so manieth.
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

    /// `None`: something else was written.
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

/// Returns the text of the mark that the card's control port makes when a visit has the card:
/// before the visit's driver is bound, after the one before has left.
pub(crate) fn visit_text(number: u32) -> String {
    format!("{VISIT}{number}")
}

/// Returns the number of the visit that a mark's text names.
pub(crate) fn visit_of(text: &str) -> Option<u32> {
    text.strip_prefix(VISIT)?.parse().ok()
}

/// The registers of the card, beside whoever drives it.
pub(crate) struct Marker(Mapping);

impl Marker {
    /// The machine must be booted with `iomem=relaxed`: a driver has these registers.
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

    /// Reads what was marked last.
    pub(crate) fn last(&self) -> u64 {
        self.0.read(MARK_OFFSET as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::{visit_of, visit_text, Mark};

    #[test]
    fn a_mark_survives_the_register() {
        for mark in [Mark::Begin(1), Mark::End(u32::MAX), Mark::Arrival(7)] {
            assert_eq!(Mark::from_word(mark.to_word()), Some(mark));
        }
        assert_eq!(Mark::from_word(0), None);
        assert_eq!(visit_of(&visit_text(12)), Some(12));
        assert_eq!(visit_of("begin"), None);
    }
}
