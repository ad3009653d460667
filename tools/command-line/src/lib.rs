// SPDX-License-Identifier: GPL-2.0-or-later
//! Commands that programs have besides their own: shell completions and manual pages, generated
//! from the parser.

use anyhow::{Context as _, Result};
use clap::{CommandFactory, Subcommand};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Date of the last change of the pages: the date of the build would make builds differ.
const CHANGED: &str = "2026-11-27";

/// Commands that print or write descriptions of the parser.
#[derive(Debug, Subcommand)]
pub enum OfParser {
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

impl OfParser {
    /// Executes the command for the parser `P`.
    ///
    /// # Errors
    ///
    /// The output or a page could not be written. For a page the error names the folder.
    pub fn run<P: CommandFactory>(&self) -> Result<()> {
        let written = self.write::<P>();
        match self {
            Self::Completions { .. } => Ok(written?),
            Self::Man { folder } => written.with_context(|| folder.display().to_string()),
        }
    }

    /// Like [`OfParser::run`], but returns the error as it is.
    ///
    /// # Errors
    ///
    /// The output, or a page, could not be written.
    pub fn write<P: CommandFactory>(&self) -> io::Result<()> {
        let mut parser = P::command();
        match self {
            Self::Completions { shell } => {
                let (name, mut text) = (parser.get_name().to_owned(), Vec::new());
                clap_complete::generate(*shell, &mut parser, name, &mut text);
                io::stdout().lock().write_all(&text)
            }
            Self::Man { folder } => {
                let mut parser = parser.disable_help_subcommand(true);
                parser.build();
                write_pages(&parser, folder)
            }
        }
    }
}

/// Writes the pages of a command and of its subcommands.
fn write_pages(command: &clap::Command, folder: &Path) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    clap_mangen::Man::new(command.clone())
        .title(name.to_uppercase())
        .date(CHANGED)
        .source(concat!("fermata ", env!("CARGO_PKG_VERSION")))
        .manual("User Commands")
        .generate_to(folder)?;
    let mut subcommands = command.get_subcommands();
    subcommands.try_for_each(|command| write_pages(command, folder))
}
