// SPDX-License-Identifier: GPL-2.0-or-later
//! What programs print and write.
//!
//! `println!` and `eprintln!` panic if the disk is full or the reader of a pipe has gone, which ends
//! a program in the middle of its work. [`say!`] and [`complain!`] do not; clippy refuses the others
//! (`print_stdout` and `print_stderr` in Cargo.toml). [`file`] has files that are written completely
//! or not at all, [`text`] shows texts of strangers.

pub mod file;
pub mod text;

use std::fmt::{self, Write as _};
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::Mutex;

/// Why a part of the output is missing.
static LOST: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints a line to standard output, like `println!`, but never panics: [`status`] tells at the end
/// what was lost. Characters that a terminal acts on are escaped.
#[macro_export]
macro_rules! say {
    ($($argument:tt)*) => { $crate::print(::core::format_args!($($argument)*)) };
}

/// Prints a line to standard error, like `eprintln!`, but never panics. Characters that a terminal
/// acts on are escaped.
#[macro_export]
macro_rules! complain {
    ($($argument:tt)*) => { $crate::print_error(::core::format_args!($($argument)*)) };
}

/// Prints a line to standard output; see [`say!`].
pub fn print(line: fmt::Arguments<'_>) {
    if let Err(error) = put(&mut io::stdout().lock(), line) {
        // A thread that panics while it holds the lock is impossible.
        if let Ok(mut lost) = LOST.lock() {
            lost.get_or_insert(error);
        }
    }
}

/// Prints a line to standard error; see [`complain!`].
pub fn print_error(line: fmt::Arguments<'_>) {
    // There is no better place to tell of the failure.
    let _ = put(&mut io::stderr().lock(), line);
}

/// Writes a line, in one piece if the file takes it.
fn put(file: &mut impl Write, line: fmt::Arguments<'_>) -> io::Result<()> {
    let mut text = String::new();
    // A value that cannot be formatted ends the line.
    let _ = text.write_fmt(line);
    text.push('\n');
    file.write_all(text::printable_lines(&text).as_bytes())?;
    file.flush()
}

/// Returns the exit status of a program that ends with `code`: a failure if a part of its output is
/// lost. A reader that has closed standard output, as in `| head -1`, is none; a full disk is one.
pub fn status(code: ExitCode) -> ExitCode {
    let lost = LOST.lock().ok().and_then(|mut lost| lost.take());
    match lost {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => {
            complain!("standard output: {error}");
            if code == ExitCode::SUCCESS {
                return ExitCode::FAILURE;
            }
        }
        _ => {}
    }
    code
}

/// Returns the [`status`] of a program that has done what it should, or not, or has failed. Prints
/// the error.
pub fn end(program: &str, done: Result<bool, impl fmt::Display>) -> ExitCode {
    status(match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            complain!("{program}: {error:#}");
            ExitCode::FAILURE
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_written_whole_and_do_nothing_to_a_terminal() {
        let mut written = Vec::new();
        put(&mut written, format_args!("a\tb {}\n c", "\x1b[2J")).unwrap();
        assert_eq!(written, b"a\tb \\x1b[2J\n c\n");
    }

    #[test]
    fn a_full_disk_is_an_error_and_a_closed_pipe_is_none() {
        let mut full = std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let keep = |error: io::Error| *LOST.lock().unwrap() = Some(error);
        assert_eq!(status(ExitCode::SUCCESS), ExitCode::SUCCESS);
        for (code, expected) in [(0, ExitCode::FAILURE), (75, ExitCode::from(75))] {
            keep(put(&mut full, format_args!("text")).unwrap_err());
            assert_eq!(status(ExitCode::from(code)), expected);
        }
        let (reader, mut pipe) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(reader);
        for (done, expected) in [(Ok(true), 0), (Ok(false), 1), (Err("why"), 1)] {
            keep(put(&mut pipe, format_args!("text")).unwrap_err());
            assert_eq!(end("test", done), ExitCode::from(expected));
        }
    }
}
