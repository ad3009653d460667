// SPDX-License-Identifier: GPL-2.0-or-later
//! Commands that programs have besides their own: completions and manual pages, made of the parser.

use anyhow::{Context as _, Result};
use clap::{CommandFactory, Subcommand};
use std::io::Write as _;
use std::path::PathBuf;

/// Commands that tell of the parser.
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
    /// Carries out the command for the parser `P`.
    pub fn run<P: CommandFactory>(&self) -> Result<()> {
        let mut parser = P::command();
        match self {
            Self::Completions { shell } => {
                let (name, mut text) = (parser.get_name().to_owned(), Vec::new());
                clap_complete::generate(*shell, &mut parser, name, &mut text);
                Ok(std::io::stdout().lock().write_all(&text)?)
            }
            Self::Man { folder } => clap_mangen::generate_to(parser, folder)
                .with_context(|| folder.display().to_string()),
        }
    }
}
