// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermatactl`: see and control accelerator cards that programs share (docs/fermatactl.md).
//!
//! [`arguments`] is the parser, of which shell completions and man pages are made, too; each
//! command is a file below `command/`. A command looks at cards through [`card`], and gives what it
//! has found as a value of [`view`], which [`out`] prints as text or as JSON.

// Those of arguments are shown to people as they stand.
#![allow(clippy::doc_markdown)]

mod advice;
mod arguments;
mod card;
mod command;
mod format;
mod node;
mod number;
mod out;
mod process;
mod progress;
mod setting;
mod trouble;
mod view;

use arguments::Arguments;
use clap::Parser;
use out::Out;
use std::process::ExitCode;

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
