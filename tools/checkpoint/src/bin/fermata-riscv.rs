// SPDX-License-Identifier: GPL-2.0-or-later
//! Runs a program on a RISC-V core of a card, and prints the result. The demo of migration moves
//! such jobs.

use anyhow::{bail, Context as _, Result};
use clap::{Parser, Subcommand};
use fermata::riscv::{self, Outcome};
use fermata::{Context, EngineId, Events, State};
use fermata_output::say;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Run a program on a RISC-V core of a card.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program to its end, and print the result
    Run {
        /// The card
        #[arg(long, default_value = "/dev/fermata0")]
        device: PathBuf,
        /// The program's argument, in a0
        #[arg(long, default_value_t = 1)]
        arg: u32,
        /// Size of additional memory with pseudo-random contents
        #[arg(long, default_value_t = 0, value_name = "MIB")]
        ballast: usize,
        /// The word that identifies the job to the card (register 0x50)
        #[arg(long, default_value_t = 0)]
        tag: u64,
        /// The program: ELF, for RV32IMC
        program: PathBuf,
    },
    /// Print the result of a program from the contents of its arena
    Read {
        /// A file with the contents of the arena
        arena: PathBuf,
    },
}

/// Returns pseudo-random bytes, which cannot be compressed.
fn ballast(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

fn run(device: &Path, program: &Path, arg: u32, mib: usize, tag: u64) -> Result<Vec<u8>> {
    let elf = std::fs::read(program).with_context(|| program.display().to_string())?;
    let context = Context::open(device).with_context(|| device.display().to_string())?;
    context
        .setup(EngineId::RISCV, 0)
        .context("the card has no RISC-V core")?;
    let end = riscv::arena_length(elf.len());
    let arena = context.create_arena(end + (mib << 20))?;
    context.create_snapshot()?;
    arena.write(end, &ballast(mib << 20));
    riscv::load(&context, &arena, &elf, arg, tag)?;
    context.declare_results(&[0x40])?;
    context.start()?;
    context.wait(Events::DONE, None)?;
    let status = context.status()?;
    if State::from(status.state) != State::Done {
        bail!("{}", std::io::Error::from_raw_os_error(status.error as i32));
    }
    Ok(arena.read(0, arena.length()))
}

/// Prints the result of a program. Returns whether the program succeeded.
fn print_outcome(arena: &[u8]) -> Result<bool> {
    let outcome = Outcome::from_bytes(arena).context("this is no arena of such a program")?;
    say!(
        "end {}, code {}, {} cycles, {} instructions, memory {:#018x}",
        outcome.end,
        outcome.code,
        outcome.cycles,
        outcome.instructions,
        outcome.memory
    );
    if !outcome.output.is_empty() {
        // `say!` ends the last line.
        let output = outcome.output.strip_suffix('\n');
        say!("{}", output.unwrap_or(&outcome.output));
    }
    Ok(outcome.is_success())
}

fn main() -> ExitCode {
    let told = match Arguments::parse().command {
        Command::Run {
            device,
            arg,
            ballast,
            tag,
            program,
        } => run(&device, &program, arg, ballast, tag),
        Command::Read { arena } => {
            std::fs::read(&arena).with_context(|| arena.display().to_string())
        }
    };
    let done = told.and_then(|arena| print_outcome(&arena));
    fermata_output::end("fermata-riscv", done)
}
