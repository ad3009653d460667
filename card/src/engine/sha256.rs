// SPDX-License-Identifier: GPL-2.0-or-later
//! sha256: hashes LEN bytes at DATA. The state is the midstate.

use super::{AppRegs, Bus, Engine, Progress, Refused, StateReader};
use sha2::digest::generic_array::{typenum::U64, GenericArray};

/// Bytes of a block, in the type of lengths in memory.
const STEP: u64 = BLOCK as u64;
/// Bytes from one boundary to the next, and the most that one access reads.
const READ: u64 = 4096;

/// A hash. Its snapshot is 40 bytes: eight u32 of midstate, bytes done.
pub struct Sha256 {
    data: u64,
    len: u64,
    out: u64,
    midstate: Midstate,
    bytes: u64,
    digest: Option<[u8; 32]>,
}

impl Sha256 {
    pub(super) fn new(regs: &AppRegs) -> Self {
        Self {
            data: regs.get(0x30),
            len: regs.get(0x38),
            out: regs.get(0x40),
            midstate: Midstate::NEW,
            bytes: 0,
            digest: None,
        }
    }

    pub(super) fn resume(regs: &AppRegs, state: &mut StateReader<'_>) -> Self {
        let midstate = Midstate::load(state);
        let new = Self::new(regs);
        // Whole blocks only, and never beyond the end, whatever the snapshot says.
        let bytes = state.u64().min(new.len) & !(STEP - 1);
        Self {
            midstate,
            bytes,
            ..new
        }
    }

    fn close(&mut self, bus: &mut dyn Bus) -> Result<(), Refused> {
        let tail = (self.len - self.bytes) as usize;
        let mut last = [0; BLOCK];
        let last = &mut last[..tail];
        if tail > 0 {
            bus.read(self.data.wrapping_add(self.bytes), last)?;
        }
        self.digest = Some(self.midstate.close(last, self.len));
        self.bytes = self.len;
        Ok(())
    }
}

impl Engine for Sha256 {
    fn step(&mut self, budget: u64, bus: &mut dyn Bus) -> Result<Progress, Refused> {
        let mut units = 0;
        let mut buf = [0; READ as usize];
        while self.len - self.bytes >= STEP && units < budget && !bus.stops(self.at_boundary()) {
            let room = (READ - self.bytes % READ)
                .min(self.len - self.bytes)
                .min((budget - units).max(STEP))
                & !(STEP - 1);
            let piece = &mut buf[..room as usize];
            bus.read(self.data.wrapping_add(self.bytes), piece)?;
            self.midstate.blocks(piece);
            self.bytes += room;
            units += room;
        }
        if self.digest.is_none() && self.len - self.bytes < STEP && !bus.stops(self.at_boundary()) {
            self.close(bus)?;
        }
        Ok(Progress {
            units,
            done: self.digest.is_some(),
        })
    }

    fn at_boundary(&self) -> bool {
        self.bytes % READ == 0
    }

    fn finish(&mut self, bus: &mut dyn Bus) -> Result<(), Refused> {
        match (&self.digest, self.out) {
            (_, 0) | (None, _) => Ok(()),
            (Some(digest), out) => bus.write(out, digest),
        }
    }

    fn save(&mut self) -> Vec<u8> {
        self.midstate
            .store()
            .chain(self.bytes.to_le_bytes())
            .collect()
    }

    fn readback(&self) -> AppRegs {
        let mut regs = AppRegs::with(&[(0x38, self.bytes)]);
        if let Some(digest) = &self.digest {
            let mut words = StateReader(digest);
            for offset in [0x58, 0x60, 0x68, 0x70] {
                regs.set(offset, words.u64());
            }
        }
        regs
    }
}

/// Bytes of a block.
pub(super) const BLOCK: usize = 64;
const INITIAL: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// The state after some whole blocks.
#[derive(Clone, Copy)]
pub(super) struct Midstate([u32; 8]);

impl Midstate {
    /// The state before the first block.
    pub(super) const NEW: Self = Self(INITIAL);

    pub(super) fn load(state: &mut StateReader<'_>) -> Self {
        Self(std::array::from_fn(|_| state.u32()))
    }

    /// Returns the 32 bytes of the state in a snapshot.
    pub(super) fn store(&self) -> impl Iterator<Item = u8> + '_ {
        self.0.iter().flat_map(|word| word.to_le_bytes())
    }

    /// Hashes whole blocks; the rest of `bytes` is dropped.
    pub(super) fn blocks(&mut self, bytes: &[u8]) {
        for block in bytes.chunks_exact(BLOCK) {
            let block = GenericArray::<u8, U64>::from_slice(block);
            sha2::compress256(&mut self.0, std::slice::from_ref(block));
        }
    }

    /// Hashes the last bytes, of `len` in all. Returns the digest.
    pub(super) fn close(&mut self, bytes: &[u8], len: u64) -> [u8; 32] {
        self.blocks(bytes);
        let tail = bytes.chunks_exact(BLOCK).remainder();
        let mut padded = Vec::with_capacity(2 * BLOCK);
        padded.extend_from_slice(tail);
        padded.push(0x80);
        padded.resize((padded.len() + 8).next_multiple_of(BLOCK) - 8, 0);
        padded.extend(len.wrapping_mul(8).to_be_bytes());
        self.blocks(&padded);
        let mut digest = [0; 32];
        for (out, word) in digest.chunks_exact_mut(4).zip(self.0) {
            out.copy_from_slice(&word.to_be_bytes());
        }
        digest
    }
}
