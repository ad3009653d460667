// SPDX-License-Identifier: GPL-2.0-or-later
//! What went wrong, and what can be done about it.

use crate::advice::{self, Call};
use crate::progress::Progress;
use fermata::Error;
use serde::Serialize;
use std::fmt;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

pub(crate) type Result<T> = std::result::Result<T, Trouble>;

/// Something that could not be done.
#[derive(Debug, Serialize)]
pub(crate) struct Trouble {
    /// What failed, and why.
    error: String,
    /// What to do.
    advice: String,
    /// Of a command with several targets.
    #[serde(flatten)]
    progress: Option<Progress>,
    #[serde(skip)]
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It could not be done.
    NotDone,
    /// The command line asks for something that does not exist.
    WrongArguments,
    /// It was done, and the job has failed.
    JobFailed,
    /// Nobody reads what is printed.
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

    /// Arguments that do not go together, or that the engine of a job does not take.
    pub(crate) fn wrong_arguments(error: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            kind: Kind::WrongArguments,
            ..Self::new(error, advice)
        }
    }

    /// A job that was started and did not finish.
    pub(crate) fn job_failed(error: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            kind: Kind::JobFailed,
            ..Self::new(error, advice)
        }
    }

    /// A call of the driver that was refused; `doing`: what was tried.
    pub(crate) fn of_call(doing: &str, call: Call, error: Error) -> Self {
        let (cause, remedy) = advice::explain(call, error);
        Self::new(format!("{doing}: {cause}"), remedy)
    }

    /// A file that could not be used.
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

    /// Adds how far the command came.
    pub(crate) fn with(self, progress: Progress) -> Self {
        Self {
            progress: Some(progress),
            ..self
        }
    }

    /// The exit status.
    pub(crate) fn status(&self) -> ExitCode {
        match self.kind {
            Kind::NotDone => ExitCode::FAILURE,
            Kind::WrongArguments => ExitCode::from(2),
            Kind::JobFailed => ExitCode::from(3),
            Kind::ClosedOutput => ExitCode::SUCCESS,
        }
    }

    /// Whether it is only that nobody reads what is printed any more, as in `fermatactl list | head
    /// -1`.
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

/// Of the output: all else says which file it was.
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
