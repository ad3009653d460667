// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermata-screen`: runs a program on a terminal in memory, types for it, and checks what it
//! shows. For tests. The commands are lines of standard input:
//!
//! | line | |
//! | --- | --- |
//! | `wait TEXT` | until TEXT is on the screen |
//! | `gone TEXT` | until it is not |
//! | `keys TEXT` | types it; `\e` is escape, `\r` Enter |
//! | `show` | prints the screen |
//! | `end` | waits until the program has ended; its status is ours |

use anyhow::{bail, Context as _, Result};
use clap::Parser;
use fermata_output::{complain, say};
use rustix::pty::{grantpt, openpt, ptsname, unlockpt, OpenptFlags};
use rustix::termios::{tcsetwinsize, Winsize};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::str::FromStr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Run a program on a terminal in memory; standard input has the commands.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// Size of the terminal in columns and lines; 0x0: the program is told no size, and the terminal
    /// has 80x24
    #[arg(long, default_value = "80x24")]
    size: Size,
    /// Time limit for waits, in seconds
    #[arg(long, default_value_t = 60)]
    patience: u64,
    /// The program and its arguments
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

/// Size of a terminal.
#[derive(Clone, Copy, Debug)]
struct Size {
    columns: u16,
    lines: u16,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().ok();
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

/// Executes a command. Returns the program's exit status if the program has ended.
fn execute(line: &str, terminal: &mut Terminal) -> Result<Option<ExitCode>> {
    let (verb, text) = line.split_once(' ').unwrap_or((line, ""));
    match verb {
        "wait" => terminal.wait(|screen| screen.contains(text))?,
        "gone" => terminal.wait(|screen| !screen.contains(text))?,
        "keys" => terminal.type_keys(&typed(text))?,
        "show" => say!("{}", terminal.contents()),
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
        let done = execute(&line, &mut terminal)
            .with_context(|| format!("`{line}`; on the screen:\n{}", terminal.contents()))?;
        if let Some(status) = done {
            return Ok(status);
        }
    }
    bail!("standard input has no `end`")
}

fn main() -> ExitCode {
    fermata_output::status(run(&Arguments::parse()).unwrap_or_else(|error| {
        complain!("fermata-screen: {error:#}");
        ExitCode::FAILURE
    }))
}

struct Drawn {
    parser: vt100::Parser,
    /// The program has closed the terminal.
    closed: bool,
}

struct Shared {
    drawn: Mutex<Drawn>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Drawn> {
        self.drawn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draw(&self, bytes: Option<&[u8]>) {
        let mut drawn = self.lock();
        match bytes {
            Some(bytes) => drawn.parser.process(bytes),
            None => drawn.closed = true,
        }
        self.changed.notify_all();
    }
}

/// A terminal in memory, and the program on it.
pub(crate) struct Terminal {
    keys: File,
    program: Child,
    shared: Arc<Shared>,
    patience: Duration,
}

/// Draws the program's output on the screen in memory.
fn draw_all(mut from: File, shared: &Shared) {
    let mut bytes = [0; 4096];
    loop {
        match from.read(&mut bytes) {
            Ok(0) | Err(_) => break, // EIO when the last one has closed it
            Ok(length) => shared.draw(Some(&bytes[..length])),
        }
    }
    shared.draw(None);
}

impl Terminal {
    pub(crate) fn start(
        columns: u16,
        lines: u16,
        patience: Duration,
        command: &[OsString],
    ) -> Result<Self> {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&ours)?;
        unlockpt(&ours)?;
        let size = Winsize {
            ws_row: lines,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&ours, size)?;
        let name = ptsname(&ours, Vec::new())?;
        let path = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
        let its = OpenOptions::new().read(true).write(true).open(path)?;
        let (name, arguments) = command.split_first().context("no program")?;
        let program = Command::new(name)
            .args(arguments)
            .env("TERM", "xterm-256color")
            .stdin(its.try_clone()?)
            .stdout(its)
            .stderr(Stdio::inherit())
            .spawn()
            .with_context(|| name.to_string_lossy().into_owned())?;
        let shared = Arc::new(Shared {
            drawn: Mutex::new(Drawn {
                parser: match (lines, columns) {
                    (0, _) | (_, 0) => vt100::Parser::new(24, 80, 0),
                    (lines, columns) => vt100::Parser::new(lines, columns, 0),
                },
                closed: false,
            }),
            changed: Condvar::new(),
        });
        let keys = File::from(ours);
        let (from, to) = (keys.try_clone()?, Arc::clone(&shared));
        std::thread::spawn(move || draw_all(from, &to));
        Ok(Self {
            keys,
            program,
            shared,
            patience,
        })
    }

    /// Returns the contents of the screen.
    pub(crate) fn contents(&self) -> String {
        self.shared.lock().parser.screen().contents()
    }

    /// Waits until the screen satisfies a condition.
    pub(crate) fn wait(&self, is_so: impl Fn(&str) -> bool) -> Result<()> {
        let until = Instant::now() + self.patience;
        let mut drawn = self.shared.lock();
        while !is_so(&drawn.parser.screen().contents()) {
            let left = until.saturating_duration_since(Instant::now());
            if drawn.closed {
                bail!("the program has ended before");
            }
            if left.is_zero() {
                bail!("nothing came of it");
            }
            let waited = self.shared.changed.wait_timeout(drawn, left);
            drawn = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    pub(crate) fn type_keys(&mut self, keys: &str) -> Result<()> {
        Ok(self.keys.write_all(keys.as_bytes())?)
    }

    /// Waits for the end of the program.
    pub(crate) fn end(&mut self) -> Result<ExitCode> {
        let until = Instant::now() + self.patience;
        let mut drawn = self.shared.lock();
        while !drawn.closed {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("the program does not end");
            }
            let waited = self.shared.changed.wait_timeout(drawn, left);
            drawn = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(drawn);
        let status = self.program.wait()?;
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The program may have ended.
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}
