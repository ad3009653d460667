// SPDX-License-Identifier: GPL-2.0-or-later
//! linkedlist: walks nodes {u64 next; u64 value}.

use super::{write_pair, AppRegs, Bus, Engine, Progress, Refused, StateReader};

/// Nodes from one boundary to the next.
const BOUNDARY: u64 = 1024;

/// A walk. Its snapshot is 32 bytes: DMA reads, next node, checksum, count.
pub struct LinkedList {
    limit: u64,
    result: u64,
    reads: u64,
    next: u64,
    checksum: u64,
    count: u64,
}

impl LinkedList {
    pub(super) fn new(regs: &AppRegs) -> Self {
        Self {
            limit: regs.get(0x38),
            result: regs.get(0x48),
            reads: 0,
            next: regs.get(0x30),
            checksum: regs.get(0x40),
            count: 0,
        }
    }

    /// The saved counters are added to the values in the registers, which only a reset clears.
    pub(super) fn resume(regs: &AppRegs, now: &AppRegs, state: &mut StateReader<'_>) -> Self {
        let (reads, next, checksum, count) = (state.u64(), state.u64(), state.u64(), state.u64());
        Self {
            limit: regs.get(0x38),
            result: regs.get(0x48),
            reads: now.get(0x48).wrapping_add(reads),
            next,
            checksum: now.get(0x40) ^ checksum,
            count: now.get(0x38).wrapping_add(count),
        }
    }

    fn done(&self) -> bool {
        self.next == 0 || (self.limit != 0 && self.count >= self.limit)
    }
}

impl Engine for LinkedList {
    fn step(&mut self, budget: u64, bus: &mut dyn Bus) -> Result<Progress, Refused> {
        let mut units = 0;
        while !self.done() && units < budget && !bus.stops(self.at_boundary()) {
            let mut node = [0; 16];
            bus.read(self.next, &mut node)?;
            let mut node = StateReader(&node);
            self.next = node.u64();
            self.checksum = self.checksum.rotate_left(1) ^ node.u64();
            self.count = self.count.wrapping_add(1);
            self.reads = self.reads.wrapping_add(1);
            units += 1;
        }
        Ok(Progress {
            units,
            done: self.done(),
        })
    }

    fn at_boundary(&self) -> bool {
        self.count % BOUNDARY == 0
    }

    fn finish(&mut self, bus: &mut dyn Bus) -> Result<(), Refused> {
        write_pair(bus, self.result, self.count, self.checksum)
    }

    fn save(&mut self) -> Vec<u8> {
        [self.reads, self.next, self.checksum, self.count]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect()
    }

    fn rewrite(&mut self, regs: &AppRegs) {
        self.result = regs.get(0x48);
    }

    fn readback(&self) -> AppRegs {
        AppRegs::with(&[
            (0x30, self.next),
            (0x38, self.count),
            (0x40, self.checksum),
            (0x48, self.reads),
        ])
    }
}
