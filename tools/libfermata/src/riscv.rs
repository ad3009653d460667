// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs on the emulated card's RISC-V core (docs/card.md): how one is laid out in its arena,
//! and what comes of it.

use crate::{Arena, Context, Result};

/// Where the output of a program stands in the arena, in bytes; before it is what the engine tells
/// at the end.
const OUTPUT: usize = 0x1000;
/// Where the program stands.
const ELF: usize = 0x2000;
const OUTPUT_ROOM: usize = ELF - OUTPUT;
/// The engine's end word of a program that has called `exit()`.
pub const EXITED: u64 = 1;

/// How long an arena for a program of `length` bytes is: bytes, whole pages. What follows in a
/// longer one is the caller's.
pub fn arena_length(length: usize) -> usize {
    (ELF + length).next_multiple_of(4096)
}

/// Puts a program into the arena (of [`arena_length`] bytes or more), and makes it what the
/// context's next job runs.
///
/// `arg` is what it gets in a0; `tag` is by what the card knows the job. The context must be set up
/// for [`EngineId::RISCV`](crate::EngineId::RISCV). Panics if the arena is too short.
pub fn load(context: &Context, arena: &Arena, elf: &[u8], arg: u32, tag: u64) -> Result<()> {
    arena.write(ELF, elf);
    let base = arena.base();
    context.write_registers(&[
        (0x30, base + ELF as u64),
        (0x38, elf.len() as u64),
        (0x40, base + OUTPUT as u64),
        (0x48, OUTPUT_ROOM as u64),
        (0x50, tag),
        (0x58, arg.into()),
        (0x60, base),
    ])
}

/// What the engine tells of a program at its end, and what that has printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Why it ended: 1 is a call of `exit()`; docs/card.md has the others.
    pub end: u64,
    /// The program's exit code, or what the trap tells.
    pub code: u64,
    /// Cycles of the core.
    pub cycles: u64,
    /// Instructions that it has completed.
    pub instructions: u64,
    /// A checksum of the core's memory.
    pub memory: u64,
    /// What it has printed, as far as there was room (4 KiB).
    pub output: String,
}

impl Outcome {
    /// What an arena says whose program, put there by [`load`], has ended.
    pub fn of(arena: &Arena) -> Self {
        Self::read(&arena.read(0, ELF))
    }

    /// The same, of an arena's bytes; `None`: there are too few for one.
    pub fn from_bytes(arena: &[u8]) -> Option<Self> {
        arena.get(..ELF).map(Self::read)
    }

    /// `head` is what stands before the program.
    fn read(head: &[u8]) -> Self {
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&head[8 * at..8 * at + 8]);
            u64::from_le_bytes(bytes)
        };
        let length = (word(4) as usize).min(OUTPUT_ROOM);
        Self {
            end: word(0),
            code: word(1),
            cycles: word(2),
            instructions: word(3),
            memory: word(5),
            output: String::from_utf8_lossy(&head[OUTPUT..OUTPUT + length]).into_owned(),
        }
    }

    /// Whether it has called `exit(0)`.
    pub fn is_success(&self) -> bool {
        (self.end, self.code) == (EXITED, 0)
    }
}
