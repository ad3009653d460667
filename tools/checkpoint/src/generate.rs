// SPDX-License-Identifier: GPL-2.0
//! What packages install beside the program, made of its parser.

use crate::Arguments;
use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use std::io::Write as _;
use std::path::Path;

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<()> {
    let (mut parser, mut text) = (Arguments::command(), Vec::new());
    let name = parser.get_name().to_owned();
    clap_complete::generate(shell, &mut parser, name, &mut text);
    Ok(std::io::stdout().lock().write_all(&text)?)
}

/// Writes a page for each command to a folder that is there.
pub(crate) fn man(folder: &Path) -> Result<()> {
    let written = clap_mangen::generate_to(Arguments::command(), folder);
    written.with_context(|| folder.display().to_string())
}
