// SPDX-License-Identifier: GPL-2.0
//! `fermata-screen`: runs a program on a terminal in memory, types for it, and looks at what it shows. For tests; what to do
//! comes as lines of standard input:
//!
//! | line | |
//! | --- | --- |
//! | `wait TEXT` | until TEXT is on the screen |
//! | `gone TEXT` | until it is not |
//! | `keys TEXT` | types it; `\e` is escape, `\r` Enter |
//! | `show` | prints the screen |
//! | `end` | waits until the program has ended; its status is ours |

mod terminal;

use anyhow::{bail, Context as _, Result};
use clap::Parser;
use std::ffi::OsString;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;
use terminal::Terminal;

/// Run a program on a terminal in memory; what to do comes as lines of standard input.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// Columns and lines
    #[arg(long, default_value = "80x24")]
    size: Size,
    /// Seconds after which nothing is waited for any more
    #[arg(long, default_value_t = 60)]
    patience: u64,
    /// The program and its arguments
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

/// Of a terminal.
#[derive(Clone, Copy, Debug)]
struct Size {
    columns: u16,
    lines: u16,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().ok().filter(|number| *number > 0);
        text.split_once('x')
            .and_then(|(columns, lines)| {
                Some(Self {
                    columns: number(columns)?,
                    lines: number(lines)?,
                })
            })
            .ok_or_else(|| "not COLUMNSxLINES".into())
    }
}

fn typed(text: &str) -> String {
    text.replace("\\e", "\x1b").replace("\\r", "\r")
}

/// Does what a line says. `Some`: the program's exit status.
fn follow(line: &str, terminal: &mut Terminal) -> Result<Option<ExitCode>> {
    let (verb, text) = line.split_once(' ').unwrap_or((line, ""));
    match verb {
        "wait" => terminal.wait(|screen| screen.contains(text))?,
        "gone" => terminal.wait(|screen| !screen.contains(text))?,
        "keys" => terminal.type_keys(&typed(text))?,
        "show" => println!("{}", terminal.contents()),
        "end" => return terminal.end().map(Some),
        _ => bail!("nothing that can be done"),
    }
    Ok(None)
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Size { columns, lines } = arguments.size;
    let patience = Duration::from_secs(arguments.patience);
    let mut terminal = Terminal::start(columns, lines, patience, &arguments.command)?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let done = follow(&line, &mut terminal)
            .with_context(|| format!("`{line}`; on the screen:\n{}", terminal.contents()))?;
        if let Some(status) = done {
            return Ok(status);
        }
    }
    bail!("standard input has no `end`")
}

fn main() -> ExitCode {
    run(&Arguments::parse()).unwrap_or_else(|error| {
        eprintln!("fermata-screen: {error:#}");
        ExitCode::FAILURE
    })
}
