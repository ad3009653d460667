// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermata-vfio`: serves a card to a virtual machine by vfio-user. The jobs of the card's slots run
//! in contexts on the host's card.
//!
//! A guest can cause any number of messages about what it does, so their rate is limited: the lines
//! beyond the limit are only counted.

mod context;
mod control;
mod serve;
mod slot;
mod state_file;

use clap::{Parser, Subcommand};
use control::{Daemon, Transfer};
use fermata_command_line::OfParser;
use fermata_output::complain;
use serve::{serve, Serve};
use std::fmt;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

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
    /// Stop the card of a paused virtual machine, and write the state of the card to a file
    Save(Transfer),
    /// Load the state of a card into the card of a paused virtual machine; that card then continues
    Load(Transfer),
    /// Let a card that was stopped by `save` continue
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
    fermata_output::end("fermata-vfio", done.map(|()| true))
}

/// Lines that are printed in each period.
const LINES: u32 = 10;
const PERIOD: Duration = Duration::from_secs(10);

/// The lines of a period.
struct Limit {
    began: Option<Instant>,
    printed: u32,
    left_out: u64,
}

static LIMIT: Mutex<Limit> = Mutex::new(Limit::NEW);

/// Prints a line to the error output, unless there have been many lines lately.
fn tell(line: fmt::Arguments<'_>) {
    let admitted = {
        let mut limit = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
        limit.admit(Instant::now())
    };
    match admitted {
        None => {}
        Some(0) => complain!("fermata-vfio: {line}"),
        Some(left_out) => {
            complain!("fermata-vfio: {line} ({left_out} lines before were left out)");
        }
    }
}

impl Limit {
    /// The limit before the first line.
    const NEW: Self = Self {
        began: None,
        printed: 0,
        left_out: 0,
    };

    /// Returns how many lines were left out before this one; `None`: this line is left out too.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self
            .began
            .is_none_or(|began| now.duration_since(began) >= PERIOD)
        {
            (self.began, self.printed) = (Some(now), 0);
        }
        if self.printed == LINES {
            self.left_out += 1;
            return None;
        }
        self.printed += 1;
        Some(std::mem::take(&mut self.left_out))
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

    #[test]
    fn a_period_has_so_many_lines_and_the_others_are_counted() {
        let mut limit = Limit::NEW;
        let begin = Instant::now();
        for _ in 0..LINES {
            assert_eq!(limit.admit(begin), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(limit.admit(begin + PERIOD / 2), None);
        }
        assert_eq!(limit.admit(begin + PERIOD), Some(7));
        assert_eq!(limit.admit(begin + PERIOD), Some(0));
    }
}
