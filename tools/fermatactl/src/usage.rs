// SPDX-License-Identifier: GPL-2.0
//! Reports a command line that cannot be parsed: as clap prints the error, or with `--json` in the form of all other errors.

use crate::out::Out;
use crate::trouble::Trouble;
use std::ffi::OsString;
use std::process::ExitCode;

/// Prints the error and returns the exit status. Help and version, which clap hands over as errors, too, are printed as text.
pub(crate) fn refuse(error: &clap::Error, words: impl Iterator<Item = OsString>) -> ExitCode {
    if error.use_stderr() && asks_for_json(words) {
        let trouble = trouble_of(error);
        Out::new(true).complain(&trouble);
        return trouble.status();
    }
    let _ = error.print();
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Whether `--json` is given; behind `--` are the words of another command.
fn asks_for_json(words: impl Iterator<Item = OsString>) -> bool {
    let mut ours = words.take_while(|word| word != "--");
    ours.any(|word| word == "--json")
}

/// clap's first paragraph is what is wrong; tip, usage and the option for help come after.
fn trouble_of(error: &clap::Error) -> Trouble {
    let text = error.render().to_string();
    let (wrong, rest) = text.split_once("\n\n").unwrap_or((&text, ""));
    let wrong = wrong.strip_prefix("error: ").unwrap_or(wrong);
    Trouble::wrong_arguments(one_line(wrong), one_line(rest))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;
    use clap::Parser;

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
            ("--json", "requires a subcommand", "--help"),
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
