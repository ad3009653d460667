// SPDX-License-Identifier: GPL-2.0-or-later
//! An arena with a program of tests/programs and room for its output, and runs of the riscv engine
//! on it.

use fermata_card::engine::{AppRegs, Bus, Engine, EngineKind, Refused};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const ELF: u64 = 0x10_0000;
const OUT: u64 = 0x80_0000;
const OUT_LEN: u64 = 4096;
const RESULT: u64 = 0x90_0000;

/// The memory that a program may touch, at the addresses above.
pub struct Arena {
    elf: Vec<u8>,
    pub out: Vec<u8>,
    pub result: [u8; 48],
}

impl Arena {
    pub fn new(elf: &[u8]) -> Self {
        Self {
            elf: elf.to_vec(),
            out: vec![0; OUT_LEN as usize],
            result: [0; 48],
        }
    }

    /// Returns the registers of a job that runs the program.
    pub fn regs(&self, arg: u32) -> AppRegs {
        let mut regs = AppRegs::default();
        let values = [
            (0x30, ELF),
            (0x38, self.elf.len() as u64),
            (0x40, OUT),
            (0x48, OUT_LEN),
            (0x58, arg.into()),
            (0x60, RESULT),
        ];
        values.iter().for_each(|&(off, val)| regs.set(off, val));
        regs
    }

    /// Returns the words of the result.
    pub fn words(&self) -> Vec<u64> {
        let words = self.result.chunks_exact(8);
        words
            .map(|w| u64::from_le_bytes(w.try_into().unwrap()))
            .collect()
    }

    pub fn text(&self) -> String {
        let len = self.words()[4] as usize;
        String::from_utf8_lossy(&self.out[..len.min(self.out.len())]).into()
    }
}

fn part(bytes: &mut [u8], at: u64, len: usize) -> &mut [u8] {
    &mut bytes[at as usize..][..len]
}

impl Bus for Arena {
    fn read(&mut self, addr: u64, buf: &mut [u8]) -> Result<(), Refused> {
        buf.copy_from_slice(part(&mut self.elf, addr - ELF, buf.len()));
        Ok(())
    }

    fn write(&mut self, addr: u64, data: &[u8]) -> Result<(), Refused> {
        let to = if addr >= RESULT {
            part(&mut self.result, addr - RESULT, data.len())
        } else {
            part(&mut self.out, addr - OUT, data.len())
        };
        to.copy_from_slice(data);
        Ok(())
    }

    fn attention(&self) -> bool {
        false
    }

    fn wants_boundary(&self) -> bool {
        false
    }
}

/// Everything that is visible of a completed run.
#[derive(PartialEq, Eq)]
pub struct Outcome {
    pub result: [u8; 48],
    pub out: Vec<u8>,
    pub readback: AppRegs,
    /// The state at the end, with the core's memory.
    pub state: Vec<u8>,
}

/// More cycles than any correct run takes.
const TOO_MANY: u64 = 1 << 24;

/// Runs a job with a preemption after each of `cuts` cycles; only the snapshot's bytes remain
/// between runs. Returns the arena, the outcome, and the number of preemptions before the end.
pub fn run(elf: &[u8], arg: u32, cuts: impl IntoIterator<Item = u64>) -> (Arena, Outcome, usize) {
    run_changed(elf, arg, cuts, |_| {}).expect("it comes to its end")
}

/// Does the same with a change of each snapshot. Returns `None` if the job does not end.
pub fn run_changed(
    elf: &[u8],
    arg: u32,
    cuts: impl IntoIterator<Item = u64>,
    change: impl Fn(&mut [u8]),
) -> Option<(Arena, Outcome, usize)> {
    let kind = EngineKind::Riscv;
    let mut arena = Arena::new(elf);
    let regs = arena.regs(arg);
    let mut engine: Box<dyn Engine> = kind.start(&regs);
    let (mut preemptions, mut cycles, mut cuts) = (0, 0, cuts.into_iter());
    loop {
        let most = cuts.next().unwrap_or(TOO_MANY);
        let progress = engine.step(most, &mut arena).unwrap();
        if progress.done {
            break;
        }
        cycles += progress.units;
        if cycles >= TOO_MANY {
            return None;
        }
        let mut state = engine.save();
        change(&mut state);
        engine = kind.resume(&regs, &AppRegs::default(), &state);
        preemptions += 1;
    }
    engine.finish(&mut arena).unwrap();
    let outcome = Outcome {
        result: arena.result,
        out: arena.out.clone(),
        readback: engine.readback(),
        state: engine.save(),
    };
    Some((arena, outcome, preemptions))
}

pub struct Program {
    pub name: &'static str,
    pub elf: Vec<u8>,
    /// The number of rounds that take a few hundred thousand cycles.
    pub arg: u32,
}

const SOURCES: [(&str, u32); 5] = [
    ("sort", 2),
    ("matrix", 2),
    ("mixture", 6),
    ("unpack", 2),
    ("counters", 20),
];

/// Makes the programs. Returns their directory.
fn make() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
    let status = Command::new("make")
        .args(["-s", "-C"])
        .arg(folder)
        .arg(format!("OUT={}", out.display()))
        .status()
        .expect("make is in the build root");
    assert!(status.success(), "the programs do not compile");
    out
}

/// Returns all programs, which are compiled once for each run of the tests.
pub fn all() -> &'static [Program] {
    static ALL: OnceLock<Vec<Program>> = OnceLock::new();
    ALL.get_or_init(|| {
        let folder = make();
        let program = |(name, arg)| Program {
            name,
            elf: std::fs::read(folder.join(format!("riscv-{name}"))).unwrap(),
            arg,
        };
        SOURCES.map(program).into()
    })
}
