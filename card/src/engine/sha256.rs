// SPDX-License-Identifier: GPL-2.0
//! sha256: hashes LEN bytes at DATA. The state is the midstate.

use super::midstate::Midstate;
use super::{AppRegs, Bus, Engine, Progress, Refused, StateReader};

const BLOCK: u64 = super::midstate::BLOCK as u64;
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
        let bytes = state.u64().min(new.len) & !(BLOCK - 1);
        Self {
            midstate,
            bytes,
            ..new
        }
    }

    fn close(&mut self, bus: &mut dyn Bus) -> Result<(), Refused> {
        let tail = (self.len - self.bytes) as usize;
        let mut last = [0; BLOCK as usize];
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
        while self.len - self.bytes >= BLOCK && units < budget && !bus.stops(self.at_boundary()) {
            let room = (READ - self.bytes % READ)
                .min(self.len - self.bytes)
                .min((budget - units).max(BLOCK))
                & !(BLOCK - 1);
            let piece = &mut buf[..room as usize];
            bus.read(self.data.wrapping_add(self.bytes), piece)?;
            self.midstate.blocks(piece);
            self.bytes += room;
            units += room;
        }
        if self.digest.is_none() && self.len - self.bytes < BLOCK && !bus.stops(self.at_boundary())
        {
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
