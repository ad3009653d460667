// SPDX-License-Identifier: GPL-2.0-or-later
//! `counter_up` and `counter_down`: four bits that count, one count at a time.

use super::{write_pair, AppRegs, Bus, Engine, Progress, Refused, StateReader};

/// The direction of counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// 0, 1, … 15, 0, …
    Up,
    /// 0, 15, 14, …
    Down,
}

/// A count. Its snapshot is 9 bytes: counts done, the four bits.
pub struct Counter {
    way: Way,
    total: u64,
    result: u64,
    done: u64,
    bits: u8,
}

impl Counter {
    pub(super) fn new(way: Way, regs: &AppRegs) -> Self {
        Self {
            way,
            total: regs.get(0x30),
            result: regs.get(0x40),
            done: 0,
            bits: (regs.get(0x38) & 15) as u8,
        }
    }

    pub(super) fn resume(way: Way, regs: &AppRegs, state: &mut StateReader<'_>) -> Self {
        let done = state.u64();
        let [bits] = state.take();
        Self {
            done,
            bits: bits & 15,
            ..Self::new(way, regs)
        }
    }

    fn at_end(&self) -> bool {
        self.total != 0 && self.done >= self.total
    }

    fn one(&mut self) {
        let step = match self.way {
            Way::Up => 1,
            Way::Down => 15,
        };
        self.bits = (self.bits + step) & 15;
        self.done = self.done.wrapping_add(1);
    }
}

impl Engine for Counter {
    fn step(&mut self, budget: u64, bus: &mut dyn Bus) -> Result<Progress, Refused> {
        let mut units = 0;
        while !self.at_end() && units < budget && !bus.attention() {
            self.one();
            units += 1;
        }
        Ok(Progress {
            units,
            done: self.at_end(),
        })
    }

    fn finish(&mut self, bus: &mut dyn Bus) -> Result<(), Refused> {
        write_pair(bus, self.result, self.done, self.bits.into())
    }

    fn save(&mut self) -> Vec<u8> {
        let mut state = self.done.to_le_bytes().to_vec();
        state.push(self.bits);
        state
    }

    fn readback(&self) -> AppRegs {
        AppRegs::with(&[(0x30, self.bits.into()), (0x38, self.done)])
    }
}
