// SPDX-License-Identifier: GPL-2.0-or-later
//! `fermatactl`: see and control accelerator cards that programs share (docs/fermatactl.md).
//!
//! This file has the parser, from which shell completions and man pages are generated, and the
//! report of a command line that cannot be parsed; the files in `command/` have the commands. A
//! command reads cards by [`card`] and [`view`], and prints its answer by [`trouble::Out`] as text or
//! as JSON.

// Doc comments of arguments are the text of the help.
#![allow(clippy::doc_markdown)]

mod advice;
mod card;
mod cgroup;
mod command;
mod format;
mod node;
mod process;
mod terminal;
mod trouble;
mod value;
mod view;
mod why;

use crate::command::Command;
use crate::trouble::{Out, Result, Trouble};
use clap::Parser;
use fermata_command_line::OfParser;
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error, std::env::args_os()),
    };
    let out = Out::new(arguments.json);
    let done = match &arguments.command {
        Some(command) => command.run(out),
        None => command::overview::run(out).map(|()| command::Ending::Done),
    };
    match done {
        Ok(ending) => ending.into(),
        Err(trouble) if trouble.is_closed_output() => ExitCode::SUCCESS,
        Err(trouble) => {
            out.complain(&trouble);
            trouble.status()
        }
    }
}

/// See and control accelerator cards that programs share.
///
/// A card is named by its number (0), its name (fermata0) or its device (/dev/fermata0); a context,
/// which is one program's use of the card, by the number that `fermatactl list` shows.
///
/// Without a command, one screen shows the cards, who runs, and who waits and why.
#[derive(Debug, Parser)]
#[command(name = "fermatactl", version, max_term_width = 100)]
#[command(after_help = "Exit status: 0 done, 1 not done, 2 wrong arguments, 3 a job failed.")]
pub(crate) struct Arguments {
    /// Answer in JSON, one value a line; an error goes to standard error, in JSON too
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// Prints the error and returns the exit status. Help and version, which clap also returns as
/// errors, are printed as text.
pub(crate) fn refuse(error: &clap::Error, words: impl Iterator<Item = OsString>) -> ExitCode {
    if error.use_stderr() && asks_for_json(words) {
        let trouble = trouble_of(error);
        Out::new(true).complain(&trouble);
        return trouble.status();
    }
    let _ = error.print();
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Returns whether the words include `--json`. Words after `--` belong to another command.
fn asks_for_json(words: impl Iterator<Item = OsString>) -> bool {
    let mut ours = words.take_while(|word| word != "--");
    ours.any(|word| word == "--json")
}

/// Converts clap's error: the first paragraph is the cause; tip, usage and the option for help
/// follow.
fn trouble_of(error: &clap::Error) -> Trouble {
    let text = error.render().to_string();
    let (wrong, rest) = text.split_once("\n\n").unwrap_or((&text, ""));
    let wrong = wrong.strip_prefix("error: ").unwrap_or(wrong);
    Trouble::wrong_arguments(one_line(wrong), one_line(rest))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Prints completions, or writes manual pages.
pub(crate) fn write(command: &OfParser) -> Result<()> {
    command.write::<Arguments>().map_err(|error| match command {
        OfParser::Completions { .. } => error.into(),
        OfParser::Man { folder } => Trouble::of_file(folder, &error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::error::ErrorKind;
    use clap::{CommandFactory, Parser};

    #[test]
    fn parser_is_consistent() {
        Arguments::command().debug_assert();
    }

    /// Options and arguments that are numbers or times: a value outside of the range, and what the
    /// error says about the range. Options whose range depends on the engine are tested in
    /// `command/run/job.rs`.
    const NUMBERS: [(&str, &str, &str, &str); 50] = [
        ("info", "context", "0 0", "1 to 4294967295"),
        ("stats", "context", "0 0", "1 to 4294967295"),
        ("preempt", "contexts", "0 7 0", "1 to 4294967295"),
        ("hold", "contexts", "0 7 0", "1 to 4294967295"),
        ("resume", "contexts", "0 7 4294967296", "1 to 4294967295"),
        ("disable", "contexts", "0 -- -1", "1 to 4294967295"),
        ("enable", "contexts", "0 7 0", "1 to 4294967295"),
        ("hint", "context", "0 0 1ms", "1 to 4294967295"),
        ("hint", "when", "0 7 0", "1us to 10s"),
        ("hint", "when", "0 7 11s", "1us to 10s"),
        ("run", "hint", "sha256 --hint 0", "1us to 10s"),
        ("run", "hint", "sha256 --hint 11s", "1us to 10s"),
        ("run", "repeat", "sha256 --repeat 0", "1 or more"),
        (
            "run",
            "tag",
            "sha256 --tag 18446744073709551616",
            "in decimal or as 0x",
        ),
        (
            "run",
            "seed",
            "sha256 --seed 18446744073709551616",
            "in decimal or as 0x",
        ),
        (
            "run",
            "count",
            "sha256 --count 18446744073709551616",
            "in decimal or as 0x",
        ),
        (
            "run",
            "arg",
            "sha256 --arg 18446744073709551616",
            "in decimal or as 0x",
        ),
        ("run", "block", "sha256 --block 0", "64 to 65536"),
        ("run", "block", "sha256 --block 100", "64 to 65536"),
        ("run", "first", "sha256 --first 16", "0 to 15"),
        ("run", "arena", "sha256 --arena 0", "1 to 140737488355328"),
        ("run", "result", "sha256 --result 0x28", "0x30 to 0xff8"),
        ("run", "reg", "sha256 --reg 0x31=0", "0x30 to 0xff8"),
        ("run", "set", "sha256 --set weight=0", "1 to 10000"),
        ("check-engine", "runs", "sha256 f --runs 0", "1 or more"),
        (
            "check-engine",
            "seed",
            "sha256 f --seed 18446744073709551616",
            "in decimal or as 0x",
        ),
        (
            "check-engine",
            "set",
            "sha256 f --set weight=0",
            "1 to 10000",
        ),
        ("top", "interval", "-i 99ms", "100ms to 1h00m"),
        ("top", "interval", "-i 2h", "100ms to 1h00m"),
        ("top", "count", "--count 0", "1 or more"),
        ("trace", "duration", "--duration 0s", "1ms or more"),
        ("trace", "buffer", "--buffer 63", "64 to 1048576"),
        ("set", "words", "0 0 weight=1", "1 to 4294967295"),
        ("set", "words", "0 7 timeslice=99us", "100us to 10s"),
        ("set", "words", "0 7 preempt-timeout=11s", "1ms to 10s"),
        ("set", "words", "0 7 priority=32", "0 to 31"),
        ("set", "words", "0 7 weight=10001", "1 to 10000"),
        ("set", "words", "0 7 cap=101", "0 to 100"),
        ("set", "words", "0 7 slots=0,8", "0 to 7"),
        (
            "set",
            "words",
            "0 7 reservation=99us/5ms/10ms",
            "100us to 5ms",
        ),
        (
            "set",
            "words",
            "0 7 reservation=2ms/11ms/10ms",
            "100us to 10ms",
        ),
        ("set", "words", "0 7 reservation=2ms/5ms/11s", "1ms to 10s"),
        ("set", "words", "0 boost=9ms", "10ms to 60s, or 0 for none"),
        ("set", "words", "0 boost=10500us", "whole milliseconds"),
        ("group", "weight", "0 / --weight 0", "1 to 10000"),
        ("group", "max_priority", "0 / --max-priority 32", "0 to 31"),
        ("group", "cap", "0 / --cap 801", "0 to 800"),
        (
            "group",
            "max_contexts",
            "0 / --max-contexts 65537",
            "0 to 65536",
        ),
        ("group", "max_bytes", "0 / --max-bytes 16E", "a size"),
        ("group", "exclusive", "0 / --exclusive 8", "0 to 7"),
    ];
    /// Options and arguments with other values.
    const NO_NUMBERS: [&str; 26] = [
        "access",
        "card",
        "cards",
        "cgroup",
        "children",
        "command",
        "engine",
        "file",
        "filter",
        "folder",
        "listen",
        "no_children",
        "op",
        "output",
        "raw",
        "remove",
        "shell",
        "socket",
        "source",
        "sort",
        "svg",
        "user",
        "text",
        "json",
        "random",
        "replayable",
    ];

    #[test]
    fn numbers_out_of_range_are_refused_with_the_range() {
        for (command, id, words, range) in NUMBERS {
            let words = ["fermatactl", command].into_iter().chain(words.split(' '));
            let error = Arguments::try_parse_from(words.clone()).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.kind(), ErrorKind::ValueValidation, "{text}");
            assert!(text.contains(range), "{text}");
            let mut parser = Arguments::command();
            parser.build();
            let parser = parser.find_subcommand(command).unwrap();
            let mut arguments = parser.get_arguments();
            let argument = arguments.find(|argument| argument.get_id() == id);
            let name = argument.unwrap().to_string();
            assert!(text.contains(&name), "{name}: {text}");
        }
    }

    #[test]
    fn no_number_is_left_out() {
        for command in Arguments::command().get_subcommands() {
            for argument in command.get_arguments() {
                let (name, id) = (command.get_name(), argument.get_id().as_str());
                let is_tried = NUMBERS
                    .iter()
                    .any(|number| (number.0, number.1) == (name, id));
                let takes_value = argument.get_action().takes_values();
                assert!(
                    is_tried || !takes_value || NO_NUMBERS.contains(&id),
                    "{name} {id}"
                );
            }
        }
    }

    fn error_of(line: &str) -> clap::Error {
        let words = std::iter::once("fermatactl").chain(line.split_whitespace());
        Arguments::try_parse_from(words).unwrap_err()
    }

    fn words(line: &str) -> impl Iterator<Item = OsString> + '_ {
        line.split_whitespace().map(OsString::from)
    }

    #[test]
    fn json_is_asked_for_before_the_command_that_is_run() {
        assert!(asks_for_json(words("--json list 7")));
        assert!(asks_for_json(words("list 7 --json")));
        assert!(!asks_for_json(words("list 7")));
        assert!(!asks_for_json(words("trace -- program --json")));
    }

    #[test]
    fn wrong_arguments_have_error_and_advice() {
        let table = [
            (
                "--json nonsense",
                "unrecognized subcommand 'nonsense'",
                "--help",
            ),
            (
                "--json hold 0",
                "required arguments were not provided: <CONTEXT>...",
                "Usage: fermatactl hold",
            ),
            (
                "--json hold 0 0",
                "invalid value '0' for '<CONTEXT>...'",
                "--help",
            ),
            ("--json list x", "a card is a number (0)", "--help"),
            (
                "--json list --nothing",
                "unexpected argument '--nothing' found",
                "Usage: fermatactl list",
            ),
            (
                "--json top --sort sate",
                "[possible values: context, state,",
                "a similar value exists: 'state'",
            ),
            (
                "--json top --once -n 1",
                "'--once' cannot be used with '--count <N>'",
                "Usage: fermatactl top",
            ),
            ("--json run sha256 --repeat 0", "give 1 or more", "--help"),
        ];
        for (line, error, advice) in table {
            let trouble = trouble_of(&error_of(line));
            let json = serde_json::to_value(&trouble).unwrap();
            let text = |member: &str| json[member].as_str().unwrap().to_string();
            assert!(
                text("error").contains(error) && text("advice").contains(advice),
                "{json}"
            );
            assert_eq!(trouble.status(), ExitCode::from(2));
        }
    }
}
