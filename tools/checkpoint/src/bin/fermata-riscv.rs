// SPDX-License-Identifier: GPL-2.0
//! Runs a program on a card's RISC-V core, and says what came of it; the job that the demo of travelling snapshots lets travel.

use anyhow::{bail, ensure, Context as _, Result};
use clap::{Parser, Subcommand};
use fermata::{Context, EngineId, Events, State};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The arena: what the engine tells at the end, then the program's output, then the program, then what is asked for besides.
const OUTPUT: usize = 0x1000;
const ELF: usize = 0x2000;
const OUTPUT_ROOM: usize = ELF - OUTPUT;
/// The engine's end word of a program that has called `exit()`.
const EXITED: u64 = 1;

/// Run a program on a card's RISC-V core.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program to its end, and say what came of it
    Run {
        /// The card
        #[arg(long, default_value = "/dev/fermata0")]
        device: PathBuf,
        /// What the program gets in a0
        #[arg(long, default_value_t = 1)]
        arg: u32,
        /// More memory, full of numbers: something to carry
        #[arg(long, default_value_t = 0, value_name = "MIB")]
        ballast: usize,
        /// By what the card knows the job (register 0x50)
        #[arg(long, default_value_t = 0)]
        tag: u64,
        /// The program: ELF, for RV32IMC
        program: PathBuf,
    },
    /// Say what came of a program, from the arena that it has left
    Read {
        /// The arena's bytes
        arena: PathBuf,
    },
}

/// Pseudo-random numbers, which no compression makes small.
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
    let end = (ELF + elf.len()).next_multiple_of(4096);
    let arena = context.create_arena(end + (mib << 20))?;
    context.create_snapshot()?;
    arena.write(ELF, &elf);
    arena.write(end, &ballast(mib << 20));
    let base = arena.base();
    context.write_registers(&[
        (0x30, base + ELF as u64),
        (0x38, elf.len() as u64),
        (0x40, base + OUTPUT as u64),
        (0x48, OUTPUT_ROOM as u64),
        (0x50, tag),
        (0x58, arg.into()),
        (0x60, base),
    ])?;
    context.declare_results(&[0x40])?;
    context.start()?;
    context.wait(Events::DONE, None)?;
    let status = context.status()?;
    if State::from(status.state) != State::Done {
        bail!("{}", std::io::Error::from_raw_os_error(status.error as i32));
    }
    Ok(arena.read(0, arena.length()))
}

/// What came of a program.
fn tell(arena: &[u8]) -> Result<bool> {
    ensure!(arena.len() >= ELF, "this is no arena of such a program");
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&arena[8 * at..8 * at + 8]);
        u64::from_le_bytes(bytes)
    };
    let (end, code) = (word(0), word(1));
    println!(
        "end {end}, code {code}, {} cycles, {} instructions, memory {:#018x}",
        word(2),
        word(3),
        word(5)
    );
    let length = (word(4) as usize).min(OUTPUT_ROOM);
    print!(
        "{}",
        String::from_utf8_lossy(&arena[OUTPUT..OUTPUT + length])
    );
    Ok(end == EXITED && code == 0)
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
    match told.and_then(|arena| tell(&arena)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fermata-riscv: {error:#}");
            ExitCode::FAILURE
        }
    }
}
