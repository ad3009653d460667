// SPDX-License-Identifier: GPL-2.0-or-later
//! The core: registers, counters, memory; one instruction after another, cycle by cycle. And how a
//! program is loaded into the memory: a static executable for RV32, little-endian.

use super::instruction;
use super::instruction::{CsrOp, Inst, Load, Op, Reg, Source, Store};
use elf::abi::{EM_RISCV, ET_EXEC, PT_LOAD};
use elf::endian::LittleEndian;
use elf::file::Class;
use elf::segment::ProgramHeader;
use elf::ElfBytes;

/// Why the core cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// Not an instruction of this core; its bits.
    Illegal(u32),
    /// An instruction outside memory, or half-way into one; its address.
    Fetch(u32),
    /// A load outside memory; its address.
    Load(u32),
    /// A store outside memory; its address.
    Store(u32),
    /// EBREAK; its address.
    Breakpoint(u32),
}

/// The outcome of a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cycle {
    /// The core continues.
    Ran,
    /// The instruction is an ECALL, which the core's user handles. [`Core::answer`] completes it.
    Call,
}

/// The entire state of the core, so that it can be stopped at any cycle.
#[derive(Clone, PartialEq, Eq)]
pub struct Core {
    pub(super) x: [u32; 32],
    pub(super) pc: u32,
    /// Cycles that the present instruction still takes. The instruction takes effect in its first
    /// cycle.
    pub(super) stall: u32,
    /// Cycles since the program began.
    pub(super) cycles: u64,
    /// Instructions retired since the program began.
    pub(super) retired: u64,
    /// By how much `mcycle` is ahead of the cycles, because a program may write it.
    pub(super) mcycle_ahead: u64,
    /// By how much `minstret` is ahead of the instructions retired.
    pub(super) minstret_ahead: u64,
    pub(super) mscratch: u32,
    pub(super) memory: Memory,
}

const MISA: u32 = 1 << 30 | 1 << 12 | 1 << 8 | 1 << 2;
/// The cycles that a call takes.
const CALL_CYCLES: u32 = 16;

impl Core {
    /// Returns a core at the beginning of a program: the stack is at the end of memory, and the
    /// first argument is `arg`.
    pub fn new(memory: Memory, entry: u32, arg: u32) -> Self {
        let mut core = Self {
            x: [0; 32],
            pc: entry,
            stall: 0,
            cycles: 0,
            retired: 0,
            mcycle_ahead: 0,
            minstret_ahead: 0,
            mscratch: 0,
            memory,
        };
        core.x[2] = BASE + SIZE as u32;
        core.x[10] = arg;
        core
    }

    /// Returns a register.
    pub fn get(&self, reg: Reg) -> u32 {
        self.x[reg.index()]
    }

    /// Returns the registers x0 to x31.
    pub fn registers(&self) -> &[u32; 32] {
        &self.x
    }

    /// Sets x1 to x31.
    pub fn set_registers(&mut self, x: &[u32; 32]) {
        self.x[1..].copy_from_slice(&x[1..]);
    }

    /// Continues at another address.
    pub fn jump(&mut self, pc: u32) {
        self.pc = pc;
    }

    /// Returns the address of the next instruction.
    pub fn pc(&self) -> u32 {
        self.pc
    }

    /// Returns the number of instructions retired since the program began.
    pub fn retired(&self) -> u64 {
        self.retired
    }

    /// Returns the memory of the core.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    fn set(&mut self, reg: Reg, value: u32) {
        if reg != Reg::ZERO {
            self.x[reg.index()] = value;
        }
    }

    /// Spends up to `most` of the remaining cycles of an instruction that takes several. Returns
    /// how many.
    pub fn wait(&mut self, most: u64) -> u64 {
        let n = u64::from(self.stall).min(most);
        self.stall -= n as u32;
        self.cycles = self.cycles.wrapping_add(n);
        n
    }

    /// Runs the first cycle of the next instruction; nothing changes if it traps. Its further
    /// cycles are spent by [`Core::wait`].
    pub fn cycle(&mut self) -> Result<Cycle, Trap> {
        let (inst, len) = self.fetch()?;
        if inst == Inst::Ecall {
            return Ok(Cycle::Call);
        }
        let cost = self.execute(inst, len)?;
        self.retire(cost);
        Ok(Cycle::Ran)
    }

    /// Completes an ECALL with its result.
    pub fn answer(&mut self, a0: u32) {
        self.x[10] = a0;
        self.pc = self.pc.wrapping_add(4);
        self.retire(CALL_CYCLES);
    }

    fn retire(&mut self, cost: u32) {
        self.cycles = self.cycles.wrapping_add(1);
        self.retired = self.retired.wrapping_add(1);
        self.stall = cost - 1;
    }

    /// Returns the next instruction and its length.
    pub fn fetch(&self) -> Result<(Inst, u32), Trap> {
        let fault = Trap::Fetch(self.pc);
        if self.pc % 2 != 0 {
            return Err(fault);
        }
        let low = u16::from_le_bytes(self.memory.load(self.pc).ok_or(fault)?);
        if low & 3 != 3 {
            let inst = instruction::decode_compressed(low).ok_or(Trap::Illegal(low.into()))?;
            return Ok((inst, 2));
        }
        let word = u32::from_le_bytes(self.memory.load(self.pc).ok_or(fault)?);
        Ok((instruction::decode(word).ok_or(Trap::Illegal(word))?, 4))
    }

    fn value(&self, src: Source) -> u32 {
        match src {
            Source::Reg(reg) => self.get(reg),
            Source::Imm(imm) => imm,
        }
    }

    /// Executes one instruction. Returns how many cycles it takes, at least 1.
    fn execute(&mut self, inst: Inst, len: u32) -> Result<u32, Trap> {
        let next = self.pc.wrapping_add(len);
        let (mut to, mut cost) = (next, 1);
        match inst {
            Inst::Lui { rd, imm } => self.set(rd, imm),
            Inst::Auipc { rd, imm } => self.set(rd, self.pc.wrapping_add(imm)),
            Inst::Jal { rd, offset } => {
                (to, cost) = (self.pc.wrapping_add(offset), 2);
                self.set(rd, next);
            }
            Inst::Jalr { rd, rs1, offset } => {
                (to, cost) = (self.get(rs1).wrapping_add(offset) & !1, 2);
                self.set(rd, next);
            }
            Inst::Branch {
                condition,
                rs1,
                rs2,
                offset,
            } => {
                if condition.holds(self.get(rs1), self.get(rs2)) {
                    (to, cost) = (self.pc.wrapping_add(offset), 3);
                }
            }
            Inst::Load {
                load,
                rd,
                rs1,
                offset,
            } => {
                let addr = self.get(rs1).wrapping_add(offset);
                let value = self.load(load, addr).ok_or(Trap::Load(addr))?;
                self.set(rd, value);
                cost = access_cycles(addr, load.bytes());
            }
            Inst::Store {
                store,
                rs1,
                rs2,
                offset,
            } => {
                let addr = self.get(rs1).wrapping_add(offset);
                self.store(store, addr, self.get(rs2))
                    .ok_or(Trap::Store(addr))?;
                cost = access_cycles(addr, store.bytes());
            }
            Inst::Op { op, rd, rs1, src } => {
                let (a, b) = (self.get(rs1), self.value(src));
                self.set(rd, op.apply(a, b));
                cost = op.cycles(b);
            }
            Inst::Csr { op, rd, src, csr } => {
                self.csr(op, rd, src, csr)
                    .ok_or_else(|| Trap::Illegal(self.word()))?;
            }
            // A call is handled by the core's user.
            Inst::Nop | Inst::Ecall => {}
            Inst::Ebreak => return Err(Trap::Breakpoint(self.pc)),
        }
        self.pc = to;
        Ok(cost)
    }

    /// Returns the bits at the program counter, for a trap.
    fn word(&self) -> u32 {
        self.memory.load(self.pc).map_or(0, u32::from_le_bytes)
    }

    fn load(&self, load: Load, addr: u32) -> Option<u32> {
        let memory = &self.memory;
        Some(match load {
            Load::Lb => i8::from_le_bytes(memory.load(addr)?) as u32,
            Load::Lh => i16::from_le_bytes(memory.load(addr)?) as u32,
            Load::Lw => u32::from_le_bytes(memory.load(addr)?),
            Load::Lbu => u8::from_le_bytes(memory.load(addr)?).into(),
            Load::Lhu => u16::from_le_bytes(memory.load(addr)?).into(),
        })
    }

    fn store(&mut self, store: Store, addr: u32, value: u32) -> Option<()> {
        match store {
            Store::Sb => self.memory.store(addr, (value as u8).to_le_bytes()),
            Store::Sh => self.memory.store(addr, (value as u16).to_le_bytes()),
            Store::Sw => self.memory.store(addr, value.to_le_bytes()),
        }
    }

    fn csr(&mut self, op: CsrOp, rd: Reg, src: Source, csr: u16) -> Option<()> {
        let old = self.csr_read(csr)?;
        let operand = self.value(src);
        let writes = op == CsrOp::Write || !matches!(src, Source::Reg(Reg::ZERO) | Source::Imm(0));
        if writes {
            let new = match op {
                CsrOp::Write => operand,
                CsrOp::Set => old | operand,
                CsrOp::Clear => old & !operand,
            };
            self.csr_write(csr, new)?;
        }
        self.set(rd, old);
        Some(())
    }

    fn mcycle(&self) -> u64 {
        self.cycles.wrapping_add(self.mcycle_ahead)
    }

    fn minstret(&self) -> u64 {
        self.retired.wrapping_add(self.minstret_ahead)
    }

    fn csr_read(&self, csr: u16) -> Option<u32> {
        Some(match csr {
            // The user's and the machine's counters are the same; time is counted in cycles.
            0xb00 | 0xc00 | 0xc01 => self.mcycle() as u32,
            0xb80 | 0xc80 | 0xc81 => (self.mcycle() >> 32) as u32,
            0xb02 | 0xc02 => self.minstret() as u32,
            0xb82 | 0xc82 => (self.minstret() >> 32) as u32,
            0x301 => MISA,
            0x340 => self.mscratch,
            0xf11..=0xf14 => 0,
            _ => return None,
        })
    }

    fn csr_write(&mut self, csr: u16, value: u32) -> Option<()> {
        let low = |old: u64| old & !0xffff_ffff | u64::from(value);
        let high = |old: u64| old & 0xffff_ffff | u64::from(value) << 32;
        let (cycle, instret) = (self.mcycle(), self.minstret());
        let set_cycle = |new: u64| new.wrapping_sub(self.cycles);
        let set_instret = |new: u64| new.wrapping_sub(self.retired);
        match csr {
            0xb00 => self.mcycle_ahead = set_cycle(low(cycle)),
            0xb80 => self.mcycle_ahead = set_cycle(high(cycle)),
            0xb02 => self.minstret_ahead = set_instret(low(instret)),
            0xb82 => self.minstret_ahead = set_instret(high(instret)),
            0x301 => {}
            0x340 => self.mscratch = value,
            _ => return None,
        }
        Some(())
    }
}

impl Load {
    fn bytes(self) -> u32 {
        match self {
            Self::Lb | Self::Lbu => 1,
            Self::Lh | Self::Lhu => 2,
            Self::Lw => 4,
        }
    }
}

impl Store {
    fn bytes(self) -> u32 {
        match self {
            Self::Sb => 1,
            Self::Sh => 2,
            Self::Sw => 4,
        }
    }
}

/// An access that crosses a word takes two cycles.
fn access_cycles(addr: u32, bytes: u32) -> u32 {
    1 + u32::from(addr % 4 + bytes > 4)
}

impl Op {
    /// A division takes one cycle for each bit of the divisor.
    fn cycles(self, b: u32) -> u32 {
        match self {
            Self::Mulh | Self::Mulhsu | Self::Mulhu => 4,
            Self::Div | Self::Rem => 35 - (b as i32).unsigned_abs().leading_zeros(),
            Self::Divu | Self::Remu => 35 - b.leading_zeros(),
            _ => 1,
        }
    }
}

/// Address of the first byte of memory: nothing is at address 0.
pub const BASE: u32 = 0x1_0000;
/// Bytes of memory.
pub const SIZE: usize = 256 * 1024;

/// `SIZE` bytes from `BASE` on.
#[derive(Clone, PartialEq, Eq)]
pub struct Memory(Vec<u8>);

impl Memory {
    pub(super) fn new() -> Self {
        Self(vec![0; SIZE])
    }

    /// Returns memory that begins with these bytes, as far as there is room; the rest is zeros.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut own = bytes[..bytes.len().min(SIZE)].to_vec();
        own.resize(SIZE, 0);
        Self(own)
    }

    /// Returns all bytes of the memory.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn at(addr: u32) -> Option<usize> {
        addr.checked_sub(BASE).map(|at| at as usize)
    }

    /// Returns `len` bytes at `addr`, if all of them are in memory.
    pub(super) fn slice(&self, addr: u32, len: usize) -> Option<&[u8]> {
        self.0.get(Self::at(addr)?..)?.get(..len)
    }

    fn slice_mut(&mut self, addr: u32, len: usize) -> Option<&mut [u8]> {
        self.0.get_mut(Self::at(addr)?..)?.get_mut(..len)
    }

    pub(super) fn load<const N: usize>(&self, addr: u32) -> Option<[u8; N]> {
        self.0.get(Self::at(addr)?..)?.first_chunk().copied()
    }

    pub(super) fn store<const N: usize>(&mut self, addr: u32, data: [u8; N]) -> Option<()> {
        let to = self.0.get_mut(Self::at(addr)?..)?.first_chunk_mut()?;
        *to = data;
        Some(())
    }
}

/// The largest file that is loaded, in bytes.
pub const MAX_FILE: u64 = 1 << 20;

/// Returns memory with the segments of the file, and the entry point; `None` if the file is not
/// such a program.
pub fn load(file: &[u8]) -> Option<(Memory, u32)> {
    let elf = ElfBytes::<LittleEndian>::minimal_parse(file).ok()?;
    let header = &elf.ehdr;
    if header.class != Class::ELF32 || header.e_machine != EM_RISCV || header.e_type != ET_EXEC {
        return None;
    }
    let mut memory = Memory::new();
    for segment in elf.segments()? {
        if segment.p_type == PT_LOAD {
            place(file, &segment, &mut memory)?;
        }
    }
    let entry = u32::try_from(header.e_entry).ok()?;
    (entry % 2 == 0 && memory.slice(entry, 2).is_some()).then_some((memory, entry))
}

fn place(file: &[u8], segment: &ProgramHeader, memory: &mut Memory) -> Option<()> {
    let field = |value| usize::try_from(value).ok();
    let (offset, len) = (field(segment.p_offset)?, field(segment.p_filesz)?);
    let bytes = file.get(offset..)?.get(..len)?;
    let addr = u32::try_from(segment.p_vaddr).ok()?;
    let to = memory.slice_mut(addr, field(segment.p_memsz)?)?;
    let (head, rest) = to.split_at_mut_checked(len)?;
    head.copy_from_slice(bytes);
    rest.fill(0);
    Some(())
}
