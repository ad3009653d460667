// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermata-vfio`: serves a virtual machine a card of the fermata profile by vfio-user. The jobs of
//! the card's slots run in contexts on the host's card.

mod context;
mod control;
mod job;
mod lenders;
mod log;
mod options;
mod pool;
mod remote;
mod serve;
mod settings;
mod state_file;

use anyhow::{Context as _, Result};
use clap::{CommandFactory as _, Parser, Subcommand};
use options::Serve;
use remote::{Daemon, Transfer};
use serve::serve;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Give a virtual machine a card of its own, whose jobs run on the host's card.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a card at a socket, to one virtual machine at a time
    Serve(Serve),
    /// Stop the card of a virtual machine that is paused, and write the state of the card to a file
    Save(Transfer),
    /// Give the state of a card to the card of a virtual machine that is paused; the card goes on
    Load(Transfer),
    /// Let a card go on that `save` has stopped
    Continue(Daemon),
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
    let done = match Arguments::parse().command {
        Command::Serve(args) => serve(args),
        Command::Save(transfer) => transfer.save(),
        Command::Load(transfer) => transfer.load(),
        Command::Continue(daemon) => daemon.go_on(),
        Command::Completions { shell } => completions(shell),
        Command::Man { folder } => man(&folder),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fermata-vfio: {error:#}");
            ExitCode::FAILURE
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
        let words = [
            "fermata-vfio",
            "serve",
            "--socket",
            "s",
            "--slots",
            "sha256,membench",
        ];
        assert!(Arguments::try_parse_from(words).is_ok());
    }
}
