// SPDX-License-Identifier: GPL-2.0-or-later
//! Jobs for a guest, with their results.

use crate::guest::{Guest, Job, BASE, WINDOW};
use anyhow::{ensure, Result};
use fermata_card::engine::splitmix64;
use sha2::{Digest, Sha256};

/// The guest's slots, in the order of the daemon's option.
pub(crate) const SLOTS: &str = "sha256,membench";
const SHA256: u64 = 0;
pub(crate) const MEMBENCH: u64 = 1;
/// Where in a window data and results are.
const DATA: u64 = 0x1000;

/// A hash over most of a window.
pub(crate) struct Hash {
    pub(crate) job: Job,
    length: usize,
    digest: [u8; 32],
}

impl Hash {
    /// Writes data to the window of this number.
    pub(crate) fn new(guest: &Guest, window: u64, seed: u64) -> Result<Self> {
        let length = (WINDOW - DATA) as usize;
        let words = (0..length as u64 / 8).map(|i| splitmix64(seed.wrapping_add(i)));
        let data: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        guest.put(window * WINDOW + DATA, &data)?;
        guest.put(window * WINDOW, &[0; 32])?;
        let registers = vec![(0x30, BASE + DATA), (0x38, length as u64), (0x40, BASE)];
        Ok(Self {
            job: Job {
                slot: SHA256,
                window,
                snapshot: window,
                tag: seed,
                registers,
            },
            length,
            digest: Sha256::digest(&data).into(),
        })
    }

    /// Bytes that it hashes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Looks at the result in memory.
    pub(crate) fn check_memory(&self, guest: &Guest) -> Result<()> {
        let digest = guest.get(self.job.window * WINDOW, 32)?;
        ensure!(digest == self.digest, "digest in memory");
        Ok(())
    }

    /// Looks at the results in memory and registers.
    pub(crate) fn check(&self, guest: &mut Guest) -> Result<()> {
        self.check_memory(guest)?;
        let mut words = Vec::new();
        for offset in [0x58, 0x60, 0x68, 0x70] {
            words.extend(guest.slot(SHA256, offset)?.to_le_bytes());
        }
        ensure!(words == self.digest, "digest in registers");
        let done = guest.slot(SHA256, 0x38)?;
        ensure!(done == self.length as u64, "{done} bytes hashed");
        Ok(())
    }
}

/// Reads, changes and writes the lines of a buffer. Returns the job, count and checksum.
pub(crate) fn membench(guest: &Guest, window: u64, seed: u64) -> Result<(Job, u64, u64)> {
    let (lines, count) = (64u64, 20_000u64);
    let mut model: Vec<u64> = (0..lines * 8).map(splitmix64).collect();
    let bytes: Vec<u8> = model.iter().flat_map(|word| word.to_le_bytes()).collect();
    guest.put(window * WINDOW + DATA, &bytes)?;
    let mut checksum = 0u64;
    for n in 0..count {
        let line = splitmix64(seed + n) % lines;
        for at in line * 8..line * 8 + 8 {
            let word = &mut model[at as usize];
            checksum = checksum.rotate_left(5) ^ *word;
            *word ^= splitmix64(seed ^ at);
        }
    }
    let registers = vec![
        (0x30, BASE + DATA),
        (0x38, lines * 64),
        (0x40, count),
        (0x48, seed),
        (0x58, 6),
        (0x60, BASE),
    ];
    let job = Job {
        slot: MEMBENCH,
        window,
        snapshot: window,
        tag: seed,
        registers,
    };
    Ok((job, count, checksum))
}

/// Reads a buffer without an end.
pub(crate) fn endless(tag: u64) -> Job {
    reads(0, tag, 1 << 40)
}

/// Reads so many lines of a buffer.
pub(crate) fn reads(window: u64, tag: u64, lines: u64) -> Job {
    Job {
        slot: MEMBENCH,
        window,
        snapshot: 0,
        tag,
        registers: vec![(0x30, BASE), (0x38, 4096), (0x40, lines)],
    }
}

/// A device address beyond all windows.
pub(crate) const ASTRAY: u64 = BASE + 2 * WINDOW;

/// A hash whose data are beyond its window.
pub(crate) fn astray(window: u64, tag: u64) -> Job {
    Job {
        slot: SHA256,
        window,
        snapshot: window,
        tag,
        registers: vec![(0x30, ASTRAY), (0x38, 4096), (0x40, BASE)],
    }
}
