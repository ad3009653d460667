// SPDX-License-Identifier: GPL-2.0
//! The command line: what is parsed, and what shell completions and man pages are made of.

use crate::command::Command;
use clap::Parser;

/// See and control accelerator cards that programs share.
///
/// A card is named by its number (0), its name (fermata0) or its device (/dev/fermata0); a context, which is one program's use of
/// the card, by the number that `fermatactl list` shows.
#[derive(Debug, Parser)]
#[command(name = "fermatactl", version, max_term_width = 100)]
#[command(after_help = "Exit status: 0 done, 1 not done, 2 wrong arguments, 3 a job failed.")]
pub(crate) struct Arguments {
    /// Answer in JSON, one value a line; an error goes to standard error, in JSON too
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn parser_is_consistent() {
        Arguments::command().debug_assert();
    }
}
