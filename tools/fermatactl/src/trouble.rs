// SPDX-License-Identifier: GPL-2.0-or-later
//! The output of commands: answers, as text or as JSON, and errors with advice. The error of a
//! command with several targets also tells which targets were done.

use crate::advice::{self, Call};
use fermata::Error;
use fermata_output::{complain, text};
use serde::Serialize;
use std::fmt;
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::process::ExitCode;

pub(crate) type Result<T> = std::result::Result<T, Trouble>;

/// An error.
#[derive(Debug, Serialize)]
pub(crate) struct Trouble {
    /// Object and cause.
    error: String,
    /// Remedy.
    advice: String,
    /// Progress of a command with several targets.
    #[serde(flatten)]
    progress: Option<Progress>,
    #[serde(skip)]
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The command failed.
    NotDone,
    /// The command line asks for something that does not exist.
    WrongArguments,
    /// The command was executed, and the job has failed.
    JobFailed,
    /// The caller may not open a card.
    NotPermitted,
    /// The card is gone, or has no node.
    Gone,
    /// The reader of the output has closed it.
    ClosedOutput,
}

impl Trouble {
    pub(crate) fn new(error: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            error: error.into(),
            advice: advice.into(),
            progress: None,
            kind: Kind::NotDone,
        }
    }

    /// Returns the error for arguments that exclude each other, or that the engine does not take.
    pub(crate) fn wrong_arguments(error: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            kind: Kind::WrongArguments,
            ..Self::new(error, advice)
        }
    }

    /// Returns the error for a job that did not finish.
    pub(crate) fn job_failed(error: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            kind: Kind::JobFailed,
            ..Self::new(error, advice)
        }
    }

    /// Returns the error for a card that the caller may not open.
    pub(crate) fn not_permitted(error: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            kind: Kind::NotPermitted,
            ..Self::new(error, advice)
        }
    }

    /// Returns the error for a card that is gone, or has no node.
    pub(crate) fn gone(error: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            kind: Kind::Gone,
            ..Self::new(error, advice)
        }
    }

    /// Returns the error for a refused call; `doing` describes the action.
    pub(crate) fn of_call(doing: &str, call: Call, error: Error) -> Self {
        let (cause, remedy) = advice::explain(call, error);
        let make = match error {
            Error::Gone => Self::gone,
            _ => Self::new,
        };
        make(format!("{doing}: {cause}"), remedy)
    }

    /// Returns the error for a file.
    pub(crate) fn of_file(path: &Path, error: &std::io::Error) -> Self {
        let advice = match error.kind() {
            ErrorKind::NotFound => without(path),
            ErrorKind::PermissionDenied => {
                "`ls -ld` shows who may use the file and its folder: run \
                 the command as that user, or name another file"
                    .into()
            }
            ErrorKind::StorageFull => {
                "free space on this file system, or name a file on another one".into()
            }
            _ => "name another file".into(),
        };
        let path = text::printable(&path.to_string_lossy());
        Self::new(format!("{path}: {error}"), advice)
    }

    /// Adds another advice.
    pub(crate) fn or(self, advice: &str) -> Self {
        Self {
            advice: format!("{}\n  {advice}", self.advice),
            ..self
        }
    }

    /// Adds the progress of the command.
    pub(crate) fn with(self, progress: Progress) -> Self {
        Self {
            progress: Some(progress),
            ..self
        }
    }

    /// Returns the exit status.
    pub(crate) fn status(&self) -> ExitCode {
        match self.kind {
            Kind::NotDone | Kind::NotPermitted | Kind::Gone => ExitCode::FAILURE,
            Kind::WrongArguments => ExitCode::from(2),
            Kind::JobFailed => ExitCode::from(3),
            Kind::ClosedOutput => ExitCode::SUCCESS,
        }
    }

    /// Returns whether the caller may not open the card, or the card is gone.
    pub(crate) fn is_without_card(&self) -> bool {
        matches!(self.kind, Kind::NotPermitted | Kind::Gone)
    }

    /// Returns whether the reader has closed the output, as in `fermatactl list | head -1`.
    pub(crate) fn is_closed_output(&self) -> bool {
        self.kind == Kind::ClosedOutput
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.error)?;
        let progress = self.progress.as_ref().map(ToString::to_string);
        if let Some(progress) = progress.filter(|text| !text.is_empty()) {
            writeln!(f, "  {progress}")?;
        }
        write!(f, "  {}", self.advice)
    }
}

/// Returns the advice for a path that does not exist: which part of it is missing.
fn without(path: &Path) -> String {
    let named = |path: &Path| text::printable(&path.to_string_lossy());
    let mut folders: Vec<_> = path.ancestors().skip(1).collect();
    folders.retain(|folder| *folder != Path::new(""));
    let missing = folders.iter().rev().find(|folder| !folder.exists());
    match (missing, folders.first()) {
        (Some(missing), _) => format!(
            "there is no folder {}: make it (`mkdir -p`), or name another path",
            named(missing)
        ),
        (None, Some(folder)) => format!(
            "there is no such file in {}: `ls` shows what is there",
            named(folder)
        ),
        (None, None) => {
            "there is no such file in the present folder: `ls` shows what is there".into()
        }
    }
}

/// Errors of the output; errors of other files are made by [`Trouble::of_file`].
impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        let is_closed = error.kind() == ErrorKind::BrokenPipe;
        Self {
            kind: if is_closed {
                Kind::ClosedOutput
            } else {
                Kind::NotDone
            },
            ..Self::of_file(Path::new("standard output"), &error)
        }
    }
}

/// The form of answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    json: bool,
}

impl Out {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// Prints an answer as JSON, or as the text that `text_of` returns.
    pub(crate) fn show<T: Serialize>(
        self,
        answer: &T,
        text_of: impl FnOnce(&T) -> String,
    ) -> Result<()> {
        let mut shown = if self.json {
            text::printable_json(&serde_json::to_string(answer).map_err(std::io::Error::from)?)
        } else {
            text::printable_lines(&text_of(answer))
        };
        if !shown.ends_with('\n') {
            shown.push('\n');
        }
        let mut output = std::io::stdout().lock();
        output.write_all(shown.as_bytes())?;
        Ok(output.flush()?)
    }

    /// Prints an error. A failure to print is ignored.
    pub(crate) fn complain(self, trouble: &Trouble) {
        match serde_json::to_string(trouble) {
            Ok(json) if self.json => complain!("{}", text::printable_json(&json)),
            _ => complain!("fermatactl: {trouble}"),
        }
    }
}

/// A target of a command: a context or a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum Target {
    Context(u32),
    Setting(String),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Context(number) => write!(f, "{number}"),
            Self::Setting(setting) => f.write_str(setting),
        }
    }
}

/// The targets that were done, and those that were not.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Progress {
    done: Vec<Target>,
    not_done: Vec<Target>,
}

impl Progress {
    /// Returns the progress before the first target.
    pub(crate) fn none(targets: &[Target]) -> Self {
        Self::after(0, targets)
    }

    fn after(count: usize, targets: &[Target]) -> Self {
        let (done, not_done) = targets.split_at(count);
        Self {
            done: done.to_vec(),
            not_done: not_done.to_vec(),
        }
    }
}

/// Empty for a command with one target, which then was not done.
impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.done[..], &self.not_done[..]) {
            ([], [_]) => Ok(()),
            ([], _) => f.write_str("nothing was done"),
            (done, not_done) => write!(f, "done: {}; not done: {}", list(done), list(not_done)),
        }
    }
}

fn list(targets: &[Target]) -> String {
    let texts: Vec<_> = targets.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

/// Calls `act` for each target until an error, to which the progress is added.
pub(crate) fn act_on_each<T>(
    things: &[T],
    target_of: impl Fn(&T) -> Target,
    act: impl Fn(&T) -> Result<()>,
) -> Result<()> {
    let targets: Vec<_> = things.iter().map(target_of).collect();
    things.iter().enumerate().try_for_each(|(index, thing)| {
        act(thing).map_err(|trouble| trouble.with(Progress::after(index, &targets)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn only_a_closed_pipe_is_none() {
        use std::io::ErrorKind::{BrokenPipe, StorageFull};
        assert!(Trouble::from(std::io::Error::from(BrokenPipe)).is_closed_output());
        assert!(!Trouble::from(std::io::Error::from(StorageFull)).is_closed_output());
    }

    #[test]
    fn errors_have_advice_as_text_and_as_json() {
        let path = Path::new("/nowhere/file");
        let troubles = [
            Trouble::new("cause", "remedy"),
            Trouble::of_call("holding context 7", Call::Control, Error::NotPermitted),
            Trouble::of_file(path, &ErrorKind::NotFound.into()),
            Trouble::of_file(path, &ErrorKind::IsADirectory.into()),
            std::io::Error::from(ErrorKind::StorageFull).into(),
        ];
        for trouble in troubles {
            assert_eq!(trouble.to_string().lines().count(), 2, "{trouble}");
            let json = serde_json::to_value(&trouble).unwrap();
            for member in ["error", "advice"] {
                let text = json[member].as_str().unwrap();
                assert!(!text.is_empty(), "{json}");
            }
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let advice = |path: &Path| Trouble::of_file(path, &ErrorKind::NotFound.into()).advice;
        let there = folder.path().display();
        let file = advice(&folder.path().join("none"));
        assert!(
            file.contains(&format!("no such file in {there}:")),
            "{file}"
        );
        let deep = advice(&folder.path().join("none/deeper/file"));
        assert!(deep.contains(&format!("no folder {there}/none:")), "{deep}");
        assert!(advice(Path::new("none")).contains("the present folder"));
    }

    /// Acts on contexts 7, 8 and 9; `refused` fails. Returns the contexts that were acted on, and
    /// the error.
    fn act(refused: u32) -> (Vec<u32>, Option<Trouble>) {
        let tried = RefCell::new(Vec::new());
        let done = act_on_each(
            &[7, 8, 9],
            |number| Target::Context(*number),
            |number| {
                tried.borrow_mut().push(*number);
                match number {
                    number if *number == refused => Err(Trouble::new("cause", "remedy")),
                    _ => Ok(()),
                }
            },
        );
        (tried.into_inner(), done.err())
    }

    #[test]
    fn the_first_error_ends_it_and_tells_what_was_done() {
        let (tried, trouble) = act(10);
        assert!(tried == [7, 8, 9] && trouble.is_none());
        let (tried, trouble) = act(8);
        assert_eq!(tried, [7, 8]);
        let trouble = trouble.unwrap();
        assert_eq!(
            trouble.to_string(),
            "cause\n  done: 7; not done: 8, 9\n  remedy"
        );
        let json = serde_json::to_string(&trouble).unwrap();
        assert_eq!(
            json,
            r#"{"error":"cause","advice":"remedy","done":[7],"not_done":[8,9]}"#
        );
        let trouble = act(7).1.unwrap();
        assert_eq!(trouble.to_string(), "cause\n  nothing was done\n  remedy");
    }

    #[test]
    fn one_target_that_was_refused_says_nothing_more() {
        let setting = [Target::Setting("weight=1".into())];
        let trouble = Trouble::new("cause", "remedy").with(Progress::none(&setting));
        assert_eq!(trouble.to_string(), "cause\n  remedy");
        let json = serde_json::to_string(&trouble).unwrap();
        assert!(
            json.ends_with(r#""done":[],"not_done":["weight=1"]}"#),
            "{json}"
        );
    }
}
