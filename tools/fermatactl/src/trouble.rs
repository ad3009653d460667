// SPDX-License-Identifier: GPL-2.0
//! What went wrong, and what can be done about it.

use fermata::Error;
use serde::Serialize;
use std::fmt;
use std::process::ExitCode;

pub(crate) type Result<T> = std::result::Result<T, Trouble>;

/// Something that could not be done.
#[derive(Debug, Serialize)]
pub(crate) struct Trouble {
    /// What, and why not.
    error: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
    #[serde(skip)]
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It could not be done.
    NotDone,
    /// It was done, and the job has failed.
    JobFailed,
    /// Nobody reads what is printed.
    ClosedOutput,
}

impl Trouble {
    pub(crate) fn new(error: impl Into<String>) -> Self {
        Self {
            error: error.into(),
            advice: None,
            kind: Kind::NotDone,
        }
    }

    /// A job that was started and did not finish.
    pub(crate) fn job_failed(error: impl Into<String>) -> Self {
        Self {
            kind: Kind::JobFailed,
            ..Self::new(error)
        }
    }

    /// The exit status.
    pub(crate) fn status(&self) -> ExitCode {
        match self.kind {
            Kind::NotDone => ExitCode::FAILURE,
            Kind::JobFailed => ExitCode::from(3),
            Kind::ClosedOutput => ExitCode::SUCCESS,
        }
    }

    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// A call of the driver that was refused; `doing`: what was tried.
    pub(crate) fn of_call(doing: &str, error: Error) -> Self {
        let trouble = Self::new(format!("{doing}: {error}"));
        match error {
            Error::Gone => trouble.advise(
                "the card was unplugged or unbound, or has died: `dmesg` tells; `fermatactl list` shows which are there",
            ),
            Error::NotPermitted => trouble
                .advise("it takes CAP_SYS_ADMIN (more than a default CAP_SYS_NICE, too): run it as root"),
            _ => trouble,
        }
    }

    /// A file that could not be used.
    pub(crate) fn of_file(path: &std::path::Path, error: &std::io::Error) -> Self {
        Self::new(format!("{}: {error}", path.display()))
    }

    /// Whether it is only that nobody reads what is printed any more, as in `fermatactl list | head -1`.
    pub(crate) fn is_closed_output(&self) -> bool {
        self.kind == Kind::ClosedOutput
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error)?;
        match &self.advice {
            Some(advice) => write!(f, "\n  {advice}"),
            None => Ok(()),
        }
    }
}

/// Of the output: all else says which file it was.
impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        let is_closed = error.kind() == std::io::ErrorKind::BrokenPipe;
        Self {
            kind: if is_closed {
                Kind::ClosedOutput
            } else {
                Kind::NotDone
            },
            ..Self::new(format!("standard output: {error}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_calls_come_with_advice() {
        let text = Trouble::of_call("holding context 7", Error::NotPermitted).to_string();
        assert!(text.starts_with("holding context 7: not permitted\n"));
        assert!(text.contains("CAP_SYS_ADMIN"));
        assert!(Trouble::of_call("x", Error::Gone)
            .to_string()
            .contains("dmesg"));
    }

    #[test]
    fn only_a_closed_pipe_is_none() {
        use std::io::ErrorKind::{BrokenPipe, StorageFull};
        assert!(Trouble::from(std::io::Error::from(BrokenPipe)).is_closed_output());
        assert!(!Trouble::from(std::io::Error::from(StorageFull)).is_closed_output());
    }
}
