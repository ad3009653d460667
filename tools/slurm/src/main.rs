// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermata-slurm`: prolog and epilog of Slurm give jobs their shares of cards, and a wrapper saves
//! a program when Slurm ends its job, and restores the program where Slurm starts the job again.

mod card;
mod hooks;
mod image;
mod job;
mod output;
mod processes;
mod settings;
mod shares;
mod wrapper;

use anyhow::{Context as _, Result};
use clap::{CommandFactory as _, Parser, Subcommand};
use hooks::Hook;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use wrapper::Run;

/// Share cards between jobs of Slurm, and move jobs between nodes.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Give a job its share of its cards: the Prolog of slurm.conf, with PrologFlags=RunInJob
    Prolog(Hook),
    /// Take a job off its cards, and tell its time on slots: the Epilog of slurm.conf
    Epilog(Hook),
    Run(Run),
    /// Print completions of commands and options for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages to a folder, a page for each command
    Man {
        /// An existing folder
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

fn main() -> ExitCode {
    let success = |()| ExitCode::SUCCESS;
    let done = match Arguments::parse().command {
        Command::Prolog(hook) => hook.prolog().map(success),
        Command::Epilog(hook) => hook.epilog().map(success),
        Command::Run(run) => run.run(),
        Command::Completions { shell } => completions(shell).map(success),
        Command::Man { folder } => man(&folder).map(success),
    };
    done.unwrap_or_else(|error| {
        eprintln!("fermata-slurm: {error:#}");
        ExitCode::FAILURE
    })
}

/// Prints completions for a shell, made of the parser.
fn completions(shell: clap_complete::Shell) -> Result<()> {
    let (mut parser, mut text) = (Arguments::command(), Vec::new());
    let name = parser.get_name().to_owned();
    clap_complete::generate(shell, &mut parser, name, &mut text);
    Ok(std::io::stdout().lock().write_all(&text)?)
}

/// Writes a manual page for each command, made of the parser, to a folder that is there.
fn man(folder: &Path) -> Result<()> {
    let written = clap_mangen::generate_to(Arguments::command(), folder);
    written.with_context(|| folder.display().to_string())
}
