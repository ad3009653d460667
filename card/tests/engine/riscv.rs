// SPDX-License-Identifier: GPL-2.0-or-later
//! The riscv engine. A program that is preempted anywhere ends like one that is not, with the same
//! memory, output and cycles. No bytes crash the card, neither as a program nor as a snapshot. And
//! the engine is compared with an independent emulator (ckb-vm), instruction by instruction:
//! registers and program counter after each instruction, memory at the end.

use crate::arena::{all, run, run_changed, Arena, Outcome, Program};
use ckb_vm::instructions::{execute, i, m, rvc, Instruction};
use ckb_vm::machine::{DefaultMachine, DefaultMachineBuilder, VERSION2};
use ckb_vm::memory::sparse::SparseMemory;
use ckb_vm::{CoreMachine, DefaultCoreMachine, Memory as _, SupportMachine, ISA_IMC};
use fermata_card::engine::riscv::instruction::Inst;
use fermata_card::engine::riscv::{end, load_program, Core, Cycle, Memory, Trap, BASE, SIZE};
use fermata_card::engine::{splitmix64, AppRegs, EngineKind};
use proptest::prelude::*;

const POINTS: usize = 10_000;

fn ends_well(name: &str, outcome: &Outcome) -> u64 {
    let read = |off| outcome.readback.get(off);
    assert_eq!((read(0x58), read(0x60)), (1, 0), "{name}: exit with 0");
    read(0x40)
}

#[test]
fn programs_print_what_they_computed() {
    for program in all() {
        let (arena, outcome, _) = run(&program.elf, program.arg, []);
        let cycles = ends_well(program.name, &outcome);
        let words = arena.words();
        println!(
            "{}: {cycles} cycles, {} instructions",
            program.name, words[3]
        );
        assert_eq!(arena.text().lines().count(), program.arg as usize);
        assert_eq!(words[..3], [1, 0, cycles]);
        assert!(words[3] <= cycles && cycles < 1 << 24, "{cycles} cycles");
    }
}

#[test]
fn ten_thousand_preemptions_at_random_cycles_change_nothing() {
    let mut points = 0;
    let mut seed = 0x5eed;
    while points < POINTS {
        for program in all() {
            let (_, plain, _) = run(&program.elf, program.arg, []);
            let cycles = ends_well(program.name, &plain);
            // Random gaps between preemptions, up to 1/50, 1/100, 1/200 or 1/400 of the run.
            let random = std::iter::repeat_with(|| {
                seed = splitmix64(seed);
                1 + (seed >> 8) % (cycles / (50 << (seed & 3)))
            });
            let (_, cut, n) = run(&program.elf, program.arg, random);
            assert!(plain == cut, "{} after {n} preemptions", program.name);
            points += n;
        }
    }
    println!("{points} preemptions");
}

#[test]
fn preemptions_at_each_cycle_change_nothing() {
    let program = all().iter().find(|p| p.name == "counters").unwrap();
    let (_, plain, _) = run(&program.elf, 1, []);
    let (_, cut, n) = run(&program.elf, 1, std::iter::repeat(1));
    assert!(n as u64 >= ends_well("counters", &plain) - 1);
    assert!(plain == cut, "after {n} preemptions");
}

/// Returns whether a run ends differently when some bytes of each snapshot are lost.
fn notices(program: &Program, at: usize, len: usize) -> bool {
    let (_, plain, _) = run(&program.elf, 1, []);
    let cuts = (0..).map(|n| 1 + splitmix64(n) % 2000);
    let changed = run_changed(&program.elf, 1, cuts, |state| state[at..][..len].fill(0));
    changed.is_none_or(|(_, outcome, _)| outcome != plain)
}

/// The test above would fail if any part of the state were not saved.
#[test]
fn each_field_that_is_lost_is_noticed() {
    let fields = [
        ("pc", 0, 4),
        ("stall", 4, 4),
        ("cycles", 8, 8),
        ("instret", 16, 8),
        ("mcycle", 24, 8),
        ("minstret", 32, 8),
        ("output", 40, 8),
        ("mscratch", 48, 4),
        ("loaded", 52, 4),
        ("memory", 4096, 256 * 1024),
    ];
    for (name, at, len) in fields {
        assert!(all().iter().any(|p| notices(p, at, len)), "{name} is lost");
    }
    // A program without threads does not use x4.
    for i in (1..32).filter(|i| *i != 4) {
        let lost = all().iter().any(|p| notices(p, 64 + 4 * (i - 1), 4));
        assert!(lost, "x{i} is lost");
    }
}

/// Runs a program for a while. Returns how it ended.
fn try_out(elf: &[u8]) -> u32 {
    let mut arena = Arena::new(elf);
    let mut engine = EngineKind::Riscv.start(&arena.regs(1));
    engine.step(20_000, &mut arena).unwrap();
    engine.finish(&mut arena).unwrap();
    engine.readback().get(0x58) as u32
}

#[test]
fn what_is_no_program_is_told() {
    let bad = |elf: &[u8]| assert_eq!(try_out(elf), end::BAD_PROGRAM);
    let good = &all()[0].elf;
    let with = |at: usize, byte: u8| {
        let mut elf = good.clone();
        elf[at] = byte;
        elf
    };
    assert!(![end::BAD_PROGRAM, end::ILLEGAL].contains(&try_out(good)));
    bad(&[]);
    bad(&vec![0; (1 << 20) + 1]);
    bad(&good[..100]);
    bad(&with(4, 2));
    bad(&with(5, 2));
    bad(&with(16, 3));
    bad(&with(18, 62));
    // An entry point outside memory.
    bad(&with(27, 0x80));
}

#[test]
fn traps_are_told_with_their_cause() {
    let ends = |code: &[u32], why: u32, what: u64| {
        let (_, outcome, _) = run(&image(code), 0, []);
        let read = |off| outcome.readback.get(off);
        assert_eq!((read(0x58), read(0x60)), (why.into(), what), "{code:x?}");
    };
    ends(&[0xffff_ffff], end::ILLEGAL, 0xffff_ffff);
    ends(&[0x0000_0000], end::ILLEGAL, 0);
    // csrw cycle, x1: the CSR is read-only. mret: there is no trap to return from.
    ends(&[0xc000_9073], end::ILLEGAL, 0xc000_9073);
    ends(&[0x3020_0073], end::ILLEGAL, 0x3020_0073);
    ends(&[0x0000_0067], end::FETCH, 0);
    ends(&[0x0000_2083], end::LOAD, 0);
    ends(&[0x0010_2223], end::STORE, 4);
    ends(&[0x0010_0073], end::BREAKPOINT, 0x1_0054);
    // ecall with 0 in a7.
    ends(&[0x0000_0073], end::BAD_CALL, 0);
    // lui a7, 0: no effect; addi a7, x0, 93; ecall: exits with the code in a0.
    ends(&[0x05d0_0893, 0x0000_0073], end::EXIT, 0);
}

/// Returns the smallest program: one segment with the headers and this code.
fn image(code: &[u32]) -> Vec<u8> {
    let size = 0x54 + 4 * code.len() as u32;
    let mut elf = b"\x7fELF\x01\x01\x01".to_vec();
    elf.resize(16, 0);
    elf.extend([2u16, 243].iter().flat_map(|h| h.to_le_bytes()));
    elf.extend(
        [1u32, 0x1_0054, 0x34, 0, 0]
            .iter()
            .flat_map(|w| w.to_le_bytes()),
    );
    elf.extend(
        [0x34u16, 0x20, 1, 0, 0, 0]
            .iter()
            .flat_map(|h| h.to_le_bytes()),
    );
    let segment = [1, 0, 0x1_0000, 0x1_0000, size, size, 5, 4096];
    elf.extend(
        segment
            .iter()
            .chain(code)
            .flat_map(|w: &u32| w.to_le_bytes()),
    );
    elf
}

#[test]
fn output_ends_with_its_room() {
    let mut arena = Arena::new(&all()[4].elf);
    let mut regs = arena.regs(40);
    regs.set(0x48, 1000);
    let mut engine = EngineKind::Riscv.start(&regs);
    while !engine.step(1 << 20, &mut arena).unwrap().done {}
    assert_eq!(engine.readback().get(0x48), 1000);
    assert!(arena.out[999] != 0 && arena.out[1000] == 0);
}

proptest! {
    #[test]
    fn any_program_ends_or_runs(elf in prop::collection::vec(any::<u8>(), 0..600), header: bool) {
        let mut elf = elf;
        if header && elf.len() > 84 {
            elf[..84].copy_from_slice(&image(&[])[..84]);
        }
        try_out(&elf);
    }

    #[test]
    fn any_change_of_a_program_ends_or_runs(which in 0usize..5, changes in prop::collection::vec((0usize..4096, any::<u8>()), 1..20)) {
        let mut elf = all()[which].elf.clone();
        let len = elf.len();
        changes.iter().for_each(|&(at, byte)| elf[at % len] = byte);
        try_out(&elf);
    }

    #[test]
    fn any_code_ends_or_runs(code in prop::collection::vec(any::<u32>(), 0..200)) {
        try_out(&image(&code));
    }

    #[test]
    fn any_snapshot_ends_or_runs(head in prop::collection::vec(any::<u8>(), 0..220), code in prop::collection::vec(any::<u8>(), 0..2000), pc in 0u32..2048) {
        let mut state = head;
        if !code.is_empty() {
            state.resize(4096, 0);
            state[..4].copy_from_slice(&(0x1_0000 + pc).to_le_bytes());
            state.extend(code);
        }
        let mut arena = Arena::new(&[]);
        let regs = arena.regs(0);
        let mut engine = EngineKind::Riscv.resume(&regs, &AppRegs::default(), &state);
        engine.step(5000, &mut arena).unwrap();
        let again = engine.save();
        prop_assert_eq!(again.len(), 65 * 4096);
        let mut engine = EngineKind::Riscv.resume(&regs, &AppRegs::default(), &again);
        engine.step(1000, &mut arena).unwrap();
        engine.finish(&mut arena).unwrap();
    }
}

/// The other emulator, with the memory of our core.
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

    /// Copies registers and program counter from our core.
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

/// Completes a call in our core. Returns false at the program's end.
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
                // The other emulator is given the results of calls and of CSRs, which it does not
                // have.
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

    /// Returns a number as programs have them: small, at an edge, an address, or any.
    fn operand(&mut self) -> u32 {
        match self.below(6) {
            0 => self.below(64),
            1 => self.below(64).wrapping_neg(),
            2 => self.one_of(&[0, 1, u32::MAX, 1 << 31, i32::MAX as u32]),
            3 | 4 => BASE + self.below(SIZE as u32),
            _ => self.next(),
        }
    }

    /// Returns an instruction of 32 bits: an opcode that the core has, and any fields, most of
    /// which have a meaning.
    fn wide(&mut self) -> u32 {
        let opcode = self.one_of(&[
            0x37, 0x17, 0x6f, 0x67, 0x63, 0x03, 0x03, 0x23, 0x23, 0x13, 0x13, 0x33, 0x33, 0x33,
            0x33, 0x0f,
        ]);
        let mut word = self.next() & !0x7f | opcode;
        match opcode {
            // Jumps and branches to nearby addresses; the lowest bit of a JALR's offset is dropped.
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

/// Returns whether it is a shift by 32 or more, which the specification reserves here and the other
/// emulator accepts.
fn wide_shift(bits: u32) -> bool {
    let compressed = bits & 0xf003 == 0x1002 || bits & 0xf803 == 0x9001;
    (bits >> 16 == 0 && compressed) || bits & 0x0200_307f == 0x0200_1013
}

/// Executes one instruction on both. Returns false if it traps on ours; then it must trap on the
/// other, if that one knows the instruction.
fn step_both(core: &mut Core, other: &mut Other) -> bool {
    let pc = core.pc();
    let fetched = core.fetch();
    core.wait(u64::MAX);
    let what = || format!("{fetched:x?} at {pc:#x}");
    match core.cycle() {
        // The other has no CSRs, and no fences with bits in fields that are to be ignored.
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
        // The other has memory where ours has none, and nothing that handles calls.
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
        // Each trap ends a stretch; the next stretch begins after it, with other registers.
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
    // The other half-words are for floating-point numbers or wider registers, or are not assigned.
    assert!(core.retired() > 28_000);
}
