// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermatactl completions` and `fermatactl man`, for packages: generated from the parser.

use crate::arguments::Arguments;
use crate::trouble::{Result, Trouble};
use clap::CommandFactory;
use std::io::Write;
use std::path::PathBuf;

/// Print completions of commands and options for a shell
#[derive(Debug, clap::Args)]
pub(crate) struct Completions {
    /// The shell
    shell: clap_complete::Shell,
}

impl Completions {
    pub(crate) fn run(&self) -> Result<()> {
        let mut text = Vec::new();
        clap_complete::generate(
            self.shell,
            &mut Arguments::command(),
            "fermatactl",
            &mut text,
        );
        Ok(std::io::stdout().lock().write_all(&text)?)
    }
}

/// Date of the last change of the pages: the date of the build would make builds differ.
const CHANGED: &str = "2026-11-23";

/// Write the manual pages to a folder, a page for each command
#[derive(Debug, clap::Args)]
pub(crate) struct Man {
    /// An existing folder
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl Man {
    pub(crate) fn run(&self) -> Result<()> {
        let mut command = Arguments::command().disable_help_subcommand(true);
        command.build();
        let written = self.write(&command);
        written.map_err(|error| Trouble::of_file(&self.folder, &error))
    }

    /// Writes the pages of a command and of its subcommands.
    fn write(&self, command: &clap::Command) -> std::io::Result<()> {
        let name = command.get_display_name().unwrap_or(command.get_name());
        clap_mangen::Man::new(command.clone())
            .title(name.to_uppercase())
            .date(CHANGED)
            .source(concat!("fermata ", env!("CARGO_PKG_VERSION")))
            .manual("User Commands")
            .generate_to(&self.folder)?;
        command
            .get_subcommands()
            .try_for_each(|command| self.write(command))
    }
}
