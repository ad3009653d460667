// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermata-slurm`: prolog and epilog of Slurm give jobs their shares of cards, and a wrapper saves
//! a program when Slurm ends its job, and restores the program where Slurm starts the job again.

mod card;
mod comment;
mod hooks;
mod image;
mod job;
mod output;
mod processes;
mod settings;
mod shares;
mod wrapper;

use clap::{Parser, Subcommand};
use fermata_command_line::OfParser;
use hooks::Hook;
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
    #[command(flatten)]
    OfParser(OfParser),
}

fn main() -> ExitCode {
    let success = |()| ExitCode::SUCCESS;
    let done = match Arguments::parse().command {
        Command::Prolog(hook) => hook.prolog().map(success),
        Command::Epilog(hook) => hook.epilog().map(success),
        Command::Run(run) => run.run(),
        Command::OfParser(command) => command.run::<Arguments>().map(success),
    };
    done.unwrap_or_else(|error| {
        eprintln!("fermata-slurm: {error:#}");
        ExitCode::FAILURE
    })
}
