// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermatactl`: see and control accelerator cards that programs share (docs/fermatactl.md).
//!
//! [`arguments`] has the parser, from which shell completions and man pages are generated; the
//! files in `command/` have the commands. A command reads cards by [`card`] and [`view`], and
//! prints its answer by [`trouble::Out`] as text or as JSON.

// Doc comments of arguments are the text of the help.
#![allow(clippy::doc_markdown)]

mod advice;
mod arguments;
mod card;
mod command;
mod format;
mod node;
mod number;
mod process;
mod progress;
mod setting;
mod trouble;
mod view;

use arguments::Arguments;
use clap::Parser;
use std::process::ExitCode;
use trouble::Out;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return arguments::refuse(&error, std::env::args_os()),
    };
    let out = Out::new(arguments.json);
    match arguments.command.run(out) {
        Ok(ending) => ending.into(),
        Err(trouble) if trouble.is_closed_output() => ExitCode::SUCCESS,
        Err(trouble) => {
            out.complain(&trouble);
            trouble.status()
        }
    }
}
