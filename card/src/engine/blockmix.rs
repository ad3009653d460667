// SPDX-License-Identifier: GPL-2.0-or-later
//! blockmix: mixes a buffer in place, block by block, each with the digest of the block before.
//!
//! It stops only between two blocks: within a block, the part that is done would belong to the
//! state, and the engine does not keep it.

use super::{splitmix64, write_pair, AppRegs, Bus, Engine, Progress, Refused, StateReader};

const LINE: u64 = 64;
const MAX_BLOCK: u64 = 65536;

/// A run. Its snapshot is 16 bytes: blocks done, digest of the last one.
pub struct BlockMix {
    buf: u64,
    lines: u64,
    /// Lines of a block; the last may have fewer.
    block: u64,
    result: u64,
    blocks: u64,
    /// Digest of the last whole block.
    digest: u64,
    /// Blocks done when it was stopped last, or at the end.
    stopped_at: u64,
    part: Part,
}

/// What is done of the present block.
#[derive(Clone, Copy, Default)]
struct Part {
    lines: u64,
    digest: u64,
}

impl BlockMix {
    pub(super) fn new(regs: &AppRegs) -> Self {
        let seed = regs.get(0x48);
        Self {
            buf: regs.get(0x30),
            lines: regs.get(0x38) / LINE,
            block: regs.get(0x40).clamp(LINE, MAX_BLOCK) / LINE,
            result: regs.get(0x60),
            blocks: 0,
            digest: seed,
            stopped_at: 0,
            part: Part::default(),
        }
    }

    pub(super) fn resume(regs: &AppRegs, state: &mut StateReader<'_>) -> Self {
        let new = Self::new(regs);
        // Never beyond the end, whatever the snapshot says.
        let blocks = state.u64().min(new.lines.div_ceil(new.block));
        Self {
            blocks,
            digest: state.u64(),
            stopped_at: blocks,
            ..new
        }
    }

    /// Returns the number of lines before the present block.
    fn mixed(&self) -> u64 {
        self.blocks.saturating_mul(self.block).min(self.lines)
    }

    fn done(&self) -> bool {
        self.mixed() == self.lines
    }

    fn one(&mut self, bus: &mut dyn Bus) -> Result<(), Refused> {
        let at = (self.mixed() + self.part.lines).wrapping_mul(LINE);
        let addr = self.buf.wrapping_add(at);
        if self.part.lines == 0 {
            self.part.digest = self.digest;
        }
        let mut bytes = [0; LINE as usize];
        bus.read(addr, &mut bytes)?;
        for (k, word) in (self.part.lines * 8..).zip(bytes.chunks_exact_mut(8)) {
            let mixed = StateReader(word).u64() ^ splitmix64(self.digest.wrapping_add(k));
            self.part.digest = self.part.digest.rotate_left(5) ^ mixed;
            word.copy_from_slice(&mixed.to_le_bytes());
        }
        bus.write(addr, &bytes)?;
        self.part.lines += 1;
        if self.part.lines == self.block.min(self.lines - self.mixed()) {
            self.digest = self.part.digest;
            self.blocks += 1;
            self.part = Part::default();
        }
        Ok(())
    }
}

impl Engine for BlockMix {
    fn step(&mut self, budget: u64, bus: &mut dyn Bus) -> Result<Progress, Refused> {
        let mut units = 0;
        while !self.done() && units < budget && !bus.stops(self.at_boundary()) {
            self.one(bus)?;
            units += LINE;
        }
        Ok(Progress {
            units,
            done: self.done(),
        })
    }

    fn at_boundary(&self) -> bool {
        self.part.lines == 0
    }

    fn finish(&mut self, bus: &mut dyn Bus) -> Result<(), Refused> {
        self.stopped_at = self.blocks;
        write_pair(bus, self.result, self.blocks, self.digest)
    }

    fn save(&mut self) -> Vec<u8> {
        self.stopped_at = self.blocks;
        [self.blocks, self.digest]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect()
    }

    fn readback(&self) -> AppRegs {
        AppRegs::with(&[
            (0x38, self.blocks),
            (0x40, self.digest),
            (0x58, self.stopped_at),
        ])
    }
}
