// SPDX-License-Identifier: GPL-2.0-or-later
//! The riscv engine beside an independent emulator (ckb-vm), instruction by instruction: registers
//! and program counter after each, memory at the end.

use crate::arena::all;
use ckb_vm::instructions::{execute, i, m, rvc, Instruction};
use ckb_vm::machine::{DefaultMachine, DefaultMachineBuilder, VERSION2};
use ckb_vm::memory::sparse::SparseMemory;
use ckb_vm::{CoreMachine, DefaultCoreMachine, Memory as _, SupportMachine, ISA_IMC};
use fermata_card::engine::riscv::inst::Inst;
use fermata_card::engine::riscv::{load_program, Core, Cycle, Memory, Trap, BASE, SIZE};
use fermata_card::engine::splitmix64;

/// The other emulator, with our core's memory.
struct Other(DefaultMachine<DefaultCoreMachine<u32, SparseMemory<u32>>>);

impl Other {
    fn new(core: &Core) -> Self {
        let inner = DefaultCoreMachine::new(ISA_IMC, VERSION2, u64::MAX);
        let mut other = Self(DefaultMachineBuilder::new(inner).build());
        let memory = other.0.memory_mut();
        memory
            .store_bytes(BASE.into(), core.memory().bytes())
            .unwrap();
        other.take_over(core);
        other
    }

    /// Registers and program counter as ours.
    fn take_over(&mut self, core: &Core) {
        for (i, &x) in core.registers().iter().enumerate() {
            self.0.set_register(i, x);
        }
        self.jump(core.pc());
    }

    fn jump(&mut self, pc: u32) {
        self.0.update_pc(pc);
        self.0.commit_pc();
    }

    /// Decodes without its cache, which stores do not invalidate.
    fn decode(&mut self) -> Option<Instruction> {
        let pc = u64::from(*self.0.pc());
        let low = self.0.memory_mut().execute_load16(pc).ok()?;
        let bits = if low & 3 == 3 {
            self.0.memory_mut().execute_load32(pc).ok()?
        } else {
            low.into()
        };
        [rvc::factory::<u32>, i::factory::<u32>, m::factory::<u32>]
            .iter()
            .find_map(|factory| factory(bits, VERSION2))
    }

    fn step(&mut self) -> bool {
        let decoded = self.decode();
        decoded.is_some_and(|inst| execute(inst, &mut self.0).is_ok())
    }

    #[track_caller]
    fn equals(&self, core: &Core, what: &dyn Fn() -> String) {
        assert_eq!(self.0.registers(), core.registers(), "{}", what());
        assert_eq!(*self.0.pc(), core.pc(), "{}", what());
    }

    #[track_caller]
    fn has_memory_of(&mut self, core: &Core) {
        let memory = self.0.memory_mut();
        let bytes = memory.load_bytes(BASE.into(), SIZE as u64).unwrap();
        assert!(bytes == core.memory().bytes());
    }
}

/// Completes a call in our core. False at the program's end.
fn answer(core: &mut Core) -> bool {
    let x = *core.registers();
    match x[17] {
        64 => core.answer(x[12].min(64)),
        93 => return false,
        number => panic!("call {number}"),
    }
    true
}

#[test]
fn programs_run_as_on_another_emulator() {
    for program in all() {
        let (memory, entry) = load_program(&program.elf).unwrap();
        let mut core = Core::new(memory, entry, program.arg);
        let mut other = Other::new(&core);
        loop {
            let pc = core.pc();
            let (inst, _) = core.fetch().unwrap();
            core.wait(u64::MAX);
            match core.cycle().unwrap() {
                Cycle::Call if !answer(&mut core) => break,
                // Calls, and CSRs which it has not, it is told.
                Cycle::Call => other.take_over(&core),
                Cycle::Ran if matches!(inst, Inst::Csr { .. }) => other.take_over(&core),
                Cycle::Ran => assert!(other.step(), "{inst:?}"),
            }
            let what = || format!("{}: {inst:?} at {pc:#x}", program.name);
            other.equals(&core, &what);
        }
        other.has_memory_of(&core);
        println!("{}: {} instructions alike", program.name, core.retired());
        assert!(core.retired() > 10_000);
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = splitmix64(self.0);
        (self.0 >> 32) as u32
    }

    fn below(&mut self, n: u32) -> u32 {
        (u64::from(self.next()) * u64::from(n) >> 32) as u32
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u32) as usize]
    }

    /// A number as programs have them: small, at an edge, an address, or any.
    fn operand(&mut self) -> u32 {
        match self.below(6) {
            0 => self.below(64),
            1 => self.below(64).wrapping_neg(),
            2 => self.one_of(&[0, 1, u32::MAX, 1 << 31, i32::MAX as u32]),
            3 | 4 => BASE + self.below(SIZE as u32),
            _ => self.next(),
        }
    }

    /// An instruction of 32 bits: an opcode that the core has, and any fields, of which most have a
    /// meaning.
    fn wide(&mut self) -> u32 {
        let opcode = self.one_of(&[
            0x37, 0x17, 0x6f, 0x67, 0x63, 0x03, 0x03, 0x23, 0x23, 0x13, 0x13, 0x33, 0x33, 0x33,
            0x33, 0x0f,
        ]);
        let mut word = self.next() & !0x7f | opcode;
        match opcode {
            // Jumps and branches that stay near; the lowest bit of a JALR's offset is dropped.
            0x6f => word = word & 0x8007_ffff | (word >> 7 & 0x0300_0000),
            0x63 => word &= 0x81ff_ffff,
            0x67 => word &= !0x7000,
            0x33 => word = word & 0x01ff_ffff | self.one_of(&[0, 1, 1, 0x20]) << 25,
            0x13 if word & 0x3000 == 0x1000 => {
                word = word & 0x01ff_ffff | self.one_of(&[0, 0x20]) << 25;
            }
            0x0f => word &= 0x0ff0_000f,
            _ => {}
        }
        word
    }

    fn stream(&mut self) -> Vec<u8> {
        let mut code = Vec::new();
        while code.len() < 1024 {
            if self.below(2) == 0 {
                code.extend(self.wide().to_le_bytes());
            } else {
                let half = self.next() as u16;
                code.extend((half & !3 | self.below(3) as u16).to_le_bytes());
            }
        }
        code
    }
}

/// Shifts by 32 and more, which the specification reserves here and the other emulator takes.
fn wide_shift(bits: u32) -> bool {
    let compressed = bits & 0xf003 == 0x1002 || bits & 0xf803 == 0x9001;
    (bits >> 16 == 0 && compressed) || bits & 0x0200_307f == 0x0200_1013
}

/// Executes one instruction on both. False where it traps on ours; then it must on the other, if
/// that knows what it is.
fn step_both(core: &mut Core, other: &mut Other) -> bool {
    let pc = core.pc();
    let fetched = core.fetch();
    core.wait(u64::MAX);
    let what = || format!("{fetched:x?} at {pc:#x}");
    match core.cycle() {
        // It has no CSRs, and no fences with bits in fields that are to be ignored.
        Ok(Cycle::Ran) if matches!(fetched, Ok((Inst::Csr { .. } | Inst::Nop, _))) => {
            other.take_over(core);
            true
        }
        Ok(Cycle::Ran) => {
            assert!(other.step(), "{}", what());
            other.equals(core, &what);
            true
        }
        Err(Trap::Illegal(bits)) => {
            assert!(other.decode().is_none() || wide_shift(bits), "{}", what());
            false
        }
        // It has memory where ours has none, and nobody to call.
        Err(Trap::Fetch(_) | Trap::Load(_) | Trap::Store(_) | Trap::Breakpoint(_))
        | Ok(Cycle::Call) => false,
    }
}

#[test]
fn random_instructions_run_as_on_another_emulator() {
    let (mut random, mut alike, mut illegal) = (Random(7), 0u64, 0);
    for _ in 0..2000 {
        let code = random.stream();
        let mut memory = vec![0; SIZE];
        memory[SIZE / 2..][..code.len()].copy_from_slice(&code);
        let entry = BASE + SIZE as u32 / 2;
        let mut core = Core::new(Memory::from_bytes(&memory), entry, 0);
        let mut other = Other::new(&core);
        // Each trap ends a stretch; the next begins behind it, with other registers.
        let mut at = entry;
        while at < entry + code.len() as u32 {
            core.jump(at);
            core.set_registers(&std::array::from_fn(|_| random.operand()));
            other.take_over(&core);
            let mut left = 200;
            while left > 0 && step_both(&mut core, &mut other) {
                left -= 1;
            }
            illegal += u32::from(matches!(core.fetch(), Err(Trap::Illegal(_))));
            at += 2 + random.below(16) * 2;
        }
        alike += core.retired();
        other.has_memory_of(&core);
    }
    println!("{alike} instructions alike, {illegal} illegal on both");
    assert!(alike > 100_000, "{alike}");
}

#[test]
fn every_compressed_instruction_runs_as_on_another_emulator() {
    const DATA: u32 = BASE + 0x2_0000;
    let halves: Vec<u16> = (0..=u16::MAX).filter(|half| half & 3 != 3).collect();
    let code: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
    let mut core = Core::new(Memory::from_bytes(&code), BASE, 0);
    let mut other = Other::new(&core);
    let mut random = Random(9);
    for i in 0..halves.len() as u32 {
        core.jump(BASE + 2 * i);
        core.set_registers(&std::array::from_fn(|_| DATA + random.below(0x8000)));
        other.take_over(&core);
        step_both(&mut core, &mut other);
    }
    other.has_memory_of(&core);
    println!("{} of {} alike", core.retired(), halves.len());
    // The others are for floating-point numbers and wider registers, or for nothing yet.
    assert!(core.retired() > 28_000);
}
