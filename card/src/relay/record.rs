// SPDX-License-Identifier: GPL-2.0-or-later
//! The record of a run.

use serde::{Deserialize, Serialize};

/// Why a run ended; the values are those of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // named as in docs/card.md
pub enum Reason {
    Paused = 1,
    Finish = 2,
    Empty = 3,
    Fault = 4,
    SaveError = 5,
    RestoreError = 6,
    NotRun = 7,
    Dropped = 8,
    Refused = 9,
}

/// What the card reports of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // named as in docs/card.md
pub struct Record {
    pub cookie: u64,
    pub began: u64,
    pub worked: u64,
    pub stopped: u64,
    pub left: u64,
    pub fault_addr: u64,
    pub next: u32,
    pub fault_info: u32,
    pub run: u32,
    pub reason: Reason,
    pub results_lost: bool,
    pub void: bool,
    pub back: bool,
}

impl Record {
    /// Bytes of a record.
    pub const SIZE: usize = 64;
    /// Where word 7 stands, which is written last.
    pub const LAST: usize = 56;

    /// The record as it stands in memory.
    pub fn bytes(&self) -> [u8; Self::SIZE] {
        let last = u64::from(self.run)
            | (self.reason as u64) << 32
            | u64::from(self.results_lost) << 40
            | u64::from(self.void) << 41
            | u64::from(self.back) << 42;
        let words = [
            self.cookie,
            self.began,
            self.worked,
            self.stopped,
            self.left,
            self.fault_addr,
            u64::from(self.next) | u64::from(self.fault_info) << 32,
            last,
        ];
        let mut bytes = [0; Self::SIZE];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        let record = Record {
            cookie: 1,
            began: 2,
            worked: 3,
            stopped: 4,
            left: 5,
            fault_addr: 6,
            next: 7,
            fault_info: 8,
            run: 9,
            reason: Reason::Refused,
            results_lost: true,
            void: true,
            back: true,
        };
        let words: Vec<u64> = record
            .bytes()
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect();
        assert_eq!(words, [1, 2, 3, 4, 5, 6, 8 << 32 | 7, 0x709 << 32 | 9]);
    }
}
