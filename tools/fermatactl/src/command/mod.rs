// SPDX-License-Identifier: GPL-2.0-or-later
//! The commands: arguments and execution.

mod cdi;
mod check_engine;
mod control;
mod dump;
mod exporter;
mod groups;
mod info;
pub(crate) mod overview;
mod run;
mod top;
mod trace;

use crate::trouble::{Out, Result};
use clap::Subcommand;
use fermata_command_line::OfParser;
use std::process::ExitCode;

/// The result of a command that was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Success.
    Done,
    /// The exit status of the command that was run.
    Command(u8),
}

impl From<Ending> for ExitCode {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Done => Self::SUCCESS,
            Ending::Command(status) => status.into(),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    List(info::List),
    Info(info::Info),
    Run(Box<run::Run>),
    CheckEngine(check_engine::CheckEngine),
    Top(top::Top),
    Set(control::Set),
    Group(control::Group),
    Guests(info::Guests),
    Cdi(cdi::Cdi),
    Exporter(exporter::Exporter),
    Preempt(control::Preempt),
    Hold(control::Hold),
    Resume(control::Resume),
    Disable(control::Disable),
    Enable(control::Enable),
    Hint(control::Hint),
    Stats(info::Stats),
    Trace(trace::Trace),
    Dump(dump::Dump),
    #[command(flatten)]
    OfParser(OfParser),
}

impl Command {
    pub(crate) fn run(&self, out: Out) -> Result<Ending> {
        match self {
            Self::List(command) => command.run(out)?,
            Self::Info(command) => command.run(out)?,
            Self::Run(command) => command.run(out)?,
            Self::CheckEngine(command) => command.run(out)?,
            Self::Top(command) => command.run(out)?,
            Self::Set(command) => command.run(out)?,
            Self::Group(command) => command.run(out)?,
            Self::Guests(command) => command.run(out)?,
            Self::Cdi(command) => command.run(out)?,
            Self::Exporter(command) => command.run()?,
            Self::Preempt(command) => command.run(out)?,
            Self::Hold(command) => command.run(out)?,
            Self::Resume(command) => command.run(out)?,
            Self::Disable(command) => command.run(out)?,
            Self::Enable(command) => command.run(out)?,
            Self::Hint(command) => command.run(out)?,
            Self::Stats(command) => command.run(out)?,
            Self::Dump(command) => command.run(out)?,
            Self::Trace(command) => return command.run(out),
            Self::OfParser(command) => crate::write(command)?,
        }
        Ok(Ending::Done)
    }
}
