// SPDX-License-Identifier: GPL-2.0-or-later
//! The output of commands: answers, as text or as JSON, and errors with advice.

use crate::advice::{self, Call};
use crate::progress::Progress;
use fermata::Error;
use serde::Serialize;
use std::fmt;
use std::io::{ErrorKind, Write};
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
            ErrorKind::NotFound => "check the path: folders are not made",
            ErrorKind::PermissionDenied => {
                "`ls -ld` shows who may use the file and its folder: run the command as that \
                     user, or name another file"
            }
            ErrorKind::StorageFull => {
                "free space on this file system, or name a file on another \
                 one"
            }
            _ => "name another file",
        };
        Self::new(format!("{}: {error}", path.display()), advice)
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

    /// Prints an answer as JSON, or as the text that `text` returns.
    pub(crate) fn show<T: Serialize>(
        self,
        answer: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<()> {
        let mut text = if self.json {
            serde_json::to_string(answer).map_err(std::io::Error::from)?
        } else {
            text(answer)
        };
        if !text.ends_with('\n') {
            text.push('\n');
        }
        let mut output = std::io::stdout().lock();
        output.write_all(text.as_bytes())?;
        Ok(output.flush()?)
    }

    /// Prints an error. A failure to print is ignored.
    pub(crate) fn complain(self, trouble: &Trouble) {
        let text = match serde_json::to_string(trouble) {
            Ok(json) if self.json => json,
            _ => format!("fermatactl: {trouble}"),
        };
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
