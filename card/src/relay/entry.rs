// SPDX-License-Identifier: GPL-2.0-or-later
//! An entry of the context table.

use super::RESULTS;
use crate::regs::APP_FIRST;

/// Bytes of an entry.
pub const ENTRY_SIZE: usize = 128;
/// Where the result offsets are.
const OFFSETS: usize = 0x40;
/// The last application register.
const APP_LAST: u16 = 0xff8;

/// What the card makes of an entry that is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // named as in docs/card.md
pub struct Entry {
    pub dma_offset: u64,
    pub window_base: u64,
    pub window_size: u64,
    pub snapshot_addr: u64,
    pub regs: u64,
    pub results: u64,
    pub offsets: [u16; RESULTS],
    pub cookie: u64,
}

fn word(bytes: &[u8; ENTRY_SIZE], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

impl Entry {
    /// The entry in `bytes`, for an engine whose state takes `state_size` bytes; `None`: REFUSED.
    pub fn parse(bytes: &[u8; ENTRY_SIZE], state_size: u64) -> Option<Self> {
        let at = |at| word(bytes, at);
        let mut offsets = [0; RESULTS];
        for (i, offset) in offsets.iter_mut().enumerate() {
            *offset = u16::from_le_bytes([bytes[OFFSETS + 2 * i], bytes[OFFSETS + 2 * i + 1]]);
        }
        let entry = Self {
            dma_offset: at(0x08),
            window_base: at(0x10),
            window_size: at(0x18),
            snapshot_addr: at(0x20),
            regs: at(0x30),
            results: at(0x38),
            offsets,
            cookie: Self::cookie_of(bytes),
        };
        let reserved = [0x68, 0x70, 0x78].iter().any(|o| at(*o) != 0);
        let valid = at(0x00) == 1
            && !reserved
            && entry.snapshot_addr % 64 == 0
            && entry.snapshot_addr < 1 << 48
            && at(0x28) >= state_size
            && entry.regs % 8 == 0
            && entry.results % 8 == 0
            && entry.offsets.into_iter().all(is_result_offset);
        valid.then_some(entry)
    }

    /// The cookie of any entry, valid or not.
    pub fn cookie_of(bytes: &[u8; ENTRY_SIZE]) -> u64 {
        word(bytes, 0x60)
    }

    /// Where the registers are, of any entry.
    pub fn regs_of(bytes: &[u8; ENTRY_SIZE]) -> u64 {
        word(bytes, 0x30)
    }
}

fn is_result_offset(offset: u16) -> bool {
    offset == 0 || offset % 8 == 0 && (APP_FIRST..=APP_LAST).contains(&offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[(usize, u64)]) -> [u8; ENTRY_SIZE] {
        let mut bytes = [0; ENTRY_SIZE];
        let valid = [(0, 1), (0x20, 0x40), (0x28, 4096), (0x30, 8), (0x60, 7)];
        for &(at, word) in valid.iter().chain(words) {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn a_valid_entry() {
        let entry = Entry::parse(&bytes(&[(0x38, 16), (0x40, 0xff8_0030)]), 4096).unwrap();
        assert_eq!((entry.snapshot_addr, entry.cookie), (0x40, 7));
        assert_eq!(entry.offsets[..3], [0x30, 0xff8, 0]);
    }

    #[test]
    fn malformed_entries() {
        for (at, word) in [
            (0, 0),
            (0, 3),
            (0x20, 0x20),
            (0x20, 1 << 48),
            (0x28, 4095),
            (0x30, 4),
            (0x38, 4),
            (0x40, 0x28),
            (0x48, 0x34),
            (0x58, 0x1000 << 48),
            (0x68, 1),
            (0x78, 1 << 63),
        ] {
            assert_eq!(Entry::parse(&bytes(&[(at, word)]), 4096), None, "{at:#x}");
        }
    }
}
