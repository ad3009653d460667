// SPDX-License-Identifier: GPL-2.0-or-later
//! riscv: a core for RV32IMC with its own memory, which runs a program from the arena.
//!
//! It can be stopped at any cycle, even in the middle of an instruction that takes several cycles:
//! its entire state goes into the snapshot. An instruction takes effect in its first cycle, and the
//! number of remaining cycles is in the snapshot.
//!
//! An instruction takes one cycle, except: a jump 2, a taken branch 3, a load or store across a
//! word 2, MULH* 4, a division 3 and one for each bit of the divisor, a call 16.
//!
//! CSRs: mcycle and minstret (both halves, written too; cycle, time and instret read the same),
//! mscratch, misa; mvendorid, marchid, mimpid and mhartid are 0. FENCE, FENCE.I and WFI do nothing.

mod core;
pub mod instruction;

pub use self::core::{load as load_program, Core, Cycle, Memory, Trap, BASE, MAX_FILE, SIZE};

use super::{AppRegs, Bus, Engine, Progress, Refused, StateReader};

/// Offset of the memory in a snapshot; the rest of the core's state is before it.
const MEMORY_AT: usize = 4096;
/// Size of a snapshot in pages.
pub const STATE_PAGES: u64 = ((MEMORY_AT + SIZE) / 4096) as u64;

/// How a program ended, as register 0x58 shows it.
#[allow(missing_docs)] // the names of docs/emulated-card.md
pub mod end {
    pub const RUNS: u32 = 0;
    pub const EXIT: u32 = 1;
    pub const BAD_PROGRAM: u32 = 2;
    pub const ILLEGAL: u32 = 3;
    pub const FETCH: u32 = 4;
    pub const LOAD: u32 = 5;
    pub const STORE: u32 = 6;
    pub const BREAKPOINT: u32 = 7;
    pub const BAD_CALL: u32 = 8;
}

/// The calls, by the number in a7.
mod call {
    pub(super) const WRITE: u32 = 64;
    pub(super) const EXIT: u32 = 93;
}

/// The most that one write takes: what the core sends in one burst.
const LINE: u64 = 64;
/// The most that one access of the loader reads.
const READ: usize = 4096;
/// Bytes that are loaded per cycle.
const LOADED_PER_CYCLE: u64 = 8;

const A0: usize = 10;
const A1: usize = 11;
const A2: usize = 12;
const A7: usize = 17;

/// A running program.
pub struct Riscv {
    params: Params,
    core: Core,
    loaded: bool,
    /// Bytes of output.
    written: u64,
    /// How the program ended, and with which code.
    end: (u32, u32),
}

/// The values of the registers.
struct Params {
    elf: u64,
    elf_len: u64,
    out: u64,
    out_len: u64,
    arg: u32,
    result: u64,
}

impl Params {
    fn new(regs: &AppRegs) -> Self {
        Self {
            elf: regs.get(0x30),
            elf_len: regs.get(0x38),
            out: regs.get(0x40),
            out_len: regs.get(0x48),
            arg: regs.get(0x58) as u32,
            result: regs.get(0x60),
        }
    }
}

impl Riscv {
    pub(super) fn new(regs: &AppRegs) -> Self {
        let params = Params::new(regs);
        Self {
            core: Core::new(Memory::new(), 0, params.arg),
            params,
            loaded: false,
            written: 0,
            end: (end::RUNS, 0),
        }
    }

    pub(super) fn resume(regs: &AppRegs, mut state: StateReader<'_>) -> Self {
        let memory = Memory::from_bytes(state.0.get(MEMORY_AT..).unwrap_or_default());
        let state = &mut state;
        let (pc, stall) = (state.u32(), state.u32());
        let mut core = Core {
            pc,
            stall,
            cycles: state.u64(),
            retired: state.u64(),
            mcycle_ahead: state.u64(),
            minstret_ahead: state.u64(),
            mscratch: 0,
            x: [0; 32],
            memory,
        };
        let written = state.u64();
        core.mscratch = state.u32();
        let loaded = state.u32() != 0;
        let end = (state.u32(), state.u32());
        core.x[1..].fill_with(|| state.u32());
        Self {
            params: Params::new(regs),
            core,
            loaded,
            written,
            end,
        }
    }

    fn done(&self) -> bool {
        self.end.0 != end::RUNS
    }

    /// Loads the program. Returns how many cycles that took; the program's own count does not
    /// include them.
    fn load(&mut self, bus: &mut dyn Bus) -> Result<u64, Refused> {
        self.loaded = true;
        let len = self.params.elf_len;
        if len > MAX_FILE {
            self.end = (end::BAD_PROGRAM, 0);
            return Ok(1);
        }
        let mut file = vec![0; len as usize];
        let mut at = self.params.elf;
        for piece in file.chunks_mut(READ) {
            bus.read(at, piece)?;
            at = at.wrapping_add(piece.len() as u64);
        }
        match load_program(&file) {
            Some((memory, entry)) => self.core = Core::new(memory, entry, self.params.arg),
            None => self.end = (end::BAD_PROGRAM, 0),
        }
        Ok(len / LOADED_PER_CYCLE + 1)
    }

    /// Runs the first cycle of the next instruction.
    fn one(&mut self, bus: &mut dyn Bus) -> Result<(), Refused> {
        match self.core.cycle() {
            Ok(Cycle::Ran) => Ok(()),
            Ok(Cycle::Call) => self.call(bus),
            Err(trap) => {
                self.end = trap.end();
                Ok(())
            }
        }
    }

    fn call(&mut self, bus: &mut dyn Bus) -> Result<(), Refused> {
        let x = *self.core.registers();
        match x[A7] {
            call::WRITE => return self.write(x[A1], x[A2], bus),
            call::EXIT => {
                self.core.answer(x[A0]);
                self.end = (end::EXIT, x[A0]);
            }
            number => self.end = (end::BAD_CALL, number),
        }
        Ok(())
    }

    /// Writes some of `len` bytes at `addr` to the output, and answers the call with their number.
    fn write(&mut self, addr: u32, len: u32, bus: &mut dyn Bus) -> Result<(), Refused> {
        let room = match self.params.out {
            0 => 0,
            _ => self.params.out_len.saturating_sub(self.written),
        };
        let n = u64::from(len).min(room).min(LINE);
        let Some(data) = self.core.memory().slice(addr, n as usize) else {
            self.end = Trap::Load(addr).end();
            return Ok(());
        };
        if n > 0 {
            bus.write(self.params.out.wrapping_add(self.written), data)?;
        }
        self.written += n;
        self.core.answer(n as u32);
        Ok(())
    }

    /// Returns a checksum of the core's memory.
    fn checksum(&self) -> u64 {
        let words = self.core.memory().bytes().chunks_exact(8);
        words.fold(0, |sum: u64, word| {
            sum.rotate_left(5) ^ StateReader(word).u64()
        })
    }
}

impl Trap {
    fn end(self) -> (u32, u32) {
        match self {
            Self::Illegal(word) => (end::ILLEGAL, word),
            Self::Fetch(addr) => (end::FETCH, addr),
            Self::Load(addr) => (end::LOAD, addr),
            Self::Store(addr) => (end::STORE, addr),
            Self::Breakpoint(addr) => (end::BREAKPOINT, addr),
        }
    }
}

impl Engine for Riscv {
    fn step(&mut self, budget: u64, bus: &mut dyn Bus) -> Result<Progress, Refused> {
        let mut units = 0;
        if !self.loaded {
            units = self.load(bus)?;
        }
        while !self.done() && units < budget && !bus.attention() {
            units += match self.core.wait(budget - units) {
                0 => {
                    self.one(bus)?;
                    1
                }
                n => n,
            };
        }
        Ok(Progress {
            units,
            done: self.done(),
        })
    }

    fn finish(&mut self, bus: &mut dyn Bus) -> Result<(), Refused> {
        if self.params.result == 0 {
            return Ok(());
        }
        let words = [
            self.end.0.into(),
            self.end.1.into(),
            self.core.cycles,
            self.core.retired,
            self.written,
            self.checksum(),
        ];
        let bytes: Vec<u8> = words.iter().flat_map(|w: &u64| w.to_le_bytes()).collect();
        bus.write(self.params.result, &bytes)
    }

    fn save(&mut self) -> Vec<u8> {
        let core = &self.core;
        let longs = [
            core.cycles,
            core.retired,
            core.mcycle_ahead,
            core.minstret_ahead,
            self.written,
        ];
        let words = [core.mscratch, self.loaded.into(), self.end.0, self.end.1];
        let mut state = Vec::with_capacity(MEMORY_AT + SIZE);
        state.extend([core.pc, core.stall].iter().flat_map(|w| w.to_le_bytes()));
        state.extend(longs.iter().flat_map(|w| w.to_le_bytes()));
        let rest = words.iter().chain(&core.x[1..]);
        state.extend(rest.flat_map(|w| w.to_le_bytes()));
        state.resize(MEMORY_AT, 0);
        state.extend_from_slice(core.memory.bytes());
        state
    }

    fn readback(&self) -> AppRegs {
        AppRegs::with(&[
            (0x30, self.core.pc.into()),
            (0x38, self.core.retired),
            (0x40, self.core.cycles),
            (0x48, self.written),
            (0x58, self.end.0.into()),
            (0x60, self.end.1.into()),
        ])
    }
}
