// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs on the emulated card's RISC-V core (docs/emulated-card.md): how a program is laid out
//! in its arena, and what its outcome is.

use crate::{Arena, Context, Result};

/// Offset of the program's output in the arena, in bytes. Before it the engine writes how the
/// program ended.
const OUTPUT: usize = 0x1000;
/// Offset of the program.
const ELF: usize = 0x2000;
const OUTPUT_ROOM: usize = ELF - OUTPUT;
/// [`Outcome::end`] of a program that called `exit()`.
pub const EXITED: u64 = 1;

/// Returns how many bytes an arena for a program of `length` bytes has: whole pages. In a longer
/// arena the rest is the caller's.
pub fn arena_length(length: usize) -> usize {
    (ELF + length).next_multiple_of(4096)
}

/// Writes a program to the arena (of [`arena_length`] bytes or more), to be run as the context's
/// next job.
///
/// The program gets `arg` in a0. The card knows the job by `tag`. The context must be set up for
/// [`EngineId::RISCV`](crate::EngineId::RISCV). Panics if the arena is too short.
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

/// What the engine reports when a program ends, and what the program has printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Why the program ended: 1 is a call of `exit()`; docs/emulated-card.md lists the others.
    pub end: u64,
    /// The program's exit code, or the value that belongs to the trap.
    pub code: u64,
    /// Cycles of the core.
    pub cycles: u64,
    /// Instructions that the core has completed.
    pub instructions: u64,
    /// A checksum of the core's memory.
    pub memory: u64,
    /// What the program has printed, up to 4 KiB.
    pub output: String,
}

impl Outcome {
    /// Reads the outcome from the arena of a program that was put there by [`load`] and has ended.
    pub fn of(arena: &Arena) -> Self {
        Self::read(&arena.read(0, ELF))
    }

    /// Reads the outcome from the bytes of an arena; `None`: there are too few bytes.
    pub fn from_bytes(arena: &[u8]) -> Option<Self> {
        arena.get(..ELF).map(Self::read)
    }

    /// Reads the outcome from `head`, the bytes before the program.
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

    /// Returns whether the program called `exit(0)`.
    pub fn is_success(&self) -> bool {
        (self.end, self.code) == (EXITED, 0)
    }
}
