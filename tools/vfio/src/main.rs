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

use clap::{Parser, Subcommand};
use fermata_command_line::OfParser;
use options::Serve;
use remote::{Daemon, Transfer};
use serve::serve;
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
    #[command(flatten)]
    OfParser(OfParser),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Serve(args) => serve(args),
        Command::Save(transfer) => transfer.save(),
        Command::Load(transfer) => transfer.load(),
        Command::Continue(daemon) => daemon.go_on(),
        Command::OfParser(command) => command.run::<Arguments>(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fermata-vfio: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

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
