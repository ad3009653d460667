// SPDX-License-Identifier: GPL-2.0-or-later
//! The jobs of the tenants: `membench` reads a page again and again, and computes a sum
//! (docs/card.md). The card is set to 64 bytes a microsecond, so an access takes a microsecond.

use fermata::work::REG_TAG;
use fermata_card::dma::LINE;
use std::time::Duration;

/// Time limit for all waits; only a hang reaches it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Tag of the latency-critical tenant.
pub(crate) const URGENT_TAG: u64 = 0x4c43;
/// First tag of the other tenants.
pub(crate) const TAGS: u64 = 0x1_0000;
/// Bytes that a tenant shares with the engine: a page for the result, and a page of data.
pub(crate) const MEMORY: usize = 2 * DATA;

/// Microseconds that a latency-critical job takes.
pub(crate) const SHORT: u64 = 100;

/// Offset of the data, behind the page for the result.
const DATA: usize = 4096;
const WORDS: usize = DATA / 8;

/// A job, the same each time it is started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    /// Identifies the job's tenant.
    pub(crate) tag: u64,
    /// Number of accesses, each of which takes a microsecond.
    pub(crate) accesses: u64,
}

impl Job {
    /// Returns a job that never ends.
    pub(crate) fn endless(tag: u64) -> Self {
        let accesses = u64::MAX;
        Self { tag, accesses }
    }

    /// Returns a word of the data.
    fn value(self, word: usize) -> u64 {
        (self.tag << 32 | word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Writes the data by calling `store` with an offset and a word.
    pub(crate) fn fill(self, store: impl Fn(usize, u64)) {
        for word in 0..WORDS {
            store(DATA + word * 8, self.value(word));
        }
    }

    /// Returns the registers for memory at a device address.
    pub(crate) fn registers(self, base: u64) -> [(u32, u64); 7] {
        [
            (0x30, base + DATA as u64),
            (0x38, DATA as u64),
            (0x40, self.accesses),
            (0x48, 0),
            (0x58, 0),
            (0x60, base),
            (REG_TAG, self.tag),
        ]
    }

    /// Returns the first two words of the result: number of accesses, and sum.
    pub(crate) fn result(self) -> [u64; 2] {
        let per_line = LINE as usize / 8;
        let mut sum = 0_u64;
        for access in 0..self.accesses {
            let line = access as usize % (WORDS / per_line);
            for word in line * per_line..(line + 1) * per_line {
                sum = sum.rotate_left(5) ^ self.value(word);
            }
        }
        [self.accesses, sum]
    }
}
