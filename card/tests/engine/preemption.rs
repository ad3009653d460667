// SPDX-License-Identifier: GPL-2.0-or-later
//! The riscv engine: a program that is preempted anywhere ends as one that is not, with the same
//! memory, output and cycles. And no bytes crash the card, neither as a program nor as a snapshot.

use crate::arena::{all, run, run_changed, Arena, Outcome, Program};
use fermata_card::engine::riscv::end;
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
            // So many preemptions for each run, at gaps that are as often short as long.
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

/// Whether a run ends otherwise when some bytes of each snapshot are lost.
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
    // x4 is nothing that a program without threads uses.
    for i in (1..32).filter(|i| *i != 4) {
        let lost = all().iter().any(|p| notices(p, 64 + 4 * (i - 1), 4));
        assert!(lost, "x{i} is lost");
    }
}

/// Runs a program for a while. Returns how it came to its end.
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
    // An entry outside of memory.
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
    // csrw cycle, x1: that is read-only. mret: there is no trap to come back from.
    ends(&[0xc000_9073], end::ILLEGAL, 0xc000_9073);
    ends(&[0x3020_0073], end::ILLEGAL, 0x3020_0073);
    ends(&[0x0000_0067], end::FETCH, 0);
    ends(&[0x0000_2083], end::LOAD, 0);
    ends(&[0x0010_2223], end::STORE, 4);
    ends(&[0x0010_0073], end::BREAKPOINT, 0x1_0054);
    // ecall with 0 in a7.
    ends(&[0x0000_0073], end::BAD_CALL, 0);
    // lui a7, 0: nothing; addi a7, x0, 93; ecall: exit with what is in a0.
    ends(&[0x05d0_0893, 0x0000_0073], end::EXIT, 0);
}

/// The smallest program: one segment with the headers and this code.
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
