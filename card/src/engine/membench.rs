// SPDX-License-Identifier: GPL-2.0-or-later
//! membench: COUNT accesses of one line in a buffer.

use super::{splitmix64, write_pair, AppRegs, Bus, Engine, Progress, Refused, StateReader};

const LINE: u64 = 64;

#[derive(Clone, Copy)]
enum Access {
    Read,
    Write,
    ReadModifyWrite,
}

/// A run. Its snapshot is 28 bytes: accesses done, checksum, DMA reads, and a u32 that is 0.
pub struct MemBench {
    buf: u64,
    lines: u64,
    total: u64,
    seed: u64,
    access: Access,
    random: bool,
    result: u64,
    count: u64,
    checksum: u64,
    reads: u64,
}

impl MemBench {
    pub(super) fn new(regs: &AppRegs) -> Self {
        let mode = regs.get(0x58);
        let access = match (mode & 4 != 0, mode & 1 != 0) {
            (true, _) => Access::ReadModifyWrite,
            (false, true) => Access::Write,
            (false, false) => Access::Read,
        };
        Self {
            buf: regs.get(0x30),
            lines: regs.get(0x38) / LINE,
            total: regs.get(0x40),
            seed: regs.get(0x48),
            access,
            random: mode & 2 != 0,
            result: regs.get(0x60),
            count: 0,
            checksum: 0,
            reads: 0,
        }
    }

    pub(super) fn resume(regs: &AppRegs, state: &mut StateReader<'_>) -> Self {
        let (count, checksum, reads) = (state.u64(), state.u64(), state.u64());
        Self {
            count,
            checksum,
            reads,
            ..Self::new(regs)
        }
    }

    fn done(&self) -> bool {
        self.count >= self.total || self.lines == 0
    }

    fn line(&self) -> u64 {
        let n = if self.random {
            splitmix64(self.seed.wrapping_add(self.count))
        } else {
            self.count
        };
        n % self.lines
    }

    fn pattern(&self, line: u64) -> [u64; 8] {
        std::array::from_fn(|k| splitmix64(self.seed ^ line.wrapping_mul(8).wrapping_add(k as u64)))
    }

    fn add(&mut self, words: &[u64; 8]) {
        for word in words {
            self.checksum = self.checksum.rotate_left(5) ^ word;
        }
    }

    fn read_line(&mut self, addr: u64, bus: &mut dyn Bus) -> Result<[u64; 8], Refused> {
        let mut bytes = [0; LINE as usize];
        bus.read(addr, &mut bytes)?;
        self.reads = self.reads.wrapping_add(1);
        let mut bytes = StateReader(&bytes);
        Ok(std::array::from_fn(|_| bytes.u64()))
    }

    fn one(&mut self, bus: &mut dyn Bus) -> Result<(), Refused> {
        let line = self.line();
        let addr = self.buf.wrapping_add(line * LINE);
        match self.access {
            Access::Read => {
                let words = self.read_line(addr, bus)?;
                self.add(&words);
            }
            Access::Write => {
                let words = self.pattern(line);
                write_line(addr, &words, bus)?;
                self.add(&words);
            }
            Access::ReadModifyWrite => {
                let words = self.read_line(addr, bus)?;
                let pattern = self.pattern(line);
                write_line(addr, &std::array::from_fn(|k| words[k] ^ pattern[k]), bus)?;
                self.add(&words);
            }
        }
        Ok(())
    }
}

fn write_line(addr: u64, words: &[u64; 8], bus: &mut dyn Bus) -> Result<(), Refused> {
    let mut bytes = [0; LINE as usize];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bus.write(addr, &bytes)
}

impl Engine for MemBench {
    fn step(&mut self, budget: u64, bus: &mut dyn Bus) -> Result<Progress, Refused> {
        let mut units = 0;
        while !self.done() && units < budget && !bus.attention() {
            self.one(bus)?;
            self.count += 1;
            units += LINE;
        }
        Ok(Progress {
            units,
            done: self.done(),
        })
    }

    fn finish(&mut self, bus: &mut dyn Bus) -> Result<(), Refused> {
        write_pair(bus, self.result, self.count, self.checksum)
    }

    fn save(&mut self) -> Vec<u8> {
        let words = [self.count, self.checksum, self.reads];
        words
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .chain([0; 4])
            .collect()
    }

    fn rewrite(&mut self, regs: &AppRegs) {
        *self = Self {
            count: self.count,
            checksum: self.checksum,
            reads: self.reads,
            ..Self::new(regs)
        };
    }

    fn readback(&self) -> AppRegs {
        AppRegs::with(&[(0x48, self.count), (0x60, self.checksum)])
    }
}
