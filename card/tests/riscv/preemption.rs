// SPDX-License-Identifier: GPL-2.0
//! A program that is preempted anywhere ends as one that is not: the same memory, output, cycles.

use crate::arena::{run, run_changed, Outcome};
use crate::programs::{all, Program};
use fermata_card::engine::splitmix64;

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
