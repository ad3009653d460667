// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermata-slurm`: a prolog and an epilog of Slurm, which slurmd runs as root in the cgroup of the
//! job's extern step, give jobs their shares of cards. A wrapper saves a program when Slurm ends
//! its job, and restores the program where Slurm starts the job again.

mod card;
mod hook;
mod job;
mod processes;
mod programs;
mod settings;
mod wrapper;

use clap::{Parser, Subcommand};
use fermata_command_line::OfParser;
use fermata_output::complain;
use hook::{Hook, Prolog};
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
    Prolog(Prolog),
    /// Take a job off its cards, and report its time on slots: the Epilog of slurm.conf
    Epilog(Hook),
    Run(Run),
    #[command(flatten)]
    OfParser(OfParser),
}

fn main() -> ExitCode {
    let success = |()| ExitCode::SUCCESS;
    let done = match Arguments::parse().command {
        Command::Prolog(prolog) => prolog.run().map(success),
        Command::Epilog(hook) => hook.epilog().map(success),
        Command::Run(run) => run.run(),
        Command::OfParser(command) => command.run::<Arguments>().map(success),
    };
    done.unwrap_or_else(|error| {
        complain!("fermata-slurm: {error:#}");
        ExitCode::FAILURE
    })
}
